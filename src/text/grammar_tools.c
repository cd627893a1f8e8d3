/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_tools - tool calls in the form of a model family, as the parsers of parse_gemma4.c
 * and parse_deepseek4.c read them.
 *
 *   Gemma 4      <|tool_call>call:NAME{key:value,...}<tool_call|>, one behind the other
 *   DeepSeek V4  <DSML tool_calls>, <DSML invoke name="NAME">, <DSML parameter name="KEY"
 *                string="true|false">VALUE</DSML parameter> ..., each on its line
 */
#include "text/grammar_schema.h"

#include "base/mem.h"
#include <stdio.h>
#include <string.h>

#define DSML "｜DSML｜"

enum { MOST_TOOLS = 1024, MOST_NAME = 128 };

struct tools {
    struct grammar_builder b;
    struct schema s;
    struct text_form gemma, dsml, raw, json;
    const char *choice; /* NULL: any of them, or of ... */
    struct json_object *names; /* NULL: all */
    bool parallel;
    bool behind; /* the marker */
    bool lenient; /* tools whose schema does not compile take any arguments */
    enum text_chat_family family;
    const struct report_sink *sink;
};

static struct json_object *get(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    return json_object_is_type(o, json_type_object) && json_object_object_get_ex(o, key, &v) ? v
                                                                                              : NULL;
}

/* ---- DeepSeek V4 ---- */

/* open, the marker, rest: "</" and "invoke>\n" */
static struct grammar_piece tag(struct tools *t, const char *open, const char *rest)
{
    struct grammar_builder *b = &t->b;
    const struct grammar_piece p = text_g_cat(b, text_g_word(b, open), text_f_mark(&t->dsml, DSML));
    return text_g_cat(b, p, text_g_word(b, rest));
}

static struct grammar_piece parameter(struct tools *t, struct grammar_piece name,
                                      struct json_object *v, const struct schema_path *at)
{
    struct grammar_builder *b = &t->b;
    struct grammar_piece p =
        text_g_cat(b, tag(t, "<", "parameter name=\""), text_g_cat(b, name, text_g_word(b, "\"")));
    t->s.form = &t->raw;
    struct grammar_piece text = v ? text_s_compile(&t->s, v, at, SCHEMA_STRINGS)
                                  : text_f_string(&t->raw, 0, GRAMMAR_INFINITE);
    text = text_g_cat(b, text_g_word(b, " string=\"true\">"), text);
    t->s.form = &t->dsml;
    struct json_object *any = v ? v : json_object_new_boolean(1);
    struct grammar_piece json = text_s_compile(&t->s, any, at, SCHEMA_OTHERS);
    if (!v)
        json_object_put(any);
    json = text_g_cat(b, text_g_word(b, " string=\"false\">"), json);
    p = text_g_cat(b, p, text_g_alt(b, text, json));
    return text_g_cat(b, p, tag(t, "</", "parameter>\n"));
}

static bool is_quotable(const char *name)
{
    return *name && !strchr(name, '"') && !strstr(name, "\xEF\xBD\x9C");
}

/* A piece for each member, and one for others in *other if there may be some.  False: failed. */
static bool parameter_pieces(struct tools *t, const struct schema_members *m,
                             const struct schema_path *at, struct grammar_piece *each,
                             struct grammar_piece *other)
{
    struct grammar_builder *b = &t->b;
    const struct schema_path up = {at, "properties", 0}, more = {at, "additionalProperties", 0};
    for (size_t i = 0; i < m->n && text_g_ok(b); i++) {
        const struct schema_path here = {&up, m->at[i].name, 0};
        if (!is_quotable(m->at[i].name))
            text_s_fail(&t->s, INGLE_UNSUP, &here, "a parameter of this name cannot be written in a call");
        each[i] = parameter(t, text_g_word(b, m->at[i].name), m->at[i].value, &here);
    }
    if (m->open && text_g_ok(b))
        *other = parameter(t, text_f_other(&t->dsml, m->names), m->other, &more);
    return text_g_ok(b);
}

