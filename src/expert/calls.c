/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls - who is there: workers are called, greeted, lost, and called again.
 *
 * A lost one gets a new link, so that nothing of the old one can come through.  It is called again
 * at once, later if that does not help; who was lost three times within a minute is left alone for
 * a minute.
 */
#include "expert/away.h"

#include "base/clock.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

static const uint64_t second = 1000000000;

static void trouble(struct worker *w, const char *why)
{
    snprintf(w->n.trouble, sizeof w->n.trouble, "%.239s", why);
}

static void hang_up(struct worker *w, enum worker_state state, uint64_t retry_ns)
{
    link_close(w->link);
    w->link = NULL;
    link_share_close(&w->share);
    w->shares = w->n.shares = false;
    w->state = state;
    w->retry_ns = retry_ns;
    for (int i = 0; i < w->n_asked; i++) {
        const struct asked *a = &w->asked[i];
        if (a->away && a->away->piece[a->piece].state == PIECE_SENT) {
            a->away->piece[a->piece].state = PIECE_LOST;
            a->away->n_open--;
        }
    }
    w->n_asked = 0;
    w->n.state = state == WORKER_REFUSED ? EXPERT_WORKER_REFUSED : EXPERT_WORKER_AWAY;
    expert_worker_show(w);
}

void expert_worker_lose(struct worker *w, const char *why)
{
    const uint64_t now = clock_now();
    const bool often = w->lost_ns[0] && now - w->lost_ns[0] < 60 * second;
    const int n_asked = w->n_asked;
    memmove(w->lost_ns, w->lost_ns + 1, sizeof w->lost_ns - sizeof w->lost_ns[0]);
    w->lost_ns[2] = now;
    if (often)
        memset(w->lost_ns, 0, sizeof w->lost_ns);
    w->n.losses++;
    trouble(w, why);
    hang_up(w, WORKER_DOWN, now + (often ? 60 * second : second / 20));
    report(w->r->o.sink, INGLE_REPORT_WARN, "worker-lost", w->address,
           "%s%s: its experts are computed here%s", why, n_asked ? ", in the middle of a step" : "",
           often ? "; after three losses it is left alone for a minute" : " until it is back");
}

static void call(struct worker *w, uint64_t now)
{
    const struct expert_remote *r = w->r;
    struct err err;
    const struct link_options o = {.address = w->address,
                                   .key_file = r->o.key_file,
                                   .plain = r->o.plain,
                                   .most_bytes = LINK_STRANGER_BYTES,
                                   .strangers = true,
                                   .heartbeat_ms = r->o.heartbeat_ms,
                                   .dead_ms = r->o.dead_ms};
    w->since_ns = now;
    if (link_dial(&w->link, &o, &err)) {
        trouble(w, err.msg);
        w->retry_ns = now + 5 * second;
        return;
    }
    w->state = WORKER_CALLING;
}

static void greet(struct worker *w, uint64_t now)
{
    struct link_out m;
    const struct link_head h = {.kind = LINK_HELLO};
    bool ok = link_out_init(&m, LINK_HELLO_BYTES);
    if (ok)
        link_hello_write(&w->r->hello, m.payload);
    ok = ok && link_send(w->link, NULL, &h, &m);
    w->since_ns = now;
    w->state = WORKER_GREETED;
    if (!ok)
        expert_worker_lose(w, "it does not take a HELLO");
}

static void refuse(struct worker *w, const char *why)
{
    const bool again = w->state == WORKER_REFUSED && strcmp(w->n.trouble, why) == 0;
    trouble(w, why);
    hang_up(w, WORKER_REFUSED, clock_now() + 30 * second);
    if (!again && !w->reported)
        report(w->r->o.sink, INGLE_REPORT_WARN, "worker-refused", w->address, "%s", why);
    w->reported = true;
}

/* The longest message that a worker may send: results, or which experts it has. */
static uint64_t longest(const struct link_shape *s)
{
    const struct link_head h = {.n_rows = (uint32_t)s->most_rows,
                                .n_pairs = (uint32_t)s->most_pairs};
    const uint64_t rows = link_result_bytes(&h, s), have = link_have_bytes(s);
    return rows ? rows > have ? rows : have : LINK_MAX_BYTES;
}

