/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trip - a step through the engine's layers and all stages.
 *
 * All stages learn of a step at once.  Its rows go from stage to stage, or through the engine
 * where a stage cannot reach the next one; each stage says when it has done its part.  A long step
 * goes in pieces of rows: while the first ones are at the stages, the engine computes its layers
 * of the next ones.  Each piece is what a shorter step would be, so that bits are the same.
 * Nobody waits for a step of which nothing comes back, as of most of a prompt: it has ended when
 * its rows were sent, and the next one begins.  What stages hold is lost if it fails there.
 * Answers are handled by whoever listens: the thread of the steps, or one that reads a page.
 */
#define _GNU_SOURCE
#include "stage/inner.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"

#include <string.h>

enum {
    PIECES = 8,
    LEAST_ROWS = 64,
    MOST_ROWS = 512,
    MOST_FLYING = 8,
    MOST_RECEIVED = 64
};
#define BAD_NS UINT64_C(60000000000)
#define CAREFUL_NS UINT64_C(60000000000)

/* What a piece has; it stays for later steps. */
struct piece_room {
    struct family_span *span; /* owned */
    uint8_t *lines;           /* owned: the step as bytes, before its rows */
    size_t cap_spans, cap_lines;
};

/* Rows [first, first + n) of the step. */
struct piece {
    struct piece_room room;
    int64_t first, n, logit, n_logits;
    struct family_step step;
    size_t n_lines;
    uint32_t done, direct;    /* a bit of each stage: it has answered; it sends rows to the next */
    int at;                   /* the first that has not answered; n: all have */
    /* begun_ns: the first stage was notified; sent_ns: it had its rows then, or soon after */
    uint64_t tag, begun_ns, sent_ns;
};

/* Rows after a layer (-1: the embedding) that somebody asked for: f32 [n_rows][width]. */
struct tap {
    int layer;
    bool keeps;    /* else it is passed on at once */
    struct rows x; /* in the trip's room */
};

/* What a trip has; it stays for later steps, and grows to what the largest one needs. */
struct trip_room {
    struct piece *piece; /* owned */
    struct tap *tap;     /* owned: ascending */
    uint32_t *asked;     /* owned: taps after the engine's layers */
    float *rows, *y;     /* owned: of taps; of a step that is under way */
    size_t cap_pieces, cap_taps, cap_asked, cap_rows, cap_y;
};

struct stage_trip {
    struct stage_trip *below;
    struct stage_remote *r;
    const struct family_forward *f;
    uint64_t losses; /* of the remote, as it began */
    bool all;        /* all rows come back, not only those whose logits are wanted */
    bool whole;      /* rows go together */
    bool leaves;     /* nothing comes back, ... */
    bool ahead;      /* ... and it was sent: nobody waits, and f is not valid any more */
    bool commits;    /* nothing comes back of some of its rows, and nobody waits for those */
    struct rows y;   /* f32 [n_rows][border after the last layer], or [n_logits][n_embd] */
    int64_t width;   /* of a tap */
    struct trip_room room;
    struct tap *tap; /* [n_taps], of the room */
    int64_t n_taps;
    uint32_t *asked; /* [n_asked], of the room */
    int64_t n_asked;
    struct piece *piece; /* [n], of the room */
    int64_t n, n_sent, n_done;
    struct err err;  /* why it has failed */
};

/* ---- what is asked for ---- */

static bool wants(const struct family_forward *f, enum family_tap tap, int layer)
{
    return f->tap && (!f->tap_wants || f->tap_wants(f->tap_arg, tap, layer));
}

static void add_tap(struct stage_trip *t, int layer, bool keeps)
{
    const int64_t width = layer < 0 ? (int64_t)t->r->hello.n_embd : t->width;
    t->tap[t->n_taps++] = (struct tap){layer, keeps, {NULL, t->f->step->n_rows, width, width}};
}

/* Where the rows of those that are kept go. */
static ingle_status lay_taps(struct stage_trip *t, struct err *err)
{
    size_t n = 0, one;
    bool ok = true;
    for (int64_t i = 0; i < t->n_taps; i++)
        ok = ok && (!t->tap[i].keeps ||
                    (num_mul((size_t)t->tap[i].x.n, (size_t)t->tap[i].x.width, &one) &&
                     num_add(n, one, &n)));
    if (!ok || (n && !mem_grow(&t->room.rows, &t->room.cap_rows, n, sizeof(float))))
        return err_set(err, INGLE_NOMEM, "no memory for rows after %lld layers",
                       (long long)t->n_taps);
    float *at = t->room.rows;
    for (int64_t i = 0; i < t->n_taps; i++) {
        struct rows *x = &t->tap[i].x;
        if (!t->tap[i].keeps)
            continue;
        x->at = at;
        at += x->n * x->width;
    }
    return INGLE_OK;
}

