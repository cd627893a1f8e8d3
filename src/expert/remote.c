/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote - the tier over workers: experts are dealt, rows go out, what is here is computed, and
 * what came back is put in its place.
 *
 * An evaluation's y exists from its beginning, so that results that arrive while another evaluation
 * waits have where to go.  What was requested of a lost worker is computed here by the same tier as
 * the rest, and rows that had arrived are computed once more.
 */
#include "expert/away.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "expert/tiered.h"

#include <stdio.h>
#include <string.h>

static const uint64_t usual_late_ns = 10000000000;
enum { PROBE_EVERY = 256 };

/* ---- opening ---- */

static ingle_status add_worker(struct expert_remote *r, const char *address, struct err *err)
{
    struct worker *w = &r->worker[r->n_workers];
    struct link_address a;
    const ingle_status st = link_address_parse(address, false, &a, err);
    if (st)
        return st;
    if (strlen(address) >= sizeof w->address)
        return err_set(err, INGLE_ARG, "the address of a worker has %zu bytes, the limit is %zu",
                       strlen(address), sizeof w->address - 1);
    if (!link_is_built())
        return link_dial(&w->link, &(struct link_options){.address = address},
                         err); /* it says why */
    if (!r->o.key_file && !r->o.plain && !a.near)
        return err_set(err, INGLE_ARG,
                       "worker '%s' is beyond this host: a key is needed (--worker-key FILE), or "
                       "--worker-plain where the "
                       "network itself encrypts",
                       address);
    w->r = r;
    snprintf(w->address, sizeof w->address, "%s", address);
    w->n.address = w->address;
    w->missed_at = mem_calloc(r->n_layers * r->hello.n_experts, sizeof *w->missed_at);
    w->have = mem_calloc(1, link_have_bytes(&(struct link_shape){.n_layers = r->hello.n_layers,
                                                                 .n_experts = r->hello.n_experts}));
    r->n_workers++; /* it is released with the others */
    if (!w->missed_at || !w->have)
        return err_set(err, INGLE_NOMEM, "no memory for what worker '%s' has", address);
    return INGLE_OK;
}

static bool is_waited_for(const struct worker *w)
{
    return w->state == WORKER_DOWN || w->state == WORKER_CALLING || w->state == WORKER_GREETED;
}

/* Those that answer do so at once; one that does not fit is a mistake of whoever starts the
 * engine. */
static ingle_status greet_all(struct expert_remote *r, struct err *err)
{
    const uint64_t ms = r->o.greet_ms ? (uint64_t)r->o.greet_ms : 5000, start = clock_now();
    for (bool waits = true; waits && clock_now() - start < ms * 1000000;) {
        waits = false;
        for (int i = 0; i < r->n_workers; i++) {
            struct worker *w = &r->worker[i];
            expert_worker_poll(w, clock_now());
            if (is_waited_for(w))
                (void)expert_worker_receive(w, 20);
            waits = waits || is_waited_for(w);
        }
    }
    for (int i = 0; i < r->n_workers; i++) {
        struct worker *w = &r->worker[i];
        if (w->state == WORKER_REFUSED)
            return err_set(err, INGLE_UNSUP, "worker '%s' does not fit: %s", w->address,
                           w->n.trouble);
        if (w->state == WORKER_READY)
            continue;
        w->reported = true;
        report(r->o.sink, INGLE_REPORT_WARN, "worker", w->address,
               "it cannot be reached%s%s; it is tried again and again", w->n.trouble[0] ? ": " : "",
               w->n.trouble);
    }
    return INGLE_OK;
}

ingle_status expert_remote_open(struct expert_remote **out, struct model *m,
                                const struct expert_remote_options *o, struct err *err)
{
    if (o->n > EXPERT_WORKERS)
        return err_set(err, INGLE_ARG, "%d workers are more than %d", o->n, EXPERT_WORKERS);
    struct expert_remote *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_set(err, INGLE_NOMEM, "no memory for workers");
    pthread_mutex_init(&r->lock, NULL);
    r->o = *o;
    r->o.late_ns = o->late_ns ? o->late_ns : usual_late_ns;
    r->hello = *o->hello;
    r->model = m;
    r->shake = o->shake;
    r->n_layers = model_n_experts(m);
    r->last_layer = r->n_layers;
    r->layer = mem_calloc(r->n_layers, sizeof *r->layer);
    r->uses = mem_calloc(r->n_layers * r->hello.n_experts, sizeof *r->uses);
    r->placing = mem_calloc(r->n_layers * r->hello.n_experts, sizeof *r->placing);
    ingle_status st =
        r->layer && r->uses && r->placing
            ? INGLE_OK
            : err_set(err, INGLE_NOMEM, "no memory for the workers of %zu layers", r->n_layers);
    for (int i = 0; !st && i < o->n; i++)
        st = add_worker(r, o->address[i], err);
    if (!st)
        st = greet_all(r, err);
    for (size_t i = 0; !st && i < r->n_layers; i++) {
        struct model_experts *home = model_experts_at(m, i);
        r->layer[i] = (struct remote_layer){r, home, i};
        if (home->n == (int64_t)r->hello.n_experts)
            home->workers = &r->layer[i];
    }
    if (st)
        expert_remote_close(r);
    else
        *out = r;
    return st;
}

