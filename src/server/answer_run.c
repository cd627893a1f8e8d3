/* SPDX-License-Identifier: Apache-2.0 */
#include "server/answer_inner.h"
#include "server/answer_parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "server/tape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what was reused, and why no more ---- */

static void note_reuse(struct answer *a, const struct answer_part *p,
                       const struct ingle_reuse *reuse)
{
    a->info.reuse = *reuse;
    const int64_t at = reuse->matched;
    if (!reuse->why[0] || at < 0 || at >= answer_part_n(p)) {
        snprintf(a->info.reuse_note, sizeof a->info.reuse_note, "%s", reuse->why);
        return;
    }
    struct str text;
    str_init(&text);
    answer_token_bytes(a->info.llm, p->kept.n ? p->kept.ids[at] : p->ids[at], &text);
    snprintf(a->info.reuse_note, sizeof a->info.reuse_note,
             "%s; the first token that differs is %lld: '%.60s'", reuse->why, (long long)at,
             text.at);
    str_release(&text);
}

/* How far the prompt is; at first: what was there already. */
static void send_progress(struct answer_part *p, int64_t n_done)
{
    struct answer *a = p->a;
    if (!answer_has_reader(a) || !a->request.stream || !a->request.return_progress)
        return;
    const struct answer_progress now = {
        .n_prompt = answer_part_n(p),
        .n_cached = p->n_kept,
        .n_done = n_done,
        .seconds = n_done > p->n_kept ? (double)(clock_now() - p->begun) * 1e-9 : 0,
        .n_media = p->n_encoding,
        .encoded = p->encoded,
    };
    const size_t before = a->out.n;
    a->dialect->progress(a->state, &now, &a->out);
    a->open = a->open || a->out.n > before;
    answer_flush(a);
}

static void on_begin(void *arg, const struct ingle_reuse *reuse)
{
    struct answer_part *p = arg;
    struct answer *a = p->a;
    answer_lock(a);
    p->begun = clock_now();
    p->n_kept = reuse->kept;
    for (int i = 0; i < p->n; i++)
        p->run[i].c.n_cached = reuse->kept;
    if (!a->begun) {
        a->begun = true;
        note_reuse(a, p, reuse);
        if (a->request.stream && answer_has_reader(a)) {
            a->dialect->begin(a->state, &a->info, &a->out);
            a->open = a->open || a->dialect->begins_at_once;
        }
        answer_flush(a);
        send_progress(p, p->n_kept);
    }
    answer_unlock(a);
}

static void on_progress(void *arg, int64_t n_done, int64_t n_prompt)
{
    struct answer_part *p = arg;
    (void)n_prompt;
    answer_lock(p->a);
    p->n_done = n_done;
    send_progress(p, n_done);
    answer_unlock(p->a);
}

/* Headers and the first event go out at the beginning, which may come later. */
static void on_encoding(void *arg, int64_t n_done, int64_t n_media, double part)
{
    struct answer_part *p = arg;
    answer_lock(p->a);
    const double encoded = (double)n_done + part;
    p->n_encoding = num_max(p->n_encoding, n_media);
    p->encoded = encoded > p->encoded ? encoded : p->encoded;
    if (p->a->begun)
        send_progress(p, num_max(p->n_done, p->n_kept));
    answer_unlock(p->a);
}

/* ---- tokens ---- */

/* A vector of an encoder stands there, and its id is of no vocabulary's distribution. */
static bool is_soft(const struct answer_part *p, int64_t position)
{
    const struct ingle_span *span = answer_part_span(p);
    for (size_t i = 0; i < p->n_spans; i++)
        if (position >= span[i].start && position - span[i].start < span[i].n)
            return true;
    return false;
}

