/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/kv_world.h"

#include "unit/mem_fail.h"

/* A line of `length` tokens in a world with one group of everything and one window. */
static void window_world(struct world *w, int64_t window, int64_t length)
{
    memset(w, 0, sizeof *w);
    world_group(w, 0, 2);
    world_group(w, window, 3);
    world_open(w, 1 << 22);
    world_line_open(w, 0, WORLD_MAX);
    world_tokens(w, &w->line[0], 0);
    while (w->line[0].length < length)
        assert_int_equal(world_step(w, &w->line[0], 1, 1), INGLE_OK);
    world_check(w, &w->line[0]);
}

static void a_window_keeps_what_is_seen_and_what_a_rewind_needs(void **state)
{
    (void)state;
    static struct world w;
    static const int64_t window[] = {1, 5, 63, 64, 100, 127, 128, 129, 200, 256, 300, 512};
    for (size_t i = 0; i < sizeof window / sizeof window[0]; i++) {
        for (int64_t length = 640; length < 640 + KV_PAGE + 2;
             length += 1 + (length % 64 > 3) * 20) {
            window_world(&w, window[i], length);
            const int64_t keep = num_max(0, length - window[i] - KV_REWIND) / KV_PAGE;
            uint8_t *const *page = kv_timeline_pages(w.line[0].t, 1);
            for (int64_t k = 0; k < num_div_up(length, KV_PAGE); k++)
                assert_int_equal(page[k] != NULL, k >= keep);
            struct err err;
            w.line[0].length -= KV_REWIND;
            assert_true(kv_timeline_can_rewind(w.line[0].t, w.line[0].length));
            assert_int_equal(kv_timeline_rewind(w.line[0].t, w.line[0].length, &err), INGLE_OK);
            world_check(&w, &w.line[0]);
            assert_int_equal(world_step(&w, &w.line[0], 70, 70), INGLE_OK);
            world_check(&w, &w.line[0]);
            world_close(&w);
        }
    }
}

static void ends_of_steps_take_no_pages_for_the_rest(void **state)
{
    (void)state;
    static struct world w;
    window_world(&w, 8, 0);
    w.spec.group[1].ends = true;
    assert_int_equal(world_step(&w, &w.line[0], 600, 600), INGLE_OK);
    struct kv_pool_counts n;
    kv_pool_count(w.pool, &n);
    assert_true(n.peak_bytes == 5 * w.spec.group[0].page_bytes + w.spec.group[1].page_bytes);
    world_check(&w, &w.line[0]);
    world_close(&w);
}

static void a_rewind_too_far_changes_nothing(void **state)
{
    (void)state;
    static struct world w;
    struct err err;
    window_world(&w, 128, 900);
    assert_false(kv_timeline_can_rewind(w.line[0].t, 600));
    assert_int_equal(kv_timeline_rewind(w.line[0].t, 600, &err), INGLE_NOTFOUND);
    assert_non_null(strstr(err.msg, "900 tokens to 600"));
    assert_int_equal(kv_timeline_rewind(w.line[0].t, 901, &err), INGLE_ARG);
    assert_int_equal(kv_timeline_rewind(w.line[0].t, -1, &err), INGLE_ARG);
    world_check(&w, &w.line[0]);
    assert_true(kv_timeline_can_rewind(w.line[0].t, 0));
    w.line[0].length = 0;
    assert_int_equal(kv_timeline_rewind(w.line[0].t, 0, &err), INGLE_OK);
    assert_true(world_used(&w) == 0);
    world_close(&w);
}

static void the_limit_of_tokens_is_an_error_with_numbers(void **state)
{
    (void)state;
    static struct world w;
    memset(&w, 0, sizeof w);
    world_group(&w, 0, 1);
    world_open(&w, 1 << 20);
    world_line_open(&w, 0, 300);
    struct err err;
    assert_int_equal(world_step(&w, &w.line[0], 290, 290), INGLE_OK);
    assert_int_equal(kv_timeline_extend(w.line[0].t, 11, &err), INGLE_LIMIT);
    assert_string_equal(err.msg, "11 more tokens after 290 exceed the limit of 300 tokens");
    assert_int_equal(kv_timeline_extend(w.line[0].t, -1, &err), INGLE_ARG);
    assert_int_equal(world_step(&w, &w.line[0], 10, 10), INGLE_OK);
    world_line_open(&w, 1, 299);
    assert_int_equal(kv_timeline_fork(w.line[1].t, w.line[0].t, &err), INGLE_LIMIT);
    assert_string_equal(err.msg, "a fork of 300 tokens exceeds the limit of 299 tokens");
    world_close(&w);
}

