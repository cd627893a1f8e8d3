/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vision - the encoder of pictures of E2B, E4B, 26B-A4B and 31B: a transformer over patches, whose
 * rows are then averaged in blocks of 3 x 3.
 *
 * A layer runs in two passes over tiles of rows: keys and values of all rows first, then the rest,
 * which changes the stream.  So of a whole picture there are the stream, keys and values.
 */
#include "tower/bind.h"
#include "tower/forward.h"
#include "tower/inner.h"

#include "base/mem.h"
#include "base/num.h"
#include <math.h>
#include <string.h>

static const float EPS = 1e-6f;
static const double THETA = 100;

/* ---- weights ---- */

static void bind_layer(struct binder *b, const struct vision *v, struct vision_layer *l)
{
    const int64_t d = v->d, head = d / v->n_heads;
    l->ln1 = tower_vector(b, "ln1.weight", d);
    tower_linear(b, "attn_q", d, d, &l->q);
    tower_linear(b, "attn_k", d, d, &l->k);
    tower_linear(b, "attn_v", d, d, &l->v);
    tower_linear(b, "attn_out", d, d, &l->o);
    l->q_norm = tower_vector(b, "attn_q_norm.weight", head);
    l->k_norm = tower_vector(b, "attn_k_norm.weight", head);
    l->attn_post = tower_vector(b, "attn_post_norm.weight", d);
    l->ln2 = tower_vector(b, "ln2.weight", d);
    tower_linear(b, "ffn_gate", v->n_ff, d, &l->gate);
    tower_linear(b, "ffn_up", v->n_ff, d, &l->up);
    tower_linear(b, "ffn_down", d, v->n_ff, &l->down);
    l->ffn_post = tower_vector(b, "ffn_post_norm.weight", d);
}

/* Both halves of a head turn alike, one by the place across, one by the place down: n pairs each,
 * by pos * 100^(-2 i / m), m = 2 n, in f32 as the reference has it. */
static float *frequencies(int64_t n)
{
    float *f = mem_calloc((size_t)n, sizeof *f);
    for (int64_t i = 0; f && i < n; i++)
        f[i] = 1.0f / (float)pow(THETA, (double)((float)(2 * i) / (float)(2 * n)));
    return f;
}

void tower_bind_vision(struct binder *b, struct vision *v)
{
    int64_t pool = 3;
    tower_key(b, "clip.vision.block_count", 1, TOWER_MAX_LAYERS, &v->n_layers);
    tower_key(b, "clip.vision.embedding_length", 4, TOWER_MAX_WIDTH, &v->d);
    tower_key(b, "clip.vision.feed_forward_length", 1, TOWER_MAX_WIDTH, &v->n_ff);
    tower_key(b, "clip.vision.attention.head_count", 1, TOWER_MAX_HEADS, &v->n_heads);
    tower_key(b, "clip.vision.patch_size", 1, 64, &v->patch);
    if (!b->s && io_meta_find(b->t->meta, "clip.vision.projector.scale_factor"))
        tower_key(b, "clip.vision.projector.scale_factor", 1, 16, &pool);
    if (!b->s && (v->d % v->n_heads || v->d / v->n_heads % 4))
        b->s = err_set(b->err, INGLE_FORMAT,
                       "'%s': 'clip.vision.embedding_length' is %lld and "
                       "'clip.vision.attention.head_count' %lld: expected heads whose width is a "
                       "multiple of 4",
                       io_path(b->t->file), (long long)v->d, (long long)v->n_heads);
    if (b->s)
        return;
    v->pool = pool;
    v->inv_freq = frequencies(v->d / v->n_heads / 4);
    v->layer = mem_calloc((size_t)v->n_layers, sizeof *v->layer);
    if (!v->layer || !v->inv_freq) {
        b->s = err_set(b->err, INGLE_NOMEM, "no memory for %lld layers", (long long)v->n_layers);
        return;
    }
    v->embed = tower_matrix(b, "v.patch_embd.weight", v->d, 3 * v->patch * v->patch);
    tower_places(b, v->d, &v->places);
    const bool has = tower_has(b, "v.std_scale") || tower_has(b, "v.std_bias");
    if (!b->s && has && b->t->standard == SAYS_NO)
        b->s = err_set(b->err, INGLE_FORMAT,
                       "'%s': tensor 'v.std_scale' is there, but 'standardize' in config.json is "
                       "false",
                       io_path(b->t->file));
    if (has || b->t->standard == SAYS_YES) {
        v->std_scale = tower_floats(b, "v.std_scale", v->d);
        v->std_bias = tower_floats(b, "v.std_bias", v->d);
    }
    v->project = tower_matrix(b, "mm.input_projection.weight", b->t->width, v->d);
    for (b->il = 0; b->il < v->n_layers && !b->s; b->il++)
        bind_layer(b, v, &v->layer[b->il]);
    b->il = -1;
}

