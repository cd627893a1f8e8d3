/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_check - what holds of every finished grammar: no jumps are left, each node knows its
 * rule, no rule calls itself before it has read something, nodes from which no end can be
 * reached are dead, and bytes are sorted into classes.
 */
#include "grammar/build.h"
#include "grammar/impl.h"

#include "base/mem.h"
#include <string.h>

/* A list of nodes that wait, each at most once. */
struct waiting {
    uint32_t *at;
    uint8_t *mark;
    size_t n;
};

static bool waiting_init(struct waiting *w, size_t n)
{
    w->at = mem_calloc(n + 1, sizeof *w->at);
    w->mark = mem_calloc(n + 1, 1);
    w->n = 0;
    return w->at && w->mark;
}

static void waiting_release(struct waiting *w)
{
    mem_free(w->at);
    mem_free(w->mark);
}

static void wait_for(struct waiting *w, uint32_t node)
{
    if (!w->mark[node]) {
        w->mark[node] = 1;
        w->at[w->n++] = node;
    }
}

/* All jumps on the way are shortened: thousands of alternatives leave by a chain of as many. */
static uint32_t jumped(struct grammar *g, uint32_t node)
{
    uint32_t to = node;
    size_t n = 0; /* a ring of jumps is never built; the bound is for peace of mind */
    while (g->node[to].kind == GRAMMAR_JUMP && n++ < g->n_nodes)
        to = g->node[to].a;
    while (node != to) {
        const uint32_t next = g->node[node].a;
        g->node[node].a = to;
        node = next;
    }
    return to;
}

static void remove_jumps(struct grammar *g)
{
    for (size_t i = 0; i < g->n_nodes; i++) {
        struct grammar_node *x = &g->node[i];
        x->a = jumped(g, x->a);
        if (x->kind == GRAMMAR_SPLIT || x->kind == GRAMMAR_LOOP)
            x->b = jumped(g, x->b);
    }
    for (size_t r = 0; r < g->n_rules; r++)
        g->rule[r].start = jumped(g, g->rule[r].start);
}

/* Visits what a rule's start leads to. */
static bool name_rules(struct grammar *g)
{
    struct waiting w;
    bool ok = waiting_init(&w, g->n_nodes);
    for (size_t r = 0; ok && r < g->n_rules; r++) {
        wait_for(&w, g->rule[r].start);
        while (w.n) {
            const uint32_t i = w.at[--w.n];
            struct grammar_node *x = &g->node[i];
            if (x->kind == GRAMMAR_END)
                continue;
            x->rule = (uint32_t)r;
            wait_for(&w, x->a);
            if (x->kind == GRAMMAR_SPLIT || x->kind == GRAMMAR_LOOP)
                wait_for(&w, x->b);
        }
    }
    waiting_release(&w);
    return ok;
}

/* What can be reached from the starts without reading. */
struct reach {
    struct waiting w;       /* mark: reached */
    uint32_t *first_site;   /* [n_rules] reached calls of a rule + 1, 0: none */
    uint32_t *next_site;    /* [n_nodes] */
    uint8_t *empty_body;    /* [n_rules] its COUNT was reached */
};

/* An END belongs to whatever rule it was reached in, so it is never marked. */
static void reach_end(struct grammar *g, struct reach *r, uint32_t rule)
{
    if (g->rule[rule].nullable)
        return;
    g->rule[rule].nullable = true;
    for (uint32_t s = r->first_site[rule]; s; s = r->next_site[s - 1])
        r->w.at[r->w.n++] = s - 1; /* each waits at most once: it did not wait since it is a site */
}

static void reach_to(struct grammar *g, struct reach *r, uint32_t from_rule, uint32_t node)
{
    if (g->node[node].kind == GRAMMAR_END)
        reach_end(g, r, from_rule);
    else
        wait_for(&r->w, node);
}

static void reach_node(struct grammar *g, struct reach *r, uint32_t i)
{
    const struct grammar_node x = g->node[i];
    switch ((enum grammar_kind)x.kind) {
    case GRAMMAR_SPLIT:
        reach_to(g, r, x.rule, x.a);
        reach_to(g, r, x.rule, x.b);
        break;
    case GRAMMAR_LOOP:
        reach_to(g, r, x.rule, x.a);
        if (!g->rule[x.rule].min || r->empty_body[x.rule])
            reach_to(g, r, x.rule, x.b);
        break;
    case GRAMMAR_COUNT: /* the body may be empty: then so may all of it */
        if (!r->empty_body[x.rule]) {
            r->empty_body[x.rule] = 1;
            reach_to(g, r, x.rule, g->node[x.a].b);
        }
        break;
    case GRAMMAR_CALL:
        if (g->rule[x.b].nullable)
            reach_to(g, r, x.rule, x.a);
        break;
    case GRAMMAR_ONCE:
    case GRAMMAR_ALL:
    case GRAMMAR_LEAST:
        reach_to(g, r, x.rule, x.a);
        break;
    case GRAMMAR_END:
    case GRAMMAR_JUMP:
    case GRAMMAR_BYTES:
    case GRAMMAR_TOKEN:
        break;
    }
}

