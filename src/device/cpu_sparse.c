/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_sparse - attention of a prompt's rows to few positions (kern/sparse.h).
 *
 * A task is a block of rows of one span and one key/value head, over all splits: many rows, since
 * keys are rounded once a task. With few rows, or where another step waits, a task is one split of
 * one head: what a row begins with is found before, the splits are merged after.  Both give the
 * same bits.
 */
#include "base/num.h"
#include "device/cpu.h"
#include "device/ops.h"

enum {
    PAIRS = 1024,          /* of row and head: a task, if there are enough of them */
    LEAST_PAIRS = 64,
    STATE_FLOATS = 1 << 22 /* partial results of all splits, at most */
};

struct sparse {
    struct device *d;
    const struct device_attend_args *a;
    const struct device_span *s;
    int64_t group;     /* query heads a key/value head */
    int64_t row_block; /* rows a task */
    int64_t n_splits;
    bool by_split;
    float *missed;     /* [rows][query heads] */
    int32_t *kept;     /* the same */
    float *first;      /* by_split: [kv head][row][group][2] */
    float *state;      /* by_split: [kv head][split][row][group][state] */
    uint8_t *worker;
    size_t worker_bytes;
};

const char *device_sparse_refuses(const struct device *d, const struct device_kv *kv)
{
    if (d->numerics == DEVICE_REFERENCE)
        return "--numerics reference computes with all of them";
    if (!d->kern.sparse.name)
        return "this processor multiplies whole numbers no faster than others";
    return kern_sparse_refuses(kv->k_codec, kv->v_codec, kv->k_width, kv->v_width);
}

int64_t device_cpu_few_rows(const struct device *d, const struct device_attend_args *a,
                            const struct device_span *s)
{
    if (!s->sparse || !s->prompt || s->window || a->window || device_sparse_refuses(d, a->kv))
        return 0;
    return num_max(0, num_min(s->n, s->pos0 + s->n - s->sparse->from));
}

static struct kern_sparse_task job(const struct sparse *f, int64_t h, int64_t row, int64_t n)
{
    const struct device_attend_args *a = f->a;
    const struct device_kv *kv = a->kv;
    const struct device_span *s = f->s;
    const size_t at = kv->at + (size_t)h * kv->head_bytes;
    return (struct kern_sparse_task){
        .attend = {.k_codec = kv->k_codec,
                   .v_codec = kv->v_codec,
                   .k_width = kv->k_width,
                   .v_width = kv->v_width,
                   .page = (const uint8_t *const *)s->page,
                   .k_at = at,
                   .v_at = at + kv->v_at,
                   .q = a->q.at + (s->row0 + row) * a->q.stride + h * f->group * kv->k_width,
                   .q_stride = a->q.stride,
                   .out = a->out.at + (s->row0 + row) * a->out.stride + h * f->group * kv->v_width,
                   .out_stride = a->out.stride,
                   .n_rows = n,
                   .n_heads = f->group,
                   .pos0 = s->pos0 + row,
                   .scale = a->scale,
                   .from_v = kv->from_v},
        .eps = s->sparse ? s->sparse->eps : 0,
        .whole = s->sparse ? s->sparse->whole : NULL,
        .missed = f->missed + row * a->n_q_heads + h * f->group,
        .kept = f->kept + row * a->n_q_heads + h * f->group,
        .pair_stride = a->n_q_heads};
}

static uint8_t *scratch_of(const struct sparse *f, int worker)
{
    return f->worker + (size_t)worker * f->worker_bytes;
}

static void rows_chunk(void *arg, int64_t chunk, int worker)
{
    const struct sparse *f = arg;
    const int64_t n_heads = f->a->kv->n_heads;
    /* The last rows see most: first, so that threads end together. */
    const int64_t row = (num_div_up(f->s->n, f->row_block) - 1 - chunk / n_heads) * f->row_block;
    const struct kern_sparse_task t =
        job(f, chunk % n_heads, row, num_min(f->row_block, f->s->n - row));
    kern_touch_sparse(&t, scratch_of(f, worker));
    f->d->kern.sparse.table.rows(&t, scratch_of(f, worker));
}

static float *first_of(const struct sparse *f, int64_t h)
{
    return f->first + h * f->s->n * f->group * 2;
}

static int64_t split_floats(const struct sparse *f)
{
    return f->s->n * f->group * kern_sparse_state(f->a->kv->v_width);
}

static float *state_of(const struct sparse *f, int64_t h, int64_t split)
{
    return f->state + (h * f->n_splits + split) * split_floats(f);
}

static void select_chunk(void *arg, int64_t h, int worker)
{
    const struct sparse *f = arg;
    const struct kern_sparse_task t = job(f, h, 0, f->s->n);
    kern_touch_sparse_select(&t, first_of(f, h), scratch_of(f, worker));
    f->d->kern.sparse.table.select(&t, first_of(f, h), scratch_of(f, worker));
}

static void split_chunk(void *arg, int64_t chunk, int worker)
{
    const struct sparse *f = arg;
    const int64_t h = chunk / f->n_splits, split = chunk % f->n_splits;
    const struct kern_sparse_task t = job(f, h, 0, f->s->n);
    kern_touch_sparse_split(&t, split, first_of(f, h), state_of(f, h, split),
                            scratch_of(f, worker));
    f->d->kern.sparse.table.split(&t, split, first_of(f, h), state_of(f, h, split),
                               scratch_of(f, worker));
}

