/*
 * store_index - what the files of a directory are known to be, for this room only.
 *
 * Sorted by length, then key.  No I/O here; whoever shares an index locks it.
 */
#ifndef INGLE_KV_STORE_INDEX_H
#define INGLE_KV_STORE_INDEX_H

#include "kv/store_file.h"

enum kv_entry_state {
    KV_ENTRY_READY,
    KV_ENTRY_PENDING, /* it waits to be written */
    KV_ENTRY_FOREIGN, /* of a version or byte order that nobody can read here */
    /* not a file of a store, or a damaged one that stays: it counts and is not used */
    KV_ENTRY_BAD,
    /* could not be opened or read just now: not used before a scan has opened it */
    KV_ENTRY_AWAY,
};

struct kv_entry {
    struct kv_key context, key, parent, plain;
    int64_t from, length;
    uint64_t bytes;
    int64_t used; /* seconds since 1970 */
    enum kv_entry_state state;
    uint64_t event_name; /* its name for kv_watch.drop(); 0: it was not published */
    bool seen;    /* by the scan that runs */
};

struct kv_index {
    struct kv_entry *entry; /* [n] */
    size_t n, cap;
    struct kv_media *media; /* borrowed: of keys among tokens; may be NULL */
    const struct kv_watch *watch; /* notified of entries that are removed; borrowed, or NULL */
    uint64_t bytes; /* of all entries but pending ones */
    uint64_t changes; /* how often any came or went */
};

enum { KV_NAME_BYTES = 64 };
/* "KEY.LENGTH.kv" */
void kv_index_name(char out[KV_NAME_BYTES], struct kv_key key, int64_t length);
bool kv_index_parse(const char *name, struct kv_key *key, int64_t *length);

void kv_index_release(struct kv_index *x);
struct kv_entry *kv_index_find(const struct kv_index *x, struct kv_key key, int64_t length);
/* An equal one is replaced.  False: out of memory. */
MUST_CHECK bool kv_index_add(struct kv_index *x, const struct kv_entry *e);
void kv_index_remove(struct kv_index *x, struct kv_key key, int64_t length);

/* The deepest entry of a context for these tokens within limit, all of whose ancestors are
 * there; NULL: none.  pending: those that wait to be written count, too. */
const struct kv_entry *kv_index_deepest(const struct kv_index *x, struct kv_key context,
                                        struct kv_scope scope, const int32_t *tokens, int64_t limit,
                                        bool pending, int64_t *foreign);
/* All ancestors are there; pending as before. */
bool kv_index_is_whole(const struct kv_index *x, const struct kv_entry *e, bool pending);
/* The parent, NULL for an entry without one or whose parent is not there. */
const struct kv_entry *kv_index_parent(const struct kv_index *x, const struct kv_entry *e);
/* The least valuable one that nothing else continues; NULL: none. */
const struct kv_entry *kv_index_victim(const struct kv_index *x, int64_t now);

#endif
