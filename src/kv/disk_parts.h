/*
 * disk_parts - what disk.c, disk_io.c and heads.c have for each other.
 */
#ifndef INGLE_KV_DISK_PARTS_H
#define INGLE_KV_DISK_PARTS_H

#include "kv/disk_impl.h"

ingle_status kv_heads_open(struct kv_disk *d, int64_t max_tokens, struct err *err);
void kv_heads_free(struct kv_disk *d);
ingle_status kv_disk_lane_open(struct kv_disk *d, struct err *err);
/* Ends both threads, removes the file and frees the disk.  False: one of them waits for the system,
 * and does it later. */
bool kv_disk_end(struct kv_disk *d);
ingle_status kv_disk_start(struct kv_disk *d, struct kv_thread *t, void *(*fn)(void *),
                           struct err *err);
void kv_disk_thread_ends(struct kv_disk *d, struct kv_thread *t); /* its last call */

/* Reads n blocks of a unit from slot on, one after another.  On a thread whose pulse that is.  0,
 * errno or KV_FILE_ENDS. */
int kv_disk_read(const struct kv_disk *d, const struct kv_unit *u, int32_t slot, int32_t n,
                 uint8_t *to, struct kv_pulse *pulse);
/* Pages, by the lane.  0, errno, KV_FILE_ENDS, KV_FILE_DAMAGED; KV_FILE_TIMEOUT: the disk does not
 * answer. */
int kv_disk_write_page(struct kv_disk *d, int32_t slot, const void *bytes);
int kv_disk_read_page(struct kv_disk *d, int32_t slot, void *to);
bool kv_disk_lane_answers(struct kv_disk *d);
/* Whether the thread has waited for the system for too long, as somebody sees it who has waited for
 * it for so long, or as somebody saw it before. */
bool kv_pulse_timed_out(const struct kv_disk *d, struct kv_pulse *p, uint64_t waited_ns);
/* Says why, in room for n bytes, which it returns. */
const char *kv_disk_why(int why, char *room, size_t n);
/* Until there is news, but not long.  How long, without the time that the process was stopped. */
uint64_t kv_disk_wait(pthread_cond_t *c, pthread_mutex_t *lock);

#endif
