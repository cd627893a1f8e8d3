/* SPDX-License-Identifier: Apache-2.0 */
/* place - where each operation runs, and the processor in the card's place. */
#include "base/num.h"
#include "device/gpu/card.h"
#include "device/gpu/memory.h"
#include "device/gpu/kernel.h"

/* ---- where an operation runs ---- */

struct look {
    struct device_gpu *g;
    enum gpu_newer first;
    bool foreign, any; /* foreign: rows that the card cannot have; any: first is set */
};

static void look_at(void *arg, const struct gpu_use *use)
{
    struct look *l = arg;
    const struct gpu_region *r = device_gpu_region_of(l->g, use->at);
    const struct gpu_piece *p = r && r->card ? device_gpu_piece_of(r, use->at) : NULL;
    if (!p && (!(use->how & GPU_LIST) || (use->how & GPU_WRITES)))
        l->foreign = true;
    if (p && !l->any && !(use->how & GPU_LIST) && (use->how & GPU_READS)) {
        l->first = p->newer;
        l->any = true;
    }
}

enum place { PLACE_ANY, PLACE_HOST, PLACE_CARD, PLACE_BOTH };

static enum place with(enum place a, bool on_card)
{
    const enum place p = on_card ? PLACE_CARD : PLACE_HOST;
    return a == PLACE_ANY || a == p ? p : PLACE_BOTH;
}

static enum place part_place(const struct device_mlp *m, int64_t e)
{
    enum place p = with(PLACE_ANY, device_gpu_weights(m->gate, e) != NULL);
    p = with(p, device_gpu_weights(m->down, e) != NULL);
    return m->up ? with(p, device_gpu_weights(m->up, e) != NULL) : p;
}

/* Matrices of one gated product on different sides: the processor has them all. */
static enum place mlp_place(struct device *d, const struct device_mlp *m)
{
    enum place p = PLACE_ANY;
    const int64_t n = m->gate->n_stack;
    if (!m->gate->each) {
        p = part_place(m, 0);
        return p == PLACE_BOTH ? PLACE_HOST : p;
    }
    device_gpu_read(d, m->first, (size_t)(n + 1) * sizeof *m->first);
    if (m->only)
        device_gpu_read(d, m->only, (size_t)n);
    for (int64_t e = 0; e < n; e++)
        if (m->first[e + 1] > m->first[e] && (!m->only || m->only[e]))
            p = with(p, part_place(m, e) == PLACE_CARD);
    return p;
}

/* A page that the card had no room for: the processor looks at all of them. */
static bool has_host_page(struct device_gpu *g, const struct device_span *s, int64_t n)
{
    for (int64_t i = 0; g->n_own_host && i < n; i++) {
        const int64_t end = num_max(s[i].pos0 + s[i].n, s[i].through);
        for (int64_t k = 0; s[i].n > 0 && s[i].page && k < num_div_up(end, KERN_PAGE); k++)
            if (s[i].page[k] && device_gpu_own_is_host(g, s[i].page[k]))
                return true;
    }
    return false;
}

static enum place span_place(struct device_gpu *g, const struct device_span *s, int64_t n)
{
    if (has_host_page(g, s, n))
        return PLACE_HOST;
    for (int64_t i = 0; i < n; i++) {
        const int64_t last = s[i].n ? (s[i].pos0 + s[i].n - 1) / KERN_PAGE : -1;
        for (int64_t k = last; k >= 0 && s[i].page; k--)
            if (s[i].page[k])
                return device_gpu_own_of(g, s[i].page[k]) ? PLACE_CARD : PLACE_HOST;
    }
    return PLACE_ANY;
}

static enum place page_place(struct device_gpu *g, enum device_op op, const void *args)
{
    switch (op) {
    case DEVICE_OP_kv_append: {
        const struct device_kv_append_args *a = args;
        return span_place(g, a->span, a->n_spans);
    }
    case DEVICE_OP_attend: {
        const struct device_attend_args *a = args;
        return span_place(g, a->span, a->n_spans);
    }
    case DEVICE_OP_rows_append: {
        const struct device_rows_append_args *a = args;
        return span_place(g, a->span, a->n_spans);
    }
    case DEVICE_OP_rows_read: {
        const struct device_rows_read_args *a = args;
        return span_place(g, a->span, a->n_spans);
    }
    case DEVICE_OP_compress: {
        const struct device_compress_args *a = args;
        return has_host_page(g, a->in, a->n_spans) ? PLACE_HOST
                                                   : span_place(g, a->out, a->n_spans);
    }
    case DEVICE_OP_select: {
        const struct device_select_args *a = args;
        return span_place(g, a->span, a->n_spans);
    }
    case DEVICE_OP_attend_latent: {
        const struct device_attend_latent_args *a = args;
        return a->far && has_host_page(g, a->far, a->n_spans)
                   ? PLACE_HOST
                   : span_place(g, a->near, a->n_spans);
    }
    default:
        return PLACE_ANY;
    }
}

