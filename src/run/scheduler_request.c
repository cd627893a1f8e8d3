/* SPDX-License-Identifier: Apache-2.0 */
#include "run/parts.h"
#include "run/scheduler.h"
#include "engine/way.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"

#include <string.h>

/* What an answer without max_tokens is taken to need at first; it may become longer. */
enum { EXPECTED_TOKENS = 1024 };

/* ---- its memory ---- */

/* The first answer has the prompt; the others have what comes behind its whole pages. */
ingle_status engine_request_plan(const struct ingle_scheduler *s, struct ingle_request *r,
                                 int64_t planned, struct err *err)
{
    const int64_t n_prompt = r->o.n_prompt;
    uint64_t first = 0, other = 0, others = 0, sum = UINT64_MAX;
    const bool ok =
        session_runner_kv_bytes(s->e->runner, n_prompt + planned, &first) &&
        session_runner_kv_bytes(s->e->runner, n_prompt % KV_PAGE + planned, &other) &&
        num_mul_u64(other, (uint64_t)(r->o.n - 1), &others) && num_add_u64(first, others, &sum);
    if (!ok || sum > s->budget_bytes)
        return err_set(err, INGLE_LIMIT,
                       "%d answers of %lld tokens after a prompt of %lld need %llu bytes of KV "
                       "pages, there are %llu",
                       r->o.n, (long long)planned, (long long)n_prompt, (unsigned long long)sum,
                       (unsigned long long)s->budget_bytes);
    r->reserve_bytes = sum;
    r->planned = planned;
    return INGLE_OK;
}

/* Room for half as much again.  More than there is cannot be planned: then the answer goes on
 * while there are pages. */
void engine_request_grow(struct ingle_scheduler *s, struct ingle_request *r, int64_t n_generated)
{
    struct err err;
    const uint64_t before = r->reserve_bytes;
    if (n_generated < r->planned || r->planned >= r->max_tokens)
        return;
    const int64_t more = num_min(r->max_tokens, n_generated + n_generated / 2 + KV_PAGE);
    if (engine_request_plan(s, r, more, &err))
        r->planned = r->max_tokens;
    s->reserved_bytes += r->reserve_bytes - before;
}

/* ---- what is asked ---- */

static ingle_status check_numbers(const struct ingle_scheduler *s,
                                  const struct ingle_request_options *o, struct err *err)
{
    if (!o->prompt || o->n_prompt < 1)
        return err_set(err, INGLE_ARG, "prompt: %lld tokens, at least one is needed",
                       (long long)o->n_prompt);
    if (o->n_prompt > s->n_ctx)
        return err_set(err, INGLE_LIMIT, "the prompt has %lld tokens, the context holds %lld",
                       (long long)o->n_prompt, (long long)s->n_ctx);
    for (int64_t i = 0; i < o->n_prompt; i++)
        if (o->prompt[i] < 0 || o->prompt[i] >= s->n_vocab)
            return err_set(err, INGLE_ARG,
                           "prompt: token %lld is %d, outside the vocabulary of %lld", (long long)i,
                           o->prompt[i], (long long)s->n_vocab);
    if (o->max_tokens < -1)
        return err_set(err, INGLE_ARG, "max_tokens is %lld, below -1", (long long)o->max_tokens);
    if (o->n < 0 || o->n > s->o.max_running)
        return err_set(err, INGLE_ARG, "n is %d, outside 0 to %lld: so many answers run at once",
                       o->n, (long long)s->o.max_running);
    if (o->n_top < 0 || o->n_top > ENGINE_MAX_TOP || o->n_top > s->n_vocab)
        return err_set(err, INGLE_ARG, "n_top is %d, outside 0 to %lld", o->n_top,
                       (long long)num_min(ENGINE_MAX_TOP, s->n_vocab));
    if (o->draft_trial &&
        !(o->draft_trial->n >= 0 && o->draft_trial->right >= 0 && o->draft_trial->right <= 1))
        return err_set(err, INGLE_ARG, "draft_trial: %lld tokens, right with probability %g",
                       (long long)o->draft_trial->n, o->draft_trial->right);
    for (int64_t i = 0; o->draft_trial && i < o->draft_trial->n; i++)
        if (o->draft_trial->answer[i] < 0 || o->draft_trial->answer[i] >= s->n_vocab)
            return err_set(err, INGLE_ARG,
                           "draft_trial: token %lld is %d, outside the vocabulary of %lld",
                           (long long)i, o->draft_trial->answer[i], (long long)s->n_vocab);
    if (o->priority < -10 || o->priority > 10)
        return err_set(err, INGLE_ARG, "priority is %d, outside -10 to 10", o->priority);
    if (!(o->deadline_seconds >= 0 && o->deadline_seconds < 1e9))
        return err_set(err, INGLE_ARG, "deadline_seconds is %g, outside 0 to 1e9",
                       o->deadline_seconds);
    return INGLE_OK;
}

