/* SPDX-License-Identifier: Apache-2.0 */
/* step - a step as bytes. */
#include "stage/step.h"

#include "base/mem.h"
#include "base/num.h"
#include <string.h>

enum { LINE_BYTES = 48, TABLE_BYTES = 8, SOFT_BYTES = 12, BEGIN_BYTES = 20 };

/* ---- out ---- */

static int64_t pages_of(struct kv_timeline *t, const struct kv_spec *s, uint32_t g,
                        uint8_t *const **page, int64_t end)
{
    *page = NULL;
    for (uint32_t i = 0; i < s->n_streams && s->group[g].own_bytes && !*page; i++)
        if (s->stream[i].group == g && s->stream[i].own)
            *page = kv_timeline_stream(t, &s->stream[i]);
    for (uint32_t i = 0; i < s->n_streams && s->group[g].own_bytes && !*page; i++)
        if (s->stream[i].group == g && s->stream[i].twin) {
            struct kv_stream own = s->stream[i];
            own.own = true;
            *page = kv_timeline_stream(t, &own);
        }
    int64_t first = 0;
    while (*page && first < end && !(*page)[first])
        first++;
    return *page ? first : end;
}

static uint32_t groups_of(const struct kv_spec *s)
{
    return s->n_own ? s->n_own : s->n_groups;
}

size_t stage_step_most(const struct family_forward *f, int64_t n_taps)
{
    const struct family_step *s = f->step;
    size_t n = BEGIN_BYTES + 4 * (size_t)n_taps;
    for (int64_t i = 0; i < s->n_spans + s->n_mirrors; i++) {
        const bool mirror = i >= s->n_spans;
        const int64_t end = mirror ? s->mirror[i - s->n_spans].at + s->mirror[i - s->n_spans].n
                                   : s->span[i].at + s->span[i].n;
        n += LINE_BYTES + (mirror ? 0 : 4 * (size_t)s->span[i].n) +
             (mirror ? 0 : SOFT_BYTES * (size_t)s->span[i].n_soft) +
             groups_of(f->kv) * (TABLE_BYTES + 8 * (size_t)num_div_up(end, KV_PAGE));
    }
    return n;
}

size_t stage_step_line(const struct kv_spec *spec, int64_t n_ctx)
{
    return BEGIN_BYTES + LINE_BYTES + 4 +
           groups_of(spec) * (TABLE_BYTES + 8 * (size_t)num_div_up(n_ctx, KV_PAGE));
}

uint64_t stage_step_longest(const struct kv_spec *spec, int64_t n_rows, int64_t n_ctx,
                            int64_t n_layers, int64_t width)
{
    const uint64_t rows = (uint64_t)n_rows, line = stage_step_line(spec, n_ctx) + SOFT_BYTES;
    /* a span and a mirror of each */
    return BEGIN_BYTES + 4 * (uint64_t)n_layers +
           rows * (2 * line + sizeof(float) * (uint64_t)width);
}

struct line_out {
    struct kv_timeline *timeline;
    int64_t at, row, n;
    uint32_t want;
    bool prompt;
    const int32_t *token;
    const struct family_span *span; /* NULL: a mirror */
};

/* The token of row `row` of the step. */
static const int32_t *tokens_at(const struct family_step *s, int64_t row)
{
    for (int64_t i = 0; i < s->n_spans; row -= s->span[i++].n)
        if (row < s->span[i].n)
            return s->span[i].token + row;
    return NULL;
}

