/* SPDX-License-Identifier: Apache-2.0 */
#include "text/parse_loose.h"

#include "text/template.h"
#include <string.h>

#define QUOTE "<|\"|>"
#define FENCE "```"

/* Bounds of work: names of one object, what may stand in front of a call, the length of a tag. */
enum {
    DEPTH = 32,
    MOST_NAME = 256,
    MOST_NAMES_BYTES = 16 << 10,
    MOST_FRONT = 512,
    MOST_TAG = 4096
};

/* ---- values ---- */

struct reading {
    const char *s;
    size_t n, i;
    bool whole;
    struct str *out; /* JSON */
    int depth;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

static void skip_space(struct reading *r)
{
    while (r->i < r->n && is_space(r->s[r->i]))
        r->i++;
}

static bool skip(struct reading *r, const char *word)
{
    if (text_match(r->s + r->i, r->n - r->i, word) != TEXT_MATCH_ALL)
        return false;
    r->i += strlen(word);
    return true;
}

static bool is_json(const char *s, size_t n)
{
    const struct json_limits limits = {.depth = DEPTH};
    return json_gate(s, n, &limits, NULL) == INGLE_OK;
}

/* Raw text up to the next QUOTE. */
static enum text_loose read_raw(struct reading *r)
{
    const struct text_view v = {r->s, r->n};
    const size_t end = text_seek(v, r->i, QUOTE);
    str_addc(r->out, '"');
    (void)str_add_json_part(r->out, r->s + r->i, end - r->i, end < r->n);
    r->i = end;
    if (end == r->n)
        return TEXT_LOOSE_PART;
    r->i += strlen(QUOTE);
    str_addc(r->out, '"');
    return TEXT_LOOSE_DONE;
}

/* After a backslash. */
static void add_escape(struct reading *r)
{
    const char c = r->s[r->i];
    size_t digits = 0;
    while (c == 'u' && digits < 4 && r->n - r->i > digits + 1 &&
           str_hex_value(r->s[r->i + 1 + digits]) >= 0)
        digits++;
    if (c == '\'') {
        str_addc(r->out, c);
    } else if (digits == 4) {
        str_addc(r->out, '\\');
        str_add(r->out, r->s + r->i, 5);
        r->i += 4;
    } else {
        if (!strchr("\"\\/bfnrt", c) || !c)
            str_adds(r->out, "\\\\");
        else
            str_addc(r->out, '\\');
        str_addc(r->out, c);
    }
    r->i++;
}

/* A string in quotes of JSON or Python, from after the first one. */
static enum text_loose read_quoted(struct reading *r, char quote)
{
    str_addc(r->out, '"');
    while (r->i < r->n) {
        const char c = r->s[r->i];
        if (c == quote) {
            r->i++;
            str_addc(r->out, '"');
            return TEXT_LOOSE_DONE;
        }
        if (c == '\\' && r->i + 1 < r->n) {
            r->i++;
            add_escape(r);
        } else if (c == '\\') {
            break;
        } else {
            size_t end = r->i + 1;
            while (end < r->n && r->s[end] != quote && r->s[end] != '\\')
                end++;
            const size_t took = str_add_json_part(r->out, r->s + r->i, end - r->i, end < r->n);
            r->i = end;
            if (!took)
                break;
        }
    }
    return TEXT_LOOSE_PART;
}

/* true, null, a number; any other word is a string without its quotes. */
static enum text_loose read_word(struct reading *r)
{
    static const char *const same[][2] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"}, {"nil", "null"}};
    const size_t from = r->i;
    while (r->i < r->n && !strchr(",}]\n", r->s[r->i]) && r->s[r->i])
        r->i++;
    if (r->i == r->n && !r->whole)
        return TEXT_LOOSE_PART;
    struct text_view v = text_trim((struct text_view){r->s + from, r->i - from});
    if (!v.n || memchr(v.at, '"', v.n) || memchr(v.at, '<', v.n) || memchr(v.at, '{', v.n) ||
        memchr(v.at, '[', v.n))
        return TEXT_LOOSE_BAD;
    for (size_t k = 0; k < sizeof same / sizeof *same; k++)
        if (text_is(v, same[k][0]))
            v = (struct text_view){same[k][1], strlen(same[k][1])};
    if (is_json(v.at, v.n))
        str_add(r->out, v.at, v.n);
    else
        str_add_json(r->out, v.at, v.n);
    return TEXT_LOOSE_DONE;
}

static enum text_loose read_value(struct reading *r);

static enum text_loose read_key(struct reading *r)
{
    enum text_loose st = TEXT_LOOSE_DONE;
    if (skip(r, QUOTE)) {
        st = read_raw(r);
    } else if (r->s[r->i] == '"' || r->s[r->i] == '\'') {
        r->i++;
        st = read_quoted(r, r->s[r->i - 1]);
    } else {
        const size_t from = r->i;
        while (r->i < r->n && !strchr(":{}[],\n\"<", r->s[r->i]) && r->s[r->i])
            r->i++;
        const struct text_view v = text_trim((struct text_view){r->s + from, r->i - from});
        if (r->i == r->n)
            return TEXT_LOOSE_PART;
        if (!v.n)
            return TEXT_LOOSE_BAD;
        str_add_json(r->out, v.at, v.n);
    }
    if (st != TEXT_LOOSE_DONE)
        return st;
    skip_space(r);
    if (r->i == r->n)
        return TEXT_LOOSE_PART;
    return skip(r, ":") ? TEXT_LOOSE_DONE : TEXT_LOOSE_BAD;
}

/* A member; of a name that was there before nothing is left. */
static enum text_loose read_member(struct reading *r, struct text_names *names, bool first)
{
    struct str key, *out = r->out;
    str_init(&key);
    r->out = &key;
    enum text_loose st = read_key(r);
    r->out = out;
    const bool known = st == TEXT_LOOSE_DONE && !text_names_add(names, key.at, key.n);
    struct str scratch;
    str_init(&scratch);
    if (st == TEXT_LOOSE_DONE) {
        r->out = known ? &scratch : out;
        str_adds(r->out, first ? "" : ", ");
        str_add(r->out, key.at, key.n);
        str_adds(r->out, ": ");
        st = read_value(r);
        r->out = out;
    }
    out->failed = out->failed || !str_ok(&key) || !str_ok(&scratch);
    str_release(&scratch);
    str_release(&key);
    return st;
}

/* After a value.  DONE: the container ends here; BAD: neither that nor a comma. */
static enum text_loose read_next(struct reading *r, char close, bool *more)
{
    skip_space(r);
    *more = false;
    if (r->i == r->n) {
        if (r->whole)
            str_addc(r->out, close);
        return r->whole ? TEXT_LOOSE_DONE : TEXT_LOOSE_PART;
    }
    if (r->s[r->i] == ',') {
        r->i++;
        *more = true;
        return TEXT_LOOSE_DONE;
    }
    if (r->s[r->i] != close)
        return TEXT_LOOSE_BAD;
    r->i++;
    str_addc(r->out, close);
    return TEXT_LOOSE_DONE;
}

/* After its opening bracket. */
static enum text_loose read_container(struct reading *r, bool map)
{
    const char close = map ? '}' : ']';
    struct text_names names = {0};
    enum text_loose st = TEXT_LOOSE_DONE;
    bool more = true;
    str_init(&names.list);
    text_names_open(&names);
    str_addc(r->out, map ? '{' : '[');
    const size_t begin = r->out->n;
    for (bool any = false; st == TEXT_LOOSE_DONE && more; any = true) {
        skip_space(r);
        if (r->i < r->n && r->s[r->i] == close) { /* none, or a comma too many */
            st = read_next(r, close, &more);
            break;
        }
        if (r->i == r->n) {
            st = r->whole && any ? read_next(r, close, &more) : TEXT_LOOSE_PART;
            break;
        }
        if (!map && r->out->n > begin)
            str_adds(r->out, ", ");
        if (names.list.n > MOST_NAMES_BYTES) {
            st = TEXT_LOOSE_BAD;
            break;
        }
        st = map ? read_member(r, &names, r->out->n == begin) : read_value(r);
        if (st == TEXT_LOOSE_DONE)
            st = read_next(r, close, &more);
    }
    r->out->failed = r->out->failed || !str_ok(&names.list);
    str_release(&names.list);
    return st;
}

static enum text_loose read_value(struct reading *r)
{
    skip_space(r);
    if (r->i == r->n)
        return TEXT_LOOSE_PART;
    const char c = r->s[r->i];
    if (skip(r, QUOTE))
        return read_raw(r);
    if (c == '"' || c == '\'' || c == '{' || c == '[')
        r->i++;
    if (c == '"' || c == '\'')
        return read_quoted(r, c);
    if (c != '{' && c != '[')
        return read_word(r);
    if (++r->depth > DEPTH)
        return TEXT_LOOSE_BAD;
    const enum text_loose st = read_container(r, c == '{');
    r->depth--;
    return st;
}

/* ---- an object with all of it ---- */

static void skip_fence(struct reading *r)
{
    skip_space(r);
    if (!skip(r, FENCE))
        return;
    while (r->i < r->n && is_name(r->s[r->i]))
        r->i++;
    skip_space(r);
}

/* Nothing but closers and white space is left. */
static bool is_complete(struct reading *r)
{
    while (r->i < r->n && (is_space(r->s[r->i]) || strchr("}])`;", r->s[r->i])) && r->s[r->i])
        r->i++;
    return r->i == r->n;
}

static enum text_loose read_object(struct reading *r)
{
    skip_fence(r);
    if (r->i == r->n)
        return TEXT_LOOSE_PART;
    if (r->s[r->i] != '{')
        return TEXT_LOOSE_BAD;
    const enum text_loose st = read_value(r);
    if (st != TEXT_LOOSE_DONE)
        return st;
    return is_complete(r) && str_ok(r->out) && is_json(r->out->at, r->out->n) ? st : TEXT_LOOSE_BAD;
}

enum text_loose text_loose_object(const char *s, size_t n, bool whole, struct str *json)
{
    struct reading r = {.s = s, .n = n, .whole = whole, .out = json};
    return read_object(&r);
}

static struct json_object *first_of(struct json_object *o, const char *const *key, size_t n)
{
    struct json_object *v = NULL;
    for (size_t i = 0; i < n && !v; i++)
        v = text_get(o, key[i]);
    return v;
}

/* {"name": NAME, "arguments": {...}}, also below "function". */
static bool name_call(const struct str *object, struct str *name, struct str *json)
{
    static const char *const names[] = {"name", "tool", "tool_name"};
    static const char *const arguments[] = {"arguments", "parameters", "args", "input"};
    struct json_object *o = NULL, *inner = NULL;
    bool ok = json_parse(object->at, object->n, NULL, &o, NULL) == INGLE_OK;
    struct json_object *call = text_get(o, "function");
    call = json_object_is_type(call, json_type_object) ? call : o;
    struct json_object *v = first_of(call, names, sizeof names / sizeof *names);
    struct json_object *a = first_of(call, arguments, sizeof arguments / sizeof *arguments);
    ok = ok && json_object_is_type(v, json_type_string) && json_object_get_string_len(v);
    if (ok && json_object_is_type(a, json_type_string) &&
        json_parse(json_object_get_string(a), (size_t)json_object_get_string_len(a), NULL, &inner,
                   NULL) == INGLE_OK)
        a = inner;
    ok = ok && (!a || json_object_is_type(a, json_type_object));
    if (ok) {
        str_adds(name, json_object_get_string(v));
        const char *text = a ? json_object_to_json_string_ext(a, JSON_C_TO_STRING_PLAIN |
                                                                     JSON_C_TO_STRING_NOSLASHESCAPE)
                             : "{}";
        json->failed = json->failed || !text;
        str_adds(json, text ? text : "");
    }
    json_object_put(inner);
    json_object_put(o);
    return ok;
}

static enum text_loose read_named(const char *s, size_t n, bool whole, struct str *name,
                                  struct str *json)
{
    struct str object;
    str_init(&object);
    enum text_loose st = text_loose_object(s, n, whole, &object);
    if (st == TEXT_LOOSE_DONE && !name_call(&object, name, json))
        st = TEXT_LOOSE_BAD;
    json->failed = json->failed || !str_ok(&object);
    str_release(&object);
    return st;
}

/* NAME, then its arguments as an object, perhaps in parentheses or after a line feed and a
 * fence. */
static enum text_loose read_named_outside(struct reading *r, struct str *name)
{
    const size_t from = r->i;
    while (r->i < r->n && (is_name(r->s[r->i]) || r->s[r->i] == ':' || r->s[r->i] == '/'))
        r->i++;
    const size_t n = r->i - from;
    skip_space(r);
    if (r->i == r->n && n)
        return TEXT_LOOSE_PART;
    if (!n || n > MOST_NAME)
        return TEXT_LOOSE_BAD;
    (void)skip(r, "(");
    skip_fence(r);
    if (text_match(r->s + r->i, r->n - r->i, FENCE) == TEXT_MATCH_PART && !r->whole)
        return TEXT_LOOSE_PART;
    if (r->i < r->n && r->s[r->i] != '{')
        return TEXT_LOOSE_BAD;
    str_add(name, r->s + from, n);
    return read_object(r);
}

/* ---- Gemma 4 ---- */

enum text_loose text_loose_gemma4(const char *s, size_t n, bool whole, struct str *name,
                                  struct str *json)
{
    struct reading r = {.s = s, .n = n, .whole = whole, .out = json};
    skip_fence(&r);
    if (r.i < n && s[r.i] == '{')
        return read_named(s + r.i, n - r.i, whole, name, json);
    if (skip(&r, "call:"))
        skip_space(&r);
    return read_named_outside(&r, name);
}

static enum text_match gemma4_begins(const char *s, size_t n)
{
    struct reading r = {.s = s, .n = n};
    skip_space(&r);
    if (r.i == n)
        return TEXT_MATCH_PART;
    if (s[r.i] == '{' || s[r.i] == '`')
        return TEXT_MATCH_ALL;
    const enum text_match m = text_match(s + r.i, n - r.i, "call:");
    if (m)
        return m;
    while (r.i < n && is_name(s[r.i]))
        r.i++;
    return r.i == n ? TEXT_MATCH_PART : s[r.i] == '{' ? TEXT_MATCH_ALL : TEXT_MATCH_NONE;
}

enum text_match text_loose_gemma4_begins(const char *s, size_t n)
{
    const enum text_match m = gemma4_begins(s, n);
    return m == TEXT_MATCH_PART && n > MOST_FRONT ? TEXT_MATCH_NONE : m;
}

/* ---- DeepSeek V4 ---- */

#define DSML  "｜DSML｜"
#define OPEN  "<" DSML
#define CLOSE "</" DSML

enum { MOST_ATTRIBUTES = 8, MOST_WORD = 24 };

struct tag {
    bool close;
    char word[MOST_WORD]; /* lower case letters alone: "toolcalls" */
    struct text_view name, string;
};

static bool is_block(const char *word)
{
    static const char *const known[] = {"toolcalls", "toolcall", "functioncalls", "functioncall"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(word, known[i]) == 0)
            return true;
    return false;
}

/* Letters of a tag's name; "_" and "-" do not count. */
static bool read_tag_word(struct reading *r, char word[MOST_WORD])
{
    size_t k = 0;
    while (r->i < r->n && (is_name(r->s[r->i]) && r->s[r->i] != '.')) {
        const char c = (char)(r->s[r->i] | 32);
        if (c >= 'a' && c <= 'z' && k + 1 < MOST_WORD)
            word[k++] = c;
        else if (r->s[r->i] != '_' && r->s[r->i] != '-')
            return false;
        r->i++;
    }
    word[k] = 0;
    return k > 0;
}

static bool read_attribute(struct reading *r, struct tag *t)
{
    const size_t from = r->i;
    while (r->i < r->n && is_name(r->s[r->i]))
        r->i++;
    const struct text_view key = {r->s + from, r->i - from};
    skip_space(r);
    if (!key.n || !skip(r, "="))
        return false;
    skip_space(r);
    struct text_view v = {r->s + r->i, 0};
    if (r->i < r->n && (*v.at == '"' || *v.at == '\'')) {
        const size_t most = r->n - r->i - 1 < MOST_TAG ? r->n - r->i - 1 : MOST_TAG;
        const char *end = memchr(v.at + 1, *v.at, most);
        if (!end)
            return false;
        v = (struct text_view){v.at + 1, (size_t)(end - v.at) - 1};
        r->i += v.n + 2;
    } else {
        while (r->i < r->n && !is_space(r->s[r->i]) && r->s[r->i] != '>')
            r->i++, v.n++;
    }
    if (text_is(key, "name"))
        t->name = v;
    else if (text_is(key, "string"))
        t->string = v;
    return true;
}

/* A tag from its beginning to after its >. */
static enum text_loose read_tag(struct reading *r, struct tag *t)
{
    *t = (struct tag){0};
    t->close = skip(r, CLOSE);
    if (!t->close && !skip(r, OPEN))
        return TEXT_LOOSE_BAD;
    if (!read_tag_word(r, t->word))
        return r->i == r->n ? TEXT_LOOSE_PART : TEXT_LOOSE_BAD;
    for (int k = 0; k <= MOST_ATTRIBUTES; k++) {
        skip_space(r);
        if (r->i == r->n)
            return TEXT_LOOSE_PART;
        if (skip(r, ">"))
            return TEXT_LOOSE_DONE;
        if (!read_attribute(r, t)) {
            const size_t left = r->n - r->i;
            return left > MOST_TAG || memchr(r->s + r->i, '>', left) ? TEXT_LOOSE_BAD
                                                                     : TEXT_LOOSE_PART;
        }
    }
    return TEXT_LOOSE_BAD;
}

/* Where the next tag begins, or n. */
static size_t next_tag(const struct reading *r)
{
    for (size_t i = r->i; i < r->n; i++) {
        const char *lt = memchr(r->s + i, '<', r->n - i);
        if (!lt)
            break;
        i = (size_t)(lt - r->s);
        if (text_match(lt, r->n - i, OPEN) == TEXT_MATCH_ALL ||
            text_match(lt, r->n - i, CLOSE) == TEXT_MATCH_ALL)
            return i;
    }
    return r->n;
}

static void add_argument(struct str *json, const struct tag *t, struct text_view v)
{
    struct text_view inner = text_trim(v);
    str_adds(json, json->n > 1 ? ", " : "");
    str_add_json(json, t->name.at, t->name.n);
    str_adds(json, ": ");
    if (!text_is(t->string, "true") && is_json(inner.at, inner.n))
        str_add(json, inner.at, inner.n);
    else
        str_add_json(json, v.at, v.n);
}

/* After the tag of a parameter: its value, and its closing tag where there is one. */
static enum text_loose read_parameter(struct reading *r, const struct tag *t,
                                      struct text_names *names, struct str *json)
{
    const size_t from = r->i, end = next_tag(r);
    struct text_view v = {r->s + from, end - from};
    struct tag closing;
    if (end == r->n)
        return TEXT_LOOSE_PART;
    r->i = end;
    struct reading ahead = *r;
    if (read_tag(&ahead, &closing) == TEXT_LOOSE_DONE && closing.close &&
        strcmp(closing.word, "parameter") == 0)
        r->i = ahead.i;
    else
        v = text_trim(v); /* line feeds in front of what comes instead */
    if (!t->name.n || memchr(t->name.at, 0, t->name.n)) /* JSON readers cut a name at a zero */
        return TEXT_LOOSE_BAD;
    if (text_names_add(names, t->name.at, t->name.n))
        add_argument(json, t, v);
    return TEXT_LOOSE_DONE;
}

/* After the tag of an invoke, to after the one that closes it.  Without parameters an object may
 * stand there. */
static enum text_loose read_invoke(struct reading *r, struct str *json)
{
    struct text_names names = {0};
    enum text_loose st = TEXT_LOOSE_DONE;
    bool more = true;
    str_init(&names.list);
    text_names_open(&names);
    str_addc(json, '{');
    while (st == TEXT_LOOSE_DONE && more) {
        struct tag t;
        skip_space(r);
        const size_t at = r->i, end = next_tag(r);
        if (at < r->n && (r->s[at] == '{' || r->s[at] == '`') && json->n == 1) {
            str_clear(json);
            st = text_loose_object(r->s + at, end - at, r->whole || end < r->n, json);
            r->i = end;
            continue;
        }
        if (names.list.n > MOST_NAMES_BYTES) {
            st = TEXT_LOOSE_BAD;
            break;
        }
        if (at == r->n) {
            st = r->whole ? TEXT_LOOSE_DONE : TEXT_LOOSE_PART;
            break;
        }
        st = read_tag(r, &t);
        if (st != TEXT_LOOSE_DONE)
            break;
        if (!t.close && strcmp(t.word, "parameter") == 0) {
            st = read_parameter(r, &t, &names, json);
        } else {
            more = false;
            /* another's: this one is over */
            r->i = t.close && strcmp(t.word, "invoke") == 0 ? r->i : at;
        }
    }
    if (st == TEXT_LOOSE_DONE &&
        (!json->n || json->at[json->n - 1] != '}' || !is_json(json->at, json->n)))
        str_addc(json, '}');
    if (st == TEXT_LOOSE_DONE && str_ok(json) && !is_json(json->at, json->n))
        st = TEXT_LOOSE_BAD;
    json->failed = json->failed || !str_ok(&names.list);
    str_release(&names.list);
    return st;
}

struct loose_dsml {
    struct text_parser *p;
    struct reading r;
    struct str name, json, rest; /* rest: text that is no call */
    size_t n_calls;
    bool ran_out; /* the tokens did, in the middle of something */
};

static void emit_call(struct loose_dsml *d, bool cut)
{
    d->n_calls++;
    if (!str_ok(&d->name) || !str_ok(&d->json)) {
        text_parser_nomem(d->p);
        return;
    }
    text_parser_call_begin(d->p, d->name.at, d->name.n);
    text_parser_call_more(d->p, d->json.at, d->json.n);
    text_parser_call_end(d->p, cut);
}

/* A call without tags of its own, after the tag of a block. */
static enum text_loose read_bare(struct loose_dsml *d)
{
    const size_t end = next_tag(&d->r);
    struct reading r = {
        .s = d->r.s, .n = end, .i = d->r.i, .whole = d->r.whole || end < d->r.n, .out = &d->json};
    enum text_loose st;
    skip_fence(&r);
    if (r.i < end && r.s[r.i] == '{')
        st = read_named(r.s + r.i, end - r.i, r.whole, &d->name, &d->json);
    else
        st = read_named_outside(&r, &d->name);
    if (st == TEXT_LOOSE_DONE)
        d->r.i = end;
    return st;
}

/* A tag and what belongs to it.  False: it is text. */
static bool read_element(struct loose_dsml *d)
{
    struct tag t;
    enum text_loose st = read_tag(&d->r, &t);
    str_clear(&d->name);
    str_clear(&d->json);
    if (st == TEXT_LOOSE_PART && (d->p->cut || (t.close && d->n_calls))) {
        d->ran_out = d->p->cut;
        d->r.i = d->r.n;
        return true;
    }
    if (st != TEXT_LOOSE_DONE)
        return false;
    if (t.close)
        return d->n_calls > 0;
    if (strcmp(t.word, "invoke") == 0 && t.name.n) {
        str_add(&d->name, t.name.at, t.name.n);
        st = read_invoke(&d->r, &d->json);
    } else if (is_block(t.word)) {
        skip_space(&d->r);
        d->ran_out = d->ran_out || (d->p->cut && d->r.i == d->r.n);
        if (next_tag(&d->r) == d->r.i || (st = read_bare(d)) == TEXT_LOOSE_BAD ||
            (st == TEXT_LOOSE_PART && !d->p->cut))
            return true; /* what stands in it comes next */
    } else {
        return false;
    }
    if (st == TEXT_LOOSE_DONE) {
        emit_call(d, false);
    } else if (st == TEXT_LOOSE_PART && d->p->cut) {
        d->ran_out = true;
        d->r.i = d->r.n;
        if (d->name.n)
            emit_call(d, true);
        return true;
    }
    return st == TEXT_LOOSE_DONE;
}

/* Bytes at the end that are a beginning of OPEN or CLOSE. */
static size_t marker_begun(const char *s, size_t n)
{
    for (size_t k = strlen(CLOSE) - 1; k > 0; k--)
        if (k <= n && (memcmp(s + n - k, CLOSE, k) == 0 ||
                       (k < strlen(OPEN) && memcmp(s + n - k, OPEN, k) == 0)))
            return k;
    return 0;
}

bool text_loose_deepseek4(struct text_parser *p, const char *s, size_t n, bool whole)
{
    struct loose_dsml d = {.p = p};
    const size_t begun = p->cut ? marker_begun(s, n) : 0;
    n -= begun;
    d.ran_out = begun > 0;
    d.r = (struct reading){.s = s, .n = n, .whole = whole};
    str_init(&d.name);
    str_init(&d.json);
    str_init(&d.rest);
    while (d.r.i < n && text_parser_ok(p)) {
        const size_t at = d.r.i;
        if (next_tag(&d.r) == at && read_element(&d))
            continue;
        d.r.i = at + (next_tag(&(struct reading){.s = s, .n = n, .i = at}) == at);
        d.r.i = next_tag(&d.r);
        str_add(&d.rest, s + at, d.r.i - at);
    }
    const struct text_view rest = {d.rest.at, d.rest.n};
    if (!str_ok(&d.rest))
        text_parser_nomem(p);
    else if ((d.n_calls || d.ran_out) && text_trim(rest).n)
        text_parser_content(p, rest.at, rest.n);
    str_release(&d.name);
    str_release(&d.json);
    str_release(&d.rest);
    return d.n_calls > 0 || d.ran_out;
}

static enum text_match deepseek4_begins(const char *s, size_t n)
{
    struct reading r = {.s = s, .n = n};
    char word[MOST_WORD];
    if (!read_tag_word(&r, word))
        return r.i == n ? TEXT_MATCH_PART : TEXT_MATCH_NONE;
    if (r.i == n)
        return TEXT_MATCH_PART;
    if (strcmp(word, "invoke") == 0)
        return is_space(s[r.i]) ? TEXT_MATCH_ALL : TEXT_MATCH_NONE;
    if (!is_block(word))
        return TEXT_MATCH_NONE;
    skip_space(&r);
    if (r.i == n)
        return TEXT_MATCH_PART;
    if (!skip(&r, ">"))
        return TEXT_MATCH_NONE;
    skip_space(&r);
    if (r.i == n)
        return TEXT_MATCH_PART;
    if (strchr("{[`", s[r.i]) && s[r.i])
        return TEXT_MATCH_ALL;
    const enum text_match tag = text_match(s + r.i, n - r.i, OPEN);
    if (tag)
        return tag;
    const size_t from = r.i;
    while (r.i < n && is_name(s[r.i]))
        r.i++;
    if (r.i == n)
        return TEXT_MATCH_PART;
    return r.i > from && strchr("\n{(", s[r.i]) && s[r.i] ? TEXT_MATCH_ALL : TEXT_MATCH_NONE;
}

enum text_match text_loose_deepseek4_begins(const char *s, size_t n)
{
    const enum text_match m = deepseek4_begins(s, n);
    return m == TEXT_MATCH_PART && n > MOST_FRONT ? TEXT_MATCH_NONE : m;
}
