/* SPDX-License-Identifier: Apache-2.0 */
/* Stored rows into panels. */
#include "kern/code.h"

#include "base/num.h"
#include <string.h>

/* One stored block taken apart: codes in order of k, scales as the panels keep them. */
struct raw {
    uint8_t c[256];
    uint8_t sub[16], min[16]; /* Q256: rows of the chunk's scale arrays */
    uint8_t e[4];             /* MXFP4, NVFP4 */
    uint16_t d, m;
};

static void nibbles(const uint8_t *n, uint8_t *c, int half)
{
    for (int j = 0; j < half; j++) {
        c[j] = n[j] & 15;
        c[j + half] = n[j] >> 4;
    }
}

/* Bit j of h is the bit of weight 16 of code j. */
static void fifth_bits(const uint8_t qh[4], uint8_t *c)
{
    for (int j = 0; j < 32; j++)
        c[j] = (uint8_t)(c[j] | (qh[j / 8] >> j % 8 & 1) << 4);
}

static void raw_q4_0(const struct quant_q4_0 *s, struct raw *w)
{
    w->d = s->d;
    nibbles(s->n, w->c, 16);
}

static void raw_q4_1(const struct quant_q4_1 *s, struct raw *w)
{
    w->d = s->d;
    w->m = s->m;
    nibbles(s->n, w->c, 16);
}

static void raw_q5_0(const struct quant_q5_0 *s, struct raw *w)
{
    w->d = s->d;
    nibbles(s->n, w->c, 16);
    fifth_bits(s->qh, w->c);
}

static void raw_q5_1(const struct quant_q5_1 *s, struct raw *w)
{
    w->d = s->d;
    w->m = s->m;
    nibbles(s->n, w->c, 16);
    fifth_bits(s->qh, w->c);
}

static void raw_q8_0(const struct quant_q8_0 *s, struct raw *w)
{
    w->d = s->d;
    for (int j = 0; j < 32; j++)
        w->c[j] = (uint8_t)(s->q[j] ^ 0x80);
}

static void raw_iq4_nl(const struct quant_iq4_nl *s, struct raw *w)
{
    w->d = s->d;
    nibbles(s->n, w->c, 16);
}

static void raw_mxfp4(const struct quant_mxfp4 *s, struct raw *w)
{
    w->e[0] = s->e;
    nibbles(s->n, w->c, 16);
}

/* The reference's zero becomes the plain one, so that kernels need no exception. */
static void raw_nvfp4(const struct quant_nvfp4 *s, struct raw *w)
{
    for (int i = 0; i < 4; i++) {
        w->e[i] = s->sc[i] == 0x7F ? 0 : s->sc[i] & 0x7F;
        nibbles(s->n + 8 * i, w->c + 16 * i, 8);
    }
}

static void raw_q1_0(const struct quant_q1_0 *s, struct raw *w)
{
    w->d = s->d;
    for (int j = 0; j < 128; j++)
        w->c[j] = s->bits[j / 8] >> j % 8 & 1;
}

static void raw_q2_0(const struct quant_q2_0 *s, struct raw *w)
{
    w->d = s->d;
    for (int j = 0; j < 64; j++)
        w->c[j] = s->q[j / 4] >> 2 * (j % 4) & 3;
}

static void two_bits(const uint8_t q[64], uint8_t c[256])
{
    for (int h = 0; h < 8; h++)
        for (int j = 0; j < 32; j++)
            c[32 * h + j] = q[32 * (h / 4) + j] >> 2 * (h % 4) & 3;
}

static void raw_q2_k(const struct quant_q2_k *s, struct raw *w)
{
    w->d = s->d;
    w->m = s->dmin;
    memcpy(w->sub, s->sc, 16);
    two_bits(s->q, w->c);
}

