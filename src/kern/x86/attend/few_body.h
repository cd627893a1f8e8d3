/*
 * few_body - attention to few positions, compiled once for each way to multiply bytes (few_dots.h).
 *
 * The pairs of row and head of a task stand head by head, so that the rows of a tile of TILE_R pairs want much the same
 * positions.  Split by split the task's keys are rounded once and its values' means made; then groups of pairs, whose sums stay
 * in a cache, pass over the pages of the split, tile by tile: scores, weights, and the values of positions that any pair of the
 * tile keeps, with weights of 0 for those that do not.  Where a value of the page is not finite, or pairs of the tile do not see
 * a block alike, pairs go alone.  All that a tile does is per pair and in the steps of few.h.
 */
#include "kern/attend_coded.h"
#include "kern/attend_part.h"
#include "kern/few.h"
#include "kern/math.h"
#include "kern/row.h"
#include "kern/x86/lanes_exp.h"
#include <math.h>
#include <string.h>

#include "kern/x86/attend/coded_sums.h"
#include "kern/x86/attend/coded_read.h"
#include "kern/x86/attend/few_dots.h"

enum { PAGE_BLOCKS = KERN_PAGE / KERN_ATTEND_BLOCK, SPLIT_PAGES = KERN_SPLIT / KERN_PAGE, GROUP = ATTEND_GROUP };

#include "kern/x86/attend/few_keys.h"
#include "kern/x86/attend/few_values.h"

/* A task and its scratch.  Pair i is row i mod n_rows of head i / n_rows; n is rounded up to whole tiles. */
struct work {
    const struct kern_few_task *t;
    const struct kern_attend *a;
    int64_t n_pairs, n, vw;         /* vw: v_width in whole panels */
    few_code *x;                    /* [n/TILE_R][k_width/UNIT][TILE_R][UNIT] */
    float *by;                      /* f32 [n]: scales of queries; and so on */
    int32_t *start;                 /* -128 times the sum of a query */
    float *first, *theta;           /* M */
    float *max, *missed, *kept;     /* of a split */
    float *all_max, *all_sum, *all_missed, *all_kept;
    float *lane;                    /* f32 [n][16]: sums of weights */
    float *lost;                    /* f32 [n][SPLIT_PAGES] */
    float *all;                     /* f32 [n][vw] */
    float *acc;                     /* f32 [GROUP][vw], at most */
    uint8_t *code;                  /* [SPLIT_PAGES][k_width * 128] */
    uint16_t *scale;                /* f16 [SPLIT_PAGES][128] */
    int16_t *words;                 /* [k_width * 128] */
    float *room;                    /* of make_keys() */
    float *value;                   /* f32 panels of 128 slots */
    float *mean;                    /* f32 panels of SPLIT_PAGES slots */
    bool clean[SPLIT_PAGES];        /* all values of a page are finite */
    /* Of a page. */
    const uint8_t *key;             /* as dots() wants them */
    const uint16_t *key_scale;
    const uint8_t *block;           /* of values */
    bool have[KERN_PAGE];           /* value has it */
    /* Of a tile. */
    float score[TILE_R * KERN_PAGE], rescale[TILE_R * PAGE_BLOCKS];
    uint32_t keep[TILE_R][PAGE_BLOCKS];
};

static int64_t pos_of(const struct work *w, int64_t i) { return w->a->pos0 + i % w->a->n_rows; }

static void query_init(struct work *w, int64_t i)
{
    const struct kern_attend *a = w->a;
    float q[KERN_KV_WIDE];
    int8_t x[KERN_KV_WIDE];
    int32_t sum = 0;
    few_code *to = w->x + i / TILE_R * TILE_R * a->k_width + i % TILE_R * UNIT;
    memcpy(q, a->q + i % a->n_rows * a->q_stride + i / a->n_rows * a->k_width, (size_t)a->k_width * sizeof *q);
    kern_row_hadamard(q, a->k_width);
    w->by[i] = kern_attend_coded_query(q, a->k_width, x) * a->scale;
    for (int64_t k = 0; k < a->k_width; k++) {
        to[k / UNIT * TILE_R * UNIT + k % UNIT] = x[k];
        sum += x[k];
    }
    w->start[i] = -128 * sum;
}

static void *take(float **at, int64_t n)
{
    float *p = *at;
    *at += (n + 15) / 16 * 16;
    return p;
}

