/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_build - pieces of rules, put together. */
#include "grammar/build.h"
#include "grammar/impl.h"

#include "base/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ingle_status grammar_g_begin(struct grammar_builder *b, struct grammar_work *work, struct err *err)
{
    *b = (struct grammar_builder){.err = err, .work = work};
    b->g = mem_zalloc(sizeof *b->g);
    if (!b->g)
        return err_set(err, INGLE_NOMEM, "no memory for a grammar");
    (void)grammar_g_node(b, GRAMMAR_END, 0, 0);
    if (!grammar_g_ok(b))
        grammar_free(b->g);
    return b->status;
}

ingle_status grammar_g_end(struct grammar_builder *b, uint32_t root, struct grammar **out)
{
    mem_free(b->slot);
    if (grammar_g_ok(b))
        grammar_g_factor(b);
    if (grammar_g_ok(b)) {
        b->g->root = root;
        b->status = grammar_g_check(b->g, &b->no_text, b->err);
        (void)grammar_g_check_limits(b);
    }
    if (grammar_g_ok(b))
        *out = b->g;
    else
        grammar_free(b->g);
    return b->status;
}

void grammar_free(struct grammar *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_rules; i++)
        mem_free(g->rule[i].name);
    mem_free(g->rule);
    mem_free(g->node);
    mem_free(g->set);
    mem_free(g);
}

size_t grammar_n_nodes(const struct grammar *g)
{
    return g->n_nodes;
}

void grammar_g_fail(struct grammar_builder *b, ingle_status st, const char *fmt, ...)
{
    char text[sizeof b->err->msg];
    va_list args;
    if (!grammar_g_ok(b))
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    b->status = err_set(b->err, st, "%s", text);
}

void grammar_g_nomem(struct grammar_builder *b)
{
    grammar_g_fail(b, INGLE_NOMEM, "no memory for a grammar");
}

bool grammar_g_check_limits(struct grammar_builder *b)
{
    const struct grammar_work *w = b->work;
    const uint64_t most = w->max_steps ? w->max_steps : GRAMMAR_WORK_STEPS;
    if (w->n_steps > most)
        grammar_g_fail(b, INGLE_LIMIT,
                       "the grammar takes more than the limit of %llu steps to compile",
                       (unsigned long long)most);
    else if (w->stop && w->stop(w->arg))
        grammar_g_fail(b, INGLE_CANCEL, "compiling the grammar was cancelled");
    return grammar_g_ok(b);
}

bool grammar_g_spend(struct grammar_builder *b, uint64_t n_bytes)
{
    b->work->n_bytes += n_bytes;
    if (b->work->n_bytes > GRAMMAR_WORK_BYTES)
        grammar_g_fail(b, INGLE_LIMIT,
                       "the schema needs more than the limit of %d MiB when its parts are merged",
                       GRAMMAR_WORK_BYTES >> 20);
    return grammar_g_ok(b);
}

/* After a failure every node is 0: nothing is written, and grammar_g_end() says no. */
uint32_t grammar_g_node(struct grammar_builder *b, enum grammar_kind kind, uint32_t a, uint32_t x)
{
    struct grammar *g = b->g;
    if (!grammar_g_step(b, 1))
        return 0;
    if (g->n_nodes == GRAMMAR_MAX_NODES)
        grammar_g_fail(b, INGLE_LIMIT, "the grammar is larger than the limit of %d nodes",
                    GRAMMAR_MAX_NODES);
    else if (!mem_grow(&g->node, &g->cap_nodes, g->n_nodes + 1, sizeof *g->node))
        grammar_g_nomem(b);
    if (!grammar_g_ok(b))
        return 0;
    g->node[g->n_nodes] = (struct grammar_node){.kind = (uint8_t)kind, .a = a, .b = x};
    return (uint32_t)g->n_nodes++;
}

uint32_t grammar_g_rule(struct grammar_builder *b, const char *name, size_t n)
{
    struct grammar *g = b->g;
    if (!grammar_g_ok(b))
        return 0;
    if (g->n_rules == GRAMMAR_MAX_RULES)
        grammar_g_fail(b, INGLE_LIMIT, "the grammar has more than the limit of %d rules",
                    GRAMMAR_MAX_RULES);
    else if (!mem_grow(&g->rule, &g->cap_rules, g->n_rules + 1, sizeof *g->rule))
        grammar_g_nomem(b);
    if (!grammar_g_ok(b))
        return 0;
    struct grammar_rule *r = &g->rule[g->n_rules];
    *r = (struct grammar_rule){.name = name ? mem_strndup(name, n) : NULL};
    if (name && !r->name)
        grammar_g_nomem(b);
    return (uint32_t)g->n_rules++;
}