static void raw_q3_k(const struct quant_q3_k *s, struct raw *w)
{
    int8_t sub[16];
    w->d = s->d;
    quant_q3_k_scales(s->sc, sub);
    memcpy(w->sub, sub, 16);
    two_bits(s->q, w->c);
    for (int h = 0; h < 8; h++)
        for (int j = 0; j < 32; j++)
            w->c[32 * h + j] = (uint8_t)(w->c[32 * h + j] | (s->hmask[j] >> h & 1) << 2);
}

static void raw_q4_k(const struct quant_q4_k *s, struct raw *w)
{
    w->d = s->d;
    w->m = s->dmin;
    quant_k_scales(s->sm, w->sub, w->min);
    for (int h = 0; h < 4; h++)
        nibbles(s->n + 32 * h, w->c + 64 * h, 32);
}

static void raw_q5_k(const struct quant_q5_k *s, struct raw *w)
{
    w->d = s->d;
    w->m = s->dmin;
    quant_k_scales(s->sm, w->sub, w->min);
    for (int h = 0; h < 4; h++)
        nibbles(s->n + 32 * h, w->c + 64 * h, 32);
    for (int h = 0; h < 8; h++)
        for (int j = 0; j < 32; j++)
            w->c[32 * h + j] = (uint8_t)(w->c[32 * h + j] | (s->qh[j] >> h & 1) << 4);
}

static void raw_q6_k(const struct quant_q6_k *s, struct raw *w)
{
    w->d = s->d;
    memcpy(w->sub, s->sc, 16);
    for (int half = 0; half < 2; half++) {
        uint8_t *c = w->c + 128 * half;
        nibbles(s->ql + 64 * half, c, 64);
        for (int h = 0; h < 4; h++)
            for (int j = 0; j < 32; j++)
                c[32 * h + j] =
                    (uint8_t)(c[32 * h + j] | (s->qh[32 * half + j] >> 2 * h & 3) << 4);
    }
}

static void raw_iq4_xs(const struct quant_iq4_xs *s, struct raw *w)
{
    w->d = s->d;
    for (int h = 0; h < 8; h++) {
        const int ls = (s->sl[h / 2] >> 4 * (h % 2) & 15) | (s->sh >> 2 * h & 3) << 4;
        w->sub[h] = (uint8_t)(ls - 32);
        nibbles(s->n + 16 * h, w->c + 32 * h, 16);
    }
}

static void raw_tq2_0(const struct quant_tq2_0 *s, struct raw *w)
{
    w->d = s->d;
    two_bits(s->q, w->c);
}

static void raw_read(uint32_t code, const uint8_t *stored, struct raw *w)
{
    switch (code) {
#define READ(id, fn)                  \
    case KERN_CODE_##id: {            \
        struct quant_##fn s;          \
        memcpy(&s, stored, sizeof s); \
        raw_##fn(&s, w);              \
        return;                       \
    }
        READ(Q4_0, q4_0)
        READ(Q4_1, q4_1)
        READ(Q5_0, q5_0)
        READ(Q5_1, q5_1)
        READ(Q8_0, q8_0)
        READ(IQ4_NL, iq4_nl)
        READ(MXFP4, mxfp4)
        READ(NVFP4, nvfp4)
        READ(Q1_0, q1_0)
        READ(Q2_0, q2_0)
        READ(Q2_K, q2_k)
        READ(Q3_K, q3_k)
        READ(Q4_K, q4_k)
        READ(Q5_K, q5_k)
        READ(Q6_K, q6_k)
        READ(IQ4_XS, iq4_xs)
        READ(TQ2_0, tq2_0)
#undef READ
    }
}

