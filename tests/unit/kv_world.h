/*
 * kv_world - a KV pool with timelines, and the trivial model that they are held against.
 *
 * What stands at a position is a function of the tokens up to it, as in the engine: the
 * model of a timeline is its token list.  Positions are 8 bytes in every stream.
 */
#ifndef INGLE_TESTS_KV_WORLD_H
#define INGLE_TESTS_KV_WORLD_H

#include "unit/unit.h"

#include "base/mem.h"
#include "base/num.h"
#include "kv/kv.h"
#include <string.h>

enum { WORLD_MAX = 2000, WORLD_ROW = 8, WORLD_LINES = 6 };

struct world_line {
    struct kv_timeline *t;
    int64_t max, length,
        rewind_to; /* rewind_to: the longest length since the last jump, less KV_REWIND */
    int32_t token[WORLD_MAX];
};

struct world {
    uint64_t seed;
    struct kv_spec spec;
    uint32_t rows[KV_MAX_GROUPS]; /* streams of each group */
    struct kv_pool *pool;
    struct world_line line[WORLD_LINES];
};

static inline uint64_t world_random(struct world *w)
{
    w->seed += 0x9E3779B97F4A7C15u;
    uint64_t z = w->seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* In [lo, hi]. */
static inline int64_t world_pick(struct world *w, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(world_random(w) % (uint64_t)(hi - lo + 1));
}

static inline uint64_t world_mix(uint64_t chain, uint64_t token)
{
    const uint64_t x = (chain ^ token) * 0xFF51AFD7ED558CCDu;
    return x ^ (x >> 29) ^ (token << 7);
}

static inline void world_group(struct world *w, int64_t window, uint32_t n_streams)
{
    const uint32_t g = w->spec.n_groups++;
    w->spec.group[g].window = window;
    w->spec.group[g].page_bytes = (size_t)KV_PAGE * WORLD_ROW * n_streams;
    w->rows[g] = n_streams;
}

static inline void world_open(struct world *w, uint64_t budget_bytes)
{
    struct err err;
    assert_int_equal(kv_pool_create(&w->pool, &w->spec, budget_bytes, NULL, &err), INGLE_OK);
}

static inline void world_line_open(struct world *w, int i, int64_t max)
{
    struct err err;
    assert_int_equal(kv_timeline_create(&w->line[i].t, w->pool, max, &err), INGLE_OK);
    w->line[i].max = max;
    w->line[i].length = w->line[i].rewind_to = 0;
}

static inline void world_line_close(struct world_line *l)
{
    kv_timeline_free(l->t);
    memset(l, 0, sizeof *l);
}

static inline uint64_t world_used(const struct world *w)
{
    struct kv_pool_counts n;
    kv_pool_count(w->pool, &n);
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < w->spec.n_groups; g++)
        bytes += (uint64_t)n.pages_used[g] * w->spec.group[g].page_bytes;
    assert_true(bytes == n.used_bytes);
    assert_true(n.used_bytes <= n.budget_bytes);
    assert_true(n.used_bytes <= n.peak_bytes && n.peak_bytes <= n.budget_bytes);
    assert_true(n.cached_bytes <= n.used_bytes && n.used_bytes <= n.system_bytes);
    return bytes;
}

/* Ends everything; nothing may be in use then.  The tree must be gone. */
static inline void world_close(struct world *w)
{
    for (int i = 0; i < WORLD_LINES; i++)
        world_line_close(&w->line[i]);
    assert_true(world_used(w) == 0);
    kv_pool_free(w->pool);
}

static inline uint8_t *world_at(const struct world *w, const struct world_line *l, uint32_t g,
                                uint32_t stream, int64_t pos)
{
    uint8_t *page = kv_timeline_pages(l->t, g)[pos / KV_PAGE];
    assert_non_null(page);
    assert_true(stream < w->rows[g]);
    return page + ((size_t)stream * KV_PAGE + (size_t)(pos % KV_PAGE)) * WORLD_ROW;
}

static inline void world_write(const struct world *w, const struct world_line *l, int64_t pos,
                               uint64_t chain)
{
    for (uint32_t g = 0; g < w->spec.n_groups; g++)
        for (uint32_t s = 0; s < w->rows[g]; s++) {
            const uint64_t v = world_mix(chain, g * 64 + s);
            if (!w->spec.group[g].ends || kv_timeline_pages(l->t, g)[pos / KV_PAGE])
                memcpy(world_at(w, l, g, s, pos), &v, sizeof v);
        }
}

/* Steps of a group that writes their ends alone are committed as a whole or not at all. */
static inline bool world_has_ends(const struct world *w)
{
    bool ends = false;
    for (uint32_t g = 0; g < w->spec.n_groups; g++)
        ends |= w->spec.group[g].ends;
    return ends;
}

