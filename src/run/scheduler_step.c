/* SPDX-License-Identifier: Apache-2.0 */
#include "run/parts.h"
#include "run/scheduler.h"
#include "engine/way.h"
#include "engine/plan.h"
#include "engine/media.h"

#include "base/clock.h"
#include "base/num.h"

#include <limits.h>
#include <math.h>

/* Between pieces of a step: how often it is asked whether somebody is over, and after how many
 * operations the clock is read for that; and how many pieces a slice is to have. */
enum { LOOK_NS = 5000000, LOOK_OPS = 16, PIECES = 8, OTHERS_REST = 8 };
/* Which tokens fit a grammar is found out within so many steps (some 20 ms), or beside the steps of
 * the others. */
enum { DRAW_STEPS = 1 << 18 };
/* Operations of prompts that are computed alone stop after so long, if a step of them takes longer
 * than that. */
enum { PIECE_NS = 20000000, LONG_NS = 200000000 };

static double seconds_since(uint64_t t)
{
    return (double)(clock_now() - t) * 1e-9;
}

static uint64_t ns_of(double seconds)
{
    return (uint64_t)(seconds * 1e9);
}

/* ---- who takes part ---- */

static bool takes_part(const struct engine_answer *a)
{
    return a->state == ENGINE_ANSWER_PROMPT || a->state == ENGINE_ANSWER_RUNS;
}

static bool wants_prompt_logprobs(const struct engine_answer *a)
{
    return a->state == ENGINE_ANSWER_PROMPT && a->r->o.prompt_logprobs && !a->n_generated;
}

/* After how many tokens a prompt must pause, because others fork from there; 0: nowhere. */
static int64_t pause_of(const struct ingle_scheduler *s, const struct engine_answer *a)
{
    const int64_t length = session_length(a->session.s);
    int64_t pause = a->fork > length ? a->fork - length : 0;
    for (int64_t i = 0; i < s->o.max_running; i++) {
        const struct engine_answer *b = &s->slot[i];
        if (b->state != ENGINE_ANSWER_SHARES || b->leader != a->r->number || b->passes ||
            b->share <= length)
            continue;
        if (!pause || b->share - length < pause)
            pause = b->share - length;
    }
    return pause;
}

static void fill_row(const struct ingle_scheduler *s, const struct engine_answer *a,
                     struct sched_row *row)
{
    *row = (struct sched_row){
        .pending = session_pending(a->session.s),
        .answers = a->state == ENGINE_ANSWER_RUNS,
        .drafts = a->n_drafts,
        .branch_rows = a->n_branch_tokens,
        .all_logits = wants_prompt_logprobs(a),
        .stop = a->state == ENGINE_ANSWER_PROMPT ? pause_of(s, a) : 0,
        .priority = a->r->o.priority,
        .user = a->r->ticket.user,
        .at = session_length(a->session.s),
    };
    int64_t n_whole;
    const int64_t before = session_whole_next(a->session.s, &n_whole);
    if (!n_whole || a->state != ENGINE_ANSWER_PROMPT)
        return;
    if (!before)
        row->whole = n_whole;
    else if (!row->stop || row->stop > before)
        row->stop = before;
}

static void add_work(struct engine_lane *l, int64_t i)
{
    const struct sched_row *row = &l->row[i];
    struct engine_answer *a = l->who[i];
    l->item[l->n] = a;
    l->work[l->n++] = (struct session_work){
        .s = a->session.s,
        .max_tokens = row->n,
        .want = row->all_logits || row->drafts ? FAMILY_LOGITS_ALL : FAMILY_LOGITS_LAST,
        .guessed = row->drafts > 0,
        .branch = a->computed,
        .n_branches = row->branch_rows ? a->n_branches : 0,
    };
    l->n_answers += row->answers;
    if (row->answers)
        return;
    l->prompt_rows += row->n;
    if (row->n > l->most) {
        l->most = row->n;
        l->owner = a->r;
    }
}

/* Whose step it is, who may end it: one request's alone, or most of it is its prompt. */
static void find_owner(struct engine_lane *l)
{
    bool single = l->n > 0;
    for (int64_t i = 1; i < l->n; i++)
        single = single && l->item[i]->r == l->item[0]->r;
    if (single)
        l->owner = l->item[0]->r;
    else if (2 * l->most <= l->prompt_rows + l->n_answers)
        l->owner = NULL;
}

/* Slots of answers that ended while a step or a round ran, which had them, or which left no place
 * for the drafter to see their rows. */
static void free_left(struct ingle_scheduler *s)
{
    for (int64_t i = 0; i < s->o.max_running; i++)
        if (s->slot[i].state == ENGINE_ANSWER_LEAVES && !s->slot[i].step_rows)
            engine_slot_free(s, &s->slot[i], true);
}

/* Answers that could take part: not those in the step that runs, nor those that are held. */
static void list_rows(struct ingle_scheduler *s, struct engine_lane *l, int64_t max_rows)
{
    engine_draft(s, max_rows);
    free_left(s);
    l->n_rows = l->n = l->n_answers = l->prompt_rows = l->most = 0;
    l->owner = NULL;
    for (int64_t i = 0; i < s->o.max_running; i++) {
        if (takes_part(&s->slot[i]) && !s->slot[i].step_rows && !engine_is_held(s->slot[i].r) &&
            !engine_lacks_media(s, &s->slot[i])) {
            fill_row(s, &s->slot[i], &l->row[l->n_rows]);
            l->who[l->n_rows++] = &s->slot[i];
        }
    }
}

