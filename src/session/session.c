/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include "session/run.h"
#include <string.h>

ingle_status session_create(struct session **out, struct runner *r, struct err *err)
{
    struct session *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a session");
    s->r = r;
    s->prompt_end = -1;
    const ingle_status status = kv_timeline_create(&s->timeline, r->pool, r->n_ctx, err);
    if (status)
        mem_free(s);
    else
        *out = s;
    return status;
}

void session_free(struct session *s)
{
    if (!s)
        return;
    session_restore_drop(s);
    kv_timeline_free(s->timeline);
    mem_free(s->token);
    mem_free(s);
}

void session_set_salt(struct session *s, uint64_t salt)
{
    if (s->salt == salt)
        return;
    session_restore_drop(s);
    kv_timeline_clear(s->timeline);
    s->n_tokens = 0;
    s->salt = salt;
}

void session_prompt(struct session *s, int64_t n)
{
    s->prompt_end = n;
}

int64_t session_length(const struct session *s)
{
    return kv_timeline_length(s->timeline);
}

int64_t session_pending(const struct session *s)
{
    return (int64_t)s->n_tokens - session_length(s);
}

const int32_t *session_tokens(const struct session *s)
{
    return s->token;
}

static ingle_status check_tokens(const struct session *s, const int32_t *tokens, int64_t n,
                                 int64_t before, struct err *err)
{
    if (n > s->r->n_ctx - before)
        return err_set(err, INGLE_LIMIT, "%lld tokens exceed the context of %lld",
                       (long long)(before + n), (long long)s->r->n_ctx);
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= s->r->info.n_vocab)
            return err_set(err, INGLE_ARG, "token %d at %lld: the vocabulary has %lld", tokens[i],
                           (long long)(before + i), (long long)s->r->info.n_vocab);
    return INGLE_OK;
}

ingle_status session_append(struct session *s, const int32_t *tokens, int64_t n, struct err *err)
{
    const ingle_status status = check_tokens(s, tokens, n, (int64_t)s->n_tokens, err);
    if (status)
        return status;
    if (!mem_grow(&s->token, &s->cap_tokens, s->n_tokens + (size_t)n, sizeof *s->token))
        return err_set(err, INGLE_NOMEM, "no memory for %lld tokens", (long long)n);
    memcpy(s->token + s->n_tokens, tokens, (size_t)n * sizeof *tokens);
    s->n_tokens += (size_t)n;
    return INGLE_OK;
}

ingle_status session_sync_begin(struct session *s, const int32_t *tokens, int64_t n, struct err *err)
{
    ingle_status status = check_tokens(s, tokens, n, 0, err);
    if (status)
        return status;
    if (n < 1)
        return err_set(err, INGLE_ARG, "a session needs at least one token");
    session_restore_drop(s);
    if (!mem_grow(&s->token, &s->cap_tokens, (size_t)n, sizeof *s->token))
        return err_set(err, INGLE_NOMEM, "no memory for %lld tokens", (long long)n);
    status = session_restore_near(s, tokens, n, n - 1, err);
    if (status)
        kv_timeline_clear(s->timeline);
    memmove(s->token, tokens, (size_t)n * sizeof *tokens);
    s->n_tokens = (size_t)n;
    s->prompt_end = n;
    s->stable = 0;
    if (!status)
        session_restore_far(s);
    return status;
}

ingle_status session_sync(struct session *s, const int32_t *tokens, int64_t n,
                          struct session_reuse *reuse, struct err *err)
{
    if (s->r->store)
        (void)kv_store_look(s->r->store, true);
    const ingle_status status = session_sync_begin(s, tokens, n, err);
    if (status)
        return status;
    session_restore_wait(s);
    (void)session_sync_poll(s, reuse);
    return INGLE_OK;
}

void session_stable(struct session *s, int64_t n)
{
    s->stable = n > 0 && n < s->prompt_end ? n : 0;
}

ingle_status session_rewind(struct session *s, int64_t length, struct err *err)
{
    if (length < 0 || length > (int64_t)s->n_tokens)
        return err_set(err, INGLE_ARG, "rewind to %lld: the session has %zu tokens",
                       (long long)length, s->n_tokens);
    session_restore_drop(s);
    ingle_status status = INGLE_OK;
    if (length < session_length(s)) {
        if (s->r->store && length)
            (void)kv_store_look(s->r->store, true);
        status = session_restore_near(s, s->token, length, length, err);
        if (!status)
            session_restore_far(s);
        session_restore_wait(s);
    }
    if (!status)
        s->n_tokens = (size_t)length;
    return status;
}

bool session_can_rewind(const struct session *s, int64_t length)
{
    return kv_timeline_can_rewind(s->timeline, length);
}

