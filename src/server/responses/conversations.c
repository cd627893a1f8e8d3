/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversations - /v1/conversations: lists of items that responses read from and add to.
 *
 * They lie in the store of answers, under ids of their own: bounded like these, in memory, and
 * the ones that were not used for the longest time go first.
 */
#include "server/responses/responses.h"

#include "server/serve.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MOST_ITEMS = 20, MOST_PAIRS = 16, MOST_KEY = 64, MOST_VALUE = 512, ID = 80 };

static const char *user_of(const struct http_request *rq) { return rq->user ? rq->user : ""; }

/* "/conversations/{id}" and, where there is one, "/items/{item}"; "" for what can be no id. */
static void ids_of(const struct http_request *rq, char id[ID], char item[ID])
{
    const char *at = serve_path(rq) + strlen("/conversations/");
    const size_t n = strcspn(at, "/");
    id[0] = item[0] = 0;
    if (n >= ID || strncmp(at, "conv_", 5) != 0)
        return;
    const char *behind = at + n;
    if (strncmp(behind, "/items/", 7) == 0 && strlen(behind + 7) < ID && !strchr(behind + 7, '/'))
        snprintf(item, ID, "%s", behind + 7);
    else if (*behind && strcmp(behind, "/items") != 0)
        return;
    memcpy(id, at, n);
    id[n] = 0;
}

static void not_found(struct http_exchange *x, const struct http_request *rq)
{
    serve_fail(x, rq, &(struct serve_error){.status = 404, .code = "not_found"},
               "there is no '%.160s' (any more)", serve_path(rq) + 1);
}

static void refuse(struct http_exchange *x, const struct http_request *rq, const struct fault *f)
{
    serve_fail(x, rq, &(struct serve_error){.status = f->status, .param = f->param}, "%s",
               f->message);
}

static bool get(struct serve *v, const struct http_request *rq, struct str *items, struct str *object)
{
    char id[ID], item[ID];
    struct responses_found found = {.items = items, .object = object};
    ids_of(rq, id, item);
    return responses_store_get(v->responses, user_of(rq), id, &found);
}

/* ---- bodies ---- */

