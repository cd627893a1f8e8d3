/* SPDX-License-Identifier: Apache-2.0 */
/* Ternary codes on AVX-512 VNNI: 256-bit vectors, EVEX form. */
#define KERNEL(name) kern_matmul_##name##_evex_avx512vnni
#define SPREAD kern_matmul_stored_avx512vnni
#include "kern/x86/matmul/ternary_vnni256.h"
