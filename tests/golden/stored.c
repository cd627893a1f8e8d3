/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stored - quantised checkpoints in the layouts in which they are published, made of golden ones,
 * against the same codes decoded here to F32: the logits of both.  And those that must be refused,
 * with the words that say why.
 */
#define _GNU_SOURCE
#include "golden/golden.h"

#include "base/mem.h"
#include "base/str.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char moe[] = "tests/data/goldens/gemma4_moe",
                  v4[] = "tests/data/goldens/deepseek_v4_published";

enum codes { FP8, INT, FP4 };
enum same { BITS, REFERENCE_BITS, CLOSE }; /* what a file has in common with the decoded one */

#define CT(group)                                                                                  \
    "{\"quant_method\":\"compressed-tensors\",\"ignore\":[\"lm_head\",\"re:.*router.*\"],"         \
    "\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" group "}}}}"
#define CT_INT(bits, how) CT("\"num_bits\":" bits ",\"type\":\"int\"," how)

struct kind {
    const char *name, *config;
    enum codes codes;
    int bits;
    bool packed, zero;
    int64_t tile_rows, tile_columns; /* 0: all */
    uint32_t scale_type;
    const char *scale;               /* what its tensor's name ends in */
    bool flat;                       /* one axis: [rows], or none */
    bool spread;                     /* four: [rows][1][columns][1] */
    bool head;                       /* embeddings and heads, too */
    bool nv, inverse;                /* a second scale, or its inverse */
    bool apart;                      /* experts are tensors of their own */
    enum same same;
};

static const struct kind kinds[] = {
    {"fp8 one",
     "{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\",\"kv_cache_quant_algo\":\"FP8\"}", FP8,
     8, .scale_type = QUANT_F32, .scale = "_scale", .flat = true, .same = BITS},
    {"fp8 rows", CT("\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\""), FP8, 8,
     .tile_rows = 1, .scale_type = QUANT_BF16, .scale = "_scale", .head = true, .apart = true,
     .same = BITS},
    {"fp8 tiles, four axes", "{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8_PB_WO\"}", FP8, 8,
     .tile_rows = 128, .tile_columns = 128, .scale_type = QUANT_F32, .scale = "_scale",
     .spread = true, .apart = true, .same = BITS},
    {"fp8 rows, one axis", CT("\"num_bits\":8,\"type\":\"float\""), FP8, 8, .tile_rows = 1,
     .scale_type = QUANT_F16, .scale = "_scale", .flat = true, .same = BITS},
    {"fp8 tiles", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}", FP8, 8,
     .tile_rows = 128, .tile_columns = 128, .scale_type = QUANT_F32, .scale = "_scale_inv",
     .same = BITS},
    {"fp8 tiles 48 x 32",
     "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[48,32]}", FP8, 8,
     .tile_rows = 48, .tile_columns = 32, .scale_type = QUANT_BF16, .scale = "_scale_inv",
     .same = BITS},
    {"fp8 odd tiles", "{\"quant_method\":\"fp8\",\"weight_block_size\":[20,24]}", FP8, 8,
     .tile_rows = 20, .tile_columns = 24, .scale_type = QUANT_F32, .scale = "_scale_inv",
     .same = BITS},
    {"fp8 exponents", "{\"quant_method\":\"fp8\",\"weight_block_size\":[32,32]}", FP8, 8,
     .tile_rows = 32, .tile_columns = 32, .scale_type = QUANT_E8M0, .scale = "_scale",
     .apart = true, .same = BITS},
    {"int4", CT_INT("4", "\"strategy\":\"group\",\"group_size\":32,\"symmetric\":true"), INT, 4,
     .packed = true, .tile_rows = 1, .tile_columns = 32, .scale_type = QUANT_BF16,
     .scale = "_scale", .head = true, .apart = true, .same = REFERENCE_BITS},
    {"int4, groups of 64", CT_INT("4", "\"strategy\":\"group\",\"group_size\":64"), INT, 4,
     .packed = true, .tile_rows = 1, .tile_columns = 64, .scale_type = QUANT_F16, .scale = "_scale",
     .apart = true, .same = REFERENCE_BITS},
    {"int4, zero points",
     CT_INT("4", "\"strategy\":\"group\",\"group_size\":32,\"symmetric\":false"), INT, 4,
     .packed = true, .zero = true, .tile_rows = 1, .tile_columns = 32, .scale_type = QUANT_BF16,
     .scale = "_scale", .apart = true, .same = REFERENCE_BITS},
    {"int4, scales F32", CT_INT("4", "\"strategy\":\"group\",\"group_size\":32"), INT, 4,
     .packed = true, .tile_rows = 1, .tile_columns = 32, .scale_type = QUANT_F32, .scale = "_scale",
     .apart = true, .same = BITS},
    {"int8 rows", CT_INT("8", "\"strategy\":\"channel\""), INT, 8, .tile_rows = 1,
     .scale_type = QUANT_BF16, .scale = "_scale", .apart = true, .same = REFERENCE_BITS},
    {"int8 packed", CT_INT("8", "\"strategy\":\"group\",\"group_size\":32"), INT, 8, .packed = true,
     .tile_rows = 1, .tile_columns = 32, .scale_type = QUANT_BF16, .scale = "_scale", .apart = true,
     .same = REFERENCE_BITS},
    {"int8 packed, zero points", CT_INT("8", "\"group_size\":32,\"symmetric\":false"), INT, 8,
     .packed = true, .zero = true, .tile_rows = 1, .tile_columns = 32, .scale_type = QUANT_BF16,
     .scale = "_scale", .apart = true, .same = BITS},
    {"nvfp4 modelopt",
     "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"kv_cache_quant_algo\":\"FP8\"}",
     FP4, 4, .tile_rows = 1, .tile_columns = 16, .scale_type = QUANT_FP8_E4M3, .scale = "_scale",
     .nv = true, .apart = true, .same = CLOSE},
    {"nvfp4 packed",
     CT("\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16"), FP4,
     4, .packed = true, .tile_rows = 1, .tile_columns = 16, .scale_type = QUANT_FP8_E4M3,
     .scale = "_scale", .nv = true, .inverse = true, .apart = true, .same = CLOSE},
    {"mxfp4 packed",
     CT("\"num_bits\":4,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32"), FP4, 4,
     .packed = true, .tile_rows = 1, .tile_columns = 32, .scale_type = QUANT_U8, .scale = "_scale",
     .apart = true, .same = REFERENCE_BITS},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* ---- numbers, from their definitions ---- */

