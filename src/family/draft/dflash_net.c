/* SPDX-License-Identifier: Apache-2.0 */
/* dflash_net - what drafters of blocks keep of the target's positions, and how a block is
 * computed. */
#include "family/draft/dflash.h"

#include "base/mem.h"
#include "base/num.h"

/* positions from which reading keys once for all rows is worth the copies */
enum { TOGETHER = 128 };
/* rows of logits that are computed at once, unless there are more spans: reading the head is what
 * they cost */
enum { HEAD_ROWS = 16 };

static void one_matmul(struct device *d, const struct device_matrix *w, struct rows x,
                       struct rows y)
{
    device_matmul(d, &(struct device_product){w, 0, x, y, NULL}, 1);
}

/* ---- KV layout ---- */

static bool has_window(const struct dflash *g, const struct dflash_layer *l)
{
    return l->sliding && !g->no_window;
}

ingle_status family_dflash_kv(const void *self, const struct kv_types *types, struct kv_spec *out,
                              struct err *err)
{
    const struct dflash *g = self;
    struct kv_spec spec = {0};
    int64_t group[2] = {-1, -1}; /* of layers without and with a window */
    for (int64_t i = 0; i < g->n_layers; i++) {
        const bool window = has_window(g, &g->layer[i]);
        if (group[window] < 0)
            group[window] = spec.n_groups++;
    }
    if (group[1] >= 0)
        spec.group[group[1]].window = g->window;
    spec.stream = mem_calloc((size_t)g->n_layers, sizeof *spec.stream);
    if (!spec.stream)
        return err_set(err, INGLE_NOMEM, "no memory for the KV layout");
    for (int64_t i = 0; i < g->n_layers; i++)
        spec.stream[spec.n_streams++] = (struct kv_stream){
            .kind = KV_HEADS,
            .layer = (uint32_t)i,
            .group = (uint32_t)group[has_window(g, &g->layer[i])],
            .n_heads = (uint32_t)g->n_kv_heads,
            .k_width = g->head,
            .v_width = g->head,
            .k_codec = types->k[has_window(g, &g->layer[i])],
            .v_codec = types->v[has_window(g, &g->layer[i])],
            .every = 1,
        };
    const ingle_status s = kv_layout(&spec, err);
    if (s)
        kv_spec_release(&spec);
    else
        *out = spec;
    return s;
}

/* Keys and values of rows x at the step's positions into layer il's stream; q NULL: no queries. */
static void keys_and_values(const struct dflash *g, const struct family_forward *f, int64_t il,
                            struct rows x, const struct device_rope *rope, const struct rows *q)
{
    struct device *d = f->device;
    const struct dflash_layer *l = &g->layer[il];
    struct rows k = device_rows(d, x.n, g->n_kv_heads * g->head); /* [n][n_kv_heads * head] */
    struct rows v = device_rows(d, x.n, g->n_kv_heads * g->head); /* [n][n_kv_heads * head] */
    struct device_product p[3];
    int64_t n = 0;
    if (q)
        p[n++] = (struct device_product){l->q, 0, x, *q, NULL};
    p[n++] = (struct device_product){l->k, 0, x, k, NULL};
    if (l->v)
        p[n++] = (struct device_product){l->v, 0, x, v, NULL};
    device_matmul(d, p, n);
    if (g->gemma)
        device_norm(d, v, l->v ? v : k, NULL, g->n_kv_heads,
                    g->eps); /* V has no weight, no rotation */
    else if (!l->v)
        device_copy(d, v, k);
    device_norm(d, k, k, l->k_norm, g->n_kv_heads, g->eps);
    device_rope(d, k, rope, g->n_kv_heads, g->half);
    family_kv_append(f, (uint32_t)il, k, v);
}

struct observe { struct rows taps; };

