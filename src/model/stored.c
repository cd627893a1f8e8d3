/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stored - which tensors of a file make up a matrix: codes, and what belongs to them.
 *
 *   X.weight                      floats or blocks of a GGUF; codes FP8, I8, or two FP4 a byte (U8,
 *   I8)
 *   X.weight_packed               whole numbers in words of 32 bits (I32), or two FP4 a byte (U8)
 *   X.weight_scale, .weight_scale_inv, .scale    one for all, a row, a tile, or a group of a row
 *   X.weight_scale_2, .weight_global_scale       NVFP4's factor of the whole matrix, or what
 *   divides it
 *   X.weight_zero_point, .weight_shape
 */
#include "base/mem.h"
#include "model/load.h"
#include "model/parts.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { GROUP = 32, FP8_TILE = 128, NVFP4_GROUP = 16, NVFP4_BLOCK = 64, MOST_TRIED = 1 << 20 };
/* Halves from 2^-14 on are exact, brain floats begin at 2^-126: scales of whole numbers are loaded
 * as 1,024 times themselves, and products divided by it. */
enum { INT_SHIFT = 10 };

struct tensors {
    struct entry *codes, *scale, *second, *zero, *shape;
    char name[NAME_MAX_BYTES]; /* of the codes */
    bool packed;               /* .weight_packed */
    bool inverse;              /* second is a divisor */
};

bool model_base_name(const char *name, char out[NAME_MAX_BYTES])
{
    static const char end[] = ".weight";
    const size_t n = strlen(name), k = sizeof end - 1;
    if (n < k || n >= NAME_MAX_BYTES || strcmp(name + n - k, end) != 0)
        return false;
    memcpy(out, name, n - k);
    out[n - k] = 0;
    return true;
}

static struct entry *with(const struct model *m, const char *base, const char *end)
{
    char name[2 * NAME_MAX_BYTES];
    snprintf(name, sizeof name, "%s%s", base, end);
    struct entry *e = model_entry(m, name);
    return e && !e->bound ? e : NULL; /* a bound one is a parameter of the model with such a name */
}

static ingle_status refuse_pair(const struct model *m, const struct entry *a, const struct entry *b,
                                struct err *err)
{
    return err_set(err, INGLE_FORMAT, "'%s': tensors '%s' and '%s' mean the same", io_path(m->file),
                   a->t->name, b->t->name);
}

/* Those of one matrix.  Without codes: t->codes is NULL. */
static ingle_status gather(const struct model *m, const char *name, struct tensors *t,
                           struct err *err)
{
    static const char *const scales[] = {".weight_scale", ".weight_scale_inv", ".scale"};
    char base[NAME_MAX_BYTES];
    *t = (struct tensors){.codes = model_entry(m, name)};
    snprintf(t->name, sizeof t->name, "%s", name);
    if (!model_base_name(name, base))
        return INGLE_OK;
    struct entry *packed = with(m, base, ".weight_packed");
    if (packed && t->codes)
        return refuse_pair(m, t->codes, packed, err);
    if (packed) {
        t->codes = packed;
        t->packed = true;
        snprintf(t->name, sizeof t->name, "%s", packed->name);
    }
    if (!t->codes || quant_info(t->codes->t->type)->quantised)
        return INGLE_OK;
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        struct entry *s = with(m, base, scales[i]);
        if (s && t->scale)
            return refuse_pair(m, t->scale, s, err);
        t->scale = s ? s : t->scale;
    }
    struct entry *divisor = with(m, base, ".weight_global_scale");
    t->second = with(m, base, ".weight_scale_2");
    if (divisor && t->second)
        return refuse_pair(m, t->second, divisor, err);
    t->inverse = divisor != NULL;
    t->second = divisor ? divisor : t->second;
    t->zero = with(m, base, ".weight_zero_point");
    t->shape = with(m, base, ".weight_shape");
    return INGLE_OK;
}

/* ---- what the codes are ---- */