static void tie(struct grammar_builder *b, uint32_t out, uint32_t to)
{
    if (grammar_g_ok(b))
        b->g->node[out].a = to;
}

void grammar_g_tie(struct grammar_builder *b, struct grammar_piece p, uint32_t to)
{
    tie(b, p.out, to);
}

void grammar_g_body(struct grammar_builder *b, uint32_t rule, struct grammar_piece p)
{
    if (!grammar_g_ok(b))
        return;
    tie(b, p.out, 0);
    b->g->rule[rule].start = p.in;
}

/* ---- sets of bytes ---- */

static uint32_t hash_set(const struct grammar_set *s)
{
    uint64_t h = 0;
    for (int i = 0; i < 4; i++)
        h = (h ^ s->bit[i]) * 0x9E3779B97F4A7C15u ^ h >> 29;
    return (uint32_t)(h >> 32);
}

static bool grow_slots(struct grammar_builder *b)
{
    const size_t n = b->n_slots ? 2 * b->n_slots : 64;
    struct grammar_set_slot *slot = mem_calloc(n, sizeof *slot);
    if (!slot)
        return false;
    for (size_t i = 0; i < b->n_slots; i++) {
        size_t at = b->slot[i].hash & (n - 1);
        while (b->slot[i].set && slot[at].set)
            at = (at + 1) & (n - 1);
        if (b->slot[i].set)
            slot[at] = b->slot[i];
    }
    mem_free(b->slot);
    b->slot = slot;
    b->n_slots = n;
    return true;
}

uint32_t grammar_g_set(struct grammar_builder *b, const struct grammar_set *s)
{
    struct grammar *g = b->g;
    const uint32_t hash = hash_set(s);
    if (!grammar_g_ok(b))
        return 0;
    if (2 * (g->n_sets + 1) > b->n_slots && !grow_slots(b)) {
        grammar_g_nomem(b);
        return 0;
    }
    size_t at = hash & (b->n_slots - 1);
    for (; b->slot[at].set; at = (at + 1) & (b->n_slots - 1))
        if (memcmp(&g->set[b->slot[at].set - 1], s, sizeof *s) == 0)
            return b->slot[at].set - 1;
    if (g->n_sets == GRAMMAR_MAX_SETS)
        grammar_g_fail(b, INGLE_LIMIT,
                       "the grammar has more than the limit of %d character classes",
                       GRAMMAR_MAX_SETS);
    else if (!mem_grow(&g->set, &g->cap_sets, g->n_sets + 1, sizeof *g->set))
        grammar_g_nomem(b);
    if (!grammar_g_ok(b))
        return 0;
    g->set[g->n_sets] = *s;
    b->slot[at] = (struct grammar_set_slot){hash, (uint32_t)g->n_sets + 1};
    return (uint32_t)g->n_sets++;
}

static void put_bytes(struct grammar_set *s, unsigned first, unsigned last)
{
    for (unsigned c = first; c <= last; c++)
        s->bit[c >> 6] |= (uint64_t)1 << (c & 63);
}

/* ---- pieces ---- */

struct grammar_piece grammar_g_empty(struct grammar_builder *b)
{
    const uint32_t out = grammar_g_node(b, GRAMMAR_JUMP, 0, 0);
    return (struct grammar_piece){out, out};
}

static struct grammar_piece one(struct grammar_builder *b, enum grammar_kind kind, uint32_t x)
{
    const uint32_t out = grammar_g_node(b, GRAMMAR_JUMP, 0, 0);
    return (struct grammar_piece){grammar_g_node(b, kind, out, x), out};
}

struct grammar_piece grammar_g_never(struct grammar_builder *b)
{
    const struct grammar_set none = {{0}};
    return one(b, GRAMMAR_BYTES, grammar_g_set(b, &none));
}