/* A call is looked at when it is reached and, if that is later, when its rule proves empty. */
static void reach_all(struct grammar *g, struct reach *r)
{
    for (size_t i = 0; i < g->n_rules; i++)
        reach_to(g, r, (uint32_t)i, g->rule[i].start);
    while (r->w.n) {
        const uint32_t i = r->w.at[--r->w.n];
        const struct grammar_node *x = &g->node[i];
        if (x->kind == GRAMMAR_CALL && !g->rule[x->b].nullable) {
            r->next_site[i] = r->first_site[x->b];
            r->first_site[x->b] = i + 1;
            continue;
        }
        reach_node(g, r, i);
    }
}

static const char *rule_name(const struct grammar *g, uint32_t rule)
{
    return g->rule[rule].name ? g->rule[rule].name : "(...)";
}

static ingle_status check_empty_bodies(struct grammar *g, const struct reach *r,
                                       struct err *err)
{
    for (size_t i = 0; i < g->n_rules; i++) {
        struct grammar_rule *x = &g->rule[i];
        if (!r->empty_body[i])
            continue;
        if (x->max != GRAMMAR_INFINITE && x->max > GRAMMAR_MAX_EMPTY)
            return err_set(err, INGLE_LIMIT,
                           "a repetition of up to %u of what may be empty is above the limit of %d",
                           x->max, GRAMMAR_MAX_EMPTY);
        x->min = 0;
    }
    return INGLE_OK;
}

/* Left recursion: a ring of calls that are reached without reading.  Depth first; a rule is
 * white, on the path, or done. */
static ingle_status check_rings(const struct grammar *g, const struct reach *r,
                                const uint32_t *first_call, const uint32_t *next_call,
                                struct err *err)
{
    struct step {
        uint32_t rule, call;
    } *path = mem_calloc(g->n_rules + 1, sizeof *path);
    uint8_t *colour = mem_calloc(g->n_rules + 1, 1);
    ingle_status st =
        path && colour ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a grammar");
    for (uint32_t root = 0; !st && root < g->n_rules; root++) {
        size_t n = 0;
        if (colour[root])
            continue;
        path[n++] = (struct step){root, first_call[root]};
        colour[root] = 1;
        while (n && !st) {
            struct step *s = &path[n - 1];
            if (!s->call) {
                colour[s->rule] = 2;
                n--;
                continue;
            }
            const uint32_t to = g->node[s->call - 1].b;
            s->call = next_call[s->call - 1];
            if (colour[to] == 1)
                st = err_set(err, INGLE_ARG,
                             "rule '%.80s' calls itself before any text (left recursion)",
                             rule_name(g, to));
            else if (!colour[to]) {
                path[n++] = (struct step){to, first_call[to]};
                colour[to] = 1;
            }
        }
    }
    (void)r;
    mem_free(path);
    mem_free(colour);
    return st;
}

static ingle_status check_reach(struct grammar *g, struct err *err)
{
    struct reach r = {0};
    bool ok = waiting_init(&r.w, g->n_nodes);
    r.first_site = mem_calloc(g->n_rules + 1, sizeof *r.first_site);
    r.next_site = mem_calloc(g->n_nodes + 1, sizeof *r.next_site);
    r.empty_body = mem_calloc(g->n_rules + 1, 1);
    uint32_t *first_call = mem_calloc(g->n_rules + 1, sizeof *first_call);
    ingle_status st = INGLE_OK;
    ok = ok && r.first_site && r.next_site && r.empty_body && first_call;
    if (!ok)
        st = err_set(err, INGLE_NOMEM, "no memory for a grammar");
    if (!st) {
        reach_all(g, &r);
        st = check_empty_bodies(g, &r, err);
    }
    if (!st) {
        for (uint32_t i = 0; i < g->n_nodes; i++)
            if (g->node[i].kind == GRAMMAR_CALL && r.w.mark[i]) {
                r.next_site[i] = first_call[g->node[i].rule];
                first_call[g->node[i].rule] = i + 1;
            }
        st = check_rings(g, &r, first_call, r.next_site, err);
    }
    waiting_release(&r.w);
    mem_free(r.first_site);
    mem_free(r.next_site);
    mem_free(r.empty_body);
    mem_free(first_call);
    return st;
}

/* ---- dead ends ---- */

