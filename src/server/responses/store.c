/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers and conversations by their ids, items by theirs.
 *
 * Items are shared: a chain of answers keeps each of them once.  A table leads from the id of an
 * item to its text, so nothing here reads or searches texts.  Whoever has a key owns what it
 * brought; when the store is full, the owner of the most loses its oldest, so that nobody is pushed
 * out of the share that each of them could have.
 *
 * The lock is held for a piece of the work at a time: an answer may have a hundred thousand items,
 * and the threads of answers wait for this lock, too.
 */
#include "server/responses/responses.h"
#include "server/responses/store.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "server/tape.h"
#include "server/view.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>

/* Items that are taken in or put out while the lock is held once. */
enum { PIECE = 1024 };

/* Whose things are kept.  Sync: the store's lock. */
struct owner {
    struct owner *next;
    char *name;
    struct entry *oldest, *newest; /* those that may go */
    size_t n, n_bytes;             /* entries, open ones too; bytes with their items */
    size_t n_pins;                 /* it stays although it has no entries */
};

/* Sync: the store's lock, except for what is set at the start: owner, id, hash. */
struct entry {
    struct entry *older, *newer; /* of the owner; unused while it is open */
    struct entry *next;          /* of the bucket */
    struct owner *owner;
    char *id;
    uint64_t hash;
    struct responses_items items; /* each counted as kept once */
    struct responses_item *object;
    size_t n_input;
    struct tape *tape; /* a reference, or NULL */
    size_t tape_bytes; /* of it, when it ended */
    size_t n_bytes;    /* what counts of it, without its items */
    bool open;         /* being computed: it stays */
};

struct responses_store {
    pthread_mutex_t lock;
    size_t n_max, n_bytes_max, mask; /* read-only; mask: of both tables */
    const char *replica;             /* read-only */
    uint64_t seed[2];                /* read-only: no client can aim at a bucket */
    struct owner *owner;             /* Sync: lock, as all below */
    struct entry **entry;            /* [mask + 1] by owner and id */
    struct responses_item **item;    /* [mask + 1] the newest of each owner and id */
    size_t n, n_bytes;
};

/* ---- hashes: SipHash-1-3 ---- */