static int turn_of(const struct sched_row *row)
{
    return row->answers ? 0 : row->n == row->pending ? 1 : 2;
}

/* Answers come first, so that prompts cannot take their pages; prompts that do not end now last. */
static void add_planned(struct engine_lane *l)
{
    for (int turn = 0; turn < 3; turn++) {
        l->n_wanted = l->n;
        for (int64_t i = 0; i < l->n_rows; i++)
            if (l->row[i].n && turn_of(&l->row[i]) == turn)
                add_work(l, i);
    }
    find_owner(l);
}

static int64_t count_answers(const struct engine_lane *l)
{
    int64_t n = 0;
    for (int64_t i = 0; i < l->n_rows; i++)
        n += l->row[i].answers;
    return n;
}

static enum sched_way make_step(struct ingle_scheduler *s)
{
    struct engine_lane *l = &s->step;
    list_rows(s, l, s->max_rows);
    s->pace.can_stop =
        !s->no_pages && count_answers(l) <= session_runner_between_rows(s->e->runner);
    s->no_pages = false;
    const struct sched_room room = {s->max_rows, s->max_logits, s->turn++};
    const enum sched_way way = sched_pace_plan(&s->pace, l->row, l->n_rows, &room);
    add_planned(l);
    return way;
}

/* Prompts that are not in the step which is stopped share every second one, all if they are
 * more urgent, none if they are less.  What they have is not on top of what the stopped one had:
 * theirs comes at once after one of answers.  Where not a row of them fits beside the answers they
 * are left alone for a while: a turn that is theirs takes one from the stopped step. */
static void make_step_between(struct ingle_scheduler *s)
{
    struct engine_lane *l = &s->between;
    int here = INT_MIN, there = INT_MIN;
    list_rows(s, l, session_runner_between_rows(s->e->runner));
    for (int64_t i = 0; i < l->n_rows; i++)
        if (!l->row[i].answers && l->row[i].priority > here)
            here = l->row[i].priority;
    for (int64_t i = 0; i < s->step.n; i++)
        if (s->step.item[i]->r->o.priority > there)
            there = s->step.item[i]->r->o.priority;
    const bool first = here > there, theirs = first || (here == there && s->others_next);
    const struct sched_room room = {session_runner_between_rows(s->e->runner), s->max_logits,
                                    s->turn++};
    sched_pace_plan_between(&s->pace, l->row, l->n_rows, &room, seconds_since(s->answered), theirs);
    add_planned(l);
    if (theirs && !l->prompt_rows)
        s->others_rest = OTHERS_REST;
    else if (s->others_rest)
        s->others_rest--;
    s->others_next = first ? !s->others_next || l->prompt_rows
                           : here == there && !s->others_next && !s->others_rest;
}

/* ---- what comes of it ---- */

/* n_rows: of logits; those behind the first one are of drafted tokens. */
static void add_draw(struct ingle_scheduler *s, int64_t *n_draws, struct engine_answer *a,
                     const float *logits, int64_t n_rows)
{
    if (a->n_generated >= a->r->max_tokens) {
        engine_answer_end(s, a, INGLE_FINISH_LENGTH, NULL);
        return;
    }
    s->draw[(*n_draws)++] =
        (struct engine_draw){.a = a,
                             .logits = logits,
                             .n_more = n_rows - 1,
                             .n_history = session_length(a->session.s) - (n_rows - 1)};
}

/* The prompt is there: the other answers fork, and each draws its first token. */
static void prompt_done(struct ingle_scheduler *s, int64_t *n_draws, struct engine_answer *a,
                        const float *logits)
{
    struct ingle_request *r = a->r;
    struct err err;
    a->state = ENGINE_ANSWER_RUNS;
    if (!r->prompt_done) {
        r->prompt_done = clock_now();
        r->usage.prefill_seconds =
            (double)(r->prompt_done - r->started) * 1e-9 - r->usage.encode_seconds;
        engine_way_report(s->e, KV_WAY_SPARSE, r->scope.sparse, &r->usage.way);
    }
    for (int64_t i = 0; i < s->o.max_running && !a->n_generated; i++) {
        struct engine_answer *b = &s->slot[i];
        if (b->r != r || b->state != ENGINE_ANSWER_FORKS)
            continue;
        b->state = ENGINE_ANSWER_RUNS;
        if (session_fork(b->session.s, a->session.s, &err))
            engine_answer_end(s, b, INGLE_FINISH_ERROR, &err);
        else
            add_draw(s, n_draws, b, logits, 1);
    }
    add_draw(s, n_draws, a, logits, 1);
}

static void fill_top(const float *logits, int64_t n_vocab, int32_t token, int n_top,
                     float *logprob, struct ingle_top *out)
{
    struct sample_top top[ENGINE_MAX_TOP];
    session_sample_logprobs(logits, n_vocab, token, logprob, top, n_top);
    for (int i = 0; i < n_top; i++)
        out[i] = (struct ingle_top){top[i].id, top[i].logprob};
}

/* Rows of logits of a prompt: how probable its tokens are. */
struct looked {
    const struct ingle_request *r;
    const float *logits;       /* [rows][n_vocab] */
    int64_t n_vocab, at;       /* the place of the token that the first row is for */
    struct engine_told *found; /* [rows] */
};

static void look_up(void *arg, int64_t i, int worker)
{
    const struct looked *l = arg;
    (void)worker;
    struct engine_told *t = &l->found[i];
    t->top = !l->r->top ? NULL : l->r->top + (size_t)(l->r->o.n + i) * (size_t)l->r->o.n_top;
    fill_top(l->logits + i * l->n_vocab, l->n_vocab, l->r->o.prompt[l->at + i], l->r->o.n_top,
             &t->logprob, t->top);
}

