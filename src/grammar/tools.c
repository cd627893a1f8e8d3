/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_tools - tool calls in the form of a model family, as the parsers of parse_gemma4.c
 * and parse_deepseek4.c read them.
 *
 *   Gemma 4      <|tool_call>call:NAME{key:value,...}<tool_call|>, one after the other
 *   DeepSeek V4  <DSML tool_calls>, <DSML invoke name="NAME">, <DSML parameter name="KEY"
 *                string="true|false">VALUE</DSML parameter> ..., each on its line
 */
#include "grammar/schema.h"
#include "grammar/schema_members.h"

#include "base/json.h"
#include "base/mem.h"
#include <stdio.h>
#include <string.h>

#define DSML "｜DSML｜"

enum { MOST_TOOLS = 1024, MOST_NAME = 256 };

struct tools {
    struct grammar_builder b;
    struct schema s;
    struct grammar_form gemma, dsml, raw, json;
    const char *choice; /* NULL: any of them, or of ... */
    struct json_object *names; /* owned: keys; NULL: all */
    bool parallel;
    bool after_marker; /* the marker */
    bool lenient; /* tools whose schema does not compile take any arguments */
    enum text_chat_family family;
    const struct report_sink *sink;
    struct grammar_work *work;
};

/* ---- DeepSeek V4 ---- */

/* open, the marker, rest: "</" and "invoke>\n" */
static struct grammar_piece tag(struct tools *t, const char *open, const char *rest)
{
    struct grammar_builder *b = &t->b;
    const struct grammar_piece p =
        grammar_g_cat(b, grammar_g_word(b, open), grammar_f_mark(&t->dsml, DSML));
    return grammar_g_cat(b, p, grammar_g_word(b, rest));
}

static struct grammar_piece parameter(struct tools *t, struct grammar_piece name,
                                      struct json_object *v, const struct schema_path *at)
{
    struct grammar_builder *b = &t->b;
    struct grammar_piece p = grammar_g_cat(b, tag(t, "<", "parameter name=\""),
                                           grammar_g_cat(b, name, grammar_g_word(b, "\"")));
    t->s.form = &t->raw;
    struct grammar_piece text = v ? grammar_s_compile(&t->s, v, at, SCHEMA_STRINGS)
                                  : grammar_f_string(&t->raw, 0, GRAMMAR_INFINITE);
    text = grammar_g_cat(b, grammar_g_word(b, " string=\"true\">"), text);
    t->s.form = &t->dsml;
    struct json_object *any = v ? v : json_object_new_boolean(1);
    struct grammar_piece json = grammar_s_compile(&t->s, any, at, SCHEMA_OTHERS);
    if (!v)
        json_object_put(any);
    json = grammar_g_cat(b, grammar_g_word(b, " string=\"false\">"), json);
    p = grammar_g_cat(b, p, grammar_g_alt(b, text, json));
    return grammar_g_cat(b, p, tag(t, "</", "parameter>\n"));
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
    for (size_t i = 0; i < m->n && grammar_g_ok(b); i++) {
        const struct schema_path here = {&up, m->at[i].name, 0};
        if (!is_quotable(m->at[i].name))
            grammar_s_fail(&t->s, INGLE_UNSUP, &here,
                           "a parameter of this name cannot be written in a call");
        each[i] = parameter(t, grammar_g_word(b, m->at[i].name), m->at[i].value, &here);
    }
    for (size_t i = 0; i < m->n_others && grammar_g_ok(b); i++) {
        const struct grammar_piece p =
            parameter(t, grammar_s_other_name(&t->s, m, i, &t->dsml), m->others[i].value, &more);
        *other = i ? grammar_g_alt(b, *other, p) : p;
    }
    return grammar_g_ok(b);
}

static struct grammar_piece in_order(struct tools *t, const struct schema_members *m,
                                     const struct grammar_piece *each, struct grammar_piece other)
{
    struct grammar_builder *b = &t->b;
    struct grammar_piece all = grammar_g_empty(b);
    for (size_t i = 0; i < m->n; i++)
        all = grammar_g_cat(b, all, m->at[i].required ? each[i] : grammar_g_opt(b, each[i]));
    return m->open ? grammar_g_cat(b, all, grammar_g_star(b, other)) : all;
}

