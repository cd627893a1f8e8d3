/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_attend - keys and values into pages, and attention over them.
 *
 * Prefill: a task is a block of rows of one span and one key/value head, over all splits.
 * Decode: with few rows a task is one split of one key/value head, so that a long context
 * is shared among threads even if there is one head; the splits are merged in a second
 * pass.  Both give the same bits (kern/attend.h).  With several memory nodes those have the splits
 * in turn, where their pages are (kv_pool_memory()).
 */
#include "base/bug.h"
#include "base/num.h"
#include "device/cpu.h"
#include "device/ops.h"

enum {
    /* query vectors of a prefill task, where there are few tasks or another step waits */
    QUERIES = 64,
    /* else: keys and values are converted to f32 once a task (96: 4 % slower) */
    MOST_QUERIES = 192,
    TASKS = 16,            /* of a thread, at least, for more than QUERIES */
    STATE_FLOATS = 1 << 22, /* partial results of all splits, at most */
    OPS_NS = 30             /* multiplications and additions of a slow thread in a nanosecond */
};

static bool is_coded(const struct device_kv *kv)
{
    return kern_kv_needs_coded(kv->k_codec, kv->v_codec);
}

/* ---- appending ---- */

struct append {
    const struct device *d;
    const struct device_kv_append_args *a;
};

static void append_chunk(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct device *d = ((const struct append *)arg)->d;
    const struct device_kv_append_args *a = ((const struct append *)arg)->a;
    const struct device_kv *kv = a->kv;
    const struct device_span *s = &a->span[chunk / kv->n_heads];
    const int64_t h = chunk % kv->n_heads;
    const struct kern_attend_kernels *kern = &d->kern.attend;
    kern_kv_write_fn *const write = is_coded(kv) ? kern->coded.kv_write : kern->exact.kv_write;
    for (int64_t i = 0; i < s->n;) {
        const int64_t pos = s->pos0 + i, slot = pos % KERN_PAGE;
        const int64_t n = num_min(s->n - i, KERN_PAGE - slot);
        uint8_t *page = s->page[pos / KERN_PAGE];
        BUG_IF(!page);
        uint8_t *block = page + kv->at + (size_t)h * kv->head_bytes;
        const float *k = a->k.at + (s->row0 + i) * a->k.stride + h * kv->k_width;
        const float *v = a->v.at + (s->row0 + i) * a->v.stride + h * kv->v_width;
        kern_touch_kv_write(kv->k_codec, true, kv->k_width, block, slot, k, n, a->k.stride);
        kern_touch_kv_write(kv->v_codec, false, kv->v_width, block + kv->v_at, slot, v, n,
                            a->v.stride);
        write(kv->k_codec, true, kv->k_width, block, slot, k, n, a->k.stride);
        write(kv->v_codec, false, kv->v_width, block + kv->v_at, slot, v, n, a->v.stride);
        i += n;
    }
}

void device_cpu_kv_append(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    struct append j = {d, args};
    device_cpu_for(d, j.a->n_spans * j.a->kv->n_heads,
                   j.a->k.n * (j.a->k.width + j.a->v.width), append_chunk, &j);
}

/* ---- attending ---- */

const struct kern_attend_table *device_cpu_attend_kernels(const struct device *d, bool prompt)
{
    const struct kern_attend_kernels *k = &d->kern.attend;
    return d->numerics == DEVICE_FAST && prompt && k->recipe ? &k->fast : &k->exact;
}

struct attend {
    struct device *d;
    const struct device_attend_args *a;
    int64_t group;     /* query heads a key/value head */
    int64_t row_block; /* rows a prefill task */
    bool by_split;
    float *state;      /* by_split: [span][kv head][split][row][query head][state] */
    uint8_t *worker;   /* [workers][worker_bytes] */
    size_t worker_bytes;
    const struct device_share *share; /* by_split: of several nodes; or NULL */
};

const struct kern_attend_table *device_cpu_kernels_of(const struct device *d,
                                                      const struct device_kv *kv, bool prompt)
{
    if (!is_coded(kv))
        return device_cpu_attend_kernels(d, prompt);
    /* whose sums are f32 anyway */
    const bool decoded = d->numerics == DEVICE_REFERENCE && kv->k_codec != KERN_KV_FROM_V;
    return decoded ? &d->kern.attend.decoded : &d->kern.attend.coded;
}

