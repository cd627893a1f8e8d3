/* SPDX-License-Identifier: Apache-2.0 */
/* words - the part of a vocabulary that drafts come from holds what texts have here, and is given
 * up when they change. */
#include "unit/unit.h"

#include "base/num.h"
#include "session/words.h"

#include <string.h>

enum { VOCAB = 262144, N = 4096 };

static bool is_in(const struct device_columns *only, int64_t n, int32_t token)
{
    for (int64_t i = 0; i < n; i++)
        if (token >= only[i].first && token < only[i].first + only[i].n)
            return true;
    return n == 0;
}

/* Runs in order, with gaps between them, of whole panels. */
static int64_t check(const struct device_columns *only, int64_t n, int64_t n_vocab)
{
    int64_t sum = 0, end = -1;
    assert_true(n >= 0 && n <= FAMILY_MOST_COLUMNS);
    for (int64_t i = 0; i < n; i++) {
        assert_true(only[i].n > 0 && only[i].first > end && only[i].first + only[i].n <= n_vocab);
        assert_int_equal(only[i].first % DEVICE_COLUMNS, 0);
        assert_true(only[i].n % DEVICE_COLUMNS == 0 || only[i].first + only[i].n == n_vocab);
        end = only[i].first + only[i].n;
        sum += only[i].n;
    }
    return sum;
}

static uint64_t dice(uint64_t *x)
{
    *x = *x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *x >> 33;
}

/* A text of `kinds` words that lie all over [from, VOCAB), the first ones most often. */
static void text(int32_t *token, int64_t n, int64_t kinds, int32_t from, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        const uint64_t k =
            dice(&seed) % (uint64_t)kinds * (dice(&seed) % (uint64_t)kinds) / (uint64_t)kinds;
        uint64_t place = k * 977 + 5;
        token[i] = from + (int32_t)(dice(&place) % (uint64_t)(VOCAB - from));
    }
}

static void test_a_text(void **state)
{
    (void)state;
    static int32_t token[N], other[N];
    const struct device_columns *only;
    struct words *w = NULL;
    int64_t n, missed = 0;
    assert_int_equal(session_words_create(&w, VOCAB, NULL), INGLE_OK);
    assert_false(session_words_choose(w, &only, &n));
    assert_int_equal(n, 0); /* nothing is known: all */
    text(token, N, 50, 0, 1);
    session_words_note(w, token, N);
    assert_true(session_words_choose(w, &only, &n));
    assert_true(n > 0);
    assert_true(check(only, n, VOCAB) <= VOCAB / 2);
    for (int64_t i = 0; i < N; i++)
        missed += !is_in(only, n, token[i]);
    assert_true(missed <= N / 100);
    text(other, N, 4000, 100000, 7); /* no part has it all */
    session_words_note(w, other, N);
    assert_true(session_words_choose(w, &only, &n));
    assert_int_equal(n, 0);
    for (int k = 0; k < 40; k++) /* back to the first one, a little later */
        session_words_note(w, token, N / 8);
    (void)session_words_choose(w, &only, &n);
    assert_true(n > 0);
    check(only, n, VOCAB);
    session_words_free(w);
}

/* The beginning of the vocabulary belongs to it before it was seen. */
static void test_frequent_ones(void **state)
{
    (void)state;
    static int32_t token[N];
    const struct device_columns *only;
    struct words *w = NULL;
    int64_t n;
    uint64_t x = 3;
    assert_int_equal(session_words_create(&w, VOCAB, NULL), INGLE_OK);
    for (int i = 0; i < 600; i++)
        token[i] = (int32_t)(dice(&x) % 20000);
    session_words_note(w, token, 600);
    assert_true(session_words_choose(w, &only, &n));
    assert_true(n > 0 && check(only, n, VOCAB) <= VOCAB / 8 + DEVICE_COLUMNS);
    assert_true(is_in(only, n, 20) && is_in(only, n, 19999));
    session_words_free(w);
}

static void test_odd_sizes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {WORDS_LEAST, WORDS_LEAST + 1, 52480, 129280, 262144, 262145};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const struct device_columns *only;
        struct words *w = NULL;
        int64_t n;
        uint64_t x = k;
        assert_int_equal(session_words_create(&w, sizes[k], NULL), INGLE_OK);
        assert_true(session_words_bytes(sizes[k]) > 0);
        for (int i = 0; i < 20000; i++) {
            const int32_t t =
                (int32_t)(dice(&x) % 100 * (uint64_t)(sizes[k] / 100) + (uint64_t)(sizes[k] % 100));
            const int32_t odd[] = {-1, t, (int32_t)sizes[k], (int32_t)sizes[k] - 1};
            session_words_note(w, odd, 4);
            (void)session_words_choose(w, &only, &n);
            if (i % 500 == 0)
                check(only, n, sizes[k]);
        }
        check(only, n, sizes[k]);
        if (n)
            assert_true(is_in(only, n, (int32_t)sizes[k] - 1));
        session_words_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_text),
        cmocka_unit_test(test_frequent_ones),
        cmocka_unit_test(test_odd_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
