/* SPDX-License-Identifier: Apache-2.0 */
/* store_dir - the directory: what is in it, and what has to go. */
#define _GNU_SOURCE
#include "kv/store_impl.h"
#include "kv/store_parts.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    COARSE_NS = 50000000, /* a directory changed twice within this may not show it */
    SCAN_PAUSE = 100,     /* times what a scan took */
};

static struct kv_entry entry_of(const struct kv_file_header *h, const struct stat *st)
{
    return (struct kv_entry){.context = h->context,
                             .key = h->key,
                             .parent = h->parent,
                             .plain = h->plain,
                             .from = h->from,
                             .length = h->length,
                             .bytes = (uint64_t)st->st_size,
                             .used = (int64_t)st->st_mtime,
                             .state = KV_ENTRY_READY,
                             .seen = true};
}

/* A file that the index does not know.  Unlocked. */
static ingle_status look_at(int dir, const char *name, struct kv_key key, int64_t length,
                            const struct stat *st, struct kv_entry *out, struct err *err)
{
    struct kv_file f;
    ingle_status s = kv_file_open(&f, dir, name, err);
    if (!s) {
        *out = entry_of(&f.head, st);
        if (!kv_key_equal(out->key, key) || out->length != length)
            s = err_set(err, INGLE_FORMAT, "%s: damaged: its name is another file's", name);
        kv_file_close(&f);
        return s;
    }
    *out = (struct kv_entry){.key = key,
                             .length = length,
                             .bytes = (uint64_t)st->st_size,
                             .used = (int64_t)st->st_mtime,
                             .state = s == INGLE_UNSUP          ? KV_ENTRY_FOREIGN
                                      : S_ISREG(st->st_mode)    ? KV_ENTRY_AWAY
                                                                : KV_ENTRY_BAD,
                             .seen = true};
    return s == INGLE_UNSUP ? INGLE_OK : s;
}

