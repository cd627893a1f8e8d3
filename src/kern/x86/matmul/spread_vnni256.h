/*
 * spread_vnni256 - the kernels of spread256.h: how each code is spread.  Included for AVX-VNNI (VEX
 * form) and for AVX-512 (EVEX form), as vnni256.h is: NAME(x) is the kernel's name.
 * SPREAD_TERNARY: only the codes of 1 and 2 bits, for which AVX-512 has no others; SPREAD_OTHERS:
 * all but these.
 */
#include "kern/x86/matmul/points_read256.h"
#include "kern/x86/matmul/spread256.h"
#include "kern/x86/matmul/stored.h"

#define SPREAD(name, tile, block, type, n_packed) \
    SPREAD_KERNEL(NAME(name), spread_##name, tile, block, type, n_packed)
#define EACH_QUAD(F, ...)                                                                          \
    F(0, __VA_ARGS__)                                                                              \
    F(1, __VA_ARGS__) F(2, __VA_ARGS__) F(3, __VA_ARGS__) F(4, __VA_ARGS__) F(5, __VA_ARGS__)      \
        F(6, __VA_ARGS__) F(7, __VA_ARGS__)

static ATTR_INLINE void put_line(uint8_t *to, __m256i v)
{
    _mm256_store_si256((__m256i *)(void *)to, v);
}
static ATTR_INLINE void put_floats(float *to, __m256 a, __m256 b)
{
    _mm256_store_ps(to, a);
    _mm256_store_ps(to + 8, b);
}

/* ---- groups of 32 ---- */

#ifndef SPREAD_OTHERS
SPREAD_TILES32(tile1, SPREAD_WHOLE, SPREAD_START1, false)
#endif
#ifndef SPREAD_TERNARY
SPREAD_TILES32(tile0_min, SPREAD_WHOLE, SPREAD_START0, true)
SPREAD_TILES32(tile8, SPREAD_WHOLE, SPREAD_START8, false)
SPREAD_TILES32(tile128, SPREAD_WHOLE, SPREAD_START128, false)
SPREAD_TILES32(tile_halves, SPREAD_HALVES, SPREAD_START_HALF, false)
#endif

/* The codes; plus 128 - 16; as they stand; looked up in `table`. */
#define QUAD_5_112(g, j) _mm256_add_epi8(quad_5(g, j), bytes(112))
#define QUAD_STORED(g, j) half_line((g) + 64 * (j))
#define QUAD_LISTED(g, j) _mm256_shuffle_epi8(table, quad_4(g, j))
#define PUT32(j, quad)                           \
    put_line(to->w[j], quad(group, j));          \
    put_line(to->w[j] + 32, quad(group + 32, j));
#define D_HALVES put_floats(to->d, halves(scale), halves(scale + 16));
#define DM_HALVES D_HALVES put_floats(to->m, halves(scale + 32), halves(scale + 48));
#define D_E8M0                      \
    __m256 d0, d1;                  \
    halves_e8m0(scale, &d0, &d1);   \
    put_floats(to->d, d0, d1);
#define D_UE4M3                                                            \
    put_floats(to->d, half_ue4m3(scale), half_ue4m3(scale + 8));           \
    put_floats(to->m, half_ue4m3(scale + 16), half_ue4m3(scale + 24));
#define NL4_SETUP const __m256i table = lut(quant_nl4, 128);
#define E2M1_SETUP const __m256i table = lut(quant_e2m1_doubled, 128);
#define SPREAD32(name, bits, n_group, scales, shift, tile, SETUP, quad, D)                         \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *all)                          \
    {                                                                                              \
        struct spread32 *to = all;                                                                 \
        SETUP                                                                                      \
        for (int64_t g = 0; g < n;                                                                 \
             chunk += KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n_group, shift))                \
            for (int i = 0; i < (n_group) && g < n; i++, g++, to++) {                              \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * i;                         \
                const uint8_t *scale = chunk + KERN_SCALES_AT(bits, n_group) +                     \
                                       (i >> (shift)) * KERN_SCALE_BYTES(KERN_SCALES_##scales);    \
                EACH_QUAD(PUT32, quad)                                                             \
                D                                                                                  \
            }                                                                                      \
    }                                                                                              \
    SPREAD(name, tile, 32, struct spread32,                                                        \
           SPREAD_K / 32 / (n_group)*KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n_group, shift))