void tower_release_vision(struct vision *v)
{
    mem_free(v->layer);
    mem_free(v->inv_freq);
    mem_free(v->std_bias);
    mem_free(v->std_scale);
}

/* ---- forward pass ---- */

/* The patches of a picture: n across, in the order in which they are computed, row by row. */
struct grid {
    int64_t across, n;
};

/* A tile of rows, and what tasks over its rows read. */
struct tile {
    const struct vision *v;
    const unsigned char *rgb; /* u8 [down][across][3], of pixels */
    struct grid grid;
    int64_t row;                  /* index of x's first row among all patches */
    struct rows x;                /* [rows of the tile][3 * patch * patch] or [...][d] */
    struct rows table_x, table_y; /* [across][d], [down][d]: position embeddings */
    struct rows rope[2];          /* [across], [down]: [pairs][cos, sin] */
    int64_t n_heads;
};

/* 2 (v - 0.5) of the bytes of a patch, in the order of the weights' columns. */
static void read_patch(const struct kern_table *k, void *arg, int64_t i)
{
    (void)k;
    const struct tile *l = arg;
    const int64_t p = l->v->patch, at = l->row + i, x0 = at % l->grid.across * p,
                  y0 = at / l->grid.across * p, wide = l->grid.across * p;
    float *to = l->x.at + i * l->x.stride;
    for (int64_t y = 0; y < p; y++)
        for (int64_t x = 0; x < p; x++)
            for (int64_t c = 0; c < 3; c++) {
                const float v =
                    (float)l->rgb[((y0 + y) * wide + x0 + x) * 3 + c] * (float)(1.0 / 255.0);
                to[l->v->channel_first ? (c * p + y) * p + x : (y * p + x) * 3 + c] =
                    2.0f * (v - 0.5f);
            }
}

/* x += table_x[column] + table_y[row]. */
static void add_place(const struct kern_table *k, void *arg, int64_t i)
{
    const struct tile *l = arg;
    const int64_t at = l->row + i;
    float *x = l->x.at + i * l->x.stride;
    k->math.add(x, l->table_x.at + at % l->grid.across * l->table_x.stride, l->x.width);
    k->math.add(x, l->table_y.at + at / l->grid.across * l->table_y.stride, l->x.width);
}

/* Rotates the first half of each head by the column, the second half by the row. */
static void rope_row(const struct kern_table *k, void *arg, int64_t i)
{
    const struct tile *l = arg;
    const int64_t at = l->row + i, head = l->x.width / l->n_heads, half = head / 2;
    const float *across = l->rope[0].at + at % l->grid.across * l->rope[0].stride,
                *down = l->rope[1].at + at / l->grid.across * l->rope[1].stride;
    float *x = l->x.at + i * l->x.stride;
    for (int64_t h = 0; h < l->n_heads; h++, x += head) {
        k->math.rope(x, across, half / 2, half / 2);
        k->math.rope(x + half, down, half / 2, half / 2);
    }
}

/* [n][pairs * 2]: cos and sin of places 0 .. n - 1. */
static struct rows rope_table(struct pass *p, const struct vision *v, int64_t n)
{
    const int64_t pairs = v->d / v->n_heads / 4;
    struct rows cs = device_rows(p->d, n, 2 * pairs);
    for (int64_t i = 0; i < n && device_runs(p->d); i++)
        for (int64_t k = 0; k < pairs; k++) {
            const double angle = (double)((float)i * v->inv_freq[k]);
            cs.at[i * cs.stride + 2 * k] = (float)cos(angle);
            cs.at[i * cs.stride + 2 * k + 1] = (float)sin(angle);
        }
    return cs;
}

