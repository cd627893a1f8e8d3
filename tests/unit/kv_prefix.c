/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/kv_world.h"

#include "base/mem.h"
#include "kv/page.h"

enum { PUTS_MAX = 4096 };

/* What was ever put: the model of the tree. */
struct puts {
    int64_t n;
    int64_t length[PUTS_MAX];
    int32_t *token[PUTS_MAX];
};

static void puts_release(struct puts *p)
{
    for (int64_t i = 0; i < p->n; i++)
        mem_free(p->token[i]);
    p->n = 0;
}

static int64_t common(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b)
{
    int64_t i = 0;
    while (i < n_a && i < n_b && a[i] == b[i])
        i++;
    return i;
}

static void put(struct kv_tree *tree, struct puts *puts, const struct world_line *l)
{
    struct err err;
    const uint64_t mark[2] = {(uint64_t)l->length, world_chain(l->token, l->length)};
    assert_int_equal(kv_tree_put(tree, l->t, l->token, l->length, mark, sizeof mark, &err),
                     INGLE_OK);
    if (!puts || !l->length || puts->n == PUTS_MAX)
        return;
    puts->length[puts->n] = l->length;
    puts->token[puts->n] = mem_calloc((size_t)l->length, sizeof(int32_t));
    memcpy(puts->token[puts->n++], l->token, (size_t)l->length * sizeof(int32_t));
}

/* exact: nothing was evicted, so what is found is what the model says. */
static void find(struct kv_tree *tree, const struct puts *puts, const int32_t *token, int64_t n,
                 int64_t limit, bool exact, struct kv_match *m)
{
    kv_tree_find(tree, token, n, limit, m);
    int64_t best = 0, matched = 0;
    bool there = false;
    for (int64_t i = 0; i < puts->n; i++) {
        const int64_t k = common(puts->token[i], puts->length[i], token, n);
        matched = num_max(matched, k);
        if (k == puts->length[i] && k <= limit) {
            best = num_max(best, k);
            there = there || k == m->length;
        }
    }
    assert_true(m->length <= best && m->matched <= matched && m->matched >= m->length);
    assert_true(!exact || (m->length == best && m->matched == matched));
    assert_int_equal(m->point != NULL, m->length > 0);
    if (!m->point)
        return;
    assert_true(there);
    uint64_t mark[2];
    assert_int_equal(m->mark_bytes, sizeof mark);
    memcpy(mark, m->mark, sizeof mark);
    assert_true(mark[0] == (uint64_t)m->length && mark[1] == world_chain(token, m->length));
}

static void find_and_attach(struct world *w, struct kv_tree *tree, const struct puts *puts,
                            struct world_line *l, bool exact)
{
    struct err err;
    struct kv_match m;
    const struct world_line *like = &w->line[world_pick(w, 0, WORLD_LINES - 1)];
    static int32_t question[WORLD_MAX];
    const int64_t n = world_pick(w, 0, WORLD_MAX),
                  limit = world_pick(w, 0, 3) ? n : world_pick(w, 0, n);
    const int64_t from = world_pick(w, 0, n);
    for (int64_t i = 0; i < n; i++)
        question[i] = i < from || world_pick(w, 0, 20) ? like->token[i] : 7;
    find(tree, puts, question, n, limit, exact, &m);
    if (!m.point)
        return;
    const int64_t length = m.length; /* m ends with the attach */
    const ingle_status s = kv_timeline_attach(l->t, tree, m.point, &err);
    assert_int_equal(s, length > l->max ? INGLE_LIMIT : INGLE_OK);
    if (s != INGLE_OK)
        return;
    memcpy(l->token, question, (size_t)length * sizeof question[0]);
    world_tokens(w, l, length);
    l->length = l->rewind_to = length;
}

static void random_puts_and_finds_are_what_the_model_says(void **state)
{
    (void)state;
    static struct world w;
    static struct puts puts;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        memset(&w, 0, sizeof w);
        w.seed = seed;
        const bool roomy = seed % 3 == 0;
        const int64_t n_groups = world_pick(&w, 1, 4);
        for (int64_t g = 0; g < n_groups; g++)
            world_group(&w, world_pick(&w, 0, 1) ? world_pick(&w, 1, 400) : 0,
                        (uint32_t)world_pick(&w, 1, 2));
        world_open(&w, roomy ? 64 << 20 : (uint64_t)world_pick(&w, 50, 400) * 1024);
        struct err err;
        struct kv_tree *tree;
        const uint64_t budget = roomy ? 64 << 20 : (uint64_t)world_pick(&w, 10, 300) * 1024;
        assert_int_equal(kv_tree_create(&tree, w.pool, budget, &err), INGLE_OK);
        for (int i = 0; i < WORLD_LINES; i++) {
            world_line_open(&w, i, world_pick(&w, 1, WORLD_MAX));
            world_tokens(&w, &w.line[i], 0);
        }
        for (int n = 0; n < 300; n++) {
            struct world_line *l = &w.line[world_pick(&w, 0, WORLD_LINES - 1)];
            const int64_t op = world_pick(&w, 0, 99);
            if (op < 55)
                world_operate(&w, l);
            else if (op < 75)
                put(tree, &puts, l);
            else if (op < 99)
                find_and_attach(&w, tree, &puts, l, roomy);
            else if (!roomy) {
                kv_tree_clear(tree);
                puts_release(&puts);
            }
            for (int i = 0; i < WORLD_LINES; i++)
                world_check(&w, &w.line[i]);
            (void)world_used(&w);
            struct kv_tree_counts c;
            kv_tree_count(tree, &c);
            assert_true(c.bytes <= budget);
        }
        struct kv_pool_counts c;
        kv_pool_count(w.pool, &c);
        assert_true(!roomy || !c.evicted_points);
        if (seed % 2)
            kv_tree_free(tree);
        for (int i = 0; i < WORLD_LINES; i++)
            world_line_close(&w.line[i]);
        kv_pool_count(w.pool, &c);
        assert_true(c.used_bytes == c.cached_bytes);
        if (seed % 2 == 0)
            kv_tree_free(tree);
        puts_release(&puts);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_puts_and_finds_are_what_the_model_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
