/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/kv_world.h"

#include "kv/page.h"

static void open_pages(struct world *w, size_t a_bytes, size_t b_bytes, uint64_t budget_bytes)
{
    memset(w, 0, sizeof *w);
    world_group(w, 0, 1);
    world_group(w, 0, 1);
    w->spec.group[0].page_bytes = a_bytes;
    w->spec.group[1].page_bytes = b_bytes;
    world_open(w, budget_bytes);
}

/* Takes pages of the group until there are no more; returns how many. */
static int take_all(struct world *w, uint32_t group, struct kv_page **page, int cap)
{
    int n = 0;
    for (struct kv_page *pg; n < cap && (pg = kv_page_take(w->pool, group)); n++) {
        assert_int_equal((uintptr_t)pg->at % 64, 0);
        memset(pg->at, n, 64);
        page[n] = pg;
    }
    for (int i = 0; i < n; i++)
        assert_int_equal(page[i]->at[63], i & 255);
    return n;
}

static void groups_hand_memory_to_each_other(void **state)
{
    (void)state;
    static struct world w;
    static struct kv_page *page[1024];
    open_pages(&w, 1024, 4096, 100 * 4096);
    for (int round = 0; round < 3; round++) {
        int n = take_all(&w, 0, page, 1024);
        assert_int_equal(n, 400);
        assert_true(world_used(&w) == 400 * 1024);
        assert_true(w.pool->system_bytes <= w.pool->budget_bytes);
        while (n-- > 0)
            kv_page_unref(w.pool, page[n]);
        n = take_all(&w, 1, page, 1024);
        assert_int_equal(n, 100);
        assert_true(w.pool->system_bytes <= w.pool->budget_bytes);
        while (n-- > 0)
            kv_page_unref(w.pool, page[n]);
        assert_true(world_used(&w) == 0);
    }
    struct kv_pool_counts c;
    kv_pool_count(w.pool, &c);
    assert_true(c.peak_bytes == c.budget_bytes);
    world_close(&w);
}

/* Pages scattered over slabs do not keep the other group from its share. */
static void slabs_partly_used_do_not_eat_the_budget(void **state)
{
    (void)state;
    static struct world w;
    static struct kv_page *page[1024], *other[1024];
    open_pages(&w, 1024, 4096, 100 * 4096);
    const int n = take_all(&w, 0, page, 1024);
    for (int i = 0; i < n; i++)
        if (i % 10)
            kv_page_unref(w.pool, page[i]);
    const int m = take_all(&w, 1, other, 1024);
    assert_int_equal(m, 90);
    for (int i = 0; i < m; i++)
        kv_page_unref(w.pool, other[i]);
    for (int i = 0; i < n; i += 10)
        kv_page_unref(w.pool, page[i]);
    world_close(&w);
}

static void large_pages_are_exact(void **state)
{
    (void)state;
    static struct world w;
    static struct kv_page *page[64];
    open_pages(&w, 3 << 20, 5 << 20, 21 << 20);
    int n = take_all(&w, 0, page, 64);
    assert_int_equal(n, 7);
    assert_true(w.pool->system_bytes == w.pool->used_bytes);
    kv_page_unref(w.pool, page[--n]);
    kv_page_unref(w.pool, page[--n]);
    struct kv_page *b = kv_page_take(w.pool, 1);
    assert_non_null(b);
    assert_true(w.pool->system_bytes <= w.pool->budget_bytes);
    kv_page_unref(w.pool, b);
    while (n-- > 0)
        kv_page_unref(w.pool, page[n]);
    world_close(&w);
}

