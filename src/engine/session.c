/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"
#include "engine/session.h"
#include "engine/media.h"

#include "base/fp.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/sha256.h"
#include "api/words.h"

#include <stdio.h>
#include <string.h>

enum { MOST_WORK = 1024 };

struct ingle_sampler {
    struct sampler *s;
    const struct ingle_engine *e;
    struct engine_rule *rule; /* NULL: tokens are free */
    const struct text_avoid *no_calls; /* the engine's; NULL: calls may be drawn */
    /* [n_vocab] logits of a draw that waits for its mask; NULL: never had a rule */
    float *kept;
    bool logprobs, greedy;
    bool free;                /* a drawn token is the one that is drawn with a mask, if it fits */
};

ingle_status ingle_session_open(struct ingle_session **out, struct ingle_engine *e,
                                struct ingle_error *error)
{
    struct err err;
    struct ingle_session *s = mem_zalloc(sizeof *s);
    if (!s)
        return engine_say(error, err_set(&err, INGLE_NOMEM, "no memory for a session"), &err);
    s->e = e;
    const ingle_status st = session_create(&s->s, e->runner, &err);
    if (st) {
        mem_free(s);
    } else {
        struct kv_way way = session_way(s->s);
        way.sparse = e->way.way.sparse;
        session_set_way(s->s, &way);
        *out = s;
    }
    return engine_say(error, st, &err);
}

void ingle_session_close(struct ingle_session *s)
{
    if (!s)
        return;
    engine_way_end(s);
    engine_drawing_free(s->drawing);
    session_free(s->s);
    mem_free(s);
}

uint64_t engine_salt_of(const char *user)
{
    struct sha256 h;
    uint8_t hash[SHA256_BYTES];
    uint64_t salt;
    if (!user)
        return 0;
    sha256_init(&h);
    sha256_add(&h, user, strlen(user));
    sha256_end(&h, hash);
    memcpy(&salt, hash, sizeof salt);
    return salt ? salt : 1;
}

void ingle_session_set_user(struct ingle_session *s, const char *user)
{
    session_set_salt(s->s, engine_salt_of(user));
    engine_drawing_turn(s);
}

