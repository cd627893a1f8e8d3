/* cpu_rows - rows of a paged stream in memory, and which span a row of a batch belongs to. */
#ifndef INGLE_DEVICE_CPU_ROWS_H
#define INGLE_DEVICE_CPU_ROWS_H

#include "base/bug.h"
#include "device/ops.h"

static inline struct kern_row device_cpu_row_form(const struct device_stream *s)
{
    return (struct kern_row){s->codec, s->width, s->tail};
}

/* Row i of a timeline; the rows of one page stand side by side. */
static inline void *device_cpu_row(const struct device_stream *s, const struct device_span *span,
                                   int64_t i)
{
    const int64_t per_page = KERN_PAGE / s->every;
    BUG_IF(!span);
    uint8_t *page = span->page[i / per_page];
    BUG_IF(!page);
    return page + s->at + (size_t)(i % per_page) * kern_row_bytes(s->codec, s->width, s->tail);
}

/* The span of batch row i, and its position. */
static inline const struct device_span *device_cpu_span(const struct device_span *span, int64_t i,
                                                        int64_t *pos)
{
    while (i >= span->row0 + span->n)
        span++;
    *pos = span->pos0 + i - span->row0;
    return span;
}

#endif
