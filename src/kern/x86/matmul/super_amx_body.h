/*
 * super_amx_body - products on tiles of packed codes with super-blocks of 256; included once for
 * real tiles and once for emulated ones, which defines KERNEL_NAME(name) to be theirs.
 */
#ifndef INGLE_KERN_X86_MATMUL_SUPER_AMX_BODY_H
#define INGLE_KERN_X86_MATMUL_SUPER_AMX_BODY_H

#include "kern/x86/matmul/quads512.h"
#include "kern/x86/matmul/super_tiles.h"

static inline __m512i words(int v) { return _mm512_set1_epi16((short)v); }
static inline __m128i bytes16(const void *at) { return _mm_loadu_si128((const __m128i *)at); }
/* 16 bytes, one a lane. */
static inline __m512i lanes(const uint8_t *at) { return _mm512_cvtepu8_epi32(bytes16(at)); }
static inline __m512i twice(__m512i v) { return _mm512_or_si512(v, _mm512_slli_epi32(v, 16)); }
static inline void put_halves(float *to, const uint8_t *at)
{
    _mm512_store_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at)));
}

/* A code times a small number is a byte, so that two fit a multiplication of 16 bits: here the
 * low and the high bits of a sub-scale of 6. */
struct split {
    __m512i low, high;
};
static ATTR_INLINE struct split split_of(const uint8_t *at, int n_low)
{
    const __m512i sub = twice(lanes(at));
    return (struct split){_mm512_and_si512(sub, words((1 << n_low) - 1)),
                          _mm512_srl_epi16(sub, _mm_cvtsi32_si128(n_low))};
}
static ATTR_INLINE void put_split(struct planes *e, int at, __m512i v, struct split s)
{
    _mm512_store_si512(e->low + 64 * at, _mm512_mullo_epi16(v, s.low));
    _mm512_store_si512(e->high + 64 * at, _mm512_mullo_epi16(v, s.high));
}
static ATTR_INLINE void put_times(struct planes *e, int at, __m512i v, __m512i sub)
{
    _mm512_store_si512(e->low + 64 * at, _mm512_mullo_epi16(v, sub));
}

/* Signed sub-scales of 8 bits times the codes less a bias: words of the even and of the odd codes,
 * whose bytes then change places. */
struct whole {
    __m512i even, odd, bias;
};
static ATTR_INLINE struct whole whole_of(const uint8_t *at, int bias)
{
    const __m512i even = twice(lanes(at));
    const __m512i sub =
        _mm512_and_si512(_mm512_cvtepi8_epi32(bytes16(at)), _mm512_set1_epi32(0xFFFF));
    return (struct whole){even, _mm512_slli_epi16(even, 8),
                          _mm512_mullo_epi16(twice(sub), words(bias))};
}
static ATTR_INLINE void put_whole(struct planes *e, int at, __m512i v, struct whole s)
{
    const __mmask64 is_odd = 0xAAAAAAAAAAAAAAAA;
    const __m512i other = _mm512_broadcast_i32x4(
        _mm_set_epi8(14, 15, 12, 13, 10, 11, 8, 9, 6, 7, 4, 5, 2, 3, 0, 1));
    const __m512i even = _mm512_sub_epi16(_mm512_maddubs_epi16(v, s.even), s.bias);
    const __m512i odd = _mm512_sub_epi16(_mm512_maddubs_epi16(v, s.odd), s.bias);
    _mm512_store_si512(e->low + 64 * at, _mm512_mask_shuffle_epi8(even, is_odd, odd, other));
    _mm512_store_si512(e->high + 64 * at, _mm512_mask_shuffle_epi8(odd, ~is_odd, even, other));
}

/* sub * (4 - code), of 6 and 3 bits, is a byte, and |sub| times the code or 7 less the code one
 * without a sign. */
struct small {
    __m512i size, off, flip;
};
static ATTR_INLINE struct small small_of(const uint8_t *at)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    /* bytes of a lane */
    const __m512i four = _mm512_mullo_epi32(lane, _mm512_set1_epi32(0x01010101));
    const __m512i sub = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes16(at)), four);
    const __mmask64 minus = _mm512_movepi8_mask(sub);
    const __m512i size = _mm512_abs_epi8(sub),
                  three = _mm512_add_epi8(_mm512_add_epi8(size, size), size);
    return (struct small){_mm512_and_si512(size, words(255)),
                          _mm512_mask_add_epi8(three, minus, three, size),
                          _mm512_maskz_mov_epi8(~minus, quad_bytes(7))};
}
static ATTR_INLINE void put_small(struct planes *e, int at, __m512i v, struct small s)
{
    const __m512i product = _mm512_mullo_epi16(_mm512_xor_si512(v, s.flip), s.size);
    _mm512_store_si512(e->low + 64 * at, _mm512_sub_epi8(product, s.off));
}
static ATTR_INLINE void put_less(struct planes *e, int at, __m512i v, __m512i bias)
{
    _mm512_store_si512(e->low + 64 * at, _mm512_sub_epi8(v, bias));
}

