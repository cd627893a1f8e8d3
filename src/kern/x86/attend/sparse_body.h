/*
 * sparse_body - attention to few positions, compiled once for each way to multiply bytes
 * (sparse_dots.h).
 *
 * The pairs of row and head of a task stand head by head, so that the rows of a tile of TILE_R
 * pairs want much the same positions.  Split by split the task's keys are rounded once and its
 * values' means made; then groups of pairs pass over the pages of the split: scores, weights, and
 * lists of the positions that any pair of a tile keeps, with weights of 0 for the pairs that do
 * not.  Lists of several pages are multiplied by values at once, so that sums of values are read
 * and written seldom. Where a value of the page is not finite, or pairs of the tile do not see a
 * block alike, pairs go alone.  All that a tile does is per pair and in the steps of sparse.h.
 */
#include "kern/attend_coded.h"
#include "kern/attend_part.h"
#include "kern/sparse.h"
#include "kern/math.h"
#include "kern/row.h"
#include "kern/x86/lanes_exp.h"
#include <math.h>
#include <string.h>

#include "kern/x86/attend/coded_sums.h"
#include "kern/x86/attend/coded_read.h"
#include "kern/x86/attend/sparse_dots.h"

enum { PAGE_BLOCKS = KERN_PAGE / KERN_ATTEND_BLOCK, SPLIT_PAGES = KERN_SPLIT / KERN_PAGE };

#include "kern/x86/attend/sparse_values.h"
#include "kern/x86/attend/sparse_keys.h"

enum { GROUP_TILES = SPARSE_GROUP / TILE_R, LIST_PARTS = 4 * PAGE_BLOCKS, AHEAD = 16 };

/* Positions that pairs of a tile keep, and their weights. */
struct list {
    float *weight;          /* [n][TILE_R] */
    uint16_t row[SPARSE_LIST + AHEAD]; /* of values */
    int n, n_parts;
    struct part {
        int n;              /* up to which it goes */
        bool rescale;       /* before it sums are multiplied by: */
        float by[TILE_R];
    } part[LIST_PARTS];
};

/* A task and its scratch.  Pair i is row i mod n_rows of head i / n_rows; n is rounded up to whole
 * tiles. */
struct work {
    const struct kern_sparse_task *t;
    const struct kern_attend *a;
    int64_t n_pairs, n, vw;         /* vw: v_width in whole panels */
    sparse_code *x;                    /* [n/TILE_R][k_width/unit][TILE_R][unit] */
    float *by;                      /* f32 [n]: scales of queries; and so on */
    int32_t *start;                 /* -128 times the sum of a query */
    float *first, *theta;           /* M */
    float *max, *missed, *kept;     /* of a split */
    float *all_max, *all_sum, *all_missed, *all_kept;
    float *lane;                    /* f32 [n][16]: sums of weights */
    float *lost;                    /* f32 [n][SPLIT_PAGES] */
    float *all;                     /* f32 [n][vw] */
    float *acc;                     /* f32 [SPARSE_GROUP][vw] */
    float *score;                   /* f32 [SPARSE_GROUP][128]: of a page */
    /* [SPLIT_PAGES][k_width * 128], of words if those are multiplied */
    uint8_t *code;
    uint16_t *scale;                /* f16 [SPLIT_PAGES][128] */
    uint8_t *bytes;                 /* [k_width * 128] */
    float *room;                    /* of make_keys() */
    /* f32 panels of SPARSE_ROWS rows: means of a split's pages, then values that were wanted */
    float *value;
    int16_t row_of[KERN_SPLIT];     /* which of them a position has; -1: none */
    int n_rows;
    bool clean[SPLIT_PAGES];        /* all values of a page are finite */
    /* Of a group and a page. */
    const uint8_t *block;           /* of values */
    int64_t pos[SPARSE_GROUP];         /* of each pair (a division) */
    int64_t last[GROUP_TILES];      /* the last position that a pair of the tile sees */
    int64_t end[GROUP_TILES];       /* the first that not all of them see */
    float rescale[SPARSE_GROUP][PAGE_BLOCKS];
    uint32_t keep[SPARSE_GROUP][PAGE_BLOCKS];
    struct list list[GROUP_TILES];
};

