/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a job is run.  Its chunks belong to lanes beforehand.  A worker claims those of its own lane
 * by a swap of the lane's word, which nobody else touches meanwhile; who has none left takes chunks
 * of its knot's other lanes, then of other knots and nodes.  The last chunk of a lane clears a bit
 * in its knot, the last bit of a knot one in the knot above: no line is written more than KNOT_FLAT
 * times a job.
 *
 * Nobody waits for a thread, only for chunks: a lane is opened by whoever claims its first chunk,
 * and a thread that was held up between reading a job and claiming from it fails harmlessly when
 * that job is over, because then the lane's word names that job with no chunk, or a later one.
 */
#define _GNU_SOURCE
#include "base/bug.h"
#include "base/clock.h"
#include "base/fp.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool_inner.h"
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    PAUSES = 32, /* between two looks at the clock */
    WARY = 1000, /* waits after a processor was taken away */
    PROBES = 2,  /* other knots, and lanes of each, that one attempt to help looks at */
    NUMBER_AT = 2 * LANE_BITS
};
#define UNFINISHED ((uint64_t)LANE_MOST)

static void futex_sleep(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

/* At most that long. */
static void futex_sleep_for(_Atomic uint32_t *word, uint32_t seen, int64_t ns)
{
    const struct timespec t = {ns / 1000000000, ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* ---- the tree ---- */

static int lanes_of(const struct pool *p, int node)
{
    return p->node_first[node + 1] - p->node_first[node];
}

/* Knots over n children from `first` on, at most `fan` each and with one cache each if they are
 * lanes.  Returns the number of knots after them. */
static int add_level(struct knot *knot, int at, int fan, bool leaf, int first, int n,
                     const int *cache)
{
    for (int i = 0; i < n;) {
        int k = 1;
        while (i + k < n && k < fan &&
               (!leaf || !cache || cache[first + i + k] == cache[first + i]))
            k++;
        if (knot) {
            struct knot *t = &knot[at];
            *t = (struct knot){.parent = -1, .leaf = leaf, .child = first + i, .n_children = k};
            t->lane = leaf ? first + i : knot[first + i].lane;
            for (int c = 0; c < k; c++) {
                t->n_lanes += leaf ? 1 : knot[first + i + c].n_lanes;
                if (!leaf) {
                    knot[first + i + c].parent = at;
                    knot[first + i + c].bit = c;
                }
            }
        }
        at++;
        i += k;
    }
    return at;
}

static void place_workers(struct pool *p, struct knot *knot, int node)
{
    for (int k = p->leaf_first[node]; k < p->leaf_first[node + 1]; k++)
        for (int i = 0; i < knot[k].n_lanes; i++) {
            struct worker *w = &p->worker[knot[k].lane + i];
            w->node = node;
            w->leaf = w->waits_on = k;
            while (knot[w->waits_on].lane == w->index && knot[w->waits_on].parent >= 0)
                w->waits_on = knot[w->waits_on].parent;
        }
}

static int fan_of(const struct pool *p, int node)
{
    return lanes_of(p, node) > KNOT_FLAT ? KNOT_FAN : KNOT_FLAT;
}

/* The largest knot of the caller's of which a mask of lanes could be made. */
static int near_lanes(const struct pool *p, const struct knot *knot)
{
    int k = p->worker[0].leaf;
    while (knot[k].parent >= 0 && knot[knot[k].parent].n_lanes <= KNOT_MOST)
        k = knot[k].parent;
    return knot[k].n_lanes;
}

int pool_build_tree(struct pool *p, struct knot *knot, const int *cache)
{
    int at = 0;
    for (int node = 0; node < p->n_nodes; node++) /* the leaves of all nodes come first */
        at = add_level(knot, p->leaf_first[node] = at, fan_of(p, node), true, p->node_first[node],
                       lanes_of(p, node), cache);
    p->leaf_first[p->n_nodes] = at;
    for (int node = 0; node < p->n_nodes; node++) {
        int first = p->leaf_first[node], n = p->leaf_first[node + 1] - first;
        while (n > 1) {
            const int next = add_level(knot, at, fan_of(p, node), false, first, n, NULL);
            first = at;
            n = next - at;
            at = next;
        }
        p->top[node] = first;
        if (knot)
            place_workers(p, knot, node);
    }
    if (knot)
        p->n_near = near_lanes(p, knot);
    return at;
}

/* Chunks of a job before the node's lane i: with few chunks the first lanes have one each, so that
 * few knots take part. */
static int64_t edge(const struct pool *p, int node, const struct pool_job *job, int64_t i)
{
    const int64_t lanes = lanes_of(p, node);
    if (job->n <= lanes)
        return num_min(i, job->n);
    if (!job->shares)
        return job->n * i / lanes;
    if (!i)
        return 0;
    const uint32_t end =
        atomic_load_explicit(&p->shares.end[p->node_first[node] + i - 1], memory_order_acquire);
    return (job->n * end + SHARE_ONE / 2) / SHARE_ONE;
}

/* Whether the edges that were just read were those of the job; else the job is over. */
static bool stands(const struct pool *p, const struct pool_job *job)
{
    return !job->shares ||
           atomic_load_explicit(&p->shares.of, memory_order_relaxed) == job->shares;
}

/* The children of a knot that have chunks of a job; 0 when it is over and nobody knows. */
static uint64_t busy_children(const struct pool *p, const struct knot *t, int node,
                              const struct pool_job *job)
{
    const int base = p->node_first[node];
    uint64_t mask = 0;
    for (int c = 0; c < t->n_children; c++) {
        const struct knot *below = t->leaf ? NULL : &p->knot[t->child + c];
        const int a = (below ? below->lane : t->child + c) - base,
                  b = a + (below ? below->n_lanes : 1);
        mask |= (uint64_t)(edge(p, node, job, b) > edge(p, node, job, a)) << c;
    }
    return stands(p, job) ? mask : 0;
}

/* ---- posts ---- */

static void post(struct knot *t, const struct pool_job *job)
{
    atomic_store_explicit(&t->number, 0, memory_order_relaxed);
    /* released: who sees one of these sees the 0, too */
    atomic_store_explicit(&t->fn, job->fn, memory_order_release);
    atomic_store_explicit(&t->arg, job->arg, memory_order_release);
    atomic_store_explicit(&t->from, job->from, memory_order_release);
    atomic_store_explicit(&t->n, job->n, memory_order_release);
    atomic_store_explicit(&t->shares, job->shares, memory_order_release);
    atomic_store(&t->number, job->number);
    if (atomic_load(&t->n_asleep)) {
        atomic_fetch_add(&t->signal, 1);
        futex_wake(&t->signal, job->n < INT_MAX ? (int)job->n : INT_MAX);
    }
}

/* Whether a knot's post is of a job after `seen`; then it is copied. */
static bool take_job(const struct knot *t, uint64_t seen, struct pool_job *out)
{
    const uint64_t number = atomic_load_explicit(&t->number, memory_order_acquire);
    if (number <= seen)
        return false;
    const struct pool_job job = {number, atomic_load_explicit(&t->fn, memory_order_acquire),
                                 atomic_load_explicit(&t->arg, memory_order_acquire),
                                 atomic_load_explicit(&t->from, memory_order_acquire),
                                 atomic_load_explicit(&t->n, memory_order_acquire),
                                 atomic_load_explicit(&t->shares, memory_order_acquire)};
    if (atomic_load_explicit(&t->number, memory_order_relaxed) != number)
        return false;
    *out = job;
    return true;
}

/* From the knot where a worker heard of a job down to its own, as far as it begins them. */
static void pass_on(struct pool *p, const struct worker *w, const struct pool_job *job)
{
    int path[POOL_LEVELS], n = 0;
    for (int k = w->leaf; k != w->waits_on; k = p->knot[k].parent)
        path[n++] = k;
    while (n--)
        if (busy_children(p, &p->knot[path[n]], w->node, job))
            post(&p->knot[path[n]], job);
}

/* ---- chunks ---- */

/* Claims a chunk of a lane that has n of the job; *k: which of them.  begun: not the first one. */
static bool claim(struct lane *l, uint64_t job, uint64_t n, bool begun, uint64_t *k)
{
    uint64_t word = atomic_load_explicit(&l->word, memory_order_acquire), next;
    do {
        const uint64_t of = word >> NUMBER_AT, unclaimed = word >> LANE_BITS & UNFINISHED;
        if (of == job ? !unclaimed : of > job || !n || begun)
            return false;
        *k = of == job ? n - unclaimed : 0;
        next = of == job ? word - (1 << LANE_BITS) : job << NUMBER_AT | (n - 1) << LANE_BITS | n;
        pool_count(l);
    } while (!atomic_compare_exchange_weak_explicit(&l->word, &word, next, memory_order_acq_rel,
                                                    memory_order_acquire));
    return true;
}

/* Takes a child out of a knot's mask; true: it was the last one. */
static bool clear_bit(struct knot *t, uint64_t job, uint64_t all, int bit)
{
    uint64_t word = atomic_load_explicit(&t->left, memory_order_acquire), mask;
    do {
        mask = (word >> KNOT_MOST == job ? word & ((1 << KNOT_MOST) - 1) : all) & ~(1ull << bit);
        pool_count(&t->left);
    } while (!atomic_compare_exchange_weak_explicit(&t->left, &word, job << KNOT_MOST | mask,
                                                    memory_order_acq_rel, memory_order_acquire));
    return !mask;
}

/* n chunks of a lane are finished. */
static void finish(struct pool *p, int lane, int node, const struct pool_job *job, uint64_t n)
{
    pool_count(&p->lane[lane]);
    const uint64_t word = atomic_fetch_sub_explicit(&p->lane[lane].word, n, memory_order_acq_rel);
    if ((word & UNFINISHED) != n)
        return;
    int at = p->worker[lane].leaf, bit = lane - p->knot[at].lane;
    for (struct knot *t; at >= 0; bit = t->bit, at = t->parent) {
        t = &p->knot[at];
        if (!clear_bit(t, job->number, busy_children(p, t, node, job), bit))
            return;
    }
    pool_count(&p->left);
    if (atomic_fetch_and(&p->left, ~(1ull << node)) != 1ull << node)
        return;
    atomic_store(&p->done, (uint32_t)job->number);
    if (atomic_load(&p->caller_sleeps))
        futex_wake(&p->done, 1);
}

/* Whether lane.ran has a job's chunks. */
static bool is_counted(const struct pool *p, int node, const struct pool_job *job)
{
    return job->n >= 2 * lanes_of(p, node);
}

/* Runs chunks of a lane until none is unclaimed; whether there was one. */
static bool run_lane(struct pool *p, int lane, int node, const struct pool_job *job, int worker,
                     bool begun)
{
    const int i = lane - p->node_first[node];
    const int64_t first = edge(p, node, job, i);
    const uint64_t n = (uint64_t)(edge(p, node, job, i + 1) - first);
    uint64_t k, n_done = 0;
    if (!stands(p, job))
        return false;
    while (claim(&p->lane[lane], job->number, n, begun, &k)) {
        job->fn(job->arg, job->from + first + (int64_t)k, worker);
        n_done++;
    }
    if (!n_done)
        return false;
    if (is_counted(p, node, job)) {
        _Atomic uint64_t *ran = &p->lane[worker].ran;
        atomic_store_explicit(ran, atomic_load_explicit(ran, memory_order_relaxed) + n_done,
                              memory_order_relaxed);
    }
    finish(p, lane, node, job, n_done);
    return true;
}

/* Chunks of others below a leaf: of all its lanes, or of a few; begun: of such lanes only. */
static bool help_leaf(struct pool *p, int leaf, int node, const struct pool_job *job, int worker,
                      int n_lanes, bool begun)
{
    const struct knot *t = &p->knot[leaf];
    const uint64_t word = atomic_load_explicit(&t->left, memory_order_acquire),
                   of = word >> KNOT_MOST;
    if (of > job->number)
        return false;
    const uint64_t mask = of == job->number ? word : busy_children(p, t, node, job);
    const int start = (worker + (int)(p->worker[worker].turn & INT16_MAX)) % t->n_lanes;
    bool any = false;
    for (int i = 0; i < t->n_lanes && n_lanes; i++) {
        const int lane = (start + i) % t->n_lanes;
        if (mask >> lane & 1) {
            any |= run_lane(p, t->lane + lane, node, job, worker, begun);
            n_lanes--;
        }
    }
    return any;
}

/* A few knots of a node, other ones each time; own: not this one. */
static bool help_node(struct pool *p, int node, const struct pool_job *job, int worker, int own,
                      bool begun)
{
    const int first = p->leaf_first[node], n = p->leaf_first[node + 1] - first;
    const int start = (int)((unsigned)worker + p->worker[worker].turn) % n;
    bool any = false;
    for (int i = 0; i < n && i < PROBES; i++) {
        const int leaf = first + (start + i) % n;
        if (leaf != own)
            any |= help_leaf(p, leaf, node, job, worker, PROBES, begun);
    }
    return any;
}

/* Of the leaves beside one, below the same knot. */
static bool help_neighbours(struct pool *p, int leaf, int node, const struct pool_job *job,
                            int worker)
{
    const int up = p->knot[leaf].parent;
    bool any = false;
    for (int i = 0; up >= 0 && i < p->knot[up].n_children; i++)
        if (p->knot[up].child + i != leaf)
            any |= help_leaf(p, p->knot[up].child + i, node, job, worker, KNOT_MOST, false);
    return any;
}

/* What others have left of a job, as long as there is some: of the own knot, the own node, and
 * other nodes.  Far chunks are in other memory: right after the own ones a lane there is left to
 * its thread, which may be about to begin it.  Whether there was some. */
static bool help(struct pool *p, const struct pool_job *job, int worker, bool right_after)
{
    struct worker *w = &p->worker[worker];
    bool any = true, helped = false;
    while (any) {
        w->turn++;
        any = help_leaf(p, w->leaf, w->node, job, worker, KNOT_MOST, false);
        if (!any && p->n_knots > 1)
            any = help_neighbours(p, w->leaf, w->node, job, worker) ||
                  help_node(p, w->node, job, worker, w->leaf, false);
        for (int k = 1; k < p->n_nodes && !any; k++) {
            const int node = (w->node + k) % p->n_nodes;
            struct pool_job theirs;
            if (take_job(&p->knot[p->top[node]], job->number - 1, &theirs) &&
                theirs.number == job->number && theirs.n)
                any = help_node(p, node, &theirs, worker, -1, right_after);
        }
        helped |= any;
    }
    return helped;
}

static void work(struct pool *p, const struct pool_job *job, int worker)
{
    const struct worker *w = &p->worker[worker];
    atomic_store_explicit(&p->lane[worker].inside, job->number, memory_order_relaxed);
    (void)run_lane(p, worker, w->node, job, worker, false);
    (void)help(p, job, worker, true);
    atomic_store_explicit(&p->lane[worker].inside, 0, memory_order_relaxed);
}

/* ---- workers ---- */

/* News at its own post, or further up if whoever should have passed them on is held up. */
static bool take_above(const struct pool *p, const struct worker *w, uint64_t seen,
                       struct pool_job *job)
{
    for (int k = w->waits_on; k >= 0; k = p->knot[k].parent)
        if (take_job(&p->knot[k], seen, job))
            return true;
    return false;
}

/* True when there is a new job, or the end. */
static bool spin_for_work(struct pool *p, struct worker *w, struct pool_job *job)
{
    const struct pool_job last = *job;
    uint64_t now = clock_now();
    const uint64_t end = now + w->spin_ns;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if (take_job(&p->knot[w->waits_on], last.number, job))
                return true;
            pool_pause();
        }
        if (atomic_load_explicit(&p->stop, memory_order_acquire) ||
            take_above(p, w, last.number, job))
            return true;
        if (last.n) /* a thread that was held up may have left some */
            (void)help(p, &last, w->index, false);
        now = clock_now();
        if (now >= w->next_check)
            pool_cpus_check(p, w);
    } while (now < end && !atomic_load_explicit(&w->rests, memory_order_relaxed));
    if (p->spin_ns == POOL_SPIN_CROWDED_NS)
        sched_yield();
    return take_job(&p->knot[w->waits_on], last.number, job);
}

static void sleep_for_work(struct pool *p, const struct worker *w, uint64_t seen)
{
    struct knot *t = &p->knot[w->waits_on];
    atomic_fetch_add(&t->n_asleep, 1);
    const uint32_t signal = atomic_load(&t->signal);
    const uint64_t number = atomic_load(&t->number);
    if (number && number <= seen && !atomic_load(&p->stop))
        futex_sleep(&t->signal, signal);
    atomic_fetch_sub(&t->n_asleep, 1);
}

/* Until its processor is given back, or it is let in. */
static void rest(struct pool *p, struct worker *w)
{
    for (;;) {
        const uint32_t word = atomic_load(&p->rest);
        if (!pool_is_out(w) || atomic_load(&p->stop))
            return;
        futex_sleep_for(&p->rest, word, POOL_CHECK_NS);
        pool_cpus_check(p, w);
    }
}

/* After a wait that was longer than gaps between jobs: the next one is as long as this was, if it
 * was a gap between steps and nobody took the processor meanwhile (another program, or a control
 * group whose quota is used up). */
static void learn_spin(const struct pool *p, struct worker *w, uint64_t waited_ns)
{
    struct rusage u;
    if (p->spin_ns < POOL_SPIN_NS || getrusage(RUSAGE_THREAD, &u))
        return;
    const bool taken = u.ru_nivcsw != w->taken;
    w->taken = u.ru_nivcsw;
    w->wary = taken ? WARY : w->wary - (w->wary > 0);
    if (w->wary)
        w->spin_ns = POOL_SPIN_NS;
    else if (waited_ns > POOL_MOST_SPIN_NS)
        w->spin_ns = (w->spin_ns + POOL_SPIN_NS) / 2;
    else if (waited_ns > w->spin_ns)
        w->spin_ns = waited_ns + waited_ns / 4;
}

void *pool_worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    struct pool_job job = {.number = 1}; /* the tree begins with an empty job of this number */
    fp_default();
    w->spin_ns = p->spin_ns;
    uint64_t idle = clock_now();
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        const uint64_t seen = job.number;
        const bool out = pool_is_out(w);
        if (out && w->waits_on == w->leaf) {
            rest(p, w);
            continue;
        }
        if (out && clock_now() >= w->next_check) /* it goes on passing jobs on */
            pool_cpus_check(p, w);
        const bool got =
            out ? take_job(&p->knot[w->waits_on], seen, &job) : spin_for_work(p, w, &job);
        if (!got && (!pool_is_out(w) || w->waits_on != w->leaf))
            sleep_for_work(p, w, seen);
        if (job.number == seen)
            continue;
        const uint64_t waited = clock_now() - idle;
        if (waited > POOL_SPIN_NS)
            learn_spin(p, w, waited);
        pass_on(p, w, &job);
        if (!pool_is_out(w))
            work(p, &job, w->index);
        idle = clock_now();
    }
    return NULL;
}

