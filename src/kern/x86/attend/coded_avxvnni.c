/* SPDX-License-Identifier: Apache-2.0 */
/* coded_avxvnni - attention over codes. */
#include "kern/x86/attend/coded_body.h"
