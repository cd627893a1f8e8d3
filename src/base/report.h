/*
 * report - what the library reports to its owner.
 *
 * A fallback is an event: any time ingle does less than was asked it calls report() once,
 * with a kind (which class of thing), a subject (which one) and a reason.  Progress says
 * how far a long job is.  Both go to the sink that the owner gave; the library has no
 * other voice.
 */
#ifndef INGLE_BASE_REPORT_H
#define INGLE_BASE_REPORT_H

#include "base/attr.h"
#include "ingle/status.h" /* ingle_report_level, ingle_report_fn, ingle_progress_fn */

/* Borrowed by whoever holds it; must outlive them.  Any member may be NULL. */
struct report_sink {
    ingle_report_fn *report;     /* Sync: called from the thread that found it */
    ingle_progress_fn *progress; /* returns nonzero to cancel */
    void *arg;
};

/* sink may be NULL: then nobody listens.  Subject and text may have come from outside: the sink
 * gets them as one line can show them (base/utf8.h, UTF8_LINE). */
ATTR_PRINTF(5, 6)
void report(const struct report_sink *sink, ingle_report_level level, const char *kind,
            const char *subject, const char *fmt, ...);

/* done of total units of job ("load", "pack", "prefill").  Nonzero: the owner wants to stop. */
int report_progress(const struct report_sink *sink, const char *job, double done, double total);

#endif
