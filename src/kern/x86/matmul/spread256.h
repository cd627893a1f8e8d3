/*
 * spread256 - the tiles of spread.h on 256-bit vectors with VPDPBUSD: the two panels one after the
 * other, each of two vectors of 8 rows, times three to six rows of activations.  Six make twelve
 * dots that do not wait for each other, which with a quad and the activations fill the registers;
 * all other sums are in memory.
 *
 * Dots run on two ports, on which conversions and multiplications run, too, but not additions
 * alone.  Dots therefore begin with the bits of the float MAGIC: from within 2^22 of zero they are
 * MAGIC + dot as floats, and what is done with them is exact as long as it is a whole number below
 * 2^24.  What the bytes' bias adds is in these beginnings, too.
 *
 * w of spread32 is what a tile's START wants.  In spread256, w is the codes and sub the sub-scales
 * as floats, those of 32 with SPREAD_GIVEN behind them; less is not used.
 */
#ifndef INGLE_KERN_X86_MATMUL_SPREAD256_H
#define INGLE_KERN_X86_MATMUL_SPREAD256_H

#include "kern/x86/matmul/dots256.h"
#include "kern/x86/matmul/order256.h"
#include "kern/x86/matmul/panel256.h"
#include "kern/x86/matmul/spread.h"

#define MAGIC 12582912.0f
enum { MAGIC_BITS = 0x4B400000 };

static ATTR_INLINE __m256i magic_bits(void) { return _mm256_set1_epi32(MAGIC_BITS); }
/* A dot that began with MAGIC's bits. */
static ATTR_INLINE __m256 spread_whole(__m256i dot)
{
    return _mm256_sub_ps(_mm256_castsi256_ps(dot), _mm256_set1_ps(MAGIC));
}