static float e4m3(int code)
{
    static float v[256];
    for (int i = v[1] > 0 ? 256 : 0; i < 256; i++) {
        const int e = i >> 3 & 15, m = i & 7;
        const double x = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);
        v[i] = (float)(i & 128 ? -x : x);
    }
    return v[code];
}

static float e2m1(int code)
{
    static const float v[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -v[code & 7] : v[code & 7];
}

static int nearest(float x, float (*value)(int), int n, int sign)
{
    int lo = 0, hi = n - 1; /* values ascend */
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        *(value(mid) <= fabsf(x) ? &lo : &hi) = mid;
    }
    const int best = fabsf(x) - value(lo) < value(hi) - fabsf(x) ? lo : hi;
    return x < 0 ? best | sign : best;
}

/* s with eight bits, which every float type of a scale holds; for F32 all of them; a power of
 * two. */
static float as_scale(float s, uint32_t type)
{
    uint32_t bits;
    memcpy(&bits, &s, sizeof bits);
    bits &= type == QUANT_F32                        ? UINT32_MAX
            : type == QUANT_U8 || type == QUANT_E8M0 ? 0x7f800000
                                                     : 0xffff0000;
    memcpy(&s, &bits, sizeof bits);
    return s;
}

/* ---- one matrix ---- */

struct coded {
    uint8_t *codes;  /* one a byte */
    float *scale, *decoded;
    int *zero;
    int64_t s_rows, s_columns;
    float second;
};

static void code_tile(const struct kind *k, const float *w, int64_t rows, int64_t columns,
                      int64_t tr, int64_t tc, int64_t at, struct coded *c)
{
    const int64_t width = columns, r0 = at / c->s_columns * tr, c0 = at % c->s_columns * tc;
    const int64_t r1 = r0 + tr < rows ? r0 + tr : rows, c1 = c0 + tc < columns ? c0 + tc : columns;
    const float most = k->codes == FP8   ? 448
                       : k->codes == FP4 ? 6
                                         : (float)((1 << (k->bits - 1)) - 1);
    float max = 1e-6f;
    for (int64_t r = r0; r < r1; r++)
        for (int64_t i = c0; i < c1; i++)
            max = fmaxf(max, fabsf(w[r * width + i]));
    c->zero[at] = k->zero ? (int)(at % 5) - 2 : 0;
    c->scale[at] = k->nv ? e4m3(nearest(max / 6 / c->second, e4m3, 127, 0))
                         : as_scale(max / most, k->scale_type);
    const float unit = k->nv ? c->scale[at] * c->second : c->scale[at];
    for (int64_t r = r0; r < r1; r++)
        for (int64_t i = c0; i < c1; i++) {
            const float x = unit > 0 ? w[r * width + i] / unit : 0;
            const int half = 1 << (k->bits - 1);
            const int q =
                (int)fmaxf((float)-half, fminf((float)half - 1, rintf(x) + (float)c->zero[at]));
            const int code = k->codes == FP8   ? nearest(x, e4m3, 127, 128)
                             : k->codes == FP4 ? nearest(x, e2m1, 8, 8)
                                               : q + (k->packed ? half : 0);
            const float v = k->codes == FP8   ? e4m3(code)
                            : k->codes == FP4 ? e2m1(code)
                                              : (float)(q - c->zero[at]);
            c->codes[r * width + i] = (uint8_t)code;
            c->decoded[r * width + i] = v * c->scale[at] * c->second;
        }
}

static struct coded code_matrix(const struct kind *k, const float *w, int64_t rows, int64_t columns)
{
    const int64_t tr = k->tile_rows ? k->tile_rows : rows,
                  tc = k->tile_columns && k->tile_columns < columns ? k->tile_columns : columns;
    struct coded c = {
        .s_rows = (rows + tr - 1) / tr, .s_columns = (columns + tc - 1) / tc, .second = 1};
    const size_t n = (size_t)(rows * columns), s = (size_t)(c.s_rows * c.s_columns);
    c.codes = mem_calloc(n, 1);
    c.decoded = mem_calloc(n, sizeof(float));
    c.scale = mem_calloc(s, sizeof(float));
    c.zero = mem_calloc(s, sizeof(int));
    float max = 1e-6f;
    for (size_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(w[i]));
    if (k->nv) /* inverse: a number whose inverse is no float */
        c.second = k->inverse ? 1.0f / (448 * 6 / max) : max / (448 * 6);
    for (size_t i = 0; i < s; i++)
        code_tile(k, w, rows, columns, tr, tc, (int64_t)i, &c);
    return c;
}