/* Row r's 32 codes of a group into the planes, four codes at a time. */
static void put_codes(int bits, uint8_t *group, int r, const uint8_t *c)
{
    uint32_t v[8], w;
    memcpy(v, c, sizeof v);
    group += 4 * r;
    if (bits == 8) {
        for (int j = 0; j < 8; j++)
            memcpy(group + 64 * j, &v[j], sizeof w);
        return;
    }
    if (bits & 4) {
        for (int j = 0; j < 4; j++) {
            w = (v[j] & 0x0F0F0F0F) | (v[j + 4] & 0x0F0F0F0F) << 4;
            memcpy(group + 64 * j, &w, sizeof w);
        }
        for (int j = 0; j < 8; j++)
            v[j] = v[j] >> 4 & 0x0F0F0F0F;
        group += 256;
    }
    if (bits & 2) {
        for (int h = 0; h < 2; h++) {
            w = 0;
            for (int t = 0; t < 4; t++)
                w |= (v[4 * h + t] & 0x03030303) << 2 * t;
            memcpy(group + 64 * h, &w, sizeof w);
        }
        for (int j = 0; j < 8; j++)
            v[j] = v[j] >> 2 & 0x3F3F3F3F;
        group += 128;
    }
    if (bits & 1) {
        w = 0;
        for (int t = 0; t < 8; t++)
            w |= (v[t] & 0x01010101) << t;
        memcpy(group, &w, sizeof w);
    }
}

static void put_half(uint8_t *at, int r, uint16_t h) { memcpy(at + 2 * r, &h, sizeof h); }

/* The scale row of the group at place `at` of a chunk; i: which group of its block. */
static void put_scale32(const struct kern_code *c, uint8_t *chunk, int at, int i, int r,
                        const struct raw *w)
{
    uint8_t *s = chunk + KERN_SCALES_AT(c->bits, c->n_group) +
                 (at >> c->scale_shift) * KERN_SCALE_BYTES(c->scales);
    switch (c->scales) {
    case KERN_SCALES_E:
        s[r] = w->e[0];
        break;
    case KERN_SCALES_E2:
        s[r] = w->e[2 * i];
        s[16 + r] = w->e[2 * i + 1];
        break;
    case KERN_SCALES_DM:
        put_half(s + 32, r, w->m);
        put_half(s, r, w->d);
        break;
    default:
        put_half(s, r, w->d);
    }
}

static void put_scales256(const struct kern_code *c, uint8_t *chunk, int r, const struct raw *w)
{
    uint8_t *s = chunk + KERN_SCALES_AT(c->bits, 8);
    int n_sub = 0;
    switch (c->scales) {
    case KERN_SCALES_SUB8:
    case KERN_SCALES_SUB8_MIN:
        n_sub = 8;
        break;
    case KERN_SCALES_SUB16:
    case KERN_SCALES_SUB16_NIB:
        n_sub = 16;
        break;
    default:
        break;
    }
    for (int g = 0; g < n_sub; g++)
        s[16 * g + r] = w->sub[g];
    s += 16 * n_sub;
    if (c->scales == KERN_SCALES_SUB8_MIN) {
        for (int g = 0; g < 8; g++)
            s[16 * g + r] = w->min[g];
        s += 128;
    }
    put_half(s, r, w->d);
    if (c->scales == KERN_SCALES_SUB8_MIN || c->scales == KERN_SCALES_SUB16_NIB)
        put_half(s + 32, r, w->m);
}

/* Block b, of n, of row r of panel p of a packed code. */
static void pack_block(const struct kern_matrix *m, const struct kern_code *c, int64_t p, int r,
                       const uint8_t *stored, int64_t b, int n)
{
    struct raw w;
    uint8_t *panel = kern_code_panel(m, p, b * n);
    raw_read(m->code, stored, &w);
    for (int i = 0; i < n / 32; i++) {
        const int64_t g = b * (n / 32) + i;
        uint8_t *chunk = panel + (size_t)(g / c->n_group) * c->chunk_bytes;
        const int at = (int)(g % c->n_group);
        put_codes(c->bits, chunk + KERN_GROUP_BYTES(c->bits) * at, r, w.c + 32 * i);
        if (c->act == KERN_ACT_Q32)
            put_scale32(c, chunk, at, i, r, &w);
        else if (i == 0)
            put_scales256(c, chunk, r, &w);
    }
}

