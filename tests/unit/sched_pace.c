/* SPDX-License-Identifier: Apache-2.0 */
/* The pace on machines that are made up: what steps would have taken. */
#include "unit/unit.h"

#include "sched/sched.h"

struct machine {
    double base, answer, row, reach; /* seconds: a step, an answer, a row; a row at `reach`
                                      * tokens takes twice as long */
    double shared;                   /* a row's part of that in a large step of prompts */
    double noise;                    /* up to that part more */
    double pause;                    /* seconds, in one step of 50 */
    uint32_t x;
    int64_t whole; /* the prompt is pictures of so many tokens */
};

static double dice(struct machine *m)
{
    m->x = m->x * 1664525u + 1013904223u;
    return (double)(m->x >> 8) / (double)(1 << 24);
}

static double disturbed(struct machine *m, double t)
{
    return t * (1 + m->noise * dice(m)) + (dice(m) < 0.02 ? m->pause : 0);
}

static double took(struct machine *m, const struct sched_row *row, int64_t n)
{
    double t = m->base;
    for (int64_t i = 0; i < n; i++)
        t += row[i].answers ? m->answer
                            : (double)row[i].n * m->row * (1 + (double)row[i].at / m->reach);
    return t;
}

enum { ANSWERS = 4, LONG = UNIT_ASAN ? 50000 : 100000 };

struct outcome {
    double longest; /* gap, in steps of answers alone; without pauses */
    int64_t n_gaps, n_over, n_rows;
    double seconds;
};

static void note_gap(struct outcome *o, double gap, double alone)
{
    o->n_gaps++;
    o->n_over += gap > 3 * alone;
    o->longest = gap / alone > o->longest ? gap / alone : o->longest;
}

static void fill(const struct machine *m, struct sched_row row[ANSWERS + 1], int64_t done)
{
    for (int i = 0; i < ANSWERS; i++)
        row[i] = (struct sched_row){.pending = 1, .answers = true, .at = 100};
    row[ANSWERS] = (struct sched_row){.pending = LONG - done, .at = done, .stop = m->whole};
    row[ANSWERS].whole = m->whole < LONG - done ? m->whole : LONG - done;
}

/* A large step of the prompt: answers' steps come between slices of it. */
static void play_between(struct machine *m, struct sched_pace *p, struct sched_row *row,
                         struct outcome *o)
{
    const double alone = m->base + ANSWERS * m->answer, piece = 0.02 * alone;
    const struct sched_load answers = {ANSWERS, ANSWERS * 101, 0};
    double left = 0;
    for (int64_t i = 0; i < row[ANSWERS].n; i++)
        left += m->shared * m->row * (1 + (double)row[ANSWERS].at / m->reach);
    const double all = left;
    double took_last = sched_pace_answers(p, answers);
    while (left > 0) {
        const double slice = sched_pace_slice(p, answers, took_last) + piece;
        struct sched_row between[ANSWERS + 1];
        fill(m, between, 0);
        left -= slice;
        sched_pace_plan_between(p, between, ANSWERS, &(struct sched_room){64, 16, 0}, slice, false);
        took_last = disturbed(m, took(m, between, ANSWERS));
        sched_pace_note(p, between, ANSWERS, took_last, 0);
        o->seconds += slice + took_last;
        if (took_last < 2 * alone || m->pause <= 0)
            note_gap(o, slice + took_last, alone);
    }
    sched_pace_note(p, row, ANSWERS + 1, all, piece);
}

