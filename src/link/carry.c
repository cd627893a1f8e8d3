/* SPDX-License-Identifier: Apache-2.0 */
/*
 * carry - ends: a worker's, which listens, and an engine's, which dials until somebody answers.
 *
 * A thread of each end moves bytes; its lock guards all of it.  On the wire there are a preamble
 * (seal.c), then frames: 8 bytes (three letters, a kind, a length), and of a message LINK_HEAD
 * bytes and the payload.  A frame has one part, and its length is compared with what this peer may
 * send before memory is taken: until link_admit() that is little.  What waits for the owner of an
 * end, and what is half here, have bounds together; a peer that is ahead of them is not read.  Both
 * ends say a PING when they have nothing else to say, and one that is silent is gone.
 */
#define _GNU_SOURCE
#include "link/inner.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    WATER = 4,    /* messages of a peer that wait, each way */
    PEERS = 64,   /* connections of a listening end */
    SHORT = 4096, /* staged at once without encryption */
    WIRE_HEAD = 8,
    PART_BYTES = 1 << 20,
    PART_READS = 32,            /* read from one peer before the others' turn */
    STRANGER_BYTES = 256 << 10, /* of one that has not greeted, in all */
    WAITING_MESSAGES = 4,       /* of the largest, of all peers together */
    HEARTBEAT_MS = 500,
    DEAD_MS = 2000,
    HANDSHAKE_MS = 5000,
    MESSAGE_MS = 120000,
    RETRY_MS = 100,
    RETRY_MOST_MS = 2000,
    LINGER_MS = 200,
    PAUSE_MS = 100,
    KEPT_BLOCKS = 32, /* free ones of an end: so many, */
    KEPT_BLOCK = 1 << 20, /* of this size at most, */
    KEPT_BYTES = 4 << 20, /* and of this together */
    BLOCK_STEP = 4096,
};
#define MS UINT64_C(1000000)
static const char wire[3] = {'i', 'n', 'g'};
enum wire_kind { WIRE_PING = 1, WIRE_MESSAGE };

/* A message, or what happened. */
struct block {
    struct block *next;
    struct depot *home; /* where it goes back to; NULL: it is freed */
    size_t cap;         /* bytes of payload that it has room for */
    enum link_event what;
    uint64_t peer;
    const char *why;
    size_t n; /* of the payload */
    ATTR_ALIGNED(16) uint8_t head[LINK_HEAD]; /* and payload: one run of bytes */
    uint8_t payload[];
};
static_assert(offsetof(struct block, payload) == offsetof(struct block, head) + LINK_HEAD,
              "head and payload are one run");

/* Blocks that an end uses again.  It is there as long as the end, and as any of its blocks. */
struct depot {
    pthread_mutex_t lock; /* taken last; Sync: guards all of this */
    struct block *first;  /* free ones, the smallest first */
    size_t n, n_bytes;    /* of them */
    size_t n_away;        /* those that somebody has */
    bool closed;
};

enum stage { CONNECTS, SAYS_HELLO, OPEN };

struct conn {
    uint64_t id, began, heard, said, message_began;
    int fd;
    enum stage stage;
    bool up, admitted;
    const char *broken; /* why it is to end */
    uint8_t own_key[32], own[LINK_PREAMBLE], theirs[LINK_PREAMBLE];
    struct link_seal *seal; /* [2]: in, out; NULL without a key */
    /* in */
    uint8_t *in, small[WIRE_HEAD + LINK_TAG];
    uint8_t *to;            /* where the next bytes go: have of want */
    /* at: of head and payload; held: a payload for which there is no room yet */
    size_t have, want, n_piece, at, held;
    struct block *block;
    size_t n_in;            /* messages that wait for the owner */
    size_t strange;         /* bytes that came before it was admitted */
    /* out */
    uint8_t *out;           /* staged: [out_at, out_n) is to be sent */
    /* sent: of the first block's head and payload, staged or sent; SIZE_MAX: not begun */
    size_t out_at, out_n, sent;
    struct block *first, *last, *down;
    size_t n_out;
    bool ping;
};

