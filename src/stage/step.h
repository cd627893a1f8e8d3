/* step - a step as a message; for this room only.
 *
 * Head: n_rows, and flags.  Payload: u32 spans, mirrors, groups, logits, taps; u32 each layer after
 * which all rows are asked for, ascending; of each span and mirror a line, with tokens and tables;
 * rows, unless they come as ROWS with the same tag.  A stage answers the engine with its rows, or
 * without them where they go to the next stage, and with the rows after those layers that were
 * asked for. */
#ifndef INGLE_STAGE_STEP_H
#define INGLE_STAGE_STEP_H

#include "stage/wire.h"

enum {
    /* all rows go on; else those whose logits are wanted, from the last stage as the head reads
     * them: of the width of the model */
    STAGE_ALL = 1,
    STAGE_AWAIT = 2, /* the rows come by themselves */
    STAGE_PASS = 4   /* its rows go to the next stage */
};
enum { STAGE_BAD = 1 }; /* of ROWS to the engine: some of its rows are no numbers */
enum { STAGE_REPLY = 16 }; /* of a ROWS payload before its rows: u64 ns, u32 rows, u32 width */

/* The payload before the rows, and its bytes at most.  tap [n_taps].  INGLE_IO: of a span nobody
 * knows the tokens before it. */
MUST_CHECK ingle_status stage_step_write(struct wire *w, const struct family_forward *f,
                                         struct stage_pages *pages, const uint32_t *tap,
                                         int64_t n_taps, struct err *err);
/* Those of one span of one token whose context is n_ctx. */
size_t stage_step_line(const struct kv_spec *spec, int64_t n_ctx);
/* Those of any step of n_rows rows, with the rows: f32 [width]. */
uint64_t stage_step_longest(const struct kv_spec *spec, int64_t n_rows, int64_t n_ctx,
                            int64_t n_layers, int64_t width);
size_t stage_step_most(const struct family_forward *f, int64_t n_taps);

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
    uint32_t n_groups, n_taps;
    const uint8_t *tap;        /* u32 [n_taps], ascending: any address */
    struct stage_line *line;   /* owned: [n_spans + n_mirrors]: mirrors last */
    struct family_soft *soft;  /* owned: rows and `both` only */
    size_t cap_lines, cap_soft;
    int64_t n_soft;
    const uint8_t *rows;       /* f32, any address */
    size_t n_row_bytes;        /* all of them */
};
/* Everything is checked but the pages' addresses.  out is zero, or one that was read before, whose
 * memory is used again; ended with stage_step_release(). */
struct stage_step_limits { int64_t n_rows, n_ctx, n_layers; uint32_t n_groups; };
MUST_CHECK ingle_status stage_step_read(const uint8_t *at, size_t n,
                                        const struct stage_step_limits *most,
                                        struct stage_step *out, struct err *err);
uint32_t stage_step_tap(const struct stage_step *s, uint32_t i);
void stage_step_release(struct stage_step *s);

#endif
