/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store - the queue of files to write, and the disk thread that writes them.
 *
 * The engine thread puts jobs and takes back finished ones (poll); the pages of a job have
 * a reference until then, and a page that somebody else refers to is never written, so the
 * disk thread may read it at leisure.
 */
#define _GNU_SOURCE
#include "kv/store_impl.h"
#include "kv/store_parts.h"
#include "kv/media.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MIN_TOKENS = 256,
    QUEUE_JOBS = 256,
    QUEUE_SHARE = 4,
    PAUSE_S = 10,
    PATIENCE_S = 20,
    LONGEST_PAUSE = 64,
    MOST_LOST = 16,
    FAR_NS = 1000000,
    FAR_TIMES = 30 /* of patience, for files that are written elsewhere */
};
static const uint64_t default_budget = UINT64_C(16) << 30;

void kv_store_note(struct kv_store *s, ingle_report_level level, const char *subject,
                   const char *fmt, ...)
{
    va_list ap;
    if (s->n_notes == KV_NOTES)
        return;
    struct kv_note *n = &s->note[s->n_notes++];
    n->level = level;
    snprintf(n->subject, sizeof n->subject, "%s", subject);
    va_start(ap, fmt);
    vsnprintf(n->text, sizeof n->text, fmt, ap);
    va_end(ap);
}

/* ---- a disk that does not answer ---- */

void kv_store_beat(struct kv_store *s) { atomic_store(&s->beat, clock_now()); }

bool kv_store_is_stuck(const struct kv_store *s)
{
    const uint64_t beat = atomic_load(&s->beat), now = clock_now();
    return !s->idle && now > beat && now - beat > s->patience_ns;
}

void kv_store_wait_news(struct kv_store *s)
{
    const uint64_t most = s->patience_ns / 4 + 1000000, until = clock_now() + most;
    const struct timespec t = {.tv_sec = (time_t)(until / 1000000000),
                               .tv_nsec = (long)(until % 1000000000)};
    (void)pthread_cond_timedwait(&s->news, &s->lock, &t);
}

/* What has begun to be so, or has ended, is reported once.  On the engine thread. */
static void report_stuck(struct kv_store *s, bool stuck)
{
    if (stuck == s->reported_stuck)
        return;
    s->reported_stuck = stuck;
    if (stuck)
        report(s->sink, INGLE_REPORT_WARN, "store", s->dir_name,
               "the disk has not answered for %g s: answers go on without what is saved there",
               (double)s->patience_ns * 1e-9);
    else
        report(s->sink, INGLE_REPORT_NOTE, "store", s->dir_name, "the disk answers again");
}

/* ---- the disk thread ---- */

void kv_store_wake(struct kv_store *s)
{
    if (s->wake)
        s->wake(s->wake_arg);
}

void kv_store_set_news(struct kv_store *s, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&s->lock);
    s->wake = fn;
    s->wake_arg = arg;
    pthread_mutex_unlock(&s->lock);
}

void kv_store_set_gentle(struct kv_store *s, bool gentle)
{
    atomic_store(&s->gentle, gentle);
}

void kv_store_rest(struct kv_store *s, uint64_t since)
{
    const uint64_t used = clock_used() - since;
    if (atomic_load(&s->gentle))
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)(used / 1000000000),
                                           .tv_nsec = (long)(used % 1000000000)}, NULL);
    kv_store_beat(s);
}

/* Between two pieces of a write: whoever waits for a read goes first. */
static bool write_stop(void *arg)
{
    struct kv_job *j = arg;
    struct kv_store *s = j->store;
    kv_store_rest(s, j->used);
    pthread_mutex_lock(&s->lock);
    kv_store_serve(s);
    while (kv_store_serve_want(s))
        kv_store_serve(s);
    const bool stop = j->cancel;
    pthread_mutex_unlock(&s->lock);
    j->used = clock_used();
    return stop;
}

