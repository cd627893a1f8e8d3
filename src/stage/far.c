/* SPDX-License-Identifier: Apache-2.0 */
/*
 * far - an engine's prefixes in files of its stages (struct kv_far): which there are, and what goes
 * there or comes from there.
 *
 * Each stage has files of its own layers, and says which as soon as it is joined, and when that
 * changes.  The engine's disk thread asks all stages at once, in the order of the steps; pages stay
 * as they are meanwhile.
 */
#define _GNU_SOURCE
#include "stage/inner.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_BYTES = 64 };
#define LIST_NS UINT64_C(5000000000)

/* What all stages are asked for. */
struct stage_keep {
    struct stage_keep *next;
    uint64_t tag, mark;
    uint32_t waits; /* a bit of each stage that has not answered */
    bool read, bad;
    uint64_t *page; /* owned: own parts that are read */
    size_t n;
};

static void keep_free(struct stage_keep *k)
{
    mem_free(k->page);
    mem_free(k);
}

/* ---- what stages have ---- */

static int order(const void *a, const void *b)
{
    const struct kv_key *x = a, *y = b;
    if (x->hi != y->hi)
        return x->hi < y->hi ? -1 : 1;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static struct kv_key *find_key(const struct stage *s, struct kv_key key)
{
    return s->n_keys ? bsearch(&key, s->key, s->n_keys, sizeof key, order) : NULL;
}

/* Those in dropped [n], ascending, are not there any more. */
static void forget_keys(struct stage *s, const struct kv_key *dropped, size_t n)
{
    size_t left = 0, j = 0;
    for (size_t i = 0; i < s->n_keys; i++) {
        while (j < n && order(&dropped[j], &s->key[i]) < 0)
            j++;
        if (j == n || order(&dropped[j], &s->key[i]))
            s->key[left++] = s->key[i];
    }
    s->n_keys = left;
}

/* False: it is wrong, or too much. */
static bool read_list(struct stage *s, const struct link_in *in)
{
    struct kv_key *key;
    struct wire_in w = {.at = in->payload, .n = sizeof *key, .cap = in->n_payload};
    if (in->n_payload < STAGE_KEEP_LIST_HEAD)
        return false;
    const uint32_t anew = stage_get_u32(&w), n_new = stage_get_u32(&w),
                   n_dropped = stage_get_u32(&w);
    if (in->n_payload != STAGE_KEEP_LIST_HEAD + ((uint64_t)n_new + n_dropped) * sizeof *key)
        return false;
    memcpy(&s->context, in->payload, sizeof s->context);
    s->n_keys = anew ? 0 : s->n_keys;
    const size_t n_had = s->n_keys;
    if (n_had + n_new > STAGE_KEEP_MOST || n_dropped > STAGE_KEEP_MOST ||
        !mem_grow(&s->key, &s->cap_keys, n_had + n_new + n_dropped + 1, sizeof *s->key))
        return false;
    key = s->key + n_had;
    memcpy(key, in->payload + STAGE_KEEP_LIST_HEAD, ((size_t)n_new + n_dropped) * sizeof *key);
    if (n_dropped) {
        struct kv_key *dropped = key + n_new;
        qsort(dropped, n_dropped, sizeof *dropped, order);
        forget_keys(s, dropped, n_dropped);
        memmove(s->key + s->n_keys, key, n_new * sizeof *key);
    }
    s->n_keys += n_new;
    if (n_new)
        qsort(s->key, s->n_keys, sizeof *s->key, order);
    s->listed = true;
    return true;
}

bool stage_keep_waits(const struct stage_remote *r)
{
    const uint64_t now = clock_now();
    for (int i = 0; i < r->n && r->started; i++) {
        const struct stage *s = &r->stage[i];
        if (s->state == STAGE_READY && s->hello.keeps && !s->listed &&
            now - s->joined_ns < LIST_NS)
            return true;
    }
    return false;
}

/* The key of a prefix at a stage.  False: it has none, or there is no memory. */
static bool key_at(const struct stage *s, struct kv_scope scope, struct kv_media *media,
                   const int32_t *tokens, int64_t length, struct kv_key *out)
{
    int32_t *plain = NULL;
    if (scope.sparse || scope.shorten.name || scope.select)
        return false;
    for (int64_t i = 0; i < length && !plain; i++)
        if (tokens[i] < 0 && !(plain = mem_calloc((size_t)length, sizeof *plain)))
            return false;
    if (plain)
        kv_media_plain(media, tokens, length, plain);
    *out = kv_key_of(s->context, scope, NULL, plain ? plain : tokens, length);
    mem_free(plain);
    return true;
}

static bool has(void *arg, struct kv_scope scope, struct kv_media *media, const int32_t *tokens,
                int64_t length)
{
    struct stage_remote *r = arg;
    struct kv_key key;
    bool all = true;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->n && all; i++) {
        const struct stage *s = &r->stage[i];
        all = s->state == STAGE_READY && s->listed &&
              key_at(s, scope, media, tokens, length, &key) && find_key(s, key);
    }
    pthread_mutex_unlock(&r->lock);
    return all;
}