static ingle_status open_samplers(const struct ingle_scheduler *s, struct ingle_request *r,
                                  struct err *err)
{
    struct ingle_error e;
    struct ingle_sampling sampling = r->o.sampling;
    sampling.n_prompt = r->o.n_prompt;
    r->sampler = mem_calloc((size_t)r->o.n, sizeof *r->sampler);
    if (!r->sampler)
        return err_set(err, INGLE_NOMEM, "no memory for %d answers", r->o.n);
    for (int i = 0; i < r->o.n; i++, sampling.seed++) {
        ingle_status st = ingle_sampler_open(&r->sampler[i], s->e, &sampling, &e);
        if (!st && r->o.grammar)
            st = ingle_sampler_constrain(r->sampler[i], r->o.grammar, &e);
        if (!st && r->o.grammar && r->o.ignore_end)
            engine_sampler_ignore_end(r->sampler[i]);
        if (st)
            return err_set(err, st, "%s", e.text);
    }
    const size_t n_rows = (size_t)r->o.n + (r->o.prompt_logprobs ? ENGINE_REPORTED : 0);
    if (r->o.n_top)
        r->top = mem_calloc(n_rows * (size_t)r->o.n_top, sizeof *r->top);
    if (r->o.n_top && !r->top)
        return err_set(err, INGLE_NOMEM, "no memory for %zu times %d probabilities", n_rows,
                       r->o.n_top);
    r->o.sampling.bias = NULL;
    r->o.sampling.stop = r->o.sampling.banned = r->o.sampling.only = NULL;
    r->o.sampling.n_bias = r->o.sampling.n_stop = r->o.sampling.n_banned = r->o.sampling.n_only = 0;
    return INGLE_OK;
}

static ingle_status copy_prompt(struct ingle_request *r, struct err *err)
{
    int32_t *own = mem_calloc((size_t)r->o.n_prompt, sizeof *own);
    if (!own) {
        r->o.prompt = NULL;
        return err_set(err, INGLE_NOMEM, "no memory for a prompt of %lld tokens",
                       (long long)r->o.n_prompt);
    }
    memcpy(own, r->o.prompt, (size_t)r->o.n_prompt * sizeof *own);
    r->o.prompt = own;
    return INGLE_OK;
}

static ingle_status copy_media(struct ingle_request *r, struct err *err)
{
    const struct ingle_span *span = r->o.span;
    const size_t n = r->o.n_spans;
    r->o.span = NULL;
    r->o.n_spans = 0;
    const ingle_status st = engine_media_soft(span, n, &r->soft, err);
    if (st)
        return st;
    r->n_soft = n;
    for (size_t i = 0; i < n; i++)
        r->soft[i].medium->hold(r->soft[i].medium, 1);
    return INGLE_OK;
}

ingle_status engine_request_create(struct ingle_request **out, const struct ingle_scheduler *s,
                                   const struct ingle_request_options *o, struct err *err)
{
    bool network, text, unsupported[INGLE_WAYS] = {false};
    struct kv_way way = {0};
    ingle_status st = check_numbers(s, o, err);
    if (!st)
        st = engine_media_check(s->e->model, o->prompt, o->n_prompt, o->span, o->n_spans, err);
    for (int k = 0; k < INGLE_WAYS && !st; k++)
        st = engine_way_choose(s->e, (enum kv_way_kind)k, o->way[k], &way, &unsupported[k], err);
    if (st)
        return st;
    st = engine_draft_method(s->e, o->draft_method, &network, &text, err);
    if (st) {
        (void)err_prefix(err, "draft_method");
        return st;
    }
    st = engine_gaps(s->e, o->position, o->n_prompt, &way.gaps, err);
    if (st)
        return st;
    struct ingle_request *r = mem_zalloc(sizeof *r);
    if (!r) {
        kv_gaps_unref(way.gaps);
        return err_set(err, INGLE_NOMEM, "no memory for a request");
    }
    r->o = *o;
    r->o.user = r->o.draft_method = NULL;
    r->by_network = network && o->draft_max >= 0;
    r->by_text = text && o->draft_max >= 0;
    r->o.n = o->n ? o->n : 1;
    memset(r->o.way, 0, sizeof r->o.way);
    memcpy(r->unsupported, unsupported, sizeof unsupported);
    r->way = way;
    r->o.position = NULL;
    r->salt = engine_salt_of(o->user);
    r->scope = kv_way_scope(&way, r->salt);
    r->usage.n_skipped = kv_gaps_skipped(way.gaps);
    /* of positions */
    const int64_t most = num_max(s->e->info.n_ctx, s->n_ctx) - r->usage.n_skipped;
    const int64_t room = num_min(s->n_ctx, most) - o->n_prompt;
    r->max_tokens = o->max_tokens < 0 ? room : num_min(o->max_tokens, room);
    r->n_open = r->o.n;
    r->usage.n_prompt = o->n_prompt;
    r->ticket.n_tokens = o->n_prompt;
    r->ticket.priority = o->priority;
    r->submitted = clock_now();
    if (o->deadline_seconds > 0)
        r->deadline = r->submitted + (uint64_t)(o->deadline_seconds * 1e9);
    atomic_init(&r->cancelled, false);
    atomic_init(&r->held, false);
    st = copy_prompt(r, err);
    if (!st)
        st = copy_media(r, err);
    if (!st)
        st = engine_request_plan(
            s, r, o->max_tokens < 0 ? num_min(room, EXPECTED_TOKENS) : r->max_tokens, err);
    if (!st)
        st = open_samplers(s, r, err);
    if (st)
        engine_request_free(r);
    else
        *out = r;
    return st;
}

