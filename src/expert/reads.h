/*
 * reads - inside fetch: what its owner, its threads and its ring share.
 *
 * One lock guards the table of reads, both queues and the list of what is done.  Whoever reads
 * holds it to take a piece and to give one back, never while reading.
 */
#ifndef INGLE_EXPERT_READS_H
#define INGLE_EXPERT_READS_H

#include "expert/fetch.h"
#include <pthread.h>
#include <sys/stat.h>

enum {
    FETCH_PIECE = 1 << 20,
    FETCH_MOST_THREADS = 16,
    FETCH_USUAL_THREADS = 4,
    FETCH_MOST_EARLY = 2
};
enum fetch_state { FETCH_IDLE, FETCH_QUEUED, FETCH_RUNNING, FETCH_DONE };

/* Sync: f->lock. */
struct fetch_read {
    struct fetch_request r;
    enum fetch_state state;
    uint64_t next;   /* first byte that nobody has taken */
    int under_way;   /* pieces */
    int after;       /* in its queue or in the list of done ones; -1: the last */
    uint64_t since_ns;
    bool again;      /* its checksum was wrong once */
    bool wrong;      /* and twice */
    bool cut;        /* the rest of it is not wanted */
    uint32_t seen;   /* the file's state after it */
    ingle_status status;
    char why[160];
};

struct fetch_list { int first, last; };

/* A part of a read: whose it is that took it. */
struct fetch_piece {
    int ticket;
    uint8_t *to;
    uint64_t at;  /* in the file: what is missing */
    size_t n, all; /* bytes that are missing, and all of it */
    uint64_t what; /* for make */
    bool again;   /* it failed once */
    bool early;   /* it was begun as an early one */
    uint64_t retries;
    ingle_status status;
    char why[160];
};

/* DEAD: another thread has its place, or nobody waits for it; it ends when its pieces have. */
enum fetch_worker_state { WORKER_NONE, WORKER_WORKS, WORKER_DEAD, WORKER_ENDED };

/* Sync: f->lock, except for f and work, which are fixed. */
struct fetch_worker {
    struct fetch *f;
    void *work;
    pthread_t thread;
    enum fetch_worker_state state;
    uint64_t since_ns; /* its piece began; 0: it has none.  Of threads */
};

struct fetch_ring;

struct fetch {
    struct fetch_options o;
    bool direct;
    struct fetch_ring *ring;   /* NULL: threads read */
    char no_ring[120];         /* why not, if it was requested */
    struct stat opened, stamp; /* Sync: stamp: lock.  When it was opened, and last */
    uint32_t seen;             /* Sync: lock.  Grows with each change of stamp */
    pthread_mutex_t lock;
    pthread_cond_t more, done, ended; /* for threads; for the owner; for who closes */
    struct fetch_read *read;   /* [o.n_tickets] */
    struct fetch_list queue[2], ready; /* Sync: lock.  demands, early ones; done */
    bool stop;                 /* Sync: lock */
    /* Sync: lock.  pieces under way; of them begun as early ones, lost ones included */
    int busy, n_early;
    uint64_t busy_since;       /* Sync: lock */
    struct fetch_counts count; /* Sync: lock */
    int n_threads, n_dead;     /* Sync: lock.  That work; that do not come back */
    /* Sync: lock.  Called by the last thread; NULL: by expert_fetch_close() */
    void (*done_fn)(void *arg);
    void *done_arg;
    struct fetch_worker worker[FETCH_MOST_THREADS];
};

/* The next piece that nobody has taken and that may be read now; false: none.  Under the lock. */
bool expert_fetch_take(struct fetch *f, struct fetch_piece *p);
/* How many bytes of what is missing to ask for, when *wait is readable (-1: at once); or, not above
 * 0, what a read has brought that did not take place. */
ssize_t expert_fetch_before(const struct fetch *f, const struct fetch_piece *p, int *wait);
/* A read has brought so many bytes of it, or -errno.  Whether the piece is over. */
bool expert_fetch_after(const struct fetch *f, struct fetch_piece *p, ssize_t got);
/* A piece is over.  Under the lock, which is given up for a sum. */
void expert_fetch_give(struct fetch *f, const struct fetch_piece *p);
/* So many more pieces are under way.  Under the lock. */
void expert_fetch_busy(struct fetch *f, int change);
/* The end of a thread, under the lock, which it gives up for good; the last one may free f. */
void expert_fetch_end(struct fetch *f, struct fetch_worker *w);

/* ring.c: io_uring, which one thread fills and empties.  INGLE_UNSUP: the kernel refuses it, or it
 * was built without. */
MUST_CHECK ingle_status expert_ring_open(struct fetch_ring **out, struct err *err);
void expert_ring_close(struct fetch_ring *r);
void *expert_ring_run(void *worker);
/* Under the lock: there is something to take, or to look at. */
void expert_ring_wake(struct fetch_ring *r);
/* Under the lock: pieces under way for longer count no more among those that may be; returns how
 * many such there are. */
int expert_ring_lose(struct fetch *f, uint64_t longer_ns);
int expert_ring_lost(const struct fetch_ring *r);

#endif