static bool parent_is_there(const struct kv_store *s, const struct kv_file_header *h)
{
    const struct kv_entry *e = h->from ? kv_index_find(&s->index, h->parent, h->from) : NULL;
    return !h->from || (e && e->state == KV_ENTRY_READY);
}

/* Whether a write may be tried.  With the lock. */
static bool may_save(const struct kv_store *s)
{
    return s->saving || clock_now() >= s->try_at;
}

/* Writes fail: the next is tried after a pause.  With the lock. */
static void stop_saving(struct kv_store *s, const char *why)
{
    s->counts.failed++;
    if (s->saving) {
        s->pause_ns = s->first_pause_ns;
        kv_store_note(s, INGLE_REPORT_WARN, s->dir_name, "nothing is saved for the time being: %s",
                      why);
    } else if (s->pause_ns < LONGEST_PAUSE * s->first_pause_ns) {
        s->pause_ns *= 2;
    }
    s->saving = false;
    s->try_at = clock_now() + s->pause_ns;
    snprintf(s->error, sizeof s->error, "%.*s", KV_STORE_ERROR - 1, why);
}

/* A write went well: what was not taken meanwhile may be offered again.  With the lock. */
static void save_again(struct kv_store *s)
{
    if (s->saving)
        return;
    s->saving = s->gave_up = true;
    s->error[0] = 0;
    kv_store_note(s, INGLE_REPORT_NOTE, s->dir_name, "prefixes are saved again");
}

bool kv_store_find_again(struct kv_store *s, ingle_status *st, struct err *err)
{
    struct stat is;
    int dir;
    if (fstat(s->dir, &is) != 0 ? errno != ESTALE : is.st_nlink > 0)
        return false;
    const ingle_status opened = kv_store_open_dir(s->dir_name, &dir, err);
    const bool again = !opened && dup3(dir, s->dir, O_CLOEXEC) >= 0;
    if (opened)
        *st = opened;
    if (dir >= 0)
        close(dir);
    return again;
}

/* ---- parts that are elsewhere ---- */

uint64_t kv_store_far_begin(struct kv_store *s, bool read, struct kv_far_part *part,
                            struct kv_page *const *page)
{
    const struct kv_spec *spec = s->pool->spec;
    part->media = s->index.media;
    part->n_groups = spec->n_own ? spec->n_own : spec->n_groups;
    part->n_pages = 0;
    for (uint32_t g = 0; g < part->n_groups; g++) {
        part->first[g] =
            spec->group[g].window ? kv_timeline_first(spec, g, part->length) : part->have;
        part->end[g] = num_div_up(part->length, KV_PAGE);
        part->n_pages += (size_t)(part->end[g] - part->first[g]);
    }
    uint8_t **own = mem_calloc(part->n_pages + 1, sizeof *own);
    if (!own)
        return 0;
    for (size_t i = 0; i < part->n_pages; i++)
        own[i] = page[i]->own;
    part->page = own;
    const uint64_t number = s->far.begin(s->far.arg, read, part);
    mem_free(own);
    return number;
}

bool kv_store_far_wait(struct kv_store *s, uint64_t number, uint64_t patience_ns,
                       bool (*stop)(void *arg), void *arg)
{
    const uint64_t start = clock_now();
    bool ok = false;
    while (!s->far.over(s->far.arg, number, &ok)) {
        kv_store_beat(s);
        if (stop(arg) || clock_now() - start > patience_ns) {
            s->far.drop(s->far.arg, number);
            return false;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = FAR_NS}, NULL);
    }
    return ok;
}

/* The other parts of a job's pages, which go to files there meanwhile.  With the lock, which is
 * released meanwhile. */
static void begin_far(struct kv_store *s, struct kv_job *j)
{
    struct kv_far_part part = {
        .scope = j->scope, .tokens = j->all, .length = j->out.head.length};
    if (!s->far.begin)
        return;
    pthread_mutex_unlock(&s->lock);
    const uint64_t number = kv_store_far_begin(s, false, &part, j->far_pg);
    pthread_mutex_lock(&s->lock);
    j->far = number;
}