static enum place weight_place(struct device *d, enum device_op op, const void *args)
{
    enum place p = PLACE_ANY;
    if (op == DEVICE_OP_matmul) {
        const struct device_matmul_args *a = args;
        for (int64_t i = 0; i < a->n; i++)
            if (a->p[i].y.n)
                p = with(p, device_gpu_weights(a->p[i].w, a->p[i].index) != NULL);
    } else if (op == DEVICE_OP_mlp) {
        p = mlp_place(d, ((const struct device_mlp_args *)args)->m);
    } else if (op == DEVICE_OP_embed) {
        p = with(p, device_gpu_weights(((const struct device_embed_args *)args)->m, 0) != NULL);
    }
    return p;
}

/* Of operations with a vector of a layer: where that layer is. */
static enum place vector_place(enum device_op op, const void *args)
{
    const struct device_vector *v = NULL;
    if (op == DEVICE_OP_norm)
        v = ((const struct device_norm_args *)args)->w;
    else if (op == DEVICE_OP_add_norm)
        v = ((const struct device_add_norm_args *)args)->w;
    else if (op == DEVICE_OP_mul_vector)
        v = ((const struct device_mul_vector_args *)args)->w;
    else if (op == DEVICE_OP_hc_pre)
        v = ((const struct device_hc_pre_args *)args)->hc->scale;
    else if (op == DEVICE_OP_hc_post)
        v = ((const struct device_hc_post_args *)args)->hc->scale;
    return v ? with(PLACE_ANY, v->side == DEVICE_CARD && v->card) : PLACE_ANY;
}

static enum place place_of(struct device *d, enum device_op op, const void *args)
{
    struct device_gpu *g = d->gpu;
    struct look l = {g, GPU_NEW, false, false};
    if (g->lost || g->idle || op == DEVICE_OP_each)
        return PLACE_HOST;
    device_gpu_uses(op, args, look_at, &l);
    if (l.foreign)
        return PLACE_HOST;
    enum place p = weight_place(d, op, args);
    if (p == PLACE_ANY)
        p = page_place(g, op, args);
    if (p == PLACE_HOST || p == PLACE_BOTH) /* the card cannot read there */
        return p;
    if (p == PLACE_ANY)
        p = vector_place(op, args);
    if (p == PLACE_ANY)
        p = l.first == GPU_CARD || (l.first == GPU_BOTH && g->last == DEVICE_CARD) ? PLACE_CARD
                                                                                 : PLACE_HOST;
    const int chosen = g->choice ? g->choice(g->choice_arg, op) : -1;
    return chosen < 0 ? p : chosen ? PLACE_CARD : PLACE_HOST;
}

/* ---- it runs there ---- */

struct bring {
    struct device *d;
    enum device_side side;
    int how;
};

/* What is only a part of a piece needs the rest of it. */
static bool is_whole(const struct gpu_region *r, const struct gpu_use *use)
{
    const size_t at = (size_t)((uintptr_t)use->at - (uintptr_t)r->host);
    const struct gpu_piece *p = device_gpu_piece_of(r, use->at);
    return use->whole && p && p->at == at && p->n_bytes < use->n_bytes + 64;
}

static void bring_use(void *arg, const struct gpu_use *use)
{
    const struct bring *b = arg;
    const struct gpu_region *r = device_gpu_region_of(b->d->gpu, use->at);
    if (!r || !r->card)
        return;
    if ((use->how & GPU_READS) || !is_whole(r, use))
        (void)device_gpu_bring(b->d, use->at, use->n_bytes, b->side);
}

static void mark_use(void *arg, const struct gpu_use *use)
{
    const struct bring *b = arg;
    if (use->how & GPU_WRITES)
        device_gpu_mark(b->d, use->at, use->n_bytes, b->side);
}

