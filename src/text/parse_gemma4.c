/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parse_gemma4 - the output of Gemma 4: thoughts between <|channel>thought and <channel|>,
 * calls <|tool_call>call:NAME{key:value,...}<tool_call|>, and content.  Labels of other channels
 * than thought go with their markers.
 *
 * A call is read byte by byte while its text is held.  One that is spelled otherwise is held to its
 * end and read by parse_loose.c; what that refuses stays content.  One that
 * is certain is reported while it is read; a member whose name was there before is left out of it.
 * Calls in a thought count only if the thought is never closed and nothing but calls follows.
 */
#include "text/parse.h"

#include "text/parse_loose.h"
#include "text/template.h"
#include <stdint.h>
#include <string.h>

#define TURN     "<|turn>model\n"
#define OPEN     "<|channel>"
#define CLOSE    "<channel|>"
#define CALL     "<|tool_call>"
#define CALL_END "<tool_call|>"
#define QUOTE    "<|\"|>"

enum { DEPTH = TEXT_NAMES_DEPTH };

enum call_at {
    AT_PREFIX, /* call: */
    AT_NAME,
    AT_FIRST_KEY, /* after {: a key or } */
    AT_KEY,
    AT_QUOTED_KEY,
    AT_COLON,
    AT_FIRST_ITEM, /* after [: a value or ] */
    AT_VALUE,
    AT_QUOTE, /* inside the opening quote of a value */
    AT_STRING,
    AT_WORD, /* true, false, null or a number */
    AT_NEXT, /* after a value: , } or ] */
    AT_END,  /* after the map: white space, CALL_END */
    AT_DONE,
    AT_BAD
};

/* Reads one call, from after CALL. */
struct call {
    enum call_at at;
    size_t n_match; /* bytes of the marker at hand that were seen */
    int depth;
    bool map[DEPTH]; /* what is open: a map or a list */
    bool nomem;      /* some of the call was lost */
    bool comma;      /* is due before the next member or item */
    struct str name, json, word;

    bool sure;          /* the call is reported while it is read */
    bool named, begun;  /* the name is complete, and reported */
    size_t n_sent;      /* of json */
    int muted;          /* depth of the member that is left out; 0: none */
    size_t n_unmuted;   /* of json without it */
    struct text_names names; /* only if sure */
};

/* Empties s, whose failure is remembered. */
static void call_forget(struct call *c, struct str *s)
{
    c->nomem = c->nomem || !str_ok(s);
    str_clear(s);
}

static bool call_lost(const struct call *c)
{
    return c->nomem || !str_ok(&c->name) || !str_ok(&c->json) || !str_ok(&c->word) ||
           !str_ok(&c->names.list);
}

static void call_clear(struct call *c)
{
    c->at = AT_PREFIX;
    c->n_match = 0;
    c->depth = 0;
    c->comma = c->sure = c->named = c->begun = false;
    c->n_sent = 0;
    c->muted = 0;
    c->names.depth = 0;
    call_forget(c, &c->name);
    call_forget(c, &c->json);
    call_forget(c, &c->word);
    call_forget(c, &c->names.list);
}

static void call_comma(struct call *c)
{
    if (c->comma)
        str_adds(&c->json, ", ");
    c->comma = false;
}

static bool call_is_json(struct call *c, const struct str *s)
{
    const ingle_status status = json_gate(s->at, s->n, NULL, NULL);
    c->nomem = c->nomem || status == INGLE_NOMEM;
    return status == INGLE_OK;
}

static bool is_space(char b)
{
    return b == ' ' || b == '\t' || b == '\r' || b == '\n';
}

/* The accumulated word without white space at its ends. */
static struct text_view trimmed(const struct str *s)
{
    struct text_view v = {s->at, s->n};
    while (v.n && is_space(v.at[0]))
        v.at++, v.n--;
    while (v.n && is_space(v.at[v.n - 1]))
        v.n--;
    return v;
}

