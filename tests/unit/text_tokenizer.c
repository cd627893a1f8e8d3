/* SPDX-License-Identifier: Apache-2.0 */
/* Making tokenizers: every check and its message; specials, ranges and streams. */
#include "unit/unit.h"

#include "base/file.h"
#include "base/mem.h"
#include "unit/mem_fail.h"
#include "unit/mini_vocab.h"

static void expect_error(const struct text_vocab *v, ingle_status status, const char *text)
{
    struct tokenizer *t = NULL;
    struct err err = {0};
    assert_int_equal(text_tokenizer_create(&t, v, &err), status);
    assert_null(t);
    assert_string_equal(err.msg, text);
}

/* Encodes with specials everywhere and compares with n ids. */
static void expect_ids(const struct tokenizer *t, const char *text, const int32_t *want, size_t n)
{
    struct text_ids ids = {0};
    struct err err = {0};
    const struct text_range all = {0, strlen(text)};
    if (text_encode(t, text, all.end, false, &all, 1, &ids, &err) != INGLE_OK)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < n && i < ids.n; i++)
        if (ids.id[i] != want[i])
            fail_msg("'%s': token %zu is %d, expected %d", text, i, ids.id[i], want[i]);
    assert_int_equal(ids.n, n);
    text_ids_release(&ids);
}

#define EXPECT_IDS(t, text, ...)                                                                   \
    expect_ids(t, text, (const int32_t[]){__VA_ARGS__},                                            \
               sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t))

static void kinds_have_names(void **state)
{
    (void)state;
    enum text_tokenizer_kind kind = TEXT_DEEPSEEK;
    struct err err = {0};
    assert_int_equal(text_vocab_kind("gemma4", NULL, &kind, &err), INGLE_OK);
    assert_int_equal(kind, TEXT_GEMMA4);
    assert_int_equal(text_vocab_kind("gpt2", "joyai-llm", &kind, &err), INGLE_OK);
    assert_int_equal(kind, TEXT_DEEPSEEK);
    assert_int_equal(text_vocab_kind("gpt2", "deepseek-v3", &kind, &err), INGLE_OK);
    /* as Ollama writes it */
    assert_int_equal(text_vocab_kind("llama", "gemma4", &kind, &err), INGLE_OK);
    assert_int_equal(kind, TEXT_GEMMA4);
    assert_int_equal(text_vocab_kind("llama", "default", &kind, &err), INGLE_UNSUP);
    assert_int_equal(text_vocab_kind("llama", NULL, &kind, &err), INGLE_UNSUP);
    assert_string_equal(err.msg, "tokenizer.ggml.model is 'llama' with pre 'none', expected "
                                 "'gemma4', 'llama' with pre 'gemma4', or 'gpt2'");
    assert_int_equal(text_vocab_kind("gpt2", "qwen2", &kind, &err), INGLE_UNSUP);
    assert_string_equal(err.msg,
                        "tokenizer.ggml.pre is 'qwen2', expected 'deepseek-v3' or 'joyai-llm'");
    assert_int_equal(text_vocab_kind("gpt2", NULL, &kind, &err), INGLE_UNSUP);
    assert_string_equal(err.msg,
                        "tokenizer.ggml.pre is missing, expected 'deepseek-v3' or 'joyai-llm'");
    assert_int_equal(text_vocab_kind("gemma4", "qwen2", &kind, &err), INGLE_UNSUP);
    assert_string_equal(err.msg, "tokenizer.ggml.pre is 'qwen2', expected 'gemma4' or none");
    assert_int_equal(text_vocab_kind(NULL, NULL, &kind, &err), INGLE_UNSUP);
    assert_string_equal(err.msg, "tokenizer.ggml.model is missing");
}