struct link {
    struct link_address address;
    struct link_options o;
    char name[300];
    bool listens, keyed, made_path;
    uint8_t secret[LINK_SECRET];
    struct link_crypto *crypto; /* owned; NULL without a key */
    struct depot *depot;
    int wake, news; /* eventfds: of the thread; of the owner: something waits */
    pthread_t thread;
    bool runs;
    uint64_t beat, dead, most, most_before, room;
    pthread_mutex_t lock;
    /* Sync: the rest under the lock.  Connections are ended by the thread alone. */
    int fd; /* that listens */
    struct conn *conn[PEERS];
    int n_conns;
    uint64_t last_id, in_bytes; /* payloads that wait or are half here */
    struct block *first, *last; /* for the owner */
    unsigned attempt;
    const char *trouble; /* why there is no connection; or NULL */
    uint64_t dial_at, retry, accept_at, stop_by;
    bool stop;
};

bool link_is_built(void)
{
    return true;
}

static void ring(int fd)
{
    const uint64_t one = 1;
    (void)!write(fd, &one, sizeof one);
}

static void hush(int fd)
{
    uint64_t n;
    (void)!read(fd, &n, sizeof n);
}

/* ---- blocks ---- */

static struct block *block_at(uint8_t *payload)
{
    return (struct block *)(void *)(payload - offsetof(struct block, payload));
}

static void depot_drop_first(struct depot *d)
{
    struct block *b = d->first;
    d->first = b->next;
    d->n--;
    d->n_bytes -= b->cap;
    mem_free(b);
}

/* The lock is held, and released. */
static void depot_leave(struct depot *d)
{
    const bool over = d->closed && !d->n_away;
    pthread_mutex_unlock(&d->lock);
    if (!over)
        return;
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}

static void depot_close(struct depot *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    while (d->first)
        depot_drop_first(d);
    d->closed = true;
    depot_leave(d);
}

static void depot_put(struct depot *d, struct block *b)
{
    struct block **at = &d->first;
    while (*at && (*at)->cap < b->cap)
        at = &(*at)->next;
    b->next = *at;
    *at = b;
    d->n++;
    d->n_bytes += b->cap;
    while (d->n > KEPT_BLOCKS || d->n_bytes > KEPT_BYTES)
        depot_drop_first(d);
}

/* The smallest that has room; NULL: there is none. */
static struct block *depot_take(struct depot *d, size_t n)
{
    struct block **at = &d->first;
    pthread_mutex_lock(&d->lock);
    while (*at && (*at)->cap < n)
        at = &(*at)->next;
    struct block *b = *at;
    if (b) {
        *at = b->next;
        d->n--;
        d->n_bytes -= b->cap;
    }
    d->n_away++;
    pthread_mutex_unlock(&d->lock);
    return b;
}

static void block_free(struct block *b)
{
    struct depot *d = b ? b->home : NULL;
    if (!d) {
        mem_free(b);
        return;
    }
    pthread_mutex_lock(&d->lock);
    d->n_away--;
    if (!d->closed && b->cap <= KEPT_BLOCK)
        depot_put(d, b);
    else
        mem_free(b);
    depot_leave(d);
}

/* d NULL: it is not used again.  NULL: there is no memory, or it is too large. */
static struct block *block_new(struct depot *d, enum link_event what, uint64_t peer, size_t n)
{
    if (n > LINK_MAX_BYTES)
        return NULL;
    struct block *b = d ? depot_take(d, n) : NULL;
    size_t cap = b ? b->cap : n;
    if (!b) { /* later ones may be a little longer */
        cap = d && n < KEPT_BLOCK ? (n / BLOCK_STEP + 1) * BLOCK_STEP : n;
        b = mem_alloc(sizeof *b + cap);
    }
    if (b) {
        *b = (struct block){.home = d, .cap = cap, .what = what, .peer = peer, .n = n};
    } else if (d) {
        pthread_mutex_lock(&d->lock);
        d->n_away--;
        pthread_mutex_unlock(&d->lock);
    }
    return b;
}

/* ---- for the owner ---- */

static void tell(struct link *l, struct block *b)
{
    b->next = NULL;
    if (l->last)
        l->last->next = b;
    else
        ring(l->news);
    l->last = b;
    l->first = l->first ? l->first : b;
}

static struct conn *conn_of(struct link *l, const struct link_peer *p)
{
    uint64_t id = 0;
    if (l->listens && p && p->n == sizeof id)
        memcpy(&id, p->id, sizeof id);
    for (int i = 0; i < l->n_conns; i++)
        if (!l->listens || l->conn[i]->id == id)
            return l->conn[i];
    return NULL;
}

/* ---- out ---- */

static size_t sealed(const struct conn *c, size_t n)
{
    return n + (c->seal ? LINK_TAG : 0);
}

