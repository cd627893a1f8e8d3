/* SPDX-License-Identifier: Apache-2.0 */
/* convert - codes and scales of a checkpoint into blocks of the type that the device loads.
 * Nothing is rounded but what a comment says. */
#include "base/bug.h"
#include "base/num.h"
#include "model/load.h"
#include "model/parts.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { GROUP = 32, WORD_BITS = 32 };

bool model_exponent(float v, uint8_t *out)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    const bool normal = !(bits & 0x807fffff) && bits >> 23;
    const bool least = bits == 0x00400000; /* 2^-127 */
    *out = normal ? (uint8_t)(bits >> 23) : least ? 0 : 255;
    return (normal && bits >> 23 != 255) || least || (bits & 0x7fffffff) > 0x7f800000;
}

ingle_status model_scales(const struct io_file *f, const struct io_tensor *t, uint64_t at, size_t n,
                          void *work, float *out, struct err *err)
{
    const uint32_t type = t->type == QUANT_U8 ? QUANT_E8M0 : t->type; /* how some write exponents */
    const size_t one = quant_info(t->type)->n_bytes;
    const ingle_status s = io_read(f, t, at * one, work, n * one, err);
    if (!s)
        quant_decode(type, work, out, n);
    return s;
}

static int64_t scale_row(const struct convert *c, int64_t r)
{
    const struct source *p = c->p;
    return p->scale_rows ? c->index * p->scale_rows + (c->row0 + r) / p->tile_rows
                         : (c->index * c->out + c->row0 + r) / p->tile_rows;
}

static int codes_per_word(const struct layout *l)
{
    return WORD_BITS / l->bits;
}

/* Bytes of zero points that n rows may need: whole words of packed ones. */
static size_t zero_bytes(const struct source *p, const struct layout *l, int64_t n_rows)
{
    if (!p->zero)
        return 0;
    const int64_t rows = l->packed ? n_rows / codes_per_word(l) + 2 : n_rows;
    return (size_t)(rows * p->scale_columns) * (l->packed ? sizeof(uint32_t) : 1);
}