void engine_request_free(struct ingle_request *r)
{
    if (!r)
        return;
    for (int i = 0; r->sampler && i < r->o.n; i++)
        ingle_sampler_close(r->sampler[i]);
    mem_free(r->sampler);
    mem_free(r->top);
    kv_gaps_unref(r->way.gaps);
    for (size_t i = 0; i < r->n_soft; i++)
        r->soft[i].medium->hold(r->soft[i].medium, -1);
    mem_free(r->soft);
    mem_free((void *)(uintptr_t)r->o.prompt);
    mem_free(r);
}

struct ingle_request *engine_request_of(struct sched_ticket *t)
{
    return (struct ingle_request *)(void *)((char *)t - offsetof(struct ingle_request, ticket));
}

ingle_status ingle_request_constrain(struct ingle_request *r, int index,
                                     const struct ingle_grammar *g, struct ingle_error *error)
{
    return ingle_request_constrain_behind(r, index, g, "", 0, error);
}

ingle_status ingle_request_constrain_behind(struct ingle_request *r, int index,
                                            const struct ingle_grammar *g, const char *text,
                                            size_t n, struct ingle_error *error)
{
    struct err err;
    if (index < 0 || index >= r->o.n)
        return engine_say(
            error,
            err_set(&err, INGLE_ARG, "answer %d of a request that has %d", index, r->o.n), &err);
    struct engine_answer *a = r->s->slot; /* it may wait for the mask of the grammar that it has */
    while (a < r->s->slot + r->s->o.max_running && !(a->r == r && a->index == index))
        a++;
    const bool waits = a < r->s->slot + r->s->o.max_running && a->state == ENGINE_ANSWER_MASKS;
    if (waits)
        engine_leave_mask(r->s, a);
    const ingle_status st = ingle_sampler_constrain_behind(r->sampler[index], g, text, n, error);
    if (waits)
        engine_masks_add(r->s->masks, (size_t)(a - r->s->slot),
                         engine_sampler_rule(r->sampler[index]));
    return st;
}

/* ---- its end ---- */

void engine_leave_mask(struct ingle_scheduler *s, struct engine_answer *a)
{
    if (a->state == ENGINE_ANSWER_MASKS)
        engine_masks_drop(s->masks, (size_t)(a - s->slot));
}

static void count_end(struct ingle_scheduler *s, const struct ingle_request *r,
                      enum ingle_finish why)
{
    s->status.n_cancelled += why == INGLE_FINISH_CANCEL;
    s->status.n_failed += why == INGLE_FINISH_ERROR || why == INGLE_FINISH_DEADLINE;
    s->status.n_done += why <= INGLE_FINISH_ASKED;
    if (r->started) {
        const double took = (double)(clock_now() - r->started) * 1e-9;
        s->request_seconds += (took - s->request_seconds) * (s->request_seconds > 0 ? 0.2 : 1);
    }
}

static void count_time(struct ingle_request *r)
{
    const uint64_t now = clock_now();
    if (!r->started)
        r->usage.queue_seconds = (double)(now - r->submitted) * 1e-9;
    else if (!r->prompt_done)
        r->usage.prefill_seconds = (double)(now - r->started) * 1e-9 - r->usage.encode_seconds;
    else
        r->usage.decode_seconds = (double)(now - r->prompt_done) * 1e-9;
}

/* All answers have ended. */
static void finish_request(struct ingle_scheduler *s, struct ingle_request *r,
                           enum ingle_finish why)
{
    count_time(r);
    if (s->encoded == r)
        s->encoded = NULL;
    engine_way_report(s->e, KV_WAY_SELECT, 0, &r->usage.way);
    if (r->begun) {
        struct ingle_request **at = &s->begun;
        while (*at != r)
            at = &(*at)->next;
        *at = r->next;
        s->reserved_bytes -= r->parked ? 0 : r->reserve_bytes;
    }
    pthread_mutex_lock(&s->lock);
    sched_queue_leave(s->queue, &r->ticket);
    count_end(s, r, why);
    /* Whoever has the answer sees that nothing is at work for it. */
    s->status.n_running = engine_n_running(s);
    for (int64_t i = 0; i < s->o.max_running; i++)
        if (s->seen[i].request == r->number)
            s->seen[i] = (struct ingle_slot){0};
    pthread_mutex_unlock(&s->lock);
    if (r->o.done)
        r->o.done(r->o.arg, &r->usage);
    engine_request_free(r);
}

