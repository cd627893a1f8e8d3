/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "server/answer_inner.h"
#include "server/answer_parts.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/tape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static const double KEEPALIVE_SECONDS = 10;

/* ---- the core ---- */

ingle_status answer_open(struct answer_core **out, const struct answer_options *o, struct err *err)
{
    struct answer_core *c = mem_zalloc(sizeof *c);
    if (!c || pthread_mutex_init(&c->lock, NULL)) {
        mem_free(c);
        return err_set(err, INGLE_NOMEM, "no memory for the answers of a server");
    }
    c->o = *o;
    if (c->o.keepalive_seconds <= 0)
        c->o.keepalive_seconds = KEEPALIVE_SECONDS;
    *out = c;
    return INGLE_OK;
}

const struct answer_options *answer_get_options(const struct answer_core *c) { return &c->o; }

void answer_close(struct answer_core *c)
{
    if (!c)
        return;
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

/* ---- life of an answer ---- */

void answer_ref(struct answer *a) { atomic_fetch_add(&a->refs, 1); }

/* For one found in the list: false when it is about to be freed. */
static bool try_ref(struct answer *a)
{
    int n = atomic_load(&a->refs);
    while (n && !atomic_compare_exchange_weak(&a->refs, &n, n + 1))
        ;
    return n != 0;
}

static void free_answer(struct answer *a)
{
    const struct answer_options *o = &a->core->o;
    if (a->tag && o->hold_tag)
        o->hold_tag(o->arg, a->tag, false);
    answer_release_parts(a);
    ingle_grammar_close(a->grammar);
    ingle_grammar_close(a->calls);
    ingle_grammar_close(a->closer);
    ingle_grammar_close(a->thought);
    if (a->state)
        a->dialect->free(a->state);
    mem_free(a->warnings);
    request_release(&a->request);
    str_release(&a->out);
    str_release(&a->prompt_text);
    pthread_mutex_destroy(&a->lock);
    mem_free(a);
}

void answer_unref(struct answer *a)
{
    struct answer_core *c = a->core;
    if (atomic_fetch_sub(&a->refs, 1) != 1)
        return;
    pthread_mutex_lock(&c->lock);
    *a->before = a->next;
    if (a->next)
        a->next->before = a->before;
    pthread_mutex_unlock(&c->lock);
    free_answer(a);
}

void answer_lock(struct answer *a) { pthread_mutex_lock(&a->lock); }

static void do_due(struct answer *a);

/* Releasing an exchange may free it, and that frees its link and with it an answer: but not this
 * one, of which the caller has a reference. */
void answer_unlock(struct answer *a)
{
    for (;;) {
        struct http_exchange *x = a->leaving;
        a->leaving = NULL;
        pthread_mutex_unlock(&a->lock);
        if (x)
            http_release(x);
        if (!atomic_load(&a->due) || pthread_mutex_trylock(&a->lock))
            return;
        do_due(a);
    }
}

static void hold(struct answer *a, bool held)
{
    if (a->held == held)
        return;
    a->held = held;
    for (int i = 0; i < a->n_parts; i++)
        if (a->part[i].request)
            ingle_request_hold(a->core->o.scheduler, a->part[i].request, held);
}

static void let_go(struct answer *a)
{
    if (!a->x)
        return;
    hold(a, false);
    a->leaving = a->x;
    a->x = NULL;
    a->link = NULL;
}

/* The answer after a in the list, or the first one, with a reference; gives back that to a. */
static struct answer *next_answer(struct answer_core *c, struct answer *a)
{
    pthread_mutex_lock(&c->lock);
    struct answer *next = a ? a->next : c->first;
    while (next && !try_ref(next))
        next = next->next;
    pthread_mutex_unlock(&c->lock);
    if (a)
        answer_unref(a);
    return next;
}

/* Takes the request and the state; NULL: they are freed. */
static struct answer *new_answer(struct answer_core *c, struct chat_request *r,
                                 const struct dialect *d, void *state)
{
    struct answer *a = mem_zalloc(sizeof *a);
    if (a && pthread_mutex_init(&a->lock, NULL)) {
        mem_free(a);
        a = NULL;
    }
    if (!a) {
        request_release(r);
        if (state)
            d->free(state);
        return NULL;
    }
    a->core = c;
    atomic_init(&a->refs, 1);
    a->request = *r;
    a->dialect = d;
    a->state = state;
    a->started = clock_now();
    str_init(&a->out);
    str_init(&a->prompt_text);
    request_init(r, &c->o.sampling);
    pthread_mutex_lock(&c->lock);
    a->next = c->first;
    a->before = &c->first;
    if (a->next)
        a->next->before = &a->next;
    c->first = a;
    pthread_mutex_unlock(&c->lock);
    return a;
}

/* ---- bytes to the client ---- */

void answer_flush(struct answer *a)
{
    if (!a->open || !a->out.n)
        return;
    if (a->request.tape && !a->finished) {
        tape_write(a->request.tape, a->out.at, a->out.n);
    } else if (a->x && !a->finished) {
        if (!a->headers_out) {
            http_begin(a->x, 200,
                       a->dialect->stream_type ? a->dialect->stream_type : "text/event-stream");
            a->headers_out = true;
        }
        http_write(a->x, a->out.at, a->out.n);
        if (http_full(a->x))
            hold(a, true);
    }
    str_clear(&a->out);
}

void answer_end_stream(struct answer *a)
{
    if (a->request.tape)
        tape_end(a->request.tape);
    else
        http_end(a->x);
}

void answer_finish(struct answer *a)
{
    a->finished = true;
    let_go(a);
}

static void fail_headers(struct http_exchange *x, const struct fault *f)
{
    char seconds[32];
    if (f->retry_seconds >= 0 && (f->kind == FAULT_BUSY || f->kind == FAULT_STOPPING)) {
        snprintf(seconds, sizeof seconds, "%.0f", fmax(1, ceil(f->retry_seconds)));
        http_header(x, "Retry-After", seconds);
    } else if (f->kind != FAULT_BUSY && f->kind != FAULT_STOPPING) {
        http_header(x, "x-should-retry", "false");
    }
}

/* Whether an error that comes before the headers is an event of the stream. */
static bool belongs_in_stream(const struct answer *a, const struct fault *f)
{
    return a->request.stream && a->dialect->faults_in_stream && !a->request.tape &&
           (f->kind == FAULT_CONTEXT || f->kind == FAULT_ENGINE || f->kind == FAULT_DEADLINE);
}

static void send_fault(struct answer *a, const struct fault *f)
{
    if (a->x && !a->headers_out && !belongs_in_stream(a, f)) {
        str_clear(&a->out);
        a->dialect->error(a->state, f, false, &a->out);
        fail_headers(a->x, f);
        http_reply(a->x, f->status, "application/json", a->out.at, a->out.n);
        return;
    }
    if (a->x && !a->headers_out && !a->begun) {
        a->begun = true;
        a->dialect->begin(a->state, &a->info, &a->out);
    }
    a->dialect->error(a->state, f, true, &a->out);
    a->open = true;
    answer_flush(a);
    answer_end_stream(a);
}

void answer_cancel(struct answer *a)
{
    if (a->cancelled)
        return;
    a->cancelled = true;
    for (int i = 0; i < a->n_parts; i++)
        if (a->part[i].request)
            ingle_request_cancel(a->core->o.scheduler, a->part[i].request);
}

void answer_fail(struct answer *a, const struct fault *f)
{
    if (!a->fault.kind)
        a->fault = *f;
    if (answer_has_reader(a) && !a->finished)
        send_fault(a, f);
    answer_finish(a);
    answer_cancel(a);
}

/* ---- clients that come, wait and leave ---- */

static void on_free(void *arg)
{
    struct answer_link *l = arg;
    answer_unref(l->a);
    mem_free(l);
}

/*
 * The I/O thread waits for no answer: the thread of the scheduler may be inside of one, and all
 * clients would wait with it.  What cannot be done at once is done by who has the lock, when he
 * gives it back.
 */
enum { DUE_CLOSED = 1, DUE_ROOM = 2, DUE_SILENCE = 4 };

/* The client has left.  Before the first token its request may wait for one who asks the same. */
static void do_close(struct answer *a)
{
    if (!a->link || a->finished)
        return;
    let_go(a);
    if (a->first_token || a->cancelled || a->core->o.grace_seconds <= 0)
        answer_cancel(a);
    else
        a->orphaned = clock_now();
}

static void do_silence(struct answer *a)
{
    if (!a->link || a->finished || !a->request.stream)
        return;
    a->dialect->keepalive(a->state, &a->info, &a->out);
    a->open = true;
    answer_flush(a);
}

/* The lock is held. */
static void do_due(struct answer *a)
{
    const unsigned due = atomic_exchange(&a->due, 0);
    if (due & DUE_CLOSED)
        do_close(a);
    if ((due & DUE_ROOM) && a->link) /* the client has read down what waited for it */
        hold(a, false);
    if (due & DUE_SILENCE)
        do_silence(a);
}

static void post(struct answer *a, unsigned due)
{
    atomic_fetch_or(&a->due, due);
    if (pthread_mutex_trylock(&a->lock))
        return;
    do_due(a);
    answer_unlock(a);
}

static void on_close(void *arg)
{
    post(((struct answer_link *)arg)->a, DUE_CLOSED);
}

static void on_room(void *arg)
{
    post(((struct answer_link *)arg)->a, DUE_ROOM);
}

static void on_silence(void *arg)
{
    post(((struct answer_link *)arg)->a, DUE_SILENCE);
}

/* Ties x to a, of which the link holds a reference of its own. */
static bool listen(struct answer *a, struct http_exchange *x)
{
    struct answer_link *l = mem_zalloc(sizeof *l);
    if (!l)
        return false;
    answer_ref(a);
    l->a = a;
    http_hold(x);
    http_own(x, on_free, l);
    http_on_close(x, on_close, l);
    http_on_room(x, on_room, l);
    http_silence(x, a->core->o.keepalive_seconds, on_silence, l);
    a->x = x;
    a->link = l;
    a->orphaned = 0;
    return true;
}

static void digest_of(const struct http_request *rq, const struct dialect *d,
                      uint8_t out[SHA256_BYTES])
{
    struct sha256 s;
    const char *user = rq->user ? rq->user : "";
    sha256_init(&s);
    sha256_add(&s, user, strlen(user) + 1);
    sha256_add(&s, d->name, strlen(d->name) + 1);
    sha256_add(&s, rq->body, rq->n_body);
    sha256_end(&s, out);
}

static bool digest_is(struct answer_core *c, const struct answer *a,
                      const uint8_t digest[SHA256_BYTES])
{
    pthread_mutex_lock(&c->lock);
    const bool is = memcmp(a->digest, digest, SHA256_BYTES) == 0;
    pthread_mutex_unlock(&c->lock);
    return is;
}

/* An answer to the same body whose client left before its first token; with a reference. */
static struct answer *find_orphan(struct answer_core *c, const uint8_t digest[SHA256_BYTES])
{
    struct answer *a = NULL;
    bool found = false;
    while (!found && (a = next_answer(c, a))) {
        if (!digest_is(c, a, digest))
            continue;
        answer_lock(a);
        found = a->orphaned && !a->finished && !a->cancelled && !a->first_token;
        answer_unlock(a);
    }
    return a;
}

/* The new client takes the old one's place, with a state of its own. */
static bool attach(struct answer_core *c, struct http_exchange *x,
                   const uint8_t digest[SHA256_BYTES], void **state)
{
    struct answer *a = find_orphan(c, digest);
    if (!a)
        return false;
    answer_lock(a);
    const bool live = a->orphaned && !a->cancelled && !a->finished && listen(a, x);
    if (live) {
        void *old = a->state;
        a->state = *state;
        *state = old;
        a->info.attached = true;
        a->open = a->headers_out = false;
        str_clear(&a->out);
        if (a->begun && a->request.stream) {
            a->dialect->begin(a->state, &a->info, &a->out);
            a->open = a->dialect->begins_at_once;
            answer_flush(a);
        }
    }
    answer_unlock(a);
    answer_unref(a);
    return live;
}

static void refuse_waiting(struct answer *a)
{
    struct fault f = {0};
    request_fault(&f, FAULT_BUSY, NULL,
                  "the request waited %g s for its turn (--limit queue-timeout)",
                  a->core->o.queue_seconds);
    f.retry_seconds = a->core->o.queue_seconds;
    answer_fail(a, &f);
}

static void tick_one(struct answer *a, uint64_t now)
{
    const struct answer_options *o = &a->core->o;
    const uint64_t grace = (uint64_t)(o->grace_seconds * 1e9);
    const uint64_t queue = (uint64_t)(o->queue_seconds * 1e9);
    if ((a->orphaned && now > a->orphaned && now - a->orphaned > grace) ||
        (a->request.tape && tape_cancelled(a->request.tape)))
        answer_cancel(a);
    if (queue && a->n_open && !a->begun && !a->fault.kind && !a->cancelled && now > a->started &&
        now - a->started > queue)
        refuse_waiting(a);
    answer_submit_rest(a);
}

bool answer_tick(struct answer_core *c)
{
    const uint64_t now = clock_now();
    bool any = false;
    for (struct answer *a = NULL; (a = next_answer(c, a));) {
        any = true;
        if (pthread_mutex_trylock(&a->lock))
            continue; /* the next tick is soon */
        do_due(a);
        tick_one(a, now);
        answer_unlock(a);
    }
    return any;
}

void answer_stop(struct answer_core *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_mutex_unlock(&c->lock);
    for (struct answer *a = NULL; (a = next_answer(c, a));) {
        answer_lock(a);
        answer_cancel(a); /* end() reports it to the client */
        answer_unlock(a);
    }
}

static bool is_known(struct answer_core *c, const struct answer *a)
{
    pthread_mutex_lock(&c->lock);
    const bool known = a->known;
    pthread_mutex_unlock(&c->lock);
    return known;
}

/* A reference to the answer of that name, or NULL. */
static struct answer *find_named(struct answer_core *c, const char *user, const char *id)
{
    struct answer *a = NULL;
    bool found = false;
    while (!found && (a = next_answer(c, a))) {
        if (!is_known(c, a))
            continue;
        answer_lock(a);
        const char *owner = a->request.user.n ? a->request.user.at : "";
        found = strcmp(a->info.id, id) == 0 && strcmp(owner, user) == 0;
        answer_unlock(a);
    }
    return a;
}

void answer_names_of(struct answer_core *c, const char *user, int64_t number,
                     struct answer_names *out)
{
    *out = (struct answer_names){0};
    for (struct answer *a = NULL; (a = next_answer(c, a));) {
        if (!is_known(c, a))
            continue;
        answer_lock(a);
        const bool own = strcmp(a->request.user.n ? a->request.user.at : "", user) == 0;
        for (int i = 0; own && i < a->n_parts; i++)
            if (a->part[i].request && ingle_request_number(a->part[i].request) == number)
                *out = a->names;
        answer_unlock(a);
    }
}

size_t answer_requests_of(struct answer_core *c, const char *user, int64_t *number, size_t n)
{
    size_t found = 0;
    for (struct answer *a = NULL; (a = next_answer(c, a));) {
        if (!is_known(c, a))
            continue;
        answer_lock(a);
        const bool own = strcmp(a->request.user.n ? a->request.user.at : "", user) == 0;
        for (int i = 0; own && i < a->n_parts && found < n; i++)
            if (a->part[i].request)
                number[found++] = ingle_request_number(a->part[i].request);
        answer_unlock(a);
    }
    return found;
}

bool answer_end_thought(struct answer_core *c, const char *user, const char *id, const char **why)
{
    struct answer *a = find_named(c, user, id);
    bool open = false;
    *why = "no answer of that id is being computed";
    if (!a)
        return false;
    answer_lock(a);
    if (!a->finished && !a->cancelled) {
        *why = "the request did not say reasoning_control";
        for (int i = 0; i < a->n_runs && a->request.thought_control; i++)
            open = open || (!a->run[i].ended && ingle_reader_in_thought(a->run[i].reader));
        if (a->request.thought_control)
            *why = "the answer is in no thought";
        a->enough = a->enough || open;
    }
    answer_unlock(a);
    answer_unref(a);
    return open;
}

/* ---- a new request ---- */

static void random_bytes(void *to, size_t n)
{
    if (getrandom(to, n, 0) == (ssize_t)n)
        return;
    uint8_t hash[SHA256_BYTES];
    const uint64_t now = clock_now();
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, &now, sizeof now);
    sha256_end(&s, hash);
    memcpy(to, hash, n < sizeof hash ? n : sizeof hash);
}

