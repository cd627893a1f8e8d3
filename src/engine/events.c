/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events - the prefixes that the tree in memory and the store on disk have, published to routers
 * (link/events.h): --kv-events.
 */
#include "engine/engine.h"
#include "engine/plan.h"

#include "base/json.h"
#include "link/events.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Whose prefix it is and how it is computed; "": everybody's, in the ordinary way. */
static void salt_of(struct kv_scope scope, int64_t length, char out[64])
{
    const struct kv_scope at = kv_scope_at(scope, length);
    out[0] = 0;
    if (scope.salt || at.sparse || at.shorten.name)
        snprintf(out, 64, "%016" PRIx64 "-%08" PRIx32 "-%016" PRIx64, scope.salt, at.sparse,
                 at.shorten.name);
}

static uint64_t put(void *arg, bool disk, struct kv_scope scope, const int32_t *tokens,
                    const uint32_t *media, int64_t n)
{
    char salt[64];
    salt_of(scope, n, salt);
    return link_events_put(arg, disk ? LINK_STORAGE : LINK_GPU, salt, tokens, media, n);
}

static void drop(void *arg, bool disk, uint64_t name)
{
    link_events_drop(arg, disk ? LINK_STORAGE : LINK_GPU, name);
}

/* ---- vLLM's --kv-events-config ---- */

struct config {
    char address[300], replay[300], topic[300];
    bool on;
};

/* All addresses of the machine (a star) are bound, that of one host is reached, as vLLM has it. */
static void take_address(char out[300], const char *text)
{
    const bool bind = strchr(text, '*') || strstr(text, "::") || strstr(text, "0.0.0.0") ||
                      strncmp(text, "ipc://", 6) == 0;
    snprintf(out, 300, "%s%s", bind ? "" : "connect:", text);
}

static ingle_status read_member(struct config *c, const char *key, struct json_object *v,
                                struct err *err)
{
    static const char *const texts[] = {"publisher", "endpoint", "replay_endpoint", "topic"};
    static const char *const numbers[] = {"buffer_steps", "hwm", "max_queue_size"};
    const char *text = json_object_is_type(v, json_type_string) ? json_object_get_string(v) : NULL;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(key, numbers[i]) == 0 && json_object_is_type(v, json_type_int))
            return INGLE_OK; /* ours are LINK_EVENTS_BATCHES, and as many as wait for no one */
    if (strcmp(key, "enable_kv_cache_events") == 0 && json_object_is_type(v, json_type_boolean)) {
        c->on = json_object_get_boolean(v);
        return INGLE_OK;
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (strcmp(key, texts[i]) != 0)
            continue;
        if (v && !text)
            break;
        if (text && strlen(text) > 280)
            return err_set(err, INGLE_ARG,
                           "--kv-events-config: '%s' has %zu bytes, the limit is 280", key,
                           strlen(text));
        if (!text)
            return INGLE_OK;
        if (i == 0 && strcmp(text, "zmq") != 0 && strcmp(text, "null") != 0)
            return err_set(err, INGLE_ARG,
                           "--kv-events-config: 'publisher' is '%.40s', not 'zmq' or 'null'", text);
        if (i == 0)
            c->on = c->on && strcmp(text, "zmq") == 0;
        else if (i == 3)
            snprintf(c->topic, sizeof c->topic, "%s", text);
        else
            take_address(i == 1 ? c->address : c->replay, text);
        return INGLE_OK;
    }
    return err_set(err, INGLE_ARG,
                   "--kv-events-config: there is no '%.80s' of this kind (enable_kv_cache_events, "
                   "publisher, endpoint, replay_endpoint, topic, buffer_steps, hwm, "
                   "max_queue_size)",
                   key);
}

static ingle_status read_config(struct config *c, const char *text, struct err *err)
{
    struct json_object *o = NULL;
    *c = (struct config){.address = "tcp://*:5557", .on = true};
    ingle_status st = json_parse(text, strlen(text), NULL, &o, err);
    if (st)
        return err_prefix(err, "--kv-events-config");
    if (!json_object_is_type(o, json_type_object))
        st = err_set(err, INGLE_ARG, "--kv-events-config is no JSON object");
    for (struct json_object_iterator it = st ? json_object_iter_end(o) : json_object_iter_begin(o),
                                     end = json_object_iter_end(o);
         !st && !json_object_iter_equal(&it, &end); json_object_iter_next(&it))
        st = read_member(c, json_object_iter_peek_name(&it), json_object_iter_peek_value(&it), err);
    json_object_put(o);
    return st;
}

/* ---- life ---- */

static ingle_status open_events(struct ingle_engine *e, const struct link_events_options *o,
                                struct err *err)
{
    const ingle_status st = link_events_open(&e->events, o, err);
    if (st)
        return st;
    e->watch = (struct kv_watch){.put = put, .drop = drop, .arg = e->events};
    session_runner_watch(e->runner, &e->watch);
    report(&e->sink, INGLE_REPORT_NOTE, "events", link_events_address(e->events),
           "cached prefixes are published here, with their tokens in clear and without a key");
    return INGLE_OK;
}

ingle_status engine_events_open(struct ingle_engine *e, const struct ingle_engine_options *o,
                                struct err *err)
{
    struct config c;
    struct link_events_options how = {
        .address = o->kv_events,
        .replay = o->kv_events_replay,
        .topic = o->kv_events_topic,
        .array = o->kv_events_array,
        .kind = strcmp(e->family->arch, "deepseek4") == 0 ? "mla_attention" : "full_attention",
    };
    if (o->kv_events_config) {
        if (o->kv_events)
            return err_set(err, INGLE_ARG,
                           "'--kv-events' and '--kv-events-config' exclude each other");
        const ingle_status st = read_config(&c, o->kv_events_config, err);
        if (st || !c.on)
            return st;
        how.address = c.address;
        how.replay = how.replay ? how.replay : c.replay[0] ? c.replay : NULL;
        how.topic = how.topic ? how.topic : c.topic;
    }
    if (!how.address && (how.replay || how.topic))
        return err_set(err, INGLE_ARG, "'--kv-events-%s' needs '--kv-events ADDRESS'",
                       how.replay ? "replay" : "topic");
    return how.address ? open_events(e, &how, err) : INGLE_OK;
}

void engine_events_close(struct ingle_engine *e)
{
    if (!e->events)
        return;
    session_runner_watch(e->runner, NULL);
    link_events_close(e->events);
    e->events = NULL;
}

bool ingle_engine_events(const struct ingle_engine *e, struct ingle_events *out)
{
    struct link_events_counts n;
    *out = (struct ingle_events){0};
    if (!e->events)
        return false;
    link_events_count(e->events, &n);
    *out = (struct ingle_events){
        .address = link_events_address(e->events),
        .replay = link_events_replay(e->events),
        .topic = link_events_topic(e->events),
        .batches = n.batches,
        .stored = n.stored,
        .removed = n.removed,
        .lost = n.lost,
        .replays = n.replays,
        .memory_blocks = n.blocks[LINK_GPU],
        .disk_blocks = n.blocks[LINK_STORAGE],
    };
    return true;
}