static void work_init(struct work *w, const struct kern_few_task *t, void *scratch)
{
    const struct kern_attend *a = &t->attend;
    float *at = scratch;
    w->t = t;
    w->a = a;
    w->n_pairs = a->n_rows * a->n_heads;
    w->n = num_div_up(w->n_pairs, TILE_R) * TILE_R;
    w->vw = attend_panels(a->v_width);
    w->x = take(&at, w->n * a->k_width * (int64_t)sizeof *w->x / (int64_t)sizeof *at);
    float **const each[] = {&w->by, &w->first, &w->theta, &w->max, &w->missed, &w->kept, &w->all_max, &w->all_sum, &w->all_missed, &w->all_kept};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        *each[i] = take(&at, w->n);
    w->start = take(&at, w->n);
    w->lane = take(&at, w->n * 16);
    w->lost = take(&at, w->n * SPLIT_PAGES);
    w->all = take(&at, w->n * w->vw);
    w->acc = take(&at, num_min(w->n, GROUP) * w->vw);
    w->code = take(&at, SPLIT_PAGES * KERN_PAGE * a->k_width / 4);
    w->scale = take(&at, SPLIT_PAGES * KERN_PAGE / 2);
    w->words = take(&at, KERN_PAGE * a->k_width / 2);
    w->room = take(&at, 17 * a->k_width);
    w->value = take(&at, KERN_PAGE * w->vw);
    w->mean = take(&at, SPLIT_PAGES * w->vw);
    memset(w->x, 0, (size_t)(w->n * a->k_width) * sizeof *w->x);
    for (int64_t i = w->n_pairs; i < w->n; i++) {
        w->by[i] = 0.0f;
        w->start[i] = 0;
    }
    for (int64_t i = 0; i < w->n_pairs; i++)
        query_init(w, i);
    for (int64_t i = 0; i < w->n * SPLIT_PAGES; i += 16)
        v_store(w->lost + i, v_zero());
    for (int64_t i = 0; i < KERN_PAGE * w->vw; i += 16) /* what is behind narrow values stays so */
        v_store(w->value + i, v_zero());
    for (int64_t i = 0; i < SPLIT_PAGES * w->vw; i += 16)
        v_store(w->mean + i, v_zero());
}

/* Positions of a page that the task's last row sees, from slot 0 on. */
static int64_t slots_of(const struct work *w, int64_t page) { return num_min(KERN_PAGE, w->a->pos0 + w->a->n_rows - page * KERN_PAGE); }

/* Codes of a page's keys, if they are not stored so, as page `at` of a split. */
static void prepare_keys(struct work *w, int64_t page, int64_t at)
{
    const int64_t width = w->a->k_width;
    if (w->a->k_codec != KERN_KV_Q8R)
        make_keys(w->a, page, slots_of(w, page), w->code + at * KERN_PAGE * width, w->scale + at * KERN_PAGE, w->room);
}

static void use_keys(struct work *w, int64_t page, int64_t at)
{
    const int64_t width = w->a->k_width;
    const bool stored = w->a->k_codec == KERN_KV_Q8R;
    const uint8_t *block = w->a->page[page] + w->a->k_at;
    w->key = stored ? block : w->code + at * KERN_PAGE * width;
    w->key_scale = stored ? (const uint16_t *)(const void *)behind(KERN_KV_Q8R, block, width) : w->scale + at * KERN_PAGE;
#ifdef FEW_WORDS
    to_words(w->key, width, w->words);
    w->key = (const uint8_t *)w->words;
#endif
}

/* Scores of the tile that begins at pair i with slots [0, to). */
static void score_tile(struct work *w, int64_t i, int64_t to)
{
    const int64_t width = w->a->k_width, bytes = KERN_ATTEND_BLOCK * width * (int64_t)sizeof(few_code);
    for (int64_t b = 0; b * KERN_ATTEND_BLOCK < to; b++)
        dots(w->x + i * width, w->key + b * bytes, width, w->key_scale + b * KERN_ATTEND_BLOCK, w->start + i, w->by + i,
             w->score + b * KERN_ATTEND_BLOCK);
}

/* The last position that a pair of the tile at i sees, and the first of what not all do. */
static int64_t tile_last(const struct work *w, int64_t i)
{
    int64_t last = 0;
    for (int64_t r = i; r < num_min(i + TILE_R, w->n_pairs); r++)
        last = num_max(last, pos_of(w, r));
    return last;
}
static int64_t tile_end(const struct work *w, int64_t i)
{
    int64_t end = INT64_MAX;
    for (int64_t r = i; r < num_min(i + TILE_R, w->n_pairs); r++)
        end = num_min(end, pos_of(w, r) + 1);
    return end;
}

