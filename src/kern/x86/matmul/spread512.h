/*
 * spread512 - the tiles of spread.h on AVX-512 with VNNI: two panels times three to six rows of
 * activations. Six make twelve dots that do not wait for each other, for which eight lines are
 * loaded (one panel and twelve rows: thirteen, 0.75 of the speed).
 */
#ifndef INGLE_KERN_X86_MATMUL_SPREAD512_H
#define INGLE_KERN_X86_MATMUL_SPREAD512_H

#include "kern/x86/matmul/spread.h"

#define SPREAD_3(F, a) F(0, a) F(1, a) F(2, a)
#define SPREAD_4(F, a) SPREAD_3(F, a) F(3, a)
#define SPREAD_5(F, a) SPREAD_4(F, a) F(4, a)
#define SPREAD_6(F, a) SPREAD_5(F, a) F(5, a)

/* ---- loads whose order is kept ---- */

struct spread_line { uint8_t b[64]; };
struct spread_word { uint8_t b[4]; };
static ATTR_INLINE __m512i spread_load(const uint8_t *at)
{
    __m512i v;
    __asm__ volatile("vmovdqa64 %1, %0"
                     : "=v"(v)
                     : "m"(*(const struct spread_line *)(const void *)at));
    return v;
}
/* Four bytes, in every lane. */
static ATTR_INLINE __m512i spread_words(const void *at)
{
    __m512i v;
    __asm__ volatile("vpbroadcastd %1, %0" : "=v"(v) : "m"(*(const struct spread_word *)at));
    return v;
}
static ATTR_INLINE __m512i spread_dot(__m512i a, __m512i w, __m512i x)
{
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(a) : "v"(w), "v"(x));
    return a;
}
static ATTR_INLINE __m512i spread_dot_words(__m512i a, __m512i w, __m512i x)
{
    __asm__ volatile("vpdpwssd %2, %1, %0" : "+v"(a) : "v"(w), "v"(x));
    return a;
}

