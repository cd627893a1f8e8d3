/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zmq - ends over ZeroMQ: a worker's ROUTER, an engine's DEALER.
 *
 * Without a connection nothing is kept for sending (ZMQ_IMMEDIATE), so that a worker that comes back never gets what an earlier one
 * was asked.  Heartbeats find a peer or a link that is gone.  With a key both ends have CURVE keys that they derive from the
 * secret; the worker's public key is known only to those who know the secret, and without it no handshake begins.
 */
#include "link/link.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

static_assert(sizeof(zmq_msg_t) <= 64, "a message fits in its carrier");

enum { WATER = 4, HEARTBEAT_MS = 500, DEAD_MS = 2000, HANDSHAKE_MS = 5000, RETRY_MS = 100, RETRY_MOST_MS = 2000, LINGER_MS = 200 };

struct link {
    void *context, *socket, *monitor;
    bool listens;
    char name[300];
};

bool link_is_built(void)
{
    return true;
}

static zmq_msg_t *msg_of(unsigned char *carrier)
{
    return (zmq_msg_t *)(void *)carrier;
}

static ingle_status fail(struct err *err, const char *what, const char *where)
{
    const int e = zmq_errno();
    return err_set(err, e == ENOMEM ? INGLE_NOMEM : INGLE_IO, "'%s': %s: %s", where, what, zmq_strerror(e));
}

static bool set_int(void *socket, int option, int v)
{
    return zmq_setsockopt(socket, option, &v, sizeof v) == 0;
}

static ingle_status set_common(const struct link *l, const struct link_options *o, const struct link_address *a, struct err *err)
{
    const int beat = o->heartbeat_ms ? o->heartbeat_ms : HEARTBEAT_MS, dead = o->dead_ms ? o->dead_ms : DEAD_MS;
    const int64_t most = (int64_t)o->most_bytes;
    const bool ok = set_int(l->socket, ZMQ_SNDHWM, WATER) && set_int(l->socket, ZMQ_RCVHWM, WATER) &&
                    set_int(l->socket, ZMQ_LINGER, l->listens ? LINGER_MS : 0) && set_int(l->socket, ZMQ_HEARTBEAT_IVL, beat) &&
                    set_int(l->socket, ZMQ_HEARTBEAT_TIMEOUT, dead) && set_int(l->socket, ZMQ_HEARTBEAT_TTL, dead) &&
                    set_int(l->socket, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS) && set_int(l->socket, ZMQ_IPV6, strchr(a->endpoint, '[') != NULL) &&
                    zmq_setsockopt(l->socket, ZMQ_MAXMSGSIZE, &most, sizeof most) == 0;
    return ok ? INGLE_OK : fail(err, "cannot be set up", o->address);
}

/* A pair of keys from a secret: Z85, 40 characters and a 0 each. */
static bool make_keys(const uint8_t secret[LINK_SECRET], const char *role, char own[41], char public[41])
{
    uint8_t derived[LINK_SECRET];
    link_secret_derive(secret, role, derived);
    const bool ok = zmq_z85_encode(own, derived, sizeof derived) && zmq_curve_public(public, own) == 0;
    memset(derived, 0, sizeof derived);
    return ok;
}

static ingle_status set_keys(const struct link *l, const struct link_options *o, const struct link_address *a, struct err *err)
{
    uint8_t secret[LINK_SECRET];
    char worker_own[41], worker_public[41], engine_own[41], engine_public[41];
    if (!o->key_file && !a->near && !o->plain)
        return err_set(err, INGLE_ARG, "'%s' is beyond this host: a key is needed (--worker-key FILE), or --worker-plain where the network "
                       "itself encrypts", o->address);
    if (!o->key_file)
        return INGLE_OK;
    if (!zmq_has("curve"))
        return err_set(err, INGLE_UNSUP, "'%s': libzmq of this machine cannot encrypt (CURVE)", o->address);
    const ingle_status st = link_secret_read(o->key_file, secret, err);
    if (st)
        return st;
    bool ok = make_keys(secret, "worker", worker_own, worker_public) && make_keys(secret, "engine", engine_own, engine_public);
    if (ok && l->listens)
        ok = set_int(l->socket, ZMQ_CURVE_SERVER, 1) && zmq_setsockopt(l->socket, ZMQ_CURVE_SECRETKEY, worker_own, sizeof worker_own) == 0;
    else if (ok)
        ok = zmq_setsockopt(l->socket, ZMQ_CURVE_SERVERKEY, worker_public, sizeof worker_public) == 0 &&
             zmq_setsockopt(l->socket, ZMQ_CURVE_PUBLICKEY, engine_public, sizeof engine_public) == 0 &&
             zmq_setsockopt(l->socket, ZMQ_CURVE_SECRETKEY, engine_own, sizeof engine_own) == 0;
    memset(secret, 0, sizeof secret);
    memset(worker_own, 0, sizeof worker_own);
    memset(engine_own, 0, sizeof engine_own);
    return ok ? INGLE_OK : fail(err, "the key cannot be used", o->address);
}

