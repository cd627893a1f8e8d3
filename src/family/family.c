/* SPDX-License-Identifier: Apache-2.0 */
#include "family/family.h"

#include "base/mem.h"
#include "base/num.h"
#include "device/card.h"
#include "family/table.h"
#include <stdio.h>
#include <string.h>

static const struct family *const families[] = {
    &family_gemma4,
    &family_deepseek4,
};

enum { N_FAMILIES = sizeof families / sizeof *families };

const struct family *family_by_arch(const char *arch)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (!strcmp(families[i]->arch, arch))
            return families[i];
    return NULL;
}

const struct family *family_by_hf_type(const char *model_type)
{
    for (int i = 0; i < N_FAMILIES; i++)
        for (const char *const *t = families[i]->hf_types; *t; t++)
            if (!strcmp(*t, model_type))
                return families[i];
    return NULL;
}

const char *family_names(void)
{
    return "Gemma 4 (gemma4) and DeepSeek V4 Flash (deepseek4)";
}

struct rows family_draft_head(const struct family_round *r, const struct device_matrix *w,
                              struct rows x, int64_t first)
{
    const struct rows y = rows_slice(r->wide, first, x.n);
    device_matmul_columns(r->forward.device, &(struct device_product){w, 0, x, y, NULL}, r->only,
                          r->n_only);
    return y;
}

int64_t *family_positions(const struct family_forward *f)
{
    int64_t *pos = device_bytes(f->device, (size_t)f->step->n_rows * sizeof *pos);
    if (!device_runs(f->device))
        return pos;
    int64_t row = 0;
    for (int64_t i = 0; i < f->step->n_spans; i++) {
        const struct family_span *s = &f->step->span[i];
        const struct kv_gaps *gaps = s->timeline ? kv_timeline_gaps(s->timeline) : NULL;
        for (int64_t k = 0; k < s->n; k++)
            pos[row++] = kv_gaps_position(gaps, s->at + k);
    }
    return pos;
}

int32_t *family_tokens(const struct family_forward *f)
{
    int32_t *token = device_bytes(f->device, (size_t)f->step->n_rows * sizeof *token);
    if (!device_runs(f->device))
        return token;
    int64_t row = 0;
    for (int64_t i = 0; i < f->step->n_spans; i++)
        for (int64_t k = 0; k < f->step->span[i].n; k++)
            token[row++] = f->step->span[i].token[k];
    device_wrote(f->device, token, (size_t)row * sizeof *token);
    return token;
}

void family_prompt_rows(const struct family_forward *f)
{
    int64_t n = 0;
    for (int64_t i = 0; f->step->span && i < f->step->n_spans; i++)
        n += f->step->span[i].prompt ? f->step->span[i].n : 0;
    device_prompt_rows(f->device, f->step->n_rows, n);
}

ingle_status family_bind_head(struct model *m, const struct io_meta *meta, const char *arch,
                              bool tied, int64_t n_vocab, int64_t n_embd,
                              const struct device_matrix *embed, const struct device_matrix **out,
                              struct err *err)
{
    static const char name[] = "output.weight";
    const bool has = model_has_matrix(m, name);
    char key[64];
    bool same = false;
    snprintf(key, sizeof key, "%.32s.tie_word_embeddings", arch);
    const bool said = io_meta_find(meta, key) != NULL;
    ingle_status s = said ? io_get_bool(meta, key, &tied, err) : INGLE_OK;
    if (!s && !has && said && !tied)
        return err_set(
            err, INGLE_FORMAT,
            "'%s': 'tie_word_embeddings' is false, but tensor '%s' (lm_head.weight) is missing",
            io_path(model_file(m)), name);
    if (!s && has)
        s = model_same(m, name, "token_embd.weight", &same, err);
    if (s)
        return s;
    if (same || (!has && tied)) {
        *out = embed;
        if (same)
            model_skip(m, name, "it is the embedding once more");
        return INGLE_OK;
    }
    if (said && tied)
        report(model_sink(m), INGLE_REPORT_WARN, "tensor", name,
               "the head differs from the embedding and is used, though 'tie_word_embeddings' is "
               "true");
    return model_matrix(m, name, n_vocab, n_embd, 1, out, err);
}

ingle_status family_draft_unfit(const struct family_draft_target *t, const char *path,
                                const char *field, int64_t is, const char *what, int64_t want,
                                struct err *err)
{
    return err_set(
        err, INGLE_UNSUP,
        "'%s': '%s' is %lld, but %s %lld: what fits this target is a drafter for %s%s%s of "
        "%lld layers, width %lld and %lld tokens",
        path, field, (long long)is, what, (long long)want, t->family->arch,
        *t->info->size_label ? " " : "", t->info->size_label, (long long)t->info->n_layers,
        (long long)t->info->n_embd, (long long)t->info->n_vocab);
}