static void coded_free(struct coded *c)
{
    mem_free(c->codes);
    mem_free(c->decoded);
    mem_free(c->scale);
    mem_free(c->zero);
}

/* ---- a checkpoint of them ---- */

struct maker {
    const struct kind *k;
    struct io_writer *coded, *decoded;
    /* drop: part of a name that is left out; only: of the matrices that are coded */
    const char *drop, *only;
};

static void put(const struct maker *m, struct io_writer *to, const char *module, const char *end,
                uint32_t type, uint32_t n_dims, const int64_t *shape, const void *data,
                size_t n_bytes)
{
    struct err e;
    char name[256];
    uint64_t ne[4];
    for (uint32_t i = 0; i < n_dims; i++)
        ne[i] = (uint64_t)shape[i];
    snprintf(name, sizeof name, "%s%s", module, end);
    if (to != m->decoded && m->drop && strstr(name, m->drop))
        return;
    GOLDEN_OK(io_writer_add(to, name, type, n_dims, ne, data, n_bytes, &e));
}

/* b bits a code into words or bytes. */
static size_t pack(const uint8_t *codes, int64_t rows, int64_t columns, int bits, int word,
                   uint8_t *out)
{
    const int per = word / bits;
    const int64_t line = (columns + per - 1) / per * (word / 8);
    memset(out, 0, (size_t)(rows * line));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < columns; i++) {
            const int64_t bit = i % per * bits;
            out[r * line + i / per * (word / 8) + bit / 8] |=
                (uint8_t)(codes[r * columns + i] << bit % 8);
        }
    return (size_t)(rows * line);
}

static void put_scales(const struct maker *m, const char *module, const char *end,
                       const struct coded *c, int64_t n, int64_t stack)
{
    const struct kind *k = m->k;
    uint8_t *raw = mem_calloc((size_t)n, sizeof(float));
    const size_t one = quant_info(k->scale_type)->n_bytes;
    for (int64_t i = 0; i < n; i++) {
        int e;
        if (k->scale_type == QUANT_FP8_E4M3)
            raw[i] = (uint8_t)nearest(c->scale[i], e4m3, 127, 0);
        else if (k->scale_type == QUANT_U8 || k->scale_type == QUANT_E8M0)
            raw[i] = (uint8_t)(127 + (frexp((double)c->scale[i], &e), e - 1));
        else
            assert_true(quant_encode(k->scale_type, &c->scale[i], raw + (size_t)i * one, 1));
    }
    const int64_t shape[3] = {stack, n / stack / c->s_columns, c->s_columns};
    const uint32_t skip = k->flat && c->s_columns == 1 ? 1 : 0;
    const int64_t rows = shape[1], four[4] = {rows, 1, c->s_columns, 1};
    if (k->spread)
        put(m, m->coded, module, end, k->scale_type, 4, four, raw, (size_t)n * one);
    else if (skip && stack == 1)
        put(m, m->coded, module, end, k->scale_type, rows == 1 ? 0 : 1, &rows, raw,
            (size_t)n * one);
    else
        put(m, m->coded, module, end, k->scale_type, stack > 1 ? 3 - skip : 2,
            stack > 1 ? shape : shape + 1, raw, (size_t)n * one);
    mem_free(raw);
}

static void put_zeros(const struct maker *m, const char *module, const struct coded *c)
{
    const int per = 32 / m->k->bits, half = 1 << (m->k->bits - 1);
    const int64_t shape[2] = {(c->s_rows + per - 1) / per, c->s_columns};
    uint32_t *w = mem_calloc((size_t)(shape[0] * shape[1]), sizeof *w);
    for (int64_t r = 0; r < c->s_rows; r++)
        for (int64_t g = 0; g < c->s_columns; g++)
            w[r / per * c->s_columns + g] |= (uint32_t)(c->zero[r * c->s_columns + g] + half)
                                             << r % per * m->k->bits;
    put(m, m->coded, module, ".weight_zero_point", QUANT_I32, 2, shape, w,
        (size_t)(shape[0] * shape[1]) * sizeof *w);
    mem_free(w);
}

