/*
 * attend_body - attention on sixteen lanes, compiled once for each width of register.
 *
 * The pairs of row and head of a task are taken in groups that pass over the keys and
 * values together, page by page, and in a group as tiles of up to MAX_R pairs whose
 * products share every load.  A page is decoded to f32 once for a group of many tiles;
 * few tiles (decoding a token) decode in registers.  All that a tile does is per
 * pair and in the steps of attend.h, so the bits do not depend on groups, tiles or pages.
 */
#include "kern/attend.h"
#include "kern/attend_part.h"
#include "kern/math.h"
#include "kern/x86/lanes_exp.h"
#include <math.h>
#include <string.h>

enum {
    PAGE_BLOCKS = KERN_PAGE / KERN_ATTEND_BLOCK,
};

/* A block of values as mix_*() reads it. */
struct values {
    const uint8_t *block;
    bool panels;        /* decoded, in the order of panel_at() */
    const float *scale; /* Q8_0: f32 [128][n_groups] */
    int64_t stride;     /* else: elements from one slot to the next */
    int64_t whole;      /* v_width in whole vectors */
    int64_t n_groups;
    const uint8_t *next; /* what is read after these values: fetched while they are used */
};

/* What is read after a block of keys, and if that was decoded, how much of it is for this tile. */
struct next {
    const uint8_t *at;
    int64_t lines;
};

/* What a pair of row and head sees of the page that starts at base: slots [from, to). */
struct view {
    int64_t from, to;
};

/* What pairs have collected of parts or splits: f32 [n], [n], [n][whole].  Nothing as long as the
 * sum is 0. */
struct sums {
    float *max, *sum, *acc;
};

/* The ends of a part, for a tile of pairs: it begins from nothing, and goes to other sums: to = acc
 * if it is the first there, else fmaf(acc, y, to x). */
struct fold {
    bool begins, first;
    float *to; /* f32 [pairs][whole], or NULL */
    float x[16], y[16];
};

/* Whether tiles of values do that as they go.  Registers of 256 bits hold too few of their sums: it
 * costs more there than it saves. */
#ifdef __AVX512F__
enum { FUSED = 1 };
#else
enum { FUSED = 0 };
#endif

#include "kern/x86/attend/codec.h"

/* MAX_R, and in which form tiles read queries, keys, weights and values. */
#ifdef ATTEND_PAIRS
#include "kern/x86/attend/attend_pairs.h"
#else
#include "kern/x86/attend/attend_f32.h"
#endif

static const struct tile {
    int64_t n;
    void (*score)(enum kern_kv_codec c, bool decoded, const uint8_t *block, int64_t width,
                  const float *q, int64_t b0, int64_t b1, float scale, float *s, struct next next);
    void (*mix)(enum kern_kv_codec c, const struct values *v, int64_t j0, int64_t j1,
                const float *weight, const float *rescale, float *acc, const struct fold *f);
} tiles[] = {
#ifdef __AVX512F__
    {12, score_12, mix_12},
    {8, score_8, mix_8},
#else
    {6, score_6, mix_6},
#endif
    {4, score_4, mix_4},
    {2, score_2, mix_2},
    {1, score_1, mix_1},
};
static const struct tile *const one_pair = &tiles[sizeof tiles / sizeof *tiles - 1];

/* The largest tile of at most n pairs; of 16, 8. */
static const struct tile *tile_for(int64_t n)
{
    const struct tile *t = tiles + (MAX_R == 12 && n == 16);
    while (t->n > n)
        t++;
    return t;
}

/* Pairs [first, first + n) of a task, pair = row * n_heads + head, and their scratch. */
struct group {
    const struct kern_attend *a;
    int64_t first, n, whole;
    float *q;         /* per tile f32 [k_width][tile] */
    float *acc;       /* f32 [n][whole]: of a part */
    float *lane;      /* f32 [n][16]: sums of its weights */
    float *max;       /* f32 [n] */
    struct sums split, all;
    float *keys, *values; /* a decoded page; or the scales of its values */
    float *score;         /* f32 [MAX_R][128] */
    float *rescale;       /* f32 [MAX_R][PAGE_BLOCKS] */
};