/* ---- what they are asked for ---- */

void stage_keep_lose(struct stage *s)
{
    const uint32_t me = UINT32_C(1) << (s - s->r->stage);
    for (struct stage_keep *k = s->r->keep; k; k = k->next) {
        k->bad = k->bad || (k->waits & me);
        k->waits &= ~me;
    }
    s->n_keys = 0;
    s->listed = false;
}

void stage_keep_end(struct stage_remote *r)
{
    while (r->keep) {
        struct stage_keep *k = r->keep;
        r->keep = k->next;
        keep_free(k);
    }
}

static struct stage_keep **find_keep(struct stage_remote *r, uint64_t tag)
{
    struct stage_keep **at = &r->keep;
    while (*at && (*at)->tag != tag)
        at = &(*at)->next;
    return at;
}

void stage_keep_receive(struct stage *s, const struct link_in *in, const struct link_head *h)
{
    struct stage_keep *k = *find_keep(s->r, h->tag);
    if (h->flags == STAGE_KEEP_DONE && k) {
        k->bad = k->bad || !h->n_rows;
        k->waits &= ~(UINT32_C(1) << (s - s->r->stage));
    }
    if (h->flags != STAGE_KEEP_LIST || h->tag != s->r->number || read_list(s, in))
        return;
    stage_lose(s, "what it says of its store is wrong, or more than a million prefixes");
    stage_dial_again(s);
}

/* Of the tokens, as pages have it; 0: nobody knows what they hold. */
static uint64_t hash_of(const struct stage_remote *r, const struct kv_far_part *p)
{
    uint8_t *const *page = p->page;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        page += p->end[g] - p->first[g];
        const uint64_t *h = page > p->page && page[-1]
                                ? stage_pages_hashes(&r->pages, (uintptr_t)page[-1])
                                : NULL;
        if (h)
            return h[(p->length - 1) % KV_PAGE];
    }
    return 0;
}

static uint32_t groups_of(const struct kv_spec *s)
{
    return s->n_own ? s->n_own : s->n_groups;
}

/* The message.  False: there is no memory. */
static bool write_part(const struct kv_far_part *p, uint64_t mark, struct link_out *m)
{
    const size_t n = STAGE_KEEP_HEAD + 8 * (size_t)p->n_groups + p->n_pages * sizeof(uint64_t) +
                     (size_t)p->length * sizeof(int32_t);
    if (n > LINK_MAX_BYTES || !link_out_init(m, n))
        return false;
    struct wire w = {.at = m->payload, .cap = m->n};
    stage_put_u64(&w, p->scope.salt);
    stage_put_u64(&w, mark);
    stage_put_u64(&w, (uint64_t)p->length);
    stage_put_u64(&w, (uint64_t)p->have);
    stage_put_u32(&w, p->n_groups);
    uint8_t *const *page = p->page;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        stage_put_u32(&w, (uint64_t)p->first[g]);
        stage_put_u32(&w, (uint64_t)p->end[g]);
        for (int64_t i = p->first[g]; i < p->end[g]; i++)
            stage_put_u64(&w, (uintptr_t)*page++);
    }
    union { uint8_t *bytes; int32_t *tokens; } to = {.bytes = w.at + w.n};
    kv_media_plain(p->media, p->tokens, p->length, to.tokens);
    return !w.bad;
}

/* The same to each.  False: not all are there. */
static bool ask(struct stage_remote *r, struct stage_keep *k, const struct kv_far_part *p)
{
    const struct link_head h = {.kind = LINK_KEEP,
                                .tag = k->tag,
                                .flags = k->read ? STAGE_KEEP_READ : STAGE_KEEP_SAVE};
    for (int i = 0; i < r->n; i++) {
        struct stage *s = &r->stage[i];
        struct link_out m;
        if (!write_part(p, k->mark, &m))
            return false;
        if (!stage_flush_pages(s) || s->state != STAGE_READY) {
            link_out_release(&m);
            return false;
        }
        if (!stage_send(s, &h, &m))
            return false;
        k->waits |= UINT32_C(1) << i;
    }
    return true;
}

