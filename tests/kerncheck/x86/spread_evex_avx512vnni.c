/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for many rows of AVX-VNNI in EVEX form, as evex_avx512vnni.c has the others. */
#define NAME(name) kern_matmul_##name##_spread_evex_avx512vnni
#define SPREAD_OTHERS
#include "kern/x86/matmul/spread_vnni256.h"