static ingle_status no_codes(const struct model *m, const struct entry *e, uint64_t columns,
                             struct err *err)
{
    return err_set(err, INGLE_UNSUP,
                   "'%s': tensor '%s' of type %s with %llu columns is none of the codes that are "
                   "read for a matrix of %llu: FP8 "
                   "(F8_E4M3), whole numbers of 4 or 8 bits, NVFP4, MXFP4",
                   io_path(m->file), e->t->name, quant_info(e->t->type)->name,
                   (unsigned long long)e->t->ne[0], (unsigned long long)columns);
}

/* Kind of codes, and columns of the tensor that has them. */
static ingle_status codes_of(const struct model *m, const struct tensors *t, uint64_t in,
                             struct layout *l, uint64_t *columns, struct err *err)
{
    const uint32_t type = t->codes->t->type;
    const uint64_t is = t->codes->t->ne[0];
    *l = (struct layout){.in = (int64_t)in, .type = type};
    *columns = in;
    if (type == QUANT_FP8_E4M3 && !t->packed) {
        l->codes = CODES_FP8;
    } else if ((type == QUANT_U8 || (type == QUANT_I8 && !t->packed)) && in % 2 == 0 &&
               is == in / 2) {
        l->codes = CODES_E2M1;
        *columns = in / 2;
    } else if (type == QUANT_I8 && !t->packed) {
        l->codes = CODES_INT;
        l->bits = 8;
    } else if (type == QUANT_I32 && t->packed && (is == (in + 7) / 8 || is == (in + 3) / 4)) {
        l->codes = CODES_INT;
        l->packed = true;
        l->bits = is == (in + 7) / 8 ? 4 : 8;
        *columns = is;
    } else if (t->packed || type == QUANT_U8 || type == QUANT_I32) {
        return no_codes(m, t->codes, in, err);
    }
    l->row_bytes = (int64_t)*columns * (l->packed ? 4 : 1);
    return INGLE_OK;
}

static ingle_status no_scales(const struct model *m, const struct tensors *t, struct err *err)
{
    const char *name = t->codes->t->name, *dot = strrchr(name, '.');
    const bool suffix = dot && !strncmp(dot, ".weight", 7);
    return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' of type %s has no scales '%.*s%s'",
                   io_path(m->file), name, quant_info(t->codes->t->type)->name,
                   suffix ? (int)(dot - name) : (int)strlen(name), name,
                   suffix ? ".weight_scale' or '.weight_scale_inv" : "_scale' or '_scale_inv");
}

/* ---- where the scales are ---- */

static ingle_status odd_scales(const struct model *m, const struct source *p, const uint64_t ne[3],
                               struct err *err)
{
    return err_set(err, INGLE_FORMAT,
                   "'%s': tensor '%s' of %llu x %llu x %llu (contiguous first) gives no scale to "
                   "each row, tile or group of '%s', which is "
                   "%llu x %llu x %llu",
                   io_path(m->file), p->scale->name, (unsigned long long)p->scale->ne[0],
                   (unsigned long long)p->scale->ne[1], (unsigned long long)p->scale->ne[2],
                   p->t->name, (unsigned long long)ne[0], (unsigned long long)ne[1],
                   (unsigned long long)ne[2]);
}

/* How much of n one of `parts` scales covers, where `tile` is usual; 0: nothing that fits. */
static int64_t tile_of(uint64_t n, uint64_t parts, int64_t tile)
{
    if (parts == 1)
        return (int64_t)n;
    if (parts == n)
        return 1;
    if (tile > 0 && (n - 1) / (uint64_t)tile + 1 == parts)
        return tile;
    return parts && n % parts == 0 ? (int64_t)(n / parts) : 0;
}

