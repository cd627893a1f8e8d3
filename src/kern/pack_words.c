/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack_words - stored blocks into whole panels, by vectors of 16 bytes.  Four rows are turned at a
 * time: words of each become a stretch of a line, which has the same word of all rows.  Codes of 1
 * and 2 bits, which a block keeps beside those of other groups, are exchanged between words first.
 * Block by block over the 16 rows of a panel, so that the lines that are written stay in the first
 * cache.  pack.c says the same in general; tests/unit/kern_layout.c holds both to the same bytes.
 */
#include "base/num.h"
#include "kern/code.h"

#include <string.h>

typedef uint32_t words ATTR_VECTOR(16);
typedef uint16_t halves ATTR_VECTOR(16);
typedef uint8_t bytes ATTR_VECTOR(16);

enum { ROWS = KERN_PANEL, LINE = 64 };

/* ---- turning ---- */

/* 16 bytes of four rows; turned: v[j] has word j of each. */
struct four { words v[4]; };

static ATTR_INLINE words load(const uint8_t *at)
{
    words v;
    memcpy(&v, at, sizeof v);
    return v;
}

static ATTR_INLINE struct four turn(const uint8_t *at, size_t row_bytes)
{
    const words a = load(at), b = load(at + row_bytes), c = load(at + 2 * row_bytes),
                d = load(at + 3 * row_bytes);
    const words ab0 = ATTR_SHUFFLE(a, b, 0, 4, 1, 5), ab1 = ATTR_SHUFFLE(a, b, 2, 6, 3, 7);
    const words cd0 = ATTR_SHUFFLE(c, d, 0, 4, 1, 5), cd1 = ATTR_SHUFFLE(c, d, 2, 6, 3, 7);
    return (struct four){{ATTR_SHUFFLE(ab0, cd0, 0, 1, 4, 5), ATTR_SHUFFLE(ab0, cd0, 2, 3, 6, 7),
                          ATTR_SHUFFLE(ab1, cd1, 0, 1, 4, 5), ATTR_SHUFFLE(ab1, cd1, 2, 3, 6, 7)}};
}

static ATTR_INLINE void put(uint8_t *line, int r, words v)
{
    memcpy(line + 4 * r, &v, sizeof v);
}

/* Four lines, `apart` bytes from each other. */
static ATTR_INLINE void put_four(uint8_t *line, size_t apart, int r, struct four x)
{
    for (int j = 0; j < 4; j++)
        put(line + apart * (size_t)j, r, x.v[j]);
}

