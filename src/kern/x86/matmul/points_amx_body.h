/*
 * points_amx_body - products on tiles of the codes that are looked up (points of a book); included
 * once
 * for real tiles and once for emulated ones, which defines KERNEL_NAME(name) to be theirs.
 *
 * A coordinate is one of four or eight sizes v with a sign, and a sub-scale 2 t + 1 of 4 bits, so
 * that both planes
 * of their product are looked up as well, by the number of v, the sign and as many bits of t as six
 * bits have room for.
 *   2 bits of v, 3 of t   v (2 t + 1) = 16 high + low.  high, v times the mean of t and its
 *   neighbour, / 16,
 *                         has the upper three bits of t; low, what is left, is the same for t and t
 *                         + 8.
 *   3 bits of v, 2 of t   with t = 4 u + a, low = v (2 a + 1), high = v u: 8 high + low.  IQ3_XXS,
 *   whose v are even
 *                         and up to 62, has v / 2, and the multiple of 8 that brings low close to 0
 *                         in high.
 */
#ifndef INGLE_KERN_X86_MATMUL_POINTS_AMX_BODY_H
#define INGLE_KERN_X86_MATMUL_POINTS_AMX_BODY_H

#include "kern/x86/matmul/points_quads512.h"
#include "kern/x86/matmul/super_tiles.h"

/* Entry i of the tables: v in the lowest bits, then the sign, then bits of t. */
#define SIGNED(i, bit, v) (uint8_t)((i) >> (bit) & 1 ? -(v) : (v))
#define PART_OF(v, t) (((v) * (4 * ((t) / 2) + 2) + 8) / 16)
#define LOW_2_OF(v, t) ((v) * (2 * (t) + 1) - 16 * PART_OF(v, t))
#define LOW_2(i) SIGNED(i, 2, LOW_2_OF(LEVEL_2((i) & 3), (i) >> 3))
#define HIGH_2(i) SIGNED(i, 2, PART_OF(LEVEL_2((i) & 3), (i) >> 3 << 1))
#define EIGHTS(w) (((w) + 1) / 2)
#define LOW_3_OF(w, a) ((w) * (2 * (a) + 1) - 8 * EIGHTS(w))
#define HIGH_3_OF(w, u) ((w) * (u) + EIGHTS(w))
#define LOW_3(i) SIGNED(i, 3, LOW_3_OF(LEVEL_3((i) & 7) / 2, (i) >> 4))
#define HIGH_3(i) SIGNED(i, 3, HIGH_3_OF(LEVEL_3((i) & 7) / 2, (i) >> 4))
#define LOW_ODD(i) SIGNED(i, 3, ODD_3((i) & 7) * (2 * ((i) >> 4) + 1))
#define HIGH_ODD(i) SIGNED(i, 3, ODD_3((i) & 7) * ((i) >> 4))
static const uint8_t table_2[2][64] = {{VALUES_64(LOW_2, 0)}, {VALUES_64(HIGH_2, 0)}};
static const uint8_t table_3[2][64] = {{VALUES_64(LOW_3, 0)}, {VALUES_64(HIGH_3, 0)}};
static const uint8_t table_odd[2][64] = {{VALUES_64(LOW_ODD, 0)}, {VALUES_64(HIGH_ODD, 0)}};

/* Four times the bits of each row's dword from `first` on, which may be less than 0. */
static ATTR_INLINE __m512i four(__m512i dwords, int first)
{
    return _mm512_multishift_epi64_epi8(bit_steps((uint32_t)(first + 64), 0u), dwords);
}

/* Bits of t for the low and for the high plane, above those of v and of the sign. */
struct subs {
    __m512i low, high;
};
/* Of t at bit `at` of each dword, above n bits of v. */
static ATTR_INLINE struct subs subs_of(int n, __m512i dwords, int at)
{
    return (struct subs){four(dwords, at - n - 1), four(dwords, at - 2)};
}

/* A quad: n low bits of v, the sign in bit n. */
static ATTR_INLINE void put(struct planes *e, int at, __m512i v, int n, __m512i sign, struct subs t,
                            const uint8_t planes[2][64])
{
    const __m512i both = above(v, n, sign);
    _mm512_store_si512(e->low + 64 * at,
                       _mm512_permutexvar_epi8(above(both, n + 1, t.low), line(planes[0])));
    _mm512_store_si512(e->high + 64 * at,
                       _mm512_permutexvar_epi8(above(both, n + 1, t.high), line(planes[1])));
}
static ATTR_INLINE void expand_points(const struct code_points *code, struct block from,
                                      struct block ahead, struct planes *e, struct scales *to)
{
    const int n = size_bits_of(code);
    const uint8_t (*const table)[64] = n == 2                          ? table_2
                                       : code->id == KERN_CODE_IQ3_XXS ? table_3
                                                                       : table_odd;
    const uint8_t *after = from.chunk + code->after;
    const struct tables k = point_tables(code);
    for (int h = 0; h < 8; h++) {
        const int g = 8 * from.part + h;
        if (ahead.chunk)
            fetch(ahead.chunk + 8 * ahead.part * code->group_bytes, h, 8 * code->group_bytes / 64);
        if (ahead.chunk && ahead.part == 0)
            fetch(ahead.chunk + code->after, h, (code->chunk_bytes - code->after) / 64);
        const struct point_group q =
            point_group(code, &k, from.chunk + code->group_bytes * g, after, g);
        const struct subs first = subs_of(n, q.subs, q.sub_at),
                          last = has_two_subs(code) ? subs_of(n, q.subs, 4) : first;
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            put(e, 8 * h + j, point_quad(code, &q, j), n, quad_moved(q.sign, sign_at(j), n),
                j < 4 ? first : last, table);
    }
    _mm512_store_ps(to->d,
                    scales(from.chunk + code->chunk_bytes - 64 + 32 * from.part, code->factor));
}
#define EXPAND(name, NAME)                                                                         \
    static ATTR_NOINLINE void expand_##name(struct block from, struct block ahead,                 \
                                            struct planes *e, struct scales *to)                   \
    {                                                                                              \
        expand_points(&points_##NAME, from, ahead, e, to);                                         \
    }
EXPAND(iq2_xxs, IQ2_XXS)
EXPAND(iq2_xs, IQ2_XS)
EXPAND(iq2_s, IQ2_S)
EXPAND(iq3_xxs, IQ3_XXS)
EXPAND(iq3_s, IQ3_S)

#define POINTS(name, NAME, ...)                                                                    \
    KERNEL(name, .chunk_bytes = KERN_CHUNK_##NAME, .n_parts = 2, .n_planes = 2,                    \
           .low_signed = true, .high_signed = true, __VA_ARGS__)
FORM(points_2, .n_parts = 2, .n_planes = 2, .low_signed = true, .high_signed = true, .shift = 4)
KERNEL_OF(iq2_xxs, points_2, KERN_CHUNK_IQ2_XXS)
KERNEL_OF(iq2_xs, points_2, KERN_CHUNK_IQ2_XS)
KERNEL_OF(iq2_s, points_2, KERN_CHUNK_IQ2_S)
POINTS(iq3_xxs, IQ3_XXS, .low_shift = 1, .shift = 4)
POINTS(iq3_s, IQ3_S, .shift = 3)

#endif
