/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/store_index.h"

#include "base/mem.h"
#include "kv/key.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FRESH_S = 60 }; /* ages below this are one age */

void kv_index_name(char out[KV_NAME_BYTES], struct kv_key key, int64_t length)
{
    snprintf(out, KV_NAME_BYTES, "%016" PRIx64 "%016" PRIx64 ".%" PRId64 ".kv", key.hi, key.lo,
             length);
}

/* Only what kv_index_name() writes. */
bool kv_index_parse(const char *name, struct kv_key *key, int64_t *length)
{
    struct kv_key k = {0, 0};
    int64_t n = 0;
    char same[KV_NAME_BYTES];
    for (int i = 0; i < 32; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *d = name[i] ? strchr(digits, name[i]) : NULL;
        if (!d)
            return false;
        uint64_t *half = i < 16 ? &k.hi : &k.lo;
        *half = *half << 4 | (uint64_t)(d - digits);
    }
    if (name[32] != '.')
        return false;
    for (const char *p = name + 33; *p >= '0' && *p <= '9'; p++) {
        if (n > INT64_MAX / 16)
            return false;
        n = n * 10 + (*p - '0');
    }
    kv_index_name(same, k, n);
    if (n < 1 || strcmp(name, same) != 0)
        return false;
    *key = k;
    *length = n;
    return true;
}

void kv_index_release(struct kv_index *x)
{
    mem_free(x->entry);
    *x = (struct kv_index){0};
}

static int order(const struct kv_entry *e, struct kv_key key, int64_t length)
{
    if (e->length != length)
        return e->length < length ? -1 : 1;
    if (e->key.hi != key.hi)
        return e->key.hi < key.hi ? -1 : 1;
    return (e->key.lo > key.lo) - (e->key.lo < key.lo);
}

/* The number of entries before this one. */
static size_t place(const struct kv_index *x, struct kv_key key, int64_t length)
{
    size_t lo = 0, hi = x->n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (order(&x->entry[mid], key, length) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct kv_entry *kv_index_find(const struct kv_index *x, struct kv_key key, int64_t length)
{
    const size_t i = place(x, key, length);
    return i < x->n && order(&x->entry[i], key, length) == 0 ? &x->entry[i] : NULL;
}

static uint64_t counted(const struct kv_entry *e)
{
    return e->state == KV_ENTRY_PENDING ? 0 : e->bytes;
}

bool kv_index_add(struct kv_index *x, const struct kv_entry *e)
{
    struct kv_entry *old = kv_index_find(x, e->key, e->length);
    x->changes++;
    if (old) {
        const uint64_t event_name = old->event_name;
        x->bytes += counted(e) - counted(old);
        *old = *e;
        old->event_name = event_name;
        return true;
    }
    if (!mem_grow(&x->entry, &x->cap, x->n + 1, sizeof *x->entry))
        return false;
    const size_t i = place(x, e->key, e->length);
    memmove(&x->entry[i + 1], &x->entry[i], (x->n - i) * sizeof *x->entry);
    x->entry[i] = *e;
    x->n++;
    x->bytes += counted(e);
    return true;
}

void kv_index_remove(struct kv_index *x, struct kv_key key, int64_t length)
{
    struct kv_entry *e = kv_index_find(x, key, length);
    if (!e)
        return;
    if (e->event_name && x->watch)
        x->watch->drop(x->watch->arg, true, e->event_name);
    x->changes++;
    x->bytes -= counted(e);
    x->n--;
    memmove(e, e + 1, (x->n - (size_t)(e - x->entry)) * sizeof *e);
}

static bool usable(const struct kv_entry *e, bool pending)
{
    return e->state == KV_ENTRY_READY || (pending && e->state == KV_ENTRY_PENDING);
}

const struct kv_entry *kv_index_parent(const struct kv_index *x, const struct kv_entry *e)
{
    return e->from ? kv_index_find(x, e->parent, e->from) : NULL;
}

bool kv_index_is_whole(const struct kv_index *x, const struct kv_entry *e, bool pending)
{
    for (; e->from; e = kv_index_parent(x, e)) {
        const struct kv_entry *parent = kv_index_parent(x, e);
        if (!parent || !usable(parent, pending) || parent->length >= e->length)
            return false;
    }
    return true;
}

const struct kv_entry *kv_index_deepest(const struct kv_index *x, struct kv_key context,
                                        struct kv_scope scope, const int32_t *tokens, int64_t limit,
                                        bool pending, int64_t *foreign)
{
    const struct kv_entry *best = NULL;
    struct kv_hasher own, plain;
    int64_t other = 0;
    bool ok = kv_hasher_begin(&own, context, scope, x->media, tokens);
    ok = kv_hasher_begin(&plain, (struct kv_key){0, 0}, kv_scope_of(scope.salt), x->media,
                         tokens) &&
         ok;
    for (size_t i = 0; ok && i < x->n && x->entry[i].length <= limit;) {
        const int64_t length = x->entry[i].length;
        const struct kv_key key = kv_hasher_at(&own, length);
        const struct kv_entry *e = kv_index_find(x, key, length);
        if (e && usable(e, pending) && kv_key_equal(e->context, context) &&
            kv_index_is_whole(x, e, pending))
            best = e;
        const struct kv_key same = foreign ? kv_hasher_at(&plain, length) : key;
        for (; i < x->n && x->entry[i].length == length; i++)
            if (foreign && x->entry[i].state == KV_ENTRY_READY &&
                !(kv_key_equal(x->entry[i].context, context) &&
                  kv_key_equal(x->entry[i].key, key)) &&
                kv_key_equal(x->entry[i].plain, same))
                other = length;
    }
    kv_hasher_end(&own);
    kv_hasher_end(&plain);
    if (foreign)
        *foreign = other;
    return best;
}

/* What is lost with a file, for what it takes: tokens to compute again a byte, less the
 * longer nobody asked.  A file whose parent was removed is of no use.  What a clock that was ahead
 * has dated would not age for as long: it is as old as it is in the future. */
static double value(const struct kv_index *x, const struct kv_entry *e, int64_t now)
{
    const double age = fabs((double)now - (double)e->used);
    const bool may_be_good = e->state == KV_ENTRY_READY || e->state == KV_ENTRY_AWAY;
    if (!may_be_good || (e->from && !kv_index_parent(x, e)))
        return -age - 1;
    return (double)(e->length - e->from) / (double)e->bytes / (age + FRESH_S);
}

const struct kv_entry *kv_index_victim(const struct kv_index *x, int64_t now)
{
    bool *continued = mem_calloc(x->n + 1, sizeof *continued);
    const struct kv_entry *worst = NULL;
    double least = 0;
    for (size_t i = 0; continued && i < x->n; i++) {
        const struct kv_entry *parent = kv_index_parent(x, &x->entry[i]);
        if (parent)
            continued[parent - x->entry] = true;
    }
    for (size_t i = 0; continued && i < x->n; i++) {
        const struct kv_entry *e = &x->entry[i];
        if (continued[i] || e->state == KV_ENTRY_PENDING)
            continue;
        const double v = value(x, e, now);
        if (worst && v >= least)
            continue;
        least = v;
        worst = e;
    }
    mem_free(continued);
    return worst;
}