static bool add_prompt_token(struct answer_part *p, const struct ingle_drawn *d)
{
    const struct ingle_model *m = p->a->info.llm;
    struct answer_echo *e = &p->echo;
    if (!mem_grow(&e->token, &e->cap_tokens, e->n_tokens + 1, sizeof *e->token) ||
        !mem_grow(&e->top, &e->cap_top, e->n_top + (size_t)d->n_top, sizeof *e->top))
        return false;
    const bool none = d->position == 0 || is_soft(p, d->position);
    struct answer_token t = {.id = d->id, .logprob = none ? 0 : d->logprob, .no_logprob = none,
                             .bytes_at = e->bytes.n, .top_at = e->n_top,
                             .n_top = none ? 0 : d->n_top};
    answer_token_bytes(m, d->id, &e->bytes);
    t.n_bytes = e->bytes.n - t.bytes_at;
    for (int i = 0; i < t.n_top; i++) {
        struct answer_top *top = &e->top[e->n_top++];
        *top = (struct answer_top){.id = d->top[i].id, .logprob = d->top[i].logprob,
                                   .bytes_at = e->bytes.n};
        answer_token_bytes(m, top->id, &e->bytes);
        top->n_bytes = e->bytes.n - top->bytes_at;
    }
    e->token[e->n_tokens++] = t;
    return str_ok(&e->bytes);
}

/* The first token has no probability; dialects that send the others need not send it.  What another
 * part of the prompt has is not kept twice. */
static bool take_prompt_token(struct answer_part *p, const struct ingle_drawn *d)
{
    if (answer_echo_of(p) != &p->echo)
        return true;
    if (!p->echo.n_tokens && d->position > 0) {
        const struct ingle_drawn first = {.id = p->ids[0]};
        if (!add_prompt_token(p, &first))
            return false;
    }
    return (size_t)d->position >= p->n_ids || add_prompt_token(p, d);
}

static int on_token(void *arg, int index, const struct ingle_drawn *d)
{
    struct answer_part *p = arg;
    struct answer *a = p->a;
    bool more = true;
    answer_lock(a);
    if (index < 0) {
        more = take_prompt_token(p, d);
    } else if (!answer_has_reader(a) || a->fault.kind || a->cancelled) {
        answer_cancel(a); /* nobody took the place of the client that left */
        more = false;
    } else {
        struct answer_run *r = &p->run[index];
        a->last_token = clock_now();
        if (!a->first_token)
            a->first_token = a->last_token;
        a->n_steps++;
        if (a->request.echo && !r->c.n_generated)
            answer_echo(r);
        more = answer_take(r, d);
        answer_flush(a);
    }
    answer_unlock(a);
    return !more;
}

/* ---- ends ---- */

/* A step asks stages, or reads experts, or keys and values, whose errors say so. */
static const char *code_of_read(const char *text)
{
    if (strncmp(text, "stage ", 6) == 0)
        return "stage_lost";
    return strstr(text, "keys and values") ? "kv_disk_read" : "expert_read";
}

static void fault_of(const struct answer *a, enum ingle_finish why, const struct ingle_error *error,
                     struct fault *f)
{
    if (why == INGLE_FINISH_ERROR) {
        const ingle_status st = error ? error->status : INGLE_NUMERIC;
        request_fault(f, st == INGLE_UNSUP ? FAULT_REQUEST : FAULT_ENGINE, NULL, "%s",
                      error ? error->text : ingle_status_text(st));
        if (st == INGLE_IO)
            f->code = code_of_read(error ? error->text : "");
    } else if (why == INGLE_FINISH_BUSY) {
        request_fault(f, FAULT_BUSY, NULL,
                      "the queue is full, and a user with fewer requests took this one's place "
                      "(--limit waiting)");
        f->retry_seconds = 1;
    } else if (why == INGLE_FINISH_DEADLINE) {
        request_fault(f, FAULT_DEADLINE, NULL, "the time for this request is up");
    } else if (a->request.tape && tape_cancelled(a->request.tape)) {
        request_fault(f, FAULT_STOPPING, NULL,
                      "the answer was ended: its stream was deleted, or another one took its name");
    } else {
        request_fault(f, FAULT_STOPPING, NULL, "the server is stopping");
        f->retry_seconds = 5;
    }
}

