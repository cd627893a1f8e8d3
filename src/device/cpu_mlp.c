/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_mlp - gated products and the way back, without what is between them in memory.
 *
 * A chunk computes the same columns of gate and up for some rows into the second cache, where they
 * become act(gate) * up, and groups of it are quantised there for the way back, if the chunk has
 * whole ones. So of f32 [n][2 width] nothing but the activations of down [n][width] is written.
 */
#include "base/bug.h"
#include "base/num.h"
#include "device/cpu.h"
#include "device/cpu_matmul.h"
#include <string.h>

/* min and max by comparison: NaN stays. */
static void clamp_glu(float *gate, float *up, float limit, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        gate[i] = gate[i] > limit ? limit : gate[i];
        up[i] = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    }
}

void device_cpu_gate(const struct kern_math_table *k, enum device_glu act, float limit, float *y,
                     float *gate, float *up, int64_t n)
{
    if (limit > 0)
        clamp_glu(gate, up, limit, n);
    kern_touch_in(gate, n);
    kern_touch(y, up, n);
    (act == DEVICE_GELU ? k->glu_gelu : k->glu_silu)(y, gate, up, n);
}

enum {
    BAND = KERN_BAND * KERN_PANEL, /* columns */
    MOST_ROWS = 512,               /* of a chunk, of which ... */
    TILE = 64 << 10,               /* ... about as many results of either product exist at a time */
    SUPER = 256,                   /* columns of the largest group */
    SECOND = 2 * BAND,             /* columns of a tile that are computed for nobody */
};

/* The activations of down for all rows, or for those of a prompt or the others. */
struct hidden {
    struct kern_act act;
    bool direct; /* chunks quantise it */
    struct device_near near;
};

/* gate or up of a task. */
struct half {
    kern_matmul_fn *run;
    struct kern_matrix w;
    struct kern_act x;
    const struct device_near *near; /* the block of x */
    const int32_t *row; /* host, or NULL: one after another */
    int64_t col0;       /* its first column in w */
    float scale;
    /* of whose pieces columns may be, matrix `index`; NULL: all panels are where w says */
    const struct device_matrix *pieces;
    int64_t index;
};

/* The columns of some rows that belong to a node. */
struct task {
    const struct device_mlp *mlp;
    struct half half[2];
    const struct hidden *to;
    int64_t to_row, n;
    int64_t c0, c1;
    int64_t grain, slice; /* columns and rows a chunk */
    int64_t first;        /* number of the first chunk */
};

struct job {
    struct device *d;
    struct task *task;
    int64_t n_tasks, n_chunks;
    float *tile;    /* [workers][2][tile_floats] */
    int64_t tile_floats;
    float *decoded; /* reference numerics: f32 [workers][widest] */
    int64_t widest;
};

/* Panels [p0, p1) of those from `band` on, which may be of several pieces. */
static void compute_panels(const struct job *j, const struct half *h, struct kern_matmul mm,
                           int64_t band, int64_t p0, int64_t p1, int worker)
{
    const int64_t first = band * KERN_BAND;
    struct kern_matrix w = *mm.w;
    mm.w = &w;
    for (int64_t p = p0, end; p < p1; p = end) {
        end = p1;
        if (h->pieces) {
            w.at = device_matrix_panels(h->pieces, h->index, first + p, &end) +
                   (size_t)first * w.panel_bytes;
            end = num_min(p1, end - first);
        }
        kern_touch_matmul(&mm, p, end);
        if (j->decoded)
            kern_matmul_reference(&mm, p, end, j->decoded + worker * j->widest);
        else
            h->run(&mm, p, end);
    }
}

