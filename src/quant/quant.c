/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/codec.h"

#include "base/bug.h"
#include "base/num.h"

/* Where a block keeps what can be NaN or infinite. */
enum scales {
    SCALES_NONE,
    SCALES_HALF,
    SCALES_F32,
    SCALES_F64,
    SCALES_BF16,
    SCALES_IQ1_M,
    SCALES_FP8_BLOCK,
    SCALES_FP8_FLOAT_BLOCK,
    SCALES_BYTE
};

struct type {
    uint32_t id;
    struct quant_info info;
    quant_decode_fn *decode;
    quant_encode_fn *encode;
    struct {
        enum scales kind;
        uint8_t n, at[2];    /* halves: their offsets */
        uint8_t mask, first; /* bytes: bad if (byte & mask) >= first */
    } scales;
};

#define NO_SCALES {SCALES_NONE, 0, {0, 0}, 0, 0}
#define HALF_AT(a) {SCALES_HALF, 1, {a, 0}, 0, 0}
#define HALVES_AT(a, b) {SCALES_HALF, 2, {a, b}, 0, 0}
#define SELF_F32 {SCALES_F32, 0, {0, 0}, 0, 0}
#define SELF_F64 {SCALES_F64, 0, {0, 0}, 0, 0}
#define SELF_BF16 {SCALES_BF16, 0, {0, 0}, 0, 0}
#define SELF_FP8 {SCALES_BYTE, 0, {0, 0}, 0x7F, 0x7F}
#define SELF_E8M0 {SCALES_BYTE, 0, {0, 0}, 0xFF, 0xFF}
#define MXFP4_EXPONENT {SCALES_BYTE, 0, {0, 0}, 0xFF, 253} /* 6 x 2^126 is no float */
#define FP8_BLOCK {SCALES_FP8_BLOCK, 0, {0, 0}, 0x7F, 0x7F}
#define FP8_FLOAT_BLOCK {SCALES_FP8_FLOAT_BLOCK, 0, {0, 0}, 0x7F, 0x7F}
#define IQ1_M_NIBBLES {SCALES_IQ1_M, 0, {0, 0}, 0, 0}

static const struct type types[] = {
#define QUANT_TYPE(id, name, fn, n, n_bytes, quantised, scales, encode)                            \
    {id, {name, n, n_bytes, quantised}, quant_decode_##fn, encode, scales},
#include "quant/types.inc"
#undef QUANT_TYPE
};

static const struct type *type_find(uint32_t id)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].id == id)
            return &types[i];
    return NULL;
}

const struct quant_info *quant_info(uint32_t type)
{
    const struct type *t = type_find(type);
    return t ? &t->info : NULL;
}

bool quant_bytes(uint32_t type, uint64_t n, uint64_t n_rows, uint64_t *out)
{
    const struct type *t = type_find(type);
    uint64_t row, all;
    if (!t || n % t->info.n || !num_mul_u64(n / t->info.n, t->info.n_bytes, &row) ||
        !num_mul_u64(row, n_rows, &all))
        return false;
    *out = all;
    return true;
}

void quant_decode(uint32_t type, const void *src, float *dst, size_t n)
{
    const struct type *t = type_find(type);
    BUG_IF(!t || n % t->info.n);
    t->decode(src, dst, n / t->info.n);
}

bool quant_encode(uint32_t type, const float *src, void *dst, size_t n)
{
    const struct type *t = type_find(type);
    if (!t || !t->encode)
        return false;
    BUG_IF(n % t->info.n);
    t->encode(src, dst, n / t->info.n);
    return true;
}

static bool bad_half(const unsigned char *at)
{
    return (at[1] & 0x7C) == 0x7C;
}

