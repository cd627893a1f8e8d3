/* SPDX-License-Identifier: Apache-2.0 */
/* The products with float weights on AVX-512 that ask for lines ahead. */
#define NAME(name) kern_matmul_##name##_ahead_avx512
#define AHEAD 1
#include "kern/x86/matmul/float512.h"
