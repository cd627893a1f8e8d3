/*
 * disk - keys and values beyond memory: complete pages that are in a file.
 *
 * Of groups that keep everything one may have a disk: that of layers with heads of keys and values
 * (kv_disk_group()).  A page of it that is complete (all of its positions have been written and
 * committed) is never written again, so it may leave memory.  Each step needs all pages, in the
 * same order; so which ones are in memory does not change from step to step: the first page and the
 * newest ones stay, of the others as many as fit, by lowest index.  When room is needed, the page
 * of the highest index leaves, those of no timeline first.  It comes back when it is to be written
 * again (after a rewind), or when there is room again, by lowest index, a few before each step;
 * its place on disk stays its own then.
 *
 * Pages on disk are read by head: attention over a head of a stream wants all blocks of that head,
 * and nothing else. kv_heads_take() gathers those of some timelines; while they are computed with,
 * a thread reads those of the next head in the order of the step before.  Blocks have checksums,
 * which are compared when they are read.
 *
 * The file, DIR/ingle-kv-PID-N.pages, is one region a head of a stream, in which page after page
 * has its block (a multiple of 4,096 bytes), so that blocks of neighbouring pages are read
 * together.  It belongs to one process, which holds a lock on it, and goes with it; one that a
 * process left behind when it was killed is removed at the next start.  The directory's rules are
 * those of the store.
 *
 * All reads and writes are on two threads.  One that does not answer is waited for 30 seconds, and
 * as long as the step is wanted; then the step fails, and so does whatever needs the file until the
 * thread answers.
 */
#ifndef INGLE_KV_DISK_H
#define INGLE_KV_DISK_H

#include "kv/kv.h"
#include <stdatomic.h>

enum { KV_DISK_ERROR = 160 };

struct kv_disk_options {
    const char *dir;       /* made, with mode 0700, if it is not there */
    uint64_t budget_bytes; /* of the file, at most */
    int64_t max_tokens;    /* of a timeline */
    /* the prefix tree keeps so much memory, even if pages of timelines go to disk for it */
    uint64_t spared_bytes;
    uint64_t stall_ns;     /* a read or write that takes longer fails (2 MiB each); 0: 30 s */
};

/* The group of a spec whose pages may be on disk; -1: there is none (rows instead of heads,
 * windows alone). */
int64_t kv_disk_group(const struct kv_spec *s);
/* Memory that is needed beside pages for timelines of so many tokens: two heads' blocks of all
 * their pages, a page that is written, and the list of what the file has.  False: no such
 * number. */
MUST_CHECK bool kv_disk_memory(const struct kv_spec *s, int64_t max_tokens, uint64_t budget_bytes,
                               uint64_t *out);
/* What kv_disk_open() would say of a directory, which is made. */
MUST_CHECK ingle_status kv_disk_check(const char *dir, struct err *err);
/* Before a page is taken from the pool; kv_pool_free() ends it. */
MUST_CHECK ingle_status kv_disk_open(struct kv_pool *p, const struct kv_disk_options *o,
                                     struct err *err);

struct kv_disk_counts {
    uint64_t bytes, budget_bytes;       /* of pages that are there; 0, 0: there is no disk */
    int64_t pages;
    uint64_t written_bytes, read_bytes; /* since the start */
    double read_seconds, waited_seconds; /* of the thread that reads, and of steps for it */
    /* bytes a second, measured at the start and then of what was read */
    double rate;
    uint64_t failed;                    /* reads and writes */
    char error[KV_DISK_ERROR];          /* of the last write, while they fail */
};
void kv_disk_count(struct kv_pool *p, struct kv_disk_counts *out);
/* Bytes that a step of a timeline of n_tokens reads if so many bytes of memory are for its
 * pages. */
uint64_t kv_disk_step_bytes(const struct kv_spec *s, int64_t n_tokens, int64_t pages_in_memory);

/* ---- steps ---- */