static inline uint64_t world_chain(const int32_t *token, int64_t n)
{
    uint64_t chain = 1;
    for (int64_t i = 0; i < n; i++)
        chain = world_mix(chain, (uint64_t)token[i]);
    return chain;
}

/* Extends by n rows, writes them all, commits `keep` of them: l->token holds their tokens. */
static inline ingle_status world_step(struct world *w, struct world_line *l, int64_t n,
                                      int64_t keep)
{
    struct err err;
    const ingle_status s = kv_timeline_extend(l->t, n, &err);
    if (s != INGLE_OK)
        return s;
    uint64_t chain = world_chain(l->token, l->length);
    for (int64_t i = 0; i < n; i++) {
        chain = i < keep ? world_mix(chain, (uint64_t)l->token[l->length + i]) : world_random(w);
        world_write(w, l, l->length + i, chain);
    }
    kv_timeline_commit(l->t, keep);
    l->length += keep;
    l->rewind_to = num_max(l->rewind_to, num_max(0, l->length - KV_REWIND));
    return INGLE_OK;
}

/* Everything that the next row could see is what the model says. */
static inline void world_check(const struct world *w, const struct world_line *l)
{
    assert_int_equal(kv_timeline_length(l->t), l->length);
    uint64_t chain = 1;
    for (int64_t pos = 0; pos < l->length; pos++) {
        chain = world_mix(chain, (uint64_t)l->token[pos]);
        for (uint32_t g = 0; g < w->spec.n_groups; g++) {
            const int64_t window = w->spec.group[g].window;
            if (w->spec.n_own && g >= w->spec.n_own && pos < kv_timeline_from(l->t))
                continue; /* a guest's, which are lacking */
            for (uint32_t s = 0; s < w->rows[g] && (!window || pos >= l->length - window); s++) {
                uint64_t v;
                memcpy(&v, world_at(w, l, g, s, pos), sizeof v);
                assert_true(v == world_mix(chain, g * 64 + s));
            }
        }
    }
}

/* New tokens behind `from`: pieces of a few scripts, so that lines often have a prefix in
 * common. */
static inline void world_tokens(struct world *w, struct world_line *l, int64_t from)
{
    int64_t script = world_pick(w, 0, 2);
    for (int64_t i = from; i < l->max; i++) {
        if (!world_pick(w, 0, 300))
            script = world_pick(w, 0, 4);
        l->token[i] = (int32_t)(world_mix((uint64_t)script, (uint64_t)i) % 3);
    }
}

/* One random operation on the line. */
static inline void world_operate(struct world *w, struct world_line *l)
{
    struct err err;
    const int64_t op = world_pick(w, 0, 99);
    if (op < 60) {
        const int64_t most = world_pick(w, 0, 3) ? 40 : 500,
                      n = num_min(world_pick(w, 0, most), l->max - l->length);
        const int64_t part = world_has_ends(w) ? 0 : world_pick(w, 0, n);
        const ingle_status s = world_step(w, l, n, world_pick(w, 0, 1) ? n : part);
        assert_true(s == INGLE_OK || s == INGLE_LIMIT);
    } else if (op < 85) {
        const int64_t to =
            world_pick(w, world_pick(w, 0, 4) ? num_max(0, l->length - KV_REWIND) : 0, l->length);
        const bool can = kv_timeline_can_rewind(l->t, to);
        assert_true(can || to < l->rewind_to);
        assert_int_equal(kv_timeline_rewind(l->t, to, &err), can ? INGLE_OK : INGLE_NOTFOUND);
        if (can) {
            l->length = to;
            world_tokens(w, l, to);
        }
    } else if (op < 95) {
        struct world_line *to = &w->line[world_pick(w, 0, WORLD_LINES - 1)];
        const ingle_status s = kv_timeline_fork(to->t, l->t, &err);
        assert_int_equal(s, l->length > to->max ? INGLE_LIMIT : INGLE_OK);
        if (s == INGLE_OK && to != l) {
            to->length = l->length;
            to->rewind_to = l->rewind_to;
            memcpy(to->token, l->token, (size_t)l->length * sizeof l->token[0]);
            world_tokens(w, to, to->length);
        }
    } else if (op < 98) {
        kv_timeline_clear(l->t);
        l->length = l->rewind_to = 0;
        world_tokens(w, l, 0);
    } else {
        const int64_t max = world_pick(w, 1, WORLD_MAX);
        world_line_close(l);
        world_line_open(w, (int)(l - w->line), max);
        world_tokens(w, l, 0);
    }
}

#endif
