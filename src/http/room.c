/* SPDX-License-Identifier: Apache-2.0
 *
 * The room for bodies (options.bodies_bytes), of which nobody has more than a share while others
 * need it.  An owner is a key, or where there is none an address.  Bodies of up to 64 KiB need no
 * room: connections bound them.
 *
 * Where there is no room for a piece, bodies that still arrive give way, the longest first: of the
 * owner who has most, if that is another one and has more; else of anybody, if it comes so slowly
 * that nobody would wait for it.  Their clients get a 503.  Bodies that have arrived are kept.  I/O
 * thread only.
 */
#include "http/inner.h"
#include "http/parts.h"

#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

/* So long a body may arrive, or bring less than STEP, before it gives way to anybody. */
static const uint64_t LONG_NS = 60000000000, STILL_NS = 10000000000;
enum { SMALL = 64 * 1024, STEP = 64 * 1024 };

struct http_owner {
    struct http_owner *next;
    const char *user; /* "": the address counts */
    unsigned char address[16];
    size_t n_bytes;
    int n; /* bodies */
};

static bool is_owner(const struct http_owner *o, const char *user, const unsigned char *address)
{
    return strcmp(o->user, user) == 0 && (*user || memcmp(o->address, address, 16) == 0);
}

/* NULL: no memory. */
static struct http_owner *owner_of(struct http *h, const char *user, const unsigned char *address)
{
    struct http_owner *o = h->owners;
    while (o && !is_owner(o, user, address))
        o = o->next;
    if (o)
        return o;
    o = mem_zalloc(sizeof *o);
    if (!o)
        return NULL;
    o->user = user;
    memcpy(o->address, address, 16);
    o->next = h->owners;
    return h->owners = o;
}

void http_room_give(struct http_exchange *x)
{
    struct http *h = x->http;
    struct http_owner *o = x->owner;
    if (!o)
        return;
    h->room_bytes -= x->n_room;
    o->n_bytes -= x->n_room;
    x->n_room = 0;
    x->owner = NULL;
    if (--o->n)
        return;
    struct http_owner **at = &h->owners;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    mem_free(o);
}

void http_room_start(struct http_conn *c)
{
    c->step = c->since;
    c->n_step = 0;
}

void http_room_piece(struct http_conn *c, size_t n)
{
    c->n_step += n;
    if (c->n_step < STEP)
        return;
    c->n_step = 0;
    c->step = c->last;
}

static bool arrives(const struct http_conn *c)
{
    return c->phase == HTTP_BODY && c->x && c->x->owner && !c->x->refused && !c->hung_up;
}

/* Of the owner's bodies (NULL: of those that are slow) the one that arrives for the longest time,
 * but not x. */
static struct http_exchange *longest(const struct http *h, const struct http_owner *o,
                                     const struct http_exchange *x)
{
    const struct http_conn *found = NULL;
    const uint64_t now = clock_now();
    for (size_t i = 0; i < h->n_by_fd; i++) {
        const struct http_conn *c = h->by_fd[i];
        if (!c || !arrives(c) || c->x == x || (found && found->since <= c->since))
            continue;
        if (o ? c->x->owner == o : now - c->since > LONG_NS || now - c->step > STILL_NS)
            found = c;
    }
    return found ? found->x : NULL;
}

static struct http_exchange *who_gives_way(const struct http *h, const struct http_exchange *x,
                                           size_t mine)
{
    struct http_exchange *y = NULL;
    const struct http_owner *most = NULL;
    for (const struct http_owner *o = h->owners; o; o = o->next)
        if (o != x->owner && o->n_bytes > mine && (!most || o->n_bytes > most->n_bytes))
            most = o;
    if (most)
        y = longest(h, most, x);
    return y ? y : longest(h, NULL, x);
}

bool http_room_take(struct http_exchange *x, size_t n)
{
    struct http *h = x->http;
    const size_t small = h->o.bodies_bytes / 64 < SMALL ? h->o.bodies_bytes / 64 : SMALL;
    if (!x->owner && n <= small && x->n_body <= small - n)
        return true;
    const size_t want = x->n_room ? n : x->n_body + n;
    if (!x->owner) {
        x->owner = owner_of(h, x->rq.user, x->conn->address);
        if (!x->owner)
            return false;
        x->owner->n++;
    }
    while (want > h->o.bodies_bytes - h->room_bytes) {
        struct http_exchange *y = who_gives_way(h, x, x->owner->n_bytes + want);
        if (!y)
            return false;
        http_request_give_way(y);
    }
    x->n_room += want;
    x->owner->n_bytes += want;
    h->room_bytes += want;
    return true;
}
