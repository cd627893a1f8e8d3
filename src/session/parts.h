/*
 * parts - inside the room: what each file has for the others.
 */
#ifndef INGLE_SESSION_PARTS_H
#define INGLE_SESSION_PARTS_H

#include "session/run.h"

/* ---- soft.c: media among tokens ---- */

/* 1 for each page that has positions of media: rows that leave something out read those whole
 * (kern/sparse.h, kern/select.h).  NULL: there are none.  Valid until the next call. */
const uint8_t *session_whole(struct session *s);
/* INGLE_LIMIT: rows of answers would read more pages than have room beside those on disk. */
MUST_CHECK ingle_status session_select_fits(struct session *s, struct err *err);
MUST_CHECK ingle_status session_soft_check(const struct session_soft *soft, size_t n_soft,
                                           int64_t n_tokens, struct err *err);
/* to [n] becomes from, `base` positions later, with references; back. */
MUST_CHECK ingle_status session_soft_copy(struct runner *r, const struct session_soft *from,
                                          size_t n, int64_t base, struct soft *to, struct err *err);
/* Of those of a file; *out is ended with session_soft_drop() and mem_free(). */
MUST_CHECK ingle_status session_soft_named(struct runner *r, const struct kv_media_span *of,
                                           int64_t n, struct soft **out, struct err *err);
void session_soft_drop(struct runner *r, struct soft *list, size_t n);
/* Tokens [n] with keys; *out is ended with mem_free().  False: out of memory. */
MUST_CHECK bool session_soft_keys(const struct soft *soft, size_t n_soft, const int32_t *token,
                                  int64_t n, int32_t **out);
/* The session's tokens with keys, as tree and store have them; valid until they change. */
const int32_t *session_keys(struct session *s);
/* Before it has so many tokens. */
MUST_CHECK bool session_soft_room(struct session *s, size_t n_tokens);
/* It has n_tokens, which is no place inside a medium, and what is known of later ones is dropped.
 */
void session_soft_cut(struct session *s, int64_t n_tokens);
/* Where steps stop for a restore point: the first place after `at`; and whether `at` is one. */
int64_t session_next_stop(const struct session *s, int64_t at);
bool session_is_stop(const struct session *s, int64_t at);
/* Of its next n positions, those that a step with room for `room` rows can take: a picture whose
 * rows see all of it is not cut.  all: their logits are wanted; *alone: only of the last one. */
int64_t session_soft_share(const struct session *s, int64_t n, int64_t room, bool all,
                           bool *single);
/* What of its next n positions are no tokens; how many entries of `to` that are. */
int64_t session_soft_rows(const struct session *s, int64_t n, struct family_soft *to);

/* ---- branch.c ---- */

/* Before a step: room for the tokens of w's branches in its session. */
bool session_branch_room(const struct session_work *w);
/* Pages and rows for a branch of w, whose first n_rows pending tokens the step computes as rows
 * from `row` on: true, with its span and mirror.  False: there is no room. */
bool session_branch_begin(struct session_branch *b, const struct session_work *w, int64_t n_rows,
                          int64_t row, struct family_span *span, struct family_mirror *mirror);

/* ---- draft.c: the network that drafts ---- */

/* Appends the drafter's groups and streams to the target's. */
ingle_status session_drafter_init(struct drafter *d, const struct runner_options *o,
                                struct kv_spec *target, struct err *err);
/* Bytes of logits of several drafts. */
uint64_t session_drafter_wide_bytes(const struct drafter *d, int64_t n_vocab);
ingle_status session_drafter_open(struct drafter *d, struct device *device, int64_t n_vocab,
                                struct err *err);
void session_drafter_close(struct drafter *d);
/* Scratch of a round. */
size_t session_drafter_dry_run(const struct drafter *d, struct device *device,
                             const struct kv_spec *target, int64_t n_ctx, int64_t n_vocab);

/* After a restore: a drafter that finds nothing of its own there begins with what comes; said
 * once. */
void session_drafter_restored(struct runner *r, const struct kv_timeline *t, const char *what);

/* The target's forward pass, and what the drafter sees of it, now or (l->deferred) later.  l: whose
 * rows they are; NULL in a dry run. */
void session_drafter_forward(const struct drafter *d, const struct family *family, const void *self,
                           const struct family_forward *f, const struct lane *l);
/* The same in parts, of a step that is under way with others.  Before it is sent: f asks for what
 * the drafter sees.  Then f is as it was: around what comes back. */
void session_drafter_ask(const struct drafter *d, struct family_forward *f, struct drafter_seen *s);
void session_drafter_begin(const struct drafter *d, const struct family_forward *f,
                           struct drafter_seen *s);
void session_drafter_end(const struct drafter *d, const struct family_forward *f,
                         const struct drafter_seen *s, const struct lane *l);

/* ---- deferred.c: rows that the drafter sees later ---- */

uint64_t session_deferred_bytes(const struct drafter *d); /* of a session */
ingle_status session_deferred_create(struct session *s, struct err *err);
void session_deferred_free(struct session *s);
/* Those from `length` on are dropped. */
void session_deferred_cut(const struct session *s, int64_t length);
/* Between steps, or before one runs: the drafter sees what it has not seen of these sessions.
 * Before their pages get other owners. */
void session_deferred_observe(struct runner *r, const struct session *const *s, int64_t n);
/* Whether it sees the rows of the next step later, which l has, if it may; makes room for them. */
bool session_deferred_plan(struct runner *r, const struct lane *l, int64_t n_spans, bool may);
/* Keeps what it would have seen of such a step; then, of each session that moved by it. */
void session_deferred_keep(const struct lane *l, const struct family_forward *f, struct rows seen);
void session_deferred_commit(const struct session *s, int64_t at, int64_t n);

/* Between these two a step runs on the device, which may be between the pieces of another one.
 * The lane is r->lane[r->depth - 1]. */
void session_device_begin(struct runner *r, struct device_suspended *first,
                          const atomic_bool *cancel);
ingle_status session_device_end(struct runner *r, struct device_suspended *first, struct err *err);
/* If the card that a part of the pages is on was lost: they are the host's from now on. */
void session_lose_own(struct runner *r);
/* If a stage was lost: waits until all are there.  What lay there is to be computed anew. */
MUST_CHECK ingle_status session_renew_stages(struct runner *r, const atomic_bool *cancel,
                                             struct err *err);
/* Whether what ended with s is to be done again, because the card or a stage was lost in it;
 * before: stage_remote_losses() as it began.  A step between its pieces may have waited for the
 * stage. */
bool session_card_lost(struct runner *r, ingle_status s, uint64_t before);
/* A step with something new ended well. */
void session_goes_on(struct runner *r);

/* One forward pass over the spans of the lane; the timelines are extended and not yet committed. */
ingle_status session_forward(struct runner *r, const struct family_step *step, family_tap_fn *tap,
                             void *tap_arg, const atomic_bool *cancel, struct err *err);
/* The step found no number in a logit: runs it again and says where it first appeared. */
ingle_status session_explain(struct runner *r, const struct family_step *step, struct err *err);

#endif
