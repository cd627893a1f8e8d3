/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_rows - streams of rows: appended, read back, pooled into compressed rows, and chosen by an
 * indexer's score.
 */
#include "base/num.h"
#include "device/cpu.h"
#include "device/cpu_rows.h"
#include <math.h>
#include <string.h>

enum {
    APPEND_ROWS = 16,  /* rows of an appending task */
    MAX_MEMBERS = 256, /* of a compressed row */
    KEYS_RUN = 2048,   /* keys that one task scores */
};

/* ---- appending ---- */

struct append_job { const struct device *d; const struct device_rows_append_args *a; };

static void append_chunk(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct append_job *job = arg;
    const struct device_rows_append_args *a = job->a;
    const struct kern_row form = device_cpu_row_form(a->s);
    const int64_t end = num_min(a->x.n, (chunk + 1) * APPEND_ROWS);
    for (int64_t i = chunk * APPEND_ROWS; i < end; i++) {
        int64_t pos;
        const struct device_span *span = device_cpu_span(a->span, i, &pos);
        if (!span->page[pos / (KERN_PAGE / a->s->every)])
            continue;
        float *row = device_cpu_row(a->s, span, pos);
        kern_touch_row_write(&form, row, a->x.at + i * a->x.stride);
        job->d->kern.latent.write(&form, row, a->x.at + i * a->x.stride);
    }
}

void device_cpu_rows_append(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    struct append_job j = {d, args};
    device_cpu_for(d, num_div_up(j.a->x.n, APPEND_ROWS), j.a->x.n * j.a->s->width, append_chunk,
                   &j);
}

/* ---- reading ---- */

struct read_job { const struct device_rows_read_args *a; };

static void read_chunk(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct device_rows_read_args *a = ((const struct read_job *)arg)->a;
    const int64_t end = num_min(a->y.n, (chunk + 1) * APPEND_ROWS);
    for (int64_t i = chunk * APPEND_ROWS; i < end; i++) {
        int64_t pos;
        const struct device_span *span = device_cpu_span(a->span, i, &pos);
        float *to = a->y.at + i * a->y.stride;
        if (pos >= 0 && span->page[pos / (KERN_PAGE / a->s->every)])
            kern_row_read(a->s->codec, a->s->width, a->s->tail, device_cpu_row(a->s, span, pos),
                          to);
        else
            memset(to, 0, (size_t)a->s->width * sizeof *to);
    }
}

void device_cpu_rows_read(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    struct read_job j = {args};
    device_cpu_for(d, num_div_up(j.a->y.n, APPEND_ROWS), j.a->y.n * j.a->s->width, read_chunk, &j);
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

static int64_t whole16(int64_t n)
{
    return (n + 15) / 16 * 16;
}

static void rotate(float *y, int64_t width, const float *cs, int64_t n_pairs)
{
    for (int64_t p = 0, i = width - 2 * n_pairs; p < n_pairs; p++, i += 2) {
        const float u = y[i], v = y[i + 1], c = cs[2 * p], s = cs[2 * p + 1];
        y[i] = u * c - v * s;
        y[i + 1] = v * c + u * s;
    }
}

static void compress_chunk(void *arg, int64_t chunk, int worker)
{
    const struct compress_job *job = arg;
    const struct device_compress *c = job->a->c;
    const struct kern_table *k = &job->d->kern;
    const struct device_span *in = job->a->in, *out = job->a->out;
    for (int64_t n; chunk >= (n = blocks_of(c, in)); in++, out++)
        chunk -= n;
    const int64_t block = in->pos0 / c->ratio + chunk, width = c->out.width, n = n_members(c);
    const int64_t half = c->overlap ? width : 0, wide = width + half;
    const float *value[MAX_MEMBERS], *gate[MAX_MEMBERS];
    int64_t members = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t pos = (block + 1) * c->ratio - n + i;
        if (pos < 0)
            continue;
        const float *row = c->step.at && pos >= in->pos0
                               ? c->step.at + (in->row0 + pos - in->pos0) * c->step.stride
                               : device_cpu_row(&c->in, in, pos);
        value[members] = row + (c->overlap && i >= c->ratio ? half : 0);
        gate[members] = value[members] + wide;
        members++;
    }
    float *y = job->scratch + worker * job->per_worker, *top = y + whole16(width);
    float *sum = top + whole16(width), *cs = sum + whole16(width);
    kern_touch_pool(value, gate, members, width, y, top, sum);
    k->latent.pool(value, gate, members, width, y, top, sum);
    kern_touch_in(c->norm->at, width);
    k->math.norm(y, y, c->norm->at, width, c->eps);
    kern_rope_angles(cs, block * c->ratio, c->inv_freq, c->n_pairs);
    rotate(y, width, cs, c->n_pairs);
    if (c->hadamard)
        kern_row_hadamard(y, width);
    const struct kern_row form = device_cpu_row_form(&c->out);
    kern_touch_row_write(&form, device_cpu_row(&c->out, out, block), y);
    k->latent.write(&form, device_cpu_row(&c->out, out, block), y);
}