#ifndef SPREAD_OTHERS
SPREAD32(q1_0, 1, 8, D, 2, tile1, , quad_1, D_HALVES)
SPREAD32(q2_0, 2, 4, D, 1, tile1, , quad_2, D_HALVES)
#endif
#ifndef SPREAD_TERNARY
SPREAD32(q4_0, 4, 2, D, 0, tile8, , quad_4, D_HALVES)
SPREAD32(q4_1, 4, 1, DM, 0, tile0_min, , quad_4, DM_HALVES)
SPREAD32(q5_0, 5, 2, D, 0, tile128, , QUAD_5_112, D_HALVES)
SPREAD32(q5_1, 5, 1, DM, 0, tile0_min, , quad_5, DM_HALVES)
SPREAD32(q8_0, 8, 2, D, 0, tile128, , QUAD_STORED, D_HALVES)
SPREAD32(iq4_nl, 4, 2, D, 0, tile128, NL4_SETUP, QUAD_LISTED, D_HALVES)
SPREAD32(mxfp4, 4, 4, E, 0, tile128, E2M1_SETUP, QUAD_LISTED, D_E8M0)
SPREAD32(nvfp4, 4, 2, E2, 0, tile_halves, E2M1_SETUP, QUAD_LISTED, D_UE4M3)
#endif

/* ---- super-blocks of 256 ---- */

enum { Q3_K_BIAS = 124 };
#ifndef SPREAD_TERNARY
SPREAD_TILES256(tile_q2_k, ALL, 0, SPREAD_START_AT, SPREAD_WHOLE_BLOCK, , , 16)
SPREAD_TILES256(tile_q3_k, ALL, Q3_K_BIAS, SPREAD_START_AT, SPREAD_WHOLE_BLOCK, , , 0)
SPREAD_TILES256(tile_q4_k, CONST, 0, SPREAD_START_CONST, SPREAD_SCALED_BLOCK, SPREAD_GROUPS_32B,
                SPREAD_BITS_8, 32)
SPREAD_TILES256(tile_q5_k, CONST, 0, SPREAD_START_CONST, SPREAD_SCALED_BLOCK, SPREAD_GROUPS_32P, 0,
                32)
SPREAD_TILES256(tile_q6_k, 16, 32, SPREAD_START_AT, SPREAD_SCALED_BLOCK, SPREAD_GROUPS_16P, 0, 0)
SPREAD_TILES256(tile_iq4_xs, 32I, 128, SPREAD_START_AT, SPREAD_SCALED_BLOCK, SPREAD_GROUPS_32I, 0,
                0)
#endif

static ATTR_INLINE __m256i unsigned_lanes(const uint8_t *at)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
}
static ATTR_INLINE __m256i signed_lanes(const uint8_t *at)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
}
static ATTR_INLINE void put_pairs(int16_t *to, __m256i a, __m256i b)
{
    put_line((uint8_t *)to, a);
    put_line((uint8_t *)to + 32, b);
}

#define PUT256(j, value)                                                    \
    put_line(to->w[8 * h + (j)], value(group, j, 0));                       \
    put_line(to->w[8 * h + (j)] + 32, value(group + 32, j, 1));
/* SCALES does those of group h of a super-block, which stand at s, d n_sub bytes behind. */
#define SPREAD256(name, bits, scales, n_sub, has_min, SETUP, SCALES, value)                        \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *all)                          \
    {                                                                                              \
        struct spread256 *to = all;                                                                \
        SETUP                                                                                      \
        for (int64_t b = 0; b < n;                                                                 \
             b++, to++, chunk += KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, 8, 0)) {             \
            const uint8_t *s = chunk + KERN_SCALES_AT(bits, 8);                                    \
            for (int h = 0; h < 8; h++) {                                                          \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * h;                         \
                SCALES                                                                             \
                EACH_QUAD(PUT256, value)                                                           \
            }                                                                                      \
            put_floats(to->d, halves(s + (n_sub)), halves(s + (n_sub) + 16));                      \
            if (has_min)                                                                           \
                put_floats(to->dmin, halves(s + (n_sub) + 32), halves(s + (n_sub) + 48));          \
        }                                                                                          \
    }                                                                                              \
    SPREAD(name, tile_##name, 256, struct spread256,                                               \
           2 * KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, 8, 0))

