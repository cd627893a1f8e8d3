/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include "session/parts.h"
#include "session/run.h"
#include <string.h>

ingle_status session_create(struct session **out, struct runner *r, struct err *err)
{
    struct session *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a session");
    s->r = r;
    s->prompt_end = -1;
    session_use_way(s, &(struct kv_way){.select = r->select});
    s->whole = mem_calloc((size_t)(r->n_ctx / KV_PAGE) + 1, sizeof *s->whole);
    ingle_status status = s->whole ? kv_timeline_create(&s->timeline, r->pool, r->n_ctx, err)
                                   : err_set(err, INGLE_NOMEM, "no memory for a session");
    if (!status)
        status = session_deferred_create(s, err);
    if (status)
        session_free(s);
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
    session_deferred_free(s);
    session_soft_drop(s->r, s->soft, s->n_soft);
    mem_free(s->soft);
    mem_free(s->key);
    mem_free(s->whole);
    mem_free(s->token);
    mem_free(s);
}

void session_set_salt(struct session *s, uint64_t salt)
{
    if (s->salt == salt)
        return;
    session_restore_drop(s);
    kv_timeline_clear(s->timeline);
    session_deferred_cut(s, 0);
    session_soft_cut(s, 0);
    s->n_tokens = 0;
    s->salt = salt;
    s->scope.salt = kv_select_salt(salt, &s->way.select);
}

/* Its first `same` positions stay at most, as they were. */
static void keep_same(struct session *s, int64_t same)
{
    struct err err;
    session_restore_drop(s);
    if (session_length(s) <= same)
        return;
    if (!kv_timeline_can_rewind(s->timeline, same) || kv_timeline_rewind(s->timeline, same, &err))
        kv_timeline_clear(s->timeline);
    session_deferred_cut(s, session_length(s));
}

void session_set_way(struct session *s, const struct kv_way *w)
{
    const struct kv_way was = session_way(s);
    BUG_IF(w->select.part && !s->r->select.part);
    const int64_t same = kv_way_same(&was, w);
    if (same != INT64_MAX)
        keep_same(s, same);
    session_use_way(s, w);
}

struct session_seen session_take_seen(struct session *s)
{
    const struct session_seen seen = s->seen;
    s->seen = (struct session_seen){0};
    return seen;
}

static void no_borders(struct session *s)
{
    s->border = (struct session_borders){.n = 0};
    s->next_border = 0;
}

void session_prompt(struct session *s, int64_t n)
{
    s->prompt_end = n;
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
    const int64_t skipped = kv_gaps_skipped(kv_timeline_gaps(s->timeline)),
                  most = num_max(s->r->info.n_ctx, s->r->n_ctx);
    if (n > most - skipped - before)
        return err_set(
            err, INGLE_LIMIT,
            "%lld tokens, of which %lld are left out, exceed the %lld positions of the model",
            (long long)(before + n + skipped), (long long)skipped, (long long)most);
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= s->r->info.n_vocab)
            return err_set(err, INGLE_ARG, "token %d at %lld: the vocabulary has %lld", tokens[i],
                           (long long)(before + i), (long long)s->r->info.n_vocab);
    return INGLE_OK;
}

ingle_status session_append(struct session *s, const int32_t *tokens, int64_t n, struct err *err)
{
    return session_append_soft(s, tokens, n, NULL, 0, err);
}

ingle_status session_append_soft(struct session *s, const int32_t *tokens, int64_t n,
                                 const struct session_soft *soft, size_t n_soft, struct err *err)
{
    const size_t n_all = s->n_tokens + (size_t)n;
    ingle_status status = check_tokens(s, tokens, n, (int64_t)s->n_tokens, err);
    if (!status)
        status = session_soft_check(soft, n_soft, n, err);
    if (status)
        return status;
    if (!mem_grow(&s->token, &s->cap_tokens, n_all, sizeof *s->token) ||
        ((s->n_soft || n_soft) && !mem_grow(&s->key, &s->cap_keys, n_all, sizeof *s->key)) ||
        (n_soft && !mem_grow(&s->soft, &s->cap_soft, s->n_soft + n_soft, sizeof *s->soft)))
        return err_set(err, INGLE_NOMEM, "no memory for %lld tokens", (long long)n);
    if (n_soft)
        status = session_soft_copy(s->r, soft, n_soft, (int64_t)s->n_tokens, s->soft + s->n_soft,
                                   err);
    if (status)
        return status;
    s->n_soft += n_soft;
    status = n_soft ? session_select_fits(s, err) : INGLE_OK;
    if (status) {
        session_soft_drop(s->r, s->soft + s->n_soft - n_soft, n_soft);
        s->n_soft -= n_soft;
        return status;
    }
    memcpy(s->token + s->n_tokens, tokens, (size_t)n * sizeof *tokens);
    s->n_tokens += (size_t)n;
    return INGLE_OK;
}

