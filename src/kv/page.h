/*
 * page - the pool's pages, for this room only.
 *
 * A page has references; those of the prefix tree are counted as `held` too, so that the
 * pool knows at every moment how much the tree alone keeps alive (what eviction can give).
 */
#ifndef INGLE_KV_PAGE_H
#define INGLE_KV_PAGE_H

#include "kv/kv.h"

struct kv_slab;
struct kv_disk;

struct kv_page {
    uint8_t *at; /* page_bytes of its group, 64-byte aligned; NULL: on disk alone */
    /* Its own part, which begins at kv_spec's own_at; NULL: it has none.  The device's. */
    uint8_t *own;
    bool fetched; /* `at` has what is own, too */
    bool there;   /* what is own was filled where it is: until a timeline adopts the page */
    size_t *lent; /* `at` is a lender's memory, who counts such pages here; or NULL */
    uint32_t loss; /* losses of own parts before it was taken */
    struct kv_slab *slab;
    struct kv_page *next; /* in the slab's free list */
    int32_t refs;         /* timelines and the tree */
    int32_t held;         /* of those, the tree's */
    int32_t kept;         /* of those, the store's: until they are written */
    /* Of a pool with a disk (disk.h), of its group: */
    int32_t slot;   /* where on disk it is; -1: nowhere */
    int32_t leaves; /* its place among the pages that may leave memory; -1: it may not */
    int32_t pins;   /* steps that run on it */
    int64_t index;  /* position / 128 */
    uint64_t taken; /* the last kv_heads_take() that had it, ... */
    int32_t block;  /* ... and as which of its blocks */
};

/* Gives up one restore point (the tree's), or one file that waits to be written (the
 * store's); false: there is none. */
typedef bool kv_evict_fn(void *arg);

struct kv_pool {
    const struct kv_spec *spec; /* borrowed */
    const struct report_sink *sink;
    const struct numa_nodes *nodes; /* borrowed, or NULL */
    bool by_split, lock;            /* kv_pool_memory() */
    uint64_t budget_bytes;
    uint64_t used_bytes;   /* pages with references */
    uint64_t peak_bytes;   /* the most that used_bytes ever was */
    uint64_t system_bytes; /* taken from the system */
    uint64_t held_bytes;   /* pages that the tree refers to */
    uint64_t cached_bytes; /* pages that nobody but the tree and the store refers to */
    int64_t pages_used[KV_MAX_GROUPS];
    struct kv_slab *partial[KV_MAX_GROUPS]; /* some pages free */
    struct kv_slab *idle[KV_MAX_GROUPS];    /* all pages free */
    kv_evict_fn *evict;                     /* the tree's, or NULL */
    void *evict_arg;
    kv_evict_fn *let_go; /* the store's, or NULL */
    void *let_go_arg;
    int64_t evicted_points;
    int64_t n_timelines;
    struct kv_disk *disk; /* owned, or NULL: all pages stay in memory */
    uint64_t spared_bytes; /* with a disk: of cached_bytes so many stay while pages can go there */
    struct kv_media *media; /* owned */
    struct kv_lender *lender; /* borrowed: kv_page_take_for() asks it; or NULL */
    struct kv_memory memory; /* of own parts */
    bool owner_left;         /* no page has such a part any more */
    uint32_t losses; /* of own parts */
    uint64_t moves;       /* pages that have come to memory or left it */
};

size_t kv_page_bytes(const struct kv_page *pg);

/* A page of the group with one reference, contents unspecified.  Evicts restore points
 * while the budget or the system has no room.  NULL when that is not enough. */
struct kv_page *kv_page_take(struct kv_pool *p, uint32_t group);
/* The same as page `index` of a timeline: on the node that is to have it, if it can be. */
struct kv_page *kv_page_take_at(struct kv_pool *p, uint32_t group, int64_t index);

/* The same for page `index` of a timeline that is about to be filled from a file: beyond what a
 * timeline has in memory (kv_spec.in_memory) it is on disk, and kv_disk_fill() writes it.  With a
 * lender it is the lender's. */
struct kv_page *kv_page_take_for(struct kv_pool *p, uint32_t group, int64_t index);

void kv_page_ref(struct kv_pool *p, struct kv_page *pg);
void kv_page_unref(struct kv_pool *p, struct kv_page *pg);

/* The tree's references. */
void kv_page_hold(struct kv_pool *p, struct kv_page *pg);
void kv_page_let(struct kv_pool *p, struct kv_page *pg);

/* The store's references. */
void kv_page_keep(struct kv_pool *p, struct kv_page *pg);
void kv_page_unkeep(struct kv_pool *p, struct kv_page *pg);

/* What is own of it: to its part in the host's memory, from there, and to another page. */
/* False: it is lost. */
bool kv_page_own_fetch(const struct kv_pool *p, struct kv_page *pg);
void kv_page_own_put(const struct kv_pool *p, struct kv_page *pg);
void kv_page_own_copy(const struct kv_pool *p, const struct kv_page *pg, struct kv_page *to);

/* What it has in memory: its bytes or 0. */
size_t kv_page_memory(const struct kv_page *pg);
/* The disk has it: its memory goes back to the system. */
void kv_page_leave(struct kv_pool *p, struct kv_page *pg);

/* The other way: room for its bytes (NULL: the system has none), which becomes its memory or is
 * given back. */
uint8_t *kv_page_room(struct kv_pool *p, const struct kv_page *pg);
void kv_page_room_free(const struct kv_page *pg, uint8_t *at);
void kv_page_come(struct kv_pool *p, struct kv_page *pg, uint8_t *at);

bool kv_page_evict(struct kv_pool *p);
/* Makes room in memory: a page goes to disk, or as kv_page_evict(). */
bool kv_page_make_room(struct kv_pool *p);
bool kv_page_let_go(struct kv_pool *p);

#endif
