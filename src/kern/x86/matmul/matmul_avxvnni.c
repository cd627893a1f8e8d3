/* SPDX-License-Identifier: Apache-2.0 */
/* Products on AVX-VNNI: 256-bit vectors, VEX form. */
#define NAME(name) kern_matmul_##name##_avxvnni
#include "kern/x86/matmul/vnni256.h"
