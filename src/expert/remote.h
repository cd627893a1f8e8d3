/*
 * remote - workers: other processes, here or elsewhere, that compute some of a layer's experts
 * (link/link.h).
 *
 * A layer's chosen experts are dealt between this process and the workers by measured times
 * (split.h).  Rows go out before anything is computed here and come back as rows of pairs, which
 * are added in ascending order of experts as always, or, where one worker has all of them, as sums
 * made in that order: the bits are those of one process.  What was requested of a worker and does
 * not bring is computed here.
 *
 * All functions but those of counts are called by the thread of the steps.
 */
#ifndef INGLE_EXPERT_REMOTE_H
#define INGLE_EXPERT_REMOTE_H

#include "expert/expert.h"
#include "link/link.h"

struct expert_remote;

enum { EXPERT_WORKERS = 8 };

struct expert_remote_options {
    const char *const *address; /* [n] */
    int n;
    const char *key_file;
    bool plain;
    const struct link_hello *hello; /* who this engine is */
    const struct report_sink *sink;
    /* per cent of a layer's experts that workers compute; -1: by measured times */
    int share;
    int greet_ms;          /* so long is waited for workers at the start; 0: 5 s */
    /* For tests. */
    int heartbeat_ms, dead_ms; /* as in link.h */
    /* a result that takes longer than this, and than ten times the usual, is given up; 0: 10 s */
    uint64_t late_ns;
    bool no_share;         /* no memory is shared with workers of this host */
    uint64_t least_shared; /* bytes of rows and results that go through it; 0: 64 KiB */
    uint64_t shake;        /* seed: experts are dealt at random; 0: by times */
};

/* After loading and expert_store_open(); before memory of steps is planned.  m has experts.  A
 * worker that cannot be reached is reported and tried again later; one that does not fit (another
 * model) is INGLE_UNSUP. */
MUST_CHECK ingle_status expert_remote_open(struct expert_remote **out, struct model *m,
                                           const struct expert_remote_options *o, struct err *err);
void expert_remote_close(struct expert_remote *r);
/* Between steps: greets workers that came back. */
void expert_remote_tend(struct expert_remote *r);

enum expert_worker_state { EXPERT_WORKER_AWAY, EXPERT_WORKER_READY, EXPERT_WORKER_REFUSED };
struct expert_worker_counts {
    const char *address;
    enum expert_worker_state state;
    struct link_range range;
    uint64_t slots, budget_bytes;
    uint64_t evals, pairs, experts; /* that were requested and came */
    uint64_t sent_bytes, received_bytes;
    /* connections; experts that were computed here instead */
    uint64_t losses, redone;
    uint64_t hits, misses;                 /* of experts, in its memory */
    uint64_t compute_ns, wait_ns;          /* by its clock; steps waited for it */
    /* an expert with one row, there and here, and the round trip; 0: not measured */
    double unit_us, here_us, trip_us;
    char trouble[240];                     /* why it is away or was refused; "" */
    bool shares;                           /* rows go through shared memory */
    /* evals whose rows did; that were taken back; experts that it says it has in memory */
    uint64_t shared, cancels, n_have;
    struct link_stats there;               /* what it last said of itself; up_ns 0: nothing yet */
};
int expert_remote_n(const struct expert_remote *r);
/* Any thread. */
void expert_remote_count(struct expert_remote *r, int i, struct expert_worker_counts *out);
/* Experts that this process computed since the start. */
uint64_t expert_remote_here(struct expert_remote *r);

#endif