void expert_remote_close(struct expert_remote *r)
{
    if (!r)
        return;
    for (size_t i = 0; r->layer && i < r->n_layers; i++)
        if (r->layer[i].home)
            r->layer[i].home->workers = NULL;
    for (int i = 0; i < r->n_workers; i++) {
        link_close(r->worker[i].link);
        link_share_close(&r->worker[i].share);
        mem_free(r->worker[i].missed_at);
        mem_free(r->worker[i].have);
    }
    pthread_mutex_destroy(&r->lock);
    mem_free(r->layer);
    mem_free(r->uses);
    mem_free(r->placing);
    mem_free(r);
}

static void look(struct expert_remote *r)
{
    const uint64_t now = clock_now(), often = 5000000;
    const bool due = now - r->checked_ns >= often;
    for (int i = 0; i < r->n_workers; i++)
        if (due || r->worker[i].state == WORKER_READY)
            expert_worker_poll(&r->worker[i], now);
    if (due)
        r->checked_ns = now;
}

void expert_remote_tend(struct expert_remote *r)
{
    const uint64_t now = clock_now();
    look(r);
    for (int i = 0; i < r->n_workers; i++)
        if (r->worker[i].state == WORKER_READY)
            expert_worker_send_stats(&r->worker[i], now);
}

/* ---- dealing ---- */

static const struct remote_layer *layer_of(const struct expert_eval *v)
{
    return v->layer->home->workers;
}

static int32_t rows_of(const struct expert_eval *v, int64_t e)
{
    return v->choice.first[e + 1] - v->choice.first[e];
}

static uint64_t shake_next(struct expert_remote *r)
{
    r->shake ^= r->shake << 13;
    r->shake ^= r->shake >> 7;
    return r->shake ^= r->shake << 17;
}

/* It is there now, without a read. */
static bool is_here(const struct expert_eval *v, int64_t e)
{
    const struct store_layer *l = v->layer->home->keeper;
    if (!l || expert_own_has(l->class, l->first + e))
        return true;
    const int slot = l->class->slot_of[l->first + e];
    return slot >= 0 && l->store->slot[slot].state == SLOT_READY;
}

/* It said so; or it has computed it since, and an expert leaves after as many misses as there are
 * places, at the earliest. */
static bool is_there(const struct worker *w, const struct remote_layer *l, int64_t e)
{
    if (link_have_at(w->have, (size_t)l->home->layer * w->r->hello.n_experts + (size_t)e))
        return true;
    const uint64_t at = w->missed_at[l->index * w->r->hello.n_experts + (size_t)e];
    return at && w->n_missed + 1 - at < w->hello.slots;
}

/* Who may compute which expert, and who would have to read it first. */
static int64_t list_experts(struct expert_away *a)
{
    const struct expert_eval *v = a->v;
    int64_t n = 0;
    for (int64_t e = 0; e < v->layer->n; e++) {
        struct split_expert *x = &a->expert[n];
        if (!rows_of(v, e))
            continue;
        *x = (struct split_expert){split_units(rows_of(v, e)), 1u << SPLIT_HERE,
                                   is_here(v, e) ? 1u << SPLIT_HERE : 0};
        for (int k = 0; k < a->r->n_workers; k++) {
            const struct worker *w = &a->r->worker[k];
            if (w->state != WORKER_READY || !link_range_has(&w->hello.range, a->layer->home->layer))
                continue;
            x->may |= 1u << (1 + k);
            x->has |= is_there(w, a->layer, e) ? 1u << (1 + k) : 0;
        }
        n++;
    }
    return n;
}