/* The part of a span that is in rows [first, end), when the span begins at row `row`. */
static struct family_span part_of(const struct family_span *s, int64_t row, int64_t first,
                                  int64_t end)
{
    const int64_t skip = num_max(0, first - row), n = num_min(s->n, end - row) - skip;
    struct family_span part = *s;
    part.token = s->token ? s->token + skip : NULL;
    part.at = s->at + skip;
    part.n = n;
    part.want = FAMILY_LOGITS_NONE;
    return part;
}

/* The mirrored rows of rows [first, first + n). */
static void take_mirrors(struct family_step *to, const struct family_forward *f, int64_t first,
                       int64_t n)
{
    const struct family_step *step = f->step;
    struct family_mirror *mirror =
        step->n_mirrors ? device_bytes(f->device, (size_t)step->n_mirrors * sizeof *mirror) : NULL;
    for (int64_t i = 0; mirror && i < step->n_mirrors; i++) {
        const struct family_mirror *from = &step->mirror[i];
        const int64_t row = num_max(from->row, first),
                      end = num_min(from->row + from->n, first + n);
        if (row < end)
            mirror[to->n_mirrors++] = (struct family_mirror){from->timeline, row - first, end - row,
                                                       from->at + row - from->row};
    }
    to->mirror = mirror;
}

void family_block_begin(struct family_block *b, const struct family_forward *f, int64_t first,
                        int64_t n)
{
    const struct family_step *step = f->step;
    struct family_span *to =
        device_bytes(f->device, (size_t)num_min(n, step->n_spans) * sizeof *to);
    *b = (struct family_block){.forward = *f,
                               .step = {.span = to, .n_spans = to ? 0 : 1, .n_rows = n}};
    b->forward.step = &b->step;
    for (int64_t i = 0, row = 0; to && i < step->n_spans && row < first + n;
         row += step->span[i++].n)
        if (row + step->span[i].n > first)
            to[b->step.n_spans++] = part_of(&step->span[i], row, first, first + n);
    take_mirrors(&b->step, f, first, n);
    family_prompt_rows(&b->forward);
}

void family_block_end(const struct family_forward *f)
{
    family_prompt_rows(f);
}

/* The step's spans as the device wants them, with the pages of one stream; after them, for what is
 * written, its mirrored rows. */
static const struct device_span *spans_and_mirrors(const struct family_forward *f, uint32_t stream,
                                                 int64_t n_mirrors)
{
    const struct family_step *step = f->step;
    const struct kv_stream *of = &f->kv->stream[stream];
    struct device_span *s =
        device_bytes(f->device, (size_t)(step->n_spans + n_mirrors) * sizeof *s);
    if (!s || !step->span)
        return NULL;
    int64_t row = 0;
    for (int64_t i = 0; i < step->n_spans; i++) {
        const struct family_span *from = &step->span[i];
        s[i] = (struct device_span){.row0 = row,
                                    .n = from->n,
                                    .pos0 = from->at,
                                    .page = kv_timeline_stream(from->timeline, of),
                                    .prompt = from->prompt,
                                    .sparse = from->sparse,
                                    .seen = from->seen};
        row += from->n;
    }
    for (int64_t i = 0; i < n_mirrors; i++) {
        const struct family_mirror *from = &step->mirror[i];
        s[step->n_spans + i] =
            (struct device_span){.row0 = from->row,
                                 .n = from->n,
                                 .pos0 = from->at,
                                 .page = kv_timeline_stream(from->timeline, of)};
    }
    return s;
}

static const struct device_span *spans(const struct family_forward *f, uint32_t stream)
{
    return spans_and_mirrors(f, stream, 0);
}

void family_put_soft(const struct family_forward *f, struct rows x, int32_t *tokens,
                     int32_t stand_in)
{
    const struct family_step *step = f->step;
    for (int64_t i = 0, row = 0; step->span && i < step->n_spans; row += step->span[i++].n)
        for (int64_t k = 0; k < step->span[i].n_soft && device_runs(f->device); k++) {
            const struct family_soft *s = &step->span[i].soft[k];
            if (s->width != x.width)
                continue;
            device_write(f->device, rows_slice(x, row + s->row, s->n), s->rows, s->width);
            for (int64_t j = 0; tokens && j < s->n; j++)
                tokens[row + s->row + j] = stand_in;
            device_wrote(f->device, tokens, (size_t)step->n_rows * sizeof *tokens);
        }
}

/* A dry run has no timelines: one span of all rows stands for them. */
static struct device_kv stream_of(const struct family_forward *f, uint32_t stream)
{
    const struct kv_stream *s = &f->kv->stream[stream];
    return (struct device_kv){s->k_codec, s->v_codec, s->n_heads, s->k_width,
                              s->v_width, kv_stream_at(f->kv, s), s->head_bytes, s->v_at,
                              s->from_v};
}