/* Reports the prompt's token at n_logprobs.  False: the request has ended. */
static bool report_token(struct ingle_scheduler *s, struct ingle_request *r,
                         const struct engine_told *found)
{
    const int64_t at = r->n_logprobs++;
    const struct ingle_drawn d = {
        .id = r->o.prompt[at],
        .position = at,
        .logprob = found ? found->logprob : 0,
        .top = found ? found->top : NULL,
        .n_top = found ? r->o.n_top : 0,
    };
    if (!r->o.token(r->o.arg, -1, &d))
        return true;
    engine_request_end(s, r, INGLE_FINISH_ASKED, NULL);
    return false;
}

/* Reports the prompt's tokens up to the one after the last row of logits; row i says how
 * probable token from + i + 1 was.  False: the request has ended. */
static bool report_prompt(struct ingle_scheduler *s, struct engine_answer *a,
                          const struct session_work *w)
{
    struct ingle_request *r = a->r;
    /* rows of a medium have no logits except for the last one */
    const int64_t from = session_length(a->session.s) - w->n_logits;
    const int64_t end = r->o.token ? num_min(session_length(a->session.s) + 1, r->o.n_prompt) : 0;
    if (!r->n_logprobs && end > 0 && !report_token(s, r, NULL))
        return false;
    while (r->n_logprobs < end) {
        if (r->n_logprobs - 1 < from) {
            if (!report_token(s, r, NULL))
                return false;
            continue;
        }
        const int64_t n = num_min(end - r->n_logprobs, ENGINE_REPORTED);
        struct looked l = {r, w->logits + (r->n_logprobs - 1 - from) * s->n_vocab, s->n_vocab,
                           r->n_logprobs, s->logprobs};
        pool_run(device_pool(s->e->device), n, look_up, &l);
        for (int64_t i = 0; i < n; i++)
            if (!report_token(s, r, &s->logprobs[i]))
                return false;
    }
    return true;
}

/* Where prompts part there will be others that begin alike. */
static void remember_fork(struct ingle_scheduler *s, struct engine_answer *a)
{
    struct err err;
    const int64_t length = session_length(a->session.s);
    bool forks = a->fork == length;
    for (int64_t i = 0; i < s->o.max_running && !forks; i++) {
        const struct engine_answer *b = &s->slot[i];
        forks = b->state == ENGINE_ANSWER_SHARES && b->leader == a->r->number && b->share == length;
    }
    if (forks && session_remember(a->session.s, &err))
        report(&s->e->sink, INGLE_REPORT_WARN, "cache", "prefix tree", "%s", err.msg);
}

static void notify_progress(struct engine_answer *a)
{
    struct ingle_request *r = a->r;
    const int64_t n = num_min(session_length(a->session.s), r->o.n_prompt);
    if (a->index || n <= r->n_reported)
        return;
    r->n_reported = n;
    if (r->o.progress)
        r->o.progress(r->o.arg, n, r->o.n_prompt);
}

static void take_result(struct ingle_scheduler *s, int64_t *n_draws, struct engine_answer *a,
                        const struct session_work *w, const struct err *err)
{
    /* it has left, or its request has ended with another of its answers; or it is tried again */
    if (!a->r || (a->again && !w->n_done)) {
        return;
    } else if (w->failed && a->state == ENGINE_ANSWER_PROMPT && !a->n_generated) {
        engine_request_end(s, a->r, INGLE_FINISH_ERROR, err);
    } else if (w->failed) {
        engine_answer_end(s, a, INGLE_FINISH_ERROR, err);
    } else if (!w->n_done) {
        return;
    } else if (a->state == ENGINE_ANSWER_RUNS) {
        a->plain = false;
        add_draw(s, n_draws, a, w->logits, w->n_logits);
    } else {
        remember_fork(s, a);
        notify_progress(a);
        if (wants_prompt_logprobs(a) && !report_prompt(s, a, w))
            return;
        if (!session_pending(a->session.s))
            prompt_done(s, n_draws, a, w->logits + (w->n_logits - 1) * s->n_vocab);
    }
}

/* ---- drawing: side by side, each with a sampler of its own ---- */

static void draw_one(void *arg, int64_t i, int worker)
{
    const struct ingle_scheduler *s = arg;
    struct engine_draw *d = &s->draw[i];
    const struct ingle_request *r = d->a->r;
    const struct grammar_pause pause = {.max_steps = DRAW_STEPS};
    (void)worker;
    d->status = engine_sample_behind(r->sampler[d->a->index], d->logits, &d->a->session,
                                     d->n_history, &pause, &d->token, &d->error);
    d->n_top = r->o.n_top;
    d->top = !r->top ? NULL : r->top + (size_t)d->a->index * (size_t)d->n_top;
    if (!d->status && r->o.drawn_from)
        d->n_top = engine_sampler_last(r->sampler[d->a->index], d->token.id, &d->token.logprob,
                                       d->top, r->o.n_top);
    else if (!d->status && r->o.n_top)
        fill_top(d->logits, s->n_vocab, d->token.id, r->o.n_top, &d->token.logprob, d->top);
}

/* Whether the token that was drawn is the one that was drafted for its place. */
static bool is_right(const struct engine_draw *d)
{
    return !d->status && d->n_more && session_tokens(d->a->session.s)[d->n_history] == d->token.id;
}