static enum call_at call_open(struct call *c, bool map)
{
    if (c->depth == DEPTH)
        return AT_BAD;
    c->map[c->depth++] = map;
    text_names_open(&c->names);
    str_addc(&c->json, map ? '{' : '[');
    return map ? AT_FIRST_KEY : AT_FIRST_ITEM;
}

/* After a value. */
static enum call_at call_valued(struct call *c)
{
    if (c->muted == c->depth) {
        c->json.n = c->n_unmuted;
        c->muted = 0;
    }
    return AT_NEXT;
}

static enum call_at call_close(struct call *c, bool map)
{
    if (c->map[c->depth - 1] != map)
        return AT_BAD;
    str_addc(&c->json, map ? '}' : ']');
    text_names_close(&c->names);
    c->comma = false;
    if (--c->depth)
        return call_valued(c);
    /* The whole once more, by the rules of JSON: refuses keys that are repeated. */
    c->n_match = 0;
    return call_is_json(c, &c->json) ? AT_END : AT_BAD;
}

static enum call_at call_key(struct call *c, struct text_view key, enum call_at next)
{
    if (!key.n)
        return AT_BAD;
    if (c->sure && !c->muted && !text_names_add(&c->names, key.at, key.n)) {
        c->muted = c->depth;
        c->n_unmuted = c->json.n;
    }
    call_comma(c);
    str_add_json(&c->json, key.at, key.n);
    str_adds(&c->json, ": ");
    call_forget(c, &c->word);
    return next;
}

/* Raw text up to QUOTE goes to word.  True: it has ended. */
static bool call_raw(struct call *c, char b)
{
    if (b == QUOTE[c->n_match]) {
        if (++c->n_match < strlen(QUOTE))
            return false;
        c->n_match = 0;
        return true;
    }
    str_add(&c->word, QUOTE, c->n_match);
    c->n_match = b == QUOTE[0];
    if (!c->n_match)
        str_addc(&c->word, b);
    return false;
}

static enum call_at call_name(struct call *c, char b)
{
    if (b == '<' || b == '\n' || !b)
        return AT_BAD;
    if (b != '{') {
        str_addc(&c->name, b);
        return AT_NAME;
    }
    c->named = trimmed(&c->name).n;
    return c->named ? call_open(c, true) : AT_BAD;
}

static enum call_at call_bare_key(struct call *c, char b)
{
    if (c->at == AT_FIRST_KEY && b == '}' && !trimmed(&c->word).n)
        return call_close(c, true);
    if (b == ':')
        return call_key(c, trimmed(&c->word), AT_VALUE);
    if ((strchr("{}[],", b) && b) || (!c->sure && (b == '"' || (b == '\'' && !c->word.n))))
        return AT_BAD; /* quotes are parse_loose.c's */
    if (!is_space(b) || c->word.n) /* white space in front is not kept */
        str_addc(&c->word, b);
    if (c->word.n != strlen(QUOTE) || memcmp(c->word.at, QUOTE, c->word.n) != 0)
        return c->at;
    call_forget(c, &c->word);
    return AT_QUOTED_KEY;
}

static enum call_at call_value(struct call *c, char b)
{
    if (is_space(b))
        return c->at;
    if (b == ']' && c->at == AT_FIRST_ITEM)
        return call_close(c, false);
    call_comma(c);
    if (b == '{' || b == '[')
        return call_open(c, b == '{');
    if (b == QUOTE[0]) {
        c->n_match = 1;
        return AT_QUOTE;
    }
    str_addc(&c->word, b);
    return strchr("tfn-0123456789", b) && b ? AT_WORD : AT_BAD;
}

static enum call_at call_next(struct call *c, char b)
{
    if (is_space(b))
        return AT_NEXT;
    if (b == '}' || b == ']')
        return call_close(c, b == '}');
    if (b != ',')
        return AT_BAD;
    c->comma = true;
    return c->map[c->depth - 1] ? AT_KEY : AT_VALUE;
}

