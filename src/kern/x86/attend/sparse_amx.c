/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_amx - attention to few positions, scores on AMX tiles. */
#define FEW_TILES
#include "kern/x86/attend/sparse_body.h"
