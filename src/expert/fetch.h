/*
 * fetch - inside the room: reads of extents into given memory, in the background.
 *
 * Reads are in two classes, demands before early ones, in each in the order of submission; one is
 * cut into pieces, of which several are read at once, by threads or by io_uring (ring.c).  No early
 * piece begins while a demand is under way.  A read belongs to a *ticket*, a number below
 * n_tickets, that its owner chooses: one ticket has one read at a time.  Direct I/O (no page cache)
 * where the file system can; else cached pages are given back.
 *
 * A read that fails, or has a wrong checksum, is done once more.  The file's size and time of
 * change are looked at after each read: bytes that were right before count as unknown when the
 * file has changed since.
 *
 * All functions are called by one thread.  Nothing is allocated after expert_fetch_open().
 */
#ifndef INGLE_EXPERT_FETCH_H
#define INGLE_EXPERT_FETCH_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fetch;

enum { FETCH_OPENED = 1 }; /* the state of a file as it was opened */
enum fetch_io { FETCH_AUTO, FETCH_DIRECT, FETCH_CACHED };
enum fetch_by { FETCH_BY_AUTO, FETCH_BY_THREADS, FETCH_BY_URING };

/* For tests, any thread. */
struct fetch_hook {
    void *arg;
    /* How many of n bytes at `at` to ask for, to be read to `to`, when the descriptor *wait is
     * readable (-1: at once).  Not above 0: nothing is read; instead the file ends here, or -errno
     * has come. */
    ssize_t (*before)(void *arg, const void *to, size_t n, off_t at, int *wait);
    /* got > 0 bytes have come: what is to have come instead. */
    ssize_t (*after)(void *arg, void *to, ssize_t got, off_t at);
    void (*over)(void *arg); /* all reads have ended, and it is not used any more */
};
/* Brings the whole of a read in another way: INGLE_IO and others.  work: of the thread.  Any
 * thread. */
typedef ingle_status fetch_make_fn(void *arg, uint64_t what, void *to, void *work, struct err *err);

struct fetch_options {
    int fd;             /* borrowed; -1 with make */
    enum fetch_io io;
    int n_threads;      /* 0: 4 */
    int n_tickets;
    const char *path;   /* borrowed, for messages */
    uint64_t test_at;   /* where a read of 4,096 bytes shows whether direct I/O works */
    fetch_make_fn *make; /* instead of reading fd; or NULL */
    void *make_arg;
    size_t make_work;
    enum fetch_by by;   /* auto: io_uring where it is to be had */
    const struct fetch_hook *hook; /* borrowed until it is over; or NULL */
};

MUST_CHECK ingle_status expert_fetch_open(struct fetch **out, const struct fetch_options *o,
                                          struct err *err);
/* over(arg) is called when no read touches its memory any more: before this returns, unless a read
 * of fd does not end within some seconds; then by the last thread that comes back. */
void expert_fetch_close(struct fetch *f, void (*over)(void *arg), void *arg);
/* Pieces that have been under way for longer are left alone (they end when they end), with their
 * threads, and others take their place.  Returns how many there are. */
int expert_fetch_reset(struct fetch *f, uint64_t longer_ns);
bool expert_fetch_is_direct(const struct fetch *f);
/* NULL: io_uring reads.  Else why threads do; "": because they were to. */
const char *expert_fetch_no_ring(const struct fetch *f);

struct fetch_request {
    int ticket;
    uint64_t at, bytes; /* in the file; multiples of 4,096 for direct I/O, and so is the address */
    void *to;
    uint64_t what;      /* for make */
    bool urgent;        /* a demand */
    bool check;         /* XXH3-64 of it must be sum ... */
    /* ... unless the file still is what it was when fetch_done.seen said this; 0: check it */
    uint32_t seen;
    uint64_t sum;
};
void expert_fetch_submit(struct fetch *f, const struct fetch_request *r);
/* An early read becomes a demand. */
void expert_fetch_hurry(struct fetch *f, int ticket);
/* Takes back a read: true if nothing of it is under way; else what is will be done, and the rest of
 * its bytes does not come. */
bool expert_fetch_drop(struct fetch *f, int ticket);

struct fetch_done {
    int ticket;
    ingle_status status;
    uint64_t ns;     /* from submission on */
    uint32_t seen;   /* number of the file's state, from 1 */
    bool wrong;      /* the failure is a wrong checksum, twice */
    char why[160];   /* of a failure */
};
/* What is done since the last call, at most n; waits until until_ns (clock_now()) for the first: 0:
 * does not wait. */
int expert_fetch_poll(struct fetch *f, struct fetch_done *out, int n, uint64_t until_ns);

/* busy: at least one piece under way; stuck: pieces, now */
struct fetch_counts { uint64_t reads, bytes, busy_ns, retries, stuck; };
void expert_fetch_count(struct fetch *f, struct fetch_counts *out);

#endif
