/* SPDX-License-Identifier: Apache-2.0 */
/* The pace on machines that are made up: what steps would have taken. */
#include "unit/unit.h"

#include "sched/sched.h"

struct machine {
    double base, answer, row, reach; /* seconds: a step, an answer, a row; a row at `reach`
                                      * tokens takes twice as long */
    double noise;                    /* up to that part more */
    uint32_t x;
};

static double took(struct machine *m, const struct sched_row *row, int64_t n, const int64_t *at)
{
    double t = m->base;
    for (int64_t i = 0; i < n; i++)
        t += row[i].answers ? m->answer
                            : (double)row[i].n * m->row * (1 + (double)at[i] / m->reach);
    m->x = m->x * 1664525u + 1013904223u;
    return t * (1 + m->noise * (double)(m->x >> 8) / (double)(1 << 24));
}

struct outcome {
    double longest; /* steps of answers alone */
    int64_t n_steps, n_over, n_rows;
};

/* Four answers, and a prompt of 100,000 tokens from the 50th step on. */
static struct outcome play(struct machine *m, struct sched_pace *p)
{
    enum { ANSWERS = 4, LONG = 100000 };
    struct outcome out = {0};
    double cost = 0;
    int64_t done = 0;
    for (int64_t step = 0; done < LONG; step++) {
        struct sched_row row[ANSWERS + 1] = {{0}};
        int64_t at[ANSWERS + 1] = {0}, n = ANSWERS;
        for (int i = 0; i < ANSWERS; i++)
            row[i] = (struct sched_row){.pending = 1, .answers = true};
        if (step >= 50) {
            row[n] = (struct sched_row){.pending = LONG - done, .row_seconds = cost};
            at[n++] = done;
        }
        sched_pace_plan(p, row, n, &(struct sched_room){512, 16, (uint64_t)step});
        const double t = took(m, row, n, at), alone = m->base + ANSWERS * m->answer;
        sched_pace_note(p, row, n, t);
        if (step < 50)
            continue;
        cost = row[ANSWERS].row_seconds;
        done += row[ANSWERS].n;
        out.n_steps++;
        out.n_over += t > 3 * alone;
        out.longest = t / alone > out.longest ? t / alone : out.longest;
        assert_true(out.n_steps < 4 * LONG);
    }
    return out;
}

static void a_long_prompt_never_freezes_the_answers(void **state)
{
    (void)state;
    /* Bound by memory, by arithmetic; with a reach of few and of many tokens. */
    static const struct machine machines[] = {
        {.base = 0.05, .answer = 0.001, .row = 0.001, .reach = 50000},
        {.base = 0.0001, .answer = 0.00005, .row = 0.00002, .reach = 12000},
        {.base = 0.0001, .answer = 0.01, .row = 0.008, .reach = 1e6},
        {.base = 1, .answer = 0.1, .row = 0.001, .reach = 1e5},
        {.base = 0.05, .answer = 0.001, .row = 0.001, .reach = 50000, .noise = 0.3},
        {.base = 0.0001, .answer = 0.00005, .row = 0.00002, .reach = 12000, .noise = 0.3},
    };
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        struct machine m = machines[i];
        struct sched_pace p = {0};
        const struct outcome o = play(&m, &p);
        assert_true(o.longest < 3);
        assert_int_equal(o.n_over, 0);
        /* Not for nothing: a third of the time at least goes to the prompt, where one row of
         * it does not take a whole step. */
        const double rows = 100000.0 / (double)o.n_steps;
        const double last = m.row * (1 + 100000 / m.reach);
        assert_true(rows * last > 0.3 * (m.base + 4 * m.answer) || rows >= 500 || m.reach < 20000);
    }
}

static void what_is_asked_for_is_the_aim(void **state)
{
    (void)state;
    struct sched_pace p = {.target_seconds = 0.5};
    struct machine m = {.base = 0.05, .answer = 0.0, .row = 0.001, .reach = 1e9};
    const struct outcome o = play(&m, &p);
    assert_true(o.longest > 8 && o.longest < 10.5);
}

static int64_t rows_of(const struct sched_row *row, int64_t n)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += row[i].answers ? 0 : row[i].n;
    return sum;
}

static const struct sched_room ROOM = {512, 16, 0};

