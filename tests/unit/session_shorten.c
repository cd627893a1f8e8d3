/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens of a prompt are kept: by hand, and beside a plain program of the same rules. */
#include "unit/unit.h"

#include "session/shorten.h"

#include <stdlib.h>
#include <string.h>

enum { N = 3200, CHUNKS = N / SHORTEN_CHUNK };

static struct {
    int32_t token[N];
    float score[N];
    bool always[N], kept[N];
    uint32_t random;
} w;

static uint32_t next_random(void)
{
    w.random = w.random * 1664525u + 1013904223u;
    return w.random >> 8;
}

static int clear(void **state)
{
    (void)state;
    memset(&w, 0, sizeof w);
    for (int i = 0; i < N; i++)
        w.token[i] = i; /* none occurs twice */
    return 0;
}

static int64_t choose(int64_t n, double keep, int64_t system)
{
    struct err e;
    int64_t n_kept, count = 0;
    if (session_shorten_choose(
            &(struct session_shorten){w.token, w.score, w.always, n, system, keep}, w.kept, &n_kept,
            &e))
        fail_msg("%s", e.msg);
    for (int64_t i = 0; i < n; i++)
        count += w.kept[i];
    assert_int_equal(n_kept, count);
    return n_kept;
}

static bool chunk_is_kept(int64_t c)
{
    int n = 0;
    for (int i = 0; i < SHORTEN_CHUNK; i++)
        n += w.kept[c * SHORTEN_CHUNK + i];
    return n == SHORTEN_CHUNK;
}

static void ends_are_kept(void **state)
{
    (void)state;
    assert_int_equal(choose(N, 0.01, 0), (SHORTEN_FIRST + SHORTEN_LAST) * SHORTEN_CHUNK);
    for (int c = 0; c < CHUNKS; c++)
        assert_int_equal(chunk_is_kept(c), c < SHORTEN_FIRST || c >= CHUNKS - SHORTEN_LAST);
    assert_int_equal(choose(N, 1, 0), N);
    assert_int_equal(choose(700, 0.2, 0), 700); /* nothing is between them */
    assert_int_equal(choose(N - 7, 1, 0), N - 7);
}

static void system_and_template_are_kept(void **state)
{
    (void)state;
    w.always[1000] = w.always[2000] = true;
    assert_int_equal(choose(N, 0.01, 500), (SHORTEN_FIRST + SHORTEN_LAST) * SHORTEN_CHUNK + 500 -
                                               SHORTEN_FIRST * SHORTEN_CHUNK + 2);
    assert_true(w.kept[499] && !w.kept[500] && w.kept[1000] && !w.kept[999] && !w.kept[1001]);
}

/* A needle: four chunks may be filled, one of them is what is looked for. */
static void needles_are_found(void **state)
{
    (void)state;
    const int at[] = {SHORTEN_FIRST, CHUNKS / 2, CHUNKS - SHORTEN_LAST - 1};
    for (int i = 0; i < 3; i++) {
        clear(NULL);
        w.score[at[i] * SHORTEN_CHUNK + 9] = 0.5f;
        w.score[3] = 0.9f;
        assert_int_equal(choose(N, (SHORTEN_FIRST + SHORTEN_LAST + 1.5) / CHUNKS, 0),
                         (SHORTEN_FIRST + SHORTEN_LAST + 1) * SHORTEN_CHUNK);
        assert_true(chunk_is_kept(at[i]));
    }
}

static void ties_go_to_the_lower_one(void **state)
{
    (void)state;
    (void)choose(N, (SHORTEN_FIRST + SHORTEN_LAST + 3.0) / CHUNKS, 0);
    for (int c = SHORTEN_FIRST; c < CHUNKS - SHORTEN_LAST; c++)
        assert_int_equal(chunk_is_kept(c), c < SHORTEN_FIRST + 3);
    w.score[50 * SHORTEN_CHUNK + 16] = w.score[40 * SHORTEN_CHUNK + 16] = 0.1f; /* the same mean */
    (void)choose(N, (SHORTEN_FIRST + SHORTEN_LAST + 1.0) / CHUNKS, 0);
    assert_true(chunk_is_kept(40) && !chunk_is_kept(50));
}

