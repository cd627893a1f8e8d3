/* SPDX-License-Identifier: Apache-2.0 */
/*
 * folder - what a path stands for: a file, the one model of a folder, the one snapshot of a hub's
 * cache.  Where that cannot be known, the error names what is there.
 */
#define _DEFAULT_SOURCE
#include "api/api.h"

#include "base/drafter.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/names.h"
#include "base/str.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MOST_NAMES = 4096, MOST_PEEKS = 64 };

/* ---- names ---- */

static bool has(const struct names *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->at[i], name))
            return true;
    return false;
}

/* "a, b, c and 4 more" */
static void list_names(const struct names *l, char out[360])
{
    size_t at = 0, i = 0;
    out[0] = 0;
    for (; i < l->n && at + strlen(l->at[i]) < 300; i++)
        at += (size_t)snprintf(out + at, 360 - at, "%s%s", i ? ", " : "", l->at[i]);
    if (i < l->n)
        snprintf(out + at, 360 - at, "%s%zu more", i ? " and " : "", l->n - i);
}

static char *join(const char *dir, const char *name)
{
    const size_t n = strlen(dir), k = strlen(name);
    char *s = mem_alloc(n + k + 2);
    if (s)
        snprintf(s, n + k + 2, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
    return s;
}

/* ---- a folder's one model ---- */

/* "PREFIX-00002-of-00003.gguf": *no is 2. */
static bool is_part(const char *name, unsigned *no)
{
    static const char form[] = "-#####-of-#####.gguf";
    const size_t n = strlen(name), k = sizeof form - 1;
    if (n <= k)
        return false;
    for (size_t i = 0; i < k; i++) {
        const char c = name[n - k + i];
        if (form[i] == '#' ? c < '0' || c > '9' : c != form[i])
            return false;
    }
    *no = (unsigned)strtoul(name + n - k + 1, NULL, 10);
    return true;
}

struct search {
    const char *dir;
    const struct report_sink *sink;
    struct names models, others; /* others: with what they are */
};

/* What a GGUF file is goes into one of the lists; one that cannot be read counts as a model:
 * opening it reports why. */
static ingle_status peek(struct search *l, const char *name, struct err *err)
{
    static const struct report_sink quiet = {0};
    struct io_file *f = NULL;
    char *path = join(l->dir, name), said[200];
    if (!path)
        return err_set(err, INGLE_NOMEM, "no memory for a path");
    const char *kind = io_open(&f, path, &quiet, NULL) ? NULL : engine_other_kind(f);
    snprintf(said, sizeof said, "%.90s is %.100s", name, kind ? kind : "");
    io_close(f);
    mem_free(path);
    return names_add(kind ? &l->others : &l->models, kind ? said : name, err);
}

static ingle_status check_ggufs(struct search *l, const struct names *all, struct err *err)
{
    ingle_status s = INGLE_OK;
    unsigned no, n = 0;
    for (size_t i = 0; !s && i < all->n; i++)
        if (str_ends_any_case(all->at[i], ".gguf") && (!is_part(all->at[i], &no) || no == 1) &&
            n++ < MOST_PEEKS)
            s = peek(l, all->at[i], err);
    /* Parts without the first one. */
    for (size_t i = 0; !s && !l->models.n && i < all->n; i++)
        if (is_part(all->at[i], &no) && no > 1)
            return err_set(err, INGLE_NOTFOUND,
                           "%s: has '%s', but not the first part of that split file", l->dir,
                           all->at[i]);
    return s;
}

/* The model that is meant, as a path; *out stays NULL where no GGUF file is a model. */
static ingle_status choose_gguf(struct search *l, char **out, struct err *err)
{
    char names[360];
    if (l->models.n > 1) {
        list_names(&l->models, names);
        return err_set(err, INGLE_ARG, "%s: has %zu models, give one of them: %s", l->dir,
                       l->models.n, names);
    }
    if (!l->models.n)
        return INGLE_OK;
    *out = join(l->dir, l->models.at[0]);
    if (!*out)
        return err_set(err, INGLE_NOMEM, "no memory for a path");
    if (l->others.n) {
        list_names(&l->others, names);
        report(l->sink, INGLE_REPORT_NOTE, "file", *out, "is read; not so: %s", names);
    }
    return INGLE_OK;
}

/* Base model of a LoRA adapter, or "". */
static void base_of(const char *dir, char out[160])
{
    char *path = join(dir, "adapter_config.json"), *text = NULL;
    size_t n;
    struct json_object *o = NULL, *v = NULL;
    out[0] = 0;
    if (path && !file_slurp(path, 1 << 20, &text, &n, NULL) &&
        !json_parse(text, n, NULL, &o, NULL) && json_object_is_type(o, json_type_object) &&
        json_object_object_get_ex(o, "base_model_name_or_path", &v) &&
        json_object_is_type(v, json_type_string))
        snprintf(out, 160, " of '%.120s'", json_object_get_string(v));
    json_object_put(o);
    mem_free(text);
    mem_free(path);
}

/* Nothing in the folder is a model: what is there, and what it would take. */
static ingle_status name_rest(const struct search *l, const struct names *all, struct err *err)
{
    char names[360], base[160];
    static const char *const pickles[] = {".bin",     ".pt", ".pth", ".ckpt",
                                          ".msgpack", ".h5", ".onnx"};
    if (l->others.n) {
        list_names(&l->others, names);
        return err_set(err, INGLE_UNSUP, "%s: has no model: %s", l->dir, names);
    }
    for (size_t i = 0; i < all->n; i++)
        if (!strncmp(all->at[i], "adapter_model", 13)) {
            base_of(l->dir, base);
            return err_set(
                err, INGLE_UNSUP,
                "%s: '%s' is a LoRA adapter%s: merge it into its base model and give that", l->dir,
                all->at[i], base);
        }
    for (size_t i = 0; i < all->n; i++)
        if (io_is_unfinished_name(all->at[i]))
            return err_set(err, INGLE_NOTFOUND,
                           "%s: has no model, but a download that is not finished: '%s'", l->dir,
                           all->at[i]);
    for (size_t i = 0; i < all->n; i++)
        for (size_t k = 0; k < sizeof pickles / sizeof *pickles; k++)
            if (str_ends_any_case(all->at[i], pickles[k]))
                return err_set(err, INGLE_UNSUP,
                               "%s: '%s' is none of the formats that are read: convert it to "
                               "safetensors or GGUF",
                               l->dir, all->at[i]);
    if (!all->n)
        return err_set(err, INGLE_NOTFOUND, "%s: is empty", l->dir);
    list_names(all, names);
    return err_set(err, INGLE_NOTFOUND, "%s: has no model (GGUF or safetensors); there are: %s",
                   l->dir, names);
}

/* The only safetensors file, whatever its name is. */
static const char *only_safetensors(const struct names *all)
{
    const char *one = NULL;
    for (size_t i = 0; i < all->n; i++)
        if (str_ends_any_case(all->at[i], ".safetensors")) {
            if (one || !strncmp(all->at[i], "adapter_model", 13))
                return NULL;
            one = all->at[i];
        }
    return one;
}

static bool has_shards(const struct names *all)
{
    for (size_t i = 0; i < all->n; i++)
        if (str_ends_any_case(all->at[i], ".safetensors") && strstr(all->at[i], "-of-"))
            return true;
    return false;
}

static ingle_status choose(const char *dir, const struct report_sink *sink, char **out,
                           struct err *err)
{
    struct names all = {0};
    struct search l = {.dir = dir, .sink = sink};
    *out = NULL;
    ingle_status s = names_read(dir, MOST_NAMES, &all, err);
    if (s)
        return s;
    const bool checkpoint =
        has(&all, "model.safetensors") || has(&all, "model.safetensors.index.json");
    if (!checkpoint) {
        s = check_ggufs(&l, &all, err);
        if (!s)
            s = choose_gguf(&l, out, err);
    }
    if (!s && !*out) {
        const char *one = only_safetensors(&all);
        if (checkpoint || has_shards(&all))
            *out = mem_strdup(dir);
        else if (one && has(&all, "config.json"))
            *out = join(dir, one);
        else
            s = name_rest(&l, &all, err);
        if (!s && !*out)
            s = err_set(err, INGLE_NOMEM, "no memory for a path");
    }
    names_release(&all);
    names_release(&l.models);
    names_release(&l.others);
    return s;
}

/* ---- a hub's cache: models--OWNER--NAME/snapshots/REVISION, refs/main ---- */

/* The folder of the snapshot that refs/main names, or of the only one. */
static ingle_status snapshot(const char *repository, char **out, struct err *err)
{
    char names[360], *text = NULL, *ref = join(repository, "refs/main"),
                     *all = join(repository, "snapshots");
    struct names l = {0};
    size_t n;
    ingle_status s = ref && all ? names_read(all, MOST_NAMES, &l, err)
                                : err_set(err, INGLE_NOMEM, "no memory for a path");
    *out = NULL;
    if (!s && !file_slurp(ref, 256, &text, &n, NULL)) {
        text[strcspn(text, " \r\n/")] = 0;
        if (has(&l, text))
            *out = join(all, text);
    }
    if (!s && !*out && l.n == 1)
        *out = join(all, l.at[0]);
    if (!s && !*out) {
        list_names(&l, names);
        s = err_set(err, INGLE_NOTFOUND,
                    l.n ? "%s: has %zu snapshots, and refs/main names none of them; give one: %s"
                        : "%s: has %zu snapshots%s",
                    repository, l.n, names);
    }
    names_release(&l);
    mem_free(text);
    mem_free(ref);
    mem_free(all);
    return s;
}

/* The repository that a path is in or is; NULL: none.  *s: an error. */
static char *repository_of(const char *path, ingle_status *s, struct err *err)
{
    char names[360], *inner = join(path, "snapshots"), *found = NULL;
    struct names all = {0}, repositories = {0};
    *s = INGLE_OK;
    if (inner && file_is_folder(inner)) {
        found = mem_strdup(path);
    } else if (!names_read(path, MOST_NAMES, &all, NULL)) {
        for (size_t i = 0; !*s && i < all.n; i++)
            if (!strncmp(all.at[i], "models--", 8))
                *s = names_add(&repositories, all.at[i], err);
        if (!*s && repositories.n == 1)
            found = join(path, repositories.at[0]);
        else if (!*s && repositories.n) {
            list_names(&repositories, names);
            *s = err_set(err, INGLE_ARG, "%s: is a cache of %zu models, give one of them: %s", path,
                         repositories.n, names);
        }
    }
    mem_free(inner);
    names_release(&all);
    names_release(&repositories);
    return found;
}

/* ---- drafters: what a folder has, and files beside a model ---- */

static bool is_checkpoint(const struct names *all)
{
    return has(all, "model.safetensors") || has(all, "model.safetensors.index.json") ||
           has_shards(all) || (only_safetensors(all) && has(all, "config.json"));
}

static ingle_status each_in(const char *dir, bool by_name, engine_path_fn *fn, void *arg,
                            struct err *err)
{
    struct names all = {0};
    unsigned no, n = 0;
    ingle_status s = names_read(dir, MOST_NAMES, &all, err);
    for (size_t i = 0; !s && i < all.n; i++) {
        if (!str_ends_any_case(all.at[i], ".gguf") || (is_part(all.at[i], &no) && no != 1) ||
            (by_name && !drafter_by_name(all.at[i])) || n++ >= MOST_PEEKS)
            continue;
        char *path = join(dir, all.at[i]);
        s = path ? fn(arg, path, err) : err_set(err, INGLE_NOMEM, "no memory for a path");
        mem_free(path);
    }
    if (!s && !by_name && is_checkpoint(&all))
        s = fn(arg, dir, err);
    names_release(&all);
    return s;
}

ingle_status engine_each_drafter(const char *dir, engine_path_fn *fn, void *arg, struct err *err)
{
    char *inner = NULL;
    ingle_status s;
    char *repository = repository_of(dir, &s, err);
    if (!s && repository)
        s = snapshot(repository, &inner, err);
    if (!s)
        s = each_in(inner ? inner : dir, false, fn, arg, err);
    mem_free(repository);
    mem_free(inner);
    return s;
}

/* "models--OWNER--NAME": NAME, as a hub's cache calls it. */
static const char *plain_name(const char *name)
{
    const char *p = strncmp(name, "models--", 8) ? NULL : strstr(name + 8, "--");
    return p ? p + 2 : name;
}

/* "gemma-4-31B-it-DFlash" beside "gemma-4-31B-it" or "gemma-4-31B-it-GGUF". */
static bool is_kin(const char *model, const char *name)
{
    static const char gguf[] = "-gguf";
    size_t n = strlen(model = plain_name(model));
    name = plain_name(name);
    if (n >= sizeof gguf && str_ends_any_case(model, gguf))
        n -= sizeof gguf - 1;
    return n && strlen(name) > n && !strncasecmp(model, name, n) && strchr("-_.", name[n]) &&
           drafter_by_name(name + n);
}

/* Cuts the last part of a path off; its name, or NULL at the root. */
static const char *cut_last(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || !slash[1])
        return NULL;
    *slash = 0;
    return slash + 1;
}

