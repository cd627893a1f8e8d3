/* SPDX-License-Identifier: Apache-2.0 */
#include "server/answer_inner.h"
#include "server/answer_parts.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static bool streams(const struct answer *a)
{
    return a->request.stream && answer_has_reader(a) && !a->finished;
}

static void nomem(struct answer *a)
{
    struct fault f = {0};
    request_fault(&f, FAULT_ENGINE, NULL, "no memory for an answer");
    answer_fail(a, &f);
}

/* ---- which token gave which text ---- */

static bool accept_token(struct answer_choice *c, const struct answer_token *t)
{
    if (!mem_grow(&c->token, &c->cap_tokens, c->n_tokens + 1, sizeof *c->token))
        return false;
    c->token[c->n_tokens++] = *t;
    return true;
}

/* Text on its way to the end of the content, of which the first bytes have their token. */
struct piece {
    const char *at;
    size_t n, pos; /* pos: of at[0] in the content */
};

/* A character as the content shows it, and how many bytes of tokens it was made of. */
struct letter {
    char text[4];
    size_t n_text, n_bytes;
};

/* The character that begins with byte `from` of token i; its bytes may go on in the next tokens.
 * Bytes that are no UTF-8 are one U+FFFD for each part, as in the content. */
static struct letter letter_at(const struct answer_run *r, size_t i, size_t from)
{
    struct letter l = {{0}, 0, 0};
    uint32_t cp;
    for (; i < r->n_pending && l.n_text < sizeof l.text; i++, from = 0) {
        const struct answer_token *t = &r->pending[i].t;
        for (; from < t->n_bytes && l.n_text < sizeof l.text; from++)
            l.text[l.n_text++] = answer_bytes(&r->c, t->bytes_at)[from];
    }
    l.n_bytes = l.n_text ? utf8_decode(l.text, l.n_text, &cp) : 0;
    l.n_text = l.n_bytes;
    if (l.n_bytes && cp == UTF8_BAD) {
        memcpy(l.text, "\xEF\xBF\xBD", 3);
        l.n_text = 3;
    }
    return l;
}

static bool begins_with(const struct piece *s, size_t at, const struct letter *l)
{
    return l->n_text && l->n_text <= s->n - at && memcmp(s->at + at, l->text, l->n_text) == 0;
}

/* All that is left of token i, as far as s goes, is what s begins with. */
static bool fits(const struct answer_run *r, size_t i, const struct piece *s)
{
    const struct answer_pending *p = &r->pending[i];
    size_t from = p->used, at = 0;
    while (from < p->t.n_bytes && at < s->n) {
        const struct letter l = letter_at(r, i, from);
        if (!begins_with(s, at, &l))
            return false;
        from += l.n_bytes;
        at += l.n_text;
    }
    return at > 0;
}

/* Takes the character l, which begins in token *i, from s.  It belongs to the token that ends it;
 * tokens that end before have none of it. */
static bool take_letter(struct answer_run *r, size_t *i, const struct letter *l, struct piece *s)
{
    for (size_t n = l->n_bytes; n;) {
        struct answer_pending *p = &r->pending[*i];
        const size_t left = p->t.n_bytes - p->used, m = left < n ? left : n;
        if (!p->used)
            p->t.text_at = s->pos;
        p->used += m;
        n -= m;
        p->t.n_text += n ? 0 : l->n_text;
        if (p->used < p->t.n_bytes)
            continue;
        if (!accept_token(&r->c, &p->t))
            return false;
        ++*i;
    }
    s->at += l->n_text;
    s->n -= l->n_text;
    s->pos += l->n_text;
    return true;
}

/* A token of which the content has only the beginning, as before a stop string: its bytes are
 * those. */
static bool accept_cut(struct answer_choice *c, struct answer_pending *p)
{
    p->t.n_bytes = p->used;
    return accept_token(c, &p->t);
}

/* Gives the n bytes that go to the end of the content to the tokens that wait.  What waits
 * and is not there was a marker.  Together the tokens' texts are the content, always. */