/* What fails there costs a prefix, and is not tried again for each that follows.  With the lock. */
static void far_saved(struct kv_store *s, bool ok)
{
    const uint64_t was = s->far_pause_ns, most = s->first_pause_ns * LONGEST_PAUSE;
    if (ok) {
        s->far_pause_ns = s->far_try_at = 0;
        if (was)
            kv_store_note(s, INGLE_REPORT_NOTE, s->dir_name,
                          "who has the other layers saves prefixes again");
        return;
    }
    s->far_pause_ns = !was ? s->first_pause_ns : was * 2 < most ? was * 2 : most;
    s->far_try_at = clock_now() + s->far_pause_ns;
    if (!was)
        kv_store_note(s, INGLE_REPORT_WARN, s->dir_name,
                      "a process with other layers cannot save its part of a prefix: none is saved "
                      "before it is tried again, for the first time in %.0f s",
                      (double)s->far_pause_ns * 1e-9);
}

/* The same.  Whoever says that all went well has a file, unless the disk refused it. */
static void end_far(struct kv_store *s, struct kv_job *j, bool wanted)
{
    const uint64_t number = j->far;
    bool ok = false;
    if (!number)
        return;
    pthread_mutex_unlock(&s->lock);
    if (wanted)
        ok = kv_store_far_wait(s, number, FAR_TIMES * s->patience_ns, write_stop, j) &&
             s->far.has(s->far.arg, j->scope, s->index.media, j->all, j->out.head.length);
    else
        s->far.drop(s->far.arg, number);
    pthread_mutex_lock(&s->lock);
    j->far = 0;
    if (wanted && !j->cancel)
        far_saved(s, ok);
}

/* The lock is held on entry and on return. */
static void write_job(struct kv_store *s, struct kv_job *j)
{
    const struct kv_file_header *h = &j->out.head;
    struct err err = {.status = INGLE_CANCEL};
    ingle_status st = INGLE_CANCEL;
    bool again = false;
    if (may_save(s) && !j->cancel && parent_is_there(s, h) && kv_store_make_room(s, j->n_bytes)) {
        begin_far(s, j);
        pthread_mutex_unlock(&s->lock);
        j->used = clock_used();
        st = kv_file_write(s->dir, j->name, &j->out, &err);
        again = st == INGLE_NOTFOUND && kv_store_find_again(s, &st, &err);
        pthread_mutex_lock(&s->lock);
        end_far(s, j, st == INGLE_OK && !j->cancel);
    }
    if (st == INGLE_OK) {
        struct kv_entry *e = kv_index_find(&s->index, h->key, h->length);
        if (e) {
            struct kv_entry ready = *e;
            ready.state = KV_ENTRY_READY;
            ready.bytes = h->file_bytes;
            ready.used = kv_store_time(s);
            BUG_IF(!kv_index_add(&s->index, &ready)); /* it is there: no memory is needed */
        }
        save_again(s);
        s->n_lost = 0;
        s->counts.written++;
        s->counts.written_bytes += h->file_bytes;
        return;
    }
    kv_index_remove(&s->index, h->key, h->length);
    s->counts.skipped++;
    if (again) {
        kv_store_note(s, INGLE_REPORT_WARN, s->dir_name,
                      "the directory was removed and is created again");
        kv_store_run_scan(s); /* what was in the old one is not taken for saved */
    }
    /* NOTFOUND: somebody took the temporary file away, or the directory */
    const bool lost = st == INGLE_NOTFOUND && ++s->n_lost <= MOST_LOST;
    s->gave_up = s->gave_up || j->cancel || st == INGLE_NOMEM || lost;
    if (st != INGLE_CANCEL && st != INGLE_NOMEM && !lost)
        stop_saving(s, err.msg);
}

