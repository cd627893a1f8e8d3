/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_latent - attention whose keys are its values, over a window of rows and over rows
 * that stand for whole blocks of positions; how those are made; how they are chosen.
 *
 * A row's list (window ascending, then compressed rows ascending, then the sink) depends on
 * its position and its query alone, and positions in the list take the place of token
 * positions in kern/attend.h.  So the bits do not depend on how a prompt was cut.
 */
#include "base/bug.h"
#include "base/num.h"
#include "device/ops.h"
#include <math.h>
#include <string.h>

static size_t round64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static void *row_at(const struct device_stream *s, const struct device_span *span, int64_t i)
{
    const int64_t per_page = KERN_PAGE / s->every;
    uint8_t *page = span->page[i / per_page];
    BUG_IF(!page);
    return page + s->at + (size_t)(i % per_page) * kern_row_bytes(s->codec, s->width, s->tail);
}

static void read_row(const struct device_stream *s, const struct device_span *span, int64_t i,
                     float *dst)
{
    kern_row_read(s->codec, s->width, s->tail, row_at(s, span, i), dst);
}

/* The span of batch row i, and its position. */
static const struct device_span *span_of(const struct device_span *span, int64_t i, int64_t *pos)
{
    while (i >= span->row0 + span->n)
        span++;
    *pos = span->pos0 + i - span->row0;
    return span;
}

/* ---- appending ---- */

void device_cpu_rows_append(struct device *d, const void *args, void *scratch)
{
    (void)d;
    (void)scratch;
    const struct device_rows_append_args *a = args;
    for (int64_t i = 0; i < a->x.n; i++) {
        int64_t pos;
        const struct device_span *span = span_of(a->span, i, &pos);
        kern_row_write(a->s->codec, a->s->width, a->s->tail, row_at(a->s, span, pos),
                       a->x.at + i * a->x.stride);
    }
}

/* ---- compressing ---- */

struct compress_job {
    struct device *d;
    const struct device_compress_args *a;
    float *scratch;         /* [workers][per_worker] */
    int64_t per_worker;
};

static int64_t n_members(const struct device_compress *c)
{
    return c->overlap ? 2 * c->ratio : c->ratio;
}

static int64_t blocks_of(const struct device_compress *c, const struct device_span *s)
{
    return (s->pos0 + s->n) / c->ratio - s->pos0 / c->ratio;
}

static void compress_chunk(void *arg, int64_t chunk, int worker)
{
    const struct compress_job *job = arg;
    const struct device_compress *c = job->a->c;
    const struct kern_math_table *k = &job->d->kern.math;
    const struct device_span *in = job->a->in, *out = job->a->out;
    for (int64_t n; chunk >= (n = blocks_of(c, in)); in++, out++)
        chunk -= n;
    const int64_t block = in->pos0 / c->ratio + chunk, width = c->out.width;
    const int64_t n = n_members(c), half = c->overlap ? width : 0, wide = width + half;
    /* gate and value [width][n]: members of a dimension side by side */
    float *gate = job->scratch + worker * job->per_worker, *value = gate + width * n;
    float *row = value + width * n;
    for (int64_t i = 0; i < n; i++) {
        const int64_t pos = (block + 1) * c->ratio - n + i;
        const bool own = !c->overlap || i >= c->ratio;
        if (pos >= 0)
            read_row(&c->in, in, pos, row);
        for (int64_t e = 0; e < width; e++) {
            gate[e * n + i] = pos < 0 ? -INFINITY : row[wide + (own ? half : 0) + e];
            value[e * n + i] = pos < 0 ? 0.0f : row[(own ? half : 0) + e];
        }
    }
    float *y = row;
    for (int64_t e = 0; e < width; e++) {
        k->softmax(gate + e * n, gate + e * n, n);
        y[e] = k->dot(gate + e * n, value + e * n, n);
    }
    k->norm(y, y, c->norm->at, width, c->eps);
    float *cs = gate;
    kern_rope_angles(cs, block * c->ratio, c->inv_freq, c->n_pairs);
    for (int64_t p = 0, first = width - 2 * c->n_pairs; p < c->n_pairs; p++) {
        const float u = y[first + 2 * p], v = y[first + 2 * p + 1];
        y[first + 2 * p] = u * cs[2 * p] - v * cs[2 * p + 1];
        y[first + 2 * p + 1] = v * cs[2 * p] + u * cs[2 * p + 1];
    }
    kern_row_write(c->out.codec, width, c->out.tail, row_at(&c->out, out, block), y);
}