/* Columns [c0, c1) of rows [row0, row0 + n): in `to`, f32 [n][stride], from the result on. */
static float *compute(const struct job *j, const struct half *h, int64_t row0, int64_t n,
                      int64_t c0, int64_t c1, float *to, int64_t stride, int worker)
{
    const int64_t band = (h->col0 + c0) / BAND, at = h->col0 + c0 - band * BAND;
    struct kern_matrix w = h->w; /* from that band on */
    struct kern_act x = h->x;
    w.at += (size_t)(band * KERN_BAND) * w.panel_bytes;
    w.out -= band * BAND;
    w.n_panels -= band * KERN_BAND;
    device_cpu_read_near(j->d, h->near, &x, worker);
    if (!h->row && row0) {
        x.x += row0 * x.stride;
        if (x.q)
            x.q += (size_t)row0 * x.row_bytes;
        if (x.tiles)
            x.tiles += kern_act_tiles_at(x.kind, row0);
    }
    const struct kern_matmul mm = {&w, &x, h->row ? h->row + row0 : NULL, n, to, stride};
    compute_panels(j, h, mm, band, at / KERN_PANEL, num_div_up(at + c1 - c0, KERN_PANEL), worker);
    if (h->scale < 1.0f || h->scale > 1.0f)
        for (int64_t i = 0; i < n; i++)
            j->d->kern.math.scale(to + i * stride + at, to + i * stride + at, h->scale, c1 - c0);
    return to + at;
}

/* The activations of down of these columns and rows. */
static void gate_columns(const struct job *j, const struct task *t, int64_t row0, int64_t n,
                         int64_t c0, int64_t c1, int worker)
{
    const struct kern_table *k = &j->d->kern;
    const struct kern_act *to = &t->to->act;
    const int64_t stride = num_div_up(c1 - c0, KERN_PANEL) * KERN_PANEL + SECOND,
                  first = t->to_row + row0;
    float *tile = j->tile + 2 * worker * j->tile_floats;
    float *gate = compute(j, &t->half[0], row0, n, c0, c1, tile, stride, worker);
    float *up = compute(j, &t->half[1], row0, n, c0, c1, tile + j->tile_floats, stride, worker);
    for (int64_t i = 0; i < n; i++) {
        float *y = t->to->direct ? gate + i * stride
                                 : (float *)(uintptr_t)to->x + (first + i) * to->stride + c0;
        device_cpu_gate(&k->math, t->mlp->act, t->mlp->limit, y, gate + i * stride, up + i * stride,
                        c1 - c0);
    }
    if (!t->to->direct)
        return;
    struct kern_act part = {.kind = to->kind,
                            .n = n,
                            .k = c1 - c0,
                            .x = gate,
                            .stride = stride,
                            .row_bytes = to->row_bytes};
    part.q = to->q + (size_t)first * to->row_bytes + kern_act_offset(to->kind, c0);
    kern_touch_act(&part, 0, n);
    k->matmul.act[to->kind](&part, 0, n);
}

/* Columns that are computed together: whole groups, and a tile of about TILE floats. */
static int64_t tile_columns(int64_t n, int64_t grain)
{
    return num_min(grain, num_max(SUPER, TILE / num_max(1, n) / SUPER * SUPER));
}

static void gate_chunk(void *arg, int64_t chunk, int worker)
{
    const struct job *j = arg;
    const struct task *t =
        &j->task[device_task_of(&j->task[0].first, sizeof j->task[0], j->n_tasks, chunk)];
    const int64_t across = num_div_up(t->c1 - t->c0, t->grain),
                  row0 = (chunk - t->first) / across * t->slice;
    const int64_t c0 = t->c0 + (chunk - t->first) % across * t->grain,
                  c1 = num_min(t->c1, c0 + t->grain);
    const int64_t n = num_min(t->slice, t->n - row0), step = tile_columns(n, t->grain);
    for (int64_t c = c0; c < c1; c += step)
        gate_columns(j, t, row0, n, c, num_min(c1, c + step), worker);
}

/* ---- what is to be done ---- */

enum { SIDES = 2, CALLS = 2, MOST_READY = 2 * SIDES * CALLS };

/* Rows by the kernels that they have: those of a prompt and the others. */
struct sides { int64_t n, first[SIDES], end[SIDES]; bool prompt[SIDES]; };

