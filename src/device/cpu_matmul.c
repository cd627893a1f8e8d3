/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_matmul - a list of products as one list of tasks.
 *
 * Activations are prepared once for each (x, kind) of the list; then chunks of panels of all
 * products are handed out together, so that small matrices do not each wait for a join.
 */
#include "base/bug.h"
#include "base/num.h"
#include "device/ops.h"
#include <string.h>

struct prepared {
    const float *x;
    enum kern_act_kind kind;
    struct kern_act act;
};

struct task {
    const struct device_product *p;
    kern_matmul_fn *run;
    struct kern_matrix w;
    struct kern_matmul mm;
    int64_t first;  /* chunk number of the first chunk */
    int64_t grain;  /* panels a chunk */
};

/* The chunks that a worker takes first: neighbours in memory, so that one chunk's reading
 * runs on into the next.  Who has none left helps the next worker. */
struct region {
    _Atomic int64_t next; /* Sync: claimed by adding one */
    int64_t end;
    char pad[64 - 2 * sizeof(int64_t)];
};

struct job {
    struct device *d;
    struct region *region; /* [workers] */
    struct task *task;
    int64_t n_tasks;
    float *decoded; /* reference numerics: f32 [workers][widest in] */
    int64_t widest;
};

/* The kernel of fast numerics, or NULL. */
static kern_matmul_fn *fast_kernel(const struct device *d, const struct device_product *p)
{
    return d->numerics == DEVICE_FAST ? kern_matmul_fast(&d->kern.matmul, &p->w->m) : NULL;
}

static enum kern_act_kind act_kind(const struct device *d, const struct device_product *p)
{
    return d->numerics == DEVICE_REFERENCE ? KERN_ACT_F32
           : fast_kernel(d, p)             ? KERN_ACT_BF16
                                           : p->w->m.act;
}

static bool same_act(const struct device *d, const struct device_product *a,
                     const struct device_product *b)
{
    return a->x.at == b->x.at && a->x.n == b->x.n && a->x.width == b->x.width &&
           act_kind(d, a) == act_kind(d, b);
}

/* Whether product i is the first of the list that wants its activations. */
static bool is_first(const struct device *d, const struct device_product *p, int64_t i)
{
    if (i > 0 && same_act(d, &p[i - 1], &p[i]))
        return false;
    for (int64_t j = 0; j < i; j++)
        if (same_act(d, &p[j], &p[i]))
            return false;
    return true;
}

static size_t round64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

size_t device_cpu_matmul_scratch(const struct device *d, const struct device_matmul_args *a)
{
    size_t n = round64((size_t)a->n * (sizeof(struct task) + sizeof(struct prepared))) +
               sizeof(struct region) * (size_t)pool_size(d->pool);
    int64_t widest = 0;
    for (int64_t i = 0; i < a->n; i++) {
        const struct device_product *p = &a->p[i];
        widest = num_max(widest, p->x.width);
        if (is_first(d, a->p, i))
            n += round64(kern_act_bytes(act_kind(d, p), p->x.n, p->x.width));
    }
    if (d->numerics == DEVICE_REFERENCE)
        n += round64((size_t)widest * sizeof(float)) * (size_t)pool_size(d->pool);
    return n;
}

/* Each matrix is read once. */
struct device_cost device_cpu_matmul_cost(const struct device_matmul_args *a)
{
    struct device_cost c = {0, 0};
    for (int64_t i = 0; i < a->n; i++) {
        const struct device_product *p = &a->p[i];
        c.bytes += p->y.n ? (double)p->w->stack_bytes : 0;
        c.ops += 2.0 * (double)p->y.n * (double)p->x.width * (double)p->y.width;
    }
    return c;
}

struct quantise {
    struct device *d;
    const struct kern_act *act;
    int64_t grain;
};

static void quantise_chunk(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct quantise *q = arg;
    const int64_t r0 = chunk * q->grain;
    q->d->kern.matmul.act[q->act->kind](q->act, r0, num_min(q->act->n, r0 + q->grain));
}

static void prepare(struct device *d, struct kern_act *act)
{
    if (!d->kern.matmul.act[act->kind])
        return;
    struct quantise q = {d, act, num_max(1, act->n / (4 * pool_size(d->pool)))};
    device_cpu_for(d, num_div_up(act->n, q.grain), act->n * act->k * 2, quantise_chunk, &q);
}

static void scale_rows(const struct job *j, const struct task *t, int64_t p0, int64_t p1)
{
    const float s = t->p->w->scale ? t->p->w->scale[t->p->index] : 1.0f;
    if (s <= 1.0f && s >= 1.0f)
        return;
    const int64_t c0 = p0 * KERN_PANEL, c1 = num_min(t->w.out, p1 * KERN_PANEL);
    for (int64_t i = 0; i < t->mm.n; i++) {
        float *y = t->mm.y + i * t->mm.y_stride + c0;
        j->d->kern.math.scale(y, y, s, c1 - c0);
    }
}