static int64_t compress_floats(const struct device_compress *c)
{
    return (2 * n_members(c) * c->out.width + c->in.width + 15) / 16 * 16;
}

size_t device_cpu_compress_scratch(const struct device *d, const struct device_compress_args *a)
{
    return (size_t)(compress_floats(a->c) * pool_size(d->pool)) * sizeof(float);
}

void device_cpu_compress(struct device *d, const void *args, void *scratch)
{
    struct compress_job j = {d, args, scratch, 0};
    int64_t n = 0;
    j.per_worker = compress_floats(j.a->c);
    for (int64_t i = 0; i < j.a->n_spans; i++)
        n += blocks_of(j.a->c, &j.a->in[i]);
    device_cpu_for(d, n, n * j.per_worker * 8, compress_chunk, &j);
}

/* ---- choosing ---- */

struct select_job {
    struct device *d;
    const struct device_select_args *a;
    float *scratch; /* [workers][per_worker]: scores, a copy of them, one key */
    int64_t per_worker;
};

/* The k-th largest of x[0, n), which is reordered. */
static float kth_largest(float *x, int64_t n, int64_t k)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const float pivot = x[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (x[i] > pivot)
                i++;
            while (pivot > x[j])
                j--;
            if (i <= j) {
                const float t = x[i];
                x[i++] = x[j];
                x[j--] = t;
            }
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            break;
    }
    return x[k - 1];
}

static void select_chunk(void *arg, int64_t i, int worker)
{
    const struct select_job *job = arg;
    const struct device_select_args *a = job->a;
    const struct device_select *s = a->s;
    const struct kern_math_table *k = &job->d->kern.math;
    int64_t pos;
    const struct device_span *span = span_of(a->span, i, &pos);
    const int64_t n = (pos + 1) / s->keys.every, width = s->keys.width;
    int32_t *sel = a->sel + i * s->top_k;
    a->count[i] = (int32_t)num_min(n, s->top_k);
    if (n <= s->top_k) {
        for (int32_t w = 0; w < n; w++)
            sel[w] = w;
        return;
    }
    float *score = job->scratch + worker * job->per_worker, *copy = score + (n + 15) / 16 * 16;
    float *key = copy + (n + 15) / 16 * 16;
    const float *q = a->q.at + i * a->q.stride, *weight = a->weight.at + i * a->weight.stride;
    for (int64_t w = 0; w < n; w++) {
        read_row(&s->keys, span, w, key);
        float sum = 0.0f;
        for (int64_t h = 0; h < s->n_heads; h++) {
            const float dot = k->dot(q + h * width, key, width);
            sum += weight[h] * (dot > 0.0f ? dot : 0.0f);
        }
        /* A score that is no number is never chosen; the stream that made it shows it. */
        score[w] = copy[w] = sum - sum >= 0.0f ? sum : -INFINITY;
    }
    const float edge = kth_largest(copy, n, s->top_k);
    int64_t above = 0, taken = 0;
    for (int64_t w = 0; w < n; w++)
        above += score[w] > edge;
    for (int64_t w = 0, equal = s->top_k - above; w < n && taken < s->top_k; w++)
        if (score[w] > edge || (score[w] >= edge && equal-- > 0))
            sel[taken++] = (int32_t)w;
}

