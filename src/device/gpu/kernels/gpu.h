/*
 * gpu - the words that kernels of a card are written in, in C11 that is C++, too.
 *
 * clang -x cuda makes PTX of a kernel, without any vendor's header; what clang-14 does not know
 * goes through as text.  The tests' emulator (GPU_EMULATOR names its header) defines the same
 * words for the processor; their comments are there.
 *
 * Rules for kernels: this header, those of the arguments and those of kern/ that both sides
 * share; no library functions; all shared memory in one struct; whole warps of 32; a loop that is
 * unrolled has a fixed end and no break; floats by +, -, *, / and gpu_fma() where the law says so
 * (docs/how/one-arithmetic.md); comparisons as the law writes them; no atomic sums of floats.
 * Kernels are listed in kernels.inc, their files in modules.inc.
 *
 *     GPU_ENTRY(row_scale, struct row_scale_args)
 *     {
 *         GPU_SHARED(struct row_scale_shared, sh);
 *         ... a.x[gpu_block(0)] ...
 *     }
 */
#ifndef INGLE_DEVICE_GPU_KERNELS_GPU_H
#define INGLE_DEVICE_GPU_KERNELS_GPU_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__NVPTX__)

/* What the headers of kern/ and of the arguments define is the card's, too. */
#define GPU_BOTH_BEGIN _Pragma("clang force_cuda_host_device begin")
#define GPU_BOTH_END _Pragma("clang force_cuda_host_device end")
#define GPU_DEV static __attribute__((device)) inline __attribute__((always_inline))
/* In global memory: a constant of the language would be where lanes read one after the other. */
#define GPU_TABLE static __attribute__((device))

enum {
#define GPU_KERNEL(name, args, threads, blocks, shared, registers, module) \
    GPU_THREADS_##name = threads, GPU_BLOCKS_##name = blocks,
#include "device/gpu/kernels/kernels.inc"
#undef GPU_KERNEL
    GPU_NO_KERNEL
};

/* A kernel; its arguments are a. */
#define GPU_ENTRY(name, T) GPU_ENTRY_NAME_(name, T)
#define GPU_ENTRY_NAME_(name, T) GPU_ENTRY_(name, T, GPU_THREADS_##name, GPU_BLOCKS_##name)
#define GPU_ENTRY_(name, T, threads, blocks)                                    \
    extern "C" __attribute__((global)) __attribute__((launch_bounds(threads, blocks))) \
    void name(T a)
#define GPU_SHARED(T, name)                                                     \
    extern __attribute__((shared)) __attribute__((aligned(128))) unsigned char gpu_shared_[]; \
    T *const name = (T *)(void *)gpu_shared_
#define GPU_PRAGMA_(x) _Pragma(#x)
#define GPU_UNROLL _Pragma("unroll")
#define GPU_UNROLL_BY(n) GPU_PRAGMA_(unroll n)

struct gpu_u4 {
    uint32_t x, y, z, w;
};