/* Rows are listed for each matrix of a stack. */
static bool is_listed(const struct device_mlp *m) { return m->gate->n_stack > 1; }
/* Whether a matrix of a stack has rows that are wanted. */
static bool has_rows(const struct device_mlp *m, int64_t e)
{
    return m->first[e + 1] > m->first[e] && (!m->only || m->only[e]);
}
/* At most so many parts. */
static int64_t most_parts(const struct device_mlp *m)
{
    return is_listed(m) ? m->gate->n_stack : SIDES;
}
static const struct device_matrix *up_of(const struct device_mlp *m)
{
    return m->up ? m->up : m->gate;
}

/* Whether fast numerics have another kernel for a prompt's rows. */
static bool has_own(const struct device *d, const struct device_matrix *w)
{
    return !device_cpu_fast(d, w, false) && device_cpu_fast(d, w, true);
}
static bool may_split(const struct device *d, const struct device_mlp *m)
{
    return !is_listed(m) && (has_own(d, m->gate) || has_own(d, up_of(m)) || has_own(d, m->down));
}
static struct sides sides_of(const struct device *d, const struct device_mlp *m, int64_t n)
{
    const int64_t at = may_split(d, m) && n == d->step_rows ? n - d->prompt_rows : n;
    struct sides s = {0};
    if (at > 0)
        s.end[s.n++] = at;
    if (at < n) {
        s.first[s.n] = at;
        s.prompt[s.n] = true;
        s.end[s.n++] = n;
    }
    return s;
}

static enum kern_act_kind plain_kind(const struct device *d, const struct device_matrix *w)
{
    return device_cpu_act_kind(d, w, device_cpu_fast(d, w, false));
}

/* A block of the operation, of which there may be two. */
struct block {
    const struct device_mlp *m;
    struct rows x, y;
    struct sides s;
    struct device_part *gates, *downs; /* [n] of gate and [n] of up; [n] */
    int64_t n;
    struct hidden to[SIDES];
};

/* Returns their number. */
static int blocks_of(const struct device_mlp_args *a, struct block b[CALLS])
{
    memset(b, 0, CALLS * sizeof *b);
    b[0].m = a->m;
    b[0].x = a->x;
    b[0].y = a->y;
    if (!a->second)
        return 1;
    b[1].m = a->second->m;
    b[1].x = a->second->x;
    b[1].y = a->second->y;
    return CALLS;
}

/* Where each thing of the operation is in its scratch; the same order in a dry run. */
struct layout {
    size_t ready, part, act, task, lists, tile, decoded, floats[CALLS], rest, all;
    int64_t tile_floats, widest;
};

/* Bytes of the activations of w for n rows, of which any may be a prompt's. */
static size_t act_bytes(const struct device *d, const struct device_mlp *m,
                        const struct device_matrix *w, int64_t n)
{
    const enum kern_act_kind kind = plain_kind(d, w), fast = kern_matmul_fast_act(&w->m);
    size_t bytes = device_round64(kern_act_bytes(kind, n, w->m.in));
    if (may_split(d, m))
        bytes += device_round64(kern_act_bytes(fast, n, w->m.in));
    if (!is_listed(m) && d->kern.matmul.tiles[kind])
        bytes += device_round64(kern_act_tiles_bytes(kind, n, w->m.in));
    if (may_split(d, m) && d->kern.matmul.tiles[fast])
        bytes += device_round64(kern_act_tiles_bytes(fast, n, w->m.in));
    return bytes;
}

/* Floats of a tile of at most n rows. */
static int64_t tile_floats(const struct device_mlp *m, int64_t n)
{
    const int64_t rows = num_min(n, MOST_ROWS);
    return num_min(rows * m->down->m.in, num_max(TILE, rows * SUPER)) +
           rows * (SECOND + KERN_PANEL);
}

static int64_t widest_of(const struct device_mlp *m)
{
    return num_div_up(num_max(m->gate->m.in, m->down->m.in), 16) * 16;
}

static size_t take(size_t *at, size_t n_bytes)
{
    const size_t here = *at;
    *at += device_round64(n_bytes);
    return here;
}