static void group_init(struct group *g, const struct kern_attend *a, int64_t first, int64_t n,
                       float *at)
{
    int64_t whole = attend_whole(a->v_width);
    *g = (struct group){.a = a, .first = first, .n = n, .whole = whole};
    g->keys = at;
    g->values = at += KERN_PAGE * attend_whole(a->k_width);
    g->acc = at += KERN_PAGE * attend_panels(a->v_width);
    g->split.acc = at += n * whole;
    g->all.acc = at += n * whole;
    g->lane = at += n * whole;
    g->score = at += n * 16;
    g->rescale = at += MAX_R * KERN_PAGE;
    g->max = at += MAX_R * PAGE_BLOCKS;
    g->split.max = at += n;
    g->split.sum = at += n;
    g->all.max = at += n;
    g->all.sum = at += n;
    g->q = at + n;
    float *q = g->q;
    for (int64_t i = 0; i < n;) {
        int64_t size = tile_for(n - i)->n;
        lay_out(a, first + i, size, q);
        q += size * a->k_width;
        i += size;
    }
}

/* Pairs for the group at first: as even as whole tiles allow. */
static int64_t group_size(int64_t n_pairs)
{
    int64_t n = num_max(1, num_div_up(n_pairs, ATTEND_GROUP));
    return num_div_up(num_div_up(n_pairs, n), MAX_R) * MAX_R;
}

static struct view view_of(const struct group *g, int64_t i, int64_t base)
{
    const struct kern_attend *a = g->a;
    int64_t pos = a->pos0 + (g->first + i) / a->n_heads;
    int64_t from = num_min(num_max(attend_first(a, pos) - base, 0), KERN_PAGE);
    return (struct view){from, num_max(num_min(attend_end(a, pos) - base, KERN_PAGE), from)};
}

static struct view view_cut(struct view v, int64_t b)
{
    struct view c = {num_max(v.from, b * KERN_ATTEND_BLOCK),
                     num_min(v.to, (b + 1) * KERN_ATTEND_BLOCK)};
    c.to = num_max(c.from, c.to);
    return c;
}

/* Turns the scores of one pair in a page to weights, and notes how its sums rescale.  The maxima of
 * all blocks come first, so that one exp is enough for what they rescale. */
static void weigh(struct group *g, int64_t i, struct view v, float *s, float *rescale)
{
    const int64_t b0 = v.from / KERN_ATTEND_BLOCK, b1 = num_div_up(v.to, KERN_ATTEND_BLOCK);
    float max = g->max[i], top[PAGE_BLOCKS], less[16] = {0}, by[16];
    struct v16 lane = v_load(g->lane + i * 16);
    bool more = false;
    for (int64_t b = b0; b < b1; b++) {
        struct view c = view_cut(v, b);
        float *p = s + b * KERN_ATTEND_BLOCK;
        int64_t from = c.from - b * KERN_ATTEND_BLOCK, to = c.to - b * KERN_ATTEND_BLOCK;
        struct v16 lo = v_load(p), hi = v_load(p + 16), none = v_set(-INFINITY);
        if (to - from < KERN_ATTEND_BLOCK) {
            lo = v_choose(v_range(from, to), lo, none);
            hi = v_choose(v_range(from - 16, to - 16), hi, none);
            v_store(p, lo);
            v_store(p + 16, hi);
        }
        const float t = v_fold_max(v_max(hi, lo));
        top[b] = t > max ? t : max;
        less[b] = max - top[b];
        more |= less[b] != 0.0f; /* exp(0) is 1; infinities make a NaN of the difference */
        max = top[b];
    }
    v_store(by, more ? v_exp(v_load(less)) : v_set(1.0f));
    const int both = EXP_SOME < 2 ? 1 : 2;
    for (int64_t b = b0; b < b1; b++) {
        float *p = s + b * KERN_ATTEND_BLOCK;
        /* exp(-inf - n) is the 0 that the definition requires where nothing is visible, except for
         * n = -inf, when what is visible is NaN already.  Beside a NaN a score may be larger than
         * n: the row is NaN then. */
        const struct v16 n = v_set(top[b]);
        struct v16 e[2] = {v_sub(v_load(p), n), v_sub(v_load(p + 16), n)};
        LANES_UNROLL
        for (int k = 0; k < 2; k += both)
            v_exp_low(e + k, both);
        lane = v_add(v_add(v_mul(lane, v_set(by[b])), e[0]), e[1]);
        v_store(p, e[0]);
        v_store(p + 16, e[1]);
        rescale[b] = by[b];
    }
    g->max[i] = max;
    v_store(g->lane + i * 16, lane);
}

