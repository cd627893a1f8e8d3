/* SPDX-License-Identifier: Apache-2.0 */
/* The published vocabularies against the vectors: text to ids, ids to bytes, streams. */
#include "unit/unit.h"

#include "base/json.h"
#include "base/str.h"
#include "base/utf8.h"
#include "unit/text_vocab.h"
#include <stdio.h>
#include <stdlib.h>

static struct tokenizer *tokenizer[2];

static const struct {
    const char *name;
} family[2] = {{"gemma-4"}, {"deepseek-v4"}};

static json_object *member(json_object *o, const char *key)
{
    json_object *v = NULL;
    assert_true(json_object_object_get_ex(o, key, &v));
    return v;
}

static bool flag(json_object *o, const char *key)
{
    return json_object_get_boolean(member(o, key));
}

static const char *string(json_object *o, size_t *n)
{
    *n = (size_t)json_object_get_string_len(o);
    return json_object_get_string(o);
}

static void add_hex(struct str *out, json_object *o)
{
    size_t n;
    const char *s = string(o, &n);
    for (size_t i = 0; i + 1 < n; i += 2) {
        unsigned byte;
        assert_int_equal(sscanf(s + i, "%2x", &byte), 1);
        str_addc(out, (char)byte);
    }
}

typedef void case_fn(const struct tokenizer *t, json_object *o);

/* Calls fn for every line of a file of JSON objects. */
static void for_each_case(int which, const char *suffix, int n_expected, case_fn *fn)
{
    char path[128];
    size_t n;
    int n_cases = 0;
    snprintf(path, sizeof path, "tests/data/vocab/%s%s.jsonl.xz", family[which].name, suffix);
    char *text = test_slurp(path, &n);
    assert_non_null(text);
    for (char *line = text, *end; line < text + n; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + n - line));
        assert_non_null(end);
        json_object *o;
        struct err err;
        if (json_parse(line, (size_t)(end - line), NULL, &o, &err) != INGLE_OK)
            fail_msg("%s: %s", path, err.msg);
        fn(tokenizer[which], o);
        json_object_put(o);
        n_cases++;
    }
    assert_int_equal(n_cases, n_expected);
    mem_free(text);
}

static void expect_ids(json_object *o, const struct text_ids *got)
{
    json_object *want = member(o, "ids");
    bool same = got->n == json_object_array_length(want);
    for (size_t i = 0; same && i < got->n; i++)
        same = got->id[i] == json_object_get_int(json_object_array_get_idx(want, i));
    if (same)
        return;
    struct str s;
    str_init(&s);
    for (size_t i = 0; i < got->n; i++)
        str_addf(&s, "%d, ", got->id[i]);
    fail_msg("%s\ngot %s", json_object_to_json_string(o), s.at);
}

static void expect_round_trip(const struct tokenizer *t, const char *text, size_t n,
                              const struct text_ids *ids, bool bos)
{
    struct str s;
    str_init(&s);
    for (size_t i = bos ? 1 : 0; i < ids->n; i++)
        assert_int_equal(text_decode(t, ids->id[i], true, &s, NULL), INGLE_OK);
    assert_int_equal(s.n, n);
    assert_memory_equal(s.at, text, n);
    str_release(&s);
}

static void encode_case(const struct tokenizer *t, json_object *o)
{
    struct str bytes;
    struct text_ids ids = {0};
    json_object *in;
    size_t n;
    str_init(&bytes);
    if (json_object_object_get_ex(o, "text", &in)) {
        const char *text = string(in, &n);
        str_add(&bytes, text, n);
    } else {
        add_hex(&bytes, member(o, "bytes"));
    }
    const struct text_range all = {0, bytes.n};
    struct err err = {0};
    if (text_encode(t, bytes.at, bytes.n, flag(o, "add_special"), &all, flag(o, "parse_special"),
                    &ids, &err) != INGLE_OK)
        fail_msg("%s", err.msg);
    expect_ids(o, &ids);
    const bool marks = text_tokenizer_kind(t) == TEXT_GEMMA4 && strstr(bytes.at, "\xE2\x96\x81");
    if (utf8_valid(bytes.at, bytes.n) && !marks)
        expect_round_trip(t, bytes.at, bytes.n, &ids, flag(o, "add_special") && text_add_bos(t));
    str_release(&bytes);
    text_ids_release(&ids);
}

static void expect_hex(const char *at, size_t n, json_object *want)
{
    struct str s;
    str_init(&s);
    add_hex(&s, want);
    assert_int_equal(n, s.n);
    assert_memory_equal(at, s.at, n);
    str_release(&s);
}