struct grammar_piece grammar_g_byte_range(struct grammar_builder *b, unsigned first, unsigned last)
{
    struct grammar_set s = {{0}};
    put_bytes(&s, first, last);
    return one(b, GRAMMAR_BYTES, grammar_g_set(b, &s));
}

struct grammar_piece grammar_g_literal(struct grammar_builder *b, const char *bytes, size_t n)
{
    const uint32_t out = grammar_g_node(b, GRAMMAR_JUMP, 0, 0);
    uint32_t in = out;
    for (size_t i = n; i-- > 0;) {
        struct grammar_set s = {{0}};
        put_bytes(&s, (unsigned char)bytes[i], (unsigned char)bytes[i]);
        in = grammar_g_node(b, GRAMMAR_BYTES, in, grammar_g_set(b, &s));
    }
    return (struct grammar_piece){in, out};
}

struct grammar_piece grammar_g_word(struct grammar_builder *b, const char *word)
{
    return grammar_g_literal(b, word, strlen(word));
}

struct grammar_piece grammar_g_token(struct grammar_builder *b, int32_t id)
{
    return one(b, GRAMMAR_TOKEN, (uint32_t)id);
}

struct grammar_piece grammar_g_call(struct grammar_builder *b, uint32_t rule)
{
    return one(b, GRAMMAR_CALL, rule);
}

struct grammar_piece grammar_g_cat(struct grammar_builder *b, struct grammar_piece x,
                                struct grammar_piece y)
{
    tie(b, x.out, y.in);
    return (struct grammar_piece){x.in, y.out};
}

struct grammar_piece grammar_g_alt(struct grammar_builder *b, struct grammar_piece x,
                                struct grammar_piece y)
{
    tie(b, x.out, y.out);
    return (struct grammar_piece){grammar_g_node(b, GRAMMAR_SPLIT, x.in, y.in), y.out};
}

struct grammar_piece grammar_g_opt(struct grammar_builder *b, struct grammar_piece x)
{
    return (struct grammar_piece){grammar_g_node(b, GRAMMAR_SPLIT, x.in, x.out), x.out};
}

struct grammar_piece grammar_g_star(struct grammar_builder *b, struct grammar_piece x)
{
    const uint32_t out = grammar_g_node(b, GRAMMAR_JUMP, 0, 0);
    const uint32_t split = grammar_g_node(b, GRAMMAR_SPLIT, x.in, out);
    tie(b, x.out, split);
    return (struct grammar_piece){split, out};
}

struct grammar_piece grammar_g_plus(struct grammar_builder *b, struct grammar_piece x)
{
    const uint32_t out = grammar_g_node(b, GRAMMAR_JUMP, 0, 0);
    tie(b, x.out, grammar_g_node(b, GRAMMAR_SPLIT, x.in, out));
    return (struct grammar_piece){x.in, out};
}

struct grammar_piece grammar_g_repeat(struct grammar_builder *b, struct grammar_piece x,
                                      uint32_t min, uint32_t max)
{
    if (max == 0)
        return grammar_g_empty(b);
    if (max == GRAMMAR_INFINITE && min < 2)
        return min ? grammar_g_plus(b, x) : grammar_g_star(b, x);
    if (max == 1)
        return min ? x : grammar_g_opt(b, x);
    const uint32_t rule = grammar_g_rule(b, NULL, 0);
    const uint32_t loop = grammar_g_node(b, GRAMMAR_LOOP, x.in, 0);
    tie(b, x.out, grammar_g_node(b, GRAMMAR_COUNT, loop, 0));
    if (grammar_g_ok(b)) {
        b->g->rule[rule].start = loop;
        b->g->rule[rule].min = min;
        b->g->rule[rule].max = max;
    }
    return grammar_g_call(b, rule);
}

uint32_t grammar_g_any_order(struct grammar_builder *b, const uint32_t *rule, size_t n,
                             uint32_t most, const uint32_t *other, const uint32_t *before,
                             uint32_t next_node)
{
    uint32_t at = 0;
    for (size_t i = n + (other != NULL); i-- > 0 && grammar_g_ok(b);) {
        const bool named = i < n || !other;
        struct grammar_piece p = grammar_g_call(b, named ? rule[i] : *other);
        tie(b, p.out, next_node);
        if (before)
            p = grammar_g_cat(b, grammar_g_call(b, *before), p);
        const uint32_t in =
            named ? grammar_g_node(b, GRAMMAR_ONCE, p.in, (uint32_t)i | most << 8) : p.in;
        at = at ? grammar_g_node(b, GRAMMAR_SPLIT, in, at) : in;
    }
    return at ? at : grammar_g_never(b).in;
}

