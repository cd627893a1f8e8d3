/* SPDX-License-Identifier: Apache-2.0 */
/* The merge loop: against a plain one, and its cost on hostile text. */
#include "unit/unit.h"

#include "base/mem.h"
#include "unit/mini_vocab.h"
#include "unit/text_vocab.h"

#include <time.h>

/* a part of texts and rounds there: four times as much still costs four times as much */
enum { LESS = UNIT_ASAN ? 25 : 1 };
static int less(void)
{
    return UNIT_ASAN ? LESS : unit_some(3, LESS);
}

static uint64_t next(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* What the rule says, word for word: merge the leftmost pair of the lowest rank until there
 * is none.  id: n symbols, in place; returns how many are left. */
static size_t plain_bpe(const struct tokenizer *t, int32_t *id, size_t n)
{
    for (;;) {
        int64_t best = INT64_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const int64_t rank = text_merge_rank(t, id[i], id[i + 1]);
            if (rank >= 0 && rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == INT64_MAX)
            return n;
        id[at] = t->merge[best].result;
        memmove(&id[at + 1], &id[at + 2], (n - at - 2) * sizeof *id);
        n--;
    }
}

/* Letters a to d, then random merges of what is there, in random order. */
static struct tokenizer *random_merges(struct mini *m, uint64_t *rng)
{
    static char token[64][72], merge[64][72];
    mini_init(m, TEXT_GEMMA4);
    for (int i = 0; i < 4; i++) {
        token[i][0] = (char)('a' + i);
        token[i][1] = 0;
        mini_token(m, token[i]);
    }
    size_t n = 4;
    for (int tries = 0; tries < 60; tries++) {
        const char *left = token[next(rng) % n], *right = token[next(rng) % n];
        if (strlen(left) + strlen(right) > 20)
            continue;
        snprintf(merge[n], sizeof merge[n], "%s %s", left, right);
        memcpy(token[n], left, strlen(left));
        memcpy(token[n] + strlen(left), right, strlen(right) + 1);
        mini_token(m, token[n]);
        mini_merge(m, merge[n++]);
    }
    for (size_t i = m->v.n_merges; i > 1; i--) {
        const size_t k = next(rng) % i;
        const char *s = m->merge[k];
        m->merge[k] = m->merge[i - 1];
        m->merge[i - 1] = s;
        m->merge_bytes[k] = strlen(m->merge[k]);
        m->merge_bytes[i - 1] = strlen(s);
    }
    return mini_create(m);
}

static void merging_equals_the_plain_rule(void **state)
{
    (void)state;
    uint64_t rng = 1;
    for (int round = 0; round < 300 / less(); round++) {
        struct mini m;
        struct tokenizer *t = random_merges(&m, &rng);
        for (int k = 0; k < 20; k++) {
            char text[200];
            int32_t want[200];
            struct text_ids ids = {0};
            const size_t n = next(&rng) % sizeof text, letters = 1 + next(&rng) % 4;
            for (size_t i = 0; i < n; i++) {
                text[i] = (char)('a' + next(&rng) % letters);
                want[i] = text_find(t, &text[i], 1);
            }
            const size_t n_want = plain_bpe(t, want, n);
            assert_int_equal(text_encode(t, text, n, false, NULL, 0, &ids, NULL), INGLE_OK);
            assert_int_equal(ids.n, n_want);
            if (n_want)
                assert_memory_equal(ids.id, want, n_want * sizeof *want);
            text_ids_release(&ids);
        }
        text_tokenizer_free(t);
    }
}

static char *repeat(const char *pattern, size_t n)
{
    const size_t k = strlen(pattern);
    char *s = mem_alloc(n);
    assert_non_null(s);
    for (size_t i = 0; i < n; i++)
        s[i] = pattern[i % k];
    return s;
}

/* Steps of the merge loop and the processor time of everything. */
static uint64_t cost(const struct tokenizer *t, const char *pattern, size_t n, clock_t *ticks)
{
    char *text = repeat(pattern, n);
    struct text_ids ids = {0};
    struct text_bpe b;
    const struct text_range all = {0, n};
    const clock_t start = clock();
    text_bpe_init(&b, t);
    assert_int_equal(text_encode_with(&b, text, n, false, &all, 1, &ids, NULL), INGLE_OK);
    *ticks = clock() - start;
    const uint64_t steps = b.n_steps;
    text_bpe_release(&b);
    text_ids_release(&ids);
    mem_free(text);
    return steps;
}

/* A pair costs a few looks and its share of a heap of n: for a million, 3 x 20 levels and
 * some.  Four times the text may cost a little more than four times as much; were anything
 * quadratic it would be sixteen.  A busy machine gets three chances to show it, and a tenth of a
 * second: a quadratic loop over such texts takes many. */
static void expect_linear(const struct tokenizer *t, const char *pattern, size_t n)
{
    clock_t ticks = 0, ticks4 = 0;
    for (int i = 0; i < 3; i++) {
        const uint64_t steps = cost(t, pattern, n / 4, &ticks),
                       steps4 = cost(t, pattern, n, &ticks4);
        if (steps4 > 5 * steps + 1000 || steps4 > 120 * (uint64_t)n)
            fail_msg("'%.20s': %zu bytes take %llu steps, a quarter takes %llu", pattern, n,
                     (unsigned long long)steps4, (unsigned long long)steps);
        if (ticks4 < 10 * ticks + CLOCKS_PER_SEC / 10)
            return;
    }
    fail_msg("'%.20s': %zu bytes take %ld ticks, a quarter takes %ld", pattern, n, (long)ticks4,
             (long)ticks);
}

static const char *const hostile[] = {
    "a",
    " ",
    "\n",
    "<",
    "中",
    "\xCC\x81",
    "\xFF",
    "<|",
    "\r\n ",
    "1",
    "a ",
    "_",
    "😀",
    "\x01",
    "<｜place▁holder▁no▁12",
    "the lazy dog. ",
};

static void a_million_of_anything(const char *name)
{
    struct tokenizer *t = vocab_tokenizer(name);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        expect_linear(t, hostile[i], (i < 6 ? 1000000U : 200000U) / (unsigned)less());
    text_tokenizer_free(t);
}

static void gemma_costs_are_linear(void **state)
{
    (void)state;
    a_million_of_anything("gemma-4");
}

static void deepseek_costs_are_linear(void **state)
{
    (void)state;
    a_million_of_anything("deepseek-v4");
}

/* Tokens a, aa, aaa ...: every token reaches the next by one more a, shortest or longest
 * merge first. */
static void nested_merges_are_linear(void **state)
{
    (void)state;
    static char text[512 + 3], merge[512][512 + 3];
    memset(text, 'a', 512);
    for (int longest_first = 0; longest_first < 2; longest_first++) {
        struct mini m;
        mini_init(&m, TEXT_GEMMA4);
        for (size_t n = 1; n <= 500; n++)
            mini_bytes(&m, text, n, TEXT_NORMAL);
        for (size_t k = 1; k < 500; k++) {
            const size_t n = longest_first ? 500 - k : k;
            snprintf(merge[k], sizeof merge[k], "%.*s a", (int)n, text);
            mini_merge(&m, merge[k]);
        }
        struct tokenizer *t = mini_create(&m);
        expect_linear(t, "a", 400000 / (unsigned)less());
        expect_linear(t, "aaaaab", 400000 / (unsigned)less());
        text_tokenizer_free(t);
    }
}

/* Ranges that hold one byte each, and specials that share a long beginning. */
static void specials_are_linear(void **state)
{
    (void)state;
    static char name[256][40];
    struct mini m;
    mini_init(&m, TEXT_DEEPSEEK);
    for (int i = 0; i < 256; i++) {
        snprintf(name[i], sizeof name[i], "<<<<<<<<<<<<<<<<<<<<%d>", i);
        mini_special(&m, name[i], TEXT_CONTROL);
    }
    struct tokenizer *t = mini_create(&m);
    expect_linear(t, "<", 400000 / (unsigned)less());
    expect_linear(t, "<<<<<<<<<<<<<<<<<<<<25", 400000 / (unsigned)less());
    expect_linear(t, "<<<<<<<<<<<<<<<<<<<<255>", 400000 / (unsigned)less());
    enum { N = 100000 };
    struct text_range *r = mem_calloc(N, sizeof *r);
    char *text = repeat("a", N);
    struct text_ids ids = {0};
    for (size_t i = 0; i < N; i++)
        r[i] = (struct text_range){i, i + 1};
    assert_int_equal(text_encode(t, text, N, false, r, N, &ids, NULL), INGLE_OK);
    assert_int_equal(ids.n, N);
    text_ids_release(&ids);
    mem_free(text);
    mem_free(r);
    text_tokenizer_free(t);
}

static void a_text_has_a_limit(void **state)
{
    (void)state;
    struct mini m;
    struct err err = {0};
    struct text_ids ids = {0};
    mini_init(&m, TEXT_GEMMA4);
    struct tokenizer *t = mini_create(&m);
    assert_int_equal(text_encode(t, "", (size_t)TEXT_MAX_BYTES + 1, false, NULL, 0, &ids, &err),
                     INGLE_LIMIT);
    assert_string_equal(err.msg, "text of 1073741825 bytes, at most 1073741824");
    assert_int_equal(text_encode(t, "", 0, false, NULL, 0, &ids, &err), INGLE_OK);
    assert_int_equal(ids.n, 0);
    text_ids_release(&ids);
    text_tokenizer_free(t);
}

static bool at_once(void *arg)
{
    return ++*(int *)arg > 2;
}

/* Of any text the bytes promise no more tokens than there are. */
static void bytes_tell_the_least_tokens(void **state)
{
    (void)state;
    static const char *const name[] = {"gemma-4", "deepseek-v4"};
    for (size_t k = 0; k < 2; k++) {
        struct tokenizer *t = vocab_tokenizer(name[k]);
        uint64_t rng = 7;
        for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
            char *text = repeat(hostile[i], 3000);
            struct text_ids ids = {0};
            assert_int_equal(text_encode(t, text, 3000, false, NULL, 0, &ids, NULL), INGLE_OK);
            assert_true(text_least_tokens(t, text, 3000) <= ids.n);
            text_ids_release(&ids);
            mem_free(text);
        }
        for (int round = 0; round < 300 / less(); round++) { /* tokens in a row */
            char text[4096];
            size_t n = 0, len;
            struct text_ids ids = {0};
            while (n + 300 < sizeof text) {
                const int32_t id = (int32_t)(next(&rng) % text_n_tokens(t));
                const char *s = text_token(t, id, &len);
                if (len < 300) {
                    memcpy(text + n, s, len);
                    n += len;
                }
            }
            const struct text_range all = {0, n};
            assert_int_equal(text_encode(t, text, n, false, &all, (size_t)round % 2, &ids, NULL),
                             INGLE_OK);
            assert_true(text_least_tokens(t, text, n) <= ids.n);
            text_ids_release(&ids);
        }
        text_tokenizer_free(t);
    }
}

