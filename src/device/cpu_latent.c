/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_latent - attention whose keys are its values, over a window of rows and over rows
 * that stand for whole blocks of positions.
 *
 * A row's list (window ascending, then compressed rows ascending, then the sink) depends on
 * its position and its query alone, and positions in the list take the place of token
 * positions in kern/attend.h.  So the bits do not depend on how a prompt was cut.
 *
 * The list is laid out in pages as attention reads them.  Three ways, the same bits:
 *   few rows       the threads lay out a row's list together, then each takes some heads;
 *   shared rows    rows of one span that see a full window of whole pages and every
 *                  compressed row have the same pages after the window: laid out once;
 *   rows           each task lays out the list of its own row.
 * What threads of several memory nodes share is laid out once for each of them, in its memory: all
 * heads need all rows, and a stored row is a quarter of what it is in pages.
 */
#include "base/num.h"
#include "device/cpu.h"
#include "device/cpu_rows.h"
#include "device/near.h"

enum {
    OWN_ROWS = 2048,              /* the longest list that a task lays out by itself */
    GATHER_ROWS = 4 * KERN_ROW_TILE,
    LEAST_HEADS = 4,
};

struct latent_job {
    struct device *d;
    const struct device_attend_latent_args *a;
    size_t key_bytes, page_bytes; /* of a block of keys, of a page of keys and values */
    int64_t most_pages;           /* of any list */
    uint8_t *shared;              /* [most_pages] */
    uint8_t *near;                /* the same in the memory of each node (near.h), or NULL */
    uint8_t *worker;              /* [threads][worker_bytes]: pages, table, the kernel's */
    size_t worker_bytes, table_at, run_at;
    /* What a run of tasks works on. */
    const struct device_span *far;
    int64_t row0;                 /* batch row of task 0; or the one row */
    int64_t heads;                /* a task's */
    int64_t to;                   /* rows of the list, or compressed rows, to be laid out */
    bool far_shared;              /* the shared pages hold the span's compressed rows */
    int64_t each;                 /* tasks of a node that lays them out for itself; or 0 */
};

static size_t round64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* ---- lists ---- */

/* What the query at batch row i sees. */
struct list {
    const struct device_span *near, *far;
    const int32_t *sel; /* the far rows, or NULL: all */
    int64_t first, n_near, n;
};

static int64_t n_far(const struct device_attend_latent_args *a, int64_t i, int64_t pos)
{
    if (!a->a->far.width)
        return 0;
    return a->a->top_k ? a->a->count[i] : (pos + 1) / a->a->far.every;
}

static struct list list_of(const struct device_attend_latent_args *a, int64_t i, int64_t *pos)
{
    struct list l = {.near = device_cpu_span(a->near, i, pos)};
    l.far = a->far ? a->far + (l.near - a->near) : NULL;
    l.n_near = num_min(*pos + 1, l.near->window ? l.near->window : a->a->window);
    l.first = *pos + 1 - l.n_near;
    l.n = l.n_near + n_far(a, i, *pos);
    l.sel = a->a->top_k ? a->a->sel + i * a->a->top_k : NULL;
    return l;
}

static const void *list_row(const struct device_latent *s, const struct list *l, int64_t r)
{
    if (r < l->n_near)
        return device_cpu_row(&s->near, l->near, l->first + r);
    r -= l->n_near;
    return device_cpu_row(&s->far, l->far, l->sel ? l->sel[r] : r);
}

/* Rows [from, to) of the list into pages; from is a multiple of 16. */
static void lay_out(const struct latent_job *job, const struct list *l, int64_t from, int64_t to,
                    uint8_t *pages)
{
    const struct kern_row form = device_cpu_row_form(&job->a->a->near);
    for (int64_t r = from; r < to; r += KERN_ROW_TILE) {
        const void *row[KERN_ROW_TILE];
        const int64_t n = num_min(KERN_ROW_TILE, to - r);
        uint8_t *page = pages + (size_t)(r / KERN_PAGE) * job->page_bytes;
        for (int64_t i = 0; i < n; i++)
            row[i] = list_row(job->a->a, l, r + i);
        kern_touch_gather(&form, row, n, r % KERN_PAGE, page, page + job->key_bytes);
        job->d->kern.latent.gather(&form, row, n, r % KERN_PAGE, page, page + job->key_bytes);
    }
}

/* The shared pages that threads of a node read. */
static uint8_t *shared_of(const struct latent_job *job, int node)
{
    return job->each ? device_near_of(job->d, job->near, node) : job->shared;
}

/* ---- one task ---- */

static bool is_prompt(const struct device_attend_latent_args *a, int64_t i)
{
    int64_t pos;
    return device_cpu_span(a->near, i, &pos)->prompt;
}