/* A matrix of its own. */
static void put_matrix(const struct maker *m, const char *module, const float *w, int64_t rows,
                       int64_t columns, float *decoded)
{
    const struct kind *k = m->k;
    struct coded c = code_matrix(k, w, rows, columns);
    uint8_t *raw = mem_calloc((size_t)(rows * (columns + 8)), 4);
    char end[32];
    const int word = k->codes == INT && k->packed ? 32 : 8;
    const int per = word / k->bits;
    const int64_t shape[2] = {rows, (columns + per - 1) / per}, size[2] = {rows, columns};
    const size_t n = pack(c.codes, rows, columns, k->bits, word, raw);
    const uint32_t type = k->codes == FP8   ? QUANT_FP8_E4M3
                          : word == 32      ? QUANT_I32
                          : k->codes == INT ? QUANT_I8
                                            : QUANT_U8;
    const float second = k->inverse ? 448 * 6 / (c.second * 448 * 6) : c.second;
    put(m, m->coded, module, k->packed ? ".weight_packed" : ".weight", type, 2, shape, raw, n);
    snprintf(end, sizeof end, ".weight%s", k->scale);
    put_scales(m, module, end, &c, c.s_rows * c.s_columns, 1);
    if (k->zero)
        put_zeros(m, module, &c);
    if (word == 32)
        put(m, m->coded, module, ".weight_shape", QUANT_I64, 1, (const int64_t[]){2}, size,
            sizeof size);
    if (k->nv)
        put(m, m->coded, module, k->inverse ? ".weight_global_scale" : ".weight_scale_2", QUANT_F32,
            k->inverse ? 1 : 0, (const int64_t[]){1}, &second, sizeof second);
    if (!k->packed)
        put(m, m->coded, module, ".input_scale", QUANT_F32, 0, NULL, &second, sizeof second);
    memcpy(decoded, c.decoded, (size_t)(rows * columns) * sizeof *decoded);
    mem_free(raw);
    coded_free(&c);
}

/* Experts as the checkpoint has them: one tensor, without an end. */
static void put_stack(const struct maker *m, const char *name, const float *w, int64_t stack,
                      int64_t rows, int64_t columns, float *decoded)
{
    const size_t one = (size_t)(rows * columns);
    struct coded all = {0}, c = {0};
    uint8_t *codes = mem_calloc(one * (size_t)stack, 1);
    for (int64_t i = 0; i < stack; i++) {
        c = code_matrix(m->k, w + (size_t)i * one, rows, columns);
        const size_t n = (size_t)(c.s_rows * c.s_columns);
        all.scale = i ? all.scale : mem_calloc(n * (size_t)stack, sizeof(float));
        all.s_columns = c.s_columns;
        all.s_rows = c.s_rows;
        memcpy(all.scale + (size_t)i * n, c.scale, n * sizeof(float));
        memcpy(codes + (size_t)i * one, c.codes, one);
        memcpy(decoded + (size_t)i * one, c.decoded, one * sizeof(float));
        coded_free(&c);
    }
    put(m, m->coded, name, "", QUANT_FP8_E4M3, 3, (const int64_t[]){stack, rows, columns}, codes,
        one * (size_t)stack);
    put_scales(m, name, m->k->scale, &all, all.s_rows * all.s_columns * stack, stack);
    mem_free(all.scale);
    mem_free(codes);
}

/* Each expert's tensors; gate and up are the halves of the rows of one matrix. */
static void put_apart(const struct maker *m, const char *name, const float *w, int64_t stack,
                      int64_t rows, int64_t columns, float *decoded)
{
    char base[200], module[256];
    const char *tail = strrchr(name, '.') + 1;
    const bool pair = strcmp(tail, "gate_up_proj") == 0;
    snprintf(base, sizeof base, "%.*s", (int)(tail - name), name);
    for (int64_t i = 0; i < stack; i++)
        for (int64_t h = 0; h < (pair ? 2 : 1); h++) {
            const int64_t n = pair ? rows / 2 : rows, at = (i * rows + h * n) * columns;
            snprintf(module, sizeof module, "%s%lld.%s", base, (long long)i,
                     !pair ? tail
                     : h   ? "up_proj"
                           : "gate_proj");
            put_matrix(m, module, w + at, n, columns, decoded + at);
        }
}

static bool ends_in(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static float *read_floats(const struct io_file *f, const struct io_tensor *t)
{
    struct err e;
    const size_t n = (size_t)(t->n_bytes / quant_info(t->type)->n_bytes);
    void *raw = mem_alloc((size_t)t->n_bytes);
    float *w = mem_calloc(n, sizeof *w);
    GOLDEN_OK(io_read(f, t, 0, raw, t->n_bytes, &e));
    quant_decode(t->type, raw, w, n);
    mem_free(raw);
    return w;
}

/* A matrix of DeepSeek V4: e4m3 with exponents for 128 x 128, or pairs of e2m1 with exponents for
 * 32. */
static float *read_published(const struct io_file *f, const struct io_tensor *t,
                             const struct io_tensor *s, int64_t *columns)
{
    const uint8_t *codes = io_mapped(f, t), *scale = io_mapped(f, s);
    const bool fp4 = t->type == QUANT_I8;
    const int64_t rows = (int64_t)t->ne[1], n = (int64_t)t->ne[0] * (fp4 ? 2 : 1);
    float *w = mem_calloc((size_t)(rows * n), sizeof *w);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = (fp4 ? r : r / 128) * (int64_t)s->ne[0] + i / (fp4 ? 32 : 128);
            w[r * n + i] = ldexpf(fp4 ? e2m1(codes[(r * n + i) / 2] >> i % 2 * 4 & 15)
                                      : e4m3(codes[r * n + i]),
                                  scale[at] - 127);
        }
    *columns = n;
    return w;
}