/* ne: {in, rows, stack} of the codes as values, stack 1 where one matrix holds them all. */
static ingle_status find_tiles(const struct model *m, const struct layout *l, const uint64_t ne[3],
                               struct source *p, struct err *err)
{
    const struct io_tensor *s = p->scale;
    /* [rows][1][columns][1] */
    const bool spread = s->n_dims == 4 && s->ne[0] == 1 && s->ne[2] == 1;
    const uint64_t n = s->ne[0] * s->ne[1] * s->ne[2] * s->ne[3];
    uint64_t rows = 0, columns = 1;
    int64_t tile_rows = l->codes == CODES_FP8 ? FP8_TILE : 0, tile_columns = tile_rows;
    if (l->codes == CODES_FP8)
        model_scheme_tile(m, &tile_rows, &tile_columns);
    if (s->n_dims > 3 && !spread)
        return odd_scales(m, p, ne, err);
    if (n == 1) {
        *p = (struct source){p->t, s, p->zero, (int64_t)(ne[1] * ne[2]), l->in, 1, 0};
        return INGLE_OK;
    }
    if (ne[2] > 1) {
        if (s->n_dims == 3 && s->ne[2] == ne[2])
            rows = s->ne[1], columns = s->ne[0];
        else if (n == ne[2])
            rows = 1;
        else if (s->n_dims == 2 && s->ne[1] == ne[2] && s->ne[0] == ne[1])
            rows = ne[1];
    } else if (spread) {
        rows = s->ne[3], columns = s->ne[1];
    } else if (s->n_dims == 1) {
        rows = n == ne[1] ? n : 0;
    } else if (s->ne[2] == 1) {
        rows = s->ne[1], columns = s->ne[0];
    }
    p->tile_rows = rows ? tile_of(ne[1], rows, tile_rows) : 0;
    p->tile_columns = columns ? tile_of(ne[0], columns, tile_columns) : 0;
    p->scale_columns = (int64_t)columns;
    p->scale_rows = ne[2] > 1 ? (int64_t)rows : 0;
    return p->tile_rows && p->tile_columns ? INGLE_OK : odd_scales(m, p, ne, err);
}

static ingle_status check_scale_type(const struct model *m, const struct layout *l,
                                     const struct tensors *t, struct err *err)
{
    const uint32_t type = t->scale->t->type;
    const bool floats = type == QUANT_F32 || type == QUANT_F16 || type == QUANT_BF16;
    const bool exponents = type == QUANT_E8M0 || type == QUANT_U8;
    const bool ok = l->codes == CODES_INT    ? floats
                    : l->codes == CODES_FP8  ? floats || exponents
                    : t->second              ? type == QUANT_FP8_E4M3
                                             : floats || exponents;
    if (ok)
        return INGLE_OK;
    if (l->codes == CODES_E2M1 && type == QUANT_FP8_E4M3)
        return err_set(err, INGLE_FORMAT,
                       "'%s': tensor '%s' has scales of NVFP4, but no '.weight_scale_2' or "
                       "'.weight_global_scale'",
                       io_path(m->file), t->codes->t->name);
    return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has type %s, expected %s",
                   io_path(m->file), t->scale->t->name, quant_info(type)->name,
                   l->codes == CODES_E2M1 && t->second ? "F8_E4M3"
                   : l->codes == CODES_INT             ? "F32, F16 or BF16"
                                                       : "E8M0, F32, F16 or BF16");
}

/* ---- which code of the device they become ---- */

typedef bool scale_test(float v);

static bool is_power(float v)
{
    uint8_t e;
    return model_exponent(v, &e);
}

static bool is_half(float v)
{
    const float s = ldexpf(v, INT_SHIFT), back = quant_f16_to_f32(quant_f32_to_f16(s));
    return back <= s && back >= s;
}

/* Whether a tensor of scales is small enough to be looked at, and all of them pass. */
static ingle_status all_are(const struct model *m, const struct io_tensor *s, scale_test *test,
                            bool *out, struct err *err)
{
    const uint64_t n = s->n_bytes / quant_info(s->type)->n_bytes;
    *out = false;
    if (n > MOST_TRIED)
        return INGLE_OK;
    uint8_t *work = mem_calloc((size_t)n, sizeof(float));
    float *v = mem_calloc((size_t)n, sizeof *v);
    ingle_status st = work && v ? model_scales(m->file, s, 0, (size_t)n, work, v, err)
                                : err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", s->name);
    bool all = !st;
    for (uint64_t i = 0; all && i < n; i++)
        all = test(v[i]);
    mem_free(work);
    mem_free(v);
    *out = all;
    return st;
}