/* One name of the directory.  Unlocked on entry and return. */
static void scan_name(struct kv_store *s, const char *name)
{
    struct kv_key key;
    int64_t length;
    struct stat st;
    if (kv_file_is_temporary(name)) {
        kv_file_remove_stale(s->dir, name, kv_store_time(s));
        return;
    }
    if (!kv_index_parse(name, &key, &length) ||
        fstatat(s->dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    pthread_mutex_lock(&s->lock);
    struct kv_entry *known = kv_index_find(&s->index, key, length);
    if (known && known->state == KV_ENTRY_READY && known->bytes != (uint64_t)st.st_size)
        known = NULL; /* another process has written it again, from another parent */
    if (known && known->state != KV_ENTRY_PENDING) {
        known->seen = true;
        known->used = (int64_t)st.st_mtime;
    }
    const bool was_away = known && known->state == KV_ENTRY_AWAY;
    if (was_away)
        known = NULL;
    pthread_mutex_unlock(&s->lock);
    if (known)
        return;
    struct kv_entry e;
    struct err err;
    const ingle_status status = look_at(s->dir, name, key, length, &st, &e, &err);
    if (status == INGLE_NOTFOUND)
        return;
    pthread_mutex_lock(&s->lock);
    if (status == INGLE_FORMAT) {
        s->counts.damaged++;
        kv_store_note(s, INGLE_REPORT_WARN, name, "%s; it is deleted", err.msg);
        kv_store_drop(s, key, length, KV_DROP_REMOVE_BAD);
    } else {
        if (e.state == KV_ENTRY_AWAY && !was_away)
            kv_store_note(s, INGLE_REPORT_WARN, name, "%s; it is tried again later", err.msg);
        s->away = s->away || e.state == KV_ENTRY_AWAY;
        if (e.state != KV_ENTRY_AWAY || !was_away)
            (void)!kv_index_add(&s->index, &e); /* out of memory: it is not used */
    }
    pthread_mutex_unlock(&s->lock);
}

/* The same, also when another machine has removed the directory and made it anew. */
static DIR *names_again(struct kv_store *s)
{
    ingle_status st = INGLE_OK;
    DIR *d = file_list(s->dir);
    if (!d && errno == ESTALE && kv_store_find_again(s, &st, NULL))
        d = file_list(s->dir);
    return d;
}

void kv_store_run_scan(struct kv_store *s)
{
    struct stat st;
    struct timespec now;
    const uint64_t start = clock_now();
    for (size_t i = 0; i < s->index.n; i++)
        s->index.entry[i].seen = s->index.entry[i].state == KV_ENTRY_PENDING;
    s->away = false;
    pthread_mutex_unlock(&s->lock);
    clock_gettime(CLOCK_REALTIME, &now);
    const bool known = fstat(s->dir, &st) == 0;
    DIR *d = names_again(s);
    errno = 0;
    for (const struct dirent *e; d && (e = readdir(d)); kv_store_beat(s), errno = 0)
        scan_name(s, e->d_name);
    const bool whole = d && !errno; /* else what was not seen may be there all the same */
    pthread_mutex_lock(&s->lock);
    for (size_t i = s->index.n; whole && i-- > 0;)
        if (!s->index.entry[i].seen)
            kv_index_remove(&s->index, s->index.entry[i].key, s->index.entry[i].length);
    s->away = s->away || !whole;
    const double age = known ? (double)(now.tv_sec - st.st_mtim.tv_sec) * 1e9 +
                                   (double)(now.tv_nsec - st.st_mtim.tv_nsec) + (double)s->skew_ns
                             : 0;
    s->scan_s = age > (double)COARSE_NS ? (int64_t)st.st_mtim.tv_sec : -1;
    s->scan_ns = age > (double)COARSE_NS ? (int64_t)st.st_mtim.tv_nsec : -1;
    s->scan = false;
    s->scanned = true;
    const uint64_t end = clock_now();
    s->scan_after = end + SCAN_PAUSE * (end - start);
    if (d)
        closedir(d);
    pthread_cond_broadcast(&s->news);
    kv_store_wake(s);
}

/* A look goes on, and not for too long.  With the lock. */
static bool is_worth_waiting(const struct kv_store *s)
{
    const uint64_t now = clock_now();
    return s->scan && !kv_store_is_stuck(s) &&
           (now < s->scan_requested || now - s->scan_requested < s->patience_ns);
}

bool kv_store_look(struct kv_store *s, bool wait)
{
    struct stat st;
    const bool known = fstat(s->dir, &st) == 0;
    pthread_mutex_lock(&s->lock);
    if (s->scanned && clock_now() >= s->scan_after &&
        (!known || s->away || (int64_t)st.st_mtim.tv_sec != s->scan_s ||
         (int64_t)st.st_mtim.tv_nsec != s->scan_ns)) {
        s->scan_requested = s->scan ? s->scan_requested : clock_now();
        s->scan = true;
        pthread_cond_signal(&s->work);
    }
    while (is_worth_waiting(s) && wait)
        kv_store_wait_news(s);
    const bool is_finished = !is_worth_waiting(s);
    pthread_mutex_unlock(&s->lock);
    return is_finished;
}

bool kv_store_looks(struct kv_store *s)
{
    pthread_mutex_lock(&s->lock);
    const bool scans = is_worth_waiting(s);
    pthread_mutex_unlock(&s->lock);
    return scans;
}

void kv_store_drop(struct kv_store *s, struct kv_key key, int64_t length, enum kv_drop how)
{
    char name[KV_NAME_BYTES];
    const struct kv_entry *known = kv_index_find(&s->index, key, length);
    struct kv_entry e = known ? *known : (struct kv_entry){.key = key, .length = length};
    kv_index_name(name, key, length);
    kv_index_remove(&s->index, key, length);
    e.event_name = 0;
    if (how == KV_DROP_FORGET)
        return;
    pthread_mutex_unlock(&s->lock);
    const bool missing = unlinkat(s->dir, name, 0) == 0 || kv_store_is_missing(errno);
    pthread_mutex_lock(&s->lock);
    if (missing)
        return;
    e.seen = true; /* it is counted further on */
    if (how == KV_DROP_REMOVE_BAD)
        e.state = KV_ENTRY_BAD;
    (void)!kv_index_add(&s->index, &e);
}

void kv_store_set_away(struct kv_store *s, struct kv_key key, int64_t length)
{
    struct kv_entry *e = kv_index_find(&s->index, key, length);
    if (!e || e->state != KV_ENTRY_READY)
        return;
    e->state = KV_ENTRY_AWAY;
    s->index.changes++;
    s->away = true;
}

/* Gives up files until there is room.  With the lease. */
static bool give_up_files(struct kv_store *s, uint64_t n_bytes)
{
    while (s->index.bytes > s->budget_bytes - n_bytes) {
        const struct kv_entry *victim = kv_index_victim(&s->index, kv_store_time(s));
        if (!victim || !kv_store_lease_goes_on(s))
            return false;
        const uint64_t before = s->index.bytes;
        bool ours = false;
        for (int i = 0; i < s->n_forms; i++)
            ours |= kv_key_equal(victim->context, s->form[i].context);
        const int64_t from = victim->from, length = victim->length;
        kv_store_drop(s, victim->key, victim->length, KV_DROP_REMOVE);
        if (s->index.bytes >= before)
            return false;
        s->counts.evicted++;
        if (ours)
            kv_store_note(s, INGLE_REPORT_DEBUG, s->dir_name,
                          "tokens %lld to %lld were given up: the store is full", (long long)from,
                          (long long)length);
    }
    return true;
}

bool kv_store_make_room(struct kv_store *s, uint64_t n_bytes)
{
    if (n_bytes > s->budget_bytes)
        return false;
    if (s->index.bytes <= s->budget_bytes - n_bytes)
        return true;
    if (!kv_store_lease(s)) {
        s->gave_up = true; /* it may be tried again */
        return false;
    }
    kv_store_run_scan(s); /* others may have made room, or filled it */
    const bool room = give_up_files(s, n_bytes);
    kv_store_lease_end(s);
    return room;
}

/* ---- for people ---- */

ingle_status kv_store_list(const char *path, kv_store_list_fn *fn, void *arg, struct err *err)
{
    const int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = dir >= 0 ? file_list(dir) : NULL;
    if (!d) {
        const ingle_status s = err_set(err, errno == ENOENT ? INGLE_NOTFOUND : INGLE_IO,
                                       "%s: cannot read the directory: %s", path, strerror(errno));
        if (dir >= 0)
            close(dir);
        return s;
    }
    for (const struct dirent *e; (e = readdir(d));) {
        struct kv_key key;
        struct stat st;
        struct kv_file f;
        struct err bad;
        struct kv_store_entry out = {.name = e->d_name, .model = "", .settings = ""};
        if (!kv_index_parse(e->d_name, &key, &out.length) ||
            fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        out.bytes = (uint64_t)st.st_size;
        out.age_s = clock_age((int64_t)st.st_mtime);
        struct kv_file_texts texts;
        const bool good = kv_file_open(&f, dir, e->d_name, &bad) == INGLE_OK;
        if (good) {
            texts = kv_file_texts(&f.head);
            out.model = texts.model;
            out.settings = texts.settings;
            out.identity = f.head.identity;
            out.from = f.head.from;
        } else {
            out.damage = bad.msg;
        }
        fn(arg, &out);
        if (good)
            kv_file_close(&f);
    }
    closedir(d);
    close(dir);
    return INGLE_OK;
}