static void *disk_thread(void *arg)
{
    struct kv_store *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        kv_store_beat(s);
        kv_store_serve(s);
        struct kv_job *j = s->first;
        if (j) {
            s->first = j->next;
            s->last = s->first ? s->last : NULL;
            s->running = j;
            write_job(s, j);
            s->running = NULL;
            s->n_queued--;
            s->queued_bytes -= j->n_bytes;
            j->next = s->finished;
            s->finished = j;
            pthread_cond_broadcast(&s->news);
        } else if (s->stop) {
            break;
        } else if (!kv_store_serve_want(s)) {
            s->idle = true;
            pthread_cond_wait(&s->work, &s->lock);
            s->idle = false;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- life ---- */

/* Whether there can be writes. */
static void check_saving(struct kv_store *s)
{
    s->saving = faccessat(s->dir, ".", W_OK, AT_EACCESS) == 0;
    if (s->saving)
        return;
    snprintf(s->error, sizeof s->error, "the directory is read-only");
    s->pause_ns = s->first_pause_ns;
    s->try_at = clock_now() + s->pause_ns;
    report(s->sink, INGLE_REPORT_WARN, "store", s->dir_name,
           "the directory is read-only: nothing is saved");
}

static bool let_go(void *arg)
{
    return kv_store_let_go(arg);
}

ingle_status kv_store_open(struct kv_store **out, struct kv_pool *p,
                           const struct kv_store_options *o, struct err *err)
{
    struct kv_store *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a store");
    s->pool = p;
    s->sink = p->sink;
    s->dir = -1;
    s->dir_name = mem_strdup(o->dir);
    s->identity = o->identity;
    s->index.media = p->media;
    s->n_forms = kv_forms(o->spec ? o->spec : p->spec, o->identity,
                          o->numerics ? o->numerics : "exact", s->form);
    if (o->far)
        s->far = *o->far;
    s->budget_bytes = o->budget_bytes ? o->budget_bytes : default_budget;
    s->queue_bytes = p->budget_bytes / QUEUE_SHARE;
    s->min_tokens = o->min_tokens > 0 ? o->min_tokens : MIN_TOKENS;
    s->scan = true;
    s->scan_requested = clock_now();
    s->patience_ns =
        (uint64_t)((o->patience_seconds > 0 ? o->patience_seconds : (double)PATIENCE_S) * 1e9);
    atomic_init(&s->gentle, false);
    atomic_init(&s->beat, clock_now());
    snprintf(s->model, sizeof s->model, "%s", o->model ? o->model : "");
    snprintf(s->settings, sizeof s->settings, "%s %s", o->codec ? o->codec : "",
             o->numerics ? o->numerics : "exact");
    s->first_pause_ns =
        (uint64_t)((o->retry_seconds > 0 ? o->retry_seconds : (double)PAUSE_S) * 1e9);
    ingle_status st = s->dir_name ? kv_store_open_dir(s->dir_name, &s->dir, err)
                                  : err_set(err, INGLE_NOMEM, "no memory for a store");
    if (!st)
        st = kv_store_try_rename(s->dir, s->dir_name, &s->skew_ns, err);
    if (!st)
        check_saving(s);
    bool made = false;
    if (!st) {
        pthread_condattr_t clock;
        made = true;
        BUG_IF(pthread_condattr_init(&clock) ||
               pthread_condattr_setclock(&clock, CLOCK_MONOTONIC) ||
               pthread_mutex_init(&s->lock, NULL) || pthread_cond_init(&s->work, NULL) ||
               pthread_cond_init(&s->news, &clock)); /* cannot fail on Linux */
        (void)pthread_condattr_destroy(&clock);
        if (!pool_thread(&s->thread, disk_thread, s))
            st = err_set(err, INGLE_NOMEM, "no thread for the store");
    }
    if (!st) {
        p->let_go = let_go;
        p->let_go_arg = s;
        *out = s;
        return INGLE_OK;
    }
    if (made) {
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->work);
        pthread_cond_destroy(&s->news);
    }
    if (s->dir >= 0)
        close(s->dir);
    mem_free(s->dir_name);
    mem_free(s);
    return st;
}

void kv_store_flush(struct kv_store *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_queued)
        pthread_cond_wait(&s->news, &s->lock);
    pthread_mutex_unlock(&s->lock);
    kv_store_poll(s);
}

