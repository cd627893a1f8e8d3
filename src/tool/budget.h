/*
 * budget - codes of tensors so that they have a given size together.
 */
#ifndef INGLE_TOOL_BUDGET_H
#define INGLE_TOOL_BUDGET_H

#include "tool/source.h"

struct pool;

struct tool_budget_item {
    const struct io_tensor *t;
    size_t i;         /* of the source */
    uint64_t n_rows;
    bool choose;      /* else it has n_bytes and stays */
    uint64_t n_bytes;
    uint32_t least;   /* no code that stands before this one among those of --fit; F32: any */
    double weight;    /* > 0: the share of tokens that compute with it */
    uint32_t type;    /* written */
    double error;     /* written: relative, of a sample */
};

/* Chooses the types: the sum of relative error x elements x weight is small, and the bytes are at
 * most n_bytes. */
MUST_CHECK ingle_status tool_budget(struct pool *p, uint32_t cpu, struct tool_source *in,
                                    struct tool_budget_item *item, size_t n, uint64_t n_bytes,
                                    const struct report_sink *sink, struct err *err);

#endif
