/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/kv_world.h"

#include <stdlib.h>

#include "unit/mem_fail.h"

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
    assert_int_equal(
        kv_tree_put(tree, kv_scope_of(0), l->t, l->token, l->length, mark, sizeof mark, &err),
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
    kv_tree_find(tree, kv_scope_of(0), token, n, limit, m);
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

static int by_position(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* A step over places that become restore points before it is committed.  spare is empty again. */
static void step_over_borders(struct world *w, struct kv_tree *tree, struct puts *puts,
                              struct world_line *l, struct world_line *spare)
{
    struct err err;
    int64_t at[KV_MARKS];
    const int64_t n = num_min(world_pick(w, 0, 600), l->max - l->length), to = l->length + n;
    const int n_marks = (int)world_pick(w, 0, KV_MARKS);
    for (int i = 0; i < n_marks; i++)
        at[i] = world_pick(w, world_pick(w, 0, 9) ? l->length : 0, to);
    qsort(at, (size_t)n_marks, sizeof at[0], by_position);
    kv_timeline_mark(l->t, at, n_marks);
    const ingle_status st = kv_timeline_extend(l->t, n, &err);
    kv_timeline_mark(l->t, NULL, 0);
    assert_true(st == INGLE_OK || st == INGLE_LIMIT);
    if (st)
        return;
    uint64_t chain = world_chain(l->token, l->length);
    for (int64_t i = l->length; i < to; i++) {
        chain = world_mix(chain, (uint64_t)l->token[i]);
        world_write(w, l, i, chain);
    }
    for (int i = 0; i < n_marks; i++) {
        const bool there = kv_timeline_view(spare->t, l->t, at[i]);
        assert_true(there || at[i] <= l->length);
        spare->length = there ? at[i] : 0;
        memcpy(spare->token, l->token, (size_t)spare->length * sizeof spare->token[0]);
        world_check(w, spare);
        if (there)
            put(tree, puts, spare);
    }
    kv_timeline_clear(spare->t);
    spare->length = 0;
    kv_timeline_commit(l->t, n);
    l->length = to;
    l->rewind_to = num_max(l->rewind_to, num_max(0, to - KV_REWIND));
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
        for (int64_t g = 0; g < n_groups; g++) {
            world_group(&w, world_pick(&w, 0, 1) ? world_pick(&w, 1, 400) : 0,
                        (uint32_t)world_pick(&w, 1, 2));
            w.spec.group[g].ends = w.spec.group[g].window && world_pick(&w, 0, 1);
        }
        world_open(&w, roomy ? 64 << 20 : (uint64_t)world_pick(&w, 50, 400) * 1024);
        struct err err;
        struct kv_tree *tree;
        const uint64_t budget = roomy ? 64 << 20 : (uint64_t)world_pick(&w, 10, 300) * 1024;
        assert_int_equal(kv_tree_create(&tree, w.pool, budget, &err), INGLE_OK);
        for (int i = 0; i < WORLD_LINES; i++) {
            world_line_open(&w, i, world_pick(&w, 1, WORLD_MAX));
            world_tokens(&w, &w.line[i], 0);
        }
        static struct world_line aside;
        struct world_line *const spare = &aside;
        assert_int_equal(kv_timeline_create(&spare->t, w.pool, WORLD_MAX, &err), INGLE_OK);
        for (int n = 0; n < 300; n++) {
            struct world_line *l = &w.line[world_pick(&w, 0, WORLD_LINES - 1)];
            const int64_t op = world_pick(&w, 0, 99);
            if (op < 40)
                world_operate(&w, l);
            else if (op < 55)
                step_over_borders(&w, tree, &puts, l, spare);
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
        world_line_close(spare);
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

/* ---- directed ---- */

/* A world with a tree and `n` lines of max WORLD_MAX tokens that all begin alike. */
struct grove {
    struct world w;
    struct kv_tree *tree;
    struct report_sink sink;
    char said[256];
    int n_said;
};

static void hear(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
{
    struct grove *g = arg;
    (void)level;
    assert_string_equal(kind, "cache");
    assert_string_equal(subject, "prefix");
    g->n_said++;
    strncpy(g->said, text, sizeof g->said - 1);
}

/* window 0: one group only. */
static struct grove *grove_open(int64_t window, uint64_t pool_bytes, uint64_t tree_bytes, int n)
{
    static struct grove g;
    memset(&g, 0, sizeof g);
    g.sink = (struct report_sink){.report = hear, .arg = &g};
    world_group(&g.w, 0, 1);
    if (window)
        world_group(&g.w, window, 1);
    struct err err;
    assert_int_equal(kv_pool_create(&g.w.pool, &g.w.spec, pool_bytes, &g.sink, &err), INGLE_OK);
    assert_int_equal(kv_tree_create(&g.tree, g.w.pool, tree_bytes, &err), INGLE_OK);
    for (int i = 0; i < n; i++) {
        world_line_open(&g.w, i, WORLD_MAX);
        for (int64_t k = 0; k < WORLD_MAX; k++)
            g.w.line[i].token[k] = (int32_t)k;
    }
    return &g;
}

static void grove_close(struct grove *g)
{
    kv_tree_free(g->tree);
    world_close(&g->w);
}

static void step(struct grove *g, int line, int64_t n)
{
    assert_int_equal(world_step(&g->w, &g->w.line[line], n, n), INGLE_OK);
}

static int64_t found(struct grove *g, int line, int64_t n, int64_t limit)
{
    struct kv_match m;
    kv_tree_find(g->tree, kv_scope_of(0), g->w.line[line].token, n, limit, &m);
    return m.length;
}

static void attach(struct grove *g, int line, int64_t length)
{
    struct err err;
    struct kv_match m;
    struct world_line *l = &g->w.line[line];
    kv_tree_find(g->tree, kv_scope_of(0), l->token, WORLD_MAX, length, &m);
    assert_int_equal(m.length, length);
    assert_int_equal(kv_timeline_attach(l->t, g->tree, m.point, &err), INGLE_OK);
    l->length = l->rewind_to = length;
    world_check(&g->w, l);
}

static int64_t points(const struct grove *g)
{
    struct kv_tree_counts c;
    kv_tree_count(g->tree, &c);
    return c.points;
}

static void a_point_inside_a_page_outlives_its_timeline(void **state)
{
    (void)state;
    struct grove *g = grove_open(100, 1 << 20, 1 << 20, 3);
    step(g, 0, 100);
    put(g->tree, NULL, &g->w.line[0]);
    step(g, 0, 200);
    put(g->tree, NULL, &g->w.line[0]);
    step(g, 0, 50);
    for (int i = 1; i < 3; i++) {
        attach(g, i, 300);
        g->w.line[i].token[310] = -i; /* three ways on */
        step(g, i, 100);
        world_check(&g->w, &g->w.line[0]);
        world_check(&g->w, &g->w.line[i]);
    }
    attach(g, 1, 100);
    step(g, 1, 30);
    world_line_close(&g->w.line[0]);
    attach(g, 2, 300);
    world_check(&g->w, &g->w.line[1]);
    grove_close(g);
}

static void the_deepest_point_within_the_limit_is_found(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 1 << 20, 1 << 20, 2);
    static const int64_t at[] = {1, 2, 5, 127, 128, 129, 255, 256, 300, 640};
    const int n_at = sizeof at / sizeof at[0];
    for (int i = 0; i < n_at; i++) {
        step(g, 0, at[i] - g->w.line[0].length);
        put(g->tree, NULL, &g->w.line[0]);
    }
    assert_int_equal(points(g), n_at);
    for (int64_t limit = -3; limit < 700; limit++) {
        int64_t want = 0;
        for (int i = 0; i < n_at; i++)
            want = at[i] <= limit ? at[i] : want;
        assert_int_equal(found(g, 1, 700, limit), want);
        if (limit >= 0)
            assert_int_equal(found(g, 1, limit, 700), want);
    }
    struct kv_match m;
    g->w.line[1].token[200] = -1;
    kv_tree_find(g->tree, kv_scope_of(0), g->w.line[1].token, 700, 700, &m);
    assert_int_equal(m.length, 129);
    assert_int_equal(m.matched, 200);
    kv_tree_find(g->tree, kv_scope_of(0), NULL, 0, 5, &m);
    assert_true(!m.point && !m.matched);
    grove_close(g);
}

static void an_equal_point_is_refreshed(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 1 << 20, 1 << 20, 2);
    struct err err;
    step(g, 0, 200);
    put(g->tree, NULL, &g->w.line[0]);
    const uint64_t used = world_used(&g->w);
    step(g, 1, 200);
    assert_int_equal(kv_tree_put(g->tree, kv_scope_of(0), g->w.line[1].t, g->w.line[1].token, 200,
                                 "other", 5, &err),
                     INGLE_OK);
    assert_int_equal(points(g), 1);
    world_line_close(&g->w.line[1]);
    assert_true(world_used(&g->w) == used);
    struct kv_match m;
    kv_tree_find(g->tree, kv_scope_of(0), g->w.line[0].token, 200, 200, &m);
    assert_int_equal(m.mark_bytes, 16);
    assert_int_equal(kv_tree_put(g->tree, kv_scope_of(0), g->w.line[0].t, g->w.line[0].token, 199,
                                 NULL, 0, &err),
                     INGLE_ARG);
    assert_string_equal(err.msg, "a restore point of 199 tokens of a timeline of 200");
    struct kv_tree *second;
    assert_int_equal(kv_tree_create(&second, g->w.pool, 1, &err), INGLE_ARG);
    grove_close(g);
}

static void salts_share_nothing(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 1 << 20, 1 << 20, 2);
    struct err err;
    struct kv_match m;
    const struct world_line *l = &g->w.line[0];
    step(g, 0, 300);
    for (uint64_t salt = 1; salt < 4; salt++) {
        kv_tree_find(g->tree, kv_scope_of(salt), l->token, 300, 300, &m);
        assert_true(!m.point && !m.matched);
        assert_int_equal(
            kv_tree_put(g->tree, kv_scope_of(salt), l->t, l->token, 300, NULL, 0, &err), INGLE_OK);
        kv_tree_find(g->tree, kv_scope_of(salt), l->token, 300, 300, &m);
        assert_int_equal(m.length, 300);
        kv_tree_find(g->tree, kv_scope_of(salt + 1), l->token, 300, 300, &m);
        assert_true(!m.point && !m.matched);
    }
    kv_tree_find(g->tree, kv_scope_of(0), l->token, 300, 300, &m);
    assert_true(!m.point && !m.matched);
    assert_int_equal(points(g), 3);
    kv_tree_clear(g->tree);
    assert_int_equal(points(g), 0);
    assert_int_equal(kv_tree_put(g->tree, kv_scope_of(9), l->t, l->token, 300, NULL, 0, &err),
                     INGLE_OK);
    grove_close(g);
}

static int64_t found_as(const struct grove *g, struct kv_scope way, int64_t n, int64_t limit,
                        int64_t *matched)
{
    struct kv_match m;
    kv_tree_find(g->tree, way, g->w.line[0].token, n, limit, &m);
    *matched = m.matched;
    return m.length;
}

static void remember_as(struct grove *g, struct kv_scope way)
{
    struct err err;
    const struct world_line *l = &g->w.line[0];
    assert_int_equal(kv_tree_put(g->tree, way, l->t, l->token, l->length, NULL, 0, &err), INGLE_OK);
}

static const struct kv_scope dense = {.salt = 3};

static struct kv_scope sparse_way(int which, int64_t from)
{
    return (struct kv_scope){.salt = 3, .sparse = kv_sparse_of(3 + which, from)};
}

/* Of a text of which parts are left out, the first behind `from` tokens. */
static struct kv_scope shorten_way(int which, int64_t from)
{
    return (struct kv_scope){.salt = 3, .shorten = {.name = 77 + (uint64_t)which, .from = from}};
}

/* What ends at or before the place from which on rows are computed in another way is everybody's,
 * what is longer its own. */
static void kept_apart(struct kv_scope (*way)(int which, int64_t from), int64_t start)
{
    const struct kv_scope own_way = way(0, start), other = way(1, start);
    struct grove *g = grove_open(0, 1 << 22, 1 << 22, 2);
    int64_t matched, n = 0;
    /* dense points at every 50 tokens; others at every 100 */
    for (int k = 1; k <= 8; k++) {
        step(g, 0, 50);
        n += 50;
        remember_as(g, dense);
        if (k % 2 == 0)
            remember_as(g, own_way);
    }
    const int64_t shared = start / 50 * 50;
    for (int64_t limit = 0; limit <= n; limit += 25) {
        const int64_t own = limit / 100 * 100;
        assert_int_equal(found_as(g, dense, n, limit, &matched), limit / 50 * 50);
        assert_int_equal(matched, n);
        assert_int_equal(found_as(g, own_way, n, limit, &matched),
                         num_max(num_min(shared, limit / 50 * 50), own > start ? own : 0));
        assert_int_equal(matched, n);
        assert_int_equal(found_as(g, other, n, limit, &matched), num_min(shared, limit / 50 * 50));
        assert_int_equal(matched, num_min(n, start));
    }
    /* the other way round: a dense question does not see points of the other way */
    kv_tree_clear(g->tree);
    remember_as(g, own_way);
    assert_int_equal(found_as(g, dense, n, n, &matched), 0);
    assert_int_equal(matched, start / KV_PAGE * KV_PAGE); /* in whole blocks that are everybody's */
    assert_int_equal(found_as(g, other, n, n, &matched), 0);
    assert_int_equal(found_as(g, own_way, n, n, &matched), n);
    assert_true(kv_tree_use(g->tree, own_way, g->w.line[0].token, n, true));
    assert_false(kv_tree_use(g->tree, dense, g->w.line[0].token, n, true));
    kv_tree_owe(g->tree, own_way, g->w.line[0].token, n);
    struct kv_scope scope = {0};
    int32_t *token;
    int64_t n_owed;
    assert_non_null(kv_tree_owed(g->tree, &scope, &token, &n_owed));
    assert_true(scope.salt == 3 && scope.sparse == own_way.sparse &&
                scope.shorten.name == own_way.shorten.name &&
                scope.shorten.from == own_way.shorten.from && n_owed == n);
    mem_free(token);
    grove_close(g);
}

static const int64_t way_starts[] = {0, 1, 127, 128, 200, 256, 300};

static void sparse_prompts_are_kept_apart_from_where_they_begin(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof way_starts / sizeof *way_starts; i++)
        kept_apart(sparse_way, way_starts[i]);
}

static void shortened_prompts_are_kept_apart_from_their_first_gap(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof way_starts / sizeof *way_starts; i++)
        kept_apart(shorten_way, way_starts[i]);
}