static uint32_t parameter_rule(struct grammar_builder *b, struct grammar_piece p)
{
    const uint32_t rule = grammar_g_rule(b, "parameter", 9);
    grammar_g_body(b, rule, p);
    return rule;
}

static struct grammar_piece in_any_order(struct tools *t, const struct schema_members *m,
                                         const struct grammar_piece *each,
                                         struct grammar_piece other)
{
    struct grammar_builder *b = &t->b;
    uint32_t rule[GRAMMAR_MAX_ONCE] = {0}, others = 0;
    const uint32_t all = grammar_g_rule(b, "parameters", 10);
    for (size_t i = 0; i < m->n; i++)
        rule[i] = parameter_rule(b, each[i]);
    if (m->open)
        others = parameter_rule(b, other);
    const struct grammar_piece loop = grammar_g_empty(b), end = grammar_g_empty(b);
    const uint32_t one =
        grammar_g_any_order(b, rule, m->n, 0, m->open ? &others : NULL, NULL, loop.in);
    const uint32_t done = grammar_g_node(b, GRAMMAR_ALL, end.in, grammar_s_required(m));
    grammar_g_tie(b, loop, grammar_g_node(b, GRAMMAR_SPLIT, one, done));
    grammar_g_body(b, all, (struct grammar_piece){loop.in, end.out});
    return grammar_g_call(b, all);
}

static struct grammar_piece parameters_of(struct tools *t, struct json_object *v,
                                          const struct schema_path *at)
{
    struct grammar_builder *b = &t->b;
    struct grammar_piece all = grammar_g_empty(b), other = all;
    struct schema_members m;
    if (!grammar_s_members(&t->s, v, at, &m))
        return all;
    struct grammar_piece *each = mem_calloc(m.n + 1, sizeof *each);
    if (!each)
        grammar_g_nomem(b);
    else if (parameter_pieces(t, &m, at, each, &other))
        all = grammar_s_any_order(&t->s, &m) ? in_any_order(t, &m, each, other)
                                          : in_order(t, &m, each, other);
    mem_free(each);
    grammar_s_members_release(&m);
    return all;
}

/* The outermost schema has no braces of its own, so what it is made of is taken apart here. */
static struct grammar_piece dsml_arguments(struct tools *t, struct json_object *v,
                                           const struct schema_path *at, int depth)
{
    struct grammar_builder *b = &t->b;
    v = depth < 8 ? grammar_s_flatten(&t->s, v, at, 0) : NULL;
    struct json_object *any =
        json_member(v, "anyOf") ? json_member(v, "anyOf") : json_member(v, "oneOf");
    if (!v || !any) {
        if (grammar_g_ok(b) && !v)
            grammar_s_fail(&t->s, INGLE_LIMIT, at, "alternatives nest deeper than the limit of 8");
        return v ? parameters_of(t, v, at) : grammar_g_never(b);
    }
    struct grammar_piece p = grammar_g_never(b);
    struct json_object *base =
        grammar_s_without(&t->s, v, json_member(v, "anyOf") ? "anyOf" : "oneOf");
    for (size_t i = 0; base && json_object_is_type(any, json_type_array) &&
                       i < json_object_array_length(any) && grammar_g_ok(b); i++) {
        const struct schema_path up = {at, "anyOf", 0}, here = {&up, NULL, i};
        struct json_object *x =
            grammar_s_flatten(&t->s, json_object_array_get_idx(any, i), &here, 0);
        x = x ? grammar_s_merge(&t->s, base, x, &here) : NULL;
        if (x)
            p = grammar_g_alt(b, dsml_arguments(t, x, &here, depth + 1), p);
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
        p = grammar_g_cat(b, tag(t, "<", "invoke name=\""), grammar_g_word(b, name));
        p = grammar_g_cat(b, p, grammar_g_word(b, "\">\n"));
        p = grammar_g_cat(b, p, dsml_arguments(t, v, at, 0));
        return grammar_g_cat(b, p, tag(t, "</", "invoke>\n"));
    }
    t->s.form = &t->gemma;
    p = t->after_marker ? grammar_g_empty(b) : grammar_f_mark(&t->gemma, "<|tool_call>");
    p = grammar_g_cat(b, p, grammar_g_cat(b, grammar_g_word(b, "call:"), grammar_g_word(b, name)));
    p = grammar_g_cat(b, p, grammar_s_compile(&t->s, v, at, SCHEMA_ALL));
    return grammar_g_cat(b, p, grammar_f_mark(&t->gemma, "<tool_call|>"));
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
        grammar_g_nomem(&t->b);
    else if (v && !json_object_is_type(v, json_type_object))
        grammar_s_fail(&t->s, INGLE_ARG, at, "'parameters' is no schema");
    else
        o = grammar_s_without(&t->s, base, "");
    json_object_put(base);
    if (o && v) {
        v = grammar_s_flatten(&t->s, v, at, 0);
        o = v ? grammar_s_merge(&t->s, v, o, at) : NULL;
    }
    struct json_object *type = json_member(o, "type");
    if (json_object_is_type(type, json_type_array) && !json_object_array_length(type)) {
        grammar_s_fail(&t->s, INGLE_ARG, at, "'parameters' is no schema of an object");
        return NULL;
    }
    return o;
}