static uint64_t turn(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void mix(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = turn(v[1], 13) ^ v[0];
    v[0] = turn(v[0], 32);
    v[2] += v[3];
    v[3] = turn(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = turn(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = turn(v[1], 17) ^ v[2];
    v[2] = turn(v[2], 32);
}

static uint64_t hash_of(const struct responses_store *s, const struct owner *o, const char *id,
                        size_t n)
{
    const uint64_t k0 = s->seed[0] ^ (uint64_t)(uintptr_t)o, k1 = s->seed[1];
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u,
                     k1 ^ 0x7465646279746573u};
    uint64_t word = 0;
    for (size_t i = 0; i <= n; i++) {
        const uint64_t byte = i < n ? (unsigned char)id[i] : (uint64_t)n & 0xFF;
        const size_t at = i == n ? 7 : i % 8;
        word |= byte << (8 * at);
        if (at == 7) {
            v[3] ^= word;
            mix(v);
            v[0] ^= word;
            word = 0;
        }
    }
    v[2] ^= 0xFF;
    for (int i = 0; i < 3; i++)
        mix(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ---- life ---- */

void responses_store_name(struct responses_store *s, const char *replica)
{
    s->replica = replica;
}

const char *responses_store_replica(const struct responses_store *s) { return s->replica; }

ingle_status responses_store_create(struct responses_store **out, size_t n_max, size_t n_bytes,
                                    struct err *err)
{
    struct responses_store *s = mem_zalloc(sizeof *s);
    if (s && pthread_mutex_init(&s->lock, NULL) != 0) {
        mem_free(s);
        s = NULL;
    }
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a store of answers");
    s->n_max = n_max ? n_max : 1000;
    s->n_bytes_max = n_bytes ? n_bytes : (size_t)64 << 20;
    size_t n = 256;
    while (n < s->n_bytes_max / 512 && n < (size_t)1 << 20)
        n *= 2;
    s->mask = n - 1;
    s->entry = mem_calloc(n, sizeof(struct entry *));
    s->item = mem_calloc(n, sizeof(struct responses_item *));
    if (getrandom(s->seed, sizeof s->seed, 0) != (ssize_t)sizeof s->seed)
        s->seed[0] = clock_now();
    if (!s->entry || !s->item) {
        responses_store_free(s);
        return err_set(err, INGLE_NOMEM, "no memory for a store of answers");
    }
    *out = s;
    return INGLE_OK;
}

static void entry_free(struct entry *e)
{
    if (!e)
        return;
    responses_items_release(&e->items);
    responses_item_unref(e->object);
    tape_unref(e->tape);
    mem_free(e->id);
    mem_free(e);
}

void responses_store_free(struct responses_store *s)
{
    if (!s)
        return;
    for (size_t i = 0; s->entry && i <= s->mask; i++)
        while (s->entry[i]) {
            struct entry *e = s->entry[i];
            s->entry[i] = e->next;
            entry_free(e);
        }
    while (s->owner) {
        struct owner *o = s->owner;
        s->owner = o->next;
        mem_free(o->name);
        mem_free(o);
    }
    mem_free(s->entry);
    mem_free(s->item);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

/* ---- owners; the lock is held ---- */

static struct owner *find_owner(const struct responses_store *s, const char *user)
{
    struct owner *o = s->owner;
    while (o && strcmp(o->name, user) != 0)
        o = o->next;
    return o;
}

/* The owner, who stays until unpin(); NULL: no memory. */
static struct owner *pin(struct responses_store *s, const char *user)
{
    pthread_mutex_lock(&s->lock);
    struct owner *o = find_owner(s, user);
    if (!o && (o = mem_zalloc(sizeof *o))) {
        o->name = mem_strdup(user);
        if (o->name) {
            o->next = s->owner;
            s->owner = o;
        } else {
            mem_free(o);
            o = NULL;
        }
    }
    if (o)
        o->n_pins++;
    pthread_mutex_unlock(&s->lock);
    return o;
}

static void forget_owner(struct responses_store *s, struct owner *o)
{
    struct owner **at = &s->owner;
    if (o->n || o->n_pins)
        return;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    mem_free(o->name);
    mem_free(o);
}

static void unpin(struct responses_store *s, struct owner *o)
{
    pthread_mutex_lock(&s->lock);
    o->n_pins--;
    forget_owner(s, o);
    pthread_mutex_unlock(&s->lock);
}

static void count_bytes(struct responses_store *s, struct owner *o, size_t more, size_t less)
{
    s->n_bytes += more - less;
    o->n_bytes += more - less;
}

/* ---- items ---- */

static bool is_same(const struct responses_item *i, const struct owner *o, uint64_t hash,
                    const char *id, size_t n)
{
    return i->hash == hash && i->owner == o && i->n_id == n &&
           memcmp(responses_item_id(i), id, n) == 0;
}

/* The place of the newest item of that id in its bucket; *result is NULL: there is none. */
static struct responses_item **find_item(struct responses_store *s, const struct owner *o,
                                         uint64_t hash, const char *id, size_t n)
{
    struct responses_item **at = &s->item[hash & s->mask];
    while (*at && !is_same(*at, o, hash, id, n))
        at = &(*at)->next;
    return at;
}

/* One more keeps the item; the lock is held. */
static void keep_item(struct responses_store *s, struct owner *o, struct responses_item *i)
{
    if (atomic_fetch_add(&i->n_kept, 1))
        return;
    count_bytes(s, o, responses_item_bytes(i), 0);
    i->owner = o;
    if (!i->n_id)
        return;
    i->hash = hash_of(s, o, responses_item_id(i), i->n_id);
    struct responses_item **at = find_item(s, o, i->hash, responses_item_id(i), i->n_id);
    struct responses_item *before = *at;
    i->older = before;
    i->newer = NULL;
    i->next = before ? before->next : NULL;
    if (before) {
        before->newer = i;
        before->next = NULL;
    }
    *at = i;
}

static void drop_item(struct responses_store *s, struct responses_item *i)
{
    if (atomic_fetch_sub(&i->n_kept, 1) != 1)
        return;
    count_bytes(s, i->owner, 0, responses_item_bytes(i));
    if (!i->n_id)
        return;
    if (i->older)
        i->older->newer = i->newer;
    if (i->newer) {
        i->newer->older = i->older;
        return;
    }
    struct responses_item **at = &s->item[i->hash & s->mask];
    while (*at != i)
        at = &(*at)->next;
    *at = i->older ? i->older : i->next;
    if (i->older)
        i->older->next = i->next;
}

static void keep_items(struct responses_store *s, struct owner *o,
                       const struct responses_items *list)
{
    for (size_t i = 0; i < list->n;) {
        pthread_mutex_lock(&s->lock);
        for (size_t k = 0; k < PIECE && i < list->n; k++)
            keep_item(s, o, list->at[i++]);
        pthread_mutex_unlock(&s->lock);
    }
}

static void drop_items(struct responses_store *s, const struct responses_items *list)
{
    for (size_t i = 0; i < list->n;) {
        pthread_mutex_lock(&s->lock);
        for (size_t k = 0; k < PIECE && i < list->n; k++)
            drop_item(s, list->at[i++]);
        pthread_mutex_unlock(&s->lock);
    }
}

/* Bytes of those that nobody keeps yet. */
static size_t fresh_bytes(const struct responses_items *list)
{
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++)
        if (!atomic_load(&list->at[i]->n_kept))
            n += responses_item_bytes(list->at[i]);
    return n;
}

/* ---- entries; the lock is held ---- */

static struct entry **find(struct responses_store *s, const struct owner *o, const char *id)
{
    const size_t n = strlen(id);
    const uint64_t hash = hash_of(s, o, id, n);
    struct entry **at = &s->entry[hash & s->mask];
    while (*at && ((*at)->hash != hash || (*at)->owner != o || strcmp((*at)->id, id) != 0))
        at = &(*at)->next;
    return at;
}

/* NULL: there is none of that user. */
static struct entry *find_of(struct responses_store *s, const char *user, const char *id)
{
    const struct owner *o = find_owner(s, user);
    return o ? *find(s, o, id) : NULL;
}

static size_t own_bytes(const struct entry *e)
{
    return sizeof *e + strlen(e->id) + (e->object ? responses_item_bytes(e->object) : 0) +
           e->tape_bytes;
}

static void recount(struct responses_store *s, struct entry *e)
{
    const size_t now = own_bytes(e);
    count_bytes(s, e->owner, now, e->n_bytes);
    e->n_bytes = now;
}

/* Open ones are in no list of those that may go. */
static void unlist(struct entry *e)
{
    struct owner *o = e->owner;
    if (e->open)
        return;
    *(e->older ? &e->older->newer : &o->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &o->newest) = e->older;
    e->older = e->newer = NULL;
}

static void list_newest(struct entry *e)
{
    struct owner *o = e->owner;
    if (e->open)
        return;
    e->older = o->newest;
    e->newer = NULL;
    *(e->older ? &e->older->newer : &o->oldest) = e;
    o->newest = e;
}

static void link_entry(struct responses_store *s, struct entry *e)
{
    e->hash = hash_of(s, e->owner, e->id, strlen(e->id));
    e->next = s->entry[e->hash & s->mask];
    s->entry[e->hash & s->mask] = e;
    e->owner->n++;
    s->n++;
    list_newest(e);
    recount(s, e);
}

/* The caller has it alone then, and ends it with dispose(); its owner is pinned until then. */
static struct entry *unlink_entry(struct responses_store *s, struct entry **at)
{
    struct entry *e = *at;
    *at = e->next;
    unlist(e);
    count_bytes(s, e->owner, 0, e->n_bytes);
    e->owner->n--;
    e->owner->n_pins++;
    s->n--;
    return e;
}

/* Without the lock. */
static void dispose(struct responses_store *s, struct entry *e)
{
    if (!e)
        return;
    drop_items(s, &e->items);
    unpin(s, e->owner);
    entry_free(e);
}

/* ---- room ---- */

/* What the owner has of that of which there is too little. */
static size_t weight(const struct owner *o, bool by_number, const struct owner *asks,
                     size_t n_bytes)
{
    return by_number ? o->n : o->n_bytes + (o == asks ? n_bytes : 0);
}

/* The owner of the most who has something that may go; the one that asks among equals. */
static struct owner *heaviest(const struct responses_store *s, bool by_number,
                              const struct owner *asks, size_t n_bytes)
{
    struct owner *most = NULL;
    for (struct owner *o = s->owner; o; o = o->next) {
        if (!o->oldest)
            continue;
        const size_t w = weight(o, by_number, asks, n_bytes);
        const size_t best = most ? weight(most, by_number, asks, n_bytes) : 0;
        if (!most || w > best || (w == best && o == asks))
            most = o;
    }
    return most;
}

/* Until there is room for n_entries and n_bytes more of the owner. */
static void make_room(struct responses_store *s, const struct owner *asks, size_t n_entries,
                      size_t n_bytes)
{
    for (bool more = true; more;) {
        pthread_mutex_lock(&s->lock);
        const bool by_number = s->n + n_entries > s->n_max;
        const bool full =
            by_number || n_bytes > s->n_bytes_max || s->n_bytes > s->n_bytes_max - n_bytes;
        struct owner *o = full ? heaviest(s, by_number, asks, n_bytes) : NULL;
        struct entry *e = o ? unlink_entry(s, find(s, o, o->oldest->id)) : NULL;
        pthread_mutex_unlock(&s->lock);
        dispose(s, e);
        more = e != NULL;
    }
}

/* ---- what others call ---- */

static struct entry *new_entry(struct owner *o, const char *id, const struct responses_kept *k)
{
    struct entry *e = mem_zalloc(sizeof *e);
    if (!e)
        return NULL;
    e->owner = o;
    e->id = mem_strdup(id);
    e->n_input = k->n_input;
    e->open = k->open;
    e->tape = k->tape ? tape_ref(k->tape) : NULL;
    e->object = responses_item_create(k->object->at, k->object->n, (struct view){NULL, 0});
    responses_items_share(&e->items, k->items, 0, k->items->n);
    if (e->id && e->object && !e->items.failed && !k->items->failed && str_ok(k->object))
        return e;
    entry_free(e);
    return NULL;
}

void responses_store_add(struct responses_store *s, const char *user, const char *id,
                         const struct responses_kept *k)
{
    struct owner *o = pin(s, user);
    struct entry *e = o ? new_entry(o, id, k) : NULL;
    const size_t n_bytes = e ? own_bytes(e) + e->items.n_bytes : 0;
    if (e && n_bytes <= s->n_bytes_max) {
        make_room(s, o, 1, own_bytes(e) + fresh_bytes(&e->items));
        keep_items(s, o, &e->items);
        pthread_mutex_lock(&s->lock);
        struct entry **old = find(s, o, id);
        struct entry *removed = *old ? unlink_entry(s, old) : NULL;
        link_entry(s, e);
        pthread_mutex_unlock(&s->lock);
        dispose(s, removed);
    } else {
        entry_free(e);
    }
    if (o)
        unpin(s, o);
}

void responses_store_count(struct responses_store *s, size_t *n, size_t *n_bytes)
{
    pthread_mutex_lock(&s->lock);
    *n = s->n;
    *n_bytes = s->n_bytes;
    pthread_mutex_unlock(&s->lock);
}

/* Changes what k has of the entry; false: there is no open one of that id.  list, object and what
 * is dropped are swapped with what the entry had. */
static bool set_open(struct responses_store *s, const struct owner *o, const char *id,
                     const struct responses_kept *k, struct responses_items *list,
                     struct responses_item **object)
{
    pthread_mutex_lock(&s->lock);
    struct entry *e = *find(s, o, id);
    const bool found = e && e->open;
    if (found) {
        struct responses_item *before = e->object;
        if (*object) {
            e->object = *object;
            *object = before;
        }
        if (k->items) {
            const struct responses_items old = e->items;
            e->items = *list;
            *list = old;
        }
        e->open = k->open;
        if (!e->open && e->tape)
            e->tape_bytes = tape_bytes(e->tape);
        list_newest(e);
        recount(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

bool responses_store_set(struct responses_store *s, const char *user, const char *id,
                         const struct responses_kept *k)
{
    struct owner *o = pin(s, user);
    struct responses_items list = {0};
    struct responses_item *object = NULL;
    if (!o)
        return false;
    if (k->object && str_ok(k->object))
        object = responses_item_create(k->object->at, k->object->n, (struct view){NULL, 0});
    if (k->items)
        responses_items_share(&list, k->items, 0, k->items->n);
    keep_items(s, o, &list);
    const bool found = set_open(s, o, id, k, &list, &object);
    drop_items(s, &list); /* the new ones, or those that were there before */
    responses_items_release(&list);
    responses_item_unref(object);
    if (found && !k->open)
        make_room(s, o, 0, 0);
    unpin(s, o);
    return found;
}

bool responses_store_set_object(struct responses_store *s, const char *user, const char *id,
                                const struct str *object)
{
    struct responses_item *new =
        str_ok(object) ? responses_item_create(object->at, object->n, (struct view){NULL, 0})
                       : NULL;
    pthread_mutex_lock(&s->lock);
    struct entry *e = new ? find_of(s, user, id) : NULL;
    if (e) {
        struct responses_item *before = e->object;
        e->object = new;
        new = before;
        unlist(e);
        list_newest(e);
        recount(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    responses_item_unref(new);
    return e != NULL;
}

enum responses_change responses_store_append(struct responses_store *s, const char *user,
                                             const char *id, const struct responses_items *new)
{
    enum responses_change result = RESPONSES_MISSING;
    struct owner *o = pin(s, user);
    if (!o)
        return RESPONSES_MISSING;
    pthread_mutex_lock(&s->lock);
    struct entry *e = *find(s, o, id);
    if (e) { /* it is the last of its owner's to go now */
        unlist(e);
        list_newest(e);
    }
    pthread_mutex_unlock(&s->lock);
    if (e)
        make_room(s, o, 0, fresh_bytes(new));
    keep_items(s, o, new);
    pthread_mutex_lock(&s->lock);
    e = *find(s, o, id);
    if (e && (new->n > REQUEST_MAX_MESSAGES - e->items.n ||
              new->n_bytes + e->items.n_bytes + own_bytes(e) > s->n_bytes_max / 2))
        result = RESPONSES_FULL;
    else if (e && !new->failed && responses_items_share(&e->items, new, 0, new->n))
        result = RESPONSES_CHANGED;
    pthread_mutex_unlock(&s->lock);
    if (result != RESPONSES_CHANGED)
        drop_items(s, new);
    unpin(s, o);
    return result;
}

bool responses_store_remove(struct responses_store *s, const char *user, const char *id,
                            const char *item)
{
    struct responses_items seen = {0}, removed = {0};
    struct responses_found found = {.items = &seen};
    if (!*item || !responses_store_get(s, user, id, &found))
        return false;
    const size_t at = responses_items_find(&seen, item);
    pthread_mutex_lock(&s->lock);
    struct entry *e = at < seen.n ? find_of(s, user, id) : NULL;
    size_t i = 0;
    while (e && i < e->items.n && e->items.at[i] != seen.at[at])
        i++;
    const bool there = e && i < e->items.n && responses_items_share(&removed, &e->items, i, i + 1);
    if (there) {
        responses_items_cut(&e->items, i);
        drop_item(s, removed.at[0]);
        unlist(e);
        list_newest(e);
    }
    pthread_mutex_unlock(&s->lock);
    responses_items_release(&removed);
    responses_items_release(&seen);
    responses_found_release(&found);
    return there;
}

bool responses_store_get(struct responses_store *s, const char *user, const char *id,
                         struct responses_found *out)
{
    pthread_mutex_lock(&s->lock);
    const struct entry *e = find_of(s, user, id);
    if (e) {
        if (out->items)
            (void)responses_items_share(out->items, &e->items, 0, e->items.n);
        out->object = responses_item_ref(e->object);
        out->n_input = e->n_input;
        out->open = e->open;
        out->tape = e->tape ? tape_ref(e->tape) : NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

void responses_found_release(struct responses_found *f)
{
    responses_item_unref(f->object);
    tape_unref(f->tape);
    f->object = NULL;
    f->tape = NULL;
}

bool responses_store_delete(struct responses_store *s, const char *user, const char *id)
{
    struct entry *e = NULL;
    pthread_mutex_lock(&s->lock);
    const struct owner *o = find_owner(s, user);
    struct entry **at = o ? find(s, o, id) : NULL;
    if (at && *at) {
        e = unlink_entry(s, at);
        if (e->open && e->tape)
            tape_cancel(e->tape);
    }
    pthread_mutex_unlock(&s->lock);
    dispose(s, e);
    return e != NULL;
}

struct responses_item *responses_store_item(struct responses_store *s, const char *user,
                                            struct view id)
{
    struct responses_item *found = NULL;
    pthread_mutex_lock(&s->lock);
    const struct owner *o = id.n ? find_owner(s, user) : NULL;
    if (o)
        found = *find_item(s, o, hash_of(s, o, id.at, id.n), id.at, id.n);
    found = found ? responses_item_ref(found) : NULL;
    pthread_mutex_unlock(&s->lock);
    return found;
}
