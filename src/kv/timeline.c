/* SPDX-License-Identifier: Apache-2.0 */
/* timeline - page tables: growing, shrinking, sharing.  Nothing here computes. */
#include "kv/timeline.h"
#include "kv/disk.h"

#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include <string.h>

ingle_status kv_timeline_create(struct kv_timeline **out, struct kv_pool *p, int64_t max_tokens,
                                struct err *err)
{
    if (max_tokens < 1 || max_tokens > INT64_MAX / 2)
        return err_set(err, INGLE_ARG, "a timeline of %lld tokens", (long long)max_tokens);
    struct kv_timeline *t = mem_zalloc(sizeof *t);
    if (!t)
        goto nomem;
    t->pool = p;
    t->loss = p->losses;
    t->max_tokens = max_tokens;
    t->cap = num_div_up(max_tokens, KV_PAGE);
    p->n_timelines++;
    for (uint32_t g = 0; g < p->spec->n_groups; g++) {
        t->table[g].page = mem_calloc((size_t)t->cap, sizeof *t->table[g].page);
        t->table[g].at = mem_calloc((size_t)t->cap, sizeof *t->table[g].at);
        if (kv_disk_has(p, g))
            t->table[g].head = mem_calloc((size_t)t->cap, sizeof *t->table[g].head);
        if (p->spec->group[g].own_bytes)
            t->table[g].own = mem_calloc((size_t)t->cap, sizeof *t->table[g].own);
        if (!t->table[g].page || !t->table[g].at || (kv_disk_has(p, g) && !t->table[g].head) ||
            (p->spec->group[g].own_bytes && !t->table[g].own))
            goto nomem;
    }
    *out = t;
    return INGLE_OK;

nomem:
    kv_timeline_free(t);
    return err_set(err, INGLE_NOMEM, "no memory for the page tables of %lld tokens",
                   (long long)max_tokens);
}

void kv_timeline_free(struct kv_timeline *t)
{
    if (!t)
        return;
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++)
        if (!t->table[g].page || !t->table[g].at)
            t->table[g].end = 0; /* half-built */
    kv_timeline_clear(t);
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++) {
        mem_free(t->table[g].page);
        mem_free(t->table[g].at);
        mem_free(t->table[g].head);
        mem_free(t->table[g].own);
    }
    t->pool->n_timelines--;
    kv_gaps_unref(t->gaps);
    mem_free(t);
}

int64_t kv_timeline_length(const struct kv_timeline *t)
{
    return t->length;
}

void kv_timeline_set_gaps(struct kv_timeline *t, struct kv_gaps *g)
{
    struct kv_gaps *was = t->gaps;
    t->gaps = kv_gaps_ref(g);
    kv_gaps_unref(was);
}

struct kv_gaps *kv_timeline_gaps(const struct kv_timeline *t)
{
    return t->gaps;
}

int64_t kv_timeline_from(const struct kv_timeline *t)
{
    return t->from;
}

/* Where pages are now, after some came to memory or left it. */
static void table_follow(const struct kv_pool *p, struct kv_table *b)
{
    if (b->moves == p->moves)
        return;
    for (int64_t i = b->first; i < b->end; i++)
        b->at[i] = b->page[i] ? b->page[i]->at : NULL;
    b->moves = p->moves;
}

uint8_t *const *kv_timeline_pages(struct kv_timeline *t, uint32_t group)
{
    table_follow(t->pool, &t->table[group]);
    return t->table[group].at;
}

uint8_t *const *kv_timeline_stream(struct kv_timeline *t, const struct kv_stream *s)
{
    return s->own ? t->table[s->group].own : kv_timeline_pages(t, s->group);
}

uint8_t *const *kv_timeline_head(const struct kv_timeline *t, uint32_t group)
{
    return t->table[group].head;
}

bool kv_timeline_is_away(struct kv_timeline *t, uint32_t group)
{
    const struct kv_table *b = &t->table[group];
    bool away = false;
    for (int64_t i = b->first; i < b->end && kv_disk_has(t->pool, group) && !away; i++)
        away = b->page[i] && !b->page[i]->at;
    return away;
}

