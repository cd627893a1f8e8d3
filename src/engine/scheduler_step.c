/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/scheduler.h"

#include "base/clock.h"
#include "base/num.h"

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
        if (b->state != ENGINE_ANSWER_SHARES || b->leader != a->r->number || b->share <= length)
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
        .all_logits = wants_prompt_logprobs(a),
        .stop = a->state == ENGINE_ANSWER_PROMPT ? pause_of(s, a) : 0,
        .priority = a->r->o.priority,
        .user = a->r->ticket.user,
        .row_seconds = a->row_seconds,
    };
}

struct made {
    int64_t n_rows;                        /* of row[] and who[] */
    int64_t n;                             /* of work[] and item[] */
    int64_t n_answers, prompt_rows, most;  /* in the step */
    struct ingle_request *owner;           /* most of the step is its prompt; or NULL */
};

static void add_work(struct ingle_scheduler *s, struct made *m, int64_t i)
{
    const struct sched_row *row = &s->row[i];
    struct engine_answer *a = s->who[i];
    s->item[m->n] = a;
    s->work[m->n++] = (struct session_work){
        .s = a->session.s,
        .max_tokens = row->n,
        .want = row->all_logits ? FAMILY_LOGITS_ALL : FAMILY_LOGITS_LAST,
    };
    m->n_answers += row->answers;
    if (row->answers)
        return;
    m->prompt_rows += row->n;
    if (row->n > m->most) {
        m->most = row->n;
        m->owner = a->r;
    }
}

/* Answers come first, so that prompts cannot take their pages. */
static struct made make_step(struct ingle_scheduler *s)
{
    struct made m = {0};
    for (int64_t i = 0; i < s->o.max_running; i++)
        if (takes_part(&s->slot[i])) {
            fill_row(s, &s->slot[i], &s->row[m.n_rows]);
            s->who[m.n_rows++] = &s->slot[i];
        }
    sched_pace_plan(&s->pace, s->row, m.n_rows,
                    &(struct sched_room){s->max_rows, s->max_logits, s->turn++});
    for (int answers = 1; answers >= 0; answers--)
        for (int64_t i = 0; i < m.n_rows; i++)
            if (s->row[i].n && s->row[i].answers == (answers == 1))
                add_work(s, &m, i);
    if (2 * m.most <= m.prompt_rows + m.n_answers)
        m.owner = NULL;
    return m;
}

/* ---- what comes of it ---- */

static void add_draw(struct ingle_scheduler *s, int64_t *n_draws, struct engine_answer *a,
                     const float *logits)
{
    if (a->n_generated >= a->r->max_tokens) {
        engine_answer_end(s, a, INGLE_FINISH_LENGTH, NULL);
        return;
    }
    s->draw[*n_draws].a = a;
    s->draw[(*n_draws)++].logits = logits;
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
        r->usage.prefill_seconds = (double)(r->prompt_done - r->started) * 1e-9;
    }
    for (int64_t i = 0; i < s->o.max_running && !a->n_generated; i++) {
        struct engine_answer *b = &s->slot[i];
        if (b->r != r || b->state != ENGINE_ANSWER_FORKS)
            continue;
        b->state = ENGINE_ANSWER_RUNS;
        if (session_fork(b->session.s, a->session.s, &err))
            engine_answer_end(s, b, INGLE_FINISH_ERROR, &err);
        else
            add_draw(s, n_draws, b, logits);
    }
    add_draw(s, n_draws, a, logits);
}

static void fill_top(const float *logits, int64_t n_vocab, int32_t token, int n_top,
                     float *logprob, struct ingle_top *out)
{
    struct sample_top top[ENGINE_MAX_TOP];
    session_sample_logprobs(logits, n_vocab, token, logprob, top, n_top);
    for (int i = 0; i < n_top; i++)
        out[i] = (struct ingle_top){top[i].id, top[i].logprob};
}

/* Tells of the prompt's tokens up to the one behind the last row of logits; row i says how
 * probable token from + i + 1 was.  False: the request has ended. */
