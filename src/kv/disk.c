/* SPDX-License-Identifier: Apache-2.0 */
/* disk - the file that pages go to: its places, what is written, and which page leaves memory. */
#define _GNU_SOURCE
#include "kv/disk_impl.h"
#include "kv/disk_parts.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "kv/store_file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MOST_SLOTS = 1 << 16,    /* of 128 positions each: 8 million tokens */
    MEASURED = 16 << 20,     /* bytes written and read at the start, at most, */
    ENOUGH = 64 << 20,       /* and read since, so that they say more than those */
    MOST_NAMES = 64,
    RECALLED = 8,            /* a step reads so much more for pages that come back: one of 8 */
    SPARED = 3,              /* pages of room that do not bring one back */
};
static const uint64_t pause_ns = 10000000000u; /* after a write that failed */
static const uint64_t stall_ns = 30000000000u;
static const char prefix[] = "ingle-kv-", suffix[] = ".pages";

/* ---- what a page is made of ---- */

int64_t kv_disk_group(const struct kv_spec *s)
{
    const uint32_t n = s->n_own ? s->n_own : s->n_groups;
    for (uint32_t g = 0; g < n; g++) {
        bool heads = s->group[g].window == 0;
        for (uint32_t i = 0; i < s->n_streams && heads; i++)
            heads = s->stream[i].group != g || s->stream[i].kind == KV_HEADS;
        if (heads)
            return g;
    }
    return -1;
}

static size_t step_of(const struct kv_stream *s)
{
    return (s->head_bytes + KV_DISK_ALIGN - 1) / KV_DISK_ALIGN * KV_DISK_ALIGN;
}

/* Of the group's pages: units, their bytes in the file, and the largest one's. */
static size_t shape(const struct kv_spec *s, uint32_t group, uint64_t *slot_bytes, size_t *most)
{
    size_t n = 0;
    *slot_bytes = *most = 0;
    for (uint32_t i = 0; i < s->n_streams; i++)
        if (s->stream[i].group == group) {
            n += s->stream[i].n_heads;
            *slot_bytes += (uint64_t)s->stream[i].n_heads * step_of(&s->stream[i]);
            *most = step_of(&s->stream[i]) > *most ? step_of(&s->stream[i]) : *most;
        }
    return n;
}

static int64_t slots_of(uint64_t budget_bytes, uint64_t slot_bytes)
{
    const uint64_t n = slot_bytes ? budget_bytes / slot_bytes : 0;
    return n > MOST_SLOTS ? MOST_SLOTS : (int64_t)n;
}

bool kv_disk_memory(const struct kv_spec *s, int64_t max_tokens, uint64_t budget_bytes,
                    uint64_t *out)
{
    const int64_t group = kv_disk_group(s);
    uint64_t slot_bytes, stage, list;
    size_t most;
    if (group < 0 || max_tokens < 0 || max_tokens > INT64_MAX / 4)
        return false;
    const size_t n_units = shape(s, (uint32_t)group, &slot_bytes, &most);
    const uint64_t slots = (uint64_t)slots_of(budget_bytes, slot_bytes);
    if (!num_mul_u64((uint64_t)num_div_up(max_tokens, KV_PAGE) * KV_STAGES, most, &stage) ||
        !num_mul_u64(slots, n_units * sizeof(struct kv_key) + sizeof(uint32_t) + 1, &list))
        return false;
    const uint64_t lane = s->group[group].page_bytes + most; /* a page that is written or read */
    uint64_t kept;
    return num_add_u64(stage, list, out) && num_add_u64(*out, lane, out) &&
           num_mul_u64((uint64_t)s->kept, slot_bytes, &kept) && num_add_u64(*out, kept, out);
}

uint64_t kv_disk_step_bytes(const struct kv_spec *s, int64_t n_tokens, int64_t pages_in_memory)
{
    const int64_t group = kv_disk_group(s), away = num_div_up(n_tokens, KV_PAGE) - pages_in_memory;
    return group < 0 || away <= 0 ? 0 : (uint64_t)away * s->group[group].page_bytes;
}

/* ---- the directory and the file ---- */

ingle_status kv_disk_check(const char *dir, struct err *err)
{
    const ingle_status st = kv_store_check(dir, err); /* the same rules */
    if (st && err)
        err_prefix(err, "keys and values on disk");
    if (!st && faccessat(AT_FDCWD, dir, W_OK | X_OK, AT_EACCESS) != 0)
        return err_set(err, INGLE_IO, "%s: keys and values cannot be written there: %s", dir,
                       strerror(errno));
    return st;
}

