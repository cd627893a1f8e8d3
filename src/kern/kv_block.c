/* SPDX-License-Identifier: Apache-2.0 */
/* kv_block - names and sizes of blocks of keys and values, and a row of one. */
#include "kern/attend.h"
#include "kern/attend_coded.h"
#include "kern/attend_part.h"
#include "kern/kv_code.h"
#include "quant/quant.h"
#include <string.h>

static const char *const codec_name[KERN_KV_CODECS] = {
    [KERN_KV_F32] = "f32",   [KERN_KV_F16] = "f16",         [KERN_KV_BF16] = "bf16",
    [KERN_KV_Q8_0] = "q8_0", [KERN_KV_FP8] = "fp8",         [KERN_KV_FP4] = "fp4",
    [KERN_KV_Q8R] = "q8r",   [KERN_KV_N4R] = "n4r",         [KERN_KV_TQ3_0] = "tq3_0",
    [KERN_KV_FROM_V] = "v",  [KERN_KV_Q8R_ROT] = "q8r+rot", [KERN_KV_N4R_ROT] = "n4r+rot"};
const char kern_kv_names[] = "f32, f16, bf16, q8_0, fp8, q8r, n4r, tq3_0";

const char *kern_kv_name(enum kern_kv_codec c)
{
    return codec_name[c];
}

bool kern_kv_by_name(const char *name, enum kern_kv_codec *c)
{
    for (int i = 0; i < KERN_KV_CODECS; i++)
        if (i != KERN_KV_FP4 && i < KERN_KV_FROM_V && !strcmp(name, codec_name[i])) {
            *c = (enum kern_kv_codec)i;
            return true;
        }
    return false;
}

/* 0: the codec does not hold heads of that width. */
static size_t coded_bytes(enum kern_kv_codec c, bool key, int64_t width)
{
    const int64_t least = c == KERN_KV_TQ3_0  ? KERN_KV_GROUP
                          : kern_kv_is_rot(c) ? KERN_KV_PARTS * ATTEND_LANES
                                              : ATTEND_LANES;
    if (width < least || width > KERN_KV_WIDE || (width & (width - 1)))
        return 0;
    const size_t norms = (size_t)kern_kv_groups(c, width) * KERN_PAGE * 2;
    const size_t all = norms + kern_kv_code_bytes(c, width);
    return kern_kv_is_rot(c) && key ? all / KERN_KV_PARTS : all;
}

bool kern_kv_needs_coded(enum kern_kv_codec k, enum kern_kv_codec v)
{
    return kern_kv_is_coded(k) || kern_kv_is_coded(v) || k == KERN_KV_FROM_V;
}

const char *kern_kv_widths(enum kern_kv_codec c)
{
    switch (c) {
    case KERN_KV_Q8_0:
        return "multiples of 32";
    case KERN_KV_Q8R:
    case KERN_KV_N4R:
        return "powers of two from 16 to 512";
    case KERN_KV_TQ3_0:
        return "128, 256 and 512";
    case KERN_KV_Q8R_ROT:
    case KERN_KV_N4R_ROT:
        return "64, 128, 256 and 512";
    default:
        return "only rows of DeepSeek V4";
    }
}

size_t kern_kv_block_bytes(enum kern_kv_codec c, bool key, int64_t width)
{
    if (width <= 0 || width > INT32_MAX)
        return 0;
    size_t n = (size_t)width * KERN_PAGE;
    switch (c) {
    case KERN_KV_F32:
        return n * 4;
    case KERN_KV_F16:
    case KERN_KV_BF16:
        return n * 2;
    case KERN_KV_Q8_0:
        return width % ATTEND_QUANT ? 0 : n + n / ATTEND_QUANT * 2;
    case KERN_KV_Q8R:
    case KERN_KV_N4R:
    case KERN_KV_TQ3_0:
    case KERN_KV_Q8R_ROT:
    case KERN_KV_N4R_ROT:
        return coded_bytes(c, key, width);
    case KERN_KV_FP8:
    case KERN_KV_FP4:
    case KERN_KV_FROM_V:
    case KERN_KV_CODECS:
        break;
    }
    return 0;
}

void kern_kv_read(enum kern_kv_codec c, bool key, int64_t width, const void *block, int64_t slot,
                  float *row)
{
    const float *f = block;
    const uint16_t *h = block;
    const int8_t *q = block;
    const uint16_t *scale = (const uint16_t *)(const void *)(q + width * KERN_PAGE);
    if (kern_kv_is_coded(c)) {
        for (int64_t i = 0; i < width; i++)
            row[i] = 0.0f; /* of keys with +rot a part is stored */
        kern_attend_coded_read(c, key, width, block, slot, row);
        kern_kv_turn_back(c, row, width);
        return;
    }
    const int64_t at = key ? attend_key_at(width, slot, 0) : slot * width;
    const int64_t step = key ? ATTEND_LANES : 1, n_groups = width / ATTEND_QUANT;
    float by = 0;
    if (c == KERN_KV_F32)
        for (int64_t k = 0; k < width; k++)
            row[k] = f[at + k * step];
    else if (c == KERN_KV_F16)
        for (int64_t k = 0; k < width; k++)
            row[k] = quant_f16_to_f32(h[at + k * step]);
    else if (c == KERN_KV_BF16)
        for (int64_t k = 0; k < width; k++)
            row[k] = quant_bf16_to_f32(h[at + k * step]);
    else
        for (int64_t k = 0; k < width; k++) {
            const int64_t g = k / ATTEND_QUANT;
            if (k % ATTEND_QUANT == 0)
                by = quant_f16_to_f32(
                    scale[key ? attend_key_at(n_groups, slot, g) : slot * n_groups + g]);
            row[k] = (float)q[at + k * step] * by;
        }
}
