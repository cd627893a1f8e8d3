/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shorten - prompts of which parts are left out: where the other tokens stand, and a small model
 * that chooses them.
 *
 * The small model is an engine of its own with one session, which keeps the prompt it has read
 * last.  Whoever has a prompt to shorten waits for it on his own thread, so that answers go on
 * meanwhile.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "engine/engine.h"
#include "engine/way.h"
#include "engine/session.h"

#include "base/clock.h"
#include "base/fp.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { ROWS = 256, WAIT_NS = 20000000 };
static const double KEEP = 0.2;
static const int64_t FROM = 4096;
static const char kind[] = "prompt-skip"; /* of reports */

struct engine_shortener {
    struct report_sink sink; /* what its engine says */
    struct ingle_model *model;
    struct ingle_engine *engine;  /* NULL before engine_shortener_open() */
    struct ingle_session *session;
    struct ingle_engine_options o;
    bool same;           /* its vocabulary is the model's */
    double keep;
    int64_t from, n_ctx;
    uint64_t bytes;
    pthread_mutex_t lock; /* who has it may use engine and session */
    pthread_mutex_t count_lock;
    struct ingle_shortener_info count; /* Sync: count_lock */
};

ingle_status engine_gaps(const struct ingle_engine *e, const int32_t *position, int64_t n,
                         struct kv_gaps **out, struct err *err)
{
    *out = NULL;
    ingle_status st = position ? kv_gaps_create(out, position, n, err) : INGLE_OK;
    if (*out && e->way.why[KV_WAY_GAPS])
        st = err_set(err, INGLE_UNSUP, "no part of a prompt can be left out: %s",
                     e->way.why[KV_WAY_GAPS]);
    const int64_t most = num_max(e->info.n_ctx, session_runner_n_ctx(e->runner));
    if (!st && *out && position[n - 1] >= most)
        st = err_set(err, INGLE_LIMIT, "position %lld is %d, the model has %lld",
                     (long long)(n - 1), position[n - 1], (long long)most);
    if (st) {
        kv_gaps_unref(*out);
        *out = NULL;
    }
    return st;
}

ingle_status ingle_session_set_positions(struct ingle_session *s, const int32_t *position,
                                         int64_t n, struct ingle_error *error)
{
    struct err err;
    struct kv_way way = session_way(s->s);
    engine_drawing_turn(s);
    const ingle_status st = engine_gaps(s->e, position, n, &way.gaps, &err);
    if (st)
        return engine_say(error, st, &err);
    session_set_way(s->s, &way);
    kv_gaps_unref(way.gaps);
    return engine_say(error, st, &err);
}

int64_t ingle_session_position(const struct ingle_session *s, int64_t i)
{
    return kv_gaps_position(session_way(s->s).gaps, i);
}

int64_t ingle_session_skipped(const struct ingle_session *s)
{
    return kv_gaps_skipped(session_way(s->s).gaps);
}

/* ---- the small model ---- */

/* Why a model of these streams can choose nothing; NULL: it can. */
static const char *cannot_choose(const struct ingle_engine *e, const struct kv_types *types)
{
    struct kv_spec spec;
    if (e->family->kv(e->self, types, &spec, NULL))
        return "its keys and values have no such types";
    const char *why = family_probe_refuses(&spec);
    kv_spec_release(&spec);
    return why;
}

