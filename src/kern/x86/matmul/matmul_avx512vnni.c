/* SPDX-License-Identifier: Apache-2.0 */
/* Products on AVX-512 with VNNI. */
#define NAME(name) kern_matmul_##name##_avx512vnni
#define AHEAD 0
#include "kern/x86/matmul/vnni512.h"

/* ---- stored codes: 8 bits with a bias of 64 and sub-scales of 16, from scratch ---- */

#define STORED(C)                                                                             \
    static void stored_##C(const uint8_t *chunk, int64_t n, const uint8_t *const *x, float *y, \
                           int64_t stride)                                                   \
    {                                                                                         \
        EACH_##C(LOAD_Y, _)                                                                   \
        for (int64_t b = 0; b < n; b++, chunk += STORED_BYTES) {                              \
            const uint8_t *s = chunk + STORED_SUB;                                            \
            EACH_##C(ZERO_T, _)                                                               \
            for (int h = 0; h < 8; h++) {                                                     \
                const uint8_t *group = chunk + 512 * h;                                       \
                GROUP_16(C, G8, _mm512_cvtepi8_epi32)                                         \
            }                                                                                 \
            const __m512 d = _mm512_loadu_ps((const float *)(const void *)(chunk + STORED_D)); \
            OFF_BIAS(C, STORED_BIAS, 8, sum16)                                                \
            EACH_##C(FINISH_D, _)                                                             \
        }                                                                                     \
        EACH_##C(STORE_Y, _)                                                                  \
    }
STORED(1) STORED(2) STORED(3) STORED(4) STORED(6) STORED(8)

void kern_matmul_stored_avx512vnni(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    static const struct drive d = {
        {{stored_8, 8}, {stored_6, 6}, {stored_4, 4}, {stored_3, 3}, {stored_2, 2}, {stored_1, 1}},
        256,
        4,
        STORED_BYTES};
    drive_run_spread(m, &d, kern_stored_expand_avx2, p0, p1);
}
