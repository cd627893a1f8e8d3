/* SPDX-License-Identifier: Apache-2.0
 *
 * Which models there are: sections of a file of presets.
 */
#define _POSIX_C_SOURCE 200809L
#include "router/inner.h"
#include "router/parts.h"

#include "base/ini.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void router_presets_release(struct router_presets *p)
{
    for (size_t i = 0; i < p->n; i++) {
        mem_free(p->at[i].id);
        mem_free(p->at[i].where);
        ingle_config_close(p->at[i].config);
    }
    mem_free(p->at);
    str_release(&p->problems);
    str_release(&p->warnings);
    *p = (struct router_presets){0};
}

struct router_preset *router_presets_find(const struct router_presets *p, const char *id)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->at[i].id, id) == 0)
            return &p->at[i];
    return NULL;
}

ingle_status router_presets_new(struct router_presets *p, const char *id, const char *where,
                                struct router_preset **out, struct err *err)
{
    struct ingle_error error;
    struct router_preset new = {.id = mem_strdup(id), .where = mem_strdup(where)};
    const bool full = p->n >= ROUTER_MAX_MODELS;
    if (full || !new.id || !new.where || ingle_config_open(&new.config, &error) ||
        !mem_grow(&p->at, &p->cap, p->n + 1, sizeof *p->at))
    {
        mem_free(new.id);
        mem_free(new.where);
        ingle_config_close(new.config);
        return full ? err_set(err, INGLE_LIMIT, "more than %d models", ROUTER_MAX_MODELS)
                    : err_set(err, INGLE_NOMEM, "no memory for the model '%s'", id);
    }
    p->at[p->n++] = new;
    *out = &p->at[p->n - 1];
    return INGLE_OK;
}

void router_presets_line(struct str *to, size_t *n, const char *text)
{
    if (++*n > ROUTER_MAX_PROBLEMS)
        return;
    if (!to->at)
        str_init(to);
    str_adds(to, text);
    str_addc(to, '\n');
}

/* What is wrong, and the first of it as the error. */
static ingle_status problem(struct router_presets *p, ingle_status st, const char *text,
                            ingle_status *first, struct err *err)
{
    router_presets_line(&p->problems, &p->n_problems, text);
    if (!*first)
        *first = err_set(err, st, "%s", text);
    return *first;
}

/* ---- a file ---- */

struct reading {
    struct router_presets *to;
    const char *name;
    struct ingle_config *all; /* [*] */
    struct router_preset *at; /* the section; NULL: [*], or none */
    bool lost;                /* the section cannot be had: its lines are not read */
    size_t n_before;
    router_set_fn *set;
    void *arg;
    int *line; /* [number of options]: where the section has set it */
    bool seen[ROUTER_MAX_MODELS]; /* sections */
};

/* What other servers' presets have and nothing follows from. */
static bool is_idle_key(const char *key)
{
    static const char *const word[] = {"version", "dedup-cache-models"};
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (strcmp(word[i], key) == 0)
            return true;
    return false;
}

/* Options of the address and of the router belong to the command line. */
static bool is_own(const char *name)
{
    static const char *const word[] = {
#define ROUTER_OWN(name) name,
#include "router/own.inc"
#undef ROUTER_OWN
    };
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (strcmp(word[i], name) == 0)
            return true;
    return false;
}

/* ... whose values are files that a model cannot do without. */
static bool is_input(const char *name)
{
    static const char *const word[] = {"model",          "draft",      "prompt-drafter",
                                       "hub-token-file", "worker-key", "codex-model"};
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (strcmp(word[i], name) == 0)
            return true;
    return false;
}

/* Why a model's process could not read it, or NULL. */
static const char *why_not(const char *path)
{
    struct stat is;
    if (stat(path, &is))
        return strerror(errno);
    if (!S_ISREG(is.st_mode) && !S_ISDIR(is.st_mode))
        return "neither a file nor a folder";
    if (access(path, R_OK | (S_ISDIR(is.st_mode) ? X_OK : 0)))
        return strerror(errno);
    return S_ISREG(is.st_mode) && is.st_size == 0 ? "the file is empty" : NULL;
}

bool router_is_of_hub(const char *value)
{
    static const char *const begin[] = {"hf:", "https://", "http://", "hf.co/", "huggingface.co/"};
    struct stat is;
    for (size_t i = 0; value && i < sizeof begin / sizeof *begin; i++)
        if (strncmp(value, begin[i], strlen(begin[i])) == 0)
            return i == 0 || stat(value, &is) != 0;
    return false;
}

/* Drives may be mounted later: a file that is not there is a warning. */
static void check_file(struct reading *r, int line, const char *key, const char *option,
                       const char *value)
{
    char text[480];
    if (!is_input(option) || router_is_of_hub(value))
        return;
    /* auto, off ... */
    if (strcmp(option, "draft") == 0 && !strchr(value, '/') && !strchr(value, '.'))
        return;
    const char *why = why_not(value);
    if (!why)
        return;
    snprintf(text, sizeof text, "%.100s:%d: [%.60s] %.40s: '%.150s': %s", r->name, line,
             r->at ? r->at->id : "*", key, value, why);
    router_presets_line(&r->to->warnings, &r->to->n_warnings, text);
}

