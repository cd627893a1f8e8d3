/* SPDX-License-Identifier: Apache-2.0 */
/* restore - where a session's past comes from: itself, the prefix tree, the store; and files
 * of whole sessions. */
#include "base/mem.h"
#include "base/num.h"
#include "session/parts.h"
#include "session/run.h"
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The timeline becomes a restore point of want[0, n_want) cut to at most `keep` tokens.  A
 * point beyond keep serves if its pages reach back that far. */
static ingle_status from_tree(struct session *s, const int32_t *want, int64_t n_want,
                              int64_t keep, struct err *err)
{
    for (int64_t limit = n_want;; limit = keep) {
        struct kv_match match;
        kv_tree_find(s->r->tree, s->scope, want, n_want, limit, &match);
        if (!match.point) {
            kv_timeline_clear(s->timeline);
            return INGLE_OK;
        }
        const ingle_status status = kv_timeline_attach(s->timeline, s->r->tree, match.point, err);
        if (status || session_length(s) <= keep)
            return status;
        if (kv_timeline_can_rewind(s->timeline, keep))
            return kv_timeline_rewind(s->timeline, keep, err);
    }
}

/* The length to ask of the store: the deepest within keep, or one beyond it that reaches
 * back that far; 0: none. */
static int64_t on_disk(struct session *s)
{
    struct restore *x = &s->restore;
    const int64_t length =
        kv_store_find(s->r->store, s->scope, session_keys(s), x->n_want, &x->reuse.foreign);
    if (length <= x->keep || kv_spec_reaches(&s->r->spec, length, x->keep))
        return length;
    return kv_store_find(s->r->store, s->scope, session_keys(s), x->keep, NULL);
}

static bool lacks_memory(const struct session *s, ingle_status st, const struct err *why)
{
    if (st != INGLE_NOMEM && st != INGLE_LIMIT)
        return false;
    report(s->r->sink, INGLE_REPORT_WARN, "store", "prefix", "%s", why->msg);
    return true;
}

/* Goes on from the timeline as it is with what the store has.  Whatever goes wrong there
 * costs a recomputation: it will not be found again. */
void session_restore_far(struct session *s)
{
    struct restore *x = &s->restore;
    struct err why;
    ingle_status st = INGLE_IO;
    x->before = session_length(s);
    while (s->r->store && x->keep && st && !lacks_memory(s, st, &why)) {
        x->length = on_disk(s);
        if (num_min(x->length, x->keep) <= x->before)
            return;
        st = kv_store_read_begin(&x->read, s->r->store, s->timeline, s->scope, session_keys(s),
                                 x->length, &why);
    }
}

/* A read is over: its pages become the session's. */
static void take(struct session *s)
{
    struct restore *x = &s->restore;
    void *mark = NULL;
    size_t mark_bytes = 0;
    struct err why;
    const ingle_status st = kv_store_read_end(x->read, s->timeline, &mark, &mark_bytes, &why);
    x->read = NULL;
    if (st && !lacks_memory(s, st, &why))
        session_restore_far(s);
    if (st)
        return;
    session_drafter_restored(s->r, s->timeline, "store");
    if (s->r->tree &&
        kv_tree_put(s->r->tree, s->scope, s->timeline, session_keys(s), x->length, mark, mark_bytes,
                    &why))
        report(s->r->sink, INGLE_REPORT_WARN, "cache", "prefix tree", "%s", why.msg);
    mem_free(mark);
    if (x->length > x->keep && kv_timeline_rewind(s->timeline, x->keep, &why))
        kv_timeline_clear(s->timeline);
}

void session_restore_wait(struct session *s)
{
    while (s->restore.read)
        take(s);
}

void session_restore_drop(struct session *s)
{
    kv_store_read_drop(s->restore.read);
    s->restore.read = NULL;
}

bool session_sync_poll(struct session *s, struct session_reuse *reuse)
{
    struct restore *x = &s->restore;
    while (x->read && kv_store_read_poll(x->read))
        take(s);
    if (x->read)
        return false;
    if (!reuse)
        return true;
    *reuse = x->reuse;
    reuse->kept = session_length(s);
    reuse->from_disk = reuse->kept - x->before;
    reuse->matched = num_max(reuse->matched, reuse->kept);
    reuse->given_up =
        s->r->tree ? kv_tree_given_up(s->r->tree, s->scope, session_keys(s), x->n_want,
                                      reuse->matched)
                   : 0;
    return true;
}

