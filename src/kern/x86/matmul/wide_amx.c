/* SPDX-License-Identifier: Apache-2.0 */
/* Products of quantised weights with --numerics fast on AMX tiles. */
#include "kern/x86/matmul/wide_amx_body.h"