/* What the drafter's headers say.  most: tokens of a prompt, as asked for; 0: nobody says. */
static ingle_status check_model(struct ingle_engine *e, struct engine_shortener *k, int64_t most,
                                struct err *err)
{
    const struct kv_types types = kv_types_of(KERN_KV_F16);
    struct ingle_engine *small = NULL;
    struct ingle_plan plan;
    struct ingle_error error;
    char why[160];
    ingle_status st = engine_prepare(&small, k->model, &k->o, err);
    const char *cannot = st ? NULL : cannot_choose(small, &types);
    if (cannot)
        st = err_set(err, INGLE_UNSUP, "it cannot find what matters in a prompt: %s", cannot);
    const struct tokenizer *own = e->model->tokenizer, *its = k->model->tokenizer;
    k->same = !own || !its || text_tokenizer_same(own, its, why, sizeof why);
    if (!st && (!own || !its) && small->info.n_vocab != e->info.n_vocab)
        st = err_set(err, INGLE_ARG,
                     "it has %lld tokens, the model %lld, and their texts are not known",
                     (long long)small->info.n_vocab, (long long)e->info.n_vocab);
    if (!st)
        k->n_ctx = num_min(k->n_ctx, small->info.n_ctx);
    if (!st && k->n_ctx < most)
        report(&e->sink, INGLE_REPORT_WARN, kind, "prompt",
               "the small model reads prompts of up to %lld tokens, not %lld (prompt-ctx): %s was "
               "made for %lld",
               (long long)k->n_ctx, (long long)most,
               k->n_ctx < small->info.n_ctx ? "the model" : "it", (long long)k->n_ctx);
    k->o.n_ctx = k->n_ctx;
    ingle_engine_close(small);
    if (!st && ingle_engine_plan(k->model, &k->o, &plan, &error))
        st = err_set(err, error.status, "%s", error.text);
    if (st)
        return st;
    /* Beside the engine: scores, and what is kept. */
    k->bytes = plan.total_bytes +
               (uint64_t)k->n_ctx * (2 * SHORTEN_ROWS * sizeof(float) + 4 * sizeof(int64_t));
    k->o.memory_bytes = plan.total_bytes;
    return INGLE_OK;
}

ingle_status engine_shortener_prepare(struct ingle_engine *e, const struct ingle_engine_options *o,
                                 struct err *err)
{
    static const char *const off = "off";
    ingle_status st = engine_way_open(e, KV_WAY_GAPS, o, NULL, err);
    const char *refused = e->way.why[KV_WAY_GAPS];
    if (st || !o->prompt_drafter)
        return st;
    if (!(o->prompt_keep >= 0 && o->prompt_keep <= 1) || o->prompt_keep_from < 0 ||
        o->prompt_ctx < 0)
        return err_set(err, INGLE_ARG,
                       "prompt_keep is %g, expected 0 to 1; prompt_keep_from %lld, prompt_ctx "
                       "%lld, expected 0 or more",
                       o->prompt_keep, (long long)o->prompt_keep_from, (long long)o->prompt_ctx);
    if (refused) {
        report(&e->sink, INGLE_REPORT_WARN, kind, "prompt", "all of it is read: %s", refused);
        return INGLE_OK;
    }
    struct engine_shortener *k = mem_zalloc(sizeof *k);
    struct ingle_error error;
    if (!k)
        return err_set(err, INGLE_NOMEM, "no memory for a prompt drafter");
    e->shortener = k;
    pthread_mutex_init(&k->lock, NULL);
    pthread_mutex_init(&k->count_lock, NULL);
    k->keep = o->prompt_keep > 0 ? o->prompt_keep : KEEP;
    k->from = o->prompt_keep_from ? o->prompt_keep_from : FROM;
    k->n_ctx = o->prompt_ctx ? o->prompt_ctx : o->n_ctx ? o->n_ctx : e->info.n_ctx;
    k->n_ctx = num_min(k->n_ctx, num_max(e->info.n_ctx, o->n_ctx));
    k->o = (struct ingle_engine_options){.threads = o->threads,
                                         .no_pin = o->no_pin,
                                         .numa = o->numa,
                                         .cpu = o->cpu,
                                         .max_rows = ROWS,
                                         .max_logits = 1,
                                         .n_sessions = 1,
                                         .cache_bytes = 1,
                                         .pack_cache = o->pack_cache,
                                         .pack_write = o->pack_write,
                                         .pack_bytes = o->pack_bytes,
                                         .lock = o->lock,
                                         .mmproj = "off",
                                         .draft = &off,
                                         .n_draft = 1,
                                         .callbacks = o->callbacks};
    if (ingle_model_open(&k->model, o->prompt_drafter, &o->callbacks, &error))
        return err_set(err, error.status, "prompt drafter: %s",
                       error.text); /* it begins with the path */
    st = engine_check_kind(k->model, true, err);
    if (st)
        return err_prefix(err, "prompt drafter");
    st = check_model(e, k, o->prompt_ctx, err);
    if (st)
        (void)err_prefix(err, "prompt drafter '%s'", o->prompt_drafter);
    return st;
}