static struct device_shadow shadow_of(const struct family_forward *f, uint32_t stream)
{
    const struct kv_stream *s = &f->kv->stream[f->kv->stream[stream].shadow];
    return (struct device_shadow){s->at, s->head_bytes, s->v_at};
}

void family_kv_append(const struct family_forward *f, uint32_t stream, struct rows k,
                      struct rows v)
{
    const size_t mark = device_mark(f->device);
    const struct device_kv kv = stream_of(f, stream);
    const struct device_span dry = {.n = f->step->n_rows};
    const int64_t n_mirrors = f->step->n_mirrors;
    const struct device_span *s = spans_and_mirrors(f, stream, n_mirrors);
    device_kv_append(f->device, &kv, s ? s : &dry, s ? f->step->n_spans + n_mirrors : 1, k, v);
    const uint32_t shadow = f->kv->stream[stream].shadow;
    if (shadow) {
        const struct device_shadow to = shadow_of(f, stream);
        const struct device_span *sh = spans_and_mirrors(f, shadow, n_mirrors);
        device_shadow_append(f->device, &to, &kv, sh ? sh : &dry, s ? s : &dry,
                             sh ? f->step->n_spans + n_mirrors : 1, k);
    }
    device_release(f->device, mark);
}

/* Why no layer that sees everything can be attended to in a way of its own; NULL: one can. */
static const char *refuses(const struct device *d, const struct kv_spec *kv,
                           const char *(*why_not)(const struct device *d,
                                                  const struct device_kv *heads))
{
    const char *why = "no layer attends to heads of all that is before a position";
    for (uint32_t i = 0; i < kv->n_streams; i++) {
        const struct kv_stream *s = &kv->stream[i];
        if (s->kind != KV_HEADS || kv->group[s->group].window ||
            (kv->n_own && s->group >= kv->n_own))
            continue;
        const struct family_forward f = {.kv = kv};
        const struct device_kv heads = stream_of(&f, i);
        why = why_not(d, &heads);
        if (!why)
            return NULL;
    }
    return why;
}

const char *family_way_refuses(enum kv_way_kind kind, const struct device *d,
                               const struct kv_spec *kv)
{
    return kind == KV_WAY_GAPS ? kv_gaps_refuse(kv)
                               : refuses(d, kv,
                                         kind == KV_WAY_SPARSE ? device_sparse_refuses
                                                               : device_select_refuses);
}

/* Spans of an attention, and whose they are. */
struct reads {
    struct device_span *span;          /* [n] */
    struct kv_timeline **timeline;     /* [n] */
    uint64_t *rows;                    /* [n]: what seen->rows was */
    int64_t n;
};

/* Whether pages that they read are on disk alone. */
static bool is_away(const struct reads *r, uint32_t group)
{
    bool away = false;
    for (int64_t i = 0; i < r->n && !away; i++)
        away = kv_timeline_is_away(r->timeline[i], group);
    return away;
}

/* Attention of all spans over one head, in as many parts as the pages on disk need. */
static void attend_head(const struct family_forward *f, uint32_t stream, uint32_t head,
                        const struct reads *r, struct rows q, int64_t n_heads, struct rows out,
                        int64_t window, float scale)
{
    const uint32_t group = f->kv->stream[stream].group;
    const struct device_kv whole = stream_of(f, stream);
    struct device_kv kv = whole;
    kv.n_heads = 1;
    kv.at = 0;
    const int64_t first = head * n_heads;
    for (int64_t i = 0, n; i < r->n && device_runs(f->device); i += n) {
        struct kv_heads *h;
        struct err err;
        if (kv_heads_take(&h, stream, head, r->timeline + i, r->n - i, &n, device_cancel(f->device),
                          &err)) {
            device_fail(f->device, &err);
            return;
        }
        for (int64_t k = i; k < i + n; k++) {
            r->span[k].page = kv_timeline_head(r->timeline[k], group);
            r->rows[k] = r->span[k].seen ? r->span[k].seen->rows : 0;
        }
        device_attend(f->device, &kv, r->span + i, n,
                      rows_columns(q, first * kv.k_width, n_heads * kv.k_width), n_heads,
                      rows_columns(out, first * kv.v_width, n_heads * kv.v_width), window, scale);
        kv_heads_give(h);
        for (int64_t k = i; k < i + n && head; k++) /* a row is counted once for all heads */
            if (r->span[k].seen)
                r->span[k].seen->rows = r->rows[k];
    }
}

/* Heads are computed one by one where pages are on disk: each is what it would be beside the
 * others. */