static void list_costs(const struct expert_remote *r, int size, struct split_cost cost[SPLIT_ENDS])
{
    memset(cost, 0, SPLIT_ENDS * sizeof *cost);
    cost[SPLIT_HERE] = (struct split_cost){r->here_ns[size], r->here_miss_ns, 0};
    for (int k = 0; k < r->n_workers; k++)
        cost[1 + k] = (struct split_cost){r->worker[k].mean[size].unit_ns, r->worker[k].miss_ns,
                                          r->worker[k].mean[size].trip_ns};
}

/* An end that had nothing for long: its cost may be another one now. */
static int find_probe(const struct expert_remote *r)
{
    if (r->here_idle >= PROBE_EVERY)
        return SPLIT_HERE;
    for (int k = 0; k < r->n_workers; k++)
        if (r->worker[k].state == WORKER_READY && r->worker[k].idle >= PROBE_EVERY)
            return 1 + k;
    return -1;
}

static void deal_at_random(struct expert_away *a, int64_t n, int8_t *to)
{
    /* all to one */
    const int one =
        shake_next(a->r) % 4 == 0 ? (int)(shake_next(a->r) % (uint64_t)(1 + a->r->n_workers)) : -1;
    for (int64_t i = 0; i < n; i++) {
        int k = one >= 0 ? one : (int)(shake_next(a->r) % (uint64_t)(1 + a->r->n_workers));
        to[i] = (int8_t)(a->expert[i].may >> k & 1 ? k : SPLIT_HERE);
    }
}

/* A share that was requested, workers in turn. */
static void deal_share(const struct expert_away *a, int64_t n, int8_t *to)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = SPLIT_HERE;
        if ((i + 1) * a->r->o.share / 100 == i * a->r->o.share / 100)
            continue;
        for (int k = 0; to[i] == SPLIT_HERE && k < a->r->n_workers; k++) {
            const int turn = 1 + (int)((i + k) % a->r->n_workers);
            if (a->expert[i].may >> turn & 1)
                to[i] = (int8_t)turn;
        }
    }
}

/* owner [n] and skip [n]; false: all experts are computed here. */
static bool deal(struct expert_away *a)
{
    const struct expert_eval *v = a->v;
    struct split_cost cost[SPLIT_ENDS];
    bool used[SPLIT_ENDS] = {false};
    const int64_t n = list_experts(a);
    for (int64_t e = 0; e < v->layer->n; e++)
        a->r->uses[a->layer->index * a->r->hello.n_experts + (size_t)e] += (uint32_t)rows_of(v, e);
    list_costs(a->r, expert_split_size(v->x.n), cost);
    int8_t *to = (int8_t *)a->skip; /* of listed experts, until all have their owner */
    if (a->r->shake)
        deal_at_random(a, n, to);
    else if (a->r->o.share >= 0)
        deal_share(a, n, to);
    else
        expert_split_deal(cost, a->expert, n, find_probe(a->r), a->order, to);
    int64_t i = n;
    for (int64_t e = v->layer->n; e-- > 0;)
        if (rows_of(v, e)) {
            const struct split_expert x = a->expert[--i];
            const int8_t k = to[i];
            a->owner[e] = k;
            used[k] = true;
            if (k == SPLIT_HERE) {
                a->here_units += x.units;
                a->here_misses += !(x.has & 1u << SPLIT_HERE);
                a->r->here_experts++;
            }
        } else {
            a->owner[e] = SPLIT_HERE;
        }
    for (int64_t e = 0; e < v->layer->n; e++)
        a->skip[e] = a->owner[e] != SPLIT_HERE;
    a->r->here_idle = used[SPLIT_HERE] ? 0 : a->r->here_idle + 1;
    int away = 0;
    for (int k = 0; k < a->r->n_workers; k++) {
        a->r->worker[k].idle = used[1 + k] ? 0 : a->r->worker[k].idle + 1;
        away += used[1 + k];
    }
    a->sums = away == 1 && !used[SPLIT_HERE]; /* of all experts */
    return away > 0;
}

/* ---- pieces ---- */

static void add_piece(struct expert_away *a, const struct piece *p)
{
    if (a->n_pieces >= a->cap_pieces) { /* cannot be; what has no piece would never come */
        device_fail(a->v->d, &(struct err){INGLE_LIMIT,
                                           "an evaluation has too many pieces for its workers"});
        return;
    }
    a->piece[a->n_pieces++] = *p;
    a->n_open++;
}