static void stand_in(struct device *d, enum device_op op, const void *args, void *scratch)
{
    struct bring b = {d, DEVICE_HOST, 0};
    if (!d->gpu->lost)
        device_gpu_uses(op, args, bring_use, &b);
    if (d->err.status)
        return;
    device_gpu_on_host(d, op, args, scratch);
    device_gpu_uses(op, args, mark_use, &b);
    d->gpu->n_host[op]++;
    d->gpu->last = DEVICE_HOST;
}

/* Operations that the card is not meant to have. */
static bool is_hosts(enum device_op op)
{
    return op == DEVICE_OP_write || op == DEVICE_OP_rope_table || op == DEVICE_OP_each ||
           op == DEVICE_OP_probe || op == DEVICE_OP_dense_put || op == DEVICE_OP_dense_attend ||
           op == DEVICE_OP_shadow_append || op == DEVICE_OP_select_pages ||
           op == DEVICE_OP_attend_selected || op == DEVICE_OP_layer_norm || op == DEVICE_OP_clamp;
}

static const char *const op_name[] = {
#define X(name) [DEVICE_OP_##name] = #name,
    DEVICE_OP_LIST(X)
#undef X
};

static bool on_card(struct device *d, enum device_op op, const void *args, void *scratch)
{
    struct device_gpu *g = d->gpu;
    struct bring b = {d, DEVICE_CARD, 0};
    if (!device_gpu_run[op])
        return false;
    g->is_new = false;
    device_gpu_uses(op, args, bring_use, &b);
    if (d->err.status)
        return true;
    if (!device_gpu_run[op](d, args, scratch))
        return false;
    device_gpu_uses(op, args, mark_use, &b);
    g->n_card[op]++;
    g->last = DEVICE_CARD;
    return true;
}

void device_gpu_on_side(struct device *d, enum device_op op, const void *args, void *scratch,
                        enum device_side side)
{
    struct device_gpu *g = d->gpu;
    if (side == DEVICE_CARD && on_card(d, op, args, scratch))
        return;
    if (side == DEVICE_CARD && !is_hosts(op) && !g->stood_in[op] && !g->lost) {
        g->stood_in[op] = true;
        report(d->sink, INGLE_REPORT_WARN, "fallback", op_name[op],
               "%s: the processor stands in",
               device_gpu_why(d, "the card has no kernel for it"));
    }
    stand_in(d, op, args, scratch);
}

static void run(struct device *d, enum device_op op, const void *args, void *scratch)
{
    const enum place p = place_of(d, op, args);
    if (p == PLACE_BOTH)
        device_gpu_divide(d, op, args, scratch);
    else
        device_gpu_on_side(d, op, args, scratch, p == PLACE_CARD ? DEVICE_CARD : DEVICE_HOST);
}

static size_t scratch_of(const struct device *d, enum device_op op, const void *args)
{
    const size_t host = device_cpu_ops.scratch(d, op, args),
                 card = device_gpu_scratch(d, op, args);
    return host > card ? host : card;
}

static uint64_t launches_of(struct device *d)
{
    if (!d->gpu->lost && !d->gpu->idle)
        (void)device_gpu_wait(d);
    return d->gpu->n_launches;
}

static struct device_cost cost_of(const struct device *d, enum device_op op, const void *args)
{
    return device_cpu_ops.cost(d, op, args);
}

#define X(name)                                                              \
    static void run_##name(struct device *d, const void *args, void *scratch) \
    {                                                                        \
        run(d, DEVICE_OP_##name, args, scratch);                             \
    }
DEVICE_OP_LIST(X)
#undef X

const struct device_ops device_gpu_ops = {
    .name = "gpu",
    .scratch = scratch_of,
    .cost = cost_of,
    .launches = launches_of,
    .run = {
#define X(name) [DEVICE_OP_##name] = run_##name,
        DEVICE_OP_LIST(X)
#undef X
    },
    .read = device_gpu_read,
    .wrote = device_gpu_wrote,
    .host_take = device_gpu_host_take,
    .host_give = device_gpu_host_give,
    .arena = device_gpu_arena,
    .took = device_gpu_took,
    .released = device_gpu_released,
    .resumed = device_gpu_resumed,
    .own = &device_gpu_own_ops,
};
