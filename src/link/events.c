/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events - blocks, batches and the thread that sends them.  See events.h.
 */
#define _GNU_SOURCE
#include "link/events.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "link/pack.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>
#include <zmq.h>

enum {
    RING_BYTES = 64 << 20,
    SUBSCRIBER = 1000, /* batches that wait for one subscriber, at most */
    EVENT_BLOCKS = 4096, /* of one event */
    ADDRESS = 300,
    LINGER_MS = 200,
};

/* A block that is there; name 0: a free place. */
struct block {
    uint64_t name, parent;
    uint32_t refs; /* prefixes that end with it, and blocks that go on from it */
};

struct table {
    struct block *at; /* [mask + 1] */
    size_t mask, n;
};

struct batch {
    uint8_t *at;
    size_t n;
};

struct link_events {
    char address[ADDRESS], replay[ADDRESS], topic[ADDRESS], kind[64];
    bool array;
    size_t n_bytes_max, n_ring;
    void *context, *pub, *router; /* the thread's, once it runs */
    int wake;
    pthread_t thread;
    bool threaded;
    pthread_mutex_t lock; /* of all below */
    bool stop;
    struct table table[LINK_MEDIA];
    struct batch *ring; /* [n_ring], batch i at i % n_ring */
    uint64_t first, next, sent; /* batches [first, next) are there, the next one to send */
    size_t n_bytes;
    struct link_events_counts counts;
};

/* ---- blocks ---- */

static size_t place(const struct table *t, uint64_t name)
{
    size_t i = (size_t)(name * UINT64_C(0x9E3779B97F4A7C15) >> 17) & t->mask;
    while (t->at[i].name && t->at[i].name != name)
        i = (i + 1) & t->mask;
    return i;
}

/* Room for n more: at most half of the places are in use. */
static bool table_reserve(struct table *t, size_t n)
{
    size_t mask = t->at ? t->mask : 1023;
    while (t->n + n > (mask + 1) / 2)
        mask = mask * 2 + 1;
    if (t->at && mask == t->mask)
        return true;
    struct table new = {.mask = mask, .n = t->n};
    new.at = mem_calloc(new.mask + 1, sizeof *new.at);
    if (!new.at)
        return false;
    for (size_t i = 0; t->at && i <= t->mask; i++)
        if (t->at[i].name)
            new.at[place(&new, t->at[i].name)] = t->at[i];
    mem_free(t->at);
    *t = new;
    return true;
}

/* Those after it move up, so that every one is found from its own place on. */
static void table_remove(struct table *t, size_t i)
{
    t->at[i].name = 0;
    t->n--;
    for (size_t k = (i + 1) & t->mask; t->at[k].name; k = (k + 1) & t->mask) {
        const struct block moved = t->at[k];
        t->at[k].name = 0;
        t->at[place(t, moved.name)] = moved;
    }
}

/* 63 bits: some consumers have signed numbers.  0 is no name. */
static uint64_t name_of(uint64_t before, const int32_t *tokens, const uint32_t *media)
{
    uint32_t any = 0;
    for (size_t i = 0; media && i < LINK_BLOCK; i++)
        any |= media[i];
    if (any) /* else it is that of the same text */
        before = XXH3_64bits_withSeed(media, LINK_BLOCK * sizeof *media, before);
    const uint64_t h =
        XXH3_64bits_withSeed(tokens, LINK_BLOCK * sizeof *tokens, before) & INT64_MAX;
    return h ? h : 1;
}

/* ---- batches; the lock is held ---- */

static void forget_oldest(struct link_events *e)
{
    struct batch *b = &e->ring[e->first % e->n_ring];
    e->n_bytes -= b->n;
    mem_free(b->at);
    *b = (struct batch){0};
    if (e->sent == e->first++) {
        e->sent++;
        e->counts.lost++;
    }
}

/* Takes the bytes; none (memory ran out): the number is used all the same. */
static void add_batch(struct link_events *e, struct link_pack *p)
{
    while (e->next - e->first >= e->n_ring ||
           (e->next > e->first && p->n > e->n_bytes_max - e->n_bytes))
        forget_oldest(e);
    const bool fits = !p->failed && p->n <= e->n_bytes_max;
    struct batch *b = &e->ring[e->next++ % e->n_ring];
    *b = fits ? (struct batch){p->at, p->n} : (struct batch){0};
    if (fits)
        *p = (struct link_pack){0};
    else
        e->counts.lost++;
    link_pack_release(p);
    e->n_bytes += b->n;
    e->counts.batches++;
}