static void stage_bytes(struct conn *c, const uint8_t *at, size_t n)
{
    if (!c->seal)
        memcpy(c->out + c->out_n, at, n);
    else if (!link_seal_close(&c->seal[1], at, n, c->out + c->out_n))
        c->broken = "a message cannot be encrypted";
    c->out_n += sealed(c, n);
}

static void stage_head(struct conn *c, enum wire_kind kind, size_t n)
{
    uint8_t head[WIRE_HEAD];
    memcpy(head, wire, sizeof wire);
    head[3] = (uint8_t)kind;
    link_put_u32(head + 4, (uint32_t)n);
    stage_bytes(c, head, sizeof head);
}

/* The next bytes to send are staged; false: there are none. */
static bool stage_next(struct conn *c)
{
    struct block *b = c->first;
    c->out_at = c->out_n = 0;
    if (b && c->up) {
        const size_t all = LINK_HEAD + b->n;
        if (c->sent == SIZE_MAX) {
            stage_head(c, WIRE_MESSAGE, b->n);
            c->sent = 0;
        }
        size_t n = all - c->sent;
        const size_t most = c->seal ? LINK_PIECE : SHORT;
        n = n < most ? n : most;
        if (n)
            stage_bytes(c, b->head + c->sent, n);
        c->sent += n;
        if (c->sent == all) {
            c->first = b->next;
            c->last = c->first ? c->last : NULL;
            c->n_out--;
            c->sent = SIZE_MAX;
            block_free(b);
        }
        return true;
    }
    if (!c->ping || c->stage != OPEN)
        return false;
    c->ping = false;
    stage_head(c, WIRE_PING, 0);
    return true;
}

/* Large payloads without encryption go from where they are. */
static bool goes_plain(const struct conn *c)
{
    return !c->seal && c->first && c->sent != SIZE_MAX && LINK_HEAD + c->first->n - c->sent > SHORT;
}

static void flush(struct conn *c)
{
    while (!c->broken && c->stage != CONNECTS) {
        const bool plain = c->out_at == c->out_n && goes_plain(c);
        if (c->out_at == c->out_n && !plain && (!stage_next(c) || c->broken))
            return;
        const uint8_t *at = plain ? c->first->head + c->sent : c->out + c->out_at;
        /* the last byte is staged */
        const size_t n = plain ? LINK_HEAD + c->first->n - c->sent - 1 : c->out_n - c->out_at;
        const ssize_t k = send(c->fd, at, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && errno == EAGAIN)
            return;
        if (k < 0) {
            c->broken = "the connection is gone";
            return;
        }
        c->said = clock_now();
        if (plain)
            c->sent += (size_t)k;
        else
            c->out_at += (size_t)k;
    }
}

static bool wants_out(const struct conn *c)
{
    return c->stage == CONNECTS || c->out_at < c->out_n || (c->first && c->up) ||
           (c->ping && c->stage == OPEN);
}

/* ---- in ---- */

static void expect(struct conn *c, uint8_t *to, size_t n)
{
    c->to = to;
    c->have = 0;
    c->want = n;
}

static void expect_head(struct conn *c)
{
    expect(c, c->small, sealed(c, WIRE_HEAD));
}

static void expect_piece(struct conn *c)
{
    const size_t left = LINK_HEAD + c->block->n - c->at;
    c->n_piece = c->seal && left > LINK_PIECE ? LINK_PIECE : left;
    expect(c, c->seal ? c->in : c->block->head + c->at, sealed(c, c->n_piece));
}

/* Memory for a message, if there is room; else it waits, unread. */
static void begin_message(struct link *l, struct conn *c, size_t n)
{
    c->held = SIZE_MAX;
    if (l->in_bytes && l->in_bytes + n > l->room) {
        c->held = n;
        return;
    }
    c->block = block_new(l->depot, LINK_MESSAGE, c->id, n);
    if (!c->block) {
        c->broken = "there is no memory for a message";
        return;
    }
    l->in_bytes += n;
    c->at = 0;
    c->message_began = clock_now();
    expect_piece(c);
}

/* The other end knows the secret, if there is one. */
static void come_up(struct link *l, struct conn *c)
{
    if (c->up)
        return;
    c->up = true;
    c->ping = c->ping || l->listens;
    if (l->listens)
        return;
    l->retry = RETRY_MS;
    l->trouble = NULL;
    struct block *b = block_new(NULL, LINK_UP, c->id, 0);
    if (b)
        tell(l, b);
    else
        c->broken = "there is no memory for a connection";
}