/* All pairs of some rows each. */
static void cut_sums(struct expert_away *a, int k)
{
    const struct expert_eval *v = a->v;
    const struct link_shape *s = &a->r->worker[k].shape;
    const int64_t most = num_max(1, num_min(s->most_rows, s->most_pairs / v->choice.k));
    for (int64_t r = 0; r < v->x.n; r += most) {
        const int32_t n = (int32_t)num_min(most, v->x.n - r);
        add_piece(a, &(struct piece){.row0 = (int32_t)r,
                                     .n_rows = n,
                                     .n_pairs = (int32_t)(n * v->choice.k),
                                     .worker = (uint8_t)k,
                                     .units = 2 * n * v->choice.k});
    }
}

/* Pairs of its experts, as many as it takes at a time: rows are not more than pairs. */
static void cut_pairs(struct expert_away *a, int k)
{
    const struct expert_eval *v = a->v;
    const struct link_shape *s = &a->r->worker[k].shape;
    const int64_t most = num_min(s->most_rows, s->most_pairs);
    struct piece p = {.worker = (uint8_t)k};
    for (int64_t e = 0; e < v->layer->n; e++) {
        if (a->owner[e] != 1 + k)
            continue;
        for (int32_t i = v->choice.first[e]; i < v->choice.first[e + 1];) {
            if (!p.n_pairs) {
                p.expert = (int32_t)e;
                p.pair = i;
            }
            const int32_t n = (int32_t)num_min(most - p.n_pairs, v->choice.first[e + 1] - i);
            p.n_pairs += n;
            p.units += split_units(n);
            i += n;
            if (p.n_pairs == most) {
                add_piece(a, &p);
                p = (struct piece){.worker = (uint8_t)k};
            }
        }
    }
    if (p.n_pairs)
        add_piece(a, &p);
}

/* The next pair of a piece that began at expert *e, pair *i; the first call has them as the piece
 * says. */
static void settle(const struct expert_away *a, int k, int64_t *e, int32_t *i)
{
    const struct expert_eval *v = a->v;
    while (*e < v->layer->n && (a->owner[*e] != 1 + k || *i >= v->choice.first[*e + 1])) {
        ++*e;
        if (*e < v->layer->n)
            *i = v->choice.first[*e];
    }
}

/* ---- out ---- */

struct lists {
    uint8_t *row, *expert, *weight, *x;
    int64_t n_rows, n_pairs;
};

static void put_pair(struct expert_away *a, struct lists *to, int64_t e, int32_t row)
{
    if (a->map[row] < 0)
        a->map[row] = (int32_t)to->n_rows++;
    link_put_u32(to->row + 4 * (size_t)to->n_pairs, (uint32_t)a->map[row]);
    link_put_u32(to->expert + 4 * (size_t)to->n_pairs, (uint32_t)e);
    to->n_pairs++;
}

/* Rows of a piece, numbered in ascending order; returns how many. */
static int32_t number_rows(struct expert_away *a, const struct piece *p)
{
    const struct expert_eval *v = a->v;
    int32_t n = 0;
    for (int64_t r = 0; r < v->x.n; r++)
        a->map[r] = -1;
    int64_t e = p->expert;
    int32_t i = p->pair;
    for (int32_t k = 0; k < p->n_pairs; k++, i++) {
        settle(a, p->worker, &e, &i);
        a->map[v->choice.row[i]] = 0;
    }
    for (int64_t r = 0; r < v->x.n; r++)
        if (a->map[r] == 0)
            a->map[r] = n++;
    return n;
}

static void fill_pairs(struct expert_away *a, const struct piece *p, struct lists *to)
{
    const struct expert_eval *v = a->v;
    int64_t e = p->expert;
    int32_t i = p->pair;
    for (int32_t k = 0; k < p->n_pairs; k++, i++) {
        settle(a, p->worker, &e, &i);
        put_pair(a, to, e, v->choice.row[i]);
    }
    for (int64_t r = 0; r < v->x.n; r++)
        if (a->map[r] >= 0)
            memcpy(to->x + (size_t)a->map[r] * (size_t)v->x.width * sizeof(float),
                   v->x.at + r * v->x.stride, (size_t)v->x.width * sizeof(float));
}