static void on_end(void *arg, int index, enum ingle_finish why, const struct ingle_error *error)
{
    struct answer_part *p = arg;
    struct answer *a = p->a;
    answer_lock(a);
    struct answer_run *r = &p->run[index];
    if (a->cancelled && why == INGLE_FINISH_ASKED)
        why = INGLE_FINISH_CANCEL; /* a token came before the cancel took effect */
    if (why >= INGLE_FINISH_CANCEL) {
        struct fault f = {0};
        fault_of(a, why, error, &f);
        if (!a->fault.kind && (answer_has_reader(a) || why != INGLE_FINISH_CANCEL))
            answer_fail(a, &f);
        r->ended = true;
    } else if (!a->fault.kind) {
        if (a->request.echo && !r->c.n_generated)
            answer_echo(r);
        answer_end(r, why);
        answer_flush(a);
    }
    answer_unlock(a);
}

static void add_reuse(struct ingle_reuse *to, const struct ingle_reuse *u)
{
    to->kept += u->kept;
    to->from_session += u->from_session;
    to->from_cache += u->from_cache;
    to->from_disk += u->from_disk;
    to->matched += u->matched;
    if (!to->why[0])
        memcpy(to->why, u->why, sizeof to->why);
}

/* A prompt counts once, however many parts it has. */
static void add_usage(struct ingle_usage *to, const struct answer_part *p,
                      const struct ingle_usage *u)
{
    if (!p->first) {
        to->n_prompt += u->n_prompt + u->n_skipped;
        to->n_skipped += u->n_skipped;
        add_reuse(&to->reuse, &u->reuse);
        to->image_tokens += u->image_tokens;
        to->audio_tokens += u->audio_tokens;
        to->n_media += u->n_media;
        to->n_encoded += u->n_encoded;
        to->encode_seconds += u->encode_seconds;
    }
    to->n_generated += u->n_generated;
    to->n_drafts += u->n_drafts;
    to->n_drafted += u->n_drafted;
    to->n_accepted += u->n_accepted;
    to->draft_saved_seconds += u->draft_saved_seconds;
    if (!to->draft_why[0])
        memcpy(to->draft_why, u->draft_why, sizeof to->draft_why);
    ingle_way_use_add(&to->way, &u->way);
    to->pages.read_bytes += u->pages.read_bytes;
    to->pages.waited_seconds += u->pages.waited_seconds;
    to->experts.hits += u->experts.hits;
    to->experts.misses += u->experts.misses;
    to->experts.read_bytes += u->experts.read_bytes;
    to->experts.stall_ns += u->experts.stall_ns;
    if (u->queue_seconds > to->queue_seconds)
        to->queue_seconds = u->queue_seconds;
    if (u->prefill_seconds > to->prefill_seconds)
        to->prefill_seconds = u->prefill_seconds;
    if (u->decode_seconds > to->decode_seconds)
        to->decode_seconds = u->decode_seconds;
}

static double mean_logprob(const struct answer_choice *c)
{
    return c->n_generated ? c->logprob_sum / (double)c->n_generated : -1e30;
}

/* The more probable first; the order of computation among equals. */
static int by_logprob(const void *x, const void *y)
{
    const struct answer_choice *a = x, *b = y;
    const double p = mean_logprob(a), q = mean_logprob(b);
    return p > q ? -1 : p < q ? 1 : a->index - b->index;
}

/* The choices that the client gets: borrowed from the runs. */
static int show(struct answer *a)
{
    const int n = a->n_per_prompt, kept = a->request.o.n;
    int shown = 0;
    for (int i = 0; i < a->n_runs; i++)
        a->shown[i] = a->run[i].c;
    for (int i = 0; i < a->n_runs; i += n) {
        if (kept < n)
            qsort(a->shown + i, (size_t)n, sizeof *a->shown, by_logprob);
        for (int k = 0; k < kept; k++, shown++) {
            a->shown[shown] = a->shown[i + k];
            a->shown[shown].index = shown;
        }
    }
    return shown;
}

static void send_result(struct answer *a)
{
    struct answer_result res = {.info = &a->info, .choice = a->shown, .usage = a->usage};
    res.n_choices = show(a);
    for (int i = 0; i < a->n_runs; i++)
        res.n_reasoning += a->run[i].c.n_reasoning;
    if (a->request.stream) {
        a->dialect->done(a->state, &res, &a->out);
        a->open = true;
        answer_flush(a);
        answer_end_stream(a);
    } else {
        a->dialect->whole(a->state, &res, &a->out);
        if (!str_ok(&a->out)) {
            struct fault f = {0};
            request_fault(&f, FAULT_ENGINE, NULL, "no memory for a reply");
            answer_fail(a, &f);
            return;
        }
        http_reply(a->x, 200, "application/json", a->out.at, a->out.n);
    }
    answer_finish(a);
}