static const double SLOW_S = 0.05; /* a token: not without a warning */

/* Before steps read keys and values from disk, and when they have become twice as many. */
static void report_disk(struct session *s, int64_t n)
{
    const uint64_t bytes = session_runner_disk_bytes(s->r, n);
    struct kv_disk_counts disk;
    if (!bytes || bytes / 2 < s->reported_disk)
        return;
    s->reported_disk = bytes;
    session_runner_disk_count(s->r, &disk);
    const bool large = bytes >> 30;
    const double part = s->way.select.part ? (double)kern_select_budget(&s->way.select, n - 1) /
                                             (double)num_div_up(n, KV_PAGE)
                                       : 1.0;
    const double seconds = disk.rate > 0 ? (double)bytes * part / disk.rate : 0.0;
    report(s->r->sink, seconds < SLOW_S ? INGLE_REPORT_NOTE : INGLE_REPORT_WARN, "kv-paging",
           "keys and values", "up to %.1f %s of keys and values are on disk: about %.2g s a token",
           (double)bytes / (large ? 1 << 30 : 1 << 20), large ? "GiB" : "MiB", seconds);
}

ingle_status session_sync_own_begin(struct session *s, int64_t n, struct err *err)
{
    size_t n_soft = 0;
    while (n_soft < s->n_soft && s->soft[n_soft].start + s->soft[n_soft].medium->n <= n)
        n_soft++;
    struct session_soft *soft = mem_calloc(n_soft + 1, sizeof *soft);
    if (!soft)
        return err_set(err, INGLE_NOMEM, "no memory for %zu media", n_soft);
    for (size_t i = 0; i < n_soft; i++)
        soft[i] = session_medium_at(s, i);
    const ingle_status status = session_sync_soft_begin(s, s->token, n, soft, n_soft, err);
    mem_free(soft);
    return status;
}

/* What a sync makes of a session: its media, and tokens with keys. */
struct wanted {
    struct soft *soft;
    const int32_t *key;
    int32_t *own; /* key, where there are media */
};

static ingle_status want(struct session *s, const int32_t *tokens, int64_t n,
                         const struct session_soft *soft, size_t n_soft, struct wanted *w,
                         struct err *err)
{
    *w = (struct wanted){.key = tokens};
    if (!n_soft)
        return INGLE_OK;
    ingle_status status = session_soft_check(soft, n_soft, n, err);
    if (status)
        return status;
    w->soft = mem_calloc(n_soft, sizeof *w->soft);
    if (!w->soft)
        return err_set(err, INGLE_NOMEM, "no memory for %zu media", n_soft);
    status = session_soft_copy(s->r, soft, n_soft, 0, w->soft, err);
    if (!status && !session_soft_keys(w->soft, n_soft, tokens, n, &w->own)) {
        session_soft_drop(s->r, w->soft, n_soft);
        status = err_set(err, INGLE_NOMEM, "no memory for %lld tokens", (long long)n);
    }
    if (status)
        mem_free(w->soft);
    w->key = w->own;
    return status;
}

ingle_status session_sync_soft_begin(struct session *s, const int32_t *tokens, int64_t n,
                                     const struct session_soft *soft, size_t n_soft,
                                     struct err *err)
{
    struct wanted w;
    ingle_status status = check_tokens(s, tokens, n, 0, err);
    if (status)
        return status;
    if (n < 1)
        return err_set(err, INGLE_ARG, "a session needs at least one token");
    session_restore_drop(s);
    const bool is_own = tokens == s->token;
    if (!mem_grow(&s->token, &s->cap_tokens, (size_t)n, sizeof *s->token))
        return err_set(err, INGLE_NOMEM, "no memory for %lld tokens", (long long)n);
    tokens = is_own ? s->token : tokens;
    status = want(s, tokens, n, soft, n_soft, &w, err);
    if (status)
        return status;
    const int32_t *have = session_keys(s);
    struct soft *old = s->soft;
    const size_t n_old = s->n_soft;
    s->soft = w.soft;
    s->n_soft = s->cap_soft = n_soft;
    status = session_restore_near(s, have, w.key, n, session_outside(s, n - 1), err);
    if (status)
        kv_timeline_clear(s->timeline);
    session_soft_drop(s->r, old, n_old);
    mem_free(old);
    mem_free(s->key);
    s->key = w.own;
    s->n_keys = s->cap_keys = w.own ? (size_t)n : 0;
    memmove(s->token, tokens, (size_t)n * sizeof *tokens);
    s->n_tokens = (size_t)n;
    s->prompt_end = n;
    no_borders(s);
    s->reported_disk = 0;
    report_disk(s, n);
    if (!status)
        status = session_select_fits(s, err);
    if (!status)
        session_restore_far(s);
    return status;
}

