/* SPDX-License-Identifier: Apache-2.0 */
/*
 * openai_forced - what an answer must look like, in the words of OpenAI, llama-server, vLLM,
 * SGLang, Ollama and text-generation-inference; every dialect takes them.
 */
#include "server/fields.h"
#include "server/openai/openai.h"

#include <string.h>

enum { MAX_GRAMMAR = 1 << 20, MAX_CHOICES = 4096 };

static void take_grammar(struct chat_request *r, enum ingle_grammar_kind kind, const char *text,
                         size_t n, const char *param, struct fault *f)
{
    if (f->kind)
        return;
    if (n > MAX_GRAMMAR) {
        request_fault(f, FAULT_REQUEST, param, "'%s' has %zu bytes, the limit is %d", param, n,
                      (int)MAX_GRAMMAR);
        return;
    }
    if (r->has_grammar) {
        request_fault(f, FAULT_REQUEST, param, "only one of '%s' and '%s' can be",
                      r->grammar_param ? r->grammar_param : "response_format", param);
        return;
    }
    r->has_grammar = true;
    r->grammar_param = param;
    r->grammar_kind = kind;
    str_clear(&r->grammar);
    str_add(&r->grammar, text, n);
}

/* A regular expression or a grammar; "" is none. */
static void take_text(struct chat_request *r, enum ingle_grammar_kind kind, struct json_object *v,
                      const char *param, struct fault *f)
{
    if (!v || f->kind)
        return;
    if (!request_is_text(v))
        request_fault(f, FAULT_REQUEST, param, "'%s' is no string", param);
    else if (json_object_get_string_len(v))
        take_grammar(r, kind, json_object_get_string(v), (size_t)json_object_get_string_len(v),
                     param, f);
}

/* An object, or its JSON text as a string; "" is none. */
static void take_schema(struct chat_request *r, struct json_object *schema, const char *param,
                        struct fault *f)
{
    static const struct json_limits limits = {
        .depth = REQUEST_MAX_DEPTH, .n_values = REQUEST_MAX_VALUES, .n_keys = REQUEST_MAX_KEYS};
    struct json_object *parsed = NULL;
    struct str text;
    if (f->kind || (request_is_text(schema) && !json_object_get_string_len(schema)))
        return;
    if (request_is_text(schema) &&
        json_parse(json_object_get_string(schema), (size_t)json_object_get_string_len(schema),
                   &limits, &parsed, NULL) == INGLE_OK)
        schema = parsed;
    if (json_object_is_type(schema, json_type_object)) {
        str_init(&text);
        request_add_value(&text, schema);
        take_grammar(r, INGLE_GRAMMAR_JSON_SCHEMA, text.at, text.n, param, f);
        r->grammar.failed |= text.failed;
        str_release(&text);
    } else {
        request_fault(f, FAULT_REQUEST, param, "'%s' is neither an object nor the text of one",
                      param);
    }
    json_object_put(parsed);
}

static void add_literal(struct str *out, struct json_object *text)
{
    const char *s = json_object_get_string(text);
    str_addc(out, '"');
    for (int i = 0; i < json_object_get_string_len(text); i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            str_addc(out, '\\');
        if (c < ' ')
            str_addf(out, "\\x%02X", c);
        else
            str_addc(out, s[i]);
    }
    str_addc(out, '"');
}

/* One of several texts. */
static void take_choice(struct chat_request *r, struct json_object *list, const char *param,
                        struct fault *f)
{
    struct str rule;
    if (!list || f->kind)
        return;
    const size_t n =
        json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    if (!n || n > MAX_CHOICES) {
        request_fault(f, FAULT_REQUEST, param, "'%s' is no list of 1 to %d strings", param,
                      (int)MAX_CHOICES);
        return;
    }
    str_init(&rule);
    str_adds(&rule, "root ::= ");
    for (size_t i = 0; i < n && request_go_on(f); i++) {
        struct json_object *v = json_object_array_get_idx(list, i);
        if (!request_is_text(v))
            request_fault(f, FAULT_REQUEST, param, "'%s' has an item %zu that is no string", param,
                          i);
        else {
            str_adds(&rule, i ? " | " : "");
            add_literal(&rule, v);
        }
    }
    take_grammar(r, INGLE_GRAMMAR_GBNF, rule.at, rule.n, param, f);
    r->grammar.failed |= rule.failed;
    str_release(&rule);
}

