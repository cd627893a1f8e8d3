/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/scheduler.h"

#include "base/clock.h"
#include "base/num.h"

/* ---- what runs ---- */

static void fill_row(const struct engine_answer *a, struct sched_row *row)
{
    *row = (struct sched_row){
        .pending = session_pending(a->session.s),
        .answers = a->state == ENGINE_ANSWER_RUNS,
        .all_logits = a->state == ENGINE_ANSWER_PROMPT && a->r->o.prompt_logprobs,
        .priority = a->r->o.priority,
        .user = a->r->ticket.user,
    };
}

struct made {
    int64_t n, n_answers, prompt_rows, most;
    struct ingle_request *owner; /* whose prompt has the most rows */
};

/* Fills work[] and item[]: answers first, so that prompts cannot take their place. */
static struct made make_work(struct ingle_scheduler *s)
{
    struct made m = {0};
    int64_t n_rows = 0, n_answers = 0;
    for (int64_t i = 0; i < s->o.max_running; i++) {
        struct engine_answer *a = &s->slot[i];
        if (a->state != ENGINE_ANSWER_PROMPT && a->state != ENGINE_ANSWER_RUNS)
            continue;
        fill_row(a, &s->row[n_rows]);
        n_answers += s->row[n_rows].answers;
        s->item[n_rows++] = a;
    }
    sched_step_plan(s->row, n_rows, s->max_rows, s->max_logits,
                    sched_pace_rows(&s->pace, n_answers, s->max_rows), s->turn++);
    /* Stable: those with rows move to the front, answers before prompts. */
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < n_rows; i++) {
            const struct sched_row *row = &s->row[i];
            if (!row->n || row->answers != (pass == 0))
                continue;
            s->work[m.n++] = (struct session_work){
                .s = s->item[i]->session.s,
                .max_tokens = row->n,
                .want = row->all_logits ? FAMILY_LOGITS_ALL : FAMILY_LOGITS_LAST,
            };
            m.n_answers += row->answers;
            if (row->answers)
                continue;
            m.prompt_rows += row->n;
            if (row->n > m.most) {
                m.most = row->n;
                m.owner = s->item[i]->r;
            }
        }
    if (2 * m.most <= m.prompt_rows + m.n_answers)
        m.owner = NULL;
    return m;
}

static struct engine_answer *whose(const struct ingle_scheduler *s, const struct session_work *w)
{
    struct engine_answer *a = s->slot;
    while (a->session.s != w->s)
        a++;
    return a;
}

/* ---- what comes of it ---- */

/* Draws and tells the next token of an answer from the logits behind its tokens. */
static void draw(struct ingle_scheduler *s, struct engine_answer *a, const float *logits)
{
    struct ingle_request *r = a->r;
    struct ingle_token t;
    struct ingle_error e;
    struct err err;
    if (a->n_generated >= r->max_tokens) {
        engine_answer_end(s, a, INGLE_FINISH_LENGTH, NULL);
        return;
    }
    const ingle_status st = ingle_sample(r->sampler[a->index], logits, &a->session, &t, &e);
    if (st) {
        err_set(&err, st, "%s", e.text);
        engine_answer_end(s, a, INGLE_FINISH_ERROR, &err);
        return;
    }
    a->n_generated++;
    r->usage.n_generated++;
    struct ingle_drawn d = {.id = t.id, .logprob = t.logprob};
    d.position = session_length(a->session.s) + session_pending(a->session.s);
    const int asked = r->o.token ? r->o.token(r->o.arg, a->index, &d) : 0;
    if (!r->o.ignore_end && ingle_model_is_end(s->e->model, t.id))
        engine_answer_end(s, a, INGLE_FINISH_END, NULL);
    else if (asked)
        engine_answer_end(s, a, INGLE_FINISH_ASKED, NULL);
    else if (a->n_generated >= r->max_tokens)
        engine_answer_end(s, a, INGLE_FINISH_LENGTH, NULL);
    else if (session_append(a->session.s, &t.id, 1, &err))
        engine_answer_end(s, a, INGLE_FINISH_ERROR, &err);
}

/* The prompt is there: the other answers fork, then each draws its first token. */
static void prompt_done(struct ingle_scheduler *s, struct engine_answer *a, const float *logits)
{
    struct ingle_request *r = a->r;
    struct err err;
    r->prompt_done = clock_now();
    r->usage.prefill_seconds = (double)(r->prompt_done - r->started) * 1e-9;
    a->state = ENGINE_ANSWER_RUNS;
    int left = r->n_open - 1;
    for (int64_t i = 0; i < s->o.max_running && left; i++) {
        struct engine_answer *b = &s->slot[i];
        if (b->r != r || b == a)
            continue;
        left--;
        b->state = ENGINE_ANSWER_RUNS;
        if (session_fork(b->session.s, a->session.s, &err))
            engine_answer_end(s, b, INGLE_FINISH_ERROR, &err);
        else
            draw(s, b, logits);
    }
    draw(s, a, logits);
}

static void take_result(struct ingle_scheduler *s, const struct session_work *w,
                        const struct err *err)
{
    struct engine_answer *a = whose(s, w);
    struct ingle_request *r = a->r;
    if (w->failed) {
        engine_answer_end(s, a, INGLE_FINISH_ERROR, err);
        return;
    }
    if (!w->n_done)
        return;
    if (a->state == ENGINE_ANSWER_RUNS) {
        draw(s, a, w->logits);
        return;
    }
    if (r->o.progress)
        r->o.progress(r->o.arg, session_length(a->session.s), r->o.n_prompt);
    if (!session_pending(a->session.s))
        prompt_done(s, a, w->logits + (w->n_logits - 1) * s->n_vocab);
}

static void note_step(struct ingle_scheduler *s, const struct made *m, double seconds)
{
    int64_t prompt_rows = 0;
    for (int64_t i = 0; i < m->n; i++) {
        const struct engine_answer *a = whose(s, &s->work[i]);
        if (a->state == ENGINE_ANSWER_PROMPT)
            prompt_rows += s->work[i].n_done;
        sched_queue_serve(&a->r->ticket, s->work[i].n_done);
    }
    sched_pace_note(&s->pace, m->n_answers, prompt_rows, seconds);
    struct ingle_scheduler_status *t = &s->status;
    t->n_steps++;
    t->n_step_rows += prompt_rows + m->n_answers;
    t->prompt_tokens += prompt_rows;
    t->generated_tokens += m->n_answers;
    t->last_step_seconds = seconds;
    *(prompt_rows ? &t->prompt_seconds : &t->generated_seconds) += seconds;
}

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

void engine_step(struct ingle_scheduler *s)
{
    struct err err = {INGLE_OK, ""};
    const struct made m = make_work(s);
    const uint64_t began = clock_now();
    if (!m.n || !step_begins(s, &m, began))
        return;
    const ingle_status st = session_step(s->e->runner, s->work, m.n, &s->abort, &err);
    pthread_mutex_lock(&s->lock);
    s->owner = NULL;
    s->step_began = 0;
    if (!st || st == INGLE_NUMERIC)
        note_step(s, &m, (double)(clock_now() - began) * 1e-9);
    pthread_mutex_unlock(&s->lock);
    if (st == INGLE_CANCEL)
        return;
    if (st && st != INGLE_NUMERIC) {
        engine_answer_end(s, whose(s, &s->work[m.n - 1]), INGLE_FINISH_ERROR, &err);
        return;
    }
    for (int64_t i = 0; i < m.n; i++)
        take_result(s, &s->work[i], &err);
}
