/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

ingle_status (err_set)(struct err *err, ingle_status s, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        err->status = s;
    }
    return s;
}

ingle_status err_prefix(struct err *err, const char *fmt, ...)
{
    if (!err)
        return INGLE_OK;
    char said[sizeof err->msg];
    memcpy(said, err->msg, sizeof said);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n + 3 < sizeof err->msg) {
        const size_t room = sizeof err->msg - (size_t)n - 3, n_said = strlen(said);
        const size_t n_put = n_said < room ? n_said : room; /* what does not fit is cut */
        memcpy(err->msg + n, ": ", 2);
        memcpy(err->msg + n + 2, said, n_put);
        err->msg[(size_t)n + 2 + n_put] = 0;
    }
    return err->status;
}