static int64_t pos_of(const struct work *w, int64_t i) { return w->a->pos0 + i % w->a->n_rows; }

/* Sixteen queries from pair i on, of which n are some, turned side by side. */
static void query_init(struct work *w, int64_t i, int64_t n)
{
    const struct kern_attend *a = w->a;
    const int64_t width = a->k_width, unit = num_min(UNIT, width);
    float *turned = w->room, *q = w->room + 16 * width;
    int8_t x[KERN_KV_WIDE];
    for (int64_t j = 0; j < 16; j++) {
        const int64_t pair = num_min(i + j, i + n - 1);
        const float *from = a->q + pair % a->n_rows * a->q_stride + pair / a->n_rows * width;
        for (int64_t k = 0; k < width; k++)
            turned[k * 16 + j] = from[k];
    }
    turn_rows(turned, width);
    for (int64_t j = 0; j < n; j++, i++) {
        int32_t sum = 0;
        sparse_code *to = w->x + i / TILE_R * TILE_R * width + i % TILE_R * unit;
        for (int64_t k = 0; k < width; k++)
            q[k] = turned[k * 16 + j];
        w->by[i] = kern_attend_coded_query(q, width, x) * a->scale;
        for (int64_t k = 0; k < width; k += unit, to += TILE_R * unit)
            for (int64_t d = 0; d < unit; d++) {
                to[d] = x[k + d];
                sum += x[k + d];
            }
        w->start[i] = -128 * sum;
    }
}

static void *take(float **at, int64_t n)
{
    float *p = *at;
    *at += (n + 15) / 16 * 16;
    return p;
}

static void work_init(struct work *w, const struct kern_sparse_task *t, void *scratch)
{
    const struct kern_attend *a = &t->attend;
    float *at = scratch;
    w->t = t;
    w->a = a;
    w->n_pairs = a->n_rows * a->n_heads;
    w->n = num_div_up(w->n_pairs, TILE_R) * TILE_R;
    w->vw = attend_panels(a->v_width);
    w->x = take(&at, w->n * a->k_width * (int64_t)sizeof *w->x / (int64_t)sizeof *at);
    float **const each[] = {&w->by,   &w->first,   &w->theta,   &w->max,        &w->missed,
                            &w->kept, &w->all_max, &w->all_sum, &w->all_missed, &w->all_kept};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        *each[i] = take(&at, w->n);
    w->start = take(&at, w->n);
    w->lane = take(&at, w->n * 16);
    w->lost = take(&at, w->n * SPLIT_PAGES);
    w->all = take(&at, w->n * w->vw);
    w->acc = take(&at, num_min(w->n, SPARSE_GROUP) * w->vw);
    w->score = take(&at, num_min(w->n, SPARSE_GROUP) * KERN_PAGE);
    for (int64_t k = 0; k < num_min(w->n / TILE_R, GROUP_TILES); k++) {
        w->list[k].weight = take(&at, SPARSE_LIST * TILE_R);
        w->list[k].n = w->list[k].n_parts = 0;
    }
    w->code = take(&at, SPLIT_PAGES * KERN_PAGE * a->k_width / 4 * (int64_t)sizeof(sparse_code));
    w->scale = take(&at, SPLIT_PAGES * KERN_PAGE / 2);
    w->bytes = take(&at, KERN_PAGE * a->k_width / 4);
    w->room = take(&at, 33 * a->k_width);
    w->value = take(&at, SPARSE_ROWS * w->vw);
    memset(w->x, 0, (size_t)(w->n * a->k_width) * sizeof *w->x);
    for (int64_t i = w->n_pairs; i < w->n; i++) {
        w->by[i] = 0.0f;
        w->start[i] = 0;
    }
    for (int64_t i = 0; i < w->n_pairs; i += 16)
        query_init(w, i, num_min(16, w->n_pairs - i));
    for (int64_t i = 0; i < w->n * SPLIT_PAGES; i += 16)
        v_store(w->lost + i, v_zero());
    /* what is after narrow values stays so */
    for (int64_t i = 0; i < SPARSE_ROWS * w->vw && w->vw > a->v_width; i += 16)
        v_store(w->value + i, v_zero());
}

