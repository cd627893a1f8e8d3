/* SPDX-License-Identifier: Apache-2.0 */
/* branch - drafted tokens that part from a session's own: a timeline that shares its pages, for one
 * step. */
#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include "session/parts.h"
#include "session/run.h"
#include <string.h>

ingle_status session_branch_create(struct session_branch **out, struct runner *r, struct err *err)
{
    struct session_branch *b = mem_zalloc(sizeof *b);
    if (!b)
        return err_set(err, INGLE_NOMEM, "no memory for a branch of drafts");
    const ingle_status s = kv_timeline_create(&b->timeline, r->pool, r->n_ctx, err);
    if (s)
        mem_free(b);
    else
        *out = b;
    return s;
}

void session_branch_free(struct session_branch *b)
{
    if (!b)
        return;
    kv_timeline_free(b->timeline);
    mem_free(b);
}

bool session_branch_bytes(const struct runner *r, uint64_t *out)
{
    return kv_branch_bytes(&r->spec, out);
}

void session_branch_set(struct session_branch *b, int64_t at, const int32_t *token, int64_t n)
{
    BUG_IF(n < 1 || n > SESSION_BRANCH_TOKENS);
    session_branch_clear(b);
    b->at = at;
    b->n = n;
    memcpy(b->token, token, (size_t)n * sizeof *token);
}

int64_t session_branch_at(const struct session_branch *b)
{
    return b->at;
}

const int32_t *session_branch_tokens(const struct session_branch *b, int64_t *n)
{
    *n = b->n;
    return b->token;
}

const float *session_branch_logits(const struct session_branch *b)
{
    return b->logits;
}

void session_branch_clear(struct session_branch *b)
{
    kv_timeline_clear(b->timeline);
    b->logits = NULL;
    b->n = 0;
}

bool session_branch_room(const struct session_work *w)
{
    int64_t most = 0;
    for (int64_t k = 0; k < w->n_branches; k++)
        most = num_max(most, w->branch[k]->at + w->branch[k]->n);
    return mem_grow(&w->s->token, &w->s->cap_tokens, (size_t)most, sizeof *w->s->token) &&
           session_soft_room(w->s, (size_t)most);
}

/* A step ends at a restore point at the latest, and a page that is begun is copied: what a branch
 * takes is bounded by both. */
bool session_branch_begin(struct session_branch *b, const struct session_work *w, int64_t n_rows,
                          int64_t row, struct family_span *span, struct family_mirror *mirror)
{
    struct session *s = w->s;
    struct err full;
    const int64_t length = session_length(s), shared = b->at - length, all = shared + b->n;
    b->logits = NULL;
    if (!b->n || shared < 1 || shared > n_rows || all > KV_PAGE ||
        all > session_next_stop(s, length) - length)
        return false;
    if (b->at + b->n > (int64_t)s->cap_tokens)
        return false;
    if (kv_timeline_fork(b->timeline, s->timeline, &full) ||
        kv_timeline_extend(b->timeline, all, &full)) {
        kv_timeline_clear(b->timeline);
        return false;
    }
    *span = (struct family_span){.timeline = b->timeline,
                                 .token = b->token,
                                 .n = b->n,
                                 .at = b->at,
                                 .want = FAMILY_LOGITS_ALL,
                                 .select = s->way.select.part ? &s->way.select : NULL,
                                 .selected = &s->seen.select};
    if (span->select)
        span->whole = session_whole(s);
    *mirror =
        (struct family_mirror){.timeline = b->timeline, .row = row, .n = shared, .at = length};
    return true;
}

void session_branch_take(struct session *s, struct session_branch *b)
{
    BUG_IF(!b->logits || b->at > (int64_t)s->n_tokens);
    kv_timeline_commit(b->timeline, b->at + b->n - kv_timeline_length(b->timeline));
    struct kv_timeline *t = s->timeline;
    s->timeline = b->timeline;
    b->timeline = t;
    session_soft_cut(s, b->at);
    memcpy(s->token + b->at, b->token, (size_t)b->n * sizeof *s->token);
    s->n_tokens = (size_t)(b->at + b->n);
    session_branch_clear(b);
}
