/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows times IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S, looked up by byte permutes.  Numbers of a line
 * become codes, of which a byte has two (3 bits each) or four (2 bits) coordinates, and these, 16 k
 * of 16 rows at a time, the values of four quads: quad c is k = c, 4 + c, 8 + c, 12 + c.  Values
 * carry a bias, which the start of each dot product takes off.  Many rows run from spread
 * panels. */
#include "kern/kernels.h"
#include "kern/x86/matmul/points512.h"

/* Values of a byte's low six bits. */
#define FIRST_3(i) LEVEL_3((i) & 7)
#define LAST_3(i) LEVEL_3((i) >> 3)
#define FIRST_ODD(i) ODD_3((i) & 7)
#define LAST_ODD(i) ODD_3((i) >> 3)
#define FIRST_2(i) LEVEL_2((i) & 3)
#define SECOND_2(i) LEVEL_2((i) >> 2 & 3)
#define THIRD_2(i) LEVEL_2((i) >> 4)
enum { BIAS_2 = 43, BIAS_3 = 62, BIAS_ODD = 15 };
static const uint8_t values_2[3][64] = {
    {VALUES_64(FIRST_2, BIAS_2)}, {VALUES_64(SECOND_2, BIAS_2)}, {VALUES_64(THIRD_2, BIAS_2)}};
static const uint8_t values_3[2][64] = {{VALUES_64(FIRST_3, BIAS_3)}, {VALUES_64(LAST_3, BIAS_3)}};
static const uint8_t values_odd[2][64] = {{VALUES_64(FIRST_ODD, BIAS_ODD)},
                                          {VALUES_64(LAST_ODD, BIAS_ODD)}};

/* Dword c of each 16 is q[c], q[4 + c], q[8 + c], q[12 + c]. */
#define TURNED_4(h, c) (h) + (c), (h) + 4 + (c), (h) + 8 + (c), (h) + 12 + (c)
#define TURNED_16(h) TURNED_4(h, 0), TURNED_4(h, 1), TURNED_4(h, 2), TURNED_4(h, 3)
static const uint8_t order[64] = {TURNED_16(0), TURNED_16(16), TURNED_16(32), TURNED_16(48)};

/* Bytes 4 r, 4 r + 1 (or, from 2, the next two) of a and of b: a, b, a, b. */
static ATTR_INLINE __m512i woven(__m512i a, __m512i b, int from)
{
    const __m512i pairs = _mm512_set_epi32(
#define PAIR(r) 0x41014000 + (r) * 0x04040404
        PAIR(15), PAIR(14), PAIR(13), PAIR(12), PAIR(11), PAIR(10), PAIR(9), PAIR(8), PAIR(7),
        PAIR(6), PAIR(5), PAIR(4), PAIR(3), PAIR(2), PAIR(1), PAIR(0));
#undef PAIR
    return _mm512_permutex2var_epi8(a, _mm512_add_epi8(pairs, _mm512_set1_epi8((char)from)), b);
}

/* Sums of the half or group so far; of what, by -bias. */
#define START_32(c, bias) \
    __m512i a##c = _mm512_madd_epi16(words32(X256(c)->sum16 + 2 * h), _mm512_set1_epi16(-(bias)));
#define START_LOW(c, bias)                                                                         \
    __m512i a##c =                                                                                 \
        _mm512_madd_epi16(words32(X256(c)->sum16 + 2 * h), _mm512_set1_epi32(-(bias)&0xFFFF));
#define START_HIGH(c, bias)                                                                        \
    __m512i a##c =                                                                                 \
        _mm512_madd_epi16(words32(X256(c)->sum16 + 2 * h), _mm512_set1_epi32(-(bias)*65536));

/* Quad c of half m: values v, negative where a sign bit is set. */
#define QUAD(C, m, c, bias, v)                                                                     \
    {                                                                                              \
        const __m512i v_ = v;                                                                      \
        const __m512i w_ = _mm512_mask_sub_epi8(v_, bits(sign, BOTH(16u * (m) + (c), 4u)),         \
                                                _mm512_set1_epi8(2 * (bias)), v_);                 \
        EACH_##C(DOT, 4 * (m) + (c))                                                               \
    }
#define VALUE(t, code) _mm512_permutexvar_epi8(code, t)
/* Codes of two coordinates p and q; of four x. */
#define HALF_3(C, m, bias, p, q)                                                                   \
    QUAD(C, m, 0, bias, VALUE(v0, p)) QUAD(C, m, 1, bias, VALUE(v1, p))                            \
    QUAD(C, m, 2, bias, VALUE(v0, q)) QUAD(C, m, 3, bias, VALUE(v1, q))
