/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json: the same tokenizer as from GGUF, the golden prompts, and refusals by name. */
#include "unit/unit.h"

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer_impl.h"
#include "unit/text_vocab.h"

static const char gemma_path[] = "tests/data/nano/tokenizer.json";
static const char deepseek_path[] = "tests/data/nano/nano-v4-tokenizer.json";

static json_object *load(const char *path)
{
    char *text;
    size_t n;
    json_object *o = NULL;
    struct err err;
    if (file_slurp(path, 64 << 20, &text, &n, &err) != INGLE_OK ||
        json_parse(text, n, NULL, &o, &err) != INGLE_OK)
        fail_msg("%s", err.msg);
    mem_free(text);
    return o;
}

static struct tokenizer *from_file(const char *path)
{
    struct tokenizer *t = NULL;
    char *text;
    size_t n;
    struct err err;
    if (file_slurp(path, 64 << 20, &text, &n, &err) != INGLE_OK ||
        text_tokenizer_from_json(&t, path, text, n, &err) != INGLE_OK)
        fail_msg("%s", err.msg);
    mem_free(text);
    return t;
}

static json_object *member(json_object *o, const char *key)
{
    json_object *v = NULL;
    assert_true(json_object_object_get_ex(o, key, &v));
    return v;
}

static void expect_ids(const struct tokenizer *t, const char *text, json_object *want)
{
    struct text_ids ids = {0};
    const struct text_range all = {0, strlen(text)};
    assert_int_equal(text_encode(t, text, all.end, false, &all, 1, &ids, NULL), INGLE_OK);
    assert_int_equal(ids.n, json_object_array_length(want));
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.id[i], json_object_get_int(json_object_array_get_idx(want, i)));
    text_ids_release(&ids);
}

/* With and without control tokens: what the goldens call the completion has none. */
static void expect_text(const struct tokenizer *t, json_object *ids, bool show, const char *want)
{
    struct str s;
    struct text_stream held = {0};
    str_init(&s);
    for (size_t i = 0; i < json_object_array_length(ids); i++)
        assert_int_equal(text_stream_add(&held, t,
                                         json_object_get_int(json_object_array_get_idx(ids, i)),
                                         show, &s, NULL),
                         INGLE_OK);
    text_stream_end(&held, &s);
    assert_string_equal(s.at, want);
    str_release(&s);
}

static void golden_prompts_have_their_ids(void **state)
{
    (void)state;
    struct tokenizer *t = from_file(gemma_path);
    json_object *golden = load("tests/data/nano/golden.json");
    json_object *list = member(member(golden, "weights"), "bf16");
    assert_int_equal(json_object_array_length(list), 12);
    for (size_t i = 0; i < 12; i++) {
        json_object *o = json_object_array_get_idx(list, i);
        expect_ids(t, json_object_get_string(member(o, "prompt")), member(o, "prompt_ids"));
        expect_text(t, member(o, "prompt_ids"), true, json_object_get_string(member(o, "prompt")));
        expect_text(t, member(o, "completion_ids"), true,
                    json_object_get_string(member(o, "completion")));
    }
    json_object_put(golden);
    text_tokenizer_free(t);
}

static void deepseek_prompts_have_their_ids(void **state)
{
    (void)state;
    struct tokenizer *t = from_file(deepseek_path);
    json_object *o = NULL;
    static const char text[] = "{\"ids\": [0, 300, 361, 261, 522, 523, 16, 2034, 291, 274, 272, "
                               "309, 312, 1193, 33, 2035, 2038]}";
    assert_int_equal(json_parse(text, strlen(text), NULL, &o, NULL), INGLE_OK);
    const char *prompt = "<｜begin▁of▁sentence｜>You are a helpful assistant.<｜User｜>What is the "
                         "capital of Italy?<｜Assistant｜></think>";
    expect_ids(t, prompt, member(o, "ids"));
    expect_text(t, member(o, "ids"), true, prompt);
    json_object_put(o);
    text_tokenizer_free(t);
}

