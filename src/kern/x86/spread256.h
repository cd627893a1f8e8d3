/*
 * spread256 - the tiles of spread.h on 256-bit vectors with VPDPBUSD: the two panels one after the other, each of
 * two vectors of 8 rows, times three to six rows of activations.  Six make twelve dots that do not wait for each
 * other, which with a quad and the activations fill the registers; all other sums are in memory.
 *
 * Dots run on two ports, on which conversions and multiplications run, too, but not additions alone.  Dots
 * therefore begin with the bits of the float MAGIC: from within 2^22 of zero they are MAGIC + dot as floats, and
 * what is done with them is exact as long as it is a whole number below 2^24.  What the bytes' bias adds is in these
 * beginnings, too.
 *
 * w of spread32 is what a tile's START wants.  In spread256, w is the codes and sub, as floats, the sub-scales, with
 * GROUP_32 and GROUP_16H below behind the first eight of a half MAGIC - MAGIC * sub-scale; less is not used.
 */
#ifndef INGLE_KERN_X86_SPREAD256_H
#define INGLE_KERN_X86_SPREAD256_H

#include "kern/x86/panel256.h"
#include "kern/x86/spread.h"

#define MAGIC 12582912.0f
enum { MAGIC_BITS = 0x4B400000 };

/* ---- loads whose order is kept ---- */

struct spread_line { uint8_t b[32]; };
struct spread_word { uint8_t b[4]; };
static ATTR_INLINE __m256i spread_load(const uint8_t *at)
{
    __m256i v;
    __asm__ volatile("vmovdqa %1, %0" : "=x"(v) : "m"(*(const struct spread_line *)(const void *)at));
    return v;
}
/* Four bytes, in every lane. */
static ATTR_INLINE __m256i spread_words(const void *at)
{
    __m256i v;
    __asm__ volatile("vpbroadcastd %1, %0" : "=x"(v) : "m"(*(const struct spread_word *)at));
    return v;
}
static ATTR_INLINE __m256i spread_dot(__m256i a, __m256i w, __m256i x)
{
#ifdef __AVXVNNI__
    __asm__ volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(a) : "x"(w), "x"(x));
#else
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(a) : "v"(w), "v"(x));
#endif
    return a;
}
static ATTR_INLINE __m256i spread_dot_words(__m256i a, __m256i w, __m256i x)
{
#ifdef __AVXVNNI__
    __asm__ volatile("%{vex%} vpdpwssd %2, %1, %0" : "+x"(a) : "x"(w), "x"(x));
#else
    __asm__ volatile("vpdpwssd %2, %1, %0" : "+v"(a) : "v"(w), "v"(x));
#endif
    return a;
}
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
        a##c = spread_dot(a##c, w0_, q_);                \
        b##c = spread_dot(b##c, w1_, q_);                \
    }
/* Quad `line` of a panel; activations begin at q + at.  Weights are asked for in every second one, because each
 * quad takes two turns. */
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

#define SPREAD_X32(c, _) const struct kern_act32 *x##c = (const struct kern_act32 *)(const void *)v->x[c];
#define SPREAD_NEXT(c, _) x##c++;
/* Biases of 0, 8, 128, and 128 in one half. */
#define SPREAD_START0(c, _) a##c = b##c = magic_bits();
#define SPREAD_START8(c, _) a##c = b##c = _mm256_add_epi32(spread_words(&x##c->start8), magic_bits());
#define SPREAD_START128(c, _) a##c = b##c = _mm256_add_epi32(spread_words(&x##c->start128), magic_bits());
#define SPREAD_START_HALF(c, half) \
    a##c = b##c = spread_dot_words(magic_bits(), spread_words(x##c->pairs[half]), _mm256_set1_epi16(-128));
/* y += (float)dot * (d * s) */
#define SPREAD_ADD_D(c, _)                                                                            \
    {                                                                                                 \
        const __m256 s_ = _mm256_set1_ps(x##c->scale);                                                \
        float *const to_ = y + SPREAD_PAIR * (c);                                                     \
        _mm256_store_ps(to_, _mm256_fmadd_ps(spread_whole(a##c), _mm256_mul_ps(d0_, s_), _mm256_load_ps(to_))); \
        _mm256_store_ps(to_ + 8, _mm256_fmadd_ps(spread_whole(b##c), _mm256_mul_ps(d1_, s_), _mm256_load_ps(to_ + 8))); \
    }
/* y += sum of q * (m * s) */
#define SPREAD_ADD_M(c, _)                                                                            \
    {                                                                                                 \
        const __m256 s_ = _mm256_set1_ps(x##c->scale), sum_ = _mm256_set1_ps(x##c->sum);              \
        float *const to_ = y + SPREAD_PAIR * (c);                                                     \
        _mm256_store_ps(to_, _mm256_fmadd_ps(sum_, _mm256_mul_ps(d0_, s_), _mm256_load_ps(to_)));     \
        _mm256_store_ps(to_ + 8, _mm256_fmadd_ps(sum_, _mm256_mul_ps(d1_, s_), _mm256_load_ps(to_ + 8))); \
    }
#define SPREAD_SCALED(C, ADD, scales)                                                                 \
    {                                                                                                 \
        const __m256 d0_ = _mm256_load_ps(scales), d1_ = _mm256_load_ps((scales) + 8);                \
        SPREAD_##C(ADD, _)                                                                            \
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
    }
#define SPREAD_TILES32(name, GROUP, START, has_min)                                                        \
    SPREAD_TILE32(name, 3, GROUP, START, has_min) SPREAD_TILE32(name, 4, GROUP, START, has_min)            \
    SPREAD_TILE32(name, 5, GROUP, START, has_min) SPREAD_TILE32(name, 6, GROUP, START, has_min)

#endif