static void take_head(struct link *l, struct conn *c)
{
    uint8_t head[WIRE_HEAD];
    if (!c->seal)
        memcpy(head, c->small, sizeof head);
    else if (!link_seal_open(&c->seal[0], c->small, c->want, head)) {
        c->broken = c->up ? "a frame is damaged" : "there is no handshake";
        return;
    }
    const size_t n = link_u32(head + 4);
    if (memcmp(head, wire, sizeof wire) != 0 || (head[3] != WIRE_PING && head[3] != WIRE_MESSAGE) ||
        (head[3] == WIRE_PING && n)) {
        c->broken = "a frame is damaged";
        return;
    }
    come_up(l, c);
    if (head[3] == WIRE_PING)
        expect_head(c);
    else if (n > (c->admitted ? l->most : l->most_before))
        c->broken = "a message is longer than what is taken";
    else
        begin_message(l, c, n);
}

static void take_piece(struct link *l, struct conn *c)
{
    struct block *b = c->block;
    if (c->seal && !link_seal_open(&c->seal[0], c->in, c->want, b->head + c->at)) {
        c->broken = "a frame is damaged";
        return;
    }
    c->at += c->n_piece;
    if (c->at < LINK_HEAD + b->n) {
        expect_piece(c);
        return;
    }
    c->block = NULL;
    c->n_in++;
    tell(l, b);
    expect_head(c);
}

static void say_preamble(struct conn *c)
{
    memcpy(c->out, c->own, LINK_PREAMBLE);
    c->out_at = 0;
    c->out_n = LINK_PREAMBLE;
}

static void take_preamble(struct link *l, struct conn *c)
{
    const char *why = link_preamble_check(c->theirs, l->keyed);
    if (l->listens && memcmp(c->theirs, c->own, 8) == 0)
        say_preamble(c); /* to those alone who begin as an engine does */
    if (!why && l->keyed) {
        c->seal = mem_calloc(2, sizeof *c->seal);
        c->in = mem_alloc(LINK_PIECE + LINK_TAG);
        if (!c->seal || !c->in)
            why = "there is no memory for a connection";
        else if (!link_seal_agree(l->crypto, l->secret, c->own_key,
                                  l->listens ? c->theirs : c->own, l->listens ? c->own : c->theirs,
                                  l->listens, &c->seal[0], &c->seal[1]))
            why = "there is no handshake";
        memset(c->own_key, 0, sizeof c->own_key);
    }
    if (why) {
        flush(c);
        c->broken = why;
        return;
    }
    c->stage = OPEN;
    c->ping = !l->listens; /* by which it proves what it knows */
    expect_head(c);
}

static bool is_read(const struct conn *c)
{
    return c->stage != CONNECTS && c->n_in < WATER && c->held == SIZE_MAX;
}

static void read_some(struct link *l, struct conn *c)
{
    size_t sum = 0;
    for (int n = 0; !c->broken && is_read(c) && sum < PART_BYTES && n < PART_READS; n++) {
        const ssize_t k = recv(c->fd, c->to + c->have, c->want - c->have, 0);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && errno == EAGAIN)
            return;
        if (k <= 0) {
            c->broken = c->up ? "the connection is gone" : "there is no handshake";
            return;
        }
        c->heard = clock_now();
        c->have += (size_t)k;
        sum += (size_t)k;
        c->strange += c->admitted ? 0 : (size_t)k;
        if (c->strange > STRANGER_BYTES && l->o.most_before) {
            c->broken = "it does not say who it is";
            return;
        }
        if (c->have < c->want)
            continue;
        if (c->stage == SAYS_HELLO)
            take_preamble(l, c);
        else if (c->block)
            take_piece(l, c);
        else
            take_head(l, c);
    }
}

/* ---- connections ---- */

static void drop_blocks(struct block *b)
{
    while (b) {
        struct block *next = b->next;
        block_free(b);
        b = next;
    }
}

static void conn_free(struct link *l, struct conn *c)
{
    if (c->fd >= 0)
        (void)close(c->fd);
    if (c->block)
        l->in_bytes -= c->block->n;
    block_free(c->block);
    drop_blocks(c->first);
    block_free(c->down);
    for (int i = 0; c->seal && i < 2; i++)
        link_seal_release(&c->seal[i]);
    mem_free(c->seal);
    mem_free(c->in);
    mem_free(c->out);
    mem_free(c);
}

