/* SPDX-License-Identifier: Apache-2.0 */
/* Whether reads ahead pay: decided by times of steps alone, which this test makes up. */
#include "unit/unit.h"

#include "expert/early.h"

static uint64_t seed;

static double chance(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (double)(seed >> 11) / 9007199254740992.0;
}

/* About normal. */
static double around(void)
{
    double x = -6;
    for (int i = 0; i < 12; i++)
        x += chance();
    return x;
}

struct disk { double change, noise, right; int64_t rows; };

/* n steps: what they take, by what they would take without early reads. */
static double run(struct expert_early *e, const struct disk *d, int n)
{
    const double usual = 50e6;
    double took = 0, without = 0;
    for (int i = 0; i < n; i++) {
        const int64_t rows = d->rows ? d->rows : 1 + (int64_t)(chance() * EARLY_ROWS);
        const double plain = usual * (1 + 0.3 * (double)rows), noise = 1 + d->noise * around();
        const double ns = plain * (noise > 0.3 ? noise : 0.3) * (e->reads ? 1 + d->change : 1);
        took += e->reads ? plain * (1 + d->change) : plain;
        without += plain;
        expert_early_guess(e, chance() < d->right);
        expert_early_step(e, rows, (uint64_t)ns);
    }
    return took / without;
}

static double mean_of(const struct disk *d, int n, struct expert_early *last)
{
    enum { RUNS = 100 };
    double sum = 0;
    for (int i = 0; i < RUNS; i++) {
        *last = (struct expert_early){0};
        sum += run(last, d, n);
    }
    return sum / RUNS;
}

static void a_loss_is_bounded(void **state)
{
    (void)state;
    static const int length[] = {16, 32, 64, 128, 512, 4096};
    seed = 88172645463325252u;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sizeof length / sizeof *length; i++)
            for (double change = 0; change < 0.35; change += 0.1) {
                struct expert_early e;
                const struct disk d = {change, 0.15, 0.3 + 0.4 * k, k};
                const double by = mean_of(&d, length[i], &e);
                assert_true(by <= 1.02);
            }
}

static void a_gain_is_found(void **state)
{
    (void)state;
    seed = 88172645463325252u;
    for (int k = 0; k < 2; k++) {
        struct expert_early e;
        const struct disk d = {-0.2, 0.05, 0.7, k};
        assert_true(mean_of(&d, 256, &e) < 0.95 && mean_of(&d, 1024, &e) < 0.85);
        assert_true(e.pays && expert_early_turned(&e) && !expert_early_turned(&e));
        assert_true(e.mean < -0.15 && e.mean > -0.25);
    }
}

/* A disk that has no time left: what paid is ended, and found again when it pays again. */
static void a_change_is_seen(void **state)
{
    (void)state;
    seed = 88172645463325252u;
    struct expert_early e = {0};
    const struct disk good = {-0.25, 0.02, 0.7, 1}, bad = {0.25, 0.02, 0.7, 1};
    for (int i = 0; i < 3; i++) {
        (void)run(&e, &good, 2000);
        assert_true(e.pays);
        (void)run(&e, &bad, 600);
        assert_true(!e.pays);
    }
}

/* Where guesses are bad nothing is tried, which is told once. */
static void bad_guesses_are_not_tried(void **state)
{
    (void)state;
    seed = 88172645463325252u;
    struct expert_early e = {0};
    const struct disk d = {0.5, 0.1, 0.05, 1};
    assert_true(run(&e, &d, 1000) == 1 && e.n_pairs == 0 && e.decided && expert_early_turned(&e) &&
                !expert_early_turned(&e));
}

/* Steps of prompts, and times of nothing, say nothing. */
static void other_steps_do_not_count(void **state)
{
    (void)state;
    struct expert_early e = {0};
    for (int i = 0; i < 1000; i++) {
        expert_early_step(&e, EARLY_ROWS + 1, 1000);
        expert_early_step(&e, 0, 1000);
        expert_early_step(&e, 1, 0);
    }
    assert_true(e.n_steps == 0 && e.credit == 0 && !e.reads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loss_is_bounded),
        cmocka_unit_test(a_gain_is_found),
        cmocka_unit_test(a_change_is_seen),
        cmocka_unit_test(bad_guesses_are_not_tried),
        cmocka_unit_test(other_steps_do_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