static ingle_status choose_fp8(const struct model *m, const struct source *p, struct layout *l,
                               struct err *err)
{
    bool powers = p->scale->type == QUANT_E8M0 || p->scale->type == QUANT_U8;
    ingle_status s = powers ? INGLE_OK : all_are(m, p->scale, is_power, &powers, err);
    l->from = l->in % GROUP || p->tile_columns % GROUP ? TO_FLOATS : powers ? FROM_FP8 : FROM_FP8_S;
    l->type = l->from == TO_FLOATS ? QUANT_F32 : powers ? QUANT_FP8_B32 : QUANT_FP8_S32;
    return s;
}

static ingle_status choose_e2m1(const struct model *m, const struct source *p,
                                const struct tensors *t, struct layout *l, struct err *err)
{
    const int64_t group = t->second ? NVFP4_GROUP : GROUP, whole = t->second ? NVFP4_BLOCK : GROUP;
    if (p->tile_rows != 1 || p->tile_columns != (l->in < group ? l->in : group))
        return err_set(err, INGLE_UNSUP,
                       "'%s': tensor '%s' has a scale for %lld columns of %lld rows of FP4, "
                       "expected %lld of 1",
                       io_path(m->file), p->scale->name, (long long)p->tile_columns,
                       (long long)p->tile_rows, (long long)group);
    l->from = l->in % whole ? TO_FLOATS : t->second ? FROM_NVFP4 : FROM_FP4;
    l->type = l->from == TO_FLOATS ? QUANT_F32 : t->second ? QUANT_NVFP4 : QUANT_MXFP4;
    return INGLE_OK;
}

static ingle_status choose_int(const struct model *m, const struct source *p, struct layout *l,
                               struct err *err)
{
    bool halves = p->scale->type != QUANT_F32;
    if (p->tile_columns % GROUP && p->tile_columns != l->in)
        return err_set(err, INGLE_UNSUP,
                       "'%s': tensor '%s' has a group_size of %lld, expected a multiple of %d; "
                       "groups of 32, 64 or 128, or one scale "
                       "a row, work",
                       io_path(m->file), p->scale->name, (long long)p->tile_columns, GROUP);
    const ingle_status s = halves ? INGLE_OK : all_are(m, p->scale, is_half, &halves, err);
    const bool floats = !halves || l->in % GROUP || (l->bits == 8 && p->zero);
    l->from = floats ? TO_FLOATS : FROM_INT;
    l->type = floats ? QUANT_F32 : l->bits == 8 ? QUANT_Q8_0 : p->zero ? QUANT_Q5_0 : QUANT_Q4_0;
    l->shift = floats || p->scale->type == QUANT_F16 ? 0 : INT_SHIFT;
    return s;
}

/* ---- companions ---- */

/* X.weight_shape says how wide rows are before they are padded to words. */
static ingle_status check_shape(struct model *m, const struct tensors *t, const uint64_t ne[3],
                                struct err *err)
{
    int32_t is[2];
    if (!t->shape)
        return INGLE_OK;
    const ingle_status s = model_ints(m, t->shape->name, 2, 1, 0, INT32_MAX, is, err);
    if (!s && ((uint64_t)is[0] != ne[1] || (uint64_t)is[1] != ne[0]))
        return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' is %d x %d, expected %llu x %llu",
                       io_path(m->file), t->shape->t->name, is[0], is[1], (unsigned long long)ne[1],
                       (unsigned long long)ne[0]);
    return s;
}

