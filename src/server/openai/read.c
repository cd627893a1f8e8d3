/* SPDX-License-Identifier: Apache-2.0 */
#include "server/openai/openai.h"

#include "base/mem.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 64 << 20, MAX_GRAMMAR = 1 << 20, MAX_WORD = 256 };

static bool is_number(struct json_object *v)
{
    return json_object_is_type(v, json_type_int) || json_object_is_type(v, json_type_double);
}

/* ---- sampling ---- */

struct number_field {
    const char *name;
    double min, max;
    size_t at;
};
#define SAMPLING(member) offsetof(struct ingle_sampling, member)
static const struct number_field numbers[] = {
    {"temperature", 0, 2, SAMPLING(temperature)},
    {"top_p", 0, 1, SAMPLING(top_p)},
    {"min_p", 0, 1, SAMPLING(min_p)},
    {"typical_p", 0, 1, SAMPLING(typical_p)},
    {"frequency_penalty", -2, 2, SAMPLING(frequency_penalty)},
    {"presence_penalty", -2, 2, SAMPLING(presence_penalty)},
    {"rep_pen", 0.001, 1000, SAMPLING(repeat_penalty)},
    {"repetition_penalty", 0.001, 1000, SAMPLING(repeat_penalty)},
    {"repeat_penalty", 0.001, 1000, SAMPLING(repeat_penalty)},
    {"dry_multiplier", 0, 1e6, SAMPLING(dry_multiplier)},
    {"dry_base", 0, 1000, SAMPLING(dry_base)},
    {"xtc_probability", 0, 1, SAMPLING(xtc_probability)},
    {"xtc_threshold", 0, 1, SAMPLING(xtc_threshold)},
};

struct whole_field {
    const char *name;
    int64_t min;
    size_t at;
};
static const struct whole_field wholes[] = {
    {"top_k", -1, SAMPLING(top_k)},
    {"repeat_last_n", -1, SAMPLING(penalty_window)},
    {"dry_allowed_length", 0, SAMPLING(dry_allowed_length)},
    {"dry_penalty_last_n", -1, SAMPLING(dry_window)},
};

/* Fields of llama-server that change nothing here, but must not be nonsense. */
static const struct whole_field ignored[] = {
    {"n_keep", -1, 0},           {"n_discard", 0, 0}, {"min_keep", 0, 0},
    {"t_max_predict_ms", -1, 0}, {"n_indent", 0, 0},
};

/* The limits of llama-server's own form where they are wider than OpenAI's. */
static const struct number_field native_numbers[] = {
    {"temperature", 0, (double)FLT_MAX, SAMPLING(temperature)},
    {"frequency_penalty", -1000, 1000, SAMPLING(frequency_penalty)},
    {"presence_penalty", -1000, 1000, SAMPLING(presence_penalty)},
};

static const struct number_field *limits_of(const struct number_field *field, bool native)
{
    for (size_t i = 0; native && i < sizeof native_numbers / sizeof *native_numbers; i++)
        if (strcmp(native_numbers[i].name, field->name) == 0)
            return &native_numbers[i];
    return field;
}

static bool is_zero(struct json_object *body, const char *name)
{
    struct json_object *v = request_get(body, name);
    const double d = is_number(v) ? json_object_get_double(v) : 1;
    return !(d < 0 || d > 0);
}

/* What zeros and missing fields are to llama-server and not to the library: a window of no tokens
 * has nothing to penalise, a base below 1 is none, and XTC has a threshold unless told otherwise. */
static void read_as_llama(struct chat_request *r, struct json_object *body,
                          const struct ingle_sampling *defaults)
{
    struct ingle_sampling *s = &r->sampling;
    if (is_zero(body, "repeat_last_n")) {
        s->repeat_penalty = 1;
        s->presence_penalty = s->frequency_penalty = 0;
    }
    if (is_zero(body, "dry_penalty_last_n"))
        s->dry_multiplier = 0;
    if (s->dry_base < 1)
        s->dry_base = 0;
    if (s->xtc_probability > 0 && defaults->xtc_probability <= 0 && s->xtc_threshold <= 0 &&
        !request_get(body, "xtc_threshold"))
        s->xtc_threshold = 0.1F;
}