GPU_DEV int gpu_tid(void) { return __nvvm_read_ptx_sreg_tid_x(); }
GPU_DEV int gpu_threads(void) { return __nvvm_read_ptx_sreg_ntid_x(); }
GPU_DEV int gpu_block(int d)
{
    return d == 0   ? __nvvm_read_ptx_sreg_ctaid_x()
           : d == 1 ? __nvvm_read_ptx_sreg_ctaid_y()
                    : __nvvm_read_ptx_sreg_ctaid_z();
}
GPU_DEV int gpu_blocks(int d)
{
    return d == 0   ? __nvvm_read_ptx_sreg_nctaid_x()
           : d == 1 ? __nvvm_read_ptx_sreg_nctaid_y()
                    : __nvvm_read_ptx_sreg_nctaid_z();
}
GPU_DEV void gpu_sync(void) { asm volatile("bar.sync 0;" ::: "memory"); }
GPU_DEV void gpu_warp_sync(void) { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
GPU_DEV uint32_t gpu_shfl_word(uint32_t v, int lane)
{
    uint32_t r;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(v), "r"(lane));
    return r;
}
GPU_DEV uint32_t gpu_shfl_xor_word(uint32_t v, int mask)
{
    uint32_t r;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(v), "r"(mask));
    return r;
}
GPU_DEV uint32_t gpu_ballot(bool yes)
{
    uint32_t r;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
                 : "=r"(r)
                 : "r"((uint32_t)yes));
    return r;
}
GPU_DEV int gpu_add_shared(int *at, int v)
{
    int r;
    asm volatile("atom.add.s32 %0, [%1], %2;" : "=r"(r) : "l"(at), "r"(v) : "memory");
    return r;
}
GPU_DEV int gpu_dp4a(uint32_t a, uint32_t b, int c)
{
    int r;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
GPU_DEV int gpu_dp4a_us(uint32_t a, uint32_t b, int c)
{
    int r;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
GPU_DEV uint32_t gpu_bytes(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
GPU_DEV int gpu_count(uint32_t v) { return __builtin_popcount(v); }
GPU_DEV int gpu_leading(uint32_t v)
{
    int r;
    asm("clz.b32 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}
GPU_DEV float gpu_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GPU_DEV float gpu_sqrt(float x)
{
    float r;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
GPU_DEV float gpu_rint(float x)
{
    float r;
    asm("cvt.rni.f32.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
GPU_DEV float gpu_abs(float x) { return __builtin_fabsf(x); }
GPU_DEV float gpu_half(uint16_t h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
GPU_DEV uint16_t gpu_to_half(float f)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
GPU_DEV float gpu_bits(uint32_t i) { return __builtin_bit_cast(float, i); }
GPU_DEV uint32_t gpu_word(float f) { return __builtin_bit_cast(uint32_t, f); }
GPU_DEV struct gpu_u4 gpu_load(const void *p)
{
    struct gpu_u4 v;
    asm("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}
GPU_DEV struct gpu_u4 gpu_stream(const void *p)
{
    struct gpu_u4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
GPU_DEV uint32_t gpu_stream_word(const void *p)
{
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
GPU_DEV uint16_t gpu_stream_half(const void *p)
{
    uint16_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
GPU_DEV uint8_t gpu_stream_byte(const void *p)
{
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return (uint8_t)v;
}
#if __CUDA_ARCH__ < 800
/* No copies that go on by themselves, and no matrix instruction of this shape. */
GPU_DEV void gpu_copy16(void *to, const void *from)
{
    *(struct gpu_u4 *)to = *(const struct gpu_u4 *)from;
}
GPU_DEV void gpu_copy_commit(void) {}
#define gpu_copy_wait(n) ((void)0)
#else
#define GPU_MMA 1
GPU_DEV uint32_t gpu_shared_at_(const void *p)
{
    return (uint32_t)(uintptr_t)(__attribute__((address_space(3))) const void *)p;
}
GPU_DEV void gpu_copy16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(gpu_shared_at_(to)), "l"(from)
                 : "memory");
}
GPU_DEV void gpu_copy_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
#define gpu_copy_wait(n) asm volatile("cp.async.wait_group %0;" : : "n"(n) : "memory")
GPU_DEV void gpu_ldmatrix4(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(gpu_shared_at_(row))
                 : "memory");
}
GPU_DEV void gpu_mma_s8(int *c, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
GPU_DEV void gpu_mma_us8(int *c, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

#elif defined(GPU_EMULATOR)
#include GPU_EMULATOR
#endif

#if defined(__NVPTX__) || defined(GPU_EMULATOR)
GPU_DEV int gpu_lane(void) { return gpu_tid() & 31; }
GPU_DEV int gpu_warp(void) { return gpu_tid() >> 5; }
GPU_DEV float gpu_shfl(float v, int lane) { return gpu_bits(gpu_shfl_word(gpu_word(v), lane)); }
GPU_DEV float gpu_shfl_xor(float v, int mask)
{
    return gpu_bits(gpu_shfl_xor_word(gpu_word(v), mask));
}
GPU_DEV int gpu_shfl_int(int v, int lane) { return (int)gpu_shfl_word((uint32_t)v, lane); }
GPU_DEV int gpu_shfl_xor_int(int v, int mask) { return (int)gpu_shfl_xor_word((uint32_t)v, mask); }
/* (float)v without the slow converter, for |v| < 2^22: exact. */
GPU_DEV float gpu_small_float(int v)
{
    return gpu_bits((uint32_t)(0x4b400000 + v)) - 12582912.0f;
}
#endif

#endif
