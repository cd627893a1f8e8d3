/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_product - products, gated products and rows of matrices on the card.
 *
 * Activations are prepared once for each (x, kind) of a list, as the processor does it. A gated
 * product goes in pieces of rows whose hidden rows have room in the scratch.
 */
#include "base/bug.h"
#include "device/gpu/memory.h"
#include "base/num.h"
#include "device/cpu_matmul.h"
#include "device/gpu/run.h"

enum { HIDDEN_BYTES = 16 << 20, MOST_ROWS = 3 };

/* ---- kernels of a code ---- */

struct code {
    uint32_t type;
    bool floats; /* activations stay f32: of Q8_0 two codes exist */
    enum gpu_kernel product[MOST_ROWS], embed;
    enum gpu_kernel many; /* a card may do without: those of codes want matrix instructions */
    int64_t many_from;    /* rows */
};
#define FLOATS(type, name)                                                              \
    {QUANT_##type, true, {GPU_K_product_##name##_1, GPU_K_product_##name##_2,           \
                          GPU_K_product_##name##_3}, GPU_K_embed_##name, GPU_K_many_##name, \
     MANY_FLOATS_FROM},
#define CODE(type, name)                                                                \
    {QUANT_##type, false, {GPU_K_product_##name##_1, GPU_K_product_##name##_2,          \
                           GPU_K_product_##name##_3}, GPU_K_embed_##name, GPU_K_many_##name, \
     MANY_FROM},
static const struct code codes[] = {
    FLOATS(F32, f32) FLOATS(F16, f16) FLOATS(BF16, bf16)
    FLOATS(FP8_B32, f8) FLOATS(FP8_S32, f8s) FLOATS(Q8_0, w8)
    CODE(Q4_0, q4_0) CODE(Q4_1, q4_1) CODE(Q5_0, q5_0)
    CODE(Q5_1, q5_1) CODE(Q8_0, q8_0) CODE(IQ4_NL, iq4_nl)
    CODE(MXFP4, mxfp4) CODE(NVFP4, nvfp4) CODE(Q1_0, q1_0)
    CODE(Q2_0, q2_0) CODE(Q2_K, q2_k) CODE(Q3_K, q3_k)
    CODE(Q4_K, q4_k) CODE(Q5_K, q5_k) CODE(Q6_K, q6_k)
    CODE(IQ4_XS, iq4_xs) CODE(TQ2_0, tq2_0) CODE(IQ2_XXS, iq2_xxs)
    CODE(IQ2_XS, iq2_xs) CODE(IQ2_S, iq2_s) CODE(IQ3_XXS, iq3_xxs)
    CODE(IQ3_S, iq3_s)
};

static const struct code *code_of(const struct device_matrix *m)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].type == m->m.type && codes[i].floats == (m->m.act == KERN_ACT_F32))
            return &codes[i];
    return NULL;
}

/* Whether the card has what it takes. */
static bool has(struct device *d, const struct device_matrix *m)
{
    const struct code *c = code_of(m);
    if (!c || (m->m.act == KERN_ACT_Q32 && !device_gpu_has(d, GPU_K_row_act32)) ||
        (m->m.act == KERN_ACT_Q256 && !device_gpu_has(d, GPU_K_row_act256)))
        return false;
    for (int i = 0; i < MOST_ROWS; i++)
        if (!device_gpu_has(d, c->product[i]))
            return false;
    (void)device_gpu_has_faster(d, c->many); /* loaded before a step wants it */
    return true;
}

const char *device_card_refuses(struct device *d, const struct device_matrix *m)
{
    if (!device_card(d))
        return "there is no card";
    if (d->numerics == DEVICE_FAST && kern_matmul_fast(&d->kern.matmul, &m->m, true))
        return "the recipe of --numerics fast is the processor's";
    d->gpu->is_new = false;
    return has(d, m) ? NULL : device_gpu_why(d, "the card has no kernels for them");
}

/* ---- activations ---- */

static struct kern_act form_of(enum kern_act_kind kind, int64_t n, int64_t k)
{
    struct kern_act a;
    kern_act_init(&a, kind, n, k, NULL, 0, NULL);
    return a;
}

static size_t act_bytes(enum kern_act_kind kind, int64_t n, int64_t k)
{
    return device_round64(kern_act_bytes(kind, n, k));
}

/* Prepared rows, on the card. */
struct ready {
    const uint8_t *at;
    int64_t row_bytes;
};