/* Sparse and shortened: up to the first of the two with all, up to the second with those that have
 * the first one, too. */
static void a_sparse_and_shortened_prompt_shares_what_is_the_same(void **state)
{
    (void)state;
    static const int64_t begin[][2] = {{100, 250}, {250, 100}, {130, 140},
                                       {200, 200}, {0, 300},   {300, 0}};
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++) {
        const struct kv_scope sparse = sparse_way(0, begin[i][0]),
                              shorten = shorten_way(0, begin[i][1]);
        const struct kv_scope both = {
            .salt = 3, .sparse = sparse.sparse, .shorten = shorten.shorten};
        const int64_t start = begin[i][0], gap = begin[i][1];
        struct grove *g = grove_open(0, 1 << 22, 1 << 22, 2);
        int64_t matched, n = 0;
        /* every 50 tokens each has a point, and both together at 350 */
        for (int k = 1; k <= 8; k++) {
            step(g, 0, 50);
            n += 50;
            remember_as(g, dense);
            remember_as(g, sparse);
            remember_as(g, shorten);
            if (n == 350)
                remember_as(g, both);
        }
        for (int64_t limit = 0; limit <= n; limit += 25) {
            /* with either of the two, or with all */
            const int64_t same = num_max(start, gap) / 50 * 50;
            const int64_t found = limit >= 350 ? 350 : num_min(same, limit / 50 * 50);
            assert_int_equal(found_as(g, both, n, limit, &matched), found);
            assert_true(matched >= 350);
        }
        grove_close(g);
    }
}

