/* SPDX-License-Identifier: Apache-2.0 */
/*
 * responses_items - items as the store keeps them, and lists of them for clients.
 */
#include "server/responses/responses.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "http/http.h"
#include "server/write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { MOST = 100, USUAL = 20 };

/* ---- lists ---- */

struct responses_item *responses_item_create(const char *text, size_t n, struct view id)
{
    size_t size;
    if (!num_add(n, id.n, &size) || !num_add(size, sizeof(struct responses_item) + 2, &size))
        return NULL;
    struct responses_item *i = mem_alloc(size);
    if (!i)
        return NULL;
    memset(i, 0, sizeof *i);
    atomic_init(&i->refs, 1);
    i->n = n;
    i->n_id = id.n;
    memcpy(i->text, text, n);
    i->text[n] = 0;
    if (id.n)
        memcpy(i->text + n + 1, id.at, id.n);
    i->text[n + 1 + id.n] = 0;
    return i;
}

struct responses_item *responses_item_ref(struct responses_item *i)
{
    atomic_fetch_add(&i->refs, 1);
    return i;
}

void responses_item_unref(struct responses_item *i)
{
    if (i && atomic_fetch_sub(&i->refs, 1) == 1)
        mem_free(i);
}

bool responses_items_add(struct responses_items *list, struct responses_item *i)
{
    if (!i || !mem_grow(&list->at, &list->cap, list->n + 1, sizeof(struct responses_item *))) {
        responses_item_unref(i);
        list->failed = true;
        return false;
    }
    list->at[list->n++] = i;
    list->n_bytes += responses_item_bytes(i);
    return true;
}

bool responses_items_share(struct responses_items *to, const struct responses_items *from,
                           size_t begin, size_t end)
{
    if (!mem_grow(&to->at, &to->cap, to->n + (end - begin) + 1, sizeof(struct responses_item *))) {
        to->failed = true;
        return false;
    }
    for (size_t i = begin; i < end; i++) {
        to->at[to->n++] = responses_item_ref(from->at[i]);
        to->n_bytes += responses_item_bytes(from->at[i]);
    }
    return true;
}

void responses_items_cut(struct responses_items *list, size_t at)
{
    struct responses_item *i = list->at[at];
    list->n_bytes -= responses_item_bytes(i);
    list->n--;
    memmove(list->at + at, list->at + at + 1, (list->n - at) * sizeof(struct responses_item *));
    responses_item_unref(i);
}

size_t responses_items_find(const struct responses_items *list, const char *id)
{
    const size_t n = strlen(id);
    size_t i = 0;
    while (i < list->n &&
           (list->at[i]->n_id != n || memcmp(responses_item_id(list->at[i]), id, n) != 0))
        i++;
    return i;
}

void responses_items_release(struct responses_items *list)
{
    for (size_t i = 0; i < list->n; i++)
        responses_item_unref(list->at[i]);
    mem_free(list->at);
    *list = (struct responses_items){0};
}

/* ---- items ---- */

void responses_random(char hex[33])
{
    uint64_t v[2] = {0};
    if (getrandom(v, sizeof v, 0) != (ssize_t)sizeof v)
        v[0] = clock_now();
    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)v[0], (unsigned long long)v[1]);
}

