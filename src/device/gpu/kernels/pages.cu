/* SPDX-License-Identifier: Apache-2.0 */
/* pages - keys, values and rows into pages and back (pages.h). */
#include "device/gpu/kernels/gpu.h"
#include "device/gpu/kernels/number.h"
#include "device/gpu/kernels/pages.h"
#include "device/gpu/kernels/rowcode.h"

/* Where element i of a row at `slot` is among the elements of a block. */
GPU_DEV int64_t pages_at(bool key, int width, int slot, int i)
{
    return key ? attend_key_at(width, slot, i) : (int64_t)slot * width + i;
}

/* A warp a group of 32. */
GPU_DEV void pages_write_scaled(bool key, int width, uint8_t *block, int slot, const float *row)
{
    const int lane = gpu_lane(), n = width / ATTEND_QUANT;
    uint16_t *scale = (uint16_t *)(void *)(block + (int64_t)width * KERN_PAGE);
    for (int g = gpu_warp(); g < n; g += PAGES_THREADS / 32) {
        const float x = row[g * ATTEND_QUANT + lane];
        const bool finite = gpu_ballot(!number_is_finite(x)) == 0;
        float top = number_magnitude(x);
        for (int h = 16; h; h /= 2) {
            const float other = gpu_shfl_xor(top, h);
            top = other > top ? other : top;
        }
        top = top / 127.0f;
        const uint16_t half = finite ? number_to_f16(top < 65504.0f ? top : 65504.0f) : 0x7e00;
        const float d = number_f16(half);
        float v = finite && d > 0.0f ? x / d : 0.0f;
        v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
        ((int8_t *)block)[pages_at(key, width, slot, g * ATTEND_QUANT + lane)] =
            (int8_t)gpu_rint(v);
        if (lane == 0)
            scale[pages_at(key, n, slot, g)] = half;
    }
}

GPU_DEV void pages_write(int codec, bool key, int width, uint8_t *block, int slot,
                         const float *row)
{
    if (codec == KERN_KV_Q8_0) {
        pages_write_scaled(key, width, block, slot, row);
        return;
    }
    for (int i = gpu_tid(); i < width; i += PAGES_THREADS) {
        const int64_t at = pages_at(key, width, slot, i);
        if (codec == KERN_KV_F32)
            ((float *)(void *)block)[at] = row[i];
        else
            ((uint16_t *)(void *)block)[at] =
                codec == KERN_KV_F16 ? number_to_f16(row[i]) : number_to_bf16(row[i]);
    }
}

GPU_ENTRY(pages_kv_append, struct pages_kv_append_args)
{
    const int h = gpu_block(0) % a.n_heads;
    const struct gpu_place p = gpu_place_of(a.span, gpu_block(0) / a.n_heads);
    const int64_t pos = p.span->pos0 + p.i, row = p.span->row0 + p.i;
    uint8_t *page = p.span->page[pos / KERN_PAGE];
    if (!page)
        return;
    uint8_t *block = page + a.at + h * a.head_bytes;
    const int slot = (int)(pos % KERN_PAGE);
    pages_write(a.k_codec, true, a.k_width, block, slot,
                a.k + row * a.k_stride + (int64_t)h * a.k_width);
    pages_write(a.v_codec, false, a.v_width, block + a.v_at, slot,
                a.v + row * a.v_stride + (int64_t)h * a.v_width);
}

/* Where the row of a place is; NULL: nowhere. */
GPU_DEV uint8_t *pages_row(const struct pages_rows_args *a, const struct gpu_place *p)
{
    const int64_t pos = p->span->pos0 + p->i, each = KERN_PAGE / a->every;
    if (pos < 0)
        return 0;
    uint8_t *page = p->span->page[pos / each];
    return page ? page + a->at + pos % each * a->row_bytes : 0;
}

GPU_ENTRY(pages_rows_append, struct pages_rows_args)
{
    const struct gpu_place p = gpu_place_of(a.span, gpu_block(0));
    uint8_t *row = pages_row(&a, &p);
    if (row)
        rowcode_write(a.codec, a.width, a.tail, row, a.x + (p.span->row0 + p.i) * a.stride);
}

GPU_ENTRY(pages_rows_read, struct pages_rows_args)
{
    const struct gpu_place p = gpu_place_of(a.span, gpu_block(0));
    const uint8_t *row = pages_row(&a, &p);
    float *x = a.x + (p.span->row0 + p.i) * a.stride;
    for (int i = gpu_tid(); i < a.width; i += PAGES_THREADS)
        x[i] = row ? rowcode_read(a.codec, a.width, a.tail, row, i) : 0.0f;
}