static bool bad_block(const struct type *t, const unsigned char *b)
{
    uint16_t sc[4];
    switch (t->scales.kind) {
    case SCALES_NONE:
        return false;
    case SCALES_HALF:
        return bad_half(b + t->scales.at[0]) || (t->scales.n > 1 && bad_half(b + t->scales.at[1]));
    case SCALES_F32:
        return (b[3] & 0x7F) == 0x7F && b[2] >> 7;
    case SCALES_F64:
        return (b[7] & 0x7F) == 0x7F && (b[6] & 0xF0) == 0xF0;
    case SCALES_BF16:
        return (b[1] & 0x7F) == 0x7F && b[0] >> 7;
    case SCALES_IQ1_M:
        memcpy(sc, b + offsetof(struct quant_iq1_m, sc), sizeof sc);
        return (quant_iq1_m_scale(sc) & 0x7C00) == 0x7C00;
    case SCALES_FP8_BLOCK:
        for (size_t i = 1; i < sizeof(struct quant_fp8_b32); i++)
            if ((b[i] & t->scales.mask) >= t->scales.first)
                return true;
        return b[0] == 0xFF;
    case SCALES_FP8_FLOAT_BLOCK:
        for (size_t i = 4; i < sizeof(struct quant_fp8_s32); i++)
            if ((b[i] & t->scales.mask) >= t->scales.first)
                return true;
        /* below 2^119, so that 448 times the scale is a float */
        return ((b[3] & 0x7F) << 1 | b[2] >> 7) > 127 + 118;
    case SCALES_BYTE:
        return (b[0] & t->scales.mask) >= t->scales.first;
    }
    return false;
}

/* Whether one of 64 numbers of 16 or 32 bits is none: all bits of the exponent are ones. */
static bool any_bad16(const unsigned char *at, uint16_t exponent)
{
    uint16_t v[64], bad = 0;
    memcpy(v, at, sizeof v);
    for (int i = 0; i < 64; i++)
        bad |= (v[i] & exponent) == exponent;
    return bad;
}

static bool any_bad32(const unsigned char *at)
{
    uint32_t v[64], bad = 0;
    memcpy(v, at, sizeof v);
    for (int i = 0; i < 64; i++)
        bad |= (v[i] & 0x7F800000) == 0x7F800000;
    return bad;
}

/* How many of the first plain numbers are fine, in steps of 64; 0 for other types. */
static size_t fine_numbers(const struct type *t, const unsigned char *at, size_t n)
{
    size_t i = 0;
    for (; i + 64 <= n; i += 64, at += 64 * (size_t)t->info.n_bytes) {
        const bool bad = t->scales.kind == SCALES_F32    ? any_bad32(at)
                         : t->scales.kind == SCALES_BF16 ? any_bad16(at, 0x7F80)
                         : t->scales.kind == SCALES_HALF ? any_bad16(at, 0x7C00)
                                                         : true;
        if (bad)
            break;
    }
    return i;
}

/* The same for blocks that have a byte, or two, in which the bits of mask must be below `first`:
 * without a branch for each. */
static ATTR_INLINE size_t fine_bytes(const unsigned char *at, size_t n, size_t size, size_t a,
                                     size_t b, unsigned mask, unsigned first)
{
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        unsigned most = 0;
        for (const unsigned char *end = at + 64 * size; at < end; at += size) {
            most = (at[a] & mask) > most ? at[a] & mask : most;
            if (b != a)
                most = (at[b] & mask) > most ? at[b] & mask : most;
        }
        if (most >= first)
            break;
    }
    return i;
}

static size_t fine_blocks(const struct type *t, const unsigned char *at, size_t n)
{
    /* the byte of a half that has the exponent */
    const size_t size = t->info.n_bytes, a = t->scales.at[0] + (size_t)1;
    if (t->scales.kind == SCALES_BYTE)
        return fine_bytes(at, n, size, 0, 0, t->scales.mask, t->scales.first);
    if (t->scales.kind != SCALES_HALF)
        return 0;
    return t->scales.n > 1 ? fine_bytes(at, n, size, a, t->scales.at[1] + (size_t)1, 0x7C, 0x7C)
                           : fine_bytes(at, n, size, a, a, 0x7C, 0x7C);
}

int64_t quant_find_bad(uint32_t type, const void *src, size_t n_blocks)
{
    const struct type *t = type_find(type);
    BUG_IF(!t);
    if (t->scales.kind == SCALES_NONE)
        return -1;
    const unsigned char *at = src;
    for (size_t i = t->info.n == 1 ? fine_numbers(t, at, n_blocks) : fine_blocks(t, at, n_blocks);
         i < n_blocks; i++)
        if (bad_block(t, at + i * t->info.n_bytes))
            return (int64_t)i;
    return -1;
}