static const char *prefix_of(struct view type)
{
    static const struct {
        const char *type, *prefix;
    } known[] = {
        {"message", "msg_"},          {"reasoning", "rs_"},
        {"function_call", "fc_"},     {"function_call_output", "fco_"},
        {"custom_tool_call", "ctc_"}, {"local_shell_call", "lsh_"},
        {"tool_search_call", "tsc_"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (view_is(type, known[i].type))
            return known[i].prefix;
    return "item_";
}

static bool is_string(struct json_object *v) { return json_object_is_type(v, json_type_string); }

/* One part, of the type that belongs to the role. */
static void put_text_part(struct str *out, struct json_object *text, struct view role)
{
    const bool output = view_is(role, "assistant");
    str_addf(out, "{\"type\":\"%s\",\"text\":", output ? "output_text" : "input_text");
    view_put_json(out, text);
    str_adds(out, output ? ",\"annotations\":[],\"logprobs\":[]}" : "}");
}

static void put_content(struct str *out, struct json_object *content, struct view role)
{
    if (!is_string(content) && !json_object_is_type(content, json_type_array)) {
        view_put_json(out, content);
        return;
    }
    str_addc(out, '[');
    if (is_string(content))
        put_text_part(out, content, role);
    for (size_t i = 0; !is_string(content) && i < json_object_array_length(content); i++) {
        struct json_object *part = json_object_array_get_idx(content, i);
        view_put_comma(out);
        if (is_string(part))
            put_text_part(out, part, role);
        else
            view_put_json(out, part);
    }
    str_addc(out, ']');
}

/* Calls and results without an id of their own are matched by their order: they get none. */
static bool wants_id(struct json_object *item, struct view type)
{
    const bool matched = view_ends(type, "_call") || view_ends(type, "_output");
    return !view_member(item, "id").n && (!matched || view_member(item, "call_id").n);
}

static void put_item(struct str *out, struct json_object *item, struct view type, struct view id)
{
    const bool message = view_is(type, "message");
    str_addc(out, '{');
    if (!view_member(item, "id").n && id.n)
        write_member_string(out, "id", id.at, id.n);
    if (!view_get(item, "type"))
        write_member(out, "type", "message");
    json_object_object_foreach(item, key, value)
    {
        /* null is as good as nothing, and an id must be a text: what stands for these has been
         * written, or will be. */
        if (strcmp(key, "id") == 0 && !view_member(item, "id").n)
            continue;
        if (!value && (strcmp(key, "type") == 0 || strcmp(key, "status") == 0))
            continue;
        write_key(out, key);
        if (message && strcmp(key, "content") == 0)
            put_content(out, value, view_member(item, "role"));
        else
            view_put_json(out, value);
    }
    if (message && !view_get(item, "status"))
        write_member(out, "status", "completed");
    str_addc(out, '}');
}

struct responses_item *responses_keep_item(struct json_object *item, const char *base, size_t n)
{
    struct responses_item *kept = NULL;
    struct str text, new;
    struct view type = view_member(item, "type"), id = view_member(item, "id");
    type = type.at ? type : VIEW("message");
    str_init(&text);
    str_init(&new);
    if (wants_id(item, type)) {
        str_addf(&new, "%s%s%04zx", prefix_of(type), base, n);
        id = view_str(&new);
    }
    put_item(&text, item, type, id);
    if (str_ok(&text) && str_ok(&new))
        kept = responses_item_create(text.at, text.n, id);
    str_release(&text);
    str_release(&new);
    return kept;
}

/* ---- pages ---- */

static int read_limit(const struct http_request *rq, struct fault *f)
{
    const char *text = rq ? http_request_query(rq, "limit") : NULL;
    char *end;
    const long n = text ? strtol(text, &end, 10) : USUAL;
    if (text && (*text < '0' || *text > '9' || *end || n < 1 || n > MOST))
        request_fault(f, FAULT_REQUEST, "limit", "'limit' is '%.40s', not 1 to %d", text, MOST);
    return f->kind ? 0 : rq ? (int)n : MOST;
}

/* The newest first, unless the oldest are requested. */
static bool read_descending(const struct http_request *rq, struct fault *f)
{
    const char *order = rq ? http_request_query(rq, "order") : "asc";
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        request_fault(f, FAULT_REQUEST, "order", "'order' is '%.40s', not asc or desc", order);
    return !order || strcmp(order, "asc") != 0;
}

/* The place in the list after the item of that id; n: there is none. */
static size_t place_after(const struct responses_items *items, size_t n, bool descending,
                          const char *id)
{
    const size_t at = responses_items_find(items, id);
    if (at >= n)
        return n;
    return descending ? n - at : at + 1;
}

static void put_id(struct str *out, const char *key, const struct responses_item *item)
{
    write_key(out, key);
    if (item && item->n_id)
        write_string(out, responses_item_id(item), item->n_id);
    else
        write_null(out);
}

void responses_page(const struct http_request *rq, const struct responses_items *items, size_t n,
                    struct str *out, struct fault *f)
{
    const struct responses_item *first = NULL, *item = NULL;
    const size_t limit = (size_t)read_limit(rq, f);
    const bool descending = read_descending(rq, f);
    const char *after = rq ? http_request_query(rq, "after") : NULL;
    if (f->kind)
        return;
    if (items->failed) {
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a list of items");
        return;
    }
    n = n < items->n ? n : items->n;
    const size_t from = after ? place_after(items, n, descending, after) : 0;
    const size_t to = n - from > limit ? from + limit : n;
    write_open(out, '{');
    write_member(out, "object", "list");
    write_key(out, "data");
    write_open(out, '[');
    for (size_t i = from; i < to; i++) {
        item = items->at[descending ? n - 1 - i : i];
        first = first ? first : item;
        view_put_comma(out);
        str_add(out, item->text, item->n);
    }
    write_close(out, ']');
    put_id(out, "first_id", first);
    put_id(out, "last_id", item);
    write_member_bool(out, "has_more", to < n);
    write_close(out, '}');
}
