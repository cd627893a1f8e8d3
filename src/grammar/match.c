/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/match.h"

#include "base/clock.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

bool grammar_match_fail(struct grammar_matcher *m, ingle_status st, const char *what)
{
    if (m->status == INGLE_OK)
        m->status = err_set(m->err, st, "%s", what);
    return false;
}

static bool nomem(struct grammar_matcher *m)
{
    return grammar_match_fail(m, INGLE_NOMEM, "no memory for the states of a grammar");
}

/* ---- limits ---- */

static size_t n_bytes(const struct grammar_matcher *m)
{
    const size_t state = sizeof *m->states + (m->g->n_classes + 4) * sizeof(uint32_t);
    return m->n_items * sizeof *m->item + m->n_states * state +
           m->n_frames * (sizeof *m->frame + 4 * sizeof(uint32_t));
}

bool grammar_match_large(const struct grammar_matcher *m)
{
    return m->n_states > GRAMMAR_MAX_STATES || m->n_frames > GRAMMAR_MAX_FRAMES ||
           n_bytes(m) > GRAMMAR_MAX_BYTES / 2;
}

void grammar_match_check(struct grammar_matcher *m)
{
    enum { CHECK_STEPS = 1 << 12 };
    const struct grammar_pause *p = m->pause;
    m->check_at = m->n_steps + CHECK_STEPS;
    if (m->spent + m->n_steps > GRAMMAR_MAX_STEPS)
        grammar_match_fail(m, INGLE_LIMIT,
                           "the grammar is too ambiguous here: a token costs too many steps");
    else if (n_bytes(m) > GRAMMAR_MAX_BYTES)
        grammar_match_fail(
            m, INGLE_LIMIT,
            "the grammar is too ambiguous here: its states need more than the limit of 64 MiB");
    else if (p && ((p->max_steps && m->n_steps > p->max_steps) || (p->stop && p->stop(p->arg))))
        grammar_match_fail(m, INGLE_CANCEL, "the tokens that fit are not known yet");
}

/* Room for n; large tables grow by steps, not twofold. */
static bool room(void *at, size_t *cap, size_t n, size_t size)
{
    enum { LARGE = 8 << 20 };
    void *p;
    if (n <= *cap)
        return true;
    if (*cap * size < LARGE)
        return mem_grow(at, cap, n, size);
    const size_t more = n > *cap + LARGE / size ? n : *cap + LARGE / size;
    memcpy(&p, at, sizeof p);
    p = mem_realloc(p, more, size);
    if (!p)
        return false;
    memcpy(at, &p, sizeof p);
    *cap = more;
    return true;
}

/* ---- tables ---- */

static uint32_t mix(uint32_t h, uint32_t x)
{
    h = (h ^ x) * 0x9E3779B1u;
    return h ^ h >> 15;
}

/* Two items collide by chance alone, whatever they are: sums of products with secret odd numbers,
 * of which the upper half counts. */
static uint32_t hash_item(const struct grammar_matcher *m, const struct match_item *x)
{
    const uint64_t *k = m->secret;
    const uint64_t h = k[0] * x->node + k[1] * x->count + k[2] * x->frame + k[3];
    return (uint32_t)(h >> 32);
}

static bool same_item(const struct match_item *a, const struct match_item *b)
{
    return a->node == b->node && a->count == b->count && a->frame == b->frame;
}

/* Room for one more; hash_of(m, i) is the hash of number i. */
static bool table_room(struct grammar_matcher *m, struct match_table *t,
                       uint32_t (*hash_of)(const struct grammar_matcher *, uint32_t))
{
    if (2 * (t->n + 1) <= t->n_slots)
        return true;
    const size_t n = t->n_slots ? 2 * t->n_slots : 64;
    uint32_t *slot = mem_calloc(n, sizeof *slot);
    if (!slot)
        return nomem(m);
    for (size_t i = 0; i < t->n_slots; i++) {
        if (!t->slot[i])
            continue;
        size_t at = hash_of(m, t->slot[i] - 1) & (n - 1);
        while (slot[at])
            at = (at + 1) & (n - 1);
        slot[at] = t->slot[i];
    }
    mem_free(t->slot);
    t->slot = slot;
    t->n_slots = n;
    return true;
}

static void table_clear(struct match_table *t)
{
    if (t->n)
        memset(t->slot, 0, t->n_slots * sizeof *t->slot);
    t->n = 0;
}

