/* SPDX-License-Identifier: Apache-2.0
 *
 * GET /props: everything about the server in one object, for llama.cpp's clients, for those of
 * the props schema 2, and for people: all options with their values are in it.
 */
#include "server/answer.h"
#include "server/auth.h"
#include "server/metrics.h"
#include "server/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool takes_serve(const char *where)
{
    static const char word[] = "serve";
    if (strcmp(where, "*") == 0)
        return true;
    for (const char *p = where; (p = strstr(p, word)); p += sizeof word - 1)
        if ((p == where || p[-1] == ' ') && (!p[sizeof word - 1] || p[sizeof word - 1] == ' '))
            return true;
    return false;
}

static void put_option(const struct serve *s, const struct ingle_option *o, struct str *out)
{
    const char *text;
    write_key(out, o->name);
    switch (o->kind) {
    case INGLE_OPTION_FLAG:
        write_bool(out, ingle_config_flag(s->config, o->name));
        break;
    case INGLE_OPTION_INT:
    case INGLE_OPTION_NUMBER:
    case INGLE_OPTION_SIZE:
        if (ingle_config_text(s->config, o->name, 0))
            write_number(out, ingle_config_number(s->config, o->name));
        else
            write_null(out);
        break;
    case INGLE_OPTION_LIST:
        write_open(out, '[');
        for (size_t i = 0; (text = ingle_config_text(s->config, o->name, i)); i++)
            write_text(out, text);
        write_close(out, ']');
        break;
    case INGLE_OPTION_TEXT:
    case INGLE_OPTION_CHOICE:
        write_text(out, ingle_config_text(s->config, o->name, 0));
        break;
    }
}

static void put_options(const struct serve *s, struct str *out)
{
    size_t n;
    const struct ingle_option *o = ingle_options(&n);
    write_key(out, "options");
    write_open(out, '{');
    for (size_t i = 0; i < n; i++)
        if (takes_serve(o[i].where) && strcmp(o[i].name, "limit") != 0) /* each stands by itself */
            put_option(s, &o[i], out);
    write_close(out, '}');
}

static void put_limits(struct str *out)
{
    write_key(out, "limits"); /* those that are no options; the others are under options */
    write_open(out, '{');
    write_member_int(out, "json_depth", REQUEST_MAX_DEPTH);
    write_member_int(out, "json_values", REQUEST_MAX_VALUES);
    write_member_int(out, "json_keys", REQUEST_MAX_KEYS);
    write_member_int(out, "json_objects", JSON_OBJECTS);
    write_member_int(out, "messages", REQUEST_MAX_MESSAGES);
    write_member_int(out, "tools", REQUEST_MAX_TOOLS);
    write_member_int(out, "stop", REQUEST_MAX_STOPS);
    write_member_int(out, "stop_bytes", REQUEST_MAX_STOP_BYTES);
    write_member_int(out, "logit_bias", REQUEST_MAX_BIAS);
    write_member_int(out, "n", REQUEST_MAX_N);
    write_member_int(out, "top_logprobs", REQUEST_MAX_TOP);
    write_member_int(out, "prompts", REQUEST_MAX_PROMPTS);
    write_close(out, '}');
}

static void put_generation(const struct serve *s, struct str *out)
{
    const struct answer_options *o = answer_get_options(s->answers);
    const struct ingle_sampling *p = &o->sampling;
    write_key(out, "default_generation_settings");
    write_open(out, '{');
    write_member_int(out, "n_ctx", s->engine_info.n_ctx);
    write_key(out, "params");
    write_open(out, '{');
    const bool seeded =
        ingle_config_is_set(s->config, "seed") && ingle_config_number(s->config, "seed") >= 0;
    write_member_int(out, "seed", seeded ? (int64_t)p->seed : 4294967295);
    write_key(out, "temperature");
    write_float(out, p->temperature);
    write_member_int(out, "top_k", p->top_k);
    write_key(out, "top_p");
    write_float(out, p->top_p);
    write_key(out, "min_p");
    write_float(out, p->min_p);
    write_key(out, "typical_p");
    write_float(out, p->typical_p);
    write_key(out, "repeat_penalty");
    write_float(out, p->repeat_penalty);
    write_key(out, "presence_penalty");
    write_float(out, p->presence_penalty);
    write_key(out, "frequency_penalty");
    write_float(out, p->frequency_penalty);
    write_member_int(out, "n_predict", o->max_tokens);
    write_member_int(out, "max_tokens", o->max_tokens);
    write_close(out, '}');
    write_close(out, '}');
}