/* What processes left behind that were killed: nobody holds a lock on it. */
static void remove_left(struct kv_disk *d)
{
    const int fd = openat(d->at_dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    if (!list && fd >= 0)
        close(fd);
    for (const struct dirent *e; list && (e = readdir(list));) {
        const size_t n = strlen(e->d_name);
        if (n < sizeof prefix + sizeof suffix - 2 ||
            strncmp(e->d_name, prefix, sizeof prefix - 1) != 0 ||
            strcmp(e->d_name + n - (sizeof suffix - 1), suffix) != 0)
            continue;
        const int left =
            openat(d->at_dir, e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (left < 0)
            continue;
        if (flock(left, LOCK_EX | LOCK_NB) == 0 && unlinkat(d->at_dir, e->d_name, 0) == 0)
            report(d->pool->sink, INGLE_REPORT_NOTE, "kv-paging", e->d_name,
                   "a process that was ended left it in '%s': removed", d->dir);
        close(left);
    }
    if (list)
        closedir(list);
}

/* A new file, locked.  One that another process removed before the lock was there is not it. */
static ingle_status make_file(struct kv_disk *d, struct err *err)
{
    for (int i = 0; i < MOST_NAMES && d->fd < 0; i++) {
        struct stat st;
        snprintf(d->name, sizeof d->name, "%s%ld-%llu%s", prefix, (long)getpid(),
                 (unsigned long long)(clock_now() % 1000000007u) + (unsigned)i, suffix);
        d->fd =
            openat(d->at_dir, d->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (d->fd < 0 && errno != EEXIST)
            return err_set(err, INGLE_IO, "%s: cannot make a file for keys and values: %s", d->dir,
                           strerror(errno));
        if (d->fd >= 0 &&
            (flock(d->fd, LOCK_EX | LOCK_NB) != 0 || fstat(d->fd, &st) != 0 || !st.st_nlink)) {
            close(d->fd);
            d->fd = -1;
        }
    }
    if (d->fd < 0)
        return err_set(
            err, INGLE_IO,
            "%s: cannot make a file for keys and values: other processes have all its names",
            d->dir);
    const size_t n = strlen(d->dir) + sizeof d->name + 2;
    d->path = mem_alloc(n);
    if (!d->path)
        return err_set(err, INGLE_NOMEM, "no memory for a path");
    snprintf(d->path, n, "%s/%s", d->dir, d->name);
    d->read_fd = openat(d->at_dir, d->name, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
    d->direct = d->read_fd >= 0;
    if (!d->direct)
        d->read_fd = openat(d->at_dir, d->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return d->read_fd >= 0 ? INGLE_OK
                           : err_set(err, INGLE_IO, "%s: cannot open the file to read it: %s",
                                     d->path, strerror(errno));
}

/* How fast blocks are read: some are written, and read back past the page cache where that goes. */
static void measure(struct kv_disk *d)
{
    const struct kv_unit *u = &d->unit[0];
    const uint64_t most = MEASURED / u->step;
    int32_t n = (int32_t)(most < (uint64_t)d->n_slots ? most : (uint64_t)d->n_slots);
    n = (int32_t)num_min(num_max(n, 1), d->cap);
    uint8_t *at = d->stage[0].at;
    struct file_limit limit;
    file_limit_hold(&limit);
    memset(at, 0x5a, (size_t)n * u->step);
    const ssize_t put = pwrite(d->fd, at, (size_t)n * u->step, (off_t)u->first);
    file_limit_drop(&limit);
    if (put > 0 && !fdatasync(d->fd)) {
        (void)posix_fadvise(d->fd, 0, 0, POSIX_FADV_DONTNEED);
        const uint64_t began = clock_now();
        if (!kv_disk_read(d, u, 0, (int32_t)((size_t)put / u->step), at, &d->pulse))
            d->counts.rate = (double)put / ((double)(clock_now() - began + 1) * 1e-9);
    }
    (void)!ftruncate(d->fd, 0);
}

/* ---- life ---- */

static ingle_status lists(struct kv_disk *d, uint64_t budget_bytes, struct err *err)
{
    const struct kv_spec *s = d->pool->spec;
    size_t most;
    d->n_units = shape(s, d->group, &d->slot_bytes, &most);
    d->n_slots = (int32_t)slots_of(budget_bytes, d->slot_bytes);
    if (d->n_units < 1 || d->n_units > KV_DISK_UNITS)
        return err_set(err, INGLE_LIMIT, "%zu heads of keys and values are not in 1..%d",
                       d->n_units, KV_DISK_UNITS);
    if (d->n_slots < 1)
        return err_set(err, INGLE_LIMIT,
                       "%llu bytes of disk cannot hold one page of keys and values: %llu bytes",
                       (unsigned long long)budget_bytes, (unsigned long long)d->slot_bytes);
    const uint64_t pages = d->pool->budget_bytes / s->group[d->group].page_bytes;
    d->cap_leaves = (int32_t)(pages < MOST_SLOTS ? pages : MOST_SLOTS);
    d->unit = mem_calloc(d->n_units, sizeof *d->unit);
    d->taken = mem_calloc((size_t)d->n_slots, 1);
    d->turn = mem_calloc((size_t)d->n_slots, sizeof *d->turn);
    d->sum = mem_calloc((size_t)d->n_slots * d->n_units, sizeof *d->sum);
    d->leaves = mem_calloc((size_t)d->cap_leaves + 1, sizeof(struct kv_page *));
    if (!d->unit || !d->taken || !d->turn || !d->sum || !d->leaves)
        return err_set(err, INGLE_NOMEM, "no memory for the list of %d pages on disk", d->n_slots);
    uint64_t at = 0;
    size_t k = 0;
    for (uint32_t i = 0; i < s->n_streams; i++)
        for (uint32_t h = 0; s->stream[i].group == d->group && h < s->stream[i].n_heads; h++) {
            struct kv_unit *u = &d->unit[k++];
            *u = (struct kv_unit){i,
                                  h,
                                  s->stream[i].at + h * s->stream[i].head_bytes,
                                  s->stream[i].head_bytes,
                                  step_of(&s->stream[i]),
                                  at,
                                  0};
            at += (uint64_t)d->n_slots * u->step;
        }
    return INGLE_OK;
}

static void locks(struct kv_disk *d)
{
    pthread_condattr_t clock; /* clock_now() */
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->moves, NULL);
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->lane.lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->lane.work, NULL);
    pthread_cond_init(&d->done, &clock);
    pthread_cond_init(&d->lane.news, &clock);
    pthread_condattr_destroy(&clock);
}

ingle_status kv_disk_open(struct kv_pool *p, const struct kv_disk_options *o, struct err *err)
{
    const int64_t group = kv_disk_group(p->spec);
    BUG_IF(p->disk || p->used_bytes);
    if (group < 0)
        return err_set(err, INGLE_UNSUP,
                       "no layer keeps heads of keys and values of all positions");
    ingle_status st = kv_disk_check(o->dir, err);
    if (st)
        return st;
    struct kv_disk *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_set(err, INGLE_NOMEM, "no memory for pages on disk");
    d->pool = p;
    d->group = (uint32_t)group;
    d->fd = d->read_fd = d->at_dir = -1;
    d->stall_ns = o->stall_ns ? o->stall_ns : stall_ns;
    locks(d);
    p->disk = d;
    p->spared_bytes = o->spared_bytes;
    if (!(d->dir = mem_strdup(o->dir)))
        st = err_set(err, INGLE_NOMEM, "no memory for a path");
    if (!st && (d->at_dir = open(o->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        st = err_set(err, INGLE_IO, "%s: cannot open the directory: %s", o->dir, strerror(errno));
    if (!st)
        st = lists(d, o->budget_bytes, err);
    if (!st) {
        remove_left(d);
        st = make_file(d, err);
    }
    if (!st)
        st = kv_heads_open(d, o->max_tokens, err);
    if (!st)
        st = kv_disk_lane_open(d, err);
    if (st)
        kv_disk_close(p);
    else
        measure(d);
    return st;
}

void kv_disk_close(struct kv_pool *p)
{
    struct kv_disk *d = p->disk;
    if (!d)
        return;
    char path[KV_DISK_ERROR];
    BUG_IF(d->n_used || d->n_leaves);
    snprintf(path, sizeof path, "%s", d->path ? d->path : "");
    if (!d->lane.thread.runs && d->fd >= 0)
        (void)unlinkat(d->at_dir, d->name, 0);
    p->disk = NULL;
    if (!kv_disk_end(d))
        report(p->sink, INGLE_REPORT_WARN, "kv-paging", path,
               "the disk does not answer: the file stays until it does, or until the next start");
}

bool kv_disk_has(const struct kv_pool *p, uint32_t group)
{
    return p->disk && p->disk->group == group;
}

void kv_disk_count(struct kv_pool *p, struct kv_disk_counts *out)
{
    struct kv_disk *d = p->disk;
    *out = (struct kv_disk_counts){0};
    if (!d)
        return;
    *out = d->counts;
    out->pages = d->n_used;
    out->bytes = (uint64_t)d->n_used * d->slot_bytes;
    out->budget_bytes = (uint64_t)d->n_slots * d->slot_bytes;
    pthread_mutex_lock(&d->lock);
    out->read_bytes = d->read_bytes;
    out->read_seconds = (double)d->read_ns * 1e-9;
    out->failed += d->failed_reads;
    pthread_mutex_unlock(&d->lock);
    if (out->read_bytes >= ENOUGH)
        out->rate = (double)out->read_bytes / out->read_seconds;
}

const char *kv_disk_trouble(const struct kv_pool *p)
{
    const struct kv_disk *d = p->disk;
    return !d                        ? ""
           : d->counts.error[0]      ? d->counts.error
           : d->n_used >= d->n_slots ? "the file of pages has its largest size"
                                     : "";
}

/* ---- which page leaves ---- */

static bool may_leave(const struct kv_page *pg)
{
    return !pg->pins && !pg->kept;
}

static bool may_write(struct kv_disk *d)
{
    return (!d->counts.error[0] || clock_now() >= d->try_at) && kv_disk_lane_answers(d);
}

void kv_disk_complete(struct kv_pool *p, struct kv_page *pg, int64_t index)
{
    struct kv_disk *d = p->disk;
    if (!pg->at || pg->leaves >= 0 || d->n_leaves >= d->cap_leaves)
        return;
    pg->index = index;
    pg->leaves = d->n_leaves;
    d->leaves[d->n_leaves++] = pg;
}

static void stays(struct kv_disk *d, struct kv_page *pg)
{
    if (pg->leaves < 0)
        return;
    struct kv_page *last = d->leaves[--d->n_leaves];
    d->leaves[pg->leaves] = last;
    last->leaves = pg->leaves;
    pg->leaves = -1;
}

static void give_slot(struct kv_disk *d, int32_t slot)
{
    d->taken[slot] = 0;
    d->n_used--;
    d->lowest = slot < d->lowest ? slot : d->lowest;
}

/* Of a page that has come back to memory; false: there is none. */
static bool reclaim_slot(struct kv_disk *d)
{
    for (int32_t i = 0; i < d->n_leaves; i++)
        if (d->leaves[i]->slot >= 0 && !d->leaves[i]->kept) {
            give_slot(d, d->leaves[i]->slot);
            d->leaves[i]->slot = -1;
            return true;
        }
    return false;
}

static int32_t take_slot(struct kv_disk *d)
{
    if (d->n_used >= d->n_slots && !reclaim_slot(d))
        return -1;
    while (d->lowest < d->n_slots && d->taken[d->lowest])
        d->lowest++;
    if (d->lowest >= d->n_slots)
        return -1;
    d->taken[d->lowest] = 1;
    d->turn[d->lowest]++;
    d->n_used++;
    return d->lowest;
}

void kv_disk_forget(struct kv_pool *p, struct kv_page *pg)
{
    struct kv_disk *d = p->disk;
    BUG_IF(pg->pins);
    if (!d)
        return;
    stays(d, pg);
    if (pg->slot >= 0)
        give_slot(d, pg->slot);
    pg->slot = -1;
}

void kv_disk_reopen(struct kv_pool *p, struct kv_page *pg)
{
    BUG_IF(!pg->at);
    kv_disk_forget(p, pg);
}

static bool is_idle(const struct kv_page *pg)
{
    return pg->held + pg->kept == pg->refs;
}

/* Pages of no timeline before those of one, then the highest index. */
static struct kv_page *victim(const struct kv_disk *d)
{
    struct kv_page *best = NULL;
    bool best_idle = false;
    for (int32_t i = 0; i < d->n_leaves; i++) {
        struct kv_page *pg = d->leaves[i];
        const bool idle = is_idle(pg);
        if (may_leave(pg) &&
            (!best || (idle && !best_idle) || (idle == best_idle && pg->index > best->index))) {
            best = pg;
            best_idle = idle;
        }
    }
    return best;
}

uint64_t kv_disk_can_spill(const struct kv_pool *p)
{
    struct kv_disk *d = p->disk;
    if (!d || !may_write(d))
        return 0;
    int64_t n = 0, on_disk = 0; /* of pages in memory */
    for (int32_t i = 0; i < d->n_leaves; i++) {
        n += may_leave(d->leaves[i]) && !is_idle(d->leaves[i]);
        on_disk += d->leaves[i]->slot >= 0 && !d->leaves[i]->kept;
    }
    return (uint64_t)num_min(n, d->n_slots - d->n_used + on_disk) *
           p->spec->group[d->group].page_bytes;
}

static void failed(struct kv_disk *d, int why)
{
    const bool first = !d->counts.error[0];
    char text[64];
    kv_disk_why(why, text, sizeof text);
    snprintf(d->counts.error, sizeof d->counts.error, "%.80s: cannot write: %.60s", d->path, text);
    d->counts.failed++;
    d->try_at = clock_now() + pause_ns;
    if (first)
        report(d->pool->sink, INGLE_REPORT_WARN, "kv-paging", d->path,
               "%s: no more pages leave memory until it can be written", text);
}

/* A place on disk for a page in memory, with its bytes.  False: there is none. */
static bool put_on_disk(struct kv_disk *d, struct kv_page *pg)
{
    const int32_t slot = take_slot(d);
    if (slot < 0)
        return false;
    const int why = kv_disk_write_page(d, slot, pg->at);
    if (why) {
        failed(d, why);
        give_slot(d, slot);
        return false;
    }
    d->counts.error[0] = 0;
    d->counts.written_bytes += d->slot_bytes;
    pg->slot = slot;
    return true;
}

bool kv_disk_spill(struct kv_pool *p, bool idle)
{
    struct kv_disk *d = p->disk;
    struct kv_page *pg = d && may_write(d) ? victim(d) : NULL;
    if (!pg || (idle && !is_idle(pg)) || (pg->slot < 0 && !put_on_disk(d, pg)))
        return false;
    stays(d, pg);
    pthread_mutex_lock(&d->moves);
    kv_page_leave(p, pg);
    pthread_mutex_unlock(&d->moves);
    return true;
}

/* A page's bytes come back to memory; its place on disk stays its own while no other page needs
 * one. */
static bool come_back(struct kv_pool *p, struct kv_page *pg)
{
    struct kv_disk *d = p->disk;
    uint8_t *at = kv_page_room(p, pg);
    if (!at)
        return false;
    if (kv_disk_read_page(d, pg->slot, at)) { /* who needs it says why it cannot be read */
        kv_page_room_free(pg, at);
        return false;
    }
    pthread_mutex_lock(&d->moves);
    kv_page_come(p, pg, at);
    pthread_mutex_unlock(&d->moves);
    kv_disk_complete(p, pg, pg->index);
    return true;
}

void kv_disk_recall(struct kv_pool *p, struct kv_page *const *page, int64_t n)
{
    struct kv_disk *d = p->disk;
    const uint64_t n_bytes = p->spec->group[d->group].page_bytes;
    int64_t away = 0;
    for (int64_t i = 0; i < n; i++)
        away += page[i] && !page[i]->at;
    int64_t most = num_div_up(away, RECALLED);
    for (int64_t i = 0;
         i < n && most > 0 && p->budget_bytes - p->used_bytes >= (SPARED + 1) * n_bytes; i++)
        if (page[i] && !page[i]->at && !page[i]->pins) {
            most--;
            if (!come_back(p, page[i]))
                return;
        }
}

bool kv_disk_place(struct kv_pool *p, struct kv_page *pg)
{
    pg->slot = may_write(p->disk) ? take_slot(p->disk) : -1;
    return pg->slot >= 0;
}

ingle_status kv_disk_fill(struct kv_pool *p, const struct kv_page *pg, const void *bytes,
                          struct err *err)
{
    struct kv_disk *d = p->disk;
    char text[64];
    const int why = kv_disk_write_page(d, pg->slot, bytes);
    return !why ? INGLE_OK
                : err_set(err, INGLE_LIMIT, "%s: cannot write page %lld of keys and values: %s",
                          d->path, (long long)pg->index, kv_disk_why(why, text, sizeof text));
}

ingle_status kv_disk_copy(struct kv_pool *p, const struct kv_page *pg, void *to, struct err *err)
{
    struct kv_disk *d = p->disk;
    char text[64];
    if (d)
        pthread_mutex_lock(&d->moves);
    const bool here = pg->at != NULL;
    if (here)
        memcpy(to, pg->at, kv_page_bytes(pg));
    if (d)
        pthread_mutex_unlock(&d->moves);
    if (here)
        return INGLE_OK;
    BUG_IF(!d); /* without one all pages are in memory */
    const int why = kv_disk_read_page(d, pg->slot, to);
    if (!why)
        return INGLE_OK;
    pthread_mutex_lock(&d->lock);
    d->failed_reads++;
    pthread_mutex_unlock(&d->lock);
    return err_set(err, INGLE_IO,
                   "%s: cannot read keys and values of page %lld (positions from %lld on): %s",
                   d->path, (long long)pg->index, (long long)pg->index * KV_PAGE,
                   kv_disk_why(why, text, sizeof text));
}
