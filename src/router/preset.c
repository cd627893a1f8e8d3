/* SPDX-License-Identifier: Apache-2.0
 *
 * Which models there are: sections of a file of presets, and the files of a folder.
 */
#include "router/inner.h"

#include "base/ini.h"
#include "base/mem.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void router_presets_release(struct router_presets *p)
{
    for (size_t i = 0; i < p->n; i++) {
        mem_free(p->at[i].id);
        ingle_config_close(p->at[i].config);
    }
    mem_free(p->at);
    *p = (struct router_presets){0};
}

static struct router_preset *find(const struct router_presets *p, const char *id)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->at[i].id, id) == 0)
            return &p->at[i];
    return NULL;
}

static ingle_status add(struct router_presets *p, const char *id, struct router_preset **out, struct err *err)
{
    struct ingle_error error;
    struct router_preset new = {.id = mem_strdup(id)};
    if (p->n >= ROUTER_MAX_MODELS) {
        mem_free(new.id);
        return err_set(err, INGLE_LIMIT, "more than %d models", ROUTER_MAX_MODELS);
    }
    if (!new.id || ingle_config_open(&new.config, &error) || !mem_grow(&p->at, &p->cap, p->n + 1, sizeof *p->at)) {
        mem_free(new.id);
        ingle_config_close(new.config);
        return err_set(err, INGLE_NOMEM, "no memory for the model '%s'", id);
    }
    p->at[p->n++] = new;
    *out = &p->at[p->n - 1];
    return INGLE_OK;
}

/* ---- a file ---- */

struct reading {
    struct router_presets *to;
    struct ingle_config *all; /* [*] */
    struct router_preset *at; /* the section */
    size_t n_before;
    router_set_fn *set;
    void *arg;
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

static ingle_status begin_section(struct reading *r, const char *section, struct err *err)
{
    r->at = NULL;
    if (strcmp(section, "*") == 0)
        return INGLE_OK;
    r->at = find(r->to, section);
    const ingle_status st = r->at ? INGLE_OK : add(r->to, section, &r->at, err);
    if (st)
        return st;
    bool *seen = &r->seen[r->at - r->to->at];
    if (*seen)
        return err_set(err, INGLE_FORMAT, "there are two sections [%s]", section);
    *seen = true;
    return INGLE_OK;
}

static ingle_status take(void *arg, const char *section, const char *key, const char *value, struct err *err)
{
    struct reading *r = arg;
    if (!key)
        return begin_section(r, section, err);
    if (is_idle_key(key))
        return INGLE_OK;
    if (!*section)
        return err_set(err, INGLE_FORMAT, "'%s' stands before the first section: [*] is for all models", key);
    if (!r->at && strcmp(key, "model") == 0)
        return err_set(err, INGLE_FORMAT, "'model' in [*] would be the same file for all");
    struct ingle_config *config = r->at ? r->at->config : r->all;
    const ingle_status st = r->set(r->arg, config, key, value, err);
    if (st)
        return err_prefix(err, "[%s] %s", section, key);
    size_t n;
    const struct ingle_option *o = ingle_options(&n);
    for (size_t i = 0; i < n; i++)
        if (is_own(o[i].name) && ingle_config_is_set(config, o[i].name))
            return err_set(err, INGLE_ARG, "[%s] %s: this is an option of the whole server: give it on the command line",
                           section, key);
    return INGLE_OK;
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
            if (ingle_config_set(config, "serve", o[i].name, o[i].kind == INGLE_OPTION_FLAG ? NULL : text, &error))
                return err_set(err, error.status, "%s", error.text);
    }
    return INGLE_OK;
}

ingle_status router_presets_text(struct router_presets *p, const char *name, const char *text, size_t n, router_set_fn *set,
                                 void *arg, struct err *err)
{
    struct reading r = {.to = p, .n_before = p->n, .set = set, .arg = arg};
    struct ingle_error error;
    if (ingle_config_open(&r.all, &error))
        return err_set(err, error.status, "%s", error.text);
    ingle_status st = ini_read(name, text, n, take, &r, err);
    for (size_t i = r.n_before; i < p->n && !st; i++)
        if (!ingle_config_is_set(p->at[i].config, "model"))
            st = err_set(err, INGLE_FORMAT, "%s: [%s] has no 'model = FILE', and no model is called so", name, p->at[i].id);
    for (size_t i = 0; i < p->n && !st; i++)
        st = inherit(&r, p->at[i].config, err);
    ingle_config_close(r.all);
    return st;
}

/* ---- a folder ---- */

static bool ends_with(const char *text, size_t n, const char *end)
{
    const size_t k = strlen(end);
    return n >= k && memcmp(text + n - k, end, k) == 0;
}