/* ---- classes of code points ---- */

void grammar_g_class_release(struct grammar_class *c)
{
    mem_free(c->at);
    *c = (struct grammar_class){0};
}

static void push_range(struct grammar_builder *b, struct grammar_class *c, uint32_t first,
                       uint32_t last)
{
    if (first > last)
        return;
    if (!mem_grow(&c->at, &c->cap, c->n + 1, sizeof *c->at))
        grammar_g_nomem(b);
    else
        c->at[c->n++] = (struct grammar_range){first, last};
}

/* At the end, or joined to the last one; what comes out of order is sorted when it is used. */
void grammar_g_range(struct grammar_builder *b, struct grammar_class *c, uint32_t first,
                  uint32_t last)
{
    struct grammar_range *end = c->n ? &c->at[c->n - 1] : NULL;
    if (first > last || !grammar_g_step(b, 1))
        return;
    if (end && first >= end->first && first <= end->last + 1) {
        end->last = last > end->last ? last : end->last;
        return;
    }
    c->mixed = c->mixed || (end && first < end->first);
    push_range(b, c, first, last);
}

static int by_first(const void *x, const void *y)
{
    const struct grammar_range *a = x, *b = y;
    return (a->first > b->first) - (a->first < b->first);
}

void grammar_g_sorted(struct grammar_builder *b, struct grammar_class *c)
{
    size_t n = 0;
    if (!c->mixed || !grammar_g_step(b, c->n))
        return;
    qsort(c->at, c->n, sizeof *c->at, by_first);
    for (size_t i = 0; i < c->n; i++) {
        const struct grammar_range r = c->at[i];
        if (!n || r.first > c->at[n - 1].last + 1)
            c->at[n++] = r;
        else if (r.last > c->at[n - 1].last)
            c->at[n - 1].last = r.last;
    }
    c->n = n;
    c->mixed = false;
}

void grammar_g_invert(struct grammar_builder *b, struct grammar_class *c)
{
    struct grammar_class other = {0};
    uint32_t next = 0;
    grammar_g_sorted(b, c);
    for (size_t i = 0; i < c->n; i++) {
        if (c->at[i].first > next)
            push_range(b, &other, next, c->at[i].first - 1);
        next = c->at[i].last + 1;
    }
    push_range(b, &other, next, 0x10FFFF);
    mem_free(c->at);
    *c = other;
}

void grammar_g_subtract(struct grammar_builder *b, struct grammar_class *c,
                        struct grammar_class *other)
{
    struct grammar_class left = {0};
    size_t k = 0;
    grammar_g_sorted(b, c);
    grammar_g_sorted(b, other);
    if (!grammar_g_step(b, c->n + other->n))
        return;
    for (size_t i = 0; i < c->n; i++) {
        const struct grammar_range r = c->at[i];
        uint32_t next = r.first;
        while (k < other->n && other->at[k].last < r.first)
            k++;
        for (; k < other->n && other->at[k].first <= r.last; k++) {
            if (other->at[k].first > next)
                push_range(b, &left, next, other->at[k].first - 1);
            next = other->at[k].last + 1;
            if (other->at[k].last > r.last) /* it takes from the next range, too */
                break;
        }
        push_range(b, &left, next, r.last);
    }
    mem_free(c->at);
    *c = left;
}

void grammar_g_without(struct grammar_builder *b, struct grammar_class *c, uint32_t first,
                    uint32_t last)
{
    struct grammar_range r = {first, last};
    struct grammar_class other = {.at = &r, .n = 1};
    grammar_g_subtract(b, c, &other);
}

/* The ways from a character's first byte: those with the same continuation share a set. */
struct utf8_ways {
    struct {
        uint32_t next;
        struct grammar_set set;
    } way[64];
    struct {
        uint32_t next, node;
        uint8_t first, last;
    } known[256]; /* continuation bytes */
    size_t n, n_known;
    uint32_t out;
};