static ingle_status list_taps(struct stage_trip *t, struct err *err)
{
    const int64_t n_layers = t->r->hello.n_layers, first = t->r->hello.first;
    const bool later = t->n > 1 || t->whole; /* as it lands */
    struct trip_room *room = &t->room;
    if (!t->f->tap)
        return INGLE_OK;
    if (!mem_grow(&room->tap, &room->cap_taps, (size_t)n_layers + 1, sizeof *room->tap) ||
        !mem_grow(&room->asked, &room->cap_asked, (size_t)n_layers, sizeof *room->asked))
        return err_set(err, INGLE_NOMEM, "no memory for a step");
    t->tap = room->tap;
    t->asked = room->asked;
    if (wants(t->f, FAMILY_TAP_EMBED, 0))
        add_tap(t, -1, later);
    for (int il = 0; il < n_layers; il++) {
        if (!wants(t->f, FAMILY_TAP_LAYER, il))
            continue;
        add_tap(t, il, later || il >= first);
        if (il >= first)
            t->asked[t->n_asked++] = (uint32_t)il;
    }
    return lay_taps(t, err);
}

static struct tap *find_tap(struct stage_trip *t, int layer)
{
    for (int64_t i = 0; i < t->n_taps; i++)
        if (t->tap[i].layer == layer)
            return &t->tap[i];
    return NULL;
}

static void put_rows(struct rows to, const uint8_t *from)
{
    const size_t row = (size_t)to.width * sizeof(float);
    for (int64_t i = 0; i < to.n; i++)
        memcpy(to.at + i * to.stride, from + (size_t)i * row, row);
}

/* Of the engine's layers. */
struct local { struct stage_trip *t; const struct piece *p; };
static void keep_tap(void *arg, enum family_tap tap, int layer, struct rows x)
{
    const struct local *l = arg;
    const struct tap *to = find_tap(l->t, tap == FAMILY_TAP_EMBED ? -1 : layer);
    if (!to || x.width != to->x.width)
        return;
    if (!to->x.at) {
        l->t->f->tap(l->t->f->tap_arg, tap, layer, x);
        return;
    }
    device_read_rows(l->t->f->device, x);
    for (int64_t i = 0; i < x.n; i++)
        memcpy(to->x.at + (l->p->first + i) * to->x.stride, x.at + i * x.stride,
               (size_t)x.width * sizeof(float));
}

static void call_taps(const struct stage_trip *t)
{
    const struct family_forward *f = t->f;
    for (int64_t i = 0; i < t->n_taps; i++) {
        const struct tap *tap = &t->tap[i];
        if (!tap->x.at)
            continue;
        device_wrote_rows(f->device, tap->x);
        if (tap->layer < 0)
            f->tap(f->tap_arg, FAMILY_TAP_EMBED, 0, tap->x);
        else
            f->tap(f->tap_arg, FAMILY_TAP_LAYER, tap->layer, tap->x);
    }
}

/* ---- pieces ---- */

/* Pieces of steps that nobody waits for, that is. */
static int64_t count_ahead(const struct stage_remote *r)
{
    int64_t n = 0;
    for (const struct stage_trip *t = r->trip; t; t = t->below)
        n += t->ahead ? t->n_sent - t->n_done : 0;
    return n;
}

/* Rows of a piece.  Rows of a picture see each other, and a branch those that it shares.  Where
 * other steps of the prompt are beside this one, pieces need not be small for that. */
static int64_t piece_rows(const struct stage_trip *t)
{
    const struct family_step *s = t->f->step;
    const struct stage_remote *r = t->r;
    bool whole = t->whole || s->n_mirrors > 0 || t->f->probe || t->f->part ||
                 !device_runs(t->f->device);
    for (int64_t i = 0; i < s->n_spans && !whole; i++)
        whole = s->span[i].n_soft > 0;
    if (whole)
        return num_max(s->n_rows, 1);
    if (r->o.piece_rows)
        return r->o.piece_rows;
    int64_t n = PIECES;
    if (!r->shared && (t->leaves || count_ahead(r)))
        n = num_div_up(s->n_rows, MOST_ROWS);
    return num_max(num_div_up(s->n_rows, n), LEAST_ROWS);
}

