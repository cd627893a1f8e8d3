/* SPDX-License-Identifier: Apache-2.0 */
/* frame - heads and payloads as bytes, and what may stand in them. */
#include "link/link.h"

#include "base/num.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows of floats are sent as they lie in memory: little-endian"
#endif

enum { MAGIC = 0x58676e69 }; /* "ingX" */

/* ---- numbers ---- */

uint32_t link_u32(const uint8_t *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

void link_put_u32(uint8_t *at, uint32_t v)
{
    memcpy(at, &v, sizeof v);
}

static uint64_t get_u64(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static void put_u64(uint8_t *at, uint64_t v)
{
    memcpy(at, &v, sizeof v);
}

static float get_f32(const uint8_t *at)
{
    float v;
    memcpy(&v, at, sizeof v);
    return v;
}

static ingle_status check(const char *what, uint64_t v, uint64_t least, uint64_t most,
                          struct err *err)
{
    if (v >= least && v <= most)
        return INGLE_OK;
    return err_set(err, INGLE_FORMAT, "a frame has '%s' %llu outside %llu to %llu", what,
                   (unsigned long long)v, (unsigned long long)least, (unsigned long long)most);
}

static ingle_status check_length(const char *what, size_t n, uint64_t wanted, struct err *err)
{
    if (n == wanted)
        return INGLE_OK;
    return err_set(err, INGLE_FORMAT, "the payload of %s has %zu bytes, its head says %llu", what,
                   n, (unsigned long long)wanted);
}

/* Of work, whose bytes may be more than a payload can have: wanted is 0. */
static ingle_status check_work_length(const char *what, size_t n, uint64_t wanted, struct err *err)
{
    if (!wanted)
        return err_set(err, INGLE_FORMAT, "the rows of %s have more than %d bytes", what,
                       LINK_MAX_BYTES);
    return check_length(what, n, wanted, err);
}

/* ---- the head: u32 magic, u16 version, u16 kind, u64 step, u32 layer, rows, pairs, flags, u64
 * tag, u64 sum ---- */

enum {
    AT_VERSION = 4,
    AT_KIND = 6,
    AT_STEP = 8,
    AT_LAYER = 16,
    AT_ROWS = 20,
    AT_PAIRS = 24,
    AT_FLAGS = 28,
    AT_TAG = 32,
    AT_SUM = 40
};

static uint64_t sum_of(const uint8_t *head, const uint8_t *payload, size_t n)
{
    static const uint8_t none[1] = {0};
    return XXH3_64bits_withSeed(n ? payload : none, n, XXH3_64bits(head, AT_SUM));
}

void link_head_write(const struct link_head *h, const uint8_t *payload, size_t n_payload,
                     uint8_t out[LINK_HEAD])
{
    link_put_u32(out, MAGIC);
    out[AT_VERSION] = LINK_VERSION;
    out[AT_VERSION + 1] = 0;
    out[AT_KIND] = (uint8_t)h->kind;
    out[AT_KIND + 1] = 0;
    put_u64(out + AT_STEP, h->step);
    link_put_u32(out + AT_LAYER, h->layer);
    link_put_u32(out + AT_ROWS, h->n_rows);
    link_put_u32(out + AT_PAIRS, h->n_pairs);
    link_put_u32(out + AT_FLAGS, h->flags);
    put_u64(out + AT_TAG, h->tag);
    put_u64(out + AT_SUM, sum_of(out, payload, n_payload));
}

static ingle_status check_work(const struct link_head *h, const struct link_shape *s,
                               struct err *err)
{
    ingle_status st = check("layer", h->layer, 0, (uint64_t)s->n_layers - 1, err);
    if (!st)
        st = check("rows", h->n_rows, 1, (uint64_t)s->most_rows, err);
    if (!st)
        st = check("pairs", h->n_pairs, 1, (uint64_t)s->most_pairs, err);
    if (!st && h->n_pairs > (uint64_t)h->n_rows * LINK_MAX_USED)
        st = err_set(err, INGLE_FORMAT,
                     "a frame has 'pairs' %u for 'rows' %u, of which each has at most %d",
                     h->n_pairs, h->n_rows, LINK_MAX_USED);
    if (!st && (h->flags & ~(uint32_t)(LINK_FLAGS | LINK_SHARED)))
        st = err_set(err, INGLE_FORMAT, "a frame has 'flags' 0x%x, known are 0x%x", h->flags,
                     LINK_FLAGS | LINK_SHARED);
    return st;
}

ingle_status link_head_read(const uint8_t *head, size_t n_head, const uint8_t *payload,
                            size_t n_payload, const struct link_shape *shape, struct link_head *out,
                            struct err *err)
{
    if (n_head != LINK_HEAD)
        return err_set(err, INGLE_FORMAT, "the head of a frame has %zu bytes, not %d", n_head,
                       LINK_HEAD);
    if (link_u32(head) != MAGIC)
        return err_set(err, INGLE_FORMAT,
                       "a frame begins with 0x%08x, not 0x%08x: the peer is no ingle",
                       link_u32(head), MAGIC);
    if (head[AT_VERSION] != LINK_VERSION || head[AT_VERSION + 1])
        return err_set(err, INGLE_FORMAT, "a frame has 'version' %u, not %d",
                       head[AT_VERSION] + 256u * head[AT_VERSION + 1], LINK_VERSION);
    const uint32_t kind = head[AT_KIND] + 256u * head[AT_KIND + 1];
    ingle_status st = check("kind", kind, LINK_HELLO, LINK_KEEP, err);
    if (!st)
        st = check("payload", n_payload, 0, LINK_MAX_BYTES, err);
    if (st)
        return st;
    const struct link_head h = {(enum link_kind)kind,      link_u32(head + AT_LAYER),
                                link_u32(head + AT_ROWS),  link_u32(head + AT_PAIRS),
                                link_u32(head + AT_FLAGS), get_u64(head + AT_STEP),
                                get_u64(head + AT_TAG)};
    if (get_u64(head + AT_SUM) != sum_of(head, payload, n_payload))
        return err_set(err, INGLE_FORMAT,
                       "the checksum of a frame of kind %u and %zu bytes is wrong", kind,
                       n_payload);
    if (!shape && h.kind != LINK_HELLO && h.kind != LINK_JOIN && h.kind != LINK_FAIL &&
        h.kind != LINK_BYE && h.kind != LINK_TRY)
        return err_set(err, INGLE_FORMAT, "a frame of kind %u comes before HELLO", kind);
    if (h.kind == LINK_EVAL || h.kind == LINK_RESULT) {
        int slot;
        st = check_work(&h, shape, err);
        if (!st && (h.flags & LINK_SHARED))
            st = link_share_slot(payload, n_payload, &slot, err);
        else if (!st)
            st = h.kind == LINK_EVAL
                     ? check_work_length("EVAL", n_payload, link_eval_bytes(&h, shape), err)
                     : check_work_length("RESULT", n_payload, link_result_bytes(&h, shape), err);
    } else if (h.kind == LINK_HELLO) {
        st = check_length("HELLO", n_payload, LINK_HELLO_BYTES, err);
    } else if (h.kind == LINK_BYE || h.kind == LINK_CANCEL) {
        st = check_length(h.kind == LINK_BYE ? "BYE" : "CANCEL", n_payload, 0, err);
    } else if (h.kind == LINK_STATS) {
        st = check_length("STATS", n_payload, n_payload ? LINK_STATS_BYTES : 0, err);
    } else if (h.kind == LINK_PLACE) {
        st = link_place_check(shape, payload, n_payload, err);
    } else if (h.kind == LINK_SHARE) {
        st = check_length("SHARE", n_payload, n_payload ? LINK_SHARE_HELLO : 0, err);
    } else if (h.kind == LINK_HAVE) {
        st = check_length("HAVE", n_payload, link_have_bytes(shape), err);
    } else if (h.kind == LINK_JOIN) {
        st = check_length("JOIN", n_payload, LINK_JOIN_BYTES, err);
    } else if (h.kind >= LINK_STEP && h.kind <= LINK_KEEP) {
        st = INGLE_OK; /* stage/ reads them */
    } else if (n_payload > LINK_MAX_TEXT) {
        st = err_set(err, INGLE_FORMAT, "the text of a FAIL has %zu bytes, the limit is %d",
                     n_payload, LINK_MAX_TEXT);
    }
    if (!st)
        *out = h;
    return st;
}

/* ---- EVAL: u32 experts a row, f32 limit, u64 zero; u32 row[], u32 expert[], f32 weight[], f32
 * x[][] ---- */

static size_t with_rows(uint64_t fixed, uint64_t rows, const struct link_shape *s)
{
    uint64_t n;
    if (!num_mul_u64(rows, (uint64_t)s->hidden * sizeof(float), &n) || !num_add_u64(n, fixed, &n) ||
        n > LINK_MAX_BYTES)
        return 0;
    return (size_t)n;
}

static uint64_t lists_bytes(const struct link_head *h)
{
    return (uint64_t)h->n_pairs * (h->flags & LINK_SUM ? 12 : 8); /* 32 bits each: it fits */
}

size_t link_eval_bytes(const struct link_head *h, const struct link_shape *s)
{
    return with_rows(LINK_EVAL_BYTES + lists_bytes(h), h->n_rows, s);
}

void link_eval_lay(const struct link_head *h, uint8_t *payload, struct link_eval *out)
{
    const size_t n = (size_t)h->n_pairs * 4;
    *out = (struct link_eval){.row = payload + LINK_EVAL_BYTES,
                              .expert = payload + LINK_EVAL_BYTES + n};
    out->weight = h->flags & LINK_SUM ? out->expert + n : NULL;
    out->x = payload + LINK_EVAL_BYTES + lists_bytes(h);
}

void link_eval_begin(uint8_t *payload, int64_t n_used, float limit)
{
    memset(payload, 0, LINK_EVAL_BYTES);
    link_put_u32(payload, (uint32_t)n_used);
    memcpy(payload + 4, &limit, sizeof limit);
}

/* Pairs in their order, with indices that exist. */
static ingle_status check_pairs(const struct link_head *h, const struct link_shape *s,
                                const struct link_eval *e, struct err *err)
{
    uint32_t expert = 0, row = 0;
    for (uint32_t i = 0; i < h->n_pairs; i++) {
        const uint32_t x = link_u32(e->expert + 4 * (size_t)i),
                       r = link_u32(e->row + 4 * (size_t)i);
        if (x >= (uint64_t)s->n_experts)
            return err_set(err, INGLE_FORMAT, "pair %u has 'expert' %u of %lld", i, x,
                           (long long)s->n_experts);
        if (r >= h->n_rows)
            return err_set(err, INGLE_FORMAT, "pair %u has 'row' %u of %u", i, r, h->n_rows);
        if (i && (x < expert || (x == expert && r <= row)))
            return err_set(err, INGLE_FORMAT,
                           "pair %u (expert %u, row %u) does not come behind expert %u, row %u", i,
                           x, r, expert, row);
        expert = x;
        row = r;
    }
    return INGLE_OK;
}

ingle_status link_eval_read(const struct link_head *h, const struct link_shape *s,
                            const uint8_t *payload, size_t n, struct link_eval *out,
                            struct err *err)
{
    ingle_status st = check_work_length("EVAL", n, link_eval_bytes(h, s), err);
    if (st)
        return st;
    struct link_eval e;
    union {
        const uint8_t *in;
        uint8_t *out;
    } at = {.in = payload}; /* only addresses are made of it */
    link_eval_lay(h, at.out, &e);
    e.n_used = link_u32(payload);
    e.limit = get_f32(payload + 4);
    if (!(e.limit >= 0) || isinf(e.limit))
        return err_set(err, INGLE_FORMAT, "an EVAL has a 'limit' that is no number of 0 or more");
    const bool sum = (h->flags & LINK_SUM) != 0;
    st = check("experts a row", (uint64_t)e.n_used, sum ? 1 : 0, sum ? LINK_MAX_USED : 0, err);
    if (!st && sum && (uint64_t)h->n_rows * (uint64_t)e.n_used != h->n_pairs)
        st = err_set(err, INGLE_FORMAT, "an EVAL has 'pairs' %u for %u rows with %lld experts each",
                     h->n_pairs, h->n_rows, (long long)e.n_used);
    if (!st)
        st = check_pairs(h, s, &e, err);
    if (!st)
        *out = e;
    return st;
}

/* ---- RESULT: u64 ns, u64 ns waited, u32 hits, u32 misses, f32 y[][] ---- */

size_t link_result_bytes(const struct link_head *h, const struct link_shape *s)
{
    return with_rows(LINK_RESULT_BYTES, h->flags & LINK_SUM ? h->n_rows : h->n_pairs, s);
}

void link_result_begin(uint8_t *payload, const struct link_result *r)
{
    put_u64(payload, r->compute_ns);
    put_u64(payload + 8, r->stall_ns);
    link_put_u32(payload + 16, r->hits);
    link_put_u32(payload + 20, r->misses);
}

ingle_status link_result_read(const struct link_head *h, const struct link_shape *s,
                              const uint8_t *payload, size_t n, struct link_result *out,
                              struct err *err)
{
    const ingle_status st = check_work_length("RESULT", n, link_result_bytes(h, s), err);
    if (!st)
        *out = (struct link_result){get_u64(payload), get_u64(payload + 8), link_u32(payload + 16),
                                    link_u32(payload + 20), payload + LINK_RESULT_BYTES};
    return st;
}

/* ---- STATS, PLACE, HAVE ---- */

void link_stats_write(const struct link_stats *s, uint8_t out[LINK_STATS_BYTES])
{
    const uint64_t v[] = {s->evals,    s->pairs, s->failed,     s->cancelled, s->peers, s->slots,
                          s->resident, s->bad,   s->read_bytes, s->stall_ns,  s->up_ns};
    static_assert(sizeof v == LINK_STATS_BYTES, "all of it");
    memcpy(out, v, sizeof v);
}

ingle_status link_stats_read(const uint8_t *at, size_t n, struct link_stats *out, struct err *err)
{
    const ingle_status st = check_length("STATS", n, LINK_STATS_BYTES, err);
    if (!st)
        *out = (struct link_stats){get_u64(at),      get_u64(at + 8),  get_u64(at + 16),
                                   get_u64(at + 24), get_u64(at + 32), get_u64(at + 40),
                                   get_u64(at + 48), get_u64(at + 56), get_u64(at + 64),
                                   get_u64(at + 72), get_u64(at + 80)};
    return st;
}

void link_place_at(const uint8_t *payload, size_t i, int64_t *layer, int64_t *expert)
{
    const uint32_t v = link_u32(payload + 4 * i);
    *layer = v >> 16;
    *expert = v & 0xFFFF;
}

ingle_status link_place_check(const struct link_shape *s, const uint8_t *payload, size_t n,
                              struct err *err)
{
    if (n % 4 || n / 4 > LINK_MAX_PLACES)
        return err_set(err, INGLE_FORMAT,
                       "the payload of PLACE has %zu bytes, not 4 for each of at most %d experts",
                       n, LINK_MAX_PLACES);
    for (size_t i = 0; i < n / 4; i++) {
        int64_t layer, expert;
        link_place_at(payload, i, &layer, &expert);
        if (layer >= s->n_layers || expert >= s->n_experts)
            return err_set(err, INGLE_FORMAT,
                           "place %zu has layer %lld of %lld, expert %lld of %lld", i,
                           (long long)layer, (long long)s->n_layers, (long long)expert,
                           (long long)s->n_experts);
    }
    return INGLE_OK;
}

ingle_status link_share_slot(const uint8_t *payload, size_t n, int *slot, struct err *err)
{
    ingle_status st = check_length("shared rows", n, 8, err);
    if (!st)
        st = check("slot", get_u64(payload), 0, LINK_SLOTS - 1, err);
    if (!st)
        *slot = (int)get_u64(payload);
    return st;
}

size_t link_have_bytes(const struct link_shape *s)
{
    return (size_t)num_div_up(s->n_layers * s->n_experts, 8);
}

void link_fail_text(const uint8_t *payload, size_t n, char out[LINK_MAX_TEXT + 1])
{
    n = n < LINK_MAX_TEXT ? n : LINK_MAX_TEXT;
    for (size_t i = 0; i < n; i++)
        out[i] = payload[i] >= ' ' && payload[i] < 127 ? (char)payload[i] : '?';
    out[n] = 0;
}
