/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products for many rows of codes whose values are 8 bits, on AVX2: panels and activations are
 * spread to words of 16 bits, so that a pair of products and a sum are two instructions without a
 * sign.  256 k of two panels (17 KiB) and of six rows (3.4 KiB) are in the first cache, the
 * activations of a stretch (135 KiB) in the second.
 *
 * Words of four k: 0 and 2, then 1 and 3, which shifts make of bytes where they stand.
 */
#include "kern/x86/matmul/order256.h"
#include "kern/x86/matmul/panel256.h"
#include "kern/x86/matmul/spread.h"

enum { WORDS_K = 256, WORDS_ROWS = 60, WORDS_PARTS = 1024 / WORDS_K };

/* A panel: line j is pair j of its 16 rows. */
struct words32 {
    int16_t w[16][32];
    float d[KERN_PANEL];
};
/* Words are values times sub-scales: at most 127 * 32. */
struct words256 {
    int16_t w[128][32];
    float d[KERN_PANEL];
};
/* WORDS_K of a row of activations, in pairs; the scale of each group, or of all. */
struct words_act {
    int16_t q[WORDS_K];
    float scale[8], pad[8];
};
static_assert(sizeof(struct words32) % 64 == 0 && sizeof(struct words256) % 64 == 0 &&
                  sizeof(struct words_act) % 64 == 0,
              "whole lines");
static_assert(sizeof(struct words256) <= sizeof ((struct spread_work *)0)->w[0] &&
                  sizeof(struct words32) * (WORDS_K / 32) <= sizeof ((struct spread_work *)0)->w[0],
              "either fits");

static ATTR_INLINE __m256i first_words(__m256i v)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
}
static ATTR_INLINE __m256i second_words(__m256i v) { return _mm256_srai_epi16(v, 8); }
static ATTR_INLINE void put(int16_t *to, __m256i v)
{
    _mm256_store_si256((__m256i *)(void *)to, v);
}

/* ---- tiles: a panel times three to six rows; two panels take turns ---- */

/* Sums keep their order, too. */
static ATTR_INLINE __m256i words_product(__m256i w, __m256i x)
{
    __m256i product;
    __asm__ volatile("vpmaddwd %2, %1, %0" : "=x"(product) : "x"(w), "x"(x));
    return product;
}

#define WORDS_BEGIN(c, _)                                                               \
    const __m256i x##c##_ = spread_words(x[c].q + at);                                  \
    __m256i a##c = words_product(w0_, x##c##_), b##c = words_product(w1_, x##c##_);
#define WORDS_ZERO(c, _) __m256i a##c = _mm256_setzero_si256(), b##c = a##c;
#define WORDS_DOT(c, j)                                                                 \
    {                                                                                   \
        const __m256i x_ = spread_words(x[c].q + at + 2 * (j));                         \
        a##c = spread_word_dot(a##c, v0_, x_);                                          \
        b##c = spread_word_dot(b##c, v1_, x_);                                          \
    }
#define WORDS_PAIR(C, j)                                                                \
    {                                                                                   \
        const __m256i v0_ = spread_load(w + 64 * (j)), v1_ = spread_load(w + 64 * (j) + 32); \
        SPREAD_##C(WORDS_DOT, j)                                                        \
    }
#define WORDS_ASK                                                                       \
    spread_ask(ask);                                                                    \
    ask += step;
#define WORDS_QUAD(C, j) WORDS_ASK WORDS_PAIR(C, 2 * (j)) WORDS_PAIR(C, 2 * (j) + 1)
#define WORDS_QUADS(C)                                                                  \
    WORDS_QUAD(C, 1) WORDS_QUAD(C, 2) WORDS_QUAD(C, 3) WORDS_QUAD(C, 4)                 \
    WORDS_QUAD(C, 5) WORDS_QUAD(C, 6) WORDS_QUAD(C, 7)
#define WORDS_CLEAR_Y(c, _)                                                             \
    _mm256_store_ps(y + SPREAD_PAIR * (c), _mm256_setzero_ps());                        \
    _mm256_store_ps(y + SPREAD_PAIR * (c) + 8, _mm256_setzero_ps());
#define WORDS_ADD(at, t, d)                                                                        \
    _mm256_store_ps(                                                                               \
        at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(t), _mm256_mul_ps(d, s_), _mm256_load_ps(at)));