ingle_status session_sync(struct session *s, const int32_t *tokens, int64_t n,
                          struct session_reuse *reuse, struct err *err)
{
    return session_sync_soft(s, tokens, n, NULL, 0, reuse, err);
}

ingle_status session_sync_soft(struct session *s, const int32_t *tokens, int64_t n,
                               const struct session_soft *soft, size_t n_soft,
                               struct session_reuse *reuse, struct err *err)
{
    if (s->r->store)
        (void)kv_store_look(s->r->store, true);
    const ingle_status status = session_sync_soft_begin(s, tokens, n, soft, n_soft, err);
    if (status)
        return status;
    session_restore_wait(s);
    (void)session_sync_poll(s, reuse);
    return INGLE_OK;
}

void session_set_borders(struct session *s, const struct session_borders *b)
{
    no_borders(s);
    for (int i = 0; i < b->n && b->at[i] <= (int64_t)s->n_tokens; i++) {
        s->border.at[s->border.n++] = b->at[i];
        if (s->r->tree)
            (void)kv_tree_use(s->r->tree, s->scope, session_keys(s), b->at[i],
                              b->at[i] == b->shared);
    }
    s->border.shared = b->shared;
}

int64_t session_border_before(const struct session *s, int64_t n)
{
    struct kv_tree_counts tree;
    int64_t at = 0;
    uint64_t bytes;
    for (int i = s->next_border; i < s->border.n; i++)
        if (s->border.at[i] > session_length(s) && s->border.at[i] < n)
            at = s->border.at[i];
    if (!at || !s->r->tree || !kv_plan_bytes(&s->r->spec, at, 0, &bytes))
        return 0;
    kv_tree_count(s->r->tree, &tree);
    return bytes <= tree.budget_bytes / 2 ? at : 0;
}

/* Not storing a restore point is a report of the tree, not a failure of the step. */
static void report_lost(const struct session *s, ingle_status status, const struct err *why)
{
    if (status)
        report(s->r->sink, INGLE_REPORT_WARN, "cache", "prefix tree", "%s", why->msg);
}

ingle_status session_rewind(struct session *s, int64_t length, struct err *err)
{
    if (length < 0 || length > (int64_t)s->n_tokens)
        return err_set(err, INGLE_ARG, "rewind to %lld: the session has %zu tokens",
                       (long long)length, s->n_tokens);
    session_restore_drop(s);
    ingle_status status = INGLE_OK;
    length = session_outside(s, length);
    if (length < session_length(s)) {
        if (s->r->store && length)
            (void)kv_store_look(s->r->store, true);
        const int32_t *key = session_keys(s);
        status = session_restore_near(s, key, key, length, length, err);
        if (!status)
            session_restore_far(s);
        session_restore_wait(s);
    }
    if (status)
        return status;
    session_soft_cut(s, length);
    s->n_tokens = (size_t)length;
    while (s->border.n && s->border.at[s->border.n - 1] > length)
        s->border.n--;
    s->next_border = s->next_border < s->border.n ? s->next_border : s->border.n;
    return INGLE_OK;
}

void session_keep(struct session *s, int64_t length)
{
    struct err err;
    BUG_IF(length > (int64_t)s->n_tokens);
    if (length < session_length(s))
        BUG_IF(kv_timeline_rewind(s->timeline, length, &err));
    session_deferred_cut(s, length);
    session_soft_cut(s, length);
    s->n_tokens = (size_t)length;
    if (length && length == session_length(s) && session_is_stop(s, length))
        report_lost(s, session_remember(s, &err), &err);
}

bool session_can_rewind(const struct session *s, int64_t length)
{
    return kv_timeline_can_rewind(s->timeline, length);
}