static const struct kern_attend_table *attend_kernels(const struct attend *t,
                                                      const struct device_span *s)
{
    return device_cpu_kernels_of(t->d, t->a->kv, s->prompt);
}

static int64_t window_of(const struct device_attend_args *a, const struct device_span *s)
{
    return s->window ? s->window : a->window;
}

static struct kern_attend job(const struct attend *t, const struct device_span *s, int64_t h,
                              int64_t row, int64_t n)
{
    const struct device_attend_args *a = t->a;
    const struct device_kv *kv = a->kv;
    return (struct kern_attend){
        .k_codec = kv->k_codec,
        .v_codec = kv->v_codec,
        .k_width = kv->k_width,
        .v_width = kv->v_width,
        .page = (const uint8_t *const *)s->page,
        .k_at = kv->at + (size_t)h * kv->head_bytes,
        .v_at = kv->at + (size_t)h * kv->head_bytes + kv->v_at,
        .q = a->q.at + (s->row0 + row) * a->q.stride + h * t->group * kv->k_width,
        .q_stride = a->q.stride,
        .out = a->out.at + (s->row0 + row) * a->out.stride + h * t->group * kv->v_width,
        .out_stride = a->out.stride,
        .n_rows = n,
        .n_heads = t->group,
        .pos0 = s->pos0 + row,
        .through = s->through,
        .window = window_of(a, s),
        .first = s->first ? s->first + row : NULL,
        .scale = a->scale,
        .from_v = kv->from_v,
    };
}

static int64_t n_splits(const struct device_span *s)
{
    return (s->pos0 + s->n - 1) / KERN_SPLIT + 1;
}

static int64_t split_floats(const struct attend *t, const struct device_span *s)
{
    return s->n * t->group * kern_attend_state(t->a->kv->v_width);
}

/* Finds the span that task `chunk` belongs to; count is a span's number of tasks. */
static const struct device_span *find_span(const struct attend *t, int64_t *chunk,
                                           int64_t (*count)(const struct attend *,
                                                            const struct device_span *))
{
    const struct device_span *s = t->a->span;
    for (int64_t n; *chunk >= (n = count(t, s)); s++)
        *chunk -= n;
    return s;
}

static int64_t row_tasks(const struct attend *t, const struct device_span *s)
{
    return num_div_up(s->n, t->row_block) * t->a->kv->n_heads;
}

static int64_t split_tasks(const struct attend *t, const struct device_span *s)
{
    return n_splits(s) * t->a->kv->n_heads;
}

static int64_t head_tasks(const struct attend *t, const struct device_span *s)
{
    (void)s;
    return t->a->kv->n_heads;
}

static void rows_chunk(void *arg, int64_t chunk, int worker)
{
    const struct attend *t = arg;
    const struct device_span *s = find_span(t, &chunk, row_tasks);
    /* The last rows see most: first, so that threads end together. */
    const int64_t row =
        (num_div_up(s->n, t->row_block) - 1 - chunk / t->a->kv->n_heads) * t->row_block;
    const struct kern_attend k =
        job(t, s, chunk % t->a->kv->n_heads, row, num_min(t->row_block, s->n - row));
    kern_touch_attend(&k, t->worker + (size_t)worker * t->worker_bytes);
    attend_kernels(t, s)->rows(&k, t->worker + (size_t)worker * t->worker_bytes);
}

static float *span_state(const struct attend *t, const struct device_span *s, int64_t h)
{
    float *state = t->state;
    for (const struct device_span *b = t->a->span; b < s; b++)
        state += split_floats(t, b) * split_tasks(t, b);
    return state + h * n_splits(s) * split_floats(t, s);
}

/* Splits of a span that are a node's of n. */
static int64_t splits_of(const struct device_span *s, int node, int n)
{
    return num_div_up(num_max(0, n_splits(s) - node), n);
}

