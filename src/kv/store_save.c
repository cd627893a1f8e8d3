/* SPDX-License-Identifier: Apache-2.0 */
/* store_save - a timeline as one file that stands alone. */
#define _GNU_SOURCE
#include "kv/store_impl.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "kv/media.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    TAKE_NS = 1000000,       /* pages are taken for so long at a time */
    PIECE_PAGES = 64,        /* read at once, or ... */
    PIECE_BYTES = 256 << 10, /* ... so many bytes */
};

/* This thread has used the processor since clock_used() was `since`: others have it as long now. */
static void rest(const atomic_bool *gentle, uint64_t since)
{
    const uint64_t used = clock_used() - since;
    if (gentle && atomic_load(gentle))
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)(used / 1000000000),
                                           .tv_nsec = (long)(used % 1000000000)}, NULL);
}

/* Of a write: since when, and whether it rests. */
struct turn {
    const atomic_bool *gentle;
    uint64_t used;
};

static bool take_turns(void *arg)
{
    struct turn *t = arg;
    rest(t->gentle, t->used);
    t->used = clock_used();
    return false;
}

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

struct saved {
    const struct kv_timeline *t;
    uint32_t group; /* that a disk has: its pages may come and go meanwhile */
    size_t at;      /* the first of them */
};

static ingle_status fetch_page(void *arg, uint64_t i, void *to, struct err *err)
{
    const struct saved *s = arg;
    return kv_disk_copy(s->t->pool, s->t->table[s->group].page[i - s->at], to, err);
}

ingle_status kv_save(const struct kv_timeline *t, const char *path,
                     const struct kv_save_options *o, const int32_t *tokens, int64_t n_tokens,
                     const void *mark, size_t mark_bytes, struct err *err)
{
    const char *numerics = o->numerics ? o->numerics : "exact";
    struct kv_form form[KV_FORMS];
    const int n_forms = kv_forms(t->pool->spec, o->identity, numerics, form);
    const struct kv_spec *s = &form[t->from ? n_forms - 1 : 0].spec;
    struct turn turn = {o->gentle, clock_used()};
    struct saved saved = {t, 0, 0};
    struct kv_file_out out = {.token = tokens,
                              .media = t->pool->media,
                              .mark = mark,
                              .stop = take_turns,
                              .arg = &turn};
    struct kv_file_header *h = &out.head;
    uint64_t n_bytes;
    const char *name;
    int dir;
    if (kv_timeline_is_lost(t))
        return err_set(err, INGLE_LOST, "%s: what keys and values lay on (a card, a stage) is lost",
                       path);
    h->context = form[t->from ? n_forms - 1 : 0].context;
    h->sparse = kv_sparse_at(o->sparse, t->length);
    const struct kv_scope scope = {.salt = o->salt, .shorten = o->shorten, .sparse = h->sparse};
    h->key = kv_key_of(h->context, scope, t->pool->media, tokens, t->length);
    h->plain = kv_key_of((struct kv_key){0, 0}, kv_scope_of(0), t->pool->media, tokens, t->length);
    h->identity = o->identity;
    h->length = t->length;
    h->n_tokens = n_tokens;
    h->mark_bytes = mark_bytes;
    h->n_groups = (uint16_t)s->n_groups;
    set_text(h->model, sizeof h->model, o->model);
    char settings[128];
    snprintf(settings, sizeof settings, "%s %s%s", o->codec ? o->codec : "", numerics,
             o->more ? o->more : "");
    kv_file_settings(h, settings, s->n_own > 0);
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
            if (!kv_page_own_fetch(t->pool, t->table[g].page[i]) && !st)
                st = err_set(err, INGLE_LOST,
                             "%s: what keys and values lie on (a card, a stage) is lost", path);
            page[k] = kv_disk_has(t->pool, g) ? NULL : t->table[g].page[i]->at;
            bytes[k] = s->group[g].page_bytes;
            if (!page[k] && !i)
                saved = (struct saved){t, g, k};
        }
    out.fetch = fetch_page;
    out.fetch_arg = &saved;
    out.page = page;
    out.page_bytes = bytes;
    if (!st)
        st = kv_file_write(dir, name, &out, err);
    close(dir);
    mem_free(page);
    mem_free(bytes);
    return st;
}

