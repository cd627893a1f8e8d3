/* SPDX-License-Identifier: Apache-2.0 */
/* openai_native - POST /completion and /completions in the form of llama-server. */
#include "server/fields.h"
#include "server/openai/openai.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { MAX_FIELDS = 64 };

struct native {
    struct openai_wish wish;
    struct openai_timer timer;
    const struct answer_info *info;
    bool many;                   /* a list of prompts gets a list of answers */
    struct json_object *fields;  /* response_fields, or NULL */
    struct sent {
        size_t drawn, token; /* of choice.drawn and choice.token */
    } * sent;                /* [n_choices]: what is out */
    int n_choices, n_ended;
    int last; /* the choice whose end waits for the timings, or -1 */
};

/* ---- pieces ---- */

static const char *stop_type(const struct answer_choice *c)
{
    if (c->finish == ANSWER_LENGTH)
        return "limit";
    return c->finish == ANSWER_OPEN ? "none" : c->stop || c->stop_id ? "word" : "eos";
}

static void put_tokens(const struct native *s, const struct answer_choice *c, size_t first,
                       struct str *out)
{
    write_key(out, "tokens");
    write_open(out, '[');
    for (size_t i = first; s->info->request->keep_tokens && i < c->n_drawn; i++)
        write_int(out, c->drawn[i]);
    write_close(out, ']');
}

/* Of the model, or (post_sampling_probs) of what was drawn from: then probabilities, not their
 * logarithms. */
static void put_probability(struct str *out, bool drawn_from, float logprob)
{
    write_key(out, drawn_from ? "prob" : "logprob");
    write_float(out, drawn_from ? (float)exp((double)logprob) : logprob);
}

static void put_probabilities(const struct native *s, const struct answer_choice *c, size_t first,
                              struct str *out)
{
    const bool drawn_from = s->info->request->o.drawn_from;
    write_key(out, "completion_probabilities");
    write_open(out, '[');
    for (size_t i = first; i < c->n_tokens; i++) {
        const struct answer_token *t = &c->token[i];
        write_open(out, '{');
        write_member_int(out, "id", t->id);
        write_member_string(out, "token", answer_token_text(c, t), t->n_text);
        openai_put_bytes(out, answer_bytes(c, t->bytes_at), t->n_bytes);
        put_probability(out, drawn_from, t->logprob);
        write_key(out, drawn_from ? "top_probs" : "top_logprobs");
        write_open(out, '[');
        for (int k = 0; k < t->n_top; k++) {
            const struct answer_top *top = &c->top[t->top_at + (size_t)k];
            write_open(out, '{');
            write_member_int(out, "id", top->id);
            write_member_string(out, "token", answer_bytes(c, top->bytes_at), top->n_bytes);
            openai_put_bytes(out, answer_bytes(c, top->bytes_at), top->n_bytes);
            put_probability(out, drawn_from, top->logprob);
            write_close(out, '}');
        }
        write_close(out, ']');
        write_close(out, '}');
    }
    write_close(out, ']');
}

static void put_bias(struct str *out, int32_t token, float bias)
{
    write_open(out, '{');
    write_member_int(out, "token", token);
    write_key(out, "bias");
    write_float(out, bias); /* -inf: null */
    write_close(out, '}');
}

/* What was requested, and the ends of an answer when they are ignored. */
static void put_biases(const struct answer_info *info, struct str *out)
{
    const struct chat_request *r = info->request;
    write_key(out, "logit_bias");
    write_open(out, '[');
    for (size_t k = 0; k < r->n_bias; k++)
        put_bias(out, r->bias[k].token, r->bias[k].bias);
    for (int32_t id = 0; r->o.ignore_end && id < info->n_vocab; id++)
        if (ingle_model_is_end(info->llm, id))
            put_bias(out, id, -INFINITY);
    write_close(out, ']');
}

/* What 0 is to the sampler. */
static void show_defaults(struct ingle_sampling *p)
{
    p->dry_base = p->dry_base > 0 ? p->dry_base : 1.75F;
    p->dry_allowed_length = p->dry_allowed_length ? p->dry_allowed_length : 2;
    p->dry_window = p->dry_window ? p->dry_window : -1;
    p->penalty_window = p->penalty_window ? p->penalty_window : 64;
    if (p->xtc_probability <= 0 && p->xtc_threshold <= 0)
        p->xtc_threshold = 0.1F;
}

static void put_settings(const struct answer_info *info, struct str *out)
{
    const struct chat_request *r = info->request;
    struct chat_request shown = *r;
    show_defaults(&shown.o.sampling);
    write_key(out, "generation_settings");
    write_open(out, '{');
    params_write(&shown, false, out);
    write_member_int(out, "mirostat", 0);
    write_member_int(out, "adaptive_target", -1); /* off: there is no such sampler */
    write_member_int(out, "adaptive_decay", 0);
    put_biases(info, out);
    params_write(&shown, true, out);
    write_key(out, "stop");
    write_open(out, '[');
    for (size_t i = 0; i < r->n_stop; i++)
        write_string(out, r->stop[i].at, r->stop[i].n);
    write_close(out, ']');
    write_close(out, '}');
}

