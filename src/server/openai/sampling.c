/* SPDX-License-Identifier: Apache-2.0 */
/*
 * openai_sampling - how tokens are drawn and how hard is thought, in the words of OpenAI,
 * llama-server, vLLM, SGLang and text-generation-inference; every dialect takes them.
 */
#include "server/fields.h"
#include "server/openai/openai.h"

#include "base/mem.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 64, MAX_WORD = 1024, MAX_IDS = 65536 };

/* ---- sampling ---- */

static bool is_zero(struct json_object *body, const char *name)
{
    struct json_object *v = request_get(body, name);
    const double d = request_is_number(v) ? json_object_get_double(v) : 1;
    return !(d < 0 || d > 0);
}

/* What zeros and missing fields are to llama-server and not to the library: a window of no tokens
 * has nothing to penalise, a base below 1 is none, and XTC has a threshold unless set
 * otherwise. */
static void read_as_llama(struct chat_request *r, struct json_object *body,
                          const struct ingle_sampling *defaults)
{
    struct ingle_sampling *s = &r->o.sampling;
    if (s->top_k < 0)
        s->top_k = 0;
    if (is_zero(body, "repeat_last_n")) {
        s->repeat_penalty = 1;
        s->presence_penalty = s->frequency_penalty = 0;
    }
    if (s->repeat_penalty <= 0)
        s->repeat_penalty = 1;
    if (s->typical_p <= 0)
        s->typical_p = 1;
    if (is_zero(body, "dry_penalty_last_n"))
        s->dry_multiplier = 0;
    if (s->dry_base < 1)
        s->dry_base = 0;
    if (s->xtc_probability > 0 && defaults->xtc_probability <= 0 && s->xtc_threshold <= 0 &&
        !request_get(body, "xtc_threshold"))
        s->xtc_threshold = 0.1F;
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
    const double d = request_is_number(v) ? json_object_get_double(v) : 1e9;
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

/* ---- which samplers ---- */

/* In the order of the sampler, which is llama-server's own; letter: in its short form. */
static const struct {
    const char *name, *also;
    char letter;
} chain[] = {
    {"penalties", "penalties", 'e'}, {"dry", "dry", 'd'},     {"top_n_sigma", "top_n_sigma", 's'},
    {"top_k", "top-k", 'k'},         {"typ_p", "typical_p", 'y'}, {"top_p", "top-p", 'p'},
    {"min_p", "min-p", 'm'},         {"xtc", "xtc", 'x'},     {"temperature", "temp", 't'},
};
enum { N_CHAIN = sizeof chain / sizeof *chain };

/* What is not in the chain does nothing. */
static void turn_off(struct ingle_sampling *s, int which)
{
    switch (which) {
    case 0:
        s->repeat_penalty = 1;
        s->presence_penalty = s->frequency_penalty = 0;
        break;
    case 1:
        s->dry_multiplier = 0;
        break;
    case 3:
        s->top_k = 0;
        break;
    case 4:
        s->typical_p = 1;
        break;
    case 5:
        s->top_p = 1;
        break;
    case 6:
        s->min_p = 0;
        break;
    case 7:
        s->xtc_probability = 0;
        break;
    case 8:
        s->temperature = 1;
        break;
    default: /* there is no such sampler */
        break;
    }
}

static int sampler_of(const char *word, size_t n, bool letters)
{
    for (int i = 0; i < N_CHAIN; i++) {
        if (letters ? *word == chain[i].letter
                    : (n == strlen(chain[i].name) && memcmp(word, chain[i].name, n) == 0) ||
                          (n == strlen(chain[i].also) && memcmp(word, chain[i].also, n) == 0))
            return i;
    }
    return -1;
}

/* A list of names, or a word of their letters: those that are not in it are off.  Their order is
 * fixed. */
static void read_samplers(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *v = request_get(body, "samplers");
    const bool letters = request_is_text(v), list = json_object_is_type(v, json_type_array);
    const size_t n = letters ? (size_t)json_object_get_string_len(v)
                     : list  ? json_object_array_length(v)
                             : 0;
    bool on[N_CHAIN] = {false};
    int last = -1;
    if (!v || f->kind)
        return;
    if (!letters && !list)
        request_fault(f, FAULT_REQUEST, "samplers",
                      "'samplers' is neither a list of names nor a word");
    for (size_t i = 0; i < n && request_go_on(f); i++) {
        struct json_object *name = list ? json_object_array_get_idx(v, i) : NULL;
        const char *word = letters                 ? json_object_get_string(v) + i
                           : request_is_text(name) ? json_object_get_string(name)
                                                   : "";
        const int which = sampler_of(word, letters ? 1 : strlen(word), letters);
        if (which < 0)
            request_fault(f, FAULT_REQUEST, "samplers",
                          "'samplers[%zu]' is none of penalties, dry, top_n_sigma, top_k, typ_p, "
                          "top_p, min_p, xtc and "
                          "temperature",
                          i);
        else if (which <= last)
            request_fault(f, FAULT_REQUEST, "samplers",
                          "'samplers' has %s after %s: the order is penalties, dry, top_n_sigma, "
                          "top_k, typ_p, top_p, "
                          "min_p, xtc, temperature",
                          chain[which].name, chain[last].name);
        else
            on[last = which] = true;
    }
    for (int i = 0; n && i < N_CHAIN && !f->kind; i++)
        if (!on[i])
            turn_off(&r->o.sampling, i);
}

/* ---- lists of tokens ---- */

static void add_id(struct request_ids *ids, int32_t id, const char *param, struct fault *f)
{
    if (ids->n >= MAX_IDS)
        request_fault(f, FAULT_REQUEST, param, "'%s' has more than %d tokens", param, (int)MAX_IDS);
    else if (!mem_grow(&ids->id, &ids->cap, ids->n + 1, sizeof *ids->id))
        request_fault(f, FAULT_ENGINE, NULL, "no memory for the tokens of '%s'", param);
    else
        ids->id[ids->n++] = id;
}

static void read_ids(struct request_ids *ids, struct json_object *body, const char *name,
                     const struct answer_options *o, struct fault *f)
{
    struct json_object *list = request_get_array(body, name, MAX_IDS, f);
    for (size_t i = 0; list && i < json_object_array_length(list) && request_go_on(f); i++) {
        struct json_object *v = json_object_array_get_idx(list, i);
        const int64_t id = json_object_is_type(v, json_type_int) ? json_object_get_int64(v) : -1;
        if (id < 0 || id >= o->n_vocab)
            request_fault(f, FAULT_REQUEST, name, "'%s[%zu]' is no token: ids go from 0 to %lld",
                          name, i, (long long)o->n_vocab - 1);
        else
            add_id(ids, (int32_t)id, name, f);
    }
}

static void ban(struct chat_request *r, const char *text, size_t n, const struct answer_options *o,
                struct fault *f)
{
    struct ingle_error e;
    int32_t *ids;
    size_t n_ids;
    const ingle_status st = ingle_tokenize(o->model, text, n, 0, &ids, &n_ids, &e);
    if (st) {
        request_fault_from(f, st, "bad_words", e.text);
        return;
    }
    for (size_t i = 0; i < n_ids && !f->kind; i++)
        add_id(&r->banned, ids[i], "bad_words", f);
    if (n_ids && !f->kind)
        add_id(&r->banned, -1, "bad_words", f);
    ingle_free(ids);
}

/* Words by their tokens, as vLLM does it: at the start of a line and after a blank. */
static void read_bad_words(struct chat_request *r, struct json_object *body,
                           const struct answer_options *o, struct fault *f)
{
    struct json_object *list = request_get_array(body, "bad_words", MAX_WORDS, f);
    for (size_t i = 0; list && i < json_object_array_length(list) && request_go_on(f); i++) {
        struct json_object *v = json_object_array_get_idx(list, i);
        const size_t n = request_is_text(v) ? (size_t)json_object_get_string_len(v) : 0;
        char with_space[MAX_WORD + 1] = " ";
        if (!n || n > MAX_WORD) {
            request_fault(f, FAULT_REQUEST, "bad_words",
                          "'bad_words[%zu]' is no string of 1 to %d bytes", i, (int)MAX_WORD);
            return;
        }
        memcpy(with_space + 1, json_object_get_string(v), n);
        ban(r, with_space + 1, n, o, f);
        if (with_space[1] != ' ')
            ban(r, with_space, n + 1, o, f);
    }
}

/* ---- stop strings ---- */

void openai_read_stop(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *v = request_get(body, "stop");
    if (!v || f->kind)
        return;
    if (request_is_text(v)) {
        request_add_stop(r, json_object_get_string(v), (size_t)json_object_get_string_len(v),
                         "stop", f);
        return;
    }
    v = request_get_array(body, "stop", REQUEST_MAX_STOPS, f);
    for (size_t i = 0; v && i < json_object_array_length(v) && request_go_on(f); i++) {
        struct json_object *s = json_object_array_get_idx(v, i);
        if (!s)
            continue;
        if (!request_is_text(s))
            request_fault(f, FAULT_REQUEST, "stop", "'stop[%zu]' is no string", i);
        else
            request_add_stop(r, json_object_get_string(s), (size_t)json_object_get_string_len(s),
                             "stop", f);
    }
}

/* ---- what cannot be had ---- */

/* The sampler's own, in any order. */
static void check_breakers(struct json_object *body, struct fault *f)
{
    static const char *const own[] = {"\n", ":", "\"", "*"};
    struct json_object *list = request_get_array(body, "dry_sequence_breakers", MAX_WORDS, f);
    const size_t n = list ? json_object_array_length(list) : 0;
    size_t n_own = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof own / sizeof *own; k++)
            n_own += request_text_is(json_object_array_get_idx(list, i), own[k]);
    if (list && (n != 4 || n_own != 4))
        request_fault(f, FAULT_REQUEST, "dry_sequence_breakers",
                      "'dry_sequence_breakers' can only be line feed, colon, quote and star, which "
                      "they are without it");
}