/* In memory from *at on, which moves.  glu: x is the gate of it, or NULL. */
static struct ready prepare(struct device *d, enum kern_act_kind kind, const float *x,
                            int64_t stride, int64_t n, int64_t k, const struct row_glu_args *glu,
                            uint8_t **at)
{
    if (kind == KERN_ACT_F32 && glu)
        (void)GPU_LAUNCH(d, row_glu, row_glu_grid(glu), glu);
    if (kind == KERN_ACT_F32)
        return (struct ready){(const uint8_t *)x, stride * (int64_t)sizeof *x};
    const struct kern_act form = form_of(kind, n, k);
    struct row_act_args a = {.x = x,
                             .q = *at,
                             .x_stride = stride,
                             .q_bytes = (int64_t)form.row_bytes,
                             .n_rows = (int32_t)n,
                             .k = (int32_t)k};
    if (glu) {
        a.up = glu->up;
        a.up_stride = glu->up_stride;
        a.gelu = glu->gelu;
        a.limit = glu->limit;
    }
    if (kind == KERN_ACT_Q32)
        (void)GPU_LAUNCH(d, row_act32, row_act32_grid(&a), &a);
    else
        (void)GPU_LAUNCH(d, row_act256, row_act256_grid(&a), &a);
    const struct ready r = {*at, (int64_t)form.row_bytes};
    *at += act_bytes(kind, n, k);
    return r;
}

/* ---- one launch ---- */

static int64_t whole16(int64_t n) { return num_div_up(n, 16) * 16; }

/* Rows for each matrix of a stack; all addresses are the card's. */
struct lists {
    const int32_t *first, *row;
    const uint8_t *only;
};

/* second: the other one of a pair, whose y follows in the same rows; or NULL. */
static bool launch(struct device *d, const struct device_matrix *m,
                   const struct device_matrix *second, int64_t index, struct ready x,
                   const struct lists *of, float *y, int64_t y_stride, int64_t n, int64_t band0,
                   int64_t n_bands)
{
    const struct code *c = code_of(m);
    const int rows = (int)num_min(n, MOST_ROWS);
    struct product_args a = {.stack_step = (int64_t)m->stack_bytes,
                             .panel_bytes = (int64_t)m->m.panel_bytes,
                             .stretch_bytes = (int64_t)m->m.stretch_bytes,
                             .x = x.at,
                             .x_row_bytes = x.row_bytes,
                             .row = of->row,
                             .first = of->first,
                             .only = of->only,
                             .y = y,
                             .y_stride = y_stride,
                             .out = (int32_t)m->m.out,
                             .in = (int32_t)m->m.in,
                             .n_panels = (int32_t)m->m.n_panels,
                             .n = (int32_t)n,
                             .n_stack = of->first ? (int32_t)m->n_stack : 1,
                             .index = (int32_t)index,
                             .band0 = (int32_t)band0,
                             .n_bands = (int32_t)n_bands};
    if (n < 1)
        return true;
    a.w = m->card;
    if (!m->card)
        a.each = device_gpu_stage(d, m->own, (size_t)m->n_stack * sizeof *a.each);
    a.scale = m->card_scale;
    if (m->scale && !a.scale)
        a.scale = device_gpu_stage(d, m->scale, (size_t)m->n_stack * sizeof *a.scale);
    if ((!m->card && !a.each) || (m->scale && !a.scale))
        return false;
    if (second) {
        a.w2 = second->card;
        a.scale2 = second->card_scale;
        a.y2 = whole16(m->m.out);
    }
    if (n >= c->many_from && device_gpu_has(d, c->many))
        return device_gpu_launch(d, c->many, many_grid(&a), &a, sizeof a, 0);
    a.book = product_book(m->m.type);
    a.parts = product_parts(m->m.in, kern_matrix_slice(&m->m), rows, a.book);
    return device_gpu_launch(d, c->product[rows - 1], product_grid(&a, rows), &a, sizeof a,
                             (size_t)product_shared(&a, rows));
}

static int64_t bands_of(const struct device_matrix *m)
{
    return num_div_up(m->m.out, PRODUCT_BAND);
}

/* ---- lists of products ---- */

static bool same_x(const struct device_product *a, const struct device_product *b)
{
    return a->x.at == b->x.at && a->x.n == b->x.n && a->x.width == b->x.width &&
           a->x.stride == b->x.stride && a->w->m.act == b->w->m.act;
}