static void read_numbers(struct chat_request *r, struct json_object *body, bool native,
                         struct fault *f)
{
    const struct ingle_sampling before = r->sampling, *const defaults = &before;
    char *base = (char *)&r->sampling;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const struct number_field *n = limits_of(&numbers[i], native);
        request_get_number(body, n->name, n->min, n->max, (float *)(void *)(base + n->at), f);
    }
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++) {
        int32_t *at = (int32_t *)(void *)(base + wholes[i].at);
        int64_t v = *at;
        request_get_int(body, wholes[i].name, wholes[i].min, INT32_MAX, &v, f);
        *at = (int32_t)v;
    }
    if (r->sampling.top_k < 0)
        r->sampling.top_k = 0;
    read_as_llama(r, body, defaults);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) {
        int64_t v = 0;
        request_get_int(body, ignored[i].name, ignored[i].min, INT32_MAX, &v, f);
    }
}

/* The tokens that a text becomes, or the one that it names by its number. */
static void bias_text(struct chat_request *r, const char *text, float bias,
                      const struct answer_options *o, struct fault *f)
{
    char *end;
    struct ingle_error e;
    int32_t *ids;
    size_t n;
    const long id = strtol(text, &end, 10);
    if (*text && !*end) {
        if (id < 0 || id >= o->n_vocab)
            request_fault(f, FAULT_REQUEST, "logit_bias",
                          "'logit_bias' names token %s, outside the vocabulary of %lld", text,
                          (long long)o->n_vocab);
        else
            request_add_bias(r, (int32_t)id, bias, f);
        return;
    }
    const ingle_status st =
        ingle_tokenize(o->model, text, strlen(text), INGLE_PARSE_SPECIAL, &ids, &n, &e);
    if (st) {
        request_fault_from(f, st, "logit_bias", e.text);
        return;
    }
    for (size_t i = 0; i < n && !f->kind; i++)
        request_add_bias(r, ids[i], bias, f);
    ingle_free(ids);
}

/* false forbids the token, as in llama-server. */
static bool bias_of(struct json_object *v, float *out, struct fault *f)
{
    *out = -INFINITY;
    if (json_object_is_type(v, json_type_boolean) && !json_object_get_boolean(v))
        return true;
    const double d = is_number(v) ? json_object_get_double(v) : 1e9;
    *out = (float)d;
    if (fabs(d) <= 1000)
        return true;
    request_fault(f, FAULT_REQUEST, "logit_bias", "'logit_bias' has a bias that is no number from "
                                                  "-1000 to 1000");
    return false;
}

static void read_bias_list(struct chat_request *r, struct json_object *list,
                           const struct answer_options *o, struct fault *f)
{
    for (size_t i = 0; i < json_object_array_length(list) && request_go_on(f); i++) {
        struct json_object *pair = json_object_array_get_idx(list, i);
        float bias;
        if (!json_object_is_type(pair, json_type_array) || json_object_array_length(pair) != 2) {
            request_fault(f, FAULT_REQUEST, "logit_bias", "'logit_bias[%zu]' is no pair", i);
            return;
        }
        struct json_object *token = json_object_array_get_idx(pair, 0);
        if (!bias_of(json_object_array_get_idx(pair, 1), &bias, f))
            return;
        if (!request_is_text(token) && !json_object_is_type(token, json_type_int))
            request_fault(f, FAULT_REQUEST, "logit_bias", "'logit_bias[%zu]' names no token", i);
        else
            bias_text(r, json_object_get_string(token), bias, o, f);
    }
}

static void read_bias(struct chat_request *r, struct json_object *body,
                      const struct answer_options *o, struct fault *f)
{
    struct json_object *v = request_get(body, "logit_bias");
    if (!v || f->kind)
        return;
    if (json_object_is_type(v, json_type_array)) {
        v = request_get_array(body, "logit_bias", REQUEST_MAX_BIAS, f);
        if (v)
            read_bias_list(r, v, o, f);
        return;
    }
    v = request_get_object(body, "logit_bias", f);
    if (!v)
        return;
    json_object_object_foreach(v, token, value)
    {
        float bias;
        if (f->kind || !bias_of(value, &bias, f))
            return;
        bias_text(r, token, bias, o, f);
    }
}

/* What is asked for and cannot be had is refused, not forgotten. */
static void refuse_what_is_not_there(struct json_object *body, struct fault *f)
{
    int64_t mirostat = 0;
    request_get_int(body, "mirostat", 0, 2, &mirostat, f);
    struct json_object *lora = request_get(body, "lora");
    if (mirostat)
        request_fault(f, FAULT_REQUEST, "mirostat", "there is no sampling by 'mirostat'");
    if (lora && !(json_object_is_type(lora, json_type_array) && !json_object_array_length(lora)))
        request_fault(f, FAULT_REQUEST, "lora", "'lora' names adapters, of which there are none");
}