static void put_model(const struct serve *s, struct str *out)
{
    write_member_int(out, "total_slots", answer_get_options(s->answers)->max_running);
    write_member(out, "model_path", s->info.path);
    write_member(out, "model_alias", s->model_id);
    write_key(out, "model");
    write_open(out, '{');
    write_member(out, "arch", s->info.arch);
    write_member(out, "name", s->info.name);
    write_member(out, "draft_path",
                 s->engine_info.draft_path[0] ? s->engine_info.draft_path : NULL);
    write_member(out, "tokenizer_id", s->info.chat);
    write_close(out, '}');
    write_member_null(out, "model_card");
    write_member(out, "chat_template", s->info.template_name);
    write_key(out, "chat_template_caps");
    write_open(out, '{');
    write_member_bool(out, "supports_tools", s->info.chat[0] != 0);
    write_member_bool(out, "supports_tool_calls", s->info.chat[0] != 0);
    write_member_bool(out, "supports_parallel_tool_calls", s->info.chat[0] != 0);
    write_member_bool(out, "supports_system_role", true);
    write_member_bool(out, "supports_preserve_reasoning", true);
    write_close(out, '}');
    write_key(out, "modalities");
    write_open(out, '{');
    write_member_bool(out, "vision", s->engine_info.sees);
    write_member_bool(out, "audio", s->engine_info.hears);
    write_close(out, '}');
}

static bool drafts(const struct serve *s)
{
    return s->engine_info.draft[0] || s->engine_info.draft_text;
}

/* What guesses tokens, and what has come of it. */
static void put_drafting(const struct serve *s, const struct ingle_scheduler_status *now,
                         struct str *out)
{
    const struct ingle_engine_info *i = &s->engine_info;
    const char *mode = i->draft[0] ? i->draft : i->draft_text ? "ngram" : "off";
    write_key(out, "speculative");
    write_open(out, '{');
    write_member_bool(out, "enabled", drafts(s));
    write_member(out, "proposer", mode);
    write_member_bool(out, "ngram", i->draft_text);
    write_member(out, "draft_path", i->draft_path[0] ? i->draft_path : NULL);
    write_member(out, "why_no_network", i->draft_why[0] ? i->draft_why : NULL);
    write_member(out, "why_off_now", now->draft_why[0] ? now->draft_why : NULL);
    write_member_int(out, "n_max", i->draft_most);
    write_member_int(out, "n_tree", i->draft_tree);
    write_key(out, "bytes");
    write_uint(out, i->draft_bytes);
    write_facts(out, "drafts", now);
    write_close(out, '}');
    write_member(out, "speculative_mode", mode);
}

static void put_capabilities(const struct serve *s, struct str *out)
{
    static const char *const efforts[] = {"low", "medium", "high", "max"};
    const bool chat = s->info.chat[0] != 0;
    write_key(out, "capabilities");
    write_open(out, '{');
    write_member_bool(out, "reasoning_supported", chat);
    write_member_bool(out, "speculative_supported", drafts(s));
    write_member_bool(out, "tools_supported", chat);
    write_close(out, '}');
    write_key(out, "reasoning");
    write_open(out, '{');
    write_member_bool(out, "supported", chat);
    write_key(out, "supported_efforts");
    write_open(out, '[');
    for (size_t i = 0; chat && i < sizeof efforts / sizeof *efforts; i++)
        write_text(out, efforts[i]);
    write_close(out, ']');
    write_member_bool(out, "default", answer_get_options(s->answers)->thinking);
    write_close(out, '}');
}

