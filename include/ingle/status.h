/*
 * status - how calls of ingle end, and what the library tells without being asked.
 *
 * ingle/ingle.h includes it: callers need not.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INGLE_STATUS_H
#define INGLE_STATUS_H

#define INGLE_STATUS_MAP(X)                                        \
    X(OK, "ok")                                                    \
    X(NOMEM, "out of memory")                                      \
    X(IO, "reading or writing failed")                             \
    X(FORMAT, "the input breaks its own format")                   \
    X(LIMIT, "a configured limit was reached")                     \
    X(UNSUP, "this build, machine or model cannot do that")        \
    X(ARG, "an argument is out of its range")                      \
    X(NOTFOUND, "there is no such thing")                          \
    X(NUMERIC, "the computation produced a value that is no number") \
    X(CANCEL, "the caller cancelled")                              \
    X(LOST, "what a part of it was computed on, a graphics card, is lost")

typedef enum ingle_status {
#define X(name, text) INGLE_##name,
    INGLE_STATUS_MAP(X)
#undef X
} ingle_status;

typedef enum ingle_report_level {
    INGLE_REPORT_ERROR,
    INGLE_REPORT_WARN, /* something less than was asked: a fallback */
    INGLE_REPORT_NOTE,
    INGLE_REPORT_DEBUG
} ingle_report_level;

/* What happened (kind: "kernel", "tensor", "cache", ...), to which thing, and why. */
typedef void ingle_report_fn(void *arg, ingle_report_level level, const char *kind,
                             const char *subject, const char *text);

/* How far a long job is ("load", "pack", "prefill").  Nonzero asks it to stop. */
typedef int ingle_progress_fn(void *arg, const char *job, double done, double total);

#endif