static void wake(const struct link_events *e)
{
    const uint64_t one = 1;
    (void)!write(e->wake, &one, sizeof one);
}

static void begin_batch(struct link_pack *p, size_t n_events)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    link_pack_array(p, 3);
    link_pack_double(p, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    link_pack_array(p, n_events);
}

static void end_batch(struct link_events *e, struct link_pack *p)
{
    link_pack_uint(p, 0); /* data_parallel_rank */
    add_batch(e, p);
}

static const char *const medium_word[LINK_MEDIA] = {"GPU", "STORAGE"};

static void put_key(struct link_pack *p, const struct link_events *e, const char *key)
{
    if (!e->array)
        link_pack_text(p, key);
}

static void put_hashes(struct link_pack *p, const struct link_events *e, const uint64_t *name,
                       size_t n)
{
    put_key(p, e, "block_hashes");
    link_pack_array(p, n);
    for (size_t i = 0; i < n; i++)
        link_pack_uint(p, name[i]);
}

static void put_kind(struct link_pack *p, const struct link_events *e)
{
    put_key(p, e, "group_idx");
    link_pack_uint(p, 0);
    put_key(p, e, "kv_cache_spec_kind");
    if (e->kind[0])
        link_pack_text(p, e->kind);
    else
        link_pack_nil(p);
}

/* Blocks name[n] of these tokens after `parent` (0: they are the first).  As a map or an array the
 * members have the same order. */
static void put_stored(struct link_pack *p, const struct link_events *e, enum link_medium medium,
                       const char *salt, uint64_t parent, const uint64_t *name, size_t n,
                       const int32_t *tokens)
{
    const bool salted = !parent && *salt;
    if (e->array) {
        link_pack_array(p, 12);
        link_pack_text(p, "BlockStored");
    } else {
        link_pack_map(p, salted ? 11 : 10);
        link_pack_text(p, "type");
        link_pack_text(p, "BlockStored");
    }
    put_hashes(p, e, name, n);
    put_key(p, e, "parent_block_hash");
    if (parent)
        link_pack_uint(p, parent);
    else
        link_pack_nil(p);
    put_key(p, e, "token_ids");
    link_pack_array(p, n * LINK_BLOCK);
    for (size_t i = 0; i < n * LINK_BLOCK; i++)
        link_pack_uint(p, (uint32_t)tokens[i]);
    put_key(p, e, "block_size");
    link_pack_uint(p, LINK_BLOCK);
    put_key(p, e, "lora_id");
    link_pack_nil(p);
    put_key(p, e, "medium");
    link_pack_text(p, medium_word[medium]);
    put_key(p, e, "lora_name");
    link_pack_nil(p);
    if (salted) {
        put_key(p, e, "extra_keys");
        link_pack_array(p, n);
        link_pack_array(p, 1);
        link_pack_text(p, salt);
        for (size_t i = 1; i < n; i++)
            link_pack_nil(p);
    } else if (e->array) {
        link_pack_nil(p);
    }
    put_kind(p, e);
    if (e->array)
        link_pack_nil(p); /* kv_cache_spec_sliding_window */
}

static void put_removed(struct link_pack *p, const struct link_events *e, enum link_medium medium,
                        const uint64_t *name, size_t n)
{
    if (e->array) {
        link_pack_array(p, 4);
        link_pack_text(p, "BlockRemoved");
    } else {
        link_pack_map(p, 4);
        link_pack_text(p, "type");
        link_pack_text(p, "BlockRemoved");
    }
    put_hashes(p, e, name, n);
    put_key(p, e, "medium");
    link_pack_text(p, medium_word[medium]);
    put_key(p, e, "group_idx");
    link_pack_uint(p, 0);
}

static void put_cleared(struct link_events *e)
{
    struct link_pack p = {0};
    begin_batch(&p, 1);
    if (e->array) {
        link_pack_array(&p, 1);
    } else {
        link_pack_map(&p, 1);
        link_pack_text(&p, "type");
    }
    link_pack_text(&p, "AllBlocksCleared");
    end_batch(e, &p);
}

/* ---- prefixes ---- */

/* Publishes blocks [0, n) that follow parent, in events of bounded length. */
static void publish_stored(struct link_events *e, enum link_medium medium, const char *salt,
                           uint64_t parent, const uint64_t *name, size_t n, const int32_t *tokens)
{
    struct link_pack p = {0};
    begin_batch(&p, (n + EVENT_BLOCKS - 1) / EVENT_BLOCKS);
    for (size_t i = 0; i < n; i += EVENT_BLOCKS) {
        const size_t some = n - i < EVENT_BLOCKS ? n - i : EVENT_BLOCKS;
        put_stored(&p, e, medium, salt, i ? name[i - 1] : parent, name + i, some,
                   tokens + i * LINK_BLOCK);
    }
    end_batch(e, &p);
    e->counts.stored += n;
}