static int64_t compress_floats(const struct device_compress *c)
{
    return 3 * whole16(c->out.width) + whole16(2 * c->n_pairs);
}

size_t device_cpu_compress_scratch(const struct device *d, const struct device_compress_args *a)
{
    return (size_t)(compress_floats(a->c) * pool_size(d->pool)) * sizeof(float);
}

void device_cpu_compress(struct device *d, const void *args, void *scratch)
{
    struct compress_job j = {d, args, scratch, 0};
    int64_t n = 0;
    BUG_IF(n_members(j.a->c) > MAX_MEMBERS || j.a->c->in.codec != KERN_KV_F32);
    j.per_worker = compress_floats(j.a->c);
    for (int64_t i = 0; i < j.a->n_spans; i++)
        n += blocks_of(j.a->c, &j.a->in[i]);
    device_cpu_for(d, n, n * n_members(j.a->c) * j.a->c->out.width * 8, compress_chunk, &j);
}

/* ---- choosing ---- */

/*
 * With fewer rows than threads the keys of a row are scored in runs, so that one row in a
 * long context keeps all threads busy; with more, a task is a row.  A row's scores are in a
 * slot: slot i of row i, or one for each worker; after them is room for the best ones.  With
 * several memory nodes runs are of keys that are on one node (kv_pool_memory()).
 */
struct select_job {
    struct device *d;
    const struct device_select_args *a;
    float *slot;     /* [threads][room + most_best() + query] */
    float *scratch;  /* [threads][kernel's] */
    int64_t room, query;
    int64_t keys;            /* of the row that sees most */
    int64_t split, together; /* keys that are together; how many such splits a run has */
    struct device_share share;
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

/* The largest k of numbers that come one by one.  Few of many are ever put: a random one that
 * comes after m others is among the best of them with probability k / m. */
struct best {
    float *x; /* [cap] */
    int64_t n, k, cap;
    float edge; /* what is not above it is not among the best, or ties with the last of them */
};

static int64_t most_best(int64_t k)
{
    return whole16(k + num_max(k, 256));
}

static void best_cut(struct best *b)
{
    if (b->n < b->k)
        return;
    b->edge = kth_largest(b->x, b->n, b->k);
    b->n = b->k;
}

/* Whether one of 16 is at least edge: few are, and vectors show it. */
static bool any_of_16(const float *x, float edge)
{
    int any = 0;
    for (int i = 0; i < 16; i++)
        any |= x[i] >= edge;
    return any;
}

static void best_find(struct best *b, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (i % 16 == 0)
            while (i + 16 <= n && !any_of_16(x + i, b->edge))
                i += 16;
        if (i == n || !(x[i] > b->edge))
            continue;
        b->x[b->n++] = x[i];
        if (b->n == b->cap)
            best_cut(b);
    }
    best_cut(b);
}