static void put_prompt(const struct native *s, const struct answer_choice *c, struct str *out)
{
    const struct request_prompt *p = &s->info->request->prompt[c->prompt];
    char *text;
    size_t n;
    if (!p->is_ids) {
        write_member_string(out, "prompt", p->text.at, p->text.n);
        return;
    }
    if (ingle_detokenize(s->info->llm, p->ids, p->n_ids, true, &text, &n, NULL))
        return;
    write_member_string(out, "prompt", text, n);
    ingle_free(text);
}

/* ---- whole objects ---- */

/* A whole answer, or the last object of a stream, whose content and tokens went out before. */
static void put_answer(const struct native *s, const struct answer_choice *c,
                       const struct answer_result *r, struct str *out)
{
    const bool stream = s->info->request->stream;
    write_open(out, '{');
    write_member_int(out, "index", c->index);
    write_member_string(out, "content", c->content.at, stream ? 0 : c->content.n);
    put_tokens(s, c, stream ? c->n_drawn : 0, out);
    write_member_int(out, "id_slot", s->info->request->id_slot);
    write_member_bool(out, "stop", true);
    write_member(out, "model", s->info->model);
    write_member_texts(out, "warnings", s->info->warnings, s->info->n_warnings);
    write_member_int(out, "tokens_predicted", c->n_generated);
    write_member_int(out, "tokens_evaluated", c->n_prompt);
    put_settings(s->info, out);
    put_prompt(s, c, out);
    write_member_bool(out, "has_new_line", memchr(c->content.at, '\n', c->content.n) != NULL);
    write_member_bool(out, "truncated", false);
    write_member(out, "stop_type", stop_type(c));
    write_member(out, "stopping_word", c->stop ? c->stop : "");
    write_member_int(out, "tokens_cached", c->n_prompt + c->n_generated);
    if (s->info->request->logprobs)
        put_probabilities(s, c, stream ? c->n_tokens : 0, out);
    if (r)
        openai_put_timings(out, r);
    write_close(out, '}');
}

/* What a path of response_fields like "generation_settings/seed" leads to, or NULL. */
static struct json_object *follow(struct json_object *o, const char *path)
{
    for (;;) {
        char word[128];
        const size_t n = strcspn(path, "/");
        if (n >= sizeof word || !json_object_is_type(o, json_type_object))
            return NULL;
        memcpy(word, path, n);
        word[n] = 0;
        if (!json_object_object_get_ex(o, word, &o))
            return NULL;
        if (!path[n])
            return o;
        path += n + 1;
    }
}

/* A path that is named twice is one member. */
static bool has_own_writer(struct json_object *fields, size_t i)
{
    const char *path = json_object_get_string(json_object_array_get_idx(fields, i));
    for (size_t k = 0; k < i; k++)
        if (strcmp(json_object_get_string(json_object_array_get_idx(fields, k)), path) == 0)
            return true;
    return false;
}

/* Replaces the object that begins at `from` by the fields that were requested. */
static void pick_fields(const struct native *s, size_t from, struct str *out)
{
    struct json_object *whole = NULL;
    struct str picked;
    if (!s->fields || json_parse(out->at + from, out->n - from, NULL, &whole, NULL))
        return;
    str_init(&picked);
    write_open(&picked, '{');
    for (size_t i = 0; i < json_object_array_length(s->fields); i++) {
        const char *path = json_object_get_string(json_object_array_get_idx(s->fields, i));
        struct json_object *v = follow(whole, path);
        if (!v || has_own_writer(s->fields, i))
            continue;
        write_string(&picked, path, strlen(path));
        str_addc(&picked, ':');
        request_add_value(&picked, v);
    }
    write_close(&picked, '}');
    json_object_put(whole);
    out->n = from;
    out->at[from] = 0;
    str_add(out, picked.at, picked.n);
    out->failed |= picked.failed;
    str_release(&picked);
}

/* ---- the dialect ---- */

static void native_begin(void *state, const struct answer_info *i, struct str *out)
{
    struct native *s = state;
    (void)out;
    s->info = i;
    openai_timer_start(&s->timer);
    if (s->sent)
        return;
    const size_t n = i->request->n_prompts * (size_t)i->request->o.n;
    s->sent = mem_calloc(n, sizeof *s->sent);
    s->n_choices = s->sent ? (int)n : 0;
}

static void native_progress(void *state, const struct answer_progress *p, struct str *out)
{
    const struct native *s = state;
    str_adds(out, "data: ");
    write_open(out, '{');
    write_member(out, "content", "");
    write_member_bool(out, "stop", false);
    openai_put_progress(out, p, s->info->request->timings_per_token);
    str_adds(out, "}\n\n");
}

