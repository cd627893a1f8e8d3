/* SPDX-License-Identifier: Apache-2.0 */
/*
 * masks - the thread that finds out which tokens fit, for answers whose grammar makes that take
 * long.
 *
 * A scheduler has one.  Answers take turns, a slice of steps each.  What a slice has found out
 * stays with the answer's rule, so the next one goes on from there.
 */
#define _GNU_SOURCE /* pthread_setname_np */
#include "api/words.h"

#include "base/mem.h"
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SLICE_STEPS = 1 << 21 };

enum job_state { JOB_NONE, JOB_WAITS, JOB_DONE };

struct job {
    enum job_state state;     /* Sync: lock */
    /* borrowed while it waits: then the thread's; NULL: tokens are free */
    struct engine_rule *rule;
    ingle_status status;
    struct err err;
};

struct engine_masks {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, off; /* for the thread; it has left a job */
    struct job *job;          /* [n] */
    size_t n, last;           /* last: whose turn it was.  Sync: lock */
    int64_t running;          /* Sync: lock; -1: none */
    bool closing;             /* Sync: lock */
    atomic_bool stop;         /* Sync: atomic; the job that runs is to be left */
    void (*news)(void *arg);  /* called by the thread */
    void *arg;
};

static bool asks(void *arg)
{
    struct engine_masks *m = arg;
    return atomic_load(&m->stop);
}

/* The next job after the last one that waits, or -1.  Sync: lock */
static int64_t next_job(const struct engine_masks *m)
{
    for (size_t i = 1; i <= m->n; i++)
        if (m->job[(m->last + i) % m->n].state == JOB_WAITS)
            return (int64_t)((m->last + i) % m->n);
    return -1;
}

/* One slice; with the lock held, which it gives up meanwhile.  True: the job is done. */
static bool run_slice(struct engine_masks *m, size_t i)
{
    const struct grammar_pause pause = {.max_steps = SLICE_STEPS, .stop = asks, .arg = m};
    const uint64_t *bits;
    struct job *job = &m->job[i];
    struct err err = {0};
    m->last = i;
    m->running = (int64_t)i;
    pthread_mutex_unlock(&m->lock);
    const ingle_status st = job->rule ? engine_rule_mask(job->rule, &pause, &bits, &err) : INGLE_OK;
    pthread_mutex_lock(&m->lock);
    m->running = -1;
    pthread_cond_broadcast(&m->off);
    if (st == INGLE_CANCEL || job->state != JOB_WAITS)
        return false;
    job->state = JOB_DONE;
    job->status = st;
    job->err = err;
    return true;
}

static void *thread_main(void *arg)
{
    struct engine_masks *m = arg;
    pthread_mutex_lock(&m->lock);
    while (!m->closing) {
        const int64_t i = next_job(m);
        if (i < 0) {
            pthread_cond_wait(&m->wake, &m->lock);
        } else if (run_slice(m, (size_t)i)) {
            pthread_mutex_unlock(&m->lock);
            m->news(m->arg);
            pthread_mutex_lock(&m->lock);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

ingle_status engine_masks_open(struct engine_masks **out, size_t n, void (*news)(void *arg),
                               void *arg, struct err *err)
{
    struct engine_masks *m = mem_zalloc(sizeof *m);
    struct job *job = mem_calloc(n, sizeof *job);
    if (!m || !job) {
        mem_free(m);
        mem_free(job);
        return err_set(err, INGLE_NOMEM, "no memory for the masks of %zu answers", n);
    }
    *m = (struct engine_masks){.job = job, .n = n, .running = -1, .news = news, .arg = arg};
    atomic_init(&m->stop, false);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->wake, NULL);
    pthread_cond_init(&m->off, NULL);
    if (!pool_thread(&m->thread, thread_main, m)) {
        mem_free(job);
        mem_free(m);
        return err_set(err, INGLE_NOMEM, "the system gives no thread for masks");
    }
    pthread_setname_np(m->thread, "ingle-masks");
    *out = m;
    return INGLE_OK;
}

void engine_masks_close(struct engine_masks *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->closing = true;
    atomic_store(&m->stop, true);
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->wake);
    pthread_cond_destroy(&m->off);
    mem_free(m->job);
    mem_free(m);
}

void engine_masks_add(struct engine_masks *m, size_t i, struct engine_rule *rule)
{
    pthread_mutex_lock(&m->lock);
    m->job[i] = (struct job){.state = JOB_WAITS, .rule = rule};
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

bool engine_masks_take(struct engine_masks *m, size_t i, ingle_status *st, struct err *err)
{
    pthread_mutex_lock(&m->lock);
    const bool done = m->job[i].state == JOB_DONE;
    if (done) {
        m->job[i].state = JOB_NONE;
        *st = m->job[i].status;
        *err = m->job[i].err;
    }
    pthread_mutex_unlock(&m->lock);
    return done;
}

void engine_masks_drop(struct engine_masks *m, size_t i)
{
    pthread_mutex_lock(&m->lock);
    m->job[i].state = JOB_NONE;
    while (m->running == (int64_t)i) {
        atomic_store(&m->stop, true);
        pthread_cond_wait(&m->off, &m->lock);
        atomic_store(&m->stop, false);
    }
    pthread_mutex_unlock(&m->lock);
}