static void both_files_make_the_same_tokenizer(void **state)
{
    (void)state;
    struct tokenizer *a = from_file(gemma_path), *b = NULL;
    struct io_file *f;
    struct text_vocab v;
    struct err err = {0};
    static const char gguf[] = "tests/data/nano/nano-gemma4-Q4_K_M.gguf";
    if (io_open(&f, gguf, NULL, &err) != INGLE_OK)
        fail_msg("%s", err.msg);
    vocab_from_gguf(&v, f, gguf);
    if (text_tokenizer_create(&b, &v, &err) != INGLE_OK)
        fail_msg("%s", err.msg);
    vocab_release(&v);
    io_close(f);
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->bos, b->bos);
    assert_int_equal(a->add_bos, b->add_bos);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_int_equal(a->n_merges, b->n_merges);
    assert_int_equal(a->n_specials, b->n_specials);
    assert_memory_equal(a->type, b->type, a->n_tokens);
    assert_memory_equal(a->offset, b->offset, (a->n_tokens + 1) * sizeof *a->offset);
    assert_memory_equal(a->spelling, b->spelling, a->offset[a->n_tokens]);
    assert_memory_equal(a->merge, b->merge, a->n_merges * sizeof *a->merge);
    assert_memory_equal(a->special, b->special, a->n_specials * sizeof *a->special);
    assert_memory_equal(a->byte_id, b->byte_id, sizeof a->byte_id);
    assert_memory_equal(a->end, b->end, sizeof a->end);
    text_tokenizer_free(a);
    text_tokenizer_free(b);
}

/* Sets root[path...] (keys and list indices, with dots between) to a JSON value, or removes
 * it, and expects the error. */
static void refuse(const char *file, const char *path, const char *value, ingle_status status,
                   const char *message)
{
    json_object *root = load(file), *at = root, *new_value = NULL;
    struct tokenizer *t = NULL;
    struct err err = {0};
    char buffer[128], *key = buffer;
    snprintf(buffer, sizeof buffer, "%s", path);
    for (char *dot; (dot = strchr(key, '.')) != NULL; key = dot + 1) {
        *dot = 0;
        at = json_object_is_type(at, json_type_array)
                 ? json_object_array_get_idx(at, strtoul(key, NULL, 10))
                 : member(at, key);
    }
    if (value)
        assert_int_equal(json_parse(value, strlen(value), NULL, &new_value, &err), INGLE_OK);
    if (json_object_is_type(at, json_type_array))
        json_object_array_put_idx(at, strtoul(key, NULL, 10), new_value);
    else if (value)
        json_object_object_add(at, key, new_value);
    else
        json_object_object_del(at, key);
    const char *text = json_object_to_json_string(root);
    assert_int_equal(text_tokenizer_from_json(&t, "t.json", text, strlen(text), &err), status);
    assert_null(t);
    assert_string_equal(err.msg, message);
    json_object_put(root);
}

static void other_pipelines_are_refused_by_name(void **state)
{
    (void)state;
    refuse(gemma_path, "model.type", "\"Unigram\"", INGLE_UNSUP,
           "t.json: model.type is 'Unigram', expected 'BPE'");
    refuse(gemma_path, "model", NULL, INGLE_UNSUP, "t.json: model.type is 'null', expected 'BPE'");
    refuse(gemma_path, "model.dropout", "0.1", INGLE_UNSUP,
           "t.json: model.dropout is '0.1', expected null");
    refuse(gemma_path, "model.end_of_word_suffix", "\"</w>\"", INGLE_UNSUP,
           "t.json: model.end_of_word_suffix is '</w>', expected null");
    refuse(gemma_path, "model.ignore_merges", "true", INGLE_UNSUP,
           "t.json: model.ignore_merges is 'true', expected 'false'");
    refuse(gemma_path, "model.byte_fallback", "false", INGLE_UNSUP,
           "t.json: model.byte_fallback is 'false', expected 'true'");
    refuse(deepseek_path, "model.byte_fallback", "true", INGLE_UNSUP,
           "t.json: model.byte_fallback is 'true', expected 'false'");
    refuse(gemma_path, "normalizer", "{\"type\": \"NFC\"}", INGLE_UNSUP,
           "t.json: normalizer 'NFC' with pre_tokenizer 'Split', expected those of Gemma 4 "
           "('Replace') or DeepSeek V3 and V4 ('ByteLevel')");
    refuse(gemma_path, "normalizer.content", "\"_\"", INGLE_UNSUP,
           "t.json: normalizer is '_', expected one Replace of ' ' by '▁'");
    refuse(gemma_path, "pre_tokenizer", "{\"type\": \"Metaspace\"}", INGLE_UNSUP,
           "t.json: pre_tokenizer is 'Metaspace', expected null or one Split at ' '");
    refuse(deepseek_path, "normalizer", "{\"type\": \"NFC\"}", INGLE_UNSUP,
           "t.json: normalizer is 'NFC', expected null");
    refuse(deepseek_path, "pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\p{N}\"",
           INGLE_UNSUP, "t.json: pre_tokenizer pattern is '\\p{N}', expected '\\p{N}{1,3}'");
    refuse(deepseek_path, "pre_tokenizer.pretokenizers.1.behavior", "\"Removed\"", INGLE_UNSUP,
           "t.json: pre_tokenizer split is 'Removed', expected 'Isolated'");
    refuse(deepseek_path, "pre_tokenizer.pretokenizers.3.use_regex", "true", INGLE_UNSUP,
           "t.json: pre_tokenizer ByteLevel has add_prefix_space or use_regex, expected neither");
    refuse(deepseek_path, "pre_tokenizer.pretokenizers.0", "{\"type\": \"Digits\"}", INGLE_UNSUP,
           "t.json: pre_tokenizer split is 'Digits', expected 'Split'");
}