/* A block of scores, of which n are seen, as two vectors. */
LANES_INLINE void load_block(const float *s, int64_t n, struct v16 *lo, struct v16 *hi)
{
    *lo = v_load(s);
    *hi = v_load(s + 16);
    if (n < KERN_ATTEND_BLOCK) {
        *lo = v_choose(v_first(n), *lo, v_set(-INFINITY));
        *hi = v_choose(v_first(n - 16), *hi, v_set(-INFINITY));
    }
}

/* The maximum with a block, and what sums are to be multiplied by. */
LANES_INLINE float raise(float max, struct v16 lo, struct v16 hi, float *c)
{
    *c = 1.0f;
    const struct v16 m = v_set(max);
    const int more = v_mask(v_greater(lo, m)) | v_mask(v_greater(hi, m));
    if (LIKELY(!more && fabsf(max) < INFINITY))
        return max;
    const float t = v_fold_max(v_max(hi, lo)), top = t > max ? t : max;
    if (max - top != 0.0f) /* infinities make a NaN of the difference */
        *c = kern_exp(max - top);
    return top;
}

/* ---- the first look ---- */

static void look_pair(struct work *w, int64_t i, int64_t base, const float *s)
{
    const int64_t n = num_min(KERN_PAGE, pos_of(w, i) + 1 - base);
    struct v16 lane = v_load(w->lane + i * 16);
    for (int64_t at = 0; at < n; at += KERN_ATTEND_BLOCK) {
        struct v16 lo, hi;
        float c;
        load_block(s + at, n - at, &lo, &hi);
        w->first[i] = raise(w->first[i], lo, hi, &c);
        const struct v16 m = v_set(w->first[i]);
        lo = v_exp(v_sub(lo, m));
        hi = v_exp(v_sub(hi, m));
        lane = v_add(v_add(v_mul(lane, v_set(c)), lo), hi);
    }
    v_store(w->lane + i * 16, lane);
}

static void look_page(struct work *w, int64_t page)
{
    const int64_t base = page * KERN_PAGE;
    prepare_keys(w, page, 0);
    use_keys(w, page, 0);
    for (int64_t i = 0; i < w->n; i += TILE_R) {
        const int64_t n = num_min(TILE_R, w->n_pairs - i);
        bool some = false;
        for (int64_t r = i; r < i + n; r++)
            some |= kern_few_always(pos_of(w, r), page) && pos_of(w, r) >= base;
        if (!some)
            continue;
        score_tile(w, i, num_min(KERN_PAGE, tile_last(w, i) + 1 - base));
        for (int64_t r = 0; r < n; r++)
            if (kern_few_always(pos_of(w, i + r), page))
                look_pair(w, i + r, base, w->score + r * KERN_PAGE);
    }
}

/* M and theta of all pairs. */
static void look_all(struct work *w)
{
    const int64_t last = (w->a->pos0 + w->a->n_rows - 1) / KERN_PAGE;
    for (int64_t i = 0; i < w->n; i++) {
        w->first[i] = -INFINITY;
        v_store(w->lane + i * 16, v_zero());
    }
    look_page(w, 0);
    for (int64_t page = num_max(1, w->a->pos0 / KERN_PAGE - KERN_FEW_PAGES + 1); page <= last; page++)
        look_page(w, page);
    for (int64_t i = 0; i < w->n_pairs; i++)
        w->theta[i] = kern_few_threshold(w->t->eps, w->first[i], v_fold_sum(v_load(w->lane + i * 16)), pos_of(w, i) + 1);
}

/* ---- values ---- */

/* Weights [TILE_R][stride] of slots, of panels of so many slots. */
struct mix {
    const float *weight, *value;
    int64_t stride, slots;
    uint8_t slot[KERN_PAGE];
    struct { int n; const float *rescale; } part[PAGE_BLOCKS]; /* slots up to n; before them sums are multiplied by rescale[r * PAGE_BLOCKS] */
    int n_parts, n;
};

#ifdef __AVX512F__
enum { PANEL_VECTORS = 2 };
#else
enum { PANEL_VECTORS = 1 };
#endif

