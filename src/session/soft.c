/* SPDX-License-Identifier: Apache-2.0 */
/* soft - pictures and sounds among a session's tokens: where they are, what they are called in tree
 * and store, and what a step computes of them. */
#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include "session/parts.h"
#include "session/run.h"
#include <stddef.h>
#include <string.h>

void session_soft_drop(struct runner *r, struct soft *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        kv_media_give(kv_pool_media(r->pool), list[i].number);
        list[i].medium->hold(list[i].medium, -1);
    }
}

/* The number of a name, with a reference; the tree is cleared where no number is free. */
static int32_t take_number(struct runner *r, const struct session_medium *m)
{
    struct kv_medium of = {.token = m->token, .kind = m->sound};
    memcpy(of.id, m->id, sizeof of.id);
    struct kv_media *media = kv_pool_media(r->pool);
    if (kv_media_is_full(media)) {
        session_runner_clear_tree(r);
        kv_media_sweep(media);
    }
    return kv_media_take(media, &of);
}

ingle_status session_soft_check(const struct session_soft *soft, size_t n_soft, int64_t n_tokens,
                                struct err *err)
{
    int64_t end = 0;
    for (size_t i = 0; i < n_soft; i++) {
        const int64_t n = soft[i].medium->n;
        if (n < 1 || n > KV_MEDIUM_MOST || soft[i].start < end || n > n_tokens ||
            soft[i].start > n_tokens - n)
            return err_set(err, INGLE_ARG,
                           "medium %zu has %lld positions from %lld on, of %lld tokens, behind "
                           "%lld",
                           i, (long long)n, (long long)soft[i].start, (long long)n_tokens,
                           (long long)end);
        end = soft[i].start + n;
    }
    return INGLE_OK;
}

ingle_status session_select_fits(struct session *s, struct err *err)
{
    const struct kern_select *p = &s->way.select;
    if (!p->part || !s->n_soft || !s->r->spec.kept)
        return INGLE_OK;
    const int64_t room = session_select_room(s->r),
                  most = kern_select_count(p, s->r->n_ctx - 1, session_whole(s)),
                  chosen = kern_select_budget(p, s->r->n_ctx - 1);
    if (most <= room)
        return INGLE_OK;
    return err_set(err, INGLE_LIMIT,
                   "answers would read up to %lld pages of the context and %lld with pictures and "
                   "sounds, which are read whole; with --kv-disk and --kv-select 1/%lld there "
                   "is room for %lld",
                   (long long)chosen, (long long)(most - chosen), (long long)p->part,
                   (long long)room);
}

ingle_status session_soft_copy(struct runner *r, const struct session_soft *from, size_t n,
                               int64_t base, struct soft *to, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        struct session_medium *m = from[i].medium;
        const int32_t number = take_number(r, m);
        if (number < 0) {
            session_soft_drop(r, to, i);
            return err_set(err, INGLE_NOMEM, "no memory for the name of a picture or sound");
        }
        m->hold(m, 1);
        to[i] = (struct soft){from[i].start + base, number, m};
    }
    return INGLE_OK;
}

/* Keys in the place of tokens where media are, from token `from` on. */
static void put_keys(const struct soft *soft, size_t n_soft, int64_t from, int64_t end,
                     int32_t *key)
{
    for (size_t i = 0; i < n_soft; i++)
        for (int64_t k = num_max(0, from - soft[i].start);
             k < soft[i].medium->n && soft[i].start + k < end; k++)
            key[soft[i].start + k] = kv_media_key(soft[i].number, k);
}

bool session_soft_keys(const struct soft *soft, size_t n_soft, const int32_t *token, int64_t n,
                       int32_t **out)
{
    int32_t *key = mem_calloc((size_t)n + 1, sizeof *key);
    if (!key)
        return false;
    memcpy(key, token, (size_t)n * sizeof *key);
    put_keys(soft, n_soft, 0, n, key);
    *out = key;
    return true;
}

