/* SPDX-License-Identifier: Apache-2.0 */
/* Grammars through the public header, on the built-in model. */
#include "unit/unit.h"

#include "ingle/ingle.h"
#include <stdio.h>
#include <string.h>

struct desk {
    struct ingle_model *model;
    struct ingle_engine *engine;
    struct ingle_session *session;
};

static int open_desk(void **state)
{
    static struct desk d;
    const struct ingle_engine_options o = {.threads = 1, .n_ctx = 512};
    assert_int_equal(ingle_model_open(&d.model, NULL, NULL, NULL), INGLE_OK);
    assert_int_equal(ingle_engine_open(&d.engine, d.model, &o, NULL), INGLE_OK);
    assert_int_equal(ingle_session_open(&d.session, d.engine, NULL), INGLE_OK);
    *state = &d;
    return 0;
}

static int close_desk(void **state)
{
    struct desk *d = *state;
    ingle_session_close(d->session);
    ingle_engine_close(d->engine);
    ingle_model_close(d->model);
    return 0;
}

/* What is drawn under g until an end comes; the caller frees it. */
static char *answer(struct desk *d, const struct ingle_grammar *g, float temperature, uint64_t seed)
{
    struct ingle_sampling o;
    struct ingle_sampler *s = NULL;
    struct ingle_error error;
    struct ingle_token t = {0};
    const float *logits;
    int32_t *ids, drawn[256];
    size_t n_ids, n = 0, n_text;
    char *text = NULL;
    ingle_sampling_defaults(d->model, &o);
    o.temperature = temperature;
    o.seed = seed;
    o.logprobs = true;
    assert_int_equal(ingle_sampler_open(&s, d->engine, &o, NULL), INGLE_OK);
    assert_int_equal(ingle_sampler_constrain(s, g, NULL), INGLE_OK);
    assert_int_equal(ingle_tokenize(d->model, "hello", 5, INGLE_ADD_SPECIAL, &ids, &n_ids, NULL),
                     INGLE_OK);
    assert_int_equal(ingle_session_sync(d->session, ids, (int64_t)n_ids, NULL, NULL), INGLE_OK);
    for (; n < 256; n++) {
        assert_int_equal(ingle_session_finish(d->session, &logits, NULL), INGLE_OK);
        if (ingle_sample(s, logits, d->session, &t, &error))
            fail_msg("%s", error.text);
        assert_true(t.logprob <= 0);
        if (ingle_model_is_end(d->model, t.id))
            break;
        drawn[n] = t.id;
        assert_int_equal(ingle_session_append(d->session, &t.id, 1, NULL), INGLE_OK);
    }
    assert_int_equal(ingle_detokenize(d->model, drawn, n, true, &text, &n_text, NULL), INGLE_OK);
    ingle_free(ids);
    ingle_sampler_close(s);
    return text;
}

static struct ingle_grammar *grammar(struct desk *d, enum ingle_grammar_kind kind, const char *text)
{
    struct ingle_grammar *g = NULL;
    struct ingle_error error;
    if (ingle_grammar_open(&g, d->model, kind, text, strlen(text), &error))
        fail_msg("%s", error.text);
    return g;
}

static void test_answers(void **state)
{
    struct desk *d = *state;
    struct ingle_grammar *g = grammar(d, INGLE_GRAMMAR_GBNF, "root ::= \"<\" [0-9]{3} \">\"");
    for (uint64_t seed = 0; seed < 8; seed++) {
        char *text = answer(d, g, seed ? 2 : 0, seed);
        assert_int_equal(strlen(text), 5);
        assert_int_equal(strspn(text + 1, "0123456789"), 3);
        assert_true(text[0] == '<' && text[4] == '>');
        ingle_free(text);
    }
    ingle_grammar_close(g);
    g = grammar(d, INGLE_GRAMMAR_REGEX, "yes|no");
    char *text = answer(d, g, 1, 5);
    assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
    ingle_free(text);
    ingle_grammar_close(g);
    g = grammar(d, INGLE_GRAMMAR_TOOLS,
                "{\"tools\":[{\"function\":{\"name\":\"now\"}}],\"parallel\":false}");
    text = answer(d, g, 0, 0);
    assert_string_equal(text, "<|tool_call>call:now{}<tool_call|>");
    ingle_free(text);
    ingle_grammar_close(g);
}

/* Grammars that are opened again share what was found out about them, and draw the same. */
static void test_again(void **state)
{
    struct desk *d = *state;
    struct ingle_grammar *g[20];
    char regex[20][40], *first[20];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 20; i++) {
            snprintf(regex[i], sizeof regex[i], "[a-f]{%d}( [0-9]+){1,3}", i % 19 + 1);
            assert_int_equal(ingle_grammar_open(&g[i], d->model, INGLE_GRAMMAR_REGEX, regex[i],
                                                strlen(regex[i]), NULL),
                             INGLE_OK);
        }
        for (int i = 0; i < 20; i++) {
            char *text = answer(d, g[i], 1, (uint64_t)(i % 19));
            if (round || i == 19) {
                assert_string_equal(text, first[i % 19]);
                ingle_free(text);
            } else {
                first[i] = text;
            }
        }
        for (int i = 0; i < 20; i++)
            ingle_grammar_close(g[i]);
    }
    for (int i = 0; i < 19; i++)
        ingle_free(first[i]);
}

static void test_refused(void **state)
{
    struct desk *d = *state;
    struct ingle_grammar *g = NULL;
    struct ingle_model *other = NULL;
    struct ingle_sampler *s = NULL;
    struct ingle_sampling o;
    struct ingle_error error;
    assert_int_equal(ingle_grammar_open(&g, d->model, INGLE_GRAMMAR_GBNF, "root ::= x", 10, &error),
                     INGLE_ARG);
    assert_non_null(strstr(error.text, "'x'"));
    assert_int_equal(ingle_grammar_open(&g, d->model, INGLE_GRAMMAR_JSON_SCHEMA, NULL, 0, &error),
                     INGLE_ARG);
    assert_int_equal(ingle_model_open(&other, NULL, NULL, NULL), INGLE_OK);
    assert_int_equal(ingle_grammar_open(&g, other, INGLE_GRAMMAR_JSON, NULL, 0, &error), INGLE_OK);
    ingle_sampling_defaults(d->model, &o);
    assert_int_equal(ingle_sampler_open(&s, d->engine, &o, NULL), INGLE_OK);
    assert_int_equal(ingle_sampler_constrain(s, g, &error), INGLE_ARG);
    assert_int_equal(ingle_sampler_constrain(s, NULL, &error), INGLE_OK);
    ingle_sampler_close(s);
    ingle_grammar_close(g);
    ingle_grammar_close(NULL);
    ingle_model_close(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_desk, close_desk);
}