/* Four answers, and a prompt of 100,000 tokens from the 50th step on. */
static struct outcome play(struct machine *m, struct sched_pace *p)
{
    const double alone = m->base + ANSWERS * m->answer;
    struct outcome out = {0};
    int64_t done = 0;
    for (int64_t step = 0; done < LONG; step++) {
        struct sched_row row[ANSWERS + 1];
        const int64_t n = step < 50 ? ANSWERS : ANSWERS + 1;
        const struct sched_room room = {512, 16, (uint64_t)step};
        fill(m, row, done);
        const enum sched_way way = sched_pace_plan(p, row, n, &room);
        assert_true(n == ANSWERS || !row[ANSWERS].n || row[ANSWERS].n >= row[ANSWERS].whole);
        if (way == SCHED_BETWEEN) {
            assert_int_equal(row[0].n, 0);
            assert_true(p->can_stop && row[ANSWERS].n > 0);
            play_between(m, p, row, &out);
        } else {
            const double t = disturbed(m, took(m, row, n));
            sched_pace_note(p, row, n, t, 0);
            out.seconds += t;
            if (step >= 50 && (t < 2 * alone || m->pause <= 0))
                note_gap(&out, t, alone);
        }
        done += step < 50 ? 0 : row[ANSWERS].n;
        out.n_rows = done;
        assert_true(out.n_gaps < 8 * LONG);
    }
    return out;
}

static void a_long_prompt_never_freezes_the_answers(void **state)
{
    (void)state;
    /* Bound by memory, by arithmetic; with a reach of few and of many tokens; where a row of a
     * large step is as dear as one beside answers, and where it is much cheaper. */
    static const struct machine machines[] = {
        {.base = 0.05, .answer = 0.001, .row = 0.001, .reach = 50000, .shared = 1},
        {.base = 0.0001, .answer = 0.00005, .row = 0.00002, .reach = 12000, .shared = 0.5},
        {.base = 0.0001, .answer = 0.01, .row = 0.008, .reach = 1e6, .shared = 1},
        {.base = 1, .answer = 0.1, .row = 0.001, .reach = 1e5, .shared = 1.5},
        {.base = 0.1, .answer = 0.02, .row = 0.04, .reach = 1e5, .shared = 0.2},
        {.base = 0.05, .answer = 0.001, .row = 0.001, .reach = 50000, .shared = 1, .noise = 0.3},
        {.base = 0.0001,
         .answer = 0.00005,
         .row = 0.0002,
         .reach = 9000,
         .shared = 1,
         .noise = 0.3},
        {.base = 0.0002,
         .answer = 0.00001,
         .row = 0.0002,
         .reach = 9000,
         .shared = 1,
         .pause = 0.05},
        {.base = 0.05, .answer = 0.001, .row = 0.001, .reach = 50000, .shared = 1, .whole = 280},
        {.base = 0.0001, .answer = 0.01, .row = 0.008, .reach = 1e6, .shared = 1, .whole = 1120},
    };
    for (size_t i = 0; i < 2 * sizeof machines / sizeof *machines; i += UNIT_ASAN ? 3 : 1) {
        struct machine m = machines[i / 2];
        struct sched_pace p = {.can_stop = i % 2};
        const struct outcome o = play(&m, &p);
        const double alone = m.base + 4 * m.answer;
        const double last = m.row * (1 + LONG / m.reach);
        if (m.pause > 0) {
            assert_true(!p.can_stop || o.longest < 3);
            continue; /* most of the time is pauses */
        }
        /* Where a row takes longer than a step, only a step that stops keeps within the time. */
        if (p.can_stop || (!m.whole && last < alone / 2)) {
            assert_true(o.n_over * 10000 <= o.n_gaps);
            assert_true(o.longest < (m.noise > 0 ? 3.5 : 3));
        }
        /* Not for nothing: where the largest step leaves time, a third of it and more. */
        double least = 0;
        for (int64_t at = 0; at < LONG; at++)
            least +=
                m.row * (p.can_stop && m.shared < 1 ? m.shared : 1) * (1 + (double)at / m.reach);
        assert_true(least > 0.33 * o.seconds || m.base >= 1 || (!p.can_stop && last > alone / 4));
    }
}