void session_park(struct session *s)
{
    session_restore_drop(s);
    kv_timeline_clear(s->timeline);
    session_deferred_cut(s, 0);
}

ingle_status session_fork(struct session *dst, const struct session *src, struct err *err)
{
    if (dst == src)
        return INGLE_OK;
    session_restore_drop(dst);
    if (!mem_grow(&dst->token, &dst->cap_tokens, src->n_tokens, sizeof *dst->token) ||
        (src->n_soft &&
         (!mem_grow(&dst->key, &dst->cap_keys, src->n_tokens, sizeof *dst->key) ||
          !mem_grow(&dst->soft, &dst->cap_soft, src->n_soft, sizeof *dst->soft))))
        return err_set(err, INGLE_NOMEM, "no memory for %zu tokens", src->n_tokens);
    session_deferred_observe(src->r, &src, 1);
    session_deferred_cut(dst, 0);
    const ingle_status status = kv_timeline_fork(dst->timeline, src->timeline, err);
    if (status)
        return status;
    if (src->n_tokens)
        memcpy(dst->token, src->token, src->n_tokens * sizeof *dst->token);
    session_soft_cut(dst, 0);
    for (size_t i = 0; i < src->n_soft; i++) {
        struct soft *to = &dst->soft[dst->n_soft++];
        *to = src->soft[i];
        to->medium->hold(to->medium, 1);
        kv_media_hold(kv_pool_media(src->r->pool), to->number);
    }
    dst->n_tokens = src->n_tokens;
    dst->prompt_end = src->prompt_end;
    dst->border = src->border;
    dst->next_border = src->next_border;
    dst->salt = src->salt;
    const struct kv_way way = session_way(src);
    session_use_way(dst, &way);
    return INGLE_OK;
}

/* The widest window, or the least that the store saves: what a file between two others is to add,
 * so that the windows in it are at most half of what is written. */
static int64_t least_between(const struct runner *r)
{
    int64_t most = 0;
    for (uint32_t g = 0; g < r->spec.n_groups; g++)
        most = num_max(most, r->spec.group[g].window);
    return most;
}

/* Puts the session into tree and store as timeline t has it.  between: there will be restore points
 * after it soon. */
static ingle_status remember(struct session *s, const struct kv_timeline *t, bool between,
                             struct err *err)
{
    const int64_t n = kv_timeline_length(t), least = between ? least_between(s->r) : 0;
    ingle_status status = INGLE_OK;
    if (session_outside(s, n) != n) /* nobody can go on inside a medium */
        return INGLE_OK;
    const int32_t *key = session_keys(s);
    if (s->r->tree && n)
        status = kv_tree_put(s->r->tree, s->scope, t, key, n, NULL, 0, err);
    if (s->r->store && n && !kv_store_put(s->r->store, t, s->scope, key, least, NULL, 0) &&
        s->r->tree)
        kv_tree_owe(s->r->tree, s->scope, key, n);
    return status;
}

ingle_status session_remember(struct session *s, struct err *err)
{
    const struct session *one = s;
    session_deferred_observe(s->r, &one, 1);
    return remember(s, s->timeline, false, err);
}

/* ---- the step ---- */

bool session_prompt_differs(const struct session *s)
{
    return device_numerics(s->r->device) == DEVICE_FAST || s->way.sparse || s->way.select.part;
}

/* Whether its next tokens are a prompt's and computed as such. */
static bool is_prompt(const struct session *s)
{
    return session_prompt_differs(s) && session_length(s) < s->prompt_end;
}

/* Tokens of a work item that this step can take. */
static int64_t share(const struct session_work *w, int64_t rows_left, int64_t room,
                     int64_t logits_left, bool *single)
{
    const struct session *s = w->s;
    const int64_t at = session_length(s), pending = session_pending(s);
    const bool all = w->want == FAMILY_LOGITS_ALL;
    int64_t n = num_min(pending, rows_left);
    if (w->max_tokens > 0)
        n = num_min(n, w->max_tokens);
    if (is_prompt(s))
        n = num_min(n, s->prompt_end - at);
    /* A restore point must fall on the end of a step. */
    const int64_t every = s->r->restore_every;
    n = num_min(n, s->n_soft ? session_next_stop(s, at) - at : every - at % every);
    if (all)
        n = num_min(n, logits_left);
    *single = false;
    if (s->n_soft)
        n = session_soft_share(s, n, room, all, single);
    if (w->want == FAMILY_LOGITS_LAST && n == pending && !logits_left)
        n = 0;
    return n;
}

