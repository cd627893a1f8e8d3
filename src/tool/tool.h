/*
 * tool - work without argv: what commands do, callable from a program.
 */
#ifndef INGLE_TOOL_TOOL_H
#define INGLE_TOOL_TOOL_H

#include "base/err.h"
#include <stdint.h>

struct pool;

/* What the threads of p read from memory together: bytes a second, the best of n_rounds
 * passes over a buffer of n_bytes (256 MiB or more, to be out of every cache), each thread
 * reading eight interleaved streams as the matrix kernels do. */
MUST_CHECK ingle_status tool_machine_bandwidth(struct pool *p, size_t n_bytes, int n_rounds,
                                               double *bytes_per_s, struct err *err);

#endif
