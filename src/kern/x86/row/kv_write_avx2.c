/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_write_avx2 - rows into blocks of keys and values: 32 elements at a time are encoded
 * in registers, then stored side by side (values) or sixteen positions apart (keys).
 */
#include "kern/attend.h"
#include "kern/attend_part.h"
#include "kern/x86/lanes_half.h"
#include <string.h>

/* Where a row goes: element k of it is element first + k * step of the block. */
struct place {
    int64_t first, step;
};

static struct place place_of(bool key, int64_t width, int64_t slot)
{
    if (key)
        return (struct place){attend_key_at(width, slot, 0), ATTEND_LANES};
    return (struct place){slot * width, 1};
}

/* n codes of size bytes (1, 2 or 4) from element k of a row on. */
LANES_INLINE void spread(void *block, struct place at, int64_t k, const void *codes, int64_t n,
                         int64_t size)
{
    uint8_t *to = (uint8_t *)block + (at.first + k * at.step) * size;
    const uint8_t *from = codes;
    if (at.step == 1) {
        memcpy(to, from, (size_t)(n * size));
        return;
    }
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * at.step * size, from + i * size, (size_t)size);
}

static void write_half(enum kern_kv_codec c, void *block, struct place at, const float *row,
                       int64_t width)
{
    for (int64_t k = 0; k < width; k += 16) {
        int64_t n = width - k < 16 ? width - k : 16;
        struct v16 x = v_load_n(row + k, n);
        __m128i h[2];
        h[0] = c == KERN_KV_F16 ? lanes_to_f16(x.a) : lanes_to_bf16(x.a);
        h[1] = c == KERN_KV_F16 ? lanes_to_f16(x.b) : lanes_to_bf16(x.b);
        spread(block, at, k, h, n, 2);
    }
}

/* Eight codes, as 32-bit integers: x / d within +-127, half to even. */
static __m256i to_codes(__m256 x, __m256 d)
{
    const __m256 top = _mm256_set1_ps(127.0f), low = _mm256_set1_ps(-127.0f);
    __m256 v = _mm256_max_ps(low, _mm256_min_ps(top, _mm256_div_ps(x, d)));
    return _mm256_cvtps_epi32(v);
}

/* 32 floats to codes; returns their scale. */
static uint16_t quantise(const float *x, int8_t codes[ATTEND_QUANT])
{
    const struct v16 abs = v_bits(0x7fffffffu), inf = v_bits(0x7f800000u);
    struct v16 a = v_load(x), b = v_load(x + 16);
    struct v16 ma = v_and(a, abs), mb = v_and(b, abs);
    memset(codes, 0, ATTEND_QUANT);
    if ((v_mask(v_greater(inf, ma)) & v_mask(v_greater(inf, mb))) != 0xffff)
        return 0x7e00;
    float top = v_fold_max(v_max(ma, mb)) / 127.0f;
    uint16_t h = (uint16_t)_cvtss_sh(top < 65504.0f ? top : 65504.0f, _MM_FROUND_TO_NEAREST_INT);
    if (!h)
        return h;
    __m256 d = _mm256_set1_ps(_cvtsh_ss(h));
    __m256i p = _mm256_packs_epi32(to_codes(a.a, d), to_codes(a.b, d));
    __m256i q = _mm256_packs_epi32(to_codes(b.a, d), to_codes(b.b, d));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i all = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(p, q), order);
    _mm256_storeu_si256((__m256i *)(void *)codes, all);
    return h;
}

static void write_scaled(bool key, int64_t width, void *block, int64_t slot, const float *row)
{
    int64_t n_groups = width / ATTEND_QUANT;
    struct place at = place_of(key, width, slot), scale_at = place_of(key, n_groups, slot);
    for (int64_t g = 0; g < n_groups; g++) {
        int8_t codes[ATTEND_QUANT];
        uint16_t h = quantise(row + g * ATTEND_QUANT, codes);
        spread(block, at, g * ATTEND_QUANT, codes, ATTEND_QUANT, 1);
        spread((uint8_t *)block + width * KERN_PAGE, scale_at, g, &h, 1, 2);
    }
}

void kern_kv_write_avx2(enum kern_kv_codec c, bool key, int64_t width, void *block, int64_t slot,
                        const float *rows, int64_t n, int64_t stride)
{
    for (int64_t r = 0; r < n; r++, slot++, rows += stride) {
        struct place at = place_of(key, width, slot);
        if (c == KERN_KV_F32)
            spread(block, at, 0, rows, width, 4);
        else if (c == KERN_KV_Q8_0)
            write_scaled(key, width, block, slot, rows);
        else
            write_half(c, block, at, rows, width);
    }
}