static void a_miss_knows_what_was_given_up(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 1 << 20, 40000, 2);
    struct err err;
    const struct world_line *l = &g->w.line[0];
    step(g, 0, 300);
    assert_int_equal(kv_tree_put(g->tree, kv_scope_of(5), l->t, l->token, 300, NULL, 0, &err),
                     INGLE_OK);
    assert_int_equal(kv_tree_given_up(g->tree, kv_scope_of(5), l->token, 400, 0), 0);
    int64_t n = 300;
    for (uint64_t salt = 6; !kv_tree_given_up(g->tree, kv_scope_of(5), l->token, n, 0); salt++) {
        step(g, 0, 10);
        n += 10;
        assert_int_equal(kv_tree_put(g->tree, kv_scope_of(salt), l->t, l->token, n, NULL, 0, &err),
                         INGLE_OK);
        assert_true(points(g) > 0 && salt < 40);
    }
    assert_int_equal(kv_tree_given_up(g->tree, kv_scope_of(5), l->token, n, 0), 300);
    assert_int_equal(kv_tree_given_up(g->tree, kv_scope_of(5), l->token, 299, 0), 0);
    assert_int_equal(kv_tree_given_up(g->tree, kv_scope_of(5), l->token, n, 300), 0);
    assert_int_equal(kv_tree_given_up(g->tree, kv_scope_of(7), l->token, n, 0), 0);
    assert_int_equal(kv_tree_given_up(g->tree, kv_scope_of(5), l->token + 1, n, 0), 0);
    grove_close(g);
}