/* "-00002-of-00003" before the n bytes' end: the number of the part; 0: it is none.  *n: without it. */
static long part_of(const char *name, size_t *n)
{
    enum { MARK = sizeof "-00001-of-00003" - 1 };
    if (*n <= MARK)
        return 0;
    const char *p = name + *n - MARK;
    if (p[0] != '-' || strncmp(p + 6, "-of-", 4) != 0 || strspn(p + 1, "0123456789") != 5)
        return 0;
    *n -= MARK;
    return strtol(p + 1, NULL, 10);
}

/* Whether a file of this name is a model of its own; *n: length of the model's name. */
static bool is_model_file(const char *name, size_t *n)
{
    *n = strlen(name);
    if (name[0] == '.' || strncmp(name, "mmproj", 6) == 0 || !ends_with(name, *n, ".gguf"))
        return false;
    *n -= sizeof ".gguf" - 1;
    return part_of(name, n) <= 1 && *n > 0;
}

static ingle_status add_path(struct router_presets *p, const char *name, size_t n_name, const char *path, struct err *err)
{
    struct ingle_error error;
    struct router_preset *new = NULL;
    char *id = mem_strndup(name, n_name);
    ingle_status st = !id ? err_set(err, INGLE_NOMEM, "no memory for '%s'", path)
                      : find(p, id) ? err_set(err, INGLE_ARG, "two models are called '%s': one is %s", id, path)
                                    : add(p, id, &new, err);
    if (!st && ingle_config_set(new->config, "serve", "model", path, &error))
        st = err_set(err, error.status, "%s", error.text);
    mem_free(id);
    return st;
}

/* A folder is a model if something in it is: its first GGUF file, or the folder itself with a config.json. */
static ingle_status add_folder(struct router_presets *p, const char *name, const char *path, struct err *err)
{
    DIR *d = opendir(path);
    char *best = NULL;
    bool config = false, memory = true;
    for (struct dirent *e; d && memory && (e = readdir(d));) {
        size_t n;
        config |= strcmp(e->d_name, "config.json") == 0;
        if (!is_model_file(e->d_name, &n) || (best && strcmp(best, e->d_name) <= 0))
            continue;
        mem_free(best);
        best = mem_strdup(e->d_name);
        memory = best != NULL;
    }
    if (d)
        closedir(d);
    struct str file;
    str_init(&file);
    str_adds(&file, path);
    if (best)
        str_addf(&file, "/%s", best);
    ingle_status st = INGLE_OK;
    if (!memory || !str_ok(&file))
        st = err_set(err, INGLE_NOMEM, "no memory for '%s'", path);
    else if (best || config)
        st = add_path(p, name, strlen(name), file.at, err);
    str_release(&file);
    mem_free(best);
    return st;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The names in a folder in their order; ended by the caller. */
static ingle_status list(const char *path, char ***names, size_t *n, struct err *err)
{
    size_t cap = 0;
    DIR *d = opendir(path);
    if (!d)
        return err_set(err, INGLE_IO, "'%s' cannot be read", path);
    bool ok = true;
    for (struct dirent *e; ok && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        ok = mem_grow(names, &cap, *n + 1, sizeof **names) && ((*names)[*n] = mem_strdup(e->d_name));
        *n += ok;
    }
    closedir(d);
    if (!ok)
        return err_set(err, INGLE_NOMEM, "no memory for the names in '%s'", path);
    if (*n)
        qsort(*names, *n, sizeof **names, by_name);
    return INGLE_OK;
}

static ingle_status add_directory(struct router_presets *p, const char *path, struct err *err)
{
    char **names = NULL;
    size_t n = 0;
    const size_t before = p->n;
    ingle_status st = list(path, &names, &n, err);
    for (size_t i = 0; i < n && !st; i++) {
        struct str file;
        struct stat is;
        size_t n_name;
        str_init(&file);
        str_addf(&file, "%s/%s", path, names[i]);
        if (!str_ok(&file))
            st = err_set(err, INGLE_NOMEM, "no memory for '%s'", names[i]);
        else if (stat(file.at, &is) == 0 && S_ISDIR(is.st_mode))
            st = add_folder(p, names[i], file.at, err);
        else if (is_model_file(names[i], &n_name))
            st = add_path(p, names[i], n_name, file.at, err);
        str_release(&file);
    }
    for (size_t i = 0; i < n; i++)
        mem_free(names[i]);
    mem_free(names);
    if (!st && p->n == before)
        st = err_set(err, INGLE_NOTFOUND, "'%s' holds no model: neither GGUF files nor folders with one", path);
    return st;
}

ingle_status router_presets_add(struct router_presets *p, const char *path, router_set_fn *set, void *arg, struct err *err)
{
    struct stat is;
    if (stat(path, &is) == 0 && S_ISDIR(is.st_mode))
        return add_directory(p, path, err);
    char *text;
    size_t n;
    ingle_status st = ini_slurp(path, &text, &n, err);
    if (st)
        return st;
    st = router_presets_text(p, path, text, n, set, arg, err);
    mem_free(text);
    return st;
}