static void fill_info(struct answer *a)
{
    const struct answer_options *o = &a->core->o;
    uint8_t id[16];
    struct timespec now;
    random_bytes(id, sizeof id);
    clock_gettime(CLOCK_REALTIME, &now);
    for (size_t i = 0; i < sizeof id; i++)
        snprintf(a->info.id + 2 * i, 3, "%02x", id[i]);
    if (o->replica)
        snprintf(a->info.id + ANSWER_DIGITS, sizeof a->info.id - ANSWER_DIGITS, ".%s", o->replica);
    a->info.model = o->name;
    a->info.fingerprint = o->fingerprint;
    a->info.created = (int64_t)now.tv_sec;
    a->info.n_ctx = o->n_ctx;
    a->info.n_vocab = o->n_vocab;
    a->info.request = &a->request;
    a->info.llm = o->model;
    if (!a->request.seeded && !o->seeded)
        random_bytes(&a->request.o.sampling.seed, sizeof a->request.o.sampling.seed);
}

void answer_check_model(const struct answer_core *c, const struct chat_request *r, struct fault *f)
{
    const struct answer_options *o = &c->o;
    const char *known = o->name;
    /* a zero byte would hide what follows it */
    const bool whole = !memchr(r->model.at, 0, r->model.n);
    if (r->model.n && o->knows && (!whole || !o->knows(o->arg, r->model.at, &known)))
        request_fault(f, FAULT_MODEL, "model", "the model '%.100s' does not exist; there is %s",
                      r->model.at, known);
}