static void fill_sums(struct expert_away *a, const struct piece *p, struct lists *to)
{
    const struct expert_eval *v = a->v;
    for (int64_t r = 0; r < v->x.n; r++)
        a->map[r] = r >= p->row0 && r < p->row0 + p->n_rows ? (int32_t)(r - p->row0) : -1;
    for (int64_t e = 0; e < v->layer->n; e++)
        for (int32_t i = v->choice.first[e]; i < v->choice.first[e + 1]; i++) {
            const int32_t row = v->choice.row[i];
            if (a->map[row] < 0)
                continue;
            for (int64_t c = 0; c < v->choice.k; c++)
                if (v->choice.slot[row * v->choice.k + c] == i)
                    memcpy(to->weight + 4 * (size_t)to->n_pairs,
                           &v->choice.weight[row * v->choice.k + c], sizeof(float));
            put_pair(a, to, e, row);
        }
    for (int32_t r = 0; r < p->n_rows; r++)
        memcpy(to->x + (size_t)r * (size_t)v->x.width * sizeof(float),
               v->x.at + (p->row0 + r) * v->x.stride, (size_t)v->x.width * sizeof(float));
}

/* A place in shared memory that a question of so many bytes, and its result, have; -1: they go
 * through the socket, which is faster for few. */
static int free_slot(const struct worker *w, const struct link_head *h, size_t n)
{
    const size_t back = link_result_bytes(h, &w->shape),
                 least = w->r->o.least_shared ? w->r->o.least_shared : 64 << 10;
    if (!w->shares || n > LINK_SHARE_PLACE || !back || back > LINK_SHARE_PLACE || n + back < least)
        return -1;
    bool used[LINK_SLOTS] = {false};
    for (int i = 0; i < w->n_asked; i++)
        if (w->asked[i].head.flags & LINK_SHARED)
            used[w->asked[i].slot] = true;
    for (int k = 0; k < LINK_SLOTS; k++)
        if (!used[k])
            return k;
    return -1;
}

static void send_piece(struct expert_away *a, int index)
{
    struct piece *p = &a->piece[index];
    struct worker *w = &a->r->worker[p->worker];
    const struct expert_eval *v = a->v;
    struct link_head h = {.kind = LINK_EVAL,
                          .layer = (uint32_t)a->layer->home->layer,
                          .n_pairs = (uint32_t)p->n_pairs,
                          .step = a->r->step,
                          .tag = ++a->r->tag,
                          .flags =
                              (a->sums ? LINK_SUM : 0u) | (v->act == DEVICE_SILU ? LINK_SILU : 0u)};
    struct link_out m;
    struct link_eval e;
    h.n_rows = (uint32_t)(a->sums ? p->n_rows : number_rows(a, p));
    const size_t n = link_eval_bytes(&h, &w->shape);
    const int slot = n ? free_slot(w, &h, n) : -1;
    if (!n || !link_out_take(w->link, &m, slot < 0 ? n : sizeof(uint64_t))) {
        expert_worker_lose(w, n ? "no memory for what it is asked"
                                : "what it is asked has too many bytes");
        return;
    }
    uint8_t *const at = slot < 0 ? m.payload : link_share_place(&w->share, slot, false);
    if (slot >= 0) {
        memcpy(m.payload, &(uint64_t){(uint64_t)slot}, sizeof(uint64_t));
        h.flags |= LINK_SHARED;
    }
    link_eval_begin(at, a->sums ? v->choice.k : 0, v->limit);
    link_eval_lay(&h, at, &e);
    struct lists to = {
        .row = at + (e.row - at), .expert = at + (e.expert - at), .x = at + (e.x - at)};
    to.weight = a->sums ? at + (e.weight - at) : NULL;
    if (a->sums)
        fill_sums(a, p, &to);
    else
        fill_pairs(a, p, &to);
    w->asked[w->n_asked] = (struct asked){.away = a,
                                          .piece = index,
                                          .was_idle = w->n_asked == 0,
                                          .slot = slot,
                                          .tag = h.tag,
                                          .sent_ns = clock_now(),
                                          .head = h};
    w->n_asked++;
    p->state = PIECE_SENT;
    w->n.evals++;
    w->n.pairs += h.n_pairs;
    w->n.sent_bytes += LINK_HEAD + n + (slot < 0 ? 0 : sizeof(uint64_t));
    w->n.shared += slot >= 0;
    if (!link_send(w->link, NULL, &h, &m))
        expert_worker_lose(w, "it takes nothing more");
}

/* What credits allow goes out; what its worker cannot get any more is lost. */
static void send_some(struct expert_away *a)
{
    for (int i = 0; i < a->n_pieces; i++) {
        struct piece *p = &a->piece[i];
        const struct worker *w = &a->r->worker[p->worker];
        if (p->state != PIECE_WAITS)
            continue;
        if (w->state != WORKER_READY) {
            p->state = PIECE_LOST;
            a->n_open--;
        } else if (w->n_asked < CREDITS) {
            send_piece(a, i);
        }
    }
}