/* Folders beside that of the model; path is changed. */
static ingle_status each_kin(char *path, engine_path_fn *fn, void *arg, struct err *err)
{
    const char *name = cut_last(path), *up = strrchr(path, '/');
    struct names all = {0};
    if (up && !strcmp(up + 1, "snapshots")) { /* of a hub's cache */
        (void)cut_last(path);
        name = cut_last(path);
    }
    if (!name || names_read(*path ? path : "/", MOST_NAMES, &all, NULL))
        return INGLE_OK;
    ingle_status s = INGLE_OK;
    for (size_t i = 0, n = 0; !s && i < all.n; i++) {
        if (!is_kin(name, all.at[i]) || n++ >= MOST_PEEKS)
            continue;
        char *kin = join(path, all.at[i]);
        if (!kin)
            s = err_set(err, INGLE_NOMEM, "no memory for a path");
        else if (file_is_folder(kin) && engine_each_drafter(kin, fn, arg, err) == INGLE_NOMEM)
            s = INGLE_NOMEM;
        mem_free(kin);
    }
    names_release(&all);
    return s;
}

/* The folder that a model is in, without links.  A hub's cache has links with names to blobs
 * without: the names count. */
static bool folder_of(const char *model, char dir[PATH_MAX])
{
    char own[PATH_MAX];
    if (!realpath(model, dir))
        return false;
    if (file_is_folder(dir))
        return true;
    (void)cut_last(dir);
    const char *base = strrchr(dir, '/');
    const int n = base && !strcmp(base, "/blobs") ? snprintf(own, sizeof own, "%s", model) : 0;
    if (n > 0 && n < (int)sizeof own && cut_last(own) && *own)
        return realpath(own, dir) != NULL;
    return true;
}