static void check_stopping(bool stopping, struct fault *f)
{
    if (!stopping || f->kind)
        return;
    request_fault(f, FAULT_STOPPING, NULL, "the server is stopping");
    f->retry_seconds = 5;
}

static void check_priority(const struct answer_core *c, const struct http_request *rq,
                           const struct chat_request *r, struct fault *f)
{
    const int most =
        c->o.max_priority ? c->o.max_priority(c->o.arg, rq->user ? rq->user : "") : r->o.priority;
    if (r->o.priority > most)
        request_fault(f, FAULT_REQUEST, "priority",
                      "priority is %d, above %d, the highest that this key may ask for "
                      "(--max-priority)",
                      r->o.priority, most);
}

void answer_check(struct answer_core *c, struct http_exchange *x, const struct http_request *rq,
                  const struct chat_request *r, struct fault *f)
{
    request_check(r, f);
    if (!f->kind)
        check_priority(c, rq, r, f);
    if (!f->kind)
        answer_check_model(c, r, f);
    if (!f->kind)
        answer_check_grammar(c, x, r, f);
}

static bool is_stopping(struct answer_core *c)
{
    pthread_mutex_lock(&c->lock);
    const bool stopping = c->stopping;
    pthread_mutex_unlock(&c->lock);
    return stopping;
}

