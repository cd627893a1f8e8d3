/* SPDX-License-Identifier: Apache-2.0 */
/* Activations to int8: scale = max / 127, q = x * (127 / max) rounded half to even. */
#include "kern/kernels.h"

#include <math.h>
#include <string.h>

static void quantise(const float *x, int n, int8_t *q, float *scale)
{
    float max = 0;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        const float v = fabsf(x[i]);
        if (!(v <= 0x1.fffffep127f))
            finite = false;
        if (v > max)
            max = v;
    }
    memset(q, 0, (size_t)n);
    *scale = 0;
    if (!finite) {
        *scale = NAN;
    } else if (max >= 0x1p-90f) {
        const float inverse = 127.0f / max;
        *scale = max / 127.0f;
        for (int i = 0; i < n; i++)
            q[i] = (int8_t)rintf(x[i] * inverse);
    }
}

/* Sums of 16 by k % 4 in {0, 1} and {2, 3}. */
static void pair_sums(const int8_t *q, int16_t pair[2])
{
    int s[2] = {0, 0};
    for (int i = 0; i < 16; i++)
        s[i / 2 % 2] += q[i];
    pair[0] = (int16_t)s[0];
    pair[1] = (int16_t)s[1];
}

void kern_act_q32_ref(const struct kern_act *a, int64_t r0, int64_t r1)
{
    for (int64_t r = r0; r < r1; r++) {
        struct kern_act32 *b = (struct kern_act32 *)(void *)(a->q + (size_t)r * a->row_bytes);
        const float *x = a->x + r * a->stride;
        for (int64_t g = 0; g < a->k / 32; g++, b++, x += 32) {
            quantise(x, 32, b->q, &b->scale);
            pair_sums(b->q, b->pairs[0]);
            pair_sums(b->q + 16, b->pairs[1]);
            const int lo = b->pairs[0][0] + b->pairs[1][0], hi = b->pairs[0][1] + b->pairs[1][1];
            b->sum = (float)(lo + hi);
            b->start8 = -8 * (lo + hi);
            b->start128 = -128 * (lo + hi);
            b->pairs8[0] = (int16_t)(-8 * lo);
            b->pairs8[1] = (int16_t)(-8 * hi);
            b->pairs16[0] = (int16_t)(-16 * lo);
            b->pairs16[1] = (int16_t)(-16 * hi);
        }
    }
}

void kern_act_q256_ref(const struct kern_act *a, int64_t r0, int64_t r1)
{
    for (int64_t r = r0; r < r1; r++) {
        struct kern_act256 *b = (struct kern_act256 *)(void *)(a->q + (size_t)r * a->row_bytes);
        const float *x = a->x + r * a->stride;
        for (int64_t i = 0; i < a->k / 256; i++, b++, x += 256) {
            quantise(x, 256, b->q, &b->scale);
            memset(b->pad, 0, sizeof b->pad);
            for (int g = 0; g < 16; g++) {
                int16_t pair[2];
                pair_sums(b->q + 16 * g, pair);
                b->pairs32[g][0] = (int16_t)(-32 * pair[0]);
                b->pairs32[g][1] = (int16_t)(-32 * pair[1]);
                b->sum16[g] = (int16_t)(pair[0] + pair[1]);
            }
            b->start128 = 0;
            for (int h = 0; h < 8; h++) {
                b->sum32[h] = (int16_t)(b->sum16[2 * h] + b->sum16[2 * h + 1]);
                b->start128 -= 128 * b->sum32[h];
            }
        }
    }
}
