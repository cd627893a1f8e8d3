/* SPDX-License-Identifier: Apache-2.0 */
/* The products on AVX2 that ask for lines ahead. */
#define NAME(name) kern_matmul_##name##_ahead_avx2
#define AHEAD 1
#include "kern/x86/matmul/madd256.h"
