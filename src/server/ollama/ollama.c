/* SPDX-License-Identifier: Apache-2.0 */
#include "server/fields.h"
#include "server/ollama/ollama.h"
#include "server/serve.h"

#include "base/sha256.h"

#include <stdio.h>
#include <string.h>

static bool is_loaded(const struct serve *s) { return serve_phase(s) != SERVE_LOADING; }

/* ---- answers ---- */

static void answer(struct serve *v, struct http_exchange *x, const struct http_request *rq,
                   bool generate)
{
    const struct answer_options *o = answer_get_options(v->answers);
    const struct dialect *d = generate ? &ollama_generate_dialect : &ollama_chat_dialect;
    struct fault f = serve_watch(x);
    struct chat_request r;
    struct ollama *s = ollama_create();
    struct str out;
    if (!s) {
        serve_fail(x, rq, &(struct serve_error){.status = 500}, "out of memory");
        return;
    }
    s->generate = generate;
    request_init(&r, &o->sampling);
    struct json_object *body = request_body(rq->body, rq->n_body, &f);
    if (body)
        ollama_read(&r, body, o, s, &f);
    json_object_put(body);
    if (s->nothing)
        answer_check(v->answers, x, rq, &r, &f);
    if (f.kind || !s->nothing) {
        answer_start(v->answers, x, rq, &r, d, s, &f);
    } else {
        str_init(&out);
        ollama_put_loaded(&out, s, v->model_id);
        serve_json(x, rq, &out);
        ollama_free(s);
    }
    request_release(&r);
}

void ollama_chat(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    answer(v, x, rq, false);
}

void ollama_generate(struct serve *v, struct http_exchange *x, const struct http_request *rq)
{
    answer(v, x, rq, true);
}

/* ---- the model ---- */

/* "26B", "4.3M" */
static void put_size(struct str *out, const char *key, uint64_t n)
{
    static const struct {
        double unit;
        char letter;
    } units[] = {{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}, {1e3, 'K'}, {1, ' '}};
    char text[32] = "0";
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if ((double)n >= units[i].unit) {
            snprintf(text, sizeof text, "%.*f%c", (double)n < 100 * units[i].unit,
                     (double)n / units[i].unit, units[i].letter);
            break;
        }
    write_member(out, key, text);
}

static void put_details(const struct serve *s, struct str *out)
{
    write_key(out, "details");
    write_open(out, '{');
    write_member(out, "parent_model", "");
    write_member(out, "format", "gguf");
    write_member(out, "family", is_loaded(s) ? s->info.arch : "");
    write_key(out, "families");
    write_open(out, '[');
    if (is_loaded(s))
        write_text(out, s->info.arch);
    write_close(out, ']');
    put_size(out, "parameter_size", is_loaded(s) ? s->info.n_params : 0);
    write_member(out, "quantization_level", "unknown");
    write_close(out, '}');
}

/* name, model, size, digest, details: what a model is in lists. */
static void put_entry(const struct serve *s, struct str *out)
{
    struct sha256 h;
    uint8_t hash[SHA256_BYTES];
    const char *print = is_loaded(s) ? s->fingerprint : s->model_id;
    sha256_init(&h);
    sha256_add(&h, print, strlen(print));
    sha256_end(&h, hash);
    write_member(out, "name", s->model_id);
    write_member(out, "model", s->model_id);
    write_key(out, "size");
    write_uint(out, is_loaded(s) ? s->info.file_bytes : 0);
    write_key(out, "digest");
    str_addc(out, '"');
    for (size_t i = 0; i < sizeof hash; i++)
        str_addf(out, "%02x", hash[i]);
    str_addc(out, '"');
    put_details(s, out);
}