/* No more of the drafted tokens are right than those before this draw, and this one if `right`. */
static void settle(struct ingle_scheduler *s, const struct engine_draw *d, bool right)
{
    struct engine_answer *a = d->a;
    const int64_t first =
        session_length(a->session.s) + session_pending(a->session.s) - a->n_drafts;
    if (!a->n_drafts)
        return;
    engine_drafts_told(s, a, d->n_history - first + (d->n_more && !d->status),
                       d->n_history - first + right);
    session_keep(a->session.s, d->n_history);
    a->n_drafts = 0;
    engine_branches_drop(a);
}

/* What is drawn next goes on behind the token, which is in the session if it was drafted.  An
 * answer that is held or cancelled by now gets no more tokens of this step. */
static bool goes_on(struct ingle_scheduler *s, struct engine_draw *d, bool right)
{
    struct engine_answer *a = d->a;
    struct err err;
    engine_request_grow(s, a->r, a->n_generated);
    if (right && !engine_is_held(a->r) && !atomic_load(&a->r->cancelled)) {
        d->logits += s->n_vocab;
        d->n_more--;
        d->n_history++;
        return true;
    }
    settle(s, d, right);
    if (session_append(a->session.s, &d->token.id, 1, &err))
        engine_answer_end(s, a, INGLE_FINISH_ERROR, &err);
    return false;
}

/* Reports a drawn token and decides whether the answer goes on.  True: with another draw now. */
static bool deliver(struct ingle_scheduler *s, struct engine_draw *d)
{
    struct engine_answer *a = d->a;
    struct ingle_request *r = a->r;
    struct err err;
    if (d->status == INGLE_CANCEL) {
        settle(s, d, false);
        a->state = ENGINE_ANSWER_MASKS;
        engine_masks_add(s->masks, (size_t)(a - s->slot),
                         engine_sampler_keep(r->sampler[a->index], d->logits));
        return false;
    }
    if (d->status) {
        settle(s, d, false);
        err_set(&err, d->status, "%s", d->error.text);
        engine_answer_end(s, a, INGLE_FINISH_ERROR, &err);
        return false;
    }
    const bool right = is_right(d) || engine_tree_turn(s, d);
    a->n_generated++;
    r->usage.n_generated++;
    const struct ingle_drawn t = {
        .id = d->token.id,
        .logprob = d->token.logprob,
        .top = d->n_top ? d->top : NULL,
        .n_top = d->n_top,
        .position = d->n_history,
    };
    const int asked = r->o.token ? r->o.token(r->o.arg, a->index, &t) : 0;
    const bool ignored = r->o.ignore_end && !engine_sampler_follows(r->sampler[a->index]);
    const bool ends = ingle_model_is_end(s->e->model, t.id) && !ignored;
    if (!ends && !asked && a->n_generated < r->max_tokens)
        return goes_on(s, d, right);
    settle(s, d, right);
    engine_answer_end(s, a,
                      ends    ? INGLE_FINISH_END
                      : asked ? INGLE_FINISH_ASKED
                              : INGLE_FINISH_LENGTH,
                      NULL);
    return false;
}

/* A token of each, then the next one of those whose drafts were right so far. */
static void draw_all(struct ingle_scheduler *s, int64_t n_draws)
{
    while (n_draws) {
        int64_t n_drawn = 0, n = 0;
        pool_run(device_pool(s->e->device), n_draws, draw_one, s);
        for (int64_t i = 0; i < n_draws; i++)
            n_drawn += s->draw[i].status != INGLE_CANCEL;
        if (n_drawn) { /* counted before anybody sees it, and may ask */
            pthread_mutex_lock(&s->lock);
            s->status.generated_tokens += n_drawn;
            pthread_mutex_unlock(&s->lock);
        }
        for (int64_t i = 0; i < n_draws; i++)
            if (deliver(s, &s->draw[i]))
                s->draw[n++] = s->draw[i];
        n_draws = n;
    }
}

/* Answers whose masks are made by now draw their tokens.  False: there are none. */
static bool draw_masked(struct ingle_scheduler *s)
{
    int64_t n_draws = 0;
    bool any = false;
    for (int64_t i = 0; i < s->o.max_running; i++) {
        struct engine_answer *a = &s->slot[i];
        ingle_status st;
        struct err err;
        if (a->state != ENGINE_ANSWER_MASKS || engine_is_held(a->r) ||
            !engine_masks_take(s->masks, (size_t)i, &st, &err))
            continue;
        any = true;
        a->state = ENGINE_ANSWER_RUNS;
        /* of what was asked for, as in ingle_sample() */
        err.status = st == INGLE_LIMIT ? INGLE_UNSUP : st;
        if (st)
            engine_answer_end(s, a, INGLE_FINISH_ERROR, &err);
        else
            s->draw[n_draws++] =
                (struct engine_draw){.a = a,
                                     .logits = engine_sampler_kept(a->r->sampler[a->index]),
                                     .n_history = session_length(a->session.s)};
    }
    if (n_draws)
        draw_all(s, n_draws);
    return any;
}

/* ---- the results of a step ---- */

static struct sched_load load_of(const struct engine_lane *l, bool answers, bool prompts)
{
    return sched_load_of(l->row, l->n_rows, answers, prompts);
}

/* Prompts and answers of a mixed step divide its time by what answers alone take.  f: it was that
 * one, or NULL. */