/* ---- in ---- */

static void put_results(const struct expert_away *a, const struct piece *p, const uint8_t *y)
{
    const struct expert_eval *v = a->v;
    const size_t n = (size_t)v->y.width * sizeof(float);
    if (a->sums) {
        for (int32_t r = 0; r < p->n_rows; r++)
            memcpy(v->y.at + (p->row0 + r) * v->y.stride, y + (size_t)r * n, n);
        device_wrote_rows(v->d, rows_slice(v->y, p->row0, p->n_rows));
        return;
    }
    int64_t e = p->expert;
    int32_t i = p->pair;
    for (int32_t k = 0; k < p->n_pairs; k++, i++) {
        settle(a, p->worker, &e, &i);
        memcpy(v->y.at + i * v->y.stride, y + (size_t)k * n, n);
        device_wrote_rows(v->d, rows_slice(v->y, i, 1));
    }
}

/* Experts that it has computed are in its memory now. */
static void note_experts(struct worker *w, const struct expert_away *a, const struct piece *p)
{
    const size_t at = a->layer->index * w->r->hello.n_experts;
    for (int64_t e = 0; e < a->v->layer->n; e++)
        if (rows_of(a->v, e) && a->owner[e] == 1 + p->worker) {
            w->missed_at[at + (size_t)e] = 1 + w->n_missed;
            w->n.experts++;
        }
}

static void learn(struct worker *w, const struct asked *x, const struct piece *p,
                  const struct expert_eval *v, const struct link_result *res)
{
    const int size = expert_split_size(v->x.n);
    /* by its own clock: not to be trusted */
    const uint64_t all = clock_now() - x->sent_ns,
                   busy = res->compute_ns < all ? res->compute_ns : all;
    const uint64_t stall = res->stall_ns < busy ? res->stall_ns : busy;
    const double trip = (double)(all - busy);
    expert_split_learn(&w->mean[size].unit_ns, (double)(busy - stall) / (double)p->units);
    if (res->misses && res->misses <= (uint32_t)v->layer->n)
        expert_split_learn(&w->miss_ns, (double)stall / res->misses);
    /* What lay there for a while before anybody looked says only that it was not later. */
    if (x->was_idle && (x->waited || !(w->mean[size].trip_ns > 0) || trip < w->mean[size].trip_ns))
        expert_split_learn(&w->mean[size].trip_ns, trip);
    w->n_missed += res->misses <= (uint32_t)v->layer->n ? res->misses : 0;
    w->n.hits += res->hits;
    w->n.misses += res->misses;
    w->n.compute_ns += busy;
}

void expert_worker_answer(struct worker *w, const struct link_head *h, const uint8_t *payload,
                          size_t n)
{
    int i = 0;
    while (i < w->n_asked && w->asked[i].tag != h->tag)
        i++;
    if (i == w->n_asked) {
        expert_worker_lose(w, "it answers a question that was not sent");
        return;
    }
    const struct asked x = w->asked[i];
    const bool same =
        h->kind == LINK_FAIL ||
        (h->layer == x.head.layer && h->n_rows == x.head.n_rows && h->n_pairs == x.head.n_pairs &&
         h->flags == x.head.flags && h->step == x.head.step);
    struct link_result res;
    struct err err;
    int slot = x.slot;
    /* what it says there is read once; rows are what it says they are */
    if (same && h->kind == LINK_RESULT && (h->flags & LINK_SHARED)) {
        if (link_share_slot(payload, n, &slot, &err) || slot != x.slot) {
            expert_worker_lose(w, "a result lies in another place than its question");
            return;
        }
        payload = link_share_place(&w->share, slot, true);
        n = link_result_bytes(h, &w->shape);
        w->n.received_bytes += n;
    }
    if (!same ||
        (h->kind == LINK_RESULT && link_result_read(h, &w->shape, payload, n, &res, &err))) {
        expert_worker_lose(w, same ? err.msg : "a result has another head than its question");
        return;
    }
    w->asked[i] = w->asked[--w->n_asked];
    if (!x.away)
        return;
    struct piece *p = &x.away->piece[x.piece];
    x.away->n_open--;
    p->state = h->kind == LINK_RESULT ? PIECE_DONE : PIECE_LOST;
    if (h->kind == LINK_FAIL) {
        char text[LINK_MAX_TEXT + 1];
        link_fail_text(payload, n, text);
        if (strncmp(w->n.trouble, text, sizeof w->n.trouble - 1) != 0)
            report(w->r->o.sink, INGLE_REPORT_WARN, "worker-failed", w->address,
                   "%s: computed here instead", text);
        snprintf(w->n.trouble, sizeof w->n.trouble, "%.239s", text);
        return;
    }
    w->n.trouble[0] = 0;
    put_results(x.away, p, res.y);
    learn(w, &x, p, x.away->v, &res);
    note_experts(w, x.away, p);
}

