/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_dense - attention where every row sees every row, and what else encoders need.
 *
 * Scores and weighted values are products with float weights (kern/matmul.h): a tile of keys
 * [256][width] is a matrix, and so is a tile of values, transposed.  A chunk of work is some
 * queries of a head; of a tile it holds the scores of these queries only.
 */
#include "base/bug.h"
#include "base/num.h"
#include "device/cpu_matmul.h"
#include "device/cpu.h"
#include "device/ops.h"
#include <math.h>
#include <string.h>

enum { TILE = DEVICE_DENSE_TILE, QUERIES = 128 };

static_assert((int)TILE <= (int)KERN_SLICE_FLOATS, "values of a tile are one slice of a sum");

static int64_t whole16(int64_t n)
{
    return (n + 15) / 16 * 16;
}

/* The matrices of a tile of n rows: keys W[n][width], values W[width][n].  Sizes were checked when
 * device_dense_make() was called. */
static struct kern_matrix tile_matrix(int64_t out, int64_t in)
{
    struct kern_matrix m = {0};
    const ingle_status s = kern_matrix_init(&m, QUANT_F32, out, in, NULL);
    BUG_IF(s);
    return m;
}

void device_cpu_dense_bytes(int64_t width, size_t *k, size_t *v)
{
    const struct kern_matrix keys = tile_matrix(TILE, width), values = tile_matrix(width, TILE);
    *k = kern_matrix_bytes(&keys);
    *v = kern_matrix_bytes(&values);
}

/* Tile t of head h: keys, then values. */
static uint8_t *tile_at(const struct device_dense *kv, int64_t h, int64_t t)
{
    return kv->at + (size_t)(t * kv->n_heads + h) * (kv->k_bytes + kv->v_bytes);
}

/* ---- keys and values in ---- */

struct put_job {
    const struct device_dense_put_args *a;
    float *scratch; /* f32 [workers][TILE * width] */
};

static void put_chunk(void *arg, int64_t chunk, int worker)
{
    const struct put_job *j = arg;
    const struct device_dense_put_args *a = j->a;
    const struct device_dense *kv = a->to;
    const int64_t h = chunk % kv->n_heads, i = chunk / kv->n_heads * TILE, w = kv->width,
                  n = num_min(TILE, a->k.n - i);
    float *rows = j->scratch + worker * TILE * w;
    struct kern_matrix m = tile_matrix(n, w);
    m.at = tile_at(kv, h, (a->row0 + i) / TILE);
    for (int64_t r = 0; r < n; r++)
        memcpy(rows + r * w, a->k.at + (i + r) * a->k.stride + h * w, (size_t)w * sizeof *rows);
    kern_pack(&m, 0, m.n_panels, rows);
    uint8_t *values = m.at + kv->k_bytes;
    m = tile_matrix(w, n);
    m.at = values;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < w; c++)
            rows[c * n + r] = a->v.at[(i + r) * a->v.stride + h * w + c];
    kern_pack(&m, 0, m.n_panels, rows);
}

size_t device_cpu_dense_put_scratch(const struct device *d, const struct device_dense_put_args *a)
{
    return (size_t)pool_size(d->pool) * TILE * (size_t)a->to->width * sizeof(float);
}

void device_cpu_dense_put(struct device *d, const void *args, void *scratch)
{
    const struct device_dense_put_args *a = args;
    BUG_IF(a->row0 % TILE || (a->k.n % TILE && a->row0 + a->k.n != a->to->n));
    struct put_job j = {a, scratch};
    device_cpu_for(d, num_div_up(a->k.n, TILE) * a->to->n_heads, 8 * a->k.n * a->k.width, put_chunk,
                   &j);
}

/* ---- attention ---- */

struct dense_job {
    struct device *d;
    const struct device_dense_attend_args *a;
    float *scratch; /* [workers][per_worker] */
    int64_t per_worker;
};