/* A line in one piece and merged apart at its borders: the same tokens. */
static void cuts_change_nothing(void **state)
{
    (void)state;
    struct tokenizer *t = vocab_tokenizer("gemma-4");
    uint64_t rng = 3;
    for (int round = 0; round < 300 / less(); round++) {
        int32_t want[600];
        char text[600];
        size_t n = 0, n_want = 0, len;
        struct text_ids ids = {0};
        while (n + 40 < sizeof text) {
            const int32_t id = (int32_t)(next(&rng) % text_n_tokens(t));
            const char *s = text_token(t, id, &len);
            if (len < 30 && text_token_type(t, id) == TEXT_NORMAL && !memchr(s, '\n', len)) {
                memcpy(text + n, s, len);
                n += len;
            }
        }
        for (size_t i = 0; i < n; i += len, n_want++) {
            for (len = 1; i + len < n && ((unsigned char)text[i + len] & 0xC0) == 0x80; len++)
                ;
            want[n_want] =
                text[i] == ' ' ? text_find(t, "\xE2\x96\x81", 3) : text_find(t, text + i, len);
            if (want[n_want] < 0 || !text_is_plain(t, want[n_want]))
                n_want = sizeof want; /* bytes: the plain rule does not know them */
            if (n_want >= sizeof want / sizeof *want)
                break;
        }
        if (n_want >= sizeof want / sizeof *want)
            continue;
        n_want = plain_bpe(t, want, n_want);
        assert_int_equal(text_encode(t, text, n, false, NULL, 0, &ids, NULL), INGLE_OK);
        assert_int_equal(ids.n, n_want);
        assert_memory_equal(ids.id, want, n_want * sizeof *want);
        text_ids_release(&ids);
    }
    text_tokenizer_free(t);
}

