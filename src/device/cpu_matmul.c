/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_matmul - a list of products as one list of tasks.
 *
 * Activations are prepared once for each (x, kind) of the list, in the order of tiles, too, if a
 * kernel reads it, and rows that a product lists are brought together once for all of its chunks;
 * then chunks of panels of all products are handed out together, so that small matrices do not
 * each wait for a join; those of a memory node stand together.
 */
#include "base/bug.h"
#include "base/num.h"
#include "device/cpu.h"
#include "device/cpu_matmul.h"
#include <string.h>

enum {
    GATHER_FROM = 8, /* listed rows that are brought together */
    SLICE = 64,      /* rows of floats that a chunk takes through a whole matrix of at most ... */
    SLICED_BYTES = 8 << 20,
};

struct task {
    const struct device_part *p; /* with the block of x */
    kern_matmul_fn *run;
    struct kern_matrix w;
    struct kern_act x; /* of mm */
    struct kern_matmul mm;
    int64_t p0, p1; /* panels: a node's */
    int64_t first;  /* chunk number of the first chunk */
    int64_t grain;  /* panels a chunk */
    int64_t slice;  /* rows a chunk */
};

struct job {
    struct device *d;
    struct task *task;
    int64_t n_tasks;
    float *decoded; /* reference numerics: f32 [workers][widest in] */
    int64_t widest;
};

kern_matmul_fn *device_cpu_fast(const struct device *d, const struct device_matrix *w, bool prompt)
{
    return d->numerics == DEVICE_FAST ? kern_matmul_fast(&d->kern.matmul, &w->m, prompt) : NULL;
}

static kern_matmul_fn *fast_kernel(const struct device *d, const struct device_product *p,
                                   bool prompt)
{
    return device_cpu_fast(d, p->w, prompt);
}

/* Whether its rows are the step's, so that those of a prompt may have a kernel of their own. */
static bool may_split(const struct device *d, const struct device_product *p)
{
    return !p->row && !fast_kernel(d, p, false) && fast_kernel(d, p, true);
}

/* At most two parts of p. */
static int64_t split(const struct device *d, const struct device_product *p, struct device_part *to)
{
    const int64_t n = p->y.n, all = d->step_rows,
                  prompt = p->x.n == all && may_split(d, p) ? d->prompt_rows : 0;
    int64_t n_parts = 0;
    if (prompt < n || !n)
        to[n_parts++] = (struct device_part){
            .p = {p->w, p->index, rows_slice(p->x, 0, p->x.n - prompt),
                  rows_slice(p->y, 0, n - prompt), p->row},
            .fast = fast_kernel(d, p, false)};
    if (prompt)
        to[n_parts++] = (struct device_part){
            .p = {p->w, p->index, rows_slice(p->x, n - prompt, prompt),
                  rows_slice(p->y, n - prompt, prompt), NULL},
            .fast = fast_kernel(d, p, true)};
    return n_parts;
}

enum kern_act_kind device_cpu_act_kind(const struct device *d, const struct device_matrix *w,
                                       kern_matmul_fn *fast)
{
    return d->numerics == DEVICE_REFERENCE ? KERN_ACT_F32
           : fast                          ? kern_matmul_fast_act(&w->m)
                                           : w->m.act;
}

static enum kern_act_kind act_kind(const struct device *d, const struct device_part *p)
{
    return device_cpu_act_kind(d, p->p.w, p->fast);
}

static bool same_act(const struct device *d, const struct device_part *a,
                     const struct device_part *b)
{
    return a->p.x.at == b->p.x.at && a->p.x.n == b->p.x.n && a->p.x.width == b->p.x.width &&
           act_kind(d, a) == act_kind(d, b);
}

/* Whether part i is the first of the list that wants its activations. */
static bool is_first(const struct device *d, const struct device_part *p, int64_t i)
{
    for (int64_t j = i; j-- > 0;)
        if (same_act(d, &p[j], &p[i]))
            return false;
    return true;
}

/* Whether the activations of p are read as tiles, too; and by one of n parts at least that has
 * those of part i. */
static bool wants_tiles(const struct device *d, const struct device_part *p)
{
    return act_kind(d, p) != KERN_ACT_F32 && !p->p.row && p->p.y.n == p->p.x.n &&
           kern_matmul_tiles(&d->kern.matmul, &p->p.w->m, p->fast, p->p.x.n);
}
static bool any_wants_tiles(const struct device *d, const struct device_part *p, int64_t n,
                            int64_t i)
{
    for (int64_t j = i; j < n; j++)
        if (same_act(d, &p[j], &p[i]) && wants_tiles(d, &p[j]))
            return true;
    return false;
}

