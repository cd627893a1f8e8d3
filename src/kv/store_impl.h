/* store_impl - what the files store*.c share. */
#ifndef INGLE_KV_STORE_IMPL_H
#define INGLE_KV_STORE_IMPL_H

#include "kv/key.h"
#include "kv/store_index.h"
#include "kv/timeline.h"
#include <pthread.h>
#include <stdatomic.h>

/* A file to be written.  The disk thread reads `out`; the rest is the engine thread's. */
struct kv_job {
    struct kv_job *next;
    struct kv_store *store;
    struct kv_file_out out;
    char name[KV_NAME_BYTES];
    struct kv_page **pg; /* [n_pages]: kept until the job is done; NULL: the pool has them back */
    /* with somebody who has other parts: all pages of it, kept as long as pg */
    struct kv_page **far_pg; /* [n_far] */
    size_t n_far;
    struct kv_scope scope;
    const int32_t *all; /* [length], owned: out.token is the end of it; else NULL */
    uint64_t far;        /* what was begun there; 0: nothing.  Sync: store.lock */
    uint64_t n_bytes;
    uint64_t used;       /* the disk thread's: clock_used() when the piece began */
    bool cancel;         /* Sync: store.lock */
};

/* A file that a restore reads, or a part of it. */
struct kv_part {
    struct kv_key key;
    int64_t from, length;
    char name[KV_NAME_BYTES];
    uint64_t n_pages;
    uint8_t **to; /* [n_pages]: where each page goes; NULL: not wanted, or ... */
    struct kv_page **away; /* [n_pages] ... to disk as this one; NULL: it does not */
    struct kv_file file;
};

/* The disk thread's between `queued` and `done`, else the engine thread's. */
struct kv_read {
    struct kv_read *next; /* Sync: store.lock */
    struct kv_store *store;
    int32_t *token;       /* [length], owned */
    int64_t length, have; /* have: whole pages that the timeline keeps */
    const struct kv_form *form;
    struct kv_scope scope;
    /* [n_pages], of which n_taken are there; in the order of kv_timeline_adopt() */
    struct kv_page **pg;
    size_t n_pages, n_taken;
    uint8_t *bounce;      /* for pages that go to disk, one at a time */
    size_t bounce_bytes;
    struct kv_part *part; /* [n_parts], the deepest first */
    size_t n_parts;
    ingle_status status;
    struct err err;
    bool queued;                /* or over, with a status */
    bool cancel, done, dropped; /* Sync: store.lock; dropped: kv_store_poll() ends it */
};

/* A prefix that somebody will ask for. */
struct kv_want {
    struct kv_want *next;
    struct kv_scope scope;
    int64_t n;
    int32_t token[];
};
enum { KV_WANTS = 16 };

struct kv_note {
    ingle_report_level level;
    char subject[KV_NAME_BYTES];
    char text[256];
};
enum { KV_NOTES = 16 };

/* Of the one process that may delete. */
enum { KV_LEASE_BYTES = 80 };
struct kv_lease {
    uint64_t id, count;        /* this store's; how often it was written */
    uint64_t renewed, seen_at; /* clock_now(); seen_at 0: nobody else's was seen */
    char seen[KV_LEASE_BYTES]; /* somebody else's, since seen_at */
    bool held;
    bool busy;                 /* others had it for too long */
};

struct kv_store {
    struct kv_pool *pool; /* borrowed */
    struct kv_form form[KV_FORMS];
    int n_forms;
    struct kv_far far; /* all NULL: nobody has other parts */
    int64_t reported_far; /* the engine thread's: a length that others lack */
    const struct report_sink *sink;
    char *dir_name;
    int dir;
    uint64_t identity, budget_bytes, queue_bytes, first_pause_ns;
    uint64_t patience_ns;
    int64_t min_tokens;
    bool reported_stuck; /* the engine thread's: that nobody waits for the disk */
    bool reported_small; /* the engine thread's: that a file is larger than the store */
    char model[48], settings[128];

    pthread_t thread;
    pthread_mutex_t lock; /* never held over a system call */
    pthread_cond_t work;  /* for the disk thread */
    pthread_cond_t news;  /* for the engine thread */
    /* Sync: the rest under `lock` */
    bool stop, scan, scanned;
    /* the last scan did not see all, or a file has been AWAY since: there is to be another */
    bool away;
    bool saving;             /* false: the last write failed, or would have */
    uint64_t try_at;         /* ... and none is tried before this time, */
    uint64_t pause_ns;       /* ... so long after it */
    char error[KV_STORE_ERROR];
    /* who has other parts could not save theirs: nothing is saved before this time, so long after
     * it; pause 0: they could */
    uint64_t far_try_at, far_pause_ns;
    bool gave_up;            /* what may be offered again, see kv_store_gave_up() */
    /* files that were taken away while they were written, one after another */
    int n_lost;
    int64_t scan_s, scan_ns; /* the directory's time of change before the last scan */
    uint64_t scan_after;     /* no scan before this time: they may take 1 % of it */
    struct kv_index index;
    struct kv_job *first, *last, *running, *finished;
    size_t n_queued;
    uint64_t queued_bytes;
    struct kv_read *reads;   /* that wait, the first one first */
    struct kv_read *reading; /* or NULL */
    struct kv_read *dropped; /* that are done */
    void (*wake)(void *arg); /* or NULL */
    void *wake_arg;
    atomic_bool gentle;      /* Sync: atomic */
    /* Sync: atomic; clock_now() when the disk thread last got on with something */
    atomic_uint_least64_t beat;
    bool idle;               /* it has nothing to do */
    uint64_t scan_requested; /* when `scan` was set */
    struct kv_lease lease;   /* the disk thread's */
    /* Sync: atomic; the clock that dates files is so far ahead of this machine's.  The disk thread
     * learns it. */
    _Atomic int64_t skew_ns;
    struct kv_want *want;
    size_t n_wants;
    struct kv_note note[KV_NOTES];
    size_t n_notes;
    struct kv_store_counts counts;
};

#endif