/* The spans of rows [first, first + n), and which of their logits are wanted. */
static bool cut(struct piece *p, const struct family_step *s)
{
    int64_t row = 0, k = 0;
    const int64_t most = num_min(p->n, s->n_spans);
    if (!mem_grow(&p->room.span, &p->room.cap_spans, (size_t)most, sizeof *p->room.span))
        return false;
    for (int64_t i = 0; i < s->n_spans && row < p->first + p->n; row += s->span[i++].n) {
        const int64_t skip = num_max(0, p->first - row),
                      n = num_min(s->span[i].n, p->first + p->n - row) - skip;
        if (n <= 0)
            continue;
        struct family_span part = s->span[i];
        part.token += skip;
        part.at += skip;
        part.n = n;
        if (part.want == FAMILY_LOGITS_LAST && skip + n < s->span[i].n)
            part.want = FAMILY_LOGITS_NONE;
        p->n_logits += part.want == FAMILY_LOGITS_ALL ? n : part.want == FAMILY_LOGITS_LAST;
        p->room.span[k++] = part;
    }
    p->step = (struct family_step){
        .span = p->room.span, .n_spans = k, .n_rows = p->n, .n_logits = p->n_logits};
    return true;
}

static bool grow_pieces(struct trip_room *room, size_t n)
{
    const size_t had = room->cap_pieces;
    if (!mem_grow(&room->piece, &room->cap_pieces, n, sizeof *room->piece))
        return false;
    for (size_t i = had; i < room->cap_pieces; i++)
        room->piece[i] = (struct piece){0};
    return true;
}

static ingle_status cut_all(struct stage_trip *t, struct err *err)
{
    const struct family_step *s = t->f->step;
    const int64_t rows = piece_rows(t);
    t->n = num_max(1, num_div_up(s->n_rows, rows));
    if (!grow_pieces(&t->room, (size_t)t->n))
        return err_set(err, INGLE_NOMEM, "no memory for a step of %lld rows",
                       (long long)s->n_rows);
    t->piece = t->room.piece;
    for (int64_t i = 0, logit = 0; i < t->n; i++) {
        struct piece *p = &t->piece[i];
        *p = (struct piece){.room = p->room, .first = i * rows, .logit = logit, .at = -1};
        p->n = num_min(rows, s->n_rows - p->first);
        if (t->n == 1) {
            p->step = *s;
            p->n_logits = s->n_logits;
        } else if (!cut(p, s)) {
            return err_set(err, INGLE_NOMEM, "no memory for a step of %lld rows",
                           (long long)s->n_rows);
        }
        logit += p->n_logits;
    }
    return INGLE_OK;
}

/* ---- trips that are used again ---- */

static void trip_free(struct stage_trip *t)
{
    for (size_t i = 0; i < t->room.cap_pieces; i++) {
        mem_free(t->room.piece[i].room.span);
        mem_free(t->room.piece[i].room.lines);
    }
    mem_free(t->room.piece);
    mem_free(t->room.tap);
    mem_free(t->room.asked);
    mem_free(t->room.rows);
    mem_free(t->room.y);
    mem_free(t);
}

/* NULL: there is no memory. */
static struct stage_trip *take_trip(struct stage_remote *r)
{
    pthread_mutex_lock(&r->lock);
    struct stage_trip *t = r->spare;
    r->spare = t ? t->below : NULL;
    pthread_mutex_unlock(&r->lock);
    if (!t)
        t = mem_zalloc(sizeof *t);
    if (t)
        *t = (struct stage_trip){.r = r, .room = t->room};
    return t;
}

/* For later steps; the lock is held. */
static void spare(struct stage_trip *t)
{
    t->below = t->r->spare;
    t->r->spare = t;
}

static void give_trip(struct stage_trip *t)
{
    struct stage_remote *r = t->r;
    pthread_mutex_lock(&r->lock);
    spare(t);
    pthread_mutex_unlock(&r->lock);
}

ingle_status stage_trips_open(struct stage_remote *r, int n, struct err *err)
{
    const size_t lines = stage_step_line(r->spec, r->hello.n_ctx) +
                         sizeof(uint32_t) * (size_t)r->hello.n_layers;
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        struct stage_trip *t = mem_zalloc(sizeof *t);
        ok = t && grow_pieces(&t->room, 1);
        struct piece_room *p = ok ? &t->room.piece[0].room : NULL;
        ok = ok && mem_grow(&p->lines, &p->cap_lines, lines, 1) &&
             mem_grow(&t->room.tap, &t->room.cap_taps, (size_t)r->hello.n_layers + 1,
                      sizeof *t->room.tap) &&
             mem_grow(&t->room.asked, &t->room.cap_asked, r->hello.n_layers,
                      sizeof *t->room.asked) &&
             mem_grow(&t->room.y, &t->room.cap_y, r->hello.n_embd, sizeof(float));
        if (t) {
            t->r = r;
            spare(t);
        }
    }
    return ok ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for steps with stages");
}