void kv_store_close(struct kv_store *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    kv_store_poll(s);
    s->pool->let_go = NULL;
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->news);
    for (struct kv_want *w = s->want, *next; w; w = next) {
        next = w->next;
        mem_free(w);
    }
    kv_index_release(&s->index);
    close(s->dir);
    mem_free(s->dir_name);
    mem_free(s);
}

/* ---- jobs ---- */

static void job_give_pages(struct kv_job *j)
{
    for (uint64_t i = 0; j->pg && i < j->out.head.n_pages && j->pg[i]; i++)
        kv_page_unkeep(j->store->pool, j->pg[i]);
    mem_free(j->pg);
    j->pg = NULL;
    for (size_t i = 0; i < j->n_far; i++)
        kv_page_unkeep(j->store->pool, j->far_pg[i]);
    mem_free(j->far_pg);
    j->far_pg = NULL;
    j->n_far = 0;
}

static void job_free(struct kv_job *j)
{
    if (!j)
        return;
    job_give_pages(j);
    union {
        const void *in;
        void *out;
    } token = {j->all ? j->all : j->out.token}, mark = {j->out.mark}, page = {j->out.page},
      bytes = {j->out.page_bytes};
    mem_free(token.out);
    mem_free(mark.out);
    mem_free(page.out);
    mem_free(bytes.out);
    mem_free(j);
}

static void release(struct kv_job *list)
{
    while (list) {
        struct kv_job *next = list->next;
        job_free(list);
        list = next;
    }
}

static void release_reads(struct kv_read *list)
{
    while (list) {
        struct kv_read *next = list->next;
        kv_store_read_free(list);
        list = next;
    }
}

static struct kv_job *take_finished(struct kv_store *s)
{
    struct kv_job *list = s->finished;
    s->finished = NULL;
    return list;
}

static struct kv_read *take_dropped(struct kv_store *s)
{
    struct kv_read *list = s->dropped;
    s->dropped = NULL;
    return list;
}

bool kv_store_poll(struct kv_store *s)
{
    struct kv_note note[KV_NOTES];
    pthread_mutex_lock(&s->lock);
    struct kv_job *list = take_finished(s);
    struct kv_read *reads = take_dropped(s);
    const size_t n = s->n_notes;
    memcpy(note, s->note, n * sizeof *note);
    s->n_notes = 0;
    const bool busy = s->n_queued > 0 || s->gave_up, stuck = kv_store_is_stuck(s);
    pthread_mutex_unlock(&s->lock);
    report_stuck(s, stuck);
    release(list);
    release_reads(reads);
    for (size_t i = 0; i < n; i++)
        report(s->sink, note[i].level, "store", note[i].subject, "%s", note[i].text);
    return busy;
}

bool kv_store_gave_up(struct kv_store *s)
{
    pthread_mutex_lock(&s->lock);
    const bool any = s->gave_up;
    s->gave_up = false;
    pthread_mutex_unlock(&s->lock);
    return any;
}

/* The last of the queue, which nothing else in it continues; the lock is held. */
static struct kv_job *unqueue(struct kv_store *s)
{
    struct kv_job **at = &s->first;
    if (!s->first)
        return NULL;
    struct kv_job *before = NULL;
    while ((*at)->next) {
        before = *at;
        at = &(*at)->next;
    }
    struct kv_job *j = *at;
    *at = NULL;
    s->last = before;
    s->n_queued--;
    s->queued_bytes -= j->n_bytes;
    s->counts.skipped++;
    s->gave_up = true;
    kv_index_remove(&s->index, j->out.head.key, j->out.head.length);
    return j;
}

/* The pages of a write that has stopped for a read: it will not go on.  With the lock. */
static bool let_go_stopped(struct kv_store *s)
{
    struct kv_job *j = s->reading ? s->running : NULL;
    if (!j || !j->pg)
        return false;
    j->cancel = true;
    if (j->far)
        s->far.drop(s->far.arg, j->far);
    j->far = 0;
    job_give_pages(j);
    return true;
}