static ingle_status put_line(struct wire *w, const struct family_forward *f,
                             struct stage_pages *pages, const struct line_out *l, struct err *err)
{
    const uint32_t n_groups = groups_of(f->kv);
    struct stage_table table[KV_MAX_GROUPS];
    const int64_t end = num_div_up(l->at + l->n, KV_PAGE);
    const size_t line = w->n;
    stage_put_u64(w, (uint64_t)l->at);
    stage_put_u32(w, (uint64_t)l->row);
    stage_put_u32(w, (uint64_t)l->n);
    stage_put_u32(w, l->want);
    stage_put_u32(w, l->prompt);
    stage_put_u32(w, l->span ? (uint64_t)l->span->n_soft : 0);
    stage_put_u32(w, 0);
    stage_put_u64(w, 0); /* the hash, below */
    stage_put_u64(w, 0);
    for (uint32_t g = 0; g < n_groups; g++) {
        uint8_t *const *page;
        const int64_t first = pages_of(l->timeline, f->kv, g, &page, end);
        stage_put_u32(w, (uint64_t)first);
        stage_put_u32(w, (uint64_t)end);
        table[g] = (struct stage_table){(uint32_t)first, (uint32_t)end, w->at + w->n};
        for (int64_t i = first; i < end; i++)
            stage_put_u64(w, (uintptr_t)page[i]);
    }
    if (l->span)
        stage_put(w, l->token, 4 * (size_t)l->n);
    for (int64_t i = 0; l->span && i < l->span->n_soft; i++) {
        stage_put_u32(w, (uint64_t)l->span->soft[i].row);
        stage_put_u32(w, (uint64_t)l->span->soft[i].n);
        stage_put_u32(w, l->span->soft[i].both);
    }
    if (w->bad)
        return err_set(err, INGLE_LIMIT, "a step does not fit into %zu bytes", w->cap);
    const uint64_t before = stage_pages_before(pages, table, n_groups, l->at);
    if (l->at && !before)
        return err_set(err, INGLE_IO, "what stages have of tokens before position %lld is lost",
                       (long long)l->at);
    memcpy(w->at + line + 32, &before, sizeof before);
    const union { const int32_t *i; const uint8_t *b; } token = {.i = l->token};
    stage_pages_wrote(pages, table, n_groups, l->at, token.b, l->n, before);
    return INGLE_OK;
}

ingle_status stage_step_write(struct wire *w, const struct family_forward *f,
                              struct stage_pages *pages, const uint32_t *tap, int64_t n_taps,
                              struct err *err)
{
    const struct family_step *s = f->step;
    stage_put_u32(w, (uint64_t)s->n_spans);
    stage_put_u32(w, (uint64_t)s->n_mirrors);
    stage_put_u32(w, groups_of(f->kv));
    stage_put_u32(w, (uint64_t)s->n_logits);
    stage_put_u32(w, (uint64_t)n_taps);
    stage_put(w, tap, 4 * (size_t)n_taps);
    ingle_status st = INGLE_OK;
    /* a branch's span begins after its mirror */
    for (int64_t i = 0; !st && i < s->n_mirrors; i++) {
        const struct family_mirror *m = &s->mirror[i];
        st = put_line(w, f, pages, &(struct line_out){.timeline = m->timeline,
                                                      .at = m->at,
                                                      .row = m->row,
                                                      .n = m->n,
                                                      .token = tokens_at(s, m->row)}, err);
    }
    for (int64_t i = 0, row = 0; !st && i < s->n_spans; row += s->span[i++].n)
        st = put_line(w, f, pages, &(struct line_out){.timeline = s->span[i].timeline,
                                                      .at = s->span[i].at,
                                                      .row = row,
                                                      .n = s->span[i].n,
                                                      .want = s->span[i].want,
                                                      .prompt = s->span[i].prompt,
                                                      .token = s->span[i].token,
                                                      .span = &s->span[i]}, err);
    return st;
}

/* ---- in ---- */

void stage_step_release(struct stage_step *s)
{
    mem_free(s->line);
    mem_free(s->soft);
    *s = (struct stage_step){0};
}

static ingle_status wrong(const char *what, uint64_t v, uint64_t least, uint64_t most,
                          struct err *err)
{
    return err_set(err, INGLE_FORMAT, "a STEP has '%s' %llu outside %llu to %llu", what,
                   (unsigned long long)v, (unsigned long long)least, (unsigned long long)most);
}

