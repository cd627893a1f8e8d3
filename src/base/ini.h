/*
 * ini - lines 'key = value' in [sections].
 *
 * Blanks around names and values do not count; a value may stand between double quotes; a line that begins with '#' or ';'
 * is a comment.  Text is what base/plain.h reads.  Errors have the name of the source and the line.
 */
#ifndef INGLE_BASE_INI_H
#define INGLE_BASE_INI_H

#include "base/err.h"
#include <stddef.h>

enum { INI_MAX_BYTES = 1 << 20, INI_MAX_NAME = 255, INI_MAX_VALUE = 16384 };

/* section: "" before the first one.  key NULL: the section begins; value "" where nothing is behind '='.  An error that it
 * returns gets source and line in front. */
typedef ingle_status ini_fn(void *arg, const char *section, const char *key, const char *value, struct err *err);

/* Calls fn for each line of text [n], which comes from `name`, until it fails. */
MUST_CHECK ingle_status ini_read(const char *name, const char *text, size_t n, ini_fn *fn, void *arg, struct err *err);
/* The text of a file in UTF-8, as ini_read() takes it; ended with mem_free(). */
MUST_CHECK ingle_status ini_slurp(const char *path, char **out, size_t *n, struct err *err);
/* Both. */
MUST_CHECK ingle_status ini_file(const char *path, ini_fn *fn, void *arg, struct err *err);

#endif