void openai_read_sampling(struct chat_request *r, struct json_object *body,
                          const struct answer_options *o, bool native, struct fault *f)
{
    int64_t priority = 0, slot = -1;
    float deadline = 0;
    read_numbers(r, body, native, f);
    request_get_seed(body, "seed", r, f);
    read_bias(r, body, o, f);
    refuse_what_is_not_there(body, f);
    request_get_bool(body, "ignore_eos", &r->ignore_end, f);
    request_get_bool(body, "post_sampling_probs", &r->drawn_from, f);
    request_get_int(body, "priority", -10, 10, &priority, f);
    request_get_cache_key(body, "prompt_cache_key", r);
    request_get_number(body, "deadline_seconds", 0, 1e6, &deadline, f);
    request_get_int(body, "id_slot", -1, INT32_MAX, &slot, f);
    r->priority = (int)priority;
    r->id_slot = slot < 0 ? 0 : (int)slot;
    r->deadline_seconds = (double)deadline;
}

/* ---- stop strings, count, stream ---- */

void openai_read_stop(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *v = request_get(body, "stop");
    if (!v || f->kind)
        return;
    if (request_is_text(v)) {
        request_add_stop(r, json_object_get_string(v), (size_t)json_object_get_string_len(v), "stop", f);
        return;
    }
    v = request_get_array(body, "stop", REQUEST_MAX_STOPS, f);
    for (size_t i = 0; v && i < json_object_array_length(v) && !f->kind; i++) {
        struct json_object *s = json_object_array_get_idx(v, i);
        if (!request_is_text(s))
            request_fault(f, FAULT_REQUEST, "stop", "'stop[%zu]' is no string", i);
        else
            request_add_stop(r, json_object_get_string(s), (size_t)json_object_get_string_len(s),
                             "stop", f);
    }
}

void openai_read_count(struct chat_request *r, struct json_object *body, struct fault *f)
{
    static const char *const names[] = {"n_predict", "max_tokens", "max_completion_tokens"};
    int64_t n = 1;
    request_get_int(body, "n", 1, REQUEST_MAX_N, &n, f);
    r->n = (int)n;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        request_get_int(body, names[i], -1, INT32_MAX, &r->max_tokens, f);
}

void openai_read_stream(struct chat_request *r, struct json_object *body, struct openai_wish *w,
                        struct fault *f)
{
    request_get_bool(body, "stream", &r->stream, f);
    struct json_object *o = request_get_object(body, "stream_options", f);
    if (o) {
        request_get_bool(o, "include_usage", &w->include_usage, f);
        request_get_bool(o, "continuous_usage_stats", &w->continuous_usage, f);
    }
    request_get_bool(body, "return_progress", &r->return_progress, f);
    request_get_bool(body, "timings_per_token", &w->timings_per_token, f);
    request_get_bool(body, "verbose", &r->verbose, f);
    r->include_usage = w->include_usage;
}

/* ---- formats ---- */

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
        request_fault(f, FAULT_REQUEST, param,
                      "only one of 'response_format', 'json_schema' and 'grammar' can be");
        return;
    }
    r->has_grammar = true;
    r->grammar_param = param;
    r->grammar_kind = kind;
    str_clear(&r->grammar);
    str_add(&r->grammar, text, n);
}

static void take_schema(struct chat_request *r, struct json_object *schema, const char *param,
                        struct fault *f)
{
    size_t n = 0;
    if (!json_object_is_type(schema, json_type_object)) {
        request_fault(f, FAULT_REQUEST, param, "'%s' is no object", param);
        return;
    }
    const char *text = json_object_to_json_string_length(
        schema, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &n);
    take_grammar(r, INGLE_GRAMMAR_JSON_SCHEMA, text ? text : "", n, param, f);
}

static void read_json_schema(struct chat_request *r, struct json_object *format, struct fault *f)
{
    struct json_object *outer = request_get_object(format, "json_schema", f);
    struct json_object *schema = request_get(outer ? outer : format, "schema");
    if (!f->kind)
        take_schema(r, schema, "response_format.json_schema.schema", f);
}

