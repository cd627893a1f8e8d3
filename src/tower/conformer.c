/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conformer - the encoder of sound of E2B and E4B: two convolutions, which take four frames of the
 * spectrum to one row, then blocks of a half feed-forward, attention to 12 rows, a convolution
 * over time and another half feed-forward.
 */
#include "tower/bind.h"
#include "tower/forward.h"
#include "tower/inner.h"

#include "base/mem.h"
#include "base/num.h"
#include <math.h>
#include <string.h>

enum {
    SEEN = 12,    /* rows that a row attends to: itself and those before it */
    TAPS = 5,     /* of the convolution over time */
    CONV = 9,     /* 3 x 3 */
    CONV_TILE = 8 /* rows of the second convolution, each of a quarter of the bands */
};
static const float EPS = 1e-6f, CAP = 50;

/* ---- weights ---- */

static void bind_feed_forward(struct binder *b, const struct conformer *c,
                              struct conformer_layer *l, int which)
{
    static const char *const name[2][4] = {
        {"ffn_up", "ffn_down", "ffn_norm.weight", "ffn_post_norm.weight"},
        {"ffn_up_1", "ffn_down_1", "ffn_norm_1.weight", "ffn_post_norm_1.weight"}};
    tower_linear(b, name[which][0], c->n_ff, c->d, &l->ff[which].up);
    tower_linear(b, name[which][1], c->d, c->n_ff, &l->ff[which].down);
    l->ff[which].norm = tower_vector(b, name[which][2], c->d);
    l->ff[which].post = tower_vector(b, name[which][3], c->d);
}

/* What a query's dimensions are multiplied with: softplus(per_dim_scale) / (sqrt(head) ln 2); a
 * GGUF file has the softplus. */
static void bind_scale(struct binder *b, const struct conformer *c, struct conformer_layer *l)
{
    const int64_t head = c->d / c->n_heads;
    const double by = 1.0 / (sqrt((double)head) * log(2.0));
    float *scale = tower_floats(b, "per_dim_scale.weight", head);
    l->q_scale = b->s ? NULL : mem_calloc((size_t)c->d, sizeof *l->q_scale);
    if (!b->s && !l->q_scale)
        b->s = err_set(b->err, INGLE_NOMEM, "no memory for a layer");
    for (int64_t i = 0; !b->s && i < c->d; i++) {
        const double v = (double)scale[i % head];
        l->q_scale[i] =
            (float)(by * (io_kind(b->t->file) == IO_GGUF ? v : log1p(exp(-fabs(v))) + fmax(v, 0)));
    }
    mem_free(scale);
}

static void bind_layer(struct binder *b, const struct conformer *c, struct conformer_layer *l)
{
    const int64_t d = c->d;
    bind_feed_forward(b, c, l, 0);
    l->attn_pre = tower_vector(b, "attn_pre_norm.weight", d);
    tower_linear(b, "attn_q", d, d, &l->q);
    tower_linear(b, "attn_k", d, d, &l->k);
    tower_linear(b, "attn_v", d, d, &l->v);
    l->k_rel = tower_matrix(b, "attn_k_rel.weight", d, d);
    bind_scale(b, c, l);
    tower_linear(b, "attn_out", d, d, &l->o);
    l->attn_post = tower_vector(b, "attn_post_norm.weight", d);
    /* the writer's names: the one before the convolution is conv_norm */
    l->conv_pre = tower_vector(b, "conv_norm.weight", d);
    tower_linear(b, "conv_pw1", 2 * d, d, &l->pw1);
    l->dw = tower_floats_2d(b, "conv_dw.weight", TAPS, d);
    l->conv_norm = tower_vector(b, "norm_conv.weight", d);
    tower_linear(b, "conv_pw2", d, d, &l->pw2);
    bind_feed_forward(b, c, l, 1);
    l->out_norm = tower_vector(b, "ln2.weight", d);
}

static int64_t rows_of(const struct binder *b, const char *name)
{
    const struct io_tensor *t = model_find(b->m, name);
    const uint64_t n = t && t->n_dims ? t->ne[t->n_dims - 1] : 0;
    return n && n <= TOWER_MAX_WIDTH ? (int64_t)n : 1; /* 1: binding reports what is wrong */
}

