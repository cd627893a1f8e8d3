/* SPDX-License-Identifier: Apache-2.0 */
/* attend_coded_ref - attention over codes to read: one row, one head, one position after the other,
 * as attend_coded.h lists the steps. */
#include "kern/attend_coded.h"
#include "kern/attend_part.h"
#include "kern/kernels.h"
#include "kern/math.h"
#include "kern/select.h"
#include "kern/ref/attend_sum.h"
#include "quant/quant.h"
#include <math.h>

extern const struct kern_attend_table kern_attend_ref;

/* A row and head at work. */
struct query {
    const struct kern_attend *a;
    int64_t pos;
    float *turned; /* f32 [k_width] */
    float *page;   /* f32 [k_width]: turned for a page; keys made of values */
    float *row;    /* f32: a key, a value */
    int64_t at;    /* of what page, by its first position; below 0: none */
    int8_t x[KERN_KV_WIDE];
    float by[KERN_KV_PARTS]; /* a scale */
};

static void kv_write(enum kern_kv_codec c, bool key, int64_t width, void *block, int64_t slot,
                     const float *rows, int64_t n, int64_t stride)
{
    if (kern_kv_is_coded(c))
        kern_kv_codes_write(c, key, width, block, slot, rows, n, stride);
    else if (c != KERN_KV_FROM_V)
        kern_attend_ref.kv_write(c, key, width, block, slot, rows, n, stride);
}

static void query_init(struct query *q, const struct kern_attend *a, int64_t row, int64_t head,
                       float *room)
{
    const float *from = a->q + row * a->q_stride + head * a->k_width;
    *q = (struct query){.a = a,
                        .pos = a->pos0 + row,
                        .turned = room,
                        .page = room + a->k_width,
                        .row = room + 2 * a->k_width,
                        .at = -1};
    kern_attend_coded_turn(a, from, q->turned);
    if (kern_kv_is_whole(a->k_codec))
        kern_attend_coded_bytes(a, q->turned, q->x, q->by);
}

static int level_of(enum kern_kv_codec c, int8_t code)
{
    return kern_kv_code(c) == KERN_KV_Q8R ? code : kern_n4r_level[code & 15];
}

static float score_rot(const struct query *q, const uint8_t *page, int64_t slot)
{
    const struct kern_attend *a = q->a;
    const int64_t part = a->k_width / KERN_KV_PARTS;
    uint16_t norm[KERN_KV_PARTS];
    int8_t code[KERN_KV_WIDE];
    float f = 0.0f;
    kern_kv_codes_read(a->v_codec, false, a->v_width, page + a->v_at, slot, norm, code);
    kern_kv_codes_read(a->k_codec, true, a->k_width, page + a->k_at, slot, norm, code);
    for (int64_t g = 0; g < KERN_KV_PARTS; g++) {
        int32_t dot = 0;
        for (int64_t i = g * part; i < (g + 1) * part; i++)
            dot += q->x[i] * level_of(g ? a->v_codec : a->k_codec, code[i]);
        f = fmaf(q->by[g] * quant_f16_to_f32(norm[g]), (float)dot, f);
    }
    return f;
}

static float score_codes(const struct query *q, const uint8_t *block, int64_t slot)
{
    const struct kern_attend *a = q->a;
    const int64_t group = kern_kv_group(a->k_codec, a->k_width);
    uint16_t norm[KERN_KV_WIDE / KERN_KV_GROUP];
    int8_t code[KERN_KV_WIDE];
    float f = 0.0f;
    kern_kv_codes_read(a->k_codec, true, a->k_width, block, slot, norm, code);
    for (int64_t g = 0; g < a->k_width / group; g++) {
        int32_t dot = 0;
        for (int64_t i = g * group; i < (g + 1) * group; i++)
            dot += q->x[i] * level_of(a->k_codec, code[i]);
        if (a->k_codec == KERN_KV_Q8R)
            return (float)dot * (q->by[0] * quant_f16_to_f32(norm[0]));
        f = fmaf(quant_f16_to_f32(norm[g]), (float)dot, f);
    }
    return q->by[0] * f;
}