static void count_step(struct ingle_scheduler *s, const struct engine_lane *l,
                       const struct engine_flight *f, double seconds)
{
    struct ingle_scheduler_status *t = &s->status;
    int64_t n_answers = 0, prompt_rows = f ? f->chunk_rows : 0;
    for (int64_t i = 0; i < l->n; i++) {
        const struct session_work *w = &l->work[i];
        if (!l->item[i]->r) /* it has left */
            continue;
        *(l->item[i]->state == ENGINE_ANSWER_RUNS ? &n_answers : &prompt_rows) +=
            w->n_done + w->n_branch_rows;
        sched_queue_serve(&l->item[i]->r->ticket, w->n_done);
    }
    const double decode = !n_answers ? 0
                          : f        ? sched_cost_of(&s->pace.flown, load_of(l, true, false))
                                     : sched_pace_answers(&s->pace, load_of(l, true, false));
    const double prompts = !prompt_rows ? 0 : seconds > decode ? seconds - decode : 0;
    t->n_steps++;
    t->n_step_rows += n_answers + prompt_rows;
    t->prompt_tokens += prompt_rows;
    t->prompt_seconds += prompts;
    t->generated_seconds += seconds - prompts;
    t->last_step_seconds = seconds;
}

/* Some had no pages, or (st) nobody had: one request makes room.  When there is none to do so,
 * the first that had no pages ends. */
static void make_room(struct ingle_scheduler *s, const struct engine_lane *l, struct err *err)
{
    struct engine_answer *a = NULL;
    if (l->dropped)
        return;
    if (l == &s->between) { /* the step that runs has pages of those who could make room */
        s->no_pages = true;
        atomic_store(&s->abort, true);
        return;
    }
    for (int64_t i = 0; i < l->n && !a; i++)
        if (!l->work[i].n_done && l->item[i]->r && takes_part(l->item[i]))
            a = l->item[i];
    if (!a || engine_park_one(s))
        return;
    if (!err->status)
        err_set(err, INGLE_LIMIT, "no KV pages are left for the answer after %lld tokens",
                (long long)session_length(a->session.s));
    engine_request_end(s, a->r, INGLE_FINISH_ERROR, err);
}

/* What a step cannot do ends the requests that it was for; the others go on. */
static void end_all(struct ingle_scheduler *s, const struct engine_lane *l, const struct err *err)
{
    for (int64_t i = 0; i < l->n; i++)
        if (l->item[i]->r)
            engine_request_end(s, l->item[i]->r, INGLE_FINISH_ERROR, err);
}

static void take_results(struct ingle_scheduler *s, const struct engine_lane *l, struct err *err)
{
    int64_t n_draws = 0;
    bool short_of_pages = false;
    for (int64_t i = 0; i < l->n; i++) {
        short_of_pages |= !l->work[i].n_done && !l->work[i].failed && !l->item[i]->again;
        take_result(s, &n_draws, l->item[i], &l->work[i], err);
    }
    draw_all(s, n_draws);
    if (short_of_pages)
        make_room(s, l, &(struct err){INGLE_OK, ""});
}

/* ---- while a step runs ---- */

/* A step's use of experts belongs to each of its requests. */
static void count_experts(struct ingle_scheduler *s, const struct engine_lane *l,
                          const struct ingle_expert_use *before)
{
    const struct ingle_expert_use now = engine_experts_used(s->e);
    static const struct ingle_expert_use none = {0};
    struct ingle_expert_use mine = none;
    engine_experts_add(&mine, before, &now);
    if (l == &s->between)
        engine_experts_add(&s->inner_use, &none, &mine);
    else
        engine_experts_add(&mine, &s->inner_use, &none);
    for (int64_t i = 0; i < l->n; i++) {
        struct ingle_request *r = l->item[i]->r;
        bool counted = !r;
        for (int64_t k = 0; !counted && k < i; k++)
            counted = l->item[k]->r == r;
        if (!counted)
            engine_experts_add(&r->usage.experts, &none, &mine);
    }
}

/* What a step read from disk belongs to each of its requests. */
static void count_pages(const struct ingle_scheduler *s, const struct engine_lane *l,
                        const struct ingle_paging *before)
{
    struct ingle_paging now;
    engine_paging_count(s->e, &now);
    for (int64_t i = 0; i < l->n && now.read_bytes > before->read_bytes; i++) {
        struct ingle_request *r = l->item[i]->r;
        bool counted = !r;
        for (int64_t k = 0; !counted && k < i; k++)
            counted = l->item[k]->r == r;
        if (counted)
            continue;
        r->usage.pages.read_bytes += now.read_bytes - before->read_bytes;
        r->usage.pages.waited_seconds += now.waited_seconds - before->waited_seconds;
    }
}

/* What the step's prompts and answers left out. */
static void count_ways(struct ingle_scheduler *s, const struct engine_lane *l)
{
    struct ingle_way_use all = {.sparse = {0}};
    for (int64_t i = 0; i < l->n; i++) {
        const struct ingle_way_use more = engine_way_take(l->item[i]->session.s);
        ingle_way_use_add(&all, &more);
        if (l->item[i]->r)
            ingle_way_use_add(&l->item[i]->r->usage.way, &more);
    }
    if (!all.sparse.pairs && !all.select.pages_seen)
        return;
    pthread_mutex_lock(&s->lock);
    ingle_way_use_add(&s->status.way, &all);
    pthread_mutex_unlock(&s->lock);
}

static void begin_items(struct engine_lane *l)
{
    l->dropped = false;
    for (int64_t i = 0; i < l->n; i++) {
        l->item[i]->step_rows = l->work[i].max_tokens;
        l->item[i]->again = false;
    }
}