/* With pages for the restore points on the way, or without them where there are too few. */
static ingle_status extend(struct session *s, int64_t n, struct err *err)
{
    kv_timeline_mark(s->timeline, s->border.at + s->next_border, s->border.n - s->next_border);
    const ingle_status status = kv_timeline_extend(s->timeline, n, err);
    kv_timeline_mark(s->timeline, NULL, 0);
    return status == INGLE_LIMIT ? kv_timeline_extend(s->timeline, n, err) : status;
}

static ingle_status no_rows(const struct session *s, struct err *err)
{
    const struct session_medium *m = session_lacks(s, -1);
    for (size_t i = 0; i < s->n_soft; i++)
        if (s->soft[i].medium == m)
            return err_set(err, INGLE_NOTFOUND,
                           "the %s at tokens %lld to %lld is not there, only its name: it must be "
                           "given again",
                           m->sound ? "sound" : "picture", (long long)s->soft[i].start,
                           (long long)(s->soft[i].start + m->n));
    return INGLE_OK;
}

/* Adds the items whose next tokens are a prompt's, or the others. */
static ingle_status build_some(struct runner *r, struct session_work *work, int64_t n, bool prompts,
                               struct built *b, struct err *err)
{
    struct lane *l = &r->lane[r->depth];
    for (int64_t i = 0; i < n; i++) {
        struct session_work *w = &work[i];
        BUG_IF(w->s->restore.read);
        if (is_prompt(w->s) != prompts)
            continue;
        bool single;
        const int64_t take = share(w, l->most - b->n_rows, l->max_rows - b->n_rows,
                                   r->max_logits - b->n_logits, &single);
        if (take <= 0)
            continue;
        if (w->s->n_soft && session_lacks(w->s, take))
            return no_rows(w->s, err);
        ingle_status s = prompts ? INGLE_OK : session_select_fits(w->s, err);
        if (s)
            return s;
        s = extend(w->s, take, err);
        if (s && !b->n_spans)
            return s;
        if (s) /* this one waits for pages; the others need not */
            continue;
        report_disk(w->s, session_length(w->s) + take);
        const bool sparse =
            prompts && kv_sparse_at(w->s->way.sparse, session_length(w->s) + take);
        struct family_span *span = &l->span[b->n_spans];
        *span = (struct family_span){.timeline = w->s->timeline,
                                     .token = w->s->token + session_length(w->s),
                                     .n = take,
                                     .at = session_length(w->s),
                                     .want = w->want,
                                     .prompt = prompts,
                                     .sparse = sparse ? &w->s->sparse : NULL,
                                     .seen = sparse ? &w->s->seen.sparse : NULL,
                                     .select = w->s->way.select.part && !prompts
                                                   ? &w->s->way.select
                                                   : NULL,
                                     .selected = &w->s->seen.select};
        if (sparse)
            w->s->sparse.whole = session_whole(w->s);
        if (span->select)
            span->whole = session_whole(w->s);
        if (w->want == FAMILY_LOGITS_LAST && take < session_pending(w->s))
            span->want = FAMILY_LOGITS_NONE;
        if (single)
            span->want = FAMILY_LOGITS_LAST;
        if (w->s->n_soft) {
            span->soft = l->soft + l->n_soft;
            span->n_soft = session_soft_rows(w->s, take, l->soft + l->n_soft);
            l->n_soft += span->n_soft;
        }
        w->n_logits = span->want == FAMILY_LOGITS_ALL    ? take
                      : span->want == FAMILY_LOGITS_LAST ? 1
                                                         : 0;
        l->branch[b->n_spans] = NULL;
        l->item[b->n_spans++] = w;
        b->n_rows += take;
        b->n_logits += w->n_logits;
    }
    return INGLE_OK;
}

/* Those of the span at `of`, whose rows begin at `row`, before the span at `to`: nobody else lacks
 * room because of them. */