void pool_wake_rest(struct pool *p)
{
    atomic_fetch_add(&p->rest, 1);
    futex_wake(&p->rest, INT_MAX);
}

void pool_stop_workers(struct pool *p)
{
    atomic_store(&p->stop, true);
    pool_wake_rest(p);
    for (int k = 0; k < p->n_knots; k++) {
        atomic_fetch_add(&p->knot[k].signal, 1);
        futex_wake(&p->knot[k].signal, INT_MAX);
    }
}

/* ---- parts by speed ---- */

/* How fast the threads of a node were since the last time.  False: too little to say. */
static bool measure(struct pool *p, int node)
{
    const int lanes = lanes_of(p, node);
    uint64_t all = 0;
    for (int i = p->node_first[node]; i < p->node_first[node + 1]; i++)
        all += atomic_load_explicit(&p->lane[i].ran, memory_order_relaxed) - p->ran_before[i];
    if (all < (uint64_t)lanes * SHARE_JOBS)
        return false;
    for (int i = p->node_first[node]; i < p->node_first[node + 1]; i++) {
        const uint64_t ran = atomic_load_explicit(&p->lane[i].ran, memory_order_relaxed);
        const float now = (float)(ran - p->ran_before[i]) * (float)lanes / (float)all;
        p->speed[i] = (p->speed[i] + now) / 2;
        p->ran_before[i] = ran;
    }
    return true;
}