void tower_bind_conformer(struct binder *b, struct conformer *c)
{
    tower_key(b, "clip.audio.block_count", 1, TOWER_MAX_LAYERS, &c->n_layers);
    tower_key(b, "clip.audio.embedding_length", 2, TOWER_MAX_WIDTH, &c->d);
    tower_key(b, "clip.audio.feed_forward_length", 1, TOWER_MAX_WIDTH, &c->n_ff);
    tower_key(b, "clip.audio.attention.head_count", 1, TOWER_MAX_HEADS, &c->n_heads);
    if (!b->s && (c->d % c->n_heads || c->d % 2))
        b->s = err_set(b->err, INGLE_FORMAT,
                       "'%s': 'clip.audio.embedding_length' is %lld, which is no even multiple of "
                       "%lld heads",
                       io_path(b->t->file), (long long)c->d, (long long)c->n_heads);
    if (b->s)
        return;
    c->layer = mem_calloc((size_t)c->n_layers, sizeof *c->layer);
    if (!c->layer) {
        b->s = err_set(b->err, INGLE_NOMEM, "no memory for %lld layers", (long long)c->n_layers);
        return;
    }
    c->channels[0] = rows_of(b, "a.conv1d.0.weight");
    c->channels[1] = rows_of(b, "a.conv1d.1.weight");
    c->d_out = rows_of(b, "a.pre_encode.out.weight");
    c->conv[0] = tower_matrix(b, "a.conv1d.0.weight", c->channels[0], CONV);
    c->conv_norm[0] = tower_vector(b, "a.conv1d.0.norm.weight", c->channels[0]);
    c->conv[1] = tower_matrix(b, "a.conv1d.1.weight", c->channels[1], CONV * c->channels[0]);
    c->conv_norm[1] = tower_vector(b, "a.conv1d.1.norm.weight", c->channels[1]);
    c->input = tower_matrix(b, "a.input_projection.weight", c->d, TOWER_MELS / 4 * c->channels[1]);
    c->output = tower_matrix(b, "a.pre_encode.out.weight", c->d_out, c->d);
    c->output_bias = tower_floats(b, "a.pre_encode.out.bias", c->d_out);
    c->project = tower_matrix(b, "mm.a.input_projection.weight", b->t->width, c->d_out);
    for (b->il = 0; b->il < c->n_layers && !b->s; b->il++)
        bind_layer(b, c, &c->layer[b->il]);
    b->il = -1;
}

void tower_release_conformer(struct conformer *c)
{
    for (int64_t i = 0; c->layer && i < c->n_layers; i++) {
        mem_free(c->layer[i].q_scale);
        mem_free(c->layer[i].dw);
    }
    mem_free(c->layer);
    mem_free(c->output_bias);
}

/* ---- convolutions ---- */

/* A tile of an input [rows][bands][channels], of which `first` is the first row that there is, and
 * the products' rows made of it. */
struct unfold {
    const float *at; /* f32 [n][bands][stride] */
    int64_t stride, channels, bands, first, n, n_all;
    int64_t row;   /* of the output, of y's first one */
    struct rows y; /* [rows of the output][bands / 2][channels * 9] */
};

/* Column (c, a, b) is what stands at row 2 t - 1 + a, band 2 f - 1 + b; outside are zeros. */
static void unfold_row(const struct kern_table *k, void *arg, int64_t i)
{
    (void)k;
    const struct unfold *u = arg;
    const int64_t t = u->row + i / (u->bands / 2), f = i % (u->bands / 2);
    float *y = u->y.at + i * u->y.stride;
    for (int64_t a = 0; a < 3; a++)
        for (int64_t b = 0; b < 3; b++) {
            const int64_t r = 2 * t - 1 + a, x = 2 * f - 1 + b;
            const bool there = r >= 0 && r < u->n_all && x >= 0 && x < u->bands;
            const float *from = there ? u->at + ((r - u->first) * u->bands + x) * u->stride : NULL;
            for (int64_t c = 0; c < u->channels; c++)
                y[c * CONV + a * 3 + b] = there ? from[c] : 0.0f;
        }
}