static int64_t select_floats(const struct device_select_args *a)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->n_spans; i++)
        n = num_max(n, (a->span[i].pos0 + a->span[i].n) / a->s->keys.every);
    return 2 * ((n + 15) / 16 * 16) + (a->s->keys.width + 15) / 16 * 16;
}

size_t device_cpu_select_scratch(const struct device *d, const struct device_select_args *a)
{
    return (size_t)(select_floats(a) * pool_size(d->pool)) * sizeof(float);
}

void device_cpu_select(struct device *d, const void *args, void *scratch)
{
    struct select_job j = {d, args, scratch, 0};
    j.per_worker = select_floats(j.a);
    device_cpu_for(d, j.a->q.n, j.a->q.n * j.per_worker * j.a->s->n_heads, select_chunk, &j);
}

/* ---- attending ---- */

struct latent_job {
    struct device *d;
    const struct device_attend_latent_args *a;
    int64_t head_blocks, heads;  /* tasks a row, heads a task */
    size_t block_bytes[2];       /* keys, values of one page */
    uint8_t *scratch;            /* [workers][per_worker] */
    size_t per_worker;
    size_t state_at, run_at;     /* in a worker's scratch: states, the kernel's own */
    int64_t max_splits;
};

enum { SPLIT_PAGES = KERN_SPLIT / KERN_PAGE };

/* Rows that position pos sees, the far ones behind the near ones. */
static int64_t list_length(const struct device_attend_latent_args *a, int64_t i, int64_t pos,
                           int64_t *n_near)
{
    *n_near = num_min(pos + 1, a->a->window);
    if (!a->a->far.width)
        return *n_near;
    return *n_near + (a->a->sel ? a->a->count[i] : (pos + 1) / a->a->far.every);
}

/* Copies rows [from, to) of the list into pages of keys and of values. */
static void gather(const struct latent_job *job, int64_t i, int64_t pos, int64_t n_near,
                   int64_t from, int64_t to, const struct device_span *near,
                   const struct device_span *far, uint8_t *pages, float *row)
{
    const struct device_latent *l = job->a->a;
    const int64_t width = l->near.width;
    for (int64_t r = from; r < to; r++) {
        if (r < n_near)
            read_row(&l->near, near, pos + 1 - n_near + r, row);
        else
            read_row(&l->far, far, l->sel ? l->sel[i * l->top_k + r - n_near] : r - n_near, row);
        uint8_t *page = pages + (size_t)((r - from) / KERN_PAGE) * (job->block_bytes[0] + job->block_bytes[1]);
        job->d->kern.attend.kv_write(KERN_KV_F32, true, width, page, r % KERN_PAGE, row, 1, width);
        job->d->kern.attend.kv_write(KERN_KV_F32, false, width, page + job->block_bytes[0],
                                     r % KERN_PAGE, row, 1, width);
    }
}