static void welcome(struct worker *w, const uint8_t *payload, size_t n)
{
    struct err err;
    struct link_hello h;
    char layers[32];
    ingle_status st = link_hello_read(payload, n, &h, &err);
    if (!st)
        st = link_hello_agree(&w->r->hello, &h, &err);
    if (!st && (h.most_pairs < LEAST_PAIRS || h.most_rows < LEAST_PAIRS))
        st = err_set(&err, INGLE_UNSUP, "it takes %u rows and %u pairs at a time, the least is %d",
                     h.most_rows, h.most_pairs, LEAST_PAIRS);
    if (st) {
        refuse(w, err.msg);
        return;
    }
    w->hello = h;
    w->shape = (struct link_shape){h.n_layers, h.n_experts, h.hidden, h.most_rows, h.most_pairs};
    link_admit(w->link, NULL, longest(&w->shape));
    w->state = WORKER_READY;
    w->reported = false;
    /* agreed: of this engine's model */
    memset(w->missed_at, 0, w->r->n_layers * h.n_experts * sizeof *w->missed_at);
    memset(w->have, 0, link_have_bytes(&w->shape));
    w->asked_ns = w->placed_ns = 0;
    w->n.there = (struct link_stats){0};
    w->n.n_have = 0;
    w->n.state = EXPERT_WORKER_READY;
    w->n.range = h.range;
    w->n.slots = h.slots;
    w->n.budget_bytes = h.budget_bytes;
    w->n.trouble[0] = 0;
    expert_worker_show(w);
    link_range_text(&h.range, layers, sizeof layers);
    if (!(h.sum && w->r->hello.sum) && !model_experts_mark_is_whole(w->r->model))
        report(
            w->r->o.sink, INGLE_REPORT_WARN, "worker-samples", w->address,
            "its experts and those here were compared by samples, not by all bytes: if a file is "
            "damaged, answers are wrong; with --pack at both ends all bytes are compared");
    report(w->r->o.sink, INGLE_REPORT_NOTE, "worker", w->address,
           "it computes experts of layers %s: %u threads, %s, %.2f GB for %llu of them", layers,
           h.threads, h.cpu, (double)h.budget_bytes * 1e-9, (unsigned long long)h.slots);
    const char *slow;
    if (link_cipher(w->link, NULL, &slow) && slow)
        report(w->r->o.sink, INGLE_REPORT_NOTE, "worker-encryption", w->address,
               "rows are encrypted by ChaCha20-Poly1305, not by AES-256-GCM: %s", slow);
    expert_worker_share(w);
}

static void take(struct worker *w, const struct link_in *in)
{
    struct err err;
    struct link_head h;
    char text[LINK_MAX_TEXT + 1];
    const bool ready = w->state == WORKER_READY;
    if (link_head_read(in->head, in->n_head, in->payload, in->n_payload, ready ? &w->shape : NULL,
                       &h, &err)) {
        expert_worker_lose(w, err.msg);
        return;
    }
    w->n.received_bytes += in->n_head + in->n_payload;
    if (h.kind == LINK_FAIL && (!ready || !h.tag)) {
        link_fail_text(in->payload, in->n_payload, text);
        if (ready)
            expert_worker_lose(w, text);
        else
            refuse(w, text);
    } else if (h.kind == LINK_BYE) {
        expert_worker_lose(w, "it ends");
    } else if (!ready && h.kind == LINK_HELLO) {
        welcome(w, in->payload, in->n_payload);
    } else if (ready && (h.kind == LINK_STATS || h.kind == LINK_HAVE ||
                         (h.kind == LINK_SHARE && w->share.at))) {
        expert_worker_said(w, &h, in->payload, in->n_payload);
    } else if (ready && (h.kind == LINK_RESULT || h.kind == LINK_FAIL)) {
        expert_worker_answer(w, &h, in->payload, in->n_payload);
    } else {
        expert_worker_lose(w, "it says what only an engine says");
    }
}

bool expert_worker_receive(struct worker *w, int timeout_ms)
{
    struct link_in in;
    char why[160] = "";
    if (!w->link)
        return false;
    switch (link_wait(w->link, timeout_ms, &in, why, sizeof why)) {
    case LINK_UP:
        if (w->state == WORKER_CALLING)
            greet(w, clock_now());
        return true;
    case LINK_DOWN:
        if (w->state == WORKER_CALLING)
            /* the carrier tries again */
            trouble(w, "there is no handshake: one end has another key, or none, or is no ingle");
        else
            expert_worker_lose(w, why);
        return true;
    case LINK_MESSAGE:
        take(w, &in);
        link_in_release(&in);
        return true;
    case LINK_NOTHING:
        break;
    }
    return false;
}

void expert_worker_poll(struct worker *w, uint64_t now)
{
    enum { AT_ONCE = 16 }; /* messages */
    if ((w->state == WORKER_DOWN || w->state == WORKER_REFUSED) && now >= w->retry_ns)
        call(w, now);
    for (int i = 0; i < AT_ONCE && expert_worker_receive(w, 0); i++)
        ;
    if (w->state == WORKER_GREETED && now > w->since_ns && now - w->since_ns > 5 * second)
        expert_worker_lose(w, "it does not answer a HELLO");
    else if (w->state == WORKER_CALLING && now > w->since_ns && now - w->since_ns > 5 * second &&
             !w->reported) {
        w->reported = true;
        if (!w->n.trouble[0])
            trouble(w, "there is no connection");
        report(w->r->o.sink, INGLE_REPORT_WARN, "worker", w->address,
               "it cannot be reached: %s; it is tried again and again", w->n.trouble);
        expert_worker_show(w);
    }
}
