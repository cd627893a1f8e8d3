/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts from text: against a search of everything, over texts that grow and are cut. */
#include "unit/unit.h"

#include "base/mem.h"
#include "base/num.h"
#include "session/ngram.h"

#include <string.h>

static uint32_t dice(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

static struct ngram *create(int64_t least_match)
{
    struct ngram *g = NULL;
    const struct ngram_options o = {.least_match = least_match};
    assert_int_equal(session_ngram_create(&g, &o, NULL), INGLE_OK);
    return g;
}

static void add(struct ngram *g, const int32_t *t, int64_t n)
{
    assert_int_equal(session_ngram_append(g, t, n, NULL), INGLE_OK);
}

static int64_t propose(struct ngram *g, int64_t width, int32_t *t)
{
    float c[NGRAM_MOST];
    const int64_t n = session_ngram_propose(g, NULL, 0, width, t, c);
    for (int64_t i = 0; i < n; i++)
        assert_true(c[i] > 0 && c[i] <= 1);
    return n;
}

/* The longest match of the end with an earlier place, up to what is compared. */
static int64_t longest_match(const int32_t *t, int64_t n)
{
    int64_t best = 0;
    for (int64_t p = 0; p < n - 1; p++) {
        int64_t k = 0;
        while (k <= p && k < NGRAM_MOST_MATCH && t[p - k] == t[n - 1 - k])
            k++;
        best = num_max(best, k);
    }
    return best;
}

/* Whether the draft is what followed an earlier place with at least `match` equal tokens before
 * it. */
static bool follows(const int32_t *t, int64_t n, const int32_t *draft, int64_t n_draft,
                    int64_t match)
{
    for (int64_t p = 0; p < n - 1; p++) {
        int64_t k = 0, j = 0;
        while (k <= p && k < NGRAM_MOST_MATCH && t[p - k] == t[n - 1 - k])
            k++;
        while (j < n_draft && draft[j] == (p + 1 + j < n ? t[p + 1 + j] : draft[p + 1 + j - n]))
            j++;
        if (k >= match && j == n_draft)
            return true;
    }
    return false;
}

static void test_continues_what_stood_there_before(void **state)
{
    (void)state;
    struct ngram *g = create(3);
    const int32_t t[] = {5, 6, 7, 8, 9, 10, 11, 1, 2, 6, 7, 8};
    int32_t d[16];
    add(g, t, 12);
    assert_int_equal(propose(g, 4, d), 4);
    assert_memory_equal(d, ((int32_t[]){9, 10, 11, 1}), sizeof(int32_t[4]));
    session_ngram_truncate(g, 11); /* two tokens of a match are too few */
    assert_int_equal(propose(g, 4, d), 0);
    session_ngram_free(g);
    g = create(2);
    add(g, t, 11);
    assert_int_equal(propose(g, 3, d), 3);
    assert_memory_equal(d, ((int32_t[]){8, 9, 10}), sizeof(int32_t[3]));
    session_ngram_free(g);
}

static void test_the_longest_match_wins_then_the_newest(void **state)
{
    (void)state;
    int32_t d[16];
    const int32_t longest[] = {1, 2, 3, 4, 5, 90, 7, 3, 4, 5, 91, 8, 1, 2, 3, 4, 5};
    struct ngram *g = create(0);
    add(g, longest, 17);
    assert_int_equal(propose(g, 1, d), 1);
    assert_int_equal(d[0], 90);
    session_ngram_free(g);
    const int32_t newest[] = {3, 4, 5, 90, 3, 4, 5, 91, 8, 3, 4, 5};
    g = create(0);
    add(g, newest, 12);
    assert_int_equal(propose(g, 1, d), 1);
    assert_int_equal(d[0], 91);
    const int32_t again[] = {90, 7, 3, 4, 5}; /* now two of three places say 90 */
    add(g, again, 5);
    assert_int_equal(propose(g, 1, d), 1);
    assert_int_equal(d[0], 90);
    session_ngram_free(g);
}

/* Where places part, what the fewer of them go on with is the other way. */
static void test_the_other_way(void **state)
{
    (void)state;
    struct ngram *g = create(2);
    const int32_t t[] = {1,  2, 3, 4, 10, 20, 1,  2,  3, 4, 10, 20,
                         30, 1, 2, 3, 5,  11, 22, 23, 9, 1, 2,  3};
    int32_t d[16];
    add(g, t, 24);
    assert_int_equal(propose(g, 4, d), 4);
    assert_memory_equal(d, ((int32_t[]){4, 10, 20, 30}), sizeof(int32_t[4]));
    const struct ngram_other *o = session_ngram_other(g);
    assert_int_equal(o->at, 0);
    assert_int_equal(o->n, 4);
    assert_memory_equal(o->token, ((int32_t[]){5, 11, 22, 23}), sizeof(int32_t[4]));
    for (int64_t j = 0; j < o->n; j++)
        assert_true(o->confidence[j] > 0 && o->confidence[j] <= 1);
    session_ngram_truncate(g, 13); /* one place alone, and then none */
    add(g, t, 2);
    assert_int_equal(propose(g, 2, d), 2);
    assert_int_equal(session_ngram_other(g)->n, 0);
    add(g, (const int32_t[]){77}, 1);
    assert_int_equal(propose(g, 2, d), 0);
    assert_int_equal(session_ngram_other(g)->n, 0);
    session_ngram_free(g);
}

static void test_text_that_repeats_itself_goes_on(void **state)
{
    (void)state;
    int32_t d[40];
    struct ngram *g = create(0);
    const int32_t t[] = {9, 1, 2, 3, 1, 2, 3};
    add(g, t, 7);
    assert_int_equal(propose(g, 40, d), 40);
    for (int i = 0; i < 40; i++)
        assert_int_equal(d[i], 1 + i % 3);
    session_ngram_free(g);
}

static void test_random_texts_against_a_search_of_everything(void **state)
{
    (void)state;
    enum { CAP = 700 };
    int32_t t[CAP], d[2 * NGRAM_MOST + NGRAM_OTHER];
    uint32_t x = 7;
    int64_t n_drafts = 0;
    for (int round = 0; round < 40; round++) {
        struct ngram *g = create(2 + round % 3);
        int64_t n = 0;
        const uint32_t kinds = 2 + dice(&x) % 12; /* few of them: repetitions; many: hardly any */
        for (int step = 0; step < 300; step++) {
            const uint32_t what = dice(&x) % 16;
            if (what == 0 && n) {
                n = dice(&x) % (n + 1);
                session_ngram_truncate(g, n);
            } else if (what < 3 && n > 8 && n < CAP - 64) { /* a piece of the text comes again */
                const int64_t from = dice(&x) % n, k = num_min(n - from, 1 + dice(&x) % 40);
                memmove(t + n, t + from, (size_t)k * sizeof *t);
                add(g, t + n, k);
                n += k;
            } else if (n < CAP - 64) {
                t[n] = (int32_t)(dice(&x) % kinds);
                add(g, t + n++, 1);
            }
            assert_int_equal(session_ngram_length(g), n);
            const int64_t k = propose(g, 1 + dice(&x) % 16, d), match = longest_match(t, n);
            const struct ngram_other *o = session_ngram_other(g);
            assert_true(!o->n || (o->at < k && o->token[0] != d[o->at]));
            /* it is a text that stood there, too */
            memcpy(d + NGRAM_MOST, d, (size_t)(o->n ? o->at : 0) * sizeof *d);
            memcpy(d + NGRAM_MOST + o->at, o->token, (size_t)o->n * sizeof *d);
            assert_true(!o->n || follows(t, n, d + NGRAM_MOST, o->at + o->n, 2));
            if (k && !follows(t, n, d, k, 2 + round % 3))
                fail_msg("round %d step %d: the draft follows nothing", round, step);
            if (!k && match >= 2 + round % 3)
                fail_msg("round %d step %d: nothing drafted, with a match of %lld", round, step,
                         (long long)match);
            n_drafts += k > 0;
        }
        session_ngram_free(g);
    }
    assert_true(n_drafts > 1000);
}

/* What is drafted depends on the contents alone, not on how they came. */
static void test_cut_and_grown_equals_new(void **state)
{
    (void)state;
    enum { N = 400 };
    int32_t t[N], a[16], b[16];
    uint32_t x = 3;
    struct ngram *g = create(0);
    for (int round = 0; round < 50; round++) {
        const int64_t from = dice(&x) % N, n = 1 + dice(&x) % N;
        for (int64_t i = from; i < N; i++)
            t[i] = (int32_t)(dice(&x) % 4);
        int64_t work = INT64_MAX;
        session_ngram_turn(g);
        assert_int_equal(session_ngram_reserve(g, n, NULL), INGLE_OK);
        assert_true(session_ngram_follow(g, t, n, &work));
        struct ngram *h = create(0);
        add(h, t, n);
        const int64_t n_a = propose(g, 16, a), n_b = propose(h, 16, b);
        assert_int_equal(n_a, n_b);
        assert_memory_equal(a, b, (size_t)n_a * sizeof *a);
        session_ngram_free(h);
    }
    session_ngram_free(g);
}

/* A long text is taken up in pieces of bounded work, a new one in its place as well. */
static void test_a_text_is_followed_in_pieces(void **state)
{
    (void)state;
    enum { N = 60000, PIECE = 1000 };
    /* the last one is a rewind */
    static const int64_t BEGINS[] = {0, N / 2, 0, 0}, ENDS[] = {N, N, N, N / 3};
    /* added, removed and added, both, removed */
    static const int64_t LEAST[] = {N, N, 2 * N, N - N / 3};
    int32_t *t = mem_calloc(N, sizeof *t), a[16], b[16];
    uint32_t x = 5;
    struct ngram *g = create(0);
    assert_int_equal(session_ngram_reserve(g, N + 30, NULL), INGLE_OK);
    for (int round = 0; round < 4; round++) {
        const int64_t n = ENDS[round];
        for (int64_t i = BEGINS[round]; i < N && round < 3; i++)
            t[i] = (int32_t)(dice(&x) % 300);
        session_ngram_turn(g);
        int64_t n_calls = 0;
        for (bool done = false; !done; n_calls++) {
            int64_t work = PIECE;
            done = session_ngram_follow(g, t, n, &work);
            assert_true(work >= 0 && (done || work < PIECE));
            assert_true(n_calls < 4 * N / PIECE);
        }
        assert_int_equal(session_ngram_length(g), n);
        assert_true(n_calls >= LEAST[round] / PIECE);
        struct ngram *h = create(0);
        add(h, t, n);
        for (int k = 0; k < 20; k++) { /* something that was there comes again */
            const int64_t there = dice(&x) % (n - 40);
            add(g, t + there, 30);
            add(h, t + there, 30);
            const int64_t n_a = propose(g, 16, a), n_b = propose(h, 16, b);
            assert_int_equal(n_a, n_b);
            assert_true(n_a > 0);
            assert_memory_equal(a, b, (size_t)n_a * sizeof *a);
            session_ngram_truncate(g, n);
            session_ngram_truncate(h, n);
        }
        session_ngram_free(h);
    }
    int64_t work = PIECE; /* there is no room for more */
    assert_false(session_ngram_follow(g, t, 3 * N, &work));
    assert_int_equal(work, PIECE);
    assert_true(session_ngram_bytes(1 << 20) <= (uint64_t)21 << 20);
    session_ngram_free(g);
    mem_free(t);
}

static void test_confidence_follows_what_was_right(void **state)
{
    (void)state;
    struct ngram *g = create(0);
    const int32_t t[] = {5, 6, 7, 8, 9, 10, 11, 1, 2, 6, 7, 8};
    int32_t d[4];
    float c[4], first;
    add(g, t, 12);
    assert_int_equal(session_ngram_propose(g, NULL, 0, 4, d, c), 4);
    assert_true(c[3] >= c[0]); /* if those before it were right the match is longer */
    first = c[0];
    for (int i = 0; i < 20; i++) {
        session_ngram_propose(g, NULL, 0, 4, d, c);
        session_ngram_learn(g, 4, 0);
    }
    session_ngram_propose(g, NULL, 0, 4, d, c);
    assert_true(c[0] < first / 3);
    for (int i = 0; i < 200; i++) {
        session_ngram_propose(g, NULL, 0, 4, d, c);
        session_ngram_learn(g, 4, 4);
    }
    session_ngram_propose(g, NULL, 0, 4, d, c);
    assert_true(c[0] > 0.9f);
    session_ngram_free(g);
}

static void test_earlier_answers_of_the_same_user_alone(void **state)
{
    (void)state;
    struct ngram_memory *m = NULL;
    struct ngram *g = create(0);
    int32_t d[16], answer[32];
    float c[16];
    assert_int_equal(session_ngram_memory_create(&m, 2, 100, NULL), INGLE_OK);
    for (int i = 0; i < 32; i++)
        answer[i] = 100 + i;
    assert_int_equal(session_ngram_remember(m, 1, answer, 32, NULL), INGLE_OK);
    add(g, answer + 4, 6);
    assert_int_equal(session_ngram_propose(g, m, 2, 4, d, c), 0);
    assert_int_equal(session_ngram_propose(g, m, 1, 4, d, c), 4);
    assert_memory_equal(d, answer + 10, sizeof(int32_t[4]));
    assert_int_equal(session_ngram_propose(g, NULL, 1, 4, d, c), 0);
    session_ngram_truncate(g, 0); /* an answer's end is not continued by the next one */
    add(g, answer + 26, 6);
    assert_int_equal(session_ngram_remember(m, 1, answer, 8, NULL), INGLE_OK);
    assert_int_equal(session_ngram_propose(g, m, 1, 4, d, c), 0);
    /* the user who was there last stays */
    assert_int_equal(session_ngram_remember(m, 2, answer, 32, NULL), INGLE_OK);
    session_ngram_truncate(g, 0);
    add(g, answer + 4, 6);
    assert_int_equal(session_ngram_propose(g, m, 1, 4, d, c), 4);
    assert_int_equal(session_ngram_remember(m, 3, answer, 32, NULL), INGLE_OK);
    assert_int_equal(session_ngram_propose(g, m, 2, 4, d, c), 0);
    assert_int_equal(session_ngram_propose(g, m, 1, 4, d, c), 4);
    session_ngram_forget(m);
    assert_int_equal(session_ngram_propose(g, m, 1, 4, d, c), 0);
    session_ngram_memory_free(m);
    session_ngram_free(g);
}

static void test_memory_keeps_the_newest(void **state)
{
    (void)state;
    struct ngram_memory *m = NULL;
    struct ngram *g = create(0);
    int32_t d[16], answer[300];
    float c[16];
    assert_int_equal(session_ngram_memory_create(&m, 1, 100, NULL), INGLE_OK);
    for (int k = 0; k < 40; k++) {
        for (int i = 0; i < 300; i++)
            answer[i] = 1000 * k + i;
        const int64_t n = 1 + 37 * k % 300;
        assert_int_equal(session_ngram_remember(m, 0, answer, n, NULL), INGLE_OK);
        if (n < 20)
            continue;
        session_ngram_truncate(g, 0);
        add(g, answer + n - 10, 6);
        assert_int_equal(session_ngram_propose(g, m, 0, 16, d, c), 4);
        assert_memory_equal(d, answer + n - 4, sizeof(int32_t[4]));
    }
    session_ngram_memory_free(m);
    session_ngram_free(g);
}

static void test_texts_that_would_cost_much(void **state)
{
    (void)state;
    enum { N = 200000 };
    int32_t *t = mem_calloc(N, sizeof *t), d[NGRAM_MOST];
    for (int period = 1; period < 4; period++) { /* every place matches */
        struct ngram *g = create(2);
        for (int64_t i = 0; i < N; i++)
            t[i] = (int32_t)(i % period);
        add(g, t, N);
        for (int i = 0; i < 2000; i++) {
            assert_int_equal(propose(g, NGRAM_MOST, d), NGRAM_MOST);
            for (int64_t j = 0; j < NGRAM_MOST; j++)
                assert_int_equal(d[j], (N + j) % period);
        }
        session_ngram_free(g);
    }
    mem_free(t);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    struct ngram *g = NULL;
    struct ngram_memory *m = NULL;
    struct err err;
    assert_int_equal(session_ngram_create(&g, &(struct ngram_options){.least_match = 1}, &err),
                     INGLE_ARG);
    assert_string_equal(err.msg, "option 'least match' is 1, outside 2 to 32");
    assert_int_equal(session_ngram_create(&g, &(struct ngram_options){.least = 65}, &err),
                     INGLE_ARG);
    assert_string_equal(err.msg, "option 'least' is 65, outside 0 to 64");
    assert_int_equal(session_ngram_memory_create(&m, 0, 100, &err), INGLE_ARG);
    assert_int_equal(session_ngram_memory_create(&m, 1, 1, &err), INGLE_ARG);
    g = create(0);
    assert_int_equal(session_ngram_reserve(g, INT64_MAX, &err), INGLE_LIMIT);
    int32_t d[4];
    assert_int_equal(propose(g, 4, d), 0);
    session_ngram_truncate(g, 5);
    session_ngram_truncate(g, -1);
    session_ngram_learn(g, 4, 4);
    session_ngram_free(g);
    session_ngram_free(NULL);
    session_ngram_memory_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_continues_what_stood_there_before),
        cmocka_unit_test(test_the_longest_match_wins_then_the_newest),
        cmocka_unit_test(test_the_other_way),
        cmocka_unit_test(test_text_that_repeats_itself_goes_on),
        cmocka_unit_test(test_random_texts_against_a_search_of_everything),
        cmocka_unit_test(test_cut_and_grown_equals_new),
        cmocka_unit_test(test_a_text_is_followed_in_pieces),
        cmocka_unit_test(test_confidence_follows_what_was_right),
        cmocka_unit_test(test_earlier_answers_of_the_same_user_alone),
        cmocka_unit_test(test_memory_keeps_the_newest),
        cmocka_unit_test(test_texts_that_would_cost_much),
        cmocka_unit_test(test_what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