/* As many calls as chunks are made, so each finds one. */
static int64_t claim(const struct job *j, int worker)
{
    const int n = pool_size(j->d->pool);
    for (int i = 0; i < n; i++) {
        struct region *r = &j->region[(worker + i) % n];
        if (atomic_load_explicit(&r->next, memory_order_relaxed) >= r->end)
            continue;
        const int64_t chunk = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
        if (chunk < r->end)
            return chunk;
    }
    BUG("more calls than chunks");
}

static void job_chunk(void *arg, int64_t call, int worker)
{
    (void)call;
    const struct job *j = arg;
    const int64_t chunk = claim(j, worker);
    int64_t lo = 0, hi = j->n_tasks - 1;
    while (lo < hi) {
        const int64_t mid = (lo + hi + 1) / 2;
        if (j->task[mid].first <= chunk)
            lo = mid;
        else
            hi = mid - 1;
    }
    const struct task *t = &j->task[lo];
    const int64_t p0 = (chunk - t->first) * t->grain;
    const int64_t p1 = num_min(t->w.n_panels, p0 + t->grain);
    if (j->decoded)
        kern_matmul_reference(&t->mm, p0, p1, j->decoded + worker * j->widest);
    else
        t->run(&t->mm, p0, p1);
    scale_rows(j, t, p0, p1);
}

/* Panels a chunk: the kernel's grain, less if that leaves threads without work. */
static int64_t chunk_panels(const struct device *d, const struct kern_matrix *w, int64_t n,
                            int64_t all_panels)
{
    const int64_t fair = num_max(1, all_panels / (4 * pool_size(d->pool)));
    return num_max(1, num_min(kern_matmul_grain(w, n), fair));
}

void device_cpu_matmul(struct device *d, const void *args, void *scratch)
{
    const struct device_matmul_args *a = args;
    const int n_workers = pool_size(d->pool);
    struct region *region = scratch;
    struct task *task = (struct task *)(void *)(region + n_workers);
    struct prepared *ready = (struct prepared *)(void *)(task + a->n);
    uint8_t *at = (uint8_t *)task + round64((size_t)a->n * (sizeof *task + sizeof *ready));
    int64_t n_ready = 0, widest = 0, all_panels = 0, work = 0;
    for (int64_t i = 0; i < a->n; i++) {
        const struct device_product *p = &a->p[i];
        BUG_IF(p->x.width != p->w->m.in || p->y.width != p->w->m.out);
        widest = num_max(widest, p->x.width);
        all_panels += p->y.n ? p->w->m.n_panels : 0;
        work += p->y.n * p->x.width * p->y.width;
        if (!is_first(d, a->p, i))
            continue;
        struct prepared *r = &ready[n_ready++];
        r->x = p->x.at;
        r->kind = act_kind(d, p);
        kern_act_init(&r->act, r->kind, p->x.n, p->x.width, p->x.at, p->x.stride, at);
        at += round64(kern_act_bytes(r->kind, p->x.n, p->x.width));
        prepare(d, &r->act);
    }
    struct job j = {d, region, task, 0, d->numerics == DEVICE_REFERENCE ? (float *)(void *)at : NULL,
                    (int64_t)(round64((size_t)widest * sizeof(float)) / sizeof(float))};
    int64_t n_chunks = 0;
    for (int64_t i = 0; i < a->n; i++) {
        const struct device_product *p = &a->p[i];
        if (!p->y.n)
            continue;
        const struct prepared *r = ready;
        while (r->x != p->x.at || r->kind != act_kind(d, p) || r->act.n != p->x.n ||
               r->act.k != p->x.width)
            r++;
        struct task *t = &task[j.n_tasks++];
        t->p = p;
        t->w = p->w->m;
        t->run = fast_kernel(d, p);
        if (!t->run)
            t->run = kern_matmul_pick(&d->kern.matmul, &t->w, p->y.n);
        t->w.at += (size_t)p->index * p->w->stack_bytes;
        t->mm = (struct kern_matmul){&t->w, &r->act, p->row, p->y.n, p->y.at, p->y.stride};
        t->first = n_chunks;
        t->grain = chunk_panels(d, &t->w, p->y.n, all_panels);
        n_chunks += num_div_up(t->w.n_panels, t->grain);
    }
    for (int i = 0; i < n_workers; i++) {
        atomic_init(&region[i].next, n_chunks * i / n_workers);
        region[i].end = n_chunks * (i + 1) / n_workers;
    }
    device_cpu_for(d, n_chunks, work, job_chunk, &j);
}
