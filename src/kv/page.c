/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page - the pool.
 *
 * Small pages come in slabs, a large page is a slab of its own.  A page is taken from a
 * slab in use before an idle one, so that slabs fall idle; idle slabs go back to the
 * system when another group wants the memory.  The budget is on pages in use: what the
 * system has given can be more only by the free pages of slabs that are partly used.
 */
#define _GNU_SOURCE
#include "kv/page.h"

#include "base/bug.h"
#include "kv/disk.h"
#include "kv/media.h"
#include "base/mem.h"
#include "base/num.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum {
    SLAB_BYTES = 16 << 20, /* most of which huge pages can back */
    SLAB_SHARE = 16,       /* a slab is at most this part of the budget */
    HOME_LEAST = 64 << 10, /* pages that are on a node ... */
    HOME_BYTES = 4 << 20,  /* ... and slabs of them, if a page is smaller */
    MOST_TRIED = 256,      /* slabs, for one on a node */
};

struct kv_slab {
    struct kv_slab *prev, *next; /* in the pool's list: partial or idle; full slabs are in none */
    struct kv_page *free;
    uint8_t *at;
    uint8_t *own; /* of all pages, one after the other; or NULL */
    size_t n_bytes, own_bytes;
    uint32_t group;
    int home; /* the node of its memory, an index of the pool's; -1: of all in turn */
    int32_t n_pages, n_free;
    struct kv_page page[];
};

ingle_status kv_pool_create(struct kv_pool **out, const struct kv_spec *spec, uint64_t budget_bytes,
                            const struct report_sink *sink, struct err *err)
{
    uint64_t least = 0;
    if (spec->n_groups < 1 || spec->n_groups > KV_MAX_GROUPS)
        return err_set(err, INGLE_ARG, "%u groups of KV streams are not in 1..%d", spec->n_groups,
                       KV_MAX_GROUPS);
    for (uint32_t g = 0; g < spec->n_groups; g++)
        if (!spec->group[g].page_bytes || !num_add_u64(least, spec->group[g].page_bytes, &least))
            return err_set(err, INGLE_ARG, "group %u: %zu bytes a page", g,
                           spec->group[g].page_bytes);
    if (budget_bytes < least)
        return err_set(err, INGLE_LIMIT,
                       "a KV budget of %llu bytes cannot hold one page of each group: %llu bytes",
                       (unsigned long long)budget_bytes, (unsigned long long)least);
    struct kv_pool *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_set(err, INGLE_NOMEM, "no %zu bytes for a KV pool", sizeof *p);
    p->spec = spec;
    p->sink = sink;
    p->budget_bytes = budget_bytes;
    const ingle_status s = kv_media_create(&p->media, err);
    if (s)
        mem_free(p);
    else
        *out = p;
    return s;
}

struct kv_media *kv_pool_media(const struct kv_pool *p)
{
    return p->media;
}

void kv_pool_own(struct kv_pool *p, const struct kv_memory *m)
{
    p->memory = *m;
}

void kv_pool_lose_own(struct kv_pool *p, bool for_good)
{
    p->owner_left = p->owner_left || for_good;
    p->losses++;
}

void kv_pool_memory(struct kv_pool *p, const struct numa_nodes *nodes, bool by_split, bool lock)
{
    p->nodes = nodes;
    p->by_split = by_split && nodes && nodes->n > 1;
    p->lock = lock;
}

/* Whether pages of a group are on one node each: those that keep everything, and are large. */
static bool has_homes(const struct kv_pool *p, uint32_t group)
{
    return p->by_split && !p->spec->group[group].window && !p->spec->group[group].own_bytes &&
           p->spec->group[group].page_bytes >= HOME_LEAST;
}

/* The node of page `index` of a timeline: threads of it read there (device/cpu_attend.c,
 * cpu_rows.c). */
static int home_of(const struct kv_pool *p, uint32_t group, int64_t index)
{
    const int64_t split = index / (KERN_SPLIT / KERN_PAGE);
    return has_homes(p, group) && split ? (int)(split % p->nodes->n) : -1;
}

