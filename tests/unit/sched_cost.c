/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model on machines whose true costs are known. */
#include "unit/unit.h"

#include "sched/sched.h"

#include <math.h>

/* A step takes base + row * rows + near * (context within a window) + far * (context that a
 * layer of `every` positions has). */
struct machine {
    double base, row, near, far;
    int64_t window, every;
    double noise; /* +- that part */
    uint32_t x;
};

static double dice(struct machine *m)
{
    m->x = m->x * 1664525u + 1013904223u;
    return (double)(m->x >> 8) / (double)(1 << 24);
}

/* n rows behind `at` positions, beside others. */
static double took(struct machine *m, int64_t n, int64_t at, int64_t n_others, int64_t at_others)
{
    double t = m->base + m->row * (double)(n + n_others);
    for (int64_t i = 0; i < n + n_others; i++) {
        const int64_t seen = i < n ? at + i + 1 : at_others;
        t += m->near * (double)(seen < m->window ? seen : m->window) +
             m->far * (double)(seen / m->every);
    }
    return t * (1 + m->noise * (2 * dice(m) - 1));
}

static struct sched_load load(int64_t n, int64_t at, int64_t n_others, int64_t at_others)
{
    return (struct sched_load){n + n_others, n * at + n * (n + 1) / 2 + n_others * at_others, 0};
}

static void near_to(double got, double want, double part)
{
    if (fabs(got - want) > part * want)
        fail_msg("%g is not within %g of %g", got, part, want);
}

/* A prompt comes along; the next step's time is told before it is taken. */
static double worst_forecast(struct machine *m, struct sched_cost *c, int64_t first, int64_t last,
                             int64_t n)
{
    double worst = 0;
    struct machine exact = *m;
    exact.noise = 0;
    int k = 0;
    for (int64_t at = first; at < last; at += n, k++) {
        const int64_t rows = k % 16 ? n : 0; /* one of the answers alone */
        const double want = took(&exact, rows, at, 4, 200);
        if (k > 40)
            worst = fmax(worst, fabs(sched_cost_of(c, load(rows, at, 4, 200)) - want) / want);
        sched_cost_note(c, load(rows, at, 4, 200), took(m, rows, at, 4, 200));
    }
    return worst;
}

static const struct machine machines[] = {
    {.base = 0.1, .row = 0.002, .far = 2e-7, .window = 1, .every = 1},
    {.base = 0.0001, .row = 3e-5, .far = 8e-9, .window = 1, .every = 1},
    {.base = 0.05, .row = 0.004, .near = 1e-6, .far = 1e-7, .window = 1024, .every = 1},
    {.base = 0.05, .row = 0.004, .near = 2e-6, .far = 4e-7, .window = 128, .every = 4},
    {.base = 0.05, .row = 0.004, .near = 2e-6, .far = 4e-6, .window = 128, .every = 128},
};
enum { MACHINES = sizeof machines / sizeof *machines };

static void steps_are_told_before_they_are_taken(void **state)
{
    (void)state;
    for (int i = 0; i < MACHINES; i++) {
        struct machine m = machines[i];
        struct sched_cost c = {0};
        assert_true(worst_forecast(&m, &c, 0, 20000, 8) < 0.1);
        m.noise = 0.1;
        assert_true(worst_forecast(&m, &c, 20000, 40000, 8) < 0.2);
    }
}

static void terms_are_what_they_are(void **state)
{
    (void)state;
    struct machine m = machines[0];
    struct sched_cost c = {0};
    (void)worst_forecast(&m, &c, 0, 30000, 7);
    near_to(c.at[0], 0.1, 0.05);
    near_to(c.at[1], 0.002, 0.1);
    near_to(c.at[2], 2e-7, 0.05);
    /* Far from what was seen, too. */
    near_to(sched_cost_of(&c, load(64, 60000, 2, 100)), took(&m, 64, 60000, 2, 100), 0.1);
}

/* Rows that have logits of their own take longer, here five times as long: other steps are told as
 * before. */
