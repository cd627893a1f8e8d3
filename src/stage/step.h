/* step - a step as a message; for this room only.
 *
 * Head: n_rows, and as flags what comes back (STAGE_ALL: all rows; else those whose logits are
 * wanted).  Payload: u32 spans, mirrors, groups, soft; of each span and mirror a line, then tokens,
 * tables, rows. */
#ifndef INGLE_STAGE_STEP_H
#define INGLE_STAGE_STEP_H

#include "stage/wire.h"

enum { STAGE_ALL = 1 };
enum { STAGE_REPLY = 16 }; /* of a ROWS payload before its rows: u64 ns, u32 rows, u32 width */

/* Bytes of the payload before the rows, for tables of at most n_pages in all; and the payload. */
MUST_CHECK bool stage_step_write(struct wire *w, const struct family_forward *f,
                                 struct stage_pages *pages);
size_t stage_step_most(const struct family_forward *f);

/* A span or mirror of a step that came. */
struct stage_line {
    int64_t at, row, n;
    uint32_t want;
    bool prompt, mirror;
    int64_t soft, n_soft;
    uint64_t before;
    const uint8_t *token; /* i32 [n] */
    struct stage_table table[KV_MAX_GROUPS];
};
struct stage_step {
    int64_t n_rows, n_spans, n_mirrors, n_logits;
    uint32_t n_groups;
    struct stage_line *line;   /* [n_spans + n_mirrors]: mirrors last */
    struct family_soft *soft;  /* rows and `both` only */
    int64_t n_soft;
    const uint8_t *rows;       /* f32, any address */
    size_t n_row_bytes;        /* all of them */
};
/* Everything is checked but the pages' addresses; ended with stage_step_release(). */
MUST_CHECK ingle_status stage_step_read(const uint8_t *at, size_t n, int64_t n_rows, int64_t n_ctx,
                                        uint32_t n_groups, struct stage_step *out,
                                        struct err *err);
void stage_step_release(struct stage_step *s);

#endif