static void refuse(struct json_object *body, bool chat, int n, struct fault *f)
{
    check_breakers(body, f);
    struct json_object *format = request_get(body, "reasoning_format");
    if (format && !request_text_is(format, "auto") && !request_text_is(format, "deepseek") &&
        !request_text_is(format, "deepseek-legacy"))
        request_fault(f, FAULT_REQUEST, "reasoning_format",
                      "'reasoning_format' is %.40s, not auto, deepseek or deepseek-legacy",
                      json_object_get_string(format));
    if (chat)
        params_refuse_above(body, "best_of", n, "/v1/completions has it", f);
}

/* ---- all of it ---- */

/* llama-server's fields of drafting as an object, or false; it changes no text. */
static void read_speculative(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *o = request_get(body, "speculative");
    if (json_object_is_type(o, json_type_boolean))
        r->o.draft_max = json_object_get_boolean(o) ? r->o.draft_max : -1;
    else if ((o = request_get_object(body, "speculative", f)))
        params_read(r, o, PARAMS_SPECULATIVE, f);
}

void openai_read_params(struct chat_request *r, struct json_object *body,
                        const struct answer_options *o, enum params_form form, struct fault *f)
{
    const struct ingle_sampling defaults = r->o.sampling;
    const bool chat = form == PARAMS_CHAT || form == PARAMS_MESSAGES || form == PARAMS_RESPONSES;
    params_read(r, body, form, f);
    read_as_llama(r, body, &defaults);
    read_samplers(r, body, f);
    if (r->greedy)
        r->o.sampling.temperature = 0;
    if (r->id_slot < 0)
        r->id_slot = 0;
    read_bias(r, body, o, f);
    read_ids(&r->stop_ids, body, "stop_token_ids", o, f);
    read_ids(&r->only, body, "allowed_token_ids", o, f);
    read_bad_words(r, body, o, f);
    refuse(body, chat, r->o.n, f);
    read_speculative(r, body, f);
}