void session_park(struct session *s)
{
    session_restore_drop(s);
    kv_timeline_clear(s->timeline);
}

ingle_status session_fork(struct session *dst, const struct session *src, struct err *err)
{
    if (dst == src)
        return INGLE_OK;
    session_restore_drop(dst);
    if (!mem_grow(&dst->token, &dst->cap_tokens, src->n_tokens, sizeof *dst->token))
        return err_set(err, INGLE_NOMEM, "no memory for %zu tokens", src->n_tokens);
    const ingle_status status = kv_timeline_fork(dst->timeline, src->timeline, err);
    if (status)
        return status;
    if (src->n_tokens)
        memcpy(dst->token, src->token, src->n_tokens * sizeof *dst->token);
    dst->n_tokens = src->n_tokens;
    dst->prompt_end = src->prompt_end;
    dst->stable = src->stable;
    dst->salt = src->salt;
    return INGLE_OK;
}

/* Puts the session into tree and store as timeline t has it. */
static ingle_status remember(struct session *s, const struct kv_timeline *t, struct err *err)
{
    const int64_t n = kv_timeline_length(t);
    ingle_status status = INGLE_OK;
    if (s->r->tree && n)
        status = kv_tree_put(s->r->tree, s->salt, t, s->token, n, NULL, 0, err);
    if (s->r->store && n && !kv_store_put(s->r->store, t, s->salt, s->token, NULL, 0) && s->r->tree)
        kv_tree_owe(s->r->tree, s->salt, s->token, n);
    return status;
}

/* Offers the store the next point that it owes; false: there is none, or still no room. */
static bool settle_one(struct runner *r)
{
    uint64_t salt;
    int64_t n;
    int32_t *token;
    const struct kv_point *p = kv_tree_owed(r->tree, &salt, &token, &n);
    if (!p)
        return false;
    const bool ok = kv_timeline_attach(r->behind, r->tree, p, NULL) == INGLE_OK;
    const bool taken = !ok || kv_store_put(r->store, r->behind, salt, token, NULL, 0);
    kv_timeline_clear(r->behind);
    if (!taken)
        kv_tree_owe(r->tree, salt, token, n);
    mem_free(token);
    return taken;
}

enum { SETTLE = 16 }; /* most of them are there already, and cost a look */

bool session_runner_settle(struct runner *r)
{
    if (!r->store)
        return false;
    if (kv_store_gave_up(r->store) && r->tree)
        kv_tree_owe_all(r->tree);
    bool more = r->tree != NULL;
    for (int i = 0; i < SETTLE && more; i++)
        more = settle_one(r);
    return kv_store_poll(r->store) || more; /* what was offered just now is to be looked after, too */
}

ingle_status session_remember(struct session *s, struct err *err)
{
    return remember(s, s->timeline, err);
}

/* What later prompts begin with; the end of this one if its pages do not reach back there. */
static ingle_status remember_prompt(struct session *s, struct err *err)
{
    struct kv_timeline *t = s->r->behind;
    if (!s->stable || !kv_timeline_can_rewind(s->timeline, s->stable))
        return session_remember(s, err);
    ingle_status status = kv_timeline_fork(t, s->timeline, err);
    if (!status)
        status = kv_timeline_rewind(t, s->stable, err);
    if (!status)
        status = remember(s, t, err);
    kv_timeline_clear(t);
    return status;
}

/* ---- the step ---- */

/* Whether its next tokens are a prompt's and computed as such. */
static bool is_prompt(const struct session *s)
{
    return device_numerics(s->r->device) == DEVICE_FAST && session_length(s) < s->prompt_end;
}

/* Tokens of a work item that this step can take. */
static int64_t share(const struct session_work *w, int64_t rows_left, int64_t logits_left)
{
    const struct session *s = w->s;
    const int64_t at = session_length(s), pending = session_pending(s);
    int64_t n = num_min(pending, rows_left);
    if (w->max_tokens > 0)
        n = num_min(n, w->max_tokens);
    if (is_prompt(s))
        n = num_min(n, s->prompt_end - at);
    /* A restore point must fall on the end of a step. */
    n = num_min(n, s->r->restore_every - at % s->r->restore_every);
    if (w->want == FAMILY_LOGITS_ALL)
        n = num_min(n, logits_left);
    if (w->want == FAMILY_LOGITS_LAST && n == pending && !logits_left)
        n = 0;
    return n;
}

struct built { int64_t n_spans, n_rows, n_logits; };