static void report_end(const struct ingle_request *r, int index, enum ingle_finish why,
                       const struct err *err)
{
    struct ingle_error e;
    if (!r->o.end)
        return;
    if (why == INGLE_FINISH_ERROR)
        engine_say(&e, err->status, err);
    r->o.end(r->o.arg, index, why, why == INGLE_FINISH_ERROR ? &e : NULL);
}

int64_t engine_n_running(const struct ingle_scheduler *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->o.max_running; i++)
        n += s->slot[i].r != NULL;
    return n;
}

void engine_slot_free(struct ingle_scheduler *s, struct engine_answer *a, bool remember)
{
    struct err err;
    engine_drafts_drop(a);
    if (remember && session_remember(a->session.s, &err))
        report(&s->e->sink, INGLE_REPORT_WARN, "cache", "prefix tree", "%s", err.msg);
    (void)!session_rewind(a->session.s, 0, &err);
    struct kv_way whole = session_way(a->session.s);
    whole.gaps = NULL;
    session_set_way(a->session.s, &whole);
    a->state = ENGINE_ANSWER_FREE;
    a->r = NULL;
    s->n_free++;
    s->n_ended++;
}

/* What was computed goes to the prefix cache, unless it led to values that are no numbers. */
void engine_answer_end(struct ingle_scheduler *s, struct engine_answer *a, enum ingle_finish why,
                       const struct err *err)
{
    struct ingle_request *r = a->r;
    const int index = a->index;
    engine_leave_mask(s, a);
    engine_drafts_end(s, a);
    if (a->step_rows || session_runner_is_deep(s->e->runner)) {
        a->state = ENGINE_ANSWER_LEAVES;
        a->r = NULL;
    } else {
        engine_slot_free(s, a, why != INGLE_FINISH_ERROR || err->status != INGLE_NUMERIC);
    }
    report_end(r, index, why, err);
    if (--r->n_open == 0)
        finish_request(s, r, why);
}

void engine_request_end(struct ingle_scheduler *s, struct ingle_request *r, enum ingle_finish why,
                        const struct err *err)
{
    if (!r->begun) {
        for (int i = 0; i < r->o.n; i++)
            report_end(r, i, why, err);
        finish_request(s, r, why);
        return;
    }
    int left = r->n_open;
    for (int64_t i = 0; i < s->o.max_running && left; i++)
        if (s->slot[i].r == r) {
            left--;
            engine_answer_end(s, &s->slot[i], why, err);
        }
}

/* Whether r must end now, and how. */
static bool is_over(const struct ingle_request *r, uint64_t now, enum ingle_finish *why)
{
    const bool cancelled = atomic_load(&r->cancelled);
    *why = cancelled ? INGLE_FINISH_CANCEL : INGLE_FINISH_DEADLINE;
    return cancelled || (r->deadline && now >= r->deadline);
}

/* Whether its end is that of the step that runs: it is r's, or prompts' that would go on for
 * long. */
static bool ends_step(const struct ingle_scheduler *s, const struct ingle_request *r)
{
    for (int64_t i = 0; i < s->step.n; i++)
        if (s->step.item[i]->r == r && s->step.item[i]->step_rows)
            return r == s->step.owner || s->pieces.piece_ns;
    return false;
}

void engine_end_those_over(struct ingle_scheduler *s)
{
    const uint64_t now = clock_now();
    enum ingle_finish why = INGLE_FINISH_CANCEL;
    for (struct ingle_request *r = s->begun, *next; r; r = next) {
        next = r->next;
        if (!is_over(r, now, &why))
            continue;
        if (ends_step(s, r))
            atomic_store(&s->abort, true);
        else
            engine_request_end(s, r, why, NULL);
    }
    for (;;) {
        pthread_mutex_lock(&s->lock);
        struct sched_ticket *t = sched_queue_first(s->queue);
        while (t && !is_over(engine_request_of(t), now, &why))
            t = t->next;
        if (t) {
            sched_queue_take(s->queue, t);
        } else if ((t = sched_queue_displaced(s->queue))) {
            why = INGLE_FINISH_BUSY;
            s->status.n_refused++;
        }
        pthread_mutex_unlock(&s->lock);
        if (!t)
            return;
        engine_request_end(s, engine_request_of(t), why, NULL);
    }
}
