/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of AVX-VNNI in the EVEX form that AVX-512 processors have: never the fastest
 * there, but the same lines, so that they are tested where AVX-VNNI is missing. */
#define NAME(name) kern_matmul_##name##_evex_avx512vnni
#include "kern/x86/matmul/vnni256.h"