/* What nobody waits for any more is given up first, then files that wait, then the one that is
 * being written, at its next piece. */
bool kv_store_let_go(struct kv_store *s)
{
    pthread_mutex_lock(&s->lock);
    struct kv_job *list = take_finished(s);
    while (!list && s->reading && s->reading->dropped)
        pthread_cond_wait(&s->news, &s->lock);
    struct kv_read *reads = take_dropped(s);
    if (!list && !reads)
        list = unqueue(s);
    bool any = list || reads || let_go_stopped(s);
    while (!any && s->running && s->running->pg) {
        s->running->cancel = true;
        pthread_cond_wait(&s->news, &s->lock);
        list = take_finished(s);
        any = list || let_go_stopped(s);
    }
    pthread_mutex_unlock(&s->lock);
    release_reads(reads);
    release(list);
    return any;
}

/* A copy; NULL for lack of memory or of bytes. */
static void *copy_of(const void *at, size_t n)
{
    void *p = n ? mem_alloc(n) : NULL;
    if (p)
        memcpy(p, at, n);
    return p;
}

static ingle_status fetch_page(void *arg, uint64_t i, void *to, struct err *err)
{
    const struct kv_job *j = arg;
    return kv_disk_copy(j->store->pool, j->pg[i], to, err);
}

/* All pages, for those who have other parts of them.  False: out of memory. */
static bool job_far_pages(struct kv_job *j, const struct kv_spec *spec,
                          const struct kv_timeline *t)
{
    const int64_t length = j->out.head.length;
    uint64_t n, n_bytes;
    if (!j->store->far.begin)
        return true;
    if (!kv_file_pages(spec, 0, length, &n, &n_bytes) ||
        !(j->far_pg = mem_calloc(n + 1, sizeof *j->far_pg)))
        return false;
    for (uint32_t g = 0; g < (spec->n_own ? spec->n_own : spec->n_groups); g++)
        for (int64_t i = kv_file_first(spec, g, 0, length); i < num_div_up(length, KV_PAGE); i++) {
            j->far_pg[j->n_far] = t->table[g].page[i];
            kv_page_keep(j->store->pool, j->far_pg[j->n_far++]);
        }
    return true;
}

/* The pages of the file, kept.  False: out of memory, or what is own of one is lost. */
static bool job_pages(struct kv_job *j, const struct kv_spec *spec, const struct kv_timeline *t)
{
    struct kv_file_header *h = &j->out.head;
    const uint8_t **page = mem_calloc(h->n_pages, sizeof *page);
    size_t *bytes = mem_calloc(h->n_pages, sizeof *bytes);
    j->out.page = page;
    j->out.page_bytes = bytes;
    j->pg = mem_calloc(h->n_pages, sizeof *j->pg);
    if (!page || !bytes || !j->pg)
        return false;
    size_t k = 0;
    for (uint32_t g = 0; g < spec->n_groups; g++)
        for (int64_t i = kv_file_first(spec, g, h->from, h->length);
             i < num_div_up(h->length, KV_PAGE); i++, k++) {
            j->pg[k] = t->table[g].page[i];
            kv_page_keep(j->store->pool, j->pg[k]);
            if (!j->store->far.begin && !kv_page_own_fetch(j->store->pool, j->pg[k]))
                return false;
            page[k] = j->pg[k]->at;
            bytes[k] = spec->group[g].page_bytes;
        }
    return job_far_pages(j, spec, t);
}

/* The form of a timeline's files: what lacks rows of a guest goes without any. */
static const struct kv_form *form_of(const struct kv_store *s, const struct kv_timeline *t)
{
    return &s->form[t->from ? s->n_forms - 1 : 0];
}

/* What to write of a timeline whose deepest ancestor is *parent (NULL: none); NULL: out of
 * memory. */