uint64_t engine_shortener_bytes(const struct ingle_engine *e)
{
    return e->shortener ? e->shortener->bytes : 0;
}

ingle_status engine_shortener_open(struct ingle_engine *e, struct err *err)
{
    struct engine_shortener *k = e->shortener;
    struct ingle_error error;
    if (!k)
        return INGLE_OK;
    ingle_status st = ingle_engine_open(&k->engine, k->model, &k->o, &error);
    if (!st)
        st = ingle_session_open(&k->session, k->engine, &error);
    return st ? err_set(err, st, "prompt drafter: %s", error.text) : INGLE_OK;
}

void engine_shortener_close(struct ingle_engine *e)
{
    struct engine_shortener *k = e->shortener;
    if (!k)
        return;
    ingle_session_close(k->session);
    ingle_engine_close(k->engine);
    ingle_model_close(k->model);
    pthread_mutex_destroy(&k->lock);
    pthread_mutex_destroy(&k->count_lock);
    mem_free(k);
    e->shortener = NULL;
}

/* ---- a prompt ---- */

/* What a prompt is on the way. */
struct shorten {
    struct ingle_engine *e;
    struct engine_shortener *k;
    const struct ingle_shorten_options *o;
    const int32_t *ids;
    int64_t n;
    struct ingle_span *at; /* [n_spans]: media between them: before token `start`, n positions */
    size_t n_spans;
    int64_t n_all;         /* with those */
    double keep;
    uint64_t polled_ns;        /* clock_now() when somebody was asked whether it is wanted */
    struct text_ids own;       /* of another vocabulary: the drafter's, ... */
    /* ... and where the model's and its own end in the text, [n] and [own.n] */
    int64_t *end[2];
    float *best, *room, *score; /* [SHORTEN_ROWS][n], [n] of the drafter's tokens */
    bool *always, *kept, *mine; /* of the drafter's, the same, of the model's */
};

static void release(struct shorten *s)
{
    text_ids_release(&s->own);
    mem_free(s->at);
    mem_free(s->end[0]);
    mem_free(s->end[1]);
    mem_free(s->best);
    mem_free(s->room);
    mem_free(s->score);
    mem_free(s->always);
    mem_free(s->kept);
    mem_free(s->mine);
}

static bool stops(const struct shorten *s)
{
    return s->o->stop && s->o->stop(s->o->arg);
}

/* Within a step, which may take seconds. */
static void poll(void *arg)
{
    struct shorten *s = arg;
    const uint64_t now = clock_now();
    if (now - s->polled_ns < WAIT_NS)
        return;
    s->polled_ns = now;
    if (stops(s))
        ingle_engine_cancel(s->k->engine);
}

/* False: it is not wanted any more. */
static bool take_turn(const struct shorten *s)
{
    while (pthread_mutex_trylock(&s->k->lock) == EBUSY) {
        if (stops(s))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
    }
    return true;
}

