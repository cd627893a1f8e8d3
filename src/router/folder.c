/* SPDX-License-Identifier: Apache-2.0
 *
 * The models of a folder: its GGUF files, the folders in it, and the repositories of a hub's cache.
 * What a name ends in does not make a model: the beginning of each file is read, and drafters,
 * importance files, projectors and adapters are left out.
 */
#define _DEFAULT_SOURCE
#include "router/inner.h"
#include "router/parts.h"

#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_BYTES = 1 << 16, MOST_HEAD = 1 << 25, MOST_NAMES = 20000 };

/* ---- names ---- */

static bool ends_with(const char *text, size_t n, const char *end)
{
    const size_t k = strlen(end);
    return n >= k && strncasecmp(text + n - k, end, k) == 0;
}

/* "-00002-of-00003" before the n bytes' end: the number of the part; 0: it is none.  *n: without
 * it. */
static long part_of(const char *name, size_t *n)
{
    enum { MARK = sizeof "-00001-of-00003" - 1 };
    if (*n <= MARK)
        return 0;
    const char *p = name + *n - MARK;
    if (p[0] != '-' || strncasecmp(p + 6, "-of-", 4) != 0 || strspn(p + 1, "0123456789") != 5)
        return 0;
    *n -= MARK;
    return strtol(p + 1, NULL, 10);
}

/* Whether a file of this name can be a model of its own; *n: length of the model's name. */
static bool is_model_name(const char *name, size_t *n)
{
    *n = strlen(name);
    if (name[0] == '.' || strncasecmp(name, "mmproj", 6) == 0 || !ends_with(name, *n, ".gguf"))
        return false;
    *n -= sizeof ".gguf" - 1;
    return part_of(name, n) <= 1 && *n > 0;
}

static bool has_word(const char *text, const char *const *word)
{
    for (; *word; word++)
        for (const char *p = text; *p; p++)
            if (strncasecmp(p, *word, strlen(*word)) == 0)
                return true;
    return false;
}

/* ---- what a file is ---- */

struct head {
    const unsigned char *at;
    size_t n, i;
    char arch[64], type[64];
};

static bool take(struct head *h, void *out, size_t n)
{
    if (n > h->n - h->i)
        return false;
    memcpy(out, h->at + h->i, n);
    h->i += n;
    return true;
}

/* A string of metadata: its bytes stay where they are. */
static bool take_text(struct head *h, const char **text, size_t *n)
{
    uint64_t k;
    if (!take(h, &k, sizeof k) || k > h->n - h->i)
        return false;
    *text = (const char *)h->at + h->i;
    *n = (size_t)k;
    h->i += (size_t)k;
    return true;
}

/* Key and value, as long as they are whole and no arrays: the general ones come first. */
static bool take_pair(struct head *h)
{
    static const unsigned char size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    enum { TEXT = 8, ARRAY = 9 };
    const char *key, *text;
    size_t n_key, n;
    uint32_t type;
    if (!take_text(h, &key, &n_key) || !take(h, &type, sizeof type) || type >= sizeof size ||
        type == ARRAY)
        return false;
    if (type != TEXT) {
        if (size[type] > h->n - h->i)
            return false;
        h->i += size[type];
        return true;
    }
    if (!take_text(h, &text, &n))
        return false;
    char *to = n_key == 20 && memcmp(key, "general.architecture", 20) == 0 ? h->arch
               : n_key == 12 && memcmp(key, "general.type", 12) == 0       ? h->type
                                                                           : NULL;
    if (to)
        snprintf(to, sizeof h->arch, "%.*s", (int)(n < 60 ? n : 60), text);
    return true;
}

/* Whether metadata say that it is no model by itself. */
static bool is_other(const unsigned char *bytes, size_t n)
{
    static const char *const other[] = {"dflash", "dspark", "eagle",  "assistant", "draft",
                                        "medusa", "clip",   "mmproj", "imatrix",   NULL};
    static const char *const type[] = {"imatrix", "adapter", "mmproj", NULL};
    struct head h = {.at = bytes, .n = n, .i = 24}; /* magic, version, two counts */
    for (int k = 0; k < 256 && take_pair(&h); k++) {}
    return has_word(h.arch, other) || has_word(h.type, type);
}

