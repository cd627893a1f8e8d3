/*
 * names - the names in a folder, sorted.
 */
#ifndef INGLE_BASE_NAMES_H
#define INGLE_BASE_NAMES_H

#include "base/err.h"
#include <stddef.h>

struct names {
    char **at; /* [n], owned */
    size_t n, cap;
};

/* The names in folder `dir` except those that begin with a dot, at most `most` of them, sorted by
 * bytes. INGLE_IO: it cannot be read.  The caller ends *out with names_release(). */
MUST_CHECK ingle_status names_read(const char *dir, size_t most, struct names *out,
                                   struct err *err);
/* Appends a copy. */
MUST_CHECK ingle_status names_add(struct names *l, const char *name, struct err *err);
void names_release(struct names *l);

#endif
