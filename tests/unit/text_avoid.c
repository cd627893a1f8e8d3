/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/mini_vocab.h"

#include "base/mem.h"
#include "text/text.h"

static const char *const gemma_part[] = {
    "<",      "<|",   "|",         "tool",   "_",     "call",      "_call",        "l",
    ">",      "|>",   "tool_call", "_call>", "x<|to", "ol_call>y", "<|tool_call>", "<tool_call|>",
    "<|\"|>", "word", "all>>"};
/* As bytes in the alphabet of GPT-2: U+FF5C is EF BD 9C. */
static const char *const deepseek_part[] = {"<",
                                            "\xC3\xAF\xC2\xBD\xC4\xBE",
                                            "\xC3\xAF\xC2\xBD",
                                            "\xC4\xBE",
                                            "DS",
                                            "ML",
                                            "DSML",
                                            ("\xC4\xBE"
                                             "DSML\xC3\xAF"),
                                            "\xC2\xBD\xC4\xBE>",
                                            "word"};

static struct tokenizer *make(enum text_chat_family family, int32_t *id)
{
    struct mini m;
    const bool gemma = family == TEXT_CHAT_GEMMA4;
    mini_init(&m, gemma ? TEXT_GEMMA4 : TEXT_DEEPSEEK);
    const size_t n = gemma ? sizeof gemma_part / sizeof *gemma_part
                           : sizeof deepseek_part / sizeof *deepseek_part;
    for (size_t i = 0; i < n; i++)
        id[i] = mini_token(&m, gemma ? gemma_part[i] : deepseek_part[i]);
    id[n] = gemma ? -1 : mini_special(&m, "｜DSML｜", TEXT_USER_DEFINED);
    return mini_create(&m);
}

static bool holds(const struct tokenizer *t, const int32_t *id, size_t n, const char *phrase)
{
    struct str s;
    str_init(&s);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(text_decode(t, id[i], true, &s, NULL), INGLE_OK);
    bool there = false;
    for (size_t i = 0; i + strlen(phrase) <= s.n; i++)
        there = there || memcmp(s.at + i, phrase, strlen(phrase)) == 0;
    str_release(&s);
    return there;
}

static bool is_in(const int32_t *list, size_t n, int32_t id)
{
    while (n-- > 0)
        if (list[n] == id)
            return true;
    return false;
}

/* Walks at random, mostly along the phrase: a token is on the list exactly where it would complete
 * it, so that a walk beside the list never holds it. */
static void nothing_completes_the_phrase(enum text_chat_family family, const char *phrase)
{
    int32_t id[32];
    struct text_avoid *a;
    struct tokenizer *t = make(family, id);
    const size_t n_tokens = text_n_tokens(t);
    assert_int_equal(text_avoid_calls(&a, family, t, n_tokens, NULL), INGLE_OK);
    uint32_t random = 1;
    int n_kept_off = 0;
    for (int walk = 0; walk < 100; walk++) {
        int32_t history[24];
        for (size_t n = 0; n < 24; n++) {
            const int32_t *list;
            const size_t n_list = text_avoid_next(a, history, (int64_t)n, &list);
            for (size_t k = 0; k < n_tokens; k++) {
                history[n] = (int32_t)k;
                const bool alone =
                    holds(t, history + n, 1, "<tool_call|>") || holds(t, history + n, 1, "<|\"|>");
                assert_int_equal(is_in(list, n_list, (int32_t)k),
                                 alone || holds(t, history, n + 1, phrase));
            }
            do {
                random = random * 1664525 + 1013904223;
                const size_t k = random >> 8;
                history[n] = k % 4 ? id[k / 4 % (family == TEXT_CHAT_GEMMA4 ? 19 : 10)]
                                   : (int32_t)(k / 4 % n_tokens);
                n_kept_off += is_in(list, n_list, history[n]);
            } while (is_in(list, n_list, history[n]));
        }
        assert_false(holds(t, history, 24, phrase));
    }
    assert_true(n_kept_off > 0);
    text_avoid_free(a);
    text_tokenizer_free(t);
}