/* Adds those of name[n] that are not there; the number of the first one, n: all were.  False: no
 * memory, and nothing was added. */
static bool add_blocks(struct table *t, const uint64_t *name, size_t n, size_t *first)
{
    size_t i = 0;
    while (i < n && t->at && t->at[place(t, name[i])].name)
        i++;
    *first = i;
    if (!table_reserve(t, n - i))
        return false;
    for (size_t k = i; k < n; k++) {
        const uint64_t parent = k ? name[k - 1] : 0;
        t->at[place(t, name[k])] = (struct block){.name = name[k], .parent = parent};
        t->n++;
        if (k)
            t->at[place(t, parent)].refs++;
    }
    t->at[place(t, name[n - 1])].refs++;
    return true;
}

uint64_t link_events_put(struct link_events *e, enum link_medium medium, const char *salt,
                         const int32_t *tokens, const uint32_t *media, int64_t n)
{
    const size_t n_blocks = n > 0 ? (size_t)n / LINK_BLOCK : 0;
    uint64_t *name = n_blocks ? mem_calloc(n_blocks, sizeof *name) : NULL, last = 0;
    size_t first;
    if (!name)
        return 0;
    uint64_t before = *salt ? XXH3_64bits(salt, strlen(salt)) : 0;
    for (size_t i = 0; i < n_blocks; i++)
        before = name[i] = name_of(before, tokens + i * LINK_BLOCK,
                                   media ? media + i * LINK_BLOCK : NULL);
    pthread_mutex_lock(&e->lock);
    if (add_blocks(&e->table[medium], name, n_blocks, &first)) {
        last = name[n_blocks - 1];
        if (first < n_blocks)
            publish_stored(e, medium, salt, first ? name[first - 1] : 0, name + first,
                           n_blocks - first, tokens + first * LINK_BLOCK);
    }
    pthread_mutex_unlock(&e->lock);
    mem_free(name);
    wake(e);
    return last;
}

void link_events_drop(struct link_events *e, enum link_medium medium, uint64_t name)
{
    struct table *t = &e->table[medium];
    uint64_t removed[EVENT_BLOCKS];
    bool published = false;
    pthread_mutex_lock(&e->lock);
    while (name && t->at) {
        size_t n = 0;
        while (name && n < EVENT_BLOCKS) {
            const size_t i = place(t, name);
            if (!t->at[i].name || --t->at[i].refs) {
                name = 0;
                break;
            }
            removed[n++] = name;
            name = t->at[i].parent;
            table_remove(t, i);
        }
        if (!n)
            break;
        struct link_pack p = {0};
        begin_batch(&p, 1);
        put_removed(&p, e, medium, removed, n);
        end_batch(e, &p);
        e->counts.removed += n;
        published = true;
    }
    pthread_mutex_unlock(&e->lock);
    if (published)
        wake(e);
}

void link_events_count(struct link_events *e, struct link_events_counts *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->counts;
    for (int m = 0; m < LINK_MEDIA; m++)
        out->blocks[m] = e->table[m].n;
    pthread_mutex_unlock(&e->lock);
}

const char *link_events_address(const struct link_events *e) { return e->address; }

const char *link_events_topic(const struct link_events *e) { return e->topic; }

const char *link_events_replay(const struct link_events *e)
{
    return e->replay[0] ? e->replay : NULL;
}

/* ---- the thread ---- */

static void put_number(uint8_t out[8], uint64_t v)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(v >> (56 - 8 * i));
}