static void what_exceeds_the_budget_is_reported(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 1 << 20, 6000, 1);
    step(g, 0, 300);
    put(g->tree, NULL, &g->w.line[0]);
    assert_int_equal(points(g), 1);
    step(g, 0, 700);
    put(g->tree, NULL, &g->w.line[0]);
    assert_int_equal(g->n_said, 1);
    assert_non_null(strstr(g->said, "1000 tokens is not stored"));
    assert_int_equal(found(g, 0, 1000, 1000), 300);
    struct kv_tree_counts c;
    kv_tree_count(g->tree, &c);
    assert_true(c.bytes <= c.budget_bytes);
    grove_close(g);
}

/* Makes line 0 a conversation of its own (id), 300 tokens long, and remembers it. */
static void converse(struct grove *g, int32_t id)
{
    struct world_line *l = &g->w.line[0];
    kv_timeline_clear(l->t);
    l->length = 0;
    l->token[0] = -id;
    step(g, 0, 300);
    put(g->tree, NULL, l);
}

static bool remembered(struct grove *g, int32_t id)
{
    g->w.line[1].token[0] = -id;
    return found(g, 1, 300, 300) == 300;
}

static void the_least_recently_used_is_given_up_first(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 1 << 20, 20000, 2); /* of 4 KiB each and overhead: four fit */
    for (int32_t id = 1; id <= 4; id++)
        converse(g, id);
    assert_int_equal(points(g), 4);
    converse(g, 1); /* refreshed */
    converse(g, 5);
    assert_true(remembered(g, 1) && !remembered(g, 2) && remembered(g, 3) && remembered(g, 4));
    assert_true(remembered(g, 3));
    attach(g, 1, 300); /* the third: remembered() left its tokens */
    converse(g, 6);
    assert_true(!remembered(g, 4) && remembered(g, 3) && remembered(g, 1) && remembered(g, 5));
    struct kv_pool_counts c;
    kv_pool_count(g->w.pool, &c);
    assert_int_equal(c.evicted_points, 2);
    assert_int_equal(g->n_said, 2);
    assert_string_equal(g->said,
                        "a restore point of 300 tokens was given up: the prefix cache is full");
    grove_close(g);
}