static ingle_status open_end(struct link **out, const struct link_options *o, bool listens, struct link_address *a, struct err *err)
{
    ingle_status st = link_address_parse(o->address, listens, a, err);
    if (st)
        return st;
    struct link *l = mem_zalloc(sizeof *l);
    if (!l)
        return err_set(err, INGLE_NOMEM, "no memory for a link");
    *out = l;
    l->listens = listens;
    snprintf(l->name, sizeof l->name, "%.299s", o->address);
    l->context = zmq_ctx_new();
    l->socket = l->context ? zmq_socket(l->context, listens ? ZMQ_ROUTER : ZMQ_DEALER) : NULL;
    if (!l->socket)
        return fail(err, "no socket", o->address);
    st = set_common(l, o, a, err);
    return st ? st : set_keys(l, o, a, err);
}

ingle_status link_listen(struct link **out, const struct link_options *o, struct err *err)
{
    struct link_address a;
    struct link *l = NULL;
    ingle_status st = open_end(&l, o, true, &a, err);
    if (!st && (!set_int(l->socket, ZMQ_ROUTER_MANDATORY, 1) || (a.place == LINK_HANDED && !set_int(l->socket, ZMQ_USE_FD, a.fd))))
        st = fail(err, "cannot be set up", o->address);
    if (!st && zmq_bind(l->socket, a.endpoint) != 0)
        st = fail(err, "cannot listen there", o->address);
    if (st) {
        link_close(l);
        return st;
    }
    char end[sizeof l->name];
    size_t n = sizeof end;
    if (zmq_getsockopt(l->socket, ZMQ_LAST_ENDPOINT, end, &n) == 0) {
        if (strncmp(end, "tcp://", 6) == 0)
            snprintf(l->name, sizeof l->name, "%s", end + 6);
        else if (strncmp(end, "ipc://", 6) == 0)
            snprintf(l->name, sizeof l->name, "unix:%.290s", end + 6);
    }
    *out = l;
    return INGLE_OK;
}

enum { WATCHED = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_DISCONNECTED };

ingle_status link_dial(struct link **out, const struct link_options *o, struct err *err)
{
    static const char watch[] = "inproc://watch"; /* of this context alone */
    struct link_address a;
    struct link *l = NULL;
    ingle_status st = open_end(&l, o, false, &a, err);
    if (!st && !(set_int(l->socket, ZMQ_IMMEDIATE, 1) && set_int(l->socket, ZMQ_RECONNECT_IVL, RETRY_MS) &&
                 set_int(l->socket, ZMQ_RECONNECT_IVL_MAX, RETRY_MOST_MS) && zmq_socket_monitor(l->socket, watch, WATCHED) == 0 &&
                 (l->monitor = zmq_socket(l->context, ZMQ_PAIR)) && set_int(l->monitor, ZMQ_LINGER, 0) &&
                 zmq_connect(l->monitor, watch) == 0))
        st = fail(err, "cannot be set up", o->address);
    if (!st && zmq_connect(l->socket, a.endpoint) != 0)
        st = fail(err, "cannot be connected to", o->address);
    if (st)
        link_close(l);
    else
        *out = l;
    return st;
}

void link_close(struct link *l)
{
    if (!l)
        return;
    if (l->socket && l->monitor)
        (void)zmq_socket_monitor(l->socket, NULL, 0);
    if (l->monitor)
        (void)zmq_close(l->monitor);
    if (l->socket)
        (void)zmq_close(l->socket);
    while (l->context && zmq_ctx_term(l->context) != 0 && zmq_errno() == EINTR)
        ;
    mem_free(l);
}

const char *link_name(const struct link *l)
{
    return l->name;
}

/* ---- out ---- */

bool link_out_init(struct link_out *m, size_t n)
{
    if (zmq_msg_init_size(msg_of(m->carrier), n) != 0) {
        m->payload = NULL;
        return false;
    }
    m->payload = zmq_msg_data(msg_of(m->carrier));
    m->n = n;
    return true;
}

void link_out_release(struct link_out *m)
{
    if (m->payload)
        (void)zmq_msg_close(msg_of(m->carrier));
    m->payload = NULL;
}