static void a_vocabulary_is_checked(void **state)
{
    (void)state;
    struct mini m;
    mini_init(&m, TEXT_GEMMA4);
    m.v.n_tokens = 0;
    expect_error(&m.v, INGLE_FORMAT, "mini: the vocabulary has no tokens");

    mini_init(&m, TEXT_GEMMA4);
    m.token_bytes[7] = 65537;
    expect_error(&m.v, INGLE_LIMIT, "mini: token 7 has 65537 bytes, at most 65536");

    mini_init(&m, TEXT_GEMMA4);
    m.type[9] = 7;
    expect_error(&m.v, INGLE_FORMAT, "mini: token 9 has type 7, expected 1 to 6");
    m.type[9] = 0;
    expect_error(&m.v, INGLE_FORMAT, "mini: token 9 has type 0, expected 1 to 6");

    const struct {
        int32_t *at;
        const char *name;
    } role[] = {{&m.v.bos, "bos"},
                {&m.v.eos, "eos"},
                {&m.v.eot, "eot"},
                {&m.v.unk, "unk"},
                {&m.v.pad, "pad"}};
    for (size_t i = 0; i < sizeof role / sizeof *role; i++) {
        char text[96];
        mini_init(&m, TEXT_GEMMA4);
        *role[i].at = 256;
        snprintf(text, sizeof text, "mini: %s token id is 256, expected less than 256 tokens",
                 role[i].name);
        expect_error(&m.v, INGLE_FORMAT, text);
        *role[i].at = -2;
        snprintf(text, sizeof text, "mini: %s token id is -2, expected less than 256 tokens",
                 role[i].name);
        expect_error(&m.v, INGLE_FORMAT, text);
    }

    mini_init(&m, TEXT_GEMMA4);
    mini_merge(&m, "ab");
    expect_error(&m.v, INGLE_FORMAT,
                 "mini: merge 0 of 2 bytes is not two tokens with a space between");
    m.merge[0] = "abc";
    m.merge_bytes[0] = 3;
    expect_error(&m.v, INGLE_FORMAT,
                 "mini: merge 0 of 3 bytes is not two tokens with a space between");
    m.merge[0] = "ab ";
    expect_error(&m.v, INGLE_FORMAT,
                 "mini: merge 0 of 3 bytes is not two tokens with a space between");
    const size_t left = 3;
    m.v.merge_left_bytes = &left;
    expect_error(&m.v, INGLE_FORMAT,
                 "mini: merge 0 of 3 bytes is not two tokens with a space between");
}

static void every_byte_needs_a_token(void **state)
{
    (void)state;
    static const enum text_tokenizer_kind kind[] = {TEXT_GEMMA4, TEXT_DEEPSEEK};
    for (int i = 0; i < 2; i++) {
        struct mini m;
        mini_init(&m, kind[i]);
        m.token[0x80] = "x";
        m.token_bytes[0x80] = 1;
        m.type[0x80] = TEXT_NORMAL;
        expect_error(&m.v, INGLE_FORMAT, "mini: the vocabulary has no token for byte 0x80");
        mini_init(&m, kind[i]);
        m.type[0x81] = TEXT_CONTROL; /* would show nothing */
        expect_error(&m.v, INGLE_FORMAT, "mini: the vocabulary has no token for byte 0x81");
        mini_init(&m, kind[i]);
        m.token[0xFF] = "yy"; /* never in UTF-8 */
        m.token_bytes[0xFF] = 2;
        m.type[0xFF] = TEXT_NORMAL;
        text_tokenizer_free(mini_create(&m));
    }
}

static void byte_tokens_are_read_strictly(void **state)
{
    (void)state;
    static const char *const bad[] = {"<0x4>",  "<0x411>", "<0xG1>", "<0x 1>",
                                      "<0X41>", "<0x41",   "0x41>>"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mini m;
        char text[96];
        mini_init(&m, TEXT_GEMMA4);
        mini_special(&m, bad[i], TEXT_BYTE);
        snprintf(text, sizeof text,
                 "mini: token 256 is a byte but is not spelt '<0xNN>' (%zu bytes)", strlen(bad[i]));
        expect_error(&m.v, INGLE_FORMAT, text);
    }
    assert_int_equal(text_byte_spelling("<0x0a>", 6), 10);
    assert_int_equal(text_byte_spelling("<0xFf>", 6), 255);
}