static void a_budget_below_a_page_of_each_group_is_refused(void **state)
{
    (void)state;
    struct kv_spec s = {.n_groups = 2};
    s.group[0].page_bytes = 1000;
    s.group[1].page_bytes = 24;
    struct kv_pool *p = NULL;
    struct err err;
    assert_int_equal(kv_pool_create(&p, &s, 1023, NULL, &err), INGLE_LIMIT);
    assert_string_equal(err.msg,
                        "a KV budget of 1023 bytes cannot hold one page of each group: 1024 bytes");
    s.group[1].page_bytes = 0;
    assert_int_equal(kv_pool_create(&p, &s, 5000, NULL, &err), INGLE_ARG);
    s.n_groups = 0;
    assert_int_equal(kv_pool_create(&p, &s, 5000, NULL, &err), INGLE_ARG);
    assert_null(p);
    kv_pool_free(NULL);
}

static void counts_follow_every_reference(void **state)
{
    (void)state;
    static struct world w;
    struct page_model {
        struct kv_page *page;
        int line, tree;
    } m[24] = {0};
    open_pages(&w, 640, 1920, 24000);
    for (int n = 0; n < 20000; n++) {
        struct page_model *x = &m[world_pick(&w, 0, 23)];
        const int64_t op = world_pick(&w, 0, 3);
        if (!x->line && !x->tree) {
            x->page = kv_page_take(w.pool, (uint32_t)world_pick(&w, 0, 1));
            x->line = x->page != NULL;
        } else if (op == 0) {
            kv_page_ref(w.pool, x->page);
            x->line++;
        } else if (op == 1) {
            kv_page_hold(w.pool, x->page);
            x->tree++;
        } else if (op == 2 && x->line) {
            kv_page_unref(w.pool, x->page);
            x->line--;
        } else if (op == 3 && x->tree) {
            kv_page_let(w.pool, x->page);
            x->tree--;
        }
        uint64_t used = 0, held = 0, cached = 0;
        for (int i = 0; i < 24; i++) {
            const size_t bytes = m[i].line || m[i].tree ? kv_page_bytes(m[i].page) : 0;
            used += bytes;
            held += m[i].tree ? bytes : 0;
            cached += m[i].line ? 0 : bytes;
        }
        assert_true(world_used(&w) == used && w.pool->held_bytes == held &&
                    w.pool->cached_bytes == cached);
    }
    for (int i = 0; i < 24; i++) {
        while (m[i].line-- > 0)
            kv_page_unref(w.pool, m[i].page);
        while (m[i].tree-- > 0)
            kv_page_let(w.pool, m[i].page);
    }
    world_close(&w);
}

/* ---- the part that a device has ---- */

/* Bytes of a device's memory, which is the host's here. */
static int64_t own_taken;

static void *take_own(void *arg, uint32_t group, size_t n_bytes)
{
    (void)arg;
    (void)group;
    if (own_taken + (int64_t)n_bytes > 1 << 20)
        return NULL;
    own_taken += (int64_t)n_bytes;
    return mem_alloc(n_bytes);
}

static void give_own(void *arg, void *own, size_t n_bytes)
{
    (void)arg;
    own_taken -= (int64_t)n_bytes;
    mem_free(own);
}

static void copy_own(void *arg, void *to, const void *from, size_t n_bytes)
{
    (void)arg;
    memcpy(to, from, n_bytes);
}

static bool read_own(void *arg, uint32_t stream, void *host, const void *own, size_t n_bytes)
{
    (void)stream;
    memcpy(host, own, n_bytes);
    return !*(bool *)arg;
}

static void write_own(void *arg, uint32_t stream, void *own, const void *host, size_t n_bytes)
{
    (void)arg;
    (void)stream;
    memcpy(own, host, n_bytes);
}

