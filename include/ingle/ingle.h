/*
 * ingle - a local inference engine for large language models.
 *
 * The ideas a caller needs:
 *   a model    is the weights of one file, its tokenizer and its chat format;
 *   an engine  owns the compute threads, the KV memory and the prefix cache;
 *   a session  is one timeline of tokens.  Callers hand over full token prefixes;
 *              ingle_session_sync() reuses whatever the session or the cache still has;
 *   a step     runs the waiting tokens of any number of sessions as one batch.
 *
 * One arithmetic: the logits of a token are a function of the tokens before it alone,
 * whatever else is in the batch, however a prompt is cut, with any number of threads.
 *
 * There are no globals: any number of models and engines may live in one process.  An
 * engine and its sessions belong to one thread at a time.  Calls that can fail return an
 * ingle_status and fill *err (which may be NULL); results are written only on success.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INGLE_INGLE_H
#define INGLE_INGLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INGLE_API __attribute__((visibility("default")))

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
    X(CANCEL, "the caller cancelled")

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

#ifdef __cplusplus
}
#endif

#endif