void *family_dflash_observe_begin(const void *self, const struct family_forward *f)
{
    const struct dflash *g = self;
    struct observe *o = device_bytes(f->device, sizeof *o);
    /* f32 [n_rows][n_taps * n_embd] */
    struct rows taps = device_rows(f->device, f->step->n_rows, g->n_taps * g->n_embd);
    if (o)
        o->taps = taps;
    return o;
}

void family_dflash_observe_tap(const void *self, void *state, enum family_tap tap, int layer,
                               struct rows x)
{
    const struct dflash *g = self;
    struct observe *o = state;
    struct device *d = g->target_device;
    if (tap == FAMILY_TAP_NORM || !o)
        return;
    for (int64_t i = 0; i < g->n_taps; i++) {
        if (g->tap[i] != (tap == FAMILY_TAP_EMBED ? -1 : layer))
            continue;
        struct rows to = rows_columns(o->taps, i * g->n_embd, g->n_embd);
        device_copy(d, to, x);
        if (g->tap_scale[i] < 1.0f || g->tap_scale[i] > 1.0f)
            device_scale(d, to, to, g->tap_scale[i]);
    }
}

bool family_dflash_observe_wants(const void *self, enum family_tap tap, int layer)
{
    const struct dflash *g = self;
    bool any = false;
    for (int64_t i = 0; i < g->n_taps && tap != FAMILY_TAP_NORM; i++)
        any = any || g->tap[i] == (tap == FAMILY_TAP_EMBED ? -1 : layer);
    return any;
}

struct rows family_dflash_observed(const void *self, const void *state, int64_t n_rows)
{
    const struct dflash *g = self;
    const struct observe *o = state;
    const int64_t width = g->n_taps * g->n_embd;
    return o ? o->taps : (struct rows){NULL, n_rows, width, width};
}

void family_dflash_observe_end(const void *self, const struct family_forward *f, void *state)
{
    const struct dflash *g = self;
    struct device *d = f->device;
    const int64_t n = f->step->n_rows;
    const size_t mark = device_mark(d);
    struct rows c = device_rows(d, n, g->n_embd); /* [n][n_embd]: norm(W_fc taps), the context */
    family_prompt_rows(f);
    one_matmul(d, g->fc, family_dflash_observed(g, state, n), c);
    device_norm(d, c, c, g->context_norm, 1, g->eps);
    const struct device_rope rope =
        device_rope_table(d, family_positions(f), n, g->inv_freq, g->n_pairs);
    for (int64_t il = 0; il < g->n_layers; il++) {
        const size_t layer = device_mark(d);
        keys_and_values(g, f, il, c, &rope, NULL);
        device_release(d, layer);
    }
    device_release(d, mark);
}

/* ---- a block ---- */

struct pass {
    const struct dflash *g;
    /* its step: a span of the block's rows for each span of the round */
    const struct family_forward *f;
    struct device *d;
    struct device_rope rope;
    int64_t block;                  /* rows of each span */
    struct family_view *view[2];    /* [n_rows]: of full, of sliding layers; NULL in a dry run */
};

/* Where a row does not see what is after it in most layers, masks after the last draft that is
 * wanted are left out, as the makers of these drafters do; where it does, they belong to the states
 * that were trained. */
static int64_t block_of(const struct dflash *g, const struct family_round *r)
{
    return g->sliding == DFLASH_CAUSAL ? num_min(g->block, g->first + r->n_drafts) : g->block;
}

/* What row r of a block at s->at sees, of the tokens from `from` on. */
static struct family_view view_of(const struct dflash *g, bool sliding, int64_t block,
                                  const struct family_span *s, int64_t from, int64_t r)
{
    const int64_t at = s->at;
    const bool causal = (sliding ? g->sliding : g->full) == DFLASH_CAUSAL;
    struct family_view v = {.last = at + (causal ? r : block - 1)};
    int64_t first = from;
    if (sliding && !g->no_window)
        first = num_max(first, family_window_first(s->timeline, at + r, g->window));
    if (g->block_seen)
        first = num_min(first, at);
    if (g->context)
        first = num_max(first, at - g->context);
    if (first > 0)
        v.n = v.last + 1 - first;
    return v;
}