/* Sums of a tile, f32 [TILE_R][vw], take in what m lists; m is empty then. */
static void mix_tile(struct mix *m, int64_t vw, float *acc)
{
    for (int64_t d = 0; d < vw && m->n_parts; d += 16 * PANEL_VECTORS) {
        struct v16 sum[TILE_R][PANEL_VECTORS];
        const float *value = m->value + panel_at(m->slots, 0, d);
        LANES_UNROLL
        for (int r = 0; r < TILE_R; r++) {
            LANES_UNROLL
            for (int p = 0; p < PANEL_VECTORS; p++)
                sum[r][p] = v_load(acc + r * vw + d + p * 16);
        }
        for (int part = 0, j = 0; part < m->n_parts; part++) {
            const float *rescale = m->part[part].rescale;
            if (rescale) {
                LANES_UNROLL
                for (int r = 0; r < TILE_R; r++) {
                    const struct v16 by = v_set(rescale[r * PAGE_BLOCKS]);
                    LANES_UNROLL
                    for (int p = 0; p < PANEL_VECTORS; p++)
                        sum[r][p] = v_mul(sum[r][p], by);
                }
            }
            for (; j < m->part[part].n; j++) {
                const int64_t slot = m->slot[j];
                struct v16 x[PANEL_VECTORS];
                LANES_UNROLL
                for (int p = 0; p < PANEL_VECTORS; p++)
                    x[p] = v_load(value + slot * ATTEND_PANEL + p * 16);
                LANES_UNROLL
                for (int r = 0; r < TILE_R; r++) {
                    const struct v16 by = v_set(m->weight[r * m->stride + slot]);
                    LANES_UNROLL
                    for (int p = 0; p < PANEL_VECTORS; p++)
                        sum[r][p] = v_fma(by, x[p], sum[r][p]);
                }
            }
        }
        LANES_UNROLL
        for (int r = 0; r < TILE_R; r++) {
            LANES_UNROLL
            for (int p = 0; p < PANEL_VECTORS; p++)
                v_store(acc + r * vw + d + p * 16, sum[r][p]);
        }
    }
    m->n_parts = m->n = 0;
}

static void want_value(struct work *w, int64_t slot)
{
    if (!w->have[slot])
        read_value(w->a->v_codec, w->block, w->a->v_width, slot, w->value);
    w->have[slot] = true;
}

/* acc [vw] takes in by times slot j of panels. */
static void add_alone(float by, const float *value, int64_t slots, int64_t j, int64_t vw, float *acc)
{
    for (int64_t d = 0; d < vw; d += 16)
        v_store(acc + d, v_fma(v_set(by), v_load(value + panel_at(slots, j, d)), v_load(acc + d)));
}

/* A block of which the tile's pairs go alone. */
static void mix_alone(struct work *w, int64_t n, int64_t b, float *acc)
{
    for (int64_t r = 0; r < n; r++, acc += w->vw) {
        const struct v16 by = v_set(w->rescale[r * PAGE_BLOCKS + b]);
        for (int64_t d = 0; d < w->vw && v_lane0(by) != 1.0f; d += 16)
            v_store(acc + d, v_mul(v_load(acc + d), by));
        for (uint32_t left = w->keep[r][b]; left; left &= left - 1) {
            const int64_t slot = b * KERN_ATTEND_BLOCK + __builtin_ctz(left);
            want_value(w, slot);
            add_alone(w->score[r * KERN_PAGE + slot], w->value, KERN_PAGE, slot, w->vw, acc);
        }
    }
}

/* Kept values of a page to the sums of the tile at pair i; n pairs of it are some. */
static void mix_page(struct work *w, int64_t i, int64_t n, int64_t page, float *acc)
{
    struct mix m = {.weight = w->score, .value = w->value, .stride = KERN_PAGE, .slots = KERN_PAGE};
    const int64_t end = tile_end(w, i) - page * KERN_PAGE;
    for (int64_t b = 0; b < PAGE_BLOCKS; b++) {
        uint32_t some = 0;
        bool rescale = false;
        for (int64_t r = 0; r < n; r++) {
            some |= w->keep[r][b];
            rescale |= w->rescale[r * PAGE_BLOCKS + b] != 1.0f;
        }
        if (!some && !rescale)
            continue;
        if (!w->clean[page % SPLIT_PAGES] || (b + 1) * KERN_ATTEND_BLOCK > end) {
            mix_tile(&m, w->vw, acc);
            mix_alone(w, n, b, acc);
            continue;
        }
        for (; some; some &= some - 1) {
            const int slot = (int)b * KERN_ATTEND_BLOCK + __builtin_ctz(some);
            want_value(w, slot);
            m.slot[m.n++] = (uint8_t)slot;
        }
        m.part[m.n_parts].n = m.n;
        m.part[m.n_parts++].rescale = rescale ? w->rescale + b : NULL;
    }
    mix_tile(&m, w->vw, acc);
}