static ingle_status read_soft(struct wire_in *w, struct stage_step *s, const struct stage_line *l,
                              struct err *err)
{
    int64_t end = 0;
    for (int64_t i = 0; i < l->n_soft && !w->bad; i++) {
        struct family_soft *f = &s->soft[s->n_soft++];
        f->row = stage_get_u32(w);
        f->n = stage_get_u32(w);
        f->both = stage_get_u32(w) != 0;
        if (f->row < end || f->n < 1 || f->row > l->n || f->n > l->n - f->row)
            return wrong("row of a medium", (uint64_t)f->row, (uint64_t)end, (uint64_t)l->n, err);
        end = f->row + f->n;
    }
    return INGLE_OK;
}

static ingle_status read_line(struct wire_in *w, struct stage_step *s, struct stage_line *l,
                              int64_t n_ctx, struct err *err)
{
    const uint64_t at = stage_get_u64(w);
    l->row = stage_get_u32(w);
    l->n = stage_get_u32(w);
    l->want = stage_get_u32(w);
    l->prompt = stage_get_u32(w) != 0;
    l->n_soft = stage_get_u32(w);
    (void)stage_get_u32(w);
    l->before = stage_get_u64(w);
    (void)stage_get_u64(w);
    if (w->bad)
        return INGLE_OK;
    if (at >= (uint64_t)n_ctx)
        return wrong("position", at, 0, (uint64_t)n_ctx - 1, err);
    l->at = (int64_t)at;
    if (l->n < 1 || l->n > n_ctx - l->at || l->n > s->n_rows)
        return wrong("rows of a span", (uint64_t)l->n, 1, (uint64_t)s->n_rows, err);
    if (l->row > s->n_rows - l->n)
        return wrong("first row", (uint64_t)l->row, 0, (uint64_t)(s->n_rows - l->n), err);
    if (l->want > FAMILY_LOGITS_ALL)
        return wrong("logits", l->want, 0, FAMILY_LOGITS_ALL, err);
    if (l->n_soft > (l->mirror ? 0 : l->n) || l->n_soft > s->n_rows - s->n_soft)
        return wrong("media", (uint64_t)l->n_soft, 0, (uint64_t)l->n, err);
    const uint32_t end = (uint32_t)num_div_up(l->at + l->n, KV_PAGE);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        l->table[g].first = stage_get_u32(w);
        l->table[g].end = stage_get_u32(w);
        if (l->table[g].end != end || l->table[g].first > end)
            return wrong("end of pages", l->table[g].end, end, end, err);
        l->table[g].page = stage_get(w, 8 * (size_t)(end - l->table[g].first));
    }
    if (!l->mirror)
        l->token = stage_get(w, 4 * (size_t)l->n);
    l->soft = s->n_soft;
    return read_soft(w, s, l, err);
}

/* Spans follow each other, and wanted rows are as many as the head says. */
static ingle_status check_rows(struct stage_step *s, struct err *err)
{
    int64_t row = 0, n_logits = 0;
    for (int64_t i = 0; i < s->n_spans; i++) {
        const struct stage_line *l = &s->line[i];
        if (l->row != row)
            return wrong("first row of a span", (uint64_t)l->row, (uint64_t)row, (uint64_t)row,
                         err);
        row += l->n;
        n_logits += l->want == FAMILY_LOGITS_ALL ? l->n : l->want == FAMILY_LOGITS_LAST;
    }
    if (row != s->n_rows)
        return wrong("rows", (uint64_t)s->n_rows, (uint64_t)row, (uint64_t)row, err);
    if (n_logits != s->n_logits)
        return wrong("rows of logits", (uint64_t)s->n_logits, (uint64_t)n_logits,
                     (uint64_t)n_logits, err);
    for (int64_t i = s->n_spans; i < s->n_spans + s->n_mirrors; i++) {
        struct stage_line *m = &s->line[i];
        for (int64_t k = 0; k < s->n_spans && !m->token; k++)
            if (m->row >= s->line[k].row && m->row + m->n <= s->line[k].row + s->line[k].n)
                m->token = s->line[k].token + 4 * (size_t)(m->row - s->line[k].row);
        if (!m->token)
            return wrong("row of a mirror", (uint64_t)m->row, 0, (uint64_t)s->n_rows, err);
    }
    return INGLE_OK;
}