/* Streams of 8, 16 and 24 bytes a position; the one in the middle is own. */
static void open_parts(struct world *w, struct kv_stream stream[3], bool *lost)
{
    struct err err;
    memset(w, 0, sizeof *w);
    own_taken = 0;
    for (uint32_t i = 0; i < 3; i++)
        stream[i] = (struct kv_stream){.kind = KV_ROWS,
                                       .layer = i,
                                       .k_width = 2 + 2 * i,
                                       .k_codec = KERN_KV_F32,
                                       .v_codec = KERN_KV_F32,
                                       .every = 1,
                                       .own = i == 1};
    w->spec = (struct kv_spec){.n_groups = 1, .n_streams = 3, .stream = stream};
    assert_int_equal(kv_layout(&w->spec, &err), INGLE_OK);
    kv_spec_set_own(&w->spec);
    assert_int_equal(w->spec.group[0].own_at, stream[1].at);
    assert_int_equal(w->spec.group[0].own_bytes, 16 * KV_PAGE);
    assert_int_equal(kv_stream_at(&w->spec, &stream[1]), 0);
    assert_int_equal(kv_stream_at(&w->spec, &stream[2]), stream[2].at);
    world_open(w, 20 * w->spec.group[0].page_bytes);
    kv_pool_own(w->pool,
                &(struct kv_memory){lost, take_own, give_own, copy_own, read_own, write_own});
    world_line_open(w, 0, WORLD_MAX);
    world_line_open(w, 1, WORLD_MAX);
}

static void fill(struct kv_timeline *t, const struct kv_stream *s, const struct kv_spec *spec,
                 int page, int value)
{
    memset(kv_timeline_stream(t, s)[page] + kv_stream_at(spec, s), value, s->n_bytes);
}

static void pages_have_two_parts(void **state)
{
    (void)state;
    static struct world w;
    struct kv_stream stream[3];
    struct err err;
    bool lost = false;
    open_parts(&w, stream, &lost);
    struct kv_timeline *a = w.line[0].t, *b = w.line[1].t;
    assert_int_equal(kv_timeline_extend(a, 200, &err), INGLE_OK);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            fill(a, &stream[i], &w.spec, k, 10 * i + k + 1);
    kv_timeline_commit(a, 200);
    assert_true(kv_timeline_stream(a, &stream[1])[0] != kv_timeline_pages(a, 0)[0]);
    /* the shared last page is copied with its own part */
    assert_int_equal(kv_timeline_fork(b, a, &err), INGLE_OK);
    assert_int_equal(kv_timeline_extend(b, 10, &err), INGLE_OK);
    uint8_t *const *own = kv_timeline_stream(b, &stream[1]);
    assert_ptr_equal(own[0], kv_timeline_stream(a, &stream[1])[0]);
    assert_true(own[1] != kv_timeline_stream(a, &stream[1])[1]);
    assert_int_equal(own[1][16 * KV_PAGE - 1], 12);
    assert_int_equal(kv_timeline_pages(b, 0)[1][stream[2].at], 22);
    /* what is lost is lost until the timeline is cleared */
    assert_false(kv_timeline_is_lost(a));
    lost = true;
    stream[1].own = false;
    kv_spec_set_own(&w.spec);
    kv_pool_lose_own(w.pool, true);
    assert_true(kv_timeline_is_lost(a) && kv_timeline_is_lost(b));
    assert_int_equal(kv_timeline_fork(b, a, &err), INGLE_OK);
    assert_true(kv_timeline_is_lost(b));
    kv_timeline_clear(b);
    assert_int_equal(kv_timeline_extend(b, 200, &err), INGLE_OK);
    kv_timeline_commit(b, 200);
    assert_false(kv_timeline_is_lost(b));
    assert_ptr_equal(kv_timeline_stream(b, &stream[1])[0], kv_timeline_pages(b, 0)[0]);
    world_line_close(&w.line[0]);
    world_line_close(&w.line[1]);
    kv_pool_free(w.pool);
    assert_int_equal(own_taken, 0);
}

/* Of several nodes a page that is free again is for positions of the same node, if there are some;
 * none is refused because of its place, and the budget is what it was. */
