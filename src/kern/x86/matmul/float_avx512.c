/* SPDX-License-Identifier: Apache-2.0 */
/* Products with float weights on AVX-512. */
#define NAME(name) kern_matmul_##name##_avx512
#define AHEAD 0
#include "kern/x86/matmul/float512.h"