/* Where tokens end in their text. */
static ingle_status ends_of(const struct tokenizer *t, const int32_t *ids, int64_t n,
                            struct str *text, int64_t **out, struct err *err)
{
    ingle_status st = INGLE_OK;
    *out = mem_calloc((size_t)n + 1, sizeof **out);
    if (!*out)
        return err_set(err, INGLE_NOMEM, "no memory for %lld tokens", (long long)n);
    for (int64_t i = 0; i < n && !st; i++) {
        st = text_decode(t, ids[i], true, text, err);
        (*out)[i] = (int64_t)text->n;
    }
    return st || str_ok(text)
               ? st
               : err_set(err, INGLE_NOMEM, "no memory for the text of %lld tokens", (long long)n);
}

/* The prompt in the drafter's vocabulary. */
static ingle_status translate(struct shorten *s, struct err *err)
{
    const struct tokenizer *its = s->k->model->tokenizer;
    struct str text, back;
    str_init(&text);
    str_init(&back);
    ingle_status st = ends_of(s->e->model->tokenizer, s->ids, s->n, &text, &s->end[0], err);
    const struct text_range all = {0, text.n};
    struct text_bounds bounds = {
        .max_tokens = (size_t)s->k->n_ctx, .stop = s->o->stop, .arg = s->o->arg};
    if (!st)
        st = text_encode_within(its, text.at, text.n, false, &all, 1, &bounds, &s->own, err);
    if (!st)
        st = ends_of(its, s->own.id, (int64_t)s->own.n, &back, &s->end[1], err);
    if (!st && (text.n != back.n || memcmp(text.at, back.at, text.n) != 0))
        st = err_set(err, INGLE_UNSUP, "its vocabulary does not give the prompt's text back");
    str_release(&text);
    str_release(&back);
    return st;
}

/* Tokens that templates write: turns with their names, tools, thoughts. */
static void mark_template(const struct ingle_model *m, const int32_t *ids, int64_t n, bool *always)
{
    enum { NAME = 3 }; /* tokens of a turn's name, at most */
    int64_t left = 0;
    for (int64_t i = 0; i < n && m->tokenizer; i++) {
        size_t n_bytes;
        const char *text = text_token(m->tokenizer, ids[i], &n_bytes);
        const enum text_token_type type = text_token_type(m->tokenizer, ids[i]);
        const bool marks =
            text && n_bytes > 3 && (!memcmp(text, "<|", 2) || !memcmp(text + n_bytes - 2, "|>", 2));
        const bool special = type == TEXT_CONTROL || (type == TEXT_USER_DEFINED && marks);
        always[i] |= special || left > 0;
        left = special && (ids[i] == m->turns.open[0] || ids[i] == m->turns.open[1]) ? NAME
               : left > 0                                                            ? left - 1
                                                                                     : 0;
        if (!special && text && memchr(text, '\n', n_bytes))
            left = 0;
    }
}

static ingle_status make_room(struct shorten *s, int64_t n, struct err *err)
{
    s->best = mem_calloc((size_t)(n * SHORTEN_ROWS), sizeof *s->best);
    s->room = mem_calloc((size_t)(n * SHORTEN_ROWS), sizeof *s->room);
    s->score = mem_calloc((size_t)n, sizeof *s->score);
    s->always = mem_calloc((size_t)n, sizeof *s->always);
    s->kept = mem_calloc((size_t)n, sizeof *s->kept);
    s->mine = mem_calloc((size_t)s->n, sizeof *s->mine);
    if (!s->best || !s->room || !s->score || !s->always || !s->kept || !s->mine)
        return err_set(err, INGLE_NOMEM, "no memory for the scores of %lld tokens", (long long)n);
    return INGLE_OK;
}