static ingle_status try_single(const struct tools *t, struct json_object *tool, size_t i,
                               struct err *why);

/* {"type": "object"} in place of parameters that do not compile. */
static struct json_object *any_arguments(struct tools *t, const char *name, const struct err *why)
{
    struct json_object *v = json_tokener_parse("{\"type\":\"object\"}");
    struct json_object *o = v ? grammar_s_without(&t->s, v, "") : NULL;
    report(t->sink, INGLE_REPORT_WARN, "tool", name, "its arguments follow no schema%s: %s",
           t->after_marker ? " while the model is free to call it" : "", why->msg);
    if (!v)
        grammar_g_nomem(&t->b);
    json_object_put(v);
    return o;
}

/* What is wrong with a request stays an error where the call is requested. */
static bool may_be_left(const struct tools *t, ingle_status st)
{
    if (t->after_marker)
        return st && st != INGLE_NOMEM && st != INGLE_CANCEL;
    return st == INGLE_UNSUP || st == INGLE_LIMIT;
}

/* The call of tool i, or nothing where another is chosen. */
static bool add_tool(struct tools *t, struct json_object *tool, size_t i, struct grammar_piece *all)
{
    char where[64];
    struct json_object *type = json_member(tool, "type"), *function = json_member(tool, "function");
    if (json_object_is_type(type, json_type_string) &&
        strcmp(json_object_get_string(type), "function") != 0)
        return false;
    if (!function)
        function = tool;
    struct json_object *name = json_member(function, "name");
    if (!json_object_is_type(name, json_type_string) || !is_name(json_object_get_string(name))) {
        grammar_g_fail(&t->b, INGLE_ARG,
                    "tool %zu: 'name' is no name of 1 to %d letters, digits and _ - . : /", i,
                    MOST_NAME);
        return false;
    }
    const char *word = json_object_get_string(name);
    if ((t->choice && strcmp(t->choice, word) != 0) ||
        (t->names && !json_object_object_get_ex(t->names, word, NULL)))
        return false;
    snprintf(where, sizeof where, "tool %zu: #", i);
    const struct schema_path at = {NULL, where, 0};
    struct json_object *v = json_member(function, "parameters");
    struct err why = {0};
    t->s.root = v;
    if (t->lenient && may_be_left(t, try_single(t, tool, i, &why)))
        v = any_arguments(t, word, &why);
    else
        v = parameters_schema(t, v, &at);
    if (!v)
        return false;
    *all = grammar_g_alt(&t->b, call_of(t, word, v, &at), *all);
    grammar_s_finish(&t->s);
    return true;
}

static void tools_init(struct tools *t, const struct tokenizer *vocab)
{
    t->gemma = (struct grammar_form){.b = &t->b, .t = vocab, .kind = FORM_GEMMA};
    t->dsml = (struct grammar_form){.b = &t->b, .t = vocab, .kind = FORM_DSML};
    t->raw = (struct grammar_form){.b = &t->b, .t = vocab, .kind = FORM_RAW};
    t->json = (struct grammar_form){.b = &t->b, .kind = FORM_JSON};
    grammar_s_init(&t->s, &t->b, t->lenient ? NULL : t->sink);
    t->s.any_order = true;
}

/* Whether the call of one tool compiles by itself.  A tool that takes much work leaves some for the
 * others. */
