/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of repositories, listings, and which files a model needs.
 */
#include "hub/inner.h"

#include "base/json.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_FILES = 20000, MOST_PATH = 512, MOST_NAME = 96 };

void hub_list_release(struct hub_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->at[i].path);
    mem_free(l->at);
    *l = (struct hub_list){0};
}

/* ---- names ---- */

static bool is_word(const char *s, size_t n)
{
    if (!n || n > MOST_NAME || s[0] == '.' || s[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", s[i]) || !s[i])
            return false;
    return true;
}

ingle_status hub_name_read(const char *text, struct hub_name *out, struct err *err)
{
    const char *slash = strchr(text, '/'), *colon = strchr(text, ':');
    const size_t n = colon ? (size_t)(colon - text) : strlen(text);
    const size_t n_owner = slash ? (size_t)(slash - text) : 0;
    if (!slash || n_owner >= n || !is_word(text, n_owner) || !is_word(slash + 1, n - n_owner - 1) ||
        (colon && !is_word(colon + 1, strlen(colon + 1))) || (colon && strlen(colon + 1) >= sizeof out->code))
        return err_set(err, INGLE_ARG, "'%.200s' is no name of a repository: OWNER/NAME or OWNER/NAME:CODE", text);
    snprintf(out->repository, sizeof out->repository, "%.*s", (int)n, text);
    snprintf(out->code, sizeof out->code, "%s", colon ? colon + 1 : "");
    return INGLE_OK;
}

bool hub_path_is_safe(const char *path)
{
    if (!*path || strlen(path) > MOST_PATH)
        return false;
    for (const char *p = path;;) {
        const size_t n = strcspn(p, "/");
        if (!n || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < ' ' || p[i] == '\\' || p[i] == 0x7F)
                return false;
        if (!p[n])
            return true;
        p += n + 1;
    }
}

/* ---- a listing ---- */

static const char *text_of(struct json_object *o, const char *key)
{
    struct json_object *v;
    return json_object_object_get_ex(o, key, &v) && json_object_is_type(v, json_type_string) ? json_object_get_string(v) : NULL;
}

static bool size_of(struct json_object *o, uint64_t *out)
{
    struct json_object *v;
    if (!json_object_object_get_ex(o, "size", &v) || !json_object_is_type(v, json_type_int) || json_object_get_int64(v) < 0)
        return false;
    *out = json_object_get_uint64(v);
    return *out <= (uint64_t)1 << 50;
}

static bool is_hash(const char *s) { return s && strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64; }

static ingle_status add_entry(struct hub_list *l, struct json_object *e, struct err *err)
{
    struct json_object *lfs;
    struct hub_file f = {0};
    const char *type = text_of(e, "type"), *path = text_of(e, "path");
    if (!json_object_is_type(e, json_type_object) || !type || !path)
        return err_set(err, INGLE_FORMAT, "the hub's list of files has an entry without a type or a path");
    if (strcmp(type, "file") != 0)
        return INGLE_OK;
    if (!hub_path_is_safe(path))
        return err_set(err, INGLE_FORMAT, "the hub's list of files has the path '%.80s', which leaves the folder", path);
    if (!size_of(e, &f.n_bytes))
        return err_set(err, INGLE_FORMAT, "the hub tells no size of '%.200s'", path);
    if (json_object_object_get_ex(e, "lfs", &lfs) && json_object_is_type(lfs, json_type_object)) {
        const char *oid = text_of(lfs, "oid");
        if (oid && strncmp(oid, "sha256:", 7) == 0)
            oid += 7;
        if (!is_hash(oid) || !size_of(lfs, &f.n_bytes))
            return err_set(err, INGLE_FORMAT, "the hub tells no SHA-256 or size of '%.200s'", path);
        memcpy(f.sha256, oid, sizeof f.sha256);
    }
    if (l->n >= MOST_FILES)
        return err_set(err, INGLE_LIMIT, "the repository has more than %d files", MOST_FILES);
    f.path = mem_strdup(path);
    if (!f.path || !mem_grow(&l->at, &l->cap, l->n + 1, sizeof *l->at)) {
        mem_free(f.path);
        return err_set(err, INGLE_NOMEM, "no memory for the list of files");
    }
    l->at[l->n++] = f;
    return INGLE_OK;
}

ingle_status hub_list_read(struct hub_list *l, const char *text, size_t n, struct err *err)
{
    struct json_object *list;
    ingle_status st = json_parse(text, n, NULL, &list, err);
    if (st)
        return err_prefix(err, "the hub's list of files");
    if (!json_object_is_type(list, json_type_array))
        st = err_set(err, INGLE_FORMAT, "the hub's list of files is no array");
    for (size_t i = 0; !st && i < json_object_array_length(list); i++)
        st = add_entry(l, json_object_array_get_idx(list, i), err);
    json_object_put(list);
    return st;
}

/* ---- which files ---- */

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && strcasecmp(s + n - k, end) == 0;
}

/* A GGUF file that is a model, or a part of one. */
static bool is_model(const char *path)
{
    const char *base = base_of(path);
    return ends_with(base, ".gguf") && strncasecmp(base, "mmproj", 6) != 0 && !strstr(base, "imatrix");
}

/* Length of the path without its part and ending; *part: its number, 0 for a whole file. */
static size_t stem_of(const char *path, long *part)
{
    enum { MARK = sizeof "-00001-of-00003" - 1 };
    size_t n = strlen(path) - (sizeof ".gguf" - 1);
    *part = 0;
    if (n > MARK && path[n - MARK] == '-' && strncmp(path + n - 9, "-of-", 4) == 0 &&
        sscanf(path + n - MARK + 1, "%5ld", part) == 1)
        n -= MARK;
    return n;
}

/* Whether the stem has the code as a word of its own: behind a separator and at the end, or as its folder. */
static bool has_code(const char *path, const char *code)
{
    long part;
    const size_t n = stem_of(path, &part), k = strlen(code);
    for (size_t i = 0; i + k <= n; i++) {
        const bool begins = i == 0 || strchr("-._/", path[i - 1]), ends = i + k == n || strchr("./", path[i + k]) || path[i + k] == '/';
        if (begins && ends && strncasecmp(path + i, code, k) == 0)
            return true;
    }
    return false;
}

static bool same_stem(const char *a, const char *b)
{
    long part;
    const size_t n = stem_of(a, &part);
    return n == stem_of(b, &part) && strncmp(a, b, n) == 0;
}

/* The models of a list, for an error. */
static void put_models(const struct hub_list *l, char *out, size_t n)
{
    size_t k = 0;
    out[0] = 0;
    for (size_t i = 0; i < l->n && k + 8 < n; i++) {
        long part;
        if (!is_model(l->at[i].path))
            continue;
        const size_t stem = stem_of(l->at[i].path, &part);
        if (part <= 1)
            k += (size_t)snprintf(out + k, n - k, "%s%.*s", k ? ", " : "", (int)(stem < 60 ? stem : 60), l->at[i].path);
    }
}

/* The first file of the only model with this code ("": of all); NULL, and how many there are. */
static const struct hub_file *find(const struct hub_list *l, const char *code, size_t *n)
{
    const struct hub_file *found = NULL;
    *n = 0;
    for (size_t i = 0; i < l->n; i++) {
        long part;
        const char *path = l->at[i].path;
        if (!is_model(path) || (*code && !has_code(path, code)))
            continue;
        (void)stem_of(path, &part);
        if (part > 1)
            continue;
        *n += 1;
        found = &l->at[i];
    }
    return *n == 1 ? found : NULL;
}

/* All parts of a split file must be there. */
static ingle_status want_parts(struct hub_list *l, const struct hub_file *first, struct err *err)
{
    long part, most = 1, n = 0;
    const size_t stem = stem_of(first->path, &part);
    if (part)
        most = strtol(first->path + stem + sizeof "-00001-of-" - 1, NULL, 10);
    for (size_t i = 0; i < l->n; i++)
        if (is_model(l->at[i].path) && same_stem(l->at[i].path, first->path)) {
            l->at[i].wanted = true;
            n++;
        }
    return n == most ? INGLE_OK : err_set(err, INGLE_FORMAT, "the hub has %ld of the %ld parts of '%.200s'", n, most, first->path);
}

static bool want_checkpoint(struct hub_list *l)
{
    bool weights = false, config = false;
    for (size_t i = 0; i < l->n; i++) {
        struct hub_file *f = &l->at[i];
        const bool tensors = ends_with(f->path, ".safetensors");
        if (strchr(f->path, '/'))
            continue;
        f->wanted = tensors || ends_with(f->path, ".json") || ends_with(f->path, ".jinja") || ends_with(f->path, ".model");
        weights |= tensors;
        config |= strcmp(f->path, "config.json") == 0;
    }
    return weights && config;
}

ingle_status hub_choose(struct hub_list *l, const char *code, const char **first, struct err *err)
{
    char models[300];
    size_t n;
    const struct hub_file *f = find(l, code, &n);
    if (!f && !*code && n > 1)
        f = find(l, "Q4_K_M", &n);
    put_models(l, models, sizeof models);
    if (f) {
        *first = f->path;
        return want_parts(l, f, err);
    }
    if (n > 1)
        return err_set(err, INGLE_ARG, "%zu files of the repository fit%s%s: name one by its code: %s", n, *code ? " " : "", code, models);
    if (!*code && !models[0] && want_checkpoint(l)) {
        *first = "";
        return INGLE_OK;
    }
    if (!models[0])
        return err_set(err, INGLE_NOTFOUND, "the repository has neither GGUF files nor a checkpoint of safetensors");
    return err_set(err, INGLE_NOTFOUND, "the repository has no file of the code '%s': it has %s", code, models);
}
