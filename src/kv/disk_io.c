/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_io - reads and writes of the file that pages go to, and the thread that writes.
 *
 * Every read and write is on one of two threads: a disk that does not answer (a dead network disk)
 * holds the thread, not who waits for it.  The lane writes pages, and reads whole ones, one at a
 * time, on memory of its own; heads.c reads blocks for steps.
 */
#define _GNU_SOURCE
#include "kv/disk_impl.h"
#include "kv/disk_parts.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "kv/store_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { REQUEST = 2 << 20 /* read or written at once */ };
/* a thread that has not ended by then is left alone */
static const uint64_t close_ns = 5000000000u;

/* ---- the file ---- */

int kv_disk_read(const struct kv_disk *d, const struct kv_unit *u, int32_t slot, int32_t n,
                 uint8_t *to, struct kv_pulse *pulse)
{
    const uint64_t at = u->first + (uint64_t)slot * u->step;
    for (size_t done = 0, all = (size_t)n * u->step; done < all;) {
        const size_t left = all - done;
        atomic_store(&pulse->since, clock_now());
        const ssize_t got =
            pread(d->read_fd, to + done, left < REQUEST ? left : REQUEST, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got ? errno : KV_FILE_ENDS;
        done += (size_t)got;
    }
    if (!d->direct)
        (void)posix_fadvise(d->read_fd, (off_t)at, (off_t)((size_t)n * u->step),
                            POSIX_FADV_DONTNEED);
    return 0;
}

/* 0 or errno. */
static int write_block(struct kv_disk *d, const struct kv_unit *u, int32_t slot,
                       const uint8_t *page)
{
    static const uint8_t zeros[KV_DISK_ALIGN];
    const uint64_t at = u->first + (uint64_t)slot * u->step;
    for (size_t done = 0; done < u->step;) {
        const bool tail = done >= u->n_bytes; /* direct reads want the whole step */
        const size_t left = tail ? u->step - done : u->n_bytes - done,
                     n = left < REQUEST ? left : REQUEST;
        atomic_store(&d->lane.pulse.since, clock_now());
        const ssize_t put =
            pwrite(d->fd, tail ? zeros : page + u->at + done, n, (off_t)(at + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put ? errno : ENOSPC;
        done += (size_t)put;
    }
    return 0;
}

static int write_page(struct kv_disk *d, int32_t slot, const uint8_t *page)
{
    struct file_limit limit;
    int why = 0;
    file_limit_hold(&limit);
    for (size_t i = 0; i < d->n_units && !why; i++) {
        const struct kv_unit *u = &d->unit[i];
        why = write_block(d, u, slot, page);
        d->sum[(size_t)slot * d->n_units + i] = kv_sum(page + u->at, u->n_bytes);
        if (!why) /* it is to be on disk soon, and not in memory once more */
            (void)sync_file_range(d->fd, (off_t)(u->first + (uint64_t)slot * u->step),
                                  (off_t)u->step, SYNC_FILE_RANGE_WRITE);
    }
    file_limit_drop(&limit);
    return why;
}

static int read_page(struct kv_disk *d, int32_t slot, uint8_t *page)
{
    struct kv_lane *l = &d->lane;
    int why = 0;
    memset(page, 0, l->page_bytes);
    for (size_t i = 0; i < d->n_units && !why; i++) {
        const struct kv_unit *u = &d->unit[i];
        why = kv_disk_read(d, u, slot, 1, l->block, &l->pulse);
        if (!why &&
            !kv_key_equal(kv_sum(l->block, u->n_bytes), d->sum[(size_t)slot * d->n_units + i]))
            why = KV_FILE_DAMAGED;
        if (!why)
            memcpy(page + u->at, l->block, u->n_bytes);
    }
    return why;
}

const char *kv_disk_why(int why, char *room, size_t n)
{
    static const char *const text[] = {[-KV_FILE_ENDS] = "the file ends",
                                       [-KV_FILE_DAMAGED] = "damaged: another checksum",
                                       [-KV_FILE_TIMEOUT] = "the disk does not answer"};
    if (why < 0)
        snprintf(room, n, "%s", text[-why]);
    else
        snprintf(room, n, "%s", strerror(why));
    return room;
}

/* ---- the lane ---- */

static void *run(void *arg)
{
    struct kv_disk *d = arg;
    struct kv_lane *l = &d->lane;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (l->state != KV_LANE_REQUESTED && !l->stop)
            pthread_cond_wait(&l->work, &l->lock);
        if (l->state != KV_LANE_REQUESTED)
            break;
        pthread_mutex_unlock(&l->lock);
        const int why =
            l->writes ? write_page(d, l->slot, l->page) : read_page(d, l->slot, l->page);
        pthread_mutex_lock(&l->lock);
        l->why = why;
        l->state = l->left ? KV_LANE_FREE : KV_LANE_DONE;
        l->left = false;
        pthread_cond_broadcast(&l->news);
    }
    pthread_mutex_unlock(&l->lock);
    (void)unlinkat(d->at_dir, d->name, 0);
    kv_disk_thread_ends(d, &d->lane.thread);
    return NULL;
}

/* The lane with its memory; false: it does not answer. */
static bool lane_take(struct kv_disk *d)
{
    struct kv_lane *l = &d->lane;
    uint64_t waited = 0;
    pthread_mutex_lock(&l->lock);
    while (l->state != KV_LANE_FREE &&
           (l->state != KV_LANE_REQUESTED || !kv_pulse_timed_out(d, &l->pulse, waited)))
        waited += kv_disk_wait(&l->news, &l->lock);
    const bool ok = l->state == KV_LANE_FREE;
    if (ok)
        l->state = KV_LANE_TAKEN;
    pthread_mutex_unlock(&l->lock);
    return ok;
}

static void lane_give(struct kv_lane *l)
{
    pthread_mutex_lock(&l->lock);
    l->state = KV_LANE_FREE;
    pthread_cond_broadcast(&l->news);
    pthread_mutex_unlock(&l->lock);
}

/* Whoever has the lane has a page written or read.  KV_FILE_TIMEOUT: it does not answer, and is not
 * the caller's any more. */
static int lane_run(struct kv_disk *d, bool writes, int32_t slot)
{
    struct kv_lane *l = &d->lane;
    uint64_t waited = 0;
    pthread_mutex_lock(&l->lock);
    l->writes = writes;
    l->slot = slot;
    l->state = KV_LANE_REQUESTED;
    atomic_store(&l->pulse.since, clock_now());
    pthread_cond_signal(&l->work);
    while (l->state != KV_LANE_DONE && !kv_pulse_timed_out(d, &l->pulse, waited))
        waited += kv_disk_wait(&l->news, &l->lock);
    l->left = l->state != KV_LANE_DONE;
    const int why = l->left ? KV_FILE_TIMEOUT : l->why;
    pthread_mutex_unlock(&l->lock);
    return why;
}

int kv_disk_write_page(struct kv_disk *d, int32_t slot, const void *bytes)
{
    if (!lane_take(d))
        return KV_FILE_TIMEOUT;
    memcpy(d->lane.page, bytes, d->lane.page_bytes);
    const int why = lane_run(d, true, slot);
    if (why != KV_FILE_TIMEOUT)
        lane_give(&d->lane);
    return why;
}

int kv_disk_read_page(struct kv_disk *d, int32_t slot, void *to)
{
    if (!lane_take(d))
        return KV_FILE_TIMEOUT;
    const int why = lane_run(d, false, slot);
    if (!why)
        memcpy(to, d->lane.page, d->lane.page_bytes);
    if (why != KV_FILE_TIMEOUT)
        lane_give(&d->lane);
    return why;
}

bool kv_disk_lane_answers(struct kv_disk *d)
{
    struct kv_lane *l = &d->lane;
    pthread_mutex_lock(&l->lock);
    const bool late = l->state == KV_LANE_REQUESTED && kv_pulse_timed_out(d, &l->pulse, 0);
    pthread_mutex_unlock(&l->lock);
    return !late;
}

/* ---- waiting ---- */

bool kv_pulse_timed_out(const struct kv_disk *d, struct kv_pulse *p, uint64_t waited_ns)
{
    const uint64_t since = atomic_load(&p->since), now = clock_now();
    if (waited_ns >= d->stall_ns && now > since && now - since >= d->stall_ns)
        atomic_store(&p->given_up, since);
    return since && atomic_load(&p->given_up) == since;
}

uint64_t kv_disk_wait(pthread_cond_t *c, pthread_mutex_t *lock)
{
    static const uint64_t piece = 50000000u;
    const uint64_t began = clock_now();
    const struct timespec until = clock_at(began + piece);
    (void)pthread_cond_timedwait(c, lock, &until);
    const uint64_t took = clock_now() - began;
    return took < piece ? took : piece;
}

/* ---- the threads' life ---- */

ingle_status kv_disk_start(struct kv_disk *d, struct kv_thread *t, void *(*fn)(void *),
                           struct err *err)
{
    pthread_mutex_lock(&d->lock);
    const bool ok = pthread_create(&t->id, NULL, fn, d) == 0;
    t->runs = ok;
    pthread_mutex_unlock(&d->lock);
    return ok ? INGLE_OK
              : err_set(err, INGLE_NOMEM, "the system has no thread for keys and values on disk");
}

ingle_status kv_disk_lane_open(struct kv_disk *d, struct err *err)
{
    struct kv_lane *l = &d->lane;
    l->page_bytes = d->pool->spec->group[d->group].page_bytes;
    for (size_t i = 0; i < d->n_units; i++)
        l->block_bytes = d->unit[i].step > l->block_bytes ? d->unit[i].step : l->block_bytes;
    l->page = mem_big_alloc(l->page_bytes);
    l->block = mem_big_alloc(l->block_bytes);
    if (!l->page || !l->block)
        return err_set(err, INGLE_NOMEM, "no %zu bytes to write keys and values from",
                       l->page_bytes);
    return kv_disk_start(d, &l->thread, run, err);
}

static void destroy(struct kv_disk *d)
{
    kv_heads_free(d);
    if (d->fd >= 0)
        close(d->fd);
    if (d->read_fd >= 0)
        close(d->read_fd);
    if (d->at_dir >= 0)
        close(d->at_dir);
    pthread_mutex_destroy(&d->moves);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->lane.lock);
    pthread_cond_destroy(&d->lane.work);
    pthread_cond_destroy(&d->lane.news);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->done);
    mem_big_free(d->lane.page, d->lane.page_bytes);
    mem_big_free(d->lane.block, d->lane.block_bytes);
    mem_free(d->unit);
    mem_free(d->taken);
    mem_free(d->turn);
    mem_free(d->sum);
    mem_free(d->leaves);
    mem_free(d->path);
    mem_free(d->dir);
    mem_free(d);
}