/* y_i = sum over taps t of (base[t] + by_row_i[t][group of the channel]) * x_(i - t), in the block.
 * x, y: [n][n_embd]; by_row: [n][2 sides][conv_kernel][groups]. */
static void convolve(const struct pass *p, const struct dflash_conv *c, int side,
                     struct rows by_row, struct rows x, struct rows y)
{
    const struct dflash *g = p->g;
    const int64_t groups = g->n_embd / g->conv_group;
    if (!device_runs(p->d))
        return;
    device_read_rows(p->d, by_row);
    device_read_rows(p->d, x);
    for (int64_t i = 0; i < x.n; i++) {
        float *to = y.at + i * y.stride;
        for (int64_t ch = 0; ch < g->n_embd; ch++)
            to[ch] = 0.0f;
        for (int64_t t = 0; t < g->conv_kernel && t <= i % p->block; t++) {
            const float *from = x.at + (i - t) * x.stride,
                        *base = c->base + (side * g->conv_kernel + t) * g->n_embd;
            const float *by = by_row.at + i * by_row.stride + (side * g->conv_kernel + t) * groups;
            for (int64_t ch = 0, group = 0; group < groups; group++)
                for (const int64_t end = ch + g->conv_group; ch < end; ch++)
                    to[ch] += (base[ch] + by[group]) * from[ch];
        }
    }
    device_wrote_rows(p->d, y);
}

/* The input of a part of a layer: a [n][n_embd], or with a convolution its result; *by_row: the
 * weights that add_part() uses. */
static struct rows convolve_in(const struct pass *p, const struct dflash_conv *c, struct rows a,
                               struct rows *by_row)
{
    if (!c->proj)
        return a;
    struct rows y = device_rows(p->d, a.n, a.width);
    *by_row = device_rows(p->d, a.n, device_matrix_out(c->proj));
    one_matmul(p->d, c->proj, a, *by_row);
    convolve(p, c, 0, *by_row, a, y);
    return y;
}

/* x += o, or norm(o), as the kind of block and its convolution want it. */
static void add_part(const struct pass *p, const struct dflash_conv *c, struct rows by_row,
                     const struct device_vector *norm, float scale, struct rows x, struct rows o)
{
    struct rows y = o;
    if (c->proj) {
        y = device_rows(p->d, o.n, o.width);
        convolve(p, c, 1, by_row, o, y);
    }
    if (norm) {
        device_add_norm(p->d, x, y, norm, p->g->eps, scale);
        return;
    }
    device_add(p->d, x, y);
    if (scale < 1.0f || scale > 1.0f)
        device_scale(p->d, x, x, scale);
}

/* Whether all rows of a block see the same, in every span, and much of it. */
static bool see_the_same(const struct pass *p, const struct family_view *view)
{
    bool much = false;
    for (int64_t i = 0; i < p->f->step->n_rows; i++) {
        const struct family_view *first = &view[i / p->block * p->block];
        if (view[i].last != first->last || view[i].n != first->n)
            return false;
        much = much || (first->n ? first->n : first->last) >= TOGETHER;
    }
    return much;
}

/* Whether each row sees what its position says with this window: then the rows of a span are
 * attended to together. */
static bool see_as_positions(const struct pass *p, const struct family_view *view, int64_t window)
{
    for (int64_t i = 0; i < p->f->step->n_rows; i++) {
        const struct family_span *s = &p->f->step->span[i / p->block];
        const int64_t at = s->at + i % p->block,
                      first = window ? family_window_first(s->timeline, at, window) : 0;
        if (view[i].last != at || view[i].n != (first ? at + 1 - first : 0))
            return false;
    }
    return true;
}