/* What pages of a split lost to the sums of the tile at pair i. */
static void mix_means(struct work *w, int64_t i, int64_t n, int64_t n_pages, float *acc)
{
    struct mix m = {.weight = w->lost + i * SPLIT_PAGES, .value = w->mean, .stride = SPLIT_PAGES, .slots = SPLIT_PAGES};
    for (int64_t at = 0; at < n_pages; at++) {
        bool some = false;
        for (int64_t r = 0; r < n; r++)
            some |= m.weight[r * SPLIT_PAGES + at] != 0.0f;
        if (!some)
            continue;
        if (w->clean[at]) {
            m.slot[m.n++] = (uint8_t)at;
            m.n_parts = 1;
            m.part[0].n = m.n;
            continue;
        }
        mix_tile(&m, w->vw, acc);
        for (int64_t r = 0; r < n; r++)
            if (m.weight[r * SPLIT_PAGES + at] != 0.0f)
                add_alone(m.weight[r * SPLIT_PAGES + at], w->mean, SPLIT_PAGES, at, w->vw, acc + r * w->vw);
    }
    mix_tile(&m, w->vw, acc);
    for (int64_t r = 0; r < n; r++) {
        float x = 0.0f;
        for (int64_t at = 0; at < n_pages; at++)
            x += w->lost[(i + r) * SPLIT_PAGES + at];
        w->missed[i + r] = x;
    }
}

/* ---- a page ---- */

/* Scores of pair i, row r of its tile, in a page become weights of what it keeps. */
static void weigh(struct work *w, int64_t i, int64_t r, int64_t page)
{
    const int64_t pos = pos_of(w, i), seen = pos + 1 - page * KERN_PAGE, at = page % SPLIT_PAGES;
    const bool always = kern_few_always(pos, page);
    float *s = w->score + r * KERN_PAGE, *lost = w->lost + i * SPLIT_PAGES;
    struct v16 lane = v_load(w->lane + i * 16), g = v_zero();
    const struct v16 theta = v_set(w->theta[i]);
    int64_t n_kept = 0;
    for (int64_t b = 0; b < PAGE_BLOCKS; b++, s += KERN_ATTEND_BLOCK) {
        const int64_t n = seen - b * KERN_ATTEND_BLOCK;
        float *c = w->rescale + r * PAGE_BLOCKS + b;
        struct v16 lo, hi;
        *c = 1.0f;
        w->keep[r][b] = 0;
        if (n <= 0) {
            v_store(s, v_zero());
            v_store(s + 16, v_zero());
            continue;
        }
        load_block(s, n, &lo, &hi);
        w->max[i] = raise(w->max[i], lo, hi, c);
        if (*c != 1.0f) {
            lane = v_mul(lane, v_set(*c));
            g = v_mul(g, v_set(*c));
            for (int64_t k = 0; k < at; k++)
                lost[k] *= *c;
        }
        const struct v16 m = v_set(w->max[i]), p = v_exp(v_sub(lo, m)), q = v_exp(v_sub(hi, m));
        lane = v_add(v_add(lane, p), q);
        if (always) {
            w->keep[r][b] = n < KERN_ATTEND_BLOCK ? (1u << n) - 1 : UINT32_MAX;
            v_store(s, p);
            v_store(s + 16, q);
        } else {
            const struct m16 low = v_greater(lo, theta), high = v_greater(hi, theta);
            w->keep[r][b] = (uint32_t)v_mask(low) | (uint32_t)v_mask(high) << 16;
            g = v_add(v_add(g, v_choose(low, v_zero(), p)), v_choose(high, v_zero(), q));
            v_store(s, v_choose(low, p, v_zero()));
            v_store(s + 16, v_choose(high, q, v_zero()));
        }
        n_kept += __builtin_popcount(w->keep[r][b]);
    }
    lost[at] = v_fold_sum(g);
    w->kept[i] += (float)n_kept;
    v_store(w->lane + i * 16, lane);
}