/* Minimums of two groups, side by side. */
static inline void put_min(struct scales *to, int pair, __m512i first, __m512i second)
{
    _mm512_store_si512(to->min[pair], _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
}

/* GROUP_ does group h, at g; scales, at s, follow all of them, d after n_sub bytes. */
#define EXPAND(name, bits, after, n_sub, has_min, GROUP_)                                          \
    static ATTR_NOINLINE void expand_##name(struct block from, struct block ahead,                 \
                                            struct planes *e, struct scales *to)                   \
    {                                                                                              \
        const uint8_t *chunk = from.chunk, *s = chunk + KERN_SCALES_AT(bits, 8);                   \
        for (int h = 0; h < 8; h++) {                                                              \
            const uint8_t *g = chunk + KERN_GROUP_BYTES(bits) * h;                                 \
            if (ahead.chunk)                                                                       \
                fetch(ahead.chunk, h, CHUNK(bits, after) / 64);                                    \
            GROUP_                                                                                 \
        }                                                                                          \
        put_halves(to->d, s + (n_sub));                                                            \
        if (has_min)                                                                               \
            put_halves(to->dmin, s + (n_sub) + 32);                                                \
    }

#define SPLIT(quad, n_low)                                       \
    const struct split a = split_of(s + 16 * h, n_low);          \
    FIRST_HALF(put_split, quad, a) LAST_HALF(put_split, quad, a) \
    if (h % 2)                                                   \
        put_min(to, h / 2, lanes(s + 112 + 16 * h), lanes(s + 128 + 16 * h));
EXPAND(q4_k, 4, SUB8_MIN, 256, true, SPLIT(quad_4, 4))
EXPAND(q5_k, 5, SUB8_MIN, 256, true, SPLIT(quad_5, 3))
#define WHOLE(quad, bias, sub_a, sub_b)                                                  \
    const struct whole a = whole_of(s + (sub_a), bias), b = whole_of(s + (sub_b), bias); \
    FIRST_HALF(put_whole, quad, a) LAST_HALF(put_whole, quad, b)
EXPAND(q6_k, 6, SUB16, 256, false, WHOLE(quad_6, 32, 32 * h, 32 * h + 16))
EXPAND(iq4_xs, 4, SUB8, 128, false, WHOLE(quad_nl4, 128, 16 * h, 16 * h))
#define SMALL(quad)                                                                \
    const struct small a = small_of(s + 32 * h), b = small_of(s + 32 * h + 16);    \
    FIRST_HALF(put_small, quad, a) LAST_HALF(put_small, quad, b)
EXPAND(q3_k, 3, SUB16, 256, false, SMALL(quad_3))
#define NIBBLES(quad)                                                                              \
    const __m512i a = lanes(s + 32 * h), b = lanes(s + 32 * h + 16), low = _mm512_set1_epi32(15);  \
    const __m512i sub_a = twice(_mm512_and_si512(a, low)),                                         \
                  sub_b = twice(_mm512_and_si512(b, low));                                         \
    FIRST_HALF(put_times, quad, sub_a)                                                             \
    LAST_HALF(put_times, quad, sub_b)                                                              \
        put_min(to, h, _mm512_srli_epi32(a, 4), _mm512_srli_epi32(b, 4));
EXPAND(q2_k, 2, SUB16_NIB, 256, true, NIBBLES(quad_2))
#define LESS(quad, bias)                                                                           \
    FIRST_HALF(put_less, quad, quad_bytes(bias)) LAST_HALF(put_less, quad, quad_bytes(bias))
EXPAND(tq2_0, 2, NONE, 0, false, LESS(quad_2, 1))

void KERNEL_NAME(act_tiles256)(const struct kern_act *a, int64_t r0, int64_t r1)
{
    tiles_write(a, r0, r1);
}

KERNEL(q4_k, .chunk_bytes = CHUNK(4, SUB8_MIN), .n_parts = 1, .n_planes = 2, .shift = 4, .n_min = 4)
KERNEL(q5_k, .chunk_bytes = CHUNK(5, SUB8_MIN), .n_parts = 1, .n_planes = 2, .shift = 3, .n_min = 4)
FORM(bytes, .n_parts = 1, .n_planes = 2, .shift = 8, .high_signed = true)
KERNEL_OF(q6_k, bytes, CHUNK(6, SUB16))
KERNEL_OF(iq4_xs, bytes, CHUNK(4, SUB8))
KERNEL(q3_k, .chunk_bytes = CHUNK(3, SUB16), .n_parts = 1, .n_planes = 1, .low_signed = true,
       .negative = true)
KERNEL(q2_k, .chunk_bytes = CHUNK(2, SUB16_NIB), .n_parts = 1, .n_planes = 1, .low_signed = true,
       .n_min = 8)
KERNEL(tq2_0, .chunk_bytes = CHUNK(2, NONE), .n_parts = 1, .n_planes = 1, .low_signed = true)

#endif
