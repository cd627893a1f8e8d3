/* SPDX-License-Identifier: Apache-2.0 */
/* math_avx512 - the kernels of math.h on one 512-bit register. */
#include "kern/x86/math/math_body.h"
