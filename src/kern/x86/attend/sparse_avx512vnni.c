/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_avx512vnni - attention to few positions. */
#include "kern/x86/attend/sparse_body.h"