/* Takes fd. */
static void add(struct link *l, int fd, enum stage stage)
{
    struct conn *c = mem_zalloc(sizeof *c);
    if (!c) {
        (void)close(fd);
        return;
    }
    c->fd = fd;
    c->id = ++l->last_id;
    c->stage = stage;
    c->began = c->heard = c->said = clock_now();
    c->sent = c->held = SIZE_MAX;
    c->out = mem_alloc(l->keyed ? LINK_PIECE + 2 * LINK_TAG + WIRE_HEAD : SHORT + WIRE_HEAD);
    c->down = block_new(NULL, LINK_DOWN, c->id, 0);
    if (!c->out || !c->down || !link_preamble_make(l->crypto, c->own_key, c->own)) {
        conn_free(l, c);
        return;
    }
    expect(c, c->theirs, LINK_PREAMBLE);
    l->conn[l->n_conns++] = c;
}

/* What a peer has said that nobody has taken. */
static void take_back(struct link *l, uint64_t peer)
{
    struct block **at = &l->first;
    l->last = NULL;
    while (*at) {
        struct block *b = *at;
        if (b->peer != peer || b->what == LINK_DOWN) {
            l->last = b;
            at = &b->next;
            continue;
        }
        *at = b->next;
        l->in_bytes -= b->what == LINK_MESSAGE ? b->n : 0;
        block_free(b);
    }
    if (!l->first)
        hush(l->news);
}

/* Of strangers that come and go nothing stays, whatever the owner is at. */
static void end_broken(struct link *l)
{
    for (int i = l->n_conns - 1; i >= 0; i--) {
        struct conn *c = l->conn[i];
        const char *why = c->broken;
        if (!why)
            continue;
        if (!c->admitted)
            take_back(l, c->id);
        /* by the one before */
        const bool told = l->last && l->last->what == LINK_DOWN && !c->admitted;
        if (l->listens ? c->admitted : c->stage != CONNECTS && !told) {
            c->down->why = c->broken;
            tell(l, c->down);
            c->down = NULL;
        }
        l->conn[i] = l->conn[--l->n_conns];
        conn_free(l, c);
        if (!l->listens) {
            l->trouble = why;
            l->dial_at = clock_now() + l->retry * MS;
            l->retry = l->retry * 2 < RETRY_MOST_MS ? l->retry * 2 : RETRY_MOST_MS;
        }
    }
}

/* When all places are taken, the one that has waited longest to be known leaves; where all are
 * known, the new one. */
static void accept_some(struct link *l)
{
    bool wait = false;
    for (int fd; (fd = link_socket_accept(l->fd, &wait)) >= 0;) {
        struct conn *oldest = NULL;
        for (int i = 0; l->n_conns == PEERS && i < PEERS; i++)
            if (!l->conn[i]->admitted && (!oldest || l->conn[i]->began < oldest->began))
                oldest = l->conn[i];
        if (oldest) {
            oldest->broken = "others wait for its place";
            end_broken(l);
        }
        if (l->n_conns < PEERS)
            add(l, fd, SAYS_HELLO);
        else
            (void)close(fd);
    }
    if (wait)
        l->accept_at = clock_now() + PAUSE_MS * MS;
}

static void dial(struct link *l)
{
    const unsigned attempt = l->attempt++;
    const char *why;
    pthread_mutex_unlock(&l->lock);
    const int fd = link_socket_dial(&l->address, attempt, &why); /* may ask for a name */
    pthread_mutex_lock(&l->lock);
    if (fd < 0)
        l->trouble = why;
    if (fd >= 0)
        add(l, fd, CONNECTS);
    if (l->n_conns)
        return;
    l->dial_at = clock_now() + l->retry * MS;
    l->retry = l->retry * 2 < RETRY_MOST_MS ? l->retry * 2 : RETRY_MOST_MS;
}

static void connected(struct link *l, struct conn *c)
{
    int e = 0;
    socklen_t n = sizeof e;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &n) != 0 || e) {
        c->broken = link_socket_why(e);
        return;
    }
    l->trouble = "what listens there has not answered as workers and stages of ingle do";
    c->stage = SAYS_HELLO;
    c->heard = clock_now();
    say_preamble(c);
    flush(c);
}

/* asked: when the connection was looked at for bytes.  It is judged by this time and not by a later
 * one: when this process was stopped in between, what has come meanwhile is not read yet. */
