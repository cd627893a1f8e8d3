/* SPDX-License-Identifier: Apache-2.0 */
/* chain - the connection to the next stage, and rows that wait for their step. */
#define _POSIX_C_SOURCE 200809L
#include "stage/chain.h"

#include "base/clock.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

#define REACH_NS UINT64_C(1000000000) /* until it is reported that nobody is reached */
#define ROOM_NS UINT64_C(10000000000)

void stage_chain_clear(struct stage_chain *c)
{
    const struct stage_serve_options *o = c->o;
    link_close(c->link);
    for (int i = 0; i < c->n_held; i++)
        link_in_release(&c->held[i].in);
    *c = (struct stage_chain){.o = o};
}

void stage_chain_aim(struct stage_chain *c, const uint8_t *address, size_t n, uint64_t number,
                     const uint8_t hello[STAGE_CHAIN])
{
    link_close(c->link);
    c->link = NULL;
    c->up = c->reported = false;
    c->since_ns = clock_now();
    c->number = number;
    memcpy(c->hello, hello, STAGE_CHAIN);
    snprintf(c->address, sizeof c->address, "%.*s", (int)n, (const char *)address);
}

/* Says whose rows will come. */
static void say(struct stage_chain *c)
{
    const struct link_head h = {.kind = LINK_CHAIN, .tag = c->number};
    struct link_out m;
    if (!link_out_init(&m, STAGE_CHAIN))
        return;
    memcpy(m.payload, c->hello, STAGE_CHAIN);
    (void)!link_send(c->link, NULL, &h, &m);
}

/* True: it is no answer, or not the hoped-for one, which is in why. */
static bool receive(struct stage_chain *c, const struct link_in *in, char *why, size_t n_why)
{
    static const struct link_shape any = {1, 1, 1, 1, 1};
    struct link_head h;
    struct err err;
    char text[LINK_MAX_TEXT + 1];
    if (link_head_read(in->head, in->n_head, in->payload, in->n_payload, &any, &h, &err)) {
        snprintf(why, n_why, "%s", err.msg);
        return true;
    }
    if (h.kind == LINK_CHAIN && h.tag == c->number) {
        c->up = true;
        return false;
    }
    link_fail_text(in->payload, in->n_payload, text);
    snprintf(why, n_why, "%s", h.kind == LINK_FAIL ? text : "what listens there is no next stage");
    return true;
}

/* The first time: whoever is restarted is reached a little later. */
static bool cannot(struct stage_chain *c, bool at_once)
{
    if (c->up || c->reported || (!at_once && clock_now() - c->since_ns < REACH_NS))
        return false;
    return c->reported = true;
}

bool stage_chain_look(struct stage_chain *c, bool *up, char *why, size_t n_why)
{
    char text[200];
    struct link_in in;
    *up = false;
    if (!*c->address)
        return false;
    if (!c->link) {
        const struct link_options l = {.address = c->address,
                                       .key_file = c->o->key_file,
                                       .plain = c->o->plain,
                                       .most_bytes = LINK_STRANGER_BYTES};
        struct err err;
        if (!link_dial(&c->link, &l, &err))
            return false;
        snprintf(why, n_why, "%s", err.msg);
        *c->address = 0;
        return cannot(c, true);
    }
    const enum link_event what = link_wait(c->link, 0, &in, text, sizeof text);
    if (what == LINK_UP) {
        say(c);
    } else if (what == LINK_DOWN) {
        const bool was = c->up;
        c->up = false;
        snprintf(why, n_why, "%s", text);
        return was || cannot(c, false);
    } else if (what == LINK_MESSAGE) {
        const bool was = c->up, bad = receive(c, &in, why, n_why);
        link_in_release(&in);
        *up = c->up && !bad;
        c->reported = c->reported && !*up;
        c->up = *up;
        return *up || was || cannot(c, true);
    }
    const char *known = link_trouble(c->link);
    snprintf(why, n_why, "%s", known ? known : "nobody answers");
    return cannot(c, false);
}

bool stage_chain_send(struct stage_chain *c, const struct link_head *h, struct link_out *m)
{
    const uint64_t start = clock_now();
    const struct timespec nap = {.tv_nsec = 200000};
    while (c->up && !link_has_room(c->link, NULL) && link_is_up(c->link, NULL) &&
           clock_now() - start < ROOM_NS && !atomic_load(c->o->stop))
        nanosleep(&nap, NULL);
    if (c->up)
        return link_send(c->link, NULL, h, m);
    link_out_release(m);
    return false;
}

bool stage_chain_is_before(const struct stage_chain *c, const struct link_peer *p)
{
    return c->has_before && p->n == c->before.n && memcmp(p->id, c->before.id, p->n) == 0;
}

bool stage_chain_hold(struct stage_chain *c, struct link_in *in, uint64_t tag)
{
    if (tag <= c->last_tag) { /* its step was given up */
        link_in_release(in);
        return true;
    }
    if (c->n_held == STAGE_MOST_HELD || stage_chain_find(c, tag) >= 0)
        return false;
    c->held[c->n_held].tag = tag;
    c->held_bytes += in->n_payload;
    link_in_move(&c->held[c->n_held++].in, in);
    return true;
}

int stage_chain_find(const struct stage_chain *c, uint64_t tag)
{
    for (int i = 0; i < c->n_held; i++)
        if (c->held[i].tag == tag)
            return i;
    return -1;
}

void stage_chain_drop(struct stage_chain *c, uint64_t tag)
{
    int n = 0;
    c->last_tag = tag > c->last_tag ? tag : c->last_tag;
    for (int i = 0; i < c->n_held; i++)
        if (c->held[i].tag <= tag) {
            c->held_bytes -= c->held[i].in.n_payload;
            link_in_release(&c->held[i].in);
        } else {
            c->held[n++] = c->held[i];
        }
    c->n_held = n;
}