static bool tell_prompt(struct ingle_scheduler *s, struct engine_answer *a,
                        const struct session_work *w)
{
    struct ingle_request *r = a->r;
    struct ingle_top top[ENGINE_MAX_TOP];
    const int64_t from = session_length(a->session.s) - w->n_done;
    const int64_t end = num_min(session_length(a->session.s) + 1, r->o.n_prompt);
    for (; r->o.token && r->n_logprobs < end; r->n_logprobs++) {
        const int64_t at = r->n_logprobs;
        struct ingle_drawn d = {.id = r->o.prompt[at], .position = at};
        if (at > 0) {
            fill_top(w->logits + (at - 1 - from) * s->n_vocab, s->n_vocab, d.id, r->o.n_top,
                     &d.logprob, top);
            d.top = top;
            d.n_top = r->o.n_top;
        }
        if (r->o.token(r->o.arg, -1, &d)) {
            engine_request_end(s, r, INGLE_FINISH_ASKED, NULL);
            return false;
        }
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

static void tell_progress(struct engine_answer *a)
{
    struct ingle_request *r = a->r;
    const int64_t n = num_min(session_length(a->session.s), r->o.n_prompt);
    if (a->index || n <= r->n_told)
        return;
    r->n_told = n;
    if (r->o.progress)
        r->o.progress(r->o.arg, n, r->o.n_prompt);
}

static void take_result(struct ingle_scheduler *s, int64_t *n_draws, struct engine_answer *a,
                        const struct session_work *w, const struct err *err)
{
    if (!a->r) { /* its request has ended with another of its answers */
        return;
    } else if (w->failed && a->state == ENGINE_ANSWER_PROMPT && !a->n_generated) {
        engine_request_end(s, a->r, INGLE_FINISH_ERROR, err);
    } else if (w->failed) {
        engine_answer_end(s, a, INGLE_FINISH_ERROR, err);
    } else if (!w->n_done) {
        return;
    } else if (a->state == ENGINE_ANSWER_RUNS) {
        add_draw(s, n_draws, a, w->logits);
    } else {
        remember_fork(s, a);
        tell_progress(a);
        if (wants_prompt_logprobs(a) && !tell_prompt(s, a, w))
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
    (void)worker;
    d->status = ingle_sample(r->sampler[d->a->index], d->logits, &d->a->session, &d->token, &d->error);
    if (!d->status && r->o.n_top)
        fill_top(d->logits, s->n_vocab, d->token.id, r->o.n_top, &d->token.logprob, d->top);
}

/* Tells of a drawn token and decides whether the answer goes on. */
static void deliver(struct ingle_scheduler *s, struct engine_draw *d)
{
    struct engine_answer *a = d->a;
    struct ingle_request *r = a->r;
    struct err err;
    if (d->status) {
        err_set(&err, d->status, "%s", d->error.text);
        engine_answer_end(s, a, INGLE_FINISH_ERROR, &err);
        return;
    }
    a->n_generated++;
    r->usage.n_generated++;
    const struct ingle_drawn t = {
        .id = d->token.id,
        .logprob = d->token.logprob,
        .top = r->o.n_top ? d->top : NULL,
        .n_top = r->o.n_top,
        .position = session_length(a->session.s) + session_pending(a->session.s),
    };
    const int asked = r->o.token ? r->o.token(r->o.arg, a->index, &t) : 0;
    if (!r->o.ignore_end && ingle_model_is_end(s->e->model, t.id))
        engine_answer_end(s, a, INGLE_FINISH_END, NULL);
    else if (asked)
        engine_answer_end(s, a, INGLE_FINISH_ASKED, NULL);
    else if (a->n_generated >= r->max_tokens)
        engine_answer_end(s, a, INGLE_FINISH_LENGTH, NULL);
    else if (session_append(a->session.s, &t.id, 1, &err))
        engine_answer_end(s, a, INGLE_FINISH_ERROR, &err);
    else
        engine_request_grow(s, r, a->n_generated);
}

/* ---- the step ---- */

/* False: the step would be for nobody. */
static bool step_begins(struct ingle_scheduler *s, const struct made *m, uint64_t now)
{
    pthread_mutex_lock(&s->lock);
    const bool go = !s->closing && !(m->owner && atomic_load(&m->owner->cancelled));
    if (go) {
        atomic_store(&s->abort, false);
        s->owner = m->owner;
        s->step_began = now;
    }
    pthread_mutex_unlock(&s->lock);
    return go;
}

/* Prompts and answers of a mixed step divide its time by what answers alone take. */
static void count_step(struct ingle_scheduler *s, const struct made *m, double seconds)
{
    struct ingle_scheduler_status *t = &s->status;
    int64_t n_answers = 0, prompt_rows = 0;
    for (int64_t i = 0; i < m->n; i++) {
        const struct session_work *w = &s->work[i];
        *(s->item[i]->state == ENGINE_ANSWER_RUNS ? &n_answers : &prompt_rows) += w->n_done;
        sched_queue_serve(&s->item[i]->r->ticket, w->n_done);
    }
    const double alone = n_answers ? sched_pace_answers(&s->pace, n_answers) : 0;
    const double prompts = !prompt_rows ? 0 : seconds > alone ? seconds - alone : 0;
    t->n_steps++;
    t->n_step_rows += n_answers + prompt_rows;
    t->prompt_tokens += prompt_rows;
    t->prompt_seconds += prompts;
    t->generated_seconds += seconds - prompts;
    t->last_step_seconds = seconds;
}

static void step_ends(struct ingle_scheduler *s, const struct made *m, ingle_status st,
                      uint64_t began)
{
    pthread_mutex_lock(&s->lock);
    s->owner = NULL;
    s->step_began = 0;
    if (!st || st == INGLE_NUMERIC)
        count_step(s, m, (double)(clock_now() - began) * 1e-9);
    pthread_mutex_unlock(&s->lock);
}

/* Some had no pages, or (st) nobody had: one request makes room.  When there is none to do so,
 * the first that had no pages ends. */
static void make_room(struct ingle_scheduler *s, const struct made *m, struct err *err)
{
    struct engine_answer *a = NULL;
    for (int64_t i = 0; i < m->n && !a; i++)
        if (!s->work[i].n_done && s->item[i]->r && takes_part(s->item[i]))
            a = s->item[i];
    if (!a || engine_park_one(s))
        return;
    if (!err->status)
        err_set(err, INGLE_LIMIT, "no KV pages are left for the answer after %lld tokens",
                (long long)session_length(a->session.s));
    engine_request_end(s, a->r, INGLE_FINISH_ERROR, err);
}

static void take_results(struct ingle_scheduler *s, const struct made *m, struct err *err)
{
    int64_t n_draws = 0;
    bool short_of_pages = false;
    for (int64_t i = 0; i < m->n; i++) {
        short_of_pages |= !s->work[i].n_done && !s->work[i].failed;
        take_result(s, &n_draws, s->item[i], &s->work[i], err);
    }
    pool_run(device_pool(s->e->device), n_draws, draw_one, s);
    for (int64_t i = 0; i < n_draws; i++)
        deliver(s, &s->draw[i]);
    if (n_draws) {
        pthread_mutex_lock(&s->lock);
        s->status.generated_tokens += n_draws;
        pthread_mutex_unlock(&s->lock);
    }
    if (short_of_pages)
        make_room(s, m, &(struct err){INGLE_OK, ""});
}

static void note_pace(struct ingle_scheduler *s, const struct made *m, uint64_t began)
{
    sched_pace_note(&s->pace, s->row, m->n_rows, (double)(clock_now() - began) * 1e-9);
    for (int64_t i = 0; i < m->n_rows; i++)
        s->who[i]->row_seconds = s->row[i].row_seconds;
}

void engine_step(struct ingle_scheduler *s)
{
    struct err err = {INGLE_OK, ""};
    const struct made m = make_step(s);
    const uint64_t began = clock_now();
    if (!m.n || !step_begins(s, &m, began))
        return;
    const ingle_status st = session_step(s->e->runner, s->work, m.n, &s->abort, &err);
    step_ends(s, &m, st, began);
    if (!st || st == INGLE_NUMERIC) {
        take_results(s, &m, &err);
        if (!st)
            note_pace(s, &m, began);
    } else if (st == INGLE_LIMIT || st == INGLE_NOMEM) {
        make_room(s, &m, &err);
    } else if (st != INGLE_CANCEL) {
        while (s->begun)
            engine_request_end(s, s->begun, INGLE_FINISH_ERROR, &err);
    }
}