/* ---- an evaluation ---- */

static struct expert_away *new_away(struct expert_eval *v)
{
    const int64_t n = v->layer->n, n_pairs = v->x.n * v->choice.k;
    const struct expert_away a = {
        .r = layer_of(v)->r,
        .v = v,
        .layer = layer_of(v),
        .owner = device_bytes(v->d, (size_t)n),
        .skip = device_bytes(v->d, (size_t)n),
        .map = device_bytes(v->d, (size_t)v->x.n * sizeof(int32_t)),
        .expert = device_bytes(v->d, (size_t)n * sizeof(struct split_expert)),
        .order = device_bytes(v->d, (size_t)n * sizeof(int32_t)),
        /* of sums a row each, at most */
        .cap_pieces = (int)(n_pairs / LEAST_PAIRS + v->x.n + EXPERT_WORKERS + 1),
    };
    struct piece *piece = device_bytes(v->d, (size_t)a.cap_pieces * sizeof *piece);
    struct expert_away *out = device_bytes(v->d, sizeof *out);
    v->y = device_rows(v->d, n_pairs, v->out.width);
    /* what the tier here takes a second time, and what it skips */
    (void)device_bytes(v->d, 3 * (size_t)n + 256);
    if (!device_runs(v->d))
        return NULL;
    *out = a;
    out->piece = piece;
    return out;
}

static void count_step(struct expert_remote *r, size_t layer)
{
    r->step += layer <= r->last_layer;
    r->last_layer = layer;
}

static void remote_begin(struct expert_eval *v)
{
    const struct expert_tier *here = expert_tier_here(v->layer);
    struct expert_away *a = new_away(v);
    v->away = a;
    if (a) {
        expert_eval_read(v);
        device_read_rows(v->d, v->x);
        count_step(a->r, a->layer->index);
        look(a->r);
        if (deal(a)) {
            v->skip = a->skip;
            for (int k = 0; k < a->r->n_workers; k++)
                if (a->sums && a->owner[v->choice.id[0]] == 1 + k)
                    cut_sums(a, k);
                else if (!a->sums)
                    cut_pairs(a, k);
            send_some(a);
        }
    }
    if (here->begin)
        here->begin(v);
}

static void compute_here(struct expert_away *a, const struct expert_tier *here, struct rows y)
{
    struct expert_eval *v = a->v;
    struct expert_remote *r = a->r;
    const struct store_layer *l = v->layer->home->keeper;
    const uint64_t start = clock_now(), stalled = l ? l->n.stall_ns : 0;
    here->end(v, y);
    const uint64_t ns = clock_now() - start, stall = l ? l->n.stall_ns - stalled : 0;
    if (!a->here_units || !device_runs(v->d))
        return;
    expert_split_learn(&r->here_ns[expert_split_size(v->x.n)],
                       (double)(ns - (stall < ns ? stall : ns)) / (double)a->here_units);
    if (a->here_misses)
        expert_split_learn(&r->here_miss_ns, (double)stall / (double)a->here_misses);
}

/* So long a worker may take for what it has. */
static uint64_t late_of(const struct expert_remote *r, const struct worker *w,
                        const struct expert_eval *v)
{
    const double usual = 10 * w->mean[expert_split_size(v->x.n)].unit_ns *
                         (double)(split_units(0) * v->x.n * v->choice.k);
    return usual > (double)r->o.late_ns && usual < 1e12 ? (uint64_t)usual : r->o.late_ns;
}

/* Takes in what w has sent.  False: there was nothing, and no answer of it is late. */
static bool receive_or_lose(struct worker *w, const struct expert_eval *v)
{
    if (expert_worker_receive(w, 0))
        return true;
    const uint64_t now = clock_now(), late = late_of(w->r, w, v);
    for (int i = 0; i < w->n_asked; i++) {
        w->asked[i].waited = true;
        if (now - w->asked[i].sent_ns > late) {
            expert_worker_lose(w, "a result is late");
            return true;
        }
    }
    return false;
}