static void a_call_ends_within_its_bounds(void **state)
{
    (void)state;
    enum { N = 1000000 / (UNIT_ASAN ? 5 : 1) };
    struct tokenizer *t = vocab_tokenizer("gemma-4");
    struct err err = {0};
    struct text_ids ids = {0};
    int asked = 0;
    struct text_bounds l = {.stop = at_once, .arg = &asked};
    for (int words = 0; words < 2; words++) {
        char *text = repeat(words ? "the lazy dog. " : "a", N);
        asked = 0;
        l.max_tokens = 0;
        assert_int_equal(text_encode_within(t, text, N, false, NULL, 0, &l, &ids, &err),
                         INGLE_CANCEL);
        assert_int_equal(asked, 3);
        asked = -1000000;
        l.max_tokens = 1000; /* told by the bytes */
        assert_int_equal(text_encode_within(t, text, N, false, NULL, 0, &l, &ids, &err),
                         INGLE_LIMIT);
        assert_int_equal(asked, -1000000);
        assert_true(l.least > 1000 && l.least < N);
        l.max_tokens = l.least; /* seen on the way, or at the end */
        const ingle_status st = text_encode_within(t, text, N, false, NULL, 0, &l, &ids, &err);
        assert_int_equal(st, words ? INGLE_LIMIT : INGLE_OK);
        assert_int_equal(st ? ids.n : 0, 0);
        assert_true(!words || l.least > 2 * l.max_tokens);
        text_ids_release(&ids);
        mem_free(text);
    }
    text_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_equals_the_plain_rule), cmocka_unit_test(gemma_costs_are_linear),
        cmocka_unit_test(deepseek_costs_are_linear),     cmocka_unit_test(nested_merges_are_linear),
        cmocka_unit_test(specials_are_linear),           cmocka_unit_test(a_text_has_a_limit),
        cmocka_unit_test(bytes_tell_the_least_tokens), cmocka_unit_test(cuts_change_nothing),
        cmocka_unit_test(a_call_ends_within_its_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
