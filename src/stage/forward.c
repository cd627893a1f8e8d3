/* SPDX-License-Identifier: Apache-2.0 */
/* forward - some layers of a step, and what they need. */
#include "stage/stage.h"

#include "base/num.h"

void stage_forward(const struct family *fam, const void *self, const struct family_forward *f,
                   const struct family_range *range)
{
    struct family_forward part = *f;
    part.range = range;
    family_prompt_rows(&part);
    fam->forward(self, &part);
}

struct rows stage_collapse(const struct family *fam, const void *self, struct device *d,
                           struct rows x, struct rows y)
{
    if (!fam->collapse)
        return x;
    const size_t mark = device_mark(d);
    device_prompt_rows(d, 0, 0);
    if (x.n)
        fam->collapse(self, d, x, y);
    device_release(d, mark);
    return y;
}

void stage_keep_layers(const struct family *fam, const void *self, struct model *m, int64_t from,
                       int64_t to, int64_t n_layers)
{
    struct family_ends ends = {0};
    fam->ends(self, &ends);
    model_keep_layers(m, from, to, from == 0, to == n_layers ? ends.collapse : NULL);
}

void stage_share(const struct family *fam, const void *self, const struct kv_spec *spec,
                 int64_t from, int64_t to, struct kv_spec *out)
{
    *out = *spec;
    for (uint32_t g = 0; g < spec->n_groups; g++)
        out->group[g].page_bytes = 0;
    for (uint32_t i = 0; i < spec->n_streams; i++) {
        const struct kv_stream *st = &spec->stream[i];
        const bool guests = spec->n_own && st->group >= spec->n_own,
                   lent = !guests && st->layer < from && fam->borrows &&
                          fam->borrows(self, i, from, to);
        if (guests ? !from : lent || (st->layer >= from && st->layer < to))
            out->group[st->group].page_bytes += st->n_bytes;
    }
}

static size_t dry_run(const struct family *fam, const void *self, const struct family_info *info,
                      struct device *d, const struct kv_spec *spec, int64_t n_ctx,
                      int64_t max_rows, int64_t n_spans, int64_t from, int64_t to)
{
    const struct family_span one = {.n = n_spans > 1 ? 1 : max_rows};
    const struct family_step step = {.span = &one, .n_spans = 1, .n_rows = max_rows};
    const struct family_forward f = {
        .device = d, .step = &step, .kv = spec, .n_ctx = n_ctx,
        .logits = {NULL, 0, info->n_vocab, info->n_vocab}};
    device_dry_begin(d);
    const struct family_range range = {.from = from,
                                       .to = to,
                                       .in = device_rows(d, max_rows, fam->border(self, from)),
                                       .out = device_rows(d, max_rows, fam->border(self, to))};
    if (n_spans > 1)
        (void)device_bytes(d, (size_t)max_rows *
                                  (6 * sizeof(struct device_span) + sizeof(struct family_span) +
                                   sizeof(struct family_mirror)));
    stage_forward(fam, self, &f, &range);
    if (to == info->n_layers)
        (void)stage_collapse(fam, self, d, range.out, rows_columns(range.in, 0, info->n_embd));
    return device_dry_end(d);
}

size_t stage_dry_run(const struct family *fam, const void *self, const struct family_info *info,
                     struct device *d, const struct kv_spec *spec, int64_t n_ctx, int64_t max_rows,
                     int64_t from, int64_t to)
{
    const size_t one = dry_run(fam, self, info, d, spec, n_ctx, max_rows, 1, from, to),
                 many = dry_run(fam, self, info, d, spec, n_ctx, max_rows, max_rows, from, to);
    return (one > many ? one : many) + 4096;
}