int64_t session_sync_length(const struct session *s)
{
    return s->restore.read ? num_min(s->restore.length, s->restore.keep) : session_length(s);
}

ingle_status session_restore_near(struct session *s, const int32_t *have, const int32_t *want,
                                  int64_t n_want, int64_t keep, struct err *err)
{
    const int64_t length = session_length(s);
    const struct session *one = s;
    int64_t own = 0;
    session_restore_drop(s);
    session_deferred_observe(s->r, &one, 1);
    while (own < num_min(length, n_want) && have[own] == want[own])
        own++;
    s->restore = (struct restore){.n_want = n_want, .keep = keep};
    struct session_reuse *reuse = &s->restore.reuse;
    *reuse = (struct session_reuse){.matched = own, .differs = own < num_min(length, n_want)};
    own = session_outside(s, num_min(own, keep));
    if (!kv_timeline_can_rewind(s->timeline, own))
        own = 0;
    struct kv_match match = {0};
    if (s->r->tree)
        kv_tree_find(s->r->tree, s->scope, want, n_want, keep, &match);
    reuse->matched = num_max(reuse->matched, match.matched);
    ingle_status status = INGLE_OK;
    if (own && own >= match.length) {
        status = kv_timeline_rewind(s->timeline, own, err);
        reuse->from_session = own;
    } else if (s->r->tree) {
        status = from_tree(s, want, n_want, keep, err);
        reuse->from_tree = session_length(s);
    } else {
        kv_timeline_clear(s->timeline);
    }
    return status;
}

void session_restore_lost(struct session *s, int64_t length)
{
    struct err why;
    const struct session_reuse reuse = s->restore.reuse;
    const int64_t n = (int64_t)s->n_tokens;
    s->restore = (struct restore){.n_want = n, .keep = length, .reuse = reuse};
    if (s->r->tree && from_tree(s, session_keys(s), n, length, &why))
        kv_timeline_clear(s->timeline);
    session_restore_far(s);
    session_restore_wait(s);
    s->restore.reuse = reuse;
}

void session_prefetch(struct runner *r, struct kv_scope scope, const int32_t *tokens, int64_t n,
                      const struct session_soft *soft, size_t n_soft)
{
    struct soft *list = r->store && n_soft ? mem_calloc(n_soft, sizeof *list) : NULL;
    int32_t *key = NULL;
    if (!r->store || (n_soft && (!list || session_soft_copy(r, soft, n_soft, 0, list, NULL)))) {
        mem_free(list);
        return;
    }
    if (!n_soft || session_soft_keys(list, n_soft, tokens, n, &key))
        kv_store_prefetch(r->store, scope, n_soft ? key : tokens, n);
    session_soft_drop(r, list, n_soft);
    mem_free(key);
    mem_free(list);
}

/* ---- files of whole sessions ---- */

/* The mark of a file: where the prompt ends, if rows before it are computed in another way than
 * those after it, then how rows are computed (kv_way_write()).  Both may be missing. */
struct prompt_mark {
    char magic[8];
    int64_t end;
};
static const char prompt_magic[8] = "promptE1";

static size_t mark_bytes(const struct session *s, const struct kv_way *way)
{
    return (session_prompt_differs(s) && s->prompt_end >= 0 ? sizeof(struct prompt_mark) : 0) +
           kv_way_bytes(way);
}

static void write_mark(const struct session *s, const struct kv_way *way, char *to)
{
    if (session_prompt_differs(s) && s->prompt_end >= 0) {
        struct prompt_mark m = {.end = s->prompt_end};
        memcpy(m.magic, prompt_magic, sizeof m.magic);
        memcpy(to, &m, sizeof m);
        to += sizeof m;
    }
    if (kv_way_bytes(way))
        kv_way_write(way, to);
}

/* *end: -1 if the file does not say it. */
static ingle_status read_mark(const void *mark, size_t n, struct kv_way *way, int64_t *end,
                              struct err *err)
{
    struct prompt_mark m = {.end = -1};
    size_t at = 0;
    if (n >= sizeof m && memcmp(mark, prompt_magic, sizeof prompt_magic) == 0) {
        at = sizeof m;
        memcpy(&m, mark, at);
        if (m.end < 0)
            return err_set(err, INGLE_FORMAT, "damaged: its prompt ends at %lld",
                           (long long)m.end);
    }
    *end = m.end;
    return kv_way_read(way, (const char *)mark + at, n - at, err);
}