/* Rows of blocks as heads of a single row for each block, and back: of each key head the queries of
 * all rows stand together. Row r of all blocks is one view with a stride.  apart: [n * block]
 * [n_heads * head]; together: [n][n_kv_heads][block][n_heads / n_kv_heads * head]. */
static void gather(const struct pass *p, struct rows apart, struct rows together, bool back)
{
    const struct dflash *g = p->g;
    const int64_t n = apart.n / p->block, width = g->n_heads / g->n_kv_heads * g->head;
    for (int64_t r = 0; r < p->block; r++)
        for (int64_t h = 0; h < g->n_kv_heads; h++) {
            const struct rows row = {apart.at ? apart.at + r * apart.stride : NULL, n, apart.width,
                                     p->block * apart.stride};
            const struct rows a = rows_columns(row, h * width, width),
                              b = rows_columns(together, (h * p->block + r) * width, width);
            device_copy(p->d, back ? a : b, back ? b : a);
        }
}

/* Rows that see the same read keys and values once, as heads of one row. */
static void attend_as_heads(const struct pass *p, int64_t il, struct rows q, struct rows o)
{
    const struct dflash *g = p->g;
    const struct family_view *view = p->view[g->layer[il].sliding];
    const bool runs = device_runs(p->d);
    const size_t mark = device_mark(p->d);
    const int64_t n_spans = q.n / p->block, width = p->block * q.width;
    /* both [n_spans][block * n_heads * head] */
    struct rows q1 = device_rows(p->d, n_spans, width), o1 = device_rows(p->d, n_spans, width);
    struct family_view *one = device_bytes(p->d, (size_t)n_spans * sizeof *one);
    struct family_span *span = device_bytes(p->d, (size_t)n_spans * sizeof *span);
    struct family_forward f = *p->f;
    for (int64_t i = 0; i < n_spans && device_runs(p->d); i++) {
        one[i] = view[i * p->block];
        span[i] = p->f->step->span[i];
        span[i].n = 1;
    }
    const struct family_step step = {
        .span = runs ? span : NULL, .n_spans = runs ? n_spans : 1, .n_rows = n_spans};
    f.step = &step;
    gather(p, q, q1, false);
    family_attend_views(&f, (uint32_t)il, q1, p->block * g->n_heads, o1, one, g->scale);
    gather(p, o, o1, true);
    device_release(p->d, mark);
}

/* All ways give the same bits; a dry run counts each of them. */
static void attend(const struct pass *p, int64_t il, struct rows q, struct rows o)
{
    const struct dflash *g = p->g;
    const struct family_view *view = p->view[g->layer[il].sliding];
    const int64_t window = has_window(g, &g->layer[il]) ? g->window : 0;
    const bool runs = device_runs(p->d), whole = runs && see_the_same(p, view);
    const bool plain = runs && !whole && see_as_positions(p, view, window);
    if (!runs || plain)
        family_attend(p->f, (uint32_t)il, q, g->n_heads, o, window, g->scale);
    if (!runs || (!plain && !whole))
        family_attend_views(p->f, (uint32_t)il, q, g->n_heads, o, view, g->scale);
    if (!runs || whole)
        attend_as_heads(p, il, q, o);
}

/* x += norm(W_o attention(norm(x))); x: [n][n_embd], the residual stream of the block. */
static void attention(const struct pass *p, int64_t il, struct rows x)
{
    const struct dflash *g = p->g;
    const struct dflash_layer *l = &g->layer[il];
    const size_t mark = device_mark(p->d);
    struct rows a = device_rows(p->d, x.n, g->n_embd);            /* [n][n_embd]: norm(x) */
    struct rows q = device_rows(p->d, x.n, g->n_heads * g->head); /* [n][n_heads * head] */
    struct rows o = device_rows(p->d, x.n, g->n_heads * g->head); /* [n][n_heads * head] */
    struct rows by_row = {0};
    device_norm(p->d, a, x, l->attn_norm, 1, g->eps);
    keys_and_values(g, p->f, il, convolve_in(p, &l->attn_conv, a, &by_row), &p->rope, &q);
    device_norm(p->d, q, q, l->q_norm, g->n_heads, g->eps);
    device_rope(p->d, q, &p->rope, g->n_heads, g->half);
    attend(p, il, q, o);
    one_matmul(p->d, l->o, o, a);
    add_part(p, &l->attn_conv, by_row, l->post_attn_norm, 1.0f, x, a);
    device_release(p->d, mark);
}

