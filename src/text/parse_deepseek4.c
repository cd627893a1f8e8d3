/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parse_deepseek4 - the output of DeepSeek V4: reasoning up to </think>, content, and one block of
 * calls <｜DSML｜tool_calls> ... </｜DSML｜tool_calls>.  A thought may also begin by itself, where
 * no content has come yet.  After a thought a </think> in content is dropped, unless it is quoted
 * or ends a <think> there.
 *
 * A block is read byte by byte while its text is held.  It counts from its first complete invoke
 * on; without one its tag is plain text.  A block that is certain is reported while it is read,
 * except for values that are not text; a parameter whose name was there before is left out. Calls
 * that are spelled otherwise are held to the end and read by parse_loose.c. Reasoning that is never
 * closed ends at a block that ends the output.
 */
#include "text/parse.h"

#include "text/parse_loose.h"
#include "text/template.h"
#include <string.h>

#define DSML          "｜DSML｜"
#define THINK         "<think>"
#define THINK_END     "</think>"
#define OPEN          "<" DSML
#define TAG           "<" DSML "tool_calls>"
#define TAG_END       "</" DSML "tool_calls>"
#define INVOKE        "<" DSML "invoke name=\""
#define INVOKE_END    "</" DSML "invoke>"
#define PARAMETER     "<" DSML "parameter name=\""
#define PARAMETER_END "</" DSML "parameter>"
#define FLAG_TRUE     " string=\"true\">"
#define FLAG_FALSE    " string=\"false\">"

/* Bytes that tags without an invoke may cost.  Hostile output could make each of its tags
 * read on to the end; after this limit tags are plain text. */
static const size_t WASTE = 8 << 20;

enum { DEPTH = 64 }; /* of a parameter's value */

enum block_at {
    AT_BETWEEN, /* white space, INVOKE or TAG_END */
    AT_NAME,
    AT_NAME_END, /* > */
    AT_INSIDE,   /* white space, PARAMETER or INVOKE_END */
    AT_KEY,
    AT_FLAG,
    AT_TEXT,    /* a value, string="true" */
    AT_JSON,    /* a value, string="false" */
    AT_INVOKED, /* a call is complete: call block_next() */
    AT_CLOSED,  /* after TAG_END */
    AT_BAD
};

/* Reads a block, from after TAG. */
struct block {
    enum block_at at;
    size_t n_match; /* bytes of PARAMETER_END that were seen in a value */
    struct str word, name, key, value, json;
    bool nomem; /* some of the block was lost */

    bool sure;         /* calls are reported while they are read */
    bool named, begun; /* the name is complete, and reported */
    bool muted;        /* the parameter at hand is left out */
    size_t n_sent;     /* of json */
    struct text_names names;
};

/* Empties s, whose failure is remembered. */
static void block_forget(struct block *b, struct str *s)
{
    b->nomem = b->nomem || !str_ok(s);
    str_clear(s);
}

static bool block_lost(const struct block *b)
{
    return b->nomem || !str_ok(&b->word) || !str_ok(&b->name) || !str_ok(&b->key) ||
           !str_ok(&b->value) || !str_ok(&b->json) || !str_ok(&b->names.list);
}

/* Ready for a call; whether the block is certain stays. */
static void block_clear(struct block *b)
{
    b->at = AT_BETWEEN;
    b->n_match = 0;
    b->named = b->begun = false;
    block_forget(b, &b->word);
}

static void block_begin(struct block *b, bool sure)
{
    block_clear(b);
    b->sure = sure;
}