bool link_send(struct link *l, const struct link_peer *to, const struct link_head *h, struct link_out *m)
{
    uint8_t head[LINK_HEAD];
    link_head_write(h, m->payload, m->n, head);
    bool ok = !l->listens || zmq_send(l->socket, to->id, to->n, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0;
    ok = ok && zmq_send(l->socket, head, sizeof head, ZMQ_DONTWAIT | ZMQ_SNDMORE) >= 0;
    ok = ok && zmq_msg_send(msg_of(m->carrier), l->socket, ZMQ_DONTWAIT) >= 0;
    if (ok)
        m->payload = NULL; /* it has no longer anything in it */
    link_out_release(m);
    return ok;
}

/* ---- in ---- */

/* The next part; false: there is none. */
static bool take(const struct link *l, zmq_msg_t *m, bool *more)
{
    (void)zmq_msg_init(m);
    if (zmq_msg_recv(m, l->socket, ZMQ_DONTWAIT) < 0) {
        (void)zmq_msg_close(m);
        return false;
    }
    *more = zmq_msg_more(m) != 0;
    return true;
}

static bool take_peer(const struct link *l, struct link_peer *out, bool *more)
{
    zmq_msg_t m;
    if (!take(l, &m, more))
        return false;
    const size_t n = zmq_msg_size(&m);
    out->n = (uint8_t)(n < sizeof out->id ? n : sizeof out->id); /* ZeroMQ has no longer ones */
    memcpy(out->id, zmq_msg_data(&m), out->n);
    (void)zmq_msg_close(&m);
    return true;
}

static bool take_message(const struct link *l, struct link_in *in)
{
    bool more = true;
    *in = (struct link_in){0};
    if (l->listens && !take_peer(l, &in->from, &more))
        return false;
    for (int k = 0; k < 2; k++) {
        zmq_msg_t *m = msg_of(in->carrier[k]);
        if (!more || !take(l, m, &more)) {
            if (!l->listens && k == 0)
                return false;
            (void)zmq_msg_init(m);
        }
    }
    while (more) {
        zmq_msg_t rest;
        if (!take(l, &rest, &more))
            break;
        (void)zmq_msg_close(&rest);
        in->n_more++;
    }
    in->head = zmq_msg_data(msg_of(in->carrier[0]));
    in->n_head = zmq_msg_size(msg_of(in->carrier[0]));
    in->payload = zmq_msg_data(msg_of(in->carrier[1]));
    in->n_payload = zmq_msg_size(msg_of(in->carrier[1]));
    return true;
}

void link_in_release(struct link_in *in)
{
    for (int k = 0; k < 2; k++)
        (void)zmq_msg_close(msg_of(in->carrier[k]));
}

void link_in_move(struct link_in *to, struct link_in *from)
{
    *to = (struct link_in){.from = from->from, .n_head = from->n_head, .n_payload = from->n_payload, .n_more = from->n_more};
    for (int k = 0; k < 2; k++) {
        (void)zmq_msg_init(msg_of(to->carrier[k]));
        (void)zmq_msg_move(msg_of(to->carrier[k]), msg_of(from->carrier[k]));
    }
    to->head = zmq_msg_data(msg_of(to->carrier[0])); /* short ones lie in the carrier itself */
    to->payload = zmq_msg_data(msg_of(to->carrier[1]));
    link_in_release(from);
}

/* What the monitor has to say; its second part is the endpoint. */
static enum link_event take_event(const struct link *l, char *why, size_t n_why)
{
    zmq_msg_t m;
    uint16_t event = 0;
    (void)zmq_msg_init(&m);
    if (zmq_msg_recv(&m, l->monitor, ZMQ_DONTWAIT) < 0) {
        (void)zmq_msg_close(&m);
        return LINK_NOTHING;
    }
    if (zmq_msg_size(&m) >= sizeof event)
        memcpy(&event, zmq_msg_data(&m), sizeof event);
    while (zmq_msg_more(&m) && zmq_msg_recv(&m, l->monitor, ZMQ_DONTWAIT) >= 0)
        ;
    (void)zmq_msg_close(&m);
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED)
        return LINK_UP;
    snprintf(why, n_why, "%s", event == ZMQ_EVENT_DISCONNECTED ? "the connection is gone" : "there is no handshake");
    return LINK_DOWN;
}

enum link_event link_wait(struct link *l, int timeout_ms, struct link_in *in, char *why, size_t n_why)
{
    zmq_pollitem_t item[2] = {{.socket = l->socket, .events = ZMQ_POLLIN}, {.socket = l->monitor, .events = ZMQ_POLLIN}};
    if (zmq_poll(item, l->monitor ? 2 : 1, timeout_ms) <= 0)
        return LINK_NOTHING; /* or a signal */
    if ((item[0].revents & ZMQ_POLLIN) && take_message(l, in))
        return LINK_MESSAGE;
    return l->monitor && (item[1].revents & ZMQ_POLLIN) ? take_event(l, why, n_why) : LINK_NOTHING;
}

void link_sleep(struct link *const *l, int n, int timeout_ms)
{
    zmq_pollitem_t item[2 * LINK_SLEEP];
    int n_items = 0;
    for (int i = 0; i < n && i < LINK_SLEEP; i++) {
        if (!l[i])
            continue;
        item[n_items++] = (zmq_pollitem_t){.socket = l[i]->socket, .events = ZMQ_POLLIN};
        if (l[i]->monitor)
            item[n_items++] = (zmq_pollitem_t){.socket = l[i]->monitor, .events = ZMQ_POLLIN};
    }
    if (n_items)
        (void)zmq_poll(item, n_items, timeout_ms);
}
