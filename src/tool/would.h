/*
 * would - whether ingle would load a file, asked of the family: all keys, names and shapes.
 */
#ifndef INGLE_TOOL_WOULD_H
#define INGLE_TOOL_WOULD_H

#include "io/io.h"

/* *known: the file is a model of a family that ingle computes; otherwise nothing was asked.  An
 * error is what loading would say. */
MUST_CHECK ingle_status tool_would_load(struct io_file *file, bool *known, struct err *err);

#endif