/* A step of this kind (0 or 1) begins: heads will be requested as in the last one of the kind. */
enum { KV_DISK_STEP, KV_DISK_ROUND, KV_DISK_KINDS };
void kv_disk_begin(struct kv_pool *p, int kind);
/* Before a step: pages of a timeline on disk come back while there is room, a few at a time. */
void kv_timeline_recall(struct kv_timeline *t);
/* While a step runs on a timeline, its pages stay where they are. */
void kv_timeline_pin(struct kv_timeline *t, bool on);

/* Whether pages of the group are on disk alone: they are NULL in kv_timeline_pages(). */
bool kv_timeline_is_away(struct kv_timeline *t, uint32_t group);

/* What was gathered for one head. */
struct kv_heads;
/* Gathers all that the first *n_taken of n timelines (some may be the same) have of a head of a
 * stream, as many as there is room for, at least one.  kv_timeline_head() is then where each page's
 * block of that head is, until the next call of this for the timeline; those on disk until
 * kv_heads_give().  INGLE_IO: a block cannot be read or is not what was written; INGLE_CANCEL:
 * cancel (may be NULL) was set. */
MUST_CHECK ingle_status kv_heads_take(struct kv_heads **out, uint32_t stream, uint32_t head,
                                      struct kv_timeline *const *t, int64_t n, int64_t *n_taken,
                                      const atomic_bool *cancel, struct err *err);
void kv_heads_give(struct kv_heads *h);

/* Pages that a row wants of a timeline: page [n], ascending. */
struct kv_wanted {
    struct kv_timeline *timeline;
    const int32_t *page;
    int64_t n; /* at most kv_spec.kept */
};
/* As kv_heads_take(), of those pages alone: kv_timeline_head() says nothing of others.  What is
 * read stays in memory, in place of what was not wanted for the longest time. */
MUST_CHECK ingle_status kv_heads_take_some(struct kv_heads **out, uint32_t stream, uint32_t head,
                                           const struct kv_wanted *w, int64_t n, int64_t *n_taken,
                                           const atomic_bool *cancel, struct err *err);
uint8_t *const *kv_timeline_head(const struct kv_timeline *t, uint32_t group);

/* ---- for this room ---- */

struct kv_page;
bool kv_disk_has(const struct kv_pool *p, uint32_t group);
/* A page leaves memory (idle: one that no timeline has); false: none may, or it cannot be
 * written. */
bool kv_disk_spill(struct kv_pool *p, bool idle);
/* Of n pages (some NULL) those of the lowest index come back, as far as there is room. */
void kv_disk_recall(struct kv_pool *p, struct kv_page *const *page, int64_t n);
/* Bytes that kv_disk_spill() can give, except for pages that eviction gives. */
uint64_t kv_disk_can_spill(const struct kv_pool *p);
/* Page `index` of a timeline is complete / is to be written again (it is in memory, and nobody
 * else's). */
void kv_disk_complete(struct kv_pool *p, struct kv_page *pg, int64_t index);
void kv_disk_reopen(struct kv_pool *p, struct kv_page *pg);
/* The page goes. */
void kv_disk_forget(struct kv_pool *p, struct kv_page *pg);
/* A place for a page that has no memory; false: the file is full, or cannot be written. */
bool kv_disk_place(struct kv_pool *p, struct kv_page *pg);
/* Writes what is to be there.  Any thread, while nobody else has it.  INGLE_LIMIT: it cannot be
 * written. */
MUST_CHECK ingle_status kv_disk_fill(struct kv_pool *p, const struct kv_page *pg, const void *bytes,
                                     struct err *err);
/* Its bytes, from memory or disk.  Any thread that knows that it stays. */
MUST_CHECK ingle_status kv_disk_copy(struct kv_pool *p, const struct kv_page *pg, void *to,
                                     struct err *err);
void kv_disk_close(struct kv_pool *p);
/* Why pages do not leave memory now: ""; or what the last write said, or that the file is full. */
const char *kv_disk_trouble(const struct kv_pool *p);

#endif
