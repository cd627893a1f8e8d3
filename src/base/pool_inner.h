/*
 * pool_inner - inside base/pool: the tree that jobs go down and their ends come up.
 *
 * Leaves of the tree are lanes, a worker's own chunks.  A knot has at most KNOT_FLAT children:
 * lanes of neighbours that share a cache, or knots.  The knots of a memory node end in one top.
 * The caller posts a job at the tops; the first worker of a knot copies it from the knot above, so
 * no more than KNOT_FLAT threads read or write a line.  They do so one after the other: where a
 * node has more lanes than that, knots of KNOT_FAN and one level more are a shorter way.
 */
#ifndef INGLE_BASE_POOL_INNER_H
#define INGLE_BASE_POOL_INNER_H

#include "base/pool.h"

#include "base/attr.h"
#include <sched.h>
#include <stdatomic.h>

enum {
    POOL_LINE = 64,           /* bytes that two processors fight over */
    KNOT_MOST = 16,           /* bits of a mask of children */
    KNOT_FLAT = 8,            /* lanes of a node that one knot has, ... */
    KNOT_FAN = 4,             /* and children of a knot where there are more */
    LANE_BITS = 12,           /* of each count in a lane's word */
    LANE_MOST = (1 << LANE_BITS) - 1,
    POOL_LEVELS = 9           /* KNOT_FAN^6 threads, and some for caches of one lane */
};

/* Called before every read-modify-write of a shared line, in the build of
 * tests/bench/pool_lines.c. */
#ifdef POOL_COUNT
void pool_count(const void *at);
#else
#define pool_count(at) ((void)(at))
#endif

/* What a worker needs to know of a job; from and n are those of one memory node. */
struct pool_job {
    uint64_t number; /* from 1 on; of 40 bits, which last for years */
    pool_fn *fn;
    void *arg;
    int64_t from;    /* the node's first chunk */
    int64_t n;       /* its chunks */
    uint64_t shares; /* 0: lanes have equal parts; else pool_shares.of */
};

/*
 * The parts of a node's chunks that its lanes have, where their threads differ in speed.  The
 * caller rewrites them between two jobs.  A thread that was held up may read meanwhile: it compares
 * `of` with the job's afterwards, and where they differ, the job is over.
 */
enum { SHARE_ONE = 1 << 16, SHARE_JOBS = 32 };
struct pool_shares {
    _Atomic uint64_t of;   /* the first job with these; 0 while they change */
    _Atomic uint32_t *end; /* [n_threads]: where a lane's part ends, in 1 / SHARE_ONE of its node */
};

struct lane {
    /* Sync: job number << 24 | unclaimed << 12 | unfinished.  Whoever claims the first chunk of a
     * job, which may be a thief, opens the lane for it; a swap fails when the job is over. */
    ATTR_ALIGNED(POOL_LINE) _Atomic uint64_t word;
    /* Sync: written by the lane's own thread: chunks that it ran, of jobs that have several for
     * each lane.  How they relate is how fast threads are: who is faster helps more. */
    _Atomic uint64_t ran;
    /* Sync: written by the lane's own thread: the job that it works on, or 0. */
    ATTR_ALIGNED(POOL_LINE) _Atomic uint64_t inside;
};

struct knot {
    /* Sync: the post, written by one thread.  number is 0 while the rest changes. */
    ATTR_ALIGNED(POOL_LINE) _Atomic uint64_t number;
    _Atomic(pool_fn *) fn;
    _Atomic(void *) arg;
    _Atomic int64_t from, n;
    _Atomic uint64_t shares;
    _Atomic uint32_t signal;   /* futex of those who sleep here */
    _Atomic uint32_t n_asleep;
    /* Sync: job number << 16 | children that are not finished; opened as a lane is. */
    ATTR_ALIGNED(POOL_LINE) _Atomic uint64_t left;
    ATTR_ALIGNED(POOL_LINE) int parent; /* -1: a top.  From here on fixed */
    int bit;                            /* in the parent's mask */
    int lane, n_lanes;                  /* all that hang below */
    int child, n_children;              /* lanes of a leaf, else knots */
    bool leaf;
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index, node;
    int leaf;    /* its knot */
    int waits_on;  /* the knot whose posts it waits for: above those that it begins */
    unsigned turn; /* of its attempts to help others */
    uint64_t spin_ns; /* how long it waits awake: learn_spin() */
    long taken;       /* how often its processor was taken away */
    int wary;         /* so many waits more are not to become longer */
    int cpu, at;      /* its processor, -1: any; and the one that it is bound to instead */
    bool roams;            /* pool_cpus.c */
    bool shared;           /* others had a large part of its processor, when it looked last: */
    uint64_t next_check, ran_ns, waited_ns;
    int times;      /* file with the times of thread times_of, which is 0: none; < 0: refused */
    pid_t times_of;
    _Atomic bool rests;     /* Sync: by itself, as its processor was taken (pool_cpus.c) */
    _Atomic bool displaced; /* Sync: its processor is the caller's now */
    _Atomic bool left_out;  /* Sync: by the caller (pool_held.c) */
};