/* Adds the items whose next tokens are a prompt's, or the others. */
static ingle_status build_some(struct runner *r, struct session_work *work, int64_t n, bool prompts,
                               struct built *b, struct err *err)
{
    const struct lane *l = &r->lane[r->depth];
    for (int64_t i = 0; i < n; i++) {
        struct session_work *w = &work[i];
        BUG_IF(w->s->restore.read);
        if (is_prompt(w->s) != prompts)
            continue;
        const int64_t take = share(w, l->max_rows - b->n_rows, r->max_logits - b->n_logits);
        if (take <= 0)
            continue;
        const ingle_status s = kv_timeline_extend(w->s->timeline, take, err);
        if (s && !b->n_spans)
            return s;
        if (s) /* this one waits for pages; the others need not */
            continue;
        struct family_span *span = &l->span[b->n_spans];
        *span = (struct family_span){.timeline = w->s->timeline,
                                     .token = w->s->token + session_length(w->s),
                                     .n = take,
                                     .at = session_length(w->s),
                                     .want = w->want,
                                     .prompt = prompts};
        if (w->want == FAMILY_LOGITS_LAST && take < session_pending(w->s))
            span->want = FAMILY_LOGITS_NONE;
        w->n_logits = span->want == FAMILY_LOGITS_ALL    ? take
                      : span->want == FAMILY_LOGITS_LAST ? 1
                                                         : 0;
        w->logits = w->n_logits ? l->logits + b->n_logits * r->info.n_vocab : NULL;
        l->item[b->n_spans++] = w;
        b->n_rows += take;
        b->n_logits += w->n_logits;
    }
    return INGLE_OK;
}

static ingle_status build(struct runner *r, struct session_work *work, int64_t n,
                          struct built *b, struct err *err)
{
    *b = (struct built){0};
    for (int64_t i = 0; i < n; i++) {
        work[i].n_done = work[i].n_logits = 0;
        work[i].logits = NULL;
        work[i].failed = false;
    }
    const ingle_status s = build_some(r, work, n, false, b, err);
    return s ? s : build_some(r, work, n, true, b, err);
}

static bool logits_are_bad(const struct runner *r, const struct session_work *w)
{
    for (int64_t i = 0; i < w->n_logits; i++)
        if (device_kernels(r->device)->math.find_bad(w->logits + i * r->info.n_vocab,
                                                     r->info.n_vocab) >= 0)
            return true;
    return false;
}

/* Restore points: at the end of a prompt and at every so many tokens.  Not storing one is a
 * report of the tree, not a failure of the step. */
static void set_restore_point(struct session *s)
{
    const int64_t at = session_length(s);
    if (at != s->prompt_end && at % s->r->restore_every)
        return;
    struct err e;
    if (at == s->prompt_end ? remember_prompt(s, &e) : session_remember(s, &e))
        report(s->r->sink, INGLE_REPORT_WARN, "cache", "prefix tree", "%s", e.msg);
}

ingle_status session_step(struct runner *r, struct session_work *work, int64_t n,
                          const atomic_bool *cancel, struct err *err)
{
    struct built b;
    BUG_IF(r->depth >= SESSION_LANES);
    const struct lane *l = &r->lane[r->depth];
    ingle_status s = build(r, work, n, &b, err);
    if (s || !b.n_spans)
        return s;
    r->depth++;
    s = session_forward(r, b.n_spans, b.n_rows, b.n_logits, r->tap, r->tap_arg, cancel, err);
    bool bad = false;
    for (int64_t i = 0; !s && i < b.n_spans; i++) {
        l->item[i]->failed = logits_are_bad(r, l->item[i]);
        bad |= l->item[i]->failed;
    }
    if (bad)
        s = session_explain(r, b.n_spans, b.n_rows, b.n_logits, err);
    r->depth--;
    for (int64_t i = 0; i < b.n_spans; i++) {
        struct session_work *w = l->item[i];
        if ((s && s != INGLE_NUMERIC) || w->failed) {
            w->n_logits = 0;
            w->logits = NULL;
            continue;
        }
        w->n_done = l->span[i].n;
        kv_timeline_commit(w->s->timeline, w->n_done);
        set_restore_point(w->s);
    }
    return s;
}

ingle_status session_finish(struct session *s, const float **logits, const atomic_bool *cancel,
                            struct err *err)
{
    const int64_t total = session_pending(s);
    while (session_pending(s)) {
        struct session_work w = {.s = s, .want = FAMILY_LOGITS_LAST};
        const ingle_status status = session_step(s->r, &w, 1, cancel, err);
        if (status)
            return status;
        *logits = w.logits;
        const int64_t left = session_pending(s);
        if (total > s->r->max_rows &&
            report_progress(s->r->sink, "prefill", (double)(total - left), (double)total))
            return err_set(err, INGLE_CANCEL, "cancelled");
    }
    return INGLE_OK;
}