static void what_others_begin_with_outlives_conversations(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 1 << 20, 20000, 2); /* four fit */
    for (int32_t id = 1; id <= 6; id++) {
        converse(g, id);
        g->w.line[1].token[0] = -id;
        assert_true(kv_tree_use(g->tree, kv_scope_of(0), g->w.line[1].token, 300, id == 1));
        assert_false(kv_tree_use(g->tree, kv_scope_of(0), g->w.line[1].token, 299, true));
        assert_false(kv_tree_use(g->tree, kv_scope_of(1), g->w.line[1].token, 300, true));
    }
    assert_true(remembered(g, 1) && remembered(g, 6) && !remembered(g, 2));
    for (int32_t id = 7; id <= 30; id++) /* not for ever */
        converse(g, id);
    assert_true(!remembered(g, 1) && remembered(g, 30));
    grove_close(g);
}

static void what_is_used_often_stays_longer(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 1 << 20, 20000, 2);
    converse(g, 1);
    for (int i = 0; i < 2000; i++) {
        assert_true(remembered(g, 1));
        attach(g, 1, 300);
    }
    int32_t id = 2;
    for (; id <= 5; id++)
        converse(g, id);
    assert_true(remembered(g, 1)); /* a plain one would have gone with the fifth */
    for (; id <= 40; id++)
        converse(g, id);
    assert_false(remembered(g, 1)); /* but nobody stays for ever */
    grove_close(g);
}