static void observe(struct answer *a)
{
    const struct answer_options *o = &a->core->o;
    struct answer_record r = {.dialect = a->dialect->name, .outcome = "ok", .status = 200,
                              .usage = a->usage, .attached = a->info.attached, .id = a->info.id,
                              .request_id = a->names.request_id, .trace = a->names.trace,
                              .user = a->request.user.n ? a->request.user.at : "",
                              .note = a->begun ? a->info.reuse_note : NULL};
    if (a->request.tape && tape_cancelled(a->request.tape)) {
        r.status = 0;
        r.outcome = "cancelled";
    } else if (a->fault.kind) {
        r.status = a->fault.status;
        r.outcome = a->fault.kind == FAULT_DEADLINE ? "timeout"
                    : a->fault.kind == FAULT_ENGINE ? "error"
                                                    : "rejected";
    } else if (a->cancelled) {
        r.status = 0;
        r.outcome = "cancelled";
    }
    r.whole_seconds = (double)(clock_now() - a->started) * 1e-9;
    r.by_length = a->n_runs && a->run[0].c.finish == ANSWER_LENGTH;
    if (a->first_token)
        r.decode_seconds = (double)(a->last_token - a->first_token) * 1e-9;
    if (a->first_token)
        r.first_token_seconds = (double)(a->first_token - a->started) * 1e-9;
    if (a->n_steps > 1)
        r.mean_token_seconds =
            (double)(a->last_token - a->first_token) * 1e-9 / (double)(a->n_steps - 1);
    if (o->observe && !a->observed)
        o->observe(o->arg, &r);
    a->observed = true;
}

static void keep_tokens(const struct answer *a)
{
    const struct answer_part *p = &a->part[0];
    const struct answer_run *r = &p->run[0];
    /* then a later prompt that begins with it is the same one, or goes on from its answer */
    const bool short_ = p->kept.n > 0;
    const int32_t *ids = short_ ? p->kept.ids : p->ids;
    const size_t n = short_ ? (size_t)p->kept.n : p->n_ids;
    if (a->core->o.keep && !a->fault.kind)
        a->core->o.keep(a->core->o.arg, &a->request,
                        &(struct answer_tokens){
                            .prompt = ids,
                            .drawn = r->c.drawn,
                            .position = short_ ? p->kept.position : NULL,
                            .n_prompt = n,
                            .n_drawn = r->c.n_drawn,
                            .n_stable = short_ ? n : ingle_prompt_stable(a->info.llm, ids, n),
                            .span = answer_part_span(p),
                            .n_spans = p->n_spans});
}

static void on_done(void *arg, const struct ingle_usage *usage)
{
    struct answer_part *p = arg;
    struct answer *a = p->a;
    answer_lock(a);
    p->request = NULL;
    add_usage(&a->usage, p, usage);
    if (--a->n_open == 0 && a->n_submitted == a->n_parts) {
        keep_tokens(a);
        observe(a); /* before the client has the end, and may read the metrics */
        if (answer_has_reader(a) && !a->finished && !a->fault.kind)
            send_result(a);
    }
    answer_unlock(a);
    answer_unref(a);
}

/* ---- to the scheduler ---- */

/* Seconds from now; 0: none. */
static double deadline(const struct answer *a)
{
    const double most = a->core->o.request_seconds, configured = a->request.o.deadline_seconds;
    const double all = most > 0 && (configured <= 0 || most < configured) ? most : configured;
    const double left = all - (double)(clock_now() - a->started) * 1e-9;
    return all <= 0 ? 0 : left > 1e-3 ? left : 1e-3;
}

