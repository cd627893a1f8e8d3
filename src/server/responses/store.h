/*
 * store - what is kept of answers and conversations.
 */
#ifndef INGLE_SERVER_RESPONSES_STORE_H
#define INGLE_SERVER_RESPONSES_STORE_H

#include "server/responses/responses.h"

/* ---- store ---- */

/* "resp_", "conv_" or an item's prefix, an answer's id, a number. */
enum { RESPONSES_ID = 96 };

/* Any thread may use a store. */
struct responses_store;
/* When there are more than n_max (0: 1000) answers and conversations, or n_bytes (0: 64 MiB), the
 * oldest of the user go who has the most. */
MUST_CHECK ingle_status responses_store_create(struct responses_store **out,
                                                      size_t n_max, size_t n_bytes,
                                                      struct err *err);
/* The replica that the store is of (--replica), for ids and errors; NULL: it has no name.  Borrowed
 * until the store is freed; before the first request. */
void responses_store_name(struct responses_store *s, const char *replica);
const char *responses_store_replica(const struct responses_store *s);
void responses_store_free(struct responses_store *s);
/* What is kept of an answer, or of a conversation under its own id. */
struct responses_kept {
    const struct responses_items *items; /* the whole conversation up to the answer, and that */
    size_t n_input;           /* of them those before the answer */
    const struct str *object; /* as clients see it */
    struct tape *tape;        /* its stream, or NULL */
    bool open;                /* it is being computed, and stays until it is not */
};
/* user: who may see it.  An answer larger than the store is not kept. */
void responses_store_add(struct responses_store *s, const char *user, const char *id,
                         const struct responses_kept *k);
/* Changes items, object (NULL: as they are) and open of one that is open; false: there is none. */
bool responses_store_set(struct responses_store *s, const char *user, const char *id,
                         const struct responses_kept *k);
/* False: there is nothing of that user. */
bool responses_store_set_object(struct responses_store *s, const char *user, const char *id,
                                const struct str *object);
/* RESPONSES_FULL: it would have more than REQUEST_MAX_MESSAGES items, or half of what the store
 * holds. */
enum responses_change { RESPONSES_CHANGED, RESPONSES_MISSING, RESPONSES_FULL };
enum responses_change responses_store_append(struct responses_store *s, const char *user,
                                             const char *id, const struct responses_items *new);
/* Takes the item out; false: there is none of that id. */
bool responses_store_remove(struct responses_store *s, const char *user, const char *id,
                            const char *item);
struct responses_found {
    struct responses_items *items; /* NULL, or what is found is added there */
    struct responses_item *object;
    size_t n_input;
    bool open;
    struct tape *tape; /* or NULL */
};
/* False when there is nothing of that user; *out is unchanged then, else ended with
 * responses_found_release(), which leaves items alone. */
bool responses_store_get(struct responses_store *s, const char *user, const char *id,
                         struct responses_found *out);
void responses_found_release(struct responses_found *f);
void responses_store_count(struct responses_store *s, size_t *n, size_t *n_bytes);
/* What is being computed is cancelled. */
bool responses_store_delete(struct responses_store *s, const char *user, const char *id);
/* A reference to the newest item of that id, or NULL. */
struct responses_item *responses_store_item(struct responses_store *s, const char *user,
                                            struct view id);

#endif
