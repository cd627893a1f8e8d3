/* SPDX-License-Identifier: Apache-2.0 */
/* Codebook types: super-blocks of 256 whose groups of 8 or 4 are points of a book with
 * signs (iq2, iq3) or a shift (iq1).  The books come from quant/iq_books.txt. */
#include "quant/codec.h"

static uint32_t load32(const void *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* n coordinates of a point, byte j from the lowest, with sign bit j. */
static inline void put_point(float *y, uint64_t point, uint32_t sign, float d, int n)
{
    for (int j = 0; j < n; j++) {
        const float v = d * (float)(int)(point >> 8 * j & 255);
        y[j] = sign >> j & 1 ? -v : v;
    }
}

static int nibble(const uint8_t *at, int i)
{
    return at[i / 2] >> 4 * (i % 2) & 15;
}

static void iq2_xxs_block(const struct quant_iq2_xxs *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int h = 0; h < 8; h++) {
        const uint32_t idx = load32(b->q + 4 * h), w = load32(b->q + 4 * h + 2);
        const float dl = d * (float)(int)(2 * (w >> 28) + 1) * 0.125f;
        for (int l = 0; l < 4; l++, y += 8)
            put_point(y, quant_book_iq2_xxs[idx >> 8 * l & 255], quant_sign_byte(w >> 7 * l & 127),
                      dl, 8);
    }
}
QUANT_DECODER(iq2_xxs, 256)

static void iq2_xs_block(const struct quant_iq2_xs *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int k = 0; k < 32; k++, y += 8) {
        const float dl = d * (float)(2 * nibble(b->sc, k / 2) + 1) * 0.125f;
        put_point(y, quant_book_iq2_xs[b->q[k] & 511], quant_sign_byte(b->q[k] >> 9), dl, 8);
    }
}
QUANT_DECODER(iq2_xs, 256)

static void iq2_s_block(const struct quant_iq2_s *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int k = 0; k < 32; k++, y += 8) {
        const int i = b->idx[k] | (b->qh[k / 4] >> 2 * (k % 4) & 3) << 8;
        const float dl = d * (float)(2 * nibble(b->sc, k / 2) + 1) * 0.125f;
        put_point(y, quant_book_iq2_s[i], b->sign[k], dl, 8);
    }
}
QUANT_DECODER(iq2_s, 256)

static void iq3_xxs_block(const struct quant_iq3_xxs *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int h = 0; h < 8; h++) {
        const uint32_t w = load32(b->w + 4 * h);
        const float dl = d * (float)(int)(2 * (w >> 28) + 1) * 0.25f;
        for (int l = 0; l < 4; l++, y += 8) {
            const uint32_t sign = quant_sign_byte(w >> 7 * l & 127);
            put_point(y, quant_book_iq3_xxs[b->idx[8 * h + 2 * l]], sign, dl, 4);
            put_point(y + 4, quant_book_iq3_xxs[b->idx[8 * h + 2 * l + 1]], sign >> 4, dl, 4);
        }
    }
}
QUANT_DECODER(iq3_xxs, 256)

static void iq3_s_block(const struct quant_iq3_s *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int k = 0; k < 64; k++, y += 4) {
        const int i = b->idx[k] | (b->qh[k / 8] >> k % 8 & 1) << 8;
        const float dl = d * (float)(2 * nibble(b->sc, k / 8) + 1);
        put_point(y, quant_book_iq3_s[i], (uint32_t)b->sign[k / 2] >> 4 * (k % 2), dl, 4);
    }
}
QUANT_DECODER(iq3_s, 256)

static inline void put_ternary(float *y, uint64_t point, float d, float delta)
{
    for (int j = 0; j < 8; j++)
        y[j] = d * ((float)(int8_t)(point >> 8 * j & 255) + delta);
}

static void iq1_s_block(const struct quant_iq1_s *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int k = 0; k < 32; k++, y += 8) {
        const int h = b->h[k / 4];
        const float dl = d * (float)(2 * (h >> 12 & 7) + 1);
        put_ternary(y, quant_book_iq1[b->idx[k] | (h >> 3 * (k % 4) & 7) << 8], dl,
                    h >> 15 ? -0.125f : 0.125f);
    }
}
QUANT_DECODER(iq1_s, 256)

static void iq1_m_block(const struct quant_iq1_m *b, float *y)
{
    const float d = codec_f16(quant_iq1_m_scale(b->sc));
    for (int k = 0; k < 32; k++, y += 8) {
        const int g = k / 2, h = nibble(b->qh, k);
        const float dl = d * (float)(2 * (b->sc[g / 4] >> 3 * (g % 4) & 7) + 1);
        put_ternary(y, quant_book_iq1[b->idx[k] | (h & 7) << 8], dl, h & 8 ? -0.125f : 0.125f);
    }
}
QUANT_DECODER(iq1_m, 256)

static void iq4_xs_block(const struct quant_iq4_xs *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int h = 0; h < 8; h++, y += 32) {
        const int ls = nibble(b->sl, h) | (b->sh >> 2 * h & 3) << 4;
        const uint8_t *n = b->n + 16 * h;
        const float dl = d * (float)(ls - 32);
        for (int j = 0; j < 16; j++) {
            y[j] = dl * (float)quant_nl4[n[j] & 15];
            y[j + 16] = dl * (float)quant_nl4[n[j] >> 4];
        }
    }
}
QUANT_DECODER(iq4_xs, 256)