static ingle_status submit_part(struct answer *a, struct answer_part *p, int64_t max_tokens,
                                double *retry, struct ingle_error *e)
{
    const struct chat_request *q = &a->request;
    struct ingle_request_options o = q->o;
    o.prompt = p->kept.n ? p->kept.ids : p->ids;
    o.n_prompt = answer_part_n(p);
    o.position = p->kept.n ? p->kept.position : NULL;
    o.span = answer_part_span(p);
    o.n_spans = p->n_spans;
    o.max_tokens = max_tokens;
    o.n = p->n;
    for (int k = 0; k < INGLE_WAYS; k++)
        o.way[k] = q->way.text[k][0] ? q->way.text[k] : NULL;
    o.n_top = q->logprobs ? (int)num_min(q->o.n_top, a->core->o.n_vocab) : 0;
    o.prompt_logprobs = q->logprobs && q->echo;
    o.drawn_from = q->logprobs && q->o.drawn_from;
    o.grammar = a->grammar_first ? a->grammar : a->thought;
    o.user = q->user.n ? q->user.at : NULL;
    o.deadline_seconds = deadline(a);
    o.begin = on_begin;
    o.progress = on_progress;
    o.encoding = p->n_spans ? on_encoding : NULL;
    o.token = on_token;
    o.end = on_end;
    o.done = on_done;
    o.arg = p;
    o.sampling.bias = q->bias;
    o.sampling.n_bias = q->n_bias;
    o.sampling.no_calls = q->chat && !request_has_tools(q);
    o.sampling.stop = q->stop_ids.id;
    o.sampling.n_stop = q->stop_ids.n;
    o.sampling.banned = q->banned.id;
    o.sampling.n_banned = q->banned.n;
    o.sampling.only = q->only.id;
    o.sampling.n_only = q->only.n;
    o.sampling.logprobs = q->logprobs || a->n_per_prompt > q->o.n;
    o.sampling.seed += (uint64_t)p->run[0].c.index;
    answer_ref(a);
    const ingle_status st =
        ingle_scheduler_submit(a->core->o.scheduler, &o, &p->request, retry, e);
    if (st)
        answer_unref(a); /* the starter has another one */
    return st;
}

static void say_refused(ingle_status st, double retry, const struct ingle_error *e, struct fault *f)
{
    if (st != INGLE_LIMIT || retry < 0) {
        request_fault_from(f, st, NULL, e->text);
        return;
    }
    request_fault(f, FAULT_BUSY, NULL, "%s (--limit waiting, --limit waiting-tokens)", e->text);
    f->retry_seconds = retry;
}

/* Nobody said how long the answer may be: where the memory for the longest one that the
 * context allows is not there, a shorter one will do. */
static const int64_t LEAST_TOKENS = 64;

static ingle_status submit(struct answer *a, struct answer_part *p, double *retry,
                           struct ingle_error *e)
{
    const int64_t wish = a->request.o.max_tokens, room = a->core->o.n_ctx - answer_part_n(p);
    int64_t n = wish < 0 && a->most_tokens >= 0 && a->most_tokens < room ? a->most_tokens : wish;
    ingle_status st = submit_part(a, p, n, retry, e);
    if (st == INGLE_LIMIT && *retry < 0 && wish < 0)
        n = n < 0 ? room : n;
    while (st == INGLE_LIMIT && *retry < 0 && wish < 0 && n / 2 >= LEAST_TOKENS)
        st = submit_part(a, p, n /= 2, retry, e);
    return st;
}

void answer_submit(struct answer *a, struct fault *f)
{
    while (a->n_submitted < a->n_parts && !f->kind) {
        struct ingle_error e;
        double retry = -1;
        const ingle_status st = submit(a, &a->part[a->n_submitted], &retry, &e);
        if (st == INGLE_LIMIT && retry >= 0 && a->n_submitted)
            return;
        if (st) {
            say_refused(st, retry, &e, f);
            return;
        }
        a->n_submitted++;
        a->n_open++;
    }
}

void answer_submit_rest(struct answer *a)
{
    struct fault f = {0};
    if (!a->n_submitted || a->n_submitted == a->n_parts || a->held)
        return;
    if (!a->fault.kind && !a->cancelled)
        answer_submit(a, &f);
    if (f.kind)
        answer_fail(a, &f);
    if (!a->fault.kind && !a->cancelled)
        return;
    a->n_submitted = a->n_parts; /* nobody wants them any more */
    if (!a->n_open)
        observe(a);
}
