/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draw - ingle_session_draw(): what a scheduler does for its answers, for one session of its
 * caller.  Tokens are guessed after the one that waits, all of them are computed in one step, and
 * each is drawn as ever, while that gives the guess.
 */
#include "engine/engine.h"
#include "engine/draft.h"
#include "engine/session.h"
#include "engine/media.h"

#include "base/clock.h"
#include "base/fp.h"
#include "base/mem.h"
#include "base/num.h"
#include "api/words.h"
#include "sched/sched.h"

enum {
    BY_NETWORK = INGLE_DRAFTER_NETWORK,
    BY_TEXT = INGLE_DRAFTER_TEXT,
    BY_GRAMMAR = INGLE_DRAFTER_GRAMMAR
};
enum { FOLLOWED = 4096 }; /* tokens of the text that are taken up before a step */

/* Of a session that tokens were drawn of. */
struct engine_drawing {
    struct sched_draft_session sched;
    struct ngram *text; /* NULL: text does not draft */
    struct text_ids forced;
    struct ingle_sampler *sampler; /* of the draw that runs */
    int64_t length;     /* of the session without drafts, while a round runs */
    float sharp;        /* what the network's logits are multiplied by in it */
    bool bad, reported; /* some of them were no numbers; that was reported */
    int32_t token[INGLE_DRAFTERS][SCHED_DRAFT_DEPTH];
    float confidence[INGLE_DRAFTERS][SCHED_DRAFT_DEPTH];
    int64_t n_drafted, n_accepted;
};

void engine_drawing_free(struct engine_drawing *d)
{
    if (!d)
        return;
    session_ngram_free(d->text);
    text_ids_release(&d->forced);
    mem_free(d);
}

void engine_drawing_turn(const struct ingle_session *s)
{
    if (s->drawing && s->drawing->text)
        session_ngram_turn(s->drawing->text);
}

void ingle_session_drafted(const struct ingle_session *s, int64_t *n_drafted, int64_t *n_accepted)
{
    *n_drafted = s->drawing ? s->drawing->n_drafted : 0;
    *n_accepted = s->drawing ? s->drawing->n_accepted : 0;
}

/* What the session needs to draft; nothing is made where nothing drafts. */
static ingle_status prepare(struct ingle_session *s, struct err *err)
{
    struct ingle_engine *e = s->e;
    ingle_status st = INGLE_OK;
    if (s->drawing || (!session_runner_draft(e->runner) && !e->draft_text))
        return INGLE_OK;
    struct engine_drawing *d = mem_zalloc(sizeof *d);
    if (!e->drawn)
        e->drawn = mem_zalloc(sizeof *e->drawn);
    if (!d || !e->drawn)
        st = err_set(err, INGLE_NOMEM, "no memory for drafts");
    if (!st && e->draft_text)
        st = session_ngram_create(&d->text, &(struct ngram_options){0}, err);
    if (!st && e->draft_text)
        st = session_ngram_reserve(d->text, session_runner_n_ctx(e->runner) + 1, err);
    if (st) {
        engine_drawing_free(d);
        return st;
    }
    e->drawn->network[BY_NETWORK] = true;
    s->drawing = d;
    return INGLE_OK;
}

/* ---- guesses ---- */

static void offer(const struct ingle_session *s, int64_t most, struct sched_draft_item *item)
{
    struct engine_drawing *d = s->drawing;
    const struct family_draft_info *network = session_runner_draft(s->e->runner);
    int64_t n, work = FOLLOWED;
    const int32_t *token = ingle_session_tokens(s, &n);
    if (network)
        item->offer[BY_NETWORK].most = num_min(most, network->most);
    if (!d->text)
        return;
    item->offer[BY_GRAMMAR] =
        (struct sched_draft_offer){engine_sampler_forced(d->sampler, most, d->token[BY_GRAMMAR],
                                                         d->confidence[BY_GRAMMAR], &d->forced),
                                   d->confidence[BY_GRAMMAR]};
    if (session_ngram_follow(d->text, token, n, &work))
        item->offer[BY_TEXT] = (struct sched_draft_offer){
            session_ngram_propose(d->text, NULL, 0, most, d->token[BY_TEXT],
                                  d->confidence[BY_TEXT]),
            d->confidence[BY_TEXT]};
}