static void put_off(struct str *out, const char *key)
{
    write_key(out, key);
    write_open(out, '{');
    write_member_bool(out, "enabled", false);
    write_close(out, '}');
}

/* Members that schema 2 has in any case. */
static void put_schema(const struct serve *s, struct str *out)
{
    static const char *const samplers[] = {
        "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty",
        "frequency_penalty", "dry", "xtc", "logit_bias", "seed", "grammar", "json_schema",
    };
    write_key(out, "budget_envelope");
    write_open(out, '{');
    write_member_null(out, "model_card_source");
    write_member_int(out, "default_max_tokens", answer_get_options(s->answers)->max_tokens);
    write_member_int(out, "hard_limit_reply_budget", s->engine_info.n_ctx);
    write_member_int(out, "think_max_tokens", s->engine_info.n_ctx);
    write_key(out, "effort_tiers");
    write_open(out, '{');
    write_close(out, '}');
    write_close(out, '}');
    write_key(out, "sampling");
    write_open(out, '{');
    write_key(out, "capabilities");
    write_open(out, '[');
    for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++)
        write_text(out, samplers[i]);
    write_close(out, ']');
    write_close(out, '}');
    put_off(out, "full_cache");
    write_key(out, "pflash");
    write_open(out, '{');
    write_member_bool(out, "enabled", strcmp(s->engine_info.sparse, "off") != 0);
    write_close(out, '}');
    put_off(out, "tool_replay");
}

/* Prompts that read the values of large weights alone, and what that left out. */
static void put_sparse(const struct serve *s, const struct ingle_scheduler_status *now,
                       struct str *out)
{
    const struct ingle_engine_info *i = &s->engine_info;
    write_key(out, "sparse");
    write_open(out, '{');
    write_member(out, "mode", i->sparse);
    write_member(out, "why_never", i->sparse_why[0] ? i->sparse_why : NULL);
    write_member_int(out, "layers", i->sparse_layers);
    write_facts(out, "sparse", &now->way.sparse);
    write_close(out, '}');
}

/* Prompts of which a part is left out. */
static void put_shortener(const struct serve *s, struct str *out)
{
    struct ingle_shortener_info i;
    ingle_shortener(s->engine, &i);
    write_key(out, "prompt_drafter");
    write_open(out, '{');
    write_member(out, "path", *i.path ? i.path : NULL);
    write_member(out, "why_never", *i.why_never ? i.why_never : NULL);
    write_member_number(out, "keep", i.keep);
    write_member_int(out, "from", i.from);
    write_member_int(out, "n_ctx", i.n_ctx);
    write_key(out, "bytes");
    write_uint(out, i.bytes);
    write_close(out, '}');
}

/* Answers that read chosen pages, and what that left out. */
static void put_select(const struct serve *s, const struct ingle_scheduler_status *now,
                       struct str *out)
{
    const struct ingle_engine_info *i = &s->engine_info;
    write_key(out, "kv_select");
    write_open(out, '{');
    write_member(out, "mode", i->kv_select);
    write_member(out, "why_never", i->kv_select_why[0] ? i->kv_select_why : NULL);
    write_facts(out, "select", &now->way.select);
    write_close(out, '}');
}

/* Keys and values beyond memory; null without --kv-disk, or for a model that has none to keep
 * there. */
static void put_paging(const struct serve *s, const struct ingle_scheduler_status *now,
                       struct str *out)
{
    const struct ingle_paging *p = &now->paging;
    write_key(out, "kv_disk");
    if (!p->budget_bytes) {
        write_null(out);
        return;
    }
    write_open(out, '{');
    write_member(out, "directory", ingle_config_text(s->config, "kv-disk", 0));
    write_facts(out, "paging", p);
    write_close(out, '}');
}

/* Pictures and sounds; null for a model that reads text only. */
static void put_media(const struct ingle_scheduler_status *now, struct str *out)
{
    write_key(out, "media");
    if (!now->media.budget_bytes) {
        write_null(out);
        return;
    }
    write_open(out, '{');
    write_facts(out, "media", &now->media);
    write_close(out, '}');
}