/* The drafter reads; the last rows say what they attend to. */
static ingle_status read_prompt(struct shorten *s, const int32_t *ids, int64_t n, struct err *err)
{
    struct session *t = s->k->session->s;
    const struct family_probe probe = {
        .from = n - SHORTEN_ROWS, .n = SHORTEN_ROWS, .stride = n, .best = s->best, .room = s->room};
    struct runner *r = s->k->engine->runner;
    struct device_between between = {.fn = poll, .arg = s};
    session_set_salt(t, engine_salt_of(s->o->user));
    /* what it has read recently stays */
    ingle_status st = session_sync(t, ids, n - SHORTEN_ROWS, NULL, err);
    if (!st)
        st = session_append(t, ids + n - SHORTEN_ROWS, SHORTEN_ROWS, err);
    session_runner_set_probe(r, &probe);
    session_runner_set_look(r, &between);
    while (!st && session_pending(t)) {
        struct session_work w = {.s = t, .want = FAMILY_LOGITS_NONE};
        st = stops(s) ? err_set(err, INGLE_CANCEL, "cancelled")
                      : session_step(r, &w, 1, &s->k->engine->cancel, err);
    }
    session_runner_set_look(r, NULL);
    session_runner_set_probe(r, NULL);
    ingle_engine_resume(s->k->engine);
    for (int64_t i = 0; i < n && !st; i++)
        for (int64_t k = 0; k < SHORTEN_ROWS; k++)
            s->score[i] += s->best[k * n + i] / SHORTEN_ROWS;
    return st;
}

/* s->mine: what is kept of the model's tokens. */
static ingle_status choose(struct shorten *s, int64_t *n_kept, struct err *err)
{
    const bool same = s->k->same;
    ingle_status st = same ? INGLE_OK : translate(s, err);
    const int32_t *ids = same ? s->ids : s->own.id;
    const int64_t n = same ? s->n : (int64_t)s->own.n;
    if (!st && n <= SHORTEN_ROWS)
        st = err_set(err, INGLE_UNSUP, "%lld tokens in its vocabulary are too few", (long long)n);
    if (!st && n > s->k->n_ctx)
        st = err_set(err, INGLE_LIMIT, "%lld tokens are more than it can read at a time, %lld",
                     (long long)n, (long long)s->k->n_ctx);
    if (!st)
        st = make_room(s, n, err);
    if (!st)
        st = read_prompt(s, ids, n, err);
    if (st)
        return st;
    struct session_borders borders;
    engine_borders(s->e->model, s->ids, s->n, &borders);
    mark_template(s->k->model->tokenizer ? s->k->model : s->e->model, ids, n, s->always);
    const struct session_shorten how = {.token = ids,
                                     .score = s->score,
                                     .always = s->always,
                                     .n = n,
                                     .keep = s->keep,
                                     .system = same ? borders.shared : 0};
    st = session_shorten_choose(&how, s->kept, n_kept, err);
    if (st)
        return st;
    if (same)
        memcpy(s->mine, s->kept, (size_t)s->n * sizeof *s->mine);
    else
        session_shorten_map(s->end[1], s->kept, n, s->end[0], s->mine, s->n);
    mark_template(s->e->model, s->ids, s->n, s->mine);
    for (size_t i = 0; i < s->n_spans; i++) /* their markers */
        for (int64_t k = num_max(0, s->at[i].start - 1); k <= s->at[i].start && k < s->n; k++)
            s->mine[k] = true;
    *n_kept = 0;
    for (int64_t i = 0; i < s->n; i++)
        *n_kept += s->mine[i] |= i < borders.shared;
    return INGLE_OK;
}

/* The positions of a medium, whose tokens are one. */
static void hand_out_medium(const struct ingle_span *m, int32_t token, int64_t pos,
                            struct ingle_shortened *out)
{
    out->span[out->n_spans++] = (struct ingle_span){out->n, m->n, m->medium};
    for (int64_t k = 0; k < m->n; k++) {
        out->ids[out->n] = token;
        out->position[out->n++] = (int32_t)(pos + k);
    }
}