/* Nothing comes of them any more. */
void stage_trips_drop(struct stage_remote *r)
{
    struct stage_trip **at = &r->trip;
    while (*at) {
        struct stage_trip *t = *at;
        if (!t->ahead) {
            at = &t->below;
            continue;
        }
        *at = t->below;
        spare(t);
    }
}

void stage_trips_close(struct stage_remote *r)
{
    stage_trips_drop(r);
    while (r->spare) {
        struct stage_trip *t = r->spare;
        r->spare = t->below;
        trip_free(t);
    }
}

/* ---- to a stage ---- */

static void fail(struct stage_trip *t, const struct err *err)
{
    if (!t->err.status)
        t->err = *err;
}

static ingle_status lose(struct stage *s, struct err *err)
{
    stage_lose(s, s->state == STAGE_READY ? "it takes no more messages" : s->why.msg);
    return err_set(err, INGLE_IO, "stage '%s', layers %u:%u: %s", s->address, s->hello.from,
                   s->hello.to, s->why.msg);
}

/* Rows of its layers that are asked for. */
static int64_t taps_of(const struct stage_trip *t, const struct stage *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_asked; i++)
        n += t->asked[i] >= s->hello.from && t->asked[i] < s->hello.to;
    return n;
}

/* The piece, of which a stage but the first gets its rows later. */
static ingle_status send_piece(const struct stage_trip *t, struct piece *p, int to, struct rows x,
                               struct err *err)
{
    struct stage *s = &t->r->stage[to];
    const size_t row = to ? 0 : (size_t)x.width * sizeof(float);
    const bool last = to + 1 == t->r->n, direct = !last && s->hop == STAGE_HOP_UP;
    const struct link_head h = {.kind = LINK_STEP,
                                .tag = p->tag,
                                .n_rows = (uint32_t)p->n,
                                .flags = (t->all || !last ? STAGE_ALL : 0) |
                                         (to ? STAGE_AWAIT : 0) | (direct ? STAGE_PASS : 0)};
    struct link_out m;
    size_t n;
    if (!num_mul(row, (size_t)p->n, &n) || !num_add(n, p->n_lines, &n) || n > LINK_MAX_BYTES)
        return err_set(err, INGLE_LIMIT,
                       "a step of %lld rows of width %lld is more than %d bytes: --chunk makes it "
                       "smaller",
                       (long long)p->n, (long long)x.width, LINK_MAX_BYTES);
    if (!link_out_take(s->link, &m, n))
        return err_set(err, INGLE_NOMEM, "no %zu bytes for a step", n);
    memcpy(m.payload, p->room.lines, p->n_lines);
    for (int64_t i = 0; row && i < p->n; i++)
        memcpy(m.payload + p->n_lines + (size_t)i * row, x.at + i * x.stride, row);
    stage_await(s, STAGE_REPLY + sizeof(float) * (uint64_t)p->n *
                                     (uint64_t)(s->border + taps_of(t, s) * t->width));
    p->direct |= (uint32_t)direct << to;
    if (stage_flush_pages(s) && s->state == STAGE_READY)
        return stage_send(s, &h, &m) ? INGLE_OK : lose(s, err);
    link_out_release(&m);
    return lose(s, err);
}

/* Rows of a stage to the next one. */
static ingle_status pass_on(struct stage_trip *t, struct piece *p, int to,
                            const struct link_in *in, struct err *err)
{
    struct stage *s = &t->r->stage[to];
    const size_t n = STAGE_REPLY + (size_t)(p->n * s[-1].border) * sizeof(float);
    const struct link_head h = {.kind = LINK_ROWS, .tag = p->tag, .n_rows = (uint32_t)p->n};
    struct link_out m;
    if (!link_out_take(s->link, &m, n))
        return err_set(err, INGLE_NOMEM, "no %zu bytes for rows", n);
    memcpy(m.payload, in->payload, n);
    if (s->state == STAGE_READY)
        return stage_send(s, &h, &m) ? INGLE_OK : lose(s, err);
    link_out_release(&m);
    return lose(s, err);
}

static void measure(struct stage *s, uint64_t ns, int64_t n_rows)
{
    const double each = (double)ns / (double)n_rows;
    s->unit_ns = s->n.steps ? s->unit_ns + (each - s->unit_ns) / 8 : each;
    if (n_rows == 1)
        s->step_ns = s->step_ns > 0 ? s->step_ns + ((double)ns - s->step_ns) / 8 : (double)ns;
}

/* ---- what comes back ---- */

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Once in a while it is the stage's fault; else it is the model's, and the step says where. */
static ingle_status check_numbers(struct stage *s, bool bad, struct err *err)
{
    if (!bad || (s->bad_ns && clock_now() - s->bad_ns <= BAD_NS))
        return INGLE_OK;
    s->bad_ns = clock_now();
    err_set(err, INGLE_IO, "stage '%s', layers %u:%u, has computed a row that is no number",
            s->address, s->hello.from, s->hello.to);
    stage_lose(s, "it has computed a row that is no number");
    stage_dial_again(s);
    return INGLE_IO;
}

