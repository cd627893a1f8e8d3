/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api.h"

#include "base/json.h"
#include "base/mem.h"
#include "grammar/grammar.h"

#include <string.h>

enum { MAX_STOPS = 64, MAX_STOP_BYTES = 1024, MARKER_TOKENS = 16 };

struct ingle_reader {
    const struct ingle_model *m;
    ingle_event_fn *fn;
    void *arg;
    struct text_parser *parser; /* NULL: raw */
    struct text_stream stream;
    struct str piece;   /* characters of the last token */
    struct str content; /* what went out as content */
    struct str held;    /* content that may still become a stop string */
    struct str stop[MAX_STOPS];
    size_t n_stop;
    int32_t mark;   /* the token of the marker of calls; -1: it is spelled */
    int since_mark; /* tokens */
    bool stopped, finished;
    size_t which_stop;
    enum ingle_end end;
};

static void send(struct ingle_reader *r, enum ingle_event_kind kind, int call, const char *text,
                 size_t n)
{
    if (r->fn && (n || kind == INGLE_EVENT_CALL_BEGIN || kind == INGLE_EVENT_CALL_END ||
                  kind == INGLE_EVENT_CALL_CUT))
        r->fn(r->arg, kind, call, text, n);
}

static void let_out(struct ingle_reader *r, size_t n)
{
    str_add(&r->content, r->held.at, n);
    send(r, INGLE_EVENT_CONTENT, -1, r->held.at, n);
    memmove(r->held.at, r->held.at + n, r->held.n - n);
    r->held.n -= n;
    r->held.at[r->held.n] = 0;
}

/* The stop string that is complete first; of those that end at one place, the longest. */
static bool find_stop(const struct ingle_reader *r, size_t *at, size_t *which)
{
    size_t best_end = SIZE_MAX;
    for (size_t i = 0; i < r->n_stop; i++) {
        const struct str *s = &r->stop[i];
        for (size_t j = 0; j + s->n <= r->held.n && j + s->n <= best_end; j++) {
            if (memcmp(r->held.at + j, s->at, s->n) != 0)
                continue;
            if (j + s->n < best_end || j < *at) {
                *at = j;
                *which = i;
            }
            best_end = j + s->n;
            break;
        }
    }
    return best_end != SIZE_MAX;
}

/* Length of the longest end of `held` that begins a stop string. */
static size_t possible_stop(const struct ingle_reader *r)
{
    size_t longest = 0;
    for (size_t i = 0; i < r->n_stop; i++) {
        const struct str *s = &r->stop[i];
        for (size_t n = s->n - 1 < r->held.n ? s->n - 1 : r->held.n; n > longest; n--)
            if (memcmp(r->held.at + (r->held.n - n), s->at, n) == 0)
                longest = n;
    }
    return longest;
}

static void add_content(struct ingle_reader *r, const char *bytes, size_t n)
{
    str_add(&r->held, bytes, n);
    size_t at = 0;
    if (r->n_stop && find_stop(r, &at, &r->which_stop)) {
        let_out(r, at);
        str_clear(&r->held);
        r->stopped = true;
        r->end = INGLE_END_STOP;
        return;
    }
    let_out(r, r->held.n - possible_stop(r));
}

static void take_event(void *arg, enum text_event_kind kind, int call, const char *bytes, size_t n)
{
    static const enum ingle_event_kind same[] = {
        [TEXT_EVENT_CONTENT] = INGLE_EVENT_CONTENT,
        [TEXT_EVENT_REASONING] = INGLE_EVENT_REASONING,
        [TEXT_EVENT_CALL_BEGIN] = INGLE_EVENT_CALL_BEGIN,
        [TEXT_EVENT_CALL_ARGUMENTS] = INGLE_EVENT_CALL_ARGUMENTS,
        [TEXT_EVENT_CALL_END] = INGLE_EVENT_CALL_END,
        [TEXT_EVENT_CALL_CUT] = INGLE_EVENT_CALL_CUT,
    };
    struct ingle_reader *r = arg;
    if (r->stopped)
        return;
    if (kind == TEXT_EVENT_CONTENT) {
        add_content(r, bytes, n);
        return;
    }
    if (r->held.n) /* a stop string does not go on after what comes between */
        let_out(r, r->held.n);
    send(r, same[kind], call, bytes, n);
}

static ingle_status take_stops(struct ingle_reader *r, const struct ingle_reader_options *o,
                               struct err *err)
{
    if (o->n_stop > MAX_STOPS)
        return err_set(err, INGLE_LIMIT, "%zu stop strings are more than %d", o->n_stop, MAX_STOPS);
    for (size_t i = 0; i < o->n_stop; i++) {
        const size_t n = strlen(o->stop[i]);
        if (n < 1 || n > MAX_STOP_BYTES)
            return err_set(err, INGLE_LIMIT, "stop string %zu has %zu bytes, outside 1 to %d", i, n,
                           MAX_STOP_BYTES);
        str_init(&r->stop[i]);
        r->n_stop = i + 1;
        str_add(&r->stop[i], o->stop[i], n);
        if (!str_ok(&r->stop[i]))
            return err_set(err, INGLE_NOMEM, "no memory for a stop string");
    }
    return INGLE_OK;
}

static ingle_status open_reader(struct ingle_reader *r, const struct ingle_reader_options *o,
                                struct err *err)
{
    ingle_status st = engine_need_words(r->m, err);
    if (!st)
        st = take_stops(r, o, err);
    if (st || o->raw)
        return st;
    enum text_chat_family family = r->m->chat;
    if (o->family && !engine_chat_by_name(o->family, &family))
        return err_set(err, INGLE_ARG,
                       "there is no chat format '%s'; there are gemma4 and deepseek4", o->family);
    const struct text_parser_options p = {.tools_enabled = o->tools,
                                          .open_thought = o->open_thought,
                                          .partial_calls = o->partial_calls};
    r->mark = grammar_mark(family, r->m->tokenizer);
    r->since_mark = MARKER_TOKENS;
    return text_parser_create(&r->parser, family, &p, take_event, r, err);
}