static void native_text(void *state, const struct answer_choice *c, enum answer_text kind,
                        const char *text, size_t n, size_t first_token, struct str *out)
{
    struct native *s = state;
    (void)kind;
    (void)first_token;
    const bool known = c->index < s->n_choices;
    const struct sent sent = known ? s->sent[c->index] : (struct sent){c->n_drawn, c->n_tokens};
    str_adds(out, "data: ");
    write_open(out, '{');
    write_member_int(out, "index", c->index);
    write_member_string(out, "content", text, n);
    put_tokens(s, c, sent.drawn, out);
    write_member_bool(out, "stop", false);
    write_member_int(out, "id_slot", s->info->request->id_slot);
    write_member_int(out, "tokens_predicted", c->n_generated);
    write_member_int(out, "tokens_evaluated", c->n_prompt);
    if (s->info->request->logprobs)
        put_probabilities(s, c, sent.token, out);
    if (s->info->request->timings_per_token)
        openai_put_timer(out, &s->timer, s->info, c->n_generated);
    str_adds(out, "}\n\n");
    if (known)
        s->sent[c->index] = (struct sent){c->n_drawn, c->n_tokens};
}

static void put_end(const struct native *s, const struct answer_choice *c,
                    const struct answer_result *r, struct str *out)
{
    str_adds(out, "data: ");
    const size_t from = out->n;
    put_answer(s, c, r, out);
    pick_fields(s, from, out);
    str_adds(out, "\n\n");
}

/* The last one of them waits for done(), which knows the timings. */
static void native_end(void *state, const struct answer_choice *c, struct str *out)
{
    struct native *s = state;
    if (c->index < s->n_choices &&
        (s->sent[c->index].drawn < c->n_drawn || s->sent[c->index].token < c->n_tokens))
        native_text(state, c, ANSWER_CONTENT, "", 0, 0,
                    out); /* tokens without text: the end, a stop string */
    if (++s->n_ended == s->n_choices)
        s->last = c->index;
    else
        put_end(s, c, NULL, out);
}

static void native_done(void *state, const struct answer_result *r, struct str *out)
{
    const struct native *s = state;
    if (s->last >= 0)
        put_end(s, &r->choice[s->last], r, out);
}

static void native_whole(void *state, const struct answer_result *r, struct str *out)
{
    struct native *s = state;
    const bool list = s->many || r->n_choices > 1;
    s->info = r->info;
    if (list)
        write_open(out, '[');
    for (int i = 0; i < r->n_choices; i++) {
        if (i)
            str_addc(out, ',');
        const size_t from = out->n;
        put_answer(s, &r->choice[i], r, out);
        pick_fields(s, from, out);
    }
    if (list)
        write_close(out, ']');
}

static void native_free(void *state)
{
    struct native *s = state;
    json_object_put(s->fields);
    mem_free(s->sent);
    mem_free(s);
}

static const struct dialect native_dialect = {
    .name = "llama-completion",
    .begin = native_begin,
    .progress = native_progress,
    .text = native_text,
    .call_begin = openai_no_call,
    .call_arguments = openai_no_call_arguments,
    .call_end = openai_no_call,
    .end = native_end,
    .done = native_done,
    .keepalive = openai_keepalive,
    .error = openai_error,
    .accepted = openai_accepted,
    .whole = native_whole,
    .free = native_free,
};

/* ---- the request ---- */

static void read_fields(struct native *s, struct json_object *body, struct fault *f)
{
    struct json_object *list = request_get_array(body, "response_fields", MAX_FIELDS, f);
    if (!list || !json_object_array_length(list))
        return;
    for (size_t i = 0; i < json_object_array_length(list); i++)
        if (!json_object_is_type(json_object_array_get_idx(list, i), json_type_string)) {
            request_fault(f, FAULT_REQUEST, "response_fields",
                          "'response_fields[%zu]' is no string", i);
            return;
        }
    s->fields = json_object_get(list);
}

static void read_native(struct chat_request *r, struct json_object *body,
                        const struct answer_options *o, void *state, struct fault *f)
{
    struct native *s = state;
    r->o.max_tokens = o->max_tokens;
    r->o.ignore_end = o->ignore_end;
    request_get_text(body, "model", 256, &r->model, f);
    openai_read_prompts(r, request_get(body, "prompt"), &s->many, o, f);
    openai_read_params(r, body, o, PARAMS_NATIVE, f);
    openai_read_stop(r, body, f);
    openai_read_stream(r, body, o, f);
    openai_read_format(r, body, f);
    read_fields(s, body, f);
    r->logprobs = r->o.n_top > 0;
    r->keep_tokens = r->keep_tokens || r->stream;
}

static void *create_native(void)
{
    struct native *s = mem_zalloc(sizeof *s);
    if (s)
        s->last = -1;
    return s;
}

const struct openai_kind openai_kind_native = {&native_dialect, create_native, read_native};
