/* SPDX-License-Identifier: Apache-2.0 */
/* Ternary super-blocks of 256. */
#include "quant/codec.h"

/* Trit n of a byte: the byte is a fraction of 256 in base 3; digit n is what a further
 * multiplication by 3 carries out. */
static float trit(uint8_t q, uint32_t pow3)
{
    return (float)((int)((q * pow3 & 255) * 3 >> 8) - 1);
}

static void tq1_0_block(const struct quant_tq1_0 *b, float *y)
{
    static const uint32_t pow3[5] = {1, 3, 9, 27, 81};
    const float d = codec_f16(b->d);
    for (int n = 0; n < 5; n++)
        for (int j = 0; j < 32; j++)
            *y++ = d * trit(b->q[j], pow3[n]);
    for (int n = 0; n < 5; n++)
        for (int j = 32; j < 48; j++)
            *y++ = d * trit(b->q[j], pow3[n]);
    for (int n = 0; n < 4; n++)
        for (int j = 0; j < 4; j++)
            *y++ = d * trit(b->qh[j], pow3[n]);
}
QUANT_DECODER(tq1_0, 256)

static void tq2_0_block(const struct quant_tq2_0 *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int h = 0; h < 8; h++, y += 32)
        for (int j = 0; j < 32; j++)
            y[j] = d * (float)((b->q[32 * (h / 4) + j] >> 2 * (h % 4) & 3) - 1);
}
QUANT_DECODER(tq2_0, 256)
