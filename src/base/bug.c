/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bug.h"

#include <stdio.h>
#include <stdlib.h>

void bug_stop(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    abort();
}