/* Experts, keys and values that few rows cannot share: the prompt is faster between. */
static void prompts_go_the_faster_way(void **state)
{
    (void)state;
    struct machine m = {.base = 0.1, .answer = 0.02, .row = 0.04, .reach = 1e9, .shared = 0.2};
    struct sched_pace stops = {.can_stop = true}, never = {.can_stop = false};
    const struct outcome fast = play(&m, &stops), slow = play(&m, &never);
    assert_true(fast.seconds < 0.4 * slow.seconds);
    m.shared = 2;
    struct sched_pace together = {.can_stop = true};
    const struct outcome o = play(&m, &together);
    assert_true(o.seconds < 1.1 * slow.seconds);
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

/* A picture has no room in a step between; a small one has all of its rows there, or none. */
static void pictures_between(void **state)
{
    (void)state;
    struct machine m = {.base = 0.05, .answer = 0.001, .row = 0.001, .reach = 50000};
    struct sched_pace p = {.can_stop = true};
    for (int64_t whole = 10; whole < 300; whole += 17)
        for (int alone = 0; alone < 2; alone++) {
            struct sched_row row[ANSWERS + 1];
            m.whole = whole;
            fill(&m, row, 0);
            row[ANSWERS].pending = whole;
            for (int i = 0; i < 30; i++)
                sched_pace_note(&p, row, ANSWERS, took(&m, row, ANSWERS), 0);
            struct sched_row *first = alone ? row + ANSWERS : row;
            sched_pace_plan_between(&p, first, alone ? 1 : ANSWERS + 1,
                                    &(struct sched_room){64, 16, 0}, 0, true);
            assert_true(!row[ANSWERS].n || row[ANSWERS].n == whole);
            assert_true(!row[ANSWERS].n || whole <= 64);
            assert_true(!alone || (row[ANSWERS].n != 0) == (whole <= 64));
        }
}

static void nobody_else_means_all_rows(void **state)
{
    (void)state;
    struct sched_pace p = {0};
    struct sched_row row[2] = {{.pending = 1000}, {.pending = 1000}};
    assert_int_equal(sched_pace_plan(&p, row, 2, &ROOM), SCHED_TOGETHER);
    assert_int_equal(rows_of(row, 2), 512);
    assert_true(sched_pace_answers(&p, (struct sched_load){3, 3, 0}) <= 0);
    row[0].answers = true;
    row[0].pending = 1;
    sched_pace_plan(&p, row, 2, &ROOM);
    assert_int_equal(rows_of(row, 2), 0); /* an answer alone comes first */
    sched_pace_note(&p, row, 1, 0.1, 0);
    assert_float_equal(sched_pace_answers(&p, (struct sched_load){1, 1, 0}), 0.1, 1e-9);
    sched_pace_plan(&p, row, 2, &ROOM);
    assert_in_range(rows_of(row, 2), 1, 4); /* and a prompt begins with little */
}

/* One who comes while a prompt is computed alone does not wait long for the end of a step. */
static void steps_of_prompts_alone_are_not_endless(void **state)
{
    (void)state;
    struct sched_pace p = {0};
    struct sched_row row[1] = {{.pending = 100000}};
    for (int i = 0; i < 40; i++) {
        sched_pace_plan(&p, row, 1, &ROOM);
        sched_pace_note(&p, row, 1, 0.002 * (double)row[0].n, 0);
    }
    assert_in_range(row[0].n, 235, 260);
    for (int i = 0; i < 40; i++) {
        sched_pace_plan(&p, row, 1, &ROOM);
        sched_pace_note(&p, row, 1, (double)row[0].n, 0);
    }
    assert_int_equal(row[0].n, 128); /* less would be slower, and not by much shorter */
}

/* Long steps of prompts alone stop for short prompts that come; short steps do not. */
static void prompts_that_come_are_read_between(void **state)
{
    (void)state;
    struct sched_pace p = {.can_stop = true};
    struct sched_row row[1] = {{.pending = 100000}}, new[2] = {{.pending = 30}, {.pending = 3000}};
    enum sched_way way = SCHED_TOGETHER;
    for (int i = 0; i < 40; i++) {
        way = sched_pace_plan(&p, row, 1, &ROOM);
        sched_pace_note(&p, row, 1, 0.002 * (double)row[0].n, 1);
    }
    assert_int_equal(way, SCHED_BETWEEN);
    assert_in_range(row[0].n, 235, 260);
    assert_int_equal(p.between_rows, 0);  /* says nothing of pieces beside answers */
    const struct sched_room between = {64, 16, 0};
    sched_pace_plan_between(&p, new, 2, &between, 0, false);
    assert_int_equal(rows_of(new, 2), 0);
    sched_pace_plan_between(&p, new, 2, &between, 0, true);
    assert_int_equal(rows_of(new, 2), 30); /* the other one would take 47 steps */
    row[0].pending = 20;
    assert_int_equal(sched_pace_plan(&p, row, 1, &ROOM), SCHED_TOGETHER);
    p.can_stop = false;
    row[0].pending = 100000;
    assert_int_equal(sched_pace_plan(&p, row, 1, &ROOM), SCHED_TOGETHER);
}

/* Where steps of one answer each are under way side by side, their rows of prompts keep within the
 * time that one may take, and the way that computes more rows is taken. */
static void steps_side_by_side(void **state)
{
    (void)state;
    for (int cheap = 0; cheap < 2; cheap++) {
        struct machine m = {.base = 0.01, .answer = 1e-4, .row = cheap ? 1e-4 : 1e-2, .reach = 1e9,
                            .noise = 0.02, .x = 5};
        struct sched_pace p = {.can_stop = true, .flights = 2, .between_rows = 1 << 16};
        struct sched_row row[2] = {{.pending = 1, .answers = true, .at = 100},
                                   {.pending = 1000000, .at = 0}};
        int64_t most = 0, n_flown = 0;
        for (int i = 0; i < 400; i++) {
            const enum sched_way way = sched_pace_plan(&p, row, 2, &ROOM);
            if (way != SCHED_FLYING) { /* a large step computes its rows ten times as fast */
                const double seconds = way == SCHED_BETWEEN ? 0.01 + 1e-3 * (double)row[1].n
                                                            : took(&m, row, 2);
                sched_pace_note(&p, row, 2, seconds, 0);
                continue;
            }
            for (int k = 0; k < 8; k++) {
                sched_pace_plan_flight(&p, row, 2, &ROOM);
                const double seconds = disturbed(&m, took(&m, row, 2));
                sched_pace_note_flight(&p, row, 2, seconds);
                most = i > 20 && row[1].n > most ? row[1].n : most;
            }
            n_flown += i >= 200;
        }
        assert_true(cheap ? n_flown > 180 && most > 40 : n_flown < 40);
        assert_true(0.01 + 1e-4 + (double)most * m.row <= (cheap ? 1.9 : 2.1) * 0.0101);
    }
}

/* Rows of the last of 40 steps of a long prompt alone, at most 2,048 each, that take that many
 * seconds and for each row so many more. */
static int64_t alone_at(double step, double each)
{
    const struct sched_room room = {2048, 16, 0};
    struct machine m = {.base = step, .row = each, .reach = 1e9, .noise = 0.05, .x = 7};
    struct sched_pace p = {0};
    struct sched_row row = {.pending = 1000000};
    for (int i = 0; i < 40; i++) {
        sched_pace_plan(&p, &row, 1, &room);
        sched_pace_note(&p, &row, 1, disturbed(&m, took(&m, &row, 1)), 0);
    }
    return row.n;
}

/* Weights that take long to be read are not read anew for every 128 tokens. */
static void what_a_step_reads_is_worth_its_rows(void **state)
{
    (void)state;
    assert_int_equal(alone_at(20, 0.05), 2048);
    assert_in_range(alone_at(3, 0.05), 250, 700);  /* a seventh of the rows' time is 428 */
    assert_in_range(alone_at(0.6, 0.05), 128, 256); /* dense: 84 */
    assert_in_range(alone_at(0.01, 0.001), 350, 500); /* half a second */
}

/* The shares go by priority and user: the time counts, not the number of rows. */
static void unequal_prompts_keep_within_the_time(void **state)
{
    (void)state;
    struct sched_pace p = {0};
    struct machine m = {.base = 0.1, .answer = 0.0, .row = 0.001, .reach = 1000};
    int user[2];
    for (int i = 0; i < 100; i++) { /* costs are learnt from one prompt, ... */
        struct sched_row one[2] = {{.pending = 1, .answers = true},
                                   {.pending = 9999, .at = 1000 * (i % 10)}};
        sched_pace_plan(&p, one, 2, &ROOM);
        sched_pace_note(&p, one, 2, took(&m, one, 2), 0);
    }
    struct sched_row row[4] = { /* ... and hold for others */
        {.pending = 1, .answers = true},
        {.pending = 9999, .at = 19000, .priority = 1, .user = &user[0]},
        {.pending = 9999, .at = 10, .user = &user[0]},
        {.pending = 9999, .at = 10, .user = &user[1]},
    };
    p.since_answers = 0;
    sched_pace_plan(&p, row, 4, &ROOM);
    assert_in_range(row[1].n, 3, 5);
    assert_int_equal(row[2].n + row[3].n, 0);
    row[1].priority = 0;
    sched_pace_plan(&p, row, 4, &ROOM);
    assert_true(row[2].n > 0 && row[3].n > 0);
    assert_true(took(&m, row, 4) > 0.15 && took(&m, row, 4) < 0.22);
}

/* Prompts that come while a step is stopped have what is left of the time, not that on top. */
static void those_between_have_what_is_left(void **state)
{
    (void)state;
    struct sched_pace p = {0};
    struct machine m = {.base = 0.1, .answer = 0.0, .row = 0.01, .reach = 1000};
    int64_t before = 64;
    for (int i = 0; i < 100; i++) {
        struct sched_row one[2] = {{.pending = 1, .answers = true}, {.pending = 9999}};
        sched_pace_plan(&p, one, 2, &ROOM);
        sched_pace_note(&p, one, 2, took(&m, one, 2), 0);
    }
    for (int i = 0; i < 10; i++) {
        struct sched_row row[2] = {{.pending = 1, .answers = true}, {.pending = 9999}};
        const double gone = 0.01 * i;
        sched_pace_plan_between(&p, row, 2, &ROOM, gone, true);
        assert_int_equal(row[0].n, 1);
        assert_in_range(row[1].n, 0, before);
        assert_true(!row[1].n || gone + took(&m, row, 2) < 0.2);
        before = row[1].n;
        if (i == 0)
            assert_in_range(row[1].n, 5, 9);
        sched_pace_plan_between(&p, row, 2, &ROOM, gone, false);
        assert_int_equal(row[1].n, 0);
    }
    assert_int_equal(before, 0);
}

static void one_slow_step_changes_little(void **state)
{
    (void)state;
    struct sched_pace p = {0};
    struct sched_row row = {.pending = 1, .answers = true, .n = 1};
    for (int i = 0; i < 20; i++)
        sched_pace_note(&p, &row, 1, 0.1, 0);
    sched_pace_note(&p, &row, 1, 100, 0);
    assert_float_equal(sched_pace_answers(&p, (struct sched_load){1, 1, 0}), 0.1, 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_never_freezes_the_answers),
        cmocka_unit_test(prompts_go_the_faster_way),
        cmocka_unit_test(what_is_asked_for_is_the_aim),
        cmocka_unit_test(pictures_between),
        cmocka_unit_test(nobody_else_means_all_rows),
        cmocka_unit_test(steps_of_prompts_alone_are_not_endless),
        cmocka_unit_test(prompts_that_come_are_read_between),
        cmocka_unit_test(what_a_step_reads_is_worth_its_rows),
        cmocka_unit_test(unequal_prompts_keep_within_the_time),
        cmocka_unit_test(those_between_have_what_is_left),
        cmocka_unit_test(steps_side_by_side),
        cmocka_unit_test(one_slow_step_changes_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