static bool draw_draft(void *arg, int64_t i, int64_t j, const float *logits, int32_t *token)
{
    const struct ingle_session *s = arg;
    struct engine_drawing *d = s->drawing;
    struct err err;
    (void)i;
    const ingle_status st = engine_sample_draft(d->sampler, logits, session_tokens(s->s),
                                                d->length + j, d->sharp, token, NULL, &err);
    d->bad |= st == INGLE_NUMERIC;
    return st == INGLE_OK;
}

static ingle_status run_round(struct ingle_session *s, struct sched_draft_item *item,
                              struct err *err)
{
    struct ingle_engine *e = s->e;
    struct engine_drawing *d = s->drawing;
    const bool sure = session_runner_draft(e->runner)->confidence;
    struct session_draft round = {.s = s->s, .width = item->width, .token = d->token[BY_NETWORK],
                                  .confidence = sure ? d->confidence[BY_NETWORK] : NULL};
    d->bad = false;
    d->sharp = engine_sampler_is_greedy(d->sampler)
                   ? 1
                   : sched_draft_sharpness(e->drawn, &d->sched, BY_NETWORK);
    const uint64_t began = clock_now();
    const ingle_status st = session_draft(e->runner, &round, 1, draw_draft, s, &e->cancel, err);
    item->width = round.n;
    if (sure)
        item->offer[BY_NETWORK].confidence = d->confidence[BY_NETWORK];
    if (!st)
        sched_draft_note_round(e->drawn, BY_NETWORK, 1, num_max(round.n, 1), num_max(round.n, 1),
                               (double)(clock_now() - began) * 1e-9);
    if (d->bad && !round.n)
        sched_draft_note(e->drawn, &d->sched, BY_NETWORK, 1, 0, NULL);
    if (d->bad && !d->reported)
        report(&e->sink, INGLE_REPORT_WARN, "draft", e->draft ? e->draft->path : "network",
               "its logits are no numbers: such drafts are dropped");
    d->reported |= d->bad;
    return st == INGLE_CANCEL ? st : INGLE_OK;
}

static void force(const struct ingle_engine *e, struct sched_draft_item *item)
{
    item->width = 0;
    for (int k = 0; k < INGLE_DRAFTERS && !item->width; k++) {
        item->proposer = (e->draft_force_by + k) % INGLE_DRAFTERS;
        item->width = num_min(item->offer[item->proposer].most, e->draft_force);
    }
}

/* Up to `most` guesses stand after the session's tokens then, in item->width. */
static ingle_status draft(struct ingle_session *s, int64_t most, struct sched_draft_item *item,
                          struct err *err)
{
    struct ingle_engine *e = s->e;
    struct engine_drawing *d = s->drawing;
    const int64_t rows =
        num_min(session_runner_max_rows(e->runner), session_runner_max_logits(e->runner)) - 1;
    d->length = session_length(s->s) + 1;
    most = num_min(num_min(most, num_min(rows, SCHED_DRAFT_DEPTH)),
                   session_runner_n_ctx(e->runner) - d->length);
    if (e->draft_most)
        most = num_min(most, e->draft_most);
    const struct sched_draft_room room = {.context = d->length, .most_rows = num_max(most, 0)};
    *item = (struct sched_draft_item){.s = &d->sched};
    if (most > 0)
        offer(s, most, item);
    sched_draft_plan(e->drawn, item, 1, &room);
    if (e->draft_force)
        force(e, item);
    ingle_status st =
        item->width && item->proposer == BY_NETWORK ? run_round(s, item, err) : INGLE_OK;
    if (item->width)
        item->width = engine_sampler_fit(d->sampler, d->token[item->proposer], item->width);
    if (!e->draft_force)
        sched_draft_trim(e->drawn, item, 1, &room);
    if (!st && item->width && session_append(s->s, d->token[item->proposer], item->width, NULL))
        item->width = 0;
    return st;
}

static void note(const struct ingle_session *s, const struct sched_draft_item *item,
                 int64_t n_tried, int64_t n_right)
{
    struct engine_drawing *d = s->drawing;
    const float *confidence = item->offer[item->proposer].confidence;
    sched_draft_note(s->e->drawn, &d->sched, item->proposer, n_tried, n_right, confidence);
    if (item->proposer == BY_TEXT)
        session_ngram_learn(d->text, n_tried, n_right);
    d->n_drafted += item->width;
    d->n_accepted += n_right;
}

/* ---- a step, and what is drawn from it ---- */