/* Floats that the queries of a row take as the kernel wants them; 0: as they are. */
static int64_t query_room(const struct device_select *s)
{
    return s->keys.codec == KERN_KV_FP4
               ? whole16(s->n_heads * (int64_t)kern_query4_bytes(s->keys.width) / 4)
               : 0;
}

static float *query_of(const struct select_job *job, float *slot)
{
    return slot + job->room + most_best(job->a->s->top_k);
}

/* The keys that a row sees. */
static int64_t keys_of(const struct device_select_args *a, int64_t i)
{
    int64_t pos;
    device_cpu_span(a->span, i, &pos);
    return (pos + 1) / a->s->keys.every;
}

/* Before a row's keys are scored in `slot`. */
static void begin_row(const struct select_job *job, int64_t i, float *slot)
{
    const struct device_select *s = job->a->s;
    const float *q = job->a->q.at + i * job->a->q.stride;
    if (!job->query || keys_of(job->a, i) <= s->top_k)
        return;
    kern_touch_query4(s->keys.width, q, s->n_heads, query_of(job, slot));
    kern_query4(&job->d->kern.latent, s->keys.width, q, s->n_heads, query_of(job, slot));
}

/* Scores of the keys [from, to) that batch row i sees, if it sees more than it may choose. */
static void score_keys(const struct select_job *job, int64_t i, int64_t from, int64_t to,
                       float *slot, int worker)
{
    const struct device_select_args *a = job->a;
    const struct device_select *s = a->s;
    const int64_t width = s->keys.width, per_page = KERN_PAGE / s->keys.every;
    float *score = slot;
    int64_t pos;
    const struct device_span *span = device_cpu_span(a->span, i, &pos);
    const int64_t n = (pos + 1) / s->keys.every;
    to = n > s->top_k ? num_min(to, n) : 0;
    for (int64_t w = from; w < to;) {
        const int64_t m = num_min(per_page - w % per_page, to - w);
        const int64_t after = num_min(per_page, to - w - m);
        const struct kern_scores k = {.form = device_cpu_row_form(&s->keys),
                                      .keys = device_cpu_row(&s->keys, span, w),
                                      .n = m,
                                      .q = job->query ? query_of(job, slot)
                                                      : a->q.at + i * a->q.stride,
                                      .weight = a->weight.at + i * a->weight.stride,
                                      .n_heads = s->n_heads,
                                      .next = after ? device_cpu_row(&s->keys, span, w + m) : NULL,
                                      .n_next = after};
        kern_touch_scores(&k, score + w, job->scratch + worker * kern_latent_scratch(width));
        job->d->kern.latent.scores(&k, score + w,
                                   job->scratch + worker * kern_latent_scratch(width));
        w += m;
    }
    /* A score that is no number is never chosen; the stream that made it shows it. */
    for (int64_t w = from; w < to; w++)
        score[w] = score[w] - score[w] >= 0.0f ? score[w] : -INFINITY;
}

static void choose_row(const struct select_job *job, int64_t i, float *slot)
{
    const struct device_select_args *a = job->a;
    const int64_t top_k = a->s->top_k;
    int64_t equal = top_k, taken = 0;
    const int64_t n = keys_of(a, i);
    int32_t *sel = a->sel + i * top_k;
    a->count[i] = (int32_t)num_min(n, top_k);
    if (n <= top_k) {
        for (int32_t w = 0; w < n; w++)
            sel[w] = w;
        return;
    }
    struct best best = {slot + job->room, 0, top_k, most_best(top_k), -INFINITY};
    best_find(&best, slot, n);
    for (int64_t w = 0; w < best.n; w++)
        equal -= best.x[w] > best.edge;
    for (int64_t w = 0; w < n && taken < top_k; w++) {
        if (w % 16 == 0)
            while (w + 16 <= n && !any_of_16(slot + w, best.edge))
                w += 16;
        if (w < n && slot[w] >= best.edge && (slot[w] > best.edge || equal-- > 0))
            sel[taken++] = (int32_t)w;
    }
}

