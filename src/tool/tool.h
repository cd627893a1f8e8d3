/*
 * tool - jobs on files that need neither an engine nor a command line.
 */
#ifndef INGLE_TOOL_TOOL_H
#define INGLE_TOOL_TOOL_H

#include "base/err.h"
#include "base/report.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tool_inspect_options {
    bool json;
    bool tensors; /* list every one */
};

/* What is in a container: metadata, bytes by type, tensors.  at: a GGUF that lies in memory
 * and is called `path`, or NULL: the file at path. */
MUST_CHECK ingle_status tool_inspect(const char *path, const void *at, size_t n_bytes,
                                     const struct tool_inspect_options *o,
                                     const struct report_sink *sink, struct str *out,
                                     struct err *err);

struct pool;

/* What the threads of p read from memory together: bytes a second, the best of n_rounds
 * passes over a buffer of n_bytes (256 MiB or more, to be out of every cache), each thread
 * reading eight interleaved streams as the matrix kernels do. */
MUST_CHECK ingle_status tool_machine_bandwidth(struct pool *p, size_t n_bytes, int n_rounds,
                                               double *bytes_per_s, struct err *err);

#endif
