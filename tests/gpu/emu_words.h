/*
 * emu_words - the words of device/gpu/kernels/gpu.h on the emulator (emu.h).
 *
 * Every exchange of a warp has two buffers that take turns: nobody writes the next but one before
 * all have read this one.
 */
#ifndef INGLE_TESTS_GPU_EMU_WORDS_H
#define INGLE_TESTS_GPU_EMU_WORDS_H

#include "gpu/emu.h"
#include "quant/quant.h"
#include <string.h>

#define GPU_BOTH_BEGIN
#define GPU_BOTH_END
#define GPU_DEV static inline __attribute__((unused))
#define GPU_TABLE static const

/* A kernel; its arguments are a. */
#define GPU_ENTRY(name, T) GPU_ENTRY_(name, T)
#define GPU_ENTRY_(name, T)                                                  \
    void emu_entry_##name(const void *args);                                 \
    static void emu_body_##name(T a);                                        \
    void emu_entry_##name(const void *args)                                  \
    {                                                                        \
        emu_body_##name(*(const T *)args);                                   \
    }                                                                        \
    static void emu_body_##name(T a)
/* The block's shared memory as a T; a kernel has one. */
#define GPU_SHARED(T, name) T *const name = (T *)emu_shared(sizeof(T))
#define GPU_UNROLL
#define GPU_UNROLL_BY(n)

struct gpu_u4 {
    uint32_t x, y, z, w;
};

GPU_DEV int gpu_tid(void) { return emu_self->tid; }
GPU_DEV int gpu_threads(void) { return emu_block->n_threads; }
/* This block, and how many there are, along axis d. */
GPU_DEV int gpu_block(int d) { return emu_block->at[d]; }
GPU_DEV int gpu_blocks(int d) { return emu_block->n[d]; }
/* All threads of the block; of the warp. */
GPU_DEV void gpu_sync(void) { emu_wait(EMU_AT_BLOCK); }
GPU_DEV void gpu_warp_sync(void) { emu_wait(EMU_AT_WARP); }

/* What lane `lane` has; all 32 lanes call it. */
GPU_DEV uint32_t gpu_shfl_word(uint32_t v, int lane)
{
    uint32_t *s = emu_exchange()->word;
    s[emu_self->tid % EMU_WARP] = v;
    emu_wait(EMU_AT_WARP);
    return s[lane & 31];
}
GPU_DEV uint32_t gpu_shfl_xor_word(uint32_t v, int mask)
{
    return gpu_shfl_word(v, (emu_self->tid ^ mask) & 31);
}
/* Bit l: what lane l says. */
GPU_DEV uint32_t gpu_ballot(bool yes)
{
    uint32_t *s = emu_exchange()->word, r = 0;
    s[emu_self->tid % EMU_WARP] = yes;
    emu_wait(EMU_AT_WARP);
    for (int i = 0; i < EMU_WARP; i++)
        r |= s[i] << i;
    return r;
}
/* Adds v to an integer of shared memory at once; the value before. */
GPU_DEV int gpu_add_shared(int *at, int v)
{
    const int before = *at;
    *at += v;
    return before;
}

/* c + the products of four signed bytes; the bytes of a are unsigned. */
GPU_DEV int gpu_dp4a(uint32_t a, uint32_t b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
GPU_DEV int gpu_dp4a_us(uint32_t a, uint32_t b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int)(a >> 8 * i & 255) * (int8_t)(b >> 8 * i);
    return c;
}
/* Byte i: of a (0 to 3) or b (4 to 7), by half byte i of c; with 8 added, its sign eight times. */
GPU_DEV uint32_t gpu_bytes(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t k = c >> 4 * i & 15, at = k & 7;
        const uint32_t byte = (at < 4 ? a >> 8 * at : b >> 8 * (at - 4)) & 255;
        r |= (k < 8 ? byte : byte & 128 ? 255u : 0u) << 8 * i;
    }
    return r;
}
/* Bits that are set; zeros above the highest one (32 of 0). */
GPU_DEV int gpu_count(uint32_t v) { return __builtin_popcount(v); }
GPU_DEV int gpu_leading(uint32_t v) { return v ? __builtin_clz(v) : 32; }