#define WORDS_FINISH(c, g)                                                              \
    {                                                                                   \
        const __m256 s_ = _mm256_set1_ps(x[c].scale[g]);                                \
        WORDS_ADD(y + SPREAD_PAIR * (c), a##c, d0)                                      \
        WORDS_ADD(y + SPREAD_PAIR * (c) + 8, b##c, d1)                                  \
    }
#define WORDS_TILE(name, C, type, GROUPS)                                               \
    static void name##_##C(const struct spread_call *v)                                 \
    {                                                                                   \
        const struct words_act *const x = (const struct words_act *)(const void *)v->x[0]; \
        const uint8_t *ask = v->ask;                                                    \
        const size_t step = v->step / 2;                                                \
        for (int second = 0; second < 2; second++) {                                    \
            const type *from = second ? v->w1 : v->w0;                                  \
            float *const y = v->y + KERN_PANEL * second;                                \
            if (v->first) {                                                             \
                SPREAD_##C(WORDS_CLEAR_Y, _)                                            \
            }                                                                           \
            GROUPS(C)                                                                   \
        }                                                                               \
        spread_end(v, C);                                                               \
    }
#define WORDS_TILES(name, type, GROUPS)                                                 \
    WORDS_TILE(name, 3, type, GROUPS) WORDS_TILE(name, 4, type, GROUPS)                 \
    WORDS_TILE(name, 5, type, GROUPS) WORDS_TILE(name, 6, type, GROUPS)

#define GROUPS_32(C)                                                                    \
    for (int64_t g = 0; g < v->n; g++, from++) {                                        \
        const uint8_t *const w = (const uint8_t *)from->w;                              \
        const int64_t at = 32 * g;                                                      \
        const __m256i w0_ = spread_load(w), w1_ = spread_load(w + 32);                  \
        SPREAD_##C(WORDS_BEGIN, _)                                                      \
        WORDS_ASK WORDS_PAIR(C, 1) WORDS_QUADS(C)                                       \
        const __m256 d0 = _mm256_load_ps(from->d), d1 = _mm256_load_ps(from->d + 8);    \
        SPREAD_##C(WORDS_FINISH, g)                                                     \
    }
WORDS_TILES(words32, struct words32, GROUPS_32)

#define GROUPS_256(C)                                                                   \
    const uint8_t *w = (const uint8_t *)from->w;                                        \
    SPREAD_##C(WORDS_ZERO, _)                                                           \
    for (int64_t at = 0; at < WORDS_K; at += 32, w += 1024) {                           \
        WORDS_QUAD(C, 0) WORDS_QUADS(C)                                                 \
    }                                                                                   \
    const __m256 d0 = _mm256_load_ps(from->d), d1 = _mm256_load_ps(from->d + 8);        \
    SPREAD_##C(WORDS_FINISH, 0)
WORDS_TILES(words256, struct words256, GROUPS_256)

/* ---- activations ---- */

static ATTR_INLINE void put_act(const int8_t *q, int16_t *to)
{
    const __m256i v = half_line((const uint8_t *)q), a = first_words(v), b = second_words(v);
    const __m256i lo = _mm256_unpacklo_epi32(a, b), hi = _mm256_unpackhi_epi32(a, b);
    put(to, _mm256_permute2x128_si256(lo, hi, 0x20));
    put(to + 16, _mm256_permute2x128_si256(lo, hi, 0x31));
}
static void spread_act32(const uint8_t *act, int64_t n, uint8_t *to)
{
    const struct kern_act32 *const from = (const struct kern_act32 *)(const void *)act;
    struct words_act *const words = (struct words_act *)(void *)to;
    for (int64_t g = 0; g < n; g++) {
        put_act(from[g].q, words->q + 32 * g);
        words->scale[g] = from[g].scale;
    }
}
static void spread_act256(const uint8_t *act, int64_t n, uint8_t *to)
{
    const struct kern_act256 *const from = (const struct kern_act256 *)(const void *)act;
    struct words_act *const words = (struct words_act *)(void *)to;
    (void)n;
    for (int h = 0; h < 8; h++)
        put_act(from->q + 32 * h, words->q + 32 * h);
    words->scale[0] = from->scale;
}

/* ---- codes ---- */

#define EACH_QUAD(F, ...)                                                                          \
    F(0, __VA_ARGS__)                                                                              \
    F(1, __VA_ARGS__) F(2, __VA_ARGS__) F(3, __VA_ARGS__) F(4, __VA_ARGS__) F(5, __VA_ARGS__)      \
        F(6, __VA_ARGS__) F(7, __VA_ARGS__)
#define WORDS_KERNEL(name, tile, act, block, type, n_packed)                                       \
    void kern_matmul_##name##_words_avx2(const struct kern_matmul *m, int64_t p0, int64_t p1)      \
    {                                                                                              \
        static const struct spread_code c = {spread_##name,                                        \
                                             {tile##_3, tile##_4, tile##_5, tile##_6},             \
                                             block,                                                \
                                             sizeof(type),                                         \
                                             n_packed,                                             \
                                             WORDS_K,                                              \
                                             WORDS_ROWS,                                           \
                                             act,                                                  \
                                             sizeof(struct words_act)};                            \
        ATTR_ALIGNED(64) uint8_t acts[WORDS_PARTS * WORDS_ROWS * sizeof(struct words_act)];        \
        spread_run(m, &c, acts, p0, p1);                                                           \
    }

#define PUT32(j, quad)                                              \
    {                                                               \
        const __m256i lo_ = quad(group, j), hi_ = quad(group + 32, j); \
        put(to->w[2 * (j)], first_words(lo_));                      \
        put(to->w[2 * (j)] + 16, first_words(hi_));                 \
        put(to->w[2 * (j) + 1], second_words(lo_));                 \
        put(to->w[2 * (j) + 1] + 16, second_words(hi_));            \
    }
#define SPREAD32(name, bits, n_group, SETUP, quad)                                                 \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *all)                          \
    {                                                                                              \
        SETUP                                                                                      \
        struct words32 *to = all;                                                                  \
        for (int64_t g = 0; g < n; chunk += KERN_CHUNK_BYTES(bits, KERN_SCALES_D, n_group, 0))     \
            for (int i = 0; i < (n_group) && g < n; i++, g++, to++) {                              \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * i;                         \
                const uint8_t *scale =                                                             \
                    chunk + KERN_SCALES_AT(bits, n_group) + i * KERN_SCALE_BYTES(KERN_SCALES_D);   \
                EACH_QUAD(PUT32, quad)                                                             \
                _mm256_store_ps(to->d, halves(scale));                                             \
                _mm256_store_ps(to->d + 8, halves(scale + 16));                                    \
            }                                                                                      \
    }                                                                                              \
    WORDS_KERNEL(name, words32, spread_act32, 32, struct words32,                                  \
                 WORDS_K / 32 / (n_group)*KERN_CHUNK_BYTES(bits, KERN_SCALES_D, n_group, 0))
SPREAD32(q8_0, 8, 2, NO_SETUP, Q8)
#define NL4_SETUP const __m256i table = lut(quant_nl4, 0);
SPREAD32(iq4_nl, 4, 2, NL4_SETUP, QTABLE)

#define PUT256(j, quad)                                                                    \
    {                                                                                      \
        const __m256i lo_ = quad(group, j), hi_ = quad(group + 32, j);                     \
        put(to->w[16 * h + 2 * (j)], _mm256_mullo_epi16(first_words(lo_), sub0));          \
        put(to->w[16 * h + 2 * (j)] + 16, _mm256_mullo_epi16(first_words(hi_), sub1));     \
        put(to->w[16 * h + 2 * (j) + 1], _mm256_mullo_epi16(second_words(lo_), sub0));     \
        put(to->w[16 * h + 2 * (j) + 1] + 16, _mm256_mullo_epi16(second_words(hi_), sub1)); \
    }
static void spread_iq4_xs(const uint8_t *chunk, int64_t n, void *all)
{
    NL4_SETUP
    struct words256 *const to = all;
    const uint8_t *const s = chunk + KERN_SCALES_AT(4, 8);
    (void)n;
    for (int h = 0; h < 8; h++) {
        const uint8_t *const group = chunk + KERN_GROUP_BYTES(4) * h;
        SUBS(s + 16 * h, doubled_s8)
        EACH_QUAD(PUT256, QTABLE)
    }
    _mm256_store_ps(to->d, halves(s + 128));
    _mm256_store_ps(to->d + 8, halves(s + 144));
}
WORDS_KERNEL(iq4_xs, words256, spread_act256, 256, struct words256,
             KERN_CHUNK_BYTES(4, KERN_SCALES_SUB8, 8, 0))
