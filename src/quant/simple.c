/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 32 to 128 elements with one level of scales. */
#include "quant/codec.h"

#include <math.h>

const int8_t quant_nl4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};
const int8_t quant_e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static uint32_t load32(const uint8_t at[4])
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static void q8_0_block(const struct quant_q8_0 *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)b->q[j];
}
QUANT_DECODER(q8_0, 32)

static void q4_0_block(const struct quant_q4_0 *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((b->n[j] & 15) - 8);
        y[j + 16] = d * (float)((b->n[j] >> 4) - 8);
    }
}
QUANT_DECODER(q4_0, 32)

static void q4_1_block(const struct quant_q4_1 *b, float *y)
{
    const float d = codec_f16(b->d), m = codec_f16(b->m);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(b->n[j] & 15) + m;
        y[j + 16] = d * (float)(b->n[j] >> 4) + m;
    }
}
QUANT_DECODER(q4_1, 32)

static void q5_0_block(const struct quant_q5_0 *b, float *y)
{
    const float d = codec_f16(b->d);
    const uint32_t h = load32(b->qh);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((int)((b->n[j] & 15u) | (h >> j & 1) << 4) - 16);
        y[j + 16] = d * (float)((int)(b->n[j] >> 4 | (h >> (j + 16) & 1) << 4) - 16);
    }
}
QUANT_DECODER(q5_0, 32)

static void q5_1_block(const struct quant_q5_1 *b, float *y)
{
    const float d = codec_f16(b->d), m = codec_f16(b->m);
    const uint32_t h = load32(b->qh);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(int)((b->n[j] & 15u) | (h >> j & 1) << 4) + m;
        y[j + 16] = d * (float)(int)(b->n[j] >> 4 | (h >> (j + 16) & 1) << 4) + m;
    }
}
QUANT_DECODER(q5_1, 32)

static void iq4_nl_block(const struct quant_iq4_nl *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)quant_nl4[b->n[j] & 15];
        y[j + 16] = d * (float)quant_nl4[b->n[j] >> 4];
    }
}
QUANT_DECODER(iq4_nl, 32)

static void mxfp4_block(const struct quant_mxfp4 *b, float *y)
{
    const float d = codec_half_e8m0(b->e);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)quant_e2m1_doubled[b->n[j] & 15];
        y[j + 16] = d * (float)quant_e2m1_doubled[b->n[j] >> 4];
    }
}
QUANT_DECODER(mxfp4, 32)

static void nvfp4_block(const struct quant_nvfp4 *b, float *y)
{
    for (int s = 0; s < 4; s++, y += 16) {
        const float d = codec_half_ue4m3(b->sc[s]);
        for (int i = 0; i < 8; i++) {
            y[i] = d * (float)quant_e2m1_doubled[b->n[8 * s + i] & 15];
            y[i + 8] = d * (float)quant_e2m1_doubled[b->n[8 * s + i] >> 4];
        }
    }
}
QUANT_DECODER(nvfp4, 64)

static void q2_0_block(const struct quant_q2_0 *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int j = 0; j < 64; j++)
        y[j] = d * (float)((b->q[j / 4] >> 2 * (j % 4) & 3) - 1);
}
QUANT_DECODER(q2_0, 64)

static void q1_0_block(const struct quant_q1_0 *b, float *y)
{
    const float d = codec_f16(b->d);
    for (int j = 0; j < 128; j++)
        y[j] = b->bits[j / 8] >> j % 8 & 1 ? d : -d;
}
QUANT_DECODER(q1_0, 128)

/* v cut to [lo, hi] and truncated; a NaN becomes lo. */
static int to_code(float v, int lo, int hi)
{
    return v > (float)lo ? v < (float)hi ? (int)v : hi : lo;
}

/* The codes come from the unrounded scale, the rounded one is stored: the reference does
 * so, and files made elsewhere must be reproducible. */