static void nobody_else_means_all_rows(void **state)
{
    (void)state;
    struct sched_pace p = {0};
    struct sched_row row[2] = {{.pending = 1000}, {.pending = 1000}};
    sched_pace_plan(&p, row, 2, &ROOM);
    assert_int_equal(rows_of(row, 2), 512);
    assert_true(sched_pace_answers(&p, 3) == 0);
    row[0].answers = true;
    row[0].pending = 1;
    sched_pace_plan(&p, row, 2, &ROOM);
    assert_int_equal(rows_of(row, 2), 0); /* an answer alone comes first */
    sched_pace_note(&p, row, 1, 0.1);
    assert_true(sched_pace_answers(&p, 1) == 0.1);
    sched_pace_plan(&p, row, 2, &ROOM);
    assert_int_equal(rows_of(row, 2), 1); /* and a prompt begins with little */
}

/* One who comes while a prompt is computed alone does not wait long for the end of a step. */
static void steps_of_prompts_alone_are_not_endless(void **state)
{
    (void)state;
    struct sched_pace p = {0};
    struct sched_row row[1] = {{.pending = 100000}};
    for (int i = 0; i < 20; i++) {
        sched_pace_plan(&p, row, 1, &ROOM);
        sched_pace_note(&p, row, 1, 0.002 * (double)row[0].n);
    }
    assert_in_range(row[0].n, 240, 250);
    for (int i = 0; i < 20; i++) {
        sched_pace_plan(&p, row, 1, &ROOM);
        sched_pace_note(&p, row, 1, (double)row[0].n);
    }
    assert_int_equal(row[0].n, 128); /* less would be slower, and not by much shorter */
}

/* What a row took in large steps, or far away, says little of one beside answers. */
static void a_prompt_begins_anew_beside_answers(void **state)
{
    (void)state;
    struct sched_pace p = {0};
    struct sched_row row[2] = {{.pending = 1, .answers = true, .n = 1},
                               {.pending = 100000, .row_seconds = 1e-6}};
    sched_pace_note(&p, row, 1, 0.1);
    sched_pace_plan(&p, row + 1, 1, &ROOM);
    sched_pace_note(&p, row + 1, 1, 0.5);
    sched_pace_plan(&p, row, 2, &ROOM);
    assert_int_equal(row[1].n, 1);
}

/* The shares go by priority and user: the time counts, not the number of rows. */
static void unequal_prompts_keep_within_the_time(void **state)
{
    (void)state;
    struct sched_pace p = {0};
    int user[2];
    struct sched_row row[4] = {
        {.pending = 1, .answers = true, .n = 1},
        {.pending = 9999, .row_seconds = 0.02, .priority = 1, .user = &user[0]},
        {.pending = 9999, .row_seconds = 0.0001, .user = &user[0]},
        {.pending = 9999, .row_seconds = 0.0001, .user = &user[1]},
    };
    sched_pace_note(&p, row, 1, 0.1);
    sched_pace_plan(&p, row, 4, &ROOM);
    assert_in_range(row[1].n, 4, 5);
    assert_int_equal(row[2].n + row[3].n, 0);
    row[1].priority = 0;
    sched_pace_plan(&p, row, 4, &ROOM);
    double seconds = 0;
    for (int i = 1; i < 4; i++)
        seconds += (double)row[i].n * row[i].row_seconds;
    assert_true(seconds > 0.04 && seconds <= 0.1);
}

static void one_slow_step_changes_little(void **state)
{
    (void)state;
    struct sched_pace p = {0};
    struct sched_row row = {.pending = 1, .answers = true, .n = 1};
    for (int i = 0; i < 4; i++)
        sched_pace_note(&p, &row, 1, 0.1);
    sched_pace_note(&p, &row, 1, 100);
    assert_true(sched_pace_answers(&p, 1) == 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_never_freezes_the_answers),
        cmocka_unit_test(what_is_asked_for_is_the_aim),
        cmocka_unit_test(nobody_else_means_all_rows),
        cmocka_unit_test(steps_of_prompts_alone_are_not_endless),
        cmocka_unit_test(a_prompt_begins_anew_beside_answers),
        cmocka_unit_test(unequal_prompts_keep_within_the_time),
        cmocka_unit_test(one_slow_step_changes_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
