/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "sched/sched.h"

#include <string.h>

enum { N = 12 };

struct line {
    struct sched_queue *q;
    struct sched_ticket t[N];
    struct err err;
};

static void open_line(struct line *l, int64_t max_waiting, int64_t max_tokens)
{
    memset(l, 0, sizeof *l);
    assert_int_equal(sched_queue_create(&l->q, max_waiting, max_tokens, &l->err), INGLE_OK);
}

static void close_line(struct line *l)
{
    for (int i = 0; i < N; i++)
        if (l->t[i].user)
            sched_queue_leave(l->q, &l->t[i]);
    sched_queue_free(l->q);
}

static void put(struct line *l, int i, const char *user, int priority, int64_t n_tokens)
{
    l->t[i].priority = priority;
    l->t[i].n_tokens = n_tokens;
    assert_int_equal(sched_queue_put(l->q, &l->t[i], user, &l->err), INGLE_OK);
}

/* Takes the head and says which one it was. */
static int64_t take(struct line *l)
{
    struct sched_ticket *t = sched_queue_head(l->q);
    if (!t)
        return -1;
    sched_queue_take(l->q, t);
    return t - l->t;
}

static void equals_go_as_they_came(void **state)
{
    (void)state;
    struct line l;
    open_line(&l, N, 1000);
    for (int i = 0; i < 4; i++)
        put(&l, i, NULL, 0, 10);
    for (int i = 0; i < 4; i++)
        assert_int_equal(take(&l), i);
    assert_int_equal(take(&l), -1);
    close_line(&l);
}

static void the_higher_priority_goes_first(void **state)
{
    (void)state;
    struct line l;
    open_line(&l, N, 1000);
    put(&l, 0, NULL, 0, 10);
    put(&l, 1, NULL, -10, 10);
    put(&l, 2, NULL, 10, 10);
    put(&l, 3, NULL, 10, 10);
    sched_queue_leave(l.q, &l.t[0]);
    assert_int_equal(take(&l), 2);
    assert_int_equal(take(&l), 3);
    assert_int_equal(take(&l), 1);
    close_line(&l);
}

static void a_full_queue_says_of_what(void **state)
{
    (void)state;
    struct line l;
    int64_t n, n_tokens;
    open_line(&l, 3, 100);
    put(&l, 0, "a", 0, 500); /* an empty queue takes one of any length */
    l.t[1].n_tokens = 1;
    assert_int_equal(sched_queue_put(l.q, &l.t[1], "a", &l.err), INGLE_LIMIT);
    assert_string_equal(l.err.msg,
                        "the queue is full: prompts of 500 tokens wait, 1 more exceed the "
                        "limit of 100");
    assert_int_equal(take(&l), 0);
    for (int i = 1; i < 4; i++)
        put(&l, i, "a", 0, 30);
    assert_int_equal(sched_queue_put(l.q, &l.t[4], "a", &l.err), INGLE_LIMIT);
    assert_string_equal(l.err.msg, "the queue is full: 3 requests wait, the limit is 3");
    sched_queue_count(l.q, &n, &n_tokens);
    assert_int_equal(n, 3);
    assert_int_equal(n_tokens, 90);
    close_line(&l);
}

/* A user with fewer places takes the youngest of the one with the most; none is displaced in
 * vain. */
static void a_full_queue_has_room_for_others(void **state)
{
    (void)state;
    struct line l;
    open_line(&l, 3, 100);
    put(&l, 0, "a", 0, 30);
    put(&l, 1, "a", 0, 30);
    put(&l, 2, "a", 0, 30);
    put(&l, 3, "b", 0, 5);
    assert_ptr_equal(sched_queue_displaced(l.q), &l.t[2]);
    assert_null(sched_queue_displaced(l.q));
    assert_true(l.t[2].displaced);
    l.t[4].n_tokens = 1;
    /* they would be even */
    assert_int_equal(sched_queue_put(l.q, &l.t[4], "b", &l.err), INGLE_LIMIT);
    assert_int_equal(sched_queue_put(l.q, &l.t[4], "a", &l.err), INGLE_LIMIT);
    sched_queue_leave(l.q, &l.t[1]);
    l.t[4].n_tokens = 70; /* more than what a has left */
    assert_int_equal(sched_queue_put(l.q, &l.t[4], "b", &l.err), INGLE_LIMIT);
    assert_null(sched_queue_displaced(l.q));
    sched_queue_leave(l.q, &l.t[3]);
    put(&l, 3, "a", 0, 60); /* 90 tokens of a */
    put(&l, 4, "c", 0, 20);
    assert_ptr_equal(sched_queue_displaced(l.q), &l.t[3]);
    sched_queue_leave(l.q, &l.t[2]);
    sched_queue_leave(l.q, &l.t[3]);
    close_line(&l);
}

/* One who asks for much and one who asks for little get the same tokens while both wait. */
static void users_are_served_alike(void **state)
{
    (void)state;
    struct line l;
    int64_t served[2] = {0};
    open_line(&l, N, 100000);
    for (int i = 0; i < 8; i++)
        put(&l, i, i < 4 ? "large" : "small", 0, i < 4 ? 1000 : 100);
    for (int k = 0; k < 200; k++) {
        const int64_t i = take(&l);
        const int u = i >= 4;
        const int64_t n = u ? 100 : 1000;
        sched_queue_serve(&l.t[i], n);
        served[u] += n;
        sched_queue_leave(l.q, &l.t[i]);
        put(&l, (int)i, u ? "small" : "large", 0, n);
        const int64_t more = served[0] > served[1] ? served[0] - served[1] : served[1] - served[0];
        assert_true(more <= 1000);
    }
    close_line(&l);
}

static void a_newcomer_has_no_claim_and_no_debt(void **state)
{
    (void)state;
    struct line l;
    open_line(&l, N, 100000);
    put(&l, 0, "old", 0, 10);
    put(&l, 1, "old", 0, 10);
    put(&l, 2, "old", 0, 10);
    assert_int_equal(take(&l), 0);
    sched_queue_serve(&l.t[0], 5000);
    put(&l, 3, "new", 0, 10);
    put(&l, 4, "new", 0, 10);
    assert_int_equal(take(&l), 1); /* as much served as the newcomer: who came first */
    sched_queue_serve(&l.t[1], 1);
    assert_int_equal(take(&l), 3);
    sched_queue_serve(&l.t[3], 2);
    assert_int_equal(take(&l), 2);
    assert_int_equal(take(&l), 4);
    close_line(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_go_as_they_came),
        cmocka_unit_test(the_higher_priority_goes_first),
        cmocka_unit_test(a_full_queue_says_of_what),
        cmocka_unit_test(a_full_queue_has_room_for_others),
        cmocka_unit_test(users_are_served_alike),
        cmocka_unit_test(a_newcomer_has_no_claim_and_no_debt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