#define SPREAD_NONE(c, _) __m256i a##c, b##c;
#define SPREAD_DOT(c, at)                                \
    {                                                    \
        const __m256i q_ = spread_words(x##c->q + (at)); \
        a##c = with_dots(a##c, w0_, q_);                \
        b##c = with_dots(b##c, w1_, q_);                \
    }
/* Quad `line` of a panel; activations begin at q + at.  Weights are asked for in every second one,
 * because each quad takes two turns. */
#define SPREAD_QUAD(C, line, at, asks)                                                          \
    {                                                                                           \
        const __m256i w0_ = spread_load(line), w1_ = spread_load((line) + 32);                  \
        if (asks) {                                                                             \
            spread_ask(ask);                                                                    \
            ask += v->step;                                                                     \
        }                                                                                       \
        SPREAD_##C(SPREAD_DOT, at)                                                              \
    }
#define SPREAD_HALF(C, line, at)                                              \
    SPREAD_QUAD(C, (line)[0], at, true) SPREAD_QUAD(C, (line)[1], (at) + 4, false) \
    SPREAD_QUAD(C, (line)[2], (at) + 8, true) SPREAD_QUAD(C, (line)[3], (at) + 12, false)
#define SPREAD_ASK(c, h) _mm_prefetch((const char *)v->next[c] + 64 * (h), _MM_HINT_T0);
#define SPREAD_CLEAR_Y(c, _)                                                  \
    _mm256_store_ps(y + SPREAD_PAIR * (c), _mm256_setzero_ps());              \
    _mm256_store_ps(y + SPREAD_PAIR * (c) + 8, _mm256_setzero_ps());

/* ---- groups of 32 ---- */

#define SPREAD_X32(c, _)                                                                           \
    const struct kern_act32 *x##c = (const struct kern_act32 *)(const void *)v->x[c];
#define SPREAD_NEXT(c, _) x##c++;
/* Biases of 0, 1, 8, 128, and 128 in one half. */
#define SPREAD_START0(c, _) a##c = b##c = magic_bits();
#define SPREAD_START1(c, _) \
    a##c = b##c = _mm256_add_epi32(_mm256_srai_epi32(spread_words(&x##c->start8), 3), magic_bits());
#define SPREAD_START8(c, _)                                                                        \
    a##c = b##c = _mm256_add_epi32(spread_words(&x##c->start8), magic_bits());
#define SPREAD_START128(c, _)                                                                      \
    a##c = b##c = _mm256_add_epi32(spread_words(&x##c->start128), magic_bits());
#define SPREAD_START_HALF(c, half)                                                                 \
    a##c = b##c =                                                                                  \
        with_word_dots(magic_bits(), spread_words(x##c->pairs[half]), _mm256_set1_epi16(-128));
/* y += (float)dot * (d * s) */
#define SPREAD_ADD_D(c, _)                                                                         \
    {                                                                                              \
        const __m256 s_ = _mm256_set1_ps(x##c->scale);                                             \
        float *const to_ = y + SPREAD_PAIR * (c);                                                  \
        _mm256_store_ps(to_, _mm256_fmadd_ps(spread_whole(a##c), _mm256_mul_ps(d0_, s_),           \
                                             _mm256_load_ps(to_)));                                \
        _mm256_store_ps(to_ + 8, _mm256_fmadd_ps(spread_whole(b##c), _mm256_mul_ps(d1_, s_),       \
                                                 _mm256_load_ps(to_ + 8)));                        \
    }
/* y += sum of q * (m * s) */
#define SPREAD_ADD_M(c, _)                                                                         \
    {                                                                                              \
        const __m256 s_ = _mm256_set1_ps(x##c->scale), sum_ = _mm256_set1_ps(x##c->sum);           \
        float *const to_ = y + SPREAD_PAIR * (c);                                                  \
        _mm256_store_ps(to_, _mm256_fmadd_ps(sum_, _mm256_mul_ps(d0_, s_), _mm256_load_ps(to_)));  \
        _mm256_store_ps(to_ + 8,                                                                   \
                        _mm256_fmadd_ps(sum_, _mm256_mul_ps(d1_, s_), _mm256_load_ps(to_ + 8)));   \
    }
#define SPREAD_SCALED(C, ADD, scales)                                                              \
    {                                                                                              \
        const __m256 d0_ = _mm256_load_ps(scales), d1_ = _mm256_load_ps((scales) + 8);             \
        SPREAD_##C(ADD, _)                                                                         \
    }
#define SPREAD_WHOLE(C, START, has_min)                                              \
    SPREAD_##C(START, _)                                                             \
    SPREAD_HALF(C, w->w, 0) SPREAD_HALF(C, w->w + 4, 16)                             \
    SPREAD_SCALED(C, SPREAD_ADD_D, w->d)                                             \
    if (has_min)                                                                     \
        SPREAD_SCALED(C, SPREAD_ADD_M, w->m)
/* Both halves of a group have scales of their own. */
#define SPREAD_HALVES(C, START, _)                                                   \
    SPREAD_##C(START, 0) SPREAD_HALF(C, w->w, 0) SPREAD_SCALED(C, SPREAD_ADD_D, w->d) \
    SPREAD_##C(START, 1) SPREAD_HALF(C, w->w + 4, 16) SPREAD_SCALED(C, SPREAD_ADD_D, w->m)
#define SPREAD_TILE32(name, C, GROUP, START, has_min)                                              \
    static void name##_##C(const struct spread_call *v)                                            \
    {                                                                                              \
        const uint8_t *ask = v->ask;                                                               \
        for (int p = 0; p < 2; p++) {                                                              \
            const struct spread32 *w = p ? v->w1 : v->w0;                                          \
            float *const y = v->y + KERN_PANEL * p;                                                \
            SPREAD_##C(SPREAD_X32, _)                                                              \
            if (v->first) {                                                                        \
                SPREAD_##C(SPREAD_CLEAR_Y, _)                                                      \
            }                                                                                      \
            for (int64_t g = 0; g < v->n; g++, w++) {                                              \
                SPREAD_##C(SPREAD_NONE, _)                                                         \
                if (p) {                                                                           \
                    SPREAD_##C(SPREAD_ASK, g)                                                      \
                }                                                                                  \
                GROUP(C, START, has_min)                                                           \
                SPREAD_##C(SPREAD_NEXT, _)                                                         \
            }                                                                                      \
        }                                                                                          \
        spread_end(v, C);                                                                          \
    }
#define SPREAD_TILES32(name, GROUP, START, has_min)                                                \
    SPREAD_TILE32(name, 3, GROUP, START, has_min)                                                  \
    SPREAD_TILE32(name, 4, GROUP, START, has_min) SPREAD_TILE32(name, 5, GROUP, START, has_min)    \
        SPREAD_TILE32(name, 6, GROUP, START, has_min)

/* ---- super-blocks of 256: x is the first block of a row, sums are in t ---- */

#define SPREAD_X256(c, _)                                                                          \
    const struct kern_act256 *const x##c = (const struct kern_act256 *)(const void *)v->x[c] + b;

/* What dots begin with: `base` - bias times the sums of q, per 32, per 16, of all 256. */
static ATTR_INLINE void spread_begin(int32_t *to, const int16_t *sums, int bias, int base)
{
    const __m256i v = _mm256_cvtepi16_epi32(row16((const uint8_t *)sums));
    _mm256_store_si256(
        (__m256i *)(void *)to,
        _mm256_sub_epi32(_mm256_set1_epi32(base), _mm256_mullo_epi32(v, _mm256_set1_epi32(bias))));
}
static ATTR_INLINE void spread_begin_all(int32_t *to, const int16_t *sums, int bias, int base)
{
    const __m128i v = _mm_madd_epi16(row16((const uint8_t *)sums), _mm_set1_epi16((int16_t)bias));
    const __m128i w = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
    *to = base - _mm_cvtsi128_si32(_mm_add_epi32(w, _mm_shuffle_epi32(w, 0xB1)));
}
#define SPREAD_BEGIN_CONST(c, bias)
#define SPREAD_BEGIN_ALL(c, bias) spread_begin_all(start[c], x##c->sum32, bias, MAGIC_BITS);
#define SPREAD_BEGIN_32(c, bias) spread_begin(start[c], x##c->sum32, bias, MAGIC_BITS);
#define SPREAD_BEGIN_32I(c, bias) spread_begin(start[c], x##c->sum32, bias, 0);
#define SPREAD_BEGIN_16(c, bias)                              \
    spread_begin(start[c], x##c->sum16, bias, MAGIC_BITS);    \
    spread_begin(start[c] + 8, x##c->sum16 + 8, bias, MAGIC_BITS);
#define SPREAD_START_CONST(c, _) a##c = b##c = magic_bits();
#define SPREAD_START_AT(c, i) a##c = b##c = spread_words(&start[c][i]);

#define SPREAD_T(i) ((__m256i *)(void *)t[i])
#define SPREAD_F(i) ((float *)(void *)f[i])
#define SPREAD_ZERO_T(c, base)                                       \
    _mm256_store_si256(SPREAD_T(2 * (c)), _mm256_set1_epi32(base));      \
    _mm256_store_si256(SPREAD_T(2 * (c) + 1), _mm256_set1_epi32(base));
#define SPREAD_ADD_T(i, v)                                                                         \
    _mm256_store_si256(SPREAD_T(i), _mm256_add_epi32(_mm256_load_si256(SPREAD_T(i)), v));

/* Dots times sub-scales.  Below 2^22: as MAGIC + product, whose bits are added; ... */
#define SPREAD_ADD_BITS(c, _)                                                                      \
    SPREAD_ADD_T(2 * (c),                                                                          \
                 _mm256_castps_si256(_mm256_fmadd_ps(_mm256_castsi256_ps(a##c), sub0_, more0_)))   \
    SPREAD_ADD_T(2 * (c) + 1,                                                                      \
                 _mm256_castps_si256(_mm256_fmadd_ps(_mm256_castsi256_ps(b##c), sub1_, more1_)))
enum {
    SPREAD_BITS_8 = (int32_t)(0u - 8u * MAGIC_BITS),
    SPREAD_BITS_16 = (int32_t)(0u - 16u * MAGIC_BITS)
};
/* ... two of them below 2^24: the first, then the second and both; ... */
#define SPREAD_PRODUCT(dot, i) _mm256_fmadd_ps(_mm256_castsi256_ps(dot), sub##i##_, more##i##_)
#define SPREAD_ADD_FIRST(c, _)                                      \
    _mm256_store_ps(SPREAD_F(2 * (c)), SPREAD_PRODUCT(a##c, 0));    \
    _mm256_store_ps(SPREAD_F(2 * (c) + 1), SPREAD_PRODUCT(b##c, 1));
#define SPREAD_ADD_SECOND(c, _)                                                                    \
    SPREAD_ADD_T(2 * (c), _mm256_cvtps_epi32(_mm256_add_ps(SPREAD_PRODUCT(a##c, 0),                \
                                                           _mm256_load_ps(SPREAD_F(2 * (c))))))    \
    SPREAD_ADD_T(2 * (c) + 1,                                                                      \
                 _mm256_cvtps_epi32(_mm256_add_ps(SPREAD_PRODUCT(b##c, 1),                         \
                                                  _mm256_load_ps(SPREAD_F(2 * (c) + 1)))))
/* ... others: integers. */
#define SPREAD_ADD_INTEGER(c, _)                                                                  \
    SPREAD_ADD_T(2 * (c), _mm256_mullo_epi32(a##c, _mm256_castps_si256(sub0_)))                   \
    SPREAD_ADD_T(2 * (c) + 1, _mm256_mullo_epi32(b##c, _mm256_castps_si256(sub1_)))
static ATTR_INLINE float *spread_sub(const struct spread256 *w, int i)
{
    return (float *)(void *)(uintptr_t)w->sub[i];
}
/* What ADD_BITS and the pairs add to (MAGIC + dot) * sub-scale: base - MAGIC * sub-scale, base
 * MAGIC or 0; from the panel or made. */
#define SPREAD_GIVEN(i, _)                                                                         \
    const __m256 more0_ = _mm256_load_ps(spread_sub(w, 8 + (i))),                                  \
                 more1_ = _mm256_load_ps(spread_sub(w, 8 + (i)) + 8);
#define SPREAD_MADE(_, base)                                                                       \
    const __m256 more0_ = _mm256_fnmadd_ps(sub0_, _mm256_set1_ps(MAGIC), _mm256_set1_ps(base)),    \
                 more1_ = _mm256_fnmadd_ps(sub1_, _mm256_set1_ps(MAGIC), _mm256_set1_ps(base));
#define SPREAD_NO_MORE(_1, _2)
#define SPREAD_TIMES(C, MORE, base, ADD, i)                                                        \
    {                                                                                              \
        const __m256 sub0_ = _mm256_load_ps(spread_sub(w, i)),                                     \
                     sub1_ = _mm256_load_ps(spread_sub(w, i) + 8);                                 \
        MORE(i, base)                                                                              \
        SPREAD_##C(ADD, _)                                                                         \
    }

#define SPREAD_HALF256(C, h, half)                                                                 \
    SPREAD_HALF(C, w->w + 8 * (h) + 4 * (half), 32 * (h) + 16 * (half))
#define SPREAD_BOTH256(C, h) SPREAD_HALF256(C, h, 0) SPREAD_HALF256(C, h, 1)
/* Two groups whose sub-scales are for 32, ... */
#define SPREAD_GROUP(C, START, h, ...) \
    SPREAD_##C(START, h) SPREAD_BOTH256(C, h) SPREAD_TIMES(C, __VA_ARGS__, h)
#define SPREAD_GROUPS_32B(C, START, h)                                   \
    SPREAD_GROUP(C, START, h, SPREAD_GIVEN, MAGIC, SPREAD_ADD_BITS)      \
    SPREAD_GROUP(C, START, h + 1, SPREAD_GIVEN, MAGIC, SPREAD_ADD_BITS)
#define SPREAD_GROUPS_32P(C, START, h)                                   \
    SPREAD_GROUP(C, START, h, SPREAD_GIVEN, 0, SPREAD_ADD_FIRST)         \
    SPREAD_GROUP(C, START, h + 1, SPREAD_GIVEN, 0, SPREAD_ADD_SECOND)
#define SPREAD_GROUPS_32I(C, START, h)                                   \
    SPREAD_GROUP(C, START, h, SPREAD_NO_MORE, 0, SPREAD_ADD_INTEGER)     \
    SPREAD_GROUP(C, START, h + 1, SPREAD_NO_MORE, 0, SPREAD_ADD_INTEGER)
/* ... for 16. */
#define SPREAD_HALVES_16(C, START, h, base, ADD_0, ADD_1)                                          \
    SPREAD_##C(START, 2 * (h)) SPREAD_HALF256(C, h, 0)                                             \
        SPREAD_TIMES(C, SPREAD_MADE, base, ADD_0, 2 * (h)) SPREAD_##C(START, 2 * (h) + 1)          \
            SPREAD_HALF256(C, h, 1) SPREAD_TIMES(C, SPREAD_MADE, base, ADD_1, 2 * (h) + 1)
#define SPREAD_GROUPS_16B(C, START, h)                                                  \
    SPREAD_HALVES_16(C, START, h, MAGIC, SPREAD_ADD_BITS, SPREAD_ADD_BITS)              \
    SPREAD_HALVES_16(C, START, h + 1, MAGIC, SPREAD_ADD_BITS, SPREAD_ADD_BITS)
#define SPREAD_GROUPS_16P(C, START, h)                                                  \
    SPREAD_HALVES_16(C, START, h, 0, SPREAD_ADD_FIRST, SPREAD_ADD_SECOND)               \
    SPREAD_HALVES_16(C, START, h + 1, 0, SPREAD_ADD_FIRST, SPREAD_ADD_SECOND)

/* y += (float)t * (d * s), t beyond 2^22 */
#define SPREAD_ADD_DT(c, _)                                                                        \
    {                                                                                              \
        const __m256 s_ = _mm256_set1_ps(x##c->scale);                                             \
        float *const to_ = y + SPREAD_PAIR * (c);                                                  \
        _mm256_store_ps(to_,                                                                       \
                        _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_load_si256(SPREAD_T(2 * (c)))),  \
                                        _mm256_mul_ps(d0_, s_), _mm256_load_ps(to_)));             \
        _mm256_store_ps(                                                                           \
            to_ + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_load_si256(SPREAD_T(2 * (c) + 1))), \
                                     _mm256_mul_ps(d1_, s_), _mm256_load_ps(to_ + 8)));            \
    }
#define SPREAD_LESS_D(c, _)                                                                        \
    {                                                                                              \
        const __m256 s_ = _mm256_set1_ps(x##c->scale);                                             \
        float *const to_ = y + SPREAD_PAIR * (c);                                                  \
        _mm256_store_ps(to_, _mm256_fnmadd_ps(spread_whole(a##c), _mm256_mul_ps(d0_, s_),          \
                                              _mm256_load_ps(to_)));                               \
        _mm256_store_ps(to_ + 8, _mm256_fnmadd_ps(spread_whole(b##c), _mm256_mul_ps(d1_, s_),      \
                                                  _mm256_load_ps(to_ + 8)));                       \
    }
/* Pairs of sums of q times pairs of 8 rows. */
#define SPREAD_SUMS(c, at)                                   \
    {                                                        \
        const __m256i q_ = spread_words(&x##c->at);          \
        a##c = with_word_dots(a##c, w0_, q_);              \
        b##c = with_word_dots(b##c, w1_, q_);              \
    }
#define SPREAD_PAIRS(C, i, at)                                                                     \
    {                                                                                              \
        const uint8_t *const min_ = (const uint8_t *)w->min[i];                                    \
        const __m256i w0_ = spread_load(min_), w1_ = spread_load(min_ + 32);                       \
        SPREAD_##C(SPREAD_SUMS, at)                                                                \
    }
#define SPREAD_PAIRS_4(C, sums)                                                   \
    SPREAD_PAIRS(C, 0, sums[0]) SPREAD_PAIRS(C, 1, sums[2])                       \
    SPREAD_PAIRS(C, 2, sums[4]) SPREAD_PAIRS(C, 3, sums[6])
#define SPREAD_MINS(C, PAIRS)                                \
    {                                                        \
        SPREAD_##C(SPREAD_NONE, _)                           \
        SPREAD_##C(SPREAD_START_CONST, _)                    \
        PAIRS                                                \
        SPREAD_SCALED(C, SPREAD_LESS_D, w->dmin)             \
    }
#define SPREAD_MINS_0(C)
#define SPREAD_MINS_32(C) SPREAD_MINS(C, SPREAD_PAIRS_4(C, sum32))
#define SPREAD_MINS_16(C)                                                                          \
    SPREAD_MINS(C, SPREAD_PAIRS_4(C, sum16) SPREAD_PAIRS(C, 4, sum16[8])                           \
                       SPREAD_PAIRS(C, 5, sum16[10]) SPREAD_PAIRS(C, 6, sum16[12])                 \
                           SPREAD_PAIRS(C, 7, sum16[14]))

/* GROUPS adds groups h and h + 1 to t. */
#define SPREAD_SCALED_BLOCK(C, START, GROUPS, base)                                  \
    SPREAD_##C(SPREAD_ZERO_T, base)                                                  \
    for (int h = 0; h < 8; h += 2) {                                                 \
        SPREAD_##C(SPREAD_NONE, _)                                                   \
        SPREAD_BLOCK_ASK(C)                                                          \
        GROUPS(C, START, h)                                                          \
    }                                                                                \
    SPREAD_SCALED(C, SPREAD_ADD_DT, w->d)
/* Codes hold their sub-scales: all 256 are one dot, below 2^22. */
#define SPREAD_WHOLE_BLOCK(C, START, _1, _2)                                         \
    SPREAD_##C(SPREAD_NONE, _)                                                       \
    SPREAD_##C(START, 0)                                                             \
    for (int h = 0; h < 8; h += 2) {                                                 \
        SPREAD_BLOCK_ASK(C)                                                          \
        SPREAD_BOTH256(C, h)                                                         \
        SPREAD_BOTH256(C, h + 1)                                                     \
    }                                                                                \
    SPREAD_SCALED(C, SPREAD_ADD_D, w->d)
/* Three lines of the rows that come next for two groups of one panel: six a super-block and two
 * panels. */
#define SPREAD_BLOCK_ASK(C)                                                          \
    if (h < 6) {                                                                     \
        SPREAD_##C(SPREAD_ASK, 6 * b + h / 2 + 3 * p)                                \
    }
#define SPREAD_TILE256(name, C, begin, bias, START, BLOCK, GROUPS, base, min)                      \
    static void name##_##C(const struct spread_call *v)                                            \
    {                                                                                              \
        ATTR_ALIGNED(32) int32_t start[C][16], t[2 * C][8], f[2 * C][8];                           \
        const uint8_t *ask = v->ask;                                                               \
        (void)start, (void)t, (void)f;                                                             \
        for (int64_t b = 0; b < v->n; b++) {                                                       \
            SPREAD_##C(SPREAD_X256, _)                                                             \
                SPREAD_##C(SPREAD_BEGIN_##begin, bias) for (int p = 0; p < 2; p++)                 \
            {                                                                                      \
                const struct spread256 *const w =                                                  \
                    (const struct spread256 *)(p ? v->w1 : v->w0) + b;                             \
                float *const y = v->y + KERN_PANEL * p;                                            \
                if (v->first && b == 0) {                                                          \
                    SPREAD_##C(SPREAD_CLEAR_Y, _)                                                  \
                }                                                                                  \
                {BLOCK(C, START, GROUPS, base)} SPREAD_MINS_##min(C)                               \
            }                                                                                      \
        }                                                                                          \
        spread_end(v, C);                                                                          \
    }
#define SPREAD_TILES256(name, ...)                                              \
    SPREAD_TILE256(name, 3, __VA_ARGS__) SPREAD_TILE256(name, 4, __VA_ARGS__)   \
    SPREAD_TILE256(name, 5, __VA_ARGS__) SPREAD_TILE256(name, 6, __VA_ARGS__)

#endif
