/* SPDX-License-Identifier: Apache-2.0 */
/*
 * openai_sampling - how tokens are drawn and how hard is thought, in the words of OpenAI,
 * llama-server, vLLM, SGLang and text-generation-inference; every dialect takes them.
 */
#include "server/openai/openai.h"

#include "base/mem.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 64, MAX_WORD = 1024, MAX_IDS = 65536 };

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
    {"rep_pen", 0, 1000, SAMPLING(repeat_penalty)},
    {"repetition_penalty", 0, 1000, SAMPLING(repeat_penalty)},
    {"repeat_penalty", 0, 1000, SAMPLING(repeat_penalty)},
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
    {"n_keep", -1, 0}, {"n_discard", 0, 0}, {"min_keep", 0, 0},
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
 * has nothing to penalise, a base below 1 is none, and XTC has a threshold unless told
 * otherwise. */
static void read_as_llama(struct chat_request *r, struct json_object *body,
                          const struct ingle_sampling *defaults)
{
    struct ingle_sampling *s = &r->o.sampling;
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

static void read_numbers(struct chat_request *r, struct json_object *body, bool native,
                         struct fault *f)
{
    const struct ingle_sampling before = r->o.sampling, *const defaults = &before;
    char *base = (char *)&r->o.sampling;
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
    if (r->o.sampling.top_k < 0)
        r->o.sampling.top_k = 0;
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
                          "'samplers' has %s behind %s: the order is penalties, dry, top_n_sigma, "
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

/* Words by their tokens, as vLLM does it: at the start of a line and behind a blank. */
static void read_bad_words(struct chat_request *r, struct json_object *body,
                           const struct answer_options *o, struct fault *f)
{
    struct json_object *list = request_get_array(body, "bad_words", MAX_WORDS, f);
    for (size_t i = 0; list && i < json_object_array_length(list) && request_go_on(f); i++) {
        struct json_object *v = json_object_array_get_idx(list, i);
        const size_t n = request_is_text(v) ? (size_t)json_object_get_string_len(v) : 0;
        char behind[MAX_WORD + 1] = " ";
        if (!n || n > MAX_WORD) {
            request_fault(f, FAULT_REQUEST, "bad_words",
                          "'bad_words[%zu]' is no string of 1 to %d bytes", i, (int)MAX_WORD);
            return;
        }
        memcpy(behind + 1, json_object_get_string(v), n);
        ban(r, behind + 1, n, o, f);
        if (behind[1] != ' ')
            ban(r, behind, n + 1, o, f);
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

/* Nothing, or what says "off". */
static bool is_off(struct json_object *v, double off)
{
    if (is_number(v)) {
        const double d = json_object_get_double(v);
        return d >= off && d <= off;
    }
    return !v || (json_object_is_type(v, json_type_boolean) && !json_object_get_boolean(v)) ||
           (request_is_text(v) && !json_object_get_string_len(v)) ||
           (json_object_is_type(v, json_type_array) && !json_object_array_length(v)) ||
           (json_object_is_type(v, json_type_object) && !json_object_object_length(v));
}

/* What is asked for and cannot be had is refused, not forgotten.  off: the number that does not
 * ask. */
static void refuse_what_is_not_there(struct json_object *body, struct fault *f)
{
    static const struct {
        const char *name;
        double off;
        const char *why;
    } refused[] = {
        {"mirostat", 0, "there is no such sampler"},
        {"mirostat_mode", 0, "there is no such sampler"},
        {"dynatemp_range", 0, "there is no such sampler"},
        {"smoothing_factor", 0, "there is no such sampler"},
        {"top_a", 0, "there is no such sampler"},
        {"tfs", 1, "there is no such sampler"},
        {"tfs_z", 1, "there is no such sampler"},
        {"epsilon_cutoff", 0, "there is no such sampler"},
        {"eta_cutoff", 0, "there is no such sampler"},
        {"penalty_alpha", 0, "there is no such sampler"},
        {"guidance_scale", 1, "there is no second prompt"},
        {"cfg_scale", 1, "there is no second prompt"},
        {"negative_prompt", (double)NAN, "there is no second prompt"},
        {"n_indent", 0, "there is no insertion"},
        {"watermark", (double)NAN, "there is none"},
        {"use_beam_search", (double)NAN,
         "there is no search by beams: best_of of /v1/completions computes several answers"},
        {"num_beams", 1,
         "there is no search by beams: best_of of /v1/completions computes several answers"},
        {"length_penalty", 1, "there is no search by beams"},
        {"early_stopping", (double)NAN, "there is no search by beams"},
        {"logits_processors", (double)NAN, "no code of clients is run"},
        {"custom_logit_processor", (double)NAN, "no code of clients is run"},
        {"vllm_xargs", (double)NAN, "such arguments are not supported"},
        {"lora", (double)NAN, "there are no adapters"},
        {"lora_path", (double)NAN, "there are no adapters"},
        {"lora_request", (double)NAN, "there are no adapters"},
        {"chat_template", (double)NAN,
         "the model's own format is used: chat_template_kwargs has what it can vary"},
        {"documents", (double)NAN,
         "the model's format has no place for them: put them into a message"},
        {"prompt_embeds", (double)NAN, "prompts are text or tokens"},
        {"prompt_logprobs", (double)NAN,
         "/v1/completions with echo and logprobs has those of a prompt"},
        {"truncate_prompt_tokens", -1, "prompts are not cut"},
        {"image_data", (double)NAN, "multimodal_data of the prompt has files"},
        {"audio_data", (double)NAN, "multimodal_data of the prompt has files"},
        {"stop_regex", (double)NAN, "stop has strings"},
        {"grammar_lazy", (double)NAN,
         "tools with tool_choice auto hold calls from their marker on"},
        {"grammar_triggers", (double)NAN,
         "tools with tool_choice auto hold calls from their marker on"},
        {"return_token_ids", (double)NAN, "return_tokens of /completion has them"},
        {"return_tokens_as_token_ids", (double)NAN, "return_tokens of /completion has them"},
    };
    int64_t mirostat = 0;
    request_get_int(body, "mirostat", 0, 2, &mirostat, f);
    for (size_t i = 0; i < sizeof refused / sizeof *refused && !f->kind; i++)
        if (!is_off(request_get(body, refused[i].name), refused[i].off))
            request_fault(f, FAULT_REQUEST, refused[i].name, "'%s' cannot be done here: %s",
                          refused[i].name, refused[i].why);
}

/* Numbers below zero, or zero, are off. */
static void refuse_above(struct json_object *body, const char *name, int64_t most, const char *why,
                         struct fault *f)
{
    float v = -FLT_MAX;
    request_get_number(body, name, -(double)FLT_MAX, (double)FLT_MAX, &v, f);
    if (v > (float)most)
        request_fault(f, FAULT_REQUEST, name, "'%s' is %g and cannot be above %lld here: %s", name,
                      (double)v, (long long)most, why);
}

/* What can be had in one way alone. */
static void want_bool(struct json_object *body, const char *name, bool only, const char *why,
                      struct fault *f)
{
    bool v = only;
    request_get_bool(body, name, &v, f);
    if (v != only)
        request_fault(f, FAULT_REQUEST, name, "'%s' cannot be %s here: %s", name,
                      v ? "true" : "false", why);
}

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
    refuse_what_is_not_there(body, f);
    refuse_above(body, "top_n_sigma", 0, "there is no such sampler", f);
    refuse_above(body, "adaptive_target", -1, "there is no such sampler", f);
    refuse_above(body, "min_keep", 1, "samplers keep one token at least", f);
    check_breakers(body, f);
    want_bool(body, "detokenize", true, "answers are text", f);
    want_bool(body, "parse_tool_calls", true, "/completion gives the model's own text", f);
    want_bool(body, "separate_reasoning", true, "/completion gives the model's own text", f);
    struct json_object *format = request_get(body, "reasoning_format");
    if (format && !request_text_is(format, "auto") && !request_text_is(format, "deepseek") &&
        !request_text_is(format, "deepseek-legacy"))
        request_fault(f, FAULT_REQUEST, "reasoning_format",
                      "'reasoning_format' is %.40s, not auto, deepseek or deepseek-legacy",
                      json_object_get_string(format));
    if (!chat)
        return;
    refuse_above(body, "best_of", n, "/v1/completions has it", f);
    want_bool(body, "echo", false, "a chat answer does not include the prompt", f);
    want_bool(body, "add_special_tokens", false, "the model's format has those that belong there",
              f);
    want_bool(body, "skip_special_tokens", true, "/completions shows special tokens", f);
}

/* ---- all of it ---- */

/* Ends: tokens that end an answer, words that do not come in it. */
static void read_ends(struct chat_request *r, struct json_object *body,
                      const struct answer_options *o, bool chat, struct fault *f)
{
    static const char *const least[] = {"min_tokens", "min_new_tokens"};
    for (size_t i = 0; i < 2; i++)
        request_get_int(body, least[i], 0, INT32_MAX, &r->o.sampling.min_tokens, f);
    read_ids(&r->stop_ids, body, "stop_token_ids", o, f);
    read_ids(&r->only, body, "allowed_token_ids", o, f);
    read_bad_words(r, body, o, f);
    request_get_bool(body, "ignore_eos", &r->o.ignore_end, f);
    request_get_bool(body, "include_stop_str_in_output", &r->keep_stop, f);
    request_get_bool(body, "no_stop_trim", &r->keep_stop, f);
    if (!chat)
        request_get_bool(body, "skip_special_tokens", &r->hide_special, f);
}

/* A number of drafted tokens, 0: none; -1 (as absent): as many as pay. */
static void read_draft_max(struct chat_request *r, struct json_object *body, const char *name,
                           struct fault *f)
{
    int64_t n = -1;
    request_get_int(body, name, -1, INT32_MAX, &n, f);
    if (n >= 0)
        r->o.draft_max = n ? n : -1;
}

/* What drafts: one of INGLE_DRAFT_METHODS, or llama-server's word for it ("draft-mtp",
 * "ngram_simple").  Whether it is at hand is the scheduler's to say. */
static void read_draft_method(struct chat_request *r, struct json_object *body, const char *name,
                              struct fault *f)
{
    static const char *const methods[] = {INGLE_DRAFT_METHODS};
    struct str word;
    str_init(&word);
    request_get_text(body, name, 64, &word, f);
    const char *w = str_ok(&word) ? word.at : "";
    if (strcmp(w, "draft") == 0)
        w = "auto";
    else if (strncmp(w, "draft-", 6) == 0 || strncmp(w, "draft_", 6) == 0)
        w = strcmp(w + 6, "simple") == 0 ? "model" : w + 6;
    else if (strncmp(w, "ngram-", 6) == 0 || strncmp(w, "ngram_", 6) == 0)
        w = "ngram";
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i], w) == 0)
            r->o.draft_method = methods[i];
    if (w[0] && (!r->o.draft_method || strcmp(w, r->o.draft_method)))
        request_fault(
            f, FAULT_REQUEST, name,
            "'%s' is '%.64s', which is none of auto, dflash, mtp, dspark, model, ngram and none",
            name, w);
    str_release(&word);
}