/* The rows of a piece from a stage, unless the next one has them, and the taps after them. */
static ingle_status take_rows(struct stage_trip *t, struct piece *p, struct stage *s,
                              const struct link_in *in, const struct link_head *h, struct err *err)
{
    const int me = (int)(s - t->r->stage);
    const bool last = me + 1 == t->r->n, direct = p->direct >> me & 1;
    const int64_t n_rows = direct ? 0 : last && !t->all ? p->n_logits : p->n,
                  border = last ? t->y.width : s->border;
    const size_t tap = (size_t)(p->n * t->width) * sizeof(float),
                 rows = (size_t)(n_rows * border) * sizeof(float),
                 want = STAGE_REPLY + rows + (size_t)taps_of(t, s) * tap;
    struct wire_in w = {.at = in->payload, .cap = in->n_payload};
    const uint64_t said = stage_get_u64(&w);
    const uint32_t n = stage_get_u32(&w), width = stage_get_u32(&w);
    if (w.bad || n != n_rows || width != border || in->n_payload != want) {
        err_set(err, INGLE_IO,
                "stage '%s' answers with %u rows of width %u in %zu bytes, not %lld of %lld in %zu",
                s->address, n, width, in->n_payload, (long long)n_rows, (long long)border, want);
        stage_lose(s, err->msg);
        stage_dial_again(s);
        return INGLE_IO;
    }
    const uint8_t *at = in->payload + STAGE_REPLY;
    const bool bad = (h->flags & STAGE_BAD) || stage_has_bad(at, want - STAGE_REPLY);
    ingle_status st = check_numbers(s, bad, err);
    if (!st && !last && !direct)
        st = pass_on(t, p, me + 1, in, err);
    if (st)
        return st;
    if (last)
        put_rows(rows_slice(t->y, t->all ? p->first : p->logit, n_rows), at);
    at += rows;
    for (int64_t i = 0; i < t->n_taps; i++)
        if (t->tap[i].layer >= (int)s->hello.from && t->tap[i].layer < (int)s->hello.to) {
            put_rows(rows_slice(t->tap[i].x, p->first, p->n), at);
            at += tap;
        }
    const uint64_t now = clock_now(), before = later(p->sent_ns, s->answered_ns),
                   most = now - p->begun_ns, took = said < most ? said : most;
    measure(s, took, p->n);
    s->n.steps++;
    s->n.rows += (uint64_t)p->n;
    s->n.compute_ns += took;
    s->n.wait_ns += now > before ? now - before : 0;
    p->done |= UINT32_C(1) << me;
    if (p->at == me)
        p->sent_ns = now; /* for the next one */
    while (p->at < t->r->n && (p->done >> p->at & 1))
        p->at++;
    t->n_done += p->at == t->r->n;
    return INGLE_OK;
}

static struct piece *find_piece(const struct stage_remote *r, const struct stage *s, uint64_t tag,
                                struct stage_trip **trip)
{
    for (struct stage_trip *t = r->trip; t; t = t->below)
        for (int64_t i = 0; i < t->n_sent; i++)
            if (t->piece[i].tag == tag && !(t->piece[i].done >> (s - r->stage) & 1)) {
                *trip = t;
                return &t->piece[i];
            }
    return NULL;
}

void stage_trip_take(struct stage *s, struct link_in *in, const struct link_head *h)
{
    struct stage_trip *t;
    struct piece *p = find_piece(s->r, s, h->tag, &t); /* else it was given up */
    struct err err;
    ingle_status st = INGLE_OK;
    if (p && !t->err.status && h->kind == LINK_ROWS) {
        st = take_rows(t, p, s, in, h, &err);
    } else if (p && h->kind == LINK_FAIL) {
        char text[LINK_MAX_TEXT + 1];
        link_fail_text(in->payload, in->n_payload, text);
        st = err_set(&err, INGLE_LIMIT, "stage '%s', layers %u:%u: %s", s->address, s->hello.from,
                     s->hello.to, text);
    }
    if (st)
        fail(t, &err);
    if (h->tag > s->answered_tag && h->tag <= s->r->tag) { /* answers come in their order */
        s->answered_tag = h->tag;
        s->answered_ns = clock_now();
    }
    link_in_release(in);
}

bool stage_remote_is_ahead(struct stage_remote *r)
{
    if (!r)
        return false;
    pthread_mutex_lock(&r->lock);
    const bool ahead = count_ahead(r) > 0;
    pthread_mutex_unlock(&r->lock);
    return ahead;
}