static void put_tensor(const struct maker *m, const struct io_file *f, const struct io_tensor *t)
{
    char module[200], scale[220];
    const bool weight = ends_in(t->name, ".weight"), stack = t->n_dims == 3;
    snprintf(module, sizeof module, "%.*s", (int)(strlen(t->name) - (weight ? 7 : 0)), t->name);
    snprintf(scale, sizeof scale, "%s.scale", module);
    const struct io_tensor *s = weight ? io_tensor_find(f, scale) : NULL;
    int64_t columns = (int64_t)t->ne[0];
    const int64_t rows = (int64_t)t->ne[1], n = (int64_t)t->ne[2];
    const bool head = m->k->head && (ends_in(module, "embed_tokens") || !strcmp(module, "embed") ||
                                     !strcmp(module, "head"));
    const bool coded = (s || stack || head || (ends_in(module, "_proj") && t->n_dims == 2)) &&
                       (!m->only || strstr(t->name, m->only));
    if (ends_in(t->name, ".scale") && (t->type == QUANT_E8M0))
        return;
    int64_t shape[3];
    for (uint32_t i = 0; i < t->n_dims; i++)
        shape[i] = (int64_t)t->ne[t->n_dims - 1 - i];
    if (!coded && !s) {
        put(m, m->coded, t->name, "", t->type, t->n_dims, shape, io_mapped(f, t), t->n_bytes);
        put(m, m->decoded, t->name, "", t->type, t->n_dims, shape, io_mapped(f, t), t->n_bytes);
        return;
    }
    float *w = s ? read_published(f, t, s, &columns) : read_floats(f, t);
    float *d = mem_calloc((size_t)(n * rows * columns), sizeof *d);
    shape[t->n_dims - 1] = columns;
    if (!coded) {
        memcpy(d, w, (size_t)(n * rows * columns) * sizeof *d);
        put(m, m->coded, t->name, "", QUANT_F32, t->n_dims, shape, d,
            (size_t)(n * rows * columns) * sizeof *d);
    } else {
        if (!stack)
            put_matrix(m, module, w, rows, columns, d);
        else
            (m->k->apart ? put_apart : put_stack)(m, t->name, w, n, rows, columns, d);
    }
    put(m, m->decoded, t->name, "", QUANT_F32, t->n_dims, shape, d,
        (size_t)(n * rows * columns) * sizeof *d);
    mem_free(w);
    mem_free(d);
}

/* ---- folders ---- */

static char root[] = "/tmp/ingle-stored-XXXXXX";

static const char *in_root(const char *name, char out[300])
{
    snprintf(out, 300, "%s/%s", root, name);
    return out;
}

static int make_root(void **state)
{
    char path[300];
    (void)state;
    return !mkdtemp(root) || mkdir(in_root("coded", path), 0700) ||
           mkdir(in_root("decoded", path), 0700);
}

static int remove_root(void **state)
{
    static const char *const files[] = {"coded/config.json",          "coded/model.safetensors",
                                        "coded/hf_quant_config.json", "coded/quantize_config.json",
                                        "decoded/config.json",        "decoded/model.safetensors"};
    char path[300];
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        (void)unlink(in_root(files[i], path));
    (void)rmdir(in_root("coded", path));
    (void)rmdir(in_root("decoded", path));
    return rmdir(root);
}

static void write_text(const char *name, const char *text)
{
    char path[300];
    FILE *f = fopen(in_root(name, path), "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static struct json_object *json_of(const char *text)
{
    struct err e;
    struct json_object *o;
    GOLDEN_OK(json_parse(text, strlen(text), NULL, &o, &e));
    return o;
}

/* config.json of both; key: where the text stands, under text_config if `inner`. */
static void write_configs(const struct io_file *f, const char *key, const char *quantisation,
                          bool inner)
{
    struct err e;
    char *text;
    size_t n;
    GOLDEN_OK(io_side_file(f, "config.json", 1 << 20, &text, &n, &e));
    struct json_object *o = json_of(text), *to = o;
    json_object_object_del(o, "quantization_config");
    write_text("decoded/config.json", json_object_to_json_string(o));
    if (inner)
        assert_true(json_object_object_get_ex(o, "text_config", &to));
    if (quantisation)
        json_object_object_add(to, key, json_of(quantisation));
    write_text("coded/config.json", json_object_to_json_string(o));
    json_object_put(o);
    mem_free(text);
}

struct extra { const char *name; uint32_t type; };

static void make(const char *source, const struct kind *k, const char *only, const char *drop,
                 const struct extra *extra)
{
    struct err e;
    char path[300];
    struct io_file *f;
    struct maker m = {.k = k, .drop = drop, .only = only};
    GOLDEN_OK(io_open(&f, source, NULL, &e));
    GOLDEN_OK(io_writer_create(&m.coded, in_root("coded/model.safetensors", path), OUTPUT_ANY, &e));
    GOLDEN_OK(
        io_writer_create(&m.decoded, in_root("decoded/model.safetensors", path), OUTPUT_ANY, &e));
    for (size_t i = 0; i < io_n_tensors(f); i++)
        put_tensor(&m, f, io_tensor_at(f, i));
    m.drop = NULL;
    if (extra && extra->name)
        put(&m, m.coded, extra->name, "", extra->type, 1, (const int64_t[]){4},
            (const float[]){1, 1, 1, 1}, 4 * quant_info(extra->type)->n_bytes);
    GOLDEN_OK(io_writer_close(m.coded, &e));
    GOLDEN_OK(io_writer_close(m.decoded, &e));
    write_configs(f, "quantization_config", k->config, false);
    io_close(f);
}

/* ---- the same values, the same logits ---- */

static float *logits_of(const char *folder, const char *source, enum device_numerics numerics,
                        int64_t *n_out)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    char path[300], ref[300];
    int64_t n;
    golden_open(&g, in_root(folder, path), &(struct golden_options){.numerics = numerics});
    GOLDEN_OK(session_create(&s, g.runner, &e));
    snprintf(ref, sizeof ref, "%s/golden.safetensors", source);
    int32_t *tokens = golden_ints(ref, "input_ids", &n);
    n = n < 48 ? n : 48;
    float *logits = golden_logits(&g, s, tokens, n, 0, NULL);
    *n_out = n * g.info.n_vocab;
    mem_free(tokens);
    session_free(s);
    golden_close(&g);
    return logits;
}

static void compare(const char *source, const struct kind *k)
{
    const enum device_numerics numerics = k->same == BITS ? DEVICE_EXACT : DEVICE_REFERENCE;
    int64_t n, n_want;
    make(source, k, NULL, NULL, NULL);
    float *got = logits_of("coded", source, numerics, &n),
          *want = logits_of("decoded", source, numerics, &n_want);
    assert_int_equal(n, n_want);
    const struct golden_error error = golden_compare(got, want, n);
    print_message("%-44s %-26s rel rms %.2e\n", source, k->name, error.rel_rms);
    /* A factor of the whole matrix is applied to sums instead of weights: roundings of f32. */
    if (k->same == CLOSE)
        assert_true(error.rel_rms < 4e-6);
    else
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
    mem_free(got);
    mem_free(want);
}

static void gemma_logits(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i += UNIT_ASAN ? 2 : 1)
        compare(moe, &kinds[i]);
}

