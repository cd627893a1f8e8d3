/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_emulated - the same on emulated tiles, for tests on machines without AMX. */
#define TILE_EMULATED
#define FEW_TILES
#include "kern/x86/attend/sparse_body.h"