/* 16 bytes of 16 rows: row i of `to` [16][16] has byte i of each. */
static void turn_bytes(uint8_t *to, const uint8_t *at, size_t row_bytes)
{
    bytes v[ROWS], w[ROWS];
    for (int r = 0; r < ROWS; r++)
        memcpy(&v[r], at + (size_t)r * row_bytes, sizeof v[r]);
    for (int step = 0; step < 4; step++) { /* rows i and i + 8 are dealt into each other */
        for (int i = 0; i < 8; i++) {
            w[2 * i] = ATTR_SHUFFLE(v[i], v[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22,
                                    7, 23);
            w[2 * i + 1] = ATTR_SHUFFLE(v[i], v[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                        29, 14, 30, 15, 31);
        }
        memcpy(v, w, sizeof v);
    }
    memcpy(to, v, sizeof v);
}

/* 8 halves of 8 rows, of which row i of `to` [8][16] gets the i-th ones. */
static void turn_halves(uint8_t *to, const uint8_t *at, size_t row_bytes)
{
    halves v[8], w[8];
    for (int r = 0; r < 8; r++)
        memcpy(&v[r], at + (size_t)r * row_bytes, sizeof v[r]);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 4; i++) {
            w[2 * i] = ATTR_SHUFFLE(v[i], v[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
            w[2 * i + 1] = ATTR_SHUFFLE(v[i], v[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        memcpy(v, w, sizeof v);
    }
    for (int i = 0; i < 8; i++)
        memcpy(to + 32 * i, &v[i], sizeof v[i]);
}

/* In each byte, the fields of `a` that mask << by names, and those of `b` that mask names, change
 * places. */
static ATTR_INLINE void swap(words *a, words *b, int by, uint32_t mask)
{
    const words x = (*a >> (uint32_t)by ^ *b) & mask;
    *b ^= x;
    *a ^= x << (uint32_t)by;
}

/* Fields of 2 bits: field s of v[t] and field t of v[s] change places. */
static ATTR_INLINE void turn_pairs(words v[4])
{
    swap(&v[0], &v[2], 4, 0x0F0F0F0F);
    swap(&v[1], &v[3], 4, 0x0F0F0F0F);
    swap(&v[0], &v[1], 2, 0x33333333);
    swap(&v[2], &v[3], 2, 0x33333333);
}

/* The same of single bits. */
static ATTR_INLINE void turn_bits(words v[8])
{
    for (int t = 0; t < 4; t++)
        swap(&v[t], &v[t + 4], 4, 0x0F0F0F0F);
    for (int t = 0; t < 8; t += t % 2 ? 3 : 1)
        swap(&v[t], &v[t + 2], 2, 0x33333333);
    for (int t = 0; t < 8; t += 2)
        swap(&v[t], &v[t + 1], 1, 0x55555555);
}

/* ---- codes of a block of 16 rows, into the groups of a chunk that are `apart` bytes from each
 * other ---- */

/* Two pieces of 16 bytes: their low nibbles become a group, their high ones another. */
static ATTR_INLINE void put_nibbles(uint8_t *low, uint8_t *high, int r, const uint8_t *n,
                                    size_t row_bytes)
{
    const struct four a = turn(n, row_bytes), b = turn(n + 16, row_bytes);
    for (int j = 0; j < 4; j++) {
        put(low + LINE * j, r, (a.v[j] & 0x0F0F0F0F) | (b.v[j] & 0x0F0F0F0F) << 4);
        put(high + LINE * j, r, (a.v[j] >> 4 & 0x0F0F0F0F) | (b.v[j] & 0xF0F0F0F0));
    }
}

/* 128 bytes, as K types have them: two groups in each 32. */
static ATTR_INLINE void put_k_nibbles(uint8_t *chunk, size_t apart, const uint8_t *n,
                                      size_t row_bytes)
{
    for (int r = 0; r < ROWS; r += 4)
        for (size_t h = 0; h < 4; h++)
            put_nibbles(chunk + apart * 2 * h, chunk + apart * (2 * h + 1), r,
                        n + 32 * h + (size_t)r * row_bytes, row_bytes);
}

/* 64 bytes: 2 bits of eight groups. */
static ATTR_INLINE void put_pairs(uint8_t *chunk, size_t apart, const uint8_t *q, size_t row_bytes)
{
    for (int r = 0; r < ROWS; r += 4)
        for (size_t i = 0; i < 4; i++) { /* which half of the groups, which line of theirs */
            struct four x = turn(q + 16 * i + (size_t)r * row_bytes, row_bytes);
            turn_pairs(x.v);
            put_four(chunk + apart * (4 * (i / 2)) + LINE * (i % 2), apart, r, x);
        }
}

/* 32 bytes: a bit of eight groups. */
static ATTR_INLINE void put_bits(uint8_t *chunk, size_t apart, const uint8_t *q, size_t row_bytes)
{
    for (int r = 0; r < ROWS; r += 4) {
        const struct four a = turn(q + (size_t)r * row_bytes, row_bytes),
                          b = turn(q + 16 + (size_t)r * row_bytes, row_bytes);
        words v[8];
        memcpy(v, a.v, sizeof a.v);
        memcpy(v + 4, b.v, sizeof b.v);
        turn_bits(v);
        for (int h = 0; h < 8; h++)
            put(chunk + apart * (size_t)h, r, v[h]);
    }
}

/* n words of each row: a line each, `apart` bytes from each other. */
static ATTR_INLINE void put_lines(uint8_t *line, size_t apart, const uint8_t *at, size_t row_bytes,
                                  size_t n)
{
    for (int r = 0; r < ROWS; r += 4)
        for (size_t i = 0; i < n; i += 4)
            put_four(line + apart * i, apart, r,
                     turn(at + 4 * i + (size_t)r * row_bytes, row_bytes));
}

static ATTR_INLINE void put_halves(uint8_t *to, const uint8_t *at, size_t row_bytes)
{
    for (size_t r = 0; r < ROWS; r++)
        memcpy(to + 2 * r, at + r * row_bytes, 2);
}

/* n bytes of each row. */
static ATTR_INLINE void put_bytes(uint8_t *to, const uint8_t *at, size_t row_bytes, size_t n)
{
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < n; i++)
            to[ROWS * i + r] = at[r * row_bytes + i];
}

/* ---- types: a block of 16 rows into a chunk, from its group `at` on ---- */

typedef void put_fn(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes);
#define AT(type, field) offsetof(struct quant_##type, field)

static ATTR_INLINE void put_q4_0(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    put_halves(chunk + KERN_SCALES_AT(4, 2) + 32 * at, block, row_bytes);
    put_lines(chunk + KERN_GROUP_BYTES(4) * at, LINE, block + AT(q4_0, n), row_bytes, 4);
}

static ATTR_INLINE void put_mxfp4(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    put_bytes(chunk + KERN_SCALES_AT(4, 4) + 16 * at, block, row_bytes, 1);
    put_lines(chunk + KERN_GROUP_BYTES(4) * at, LINE, block + AT(mxfp4, n), row_bytes, 4);
}

static ATTR_INLINE void put_q8_0(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    uint8_t *group = chunk + KERN_GROUP_BYTES(8) * at;
    put_halves(chunk + KERN_SCALES_AT(8, 2) + 32 * at, block, row_bytes);
    for (int r = 0; r < ROWS; r += 4)
        for (int i = 0; i < 2; i++) {
            struct four x = turn(block + AT(q8_0, q) + 16 * i + (size_t)r * row_bytes, row_bytes);
            for (int j = 0; j < 4; j++)
                x.v[j] ^= 0x80808080;
            put_four(group + 4 * LINE * i, LINE, r, x);
        }
}

static ATTR_INLINE void put_q2_k(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    uint8_t *s = chunk + KERN_SCALES_AT(2, 8);
    (void)at;
    put_pairs(chunk, KERN_GROUP_BYTES(2), block + AT(q2_k, q), row_bytes);
    turn_bytes(s, block + AT(q2_k, sc), row_bytes);
    put_halves(s + 256, block + AT(q2_k, d), row_bytes);
    put_halves(s + 288, block + AT(q2_k, dmin), row_bytes);
}

static ATTR_INLINE void put_q3_k(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    uint8_t *s = chunk + KERN_SCALES_AT(3, 8);
    int8_t sub[ROWS][16];
    (void)at;
    put_pairs(chunk, KERN_GROUP_BYTES(3), block + AT(q3_k, q), row_bytes);
    put_bits(chunk + 2 * LINE, KERN_GROUP_BYTES(3), block + AT(q3_k, hmask), row_bytes);
    for (size_t r = 0; r < ROWS; r++)
        quant_q3_k_scales(block + AT(q3_k, sc) + r * row_bytes, sub[r]);
    turn_bytes(s, (const uint8_t *)sub, sizeof *sub);
    put_halves(s + 256, block + AT(q3_k, d), row_bytes);
}

/* Scales and minimums of Q4_K and Q5_K. */
static ATTR_INLINE void put_k_scales(uint8_t *s, const uint8_t *block, size_t row_bytes)
{
    uint8_t sub[ROWS][16];
    for (size_t r = 0; r < ROWS; r++)
        quant_k_scales(block + AT(q4_k, sm) + r * row_bytes, sub[r], sub[r] + 8);
    turn_bytes(s, sub[0], sizeof *sub);
    put_halves(s + 256, block, row_bytes);
    put_halves(s + 288, block + AT(q4_k, dmin), row_bytes);
}

static ATTR_INLINE void put_q4_k(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    (void)at;
    put_k_nibbles(chunk, KERN_GROUP_BYTES(4), block + AT(q4_k, n), row_bytes);
    put_k_scales(chunk + KERN_SCALES_AT(4, 8), block, row_bytes);
}

static ATTR_INLINE void put_q5_k(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    (void)at;
    put_k_nibbles(chunk, KERN_GROUP_BYTES(5), block + AT(q5_k, n), row_bytes);
    put_bits(chunk + 4 * LINE, KERN_GROUP_BYTES(5), block + AT(q5_k, qh), row_bytes);
    put_k_scales(chunk + KERN_SCALES_AT(5, 8), block, row_bytes);
}

static ATTR_INLINE void put_q6_k(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    const size_t apart = KERN_GROUP_BYTES(6);
    uint8_t *s = chunk + KERN_SCALES_AT(6, 8);
    (void)at;
    for (int r = 0; r < ROWS; r += 4)
        for (size_t i = 0; i < 4; i++) /* halves of the groups; groups i and i + 2 of theirs */
            put_nibbles(chunk + apart * (i / 2 * 4 + i % 2),
                        chunk + apart * (i / 2 * 4 + i % 2 + 2), r,
                        block + 32 * i + (size_t)r * row_bytes, row_bytes);
    put_pairs(chunk + 4 * LINE, apart, block + AT(q6_k, qh), row_bytes);
    turn_bytes(s, block + AT(q6_k, sc), row_bytes);
    put_halves(s + 256, block + AT(q6_k, d), row_bytes);
}

static ATTR_INLINE void put_iq4_xs(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    uint8_t *s = chunk + KERN_SCALES_AT(4, 8);
    (void)at;
    put_lines(chunk, LINE, block + AT(iq4_xs, n), row_bytes, 32);
    for (size_t r = 0; r < ROWS; r++) {
        struct quant_iq4_xs b;
        memcpy(&b, block + r * row_bytes, AT(iq4_xs, n));
        for (size_t h = 0; h < 8; h++)
            s[ROWS * h + r] =
                (uint8_t)(((b.sl[h / 2] >> 4 * (h % 2) & 15) | (b.sh >> 2 * h & 3) << 4) - 32);
    }
    put_halves(s + 128, block, row_bytes);
}

static ATTR_INLINE void put_tq2_0(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    (void)at;
    put_pairs(chunk, KERN_GROUP_BYTES(2), block, row_bytes);
    put_halves(chunk + KERN_SCALES_AT(2, 8), block + AT(tq2_0, d), row_bytes);
}

/* Points: two blocks in a chunk. */
static ATTR_INLINE void put_iq2_xxs(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    put_lines(chunk + KERN_GROUP_IQ2_XXS * at, LINE, block + AT(iq2_xxs, q), row_bytes, 16);
    put_halves(chunk + KERN_CHUNK_IQ2_XXS - 64 + 4 * at, block, row_bytes);
}

static ATTR_INLINE void put_iq2_s(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    uint8_t *group = chunk + KERN_GROUP_IQ2_S * at;
    put_lines(group, KERN_GROUP_IQ2_S, block + AT(iq2_s, idx), row_bytes, 8);
    put_lines(group + LINE, KERN_GROUP_IQ2_S, block + AT(iq2_s, sign), row_bytes, 8);
    put_bytes(chunk + KERN_TAIL_IQ2_S + 16 * at, block + AT(iq2_s, qh), row_bytes, 8);
    put_bytes(chunk + KERN_TAIL_IQ2_S + 256 + 16 * at, block + AT(iq2_s, sc), row_bytes, 8);
    put_halves(chunk + KERN_CHUNK_IQ2_S - 64 + 4 * at, block, row_bytes);
}

static ATTR_INLINE void put_iq3_xxs(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    uint8_t *group = chunk + KERN_GROUP_IQ3_XXS * at;
    for (int r = 0; r < ROWS; r += 4)
        for (size_t i = 0; i < 16; i += 4) { /* two words of a group */
            const struct four x =
                turn(block + AT(iq3_xxs, idx) + 4 * i + (size_t)r * row_bytes, row_bytes);
            for (size_t j = 0; j < 4; j++)
                put(group + KERN_GROUP_IQ3_XXS * ((i + j) / 2) + LINE * (j % 2), r, x.v[j]);
        }
    put_lines(group + 2 * LINE, KERN_GROUP_IQ3_XXS, block + AT(iq3_xxs, w), row_bytes, 8);
    put_halves(chunk + KERN_CHUNK_IQ3_XXS - 64 + 4 * at, block, row_bytes);
}

static ATTR_INLINE void put_fp8_b32(uint8_t *chunk, int at, const uint8_t *block, size_t row_bytes)
{
    for (int i = 0; i < 2; i++)
        turn_bytes(chunk + ROWS * (32 * at + 16 * i), block + AT(fp8_b32, code) + 16 * i,
                   row_bytes);
    put_bytes(chunk + KERN_F8_SCALES + ROWS * at, block, row_bytes, 1);
}

/* ---- panels ---- */

/* Inlined with its put: a loop a type.  n: groups in a chunk. */
static ATTR_INLINE void pack(const struct kern_matrix *m, int64_t p, const uint8_t *stored,
                             size_t chunk_bytes, int n, put_fn *fn)
{
    const struct quant_info *info = quant_info(m->type);
    const size_t row_bytes = (size_t)(m->in / info->n) * info->n_bytes;
    uint8_t *panel = NULL;
    for (int64_t k = 0; k < m->in; k += info->n, stored += info->n_bytes) {
        if (k % m->stretch == 0)
            panel = kern_code_panel(m, p, k);
        uint8_t *chunk = panel + (size_t)(k / 32 / n) * chunk_bytes;
        const int at = (int)(k / 32 % n);
        if (!at && k + (int64_t)32 * n > m->in)
            memset(chunk, 0, chunk_bytes);
        else if (!at) /* what is after the scales */
            memset(chunk + chunk_bytes - LINE, 0, LINE);
        fn(chunk, at, stored, row_bytes);
    }
}

/* Floats of 4 and 2 bytes: a line, or half of one, for each k. */
static bool pack_floats(const struct kern_matrix *m, int64_t p, const uint8_t *stored)
{
    const bool wide = m->code == KERN_CODE_F32;
    const size_t size = wide ? 4 : 2, row_bytes = (size_t)m->in * size;
    if (m->in % 8 || m->stretch % 8 || m->type == QUANT_FP8_E4M3)
        return false;
    uint8_t *panel = NULL;
    for (int64_t k = 0; k < m->in; k += 8) {
        if (k % m->stretch == 0)
            panel = kern_code_panel(m, p, k);
        const uint8_t *from = stored + (size_t)k * size;
        uint8_t *to = panel + (size_t)k * size * ROWS;
        if (wide)
            put_lines(to, LINE, from, row_bytes, 8);
        for (size_t r = 0; !wide && r < ROWS; r += 8)
            turn_halves(to + 2 * r, from + r * row_bytes, row_bytes);
    }
    return true;
}

bool kern_pack_words(const struct kern_matrix *m, int64_t p, int n_rows, const uint8_t *stored)
{
    const struct kern_code *c = kern_code_find(m->code);
    if (n_rows < ROWS)
        return false;
    switch (m->code) {
#define PACK(code, n, fn)                                  \
    case KERN_CODE_##code:                                 \
        pack(m, p, stored, c->chunk_bytes, n, put_##fn); \
        return true;
        PACK(Q4_0, 2, q4_0)
        PACK(IQ4_NL, 2, q4_0) /* the same block */
        PACK(MXFP4, 4, mxfp4)
        PACK(Q8_0, 2, q8_0)
        PACK(Q2_K, 8, q2_k)
        PACK(Q3_K, 8, q3_k)
        PACK(Q4_K, 8, q4_k)
        PACK(Q5_K, 8, q5_k)
        PACK(Q6_K, 8, q6_k)
        PACK(IQ4_XS, 8, iq4_xs)
        PACK(TQ2_0, 8, tq2_0)
        PACK(IQ2_XXS, 16, iq2_xxs)
        PACK(IQ2_S, 16, iq2_s)
        PACK(IQ3_XXS, 16, iq3_xxs)
        PACK(F8, 4, fp8_b32)
#undef PACK
    case KERN_CODE_F32:
    case KERN_CODE_F16:
    case KERN_CODE_BF16:
        return pack_floats(m, p, stored);
    default:
        return false;
    }
}