static void attend(const struct family_forward *f, uint32_t stream, struct reads *r, struct rows q,
                   int64_t n_heads, struct rows out, int64_t window, float scale)
{
    const struct device_kv kv = stream_of(f, stream);
    const uint32_t group = f->kv->stream[stream].group;
    if (!is_away(r, group)) {
        for (int64_t i = 0; i < r->n; i++)
            r->span[i].page = kv_timeline_stream(r->timeline[i], &f->kv->stream[stream]);
        device_attend(f->device, &kv, r->span, r->n, q, n_heads, out, window, scale);
        return;
    }
    for (int64_t h = 0; h < kv.n_heads && device_runs(f->device); h++)
        attend_head(f, stream, (uint32_t)h, r, q, n_heads / kv.n_heads, out, window, scale);
}

/* Room for n spans; false: a dry run, in which one span of all rows stands for them. */
static bool reads_of(const struct family_forward *f, int64_t n, struct reads *r)
{
    *r = (struct reads){device_bytes(f->device, (size_t)n * sizeof *r->span),
                        device_bytes(f->device, (size_t)n * sizeof(struct kv_timeline *)),
                        device_bytes(f->device, (size_t)n * sizeof *r->rows), n};
    return r->span && r->timeline && r->rows && f->step->span;
}

/* ---- rows that choose pages ---- */

/* Whether rows of the stream may. */
static bool chooses(const struct family_forward *f, uint32_t stream, int64_t window)
{
    return f->kv->stream[stream].shadow && !window;
}

/* Rows of a span that see all: the first ones. */
static int64_t rows_of_all(const struct family_span *s)
{
    int64_t n = s->select ? 0 : s->n;
    while (n < s->n && kern_select_count(s->select, s->at + n, s->whole) > (s->at + n) / KV_PAGE)
        n++;
    return n;
}

/* The largest budget of a row of the step; in a dry run, of any rule. */
static int64_t largest_budget(const struct family_forward *f)
{
    const struct family_step *step = f->step;
    int64_t most = step->span ? 1 : num_div_up(f->n_ctx, KV_PAGE);
    for (int64_t i = 0; step->span && i < step->n_spans; i++)
        if (step->span[i].select)
            most = num_max(most, kern_select_count(step->span[i].select, f->n_ctx - 1,
                                                   step->span[i].whole));
    return most;
}

/* Rows [first, first + p->n_rows) of p, of heads whose pages are on disk: one head after the
 * other. */
static void attend_selected_head(const struct family_forward *f, uint32_t stream, uint32_t head,
                               const struct device_page_select *p, struct device_select_row *row,
                               struct kv_timeline *const *t, struct rows q, int64_t n_heads,
                               struct rows out, float scale)
{
    const uint32_t group = f->kv->stream[stream].group;
    struct device_kv kv = stream_of(f, stream);
    kv.n_heads = 1;
    kv.at = 0;
    struct kv_wanted want[DEVICE_SELECT_ROWS];
    for (int64_t i = 0; i < p->n_rows; i++)
        want[i] = (struct kv_wanted){t[i], p->chosen + (i * p->n_heads + head) * p->most,
                                     kern_select_count(p->rule, row[i].pos, row[i].whole)};
    for (int64_t i = 0, n; i < p->n_rows && device_runs(f->device); i += n) {
        struct device_page_select part = *p;
        struct kv_heads *h;
        struct err err;
        int64_t end = i;
        while (end < p->n_rows && !kern_select_checks(row[end].pos))
            end++;
        const atomic_bool *cancel = device_cancel(f->device);
        if (end > i ? kv_heads_take_some(&h, stream, head, want + i, end - i, &n, cancel, &err)
                    : kv_heads_take(&h, stream, head, t + i, 1, &n, cancel, &err)) {
            device_fail(f->device, &err);
            return;
        }
        for (int64_t k = i; k < i + n; k++)
            row[k].page = kv_timeline_head(t[k], group);
        part.row = row + i;
        part.n_rows = n;
        part.chosen += i * p->n_heads * p->most;
        part.rest += i * p->n_heads * n_heads * kern_attend_state(kv.v_width);
        device_attend_selected(
            f->device, &kv, &part, head,
            rows_columns(q, head * n_heads * kv.k_width, n_heads * kv.k_width), n_heads,
            rows_columns(out, head * n_heads * kv.v_width, n_heads * kv.v_width), scale);
        kv_heads_give(h);
    }
}

static bool same_rule(const struct kern_select *a, const struct kern_select *b)
{
    return a->part == b->part && a->least == b->least;
}

