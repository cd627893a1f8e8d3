/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "sched/sched.h"

#include <string.h>

static int64_t sum(const struct sched_row *row, int n)
{
    int64_t s = 0;
    for (int i = 0; i < n; i++)
        s += row[i].n;
    return s;
}

static void answers_take_a_row_each_and_prompts_the_rest(void **state)
{
    (void)state;
    struct sched_row row[] = {
        {.pending = 1, .answers = true},
        {.pending = 5000},
        {.pending = 1, .answers = true},
    };
    sched_step_plan(row, 3, &(struct sched_room){512, 16, 0}, 100);
    assert_int_equal(row[0].n, 1);
    assert_int_equal(row[1].n, 100);
    assert_int_equal(row[2].n, 1);
    sched_step_plan(row, 3, &(struct sched_room){50, 16, 7}, 100);
    assert_int_equal(row[1].n, 48);
    sched_step_plan(row, 3, &(struct sched_room){512, 16, 7}, 0);
    assert_int_equal(sum(row, 3), 2);
}

static void prompts_share_evenly_by_user_then_by_request(void **state)
{
    (void)state;
    struct sched_row row[] = {
        {.pending = 1000, .user = "a"},
        {.pending = 1000, .user = "a"},
        {.pending = 10, .user = "a"},
        {.pending = 1000, .user = "b"},
    };
    row[1].user = row[2].user = row[0].user;
    sched_step_plan(row, 4, &(struct sched_room){512, 16, 0}, 400);
    assert_int_equal(row[3].n, 200);
    assert_int_equal(row[2].n, 10);
    assert_int_equal(row[0].n, 95);
    assert_int_equal(row[1].n, 95);
}

static void the_higher_priority_takes_what_it_wants(void **state)
{
    (void)state;
    struct sched_row row[] = {
        {.pending = 1000, .priority = -1},
        {.pending = 60, .priority = 5},
        {.pending = 1000, .priority = 0},
    };
    sched_step_plan(row, 3, &(struct sched_room){100, 16, 3}, 100);
    assert_int_equal(row[1].n, 60);
    assert_int_equal(row[2].n, 40);
    assert_int_equal(row[0].n, 0);
}

static void a_pause_and_the_rows_of_logits_are_limits(void **state)
{
    (void)state;
    struct sched_row row[] = {
        {.pending = 1000, .stop = 30},
        {.pending = 1000, .all_logits = true},
        {.pending = 5},
        {.pending = 5},
    };
    sched_step_plan(row, 4, &(struct sched_room){512, 16, 0}, 512);
    assert_int_equal(row[0].n, 30);
    assert_true(row[1].n >= 1 && row[1].n <= 16);
    const int64_t logits = row[1].n + (row[2].n == 5) + (row[3].n == 5);
    assert_true(logits <= 16);
}

/* With one row of logits a step, everybody still comes to an end. */
static void few_rows_of_logits_go_round(void **state)
{
    (void)state;
    enum { K = 5 };
    struct sched_row row[K + 2];
    int64_t served[K + 2] = {0}, left[2] = {40, 3};
    for (uint64_t turn = 0; turn < 120; turn++) {
        memset(row, 0, sizeof row);
        for (int i = 0; i < K; i++)
            row[i] = (struct sched_row){.pending = 1, .answers = true};
        for (int i = 0; i < 2; i++)
            row[K + i] = (struct sched_row){.pending = left[i] ? left[i] : 1, .answers = !left[i]};
        sched_step_plan(row, K + 2, &(struct sched_room){8, 1, turn}, 2);
        int64_t logits = 0;
        for (int i = 0; i < K + 2; i++) {
            logits += row[i].answers ? row[i].n : row[i].n == row[i].pending;
            served[i] += row[i].answers ? row[i].n : 0;
            if (i >= K && !row[i].answers)
                left[i - K] -= row[i].n;
        }
        assert_true(logits <= 1 && sum(row, K + 2) <= 8);
    }
    assert_true(!left[0] && !left[1]);
    for (int i = 0; i < K; i++)
        assert_true(served[i] >= 120 / (K + 2) - 2);
}

static void random_plans_keep_the_limits(void **state)
{
    (void)state;
    static const char users[4] = {0};
    uint32_t x = 1;
    for (int k = 0; k < 20000; k++) {
        struct sched_row row[12];
        int64_t r[5];
        for (int i = 0; i < 5; i++)
            r[i] = (int64_t)((x = x * 1664525u + 1013904223u) >> 20);
        const int n = 1 + (int)(r[0] % 12);
        const int64_t max_rows = 1 + r[1] % 64, max_logits = 1 + r[2] % 8, prompts = r[3] % 80;
        for (int i = 0; i < n; i++) {
            x = x * 1664525u + 1013904223u;
            const uint32_t y = x >> 8;
            row[i] = (struct sched_row){.pending = 1, .answers = y % 2, .user = &users[y / 2 % 4]};
            if (row[i].answers)
                continue;
            row[i].pending = 1 + y / 8 % 60;
            row[i].stop = y / 512 % 3 ? 0 : 1 + y / 2048 % 20;
            row[i].all_logits = y / 65536 % 5 == 0;
            row[i].priority = (int)(y / 524288 % 3);
        }
        sched_step_plan(row, n, &(struct sched_room){max_rows, max_logits, (uint64_t)r[4]},
                        prompts);
        int64_t rows = 0, logits = 0, prompt_rows = 0;
        for (int i = 0; i < n; i++) {
            assert_true(row[i].n >= 0 && row[i].n <= row[i].pending);
            assert_true(!row[i].stop || row[i].n <= row[i].stop);
            rows += row[i].n;
            prompt_rows += row[i].answers ? 0 : row[i].n;
            logits += row[i].all_logits ? row[i].n : row[i].n == row[i].pending;
        }
        assert_true(rows <= max_rows && logits <= max_logits && prompt_rows <= prompts);
        assert_true(rows > 0 || !prompts);
    }
}

/* Both ways are measured, the faster one stays, and the other one is tried again. */
static void steps_are_under_way_where_that_is_faster(void **state)
{
    (void)state;
    for (int better = 0; better < 2; better++) {
        struct sched_flights f = {.n = 0};
        int64_t flew = 0, last = 0;
        for (int i = 0; i < 4000; i++) {
            const bool flies = sched_flights_plan(&f);
            sched_flights_note(&f, flies, 2, flies == (better == 1) ? 0.010 : 0.015);
            flew += flies;
            last += i >= 2000 && flies == (better == 1);
        }
        assert_true(flew > 50 && flew < 3950);
        assert_true(last > 1900);
        /* what is faster changes */
        last = 0;
        for (int i = 0; i < 4000; i++) {
            const bool flies = sched_flights_plan(&f);
            sched_flights_note(&f, flies, 2, flies == (better == 0) ? 0.010 : 0.015);
            last += i >= 2000 && flies == (better == 0);
        }
        assert_true(last > 1900);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_take_a_row_each_and_prompts_the_rest),
        cmocka_unit_test(steps_are_under_way_where_that_is_faster),
        cmocka_unit_test(prompts_share_evenly_by_user_then_by_request),
        cmocka_unit_test(the_higher_priority_takes_what_it_wants),
        cmocka_unit_test(a_pause_and_the_rows_of_logits_are_limits),
        cmocka_unit_test(few_rows_of_logits_go_round),
        cmocka_unit_test(random_plans_keep_the_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
