/* SPDX-License-Identifier: Apache-2.0
 *
 * The models of a router: their names, options, states, and who listens to them.
 */
#define _POSIX_C_SOURCE 200809L
#include "router/inner.h"
#include "router/parts.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "server/auth.h"
#include "server/write.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* ---- names ---- */

struct router_model *router_by_number(const struct router *r, uint32_t number)
{
    for (struct router_model *m = r->models; m; m = m->next)
        if (m->number == number)
            return m;
    return NULL;
}

static bool is_called(const struct router_model *m, const char *name, size_t n)
{
    const char *alias;
    if (strlen(m->id) == n && memcmp(m->id, name, n) == 0)
        return true;
    for (size_t i = 0; (alias = ingle_config_text(m->config, "alias", i)); i++)
        if (strlen(alias) == n && memcmp(alias, name, n) == 0)
            return true;
    return false;
}

struct router_model *router_by_name(const struct router *r, const char *name)
{
    static const char latest[] = ":latest"; /* Ollama's clients put it after a name */
    const size_t n = strlen(name), k = sizeof latest - 1;
    for (struct router_model *m = r->models; m; m = m->next)
        if (!m->removed && is_called(m, name, n))
            return m;
    for (struct router_model *m = r->models; m && n > k && strcmp(name + n - k, latest) == 0;
         m = m->next)
        if (!m->removed && is_called(m, name, n - k))
            return m;
    return NULL;
}

/* The lower, the sooner it is what "any" stands for; 0: it is not. */
static int rank(const struct router_model *m)
{
    switch (m->state) {
    case ROUTER_LOADED:
        return router_is_up(m) ? 1 : 0;
    case ROUTER_LOADING:
        return 2;
    case ROUTER_SLEEPING:
        return 3;
    case ROUTER_UNLOADED:
    case ROUTER_FETCHING:
    case ROUTER_QUEUED:
    case ROUTER_PLANNING:
    case ROUTER_STOPPING:
        break;
    }
    return 0;
}

struct router_model *router_any(const struct router *r)
{
    struct router_model *best = NULL;
    for (struct router_model *m = r->models; m; m = m->next) {
        if (m->removed || !rank(m))
            continue;
        const bool used_later =
            best && (m->last_used_ms > best->last_used_ms ||
                     (m->last_used_ms == best->last_used_ms && m->loaded_at > best->loaded_at));
        if (!best || rank(m) < rank(best) || (rank(m) == rank(best) && used_later))
            best = m;
    }
    return best;
}

/* ---- options: the command line comes before the preset ---- */

static const struct ingle_config *who_says(const struct router *r, const struct router_model *m,
                                           const char *option)
{
    return ingle_config_is_set(r->o.config, option) ? r->o.config : m->config;
}

double router_number(const struct router *r, const struct router_model *m, const char *option)
{
    return ingle_config_number(who_says(r, m, option), option);
}

const char *router_text(const struct router *r, const struct router_model *m, const char *option,
                        size_t i)
{
    return ingle_config_text(who_says(r, m, option), option, i);
}

bool router_flag(const struct router *r, const struct router_model *m, const char *option)
{
    return ingle_config_flag(who_says(r, m, option), option);
}

static void free_arguments(struct router_model *m)
{
    for (size_t i = 0; i < m->n_arg; i++)
        mem_free(m->arg[i]);
    mem_free(m->arg);
    m->arg = NULL;
    m->n_arg = 0;
}

struct arguments {
    struct router_model *m;
    size_t cap;
    bool ok;
};

ATTR_PRINTF(2, 3)
static void argument(struct arguments *a, const char *fmt, ...)
{
    struct str s;
    va_list ap;
    char small[64];
    va_start(ap, fmt);
    const int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    str_init(&s);
    if (n >= 0 && (size_t)n < sizeof small) {
        str_adds(&s, small);
    } else if (n >= 0) {
        char *large = mem_alloc((size_t)n + 1);
        va_start(ap, fmt);
        if (large)
            vsnprintf(large, (size_t)n + 1, fmt, ap);
        va_end(ap);
        if (large)
            str_adds(&s, large);
        a->ok &= large != NULL;
        mem_free(large);
    }
    char *text = str_detach(&s);
    a->ok &= text && mem_grow(&a->m->arg, &a->cap, a->m->n_arg + 2, sizeof *a->m->arg);
    if (!a->ok) {
        mem_free(text);
        return;
    }
    a->m->arg[a->m->n_arg++] = text;
    a->m->arg[a->m->n_arg] = NULL;
}

/* What the processes do not get as it was given. */
static bool is_ours(const char *name, bool by_command_line)
{
    static const char *const always[] = {
#define ROUTER_OWN(option) option,
#include "router/own.inc"
#undef ROUTER_OWN
        "model", "alias", "memory", "ttl", "preload", "state-dir",
    };
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (strcmp(always[i], name) == 0)
            return true;
    return by_command_line && strcmp(name, "tag") == 0;
}