static void attend_some(const struct family_forward *f, uint32_t stream,
                        const struct device_page_select *p, struct device_select_row *row,
                        struct kv_timeline *const *t, struct rows q, int64_t n_heads,
                        struct rows out, float scale)
{
    const uint32_t group = f->kv->stream[stream].group;
    const struct device_kv kv = stream_of(f, stream);
    bool away = false;
    device_select_pages(f->device, p, q, n_heads, scale);
    for (int64_t i = 0; row && i < p->n_rows; i++) {
        away |= kv_timeline_is_away(t[i], group);
        row[i].page = kv_timeline_stream(t[i], &f->kv->stream[stream]);
    }
    if (!away)
        device_attend_selected(f->device, &kv, p, 0, q, n_heads, out, scale);
    if (away)
        device_read(f->device, p->chosen,
                    (size_t)(p->n_rows * p->n_heads * p->most) * sizeof *p->chosen);
    for (int64_t h = 0; away && h < kv.n_heads && device_runs(f->device); h++)
        attend_selected_head(f, stream, (uint32_t)h, p, row, t, q, n_heads / kv.n_heads, out,
                             scale);
}

/* The rows that do not see all, some of one rule at a time; in a dry run, as many as can be. */
static void attend_selected(const struct family_forward *f, uint32_t stream, struct rows q,
                          int64_t n_heads, struct rows out, float scale)
{
    const struct device_kv kv = stream_of(f, stream);
    const struct family_step *step = f->step;
    struct device_select_row row[DEVICE_SELECT_ROWS];
    struct kv_timeline *timeline[DEVICE_SELECT_ROWS];
    struct device_page_select p = {.shadow = shadow_of(f, stream),
                             .n_heads = kv.n_heads,
                             .k_width = kv.k_width,
                             .v_width = kv.v_width,
                             .row = row,
                             .n_rows = num_min(DEVICE_SELECT_ROWS, step->n_rows),
                             .last = f->n_ctx - 1,
                             .most = largest_budget(f)};
    p.chosen = device_bytes(f->device, (size_t)(p.n_rows * kv.n_heads * p.most) * sizeof *p.chosen);
    p.rest = device_bytes(f->device, (size_t)(p.n_rows * n_heads * kern_attend_state(kv.v_width)) *
                                         sizeof *p.rest);
    if (!p.chosen || !p.rest || !step->span) {
        static const struct kern_select all = {.part = 1, .least = KERN_SELECT_LEAST};
        p.rule = &all;
        p.row = NULL;
        attend_some(f, stream, &p, NULL, NULL, q, n_heads, out, scale);
        return;
    }
    p.n_rows = 0;
    for (int64_t i = 0, first = 0; i < step->n_spans; first += step->span[i++].n) {
        const struct family_span *s = &step->span[i];
        for (int64_t k = rows_of_all(s); k < s->n; k++) {
            if (p.n_rows == DEVICE_SELECT_ROWS || (p.n_rows && !same_rule(p.rule, s->select))) {
                attend_some(f, stream, &p, row, timeline, q, n_heads, out, scale);
                p.n_rows = 0;
            }
            p.rule = s->select;
            timeline[p.n_rows] = s->timeline;
            row[p.n_rows++] = (struct device_select_row){
                .row = first + k,
                .pos = s->at + k,
                .seen = s->selected,
                .whole = s->whole,
                .shadow = kv_timeline_pages(s->timeline,
                                            f->kv->stream[f->kv->stream[stream].shadow].group)};
        }
    }
    if (p.n_rows)
        attend_some(f, stream, &p, row, timeline, q, n_heads, out, scale);
}

int64_t family_window_first(const struct kv_timeline *t, int64_t at, int64_t window)
{
    const struct kv_gaps *gaps = kv_timeline_gaps(t);
    return kv_gaps_index(gaps, num_max(0, kv_gaps_position(gaps, at) - window + 1));
}

/* What each row of a timeline with gaps sees first.  NULL: as the window says. */
static const int32_t *first_of(const struct family_span *s, int64_t window, int32_t *room)
{
    if (!window || !room || !kv_timeline_gaps(s->timeline))
        return NULL;
    for (int64_t k = 0; k < s->n; k++)
        room[k] = (int32_t)family_window_first(s->timeline, s->at + k, window);
    return room;
}

const char *family_probe_refuses(const struct kv_spec *kv)
{
    for (uint32_t i = 0; i < kv->n_streams; i++)
        if (kv->stream[i].kind == KV_HEADS && !kv->group[kv->stream[i].group].window &&
            kv->stream[i].k_codec != KERN_KV_FROM_V)
            return NULL;
    return "no layer of it keeps the keys of all positions";
}

