/* SPDX-License-Identifier: Apache-2.0 */
#include "base/report.h"

#include <stdarg.h>
#include <stdio.h>

void report(const struct report_sink *sink, ingle_report_level level, const char *kind,
            const char *subject, const char *fmt, ...)
{
    if (!sink || !sink->report)
        return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sink->report(sink->arg, level, kind, subject, text);
}

int report_progress(const struct report_sink *sink, const char *job, double done, double total)
{
    return sink && sink->progress ? sink->progress(sink->arg, job, done, total) : 0;
}