static void observe_refusal(struct answer *a, const struct fault *f)
{
    const struct answer_options *o = &a->core->o;
    const bool closed = http_is_closed(a->exchange);
    const struct answer_record r = {.dialect = a->dialect->name,
                                    .request_id = a->names.request_id,
                                    .trace = a->names.trace,
                                    .outcome = closed                    ? "cancelled"
                                               : f->kind == FAULT_ENGINE ? "error"
                                                                         : "rejected",
                                    .status = closed ? 0 : f->status};
    if (o->observe)
        o->observe(o->arg, &r);
    a->observed = true;
}

/* The answer goes on without its client, which gets to know where to find it. */
static void hand_over(struct answer *a, struct http_exchange *x)
{
    static const char nomem[] = "{\"error\":{\"message\":\"no memory for a stream\","
                                "\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    struct str reply;
    str_init(&reply);
    a->dialect->accepted(a->state, &a->info, &reply, &a->out);
    let_go(a);
    a->open = true;
    answer_flush(a);
    if (!a->request.follow)
        http_reply(x, 200, "application/json", reply.at, reply.n);
    else if (!tape_listen(a->request.tape, x, 0))
        http_reply(x, 500, "application/json", nomem, sizeof nomem - 1);
    str_release(&reply);
}

/* x gets the faults until then. */
static bool attend(struct answer *a, struct http_exchange *x)
{
    if (!a->request.tape)
        return listen(a, x);
    http_hold(x);
    a->x = x;
    return true;
}

