/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_mlp - gated products and the way back, without what lies between them in memory.
 *
 * A chunk computes the same columns of gate and up for some rows into the second cache, where they
 * become act(gate) * up, and groups of it are quantised there for the way back, if the chunk has
 * whole ones. So of f32 [n][2 width] nothing but the activations of down [n][width] is written.
 */
#include "base/bug.h"
#include "base/num.h"
#include "device/cpu_matmul.h"

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
    BESIDE = 2 * BAND,             /* columns of a tile that are computed for nobody */
};

/* The activations of down for all rows, or for those of a prompt or the others. */
struct hidden {
    struct kern_act act;
    bool direct; /* chunks quantise it */
};

/* gate or up of a task. */
struct half {
    kern_matmul_fn *run;
    struct kern_matrix w;
    struct kern_act x;
    const int32_t *row; /* host, or NULL: one after another */
    int64_t col0;       /* its first column in w */
    float scale;
};

/* The columns of some rows that belong to a node. */
struct task {
    struct half half[2];
    const struct hidden *to;
    int64_t to_row, n;
    int64_t c0, c1;
    int64_t grain, slice; /* columns and rows a chunk */
    int64_t first;        /* number of the first chunk */
};

struct job {
    struct device *d;
    const struct device_mlp *mlp;
    struct task *task;
    int64_t n_tasks, n_chunks;
    float *tile;    /* [workers][2][tile_floats] */
    int64_t tile_floats;
    float *decoded; /* reference numerics: f32 [workers][widest] */
    int64_t widest;
};

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
    if (!h->row && row0) {
        x.x += row0 * x.stride;
        if (x.q)
            x.q += (size_t)row0 * x.row_bytes;
        if (x.tiles)
            x.tiles += kern_act_tiles_at(x.kind, row0);
    }
    const struct kern_matmul mm = {&w, &x, h->row ? h->row + row0 : NULL, n, to, stride};
    const int64_t p0 = at / KERN_PANEL, p1 = num_div_up(at + c1 - c0, KERN_PANEL);
    kern_touch_matmul(&mm, p0, p1);
    if (j->decoded)
        kern_matmul_reference(&mm, p0, p1, j->decoded + worker * j->widest);
    else
        h->run(&mm, p0, p1);
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
    const int64_t stride = num_div_up(c1 - c0, KERN_PANEL) * KERN_PANEL + BESIDE,
                  first = t->to_row + row0;
    float *tile = j->tile + 2 * worker * j->tile_floats;
    float *gate = compute(j, &t->half[0], row0, n, c0, c1, tile, stride, worker);
    float *up = compute(j, &t->half[1], row0, n, c0, c1, tile + j->tile_floats, stride, worker);
    for (int64_t i = 0; i < n; i++) {
        float *y = t->to->direct ? gate + i * stride
                                 : (float *)(uintptr_t)to->x + (first + i) * to->stride + c0;
        device_cpu_gate(&k->math, j->mlp->act, j->mlp->limit, y, gate + i * stride, up + i * stride,
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

enum { SIDES = 2, MOST_READY = 2 * SIDES };

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

/* Where each thing of the operation lies in its scratch; the same order in a dry run. */
struct layout {
    size_t ready, part, act, task, lists, tile, decoded, floats, rest, all;
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
           rows * (BESIDE + KERN_PANEL);
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

static struct layout layout_of(const struct device *d, const struct device_mlp_args *a)
{
    const struct device_mlp *m = a->m;
    const size_t n = (size_t)most_parts(m), workers = (size_t)pool_size(d->pool);
    const int64_t rows = a->y.n;
    struct layout l;
    size_t at = 0;
    l.ready = take(&at, MOST_READY * sizeof(struct device_ready));
    l.part = take(&at, 3 * n * sizeof(struct device_part));
    l.act = take(&at, n * sizeof(struct kern_act));
    l.task = take(&at, n * (size_t)pool_nodes(d->pool) * sizeof(struct task));
    l.lists = take(&at, device_cpu_parts_bytes(d, (int64_t)n));
    l.tile = take(&at, 2 * workers * (size_t)tile_floats(m, rows) * sizeof(float));
    l.decoded = take(
        &at, d->numerics == DEVICE_REFERENCE ? workers * (size_t)widest_of(m) * sizeof(float) : 0);
    const bool direct = plain_kind(d, m->down) == KERN_ACT_Q32 && !may_split(d, m);
    l.floats =
        take(&at, direct ? 0 : (size_t)(rows * num_div_up(m->down->m.in, 16) * 16) * sizeof(float));
    l.rest = take(&at, act_bytes(d, m, m->down, rows));
    (void)take(&at, act_bytes(d, m, m->gate, a->x.n));
    if (plain_kind(d, m->gate) != plain_kind(d, up_of(m)))
        (void)take(&at, act_bytes(d, m, m->up, a->x.n));
    if (is_listed(m)) { /* rows brought together */
        (void)take(&at, kern_act_bytes(plain_kind(d, m->gate), rows, m->gate->m.in) + 64 * n);
        (void)take(&at, kern_act_bytes(plain_kind(d, up_of(m)), rows, m->gate->m.in) + 64 * n);
    }
    l.all = at;
    return l;
}

size_t device_cpu_mlp_scratch(const struct device *d, const struct device_mlp_args *a)
{
    return layout_of(d, a).all;
}

/* Each matrix that has rows is read once. */
struct device_cost device_cpu_mlp_cost(const struct device_mlp_args *a)
{
    const struct device_mlp *m = a->m;
    double used = 1;
    for (int64_t e = 0; is_listed(m) && e < m->gate->n_stack; e++)
        used += (e == 0 ? -1.0 : 0.0) + has_rows(m, e);
    const double weights =
        (double)(m->gate->stack_bytes + (m->up ? m->up->stack_bytes : 0) + m->down->stack_bytes);
    return (struct device_cost){used * weights, 6.0 * (double)a->y.n * (double)m->gate->m.in *
                                                    (double)m->down->m.in};
}

static struct half half_of(const struct device *d, const struct device_part *part, int64_t col0)
{
    const struct device_product *p = &part->p;
    struct half h = {part->fast, p->w->m, *part->x, part->rows ? NULL : p->row, col0,
                     p->w->scale ? p->w->scale[p->index] : 1.0f};
    h.w.at = device_matrix_at(p->w, p->index);
    BUG_IF(!h.w.at);
    if (!h.run)
        h.run = kern_matmul_choose(&d->kern.matmul, &h.w, p->y.n);
    if (part->rows) {
        h.x.q = part->rows;
        h.x.tiles = NULL;
        h.x.n = p->y.n;
    }
    return h;
}

/* Where the columns of a node end that has gate's panels before p: at whole groups. */
static int64_t border(const struct device_mlp *m, int64_t p)
{
    const int64_t width = m->down->m.in, at = p * KERN_PANEL / (m->up ? 1 : 2) / SUPER * SUPER;
    return p >= m->gate->m.n_panels ? width : num_min(at, width);
}

/* The columns of a node.  fair: panels that keep all threads busy. */
static void add_task(struct job *j, const struct device_part *gate, const struct device_part *up,
                     const struct hidden *to, int64_t to_row, int node, int64_t fair)
{
    const struct device_mlp *m = j->mlp;
    int64_t p0, p1;
    device_matrix_share(m->gate, gate->p.index, node, &p0, &p1);
    if (p0 >= p1 || border(m, p0) >= border(m, p1))
        return;
    struct task *t = &j->task[j->n_tasks++];
    *t = (struct task){{half_of(j->d, gate, 0), half_of(j->d, up, m->up ? 0 : m->down->m.in)},
                       to,
                       to_row,
                       gate->p.y.n,
                       border(m, p0),
                       border(m, p1),
                       0,
                       MOST_ROWS,
                       j->n_chunks};
    const int64_t grain = num_min(kern_matmul_grain(&m->gate->m, t->n), fair) * KERN_PANEL;
    const int64_t unit = to->direct && to->act.kind == KERN_ACT_Q256 ? SUPER : BAND;
    t->grain = num_max(1, grain / unit) * unit;
    j->n_chunks += num_div_up(t->c1 - t->c0, t->grain) * num_div_up(t->n, t->slice);
}

/* Parts of gate, up and down: [3][n]; returns n. */
static int64_t list_parts(const struct device *d, const struct device_mlp_args *a,
                          const struct sides *s, struct device_part *part)
{
    const struct device_mlp *m = a->m;
    const struct device_matrix *w[3] = {m->gate, up_of(m), m->down};
    int64_t n = 0;
    for (int64_t e = 0; is_listed(m) && e < m->gate->n_stack; e++)
        n += has_rows(m, e);
    n = is_listed(m) ? n : s->n;
    for (int i = 0; i < 3; i++) {
        struct device_part *to = part + i * n;
        for (int64_t k = 0; !is_listed(m) && k < s->n; k++)
            *to++ = (struct device_part){
                .p = {w[i], 0, rows_slice(a->x, s->first[k], s->end[k] - s->first[k]),
                      rows_slice(a->y, s->first[k], s->end[k] - s->first[k]), NULL},
                .fast = device_cpu_fast(d, w[i], s->prompt[k])};
        for (int64_t e = 0; is_listed(m) && e < m->gate->n_stack; e++) {
            const int32_t first = m->first[e], n_rows = m->first[e + 1] - first;
            if (has_rows(m, e))
                *to++ = (struct device_part){
                    .p = {w[i], e, a->x, rows_slice(a->y, first, n_rows), m->row + first},
                    .fast = device_cpu_fast(d, w[i], false)};
        }
    }
    return n;
}

/* The activations of down, of each side, from at on; returns what is behind. */
static uint8_t *place_hidden(const struct device *d, const struct device_mlp *m,
                             const struct sides *s, int64_t fair, float *floats, uint8_t *at,
                             struct hidden *to)
{
    const int64_t width = m->down->m.in, stride = num_div_up(width, 16) * 16;
    for (int64_t k = 0; k < s->n; k++) {
        const int64_t n = s->end[k] - s->first[k];
        kern_matmul_fn *fast = device_cpu_fast(d, m->down, s->prompt[k]);
        const enum kern_act_kind kind = device_cpu_act_kind(d, m->down, fast);
        to[k].direct =
            kind == KERN_ACT_Q32 || (kind == KERN_ACT_Q256 && fair * KERN_PANEL >= SUPER);
        kern_act_init(&to[k].act, kind, n, width,
                      to[k].direct && !may_split(d, m) ? NULL : floats + s->first[k] * stride,
                      stride, at);
        at += device_round64(kern_act_bytes(kind, n, width));
        if (!is_listed(m) && kind != KERN_ACT_F32 &&
            kern_matmul_tiles(&d->kern.matmul, &m->down->m, fast, n)) {
            to[k].act.tiles = at;
            at += device_round64(kern_act_tiles_bytes(kind, n, width));
        }
    }
    return at;
}

/* Parts of down read what is theirs of the hidden rows.  act: [n]. */
static void link_down(const struct device_mlp_args *a, const struct hidden *from,
                      struct device_part *down, int64_t n, struct kern_act *act)
{
    for (int64_t i = 0; i < n; i++) {
        struct device_product *p = &down[i].p;
        const bool listed = is_listed(a->m);
        act[i] = from[listed ? 0 : i].act;
        if (listed) {
            const int64_t first = p->row - a->m->row;
            act[i].n = p->y.n;
            act[i].x += act[i].x ? first * act[i].stride : 0;
            act[i].q += act[i].q ? (size_t)first * act[i].row_bytes : 0;
        }
        p->row = NULL;
        p->x = (struct rows){NULL, p->y.n, a->m->down->m.in, 0};
        down[i].x = &act[i];
    }
}

static void run_gates(struct job *j, struct device_part *part, int64_t n, const struct hidden *to,
                      int64_t fair)
{
    const struct device_mlp *m = j->mlp;
    int64_t work = 0;
    struct device_share share;
    for (int node = 0; node < pool_nodes(j->d->pool); node++) {
        share.from[node] = j->n_chunks;
        for (int64_t i = 0; i < n; i++) {
            const bool listed = is_listed(m);
            add_task(j, &part[i], &part[m->up ? n + i : i], &to[listed ? 0 : i],
                     listed ? part[i].p.row - m->row : 0, node, fair);
        }
        share.n[node] = j->n_chunks - share.from[node];
    }
    for (int64_t i = 0; i < n; i++)
        work += part[i].p.y.n * m->gate->m.in * 2 * m->down->m.in;
    device_cpu_for_placed(j->d, &share, work, gate_chunk, j);
}

void device_cpu_mlp(struct device *d, const void *args, void *scratch)
{
    const struct device_mlp_args *a = args;
    const struct device_mlp *m = a->m;
    const int64_t width = m->down->m.in;
    BUG_IF(m->gate->m.out != (m->up ? width : 2 * width) || up_of(m)->m.out != m->gate->m.out);
    BUG_IF(a->x.width != m->gate->m.in || a->y.width != m->down->m.out ||
           (is_listed(m) ? !m->first : a->x.n != a->y.n));
    const struct layout l = layout_of(d, a);
    uint8_t *const at = scratch;
    struct sides s = {1, {0}, {a->y.n}, {false}};
    if (!is_listed(m))
        s = sides_of(d, m, a->y.n);
    struct device_part *part = (struct device_part *)(void *)(at + l.part);
    const int64_t n = list_parts(d, a, &s, part);
    const int64_t fair = num_max(1, n * num_div_up(width, KERN_PANEL) / (4 * pool_size(d->pool)));
    struct hidden to[SIDES] = {0};
    uint8_t *rest = place_hidden(d, m, &s, fair, (float *)(void *)(at + l.floats), at + l.rest, to);
    (void)device_cpu_ready(d, part, (m->up ? 2 : 1) * n,
                           (struct device_ready *)(void *)(at + l.ready), rest);
    float *decoded = d->numerics == DEVICE_REFERENCE ? (float *)(void *)(at + l.decoded) : NULL;
    struct job j = {.d = d,
                    .mlp = m,
                    .task = (struct task *)(void *)(at + l.task),
                    .tile = (float *)(void *)(at + l.tile),
                    .tile_floats = tile_floats(m, a->y.n),
                    .decoded = decoded,
                    .widest = widest_of(m)};
    run_gates(&j, part, n, to, fair);
    for (int64_t k = 0; k < s.n; k++)
        device_cpu_prepare(d, &to[k].act, to[k].direct);
    link_down(a, to, part + 2 * n, n, (struct kern_act *)(void *)(at + l.act));
    device_cpu_parts(d, part + 2 * n, n, at + l.lists, decoded, j.widest);
}