const int32_t *session_keys(struct session *s)
{
    if (!s->n_soft)
        return s->token;
    if (s->n_keys < s->n_tokens) {
        BUG_IF(s->cap_keys < s->n_tokens); /* session_soft_room() */
        memcpy(s->key + s->n_keys, s->token + s->n_keys,
               (s->n_tokens - s->n_keys) * sizeof *s->key);
        put_keys(s->soft, s->n_soft, (int64_t)s->n_keys, (int64_t)s->n_tokens, s->key);
        s->n_keys = s->n_tokens;
    }
    return s->key;
}

bool session_soft_room(struct session *s, size_t n_tokens)
{
    return !s->n_soft || mem_grow(&s->key, &s->cap_keys, n_tokens, sizeof *s->key);
}

const uint8_t *session_whole(struct session *s)
{
    if (!s->n_soft)
        return NULL;
    memset(s->whole, 0, (size_t)(s->r->n_ctx / KV_PAGE) + 1);
    for (size_t i = 0; i < s->n_soft; i++) {
        const int64_t first = s->soft[i].start / KV_PAGE,
                      last = (s->soft[i].start + s->soft[i].medium->n - 1) / KV_PAGE;
        memset(s->whole + first, 1, (size_t)(last - first + 1));
    }
    return s->whole;
}

void session_soft_cut(struct session *s, int64_t n_tokens)
{
    size_t n = s->n_soft;
    while (n && s->soft[n - 1].start + s->soft[n - 1].medium->n > n_tokens)
        n--;
    session_soft_drop(s->r, s->soft + n, s->n_soft - n);
    s->n_soft = n;
    s->n_keys = s->n_keys < (size_t)n_tokens ? s->n_keys : (size_t)n_tokens;
}