/* Differences below these are noise: equal parts.  A thread that stands still has a small part,
 * so that it is seen when it runs again. */
static const float most_alike = 1.25f, least_alike = 0.8f, least_speed = 1.0f / 16;

static bool are_alike(const struct pool *p, int node)
{
    bool alike = true;
    for (int i = p->node_first[node]; i < p->node_first[node + 1]; i++)
        alike &= p->speed[i] < most_alike && p->speed[i] > least_alike;
    return alike;
}

static float part_of(const struct pool *p, int lane, bool alike)
{
    return alike ? 1 : p->speed[lane] > least_speed ? p->speed[lane] : least_speed;
}

static void write_ends(const struct pool *p, int node)
{
    const int first = p->node_first[node], end = p->node_first[node + 1];
    const bool alike = are_alike(p, node);
    float all = 0, before = 0;
    for (int i = first; i < end; i++)
        all += part_of(p, i, alike);
    for (int i = first; i < end; i++) {
        before += part_of(p, i, alike);
        const float at = before / all * SHARE_ONE;
        atomic_store_explicit(&p->shares.end[i], i < end - 1 ? (uint32_t)at : SHARE_ONE,
                              memory_order_release);
    }
}

void pool_learn_shares(struct pool *p)
{
    bool any = false, equal = true;
    for (int node = 0; node < p->n_nodes; node++)
        any |= measure(p, node);
    if (!any)
        return;
    for (int node = 0; node < p->n_nodes; node++)
        equal &= are_alike(p, node);
    p->in_use = equal ? 0 : p->number + 1;
    if (equal)
        return;
    atomic_store(&p->shares.of, 0);
    for (int node = 0; node < p->n_nodes; node++)
        write_ends(p, node);
    atomic_store(&p->shares.of, p->in_use);
}

