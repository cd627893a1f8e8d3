/*
 * ini - lines 'key = value' in [sections].
 *
 * Blanks around names and values do not count.  A value may stand between double or single quotes,
 * which do not belong to it. '#' or ';' at the start of a line, or after a blank after a value,
 * begins a comment; within quotes it does not, nor within the strings of a value that is a JSON
 * object or array.  Text is what base/plain.h reads.  Errors have the name of the source and the
 * line.
 */
#ifndef INGLE_BASE_INI_H
#define INGLE_BASE_INI_H

#include "base/err.h"
#include <stddef.h>

enum { INI_MAX_BYTES = 1 << 20, INI_MAX_NAME = 255, INI_MAX_VALUE = 16384 };

/* line: from 1.  section: "" before the first one.  key NULL: the section begins; value "" where
 * nothing is after '='.  An error that it returns gets source and line in front. */
typedef ingle_status ini_fn(void *arg, int line, const char *section, const char *key,
                            const char *value, struct err *err);
/* A line that is wrong, as an error says it. */
typedef void ini_bad_fn(void *arg, const char *text);

/* Calls fn for each line of text [n], which comes from `name`, until it fails. */
MUST_CHECK ingle_status ini_read(const char *name, const char *text, size_t n, ini_fn *fn,
                                 void *arg, struct err *err);
/* The same, and reading goes on after a wrong line, which bad(arg, ...) is called with: of several
 * the first is the error. */
MUST_CHECK ingle_status ini_read_on(const char *name, const char *text, size_t n, ini_fn *fn,
                                    ini_bad_fn *bad, void *arg, struct err *err);
/* The text of a file in UTF-8, as ini_read() takes it; ended with mem_free(). */
MUST_CHECK ingle_status ini_slurp(const char *path, char **out, size_t *n, struct err *err);

#endif