static size_t aligned(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

size_t model_convert_bytes(const struct source *p, const struct layout *l, int64_t n_rows)
{
    if (l->from == AS_STORED)
        return 0;
    const size_t scales = (size_t)((n_rows / p->tile_rows + 2) * p->scale_columns) * sizeof(float);
    return 2 * aligned(scales) + aligned(zero_bytes(p, l, n_rows)) +
           aligned((size_t)l->in * sizeof(int16_t));
}

/* One row while it is converted. */
struct row {
    const struct convert *c;
    const uint8_t *codes;
    const float *scale;       /* [scale_columns] */
    const uint8_t *stored;    /* the same as they stand in the file */
    const uint8_t *zero;      /* of all rows of the chunk */
    int64_t at;               /* its number in the tensor */
    int64_t zero_row;         /* of `zero` */
    int16_t *q;               /* [in], work */
};

static float scale_of(const struct row *r, int64_t k)
{
    return r->scale[k / r->c->p->tile_columns];
}

static ingle_status bad_scale(const struct row *r, float v, const char *limits, struct err *err)
{
    return err_set(err, INGLE_UNSUP, "'%s': tensor '%s' has the scale %g for row %lld, expected %s",
                   io_path(r->c->file), r->c->p->scale->name, (double)v, (long long)r->at, limits);
}

static const char powers[] = "a power of two from 2^-126 to 2^127";

/* 32 codes of 4 bits, neighbours in a byte, low nibble first: element j beside j + 16. */
static void pair_nibbles(const uint8_t *codes, uint8_t *out)
{
    for (int j = 0; j < GROUP / 2; j++) {
        const int a = codes[j / 2] >> 4 * (j % 2) & 15, b = codes[8 + j / 2] >> 4 * (j % 2) & 15;
        out[j] = (uint8_t)(a | b << 4);
    }
}

static ingle_status to_mxfp4(const struct row *r, uint8_t *out, struct err *err)
{
    const uint8_t *codes = r->codes;
    for (int64_t k = 0; k < r->c->l->in;
         k += GROUP, codes += GROUP / 2, out += sizeof(struct quant_mxfp4)) {
        if (!model_exponent(scale_of(r, k), &out[0]))
            return bad_scale(r, scale_of(r, k), powers, err);
        pair_nibbles(codes, out + 1);
    }
    return INGLE_OK;
}

static ingle_status to_fp8(const struct row *r, uint8_t *out, struct err *err)
{
    for (int64_t k = 0; k < r->c->l->in; k += GROUP, out += sizeof(struct quant_fp8_b32)) {
        if (!model_exponent(scale_of(r, k), &out[0]))
            return bad_scale(r, scale_of(r, k), powers, err);
        memcpy(out + 1, r->codes + k, GROUP);
    }
    return INGLE_OK;
}

static void to_fp8_s(const struct row *r, uint8_t *out)
{
    for (int64_t k = 0; k < r->c->l->in; k += GROUP, out += sizeof(struct quant_fp8_s32)) {
        const float s = scale_of(r, k);
        memcpy(out, &s, sizeof s);
        memcpy(out + sizeof s, r->codes + k, GROUP);
    }
}

/* A block of four groups of 16; in a group element j is paired with j + 8. */
static ingle_status to_nvfp4(const struct row *r, uint8_t *out, struct err *err)
{
    const uint8_t *codes = r->codes, *scale = r->stored;
    for (int64_t k = 0; k < r->c->l->in; k += 64, scale += 4, out += sizeof(struct quant_nvfp4)) {
        for (int g = 0; g < 4; g++, codes += 8) {
            if (scale[g] >= 0x7F)
                return bad_scale(r, quant_fp8_e4m3_to_f32(scale[g]), "0 to 448", err);
            out[g] = scale[g];
            for (int j = 0; j < 8; j++) {
                const int a = codes[j / 2] >> 4 * (j % 2) & 15,
                          b = codes[4 + j / 2] >> 4 * (j % 2) & 15;
                out[4 + 8 * g + j] = (uint8_t)(a | b << 4);
            }
        }
    }
    return INGLE_OK;
}

/* Words are little-endian: their codes stand in the bytes in order. */
static int packed_code(const uint8_t *words, int64_t i, int bits)
{
    return bits == 8 ? words[i] : words[i / 2] >> 4 * (i % 2) & 15;
}

/* Zero point of a group: as codes are, without their bias. */
static int zero_of(const struct row *r, int64_t group)
{
    const struct layout *l = r->c->l;
    const int64_t n = r->c->p->scale_columns;
    if (!r->zero)
        return l->packed ? 1 << (l->bits - 1) : 0;
    if (!l->packed)
        return (int8_t)r->zero[r->zero_row * n + group];
    const int per = codes_per_word(l);
    uint32_t w;
    memcpy(&w, r->zero + (size_t)((r->zero_row / per * n + group) * 4), sizeof w);
    return (int)(w >> l->bits * (int)(r->zero_row % per) & ((1u << l->bits) - 1));
}

/* The whole numbers that scales multiply, into r->q. */
static void read_ints(const struct row *r)
{
    const struct layout *l = r->c->l;
    const int64_t tile = r->c->p->tile_columns;
    for (int64_t k = 0; k < l->in;) {
        const int zero = zero_of(r, k / tile);
        const int64_t end = num_min(l->in, (k / tile + 1) * tile);
        for (; k < end; k++)
            r->q[k] =
                (int16_t)((l->packed ? packed_code(r->codes, k, l->bits) : (int8_t)r->codes[k]) -
                          zero);
    }
}

/* A scale as a half.  What is below its exact range is rounded, by half of its least step at the
 * most. */
static ingle_status half_scale(struct convert *c, const struct row *r, float s, uint16_t *out,
                               struct err *err)
{
    const float v = ldexpf(s, c->l->shift);
    *out = quant_f32_to_f16(v);
    const float back = quant_f16_to_f32(*out);
    if ((*out & 0x7C00) == 0x7C00) {
        char limits[64];
        snprintf(limits, sizeof limits, "less than %g", 65520 * ldexp(1, -c->l->shift));
        return bad_scale(r, s, limits, err);
    }
    if (back < v || back > v)
        c->rounded = true;
    return INGLE_OK;
}

static void put_ints(uint32_t type, const int16_t *q, uint8_t *out)
{
    if (type == QUANT_Q8_0) {
        for (int j = 0; j < GROUP; j++)
            out[2 + j] = (uint8_t)(int8_t)q[j];
        return;
    }
    struct quant_q5_0 b = {0}; /* whole numbers with zero points: -15 to 15 */
    for (int j = 0; j < GROUP; j++) {
        const int n = q[j] + 16;
        b.n[j % 16] |= (uint8_t)((n & 15) << 4 * (j / 16));
        b.qh[j / 8] |= (uint8_t)((n >> 4) << j % 8);
    }
    memcpy(out + 2, (const uint8_t *)&b + 2, sizeof b - 2);
}

static ingle_status to_ints(struct convert *c, const struct row *r, uint8_t *out, struct err *err)
{
    const struct layout *l = c->l;
    const size_t size = quant_info(l->type)->n_bytes;
    const bool as_is = l->type == QUANT_Q4_0; /* its codes have the same bias */
    if (!as_is)
        read_ints(r);
    for (int64_t k = 0; k < l->in; k += GROUP, out += size) {
        uint16_t d;
        const ingle_status s = half_scale(c, r, scale_of(r, k), &d, err);
        if (s)
            return s;
        memcpy(out, &d, sizeof d);
        if (as_is)
            pair_nibbles(r->codes + k / 2, out + 2);
        else
            put_ints(l->type, r->q + k, out);
    }
    return INGLE_OK;
}

/* The product of code and scale as a decoder in floats would write it. */
static void to_floats(const struct row *r, uint8_t *out)
{
    const struct layout *l = r->c->l;
    if (l->codes == CODES_INT)
        read_ints(r);
    for (int64_t k = 0; k < l->in; k++) {
        const float code =
            l->codes == CODES_INT ? (float)r->q[k]
            : l->codes == CODES_FP8
                ? quant_fp8_e4m3_to_f32(r->codes[k])
                : (float)quant_e2m1_doubled[r->codes[k / 2] >> 4 * (k % 2) & 15] * 0.5f;
        const float v = code * scale_of(r, k);
        memcpy(out + 4 * k, &v, sizeof v);
    }
}

static ingle_status convert_row(struct convert *c, const struct row *r, uint8_t *out,
                                struct err *err)
{
    switch (c->l->from) {
    case FROM_FP4: return to_mxfp4(r, out, err);
    case FROM_FP8: return to_fp8(r, out, err);
    case FROM_FP8_S: to_fp8_s(r, out); return INGLE_OK;
    case FROM_NVFP4: return to_nvfp4(r, out, err);
    case FROM_INT: return to_ints(c, r, out, err);
    case TO_FLOATS: to_floats(r, out); return INGLE_OK;
    case AS_STORED: break;
    }
    BUG("rows that are loaded as stored are not converted");
}

/* Zero points of the chunk's rows; *first is the first row that `to` has. */
static ingle_status read_zeros(const struct convert *c, int64_t row, uint8_t *to, int64_t *first,
                               struct err *err)
{
    const struct source *p = c->p;
    const int64_t per = c->l->packed ? codes_per_word(c->l) : 1, one = c->l->packed ? 4 : 1;
    const int64_t a = row / per, b = (row + c->n - 1) / per + 1, line = p->scale_columns * one;
    *first = a * per;
    return io_read(c->file, p->zero, (uint64_t)(a * line), to, (size_t)((b - a) * line), err);
}

ingle_status model_convert(struct convert *c, const uint8_t *codes, void *work, uint8_t *out,
                           struct err *err)
{
    const struct source *p = c->p;
    const int64_t s0 = scale_row(c, 0), s1 = scale_row(c, c->n - 1) + 1, width = p->scale_columns;
    const size_t n_scales = (size_t)((s1 - s0) * width), one = quant_info(p->scale->type)->n_bytes;
    const size_t room = aligned((size_t)((c->n / p->tile_rows + 2) * width) * sizeof(float));
    uint8_t *const stored = (uint8_t *)work + room, *zero = stored + room;
    float *scale = work;
    const int64_t row = c->index * c->out + c->row0;
    int64_t zero_first = 0;
    ingle_status s =
        model_scales(c->file, p->scale, (uint64_t)(s0 * width), n_scales, stored, scale, err);
    if (!s && p->zero)
        s = read_zeros(c, row, zero, &zero_first, err);
    int16_t *q = (int16_t *)(void *)(zero + aligned(zero_bytes(p, c->l, c->n)));
    for (int64_t i = 0; !s && i < c->n; i++) {
        const size_t at = (size_t)((scale_row(c, i) - s0) * width);
        const struct row r = {c,
                              codes + i * c->l->row_bytes,
                              scale + at,
                              stored + at * one,
                              p->zero ? zero : NULL,
                              row + i,
                              row + i - zero_first,
                              q};
        s = convert_row(c, &r, out + (uint64_t)i * c->row_bytes, err);
    }
    return s;
}
