/*
 * packed_write - inside the room: a file of packed weights is written.
 */
#ifndef INGLE_MODEL_PACKED_WRITE_H
#define INGLE_MODEL_PACKED_WRITE_H

#include "model/packed.h"

struct packed_write {
    const struct model_load_options *o;
    const struct packed_want *want;
    const struct model *model;
    /* Gives the next n bytes of the image, from `at` on: *out is the callee's until the next
     * call. */
    ingle_status (*next)(void *arg, uint64_t at, uint64_t n, const void **out, struct err *err);
    void *arg;
    bool few_extents; /* of a layer's extents some are requested at a time */
    const struct report_sink *sink;
};
/* How many bytes of the image, from `at` on, are requested at once: a matrix with what is after
 * it, or the extents of a layer. */
uint64_t model_packed_piece(const struct packed_want *w, uint64_t at);
/* Writes an image under a temporary name, syncs and renames.  INGLE_LIMIT: there is no room;
 * INGLE_CANCEL; INGLE_UNSUP: another process is at it, or the file is there. */
MUST_CHECK ingle_status model_packed_write(const struct packed_write *w, struct err *err);

#endif