static bool can_be_header(const char *s)
{
    size_t n = 0;
    while (n <= REQUEST_MAX_AFFINITY && s[n] > ' ' && s[n] <= '~')
        n++;
    return n && !s[n];
}

/* By what replicas should be chosen so that this request finds its beginning computed: proxies see
 * headers alone. */
static void note_affinity(struct http_exchange *x, const struct http_request *rq,
                          const struct chat_request *r)
{
    static const char *const session[] = {"x-conversation-id", "x-claude-code-session-id",
                                          "session-id", "x-session-id", "x-session-token"};
    static const char *const wider[] = {"x-user-id", "x-correlation-id"};
    const char *key = NULL;
    for (size_t i = 0; i < sizeof session / sizeof *session && !key; i++)
        key = http_request_header(rq, session[i]);
    if (!key && r->cache_key.n)
        key = r->cache_key.at;
    for (size_t i = 0; i < sizeof wider / sizeof *wider && !key; i++)
        key = http_request_header(rq, wider[i]);
    if (!key && r->user.n)
        key = r->user.at;
    if (key && can_be_header(key))
        http_header(x, "x-affinity-key", key);
}

/* "00-", 32 digits, "-", 16 digits, "-", 2 digits: the form of W3C's Trace Context, where neither
 * identifier is all zeros. */