static ingle_status begin_section(struct reading *r, int line, const char *section, struct err *err)
{
    char where[200];
    size_t n;
    (void)ingle_options(&n);
    memset(r->line, 0, n * sizeof *r->line);
    r->at = NULL;
    r->lost = false;
    if (strcmp(section, "*") == 0)
        return INGLE_OK;
    snprintf(where, sizeof where, "%.180s:%d", r->name, line);
    r->at = router_presets_find(r->to, section);
    r->lost = true;
    const ingle_status st =
        r->at ? INGLE_OK : router_presets_new(r->to, section, where, &r->at, err);
    if (st)
        return st;
    bool *seen = &r->seen[r->at - r->to->at];
    if (*seen)
        return err_set(err, INGLE_FORMAT, "there are two sections [%s]", section);
    *seen = true;
    r->lost = false;
    return INGLE_OK;
}

/* Before option o gets the value: whether it may. */
static ingle_status check_option(struct reading *r, size_t o, const struct ingle_option *option,
                                 struct ingle_config *config, int line, const char *key,
                                 const char *value, struct err *err)
{
    char text[480];
    const char *id = r->at ? r->at->id : "*", *name = option->name;
    const char *before =
        ingle_config_is_set(config, name) ? ingle_config_text(config, name, 0) : NULL;
    const bool model = strcmp(name, "model") == 0;
    if (is_own(name))
        return err_set(
            err, INGLE_ARG,
            "[%s] %s: this is an option of the whole server: give it on the command line", id, key);
    if (!r->at && model)
        return err_set(err, INGLE_FORMAT, "'%s' in [*] would be the same file for all", key);
    if (!r->at && strcmp(name, "alias") == 0)
        return err_set(err, INGLE_FORMAT, "'%s' in [*] would be the same name for all", key);
    if (option->kind == INGLE_OPTION_LIST || !before || strcmp(before, value) == 0)
        return INGLE_OK;
    if (model && r->line[o])
        return err_set(err, INGLE_ARG, "[%s] %s: the section names a model in line %d, '%.120s'",
                       id, key, r->line[o], before);
    if (model)
        return err_set(err, INGLE_ARG, "[%s] %s: two models are called '%s': one is '%.120s'", id,
                       key, id, before);
    if (!r->line[o])
        return INGLE_OK;
    snprintf(text, sizeof text,
             "%.100s:%d: [%.60s] %.40s: counts in place of line %d, which gives --%s, too", r->name,
             line, id, key, r->line[o], name);
    router_presets_line(&r->to->warnings, &r->to->n_warnings, text);
    return INGLE_OK;
}

/* What one line has set goes to its section. */
static ingle_status merge(struct reading *r, const struct ingle_config *one, int line,
                          const char *key, struct err *err)
{
    size_t n;
    struct ingle_error error;
    const struct ingle_option *o = ingle_options(&n);
    struct ingle_config *config = r->at ? r->at->config : r->all;
    for (size_t i = 0; i < n; i++) {
        const char *text;
        for (size_t k = 0;
             ingle_config_is_set(one, o[i].name) && (text = ingle_config_text(one, o[i].name, k));
             k++) {
            const ingle_status st = check_option(r, i, &o[i], config, line, key, text, err);
            if (st)
                return st;
            if (ingle_config_set(config, "serve", o[i].name, text, &error))
                return err_set(err, error.status, "[%s] %s: %s", r->at ? r->at->id : "*", key,
                               error.text);
            check_file(r, line, key, o[i].name, text);
            r->line[i] = line;
        }
    }
    return INGLE_OK;
}

static ingle_status take(void *arg, int line, const char *section, const char *key,
                         const char *value, struct err *err)
{
    struct reading *r = arg;
    struct ingle_config *one;
    struct ingle_error error;
    if (!key)
        return begin_section(r, line, section, err);
    if (is_idle_key(key) || r->lost)
        return INGLE_OK;
    if (!*section)
        return err_set(err, INGLE_FORMAT,
                       "'%s' stands before the first section: [*] is for all models", key);
    if (ingle_config_open(&one, &error))
        return err_set(err, error.status, "%s", error.text);
    ingle_status st = r->set(r->arg, one, key, value, err);
    if (st)
        st = err_prefix(err, "[%s] %s", section, key);
    else
        st = merge(r, one, line, key, err);
    ingle_config_close(one);
    return st;
}

static void warn_line(void *arg, const char *text)
{
    const struct reading *r = arg;
    router_presets_line(&r->to->problems, &r->to->n_problems, text);
}

