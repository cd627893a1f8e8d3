/* SPDX-License-Identifier: Apache-2.0 */
/* coded_avx512vnni - attention over codes. */
#include "kern/x86/attend/coded_body.h"
