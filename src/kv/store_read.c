/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_read - from files to a timeline.
 *
 * The disk thread reads into pages that belong to nobody yet; the engine thread checks each
 * as it arrives, and only when all are good they become the timeline's.
 */
#define _GNU_SOURCE
#include "kv/store_impl.h"

#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECE_BYTES = 4 << 20 };

/* ---- on the disk thread ---- */

static ingle_status open_part(const struct kv_store *s, const struct kv_read *r, struct kv_part *p,
                              struct err *err)
{
    ingle_status st = kv_file_open(&p->file, s->dir, p->name, err);
    if (st)
        return st;
    const struct kv_file_header *h = &p->file.head;
    if (!kv_key_equal(h->context, s->context) || !kv_key_equal(h->key, p->key) ||
        h->length != p->length || h->n_tokens != h->length)
        st = err_set(err, INGLE_FORMAT, "%s: damaged: it is not what its name says", p->name);
    if (!st && h->from != p->from) /* another process has written it again */
        st = err_set(err, INGLE_NOTFOUND, "%s: continues another file now", p->name);
    if (!st)
        st = kv_file_read_meta(&p->file, s->spec, err);
    if (!st && memcmp(p->file.token, r->token + p->from,
                      (size_t)(p->length - p->from) * sizeof *r->token) != 0)
        st = err_set(err, INGLE_FORMAT, "%s: damaged: it has other tokens", p->name);
    if (st)
        kv_file_close(&p->file);
    else
        (void)futimens(p->file.fd, NULL); /* when it was last used */
    return st;
}

/* How many pages from `first` on make a piece. */
static uint64_t piece(const struct kv_spec *s, const struct kv_part *p, uint64_t first)
{
    uint64_t bytes = 0, n = 0, i = 0;
    for (uint32_t g = 0; g < s->n_groups; g++)
        for (int64_t k = kv_file_first(s, g, p->from, p->length);
             k < num_div_up(p->length, KV_PAGE); k++, i++)
            if (i >= first && bytes < PIECE_BYTES) {
                bytes += p->to[i] ? s->group[g].page_bytes : 0;
                n++;
            }
    return n;
}

/* The lock is held on entry and on return. */
static ingle_status read_part(struct kv_store *s, struct kv_read *r, struct kv_part *p,
                              struct err *err)
{
    pthread_mutex_unlock(&s->lock);
    ingle_status st = open_part(s, r, p, err);
    pthread_mutex_lock(&s->lock);
    p->opened = !st;
    for (uint64_t i = 0; !st && !r->cancel && i < p->n_pages;) {
        const uint64_t n = piece(s->spec, p, i);
        pthread_mutex_unlock(&s->lock);
        st = kv_file_read_pages(&p->file, s->spec, i, n, p->to + i, err);
        pthread_mutex_lock(&s->lock);
        i += n;
        if (!st)
            p->n_ready = i;
        pthread_cond_signal(&s->news);
    }
    return st;
}

void kv_store_serve(struct kv_store *s)
{
    if (s->scan)
        kv_store_run_scan(s);
    struct kv_read *r = s->read;
    if (!r)
        return;
    for (size_t i = 0; i < r->n_parts && !r->status && !r->cancel; i++) {
        r->status = read_part(s, r, &r->part[i], &r->err);
        if (r->status)
            r->failed = i;
    }
    r->done = true;
    s->read = NULL;
    pthread_cond_signal(&s->news);
}

/* ---- on the engine thread ---- */

int64_t kv_store_find(struct kv_store *s, uint64_t salt, const int32_t *tokens, int64_t limit,
                      int64_t *foreign)
{
    kv_store_refresh(s);
    kv_store_poll(s);
    pthread_mutex_lock(&s->lock);
    const struct kv_entry *e =
        kv_index_deepest(&s->index, s->context, salt, tokens, limit, false, foreign);
    const int64_t length = e ? e->length : 0;
    pthread_mutex_unlock(&s->lock);
    return length;
}

void kv_store_give_pages(struct kv_pool *p, struct kv_page **pg, size_t n)
{
    for (size_t i = 0; pg && i < n; i++)
        if (pg[i])
            kv_page_unref(p, pg[i]);
    mem_free(pg);
}

bool kv_store_take_pages(struct kv_pool *p, int64_t length, int64_t have, struct kv_page ***out,
                         size_t *n_out)
{
    const struct kv_spec *s = p->spec;
    const int64_t end = num_div_up(length, KV_PAGE);
    size_t n = 0, k = 0;
    for (uint32_t g = 0; g < s->n_groups; g++)
        n += (size_t)(end - (s->group[g].window ? kv_timeline_first(s, g, length) : have));
    struct kv_page **pg = mem_calloc(n + 1, sizeof *pg);
    if (!pg)
        return false;
    for (uint32_t g = 0; g < s->n_groups; g++)
        for (int64_t i = s->group[g].window ? kv_timeline_first(s, g, length) : have; i < end; i++)
            if (!(pg[k++] = kv_page_take(p, g))) {
                kv_store_give_pages(p, pg, n);
                return false;
            }
    *out = pg;
    *n_out = n;
    return true;
}