/* A file that is called like a drafter may be a model with a drafter in it: then it has embeddings
 * of tokens. */
static bool has_embeddings(int fd)
{
    static const char name[] = "token_embd.weight";
    bool found = false;
    char *bytes = mem_alloc(MOST_HEAD);
    const ssize_t n = bytes ? pread(fd, bytes, MOST_HEAD, 0) : -1;
    for (ssize_t i = 0; i + (ssize_t)sizeof name <= n && !found; i++) {
        const char *p = memchr(bytes + i, 't', (size_t)(n - i));
        if (!p || p + sizeof name > bytes + n)
            break;
        i = p - bytes;
        found = memcmp(p, name, sizeof name - 1) == 0;
    }
    mem_free(bytes);
    return found;
}

enum what { A_MODEL, NO_MODEL, BROKEN };

/* why: for BROKEN. */
static enum what what_is(const char *path, const char *name, const char **why)
{
    static const char *const drafter[] = {"mtp", "dflash", "dspark", NULL};
    struct stat is;
    enum what what = BROKEN;
    size_t n_name = strlen(name) - (sizeof ".gguf" - 1);
    unsigned char *head = mem_alloc(HEAD_BYTES);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const int e = errno;
    const ssize_t n = fd >= 0 && head && fstat(fd, &is) == 0 && S_ISREG(is.st_mode)
                          ? pread(fd, head, HEAD_BYTES, 0)
                          : -1;
    if (fd < 0)
        *why = strerror(e);
    else if (n < 0)
        *why = "it is no file that can be read";
    else if (n == 0)
        *why = "it is empty";
    else if (n < 24 || memcmp(head, "GGUF", 4) != 0)
        *why = "it is no GGUF file";
    else if (is_other(head, (size_t)n))
        what = NO_MODEL;
    else
        what = has_word(name, drafter) && !part_of(name, &n_name) && !has_embeddings(fd) ? NO_MODEL
                                                                                         : A_MODEL;
    if (fd >= 0)
        close(fd);
    mem_free(head);
    return what;
}

/* ---- one model ---- */

ATTR_PRINTF(2, 3) static void warn(struct router_presets *p, const char *fmt, ...)
{
    char text[480];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    router_presets_line(&p->warnings, &p->n_warnings, text);
}

static ingle_status add_path(struct router_presets *p, const char *name, size_t n_name,
                             const char *path, struct err *err)
{
    struct ingle_error error;
    struct router_preset *new = NULL;
    char *id = mem_strndup(name, n_name);
    ingle_status st =
        !id ? err_set(err, INGLE_NOMEM, "no memory for '%s'", path)
        : router_presets_find(p, id)
            ? err_set(err, INGLE_ARG, "two models are called '%s': one is %s", id, path)
            : router_presets_new(p, id, path, &new, err);
    if (!st && ingle_config_set(new->config, "serve", "model", path, &error))
        st = err_set(err, error.status, "%s", error.text);
    mem_free(id);
    return st;
}

/* The names in a folder in their order, without hidden ones. */
struct names {
    char **at; /* [n] */
    size_t n, cap;
};

