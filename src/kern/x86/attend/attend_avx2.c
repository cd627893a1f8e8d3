/* SPDX-License-Identifier: Apache-2.0 */
/* attend_avx2 - attention on 256-bit registers, tiles of 6 pairs. */
#include "kern/x86/attend/attend_body.h"