/* Whether and how far tokens are drafted, which changes no text: llama-server's fields, flat or as
 * an object.  Least probabilities are checked; what pays is known better. */
static void read_drafting(struct chat_request *r, struct json_object *body, struct fault *f)
{
    struct json_object *draft = request_get(body, "draft"), *o = request_get(body, "speculative");
    float p = 0;
    bool on = true;
    if (json_object_is_type(draft, json_type_boolean))
        r->o.draft_max = json_object_get_boolean(draft) ? 0 : -1;
    else
        read_draft_max(r, body, "draft", f);
    read_draft_max(r, body, "draft_max", f);
    read_draft_max(r, body, "speculative.n_max", f);
    request_get_int(body, "draft_min", 0, INT32_MAX, &r->o.draft_min, f);
    request_get_int(body, "speculative.n_min", 0, INT32_MAX, &r->o.draft_min, f);
    request_get_int(body, "draft_tree", 0, INT32_MAX, &r->o.draft_tree, f);
    request_get_number(body, "speculative.p_min", 0, 1, &p, f);
    read_draft_method(r, body, "draft_method", f);
    read_draft_method(r, body, "speculative.type", f);
    if (json_object_is_type(o, json_type_boolean)) {
        request_get_bool(body, "speculative", &on, f);
        r->o.draft_max = on ? r->o.draft_max : -1;
    } else if ((o = request_get_object(body, "speculative", f))) {
        read_draft_max(r, o, "n_max", f);
        request_get_int(o, "n_min", 0, INT32_MAX, &r->o.draft_min, f);
        request_get_number(o, "p_min", 0, 1, &p, f);
        read_draft_method(r, o, "type", f);
    }
}