/* *own: the pages that the file has, of all groups or of the model's own alone. */
static ingle_status check_file(const struct kv_file *f, const struct kv_spec *spec,
                               int64_t max_tokens, const struct kv_save_options *o,
                               struct kv_spec *own, struct err *err)
{
    const struct kv_file_header *h = &f->head;
    const char *numerics = o->numerics ? o->numerics : "exact";
    struct kv_form form[KV_FORMS];
    const int n_forms = kv_forms(spec, o->identity, numerics, form);
    bool known = false;
    if (h->identity != o->identity)
        return err_set(err, INGLE_UNSUP, "%s: another model's ('%s')", f->name, h->model);
    for (int i = 0; i < n_forms && !known; i++) {
        known = kv_key_equal(h->context, form[i].context);
        *own = form[i].spec;
    }
    if (!known)
        return err_set(err, INGLE_UNSUP, "%s: of other settings: '%s', not '%s %s%s'", f->name,
                       kv_file_texts(h).settings, o->codec ? o->codec : "", numerics,
                       spec->n_own ? " drafter" : "");
    if (h->from)
        return err_set(err, INGLE_UNSUP, "%s: continues another file", f->name);
    if (h->sparse &&
        (kv_sparse_bits(h->sparse) < 0 || kv_sparse_bits(h->sparse) > KV_SPARSE_MOST_BITS ||
         h->length <= kv_sparse_from(h->sparse)))
        return err_set(err, INGLE_FORMAT, "%s: damaged: it is sparse in no way that there is (%u)",
                       f->name, h->sparse);
    if (h->n_tokens > max_tokens)
        return err_set(err, INGLE_LIMIT, "%s: %lld tokens exceed the limit of %lld tokens", f->name,
                       (long long)h->n_tokens, (long long)max_tokens);
    return INGLE_OK;
}

/* ---- back ---- */

struct kv_load {
    const struct kv_spec *spec; /* of the timeline, */
    struct kv_spec own;         /* and of the file, whose groups are the first ones */
    const atomic_bool *gentle;
    struct kv_file file;
    char *name;           /* the file's, in its directory */
    char *path;
    struct kv_media *media;
    size_t n_named;       /* of its media: those with a reference */
    struct kv_pool *pool; /* pg's */
    /* [n_pages], in the file's order, of which n_taken are there; those after the */
    struct kv_page **pg;
    size_t n_pages, n_taken; /* file's pages are a guest's */
};

static ingle_status open_file(struct kv_load *l, const char *path, struct err *err)
{
    const char *name;
    int dir;
    ingle_status st = open_parent(path, &dir, &name, err);
    if (st)
        return st;
    l->path = mem_strdup(path);
    l->name = mem_strdup(name);
    st = l->path && l->name ? kv_file_open(&l->file, dir, l->name, err)
                            : err_set(err, INGLE_NOMEM, "no memory for a path");
    close(dir);
    return st;
}

/* Its tokens become keys where media are. */
static ingle_status name_media(struct kv_load *l, struct kv_media *media, struct err *err)
{
    const struct kv_file_header *h = &l->file.head;
    if (h->n_spans && !media)
        return err_set(err, INGLE_UNSUP, "%s: it has %d pictures or sounds", l->path, h->n_spans);
    l->media = media;
    for (; l->n_named < h->n_spans; l->n_named++) {
        const struct kv_media_span *s = &l->file.span[l->n_named];
        struct kv_medium of = {.token = s->token, .kind = s->kind};
        memcpy(of.id, s->id, sizeof of.id);
        if (kv_media_take(media, &of) < 0)
            return err_set(err, INGLE_NOMEM, "%s: no memory for the names of %d media", l->path,
                           h->n_spans);
    }
    kv_file_find_keys(&l->file, media);
    return INGLE_OK;
}

ingle_status kv_load_begin(struct kv_load **out, const struct kv_spec *spec, int64_t max_tokens,
                           const char *path, const struct kv_save_options *o, struct err *err)
{
    struct kv_load *l = mem_zalloc(sizeof *l);
    if (!l)
        return err_set(err, INGLE_NOMEM, "no memory to load '%s'", path);
    l->spec = spec;
    l->gentle = o->gentle;
    l->file.fd = -1;
    ingle_status st = open_file(l, path, err);
    const struct kv_file_header *h = &l->file.head;
    if (!st)
        st = check_file(&l->file, spec, max_tokens, o, &l->own, err);
    if (!st)
        st = kv_file_read_meta(&l->file, &l->own, err);
    if (!st)
        st = name_media(l, o->media, err);
    struct kv_scope scope = {0};
    if (!st && o->scope_of)
        o->scope_of(l->file.mark, h->mark_bytes, &scope);
    scope.sparse = h->sparse;
    if (!st && !kv_key_equal(h->key, kv_key_of(h->context, scope, l->media, l->file.token,
                                               h->length)))
        st = err_set(err, INGLE_FORMAT, "%s: damaged: its key is that of other tokens", path);
    uint64_t n_pages = 0, n_bytes;
    if (!st && !kv_file_pages(spec, 0, h->length, &n_pages, &n_bytes))
        st = err_set(err, INGLE_LIMIT, "%s: %lld tokens are too many", path, (long long)h->length);
    if (!st) {
        l->n_pages = (size_t)n_pages;
        l->pg = mem_calloc(l->n_pages + 1, sizeof *l->pg);
        if (!l->pg)
            st = err_set(err, INGLE_NOMEM, "no memory for a list of pages");
    }
    if (st)
        kv_load_end(l, NULL);
    else
        *out = l;
    return st;
}

const int32_t *kv_load_tokens(const struct kv_load *l, int64_t *n)
{
    *n = l->file.head.n_tokens;
    return l->file.token;
}

const void *kv_load_mark(const struct kv_load *l, size_t *n)
{
    *n = l->file.head.mark_bytes;
    return l->file.mark;
}

const struct kv_media_span *kv_load_spans(const struct kv_load *l, int64_t *n)
{
    *n = l->file.head.n_spans;
    return l->file.span;
}