static void pages_of_positions_have_nodes(void **state)
{
    (void)state;
    enum { BYTES = 2 << 20, N = 5 };
    static struct world w;
    static struct kv_stream heads = {.kind = KV_HEADS, .group = 0};
    static const struct numa_nodes nodes = {2, {901, 902}}; /* none that there is */
    static const int64_t index[N] = {0, 16, 32, 48, 64}; /* nodes: all, 1, 0, 1, 0 */
    struct kv_page *page[N];
    uint8_t *at[N];
    open_pages(&w, BYTES, 4096, N * (uint64_t)BYTES + 4096);
    w.spec.stream = &heads;
    w.spec.n_streams = 1;
    kv_pool_memory(w.pool, &nodes, true, false);
    for (int i = 0; i < N; i++) {
        assert_non_null(page[i] = kv_page_take_at(w.pool, 0, index[i]));
        at[i] = page[i]->at;
    }
    assert_null(kv_page_take_at(w.pool, 0, 1));
    for (int i = 0; i < N; i++)
        kv_page_unref(w.pool, page[i]);
    for (int i = 0; i < N; i++) { /* in another order */
        const int k = i * 3 % N;
        assert_non_null(page[k] = kv_page_take_at(w.pool, 0, index[k] + i));
        assert_true(page[k]->at == at[k] || (k && (page[k]->at == at[(k + 1) % 4 + 1])));
    }
    assert_true(w.pool->system_bytes <= w.pool->budget_bytes);
    kv_page_unref(w.pool, page[1]);
    assert_non_null(page[1] = kv_page_take_at(w.pool, 0, 32)); /* of the other node: all the same */
    for (int i = 0; i < N; i++)
        kv_page_unref(w.pool, page[i]);
    w.spec.stream = NULL;
    w.spec.n_streams = 0;
    world_close(&w);
}

/* Small pages of one node share slabs, also those that are free again; a page that finds no room on
 * its node lies on another one. */
static void small_pages_of_a_node_share_slabs(void **state)
{
    (void)state;
    enum { BYTES = 256 << 10, N = 64 };
    static const struct numa_nodes nodes = {2, {901, 902}};
    static const int home[N / 16] = {-1, 1, 0, 1};
    static struct kv_page *page[N], *more[N];
    const void *slab[N];
    struct world w;
    open_pages(&w, BYTES, 4096, N * (uint64_t)BYTES + 4096);
    kv_pool_memory(w.pool, &nodes, true, false);
    for (int i = 0; i < N; i++) { /* nodes, 16 pages each: all, 1, 0, 1 */
        assert_non_null(page[i] = kv_page_take_at(w.pool, 0, i));
        slab[i] = page[i]->slab;
        for (int k = 0; k < i; k++)
            assert_true(home[i / 16] == home[k / 16] || slab[i] != slab[k]);
    }
    assert_int_equal(w.pool->system_bytes, N * (uint64_t)BYTES);
    assert_null(kv_page_take_at(w.pool, 0, 0));
    for (int i = 16; i < 24; i++)
        kv_page_unref(w.pool, page[i]);
    for (int i = 0; i < 4; i++) { /* first of the same node, then of any */
        assert_non_null(more[i] = kv_page_take_at(w.pool, 0, i % 2 ? 1000 : 24));
        assert_true(more[i]->slab == slab[16] || more[i]->slab == slab[20]);
    }
    assert_int_equal(w.pool->system_bytes, N * (uint64_t)BYTES);
    for (int i = 0; i < 4; i++)
        kv_page_unref(w.pool, more[i]);
    for (int i = 0; i < N; i++)
        if (i < 16 || i >= 24)
            kv_page_unref(w.pool, page[i]);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_have_two_parts),
        cmocka_unit_test(groups_hand_memory_to_each_other),
        cmocka_unit_test(slabs_partly_used_do_not_eat_the_budget),
        cmocka_unit_test(large_pages_are_exact),
        cmocka_unit_test(pages_of_positions_have_nodes),
        cmocka_unit_test(small_pages_of_a_node_share_slabs),
        cmocka_unit_test(a_budget_below_a_page_of_each_group_is_refused),
        cmocka_unit_test(counts_follow_every_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
