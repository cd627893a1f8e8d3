/* SPDX-License-Identifier: Apache-2.0 */
/* The products on AVX-512 with VNNI that ask for lines ahead. */
#define NAME(name) kern_matmul_##name##_ahead_avx512vnni
#define AHEAD 1
#include "kern/x86/matmul/vnni512.h"