uint32_t stage_step_tap(const struct stage_step *s, uint32_t i)
{
    uint32_t v;
    memcpy(&v, s->tap + 4 * (size_t)i, sizeof v);
    return v;
}

static ingle_status read_taps(struct wire_in *w, struct stage_step *s, int64_t n_layers,
                              struct err *err)
{
    s->n_taps = stage_get_u32(w);
    if (s->n_taps > n_layers)
        return wrong("layers asked for", s->n_taps, 0, (uint64_t)n_layers, err);
    s->tap = stage_get(w, 4 * (size_t)s->n_taps);
    for (uint32_t i = 0; i < s->n_taps && !w->bad; i++) {
        const uint32_t least = i ? stage_step_tap(s, i - 1) + 1 : 0, tap = stage_step_tap(s, i);
        if (tap < least || tap >= n_layers)
            return wrong("layer asked for", tap, least, (uint64_t)n_layers - 1, err);
    }
    return INGLE_OK;
}

ingle_status stage_step_read(const uint8_t *at, size_t n, const struct stage_step_limits *most,
                             struct stage_step *out, struct err *err)
{
    const int64_t n_rows = most->n_rows, n_ctx = most->n_ctx;
    const uint32_t n_groups = most->n_groups;
    struct wire_in w = {.at = at, .cap = n};
    struct stage_step s = {.n_rows = n_rows,
                           .line = out->line,
                           .soft = out->soft,
                           .cap_lines = out->cap_lines,
                           .cap_soft = out->cap_soft};
    s.n_spans = stage_get_u32(&w);
    s.n_mirrors = stage_get_u32(&w);
    s.n_groups = stage_get_u32(&w);
    s.n_logits = stage_get_u32(&w);
    const ingle_status taps = read_taps(&w, &s, most->n_layers, err);
    if (taps)
        return taps;
    if (s.n_groups != n_groups)
        return wrong("groups", s.n_groups, n_groups, n_groups, err);
    if (s.n_spans < 1 || s.n_spans > n_rows)
        return wrong("spans", (uint64_t)s.n_spans, 1, (uint64_t)n_rows, err);
    if (s.n_mirrors > n_rows)
        return wrong("mirrors", (uint64_t)s.n_mirrors, 0, (uint64_t)n_rows, err);
    const int64_t n_lines = s.n_spans + s.n_mirrors;
    ingle_status st = INGLE_OK;
    if (!mem_grow(&s.line, &s.cap_lines, (size_t)n_lines, sizeof *s.line) ||
        !mem_grow(&s.soft, &s.cap_soft, (size_t)n_rows, sizeof *s.soft))
        st = err_set(err, INGLE_NOMEM, "no memory for a step of %lld rows", (long long)n_rows);
    else
        memset(s.line, 0, (size_t)n_lines * sizeof *s.line);
    for (int64_t i = 0; !st && !w.bad && i < n_lines; i++) {
        const bool mirror = i < s.n_mirrors;
        struct stage_line *l = &s.line[mirror ? s.n_spans + i : i - s.n_mirrors];
        l->mirror = mirror;
        st = read_line(&w, &s, l, n_ctx, err);
    }
    if (!st && w.bad)
        st = err_set(err, INGLE_FORMAT, "a STEP of %lld spans has only %zu bytes",
                     (long long)s.n_spans, n);
    if (!st)
        st = check_rows(&s, err);
    s.rows = at + w.n;
    s.n_row_bytes = n - w.n;
    *out = s;
    return st;
}