static void list(const struct serve *s, struct http_exchange *x, const struct http_request *rq,
                 bool running)
{
    struct str out;
    str_init(&out);
    write_open(&out, '{');
    write_key(&out, "models");
    write_open(&out, '[');
    write_open(&out, '{');
    put_entry(s, &out);
    if (running) {
        write_member(&out, "expires_at", "2318-01-01T00:00:00Z"); /* never */
        write_member_int(&out, "size_vram", 0);
        write_member_int(&out, "context_length", s->engine_info.n_ctx);
    } else {
        ollama_put_time(&out, "modified_at", s->created, -1);
    }
    write_close(&out, '}');
    write_close(&out, ']');
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

void ollama_tags(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    list(s, x, rq, false);
}

void ollama_ps(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    list(s, x, rq, true);
}

void ollama_version(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct str out;
    (void)s;
    str_init(&out);
    write_open(&out, '{');
    write_member(&out, "version", OLLAMA_VERSION);
    write_member(&out, "ingle", ingle_version());
    write_close(&out, '}');
    serve_json(x, rq, &out);
}

static void put_model_info(const struct serve *s, struct str *out)
{
    const struct {
        const char *name;
        int64_t v;
    } numbers[] = {
        {"context_length", s->engine_info.n_ctx},
        {"embedding_length", s->engine_info.n_embd},
        {"block_count", s->info.n_layers},
        {"vocab_size", s->engine_info.n_vocab},
    };
    write_key(out, "model_info");
    write_open(out, '{');
    write_member(out, "general.architecture", s->info.arch);
    write_member(out, "general.basename", s->info.name);
    write_key(out, "general.parameter_count");
    write_uint(out, s->info.n_params);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char key[128];
        snprintf(key, sizeof key, "%.80s.%s", s->info.arch, numbers[i].name);
        write_member_int(out, key, numbers[i].v);
    }
    write_close(out, '}');
}

/* Modelfile's parameters, a line each. */
static void put_parameters(const struct serve *s, struct str *out)
{
    const struct ingle_sampling *p = &answer_get_options(s->answers)->sampling;
    char text[256];
    snprintf(
        text, sizeof text,
        "num_ctx %lld\ntemperature %.6g\ntop_k %d\ntop_p %.6g\nmin_p %.6g\nrepeat_penalty %.6g",
        (long long)s->engine_info.n_ctx, (double)p->temperature, p->top_k, (double)p->top_p,
        (double)p->min_p, (double)p->repeat_penalty);
    write_member(out, "parameters", text);
}

static bool knows(const struct serve *s, const struct str *name)
{
    static const char latest[] = ":latest";
    char bare[256];
    size_t n = name->n;
    if (!ingle_config_flag(s->config, "strict-model") || !n)
        return true;
    if (memchr(name->at, 0, n)) /* it would hide what follows it */
        return false;
    if (serve_knows(s, name->at))
        return true;
    if (n >= sizeof bare || n <= sizeof latest - 1 ||
        strcmp(name->at + n - (sizeof latest - 1), latest) != 0)
        return false;
    n -= sizeof latest - 1;
    memcpy(bare, name->at, n);
    bare[n] = 0;
    return serve_knows(s, bare);
}

static void put_show(const struct serve *s, struct str *out)
{
    static const char *const can[] = {"completion", "tools", "thinking"};
    write_open(out, '{');
    write_member(out, "license", "");
    write_member(out, "modelfile", "");
    put_parameters(s, out);
    write_member(out, "template",
                 s->info.chat[0] ? "{{ .System }}{{ .Tools }}{{ .Prompt }}{{ .Response }}"
                                 : "{{ .Prompt }}");
    put_details(s, out);
    put_model_info(s, out);
    write_key(out, "capabilities");
    write_open(out, '[');
    for (size_t i = 0; i < (s->info.chat[0] ? sizeof can / sizeof *can : 1); i++)
        write_text(out, can[i]);
    if (s->engine_info.sees)
        write_text(out, "vision");
    if (s->engine_info.hears)
        write_text(out, "audio");
    write_close(out, ']');
    ollama_put_time(out, "modified_at", s->created, -1);
    write_close(out, '}');
}

void ollama_show(struct serve *s, struct http_exchange *x, const struct http_request *rq)
{
    struct fault f = serve_watch(x);
    struct str name, out;
    bool verbose = false;
    str_init(&name);
    struct json_object *body = request_body(rq->body, rq->n_body, &f);
    if (body) {
        request_get_text(body, "name", 256, &name, &f);
        request_get_text(body, "model", 256, &name, &f);
        request_get_bool(body, "verbose", &verbose, &f);
    }
    json_object_put(body);
    if (f.kind) {
        serve_fail(x, rq, &(struct serve_error){.status = f.status}, "%s", f.message);
    } else if (!knows(s, &name)) {
        serve_fail(x, rq, &(struct serve_error){.status = 404}, "model '%.100s' not found",
                   name.at);
    } else {
        str_init(&out);
        put_show(s, &out);
        serve_json(x, rq, &out);
    }
    str_release(&name);
}