/* ---- the caller ---- */

/* began: when the caller began the job. */
static void wait_for_chunks(struct pool *p, const struct pool_job *job, uint64_t began)
{
    const uint32_t number = (uint32_t)job->number;
    uint64_t start = clock_now(), now = start;
    const uint64_t end = start + p->spin_ns;
    bool long_wait = false;
    p->worked_ns += start - began;
    p->counted_ns += is_counted(p, 0, job) ? start - began : 0;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if (atomic_load_explicit(&p->done, memory_order_acquire) == number) {
                if (long_wait)
                    pool_held_waited(p, now - start);
                return;
            }
            pool_pause();
        }
        const bool helped = help(p, job, 0, false);
        now = clock_now();
        if (helped)
            start = now;
        if (!long_wait && now - start > POOL_HELD_NS) {
            pool_held_check(p, job->number);
            long_wait = true;
        }
    } while (now < end);
    pool_held_check(p, job->number);
    atomic_store(&p->caller_sleeps, 1);
    for (uint32_t done; (done = atomic_load(&p->done)) != number;)
        futex_sleep(&p->done, done);
    atomic_store(&p->caller_sleeps, 0);
    pool_held_waited(p, clock_now() - start);
}

/* At most LANE_MOST chunks a lane. */
static void run_job(struct pool *p, const int64_t *from, const int64_t *n, pool_fn *fn, void *arg)
{
    struct pool_job own = {++p->number, fn, arg, from[0], n[0], p->in_use};
    const uint64_t began = clock_now();
    uint64_t nodes = 0;
    for (int k = 0; k < p->n_nodes; k++)
        nodes |= (uint64_t)(n[k] > 0) << k;
    atomic_store_explicit(&p->left, nodes, memory_order_relaxed);
    for (int k = p->n_nodes - 1; k >= 0; k--)
        if (n[k] || k == 0) {
            const struct pool_job job = {own.number, fn, arg, from[k], n[k], own.shares};
            post(&p->knot[p->top[k]], &job);
        }
    pass_on(p, &p->worker[0], &own);
    work(p, &own, 0);
    wait_for_chunks(p, &own, began);
}