static struct kv_job *job_create(struct kv_store *s, const struct kv_timeline *t,
                                 const struct kv_entry *to_be, struct kv_scope scope,
                                 const int32_t *tokens, const void *mark, size_t mark_bytes)
{
    const struct kern_select how = kv_select_from(scope.select);
    const struct kv_name select = kv_select_name(&how);
    char settings[128];
    struct kv_job *j = mem_zalloc(sizeof *j);
    if (!j)
        return NULL;
    struct kv_file_header *h = &j->out.head;
    const struct kv_spec *spec = &form_of(s, t)->spec;
    j->store = s;
    h->context = to_be->context;
    h->key = to_be->key;
    h->parent = to_be->parent;
    h->plain = to_be->plain;
    h->identity = s->identity;
    h->from = to_be->from;
    h->length = h->n_tokens = to_be->length;
    h->mark_bytes = mark_bytes;
    h->n_groups = (uint16_t)spec->n_groups;
    for (size_t i = 0; i + 1 < sizeof h->model; i++)
        h->model[i] = s->model[i];
    h->sparse = kv_sparse_at(scope.sparse, h->length);
    snprintf(settings, sizeof settings, "%.90s%s%s", s->settings, select.at[0] ? "+" : "",
             select.at);
    kv_file_settings(h, settings, spec->n_own > 0);
    kv_index_name(j->name, h->key, h->length);
    const size_t n_token = (size_t)(h->length - h->from) * sizeof *tokens;
    j->scope = scope;
    j->all = s->far.begin ? copy_of(tokens, (size_t)h->length * sizeof *tokens) : NULL;
    j->out.token = j->all ? j->all + h->from : copy_of(tokens + h->from, n_token);
    j->out.media = s->index.media;
    j->out.mark = copy_of(mark, mark_bytes);
    j->out.stop = write_stop;
    j->out.arg = j;
    j->out.fetch = fetch_page;
    j->out.fetch_arg = j;
    if (!j->out.token || (mark_bytes && !j->out.mark) ||
        !kv_file_pages(spec, h->from, h->length, &h->n_pages, &j->n_bytes) ||
        !job_pages(j, spec, t)) {
        job_free(j);
        return NULL;
    }
    j->n_bytes += n_token + mark_bytes + h->n_pages * sizeof(struct kv_key) + 2 * KV_FILE_ALIGN;
    return j;
}

/* The deepest that is there or waits to be written, for all who have parts of it. */
static const struct kv_entry *deepest_of_all(const struct kv_store *s, struct kv_key context,
                                             struct kv_scope scope, const int32_t *tokens,
                                             int64_t limit)
{
    const struct kv_entry *e;
    do {
        e = kv_index_deepest(&s->index, context, scope, tokens, limit, true, NULL);
        limit = e ? e->length - 1 : 0;
    } while (e && e->state == KV_ENTRY_READY && s->far.has &&
             !s->far.has(s->far.arg, scope, s->index.media, tokens, e->length));
    return e;
}

/* The entry that this prefix will have.  False: it is not worth a file, or there is one. */
static bool plan_entry(struct kv_store *s, struct kv_key context, struct kv_scope scope,
                       const int32_t *tokens, int64_t length, int64_t least, struct kv_entry *out)
{
    if (!may_save(s) || length < s->min_tokens || clock_now() < s->far_try_at)
        return false;
    const struct kv_entry *there = deepest_of_all(s, context, scope, tokens, length);
    if (there && length - there->length < num_max(least, s->min_tokens))
        return false;
    /* one that is there, but not for all, is written again */
    const int64_t before = s->far.begin ? length - 1 : length;
    const struct kv_entry *parent =
        kv_index_deepest(&s->index, context, scope, tokens, before, true, NULL);
    *out = (struct kv_entry){
        .context = context, .length = length, .state = KV_ENTRY_PENDING, .seen = true};
    struct kv_media *media = s->index.media;
    out->key = kv_key_of(context, scope, media, tokens, length);
    out->plain = kv_key_of((struct kv_key){0, 0}, kv_scope_of(scope.salt), media, tokens, length);
    if (parent) {
        out->parent = parent->key;
        out->from = parent->length;
    }
    return true;
}

