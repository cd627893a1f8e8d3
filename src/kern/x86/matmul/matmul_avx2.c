/* SPDX-License-Identifier: Apache-2.0 */
/* Products on AVX2. */
#define NAME(name) kern_matmul_##name##_avx2
#define AHEAD 0
#include "kern/x86/matmul/madd256.h"
