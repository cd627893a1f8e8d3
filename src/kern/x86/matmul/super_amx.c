/* SPDX-License-Identifier: Apache-2.0 */
/* Products with super-blocks on AMX tiles. */
#include "kern/x86/matmul/super_amx_body.h"