static void words_of_the_end_are_found(void **state)
{
    (void)state;
    memcpy(w.token + 1600, w.token + N - 40, SHORTEN_GRAM * sizeof *w.token);
    memcpy(w.token + 2001, w.token + N - 40, (SHORTEN_GRAM - 1) * sizeof *w.token); /* too few */
    (void)choose(N, 0.01, 0);
    for (int c = SHORTEN_FIRST; c < CHUNKS - SHORTEN_LAST; c++)
        assert_int_equal(chunk_is_kept(c), c >= 49 && c <= 51);
    for (int i = 0; i < SHORTEN_GRAM; i++) /* words of the template are everywhere */
        w.always[N - 40 + i] = true;
    (void)choose(N, 0.01, 0);
    assert_false(chunk_is_kept(50));
}

/* The same by loops over chunks that know nothing of each other. */
static void plain(double keep, int64_t system, bool *kept)
{
    static float pool[N], mean[CHUNKS];
    for (int i = 0; i < N; i++) {
        int n = 0;
        pool[i] = 0;
        for (int k = i - 2; k <= i + 2; k++)
            if (k >= 0 && k < N)
                pool[i] += w.score[k], n++;
        pool[i] /= (float)n;
        kept[i] = w.always[i] || i < system || i < 256 || i >= N - 768;
    }
    for (int c = 0; c < CHUNKS; c++) {
        mean[c] = 0;
        for (int i = 0; i < 32; i++)
            mean[c] += pool[c * 32 + i];
        mean[c] /= 32;
    }
    bool hit[CHUNKS] = {false};
    for (int i = 0; i + 4 <= N - 96; i++)
        for (int k = N - 96; k + 4 <= N; k++)
            if (!memcmp(w.token + i, w.token + k, 16) && !w.always[k] && !w.always[k + 1] &&
                !w.always[k + 2] && !w.always[k + 3])
                hit[i / 32] = true;
    for (int c = 0, n = 0; c < CHUNKS && n < 64; c++)
        for (int k = -1; k <= 1 && hit[c]; k++, n += k > 1)
            for (int i = 0; i < 32 && c + k >= 0 && c + k < CHUNKS; i++)
                kept[(c + k) * 32 + i] = true;
    bool used[CHUNKS] = {false};
    int64_t n = 0;
    for (int i = 0; i < N; i++)
        n += kept[i];
    for (;;) {
        int best = -1, more = 0;
        for (int c = 0; c < CHUNKS; c++)
            if (!used[c] && (best < 0 || mean[c] > mean[best]))
                best = c;
        if (best < 0)
            return;
        for (int i = 0; i < 32; i++)
            more += !kept[best * 32 + i];
        if (n + more > (int64_t)(keep * N))
            return;
        n += more;
        used[best] = true;
        for (int i = 0; i < 32; i++)
            kept[best * 32 + i] = true;
    }
}

static void a_plain_program_says_the_same(void **state)
{
    (void)state;
    static bool want[N];
    for (uint32_t seed = 1; seed <= 20; seed++) {
        w.random = seed;
        for (int i = 0; i < N; i++) {
            w.token[i] = (int32_t)(next_random() % (seed % 2 ? 1000 : 12));
            w.score[i] = (float)(next_random() % 64) / 1024.0f; /* with ties */
            w.always[i] = next_random() % 100 == 0;
        }
        const double keep = (double)(next_random() % 100) / 100;
        const int64_t system = next_random() % 700;
        plain(keep, system, want);
        (void)choose(N, keep, system);
        assert_memory_equal(w.kept, want, sizeof want);
    }
}

static void borders_go_outward(void **state)
{
    (void)state;
    const int64_t small[] = {2, 4, 6, 8, 10, 12}, large[] = {3, 3, 7, 12};
    const bool kept[] = {false, false, true, false, false, false};
    bool got[6];
    session_shorten_map(small, kept, 6, large, got, 4); /* bytes 4 and 5 */
    assert_true(!got[0] && got[1] && got[2] && !got[3]);
    const bool third[] = {false, false, false, true};
    session_shorten_map(large, third, 4, small, got, 6); /* bytes 7 to 11 */
    assert_true(!got[0] && !got[1] && !got[2] && got[3] && got[4] && got[5]);
    session_shorten_map(small, kept, 6, small, got, 6);
    assert_memory_equal(got, kept, sizeof kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(ends_are_kept, clear),
        cmocka_unit_test_setup(system_and_template_are_kept, clear),
        cmocka_unit_test_setup(needles_are_found, clear),
        cmocka_unit_test_setup(ties_go_to_the_lower_one, clear),
        cmocka_unit_test_setup(words_of_the_end_are_found, clear),
        cmocka_unit_test_setup(a_plain_program_says_the_same, clear),
        cmocka_unit_test_setup(borders_go_outward, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