static bool is_trace(const char *s)
{
    static const char form[] = "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
    for (size_t i = 0; i < sizeof form; i++)
        if (form[i] == 'x' ? !s[i] || !strchr("0123456789abcdef", s[i]) : s[i] != form[i])
            return false;
    return strspn(s + 3, "0") < 32 && strspn(s + 36, "0") < 16;
}

/* Before others find the answer. */
static void name_answer(struct answer *a, const struct http_request *rq)
{
    const char *trace = http_request_header(rq, "traceparent");
    snprintf(a->names.request_id, sizeof a->names.request_id, "%s", rq->id);
    if (trace && is_trace(trace))
        snprintf(a->names.trace, sizeof a->names.trace, "%s", trace);
}

void answer_start(struct answer_core *c, struct http_exchange *x, const struct http_request *rq,
                  struct chat_request *r, const struct dialect *d, void *state,
                  const struct fault *given)
{
    static const char nomem[] = "{\"error\":{\"message\":\"no memory for a request\","
                                "\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    struct fault f = given ? *given : (struct fault){0};
    uint8_t digest[SHA256_BYTES];
    digest_of(rq, d, digest);
    check_stopping(is_stopping(c), &f);
    if (!r->user.n && rq->user)
        str_adds(&r->user, rq->user);
    note_affinity(x, rq, r);
    const bool attached = !f.kind && attach(c, x, digest, &state);
    struct answer *a = attached ? NULL : new_answer(c, r, d, state);
    if (attached) {
        request_release(r);
        d->free(state);
        return;
    }
    if (!a) {
        http_reply(x, 500, "application/json", nomem, sizeof nomem - 1);
        return;
    }
    a->exchange = x;
    name_answer(a, rq);
    a->tag = http_get_tag(x);
    if (a->tag && c->o.hold_tag)
        c->o.hold_tag(c->o.arg, a->tag, true);
    a->started = http_arrived(x);
    if (a->request.o.deadline_seconds > 0)
        f.until = a->started + (uint64_t)(fmin(a->request.o.deadline_seconds, 1e9) * 1e9);
    fill_info(a);
    request_check(&a->request, &f);
    if (!f.kind)
        check_priority(c, rq, &a->request, &f);
    if (!f.kind)
        answer_check_model(a->core, &a->request, &f);
    if (!f.kind)
        answer_prepare(a, &f);
    pthread_mutex_lock(&c->lock);
    memcpy(a->digest, digest, sizeof digest);
    a->known = true;
    pthread_mutex_unlock(&c->lock);
    answer_lock(a);
    check_stopping(a->cancelled, &f); /* while the prompt was read */
    if (!attend(a, x))
        http_reply(x, 500, "application/json", nomem, sizeof nomem - 1);
    else if (!f.kind)
        answer_submit(a, &f);
    if (f.kind && a->x) {
        observe_refusal(a, &f);
        answer_fail(a, &f);
    } else if (a->request.tape && a->x) {
        hand_over(a, x);
    }
    answer_unlock(a);
    answer_unref(a);
}
