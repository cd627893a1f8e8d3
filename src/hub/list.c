/* SPDX-License-Identifier: Apache-2.0 */
/* list - the hub's list of a repository's files. */
#include "hub/inner.h"

#include "base/json.h"
#include "base/mem.h"

#include <string.h>

enum { MOST_FILES = 20000 };

void hub_list_release(struct hub_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->at[i].path);
    mem_free(l->at);
    *l = (struct hub_list){0};
}

ingle_status hub_list_add(struct hub_list *l, const struct hub_file *f, const char *path,
                          struct err *err)
{
    if (l->n >= MOST_FILES)
        return err_set(err, INGLE_LIMIT, "the repository has more than %d files", MOST_FILES);
    char *own = mem_strdup(path);
    if (!own || !mem_grow(&l->at, &l->cap, l->n + 1, sizeof *l->at)) {
        mem_free(own);
        return err_set(err, INGLE_NOMEM, "no memory for the list of files");
    }
    l->at[l->n] = *f;
    l->at[l->n++].path = own;
    return INGLE_OK;
}

/* ---- a listing ---- */

static const char *text_of(struct json_object *o, const char *key)
{
    struct json_object *v;
    if (!json_object_object_get_ex(o, key, &v) || !json_object_is_type(v, json_type_string))
        return NULL;
    const char *text = json_object_get_string(v);
    /* a 0 would end it */
    return strlen(text) == (size_t)json_object_get_string_len(v) ? text : NULL;
}

static bool size_of(struct json_object *o, uint64_t *out)
{
    struct json_object *v;
    if (!json_object_object_get_ex(o, "size", &v) || !json_object_is_type(v, json_type_int) ||
        json_object_get_int64(v) < 0)
        return false;
    *out = json_object_get_uint64(v);
    return *out <= (uint64_t)1 << 50;
}

static bool is_hash(const char *s)
{
    return s && strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64;
}

static ingle_status add_entry(struct hub_list *l, struct json_object *e, struct err *err)
{
    struct json_object *lfs;
    struct hub_file f = {0};
    char shown[120];
    const char *type = text_of(e, "type"), *path = text_of(e, "path");
    if (!json_object_is_type(e, json_type_object) || !type || !path)
        return err_set(err, INGLE_FORMAT,
                       "the hub's list of files has an entry without a type or a path");
    if (strcmp(type, "file") != 0)
        return INGLE_OK;
    if (!hub_path_is_safe(path)) {
        hub_words(shown, sizeof shown, path, strlen(path));
        return err_set(err, INGLE_FORMAT,
                       "the hub's list of files has the path '%s', which leaves the folder or has "
                       "characters that no "
                       "name may have",
                       shown);
    }
    if (!size_of(e, &f.n_bytes))
        return err_set(err, INGLE_FORMAT, "the hub tells no size of '%.200s'", path);
    const char *blob = text_of(e, "oid");
    if (blob && strlen(blob) < sizeof f.oid && strspn(blob, "0123456789abcdef") == strlen(blob))
        memcpy(f.oid, blob, strlen(blob) + 1);
    if (json_object_object_get_ex(e, "lfs", &lfs) && json_object_is_type(lfs, json_type_object)) {
        const char *oid = text_of(lfs, "oid");
        if (oid && strncmp(oid, "sha256:", 7) == 0)
            oid += 7;
        if (!is_hash(oid) || !size_of(lfs, &f.n_bytes))
            return err_set(err, INGLE_FORMAT, "the hub tells no SHA-256 or size of '%.200s'", path);
        memcpy(f.sha256, oid, sizeof f.sha256);
    }
    return hub_list_add(l, &f, path, err);
}

ingle_status hub_list_read(struct hub_list *l, const char *text, size_t n, struct err *err)
{
    struct json_object *list;
    char words[240] = "";
    if (hub_is_html(NULL, text, n)) {
        hub_html(words, sizeof words, text, n);
        return err_set(err, INGLE_FORMAT, "the hub's list of files is %s", words);
    }
    ingle_status st = json_parse(text, n, NULL, &list, err);
    if (st)
        return err_prefix(err, "the hub's list of files");
    if (!json_object_is_type(list, json_type_array)) {
        const bool says = hub_json_words(text, n, words, sizeof words);
        st = err_set(err, INGLE_FORMAT, "the hub's list of files is no array%s%s", says ? ": " : "",
                     words);
    }
    for (size_t i = 0; !st && i < json_object_array_length(list); i++)
        st = add_entry(l, json_object_array_get_idx(list, i), err);
    json_object_put(list);
    return st;
}