static ingle_status try_single(const struct tools *t, struct json_object *tool, size_t i,
                               struct err *why)
{
    struct tools x = {.family = t->family, .after_marker = t->after_marker};
    struct grammar *g = NULL;
    struct grammar_work *w = t->work;
    struct grammar_work part = {.stop = w->stop, .arg = w->arg};
    const uint64_t most = w->max_steps ? w->max_steps : GRAMMAR_WORK_STEPS;
    part.max_steps = (most - (w->n_steps < most ? w->n_steps : most)) / 8 + GRAMMAR_CHECK_STEPS;
    if (grammar_g_begin(&x.b, &part, why))
        return INGLE_NOMEM;
    tools_init(&x, t->gemma.t);
    const uint32_t root = grammar_g_rule(&x.b, "root", 4);
    struct grammar_piece p = grammar_g_never(&x.b);
    if (add_tool(&x, tool, i, &p))
        grammar_g_body(&x.b, root, p);
    grammar_s_release(&x.s);
    const ingle_status st = grammar_g_end(&x.b, root, &g);
    w->n_steps += part.n_steps;
    if (!st)
        grammar_free(g);
    return st;
}

static struct grammar_piece calls(struct tools *t, struct json_object *list)
{
    struct grammar_builder *b = &t->b;
    struct grammar_piece one = grammar_g_never(b);
    size_t n = 0;
    if (!json_object_is_type(list, json_type_array))
        grammar_g_fail(b, INGLE_ARG, "'tools' is no array");
    else if (json_object_array_length(list) > MOST_TOOLS)
        grammar_g_fail(b, INGLE_LIMIT, "%zu tools are above the limit of %d",
                    json_object_array_length(list), MOST_TOOLS);
    for (size_t i = 0; grammar_g_ok(b) && i < json_object_array_length(list); i++)
        n += add_tool(t, json_object_array_get_idx(list, i), i, &one);
    if (grammar_g_ok(b) && !n)
        grammar_g_fail(b, INGLE_ARG, "there is no tool%s%.80s to call", t->choice ? " named " : "",
                    t->choice ? t->choice : "");
    const bool blocks = t->family == TEXT_CHAT_DEEPSEEK_V4;
    if (t->parallel && (blocks || !t->after_marker))
        one = grammar_g_plus(b, one);
    if (!blocks)
        return one;
    struct grammar_piece open = grammar_g_word(b, "tool_calls>\n");
    if (!t->after_marker)
        open = grammar_g_cat(b, grammar_g_opt(b, grammar_g_word(b, "\n\n")),
                             tag(t, "<", "tool_calls>\n"));
    return grammar_g_cat(b, grammar_g_cat(b, open, one), tag(t, "</", "tool_calls>"));
}

/* What may stand there instead of calls: JSON text of a schema, true for any object. */
static struct grammar_piece answer(struct tools *t, struct json_object *v)
{
    static const struct schema_path at = {NULL, "answer: #", 0};
    struct json_object *any = NULL;
    if (json_object_is_type(v, json_type_boolean)) {
        v = any = json_tokener_parse("{\"type\":\"object\"}");
        if (!v)
            grammar_g_nomem(&t->b);
    }
    t->s.root = v;
    t->s.form = &t->json;
    const struct grammar_piece p =
        v ? grammar_s_compile(&t->s, v, &at, SCHEMA_ALL) : grammar_g_never(&t->b);
    grammar_s_finish(&t->s);
    json_object_put(any);
    return p;
}

static void read_choice(struct tools *t, struct json_object *o)
{
    struct json_object *choice = json_member(o, "choice"), *parallel = json_member(o, "parallel");
    t->parallel = !parallel || json_object_get_boolean(parallel);
    if (json_object_is_type(choice, json_type_array)) {
        t->names = json_object_new_object();
        if (!t->names)
            grammar_g_nomem(&t->b);
        for (size_t i = 0; i < json_object_array_length(choice) && grammar_g_step(&t->b, 4); i++) {
            const char *name = json_object_get_string(json_object_array_get_idx(choice, i));
            if (name && json_object_object_add(t->names, name, NULL))
                grammar_g_nomem(&t->b);
        }
    } else if (choice && !json_object_is_type(choice, json_type_string))
        grammar_g_fail(&t->b, INGLE_ARG,
                       "'choice' is neither \"required\" nor a name nor a list of names");
    else if (choice && strcmp(json_object_get_string(choice), "required") != 0)
        t->choice = json_object_get_string(choice);
}

