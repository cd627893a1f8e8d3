/* SPDX-License-Identifier: Apache-2.0 */
/* Products of --numerics fast on AMX tiles. */
#include "kern/x86/matmul/fast_amx_body.h"