static bool block_is_json(struct block *b, const char *s, size_t n, int depth)
{
    const struct json_limits limits = {.depth = depth};
    const ingle_status status = json_gate(s, n, &limits, NULL);
    b->nomem = b->nomem || status == INGLE_NOMEM;
    return status == INGLE_OK;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Adds c to the word, which must stay a beginning of one or other; complete, it leads to
 * one_at or other_at. */
static enum block_at block_word(struct block *b, char c, const char *one, enum block_at one_at,
                                const char *other, enum block_at other_at)
{
    str_addc(&b->word, c);
    const enum text_match is_one = text_match(b->word.at, b->word.n, one);
    const enum text_match is_other = text_match(b->word.at, b->word.n, other);
    if (!is_one && !is_other)
        return AT_BAD;
    if (is_one != TEXT_MATCH_ALL && is_other != TEXT_MATCH_ALL)
        return b->at;
    block_forget(b, &b->word);
    return is_one == TEXT_MATCH_ALL ? one_at : other_at;
}

/* A name in quotes goes to s. */
static enum block_at block_name(const struct block *b, struct str *s, char c, enum block_at next)
{
    if (c == '"')
        return next;
    str_addc(s, c);
    return c ? b->at : AT_BAD;
}

/* The name of a parameter, in front of its value. */
static void block_key(struct block *b)
{
    if (b->json.n > 1)
        str_adds(&b->json, ", ");
    str_add_json(&b->json, b->key.at, b->key.n);
    str_adds(&b->json, ": ");
}

/* Text begins at once, and what is read of it is certain. */
static void block_text_begin(struct block *b)
{
    if (b->muted)
        return;
    block_key(b);
    str_addc(&b->json, '"');
}

static void block_text(struct block *b, bool last)
{
    const size_t n =
        b->muted ? b->value.n : str_add_json_part(&b->json, b->value.at, b->value.n, last);
    if (!n)
        return;
    memmove(b->value.at, b->value.at + n, b->value.n - n);
    b->value.n -= n;
    b->value.at[b->value.n] = 0;
}

static void block_json(struct block *b)
{
    const char *at = b->value.at;
    size_t n = b->value.n;
    while (n && is_space(at[0]))
        at++, n--;
    while (n && is_space(at[n - 1]))
        n--;
    block_key(b);
    if (block_is_json(b, at, n, DEPTH))
        str_add(&b->json, at, n);
    else
        str_add_json(&b->json, b->value.at, b->value.n);
}

static void block_parameter(struct block *b)
{
    if (b->at == AT_TEXT)
        block_text(b, true);
    if (b->at == AT_TEXT && !b->muted)
        str_addc(&b->json, '"');
    else if (!b->muted)
        block_json(b);
    block_forget(b, &b->key);
    block_forget(b, &b->value);
}

static enum block_at block_value(struct block *b, char c)
{
    if (c == PARAMETER_END[b->n_match]) {
        if (PARAMETER_END[++b->n_match])
            return b->at;
        b->n_match = 0;
        block_parameter(b);
        return AT_INSIDE;
    }
    str_add(&b->value, PARAMETER_END, b->n_match);
    b->n_match = c == PARAMETER_END[0];
    if (!b->n_match)
        str_addc(&b->value, c);
    return b->at;
}

/* The arguments are complete.  The gate refuses a name that is repeated. */
static enum block_at block_invoked(struct block *b)
{
    str_addc(&b->json, '}');
    text_names_close(&b->names);
    return block_is_json(b, b->json.at, b->json.n, DEPTH + 1) ? AT_INVOKED : AT_BAD;
}

static void block_read(struct block *b, char c)
{
    switch (b->at) {
    case AT_BETWEEN:
        if (b->word.n || !is_space(c))
            b->at = block_word(b, c, INVOKE, AT_NAME, TAG_END, AT_CLOSED);
        if (b->at == AT_NAME) {
            block_forget(b, &b->name);
            block_forget(b, &b->key);
            block_forget(b, &b->value);
            block_forget(b, &b->json);
            block_forget(b, &b->names.list);
            b->names.depth = 0;
            text_names_open(&b->names);
            str_addc(&b->json, '{');
            b->n_sent = 0;
        }
        break;
    case AT_NAME:
        b->at = block_name(b, &b->name, c, AT_NAME_END);
        break;
    case AT_NAME_END:
        b->at = c == '>' && b->name.n ? AT_INSIDE : AT_BAD;
        b->named = b->at == AT_INSIDE;
        break;
    case AT_INSIDE:
        if (b->word.n || !is_space(c))
            b->at = block_word(b, c, PARAMETER, AT_KEY, INVOKE_END, AT_INVOKED);
        if (b->at == AT_INVOKED)
            b->at = block_invoked(b);
        break;
    case AT_KEY:
        b->at = block_name(b, &b->key, c, AT_FLAG);
        break;
    case AT_FLAG:
        b->at = block_word(b, c, FLAG_TRUE, AT_TEXT, FLAG_FALSE, AT_JSON);
        if (b->at == AT_TEXT || b->at == AT_JSON)
            b->muted = b->sure && !text_names_add(&b->names, b->key.at, b->key.n);
        if (b->at == AT_TEXT)
            block_text_begin(b);
        break;
    case AT_TEXT:
    case AT_JSON:
        b->at = block_value(b, c);
        break;
    case AT_INVOKED:
    case AT_CLOSED:
    case AT_BAD:
        break;
    }
}

enum state {
    IN_START,
    IN_FRONT, /* no content yet */
    IN_THOUGHT,
    IN_THOUGHT_BLOCK, /* held until it is clear whether it ends the output */
    IN_TEXT,
    IN_BLOCK,
    IN_TAIL,  /* after the last element of the block */
    IN_LOOSE, /* held to the end: calls that are spelled otherwise */
    IN_REST   /* content without markers */
};

struct deepseek {
    struct text_parser p;
    enum state state;
    struct block block;
    size_t tag_at;  /* IN_BLOCK, IN_THOUGHT_BLOCK, IN_LOOSE, opened: TAG or OPEN, from p.from */
    size_t seen;    /* there, and IN_TAIL: held bytes that were read, from p.from */
    size_t plain;   /* IN_THOUGHT: no block begins in this many held bytes */
    size_t n_think; /* IN_THOUGHT_BLOCK: bytes of THINK_END that were seen */
    bool called;    /* the block at hand has a complete invoke */
    bool opened;    /* IN_TEXT: OPEN is there, and it is not clear what follows it */
    bool sure;      /* ... but certain that it is TAG */
    bool follows;   /* IN_TEXT: nothing was given since the last block */
    size_t n_open;  /* <think> that content has and that is not closed */
    bool thought;   /* a thought has ended */
    size_t wasted;
};

static void drop(struct deepseek *d, size_t n)
{
    d->p.from += n;
    d->plain -= n < d->plain ? n : d->plain;
}

static void give(struct deepseek *d, size_t n)
{
    const char *at = d->p.held.at + d->p.from;
    if (d->state == IN_THOUGHT)
        text_parser_reasoning(&d->p, at, n);
    else
        text_parser_content(&d->p, at, n);
    d->follows = d->follows && !n;
    drop(d, n);
}

/* Newlines right before byte i that belong to a tag there. */
static size_t newlines(const char *s, size_t i)
{
    return i >= 2 && s[i - 1] == '\n' && s[i - 2] == '\n' ? 2 : 0;
}

/* Bytes right before byte i that belong to a tag there: between two blocks all white space. */
static size_t front_of(const struct deepseek *d, const char *s, size_t i)
{
    size_t k = 0;
    while (d->follows && k < i && is_space(s[k]))
        k++;
    return d->follows && k == i ? i : newlines(s, i);
}

/* Each step decides a beginning of the n > 0 held bytes at s, or, when it returns false,
 * needs more of them.  final: there are no more. */

/* After OPEN at i.  False: not clear yet. */
static bool step_open(struct deepseek *d, const char *s, size_t n, size_t i, bool final, bool *text)
{
    const size_t front = front_of(d, s, i), after = i + strlen(OPEN);
    const bool tag = text_match(s + i, n - i, TAG) != TEXT_MATCH_NONE;
    const enum text_match loose =
        tag ? TEXT_MATCH_PART : text_loose_deepseek4_begins(s + after, n - after);
    *text = loose == TEXT_MATCH_NONE || (loose == TEXT_MATCH_PART && final);
    if (*text) {
        d->sure = false;
        return true;
    }
    give(d, i - front);
    d->tag_at = front;
    d->opened = loose == TEXT_MATCH_PART;
    d->sure = d->sure && tag;
    if (loose == TEXT_MATCH_ALL)
        d->state = IN_LOOSE;
    return loose == TEXT_MATCH_ALL;
}

/* White space in front of the content, which a thought may follow. */
static bool step_front(struct deepseek *d, const char *s, size_t n, bool final)
{
    size_t i = 0;
    while (i < n && is_space(s[i]))
        i++;
    const enum text_match open = text_match(s + i, n - i, THINK);
    const enum text_match close = text_match(s + i, n - i, THINK_END);
    if (open == TEXT_MATCH_ALL || close == TEXT_MATCH_ALL) {
        drop(d, i + strlen(open == TEXT_MATCH_ALL ? THINK : THINK_END));
        d->plain = 0;
        d->thought |= close == TEXT_MATCH_ALL;
        if (open == TEXT_MATCH_ALL && d->p.reasoning.n)
            text_parser_reasoning(&d->p, "\n", 1);
        d->state = open == TEXT_MATCH_ALL ? IN_THOUGHT : IN_FRONT;
        return true;
    }
    if (!final && (open == TEXT_MATCH_PART || close == TEXT_MATCH_PART))
        return false;
    d->state = IN_TEXT;
    return true;
}

/* A THINK_END at i of the content belongs to it: no thought has ended, it is quoted, or
 * it ends a <think> there. */
static bool end_is_text(struct deepseek *d, const char *s, size_t i)
{
    const struct str *c = &d->p.content;
    if (d->state == IN_THOUGHT)
        return false;
    if (!d->thought)
        return true;
    const char before = i ? s[i - 1] : c->n ? c->at[c->n - 1] : 0;
    if (before == '`' || before == '"' || before == '\'')
        return true;
    return d->n_open && d->n_open--;
}

/* Text or reasoning up to a tag or the end of the reasoning. */
static bool step_text(struct deepseek *d, const char *s, size_t n, bool final)
{
    const bool thought = d->state == IN_THOUGHT;
    const bool tools = d->p.o.tools_enabled && d->wasted < WASTE;
    const bool sure = d->sure;
    size_t i = 0;
    d->opened = false;
    for (; i < n; i++) {
        const char *lt = memchr(s + i, '<', n - i);
        i = lt ? (size_t)(lt - s) : n;
        if (i == n)
            break;
        const enum text_match end = text_match(s + i, n - i, THINK_END);
        const enum text_match begin = thought ? TEXT_MATCH_NONE : text_match(s + i, n - i, THINK);
        const enum text_match tag =
            tools && i >= d->plain ? text_match(s + i, n - i, TAG) : TEXT_MATCH_NONE;
        d->n_open += begin == TEXT_MATCH_ALL;
        if (end == TEXT_MATCH_ALL && !end_is_text(d, s, i)) {
            give(d, i);
            drop(d, strlen(THINK_END));
            d->thought = true;
            d->state = d->p.content.n || d->p.n_calls ? IN_TEXT : IN_FRONT;
            return true;
        }
        if (tag == TEXT_MATCH_ALL) {
            const size_t front = front_of(d, s, i);
            give(d, i - front);
            block_begin(&d->block, sure);
            d->sure = false;
            d->tag_at = front;
            d->seen = front + strlen(TAG);
            d->n_think = 0;
            d->called = false;
            d->state = thought ? IN_THOUGHT_BLOCK : IN_BLOCK;
            return true;
        }
        bool text = false;
        if (tools && !thought && !(d->p.cut && tag) &&
            text_match(s + i, n - i, OPEN) == TEXT_MATCH_ALL) {
            const bool clear = step_open(d, s, n, i, final, &text);
            if (!text)
                return clear;
            if (d->p.cut &&
                text_loose_deepseek4_begins(s + i + strlen(OPEN), n - i - strlen(OPEN))) {
                give(d, i - front_of(d, s, i)); /* tokens ran out where it began */
                drop(d, d->p.held.n - d->p.from);
                return false;
            }
        }
        if (d->p.cut && !thought && tag && n - i > 1) { /* tokens ran out inside the tag */
            give(d, i - front_of(d, s, i));
            drop(d, d->p.held.n - d->p.from);
            return false;
        }
        if (!final && (end == TEXT_MATCH_PART || begin == TEXT_MATCH_PART || tag)) {
            give(d, i - (tag ? front_of(d, s, i) : 0));
            return false;
        }
    }
    size_t hold = 0; /* newlines at the end may belong to a tag */
    while (!final && tools && hold < 2 && hold < n && s[n - hold - 1] == '\n')
        hold++;
    give(d, n - hold);
    return false;
}

/* The tag at hand begins no block as it should be. */
static bool not_a_block(struct deepseek *d, const char *s, size_t n, bool final)
{
    if (d->state == IN_THOUGHT_BLOCK) {
        d->wasted += d->seen - d->tag_at;
        d->state = IN_THOUGHT;
        d->plain = d->tag_at + strlen(TAG);
        return true;
    }
    const size_t after = d->tag_at + strlen(OPEN);
    const enum text_match m = text_loose_deepseek4_begins(s + after, n - after);
    if (m == TEXT_MATCH_PART && !final)
        return false;
    d->wasted += d->seen - d->tag_at;
    d->state = m == TEXT_MATCH_NONE ? IN_TEXT : IN_LOOSE;
    if (m == TEXT_MATCH_NONE)
        give(d, d->tag_at + strlen(TAG));
    return true;
}

/* A block in reasoning counts if nothing but white space follows its last element. */
static bool step_thought_block(struct deepseek *d, const char *s, size_t n, bool final)
{
    struct block *b = &d->block;
    for (; d->seen < n; d->seen++) {
        const char c = s[d->seen];
        d->n_think = c == THINK_END[d->n_think] ? d->n_think + 1 : (size_t)(c == THINK_END[0]);
        if (!THINK_END[d->n_think]) { /* all of this is reasoning */
            d->state = IN_THOUGHT;
            d->plain = d->seen;
            return true;
        }
        if (b->at == AT_CLOSED && !is_space(c))
            return not_a_block(d, s, n, final);
        block_read(b, c);
        if (b->at == AT_INVOKED) {
            d->called = true;
            block_clear(b);
        }
        if (b->at == AT_BAD || (b->at == AT_CLOSED && !d->called))
            return not_a_block(d, s, n, final);
    }
    if (!final)
        return false;
    if (!d->called || (b->at != AT_CLOSED && (b->at != AT_BETWEEN || b->word.n)))
        return not_a_block(d, s, n, final);
    d->state = IN_TEXT; /* where it is read once more */
    d->plain = 0;
    return true;
}

/* Forgets what was read of the block, after which the tail begins. */
static void element_read(struct deepseek *d)
{
    drop(d, d->seen);
    d->seen = 0;
}

/* Reports what is certain of a call that is. */
static void emit_call(struct deepseek *d)
{
    struct block *b = &d->block;
    if (!b->sure || !b->named || block_lost(b))
        return;
    if (!b->begun)
        text_parser_call_begin(&d->p, b->name.at, b->name.n);
    b->begun = true;
    if (b->at == AT_TEXT)
        block_text(b, false);
    text_parser_call_more(&d->p, b->json.at + b->n_sent, b->json.n - b->n_sent);
    b->n_sent = b->json.n;
}

/* Reads what is held of the block once more, as a certain one. */
static void trust_block(struct deepseek *d)
{
    block_begin(&d->block, true);
    d->seen = d->called ? 0 : d->tag_at + strlen(TAG);
}

static void end_invoke(struct deepseek *d)
{
    struct block *b = &d->block;
    element_read(d);
    d->called = true;
    if (!block_lost(b) && b->begun)
        text_parser_call_end(&d->p, false);
    else if (!block_lost(b))
        text_parser_call(&d->p, b->name.at, b->name.n, &b->json);
    block_clear(b);
}

/* A certain block breaks off.  Its last call is reported as far as it came. */
static bool break_block(struct deepseek *d)
{
    if (d->block.begun)
        text_parser_call_end(&d->p, true);
    element_read(d);
    d->state = IN_REST;
    return true;
}

static bool step_block(struct deepseek *d, const char *s, size_t n, bool final)
{
    struct block *b = &d->block;
    if (final && d->p.cut && !b->sure && b->at != AT_BAD)
        trust_block(d);
    while (d->seen < n && b->at != AT_INVOKED && b->at != AT_CLOSED && b->at != AT_BAD)
        block_read(b, s[d->seen++]);
    emit_call(d);
    if (b->at == AT_INVOKED) {
        end_invoke(d);
        return true;
    }
    if (b->at != AT_CLOSED && b->at != AT_BAD && !final)
        return false;
    if (b->sure && (b->begun || (b->at != AT_BAD && b->at != AT_CLOSED)))
        return break_block(d);
    if (!d->called)
        return not_a_block(d, s, n, final);
    if (b->at == AT_CLOSED)
        element_read(d);
    d->seen = 0;
    d->state = IN_TAIL;
    return true;
}

/* White space and a beginning of TAG_END vanish at the end of the output. */
static bool step_tail(struct deepseek *d, const char *s, size_t n, bool final)
{
    while (d->seen < n && is_space(s[d->seen]))
        d->seen++;
    const bool more =
        d->seen < n && text_match(s + d->seen, n - d->seen, TAG_END) != TEXT_MATCH_PART;
    if (more)
        d->state = IN_TEXT; /* perhaps another block */
    d->follows = more;
    if (!more && final)
        drop(d, n);
    return more;
}

static bool step_loose(struct deepseek *d, const char *s, size_t n, bool final)
{
    if (!final)
        return false;
    d->state = IN_REST;
    if (text_loose_deepseek4(&d->p, s + d->tag_at, n - d->tag_at, d->p.whole))
        drop(d, n);
    return true;
}

static bool step(struct deepseek *d, bool final)
{
    const char *s = d->p.held.at + d->p.from;
    const size_t n = d->p.held.n - d->p.from;
    if (!n)
        return false;
    switch (d->state) {
    case IN_START:
        d->state = d->p.o.open_thought ? IN_THOUGHT : IN_FRONT;
        return true;
    case IN_FRONT:
        return step_front(d, s, n, final);
    case IN_THOUGHT:
    case IN_TEXT:
        return step_text(d, s, n, final);
    case IN_THOUGHT_BLOCK:
        return step_thought_block(d, s, n, final);
    case IN_BLOCK:
        return step_block(d, s, n, final);
    case IN_TAIL:
        return step_tail(d, s, n, final);
    case IN_LOOSE:
        return step_loose(d, s, n, final);
    case IN_REST:
        give(d, n);
        return false;
    }
    return false;
}

static void deepseek_read(struct text_parser *p, bool final)
{
    struct deepseek *d = (struct deepseek *)p;
    while (text_parser_ok(p) && str_ok(&p->held) && step(d, final))
        if (block_lost(&d->block))
            text_parser_nomem(p);
    if (block_lost(&d->block))
        text_parser_nomem(p);
}

static void deepseek_release(struct text_parser *p)
{
    struct block *b = &((struct deepseek *)p)->block;
    str_release(&b->word);
    str_release(&b->name);
    str_release(&b->key);
    str_release(&b->value);
    str_release(&b->json);
    str_release(&b->names.list);
}

static bool deepseek_in_thought(const struct text_parser *p)
{
    const struct deepseek *d = (const struct deepseek *)p;
    return d->state == IN_START ? p->o.open_thought
                                : d->state == IN_THOUGHT || d->state == IN_THOUGHT_BLOCK;
}

static bool deepseek_in_call(const struct text_parser *p, const char **rest, size_t *n)
{
    const struct deepseek *d = (const struct deepseek *)p;
    const size_t front = p->from + d->tag_at + strlen(OPEN);
    const bool opened = d->state == IN_TEXT && d->opened;
    if ((opened && !d->sure) || (d->state == IN_BLOCK && !d->called && !d->block.sure)) {
        *rest = p->held.at + front;
        *n = p->held.n - front;
    }
    return opened || d->state == IN_BLOCK;
}

static void deepseek_trust_call(struct text_parser *p)
{
    struct deepseek *d = (struct deepseek *)p;
    if (d->state != IN_BLOCK)
        d->sure = true;
    else if (!d->block.sure)
        trust_block(d);
}

struct text_parser *text_parser_deepseek4(void)
{
    struct deepseek *d = mem_zalloc(sizeof *d);
    if (!d)
        return NULL;
    d->p.read = deepseek_read;
    d->p.release = deepseek_release;
    d->p.in_thought = deepseek_in_thought;
    d->p.in_call = deepseek_in_call;
    d->p.trust_call = deepseek_trust_call;
    str_init(&d->block.word);
    str_init(&d->block.name);
    str_init(&d->block.key);
    str_init(&d->block.value);
    str_init(&d->block.json);
    str_init(&d->block.names.list);
    return &d->p;
}