/* What rows that somebody asks about attend to. */
static void probe(const struct family_forward *f, uint32_t stream, const struct device_span *span,
                  struct rows q, int64_t n_heads, float scale)
{
    const struct family_probe *p = f->probe;
    const struct device_kv kv = stream_of(f, stream);
    const int64_t first = num_max(span->pos0, p->from),
                  end = num_min(span->pos0 + span->n, p->from + p->n);
    if (first >= end || f->step->n_spans != 1)
        return;
    struct device_span part = *span;
    part.row0 += first - span->pos0;
    part.pos0 = first;
    part.n = end - first;
    const int64_t at = (first - p->from) * p->stride;
    device_probe(f->device, &kv, &part, q, n_heads, scale, p->best + at, p->room + at, p->stride);
}

/* Spans that attention with a window has for a span of the step: rows of pictures have their
 * own. */
static int64_t n_parts(const struct family_span *s, int64_t window)
{
    int64_t n = 1;
    for (int64_t i = 0; i < s->n_soft && window; i++)
        n += s->soft[i].both ? 2 : 0;
    return n;
}

/* The next span of r, rows [from, to) of s, unless there are none. */
static void add_part(struct reads *r, struct device_span s, struct kv_timeline *t, int64_t from,
                     int64_t to, bool both)
{
    if (from >= to)
        return;
    const int64_t end = s.pos0 + to;
    s.row0 += from;
    s.pos0 += from;
    s.first = s.first ? s.first + from : NULL;
    s.n = to - from;
    s.through = both ? end : 0;
    r->span[r->n] = s;
    r->timeline[r->n++] = t;
}

static void add_parts(struct reads *r, const struct device_span *s, const struct family_span *from,
                      int64_t window)
{
    int64_t at = 0;
    for (int64_t i = 0; i < from->n_soft && window; i++) {
        const struct family_soft *soft = &from->soft[i];
        if (!soft->both)
            continue;
        add_part(r, *s, from->timeline, at, soft->row, false);
        at = soft->row + soft->n;
        add_part(r, *s, from->timeline, soft->row, at, true);
    }
    add_part(r, *s, from->timeline, at, s->n, false);
}

void family_attend(const struct family_forward *f, uint32_t stream, struct rows q,
                   int64_t n_heads, struct rows out, int64_t window, float scale)
{
    const size_t mark = device_mark(f->device);
    const struct device_kv kv = stream_of(f, stream);
    const bool may_choose = chooses(f, stream, window);
    struct device_span dry = {.n = f->step->n_rows};
    struct reads r;
    int64_t n_selected = 0, row = 0, most = f->step->span ? 0 : f->step->n_spans;
    for (int64_t i = 0; f->step->span && i < f->step->n_spans; i++)
        most += n_parts(&f->step->span[i], window);
    int32_t *first =
        window ? device_bytes(f->device, (size_t)f->step->n_rows * sizeof *first) : NULL;
    if (reads_of(f, most, &r)) {
        const struct device_span *s = spans(f, stream);
        r.n = 0;
        for (int64_t i = 0; s && i < f->step->n_spans; i++) {
            const struct family_span *from = &f->step->span[i];
            const int64_t n = may_choose ? rows_of_all(from) : from->n, at = row;
            row += from->n;
            n_selected += from->n - n;
            if (!n)
                continue;
            struct device_span one = s[i];
            one.n = n;
            one.first = first_of(from, window, first ? first + at : NULL);
            add_parts(&r, &one, from, window);
        }
        if (r.n)
            attend(f, stream, &r, q, n_heads, out, window, scale);
        if (r.n && f->probe && !window)
            probe(f, stream, &r.span[0], q, n_heads, scale);
        if (n_selected)
            attend_selected(f, stream, q, n_heads, out, scale);
    } else {
        device_attend(f->device, &kv, &dry, 1, q, n_heads, out, window, scale);
        if (may_choose)
            attend_selected(f, stream, q, n_heads, out, scale);
    }
    device_release(f->device, mark);
}

/* A span for each row of the step, which sees its view; NULL in a dry run. */
static const struct device_span *views(const struct family_forward *f, uint32_t stream,
                                       const struct family_view *view)
{
    const struct family_step *step = f->step;
    struct device_span *s = device_bytes(f->device, (size_t)step->n_rows * sizeof *s);
    int64_t row = 0;
    for (int64_t i = 0; s && step->span && i < step->n_spans; i++)
        for (int64_t k = 0; k < step->span[i].n; k++, row++)
            s[row] = (struct device_span){.row0 = row,
                                          .n = 1,
                                          .pos0 = view[row].last,
                                          .window = view[row].n,
                                          .page = kv_timeline_stream(step->span[i].timeline,
                                                                     &f->kv->stream[stream])};
    return row ? s : NULL;
}