static bool assign_text(struct answer_run *r, const char *text, size_t n)
{
    struct answer_choice *c = &r->c;
    struct piece s = {text, n, c->content.n};
    const size_t before = c->n_tokens;
    size_t i = 0;
    bool ok = true;
    while (ok && s.n && i < r->n_pending) {
        struct answer_pending *p = &r->pending[i];
        const size_t token = i;
        const bool whole = fits(r, i, &s);
        if (!whole && p->used)
            ok = accept_cut(c, p);
        if (!whole)
            i++;
        while (ok && whole && s.n && i == token) {
            const struct letter l = letter_at(r, i, p->used);
            ok = take_letter(r, &i, &l, &s);
        }
    }
    if (ok && s.n && c->n_tokens == before && r->n_pending) {
        struct answer_token *t = &r->pending[r->n_pending - 1].t;
        t->text_at = s.pos;
        t->n_text = 0;
        ok = accept_token(c, t);
    }
    if (s.n && c->n_tokens)
        c->token[c->n_tokens - 1].n_text += s.n;
    r->n_pending -= i;
    memmove(r->pending, r->pending + i, r->n_pending * sizeof *r->pending);
    return ok;
}

/* What the tokens gave was no content. */
static void forget_pending(struct answer_run *r, size_t n_kept)
{
    const size_t n = r->n_pending > n_kept ? r->n_pending - n_kept : 0;
    r->n_pending -= n;
    if (n)
        memmove(r->pending, r->pending + n, r->n_pending * sizeof *r->pending);
}

static bool add_bytes(const struct answer *a, struct str *bytes, int32_t id, size_t *at, size_t *n)
{
    *at = bytes->n;
    answer_token_bytes(a->info.llm, id, bytes);
    *n = bytes->n - *at;
    return str_ok(bytes);
}

static bool add_pending(struct answer_run *r, const struct ingle_drawn *d)
{
    struct answer_choice *c = &r->c;
    if (!mem_grow(&r->pending, &r->cap_pending, r->n_pending + 1, sizeof *r->pending) ||
        !mem_grow(&c->top, &c->cap_top, c->n_top + (size_t)d->n_top, sizeof *c->top))
        return false;
    struct answer_pending p = {.t = {.id = d->id, .logprob = d->logprob, .top_at = c->n_top,
                                     .n_top = d->n_top}};
    bool ok = add_bytes(r->a, &c->bytes, d->id, &p.t.bytes_at, &p.t.n_bytes);
    for (int i = 0; i < d->n_top; i++) {
        struct answer_top *t = &c->top[c->n_top++];
        *t = (struct answer_top){.id = d->top[i].id, .logprob = d->top[i].logprob};
        ok = ok && add_bytes(r->a, &c->bytes, t->id, &t->bytes_at, &t->n_bytes);
    }
    r->pending[r->n_pending++] = p;
    return ok;
}

/* ---- events of the reader ---- */

static void send_text(struct answer_run *r, enum answer_text kind, const char *text, size_t n)
{
    struct answer *a = r->a;
    if (!streams(a) || !n)
        return;
    a->open = true;
    a->dialect->text(a->state, &r->c, kind, text, n,
                     kind == ANSWER_CONTENT ? r->n_sent : r->c.n_tokens, &a->out);
    if (kind == ANSWER_CONTENT)
        r->n_sent = r->c.n_tokens;
}

static void add_content(struct answer_run *r, const char *text, size_t n)
{
    bool ok = !r->a->request.logprobs || assign_text(r, text, n);
    str_add(&r->c.content, text, n);
    if (!ok || !str_ok(&r->c.content)) {
        nomem(r->a);
        return;
    }
    send_text(r, ANSWER_CONTENT, text, n);
}

static void add_reasoning(struct answer_run *r, const char *text, size_t n)
{
    forget_pending(r, 1);
    str_add(&r->c.reasoning, text, n);
    if (!str_ok(&r->c.reasoning))
        nomem(r->a);
    else
        send_text(r, ANSWER_REASONING, text, n);
}

static void make_call_id(char id[30])
{
    unsigned char random[12] = {0};
    if (getrandom(random, sizeof random, 0) < 0)
        random[0] = 1;
    memcpy(id, "call_", 5);
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(id + 5 + 2 * i, 3, "%02x", random[i]);
}