static void a_special_may_not_be_endless(void **state)
{
    (void)state;
    static char x[1025];
    struct mini m;
    memset(x, 'x', sizeof x);
    mini_init(&m, TEXT_DEEPSEEK);
    mini_bytes(&m, x, 1025, TEXT_CONTROL);
    expect_error(&m.v, INGLE_LIMIT, "mini: special token 256 has 1025 bytes, at most 1024");
    m.token_bytes[256] = 1024;
    text_tokenizer_free(mini_create(&m));
}

static void the_first_of_equal_tokens_wins(void **state)
{
    (void)state;
    struct mini m;
    mini_init(&m, TEXT_GEMMA4);
    mini_token(&m, "a");
    mini_token(&m, "b");
    const int32_t first = mini_token(&m, "ab"), second = mini_token(&m, "ab");
    mini_merge(&m, "a b");
    mini_merge(&m, "a b");
    mini_merge(&m, "a q"); /* names no token */
    mini_merge(&m, "b a"); /* makes none */
    struct tokenizer *t = mini_create(&m);
    size_t n;
    assert_int_equal(text_find(t, "ab", 2), first);
    assert_memory_equal(text_token(t, second, &n), "ab", 2);
    assert_int_equal(n, 2);
    assert_int_equal(t->n_merges, 1);
    EXPECT_IDS(t, "abb", first, 257);
    text_tokenizer_free(t);
}

static void tokens_keep_their_lengths(void **state)
{
    (void)state;
    struct mini m;
    mini_init(&m, TEXT_GEMMA4);
    const int32_t nul = mini_bytes(&m, "", 1, TEXT_NORMAL),
                  empty = mini_bytes(&m, "", 0, TEXT_NORMAL);
    const int32_t ab = mini_bytes(&m, "a\0b", 3, TEXT_NORMAL);
    mini_bytes(&m, "a", 1, TEXT_NORMAL);
    mini_bytes(&m, "b", 1, TEXT_NORMAL);
    mini_bytes(&m, "a\0", 2, TEXT_NORMAL);
    mini_merge(&m, "");
    mini_merge(&m, "");
    m.merge[0] = "a \0";
    m.merge_bytes[0] = 3;
    m.merge[1] = "a\0 b";
    m.merge_bytes[1] = 4;
    struct tokenizer *t = mini_create(&m);
    struct text_ids ids = {0};
    size_t n = 7;
    assert_int_equal(text_encode(t, "\0a\0b", 4, false, NULL, 0, &ids, NULL), INGLE_OK);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.id[0], nul);
    assert_int_equal(ids.id[1], ab);
    assert_non_null(text_token(t, empty, &n));
    assert_int_equal(n, 0);
    assert_int_equal(text_find(t, "", 0), empty);
    assert_null(text_token(t, -1, &n));
    assert_null(text_token(t, (int32_t)text_n_tokens(t), &n));
    text_ids_release(&ids);
    text_tokenizer_free(t);
}

static void merges_may_come_with_their_split(void **state)
{
    (void)state;
    struct mini m;
    mini_init(&m, TEXT_GEMMA4);
    mini_token(&m, "a b");
    mini_token(&m, "c");
    mini_token(&m, "a bc");
    mini_merge(&m, "a b c");
    const size_t left = 3;
    m.v.merge_left_bytes = &left;
    struct tokenizer *t = mini_create(&m);
    assert_int_equal(t->n_merges, 1);
    assert_int_equal(t->merge[0].left, 256);
    assert_int_equal(t->merge[0].result, 258);
    text_tokenizer_free(t);
}