/* What [*] says and the section does not. */
static ingle_status inherit(const struct reading *r, struct ingle_config *config, struct err *err)
{
    size_t n;
    struct ingle_error error;
    const struct ingle_option *o = ingle_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (!ingle_config_is_set(r->all, o[i].name) || ingle_config_is_set(config, o[i].name))
            continue;
        const char *text;
        for (size_t k = 0; (text = ingle_config_text(r->all, o[i].name, k)); k++)
            if (ingle_config_set(config, "serve", o[i].name, text, &error))
                return err_set(err, error.status, "%s", error.text);
    }
    return INGLE_OK;
}

/* Sections that name no model, and none is called so. */
static ingle_status check_models(struct reading *r, ingle_status st, struct err *err)
{
    char text[480];
    for (size_t i = r->n_before; i < r->to->n; i++) {
        const struct router_preset *p = &r->to->at[i];
        if (ingle_config_is_set(p->config, "model"))
            continue;
        snprintf(text, sizeof text, "%s: [%.200s] has no 'model = FILE', and no model is called so",
                 p->where, p->id);
        st = problem(r->to, INGLE_FORMAT, text, &st, err);
    }
    return st;
}

ingle_status router_presets_text(struct router_presets *p, const char *name, const char *text,
                                 size_t n, router_set_fn *set, void *arg, struct err *err)
{
    struct reading r = {.to = p, .name = name, .n_before = p->n, .set = set, .arg = arg};
    struct ingle_error error;
    size_t n_options;
    (void)ingle_options(&n_options);
    if (ingle_config_open(&r.all, &error))
        return err_set(err, error.status, "%s", error.text);
    r.line = mem_calloc(n_options, sizeof *r.line);
    ingle_status st = r.line ? ini_read_on(name, text, n, take, warn_line, &r, err)
                             : err_set(err, INGLE_NOMEM, "no memory for '%s'", name);
    if (!st) /* otherwise the line of the model may be the wrong one */
        st = check_models(&r, st, err);
    for (size_t i = 0; i < p->n && !st; i++)
        st = inherit(&r, p->at[i].config, err);
    ingle_config_close(r.all);
    mem_free(r.line);
    return st;
}

/* ---- names ---- */

static ingle_status check_alias(struct router_presets *p, size_t j, const char *alias,
                                ingle_status *first, struct err *err)
{
    char text[480];
    const char *other;
    if (strcmp(alias, "any") == 0) {
        snprintf(text, sizeof text, "%s: the alias 'any' of '%.100s': 'any' is the model used last",
                 p->at[j].where, p->at[j].id);
        (void)problem(p, INGLE_ARG, text, first, err);
    }
    for (size_t i = 0; i < p->n; i++) {
        if (i != j && strcmp(alias, p->at[i].id) == 0) {
            snprintf(text, sizeof text,
                     "%s: '%.100s' is the name of a model and an alias of '%.100s'", p->at[j].where,
                     alias, p->at[j].id);
            (void)problem(p, INGLE_ARG, text, first, err);
        }
        for (size_t q = 0; i < j && (other = ingle_config_text(p->at[i].config, "alias", q)); q++)
            if (strcmp(alias, other) == 0) {
                snprintf(text, sizeof text, "%s: '%.100s' is an alias of '%.100s' and of '%.100s'",
                         p->at[j].where, alias, p->at[i].id, p->at[j].id);
                (void)problem(p, INGLE_ARG, text, first, err);
            }
    }
    return *first;
}

ingle_status router_presets_check(struct router_presets *p, struct err *err)
{
    ingle_status st = INGLE_OK;
    const char *alias;
    for (size_t j = 0; j < p->n; j++)
        for (size_t k = 0; (alias = ingle_config_text(p->at[j].config, "alias", k)); k++)
            st = check_alias(p, j, alias, &st, err);
    return st;
}

static bool is_gguf(const char *path)
{
    char magic[4] = {0};
    struct stat is;
    FILE *f = stat(path, &is) == 0 && S_ISREG(is.st_mode) ? fopen(path, "rbe") : NULL;
    const bool yes = f && fread(magic, 1, sizeof magic, f) == sizeof magic &&
                     memcmp(magic, "GGUF", sizeof magic) == 0;
    if (f)
        fclose(f);
    return yes;
}

ingle_status router_presets_add(struct router_presets *p, const char *path, router_set_fn *set,
                                void *arg, struct err *err)
{
    struct stat is;
    if (stat(path, &is) == 0 && S_ISDIR(is.st_mode))
        return router_presets_folder(p, path, err);
    char *text;
    size_t n;
    if (router_is_of_hub(path))
        return err_set(err, INGLE_ARG,
                       "'%.200s' is a model of a hub and no file of presets: -m serves it, or a "
                       "line 'model = %.200s' in a section of presets",
                       path, path);
    if (is_gguf(path))
        return err_set(err, INGLE_ARG,
                       "%s: is a model and no file of presets: -m %.200s serves it, --models its "
                       "folder",
                       path, path);
    ingle_status st = ini_slurp(path, &text, &n, err);
    if (st)
        return st;
    st = router_presets_text(p, path, text, n, set, arg, err);
    mem_free(text);
    return st;
}