static void read_response_format(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *format = request_get_object(body, "response_format", f);
    if (!format)
        return;
    struct json_object *type = request_get(format, "type");
    struct json_object *schema = request_get(format, "schema");
    if (!type || request_text_is(type, "text"))
        return;
    if (request_text_is(type, "json_schema"))
        read_json_schema(r, format, f);
    else if (request_text_is(type, "json_object") && schema)
        take_schema(r, schema, "response_format.schema", f);
    else if (request_text_is(type, "json_object"))
        take_grammar(r, INGLE_GRAMMAR_JSON, "", 0, "response_format", f);
    else if (request_text_is(type, "regex") && request_is_text(request_get(format, "pattern")))
        take_grammar(r, INGLE_GRAMMAR_REGEX, json_object_get_string(request_get(format, "pattern")),
                     (size_t)json_object_get_string_len(request_get(format, "pattern")),
                     "response_format", f);
    else
        request_fault(f, FAULT_REQUEST, "response_format.type",
                      "'response_format.type' is %.60s, not text, json_object or json_schema",
                      json_object_get_string(type));
}

void openai_read_format(struct chat_request *r, struct json_object *body, struct fault *f)
{
    read_response_format(r, body, f);
    struct json_object *schema = request_get(body, "json_schema");
    struct json_object *grammar = request_get(body, "grammar");
    if (schema && !f->kind)
        take_schema(r, schema, "json_schema", f);
    if (!grammar || f->kind)
        return;
    if (!request_is_text(grammar))
        request_fault(f, FAULT_REQUEST, "grammar", "'grammar' is no string");
    else if (json_object_get_string_len(grammar))
        take_grammar(r, INGLE_GRAMMAR_GBNF, json_object_get_string(grammar),
                     (size_t)json_object_get_string_len(grammar), "grammar", f);
}

/* ---- thinking: every vendor has its own words ---- */

static void think(struct chat_request *r, bool on)
{
    r->thinking = on ? THINKING_ON : THINKING_OFF;
}

/* true, false, or how hard. */
static void read_think(struct chat_request *r, struct json_object *o, const char *name,
                       struct fault *f)
{
    struct json_object *v = request_get(o, name);
    if (!v || f->kind)
        return;
    if (json_object_is_type(v, json_type_boolean))
        think(r, json_object_get_boolean(v));
    else if (request_is_text(v))
        request_effort(r, json_object_get_string(v));
    else
        request_fault(f, FAULT_REQUEST, name, "'%s' is neither a boolean nor a word", name);
}

static void read_budget(struct chat_request *r, struct json_object *o, const char *name,
                        struct fault *f)
{
    request_get_int(o, name, -1, INT32_MAX, &r->thinking_budget, f);
}

static void read_thinking_object(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *v = request_get(body, "thinking");
    if (!v || f->kind)
        return;
    if (!json_object_is_type(v, json_type_object)) {
        read_think(r, body, "thinking", f);
        return;
    }
    struct json_object *type = request_get(v, "type");
    if (request_is_text(type))
        think(r, !request_text_is(type, "disabled"));
    read_budget(r, v, "budget_tokens", f);
}

static void read_template_arguments(struct chat_request *r, struct json_object *body,
                                    struct fault *f)
{
    struct json_object *o = request_get_object(body, "chat_template_kwargs", f);
    if (!o)
        return;
    read_think(r, o, "thinking", f);
    read_think(r, o, "enable_thinking", f);
    read_think(r, o, "reasoning_effort", f);
    request_get_bool(o, "preserve_thinking", &r->preserve_thinking, f);
}

void openai_read_thinking(struct chat_request *r, struct json_object *body, struct fault *f)
{
    read_template_arguments(r, body, f);
    read_think(r, body, "think", f);
    read_think(r, body, "enable_thinking", f);
    read_thinking_object(r, body, f);
    read_think(r, body, "reasoning_effort", f);
    request_get_bool(body, "preserve_thinking", &r->preserve_thinking, f);
    request_get_bool(body, "reasoning_control", &r->thought_control, f);
    read_budget(r, body, "thinking_budget_tokens", f);
    struct json_object *v = request_get(body, "reasoning");
    if (!v || f->kind)
        return;
    if (!json_object_is_type(v, json_type_object)) {
        read_think(r, body, "reasoning", f);
        return;
    }
    read_think(r, v, "enabled", f);
    read_think(r, v, "effort", f);
    read_budget(r, v, "max_tokens", f);
}