/* The key of a value: pairs are turned, else the weight is with the query. */
static void key_of(const struct kern_from_v *f, int64_t slot, float *x)
{
    const float *cs = f->slot + slot * f->n_pairs * 2;
    for (int64_t i = 0; i < f->n_pairs; i++) {
        const float a = x[i] * f->weight[i], b = x[i + f->half] * f->weight[i + f->half];
        x[i] = fmaf(-b, cs[2 * i + 1], a * cs[2 * i]);
        x[i + f->half] = fmaf(a, cs[2 * i + 1], b * cs[2 * i]);
    }
}

static float score_made(const struct query *q, const uint8_t *page, int64_t slot)
{
    const struct kern_attend *a = q->a;
    float lane[ATTEND_LANES] = {0};
    kern_kv_read(a->v_codec, false, a->v_width, page + a->v_at, slot, q->row);
    key_of(a->from_v, slot, q->row);
    for (int64_t i = 0; i < a->k_width; i++)
        lane[i % ATTEND_LANES] = fmaf(q->page[i], q->row[i], lane[i % ATTEND_LANES]);
    for (int half = ATTEND_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return a->scale * lane[0];
}

static float score(struct query *q, int64_t pos)
{
    const struct kern_attend *a = q->a;
    const uint8_t *page = a->page[pos / KERN_PAGE];
    const int64_t slot = pos % KERN_PAGE;
    if (a->k_codec == KERN_KV_FROM_V) {
        if (q->at != pos - slot)
            kern_attend_coded_page(a->from_v, kern_attend_base(a, pos / KERN_PAGE), q->turned,
                                   a->k_width, q->page);
        q->at = pos - slot;
        return score_made(q, page, slot);
    }
    if (kern_kv_is_rot(a->k_codec))
        return score_rot(q, page, slot);
    if (kern_kv_is_whole(a->k_codec))
        return score_codes(q, page + a->k_at, slot);
    float dot = 0.0f;
    kern_attend_coded_read(a->k_codec, true, a->k_width, page + a->k_at, slot, q->row);
    for (int64_t i = 0; i < a->k_width; i++)
        dot = fmaf(q->turned[i], q->row[i], dot);
    return a->scale * dot;
}

/* Positions [lo, hi) of a block of 32, of which p are the weights. */
static void mix_codes(const struct kern_attend *a, const float *p, int64_t lo, int64_t hi,
                      float *acc)
{
    const int64_t group = kern_kv_group(a->v_codec, a->v_width), n = hi - lo;
    uint16_t norm[KERN_ATTEND_BLOCK][KERN_KV_WIDE / KERN_KV_GROUP];
    int8_t code[KERN_ATTEND_BLOCK][KERN_KV_WIDE];
    for (int64_t j = 0; j < n; j++)
        kern_kv_codes_read(a->v_codec, false, a->v_width, a->page[(lo + j) / KERN_PAGE] + a->v_at,
                           (lo + j) % KERN_PAGE, norm[j], code[j]);
    for (int64_t g = 0; g < a->v_width / group; g++) {
        float w[KERN_ATTEND_BLOCK], top = 0.0f;
        int32_t u[KERN_ATTEND_BLOCK];
        bool finite = true;
        for (int64_t j = 0; j < n; j++) {
            w[j] = p[j] * quant_f16_to_f32(norm[j][g]);
            finite &= w[j] < INFINITY;
            top = max_of(w[j], top);
        }
        const bool some = finite && top >= CODED_LEAST;
        for (int64_t j = 0; j < n; j++)
            u[j] = some ? (int32_t)rintf(w[j] * (255.0f / top)) : 0;
        const float t = !finite ? NAN : some ? top / 255.0f : 0.0f;
        for (int64_t d = g * group; d < (g + 1) * group; d++) {
            int32_t sum = 0;
            for (int64_t j = 0; j < n; j++)
                sum += u[j] * level_of(a->v_codec, code[j][d]);
            acc[d] = fmaf((float)sum, t, acc[d]);
        }
    }
}

static void mix_values(const struct kern_attend *a, const float *p, int64_t lo, int64_t hi,
                       float *acc, float *row)
{
    for (int64_t pos = lo; pos < hi; pos++) {
        kern_attend_coded_read(a->v_codec, false, a->v_width, a->page[pos / KERN_PAGE] + a->v_at,
                               pos % KERN_PAGE, row);
        for (int64_t d = 0; d < a->v_width; d++)
            acc[d] = fmaf(p[pos - lo], row[d], acc[d]);
    }
}

/* Positions [from, to) of one part, which a row sees. */
static void one_part(struct query *q, int64_t from, int64_t to, struct part *part)
{
    const struct kern_attend *a = q->a;
    float p[ATTEND_PART], lane[ATTEND_LANES] = {0};
    part->max = -INFINITY;
    for (int64_t d = 0; d < a->v_width; d++)
        part->acc[d] = 0.0f;
    for (int64_t pos = from; pos < to; pos++) {
        p[pos - from] = score(q, pos);
        part->max = max_of(p[pos - from], part->max);
    }
    for (int64_t pos = from; pos < to; pos++) {
        p[pos - from] = kern_exp(p[pos - from] - part->max);
        lane[pos % ATTEND_LANES] += p[pos - from];
    }
    for (int half = ATTEND_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    part->sum = lane[0];
    for (int64_t lo = from, hi; lo < to; lo = hi) {
        hi = num_min(to, (lo / KERN_ATTEND_BLOCK + 1) * KERN_ATTEND_BLOCK);
        if (kern_kv_is_whole(a->v_codec))
            mix_codes(a, p + (lo - from), lo, hi, part->acc);
        else
            mix_values(a, p + (lo - from), lo, hi, part->acc, q->row);
    }
}

static void one_split(struct query *q, int64_t split, struct part *all, struct part *part)
{
    int64_t from = num_max(attend_first(q->a, q->pos), split * KERN_SPLIT);
    const int64_t end = num_min(attend_end(q->a, q->pos), (split + 1) * KERN_SPLIT);
    clear(all, q->a->v_width);
    for (int64_t to; from < end; from = to) {
        to = num_min(end, (from / ATTEND_PART + 1) * ATTEND_PART);
        one_part(q, from, to, part);
        join(all, part->max, part->sum, part->acc, q->a->v_width);
    }
}

static void finish(const struct kern_attend *a, int64_t row, int64_t head, struct part *all)
{
    float *out = a->out + row * a->out_stride + head * a->v_width;
    if (a->sink)
        join(all, a->sink[head], 1.0f, NULL, a->v_width);
    for (int64_t d = 0; d < a->v_width; d++)
        out[d] = all->acc[d] / all->sum;
    kern_kv_turn_back(a->v_codec, out, a->v_width);
}

static void rows(const struct kern_attend *a, void *scratch)
{
    struct part all = {.acc = scratch}, split = {.acc = all.acc + a->v_width},
                part = {.acc = split.acc + a->v_width};
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t h = 0; h < a->n_heads; h++) {
            struct query q;
            query_init(&q, a, r, h, part.acc + a->v_width);
            clear(&all, a->v_width);
            const int64_t last = (attend_end(a, q.pos) - 1) / KERN_SPLIT;
            for (int64_t s = attend_first(a, q.pos) / KERN_SPLIT; s <= last; s++) {
                one_split(&q, s, &split, &part);
                join(&all, split.max, split.sum, split.acc, a->v_width);
            }
            finish(a, r, h, &all);
        }
}

static void split(const struct kern_attend *a, int64_t index, float *state, void *scratch)
{
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t h = 0; h < a->n_heads; h++, state += kern_attend_state(a->v_width)) {
            struct part all = {.acc = state + 2}, part = {.acc = scratch};
            struct query q;
            query_init(&q, a, r, h, part.acc + a->v_width);
            one_split(&q, index, &all, &part);
            state[0] = all.max;
            state[1] = all.sum;
        }
}