/* A copy of batch number *at or the next one that is there; false: there is none. */
static bool copy_batch(struct link_events *e, uint64_t *at, struct batch *out)
{
    bool found = false;
    *out = (struct batch){0};
    pthread_mutex_lock(&e->lock);
    *at = *at < e->first ? e->first : *at;
    while (*at < e->next && !e->ring[*at % e->n_ring].at)
        ++*at;
    if (*at < e->next) {
        const struct batch *b = &e->ring[*at % e->n_ring];
        out->at = mem_alloc(b->n);
        out->n = out->at ? b->n : 0;
        if (out->at)
            memcpy(out->at, b->at, b->n);
        found = true;
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}

static void send_new(struct link_events *e)
{
    struct batch b;
    pthread_mutex_lock(&e->lock);
    uint64_t at = e->sent;
    pthread_mutex_unlock(&e->lock);
    while (copy_batch(e, &at, &b)) {
        uint8_t number[8];
        put_number(number, at++);
        if (b.at) {
            (void)zmq_send(e->pub, e->topic, strlen(e->topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
            (void)zmq_send(e->pub, number, sizeof number, ZMQ_SNDMORE | ZMQ_DONTWAIT);
            (void)zmq_send(e->pub, b.at, b.n, ZMQ_DONTWAIT);
        }
        mem_free(b.at);
        pthread_mutex_lock(&e->lock);
        e->sent = at > e->sent ? at : e->sent;
        at = e->sent;
        pthread_mutex_unlock(&e->lock);
    }
}

static bool answer(void *router, const zmq_msg_t *who, const uint8_t number[8], const void *bytes,
                   size_t n)
{
    const int more = ZMQ_SNDMORE | ZMQ_DONTWAIT;
    return zmq_send(router, zmq_msg_data((zmq_msg_t *)(uintptr_t)who), zmq_msg_size(who), more) >=
               0 &&
           zmq_send(router, "", 0, more) >= 0 && zmq_send(router, number, 8, more) >= 0 &&
           zmq_send(router, bytes, n, ZMQ_DONTWAIT) >= 0;
}

/* All batches from that number on, then the number -1. */
static void replay(struct link_events *e, const zmq_msg_t *who, uint64_t from)
{
    uint8_t number[8];
    struct batch b;
    bool ok = true;
    pthread_mutex_lock(&e->lock);
    const uint64_t end = e->next;
    e->counts.replays++;
    pthread_mutex_unlock(&e->lock);
    for (uint64_t at = from; ok && copy_batch(e, &at, &b); at++) {
        put_number(number, at);
        ok = at < end && b.at && answer(e->router, who, number, b.at, b.n);
        mem_free(b.at);
    }
    put_number(number, UINT64_MAX);
    (void)answer(e->router, who, number, "", 0);
}

/* A question: who, an empty frame, 8 bytes.  What is none is left out. */
static void take_question(struct link_events *e)
{
    zmq_msg_t part[3];
    int n = 0;
    bool more = true;
    while (more) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, e->router, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&m);
            break;
        }
        more = zmq_msg_more(&m);
        if (n < 3) {
            zmq_msg_init(&part[n]);
            zmq_msg_move(&part[n++], &m);
        } else {
            n = 4;
        }
        zmq_msg_close(&m);
    }
    const int last = n == 2 || n == 3 ? n - 1 : 0; /* the empty frame may be left out */
    if (last && zmq_msg_size(&part[last]) == 8) {
        const uint8_t *p = zmq_msg_data(&part[last]);
        uint64_t from = 0;
        for (int i = 0; i < 8; i++)
            from = from << 8 | p[i];
        replay(e, &part[0], from);
    }
    for (int i = 0; i < n && i < 3; i++)
        zmq_msg_close(&part[i]);
}

static void *run(void *arg)
{
    struct link_events *e = arg;
    for (;;) {
        zmq_pollitem_t item[] = {{NULL, e->wake, ZMQ_POLLIN, 0}, {e->router, 0, ZMQ_POLLIN, 0}};
        uint64_t n;
        (void)zmq_poll(item, e->router ? 2 : 1, -1);
        (void)!read(e->wake, &n, sizeof n);
        pthread_mutex_lock(&e->lock);
        const bool stop = e->stop;
        pthread_mutex_unlock(&e->lock);
        send_new(e);
        if (stop)
            return NULL;
        if (e->router && (item[1].revents & ZMQ_POLLIN))
            take_question(e);
    }
}

/* ---- sockets ---- */

