/* SPDX-License-Identifier: Apache-2.0 */
/* Ternary codes on AVX-VNNI: 256-bit vectors, VEX form. */
#define KERNEL(name) kern_matmul_##name##_avxvnni
#define SPREAD kern_matmul_stored_avxvnni
#include "kern/x86/matmul/ternary_vnni256.h"