ingle_status ingle_reader_open(struct ingle_reader **out, const struct ingle_model *m,
                               const struct ingle_reader_options *o, ingle_event_fn *fn, void *arg,
                               struct ingle_error *error)
{
    static const struct ingle_reader_options none = {0};
    struct err err;
    struct ingle_reader *r = mem_zalloc(sizeof *r);
    if (!r)
        return engine_say(error, err_set(&err, INGLE_NOMEM, "no memory for a reader"), &err);
    r->m = m;
    r->fn = fn;
    r->arg = arg;
    str_init(&r->piece);
    str_init(&r->content);
    str_init(&r->held);
    const ingle_status st = open_reader(r, o ? o : &none, &err);
    if (st) {
        ingle_reader_close(r);
        return engine_say(error, st, &err);
    }
    *out = r;
    return INGLE_OK;
}

void ingle_reader_close(struct ingle_reader *r)
{
    if (!r)
        return;
    text_parser_free(r->parser);
    str_release(&r->piece);
    str_release(&r->content);
    str_release(&r->held);
    for (size_t i = 0; i < r->n_stop; i++)
        str_release(&r->stop[i]);
    mem_free(r);
}

static ingle_status feed(struct ingle_reader *r, struct err *err)
{
    if (!r->piece.n)
        return INGLE_OK;
    if (!r->parser) {
        if (!r->stopped)
            add_content(r, r->piece.at, r->piece.n);
        return INGLE_OK;
    }
    return text_parser_add(r->parser, r->piece.at, r->piece.n, err);
}

static ingle_status check_memory(const struct ingle_reader *r, struct err *err)
{
    if (str_ok(&r->piece) && str_ok(&r->content) && str_ok(&r->held))
        return INGLE_OK;
    return err_set(err, INGLE_NOMEM, "no memory for an answer of %zu bytes", r->content.n);
}

static ingle_status take_token(struct ingle_reader *r, int32_t token, struct err *err)
{
    if (r->end || r->finished)
        return INGLE_OK;
    if (ingle_model_is_end(r->m, token)) {
        r->end = INGLE_END_TURN;
        return INGLE_OK;
    }
    r->since_mark = token == r->mark ? 0 : r->since_mark + (r->since_mark < MARKER_TOKENS);
    str_clear(&r->piece);
    /* The parser wants markers by their spelling, whatever kind of token they are. */
    ingle_status st = text_stream_add(&r->stream, r->m->tokenizer, token, true, &r->piece, err);
    if (!st)
        st = feed(r, err);
    return st ? st : check_memory(r, err);
}

ingle_status ingle_reader_token(struct ingle_reader *r, int32_t token, enum ingle_end *end,
                                struct ingle_error *error)
{
    struct err err;
    const ingle_status st = take_token(r, token, &err);
    if (!st)
        *end = r->end;
    return engine_say(error, st, &err);
}

bool ingle_reader_in_thought(const struct ingle_reader *r)
{
    return r->parser && text_parser_in_thought(r->parser);
}

bool ingle_reader_in_call(const struct ingle_reader *r, const char **rest, size_t *n)
{
    if (!r->parser || !text_parser_in_call(r->parser, rest, n))
        return false;
    if (rest && r->mark >= 0 && r->since_mark >= MARKER_TOKENS)
        *rest = NULL;
    return true;
}

void ingle_reader_trust_call(struct ingle_reader *r)
{
    if (r->parser)
        text_parser_trust_call(r->parser);
}

int ingle_reader_stop(const struct ingle_reader *r)
{
    return r->stopped ? (int)r->which_stop : -1;
}

static ingle_status finish(struct ingle_reader *r, struct err *err)
{
    if (r->finished)
        return INGLE_OK;
    r->finished = true;
    str_clear(&r->piece);
    text_stream_end(&r->stream, &r->piece);
    ingle_status st = r->stopped ? INGLE_OK : feed(r, err);
    if (!st && r->parser)
        st = text_parser_end(r->parser, r->end == INGLE_END_NONE ? "length" : "turn", err);
    if (!r->stopped)
        let_out(r, r->held.n);
    return st ? st : check_memory(r, err);
}

ingle_status ingle_reader_finish(struct ingle_reader *r, struct ingle_error *error)
{
    struct err err;
    return engine_say(error, finish(r, &err), &err);
}

static ingle_status message(const struct ingle_reader *r, char **json, size_t *n, struct err *err)
{
    struct json_object *o = NULL;
    ingle_status st = INGLE_OK;
    if (r->parser)
        st = text_parser_message(r->parser, &o, err);
    else if (!(o = json_object_new_object()))
        st = err_set(err, INGLE_NOMEM, "no memory for a message");
    if (!st) {
        /* What went out counts: a stop string cuts the content. */
        struct json_object *content = json_object_new_string_len(r->content.at, (int)r->content.n);
        if (content && !json_object_object_add(o, "content", content)) {
            st = engine_json_text(o, json, n, err);
        } else {
            json_object_put(content);
            st = err_set(err, INGLE_NOMEM, "no memory for a message");
        }
    }
    json_object_put(o);
    return st;
}

ingle_status ingle_reader_message(const struct ingle_reader *r, char **json, size_t *n,
                                  struct ingle_error *error)
{
    struct err err;
    return engine_say(error, message(r, json, n, &err), &err);
}
