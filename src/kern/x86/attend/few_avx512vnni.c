/* SPDX-License-Identifier: Apache-2.0 */
/* few_avx512vnni - attention to few positions. */
#include "kern/x86/attend/few_body.h"