static void a_broken_file_is_refused(void **state)
{
    (void)state;
    refuse(gemma_path, "model.vocab", NULL, INGLE_UNSUP,
           "t.json: model.vocab is 'null', expected an object");
    refuse(gemma_path, "model.vocab", "[]", INGLE_UNSUP,
           "t.json: model.vocab is 'no object', expected an object");
    refuse(gemma_path, "model.merges", "{}", INGLE_UNSUP,
           "t.json: model.merges is 'no array', expected an array");
    refuse(gemma_path, "model.merges.3", "[\"a\"]", INGLE_FORMAT,
           "t.json: merge 3 is no pair of strings");
    refuse(gemma_path, "model.merges.3", "[\"a\", 1]", INGLE_FORMAT,
           "t.json: merge 3 is no pair of strings");
    refuse(gemma_path, "model.merges.3", "\"ab\"", INGLE_FORMAT,
           "t.json: merge 3 of 2 bytes is not two tokens with a space between");
    refuse(gemma_path, "model.vocab.zzzz", "5000", INGLE_FORMAT,
           "t.json: model.vocab has the id 5000, expected less than 4146 tokens");
    refuse(gemma_path, "model.vocab.zzzz", "-1", INGLE_FORMAT,
           "t.json: model.vocab has the id -1, expected less than 4146 tokens");
    refuse(gemma_path, "model.vocab.zzzz", "\"x\"", INGLE_FORMAT,
           "t.json: model.vocab has the id x, expected less than 4146 tokens");
    refuse(gemma_path, "model.vocab.zzzz", "7", INGLE_FORMAT, "t.json: two tokens have the id 7");
    refuse(gemma_path, "added_tokens.1.content", "\"x\"", INGLE_FORMAT,
           "t.json: two tokens have the id 1");
    refuse(gemma_path, "added_tokens.1.content", "1", INGLE_FORMAT,
           "t.json: added token 1 has no content");
    refuse(gemma_path, "added_tokens.1.id", "4144", INGLE_FORMAT,
           "t.json: an added token has the id 4144, expected less than 4144 tokens");
    refuse(gemma_path, "added_tokens.1.lstrip", "true", INGLE_UNSUP,
           "t.json: added token 1 has lstrip, which is not supported");

    struct tokenizer *t = NULL;
    struct err err = {0};
    assert_int_equal(text_tokenizer_from_json(&t, "t.json", "{", 1, &err), INGLE_FORMAT);
    assert_memory_equal(err.msg, "t.json: ", 8);
    assert_int_equal(text_tokenizer_from_json(&t, "t.json", "{", 1, NULL), INGLE_FORMAT);
    assert_int_equal(text_tokenizer_from_json(&t, "t.json", "[]", 2, &err), INGLE_UNSUP);
    assert_null(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_prompts_have_their_ids),
        cmocka_unit_test(deepseek_prompts_have_their_ids),
        cmocka_unit_test(both_files_make_the_same_tokenizer),
        cmocka_unit_test(other_pipelines_are_refused_by_name),
        cmocka_unit_test(a_broken_file_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