#define VALUE_PLAIN_2(g, j, i) quad_2(g, j)
#ifndef SPREAD_OTHERS
SPREAD_TILES256(tile_tq2_0, ALL, 1, SPREAD_START_AT, SPREAD_WHOLE_BLOCK, , , 0)
SPREAD256(tq2_0, 2, NONE, 0, false, , , VALUE_PLAIN_2)
#endif

#ifndef SPREAD_TERNARY
#define VALUE_4(g, j, i) quad_4(g, j)
#define VALUE_5(g, j, i) quad_5(g, j)
#define VALUE_6(g, j, i) quad_6(g, j)
#define VALUE_LISTED(g, j, i) QUAD_LISTED(g, j)

#define SUB_FLOATS(i, wide, at) \
    put_floats(spread_sub(to, i), _mm256_cvtepi32_ps(wide(at)), _mm256_cvtepi32_ps(wide((at) + 8)));
#define MIN_PAIRS \
    if (h % 2)    \
        put_pairs(to->min[h / 2], paired(s + 112 + 16 * h, 0), paired(s + 112 + 16 * h, 1));
/* SPREAD_GIVEN */
static ATTR_INLINE void put_more(struct spread256 *to, int h, float base)
{
    const __m256 magic = _mm256_set1_ps(MAGIC), first = _mm256_set1_ps(base);
    for (int i = 0; i < 2; i++)
        _mm256_store_ps(spread_sub(to, 8 + h) + 8 * i,
                        _mm256_fnmadd_ps(magic, _mm256_load_ps(spread_sub(to, h) + 8 * i), first));
}
#define SUB32_MIN(base) SUB_FLOATS(h, unsigned_lanes, s + 16 * h) put_more(to, h, base); MIN_PAIRS
SPREAD256(q4_k, 4, SUB8_MIN, 256, true, , SUB32_MIN(MAGIC), VALUE_4)
SPREAD256(q5_k, 5, SUB8_MIN, 256, true, , SUB32_MIN(0), VALUE_5)
SPREAD256(q6_k, 6, SUB16, 256, false, ,
          SUB_FLOATS(2 * h, signed_lanes, s + 32 * h)
              SUB_FLOATS(2 * h + 1, signed_lanes, s + 32 * h + 16),
          VALUE_6)
#define SUB_LANES \
    put_line((uint8_t *)to->sub[h], signed_lanes(s + 16 * h)); \
    put_line((uint8_t *)to->sub[h] + 32, signed_lanes(s + 16 * h + 8));
SPREAD256(iq4_xs, 4, SUB8, 128, false, NL4_SETUP, SUB_LANES, VALUE_LISTED)

/* Codes times sub-scales are bytes: at most 3 * 15. */
#define LOW_NIBBLES(at) _mm_and_si128(row16(at), _mm_set1_epi8(15))
#define NIBBLES                                                                                    \
    const __m128i low_[2] = {LOW_NIBBLES(s + 32 * h), LOW_NIBBLES(s + 32 * h + 16)};               \
    const __m256i sub_[2][2] = {{doubled_u8(low_[0], 0), doubled_u8(low_[0], 1)},                  \
                                {doubled_u8(low_[1], 0), doubled_u8(low_[1], 1)}};                 \
    put_pairs(to->min[h], _mm256_srli_epi16(paired(s + 32 * h, 0), 4),                             \
              _mm256_srli_epi16(paired(s + 32 * h, 1), 4));
#define VALUE_2(g, j, i) _mm256_mullo_epi16(quad_2(g, j), sub_[(j) / 4][i])
SPREAD256(q2_k, 2, SUB16_NIB, 256, true, , NIBBLES, VALUE_2)

/* So are they, -124 to 128, plus a bias.  Codes are 4 more than what they stand for: bytes times
 * sizes of sub-scales are at most 7 * 32; then they get the sub-scale's sign. */
struct times {
    __m256i size, sign, less;
};
static ATTR_INLINE struct times times_q3_k(const uint8_t *at, int high)
{
    const __m256i sub = doubled_s8(row16(at), high), sign = _mm256_srai_epi16(sub, 15);
    const __m256i less = _mm256_sub_epi16(_mm256_sub_epi16(_mm256_set1_epi16(Q3_K_BIAS), sign),
                                          _mm256_slli_epi16(sub, 2));
    return (struct times){_mm256_abs_epi16(sub), sign,
                          _mm256_or_si256(less, _mm256_slli_epi16(less, 8))};
}
static ATTR_INLINE __m256i timed(__m256i code, const struct times *t)
{
    return _mm256_add_epi8(_mm256_xor_si256(_mm256_mullo_epi16(code, t->size), t->sign), t->less);
}
#define TIMES_Q3_K                                                                                 \
    const struct times sub_[2][2] = {                                                              \
        {times_q3_k(s + 32 * h, 0), times_q3_k(s + 32 * h, 1)},                                    \
        {times_q3_k(s + 32 * h + 16, 0), times_q3_k(s + 32 * h + 16, 1)}};
