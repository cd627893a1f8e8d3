/*
 * odd - members of messages, items and tools that have a value of a wrong kind.
 *
 * The readers take what they know how to read; this says what they therefore leave out.
 */
#ifndef INGLE_SERVER_ODD_H
#define INGLE_SERVER_ODD_H

#include "base/report.h"
#include "server/request.h"

/* Looks at the lists messages, input, items, tools and functions of a body.  A schema of a tool's
 * arguments that is none is a fault; the rest are notes, or (sink NULL) a fault. */
void odd_members(struct json_object *body, const struct report_sink *sink, struct fault *f);

#endif
