/*
 * spare - what the system has of memory nodes that is not used as it is, for a person to read.
 */
#ifndef INGLE_BASE_SPARE_H
#define INGLE_BASE_SPARE_H

#include "base/cpu.h"

enum { SPARE_BYTES = 512 };

/* Sentences with "; " between them: nodes without memory, nodes without processors of t, a system
 * that has neither.  False: there is nothing to say.  root: "" for the real /sys. */
bool spare_report(char out[SPARE_BYTES], const struct cpu_topology *t, const char *root);

#endif