/* Of a product before it is split: whether an earlier one has all activations that it may want. */
static enum kern_act_kind whole_kind(const struct device *d, const struct device_product *p)
{
    return act_kind(d, &(struct device_part){.p = *p, .fast = fast_kernel(d, p, false)});
}
static bool is_covered(const struct device *d, const struct device_product *p, int64_t i)
{
    for (int64_t j = i; j-- > 0;)
        if (p[j].x.at == p[i].x.at && p[j].x.n == p[i].x.n && p[j].x.width == p[i].x.width &&
            whole_kind(d, &p[j]) == whole_kind(d, &p[i]) &&
            may_split(d, &p[j]) == may_split(d, &p[i]))
            return true;
    return false;
}

/* Whether rows that are listed may be brought together: blocks of quantised ones, without zeros
 * after. */
static bool may_gather(enum kern_act_kind kind)
{
    return kind == KERN_ACT_Q32 || kind == KERN_ACT_Q256;
}

/* Whether its rows are to be brought together: they are listed, which in a dry run shows in their
 * number, do not follow each other, and are many. */
static bool is_run(const struct device_product *p)
{
    int64_t i = 1;
    while (i < p->y.n && p->row[i] == p->row[0] + i)
        i++;
    return i == p->y.n;
}
static bool is_scattered(const struct device_product *p)
{
    return p->row ? p->y.n >= GATHER_FROM && !is_run(p) : p->y.n != p->x.n;
}
static bool same_rows(const struct device_product *a, const struct device_product *b)
{
    return a->row == b->row && a->y.n == b->y.n && a->x.at == b->x.at && a->x.n == b->x.n &&
           a->x.width == b->x.width;
}
/* Of a product before it is split: whether an earlier one has brought them together. */
static bool is_gathered(const struct device *d, const struct device_product *p, int64_t i)
{
    for (int64_t j = i; j-- > 0;)
        if (same_rows(&p[j], &p[i]) && whole_kind(d, &p[j]) == whole_kind(d, &p[i]))
            return true;
    return false;
}

/* Bytes of the tiles of the activations of product i, if it is the first that wants them. */
static size_t tiles_bytes(const struct device *d, const struct device_product *p, int64_t i)
{
    const struct device_part want = {.p = p[i], .fast = fast_kernel(d, &p[i], false)};
    if (!wants_tiles(d, &want))
        return 0;
    for (int64_t j = i; j-- > 0;) {
        const struct device_part other = {.p = p[j], .fast = fast_kernel(d, &p[j], false)};
        if (same_act(d, &other, &want) && wants_tiles(d, &other) &&
            may_split(d, &p[j]) == may_split(d, &p[i]))
            return 0;
    }
    return device_round64(kern_act_tiles_bytes(whole_kind(d, &p[i]), p[i].x.n, p[i].x.width));
}

/* Bytes of what rows of a prompt want that have another kernel. */
static size_t fast_bytes(const struct device *d, const struct device_product *p)
{
    const enum kern_act_kind kind = kern_matmul_fast_act(&p->w->m);
    const size_t tiles =
        d->kern.matmul.tiles[kind] ? kern_act_tiles_bytes(kind, p->x.n, p->x.width) : 0;
    return device_round64(kern_act_bytes(kind, p->x.n, p->x.width)) + device_round64(tiles);
}

size_t device_cpu_parts_bytes(const struct device *d, int64_t n)
{
    const size_t nodes = (size_t)pool_nodes(d->pool), halves = nodes > 1 ? 2 : 1;
    return device_round64((size_t)n * nodes * halves * sizeof(struct task));
}

/* Bytes of the lists of n products, which may all be split. */
static size_t list_bytes(int64_t n)
{
    return device_round64(2 * (size_t)n *
                          (sizeof(struct device_ready) + sizeof(struct device_part)));
}

size_t device_cpu_matmul_codes(const struct device *d, const struct device_matmul_args *a)
{
    size_t n = 0;
    for (int64_t i = 0; i < a->n; i++) {
        const struct device_product *p = &a->p[i];
        if (is_scattered(p) && may_gather(whole_kind(d, p)) && !is_gathered(d, a->p, i))
            n += device_round64(kern_act_bytes(whole_kind(d, p), p->y.n, p->x.width));
        n += tiles_bytes(d, a->p, i);
        if (is_covered(d, a->p, i))
            continue;
        n += device_round64(kern_act_bytes(whole_kind(d, p), p->x.n, p->x.width));
        if (may_split(d, p))
            n += fast_bytes(d, p);
    }
    return n;
}