static uint32_t frame_hash(const struct grammar_matcher *m, uint32_t i)
{
    return hash_item(m, &m->frame[i].next);
}

static uint32_t done_hash(const struct grammar_matcher *m, uint32_t i)
{
    return hash_item(m, &m->done[i]);
}

static uint32_t state_hash(const struct grammar_matcher *m, uint32_t i)
{
    return m->states[i].hash;
}

/* The frame that goes on at next.  0 after a failure. */
static uint32_t frame_of(struct grammar_matcher *m, const struct match_item *next)
{
    struct match_table *t = &m->frame_table;
    if (!table_room(m, t, frame_hash))
        return 0;
    size_t at = hash_item(m, next) & (t->n_slots - 1);
    for (; t->slot[at]; at = (at + 1) & (t->n_slots - 1))
        if (same_item(&m->frame[t->slot[at] - 1].next, next))
            return t->slot[at] - 1;
    if (m->n_frames == 2 * GRAMMAR_MAX_FRAMES) {
        grammar_match_fail(
            m, INGLE_LIMIT,
            "the grammar is too ambiguous here: its rules are entered in too many ways");
        return 0;
    }
    if (!room(&m->frame, &m->cap_frames, m->n_frames + 1, sizeof *m->frame)) {
        nomem(m);
        return 0;
    }
    m->frame[m->n_frames] = (struct match_frame){
        .next = *next, .depth = m->frame[next->frame].depth + 1, .after = MATCH_UNKNOWN};
    t->slot[at] = (uint32_t)m->n_frames + 1;
    t->n++;
    return (uint32_t)m->n_frames++;
}

/* ---- closures ---- */

static void todo(struct grammar_matcher *m, uint32_t node, uint32_t count, uint32_t frame)
{
    if (m->g->node[node].dead)
        return;
    if (!room(&m->todo, &m->cap_todo, m->n_todo + 1, sizeof *m->todo))
        nomem(m);
    else
        m->todo[m->n_todo++] = (struct match_item){node, count, frame};
}

/* False: it was seen before. */
static bool see(struct grammar_matcher *m, const struct match_item *x)
{
    struct match_table *t = &m->done_table;
    if (!table_room(m, t, done_hash))
        return false;
    size_t at = hash_item(m, x) & (t->n_slots - 1);
    for (; t->slot[at]; at = (at + 1) & (t->n_slots - 1))
        if (same_item(&m->done[t->slot[at] - 1], x))
            return false;
    if (m->n_done == 4 * GRAMMAR_MAX_ITEMS)
        return grammar_match_fail(
            m, INGLE_LIMIT,
            "the grammar is too ambiguous here: a text can be read in too many ways");
    if (!room(&m->done, &m->cap_done, m->n_done + 1, sizeof *m->done))
        return nomem(m);
    m->done[m->n_done] = *x;
    t->slot[at] = (uint32_t)++m->n_done;
    t->n++;
    return true;
}

static void expand_call(struct grammar_matcher *m, const struct match_item *x)
{
    const struct grammar_node *n = &m->g->node[x->node];
    const struct match_item next = {n->a, x->count, x->frame};
    uint32_t frame = x->frame;
    if (n->a != 0) { /* the last call of a rule needs no frame of its own */
        if (m->frame[frame].depth >= GRAMMAR_MAX_DEPTH) {
            m->too_deep = true;
            return;
        }
        frame = frame_of(m, &next);
    }
    todo(m, m->g->rule[n->b].start, 0, frame);
}

static void expand_count(struct grammar_matcher *m, const struct match_item *x)
{
    const struct grammar_node *n = &m->g->node[x->node];
    const struct grammar_rule *r = &m->g->rule[n->rule];
    uint32_t count = x->count + 1;
    if (x->count >= MATCH_NEAR) {
        count = x->count == MATCH_FAR || x->count == MATCH_NEAR ? x->count : x->count - 1;
        todo(m, n->a, count, x->frame);
        return;
    }
    if (r->max == GRAMMAR_INFINITE && count > r->min)
        count = r->min;
    if (count <= r->max)
        todo(m, n->a, count, x->frame);
}

static uint32_t n_bits(uint32_t x)
{
    return (uint32_t)__builtin_popcount(x);
}