/* y = relu(norm(W x)), of u's rows. */
static void convolve(struct pass *p, const struct conformer *c, int which, struct unfold *u,
                     struct rows y)
{
    const size_t mark = device_mark(p->d);
    u->y = device_rows(p->d, y.n, CONV * u->channels);
    device_each(p->d, y.n, 2 * CONV * u->channels, unfold_row, u);
    tower_matmul(p->d, c->conv[which], u->y, y);
    device_layer_norm(p->d, y, y, c->conv_norm[which], NULL, EPS);
    device_clamp(p->d, y, y, 0.0f, INFINITY);
    if (!which)
        tower_see(p, u->row * u->bands / 2, y, "conv0");
    device_release(p->d, mark);
}

/* Rows x [n][d] of the stream from t0 on, each made of seven frames of mel [n_mel][TOWER_MELS]:
 * two convolutions of stride 2, then a projection. */
static void subsample(struct pass *p, const struct conformer *c, const float *mel, int64_t n_mel,
                      int64_t t0, struct rows x)
{
    const int64_t n_half = num_div_up(n_mel, 2), half = TOWER_MELS / 2, quarter = half / 2;
    const int64_t h0 = num_max(0, 2 * t0 - 1), h1 = num_min(n_half, 2 * (t0 + x.n));
    const size_t mark = device_mark(p->d);
    /* [h1 - h0][half][channels[0]]; [n][quarter][channels[1]]; [n][quarter * channels[1]] */
    struct rows first = device_rows(p->d, (h1 - h0) * half, c->channels[0]);
    struct rows second = device_rows(p->d, x.n * quarter, c->channels[1]);
    struct rows joined = device_rows(p->d, x.n, quarter * c->channels[1]);
    struct unfold u = {mel, 1, 1, TOWER_MELS, 0, n_mel, n_mel, h0, {0}};
    convolve(p, c, 0, &u, first);
    u = (struct unfold){first.at, first.stride, c->channels[0], half, h0, h1 - h0, n_half, t0, {0}};
    convolve(p, c, 1, &u, second);
    for (int64_t i = 0; i < second.n && device_runs(p->d); i++)
        memcpy(joined.at + i / quarter * joined.stride + i % quarter * c->channels[1],
               second.at + i * second.stride, (size_t)c->channels[1] * sizeof(float));
    tower_matmul(p->d, c->input, joined, x);
    device_release(p->d, mark);
}

/* ---- a layer ---- */

/* What tasks over rows read and write. */
struct row_task {
    const struct conformer_layer *l;
    int64_t n_heads;
    struct rows x, y;    /* input and output, [n][width] */
    struct rows q, k, v; /* [n][n_heads * head] */
    struct rows rel;     /* [SEEN][n_heads * head]: keys of distances */
};

/* x_i = silu(x_i). */
static void silu_row(const struct kern_table *k, void *arg, int64_t i)
{
    enum { PIECE = 256 };
    const struct row_task *h = arg;
    float *x = h->x.at + i * h->x.stride, one[PIECE]; /* the kernel's second factor */
    for (int c = 0; c < PIECE; c++)
        one[c] = 1.0F;
    for (int64_t c = 0; c < h->x.width; c += PIECE)
        k->math.glu_silu(x + c, x + c, one, num_min(PIECE, h->x.width - c));
}

/* x = x + norm(W2 silu(W1 norm(x))) / 2; x: [n][d]. */
static void feed_forward(struct pass *p, const struct conformer *c, const struct conformer_layer *l,
                         int which, struct rows x)
{
    const size_t mark = device_mark(p->d);
    struct rows h = device_rows(p->d, x.n, c->d);     /* [n][d]: norm(x), then the output */
    struct rows up = device_rows(p->d, x.n, c->n_ff); /* [n][n_ff] */
    device_norm(p->d, h, x, l->ff[which].norm, 1, EPS);
    tower_apply(p, &l->ff[which].up, h, up);
    device_each(p->d, up.n, 16 * up.width, silu_row, &(struct row_task){.x = up});
    tower_apply(p, &l->ff[which].down, up, h);
    device_norm(p->d, h, h, l->ff[which].post, 1, EPS);
    device_scale(p->d, h, h, 0.5f);
    device_add(p->d, x, h);
    device_release(p->d, mark);
}