size_t device_cpu_matmul_scratch(const struct device *d, const struct device_matmul_args *a)
{
    size_t n = device_cpu_matmul_codes(d, a);
    int64_t widest = 0, n_products = 0;
    for (int64_t i = 0; i < a->n; i++) {
        widest = num_max(widest, a->p[i].x.width);
        /* in a dry run one stands for all */
        n_products += a->p[i].row ? 1 : a->p[i].w->n_stack;
    }
    if (d->numerics == DEVICE_REFERENCE)
        n += device_round64((size_t)widest * sizeof(float)) * (size_t)pool_size(d->pool);
    return n + list_bytes(n_products) +
           device_cpu_parts_bytes(d, 2 * num_max(n_products, a->n_only));
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
    double columns = 0;
    for (int64_t i = 0; i < a->n_only; i++)
        columns += (double)a->only[i].n;
    if (a->n_only) {
        c.bytes *= columns / (double)a->p->y.width;
        c.ops *= columns / (double)a->p->y.width;
    }
    return c;
}

struct quantise {
    struct device *d;
    const struct kern_act *act;
    int64_t grain;
    bool tiles_single;
};

static void quantise_chunk(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct quantise *q = arg;
    const int64_t r0 = chunk * q->grain;
    const int64_t r1 = num_min(q->act->n, r0 + q->grain);
    if (!q->tiles_single) {
        kern_touch_act(q->act, r0, r1);
        q->d->kern.matmul.act[q->act->kind](q->act, r0, r1);
    }
    if (q->act->tiles) {
        kern_touch_tiles(q->act, r0, r1);
        q->d->kern.matmul.tiles[q->act->kind](q->act, r0, r1);
    }
}

bool device_cpu_prepare(struct device *d, const struct kern_act *act, bool tiles_single)
{
    if (!d->kern.matmul.act[act->kind] || (tiles_single && !act->tiles))
        return false;
    struct quantise q = {d, act, num_max(1, act->n / (4 * pool_size(d->pool))), tiles_single};
    if (act->tiles)
        q.grain = num_div_up(q.grain, KERN_TILES_ROWS) * KERN_TILES_ROWS;
    const int64_t n_chunks = num_div_up(act->n, q.grain), work = act->n * act->k * 2;
    device_cpu_for(d, n_chunks, work, quantise_chunk, &q);
    return n_chunks > pool_near(d->pool) && work > d->small_work;
}

struct device_near device_cpu_near(struct device *d, const struct kern_act *act, bool by_all)
{
    if (act->tiles)
        return device_near_add(d, act->tiles, kern_act_tiles_bytes(act->kind, act->n, act->k),
                               by_all ? -1 : 0);
    return device_near_add(d, act->q, kern_act_bytes(act->kind, act->n, act->k), by_all ? -1 : 0);
}

void device_cpu_read_near(const struct device *d, const struct device_near *b, struct kern_act *act,
                          int worker)
{
    if (b->from && device_near_has(b, act->q))
        act->q = (uint8_t *)(uintptr_t)device_near_read(d, b, act->q, worker);
    if (b->from && device_near_has(b, act->tiles))
        act->tiles = (uint8_t *)(uintptr_t)device_near_read(d, b, act->tiles, worker);
}

/* Gives the parts whose rows are listed a place for them, from at on, or finds that they stand
 * together. */
static uint8_t *place_rows(struct device *d, struct device_part *part, int64_t n, uint8_t *at,
                           int64_t *work)
{
    for (int64_t i = 0; i < n; i++) {
        const struct device_product *p = &part[i].p;
        const struct kern_act *x = part[i].x;
        if (!p->row || !p->y.n || !may_gather(x->kind))
            continue;
        if (is_run(p))
            part[i].rows = x->q + (size_t)p->row[0] * x->row_bytes;
        if (!is_scattered(p))
            continue;
        for (int64_t j = i; j-- > 0 && !part[i].rows;)
            if (part[j].x == x && same_rows(&part[j].p, p)) {
                part[i].rows = part[j].rows;
                part[i].near = part[j].near;
            }
        if (part[i].rows)
            continue;
        part[i].rows = at;
        part[i].near = device_near_add(d, at, (size_t)p->y.n * x->row_bytes, -1);
        part[i].fill = true;
        *work += p->y.n * p->x.width;
        at += device_round64((size_t)p->y.n * x->row_bytes);
    }
    return at;
}

static void gather_chunk(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct device_part *part = (const struct device_part *)arg + chunk;
    const size_t n_bytes = part->x->row_bytes;
    for (int64_t i = 0; part->fill && i < part->p.y.n; i++)
        memcpy(part->rows + (size_t)i * n_bytes, part->x->q + (size_t)part->p.row[i] * n_bytes,
               n_bytes);
}