static void ordinary_text_never_becomes_a_special(void **state)
{
    (void)state;
    struct mini m;
    mini_init(&m, TEXT_GEMMA4);
    const int32_t open = mini_token(&m, "<"), b = mini_token(&m, "b");
    const int32_t bos = mini_special(&m, "<b", TEXT_CONTROL),
                  nl = mini_special(&m, "\n\n", TEXT_USER_DEFINED);
    const int32_t x = mini_special(&m, "x", TEXT_UNKNOWN);
    mini_merge(&m, "< b");
    struct tokenizer *t = mini_create(&m);
    struct text_ids ids = {0};
    assert_int_equal(text_encode(t, "<b\n\nx", 5, false, NULL, 0, &ids, NULL), INGLE_OK);
    const int32_t want[] = {open, b, '\n', '\n', 'x'};
    assert_int_equal(ids.n, 5);
    assert_memory_equal(ids.id, want, sizeof want);
    EXPECT_IDS(t, "<b\n\nx", bos, nl, x);
    text_ids_release(&ids);
    text_tokenizer_free(t);
}

static void specials_match_leftmost_then_longest(void **state)
{
    (void)state;
    struct mini m;
    mini_init(&m, TEXT_DEEPSEEK);
    const int32_t a = mini_special(&m, "<a>", TEXT_CONTROL);
    const int32_t ab = mini_special(&m, "<a><b>", TEXT_USER_DEFINED);
    const int32_t bc = mini_special(&m, "<b><c>", TEXT_CONTROL);
    const int32_t a2 = mini_special(&m, "<a2>", TEXT_UNKNOWN);
    mini_special(&m, "<a", TEXT_UNUSED);
    mini_special(&m, "", TEXT_CONTROL);
    mini_special(&m, "\xFF", TEXT_CONTROL);
    struct tokenizer *t = mini_create(&m);
    EXPECT_IDS(t, "<a><b><c>", ab, '<', 'c', '>');
    EXPECT_IDS(t, "<b><c><a>", bc, a);
    EXPECT_IDS(t, "<a<a>", '<', 'a', a);
    EXPECT_IDS(t, "<<a2><a", '<', a2, '<', 'a');
    EXPECT_IDS(t, "<a><b", a, '<', 'b');
    text_tokenizer_free(t);
}

static void specials_count_in_their_ranges_only(void **state)
{
    (void)state;
    struct mini m;
    mini_init(&m, TEXT_GEMMA4);
    const int32_t s = mini_special(&m, "<s>", TEXT_CONTROL);
    const int32_t a = mini_token(&m, "a"), aa = mini_token(&m, "aa");
    mini_merge(&m, "a a");
    struct tokenizer *t = mini_create(&m);
    struct text_ids ids = {0};
    struct err err = {0};
    /* The second <s> is outside, the third sticks out; "aa" crosses a border. */
    const char *text = "<s><s>aa<s>a";
    const struct text_range range[] = {{0, 3}, {7, 7}, {7, 10}, {11, 12}};
    assert_int_equal(text_encode(t, text, 12, false, range, 4, &ids, &err), INGLE_OK);
    const int32_t want[] = {s, '<', 's', '>', aa, '<', 's', '>', a};
    assert_int_equal(ids.n, 9);
    assert_memory_equal(ids.id, want, sizeof want);

    const struct text_range bad[][2] = {
        {{3, 5}, {4, 6}}, {{5, 4}, {6, 7}}, {{0, 1}, {5, 13}}, {{6, 7}, {0, 1}}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(text_encode(t, text, 12, false, bad[i], 2, &ids, &err), INGLE_ARG);
        assert_int_equal(ids.n, 9);
    }
    assert_string_equal(err.msg, "range 1 of specials is 0 to 1, expected within 7 to 12");
    text_ids_release(&ids);
    text_tokenizer_free(t);
}