static int64_t build_branches(struct runner *r, int64_t of, int64_t row, int64_t to,
                              struct built *b)
{
    const struct lane *l = &r->lane[r->depth];
    struct session_work *w = l->item[of];
    const struct session *one = w->s;
    const int64_t first = to;
    if (w->n_branches) /* before their pages are copied */
        session_deferred_observe(r, &one, 1);
    for (int64_t k = 0; k < w->n_branches; k++) {
        struct session_branch *own = w->branch[k];
        struct family_span span;
        if (own->n > l->most - b->n_rows || own->n > r->max_logits - b->n_logits ||
            !session_branch_begin(own, w, l->span[of].n, row, &span, &l->mirror[b->n_mirrors]))
            continue;
        const size_t n_after = (size_t)(b->n_spans - to);
        memmove(l->span + to + 1, l->span + to, n_after * sizeof *l->span);
        memmove(l->item + to + 1, l->item + to, n_after * sizeof(struct session_work *));
        memmove(l->branch + to + 1, l->branch + to, n_after * sizeof(struct session_branch *));
        l->span[to] = span;
        l->item[to] = w;
        l->branch[to++] = own;
        b->n_spans++;
        b->n_mirrors++;
        b->n_rows += own->n;
        b->n_logits += own->n;
        w->n_branch_rows += own->n;
    }
    return to - first;
}

/* Where the logits of each span will be. */
static void lay_logits(const struct runner *r, const struct built *b)
{
    const struct lane *l = &r->lane[r->depth];
    const float *at = l->logits;
    for (int64_t i = 0; i < b->n_spans; i++) {
        struct session_work *w = l->item[i];
        if (l->branch[i])
            l->branch[i]->logits = at;
        else
            w->logits = w->n_logits ? at : NULL;
        at += (l->branch[i] ? l->branch[i]->n : w->n_logits) * r->info.n_vocab;
    }
}

static ingle_status build(struct runner *r, struct session_work *work, int64_t n,
                          struct built *b, struct err *err)
{
    *b = (struct built){0};
    r->lane[r->depth].n_soft = 0;
    for (int64_t i = 0; i < n; i++) {
        work[i].n_done = work[i].n_logits = work[i].n_branch_rows = 0;
        work[i].logits = NULL;
        work[i].failed = false;
        if (!session_branch_room(&work[i])) /* before spans know where tokens are */
            work[i].n_branches = 0;
    }
    ingle_status s = build_some(r, work, n, false, b, err);
    const int64_t others = b->n_spans;
    if (!s)
        s = build_some(r, work, n, true, b, err);
    for (int64_t i = 0, row = 0, to = others; !s && i < others;
         row += r->lane[r->depth].span[i++].n)
        to += build_branches(r, i, row, to, b);
    lay_logits(r, b);
    return s;
}

static bool logits_are_bad(const struct runner *r, const float *logits, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (device_kernels(r->device)->math.find_bad(logits + i * r->info.n_vocab,
                                                     r->info.n_vocab) >= 0)
            return true;
    return false;
}

/* Whether those of a span are; a branch is then as if it had not been computed. */
static bool span_is_bad(const struct runner *r, const struct lane *l, int64_t i)
{
    struct session_work *w = l->item[i];
    struct session_branch *b = l->branch[i];
    if (b && logits_are_bad(r, b->logits, b->n))
        b->logits = NULL;
    return !b && (w->failed = logits_are_bad(r, w->logits, w->n_logits));
}

/* Of the borders up to `to` tokens, which have been written, those whose windows are there. */
static void set_borders(struct session *s, int64_t to)
{
    struct kv_timeline *t = s->r->snapshot;
    struct err why;
    for (; s->next_border < s->border.n && s->border.at[s->next_border] <= to; s->next_border++) {
        const int64_t at = s->border.at[s->next_border];
        const bool between = at != s->border.shared && s->next_border + 1 < s->border.n;
        if (kv_timeline_view(t, s->timeline, at))
            report_lost(s, remember(s, t, between, &why), &why);
        kv_timeline_clear(t);
    }
}

/* The end of a prompt needs a restore point unless there is one near it, which it can be reached
 * from. */
static bool is_far_end(struct session *s, int64_t at)
{
    const int64_t last = s->border.n ? s->border.at[s->border.n - 1] : 0;
    if (at != s->prompt_end)
        return false;
    return !last || at - last > KV_REWIND || !s->r->tree ||
           !kv_tree_use(s->r->tree, s->scope, session_keys(s), last, false);
}

/* n more tokens have been computed. */
static void commit(struct session *s, int64_t n, bool guessed, bool deferred)
{
    struct err why;
    const int64_t at = session_length(s) + n;
    if (!guessed)
        set_borders(s, at);
    if (deferred)
        session_deferred_commit(s, at - n, n);
    kv_timeline_commit(s->timeline, n);
    if (guessed)
        return;
    if (is_far_end(s, at) || session_is_stop(s, at))
        report_lost(s, session_remember(s, &why), &why);
}