static ingle_status check_zero(struct model *m, const struct layout *l, const uint64_t ne[3],
                               const struct source *p, struct entry *zero, struct err *err)
{
    if (!zero)
        return INGLE_OK;
    const uint64_t per = l->packed ? 32 / (uint64_t)l->bits : 1;
    const uint64_t is[3] = {(uint64_t)p->scale_columns, (ne[1] + per - 1) / per, 1};
    const uint32_t type = l->packed ? QUANT_I32 : QUANT_I8;
    if (l->codes != CODES_INT || p->tile_rows != 1 || ne[2] > 1 || zero->t->type != type)
        return err_set(err, INGLE_UNSUP,
                       "'%s': tensor '%s' of type %s: zero points are read only for whole numbers "
                       "with a scale for each row, as %s",
                       io_path(m->file), zero->t->name, quant_info(zero->t->type)->name,
                       quant_info(type)->name);
    return model_want(m, zero->name, is, &zero, err);
}

/* What products are multiplied by, for each of n matrices. */
static ingle_status read_factor(struct model *m, const struct tensors *t, int64_t n, float *factor,
                                struct err *err)
{
    if (!t->second)
        return INGLE_OK;
    const struct io_tensor *s = t->second->t;
    const int64_t is = s->ne[0] * s->ne[1] * s->ne[2] == 1 ? 1 : n;
    float one;
    if (s->type != QUANT_F32)
        return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has type %s, expected F32",
                       io_path(m->file), s->name, quant_info(s->type)->name);
    const ingle_status st = model_floats(m, t->second->name, is, is == 1 ? &one : factor, err);
    for (int64_t i = 0; !st && i < n; i++) {
        factor[i] = is == 1 ? one : factor[i];
        if (!(factor[i] > 0.0f))
            return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has %g, expected more than 0",
                           io_path(m->file), s->name, (double)factor[i]);
        factor[i] = t->inverse ? 1.0f / factor[i] : factor[i];
    }
    return st;
}

/* One source: codes with what belongs to them, as rows [out][in] of n_stack matrices. */
static ingle_status one_source(struct model *m, const char *name, const uint64_t ne[3],
                               struct source *p, struct layout *l, float *factor, struct err *err)
{
    struct tensors t;
    struct entry *e;
    uint64_t columns;
    ingle_status s = gather(m, name, &t, err);
    if (!s && !t.codes)
        return model_want(m, name, ne, &e, err); /* says that it is missing */
    if (!s)
        s = codes_of(m, &t, ne[0], l, &columns, err);
    if (s)
        return s;
    if (l->codes != CODES_NONE && !t.scale)
        return no_scales(m, &t, err);
    const bool grouped = t.codes->t->n_dims == 2 && ne[2] > 1; /* a stack written as one matrix */
    const uint64_t flat[3] = {ne[0], grouped ? ne[1] * ne[2] : ne[1], grouped ? 1 : ne[2]};
    const uint64_t is[3] = {columns, flat[1], flat[2]};
    s = model_want(m, t.name, is, &e, err);
    if (s)
        return s;
    e->bound = true;
    *p = (struct source){.t = e->t};
    if (l->codes == CODES_NONE)
        return INGLE_OK;
    p->scale = t.scale->t;
    p->zero = t.zero ? t.zero->t : NULL;
    if ((s = check_scale_type(m, l, &t, err)) || (s = find_tiles(m, l, flat, p, err)) ||
        (s = check_zero(m, l, flat, p, t.zero, err)) || (s = check_shape(m, &t, flat, err)))
        return s;
    s = l->codes == CODES_FP8    ? choose_fp8(m, p, l, err)
        : l->codes == CODES_E2M1 ? choose_e2m1(m, p, &t, l, err)
                                 : choose_int(m, p, l, err);
    if (!s && l->codes != CODES_E2M1 && t.second)
        s = err_set(err, INGLE_UNSUP,
                    "'%s': tensor '%s' is a second scale, which is read only for NVFP4",
                    io_path(m->file), t.second->t->name);
    if (!s)
        s = read_factor(m, &t, (int64_t)ne[2], factor, err);
    t.scale->bound = true;
    if (t.zero)
        t.zero->bound = true;
    return s ? s : model_scheme_check(m, p, l, err);
}

/* ---- stacks ---- */