/* What a graphics card computes; null: nothing. */
static void put_gpu(const struct serve *s, const struct ingle_scheduler_status *now,
                    struct str *out)
{
    const struct ingle_engine_info *e = &s->engine_info;
    write_key(out, "gpu");
    if (!e->gpu[0]) {
        write_null(out);
        return;
    }
    write_open(out, '{');
    write_member(out, "name", e->gpu);
    write_member_int(out, "first_layer", e->gpu_first);
    write_member_int(out, "end_layer", e->gpu_end);
    write_member_int(out, "layers", e->n_layers);
    write_member_bool(out, "experts", e->gpu_experts);
    write_member_int(out, "draft_first_layer", e->gpu_draft_first);
    write_member_int(out, "draft_end_layer", e->gpu_draft_end);
    write_member_int(out, "draft_layers", e->draft_layers);
    write_key(out, "weight_bytes");
    write_uint(out, e->gpu_bytes);
    write_member_bool(out, "lost", now->gpu_lost);
    write_close(out, '}');
}

/* The prefixes on disk; null without --store. */
static void put_store(const struct serve *s, const struct ingle_scheduler_status *now,
                      struct str *out)
{
    const char *dir = ingle_config_text(s->config, "store", 0);
    write_key(out, "prefix_store");
    if (!dir) {
        write_null(out);
        return;
    }
    write_open(out, '{');
    write_member(out, "directory", dir);
    write_facts(out, "store", now);
    write_close(out, '}');
}

/* Only where they are not all in memory. */
static void put_experts(const struct serve *s, struct str *out)
{
    struct ingle_experts n;
    if (!ingle_engine_experts(s->engine, &n))
        return;
    write_key(out, "experts");
    write_open(out, '{');
    write_facts(out, "experts", &n);
    write_member(out, "io", n.direct ? "direct" : "cached");
    write_member(out, "reader", n.uring ? "uring" : "threads");
    write_facts(out, "early", &n);
    write_close(out, '}');
}

/* Only where there are any. */
static void put_workers(const struct serve *s, struct str *out)
{
    struct ingle_engine_worker w;
    if (!ingle_engine_worker(s->engine, 0, &w))
        return;
    write_key(out, "workers");
    write_open(out, '[');
    for (int i = 0; ingle_engine_worker(s->engine, i, &w); i++) {
        write_open(out, '{');
        write_member(out, "address", w.address);
        write_member(out, "state", w.state);
        write_member(out, "layers", w.layers);
        write_member_bool(out, "shares_memory", w.shares);
        write_facts(out, "worker", &w);
        write_key(out, "there"); /* its own counters */
        write_open(out, '{');
        write_facts(out, "there", &w);
        write_close(out, '}');
        write_member_number(out, "expert_us", w.unit_us);
        write_member_number(out, "expert_here_us", w.here_us);
        write_member_number(out, "trip_us", w.trip_us);
        write_member(out, "trouble", w.trouble[0] ? w.trouble : NULL);
        write_close(out, '}');
    }
    write_close(out, ']');
}

/* Only where there are any. */
static void put_stages(const struct serve *s, struct str *out)
{
    struct ingle_engine_stage n;
    if (!ingle_engine_stage(s->engine, 0, &n))
        return;
    write_key(out, "stages");
    write_open(out, '[');
    for (int i = 0; ingle_engine_stage(s->engine, i, &n); i++) {
        write_open(out, '{');
        write_member(out, "address", n.address);
        write_member(out, "state", n.ready ? "ready" : "away");
        write_member_int(out, "from", n.from);
        write_member_int(out, "to", n.to);
        write_member(out, "sends_to", n.direct ? "next" : "engine");
        write_facts(out, "stage", &n);
        write_member_number(out, "trip_us", n.trip_us);
        write_member(out, "trouble", n.trouble[0] ? n.trouble : NULL);
        write_close(out, '}');
    }
    write_close(out, ']');
}