/* What each pair of a tile sees in [from, to) of a block. */
static void mix_pairs(const struct group *g, const struct tile *t, int64_t i, int64_t base,
                      int64_t b, int64_t from, int64_t to, enum kern_kv_codec c,
                      const struct values *v)
{
    for (int64_t r = 0; r < t->n; r++) {
        const struct view x = view_of(g, i + r, base);
        const int64_t j0 = num_max(x.from, from), j1 = num_min(x.to, to);
        float *rescale = g->rescale + r * PAGE_BLOCKS;
        if (j0 >= j1)
            continue;
        one_pair->mix(c, v, j0, j1, g->score + r * KERN_PAGE, rescale, g->acc + (i + r) * g->whole,
                      NULL);
        rescale[b] = 1.0f; /* done, for what follows in this block */
    }
}

/* A block that the pairs of a tile do not see alike: together what all of them see, and pair by
 * pair what is before and after it. */
static void mix_edge(const struct group *g, const struct tile *t, int64_t i, int64_t base,
                     int64_t b, enum kern_kv_codec c, const struct values *v)
{
    const int64_t end = (b + 1) * KERN_ATTEND_BLOCK;
    const int64_t from = cut_after(view_cut(view_of(g, i + t->n - 1, base), b).from);
    const int64_t to = cut_before(view_cut(view_of(g, i, base), b).to);
    if (from >= to) {
        mix_pairs(g, t, i, base, b, b * KERN_ATTEND_BLOCK, end, c, v);
        return;
    }
    mix_pairs(g, t, i, base, b, b * KERN_ATTEND_BLOCK, from, c, v);
    t->mix(c, v, from, to, g->score, g->rescale, g->acc + i * g->whole, NULL);
    for (int64_t r = 0; r < t->n; r++)
        g->rescale[r * PAGE_BLOCKS + b] = 1.0f;
    mix_pairs(g, t, i, base, b, to, end, c, v);
}

/* Values of a page times weights: blocks that all pairs of the tile see alike go together.  f:
 * NULL, if that is not all of it. */
static void mix(const struct group *g, const struct tile *t, int64_t i, int64_t base,
                enum kern_kv_codec c, const struct values *v, const struct fold *f)
{
    struct view first = view_of(g, i, base), last = view_of(g, i + t->n - 1, base);
    float *acc = g->acc + i * g->whole;
    for (int64_t b = first.from / KERN_ATTEND_BLOCK; b * KERN_ATTEND_BLOCK < last.to;) {
        struct view run = view_cut(first, b), other = view_cut(last, b);
        if (run.from == other.from && run.to == other.to) {
            for (b++; b * KERN_ATTEND_BLOCK < last.to; b++) {
                struct view x = view_cut(first, b), y = view_cut(last, b);
                if (x.from != y.from || x.to != y.to)
                    break;
                run.to = x.to;
            }
            t->mix(c, v, run.from, run.to, g->score, g->rescale, acc, f);
            continue;
        }
        mix_edge(g, t, i, base, b, c, v);
        b++;
    }
}