static void merge(const struct kern_attend *a, int64_t n_splits, const float *state, void *scratch)
{
    struct part all = {.acc = scratch};
    const int64_t step = kern_attend_state(a->v_width);
    for (int64_t r = 0; r < a->n_rows; r++)
        for (int64_t h = 0; h < a->n_heads; h++, state += step) {
            clear(&all, a->v_width);
            for (int64_t s = 0; s < n_splits; s++) {
                const float *one = state + s * a->n_rows * a->n_heads * step;
                join(&all, one[0], one[1], one + 2, a->v_width);
            }
            finish(a, r, h, &all);
        }
}

const struct kern_attend_table kern_attend_coded_ref = {
    .kv_write = kv_write, .rows = rows, .split = split, .merge = merge};

/* ---- the choice of pages (kern/select.h) ---- */

static void page_mass(struct query *q, int64_t page, float *m, float *l)
{
    const int64_t from = page * KERN_PAGE, n = num_min(KERN_PAGE, q->pos + 1 - from);
    float s[KERN_PAGE], lane[ATTEND_LANES] = {0};
    *m = -INFINITY;
    for (int64_t j = 0; j < n; j++) {
        s[j] = score(q, from + j);
        *m = max_of(s[j], *m);
    }
    for (int64_t j = 0; j < n; j++)
        lane[j % ATTEND_LANES] += kern_exp(s[j] - *m);
    for (int half = ATTEND_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    *l = lane[0];
}

static void select_mass(const struct kern_select_task *t, int64_t first, int64_t end,
                        int64_t n_pages, float *mass, void *scratch)
{
    const struct kern_attend a = {.k_codec = KERN_KV_N4R,
                                  .v_codec = KERN_KV_F32,
                                  .k_width = t->k_width,
                                  .v_width = ATTEND_LANES,
                                  .page = t->shadow,
                                  .k_at = t->at,
                                  .q = t->q,
                                  .n_rows = 1,
                                  .n_heads = t->n_heads,
                                  .pos0 = t->pos,
                                  .scale = t->scale};
    for (int64_t h = 0; h < t->n_heads; h++) {
        struct query q;
        query_init(&q, &a, 0, h, scratch);
        for (int64_t i = first; i < end; i++)
            page_mass(&q, i, &mass[(h * n_pages + i) * 2], &mass[(h * n_pages + i) * 2 + 1]);
    }
}

static void select_rest(const struct kern_select_task *t, const float *mass, int64_t n_pages,
                      const int32_t *chosen, int64_t n, float *state)
{
    for (int64_t h = 0; h < t->n_heads;
         h++, mass += 2 * n_pages, state += kern_attend_state(t->v_width)) {
        struct part all = {.acc = state + 2};
        clear(&all, t->v_width);
        for (int64_t i = 0, k = 0; i < n_pages; i++)
            if (k < n && chosen[k] == i)
                k++;
            else
                all.max = max_of(mass[2 * i], all.max);
        for (int64_t i = 0, k = 0; i < n_pages; i++) {
            if (k < n && chosen[k] == i) {
                k++;
                continue;
            }
            const float *mean = (const float *)(const void *)(t->shadow[i] + t->mean_at);
            const float w = mass[2 * i + 1] * kern_exp(mass[2 * i] - all.max);
            all.sum += w;
            for (int64_t d = 0; d < t->v_width; d++)
                all.acc[d] = fmaf(w, mean[d], all.acc[d]);
        }
        state[0] = all.max;
        state[1] = all.sum;
    }
}

const struct kern_select_table kern_select_ref = {.mass = select_mass, .rest = select_rest};