/* Pairs [first, first + n) of a group against a page. */
static void do_page(struct work *w, int64_t first, int64_t n, int64_t page)
{
    const int64_t base = page * KERN_PAGE;
    use_keys(w, page, page % SPLIT_PAGES);
    w->block = w->a->page[page] + w->a->v_at;
    memset(w->have, 0, sizeof w->have);
    for (int64_t i = first; i < first + n; i += TILE_R) {
        const int64_t some = num_min(TILE_R, w->n_pairs - i), last = tile_last(w, i);
        if (last < base)
            continue;
        score_tile(w, i, num_min(KERN_PAGE, last + 1 - base));
        for (int64_t r = 0; r < some; r++)
            weigh(w, i + r, r, page);
        for (int64_t r = some * KERN_PAGE; r < TILE_R * KERN_PAGE; r += 16)
            v_store(w->score + r, v_zero());
        for (int64_t r = some * PAGE_BLOCKS; r < TILE_R * PAGE_BLOCKS; r++)
            w->rescale[r] = 1.0f;
        mix_page(w, i, some, page, w->acc + (i - first) * w->vw);
    }
}

/* ---- splits ---- */

/* Keys and means of the pages of a split; returned is how many it has. */
static int64_t prepare(struct work *w, int64_t split)
{
    const struct kern_attend *a = w->a;
    const int64_t from = split * SPLIT_PAGES, to = num_min(from + SPLIT_PAGES, num_div_up(a->pos0 + a->n_rows, KERN_PAGE));
    for (int64_t page = from; page < to; page++) {
        prepare_keys(w, page, page - from);
        w->clean[page - from] = mean_of(a->v_codec, a->page[page] + a->v_at, a->v_width, slots_of(w, page), page - from, w->mean);
    }
    return num_max(0, to - from);
}

/* One split of the pairs of a group, from nothing. */
static void do_split(struct work *w, int64_t first, int64_t n, int64_t split, int64_t n_pages)
{
    for (int64_t i = first; i < first + n; i++) {
        w->max[i] = i < w->n_pairs ? w->first[i] : 0.0f;
        w->kept[i] = 0.0f;
        v_store(w->lane + i * 16, v_zero());
        v_store(w->lost + i * SPLIT_PAGES, v_zero());
    }
    for (int64_t d = 0; d < n * w->vw; d += 16)
        v_store(w->acc + d, v_zero());
    for (int64_t page = 0; page < n_pages; page++)
        do_page(w, first, n, split * SPLIT_PAGES + page);
    for (int64_t i = first; i < first + n; i += TILE_R)
        mix_means(w, i, num_min(TILE_R, w->n_pairs - i), n_pages, w->acc + (i - first) * w->vw);
}

/* all takes in a split: maximum, sum, missed share, positions kept. */
static void join(struct work *w, int64_t i, const float one[KERN_FEW_STATE], const float *acc)
{
    w->all_kept[i] += one[3];
    if (one[1] == 0.0f)
        return;
    float *all = w->all + i * w->vw;
    const float top = one[0] > w->all_max[i] ? one[0] : w->all_max[i], x = kern_exp(w->all_max[i] - top), y = kern_exp(one[0] - top);
    w->all_max[i] = top;
    w->all_sum[i] = fmaf(one[1], y, w->all_sum[i] * x);
    w->all_missed[i] = fmaf(one[2], y, w->all_missed[i] * x);
    for (int64_t d = 0; d < w->vw; d += 16)
        v_store(all + d, v_fma(v_load(acc + d), v_set(y), v_mul(v_load(all + d), v_set(x))));
}

static void clear(struct work *w)
{
    for (int64_t i = 0; i < w->n; i++) {
        w->all_max[i] = -INFINITY;
        w->all_sum[i] = w->all_missed[i] = w->all_kept[i] = 0.0f;
    }
    for (int64_t i = 0; i < w->n * w->vw; i += 16)
        v_store(w->all + i, v_zero());
}