/* The part of the next page's keys and values that the tile at pair i of a group brings nearer,
 * while it computes scores from a decoded page. */
static struct next next_part(const struct group *g, const uint8_t *next, int64_t i)
{
    const struct kern_attend *a = g->a;
    const int64_t half = g->n / 2;
    const bool key = i < half;
    const int64_t n = key ? half : g->n - half, at = key ? i : i - half;
    const int64_t lines = (int64_t)kern_kv_block_bytes(key ? a->k_codec : a->v_codec, key,
                                                       key ? a->k_width : a->v_width) /
                          64;
    const int64_t from = lines * at / n, to = lines * num_min(at + MAX_R, n) / n;
    return (struct next){next + (key ? a->k_at : a->v_at) + from * 64, to - from};
}

/* all, with its maximum and sum, takes in a part or a split; acc NULL: zeros; n is a whole number
 * of vectors. */
static void join(float *all_max, float *all_sum, float *all, float max, float sum, const float *acc,
                 int64_t n)
{
    if (sum == 0.0f) /* nothing of it was seen */
        return;
    const bool first = *all_sum == 0.0f;
    float top = first || max > *all_max ? max : *all_max;
    float x = kern_exp(*all_max - top), y = kern_exp(max - top);
    *all_max = top;
    *all_sum = first ? sum : fmaf(sum, y, *all_sum * x);
    for (int64_t d = 0; d < n; d += 16) {
        const struct v16 one = acc ? v_load(acc + d) : v_zero();
        v_store(all + d, first ? one : v_fma(one, v_set(y), v_mul(v_load(all + d), v_set(x))));
    }
}

/* The tile at pair i begins a part from nothing; its sums of values only where its products with
 * them do not. */
static void begin_part(struct group *g, const struct tile *t, int64_t i, bool fused)
{
    for (int64_t d = i * g->whole; d < (i + t->n) * g->whole && !fused; d += 16)
        v_store(g->acc + d, v_zero());
    for (int64_t r = i; r < i + t->n; r++) {
        g->max[r] = -INFINITY;
        v_store(g->lane + r * 16, v_zero());
    }
}

/* It ends: maxima and sums go to others, f says how values do.  Pairs of a tile that have not all
 * something, or not all something there, are left to join_part(). */
static void fold_part(const struct group *g, const struct tile *t, int64_t i, const struct sums *to,
                      struct fold *f)
{
    float x[16] = {0}, y[16] = {0}, sum[16];
    int64_t n_first = 0, n_none = 0;
    for (int64_t r = 0; r < t->n; r++) {
        sum[r] = v_fold_sum(v_load(g->lane + (i + r) * 16));
        n_first += to->sum[i + r] == 0.0f;
        n_none += sum[r] == 0.0f;
    }
    f->first = n_first == t->n;
    if (n_none || (n_first && !f->first))
        return;
    f->to = to->acc + i * g->whole;
    for (int64_t r = 0; r < t->n; r++) {
        const float max = g->max[i + r], all = to->max[i + r],
                    top = f->first || max > all ? max : all;
        x[r] = all - top;
        y[r] = max - top;
        to->max[i + r] = top;
    }
    v_store(f->x, v_exp(v_load(x)));
    v_store(f->y, v_exp(v_load(y)));
    for (int64_t r = 0; r < t->n; r++)
        to->sum[i + r] = f->first ? sum[r] : fmaf(sum[r], f->y[r], to->sum[i + r] * f->x[r]);
}

/* What fold_part() left. */
static void join_part(const struct group *g, const struct tile *t, int64_t i, const struct sums *to,
                      const struct fold *f)
{
    for (int64_t r = 0; r < t->n; r++) {
        float *at = to->acc + (i + r) * g->whole;
        const float *acc = g->acc + (i + r) * g->whole;
        if (!f->to)
            join(&to->max[i + r], &to->sum[i + r], at, g->max[i + r],
                 v_fold_sum(v_load(g->lane + (i + r) * 16)), acc, g->whole);
        else if (f->first)
            memcpy(at, acc, (size_t)g->whole * sizeof *at);
        else
            for (int64_t d = 0; d < g->whole; d += 16)
                v_store(at + d, v_fma(v_load(acc + d), v_set(f->y[r]),
                                      v_mul(v_load(at + d), v_set(f->x[r]))));
    }
}