static void bos_comes_first(void **state)
{
    (void)state;
    struct mini m;
    mini_init(&m, TEXT_DEEPSEEK);
    m.v.bos = mini_special(&m, "<bos>", TEXT_CONTROL);
    for (int add = 0; add < 2; add++) {
        struct text_ids ids = {0};
        m.v.add_bos = add;
        struct tokenizer *t = mini_create(&m);
        assert_int_equal(text_encode(t, "a", 1, true, NULL, 0, &ids, NULL), INGLE_OK);
        assert_int_equal(ids.n, add + 1);
        assert_int_equal(ids.id[0], add ? m.v.bos : 'a');
        ids.n = 0;
        assert_int_equal(text_encode(t, "a", 1, false, NULL, 0, &ids, NULL), INGLE_OK);
        assert_int_equal(ids.n, 1);
        text_ids_release(&ids);
        text_tokenizer_free(t);
    }
    mini_init(&m, TEXT_GEMMA4);
    m.v.bos = mini_special(&m, "<bos>", TEXT_NORMAL); /* known to be control */
    struct tokenizer *t = mini_create(&m);
    assert_true(text_add_bos(t));
    assert_int_equal(text_token_type(t, m.v.bos), TEXT_CONTROL);
    EXPECT_IDS(t, "<bos>", m.v.bos);
    text_tokenizer_free(t);
}

static void gemma_falls_back_to_bytes(void **state)
{
    (void)state;
    struct mini m;
    mini_init(&m, TEXT_GEMMA4);
    const int32_t space = mini_token(&m, "\xE2\x96\x81"), e = mini_token(&m, "\xC3\xA9");
    struct tokenizer *t = mini_create(&m);
    EXPECT_IDS(t, " \xC3\xA9\xC3\xA8\xF0\x9F\x98\x80", space, e, 0xC3, 0xA8, 0xF0, 0x9F, 0x98,
               0x80);
    EXPECT_IDS(t, "\xC3", 0xEF, 0xBF, 0xBD);
    struct str s;
    str_init(&s);
    assert_int_equal(text_decode(t, space, false, &s, NULL), INGLE_OK);
    assert_int_equal(text_decode(t, 0xFF, false, &s, NULL), INGLE_OK);
    assert_string_equal(s.at, " \xFF");
    str_release(&s);
    text_tokenizer_free(t);
}

static void deepseek_shows_foreign_tokens_as_they_are(void **state)
{
    (void)state;
    struct mini m;
    struct str s;
    mini_init(&m, TEXT_DEEPSEEK);
    const int32_t word = mini_token(&m, "\xC4\xA0"
                                        "a"),
                  foreign = mini_token(&m, "a\xE2\x96\x81");
    struct tokenizer *t = mini_create(&m);
    str_init(&s);
    assert_int_equal(text_decode(t, word, false, &s, NULL), INGLE_OK);
    assert_int_equal(text_decode(t, foreign, false, &s, NULL), INGLE_OK);
    assert_string_equal(s.at, " aa\xE2\x96\x81");
    str_release(&s);
    text_tokenizer_free(t);
}

static void a_stream_holds_back_a_beginning_only(void **state)
{
    (void)state;
    struct mini m;
    mini_init(&m, TEXT_DEEPSEEK);
    struct tokenizer *t = mini_create(&m);
    struct text_stream held = {0};
    struct str s;
    str_init(&s);
    const int32_t bytes[] = {'a', 0xF0, 0x9F, 0x98, 0x80, 0xE2, 0x82,
                             'b', 0xC3, 0xC3, 0xA9, 0xED, 0xA0};
    const size_t n[] = {1, 1, 1, 1, 5, 5, 5, 9, 9, 12, 14, 14, 14};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        assert_int_equal(text_stream_add(&held, t, bytes[i], false, &s, NULL), INGLE_OK);
        assert_int_equal(s.n, n[i]);
    }
    /* A refused id changes nothing. */
    assert_int_equal(text_stream_add(&held, t, 256, false, &s, NULL), INGLE_ARG);
    assert_int_equal(s.n, 14);
    assert_int_equal(held.n_held, 2);
    text_stream_end(&held, &s);
    assert_string_equal(s.at, "a\xF0\x9F\x98\x80\xEF\xBF\xBD"
                              "b\xEF\xBF\xBD\xC3\xA9"
                              "\xEF\xBF\xBD\xEF\xBF\xBD");
    text_stream_end(&held, &s);
    assert_int_equal(s.n, 20);
    str_release(&s);
    text_tokenizer_free(t);
}

