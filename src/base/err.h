/*
 * err - how a call says no.
 *
 * A call that can fail returns an ingle_status and fills the caller's struct err, which
 * may be NULL.  Results are written only on success, *err only on failure.  Texts are
 * lower case, the error first, the subject in single quotes, value and limit included.
 */
#ifndef INGLE_BASE_ERR_H
#define INGLE_BASE_ERR_H

#include "base/attr.h"
#include "ingle/status.h" /* ingle_status */

struct err {
    ingle_status status;
    char msg[480];
};

/* Fills *err (which may be NULL) and returns s, so that one line fails well:
 *     return err_set(err, INGLE_FORMAT, "tensor '%s': odd offset", name);           */
ATTR_PRINTF(3, 4)
ingle_status err_set(struct err *err, ingle_status s, const char *fmt, ...);

#ifdef __clang_analyzer__ /* it cannot see the body: s is returned */
#define err_set(err, s, ...) ((void)(err_set)(err, s, __VA_ARGS__), (s))
#endif

/* Puts a subject in front of an error that is on its way up: "FILE: what was said".
 * Returns err->status (INGLE_OK is returned untouched when err is NULL). */
ATTR_PRINTF(2, 3) ingle_status err_prefix(struct err *err, const char *fmt, ...);

#endif