static enum call_at call_word(struct call *c, char b)
{
    if ((b >= 'a' && b <= 'z') || (b >= '0' && b <= '9') || b == 'E' || b == '.' || b == '+' ||
        b == '-') {
        str_addc(&c->word, b);
        return AT_WORD;
    }
    if (!call_is_json(c, &c->word))
        return AT_BAD;
    str_add(&c->json, c->word.at, c->word.n);
    call_forget(c, &c->word);
    (void)call_valued(c);
    return call_next(c, b);
}

/* What is known of the string at hand. */
static void call_string(struct call *c, bool last)
{
    const size_t n = str_add_json_part(&c->json, c->word.at, c->word.n, last);
    if (!n)
        return;
    memmove(c->word.at, c->word.at + n, c->word.n - n);
    c->word.n -= n;
    c->word.at[c->word.n] = 0;
}

/* A fixed marker, of which n_match bytes were seen. */
static enum call_at call_marker(struct call *c, char b, const char *marker, enum call_at next)
{
    if (b != marker[c->n_match])
        return AT_BAD;
    if (marker[++c->n_match])
        return c->at;
    c->n_match = 0;
    return next;
}

static void call_read(struct call *c, char b)
{
    switch (c->at) {
    case AT_PREFIX:
        c->at = call_marker(c, b, "call:", AT_NAME);
        break;
    case AT_NAME:
        c->at = call_name(c, b);
        break;
    case AT_FIRST_KEY:
    case AT_KEY:
        c->at = call_bare_key(c, b);
        break;
    case AT_QUOTED_KEY:
        if (call_raw(c, b))
            c->at = call_key(c, (struct text_view){c->word.at, c->word.n}, AT_COLON);
        break;
    case AT_COLON:
        c->at = b == ':' ? AT_VALUE : is_space(b) ? AT_COLON : AT_BAD;
        break;
    case AT_FIRST_ITEM:
    case AT_VALUE:
        c->at = call_value(c, b);
        break;
    case AT_QUOTE:
        c->at = call_marker(c, b, QUOTE, AT_STRING);
        if (c->at == AT_STRING)
            str_addc(&c->json, '"');
        break;
    case AT_STRING:
        if (call_raw(c, b)) {
            call_string(c, true);
            str_addc(&c->json, '"');
            call_forget(c, &c->word);
            c->at = call_valued(c);
        }
        break;
    case AT_WORD:
        c->at = call_word(c, b);
        break;
    case AT_NEXT:
        c->at = call_next(c, b);
        break;
    case AT_END:
        if (c->n_match || !is_space(b))
            c->at = call_marker(c, b, CALL_END, AT_DONE);
        break;
    case AT_DONE:
    case AT_BAD:
        break;
    }
}

/* At the end of the output CALL_END may be missing. */
static bool call_may_end(const struct call *c)
{
    return c->at == AT_DONE || (c->at == AT_END && !c->n_match);
}

enum state {
    IN_START,
    IN_TEXT,
    IN_CHANNEL, /* after OPEN */
    IN_THOUGHT,
    IN_RUN, /* calls in a thought: held until it is clear whether they end the output */
    IN_CALL,
    IN_LOOSE_CALL, /* held up to CALL_END */
    IN_BAD_CALL    /* content up to CALL_END */
};

struct gemma {
    struct text_parser p;
    enum state state;
    struct call call;
    size_t seen;  /* IN_CALL, IN_RUN, IN_LOOSE_CALL: held bytes that were read, from p.from */
    bool body;    /* the thought has given text */
    size_t plain; /* IN_THOUGHT: no run begins in this many held bytes */

    /* IN_RUN, from p.from */
    size_t run_at;     /* its first CALL */
    size_t element_at; /* the call being read, or what stands between calls */
    size_t n_done;     /* complete calls */
    bool between;      /* calls */
    size_t n_close;    /* bytes of CLOSE that were seen */
};