static void take_any_json(struct chat_request *r, struct json_object *v, const char *param,
                          struct fault *f)
{
    if (v && !json_object_is_type(v, json_type_boolean))
        request_fault(f, FAULT_REQUEST, param, "'%s' is no boolean", param);
    else if (json_object_get_boolean(v))
        take_grammar(r, INGLE_GRAMMAR_JSON, "", 0, param, f);
}

/* ---- response_format ---- */

static struct json_object *either(struct json_object *o, const char *one, const char *other)
{
    struct json_object *v = request_get(o, one);
    return v ? v : request_get(o, other);
}

/* Where a member of response_format or, as TGI has it, of grammar stands. */
static const char *place(bool typed, struct json_object *o, const char *name)
{
    static const char *const at[][3] = {{"schema", "response_format.schema", "grammar.schema"},
                                        {"pattern", "response_format.pattern", "grammar.pattern"},
                                        {"grammar", "response_format.grammar", "grammar.grammar"}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if (strcmp(at[i][0], name) == 0 && request_get(o, name))
            return at[i][typed ? 1 : 2];
    return typed ? "response_format.value" : "grammar.value";
}

/* "pattern" and "grammar", or what TGI calls all of them: "value".  typed: it is
 * response_format. */
static void read_typed(struct chat_request *r, struct json_object *format, bool typed,
                       struct fault *f)
{
    const char *param = typed ? "response_format.type" : "grammar";
    struct json_object *type = request_get(format, "type"),
                       *value = either(format, "schema", "value");
    if (request_text_is(type, "json_schema")) {
        struct json_object *outer = request_get(format, "json_schema");
        const char *at = value && !outer ? place(typed, format, "schema")
                         : typed         ? "response_format.json_schema.schema"
                                         : "grammar.json_schema.schema";
        if (outer && !json_object_is_type(outer, json_type_object))
            request_fault(f, FAULT_REQUEST,
                          typed ? "response_format.json_schema" : "grammar.json_schema",
                          "'json_schema' is no object");
        if (request_get(outer, "name") && !request_is_text(request_get(outer, "name")))
            request_fault(f, FAULT_REQUEST,
                          typed ? "response_format.json_schema.name" : "grammar.json_schema.name",
                          "'json_schema.name' is no string");
        take_schema(r, outer ? request_get(outer, "schema") : value, at, f);
    } else if ((request_text_is(type, "json_object") || request_text_is(type, "json")) && value) {
        take_schema(r, value, place(typed, format, "schema"), f);
    } else if (request_text_is(type, "json_object") || request_text_is(type, "json")) {
        take_grammar(r, INGLE_GRAMMAR_JSON, "", 0, param, f);
    } else if (request_text_is(type, "regex")) {
        take_text(r, INGLE_GRAMMAR_REGEX, either(format, "pattern", "value"),
                  place(typed, format, "pattern"), f);
    } else if (request_text_is(type, "grammar")) {
        take_text(r, INGLE_GRAMMAR_GBNF, either(format, "grammar", "value"),
                  place(typed, format, "grammar"), f);
    } else {
        request_fault(f, FAULT_REQUEST, param,
                      "'%s' is %.60s, not text, json_object, json_schema, regex or grammar", param,
                      type ? json_object_get_string(type) : "null");
        return;
    }
    if (!r->has_grammar && !f->kind)
        request_fault(f, FAULT_REQUEST, param, "'%s' is %.60s, but there is none", param,
                      json_object_get_string(type));
}

static void read_response_format(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *format = request_get_object(body, "response_format", f);
    struct json_object *type = format ? request_get(format, "type") : NULL;
    if (format && !type)
        request_fault(f, FAULT_REQUEST, "response_format.type", "'response_format' has no 'type'");
    if (type && !request_text_is(type, "text") && !f->kind)
        read_typed(r, format, true, f);
}

/* GBNF; or {type, value} as TGI has it. */
static void read_grammar(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *v = request_get(body, "grammar");
    if (json_object_is_type(v, json_type_object))
        read_typed(r, v, false, f);
    else
        take_text(r, INGLE_GRAMMAR_GBNF, v, "grammar", f);
}

/* "json", or a schema: Ollama's. */
void openai_read_json_format(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *v = request_get(body, "format");
    if (request_text_is(v, "json"))
        take_grammar(r, INGLE_GRAMMAR_JSON, "", 0, "format", f);
    else if (json_object_is_type(v, json_type_object))
        take_schema(r, v, "format", f);
    else if (v && !(request_is_text(v) && !json_object_get_string_len(v)))
        request_fault(f, FAULT_REQUEST, "format", "'format' is neither \"json\" nor a JSON schema");
}

/* ---- vLLM ---- */

static void refuse_all(struct json_object *o, const char *const *names, size_t n, struct fault *f)
{
    for (size_t i = 0; i < n; i++) {
        struct json_object *v = request_get(o, names[i]);
        if (v && !(json_object_is_type(v, json_type_boolean) && !json_object_get_boolean(v)))
            request_fault(f, FAULT_REQUEST, names[i], "'%s' cannot be done here", names[i]);
    }
}

static void read_guided(struct chat_request *r, struct json_object *body, struct fault *f)
{
    static const char *const refused[] = {"guided_whitespace_pattern", "structural_tag"};
    struct json_object *schema = request_get(body, "guided_json");
    if (schema)
        take_schema(r, schema, "guided_json", f);
    take_text(r, INGLE_GRAMMAR_REGEX, request_get(body, "guided_regex"), "guided_regex", f);
    take_choice(r, request_get(body, "guided_choice"), "guided_choice", f);
    take_text(r, INGLE_GRAMMAR_GBNF, request_get(body, "guided_grammar"), "guided_grammar", f);
    take_any_json(r, request_get(body, "guided_json_object"), "guided_json_object", f);
    refuse_all(body, refused, sizeof refused / sizeof *refused, f);
}

static void read_structured(struct chat_request *r, struct json_object *body, struct fault *f)
{
    static const char *const known[] = {
        "json", "regex", "choice", "grammar", "json_object", "disable_fallback", "backend"};
    struct json_object *o = request_get(body, "structured_outputs");
    /* a wish of OpenRouter's, no form */
    if (!o || f->kind || json_object_is_type(o, json_type_boolean))
        return;
    o = request_get_object(body, "structured_outputs", f);
    if (!o)
        return;
    if (request_get(o, "json"))
        take_schema(r, request_get(o, "json"), "structured_outputs.json", f);
    take_text(r, INGLE_GRAMMAR_REGEX, request_get(o, "regex"), "structured_outputs.regex", f);
    take_choice(r, request_get(o, "choice"), "structured_outputs.choice", f);
    take_text(r, INGLE_GRAMMAR_GBNF, request_get(o, "grammar"), "structured_outputs.grammar", f);
    take_any_json(r, request_get(o, "json_object"), "structured_outputs.json_object", f);
    json_object_object_foreach(o, key, value)
    {
        bool is_known = !value || (json_object_is_type(value, json_type_boolean) &&
                                   !json_object_get_boolean(value));
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known = is_known || strcmp(key, known[i]) == 0;
        if (!is_known)
            request_fault(f, FAULT_REQUEST, "structured_outputs",
                          "'structured_outputs' has '%.60s', which cannot be done here: there are "
                          "json, regex, choice, "
                          "grammar and json_object",
                          key);
    }
}

/* ---- all of it ---- */

void openai_read_format(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *schema = request_get(body, "json_schema");
    read_response_format(r, body, f);
    if (schema)
        take_schema(r, schema, "json_schema", f);
    read_grammar(r, body, f);
    openai_read_json_format(r, body, f);
    read_guided(r, body, f);
    read_structured(r, body, f);
    take_text(r, INGLE_GRAMMAR_REGEX, request_get(body, "regex"), "regex", f);
    take_text(r, INGLE_GRAMMAR_GBNF, request_get(body, "ebnf"), "ebnf", f);
}