static ingle_status compile(struct grammar **out, struct tools *t, const struct tokenizer *vocab,
                            struct json_object *o, struct err *err)
{
    const ingle_status st = grammar_g_begin(&t->b, t->work, err);
    if (st)
        return st;
    tools_init(t, vocab);
    read_choice(t, o);
    const uint32_t root = grammar_g_rule(&t->b, "root", 4);
    struct grammar_piece all =
        grammar_g_ok(&t->b) ? calls(t, json_member(o, "tools")) : grammar_g_never(&t->b);
    if (grammar_g_ok(&t->b) && json_member(o, "answer"))
        all = grammar_g_alt(&t->b, all, answer(t, json_member(o, "answer")));
    if (grammar_g_ok(&t->b))
        grammar_g_body(&t->b, root, all);
    grammar_s_release(&t->s);
    json_object_put(t->names);
    t->names = NULL;
    return grammar_g_end(&t->b, root, out);
}

/* What is reported while it is not known yet whether the grammar will be used. */
enum { MOST_HELD = 64 };
struct held_reports {
    struct held_report {
        ingle_report_level level;
        char *kind, *subject, *text;
    } at[MOST_HELD];
    size_t n;
};

static void hold_report(void *arg, ingle_report_level level, const char *kind, const char *subject,
                        const char *text)
{
    struct held_reports *h = arg;
    if (h->n < MOST_HELD)
        h->at[h->n++] =
            (struct held_report){level, mem_strdup(kind), mem_strdup(subject), mem_strdup(text)};
}

static void pass_reports(struct held_reports *h, const struct report_sink *sink, bool really)
{
    for (size_t i = 0; i < h->n; i++) {
        const struct held_report *r = &h->at[i];
        if (really && r->kind && r->subject && r->text)
            report(sink, r->level, r->kind, r->subject, "%s", r->text);
        mem_free(r->kind);
        mem_free(r->subject);
        mem_free(r->text);
    }
    h->n = 0;
}

/* Calls of how many tools are requested, at most. */
static size_t n_tools_in(struct json_object *o)
{
    struct json_object *choice = json_member(o, "choice"), *list = json_member(o, "tools");
    if (json_object_is_type(choice, json_type_string) &&
        strcmp(json_object_get_string(choice), "required") != 0)
        return 1;
    if (json_object_is_type(choice, json_type_array))
        return json_object_array_length(choice);
    return json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
}

ingle_status grammar_tools(struct grammar **out, enum text_chat_family family,
                           const struct tokenizer *t, const char *text, size_t n,
                           const struct report_sink *sink, struct grammar_work *work,
                           struct err *err)
{
    struct json_object *o = NULL;
    struct grammar_work own = {0};
    const struct json_limits limits = {.n_bytes = GRAMMAR_TEXT_BYTES,
                                       .n_values = GRAMMAR_TEXT_VALUES};
    ingle_status st = json_parse(text, n, &limits, &o, err);
    if (st)
        return err_prefix(err, "tools");
    const bool after_marker = json_object_get_boolean(json_member(o, "behind"));
    struct held_reports held = {.n = 0};
    const struct report_sink hold = {.report = hold_report, .arg = &held};
    struct tools x = {
        .family = family, .sink = &hold, .after_marker = after_marker, .work = work ? work : &own};
    st = compile(out, &x, t, o, err);
    pass_reports(&held, sink, !st);
    if (st && may_be_left(&x, st) && (after_marker || n_tools_in(o) > 1)) {
        x.work->n_steps = x.work->n_bytes = 0;
        x = (struct tools){.family = family,
                           .sink = sink,
                           .after_marker = after_marker,
                           .lenient = true,
                           .work = x.work};
        st = compile(out, &x, t, o, err);
    }
    if (st && st != INGLE_CANCEL && after_marker)
        report(sink, INGLE_REPORT_WARN, "tools", "grammar",
               "calls follow no schema while the model is free to make them: %s",
               err ? err->msg : "");
    json_object_put(o);
    return st;
}

int32_t grammar_mark(enum text_chat_family family, const struct tokenizer *t)
{
    const char *spelling = family == TEXT_CHAT_DEEPSEEK_V4 ? DSML : "<|tool_call>";
    return grammar_f_mark_id(t, spelling);
}