/* It takes no part in jobs, except for passing them on. */
static inline bool pool_is_out(const struct worker *w)
{
    return atomic_load_explicit(&w->rests, memory_order_relaxed) ||
           atomic_load_explicit(&w->left_out, memory_order_relaxed);
}

/* What the caller knows of a worker that it waits for (pool_held.c); sums decay. */
struct pool_held {
    float waited_ns, worked_ns; /* by the caller for it; by it, in the caller's time for a chunk */
    float waits;                /* how many times SHARE_JOBS jobs had a wait */
    float own_ns, in_ns, in_ran; /* the caller's work meanwhile; of jobs that are counted, chunks */
    float out_ns, out_ran;       /* the same while the worker was out */
    float before, ratio;         /* the caller's time for a chunk before that; without to with it */
    uint64_t ran;                /* lane.ran at the last look */
    uint64_t now_ns;             /* waited since then */
    uint64_t in_at, until, try_at; /* let in; out until; not tried before */
    int tries, n_checks, cold;     /* looks: since it is out, or in again */
    bool seen;                     /* in the job that the caller waits for */
    bool out, tried;
};

struct pool_cpus { cpu_set_t of[CPU_IDS_MAX / (8 * sizeof(cpu_set_t))]; };

struct pool {
    /* Sync: memory nodes that are not finished, and the last job that is; futex of the caller */
    ATTR_ALIGNED(POOL_LINE) _Atomic uint64_t left;
    _Atomic uint32_t done;
    _Atomic uint32_t caller_sleeps;
    ATTR_ALIGNED(POOL_LINE) _Atomic bool stop;
    _Atomic int n_resting, n_shared, n_left_out;
    _Atomic uint32_t rest; /* futex of those that rest */

    ATTR_ALIGNED(POOL_LINE) uint64_t number; /* of the last job; the caller's */
    uint64_t n_tries;                        /* of pool_join_ns() */
    uint64_t in_use;                         /* the next job's pool_job.shares */
    struct pool_shares shares;
    uint64_t *ran_before;                    /* [n_threads]: lane.ran when shares were learned */
    uint64_t worked_ns, counted_ns, ran;     /* the caller's since checked_at */
    uint64_t checked_at;
    struct pool_held *held[2];               /* [n_threads]: of short jobs, of long ones */
    int kind;                                /* which jobs there are now */
    float *speed;                            /* [n_threads]: 1 is the mean of the node */
    int n_threads;                           /* from here on fixed after pool_create() */
    int n_started; /* workers that run: n_threads - 1 except in a failed create */
    uint64_t spin_ns;
    int n_unbound; /* see pool_unbound() */
    size_t n_bytes;
    int caller_cpu; /* -1: not pinned */
    int *claim;     /* [n_threads], or NULL: see prefer_free() */
    bool entered;   /* by the one thread that calls; came_from is its mask */
    int n_nodes, node_id[CPU_NODES_MAX], node_first[CPU_NODES_MAX + 1]; /* workers of a node */
    int top[CPU_NODES_MAX], leaf_first[CPU_NODES_MAX + 1];              /* knots of a node */
    int n_near; /* lanes of the caller and its neighbours, who do small jobs by themselves */
    struct pool_cpus came_from;
    int victim;    /* the worker whose processor the caller has, or 0; the caller's */
    int n_allowed; /* processors that the process had at the start */
    struct knot *knot; /* [n_knots] */
    int n_knots;
    struct lane *lane;     /* [n_threads] */
    struct worker *worker; /* [n_threads]; [0] is the caller */
};

enum {
    POOL_SPIN_NS = 50000,        /* longer than the gap between two jobs of a step */
    POOL_MOST_SPIN_NS = 1000000, /* than most gaps between two steps, where nobody else waits */
    POOL_SPIN_CROWDED_NS = 2000, /* with fewer processors than threads, someone else needs this */
    POOL_CHECK_NS = 1000000000,  /* between two looks at the processors that are left */
    POOL_HELD_NS = 20000,        /* a longer wait for a job is for a thread that stands still */
};

/* Knots over the lanes of all nodes; cache [n_threads]: lanes with the same number share one.
 * Returns their number; knot NULL: only counts. */
int pool_build_tree(struct pool *p, struct knot *knot, const int *cache);
/* A worker's life, until p->stop. */
void *pool_worker_main(void *worker);
void pool_stop_workers(struct pool *p);
/* Those that rest or are left out look again whether they still do. */
void pool_wake_rest(struct pool *p);
/* pool_cpus.c: before the workers start; and by a worker that waits. */
void pool_cpus_init(struct pool *p);
void pool_cpus_close(struct pool *p); /* after the workers */
void pool_cpus_check(struct pool *p, struct worker *w);
/* By the caller, between two jobs: parts by speed from now on. */
void pool_learn_shares(struct pool *p);
/* pool_held.c; by the caller, while it waits for a job for long: who works on it; then how long it
 * was; and every SHARE_JOBS jobs: who is left out from now on. */
void pool_held_check(struct pool *p, uint64_t job);
void pool_held_waited(struct pool *p, uint64_t ns);
void pool_held_judge(struct pool *p);
void pool_held_forget(struct pool *p); /* what was counted for jobs of this kind */

#endif