static int64_t before(const struct device_matmul_args *a, int64_t i)
{
    int64_t j = 0;
    while (j < i && !same_x(&a->p[j], &a->p[i]))
        j++;
    return j;
}

/* The host's list of them; what they are is after it, on the card. */
static size_t ready_bytes(int64_t n)
{
    return device_round64((size_t)n * sizeof(struct ready));
}

size_t device_gpu_matmul_scratch(const struct device *d, const struct device_matmul_args *a)
{
    size_t n = ready_bytes(a->n);
    (void)d;
    for (int64_t i = 0; i < a->n; i++)
        if (a->p[i].w->m.act != KERN_ACT_F32 && before(a, i) == i)
            n += act_bytes(a->p[i].w->m.act, a->p[i].x.n, a->p[i].x.width);
    return n;
}

static void one_product(struct device *d, const struct device_matmul_args *a,
                        const struct device_product *p, struct ready x)
{
    struct lists of = {NULL, NULL, NULL};
    if (p->row && !(of.row = device_gpu_list(d, p->row, (size_t)p->y.n * sizeof *p->row)))
        return;
    float *y = gpu_rows(d, p->y);
    if (!a->n_only)
        (void)launch(d, p->w, NULL, p->index, x, &of, y, p->y.stride, p->y.n, 0, bands_of(p->w));
    for (int64_t i = 0; i < a->n_only; i++)
        (void)launch(d, p->w, NULL, p->index, x, &of, y, p->y.stride, p->y.n,
                     a->only[i].first / PRODUCT_BAND, num_div_up(a->only[i].n, PRODUCT_BAND));
}

GPU_RUN(matmul)
{
    const struct device_matmul_args *a = args;
    struct ready *ready = scratch;
    uint8_t *at = device_gpu_address(d->gpu, scratch);
    if (!at)
        return false;
    at += ready_bytes(a->n);
    for (int64_t i = 0; i < a->n; i++)
        if (a->p[i].y.n && !has(d, a->p[i].w))
            return false;
    for (int64_t i = 0; i < a->n; i++) {
        const struct device_product *p = &a->p[i];
        const int64_t j = before(a, i);
        ready[i] = j < i ? ready[j]
                         : prepare(d, p->w->m.act, gpu_rows(d, p->x), p->x.stride, p->x.n,
                                   p->x.width, NULL, &at);
        if (p->y.n)
            one_product(d, a, p, ready[i]);
    }
    return true;
}

/* ---- gated products ---- */

static bool is_listed(const struct device_mlp *m) { return m->gate->n_stack > 1; }
static const struct device_matrix *up_of(const struct device_mlp *m)
{
    return m->up ? m->up : m->gate;
}

/* Gate and up in one launch. */
static bool is_pair(const struct device_mlp *m)
{
    const struct device_matrix *g = m->gate, *u = m->up;
    return u && g->card && u->card && g->m.type == u->m.type && g->m.act == u->m.act &&
           g->m.out == u->m.out && g->m.in == u->m.in && g->n_stack == u->n_stack &&
           g->stack_bytes == u->stack_bytes && !g->scale == !g->card_scale &&
           !u->scale == !u->card_scale;
}

/* Where things are in the scratch: prepared x of gate and of up, hidden rows, prepared ones. */
struct plan { size_t hidden, act, all; int64_t rows, stride; };

static struct plan plan_of(const struct device_mlp_args *a)
{
    const struct device_mlp *m = a->m;
    struct plan p = {.stride = whole16(m->gate->m.out) + (m->up ? whole16(m->up->m.out) : 0)};
    const size_t row = (size_t)p.stride * sizeof(float);
    p.rows = is_listed(m) ? a->y.n : num_max(1, num_min(a->y.n, (int64_t)(HIDDEN_BYTES / row)));
    const size_t x = act_bytes(m->gate->m.act, a->x.n, m->gate->m.in);
    p.hidden = x + (up_of(m)->m.act != m->gate->m.act
                        ? act_bytes(up_of(m)->m.act, a->x.n, m->gate->m.in)
                        : 0);
    p.act = p.hidden + device_round64((size_t)p.rows * row);
    p.all = p.act + act_bytes(m->down->m.act, p.rows, m->down->m.in);
    return p;
}

size_t device_gpu_mlp_scratch(const struct device *d, const struct device_mlp_args *a)
{
    (void)d;
    return plan_of(a).all;
}