/* What a chunk has for its queries. */
struct dense_part {
    float *score;       /* [QUERIES][TILE] */
    float *value;       /* [QUERIES][whole16(width)]: of a tile ... */
    float *sum;         /* ... and of all so far */
    float *most, *mass; /* [QUERIES]: the largest score, and the sum of exp(score - most) */
};

static struct dense_part part_of(const struct dense_job *j, int worker)
{
    const int64_t wide = whole16(j->a->kv->width);
    float *at = j->scratch + worker * j->per_worker;
    struct dense_part p = {.score = at};
    p.value = p.score + QUERIES * TILE;
    p.sum = p.value + QUERIES * wide;
    p.most = p.sum + QUERIES * wide;
    p.mass = p.most + QUERIES;
    return p;
}

static void product(const struct dense_job *j, const struct kern_matrix *w, const float *x,
                    int64_t stride, int64_t n, float *y, int64_t y_stride)
{
    struct kern_act act;
    kern_act_init(&act, KERN_ACT_F32, n, w->in, x, stride, NULL);
    const struct kern_matmul m = {w, &act, NULL, n, y, y_stride};
    kern_touch_matmul(&m, 0, w->n_panels);
    kern_matmul_choose(&j->d->kern.matmul, w, n)(&m, 0, w->n_panels);
}

/* Row i of a tile of n keys joins: its scores become weights, whose sum is 1. */
static void join_row(const struct kern_math_table *k, const struct dense_part *p, int64_t i,
                     int64_t n, bool first, float *old, float *new)
{
    float *s = p->score + i * TILE;
    kern_touch_out(s, n);
    const int64_t best = k->argmax(s, n);
    const float top = best < 0 ? s[0] : s[best];
    k->softmax(s, s, n);
    const float mass = best < 0 ? s[0] : 1.0f / s[best];
    const float most = first || top > p->most[i] ? top : p->most[i];
    *old = first ? 0.0f : kern_exp(p->most[i] - most);
    *new = mass *kern_exp(top - most);
    p->mass[i] = first ? *new : fmaf(p->mass[i], *old, *new);
    p->most[i] = most;
}

static void attend_tile(const struct dense_job *j, const struct dense_part *p, const float *q,
                        int64_t n_q, int64_t h, int64_t t)
{
    const struct device_dense *kv = j->a->kv;
    const struct kern_math_table *k = &j->d->kern.math;
    const int64_t n = num_min(TILE, kv->n - t * TILE), w = kv->width, wide = whole16(w);
    float old[QUERIES], new[QUERIES];
    struct kern_matrix keys = tile_matrix(n, w), values = tile_matrix(w, n);
    keys.at = tile_at(kv, h, t);
    values.at = keys.at + kv->k_bytes;
    product(j, &keys, q, j->a->q.stride, n_q, p->score, TILE);
    for (int64_t i = 0; i < n_q; i++)
        join_row(k, p, i, n, t == 0, &old[i], &new[i]);
    product(j, &values, p->score, TILE, n_q, p->value, wide);
    for (int64_t i = 0; i < n_q; i++) {
        float *sum = p->sum + i * wide, *value = p->value + i * wide;
        kern_touch(sum, value, w);
        k->scale(t ? value : sum, value, new[i], w);
        if (t) { /* sum = sum * old + value */
            k->add_scaled(value, sum, old[i], w);
            memcpy(sum, value, (size_t)w * sizeof *sum);
        }
    }
}

static void attend_chunk(void *arg, int64_t chunk, int worker)
{
    const struct dense_job *j = arg;
    const struct device_dense_attend_args *a = j->a;
    const struct device_dense *kv = a->kv;
    const int64_t h = chunk % kv->n_heads, i = chunk / kv->n_heads * QUERIES, w = kv->width,
                  n_q = num_min(QUERIES, a->q.n - i), wide = whole16(w);
    const struct dense_part p = part_of(j, worker);
    const float *q = a->q.at + i * a->q.stride + h * w;
    for (int64_t t = 0; t < num_div_up(kv->n, TILE); t++)
        attend_tile(j, &p, q, n_q, h, t);
    for (int64_t r = 0; r < n_q; r++)
        j->d->kern.math.scale(a->out.at + (i + r) * a->out.stride + h * w, p.sum + r * wide,
                              1.0f / p.mass[r], w);
}

