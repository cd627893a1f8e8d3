/*
 * store - restore points on disk: the prefix tree's slower, larger tier.
 *
 * A directory holds one file a restore point.  A file continues the deepest shorter one that was
 * there (its parent), so that what conversations share is stored once, and a lookup reads few large
 * files: one for each restore point on the way.  The name of a file is the hash of model, layout,
 * numerics, scope and all tokens up to its end; the tokens themselves are compared before anything
 * is used.
 *
 * With a guest (struct kv_spec) files have its pages, too, except for those of timelines that lack
 * some of its rows.  Files without them are used like the others: after such a restore
 * kv_timeline_from() is the length.
 *
 * One disk thread writes, reads and checks.  The engine thread never waits for a write: pages are
 * kept (not copied) until they are written, and given up when the pool needs them.  Nor need it
 * wait for a read, which goes before writes: kv_store_read_begin().  What is read is checked before
 * it becomes part of a timeline.
 *
 * Any number of processes may share a directory: files appear by rename, nobody trusts an index,
 * a file that vanishes is a miss, and one process at a time deletes (store_share.c).  All calls but
 * kv_store_prefetch() and kv_store_list() belong to the engine thread; reports are made only while
 * one of them runs.
 */
#ifndef INGLE_KV_STORE_H
#define INGLE_KV_STORE_H

#include "kv/kv.h"

#include <stdatomic.h>

struct kv_store;
enum { KV_STORE_ERROR = 160 };

/* Of a prefix: what is elsewhere.  Groups are those of the model's own; of those that keep
 * everything pages from `have` on, of a window the last ones. */
struct kv_far_part {
    struct kv_scope scope;
    const int32_t *tokens; /* [length], with keys */
    struct kv_media *media;
    int64_t length, have;
    uint32_t n_groups;
    int64_t first[KV_MAX_GROUPS], end[KV_MAX_GROUPS];
    uint8_t *const *page; /* [n_pages]: own parts, group by group */
    size_t n_pages;
};
/* Who has the own parts of pages, and files of them: a prefix is there if it is there, too. */
struct kv_far {
    void *arg;
    /* Any thread. */
    bool (*has)(void *arg, struct kv_scope scope, struct kv_media *media, const int32_t *tokens,
                int64_t length);
    /* The part is written to a file, or read from one; what was begun is that part's until it is
     * over or dropped.  0: it cannot be.  The disk thread. */
    uint64_t (*begin)(void *arg, bool read, const struct kv_far_part *part);
    /* Over: *ok, and there is no such number any more; false: it goes on. */
    bool (*over)(void *arg, uint64_t number, bool *ok);
    void (*drop)(void *arg, uint64_t number); /* any thread */
};

struct kv_store_options {
    const char *dir;            /* made, with mode 0700, if it is not there */
    uint64_t budget_bytes;      /* of all files in it together; 0: 16 GiB */
    int64_t min_tokens;         /* a file adds at least so many; 0: 256 */
    uint64_t identity;          /* the model's */
    const char *model;          /* its name, for people; may be NULL */
    const char *numerics;       /* "exact" */
    const char *codec;          /* "f16", for people: the layout is in the key anyway */
    /* after a write that failed, then twice as long each time, 64 times at most; 0: 10 */
    double retry_seconds;
    /* for a disk that does not answer; 0: 20.  Then answers go on without it, until it does. */
    double patience_seconds;
    /* of the files, if not the pool's, whose pages begin with theirs; borrowed with its streams */
    const struct kv_spec *spec;
    const struct kv_far *far; /* copied; NULL: nobody */
};

/* What kv_store_open() would say of a directory, which is made. */
MUST_CHECK ingle_status kv_store_check(const char *dir, struct err *err);
/* The pool is borrowed.  INGLE_ARG: the directory is another user's or open to others;
 * INGLE_UNSUP: its file system cannot rename. */
MUST_CHECK ingle_status kv_store_open(struct kv_store **out, struct kv_pool *p,
                                      const struct kv_store_options *o, struct err *err);
/* Publishes prefixes that are put from now on, until their files are removed; borrowed.  NULL:
 * nobody any more. */
void kv_store_watch(struct kv_store *s, const struct kv_watch *watch);
/* Writes what waits, then ends the thread. */
void kv_store_close(struct kv_store *s);
/* Waits until everything that was put is on disk or has failed. */
void kv_store_flush(struct kv_store *s);
/* Takes back the pages of finished writes and makes the disk thread's reports.  False: nothing
 * waits to be written, and nothing was given up since kv_store_gave_up(). */
bool kv_store_poll(struct kv_store *s);

/* Prefixes of the store's own settings whose files are all there: their keys, and a number that
 * changes when they do.  NULL: it is only asked for that. */
uint64_t kv_store_names(struct kv_store *s, void (*fn)(void *arg, struct kv_key key), void *arg);
struct kv_key kv_store_context(const struct kv_store *s);
/* Gives up something that waits to be written, or what was dropped while it was read: pages come
 * back.  False: there is nothing any more. */