static void look_at_time(struct link *l, struct conn *c, uint64_t asked, uint64_t now)
{
    const bool reads = is_read(c);
    if (c->broken)
        return;
    if (!reads)
        c->heard = now; /* what it says waits */
    if (!c->up && asked > c->began && asked - c->began > HANDSHAKE_MS * MS)
        c->broken = "there is no handshake";
    else if (c->up && asked > c->heard && asked - c->heard > l->dead)
        c->broken = "nothing is heard of it";
    else if (c->block && reads && asked > c->message_began &&
             asked - c->message_began > MESSAGE_MS * MS)
        c->broken = "a message does not end";
    if (c->up && now > c->said && now - c->said >= l->beat)
        c->ping = true;
    if (c->held != SIZE_MAX && c->n_in < WATER)
        begin_message(l, c, c->held);
}

static void serve(struct link *l, struct conn *c, short events)
{
    if (c->stage == CONNECTS && (events & (POLLOUT | POLLERR | POLLHUP)))
        connected(l, c);
    if (events & (POLLIN | POLLERR | POLLHUP))
        read_some(l, c);
    if (c->stage != CONNECTS && (events & (POLLERR | POLLHUP)) && !is_read(c) && !c->broken)
        c->broken = "the connection is gone"; /* it will not be read any more */
}

static bool is_flushed(const struct link *l)
{
    for (int i = 0; i < l->n_conns; i++)
        if (l->conn[i]->up && wants_out(l->conn[i]))
            return false;
    return true;
}

static int time_of(const struct link *l, uint64_t now)
{
    if (l->stop)
        return 10;
    if (l->n_conns)
        return (int)(l->beat / (2 * MS)) + 1;
    if (l->listens)
        return l->accept_at ? PAUSE_MS : -1;
    return l->dial_at > now ? (int)((l->dial_at - now) / MS) + 1 : 0;
}