static void latent_chunk(void *arg, int64_t chunk, int worker)
{
    const struct latent_job *job = arg;
    const struct device_attend_latent_args *a = job->a;
    const int64_t i = chunk / job->head_blocks, h0 = chunk % job->head_blocks * job->heads;
    const int64_t n_heads = num_min(job->heads, a->n_heads - h0), width = a->a->near.width;
    int64_t pos, n_near;
    const struct device_span *near = span_of(a->near, i, &pos);
    const struct device_span *far = a->far ? a->far + (near - a->near) : NULL;
    const int64_t n = list_length(a, i, pos, &n_near), n_splits = num_div_up(n, KERN_SPLIT);
    uint8_t *pages = job->scratch + (size_t)worker * job->per_worker;
    float *state = (float *)(void *)(pages + job->state_at), *row = (float *)(void *)(pages + job->run_at);
    void *run = row + (width + 15) / 16 * 16;
    const uint8_t *table[SPLIT_PAGES];
    for (int p = 0; p < SPLIT_PAGES; p++)
        table[p] = pages + (size_t)p * (job->block_bytes[0] + job->block_bytes[1]);
    struct kern_attend k = {
        .k_width = width, .v_width = width, .page = table, .v_at = job->block_bytes[0],
        .q = a->q.at + i * a->q.stride + h0 * width, .q_stride = a->q.stride,
        .out = a->out.at + i * a->out.stride + h0 * width, .out_stride = a->out.stride,
        .n_rows = 1, .n_heads = n_heads, .scale = a->scale,
    };
    const int64_t one = n_heads * kern_attend_state(width);
    for (int64_t s = 0; s < n_splits; s++) {
        const int64_t to = num_min(n, (s + 1) * KERN_SPLIT);
        gather(job, i, pos, n_near, s * KERN_SPLIT, to, near, far, pages, row);
        k.pos0 = to - s * KERN_SPLIT - 1; /* the split's rows, counted from its first */
        job->d->kern.attend.split(&k, 0, state + s * one, run);
    }
    int64_t n_states = n_splits;
    if (a->a->sink) { /* one more score, without a value */
        float *sink = state + n_states++ * one;
        memset(sink, 0, (size_t)one * sizeof *sink);
        for (int64_t h = 0; h < n_heads; h++) {
            sink[h * kern_attend_state(width)] = a->a->sink[h0 + h];
            sink[h * kern_attend_state(width) + 1] = 1.0f;
        }
    }
    job->d->kern.attend.merge(&k, n_states, state, run);
}

static struct latent_job latent_plan(const struct device *d,
                                     const struct device_attend_latent_args *a)
{
    struct latent_job j = {.a = a};
    const int64_t width = a->a->near.width;
    /* Few rows: heads are shared out too; each task gathers the list again. */
    j.head_blocks = num_max(1, num_min(a->n_heads / 4, num_div_up(2 * pool_size(d->pool), num_max(1, a->q.n))));
    j.heads = num_div_up(a->n_heads, j.head_blocks);
    j.head_blocks = num_div_up(a->n_heads, j.heads);
    j.block_bytes[0] = kern_kv_block_bytes(KERN_KV_F32, true, width);
    j.block_bytes[1] = kern_kv_block_bytes(KERN_KV_F32, false, width);
    int64_t most = a->a->window;
    for (int64_t i = 0; a->a->far.width && i < a->n_spans; i++)
        most = num_max(most, a->a->window + (a->far[i].pos0 + a->far[i].n) / a->a->far.every);
    if (a->a->sel)
        most = num_min(most, a->a->window + a->a->top_k);
    j.max_splits = num_div_up(most, KERN_SPLIT);
    const int64_t pages = num_min(SPLIT_PAGES, num_div_up(most, KERN_PAGE));
    j.state_at = round64((size_t)pages * (j.block_bytes[0] + j.block_bytes[1]));
    j.run_at = j.state_at + round64((size_t)((j.max_splits + 1) * j.heads * kern_attend_state(width)) * sizeof(float));
    const struct kern_attend k = {.k_width = width, .v_width = width, .n_rows = 1, .n_heads = j.heads};
    j.per_worker = round64(j.run_at + round64((size_t)width * sizeof(float)) + kern_attend_scratch(&k));
    return j;
}

size_t device_cpu_attend_latent_scratch(const struct device *d,
                                        const struct device_attend_latent_args *a)
{
    /* With one row a task has the fewest heads; a dry run must cover many rows, too. */
    const struct latent_job j = latent_plan(d, a);
    struct device_attend_latent_args all = *a;
    all.q.n = 1 << 20;
    const struct latent_job many = latent_plan(d, &all);
    const size_t most = j.per_worker > many.per_worker ? j.per_worker : many.per_worker;
    return (d->dry ? most : j.per_worker) * (size_t)pool_size(d->pool);
}

void device_cpu_attend_latent(struct device *d, const void *args, void *scratch)
{
    struct latent_job j = latent_plan(d, args);
    j.d = d;
    j.scratch = scratch;
    const int64_t n = j.a->q.n * j.head_blocks;
    device_cpu_for(d, n, n * j.heads * j.a->a->near.width * 64, latent_chunk, &j);
}