static void deepseek_logits(void **state)
{
    (void)state;
    for (size_t i = UNIT_ASAN; i < N_KINDS; i += UNIT_ASAN ? 2 : 1)
        compare(v4, &kinds[i]);
}

/* ---- what is refused ---- */

static ingle_status load(const char *folder, struct err *out)
{
    struct err e = {0};
    char path[300], *text;
    size_t n;
    struct json_object *config, *type;
    struct device *d;
    struct io_file *f;
    struct model *m;
    struct family_info info;
    void *self = NULL;
    GOLDEN_OK(device_create(&d, &(struct device_options){.n_threads = 1, .cpu = UINT32_MAX}, &e));
    GOLDEN_OK(io_open(&f, in_root(folder, path), NULL, &e));
    GOLDEN_OK(io_side_file(f, "config.json", 1 << 20, &text, &n, &e));
    config = json_of(text);
    mem_free(text);
    assert_true(json_object_object_get_ex(config, "model_type", &type));
    const struct family *family = family_by_hf_type(json_object_get_string(type));
    struct io_meta *meta = io_meta_create();
    GOLDEN_OK(family->config(config, meta, NULL, &e));
    GOLDEN_OK(model_create(&m, f, d, family->rename, NULL, &e));
    ingle_status s = model_read_scheme(m, config, &e);
    if (!s)
        s = family->bind(&self, m, meta, &info, &e);
    if (!s)
        s = model_check_unused(m, &e);
    if (!s)
        s = model_load(m, &e);
    if (self)
        family->free(self);
    model_free(m);
    io_meta_free(meta);
    json_object_put(config);
    io_close(f);
    device_free(d);
    *out = e;
    return s;
}

static const struct kind groups_of_16 = {"int4, groups of 16",
                                         CT_INT("4", "\"group_size\":16"),
                                         INT,
                                         4,
                                         .packed = true,
                                         .tile_rows = 1,
                                         .tile_columns = 16,
                                         .scale_type = QUANT_BF16,
                                         .scale = "_scale",
                                         .apart = true};

#define LAYER "model.language_model.layers.0."
#define METHOD(name)                                                                               \
    {                                                                                              \
        NULL, NULL, {0}, "{\"quant_method\":\"" name "\",\"bits\":4}", NULL, false, NULL,          \
        {                                                                                          \
            name, "quant_method", "GGUF", "compressed-tensors"                                     \
        }                                                                                          \
    }