/* Forgets n held bytes. */
static void drop(struct gemma *g, size_t n)
{
    g->p.from += n;
    g->plain -= n < g->plain ? n : g->plain;
}

static void give_content(struct gemma *g, size_t n)
{
    text_parser_content(&g->p, g->p.held.at + g->p.from, n);
    drop(g, n);
}

/* Bodies of several thoughts are joined with a newline. */
static void give_reasoning(struct gemma *g, size_t n)
{
    if (n && !g->body && g->p.reasoning.n)
        text_parser_reasoning(&g->p, "\n", 1);
    g->body = g->body || n;
    text_parser_reasoning(&g->p, g->p.held.at + g->p.from, n);
    drop(g, n);
}

static void enter_thought(struct gemma *g)
{
    g->state = IN_THOUGHT;
    g->body = false;
    g->plain = 0;
}

/* Each step decides a beginning of the n > 0 held bytes at s, or, when it returns false,
 * needs more of them.  final: there are no more. */

static bool step_start(struct gemma *g, const char *s, size_t n, bool final)
{
    const enum text_match m = text_match(s, n, TURN);
    if (m == TEXT_MATCH_PART && !final)
        return false;
    if (m == TEXT_MATCH_ALL)
        drop(g, strlen(TURN));
    g->state = IN_TEXT;
    if (g->p.o.open_thought)
        enter_thought(g);
    return true;
}

static bool step_text(struct gemma *g, const char *s, size_t n, bool final)
{
    size_t i = 0;
    for (; i < n; i++) {
        const char *lt = memchr(s + i, '<', n - i);
        i = lt ? (size_t)(lt - s) : n;
        if (i == n)
            break;
        const enum text_match open = text_match(s + i, n - i, OPEN);
        const enum text_match close = text_match(s + i, n - i, CLOSE);
        const enum text_match call =
            g->p.o.tools_enabled ? text_match(s + i, n - i, CALL) : TEXT_MATCH_NONE;
        if (open == TEXT_MATCH_ALL || close == TEXT_MATCH_ALL) {
            give_content(g, i);
            drop(g, strlen(OPEN));
            g->state = open == TEXT_MATCH_ALL ? IN_CHANNEL : IN_TEXT;
            return true;
        }
        if (call == TEXT_MATCH_ALL) {
            give_content(g, i);
            call_clear(&g->call);
            g->seen = strlen(CALL);
            g->state = IN_CALL;
            return true;
        }
        if (!final && (open || close || call))
            break;
    }
    give_content(g, i);
    return false;
}

enum { MOST_LABEL = 32 };

/* Lower case only: labels that are known may be followed by a capital. */
static bool in_label(char b, bool lower)
{
    return (b >= 'a' && b <= 'z') || (b >= '0' && b <= '9') || b == '_' || b == '-' ||
           (!lower && b >= 'A' && b <= 'Z');
}

/* Whether a marker is at s: it ends a label. */
static enum text_match marker_at(const char *s, size_t n)
{
    static const char *const marker[] = {CLOSE, OPEN, CALL, TURN};
    enum text_match best = TEXT_MATCH_NONE;
    for (size_t i = 0; i < sizeof marker / sizeof *marker && best != TEXT_MATCH_ALL; i++) {
        const enum text_match m = text_match(s, n, marker[i]);
        best = m != TEXT_MATCH_NONE ? m : best;
    }
    return best;
}

/* Bytes of the label after OPEN, without the blank or newline that ends it.  A word on a line of
 * its own, or in front of a marker or the end, is one; in front of text only a known word is. */
static size_t label(const char *s, size_t n, bool final, bool *more)
{
    static const char *const known[] = {"thought",    "final",  "analysis",
                                        "commentary", "answer", "response"};
    size_t len = 0;
    while (len < n && len < MOST_LABEL && in_label(s[len], false))
        len++;
    const enum text_match m = len < n ? marker_at(s + len, n - len) : TEXT_MATCH_NONE;
    *more = !final && (len == n || m == TEXT_MATCH_PART);
    if (*more || len == n || s[len] == '\n' || m == TEXT_MATCH_ALL)
        return len;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const size_t k = strlen(known[i]);
        if (len >= k && memcmp(s, known[i], k) == 0 && !in_label(s[k], true))
            return k;
    }
    return 0;
}

