/* SPDX-License-Identifier: Apache-2.0 */
/* plain - pictures and sound of the 12B, which has no encoders: a few norms and matrices. */
#include "tower/bind.h"
#include "tower/forward.h"
#include "tower/inner.h"

#include "base/num.h"
#include <string.h>

static const float NORM_EPS = 1e-5f;

/* ---- pictures ---- */

void tower_bind_patches(struct binder *b, struct patches *v)
{
    int64_t patch = 0, pool = 3;
    tower_key(b, "clip.vision.embedding_length", 1, TOWER_MAX_WIDTH, &v->d);
    tower_key(b, "clip.vision.patch_size", 1, 64, &patch);
    if (!b->s && io_meta_find(b->t->meta, "clip.vision.projector.scale_factor"))
        tower_key(b, "clip.vision.projector.scale_factor", 1, 16, &pool);
    if (b->s)
        return;
    v->side = patch * pool;
    const int64_t n = 3 * v->side * v->side;
    v->ln1 = tower_vector(b, "v.patch_norm.1.weight", n);
    v->ln1_bias = tower_vector(b, "v.patch_norm.1.bias", n);
    v->embed = tower_matrix(b, "v.patch_embd.weight", v->d, n);
    v->bias = tower_floats(b, "v.patch_embd.bias", v->d);
    v->ln2 = tower_vector(b, "v.patch_norm.2.weight", v->d);
    v->ln2_bias = tower_vector(b, "v.patch_norm.2.bias", v->d);
    v->norm = tower_vector(b, "v.patch_norm.3.weight", v->d);
    v->norm_bias = tower_vector(b, "v.patch_norm.3.bias", v->d);
    tower_places(b, v->d, &v->places);
    v->project = tower_matrix(b, "mm.input_projection.weight", b->t->width, v->d);
}

/* What tasks over rows read. */
struct patch_job {
    const struct patches *v;
    const unsigned char *rgb;     /* u8 [down][across][3], of pixels */
    int64_t across, row;          /* row: index of x's first row among all patches */
    struct rows x;                /* [rows][3 * side * side] or [rows][d] */
    struct rows table_x, table_y; /* [across][d], [down][d]: position embeddings */
};

/* Row i: the bytes of a patch / 255, in the order of the weights' columns. */
static void read_patch(const struct kern_table *k, void *arg, int64_t i)
{
    (void)k;
    const struct patch_job *l = arg;
    const int64_t s = l->v->side, at = l->row + i, x0 = at % l->across * s, y0 = at / l->across * s,
                  wide = l->across * s;
    float *to = l->x.at + i * l->x.stride;
    for (int64_t y = 0; y < s; y++)
        for (int64_t x = 0; x < s; x++)
            for (int64_t c = 0; c < 3; c++)
                to[l->v->channel_first ? (c * s + y) * s + x : (y * s + x) * 3 + c] =
                    (float)l->rgb[((y0 + y) * wide + x0 + x) * 3 + c] * (float)(1.0 / 255.0);
}

/* x += table_x[column] + table_y[row]. */
static void add_place(const struct kern_table *k, void *arg, int64_t i)
{
    const struct patch_job *l = arg;
    const int64_t at = l->row + i;
    float *x = l->x.at + i * l->x.stride;
    k->math.add(x, l->table_x.at + at % l->across * l->table_x.stride, l->x.width);
    k->math.add(x, l->table_y.at + at / l->across * l->table_y.stride, l->x.width);
}

void tower_see_patches(struct pass *p, const struct patches *v, const unsigned char *rgb,
                       int64_t n_across, int64_t n_down, float *soft)
{
    struct patch_job l = {.v = v, .rgb = rgb, .across = n_across};
    const int64_t n = n_across * n_down;
    l.table_x = tower_place_rows(p, &v->places, 0, n_across);
    l.table_y = tower_place_rows(p, &v->places, 1, n_down);
    for (int64_t i = 0; i < n; i += p->t->tile) {
        const int64_t rows = num_min(p->t->tile, n - i);
        const size_t mark = device_mark(p->d);
        struct rows patch = device_rows(p->d, rows, 3 * v->side * v->side); /* pixels, 0 .. 1 */
        struct rows x = device_rows(p->d, rows, v->d);                      /* [rows][d] */
        l.x = patch;
        l.row = i;
        device_each(p->d, rows, 4 * patch.width, read_patch, &l);
        device_layer_norm(p->d, patch, patch, v->ln1, v->ln1_bias, NORM_EPS);
        tower_see(p, i, patch, "ln1");
        tower_matmul(p->d, v->embed, patch, x);
        tower_add(p, x, v->bias);
        tower_see(p, i, x, "dense");
        device_layer_norm(p->d, x, x, v->ln2, v->ln2_bias, NORM_EPS);
        tower_see(p, i, x, "ln2");
        l.x = x;
        device_each(p->d, rows, 2 * x.width, add_place, &l);
        device_layer_norm(p->d, x, x, v->norm, v->norm_bias, NORM_EPS);
        tower_see(p, i, x, "features");
        tower_project(p, v->project, x, i, soft);
        device_release(p->d, mark);
        if (!tower_step(p))
            return;
    }
}

/* ---- sound ---- */

void tower_encode_frames(struct pass *p, const struct frames *f, const float *samples, int64_t n,
                         float *soft)
{
    const int64_t n_frames = num_div_up(n, TOWER_FRAME);
    struct rows x = device_rows(p->d, n_frames, TOWER_FRAME); /* samples, zeros at the end */
    if (device_runs(p->d))
        for (int64_t i = 0; i < n_frames; i++) {
            const int64_t here = num_min(TOWER_FRAME, n - i * TOWER_FRAME);
            float *to = x.at + i * x.stride;
            memset(to, 0, TOWER_FRAME * sizeof *to);
            memcpy(to, samples + i * TOWER_FRAME, (size_t)here * sizeof *to);
        }
    tower_project(p, f->project, x, 0, soft);
}
