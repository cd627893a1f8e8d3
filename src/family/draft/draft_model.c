/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft_model - a model of a known family that drafts for a larger one with its vocabulary.  Its
 * keys and values are the drafter's streams; it reads what the target has read, and writes a token
 * a row in a round.
 */
#include "family/draft/drafts.h"

#include "base/mem.h"

#include <string.h>

enum { MODEL_MOST = 16 }; /* tokens of a round: each is a pass of the whole model */

struct plain {
    const struct family *family;
    void *self;
    struct family_info info;
};

static const struct family *family_of(const struct io_meta *meta)
{
    const char *s;
    size_t n;
    char arch[64];
    if (io_get_str(meta, "general.architecture", &s, &n, NULL) || n >= sizeof arch)
        return NULL;
    memcpy(arch, s, n);
    arch[n] = 0;
    return family_by_arch(arch);
}

static bool plain_fits(const struct family *target, const struct model *m,
                       const struct io_meta *meta)
{
    (void)target;
    return family_of(meta) && model_has_matrix(m, "token_embd.weight");
}

static bool plain_named(struct json_object *config)
{
    struct json_object *v = NULL;
    return json_object_object_get_ex(config, "model_type", &v) &&
           json_object_is_type(v, json_type_string) && family_by_hf_type(json_object_get_string(v));
}

static void plain_free(void *self)
{
    struct plain *p = self;
    if (p && p->self)
        p->family->free(p->self);
    mem_free(p);
}

static ingle_status plain_bind(void **self, const struct family_draft_target *target,
                               struct model *m, const struct io_meta *meta,
                               struct family_draft_info *info, struct err *err)
{
    struct plain *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_set(err, INGLE_NOMEM, "no memory for a drafter");
    p->family = family_of(meta);
    if (!p->family)
        p->family = target->family; /* a checkpoint's configuration was made by it */
    ingle_status st = p->family->bind(&p->self, m, meta, &p->info, err);
    if (!st && p->info.n_vocab != target->info->n_vocab)
        st = err_set(err, INGLE_ARG,
                     "it has %lld rows of logits, the model %lld: a smaller model with the same "
                     "vocabulary would fit",
                     (long long)p->info.n_vocab, (long long)target->info->n_vocab);
    if (st) {
        plain_free(p);
        return st;
    }
    *info = (struct family_draft_info){.most = MODEL_MOST, .rows = MODEL_MOST};
    *self = p;
    return INGLE_OK;
}

static ingle_status plain_kv(const void *self, const struct kv_types *types, struct kv_spec *out,
                             struct err *err)
{
    const struct plain *p = self;
    return p->family->kv(p->self, types, out, err);
}

static void *plain_begin(const void *self, const struct family_forward *f)
{
    (void)self;
    (void)f;
    return NULL;
}

static void plain_tap(const void *self, void *state, enum family_tap tap, int layer, struct rows x)
{
    (void)self;
    (void)state;
    (void)tap;
    (void)layer;
    (void)x;
}

/* The tokens alone. */
static struct rows plain_observed(const void *self, const void *state, int64_t n_rows)
{
    (void)self;
    (void)state;
    return (struct rows){NULL, n_rows, 0, 0};
}

/* The step's rows once more, without logits. */
static void plain_end(const void *self, const struct family_forward *f, void *state)
{
    const struct plain *p = self;
    const struct family_step *from = f->step;
    const size_t mark = device_mark(f->device);
    struct family_span *span = device_bytes(f->device, (size_t)from->n_spans * sizeof *span);
    struct family_step step = {.span = span ? span : from->span,
                               .n_spans = from->n_spans,
                               .n_rows = from->n_rows,
                               .mirror = from->mirror,
                               .n_mirrors = from->n_mirrors};
    struct family_forward own = *f;
    (void)state;
    for (int64_t i = 0; span && from->span && i < from->n_spans; i++) {
        span[i] = from->span[i];
        span[i].want = FAMILY_LOGITS_NONE;
        span[i].n_soft = 0; /* vectors of another model */
    }
    own.step = &step;
    own.tap = NULL;
    own.part = NULL;
    own.logits = (struct rows){NULL, 0, p->info.n_vocab, p->info.n_vocab};
    p->family->forward(p->self, &own);
    device_release(f->device, mark);
}

static void plain_round(const void *self, struct family_round *r)
{
    (void)self;
    r->state = NULL;
}

/* One row of every span that goes on, at the place of the token before it. */
static void plain_next(const void *self, struct family_round *r, int64_t j, const int32_t *token,
                       int64_t n_spans, struct rows logits, float *confidence)
{
    const struct plain *p = self;
    const struct family_step *from = r->forward.step;
    const size_t mark = device_mark(r->forward.device);
    struct family_span *span = device_bytes(r->forward.device, (size_t)n_spans * sizeof *span);
    struct family_span dry = {.n = 1, .want = FAMILY_LOGITS_LAST};
    struct family_step step = {.span = span ? span : &dry,
                               .n_spans = span ? n_spans : 1,
                               .n_rows = n_spans,
                               .n_logits = n_spans};
    struct family_forward own = r->forward;
    (void)confidence;
    for (int64_t i = 0; span && from->span && i < n_spans; i++) {
        span[i] = from->span[i];
        span[i].token = &token[i];
        span[i].n = 1;
        span[i].at = from->span[i].at + j;
        span[i].want = FAMILY_LOGITS_LAST;
        span[i].prompt = false;
        span[i].sparse = NULL;
    }
    own.step = &step;
    own.tap = NULL;
    own.part = NULL;
    own.logits = logits;
    p->family->forward(p->self, &own);
    /* Where the keys and values of the beginning are missing nothing is known. */
    for (int64_t i = 0; device_runs(own.device) && i < n_spans; i++)
        if (r->from[i] > 0)
            family_clear_rows(own.device, rows_slice(logits, i, 1));
    device_release(r->forward.device, mark);
}

const struct family_draft family_draft_model = {
    .kind = "model",
    .named = plain_named,
    .fits = plain_fits,
    .bind = plain_bind,
    .kv = plain_kv,
    .observe_begin = plain_begin,
    .observe_tap = plain_tap,
    .observe_end = plain_end,
    .observed = plain_observed,
    .begin = plain_round,
    .next = plain_next,
    .free = plain_free,
};
