/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media - the table of pictures and sounds that tokens stand for: 256 bits become a number, so that
 * the tree compares whole names as it compares tokens.
 */
#include "kv/media.h"

#include "base/bug.h"
#include "base/mem.h"
#include "kv/page.h"
#include <pthread.h>
#include <string.h>
#include <xxhash.h>

enum {
    INDEX_BITS = 11,
    /* the last number is never given: kv_media_unknown() */
    MOST_NAMES = (1 << (31 - INDEX_BITS)) - 1
};

struct name {
    struct kv_medium of;
    int32_t refs;
    bool taken;
};

struct kv_media {
    pthread_mutex_t lock; /* of all below */
    struct name *name;    /* [n] */
    size_t n, cap;
    int32_t *slot;        /* [n_slots]: number + 1, by a hash of the id; 0: free */
    size_t n_slots;
};

ingle_status kv_media_create(struct kv_media **out, struct err *err)
{
    struct kv_media *m = mem_zalloc(sizeof *m);
    if (!m)
        return err_set(err, INGLE_NOMEM, "no memory for a table of media");
    BUG_IF(pthread_mutex_init(&m->lock, NULL)); /* cannot fail on Linux */
    *out = m;
    return INGLE_OK;
}

void kv_media_free(struct kv_media *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    mem_free(m->name);
    mem_free(m->slot);
    mem_free(m);
}

/* Ids are hashes: their first bytes are one, too. */
static size_t slot_of(const struct kv_media *m, const uint8_t *id)
{
    uint64_t hash;
    memcpy(&hash, id, sizeof hash);
    size_t i = (size_t)(hash % m->n_slots);
    while (m->slot[i] && memcmp(m->name[m->slot[i] - 1].of.id, id, KV_MEDIUM_ID) != 0)
        i = i + 1 < m->n_slots ? i + 1 : 0;
    return i;
}

/* Slots for twice as many names; false: out of memory. */
static bool grow(struct kv_media *m)
{
    const size_t n_slots = m->n_slots ? 2 * m->n_slots : 64;
    int32_t *slot = mem_calloc(n_slots, sizeof *slot);
    if (!slot)
        return false;
    mem_free(m->slot);
    m->slot = slot;
    m->n_slots = n_slots;
    for (size_t i = 0; i < m->n; i++)
        if (m->name[i].taken)
            m->slot[slot_of(m, m->name[i].of.id)] = (int32_t)i + 1;
    return true;
}

static int32_t find(const struct kv_media *m, const uint8_t *id)
{
    return m->n_slots ? m->slot[slot_of(m, id)] - 1 : -1;
}

int32_t kv_media_find(struct kv_media *m, const uint8_t *id)
{
    pthread_mutex_lock(&m->lock);
    const int32_t number = find(m, id);
    pthread_mutex_unlock(&m->lock);
    return number;
}

/* A number that nobody has; -1: there is none. */
static int32_t next_number(struct kv_media *m)
{
    if (m->n == MOST_NAMES || !mem_grow(&m->name, &m->cap, m->n + 1, sizeof *m->name))
        return -1;
    return (int32_t)m->n++;
}

int32_t kv_media_take(struct kv_media *m, const struct kv_medium *of)
{
    pthread_mutex_lock(&m->lock);
    int32_t number = find(m, of->id);
    if (number < 0 && (2 * (m->n + 1) < m->n_slots || grow(m)) && (number = next_number(m)) >= 0) {
        struct name *name = &m->name[number];
        *name = (struct name){.taken = true};
        m->slot[slot_of(m, of->id)] = number + 1;
        name->of = *of;
    }
    if (number >= 0)
        m->name[number].refs++;
    pthread_mutex_unlock(&m->lock);
    return number;
}

static void add(struct kv_media *m, int32_t number, int refs)
{
    pthread_mutex_lock(&m->lock);
    BUG_IF(number < 0 || (size_t)number >= m->n || m->name[number].refs < 1);
    m->name[number].refs += refs;
    pthread_mutex_unlock(&m->lock);
}

void kv_media_hold(struct kv_media *m, int32_t number)
{
    add(m, number, 1);
}

void kv_media_give(struct kv_media *m, int32_t number)
{
    add(m, number, -1);
}

bool kv_media_is_full(struct kv_media *m)
{
    pthread_mutex_lock(&m->lock);
    const bool full = m->n == MOST_NAMES;
    pthread_mutex_unlock(&m->lock);
    return full;
}

void kv_media_sweep(struct kv_media *m)
{
    pthread_mutex_lock(&m->lock);
    while (m->n && !m->name[m->n - 1].refs)
        m->n--;
    if (m->n_slots)
        memset(m->slot, 0, m->n_slots * sizeof *m->slot);
    for (size_t i = 0; i < m->n; i++) {
        m->name[i].taken = m->name[i].refs > 0;
        if (m->name[i].taken)
            m->slot[slot_of(m, m->name[i].of.id)] = (int32_t)i + 1;
    }
    pthread_mutex_unlock(&m->lock);
}

int32_t kv_media_key(int32_t number, int64_t index)
{
    BUG_IF(number < 0 || number >= MOST_NAMES || index < 0 || index >= KV_MEDIUM_MOST);
    return INT32_MIN | number << INDEX_BITS | (int32_t)index;
}

int32_t kv_media_unknown(int64_t index)
{
    return INT32_MIN | MOST_NAMES << INDEX_BITS | (int32_t)index;
}

int64_t kv_media_index(int32_t key)
{
    return key & ((1 << INDEX_BITS) - 1);
}

int32_t kv_media_number(int32_t key)
{
    return (key & INT32_MAX) >> INDEX_BITS;
}

bool kv_media_of(struct kv_media *m, int32_t number, struct kv_medium *out)
{
    bool known = false;
    pthread_mutex_lock(&m->lock);
    if (number >= 0 && (size_t)number < m->n && m->name[number].taken) {
        *out = m->name[number].of;
        known = true;
    }
    pthread_mutex_unlock(&m->lock);
    return known;
}

/* What a key stands for: its placeholder and a hash, not 0. */
static uint32_t name_of(struct kv_media *m, int32_t key, int32_t *token)
{
    struct kv_medium of = {.token = 0};
    *token = kv_media_of(m, kv_media_number(key), &of) ? of.token : 0;
    const uint32_t h =
        (uint32_t)XXH3_64bits_withSeed(of.id, sizeof of.id, (uint64_t)kv_media_index(key));
    return h ? h : 1;
}

void kv_media_plain(struct kv_media *m, const int32_t *key, int64_t n, int32_t *out)
{
    int32_t token = 0;
    for (int64_t i = 0; i < n; i++)
        out[i] = key[i] >= 0 ? key[i] : (int32_t)(name_of(m, key[i], &token) & INT32_MAX);
}

uint64_t kv_media_publish(struct kv_media *m, const struct kv_watch *w, bool disk,
                          struct kv_scope scope, const int32_t *key, int64_t n)
{
    int64_t first = 0;
    while (first < n && key[first] >= 0)
        first++;
    if (first == n)
        return w->put(w->arg, disk, scope, key, NULL, n);
    int32_t *token = mem_calloc((size_t)n, sizeof *token);
    uint32_t *media = mem_calloc((size_t)n, sizeof *media);
    for (int64_t i = 0; token && media && i < n; i++) {
        token[i] = key[i];
        if (key[i] < 0)
            media[i] = name_of(m, key[i], &token[i]);
    }
    const uint64_t event_name = token && media ? w->put(w->arg, disk, scope, token, media, n) : 0;
    mem_free(token);
    mem_free(media);
    return event_name;
}
