/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "text/text.h"
#include "unit/gz.h"
#include <stdio.h>
#include <string.h>

static struct json_object *load(const char *path)
{
    size_t n;
    char *text = test_slurp_gz(path, &n);
    assert_non_null(text);
    struct json_object *o = NULL;
    struct err err;
    if (json_parse(text, n, NULL, &o, &err) != INGLE_OK)
        fail_msg("%s: %s", path, err.msg);
    free(text);
    return o;
}

static const char *field(struct json_object *c, const char *key)
{
    struct json_object *v;
    return json_object_object_get_ex(c, key, &v) ? json_object_get_string(v) : NULL;
}

/* Every range is the spelling of one special token, they are in order and disjoint. */
static void check_ranges(const struct text_prompt *p, const char *const *marker, size_t n_markers)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_special; i++) {
        const struct text_range r = p->special[i];
        assert_true(r.begin >= at && r.begin < r.end && r.end <= p->text.n);
        at = r.end;
        bool known = false;
        for (size_t m = 0; m < n_markers && !known; m++)
            known = strlen(marker[m]) == r.end - r.begin &&
                    memcmp(p->text.at + r.begin, marker[m], r.end - r.begin) == 0;
        assert_true(known);
    }
}

static const char *const gemma_marker[] = {
    "<bos>",   "<|turn>",   "<turn|>",      "<|channel>",   "<channel|>",       "<|think|>",
    "<|tool>", "<tool|>",   "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
    "<|\"|>",  "<|image|>", "<|audio|>",    "<|video|>"};
enum { N_GEMMA_MARKERS = sizeof gemma_marker / sizeof *gemma_marker };

static void check_case(enum text_chat_family family, struct json_object *c, size_t i,
                       const char *want, const char *const *marker, size_t n_markers)
{
    struct text_prompt p;
    struct err err;
    text_prompt_init(&p);
    if (text_chat_render_case(family, c, &p, &err) != INGLE_OK)
        fail_msg("case %zu: %s", i, err.msg);
    if (strcmp(p.text.at, want) != 0)
        fail_msg("case %zu:\n%s\n got:\n%s\n not:\n%s", i, json_object_to_json_string(c), p.text.at,
                 want);
    check_ranges(&p, marker, n_markers);
    text_prompt_release(&p);
}

static void gemma_prompts_equal_the_template(void **state)
{
    (void)state;
    struct json_object *cases = load("tests/data/text/gemma4-template-vectors.json.gz");
    assert_int_equal(json_object_array_length(cases), 608);
    for (size_t i = 0; i < 608; i++) {
        struct json_object *c = json_object_array_get_idx(cases, i);
        check_case(TEXT_CHAT_GEMMA4, c, i, field(c, "expected"), gemma_marker, N_GEMMA_MARKERS);
    }
    json_object_put(cases);
}

/* Conversations of an older template, by today's rules. */
static void gemma_interleaved_conversations_follow_the_canonical_rules(void **state)
{
    (void)state;
    struct json_object *cases = load("tests/data/text/gemma4-interleaved-template-vectors.json.gz");
    assert_int_equal(json_object_array_length(cases), 64);
    for (size_t i = 0; i < 64; i++) {
        struct json_object *c = json_object_array_get_idx(cases, i);
        const char *canonical = field(c, "canonical");
        check_case(TEXT_CHAT_GEMMA4, c, i, canonical ? canonical : field(c, "expected"),
                   gemma_marker, N_GEMMA_MARKERS);
    }
    json_object_put(cases);
}

static const char *const deepseek_marker[] = {"<｜begin▁of▁sentence｜>",
                                              "<｜end▁of▁sentence｜>",
                                              "<｜User｜>",
                                              "<｜Assistant｜>",
                                              "<think>",
                                              "</think>",
                                              "｜DSML｜",
                                              "<｜latest_reminder｜>",
                                              "<｜action｜>",
                                              "<｜query｜>",
                                              "<｜title｜>",
                                              "<｜authority｜>",
                                              "<｜domain｜>",
                                              "<｜read_url｜>"};
enum { N_DEEPSEEK_MARKERS = sizeof deepseek_marker / sizeof *deepseek_marker };

/* The official encoder wins over the template, except where the template was asked for a
 * generation prompt that the encoder does not have. */
static void deepseek_prompts_equal_the_encoder(void **state)
{
    (void)state;
    struct json_object *cases = load("tests/data/text/deepseek-v4-template-vectors.json.gz");
    assert_int_equal(json_object_array_length(cases), 309);
    for (size_t i = 0; i < 309; i++) {
        struct json_object *c = json_object_array_get_idx(cases, i);
        const char *want = field(c, "encoder"), *why = field(c, "why");
        if (!want || (why && strstr(why, "generation-prompt-forced")))
            want = field(c, "expected");
        check_case(TEXT_CHAT_DEEPSEEK_V4, c, i, want, deepseek_marker, N_DEEPSEEK_MARKERS);
    }
    json_object_put(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma_prompts_equal_the_template),
        cmocka_unit_test(gemma_interleaved_conversations_follow_the_canonical_rules),
        cmocka_unit_test(deepseek_prompts_equal_the_encoder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