void family_attend_views(const struct family_forward *f, uint32_t stream, struct rows q,
                         int64_t n_heads, struct rows out, const struct family_view *view,
                         float scale)
{
    const size_t mark = device_mark(f->device);
    const struct device_kv kv = stream_of(f, stream);
    const struct device_span dry = {.n = f->step->n_rows};
    struct reads r;
    if (reads_of(f, f->step->n_rows, &r)) {
        int64_t row = 0;
        for (int64_t i = 0; i < f->step->n_spans; i++)
            for (int64_t k = 0; k < f->step->span[i].n; k++, row++) {
                r.span[row] = (struct device_span){
                    .row0 = row, .n = 1, .pos0 = view[row].last, .window = view[row].n};
                r.timeline[row] = f->step->span[i].timeline;
            }
        attend(f, stream, &r, q, n_heads, out, 0, scale);
    } else {
        device_attend(f->device, &kv, &dry, 1, q, n_heads, out, 0, scale);
    }
    device_release(f->device, mark);
}

static struct device_stream rows_stream(const struct family_forward *f, uint32_t stream)
{
    const struct kv_stream *s = &f->kv->stream[stream];
    return (struct device_stream){s->k_codec, s->k_width, s->v_width, s->every,
                                  kv_stream_at(f->kv, s)};
}

const char *family_card_refuses(struct device *d, const struct kv_spec *kv, uint32_t stream)
{
    const struct kv_stream *s = &kv->stream[stream];
    const struct family_forward f = {.kv = kv};
    if (s->shadow || s->kind == KV_SHADOW)
        return "rows of answers choose pages (--kv-select)";
    if (kv->in_memory && !kv->group[s->group].window && s->kind == KV_HEADS)
        return "pages go to disk (--kv-disk)";
    if (s->kind == KV_HEADS) {
        const struct device_kv heads = stream_of(&f, stream);
        return device_card_refuses_kv(d, &heads);
    }
    const struct device_stream rows = rows_stream(&f, stream);
    return device_card_refuses_stream(d, &rows);
}

void family_rows_append(const struct family_forward *f, uint32_t stream, struct rows x)
{
    const size_t mark = device_mark(f->device);
    const struct device_stream st = rows_stream(f, stream);
    const struct device_span dry = {.n = f->step->n_rows};
    const struct device_span *s =
        spans_and_mirrors(f, stream, f->step->n_mirrors);
    device_rows_append(f->device, &st, s ? s : &dry, s ? f->step->n_spans : 1, x);
    for (int64_t i = 0; s && i < f->step->n_mirrors; i++) {
        struct device_span mirror = s[f->step->n_spans + i];
        const struct rows own = rows_slice(x, mirror.row0, mirror.n);
        mirror.row0 = 0;
        device_rows_append(f->device, &st, &mirror, 1, own);
    }
    device_release(f->device, mark);
}

void family_rows_before(const struct family_forward *f, uint32_t stream, struct rows y)
{
    const size_t mark = device_mark(f->device);
    const struct device_stream st = rows_stream(f, stream);
    const struct device_span dry = {.n = y.n};
    struct device_span *s = device_bytes(f->device, (size_t)y.n * sizeof *s);
    for (int64_t i = 0; s && i < y.n; i++)
        s[i] = (struct device_span){
            .row0 = i,
            .n = 1,
            .pos0 = f->step->span[i].at - 1,
            .page = kv_timeline_stream(f->step->span[i].timeline, &f->kv->stream[stream])};
    device_rows_read(f->device, &st, s ? s : &dry, s ? y.n : 1, y);
    device_release(f->device, mark);
}

bool family_is_rotated(const struct family_forward *f, uint32_t stream)
{
    return f->kv->stream[stream].k_codec == KERN_KV_FP4;
}

void family_compress(const struct family_forward *f, uint32_t in, struct rows x, uint32_t out,
                     bool overlap, const struct device_vector *norm, float eps,
                     const double *inv_freq, int64_t n_pairs)
{
    const size_t mark = device_mark(f->device);
    struct device_compress c = {rows_stream(f, in), rows_stream(f, out), 0, overlap, norm, eps,
                                inv_freq, n_pairs, family_is_rotated(f, out), x};
    c.ratio = c.out.every;
    const struct device_span dry = {.n = f->step->n_rows};
    const int64_t n_mirrors = f->step->n_mirrors;
    const struct device_span *a = spans_and_mirrors(f, in, n_mirrors);
    const struct device_span *b = spans_and_mirrors(f, out, n_mirrors);
    device_compress(f->device, &c, a ? a : &dry, b ? b : &dry,
                    a ? f->step->n_spans + n_mirrors : 1);
    device_release(f->device, mark);
}

struct family_choice family_choice_rows(const struct family_forward *f, int64_t n, int64_t top_k)
{
    return (struct family_choice){device_bytes(f->device, (size_t)(n * top_k) * sizeof(int32_t)),
                                  device_bytes(f->device, (size_t)n * sizeof(int32_t)), top_k};
}

