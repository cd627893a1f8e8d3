/* SPDX-License-Identifier: Apache-2.0 */
/* K: super-blocks of 256 with integer sub-scales.  A product of scales and code fits the
 * 24 bits of a float, so only the subtraction of a minimum rounds. */
#include "quant/codec.h"

/* Elements of 16-group g all have their 2-bit codes in 16 bytes at the same bits. */
static const uint8_t *two_bits(const uint8_t q[64], int g, int *shift)
{
    *shift = 2 * (g % 8 / 2);
    return q + 32 * (g / 8) + 16 * (g % 2);
}

static void q2_k_block(const struct quant_q2_k *b, float *y)
{
    const float d = codec_f16(b->d), dmin = codec_f16(b->dmin);
    for (int g = 0; g < 16; g++, y += 16) {
        int shift;
        const uint8_t *q = two_bits(b->q, g, &shift);
        const float sc = d * (float)(b->sc[g] & 15), m = dmin * (float)(b->sc[g] >> 4);
        for (int j = 0; j < 16; j++)
            y[j] = sc * (float)(q[j] >> shift & 3) - m;
    }
}
QUANT_DECODER(q2_k, 256)

static void q3_k_block(const struct quant_q3_k *b, float *y)
{
    const float d = codec_f16(b->d);
    int8_t s[16];
    quant_q3_k_scales(b->sc, s);
    for (int g = 0; g < 16; g++, y += 16) {
        int shift;
        const uint8_t *q = two_bits(b->q, g, &shift), *h = b->hmask + 16 * (g % 2);
        const float sc = d * (float)s[g];
        for (int j = 0; j < 16; j++)
            y[j] = sc * (float)((q[j] >> shift & 3) + (h[j] >> g / 2 & 1) * 4 - 4);
    }
}
QUANT_DECODER(q3_k, 256)

static void q4_k_block(const struct quant_q4_k *b, float *y)
{
    const float d = codec_f16(b->d), dmin = codec_f16(b->dmin);
    uint8_t sc[8], m[8];
    quant_k_scales(b->sm, sc, m);
    for (int h = 0; h < 8; h++, y += 32) {
        const uint8_t *n = b->n + 32 * (h / 2);
        const int shift = 4 * (h % 2);
        const float d1 = d * (float)sc[h], m1 = dmin * (float)m[h];
        for (int j = 0; j < 32; j++)
            y[j] = d1 * (float)(n[j] >> shift & 15) - m1;
    }
}
QUANT_DECODER(q4_k, 256)

static void q5_k_block(const struct quant_q5_k *b, float *y)
{
    const float d = codec_f16(b->d), dmin = codec_f16(b->dmin);
    uint8_t sc[8], m[8];
    quant_k_scales(b->sm, sc, m);
    for (int h = 0; h < 8; h++, y += 32) {
        const uint8_t *n = b->n + 32 * (h / 2);
        const int shift = 4 * (h % 2);
        const float d1 = d * (float)sc[h], m1 = dmin * (float)m[h];
        for (int j = 0; j < 32; j++)
            y[j] = d1 * (float)((n[j] >> shift & 15) + (b->qh[j] >> h & 1) * 16) - m1;
    }
}
QUANT_DECODER(q5_k, 256)

static void q6_k_block(const struct quant_q6_k *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int g = 0; g < 16; g++, y += 16) {
        const int r = 16 * (g % 8);
        const uint8_t *lo = b->ql + 64 * (g / 8) + r % 64, *hi = b->qh + 32 * (g / 8) + r % 32;
        const int lo_shift = 4 * (r / 64), hi_shift = 2 * (r / 32);
        const float sc = d * (float)b->sc[g];
        for (int j = 0; j < 16; j++)
            y[j] = sc * (float)(((lo[j] >> lo_shift & 15) | (hi[j] >> hi_shift & 3) << 4) - 32);
    }
}
QUANT_DECODER(q6_k, 256)