static void what_many_share_is_given_up_last(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 1 << 20, 40000, 2);
    step(g, 0, 1000); /* a system prompt */
    put(g->tree, NULL, &g->w.line[0]);
    for (int32_t id = 1; id < 60; id++) {
        g->w.line[0].token[1000] = -id;
        attach(g, 0, 1000);
        step(g, 0, 100);
        put(g->tree, NULL, &g->w.line[0]);
        world_check(&g->w, &g->w.line[0]);
    }
    assert_true(points(g) > 5);
    assert_int_equal(found(g, 1, 1000, 1000), 1000);
    grove_close(g);
}

/* A point whose pages others have come to need, too, costs little: it outlives them,
 * although it is the oldest and was never used.  When they are gone it is as any other. */
static void sharing_is_noticed_without_being_used(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 1 << 20, 60000, 3);
    step(g, 0, 700);
    put(g->tree, NULL, &g->w.line[0]);
    g->w.line[2].token[700] = -1;
    for (int i = 0; i <= 2; i += 2) {
        step(g, i, 1100 - g->w.line[i].length);
        put(g->tree, NULL, &g->w.line[i]);
    }
    int32_t id = 1;
    while (points(g) == id + 2)
        converse(g, id++);
    assert_int_equal(points(g), id + 1); /* the last one cost the first of the two */
    g->w.line[1].token[0] = 0;
    assert_int_equal(found(g, 1, 1100, 1100), 700);
    assert_int_equal(found(g, 2, 1100, 1100), 1100);
    while (found(g, 2, 1100, 1100))
        converse(g, id++);
    assert_true(remembered(g, 1)); /* older than all of them */
    grove_close(g);
}

