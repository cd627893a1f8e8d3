/* SPDX-License-Identifier: Apache-2.0 */
/* Products on AMX tiles. */
#include "kern/x86/matmul/matmul_amx_body.h"