static void rows_with_logits_are_dear(void **state)
{
    (void)state;
    struct machine m = machines[0];
    struct sched_cost c = {0};
    (void)worst_forecast(&m, &c, 0, 20000, 8);
    for (int i = 0; i < 60; i++) {
        struct sched_load l = load(i % 3 ? 8 : 0, 500, 4, 200);
        l.logits = i % 3 == 1 ? 8 : 0;
        sched_cost_note(&c, l, took(&m, i % 3 ? 8 : 0, 500, 4, 200) + 4 * m.row * (double)l.logits);
    }
    struct sched_load l = load(8, 500, 4, 200);
    near_to(sched_cost_of(&c, l), took(&m, 8, 500, 4, 200), 0.03);
    l.logits = 8;
    near_to(sched_cost_of(&c, l), took(&m, 8, 500, 4, 200) + 32 * m.row, 0.05);
}

static void pauses_change_nothing(void **state)
{
    (void)state;
    struct machine m = machines[1];
    struct sched_cost c = {0};
    (void)worst_forecast(&m, &c, 0, 20000, 8);
    const double before = sched_cost_of(&c, load(8, 20000, 4, 200));
    for (int i = 0; i < 200; i++)
        sched_cost_note(&c, load(8, 20000, 4, 200),
                        i % 20 == 7 ? 0.05 : took(&m, 8, 20000, 4, 200));
    near_to(sched_cost_of(&c, load(8, 20000, 4, 200)), before, 0.15);
    sched_cost_note(&c, load(8, 20000, 4, 200), 1000);
    near_to(sched_cost_of(&c, load(8, 20000, 4, 200)), before, 0.3);
}

static void a_machine_that_changes_is_followed(void **state)
{
    (void)state;
    for (int i = 0; i < MACHINES; i++)
        for (int slower = 0; slower < 2; slower++) {
            struct machine m = machines[i];
            struct sched_cost c = {0};
            const double factor = slower ? 3 : 1.0 / 3;
            m.noise = 0.05;
            (void)worst_forecast(&m, &c, 0, 20000, 8);
            m.base *= factor;
            m.row *= factor;
            m.near *= factor;
            m.far *= factor;
            for (int k = 0; k < 40; k++)
                sched_cost_note(&c, load(8, 20000, 4, 200), took(&m, 8, 20000, 4, 200));
            m.noise = 0;
            near_to(sched_cost_of(&c, load(8, 20000, 4, 200)), took(&m, 8, 20000, 4, 200), 0.15);
            near_to(sched_cost_of(&c, load(0, 0, 4, 200)), took(&m, 0, 0, 4, 200), 0.5);
        }
}

/* What was never seen is not believed: the most that it may take is more than is likely. */
static void the_unknown_is_dear(void **state)
{
    (void)state;
    struct machine m = machines[1];
    struct sched_cost c = {0};
    assert_true(sched_cost_of(&c, load(1, 1, 0, 0)) <= 0);
    for (int i = 0; i < 100; i++)
        sched_cost_note(&c, load(0, 0, 4, 200), took(&m, 0, 0, 4, 200));
    near_to(sched_cost_of(&c, load(0, 0, 4, 200)), took(&m, 0, 0, 4, 200), 0.01);
    near_to(sched_cost_most(&c, load(0, 0, 4, 200)), took(&m, 0, 0, 4, 200), 0.05);
    assert_true(sched_cost_most(&c, load(1, 90000, 4, 200)) > 3 * took(&m, 0, 0, 4, 200));
}

/* Whatever the times: numbers, and none below 0. */
static void nothing_upsets_it(void **state)
{
    (void)state;
    struct machine m = {.x = 5};
    struct sched_cost c = {0};
    for (int i = 0; i < 20000; i++) {
        const int64_t n = (int64_t)(dice(&m) * dice(&m) * 512), at = (int64_t)(dice(&m) * 1e5);
        const struct sched_load l = load(n, at, (int64_t)(dice(&m) * 5), 300);
        sched_cost_note(&c, l, pow(10, -7 + 8 * dice(&m)));
        for (int k = 0; k < SCHED_COST_TERMS; k++)
            assert_true(c.at[k] >= 0 && isfinite(c.at[k]));
        assert_true(isfinite(sched_cost_most(&c, l)) && sched_cost_of(&c, l) < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_told_before_they_are_taken),
        cmocka_unit_test(terms_are_what_they_are),
        cmocka_unit_test(rows_with_logits_are_dear),
        cmocka_unit_test(pauses_change_nothing),
        cmocka_unit_test(a_machine_that_changes_is_followed),
        cmocka_unit_test(the_unknown_is_dear),
        cmocka_unit_test(nothing_upsets_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