ingle_status engine_each_sibling(const char *model, engine_path_fn *fn, void *arg, struct err *err)
{
    struct names all = {0};
    char dir[PATH_MAX];
    ingle_status s = INGLE_OK;
    if (!folder_of(model, dir))
        return INGLE_OK; /* there is nothing beside it */
    if (each_in(dir, true, fn, arg, err) == INGLE_NOMEM)
        s = INGLE_NOMEM;
    if (!s && !names_read(dir, MOST_NAMES, &all, NULL))
        for (size_t i = 0, n = 0; !s && i < all.n; i++) {
            if (!drafter_by_name(all.at[i]) || str_ends_any_case(all.at[i], ".gguf") ||
                n++ >= MOST_PEEKS)
                continue;
            char *inner = join(dir, all.at[i]);
            if (!inner)
                s = err_set(err, INGLE_NOMEM, "no memory for a path");
            else if (file_is_folder(inner) && each_in(inner, false, fn, arg, err) == INGLE_NOMEM)
                s = INGLE_NOMEM;
            mem_free(inner);
        }
    names_release(&all);
    if (!s)
        s = each_kin(dir, fn, arg, err);
    return s;
}

/* An index, or one of several shards. */
static bool is_piece(const char *name)
{
    const size_t n = strlen(name);
    return str_ends_any_case(name, ".safetensors.index.json") ||
           (n > 27 && str_ends_any_case(name, ".safetensors") &&
            !strncmp(name + n - 21, "-of-", 4) && strspn(name + n - 17, "0123456789") == 5 &&
            strtoul(name + n - 17, NULL, 10) > 1);
}

ingle_status engine_find_file(const char *path, const struct report_sink *sink, char **out,
                              struct err *err)
{
    ingle_status s;
    *out = NULL;
    if (!file_is_folder(path)) {
        const char *slash = strrchr(path, '/');
        if (is_piece(slash ? slash + 1 : path)) /* of what is in its folder */
            *out = !slash          ? mem_strdup(".")
                   : slash == path ? mem_strdup("/")
                                   : mem_strndup(path, (size_t)(slash - path));
        else
            *out = mem_strdup(path);
        return *out ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a path");
    }
    char *repository = repository_of(path, &s, err), *dir = NULL;
    if (!s && repository)
        s = snapshot(repository, &dir, err);
    if (!s)
        s = choose(dir ? dir : path, sink, out, err);
    mem_free(repository);
    mem_free(dir);
    return s;
}
