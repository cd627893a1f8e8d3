/* disk_impl - what disk.c (the file) and heads.c (the thread that reads it) share. */
#ifndef INGLE_KV_DISK_IMPL_H
#define INGLE_KV_DISK_IMPL_H

#include "kv/key.h"
#include "kv/page.h"
#include "kv/timeline.h"
#include <pthread.h>
#include <stdatomic.h>

/* One head of a stream: where it is in a page, and where its blocks are in the file. */
struct kv_unit {
    uint32_t stream, head;
    size_t at, n_bytes;  /* in a page */
    size_t step;         /* n_bytes, a multiple of 4,096 */
    uint64_t first;      /* in the file: that of slot 0; that of slot i is i * step after it */
    size_t kept_at;      /* in kv_disk.kept_at */
};

/* A block that stays in memory: which one; when it was wanted last, in takes; by whom it is used (a
 * bit each of kv_disk.heads). */
struct kv_kept {
    int32_t slot; /* -1: none */
    uint32_t turn;
    uint64_t wanted;
    uint8_t used;
};

/* A block that is wanted: which slot, and which of the pages that it had in turn. */
struct kv_block {
    struct kv_page *page; /* while they are gathered */
    int32_t slot;
    uint32_t turn;
    int64_t index; /* the page's, for messages */
    struct kv_key sum;
};

enum { KV_STAGES = 2, KV_DISK_UNITS = 65536, KV_DISK_ALIGN = 4096 };
/* Why a block is not there, beside errno. */
enum { KV_FILE_ENDS = -1, KV_FILE_DAMAGED = -2, KV_FILE_TIMEOUT = -3 };

/* When a thread last asked the system for something; given_up: of such a time, somebody has waited
 * for too long. */
struct kv_pulse {
    _Atomic uint64_t since, given_up;
};

/* Sync: disk.lock. */
struct kv_thread {
    pthread_t id;
    bool runs, ended;
};

/* ASKED: page, slot and writes are the thread's. */
enum kv_lane_state { KV_LANE_FREE, KV_LANE_TAKEN, KV_LANE_REQUESTED, KV_LANE_DONE };

/* The thread that writes pages and reads whole ones. */
struct kv_lane {
    struct kv_thread thread;
    pthread_mutex_t lock;
    pthread_cond_t work, news;
    enum kv_lane_state state;
    bool writes, left, stop; /* left: nobody waits for it any more */
    int32_t slot;
    int why;                 /* errno, KV_FILE_ENDS, KV_FILE_DAMAGED */
    uint8_t *page, *block;   /* [page_bytes], [block_bytes] */
    size_t page_bytes, block_bytes;
    struct kv_pulse pulse;
};
enum kv_stage_state { KV_STAGE_EMPTY, KV_STAGE_WAITS, KV_STAGE_READS, KV_STAGE_DONE };

/* The blocks of a unit in memory.  Between WAITS and DONE it is the reading thread's, except for
 * its state. */
struct kv_stage {
    uint32_t unit;
    int32_t n;
    struct kv_block *block; /* [cap] */
    uint8_t *at;            /* [cap] blocks, a unit's step apart */
    int32_t failed;         /* which block; -1: none */
    int why;                /* errno, KV_FILE_ENDS, KV_FILE_DAMAGED */
    enum kv_stage_state state; /* Sync: disk.lock */
};

/* Somebody computes with a stage (or, with stage NULL, with pages that are all in memory). */
struct kv_heads {
    struct kv_disk *disk;
    struct kv_stage *stage;
    bool used;
    bool some;     /* of the unit's kept blocks */
    uint32_t unit;
};

struct kv_disk {
    struct kv_pool *pool;
    uint32_t group;
    char *dir, *path; /* of the file */
    char name[64];
    int at_dir, fd, read_fd; /* read_fd: past the page cache, where that goes (direct) */
    bool direct;
    uint64_t stall_ns;    /* a read or write that takes longer does not answer */
    uint64_t slot_bytes;
    struct kv_unit *unit; /* [n_units] */
    size_t n_units;
    int32_t n_slots, n_used, lowest; /* lowest: no free slot is below it */
    uint8_t *taken;       /* [n_slots] */
    uint32_t *turn;       /* [n_slots]: how often it was given */
    struct kv_key *sum;   /* [n_slots][n_units] */
    struct kv_page **leaves; /* [cap_leaves]: pages that may leave memory */
    int32_t n_leaves, cap_leaves;
    uint64_t try_at;      /* writes failed: no other one before this time */
    struct kv_disk_counts
        counts; /* the engine thread's, except for what the reading thread counts: */
    uint64_t read_bytes, read_ns, failed_reads; /* Sync: lock */
    /* held while a page's memory goes, and by who copies it on another thread */
    pthread_mutex_t moves;
    /* Heads. */
    int32_t cap;          /* blocks of a stage */
    size_t stage_bytes;
    struct kv_stage stage[KV_STAGES];
    struct kv_heads heads[KV_STAGES];
    struct kv_block *want; /* [cap] */
    int64_t n_kept;        /* of a unit */
    struct kv_kept *kept;  /* [n_units][n_kept] */
    uint8_t *kept_at;
    size_t kept_bytes;
    uint64_t takes;
    uint32_t *order[KV_DISK_KINDS]; /* [n_order]: units as a step took them */
    size_t n_order, place;          /* place: of the step that runs */
    size_t ended[KV_DISK_KINDS];    /* how many units the last one took */
    int kind;
    struct kv_thread thread;
    struct kv_pulse pulse; /* of that thread */
    bool stop, closed;    /* Sync: lock.  closed: the last thread that ends frees all */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct kv_lane lane;
};

#endif