/* Bytes of the activations of gate and up. */
static size_t gate_bytes(const struct device *d, const struct block *b)
{
    const struct device_mlp *m = b->m;
    const size_t n = (size_t)most_parts(m);
    size_t bytes = act_bytes(d, m, m->gate, b->x.n);
    if (plain_kind(d, m->gate) != plain_kind(d, up_of(m)))
        bytes += act_bytes(d, m, m->up, b->x.n);
    if (is_listed(m)) { /* rows brought together */
        bytes += kern_act_bytes(plain_kind(d, m->gate), b->y.n, m->gate->m.in) + 64 * (n + 1);
        bytes += kern_act_bytes(plain_kind(d, up_of(m)), b->y.n, m->gate->m.in) + 64 * (n + 1);
    }
    return bytes;
}

static void take_codes(const struct device *d, const struct block *b, size_t *at)
{
    (void)take(at, act_bytes(d, b->m, b->m->down, b->y.n));
    (void)take(at, gate_bytes(d, b));
}

static struct layout layout_of(const struct device *d, const struct block *b, int n_blocks)
{
    const size_t workers = (size_t)pool_size(d->pool);
    struct layout l = {0};
    size_t at = 0, n = 0;
    for (int i = 0; i < n_blocks; i++) {
        n += (size_t)most_parts(b[i].m);
        l.tile_floats = num_max(l.tile_floats, tile_floats(b[i].m, b[i].y.n));
        l.widest = num_max(l.widest, widest_of(b[i].m));
    }
    l.ready = take(&at, MOST_READY * sizeof(struct device_ready));
    l.part = take(&at, 3 * n * sizeof(struct device_part));
    l.act = take(&at, n * sizeof(struct kern_act));
    l.task = take(&at, n * (size_t)pool_nodes(d->pool) * sizeof(struct task));
    l.lists = take(&at, device_cpu_parts_bytes(d, (int64_t)n));
    l.tile = take(&at, 2 * workers * (size_t)l.tile_floats * sizeof(float));
    l.decoded = take(&at, d->numerics == DEVICE_REFERENCE
                              ? workers * (size_t)l.widest * sizeof(float) : 0);
    for (int i = 0; i < n_blocks; i++) {
        const struct device_mlp *m = b[i].m;
        const bool direct = plain_kind(d, m->down) == KERN_ACT_Q32 && !may_split(d, m);
        const size_t floats = (size_t)(b[i].y.n * num_div_up(m->down->m.in, 16) * 16);
        l.floats[i] = take(&at, direct ? 0 : floats * sizeof(float));
    }
    l.rest = at;
    for (int i = 0; i < n_blocks; i++)
        take_codes(d, &b[i], &at);
    l.all = at;
    return l;
}

size_t device_cpu_mlp_codes(const struct device *d, const struct device_mlp_args *a)
{
    struct block b[CALLS];
    size_t at = 0;
    for (int i = 0, n = blocks_of(a, b); i < n; i++)
        take_codes(d, &b[i], &at);
    return at;
}

size_t device_cpu_mlp_scratch(const struct device *d, const struct device_mlp_args *a)
{
    struct block b[CALLS];
    const int n = blocks_of(a, b);
    return layout_of(d, b, n).all;
}

/* Each matrix that has rows is read once. */
static struct device_cost block_cost(const struct device_mlp *m, int64_t n_rows)
{
    double used = 1;
    for (int64_t e = 0; is_listed(m) && e < m->gate->n_stack; e++)
        used += (e == 0 ? -1.0 : 0.0) + has_rows(m, e);
    const double weights =
        (double)(m->gate->stack_bytes + (m->up ? m->up->stack_bytes : 0) + m->down->stack_bytes);
    return (struct device_cost){used * weights, 6.0 * (double)n_rows * (double)m->gate->m.in *
                                                    (double)m->down->m.in};
}

struct device_cost device_cpu_mlp_cost(const struct device_mlp_args *a)
{
    struct device_cost c = block_cost(a->m, a->y.n);
    if (a->second) {
        const struct device_cost more = block_cost(a->second->m, a->second->y.n);
        c.bytes += more.bytes;
        c.ops += more.ops;
    }
    return c;
}