bool kv_store_let_go(struct kv_store *s);

/* Whether something that had been put was given up since the last call of this, for lack of memory
 * or because somebody removed files, or not taken while writes failed, and may be tried again. */
bool kv_store_gave_up(struct kv_store *s);

/* Writes the timeline as it stands, unless there is a file that it would add fewer than the store's
 * least tokens to, or fewer than `least` (0: no matter).  tokens [length]; mark and tokens are
 * copied.  False: too much waits to be written, or there was no memory: it may be tried again. */
bool kv_store_put(struct kv_store *s, const struct kv_timeline *from, struct kv_scope scope,
                  const int32_t *tokens, int64_t least, const void *mark, size_t mark_bytes);

/* Has the directory looked at if it has changed (looking takes 1 % of the time at most).  False:
 * that goes on.  wait: until it is over, or patience is. */
bool kv_store_look(struct kv_store *s, bool wait);
/* A look goes on, and is worth waiting for: patience is not over. */
bool kv_store_looks(struct kv_store *s);
/* The length of the deepest file within limit whose ancestors are all there, as of the last look;
 * 0: none, or the disk does not answer. *foreign: of the deepest one that another model or other
 * settings have left (0: none). */
int64_t kv_store_find(struct kv_store *s, struct kv_scope scope, const int32_t *tokens,
                      int64_t limit, int64_t *foreign);

/* The timeline, which must hold a prefix of these tokens (or nothing), becomes that of
 * [0, length), a length that kv_store_find() gave.  On failure it is as before, and the
 * next find will not give that length again unless it was for lack of memory
 * (INGLE_LIMIT, INGLE_NOMEM).  *mark is ended with mem_free(). */
MUST_CHECK ingle_status kv_store_restore(struct kv_store *s, struct kv_timeline *t,
                                         struct kv_scope scope, const int32_t *tokens,
                                         int64_t length, void **mark, size_t *mark_bytes,
                                         struct err *err);

/* ---- the same while the engine does other things ---- */

/* A restore on its way. */
struct kv_read;
/* What kv_store_restore() begins with; tokens are copied.  t stays as it is, and is not to be
 * changed, until the end. */
MUST_CHECK ingle_status kv_store_read_begin(struct kv_read **out, struct kv_store *s,
                                            const struct kv_timeline *t, struct kv_scope scope,
                                            const int32_t *tokens, int64_t length, struct err *err);
/* Takes pages, as many as take no time, then has the disk thread fill them.  True: it is over, or
 * the disk does not answer: to be asked once a second, also without news. */
bool kv_store_read_poll(struct kv_read *r);
/* Of a read that is over (waits for it else, as long as the disk answers): t is as after
 * kv_store_restore(). */
MUST_CHECK ingle_status kv_store_read_end(struct kv_read *r, struct kv_timeline *t, void **mark,
                                          size_t *mark_bytes, struct err *err);
/* At any time, or NULL: t is as before.  A read that the disk thread is at leaves its pages when
 * the disk thread sees it: then kv_store_poll() has them back, and sooner if the pool needs
 * them. */
void kv_store_read_drop(struct kv_read *r);
/* fn is called when a kv_store_read_poll() or kv_store_look() has news, on any thread, and must not
 * call the store.  NULL: no longer. */
void kv_store_set_news(struct kv_store *s, void (*fn)(void *arg), void *arg);
/* The disk thread leaves the processor to others half of the time, in short turns. */
void kv_store_set_gentle(struct kv_store *s, bool gentle);

/* Has the system read what a restore of this prefix will want.  Any thread; tokens are
 * copied.  It is only a hint. */
void kv_store_prefetch(struct kv_store *s, struct kv_scope scope, const int32_t *tokens, int64_t n);

struct kv_store_counts {
    int64_t files;
    uint64_t bytes, budget_bytes; /* of all files in the directory */
    int64_t written, restored, damaged, evicted, skipped; /* files; since kv_store_open() */
    int64_t failed;               /* writes */
    uint64_t written_bytes, restored_bytes;
    bool saving;                  /* false: writes fail; */
    uint64_t try_at;              /* ... the next is not tried before this clock_now() */
    char error[KV_STORE_ERROR];   /* of the last write that failed, while it does; "" */
};
void kv_store_count(struct kv_store *s, struct kv_store_counts *out);

struct kv_store_entry {
    const char *name, *model, *settings;
    uint64_t identity, bytes;
    int64_t from, length; /* tokens */
    int64_t age_s;        /* since it was last used */
    const char *damage;   /* NULL, or what is wrong with it */
};
typedef void kv_store_list_fn(void *arg, const struct kv_store_entry *e);
/* What is in a directory.  Changes nothing. */
MUST_CHECK ingle_status kv_store_list(const char *dir, kv_store_list_fn *fn, void *arg,
                                      struct err *err);

#endif