void stage_remote_set_shared(struct stage_remote *r, bool shared)
{
    if (r)
        r->shared = shared;
}

bool stage_trip_flies(const struct stage_remote *r)
{
    bool flies = false;
    for (const struct stage_trip *t = r->trip; t && !flies; t = t->below)
        flies = !t->err.status && t->n_sent > t->n_done;
    return flies;
}

static void check(struct stage_trip *t)
{
    struct stage_remote *r = t->r;
    for (int64_t i = 0; i < t->n_sent && !t->err.status; i++) {
        const struct piece *p = &t->piece[i];
        if (p->at >= r->n)
            continue;
        struct stage *s = &r->stage[p->at];
        if (s->state == STAGE_READY)
            (void)stage_is_late(s, later(p->sent_ns, s->answered_ns), p->n);
        if (s->state != STAGE_READY)
            err_set(&t->err, INGLE_IO, "stage '%s', layers %u:%u: %s", s->address, s->hello.from,
                    s->hello.to, s->why.msg);
    }
    if (!t->err.status && atomic_load(&r->losses) != t->losses)
        err_set(&t->err, INGLE_IO, "a stage was lost, or a connection between two");
}

void stage_trip_check(struct stage_remote *r)
{
    for (struct stage_trip *t = r->trip; t; t = t->below)
        check(t);
}

/* What it has not computed is lost with all that came after it.  It is computed anew, and waited
 * for then, so that who asked for it learns why. */
static void lose_ahead(struct stage_remote *r, const struct stage_trip *t)
{
    if (atomic_load(&r->losses) != t->losses)
        return;
    report(r->o.sink, INGLE_REPORT_WARN, "stage", r->stage[0].address,
           "what lies at stages is computed again: %s", t->err.msg);
    r->careful_ns = clock_now() + CAREFUL_NS;
    stage_set_lost(r);
}

/* Steps that nobody waits for, and that are over. */
static void end_ahead(struct stage_remote *r)
{
    bool over = false;
    for (struct stage_trip *t = r->trip; t; t = t->below) {
        if (!t->ahead || !t->err.status)
            continue;
        over = true;
        lose_ahead(r, t);
    }
    if (over) { /* those behind it are lost, too */
        stage_trips_drop(r);
        return;
    }
    struct stage_trip **at = &r->trip;
    while (*at) {
        struct stage_trip *t = *at;
        if (!t->ahead || t->n_done < t->n) {
            at = &t->below;
            continue;
        }
        *at = t->below;
        spare(t);
    }
}

/* Handles what has come, or comes within so many ms, and looks who is late. */
static void pump(struct stage_remote *r, int timeout_ms)
{
    struct link *from[LINK_SLEEP];
    int n = 0;
    /* of more than there is room for, the first ones are heard a turn later */
    for (int i = r->n - 1; timeout_ms && i >= 0 && n < LINK_SLEEP; i--)
        from[n++] = r->stage[i].link;
    if (n)
        link_sleep(from, n, timeout_ms);
    for (int i = 0; i < r->n; i++) {
        struct link_in in;
        struct link_head h;
        for (int k = 0; k < MOST_RECEIVED && stage_look(&r->stage[i], 0, &in, &h); k++)
            stage_trip_take(&r->stage[i], &in, &h);
    }
    stage_trip_check(r);
    end_ahead(r);
}

/* ---- all of it ---- */

static ingle_status begin(struct stage_trip *t, int64_t i, struct rows x, struct err *err)
{
    struct piece *p = &t->piece[i];
    struct family_forward f = *t->f;
    f.step = &p->step;
    const size_t most = stage_step_most(&f, t->n_asked);
    if (!mem_grow(&p->room.lines, &p->room.cap_lines, most, 1))
        return err_set(err, INGLE_NOMEM, "no memory for a step");
    struct wire w = {.at = p->room.lines, .cap = most};
    pump(t->r, 0);
    if (t->err.status)
        return t->err.status;
    if (atomic_load(&t->r->lost))
        return err_set(err, INGLE_IO, "a stage was lost");
    const ingle_status st = stage_step_write(&w, &f, &t->r->pages, t->asked, t->n_asked, err);
    if (st)
        return st;
    p->n_lines = w.n;
    p->tag = ++t->r->tag;
    p->begun_ns = p->sent_ns = clock_now();
    p->at = 0;
    t->n_sent = i + 1;
    ingle_status sent = INGLE_OK;
    for (int k = 0; !sent && k < t->r->n; k++)
        sent = send_piece(t, p, k, x, err);
    return sent;
}