/* ---- thinking: every vendor has its own words ---- */

static void think(struct chat_request *r, bool on)
{
    r->thinking = on ? THINKING_ON : THINKING_OFF;
}

void openai_think_word(struct chat_request *r, struct json_object *o, const char *name,
                       struct fault *f)
{
    struct json_object *v = request_get(o, name);
    if (!v || f->kind)
        return;
    if (json_object_is_type(v, json_type_boolean))
        think(r, json_object_get_boolean(v));
    else if (request_is_text(v))
        request_effort(r, json_object_get_string(v), name, f);
    else
        request_fault(f, FAULT_REQUEST, name, "'%s' is neither a boolean nor a word", name);
}

void openai_think_budget(struct chat_request *r, struct json_object *o, const char *name,
                        struct fault *f)
{
    request_get_int(o, name, -1, INT32_MAX, &r->thinking_budget, f);
}

static void read_template_arguments(struct chat_request *r, struct json_object *body,
                                    struct fault *f)
{
    struct json_object *o = request_get_object(body, "chat_template_kwargs", f);
    if (!o)
        return;
    openai_think_word(r, o, "thinking", f);
    openai_think_word(r, o, "enable_thinking", f);
    openai_think_word(r, o, "reasoning_effort", f);
    request_get_bool(o, "preserve_thinking", &r->preserve_thinking, f);
}

void openai_read_think(struct chat_request *r, struct json_object *body, struct fault *f)
{
    read_template_arguments(r, body, f);
    openai_think_word(r, body, "think", f);
    openai_think_word(r, body, "enable_thinking", f);
    openai_think_word(r, body, "reasoning_effort", f);
    request_get_bool(body, "preserve_thinking", &r->preserve_thinking, f);
}
