/* SPDX-License-Identifier: Apache-2.0 */
#include "device/gpu/kernels/gpu.h"
#include "device/gpu/kernels/words.h"

struct words_shared {
    uint32_t word[WORDS_THREADS];
    struct gpu_u4 copied[16];
    int n[4];
};

GPU_ENTRY(words_check, struct words_check_args)
{
    GPU_SHARED(struct words_shared, sh);
    const int t = gpu_tid();
    const uint32_t u = a.a[t], v = a.b[t], w = a.c[t];
    const float x = a.x[t], y = a.y[t], z = a.z[t];
    uint32_t *out = a.out + t;
    if (t < 4)
        sh->n[t] = 0;
    sh->word[t] = u;
    if (t < 16)
        gpu_copy16(&sh->copied[t], a.b + 4 * t);
    gpu_copy_commit();
    gpu_copy_wait(0);
    gpu_sync();
    out[0 * 64] = sh->word[63 - t];
    out[1 * 64] = sh->copied[t / 4].x + (uint32_t)(t % 4) * sh->copied[15 - t / 4].w;
    out[2 * 64] = gpu_shfl_word(u, (int)(v & 31));
    out[3 * 64] = gpu_shfl_xor_word(u, 5);
    out[4 * 64] = gpu_ballot((u & 1) != 0);
    out[5 * 64] = (uint32_t)gpu_dp4a(u, v, (int)w);
    out[6 * 64] = (uint32_t)gpu_dp4a_us(u, v, (int)w);
    out[7 * 64] = gpu_bytes(u, v, w);
    out[8 * 64] = (uint32_t)gpu_count(u);
    out[9 * 64] = (uint32_t)gpu_leading(u >> (v & 31));
    out[10 * 64] = gpu_word(gpu_fma(x, y, z));
    out[11 * 64] = gpu_word(x * y + z);
    out[12 * 64] = gpu_word(x / y);
    out[13 * 64] = gpu_word(gpu_sqrt(gpu_abs(x)));
    out[14 * 64] = gpu_word(gpu_rint(x));
    out[15 * 64] = gpu_word(gpu_half((uint16_t)u));
    out[16 * 64] = gpu_to_half(x);
    out[17 * 64] = gpu_word((float)(int32_t)u);
    out[18 * 64] = gpu_word(gpu_small_float((int)(u & 0x3fffff) - (1 << 21)));
    out[19 * 64] = gpu_load(a.a + t / 4 * 4).z ^ gpu_stream(a.b + t / 4 * 4).y;
    out[20 * 64] = gpu_stream_word(a.c + t) + gpu_stream_half((const uint16_t *)a.a + t);
    out[21 * 64] = gpu_stream_byte((const uint8_t *)a.a + t);
    gpu_add_shared(&sh->n[t % 4], (int)(u & 255));
    gpu_sync();
    out[22 * 64] = (uint32_t)sh->n[t % 4];
    out[23 * 64] = gpu_word(gpu_shfl(x, gpu_lane() ^ 3) > y ? x : y);
}