/* Which split of which head a chunk is, where nodes have theirs. */
static const struct device_span *find_split(const struct attend *t, int64_t chunk, int64_t *h,
                                            int64_t *split)
{
    const struct device_span *s = t->a->span;
    const int n = pool_nodes(t->d->pool);
    int node = n - 1;
    while (chunk < t->share->from[node])
        node--;
    chunk -= t->share->from[node];
    for (int64_t tasks; chunk >= (tasks = splits_of(s, node, n) * t->a->kv->n_heads); s++)
        chunk -= tasks;
    *h = chunk / splits_of(s, node, n);
    *split = chunk % splits_of(s, node, n) * n + node;
    return s;
}

static void split_chunk(void *arg, int64_t chunk, int worker)
{
    const struct attend *t = arg;
    const struct device_span *s;
    int64_t h, split;
    if (t->share) {
        s = find_split(t, chunk, &h, &split);
    } else {
        s = find_span(t, &chunk, split_tasks);
        h = chunk / n_splits(s);
        split = chunk % n_splits(s);
    }
    const struct kern_attend k = job(t, s, h, 0, s->n);
    float *state = span_state(t, s, h) + split * split_floats(t, s);
    uint8_t *scratch = t->worker + (size_t)worker * t->worker_bytes;
    kern_touch_split(&k, split, state, scratch);
    attend_kernels(t, s)->split(&k, split, state, scratch);
}

static void merge_chunk(void *arg, int64_t chunk, int worker)
{
    const struct attend *t = arg;
    const struct device_span *s = find_span(t, &chunk, head_tasks);
    const struct kern_attend k = job(t, s, chunk, 0, s->n);
    uint8_t *scratch = t->worker + (size_t)worker * t->worker_bytes;
    kern_touch_merge(&k, n_splits(s), span_state(t, s, chunk), scratch);
    attend_kernels(t, s)->merge(&k, n_splits(s), span_state(t, s, chunk), scratch);
}

/* The rows of a task if more than QUERIES: at most MOST_QUERIES, and so few that every thread has
 * tasks. */
static int64_t long_block(const struct attend *t, const struct device *d)
{
    for (int64_t queries = MOST_QUERIES; queries > QUERIES; queries -= QUERIES) {
        struct attend l = *t;
        l.row_block = num_max(1, queries / t->group);
        int64_t tasks = 0;
        for (int64_t i = 0; i < t->a->n_spans; i++)
            tasks += row_tasks(&l, &t->a->span[i]);
        if (tasks >= TASKS * pool_size(d->pool))
            return l.row_block;
    }
    return t->row_block;
}

/* How the work will be cut; the same answer for the scratch and for the run. */
static struct attend attend_plan(const struct device *d, const struct device_attend_args *a)
{
    struct attend t = {.a = a, .group = a->n_q_heads / a->kv->n_heads};
    t.row_block = num_max(1, QUERIES / t.group);
    int64_t tasks = 0, floats = 0, rows = 1;
    bool split = false, windows = false;
    for (int64_t i = 0; i < a->n_spans; i++) {
        tasks += row_tasks(&t, &a->span[i]);
        floats += split_floats(&t, &a->span[i]) * split_tasks(&t, &a->span[i]);
        rows = num_max(rows, a->span[i].n);
        split |= n_splits(&a->span[i]) > 1;
        windows |= window_of(a, &a->span[i]) > 0;
    }
    /* Windowed rows look at one or two splits only: nothing to share. */
    t.by_split = split && !windows && rows <= t.row_block && floats <= STATE_FLOATS &&
                 (device_in_pieces(d) || tasks < 4 * pool_size(d->pool));
    if (d->dry)
        t.row_block = num_max(1, MOST_QUERIES / t.group);
    else if (!t.by_split && !device_in_pieces(d))
        t.row_block = long_block(&t, d);
    const struct device_span worst = {.n = rows};
    const struct kern_attend k = job(&t, &worst, 0, 0, num_min(rows, t.row_block));
    t.worker_bytes = (kern_attend_scratch(&k) + 63) & ~(size_t)63;
    return t;
}

