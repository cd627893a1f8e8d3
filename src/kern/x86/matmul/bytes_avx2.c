/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products for many rows on AVX2 of codes whose sums of a group fit 16 bits (madd256.h has the
 * bounds): panels are spread to bytes once for all rows, so that tiles do not unpack them.  The two
 * panels take turns.
 *
 * sub of spread256 is a sub-scale twice, as words; its min are pairs, of rows 0 to 7 and then of 8
 * to 15.
 */
#include "kern/x86/matmul/order256.h"
#include "kern/x86/matmul/panel256.h"
#include "kern/x86/matmul/spread.h"

static ATTR_INLINE __m256i with_pairs(__m256i sum, __m256i w, __m256i x)
{
    __m256i pairs;
    __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
                     : "+x"(sum), "=&x"(pairs)
                     : "x"(w), "x"(x));
    return sum;
}

/* ---- tiles: a panel times three to six rows ---- */

#define BYTES_DOT(c, at)                                     \
    {                                                        \
        const __m256i q_ = spread_words(x##c->q + (at));     \
        lo##c = with_pairs(lo##c, w0_, q_);                  \
        hi##c = with_pairs(hi##c, w1_, q_);                  \
    }
/* Lines to come are asked for in every second quad, because each takes two turns. */
#define BYTES_QUAD(C, line, at, asks)                                                      \
    {                                                                                      \
        const __m256i w0_ = spread_load(line), w1_ = spread_load((line) + 32);             \
        if (asks) {                                                                        \
            spread_ask(ask);                                                               \
            ask += v->step;                                                                \
        }                                                                                  \
        SPREAD_##C(BYTES_DOT, at)                                                          \
    }
#define BYTES_HALF(C, line, at)                                                            \
    BYTES_QUAD(C, (line)[0], at, true) BYTES_QUAD(C, (line)[1], (at) + 4, false)           \
    BYTES_QUAD(C, (line)[2], (at) + 8, true) BYTES_QUAD(C, (line)[3], (at) + 12, false)
#define BYTES_NONE(c, _) __m256i lo##c, hi##c;
#define BYTES_NEXT(c, _) x##c++;
#define BYTES_ASK(c, h) _mm_prefetch((const char *)v->next[c] + 64 * (h), _MM_HINT_T0);
#define BYTES_CLEAR_Y(c, _)                                                   \
    _mm256_store_ps(y + SPREAD_PAIR * (c), _mm256_setzero_ps());              \
    _mm256_store_ps(y + SPREAD_PAIR * (c) + 8, _mm256_setzero_ps());
/* y = op(t0, d * s, y), t0 of rows 0 to 7, t1 of 8 to 15 */
#define BYTES_ADD_Y(op, c, t0, t1)                                                                 \
    {                                                                                              \
        const __m256 s_ = _mm256_set1_ps(x##c->scale);                                             \
        float *const to_ = y + SPREAD_PAIR * (c);                                                  \
        _mm256_store_ps(to_, op(t0, _mm256_mul_ps(d0_, s_), _mm256_load_ps(to_)));                 \
        _mm256_store_ps(to_ + 8, op(t1, _mm256_mul_ps(d1_, s_), _mm256_load_ps(to_ + 8)));         \
    }
#define BYTES_SCALED(C, ADD, scales)                                                               \
    {                                                                                              \
        const __m256 d0_ = _mm256_load_ps(scales), d1_ = _mm256_load_ps((scales) + 8);             \
        SPREAD_##C(ADD, _)                                                                         \
    }

/* ---- groups of 32 ---- */

#define BYTES_X32(c, _)                                                                            \
    const struct kern_act32 *x##c = (const struct kern_act32 *)(const void *)v->x[c];
#define START_0(c, _) lo##c = hi##c = _mm256_setzero_si256();
#define START_8(c, _) lo##c = hi##c = spread_words(x##c->pairs8);
#define START_16(c, _) lo##c = hi##c = spread_words(x##c->pairs16);
#define START_16_OF(c, half)                                                                       \
    lo##c = hi##c = _mm256_mullo_epi16(spread_words(x##c->pairs[half]), _mm256_set1_epi16(-16));
#define WHOLE(v) _mm256_cvtepi32_ps(_mm256_madd_epi16(v, ONES))
#define BYTES_ADD_D(c, _) BYTES_ADD_Y(_mm256_fmadd_ps, c, WHOLE(lo##c), WHOLE(hi##c))
#define BYTES_ADD_M(c, _)                                                                          \
    BYTES_ADD_Y(_mm256_fmadd_ps, c, _mm256_set1_ps(x##c->sum), _mm256_set1_ps(x##c->sum))
/* GROUP multiplies a group and adds it. */
#define GROUP_WHOLE(C, START, has_min)                                                             \
    SPREAD_##C(START, _) BYTES_HALF(C, w->w, 0) BYTES_HALF(C, w->w + 4, 16)                        \
        BYTES_SCALED(C, BYTES_ADD_D, w->d) if (has_min) BYTES_SCALED(C, BYTES_ADD_M, w->m)
/* Both halves have scales of their own, the second one m. */
#define GROUP_HALVES(C, START, _)                                                                  \
    SPREAD_##C(START, 0) BYTES_HALF(C, w->w, 0) BYTES_SCALED(C, BYTES_ADD_D, w->d)                 \
        SPREAD_##C(START, 1) BYTES_HALF(C, w->w + 4, 16) BYTES_SCALED(C, BYTES_ADD_D, w->m)
#define BYTES_TILE32(name, C, GROUP, START, has_min)                                               \
    static void name##_##C(const struct spread_call *v)                                            \
    {                                                                                              \
        const uint8_t *ask = v->ask;                                                               \
        for (int p = 0; p < 2; p++) {                                                              \
            const struct spread32 *w = p ? v->w1 : v->w0;                                          \
            float *const y = v->y + KERN_PANEL * p;                                                \
            SPREAD_##C(BYTES_X32, _) if (v->first)                                                 \
            {                                                                                      \
                SPREAD_##C(BYTES_CLEAR_Y, _)                                                       \
            }                                                                                      \
            for (int64_t g = 0; g < v->n; g++, w++) {                                              \
                SPREAD_##C(BYTES_NONE, _) if (p){SPREAD_##C(BYTES_ASK, g)} GROUP(                  \
                    C, START, has_min) SPREAD_##C(BYTES_NEXT, _)                                   \
            }                                                                                      \
        }                                                                                          \
        spread_end(v, C);                                                                          \
    }
#define BYTES_TILES32(name, ...)                                                                   \
    BYTES_TILE32(name, 3, __VA_ARGS__)                                                             \
    BYTES_TILE32(name, 4, __VA_ARGS__) BYTES_TILE32(name, 5, __VA_ARGS__)                          \
        BYTES_TILE32(name, 6, __VA_ARGS__)

/* ---- super-blocks of 256: their sums are in t ---- */

#define BYTES_X256(c, _)                                                                           \
    const struct kern_act256 *const x##c = (const struct kern_act256 *)(const void *)v->x[c] + b;
#define START_4_OF(c, i) lo##c = hi##c = _mm256_srai_epi16(spread_words(x##c->pairs32[i]), 3);
#define START_32_OF(c, i) lo##c = hi##c = spread_words(x##c->pairs32[i]);
#define BYTES_ZERO_T(c, _) t[c][0] = t[c][1] = _mm256_setzero_si256();
#define BYTES_ADD_T(c, _)                                                        \
    t[c][0] = _mm256_add_epi32(t[c][0], _mm256_madd_epi16(lo##c, sub0_));        \
    t[c][1] = _mm256_add_epi32(t[c][1], _mm256_madd_epi16(hi##c, sub1_));
#define BYTES_SUB(C, i)                                                          \
    {                                                                            \
        const uint8_t *const sub_ = (const uint8_t *)w->sub[i];                  \
        const __m256i sub0_ = spread_load(sub_), sub1_ = spread_load(sub_ + 32); \
        SPREAD_##C(BYTES_ADD_T, _)                                               \
    }
/* Group h, with sub-scales for 32, or for 16. */
#define GROUP_32(C, START)                                                                         \
    SPREAD_##C(START, h) BYTES_HALF(C, w->w + 8 * h, 32 * h)                                       \
        BYTES_HALF(C, w->w + 8 * h + 4, 32 * h + 16) BYTES_SUB(C, h)
#define GROUP_16(C, START)                                                                         \
    SPREAD_##C(START, 2 * h) BYTES_HALF(C, w->w + 8 * h, 32 * h) BYTES_SUB(C, 2 * h)               \
        SPREAD_##C(START, 2 * h + 1) BYTES_HALF(C, w->w + 8 * h + 4, 32 * h + 16)                  \
            BYTES_SUB(C, 2 * h + 1)
/* For 32, of codes of which 16 fill a lane. */
#define GROUP_16H(C, START)                                                                        \
    SPREAD_##C(START, h) BYTES_HALF(C, w->w + 8 * h, 32 * h) BYTES_SUB(C, h) SPREAD_##C(START, h)  \
        BYTES_HALF(C, w->w + 8 * h + 4, 32 * h + 16) BYTES_SUB(C, h)
#define BYTES_ADD_DT(c, _) \
    BYTES_ADD_Y(_mm256_fmadd_ps, c, _mm256_cvtepi32_ps(t[c][0]), _mm256_cvtepi32_ps(t[c][1]))
#define BYTES_LESS_M(c, _)                                                                         \
    BYTES_ADD_Y(_mm256_fnmadd_ps, c, _mm256_cvtepi32_ps(lo##c), _mm256_cvtepi32_ps(hi##c))
/* Pairs of sums of q times pairs of sub-minimums. */
#define BYTES_SUMS(c, sums)                                                      \
    {                                                                            \
        const __m256i q_ = spread_words(&x##c->sums[2 * i]);                     \
        lo##c = spread_word_dot(lo##c, w0_, q_);                                 \
        hi##c = spread_word_dot(hi##c, w1_, q_);                                 \
    }
#define BYTES_MINS(C, n_pairs, sums)                                             \
    {                                                                            \
        SPREAD_##C(BYTES_NONE, _)                                                \
        SPREAD_##C(START_0, _)                                                   \
        for (int i = 0; i < (n_pairs); i++) {                                    \
            const uint8_t *const min_ = (const uint8_t *)w->min[i];              \
            const __m256i w0_ = spread_load(min_), w1_ = spread_load(min_ + 32); \
            SPREAD_##C(BYTES_SUMS, sums)                                         \
        }                                                                        \
        BYTES_SCALED(C, BYTES_LESS_M, w->dmin)                                   \
    }
#define BYTES_TILE256(name, C, GROUP, START, n_pairs, sums)                                        \
    static void name##_##C(const struct spread_call *v)                                            \
    {                                                                                              \
        __m256i t[C][2];                                                                           \
        const uint8_t *ask = v->ask;                                                               \
        for (int64_t b = 0; b < v->n; b++) {                                                       \
            SPREAD_##C(BYTES_X256, _) for (int p = 0; p < 2; p++)                                  \
            {                                                                                      \
                const struct spread256 *const w =                                                  \
                    (const struct spread256 *)(p ? v->w1 : v->w0) + b;                             \
                float *const y = v->y + KERN_PANEL * p;                                            \
                if (v->first && b == 0) {                                                          \
                    SPREAD_##C(BYTES_CLEAR_Y, _)                                                   \
                }                                                                                  \
                SPREAD_##C(BYTES_ZERO_T, _) for (int h = 0; h < 8; h++)                            \
                {                                                                                  \
                    SPREAD_##C(BYTES_NONE, _) if (p && h < 6){                                     \
                        SPREAD_##C(BYTES_ASK, 6 * b + h)} GROUP(C, START)                          \
                }                                                                                  \
                BYTES_SCALED(C, BYTES_ADD_DT, w->d)                                                \
                if (n_pairs)                                                                       \
                    BYTES_MINS(C, n_pairs, sums)                                                   \
            }                                                                                      \
        }                                                                                          \
        spread_end(v, C);                                                                          \
    }
#define BYTES_TILES256(name, ...)                                                                  \
    BYTES_TILE256(name, 3, __VA_ARGS__)                                                            \
    BYTES_TILE256(name, 4, __VA_ARGS__) BYTES_TILE256(name, 5, __VA_ARGS__)                        \
        BYTES_TILE256(name, 6, __VA_ARGS__)

/* ---- codes ---- */

#define KERNEL(name, tile, block, type, n_packed) \
    SPREAD_KERNEL(kern_matmul_##name##_bytes_avx2, spread_##name, tile, block, type, n_packed)
#define EACH_QUAD(F, ...)                                                                          \
    F(0, __VA_ARGS__)                                                                              \
    F(1, __VA_ARGS__) F(2, __VA_ARGS__) F(3, __VA_ARGS__) F(4, __VA_ARGS__) F(5, __VA_ARGS__)      \
        F(6, __VA_ARGS__) F(7, __VA_ARGS__)
static ATTR_INLINE void put_two(void *to, __m256i first, __m256i second)
{
    _mm256_store_si256((__m256i *)to, first);
    _mm256_store_si256((__m256i *)to + 1, second);
}
static ATTR_INLINE void put_scales(float *to, __m256 first, __m256 second)
{
    _mm256_store_ps(to, first);
    _mm256_store_ps(to + 8, second);
}
#define PUT(j, line, quad) put_two(to->w[(line) + (j)], quad(group, j), quad(group + 32, j));

#define SPREAD32(name, bits, n_group, scales, SETUP, quad, tile, SCALES)                           \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *all)                          \
    {                                                                                              \
        SETUP                                                                                      \
        struct spread32 *to = all;                                                                 \
        for (int64_t g = 0; g < n;                                                                 \
             chunk += KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n_group, 0))                    \
            for (int i = 0; i < (n_group) && g < n; i++, g++, to++) {                              \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * i;                         \
                const uint8_t *scale = chunk + KERN_SCALES_AT(bits, n_group) +                     \
                                       i * KERN_SCALE_BYTES(KERN_SCALES_##scales);                 \
                EACH_QUAD(PUT, 0, quad)                                                            \
                SCALES                                                                             \
            }                                                                                      \
    }                                                                                              \
    KERNEL(name, tile, 32, struct spread32,                                                        \
           SPREAD_K / 32 / (n_group)*KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n_group, 0))
#define SCALES_D put_scales(to->d, halves(scale), halves(scale + 16));
#define SCALES_DM SCALES_D put_scales(to->m, halves(scale + 32), halves(scale + 48));
#define SCALES_E                    \
    __m256 d0, d1;                  \
    halves_e8m0(scale, &d0, &d1);   \
    put_scales(to->d, d0, d1);
#define SCALES_E2                                              \
    put_scales(to->d, half_ue4m3(scale), half_ue4m3(scale + 8)); \
    put_scales(to->m, half_ue4m3(scale + 16), half_ue4m3(scale + 24));
#define E2M1_SETUP const __m256i table = lut(quant_e2m1_doubled, 16);
BYTES_TILES32(tile_less_8, GROUP_WHOLE, START_8, false)
BYTES_TILES32(tile_less_16, GROUP_WHOLE, START_16, false)
BYTES_TILES32(tile_halves, GROUP_HALVES, START_16_OF, false)
BYTES_TILES32(tile_min, GROUP_WHOLE, START_0, true)
SPREAD32(q4_0, 4, 2, D, NO_SETUP, Q4, tile_less_8, SCALES_D)
SPREAD32(q4_1, 4, 1, DM, NO_SETUP, Q4, tile_min, SCALES_DM)
SPREAD32(q5_0, 5, 2, D, NO_SETUP, Q5, tile_less_16, SCALES_D)
SPREAD32(mxfp4, 4, 4, E, E2M1_SETUP, QTABLE, tile_less_16, SCALES_E)
SPREAD32(nvfp4, 4, 2, E2, E2M1_SETUP, QTABLE, tile_halves, SCALES_E2)

/* Sub-scales stand at s, d n_sub bytes behind. */
#define SPREAD256(name, bits, scales, n_sub, quad, tile, has_min, GROUP)                           \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *all)                          \
    {                                                                                              \
        struct spread256 *to = all;                                                                \
        for (int64_t b = 0; b < n;                                                                 \
             b++, to++, chunk += KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, 8, 0)) {             \
            const uint8_t *s = chunk + KERN_SCALES_AT(bits, 8);                                    \
            for (int h = 0; h < 8; h++) {                                                          \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * h;                         \
                EACH_QUAD(PUT, 8 * h, quad)                                                        \
                GROUP                                                                              \
            }                                                                                      \
            put_scales(to->d, halves(s + (n_sub)), halves(s + (n_sub) + 16));                      \
            if (has_min)                                                                           \
                put_scales(to->dmin, halves(s + (n_sub) + 32), halves(s + (n_sub) + 48));          \
        }                                                                                          \
    }                                                                                              \
    KERNEL(name, tile, 256, struct spread256,                                                      \
           SPREAD_K / 256 * KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, 8, 0))
#define PUT_SUB(i, doubled)                          \
    {                                                \
        SUBS(s + 16 * (i), doubled)                  \
        put_two(to->sub[i], sub0, sub1);             \
    }
#define SUB_MIN_32                                   \
    PUT_SUB(h, doubled_u8)                           \
    if (h % 2)                                       \
        put_two(to->min[h / 2], paired(s + 112 + 16 * h, 0), paired(s + 112 + 16 * h, 1));
#define SUB_16 PUT_SUB(2 * h, doubled_s8) PUT_SUB(2 * h + 1, doubled_s8)
#define NIBBLES_16                                                                                 \
    PUT_SUB(2 * h, LOW_NIBBLE)                                                                     \
    PUT_SUB(2 * h + 1, LOW_NIBBLE)                                                                 \
        put_two(to->min[h], _mm256_srli_epi16(paired(s + 32 * h, 0), 4),                           \
                _mm256_srli_epi16(paired(s + 32 * h, 1), 4));
BYTES_TILES256(tile_q4_k, GROUP_32, START_0, 4, sum32)
BYTES_TILES256(tile_q5_k, GROUP_16H, START_0, 4, sum32)
BYTES_TILES256(tile_q6_k, GROUP_16, START_32_OF, 0, sum16)
BYTES_TILES256(tile_q3_k, GROUP_16, START_4_OF, 0, sum16)
BYTES_TILES256(tile_q2_k, GROUP_16, START_0, 8, sum16)
SPREAD256(q4_k, 4, SUB8_MIN, 256, Q4, tile_q4_k, true, SUB_MIN_32)
SPREAD256(q5_k, 5, SUB8_MIN, 256, Q5, tile_q5_k, true, SUB_MIN_32)
SPREAD256(q6_k, 6, SUB16, 256, Q6, tile_q6_k, false, SUB_16)
SPREAD256(q3_k, 3, SUB16, 256, Q3, tile_q3_k, false, SUB_16)
SPREAD256(q2_k, 2, SUB16_NIB, 256, Q2, tile_q2_k, true, NIBBLES_16)