static void attend(const struct latent_job *job, int64_t i, int64_t h0, int64_t n_heads, int64_t n,
                   const uint8_t *const *table, void *scratch)
{
    const struct device_attend_latent_args *a = job->a;
    const int64_t width = a->a->near.width;
    const enum kern_kv_codec block = kern_row_block(a->a->near.codec);
    const struct kern_attend k = {
        .k_codec = block, .v_codec = block, .k_width = width, .v_width = width,
        .page = table, .v_at = job->key_bytes,
        .q = a->q.at + i * a->q.stride + h0 * width, .q_stride = a->q.stride,
        .out = a->out.at + i * a->out.stride + h0 * width, .out_stride = a->out.stride,
        .n_rows = 1, .n_heads = n_heads, .pos0 = n - 1, .scale = a->scale,
        .sink = a->a->sink ? a->a->sink->at + h0 : NULL,
    };
    kern_touch_attend(&k, scratch);
    device_cpu_attend_kernels(job->d, is_prompt(a, i))->rows(&k, scratch);
}

/* Whether the list of the row at pos has the shared pages after a full window. */
static bool is_shared(const struct device_latent *s, int64_t pos)
{
    return pos + 1 >= s->window && (!s->top_k || (pos + 1) / s->far.every <= s->top_k);
}

/* A whole row, laid out by the task that attends, except for what is shared. */
static void row_chunk(void *arg, int64_t chunk, int worker)
{
    const struct latent_job *job = arg;
    const int64_t i = job->row0 + chunk;
    uint8_t *own = job->worker + (size_t)worker * job->worker_bytes;
    const uint8_t **table = (const uint8_t **)(void *)(own + job->table_at);
    int64_t pos;
    const struct list l = list_of(job->a, i, &pos);
    const bool shared = job->far_shared && is_shared(job->a->a, pos);
    const uint8_t *pages = shared_of(job, pool_node_of(job->d->pool, worker));
    const int64_t n_own = shared ? l.n_near : l.n;
    lay_out(job, &l, 0, n_own, own);
    for (int64_t p = 0; p * KERN_PAGE < l.n; p++)
        table[p] = p * KERN_PAGE < n_own
                       ? own + (size_t)p * job->page_bytes
                       : pages + (size_t)(p - n_own / KERN_PAGE) * job->page_bytes;
    attend(job, i, 0, job->a->n_heads, l.n, table, own + job->run_at);
}

/* Some rows of the list of batch row row0, or of the compressed rows of a span. */
static void lay_out_chunk(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct latent_job *job = arg;
    const int node = job->each ? (int)(chunk / job->each) : 0;
    const int64_t from = (chunk - node * job->each) * GATHER_ROWS;
    int64_t pos;
    struct list l;
    if (job->far_shared)
        l = (struct list){.far = job->far, .n = job->to};
    else
        l = list_of(job->a, job->row0, &pos);
    lay_out(job, &l, from, num_min(job->to, from + GATHER_ROWS), shared_of(job, node));
}

/* Before tasks that read the first job->to shared rows. */
static void lay_out_shared(struct latent_job *j)
{
    const int64_t n = num_div_up(j->to, GATHER_ROWS), work = j->to * j->a->a->near.width;
    j->each = j->near && work > j->d->small_work ? n : 0;
    if (!j->each) {
        device_cpu_for(j->d, n, work, lay_out_chunk, j);
        return;
    }
    struct device_share share;
    for (int k = 0; k < pool_nodes(j->d->pool); k++) {
        share.from[k] = k * n;
        share.n[k] = n;
    }
    device_cpu_for_placed(j->d, &share, work, lay_out_chunk, j);
}

static void heads_chunk(void *arg, int64_t chunk, int worker)
{
    const struct latent_job *job = arg;
    const int64_t h0 = chunk * job->heads;
    const uint8_t *pages = shared_of(job, pool_node_of(job->d->pool, worker));
    uint8_t *own = job->worker + (size_t)worker * job->worker_bytes;
    const uint8_t **table = (const uint8_t **)(void *)(own + job->table_at);
    for (int64_t p = 0; p * KERN_PAGE < job->to; p++)
        table[p] = pages + (size_t)p * job->page_bytes;
    attend(job, job->row0, h0, num_min(job->heads, job->a->n_heads - h0), job->to, table,
           own + job->run_at);
}

/* ---- the plan ---- */

/* The longest list of a span's rows, or a bound of it. */
static int64_t most_rows(const struct device_attend_latent_args *a, const struct device_span *far)
{
    if (!far || !a->a->far.width)
        return a->a->window;
    const int64_t all = (far->pos0 + far->n) / a->a->far.every;
    return a->a->window + (a->a->top_k ? num_min(a->a->top_k, all) : all);
}