/* Follows what needs no byte.  True: *x stays, it reads one. */
static bool expand(struct grammar_matcher *m, const struct match_item *x, bool *may_end)
{
    const struct grammar_node *n = &m->g->node[x->node];
    switch ((enum grammar_kind)n->kind) {
    case GRAMMAR_BYTES:
    case GRAMMAR_TOKEN:
        return true;
    case GRAMMAR_END:
        if (x->frame > MATCH_BOTTOM) {
            const struct match_item next = m->frame[x->frame].next;
            todo(m, next.node, next.count, next.frame);
        } else {
            *may_end = true;
        }
        break;
    case GRAMMAR_SPLIT:
        todo(m, n->b, x->count, x->frame);
        todo(m, n->a, x->count, x->frame);
        break;
    case GRAMMAR_LOOP: {
        const struct grammar_rule *r = &m->g->rule[n->rule];
        const bool real = x->count < MATCH_NEAR;
        if (real ? x->count >= r->min : x->count == MATCH_NEAR)
            todo(m, n->b, x->count, x->frame);
        if (!real || x->count < r->max)
            todo(m, n->a, x->count, x->frame);
        break;
    }
    case GRAMMAR_CALL:
        expand_call(m, x);
        break;
    case GRAMMAR_COUNT:
        expand_count(m, x);
        break;
    case GRAMMAR_ONCE:
        if (!(x->count >> (n->b & 31) & 1) && (!(n->b >> 8) || n_bits(x->count) < n->b >> 8))
            todo(m, n->a, x->count | (uint32_t)1 << (n->b & 31), x->frame);
        break;
    case GRAMMAR_LEAST:
        if (n_bits(x->count) >= n->b)
            todo(m, n->a, x->count, x->frame);
        break;
    case GRAMMAR_ALL:
        if ((x->count & n->b) == n->b)
            todo(m, n->a, x->count, x->frame);
        break;
    case GRAMMAR_JUMP:
        todo(m, n->a, x->count, x->frame);
        break;
    }
    return false;
}

static int by_place(const void *a, const void *b)
{
    const struct match_item *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    return (x->frame > y->frame) - (x->frame < y->frame);
}

/* The number of the state with items [first, first + n) at the end of m->item, which are
 * taken back if the state is known. */
static uint32_t state_of(struct grammar_matcher *m, size_t first, bool may_end)
{
    struct match_table *t = &m->state_table;
    const size_t n = m->n_items - first;
    const struct match_item *item = m->item + first;
    uint32_t hash = may_end;
    if (!n && !may_end)
        return MATCH_DEAD;
    for (size_t i = 0; i < n; i++)
        hash = mix(hash, hash_item(m, &item[i]));
    if (m->status || !table_room(m, t, state_hash))
        return MATCH_DEAD;
    size_t at = hash & (t->n_slots - 1);
    for (; t->slot[at]; at = (at + 1) & (t->n_slots - 1)) {
        const struct match_state *s = &m->states[t->slot[at] - 1];
        if (s->hash == hash && s->n == n && s->may_end == may_end &&
            memcmp(m->item + s->first, item, n * sizeof *item) == 0) {
            m->n_items = first;
            return t->slot[at] - 1;
        }
    }
    const size_t n_classes = m->g->n_classes;
    if (m->n_states == 4 * GRAMMAR_MAX_STATES) {
        grammar_match_fail(m, INGLE_LIMIT,
                           "the grammar is too ambiguous here: too many states follow");
        return MATCH_DEAD;
    }
    if (!room(&m->states, &m->cap_states, m->n_states + 1, sizeof *m->states) ||
        !room(&m->trans, &m->cap_trans, (m->n_states + 1) * n_classes, sizeof *m->trans)) {
        nomem(m);
        return MATCH_DEAD;
    }
    m->states[m->n_states] = (struct match_state){.first = (uint32_t)first,
                                                  .n = (uint32_t)n,
                                                  .hash = hash,
                                                  .plain = MATCH_UNKNOWN,
                                                  .may_end = may_end};
    memset(m->trans + m->n_states * n_classes, 0xFF, n_classes * sizeof *m->trans);
    t->slot[at] = (uint32_t)m->n_states + 1;
    t->n++;
    return (uint32_t)m->n_states++;
}