/* The step has ended. */
static void end_items(struct ingle_scheduler *s, struct engine_lane *l)
{
    for (int64_t i = 0; i < l->n; i++) {
        engine_media_used(s->e, l->item[i]->session.s, l == &s->between);
        l->item[i]->step_rows = 0;
        /* plain decoding has neither their pages nor their numbers */
        if (!l->work[i].n_done && l->item[i]->n_drafts) {
            engine_drafts_drop(l->item[i]);
            l->item[i]->plain = l->item[i]->again = l->dropped = true;
        }
        if (l->item[i]->state == ENGINE_ANSWER_LEAVES)
            engine_slot_free(s, l->item[i], !l->work[i].failed);
    }
    free_left(s);
}

/* The step, whose answers may end meanwhile: they leave with its end. */
static ingle_status run_step(struct ingle_scheduler *s, struct engine_lane *l,
                             const atomic_bool *cancel, struct err *err)
{
    begin_items(l);
    const struct ingle_expert_use before = engine_experts_used(s->e);
    struct ingle_paging pages;
    engine_paging_count(s->e, &pages);
    if (l == &s->step)
        s->inner_use = (struct ingle_expert_use){0};
    const ingle_status st = session_step(s->e->runner, l->work, l->n, cancel, err);
    count_experts(s, l, &before);
    count_pages(s, l, &pages);
    count_ways(s, l);
    end_items(s, l);
    return st;
}

/* Whether it is to be asked who is over: somebody is cancelled, or it is time.  Then it is
 * asked. */
static bool looks(struct ingle_scheduler *s, uint64_t soon)
{
    if (soon < s->look && !atomic_load(&s->cancels))
        return false;
    /* before it is asked: a cancel from now on is for the next time */
    atomic_store(&s->cancels, false);
    engine_end_those_over(s);
    s->look = clock_now() + LOOK_NS;
    return true;
}

void engine_look(void *scheduler)
{
    struct ingle_scheduler *s = scheduler;
    if (atomic_load(&s->cancels) || ++s->n_ops % LOOK_OPS == 0)
        (void)looks(s, clock_now());
}

/* The answers' step, and their tokens; returns what it took.  Whatever it cannot do ends the
 * step that is stopped: then there is a step for all. */
static double step_between(struct ingle_scheduler *s)
{
    struct engine_lane *l = &s->between;
    struct err err = {INGLE_OK, ""};
    make_step_between(s);
    if (!l->n)
        return 0;
    const uint64_t began = clock_now();
    const ingle_status st = run_step(s, l, NULL, &err);
    if (st == INGLE_IO || st == INGLE_LOST) {
        end_all(s, l, &err);
        return seconds_since(began);
    }
    if (st && st != INGLE_NUMERIC) {
        make_room(s, l, &err);
        return 0;
    }
    pthread_mutex_lock(&s->lock);
    count_step(s, l, NULL, seconds_since(began));
    s->step_began = clock_now();
    pthread_mutex_unlock(&s->lock);
    engine_drafts_step(s, l, st ? 0 : seconds_since(began));
    take_results(s, l, &err);
    const double took = seconds_since(began);
    if (!st)
        sched_pace_note(&s->pace, l->row, l->n_rows, took, 0);
    return took;
}

/* When the next step between is to run: at once if prompts share it with answers, else after a
 * slice of the stopped one; what the last step gave to prompts does not make the next one of
 * answers longer.  Behind one of prompts alone the stopped one has as much time. */
static uint64_t next_due(const struct ingle_scheduler *s, double took)
{
    const struct engine_lane *l = &s->between;
    const struct sched_load answers = load_of(l, true, false);
    if (!l->n_answers)
        return clock_now() + LOOK_NS + (l->prompt_rows ? ns_of(took) : 0);
    if (s->others_next)
        return clock_now();
    const double next = l->prompt_rows ? sched_pace_answers(&s->pace, answers) : took;
    return clock_now() + ns_of(sched_pace_slice(&s->pace, answers, next));
}

/* Between two pieces: those who are over end at once, answers go on when it is time, or nearer to
 * it than after the next piece. */
static void run_between(void *arg)
{
    struct ingle_scheduler *s = arg;
    const uint64_t now = clock_now(), soon = now + s->pieces.next_ns / 2;
    if (atomic_load(&s->abort) || !looks(s, soon))
        return;
    if (soon < s->due || atomic_load(&s->abort)) {
        s->between_ns += clock_now() - now;
        s->look = s->look < s->due ? s->look : s->due;
        return;
    }
    (void)draw_masked(s);
    engine_admit(s);
    engine_start_shares(s);
    const double took = step_between(s);
    engine_take_snapshot(s);
    const uint64_t after = clock_now();
    s->due = next_due(s, took);
    s->answered = after;
    s->look = after + LOOK_NS < s->due ? after + LOOK_NS : s->due;
    s->between_ns += after - now;
}

/* The answers that wait while prompts have a step: a row each. */
static struct sched_load answers_of(const struct engine_lane *l)
{
    struct sched_load sum = {0};
    for (int64_t i = 0; i < l->n_rows; i++)
        if (l->row[i].answers) {
            sum.rows++;
            sum.context += l->row[i].at + 1;
        }
    return sum;
}

/* The step will stop for others, the first time after a slice of it; if no answer waits, for
 * prompts that come. */
static void begin_between(struct ingle_scheduler *s, const struct sched_load answers)
{
    const double slice = sched_pace_slice(&s->pace, answers, sched_pace_answers(&s->pace, answers));
    s->between_ns = 0;
    s->due = s->look = answers.rows ? s->answered + ns_of(slice) : clock_now() + LOOK_NS;
    s->pieces = (struct device_between){.fn = run_between,
                                        .arg = s,
                                        .piece_ns = answers.rows ? ns_of(slice / (double)PIECES) | 1
                                                                 : PIECE_NS};
    session_runner_set_between(s->e->runner, &s->pieces);
}