/* at: where panel 0 of its matrix would be. */
static struct half half_of(const struct device *d, const struct device_part *part, uint8_t *at,
                           int64_t col0)
{
    const struct device_product *p = &part->p;
    struct half h = {part->fast,
                     p->w->m,
                     *part->x,
                     &part->near,
                     part->rows ? NULL : p->row,
                     col0,
                     p->w->scale ? p->w->scale[p->index] : 1.0f,
                     p->w->n_stack == 1 && p->w->piece ? p->w : NULL,
                     p->index};
    h.w.at = at;
    BUG_IF(!at);
    if (!h.run)
        h.run = kern_matmul_choose(&d->kern.matmul, &h.w, p->y.n);
    if (p->row) /* tiles are of rows that are not listed */
        h.x.tiles = NULL;
    if (part->rows) {
        h.x.q = part->rows;
        h.x.n = p->y.n;
    }
    return h;
}

/* Where the columns of a node end that has gate's panels before p: at whole groups, or at bands
 * where none is cut by that. */
static int64_t border(const struct device_mlp *m, int64_t p)
{
    const struct device_matrix *down = m->down;
    const bool any =
        m->gate->piece && down->m.act != KERN_ACT_Q256 && down->d->numerics != DEVICE_FAST;
    const int64_t unit = any ? BAND : SUPER, width = down->m.in,
                  at = p * KERN_PANEL / (m->up ? 1 : 2) / unit * unit;
    return p >= m->gate->m.n_panels ? width : num_min(at, width);
}

/* The columns of gate's rows, and of up's, that a node computes. */
static void columns_of(const struct device_mlp *m, int64_t index, int node, int64_t *c0,
                       int64_t *c1)
{
    int64_t p0, p1;
    device_matrix_share(m->gate, index, node, 0, &p0, &p1);
    if (m->gate->piece && is_listed(m)) { /* whole groups of hidden values */
        *c0 = num_min(p0 * KERN_PANEL, m->down->m.in);
        *c1 = num_min(p1 * KERN_PANEL, m->down->m.in);
    } else {
        *c0 = border(m, p0);
        *c1 = p0 < p1 ? border(m, p1) : *c0;
    }
}

/* What chunks are multiples of: groups of hidden values that they code, and bands, which are read
 * from end to end; half of a band where many threads would have one or two each. */
static int64_t grain_unit(const struct device *d, const struct hidden *to, int64_t fair)
{
    enum { MANY_THREADS = 8 };
    if (to->direct && to->act.kind == KERN_ACT_Q256)
        return SUPER;
    return to->direct && fair < KERN_BAND && pool_size(d->pool) >= MANY_THREADS ? BAND / 2 : BAND;
}

/* The columns of a node of part i.  fair: panels that keep all threads busy. */
static void add_task(struct job *j, const struct block *b, int64_t i, int node, int64_t fair)
{
    const struct device_mlp *m = b->m;
    const struct device_part *gate = &b->gates[i], *up = &b->gates[m->up ? b->n + i : i];
    const struct hidden *to = &b->to[is_listed(m) ? 0 : i];
    const int64_t index = gate->p.index, col0 = m->up ? 0 : m->down->m.in;
    uint8_t *gate_at = device_matrix_base(m->gate, index, node, 0),
            *up_at = device_matrix_base(up_of(m), index, node, m->up ? 0 : m->gate->n_halves - 1);
    int64_t c0, c1;
    columns_of(m, index, node, &c0, &c1);
    if (c0 >= c1)
        return;
    struct task *t = &j->task[j->n_tasks++];
    *t = (struct task){m,
                       {half_of(j->d, gate, gate_at, 0), half_of(j->d, up, up_at, col0)},
                       to,
                       is_listed(m) ? gate->p.row - m->row : 0,
                       gate->p.y.n,
                       c0,
                       c1,
                       0,
                       MOST_ROWS,
                       j->n_chunks};
    const int64_t grain = num_min(kern_matmul_grain(&m->gate->m, t->n), fair) * KERN_PANEL;
    const int64_t unit = grain_unit(j->d, to, fair);
    t->grain = num_max(1, grain / unit) * unit;
    j->n_chunks += num_div_up(t->c1 - t->c0, t->grain) * num_div_up(t->n, t->slice);
}

