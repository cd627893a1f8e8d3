/* product_words - what the kernels of all codes share; for .cu files. */
#ifndef INGLE_DEVICE_GPU_KERNELS_PRODUCT_WORDS_H
#define INGLE_DEVICE_GPU_KERNELS_PRODUCT_WORDS_H

#include "device/gpu/kernels/number.h"
#include "device/gpu/kernels/product.h"
#include "kern/blocks.h"

#if defined(__NVPTX__) || defined(GPU_EMULATOR)

enum { CODE_ACT_Q32, CODE_ACT_Q256 };
enum {
    CODE_TABLE_NULL,
    CODE_TABLE_quant_nl4,
    CODE_TABLE_quant_e2m1_doubled,
    CODE_TABLE_kern_code_pm1
};
enum { KERN_PANEL_ = 16, KERN_BAND_ = 4 };
#define PRODUCT_NAME(name, code) PRODUCT_NAME_(name, code)
#define PRODUCT_NAME_(name, code) name##_##code
#define PRODUCT_ROWS_NAME(code, rows) PRODUCT_ROWS_NAME_(code, rows)
#define PRODUCT_ROWS_NAME_(code, rows) product_##code##_##rows

/* Two words of 16 table entries, quant_nl4 or quant_e2m1_doubled, by the half bytes of v: the low
 * ones, and the high ones.  Selectors are half bytes themselves; bit 3 chooses a half of the
 * table. */
GPU_DEV uint32_t product_look_up16(uint32_t v, int table)
{
    const bool nl4 = table == CODE_TABLE_quant_nl4;
    const uint32_t t0 = nl4 ? 0xbfad9881u : 0x03020100u, t1 = nl4 ? 0xf6eaddcfu : 0x0c080604u;
    const uint32_t t2 = nl4 ? 0x26190d01u : 0xfdfeff00u, t3 = nl4 ? 0x71594535u : 0xf4f8fafcu;
    const uint32_t low = gpu_bytes(t0, t1, v & 0x7777u), high = gpu_bytes(t2, t3, v & 0x7777u);
    return gpu_bytes(low, high, 0x3210u | (v & 0x8888u) >> 1);
}
GPU_DEV void product_look_up(uint32_t v, int table, uint32_t *lo, uint32_t *hi)
{
    const uint32_t a = product_look_up16(v, table), b = product_look_up16(v >> 16, table);
    *lo = gpu_bytes(a, b, 0x6420u);
    *hi = gpu_bytes(a, b, 0x7531u);
}

/* Unsigned E4M3, halved, as kern/code.c reads it. */
GPU_DEV float product_half_ue4m3(uint32_t b)
{
    const uint32_t e = b >> 3 & 15, m = b & 7;
    return e ? gpu_bits((e + 119) << 23 | m << 20) : (float)(int)m * 0x1p-10f;
}

/* Stretch s of panel p of a matrix (kern_code_stretch()). */
GPU_DEV const uint8_t *product_stretch(const uint8_t *w, int64_t panel_bytes, int64_t stretch_bytes,
                                       int64_t n_panels, int64_t p, int64_t s)
{
    const int64_t first = p / KERN_BAND_ * KERN_BAND_, left = n_panels - first;
    const int64_t n = left < KERN_BAND_ ? left : KERN_BAND_, rest = panel_bytes - s * stretch_bytes;
    return w + first * panel_bytes + s * stretch_bytes * n +
           (p - first) * (rest < stretch_bytes ? rest : stretch_bytes);
}

/* A word, a half, a byte of a matrix: of the card's memory, or, PRODUCT_IN_SHARED, of what was
 * copied to shared memory. */
#ifdef PRODUCT_IN_SHARED
GPU_DEV uint32_t product_word(const uint8_t *p) { return *(const uint32_t *)(const void *)p; }
GPU_DEV uint16_t product_half(const uint8_t *p) { return *(const uint16_t *)(const void *)p; }
GPU_DEV uint8_t product_byte(const uint8_t *p) { return *p; }
#else
GPU_DEV uint32_t product_word(const uint8_t *p) { return gpu_stream_word(p); }
GPU_DEV uint16_t product_half(const uint8_t *p) { return gpu_stream_half(p); }
GPU_DEV uint8_t product_byte(const uint8_t *p) { return gpu_stream_byte(p); }
#endif

/* Activations as kernels of many rows keep them. */
struct many_act32 { /* the begin of a struct kern_act32 */
    int8_t q[32];
    float scale, sum;
    int32_t start8, start128;
};
struct many_act256 { /* a struct kern_act256 without its pairs */
    int8_t q[256];
    int16_t sum16[16], sum32[8];
    float scale;
    int32_t start128;
    uint8_t pad[8];
};

/* The matrix and the rows of a block; w NULL: nothing is to be done. */
struct product_rows {
    const uint8_t *w;
    float *y;
    int64_t first; /* row of y */
    int32_t n;
    float scale;
};
GPU_DEV struct product_rows product_rows_of(const struct product_args *a)
{
    const int n = a->first ? a->n_stack : 1, z = gpu_block(2);
    const bool second = z >= n;
    const int64_t e = a->first ? z - (second ? n : 0) : a->index;
    struct product_rows r = {(second ? a->w2 : a->w) + e * a->stack_step,
                             second ? a->y + a->y2 : a->y, 0, a->n, 1.0f};
    const float *scale = second ? a->scale2 : a->scale;
    if (a->first) {
        r.first = a->first[e];
        r.n = a->first[e + 1] - a->first[e];
    }
    if (a->each)
        r.w = (const uint8_t *)(uintptr_t)a->each[e];
    if (scale)
        r.scale = scale[e];
    if (r.n <= 0 || (a->only && !a->only[e]))
        r.w = 0;
    return r;
}
GPU_DEV const uint8_t *product_x(const struct product_args *a, int64_t i)
{
    return a->x + (a->row ? (int64_t)a->row[i] : i) * a->x_row_bytes;
}

#endif
#endif