static void begin_call(struct answer_run *r, const char *name, size_t n)
{
    struct answer *a = r->a;
    struct answer_choice *c = &r->c;
    if (!mem_grow(&c->call, &c->cap_calls, c->n_calls + 1, sizeof *c->call)) {
        nomem(a);
        return;
    }
    struct answer_call *call = &c->call[c->n_calls++];
    make_call_id(call->id);
    str_init(&call->name);
    str_init(&call->arguments);
    str_add(&call->name, name, n);
    if (!streams(a))
        return;
    a->open = true;
    a->dialect->call_begin(a->state, c, c->n_calls - 1, &a->out);
}

static void call_event(struct answer_run *r, enum ingle_event_kind kind, const char *text, size_t n)
{
    struct answer *a = r->a;
    struct answer_choice *c = &r->c;
    if (r->cut)
        return;
    if (kind == INGLE_EVENT_CALL_BEGIN) {
        begin_call(r, text, n);
        return;
    }
    if (!c->n_calls)
        return;
    struct answer_call *call = &c->call[c->n_calls - 1];
    if (kind == INGLE_EVENT_CALL_ARGUMENTS) {
        str_add(&call->arguments, text, n);
        if (!str_ok(&call->arguments) || !str_ok(&call->name))
            nomem(a);
        else if (streams(a))
            a->dialect->call_arguments(a->state, c, c->n_calls - 1, text, n, &a->out);
        return;
    }
    call->cut = kind == INGLE_EVENT_CALL_CUT;
    if (streams(a))
        a->dialect->call_end(a->state, c, c->n_calls - 1, &a->out);
    forget_pending(r, 1);
    r->cut = !a->request.parallel_calls;
}

static void on_event(void *arg, enum ingle_event_kind kind, int call, const char *text, size_t n)
{
    struct answer_run *r = arg;
    (void)call; /* they come in order */
    if (r->a->fault.kind)
        return;
    r->reasoning = kind == INGLE_EVENT_REASONING;
    if (r->reasoning)
        r->c.n_reasoning += r->undecided;
    r->undecided = 0;
    switch (kind) {
    case INGLE_EVENT_CONTENT:
        add_content(r, text, n);
        break;
    case INGLE_EVENT_REASONING:
        add_reasoning(r, text, n);
        break;
    case INGLE_EVENT_CALL_BEGIN:
    case INGLE_EVENT_CALL_ARGUMENTS:
    case INGLE_EVENT_CALL_END:
    case INGLE_EVENT_CALL_CUT:
        call_event(r, kind, text, n);
        break;
    }
}

/* ---- life ---- */

ingle_status answer_open_reader(struct answer_run *r, struct ingle_error *err)
{
    const struct chat_request *q = &r->a->request;
    const char *stop[REQUEST_MAX_STOPS];
    for (size_t i = 0; i < q->n_stop; i++)
        stop[i] = q->stop[i].at;
    const struct ingle_reader_options o = {
        .raw = !q->chat,
        .tools = request_has_tools(q),
        .partial_calls = true,
        .open_thought = r->part->open_thought,
        .stop = stop,
        .n_stop = q->n_stop,
    };
    r->reasoning = r->part->open_thought;
    return ingle_reader_open(&r->reader, r->a->info.llm, &o, on_event, r, err);
}

void answer_release_run(struct answer_run *r)
{
    struct answer_choice *c = &r->c;
    ingle_reader_close(r->reader);
    mem_free(r->pending);
    mem_free(c->drawn);
    for (size_t i = 0; i < c->n_calls; i++) {
        str_release(&c->call[i].name);
        str_release(&c->call[i].arguments);
    }
    mem_free(c->call);
    mem_free(c->token);
    mem_free(c->top);
    str_release(&c->content);
    str_release(&c->reasoning);
    str_release(&c->bytes);
}

/* ---- tokens ---- */

/* NULL: it is free. */
static void follow(struct answer_run *r, const struct ingle_grammar *g)
{
    struct ingle_error e;
    struct fault f = {0};
    const ingle_status st = ingle_request_constrain(r->part->request, r->local, g, &e);
    if (!st)
        return;
    request_fault_from(&f, st, "response_format", e.text);
    answer_fail(r->a, &f);
}