struct family_choice family_choice_slice(const struct family_choice *c, int64_t first)
{
    return (struct family_choice){c->sel ? c->sel + first * c->top_k : NULL,
                                  c->count ? c->count + first : NULL, c->top_k};
}

void family_select(const struct family_forward *f, uint32_t keys, struct rows q, struct rows weight,
                   int64_t n_heads, const struct family_choice *out)
{
    const size_t mark = device_mark(f->device);
    const struct device_select d = {rows_stream(f, keys), n_heads, out->top_k};
    const struct device_span dry = {.n = f->step->n_rows, .pos0 = f->n_ctx - f->step->n_rows};
    const struct device_span *s = spans(f, keys);
    device_select(f->device, &d, s ? s : &dry, s ? f->step->n_spans : 1, q, weight, out->sel,
                  out->count);
    device_release(f->device, mark);
}

void family_attend_latent(const struct family_forward *f, const struct family_latent *a,
                          struct rows q, int64_t n_heads, struct rows out, float scale)
{
    const size_t mark = device_mark(f->device);
    struct device_latent l = {
        .near = rows_stream(f, a->near), .window = a->window, .sink = a->sink};
    const struct device_span dry = {.n = f->step->n_rows, .pos0 = f->n_ctx - f->step->n_rows};
    const struct device_span *near = a->view ? views(f, a->near, a->view) : spans(f, a->near),
                             *far = NULL;
    const int64_t n_spans = a->view ? f->step->n_rows : f->step->n_spans;
    if (a->far != FAMILY_NO_STREAM) {
        l.far = rows_stream(f, a->far);
        far = spans(f, a->far);
        far = far ? far : &dry;
    }
    if (a->choice) {
        l.sel = a->choice->sel;
        l.count = a->choice->count;
        l.top_k = a->choice->top_k;
    }
    device_attend_latent(f->device, &l, near ? near : &dry, far, near ? n_spans : 1, q,
                         n_heads, out, scale);
    device_release(f->device, mark);
}

struct rows family_wanted(const struct family_forward *f, struct rows x)
{
    if (f->range && f->range->picked) {
        device_prompt_rows(f->device, 0, 0);
        return x;
    }
    struct rows y = device_rows(f->device, f->step->n_logits, x.width);
    const size_t n_bytes = (size_t)y.n * sizeof(int32_t);
    int32_t *wanted = device_bytes(f->device, n_bytes);
    int64_t row = 0, to = 0;
    device_prompt_rows(f->device, 0, 0);
    for (int64_t i = 0; wanted && i < f->step->n_spans; row += f->step->span[i++].n) {
        const struct family_span *s = &f->step->span[i];
        int64_t n = s->want == FAMILY_LOGITS_ALL ? s->n : s->want == FAMILY_LOGITS_LAST;
        for (; n; n--)
            wanted[to++] = (int32_t)(row + s->n - n);
    }
    device_wrote(f->device, wanted, n_bytes);
    device_gather(f->device, y, x, wanted);
    return y;
}

int64_t family_first(const struct family_forward *f)
{
    return f->range ? f->range->from : 0;
}

int64_t family_end(const struct family_forward *f, int64_t n_layers)
{
    return f->range ? f->range->to : n_layers;
}

const struct rows *family_border(const struct family_forward *f)
{
    return f->range && !f->range->head ? &f->range->out : NULL;
}

void family_clear_rows(struct device *d, struct rows x)
{
    for (int64_t i = 0; i < x.n && device_runs(d); i++)
        memset(x.at + i * x.stride, 0, (size_t)x.width * sizeof *x.at);
    device_wrote_rows(d, x);
}

void family_tap_rows(const struct family_forward *f, enum family_tap tap, int layer,
                     struct rows x)
{
    if (f->tap && device_runs(f->device))
        f->tap(f->tap_arg, tap, layer, x);
}

void family_part_rows(const struct family_forward *f, const char *name, int layer, struct rows x)
{
    if (!f->part || !device_runs(f->device))
        return;
    device_read_rows(f->device, x);
    f->part(f->part_arg, name, layer, x);
}

void family_part_ints(const struct family_forward *f, const char *name, int layer, const int32_t *x,
                      const int32_t *count, int64_t n, int64_t width)
{
    if (!f->part || !device_runs(f->device))
        return;
    float *y = mem_calloc((size_t)(n * width), sizeof *y);
    device_read(f->device, x, (size_t)(n * width) * sizeof *x);
    device_read(f->device, count, (size_t)n * sizeof *count);
    for (int64_t i = 0; y && i < n * width; i++)
        y[i] = count && i % width >= count[i / width] ? -1.0f : (float)x[i];
    if (y)
        f->part(f->part_arg, name, layer, (struct rows){y, n, width, width});
    mem_free(y);
}