/* A checkpoint of Gemma with one thing wrong.  No words: it is read. */
static const struct refusal {
    const char *kind;   /* NULL: the first of the list */
    const char *drop;
    struct extra extra;
    const char *config, *key; /* in place of the kind's own; key NULL: quantization_config */
    bool inner;
    const char *side;   /* where config stands instead */
    const char *words[4];
} refusals[] = {
    {"fp8 rows",
     "0.mlp.down_proj.weight_scale",
     {0},
     NULL,
     NULL,
     false,
     NULL,
     {LAYER "mlp.down_proj.weight'", "F8_E4M3", "no scales"}},
    {"fp8 tiles",
     "0.mlp.down_proj.weight_scale",
     {0},
     NULL,
     NULL,
     false,
     NULL,
     {LAYER "mlp.down_proj.weight'", "no scales"}},
    {"fp8 one",
     "0.experts.down_proj_scale",
     {0},
     NULL,
     NULL,
     false,
     NULL,
     {LAYER "experts.down_proj'", "no scales", "down_proj_scale'"}},
    {"int8 rows",
     "q_proj.weight_scale",
     {0},
     NULL,
     NULL,
     false,
     NULL,
     {"q_proj.weight'", "no scales"}},
    {"int4",
     "q_proj.weight_scale",
     {0},
     NULL,
     NULL,
     false,
     NULL,
     {"q_proj.weight_packed'", "no scales"}},
    {"nvfp4 modelopt",
     "q_proj.weight_scale_2",
     {0},
     NULL,
     NULL,
     false,
     NULL,
     {"q_proj.weight'", "weight_scale_2"}},
    {"nvfp4 packed",
     "experts.7.up_proj.weight_scale",
     {0},
     NULL,
     NULL,
     false,
     NULL,
     {"experts.7.up_proj.weight_packed'", "no scales"}},
    {"fp8 rows",
     "q_proj.weight_scale",
     {LAYER "self_attn.q_proj.weight_scale", QUANT_F32},
     NULL,
     NULL,
     false,
     NULL,
     {"q_proj.weight_scale'", "of 4 x", "q_proj.weight'", "64 x 64"}},
    {"int4",
     "q_proj.weight_scale",
     {LAYER "self_attn.q_proj.weight_scale", QUANT_E8M0},
     NULL,
     NULL,
     false,
     NULL,
     {"q_proj.weight_scale'", "F8_E8M0", "expected F32, F16 or BF16"}},
    {NULL,
     NULL,
     {LAYER "self_attn.q_proj.bias", QUANT_F32},
     NULL,
     NULL,
     false,
     NULL,
     {"q_proj.bias'", "belongs to"}},
    {NULL,
     NULL,
     {LAYER "self_attn.q_proj.qzeros", QUANT_I32},
     NULL,
     NULL,
     false,
     NULL,
     {"q_proj.qzeros'", "belongs to"}},
    {"int4",
     NULL,
     {LAYER "self_attn.q_proj.g_idx", QUANT_I32},
     NULL,
     NULL,
     false,
     NULL,
     {"q_proj.g_idx'", "belongs to"}},
    {"int4",
     NULL,
     {LAYER "self_attn.q_proj.weight_g_idx", QUANT_I32},
     NULL,
     NULL,
     false,
     NULL,
     {"q_proj.weight_g_idx'", "belongs to"}},
    {"int4",
     NULL,
     {LAYER "experts.3.up_proj.bias", QUANT_F32},
     NULL,
     NULL,
     false,
     NULL,
     {"experts.3.up_proj.bias'", "belongs to"}},
    {NULL,
     NULL,
     {"model.language_model.embed_tokens.weight_scale", QUANT_F32},
     NULL,
     NULL,
     false,
     NULL,
     {"embed_tokens.weight_scale'", "belongs to"}},
    {"fp8 rows",
     NULL,
     {LAYER "self_attn.q_proj.weight_scale_inv", QUANT_F32},
     NULL,
     NULL,
     false,
     NULL,
     {"q_proj.weight_scale'", "weight_scale_inv'", "mean the same"}},
    {"fp8 rows",
     NULL,
     {LAYER "self_attn.k_scale", QUANT_F32},
     NULL,
     NULL,
     false,
     NULL,
     {"self_attn.k_scale'", "no matrix"}},
    {"fp8 one", NULL, {LAYER "self_attn.k_scale", QUANT_F32}, NULL, NULL, false, NULL, {NULL}},
    {"fp8 rows",
     NULL,
     {LAYER "self_attn.x_proj.weight_scale", QUANT_F32},
     NULL,
     NULL,
     false,
     NULL,
     {"x_proj.weight_scale'", "no matrix"}},
    {"int4, groups of 16",
     NULL,
     {0},
     NULL,
     NULL,
     false,
     NULL,
     {"group_size of 16", "multiple of 32", "weight_scale'"}},
    {NULL,
     NULL,
     {LAYER "self_attn.q_proj.qweight", QUANT_I32},
     "{}",
     NULL,
     false,
     NULL,
     {"q_proj.qweight'", "GPTQ or AWQ", "GGUF"}},
    METHOD("gptq"),
    METHOD("awq"),
    METHOD("bitsandbytes"),
    METHOD("hqq"),
    METHOD("aqlm"),
    METHOD("quark"),
    METHOD("torchao"),
    {NULL,
     NULL,
     {0},
     "{\"group_size\":64,\"bits\":4}",
     "quantization",
     false,
     NULL,
     {"'quantization'", "mlx", "GGUF"}},
    {NULL, NULL, {0}, "{\"quant_method\":\"gptq\",\"bits\":4}", NULL, true, NULL, {"gptq", "GGUF"}},
    {NULL,
     NULL,
     {0},
     "{\"bits\":4,\"group_size\":128,\"desc_act\":false}",
     NULL,
     false,
     "quantize_config.json",
     {"quantize_config.json", "gptq", "GGUF"}},
    {NULL,
     NULL,
     {0},
     "{\"quantization\":{\"quant_algo\":\"W4A8_AWQ\"}}",
     NULL,
     false,
     "hf_quant_config.json",
     {"hf_quant_config.json", "W4A8_AWQ", "GGUF"}},
    {NULL,
     NULL,
     {0},
     "{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{\"quant_algo\":\"FP8\"}}",
     NULL,
     false,
     "hf_quant_config.json",
     {NULL}},
    {NULL,
     NULL,
     {0},
     "{\"quant_method\":\"compressed-tensors\",\"format\":\"marlin-24\"}",
     NULL,
     false,
     NULL,
     {"format", "marlin-24", "GGUF"}},
    {NULL,
     NULL,
     {0},
     "{\"quant_method\":\"compressed-tensors\",\"sparsity_config\":{\"format\":\"sparse-24-"
     "bitmask\"}}",
     NULL,
     false,
     NULL,
     {"sparsity_config.format", "sparse-24-bitmask"}},
    {NULL,
     NULL,
     {0},
     "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}",
     NULL,
     false,
     NULL,
     {"quantization_config.fmt", "e5m2"}},
    {"int4",
     NULL,
     {0},
     CT_INT("3", "\"group_size\":32"),
     NULL,
     false,
     NULL,
     {"config_groups.group_0.weights.num_bits", "'3'"}},
    {"int4",
     NULL,
     {0},
     CT_INT("8", "\"group_size\":32"),
     NULL,
     false,
     NULL,
     {"weight_packed'", "4 bits", "num_bits 8"}},
    {"int4",
     NULL,
     {0},
     CT_INT("4", "\"group_size\":64"),
     NULL,
     false,
     NULL,
     {"weight_packed'", "32 columns", "group_size 64"}},
    {"int4",
     NULL,
     {0},
     CT_INT("4", "\"group_size\":32,\"symmetric\":false"),
     NULL,
     false,
     NULL,
     {"weight_packed'", "symmetric false"}},
    {"int4",
     NULL,
     {0},
     "{\"quant_method\":\"compressed-tensors\",\"ignore\":[\"re:.*layers.0.mlp.*\"]}",
     NULL,
     false,
     NULL,
     {"layers.0.mlp.", "weight_packed'", "re:.*layers.0.mlp.*"}},
    {"fp8 tiles",
     NULL,
     {0},
     "{\"quant_method\":\"fp8\",\"modules_to_not_convert\":[\"self_attn.q_proj\"]}",
     NULL,
     false,
     NULL,
     {"q_proj.weight'", "'self_attn.q_proj' as not quantised"}},
};