/* q_i *= q_scale; k_i *= softplus(1) / log 2. */
static void scale_row(const struct kern_table *k, void *arg, int64_t i)
{
    const struct row_task *h = arg;
    k->math.mul(h->q.at + i * h->q.stride, h->l->q_scale, h->q.width);
    k->math.scale(h->k.at + i * h->k.stride, h->k.at + i * h->k.stride,
                  (float)(log(1.0 + exp(1.0)) / log(2.0)), h->k.width);
}

/* s = q_t . k_j + q_t . rel(t - j), capped; the row's values by the softmax of that. */
static void near_row(const struct kern_table *k, void *arg, int64_t t)
{
    const struct row_task *h = arg;
    const int64_t n = num_min(SEEN, t + 1), width = h->q.width / h->n_heads;
    float score[SEEN];
    for (int64_t head = 0; head < h->n_heads; head++) {
        const float *q = h->q.at + t * h->q.stride + head * width;
        float *y = h->y.at + t * h->y.stride + head * width;
        for (int64_t i = 0; i < n; i++) {
            const int64_t j = t - n + 1 + i;
            score[i] = k->math.dot(q, h->k.at + j * h->k.stride + head * width, width) +
                       k->math.dot(q, h->rel.at + (t - j) * h->rel.stride + head * width, width);
            score[i] = CAP * kern_tanh(score[i] / CAP);
        }
        k->math.softmax(score, score, n);
        memset(y, 0, (size_t)width * sizeof *y);
        for (int64_t i = 0; i < n; i++)
            k->math.add_scaled(y, h->v.at + (t - n + 1 + i) * h->v.stride + head * width, score[i],
                               width);
    }
}

/* [SEEN][d]: sines, then cosines, of distances. */
static struct rows distances(struct pass *p, const struct conformer *c)
{
    struct rows x = device_rows(p->d, SEEN, c->d);
    const int64_t half = c->d / 2;
    for (int64_t r = 0; r < SEEN && device_runs(p->d); r++)
        for (int64_t i = 0; i < half; i++) {
            const double angle =
                (double)r * exp(-(double)i * (log(10000.0) / (double)num_max(1, half - 1)));
            x.at[r * x.stride + i] = (float)sin(angle);
            x.at[r * x.stride + half + i] = (float)cos(angle);
        }
    return x;
}

/* x = x + norm(Wo attention(norm(x))), with SEEN positions and their distances; x: [n][d]. */
static void attention(struct pass *p, const struct conformer *c, int64_t il, struct rows x)
{
    const struct conformer_layer *l = &c->layer[il];
    const size_t mark = device_mark(p->d);
    struct rows h = device_rows(p->d, x.n, c->d);    /* [n][d]: norm(x), then what heads read */
    struct rows rel = device_rows(p->d, SEEN, c->d); /* [SEEN][n_heads * head] */
    struct row_task a = {.l = l,
                         .n_heads = c->n_heads,
                         .y = h,
                         .q = device_rows(p->d, x.n, c->d),
                         .k = device_rows(p->d, x.n, c->d),
                         .v = device_rows(p->d, x.n, c->d),
                         .rel = rel};
    device_norm(p->d, h, x, l->attn_pre, 1, EPS);
    tower_apply(p, &l->q, h, a.q);
    tower_apply(p, &l->k, h, a.k);
    tower_apply(p, &l->v, h, a.v);
    tower_matmul(p->d, l->k_rel, distances(p, c), rel);
    device_each(p->d, x.n, 2 * c->d, scale_row, &a);
    device_each(p->d, x.n, 3 * SEEN * c->d, near_row, &a);
    struct rows out = a.q; /* [n][d]: Wo h, in the memory of the queries */
    tower_apply(p, &l->o, h, out);
    tower_see(p, 0, out, "layer%lld.attn_out", (long long)il);
    device_add_norm(p->d, x, out, l->attn_post, EPS, 1.0f);
    device_release(p->d, mark);
}