/* A thought that has used its budget is closed; what constrains the answer is in force from
 * the end of the thought on. */
static void constrain(struct answer_run *r)
{
    const struct answer *a = r->a;
    const bool later = a->grammar && !a->grammar_first;
    if (r->constrained || !(later || a->closer))
        return;
    if (!ingle_reader_in_thought(r->reader)) {
        if (later || r->closing)
            follow(r, a->grammar);
        r->constrained = later || r->closing;
    } else if (a->closer && !r->closing &&
               (a->enough || (a->request.thinking_budget > 0 &&
                              r->c.n_reasoning + r->undecided >= a->request.thinking_budget))) {
        r->closing = true;
        follow(r, a->closer);
    }
}

/* From the marker of a call to its end what the model says follows the tools' schemas; so it is a
 * call, and sent while it comes.  After it the model is free again. */
static void hold_call(struct answer_run *r)
{
    const struct answer *a = r->a;
    const char *rest;
    size_t n;
    if (!ingle_reader_in_call(r->reader, &rest, &n)) {
        if (r->held)
            follow(r, NULL);
        r->held = r->in_call = false;
        return;
    }
    if (r->in_call)
        return;
    r->in_call = true;
    if (a->calls && rest)
        r->held =
            !ingle_request_constrain_behind(r->part->request, r->local, a->calls, rest, n, NULL);
    if (r->held || (a->grammar_calls && (a->grammar_first || r->constrained)))
        ingle_reader_trust_call(r->reader);
}

static const int32_t *find_stop(const struct chat_request *q, int32_t id)
{
    for (size_t i = 0; i < q->stop_ids.n; i++)
        if (q->stop_ids.id[i] == id)
            return &q->stop_ids.id[i];
    return NULL;
}

/* Control tokens have no text unless it is requested. */
static bool is_special(const struct answer *a, int32_t id)
{
    char *text;
    size_t n;
    if (ingle_detokenize(a->info.llm, &id, 1, false, &text, &n, NULL))
        return false;
    ingle_free(text);
    return n == 0;
}

static bool is_hidden(const struct answer *a, const struct ingle_drawn *d)
{
    const struct chat_request *q = &a->request;
    if (ingle_model_is_end(a->info.llm, d->id))
        return true; /* it shows nothing, and whether it ends is the scheduler's business */
    return (find_stop(q, d->id) && !q->keep_stop) || (q->hide_special && is_special(a, d->id));
}

static bool has_line_feed(const struct str *s) { return s->n && memchr(s->at, '\n', s->n); }

/* As llama-server has it: an answer in one line may take its time. */
static bool is_late(struct answer_run *r)
{
    const struct answer *a = r->a;
    const int64_t most = a->request.predict_ms;
    if (!r->first)
        r->first = a->last_token;
    return most > 0 && a->last_token - r->first > (uint64_t)most * 1000000 &&
           (has_line_feed(&r->c.content) || has_line_feed(&r->c.reasoning));
}

static bool keep_drawn(struct answer_run *r, int32_t id)
{
    struct answer_choice *c = &r->c;
    if (!r->a->request.keep_tokens && !r->a->core->o.keep)
        return true;
    if (!mem_grow(&c->drawn, &c->cap_drawn, c->n_drawn + 1, sizeof *c->drawn))
        return false;
    c->drawn[c->n_drawn++] = id;
    return true;
}