static ingle_status check_tokens(const struct ingle_session *s, const int32_t *token, int64_t n,
                                 struct err *err)
{
    if (n < 0)
        return err_set(err, INGLE_ARG, "%lld tokens are below 0", (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (token[i] < 0 || token[i] >= s->e->info.n_vocab)
            return err_set(err, INGLE_ARG, "token %lld is %d, outside the vocabulary of %lld",
                           (long long)i, token[i], (long long)s->e->info.n_vocab);
    return INGLE_OK;
}

/* Why tokens that were once computed have to wait again. */
void engine_explain_reuse(const struct session_reuse *r, int64_t n, struct ingle_reuse *out)
{
    *out = (struct ingle_reuse){.kept = r->kept,
                                .from_session = r->from_session,
                                .from_cache = r->from_tree,
                                .from_disk = r->from_disk,
                                .matched = r->matched};
    const int64_t computed = r->kept < n - 1 ? r->kept : n;
    if (r->given_up > computed)
        snprintf(out->why, sizeof out->why, "%lld tokens were known and evicted",
                 (long long)r->given_up);
    else if (r->foreign > computed && r->foreign > r->matched)
        snprintf(out->why, sizeof out->why,
                 "%lld tokens are on disk, of another model or other settings",
                 (long long)r->foreign);
    else if (r->matched < n && r->kept < r->matched)
        snprintf(out->why, sizeof out->why,
                 "differs at token %lld, no restore point between %lld and it",
                 (long long)r->matched, (long long)r->kept);
    else if (r->matched > computed)
        snprintf(out->why, sizeof out->why, "no restore point between %lld and %lld",
                 (long long)r->kept, (long long)r->matched);
    else if (r->differs && r->kept < n - 1)
        snprintf(out->why, sizeof out->why, "differs at token %lld", (long long)r->matched);
}

static ingle_status sync_media(struct ingle_session *s, const int32_t *tokens, int64_t n,
                               const struct ingle_span *span, size_t n_spans,
                               struct ingle_reuse *reuse, struct ingle_error *error)
{
    struct err err;
    struct session_reuse r;
    struct session_borders borders;
    engine_drawing_turn(s);
    engine_way_end(s);
    ingle_status st = check_tokens(s, tokens, n, &err);
    if (!st)
        st = engine_media_check(s->e->model, tokens, n, span, n_spans, &err);
    struct session_soft *soft = NULL;
    if (!st)
        st = engine_media_soft(span, n_spans, &soft, &err);
    if (!st)
        st = session_sync_soft(s->s, tokens, n, soft, n_spans, &r, &err);
    if (!st)
        engine_media_count(s->e, soft, n_spans, r.kept, NULL);
    mem_free(soft);
    if (!st) {
        engine_borders(s->e->model, tokens, n, &borders);
        session_set_borders(s->s, &borders);
    }
    if (!st && reuse)
        engine_explain_reuse(&r, n, reuse);
    return engine_say(error, st, &err);
}

ingle_status ingle_session_sync(struct ingle_session *s, const int32_t *tokens, int64_t n,
                                struct ingle_reuse *reuse, struct ingle_error *error)
{
    return sync_media(s, tokens, n, NULL, 0, reuse, error);
}

ingle_status ingle_session_sync_media(struct ingle_session *s, const int32_t *tokens, int64_t n,
                                      const struct ingle_span *span, size_t n_spans,
                                      struct ingle_reuse *reuse, struct ingle_error *error)
{
    return sync_media(s, tokens, n, span, n_spans, reuse, error);
}

ingle_status ingle_session_spans(const struct ingle_session *s, struct ingle_span **out, size_t *n,
                                 struct ingle_error *error)
{
    struct err err;
    return engine_say(error, engine_media_spans(s->e, s->s, out, n, &err), &err);
}

ingle_status ingle_session_append_media(struct ingle_session *s, const int32_t *tokens, int64_t n,
                                        const struct ingle_span *span, size_t n_spans,
                                        struct ingle_error *error)
{
    struct err err;
    ingle_status st = check_tokens(s, tokens, n, &err);
    if (!st)
        st = engine_media_check(s->e->model, tokens, n, span, n_spans, &err);
    struct session_soft *soft = NULL;
    if (!st)
        st = engine_media_soft(span, n_spans, &soft, &err);
    if (!st)
        st = session_append_soft(s->s, tokens, n, soft, n_spans, &err);
    if (!st)
        engine_media_count(s->e, soft, n_spans, 0, NULL);
    mem_free(soft);
    return engine_say(error, st, &err);
}

ingle_status ingle_session_append(struct ingle_session *s, const int32_t *tokens, int64_t n,
                                  struct ingle_error *error)
{
    return ingle_session_append_media(s, tokens, n, NULL, 0, error);
}

ingle_status ingle_session_rewind(struct ingle_session *s, int64_t n, struct ingle_error *error)
{
    struct err err;
    engine_drawing_turn(s);
    return engine_say(error, session_rewind(s->s, n, &err), &err);
}

ingle_status ingle_session_fork(struct ingle_session *dst, const struct ingle_session *src,
                                struct ingle_error *error)
{
    struct err err;
    if (dst->e != src->e)
        return engine_say(
            error, err_set(&err, INGLE_ARG, "a session of another engine cannot be forked"), &err);
    engine_drawing_turn(dst);
    return engine_say(error, session_fork(dst->s, src->s, &err), &err);
}

ingle_status ingle_session_remember(struct ingle_session *s, struct ingle_error *error)
{
    struct err err;
    return engine_say(error, session_remember(s->s, &err), &err);
}

ingle_status ingle_session_save(const struct ingle_session *s, const char *path,
                                struct ingle_error *error)
{
    struct err err;
    return engine_say(error, session_save(s->s, path, &err), &err);
}

ingle_status ingle_session_load(struct ingle_session *s, const char *path,
                                struct ingle_error *error)
{
    struct err err;
    engine_drawing_turn(s);
    return engine_say(error, session_load(s->s, path, &err), &err);
}

int64_t ingle_session_length(const struct ingle_session *s)
{
    return session_length(s->s);
}

int64_t ingle_session_pending(const struct ingle_session *s)
{
    return session_pending(s->s);
}

const int32_t *ingle_session_tokens(const struct ingle_session *s, int64_t *n)
{
    *n = session_length(s->s) + session_pending(s->s);
    return session_tokens(s->s);
}

static ingle_status step(struct ingle_engine *e, struct ingle_work *work, int64_t n,
                         struct err *err)
{
    static const enum family_logits same[] = {[INGLE_WANT_NONE] = FAMILY_LOGITS_NONE,
                                              [INGLE_WANT_LAST] = FAMILY_LOGITS_LAST,
                                              [INGLE_WANT_ALL] = FAMILY_LOGITS_ALL};
    if (n < 0 || n > MOST_WORK)
        return err_set(err, INGLE_ARG, "%lld sessions in a step are outside 0 to %d", (long long)n,
                       MOST_WORK);
    struct session_work few[16] = {{0}}, *w = few; /* steps of answers allocate nothing */
    const bool many = n > (int64_t)(sizeof few / sizeof *few);
    if (many && !(w = mem_calloc((size_t)n, sizeof *w)))
        return err_set(err, INGLE_NOMEM, "no memory for a step");
    ingle_status st = INGLE_OK;
    for (int64_t i = 0; i < n && !st; i++) {
        if (work[i].session->e != e)
            st = err_set(err, INGLE_ARG, "session %lld of the step is another engine's",
                         (long long)i);
        w[i].s = work[i].session->s;
        w[i].max_tokens = work[i].max_tokens;
        w[i].want = same[work[i].want];
        if (!st) {
            const int64_t most = session_runner_max_rows(e->runner),
                          n_most = w[i].max_tokens > 0 ? num_min(w[i].max_tokens, most) : most;
            st = engine_media_ready(e, w[i].s, n_most, err);
        }
    }
    if (!st)
        st = session_step(e->runner, w, n, &e->cancel, err);
    for (int64_t i = 0; i < n && !st; i++) {
        work[i].n_done = w[i].n_done;
        work[i].logits = w[i].logits;
        work[i].n_logits = w[i].n_logits;
        engine_way_moved(work[i].session);
        engine_media_used(e, w[i].s, false);
    }
    if (many)
        mem_free(w);
    return st;
}

ingle_status ingle_step(struct ingle_engine *e, struct ingle_work *work, int64_t n,
                        struct ingle_error *error)
{
    struct err err;
    fenv_t mode;
    fp_enter(&mode);
    const ingle_status st = step(e, work, n, &err);
    fp_leave(&mode);
    return engine_say(error, st, &err);
}

struct drafting {
    struct ingle_draft *draft;
    int64_t n_vocab;
};

/* The most probable token; none after logits that are no numbers. */
static bool draw_draft(void *arg, int64_t i, int64_t j, const float *logits, int32_t *token)
{
    const struct drafting *d = arg;
    struct ingle_draft *to = &d->draft[i];
    int64_t best = 0;
    for (int64_t k = 1; k < d->n_vocab; k++)
        if (logits[k] > logits[best] || logits[best] != logits[best])
            best = k;
    if (logits[best] != logits[best])
        return false;
    if (to->logits)
        memcpy(to->logits + j * d->n_vocab, logits, (size_t)d->n_vocab * sizeof *logits);
    *token = (int32_t)best;
    return true;
}

static ingle_status check_draft(const struct ingle_engine *e, const struct ingle_draft *d,
                                struct err *err)
{
    const struct family_draft_info *info = session_runner_draft(e->runner);
    if (!info)
        return err_set(err, INGLE_ARG, "no network drafts: %s", e->draft_why);
    if (session_pending(d->session->s) != 1)
        return err_set(err, INGLE_ARG, "%lld tokens of the session wait, not one",
                       (long long)session_pending(d->session->s));
    if (d->width < 1 || d->width > info->most)
        return err_set(err, INGLE_ARG, "a draft of %lld tokens is outside 1 to %lld",
                       (long long)d->width, (long long)info->most);
    return INGLE_OK;
}

ingle_status ingle_draft(struct ingle_engine *e, struct ingle_draft *draft, int64_t n,
                         struct ingle_error *error)
{
    enum { AT_A_TIME = 32 };
    struct session_draft item[AT_A_TIME];
    struct err err;
    ingle_status st = INGLE_OK;
    for (int64_t i = 0; !st && i < n; i++) {
        draft[i].n = 0;
        st = check_draft(e, &draft[i], &err);
    }
    for (int64_t at = 0; !st && at < n; at += AT_A_TIME) {
        const int64_t k = num_min(AT_A_TIME, n - at);
        struct drafting d = {draft + at, e->info.n_vocab};
        for (int64_t i = 0; i < k; i++)
            item[i] = (struct session_draft){.s = draft[at + i].session->s,
                                             .width = draft[at + i].width,
                                             .token = draft[at + i].token,
                                             .confidence = draft[at + i].confidence};
        st = session_draft(e->runner, item, k, draw_draft, &d, &e->cancel, &err);
        for (int64_t i = 0; i < k; i++)
            draft[at + i].n = item[i].n;
    }
    return engine_say(error, st, &err);
}

ingle_status ingle_session_finish(struct ingle_session *s, const float **logits,
                                  struct ingle_error *error)
{
    struct err err;
    fenv_t mode;
    fp_enter(&mode);
    ingle_status st = engine_media_ready(s->e, s->s, -1, &err);
    if (!st)
        st = session_finish(s->s, logits, &s->e->cancel, &err);
    fp_leave(&mode);
    engine_media_used(s->e, s->s, false);
    engine_way_moved(s);
    return engine_say(error, st, &err);
}

/* ---- sampling ---- */

/* Tokens whose text holds a line feed, colon, quote or star: where DRY's sequences end. */
static ingle_status find_breakers(const struct tokenizer *t, int64_t n_vocab,
                                  struct text_ids *out, struct err *err)
{
    struct str s;
    ingle_status st = INGLE_OK;
    const int64_t n = num_min(n_vocab, (int64_t)text_n_tokens(t));
    str_init(&s);
    for (int64_t id = 0; id < n && !st; id++) {
        str_clear(&s);
        st = text_decode(t, (int32_t)id, false, &s, err);
        if (st || !strpbrk(s.at, "\n:\"*"))
            continue;
        if (mem_grow(&out->id, &out->cap, out->n + 1, sizeof *out->id))
            out->id[out->n++] = (int32_t)id;
        else
            st = err_set(err, INGLE_NOMEM, "no memory for a list of tokens");
    }
    str_release(&s);
    return st;
}

static ingle_status open_sampler(struct ingle_sampler *s, const struct ingle_engine *e,
                                 const struct ingle_sampling *o, struct err *err)
{
    struct text_ids breakers = {0};
    struct sample_options p = {
        .temperature = o->temperature,
        .top_k = o->top_k,
        .top_p = o->top_p,
        .min_p = o->min_p,
        .typical_p = o->typical_p,
        .repeat_penalty = o->repeat_penalty,
        .presence_penalty = o->presence_penalty,
        .frequency_penalty = o->frequency_penalty,
        .penalty_window = o->penalty_window,
        .dry_multiplier = o->dry_multiplier,
        .dry_base = o->dry_base,
        .dry_allowed_length = o->dry_allowed_length,
        .dry_window = o->dry_window,
        .xtc_probability = o->xtc_probability,
        .xtc_threshold = o->xtc_threshold,
        .seed = o->seed,
        .n_bias = o->n_bias,
        .suppress = e->model->suppress,
        .n_suppress = e->model->n_suppress,
        .n_prompt = o->n_prompt,
        .min_tokens = o->min_tokens,
        .banned = o->banned,
        .n_banned = o->n_banned,
        .only = o->only,
        .n_only = o->n_only,
        .logprobs = o->logprobs,
    };
    while (p.n_suppress && p.suppress[p.n_suppress - 1] >= e->info.n_vocab)
        p.n_suppress--; /* it has no logit */
    struct sample_bias *bias = mem_calloc(o->n_bias + 1, sizeof *bias);
    int32_t *end = mem_calloc(e->model->n_end + o->n_stop + 1, sizeof *end);
    if (!bias || !end) {
        mem_free(bias);
        mem_free(end);
        return err_set(err, INGLE_NOMEM, "no memory for %zu biases", o->n_bias);
    }
    for (size_t i = 0; o->min_tokens > 0 && i < e->model->n_end; i++)
        end[p.n_end++] = e->model->end[i];
    for (size_t i = 0; o->min_tokens > 0 && i < o->n_stop; i++)
        end[p.n_end++] = o->stop[i];
    p.end = end;
    for (size_t i = 0; i < o->n_bias; i++)
        bias[i] = (struct sample_bias){o->bias[i].token, o->bias[i].bias};
    p.bias = bias;
    s->e = e;
    s->logprobs = o->logprobs;
    s->greedy = !(o->temperature > 0);
    s->no_calls = o->no_calls ? e->no_calls : NULL;
    ingle_status st = INGLE_OK;
    if (o->dry_multiplier > 0 && e->model->tokenizer)
        st = find_breakers(e->model->tokenizer, e->info.n_vocab, &breakers, err);
    p.dry_breaker = breakers.id;
    p.n_dry_breaker = breakers.n;
    if (!st)
        st =
            session_sample_create(&s->s, &p, e->info.n_vocab, session_runner_n_ctx(e->runner), err);
    if (!st) /* what a sampled token was drawn from, with the mask, is reported with logprobs */
        s->free = session_sample_is_free(s->s) && (o->temperature == 0 || !o->logprobs);
    text_ids_release(&breakers);
    mem_free(bias);
    mem_free(end);
    return st;
}

ingle_status ingle_sampler_open(struct ingle_sampler **out, const struct ingle_engine *e,
                                const struct ingle_sampling *o, struct ingle_error *error)
{
    struct err err;
    struct ingle_sampler *s = mem_zalloc(sizeof *s);
    if (!s)
        return engine_say(error, err_set(&err, INGLE_NOMEM, "no memory for a sampler"), &err);
    const ingle_status st = open_sampler(s, e, o, &err);
    if (st)
        mem_free(s);
    else
        *out = s;
    return engine_say(error, st, &err);
}

void ingle_sampler_close(struct ingle_sampler *s)
{
    if (!s)
        return;
    session_sample_free(s->s);
    engine_rule_close(s->rule);
    mem_free(s->kept);
    mem_free(s);
}

ingle_status ingle_sampler_constrain(struct ingle_sampler *s, const struct ingle_grammar *g,
                                     struct ingle_error *error)
{
    return ingle_sampler_constrain_behind(s, g, "", 0, error);
}

ingle_status ingle_sampler_constrain_behind(struct ingle_sampler *s, const struct ingle_grammar *g,
                                            const char *text, size_t n, struct ingle_error *error)
{
    struct err err;
    struct engine_rule *rule = NULL;
    ingle_status st =
        g ? engine_rule_open(&rule, g, s->e->model, s->e->info.n_vocab, &err) : INGLE_OK;
    if (!st && n)
        st = rule ? engine_rule_accept_text(rule, text, n, &err)
                  : err_set(&err, INGLE_ARG, "a text without a grammar");
    if (!st && g && !s->kept &&
        !(s->kept = mem_calloc((size_t)s->e->info.n_vocab, sizeof *s->kept)))
        st = err_set(&err, INGLE_NOMEM, "no memory for the logits of a constrained answer");
    if (st) {
        engine_rule_close(rule);
        return engine_say(error, st, &err);
    }
    engine_rule_close(s->rule);
    s->rule = rule;
    return INGLE_OK;
}

/* Where the text must end it ends, whatever forbids the token that says so. */
static ingle_status draw_end(struct ingle_sampler *s, const float *logits,
                             const struct grammar_pause *pause, struct sample_token *t,
                             struct err *err)
{
    const struct ingle_model *m = s->e->model;
    bool fits = false;
    ingle_status st = INGLE_OK;
    if (m->n_end)
        st = engine_rule_allows(s->rule, pause, m->end[0], &fits, err);
    if (st || !fits)
        return st ? st
                  : err_set(err, INGLE_LIMIT, "every token that fits the grammar is forbidden");
    t->id = m->end[0];
    t->logprob = 0;
    if (s->logprobs)
        session_sample_logprobs(logits, s->e->info.n_vocab, t->id, &t->logprob, NULL, 0);
    return INGLE_OK;
}

bool engine_sampler_follows(const struct ingle_sampler *s)
{
    return s->rule != NULL;
}

void engine_sampler_ignore_end(struct ingle_sampler *s)
{
    session_sample_never(s->s, s->e->model->end, s->e->model->n_end);
}

/* Before every draw: ids that the text so far forbids. */
static void forbid(struct ingle_sampler *s, const int32_t *history, int64_t n)
{
    session_sample_allow(s->s, NULL);
    if (s->no_calls) {
        const int32_t *id;
        const size_t n_ids = text_avoid_next(s->no_calls, history, n, &id);
        session_sample_forbid(s->s, id, n_ids);
    }
}

/* Without filters the token that is drawn of all is the one that is drawn of those that fit, if it
 * fits: then the mask is not needed. */
static ingle_status draw(struct ingle_sampler *s, const float *logits, const int32_t *history,
                         int64_t n, const struct grammar_pause *pause, struct sample_token *t,
                         struct err *err)
{
    const uint64_t *allowed;
    bool fits = false;
    ingle_status st = INGLE_OK;
    forbid(s, history, n);
    if (s->free || !s->rule)
        st = session_sample_draw(s->s, logits, (uint64_t)n, history, n, t, err);
    if (st || !s->rule)
        return st;
    if (s->free)
        st = engine_rule_allows(s->rule, pause, t->id, &fits, err);
    if (!st && !fits) {
        st = engine_rule_mask(s->rule, pause, &allowed, err);
        if (!st) {
            session_sample_allow(s->s, allowed);
            st = session_sample_draw(s->s, logits, (uint64_t)n, history, n, t, err);
            if (st == INGLE_LIMIT)
                st = draw_end(s, logits, pause, t, err);
        }
    }
    return st ? st : engine_rule_accept(s->rule, t->id, err);
}

int engine_sampler_last(const struct ingle_sampler *s, int32_t token, float *logprob,
                        struct ingle_top *out, int n_top)
{
    struct sample_top top[ENGINE_MAX_TOP];
    const int n = session_sample_last(s->s, token, logprob, top,
                                      n_top < ENGINE_MAX_TOP ? n_top : ENGINE_MAX_TOP);
    for (int i = 0; i < n; i++)
        out[i] = (struct ingle_top){top[i].id, top[i].logprob};
    return n;
}

ingle_status ingle_sample(struct ingle_sampler *s, const float *logits,
                          const struct ingle_session *session, struct ingle_token *out,
                          struct ingle_error *error)
{
    return engine_sample_within(s, logits, session, NULL, out, error);
}

struct engine_rule *engine_sampler_keep(struct ingle_sampler *s, const float *logits)
{
    memcpy(s->kept, logits, (size_t)s->e->info.n_vocab * sizeof *logits);
    return s->rule;
}

struct engine_rule *engine_sampler_rule(const struct ingle_sampler *s)
{
    return s->rule;
}

enum { FIT_STEPS = 1 << 14 }; /* of a grammar, for the tokens of a draft */

bool engine_sampler_is_greedy(const struct ingle_sampler *s)
{
    return s->greedy;
}

int64_t engine_sampler_fit(const struct ingle_sampler *s, const int32_t *token, int64_t n)
{
    const struct grammar_pause pause = {.max_steps = FIT_STEPS};
    struct err err;
    int64_t fit = 0;
    if (!s->rule)
        return n;
    return engine_rule_fits(s->rule, &pause, token, n, &fit, &err) ? 0 : fit;
}

int64_t engine_sampler_forced(const struct ingle_sampler *s, int64_t width, int32_t *token,
                              float *confidence, struct text_ids *scratch)
{
    const struct grammar_pause pause = {.max_steps = FIT_STEPS};
    return s->rule ? engine_rule_forced(s->rule, &pause, width, token, confidence, scratch) : 0;
}

const float *engine_sampler_kept(const struct ingle_sampler *s)
{
    return s->kept;
}

ingle_status engine_sample_draft(struct ingle_sampler *s, const float *logits,
                                 const int32_t *history, int64_t n, float sharp, int32_t *token,
                                 int32_t *second, struct err *err)
{
    struct sample_token t;
    fenv_t mode;
    int64_t n_part;
    fp_enter(&mode);
    forbid(s, history, n);
    const struct device_columns *part = session_draft_part(s->e->runner, &n_part);
    session_sample_part(s->s, part, n_part);
    session_sample_sharpen(s->s, sharp);
    const ingle_status st = session_sample_draw(s->s, logits, (uint64_t)n, history, n, &t, err);
    if (second)
        *second = st ? -1 : session_sample_second(s->s);
    session_sample_sharpen(s->s, 1);
    session_sample_part(s->s, NULL, 0);
    fp_leave(&mode);
    *token = st ? 0 : t.id;
    return st;
}

ingle_status engine_sample_within(struct ingle_sampler *s, const float *logits,
                                  const struct ingle_session *session,
                                  const struct grammar_pause *pause, struct ingle_token *out,
                                  struct ingle_error *error)
{
    int64_t n;
    (void)ingle_session_tokens(session, &n);
    return engine_sample_behind(s, logits, session, n, pause, out, error);
}

ingle_status engine_sample_behind(struct ingle_sampler *s, const float *logits,
                                  const struct ingle_session *session, int64_t n,
                                  const struct grammar_pause *pause, struct ingle_token *out,
                                  struct ingle_error *error)
{
    struct err err;
    struct sample_token t;
    int64_t n_all;
    const int32_t *history = ingle_session_tokens(session, &n_all);
    fenv_t mode;
    fp_enter(&mode);
    ingle_status st = draw(s, logits, history, n, pause, &t, &err);
    fp_leave(&mode);
    if (st == INGLE_LIMIT) /* of what was requested, not of what there is */
        st = INGLE_UNSUP;
    if (!st)
        *out = (struct ingle_token){t.id, t.logprob};
    return engine_say(error, st, &err);
}