static struct grammar_piece in_order(struct tools *t, const struct schema_members *m,
                                     const struct grammar_piece *each, struct grammar_piece other)
{
    struct grammar_builder *b = &t->b;
    struct grammar_piece all = text_g_empty(b);
    for (size_t i = 0; i < m->n; i++)
        all = text_g_cat(b, all, m->at[i].required ? each[i] : text_g_opt(b, each[i]));
    return m->open ? text_g_cat(b, all, text_g_star(b, other)) : all;
}

static uint32_t parameter_rule(struct grammar_builder *b, struct grammar_piece p)
{
    const uint32_t rule = text_g_rule(b, "parameter", 9);
    text_g_body(b, rule, p);
    return rule;
}

static struct grammar_piece in_any_order(struct tools *t, const struct schema_members *m,
                                         const struct grammar_piece *each,
                                         struct grammar_piece other)
{
    struct grammar_builder *b = &t->b;
    uint32_t rule[GRAMMAR_MAX_ONCE] = {0}, others = 0;
    const uint32_t all = text_g_rule(b, "parameters", 10);
    for (size_t i = 0; i < m->n; i++)
        rule[i] = parameter_rule(b, each[i]);
    if (m->open)
        others = parameter_rule(b, other);
    const struct grammar_piece loop = text_g_empty(b), end = text_g_empty(b);
    const uint32_t one = text_g_any_order(b, rule, m->n, m->open ? &others : NULL, NULL, loop.in);
    const uint32_t done = text_g_node(b, GRAMMAR_ALL, end.in, text_s_required(m));
    text_g_tie(b, loop, text_g_node(b, GRAMMAR_SPLIT, one, done));
    text_g_body(b, all, (struct grammar_piece){loop.in, end.out});
    return text_g_call(b, all);
}

static struct grammar_piece parameters_of(struct tools *t, struct json_object *v,
                                          const struct schema_path *at)
{
    struct grammar_builder *b = &t->b;
    struct grammar_piece all = text_g_empty(b), other = all;
    struct schema_members m;
    if (!text_s_members(&t->s, v, at, &m))
        return all;
    struct grammar_piece *each = mem_calloc(m.n + 1, sizeof *each);
    if (!each)
        text_g_nomem(b);
    else if (parameter_pieces(t, &m, at, each, &other))
        all = text_s_any_order(&t->s, &m) ? in_any_order(t, &m, each, other)
                                          : in_order(t, &m, each, other);
    mem_free(each);
    text_s_members_release(&m);
    return all;
}

/* The outermost schema has no braces of its own, so what it is made of is taken apart here. */
static struct grammar_piece dsml_arguments(struct tools *t, struct json_object *v,
                                           const struct schema_path *at, int depth)
{
    struct grammar_builder *b = &t->b;
    v = depth < 8 ? text_s_flatten(&t->s, v, at, 0) : NULL;
    struct json_object *any = get(v, "anyOf") ? get(v, "anyOf") : get(v, "oneOf");
    if (!v || !any) {
        if (text_g_ok(b) && !v)
            text_s_fail(&t->s, INGLE_LIMIT, at, "alternatives nest deeper than the limit of 8");
        return v ? parameters_of(t, v, at) : text_g_never(b);
    }
    struct grammar_piece p = text_g_never(b);
    struct json_object *base = text_s_without(&t->s, v, get(v, "anyOf") ? "anyOf" : "oneOf");
    for (size_t i = 0; base && json_object_is_type(any, json_type_array) &&
                       i < json_object_array_length(any) && text_g_ok(b); i++) {
        const struct schema_path up = {at, "anyOf", 0}, here = {&up, NULL, i};
        struct json_object *x =
            text_s_flatten(&t->s, json_object_array_get_idx(any, i), &here, 0);
        x = x ? text_s_merge(&t->s, base, x, &here) : NULL;
        if (x)
            p = text_g_alt(b, dsml_arguments(t, x, &here, depth + 1), p);
    }
    return p;
}