static size_t all_scratch(const struct device *d, const struct device_attend_args *a, bool most)
{
    struct attend t = attend_plan(d, a);
    if (most) { /* parts of it may be cut in any way */
        int64_t rows = 1;
        for (int64_t i = 0; i < a->n_spans; i++)
            rows = num_max(rows, a->span[i].n);
        const struct device_span worst = {.n = rows};
        const struct kern_attend k =
            job(&t, &worst, 0, 0, num_min(rows, num_max(1, MOST_QUERIES / t.group)));
        t.worker_bytes = (kern_attend_scratch(&k) + 63) & ~(size_t)63;
    }
    const size_t workers = t.worker_bytes * (size_t)pool_size(d->pool);
    /* a later step may split where this one does not; or a part of it */
    if (most || d->dry || device_in_pieces(d))
        return workers + STATE_FLOATS * sizeof(float);
    size_t floats = 0;
    for (int64_t i = 0; t.by_split && i < a->n_spans; i++)
        floats += (size_t)(split_floats(&t, &a->span[i]) * split_tasks(&t, &a->span[i]));
    return workers + floats * sizeof(float);
}

size_t device_cpu_attend_scratch(const struct device *d, const struct device_attend_args *a)
{
    size_t sparse = 0;
    for (int64_t i = 0; i < a->n_spans; i++) {
        const int64_t n = d->dry && !a->window && !device_sparse_refuses(d, a->kv)
                              ? a->span[i].n
                              : device_cpu_few_rows(d, a, &a->span[i]);
        const struct device_span part = device_span_part(&a->span[i], a->span[i].n - n, n);
        const size_t bytes = n ? device_cpu_sparse_scratch(d, a, &part) : 0;
        sparse = bytes > sparse ? bytes : sparse;
    }
    const size_t all = all_scratch(d, a, sparse > 0);
    return sparse > all ? sparse : all;
}

/* The share of values that rows which attend to few positions are multiplied by, as a span's
 * requester has counted so far; all, if nobody counts. */
static double share_of(const struct device_span *s)
{
    return s->seen && s->seen->seen ? (double)s->seen->kept / (double)s->seen->seen : 1.0;
}

/* Each span reads what it sees once: means of pages are of all values. */
struct device_cost device_cpu_attend_cost(const struct device *d,
                                          const struct device_attend_args *a)
{
    const struct device_kv *kv = a->kv;
    const double bytes = (double)(kern_kv_block_bytes(kv->k_codec, true, kv->k_width) +
                                  kern_kv_block_bytes(kv->v_codec, false, kv->v_width)) /
                         (double)KERN_PAGE;
    struct device_cost c = {0, 0};
    for (int64_t i = 0; i < a->n_spans; i++) {
        const struct device_span *s = &a->span[i];
        const int64_t w = window_of(a, s), end = s->pos0 + s->n,
                      first = w ? num_max(0, s->pos0 + 1 - w) : 0;
        const int64_t sparse = end - device_cpu_few_rows(d, a, s);
        const double share = sparse < end ? share_of(s) : 1.0;
        double keys = 0, values = 0;
        for (int64_t p = s->pos0; p < end; p++) {
            const double seen = (double)(w ? num_min(w, p + 1) : p + 1);
            keys += seen;
            values += p < sparse ? seen : seen * share;
        }
        c.bytes += (double)(end - first) * (double)kv->n_heads * bytes;
        c.ops += 2.0 * (double)a->n_q_heads *
                 (keys * (double)kv->k_width + values * (double)kv->v_width);
    }
    return c;
}

/* The chunks of each node, one after the other. */
static void share_splits(const struct attend *t, struct device_share *share)
{
    const int n = pool_nodes(t->d->pool);
    int64_t at = 0;
    for (int node = 0; node < n; node++) {
        share->from[node] = at;
        for (int64_t i = 0; i < t->a->n_spans; i++)
            at += splits_of(&t->a->span[i], node, n) * t->a->kv->n_heads;
        share->n[node] = at - share->from[node];
    }
}