static void a_point_close_to_another_is_worth_little(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 1 << 20, 19100, 2);
    converse(g, 1);
    step(g, 0, 1);
    put(g->tree, NULL, &g->w.line[0]);
    for (int32_t id = 2; id <= 4; id++)
        converse(g, id);
    assert_true(remembered(g, 4) && remembered(g, 3) && remembered(g, 2) && remembered(g, 1));
    assert_int_equal(found(g, 1, 301, 301), 300);
    grove_close(g);
}

static void the_pool_takes_no_point_that_frees_nothing(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 10 * 1024, 1 << 20, 3);
    converse(g, 1); /* the oldest, and line 0 lives on */
    g->w.line[2].token[0] = -2;
    step(g, 2, 300);
    put(g->tree, NULL, &g->w.line[2]);
    world_line_close(&g->w.line[2]);
    step(g, 1, 5 * KV_PAGE);
    assert_true(remembered(g, 1) && !remembered(g, 2));
    grove_close(g);
}

static void a_full_pool_takes_what_the_tree_alone_holds(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 16 * 1024, 1 << 20, 2); /* sixteen pages */
    for (int32_t id = 1; id <= 4; id++)
        converse(g, id); /* of three pages; the fourth is line 0's, too */
    struct err err;
    assert_int_equal(kv_timeline_extend(g->w.line[1].t, 14 * KV_PAGE, &err), INGLE_LIMIT);
    assert_non_null(strstr(err.msg, "the prefix cache could give 9216"));
    assert_int_equal(points(g), 4); /* nothing was given up in vain */
    g->w.line[1].token[0] = 0;
    step(g, 1, 9 * KV_PAGE);
    assert_true(!remembered(g, 1) && !remembered(g, 2) && remembered(g, 3) && remembered(g, 4));
    g->w.line[1].token[0] = 0;
    step(g, 1, 4 * KV_PAGE);
    assert_true(!remembered(g, 3) && remembered(g, 4));
    /* No page is left for a copy of line 0's last one, but it can become line 0's alone. */
    step(g, 0, 1);
    assert_int_equal(points(g), 0);
    world_check(&g->w, &g->w.line[0]);
    assert_int_equal(kv_timeline_extend(g->w.line[0].t, KV_PAGE, &err), INGLE_LIMIT);
    g->w.line[1].token[0] = 0;
    world_check(&g->w, &g->w.line[1]);
    grove_close(g);
}

static void a_plan_has_room_for_a_point_behind_the_timeline(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct world w = {.seed = seed};
        const int64_t window = world_pick(&w, 1, 700), n_step = world_pick(&w, 1, 300);
        const int64_t n_tokens = world_pick(&w, 200, WORLD_MAX),
                      at = world_pick(&w, 1, n_tokens - 1);
        struct grove *g = grove_open(window, 1 << 20, 1 << 20, 0);
        uint64_t bytes;
        assert_true(kv_plan_bytes(&g->w.spec, n_tokens, n_step, &bytes));
        grove_close(g);
        g = grove_open(window, bytes, 1 << 20, 1);
        g->w.seed = seed;
        while (g->w.line[0].length < n_tokens) {
            const int64_t left = (g->w.line[0].length < at ? at : n_tokens) - g->w.line[0].length;
            step(g, 0, num_min(world_pick(&w, 1, n_step), left));
            if (g->w.line[0].length == at)
                put(g->tree, NULL, &g->w.line[0]);
        }
        assert_int_equal(points(g), 1);
        attach(g, 0, at);
        grove_close(g);
    }
}

static void failing_memory_leaves_the_tree_as_it_was(void **state)
{
    (void)state;
    struct grove *g = grove_open(200, 1 << 20, 1 << 20, 2);
    struct err err;
    step(g, 0, 150);
    put(g->tree, NULL, &g->w.line[0]);
    step(g, 0, 500);
    struct kv_tree_counts before, after;
    ingle_status s = INGLE_NOMEM;
    int64_t fail;
    for (fail = 1; s != INGLE_OK; fail++) {
        kv_tree_count(g->tree, &before);
        mem_fail_in = fail;
        s = kv_tree_put(g->tree, kv_scope_of(0), g->w.line[0].t, g->w.line[0].token, 650, "mark", 4,
                        &err);
        mem_fail_in = 0;
        kv_tree_count(g->tree, &after);
        assert_true(s == INGLE_OK || (s == INGLE_NOMEM && before.bytes == after.bytes));
        assert_int_equal(found(g, 0, 650, 650), s == INGLE_OK ? 650 : 150);
    }
    assert_true(fail > 10);
    grove_close(g);
}