/* Until at most so many pieces are under way: of this step; with those that nobody waits for. */
static void wait_for(struct stage_trip *t, int64_t most, int64_t most_all)
{
    pthread_mutex_lock(&t->r->lock);
    while (!t->err.status && device_runs(t->f->device)) {
        const int64_t n = t->n_sent - t->n_done;
        if (n <= most && n + count_ahead(t->r) <= most_all)
            break;
        pump(t->r, STAGE_TURN_MS);
        pthread_mutex_unlock(&t->r->lock); /* others may */
        pthread_mutex_lock(&t->r->lock);
    }
    pthread_mutex_unlock(&t->r->lock);
}

static void send_all(struct stage_trip *t, const struct family *fam, const void *self)
{
    struct stage_remote *r = t->r;
    struct device *d = t->f->device;
    const int64_t rows = t->piece[0].n, flying = num_min(r->n + 1, MOST_FLYING);
    /* f32 [n of a piece][border before the first stage] */
    const struct rows x = device_rows(d, rows, fam->border(self, r->hello.first));
    for (int64_t i = 0; i < t->n && !t->err.status; i++) {
        struct piece *p = &t->piece[i];
        struct local local = {t, p};
        struct family_forward f = *t->f;
        struct err err;
        f.step = &p->step;
        f.tap = t->f->tap ? keep_tap : NULL;
        f.tap_wants = NULL;
        f.tap_arg = &local;
        const size_t mark = device_mark(d);
        const struct family_range first = {
            .from = 0, .to = r->hello.first, .out = rows_slice(x, 0, p->n)};
        stage_forward(fam, self, &f, &first);
        device_release(d, mark);
        if (!device_runs(d))
            break;
        device_read_rows(d, first.out);
        wait_for(t, flying - 1, flying - 1);
        pthread_mutex_lock(&r->lock);
        if (!t->err.status && begin(t, i, first.out, &err))
            fail(t, &err);
        pthread_mutex_unlock(&r->lock);
    }
}

static void enter(struct stage_trip *t)
{
    pthread_mutex_lock(&t->r->lock);
    t->below = t->r->trip;
    t->r->trip = t;
    pthread_mutex_unlock(&t->r->lock);
}

/* Those that were given up: a stage that waits for their rows need not. */
static void give_up(struct stage_trip *t)
{
    for (int64_t i = 0; i < t->n_sent; i++)
        for (int k = t->piece[i].at; k < t->r->n; k++) {
            struct stage *s = &t->r->stage[k];
            const struct link_head h = {.kind = LINK_CANCEL, .tag = t->piece[i].tag};
            struct link_out m;
            if (!(t->piece[i].done >> k & 1) && s->state == STAGE_READY && link_out_init(&m, 0) &&
                !stage_send(s, &h, &m))
                stage_lose(s, "it takes no more messages");
        }
}

static void leave(struct stage_trip *t)
{
    pthread_mutex_lock(&t->r->lock);
    struct stage_trip **at = &t->r->trip;
    while (*at != t)
        at = &(*at)->below;
    *at = t->below;
    give_up(t);
    /* what others have computed anew meanwhile is not what this step has seen */
    if (t->err.status == INGLE_IO)
        atomic_store(&t->r->lost, true);
    pthread_mutex_unlock(&t->r->lock);
}

/* Whether nothing comes back of it. */
static bool may_leave(const struct stage_trip *t)
{
    const struct family_forward *f = t->f;
    const struct stage_remote *r = t->r;
    bool may = !t->whole && !t->all && !f->step->n_logits && !f->probe && !f->part &&
               device_runs(f->device) && clock_now() >= r->careful_ns;
    for (int il = (int)r->hello.first; il < (int)r->hello.n_layers && may; il++)
        may = !wants(f, FAMILY_TAP_LAYER, il);
    return may;
}

/* All that is known before the first row. */
static bool open_trip(struct stage_trip *t, const struct family *fam, const void *self,
                      const struct family_forward *f)
{
    const struct stage_remote *r = t->r;
    t->f = f;
    t->losses = atomic_load(&r->losses);
    t->all = wants(f, FAMILY_TAP_NORM, 0);
    t->width = fam->tap_width(self);
    t->leaves = may_leave(t);
    if (cut_all(t, &t->err))
        return false;
    return !device_runs(f->device) || !list_taps(t, &t->err); /* a dry run is one of layers, too */
}

/* Of what comes back. */
static struct rows all_back(const struct stage_trip *t)
{
    const struct stage_remote *r = t->r;
    const int64_t n = t->all ? t->f->step->n_rows : t->f->step->n_logits,
                  width = t->all ? r->fam->border(r->self, r->hello.n_layers)
                                 : (int64_t)r->hello.n_embd;
    return (struct rows){NULL, n, width, width};
}