/* ---- the step ---- */

/* False: the step would be for nobody. */
static bool step_begins(struct ingle_scheduler *s, uint64_t now)
{
    const struct ingle_request *owner = s->step.owner;
    pthread_mutex_lock(&s->lock);
    const bool go = !s->closing && !(owner && atomic_load(&owner->cancelled));
    if (go) {
        atomic_store(&s->abort, false);
        s->owner = s->step.owner;
        s->step_began = now;
    }
    pthread_mutex_unlock(&s->lock);
    return go;
}

static void step_ends(struct ingle_scheduler *s, ingle_status st, double seconds)
{
    pthread_mutex_lock(&s->lock);
    s->owner = NULL;
    s->step_began = 0;
    if (!st || st == INGLE_NUMERIC)
        count_step(s, &s->step, NULL, seconds);
    pthread_mutex_unlock(&s->lock);
}

/* ---- steps that are under way together, while layers lie at stages ---- */

/* A network sees the rows of a prompt in its order; a picture's are one step. */
static bool rides(const struct ingle_scheduler *s, const struct engine_answer *a)
{
    int64_t n_whole;
    (void)session_whole_next(a->session.s, &n_whole);
    return !n_whole && !wants_prompt_logprobs(a) && !session_runner_draft(s->e->runner);
}

/* Groups of answers that have a step each, or could have one, one with a prompt alone beside them;
 * beside: prompts have rows in them.  Below 2: steps are for all. */
static int64_t count_groups(const struct ingle_scheduler *s, bool mixed, int64_t *n_answers)
{
    int64_t n_prompts = 0;
    *n_answers = 0;
    for (int64_t i = 0; i < s->o.max_running; i++) {
        const struct engine_answer *a = &s->slot[i];
        if (!takes_part(a) || engine_is_held(a->r))
            continue;
        if (a->state == ENGINE_ANSWER_PROMPT && (!mixed || !rides(s, a)))
            return 0;
        *(a->state == ENGINE_ANSWER_PROMPT ? &n_prompts : n_answers) += 1;
    }
    return num_min(*n_answers + (*n_answers && n_prompts), s->n_flights);
}

/* A network's rounds are shared by answers of one step. */
static bool flies_well(struct ingle_scheduler *s)
{
    return !session_runner_draft(s->e->runner) || sched_flights_plan(&s->flights);
}

static bool may_fly(struct ingle_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    const bool may = !s->closing && !s->calls;
    pthread_mutex_unlock(&s->lock);
    return may && !s->grounded && flies_well(s) && (!s->mixed || s->n_mixed > 0);
}

/* Prompts, and the most urgent answers. */
static void keep_some(struct engine_lane *l, int64_t most)
{
    for (int64_t n = count_answers(l); n > most; n--) {
        int64_t least = -1;
        for (int64_t i = 0; i < l->n_rows; i++)
            if (l->row[i].answers &&
                (least < 0 || l->row[i].priority <= l->row[least].priority))
                least = i;
        for (int64_t i = least; i + 1 < l->n_rows; i++) {
            l->row[i] = l->row[i + 1];
            l->who[i] = l->who[i + 1];
        }
        l->n_rows--;
    }
}

/* Prompts of which nothing comes back go on at once: stages compute in the order of the steps. */
static void leave_chunks(struct ingle_scheduler *s, struct engine_flight *f)
{
    struct engine_lane *l = &f->lane;
    int64_t n_draws = 0;
    f->chunk_rows = 0;
    for (int64_t k = l->n_wanted; k < l->n; k++) {
        struct engine_answer *a = l->item[k];
        engine_media_used(s->e, a->session.s, false);
        a->step_rows = 0;
        if (!l->work[k].n_done) { /* it has too few pages */
            s->grounded = true;
            continue;
        }
        f->chunk_rows += l->work[k].n_done;
        pthread_mutex_lock(&s->lock);
        sched_queue_serve(&a->r->ticket, l->work[k].n_done);
        pthread_mutex_unlock(&s->lock);
        take_result(s, &n_draws, a, &l->work[k], NULL);
    }
    l->n = l->n_wanted;
}

/* A step of so many answers.  False: there is none. */
static bool send_flight(struct ingle_scheduler *s, int i, int64_t most)
{
    struct engine_flight *f = &s->flight[i];
    struct engine_lane *l = &f->lane;
    const int64_t rows = session_runner_between_rows(s->e->runner);
    const struct sched_room room = {rows, s->max_logits, s->turn++};
    struct err err;
    list_rows(s, l, rows);
    keep_some(l, most);
    sched_pace_plan_flight(&s->pace, l->row, l->n_rows, &room);
    add_planned(l);
    if (!l->n)
        return false;
    for (int64_t k = 0; k < l->n; k++)
        l->work[k].n_branches = 0;
    begin_items(l);
    f->began = clock_now();
    f->rounds = engine_drafts_rounds(s);
    engine_drafts_away(s, &f->drafts);
    if (!session_fly(s->e->runner, i, l->work, l->n, &err) && session_flies(s->e->runner, i)) {
        s->n_mixed--;
        count_ways(s, l);
        leave_chunks(s, f);
        return true;
    }
    end_items(s, l);
    s->grounded = true; /* what cannot be is said by the step for all */
    return false;
}