static void decode_case(const struct tokenizer *t, json_object *o)
{
    json_object *ids = member(o, "ids"), *error;
    struct str all, stream;
    struct text_stream held = {0};
    str_init(&all);
    str_init(&stream);
    const bool fails =
        json_object_object_get_ex(o, "error", &error) && json_object_get_boolean(error);
    const ingle_status want_status = fails ? INGLE_ARG : INGLE_OK;
    const bool special = !fails && flag(o, "special");
    for (size_t i = 0; i < json_object_array_length(ids); i++) {
        const int32_t id = json_object_get_int(json_object_array_get_idx(ids, i));
        const size_t start = all.n, sent = stream.n;
        struct err err = {0};
        if (text_decode(t, id, special, &all, &err) != want_status)
            fail_msg("%s\n%s", json_object_to_json_string(o), err.msg);
        if (text_stream_add(&held, t, id, special, &stream, &err) != want_status)
            fail_msg("%s\n%s", json_object_to_json_string(o), err.msg);
        if (fails) {
            assert_non_null(strstr(err.msg, "vocabulary"));
            continue;
        }
        expect_hex(all.at + start, all.n - start,
                   json_object_array_get_idx(member(o, "pieces"), i));
        size_t n;
        const char *want = string(json_object_array_get_idx(member(o, "stream"), i), &n);
        assert_int_equal(stream.n - sent, n);
        assert_memory_equal(stream.at + sent, want, n);
    }
    if (!fails) {
        expect_hex(all.at, all.n, member(o, "bytes"));
        expect_hex(held.held, held.n_held, member(o, "held"));
    }
    const size_t n = stream.n, more = held.n_held ? 3 : 0;
    text_stream_end(&held, &stream);
    assert_int_equal(stream.n, n + more);
    str_release(&all);
    str_release(&stream);
}

static void gemma_texts_become_their_ids(void **state)
{
    (void)state;
    for_each_case(0, "", 850, encode_case);
}

static void gemma_ids_become_their_bytes(void **state)
{
    (void)state;
    for_each_case(0, "-decode", 151, decode_case);
}

static void deepseek_texts_become_their_ids(void **state)
{
    (void)state;
    for_each_case(1, "", 860, encode_case);
}

static void deepseek_ids_become_their_bytes(void **state)
{
    (void)state;
    for_each_case(1, "-decode", 167, decode_case);
}

static void the_files_tell_roles(void **state)
{
    (void)state;
    assert_int_equal(text_n_tokens(tokenizer[0]), 262144);
    assert_int_equal(text_n_tokens(tokenizer[1]), 129280);
    assert_int_equal(text_bos(tokenizer[0]), 2);
    assert_true(text_add_bos(tokenizer[0]));
    assert_false(text_add_bos(tokenizer[1]));
    const int32_t ends[2][3] = {{1, 50, 106}, {1, 1, 1}};
    for (int which = 0; which < 2; which++)
        for (int32_t id = 0, n = (int32_t)text_n_tokens(tokenizer[which]); id < n; id++)
            assert_int_equal(text_is_end(tokenizer[which], id),
                             id == ends[which][0] || id == ends[which][1] || id == ends[which][2]);
}

static uint64_t next(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Any scalar value but U+2581, which Gemma writes as a space. */
static uint32_t random_character(uint64_t *rng)
{
    static const char ascii[] = "  \n\r\t.,'_<>|aeTx019";
    static const uint32_t limit[] = {0x80, 0x800, 0x3100, 0x10000, 0x110000};
    const uint64_t pick = next(rng) % 10;
    if (pick > 4)
        return (unsigned char)ascii[next(rng) % (sizeof ascii - 1)];
    for (;;) {
        const uint32_t cp = (uint32_t)(next(rng) % limit[pick]);
        if ((cp < 0xD800 || cp > 0xDFFF) && cp != 0x2581)
            return cp;
    }
}

static void random_text_survives(const struct tokenizer *t, uint64_t *rng)
{
    struct str text, back, streamed;
    struct text_ids ids = {0};
    struct text_stream held = {0};
    str_init(&text);
    str_init(&back);
    str_init(&streamed);
    for (uint64_t n = next(rng) % 60; n; n--) {
        char bytes[4];
        const size_t len = utf8_encode(random_character(rng), bytes);
        for (uint64_t k = next(rng) % 8 ? 1 : next(rng) % 20; k; k--)
            str_add(&text, bytes, len);
    }
    assert_int_equal(text_encode(t, text.at, text.n, false, NULL, 0, &ids, NULL), INGLE_OK);
    for (size_t i = 0; i < ids.n; i++) {
        assert_int_equal(text_decode(t, ids.id[i], false, &back, NULL), INGLE_OK);
        assert_int_equal(text_stream_add(&held, t, ids.id[i], false, &streamed, NULL), INGLE_OK);
        assert_int_equal(back.n, streamed.n + held.n_held);
    }
    assert_int_equal(held.n_held, 0);
    assert_int_equal(back.n, text.n);
    assert_memory_equal(back.at, text.at, text.n);
    assert_memory_equal(streamed.at, text.at, text.n);
    str_release(&text);
    str_release(&back);
    str_release(&streamed);
    text_ids_release(&ids);
}

static void text_without_specials_survives(void **state)
{
    (void)state;
    uint64_t rng = 7;
    for (int i = 0; i < 4000; i++)
        random_text_survives(tokenizer[i & 1], &rng);
}

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        tokenizer[i] = vocab_tokenizer(family[i].name);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        text_tokenizer_free(tokenizer[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma_texts_become_their_ids),
        cmocka_unit_test(gemma_ids_become_their_bytes),
        cmocka_unit_test(deepseek_texts_become_their_ids),
        cmocka_unit_test(deepseek_ids_become_their_bytes),
        cmocka_unit_test(the_files_tell_roles),
        cmocka_unit_test(text_without_specials_survives),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