/* ---- both ---- */

static struct grammar_piece call_of(struct tools *t, const char *name, struct json_object *v,
                                    const struct schema_path *at)
{
    struct grammar_builder *b = &t->b;
    struct grammar_piece p;
    if (t->family == TEXT_CHAT_DEEPSEEK_V4) {
        p = text_g_cat(b, tag(t, "<", "invoke name=\""), text_g_word(b, name));
        p = text_g_cat(b, p, text_g_word(b, "\">\n"));
        p = text_g_cat(b, p, dsml_arguments(t, v, at, 0));
        return text_g_cat(b, p, tag(t, "</", "invoke>\n"));
    }
    t->s.form = &t->gemma;
    p = t->behind ? text_g_empty(b) : text_f_mark(&t->gemma, "<|tool_call>");
    p = text_g_cat(b, p, text_g_cat(b, text_g_word(b, "call:"), text_g_word(b, name)));
    p = text_g_cat(b, p, text_s_compile(&t->s, v, at, SCHEMA_ALL));
    return text_g_cat(b, p, text_f_mark(&t->gemma, "<tool_call|>"));
}

static bool is_name(const char *s)
{
    size_t n = 0;
    for (; s[n]; n++)
        if (!((s[n] >= 'a' && s[n] <= 'z') || (s[n] >= 'A' && s[n] <= 'Z') ||
              (s[n] >= '0' && s[n] <= '9') || strchr("_-.:/", s[n])))
            return false;
    return n > 0 && n <= MOST_NAME;
}

/* The parameters as the schema of an object.  Owned by the schema; NULL: failed. */
static struct json_object *parameters_schema(struct tools *t, struct json_object *v,
                                             const struct schema_path *at)
{
    static const char object[] = "{\"type\":\"object\"}";
    static const char nothing[] = "{\"type\":\"object\",\"additionalProperties\":false}";
    struct json_object *base = json_tokener_parse(v ? object : nothing), *o = NULL;
    if (!base)
        text_g_nomem(&t->b);
    else if (v && !json_object_is_type(v, json_type_object))
        text_s_fail(&t->s, INGLE_ARG, at, "'parameters' is no schema");
    else
        o = text_s_without(&t->s, base, "");
    json_object_put(base);
    if (o && v) {
        v = text_s_flatten(&t->s, v, at, 0);
        o = v ? text_s_merge(&t->s, v, o, at) : NULL;
    }
    struct json_object *type = get(o, "type");
    if (json_object_is_type(type, json_type_array) && !json_object_array_length(type)) {
        text_s_fail(&t->s, INGLE_ARG, at, "'parameters' is no schema of an object");
        return NULL;
    }
    return o;
}

static bool is_supported(const struct tools *t, struct json_object *tool, size_t i, struct err *why);

/* {"type": "object"} in place of parameters that do not compile. */
static struct json_object *any_arguments(struct tools *t, const char *name, const struct err *why)
{
    struct json_object *v = json_tokener_parse("{\"type\":\"object\"}");
    struct json_object *o = v ? text_s_without(&t->s, v, "") : NULL;
    report(t->sink, INGLE_REPORT_WARN, "tool", name,
           "its arguments follow no schema while the model is free to call it: %s", why->msg);
    if (!v)
        text_g_nomem(&t->b);
    json_object_put(v);
    return o;
}

/* The call of tool i, or nothing where another is chosen. */
static bool is_among(struct json_object *names, const char *word)
{
    for (size_t i = 0; i < json_object_array_length(names); i++) {
        const char *name = json_object_get_string(json_object_array_get_idx(names, i));
        if (name && strcmp(name, word) == 0)
            return true;
    }
    return false;
}

