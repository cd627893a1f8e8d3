/*
 * store_parts - what each of the files store*.c has for the others.
 */
#ifndef INGLE_KV_STORE_PARTS_H
#define INGLE_KV_STORE_PARTS_H

#include "kv/store_impl.h"

/* Keeps a report for the engine thread. */
ATTR_PRINTF(4, 5)
void kv_store_note(struct kv_store *s, ingle_report_level level, const char *subject,
                   const char *fmt, ...);
/* The disk thread has used the processor since clock_used() was `since`: if it is to be gentle,
 * others have it now.  Unlocked. */
void kv_store_rest(struct kv_store *s, uint64_t since);
/* The disk thread gets on.  Any state of the lock. */
void kv_store_beat(struct kv_store *s);
/* It has not got on for as long as patience lasts.  With the lock. */
bool kv_store_is_stuck(const struct kv_store *s);
/* Waits for news, a moment at most.  With the lock. */
void kv_store_wait_news(struct kv_store *s);
/* Wakes who waits for a read or a scan.  With the lock. */
void kv_store_wake(struct kv_store *s);
/* Ends a read that nobody waits for; unlocked. */
void kv_store_read_free(struct kv_read *r);
/* On the disk thread, with the lock held; it is released meanwhile. */
void kv_store_serve(struct kv_store *s);
void kv_store_run_scan(struct kv_store *s);
/* Begins what is done elsewhere: page, in the order of kv_timeline_adopt().  On the disk thread,
 * without the lock.  0: it cannot be. */
uint64_t kv_store_far_begin(struct kv_store *s, bool read, struct kv_far_part *part,
                            struct kv_page *const *page);
/* Waits for what was begun elsewhere, or drops it: when stop says so, or it takes longer than
 * patience lasts.  On the disk thread, without the lock. */
bool kv_store_far_wait(struct kv_store *s, uint64_t number, uint64_t patience_ns,
                       bool (*stop)(void *arg), void *arg);
/* Reads ahead for one of the wants; false: there is none. */
bool kv_store_serve_want(struct kv_store *s);
/* The error says that a file or directory is not there any more: somebody else removed it. */
bool kv_store_is_missing(int e);
/* Makes and opens it; *dir is -1 unless it is open. */
MUST_CHECK ingle_status kv_store_open_dir(const char *name, int *dir, struct err *err);
/* By how much the clock that has just dated a file is ahead of this one. */
void kv_store_learn_skew(int fd, _Atomic int64_t *skew_ns);
/* Now, by the clock that dates files. */
int64_t kv_store_time(const struct kv_store *s);
/* Tries what every write needs.  INGLE_UNSUP: the file system cannot. */
MUST_CHECK ingle_status kv_store_try_rename(int dir, const char *dir_name, _Atomic int64_t *skew_ns,
                                            struct err *err);
/* Waits a moment until this process may delete.  False: another one goes on deleting.  With the
 * lock, which is released meanwhile. */
bool kv_store_lease(struct kv_store *s);
/* Before each deletion; false: another process has it now. */
bool kv_store_lease_goes_on(struct kv_store *s);
void kv_store_lease_end(struct kv_store *s);
/* A directory that was removed is made anew, under the descriptor of the old one.  Unlocked.
 * False: it is there, or *st and *err say why it cannot be made. */
bool kv_store_find_again(struct kv_store *s, ingle_status *st, struct err *err);
/* Makes room for so many bytes; false: there is none to be had, or somebody else makes some. */
bool kv_store_make_room(struct kv_store *s, uint64_t n_bytes);
/* Takes a file out of the index; remove: and out of the directory.  One that cannot be removed
 * stays as it is, or bad: as one that is never used again.  With the lock. */
enum kv_drop { KV_DROP_FORGET, KV_DROP_REMOVE, KV_DROP_REMOVE_BAD };
void kv_store_drop(struct kv_store *s, struct kv_key key, int64_t length, enum kv_drop how);
/* A file that could not be read, for no fault of its own: it is tried again.  With the lock. */
void kv_store_set_away(struct kv_store *s, struct kv_key key, int64_t length);

#endif