static void merge_chunk(void *arg, int64_t h, int worker)
{
    const struct sparse *f = arg;
    const struct kern_sparse_task t = job(f, h, 0, f->s->n);
    kern_touch_sparse_merge(&t, f->n_splits, state_of(f, h, 0), scratch_of(f, worker));
    f->d->kern.sparse.table.merge(&t, f->n_splits, state_of(f, h, 0), scratch_of(f, worker));
}

static struct sparse plan(const struct device *d, const struct device_attend_args *a,
                       const struct device_span *s)
{
    struct sparse f = {.a = a,
                    .s = s,
                    .group = a->n_q_heads / a->kv->n_heads,
                    .n_splits = (s->pos0 + s->n - 1) / KERN_SPLIT + 1};
    const int64_t n_heads = a->kv->n_heads, threads = pool_size(d->pool);
    const int64_t least = num_min(s->n, num_max(1, LEAST_PAIRS / f.group));
    f.row_block = num_min(s->n, num_max(1, PAIRS / f.group));
    while (!d->dry && f.row_block > least && num_div_up(s->n, f.row_block) * n_heads < 2 * threads)
        f.row_block = num_max(least, f.row_block / 2);
    f.by_split = !d->dry && f.n_splits > 1 && f.row_block >= s->n &&
                 split_floats(&f) * f.n_splits * n_heads <= STATE_FLOATS &&
                 (device_in_pieces(d) || n_heads < 2 * threads);
    const struct kern_sparse_task t = job(&f, 0, 0, f.row_block);
    f.worker_bytes = (kern_sparse_scratch(&t.attend) + 63) & ~(size_t)63;
    return f;
}

/* Rows of a span that are computed together: where another step waits so few that they may be
 * split. */
static int64_t piece_rows(const struct device *d, const struct device_attend_args *a,
                          const struct device_span *s)
{
    const int64_t splits = (s->pos0 + s->n - 1) / KERN_SPLIT + 1,
                  group = a->n_q_heads / a->kv->n_heads;
    if (!device_in_pieces(d) || splits == 1)
        return s->n;
    const int64_t most = STATE_FLOATS / (a->n_q_heads * kern_sparse_state(a->kv->v_width) * splits);
    return num_max(1, num_min(s->n, num_min(most, PAIRS / group)));
}

size_t device_cpu_sparse_scratch(const struct device *d, const struct device_attend_args *a,
                              const struct device_span *s)
{
    struct device_span part = *s;
    if (!d->dry)
        part.n = piece_rows(d, a, s);
    const struct sparse f = plan(d, a, &part);
    const size_t pairs = (size_t)(part.n * a->n_q_heads);
    size_t bytes = f.worker_bytes * (size_t)pool_size(d->pool) + pairs * 4 * sizeof(float) + 3 * 64;
    if (d->dry || f.by_split || part.n < s->n)
        bytes += STATE_FLOATS * sizeof(float);
    return bytes;
}

static void count(const struct sparse *f, struct kern_sparse_seen *seen)
{
    const int64_t n_heads = f->a->n_q_heads;
    seen->rows += (uint64_t)f->s->n;
    seen->pairs += (uint64_t)(f->s->n * n_heads);
    for (int64_t r = 0; r < f->s->n; r++)
        for (int64_t h = 0; h < n_heads; h++) {
            const float x = f->missed[r * n_heads + h];
            seen->missed += x > 0.0f && x <= 1.0f ? (uint64_t)((double)x * 0x1p32 + 0.5) : 0;
            seen->most = x > seen->most ? x : seen->most;
            seen->kept += (uint64_t)f->kept[r * n_heads + h];
            seen->seen += (uint64_t)(f->s->pos0 + r + 1);
        }
}

static void attend(struct device *d, const struct device_attend_args *a,
                   const struct device_span *s, void *scratch)
{
    struct sparse f = plan(d, a, s);
    const int64_t n_heads = a->kv->n_heads, pairs = (s->n * a->n_q_heads + 15) / 16 * 16;
    const int64_t work = s->n * (s->pos0 + s->n) * a->q.width;
    f.d = d;
    f.missed = scratch;
    f.kept = (int32_t *)(void *)(f.missed + pairs);
    f.first = f.missed + 2 * pairs;
    f.worker = (uint8_t *)(f.missed + 4 * pairs);
    f.state = (float *)(void *)(f.worker + f.worker_bytes * (size_t)pool_size(d->pool));
    if (f.by_split) {
        device_cpu_for(d, n_heads, work, select_chunk, &f);
        device_cpu_for(d, n_heads * f.n_splits, work, split_chunk, &f);
        device_cpu_for(d, n_heads, work, merge_chunk, &f);
    } else {
        device_cpu_for(d, num_div_up(s->n, f.row_block) * n_heads, work, rows_chunk, &f);
    }
    if (s->seen && device_runs(d))
        count(&f, s->seen);
}

void device_cpu_sparse(struct device *d, const struct device_attend_args *a,
                    const struct device_span *s, void *scratch)
{
    const int64_t each = piece_rows(d, a, s);
    for (int64_t row = 0; row < s->n && device_runs(d); row += each) {
        const struct device_span part = device_span_part(s, row, num_min(each, s->n - row));
        attend(d, a, &part, scratch);
        if (each < s->n)
            device_may_stop(d, 0);
    }
}