static void *carry(void *arg)
{
    struct link *l = arg;
    struct pollfd p[PEERS + 2];
    pthread_mutex_lock(&l->lock);
    for (;;) {
        const uint64_t asked = clock_now();
        if (l->stop && (is_flushed(l) || asked >= l->stop_by))
            break;
        if (!l->listens && !l->n_conns && !l->stop && asked >= l->dial_at)
            dial(l);
        if (l->accept_at && asked >= l->accept_at)
            l->accept_at = 0;
        p[0] = (struct pollfd){.fd = l->wake, .events = POLLIN};
        p[1] = (struct pollfd){.fd = l->stop || l->accept_at ? -1 : l->fd, .events = POLLIN};
        const int n = l->n_conns;
        for (int i = 0; i < n; i++)
            p[2 + i] = (struct pollfd){.fd = l->conn[i]->fd,
                                       .events = (short)((is_read(l->conn[i]) ? POLLIN : 0) |
                                                         (wants_out(l->conn[i]) ? POLLOUT : 0))};
        const int ms = time_of(l, asked);
        pthread_mutex_unlock(&l->lock);
        (void)poll(p, (nfds_t)n + 2, ms);
        pthread_mutex_lock(&l->lock);
        if (p[0].revents)
            hush(l->wake);
        const uint64_t now = clock_now();
        for (int i = 0; i < n; i++) {
            if (p[2 + i].revents)
                serve(l, l->conn[i], p[2 + i].revents);
            look_at_time(l, l->conn[i], asked, now);
            flush(l->conn[i]);
        }
        end_broken(l);
        if (p[1].revents)
            accept_some(l);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* ---- life ---- */

static ingle_status open_end(struct link **out, const struct link_options *o, bool listens,
                             struct err *err)
{
    struct link *l = mem_zalloc(sizeof *l);
    struct depot *d = mem_zalloc(sizeof *d);
    if (!l || !d) {
        mem_free(l);
        mem_free(d);
        return err_set(err, INGLE_NOMEM, "no memory for a link");
    }
    BUG_IF(pthread_mutex_init(&d->lock, NULL)); /* cannot fail on Linux */
    l->depot = d;
    l->fd = l->wake = l->news = -1;
    l->listens = listens;
    l->o = *o;
    l->beat = (uint64_t)(o->heartbeat_ms ? o->heartbeat_ms : HEARTBEAT_MS) * MS;
    l->dead = (uint64_t)(o->dead_ms ? o->dead_ms : DEAD_MS) * MS;
    l->most = o->most_bytes < LINK_MAX_BYTES ? o->most_bytes : LINK_MAX_BYTES;
    l->most_before = o->most_before ? o->most_before : l->most;
    l->room = WAITING_MESSAGES * l->most;
    l->retry = RETRY_MS;
    l->keyed = o->key_file != NULL;
    snprintf(l->name, sizeof l->name, "%.299s", o->address);
    BUG_IF(pthread_mutex_init(&l->lock, NULL)); /* cannot fail on Linux */
    *out = l;
    ingle_status st = link_address_parse(o->address, listens, &l->address, err);
    if (!st && !o->key_file && !l->address.near && !o->plain)
        st = err_set(err, INGLE_ARG,
                     "'%s' is beyond this host: a key is needed (--worker-key FILE), or "
                     "--worker-plain where the network "
                     "itself encrypts",
                     o->address);
    if (!st && o->key_file) {
        uint8_t secret[LINK_SECRET];
        st = link_secret_read(o->key_file, secret, err);
        if (!st)
            link_secret_derive(secret, "link", l->secret);
        memset(secret, 0, sizeof secret);
    }
    if (!st && l->keyed && !(l->crypto = link_crypto_create(o->no_aes)))
        st = err_set(err, INGLE_UNSUP, "'%s': libcrypto gives no AES-256-GCM", o->address);
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!st && (l->wake < 0 || l->news < 0))
        st = err_set(err, INGLE_IO, "'%s': no descriptor for a link: %s", o->address,
                     strerror(errno));
    return st;
}

static ingle_status start(struct link **out, struct link *l, ingle_status st, struct err *err)
{
    if (!st && !(l->runs = pool_thread(&l->thread, carry, l)))
        st = err_set(err, INGLE_NOMEM, "no thread for a link");
    if (st)
        link_close(l);
    else
        *out = l;
    return st;
}

ingle_status link_listen(struct link **out, const struct link_options *o, struct err *err)
{
    struct link *l = NULL;
    struct err why;
    ingle_status st = open_end(&l, o, true, err);
    if (!st && link_socket_listen(&l->address, &l->fd, &why))
        st = err_set(err, INGLE_IO, "'%s': %s", o->address, why.msg);
    if (!st) {
        l->made_path = l->address.place == LINK_UNIX;
        link_socket_name(l->fd, l->name, sizeof l->name);
    }
    return l ? start(out, l, st, err) : st;
}

ingle_status link_dial(struct link **out, const struct link_options *o, struct err *err)
{
    struct link *l = NULL;
    const ingle_status st = open_end(&l, o, false, err);
    return l ? start(out, l, st, err) : st;
}

void link_close(struct link *l)
{
    if (!l)
        return;
    if (l->runs) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        l->stop_by = clock_now() + LINGER_MS * MS;
        pthread_mutex_unlock(&l->lock);
        ring(l->wake);
        pthread_join(l->thread, NULL);
    }
    while (l->n_conns)
        conn_free(l, l->conn[--l->n_conns]);
    drop_blocks(l->first);
    if (l->made_path)
        (void)unlink(l->address.endpoint + 6);
    if (l->fd >= 0)
        (void)close(l->fd);
    if (l->wake >= 0)
        (void)close(l->wake);
    if (l->news >= 0)
        (void)close(l->news);
    memset(l->secret, 0, sizeof l->secret);
    link_crypto_free(l->crypto);
    depot_close(l->depot);
    pthread_mutex_destroy(&l->lock);
    mem_free(l);
}

const char *link_name(const struct link *l)
{
    return l->name;
}

const char *link_trouble(struct link *l)
{
    pthread_mutex_lock(&l->lock);
    const char *why = l->trouble;
    pthread_mutex_unlock(&l->lock);
    return why;
}

const char *link_cipher(struct link *l, const struct link_peer *p, const char **slow)
{
    const char *name = NULL;
    *slow = NULL;
    pthread_mutex_lock(&l->lock);
    const struct conn *c = conn_of(l, p);
    if (c && c->up && c->seal) {
        *slow = link_seal_slow(c->own, c->theirs);
        name = *slow ? "ChaCha20-Poly1305" : "AES-256-GCM";
    }
    pthread_mutex_unlock(&l->lock);
    return name;
}

void link_admit(struct link *l, const struct link_peer *p)
{
    pthread_mutex_lock(&l->lock);
    struct conn *c = conn_of(l, p);
    if (c)
        c->admitted = true;
    pthread_mutex_unlock(&l->lock);
}

/* ---- out ---- */

static bool out_init(struct depot *d, struct link_out *m, size_t n)
{
    struct block *b = block_new(d, LINK_MESSAGE, 0, n);
    m->payload = b ? b->payload : NULL;
    m->n = n;
    return b;
}

bool link_out_init(struct link_out *m, size_t n)
{
    return out_init(NULL, m, n);
}