/* Positions of a page that the task's last row sees, from slot 0 on. */
static int64_t slots_of(const struct work *w, int64_t page)
{
    return num_min(KERN_PAGE, w->a->pos0 + w->a->n_rows - page * KERN_PAGE);
}

enum { STORED = sizeof(sparse_code) == 1 }; /* q8r's codes are multiplied as they are */

/* Codes of a page's keys, if they are not stored so. */
static void prepare_keys(struct work *w, int64_t page)
{
    const int64_t width = w->a->k_width, at = page % SPLIT_PAGES;
    uint8_t *to = w->code + at * KERN_PAGE * width * (int64_t)sizeof(sparse_code);
    const uint8_t *block = w->a->page[page] + w->a->k_at;
    if (w->a->k_codec != KERN_KV_Q8R)
        make_keys(w->a, page, slots_of(w, page), STORED ? to : w->bytes, w->scale + at * KERN_PAGE,
                  w->room);
#ifdef SPARSE_WORDS
    to_words(w->a->k_codec == KERN_KV_Q8R ? block : w->bytes, width, (int16_t *)(void *)to);
#else
    (void)block;
#endif
}

/* As dots() wants them. */
static const uint8_t *keys_of(const struct work *w, int64_t page)
{
    const bool stored = w->a->k_codec == KERN_KV_Q8R && STORED;
    return stored ? w->a->page[page] + w->a->k_at
                  : w->code + page % SPLIT_PAGES * KERN_PAGE * w->a->k_width *
                                  (int64_t)sizeof(sparse_code);
}

static const uint16_t *scales_of(const struct work *w, int64_t page)
{
    const uint8_t *block = w->a->page[page] + w->a->k_at;
    return w->a->k_codec == KERN_KV_Q8R
               ? (const uint16_t *)(const void *)tail_bytes(KERN_KV_Q8R, block, w->a->k_width)
               : w->scale + page % SPLIT_PAGES * KERN_PAGE;
}

/* Scores of a page with the tiles of pairs [first, first + n), as far as those see it.  Keys of a
 * step stay in the nearest cache; those of the page that is next come nearer meanwhile. */
static void score_page(struct work *w, int64_t first, int64_t n, int64_t page, int64_t next)
{
    const int64_t width = w->a->k_width, bytes = DOTS * width * (int64_t)sizeof(sparse_code),
                  some = KERN_PAGE / DOTS * bytes / (KERN_PAGE / DOTS * n / TILE_R);
    const uint8_t *key = keys_of(w, page), *ahead = keys_of(w, next),
                  *end = ahead + KERN_PAGE / DOTS * bytes;
    const uint16_t *scale = scales_of(w, page);
    struct tiles t;
    dots_begin(&t, width);
    for (int64_t at = 0; at < KERN_PAGE; at += DOTS, key += bytes)
        for (int64_t i = 0; i < n; i += TILE_R) {
            if (w->last[i / TILE_R] < page * KERN_PAGE + at / KERN_ATTEND_BLOCK * KERN_ATTEND_BLOCK)
                continue;
            for (const uint8_t *to = ahead + some < end ? ahead + some : end; ahead < to;
                 ahead += 64)
                v_prefetch_far(ahead);
            dots(&t, w->x + (first + i) * width, key, width, scale + at, w->start + first + i,
                 w->by + first + i, w->score + i * KERN_PAGE + at);
        }
    dots_end(&t);
}

/* What tiles of a group see. */
static void see(struct work *w, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t *last = &w->last[i / TILE_R], *end = &w->end[i / TILE_R];
        if (i % TILE_R == 0) {
            *last = 0;
            *end = INT64_MAX;
        }
        if (first + i >= w->n_pairs)
            continue;
        w->pos[i] = pos_of(w, first + i);
        *last = num_max(*last, w->pos[i]);
        *end = num_min(*end, w->pos[i] + 1);
    }
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