static struct latent_job latent_plan(const struct device *d,
                                     const struct device_attend_latent_args *a)
{
    struct latent_job j = {.a = a};
    const struct device_latent *s = a->a;
    const enum kern_kv_codec block = kern_row_block(s->near.codec);
    int64_t most = s->window;
    for (int64_t i = 0; i < a->n_spans; i++)
        most = num_max(most, most_rows(a, a->far ? &a->far[i] : NULL));
    j.key_bytes = kern_kv_block_bytes(block, true, s->near.width);
    j.page_bytes = j.key_bytes + kern_kv_block_bytes(block, false, s->near.width);
    j.most_pages = num_div_up(most, KERN_PAGE);
    j.table_at = (size_t)num_min(j.most_pages, OWN_ROWS / KERN_PAGE) * j.page_bytes;
    j.run_at = round64(j.table_at + (size_t)j.most_pages * sizeof(uint8_t *));
    const struct kern_attend k = {
        .k_width = s->near.width, .v_width = s->near.width, .n_rows = 1, .n_heads = a->n_heads};
    j.worker_bytes = round64(j.run_at + kern_attend_scratch(&k));
    j.heads =
        num_max(num_min(LEAST_HEADS, a->n_heads), num_div_up(a->n_heads, 2 * pool_size(d->pool)));
    return j;
}

size_t device_cpu_attend_latent_scratch(const struct device *d,
                                        const struct device_attend_latent_args *a)
{
    const struct latent_job j = latent_plan(d, a);
    return (size_t)j.most_pages * j.page_bytes + (size_t)pool_size(d->pool) * j.worker_bytes;
}

size_t device_cpu_attend_latent_near(const struct device *d,
                                     const struct device_attend_latent_args *a)
{
    const struct latent_job j = latent_plan(d, a);
    return (size_t)j.most_pages * j.page_bytes;
}

/* How many rows of a span can share pages. */
static int64_t shared_rows(const struct device_attend_latent_args *a, const struct device_span *s)
{
    const struct device_latent *l = a->a;
    if (!l->far.width || l->window % KERN_PAGE ||
        l->window + num_max(l->top_k, l->window / l->far.every) > OWN_ROWS)
        return 0;
    const int64_t first = num_max(s->pos0, l->window - 1), end = s->pos0 + s->n;
    const int64_t last = l->top_k ? num_min(end, (l->top_k + 1) * l->far.every - 1) : end;
    return num_max(0, last - first);
}

static void few_rows(struct latent_job *j, int64_t row0, int64_t n)
{
    const int64_t width = j->a->a->near.width;
    j->far_shared = false;
    for (int64_t i = 0; i < n; i++) {
        int64_t pos;
        j->row0 = row0 + i;
        j->to = list_of(j->a, j->row0, &pos).n;
        lay_out_shared(j);
        device_cpu_for(j->d, num_div_up(j->a->n_heads, j->heads), j->to * width * j->a->n_heads,
                       heads_chunk, j);
    }
}

static void own_rows(struct latent_job *j, int64_t row0, int64_t n)
{
    j->row0 = row0;
    device_cpu_for(j->d, n, n * j->a->a->window * j->a->q.width, row_chunk, j);
    j->far_shared = false;
    j->each = 0;
}

static void share_rows(struct latent_job *j, const struct device_span *near,
                       const struct device_span *far)
{
    const struct device_latent *l = j->a->a;
    const int64_t all = (near->pos0 + near->n) / l->far.every;
    j->far = far;
    j->far_shared = true;
    j->to = l->top_k ? num_min(all, l->top_k) : all;
    lay_out_shared(j);
    own_rows(j, near->row0, near->n);
}

void device_cpu_attend_latent(struct device *d, const void *args, void *scratch)
{
    struct latent_job j = latent_plan(d, args);
    const struct device_attend_latent_args *a = j.a;
    const struct device_stream *near = &a->a->near, *far = &a->a->far;
    BUG_IF(far->width &&
           (far->width != near->width || far->codec != near->codec || far->tail != near->tail));
    j.d = d;
    j.shared = scratch;
    j.worker = j.shared + (size_t)j.most_pages * j.page_bytes;
    j.near = device_in_pieces(d) ? NULL : device_near_take(d, (size_t)j.most_pages * j.page_bytes);
    if (a->q.n < 2 * pool_size(d->pool)) {
        few_rows(&j, 0, a->q.n);
        return;
    }
    int64_t row0 = 0, n = 0; /* rows that wait to be tasks of their own */
    for (int64_t i = 0; i < a->n_spans; i++) {
        const struct device_span *s = &a->near[i];
        const bool share = shared_rows(a, s) > 1;
        if (!share && most_rows(a, a->far ? &a->far[i] : NULL) <= OWN_ROWS) {
            n += s->n;
            continue;
        }
        own_rows(&j, row0, n);
        if (share)
            share_rows(&j, s, &a->far[i]);
        else
            few_rows(&j, s->row0, s->n);
        row0 = s->row0 + s->n;
        n = 0;
    }
    own_rows(&j, row0, n);
}