static bool step_channel(struct gemma *g, const char *s, size_t n, bool final)
{
    bool more;
    const size_t len = label(s, n, final, &more);
    if (more)
        return false;
    const bool thought = len == strlen("thought") && memcmp(s, "thought", len) == 0;
    const bool ended = len && len < n && (s[len] == '\n' || s[len] == ' ');
    g->state = IN_TEXT;
    drop(g, len + ended);
    if (thought)
        enter_thought(g);
    return true;
}

/* What a marker at i of a thought is. */
static enum text_match thought_marker(const struct gemma *g, const char *s, size_t n, size_t i,
                                      bool *close)
{
    if (i >= n)
        return TEXT_MATCH_PART;
    const enum text_match m = text_match(s + i, n - i, CLOSE);
    *close = m == TEXT_MATCH_ALL;
    if (m != TEXT_MATCH_NONE || !g->p.o.tools_enabled || i < g->plain)
        return m;
    return text_match(s + i, n - i, CALL);
}

/* A newline in front of a marker is not part of the thought. */
static bool step_thought(struct gemma *g, const char *s, size_t n, bool final)
{
    size_t i = 0;
    for (; i < n; i++) {
        if (s[i] != '\n' && s[i] != '<')
            continue;
        const size_t newline = s[i] == '\n';
        bool close = false;
        const enum text_match m = thought_marker(g, s, n, i + newline, &close);
        if (m == TEXT_MATCH_PART && !final)
            break;
        if (m != TEXT_MATCH_ALL)
            continue;
        give_reasoning(g, i);
        if (close) {
            drop(g, newline + strlen(CLOSE));
            g->state = IN_TEXT;
            return true;
        }
        call_clear(&g->call);
        g->state = IN_RUN;
        g->run_at = g->element_at = newline;
        g->seen = newline + strlen(CALL);
        g->n_done = g->n_close = 0;
        g->between = false;
        return true;
    }
    give_reasoning(g, i);
    return false;
}

/* The run is no end of the output.  Its complete calls, or else the CALL that began it, are
 * part of the thought. */
static bool end_run(struct gemma *g)
{
    g->state = IN_THOUGHT;
    g->plain = g->n_done ? g->element_at : g->run_at + strlen(CALL);
    return true;
}

/* One byte of a run.  False: it is none. */
static bool run_read(struct gemma *g, char b)
{
    if (g->between) {
        if (!g->call.n_match && is_space(b))
            return true;
        if (!g->call.n_match)
            g->element_at = g->seen;
        if (b != CALL[g->call.n_match])
            return false;
        if (CALL[++g->call.n_match])
            return true;
        call_clear(&g->call);
        g->between = false;
        return true;
    }
    call_read(&g->call, b);
    if (g->call.at == AT_DONE) {
        g->n_done++;
        g->between = true;
        g->element_at = g->seen + 1;
    }
    return g->call.at != AT_BAD;
}

static bool step_run(struct gemma *g, const char *s, size_t n, bool final)
{
    for (; g->seen < n; g->seen++) {
        const char b = s[g->seen];
        g->n_close = b == CLOSE[g->n_close] ? g->n_close + 1 : (size_t)(b == CLOSE[0]);
        if (!CLOSE[g->n_close]) { /* closed later: all of this is thought */
            g->state = IN_THOUGHT;
            g->plain = g->seen;
            return true;
        }
        if (!run_read(g, b))
            return end_run(g);
    }
    if (!final)
        return false;
    if (g->between ? g->call.n_match != 0 : !call_may_end(&g->call))
        return end_run(g);
    drop(g, g->run_at);
    g->state = IN_TEXT;
    return true;
}