static bool add_tool(struct tools *t, struct json_object *tool, size_t i, struct grammar_piece *all)
{
    char where[64];
    struct json_object *type = get(tool, "type"), *function = get(tool, "function");
    if (json_object_is_type(type, json_type_string) &&
        strcmp(json_object_get_string(type), "function") != 0)
        return false;
    if (!function)
        function = tool;
    struct json_object *name = get(function, "name");
    if (!json_object_is_type(name, json_type_string) || !is_name(json_object_get_string(name))) {
        text_g_fail(&t->b, INGLE_ARG,
                    "tool %zu: 'name' is no name of 1 to %d letters, digits and _ - . : /", i,
                    MOST_NAME);
        return false;
    }
    const char *word = json_object_get_string(name);
    if ((t->choice && strcmp(t->choice, word) != 0) || (t->names && !is_among(t->names, word)))
        return false;
    snprintf(where, sizeof where, "tool %zu: #", i);
    const struct schema_path at = {NULL, where, 0};
    struct json_object *v = get(function, "parameters");
    struct err why;
    t->s.root = v;
    if (t->lenient && !is_supported(t, tool, i, &why))
        v = any_arguments(t, word, &why);
    else
        v = parameters_schema(t, v, &at);
    if (!v)
        return false;
    *all = text_g_alt(&t->b, call_of(t, word, v, &at), *all);
    text_s_finish(&t->s);
    return true;
}

static void tools_init(struct tools *t, const struct tokenizer *vocab)
{
    t->gemma = (struct text_form){.b = &t->b, .t = vocab, .kind = FORM_GEMMA};
    t->dsml = (struct text_form){.b = &t->b, .t = vocab, .kind = FORM_DSML};
    t->raw = (struct text_form){.b = &t->b, .t = vocab, .kind = FORM_RAW};
    t->json = (struct text_form){.b = &t->b, .kind = FORM_JSON};
    text_s_init(&t->s, &t->b, t->lenient ? NULL : t->sink);
    t->s.any_order = true;
}

/* Whether the call of one tool compiles by itself. */
static bool is_supported(const struct tools *t, struct json_object *tool, size_t i, struct err *why)
{
    struct tools x = {.family = t->family, .behind = t->behind};
    struct text_grammar *g = NULL;
    if (text_g_begin(&x.b, why))
        return false;
    tools_init(&x, t->gemma.t);
    const uint32_t root = text_g_rule(&x.b, "root", 4);
    struct grammar_piece p = text_g_never(&x.b);
    if (add_tool(&x, tool, i, &p))
        text_g_body(&x.b, root, p);
    text_s_release(&x.s);
    const bool ok = text_g_end(&x.b, root, &g) == INGLE_OK;
    text_grammar_free(ok ? g : NULL);
    return ok;
}

static struct grammar_piece calls(struct tools *t, struct json_object *list)
{
    struct grammar_builder *b = &t->b;
    struct grammar_piece one = text_g_never(b);
    size_t n = 0;
    if (!json_object_is_type(list, json_type_array))
        text_g_fail(b, INGLE_ARG, "'tools' is no array");
    else if (json_object_array_length(list) > MOST_TOOLS)
        text_g_fail(b, INGLE_LIMIT, "%zu tools are above the limit of %d",
                    json_object_array_length(list), MOST_TOOLS);
    for (size_t i = 0; text_g_ok(b) && i < json_object_array_length(list); i++)
        n += add_tool(t, json_object_array_get_idx(list, i), i, &one);
    if (text_g_ok(b) && !n)
        text_g_fail(b, INGLE_ARG, "there is no tool%s%.80s to call", t->choice ? " named " : "",
                    t->choice ? t->choice : "");
    const bool blocks = t->family == TEXT_CHAT_DEEPSEEK_V4;
    if (t->parallel && (blocks || !t->behind))
        one = text_g_plus(b, one);
    if (!blocks)
        return one;
    struct grammar_piece open = text_g_word(b, "\n");
    if (!t->behind)
        open = text_g_cat(b, text_g_opt(b, text_g_word(b, "\n\n")), tag(t, "<", "tool_calls>\n"));
    return text_g_cat(b, text_g_cat(b, open, one), tag(t, "</", "tool_calls>"));
}