static uint32_t continuation(struct grammar_builder *b, struct utf8_ways *w, uint8_t first,
                             uint8_t last, uint32_t next)
{
    for (size_t i = 0; i < w->n_known; i++)
        if (w->known[i].next == next && w->known[i].first == first && w->known[i].last == last)
            return w->known[i].node;
    struct grammar_set s = {{0}};
    put_bytes(&s, first, last);
    const uint32_t node = grammar_g_node(b, GRAMMAR_BYTES, next, grammar_g_set(b, &s));
    if (w->n_known < sizeof w->known / sizeof *w->known) {
        w->known[w->n_known].next = next;
        w->known[w->n_known].node = node;
        w->known[w->n_known].first = first;
        w->known[w->n_known++].last = last;
    }
    return node;
}

/* Makes the ways that were gathered one node each, joined to `in` (or 0). */
static uint32_t flush_ways(struct grammar_builder *b, struct utf8_ways *w, uint32_t in)
{
    for (size_t i = 0; i < w->n; i++) {
        const uint32_t node =
            grammar_g_node(b, GRAMMAR_BYTES, w->way[i].next, grammar_g_set(b, &w->way[i].set));
        in = in ? grammar_g_node(b, GRAMMAR_SPLIT, node, in) : node;
    }
    w->n = 0;
    return in;
}

static uint32_t add_way(struct grammar_builder *b, struct utf8_ways *w, uint32_t in, uint8_t first,
                        uint8_t last, uint32_t next)
{
    size_t i = 0;
    while (i < w->n && w->way[i].next != next)
        i++;
    if (i == sizeof w->way / sizeof *w->way) {
        in = flush_ways(b, w, in);
        i = 0;
    }
    if (i == w->n) {
        w->way[w->n].next = next;
        w->way[w->n++].set = (struct grammar_set){{0}};
    }
    put_bytes(&w->way[i].set, first, last);
    return in;
}

/* A range whose characters have n bytes, and in which each byte has a range of its own. */
static uint32_t add_even(struct grammar_builder *b, struct utf8_ways *w, uint32_t in, int n,
                         uint32_t first, uint32_t last)
{
    static const uint8_t lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    uint32_t next = w->out;
    for (int i = n - 1; i > 0; i--, first >>= 6, last >>= 6)
        next = continuation(b, w, (uint8_t)(0x80 | (first & 63)), (uint8_t)(0x80 | (last & 63)),
                            next);
    return add_way(b, w, in, (uint8_t)(lead[n] | first), (uint8_t)(lead[n] | last), next);
}

/* Cuts at the borders of the last bytes until every byte has a range of its own. */
static uint32_t add_range(struct grammar_builder *b, struct utf8_ways *w, uint32_t in, int n,
                          uint32_t first, uint32_t last)
{
    while (first <= last) {
        uint32_t end = last;
        for (int i = 1; i < n; i++) {
            const uint32_t m = ((uint32_t)1 << (6 * i)) - 1;
            if ((first & ~m) == (end & ~m))
                break;
            if (first & m)
                end = first | m;
            else if ((end & m) != m)
                end = (end & ~m) - 1;
            else
                continue;
        }
        in = add_even(b, w, in, n, first, end);
        first = end + 1;
    }
    return in;
}

struct grammar_piece grammar_g_class(struct grammar_builder *b, struct grammar_class *c)
{
    static const struct {
        uint32_t first, last;
        int n;
    } part[] = {{0, 0x7F, 1},
                {0x80, 0x7FF, 2},
                {0x800, 0xD7FF, 3},
                {0xE000, 0xFFFF, 3},
                {0x10000, 0x10FFFF, 4}};
    struct utf8_ways w = {.out = grammar_g_node(b, GRAMMAR_JUMP, 0, 0)};
    uint32_t in = 0;
    grammar_g_sorted(b, c);
    for (size_t i = 0; i < c->n && grammar_g_step(b, 1); i++)
        for (size_t p = 0; p < sizeof part / sizeof *part; p++) {
            const uint32_t first = c->at[i].first > part[p].first ? c->at[i].first : part[p].first;
            const uint32_t last = c->at[i].last < part[p].last ? c->at[i].last : part[p].last;
            if (first <= last)
                in = add_range(b, &w, in, part[p].n, first, last);
        }
    in = flush_ways(b, &w, in);
    if (!in)
        return grammar_g_never(b);
    return (struct grammar_piece){in, w.out};
}