static void finish(const struct work *w, int64_t i)
{
    const struct kern_attend *a = w->a;
    const int64_t row = i % a->n_rows, head = i / a->n_rows, pair = row * w->t->pair_stride + head;
    float *out = a->out + row * a->out_stride + head * a->v_width;
    const float *all = w->all + i * w->vw;
    for (int64_t d = 0; d < a->v_width; d += 16)
        v_store_n(out + d, v_add(v_div(v_load(all + d), v_set(w->all_sum[i])), v_zero()), a->v_width - d);
    kern_kv_turn_back(a->v_codec, out, a->v_width);
    w->t->missed[pair] = w->all_missed[i] / w->all_sum[i];
    w->t->kept[pair] = (int32_t)w->all_kept[i];
}

static void state_of(const struct work *w, int64_t i, float state[KERN_FEW_STATE])
{
    state[0] = w->max[i];
    state[1] = v_fold_sum(v_load(w->lane + i * 16));
    state[2] = w->missed[i];
    state[3] = w->kept[i];
}

static void rows(const struct kern_few_task *t, void *scratch)
{
    struct work w;
    work_init(&w, t, scratch);
    clear(&w);
    look_all(&w);
    for (int64_t s = 0; s <= (w.a->pos0 + w.a->n_rows - 1) / KERN_SPLIT; s++) {
        const int64_t n_pages = prepare(&w, s);
        for (int64_t first = 0, n; first < w.n; first += n) {
            n = num_min(GROUP, w.n - first);
            do_split(&w, first, n, s, n_pages);
            for (int64_t i = first; i < num_min(first + n, w.n_pairs); i++) {
                float state[KERN_FEW_STATE];
                state_of(&w, i, state);
                join(&w, i, state, w.acc + (i - first) * w.vw);
            }
        }
    }
    for (int64_t i = 0; i < w.n_pairs; i++)
        finish(&w, i);
}

/* Where pair i of a task stands among [n_rows][n_heads]. */
static int64_t place_of(const struct kern_attend *a, int64_t i) { return i % a->n_rows * a->n_heads + i / a->n_rows; }

static void look(const struct kern_few_task *t, float *first, void *scratch)
{
    struct work w;
    work_init(&w, t, scratch);
    look_all(&w);
    for (int64_t i = 0; i < w.n_pairs; i++) {
        float *to = first + 2 * place_of(w.a, i);
        to[0] = w.first[i];
        to[1] = w.theta[i];
    }
}

static void split(const struct kern_few_task *t, int64_t index, const float *first, float *state, void *scratch)
{
    struct work w;
    work_init(&w, t, scratch);
    for (int64_t i = 0; i < w.n_pairs; i++) {
        const float *from = first + 2 * place_of(w.a, i);
        w.first[i] = from[0];
        w.theta[i] = from[1];
    }
    const int64_t n_pages = prepare(&w, index);
    for (int64_t at = 0, n; at < w.n; at += n) {
        n = num_min(GROUP, w.n - at);
        do_split(&w, at, n, index, n_pages);
        for (int64_t i = at; i < num_min(at + n, w.n_pairs); i++) {
            float *to = state + place_of(w.a, i) * kern_few_state(w.a->v_width);
            state_of(&w, i, to);
            memcpy(to + KERN_FEW_STATE, w.acc + (i - at) * w.vw, (size_t)w.a->v_width * sizeof *to);
        }
    }
}

static void merge(const struct kern_few_task *t, int64_t n_splits, const float *state, void *scratch)
{
    const struct kern_attend *a = &t->attend;
    const int64_t step = kern_few_state(a->v_width), n_pairs = a->n_rows * a->n_heads;
    struct work w = {.t = t, .a = a, .n_pairs = n_pairs, .n = n_pairs, .vw = attend_panels(a->v_width)};
    float *at = scratch;
    float **const each[] = {&w.all_max, &w.all_sum, &w.all_missed, &w.all_kept};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        *each[i] = take(&at, n_pairs);
    w.all = take(&at, n_pairs * w.vw);
    w.acc = take(&at, w.vw);
    clear(&w);
    for (int64_t d = 0; d < w.vw; d += 16)
        v_store(w.acc + d, v_zero());
    for (int64_t i = 0; i < n_pairs; i++) {
        for (int64_t s = 0; s < n_splits; s++) {
            const float *one = state + (s * n_pairs + place_of(a, i)) * step;
            memcpy(w.acc, one + KERN_FEW_STATE, (size_t)a->v_width * sizeof *w.acc);
            join(&w, i, one, w.acc);
        }
        finish(&w, i);
    }
}

const struct kern_few_table FEW_SET(kern_few) = {.rows = rows, .look = look, .split = split, .merge = merge};