static void check_metadata(struct json_object *o, struct fault *f)
{
    if (json_object_object_length(o) > MOST_PAIRS)
        request_fault(f, FAULT_REQUEST, "metadata", "'metadata' has %d pairs, more than the limit of %d",
                      json_object_object_length(o), MOST_PAIRS);
    json_object_object_foreach(o, key, value)
    {
        const struct view text = view_of(value);
        if (strlen(key) > MOST_KEY || !text.at || text.n > MOST_VALUE)
            request_fault(f, FAULT_REQUEST, "metadata",
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
                       struct str *out, struct fault *f)
{
    struct json_object *items = request_get_array(body, "items", MOST_ITEMS, f);
    if (items && !f->kind)
        responses_check_items(items, v->responses, user_of(rq), out, f);
}

static struct json_object *read_body(const struct http_request *rq, struct fault *f)
{
    return request_body(rq->n_body ? rq->body : "{}", rq->n_body ? rq->n_body : 2, f);
}

/* ---- conversations ---- */

static void put_conversation(struct str *out, const char *id, int64_t created, const struct str *metadata)
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
    struct str metadata, items, out;
    struct fault f = {0};
    struct json_object *body = read_body(rq, &f);
    str_init(&metadata);
    str_init(&items);
    str_init(&out);
    if (!f.kind)
        read_metadata(body, &metadata, &f);
    if (!f.kind)
        read_items(v, rq, body, &items, &f);
    json_object_put(body);
    if (!f.kind) {
        responses_random(hex);
        snprintf(id, sizeof id, "conv_%s", hex);
        put_conversation(&out, id, (int64_t)time(NULL), &metadata);
        const struct responses_kept k = {.items = &items, .object = &out};
        responses_store_add(v->responses, user_of(rq), id, &k);
        serve_json(x, rq, &out);
    } else {
        str_release(&out);
        refuse(x, rq, &f);
    }
    str_release(&metadata);
    str_release(&items);
}

void conversations_get(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    struct str out;
    str_init(&out);
    if (get(v, rq, NULL, &out)) {
        serve_json(x, rq, &out);
        return;
    }
    str_release(&out);
    not_found(x, rq);
}

static bool set_metadata(void *arg, struct str *items, struct str *object)
{
    struct json_object *o = NULL, *metadata = NULL;
    const struct str *text = arg;
    (void)items;
    bool ok = json_parse(object->at, object->n, NULL, &o, NULL) == INGLE_OK &&
              json_parse(text->at, text->n, NULL, &metadata, NULL) == INGLE_OK &&
              !json_object_object_add(o, "metadata", json_object_get(metadata));
    str_clear(object);
    if (ok)
        view_put_json(object, o);
    json_object_put(o);
    json_object_put(metadata);
    return ok;
}

void conversations_update(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[ID], item[ID];
    struct str metadata;
    struct fault f = {0};
    struct json_object *body = read_body(rq, &f);
    ids_of(rq, id, item);
    str_init(&metadata);
    if (!f.kind)
        read_metadata(body, &metadata, &f);
    const bool there = body && request_get(body, "metadata");
    json_object_put(body);
    if (f.kind)
        refuse(x, rq, &f);
    else if (there && !responses_store_change(v->responses, user_of(rq), id, set_metadata, &metadata))
        not_found(x, rq);
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
        not_found(x, rq);
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
static void answer_list(struct http_exchange *x, const struct http_request *rq, const struct str *items,
                        bool all)
{
    struct str out;
    struct fault f = {0};
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
    struct str items;
    str_init(&items);
    if (get(v, rq, &items, NULL))
        answer_list(x, rq, &items, false);
    else
        not_found(x, rq);
    str_release(&items);
}

void conversations_add(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[ID], item[ID];
    struct str items;
    struct fault f = {0};
    struct json_object *body = read_body(rq, &f);
    ids_of(rq, id, item);
    str_init(&items);
    if (!f.kind && !request_get(body, "items"))
        request_fault(&f, FAULT_REQUEST, "items", "'items' is missing");
    if (!f.kind)
        read_items(v, rq, body, &items, &f);
    json_object_put(body);
    if (f.kind)
        refuse(x, rq, &f);
    else if (!responses_store_change(v->responses, user_of(rq), id, responses_append, &items))
        not_found(x, rq);
    else
        answer_list(x, rq, &items, true);
    str_release(&items);
}

/* The elements of a list of items; NULL: no memory. */
static struct json_object *parse_items(const struct str *items)
{
    struct json_object *list = NULL;
    struct str text;
    str_init(&text);
    str_addc(&text, '[');
    str_add(&text, items->at, items->n);
    str_addc(&text, ']');
    if (!str_ok(&text) || json_parse(text.at, text.n, NULL, &list, NULL) != INGLE_OK)
        list = NULL;
    str_release(&text);
    return list;
}

/* Appends the item of that id, or all others. */
static bool pick(const struct str *items, const char *id, bool others, struct str *out)
{
    struct json_object *list = parse_items(items);
    bool found = false;
    for (size_t i = 0; list && i < json_object_array_length(list); i++) {
        struct json_object *item = json_object_array_get_idx(list, i);
        const bool is = view_is(view_member(item, "id"), id);
        found = found || is;
        if (is == others)
            continue;
        view_put_comma(out);
        view_put_json(out, item);
    }
    json_object_put(list);
    return found;
}

void conversations_item(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[ID], item[ID];
    struct str items, out;
    ids_of(rq, id, item);
    str_init(&items);
    str_init(&out);
    const bool found = get(v, rq, &items, NULL) && pick(&items, item, false, &out);
    str_release(&items);
    if (found) {
        serve_json(x, rq, &out);
        return;
    }
    str_release(&out);
    not_found(x, rq);
}

static bool remove_item(void *arg, struct str *items, struct str *object)
{
    struct str left;
    (void)object;
    str_init(&left);
    const bool ok = pick(items, arg, true, &left) && str_ok(&left);
    str_clear(items);
    str_add(items, left.at, left.n);
    str_release(&left);
    return ok;
}

void conversations_remove(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    char id[ID], item[ID];
    ids_of(rq, id, item);
    if (responses_store_change(v->responses, user_of(rq), id, remove_item, item))
        conversations_get(v, x, rq);
    else
        not_found(x, rq);
}