static void put_options(struct arguments *a, const struct router *r, const struct router_model *m)
{
    size_t n;
    const char *text;
    const struct ingle_option *o = ingle_options(&n);
    for (size_t i = 0; i < n; i++) {
        const struct ingle_config *c = who_says(r, m, o[i].name);
        if (is_ours(o[i].name, c == r->o.config) || !ingle_config_is_set(c, o[i].name))
            continue;
        for (size_t k = 0; (text = ingle_config_text(c, o[i].name, k)); k++)
            argument(a, "--%s%s=%s", strcmp(o[i].group, "limits") == 0 ? "limit=" : "", o[i].name,
                     text);
    }
}

/* The name of a model's folder: its id, in which '/', '%', control characters and a '.' at the
 * start are %XX; of a long one the beginning and a hash.  No two ids have the same. */
static void put_folder(struct str *out, const char *id)
{
    enum { MOST = 200, KEPT = 160 };
    uint8_t hash[SHA256_BYTES];
    struct sha256 h;
    const size_t start = out->n;
    for (const unsigned char *p = (const unsigned char *)id; *p; p++) {
        const bool odd = *p == '/' || *p == '%' || *p < ' ' || *p == 0x7F ||
                         (*p == '.' && p == (const unsigned char *)id);
        if (odd)
            str_addf(out, "%%%02X", *p);
        else
            str_addc(out, (char)*p);
    }
    if (out->n - start <= MOST || !str_ok(out))
        return;
    sha256_init(&h);
    sha256_add(&h, id, strlen(id));
    sha256_end(&h, hash);
    out->n = start + KEPT;
    out->at[out->n] = 0;
    str_adds(out, "%-"); /* which no escape is */
    for (size_t i = 0; i < 16; i++)
        str_addf(out, "%02x", hash[i]);
}

/* The folder of earlier versions, in whose name '.' and '/' were '_', becomes the model's if it is
 * nobody else's. */
static void adopt_folder(const struct router *r, const struct router_model *m, const char *dir,
                         const char *path)
{
    char name[128], old[4200];
    struct stat is;
    size_t n = 0;
    for (const char *p = m->id; *p && n < sizeof name - 1; p++)
        name[n++] = *p == '/' || *p == '.' ? '_' : *p;
    name[n] = 0;
    for (const struct router_model *o = r->models; o; o = o->next)
        if (strcmp(o->id, name) == 0)
            return; /* it may be that one's, or m's own */
    const int k = snprintf(old, sizeof old, "%s/%s", dir, name);
    if (k > 0 && (size_t)k < sizeof old && lstat(path, &is) != 0 && lstat(old, &is) == 0 &&
        S_ISDIR(is.st_mode))
        (void)rename(old, path);
}

/* A folder of its own below --state-dir. */
static void put_state_dir(struct arguments *a, const struct router *r, const struct router_model *m)
{
    const char *dir = ingle_config_text(r->o.config, "state-dir", 0);
    struct str path;
    if (!dir)
        return;
    str_init(&path);
    str_addf(&path, "%s/", dir);
    put_folder(&path, m->id);
    a->ok &= str_ok(&path);
    if (a->ok) {
        adopt_folder(r, m, dir, path.at);
        argument(a, "--state-dir=%s", path.at);
    }
    str_release(&path);
}

bool router_arguments(struct router *r, struct router_model *m, uint64_t memory_bytes, bool plan)
{
    struct arguments a = {.m = m, .ok = true};
    const char *alias, *priority;
    const uint64_t own = (uint64_t)ingle_config_number(m->config, "memory");
    free_arguments(m);
    argument(&a, "ingle");
    argument(&a, "serve");
    argument(&a, "--model=%s", ingle_config_text(m->config, "model", 0));
    argument(&a, "--host=unix:%s", m->child.socket);
    argument(&a, "--trust-user");
    argument(&a, "--alias=%s", m->id);
    for (size_t i = 0; (alias = ingle_config_text(m->config, "alias", i)); i++)
        if (strcmp(alias, m->id) != 0)
            argument(&a, "--alias=%s", alias);
    argument(&a, "--limit=connections=%d",
             (int)ingle_config_number(r->o.config, "max-connections"));
    argument(&a, "--max-priority=%d", auth_priority(r->address.auth, ""));
    for (size_t i = 0; (priority = ingle_config_text(r->o.config, "max-priority", i)); i++)
        if (strchr(priority, '='))
            argument(&a, "--max-priority=%s", priority);
    if (own && (!memory_bytes || own < memory_bytes))
        memory_bytes = own;
    if (memory_bytes)
        argument(&a, "--memory=%llu", (unsigned long long)memory_bytes);
    put_state_dir(&a, r, m);
    put_options(&a, r, m);
    if (plan)
        argument(&a, "--plan");
    return a.ok;
}