static void settle(struct kv_pool *p, void *at, size_t n_bytes, int home)
{
    if (p->nodes && home >= 0)
        (void)numa_prefer(at, n_bytes, p->nodes->id[home]);
    else if (p->nodes)
        (void)numa_interleave(at, n_bytes, p->nodes);
    if (!p->lock || mlock(at, n_bytes) == 0)
        return;
    p->lock = false;
    report(p->sink, INGLE_REPORT_WARN, "lock", "keys and values",
           "%zu KiB of %llu KiB are not locked, nor what follows: %s (RLIMIT_MEMLOCK, 'ulimit -l')",
           n_bytes >> 10, (unsigned long long)(p->budget_bytes >> 10), strerror(errno));
}

static void slab_link(struct kv_slab **list, struct kv_slab *s)
{
    s->prev = NULL;
    s->next = *list;
    if (s->next)
        s->next->prev = s;
    *list = s;
}

static void slab_unlink(struct kv_slab **list, struct kv_slab *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        *list = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

static void slab_return(struct kv_pool *p, struct kv_slab *s)
{
    slab_unlink(&p->idle[s->group], s);
    p->system_bytes -= s->n_bytes;
    mem_big_free(s->at, s->n_bytes);
    if (s->own)
        p->memory.give(p->memory.arg, s->own, s->own_bytes);
    mem_free(s);
}

/* Gives one idle slab of any group back to the system. */
static bool slab_return_any(struct kv_pool *p)
{
    for (uint32_t g = 0; g < p->spec->n_groups; g++)
        if (p->idle[g]) {
            slab_return(p, p->idle[g]);
            return true;
        }
    return false;
}

void kv_pool_free(struct kv_pool *p)
{
    if (!p)
        return;
    BUG_IF(p->used_bytes || p->n_timelines || p->evict || p->let_go);
    while (slab_return_any(p))
        ;
    BUG_IF(p->system_bytes);
    kv_disk_close(p);
    kv_media_free(p->media);
    mem_free(p);
}

void kv_pool_count(const struct kv_pool *p, struct kv_pool_counts *out)
{
    *out = (struct kv_pool_counts){
        .used_bytes = p->used_bytes,
        .peak_bytes = p->peak_bytes,
        .budget_bytes = p->budget_bytes,
        .cached_bytes = p->cached_bytes,
        .system_bytes = p->system_bytes,
        .evicted_points = p->evicted_points,
    };
    for (uint32_t g = 0; g < p->spec->n_groups; g++) {
        out->pages_used[g] = p->pages_used[g];
        out->token_bytes += p->spec->group[g].window ? 0 : p->spec->group[g].page_bytes / KV_PAGE;
    }
}

/* Pages that may leave memory have a slab each. */
static int32_t slab_pages(const struct kv_pool *p, uint32_t group, size_t page_bytes)
{
    if (kv_disk_has(p, group))
        return 1;
    const uint64_t share = p->budget_bytes / SLAB_SHARE,
                   most = has_homes(p, group) ? HOME_BYTES : SLAB_BYTES;
    const uint64_t want = share < most ? share : most;
    return want < page_bytes ? 1 : (int32_t)(want / page_bytes);
}

/* Of page i of the slab. */
static uint8_t *own_of(const struct kv_pool *p, const struct kv_slab *s, int32_t i)
{
    return s->own ? s->own + p->spec->group[s->group].own_bytes * (size_t)i : NULL;
}

static struct kv_slab *slab_create(struct kv_pool *p, uint32_t group, int32_t n_pages, int home)
{
    const size_t page_bytes = p->spec->group[group].page_bytes,
                 own_bytes = p->spec->group[group].own_bytes;
    struct kv_slab *s = mem_zalloc(sizeof *s + (size_t)n_pages * sizeof s->page[0]);
    uint8_t *at = s ? mem_big_alloc(page_bytes * (size_t)n_pages) : NULL;
    if (at && own_bytes) {
        s->own_bytes = own_bytes * (size_t)n_pages;
        s->own = p->memory.take(p->memory.arg, group, s->own_bytes);
    }
    if (!at || (own_bytes && !s->own)) {
        mem_big_free(at, page_bytes * (size_t)n_pages);
        mem_free(s);
        return NULL;
    }
    settle(p, at, page_bytes * (size_t)n_pages, home);
    s->home = home;
    s->at = at;
    s->n_bytes = page_bytes * (size_t)n_pages;
    s->group = group;
    s->n_pages = s->n_free = n_pages;
    for (int32_t i = n_pages; i-- > 0;) {
        s->page[i] = (struct kv_page){.at = at + page_bytes * (size_t)i,
                                      .own = own_of(p, s, i),
                                      .slab = s,
                                      .next = s->free,
                                      .slot = -1,
                                      .leaves = -1};
        s->free = &s->page[i];
    }
    p->system_bytes += s->n_bytes;
    slab_link(&p->idle[group], s);
    return s;
}

/* One of a list on a node, or NULL. */
static struct kv_slab *slab_on(struct kv_slab *s, int home)
{
    for (int i = 0; s && s->home != home && i < MOST_TRIED; i++)
        s = s->next;
    return s && s->home == home ? s : NULL;
}

/* A slab with a free page, of the right node if there is one or room for one; NULL when the system
 * has none. */
static struct kv_slab *slab_find(struct kv_pool *p, uint32_t group, int home)
{
    struct kv_slab *const partial = slab_on(p->partial[group], home),
                   *const idle = slab_on(p->idle[group], home);
    if (partial || idle)
        return partial ? partial : idle;
    if (p->idle[group])
        return p->idle[group];
    const size_t page_bytes = p->spec->group[group].page_bytes;
    const int32_t n_pages = slab_pages(p, group, page_bytes);
    const uint64_t n_bytes = (uint64_t)page_bytes * (uint64_t)n_pages;
    while (p->system_bytes > p->budget_bytes || n_bytes > p->budget_bytes - p->system_bytes)
        if (!slab_return_any(p))
            break;
    const bool roomy =
        p->system_bytes <= p->budget_bytes && n_bytes <= p->budget_bytes - p->system_bytes;
    if (!roomy && p->partial[group])
        return p->partial[group];
    struct kv_slab *s = slab_create(p, group, roomy ? n_pages : 1, home);
    while (!s && slab_return_any(p))
        s = slab_create(p, group, 1, home);
    return s ? s : p->partial[group];
}

static struct kv_page *page_from(struct kv_pool *p, struct kv_slab *s)
{
    struct kv_page *pg = s->free;
    if (s->n_free == s->n_pages) {
        slab_unlink(&p->idle[s->group], s);
        slab_link(&p->partial[s->group], s);
    }
    s->free = pg->next;
    if (--s->n_free == 0)
        slab_unlink(&p->partial[s->group], s);
    pg->next = NULL;
    pg->refs = 1;
    pg->fetched = pg->there = false;
    pg->loss = p->losses;
    p->used_bytes += kv_page_bytes(pg);
    if (p->used_bytes > p->peak_bytes)
        p->peak_bytes = p->used_bytes;
    p->pages_used[s->group]++;
    return pg;
}

size_t kv_page_bytes(const struct kv_page *pg)
{
    return pg->slab->n_bytes / (size_t)pg->slab->n_pages;
}

/* Its own part is there. */
static bool has_own(const struct kv_pool *p, const struct kv_page *pg)
{
    return pg->own && !p->owner_left && pg->loss == p->losses;
}

bool kv_page_own_fetch(const struct kv_pool *p, struct kv_page *pg)
{
    const uint32_t group = pg->slab->group;
    if (pg->own && !p->owner_left && !pg->fetched && !has_own(p, pg))
        return false;
    for (uint32_t i = 0; i < p->spec->n_streams && has_own(p, pg) && !pg->fetched; i++) {
        const struct kv_stream *s = &p->spec->stream[i];
        if (s->own && s->group == group &&
            !p->memory.read(p->memory.arg, i, pg->at + s->at, pg->own + kv_stream_at(p->spec, s),
                            s->n_bytes))
            return false;
    }
    pg->fetched = true;
    return true;
}

void kv_page_own_put(const struct kv_pool *p, struct kv_page *pg)
{
    const uint32_t group = pg->slab->group;
    const bool there = pg->there;
    pg->there = false;
    if (there)
        return;
    for (uint32_t i = 0; i < p->spec->n_streams && has_own(p, pg); i++) {
        const struct kv_stream *s = &p->spec->stream[i];
        if ((s->own || s->twin) && s->group == group)
            p->memory.write(p->memory.arg, i, pg->own + kv_stream_at(p->spec, s), pg->at + s->at,
                            s->n_bytes);
    }
    pg->fetched = pg->own != NULL;
}

void kv_page_own_copy(const struct kv_pool *p, const struct kv_page *pg, struct kv_page *to)
{
    if (has_own(p, to) && has_own(p, pg))
        p->memory.copy(p->memory.arg, to->own, pg->own,
                       p->spec->group[to->slab->group].own_bytes);
}

bool kv_page_evict(struct kv_pool *p)
{
    return (p->evict && p->evict(p->evict_arg)) || kv_page_let_go(p);
}

bool kv_page_let_go(struct kv_pool *p)
{
    return p->let_go && p->let_go(p->let_go_arg);
}

static struct kv_page *take(struct kv_pool *p, uint32_t group, int home)
{
    const uint64_t page_bytes = p->spec->group[group].page_bytes;
    while (page_bytes > p->budget_bytes - p->used_bytes)
        if (!kv_page_make_room(p))
            return NULL;
    struct kv_slab *s = slab_find(p, group, home);
    while (!s && kv_page_make_room(p))
        s = slab_find(p, group, home);
    return s ? page_from(p, s) : NULL;
}

struct kv_page *kv_page_take(struct kv_pool *p, uint32_t group)
{
    return take(p, group, -1);
}

struct kv_page *kv_page_take_at(struct kv_pool *p, uint32_t group, int64_t index)
{
    return take(p, group, home_of(p, group, index));
}

/* NULL: the lender has none, or there is no memory. */
static struct kv_page *page_lend(struct kv_pool *p, uint32_t group, int64_t index)
{
    struct kv_lender *l = p->lender;
    uint8_t *at = l->at(l->arg, group, index);
    struct kv_slab *s = at ? mem_zalloc(sizeof *s + sizeof s->page[0]) : NULL;
    if (!s)
        return NULL;
    s->n_bytes = p->spec->group[group].page_bytes;
    s->group = group;
    s->n_pages = 1;
    s->page[0] = (struct kv_page){
        .at = at, .lent = &l->n, .slab = s, .refs = 1, .slot = -1, .leaves = -1, .index = index};
    l->n++;
    return &s->page[0];
}

void kv_pool_lend(struct kv_pool *p, struct kv_lender *l)
{
    p->lender = l;
}

struct kv_page *kv_page_take_for(struct kv_pool *p, uint32_t group, int64_t index)
{
    if (p->lender)
        return page_lend(p, group, index);
    if (!kv_disk_has(p, group) || index < p->spec->in_memory)
        return kv_page_take_at(p, group, index);
    struct kv_slab *s = mem_zalloc(sizeof *s + sizeof s->page[0]);
    if (!s)
        return NULL;
    s->n_bytes = p->spec->group[group].page_bytes;
    s->group = group;
    s->n_pages = 1;
    s->page[0] = (struct kv_page){.slab = s, .refs = 1, .slot = -1, .leaves = -1, .index = index};
    while (!kv_disk_place(p, &s->page[0]))
        if (!kv_page_evict(p)) {
            mem_free(s);
            return NULL;
        }
    return &s->page[0];
}

size_t kv_page_memory(const struct kv_page *pg)
{
    return pg->at ? kv_page_bytes(pg) : 0;
}

bool kv_page_make_room(struct kv_pool *p)
{
    return kv_disk_spill(p, true) ||
           (p->disk && p->cached_bytes > p->spared_bytes && p->evict && p->evict(p->evict_arg)) ||
           kv_disk_spill(p, false) || kv_page_evict(p);
}

static bool page_cached(const struct kv_page *pg)
{
    return pg->refs && pg->held + pg->kept == pg->refs;
}

void kv_page_leave(struct kv_pool *p, struct kv_page *pg)
{
    const size_t n = kv_page_bytes(pg);
    BUG_IF(pg->slab->n_pages != 1 || !pg->at || !pg->refs);
    p->held_bytes -= pg->held ? n : 0;
    p->cached_bytes -= page_cached(pg) ? n : 0;
    p->used_bytes -= n;
    p->pages_used[pg->slab->group]--;
    p->system_bytes -= n;
    mem_big_free(pg->at, n);
    pg->at = pg->slab->at = NULL;
    p->moves++;
}

uint8_t *kv_page_room(struct kv_pool *p, const struct kv_page *pg)
{
    const size_t n = kv_page_bytes(pg);
    while (p->system_bytes > p->budget_bytes || n > p->budget_bytes - p->system_bytes)
        if (!slab_return_any(p))
            break;
    uint8_t *at = mem_big_alloc(n);
    if (at)
        settle(p, at, n, home_of(p, pg->slab->group, pg->index));
    return at;
}

void kv_page_room_free(const struct kv_page *pg, uint8_t *at)
{
    mem_big_free(at, kv_page_bytes(pg));
}

void kv_page_come(struct kv_pool *p, struct kv_page *pg, uint8_t *at)
{
    const size_t n = kv_page_bytes(pg);
    BUG_IF(pg->slab->n_pages != 1 || pg->at || !pg->refs);
    pg->at = pg->slab->at = at;
    p->held_bytes += pg->held ? n : 0;
    p->cached_bytes += page_cached(pg) ? n : 0;
    p->used_bytes += n;
    p->peak_bytes = p->used_bytes > p->peak_bytes ? p->used_bytes : p->peak_bytes;
    p->pages_used[pg->slab->group]++;
    p->system_bytes += n;
    p->moves++;
}

static void page_release(struct kv_pool *p, struct kv_page *pg)
{
    struct kv_slab *s = pg->slab;
    kv_disk_forget(p, pg);
    if (pg->lent)
        --*pg->lent;
    if (!pg->at || pg->lent) {
        mem_free(s);
        return;
    }
    if (s->n_free++ == 0)
        slab_link(&p->partial[s->group], s);
    pg->next = s->free;
    s->free = pg;
    p->used_bytes -= kv_page_bytes(pg);
    p->pages_used[s->group]--;
    if (s->n_free == s->n_pages) {
        slab_unlink(&p->partial[s->group], s);
        slab_link(&p->idle[s->group], s);
    }
}

/* Adds to the counts and keeps the pool's sums. */
static void page_count(struct kv_pool *p, struct kv_page *pg, int refs, int held, int kept)
{
    const size_t n = kv_page_memory(pg);
    if (pg->held)
        p->held_bytes -= n;
    if (page_cached(pg))
        p->cached_bytes -= n;
    pg->refs += refs;
    pg->held += held;
    pg->kept += kept;
    BUG_IF(pg->held < 0 || pg->kept < 0 || pg->held + pg->kept > pg->refs);
    if (pg->held)
        p->held_bytes += n;
    if (page_cached(pg))
        p->cached_bytes += n;
    if (!pg->refs)
        page_release(p, pg);
}

void kv_page_ref(struct kv_pool *p, struct kv_page *pg)
{
    page_count(p, pg, 1, 0, 0);
}
void kv_page_unref(struct kv_pool *p, struct kv_page *pg)
{
    page_count(p, pg, -1, 0, 0);
}
void kv_page_hold(struct kv_pool *p, struct kv_page *pg)
{
    page_count(p, pg, 1, 1, 0);
}
void kv_page_let(struct kv_pool *p, struct kv_page *pg)
{
    page_count(p, pg, -1, -1, 0);
}
void kv_page_keep(struct kv_pool *p, struct kv_page *pg)
{
    page_count(p, pg, 1, 0, 1);
}
void kv_page_unkeep(struct kv_pool *p, struct kv_page *pg)
{
    page_count(p, pg, -1, 0, -1);
}
