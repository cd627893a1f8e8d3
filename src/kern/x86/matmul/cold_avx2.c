/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that no cache holds, for measurements. */
#include "kern/kernels.h"

#include <immintrin.h>

/* Stores that bypass the caches take lines out of them. */
void kern_cold_zeros_avx2(uint8_t *at, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i += 32)
        _mm256_stream_si256((__m256i *)(void *)(at + i), _mm256_setzero_si256());
    _mm_sfence();
}