static ingle_status open_socket(struct link_events *e, int type, const char *option,
                                const char *address, char bound[ADDRESS], void **out,
                                struct err *err)
{
    const bool connect = strncmp(address, "connect:", 8) == 0;
    const char *at = connect ? address + 8 : address;
    const int linger = LINGER_MS, water = type == ZMQ_PUB ? SUBSCRIBER : LINK_EVENTS_BATCHES + 8;
    char url[ADDRESS];
    const int n = snprintf(url, sizeof url, "%s%s", strstr(at, "://") ? "" : "tcp://", at);
    if (n < 0 || n >= (int)sizeof url)
        return err_set(err, INGLE_ARG, "'%s %.80s...' is longer than %d characters", option,
                       address, ADDRESS - 1);
    const int v6 = strchr(at, '[') || strncmp(url, "tcp://*", 7) == 0;
    const char *port = strncmp(url, "tcp://", 6) == 0 ? strrchr(url + 6, ':') : NULL;
    if (port && strspn(port + 1, "0123456789") == strlen(port + 1) &&
        strtoul(port + 1, NULL, 10) > 65535)
        return err_set(err, INGLE_ARG, "'%s %s': port %s is above 65535", option, address,
                       port + 1);
    void *s = zmq_socket(e->context, type);
    if (!s)
        return err_set(err, INGLE_NOMEM, "%s: no socket: %s", option, zmq_strerror(errno));
    *out = s;
    (void)zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger);
    (void)zmq_setsockopt(s, ZMQ_SNDHWM, &water, sizeof water);
    (void)zmq_setsockopt(s, ZMQ_IPV6, &v6, sizeof v6);
    if ((connect ? zmq_connect(s, url) : zmq_bind(s, url)) != 0) {
        const int why = errno;
        if (why == EINVAL)
            return err_set(err, INGLE_ARG,
                           "'%s %s' is no address: tcp://HOST:PORT, tcp://*:PORT or ipc://FILE",
                           option, address);
        return err_set(err, why == EADDRINUSE || why == EACCES ? INGLE_IO : INGLE_ARG,
                       "'%s %s' cannot be %s: %s", option, address, connect ? "reached" : "opened",
                       zmq_strerror(why));
    }
    size_t size = ADDRESS;
    if (connect || zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, bound, &size))
        memcpy(bound, url, sizeof url);
    return INGLE_OK;
}

static ingle_status open_all(struct link_events *e, const struct link_events_options *o,
                             struct err *err)
{
    e->context = zmq_ctx_new();
    e->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e->ring = mem_calloc(e->n_ring, sizeof *e->ring);
    if (!e->context || e->wake < 0 || !e->ring)
        return err_set(err, INGLE_NOMEM, "no memory for events of the KV cache");
    ingle_status st =
        open_socket(e, ZMQ_PUB, "--kv-events", o->address, e->address, &e->pub, err);
    if (!st && o->replay)
        st = open_socket(e, ZMQ_ROUTER, "--kv-events-replay", o->replay, e->replay, &e->router,
                         err);
    if (st)
        return st;
    put_cleared(e);
    e->threaded = pool_thread(&e->thread, run, e);
    if (!e->threaded)
        return err_set(err, INGLE_NOMEM, "no thread for events of the KV cache");
    wake(e);
    return INGLE_OK;
}

ingle_status link_events_open(struct link_events **out, const struct link_events_options *o,
                              struct err *err)
{
    const char *topic = o->topic ? o->topic : "";
    if (strlen(topic) >= ADDRESS)
        return err_set(err, INGLE_ARG, "'--kv-events-topic' has %zu bytes, the limit is %d",
                       strlen(topic), ADDRESS - 1);
    struct link_events *e = mem_zalloc(sizeof *e);
    if (!e || pthread_mutex_init(&e->lock, NULL)) {
        mem_free(e);
        return err_set(err, INGLE_NOMEM, "no memory for events of the KV cache");
    }
    e->wake = -1;
    e->array = o->array;
    e->n_ring = o->n_batches ? o->n_batches : LINK_EVENTS_BATCHES;
    e->n_bytes_max = o->n_bytes ? o->n_bytes : RING_BYTES;
    snprintf(e->topic, sizeof e->topic, "%s", topic);
    snprintf(e->kind, sizeof e->kind, "%s", o->kind ? o->kind : "");
    const ingle_status st = open_all(e, o, err);
    if (st) {
        link_events_close(e);
        return st;
    }
    *out = e;
    return INGLE_OK;
}

void link_events_close(struct link_events *e)
{
    if (!e)
        return;
    if (e->threaded) {
        pthread_mutex_lock(&e->lock);
        put_cleared(e); /* the last word */
        e->stop = true;
        pthread_mutex_unlock(&e->lock);
        wake(e);
        pthread_join(e->thread, NULL);
    }
    if (e->pub)
        zmq_close(e->pub);
    if (e->router)
        zmq_close(e->router);
    if (e->context)
        zmq_ctx_term(e->context);
    if (e->wake >= 0)
        close(e->wake);
    for (size_t i = 0; e->ring && i < e->n_ring; i++)
        mem_free(e->ring[i].at);
    mem_free(e->ring);
    for (int m = 0; m < LINK_MEDIA; m++)
        mem_free(e->table[m].at);
    pthread_mutex_destroy(&e->lock);
    mem_free(e);
}
