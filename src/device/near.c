/* SPDX-License-Identifier: Apache-2.0 */
/*
 * near - copies of what all threads of an operation read, one in the memory of each node.
 *
 * Codes of activations are written by a few threads and read by all.  The first threads of a node
 * that need a block copy it, piece by piece, into memory of their node, and the others read it
 * there.  Nobody waits for long: who finds a copy unfinished reads the original.
 */
#include "base/mem.h"
#include "base/num.h"
#include "device/near.h"
#include "device/ops.h"
#include <string.h>

enum {
    STATES = 512, /* blocks of an operation */
    LINE = 64,
    PIECE = 16 << 10,
    COUNT_BITS = 12,
    MOST_PIECES = (1 << COUNT_BITS) - 1,
    COPIERS = 16, /* of a node: so many threads write the line of a state */
    WAITS = 256   /* some microseconds: as long as a piece takes */
};

static uint64_t pieces_of(const struct device_near *b)
{
    return (b->n_bytes + PIECE - 1) / PIECE;
}

void device_near_begin(struct device *d)
{
    d->near.number++;
    d->near.n_blocks = 0;
    d->near.used = STATES * LINE;
}

struct device_near device_near_add(struct device *d, const uint8_t *from, size_t n_bytes, int home)
{
    struct device_near_area *a = &d->near;
    const size_t n = (n_bytes + LINE - 1) / LINE * LINE;
    if (!a->at || !from || !n_bytes || a->n_blocks == STATES || n > a->n_bytes - a->used ||
        n_bytes / PIECE >= MOST_PIECES)
        return (struct device_near){0};
    const struct device_near b = {from, n_bytes, home, a->n_blocks++, a->used, a->number};
    a->used += n;
    return b;
}

uint8_t *device_near_take(struct device *d, size_t n_bytes)
{
    struct device_near_area *a = &d->near;
    device_near_begin(d);
    if (!a->at || a->used > a->n_bytes || n_bytes > a->n_bytes - a->used)
        return NULL;
    return a->at + a->used;
}

/* Claims a piece that nobody has begun. */
static bool claim(_Atomic uint64_t *state, const struct device_near *b, uint64_t *piece)
{
    const uint64_t n = pieces_of(b), first = b->number << (2 * COUNT_BITS);
    uint64_t word = atomic_load_explicit(state, memory_order_relaxed), next;
    do { /* a word of a block before this one counts as nothing */
        *piece = word < first ? 0 : word >> COUNT_BITS & MOST_PIECES;
        next = (word < first ? first : word) + (1 << COUNT_BITS);
        if (*piece == n)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(state, &word, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static void copy_pieces(_Atomic uint64_t *state, const struct device_near *b, uint8_t *to)
{
    uint64_t i;
    while (claim(state, b, &i)) {
        const size_t at = (size_t)i * PIECE;
        memcpy(to + at, b->from + at, b->n_bytes - at < PIECE ? b->n_bytes - at : PIECE);
        atomic_fetch_add_explicit(state, 1, memory_order_release);
    }
}

const uint8_t *device_near_read(const struct device *d, const struct device_near *b,
                                const uint8_t *at, int worker)
{
    const int node = pool_node_of(d->pool, worker);
    if (node == b->home)
        return at;
    uint8_t *area = d->near.at + (size_t)node * d->near.n_bytes, *copy = area + b->at;
    _Atomic uint64_t *state = (_Atomic uint64_t *)(void *)(area + b->state * LINE);
    const uint64_t n = pieces_of(b),
                   done = b->number << (2 * COUNT_BITS) | n << COUNT_BITS | n;
    if (atomic_load_explicit(state, memory_order_acquire) != done &&
        worker - pool_node_first(d->pool, node) < COPIERS)
        copy_pieces(state, b, copy);
    for (int i = 0; i < WAITS; i++) {
        if (atomic_load_explicit(state, memory_order_acquire) == done)
            return copy + (at - b->from);
        pool_pause();
    }
    return at;
}

/* ---- the memory ---- */

void device_near_want(struct device *d, size_t n_bytes)
{
    const size_t n = n_bytes ? n_bytes + STATES * LINE : 0;
    if (pool_nodes(d->pool) > 1 && n > d->near.wanted)
        d->near.wanted = n;
}

size_t device_near_bytes(const struct device *d)
{
    return d->near.wanted * (size_t)pool_nodes(d->pool);
}

ingle_status device_near_reserve(struct device *d, struct err *err)
{
    const size_t each = (d->near.wanted + MEM_BIG_PAGE - 1) / MEM_BIG_PAGE * MEM_BIG_PAGE;
    const int n_nodes = pool_nodes(d->pool);
    if (each <= d->near.n_bytes)
        return INGLE_OK;
    uint8_t *at = mem_big_alloc(each * (size_t)n_nodes);
    if (!at)
        return err_set(err, INGLE_NOMEM, "no %zu bytes for copies on %d memory nodes",
                       each * (size_t)n_nodes, n_nodes);
    for (int k = 0; k < n_nodes; k++)
        (void)numa_prefer(at + (size_t)k * each, each, pool_node_id(d->pool, k));
    pool_fill(d->pool, at, each * (size_t)n_nodes);
    device_near_release(d);
    d->near.at = at;
    d->near.n_bytes = each;
    return INGLE_OK;
}

void device_near_release(struct device *d)
{
    if (d->near.at)
        mem_big_free(d->near.at, d->near.n_bytes * (size_t)pool_nodes(d->pool));
    d->near.at = NULL;
    d->near.n_bytes = 0;
}