/* Rounded once. */
GPU_DEV float gpu_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GPU_DEV float gpu_sqrt(float x) { return __builtin_sqrtf(x); }
/* To a whole number, half to even. */
GPU_DEV float gpu_rint(float x) { return __builtin_rintf(x); }
GPU_DEV float gpu_abs(float x) { return __builtin_fabsf(x); }
GPU_DEV float gpu_half(uint16_t h) { return quant_f16_to_f32(h); }
GPU_DEV uint16_t gpu_to_half(float f) { return quant_f32_to_f16(f); }
GPU_DEV float gpu_bits(uint32_t i)
{
    float f;
    memcpy(&f, &i, sizeof f);
    return f;
}
GPU_DEV uint32_t gpu_word(float f)
{
    uint32_t i;
    memcpy(&i, &f, sizeof i);
    return i;
}

/* 16 bytes of global memory that the launch does not change: read again soon; read once. */
GPU_DEV struct gpu_u4 gpu_load(const void *p)
{
    struct gpu_u4 v;
    emu_aligned(p, 16);
    memcpy(&v, p, sizeof v);
    return v;
}
GPU_DEV struct gpu_u4 gpu_stream(const void *p) { return gpu_load(p); }
/* The same of 4, 2 bytes and one. */
GPU_DEV uint32_t gpu_stream_word(const void *p)
{
    uint32_t v;
    emu_aligned(p, 4);
    memcpy(&v, p, sizeof v);
    return v;
}
GPU_DEV uint16_t gpu_stream_half(const void *p)
{
    uint16_t v;
    emu_aligned(p, 2);
    memcpy(&v, p, sizeof v);
    return v;
}
GPU_DEV uint8_t gpu_stream_byte(const void *p) { return *(const uint8_t *)p; }

#ifndef EMU_SM75
#define GPU_MMA 1 /* there are gpu_ldmatrix4(), gpu_mma_s8() and gpu_mma_us8() */
#endif
/* 16 bytes from global to shared memory, not there before the wait. */
GPU_DEV void gpu_copy16(void *to, const void *from) { emu_copy(to, from); }
/* What was copied since the last call is a group. */
GPU_DEV void gpu_copy_commit(void) { emu_copy_commit(); }
/* All but the newest n groups of this thread are there. */
GPU_DEV void gpu_copy_wait(int n) { emu_copy_wait(n); }
/* Four matrices of 8 rows of 16 bytes; lane l says where row l % 8 of matrix l / 8 is, and gets
 * word l % 4 of row l / 4 of each. */
GPU_DEV void gpu_ldmatrix4(uint32_t *r, const void *row)
{
    const void **at = emu_exchange()->row;
    const int l = emu_self->tid % EMU_WARP;
    emu_aligned(row, 16);
    at[l] = row;
    emu_wait(EMU_AT_WARP);
    for (int i = 0; i < 4; i++)
        memcpy(&r[i], (const uint8_t *)at[i * 8 + l / 4] + l % 4 * 4, 4);
}
/* c += a b: 16 rows by 8 columns by 32 of k, bytes.  Lane l has of a rows l / 4 and + 8,
 * k 4 (l % 4) .. + 3, then the same with k + 16; of b column l / 4, the same k; of c rows l / 4
 * and + 8, columns 2 (l % 4) and + 1. */
GPU_DEV void gpu_mma_(int *c, const uint32_t *a, const uint32_t *b, bool unsigned_a)
{
    uint32_t(*f)[6] = emu_exchange()->frag;
    const int l = emu_self->tid % EMU_WARP;
    memcpy(f[l], a, 16);
    memcpy(f[l] + 4, b, 8);
    emu_wait(EMU_AT_WARP);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++)
            for (int half = 0; half < 2; half++) {
                const uint32_t x = f[l / 4 * 4 + k][i / 2 + 2 * half];
                const uint32_t y = f[(l % 4 * 2 + i % 2) * 4 + k][4 + half];
                c[i] = unsigned_a ? gpu_dp4a_us(x, y, c[i]) : gpu_dp4a(x, y, c[i]);
            }
}
GPU_DEV void gpu_mma_s8(int *c, const uint32_t *a, const uint32_t *b) { gpu_mma_(c, a, b, false); }
/* The bytes of a are unsigned. */
GPU_DEV void gpu_mma_us8(int *c, const uint32_t *a, const uint32_t *b) { gpu_mma_(c, a, b, true); }

#endif