static void attend(struct device *d, const struct device_attend_args *a, void *scratch)
{
    struct attend t = attend_plan(d, a);
    t.d = d;
    t.worker = scratch;
    t.state = (float *)(void *)(t.worker + t.worker_bytes * (size_t)pool_size(d->pool));
    int64_t n = 0, work = 0;
    for (int64_t i = 0; i < a->n_spans; i++) {
        const struct device_span *s = &a->span[i];
        n += t.by_split ? split_tasks(&t, s) : row_tasks(&t, s);
        const int64_t w = window_of(a, s), seen = w ? num_min(w, s->pos0 + s->n) : s->pos0 + s->n;
        work += s->n * seen * a->q.width;
    }
    struct device_share share;
    if (t.by_split && pool_nodes(d->pool) > 1) {
        share_splits(&t, &share);
        t.share = &share;
        device_cpu_for_placed(d, &share, work, split_chunk, &t);
    } else {
        device_cpu_for(d, n, work, t.by_split ? split_chunk : rows_chunk, &t);
    }
    if (t.by_split)
        device_cpu_for(d, a->n_spans * a->kv->n_heads, work, merge_chunk, &t);
}

/* Rows of a span that are split together when its tasks over all splits would keep another step
 * waiting for too long; 0: they would not. */
static int64_t piece_rows(const struct device *d, const struct device_attend_args *a,
                          const struct device_span *s)
{
    if (!device_in_pieces(d) || window_of(a, s) || n_splits(s) == 1)
        return 0;
    const struct attend t = {.a = a, .group = a->n_q_heads / a->kv->n_heads};
    const int64_t block = num_min(s->n, num_max(1, QUERIES / t.group));
    /* row and key */
    const double each = 2.0 * (double)(t.group * (a->kv->k_width + a->kv->v_width));
    const double ops = (double)d->between->piece_ns * (double)OPS_NS;
    if (each * (double)(block * (s->pos0 + s->n)) < ops)
        return 0;
    const struct device_span row = {.row0 = s->row0, .n = 1, .pos0 = s->pos0 + s->n - 1};
    const int64_t most = STATE_FLOATS / (split_floats(&t, &row) * split_tasks(&t, &row));
    const double short_ones = 2 * ops / (each * (double)KERN_SPLIT);
    return num_max(1,
                   num_min(num_min(block, most), short_ones < 1e6 ? (int64_t)short_ones : block));
}

/* Spans of which all rows see all that is before them. */
static void attend_to_all(struct device *d, const struct device_attend_args *a, void *scratch)
{
    bool pieces = false;
    for (int64_t i = 0; i < a->n_spans; i++)
        pieces |= piece_rows(d, a, &a->span[i]) > 0;
    if (!pieces) {
        attend(d, a, scratch);
        return;
    }
    for (int64_t i = 0; i < a->n_spans; i++) {
        const struct device_span *s = &a->span[i];
        const int64_t each = piece_rows(d, a, s) ? piece_rows(d, a, s) : s->n;
        for (int64_t row = 0; row < s->n && device_runs(d); row += each) {
            const struct device_span part = device_span_part(s, row, num_min(each, s->n - row));
            struct device_attend_args b = *a;
            b.span = &part;
            b.n_spans = 1;
            attend(d, &b, scratch);
            device_may_stop(d, 0);
        }
    }
}

void device_cpu_attend(struct device *d, const void *args, void *scratch)
{
    const struct device_attend_args *a = args;
    struct device_attend_args b = *a;
    for (int64_t i = 0, n; i < a->n_spans && device_runs(d); i += n) {
        const struct device_span *s = &a->span[i];
        for (n = 0; i + n < a->n_spans && !device_cpu_few_rows(d, a, &s[n]);)
            n++;
        b.span = s;
        b.n_spans = n;
        if (n) {
            attend_to_all(d, &b, scratch);
            continue;
        }
        n = 1;
        const int64_t sparse = device_cpu_few_rows(d, a, s);
        const struct device_span part = device_span_part(s, 0, s->n - sparse),
                                 rest = device_span_part(s, s->n - sparse, sparse);
        b.span = &part;
        b.n_spans = part.n > 0;
        if (part.n)
            attend_to_all(d, &b, scratch);
        device_cpu_sparse(d, a, &rest, scratch);
    }
}
