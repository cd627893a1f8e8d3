/*
 * fake_drafter - a network that knows what comes: it is given texts, finds the one that a session
 * is in by what it has kept of its positions, and drafts what follows there, or now and then
 * something else.  What it keeps says for each position which token stood there, so that a mistake
 * in rewinds, forks and restores is seen.
 */
#ifndef INGLE_TESTS_FAKE_DRAFTER_H
#define INGLE_TESTS_FAKE_DRAFTER_H

#include "unit/unit.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/engine.h"
#include "engine/draft.h"
#include "family/family.h"
#include "kv/kv.h"
#include "session/session.h"
#include <string.h>

enum { FAKE_TEXTS = 256, FAKE_SPANS = 64, FAKE_ROW = 4, FAKE_WINDOW = 40, FAKE_MOST = 9 };

struct fake {
    struct {
        int32_t *token;
        int64_t n;
    } text[FAKE_TEXTS];
    int n_texts;
    int64_t most, n_vocab;
    float bad;         /* not 0: the logits of all rows, NaN or infinite */
    double right;      /* how often a drafted token is the text's next one, ... */
    double second;     /* ... and where it is not, how often that is the second best */
    bool confidence;
    struct kv_types types; /* of the model's keys and values */
    int64_t n_rounds, n_drafted, n_lost, n_wrong_rows; /* lost: in none of the texts */
    int64_t n_steps, n_taps;
    int64_t found[FAKE_SPANS], at[FAKE_SPANS]; /* of the round: text and anchor */
};

/* ---- what it keeps: the token of a position, in pages that stay and in a window ---- */

static inline ingle_status fake_kv(const void *self, const struct kv_types *types,
                                   struct kv_spec *out, struct err *err)
{
    struct kv_spec spec = {
        .n_groups = 2, .n_streams = 2, .stream = mem_calloc(2, sizeof *spec.stream)};
    (void)self;
    (void)types;
    if (!spec.stream)
        return err_set(err, INGLE_NOMEM, "no memory");
    spec.group[1].window = FAKE_WINDOW;
    for (uint32_t g = 0; g < 2; g++)
        spec.stream[g] = (struct kv_stream){
            .kind = KV_ROWS, .group = g, .n_heads = 1, .k_width = FAKE_ROW, .every = 1};
    const ingle_status st = kv_layout(&spec, err);
    assert_int_equal(st, INGLE_OK);
    *out = spec;
    return INGLE_OK;
}

static inline float *fake_row(const struct family_forward *f, const struct family_span *s,
                              uint32_t stream, int64_t pos)
{
    const struct kv_stream *st = &f->kv->stream[stream];
    uint8_t *page = kv_timeline_pages(s->timeline, st->group)[pos / KV_PAGE];
    assert_non_null(page);
    return (float *)(void *)(page + st->at + (size_t)(pos % KV_PAGE) * FAKE_ROW * sizeof(float));
}

static inline void *fake_observe_begin(const void *self, const struct family_forward *f)
{
    (void)f;
    return (void *)(uintptr_t)self;
}

static inline void fake_observe_tap(const void *self, void *state, enum family_tap tap, int layer,
                                    struct rows x)
{
    struct fake *k = state;
    (void)self;
    (void)tap;
    (void)layer;
    (void)x;
    k->n_taps++;
}

/* Rows of a span that a branch has, too. */
static inline void fake_observe_mirrors(const struct family_forward *f)
{
    for (int64_t i = 0; i < f->step->n_mirrors; i++) {
        const struct family_mirror *t = &f->step->mirror[i];
        const struct family_span *s = f->step->span, own = {.timeline = t->timeline};
        int64_t row = t->row;
        while (row >= s->n)
            row -= s++->n;
        assert_true(row + t->n <= s->n);
        assert_int_equal(t->at, s->at + row);
        for (int64_t r = 0; r < t->n; r++)
            for (uint32_t stream = 0; stream < 2; stream++)
                memcpy(fake_row(f, &own, stream, t->at + r),
                       &(float[FAKE_ROW]){(float)s->token[row + r], (float)(t->at + r), 1, 2},
                       FAKE_ROW * sizeof(float));
    }
}

static inline void fake_observe_end(const void *self, const struct family_forward *f, void *state)
{
    struct fake *k = state;
    (void)self;
    k->n_steps++;
    fake_observe_mirrors(f);
    for (int64_t i = 0; i < f->step->n_spans; i++) {
        const struct family_span *s = &f->step->span[i];
        for (int64_t r = 0; r < s->n && s->timeline; r++)
            for (uint32_t stream = 0; stream < 2; stream++)
                if (kv_timeline_pages(s->timeline,
                                      f->kv->stream[stream].group)[(s->at + r) / KV_PAGE])
                    memcpy(fake_row(f, s, stream, s->at + r),
                           &(float[FAKE_ROW]){(float)s->token[r], (float)(s->at + r), 1, 2},
                           FAKE_ROW * sizeof(float));
    }
}

/* ---- rounds ---- */

/* Whether the span has been in this text so far, as far as that was kept. */
static inline bool fake_is_in(const struct fake *k, const struct family_round *r, int64_t i, int t)
{
    const struct family_span *s = &r->forward.step->span[i];
    if (s->at >= k->text[t].n || k->text[t].token[s->at] != s->token[0])
        return false;
    for (int64_t pos = r->from[i]; pos < s->at; pos++)
        if ((float)k->text[t].token[pos] != fake_row(&r->forward, s, 0, pos)[0])
            return false;
    return true;
}

