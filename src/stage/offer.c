/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offer - a stage that has no layers yet: it says who it is, until an engine says which layers to
 * load.  One thread, as in serve.c.
 */
#define _POSIX_C_SOURCE 200809L
#include "stage/wire.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { TURN_MS = 100 };

struct stage_offer {
    struct stage_offer_options o;
    struct stage_hello hello;
    struct link *link;
};

static const struct link_shape any_shape = {1, 1, 1, 1, 1};

ingle_status stage_offer_open(struct stage_offer **out, const struct stage_offer_options *o,
                              struct err *err)
{
    struct stage_offer *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a stage");
    s->o = *o;
    s->hello = *o->hello;
    const struct link_options l = {.address = o->address,
                                   .key_file = o->key_file,
                                   .plain = o->plain,
                                   .most_bytes = LINK_STRANGER_BYTES,
                                   .strangers = true};
    const ingle_status st = link_listen(&s->link, &l, err);
    if (st)
        stage_offer_close(s);
    else
        *out = s;
    return st;
}

void stage_offer_close(struct stage_offer *s)
{
    if (!s)
        return;
    link_close(s->link);
    mem_free(s);
}

const char *stage_offer_name(const struct stage_offer *s)
{
    return link_name(s->link);
}

struct link *stage_offer_link(struct stage_offer *s)
{
    return s->link;
}

void stage_offer_refuse(struct stage_offer *s, const struct link_peer *to, const char *why)
{
    const size_t n = strnlen(why, LINK_MAX_TEXT);
    const struct link_head h = {.kind = LINK_FAIL};
    struct link_out m;
    report(s->o.sink, INGLE_REPORT_WARN, "stage", link_name(s->link), "an engine is refused: %s",
           why);
    if (link_out_init(&m, n)) {
        memcpy(m.payload, why, n);
        (void)!link_send(s->link, to, &h, &m);
    }
}

void stage_hello_send(struct link *l, const struct link_peer *to, const struct stage_hello *h,
                      uint64_t number)
{
    const struct link_head head = {.kind = LINK_JOIN, .tag = number};
    struct link_out m;
    if (!link_out_init(&m, LINK_JOIN_BYTES))
        return;
    stage_hello_write(h, m.payload);
    (void)!link_send(l, to, &head, &m);
}

ingle_status stage_answer_try(struct link *l, const struct link_in *in, const struct link_head *h,
                              struct err *err)
{
    struct wire_in w = {.at = in->payload, .cap = in->n_payload};
    const uint64_t n = stage_get_u64(&w);
    const struct link_head back = {.kind = LINK_TRY, .tag = h->tag};
    struct link_out m;
    if (w.bad || n > STAGE_TRY_BYTES)
        return err_set(err, INGLE_FORMAT, "a TRY asks for %llu bytes, the limit is %d",
                       (unsigned long long)n, STAGE_TRY_BYTES);
    if (!link_has_sent(l, &in->from))
        return INGLE_OK;
    if (!link_out_init(&m, (size_t)n))
        return err_set(err, INGLE_NOMEM, "no memory for a TRY of %llu bytes",
                       (unsigned long long)n);
    if (n)
        memset(m.payload, 0, (size_t)n);
    (void)!link_send(l, &in->from, &back, &m);
    return INGLE_OK;
}

/* Who it is for whom; true: layers are asked for. */
static bool greet(struct stage_offer *s, const struct link_in *in, struct stage_asked *out,
                  struct err *err)
{
    struct stage_hello e;
    if (stage_hello_read(in->payload, in->n_payload, &e, err) ||
        stage_hello_agree(&e, &s->hello, err)) {
        stage_offer_refuse(s, &in->from, err->msg);
        return false;
    }
    struct stage_hello h = s->hello;
    link_admit(s->link, &in->from, STAGE_TRY_BYTES);
    h.loading = e.look == STAGE_ASSIGNS && e.from;
    if (h.loading) {
        h.from = e.from;
        h.to = e.to;
    }
    stage_hello_send(s->link, &in->from, &h, 0);
    *out = (struct stage_asked){in->from, e.from, e.to, e.n_ctx > 1 ? e.n_ctx : 0};
    return h.loading;
}

static bool receive(struct stage_offer *s, const struct link_in *in, struct stage_asked *out)
{
    struct link_head h;
    struct err err;
    ingle_status st =
        link_head_read(in->head, in->n_head, in->payload, in->n_payload, &any_shape, &h, &err);
    if (!st && h.kind == LINK_JOIN)
        return greet(s, in, out, &err);
    if (!st && h.kind == LINK_TRY)
        st = stage_answer_try(s->link, in, &h, &err);
    else if (!st && h.kind != LINK_FAIL && h.kind != LINK_BYE)
        st = err_set(&err, INGLE_UNSUP,
                     h.kind == LINK_HELLO
                         ? "this is a stage (ingle worker --stage), not a worker for experts: its "
                           "address belongs to --stages"
                         : "this stage has no layers yet");
    if (st)
        stage_offer_refuse(s, &in->from, err.msg);
    return false;
}

bool stage_offer_wait(struct stage_offer *s, struct stage_asked *out)
{
    while (!atomic_load_explicit(s->o.stop, memory_order_relaxed)) {
        struct link_in in;
        char why[8];
        if (link_wait(s->link, TURN_MS, &in, why, sizeof why) != LINK_MESSAGE)
            continue;
        const bool asked = receive(s, &in, out);
        link_in_release(&in);
        if (asked)
            return true;
    }
    return false;
}
