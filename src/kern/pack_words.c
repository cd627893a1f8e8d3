/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack_words - stored blocks into panels four codes at a time, for the types whose nibbles and
 * bytes already stand as the planes want them.  Block by block over the 16 rows of a panel,
 * so that the lines that are written stay in the first cache.  pack.c says the same in
 * general; tests/unit/kern_layout.c holds both to the same bytes.
 */
#include "base/num.h"
#include "kern/code.h"

#include <string.h>

static uint32_t word(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static void put(uint8_t *line, int r, uint32_t v)
{
    memcpy(line + 4 * r, &v, sizeof v);
}

/* A block of row r into the chunk, from its group `at` on. */
typedef void put_fn(uint8_t *chunk, int at, int r, const uint8_t *block);

/* 32 nibbles, element j with j + 16 in a byte: a line each four bytes. */
static ATTR_INLINE void put_nibbles(uint8_t *group, int r, const uint8_t *n)
{
    for (int j = 0; j < 4; j++)
        put(group + 64 * j, r, word(n + 4 * j));
}

static ATTR_INLINE void put_q4_0(uint8_t *chunk, int at, int r, const uint8_t *block)
{
    memcpy(chunk + KERN_SCALES_AT(4, 2) + 32 * at + 2 * r, block, 2);
    put_nibbles(chunk + KERN_GROUP_BYTES(4) * at, r, block + offsetof(struct quant_q4_0, n));
}

static ATTR_INLINE void put_mxfp4(uint8_t *chunk, int at, int r, const uint8_t *block)
{
    chunk[KERN_SCALES_AT(4, 4) + 16 * at + r] = block[0];
    put_nibbles(chunk + KERN_GROUP_BYTES(4) * at, r, block + offsetof(struct quant_mxfp4, n));
}

static ATTR_INLINE void put_q8_0(uint8_t *chunk, int at, int r, const uint8_t *block)
{
    uint8_t *group = chunk + KERN_GROUP_BYTES(8) * at;
    memcpy(chunk + KERN_SCALES_AT(8, 2) + 32 * at + 2 * r, block, 2);
    for (int j = 0; j < 8; j++)
        put(group + 64 * j, r, word(block + offsetof(struct quant_q8_0, q) + 4 * j) ^ 0x80808080);
}

static ATTR_INLINE void put_q4_k(uint8_t *chunk, int at, int r, const uint8_t *block)
{
    const uint8_t *n = block + offsetof(struct quant_q4_k, n);
    uint8_t sub[16], min[16], *s = chunk + KERN_SCALES_AT(4, 8);
    (void)at;
    quant_k_scales(block + offsetof(struct quant_q4_k, sm), sub, min);
    for (int h = 0; h < 4; h++) {
        uint8_t *group = chunk + KERN_GROUP_BYTES(4) * (size_t)(2 * h);
        for (int j = 0; j < 4; j++) {
            const uint32_t a = word(n + 32 * h + 4 * j), b = word(n + 32 * h + 16 + 4 * j);
            put(group + 64 * j, r, (a & 0x0F0F0F0F) | (b & 0x0F0F0F0F) << 4);
            put(group + 256 + 64 * j, r, (a >> 4 & 0x0F0F0F0F) | (b & 0xF0F0F0F0));
        }
    }
    for (int g = 0; g < 8; g++) {
        s[16 * g + r] = sub[g];
        s[128 + 16 * g + r] = min[g];
    }
    memcpy(s + 256 + 2 * r, block, 2);
    memcpy(s + 288 + 2 * r, block + offsetof(struct quant_q4_k, dmin), 2);
}

/* One group of 32: words of low nibbles (shifted down) and of two high bits. */
static ATTR_INLINE void put_six(uint8_t *group, int r, const uint8_t *ql, int low, const uint8_t *qh, int high)
{
    for (int j = 0; j < 4; j++) {
        const uint32_t a = word(ql + 4 * j) >> low & 0x0F0F0F0F, b = word(ql + 16 + 4 * j) >> low & 0x0F0F0F0F;
        put(group + 64 * j, r, a | b << 4);
    }
    for (int i = 0; i < 2; i++) {
        uint32_t v = 0;
        for (int t = 0; t < 4; t++)
            v |= (word(qh + 16 * i + 4 * t) >> high & 0x03030303) << 2 * t;
        put(group + 256 + 64 * i, r, v);
    }
}

static ATTR_INLINE void put_q6_k(uint8_t *chunk, int at, int r, const uint8_t *block)
{
    const uint8_t *sc = block + offsetof(struct quant_q6_k, sc);
    uint8_t *s = chunk + KERN_SCALES_AT(6, 8);
    (void)at;
    for (int g = 0; g < 8; g++) {
        const int half = g / 4, h = g % 4;
        put_six(chunk + KERN_GROUP_BYTES(6) * (size_t)g, r, block + 64 * half + 32 * (h % 2), h / 2 * 4,
                block + offsetof(struct quant_q6_k, qh) + 32 * half, 2 * h);
    }
    for (int g = 0; g < 16; g++)
        s[16 * g + r] = sc[g];
    memcpy(s + 256 + 2 * r, block + offsetof(struct quant_q6_k, d), 2);
}

/* Inlined with its put: a loop a type. */
static ATTR_INLINE void pack(const struct kern_matrix *m, const struct kern_code *c, int64_t p, int n_rows,
                             const uint8_t *stored, const struct quant_info *info, put_fn *fn)
{
    const size_t row_bytes = (size_t)(m->in / info->n) * info->n_bytes;
    uint8_t *panel = NULL;
    for (int64_t k = 0; k < m->in; k += info->n, stored += info->n_bytes) {
        if (k % m->stretch == 0)
            panel = kern_code_panel(m, p, k);
        uint8_t *chunk = panel + (size_t)(k / 32 / c->n_group) * c->chunk_bytes;
        const int at = (int)(k / 32 % c->n_group);
        if (!at)
            memset(chunk, 0, c->chunk_bytes);
        for (int r = 0; r < n_rows; r++)
            fn(chunk, at, r, stored + (size_t)r * row_bytes);
    }
}

bool kern_pack_words(const struct kern_matrix *m, int64_t p, int n_rows, const uint8_t *stored)
{
    const struct kern_code *c = kern_code_find(m->code);
    const struct quant_info *info = quant_info(m->type);
    switch (m->code) {
    case KERN_CODE_Q4_0:
    case KERN_CODE_IQ4_NL: /* the same block */
        pack(m, c, p, n_rows, stored, info, put_q4_0);
        return true;
    case KERN_CODE_MXFP4:
        pack(m, c, p, n_rows, stored, info, put_mxfp4);
        return true;
    case KERN_CODE_Q8_0:
        pack(m, c, p, n_rows, stored, info, put_q8_0);
        return true;
    case KERN_CODE_Q4_K:
        pack(m, c, p, n_rows, stored, info, put_q4_k);
        return true;
    case KERN_CODE_Q6_K:
        pack(m, c, p, n_rows, stored, info, put_q6_k);
        return true;
    default:
        return false;
    }
}
