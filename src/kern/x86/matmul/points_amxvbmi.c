/* SPDX-License-Identifier: Apache-2.0 */
/* Points on the tiles of AMX. */
#include "kern/x86/matmul/points_amx_body.h"