static float *slot_at(const struct select_job *job, int64_t i)
{
    return job->slot + i * (job->room + most_best(job->a->s->top_k) + job->query);
}

static void row_chunk(void *arg, int64_t i, int worker)
{
    const struct select_job *job = arg;
    float *slot = slot_at(job, worker);
    begin_row(job, i, slot);
    score_keys(job, i, 0, INT64_MAX, slot, worker);
    choose_row(job, i, slot);
}

/* Runs of a row's keys that are a node's of n: it has every n-th split. */
static int64_t runs_of(const struct select_job *job, int node, int n)
{
    const int64_t splits = num_div_up(job->keys, job->split);
    return num_div_up(num_div_up(num_max(0, splits - node), n), job->together);
}

static void run_chunk(void *arg, int64_t chunk, int worker)
{
    const struct select_job *job = arg;
    const int n = pool_nodes(job->d->pool);
    int node = n - 1;
    while (chunk < job->share.from[node])
        node--;
    chunk -= job->share.from[node];
    const int64_t runs = runs_of(job, node, n), i = chunk / runs;
    for (int64_t k = 0; k < job->together; k++) {
        const int64_t from = ((chunk % runs * job->together + k) * n + node) * job->split;
        score_keys(job, i, from, from + job->split, slot_at(job, i), worker);
    }
}

/* Keys of n rows in runs, those of each node for its threads. */
static void score_runs(struct select_job *job, int64_t n, int64_t work)
{
    const int n_nodes = pool_nodes(job->d->pool);
    const int64_t each = n_nodes > 1 ? KERN_SPLIT / job->a->s->keys.every : KEYS_RUN;
    int64_t at = 0;
    job->split = num_min(each, KEYS_RUN);
    job->together = KEYS_RUN / job->split;
    for (int k = 0; k < n_nodes; k++) {
        job->share.from[k] = at;
        job->share.n[k] = n * runs_of(job, k, n_nodes);
        at += job->share.n[k];
    }
    if (n_nodes > 1)
        device_cpu_for_placed(job->d, &job->share, work, run_chunk, job);
    else
        device_cpu_for(job->d, at, work, run_chunk, job);
}

static void begin_chunk(void *arg, int64_t i, int worker)
{
    (void)worker;
    const struct select_job *job = arg;
    begin_row(job, i, slot_at(job, i));
}

static void choose_chunk(void *arg, int64_t i, int worker)
{
    (void)worker;
    const struct select_job *job = arg;
    choose_row(job, i, slot_at(job, i));
}

/* The most keys that a row sees. */
static int64_t most_keys(const struct device_select_args *a)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->n_spans; i++)
        n = num_max(n, (a->span[i].pos0 + a->span[i].n) / a->s->keys.every);
    return n;
}

size_t device_cpu_select_scratch(const struct device *d, const struct device_select_args *a)
{
    const int64_t each = whole16(most_keys(a)) + most_best(a->s->top_k) + query_room(a->s) +
                         kern_latent_scratch(a->s->keys.width);
    return (size_t)(each * pool_size(d->pool)) * sizeof(float);
}

void device_cpu_select(struct device *d, const void *args, void *scratch)
{
    struct select_job j = {.d = d, .a = args, .slot = scratch};
    const int64_t n = j.a->q.n, keys = most_keys(j.a), threads = pool_size(d->pool);
    j.room = whole16(keys);
    j.query = query_room(j.a->s);
    j.keys = num_max(1, keys);
    j.scratch = slot_at(&j, threads);
    const int64_t work = keys > j.a->s->top_k ? n * keys * j.a->q.width : n * j.a->s->top_k;
    if (n > threads) {
        device_cpu_for(d, n, work, row_chunk, &j);
        return;
    }
    device_cpu_for(d, n, j.query * n * 8, begin_chunk, &j);
    score_runs(&j, n, work);
    device_cpu_for(d, n, n * keys, choose_chunk, &j);
}