void kv_disk_thread_ends(struct kv_disk *d, struct kv_thread *t)
{
    pthread_mutex_lock(&d->lock);
    t->ended = true;
    const bool last = d->closed && (!d->thread.runs || d->thread.ended) &&
                      (!d->lane.thread.runs || d->lane.thread.ended);
    pthread_cond_broadcast(&d->done);
    pthread_mutex_unlock(&d->lock);
    if (last)
        destroy(d);
}

/* With the lock: a thread that has ended, or there is none. */
static bool is_done(const struct kv_thread *t)
{
    return !t->runs || t->ended;
}

bool kv_disk_end(struct kv_disk *d)
{
    const uint64_t until = clock_now() + (d->stall_ns < close_ns ? d->stall_ns : close_ns);
    pthread_mutex_lock(&d->lane.lock);
    d->lane.stop = true;
    pthread_cond_signal(&d->lane.work);
    pthread_mutex_unlock(&d->lane.lock);
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_signal(&d->work);
    while ((!is_done(&d->thread) || !is_done(&d->lane.thread)) && clock_now() < until)
        (void)kv_disk_wait(&d->done, &d->lock);
    struct kv_thread *const all[] = {&d->thread, &d->lane.thread};
    bool all_done = true;
    for (int i = 0; i < 2; i++) {
        all_done &= is_done(all[i]);
        if (all[i]->runs && !all[i]->ended)
            pthread_detach(all[i]->id);
        else if (all[i]->runs)
            pthread_join(all[i]->id, NULL);
    }
    d->closed = true;
    pthread_mutex_unlock(&d->lock);
    if (all_done)
        destroy(d);
    return all_done;
}