static void a_full_pool_is_an_error_and_changes_nothing(void **state)
{
    (void)state;
    static struct world w;
    memset(&w, 0, sizeof w);
    world_group(&w, 0, 2);
    world_group(&w, 100, 1);
    world_open(&w, 10 * 1024); /* pages of 2 and 1 KiB */
    world_line_open(&w, 0, WORLD_MAX);
    world_line_open(&w, 1, WORLD_MAX);
    world_tokens(&w, &w.line[0], 0);
    world_tokens(&w, &w.line[1], 0);
    struct err err;
    assert_int_equal(world_step(&w, &w.line[0], 300, 300), INGLE_OK);
    assert_int_equal(kv_timeline_extend(w.line[1].t, 129, &err), INGLE_LIMIT);
    assert_non_null(strstr(err.msg, "129 more tokens after 0 need 6144 bytes"));
    assert_true(world_used(&w) == 8192); /* 300 positions less the window's page behind 136 */
    assert_int_equal(world_step(&w, &w.line[1], 1, 0), INGLE_LIMIT);
    world_check(&w, &w.line[0]);
    world_line_close(&w.line[0]);
    assert_int_equal(world_step(&w, &w.line[1], 129, 129), INGLE_OK);
    world_check(&w, &w.line[1]);
    world_close(&w);
}

static void a_failing_system_changes_nothing(void **state)
{
    (void)state;
    static struct world w;
    ingle_status s = INGLE_NOMEM;
    int64_t fail;
    for (fail = 1; s != INGLE_OK; fail++) {
        memset(&w, 0, sizeof w);
        world_group(&w, 0, 2);
        world_group(&w, 200, 3);
        world_open(&w, 44 << 10); /* so tight that each page is a slab */
        world_line_open(&w, 0, WORLD_MAX);
        world_line_open(&w, 1, WORLD_MAX);
        world_tokens(&w, &w.line[0], 0);
        assert_int_equal(world_step(&w, &w.line[0], 300, 300), INGLE_OK);
        struct err err;
        assert_int_equal(kv_timeline_fork(w.line[1].t, w.line[0].t, &err), INGLE_OK);
        const uint64_t used = world_used(&w);
        mem_fail_in = fail;
        s = kv_timeline_extend(w.line[0].t, 500, &err);
        mem_fail_in = 0;
        if (s != INGLE_OK) {
            assert_int_equal(s, INGLE_NOMEM);
            assert_true(world_used(&w) == used);
        }
        world_check(&w, &w.line[0]);
        assert_int_equal(world_step(&w, &w.line[0], 500, 500), INGLE_OK);
        world_check(&w, &w.line[0]);
        world_close(&w);
    }
    assert_int_equal(fail - 2, 2 * (4 + 4 + 2)); /* pages and their headers, two of them copies */
}

static void half_built_timelines_end_well(void **state)
{
    (void)state;
    static struct world w;
    memset(&w, 0, sizeof w);
    world_group(&w, 0, 1);
    world_group(&w, 100, 1);
    world_open(&w, 1 << 20);
    struct err err;
    int64_t fail = 0;
    ingle_status s;
    do {
        mem_fail_in = ++fail;
        s = kv_timeline_create(&w.line[0].t, w.pool, 1000, &err);
        mem_fail_in = 0;
        assert_true(s == INGLE_OK || s == INGLE_NOMEM);
    } while (s != INGLE_OK);
    assert_int_equal(fail, 6);
    assert_int_equal(kv_timeline_create(&w.line[1].t, w.pool, 0, &err), INGLE_ARG);
    world_close(&w);
}

