/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn - the bytes of a connection: what is to be sent is staged, sealed where there is a key, and
 * sent; what comes is read where it belongs, opened and checked.
 */
#define _POSIX_C_SOURCE 200809L
#include "link/carry.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum {
    PART_BYTES = 1 << 20,
    PART_READS = 32,            /* read from one peer before the others' turn */
    WAITING_MESSAGES = 4,       /* of the longest, of all peers together */
    STRANGER_BYTES = 256 << 10, /* of one that has not greeted, in all */
};
static const char wire[3] = {'i', 'n', 'g'};
enum wire_kind { WIRE_PING = 1, WIRE_MESSAGE };

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
    uint8_t head[LINK_WIRE_HEAD];
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
        const size_t most = c->seal ? LINK_PIECE : LINK_SHORT;
        n = n < most ? n : most;
        if (n)
            stage_bytes(c, b->head + c->sent, n);
        c->sent += n;
        if (c->sent == all) {
            c->first = b->next;
            c->last = c->first ? c->last : NULL;
            c->n_out--;
            c->sent = SIZE_MAX;
            link_block_free(b);
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
    return !c->seal && c->first && c->sent != SIZE_MAX &&
           LINK_HEAD + c->first->n - c->sent > LINK_SHORT;
}

void link_conn_flush(struct conn *c)
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

bool link_conn_wants_out(const struct conn *c)
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

void link_conn_expect(struct conn *c)
{
    expect(c, c->theirs, LINK_PREAMBLE);
}

static void expect_head(struct conn *c)
{
    expect(c, c->small, sealed(c, LINK_WIRE_HEAD));
}

static void expect_piece(struct conn *c)
{
    const size_t left = LINK_HEAD + c->block->n - c->at;
    c->n_piece = c->seal && left > LINK_PIECE ? LINK_PIECE : left;
    expect(c, c->seal ? c->in : c->block->head + c->at, sealed(c, c->n_piece));
}

/* Memory for a message, if there is room; else it waits, unread. */
void link_conn_begin(struct link *l, struct conn *c, size_t n)
{
    uint64_t longest = 0;
    for (int i = 0; i < l->n_conns; i++)
        longest = l->conn[i]->most > longest ? l->conn[i]->most : longest;
    c->held = SIZE_MAX;
    if (l->in_bytes && l->in_bytes + n > WAITING_MESSAGES * longest) {
        c->held = n;
        return;
    }
    c->block = link_block_new(l->depot, LINK_MESSAGE, c->id, n);
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
    l->retry = LINK_RETRY_MS;
    l->trouble = NULL;
    struct block *b = link_block_new(NULL, LINK_UP, c->id, 0);
    if (b)
        link_notify(l, b);
    else
        c->broken = "there is no memory for a connection";
}

static void take_head(struct link *l, struct conn *c)
{
    uint8_t head[LINK_WIRE_HEAD];
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
    else if (n > c->most)
        c->broken = "a message is longer than what is taken";
    else
        link_conn_begin(l, c, n);
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
    link_notify(l, b);
    expect_head(c);
}

void link_conn_greet(struct conn *c)
{
    memcpy(c->out, c->own, LINK_PREAMBLE);
    c->out_at = 0;
    c->out_n = LINK_PREAMBLE;
}

static void take_preamble(struct link *l, struct conn *c)
{
    const char *why = link_preamble_check(c->theirs, l->keyed);
    if (l->listens && memcmp(c->theirs, c->own, 8) == 0)
        link_conn_greet(c); /* to those alone who begin as an engine does */
    if (!why && l->keyed) {
        c->seal = mem_calloc(2, sizeof *c->seal);
        c->in = mem_alloc(LINK_PIECE + LINK_TAG);
        if (!c->seal || !c->in)
            why = "there is no memory for a connection";
        else if (!link_seal_agree(l->crypto, l->secret, c->own_key, l->listens ? c->theirs : c->own,
                                  l->listens ? c->own : c->theirs, l->listens, &c->seal[0],
                                  &c->seal[1]))
            why = "there is no handshake";
        memset(c->own_key, 0, sizeof c->own_key);
    }
    if (why) {
        link_conn_flush(c);
        c->broken = why;
        return;
    }
    c->stage = OPEN;
    c->ping = !l->listens; /* by which it proves what it knows */
    expect_head(c);
}

bool link_conn_is_read(const struct conn *c)
{
    return c->stage != CONNECTS && c->n_in < LINK_WATER && c->held == SIZE_MAX;
}

void link_conn_read(struct link *l, struct conn *c)
{
    size_t sum = 0;
    for (int n = 0; !c->broken && link_conn_is_read(c) && sum < PART_BYTES && n < PART_READS; n++) {
        const ssize_t k = recv(c->fd, c->to + c->have, c->want - c->have, 0);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0 && errno == EAGAIN)
            return;
        if (k <= 0) {
            c->broken = c->up ? "the connection is gone" : "there is no handshake";
            return;
        }
        c->received = clock_now();
        c->have += (size_t)k;
        sum += (size_t)k;
        c->strange += c->admitted ? 0 : (size_t)k;
        if (c->strange > STRANGER_BYTES && l->o.strangers) {
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
