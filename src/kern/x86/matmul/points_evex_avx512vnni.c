/* SPDX-License-Identifier: Apache-2.0 */
/* Points on AVX-512 VNNI without byte permutes: 256-bit vectors, EVEX form. */
#define KERNEL(name) kern_matmul_##name##_evex_avx512vnni
#define SPREAD(name) kern_matmul_stored_avx512vnni
#include "kern/x86/matmul/points_vnni256.h"
