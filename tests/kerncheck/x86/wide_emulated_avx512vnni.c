/* SPDX-License-Identifier: Apache-2.0 */
/* The same on emulated tiles, for tests on machines without AMX. */
#define TILE_EMULATED
#define KERNEL_NAME(name) kern_##name##_emulated
#include "kern/x86/matmul/wide_amx_body.h"