static void a_fork_shares_until_one_of_them_writes(void **state)
{
    (void)state;
    static struct world w;
    struct err err;
    window_world(&w, 200, 300);
    struct world_line *a = &w.line[0], *b = &w.line[1];
    const uint64_t used = world_used(&w);
    world_line_open(&w, 1, WORLD_MAX);
    assert_int_equal(kv_timeline_fork(b->t, a->t, &err), INGLE_OK);
    memcpy(b->token, a->token, sizeof b->token);
    b->length = a->length;
    assert_true(world_used(&w) == used);
    world_tokens(&w, b, b->length);
    assert_int_equal(world_step(&w, b, 10, 10), INGLE_OK);
    assert_true(world_used(&w) == used + w.spec.group[0].page_bytes + w.spec.group[1].page_bytes);
    assert_int_equal(world_step(&w, a, 10, 10), INGLE_OK); /* its page is its own again */
    assert_true(world_used(&w) == used + w.spec.group[0].page_bytes + w.spec.group[1].page_bytes);
    world_check(&w, a);
    world_check(&w, b);
    world_close(&w);
}

static void random_operations_leave_what_the_model_says(void **state)
{
    (void)state;
    static struct world w;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        memset(&w, 0, sizeof w);
        w.seed = seed;
        const int64_t n_groups = world_pick(&w, 1, 4);
        for (int64_t g = 0; g < n_groups; g++)
            world_group(&w, world_pick(&w, 0, 1) ? world_pick(&w, 1, 400) : 0,
                        (uint32_t)world_pick(&w, 1, 3));
        for (uint32_t g = 0; g < w.spec.n_groups && seed % 2; g++)
            w.spec.group[g].ends = w.spec.group[g].window && world_pick(&w, 0, 1);
        world_open(&w, (uint64_t)world_pick(&w, 16, 400) * 1024);
        for (int i = 0; i < WORLD_LINES; i++) {
            world_line_open(&w, i, world_pick(&w, 1, WORLD_MAX));
            world_tokens(&w, &w.line[i], 0);
        }
        for (int n = 0; n < 200; n++) {
            world_operate(&w, &w.line[world_pick(&w, 0, WORLD_LINES - 1)]);
            for (int i = 0; i < WORLD_LINES; i++)
                world_check(&w, &w.line[i]);
            (void)world_used(&w);
        }
        world_close(&w);
    }
}

static void a_plan_is_enough(void **state)
{
    (void)state;
    static struct world w;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        memset(&w, 0, sizeof w);
        w.seed = seed;
        world_group(&w, 0, 1);
        world_group(&w, world_pick(&w, 1, 700), 2);
        w.spec.group[1].ends = seed % 2;
        const int64_t n_step = world_pick(&w, 1, 300), n_tokens = world_pick(&w, 1, WORLD_MAX);
        uint64_t bytes;
        assert_true(kv_plan_bytes(&w.spec, n_tokens, n_step, &bytes));
        world_open(&w, bytes < 3072 ? 3072 : bytes);
        world_line_open(&w, 0, n_tokens);
        while (w.line[0].length < n_tokens) {
            const int64_t n = num_min(world_pick(&w, 1, n_step), n_tokens - w.line[0].length);
            assert_int_equal(world_step(&w, &w.line[0], n, n), INGLE_OK);
        }
        world_check(&w, &w.line[0]);
        world_close(&w);
    }
    uint64_t bytes = 7;
    assert_false(kv_plan_bytes(&w.spec, INT64_MAX, 1, &bytes));
    assert_false(kv_plan_bytes(&w.spec, -1, 1, &bytes));
    assert_true(bytes == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_keeps_what_is_seen_and_what_a_rewind_needs),
        cmocka_unit_test(ends_of_steps_take_no_pages_for_the_rest),
        cmocka_unit_test(a_rewind_too_far_changes_nothing),
        cmocka_unit_test(the_limit_of_tokens_is_an_error_with_numbers),
        cmocka_unit_test(a_full_pool_is_an_error_and_changes_nothing),
        cmocka_unit_test(a_failing_system_changes_nothing),
        cmocka_unit_test(half_built_timelines_end_well),
        cmocka_unit_test(a_fork_shares_until_one_of_them_writes),
        cmocka_unit_test(random_operations_leave_what_the_model_says),
        cmocka_unit_test(a_plan_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