/* Every tile of the group against the positions [from, to) of one page.  begins: a part begins with
 * it; into: one ends, and goes there. */
static void do_page(struct group *g, int64_t page, int64_t from, int64_t to, bool begins,
                    const struct sums *into)
{
    const struct kern_attend *a = g->a;
    const uint8_t *kb = a->page[page] + a->k_at, *vb = a->page[page] + a->v_at;
    enum kern_kv_codec kc = a->k_codec, vc = a->v_codec;
    int64_t base = page * KERN_PAGE, last_row = (g->first + g->n - 1) / a->n_heads;
    bool more = base + KERN_PAGE <= a->pos0 + last_row; /* certainly, the next page is looked at */
    bool decoded = decodes(g->n, kc);
    struct values v = {.block = vb,
                       .panels = g->whole != a->v_width || decodes(g->n, vc),
                       .scale = g->values,
                       .stride = a->v_width,
                       .whole = g->whole,
                       .n_groups = a->v_width / ATTEND_QUANT,
                       .next = more ? a->page[page + 1] + a->k_at : kb};
    if (decoded) {
        decode_keys(kc, kb, a->k_width, (from - base) / 16, num_div_up(to - base, 16), g->keys);
        kb = (const uint8_t *)g->keys;
    }
    if (v.panels) {
        decode_values(vc, vb, a->v_width, from - base, to - base, g->values);
        v.block = (const uint8_t *)g->values;
    } else if (vc == KERN_KV_Q8_0) {
        decode_scales(vb, a->v_width, g->values);
    }
    const float *q = g->q;
    for (int64_t i = 0; i < g->n;) {
        const struct tile *t = tile_for(g->n - i);
        struct view first = view_of(g, i, base), last = view_of(g, i + t->n - 1, base);
        const bool seen = first.from < last.to,
                   fused = FUSED && seen && first.from == last.from && first.to == last.to;
        struct fold f = {.begins = begins, .to = NULL};
        if (begins)
            begin_part(g, t, i, fused);
        if (seen) {
            struct next next = {vb, 0};
            if (decoded && more)
                next = next_part(g, a->page[page + 1], i);
            t->score(kc, decoded, kb, a->k_width, q, first.from / 16, num_div_up(last.to, 16),
                     a->scale, g->score, next);
            for (int64_t r = 0; r < t->n; r++) {
                weigh(g, i + r, view_of(g, i + r, base), g->score + r * KERN_PAGE,
                      g->rescale + r * PAGE_BLOCKS);
                round_weights(g->score + r * KERN_PAGE, view_of(g, i + r, base));
            }
        }
        if (into)
            fold_part(g, t, i, into, &f);
        if (seen)
            mix(g, t, i, base, vc, &v, fused ? &f : NULL);
        if (into && !(fused && f.to))
            join_part(g, t, i, into, &f);
        q += t->n * a->k_width;
        i += t->n;
    }
}

static void clear(struct sums *s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        s->max[i] = -INFINITY;
        s->sum[i] = 0.0f;
    }
}

/* The parts of one split of every pair in the group, into what has nothing of it yet. */
static void do_split(struct group *g, int64_t split, struct sums *into)
{
    const struct kern_attend *a = g->a;
    int64_t row0 = g->first / a->n_heads, row1 = (g->first + g->n - 1) / a->n_heads;
    int64_t from = num_max(attend_first(a, a->pos0 + row0), split * KERN_SPLIT);
    int64_t to = num_min(attend_end(a, a->pos0 + row1), (split + 1) * KERN_SPLIT);
    clear(into, g->n);
    for (int64_t pos = from, end; pos < to; pos = end) {
        const int64_t page = pos / KERN_PAGE;
        end = num_min(to, (page + 1) * KERN_PAGE);
        do_page(g, page, pos, end, pos == from || pos % ATTEND_PART == 0,
                end == to || end % ATTEND_PART == 0 ? into : NULL);
    }
}