/* Weights [k0, k1), which are of one stretch, of row r of panel p. */
static void pack_floats(const struct kern_matrix *m, int64_t p, int r, const uint8_t *stored,
                        int64_t k0, int64_t k1)
{
    uint8_t *panel = kern_code_panel(m, p, k0);
    for (int64_t k = k0; k < k1; k++) {
        if (m->code == KERN_CODE_F32) {
            memcpy(panel + (size_t)k * 64 + 4 * r, stored + 4 * k, 4);
        } else if (m->type == QUANT_FP8_E4M3) {
            put_half(panel + (size_t)k * 32, r,
                     quant_f32_to_f16(quant_fp8_e4m3_to_f32(stored[k])));
        } else if (m->type == QUANT_FP8_B32) {
            const struct quant_fp8_b32 *b = (const struct quant_fp8_b32 *)(const void *)stored;
            uint8_t *chunk = panel + (size_t)(k / 128) * KERN_F8_CHUNK;
            chunk[k % 128 * 16 + r] = b[k / 32].code[k % 32];
            chunk[KERN_F8_SCALES + k % 128 / 32 * 16 + r] = b[k / 32].scale;
        } else if (m->type == QUANT_FP8_S32) {
            const struct quant_fp8_s32 *b = (const struct quant_fp8_s32 *)(const void *)stored;
            uint8_t *chunk = panel + (size_t)(k / 128) * KERN_F8S_CHUNK;
            chunk[k % 128 * 16 + r] = b[k / 32].code[k % 32];
            memcpy(chunk + KERN_F8_SCALES + k % 128 / 32 * 64 + 4 * r, b[k / 32].scale, 4);
        } else if (m->code == KERN_CODE_W8) {
            const struct quant_q8_0 *b = (const struct quant_q8_0 *)(const void *)stored;
            uint8_t *chunk = panel + (size_t)(k / 128) * KERN_W8_CHUNK;
            chunk[k % 128 * 16 + r] = (uint8_t)b[k / 32].q[k % 32];
            put_half(chunk + KERN_F8_SCALES + k % 128 / 32 * 32, r, b[k / 32].d);
        } else {
            memcpy(panel + (size_t)k * 32 + 2 * r, stored + 2 * k, 2);
        }
    }
}

void kern_pack(const struct kern_matrix *m, int64_t p0, int64_t p1, const void *rows)
{
    const struct kern_code *c = kern_code_find(m->code);
    const struct quant_info *info = quant_info(m->type);
    const size_t row_bytes = (size_t)(m->in / info->n) * info->n_bytes;
    const uint8_t *stored = rows;
    for (int64_t p = p0; p < p1; p++) {
        const int64_t left = m->out - p * KERN_PANEL;
        const int n_rows = left < KERN_PANEL ? (int)left : KERN_PANEL;
        if (kern_pack_words(m, p, n_rows, stored)) {
            stored += (size_t)n_rows * row_bytes;
            continue;
        }
        for (int64_t k = 0; k < m->in; k += m->stretch)
            memset(kern_code_stretch(m, p, k / m->stretch), 0,
                   kern_code_stretch_bytes(m, k / m->stretch));
        for (int64_t b = 0; c->bits && b < m->in / info->n; b++)
            for (int r = 0; r < n_rows; r++)
                pack_block(m, c, p, r, stored + (size_t)r * row_bytes + (size_t)b * info->n_bytes,
                           b, (int)info->n);
        for (int r = 0; r < n_rows; r++, stored += row_bytes) {
            if (c->act == KERN_ACT_Q256 && c->n_group && !c->bits)
                for (int64_t i = 0; i < m->in / 256; i++)
                    kern_points_put(m, p, i, r, stored + (size_t)i * info->n_bytes);
            else if (c->act != KERN_ACT_F32 && !c->bits)
                memcpy(kern_code_panel(m, p, 0) + (size_t)r * row_bytes, stored, row_bytes);
            for (int64_t k = 0; c->act == KERN_ACT_F32 && k < m->in; k += m->stretch)
                pack_floats(m, p, r, stored, k, num_min(m->in, k + m->stretch));
        }
    }
}