static bool is_alive(const struct grammar *g, const uint8_t *alive, uint32_t i)
{
    const struct grammar_node *x = &g->node[i];
    static const struct grammar_set none;
    switch ((enum grammar_kind)x->kind) {
    case GRAMMAR_END:
    case GRAMMAR_COUNT: /* a body that gets there is good; where it goes on, LOOP says */
        return true;
    case GRAMMAR_SPLIT:
        return alive[x->a] || alive[x->b];
    case GRAMMAR_LOOP:
        return alive[x->b] && (!g->rule[x->rule].min || alive[x->a]);
    case GRAMMAR_BYTES:
        return alive[x->a] && memcmp(&g->set[x->b], &none, sizeof none) != 0;
    case GRAMMAR_CALL:
        return alive[x->a] && alive[g->rule[x->b].start];
    case GRAMMAR_TOKEN:
    case GRAMMAR_JUMP:
    case GRAMMAR_ONCE:
    case GRAMMAR_ALL:
    case GRAMMAR_LEAST:
        return alive[x->a];
    }
    return false;
}

/* Up to three nodes that the state of i depends on. */
static size_t needs_of(const struct grammar *g, uint32_t i, uint32_t need[3])
{
    const struct grammar_node *x = &g->node[i];
    size_t n = 0;
    if (x->kind == GRAMMAR_END || x->kind == GRAMMAR_COUNT)
        return 0;
    need[n++] = x->a;
    if (x->kind == GRAMMAR_SPLIT || x->kind == GRAMMAR_LOOP)
        need[n++] = x->b;
    if (x->kind == GRAMMAR_CALL)
        need[n++] = g->rule[x->b].start;
    return n;
}

/* From the ends backwards.  user lists, node by node, who needs it. */
static ingle_status find_dead(struct grammar *g, bool *no_text, struct err *err)
{
    const size_t n = g->n_nodes;
    struct waiting w;
    bool ok = waiting_init(&w, n);
    uint32_t *first = mem_calloc(n + 2, sizeof *first);
    uint32_t *user = mem_calloc(3 * n + 1, sizeof *user);
    uint32_t need[3];
    ok = ok && first && user;
    for (uint32_t i = 0; ok && i < n; i++)
        for (size_t k = needs_of(g, i, need); k-- > 0;)
            first[need[k] + 2]++;
    for (size_t i = 2; ok && i < n + 2; i++)
        first[i] += first[i - 1];
    for (uint32_t i = 0; ok && i < n; i++) {
        for (size_t k = needs_of(g, i, need); k-- > 0;)
            user[first[need[k] + 1]++] = i;
        if (g->node[i].kind == GRAMMAR_END || g->node[i].kind == GRAMMAR_COUNT)
            wait_for(&w, i);
    }
    while (ok && w.n) {
        const uint32_t i = w.at[--w.n];
        for (uint32_t u = first[i]; u < first[i + 1]; u++)
            if (!w.mark[user[u]] && is_alive(g, w.mark, user[u]))
                wait_for(&w, user[u]);
    }
    for (size_t i = 0; ok && i < n; i++)
        g->node[i].dead = !w.mark[i];
    waiting_release(&w);
    mem_free(first);
    mem_free(user);
    if (!ok)
        return err_set(err, INGLE_NOMEM, "no memory for a grammar");
    *no_text = g->node[g->rule[g->root].start].dead;
    if (*no_text)
        return err_set(err, INGLE_ARG, "no finite text fits the grammar");
    return INGLE_OK;
}

/* Splits the classes by every set. */
static void sort_bytes(struct grammar *g)
{
    g->n_classes = 1;
    for (size_t s = 0; s < g->n_sets && g->n_classes < 256; s++) {
        int16_t inside[256];
        uint32_t n_in[256] = {0}, n_all[256] = {0};
        memset(inside, -1, sizeof inside);
        for (unsigned c = 0; c < 256; c++) {
            n_all[g->class_of[c]]++;
            n_in[g->class_of[c]] += grammar_has(&g->set[s], c);
        }
        for (unsigned c = 0; c < 256; c++) {
            const uint8_t k = g->class_of[c];
            if (!grammar_has(&g->set[s], c) || n_in[k] == n_all[k])
                continue;
            if (inside[k] < 0)
                inside[k] = (int16_t)g->n_classes++;
            g->class_of[c] = (uint8_t)inside[k];
        }
    }
    for (unsigned c = 256; c-- > 0;)
        g->sample[g->class_of[c]] = (uint8_t)c;
}

ingle_status grammar_g_check(struct grammar *g, bool *no_text, struct err *err)
{
    remove_jumps(g);
    if (!name_rules(g))
        return err_set(err, INGLE_NOMEM, "no memory for a grammar");
    ingle_status st = check_reach(g, err);
    if (!st)
        st = find_dead(g, no_text, err);
    sort_bytes(g);
    return st;
}
