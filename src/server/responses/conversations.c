/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversations - /v1/conversations: lists of items that responses read from and add to.
 *
 * They are in the store of answers, under ids of their own: bounded like these, in memory, and
 * the ones that were not changed for the longest time go first.
 */
#include "server/fields.h"
#include "server/responses/responses.h"
#include "server/responses/store.h"

#include "server/odd.h"
#include "server/serve.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MOST_ITEMS = 20, MOST_PAIRS = 16, MOST_KEY = 64, MOST_VALUE = 512, ID = RESPONSES_ID };

static const char *user_of(const struct http_request *rq) { return rq->user ? rq->user : ""; }

/* "/conversations/{id}" and, where there is one, "/items/{item}"; "" for what can be no id. */
static void ids_of(const struct http_request *rq, char id[ID], char item[ID])
{
    const char *at = serve_path(rq) + strlen("/conversations/");
    const size_t n = strcspn(at, "/");
    id[0] = item[0] = 0;
    if (n >= ID || strncmp(at, "conv_", 5) != 0)
        return;
    const char *tail = at + n;
    if (strncmp(tail, "/items/", 7) == 0 && strlen(tail + 7) < ID && !strchr(tail + 7, '/'))
        snprintf(item, ID, "%s", tail + 7);
    else if (*tail && strcmp(tail, "/items") != 0)
        return;
    memcpy(id, at, n);
    id[n] = 0;
}

static void not_found(const struct serve *v, struct http_exchange *x,
                      const struct http_request *rq)
{
    char words[REPLICA_WORDS];
    const char *id = serve_path(rq) + strlen("/conversations/");
    const bool foreign = replica_is_foreign(v->replica, id, strcspn(id, "/"), words);
    serve_fail(x, rq, &(struct serve_error){.status = 404, .code = "not_found"},
               "there is no '%.160s'%s%s", serve_path(rq) + 1, foreign ? " here" : " (any more)",
               words);
}

static void refuse(struct http_exchange *x, const struct http_request *rq, const struct fault *f)
{
    serve_fail(x, rq, &(struct serve_error){.status = f->status, .param = f->param}, "%s",
               f->message);
}

static bool get(struct serve *v, const struct http_request *rq, struct responses_found *found)
{
    char id[ID], item[ID];
    ids_of(rq, id, item);
    return responses_store_get(v->responses, user_of(rq), id, found);
}

/* ---- bodies ---- */

static void check_metadata(struct json_object *o, struct fault *f)
{
    if (json_object_object_length(o) > MOST_PAIRS)
        request_fault(f, FAULT_REQUEST, "metadata",
                      "'metadata' has %d pairs, more than the limit of %d",
                      json_object_object_length(o), MOST_PAIRS);
    json_object_object_foreach(o, key, value)
    {
        const struct view text = view_of(value);
        if (strlen(key) > MOST_KEY || !text.at || text.n > MOST_VALUE)
            request_fault(
                f, FAULT_REQUEST, "metadata",
                "'metadata' is no object of names of up to %d bytes and texts of up to %d",
                MOST_KEY, MOST_VALUE);
    }
}

/* The member of a body, as JSON text; "{}" where there is none. */
static void read_metadata(struct json_object *body, struct str *out, struct fault *f)
{
    struct json_object *o = request_get_object(body, "metadata", f);
    if (o && !f->kind)
        check_metadata(o, f);
    if (o)
        view_put_json(out, o);
    else
        str_adds(out, "{}");
}

static void read_items(struct serve *v, const struct http_request *rq, struct json_object *body,
                       struct responses_items *out, struct fault *f)
{
    struct json_object *items = request_get_array(body, "items", MOST_ITEMS, f);
    odd_members(body, NULL, f);
    if (items && !f->kind)
        responses_check_items(items, v->responses, user_of(rq), out, f);
}

static struct json_object *read_body(const struct http_request *rq, struct fault *f)
{
    return request_body(rq->n_body ? rq->body : "{}", rq->n_body ? rq->n_body : 2, f);
}

/* ---- conversations ---- */

static void put_conversation(struct str *out, const char *id, int64_t created,
                             const struct str *metadata)
{
    write_open(out, '{');
    write_member(out, "id", id);
    write_member(out, "object", "conversation");
    write_member_int(out, "created_at", created);
    write_key(out, "metadata");
    str_add(out, metadata->at, metadata->n);
    write_close(out, '}');
}

void conversations_create(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[ID], hex[33];
    struct str metadata, out;
    struct responses_items items = {0};
    struct fault f = serve_watch(x);
    struct json_object *body = read_body(rq, &f);
    str_init(&metadata);
    str_init(&out);
    if (!f.kind)
        read_metadata(body, &metadata, &f);
    if (!f.kind)
        read_items(v, rq, body, &items, &f);
    json_object_put(body);
    if (!f.kind) {
        responses_random(hex);
        snprintf(id, sizeof id, "conv_%s%s%s", hex, v->replica ? "." : "",
                 v->replica ? v->replica : "");
        put_conversation(&out, id, (int64_t)time(NULL), &metadata);
        const struct responses_kept k = {.items = &items, .object = &out};
        responses_store_add(v->responses, user_of(rq), id, &k);
        serve_json(x, rq, &out);
    } else {
        str_release(&out);
        refuse(x, rq, &f);
    }
    str_release(&metadata);
    responses_items_release(&items);
}