static void drop_at(struct stage_remote *r, const struct stage_keep *k)
{
    const struct link_head h = {
        .kind = LINK_KEEP, .tag = k->tag, .flags = STAGE_KEEP_DROP};
    for (int i = 0; i < r->n; i++) {
        struct link_out m;
        if ((k->waits >> i & 1) && r->stage[i].state == STAGE_READY && link_out_init(&m, 0) &&
            !stage_send(&r->stage[i], &h, &m))
            stage_lose(&r->stage[i], "it takes no more messages");
    }
}

/* With the lock. */
static size_t count(const struct stage_remote *r)
{
    size_t n = 0;
    for (const struct stage_keep *k = r->keep; k; k = k->next)
        n++;
    return n;
}

/* With the lock. */
static void forget(struct stage_remote *r, uint64_t tag)
{
    struct stage_keep **at = find_keep(r, tag), *k = *at;
    if (!k)
        return;
    *at = k->next;
    keep_free(k);
}

static uint64_t begin(void *arg, bool read, const struct kv_far_part *part)
{
    struct stage_remote *r = arg;
    struct stage_keep *k = mem_zalloc(sizeof *k);
    struct kv_key key;
    uint64_t tag = 0;
    if (!k || !(k->page = mem_calloc(part->n_pages + 1, sizeof *k->page))) {
        mem_free(k);
        return 0;
    }
    for (k->n = 0; k->n < part->n_pages; k->n++)
        k->page[k->n] = (uintptr_t)part->page[k->n];
    pthread_mutex_lock(&r->lock);
    bool ok = !atomic_load(&r->lost) && count(r) < STAGE_KEEPS;
    for (int i = 0; i < r->n && ok; i++)
        ok = r->stage[i].state == STAGE_READY && r->stage[i].listed &&
             key_at(&r->stage[i], part->scope, part->media, part->tokens, part->length, &key);
    if (!ok) {
        keep_free(k);
    } else {
        k->read = read;
        k->tag = tag = ++r->tag;
        k->mark = read ? UINT64_C(1) << 63 | ++r->marks : hash_of(r, part);
        k->next = r->keep;
        r->keep = k;
        if (!k->mark || !ask(r, k, part)) {
            drop_at(r, k);
            forget(r, tag);
            tag = 0;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return tag;
}

static bool over(void *arg, uint64_t tag, bool *ok)
{
    struct stage_remote *r = arg;
    if (pthread_mutex_trylock(&r->lock)) /* whoever has it listens */
        return false;
    stage_look_at_all(r, 0);
    const struct stage_keep *k = *find_keep(r, tag);
    const bool is = !k || !k->waits || k->bad;
    if (is) {
        *ok = k && !k->bad;
        for (size_t i = 0; *ok && k->read && i < k->n; i++)
            stage_pages_mark(&r->pages, k->page[i], k->mark);
        if (k && k->waits)
            drop_at(r, k);
        forget(r, tag);
    }
    pthread_mutex_unlock(&r->lock);
    return is;
}

static void drop(void *arg, uint64_t tag)
{
    struct stage_remote *r = arg;
    pthread_mutex_lock(&r->lock);
    const struct stage_keep *k = *find_keep(r, tag);
    if (k)
        drop_at(r, k);
    forget(r, tag);
    pthread_mutex_unlock(&r->lock);
}

bool stage_remote_far(struct stage_remote *r, struct kv_far *far, struct kv_spec *form, char *name,
                      size_t n_name)
{
    bool all = r->n > 0;
    for (int i = 0; i < r->n; i++)
        all = all && r->stage[i].hello.keeps;
    if (!all)
        return false;
    *far = (struct kv_far){r, has, begin, over, drop};
    *form = *r->spec;
    for (uint32_t g = 0; g < groups_of(form); g++)
        form->group[g].page_bytes = LEAST_BYTES;
    for (uint32_t i = 0; i < form->n_streams; i++) {
        const struct kv_stream *st = &form->stream[i];
        size_t *n = &form->group[st->group].page_bytes;
        if (!st->own && st->group < groups_of(form) && st->at + st->n_bytes > *n)
            *n = st->at + st->n_bytes;
    }
    snprintf(name, n_name, " layers 0:%u", r->hello.first);
    return true;
}
