/* SPDX-License-Identifier: Apache-2.0 */
/* bind - tensors by name as weights, and what is read of tables row by row. */
#include "tower/bind.h"
#include "tower/forward.h"
#include "tower/inner.h"

#include "base/mem.h"
#include "base/num.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *full_name(const struct binder *b, const char *name, char out[TOWER_NAME])
{
    if (b->il >= 0)
        snprintf(out, TOWER_NAME, "%s.blk.%lld.%s", b->prefix, (long long)b->il, name);
    else
        snprintf(out, TOWER_NAME, "%s", name);
    return out;
}

void tower_key(struct binder *b, const char *key, uint64_t least, uint64_t most, int64_t *out)
{
    uint64_t v = 0;
    if (b->s)
        return;
    b->s = io_get_u64(b->t->meta, key, least, most, &v, b->err);
    *out = (int64_t)v;
}

bool tower_has(const struct binder *b, const char *name)
{
    char full[TOWER_NAME];
    return model_find(b->m, full_name(b, name, full)) != NULL;
}

/* What products with f32 activations have kernels for. */
static ingle_status check_type(const struct binder *b, const char *name, struct err *err)
{
    const struct io_tensor *t = model_find(b->m, name);
    if (!t || t->type == QUANT_F32 || t->type == QUANT_F16 || t->type == QUANT_BF16 ||
        t->type == QUANT_Q8_0)
        return INGLE_OK;
    return err_set(err, INGLE_UNSUP,
                   "'%s': tensor '%s' has type %s: an encoder has F32, F16, BF16 or Q8_0",
                   io_path(b->t->file), t->name, quant_info(t->type)->name);
}

/* An axis that files write as several: those of a patch, or of a convolution. */
static ingle_status fold(const struct binder *b, const char *name, int64_t in, struct err *err)
{
    const struct io_tensor *t = model_find(b->m, name);
    uint64_t n = 1;
    for (uint32_t i = 0; t && t->n_dims > 2 && i + 1 < t->n_dims; i++)
        if (!num_mul_u64(n, t->ne[i], &n))
            n = 0;
    return t && t->n_dims > 2 && n == (uint64_t)in ? model_fold(b->m, name, err) : INGLE_OK;
}

const struct device_matrix *tower_matrix(struct binder *b, const char *name, int64_t out,
                                         int64_t in)
{
    char full[TOWER_NAME];
    const struct device_matrix *w = NULL;
    if (!b->s)
        b->s = check_type(b, full_name(b, name, full), b->err);
    if (!b->s)
        b->s = fold(b, full, in, b->err);
    if (!b->s)
        b->s = model_matrix(b->m, full, out, in, 1, &w, b->err);
    return w;
}

const struct device_vector *tower_vector(struct binder *b, const char *name, int64_t n)
{
    char full[TOWER_NAME];
    const struct device_vector *v = NULL;
    if (!b->s)
        b->s = model_vector(b->m, full_name(b, name, full), n, &v, b->err);
    return v;
}

float *tower_floats_2d(struct binder *b, const char *name, int64_t width, int64_t rows)
{
    char full[TOWER_NAME];
    if (b->s)
        return NULL;
    const struct io_tensor *t = model_find(b->m, full_name(b, name, full));
    float *v = mem_calloc((size_t)rows * (size_t)width, sizeof *v);
    if (!v)
        b->s = err_set(b->err, INGLE_NOMEM, "no memory for tensor '%s'", full);
    else if (t && t->n_dims > 2) /* [rows][1][width] */
        b->s = model_floats_3d(b->m, full, width, 1, rows, v, b->err);
    else
        b->s = model_floats_2d(b->m, full, width, rows, v, b->err);
    if (b->s) {
        mem_free(v);
        v = NULL;
    }
    return v;
}

float *tower_floats(struct binder *b, const char *name, int64_t n)
{
    return tower_floats_2d(b, name, n, 1);
}