static void scale_rows(const struct job *j, const struct task *t, const struct kern_matmul *m,
                       int64_t p0, int64_t p1)
{
    const struct device_product *p = &t->p->p;
    const float s = p->w->scale ? p->w->scale[p->index] : 1.0f;
    if (s <= 1.0f && s >= 1.0f)
        return;
    const int64_t c0 = p0 * KERN_PANEL, c1 = num_min(t->w.out, p1 * KERN_PANEL);
    for (int64_t i = 0; i < m->n; i++) {
        float *y = m->y + i * m->y_stride + c0;
        kern_touch(y, NULL, c1 - c0);
        j->d->kern.math.scale(y, y, s, c1 - c0);
    }
}

static void job_chunk(void *arg, int64_t chunk, int worker)
{
    const struct job *j = arg;
    const struct task *t =
        &j->task[device_task_of(&j->task[0].first, sizeof j->task[0], j->n_tasks, chunk)];
    const int64_t across = num_div_up(t->p1 - t->p0, t->grain),
                  row0 = (chunk - t->first) / across * t->slice;
    const int64_t p0 = t->p0 + (chunk - t->first) % across * t->grain;
    const int64_t p1 = num_min(t->p1, p0 + t->grain);
    struct kern_matmul mm = t->mm;
    struct kern_act x = t->x;
    mm.x = &x;
    device_cpu_read_near(j->d, &t->p->near, &x, worker);
    if (t->slice < mm.n) { /* floats without a list */
        x.x += row0 * x.stride;
        x.n = mm.n = num_min(t->slice, mm.n - row0);
        mm.y += row0 * mm.y_stride;
    }
    kern_touch_matmul(&mm, p0, p1);
    if (j->decoded)
        kern_matmul_reference(&mm, p0, p1, j->decoded + worker * j->widest);
    else
        t->run(&mm, p0, p1);
    scale_rows(j, t, &mm, p0, p1);
}

/* Panels a chunk: the kernel's grain, less if that leaves threads without work. */
static int64_t chunk_panels(const struct device *d, const struct kern_matrix *w, int64_t n,
                            int64_t all_panels)
{
    const int64_t fair = num_max(1, all_panels / (4 * pool_size(d->pool)));
    return num_max(1, num_min(kern_matmul_grain(w, n), fair));
}

/* Few panels of floats: chunks of rows, which so are read once and not for each chunk of panels. */
static int64_t chunk_rows(const struct job *j, const struct task *t)
{
    const int64_t n = t->mm.n, fair = num_div_up(n, 4 * pool_size(j->d->pool));
    const bool small = (size_t)(t->p1 - t->p0) * t->w.panel_bytes <= SLICED_BYTES;
    return t->x.kind != KERN_ACT_F32 || t->mm.row || j->decoded || !small || n < 2 * SLICE
               ? n : num_max(SLICE / 4, num_min(SLICE, fair));
}

/* The panels of a product, of [first, end) and of a half, that belong to a node. */
static void add_task(struct job *j, const struct device_part *part, int node, int half,
                     int64_t first, int64_t end, int64_t all_panels, int64_t *n_chunks)
{
    struct device *d = j->d;
    const struct device_product *p = &part->p;
    int64_t p0, p1;
    device_matrix_share(p->w, p->index, node, half, &p0, &p1);
    p0 = num_max(p0, first);
    p1 = num_min(p1, end);
    if (p0 >= p1)
        return;
    struct task *t = &j->task[j->n_tasks++];
    t->p = part;
    t->w = p->w->m;
    t->run = part->fast;
    if (!t->run)
        t->run = kern_matmul_choose(&d->kern.matmul, &t->w, p->y.n);
    t->w.at = device_matrix_base(p->w, p->index, node, half);
    BUG_IF(!t->w.at);
    t->x = *part->x;
    t->mm = (struct kern_matmul){&t->w,  &t->x,   part->rows ? NULL : p->row,
                                 p->y.n, p->y.at, p->y.stride};
    if (part->rows) {
        t->x.q = part->rows;
        t->x.tiles = NULL;
        t->x.n = p->y.n;
    }
    t->p0 = p0;
    t->p1 = p1;
    t->first = *n_chunks;
    t->slice = chunk_rows(j, t);
    t->grain = t->slice < p->y.n ? p1 - p0 : chunk_panels(d, &t->w, p->y.n, all_panels);
    *n_chunks += num_div_up(p1 - p0, t->grain) * num_div_up(p->y.n, t->slice);
}

