/* SPDX-License-Identifier: Apache-2.0 */
/* block - the memory of messages: what an end has sent or had is used again. */
#define _POSIX_C_SOURCE 200809L
#include "link/carry.h"

#include "base/bug.h"
#include "base/mem.h"

enum {
    KEPT_BLOCKS = 32,     /* free ones of an end: so many, */
    KEPT_BLOCK = 1 << 20, /* of this size at most, */
    KEPT_BYTES = 4 << 20, /* and of this together */
    BLOCK_STEP = 4096,
};

/* Blocks that an end uses again.  It is there as long as the end, and as any of its blocks. */
struct depot {
    pthread_mutex_t lock; /* taken last; Sync: guards all of this */
    struct block *first;  /* free ones, the smallest first */
    size_t n, n_bytes;    /* of them */
    size_t n_away;        /* those that somebody has */
    bool closed;
};

struct depot *link_depot_create(void)
{
    struct depot *d = mem_zalloc(sizeof *d);
    if (d)
        BUG_IF(pthread_mutex_init(&d->lock, NULL)); /* cannot fail on Linux */
    return d;
}

static void depot_drop_first(struct depot *d)
{
    struct block *b = d->first;
    d->first = b->next;
    d->n--;
    d->n_bytes -= b->cap;
    mem_free(b);
}

/* The lock is held, and released. */
static void depot_leave(struct depot *d)
{
    const bool over = d->closed && !d->n_away;
    pthread_mutex_unlock(&d->lock);
    if (!over)
        return;
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}

void link_depot_close(struct depot *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    while (d->first)
        depot_drop_first(d);
    d->closed = true;
    depot_leave(d);
}

static void depot_put(struct depot *d, struct block *b)
{
    struct block **at = &d->first;
    while (*at && (*at)->cap < b->cap)
        at = &(*at)->next;
    b->next = *at;
    *at = b;
    d->n++;
    d->n_bytes += b->cap;
    while (d->n > KEPT_BLOCKS || d->n_bytes > KEPT_BYTES)
        depot_drop_first(d);
}

/* The smallest that has room; NULL: there is none. */
static struct block *depot_take(struct depot *d, size_t n)
{
    struct block **at = &d->first;
    pthread_mutex_lock(&d->lock);
    while (*at && (*at)->cap < n)
        at = &(*at)->next;
    struct block *b = *at;
    if (b) {
        *at = b->next;
        d->n--;
        d->n_bytes -= b->cap;
    }
    d->n_away++;
    pthread_mutex_unlock(&d->lock);
    return b;
}

void link_block_free(struct block *b)
{
    struct depot *d = b ? b->home : NULL;
    if (!d) {
        mem_free(b);
        return;
    }
    pthread_mutex_lock(&d->lock);
    d->n_away--;
    if (!d->closed && b->cap <= KEPT_BLOCK)
        depot_put(d, b);
    else
        mem_free(b);
    depot_leave(d);
}

struct block *link_block_new(struct depot *d, enum link_event what, uint64_t peer, size_t n)
{
    if (n > LINK_MAX_BYTES)
        return NULL;
    struct block *b = d ? depot_take(d, n) : NULL;
    size_t cap = b ? b->cap : n;
    if (!b) { /* later ones may be a little longer */
        cap = d && n < KEPT_BLOCK ? (n / BLOCK_STEP + 1) * BLOCK_STEP : n;
        b = mem_alloc(sizeof *b + cap);
    }
    if (b) {
        *b = (struct block){.home = d, .cap = cap, .what = what, .peer = peer, .n = n};
    } else if (d) {
        pthread_mutex_lock(&d->lock);
        d->n_away--;
        pthread_mutex_unlock(&d->lock);
    }
    return b;
}

void link_blocks_drop(struct block *b)
{
    while (b) {
        struct block *next = b->next;
        link_block_free(b);
        b = next;
    }
}
