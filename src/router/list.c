/* SPDX-License-Identifier: Apache-2.0
 *
 * What the router lists of its models: /models, /props, and Ollama's lists.
 */
#define _POSIX_C_SOURCE 200809L
#include "router/inner.h"
#include "router/parts.h"

#include "base/sha256.h"
#include "server/auth.h"
#include "server/fields.h"
#include "server/write.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static void put_texts(struct str *out, const char *key, const struct ingle_config *c,
                      const char *option)
{
    const char *text;
    write_key(out, key);
    write_open(out, '[');
    for (size_t i = 0; (text = ingle_config_text(c, option, i)); i++)
        write_text(out, text);
    write_close(out, ']');
}

/* Command lines and errors have paths in them: only for who has a key where there are keys. */
static bool is_known(const struct router *r, const struct http_request *rq)
{
    return !auth_n_keys(r->address.auth) || *rq->user;
}

static void put_status(const struct router *r, const struct http_request *rq,
                       const struct router_model *m, struct str *out)
{
    write_key(out, "status");
    write_open(out, '{');
    write_member(out, "value", router_state_word(m));
    if (is_known(r, rq)) {
        write_key(out, "args");
        write_open(out, '[');
        for (size_t i = 0; i < m->n_arg; i++)
            write_text(out, m->arg[i]);
        write_close(out, ']');
    }
    if (m->state == ROUTER_LOADING || m->state == ROUTER_PLANNING || m->state == ROUTER_QUEUED ||
        m->state == ROUTER_FETCHING)
        write_member_number(out, "progress", m->progress);
    if (m->state == ROUTER_FETCHING)
        write_member_bool(out, "fetching", true);
    if (m->failed) {
        write_member_bool(out, "failed", true);
        write_member_int(out, "exit_code", m->exit_code);
        if (is_known(r, rq))
            write_member(out, "message", m->words);
    }
    write_close(out, '}');
}

/* Members of the process's own entry that the router has itself. */
static bool is_ours(const char *key)
{
    static const char *const word[] = {"id",           "object",  "created", "owned_by",
                                       "last_used_ms", "aliases", "tags",    "status"};
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (strcmp(word[i], key) == 0)
            return true;
    return false;
}

static void put_text_list(struct str *out, const char *key)
{
    write_key(out, key);
    write_open(out, '[');
    write_text(out, "text");
    write_close(out, ']');
}

static void put_rest(const struct router_model *m, struct str *out)
{
    if (!m->info) {
        write_key(out, "architecture");
        write_open(out, '{');
        put_text_list(out, "input_modalities");
        put_text_list(out, "output_modalities");
        write_close(out, '}');
        write_member_null(out, "meta");
        return;
    }
    json_object_object_foreach(m->info, key, value)
    {
        if (is_ours(key))
            continue;
        write_key(out, key);
        request_add_value(out, value);
    }
}

static int64_t context_of(const struct router_model *m)
{
    struct json_object *v;
    return m->info && json_object_object_get_ex(m->info, "context_length", &v)
               ? json_object_get_int64(v)
               : 0;
}

static void put_anthropic(const struct router_model *m, struct str *out)
{
    write_open(out, '{');
    write_member(out, "type", "model");
    write_member(out, "id", m->id);
    write_member(out, "display_name", m->id);
    write_member(out, "created_at", "2026-01-01T00:00:00Z");
    if (context_of(m)) {
        write_member_int(out, "max_input_tokens", context_of(m));
        write_member_int(out, "max_tokens", context_of(m));
    }
    write_close(out, '}');
}

void router_put_model(struct router *r, const struct http_request *rq, const struct router_model *m,
                      struct str *out)
{
    if (http_request_header(rq, "anthropic-version")) {
        put_anthropic(m, out);
        return;
    }
    write_open(out, '{');
    write_member(out, "id", m->id);
    write_member(out, "object", "model");
    write_member_int(out, "created", r->serve.created);
    write_member(out, "owned_by", "ingle");
    write_member_int(out, "last_used_ms", m->last_used_ms);
    put_texts(out, "aliases", m->config, "alias");
    put_texts(out, "tags", m->config, "tag");
    if (is_known(r, rq))
        write_member(out, "path", ingle_config_text(m->config, "model", 0));
    put_status(r, rq, m, out);
    put_rest(m, out);
    write_close(out, '}');
}

void router_put_models(struct router *r, const struct http_request *rq, struct str *out)
{
    const bool anthropic = http_request_header(rq, "anthropic-version") != NULL;
    const struct router_model *first = NULL, *last = NULL;
    write_open(out, '{');
    if (!anthropic)
        write_member(out, "object", "list");
    write_key(out, "data");
    write_open(out, '[');
    for (const struct router_model *m = r->models; m; m = m->next) {
        if (m->removed)
            continue;
        first = first ? first : m;
        last = m;
        router_put_model(r, rq, m, out);
    }
    write_close(out, ']');
    if (anthropic) {
        write_member_bool(out, "has_more", false);
        write_member(out, "first_id", first ? first->id : NULL);
        write_member(out, "last_id", last ? last->id : NULL);
    } else {
        write_key(out, "models"); /* of Codex: it falls back to its own list */
        write_open(out, '[');
        write_close(out, ']');
    }
    write_close(out, '}');
}

