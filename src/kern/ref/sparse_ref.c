/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_ref - attention to few positions to read: one row, one head, one position after the other,
 * in the steps that sparse.h lists. */
#include "kern/attend_coded.h"
#include "kern/attend_part.h"
#include "kern/sparse.h"
#include "kern/math.h"
#include "kern/row.h"
#include "quant/quant.h"
#include <math.h>
#include <string.h>

enum { SPLIT_PAGES = KERN_SPLIT / KERN_PAGE };

/* Keys of one split as they were needed. */
struct keys {
    const struct kern_attend *a;
    int64_t split;          /* below 0: none */
    bool have[SPLIT_PAGES];
    uint16_t *scale;        /* f16 [2048] */
    int8_t *code;           /* [2048][k_width] */
};

/* A row and head at work. */
struct query {
    const struct kern_sparse_task *t;
    const struct kern_attend *a;
    struct keys *keys;
    int64_t pos;
    int8_t x[KERN_KV_WIDE];
    float by;         /* a scale */
    float max, theta; /* M */
};

/* What a row has collected of a split or of several. */
struct part {
    float max, sum, missed, kept;
    float *acc; /* f32 [v_width] */
};

static float max_of(float a, float b) { return a > b ? a : b; }

static float fold(float lane[ATTEND_LANES])
{
    for (int half = ATTEND_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

static struct keys keys_at(const struct kern_attend *a, void *scratch)
{
    uint16_t *scale = scratch;
    return (struct keys){
        .a = a, .split = -1, .scale = scale, .code = (int8_t *)(void *)(scale + KERN_SPLIT)};
}

/* After them. */
static float *sums_at(const struct kern_attend *a, void *scratch)
{
    return (float *)(void *)((uint8_t *)scratch + (size_t)(a->k_width + 2) * KERN_SPLIT);
}

static void make_page(struct keys *k, int64_t page)
{
    const struct kern_attend *a = k->a;
    const int64_t end = num_min((page + 1) * KERN_PAGE, a->pos0 + a->n_rows);
    for (int64_t pos = page * KERN_PAGE; pos < end; pos++) {
        int8_t *code = k->code + pos % KERN_SPLIT * a->k_width;
        uint16_t *scale = &k->scale[pos % KERN_SPLIT];
        if (a->k_codec == KERN_KV_Q8R) {
            kern_kv_codes_read(a->k_codec, true, a->k_width, a->page[page] + a->k_at,
                               pos % KERN_PAGE, scale, code);
            continue;
        }
        float key[KERN_KV_WIDE];
        kern_sparse_key(a, a->page[page], pos, key);
        kern_kv_round_q8r(key, a->k_width, scale, code);
    }
}

static void query_init(struct query *q, struct keys *keys, const struct kern_sparse_task *t,
                       int64_t row, int64_t head)
{
    const struct kern_attend *a = &t->attend;
    q->t = t;
    q->keys = keys;
    const float *from = a->q + row * a->q_stride + head * a->k_width;
    float turned[KERN_KV_WIDE];
    for (int64_t i = 0; i < a->k_width; i++)
        turned[i] = from[i];
    kern_row_hadamard(turned, a->k_width);
    q->a = a;
    q->pos = a->pos0 + row;
    q->by = kern_attend_coded_query(turned, a->k_width, q->x) * a->scale;
}

static float score(const struct query *q, int64_t pos)
{
    struct keys *k = q->keys;
    const int64_t page = pos / KERN_PAGE;
    if (k->split != pos / KERN_SPLIT)
        memset(k->have, 0, sizeof k->have);
    k->split = pos / KERN_SPLIT;
    if (!k->have[page % SPLIT_PAGES])
        make_page(k, page);
    k->have[page % SPLIT_PAGES] = true;
    const int8_t *code = k->code + pos % KERN_SPLIT * q->a->k_width;
    int32_t dot = 0;
    for (int64_t i = 0; i < q->a->k_width; i++)
        dot += q->x[i] * code[i];
    return (float)dot * (q->by * quant_f16_to_f32(k->scale[pos % KERN_SPLIT]));
}

/* Scores of the block of 32 at base, -inf from `to` on; returned is the new maximum. */
static float block_scores(const struct query *q, int64_t base, int64_t to, float max,
                          float s[KERN_ATTEND_BLOCK])
{
    float t[ATTEND_LANES];
    for (int j = 0; j < KERN_ATTEND_BLOCK; j++)
        s[j] = base + j < to ? score(q, base + j) : -INFINITY;
    for (int j = 0; j < ATTEND_LANES; j++)
        t[j] = max_of(s[j + ATTEND_LANES], s[j]);
    for (int half = ATTEND_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            t[j] = max_of(t[j + half], t[j]);
    return max_of(t[0], max);
}

/* M and theta. */
static void select_one(struct query *q, int eps)
{
    float lane[ATTEND_LANES] = {0}, s[KERN_ATTEND_BLOCK], max = -INFINITY;
    for (int64_t base = 0; base <= q->pos; base += KERN_ATTEND_BLOCK) {
        if (!kern_sparse_always(q->pos, base / KERN_PAGE))
            continue;
        const float top = block_scores(q, base, q->pos + 1, max, s), c = kern_exp(max - top);
        max = top;
        for (int j = 0; j < KERN_ATTEND_BLOCK; j++)
            s[j] = base + j <= q->pos ? kern_exp(s[j] - top) : 0.0f;
        for (int j = 0; j < ATTEND_LANES; j++)
            lane[j] = (lane[j] * c + s[j]) + s[j + ATTEND_LANES];
    }
    q->max = max;
    q->theta = kern_sparse_threshold(eps, max, fold(lane), q->pos + 1);
}

static void value_read(const struct kern_attend *a, int64_t pos, float *row)
{
    kern_attend_coded_read(a->v_codec, false, a->v_width, a->page[pos / KERN_PAGE] + a->v_at,
                           pos % KERN_PAGE, row);
}

/* acc takes in by times the mean value of a page. */
static void add_mean(const struct kern_attend *a, int64_t page, float by, float *acc)
{
    float sum[KERN_KV_WIDE] = {0}, row[KERN_KV_WIDE];
    for (int64_t j = 0; j < KERN_PAGE; j++) {
        value_read(a, page * KERN_PAGE + j, row);
        for (int64_t d = 0; d < a->v_width; d++)
            sum[d] += row[d];
    }
    for (int64_t d = 0; d < a->v_width; d++)
        acc[d] = fmaf(by, sum[d] * (1.0f / KERN_PAGE), acc[d]);
}

/* A block of 32: weights to sums, kept values to acc, the others to g; lost [n_lost]: of the
 * split's earlier pages. */
static void one_block(const struct query *q, int64_t base, int64_t to, struct part *part,
                      float lane[ATTEND_LANES], float g[ATTEND_LANES], float *lost, int64_t n_lost)
{
    const struct kern_attend *a = q->a;
    float s[KERN_ATTEND_BLOCK], row[KERN_KV_WIDE];
    const float top = block_scores(q, base, to, part->max, s), c = kern_exp(part->max - top);
    const bool always = kern_sparse_keeps(q->t, q->pos, base / KERN_PAGE);
    part->max = top;
    for (int64_t i = 0; i < n_lost; i++)
        lost[i] *= c;
    for (int64_t d = 0; d < a->v_width; d++)
        part->acc[d] *= c;
    float p[KERN_ATTEND_BLOCK], left_out[KERN_ATTEND_BLOCK];
    for (int j = 0; j < KERN_ATTEND_BLOCK; j++) {
        const bool seen = base + j < to, keep = seen && (always || s[j] > q->theta);
        p[j] = seen ? kern_exp(s[j] - top) : 0.0f;
        left_out[j] = seen && !keep ? p[j] : 0.0f;
        if (!keep)
            continue;
        part->kept += 1.0f;
        value_read(a, base + j, row);
        for (int64_t d = 0; d < a->v_width; d++)
            part->acc[d] = fmaf(p[j], row[d], part->acc[d]);
    }
    for (int j = 0; j < ATTEND_LANES; j++) {
        lane[j] = (lane[j] * c + p[j]) + p[j + ATTEND_LANES];
        g[j] = (g[j] * c + left_out[j]) + left_out[j + ATTEND_LANES];
    }
}

static void one_split(const struct query *q, int64_t split, struct part *part)
{
    const struct kern_attend *a = q->a;
    float lane[ATTEND_LANES] = {0}, lost[SPLIT_PAGES];
    const int64_t end = num_min(q->pos + 1, (split + 1) * KERN_SPLIT), first = split * SPLIT_PAGES;
    int64_t page = first;
    part->max = q->max;
    part->kept = part->missed = 0.0f;
    for (int64_t d = 0; d < a->v_width; d++)
        part->acc[d] = 0.0f;
    for (; page * KERN_PAGE < end; page++) {
        float g[ATTEND_LANES] = {0};
        const int64_t to = num_min(end, (page + 1) * KERN_PAGE);
        for (int64_t base = page * KERN_PAGE; base < to; base += KERN_ATTEND_BLOCK)
            one_block(q, base, num_min(to, base + KERN_ATTEND_BLOCK), part, lane, g, lost,
                      page - first);
        lost[page - first] = fold(g);
    }
    for (int64_t i = first; i < page; i++)
        if (lost[i - first] != 0.0f) {
            add_mean(a, i, lost[i - first], part->acc);
            part->missed += lost[i - first];
        }
    part->sum = fold(lane);
}

static void clear(struct part *all, int64_t width)
{
    all->max = -INFINITY;
    all->sum = all->missed = all->kept = 0.0f;
    for (int64_t d = 0; d < width; d++)
        all->acc[d] = 0.0f;
}

/* all takes in the next split.  A sum of zero means that nothing of it counts. */
static void join(struct part *all, const struct part *one, int64_t width)
{
    all->kept += one->kept;
    if (one->sum == 0.0f)
        return;
    const float top = max_of(one->max, all->max), x = kern_exp(all->max - top),
                y = kern_exp(one->max - top);
    all->max = top;
    all->sum = fmaf(one->sum, y, all->sum * x);
    all->missed = fmaf(one->missed, y, all->missed * x);
    for (int64_t d = 0; d < width; d++)
        all->acc[d] = fmaf(one->acc[d], y, all->acc[d] * x);
}

static void finish(const struct kern_sparse_task *t, int64_t row, int64_t head,
                   const struct part *all)
{
    const struct kern_attend *a = &t->attend;
    float *out = a->out + row * a->out_stride + head * a->v_width;
    for (int64_t d = 0; d < a->v_width; d++)
        out[d] = all->acc[d] / all->sum + 0.0f;
    kern_kv_turn_back(a->v_codec, out, a->v_width);
    t->missed[row * t->pair_stride + head] = all->missed / all->sum;
    t->kept[row * t->pair_stride + head] = (int32_t)all->kept;
}

static void look_at(struct query *q, struct keys *keys, const struct kern_sparse_task *t,
                    int64_t row, int64_t head)
{
    query_init(q, keys, t, row, head);
    select_one(q, t->eps);
}

static void rows(const struct kern_sparse_task *t, void *scratch)
{
    const struct kern_attend *a = &t->attend;
    struct keys keys = keys_at(a, scratch);
    struct part all = {.acc = sums_at(a, scratch)}, one = {.acc = all.acc + a->v_width};
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t h = 0; h < a->n_heads; h++) {
            struct query q;
            look_at(&q, &keys, t, r, h);
            clear(&all, a->v_width);
            for (int64_t s = 0; s <= q.pos / KERN_SPLIT; s++) {
                one_split(&q, s, &one);
                join(&all, &one, a->v_width);
            }
            finish(t, r, h, &all);
        }
}

static void select(const struct kern_sparse_task *t, float *first, void *scratch)
{
    struct keys keys = keys_at(&t->attend, scratch);
    for (int64_t r = 0; r < t->attend.n_rows; r++)
        for (int64_t h = 0; h < t->attend.n_heads; h++, first += 2) {
            struct query q;
            look_at(&q, &keys, t, r, h);
            first[0] = q.max;
            first[1] = q.theta;
        }
}

static void split(const struct kern_sparse_task *t, int64_t index, const float *first, float *state,
                  void *scratch)
{
    const struct kern_attend *a = &t->attend;
    struct keys keys = keys_at(a, scratch);
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t h = 0; h < a->n_heads;
             h++, state += kern_sparse_state(a->v_width), first += 2) {
            struct part one = {.acc = state + KERN_SPARSE_STATE};
            struct query q;
            query_init(&q, &keys, t, r, h);
            q.max = first[0];
            q.theta = first[1];
            one_split(&q, index, &one);
            state[0] = one.max;
            state[1] = one.sum;
            state[2] = one.missed;
            state[3] = one.kept;
        }
}

static void merge(const struct kern_sparse_task *t, int64_t n_splits, const float *state,
                  void *scratch)
{
    const struct kern_attend *a = &t->attend;
    const int64_t step = kern_sparse_state(a->v_width);
    struct part all = {.acc = scratch};
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t h = 0; h < a->n_heads; h++, state += step) {
            clear(&all, a->v_width);
            for (int64_t s = 0; s < n_splits; s++) {
                const float *x = state + s * a->n_rows * a->n_heads * step;
                struct part one = {x[0], x[1], x[2], x[3],
                                   (float *)(uintptr_t)(x + KERN_SPARSE_STATE)};
                join(&all, &one, a->v_width);
            }
            finish(t, r, h, &all);
        }
}

const struct kern_sparse_table kern_sparse_ref = {
    .rows = rows, .select = select, .split = split, .merge = merge};
