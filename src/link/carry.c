/* SPDX-License-Identifier: Apache-2.0 */
/*
 * carry - ends: a worker's, which listens, and an engine's, which dials until somebody answers.
 *
 * A thread of each end moves bytes; its lock guards all of it.  Both ends say a PING when they have
 * nothing else to say, and one that is silent counts as closed.
 */
#define _GNU_SOURCE
#include "link/carry.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    HEARTBEAT_MS = 500,
    DEAD_MS = 2000,
    HANDSHAKE_MS = 5000,
    MESSAGE_MS = 120000,
    RETRY_MOST_MS = 2000,
    LINGER_MS = 200,
    PAUSE_MS = 100,
};
#define MS UINT64_C(1000000)

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

static struct block *block_at(uint8_t *payload)
{
    return (struct block *)(void *)(payload - offsetof(struct block, payload));
}

/* ---- for the owner ---- */

void link_notify(struct link *l, struct block *b)
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


/* ---- connections ---- */

static void conn_free(struct link *l, struct conn *c)
{
    if (c->fd >= 0)
        (void)close(c->fd);
    if (c->block)
        l->in_bytes -= c->block->n;
    link_block_free(c->block);
    link_blocks_drop(c->first);
    link_block_free(c->down);
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
    c->most = l->o.most_bytes;
    c->began = c->received = c->said = clock_now();
    c->sent = c->held = SIZE_MAX;
    c->out = mem_alloc(l->keyed ? LINK_PIECE + 2 * LINK_TAG + LINK_WIRE_HEAD
                                : LINK_SHORT + LINK_WIRE_HEAD);
    c->down = link_block_new(NULL, LINK_DOWN, c->id, 0);
    if (!c->out || !c->down || !link_preamble_make(l->crypto, c->own_key, c->own)) {
        conn_free(l, c);
        return;
    }
    link_conn_expect(c);
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
        link_block_free(b);
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
        const bool reported = l->last && l->last->what == LINK_DOWN && !c->admitted;
        if (l->listens ? c->admitted : c->stage != CONNECTS && !reported) {
            c->down->why = c->broken;
            link_notify(l, c->down);
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
        for (int i = 0; l->n_conns == LINK_PEERS && i < LINK_PEERS; i++)
            if (!l->conn[i]->admitted && (!oldest || l->conn[i]->began < oldest->began))
                oldest = l->conn[i];
        if (oldest) {
            oldest->broken = "others wait for its place";
            end_broken(l);
        }
        if (l->n_conns < LINK_PEERS)
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
    c->received = clock_now();
    link_conn_greet(c);
    link_conn_flush(c);
}

/* asked: when the connection was looked at for bytes.  It is judged by this time and not by a later
 * one: when this process was stopped in between, what has come meanwhile is not read yet. */
static void look_at_time(struct link *l, struct conn *c, uint64_t asked, uint64_t now)
{
    const bool reads = link_conn_is_read(c);
    if (c->broken)
        return;
    if (!reads)
        c->received = now; /* what it says waits */
    if (!c->up && asked > c->began && asked - c->began > HANDSHAKE_MS * MS)
        c->broken = "there is no handshake";
    else if (c->up && asked > c->received && asked - c->received > l->dead)
        c->broken = "nothing is heard of it";
    else if (c->block && reads && asked > c->message_began &&
             asked - c->message_began > MESSAGE_MS * MS)
        c->broken = "a message does not end";
    if (c->up && now > c->said && now - c->said >= l->beat)
        c->ping = true;
    if (c->held != SIZE_MAX && c->n_in < LINK_WATER)
        link_conn_begin(l, c, c->held);
}

static void serve(struct link *l, struct conn *c, short events)
{
    if (c->stage == CONNECTS && (events & (POLLOUT | POLLERR | POLLHUP)))
        connected(l, c);
    if (events & (POLLIN | POLLERR | POLLHUP))
        link_conn_read(l, c);
    if (c->stage != CONNECTS && (events & (POLLERR | POLLHUP)) && !link_conn_is_read(c) &&
        !c->broken)
        c->broken = "the connection is gone"; /* it will not be read any more */
}

static bool is_flushed(const struct link *l)
{
    for (int i = 0; i < l->n_conns; i++)
        if (l->conn[i]->up && link_conn_wants_out(l->conn[i]))
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
    struct pollfd p[LINK_PEERS + 2];
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
            p[2 + i] =
                (struct pollfd){.fd = l->conn[i]->fd,
                                .events = (short)((link_conn_is_read(l->conn[i]) ? POLLIN : 0) |
                                                  (link_conn_wants_out(l->conn[i]) ? POLLOUT : 0))};
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
            link_conn_flush(l->conn[i]);
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
    struct depot *d = link_depot_create();
    if (!l || !d) {
        mem_free(l);
        link_depot_close(d);
        return err_set(err, INGLE_NOMEM, "no memory for a link");
    }
    l->depot = d;
    l->fd = l->wake = l->news = -1;
    l->listens = listens;
    l->o = *o;
    l->beat = (uint64_t)(o->heartbeat_ms ? o->heartbeat_ms : HEARTBEAT_MS) * MS;
    l->dead = (uint64_t)(o->dead_ms ? o->dead_ms : DEAD_MS) * MS;
    l->retry = LINK_RETRY_MS;
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
    link_blocks_drop(l->first);
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
    link_depot_close(l->depot);
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

void link_admit(struct link *l, const struct link_peer *p, uint64_t most_bytes)
{
    pthread_mutex_lock(&l->lock);
    struct conn *c = conn_of(l, p);
    if (c) {
        c->admitted = true;
        c->most = most_bytes > c->most ? most_bytes : c->most;
    }
    pthread_mutex_unlock(&l->lock);
}

/* ---- out ---- */

static bool out_init(struct depot *d, struct link_out *m, size_t n)
{
    struct block *b = link_block_new(d, LINK_MESSAGE, 0, n);
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
        struct block *b = link_block_new(l->depot, LINK_MESSAGE, 0, n);
        if (!b)
            break;
        b->next = first;
        first = b;
    }
    link_blocks_drop(first);
}

void link_out_release(struct link_out *m)
{
    if (m->payload)
        link_block_free(block_at(m->payload));
    m->payload = NULL;
}

bool link_has_room(struct link *l, const struct link_peer *to)
{
    pthread_mutex_lock(&l->lock);
    const struct conn *c = conn_of(l, to);
    const bool has = c && c->up && !c->broken && c->n_out < LINK_WATER;
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
    const bool ok = c && c->up && !c->broken && c->n_out < LINK_WATER;
    bool more = false;
    if (ok) {
        if (c->last)
            c->last->next = b;
        else
            c->first = b;
        c->last = b;
        c->n_out++;
        m->payload = NULL;
        link_conn_flush(c);
        more = c->broken || link_conn_wants_out(c);
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
        more = more || c->held != SIZE_MAX || (c->id == b->peer && c->n_in == LINK_WATER);
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
    link_block_free(in->block);
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