static void select_pair(struct work *w, int64_t i, int64_t n, const float *s)
{
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

static void select_page(struct work *w, int64_t page)
{
    const int64_t base = page * KERN_PAGE;
    prepare_keys(w, page);
    for (int64_t first = 0, n; first < w->n; first += n) {
        n = num_min(SPARSE_GROUP, w->n - first);
        const int64_t some = num_min(n, w->n_pairs - first);
        see(w, first, n);
        for (int64_t i = 0; i < n; i += TILE_R) {
            bool any = false;
            for (int64_t r = i; r < num_min(some, i + TILE_R); r++)
                any |= kern_sparse_always(w->pos[r], page) && w->pos[r] >= base;
            if (!any)
                w->last[i / TILE_R] = -1;
        }
        score_page(w, first, n, page, page);
        for (int64_t r = 0; r < some; r++)
            if (kern_sparse_always(w->pos[r], page) && w->pos[r] >= base)
                select_pair(w, first + r, num_min(KERN_PAGE, w->pos[r] + 1 - base),
                            w->score + r * KERN_PAGE);
    }
}

/* M and theta of all pairs. */
static void select_all(struct work *w)
{
    const int64_t last = (w->a->pos0 + w->a->n_rows - 1) / KERN_PAGE;
    for (int64_t i = 0; i < w->n; i++) {
        w->first[i] = -INFINITY;
        v_store(w->lane + i * 16, v_zero());
    }
    select_page(w, 0);
    for (int64_t page = num_max(1, w->a->pos0 / KERN_PAGE - KERN_SPARSE_PAGES + 1); page <= last;
         page++)
        select_page(w, page);
    for (int64_t i = 0; i < w->n_pairs; i++)
        w->theta[i] = kern_sparse_threshold(w->t->eps, w->first[i],
                                         v_fold_sum(v_load(w->lane + i * 16)), pos_of(w, i) + 1);
}

/* ---- values ---- */

#ifdef __AVX512F__
enum { PANEL_VECTORS = 2 };
#else
enum { PANEL_VECTORS = 1 };
#endif

/* 16 PANEL_VECTORS sums of each pair of a tile, f32 [TILE_R][vw], take in what a list has; value:
 * the first of its rows. */
static void mix_panel(const struct list *m, const float *value, int64_t vw, float *acc)
{
    struct v16 sum[TILE_R][PANEL_VECTORS];
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++) {
        LANES_UNROLL
        for (int p = 0; p < PANEL_VECTORS; p++) {
            sum[r][p] = v_load(acc + r * vw + p * 16);
            v_prefetch(acc + (r + TILE_R) * vw + p * 16);
        }
    }
    const float *weight = m->weight;
    const uint16_t *row = m->row;
    for (const struct part *part = m->part; part < m->part + m->n_parts; part++) {
        if (part->rescale) {
            LANES_UNROLL
            for (int r = 0; r < TILE_R; r++) {
                const struct v16 by = v_set(part->by[r]);
                LANES_UNROLL
                for (int p = 0; p < PANEL_VECTORS; p++)
                    sum[r][p] = v_mul(sum[r][p], by);
            }
        }
        for (const uint16_t *end = m->row + part->n; row < end; row++, weight += TILE_R) {
            struct v16 x[PANEL_VECTORS];
            LANES_UNROLL
            for (int p = 0; p < PANEL_VECTORS; p++) {
                x[p] = v_load(value + *row * ATTEND_PANEL + p * 16);
                v_prefetch(value + row[AHEAD] * ATTEND_PANEL + p * 16);
            }
            LANES_UNROLL
            for (int r = 0; r < TILE_R; r++) {
                const struct v16 by = v_set(weight[r]);
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
            v_store(acc + r * vw + p * 16, sum[r][p]);
    }
}

/* Sums of the n tiles from one of the group on take in what their lists have; lists are empty
 * then. */
static void mix(struct work *w, int64_t tile, int64_t n)
{
    struct list *m = w->list + tile;
    for (int64_t d = 0; d < w->vw; d += 16 * PANEL_VECTORS)
        for (int64_t i = 0; i < n; i++)
            if (m[i].n_parts)
                mix_panel(&m[i], w->value + panel_at(SPARSE_ROWS, 0, d), w->vw,
                          w->acc + (tile + i) * TILE_R * w->vw + d);
    for (int64_t i = 0; i < n; i++)
        m[i].n = m[i].n_parts = 0;
}

static void forget_values(struct work *w)
{
    memset(w->row_of, 0xff, sizeof w->row_of);
    w->n_rows = SPLIT_PAGES;
}

/* The row of values at slot of a page of a split. */
static int want_value(struct work *w, int64_t at, int64_t slot)
{
    int16_t *row = &w->row_of[at * KERN_PAGE + slot];
    if (*row < 0) {
        *row = (int16_t)w->n_rows++;
        read_value(w->a->v_codec, w->block, w->a->v_width, slot, w->value + *row * ATTEND_PANEL);
    }
    return *row;
}

/* acc [vw] takes in by times a row of panels. */
static void add_single(const struct work *w, float by, int row, float *acc)
{
    for (int64_t d = 0; d < w->vw; d += 16)
        v_store(acc + d, v_fma(v_set(by), v_load(w->value + panel_at(SPARSE_ROWS, row, d)),
                               v_load(acc + d)));
}

/* A block of which the tile's pairs go alone; i: the first of them in its group. */
static void mix_single(struct work *w, int64_t i, int64_t n, int64_t at, int64_t b)
{
    float *acc = w->acc + i * w->vw;
    for (int64_t r = i; r < i + n; r++, acc += w->vw) {
        const struct v16 by = v_set(w->rescale[r][b]);
        for (int64_t d = 0; d < w->vw && v_lane0(by) != 1.0f; d += 16)
            v_store(acc + d, v_mul(v_load(acc + d), by));
        for (uint32_t left = w->keep[r][b]; left; left &= left - 1) {
            const int64_t slot = b * KERN_ATTEND_BLOCK + __builtin_ctz(left);
            add_single(w, w->score[r * KERN_PAGE + slot], want_value(w, at, slot), acc);
        }
    }
}

static struct part *list_part(struct list *m)
{
    m->part[m->n_parts].rescale = false;
    return &m->part[m->n_parts++];
}

/* A list takes in slots of a block. */
static void list_block(struct work *w, struct list *m, int64_t i, int64_t at, int64_t b,
                       uint32_t some)
{
    for (; some; some &= some - 1, m->n++) {
        const int64_t slot = b * KERN_ATTEND_BLOCK + __builtin_ctz(some);
        const float *score = w->score + i * KERN_PAGE + slot;
        float *weight = m->weight + m->n * TILE_R;
        m->row[m->n] = (uint16_t)want_value(w, at, slot);
        LANES_UNROLL
        for (int r = 0; r < TILE_R; r++)
            weight[r] = score[r * KERN_PAGE];
    }
}

/* What the tile at pair i of a group, of which n pairs are some, keeps of a page goes to its
 * list. */
static void list_page(struct work *w, int64_t i, int64_t n, int64_t page)
{
    struct list *m = &w->list[i / TILE_R];
    const int64_t end = w->end[i / TILE_R] - page * KERN_PAGE, at = page % SPLIT_PAGES;
    for (int64_t b = 0; b < PAGE_BLOCKS; b++) {
        uint32_t some = 0;
        bool rescale = false;
        for (int64_t r = i; r < i + n; r++) {
            some |= w->keep[r][b];
            rescale |= w->rescale[r][b] != 1.0f;
        }
        if (!some && !rescale)
            continue;
        if (!w->clean[at] || (b + 1) * KERN_ATTEND_BLOCK > end) {
            mix(w, i / TILE_R, 1);
            mix_single(w, i, n, at, b);
            continue;
        }
        if (rescale || !m->n_parts) {
            struct part *p = list_part(m);
            p->rescale = rescale;
            for (int64_t r = 0; r < TILE_R; r++)
                p->by[r] = r < n ? w->rescale[i + r][b] : 1.0f;
        }
        list_block(w, m, i, at, b, some);
        m->part[m->n_parts - 1].n = m->n;
    }
}

/* What pages of a split lost goes to the list of the tile at pair i of the group that begins at
 * first; n pairs of it are some. */
static void list_means(struct work *w, int64_t first, int64_t i, int64_t n, int64_t n_pages)
{
    struct list *m = &w->list[i / TILE_R];
    const float *lost = w->lost + (first + i) * SPLIT_PAGES;
    for (int64_t at = 0; at < n_pages; at++) {
        bool some = false;
        for (int64_t r = 0; r < n; r++)
            some |= lost[r * SPLIT_PAGES + at] != 0.0f;
        if (!some)
            continue;
        if (w->clean[at]) {
            if (!m->n_parts)
                list_part(m);
            for (int64_t r = 0; r < TILE_R; r++)
                m->weight[m->n * TILE_R + r] = lost[r * SPLIT_PAGES + at];
            m->row[m->n++] = (uint16_t)at;
            m->part[m->n_parts - 1].n = m->n;
            continue;
        }
        mix(w, i / TILE_R, 1);
        for (int64_t r = 0; r < n; r++)
            if (lost[r * SPLIT_PAGES + at] != 0.0f)
                add_single(w, lost[r * SPLIT_PAGES + at], (int)at, w->acc + (i + r) * w->vw);
    }
    for (int64_t r = 0; r < n; r++) {
        float x = 0.0f;
        for (int64_t at = 0; at < n_pages; at++)
            x += lost[r * SPLIT_PAGES + at];
        w->missed[first + i + r] = x;
    }
}

/* ---- a page ---- */

/* Scores s of pair i, r of its group, in a page that it sees whole and that is not always seen: as
 * weigh(), if no score is larger than the maximum. */
static bool weigh_whole(struct work *w, int64_t i, int64_t r, float *s, int64_t at)
{
    const struct v16 m = v_set(w->max[i]), theta = v_set(w->theta[i]);
    struct v16 x[8], top = m;
    LANES_UNROLL
    for (int k = 0; k < 8; k++) {
        x[k] = v_load(s + k * 16);
        top = v_max(x[k], top); /* a NaN is no more than the maximum */
    }
    if (UNLIKELY(v_mask(v_greater(top, m)) || !(fabsf(w->max[i]) < INFINITY)))
        return false;
    struct v16 lane = v_load(w->lane + i * 16), g = v_zero();
    uint32_t some[8];
    int n_kept = 0;
    LANES_UNROLL
    for (int k = 0; k < 8; k += EXP_SOME) {
        struct v16 p[EXP_SOME];
        LANES_UNROLL
        for (int j = 0; j < EXP_SOME; j++)
            p[j] = v_sub(x[k + j], m);
        v_exp_low(p, EXP_SOME);
        LANES_UNROLL
        for (int j = 0; j < EXP_SOME; j++) {
            const struct m16 skip = v_not_greater(x[k + j], theta);
            lane = v_add(lane, p[j]);
            g = v_add_where(skip, g, p[j]);
            v_store(s + (k + j) * 16, v_unless(skip, p[j]));
            some[k + j] = (uint32_t)v_mask(skip) ^ 0xffffu;
        }
    }
    for (int b = 0; b < PAGE_BLOCKS; b++) {
        w->keep[r][b] = some[2 * b] | some[2 * b + 1] << 16;
        n_kept += __builtin_popcount(w->keep[r][b]);
    }
    for (int b = 0; b < PAGE_BLOCKS; b++)
        w->rescale[r][b] = 1.0f;
    w->lost[i * SPLIT_PAGES + at] = v_fold_sum(g);
    w->kept[i] += (float)n_kept;
    v_store(w->lane + i * 16, lane);
    return true;
}

/* Scores of pair i, r of its group, in a page become weights of what it keeps. */
static void weigh(struct work *w, int64_t i, int64_t r, int64_t page)
{
    const int64_t seen = w->pos[r] + 1 - page * KERN_PAGE, at = page % SPLIT_PAGES;
    const bool always = kern_sparse_keeps(w->t, w->pos[r], page);
    float *s = w->score + r * KERN_PAGE, *lost = w->lost + i * SPLIT_PAGES;
    if (LIKELY(!always && seen >= KERN_PAGE) && LIKELY(weigh_whole(w, i, r, s, at)))
        return;
    struct v16 lane = v_load(w->lane + i * 16), g = v_zero();
    const struct v16 theta = v_set(w->theta[i]);
    int64_t n_kept = 0;
    for (int64_t b = 0; b < PAGE_BLOCKS; b++, s += KERN_ATTEND_BLOCK) {
        const int64_t n = seen - b * KERN_ATTEND_BLOCK;
        float *c = &w->rescale[r][b];
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

/* Pairs [first, first + n) of a group against a page; next is that after it. */
static void do_page(struct work *w, int64_t first, int64_t n, int64_t page, int64_t next)
{
    const int64_t base = page * KERN_PAGE;
    w->block = w->a->page[page] + w->a->v_at;
    bool full = w->n_rows > SPARSE_ROWS - KERN_PAGE;
    for (int64_t i = 0; i < n; i += TILE_R) {
        const struct list *m = &w->list[i / TILE_R];
        full |= m->n > SPARSE_LIST - SPLIT_PAGES - KERN_PAGE ||
                m->n_parts > LIST_PARTS - PAGE_BLOCKS - 1;
    }
    if (full)
        mix(w, 0, n / TILE_R);
    if (w->n_rows > SPARSE_ROWS - KERN_PAGE)
        forget_values(w);
    score_page(w, first, n, page, next);
    for (int64_t i = 0; i < n; i += TILE_R) {
        const int64_t some = num_min(TILE_R, w->n_pairs - first - i);
        if (w->last[i / TILE_R] < base)
            continue;
        for (int64_t r = i; r < i + some; r++)
            weigh(w, first + r, r, page);
        for (int64_t k = (i + some) * KERN_PAGE; k < (i + TILE_R) * KERN_PAGE; k += 16)
            v_store(w->score + k, v_zero());
        list_page(w, i, some, page);
    }
}

/* ---- splits ---- */

/* Keys and means of the pages of a split; returned is how many it has. */
static int64_t prepare(struct work *w, int64_t split)
{
    const struct kern_attend *a = w->a;
    const int64_t from = split * SPLIT_PAGES,
                  to = num_min(from + SPLIT_PAGES, num_div_up(a->pos0 + a->n_rows, KERN_PAGE));
    for (int64_t page = from; page < to; page++) {
        prepare_keys(w, page);
        w->clean[page - from] = mean_of(a->v_codec, a->page[page] + a->v_at, a->v_width,
                                        slots_of(w, page), page - from, w->value);
    }
    forget_values(w);
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
    see(w, first, n);
    for (int64_t page = 0; page < n_pages; page++)
        do_page(w, first, n, split * SPLIT_PAGES + page,
                split * SPLIT_PAGES + (page + 1) % n_pages);
    for (int64_t i = 0; i < n; i += TILE_R)
        list_means(w, first, i, num_min(TILE_R, w->n_pairs - first - i), n_pages);
    mix(w, 0, n / TILE_R);
}

/* all takes in a split: maximum, sum, missed share, positions kept. */
static void join(struct work *w, int64_t i, const float one[KERN_SPARSE_STATE], const float *acc)
{
    w->all_kept[i] += one[3];
    if (one[1] == 0.0f)
        return;
    float *all = w->all + i * w->vw;
    const float top = one[0] > w->all_max[i] ? one[0] : w->all_max[i],
                x = kern_exp(w->all_max[i] - top), y = kern_exp(one[0] - top);
    w->all_max[i] = top;
    w->all_sum[i] = fmaf(one[1], y, w->all_sum[i] * x);
    w->all_missed[i] = fmaf(one[2], y, w->all_missed[i] * x);
    for (int64_t d = 0; d < w->vw; d += 16) {
        v_prefetch(all + w->vw + d); /* of the next pair */
        v_store(all + d, v_fma(v_load(acc + d), v_set(y), v_mul(v_load(all + d), v_set(x))));
    }
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
        v_store_n(out + d, v_add(v_div(v_load(all + d), v_set(w->all_sum[i])), v_zero()),
                  a->v_width - d);
    kern_kv_turn_back(a->v_codec, out, a->v_width);
    w->t->missed[pair] = w->all_missed[i] / w->all_sum[i];
    w->t->kept[pair] = (int32_t)w->all_kept[i];
}

static void state_of(const struct work *w, int64_t i, float state[KERN_SPARSE_STATE])
{
    state[0] = w->max[i];
    state[1] = v_fold_sum(v_load(w->lane + i * 16));
    state[2] = w->missed[i];
    state[3] = w->kept[i];
}

static void rows(const struct kern_sparse_task *t, void *scratch)
{
    struct work w;
    work_init(&w, t, scratch);
    clear(&w);
    select_all(&w);
    for (int64_t s = 0; s <= (w.a->pos0 + w.a->n_rows - 1) / KERN_SPLIT; s++) {
        const int64_t n_pages = prepare(&w, s);
        for (int64_t first = 0, n; first < w.n; first += n) {
            n = num_min(SPARSE_GROUP, w.n - first);
            do_split(&w, first, n, s, n_pages);
            for (int64_t i = first; i < num_min(first + n, w.n_pairs); i++) {
                float state[KERN_SPARSE_STATE];
                state_of(&w, i, state);
                join(&w, i, state, w.acc + (i - first) * w.vw);
            }
        }
    }
    for (int64_t i = 0; i < w.n_pairs; i++)
        finish(&w, i);
}

/* Where pair i of a task stands among [n_rows][n_heads]. */
static int64_t place_of(const struct kern_attend *a, int64_t i)
{
    return i % a->n_rows * a->n_heads + i / a->n_rows;
}

static void select(const struct kern_sparse_task *t, float *first, void *scratch)
{
    struct work w;
    work_init(&w, t, scratch);
    select_all(&w);
    for (int64_t i = 0; i < w.n_pairs; i++) {
        float *to = first + 2 * place_of(w.a, i);
        to[0] = w.first[i];
        to[1] = w.theta[i];
    }
}

static void split(const struct kern_sparse_task *t, int64_t index, const float *first, float *state,
                  void *scratch)
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
        n = num_min(SPARSE_GROUP, w.n - at);
        do_split(&w, at, n, index, n_pages);
        for (int64_t i = at; i < num_min(at + n, w.n_pairs); i++) {
            float *to = state + place_of(w.a, i) * kern_sparse_state(w.a->v_width);
            state_of(&w, i, to);
            memcpy(to + KERN_SPARSE_STATE, w.acc + (i - at) * w.vw,
                   (size_t)w.a->v_width * sizeof *to);
        }
    }
}

static void merge(const struct kern_sparse_task *t, int64_t n_splits, const float *state,
                  void *scratch)
{
    const struct kern_attend *a = &t->attend;
    const int64_t step = kern_sparse_state(a->v_width), n_pairs = a->n_rows * a->n_heads;
    struct work w = {
        .t = t, .a = a, .n_pairs = n_pairs, .n = n_pairs, .vw = attend_panels(a->v_width)};
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
            memcpy(w.acc, one + KERN_SPARSE_STATE, (size_t)a->v_width * sizeof *w.acc);
            join(&w, i, one, w.acc);
        }
        finish(&w, i);
    }
}

const struct kern_sparse_table SPARSE_SET(kern_sparse) = {
    .rows = rows, .select = select, .split = split, .merge = merge};
