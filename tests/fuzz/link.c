/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between an engine and a worker: whatever the bytes are, they are refused with a text, or
 * every number is within its limit and every part within the payload.  The first byte says whether
 * magic, version and checksum are set right before, and which shape was agreed on. */
#include "base/mem.h"
#include "link/link.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MEND = 1, AGREED = 2, WIDE = 4, TEXT = 8 };

static void need(bool ok)
{
    if (!ok)
        abort();
}

static void check_eval(const struct link_head *h, const struct link_shape *s,
                       const uint8_t *payload, size_t n)
{
    struct link_eval e;
    struct err err = {0};
    if (link_eval_read(h, s, payload, n, &e, &err)) {
        need(err.msg[0] != 0);
        return;
    }
    need(e.x + (size_t)h->n_rows * (size_t)s->hidden * 4 == payload + n && e.limit >= 0);
    need(!e.weight == !(h->flags & LINK_SUM));
    for (uint32_t i = 0; i < h->n_pairs; i++)
        need(link_u32(e.row + 4 * (size_t)i) < h->n_rows &&
             link_u32(e.expert + 4 * (size_t)i) < (uint64_t)s->n_experts);
}

static void check_hello(const uint8_t *payload, size_t n)
{
    struct link_hello h, again;
    struct err err = {0};
    if (link_hello_read(payload, n, &h, &err)) {
        need(err.msg[0] != 0);
        return;
    }
    uint8_t bytes[LINK_HELLO_BYTES];
    link_hello_write(&h, bytes);
    need(!link_hello_read(bytes, sizeof bytes, &again, NULL));
    need(!link_hello_agree(&h, &again, NULL) || h.version_min > h.version_max);
    need(h.n_experts <= LINK_MAX_EXPERTS && h.hidden <= LINK_MAX_WIDTH &&
         h.most_pairs <= LINK_MAX_PAIRS && h.version_min <= h.version_max);
    need(h.range.all || h.range.from < h.range.to);
}

static void check_frame(uint8_t how, const uint8_t *data, size_t n)
{
    const struct link_shape shape = {.n_layers = 4,
                                     .n_experts = how & WIDE ? 256 : 3,
                                     .hidden = how & WIDE ? 4096 : 2,
                                     .most_rows = 16,
                                     .most_pairs = 64};
    const size_t n_head = n < LINK_HEAD ? n : LINK_HEAD, n_payload = n - n_head;
    /* exactly so much may be read */
    uint8_t *head = mem_alloc(n_head + 1), *payload = mem_alloc(n_payload + 1);
    struct link_head h;
    struct err err = {0};
    memcpy(head, data, n_head);
    memcpy(payload, data + n_head, n_payload);
    if ((how & MEND) && n_head == LINK_HEAD) {
        const struct link_head set = {(enum link_kind)(1 + head[6] % LINK_SHARE),
                                      link_u32(head + 16) % 5,
                                      link_u32(head + 20) % 20,
                                      link_u32(head + 24) % 70,
                                      link_u32(head + 28) % 9,
                                      1,
                                      2};
        link_head_write(&set, payload, n_payload, head);
    }
    if (link_head_read(head, n_head, payload, n_payload, how & AGREED ? &shape : NULL, &h, &err)) {
        need(err.msg[0] != 0);
    } else if ((h.kind == LINK_EVAL || h.kind == LINK_RESULT) && (h.flags & LINK_SHARED)) {
        int slot;
        need(!link_share_slot(payload, n_payload, &slot, NULL) && slot >= 0 && slot < LINK_SLOTS);
    } else if (h.kind == LINK_EVAL) {
        need((how & AGREED) != 0);
        check_eval(&h, &shape, payload, n_payload);
    } else if (h.kind == LINK_RESULT) {
        struct link_result r;
        need(!link_result_read(&h, &shape, payload, n_payload, &r, NULL) &&
             r.y + (size_t)(h.flags & LINK_SUM ? h.n_rows : h.n_pairs) * (size_t)shape.hidden * 4 ==
                 payload + n_payload);
    } else if (h.kind == LINK_HELLO) {
        check_hello(payload, n_payload);
    } else if (h.kind == LINK_STATS) {
        struct link_stats s;
        need((how & AGREED) && !link_stats_read(payload, n_payload, &s, NULL) == (n_payload != 0));
    } else if (h.kind == LINK_PLACE) {
        for (size_t i = 0; i < n_payload / 4; i++) {
            int64_t layer, expert;
            link_place_at(payload, i, &layer, &expert);
            need(layer < shape.n_layers && expert < shape.n_experts);
        }
    } else if (h.kind == LINK_HAVE) {
        size_t n_have = 0;
        for (size_t i = 0; i < (size_t)(shape.n_layers * shape.n_experts); i++)
            n_have += link_have_at(payload, i);
        need(n_have <= 8 * n_payload);
    } else if (h.kind == LINK_FAIL) {
        char text[LINK_MAX_TEXT + 1];
        link_fail_text(payload, n_payload, text);
        need(strlen(text) == n_payload);
    }
    mem_free(head);
    mem_free(payload);
}

static void check_text(const uint8_t *data, size_t n)
{
    char text[512];
    struct link_address a;
    struct link_range r;
    struct err err = {0};
    n = n < sizeof text - 1 ? n : sizeof text - 1;
    memcpy(text, data, n);
    text[n] = 0;
    if (strncmp(text, "fd:", 3) == 0) /* those of this process */
        text[0] = 'x';
    if (link_address_parse(text, n % 2, &a, &err))
        need(err.msg[0] != 0);
    else
        need(strlen(a.endpoint) > 6 && (a.place == LINK_TCP || a.near));
    err.msg[0] = 0;
    if (link_range_parse(text, &r, &err))
        need(err.msg[0] != 0);
    else
        need(r.all || r.from < r.to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!n)
        return 0;
    if (data[0] & TEXT)
        check_text(data + 1, n - 1);
    else
        check_frame(data[0], data + 1, n - 1);
    return 0;
}