void kv_timeline_recall(struct kv_timeline *t)
{
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++)
        if (kv_disk_has(t->pool, g))
            kv_disk_recall(t->pool, t->table[g].page + t->table[g].first,
                           t->table[g].end - t->table[g].first);
}

void kv_timeline_pin(struct kv_timeline *t, bool on)
{
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++)
        for (int64_t i = t->table[g].first; i < t->table[g].end && kv_disk_has(t->pool, g); i++)
            if (t->table[g].page[i])
                t->table[g].page[i]->pins += on ? 1 : -1;
}

/* Pages of which positions [from, to) are the newest are complete, except for those that stay in
 * memory. */
static void timeline_complete(struct kv_timeline *t, int64_t from, int64_t to)
{
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++) {
        const struct kv_table *b = &t->table[g];
        int64_t i = num_max(num_max(1, b->first), from / KV_PAGE - KV_STAYS);
        for (; kv_disk_has(t->pool, g) && i < num_min(b->end, to / KV_PAGE - KV_STAYS); i++)
            if (b->page[i])
                kv_disk_complete(t->pool, b->page[i], i);
    }
}

int64_t kv_timeline_first(const struct kv_spec *s, uint32_t g, int64_t length)
{
    const int64_t window = s->group[g].window;
    return window && length > window ? (length - window) / KV_PAGE : 0;
}

static void table_set(struct kv_table *b, int64_t i, struct kv_page *pg)
{
    b->page[i] = pg;
    b->at[i] = pg ? pg->at : NULL;
    if (b->own)
        b->own[i] = pg ? pg->own : NULL;
}

static void table_drop(struct kv_timeline *t, struct kv_table *b, int64_t i)
{
    if (b->page[i])
        kv_page_unref(t->pool, b->page[i]);
    table_set(b, i, NULL);
}

/* Drops the pages from n on. */
static void table_cut(struct kv_timeline *t, struct kv_table *b, int64_t n)
{
    while (b->end > n && b->end > b->first)
        table_drop(t, b, --b->end);
    if (b->end == b->first)
        b->first = b->end = 0;
}

void kv_timeline_share(struct kv_timeline *t, uint32_t g, int64_t i, struct kv_page *pg)
{
    BUG_IF(i < 0 || i >= t->cap || t->table[g].page[i]);
    kv_page_ref(t->pool, pg);
    table_set(&t->table[g], i, pg);
}

void kv_timeline_clear(struct kv_timeline *t)
{
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++)
        table_cut(t, &t->table[g], 0);
    t->length = t->ready = t->from = 0;
    t->loss = t->pool->losses;
}

bool kv_timeline_lay(struct kv_timeline *t, uint32_t group, int64_t i, uint8_t *at)
{
    struct kv_table *b = &t->table[group];
    if (group >= t->pool->spec->n_groups || i < 0 || i >= t->cap || b->page[i])
        return false;
    if (b->first == b->end)
        b->first = b->end = i;
    b->first = num_min(b->first, i);
    b->end = num_max(b->end, i + 1);
    b->at[i] = at;
    return true;
}

ingle_status kv_timeline_lend(struct kv_timeline *t, int64_t length, struct err *err)
{
    const struct kv_spec *s = t->pool->spec;
    const int64_t end = num_div_up(length, KV_PAGE);
    BUG_IF(t->length || !t->pool->lender);
    if (length < 0 || length > t->max_tokens)
        return err_set(err, INGLE_LIMIT, "%lld tokens exceed the limit of %lld", (long long)length,
                       (long long)t->max_tokens);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        struct kv_table *b = &t->table[g];
        b->first = b->end = kv_timeline_first(s, g, length);
        for (; b->end < end; b->end++) {
            struct kv_page *pg = kv_page_take_for(t->pool, g, b->end);
            if (!pg) {
                const long long index = b->end;
                kv_timeline_clear(t);
                return err_set(err, INGLE_LIMIT, "page %lld of group %u is not there", index, g);
            }
            table_set(b, b->end, pg);
        }
    }
    t->length = t->ready = length;
    return INGLE_OK;
}

void kv_timeline_assume(struct kv_timeline *t, int64_t length)
{
    t->length = t->ready = length;
}

bool kv_timeline_is_lost(const struct kv_timeline *t)
{
    return t->loss != t->pool->losses && t->length;
}