static void q8_0_pack(const float *x, struct quant_q8_0 *b)
{
    float max = 0;
    for (int j = 0; j < 32; j++)
        max = fmaxf(max, fabsf(x[j]));
    const float d = max / 127, id = d != 0 ? 1 / d : 0;
    b->d = quant_f32_to_f16(d);
    for (int j = 0; j < 32; j++)
        b->q[j] = (int8_t)to_code(roundf(x[j] * id), -127, 127);
}
QUANT_ENCODER(q8_0, 32)

/* The signed value of the largest magnitude; the first of equals. */
static float extreme(const float *x)
{
    float s = 0;
    for (int j = 0; j < 32; j++)
        if (fabsf(x[j]) > fabsf(s))
            s = x[j];
    return s;
}

static void range(const float *x, float *min, float *max)
{
    *min = *max = x[0];
    for (int j = 1; j < 32; j++) {
        *min = fminf(*min, x[j]);
        *max = fmaxf(*max, x[j]);
    }
}

static void q4_0_pack(const float *x, struct quant_q4_0 *b)
{
    const float d = extreme(x) / -8, id = d != 0 ? 1 / d : 0;
    b->d = quant_f32_to_f16(d);
    for (int j = 0; j < 16; j++)
        b->n[j] = (uint8_t)(to_code(x[j] * id + 8.5f, 0, 15) | to_code(x[j + 16] * id + 8.5f, 0, 15)
                                                                   << 4);
}
QUANT_ENCODER(q4_0, 32)

static void q4_1_pack(const float *x, struct quant_q4_1 *b)
{
    float min, max;
    range(x, &min, &max);
    const float d = (max - min) / 15, id = d != 0 ? 1 / d : 0;
    b->d = quant_f32_to_f16(d);
    b->m = quant_f32_to_f16(min);
    for (int j = 0; j < 16; j++)
        b->n[j] = (uint8_t)(to_code((x[j] - min) * id + 0.5f, 0, 15) |
                            to_code((x[j + 16] - min) * id + 0.5f, 0, 15) << 4);
}
QUANT_ENCODER(q4_1, 32)

static void q5_0_pack(const float *x, struct quant_q5_0 *b)
{
    const float d = extreme(x) / -16, id = d != 0 ? 1 / d : 0;
    uint8_t code[32];
    b->d = quant_f32_to_f16(d);
    for (int j = 0; j < 32; j++)
        code[j] = (uint8_t)to_code(x[j] * id + 16.5f, 0, 31);
    codec_put_5bit(code, b->qh, b->n);
}
QUANT_ENCODER(q5_0, 32)

static void q5_1_pack(const float *x, struct quant_q5_1 *b)
{
    float min, max;
    range(x, &min, &max);
    const float d = (max - min) / 31, id = d != 0 ? 1 / d : 0;
    uint8_t code[32];
    b->d = quant_f32_to_f16(d);
    b->m = quant_f32_to_f16(min);
    for (int j = 0; j < 32; j++)
        code[j] = (uint8_t)to_code((x[j] - min) * id + 0.5f, 0, 31);
    codec_put_5bit(code, b->qh, b->n);
}
QUANT_ENCODER(q5_1, 32)

static uint8_t nearest_e2m1(float x, float d)
{
    int best = 0;
    for (int i = 1; i < 16; i++)
        if (fabsf(d * (float)quant_e2m1_doubled[i] - x) <
            fabsf(d * (float)quant_e2m1_doubled[best] - x))
            best = i;
    return (uint8_t)best;
}

static void mxfp4_pack(const float *x, struct quant_mxfp4 *b)
{
    const float max = fabsf(extreme(x));
    int e = 0;
    if (max > 0) {
        (void)frexpf(max, &e); /* max in [2^(e-1), 2^e) */
        e = e - 1 - 2 + 127;
        e = e < 0 ? 0 : e > 252 ? 252 : e;
    }
    b->e = (uint8_t)e;
    const float d = codec_half_e8m0(b->e);
    for (int j = 0; j < 16; j++)
        b->n[j] = (uint8_t)(nearest_e2m1(x[j], d) | nearest_e2m1(x[j + 16], d) << 4);
}
QUANT_ENCODER(mxfp4, 32)
