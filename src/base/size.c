/* SPDX-License-Identifier: Apache-2.0 */
#include "base/size.h"

#include <stdio.h>

const char *size_text(uint64_t n_bytes, char out[SIZE_TEXT])
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)n_bytes;
    int u = 0;
    for (; v >= 999.5; u++) /* never four digits */
        v /= 1024;
    snprintf(out, SIZE_TEXT, "%.*f %s", !u || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2, v, unit[u]);
    return out;
}