static void scope_of(const void *mark, size_t n, struct kv_scope *out)
{
    struct kv_way w = {0};
    struct err err;
    int64_t end;
    if (read_mark(mark, n, &w, &end, &err))
        return;
    const struct kv_scope scope = kv_way_scope(&w, 0);
    out->salt = scope.salt;
    out->shorten = scope.shorten;
    kv_gaps_unref(w.gaps);
}

static struct kv_save_options save_options(const struct runner *r, uint32_t sparse)
{
    return (struct kv_save_options){.sparse = sparse,
                                    .scope_of = scope_of,
                                    .identity = r->identity,
                                    .model = r->model,
                                    .numerics = r->numerics,
                                    .codec = r->kv.at,
                                    .gentle = &r->gentle,
                                    .media = kv_pool_media(r->pool)};
}

ingle_status session_save(const struct session *s, const char *path, struct err *err)
{
    const struct kv_way way = session_way(s);
    const struct kv_name select = kv_select_name(&way.select);
    const size_t n = mark_bytes(s, &way);
    struct kv_save_options o = save_options(s->r, way.sparse);
    char more[40];
    snprintf(more, sizeof more, "%s%s%s", select.at[0] ? "+" : "", select.at,
             way.gaps ? "+skip" : "");
    o.more = more;
    o.salt = kv_select_salt(0, &way.select);
    o.shorten = s->scope.shorten;
    char *mark = mem_alloc(n + 1);
    if (!mark)
        return err_set(err, INGLE_NOMEM,
                       "no memory for %zu bytes that say how a session was computed", n);
    write_mark(s, &way, mark);
    session_deferred_observe(s->r, &s, 1);
    int32_t *key = NULL; /* others may look at the session meanwhile */
    ingle_status st = INGLE_OK;
    if (s->n_soft &&
        !session_soft_keys(s->soft, s->n_soft, s->token, (int64_t)s->n_tokens, &key))
        st = err_set(err, INGLE_NOMEM, "no memory for %zu tokens", s->n_tokens);
    if (!st)
        st = kv_save(s->timeline, path, &o, key ? key : s->token, (int64_t)s->n_tokens, mark, n,
                     err);
    if (st && st != INGLE_CANCEL && stage_remote_is_lost(s->r->stages))
        st = err_set(err, INGLE_LOST, "%s: a stage with keys and values is lost", path);
    mem_free(key);
    mem_free(mark);
    return st;
}

/* How the session of a file was computed, if it can go on so, and where its prompt ends.  *way has
 * a reference to gaps. */
static ingle_status check_way(const struct runner *r, const struct kv_load *l, const char *path,
                              struct kv_way *way, int64_t *prompt_end, struct err *err)
{
    size_t n_mark;
    int64_t n;
    const void *mark = kv_load_mark(l, &n_mark);
    (void)kv_load_tokens(l, &n);
    *way = (struct kv_way){0};
    ingle_status st = read_mark(mark, n_mark, way, prompt_end, err);
    if (st)
        return err_prefix(err, "%s", path);
    const struct kern_select *select = &way->select;
    const int64_t skipped = kv_gaps_skipped(way->gaps), most = num_max(r->info.n_ctx, r->n_ctx),
                  read = select->part ? kern_select_budget(select, r->n_ctx - 1) : 0;
    if (select->part && !r->select.part)
        st = err_set(err, INGLE_UNSUP, "%s: of other settings: '%s'", path,
                     kv_select_name(select).at);
    else if (read > session_select_room(r))
        st = err_set(err, INGLE_LIMIT,
                     "%s: its answers (%s) read up to %lld pages of the context, with pages on "
                     "disk there is room for %lld",
                     path, kv_select_name(select).at, (long long)read,
                     (long long)session_select_room(r));
    else if (way->gaps && session_way_refuses(r, KV_WAY_GAPS))
        st = err_set(err, INGLE_UNSUP, "%s: its prompt was shortened: %s", path,
                     session_way_refuses(r, KV_WAY_GAPS));
    else if (n > most - skipped)
        st = err_set(
            err, INGLE_LIMIT,
            "%s: %lld tokens, of which %lld are left out, exceed the %lld positions of the model",
            path, (long long)(n + skipped), (long long)skipped, (long long)most);
    if (!st)
        return INGLE_OK;
    kv_gaps_unref(way->gaps);
    way->gaps = NULL;
    return st;
}

