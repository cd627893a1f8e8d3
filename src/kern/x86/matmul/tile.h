/*
 * tile - the tile registers of AMX: eight of up to 16 rows of 64 bytes.  Numbers of tiles are
 * literals.  With TILE_EMULATED the same operations on AVX-512 VNNI, to the bit as the architecture
 * defines them, so that what is written over them runs where that is.
 *
 * All of it is asm that names memory as used: the compilers' own intrinsics for the
 * configuration let stores to it be dropped (gcc 12).
 */
#ifndef INGLE_KERN_X86_MATMUL_TILE_H
#define INGLE_KERN_X86_MATMUL_TILE_H

#include "base/bug.h"
#include <assert.h>
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* What LDTILECFG reads: rows and bytes of a row of each tile. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(struct tile_config) == 64, "the instruction reads 64 bytes");

static inline void tile_shape(struct tile_config *c, int tile, int rows, int row_bytes)
{
    c->palette = 1;
    c->rows[tile] = (uint8_t)rows;
    c->row_bytes[tile] = (uint16_t)row_bytes;
}

#ifdef TILE_EMULATED

struct tiles {
    struct tile_config config;
    uint8_t at[8][16][64];
};

static ATTR_UNUSED ATTR_NOINLINE void tile_configure(struct tiles *s, const struct tile_config *c)
{
    BUG_IF(c->palette != 1 || c->start_row);
    for (int t = 0; t < 8; t++)
        BUG_IF(c->rows[t] > 16 || c->row_bytes[t] > 64 ||
               (c->rows[t] == 0) != (c->row_bytes[t] == 0));
    s->config = *c;
    memset(s->at, 0, sizeof s->at);
}
static ATTR_UNUSED ATTR_NOINLINE void tile_done(struct tiles *s) { memset(s, 0, sizeof *s); }
static ATTR_UNUSED ATTR_NOINLINE void tile_zero(struct tiles *s, int t)
{
    BUG_IF(!s->config.rows[t]);
    memset(s->at[t], 0, sizeof s->at[t]);
}
static ATTR_UNUSED ATTR_NOINLINE void tile_load(struct tiles *s, int t, const void *at,
                                                int64_t stride)
{
    tile_zero(s, t);
    for (int r = 0; r < s->config.rows[t]; r++)
        memcpy(s->at[t][r], (const uint8_t *)at + r * stride, s->config.row_bytes[t]);
}
static ATTR_UNUSED ATTR_NOINLINE void tile_store(const struct tiles *s, int t, void *at,
                                                 int64_t stride)
{
    BUG_IF(!s->config.rows[t]);
    for (int r = 0; r < s->config.rows[t]; r++)
        memcpy((uint8_t *)at + r * stride, s->at[t][r], s->config.row_bytes[t]);
}
/* c [m][n] += a [m][k] b [k][n], k in dwords: the instruction is undefined for other shapes. */
static inline void tile_check(const struct tile_config *f, int c, int a, int b)
{
    BUG_IF(c == a || c == b || a == b || !f->rows[c] || !f->rows[a] || !f->rows[b]);
    BUG_IF(f->rows[c] != f->rows[a] || f->row_bytes[c] != f->row_bytes[b] || f->row_bytes[c] % 4 ||
           f->row_bytes[a] / 4 != f->rows[b] || f->row_bytes[a] % 4);
}
/* All lanes of a row at once: those after its columns are zeros and stay so. */
static ATTR_UNUSED ATTR_NOINLINE ATTR_UNCHECKED void tile_dot_bytes(struct tiles *s, int c, int a,
                                                                    int b, bool is_signed)
{
    tile_check(&s->config, c, a, b);
    const __m512i flip = _mm512_set1_epi8((char)(is_signed ? 0x80 : 0));
    for (int m = 0; m < s->config.rows[c]; m++) {
        __m512i sum = _mm512_loadu_si512(s->at[c][m]), more = _mm512_setzero_si512();
        /* flipped bytes are 128 larger, without a sign */
        for (int k = 0; k < s->config.rows[b]; k++) {
            int32_t four;
            memcpy(&four, &s->at[a][m][4 * k], sizeof four);
            const __m512i x = _mm512_set1_epi32(four);
            sum = _mm512_dpbusd_epi32(sum, _mm512_xor_si512(_mm512_loadu_si512(s->at[b][k]), flip),
                                      x);
            more = _mm512_dpbusd_epi32(more, flip, x);
        }
        _mm512_storeu_si512(s->at[c][m], _mm512_sub_epi32(sum, more));
    }
}
/* Numbers below 2^-126 are zeros of their sign. */
static inline ATTR_UNCHECKED __m512 tile_flushed(__m512 v)
{
    const __m512i u = _mm512_castps_si512(v);
    const __mmask16 is_small = _mm512_testn_epi32_mask(u, _mm512_set1_epi32(0x7f800000));
    return _mm512_castsi512_ps(_mm512_mask_and_epi32(u, is_small, u, _mm512_set1_epi32(INT32_MIN)));
}
/* Of dwords of two bf16 the second one, and the first one. */
static inline ATTR_UNCHECKED __m512 tile_odd(__m512i pairs)
{
    return tile_flushed(_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536))));
}
static inline ATTR_UNCHECKED __m512 tile_even(__m512i pairs)
{
    return tile_odd(_mm512_slli_epi32(pairs, 16));
}
/* Even and odd k have a sum each, from zero; then both are added to c. */
static ATTR_UNUSED ATTR_NOINLINE ATTR_UNCHECKED void tile_dot_bf16(struct tiles *s, int c, int a,
                                                                   int b)
{
    tile_check(&s->config, c, a, b);
    for (int m = 0; m < s->config.rows[c]; m++) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int k = 0; k < s->config.rows[b]; k++) {
            int32_t two;
            memcpy(&two, &s->at[a][m][4 * k], sizeof two);
            const __m512i x = _mm512_set1_epi32(two), w = _mm512_loadu_si512(s->at[b][k]);
            even = tile_flushed(_mm512_fmadd_ps(tile_even(x), tile_even(w), even));
            odd = tile_flushed(_mm512_fmadd_ps(tile_odd(x), tile_odd(w), odd));
        }
        const __m512 sum = tile_flushed(_mm512_castsi512_ps(_mm512_loadu_si512(s->at[c][m])));
        _mm512_storeu_si512(s->at[c][m], _mm512_castps_si512(tile_flushed(_mm512_add_ps(
                                             sum, tile_flushed(_mm512_add_ps(even, odd))))));
    }
}

