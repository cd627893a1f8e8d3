/* SPDX-License-Identifier: Apache-2.0 */
/* attend_pairs_avx512bf16 - attention of a prompt's rows with fast numerics, two products an
 * instruction. */
#define ATTEND_PAIRS
#include "kern/x86/attend/attend_body.h"