#define SPREAD_DOT_TO(c, at, a, b)                       \
    {                                                    \
        const __m512i q_ = spread_words(x##c->q + (at)); \
        a##c = spread_dot(a##c, w0_, q_);                \
        b##c = spread_dot(b##c, w1_, q_);                \
    }
#define SPREAD_DOT(c, at) SPREAD_DOT_TO(c, at, a, b)
#define SPREAD_DOT_WHOLE(c, at) SPREAD_DOT_TO(c, at, s, t)
/* A quad whose activations begin at q + at. */
#define SPREAD_QUAD_TO(C, line0, line1, at, DOT)                                  \
    {                                                                             \
        const __m512i w0_ = spread_load(line0), w1_ = spread_load(line1);         \
        spread_ask(ask);                                                          \
        ask += v->step;                                                           \
        SPREAD_##C(DOT, at)                                                       \
    }
#define SPREAD_QUAD(C, line0, line1, at) SPREAD_QUAD_TO(C, line0, line1, at, SPREAD_DOT)

/* Sums of row c of one of the two panels; the last ones of a slice join the total. */
#define SPREAD_PUT(c, half, last, v_)                                                              \
    if (last) {                                                                                    \
        float *const at_ = v->total + SPREAD_PAIR * (c) + KERN_PANEL * (half);                     \
        _mm512_store_ps(at_, _mm512_add_ps(_mm512_load_ps(at_), v_));                              \
    } else {                                                                                       \
        _mm512_store_ps(v->y + SPREAD_PAIR * (c) + KERN_PANEL * (half), v_);                       \
    }

/* ---- groups of 32 ---- */

#define SPREAD_ASK(c, h) _mm_prefetch((const char *)v->next[c] + 64 * (h), _MM_HINT_T0);
#define SPREAD_NONE(c, _) __m512i a##c, b##c;
#define SPREAD_LOAD_Y(c, _)                                                                        \
    const struct kern_act32 *x##c = (const struct kern_act32 *)(const void *)v->x[c];              \
    __m512 y##c = v->first ? _mm512_setzero_ps() : _mm512_load_ps(v->y + SPREAD_PAIR * (c));       \
    __m512 z##c =                                                                                  \
        v->first ? _mm512_setzero_ps() : _mm512_load_ps(v->y + SPREAD_PAIR * (c) + KERN_PANEL);
#define SPREAD_STORE_Y(c, last) SPREAD_PUT(c, 0, last, y##c) SPREAD_PUT(c, 1, last, z##c)
#define SPREAD_START(c, _) \
    a##c = b##c = spread_words(&x##c->start128);
/* -128 times the sums of a half. */
#define SPREAD_START_HALF(c, half) \
    a##c = b##c = _mm512_madd_epi16(spread_words(x##c->pairs[half]), _mm512_set1_epi16(-128));
#define SPREAD_FINISH(c, has_min)                                                                  \
    {                                                                                              \
        const __m512 s_ = _mm512_set1_ps(x##c->scale);                                             \
        y##c = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a##c), _mm512_mul_ps(d0, s_), y##c);             \
        z##c = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b##c), _mm512_mul_ps(d1, s_), z##c);             \
        if (has_min) {                                                                             \
            const __m512 sum_ = _mm512_set1_ps(x##c->sum);                                         \
            y##c = _mm512_fmadd_ps(sum_, _mm512_mul_ps(_mm512_load_ps(v0->m), s_), y##c);          \
            z##c = _mm512_fmadd_ps(sum_, _mm512_mul_ps(_mm512_load_ps(v1->m), s_), z##c);          \
        }                                                                                          \
        x##c++;                                                                                    \
    }
#define SPREAD_TILE32(name, C, has_min)                                                            \
    static void name##_##C(const struct spread_call *v)                                            \
    {                                                                                              \
        const struct spread32 *v0 = v->w0, *v1 = v->w1;                                            \
        const uint8_t *ask = v->ask;                                                               \
        SPREAD_##C(SPREAD_LOAD_Y, _) for (int64_t g = 0; g < v->n; g++, v0++, v1++)                \
        {                                                                                          \
            SPREAD_##C(SPREAD_NONE, _) SPREAD_##C(SPREAD_ASK, g) SPREAD_##C(SPREAD_START, _)       \
                SPREAD_QUAD(C, v0->w[0], v1->w[0], 0) SPREAD_QUAD(C, v0->w[1], v1->w[1], 4)        \
                    SPREAD_QUAD(C, v0->w[2], v1->w[2], 8) SPREAD_QUAD(C, v0->w[3], v1->w[3], 12)   \
                        SPREAD_QUAD(C, v0->w[4], v1->w[4], 16)                                     \
                            SPREAD_QUAD(C, v0->w[5], v1->w[5], 20)                                 \
                                SPREAD_QUAD(C, v0->w[6], v1->w[6], 24)                             \
                                    SPREAD_QUAD(C, v0->w[7], v1->w[7], 28)                         \
                                        const __m512 d0 = _mm512_load_ps(v0->d),                   \
                                                     d1 = _mm512_load_ps(v1->d);                   \
            SPREAD_##C(SPREAD_FINISH, has_min)                                                     \
        }                                                                                          \
        SPREAD_##C(SPREAD_STORE_Y, v->total)                                                       \
    }

/* Both halves of a group have scales of their own. */
#define SPREAD_ADD_HALF(c, _)                                                              \
    {                                                                                      \
        const __m512 s_ = _mm512_set1_ps(x##c->scale);                                     \
        y##c = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a##c), _mm512_mul_ps(d0_, s_), y##c);    \
        z##c = _mm512_fmadd_ps(_mm512_cvtepi32_ps(b##c), _mm512_mul_ps(d1_, s_), z##c);    \
    }
#define SPREAD_HALF32(C, half, d)                                                                  \
    {                                                                                              \
        SPREAD_##C(SPREAD_START_HALF, half) SPREAD_QUAD(C, v0->w[4 * (half)], v1->w[4 * (half)],   \
                                                        16 * (half))                               \
            SPREAD_QUAD(C, v0->w[4 * (half) + 1], v1->w[4 * (half) + 1], 16 * (half) + 4)          \
                SPREAD_QUAD(C, v0->w[4 * (half) + 2], v1->w[4 * (half) + 2], 16 * (half) + 8)      \
                    SPREAD_QUAD(C, v0->w[4 * (half) + 3], v1->w[4 * (half) + 3], 16 * (half) + 12) \
                        const __m512 d0_ = _mm512_load_ps(v0->d),                                  \
                                     d1_ = _mm512_load_ps(v1->d);                                  \
        SPREAD_##C(SPREAD_ADD_HALF, _)                                                             \
    }
#define SPREAD_NEXT(c, _) x##c++;
#define SPREAD_TILE_HALVES(name, C)                                                                \
    static void name##_##C(const struct spread_call *v)                                            \
    {                                                                                              \
        const struct spread32 *v0 = v->w0, *v1 = v->w1;                                            \
        const uint8_t *ask = v->ask;                                                               \
        SPREAD_##C(SPREAD_LOAD_Y, _) for (int64_t g = 0; g < v->n; g++, v0++, v1++){               \
            SPREAD_##C(SPREAD_NONE, _) SPREAD_##C(SPREAD_ASK, g) SPREAD_HALF32(C, 0, d)            \
                SPREAD_HALF32(C, 1, m)                                                             \
                    SPREAD_##C(SPREAD_NEXT, _)} SPREAD_##C(SPREAD_STORE_Y, v->total)               \
    }

/* ---- super-blocks of 256 ---- */

#define SPREAD_X256(c, _)                                                                          \
    const struct kern_act256 *x##c = (const struct kern_act256 *)(const void *)v->x[c];
#define SPREAD_ZERO_T(c, _) __m512i s##c = _mm512_setzero_si512(), t##c = s##c;
#define SPREAD_BEGIN(c, _) __m512i a##c = _mm512_setzero_si512(), b##c = a##c;
#define SPREAD_ZERO(c, _) a##c = b##c = _mm512_setzero_si512();
/* Pairs of sums of q times pairs of 16 rows. */
#define SPREAD_SUMS(c, at)                                   \
    {                                                        \
        const __m512i q_ = spread_words(&x##c->at);          \
        s##c = spread_dot_words(s##c, w0_, q_);              \
        t##c = spread_dot_words(t##c, w1_, q_);              \
    }
#define SPREAD_PAIRS(C, line, at)                                                       \
    {                                                                                   \
        const __m512i w0_ = _mm512_load_si512(v0->line), w1_ = _mm512_load_si512(v1->line); \
        SPREAD_##C(SPREAD_SUMS, at)                                                     \
    }
#define SPREAD_PAIRS_4(C, line, sums)                                                              \
    SPREAD_PAIRS(C, line[0], sums[0])                                                              \
    SPREAD_PAIRS(C, line[1], sums[2]) SPREAD_PAIRS(C, line[2], sums[4])                            \
        SPREAD_PAIRS(C, line[3], sums[6])
#define SPREAD_PAIRS_0(C, line)
/* All bytes are 128 more. */
#define SPREAD_ALL_LESS(c, _) s##c = t##c = spread_words(&x##c->start128);
#define SPREAD_PAIRS_128(C, line) SPREAD_##C(SPREAD_ALL_LESS, _)
#define SPREAD_PAIRS_32(C, line) SPREAD_PAIRS_4(C, line, sum32)
#define SPREAD_PAIRS_16(C, line)                                                                   \
    SPREAD_PAIRS_4(C, line, sum16)                                                                 \
    SPREAD_PAIRS(C, line[4], sum16[8]) SPREAD_PAIRS(C, line[5], sum16[10])                         \
        SPREAD_PAIRS(C, line[6], sum16[12]) SPREAD_PAIRS(C, line[7], sum16[14])

/* Dots times sub-scales: of 32 bits, ... */
#define SPREAD_ADD(c, _)                                              \
    s##c = _mm512_add_epi32(s##c, _mm512_mullo_epi32(a##c, sub0_));   \
    t##c = _mm512_add_epi32(t##c, _mm512_mullo_epi32(b##c, sub1_));
/* ... or where they fit 16 as words, whose other half sub-scales have zeros for. */
#define SPREAD_ADD_WORDS(c, _)                        \
    s##c = spread_dot_words(s##c, a##c, sub0_);       \
    t##c = spread_dot_words(t##c, b##c, sub1_);
#define SPREAD_OF(C, l, DOT) SPREAD_QUAD_TO(C, v0->w[l], v1->w[l], 4 * (l), DOT)
#define SPREAD_HALF_TO(C, l, DOT)                                                                  \
    SPREAD_OF(C, l, DOT)                                                                           \
    SPREAD_OF(C, (l) + 1, DOT) SPREAD_OF(C, (l) + 2, DOT) SPREAD_OF(C, (l) + 3, DOT)
#define SPREAD_HALF(C, h, half) SPREAD_HALF_TO(C, 8 * (h) + 4 * (half), SPREAD_DOT)
#define SPREAD_SCALED(C, i, ADD)                                                                   \
    {                                                                                              \
        const __m512i sub0_ = _mm512_load_si512(v0->sub[i]),                                       \
                      sub1_ = _mm512_load_si512(v1->sub[i]);                                       \
        SPREAD_##C(ADD, _)                                                                         \
    }
/* A group whose sub-scale is for 32; for 32, and 16 fit words; for 16; one whose bytes are scaled
 * already. */
#define SPREAD_GROUP_32(C, h)                                                     \
    SPREAD_##C(SPREAD_BEGIN, _) SPREAD_HALF(C, h, 0) SPREAD_HALF(C, h, 1)         \
    SPREAD_SCALED(C, h, SPREAD_ADD)
#define SPREAD_GROUP_32W(C, h)                                                                   \
    SPREAD_##C(SPREAD_BEGIN, _) SPREAD_HALF(C, h, 0) SPREAD_SCALED(C, h, SPREAD_ADD_WORDS)        \
    SPREAD_##C(SPREAD_ZERO, _) SPREAD_HALF(C, h, 1) SPREAD_SCALED(C, h, SPREAD_ADD_WORDS)
#define SPREAD_GROUP_16(C, h)                                                                    \
    SPREAD_##C(SPREAD_BEGIN, _) SPREAD_HALF(C, h, 0) SPREAD_SCALED(C, 2 * (h), SPREAD_ADD)        \
    SPREAD_##C(SPREAD_ZERO, _) SPREAD_HALF(C, h, 1) SPREAD_SCALED(C, 2 * (h) + 1, SPREAD_ADD)
#define SPREAD_GROUP_WHOLE(C, h)                                     \
    SPREAD_HALF_TO(C, 8 * (h), SPREAD_DOT_WHOLE) SPREAD_HALF_TO(C, 8 * (h) + 4, SPREAD_DOT_WHOLE)

/* Else gcc may copy sums twice in each group. */
#define SPREAD_APART(c, _) __asm__ volatile("" : "+v"(s##c), "+v"(t##c));
#define SPREAD_FINISH_D(c, last)                                                                   \
    {                                                                                              \
        const __m512 s_ = _mm512_set1_ps(x##c->scale);                                             \
        const float *const to_ = v->y + SPREAD_PAIR * (c);                                         \
        const __m512 y0_ = begin ? _mm512_setzero_ps() : _mm512_load_ps(to_);                      \
        const __m512 y1_ = begin ? _mm512_setzero_ps() : _mm512_load_ps(to_ + KERN_PANEL);         \
        const __m512 sum0_ =                                                                       \
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(s##c), _mm512_mul_ps(d0, s_), y0_);                 \
        const __m512 sum1_ =                                                                       \
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(t##c), _mm512_mul_ps(d1, s_), y1_);                 \
        SPREAD_PUT(c, 0, last, sum0_)                                                              \
        SPREAD_PUT(c, 1, last, sum1_) s##c = t##c = _mm512_setzero_si512();                        \
    }
#define SPREAD_FINISH_MIN(c, last)                                                                 \
    {                                                                                              \
        const __m512 s_ = _mm512_set1_ps(x##c->scale);                                             \
        const float *const to_ = v->y + SPREAD_PAIR * (c);                                         \
        const __m512 y0_ = _mm512_load_ps(to_), y1_ = _mm512_load_ps(to_ + KERN_PANEL);            \
        const __m512 sum0_ =                                                                       \
            _mm512_fnmadd_ps(_mm512_cvtepi32_ps(s##c), _mm512_mul_ps(m0, s_), y0_);                \
        const __m512 sum1_ =                                                                       \
            _mm512_fnmadd_ps(_mm512_cvtepi32_ps(t##c), _mm512_mul_ps(m1, s_), y1_);                \
        SPREAD_PUT(c, 0, last, sum0_) SPREAD_PUT(c, 1, last, sum1_)                                \
    }
/* less, min: sums of how many q the pairs of spread256 are for, 0: there are none; less 128: of
 * all, without pairs. */
#define SPREAD_TILE256(name, C, GROUP, less_, min_)                                                \
    static void name##_##C(const struct spread_call *v)                                            \
    {                                                                                              \
        const struct spread256 *v0 = v->w0, *v1 = v->w1;                                           \
        const uint8_t *ask = v->ask;                                                               \
        SPREAD_##C(SPREAD_X256, _) for (int64_t b = 0; b < v->n; b++, v0++, v1++)                  \
        {                                                                                          \
            const bool begin = v->first && b == 0, end = v->total && b == v->n - 1;                \
            SPREAD_##C(SPREAD_ZERO_T, _) SPREAD_PAIRS_##less_(C, less)                             \
                SPREAD_##C(SPREAD_APART, _) for (int h = 0; h < 8; h++){                           \
                    SPREAD_##C(SPREAD_ASK, 6 * b + h) GROUP(C, h)} SPREAD_##C(SPREAD_APART, _)     \
            {                                                                                      \
                const __m512 d0 = _mm512_load_ps(v0->d), d1 = _mm512_load_ps(v1->d);               \
                SPREAD_##C(SPREAD_FINISH_D, end && !(min_))                                        \
            }                                                                                      \
            if (min_) {                                                                            \
                SPREAD_PAIRS_##min_(C, min) const __m512 m0 = _mm512_load_ps(v0->dmin),            \
                                                         m1 = _mm512_load_ps(v1->dmin);            \
                SPREAD_##C(SPREAD_FINISH_MIN, end)                                                 \
            }                                                                                      \
            SPREAD_##C(SPREAD_NEXT, _)                                                             \
        }                                                                                          \
    }

/* Tiles of all widths, and the function of a code. */
#define SPREAD_TILES32(name, has_min)                                                 \
    SPREAD_TILE32(name, 3, has_min) SPREAD_TILE32(name, 4, has_min)                   \
    SPREAD_TILE32(name, 5, has_min) SPREAD_TILE32(name, 6, has_min)
#define SPREAD_TILES_HALVES(name)                                                     \
    SPREAD_TILE_HALVES(name, 3) SPREAD_TILE_HALVES(name, 4)                           \
    SPREAD_TILE_HALVES(name, 5) SPREAD_TILE_HALVES(name, 6)
#define SPREAD_TILES256(name, GROUP, less, min)                                             \
    SPREAD_TILE256(name, 3, GROUP, less, min) SPREAD_TILE256(name, 4, GROUP, less, min)     \
    SPREAD_TILE256(name, 5, GROUP, less, min) SPREAD_TILE256(name, 6, GROUP, less, min)

#endif