void openai_read_sampling(struct chat_request *r, struct json_object *body,
                          const struct answer_options *o, enum openai_limits limits,
                          struct fault *f)
{
    const bool native = limits == OPENAI_NATIVE;
    int64_t priority = 0, slot = -1;
    float deadline = 0;
    bool sample = true, cache = true;
    read_numbers(r, body, native, f);
    read_samplers(r, body, f);
    request_get_bool(body, "do_sample", &sample, f);
    if (!sample)
        r->o.sampling.temperature = 0;
    request_get_seed(body, "seed", r, f);
    read_bias(r, body, o, f);
    read_ends(r, body, o, limits == OPENAI_CHAT, f);
    refuse(body, limits == OPENAI_CHAT, r->o.n, f);
    request_get_bool(body, "post_sampling_probs", &r->o.drawn_from, f);
    request_get_bool(body, "cache_prompt", &cache, f);
    r->o.anew = !cache;
    request_get_int(body, "priority", -10, 10, &priority, f);
    request_get_cache_key(body, "prompt_cache_key", r);
    request_get_number(body, "deadline_seconds", 0, 1e6, &deadline, f);
    request_get_int(body, "t_max_predict_ms", -1, INT32_MAX, &r->predict_ms, f);
    request_get_int(body, "id_slot", -1, INT32_MAX, &slot, f);
    r->o.priority = (int)priority;
    r->id_slot = slot < 0 ? 0 : (int)slot;
    r->o.deadline_seconds = (double)deadline;
    request_get_unsupported(body, "schema_unsupported", r, f);
    read_drafting(r, body, f);
    request_get_way(body, "sparse", ingle_sparse_check, &r->sparse, f);
    request_get_way(body, "kv_select", ingle_select_check, &r->kv_select, f);
    request_get_keep(body, "prompt_keep", r, f);
    request_get_image_tokens(body, "image_tokens", r, f);
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
    static const char *const budget[] = {"thinking_budget", "thinking_token_budget",
                                         "thinking_budget_tokens"};
    read_template_arguments(r, body, f);
    openai_think_word(r, body, "think", f);
    openai_think_word(r, body, "enable_thinking", f);
    openai_think_word(r, body, "reasoning_effort", f);
    request_get_bool(body, "preserve_thinking", &r->preserve_thinking, f);
    for (size_t i = 0; i < sizeof budget / sizeof *budget; i++)
        openai_think_budget(r, body, budget[i], f);
}
