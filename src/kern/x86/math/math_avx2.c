/* SPDX-License-Identifier: Apache-2.0 */
/* math_avx2 - the kernels of math.h on two 256-bit registers. */
#include "kern/x86/math/math_body.h"