/* The state of what waits. */
static uint32_t close_todo(struct grammar_matcher *m)
{
    const size_t first = m->n_items;
    bool may_end = false;
    m->n_done = 0;
    table_clear(&m->done_table);
    while (m->n_todo && !m->status) {
        const struct match_item x = m->todo[--m->n_todo];
        grammar_match_count(m, 1);
        if (!see(m, &x) || !expand(m, &x, &may_end))
            continue;
        if (m->n_items - first == GRAMMAR_MAX_ITEMS) {
            grammar_match_fail(m, INGLE_LIMIT,
                               "the grammar is too ambiguous here: a state has too many items");
        } else if (!room(&m->item, &m->cap_items, m->n_items + 1, sizeof *m->item)) {
            nomem(m);
        } else {
            m->item[m->n_items++] = x;
        }
    }
    m->n_todo = 0;
    if (m->status) {
        m->n_items = first;
        return MATCH_DEAD;
    }
    if (m->n_items - first > 1)
        qsort(m->item + first, m->n_items - first, sizeof *m->item, by_place);
    return state_of(m, first, may_end);
}

uint32_t grammar_match_start(struct grammar_matcher *m)
{
    todo(m, m->g->rule[m->g->root].start, 0, 0);
    return close_todo(m);
}

uint32_t grammar_match_step(struct grammar_matcher *m, uint32_t state, uint8_t byte)
{
    const uint32_t k = m->g->class_of[byte];
    const size_t at = state * (size_t)m->g->n_classes + k;
    uint32_t to = m->trans[at];
    if (to != MATCH_UNKNOWN)
        return to;
    const struct match_state s = m->states[state];
    for (uint32_t i = 0; i < s.n; i++) {
        const struct match_item x = m->item[s.first + i];
        const struct grammar_node *n = &m->g->node[x.node];
        if (n->kind == GRAMMAR_BYTES && grammar_has(&m->g->set[n->b], m->g->sample[k]))
            todo(m, n->a, x.count, x.frame);
    }
    to = close_todo(m);
    if (!m->status)
        m->trans[at] = to;
    return to;
}

uint32_t grammar_match_token(struct grammar_matcher *m, uint32_t state, int32_t token)
{
    const struct match_state s = m->states[state];
    for (uint32_t i = 0; i < s.n; i++) {
        const struct match_item x = m->item[s.first + i];
        const struct grammar_node *n = &m->g->node[x.node];
        if (n->kind == GRAMMAR_TOKEN && n->b == (uint32_t)token)
            todo(m, n->a, x.count, x.frame);
    }
    return close_todo(m);
}

uint32_t grammar_match_after(struct grammar_matcher *m, uint32_t frame)
{
    if (m->frame[frame].after == MATCH_UNKNOWN) {
        const struct match_item next = m->frame[frame].next;
        todo(m, next.node, next.count, next.frame);
        const uint32_t after = close_todo(m);
        if (m->status)
            return MATCH_DEAD;
        m->frame[frame].after = after;
    }
    return m->frame[frame].after;
}

/* ---- for masks ---- */