ingle_status session_load_begin(const struct session *s, const char *path, struct kv_load **out,
                                struct err *err)
{
    const struct kv_save_options o = save_options(s->r, s->way.sparse);
    int64_t n, prompt_end;
    ingle_status st = kv_load_begin(out, &s->r->spec, s->r->n_ctx, path, &o, err);
    if (st)
        return st;
    struct kv_way way;
    st = check_way(s->r, *out, path, &way, &prompt_end, err);
    kv_gaps_unref(way.gaps);
    const int32_t *token = kv_load_tokens(*out, &n);
    int64_t n_media;
    const struct kv_media_span *media = kv_load_spans(*out, &n_media);
    for (int64_t i = 0; !st && i < n_media; i++)
        if (media[i].token >= s->r->info.n_vocab)
            st = err_set(err, INGLE_FORMAT, "%s: token %d at %lld: the vocabulary has %lld", path,
                         media[i].token, (long long)media[i].start,
                         (long long)s->r->info.n_vocab);
    for (int64_t i = 0; !st && i < n; i++)
        if ((token[i] < 0 && !n_media) || token[i] >= s->r->info.n_vocab)
            st = err_set(err, INGLE_FORMAT, "%s: token %d at %lld: the vocabulary has %lld", path,
                         token[i], (long long)i, (long long)s->r->info.n_vocab);
    if (st)
        kv_load_end(*out, NULL);
    return st;
}

ingle_status session_load_take(struct session *s, struct kv_load *l, bool *more, struct err *err)
{
    return kv_load_take(l, s->r->pool, more, err);
}

ingle_status session_load_read(struct kv_load *l, struct err *err) { return kv_load_read(l, err); }

ingle_status session_load_end(struct session *s, struct kv_load *l, ingle_status st,
                              struct err *err)
{
    struct kv_timeline *t = NULL;
    struct kv_way way = {0};
    int32_t *token = NULL;
    int64_t n, prompt_end = -1;
    const int32_t *from = kv_load_tokens(l, &n);
    if (!st)
        st = kv_timeline_create(&t, s->r->pool, s->r->n_ctx, err);
    int32_t *key = NULL;
    if (!st && (!(token = mem_calloc((size_t)n + 1, sizeof *token)) ||
                !(key = mem_calloc((size_t)n + 1, sizeof *key))))
        st = err_set(err, INGLE_NOMEM, "no memory for %lld tokens", (long long)n);
    if (!st)
        st = check_way(s->r, l, "file", &way, &prompt_end, err);
    struct soft *own = NULL;
    int64_t n_soft;
    const struct kv_media_span *media = kv_load_spans(l, &n_soft);
    if (!st && (st = session_soft_named(s->r, media, n_soft, &own, err)))
        kv_gaps_unref(way.gaps);
    if (st) {
        mem_free(token);
        mem_free(key);
        kv_timeline_free(t);
        kv_load_end(l, NULL);
        return st;
    }
    memcpy(token, from, (size_t)n * sizeof *token);
    for (int64_t i = 0; i < n_soft; i++)
        for (int64_t k = 0; k < media[i].n; k++)
            token[media[i].start + k] = media[i].token;
    const struct kv_way was = s->way;
    way.sparse = kv_load_sparse(l);
    kv_load_end(l, t);
    if (!way.sparse && !kv_sparse_at(was.sparse, kv_timeline_length(t)))
        way.sparse = was.sparse;
    session_restore_drop(s);
    kv_timeline_free(s->timeline);
    mem_free(s->token);
    session_deferred_cut(s, 0);
    session_soft_cut(s, 0);
    mem_free(s->soft);
    mem_free(s->key);
    s->key = key;
    s->n_keys = 0;
    s->cap_keys = (size_t)n + 1;
    s->timeline = t;
    if (kv_select_of(&was.select) == kv_select_of(&way.select))
        way.select = was.select;
    session_use_way(s, &way);
    kv_gaps_unref(way.gaps);
    session_drafter_restored(s->r, t, "file");
    s->token = token;
    s->soft = own;
    s->n_soft = s->cap_soft = (size_t)n_soft;
    s->n_tokens = (size_t)n;
    s->cap_tokens = (size_t)n + 1;
    s->prompt_end = prompt_end;
    s->border.n = s->next_border = 0;
    return INGLE_OK;
}

ingle_status session_load(struct session *s, const char *path, struct err *err)
{
    struct kv_load *l;
    ingle_status st = session_load_begin(s, path, &l, err);
    if (st)
        return st;
    for (bool more = true; more && !st;)
        st = session_load_take(s, l, &more, err);
    if (!st)
        st = session_load_read(l, err);
    return session_load_end(s, l, st, err);
}