/* One of the four bounds of a linear layer; absent: *v stays.  A bound may be infinite. */
static void bound(struct binder *b, const char *name, const char *which, float *v, bool *any)
{
    char part[64], full[TOWER_NAME];
    uint8_t stored[4];
    snprintf(part, sizeof part, "%s.%s", name, which);
    const struct io_tensor *t = b->s ? NULL : model_find(b->m, full_name(b, part, full));
    if (!t)
        return;
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        n = t->ne[i] == 1 ? n : 0;
    if (n != 1 || (t->type != QUANT_F32 && t->type != QUANT_F16 && t->type != QUANT_BF16))
        b->s = err_set(b->err, INGLE_FORMAT, "'%s': tensor '%s' is no single F32, F16 or BF16",
                       io_path(b->t->file), t->name);
    else
        b->s = io_read(b->t->file, t, 0, stored, (size_t)t->n_bytes, b->err);
    if (b->s)
        return;
    quant_decode(t->type, stored, v, 1);
    if (isnan(*v))
        b->s = err_set(b->err, INGLE_FORMAT, "'%s': tensor '%s' is no number", io_path(b->t->file),
                       t->name);
    if (!b->s && *b->prefix == 'v' && b->t->clamps == SAYS_NO)
        b->s = err_set(b->err, INGLE_FORMAT,
                       "'%s': tensor '%s' is there, but 'use_clipped_linears' in config.json is "
                       "false",
                       io_path(b->t->file), t->name);
    *any = true;
}

void tower_linear(struct binder *b, const char *name, int64_t out, int64_t in, struct linear *l)
{
    char weight[64];
    *l = (struct linear){.in = {-INFINITY, INFINITY}, .out = {-INFINITY, INFINITY}};
    snprintf(weight, sizeof weight, "%s.weight", name);
    l->w = tower_matrix(b, weight, out, in);
    bound(b, name, "input_min", &l->in[0], &l->clamps);
    bound(b, name, "input_max", &l->in[1], &l->clamps);
    bound(b, name, "output_min", &l->out[0], &l->clamps);
    bound(b, name, "output_max", &l->out[1], &l->clamps);
    if (!b->s && (l->in[0] > l->in[1] || l->out[0] > l->out[1]))
        b->s = err_set(b->err, INGLE_FORMAT,
                       "'%s': tensor '%s.blk.%lld.%s' is clamped to [%g, %g] and [%g, %g]",
                       io_path(b->t->file), b->prefix, (long long)b->il, weight, (double)l->in[0],
                       (double)l->in[1], (double)l->out[0], (double)l->out[1]);
}

/* ---- places ---- */

void tower_places(struct binder *b, int64_t d, struct places *out)
{
    static const char name[] = "v.position_embd.weight";
    if (b->s)
        return;
    const struct io_tensor *t = model_find(b->m, name);
    if (!t) {
        b->s = err_set(b->err, INGLE_FORMAT, "'%s': tensor '%s' is missing", io_path(b->t->file),
                       name);
        return;
    }
    const bool by_place =
        b->t->vision_kind == VISION_PATCHES && io_kind(b->t->file) == IO_SAFETENSORS;
    const uint64_t n = by_place ? t->ne[2] : t->ne[1], two = by_place ? t->ne[1] : t->ne[2];
    if (t->n_dims != 3 || t->ne[0] != (uint64_t)d || two != 2 || !n || n > 1 << 20)
        b->s = err_set(b->err, INGLE_FORMAT,
                       "'%s': tensor '%s' is %llu x %llu x %llu (contiguous first), expected "
                       "%s",
                       io_path(b->t->file), t->name, (unsigned long long)t->ne[0],
                       (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
                       by_place ? "width x 2 x places" : "width x places x 2");
    else if (t->type != QUANT_F32 && t->type != QUANT_F16 && t->type != QUANT_BF16)
        b->s = err_set(b->err, INGLE_FORMAT,
                       "'%s': tensor '%s' has type %s, expected F32, F16 or BF16",
                       io_path(b->t->file), t->name, quant_info(t->type)->name);
    *out = (struct places){t, (int64_t)n, d, by_place};
    b->t->table_bytes = t->n_bytes;
}

struct rows tower_place_rows(struct pass *p, const struct places *from, int axis, int64_t n)
{
    struct rows to = device_rows(p->d, n, from->d);
    const size_t row_bytes = (size_t)(from->t->n_bytes / (uint64_t)(2 * from->n));
    void *stored = device_bytes(p->d, row_bytes);
    for (int64_t i = 0; i < n && device_runs(p->d); i++) {
        const int64_t row = from->by_place ? 2 * i + axis : axis * from->n + i;
        struct err e;
        if (io_read(p->t->file, from->t, (uint64_t)row * row_bytes, stored, row_bytes, &e))
            device_fail(p->d, &e);
        else
            quant_decode(from->t->type, stored, to.at + i * to.stride, (size_t)from->d);
    }
    return to;
}