/* y are rows of the device. */
static void compute_head(const struct stage_trip *t, const struct family *fam, const void *self)
{
    const int64_t n_layers = t->r->hello.n_layers;
    if (!t->all && !t->f->step->n_logits)
        return;
    const struct family_range head = {
        .from = n_layers, .to = n_layers, .in = t->y, .head = true, .picked = !t->all};
    struct family_forward rest = *t->f;
    if (!t->all)
        rest.tap = NULL;
    stage_forward(fam, self, &rest, &head);
}

/* It was sent, and the next step may begin; t is the remote's then. */
static bool go_ahead(struct stage_trip *t)
{
    struct stage_remote *r = t->r;
    if (!t->leaves || t->err.status || t->n_sent < t->n || !device_runs(t->f->device))
        return false;
    call_taps(t);
    pthread_mutex_lock(&r->lock);
    t->f = NULL;
    t->ahead = true;
    pthread_mutex_unlock(&r->lock);
    return true;
}

void stage_remote_forward(struct stage_remote *r, const struct family *fam, const void *self,
                          const struct family_forward *f)
{
    if (!r) {
        fam->forward(self, f);
        return;
    }
    struct device *d = f->device;
    struct stage_trip *t = take_trip(r);
    if (!t) {
        struct err err;
        err_set(&err, INGLE_NOMEM, "no memory for a step");
        device_fail(d, &err);
        return;
    }
    const bool ok = open_trip(t, fam, self, f);
    const struct rows back = all_back(t);
    t->y = device_rows(d, back.n, back.width);
    if (ok) {
        enter(t);
        send_all(t, fam, self);
        if (go_ahead(t))
            return;
        wait_for(t, 0, INT64_MAX);
        leave(t);
    }
    if (t->err.status)
        device_fail(d, &t->err);
    if (device_runs(d)) {
        device_wrote_rows(d, t->y);
        call_taps(t);
    }
    compute_head(t, fam, self);
    give_trip(t);
}

/* ---- steps that are under way together ---- */

struct stage_trip *stage_trip_send(struct stage_remote *r, const struct family *fam,
                                   const void *self, const struct family_forward *f)
{
    struct stage_trip *t = take_trip(r);
    struct err err;
    size_t n;
    if (!t) {
        err_set(&err, INGLE_NOMEM, "no memory for a step");
        device_fail(f->device, &err);
        return NULL;
    }
    t->whole = true;
    bool ok = open_trip(t, fam, self, f);
    t->y = all_back(t);
    if (ok && num_mul((size_t)t->y.n, (size_t)t->y.width, &n) &&
        mem_grow(&t->room.y, &t->room.cap_y, n, sizeof(float))) {
        t->y.at = t->room.y;
    } else if (ok) {
        ok = false;
        err_set(&t->err, INGLE_NOMEM, "no memory for %lld rows", (long long)t->y.n);
    }
    if (ok) {
        enter(t);
        send_all(t, fam, self);
        if (!t->err.status && device_runs(f->device))
            return t;
        leave(t);
    }
    if (t->err.status)
        device_fail(f->device, &t->err);
    give_trip(t);
    return NULL;
}

void stage_trip_commit(struct stage_trip *t)
{
    t->commits = true;
}

bool stage_trip_is_over(struct stage_trip *t)
{
    pthread_mutex_lock(&t->r->lock);
    pump(t->r, 0);
    const bool over = t->err.status || t->n_done == t->n;
    pthread_mutex_unlock(&t->r->lock);
    return over;
}

void stage_trip_wait(struct stage_remote *r, int timeout_ms)
{
    pthread_mutex_lock(&r->lock);
    if (r->trip)
        pump(r, timeout_ms);
    pthread_mutex_unlock(&r->lock);
}

void stage_trip_land(struct stage_trip *t, const struct family *fam, const void *self)
{
    if (!t)
        return;
    struct device *d = t->f->device;
    const struct rows from = t->y;
    wait_for(t, 0, INT64_MAX);
    leave(t);
    if (t->err.status && t->commits) {
        pthread_mutex_lock(&t->r->lock);
        lose_ahead(t->r, t);
        pthread_mutex_unlock(&t->r->lock);
    }
    if (t->err.status)
        device_fail(d, &t->err);
    t->y = device_rows(d, from.n, from.width);
    if (device_runs(d)) {
        for (int64_t i = 0; i < from.n; i++)
            memcpy(t->y.at + i * t->y.stride, from.at + i * from.stride,
                   (size_t)from.width * sizeof(float));
        device_wrote_rows(d, t->y);
        call_taps(t);
    }
    compute_head(t, fam, self);
    give_trip(t);
}