bool answer_take(struct answer_run *r, const struct ingle_drawn *d)
{
    struct answer *a = r->a;
    struct answer_choice *c = &r->c;
    enum ingle_end end = INGLE_END_NONE;
    struct ingle_error e;
    c->n_generated++;
    c->logprob_sum += (double)d->logprob;
    if (!keep_drawn(r, d->id)) {
        nomem(a);
        return false;
    }
    c->stop_id = find_stop(&a->request, d->id);
    if (is_hidden(a, d))
        return !c->stop_id;
    if (a->request.logprobs && !add_pending(r, d)) {
        nomem(a);
        return false;
    }
    r->undecided++;
    const ingle_status st = ingle_reader_token(r->reader, d->id, &end, &e);
    if (st) {
        struct fault f = {0};
        request_fault(&f, FAULT_ENGINE, NULL, "%s", e.text);
        answer_fail(a, &f);
    }
    if (!st && end == INGLE_END_NONE) {
        constrain(r);
        hold_call(r);
    }
    const int which = ingle_reader_stop(r->reader);
    if (which >= 0) {
        c->stop = a->request.stop[which].at;
        if (a->request.keep_stop)
            add_content(r, c->stop, a->request.stop[which].n);
    }
    const bool more =
        end == INGLE_END_NONE && !r->cut && !a->fault.kind && !c->stop_id && which < 0;
    r->late = is_late(r) && more;
    return more && !r->late;
}

const struct answer_echo *answer_echo_of(const struct answer_part *p)
{
    const struct answer_part *first = p;
    while (first->first)
        first--;
    return first->echo.n_tokens == first->n_ids ? &first->echo : &p->echo;
}

/* Where the character begins that has byte `at` in it: at, or up to three bytes before. */
static size_t letter_start(const struct str *s, size_t at)
{
    for (size_t back = at < 3 ? at : 3; back; back--) {
        uint32_t cp;
        if (utf8_decode(s->at + at - back, s->n - (at - back), &cp) > back &&
            ((unsigned char)s->at[at - back] & 0xC0) != 0x80)
            return at - back;
    }
    return at;
}

/* The texts of the tokens of a prompt, which begin where the tokens do: whole characters now. */
static void cut_echo(struct answer_echo *e, const struct str *content)
{
    for (size_t i = 0; i < e->n_tokens; i++)
        e->token[i].text_at = letter_start(content, e->token[i].text_at);
    for (size_t i = 0; i < e->n_tokens; i++)
        e->token[i].n_text =
            (i + 1 < e->n_tokens ? e->token[i + 1].text_at : content->n) - e->token[i].text_at;
}

/* The texts are the same in all choices of the prompt. */
void answer_echo(struct answer_run *r)
{
    const struct answer_part *p = r->part;
    struct answer_echo *e = (struct answer_echo *)(uintptr_t)answer_echo_of(p);
    const bool tokens = r->a->request.logprobs && e->n_tokens == p->n_ids;
    for (size_t i = 0; i < p->n_ids; i++) {
        if (tokens)
            e->token[i].text_at = r->c.content.n;
        if (i >= p->hidden)
            answer_token_bytes(r->a->info.llm, p->ids[i], &r->c.content);
    }
    if (tokens) {
        cut_echo(e, &r->c.content);
        r->c.echo = e;
    }
    if (!str_ok(&r->c.content))
        nomem(r->a);
    else
        send_text(r, ANSWER_CONTENT, r->c.content.at, r->c.content.n);
}

static enum answer_finish finish_of(const struct answer_run *r, enum ingle_finish why)
{
    if (why == INGLE_FINISH_LENGTH || r->late)
        return ANSWER_LENGTH;
    return r->c.n_calls ? ANSWER_CALLS : ANSWER_STOP;
}

void answer_end(struct answer_run *r, enum ingle_finish why)
{
    struct answer *a = r->a;
    struct answer_choice *c = &r->c;
    struct ingle_error e;
    if (r->ended)
        return;
    r->ended = true;
    if (ingle_reader_in_thought(r->reader))
        c->n_reasoning += r->undecided;
    if (ingle_reader_finish(r->reader, &e)) {
        struct fault f = {0};
        request_fault(&f, FAULT_ENGINE, NULL, "%s", e.text);
        answer_fail(a, &f);
        return;
    }
    for (size_t i = 0; i < r->n_pending; i++)
        if (r->pending[i].used && !accept_cut(c, &r->pending[i]))
            nomem(a);
    r->n_pending = 0;
    c->finish = finish_of(r, why);
    c->context_full = c->finish == ANSWER_LENGTH &&
                      (int64_t)r->part->n_ids + c->n_generated >= a->core->o.n_ctx;
    if (!streams(a))
        return;
    a->open = true;
    a->dialect->end(a->state, c, &a->out);
}
