/* SPDX-License-Identifier: Apache-2.0 */
#include "base/report.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void report(const struct report_sink *sink, ingle_report_level level, const char *kind,
            const char *subject, const char *fmt, ...)
{
    if (!sink || !sink->report)
        return;
    char text[1024], shown[2 * sizeof text], about[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    utf8_show(text, strlen(text), UTF8_LINE, shown, sizeof shown);
    utf8_show(subject, strlen(subject), UTF8_LINE, about, sizeof about);
    sink->report(sink->arg, level, kind, about, shown);
}

int report_progress(const struct report_sink *sink, const char *job, double done, double total)
{
    return sink && sink->progress ? sink->progress(sink->arg, job, done, total) : 0;
}