static struct tokenizer *rich_tokenizer(struct err *err, ingle_status *status)
{
    struct mini m;
    struct tokenizer *t = NULL;
    mini_init(&m, TEXT_GEMMA4);
    mini_special(&m, "<s>", TEXT_CONTROL);
    mini_token(&m, "a");
    mini_token(&m, "aa");
    mini_merge(&m, "a a");
    *status = text_tokenizer_create(&t, &m.v, err);
    return t;
}

static void creation_survives_failing_memory(void **state)
{
    (void)state;
    char *json;
    size_t n;
    assert_int_equal(file_slurp("tests/data/nano/nano-v4-tokenizer.json", 1 << 20, &json, &n, NULL),
                     INGLE_OK);
    for (int from_json = 0; from_json < 2; from_json++) {
        int n_failed = 0;
        for (ingle_status status = INGLE_NOMEM; status != INGLE_OK; n_failed++) {
            struct err err = {0};
            struct tokenizer *t = NULL;
            mem_fail_in = n_failed + 1;
            if (from_json)
                status = text_tokenizer_from_json(&t, "t", json, n, &err);
            else
                t = rich_tokenizer(&err, &status);
            mem_fail_in = 0;
            assert_true(status == INGLE_OK || status == INGLE_NOMEM);
            assert_int_equal(err.status, status);
            assert_int_equal(t != NULL, status == INGLE_OK);
            text_tokenizer_free(t);
        }
        assert_true(n_failed > 3);
    }
    mem_free(json);
}

static void calls_survive_failing_memory(void **state)
{
    (void)state;
    static const char text[] = "<s>aaaaaaaaaaaaaaaa\xFF<s>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const struct text_range all = {0, sizeof text - 1};
    ingle_status status;
    struct err err;
    struct tokenizer *t = rich_tokenizer(&err, &status);
    int n_failed = 0;
    assert_int_equal(status, INGLE_OK);
    for (status = INGLE_NOMEM; status != INGLE_OK; n_failed++) {
        struct text_ids ids = {0};
        mem_fail_in = n_failed + 1;
        status = text_encode(t, text, sizeof text - 1, false, &all, 1, &ids, &err);
        mem_fail_in = 0;
        assert_int_equal(ids.n, status == INGLE_OK ? 29 : 0);
        text_ids_release(&ids);
    }
    assert_true(n_failed > 5);
    n_failed = 0;
    for (status = INGLE_NOMEM; status != INGLE_OK; n_failed++) {
        struct str s;
        struct text_stream held = {{(char)0xE2, (char)0x82}, 2};
        str_init(&s);
        mem_fail_in = n_failed + 1;
        status = text_stream_add(&held, t, 0xC3, false, &s, &err);
        mem_fail_in = 0;
        if (status == INGLE_OK)
            assert_string_equal(s.at, "\xEF\xBF\xBD");
        str_release(&s);
    }
    assert_true(n_failed > 1);
    text_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_have_names),
        cmocka_unit_test(a_vocabulary_is_checked),
        cmocka_unit_test(every_byte_needs_a_token),
        cmocka_unit_test(byte_tokens_are_read_strictly),
        cmocka_unit_test(a_special_may_not_be_endless),
        cmocka_unit_test(the_first_of_equal_tokens_wins),
        cmocka_unit_test(tokens_keep_their_lengths),
        cmocka_unit_test(merges_may_come_with_their_split),
        cmocka_unit_test(ordinary_text_never_becomes_a_special),
        cmocka_unit_test(specials_match_leftmost_then_longest),
        cmocka_unit_test(specials_count_in_their_ranges_only),
        cmocka_unit_test(bos_comes_first),
        cmocka_unit_test(gemma_falls_back_to_bytes),
        cmocka_unit_test(deepseek_shows_foreign_tokens_as_they_are),
        cmocka_unit_test(a_stream_holds_back_a_beginning_only),
        cmocka_unit_test(creation_survives_failing_memory),
        cmocka_unit_test(calls_survive_failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