/* y_i = the first half of x_i times the sigmoid of the second half. */
static void gate_row(const struct kern_table *k, void *arg, int64_t i)
{
    (void)k;
    const struct row_task *h = arg;
    const float *x = h->x.at + i * h->x.stride, *gate = x + h->y.width;
    float *y = h->y.at + i * h->y.stride;
    for (int64_t c = 0; c < h->y.width; c++)
        y[c] = x[c] * kern_sigmoid(gate[c]);
}

/* y_t = sum over i < 5 of w_i x_(t - 4 + i), by dimension. */
static void taps_row(const struct kern_table *k, void *arg, int64_t t)
{
    (void)k;
    const struct row_task *h = arg;
    float *y = h->y.at + t * h->y.stride;
    memset(y, 0, (size_t)h->y.width * sizeof *y);
    for (int64_t i = num_max(0, TAPS - 1 - t); i < TAPS; i++) {
        const float *x = h->x.at + (t - TAPS + 1 + i) * h->x.stride;
        for (int64_t c = 0; c < h->y.width; c++)
            y[c] += h->l->dw[c * TAPS + i] * x[c];
    }
}

/* x = x + W2 silu(norm(conv(glu(W1 norm(x))))), conv: TAPS taps per dimension; x: [n][d]. */
static void convolution(struct pass *p, const struct conformer *c, const struct conformer_layer *l,
                        struct rows x)
{
    const size_t mark = device_mark(p->d);
    struct rows h = device_rows(p->d, x.n, c->d);        /* [n][d]: norm(x), glu, the output */
    struct rows wide = device_rows(p->d, x.n, 2 * c->d); /* [n][2 * d]: values and gates */
    struct rows y = device_rows(p->d, x.n, c->d);        /* [n][d]: after the taps */
    device_norm(p->d, h, x, l->conv_pre, 1, EPS);
    tower_apply(p, &l->pw1, h, wide);
    device_each(p->d, x.n, 16 * c->d, gate_row, &(struct row_task){.x = wide, .y = h});
    device_each(p->d, x.n, 2 * TAPS * c->d, taps_row, &(struct row_task){.l = l, .x = h, .y = y});
    device_norm(p->d, y, y, l->conv_norm, 1, EPS);
    device_each(p->d, x.n, 16 * c->d, silu_row, &(struct row_task){.x = y});
    tower_apply(p, &l->pw2, y, h);
    device_add(p->d, x, h);
    device_release(p->d, mark);
}

int64_t tower_conformer_steps(const struct conformer *c)
{
    return 4 * c->n_layers + 1;
}

static bool layer(struct pass *p, const struct conformer *c, int64_t il, struct rows x)
{
    const struct conformer_layer *l = &c->layer[il];
    feed_forward(p, c, l, 0, x);
    tower_see(p, 0, x, "layer%lld.ff1", (long long)il);
    if (!tower_step(p))
        return false;
    attention(p, c, il, x);
    if (!tower_step(p))
        return false;
    convolution(p, c, l, x);
    tower_see(p, 0, x, "layer%lld.conv", (long long)il);
    if (!tower_step(p))
        return false;
    feed_forward(p, c, l, 1, x);
    device_norm(p->d, x, x, l->out_norm, 1, EPS);
    tower_see(p, 0, x, "layer%lld", (long long)il);
    return tower_step(p);
}

void tower_encode_mel(struct pass *p, const struct conformer *c, const float *mel, int64_t n,
                      float *soft)
{
    const int64_t n_rows = num_div_up(num_div_up(n, 2), 2);
    struct rows x = device_rows(p->d, n_rows, c->d);     /* [n_rows][d]: the residual stream */
    struct rows y = device_rows(p->d, n_rows, c->d_out); /* [n_rows][d_out] */
    for (int64_t t = 0; t < n_rows; t += CONV_TILE)
        subsample(p, c, mel, n, t, rows_slice(x, t, num_min(CONV_TILE, n_rows - t)));
    tower_see(p, 0, x, "embed");
    if (!tower_step(p))
        return;
    for (int64_t i = 0; i < c->n_layers; i++)
        if (!layer(p, c, i, x))
            return;
    tower_matmul(p->d, c->output, x, y);
    tower_add(p, y, c->output_bias);
    tower_see(p, 0, y, "features");
    tower_project(p, c->project, y, 0, soft);
}