/* x = (x + norm(mlp(norm(x)))) * scale; x: [n][n_embd]. */
static void feed_forward(const struct pass *p, const struct dflash_layer *l, struct rows x)
{
    const struct dflash *g = p->g;
    const size_t mark = device_mark(p->d);
    struct rows u = device_rows(p->d, x.n, g->n_embd); /* [n][n_embd]: norm(x) */
    struct rows y = device_rows(p->d, x.n, g->n_embd); /* [n][n_embd]: mlp(u) */
    struct rows by_row = {0};
    device_norm(p->d, u, x, l->ffn_norm, 1, g->eps);
    u = convolve_in(p, &l->ffn_conv, u, &by_row);
    device_mlp(p->d,
               &(struct device_mlp){.gate = l->gate, .up = l->up, .down = l->down, .act = g->act},
               u, y);
    add_part(p, &l->ffn_conv, by_row, l->post_ffn_norm, l->scale, x, y);
    device_release(p->d, mark);
}

/* Spans, tokens and views of the block's rows, where there is memory. */
static void lay_out(const struct dflash *g, const struct family_round *r, int64_t block,
                    struct family_span *span, int32_t *token, struct family_view *const view[2])
{
    const struct family_step *step = r->forward.step;
    for (int64_t i = 0; i < step->n_spans; i++) {
        const struct family_span *from = &step->span[i];
        span[i] = (struct family_span){.timeline = from->timeline, .n = block, .at = from->at};
        for (int64_t k = 0; k < block; k++) {
            token[i * block + k] = k ? g->mask : from->token[0];
            for (int t = 0; t < 2; t++)
                view[t][i * block + k] = view_of(g, t == 1, block, from, r->from[i], k);
        }
    }
}

/* Rows of logits that a round of so many spans computes at once, at most. */
static int64_t head_rows(const struct family_round *r)
{
    const int64_t n_spans = r->forward.step->n_spans;
    return num_max(n_spans, num_min(HEAD_ROWS, n_spans * r->n_drafts));
}

/* Whether the head's logits are the round's own rows. */
static bool is_wide(const struct dflash *g, const struct family_round *r)
{
    return !g->to && r->wide.n >= head_rows(r);
}

void family_dflash_dry(const struct dflash *g, const struct family_round *r,
                       struct dflash_round *out)
{
    const int64_t n = r->forward.step->n_spans * block_of(g, r), most = head_rows(r);
    *out = (struct dflash_round){.y = {NULL, n, g->n_embd, g->n_embd},
                                 .x = {NULL, most, g->n_embd, g->n_embd},
                                 .logits = {NULL, most, g->n_out, g->n_out},
                                 .most = r->n_drafts,
                                 .block = block_of(g, r)};
    if (is_wide(g, r))
        out->logits = r->wide;
}

