/* SPDX-License-Identifier: Apache-2.0 */
/* pages - what both ends know of pages: where they are, and which tokens they hold. */
#include "stage/wire.h"

#include "base/mem.h"
#include "base/num.h"
#include <string.h>
#include <xxhash.h>

/* The first slab that ends after `at`. */
static size_t place_of(const struct stage_pages *p, uint64_t at)
{
    size_t low = 0, high = p->n;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (p->slab[mid].at + p->slab[mid].n_bytes > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

struct stage_slab *stage_pages_find(const struct stage_pages *p, uint64_t at, uint64_t n)
{
    const size_t i = place_of(p, at);
    struct stage_slab *s = i < p->n ? &p->slab[i] : NULL;
    return s && at >= s->at && n <= s->n_bytes - (at - s->at) ? s : NULL;
}

ingle_status stage_pages_take(struct stage_pages *p, uint64_t at, uint64_t n_bytes,
                              uint64_t page_bytes, bool memory, struct err *err)
{
    const size_t i = place_of(p, at);
    if (!page_bytes || !n_bytes || n_bytes % page_bytes || n_bytes > UINT64_MAX / 2 ||
        at > UINT64_MAX / 2 || (i < p->n && p->slab[i].at < at + n_bytes))
        return err_set(err, INGLE_FORMAT,
                       "pages of %llu bytes, %llu each, at %llx are none, or were taken before",
                       (unsigned long long)n_bytes, (unsigned long long)page_bytes,
                       (unsigned long long)at);
    struct stage_slab s = {.at = at, .n_bytes = n_bytes, .page_bytes = page_bytes};
    s.hash = mem_calloc((size_t)(n_bytes / page_bytes), KV_PAGE * sizeof *s.hash);
    s.memory = memory && s.hash ? mem_big_alloc((size_t)n_bytes) : NULL;
    if (!s.hash || (memory && !s.memory) ||
        !mem_grow(&p->slab, &p->cap, p->n + 1, sizeof *p->slab)) {
        mem_free(s.hash);
        mem_big_free(s.memory, (size_t)n_bytes);
        return err_set(err, INGLE_NOMEM, "no %llu bytes for keys and values",
                       (unsigned long long)n_bytes);
    }
    memmove(p->slab + i + 1, p->slab + i, (p->n - i) * sizeof *p->slab);
    p->slab[i] = s;
    p->n++;
    p->n_bytes += n_bytes;
    return INGLE_OK;
}

static void release(struct stage_slab *s)
{
    mem_free(s->hash);
    mem_big_free(s->memory, (size_t)s->n_bytes);
}

bool stage_pages_give(struct stage_pages *p, uint64_t at)
{
    const size_t i = place_of(p, at);
    if (i >= p->n || p->slab[i].at != at)
        return false;
    p->n_bytes -= p->slab[i].n_bytes;
    release(&p->slab[i]);
    p->n--;
    memmove(p->slab + i, p->slab + i + 1, (p->n - i) * sizeof *p->slab);
    return true;
}

void stage_pages_clear(struct stage_pages *p)
{
    for (size_t i = 0; i < p->n; i++)
        release(&p->slab[i]);
    mem_free(p->slab);
    *p = (struct stage_pages){0};
}

uint64_t *stage_pages_hashes(const struct stage_pages *p, uint64_t at)
{
    const struct stage_slab *s = stage_pages_find(p, at, 1);
    return s ? s->hash + (at - s->at) / s->page_bytes * KV_PAGE : NULL;
}

bool stage_pages_copy(struct stage_pages *p, uint64_t to, uint64_t from)
{
    const struct stage_slab *a = stage_pages_find(p, to, 1), *b = stage_pages_find(p, from, 1);
    if (!a || !b || a->page_bytes != b->page_bytes || (to - a->at) % a->page_bytes ||
        (from - b->at) % b->page_bytes)
        return false;
    if (to == from)
        return true;
    if (a->memory && b->memory)
        memcpy(a->memory + (to - a->at), b->memory + (from - b->at), (size_t)a->page_bytes);
    memcpy(stage_pages_hashes(p, to), stage_pages_hashes(p, from), KV_PAGE * sizeof(uint64_t));
    return true;
}

void stage_pages_mark(struct stage_pages *p, uint64_t at, uint64_t hash)
{
    uint64_t *h = stage_pages_hashes(p, at);
    for (int i = 0; h && i < KV_PAGE; i++)
        h[i] = hash;
}

/* ---- tokens ---- */

uint64_t stage_table_page(const struct stage_table *t, int64_t i)
{
    uint64_t v = 0;
    if (i >= t->first && i < t->end)
        memcpy(&v, t->page + 8 * (size_t)(i - t->first), sizeof v);
    return v;
}

uint64_t stage_pages_before(const struct stage_pages *p, const struct stage_table *t,
                            uint32_t n_groups, int64_t at)
{
    for (uint32_t g = 0; g < n_groups && at > 0; g++) {
        const uint64_t page = stage_table_page(&t[g], (at - 1) / KV_PAGE);
        const uint64_t *h = page ? stage_pages_hashes(p, page) : NULL;
        if (h)
            return h[(at - 1) % KV_PAGE];
    }
    return 0;
}

void stage_pages_wrote(struct stage_pages *p, const struct stage_table *t, uint32_t n_groups,
                       int64_t at, const uint8_t *token, int64_t n, uint64_t before)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t pos = at + i;
        before = XXH3_64bits_withSeed(token + 4 * (size_t)i, 4, before + 1);
        for (uint32_t g = 0; g < n_groups; g++) {
            const uint64_t page = stage_table_page(&t[g], pos / KV_PAGE);
            uint64_t *h = page ? stage_pages_hashes(p, page) : NULL;
            if (h)
                h[pos % KV_PAGE] = before;
        }
    }
}