static ingle_status hand_out(const struct shorten *s, const int32_t *all, int64_t n_kept,
                             struct ingle_shortened *out, struct err *err)
{
    const size_t n = (size_t)(n_kept + s->n_all - s->n);
    int64_t pos = 0;
    out->ids = mem_calloc(n, sizeof *out->ids);
    out->position = mem_calloc(n, sizeof *out->position);
    out->span = mem_calloc(s->n_spans + 1, sizeof *out->span);
    if (!out->ids || !out->position || !out->span)
        return err_set(err, INGLE_NOMEM, "no memory for a prompt of %zu tokens", n);
    for (int64_t i = 0; i <= s->n; i++, pos++) {
        for (; out->n_spans < s->n_spans && s->at[out->n_spans].start == i;
             pos += s->at[out->n_spans - 1].n)
            hand_out_medium(&s->at[out->n_spans], all[pos], pos, out);
        if (i < s->n && s->mine[i]) {
            out->ids[out->n] = s->ids[i];
            out->position[out->n++] = (int32_t)pos;
        }
    }
    return INGLE_OK;
}

/* "131,072" */
struct number { char at[32]; };
static struct number number(int64_t n)
{
    struct number t = {""};
    char digits[24];
    const int len = snprintf(digits, sizeof digits, "%lld", (long long)n);
    for (int i = 0, k = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            t.at[k++] = ',';
        t.at[k++] = digits[i];
    }
    return t;
}

static const char *name_of(const struct engine_shortener *k)
{
    return *k->model->name ? k->model->name : k->model->path;
}

static void add(struct shorten *s, ingle_status st, const struct ingle_shortened *out)
{
    struct ingle_shortener_info *c = &s->k->count;
    pthread_mutex_lock(&s->k->count_lock);
    c->seconds += out->seconds;
    c->n_whole += st != INGLE_OK && st != INGLE_CANCEL;
    c->n_prompts += !st && out->n;
    c->n_read += !st && out->n ? (uint64_t)s->n_all : 0;
    c->n_kept += (uint64_t)out->n;
    pthread_mutex_unlock(&s->k->count_lock);
}

static void report_shortened(struct shorten *s, ingle_status st, const struct err *why,
                             struct ingle_shortened *out)
{
    if (st) {
        snprintf(out->why, sizeof out->why, "%.60s: %.130s", name_of(s->k), why->msg);
        report(&s->e->sink, INGLE_REPORT_WARN, kind, "prompt", "all of it is read: %s", out->why);
        return;
    }
    if (!out->n) {
        snprintf(out->why, sizeof out->why, "what is always kept is all of it");
        report(&s->e->sink, INGLE_REPORT_NOTE, kind, "prompt",
               "all of it is read: what is always kept are all of its %s tokens",
               number(s->n_all).at);
        return;
    }
    report(&s->e->sink, INGLE_REPORT_NOTE, kind, "prompt",
           "shortened from %s to %s tokens by %s: what was left out cannot be quoted",
           number(s->n_all).at, number(out->n).at, name_of(s->k));
}

static ingle_status shorten(struct shorten *s, const int32_t *all, struct ingle_shortened *out,
                            struct err *err)
{
    const uint64_t begun = clock_now();
    int64_t n_kept = 0;
    fenv_t mode;
    if (!take_turn(s))
        return err_set(err, INGLE_CANCEL, "cancelled");
    fp_enter(&mode);
    ingle_status st = choose(s, &n_kept, err);
    fp_leave(&mode);
    if (!st && n_kept < s->n)
        st = hand_out(s, all, n_kept, out, err);
    out->n = st ? 0 : out->n;
    out->seconds = (double)(clock_now() - begun) * 1e-9;
    add(s, st, out);
    if (st != INGLE_CANCEL)
        report_shortened(s, st, err, out);
    pthread_mutex_unlock(&s->k->lock);
    return st == INGLE_CANCEL ? st : INGLE_OK;
}