/* Parts of matrix w that have rows; returns their number. */
static int64_t list_part(const struct device *d, const struct block *b,
                         const struct device_matrix *w, struct device_part *to)
{
    const struct device_mlp *m = b->m;
    const struct sides *s = &b->s;
    int64_t n = 0;
    for (int64_t k = 0; !is_listed(m) && k < s->n; k++)
        to[n++] = (struct device_part){
            .p = {w, 0, rows_slice(b->x, s->first[k], s->end[k] - s->first[k]),
                  rows_slice(b->y, s->first[k], s->end[k] - s->first[k]), NULL},
            .fast = device_cpu_fast(d, w, s->prompt[k])};
    for (int64_t e = 0; is_listed(m) && e < m->gate->n_stack; e++) {
        const int32_t first = m->first[e], n_rows = m->first[e + 1] - first;
        if (has_rows(m, e))
            to[n++] = (struct device_part){
                .p = {w, e, b->x, rows_slice(b->y, first, n_rows), m->row + first},
                .fast = device_cpu_fast(d, w, false)};
    }
    return n;
}

/* Parts of gate and up of all blocks, then of down; returns how many the latter are. */
static int64_t list_parts(const struct device *d, struct block *b, int n_blocks,
                          struct device_part *part)
{
    int64_t n = 0;
    for (int i = 0; i < n_blocks; i++) {
        const struct device_mlp *m = b[i].m;
        b[i].gates = part;
        b[i].n = list_part(d, &b[i], m->gate, part);
        (void)list_part(d, &b[i], up_of(m), part + b[i].n);
        part += (m->up ? 2 : 1) * b[i].n;
    }
    for (int i = 0; i < n_blocks; i++) {
        b[i].downs = part + n;
        n += list_part(d, &b[i], b[i].m->down, b[i].downs);
    }
    return n;
}

/* The activations of down, of each side, from at on; returns the address after them. */
static uint8_t *place_hidden(const struct device *d, struct block *b, int64_t fair, float *floats,
                             uint8_t *at)
{
    const struct device_mlp *m = b->m;
    const int64_t width = m->down->m.in, stride = num_div_up(width, 16) * 16;
    for (int64_t k = 0; k < b->s.n; k++) {
        const int64_t n = b->s.end[k] - b->s.first[k];
        struct hidden *to = &b->to[k];
        kern_matmul_fn *fast = device_cpu_fast(d, m->down, b->s.prompt[k]);
        const enum kern_act_kind kind = device_cpu_act_kind(d, m->down, fast);
        to->direct =
            kind == KERN_ACT_Q32 || (kind == KERN_ACT_Q256 && fair * KERN_PANEL >= SUPER);
        kern_act_init(&to->act, kind, n, width,
                      to->direct && !may_split(d, m) ? NULL : floats + b->s.first[k] * stride,
                      stride, at);
        at += device_round64(kern_act_bytes(kind, n, width));
        if (!is_listed(m) && kind != KERN_ACT_F32 &&
            kern_matmul_tiles(&d->kern.matmul, &m->down->m, fast, n)) {
            to->act.tiles = at;
            at += device_round64(kern_act_tiles_bytes(kind, n, width));
        }
    }
    return at;
}

/* Parts of down read what is theirs of the hidden rows.  act: [n]. */
static void link_down(const struct block *b, struct kern_act *act)
{
    for (int64_t i = 0; i < b->n; i++) {
        struct device_product *p = &b->downs[i].p;
        const bool listed = is_listed(b->m);
        act[i] = b->to[listed ? 0 : i].act;
        b->downs[i].near = b->to[listed ? 0 : i].near;
        if (listed) {
            const int64_t first = p->row - b->m->row;
            act[i].n = p->y.n;
            act[i].x += act[i].x ? first * act[i].stride : 0;
            act[i].q += act[i].q ? (size_t)first * act[i].row_bytes : 0;
        }
        p->row = NULL;
        p->x = (struct rows){NULL, p->y.n, b->m->down->m.in, 0};
        b->downs[i].x = &act[i];
    }
}