/* The partly filled page, if somebody else has it too, or it is on disk alone. */
static struct kv_page *timeline_shared(const struct kv_timeline *t, uint32_t g)
{
    if (t->length % KV_PAGE == 0)
        return NULL;
    struct kv_page *pg = t->table[g].page[t->length / KV_PAGE];
    return pg->refs > 1 || !pg->at ? pg : NULL;
}

/* The first page after the length that an extend to `to` positions must have. */
static int64_t timeline_wants(const struct kv_timeline *t, uint32_t g, int64_t to)
{
    const struct kv_spec *s = t->pool->spec;
    const int64_t here = num_div_up(t->length, KV_PAGE);
    return s->group[g].ends ? num_max(here, kv_timeline_first(s, g, num_max(0, to - KV_REWIND)))
                            : here;
}

/* Whether an extend to `to` positions gives page i of group g, for its end or for a mark. */
static bool timeline_gives(const struct kv_timeline *t, uint32_t g, int64_t i, int64_t to)
{
    bool gives = i >= timeline_wants(t, g, to);
    for (int k = 0; k < t->n_marks && !gives; k++)
        gives = t->mark[k] > t->length && t->mark[k] <= to && i < num_div_up(t->mark[k], KV_PAGE) &&
                i >= kv_timeline_first(t->pool->spec, g, t->mark[k]);
    return gives;
}

/* Pages that group g lacks for an extend to `to` positions. */
static int64_t timeline_lacks(const struct kv_timeline *t, uint32_t g, int64_t to)
{
    int64_t n = 0;
    for (int64_t i = num_div_up(t->length, KV_PAGE); i < num_div_up(to, KV_PAGE); i++)
        n += (i >= t->table[g].end || !t->table[g].page[i]) && timeline_gives(t, g, i, to);
    return n;
}

/* Bytes of new pages for `to` positions; least: as if tree and store had no pages. */
static bool timeline_need(const struct kv_timeline *t, int64_t to, bool least, uint64_t *out)
{
    uint64_t sum = 0, bytes;
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++) {
        const struct kv_page *shared = timeline_shared(t, g);
        uint64_t n = (uint64_t)timeline_lacks(t, g, to);
        n += shared && !(least && shared->at && shared->refs - 1 == shared->held + shared->kept);
        if (!num_mul_u64(n, t->pool->spec->group[g].page_bytes, &bytes) ||
            !num_add_u64(sum, bytes, &sum))
            return false;
    }
    *out = sum;
    return true;
}

static ingle_status no_room(const struct kv_timeline *t, int64_t n, uint64_t need, struct err *err)
{
    const struct kv_pool *p = t->pool;
    const char *trouble = kv_disk_trouble(p);
    return err_set(err, INGLE_LIMIT,
                   "%lld more tokens after %lld need %llu bytes of KV pages: %llu of %llu are "
                   "in use, the prefix "
                   "cache could give %llu%s%s",
                   (long long)n, (long long)t->length, (unsigned long long)need,
                   (unsigned long long)p->used_bytes, (unsigned long long)p->budget_bytes,
                   (unsigned long long)p->cached_bytes, *trouble ? ", the disk none: " : "",
                   trouble);
}

/* Makes room in the budget for all that an extend by n positions takes, so that it fails
 * before anything has changed or been evicted. */
static ingle_status timeline_room(struct kv_timeline *t, int64_t n, struct err *err)
{
    struct kv_pool *p = t->pool;
    uint64_t need = UINT64_MAX;
    for (;;) {
        const uint64_t left = p->budget_bytes - p->used_bytes + p->cached_bytes;
        if (!timeline_need(t, t->length + n, true, &need))
            return no_room(t, n, need, err);
        if (need <= left || need - left <= kv_disk_can_spill(p))
            break;
        /* pages cannot leave for the disk while the store writes them */
        if (!p->disk || need > p->budget_bytes || !kv_page_let_go(p))
            return no_room(t, n, need, err);
    }
    for (;;) {
        BUG_IF(!timeline_need(t, t->length + n, false, &need));
        if (need <= p->budget_bytes - p->used_bytes)
            return INGLE_OK;
        if (!kv_page_make_room(p)) {
            BUG_IF(!p->disk); /* of which writes can fail */
            return no_room(t, n, need, err);
        }
    }
}

