/* SPDX-License-Identifier: Apache-2.0 */
/*
 * factor - alternatives that begin alike share their beginning: abc | abd becomes ab(c | d).
 *
 * A list of many words (an enum, a rule of literals) would otherwise have an item of a state for
 * each word. Only nodes that nothing else leads to are moved, so the texts stay the same and each
 * node is moved once.
 */
#include "grammar/build.h"
#include "grammar/impl.h"

#include "base/mem.h"

#include <stdlib.h>

struct factor_list {
    uint32_t *at;
    size_t n, cap;
};

struct factor {
    struct grammar_builder *b;
    struct grammar_node *node;
    uint32_t *n_in; /* how many lead to each node */
    bool *inner;    /* a SPLIT that belongs to the alternatives of another */
    struct factor_list todo, stack, leaf, spare; /* spare: nodes that are free for SPLITs */
};

static void push(struct factor *f, struct factor_list *l, uint32_t x)
{
    if (mem_grow(&l->at, &l->cap, l->n + 1, sizeof *l->at))
        l->at[l->n++] = x;
    else
        grammar_g_nomem(f->b);
}

static bool has_two(uint8_t kind) { return kind == GRAMMAR_SPLIT || kind == GRAMMAR_LOOP; }

static void count(struct factor *f, const struct grammar *g)
{
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (f->node[i].kind != GRAMMAR_END)
            f->n_in[f->node[i].a]++;
        if (has_two(f->node[i].kind))
            f->n_in[f->node[i].b]++;
    }
    for (size_t i = 0; i < g->n_rules; i++)
        f->n_in[g->rule[i].start]++;
}

/* After JUMPs that nothing else leads to. */
static uint32_t skip_jumps(const struct factor *f, uint32_t x)
{
    while (f->node[x].kind == GRAMMAR_JUMP && f->n_in[x] == 1 && f->node[x].a != x)
        x = f->node[x].a;
    return x;
}

static bool is_inner(const struct factor *f, uint32_t x)
{
    return f->node[x].kind == GRAMMAR_SPLIT && f->n_in[x] == 1;
}

static void find(struct factor *f, const struct grammar *g)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < 2 && f->node[i].kind == GRAMMAR_SPLIT; k++) {
            const uint32_t x = skip_jumps(f, k ? f->node[i].b : f->node[i].a);
            f->inner[x] = f->inner[x] || is_inner(f, x);
        }
    for (size_t i = 0; i < g->n_nodes && grammar_g_ok(f->b); i++)
        if (f->node[i].kind == GRAMMAR_SPLIT && !f->inner[i])
            push(f, &f->todo, (uint32_t)i);
}

/* The alternatives of a SPLIT; its inner SPLITs are spare then. */
static void gather(struct factor *f, uint32_t root)
{
    f->leaf.n = f->spare.n = f->stack.n = 0;
    push(f, &f->stack, f->node[root].b);
    push(f, &f->stack, f->node[root].a);
    while (f->stack.n && grammar_g_step(f->b, 1)) {
        const uint32_t x = skip_jumps(f, f->stack.at[--f->stack.n]);
        if (x == root) /* nothing that is not there already */
            continue;
        if (!is_inner(f, x)) {
            push(f, &f->leaf, x);
            continue;
        }
        push(f, &f->spare, x);
        push(f, &f->stack, f->node[x].b);
        push(f, &f->stack, f->node[x].a);
    }
}

/* What of it may be shared: 0, nothing. */
static uint64_t label(const struct factor *f, uint32_t x)
{
    const struct grammar_node *n = &f->node[x];
    const bool plain =
        (n->kind == GRAMMAR_BYTES || n->kind == GRAMMAR_TOKEN || n->kind == GRAMMAR_CALL) &&
        f->n_in[x] == 1;
    return plain ? (uint64_t)n->kind << 32 | n->b : 0;
}

struct factor_key {
    uint64_t label;
    uint32_t node;
};

static int by_label(const void *x, const void *y)
{
    const struct factor_key *a = x, *b = y;
    if (a->label != b->label)
        return a->label < b->label ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

/* The alternatives x and y, where there was one of them. */
static uint32_t join(struct factor *f, uint32_t x, uint32_t y)
{
    const uint32_t s = f->spare.at[--f->spare.n];
    f->node[s] =
        (struct grammar_node){.kind = GRAMMAR_SPLIT, .rule = f->node[x].rule, .a = x, .b = y};
    f->n_in[s] = 1;
    f->inner[s] = true;
    return s;
}

/* Those of key[0, n), which have one label, become the first one. */
static void share(struct factor *f, const struct factor_key *key, size_t n)
{
    struct grammar_node *first = &f->node[key[0].node];
    for (size_t i = 1; i < n; i++) {
        const uint32_t next = f->node[key[i].node].a;
        push(f, &f->spare, key[i].node);
        if (!grammar_g_ok(f->b))
            return;
        first->a = join(f, first->a, next);
    }
    f->inner[first->a] = false;
    push(f, &f->todo, first->a);
}

static void split(struct factor *f, uint32_t root)
{
    if (f->node[root].kind != GRAMMAR_SPLIT || f->inner[root]) /* it was moved */
        return;
    gather(f, root);
    const size_t n = f->leaf.n;
    struct factor_key *key = grammar_g_ok(f->b) ? mem_calloc(n ? n : 1, sizeof *key) : NULL;
    if (!key) {
        if (grammar_g_ok(f->b))
            grammar_g_nomem(f->b);
        return;
    }
    for (size_t i = 0; i < n; i++)
        key[i] = (struct factor_key){label(f, f->leaf.at[i]), f->leaf.at[i]};
    qsort(key, n, sizeof *key, by_label);
    size_t m = 0;
    for (size_t i = 0, end; i < n && grammar_g_ok(f->b); i = end, m++) {
        for (end = i + 1; end < n && (key[i].label ? key[end].label == key[i].label
                                                   : key[end].node == key[i].node);
             end++)
            ;
        if (key[i].label && end > i + 1)
            share(f, key + i, end - i);
        key[m] = key[i];
    }
    if (m < n && grammar_g_ok(f->b)) {
        struct grammar_node *r = &f->node[root];
        uint32_t rest = key[m - 1].node;
        for (size_t i = m - 1; i-- > 1;)
            rest = join(f, key[i].node, rest);
        *r = m > 1 ? (struct grammar_node){.kind = GRAMMAR_SPLIT,
                                           .rule = r->rule,
                                           .a = key[0].node,
                                           .b = rest}
                   : (struct grammar_node){.kind = GRAMMAR_JUMP, .rule = r->rule, .a = rest};
        for (size_t i = 0; i < f->spare.n; i++)
            f->node[f->spare.at[i]] = (struct grammar_node){.kind = GRAMMAR_JUMP};
    }
    mem_free(key);
}

void grammar_g_factor(struct grammar_builder *b)
{
    struct grammar *g = b->g;
    struct factor f = {.b = b, .node = g->node};
    f.n_in = mem_calloc(g->n_nodes, sizeof *f.n_in);
    f.inner = mem_calloc(g->n_nodes, sizeof *f.inner);
    if (!f.n_in || !f.inner) {
        grammar_g_nomem(b);
    } else if (grammar_g_step(b, g->n_nodes)) {
        count(&f, g);
        find(&f, g);
        while (f.todo.n && grammar_g_ok(b))
            split(&f, f.todo.at[--f.todo.n]);
    }
    mem_free(f.n_in);
    mem_free(f.inner);
    mem_free(f.todo.at);
    mem_free(f.stack.at);
    mem_free(f.leaf.at);
    mem_free(f.spare.at);
}