static void names_release(struct names *all)
{
    for (size_t i = 0; i < all->n; i++)
        mem_free(all->at[i]);
    mem_free(all->at);
    *all = (struct names){0};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static ingle_status names_read(const char *path, struct names *all, struct err *err)
{
    DIR *d = opendir(path);
    if (!d)
        return err_set(err, INGLE_IO, "'%s' cannot be read: %s", path, strerror(errno));
    bool ok = true;
    for (struct dirent *e; ok && all->n < MOST_NAMES && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        ok = mem_grow(&all->at, &all->cap, all->n + 1, sizeof *all->at) &&
             (all->at[all->n] = mem_strdup(e->d_name));
        all->n += ok;
    }
    closedir(d);
    if (!ok)
        return err_set(err, INGLE_NOMEM, "no memory for the names in '%s'", path);
    if (all->n)
        qsort(all->at, all->n, sizeof *all->at, by_name);
    return INGLE_OK;
}

static bool join(char out[PATH_MAX], const char *folder, const char *name)
{
    const int n = snprintf(out, PATH_MAX, "%s/%s", folder, name);
    return n > 0 && n < PATH_MAX;
}

/* Which of the names are models: kept in their order.  *config: there is a config.json. */
static ingle_status models_of(struct router_presets *p, const char *path, struct names *all,
                              bool *config, struct err *err)
{
    char file[PATH_MAX];
    size_t kept = 0;
    const ingle_status st = names_read(path, all, err);
    *config = false;
    for (size_t i = 0; i < all->n && !st; i++) {
        size_t n;
        const char *why = NULL;
        const char *name = all->at[i];
        *config |= strcmp(name, "config.json") == 0;
        const bool may = is_model_name(name, &n) && join(file, path, name) && !file_is_folder(file);
        const enum what what = may ? what_is(file, name, &why) : NO_MODEL;
        if (what == BROKEN)
            warn(p, "%.300s is left out: %s", file, why);
        if (what != A_MODEL)
            continue;
        char *keep = all->at[kept];
        all->at[kept++] = all->at[i];
        all->at[i] = keep;
    }
    for (; all->n > kept; all->n--)
        mem_free(all->at[all->n - 1]);
    return st;
}

/* ---- a repository in a hub's cache ---- */

/* The snapshot that `main` names, or else the newest one. */
static bool snapshot_of(const char *path, char out[PATH_MAX])
{
    char file[PATH_MAX], name[80] = "";
    struct names all = {0};
    struct stat is;
    time_t newest = 0;
    bool found = false;
    const bool named = join(file, path, "refs/main") && !stat(file, &is) && S_ISREG(is.st_mode);
    FILE *f = named ? fopen(file, "re") : NULL;
    if (f && fscanf(f, "%79[0-9a-zA-Z]", name) == 1)
        found = snprintf(out, PATH_MAX, "%s/snapshots/%s", path, name) < PATH_MAX &&
                file_is_folder(out);
    if (f)
        fclose(f);
    if (found || !join(file, path, "snapshots") || names_read(file, &all, NULL))
        return found;
    for (size_t i = 0; i < all.n; i++) {
        char one[PATH_MAX];
        if (!join(one, file, all.at[i]) || stat(one, &is) || !S_ISDIR(is.st_mode) ||
            (found && is.st_mtime <= newest))
            continue;
        newest = is.st_mtime;
        found = true;
        memcpy(out, one, PATH_MAX);
    }
    names_release(&all);
    return found;
}

/* "models--OWNER--NAME": "OWNER/NAME"; with n_models > 1 ":" and the end of the file's name, or all
 * of it. */
static void name_cached(char out[300], const char *folder, const char *file,
                        const struct router_presets *p)
{
    const char *name = folder + strlen("models--"), *sep = strstr(name, "--");
    const int n_owner = sep ? (int)(sep - name) : 0;
    size_t n, k = (size_t)snprintf(out, 300, "%.*s%s%.96s", n_owner < 96 ? n_owner : 96, name,
                                   sep ? "/" : "", sep ? sep + 2 : name);
    if (!file)
        return;
    (void)is_model_name(file, &n);
    size_t from = n;
    while (from > 0 && file[from - 1] != '-' && file[from - 1] != '.')
        from--;
    snprintf(out + k, 300 - k, ":%.*s", (int)(n - from < 90 ? n - from : 90), file + from);
    if (router_presets_find(p, out))
        snprintf(out + k, 300 - k, ":%.*s", (int)(n < 90 ? n : 90), file);
}

static ingle_status add_cached(struct router_presets *p, const char *folder, const char *path,
                               struct err *err)
{
    char snapshot[PATH_MAX], file[PATH_MAX], id[300];
    struct names all = {0};
    bool config;
    if (!snapshot_of(path, snapshot))
        return INGLE_OK;
    ingle_status st = models_of(p, snapshot, &all, &config, err);
    for (size_t i = 0; i < all.n && !st; i++) {
        name_cached(id, folder, all.n > 1 ? all.at[i] : NULL, p);
        if (join(file, snapshot, all.at[i]))
            st = add_path(p, id, strlen(id), file, err);
    }
    if (!st && !all.n && config) {
        name_cached(id, folder, NULL, p);
        st = add_path(p, id, strlen(id), snapshot, err);
    }
    names_release(&all);
    return st;
}

/* ---- folders ---- */

/* A folder is a model if something in it is: its first GGUF file, or the folder itself with a
 * config.json. */
static ingle_status add_folder(struct router_presets *p, const char *name, const char *path,
                               struct err *err)
{
    char file[PATH_MAX];
    struct names all = {0};
    struct err why;
    bool config;
    if (strncmp(strrchr(path, '/') + 1, "models--", 8) == 0)
        return add_cached(p, strrchr(path, '/') + 1, path, err);
    ingle_status st = models_of(p, path, &all, &config, &why);
    if (st == INGLE_NOMEM) {
        st = err_set(err, st, "%s", why.msg);
    } else if (st) {
        warn(p, "%s", why.msg);
        st = INGLE_OK;
    } else if (all.n) {
        if (all.n > 1)
            warn(p,
                 "%.200s holds %zu models: '%.100s' is %.100s; a section with a 'model' names "
                 "another one",
                 path, all.n, name, all.at[0]);
        if (join(file, path, all.at[0]))
            st = add_path(p, name, strlen(name), file, err);
    } else if (config) {
        st = add_path(p, name, strlen(name), path, err);
    }
    names_release(&all);
    return st;
}

/* Folders in one without a model: OWNER/NAME, as `ingle pull` makes them. */
static ingle_status add_owner(struct router_presets *p, const char *owner, const char *path,
                              struct err *err)
{
    char inner[PATH_MAX], id[512];
    struct names all = {0};
    ingle_status st = names_read(path, &all, NULL) == INGLE_NOMEM
                          ? err_set(err, INGLE_NOMEM, "no memory for '%s'", path)
                          : INGLE_OK;
    for (size_t i = 0; i < all.n && !st; i++) {
        const int n = snprintf(id, sizeof id, "%s/%s", owner, all.at[i]);
        if (n > 0 && n < (int)sizeof id && join(inner, path, all.at[i]) && file_is_folder(inner))
            st = add_folder(p, id, inner, err);
    }
    names_release(&all);
    return st;
}

/* Whether the path leads back to the folder or above it. */
static bool leads_back(const char *path, const char *top)
{
    char a[PATH_MAX], b[PATH_MAX];
    if (!realpath(path, a) || !realpath(top, b))
        return false;
    const size_t n = strlen(a);
    return strncmp(a, b, n) == 0 && (!b[n] || b[n] == '/');
}

ingle_status router_presets_folder(struct router_presets *p, const char *path, struct err *err)
{
    char file[PATH_MAX], inner[PATH_MAX];
    struct names all = {0}, models = {0};
    bool config;
    const size_t before = p->n;
    if (realpath(path, file) && strncmp(strrchr(file, '/') + 1, "models--", 8) == 0 &&
        join(inner, path, "snapshots") && file_is_folder(inner))
        return add_cached(p, strrchr(file, '/') + 1, path, err);
    ingle_status st = models_of(p, path, &models, &config, err);
    for (size_t i = 0; i < models.n && !st; i++) {
        size_t n;
        (void)is_model_name(models.at[i], &n);
        if (join(file, path, models.at[i]))
            st = add_path(p, models.at[i], n, file, err);
    }
    if (!st)
        st = names_read(path, &all, err);
    for (size_t i = 0; i < all.n && !st; i++) {
        const size_t n = p->n;
        if (!join(file, path, all.at[i]) || !file_is_folder(file) || leads_back(file, path))
            continue;
        st = add_folder(p, all.at[i], file, err);
        if (!st && p->n == n)
            st = add_owner(p, all.at[i], file, err);
    }
    names_release(&all);
    names_release(&models);
    if (!st && p->n == before)
        st = err_set(err, INGLE_NOTFOUND,
                     "'%s' holds no model: neither GGUF files nor folders with one", path);
    return st;
}