/* ---- prompts ---- */

static void add_id(struct request_prompt *p, size_t *cap, struct json_object *v,
                   const struct answer_options *o, struct fault *f)
{
    const int64_t id = json_object_get_int64(v);
    if (id < 0 || id >= o->n_vocab)
        request_fault(f, FAULT_REQUEST, "prompt",
                      "'prompt' has token %lld, outside the vocabulary of %lld", (long long)id,
                      (long long)o->n_vocab);
    else if (!mem_grow(&p->ids, cap, p->n_ids + 1, sizeof *p->ids))
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a prompt");
    else
        p->ids[p->n_ids++] = (int32_t)id;
}

static void add_text(struct request_prompt *p, size_t *cap, struct json_object *v,
                     const struct answer_options *o, struct fault *f)
{
    struct ingle_error e;
    int32_t *ids;
    size_t n;
    const ingle_status st =
        ingle_tokenize(o->model, json_object_get_string(v), (size_t)json_object_get_string_len(v),
                       INGLE_PARSE_SPECIAL | (p->n_ids ? 0 : INGLE_ADD_SPECIAL), &ids, &n, &e);
    if (st) {
        request_fault_from(f, st, "prompt", e.text);
        return;
    }
    if (!mem_grow(&p->ids, cap, p->n_ids + n, sizeof *p->ids))
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a prompt");
    else if (n)
        memcpy(p->ids + p->n_ids, ids, n * sizeof *ids);
    if (!f->kind)
        p->n_ids += n;
    ingle_free(ids);
}

/* Token ids, or token ids and strings. */
static void read_mixed(struct chat_request *r, struct json_object *list,
                       const struct answer_options *o, struct fault *f)
{
    struct request_prompt *p = request_add_prompt(r, f);
    size_t cap = 0;
    if (!p)
        return;
    p->is_ids = true;
    for (size_t i = 0; i < json_object_array_length(list) && request_go_on(f); i++) {
        struct json_object *v = json_object_array_get_idx(list, i);
        if (json_object_is_type(v, json_type_int))
            add_id(p, &cap, v, o, f);
        else if (request_is_text(v))
            add_text(p, &cap, v, o, f);
        else
            request_fault(f, FAULT_REQUEST, "prompt", "'prompt' has an item %zu that is neither a "
                                                      "token nor a string", i);
    }
}

void openai_read_prompt(struct chat_request *r, struct json_object *v,
                        const struct answer_options *o, struct fault *f)
{
    struct json_object *text = v;
    if (f->kind)
        return;
    if (json_object_is_type(v, json_type_array)) {
        read_mixed(r, v, o, f);
        return;
    }
    if (json_object_is_type(v, json_type_object)) {
        text = request_get(v, "prompt_string");
        struct json_object *media = request_get_array(v, "multimodal_data", 16, f);
        if (media && json_object_array_length(media))
            request_fault(f, FAULT_REQUEST, "prompt", "'prompt' has images or sounds: this version "
                                                      "reads text alone");
    }
    if (!request_is_text(text)) {
        request_fault(f, FAULT_REQUEST, "prompt",
                      "'prompt' is neither a string nor a list of tokens");
        return;
    }
    struct request_prompt *p = request_add_prompt(r, f);
    if (p)
        str_add(&p->text, json_object_get_string(text), (size_t)json_object_get_string_len(text));
}

/* A list is one prompt if it has a token in it, else a list of prompts. */
void openai_read_prompts(struct chat_request *r, struct json_object *v, bool *many,
                         const struct answer_options *o, struct fault *f)
{
    *many = json_object_is_type(v, json_type_array);
    if (f->kind)
        return;
    if (!v) {
        request_fault(f, FAULT_REQUEST, "prompt", "'prompt' is missing");
        return;
    }
    const size_t n = *many ? json_object_array_length(v) : 0;
    if (*many && !n)
        request_fault(f, FAULT_REQUEST, "prompt", "'prompt' is an empty list");
    for (size_t i = 0; i < n && *many; i++)
        *many = !json_object_is_type(json_object_array_get_idx(v, i), json_type_int);
    if (!*many) {
        openai_read_prompt(r, v, o, f);
        return;
    }
    for (size_t i = 0; i < n && request_go_on(f); i++)
        openai_read_prompt(r, json_object_array_get_idx(v, i), o, f);
}