/* Whether every well-formed character of more than one byte leads from s to s. */
static bool loops_on_utf8(struct grammar_matcher *m, uint32_t s)
{
    /* Lead bytes, and the borders of the second byte. */
    static const struct {
        uint8_t first, last, low, high, rest;
    } form[] = {{0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1},
                {0xE1, 0xEC, 0x80, 0xBF, 1}, {0xED, 0xED, 0x80, 0x9F, 1},
                {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
                {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};
    for (size_t f = 0; f < sizeof form / sizeof *form; f++)
        for (unsigned lead = form[f].first; lead <= form[f].last; lead++) {
            uint32_t at = grammar_match_step(m, s, (uint8_t)lead);
            for (int k = 0; k <= form[f].rest; k++) {
                const unsigned low = k ? 0x80 : form[f].low, high = k ? 0xBF : form[f].high;
                const uint32_t to = grammar_match_step(m, at, (uint8_t)low);
                for (unsigned c = low; c <= high; c++)
                    if (grammar_match_step(m, at, (uint8_t)c) != to)
                        return false;
                at = to;
            }
            if (at != s)
                return false;
        }
    return true;
}

uint32_t grammar_match_groups(struct grammar_matcher *m, uint32_t state)
{
    enum { FIRST_VISITS = 8 };
    struct match_state *s = &m->states[state];
    if (s->known)
        return s->groups;
    if (s->visits++ < FIRST_VISITS)
        return 0;
    uint32_t leave = (uint32_t)1 << GRAMMAR_GROUP_PART;
    for (unsigned c = 0; c < 128; c++)
        if (grammar_match_step(m, state, (uint8_t)c) != state)
            leave |= (uint32_t)1 << grammar_g_group[c];
    if (!loops_on_utf8(m, state))
        leave |= (uint32_t)1 << GRAMMAR_GROUP_UTF8;
    s = &m->states[state]; /* may have moved */
    if (m->status)
        return 0;
    s->known = true;
    s->groups = ~leave;
    return s->groups;
}

uint32_t grammar_match_common(struct grammar_matcher *m, uint32_t state)
{
    const struct match_state *s = &m->states[state];
    if (s->may_end || !s->n)
        return 0;
    uint32_t f = m->item[s->first].frame;
    for (uint32_t i = 1; i < s->n; i++) {
        uint32_t o = m->item[s->first + i].frame;
        while (o != f) {
            if (m->frame[o].depth >= m->frame[f].depth)
                o = m->frame[o].next.frame;
            else
                f = m->frame[f].next.frame;
        }
    }
    f = m->frame[f].next.frame; /* a step further out there are fewer ends to look at */
    while (m->frame[f].depth >= MATCH_HALF)
        f = m->frame[f].next.frame;
    return f;
}

static uint32_t plain_count(const struct grammar_matcher *m, uint32_t node, uint32_t count,
                            uint32_t n_bytes)
{
    const struct grammar_rule *r = &m->g->rule[m->g->node[node].rule];
    const bool counted = r->min > 0 || r->max > 0;
    if (!counted || (r->max != GRAMMAR_INFINITE && r->max - count <= n_bytes))
        return count;
    if (count >= r->min)
        return MATCH_NEAR;
    return r->min - count > n_bytes ? MATCH_FAR : MATCH_NEAR + (r->min - count);
}

/* The frame with what is after base cut off.  Frames nest up to GRAMMAR_MAX_DEPTH deep. */
static uint32_t plain_frame(struct grammar_matcher *m, uint32_t frame, uint32_t base,
                            uint32_t n_bytes)
{
    if (frame == base)
        return base ? MATCH_BOTTOM : 0;
    if (frame <= MATCH_BOTTOM)
        return frame;
    struct match_item next = m->frame[frame].next;
    next.frame = plain_frame(m, next.frame, base, n_bytes);
    next.count = plain_count(m, next.node, next.count, n_bytes);
    return frame_of(m, &next);
}

uint32_t grammar_match_plain(struct grammar_matcher *m, uint32_t state, uint32_t base,
                             uint32_t n_bytes)
{
    const struct match_state s = m->states[state];
    const size_t first = m->n_items;
    grammar_match_count(m, s.n);
    if (m->status)
        return MATCH_DEAD;
    if (!room(&m->item, &m->cap_items, first + s.n, sizeof *m->item)) {
        nomem(m);
        return MATCH_DEAD;
    }
    for (uint32_t i = 0; i < s.n; i++) {
        struct match_item x = m->item[s.first + i];
        x.frame = plain_frame(m, x.frame, base, n_bytes);
        x.count = plain_count(m, x.node, x.count, n_bytes);
        m->item[m->n_items++] = x;
    }
    struct match_item *item = m->item + first;
    if (s.n > 1)
        qsort(item, s.n, sizeof *item, by_place);
    size_t n = 0;
    for (uint32_t i = 0; i < s.n; i++)
        if (!n || !same_item(&item[n - 1], &item[i]))
            item[n++] = item[i];
    m->n_items = first + n;
    return state_of(m, first, s.may_end);
}

/* ---- life ---- */

static void forget(struct grammar_matcher *m)
{
    m->fresh = true;
    m->n_items = m->n_states = m->n_frames = 0;
    table_clear(&m->state_table);
    table_clear(&m->frame_table);
    for (size_t i = 0; i < MATCH_N_MASKS; i++)
        m->mask[i].state = MATCH_DEAD;
}

/* State 0, frames 0 and 1. */
static bool begin(struct grammar_matcher *m)
{
    const size_t n_classes = m->g->n_classes;
    if (!room(&m->frame, &m->cap_frames, 2, sizeof *m->frame) ||
        !room(&m->states, &m->cap_states, 1, sizeof *m->states) ||
        !room(&m->item, &m->cap_items, 1, sizeof *m->item) ||
        !room(&m->trans, &m->cap_trans, n_classes, sizeof *m->trans))
        return nomem(m);
    m->frame[0] = (struct match_frame){.after = MATCH_DEAD};
    m->frame[MATCH_BOTTOM] = (struct match_frame){.depth = MATCH_HALF, .after = MATCH_DEAD};
    m->states[0] = (struct match_state){.known = true};
    memset(m->trans, 0, n_classes * sizeof *m->trans);
    m->n_frames = 2;
    m->n_states = 1;
    return true;
}

/* A frame in the new tables that was `frame` in the old ones. */
static uint32_t move_frame(struct grammar_matcher *m, const struct match_frame *old, uint32_t frame)
{
    if (frame <= MATCH_BOTTOM)
        return frame;
    struct match_item next = old[frame].next;
    next.frame = move_frame(m, old, next.frame);
    return frame_of(m, &next);
}

void grammar_match_trim(struct grammar_matcher *m)
{
    const struct match_state s = m->states[m->state];
    struct match_frame *old = m->frame;
    struct match_item *item = mem_calloc(s.n + 1, sizeof *item);
    if (!item) {
        nomem(m);
        return;
    }
    if (s.n)
        memcpy(item, m->item + s.first, s.n * sizeof *item);
    m->frame = NULL;
    m->cap_frames = 0;
    forget(m);
    if (begin(m) && room(&m->item, &m->cap_items, s.n + 1, sizeof *m->item)) {
        for (uint32_t i = 0; i < s.n; i++) {
            item[i].frame = move_frame(m, old, item[i].frame);
            m->item[m->n_items++] = item[i];
        }
        if (s.n > 1)
            qsort(m->item, s.n, sizeof *m->item, by_place);
        m->state = state_of(m, 0, s.may_end);
    } else {
        nomem(m);
    }
    mem_free(old);
    mem_free(item);
}

static void make_secret(uint64_t secret[4])
{
    if (getrandom(secret, 4 * sizeof *secret, GRND_NONBLOCK) != (ssize_t)(4 * sizeof *secret))
        for (size_t i = 0; i < 4; i++)
            secret[i] = (clock_now() + (uintptr_t)secret) * (0x9E3779B97F4A7C15u + 2 * i);
    for (size_t i = 0; i < 4; i++)
        secret[i] |= 1;
}

ingle_status grammar_matcher_create(struct grammar_matcher **out, const struct grammar *g,
                                 const struct grammar_vocab *v, struct err *err)
{
    uint32_t deepest = 0;
    struct grammar_matcher *m = mem_zalloc(sizeof *m);
    if (!m)
        return err_set(err, INGLE_NOMEM, "no memory for a grammar's matcher");
    m->g = g;
    m->v = v;
    m->err = err;
    m->fresh = true;
    make_secret(m->secret);
    for (int k = 0; k < GRAMMAR_N_TRIES; k++)
        deepest = v->trie[k].max_bytes > deepest ? v->trie[k].max_bytes : deepest;
    m->stack_end = mem_calloc(deepest + 2, sizeof *m->stack_end);
    m->stack_state = mem_calloc(deepest + 2, sizeof *m->stack_state);
    m->out = mem_calloc(v->n_words, sizeof *m->out);
    if (!m->stack_end || !m->stack_state || !m->out || !begin(m))
        nomem(m);
    if (!m->status)
        m->state = grammar_match_start(m);
    m->err = NULL;
    const ingle_status st = m->status;
    if (st)
        grammar_matcher_free(m);
    else
        *out = m;
    return st;
}

size_t grammar_matcher_bytes(const struct grammar_matcher *m)
{
    const size_t slots = m->state_table.n_slots + m->frame_table.n_slots + m->done_table.n_slots;
    return sizeof *m + (m->cap_items + m->cap_todo + m->cap_done) * sizeof *m->item +
           m->cap_states * sizeof *m->states + m->cap_frames * sizeof *m->frame +
           (m->cap_trans + slots) * sizeof *m->trans;
}

void grammar_matcher_free(struct grammar_matcher *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < MATCH_N_MASKS; i++) {
        mem_free(m->mask[i].bit);
        mem_free(m->mask[i].pop);
    }
    mem_free(m->item);
    mem_free(m->states);
    mem_free(m->frame);
    mem_free(m->trans);
    mem_free(m->state_table.slot);
    mem_free(m->frame_table.slot);
    mem_free(m->done_table.slot);
    mem_free(m->todo);
    mem_free(m->done);
    mem_free(m->stack_end);
    mem_free(m->stack_state);
    mem_free(m->out);
    mem_free(m);
}