void family_dflash_block(const struct dflash *g, struct family_round *r, struct dflash_round *out)
{
    struct device *d = r->forward.device;
    const int64_t n_spans = r->forward.step->n_spans, n = n_spans * block_of(g, r);
    /* f32 [n][n_embd] */
    struct rows y = device_rows(d, n, g->n_embd);
    *out = (struct dflash_round){.y = y,
                                 .x = device_rows(d, head_rows(r), g->n_embd),
                                 .logits = is_wide(g, r) ? r->wide
                                                         : device_rows(d, head_rows(r), g->n_out),
                                 .most = r->n_drafts,
                                 .block = block_of(g, r)};
    const size_t mark = device_mark(d);
    struct family_forward f = r->forward;
    struct family_span *span = device_bytes(d, (size_t)n_spans * sizeof *span);
    int32_t *token = device_bytes(d, (size_t)n * sizeof *token);
    struct pass p = {.g = g, .f = &f, .d = d, .block = out->block};
    for (int t = 0; t < 2; t++)
        p.view[t] = device_bytes(d, (size_t)n * sizeof *p.view[t]);
    const bool runs = device_runs(d);
    if (runs)
        lay_out(g, r, out->block, span, token, p.view);
    const struct family_step step = {
        .span = runs ? span : NULL, .n_spans = runs ? n_spans : 1, .n_rows = n};
    f.step = &step;
    device_prompt_rows(d, 0, 0);
    /* f32 [n][n_embd] */
    struct rows x = device_rows(d, n, g->n_embd);
    device_embed(d, x, g->ends.embed, token, g->embed_scale);
    p.rope = device_rope_table(d, family_positions(&f), n, g->inv_freq, g->n_pairs);
    for (int64_t il = 0; il < g->n_layers; il++) {
        attention(&p, il, x);
        feed_forward(&p, &g->layer[il], x);
    }
    device_norm(d, y, x, g->norm, 1, g->eps);
    device_release(d, mark);
}

struct rows family_dflash_hidden(const struct dflash *g, const struct dflash_round *d, int64_t j,
                                 int64_t n)
{
    struct rows y = d->y;
    return (struct rows){y.at ? y.at + (g->first + j) * y.stride : NULL, n, y.width,
                         d->block * y.stride};
}

/* Logits as the drafter means them: of these columns. */
static void finish(const struct dflash *g, struct device *d, struct rows z)
{
    if (g->logit_scale < 1.0f || g->logit_scale > 1.0f)
        device_scale(d, z, z, g->logit_scale);
    if (g->softcap > 0)
        device_softcap(d, z, g->softcap);
}

struct rows family_dflash_logits(const struct dflash *g, const struct family_round *r,
                                 struct dflash_round *d, int64_t j, int64_t n)
{
    struct device *dev = r->forward.device;
    if (j < d->first || j >= d->first + d->n) {
        d->first = j;
        d->n_spans = n;
        d->n = num_max(1, num_min(d->most - j, d->x.n / n));
        for (int64_t k = 0; k < d->n; k++)
            device_copy(dev, rows_slice(d->x, k * n, n), family_dflash_hidden(g, d, j + k, n));
        const struct rows x = rows_slice(d->x, 0, d->n * n), z = rows_slice(d->logits, 0, d->n * n);
        const bool wide = is_wide(g, r);
        if (wide)
            (void)family_draft_head(r, g->head_matrix, x, 0);
        else
            one_matmul(dev, g->head_matrix, x, z);
        if (!wide || !r->n_only)
            finish(g, dev, z);
        for (int64_t i = 0; wide && i < r->n_only; i++)
            finish(g, dev, rows_columns(z, r->only[i].first, r->only[i].n));
    }
    return rows_slice(d->logits, (j - d->first) * d->n_spans, n);
}

void family_dflash_put(const struct dflash *g, struct family_round *r, struct rows z,
                       struct rows logits)
{
    struct device *d = r->forward.device;
    if (is_wide(g, r)) {
        r->out = z;
        return;
    }
    if (!g->to) {
        device_copy(d, logits, z);
        return;
    }
    device_read_rows(d, z);
    for (int64_t i = 0; i < z.n && device_runs(d); i++) {
        float *to = logits.at + i * logits.stride;
        for (int64_t t = 0; t < logits.width; t++)
            to[t] = FAMILY_NEVER;
        for (int64_t t = 0; t < g->n_out; t++)
            to[g->to[t]] = z.at[i * z.stride + t];
    }
    device_wrote_rows(d, logits);
}
