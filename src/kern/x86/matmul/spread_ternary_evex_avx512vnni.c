/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of 1 and 2 bits for many rows on AVX-512 VNNI: 256-bit vectors, EVEX form. */
#define NAME(name) kern_matmul_##name##_spread_evex_avx512vnni
#define SPREAD_TERNARY
#include "kern/x86/matmul/spread_vnni256.h"
