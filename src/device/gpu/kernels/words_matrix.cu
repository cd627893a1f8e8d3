/* SPDX-License-Identifier: Apache-2.0 */
#include "device/gpu/kernels/gpu.h"
#include "device/gpu/kernels/words.h"

#ifdef GPU_MMA
struct words_matrix_shared {
    uint32_t a[32][4], b[32][4];
};

/* Rows of 32 bytes are two pieces of 16; the pieces of a: rows 0 .. 7, rows 8 .. 15, then the
 * second halves of k; those of b: rows 0 .. 7, second halves, and the same of rows 8 .. 15. */
GPU_ENTRY(words_matrix_check, struct words_matrix_check_args)
{
    GPU_SHARED(struct words_matrix_shared, sh);
    const int l = gpu_lane();
    uint32_t fa[4], fb[4];
    int c[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}}, d[4] = {0, 0, 0, l};
    gpu_copy16(sh->a[l], a.a + 4 * l);
    gpu_copy_commit();
    gpu_copy16(sh->b[l], a.b + 4 * l);
    gpu_copy_commit();
    gpu_copy_wait(1);
    gpu_warp_sync();
    gpu_ldmatrix4(fa, sh->a[l]);
    gpu_copy_wait(0);
    gpu_warp_sync();
    gpu_ldmatrix4(fb, sh->b[l]);
    gpu_mma_s8(c[0], fa, fb);
    gpu_mma_s8(c[1], fa, fb + 2);
    gpu_mma_us8(d, fa, fb);
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        a.out[i * 32 + l] = fa[i];
        a.out[(4 + i) * 32 + l] = fb[i];
        a.out[(8 + i) * 32 + l] = (uint32_t)c[0][i];
        a.out[(12 + i) * 32 + l] = (uint32_t)c[1][i];
        a.out[(16 + i) * 32 + l] = (uint32_t)d[i];
    }
}
#endif
