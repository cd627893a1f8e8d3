/* SPDX-License-Identifier: Apache-2.0 */
/* Products for many rows on AVX-VNNI: 256-bit vectors, VEX form. */
#define NAME(name) kern_matmul_##name##_spread_avxvnni
#include "kern/x86/matmul/spread_vnni256.h"
