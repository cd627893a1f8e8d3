/*
 * spread_vnni256 - the kernels of spread256.h: how each code is spread.  Included for AVX-VNNI (VEX
 * form) and for AVX-512 (EVEX form), as vnni256.h is: NAME(x) is the kernel's name.
 * SPREAD_TERNARY: only the codes of 1 and 2 bits, for which AVX-512 has no others; SPREAD_OTHERS:
 * all but these.
 */
#include "kern/kernels.h"
#include "kern/x86/matmul/points_read256.h"
#include "kern/x86/matmul/spread256.h"
#include "kern/x86/matmul/stored.h"

/* Half a line at a time: stores ascend. */
static ATTR_INLINE void put_half(uint8_t *to, __m256i v)
{
    _mm256_store_si256((__m256i *)(void *)to, v);
}

/* ---- groups of 32 ---- */

/* A line of a group for a tile with that bias. */
static ATTR_INLINE __m256i spread_byte(const struct kern_code *code, __m256i table,
                                       const uint8_t *group, int j, int bias)
{
    const __m256i v = quad(code, table, group, j);
    const int is = code_bias(code, 128);
    return is == bias ? v : _mm256_add_epi8(v, bytes(bias - is));
}
static ATTR_INLINE void spread_all32(const struct kern_code *code, int bias, const uint8_t *chunk,
                                     int64_t n, struct spread32 *to)
{
    const __m256i table = quad_table(code, 128);
    for (int64_t g = 0; g < n; chunk += code->chunk_bytes)
        for (int i = 0; i < code->n_group && g < n; i++, g++, to++) {
            const uint8_t *group = code_group(code, chunk, i);
            const uint8_t *scale = code_scale(code, chunk, i);
            __m256 d[2];
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++) {
                put_half(to->w[j], spread_byte(code, table, group, j, bias));
                put_half(to->w[j] + 32, spread_byte(code, table, group + 32, j, bias));
            }
            d32(code, scale, d);
            put_scales(to->d, d[0], d[1]);
            if (code->scales == KERN_SCALES_E2) {
                d32(code, scale + 16, d);
                put_scales(to->m, d[0], d[1]);
            }
            if (code_has_min(code))
                put_scales(to->m, halves(scale + 32), halves(scale + 48));
        }
}
#define SPREAD32(name, id, tile, bias)                                                             \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *to)                           \
    {                                                                                              \
        spread_all32(&tile_codes[KERN_CODE_##id], bias, chunk, n, to);                             \
    }                                                                                              \
    SPREAD_KERNEL(NAME(name), spread_##name, tile, 32, struct spread32, SPREAD_BYTES_##id)
#ifndef SPREAD_OTHERS
SPREAD_TILES(tile1, tile32, SPREAD_WHOLE, 1)
SPREAD32(q1_0, Q1_0, tile1, 1)
SPREAD32(q2_0, Q2_0, tile1, 1)
#endif
#ifndef SPREAD_TERNARY
SPREAD_TILES(tile0_min, tile32, SPREAD_MIN, 0)
SPREAD_TILES(tile8, tile32, SPREAD_WHOLE, 8)
SPREAD_TILES(tile128, tile32, SPREAD_WHOLE, 128)
SPREAD_TILES(tile_halves, tile32, SPREAD_HALVES, 128)
SPREAD32(q4_0, Q4_0, tile8, 8)
SPREAD32(q4_1, Q4_1, tile0_min, 0)
SPREAD32(q5_0, Q5_0, tile128, 128)
SPREAD32(q5_1, Q5_1, tile0_min, 0)
SPREAD32(q8_0, Q8_0, tile128, 128)
SPREAD32(iq4_nl, IQ4_NL, tile128, 128)
SPREAD32(mxfp4, MXFP4, tile128, 128)
SPREAD32(nvfp4, NVFP4, tile_halves, 128)
#endif

/* ---- super-blocks of 256 ---- */

enum { Q3_K_BIAS = 124 };

static ATTR_INLINE __m256i unsigned_lanes(const uint8_t *at)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
}
static ATTR_INLINE __m256i signed_lanes(const uint8_t *at)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
}

/* Codes times sub-scales are bytes: of 2 bits at most 3 * 15.  Those of 3 bits are 4 more than what
 * they stand for: bytes times sizes of sub-scales are at most 7 * 32; then they get the sub-scale's
 * sign, and -124 to 128 become bytes by a bias. */
struct times {
    __m256i size, sign, less;
};
static ATTR_INLINE struct times times_of(const struct kern_code *code, const uint8_t *at, int high)
{
    if (code->bits == 2)
        return (struct times){
            .size = doubled_u8(_mm_and_si128(row16(at), _mm_set1_epi8(15)), high)};
    const __m256i sub = doubled_s8(row16(at), high), sign = _mm256_srai_epi16(sub, 15);
    const __m256i less = _mm256_sub_epi16(_mm256_sub_epi16(_mm256_set1_epi16(Q3_K_BIAS), sign),
                                          _mm256_slli_epi16(sub, 2));
    return (struct times){_mm256_abs_epi16(sub), sign,
                          _mm256_or_si256(less, _mm256_slli_epi16(less, 8))};
}
static ATTR_INLINE __m256i timed(const struct kern_code *code, __m256i v, const struct times *t)
{
    const __m256i product = _mm256_mullo_epi16(v, t->size);
    if (code->bits == 2)
        return product;
    return _mm256_add_epi8(_mm256_xor_si256(product, t->sign), t->less);
}
/* Codes of group h, as they are or, if they have sub-scales for 16 and few bits, times those. */
static ATTR_INLINE void put_codes(const struct kern_code *code, __m256i table, const uint8_t *group,
                                  const uint8_t *s, int h, struct spread256 *to)
{
    const bool is_timed = code->bits < 4 && code_subs(code);
    struct times t[2][2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        if (is_timed)
            t[i / 2][i % 2] = times_of(code, s + 32 * h + 16 * (i / 2), i % 2);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const int j = i / 2;
        const __m256i v = quad(code, table, group + 32 * (i % 2), j);
        put_half(to->w[8 * h + j] + 32 * (i % 2), is_timed ? timed(code, v, &t[j / 4][i % 2]) : v);
    }
}
/* What spread_more() takes from the panel. */
static ATTR_INLINE void put_more(struct spread256 *to, int h, float base)
{
    const __m256 magic = _mm256_set1_ps(MAGIC), first = _mm256_set1_ps(base);
    for (int i = 0; i < 2; i++)
        _mm256_store_ps(spread_sub(to, 8 + h) + 8 * i,
                        _mm256_fnmadd_ps(magic, _mm256_load_ps(spread_sub(to, h) + 8 * i), first));
}
static ATTR_INLINE void put_floats(struct spread256 *to, int i, __m256i v0, __m256i v1)
{
    put_scales(spread_sub(to, i), _mm256_cvtepi32_ps(v0), _mm256_cvtepi32_ps(v1));
}
/* Sub-scales and minimums of group h, as its code's tile wants them. */
static ATTR_INLINE void put_subs(const struct kern_code *code, const uint8_t *s, int h,
                                 struct spread256 *to)
{
    switch (code->scales) {
    case KERN_SCALES_SUB8_MIN:
        put_floats(to, h, unsigned_lanes(s + 16 * h), unsigned_lanes(s + 16 * h + 8));
        put_more(to, h, code->bits == 4 ? MAGIC : 0);
        if (h % 2)
            put_two(to->min[h / 2], paired(s + 112 + 16 * h, 0), paired(s + 112 + 16 * h, 1));
        break;
    case KERN_SCALES_SUB16_NIB:
        put_two(to->min[h], _mm256_srli_epi16(paired(s + 32 * h, 0), 4),
                _mm256_srli_epi16(paired(s + 32 * h, 1), 4));
        break;
    case KERN_SCALES_SUB8:
        put_half((uint8_t *)to->sub[h], signed_lanes(s + 16 * h));
        put_half((uint8_t *)to->sub[h] + 32, signed_lanes(s + 16 * h + 8));
        break;
    case KERN_SCALES_SUB16:
        if (code->bits == 3)
            break;
        put_floats(to, 2 * h, signed_lanes(s + 32 * h), signed_lanes(s + 32 * h + 8));
        put_floats(to, 2 * h + 1, signed_lanes(s + 32 * h + 16), signed_lanes(s + 32 * h + 24));
        break;
    default: break;
    }
}
static ATTR_INLINE void spread_all256(const struct kern_code *code, const uint8_t *chunk, int64_t n,
                                      struct spread256 *to)
{
    const __m256i table = quad_table(code, 128);
    for (int64_t b = 0; b < n; b++, to++, chunk += code->chunk_bytes) {
        const uint8_t *s = chunk + KERN_SCALES_AT(code->bits, 8), *d = s + code_sub_bytes(code);
        for (int h = 0; h < 8; h++) {
            put_subs(code, s, h, to);
            put_codes(code, table, code_group(code, chunk, h), s, h, to);
        }
        put_scales(to->d, halves(d), halves(d + 16));
        if (code_has_min(code))
            put_scales(to->dmin, halves(d + 32), halves(d + 48));
    }
}
/* add, per, bias, min: of struct spread_block. */
#define SPREAD256(name, id, ...)                                                                   \
    SPREAD_TILES(tile_##name, tile256, ((struct spread_block){__VA_ARGS__}))                       \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *to)                           \
    {                                                                                              \
        spread_all256(&tile_codes[KERN_CODE_##id], chunk, n, to);                                  \
    }                                                                                              \
    SPREAD_KERNEL(NAME(name), spread_##name, tile_##name, 256, struct spread256, SPREAD_BYTES_##id)
#ifndef SPREAD_OTHERS
SPREAD256(tq2_0, TQ2_0, ADD_ALL, 256, 1, 0)
#endif
#ifndef SPREAD_TERNARY
SPREAD256(q2_k, Q2_K, ADD_ALL, 256, 0, 16)
SPREAD256(q3_k, Q3_K, ADD_ALL, 256, Q3_K_BIAS, 0)
SPREAD256(q4_k, Q4_K, ADD_BITS, 32, 0, 32)
SPREAD256(q5_k, Q5_K, ADD_PAIRS, 32, 0, 32)
SPREAD256(q6_k, Q6_K, ADD_PAIRS, 16, 32, 0)
SPREAD256(iq4_xs, IQ4_XS, ADD_INTEGERS, 32, 128, 0)

/* ---- points ---- */

SPREAD_TILES(tile_points_32, tile256, ((struct spread_block){ADD_PAIRS, 32, STORED_BIAS, 0}))
SPREAD_TILES(tile_iq3_s, tile256, ((struct spread_block){ADD_BITS, 32, STORED_BIAS, 0}))
SPREAD_TILES(tile_points_16, tile256, ((struct spread_block){ADD_BITS, 16, STORED_BIAS, 0}))

static ATTR_INLINE void put_lanes(struct spread256 *to, int i, int half, __m256i v)
{
    _mm256_store_ps(spread_sub(to, i) + 8 * half, _mm256_cvtepi32_ps(v));
}
static ATTR_INLINE void put_point_group(const struct code_points *code, struct group g, int h,
                                        __m256i bias, const struct constants *k,
                                        struct spread256 *to)
{
    uint8_t *lines = to->w[8 * h];
    /* or pointers to each half spill those of numbers */
    __asm__("" : "+r"(g.line), "+r"(lines));
    for (int i = 0; i < 2; i++) {
        put_points(code->id, g, i, lines, bias, k);
        if (point_halves(code->id)) {
            put_lanes(to, 2 * h, i, point_subs(code->id, g, i, 0, k));
            put_lanes(to, 2 * h + 1, i, point_subs(code->id, g, i, 1, k));
        } else {
            put_lanes(to, h, i, point_subs(code->id, g, i, 0, k));
        }
    }
}
/* base: of put_more(). */
static ATTR_INLINE void spread_points(const struct code_points *code, float base,
                                      const uint8_t *chunk, int64_t n_blocks, struct spread256 *to)
{
    const struct constants k = constants_of();
    __m256i bias = _mm256_set1_epi8(STORED_BIAS);
    __asm__("" : "+x"(bias));
    for (int64_t b = 0; b < n_blocks; b++, to++) {
        for (int h = 0; h < 8; h++) {
            put_point_group(code, group_at(code, chunk, (int)(8 * b) + h), h, bias, &k, to);
            if (!point_halves(code->id))
                put_more(to, h, base);
        }
        const uint8_t *const d = chunk + code->chunk_bytes - 64 + 32 * b;
        const __m256 factor = _mm256_set1_ps(code->factor);
        put_scales(to->d, _mm256_mul_ps(halves(d), factor), _mm256_mul_ps(halves(d + 16), factor));
    }
}
#define POINTS(name, id, tile, base)                                                               \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *to)                           \
    {                                                                                              \
        spread_points(&points_##id, base, chunk, n, to);                                           \
    }                                                                                              \
    SPREAD_KERNEL(NAME(name), spread_##name, tile, 256, struct spread256, KERN_CHUNK_##id)
POINTS(iq2_xxs, IQ2_XXS, tile_points_32, 0)
POINTS(iq2_xs, IQ2_XS, tile_points_16, 0)
POINTS(iq2_s, IQ2_S, tile_points_16, 0)
POINTS(iq3_xxs, IQ3_XXS, tile_points_32, 0)
POINTS(iq3_s, IQ3_S, tile_iq3_s, MAGIC)
#endif