/* Reports what is certain of a call that is. */
static void emit_call(struct gemma *g)
{
    struct call *c = &g->call;
    if (!c->sure || !c->named || call_lost(c))
        return;
    if (!c->begun) {
        const struct text_view name = trimmed(&c->name);
        text_parser_call_begin(&g->p, name.at, name.n);
        c->begun = true;
    }
    if (c->at == AT_STRING)
        call_string(c, false);
    const size_t n = c->muted ? c->n_unmuted : c->json.n;
    text_parser_call_more(&g->p, c->json.at + c->n_sent, n - c->n_sent);
    c->n_sent = n;
}

/* A certain call breaks off.  It is reported as far as it came; other text may follow. */
static void break_call(struct gemma *g, bool final)
{
    if (g->call.begun)
        text_parser_call_end(&g->p, true);
    drop(g, g->seen);
    g->state = final ? IN_TEXT : IN_BAD_CALL;
}

/* The call is not as it should be.  False: it is not clear yet whether it may be one. */
static bool doubt_call(struct gemma *g, const char *s, size_t n, bool final)
{
    const enum text_match m = text_loose_gemma4_begins(s + strlen(CALL), n - strlen(CALL));
    if (m == TEXT_MATCH_PART && !final)
        return false;
    g->state = m == TEXT_MATCH_NONE ? IN_BAD_CALL : IN_LOOSE_CALL;
    g->seen = strlen(CALL);
    return true;
}

/* Reads the n bytes after CALL; whole: they are all of the call. */
static bool emit_loose_call(struct gemma *g, const char *s, size_t n, bool whole)
{
    struct str name, json;
    str_init(&name);
    str_init(&json);
    const enum text_loose st = text_loose_gemma4(s, n, whole, &name, &json);
    const bool cut = st == TEXT_LOOSE_PART && g->p.cut && name.n;
    if (!str_ok(&name) || !str_ok(&json)) {
        text_parser_nomem(&g->p);
    } else if (st == TEXT_LOOSE_DONE || cut) {
        text_parser_call_begin(&g->p, name.at, name.n);
        text_parser_call_more(&g->p, json.at, json.n);
        text_parser_call_end(&g->p, cut);
    }
    str_release(&name);
    str_release(&json);
    return st == TEXT_LOOSE_DONE || cut;
}

static bool step_loose_call(struct gemma *g, const char *s, size_t n, bool final)
{
    const size_t front = strlen(CALL);
    size_t end = text_seek((struct text_view){s, n}, g->seen, CALL_END);
    const size_t all = end < n ? end + strlen(CALL_END) : n;
    if (end == n && !final) {
        g->seen = n - front > strlen(CALL_END) ? n - strlen(CALL_END) : front;
        return false;
    }
    const bool whole = end < n || g->p.whole;
    for (size_t k = 1; end == n && k < strlen(CALL_END) && k < n - front; k++)
        if (memcmp(s + n - k, CALL_END, k) == 0)
            end = n - k; /* a beginning of CALL_END */
    g->state = IN_TEXT;
    if (emit_loose_call(g, s + front, end - front, whole))
        drop(g, all);
    else
        give_content(g, all);
    return true;
}

static bool step_call(struct gemma *g, const char *s, size_t n, bool final)
{
    struct call *c = &g->call;
    /* as if it had been certain from its beginning */
    if (final && g->p.cut && !c->sure && c->at != AT_BAD) {
        call_clear(c);
        c->sure = true;
        g->seen = strlen(CALL);
    }
    while (g->seen < n && c->at != AT_DONE && c->at != AT_BAD)
        call_read(c, s[g->seen++]);
    if (c->at == AT_DONE || (final && call_may_end(c))) {
        const struct text_view name = trimmed(&c->name);
        emit_call(g);
        drop(g, g->seen);
        g->state = IN_TEXT;
        if (call_lost(c))
            return true;
        if (c->begun)
            text_parser_call_end(&g->p, false);
        else
            text_parser_call(&g->p, name.at, name.n, &c->json);
        return true;
    }
    emit_call(g);
    if (c->at != AT_BAD && !final)
        return false;
    if (!c->sure)
        return doubt_call(g, s, n, final);
    if (c->begun || c->at != AT_BAD)
        break_call(g, final);
    else
        g->state = IN_BAD_CALL;
    return true;
}