static inline void fake_check_window(struct fake *k, const struct family_round *r, int64_t i)
{
    const struct family_span *s = &r->forward.step->span[i];
    for (int64_t pos = num_max(r->from[i], s->at - FAKE_WINDOW); pos < s->at; pos++) {
        const float *full = fake_row(&r->forward, s, 0, pos),
                    *near = fake_row(&r->forward, s, 1, pos);
        k->n_wrong_rows +=
            full[0] != near[0] || full[1] != (float)pos || near[1] != (float)pos || full[3] != 2;
    }
}

static inline void fake_begin(const void *self, struct family_round *r)
{
    struct fake *k = (struct fake *)(uintptr_t)self;
    for (int64_t i = 0; i < r->forward.step->n_spans && r->forward.step->span[i].timeline; i++) {
        const struct family_span *s = &r->forward.step->span[i];
        k->n_rounds += i == 0;
        k->found[i] = -1;
        k->at[i] = s->at;
        for (int t = 0; t < k->n_texts && k->found[i] < 0; t++)
            if (fake_is_in(k, r, i, t))
                k->found[i] = t;
        k->n_lost += k->found[i] < 0;
        fake_check_window(k, r, i);
        /* rows that it writes on the way, and that nobody may see later */
        for (int64_t j = 0; j < k->most; j++)
            memcpy(fake_row(&r->forward, s, 0, s->at + j), &(float[FAKE_ROW]){-1, -1, -1, -1},
                   FAKE_ROW * sizeof(float));
    }
}

static inline void fake_next(const void *self, struct family_round *r, int64_t j,
                             const int32_t *token, int64_t n_spans, struct rows logits,
                             float *confidence)
{
    struct fake *k = (struct fake *)(uintptr_t)self;
    if (!r->forward.step->span[0].timeline)
        return;
    for (int64_t i = 0; i < n_spans; i++) {
        float *row = logits.at + i * logits.stride;
        const int64_t at = k->at[i] + 1 + j;
        uint64_t x = (uint64_t)at * 0x9E3779B97F4A7C15u + (uint64_t)token[i] * 0xBF58476D1CE4E5B9u +
                     (uint64_t)k->n_rounds;
        x ^= x >> 31;
        x *= 0x94D049BB133111EBu;
        const bool right = (double)(x >> 40) / (double)(1 << 24) < k->right && k->found[i] >= 0 &&
                           at < k->text[k->found[i]].n;
        memset(row, 0, (size_t)k->n_vocab * sizeof *row);
        if (!right && k->found[i] >= 0 && at < k->text[k->found[i]].n &&
            (double)(x >> 20 & 0xFFFFF) / (double)(1 << 20) < k->second)
            row[k->text[k->found[i]].token[at]] = 55;
        row[right ? k->text[k->found[i]].token[at] : (int32_t)(x % (uint64_t)k->n_vocab)] = 60;
        for (int64_t v = 0; v < k->n_vocab && !(k->bad == 0); v++)
            row[v] = k->bad;
        if (confidence)
            confidence[i] = (float)k->right;
        k->n_drafted++;
    }
}

static const struct family_draft fake_family = {
    .kind = "fake",
    .kv = fake_kv,
    .observe_begin = fake_observe_begin,
    .observe_tap = fake_observe_tap,
    .observe_end = fake_observe_end,
    .begin = fake_begin,
    .next = fake_next,
};

static inline void fake_learn(struct fake *k, const int32_t *prompt, int64_t n_prompt,
                              const int32_t *answer, int64_t n)
{
    assert_true(k->n_texts < FAKE_TEXTS);
    int32_t *text = mem_calloc((size_t)(n_prompt + n) + 1, sizeof *text);
    assert_non_null(text);
    memcpy(text, prompt, (size_t)n_prompt * sizeof *text);
    memcpy(text + n_prompt, answer, (size_t)n * sizeof *text);
    k->text[k->n_texts].token = text;
    k->text[k->n_texts++].n = n_prompt + n;
}

static inline void fake_forget(struct fake *k)
{
    while (k->n_texts)
        mem_free(k->text[--k->n_texts].token);
}

/* Options of a runner with it, for n_sessions of n_ctx. */
static inline struct runner_options fake_options(const struct ingle_engine *e, struct fake *k,
                                                 const struct runner_options *like,
                                                 int64_t n_sessions)
{
    struct runner_options o = *like;
    struct runner_plan plan;
    struct err err;
    k->n_vocab = e->info.n_vocab;
    o.kv = k->types;
    o.sink = &e->sink;
    o.draft = &fake_family;
    o.draft_self = k;
    o.draft_info =
        (struct family_draft_info){.most = k->most, .rows = k->most, .confidence = k->confidence};
    if (session_runner_plan(e->family, e->self, &e->info, e->device, &o, &plan, &err))
        fail_msg("%s", err.msg);
    o.tree_budget_bytes = plan.kv_session_bytes;
    o.kv_budget_bytes = plan.kv_session_bytes * (uint64_t)(n_sessions + 1) +
                        plan.branch_bytes * (uint64_t)engine_branches_of(e->draft_tree);
    return o;
}

/* The engine drafts by it from now on. */
static inline void fake_move_in(struct ingle_engine *e, const struct runner_options *o)
{
    struct err err;
    session_runner_free(e->runner);
    e->runner = NULL;
    if (session_runner_create(&e->runner, e->family, e->self, &e->info, e->device, o, &err))
        fail_msg("%s", err.msg);
}

#endif
