/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_read - from files to a timeline.
 *
 * The engine thread takes pages that belong to nobody yet; the disk thread reads into them and
 * checks each as it arrives; only when all are good they become the timeline's.
 */
#define _GNU_SOURCE
#include "kv/store_impl.h"
#include "kv/store_parts.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 4 << 20,    /* read at once */
    GENTLE_BYTES = 256 << 10, /* ... while others want the processor */
    TAKE_NS = 200000,         /* pages are taken for so long at a time */
};

/* ---- on the disk thread ---- */

static ingle_status open_part(const struct kv_store *s, const struct kv_read *r, struct kv_part *p,
                              struct err *err)
{
    ingle_status st = kv_file_open(&p->file, s->dir, p->name, err);
    if (st)
        return st;
    const struct kv_file_header *h = &p->file.head;
    if (!kv_key_equal(h->context, r->form->context) || !kv_key_equal(h->key, p->key) ||
        h->length != p->length || h->n_tokens != h->length)
        st = err_set(err, INGLE_FORMAT, "%s: damaged: it is not what its name says", p->name);
    if (!st && h->from != p->from) /* another process has written it again */
        st = err_set(err, INGLE_NOTFOUND, "%s: continues another file now", p->name);
    if (!st)
        st = kv_file_read_meta(&p->file, &r->form->spec, err);
    if (!st)
        kv_file_find_keys(&p->file, s->index.media);
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
static uint64_t piece(const struct kv_spec *s, const struct kv_part *p, uint64_t first,
                      uint64_t most)
{
    uint64_t bytes = 0, n = 0, i = 0;
    for (uint32_t g = 0; g < s->n_groups; g++)
        for (int64_t k = kv_file_first(s, g, p->from, p->length);
             k < num_div_up(p->length, KV_PAGE); k++, i++)
            if (i >= first && bytes < most && (i == first || !p->away[i])) {
                bytes = p->away[i] ? most : bytes + (p->to[i] ? s->group[g].page_bytes : 0);
                n++;
            } else if (i > first) {
                bytes = most;
            }
    return n;
}

/* Are pages [first, first + n) what they must be? */
static bool check_pages(const struct kv_spec *s, const struct kv_part *p, uint64_t first,
                        uint64_t n)
{
    uint64_t i = 0;
    for (uint32_t g = 0; g < s->n_groups; g++)
        for (int64_t at = kv_file_first(s, g, p->from, p->length);
             at < num_div_up(p->length, KV_PAGE); at++, i++)
            if (i >= first && i < first + n && p->to[i] &&
                !kv_file_page_good(&p->file, i, p->to[i], s->group[g].page_bytes))
                return false;
    return true;
}

static ingle_status read_piece(const struct kv_read *r, struct kv_part *p, uint64_t first,
                               uint64_t n, struct err *err)
{
    const struct kv_spec *s = &r->form->spec;
    const struct kv_page *away = p->away[first];
    if (away)
        p->to[first] = r->bounce;
    ingle_status st = kv_file_read_pages(&p->file, s, first, n, p->to + first, err);
    if (!st && !check_pages(s, p, first, n))
        st =
            err_set(err, INGLE_FORMAT, "%s: damaged: the checksum of a page does not fit", p->name);
    return !st && away ? kv_disk_fill(r->store->pool, away, r->bounce, err) : st;
}

/* The lock is held on entry and on return.  What was opened is closed, except for its meta. */
static ingle_status read_part(struct kv_store *s, struct kv_read *r, struct kv_part *p)
{
    pthread_mutex_unlock(&s->lock);
    ingle_status st = open_part(s, r, p, &r->err);
    pthread_mutex_lock(&s->lock);
    const bool opened = !st;
    for (uint64_t i = 0, n; !st && !r->cancel && i < p->n_pages; i += n) {
        if (s->scan)
            kv_store_run_scan(s);
        pthread_mutex_unlock(&s->lock);
        const uint64_t used = clock_used();
        n = piece(&r->form->spec, p, i, atomic_load(&s->gentle) ? GENTLE_BYTES : PIECE_BYTES);
        st = read_piece(r, p, i, n, &r->err);
        kv_store_rest(s, used);
        pthread_mutex_lock(&s->lock);
    }
    if (!opened)
        return st;
    /* the last one to close a removed file waits for its end */
    pthread_mutex_unlock(&s->lock);
    close(p->file.fd);
    p->file.fd = -1;
    pthread_mutex_lock(&s->lock);
    return st;
}

/* What a failed read says about a file.  With the lock, which is released meanwhile. */
static void blame(struct kv_store *s, const struct kv_part *p, ingle_status st,
                  const struct err *err)
{
    if (st == INGLE_NOMEM || st == INGLE_LIMIT) /* or of pages on disk: they cannot be written */
        return;
    if (st == INGLE_IO)
        kv_store_set_away(s, p->key, p->length);
    else
        kv_store_drop(s, p->key, p->length,
                      st == INGLE_FORMAT ? KV_DROP_REMOVE_BAD : KV_DROP_FORGET);
    s->counts.damaged += st == INGLE_FORMAT;
    if (st != INGLE_NOTFOUND)
        kv_store_note(s, INGLE_REPORT_WARN, p->name, "%s%s", err->msg,
                      st == INGLE_FORMAT ? "; it is deleted"
                      : st == INGLE_IO   ? "; it is tried again later"
                                         : "");
    if (st == INGLE_UNSUP) {
        const struct kv_entry e = {
            .key = p->key, .length = p->length, .state = KV_ENTRY_FOREIGN, .seen = true};
        (void)!kv_index_add(&s->index, &e);
    }
}

static bool read_stop(void *arg)
{
    struct kv_read *r = arg;
    pthread_mutex_lock(&r->store->lock);
    const bool stop = r->cancel;
    pthread_mutex_unlock(&r->store->lock);
    return stop;
}

/* The lock is held on entry and on return. */
static uint64_t begin_far(struct kv_store *s, struct kv_read *r)
{
    struct kv_far_part part = {
        .scope = r->scope, .tokens = r->token, .length = r->length, .have = r->have};
    pthread_mutex_unlock(&s->lock);
    const uint64_t number = kv_store_far_begin(s, true, &part, r->pg);
    pthread_mutex_lock(&s->lock);
    if (!number)
        r->status = err_set(&r->err, INGLE_NOTFOUND, "who has the other parts is not there");
    return number;
}

static void end_far(struct kv_store *s, struct kv_read *r, uint64_t number)
{
    bool ok = false;
    pthread_mutex_unlock(&s->lock);
    if (r->status)
        s->far.drop(s->far.arg, number);
    else
        ok = kv_store_far_wait(s, number, s->patience_ns, read_stop, r);
    pthread_mutex_lock(&s->lock);
    if (!r->status && !ok)
        r->status = err_set(&r->err, INGLE_NOTFOUND, "the other parts cannot be read");
}

static void serve_read(struct kv_store *s, struct kv_read *r)
{
    const uint64_t far = s->far.begin && !r->cancel ? begin_far(s, r) : 0;
    for (size_t i = 0; i < r->n_parts && !r->status && !r->cancel; i++) {
        r->status = read_part(s, r, &r->part[i]);
        if (r->status)
            blame(s, &r->part[i], r->status, &r->err);
    }
    if (far)
        end_far(s, r, far);
}

void kv_store_serve(struct kv_store *s)
{
    while (s->scan || s->reads) {
        if (s->scan)
            kv_store_run_scan(s);
        kv_store_beat(s);
        struct kv_read *r = s->reads;
        if (!r)
            continue;
        s->reads = r->next;
        s->reading = r;
        serve_read(s, r);
        s->reading = NULL;
        r->done = true;
        if (r->dropped) {
            r->next = s->dropped;
            s->dropped = r;
        }
        pthread_cond_broadcast(&s->news);
        kv_store_wake(s);
    }
}

/* ---- on the engine thread ---- */

/* The deepest entry of any form, of equal ones that with more.  With the lock. */
static const struct kv_entry *deepest(const struct kv_store *s, struct kv_scope scope,
                                      const int32_t *tokens, int64_t limit, int64_t *foreign,
                                      const struct kv_form **form)
{
    const struct kv_entry *best = NULL;
    for (int i = 0; i < s->n_forms; i++) {
        const struct kv_entry *e = kv_index_deepest(&s->index, s->form[i].context, scope, tokens,
                                                    limit, false, i ? NULL : foreign);
        if (!e || (best && e->length <= best->length))
            continue;
        best = e;
        *form = &s->form[i];
    }
    return best;
}

int64_t kv_store_find(struct kv_store *s, struct kv_scope scope, const int32_t *tokens,
                      int64_t limit, int64_t *foreign)
{
    const struct kv_form *form;
    kv_store_poll(s);
    pthread_mutex_lock(&s->lock);
    if (kv_store_is_stuck(s)) {
        pthread_mutex_unlock(&s->lock);
        if (foreign)
            *foreign = 0;
        return 0;
    }
    const struct kv_entry *e = deepest(s, scope, tokens, limit, foreign, &form);
    const int64_t own = e ? e->length : 0;
    while (s->far.has && e && !s->far.has(s->far.arg, scope, s->index.media, tokens, e->length))
        e = deepest(s, scope, tokens, e->length - 1, NULL, &form);
    const int64_t length = e ? e->length : 0;
    pthread_mutex_unlock(&s->lock);
    if (length < own && own != s->reported_far)
        report(s->sink, INGLE_REPORT_WARN, "store", s->dir_name,
               "%lld tokens of a prefix are saved here, %lld of them where its other layers are",
               (long long)own, (long long)length);
    s->reported_far = length < own ? own : s->reported_far;
    return length;
}

/* The first page of group g that [0, length) lacks where `have` whole pages are there. */
static int64_t first_page(const struct kv_spec *s, uint32_t g, int64_t length, int64_t have)
{
    return s->group[g].window ? kv_timeline_first(s, g, length) : have;
}

/* How many of all groups; *group, *index: that of the k-th, and which of the group it is. */
static size_t count_pages(const struct kv_spec *s, int64_t length, int64_t have, size_t k,
                          uint32_t *group, int64_t *index)
{
    size_t n = 0;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const int64_t first = first_page(s, g, length, have);
        const size_t more = (size_t)(num_div_up(length, KV_PAGE) - first);
        if (k >= n && k < n + more) {
            *group = g;
            *index = first + (int64_t)(k - n);
        }
        n += more;
    }
    return n;
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
        p->away = mem_calloc(p->n_pages + 1, sizeof(struct kv_page *));
        if (!p->to || !p->away)
            return false;
        struct kv_page **group = pg;
        for (uint32_t g = 0; g < s->n_groups; g++) {
            const int64_t window = s->group[g].window;
            const int64_t base = window ? kv_timeline_first(s, g, length) : have;
            for (int64_t at = kv_file_first(s, g, p->from, p->length);
                 at < num_div_up(p->length, KV_PAGE); at++, i++)
                if (window ? k == 0 : at >= have && at < full_end) {
                    p->to[i] = group[at - base]->at;
                    p->away[i] = p->to[i] ? NULL : group[at - base];
                }
            group += end - base;
        }
        full_end = p->from / KV_PAGE;
    }
    return true;
}