static int64_t dense_floats(const struct device_dense_attend_args *a)
{
    return QUERIES * (TILE + 2 * whole16(a->kv->width) + 2);
}

size_t device_cpu_dense_attend_scratch(const struct device *d,
                                       const struct device_dense_attend_args *a)
{
    return (size_t)pool_size(d->pool) * (size_t)dense_floats(a) * sizeof(float);
}

struct device_cost device_cpu_dense_attend_cost(const struct device_dense_attend_args *a)
{
    const double pairs = (double)a->q.n * (double)a->kv->n;
    return (struct device_cost){0, 4.0 * pairs * (double)a->kv->n_heads * (double)a->kv->width};
}

void device_cpu_dense_attend(struct device *d, const void *args, void *scratch)
{
    const struct device_dense_attend_args *a = args;
    struct dense_job j = {d, a, scratch, dense_floats(a)};
    device_cpu_for(d, num_div_up(a->q.n, QUERIES) * a->kv->n_heads,
                   a->q.n * a->kv->n * a->kv->n_heads, attend_chunk, &j);
}

/* ---- by row ---- */

struct each_job {
    struct device *d;
    const struct device_each_args *a;
    int64_t grain;
};

static void each_chunk(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct each_job *j = arg;
    const int64_t end = num_min(j->a->n, (chunk + 1) * j->grain);
    for (int64_t i = chunk * j->grain; i < end; i++)
        j->a->fn(&j->d->kern, j->a->arg, i);
}

void device_cpu_each(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    const struct device_each_args *a = args;
    struct each_job j = {d, a, num_max(1, a->n / (8 * pool_size(d->pool)))};
    j.grain = num_max(1, num_min(j.grain, DEVICE_SMALL_WORK / num_max(1, a->work)));
    device_cpu_for(d, num_div_up(a->n, j.grain), a->n * a->work, each_chunk, &j);
}

static void clamp_row(const struct kern_table *k, void *arg, int64_t i)
{
    (void)k;
    const struct device_clamp_args *a = arg;
    const float *x = a->x.at + i * a->x.stride, least = a->least, most = a->most;
    float *y = a->y.at + i * a->y.stride;
    for (int64_t c = 0; c < a->y.width; c++) {
        const float v = x[c] < least ? least : x[c];
        y[c] = v > most ? most : v;
    }
}

void device_cpu_clamp(struct device *d, const void *args, void *scratch)
{
    struct device_clamp_args a = *(const struct device_clamp_args *)args;
    device_cpu_each(d, &(struct device_each_args){a.y.n, a.y.width, clamp_row, &a}, scratch);
}

static void layer_norm_row(const struct kern_table *k, void *arg, int64_t i)
{
    (void)k;
    const struct device_layer_norm_args *a = arg;
    const float *x = a->x.at + i * a->x.stride, *w = a->w->at, *b = a->b ? a->b->at : NULL;
    float *y = a->y.at + i * a->y.stride;
    const int64_t n = a->x.width;
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < n; c++)
        mean += (double)x[c];
    mean /= (double)n;
    for (int64_t c = 0; c < n; c++)
        variance += ((double)x[c] - mean) * ((double)x[c] - mean);
    const float by = (float)(1.0 / sqrt(variance / (double)n + (double)a->eps)), m = (float)mean;
    for (int64_t c = 0; c < n; c++)
        y[c] = (x[c] - m) * by * w[c] + (b ? b[c] : 0.0f);
}

void device_cpu_layer_norm(struct device *d, const void *args, void *scratch)
{
    struct device_layer_norm_args a = *(const struct device_layer_norm_args *)args;
    device_cpu_each(d, &(struct device_each_args){a.y.n, 4 * a.y.width, layer_norm_row, &a},
                    scratch);
}
