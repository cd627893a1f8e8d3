/*
 * plain - text as files, pipes and command lines bring it, to UTF-8.
 *
 * UTF-8 needs no mark, and a mark that it has is dropped.  UTF-16 and UTF-32, in either order of
 * bytes, are known by their byte order mark.  Everything else is refused: errors have the name of
 * the source, the offset of the first byte that is wrong, and its value.  A NUL is no text.  Line
 * ends stay as they are.
 */
#ifndef INGLE_BASE_PLAIN_H
#define INGLE_BASE_PLAIN_H

#include "base/err.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum plain_form {
    PLAIN_UNKNOWN,
    PLAIN_UTF8,
    PLAIN_UTF16LE,
    PLAIN_UTF16BE,
    PLAIN_UTF32LE,
    PLAIN_UTF32BE
};

/* A stream that is being decoded. */
struct plain {
    const char *name; /* for errors; borrowed */
    /* bytes without a UTF-16 or UTF-32 mark pass as they are: the caller looks at them */
    bool lax;
    enum plain_form form;
    unsigned char held[4]; /* [n_held]: the beginning of a character, or of a mark */
    unsigned n_held;
    uint64_t at;      /* bytes before what is held */
    uint32_t high;    /* first half of a surrogate pair, or 0 */
};

void plain_init(struct plain *p, const char *name, bool lax);
/* Appends what n more bytes say.  After an error the stream is over. */
MUST_CHECK ingle_status plain_add(struct plain *p, struct str *out, const char *bytes, size_t n,
                                  struct err *err);
/* There are no more bytes: half a character is an error. */
MUST_CHECK ingle_status plain_end(struct plain *p, struct str *out, struct err *err);

/* Replaces a whole text (ended with mem_free(), a 0 after it) by its UTF-8; on failure it is as
 * before. */
MUST_CHECK ingle_status plain_text(const char *name, char **text, size_t *n, struct err *err);
/* Refuses bytes that are no UTF-8; marks are text here.  For command lines. */
MUST_CHECK ingle_status plain_check(const char *name, const char *text, size_t n, struct err *err);

#endif