static void touch(struct kv_store *s, const struct kv_read *r)
{
    pthread_mutex_lock(&s->lock);
    const int64_t now = kv_store_time(s);
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

static void end_parts(struct kv_read *r)
{
    for (size_t i = 0; i < r->n_parts; i++) {
        kv_file_close(&r->part[i].file);
        mem_free(r->part[i].to);
        mem_free(r->part[i].away);
    }
    mem_free(r->part);
}

void kv_store_read_free(struct kv_read *r)
{
    struct kv_pool *p = r->store->pool;
    for (size_t i = 0; r->pg && i < r->n_taken; i++)
        if (r->dropped)
            kv_page_unkeep(p, r->pg[i]);
        else
            kv_page_unref(p, r->pg[i]);
    end_parts(r);
    mem_big_free(r->bounce, r->bounce_bytes);
    mem_free(r->pg);
    mem_free(r->token);
    mem_free(r);
}

ingle_status kv_store_read_begin(struct kv_read **out, struct kv_store *s,
                                 const struct kv_timeline *t, struct kv_scope scope,
                                 const int32_t *tokens, int64_t length, struct err *err)
{
    uint32_t g = 0;
    int64_t index = 0;
    if (length > t->max_tokens)
        return err_set(err, INGLE_LIMIT, "a prefix of %lld tokens exceeds the limit of %lld tokens",
                       (long long)length, (long long)t->max_tokens);
    struct kv_read *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_set(err, INGLE_NOMEM, "no memory for a read");
    r->store = s;
    r->scope = scope;
    r->length = length;
    r->have = num_min(t->length, length) / KV_PAGE;
    r->n_pages = count_pages(s->pool->spec, length, r->have, 0, &g, &index);
    r->pg = mem_calloc(r->n_pages + 1, sizeof *r->pg);
    r->token = mem_calloc((size_t)length + 1, sizeof *r->token);
    ingle_status st = INGLE_OK;
    if (!r->pg || !r->token)
        st = err_set(err, INGLE_NOMEM, "no memory for a prefix of %lld tokens", (long long)length);
    if (!st) {
        memcpy(r->token, tokens, (size_t)length * sizeof *tokens);
        st = INGLE_NOTFOUND;
        pthread_mutex_lock(&s->lock);
        for (int i = 0; i < s->n_forms && st == INGLE_NOTFOUND; i++) {
            r->form = &s->form[i];
            r->n_parts = 0;
            const struct kv_key key =
                kv_key_of(r->form->context, scope, s->index.media, tokens, length);
            st = collect(s, key, length, r->have, r, err);
        }
        pthread_mutex_unlock(&s->lock);
    }
    if (st)
        kv_store_read_free(r);
    else
        *out = r;
    return st;
}

/* Some of the pages.  False: there is none for the next one. */
static bool take_some(struct kv_read *r)
{
    struct kv_pool *p = r->store->pool;
    const uint64_t until = clock_now() + TAKE_NS;
    while (r->n_taken < r->n_pages && clock_now() < until) {
        uint32_t g = 0;
        int64_t index = 0;
        (void)count_pages(p->spec, r->length, r->have, r->n_taken, &g, &index);
        struct kv_page *pg = kv_page_take_for(p, g, index);
        if (!pg)
            return false;
        r->pg[r->n_taken++] = pg;
        if (pg->at || r->bounce)
            continue;
        r->bounce_bytes = kv_page_bytes(pg);
        if (!(r->bounce = mem_big_alloc(r->bounce_bytes)))
            return false;
    }
    return true;
}

static void queue(struct kv_read *r)
{
    struct kv_store *s = r->store;
    pthread_mutex_lock(&s->lock);
    struct kv_read **at = &s->reads;
    while (*at)
        at = &(*at)->next;
    *at = r;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

bool kv_store_read_poll(struct kv_read *r)
{
    struct kv_store *s = r->store;
    if (r->queued) {
        pthread_mutex_lock(&s->lock);
        const bool is_finished = r->done || kv_store_is_stuck(s);
        pthread_mutex_unlock(&s->lock);
        return is_finished;
    }
    if (!take_some(r))
        r->status = err_set(&r->err, INGLE_LIMIT, "no KV pages for %lld tokens from the store",
                            (long long)r->length);
    else if (r->n_taken == r->n_pages && !aim(&r->form->spec, r, r->have, r->pg))
        r->status = err_set(&r->err, INGLE_NOMEM, "no memory for a list of pages");
    if (r->status) {
        r->queued = r->done = true;
        return true;
    }
    if (r->n_taken == r->n_pages) {
        r->queued = true;
        queue(r); /* the disk thread's from now on */
        return false;
    }
    pthread_mutex_lock(&s->lock);
    kv_store_wake(s); /* there is more to take */
    pthread_mutex_unlock(&s->lock);
    return false;
}

ingle_status kv_store_read_end(struct kv_read *r, struct kv_timeline *t, void **mark,
                               size_t *mark_bytes, struct err *err)
{
    struct kv_store *s = r->store;
    while (!r->queued)
        (void)kv_store_read_poll(r);
    pthread_mutex_lock(&s->lock);
    while (!r->done && !kv_store_is_stuck(s))
        kv_store_wait_news(s);
    const bool done = r->done;
    pthread_mutex_unlock(&s->lock);
    if (!done) {
        kv_store_read_drop(r);
        kv_store_poll(s);
        return err_set(err, INGLE_IO, "%s: the disk does not answer", s->dir_name);
    }
    ingle_status st = r->status;
    if (st && err)
        *err = r->err;
    if (!st && !take_mark(&r->part[0].file, mark, mark_bytes))
        st = err_set(err, INGLE_NOMEM, "no memory for a mark");
    if (!st) {
        touch(s, r);
        for (size_t i = 0; s->far.has && i < r->n_pages; i++)
            r->pg[i]->there = r->pg[i]->own != NULL;
        kv_timeline_adopt(t, r->length, r->have, r->pg,
                          r->form->spec.n_groups < s->pool->spec->n_groups);
        r->n_taken = 0;
    }
    kv_store_read_free(r);
    kv_store_poll(s);
    return st;
}

/* Takes it out of those that wait; false: it is not there.  With the lock. */
static bool unqueue(struct kv_store *s, const struct kv_read *r)
{
    for (struct kv_read **at = &s->reads; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            return true;
        }
    return false;
}

void kv_store_read_drop(struct kv_read *r)
{
    if (!r)
        return;
    struct kv_store *s = r->store;
    pthread_mutex_lock(&s->lock);
    const bool ours = !r->queued || r->done || unqueue(s, r);
    r->cancel = r->dropped = true;
    for (size_t i = 0; i < r->n_taken; i++) {
        kv_page_keep(s->pool, r->pg[i]);
        kv_page_unref(s->pool, r->pg[i]);
    }
    pthread_mutex_unlock(&s->lock);
    if (ours)
        kv_store_read_free(r);
}

ingle_status kv_store_restore(struct kv_store *s, struct kv_timeline *t, struct kv_scope scope,
                              const int32_t *tokens, int64_t length, void **mark,
                              size_t *mark_bytes, struct err *err)
{
    struct kv_read *r;
    const ingle_status st = kv_store_read_begin(&r, s, t, scope, tokens, length, err);
    return st ? st : kv_store_read_end(r, t, mark, mark_bytes, err);
}

void kv_store_prefetch(struct kv_store *s, struct kv_scope scope, const int32_t *tokens, int64_t n)
{
    if (n < s->min_tokens)
        return;
    struct kv_want *w = mem_alloc(sizeof *w + (size_t)n * sizeof *tokens);
    if (!w)
        return;
    w->scope = scope;
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
    const struct kv_entry *e = deepest(s, w->scope, w->token, w->n, NULL, &r.form);
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
    end_parts(&r);
    mem_free(w);
    pthread_mutex_lock(&s->lock);
    return true;
}