/* What is not media of the prompt: the drafter has no eyes. */
static ingle_status text_of(struct shorten *s, int32_t **out, struct err *err)
{
    const size_t n_spans = s->o->n_spans;
    int32_t *text = mem_calloc((size_t)s->n + 1, sizeof *text);
    int64_t n = 0, from = 0;
    *out = text;
    s->at = mem_calloc(n_spans, sizeof *s->at);
    if (!text || !s->at)
        return err_set(err, INGLE_NOMEM, "no memory for %lld tokens", (long long)s->n);
    for (size_t i = 0; i <= n_spans; i++) {
        const struct ingle_span *m = i < n_spans ? &s->o->span[i] : NULL;
        const int64_t to = m ? m->start : s->n;
        memcpy(text + n, s->ids + from, (size_t)(to - from) * sizeof *text);
        n += to - from;
        if (m)
            s->at[i] = (struct ingle_span){n, m->n, m->medium};
        from = m ? to + m->n : to;
    }
    s->ids = text;
    s->n = n;
    s->n_spans = n_spans;
    return INGLE_OK;
}

ingle_status ingle_shorten(struct ingle_engine *e, const int32_t *ids, int64_t n,
                           const struct ingle_shorten_options *o, struct ingle_shortened *out,
                           struct ingle_error *error)
{
    static const struct ingle_shorten_options usual = {0};
    struct err err;
    *out = (struct ingle_shortened){0};
    o = o ? o : &usual;
    if (!(o->keep >= 0 && o->keep <= 1))
        return engine_say(error, err_set(&err, INGLE_ARG, "keep is %g, expected 0 to 1", o->keep),
                          &err);
    if (o->keep >= 1 || (o->keep <= 0 && (!e->shortener || e->shortener->keep >= 1)))
        return INGLE_OK;
    if (!e->shortener) {
        snprintf(out->why, sizeof out->why, "%s",
                 e->way.why[KV_WAY_GAPS] ? e->way.why[KV_WAY_GAPS]
                                         : "there is no prompt drafter (--prompt-drafter)");
        report(&e->sink, INGLE_REPORT_WARN, kind, "prompt", "all of it is read: %s", out->why);
        return INGLE_OK;
    }
    int32_t *text = NULL;
    struct shorten s = {.e = e, .k = e->shortener, .o = o, .ids = ids, .n = n, .n_all = n};
    s.keep = o->keep > 0 ? o->keep : e->shortener->keep;
    ingle_status st = engine_media_check(e->model, ids, n, o->span, o->n_spans, &err);
    if (!st && o->n_spans)
        st = text_of(&s, &text, &err);
    for (int64_t i = 0; i < s.n && !st; i++)
        if (s.ids[i] < 0 || s.ids[i] >= e->info.n_vocab)
            st = err_set(&err, INGLE_ARG,
                         "prompt: token %lld is %d, outside the vocabulary of %lld", (long long)i,
                         s.ids[i], (long long)e->info.n_vocab);
    if (!st && s.n >= e->shortener->from && s.n > SHORTEN_ROWS)
        st = shorten(&s, ids, out, &err);
    release(&s);
    mem_free(text);
    if (!out->n)
        ingle_shortened_release(out);
    return engine_say(error, st, &err);
}

void ingle_shortened_release(struct ingle_shortened *s)
{
    mem_free(s->ids);
    mem_free(s->position);
    mem_free(s->span);
    s->ids = s->position = NULL;
    s->span = NULL;
    s->n = 0;
    s->n_spans = 0;
}

void ingle_shortener(struct ingle_engine *e, struct ingle_shortener_info *out)
{
    struct engine_shortener *k = e->shortener;
    const char *why = e->way.why[KV_WAY_GAPS];
    *out = (struct ingle_shortener_info){.path = "", .why_never = why ? why : ""};
    if (!k)
        return;
    pthread_mutex_lock(&k->count_lock);
    *out = k->count;
    pthread_mutex_unlock(&k->count_lock);
    out->path = k->model->path;
    out->why_never = "";
    out->keep = k->keep;
    out->from = k->from;
    out->n_ctx = k->n_ctx;
    out->bytes = k->bytes;
}
