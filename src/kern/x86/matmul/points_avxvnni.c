/* SPDX-License-Identifier: Apache-2.0 */
/* Points on AVX-VNNI: 256-bit vectors, VEX form. */
#define KERNEL(name) kern_matmul_##name##_avxvnni
#define SPREAD(name) kern_matmul_##name##_spread_avxvnni
#include "kern/x86/matmul/points_vnni256.h"
