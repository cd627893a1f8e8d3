/*
 * lanes - sixteen floats, as one 512-bit register or two of 256 bits, whichever the file is
 * compiled for.  Kernels written on top give the same bits on both, and those of plain C:
 * the operations are the correctly rounded ones and folds go in halves.
 */
#ifndef INGLE_KERN_X86_LANES_H
#define INGLE_KERN_X86_LANES_H

#include "base/attr.h"
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define LANES_INLINE static inline __attribute__((always_inline))

/* For loops of a few steps over registers.  A sanitizer's checks in them, unrolled, would
 * take minutes to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LANES_UNROLL
#elif defined(__clang__)
#define LANES_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LANES_UNROLL _Pragma("GCC unroll 16")
#endif

#ifdef __AVX512F__

#define LANES_SET(name) name##_avx512

struct v16 {
    __m512 a;
};
struct m16 { /* one bit a lane */
    __mmask16 m;
};

#define LANES_OP1(name, op)                                                                        \
    LANES_INLINE struct v16 name(struct v16 x) { return (struct v16){_mm512_##op(x.a)}; }
#define LANES_OP2(name, op)                                                                        \
    LANES_INLINE struct v16 name(struct v16 x, struct v16 y)                                       \
    {                                                                                              \
        return (struct v16){_mm512_##op(x.a, y.a)};                                                \
    }
#define LANES_OP3(name, op)                                                                        \
    LANES_INLINE struct v16 name(struct v16 x, struct v16 y, struct v16 z)                         \
    {                                                                                              \
        return (struct v16){_mm512_##op(x.a, y.a, z.a)};                                           \
    }

LANES_INLINE struct v16 v_set(float x)
{
    return (struct v16){_mm512_set1_ps(x)};
}
LANES_INLINE struct v16 v_zero(void)
{
    return (struct v16){_mm512_setzero_ps()};
}
LANES_INLINE struct v16 v_load(const float *p)
{
    return (struct v16){_mm512_loadu_ps(p)};
}
LANES_INLINE void v_store(float *p, struct v16 v)
{
    _mm512_storeu_ps(p, v.a);
}
LANES_INLINE struct v16 v_bits(uint32_t u)
{
    return (struct v16){_mm512_castsi512_ps(_mm512_set1_epi32((int)u))};
}
LANES_INLINE struct m16 v_greater(struct v16 x, struct v16 y)
{
    return (struct m16){_mm512_cmp_ps_mask(x.a, y.a, _CMP_GT_OQ)};
}
LANES_INLINE struct v16 v_choose(struct m16 m, struct v16 yes, struct v16 no)
{
    return (struct v16){_mm512_mask_blend_ps(m.m, no.a, yes.a)};
}
LANES_INLINE int v_mask(struct m16 m)
{
    return m.m;
}
/* lanes [0, n) */
LANES_INLINE struct m16 v_first(int64_t n)
{
    return (struct m16){(__mmask16)(n >= 16 ? 0xffff : n > 0 ? (1 << n) - 1 : 0)};
}

/* in x and not in y */
LANES_INLINE struct m16 v_without(struct m16 x, struct m16 y)
{
    return (struct m16){(__mmask16)(x.m & ~y.m)};
}

LANES_INLINE struct v16 v_load_n(const float *p, int64_t n)
{
    return (struct v16){_mm512_maskz_loadu_ps(v_first(n).m, p)};
}
LANES_INLINE void v_store_n(float *p, struct v16 v, int64_t n)
{
    _mm512_mask_storeu_ps(p, v_first(n).m, v.a);
}

/* not x < y, not x > y: of NaN, too */
LANES_INLINE struct m16 v_not_less(struct v16 x, struct v16 y)
{
    return (struct m16){_mm512_cmp_ps_mask(x.a, y.a, _CMP_NLT_UQ)};
}
LANES_INLINE struct m16 v_not_greater(struct v16 x, struct v16 y)
{
    return (struct m16){_mm512_cmp_ps_mask(x.a, y.a, _CMP_NGT_UQ)};
}
/* x where not m, elsewhere 0 */
LANES_INLINE struct v16 v_unless(struct m16 m, struct v16 x)
{
    return (struct v16){_mm512_mask_blend_ps(m.m, x.a, _mm512_setzero_ps())};
}
/* x + y where m, elsewhere x; x is no -0 */
LANES_INLINE struct v16 v_add_where(struct m16 m, struct v16 x, struct v16 y)
{
    return (struct v16){_mm512_mask_add_ps(x.a, m.m, x.a, y.a)};
}

/* p 2^n where m, elsewhere 0, for n = t - POLY_ROUND between -126 and 127 and normal results */
LANES_INLINE struct v16 v_scale2_where(struct m16 m, struct v16 p, struct v16 n, struct v16 t)
{
    (void)t;
    return (struct v16){_mm512_maskz_scalef_ps(m.m, p.a, n.a)};
}

/* p 2^n, rounded once, for n = t - POLY_ROUND between -256 and 256 */
LANES_INLINE struct v16 v_scale2(struct v16 p, struct v16 n, struct v16 t)
{
    (void)t;
    return (struct v16){_mm512_scalef_ps(p.a, n.a)};
}

/* Of neighbours (e, o): (e, e), (o, o), (o, e); and (x - y, x + y), rounded once. */
LANES_INLINE struct v16 v_evens(struct v16 x)
{
    return (struct v16){_mm512_moveldup_ps(x.a)};
}
LANES_INLINE struct v16 v_odds(struct v16 x)
{
    return (struct v16){_mm512_movehdup_ps(x.a)};
}
LANES_INLINE struct v16 v_swapped(struct v16 x)
{
    return (struct v16){_mm512_permute_ps(x.a, 0xb1)};
}
LANES_INLINE struct v16 v_sub_add(struct v16 x, struct v16 y)
{
    return (struct v16){_mm512_fmaddsub_ps(x.a, _mm512_set1_ps(1.0f), y.a)};
}

/* {e0, o0, e1, o1, ...} of 32 to the even and the odd ones */
LANES_INLINE void v_deal(struct v16 x, struct v16 y, struct v16 *even, struct v16 *odd)
{
    const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    even->a = _mm512_permutex2var_ps(x.a, e, y.a);
    odd->a = _mm512_permutex2var_ps(x.a, _mm512_add_epi32(e, _mm512_set1_epi32(1)), y.a);
}

LANES_INLINE __m256 lanes_low(struct v16 x)
{
    return _mm512_castps512_ps256(x.a);
}
LANES_INLINE __m256 lanes_high(struct v16 x)
{
    return _mm512_extractf32x8_ps(x.a, 1);
}

LANES_INLINE struct v16 v_from_f16(const uint16_t *p)
{
    return (struct v16){_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p))};
}
LANES_INLINE struct v16 v_from_bf16(const uint16_t *p)
{
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return (struct v16){_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}
LANES_INLINE struct v16 v_from_i8(const int8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (struct v16){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b))};
}

#else

#define LANES_SET(name) name##_avx2

struct v16 {
    __m256 a, b;
};
struct m16 { /* all bits of a lane */
    __m256 a, b;
};

#define LANES_OP1(name, op)                                                                        \
    LANES_INLINE struct v16 name(struct v16 x)                                                     \
    {                                                                                              \
        return (struct v16){_mm256_##op(x.a), _mm256_##op(x.b)};                                   \
    }
#define LANES_OP2(name, op)                                                                        \
    LANES_INLINE struct v16 name(struct v16 x, struct v16 y)                                       \
    {                                                                                              \
        return (struct v16){_mm256_##op(x.a, y.a), _mm256_##op(x.b, y.b)};                         \
    }
#define LANES_OP3(name, op)                                                                        \
    LANES_INLINE struct v16 name(struct v16 x, struct v16 y, struct v16 z)                         \
    {                                                                                              \
        return (struct v16){_mm256_##op(x.a, y.a, z.a), _mm256_##op(x.b, y.b, z.b)};               \
    }

LANES_INLINE struct v16 v_set(float x)
{
    return (struct v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
LANES_INLINE struct v16 v_zero(void)
{
    return (struct v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
LANES_INLINE struct v16 v_load(const float *p)
{
    return (struct v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
LANES_INLINE void v_store(float *p, struct v16 v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
LANES_INLINE struct v16 v_bits(uint32_t u)
{
    __m256 v = _mm256_castsi256_ps(_mm256_set1_epi32((int)u));
    return (struct v16){v, v};
}
LANES_INLINE struct m16 v_greater(struct v16 x, struct v16 y)
{
    return (struct m16){_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)};
}
LANES_INLINE struct v16 v_choose(struct m16 m, struct v16 yes, struct v16 no)
{
    return (struct v16){_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
LANES_INLINE int v_mask(struct m16 m)
{
    return _mm256_movemask_ps(m.a) | _mm256_movemask_ps(m.b) << 8;
}
LANES_INLINE struct m16 v_first(int64_t n)
{
    const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i m = _mm256_set1_epi32((int)n);
    return (struct m16){
        _mm256_castsi256_ps(_mm256_cmpgt_epi32(m, i)),
        _mm256_castsi256_ps(_mm256_cmpgt_epi32(m, _mm256_add_epi32(i, _mm256_set1_epi32(8))))};
}

LANES_INLINE struct m16 v_without(struct m16 x, struct m16 y)
{
    return (struct m16){_mm256_andnot_ps(y.a, x.a), _mm256_andnot_ps(y.b, x.b)};
}

LANES_INLINE struct v16 v_load_n(const float *p, int64_t n)
{
    if (LIKELY(n >= 16))
        return v_load(p);
    struct m16 m = v_first(n);
    return (struct v16){_mm256_maskload_ps(p, _mm256_castps_si256(m.a)),
                        _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b))};
}
LANES_INLINE void v_store_n(float *p, struct v16 v, int64_t n)
{
    if (LIKELY(n >= 16)) {
        v_store(p, v);
        return;
    }
    struct m16 m = v_first(n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), v.a);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), v.b);
}

LANES_INLINE struct m16 v_not_less(struct v16 x, struct v16 y)
{
    return (struct m16){_mm256_cmp_ps(x.a, y.a, _CMP_NLT_UQ), _mm256_cmp_ps(x.b, y.b, _CMP_NLT_UQ)};
}
LANES_INLINE struct m16 v_not_greater(struct v16 x, struct v16 y)
{
    return (struct m16){_mm256_cmp_ps(x.a, y.a, _CMP_NGT_UQ), _mm256_cmp_ps(x.b, y.b, _CMP_NGT_UQ)};
}
LANES_INLINE struct v16 v_unless(struct m16 m, struct v16 x)
{
    return (struct v16){_mm256_andnot_ps(m.a, x.a), _mm256_andnot_ps(m.b, x.b)};
}
LANES_INLINE struct v16 v_add_where(struct m16 m, struct v16 x, struct v16 y)
{
    return (struct v16){_mm256_add_ps(x.a, _mm256_and_ps(m.a, y.a)),
                        _mm256_add_ps(x.b, _mm256_and_ps(m.b, y.b))};
}

/* 2^n as one factor, for an exponent of 1 to 254. */
LANES_INLINE __m256 lanes_scale2_where(__m256 m, __m256 p, __m256 t)
{
    const __m256i n =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(m, _mm256_mul_ps(p, _mm256_castsi256_ps(n)));
}
LANES_INLINE struct v16 v_scale2_where(struct m16 m, struct v16 p, struct v16 n, struct v16 t)
{
    (void)n;
    return (struct v16){lanes_scale2_where(m.a, p.a, t.a), lanes_scale2_where(m.b, p.b, t.b)};
}

/* As kern_exp(): 2^n as two factors. */
LANES_INLINE __m256 lanes_scale2(__m256 p, __m256 t)
{
    const __m256i one = _mm256_set1_epi32(1);
    __m256i k = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(0x4b400000 - 256));
    __m256i half = _mm256_srli_epi32(k, 1), rest = _mm256_sub_epi32(k, half);
    half = _mm256_slli_epi32(_mm256_sub_epi32(half, one), 23);
    rest = _mm256_slli_epi32(_mm256_sub_epi32(rest, one), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(half)), _mm256_castsi256_ps(rest));
}
LANES_INLINE struct v16 v_scale2(struct v16 p, struct v16 n, struct v16 t)
{
    (void)n;
    return (struct v16){lanes_scale2(p.a, t.a), lanes_scale2(p.b, t.b)};
}

LANES_INLINE __m256 lanes_deal(__m256 x, __m256 y, bool odd)
{
    __m256 s = odd ? _mm256_shuffle_ps(x, y, 0xdd) : _mm256_shuffle_ps(x, y, 0x88);
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(s), 0xd8));
}
LANES_INLINE struct v16 v_evens(struct v16 x)
{
    return (struct v16){_mm256_moveldup_ps(x.a), _mm256_moveldup_ps(x.b)};
}
LANES_INLINE struct v16 v_odds(struct v16 x)
{
    return (struct v16){_mm256_movehdup_ps(x.a), _mm256_movehdup_ps(x.b)};
}
LANES_INLINE struct v16 v_swapped(struct v16 x)
{
    return (struct v16){_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)};
}
LANES_INLINE struct v16 v_sub_add(struct v16 x, struct v16 y)
{
    return (struct v16){_mm256_addsub_ps(x.a, y.a), _mm256_addsub_ps(x.b, y.b)};
}

LANES_INLINE void v_deal(struct v16 x, struct v16 y, struct v16 *even, struct v16 *odd)
{
    *even = (struct v16){lanes_deal(x.a, x.b, false), lanes_deal(y.a, y.b, false)};
    *odd = (struct v16){lanes_deal(x.a, x.b, true), lanes_deal(y.a, y.b, true)};
}

LANES_INLINE __m256 lanes_low(struct v16 x)
{
    return x.a;
}
LANES_INLINE __m256 lanes_high(struct v16 x)
{
    return x.b;
}

LANES_INLINE struct v16 v_from_f16(const uint16_t *p)
{
    const __m128i *h = (const __m128i *)(const void *)p;
    return (struct v16){_mm256_cvtph_ps(_mm_loadu_si128(h)),
                        _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
LANES_INLINE __m256 lanes_from_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
LANES_INLINE struct v16 v_from_bf16(const uint16_t *p)
{
    const __m128i *h = (const __m128i *)(const void *)p;
    return (struct v16){lanes_from_bf16(_mm_loadu_si128(h)),
                        lanes_from_bf16(_mm_loadu_si128(h + 1))};
}
LANES_INLINE struct v16 v_from_i8(const int8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (struct v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}

#endif

LANES_OP1(v_sqrt, sqrt_ps)
LANES_OP2(v_add, add_ps)
LANES_OP2(v_sub, sub_ps)
LANES_OP2(v_mul, mul_ps)
LANES_OP2(v_div, div_ps)
LANES_OP2(v_max, max_ps) /* x > y ? x : y */
LANES_OP2(v_min, min_ps) /* x < y ? x : y */
LANES_OP2(v_and, and_ps)
LANES_OP2(v_or, or_ps)
LANES_OP3(v_fma, fmadd_ps)   /* x y + z, rounded once */
LANES_OP3(v_fnma, fnmadd_ps) /* z - x y, rounded once */

LANES_INLINE void v_prefetch(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

LANES_INLINE void v_prefetch_far(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

/* lanes [from, to), of which any part may be outside */
LANES_INLINE struct m16 v_range(int64_t from, int64_t to)
{
    return v_without(v_first(to), v_first(from));
}

LANES_INLINE float v_lane0(struct v16 x)
{
    return _mm256_cvtss_f32(lanes_low(x));
}

LANES_INLINE float v_fold_sum(struct v16 x)
{
    __m256 e = _mm256_add_ps(lanes_low(x), lanes_high(x));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

LANES_INLINE float v_fold_max(struct v16 x)
{
    __m256 e = _mm256_max_ps(lanes_high(x), lanes_low(x));
    __m128 q = _mm_max_ps(_mm256_extractf128_ps(e, 1), _mm256_castps256_ps128(e));
    q = _mm_max_ps(_mm_movehl_ps(q, q), q);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(q), q));
}

#endif