/* x [n][d] = W patch + position embeddings, a tile of rows at a time. */
static void embed(struct pass *p, struct tile *l, struct rows x)
{
    const struct vision *v = l->v;
    for (int64_t i = 0; i < x.n; i += p->t->tile) {
        const size_t mark = device_mark(p->d);
        const struct rows to = rows_slice(x, i, num_min(p->t->tile, x.n - i));
        l->x = device_rows(p->d, to.n, 3 * v->patch * v->patch); /* pixels, -1 .. 1 */
        l->row = i;
        device_each(p->d, to.n, 4 * l->x.width, read_patch, l);
        tower_matmul(p->d, v->embed, l->x, to);
        l->x = to;
        device_each(p->d, to.n, 2 * to.width, add_place, l);
        tower_see(p, i, to, "embed");
        device_release(p->d, mark);
    }
}

/* Keys and values of the rows x [rows][d] from l->row on into kv. */
static void keys_values(struct pass *p, const struct vision_layer *w, struct tile *l, struct rows x,
                        const struct device_dense *kv)
{
    const struct vision *v = l->v;
    const size_t mark = device_mark(p->d);
    struct rows h = device_rows(p->d, x.n, v->d);      /* [rows][d]: norm(x) */
    struct rows k = device_rows(p->d, x.n, v->d);      /* [rows][n_heads * head] */
    struct rows values = device_rows(p->d, x.n, v->d); /* [rows][n_heads * head] */
    device_norm(p->d, h, x, w->ln1, 1, EPS);
    tower_apply(p, &w->k, h, k);
    tower_apply(p, &w->v, h, values);
    device_norm(p->d, k, k, w->k_norm, v->n_heads, EPS);
    device_norm(p->d, values, values, NULL, v->n_heads, EPS); /* V has no weight */
    l->x = k;
    device_each(p->d, k.n, k.width, rope_row, l);
    device_dense_put(p->d, kv, l->row, k, values);
    device_release(p->d, mark);
}

/* x = x + norm(Wo attention(q)), x: [rows][d]; every patch attends to all patches. */
static void attention(struct pass *p, int64_t il, struct tile *l, struct rows x,
                      const struct device_dense *kv)
{
    const struct vision *v = l->v;
    const struct vision_layer *w = &v->layer[il];
    const size_t mark = device_mark(p->d);
    struct rows h = device_rows(p->d, x.n, v->d); /* [rows][d]: norm(x), then what heads read */
    struct rows q = device_rows(p->d, x.n, v->d); /* [rows][n_heads * head], then Wo h */
    device_norm(p->d, h, x, w->ln1, 1, EPS);
    tower_apply(p, &w->q, h, q);
    device_norm(p->d, q, q, w->q_norm, v->n_heads, EPS);
    l->x = q;
    device_each(p->d, q.n, q.width, rope_row, l);
    device_dense_attend(p->d, kv, q, h);
    tower_apply(p, &w->o, h, q);
    tower_see(p, l->row, q, "layer%lld.attn_out", (long long)il);
    device_add_norm(p->d, x, q, w->attn_post, EPS, 1.0f);
    device_release(p->d, mark);
}

/* x = x + norm(Wdown(gelu(Wgate h) * Wup h)), h = norm(x); x: [rows][d]. */
static void feed_forward(struct pass *p, int64_t il, const struct tile *l, struct rows x)
{
    const struct vision *v = l->v;
    const struct vision_layer *w = &v->layer[il];
    const size_t mark = device_mark(p->d);
    struct rows h = device_rows(p->d, x.n, v->d);       /* [rows][d]: norm(x), then the output */
    struct rows gate = device_rows(p->d, x.n, v->n_ff); /* [rows][n_ff] */
    struct rows up = device_rows(p->d, x.n, v->n_ff);   /* [rows][n_ff] */
    device_norm(p->d, h, x, w->ln2, 1, EPS);
    tower_apply(p, &w->gate, h, gate);
    tower_apply(p, &w->up, h, up);
    device_glu(p->d, DEVICE_GELU, 0, gate, gate, up);
    tower_apply(p, &w->down, gate, h);
    tower_see(p, l->row, h, "layer%lld.mlp_out", (long long)il);
    device_add_norm(p->d, x, h, w->ffn_post, EPS, 1.0f);
    device_release(p->d, mark);
}

