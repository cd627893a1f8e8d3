/*
 * answer_parts - what each file of an answer has for the others.
 */
#ifndef INGLE_SERVER_ANSWER_PARTS_H
#define INGLE_SERVER_ANSWER_PARTS_H

#include "server/answer_inner.h"

/* ---- answer.c ---- */

void answer_ref(struct answer *a);
void answer_unref(struct answer *a); /* with no lock held */
void answer_lock(struct answer *a);
void answer_unlock(struct answer *a);
/* Whether anybody gets what it says. */
static inline bool answer_has_reader(const struct answer *a)
{
    return a->x || a->request.tape;
}
/* Sends what is in out, if it may go. */
void answer_flush(struct answer *a);
/* The client gets an error, the parts are cancelled. */
void answer_fail(struct answer *a, const struct fault *f);
void answer_cancel(struct answer *a);
/* The stream's last bytes are out. */
void answer_end_stream(struct answer *a);
/* The client has had all: lets go of the exchange. */
void answer_finish(struct answer *a);
/* FAULT_MODEL where only the model's own names will do and this is none. */
void answer_check_model(const struct answer_core *c, const struct chat_request *r, struct fault *f);

/* ---- answer_prompt.c ---- */

/* Fills parts, runs, grammar and info of a new answer. */
void answer_prepare(struct answer *a, struct fault *f);
void answer_release_parts(struct answer *a);
/* The fault of a grammar or of tools, of a request without a prompt. */
void answer_check_grammar(const struct answer_core *c, struct http_exchange *x,
                          const struct chat_request *r, struct fault *f);

/* ---- answer_run.c ---- */

/* Hands the parts to the scheduler that it has not; a->lock is held.  Those that find the queue
 * full after others of this answer are left for the next call. */
void answer_submit(struct answer *a, struct fault *f);
/* The rest of them, on the I/O thread. */
void answer_submit_rest(struct answer *a);
void answer_begin(struct answer *a);

/* ---- answer_choice.c ---- */

MUST_CHECK ingle_status answer_open_reader(struct answer_run *r, struct ingle_error *err);
void answer_release_run(struct answer_run *r);
/* A drawn token.  False: no more of them are wanted. */
bool answer_take(struct answer_run *r, const struct ingle_drawn *d);
/* The text of the prompt comes first. */
void answer_echo(struct answer_run *r);
/* Where the tokens of the part's prompt are kept: the first part of the prompt has them once it has
 * all. */
const struct answer_echo *answer_echo_of(const struct answer_part *p);
/* There are no more tokens. */
void answer_end(struct answer_run *r, enum ingle_finish why);

/* Tokens that are computed of a part's prompt. */
static inline int64_t answer_part_n(const struct answer_part *p)
{
    return p->kept.n ? p->kept.n : (int64_t)p->n_ids;
}
/* Where media are among them, [p->n_spans]. */
static inline const struct ingle_span *answer_part_span(const struct answer_part *p)
{
    return p->kept.n ? p->kept.span : p->span;
}

#endif