/* Until everything has come or is lost. */
static void wait_all(struct expert_away *a)
{
    enum { TURN_MS = 20 }; /* a step can be cancelled */
    struct expert_remote *r = a->r;
    while (a->n_open > 0 && device_runs(a->v->d)) {
        struct link *waits[EXPERT_WORKERS] = {NULL};
        bool received = false;
        send_some(a);
        for (int k = 0; k < r->n_workers; k++) {
            struct worker *w = &r->worker[k];
            if (w->state != WORKER_READY || !w->n_asked)
                continue;
            received = receive_or_lose(w, a->v) || received;
            waits[k] = w->link;
        }
        if (received || !a->n_open)
            continue;
        const uint64_t before = clock_now();
        link_sleep(waits, r->n_workers, TURN_MS);
        for (int k = 0; k < r->n_workers; k++)
            r->worker[k].n.wait_ns += waits[k] ? clock_now() - before : 0;
    }
}

/* Nobody writes into this evaluation's rows any more. */
static void forget(const struct expert_away *a)
{
    for (int k = 0; k < a->r->n_workers; k++)
        for (int i = 0; i < a->r->worker[k].n_asked; i++)
            if (a->r->worker[k].asked[i].away == a) {
                a->r->worker[k].asked[i].away = NULL;
                expert_worker_cancel(&a->r->worker[k], a->r->worker[k].asked[i].tag);
            }
}

/* Experts of which a piece is lost are computed here, all rows of them; of sums all experts. */
static void redo_lost(struct expert_away *a, const struct expert_tier *here, struct rows y)
{
    struct expert_eval *v = a->v;
    bool lost = false;
    memset(a->skip, 1, (size_t)v->layer->n);
    for (int k = 0; k < a->n_pieces; k++) {
        const struct piece *p = &a->piece[k];
        if (p->state == PIECE_DONE)
            continue;
        lost = true;
        if (a->sums) {
            memset(a->skip, 0, (size_t)v->layer->n);
            continue;
        }
        int64_t e = p->expert;
        int32_t i = p->pair;
        for (int32_t n = 0; n < p->n_pairs; n++, i++) {
            settle(a, p->worker, &e, &i);
            a->skip[e] = 0;
        }
    }
    if (!lost)
        return;
    for (int64_t e = 0; e < v->layer->n; e++)
        if (rows_of(v, e) && !a->skip[e])
            a->r->worker[a->owner[e] - 1].n.redone++;
    a->sums = false;
    v->skip = a->skip;
    if (here->begin)
        here->begin(v);
    here->end(v, y);
}

static void remote_end(struct expert_eval *v, struct rows y)
{
    const struct expert_tier *here = expert_tier_here(v->layer);
    struct expert_away *a = v->away;
    if (!a) { /* a dry run, or a step that ended before */
        here->end(v, y);
        return;
    }
    compute_here(a, here, y);
    if (device_runs(v->d))
        wait_all(a);
    forget(a);
    if (device_runs(v->d))
        redo_lost(a, here, y);
    v->summed = a->n_pieces > 0 && a->sums;
    for (int k = 0; k < a->r->n_workers; k++)
        expert_worker_show(&a->r->worker[k]);
}

const struct expert_tier expert_remote = {
    .name = "remote", .begin = remote_begin, .end = remote_end};

/* ---- counts ---- */

void expert_worker_show(struct worker *w)
{
    struct expert_remote *r = w->r;
    const double units = (double)split_units(1);
    w->n.unit_us = w->mean[0].unit_ns * units * 1e-3;
    w->n.trip_us = w->mean[0].trip_ns * 1e-3;
    w->n.here_us = r->here_ns[0] * units * 1e-3;
    pthread_mutex_lock(&r->lock);
    w->shown = w->n;
    r->here_shown = r->here_experts;
    pthread_mutex_unlock(&r->lock);
}

int expert_remote_n(const struct expert_remote *r)
{
    return r ? r->n_workers : 0;
}

void expert_remote_count(struct expert_remote *r, int i, struct expert_worker_counts *out)
{
    pthread_mutex_lock(&r->lock);
    *out = r->worker[i].shown;
    pthread_mutex_unlock(&r->lock);
    out->address = r->worker[i].address;
}

uint64_t expert_remote_here(struct expert_remote *r)
{
    pthread_mutex_lock(&r->lock);
    const uint64_t n = r->here_shown;
    pthread_mutex_unlock(&r->lock);
    return n;
}