#define TILE_ZERO(s, t) tile_zero(s, t)
#define TILE_LOAD(s, t, at, stride) tile_load(s, t, at, stride)
#define TILE_STORE(s, t, at, stride) tile_store(s, t, at, stride)
#define TILE_LOAD_AT(s, t, base, offset, stride)                                                   \
    tile_load(s, t, (const uint8_t *)(base) + (offset), stride)
#define TILE_STORE_AT(s, t, base, offset, stride)                                                  \
    tile_store(s, t, (uint8_t *)(base) + (offset), stride)
#define TILE_DOT_S8(s, c, a, b) tile_dot_bytes(s, c, a, b, true)
#define TILE_DOT_SU8(s, c, a, b) tile_dot_bytes(s, c, a, b, false)
#define TILE_DOT_BF16(s, c, a, b) tile_dot_bf16(s, c, a, b)

#else

struct tiles {
    char none;
};

static inline void tile_configure(struct tiles *s, const struct tile_config *c)
{
    (void)s;
    __asm__ volatile("ldtilecfg %0" ::"m"(*c) : "memory");
}
static inline void tile_done(struct tiles *s)
{
    (void)s;
    __asm__ volatile("tilerelease" ::: "memory");
}

#define TILE_ZERO(s, t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define TILE_LOAD(s, t, at, stride)                                                         \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(at), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(s, t, at, stride)                                                               \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(at), "r"((int64_t)(stride))         \
                     : "memory")
/* The same some bytes, a constant, further on: without a register of its own for that address. */
#define TILE_LOAD_AT(s, t, base, offset, stride)                                                   \
    __asm__ volatile("tileloadd %c2(%0,%1,1), %%tmm" #t ::"r"(base), "r"((int64_t)(stride)),       \
                     "i"(offset)                                                                   \
                     : "memory")
#define TILE_STORE_AT(s, t, base, offset, stride)                                                  \
    __asm__ volatile("tilestored %%tmm" #t ", %c2(%0,%1,1)" ::"r"(base), "r"((int64_t)(stride)),   \
                     "i"(offset)                                                                   \
                     : "memory")
#define TILE_DOT_S8(s, c, a, b) \
    __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
/* Signed a, unsigned b. */
#define TILE_DOT_SU8(s, c, a, b) \
    __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
#define TILE_DOT_BF16(s, c, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

#endif
#endif