/* ---- states ---- */

const char *router_state_word(const struct router_model *m)
{
    static const char *const word[] = {
        [ROUTER_UNLOADED] = "unloaded", [ROUTER_SLEEPING] = "sleeping",
        [ROUTER_FETCHING] = "loading",  [ROUTER_QUEUED] = "loading",
        [ROUTER_PLANNING] = "loading",  [ROUTER_LOADING] = "loading",
        [ROUTER_LOADED] = "loaded",     [ROUTER_STOPPING] = "unloading",
    };
    return m->state == ROUTER_LOADED && m->child.ended ? word[ROUTER_UNLOADED] : word[m->state];
}

bool router_is_up(const struct router_model *m)
{
    return m->state == ROUTER_LOADED && !m->leaving && !m->child.stderr_closed && !m->child.ended &&
           !m->child.doubt_until;
}

void router_used(struct router_model *m)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const int64_t now = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    m->last_used_ms = now > m->last_used_ms ? now : m->last_used_ms + 1;
}

void router_set_state(struct router *r, struct router_model *m, enum router_state state)
{
    const char *before = router_state_word(m);
    m->state = state;
    if (state == ROUTER_LOADED)
        m->loaded_at = m->idle_since = clock_now();
    if (before != router_state_word(m))
        router_notify(r, m->id, "model_status", m);
}

void router_model_free(struct router_model *m)
{
    if (!m)
        return;
    free_arguments(m);
    mem_free(m->id);
    ingle_config_close(m->config);
    json_object_put(m->info);
    str_release(&m->child.line);
    str_release(&m->child.text);
    mem_free(m);
}

/* ---- who listens ---- */

struct router_listener {
    struct router_listener *next;
    struct router *router;
    struct http_exchange *x;
    bool closed; /* Sync: lock */
};

static void listener_closed(void *arg)
{
    struct router_listener *l = arg;
    pthread_mutex_lock(&l->router->lock);
    l->closed = true;
    pthread_mutex_unlock(&l->router->lock);
    router_wake(l->router);
}

static void keep_alive(void *arg)
{
    struct router_listener *l = arg;
    pthread_mutex_lock(&l->router->lock); /* one writer at a time */
    if (!l->closed)
        (void)http_write(l->x, ":\n\n", 3);
    pthread_mutex_unlock(&l->router->lock);
}

bool router_listen(struct router *r, struct http_exchange *x)
{
    struct router_listener *l = mem_zalloc(sizeof *l);
    if (!l)
        return false;
    l->router = r;
    l->x = x;
    l->next = r->listeners;
    r->listeners = l;
    http_hold(x);
    http_own(x, mem_free, l);
    http_on_close(x, listener_closed, l);
    http_silence(x, ingle_config_number(r->o.config, "keep-alive"), keep_alive, l);
    http_begin(x, 200, "text/event-stream");
    (void)http_write(x, ":\n\n", 3);
    return true;
}

/* Forgets those that have left, or all. */
static void forget(struct router *r, bool all)
{
    for (struct router_listener **at = &r->listeners, *l; (l = *at);) {
        if (!all && !l->closed) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        l->closed = true;
        http_end(l->x);
        http_release(l->x);
    }
}

void router_unlisten(struct router *r) { forget(r, true); }

void router_notify(struct router *r, const char *id, const char *event,
                   const struct router_model *m)
{
    struct str s;
    forget(r, false);
    if (!r->listeners)
        return;
    str_init(&s);
    str_adds(&s, "data: ");
    write_open(&s, '{');
    write_member(&s, "model", id);
    write_member(&s, "event", event);
    if (m) {
        write_key(&s, "data");
        write_open(&s, '{');
        write_member(&s, "status", router_state_word(m));
        if (m->state == ROUTER_LOADING || m->state == ROUTER_FETCHING) {
            write_key(&s, "progress");
            write_open(&s, '{');
            write_key(&s, "stages");
            write_open(&s, '[');
            write_text(&s, m->state == ROUTER_FETCHING ? "fetch" : "text_model");
            write_close(&s, ']');
            write_member(&s, "current", m->state == ROUTER_FETCHING ? "fetch" : "text_model");
            write_member_number(&s, "value", m->progress);
            write_close(&s, '}');
        }
        write_close(&s, '}');
    }
    write_close(&s, '}');
    str_adds(&s, "\n\n");
    for (struct router_listener *l = r->listeners; l && str_ok(&s); l = l->next) {
        if (http_unread(l->x) > (1 << 18))
            l->closed = true; /* it does not read */
        else if (!http_write(l->x, s.at, s.n))
            l->closed = true;
    }
    str_release(&s);
}