/* Of "K:V" each side has its own, with what is said of layers that are kept in another way. */
static void put_kv(const char *kv, struct str *out)
{
    const size_t n = strcspn(kv, ","), colon = strcspn(kv, ":");
    static const char rot[] = "+rot"; /* is said once, of both sides */
    const bool both =
        colon < n && n > sizeof rot && strncmp(kv + n - (sizeof rot - 1), rot, sizeof rot - 1) == 0;
    char text[64];
    snprintf(text, sizeof text, "%.*s%s%s", (int)(colon < n ? colon : n), kv, both ? rot : "",
             kv + n);
    write_member(out, "kv_cache_k", text);
    snprintf(text, sizeof text, "%s", colon < n ? kv + colon + 1 : kv);
    write_member(out, "kv_cache_v", text);
}

/* What computes the layers, and those of the drafter. */
static const char *backend(const struct serve *s, const struct ingle_scheduler_status *now)
{
    const struct ingle_engine_info *e = &s->engine_info;
    const bool model = e->gpu_end > e->gpu_first, drafter = e->gpu_draft_end > e->gpu_draft_first;
    if (!e->gpu[0] || now->gpu_lost || (!model && !drafter))
        return "cpu";
    return !model || e->gpu_first || e->gpu_end < e->n_layers ? "cpu+gpu" : "gpu";
}

static void put_state(struct serve *s, const struct http_request *rq, struct str *out)
{
    struct ingle_scheduler_status now;
    (void)ingle_scheduler_status(s->scheduler, &now, NULL, 0);
    put_store(s, &now, out);
    put_drafting(s, &now, out);
    put_sparse(s, &now, out);
    put_shortener(s, out);
    put_select(s, &now, out);
    put_paging(s, &now, out);
    put_media(&now, out);
    write_key(out, "daemon");
    write_open(out, '{');
    write_member_bool(out, "alive", true);
    write_close(out, '}');
    write_member_bool(out, "is_sleeping", false);
    write_key(out, "prefix_cache");
    write_open(out, '{');
    write_key(out, "capacity");
    write_uint(out, now.kv_budget_bytes);
    write_key(out, "in_use");
    write_uint(out, now.cache_bytes);
    write_member_int(out, "lifetime_hits", now.cache_hits);
    write_key(out, "decisions");
    metrics_decisions(s->metrics, rq->user, out);
    write_close(out, '}');
    write_key(out, "runtime");
    write_open(out, '{');
    write_member(out, "backend", backend(s, &now));
    write_member(out, "instructions", s->engine_info.cpu);
    write_member_int(out, "threads", s->engine_info.threads);
    write_member_int(out, "resting_threads", now.resting_threads);
    write_member(out, "numerics", s->engine_info.numerics);
    put_kv(s->engine_info.kv, out);
    put_gpu(s, &now, out);
    put_experts(s, out);
    put_workers(s, out);
    put_stages(s, out);
    write_close(out, '}');
}

static void put_endpoints(struct str *out)
{
    static const char *const names[] = {
#define ROUTE(method, path, fn, flags) method " " path,
#include "server/routes.inc"
#undef ROUTE
    };
    write_key(out, "api");
    write_open(out, '{');
    write_key(out, "endpoints");
    write_open(out, '[');
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        write_text(out, names[i]);
    write_close(out, ']');
    write_close(out, '}');
}

void endpoints_props(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    char build[96];
    struct str out;
    str_init(&out);
    snprintf(build, sizeof build, "%s props_schema=2", s->fingerprint);
    write_open(&out, '{');
    put_generation(s, &out);
    put_model(s, &out);
    write_member(&out, "build_info", build);
    write_key(&out, "server");
    write_open(&out, '{');
    write_member(&out, "name", "ingle");
    write_member(&out, "version", ingle_version());
    write_member_int(&out, "props_schema", 2);
    write_member_bool(&out, "needs_key", auth_n_keys(s->auth) > 0);
    write_close(&out, '}');
    put_endpoints(&out);
    put_capabilities(s, &out);
    put_schema(s, &out);
    put_state(s, rq, &out);
    put_limits(&out);
    put_options(s, &out);
    write_close(&out, '}');
    serve_json(x, rq, &out);
}