/* The first one that ends after position `at`. */
static size_t first_after(const struct soft *soft, size_t n_soft, int64_t at)
{
    size_t lo = 0, hi = n_soft;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (soft[mid].start + soft[mid].medium->n <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int64_t session_outside(const struct session *s, int64_t at)
{
    const size_t i = s->n_soft ? first_after(s->soft, s->n_soft, at) : 0;
    return i < s->n_soft && s->soft[i].start < at ? s->soft[i].start : at;
}

int64_t session_next_stop(const struct session *s, int64_t at)
{
    const int64_t every = s->r->restore_every;
    int64_t stop = at, from = at;
    while (stop <= at) {
        from += every - from % every;
        stop = session_outside(s, from);
    }
    return stop;
}

bool session_is_stop(const struct session *s, int64_t at)
{
    const int64_t every = s->r->restore_every;
    if (at % every == 0)
        return session_outside(s, at) == at;
    return s->n_soft && session_outside(s, num_div_up(at, every) * every) == at;
}

int64_t session_alike(const struct session *s, const int32_t *tokens, int64_t n,
                      const struct session_soft *soft, size_t n_soft)
{
    const int64_t most = num_min(n, (int64_t)s->n_tokens);
    int64_t same = 0;
    while (same < most && s->token[same] == tokens[same])
        same++;
    for (size_t i = 0; i < s->n_soft || i < n_soft; i++) {
        const int64_t a = i < s->n_soft ? s->soft[i].start : INT64_MAX,
                      b = i < n_soft ? soft[i].start : INT64_MAX, first = num_min(a, b);
        if (first >= same)
            break;
        if (a != b || memcmp(s->soft[i].medium->id, soft[i].medium->id, KV_MEDIUM_ID) != 0 ||
            same < first + s->soft[i].medium->n)
            return first;
    }
    return same;
}

/* Rows of one see all of it. */
static bool is_both(const struct session *s, const struct soft *f)
{
    return s->r->info.both && !f->medium->sound;
}

int64_t session_soft_share(const struct session *s, int64_t n, int64_t room, bool all, bool *single)
{
    const int64_t at = session_length(s);
    *single = false;
    for (size_t i = s->n_soft ? first_after(s->soft, s->n_soft, at) : 0; i < s->n_soft; i++) {
        const struct soft *f = &s->soft[i];
        const int64_t end = f->start + f->medium->n;
        if (n <= 0 || f->start >= at + n)
            break;
        if (f->start > at && (all || (is_both(s, f) && end > at + n)))
            return f->start - at;
        if (f->start > at)
            continue;
        *single = all;
        if (all || (is_both(s, f) && end > at + n))
            return is_both(s, f) ? (end - at <= room ? end - at : 0) : num_min(n, end - at);
    }
    return n;
}

int64_t session_whole_next(const struct session *s, int64_t *n)
{
    const int64_t at = session_length(s);
    *n = 0;
    for (size_t i = s->n_soft ? first_after(s->soft, s->n_soft, at) : 0; i < s->n_soft; i++)
        if (is_both(s, &s->soft[i])) {
            *n = s->soft[i].medium->n;
            return s->soft[i].start - at;
        }
    return 0;
}

int64_t session_soft_rows(const struct session *s, int64_t n, struct family_soft *to)
{
    const int64_t at = session_length(s), width = s->r->info.n_embd;
    int64_t count = 0;
    for (size_t i = s->n_soft ? first_after(s->soft, s->n_soft, at) : 0;
         i < s->n_soft && s->soft[i].start < at + n; i++) {
        const struct soft *f = &s->soft[i];
        const int64_t from = num_max(f->start, at), end = num_min(f->start + f->medium->n, at + n);
        to[count++] = (struct family_soft){.row = from - at,
                                           .n = end - from,
                                           .width = width,
                                           .rows = f->medium->rows + (from - f->start) * width,
                                           .both = is_both(s, f)};
    }
    return count;
}

const struct session_medium *session_lacks(const struct session *s, int64_t n)
{
    const int64_t at = session_length(s), end = n < 0 ? (int64_t)s->n_tokens : at + n;
    for (size_t i = s->n_soft ? first_after(s->soft, s->n_soft, at) : 0;
         i < s->n_soft && s->soft[i].start < end; i++)
        if (!s->soft[i].medium->rows)
            return s->soft[i].medium;
    return NULL;
}

size_t session_n_media(const struct session *s)
{
    return s->n_soft;
}

struct session_soft session_medium_at(const struct session *s, size_t i)
{
    return (struct session_soft){s->soft[i].start, s->soft[i].medium};
}

/* ---- media of a file, of which only names are known ---- */

struct named {
    struct session_medium medium;
    int refs;
};

static void hold_named(struct session_medium *m, int by)
{
    struct named *n = (struct named *)(void *)((char *)m - offsetof(struct named, medium));
    n->refs += by;
    if (!n->refs)
        mem_free(n);
}

struct session_medium *session_medium_named(const struct kv_media_span *of)
{
    struct named *m = mem_zalloc(sizeof *m);
    if (!m)
        return NULL;
    m->refs = 1;
    m->medium = (struct session_medium){
        .n = of->n, .token = of->token, .sound = of->kind != 0, .hold = hold_named};
    memcpy(m->medium.id, of->id, KV_MEDIUM_ID);
    return &m->medium;
}

ingle_status session_soft_named(struct runner *r, const struct kv_media_span *of, int64_t n,
                                struct soft **out, struct err *err)
{
    struct soft *list = mem_calloc((size_t)n + 1, sizeof *list);
    ingle_status st = list ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for media");
    for (int64_t i = 0; !st && i < n; i++) {
        struct session_soft one = {of[i].start, session_medium_named(&of[i])};
        st = one.medium ? session_soft_copy(r, &one, 1, 0, &list[i], err)
                        : err_set(err, INGLE_NOMEM, "no memory for media");
        if (st)
            session_soft_drop(r, list, (size_t)i);
        if (one.medium)
            one.medium->hold(one.medium, -1);
    }
    if (st)
        mem_free(list);
    else
        *out = list;
    return st;
}