/* If it was a page on disk that could not be read: nobody uses it again, and who comes next
 * computes anew what was there. */
static void forget_damaged(struct runner *r, const struct session_work *work, int64_t n,
                           const struct kv_disk_counts *before)
{
    struct kv_disk_counts now;
    kv_disk_count(r->pool, &now);
    if (now.failed == before->failed)
        return;
    for (int64_t i = 0; i < n; i++) {
        struct session *s = work[i].s;
        bool away = false;
        for (uint32_t g = 0; g < r->spec.n_groups; g++)
            away |= kv_timeline_is_away(s->timeline, g);
        if (away)
            session_park(s);
    }
    session_runner_clear_tree(r);
}

/* What a part of its pages lay on, a card or a stage, was lost: they are read from files, as far as
 * all who have parts of them have these, and computed anew. */
static ingle_status renew(struct session *s, const atomic_bool *cancel, struct err *err)
{
    const int64_t length = session_length(s);
    session_park(s);
    session_restore_lost(s, length);
    while (session_length(s) < length) {
        struct session_work w = {.s = s, .max_tokens = length - session_length(s)};
        const bool within = s->r->renews;
        w.want = FAMILY_LOGITS_NONE;
        s->r->renews = true;
        const ingle_status st = session_step(s->r, &w, 1, cancel, err);
        s->r->renews = within;
        if (st)
            return st;
        if (!w.n_done)
            return err_set(err, INGLE_LIMIT, "no room to compute %lld tokens anew",
                           (long long)length);
    }
    return INGLE_OK;
}

/* The same of one that nothing waits for. */
static ingle_status renew_lost(struct session *s, const atomic_bool *cancel, struct err *err)
{
    session_lose_own(s->r);
    const ingle_status there = session_renew_stages(s->r, cancel, err);
    return there || !kv_timeline_is_lost(s->timeline) ? there : renew(s, cancel, err);
}

/* Whether pages of theirs lay on the card, or did until a step in between lost it. */
static bool had_own(const struct runner *r, const struct session_work *work, int64_t n)
{
    bool had = r->own || r->stages;
    for (int64_t i = 0; i < n; i++)
        had = had || kv_timeline_is_lost(work[i].s->timeline);
    return had;
}

/* What was computed is the sessions', if it was; s: how it went. */
static void end_step(const struct lane *l, const struct built *b, ingle_status s)
{
    for (int64_t i = 0; i < b->n_spans; i++) {
        struct session_work *w = l->item[i];
        if (l->branch[i]) {
            if ((s && s != INGLE_NUMERIC) || w->failed || !l->branch[i]->logits)
                session_branch_clear(l->branch[i]);
            continue;
        }
        if ((s && s != INGLE_NUMERIC) || w->failed) {
            w->n_logits = 0;
            w->logits = NULL;
            continue;
        }
        w->n_done = l->span[i].n;
        commit(w->s, w->n_done, w->guessed, l->deferred);
    }
}

ingle_status session_step(struct runner *r, struct session_work *work, int64_t n,
                          const atomic_bool *cancel, struct err *err)
{
    struct built b;
    struct kv_disk_counts before;
    BUG_IF(r->depth >= SESSION_LANES);
    const uint64_t losses = stage_remote_losses(r->stages);
    session_lose_own(r);
    const ingle_status there = session_renew_stages(r, cancel, err);
    if (there)
        return there;
    for (int64_t i = 0; i < n; i++) {
        const ingle_status st =
            kv_timeline_is_lost(work[i].s->timeline) ? renew(work[i].s, cancel, err) : INGLE_OK;
        if (st)
            return st;
    }
    struct lane *l = &r->lane[r->depth];
    kv_disk_count(r->pool, &before);
    ingle_status s = build(r, work, n, &b, err);
    if (s == INGLE_IO)
        forget_damaged(r, work, n, &before);
    if (s || !b.n_spans)
        return s;
    /* a branch's rows are seen with it */
    l->deferred = session_deferred_plan(r, l, b.n_spans, !b.n_mirrors);
    r->depth++;
    const struct family_step step = {.span = l->span,
                                     .n_spans = b.n_spans,
                                     .n_rows = b.n_rows,
                                     .n_logits = b.n_logits,
                                     .mirror = l->mirror,
                                     .n_mirrors = b.n_mirrors};
    s = session_forward(r, &step, r->tap, r->tap_arg, cancel, err);
    const bool lost = session_card_lost(r, s, losses);
    if (lost && had_own(r, work, n)) { /* with its pages */
        r->depth--;
        for (int64_t i = 0; i < b.n_spans; i++)
            if (l->branch[i])
                session_branch_clear(l->branch[i]);
        for (int64_t i = 0; i < n; i++)
            work[i].n_branches = 0;
        return session_step(r, work, n, cancel, err);
    }
    if (!s && !r->renews && !stage_remote_is_ahead(r->stages))
        session_goes_on(r);
    if (lost) /* on the processor now */
        s = session_forward(r, &step, r->tap, r->tap_arg, cancel, err);
    bool bad = false;
    for (int64_t i = 0; !s && i < b.n_spans; i++)
        bad |= span_is_bad(r, l, i);
    if (bad)
        s = session_explain(r, &step, err);
    r->depth--;
    end_step(l, &b, s);
    if (s == INGLE_IO)
        forget_damaged(r, work, n, &before);
    return s;
}