/* The files that [have pages, length) comes from, the deepest first.  INGLE_NOTFOUND: one
 * is not there any more.  With the lock. */
static ingle_status collect(struct kv_store *s, struct kv_key key, int64_t length, int64_t have,
                            struct kv_read *r, struct err *err)
{
    size_t cap = 0;
    for (;;) {
        const struct kv_entry *e = kv_index_find(&s->index, key, length);
        if (!e || e->state != KV_ENTRY_READY)
            return err_set(err, INGLE_NOTFOUND, "the store has no prefix of %lld tokens any more",
                           (long long)length);
        if (!mem_grow(&r->part, &cap, r->n_parts + 1, sizeof *r->part))
            return err_set(err, INGLE_NOMEM, "no memory for a list of files");
        struct kv_part *p = &r->part[r->n_parts++];
        *p = (struct kv_part){.key = key, .from = e->from, .length = length, .file = {.fd = -1}};
        kv_index_name(p->name, key, length);
        if (!e->from || e->from / KV_PAGE <= have)
            return INGLE_OK;
        key = e->parent;
        length = e->from;
    }
}

/* Says where each page of each file goes: pg is in the order of kv_timeline_adopt(). */
static bool aim(const struct kv_spec *s, struct kv_read *r, int64_t have, struct kv_page **pg)
{
    const int64_t length = r->part[0].length, end = num_div_up(length, KV_PAGE);
    int64_t full_end = end; /* of what this file gives of groups that keep everything */
    for (size_t k = 0; k < r->n_parts; k++) {
        struct kv_part *p = &r->part[k];
        uint64_t n_bytes, i = 0;
        if (!kv_file_pages(s, p->from, p->length, &p->n_pages, &n_bytes))
            return false;
        p->to = mem_calloc(p->n_pages + 1, sizeof *p->to);
        if (!p->to)
            return false;
        struct kv_page **group = pg;
        for (uint32_t g = 0; g < s->n_groups; g++) {
            const int64_t window = s->group[g].window;
            const int64_t base = window ? kv_timeline_first(s, g, length) : have;
            for (int64_t at = kv_file_first(s, g, p->from, p->length);
                 at < num_div_up(p->length, KV_PAGE); at++, i++)
                if (window ? k == 0 : at >= have && at < full_end)
                    p->to[i] = group[at - base]->at;
            group += end - base;
        }
        full_end = p->from / KV_PAGE;
    }
    return true;
}

/* Checks the pages that have come.  False: one is damaged. */
static bool check_pages(const struct kv_spec *s, struct kv_part *p, uint64_t n_ready)
{
    uint64_t i = 0;
    for (uint32_t g = 0; g < s->n_groups; g++)
        for (int64_t at = kv_file_first(s, g, p->from, p->length);
             at < num_div_up(p->length, KV_PAGE); at++, i++)
            if (i >= p->n_checked && i < n_ready && p->to[i] &&
                !kv_file_page_good(&p->file, i, p->to[i], s->group[g].page_bytes))
                return false;
    p->n_checked = n_ready;
    return true;
}

static ingle_status read_and_check(struct kv_store *s, struct kv_read *r, struct err *err)
{
    size_t k = 0;
    ingle_status st = INGLE_OK;
    pthread_mutex_lock(&s->lock);
    s->read = r;
    pthread_cond_signal(&s->work);
    while (!r->done || k < r->n_parts) {
        struct kv_part *p = k < r->n_parts ? &r->part[k] : NULL;
        if (st || r->status || r->cancel)
            k = r->n_parts;
        else if (p && p->opened && p->n_checked < p->n_ready) {
            const uint64_t n = p->n_ready;
            pthread_mutex_unlock(&s->lock);
            const bool good = check_pages(s->spec, p, n);
            pthread_mutex_lock(&s->lock);
            if (!good) {
                st = err_set(err, INGLE_FORMAT, "%s: damaged: the checksum of a page does not fit",
                             p->name);
                r->failed = k;
                r->cancel = true;
                break;
            }
            continue;
        } else if (p && p->opened && p->n_checked == p->n_pages) {
            k++;
            continue;
        }
        if (!r->done)
            pthread_cond_wait(&s->news, &s->lock);
    }
    while (!r->done)
        pthread_cond_wait(&s->news, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (!st && r->status) {
        st = r->status;
        if (err)
            *err = r->err;
    }
    return st;
}

static void end_read(struct kv_read *r)
{
    for (size_t i = 0; i < r->n_parts; i++) {
        kv_file_close(&r->part[i].file);
        mem_free(r->part[i].to);
    }
    mem_free(r->part);
}

/* What a failed read says about a file. */
static void blame(struct kv_store *s, const struct kv_part *p, ingle_status st,
                  const struct err *err)
{
    if (st == INGLE_NOMEM)
        return;
    pthread_mutex_lock(&s->lock);
    kv_store_drop(s, p->key, p->length, st == INGLE_FORMAT);
    s->counts.damaged += st == INGLE_FORMAT;
    if (st != INGLE_NOTFOUND)
        kv_store_note(s, INGLE_REPORT_WARN, p->name, "%s%s", err->msg,
                      st == INGLE_FORMAT ? "; it is deleted" : "");
    if (st == INGLE_IO || st == INGLE_UNSUP) {
        const struct kv_entry e = {
            .key = p->key, .length = p->length, .state = KV_ENTRY_BAD, .seen = true};
        (void)!kv_index_add(&s->index, &e);
    }
    pthread_mutex_unlock(&s->lock);
}

static void touch(struct kv_store *s, const struct kv_read *r)
{
    const int64_t now = (int64_t)time(NULL);
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < r->n_parts; i++) {
        struct kv_entry *e = kv_index_find(&s->index, r->part[i].key, r->part[i].length);
        if (e)
            e->used = now;
        s->counts.restored_bytes += r->part[i].file.head.file_bytes;
    }
    s->counts.restored++;
    pthread_mutex_unlock(&s->lock);
}