static void run_gates(struct job *j, const struct block *b, int n_blocks, int64_t fair)
{
    int64_t work = 0;
    struct device_share share;
    for (int node = 0; node < pool_nodes(j->d->pool); node++) {
        share.from[node] = j->n_chunks;
        for (int k = 0; k < n_blocks; k++)
            for (int64_t i = 0; i < b[k].n; i++)
                add_task(j, &b[k], i, node, fair);
        share.n[node] = j->n_chunks - share.from[node];
    }
    for (int k = 0; k < n_blocks; k++)
        for (int64_t i = 0; i < b[k].n; i++)
            work += b[k].gates[i].p.y.n * b[k].m->gate->m.in * 2 * b[k].m->down->m.in;
    device_cpu_for_placed(j->d, &share, work, gate_chunk, j);
}

static void check_block(const struct block *b)
{
    const struct device_mlp *m = b->m;
    const int64_t width = m->down->m.in;
    BUG_IF(m->gate->m.out != (m->up ? width : 2 * width) || up_of(m)->m.out != m->gate->m.out);
    BUG_IF(is_listed(m) && !m->gate->piece != !up_of(m)->piece);
    BUG_IF(b->x.width != m->gate->m.in || b->y.width != m->down->m.out ||
           (is_listed(m) ? !m->first : b->x.n != b->y.n));
}

void device_cpu_mlp(struct device *d, const void *args, void *scratch)
{
    struct block b[CALLS];
    const int n_blocks = blocks_of(args, b);
    const struct layout l = layout_of(d, b, n_blocks);
    uint8_t *const at = scratch, *rest = at + l.rest;
    struct device_part *const part = (struct device_part *)(void *)(at + l.part);
    struct kern_act *act = (struct kern_act *)(void *)(at + l.act);
    int64_t panels = 0;
    for (int k = 0; k < n_blocks; k++) {
        check_block(&b[k]);
        b[k].s = is_listed(b[k].m) ? (struct sides){1, {0}, {b[k].y.n}, {false}}
                                   : sides_of(d, b[k].m, b[k].y.n);
    }
    const int64_t n_down = list_parts(d, b, n_blocks, part);
    for (int k = 0; k < n_blocks; k++)
        panels += b[k].n * num_div_up(b[k].m->down->m.in, KERN_PANEL);
    const int64_t fair = num_max(1, panels / (4 * pool_size(d->pool)));
    for (int k = 0; k < n_blocks; k++)
        rest = place_hidden(d, &b[k], fair, (float *)(void *)(at + l.floats[k]), rest);
    (void)device_cpu_ready(d, part, b[0].downs - part,
                           (struct device_ready *)(void *)(at + l.ready), rest);
    float *decoded = d->numerics == DEVICE_REFERENCE ? (float *)(void *)(at + l.decoded) : NULL;
    struct job j = {.d = d,
                    .task = (struct task *)(void *)(at + l.task),
                    .tile = (float *)(void *)(at + l.tile),
                    .tile_floats = l.tile_floats,
                    .decoded = decoded,
                    .widest = l.widest};
    run_gates(&j, b, n_blocks, fair);
    for (int k = 0; k < n_blocks; k++) {
        for (int64_t i = 0; i < b[k].s.n; i++) {
            struct hidden *to = &b[k].to[i];
            const bool by_all = device_cpu_prepare(d, &to->act, to->direct);
            to->near = device_cpu_near(d, &to->act, by_all || to->direct);
        }
        link_down(&b[k], act);
        act += b[k].n;
    }
    device_cpu_parts(d, b[0].downs, n_down, at + l.lists, decoded, l.widest);
}