/* Takes the pages that group g lacks for `to` positions, and one for a copy of the shared
 * page.  False: out of memory, with what was taken still there. */
static bool timeline_take(struct kv_timeline *t, uint32_t g, int64_t to, struct kv_page **own)
{
    struct kv_table *b = &t->table[g];
    *own = NULL;
    if (timeline_shared(t, g) && !(*own = kv_page_take_at(t->pool, g, t->length / KV_PAGE)))
        return false;
    b->end = num_max(b->end, num_div_up(to, KV_PAGE));
    for (int64_t i = num_div_up(t->length, KV_PAGE); i < num_div_up(to, KV_PAGE); i++) {
        if (b->page[i] && b->page[i]->refs == 1) { /* of a step that failed: nothing counts */
            b->page[i]->loss = t->pool->losses;
            b->page[i]->fetched = false;
        }
        if (b->page[i] || !timeline_gives(t, g, i, to))
            continue;
        struct kv_page *pg = kv_page_take_at(t->pool, g, i);
        if (!pg)
            return false;
        table_set(b, i, pg);
    }
    return true;
}

/* Puts the copy of the shared page in its place. */
static void timeline_own(struct kv_timeline *t, uint32_t g, struct kv_page *own)
{
    struct kv_table *b = &t->table[g];
    const int64_t i = t->length / KV_PAGE;
    kv_page_unref(t->pool, b->page[i]);
    table_set(b, i, own);
}

ingle_status kv_timeline_extend(struct kv_timeline *t, int64_t n, struct err *err)
{
    if (n < 0 || n > t->max_tokens - t->length)
        return err_set(err, n < 0 ? INGLE_ARG : INGLE_LIMIT,
                       "%lld more tokens after %lld exceed the limit of %lld tokens", (long long)n,
                       (long long)t->length, (long long)t->max_tokens);
    if (!n)
        return INGLE_OK;
    const uint32_t n_groups = t->pool->spec->n_groups;
    const ingle_status status = timeline_room(t, n, err);
    if (status != INGLE_OK)
        return status;

    struct kv_page *own[KV_MAX_GROUPS] = {NULL};
    int64_t had[KV_MAX_GROUPS];
    ingle_status got = INGLE_OK;
    for (uint32_t g = 0; g < n_groups; g++) {
        had[g] = t->table[g].end;
        if (!got && !timeline_take(t, g, t->length + n, &own[g]))
            got =
                err_set(err, INGLE_NOMEM,
                        "the system has no memory for the KV pages of %lld more tokens after %lld",
                        (long long)n, (long long)t->length);
        if (!got && own[g])
            got = kv_disk_copy(t->pool, t->table[g].page[t->length / KV_PAGE], own[g]->at, err);
        if (!got && own[g])
            kv_page_own_copy(t->pool, t->table[g].page[t->length / KV_PAGE], own[g]);
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        if (!got && own[g])
            timeline_own(t, g, own[g]);
        else if (own[g])
            kv_page_unref(t->pool, own[g]);
        if (got)
            table_cut(t, &t->table[g], had[g]);
        else if (t->length % KV_PAGE && kv_disk_has(t->pool, g))
            kv_disk_reopen(t->pool, t->table[g].page[t->length / KV_PAGE]);
    }
    if (got)
        return got;
    for (uint32_t g = 0; g < n_groups && t->length % KV_PAGE; g++)
        t->table[g].page[t->length / KV_PAGE]->fetched = false;
    t->ready = num_max(t->ready, t->length + n);
    t->viewed = false;
    return INGLE_OK;
}

void kv_timeline_commit(struct kv_timeline *t, int64_t n)
{
    BUG_IF(n < 0 || n > t->ready - t->length);
    for (uint32_t g = 0; g < t->pool->spec->n_groups && n && !t->viewed; g++)
        BUG_IF(timeline_shared(t, g)); /* somebody else would see the new rows */
    t->viewed = false;
    t->length += n;
    timeline_complete(t, t->length - n, t->length);
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++) {
        struct kv_table *b = &t->table[g];
        const int64_t keep = kv_timeline_first(t->pool->spec, g, num_max(0, t->length - KV_REWIND));
        while (b->first < keep && b->first < b->end)
            table_drop(t, b, b->first++);
        BUG_IF(n && b->first < b->end && !b->page[b->first]); /* not all of the step */
    }
}

