/* SPDX-License-Identifier: Apache-2.0 */
/* attend_avx512 - attention on 512-bit registers, tiles of 8 pairs. */
#include "kern/x86/attend/attend_body.h"
