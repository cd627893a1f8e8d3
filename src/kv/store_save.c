/* SPDX-License-Identifier: Apache-2.0 */
/* store_save - a timeline as one file that stands alone. */
#define _GNU_SOURCE
#include "kv/store_impl.h"

#include "base/mem.h"
#include "base/num.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Opens the directory of a path; *name: the rest of it. */
static ingle_status open_parent(const char *path, int *dir, const char **name, struct err *err)
{
    const char *slash = strrchr(path, '/');
    char *parent = !slash          ? mem_strdup(".")
                   : slash == path ? mem_strdup("/")
                                   : mem_strndup(path, (size_t)(slash - path));
    if (!parent)
        return err_set(err, INGLE_NOMEM, "no memory for a path");
    *name = slash ? slash + 1 : path;
    *dir = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    mem_free(parent);
    if (*dir < 0)
        return err_set(err, errno == ENOENT ? INGLE_NOTFOUND : INGLE_IO,
                       "%s: cannot open its directory: %s", path, strerror(errno));
    if (**name)
        return INGLE_OK;
    close(*dir);
    return err_set(err, INGLE_ARG, "'%s' is no name of a file", path);
}

static void set_text(char *to, size_t n, const char *from)
{
    snprintf(to, n, "%s", from ? from : "");
}

ingle_status kv_save(const struct kv_timeline *t, const char *path,
                     const struct kv_save_options *o, const int32_t *tokens, int64_t n_tokens,
                     const void *mark, size_t mark_bytes, struct err *err)
{
    const struct kv_spec *s = t->pool->spec;
    const char *numerics = o->numerics ? o->numerics : "exact";
    struct kv_file_out out = {.token = tokens, .mark = mark};
    struct kv_file_header *h = &out.head;
    uint64_t n_bytes;
    const char *name;
    int dir;
    h->context = kv_context(s, o->identity, numerics);
    h->key = kv_key_of(h->context, 0, tokens, t->length);
    h->plain = kv_key_of((struct kv_key){0, 0}, 0, tokens, t->length);
    h->identity = o->identity;
    h->length = t->length;
    h->n_tokens = n_tokens;
    h->mark_bytes = mark_bytes;
    h->n_groups = s->n_groups;
    set_text(h->model, sizeof h->model, o->model);
    snprintf(h->settings, sizeof h->settings, "%s %s", o->codec ? o->codec : "", numerics);
    if (!kv_file_pages(s, 0, t->length, &h->n_pages, &n_bytes))
        return err_set(err, INGLE_LIMIT, "%s: %lld tokens are too many for a file", path,
                       (long long)t->length);
    ingle_status st = open_parent(path, &dir, &name, err);
    if (st)
        return st;
    const uint8_t **page = mem_calloc(h->n_pages + 1, sizeof *page);
    size_t *bytes = mem_calloc(h->n_pages + 1, sizeof *bytes), k = 0;
    if (!page || !bytes)
        st = err_set(err, INGLE_NOMEM, "no memory for a list of pages");
    for (uint32_t g = 0; g < s->n_groups && !st; g++)
        for (int64_t i = kv_file_first(s, g, 0, t->length); i < num_div_up(t->length, KV_PAGE);
             i++, k++) {
            page[k] = t->table[g].at[i];
            bytes[k] = s->group[g].page_bytes;
        }
    out.page = page;
    out.page_bytes = bytes;
    if (!st)
        st = kv_file_write(dir, name, &out, err);
    close(dir);
    mem_free(page);
    mem_free(bytes);
    return st;
}

static ingle_status check_file(const struct kv_file *f, const struct kv_timeline *t,
                               const struct kv_save_options *o, struct err *err)
{
    const struct kv_file_header *h = &f->head;
    const char *numerics = o->numerics ? o->numerics : "exact";
    if (h->identity != o->identity)
        return err_set(err, INGLE_UNSUP, "%s: another model's ('%s')", f->name, h->model);
    if (!kv_key_equal(h->context, kv_context(t->pool->spec, o->identity, numerics)))
        return err_set(err, INGLE_UNSUP, "%s: of other settings: '%s', not '%s %s'", f->name,
                       h->settings, o->codec ? o->codec : "", numerics);
    if (h->from)
        return err_set(err, INGLE_UNSUP, "%s: continues another file", f->name);
    if (h->n_tokens > t->max_tokens)
        return err_set(err, INGLE_LIMIT, "%s: %lld tokens exceed the limit of %lld tokens", f->name,
                       (long long)h->n_tokens, (long long)t->max_tokens);
    return INGLE_OK;
}

/* Reads and checks every page; pg is in the file's order. */
static ingle_status load_pages(const struct kv_file *f, const struct kv_spec *s,
                               struct kv_page **pg, size_t n, struct err *err)
{
    uint8_t **to = mem_calloc(n + 1, sizeof *to);
    if (!to)
        return err_set(err, INGLE_NOMEM, "no memory for a list of pages");
    for (size_t i = 0; i < n; i++)
        to[i] = pg[i]->at;
    ingle_status st = kv_file_read_pages(f, s, 0, n, to, err);
    for (size_t i = 0; i < n && !st; i++)
        if (!kv_file_page_good(f, i, to[i], kv_page_bytes(pg[i])))
            st = err_set(err, INGLE_FORMAT, "%s: damaged: the checksum of a page does not fit",
                         f->name);
    mem_free(to);
    return st;
}

ingle_status kv_load(struct kv_timeline *t, const char *path, const struct kv_save_options *o,
                     int32_t **tokens, int64_t *n_tokens, void **mark, size_t *mark_bytes,
                     struct err *err)
{
    const struct kv_spec *s = t->pool->spec;
    struct kv_file f;
    const char *name;
    int dir;
    ingle_status st = open_parent(path, &dir, &name, err);
    if (st)
        return st;
    st = kv_file_open(&f, dir, name, err);
    close(dir);
    if (st)
        return st;
    struct kv_page **pg = NULL;
    size_t n_pages = 0;
    int32_t *token = NULL;
    void *m = NULL;
    st = check_file(&f, t, o, err);
    if (!st)
        st = kv_file_read_meta(&f, s, err);
    if (!st && !kv_key_equal(f.head.key, kv_key_of(f.head.context, 0, f.token, f.head.length)))
        st = err_set(err, INGLE_FORMAT, "%s: damaged: its key is that of other tokens", path);
    if (!st && !kv_store_take_pages(t->pool, f.head.length, &pg, &n_pages))
        st = err_set(err, INGLE_LIMIT, "%s: no KV pages for its %lld tokens", path,
                     (long long)f.head.length);
    if (!st)
        st = load_pages(&f, s, pg, n_pages, err);
    if (!st) {
        token = mem_calloc((size_t)f.head.n_tokens + 1, sizeof *token);
        m = mem_alloc(f.head.mark_bytes + 1);
        if (!token || !m)
            st = err_set(err, INGLE_NOMEM, "%s: no memory for its tokens", path);
    }
    if (st) {
        kv_store_give_pages(t->pool, pg, n_pages);
        mem_free(token);
        mem_free(m);
    } else {
        memcpy(token, f.token, (size_t)f.head.n_tokens * sizeof *token);
        memcpy(m, f.mark, f.head.mark_bytes);
        kv_timeline_adopt(t, f.head.length, 0, pg);
        mem_free(pg);
        *tokens = token;
        *n_tokens = f.head.n_tokens;
        *mark = m;
        *mark_bytes = f.head.mark_bytes;
    }
    kv_file_close(&f);
    return st;
}