bool kv_spec_reaches(const struct kv_spec *s, int64_t length, int64_t to)
{
    for (uint32_t g = 0; g < s->n_groups && to; g++)
        if (kv_timeline_first(s, g, to) < kv_timeline_first(s, g, length))
            return false;
    return to <= length;
}

bool kv_timeline_can_rewind(const struct kv_timeline *t, int64_t length)
{
    if (length < 0 || length > t->length)
        return false;
    for (uint32_t g = 0; g < t->pool->spec->n_groups && length; g++)
        if (kv_timeline_first(t->pool->spec, g, length) < t->table[g].first)
            return false;
    return true;
}

ingle_status kv_timeline_rewind(struct kv_timeline *t, int64_t length, struct err *err)
{
    if (length < 0 || length > t->length)
        return err_set(err, INGLE_ARG, "cannot rewind %lld tokens to %lld", (long long)t->length,
                       (long long)length);
    if (!kv_timeline_can_rewind(t, length))
        return err_set(err, INGLE_NOTFOUND,
                       "cannot rewind %lld tokens to %lld: the keys of a sliding window were freed",
                       (long long)t->length, (long long)length);
    for (uint32_t g = 0; g < t->pool->spec->n_groups; g++)
        table_cut(t, &t->table[g], num_div_up(length, KV_PAGE));
    t->length = t->ready = length;
    t->from = num_min(t->from, length);
    return INGLE_OK;
}

ingle_status kv_timeline_fork(struct kv_timeline *dst, const struct kv_timeline *src,
                              struct err *err)
{
    BUG_IF(dst->pool != src->pool);
    if (src->length > dst->max_tokens)
        return err_set(err, INGLE_LIMIT, "a fork of %lld tokens exceeds the limit of %lld tokens",
                       (long long)src->length, (long long)dst->max_tokens);
    if (dst == src)
        return INGLE_OK;
    kv_timeline_clear(dst);
    const int64_t end = num_div_up(src->length, KV_PAGE);
    for (uint32_t g = 0; g < src->pool->spec->n_groups && end; g++) {
        dst->table[g].first = src->table[g].first;
        dst->table[g].end = end;
        for (int64_t i = src->table[g].first; i < end; i++)
            kv_timeline_share(dst, g, i, src->table[g].page[i]);
    }
    dst->length = dst->ready = src->length;
    dst->from = src->from;
    dst->loss = src->loss;
    kv_timeline_set_gaps(dst, src->gaps);
    return INGLE_OK;
}

void kv_timeline_mark(struct kv_timeline *t, const int64_t *at, int n)
{
    t->n_marks = n < KV_MARKS ? n : KV_MARKS;
    if (t->n_marks > 0)
        memcpy(t->mark, at, (size_t)t->n_marks * sizeof *at);
}

bool kv_timeline_view(struct kv_timeline *dst, struct kv_timeline *src, int64_t length)
{
    const struct kv_spec *s = src->pool->spec;
    const int64_t end = num_div_up(length, KV_PAGE);
    BUG_IF(dst == src || dst->pool != src->pool);
    for (uint32_t g = 0; g < s->n_groups && src->ready > src->length && !src->viewed; g++)
        BUG_IF(timeline_shared(src, g)); /* as in a commit, which cannot fail any more */
    src->viewed = src->ready > src->length;
    kv_timeline_clear(dst);
    bool there = length > 0 && length <= src->ready && length <= dst->max_tokens;
    for (uint32_t g = 0; g < s->n_groups && there; g++)
        for (int64_t i = kv_timeline_first(s, g, length); i < end && there; i++)
            there = src->table[g].page[i] != NULL;
    for (uint32_t g = 0; g < s->n_groups && there; g++) {
        dst->table[g].first = kv_timeline_first(s, g, length);
        dst->table[g].end = end;
        for (int64_t i = dst->table[g].first; i < end; i++)
            kv_timeline_share(dst, g, i, src->table[g].page[i]);
    }
    if (there) {
        dst->length = dst->ready = length;
        dst->from = num_min(src->from, length);
        dst->loss = src->loss;
    }
    return there;
}