/* What holds the matrices of both layouts without loss; false: nothing. */
static bool join(struct layout *l, const struct layout *one)
{
    if (l->codes != one->codes || l->bits != one->bits || l->packed != one->packed ||
        (l->codes == CODES_NONE && l->type != one->type))
        return false;
    if (l->type == one->type && l->from == one->from) {
        l->shift = l->shift > one->shift ? l->shift : one->shift;
        return true;
    }
    const bool floats = l->from == TO_FLOATS || one->from == TO_FLOATS;
    if (!floats && l->codes == CODES_E2M1)
        return false;
    l->from = floats ? TO_FLOATS : l->codes == CODES_FP8 ? FROM_FP8_S : FROM_INT;
    l->type = floats ? QUANT_F32 : l->codes == CODES_FP8 ? QUANT_FP8_S32 : QUANT_Q5_0;
    l->shift = floats ? 0 : l->shift > one->shift ? l->shift : one->shift;
    return true;
}

/* A stack whose matrices are tensors of their own: "<base>.<index>.weight". */
static ingle_status many_sources(struct model *m, const char *name, const uint64_t ne[3],
                                 struct source *part, struct layout *l, float *factor,
                                 struct err *err)
{
    const char *dot = strrchr(name, '.');
    const uint64_t flat[3] = {ne[0], ne[1], 1};
    for (uint64_t i = 0; i < ne[2]; i++) {
        char one[NAME_MAX_BYTES];
        struct layout its;
        snprintf(one, sizeof one, "%.*s.%llu%s", (int)(dot - name), name, (unsigned long long)i,
                 dot);
        const ingle_status s = one_source(m, one, flat, &part[i], &its, &factor[i], err);
        if (s)
            return s;
        if (i && !join(l, &its))
            return err_set(err, INGLE_UNSUP, "'%s': tensor '%s' has type %s, its siblings %s",
                           io_path(m->file), part[i].t->name, quant_info(its.type)->name,
                           quant_info(l->type)->name);
        if (!i)
            *l = its;
    }
    return INGLE_OK;
}

bool model_has_matrix(const struct model *m, const char *name)
{
    static const char *const ends[] = {".weight_packed", ".0.weight", ".0.weight_packed"};
    char base[NAME_MAX_BYTES];
    bool has = model_entry(m, name) != NULL;
    for (size_t i = 0; !has && model_base_name(name, base) && i < sizeof ends / sizeof *ends; i++)
        has = with(m, base, ends[i]) != NULL;
    return has;
}

int64_t model_matrix_rows(const struct model *m, const char *name, int64_t most)
{
    char base[NAME_MAX_BYTES];
    const struct entry *e = model_entry(m, name);
    if (!e && model_base_name(name, base))
        e = with(m, base, ".weight_packed");
    return e && e->t->n_dims == 2 && e->t->ne[1] <= (uint64_t)most ? (int64_t)e->t->ne[1] : 0;
}

ingle_status model_stored(struct model *m, const char *name, const uint64_t ne[3],
                          struct source **part, int64_t *n_parts, struct layout *l, float *factor,
                          struct err *err)
{
    char base[NAME_MAX_BYTES];
    const bool named = model_base_name(name, base);
    const bool parts =
        ne[2] > 1 && named && !model_entry(m, name) && !with(m, base, ".weight_packed");
    if (parts && !model_has_matrix(m, name))
        return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' is missing, and so is '%s.0.weight'",
                       io_path(m->file), name, base);
    *n_parts = parts ? (int64_t)ne[2] : 1;
    struct source *p = mem_calloc((size_t)*n_parts, sizeof *p);
    if (!p)
        return err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", name);
    for (uint64_t i = 0; i < ne[2]; i++)
        factor[i] = 1.0f;
    const ingle_status s = parts ? many_sources(m, name, ne, p, l, factor, err)
                                 : one_source(m, name, ne, p, l, factor, err);
    for (uint64_t i = 0; !s && i < ne[2]; i++)
        factor[i] = ldexpf(factor[i], -l->shift);
    if (s)
        mem_free(p);
    else
        *part = p;
    return s;
}