static void send_conversation(struct http_exchange *x, const struct responses_item *object)
{
    http_reply(x, 200, "application/json", object->text, object->n);
}

void conversations_get(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    struct responses_found found = {0};
    if (get(v, rq, &found))
        send_conversation(x, found.object);
    else
        not_found(v, x, rq);
    responses_found_release(&found);
}

/* The conversation with other metadata. */
static bool set_metadata(struct serve *v, const struct http_request *rq, const struct str *metadata)
{
    char id[ID], item[ID];
    struct str text;
    struct responses_found found = {0};
    struct json_object *o = NULL, *new = NULL;
    ids_of(rq, id, item);
    if (!get(v, rq, &found))
        return false;
    str_init(&text);
    bool ok = json_parse(found.object->text, found.object->n, NULL, &o, NULL) == INGLE_OK &&
              json_parse(metadata->at, metadata->n, NULL, &new, NULL) == INGLE_OK &&
              !json_object_object_add(o, "metadata", json_object_get(new));
    if (ok)
        view_put_json(&text, o);
    ok = ok && responses_store_set_object(v->responses, user_of(rq), id, &text);
    json_object_put(o);
    json_object_put(new);
    responses_found_release(&found);
    str_release(&text);
    return ok;
}

void conversations_update(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    struct str metadata;
    struct fault f = serve_watch(x);
    struct json_object *body = read_body(rq, &f);
    str_init(&metadata);
    if (!f.kind)
        read_metadata(body, &metadata, &f);
    const bool there = body && request_get(body, "metadata");
    json_object_put(body);
    if (f.kind)
        refuse(x, rq, &f);
    else if (there && !set_metadata(v, rq, &metadata))
        not_found(v, x, rq);
    else
        conversations_get(v, x, rq);
    str_release(&metadata);
}

void conversations_delete(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[ID], item[ID];
    struct str out;
    ids_of(rq, id, item);
    if (!id[0] || !responses_store_delete(v->responses, user_of(rq), id)) {
        not_found(v, x, rq);
        return;
    }
    str_init(&out);
    write_open(&out, '{');
    write_member(&out, "id", id);
    str_adds(&out, ",\"object\":\"conversation.deleted\",\"deleted\":true}");
    serve_json(x, rq, &out);
}

/* ---- their items ---- */

/* A page as the query asks for it, or all. */
static void answer_list(struct http_exchange *x, const struct http_request *rq,
                        const struct responses_items *items, bool all)
{
    struct str out;
    struct fault f = serve_watch(x);
    str_init(&out);
    responses_page(all ? NULL : rq, items, SIZE_MAX, &out, &f);
    if (!f.kind) {
        serve_json(x, rq, &out);
        return;
    }
    str_release(&out);
    refuse(x, rq, &f);
}

void conversations_items(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    struct responses_items items = {0};
    struct responses_found found = {.items = &items};
    if (get(v, rq, &found))
        answer_list(x, rq, &items, false);
    else
        not_found(v, x, rq);
    responses_found_release(&found);
    responses_items_release(&items);
}

static void full(struct http_exchange *x, const struct http_request *rq)
{
    serve_fail(x, rq, &(struct serve_error){.status = 400, .param = "items"},
               "the conversation would have more than %d items, or half of --limit responses-bytes",
               REQUEST_MAX_MESSAGES);
}

void conversations_add(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[ID], item[ID];
    struct responses_items items = {0};
    struct fault f = serve_watch(x);
    enum responses_change change = RESPONSES_MISSING;
    struct json_object *body = read_body(rq, &f);
    ids_of(rq, id, item);
    if (!f.kind && !request_get(body, "items"))
        request_fault(&f, FAULT_REQUEST, "items", "'items' is missing");
    if (!f.kind)
        read_items(v, rq, body, &items, &f);
    json_object_put(body);
    if (!f.kind)
        change = responses_store_append(v->responses, user_of(rq), id, &items);
    if (f.kind)
        refuse(x, rq, &f);
    else if (change == RESPONSES_FULL)
        full(x, rq);
    else if (change == RESPONSES_MISSING)
        not_found(v, x, rq);
    else
        answer_list(x, rq, &items, true);
    responses_items_release(&items);
}

void conversations_item(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[ID], item[ID];
    struct responses_items items = {0};
    struct responses_found found = {.items = &items};
    ids_of(rq, id, item);
    const bool there = get(v, rq, &found);
    const size_t at = *item ? responses_items_find(&items, item) : items.n;
    if (there && at < items.n)
        http_reply(x, 200, "application/json", items.at[at]->text, items.at[at]->n);
    else
        not_found(v, x, rq);
    responses_found_release(&found);
    responses_items_release(&items);
}

void conversations_remove(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[ID], item[ID];
    ids_of(rq, id, item);
    if (responses_store_remove(v->responses, user_of(rq), id, item))
        conversations_get(v, x, rq);
    else
        not_found(v, x, rq);
}