/* The deepest file's mark, copied. */
static bool take_mark(const struct kv_file *f, void **mark, size_t *mark_bytes)
{
    *mark = NULL;
    *mark_bytes = f->head.mark_bytes;
    if (!*mark_bytes)
        return true;
    *mark = mem_alloc(*mark_bytes);
    if (*mark)
        memcpy(*mark, f->mark, *mark_bytes);
    return *mark != NULL;
}

ingle_status kv_store_restore(struct kv_store *s, struct kv_timeline *t, uint64_t salt,
                              const int32_t *tokens, int64_t length, void **mark,
                              size_t *mark_bytes, struct err *err)
{
    struct err why;
    struct kv_read r = {.token = tokens};
    struct kv_page **pg = NULL;
    size_t n_pages = 0;
    const int64_t have = num_min(t->length, length) / KV_PAGE;
    if (length > t->max_tokens)
        return err_set(err, INGLE_LIMIT, "a prefix of %lld tokens exceeds the limit of %lld tokens",
                       (long long)length, (long long)t->max_tokens);
    const struct kv_key key = kv_key_of(s->context, salt, tokens, length);
    pthread_mutex_lock(&s->lock);
    ingle_status st = collect(s, key, length, have, &r, &why);
    pthread_mutex_unlock(&s->lock);
    if (!st && !kv_store_take_pages(s->pool, length, have, &pg, &n_pages))
        st = err_set(&why, INGLE_LIMIT, "no KV pages for %lld tokens from the store",
                     (long long)length);
    if (!st && !aim(s->spec, &r, have, pg))
        st = err_set(&why, INGLE_NOMEM, "no memory for a list of pages");
    const bool reads = !st;
    if (reads)
        st = read_and_check(s, &r, &why);
    if (reads && st)
        blame(s, &r.part[r.failed], st, &why);
    if (!st && !take_mark(&r.part[0].file, mark, mark_bytes))
        st = err_set(&why, INGLE_NOMEM, "no memory for a mark");
    if (!st) {
        touch(s, &r);
        kv_timeline_adopt(t, length, have, pg);
        mem_free(pg);
    } else {
        kv_store_give_pages(s->pool, pg, n_pages);
        if (err)
            *err = why;
    }
    end_read(&r);
    kv_store_poll(s);
    return st;
}

void kv_store_prefetch(struct kv_store *s, uint64_t salt, const int32_t *tokens, int64_t n)
{
    if (n < s->min_tokens)
        return;
    struct kv_want *w = mem_alloc(sizeof *w + (size_t)n * sizeof *tokens);
    if (!w)
        return;
    w->salt = salt;
    w->n = n;
    memcpy(w->token, tokens, (size_t)n * sizeof *tokens);
    pthread_mutex_lock(&s->lock);
    if (s->n_wants < KV_WANTS) {
        w->next = s->want;
        s->want = w;
        s->n_wants++;
        w = NULL;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    mem_free(w);
}

bool kv_store_serve_want(struct kv_store *s)
{
    struct kv_want *w = s->want;
    struct kv_read r = {0};
    if (!w)
        return false;
    s->want = w->next;
    s->n_wants--;
    const struct kv_entry *e =
        kv_index_deepest(&s->index, s->context, w->salt, w->token, w->n, false, NULL);
    const bool some = e && !collect(s, e->key, e->length, 0, &r, NULL);
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; some && i < r.n_parts; i++) {
        const int fd =
            openat(s->dir, r.part[i].name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
            continue;
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
        close(fd);
    }
    end_read(&r);
    mem_free(w);
    pthread_mutex_lock(&s->lock);
    return true;
}
