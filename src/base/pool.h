/*
 * pool - the compute threads.
 *
 * Persistent pinned workers; the caller of pool_run() works too.  The chunks of a job belong to
 * workers beforehand, neighbours to neighbours, and more of them to faster threads where speeds
 * differ (a P core beside an E core, a core that another process uses).  Who has none left takes
 * those of others, first in its group of up to 16 that share a cache, then in its memory node, then
 * elsewhere, so a thread that another process holds up costs its share and not a stall.  Workers
 * spin for some tens of microseconds after a job and then sleep in a futex: an idle engine uses no
 * processor.  What a chunk computes must not depend on which thread runs it.
 */
#ifndef INGLE_BASE_POOL_H
#define INGLE_BASE_POOL_H

#include "base/cpu.h"
#include "base/err.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct pool;

/* chunk in [0, n_chunks); worker in [0, pool_size()), the calling thread is worker 0. */
typedef void pool_fn(void *arg, int64_t chunk, int worker);

/* n_threads >= 1 counts the caller.  pin: each worker keeps to a core of its own, and the calling
 * thread to the one that remains, between pool_enter() and pool_leave().  With more threads than
 * processors nothing is pinned and nobody spins for long.  As pool_create_with() on the
 * processors of this thread, as one node. */
MUST_CHECK ingle_status pool_create(struct pool **out, int n_threads, bool pin, struct err *err);
/* The same on the first of these processors. */
MUST_CHECK ingle_status pool_create_on(struct pool **out, int n_threads, bool pin,
                                       const struct cpu_topology *t, struct err *err);
/* The same, on processors first that no other pool of this machine is pinned to, so that several
 * engines share them out; t is reordered. */
MUST_CHECK ingle_status pool_create_with(struct pool **out, int n_threads, bool pin,
                                         struct cpu_topology *t, struct err *err);
int pool_size(const struct pool *p);

/* Memory nodes with threads of this pool, 1 if they are not pinned; workers of a node are
 * neighbours: [pool_node_first(p, k), pool_node_first(p, k + 1)), never none. */
int pool_nodes(const struct pool *p);
int pool_node_first(const struct pool *p, int node);
int pool_node_of(const struct pool *p, int worker);
int pool_node_id(const struct pool *p, int node); /* the system's number */
/* Jobs of so many chunks that have no places stay with threads of the caller's node. */
int pool_near(const struct pool *p);
/* Threads that were to be bound to a processor, and run anywhere because the system refused. */
int pool_unbound(const struct pool *p);
/* Threads that rest because fewer processors are left to the process than the pool has threads,
 * found within a second of its use.  Others run their chunks. */
int pool_taken(const struct pool *p);
/* Those that others waited for longer than they helped, because their processor was hardly theirs.
 * They are tried again after seconds. */
int pool_left_out(const struct pool *p);
/* Those of either kind, and of both. */
int pool_resting(const struct pool *p);
/* From the next job on: who is left out is decided apart for short jobs and for long ones. */
void pool_jobs_are_long(struct pool *p, bool are);
/* Other programs have a large part of the processors of all threads: a short job is done sooner by
 * one thread than by several, of which each may be the one that waits. */
bool pool_crowded(const struct pool *p);
/* What it costs to share a job: of some whose chunks are short, without the chunk.  A quarter of
 * them was faster; a busy neighbour makes others slow. */
uint64_t pool_join_ns(struct pool *p);
/* Jobs so far that threads shared: each has cost a join.  Of the thread that calls pool_run(). */
uint64_t pool_joins(const struct pool *p);
/* Chunks that a worker has run so far, its own and those of others, of jobs with two and more for
 * each worker: how they relate is how threads share the work. */
uint64_t pool_chunks(const struct pool *p, int worker);

/* Runs fn for every chunk and returns when all are done.  One thread at a time may call
 * it on a pool; fn must not.  n_chunks <= 0 does nothing. */
void pool_run(struct pool *p, int64_t n_chunks, pool_fn *fn, void *arg);
/* The same with a place for each chunk: those of node k are [from[k], from[k] + n[k]); arrays of
 * [pool_nodes()].  Workers of a node have neighbouring chunks. */
void pool_run_placed(struct pool *p, const int64_t *from, const int64_t *n, pool_fn *fn, void *arg);

/* mem_fill() of new memory of mem_big_alloc(), by all threads, each huge page by one. */
void pool_fill(struct pool *p, void *at, size_t n_bytes);

/* Around a number of pool_run() from one thread: keeps it to its core, or to another one where that
 * was taken from it, then lets it go where it could go before.  Does nothing in a pool that is not
 * pinned. */
void pool_enter(struct pool *p);
void pool_leave(struct pool *p);

/* NULL is fine. */
void pool_free(struct pool *p);

/* Between two looks at what another thread is to write. */
static inline void pool_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A thread without signals, except for those that it causes itself: blocked ones would
 * end the program without a word.  False: the system gives none. */
MUST_CHECK bool pool_thread(pthread_t *out, void *(*fn)(void *), void *arg);

#endif