void pool_run_placed(struct pool *p, const int64_t *from, const int64_t *n, pool_fn *fn, void *arg)
{
    int64_t at[CPU_NODES_MAX], now[CPU_NODES_MAX], left = 0;
    for (int k = 0; k < p->n_nodes; k++)
        left += n[k];
    if (p->n_threads == 1 || left <= 1) {
        for (int k = 0; k < p->n_nodes; k++)
            for (int64_t i = 0; i < n[k]; i++)
                fn(arg, from[k] + i, 0);
        return;
    }
    BUG_IF(atomic_load_explicit(&p->left, memory_order_relaxed)); /* fn called pool_run() */
    memcpy(at, from, (size_t)p->n_nodes * sizeof *at);
    while (left > 0) {
        if (p->number % SHARE_JOBS == 0 && p->spin_ns == POOL_SPIN_NS) {
            pool_held_judge(p);
            pool_learn_shares(p);
        }
        for (int k = 0; k < p->n_nodes; k++)
            now[k] = num_min(from[k] + n[k] - at[k],
                             p->in_use ? LANE_MOST : (int64_t)lanes_of(p, k) * LANE_MOST);
        run_job(p, at, now, fn, arg);
        for (int k = 0; k < p->n_nodes; k++) {
            at[k] += now[k];
            left -= now[k];
        }
    }
}

void pool_run(struct pool *p, int64_t n_chunks, pool_fn *fn, void *arg)
{
    int64_t from[CPU_NODES_MAX], n[CPU_NODES_MAX];
    if (p->n_threads == 1 || n_chunks <= 1) {
        for (int64_t i = 0; i < n_chunks; i++)
            fn(arg, i, 0);
        return;
    }
    const bool small = n_chunks <= p->n_near;
    for (int k = 0; k < p->n_nodes; k++) { /* a small job stays among the caller's neighbours */
        const int64_t end = small ? n_chunks : n_chunks * p->node_first[k + 1] / p->n_threads;
        from[k] = k ? from[k - 1] + n[k - 1] : 0;
        n[k] = end - from[k];
    }
    pool_run_placed(p, from, n, fn, arg);
}
