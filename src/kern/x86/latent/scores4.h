/* scores4 - an indexer's queries and keys in FP4: dots of groups of 32 codes as integers, sixteen
 * keys side by side.  Keys enter as unsigned bytes, 12 too large; sums begin with what that adds to
 * a dot. */
#ifndef INGLE_KERN_X86_LATENT_SCORES4_H
#define INGLE_KERN_X86_LATENT_SCORES4_H

#include "kern/latent.h"
#include "kern/x86/lanes.h"
#include <string.h>

#ifdef __AVX512F__
enum { HEADS4 = 4 };
#else
enum { HEADS4 = 2 };
#endif

/* Of sixteen keys four codes each; or their dots. */
#ifdef __AVX512F__
struct quads {
    __m512i a;
};
LANES_INLINE struct quads quads_load(const uint8_t *p)
{
    return (struct quads){_mm512_loadu_si512(p)};
}
LANES_INLINE struct quads quads_set(int32_t x)
{
    return (struct quads){_mm512_set1_epi32(x)};
}
#ifdef __AVX512VNNI__
LANES_INLINE struct quads quads_dot(struct quads sum, struct quads key, struct quads q)
{
    return (struct quads){_mm512_dpbusd_epi32(sum.a, key.a, q.a)};
}
#else
LANES_INLINE struct quads quads_dot(struct quads sum, struct quads key, struct quads q)
{
    return (struct quads){_mm512_add_epi16(sum.a, _mm512_maddubs_epi16(key.a, q.a))};
}
LANES_INLINE struct quads quads_fold(struct quads sum, struct quads begin)
{
    return (struct quads){
        _mm512_add_epi32(begin.a, _mm512_madd_epi16(sum.a, _mm512_set1_epi16(1)))};
}
#endif
LANES_INLINE struct v16 quads_values(struct quads x)
{
    return (struct v16){_mm512_cvtepi32_ps(x.a)};
}
#else
struct quads {
    __m256i a, b;
};
LANES_INLINE struct quads quads_load(const uint8_t *p)
{
    return (struct quads){_mm256_loadu_si256((const __m256i *)(const void *)p),
                          _mm256_loadu_si256((const __m256i *)(const void *)(p + 32))};
}
LANES_INLINE struct quads quads_set(int32_t x)
{
    return (struct quads){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
#ifdef __AVXVNNI__
LANES_INLINE struct quads quads_dot(struct quads sum, struct quads key, struct quads q)
{
    return (struct quads){_mm256_dpbusd_avx_epi32(sum.a, key.a, q.a),
                          _mm256_dpbusd_avx_epi32(sum.b, key.b, q.b)};
}
#else
LANES_INLINE struct quads quads_dot(struct quads sum, struct quads key, struct quads q)
{
    return (struct quads){_mm256_add_epi16(sum.a, _mm256_maddubs_epi16(key.a, q.a)),
                          _mm256_add_epi16(sum.b, _mm256_maddubs_epi16(key.b, q.b))};
}
LANES_INLINE struct quads quads_fold(struct quads sum, struct quads begin)
{
    const __m256i one = _mm256_set1_epi16(1);
    return (struct quads){_mm256_add_epi32(begin.a, _mm256_madd_epi16(sum.a, one)),
                          _mm256_add_epi32(begin.b, _mm256_madd_epi16(sum.b, one))};
}
#endif
LANES_INLINE struct v16 quads_values(struct quads x)
{
    return (struct v16){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
#endif

LANES_INLINE int32_t word_at(const uint8_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}
LANES_INLINE float float_at(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* A group's dots begin with `begin`, which sums of 16 bits get when they are folded: 8 pairs of 24
 * * 12 at most. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
LANES_INLINE struct quads dots_begin(int32_t begin)
{
    return quads_set(begin);
}
LANES_INLINE struct quads dots_end(struct quads x, int32_t begin)
{
    (void)begin;
    return x;
}
#else
LANES_INLINE struct quads dots_begin(int32_t begin)
{
    (void)begin;
    return quads_set(0);
}
LANES_INLINE struct quads dots_end(struct quads x, int32_t begin)
{
    return quads_fold(x, quads_set(begin));
}
#endif

/* sum[p] takes in n_heads heads: q, as kern_query4() makes it, against quads [n_tiles][width /
 * 4][16][4] and scale [n_tiles][width / 32][16]. */
LANES_INLINE void take4(int n_heads, int n_tiles, const uint8_t *quads, const float *scale,
                        int64_t width, const uint8_t *q, const float *weight, struct v16 *sum)
{
    const int64_t head = (int64_t)kern_query4_bytes(width), groups = width / KERN_ROW_GROUP4;
    struct v16 dot[HEADS4][2];
    LANES_UNROLL
    for (int h = 0; h < n_heads; h++) {
        LANES_UNROLL
        for (int p = 0; p < n_tiles; p++)
            dot[h][p] = v_zero();
    }
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *begin = q + width + 4 * (groups + g), *key = quads + g * 8 * 64;
        struct quads d[HEADS4][2];
        LANES_UNROLL
        for (int h = 0; h < n_heads; h++) {
            LANES_UNROLL
            for (int p = 0; p < n_tiles; p++)
                d[h][p] = dots_begin(word_at(begin + h * head));
        }
        LANES_UNROLL
        for (int i = 0; i < 8; i++) {
            struct quads k[2];
            LANES_UNROLL
            for (int p = 0; p < n_tiles; p++)
                k[p] = quads_load(key + (p * width / 4 + i) * 64);
            LANES_UNROLL
            for (int h = 0; h < n_heads; h++) {
                const struct quads x =
                    quads_set(word_at(q + h * head + g * KERN_ROW_GROUP4 + 4 * i));
                LANES_UNROLL
                for (int p = 0; p < n_tiles; p++)
                    d[h][p] = quads_dot(d[h][p], k[p], x);
            }
        }
        LANES_UNROLL
        for (int h = 0; h < n_heads; h++) {
            const struct v16 by = v_set(float_at(q + h * head + width + 4 * g));
            LANES_UNROLL
            for (int p = 0; p < n_tiles; p++) {
                const struct v16 x = quads_values(dots_end(d[h][p], word_at(begin + h * head)));
                dot[h][p] = v_fma(v_mul(x, v_load(scale + (p * groups + g) * KERN_ROW_TILE)), by,
                                  dot[h][p]);
            }
        }
    }
    LANES_UNROLL
    for (int h = 0; h < n_heads; h++) {
        LANES_UNROLL
        for (int p = 0; p < n_tiles; p++)
            sum[p] = v_fma(v_set(weight[h]), v_max(dot[h][p], v_zero()), sum[p]);
    }
}

#endif