uint32_t kv_load_sparse(const struct kv_load *l)
{
    return l->file.head.sparse;
}

/* The group of the i-th page, and which of the group it is. */
static uint32_t group_of(const struct kv_load *l, size_t i, int64_t *index)
{
    const struct kv_file_header *h = &l->file.head;
    size_t begin = 0;
    uint32_t g = 0;
    for (; g < l->spec->n_groups; g++) {
        const int64_t first = kv_file_first(l->spec, g, 0, h->length);
        const size_t n = (size_t)(num_div_up(h->length, KV_PAGE) - first);
        *index = first + (int64_t)(i - begin);
        if (i - begin < n)
            break;
        begin += n;
    }
    return g;
}

ingle_status kv_load_take(struct kv_load *l, struct kv_pool *p, bool *more, struct err *err)
{
    const uint64_t until = clock_now() + TAKE_NS;
    l->pool = p;
    while (l->n_taken < l->n_pages && clock_now() < until) {
        int64_t index = 0;
        const uint32_t g = group_of(l, l->n_taken, &index);
        if (!(l->pg[l->n_taken] = kv_page_take_for(p, g, index)))
            return err_set(err, INGLE_LIMIT, "%s: no KV pages for its %lld tokens", l->path,
                           (long long)l->file.head.length);
        l->n_taken++;
    }
    *more = l->n_taken < l->n_pages;
    return INGLE_OK;
}

ingle_status kv_load_read(struct kv_load *l, struct err *err)
{
    uint8_t *to[PIECE_PAGES], *bounce = NULL;
    const size_t n_pages = (size_t)l->file.head.n_pages;
    size_t n_bounce = 0;
    ingle_status st = INGLE_OK;
    for (size_t i = 0, n; i < n_pages && !st; i += n) {
        const uint64_t used = clock_used();
        size_t bytes = 0;
        const struct kv_page *away = l->pg[i]->at ? NULL : l->pg[i]; /* alone, on its way to disk */
        if (away && !bounce && !(bounce = mem_big_alloc(n_bounce = kv_page_bytes(away)))) {
            st = err_set(err, INGLE_NOMEM, "no memory for a page");
            break;
        }
        for (n = 0; n < PIECE_PAGES && i + n < n_pages && bytes < PIECE_BYTES &&
                    (!n || (!away && l->pg[i + n]->at));
             n++) {
            to[n] = away ? bounce : l->pg[i + n]->at;
            bytes += kv_page_bytes(l->pg[i + n]);
        }
        st = kv_file_read_pages(&l->file, &l->own, i, n, to, err);
        for (size_t k = 0; k < n && !st; k++)
            if (!kv_file_page_good(&l->file, i + k, to[k], kv_page_bytes(l->pg[i + k])))
                st = err_set(err, INGLE_FORMAT, "%s: damaged: the checksum of a page does not fit",
                             l->file.name);
        if (!st && away)
            st = kv_disk_fill(l->pool, away, bounce, err);
        rest(l->gentle, used);
    }
    mem_big_free(bounce, n_bounce);
    return st;
}

void kv_load_end(struct kv_load *l, struct kv_timeline *t)
{
    if (!l)
        return;
    if (t)
        kv_timeline_adopt(t, l->file.head.length, 0, l->pg, l->own.n_groups < l->spec->n_groups);
    for (size_t i = 0; !t && i < l->n_taken; i++)
        kv_page_unref(l->pool, l->pg[i]);
    for (size_t i = 0; i < l->n_named; i++)
        kv_media_give(l->media, kv_media_find(l->media, l->file.span[i].id));
    kv_file_close(&l->file);
    mem_free(l->pg);
    mem_free(l->name);
    mem_free(l->path);
    mem_free(l);
}

ingle_status kv_load(struct kv_timeline *t, const char *path, const struct kv_save_options *o,
                     int32_t **tokens, int64_t *n_tokens, void **mark, size_t *mark_bytes,
                     struct err *err)
{
    struct kv_load *l;
    ingle_status st = kv_load_begin(&l, t->pool->spec, t->max_tokens, path, o, err);
    if (st)
        return st;
    for (bool more = true; more && !st;)
        st = kv_load_take(l, t->pool, &more, err);
    if (!st)
        st = kv_load_read(l, err);
    const struct kv_file_header *h = &l->file.head;
    int32_t *token = st ? NULL : mem_calloc((size_t)h->n_tokens + 1, sizeof *token);
    void *m = st ? NULL : mem_alloc(h->mark_bytes + 1);
    if (!st && (!token || !m))
        st = err_set(err, INGLE_NOMEM, "%s: no memory for its tokens", path);
    if (st) {
        mem_free(token);
        mem_free(m);
    } else {
        memcpy(token, l->file.token, (size_t)h->n_tokens * sizeof *token);
        memcpy(m, l->file.mark, h->mark_bytes);
        *tokens = token;
        *n_tokens = h->n_tokens;
        *mark = m;
        *mark_bytes = h->mark_bytes;
    }
    kv_load_end(l, st ? NULL : t);
    return st;
}