static void finish(const struct kern_attend *a, int64_t pair, float max, float sum, float *all)
{
    int64_t row = pair / a->n_heads, head = pair % a->n_heads;
    float *out = a->out + row * a->out_stride + head * a->v_width;
    if (a->sink)
        join(&max, &sum, all, a->sink[head], 1.0f, NULL, attend_whole(a->v_width));
    for (int64_t d = 0; d < a->v_width; d += 16)
        v_store_n(out + d, v_div(v_load(all + d), v_set(sum)), a->v_width - d);
}

static void rows(const struct kern_attend *a, void *scratch)
{
    int64_t n_pairs = a->n_rows * a->n_heads, size = group_size(n_pairs);
    for (int64_t first = 0; first < n_pairs; first += size) {
        struct group g;
        group_init(&g, a, first, num_min(size, n_pairs - first), scratch);
        int64_t row0 = first / a->n_heads, row1 = (first + g.n - 1) / a->n_heads;
        int64_t s = attend_first(a, a->pos0 + row0) / KERN_SPLIT;
        do_split(&g, s, &g.all);
        while (++s <= (attend_end(a, a->pos0 + row1) - 1) / KERN_SPLIT) {
            do_split(&g, s, &g.split);
            for (int64_t i = 0; i < g.n; i++)
                join(&g.all.max[i], &g.all.sum[i], g.all.acc + i * g.whole, g.split.max[i],
                     g.split.sum[i], g.split.acc + i * g.whole, g.whole);
        }
        for (int64_t i = 0; i < g.n; i++)
            finish(a, first + i, g.all.max[i], g.all.sum[i], g.all.acc + i * g.whole);
    }
}

static void split(const struct kern_attend *a, int64_t index, float *state, void *scratch)
{
    int64_t n_pairs = a->n_rows * a->n_heads, size = group_size(n_pairs);
    for (int64_t first = 0; first < n_pairs; first += size) {
        struct group g;
        group_init(&g, a, first, num_min(size, n_pairs - first), scratch);
        do_split(&g, index, &g.split);
        for (int64_t i = 0; i < g.n; i++, state += kern_attend_state(a->v_width)) {
            state[0] = g.split.max[i];
            state[1] = g.split.sum[i];
            if (g.split.sum[i] != 0.0f)
                memcpy(state + 2, g.split.acc + i * g.whole, (size_t)a->v_width * sizeof *state);
            else
                memset(state + 2, 0, (size_t)a->v_width * sizeof *state);
        }
    }
}

static void merge(const struct kern_attend *a, int64_t n_splits, const float *state, void *scratch)
{
    int64_t step = kern_attend_state(a->v_width), n_pairs = a->n_rows * a->n_heads;
    int64_t whole = attend_whole(a->v_width);
    float *all = scratch, *acc = all + whole;
    for (int64_t d = 0; d < whole; d += 16)
        v_store(acc + d, v_zero());
    for (int64_t pair = 0; pair < n_pairs; pair++) {
        float max = -INFINITY, sum = 0.0f;
        for (int64_t s = 0; s < n_splits; s++) {
            const float *one = state + (s * n_pairs + pair) * step;
            memcpy(acc, one + 2, (size_t)a->v_width * sizeof *acc);
            join(&max, &sum, all, one[0], one[1], acc, whole);
        }
        finish(a, pair, max, sum, all);
    }
}

#ifdef ATTEND_PAIRS
const struct kern_attend_table kern_attend_pairs_avx512bf16 = {
#else
const struct kern_attend_table LANES_SET(kern_attend) = {
#endif
    .kv_write = kern_kv_write_avx2, .rows = rows, .split = split, .merge = merge};