static const struct kind *kind_of(const char *name)
{
    for (size_t i = 0; name && i < N_KINDS; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return name && !strcmp(name, groups_of_16.name) ? &groups_of_16 : &kinds[0];
}

static void expect(const struct refusal *r, ingle_status s, const struct err *e)
{
    const char *kind = r->kind ? r->kind : kinds[0].name;
    if (!r->words[0] && s)
        fail_msg("%s: %s", kind, e->msg);
    for (int i = 0; i < 4 && r->words[i]; i++)
        if (!s || !strstr(e->msg, r->words[i]))
            fail_msg("%s, drop %s, extra %s: no '%s' in '%s'", kind, r->drop ? r->drop : "-",
                     r->extra.name ? r->extra.name : "-", r->words[i],
                     s ? e->msg : "it was loaded");
}

static void damaged_and_unknown_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i += UNIT_ASAN ? 2 : 1) {
        const struct refusal *r = &refusals[i];
        struct io_file *f;
        struct err e;
        char path[300];
        make(moe, kind_of(r->kind), "layers.0.", r->drop, &r->extra);
        GOLDEN_OK(io_open(&f, moe, NULL, &e));
        if (r->side)
            write_text(r->side[0] == 'h' ? "coded/hf_quant_config.json"
                                         : "coded/quantize_config.json",
                       r->config);
        if (r->config)
            write_configs(f, r->key ? r->key : "quantization_config", r->side ? NULL : r->config,
                          r->inner);
        io_close(f);
        const ingle_status s = load("coded", &e);
        expect(r, s, &e);
        (void)unlink(in_root("coded/hf_quant_config.json", path));
        (void)unlink(in_root("coded/quantize_config.json", path));
    }
}

static void deepseek_refuses_what_it_does_not_apply(void **state)
{
    static const struct refusal bad[] = {
        {"fp8 rows",
         "0.attn.wq_a.weight_scale",
         {0},
         NULL,
         NULL,
         false,
         NULL,
         {"layers.0.attn.wq_a.weight'", "no scales"}},
        {"fp8 rows",
         NULL,
         {"layers.0.attn.wq_a.bias", QUANT_F32},
         NULL,
         NULL,
         false,
         NULL,
         {"layers.0.attn.wq_a.bias'", "belongs to"}},
        {"fp8 rows",
         NULL,
         {"layers.0.attn.wq_a.scale", QUANT_F32},
         NULL,
         NULL,
         false,
         NULL,
         {"wq_a.weight_scale'", "wq_a.scale'", "mean the same"}},
        {"nvfp4 modelopt",
         "ffn.experts.2.w1.weight_scale_2",
         {0},
         NULL,
         NULL,
         false,
         NULL,
         {"ffn.experts.2.w1.weight'", "weight_scale_2"}},
        {"int4",
         NULL,
         {"layers.1.ffn.experts.2.w3.weight_g_idx", QUANT_I32},
         NULL,
         NULL,
         false,
         NULL,
         {"experts.2.w3.weight_g_idx'", "belongs to"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e;
        make(v4, kind_of(bad[i].kind), "layers.", bad[i].drop, &bad[i].extra);
        const ingle_status s = load("coded", &e);
        expect(&bad[i], s, &e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma_logits),
        cmocka_unit_test(deepseek_logits),
        cmocka_unit_test(damaged_and_unknown_are_named),
        cmocka_unit_test(deepseek_refuses_what_it_does_not_apply),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