#define VALUE_3(g, j, i) timed(quad_3(g, j), &sub_[(j) / 4][i])
SPREAD256(q3_k, 3, SUB16, 256, false, , TIMES_Q3_K, VALUE_3)

/* ---- points ---- */

SPREAD_TILES256(tile_points_32, 32, STORED_BIAS, SPREAD_START_AT, SPREAD_SCALED_BLOCK,
                SPREAD_GROUPS_32P, 0, 0)
SPREAD_TILES256(tile_iq3_s, 32, STORED_BIAS, SPREAD_START_AT, SPREAD_SCALED_BLOCK,
                SPREAD_GROUPS_32B, SPREAD_BITS_8, 0)
SPREAD_TILES256(tile_points_16, 16, STORED_BIAS, SPREAD_START_AT, SPREAD_SCALED_BLOCK,
                SPREAD_GROUPS_16B, SPREAD_BITS_16, 0)

static ATTR_INLINE void put_lanes(struct spread256 *to, int i, int half, __m256i v)
{
    _mm256_store_ps(spread_sub(to, i) + 8 * half, _mm256_cvtepi32_ps(v));
}
#define SUBS_32(NAME_) put_lanes(to, h, i, SUB_##NAME_(0));
#define SUBS_16(NAME_)                         \
    put_lanes(to, 2 * h, i, SUB_##NAME_(0));   \
    put_lanes(to, 2 * h + 1, i, SUB_##NAME_(1));
#define MORE_32(base) put_more(to, h, base);
#define MORE_16(base)
#define POINTS(name, NAME_, tile, factor, per, base)                                               \
    static void spread_##name(const uint8_t *chunk, int64_t n_blocks, void *all)                   \
    {                                                                                              \
        const struct constants k = constants_of();                                                 \
        __m256i bias = _mm256_set1_epi8(STORED_BIAS);                                              \
        struct spread256 *to = all;                                                                \
        __asm__("" : "+x"(bias));                                                                  \
        for (int64_t b = 0; b < n_blocks; b++, to++) {                                             \
            for (int h = 0; h < 8; h++) {                                                          \
                const int n = (int)(8 * b) + h;                                                    \
                struct group g = GROUP_AT(NAME_, chunk, n);                                        \
                uint8_t *lines = to->w[8 * h];                                                     \
                __asm__(""                                                                         \
                        : "+r"(g.line),                                                            \
                          "+r"(lines)); /* or pointers to each half spill those of numbers */      \
                for (int i = 0; i < 2; i++) {                                                      \
                    NUMBERS_##NAME_ const __m256i signs = SIGNS_##NAME_;                           \
                    POINTS_PUT(NAME_)                                                              \
                    SUBS_##per(NAME_)                                                              \
                }                                                                                  \
                MORE_##per(base)                                                                   \
            }                                                                                      \
            const uint8_t *const d = chunk + KERN_CHUNK_##NAME_ - 64 + 32 * b;                     \
            put_floats(to->d, _mm256_mul_ps(halves(d), _mm256_set1_ps(factor)),                    \
                       _mm256_mul_ps(halves(d + 16), _mm256_set1_ps(factor)));                     \
        }                                                                                          \
    }                                                                                              \
    SPREAD(name, tile, 256, struct spread256, KERN_CHUNK_##NAME_)
POINTS(iq2_xxs, IQ2_XXS, tile_points_32, 0.125f, 32, 0)
POINTS(iq2_xs, IQ2_XS, tile_points_16, 0.125f, 16, 0)
POINTS(iq2_s, IQ2_S, tile_points_16, 0.125f, 16, 0)
POINTS(iq3_xxs, IQ3_XXS, tile_points_32, 0.25f, 32, 0)
POINTS(iq3_s, IQ3_S, tile_iq3_s, 1.0f, 32, MAGIC)
#endif