/* Computes what waits; guesses that cannot be computed are left out.  *logits: of the row after
 * which is drawn, those of guesses follow. */
static ingle_status compute(struct ingle_session *s, struct sched_draft_item *item,
                            const float **logits, struct err *err)
{
    struct ingle_engine *e = s->e;
    const int64_t pending = session_pending(s->s), length = session_length(s->s);
    const uint64_t began = clock_now();
    ingle_status st = engine_media_ready(e, s->s, -1, err);
    if (st)
        return st;
    if (item->width) {
        struct session_work w = {.s = s->s, .want = FAMILY_LOGITS_ALL, .guessed = true};
        st = session_step(e->runner, &w, 1, &e->cancel, err);
        engine_way_moved(s);
        if (!st && w.n_done) {
            session_keep(s->s, length + w.n_done);
            item->width = w.n_done - 1;
            *logits = w.logits;
            sched_draft_note_step(e->drawn, w.n_done, length, (double)(clock_now() - began) * 1e-9);
            return INGLE_OK;
        }
        session_keep(s->s, length + 1);
        item->width = 0;
        if (st == INGLE_CANCEL)
            return st;
    }
    st = session_finish(s->s, logits, &e->cancel, err);
    engine_media_used(e, s->s, false);
    engine_way_moved(s);
    if (!st && s->drawing && pending == 1)
        sched_draft_note_step(e->drawn, 1, length, (double)(clock_now() - began) * 1e-9);
    return st;
}

/* Draws after the first `at` tokens of the session, and on while guesses are right: *n tokens.
 * What ends it after the first one is met again by the next draw, and no failure of this one. */
static ingle_status draw_all(const struct ingle_session *s, struct ingle_sampler *sampler,
                             const float *logits, int64_t at, int64_t n_drafts,
                             struct ingle_token *token, int64_t most, int64_t *n,
                             struct ingle_error *error)
{
    const int64_t n_vocab = s->e->info.n_vocab;
    int64_t i = 0;
    bool right = true;
    while (right && i < most) {
        const ingle_status st =
            engine_sample_behind(sampler, logits + i * n_vocab, s, at + i, NULL, &token[i], error);
        if (st && !i)
            return st;
        if (st)
            break;
        right = i < n_drafts && session_tokens(s->s)[at + i] == token[i].id &&
                !ingle_model_is_end(s->e->model, token[i].id);
        i++;
    }
    *n = i;
    return INGLE_OK;
}

static ingle_status draw(struct ingle_session *s, struct ingle_sampler *sampler,
                         struct ingle_token *token, int64_t most, int64_t *n,
                         struct ingle_error *error)
{
    struct sched_draft_item item = {0};
    const float *logits = NULL;
    struct err err;
    if (most < 1 || !session_pending(s->s))
        return engine_say(
            error,
            most < 1
                ? err_set(&err, INGLE_ARG, "%lld tokens are to be drawn, at least one is needed",
                          (long long)most)
                : err_set(&err, INGLE_ARG,
                          "no token of the session waits: there is nothing to draw after"),
            &err);
    ingle_status st = prepare(s, &err);
    if (!st && s->drawing && session_pending(s->s) == 1) {
        s->drawing->sampler = sampler;
        st = draft(s, most - 1, &item, &err);
    }
    if (!st)
        st = compute(s, &item, &logits, &err);
    if (st)
        return engine_say(error, st, &err);
    const int64_t at = session_length(s->s) - item.width;
    int64_t k = 0;
    st = draw_all(s, sampler, logits, at, item.width, token, most, &k, error);
    if (item.width) {
        const int64_t before = num_max(k - 1, 0); /* guesses after which was drawn */
        const bool last =
            k && before < item.width && session_tokens(s->s)[at + before] == token[before].id;
        note(s, &item, num_min(k, item.width), before + last);
        session_keep(s->s, at + before);
    }
    if (st)
        return st;
    st = session_append(s->s, &token[k - 1].id, 1, &err);
    if (!st)
        *n = k;
    return engine_say(error, st, &err);
}

ingle_status ingle_session_draw(struct ingle_session *s, struct ingle_sampler *sampler,
                                struct ingle_token *token, int64_t most, int64_t *n,
                                struct ingle_error *error)
{
    fenv_t mode;
    fp_enter(&mode);
    const ingle_status st = draw(s, sampler, token, most, n, error);
    fp_leave(&mode);
    return st;
}