static void no_walk_spells_the_marker_of_a_call(void **state)
{
    (void)state;
    nothing_completes_the_phrase(TEXT_CHAT_GEMMA4, "<|tool_call>");
    nothing_completes_the_phrase(TEXT_CHAT_DEEPSEEK_V4, "｜DSML｜");
}

/* A byte at a time, and behind a prompt that holds the phrase. */
static void bytes_count_and_prompts_do_no_harm(void **state)
{
    int32_t id[32], history[64];
    const int32_t *list;
    struct text_avoid *a;
    struct tokenizer *t = make(TEXT_CHAT_DEEPSEEK_V4, id);
    (void)state;
    assert_int_equal(text_avoid_calls(&a, TEXT_CHAT_DEEPSEEK_V4, t, text_n_tokens(t), NULL),
                     INGLE_OK);
    static const char phrase[] = "｜DSML｜";
    const size_t n = strlen(phrase);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(
            is_in(list, text_avoid_next(a, history, (int64_t)i, &list), (unsigned char)phrase[i]),
            i == n - 1);
        history[i] = (unsigned char)phrase[i];
    }
    assert_true(is_in(list, text_avoid_next(a, history, (int64_t)n, &list), id[10]));
    text_avoid_free(a);
    /* Tokens without a logit are on no list. */
    assert_int_equal(text_avoid_calls(&a, TEXT_CHAT_DEEPSEEK_V4, t, (size_t)id[10], NULL),
                     INGLE_OK);
    assert_false(is_in(list, text_avoid_next(a, history, 0, &list), id[10]));
    text_avoid_free(a);
    text_tokenizer_free(t);
}

static void what_no_answer_holds(void **state)
{
    static const struct {
        const char *spelling;
        int32_t type;
        bool written;
    } token[] = {
        {"<|image|>", TEXT_NORMAL, false},
        {"<|audio|>", TEXT_CONTROL, false},
        {"<pad>", TEXT_NORMAL, false},
        {"<unused7>", TEXT_NORMAL, false},
        {"<unused>", TEXT_NORMAL, true},
        {"<unused7", TEXT_NORMAL, true},
        {"<unused7>x", TEXT_NORMAL, true},
        {"<|turn>", TEXT_NORMAL, false},
        {"<turn|>", TEXT_CONTROL, true},
        {"<|tool_response>", TEXT_NORMAL, true},
        {"<tool_response|>", TEXT_USER_DEFINED, false},
        {"<|channel>", TEXT_CONTROL, true},
        {"<|tool_call>", TEXT_NORMAL, true},
        {"<odd>", TEXT_CONTROL, false},
        {"<unk>", TEXT_UNKNOWN, false},
        {"word", TEXT_NORMAL, true},
        {"<|place_holder_mm_span_0001|>", TEXT_NORMAL, false},
    };
    struct mini m;
    int32_t id[sizeof token / sizeof *token];
    (void)state;
    mini_init(&m, TEXT_GEMMA4);
    for (size_t i = 0; i < sizeof token / sizeof *token; i++)
        id[i] = mini_special(&m, token[i].spelling, token[i].type);
    struct tokenizer *t = mini_create(&m);
    for (size_t i = 0; i < sizeof token / sizeof *token; i++)
        if (text_is_written(t, id[i]) != token[i].written)
            fail_msg("%s", token[i].spelling);
    for (int32_t b = 0; b < 256; b++)
        assert_true(text_is_written(t, b));
    assert_false(text_is_written(t, -1));
    assert_false(text_is_written(t, INT32_MAX));
    text_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_walk_spells_the_marker_of_a_call),
        cmocka_unit_test(bytes_count_and_prompts_do_no_harm),
        cmocka_unit_test(what_no_answer_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