/* One layer of x [n][d]: keys and values of all rows first, then the rest, a tile at a time. */
static void layer(struct pass *p, int64_t il, struct tile *l, struct rows x,
                  const struct device_dense *kv)
{
    for (int64_t i = 0; i < x.n; i += p->t->tile) {
        l->row = i;
        keys_values(p, &l->v->layer[il], l, rows_slice(x, i, num_min(p->t->tile, x.n - i)), kv);
        if (!tower_step(p))
            return;
    }
    for (int64_t i = 0; i < x.n; i += p->t->tile) {
        const struct rows part = rows_slice(x, i, num_min(p->t->tile, x.n - i));
        l->row = i;
        attention(p, il, l, part, kv);
        if (!tower_step(p))
            return;
        feed_forward(p, il, l, part);
        tower_see(p, i, part, "layer%lld", (long long)il);
        if (!tower_step(p))
            return;
    }
}

int64_t tower_vision_steps(const struct tower *t, int64_t n_tokens)
{
    const struct vision *v = &t->vision;
    return 3 * v->n_layers * num_div_up(n_tokens * v->pool * v->pool, t->tile);
}

struct pooling {
    const struct vision *v;
    struct grid grid;
    struct rows x; /* [patches][d] */
    struct rows y; /* [n_across * n_down][d] */
};

/* y_i = sqrt(d) * the mean of a block of pool x pool patches. */
static void pool_row(const struct kern_table *k, void *arg, int64_t i)
{
    const struct pooling *a = arg;
    const int64_t n = a->v->pool, across = a->grid.across / n;
    const float scale = (float)(sqrt((double)a->v->d) / (double)(n * n));
    float *y = a->y.at + i * a->y.stride;
    memset(y, 0, (size_t)a->y.width * sizeof *y);
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < n; c++) {
            const int64_t at = (i / across * n + r) * a->grid.across + i % across * n + c;
            k->math.add(y, a->x.at + at * a->x.stride, a->y.width);
        }
    k->math.scale(y, y, scale, a->y.width);
}

/* y_i = (y_i - std_bias) * std_scale. */
static void standardise_row(const struct kern_table *k, void *arg, int64_t i)
{
    (void)k;
    const struct pooling *a = arg;
    float *y = a->y.at + i * a->y.stride;
    for (int64_t c = 0; c < a->y.width; c++)
        y[c] = (y[c] - a->v->std_bias[c]) * a->v->std_scale[c];
}

void tower_see_vision(struct pass *p, const struct vision *v, const unsigned char *rgb,
                      int64_t n_across, int64_t n_down, float *soft)
{
    const struct grid grid = {n_across * v->pool, n_across * v->pool * n_down * v->pool};
    struct tile l = {.v = v, .rgb = rgb, .grid = grid, .n_heads = v->n_heads};
    struct rows x = device_rows(p->d, grid.n, v->d); /* [patches][d]: the residual stream */
    l.rope[0] = rope_table(p, v, grid.across);
    l.rope[1] = rope_table(p, v, n_down * v->pool);
    const size_t mark = device_mark(p->d);
    l.table_x = tower_place_rows(p, &v->places, 0, grid.across);
    l.table_y = tower_place_rows(p, &v->places, 1, n_down * v->pool);
    embed(p, &l, x);
    device_release(p->d, mark);
    const struct device_dense kv = device_dense_make(p->d, grid.n, v->n_heads, v->d / v->n_heads);
    for (int64_t i = 0; i < v->n_layers && !p->cancelled; i++)
        layer(p, i, &l, x, &kv);
    device_release(p->d, mark);
    struct rows y = device_rows(p->d, n_across * n_down, v->d); /* [rows of the prompt][d] */
    struct pooling pooling = {v, grid, x, y};
    device_each(p->d, y.n, v->pool * v->pool * v->d, pool_row, &pooling);
    tower_see(p, 0, y, "pooled");
    if (v->std_scale)
        device_each(p->d, y.n, 2 * v->d, standardise_row, &pooling);
    tower_see(p, 0, y, "features");
    tower_project(p, v->project, y, 0, soft);
}