/* ---- steps that are under way together ---- */

int session_runner_flights(const struct runner *r)
{
    return r->n_flights;
}

/* Sessions of which nothing comes back go on: stages compute in the order of the steps. */
static void commit_ahead(struct flight *f, struct lane *l)
{
    int64_t n = 0;
    if (!f->trip || f->forward.tap)
        return;
    for (int64_t k = 0; k < f->built.n_spans; k++) {
        struct session_work *w = l->item[k];
        if (w->n_logits) {
            l->item[n] = w;
            l->span[n++] = l->span[k];
            continue;
        }
        w->n_done = l->span[k].n;
        f->built.n_rows -= w->n_done;
        commit(w->s, w->n_done, false, false);
        stage_trip_commit(f->trip);
    }
    f->step.n_spans = f->built.n_spans = n;
    f->step.n_rows = f->built.n_rows;
}

ingle_status session_fly(struct runner *r, int i, struct session_work *work, int64_t n,
                         struct err *err)
{
    struct flight *f = &r->flight[i];
    BUG_IF(r->depth || f->trip || i >= r->n_flights);
    bool lost = stage_remote_is_lost(r->stages);
    for (int64_t k = 0; k < n; k++)
        lost = lost || kv_timeline_is_lost(work[k].s->timeline);
    if (lost)
        return err_set(err, INGLE_IO, "a stage was lost");
    *f = (struct flight){.work = work, .n = n};
    r->depth = SESSION_LANES + i; /* whose lane it has */
    const ingle_status s = build(r, work, n, &f->built, err);
    r->depth = 0;
    if (s || !f->built.n_spans)
        return s;
    struct lane *l = &r->lane[SESSION_LANES + i];
    l->deferred = session_deferred_plan(r, l, f->built.n_spans, true);
    f->step = (struct family_step){.span = l->span,
                                   .n_spans = f->built.n_spans,
                                   .n_rows = f->built.n_rows,
                                   .n_logits = f->built.n_logits,
                                   .mirror = l->mirror,
                                   .n_mirrors = f->built.n_mirrors};
    const ingle_status sent = session_flight_send(r, i, err);
    if (!sent)
        commit_ahead(f, l);
    return sent;
}

bool session_flies(const struct runner *r, int i)
{
    return r->flight[i].trip != NULL;
}

bool session_flight_is_over(struct runner *r, int i)
{
    return stage_trip_is_over(r->flight[i].trip);
}

void session_flights_wait(struct runner *r, int timeout_ms)
{
    stage_trip_wait(r->stages, timeout_ms);
}

ingle_status session_land(struct runner *r, int i, struct err *err)
{
    struct flight *f = &r->flight[i];
    struct lane *l = &r->lane[SESSION_LANES + i];
    ingle_status s = session_flight_land(r, i, err);
    bool bad = false;
    for (int64_t k = 0; !s && k < f->built.n_spans; k++)
        bad |= span_is_bad(r, l, k);
    if (bad) {
        r->depth = 1;
        s = session_explain(r, &f->step, err);
        r->depth = 0;
    }
    if (!s)
        session_goes_on(r);
    end_step(l, &f->built, s);
    return s;
}

ingle_status session_finish(struct session *s, const float **logits, const atomic_bool *cancel,
                            struct err *err)
{
    const int64_t total = session_pending(s);
    const ingle_status there = total ? INGLE_OK : renew_lost(s, cancel, err);
    if (there)
        return there;
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