bool link_out_take(struct link *l, struct link_out *m, size_t n)
{
    return out_init(l->depot, m, n);
}

void link_reserve(struct link *l, size_t n, int count)
{
    struct block *first = NULL;
    for (int i = 0; i < count; i++) {
        struct block *b = block_new(l->depot, LINK_MESSAGE, 0, n);
        if (!b)
            break;
        b->next = first;
        first = b;
    }
    drop_blocks(first);
}

void link_out_release(struct link_out *m)
{
    if (m->payload)
        block_free(block_at(m->payload));
    m->payload = NULL;
}

bool link_has_room(struct link *l, const struct link_peer *to)
{
    pthread_mutex_lock(&l->lock);
    const struct conn *c = conn_of(l, to);
    const bool has = c && c->up && !c->broken && c->n_out < WATER;
    pthread_mutex_unlock(&l->lock);
    return has;
}

bool link_is_up(struct link *l, const struct link_peer *to)
{
    pthread_mutex_lock(&l->lock);
    const struct conn *c = conn_of(l, to);
    const bool up = c && c->up && !c->broken;
    pthread_mutex_unlock(&l->lock);
    return up;
}

bool link_has_sent(struct link *l, const struct link_peer *to)
{
    pthread_mutex_lock(&l->lock);
    const struct conn *c = conn_of(l, to);
    const bool all = c && !c->first;
    pthread_mutex_unlock(&l->lock);
    return all;
}

bool link_send(struct link *l, const struct link_peer *to, const struct link_head *h,
               struct link_out *m)
{
    struct block *b = block_at(m->payload);
    link_head_write(h, m->payload, m->n, b->head);
    pthread_mutex_lock(&l->lock);
    struct conn *c = conn_of(l, to);
    const bool ok = c && c->up && !c->broken && c->n_out < WATER;
    bool more = false;
    if (ok) {
        if (c->last)
            c->last->next = b;
        else
            c->first = b;
        c->last = b;
        c->n_out++;
        m->payload = NULL;
        flush(c);
        more = c->broken || wants_out(c);
    }
    pthread_mutex_unlock(&l->lock);
    if (more)
        ring(l->wake);
    link_out_release(m);
    return ok;
}

/* ---- in ---- */

static struct block *take(struct link *l)
{
    bool more = false;
    pthread_mutex_lock(&l->lock);
    struct block *b = l->first;
    if (b) {
        l->first = b->next;
        l->last = l->first ? l->last : NULL;
        if (!l->first)
            hush(l->news);
    }
    for (int i = 0; b && b->what == LINK_MESSAGE && i < l->n_conns; i++) {
        struct conn *c = l->conn[i];
        more = more || c->held != SIZE_MAX || (c->id == b->peer && c->n_in == WATER);
        c->n_in -= c->id == b->peer;
    }
    if (b && b->what == LINK_MESSAGE)
        l->in_bytes -= b->n;
    pthread_mutex_unlock(&l->lock);
    if (more)
        ring(l->wake);
    return b;
}

enum link_event link_wait(struct link *l, int timeout_ms, struct link_in *in, char *why,
                          size_t n_why)
{
    struct pollfd p = {.fd = l->news, .events = POLLIN};
    struct block *b = take(l);
    if (!b && timeout_ms && poll(&p, 1, timeout_ms) > 0)
        b = take(l);
    if (!b)
        return LINK_NOTHING;
    *in = (struct link_in){
        .block = b, .head = b->head, .payload = b->payload, .n_head = LINK_HEAD, .n_payload = b->n};
    if (l->listens) {
        in->from.n = sizeof b->peer;
        memcpy(in->from.id, &b->peer, sizeof b->peer);
    }
    const enum link_event what = b->what;
    if (what == LINK_DOWN)
        snprintf(why, n_why, "%s", b->why);
    if (what != LINK_MESSAGE)
        link_in_release(in);
    return what;
}

void link_in_release(struct link_in *in)
{
    block_free(in->block);
    in->block = NULL;
}

void link_in_move(struct link_in *to, struct link_in *from)
{
    *to = *from;
    from->block = NULL;
}

void link_sleep(struct link *const *l, int n, int timeout_ms)
{
    struct pollfd p[LINK_SLEEP];
    int k = 0;
    for (int i = 0; i < n && i < LINK_SLEEP; i++)
        if (l[i])
            p[k++] = (struct pollfd){.fd = l[i]->news, .events = POLLIN};
    if (k)
        (void)poll(p, (nfds_t)k, timeout_ms);
}