/* What may stand there instead of calls: JSON text of a schema, true for any object. */
static struct grammar_piece answer(struct tools *t, struct json_object *v)
{
    static const struct schema_path at = {NULL, "answer: #", 0};
    struct json_object *any = NULL;
    if (json_object_is_type(v, json_type_boolean)) {
        v = any = json_tokener_parse("{\"type\":\"object\"}");
        if (!v)
            text_g_nomem(&t->b);
    }
    t->s.root = v;
    t->s.form = &t->json;
    const struct grammar_piece p =
        v ? text_s_compile(&t->s, v, &at, SCHEMA_ALL) : text_g_never(&t->b);
    text_s_finish(&t->s);
    json_object_put(any);
    return p;
}

static void read_choice(struct tools *t, struct json_object *o)
{
    struct json_object *choice = get(o, "choice"), *parallel = get(o, "parallel");
    t->parallel = !parallel || json_object_get_boolean(parallel);
    if (json_object_is_type(choice, json_type_array))
        t->names = choice;
    else if (choice && !json_object_is_type(choice, json_type_string))
        text_g_fail(&t->b, INGLE_ARG, "'choice' is neither \"required\" nor a name nor a list of names");
    else if (choice && strcmp(json_object_get_string(choice), "required") != 0)
        t->choice = json_object_get_string(choice);
}

static ingle_status compile(struct text_grammar **out, struct tools *t, const struct tokenizer *vocab,
                            struct json_object *o, struct err *err)
{
    const ingle_status st = text_g_begin(&t->b, err);
    if (st)
        return st;
    tools_init(t, vocab);
    read_choice(t, o);
    const uint32_t root = text_g_rule(&t->b, "root", 4);
    struct grammar_piece all = text_g_ok(&t->b) ? calls(t, get(o, "tools")) : text_g_never(&t->b);
    if (text_g_ok(&t->b) && get(o, "answer"))
        all = text_g_alt(&t->b, all, answer(t, get(o, "answer")));
    if (text_g_ok(&t->b))
        text_g_body(&t->b, root, all);
    text_s_release(&t->s);
    return text_g_end(&t->b, root, out);
}

ingle_status text_grammar_tools(struct text_grammar **out, enum text_chat_family family,
                                const struct tokenizer *t, const char *text, size_t n,
                                const struct report_sink *sink, struct err *err)
{
    struct json_object *o = NULL;
    const struct json_limits limits = {.n_bytes = TEXT_GRAMMAR_BYTES};
    ingle_status st = json_parse(text, n, &limits, &o, err);
    if (st)
        return err_prefix(err, "tools");
    struct tools x = {.family = family, .sink = sink, .behind = json_object_get_boolean(get(o, "behind"))};
    st = compile(out, &x, t, o, err);
    if (st && st != INGLE_NOMEM && x.behind) {
        x = (struct tools){.family = family, .sink = sink, .behind = true, .lenient = true};
        st = compile(out, &x, t, o, err);
    }
    if (st && x.behind)
        report(sink, INGLE_REPORT_WARN, "tools", "grammar",
               "calls follow no schema while the model is free to make them: %s", err ? err->msg : "");
    json_object_put(o);
    return st;
}

int32_t text_grammar_mark(enum text_chat_family family, const struct tokenizer *t)
{
    const char *spelling = family == TEXT_CHAT_DEEPSEEK_V4 ? DSML : "<|tool_call>";
    return text_f_mark_id(t, spelling);
}