static void a_system_without_memory_gets_it_from_the_tree(void **state)
{
    (void)state;
    struct grove *g = grove_open(0, 15 * 1024, 1 << 20, 1); /* each page is a slab */
    converse(g, 1);
    kv_timeline_clear(g->w.line[0].t);
    g->w.line[0].length = 0;
    mem_fail_in = 1;
    step(g, 0, 1);
    mem_fail_in = 0;
    assert_int_equal(points(g), 0);
    grove_close(g);
}

static void ten_thousand_points_are_told_apart(void **state)
{
    (void)state;
    enum { N = 10000 };
    struct grove *g = grove_open(0, 64 << 20, 64 << 20, 1);
    struct world_line *l = &g->w.line[0];
    step(g, 0, 200);
    for (int round = 0; round < 2; round++)
        for (int32_t i = 0; i < N; i++) {
            struct err err;
            /* one in a hundred has a block of its own before the tail */
            const int64_t n = i % 100 ? 40 + i % 60 : 300;
            memcpy(&l->token[0], &(int32_t[]){i * 7919 % N, i}, 2 * sizeof(int32_t));
            if (!round) {
                kv_timeline_clear(l->t);
                l->length = 0;
                step(g, 0, n);
                put(g->tree, NULL, l);
            }
            struct kv_match m;
            kv_tree_find(g->tree, kv_scope_of(0), l->token, 400, 400, &m);
            assert_int_equal(m.length, n);
            assert_int_equal(m.matched, n);
            if (round) {
                assert_int_equal(kv_timeline_attach(l->t, g->tree, m.point, &err), INGLE_OK);
                l->length = n;
                world_check(&g->w, l);
            }
        }
    assert_int_equal(points(g), N);
    grove_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_puts_and_finds_are_what_the_model_says),
        cmocka_unit_test(a_point_inside_a_page_outlives_its_timeline),
        cmocka_unit_test(the_deepest_point_within_the_limit_is_found),
        cmocka_unit_test(an_equal_point_is_refreshed),
        cmocka_unit_test(salts_share_nothing),
        cmocka_unit_test(sparse_prompts_are_kept_apart_from_where_they_begin),
        cmocka_unit_test(shortened_prompts_are_kept_apart_from_their_first_gap),
        cmocka_unit_test(a_sparse_and_shortened_prompt_shares_what_is_the_same),
        cmocka_unit_test(a_miss_knows_what_was_given_up),
        cmocka_unit_test(what_exceeds_the_budget_is_reported),
        cmocka_unit_test(the_least_recently_used_is_given_up_first),
        cmocka_unit_test(what_others_begin_with_outlives_conversations),
        cmocka_unit_test(what_is_used_often_stays_longer),
        cmocka_unit_test(what_many_share_is_given_up_last),
        cmocka_unit_test(sharing_is_noticed_without_being_used),
        cmocka_unit_test(a_point_close_to_another_is_worth_little),
        cmocka_unit_test(the_pool_takes_no_point_that_frees_nothing),
        cmocka_unit_test(a_full_pool_takes_what_the_tree_alone_holds),
        cmocka_unit_test(a_plan_has_room_for_a_point_behind_the_timeline),
        cmocka_unit_test(failing_memory_leaves_the_tree_as_it_was),
        cmocka_unit_test(a_system_without_memory_gets_it_from_the_tree),
        cmocka_unit_test(ten_thousand_points_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