#define HALF_2(C, m, x)                                                                            \
    QUAD(C, m, 0, BIAS_2, VALUE(v0, x)) QUAD(C, m, 1, BIAS_2, VALUE(v1, x))                        \
    QUAD(C, m, 2, BIAS_2, VALUE(v2, x)) QUAD(C, m, 3, BIAS_2, VALUE(v0, _mm512_srli_epi16(x, 6)))

/* One tile; GROUP does group g of a chunk, whose lines are at `at`. */
#define TILE(name, NAME, C, factor, SETUP, GROUP)                                                  \
    static void name##_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y,     \
                           int64_t stride)                                                        \
    {                                                                                              \
        SETUP()                                                                                    \
        EACH_##C(LOAD_Y, _)                                                                        \
        for (int64_t b = 0; b < n; b++) {                                                          \
            const uint8_t *block = chunk + b / 2 * KERN_CHUNK_##NAME;                              \
            const uint8_t *behind = block + KERN_BEHIND_##NAME;                                    \
            const __m512 d = scales(block + KERN_CHUNK_##NAME - 64 + b % 2 * 32, factor);          \
            EACH_##C(ZERO_T, _)                                                                    \
            for (int h = 0; h < 8; h++) {                                                          \
                const int g = (int)(b % 2) * 8 + h;                                                \
                const uint8_t *at = block + KERN_GROUP_##NAME * g;                                 \
                FETCH(at, KERN_GROUP_##NAME)                                                       \
                if (64 * (g + 1) < KERN_CHUNK_##NAME - KERN_BEHIND_##NAME)                         \
                    _mm_prefetch((const char *)behind + KERN_CHUNK_##NAME + 64 * g, _MM_HINT_T0);  \
                GROUP(C)                                                                           \
            }                                                                                      \
            EACH_##C(FINISH, _)                                                                    \
        }                                                                                          \
        EACH_##C(STORE_Y, _)                                                                       \
    }
#define KERNEL(name, NAME, factor, SETUP, GROUP)                                                   \
    TILE(name, NAME, 1, factor, SETUP, GROUP)                                                      \
    TILE(name, NAME, 2, factor, SETUP, GROUP) TILE(name, NAME, 3, factor, SETUP, GROUP)            \
        TILE(name, NAME, 4, factor, SETUP, GROUP) TILE(name, NAME, 6, factor, SETUP, GROUP)        \
            TILE(name, NAME, 8, factor, SETUP, GROUP) void kern_matmul_##name##_avx512vbmi(        \
                const struct kern_matmul *m, int64_t p0, int64_t p1)                               \
    {                                                                                              \
        static const struct drive few = {{{name##_8, 8},                                           \
                                          {name##_6, 6},                                           \
                                          {name##_4, 4},                                           \
                                          {name##_3, 3},                                           \
                                          {name##_2, 2},                                           \
                                          {name##_1, 1}},                                          \
                                         256,                                                      \
                                         0,                                                        \
                                         0};                                                       \
        if (m->n <= FEW)                                                                           \
            run_few(m, &few, order, p0, p1);                                                       \
        else                                                                                       \
            kern_matmul_##name##_spread_avx512vbmi(m, p0, p1);                                     \
    }

#define SETUP_3() const __m512i v0 = line(values_3[0]), v1 = line(values_3[1]);
#define SETUP_ODD() const __m512i v0 = line(values_odd[0]), v1 = line(values_odd[1]);
#define SETUP_2()                                                                                  \
    const __m512i v0 = line(values_2[0]), v1 = line(values_2[1]), v2 = line(values_2[2]);

#define HALF_IQ3_XXS(C, m)                                                                         \
    {                                                                                              \
        const __m512i number = line(at + 64 * (m));                                                \
        const __mmask64 bit7 = _mm512_movepi8_mask(number);                                        \
        const __m512i p = look_up(codes.a, number, bit7), q = look_up(codes.b, number, bit7);      \
        HALF_3(C, m, BIAS_3, p, q)                                                                 \
    }
#define GROUP_IQ3_XXS(C)                                                                           \
    const __m512i words = line(at + 128), sign = signs(words), sub = sub_scales(words);            \
    EACH_##C(START_32, BIAS_3)                                                                     \
    HALF_IQ3_XXS(C, 0)                                                                             \
    HALF_IQ3_XXS(C, 1)                                                                             \
    EACH_##C(ADD_SUB, _)
#define SETUP_IQ3_XXS() SETUP_3() const struct tables codes = load_tables(quant_codes_iq3_xxs);
KERNEL(iq3_xxs, IQ3_XXS, 0.25f, SETUP_IQ3_XXS, GROUP_IQ3_XXS)

#define HALF_IQ3_S(C, m)                                                                           \
    {                                                                                              \
        const __m512i number = line(at + 64 * (m));                                                \
        const __mmask64 bit7 = _mm512_movepi8_mask(number), bit8 = bits(high, BOTH(4u * (m), 1u)); \
        const __m512i p = look_up_512(quant_codes_iq3_s[0], number, bit7, bit8);                   \
        const __m512i q = look_up_512(quant_codes_iq3_s[1], number, bit7, bit8);                   \
        HALF_3(C, m, BIAS_ODD, p, q)                                                               \
    }
#define GROUP_IQ3_S(C)                                                                             \
    const __m512i sign = line(at + 128), high = bytes_of_rows(behind + 16 * g);                    \
    const __m512i nibble =                                                                         \
        _mm512_srl_epi32(bytes_of_rows(behind + 256 + g / 2 * 16), _mm_cvtsi32_si128(h % 2 * 4));  \
    const __m512i sub = twice_plus_one(nibble);                                                    \
    EACH_##C(START_32, BIAS_ODD) HALF_IQ3_S(C, 0) HALF_IQ3_S(C, 1) EACH_##C(ADD_SUB, _)
/* 2 s + 1 of the low four bits. */
static ATTR_INLINE __m512i twice_plus_one(__m512i nibble)
{
    return _mm512_ternarylogic_epi32(_mm512_slli_epi32(nibble, 1), _mm512_set1_epi32(30),
                                     _mm512_set1_epi32(1), 0xEA);
}
KERNEL(iq3_s, IQ3_S, 1.0f, SETUP_ODD, GROUP_IQ3_S)

/* first4 and last4 are codes of the first and of the last four coordinates of all points. */
#define HALVES_2(C, subs)                                                                          \
    {                                                                                              \
        const __m512i x_ = woven(first4, last4, 0), sub = twice_plus_one(subs);                    \
        EACH_##C(START_LOW, BIAS_2) HALF_2(C, 0, x_) EACH_##C(ADD_SUB, _)                          \
    }                                                                                              \
    {                                                                                              \
        const __m512i x_ = woven(first4, last4, 2),                                                \
                      sub = twice_plus_one(_mm512_srli_epi32(subs, 4));                            \
        EACH_##C(START_HIGH, BIAS_2) HALF_2(C, 1, x_) EACH_##C(ADD_SUB, _)                         \
    }

#define GROUP_IQ2_XS(C)                                                                            \
    const __m512i number = line(at), seven = line(at + 64), subs = bytes_of_rows(behind + 16 * g); \
    const __mmask64 bit7 = _mm512_movepi8_mask(number);                                            \
    const __mmask64 bit8 = _mm512_test_epi8_mask(seven, _mm512_set1_epi8(1));                      \
    const __m512i sign = signs_above(seven);                                                       \
    const __m512i first4 = look_up_512(quant_codes_iq2_xs[0], number, bit7, bit8);                 \
    const __m512i last4 = look_up_512(quant_codes_iq2_xs[1], number, bit7, bit8);                  \
    HALVES_2(C, subs)
KERNEL(iq2_xs, IQ2_XS, 0.125f, SETUP_2, GROUP_IQ2_XS)

#define GROUP_IQ2_S(C)                                                                             \
    const __m512i number = line(at), sign = line(at + 64), high = bytes_of_rows(behind + 16 * g);  \
    const __m512i subs = bytes_of_rows(behind + 256 + 16 * g);                                     \
    const __mmask64 bit7 = _mm512_movepi8_mask(number);                                            \
    const __mmask64 bit8 = bits(high, BOTH(0u, 2u)), bit9 = bits(high, BOTH(1u, 2u));              \
    const __m512i first4 = look_up_1024(quant_codes_iq2_s[0], number, bit7, bit8, bit9);           \
    const __m512i last4 = look_up_1024(quant_codes_iq2_s[1], number, bit7, bit8, bit9);            \
    HALVES_2(C, subs)
KERNEL(iq2_s, IQ2_S, 0.125f, SETUP_2, GROUP_IQ2_S)