static void add_tasks(struct job *j, const struct device_part *part, int node, int64_t all_panels,
                      int64_t *n_chunks)
{
    for (int half = 0; half < part->p.w->n_halves; half++) {
        if (!part->n_only)
            add_task(j, part, node, half, 0, part->p.w->m.n_panels, all_panels, n_chunks);
        for (int64_t i = 0; i < part->n_only; i++)
            add_task(j, part, node, half, part->only[i].first / KERN_PANEL,
                     num_div_up(part->only[i].first + part->only[i].n, KERN_PANEL), all_panels,
                     n_chunks);
    }
}

/* Panels of a part that are computed. */
static int64_t panels_of(const struct device_part *part)
{
    int64_t n = 0;
    for (int64_t i = 0; i < part->n_only; i++)
        n += num_div_up(part->only[i].n, KERN_PANEL);
    return part->n_only ? n : part->p.w->m.n_panels;
}

uint8_t *device_cpu_ready(struct device *d, struct device_part *part, int64_t n,
                          struct device_ready *ready, uint8_t *at)
{
    int64_t n_ready = 0, gather = 0;
    device_near_begin(d);
    for (int64_t i = 0; i < n; i++) {
        const struct device_product *p = &part[i].p;
        struct device_ready *r = ready;
        if (!is_first(d, part, i)) {
            while (r->x != p->x.at || r->kind != act_kind(d, &part[i]) || r->act.n != p->x.n ||
                   r->act.k != p->x.width)
                r++;
            part[i].x = &r->act;
            part[i].near = r->near;
            continue;
        }
        r = &ready[n_ready++];
        r->x = p->x.at;
        r->kind = act_kind(d, &part[i]);
        kern_act_init(&r->act, r->kind, p->x.n, p->x.width, p->x.at, p->x.stride, at);
        at += device_round64(kern_act_bytes(r->kind, p->x.n, p->x.width));
        if (any_wants_tiles(d, part, n, i)) {
            r->act.tiles = at;
            at += device_round64(kern_act_tiles_bytes(r->kind, p->x.n, p->x.width));
        }
        r->near = device_cpu_near(d, &r->act, device_cpu_prepare(d, &r->act, false));
        part[i].x = &r->act;
        part[i].near = r->near;
    }
    at = place_rows(d, part, n, at, &gather);
    if (gather)
        device_cpu_for(d, n, gather, gather_chunk, part);
    return at;
}

void device_cpu_parts(struct device *d, const struct device_part *part, int64_t n, void *lists,
                      float *decoded, int64_t widest)
{
    struct job j = {.d = d, .task = lists, .decoded = decoded, .widest = widest};
    struct device_share share;
    int64_t n_chunks = 0, all_panels = 0, work = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct device_product *p = &part[i].p;
        all_panels += p->y.n ? panels_of(&part[i]) : 0;
        work += p->y.n * p->x.width * panels_of(&part[i]) * KERN_PANEL;
    }
    for (int node = 0; node < pool_nodes(d->pool); node++) {
        share.from[node] = n_chunks;
        for (int64_t i = 0; i < n; i++)
            if (part[i].p.y.n)
                add_tasks(&j, &part[i], node, all_panels, &n_chunks);
        share.n[node] = n_chunks - share.from[node];
    }
    device_cpu_for_placed(d, &share, work, job_chunk, &j);
}

void device_cpu_matmul(struct device *d, const void *args, void *scratch)
{
    const struct device_matmul_args *a = args;
    struct device_ready *ready = scratch;
    struct device_part *part = (struct device_part *)(void *)(ready + 2 * (size_t)a->n);
    uint8_t *lists = (uint8_t *)scratch + list_bytes(a->n),
            *at = lists + device_cpu_parts_bytes(d, 2 * num_max(a->n, a->n_only));
    int64_t n_parts = 0, widest = 0;
    for (int64_t i = 0; i < a->n; i++) {
        const struct device_product *p = &a->p[i];
        BUG_IF(p->x.width != p->w->m.in || p->y.width != p->w->m.out);
        widest = num_max(widest, p->x.width);
        n_parts += split(d, p, &part[n_parts]);
    }
    for (int64_t i = 0; i < n_parts; i++) {
        part[i].only = a->only;
        part[i].n_only = a->n_only;
    }
    at = device_cpu_ready(d, part, n_parts, ready, at);
    device_cpu_parts(d, part, n_parts, lists,
                     d->numerics == DEVICE_REFERENCE ? (float *)(void *)at : NULL,
                     (int64_t)(device_round64((size_t)widest * sizeof(float)) / sizeof(float)));
}
