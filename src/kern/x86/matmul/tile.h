/*
 * tile - the tile registers of AMX: eight of up to 16 rows of 64 bytes.  Numbers of tiles are
 * literals.  With TILE_EMULATED the same operations in plain C, to the bit as the architecture
 * defines them, so that what is written over them runs anywhere.
 *
 * All of it is asm that names memory as used: the compilers' own intrinsics for the
 * configuration let stores to it be dropped (gcc 12).
 */
#ifndef INGLE_KERN_X86_MATMUL_TILE_H
#define INGLE_KERN_X86_MATMUL_TILE_H

#include "base/bug.h"
#include <assert.h>
#include <math.h>
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
        BUG_IF(c->rows[t] > 16 || c->row_bytes[t] > 64 || (c->rows[t] == 0) != (c->row_bytes[t] == 0));
    s->config = *c;
    memset(s->at, 0, sizeof s->at);
}
static ATTR_UNUSED ATTR_NOINLINE void tile_done(struct tiles *s) { memset(s, 0, sizeof *s); }
static ATTR_UNUSED ATTR_NOINLINE void tile_zero(struct tiles *s, int t)
{
    BUG_IF(!s->config.rows[t]);
    memset(s->at[t], 0, sizeof s->at[t]);
}
static ATTR_UNUSED ATTR_NOINLINE void tile_load(struct tiles *s, int t, const void *at, int64_t stride)
{
    tile_zero(s, t);
    for (int r = 0; r < s->config.rows[t]; r++)
        memcpy(s->at[t][r], (const uint8_t *)at + r * stride, s->config.row_bytes[t]);
}
static ATTR_UNUSED ATTR_NOINLINE void tile_store(const struct tiles *s, int t, void *at, int64_t stride)
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
static ATTR_UNUSED ATTR_NOINLINE ATTR_UNCHECKED void tile_dot_bytes(struct tiles *s, int c, int a, int b, bool is_signed)
{
    tile_check(&s->config, c, a, b);
    for (int m = 0; m < s->config.rows[c]; m++) {
        uint32_t sum[16];
        memcpy(sum, s->at[c][m], sizeof sum);
        for (int k = 0; k < s->config.rows[b]; k++) {
            const uint8_t *w = s->at[b][k], *x = &s->at[a][m][4 * k];
            for (int i = 0; i < s->config.row_bytes[c]; i++)
                sum[i / 4] += (uint32_t)((int8_t)x[i % 4] * (is_signed ? (int8_t)w[i] : w[i]));
        }
        memcpy(s->at[c][m], sum, sizeof sum);
    }
}
static inline ATTR_UNCHECKED float tile_flushed(float v) { return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v; }
static inline ATTR_UNCHECKED float tile_bf16(const uint8_t *at)
{
    uint16_t h;
    memcpy(&h, at, sizeof h);
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return tile_flushed(f);
}
/* Even and odd k have a sum each, from zero; then both are added to c. */
static ATTR_UNUSED ATTR_NOINLINE ATTR_UNCHECKED void tile_dot_bf16(struct tiles *s, int c, int a, int b)
{
    tile_check(&s->config, c, a, b);
    for (int m = 0; m < s->config.rows[c]; m++)
        for (int n = 0; n < s->config.row_bytes[c] / 4; n++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < s->config.rows[b]; k++) {
                const uint8_t *x = &s->at[a][m][4 * k], *w = &s->at[b][k][4 * n];
                even = tile_flushed(fmaf(tile_bf16(x), tile_bf16(w), even));
                odd = tile_flushed(fmaf(tile_bf16(x + 2), tile_bf16(w + 2), odd));
            }
            memcpy(&sum, &s->at[c][m][4 * n], sizeof sum);
            sum = tile_flushed(tile_flushed(sum) + tile_flushed(even + odd));
            memcpy(&s->at[c][m][4 * n], &sum, sizeof sum);
        }
}

#define TILE_ZERO(s, t) tile_zero(s, t)
#define TILE_LOAD(s, t, at, stride) tile_load(s, t, at, stride)
#define TILE_STORE(s, t, at, stride) tile_store(s, t, at, stride)
#define TILE_LOAD_AT(s, t, base, offset, stride) tile_load(s, t, (const uint8_t *)(base) + (offset), stride)
#define TILE_STORE_AT(s, t, base, offset, stride) tile_store(s, t, (uint8_t *)(base) + (offset), stride)
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
#define TILE_STORE(s, t, at, stride)                                                        \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(at), "r"((int64_t)(stride)) : "memory")
/* The same some bytes, a constant, further on: without a register of its own for that address. */
#define TILE_LOAD_AT(s, t, base, offset, stride)                                            \
    __asm__ volatile("tileloadd %c2(%0,%1,1), %%tmm" #t ::"r"(base), "r"((int64_t)(stride)), "i"(offset) : "memory")
#define TILE_STORE_AT(s, t, base, offset, stride)                                           \
    __asm__ volatile("tilestored %%tmm" #t ", %c2(%0,%1,1)" ::"r"(base), "r"((int64_t)(stride)), "i"(offset) : "memory")
#define TILE_DOT_S8(s, c, a, b) \
    __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
/* Signed a, unsigned b. */
#define TILE_DOT_SU8(s, c, a, b) \
    __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
#define TILE_DOT_BF16(s, c, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

#endif
#endif