static void land_flight(struct ingle_scheduler *s, int i)
{
    struct engine_flight *f = &s->flight[i];
    struct engine_lane *l = &f->lane;
    struct err err = {INGLE_OK, ""};
    const ingle_status st = session_land(s->e->runner, i, &err);
    end_items(s, l);
    s->grounded = s->grounded || (st && st != INGLE_NUMERIC);
    if (st && st != INGLE_NUMERIC)
        return;
    /* its share of the time: since the one before it has landed, without rounds of drafts */
    const bool later = f->began > s->landed;
    const double rounds = engine_drafts_rounds(s),
                 all = seconds_since(later ? f->began : s->landed),
                 took = fmax(0, all - (rounds - (later ? f->rounds : s->landed_rounds)));
    sched_flights_note(&s->flights, true, l->n, all);
    pthread_mutex_lock(&s->lock);
    count_step(s, l, f, took);
    s->step_began = s->landed = s->answered = clock_now();
    pthread_mutex_unlock(&s->lock);
    s->landed_rounds = rounds;
    if (!st) /* one alone is at one process after the other */
        sched_pace_note_flight(&s->pace, l->row, l->n_rows, later ? took / s->n_flights : took);
    engine_drafts_back(s, &f->drafts);
    engine_drafts_step(s, l, f->chunk_rows ? 0 : took);
    for (int64_t k = 0; k < l->n; k++) /* room for it is made when no other step is under way */
        if (!l->work[k].n_done && !l->work[k].failed)
            s->grounded = l->item[k]->again = true;
    take_results(s, l, &err);
}

/* Those that are back land, and steps of others begin.  False: none is under way. */
static bool move_flights(struct ingle_scheduler *s, bool *moved)
{
    bool flies = false;
    *moved = false;
    for (int i = 0; i < s->n_flights; i++) {
        if (session_flies(s->e->runner, i) && session_flight_is_over(s->e->runner, i)) {
            land_flight(s, i);
            *moved = true;
        }
        int64_t n;
        const int64_t groups = may_fly(s) ? count_groups(s, s->mixed, &n) : 0;
        if (!session_flies(s->e->runner, i) && groups > 1 && i < groups)
            *moved = send_flight(s, i, num_div_up(n, groups)) || *moved;
        flies = flies || session_flies(s->e->runner, i);
    }
    return flies;
}

/* mixed: prompts have rows in them.  False: no step was under way with another one. */
static bool fly(struct ingle_scheduler *s, bool mixed)
{
    enum { MIXED = 64 };
    bool any = false, moved;
    int64_t n;
    s->mixed = mixed;
    s->n_mixed = MIXED;
    if (count_groups(s, mixed, &n) < 2 || !may_fly(s))
        return false;
    s->step.n = s->between.n = 0; /* whom nobody is to end because of them */
    pthread_mutex_lock(&s->lock);
    s->step_began = s->landed = clock_now();
    pthread_mutex_unlock(&s->lock);
    s->landed_rounds = engine_drafts_rounds(s);
    while (move_flights(s, &moved)) {
        any = true;
        if (!moved)
            session_flights_wait(s->e->runner, (int)(LOOK_NS / 1000000));
        if (!looks(s, clock_now()) && !moved)
            continue;
        (void)draw_masked(s);
        engine_admit(s);
        engine_start_shares(s);
        engine_take_snapshot(s);
    }
    pthread_mutex_lock(&s->lock);
    s->step_began = 0;
    pthread_mutex_unlock(&s->lock);
    return any;
}

bool engine_step(struct ingle_scheduler *s)
{
    struct engine_lane *l = &s->step;
    struct err err = {INGLE_OK, ""};
    if (engine_encode_next(s))
        return true;
    const bool drew = draw_masked(s);
    const bool grounded = s->grounded;
    int64_t n;
    s->grounded = false;
    if (!grounded && fly(s, false))
        return true;
    const bool could_fly = count_groups(s, false, &n) > 1;
    const uint64_t planned = clock_now();
    s->pace.flights = grounded || s->grounded ? 0 : count_groups(s, true, &n);
    const enum sched_way way = make_step(s);
    if (way == SCHED_FLYING) {
        s->grounded = !fly(s, true) || s->grounded;
        return true;
    }
    const uint64_t began = clock_now();
    if (!l->n && drew)
        return true;
    if (!l->n || !step_begins(s, began))
        return l->n_rows || engine_media_waits(s);
    s->between_ns = 0;
    s->pieces = (struct device_between){0};
    s->looks.piece_ns = way != SCHED_BETWEEN && l->prompt_rows && s->long_prompts ? PIECE_NS : 0;
    if (way == SCHED_BETWEEN)
        begin_between(s, answers_of(l));
    const ingle_status st = run_step(s, l, &s->abort, &err);
    session_runner_set_between(s->e->runner, NULL);
    step_ends(s, st, seconds_since(began + s->between_ns));
    if (!st || st == INGLE_NUMERIC) {
        engine_drafts_step(s, l, st ? 0 : seconds_since(began + s->between_ns));
        if (could_fly)
            sched_flights_note(&s->flights, false, l->n, seconds_since(planned));
        take_results(s, l, &err);
        if (way == SCHED_TOGETHER)
            s->answered = clock_now();
        if (way != SCHED_BETWEEN && l->prompt_rows)
            s->long_prompts = clock_now() - began > LONG_NS;
        if (!st)
            sched_pace_note(&s->pace, l->row, l->n_rows, seconds_since(began + s->between_ns),
                            (double)s->pieces.longest_ns[DEVICE_LONGEST - 1] * 1e-9);
    } else if (st == INGLE_LIMIT || st == INGLE_NOMEM) {
        make_room(s, l, &err);
    } else if (st != INGLE_CANCEL) {
        end_all(s, l, &err);
    }
    return true;
}
