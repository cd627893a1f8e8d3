/* SPDX-License-Identifier: Apache-2.0
 *
 * The endpoints around the answers: health, models, tokens, slots, what does not exist here.
 * /props is in endpoints_props.c.
 */
#include "server/answer.h"
#include "server/answer_prompt.h"
#include "server/fields.h"
#include "server/metrics.h"
#include "server/odd.h"
#include "server/openai/openai.h"
#include "server/serve.h"
#include "server/slots.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TEXT = 16 << 20, MAX_TOKENS = 4 << 20 };

/* ---- health ---- */

/* Where experts cannot be read, requests that need others are still answered. */
static void put_health(const struct serve *s, struct str *out)
{
    struct ingle_experts n;
    const bool bad = ingle_engine_experts(s->engine, &n) && (n.bad || n.stuck);
    write_member(out, "status", bad ? "degraded" : "ok");
    if (!bad)
        return;
    str_addf(out, ",\"bad_experts\":%llu,\"stuck_reads\":%llu", (unsigned long long)n.bad,
             (unsigned long long)n.stuck);
    /* which file it is, is for those with a key: /props */
    write_member(out, "reason", "experts on disk cannot be read");
}

void endpoints_health(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    const enum serve_phase phase = serve_phase(s);
    struct str out;
    if (phase != SERVE_READY) {
        const struct serve_error e = {.status = 503, .retry_seconds = 2};
        serve_fail(x, rq, &e, phase == SERVE_LOADING ? "Loading model" : "the server is stopping");
        return;
    }
    str_init(&out);
    write_open(&out, '{');
    put_health(s, &out);
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

/* ---- models ---- */

static void put_limits(const struct serve *s, struct str *out)
{
    write_member_int(out, "max_model_len", s->engine_info.n_ctx);
    write_member_int(out, "context_length", s->engine_info.n_ctx);
    write_member_int(out, "max_context_length",
                     s->info.n_ctx ? s->info.n_ctx : s->engine_info.n_ctx);
    write_key(out, "top_provider");
    write_open(out, '{');
    write_member_int(out, "context_length", s->engine_info.n_ctx);
    write_member_int(out, "max_completion_tokens", s->engine_info.n_ctx);
    write_close(out, '}');
}

static void put_list(struct str *out, const char *key, const char *const *text, size_t n)
{
    write_key(out, key);
    write_open(out, '[');
    for (size_t i = 0; i < n; i++)
        write_text(out, text[i]);
    write_close(out, ']');
}

static void put_modalities(const struct serve *s, bool loaded, struct str *out)
{
    const char *in[3] = {"text"};
    size_t n = 1;
    if (loaded && s->engine_info.sees)
        in[n++] = "image";
    if (loaded && s->engine_info.hears)
        in[n++] = "audio";
    write_key(out, "architecture");
    write_open(out, '{');
    put_list(out, "input_modalities", in, n);
    put_list(out, "output_modalities", in, 1);
    write_close(out, '}');
}

/* What OpenAI's clients, llama.cpp's, and those that look for OpenRouter's members want. */
static void put_model(const struct serve *s, struct str *out)
{
    static const char *const parameters[] = {
        "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "min_p", "n",
        "presence_penalty", "reasoning_effort", "response_format", "seed", "stop", "temperature",
        "tool_choice", "tools", "top_k", "top_logprobs", "top_p",
    };
    const bool loaded = serve_phase(s) != SERVE_LOADING;
    static const struct {
        const char *name, *option;
    } lists[] = {{"aliases", "alias"}, {"tags", "tag"}};
    const char *word;
    write_open(out, '{');
    write_member(out, "id", s->model_id);
    write_member(out, "object", "model");
    write_member_int(out, "created", s->created);
    write_member(out, "owned_by", "ingle");
    write_member(out, "root", s->model_id);
    write_member_null(out, "parent");
    write_member_int(out, "last_used_ms", metrics_used_ms(s->metrics));
    for (size_t k = 0; k < 2; k++) {
        write_key(out, lists[k].name);
        write_open(out, '[');
        for (size_t i = 0; (word = ingle_config_text(s->config, lists[k].option, i)); i++)
            write_text(out, word);
        write_close(out, ']');
    }
    put_modalities(s, loaded, out);
    put_list(out, "supported_parameters", parameters, sizeof parameters / sizeof *parameters);
    if (!loaded) {
        write_member_null(out, "meta");
        write_close(out, '}');
        return;
    }
    put_limits(s, out);
    write_key(out, "meta");
    write_open(out, '{');
    write_member(out, "arch", s->info.arch);
    write_member_int(out, "vocab_type", 2);
    write_member_int(out, "n_vocab", s->engine_info.n_vocab);
    write_member_int(out, "n_ctx_train", s->info.n_ctx);
    write_member_int(out, "n_embd", s->engine_info.n_embd);
    write_key(out, "n_params");
    write_uint(out, s->info.n_params);
    write_key(out, "size");
    write_uint(out, s->info.file_bytes);
    write_close(out, '}');
    write_close(out, '}');
}

static void put_anthropic_model(const struct serve *s, struct str *out)
{
    write_open(out, '{');
    write_member(out, "type", "model");
    write_member(out, "id", s->model_id);
    write_member(out, "display_name", s->model_id);
    write_member(out, "created_at", "2026-01-01T00:00:00Z");
    if (serve_phase(s) != SERVE_LOADING) {
        write_member_int(out, "max_input_tokens", s->engine_info.n_ctx);
        write_member_int(out, "max_tokens", s->engine_info.n_ctx);
    }
    write_close(out, '}');
}

/* Codex reads its catalogue from here and falls back to its own when it is empty.  What only
 * the server knows replaces what the file has. */
static void put_codex(const struct serve *s, struct str *out)
{
    write_key(out, "models");
    write_open(out, '[');
    if (s->codex_model && serve_phase(s) != SERVE_LOADING) {
        write_open(out, '{');
        write_member(out, "slug", s->model_id);
        write_member(out, "display_name", s->model_id);
        write_member_int(out, "context_window", s->engine_info.n_ctx);
        json_object_object_foreach(s->codex_model, key, value)
        {
            if (strcmp(key, "slug") == 0 || strcmp(key, "display_name") == 0 ||
                strcmp(key, "context_window") == 0)
                continue;
            write_string(out, key, strlen(key));
            str_addc(out, ':');
            request_add_value(out, value);
        }
        write_close(out, '}');
    }
    write_close(out, ']');
}

void endpoints_models(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    const bool anthropic = http_request_header(rq, "anthropic-version") != NULL;
    struct str out;
    str_init(&out);
    write_open(&out, '{');
    if (!anthropic)
        write_member(&out, "object", "list");
    write_key(&out, "data");
    write_open(&out, '[');
    if (anthropic)
        put_anthropic_model(s, &out);
    else
        put_model(s, &out);
    write_close(&out, ']');
    if (anthropic) {
        write_member_bool(&out, "has_more", false);
        write_member(&out, "first_id", s->model_id);
        write_member(&out, "last_id", s->model_id);
    } else {
        put_codex(s, &out);
    }
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

void endpoints_model(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    const char *name = serve_path(rq) + strlen("/models/");
    const bool anthropic = http_request_header(rq, "anthropic-version") != NULL;
    struct str out;
    if (!serve_knows(s, name)) {
        const struct serve_error e = {.status = 404,
                                      .type = "invalid_request_error",
                                      .code = "model_not_found",
                                      .anthropic = anthropic};
        if (strcmp(name, "sse") == 0)
            serve_fail(x, rq, &e,
                       "there are no events of models: this server has one, '%s' (--models serves "
                       "several)",
                       s->model_id);
        else
            serve_fail(x, rq, &e, "there is no model '%s': this server has '%s'", name,
                       s->model_id);
        return;
    }
    str_init(&out);
    if (anthropic)
        put_anthropic_model(s, &out);
    else
        put_model(s, &out);
    serve_json(x, rq, &out);
}

/* ---- tokens ---- */

static void fail(struct http_exchange *x, const struct http_request *rq, const struct fault *f)
{
    const struct serve_error e = {.status = f->status, .param = f->param[0] ? f->param : NULL};
    serve_fail(x, rq, &e, "%s", f->message);
}

/* A piece is text, or bytes when it is a part of a character. */
static void put_piece(const struct ingle_model *m, int32_t id, struct str *out)
{
    struct str piece;
    str_init(&piece);
    answer_token_bytes(m, id, &piece);
    write_open(out, '{');
    write_member_int(out, "id", id);
    write_key(out, "piece");
    if (utf8_valid(piece.at, piece.n)) {
        write_string(out, piece.at, piece.n);
    } else {
        write_open(out, '[');
        for (size_t i = 0; i < piece.n; i++)
            write_int(out, (unsigned char)piece.at[i]);
        write_close(out, ']');
    }
    write_close(out, '}');
    str_release(&piece);
}

/* A reply is no larger than a request may be. */
static bool reply_fits(const struct serve *s, const struct str *out, struct fault *f)
{
    const double most = ingle_config_number(s->config, "max-body");
    if ((double)out->n > most)
        request_fault(f, FAULT_REQUEST, NULL,
                      "the reply would have more than %.0f bytes (--limit body)", most);
    return request_go_on(f);
}

/* The texts of tokens, or null where nobody asked for them; bytes that are a part of a character
 * become U+FFFD. */
static void put_token_texts(const struct serve *s, struct str *out, const int32_t *ids, size_t n,
                            bool wanted, struct fault *f)
{
    write_key(out, "token_strs");
    if (!wanted) {
        write_null(out);
        return;
    }
    write_open(out, '[');
    for (size_t i = 0; i < n && reply_fits(s, out, f); i++) {
        struct str piece;
        str_init(&piece);
        answer_token_bytes(s->model, ids[i], &piece);
        write_string(out, piece.at, piece.n);
        str_release(&piece);
    }
    write_close(out, ']');
}

/* How /tokenize answers. */
struct token_form {
    bool pieces; /* as llama-server shows them */
    bool vllm, texts;
};

static void put_tokens(const struct serve *s, struct http_exchange *x,
                       const struct http_request *rq, const struct str *text, int flags,
                       const struct token_form *form, struct fault *f)
{
    const bool pieces = form->pieces, vllm = form->vllm;
    struct ingle_error error;
    struct str out;
    int32_t *ids;
    size_t n;
    struct ingle_bounds bounds = {.stop = request_has_ended, .arg = f};
    const ingle_status st =
        ingle_tokenize_within(s->model, text->at, text->n, flags, &bounds, &ids, &n, &error);
    if (f->kind) {
        fail(x, rq, f);
        return;
    }
    if (st) {
        const struct serve_error e = serve_error_of(st);
        serve_fail(x, rq, &e, "%s", error.text);
        return;
    }
    str_init(&out);
    write_open(&out, '{');
    if (vllm) {
        write_member_int(&out, "count", (int64_t)n);
        write_member_int(&out, "max_model_len", s->engine_info.n_ctx);
    }
    write_key(&out, "tokens");
    write_open(&out, '[');
    for (size_t i = 0; i < n && reply_fits(s, &out, f); i++) {
        if (pieces)
            put_piece(s->model, ids[i], &out);
        else
            write_int(&out, ids[i]);
    }
    write_close(&out, ']');
    if (vllm)
        put_token_texts(s, &out, ids, n, form->texts, f);
    write_close(&out, '}');
    ingle_free(ids);
    if (!f->kind) {
        serve_json(x, rq, &out);
        return;
    }
    str_release(&out);
    fail(x, rq, f);
}

/* A conversation as the model would be shown it. */
static void render_messages(struct serve *s, struct http_exchange *x, struct json_object *body,
                            struct str *text, struct str *warnings, struct fault *f)
{
    const struct answer_options *o = answer_get_options(s->answers);
    struct openai_wish wish = {0};
    struct chat_request r;
    request_init(&r, &o->sampling);
    openai_read_chat(&r, body, o, &wish, f);
    if (!f->kind)
        (void)answer_render(s->answers, x, &r, text, f);
    write_member_texts(warnings, "warnings", (const char *const *)r.warning, r.n_warnings);
    request_release(&r);
}

void endpoints_tokenize(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct fault f = serve_watch(x);
    struct str text, unused;
    bool add_special = false, parse_special = true;
    struct token_form form = {0};
    struct json_object *body = request_body(rq->body, rq->n_body, &f);
    const bool vllm = body && !request_get(body, "content") &&
                      (request_get(body, "prompt") || request_get(body, "messages"));
    form.vllm = vllm;
    str_init(&text);
    str_init(&unused);
    add_special = vllm && !request_get(body, "messages"); /* there it is so unless it is said */
    if (body) {
        /* Beside 'content' they are not used. */
        (void)request_get_array(body, "messages", REQUEST_MAX_MESSAGES, &f);
        if (request_get(body, "prompt"))
            request_get_text(body, "prompt", MAX_TEXT, &unused, &f);
        if (vllm)
            odd_members(body, NULL, &f);
        if (vllm && request_get(body, "messages"))
            render_messages(s, x, body, &text, &unused, &f);
        else if (vllm)
            request_get_text(body, "prompt", MAX_TEXT, &text, &f);
        else if (request_get(body, "content"))
            request_get_text(body, "content", MAX_TEXT, &text, &f);
        else
            request_fault(&f, FAULT_REQUEST, "content",
                          "'content' is missing (or 'prompt' or 'messages', as vLLM has them)");
        request_get_bool(body, "add_special_tokens", &add_special, &f);
        request_get_bool(body, "add_special", &add_special, &f);
        request_get_bool(body, "parse_special", &parse_special, &f);
        request_get_bool(body, "with_pieces", &form.pieces, &f);
        request_get_bool(body, "return_token_strs", &form.texts, &f);
    }
    json_object_put(body);
    if (f.kind)
        fail(x, rq, &f);
    else
        put_tokens(s, x, rq, &text,
                   (add_special ? INGLE_ADD_SPECIAL : 0) |
                       (parse_special ? INGLE_PARSE_SPECIAL : 0),
                   &form, &f);
    str_release(&unused);
    str_release(&text);
}

/* The text of the ids that the array holds. */
static void detokenize(const struct serve *s, struct json_object *tokens, struct str *text,
                       struct fault *f)
{
    const size_t n = tokens ? json_object_array_length(tokens) : 0;
    for (size_t i = 0; i < n && reply_fits(s, text, f); i++) {
        struct json_object *t = json_object_array_get_idx(tokens, i);
        const int64_t id = json_object_is_type(t, json_type_int) ? json_object_get_int64(t) : -1;
        if (id < 0 || id >= s->engine_info.n_vocab)
            request_fault(f, FAULT_REQUEST, "tokens",
                          "'tokens[%zu]' is no token: ids go from 0 to %lld", i,
                          (long long)s->engine_info.n_vocab - 1);
        else
            answer_token_bytes(s->model, (int32_t)id, text);
    }
}

/* The member, piece by piece: written as JSON it may be six times as long. */
static void put_content(const struct serve *s, const char *key, const struct str *text,
                        struct str *out, struct fault *f)
{
    enum { PIECE = 64 * 1024 };
    write_key(out, key);
    str_addc(out, '"');
    for (size_t at = 0; at < text->n && reply_fits(s, out, f);) {
        const size_t left = text->n - at, n = left < PIECE ? left : PIECE;
        at += str_add_json_part(out, text->at + at, n, n == left);
    }
    str_addc(out, '"');
    (void)reply_fits(s, out, f);
}

void endpoints_detokenize(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct fault f = serve_watch(x);
    struct str text, out;
    str_init(&text);
    str_init(&out);
    struct json_object *body = request_body(rq->body, rq->n_body, &f);
    if (body && !request_get(body, "tokens"))
        request_fault(&f, FAULT_REQUEST, "tokens", "'tokens' is missing");
    if (body)
        detokenize(s, request_get_array(body, "tokens", MAX_TOKENS, &f), &text, &f);
    json_object_put(body);
    write_open(&out, '{');
    put_content(s, "content", &text, &out, &f);
    put_content(s, "prompt", &text, &out, &f); /* vLLM's */
    write_close(&out, '}');
    str_release(&text);
    if (!f.kind) {
        serve_json(x, rq, &out);
        return;
    }
    str_release(&out);
    fail(x, rq, &f);
}

void endpoints_apply_template(struct serve *s, struct http_exchange *x,
                              const struct http_request *rq)
{
    struct fault f = serve_watch(x);
    struct str text, out, warnings;
    str_init(&text);
    str_init(&warnings);
    struct json_object *body = request_body(rq->body, rq->n_body, &f);
    if (body)
        render_messages(s, x, body, &text, &warnings, &f);
    json_object_put(body);
    if (f.kind) {
        fail(x, rq, &f);
    } else {
        str_init(&out);
        write_open(&out, '{');
        write_member_string(&out, "prompt", text.at, text.n);
        if (warnings.n)
            str_addf(&out, ",%s", warnings.at);
        write_close(&out, '}');
        serve_json(x, rq, &out);
    }
    str_release(&warnings);
    str_release(&text);
}

/* ---- the scheduler ---- */

enum { MAX_SLOTS = 256 };

/* How long the prompts and answers of other keys are is nobody's business. */
static void hide_others(const struct serve *s, const char *user, struct ingle_slot *slot, int64_t n)
{
    int64_t own[MAX_SLOTS];
    const size_t n_own = answer_requests_of(s->answers, user, own, MAX_SLOTS);
    for (int64_t i = 0; i < n; i++) {
        bool mine = !slot[i].request;
        for (size_t k = 0; k < n_own && !mine; k++)
            mine = own[k] == slot[i].request;
        if (!mine)
            slot[i] = (struct ingle_slot){.request = slot[i].request,
                                          .max_tokens = -1,
                                          .held = slot[i].held,
                                          .restoring = slot[i].restoring};
    }
}

void endpoints_slots(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct ingle_slot slot[MAX_SLOTS];
    struct answer_names names;
    struct ingle_scheduler_status now;
    struct str out;
    if (ingle_config_flag(s->config, "no-slots")) {
        serve_fail(x, rq, &(struct serve_error){.status = 501}, "started with --no-slots");
        return;
    }
    int64_t n = ingle_scheduler_status(s->scheduler, &now, slot, MAX_SLOTS);
    n = n < MAX_SLOTS ? n : MAX_SLOTS;
    if (rq->user && *rq->user)
        hide_others(s, rq->user, slot, n);
    if (http_request_query(rq, "fail_on_no_slot") && now.n_running >= now.max_running) {
        const struct serve_error e = {.status = 503, .retry_seconds = 1};
        serve_fail(x, rq, &e, "no slot available: %lld answers are computed",
                   (long long)now.n_running);
        return;
    }
    str_init(&out);
    write_open(&out, '[');
    for (int64_t i = 0; i < n; i++) {
        const struct ingle_slot *q = &slot[i];
        write_open(&out, '{');
        write_member_int(&out, "id", i);
        write_member_int(&out, "id_task", q->request ? q->request : -1);
        if (q->request)
            answer_names_of(s->answers, rq->user ? rq->user : "", q->request, &names);
        write_member(&out, "request_id", q->request && *names.request_id ? names.request_id : NULL);
        write_member(&out, "traceparent", q->request && *names.trace ? names.trace : NULL);
        write_member_int(&out, "n_ctx", s->engine_info.n_ctx);
        write_member_bool(&out, "speculative",
                          s->engine_info.draft[0] || s->engine_info.draft_text);
        write_member_bool(&out, "is_processing", q->request != 0);
        write_member_bool(&out, "held", q->held);
        write_member_bool(&out, "restoring", q->restoring);
        write_member_int(&out, "n_prompt_tokens", q->n_prompt);
        write_member_int(&out, "n_prompt_tokens_processed", q->n_prefilled);
        write_key(&out, "next_token"); /* a list of one, as llama-server sends it */
        write_open(&out, '[');
        write_open(&out, '{');
        write_member_bool(&out, "has_next_token", q->request != 0);
        write_member_int(&out, "n_decoded", q->n_generated);
        write_member_int(&out, "n_remain",
                         q->request && q->max_tokens >= 0 ? q->max_tokens - q->n_generated : -1);
        write_close(&out, '}');
        write_close(&out, ']');
        write_close(&out, '}');
    }
    write_close(&out, ']');
    serve_json(x, rq, &out);
}

void endpoints_slot(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    if (s->slots)
        slots_answer(s->slots, s, x, rq);
    else
        serve_fail(x, rq, &(struct serve_error){.status = 501, .no_retry = true},
                   "started without --slot-save-path");
}

void endpoints_metrics(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct str out;
    str_init(&out);
    metrics_write(s->metrics, s, &out);
    char start[24];
    snprintf(start, sizeof start, "%lld", (long long)s->created);
    http_header(x, "Process-Start-Time-Unix", start);
    if (str_ok(&out))
        http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.at, out.n);
    else
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
    str_release(&out);
}

/* ---- what other servers have ---- */

void endpoints_unsupported(struct serve *s, struct http_exchange *x,
                           const struct http_request *rq)
{
    (void)s;
    serve_fail(x, rq, &(struct serve_error){.status = 501, .no_retry = true},
               "this server does not support %s %s", rq->method, rq->path);
}

void endpoints_adapters(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct str out;
    (void)s;
    str_init(&out);
    write_open(&out, '[');
    write_close(&out, ']');
    serve_json(x, rq, &out);
}
