/* SPDX-License-Identifier: Apache-2.0 */
/* gaps - where the tokens of a text stand of which some are left out. */
#include "kv/kv.h"

#include "base/mem.h"
#include "base/num.h"
#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <xxhash.h>

struct gap {
    int64_t at;    /* the first index after it */
    int64_t shift; /* positions that are left out before that, in all */
};
static_assert(sizeof(struct gap) == 16 && offsetof(struct gap, shift) == 8,
              "a file format: do not pad");

struct kv_gaps {
    atomic_int refs; /* Sync: atomic */
    int64_t n;
    struct gap gap[]; /* [n], ascending */
};

static int64_t count(const int32_t *position, int64_t n)
{
    int64_t gaps = 0;
    for (int64_t i = 0; i < n; i++)
        gaps += position[i] - i != (i ? position[i - 1] - (i - 1) : 0);
    return gaps;
}

ingle_status kv_gaps_create(struct kv_gaps **out, const int32_t *position, int64_t n,
                            struct err *err)
{
    size_t bytes;
    *out = NULL;
    for (int64_t i = 0; i < n; i++)
        if (position[i] < (i ? (int64_t)position[i - 1] + 1 : 0))
            return err_set(err, INGLE_ARG, "position %lld is %d, expected %lld or more",
                           (long long)i, position[i],
                           (long long)(i ? (int64_t)position[i - 1] + 1 : 0));
    const int64_t n_gaps = count(position, n);
    if (!n_gaps)
        return INGLE_OK;
    struct kv_gaps *g =
        num_mul((size_t)n_gaps, sizeof g->gap[0], &bytes) && num_add(bytes, sizeof *g, &bytes)
            ? mem_zalloc(bytes)
            : NULL;
    if (!g)
        return err_set(err, INGLE_NOMEM, "no memory for %lld gaps", (long long)n_gaps);
    atomic_init(&g->refs, 1);
    for (int64_t i = 0; i < n; i++)
        if (position[i] - i != (g->n ? g->gap[g->n - 1].shift : 0))
            g->gap[g->n++] = (struct gap){i, position[i] - i};
    *out = g;
    return INGLE_OK;
}

size_t kv_gaps_bytes(const struct kv_gaps *g)
{
    return g ? (size_t)g->n * sizeof g->gap[0] : 0;
}

void kv_gaps_write(const struct kv_gaps *g, void *to)
{
    if (g)
        memcpy(to, g->gap, kv_gaps_bytes(g));
}

ingle_status kv_gaps_read(struct kv_gaps **out, const void *from, size_t n_bytes, struct err *err)
{
    size_t bytes;
    *out = NULL;
    if (n_bytes % sizeof(struct gap))
        return err_set(err, INGLE_FORMAT, "%zu bytes are no whole number of gaps", n_bytes);
    if (!n_bytes)
        return INGLE_OK;
    struct kv_gaps *g = num_add(n_bytes, sizeof *g, &bytes) ? mem_zalloc(bytes) : NULL;
    if (!g)
        return err_set(err, INGLE_NOMEM, "no memory for gaps of %zu bytes", n_bytes);
    atomic_init(&g->refs, 1);
    g->n = (int64_t)(n_bytes / sizeof(struct gap));
    memcpy(g->gap, from, n_bytes);
    for (int64_t i = 0; i < g->n; i++) {
        const struct gap none = {-1, 0}, *before = i ? &g->gap[i - 1] : &none, *this = &g->gap[i];
        if (this->at > before->at && this->shift > before->shift && this->at <= INT32_MAX &&
            this->shift <= INT32_MAX - this->at)
            continue;
        const ingle_status st =
            err_set(err, INGLE_FORMAT,
                    "gap %lld is at %lld, %lld positions after its index, out of order or above %d",
                    (long long)i, (long long)this->at, (long long)this->shift, INT32_MAX);
        kv_gaps_unref(g);
        return st;
    }
    *out = g;
    return INGLE_OK;
}

struct kv_gaps *kv_gaps_ref(struct kv_gaps *g)
{
    if (g)
        atomic_fetch_add(&g->refs, 1);
    return g;
}

void kv_gaps_unref(struct kv_gaps *g)
{
    if (g && atomic_fetch_sub(&g->refs, 1) == 1)
        mem_free(g);
}

/* Gaps of which the index after them (or its position) is at most `at`. */
static int64_t gaps_until(const struct kv_gaps *g, int64_t at, bool positions)
{
    int64_t low = 0, high = g->n;
    while (low < high) {
        const int64_t mid = low + (high - low) / 2;
        if (g->gap[mid].at + (positions ? g->gap[mid].shift : 0) <= at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int64_t kv_gaps_position(const struct kv_gaps *g, int64_t index)
{
    const int64_t n = g ? gaps_until(g, index, false) : 0;
    return n ? index + g->gap[n - 1].shift : index;
}

int64_t kv_gaps_index(const struct kv_gaps *g, int64_t position)
{
    if (!g)
        return position;
    const int64_t n = gaps_until(g, position, true);
    const int64_t index = n ? position - g->gap[n - 1].shift : position;
    return n < g->n ? num_min(index, g->gap[n].at) : index;
}

int64_t kv_gaps_skipped(const struct kv_gaps *g)
{
    return g ? g->gap[g->n - 1].shift : 0;
}

int64_t kv_gaps_same(const struct kv_gaps *a, const struct kv_gaps *b)
{
    const int64_t n_a = a ? a->n : 0, n_b = b ? b->n : 0;
    for (int64_t i = 0;; i++) {
        if (i == n_a || i == n_b) {
            const struct kv_gaps *more = n_a > i ? a : n_b > i ? b : NULL;
            return more ? more->gap[i].at : INT64_MAX;
        }
        if (a->gap[i].at != b->gap[i].at || a->gap[i].shift != b->gap[i].shift)
            return num_min(a->gap[i].at, b->gap[i].at);
    }
}

struct kv_shorten kv_gaps_shorten(const struct kv_gaps *g)
{
    if (!g)
        return (struct kv_shorten){0, 0};
    const uint64_t name = XXH3_64bits(g->gap, (size_t)g->n * sizeof g->gap[0]);
    return (struct kv_shorten){name ? name : 1, g->gap[0].at};
}

const char *kv_gaps_refuse(const struct kv_spec *s)
{
    for (uint32_t i = 0; i < s->n_streams; i++) {
        const struct kv_stream *t = &s->stream[i];
        if (t->kind == KV_ROWS && t->every > 1)
            return "rows of its cache stand for several tokens next to each other";
        if (t->kind == KV_HEADS && t->k_codec == KERN_KV_FROM_V)
            return "its keys are made of values by their place in a page";
    }
    return NULL;
}