void kv_timeline_adopt(struct kv_timeline *t, int64_t length, int64_t have,
                       struct kv_page *const *page, bool lacks)
{
    const struct kv_spec *s = t->pool->spec;
    const int64_t end = num_div_up(length, KV_PAGE);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        struct kv_table *b = &t->table[g];
        const int64_t first = kv_timeline_first(s, g, length);
        table_cut(t, b, s->group[g].window ? 0 : have);
        for (int64_t i = s->group[g].window ? first : have; i < end; i++) {
            kv_page_own_put(t->pool, *page);
            table_set(b, i, *page++);
        }
        b->first = first;
        b->end = end;
    }
    t->loss = have ? t->loss : t->pool->losses;
    t->length = t->ready = length;
    t->from = lacks ? length : num_min(t->from, have * KV_PAGE);
    timeline_complete(t, 0, length);
}

/* Pages that n > 0 positions touch wherever they begin, of a timeline of n_pages in all. */
static uint64_t span_pages(int64_t n, uint64_t n_pages)
{
    const uint64_t span = (uint64_t)num_div_up(n - 1, KV_PAGE) + 1;
    return span < n_pages ? span : n_pages;
}

bool kv_point_bytes(const struct kv_spec *s, int64_t n_tokens, uint64_t *out)
{
    uint64_t sum = 0, bytes;
    if (n_tokens < 0 || n_tokens > INT64_MAX / 4)
        return false;
    const uint64_t n_pages = (uint64_t)num_div_up(n_tokens, KV_PAGE);
    for (uint32_t g = 0; g < s->n_groups && n_pages; g++) {
        const int64_t window = s->group[g].window;
        const uint64_t n = window && window < n_tokens ? span_pages(window, n_pages)
                           : window                    ? n_pages
                                                       : 1;
        if (!num_mul_u64(n, s->group[g].page_bytes, &bytes) || !num_add_u64(sum, bytes, &sum))
            return false;
    }
    *out = sum;
    return true;
}

bool kv_branch_bytes(const struct kv_spec *s, uint64_t *out)
{
    uint64_t sum = 0, bytes;
    for (uint32_t g = 0; g < s->n_groups; g++)
        if (!num_mul_u64(span_pages(KV_PAGE, UINT64_MAX), s->group[g].page_bytes, &bytes) ||
            !num_add_u64(sum, bytes, &sum))
            return false;
    *out = sum;
    return true;
}

bool kv_plan_parts(const struct kv_spec *s, int64_t n_tokens, int64_t n_step, uint64_t *out,
                   uint64_t *windows)
{
    const int64_t most = INT64_MAX / 4;
    if (n_tokens < 0 || n_tokens > most || n_step < 0 || n_step > most)
        return false;
    const uint64_t n_pages = (uint64_t)num_div_up(n_tokens, KV_PAGE);
    uint64_t sum = 0, part = 0;
    for (uint32_t g = 0; g < s->n_groups && n_pages; g++) {
        const int64_t window = s->group[g].window;
        if (window > most)
            return false;
        /* Kept whole: a restore point shares all but the last page. */
        const bool some =
            s->in_memory && kv_disk_group(s) == (int64_t)g && (uint64_t)s->in_memory < n_pages;
        uint64_t n = (some ? (uint64_t)s->in_memory : n_pages) + 1, bytes;
        if (window) {
            const uint64_t all = span_pages(window + KV_REWIND + n_step, n_pages);
            const uint64_t ends = 2 * span_pages(window + KV_REWIND, n_pages);
            n = (s->group[g].ends && ends < all ? ends : all) + span_pages(window, n_pages);
        }
        if (!num_mul_u64(n, s->group[g].page_bytes, &bytes) || !num_add_u64(sum, bytes, &sum))
            return false;
        part += window ? bytes : 0;
    }
    *out = sum;
    *windows = part;
    return true;
}

bool kv_plan_bytes(const struct kv_spec *s, int64_t n_tokens, int64_t n_step, uint64_t *out)
{
    uint64_t windows;
    return kv_plan_parts(s, n_tokens, n_step, out, &windows);
}
