/*
 * items - items of conversations and lists of them.
 */
#ifndef INGLE_SERVER_RESPONSES_ITEMS_H
#define INGLE_SERVER_RESPONSES_ITEMS_H

#include "base/str.h"
#include "server/view.h"
#include <stdatomic.h>

struct http_request;
struct fault;
struct json_object;

/* An item as the store keeps it, or the text of an answer's object: shared, and never changed. */
struct responses_item {
    atomic_int refs;
    atomic_int n_kept; /* how often the store keeps it */
    /* Sync: the store's lock, up to hash */
    struct owner *owner;
    struct responses_item *older, *newer; /* of the same id */
    struct responses_item *next;          /* of the bucket */
    uint64_t hash;
    size_t n, n_id;
    char text[]; /* [n] of JSON and a 0, [n_id] of its id and a 0 */
};
/* With one reference; NULL: no memory. */
struct responses_item *responses_item_create(const char *text, size_t n, struct view id);
struct responses_item *responses_item_ref(struct responses_item *i);
void responses_item_unref(struct responses_item *i); /* NULL is fine */
static inline const char *responses_item_id(const struct responses_item *i)
{
    return i->text + i->n + 1;
}
static inline size_t responses_item_bytes(const struct responses_item *i)
{
    return sizeof *i + sizeof i + i->n + i->n_id;
}

/* Zero is an empty one. */
struct responses_items {
    struct responses_item **at; /* [n], a reference each */
    size_t n, cap, n_bytes;     /* n_bytes: of texts, and what each costs beside */
    bool failed;                /* no memory: some are missing */
};
void responses_items_release(struct responses_items *list);
/* Takes the reference; NULL is no memory. */
bool responses_items_add(struct responses_items *list, struct responses_item *i);
/* Adds those of another list from begin to end. */
bool responses_items_share(struct responses_items *to, const struct responses_items *from,
                           size_t begin, size_t end);
void responses_items_cut(struct responses_items *list, size_t at);
/* The place of the first one of that id; list->n: there is none. */
size_t responses_items_find(const struct responses_items *list, const char *id);

/* The item as the store keeps it: messages with their type, an id and a list of parts.  base and n
 * make the id.  NULL: no memory. */
struct responses_item *responses_keep_item(struct json_object *item, const char *base, size_t n);
void responses_random(char hex[33]);
/* Appends {"object":"list",...}, the page of a list of items that the query asks for: limit, order,
 * after (rq NULL: the first hundred).  n: how many of the items count. */
void responses_page(const struct http_request *rq, const struct responses_items *items, size_t n,
                    struct str *out, struct fault *f);

#endif