uint64_t kv_store_names(struct kv_store *s, void (*fn)(void *arg, struct kv_key key), void *arg)
{
    pthread_mutex_lock(&s->lock);
    const uint64_t changes = s->index.changes;
    for (size_t i = 0; fn && i < s->index.n; i++) {
        const struct kv_entry *e = &s->index.entry[i];
        if (e->state == KV_ENTRY_READY && kv_key_equal(e->context, s->form[0].context) &&
            kv_index_is_whole(&s->index, e, false))
            fn(arg, e->key);
    }
    pthread_mutex_unlock(&s->lock);
    return changes;
}

struct kv_key kv_store_context(const struct kv_store *s)
{
    return s->form[0].context;
}

void kv_store_watch(struct kv_store *s, const struct kv_watch *watch)
{
    pthread_mutex_lock(&s->lock);
    s->index.watch = watch;
    pthread_mutex_unlock(&s->lock);
}

bool kv_store_put(struct kv_store *s, const struct kv_timeline *t, struct kv_scope scope,
                  const int32_t *tokens, int64_t least, const void *mark, size_t mark_bytes)
{
    struct kv_entry e;
    (void)kv_store_poll(s);
    if (kv_timeline_is_lost(t))
        return true;
    pthread_mutex_lock(&s->lock);
    while (!s->scanned)
        pthread_cond_wait(&s->news, &s->lock);
    const bool wanted = plan_entry(s, form_of(s, t)->context, scope, tokens, t->length, least, &e);
    pthread_mutex_unlock(&s->lock);
    if (!wanted)
        return true;
    struct kv_job *j = job_create(s, t, &e, scope, tokens, mark, mark_bytes), *refused = j;
    const uint64_t n_bytes = j ? j->n_bytes : 0;
    pthread_mutex_lock(&s->lock);
    const bool room = j && n_bytes <= s->budget_bytes && s->n_queued < QUEUE_JOBS &&
                      (!s->n_queued || s->queued_bytes + n_bytes <= s->queue_bytes);
    if (room && kv_index_add(&s->index, &e)) {
        if (s->last)
            s->last->next = j;
        else
            s->first = j;
        s->last = j;
        s->n_queued++;
        s->queued_bytes += n_bytes;
        refused = NULL;
        /* before it is written: until then it is in memory */
        struct kv_entry *there = kv_index_find(&s->index, e.key, e.length);
        const struct kv_watch *watch = s->index.watch;
        if (watch && there && !there->event_name)
            there->event_name =
                kv_media_publish(kv_pool_media(t->pool), watch, true, scope, tokens, e.length);
        pthread_cond_signal(&s->work);
    } else {
        s->counts.skipped++;
    }
    pthread_mutex_unlock(&s->lock);
    if (!refused && j)
        return true;
    job_free(refused);
    if (n_bytes <= s->budget_bytes) {
        report(s->sink, INGLE_REPORT_DEBUG, "store", s->dir_name,
               "a prefix of %lld tokens (%llu bytes) is not saved: the queue for writing is full",
               (long long)e.length, (unsigned long long)n_bytes);
        return false;
    }
    report(s->sink, s->reported_small ? INGLE_REPORT_DEBUG : INGLE_REPORT_WARN, "store",
           s->dir_name,
           "a prefix of %lld tokens takes %llu bytes, more than the store may have (%llu): it is "
           "not saved",
           (long long)e.length, (unsigned long long)n_bytes, (unsigned long long)s->budget_bytes);
    s->reported_small = true;
    return true; /* it never will be */
}

void kv_store_count(struct kv_store *s, struct kv_store_counts *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->counts;
    out->bytes = s->index.bytes;
    out->budget_bytes = s->budget_bytes;
    out->saving = s->saving;
    out->try_at = s->saving ? 0 : s->try_at;
    memcpy(out->error, s->error, sizeof out->error);
    for (size_t i = 0; i < s->index.n; i++)
        out->files += s->index.entry[i].state != KV_ENTRY_PENDING;
    pthread_mutex_unlock(&s->lock);
}