static void put_limits(struct router *r, struct str *out)
{
    static const char *const name[] = {
        "max-connections",     "max-body", "max-bodies", "max-waiting", "queue-timeout",
        "max-request-seconds", "drain"};
    write_key(out, "limits");
    write_open(out, '{');
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        write_member_number(out, name[i], ingle_config_number(r->o.config, name[i]));
    write_close(out, '}');
}

void router_put_props(struct router *r, const struct http_request *rq, struct str *out)
{
    char build[64];
    uint64_t need = 0;
    const struct router_model *any = router_any(r);
    for (const struct router_model *m = r->models; m; m = m->next)
        need += m->need_bytes;
    snprintf(build, sizeof build, "b%s-router props_schema=2", ingle_version());
    write_open(out, '{');
    write_member(out, "role", "router");
    write_member_int(out, "max_instances", r->models_max);
    write_member_bool(out, "page_pull", ingle_config_flag(r->o.config, "page-pull"));
    write_member_bool(out, "models_autoload", !ingle_config_flag(r->o.config, "no-autoload"));
    write_member(out, "build_info", build);
    write_key(out, "server");
    write_open(out, '{');
    write_member(out, "name", "ingle");
    write_member(out, "version", ingle_version());
    write_member_int(out, "props_schema", 2);
    write_member_bool(out, "needs_key", auth_n_keys(r->address.auth) > 0);
    write_close(out, '}');
    write_member(out, "any", any ? any->id : NULL);
    write_key(out, "memory");
    write_open(out, '{');
    write_key(out, "budget_bytes");
    write_uint(out, r->budget_bytes);
    write_key(out, "planned_bytes");
    write_uint(out, need);
    write_close(out, '}');
    write_key(out, "models");
    write_open(out, '[');
    for (const struct router_model *m = r->models; m; m = m->next) {
        if (m->removed)
            continue;
        write_open(out, '{');
        write_member(out, "id", m->id);
        write_member_int(out, "last_used_ms", m->last_used_ms);
        put_status(r, rq, m, out);
        write_key(out, "planned_bytes");
        write_uint(out, m->need_bytes);
        write_member_int(out, "running", m->n_active);
        write_member_number(out, "ttl", router_number(r, m, "ttl"));
        write_close(out, '}');
    }
    write_close(out, ']');
    put_limits(r, out);
    write_close(out, '}');
}

/* ---- Ollama ---- */

static void put_time(struct str *out, const char *key, int64_t seconds)
{
    char text[32];
    const time_t t = (time_t)seconds;
    struct tm tm;
    if (gmtime_r(&t, &tm) && strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm))
        write_member(out, key, text);
}

static void put_ollama_model(const struct router *r, const struct router_model *m, bool running,
                             struct str *out)
{
    struct json_object *meta, *v;
    struct sha256 h;
    uint8_t hash[SHA256_BYTES];
    const bool known = m->info && json_object_object_get_ex(m->info, "meta", &meta);
    const char *arch =
        known && json_object_object_get_ex(meta, "arch", &v) ? json_object_get_string(v) : "";
    sha256_init(&h);
    sha256_add(&h, m->id, strlen(m->id));
    sha256_end(&h, hash);
    write_open(out, '{');
    write_member(out, "name", m->id);
    write_member(out, "model", m->id);
    write_member_int(out, "size",
                     known && json_object_object_get_ex(meta, "size", &v) ? json_object_get_int64(v)
                                                                          : 0);
    write_key(out, "digest");
    str_addc(out, '"');
    for (size_t i = 0; i < sizeof hash; i++)
        str_addf(out, "%02x", hash[i]);
    str_addc(out, '"');
    write_key(out, "details");
    write_open(out, '{');
    write_member(out, "parent_model", "");
    write_member(out, "format", "gguf");
    write_member(out, "family", arch);
    write_key(out, "families");
    write_open(out, '[');
    if (*arch)
        write_text(out, arch);
    write_close(out, ']');
    write_member(out, "parameter_size", "");
    write_member(out, "quantization_level", "unknown");
    write_close(out, '}');
    if (running) {
        const double ttl = router_number(r, m, "ttl");
        if (ttl > 0)
            put_time(out, "expires_at", (int64_t)time(NULL) + (int64_t)ttl);
        else
            write_member(out, "expires_at", "2318-01-01T00:00:00Z");
        write_member_int(out, "size_vram", 0);
        write_member_int(out, "context_length", context_of(m));
    } else {
        put_time(out, "modified_at", r->serve.created);
    }
    write_close(out, '}');
}

void router_put_ollama(struct router *r, bool running, struct str *out)
{
    write_open(out, '{');
    write_key(out, "models");
    write_open(out, '[');
    for (const struct router_model *m = r->models; m; m = m->next)
        if (!m->removed && (!running || (m->state == ROUTER_LOADED && !m->child.ended)))
            put_ollama_model(r, m, running, out);
    write_close(out, ']');
    write_close(out, '}');
}