/* Rows [row0, row0 + n) of y; of a stack all of them. */
static bool mlp_rows(struct device *d, const struct device_mlp_args *a, const struct plan *p,
                     const struct lists *of, const struct ready *x, uint8_t *at, int64_t row0,
                     int64_t n)
{
    const struct device_mlp *m = a->m;
    const int64_t width = m->down->m.in,
                  most = is_listed(m) ? num_min(n, a->x.n) : n; /* rows of a matrix */
    float *gate = (float *)(void *)(at + p->hidden),
          *up = gate + (m->up ? whole16(m->gate->m.out) : width);
    uint8_t *act = at + p->act;
    const struct lists down = {of->first, NULL, of->only};
    const struct ready g = {x[0].at + row0 * x[0].row_bytes, x[0].row_bytes},
                       u = {x[1].at + row0 * x[1].row_bytes, x[1].row_bytes};
    const bool pair = is_pair(m);
    if (!launch(d, m->gate, pair ? m->up : NULL, 0, g, of, gate, p->stride, most, 0,
                bands_of(m->gate)) ||
        (m->up && !pair &&
         !launch(d, m->up, NULL, 0, u, of, up, p->stride, most, 0, bands_of(m->up))))
        return false;
    const struct row_glu_args k = {gate, gate, up, p->stride, p->stride, p->stride, (int32_t)n,
                                   (int32_t)width, m->act == DEVICE_GELU, m->limit};
    const struct ready h = prepare(d, m->down->m.act, gate, p->stride, n, width, &k, &act);
    return launch(d, m->down, NULL, 0, h, &down, gpu_rows(d, a->y) + row0 * a->y.stride,
                  a->y.stride, most, 0, bands_of(m->down));
}

GPU_RUN(mlp)
{
    const struct device_mlp_args *a = args;
    const struct device_mlp *m = a->m;
    const struct plan p = plan_of(a);
    uint8_t *const base = device_gpu_address(d->gpu, scratch), *at = base;
    struct lists of = {NULL, NULL, NULL};
    struct ready x[2];
    if (!base || !has(d, m->gate) || !has(d, m->down) || (m->up && !has(d, m->up)) ||
        !device_gpu_has(d, GPU_K_row_glu))
        return false;
    if (is_listed(m)) {
        const size_t n = (size_t)m->gate->n_stack;
        of.first = device_gpu_list(d, m->first, (n + 1) * sizeof *m->first);
        of.row = of.first ? device_gpu_list(d, m->row, (size_t)a->y.n * sizeof *m->row) : NULL;
        of.only = of.row && m->only ? device_gpu_list(d, m->only, n) : NULL;
        if (!of.row || (m->only && !of.only))
            return d->gpu->lost;
    }
    const float *from = gpu_rows(d, a->x);
    x[0] = prepare(d, m->gate->m.act, from, a->x.stride, a->x.n, a->x.width, NULL, &at);
    x[1] = x[0];
    if (up_of(m)->m.act != m->gate->m.act)
        x[1] = prepare(d, m->up->m.act, from, a->x.stride, a->x.n, a->x.width, NULL, &at);
    for (int64_t row = 0; row < a->y.n; row += p.rows)
        if (!mlp_rows(d, a, &p, &of, x, base, row, num_min(p.rows, a->y.n - row)))
            break;
    return true;
}

/* ---- rows of a matrix ---- */

GPU_RUN(embed)
{
    const struct device_embed_args *a = args;
    const struct device_matrix *m = a->m;
    const struct code *c = code_of(m);
    (void)scratch;
    if (!m->card || m->scale || !c || !device_gpu_has(d, c->embed))
        return false;
    const int32_t *tokens = device_gpu_list(d, a->tokens, (size_t)a->y.n * sizeof *tokens);
    if (!tokens)
        return d->gpu->lost;
    const struct embed_args k = {m->card,
                                 (int64_t)m->m.panel_bytes,
                                 (int64_t)m->m.stretch_bytes,
                                 tokens,
                                 gpu_rows(d, a->y),
                                 a->y.stride,
                                 a->scale,
                                 (int32_t)m->m.in,
                                 (int32_t)m->m.n_panels,
                                 (int32_t)a->y.n};
    (void)device_gpu_launch(d, c->embed, embed_grid(&k), &k, sizeof k, 0);
    return true;
}