static bool step_bad_call(struct gemma *g, const char *s, size_t n, bool final)
{
    size_t i = 0;
    for (; i < n; i++) {
        const char *lt = memchr(s + i, '<', n - i);
        i = lt ? (size_t)(lt - s) : n;
        if (i == n)
            break;
        const enum text_match m = text_match(s + i, n - i, CALL_END);
        if (m == TEXT_MATCH_ALL) {
            give_content(g, i + strlen(CALL_END));
            g->state = IN_TEXT;
            return true;
        }
        if (m == TEXT_MATCH_PART && !final)
            break;
    }
    give_content(g, i);
    return false;
}

static bool step(struct gemma *g, bool final)
{
    const char *s = g->p.held.at + g->p.from;
    const size_t n = g->p.held.n - g->p.from;
    if (!n)
        return false;
    switch (g->state) {
    case IN_START:
        return step_start(g, s, n, final);
    case IN_TEXT:
        return step_text(g, s, n, final);
    case IN_CHANNEL:
        return step_channel(g, s, n, final);
    case IN_THOUGHT:
        return step_thought(g, s, n, final);
    case IN_RUN:
        return step_run(g, s, n, final);
    case IN_CALL:
        return step_call(g, s, n, final);
    case IN_LOOSE_CALL:
        return step_loose_call(g, s, n, final);
    case IN_BAD_CALL:
        return step_bad_call(g, s, n, final);
    }
    return false;
}

static void gemma_read(struct text_parser *p, bool final)
{
    struct gemma *g = (struct gemma *)p;
    while (text_parser_ok(p) && str_ok(&p->held) && step(g, final))
        if (call_lost(&g->call))
            text_parser_nomem(p);
    if (call_lost(&g->call))
        text_parser_nomem(p);
}

static void gemma_release(struct text_parser *p)
{
    struct gemma *g = (struct gemma *)p;
    str_release(&g->call.name);
    str_release(&g->call.json);
    str_release(&g->call.word);
    str_release(&g->call.names.list);
}

static bool gemma_in_thought(const struct text_parser *p)
{
    const struct gemma *g = (const struct gemma *)p;
    return g->state == IN_START
               ? p->o.open_thought
               : g->state == IN_CHANNEL || g->state == IN_THOUGHT || g->state == IN_RUN;
}

static bool gemma_in_call(const struct text_parser *p, const char **rest, size_t *n)
{
    const struct gemma *g = (const struct gemma *)p;
    const size_t front = p->from + strlen(CALL);
    if (g->state == IN_CALL && !g->call.sure) {
        *rest = p->held.at + front;
        *n = p->held.n - front;
    }
    return g->state == IN_CALL;
}

/* What was read of it is read once more. */
static void gemma_trust_call(struct text_parser *p)
{
    struct gemma *g = (struct gemma *)p;
    if (g->call.sure)
        return;
    call_clear(&g->call);
    g->call.sure = true;
    g->seen = strlen(CALL);
}

struct text_parser *text_parser_gemma4(void)
{
    struct gemma *g = mem_zalloc(sizeof *g);
    if (!g)
        return NULL;
    g->p.read = gemma_read;
    g->p.release = gemma_release;
    g->p.in_thought = gemma_in_thought;
    g->p.in_call = gemma_in_call;
    g->p.trust_call = gemma_trust_call;
    str_init(&g->call.name);
    str_init(&g->call.json);
    str_init(&g->call.word);
    str_init(&g->call.names.list);
    return &g->p;
}
