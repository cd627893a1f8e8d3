/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/near.h"
#include "ingle/ingle.h"

#include <math.h>
#include <string.h>

static struct ingle_config *config(void)
{
    struct ingle_config *c = NULL;
    assert_int_equal(ingle_config_open(&c, NULL), INGLE_OK);
    return c;
}

static void refuses(const char *where, const char *name, const char *value, ingle_status status,
                    const char *text)
{
    struct ingle_config *c = config();
    struct ingle_error error = {0};
    assert_int_equal(ingle_config_set(c, where, name, value, &error), status);
    assert_string_equal(error.text, text);
    ingle_config_close(c);
}

static void values_are_checked(void **state)
{
    (void)state;
    refuses("run", "top-p", "1.5", INGLE_ARG, "option '--top-p': 1.5 is outside 0 to 1");
    refuses("run", "top-p", "nan", INGLE_ARG, "option '--top-p' needs a number, not 'nan'");
    refuses("run", "top-p", "", INGLE_ARG, "option '--top-p' needs a number, not ''");
    refuses("run", "top-k", "1.5", INGLE_ARG, "option '--top-k' needs a whole number, not '1.5'");
    refuses("run", "memory", "1X", INGLE_ARG,
            "option '--memory' needs a size such as 512M, not '1X'");
    refuses("run", "kv", "f8", INGLE_ARG,
            "option '--kv': 'f8' is none of f32 f16 bf16 q8_0 fp8 q8r n4r tq3_0 f16v q8r+rot "
            "n4r+rot K:V");
    refuses("run", "kv", "q8r:f8", INGLE_ARG,
            "option '--kv': 'q8r:f8' is none of f32 f16 bf16 q8_0 fp8 q8r n4r tq3_0 f16v "
            "q8r+rot n4r+rot K:V");
    refuses("run", "kv", "q8_0v", INGLE_ARG,
            "there is no KV format 'q8_0v': q8r+rot is as near and faster, q8r:n4r+rot is smaller "
            "and faster");
    refuses("run", "kv-k", "q8r:f16", INGLE_ARG,
            "option '--kv-k': 'q8r:f16' is none of f32 f16 bf16 q8_0 q8r n4r tq3_0");
    refuses("run", "kv", "f", INGLE_ARG,
            "option '--kv': 'f' is none of f32 f16 bf16 q8_0 fp8 q8r n4r tq3_0 f16v q8r+rot "
            "n4r+rot K:V");
    refuses("eval", "experiment", "tap=x", INGLE_ARG,
            "option '--experiment tap': 'x' is none of late early upstream");
    refuses("bench", "experiment", "at=4", INGLE_ARG,
            "option '--experiment': there is no 'at'; there are: rule, tap, ctx, block");
    refuses("eval", "experiment", "min=4", INGLE_ARG,
            "option '--experiment': there is no 'min'; there are: rule, tap, ctx, block, at, out");
    refuses("serve", "limit", "body=0", INGLE_ARG,
            "option '--limit body': 0 is outside 1024 to 1099511627776");
    refuses("serve", "limit", "half-close-ok=x", INGLE_ARG,
            "option '--limit half-close-ok' is on or off (true or false), not 'x'");
    refuses("serve", "limit", "port=80", INGLE_ARG,
            "option '--limit': there is no 'port'; there are: waiting, waiting-tokens, "
            "queue-timeout, request-seconds, connections, per-address, header, body, bodies, "
            "replies, reading, reading-bytes, unread, header-timeout, body-timeout, idle-timeout, "
            "stall-timeout, half-close-ok, keep-alive, retry-grace, logprobs, responses, "
            "responses-bytes, resumable, resumable-bytes");
    refuses("run", "limit", "body=1M", INGLE_NOTFOUND,
            "'run' does not take option '--limit', which belongs to: serve");
    refuses("run", "json", "x", INGLE_ARG, "option '--json' is on or off (true or false), not 'x'");
    refuses("run", "logit-bias", "1=", INGLE_ARG,
            "option '--logit-bias' needs ID=NUMBER, not '1='");
    refuses("run", "logit-bias", "-1=2", INGLE_ARG,
            "option '--logit-bias' needs ID=NUMBER, not '-1=2'");
    refuses("run", "tmep", "1", INGLE_NOTFOUND,
            "there is no option '--tmep'; did you mean '--temp'?");
    refuses("run", "xyzzy", "1", INGLE_NOTFOUND, "there is no option '--xyzzy'");
    refuses("render", "kv", "f16", INGLE_NOTFOUND,
            "'render' does not take option '--kv', which belongs to: chat run eval bench inspect "
            "serve daemon worker doctor");
}

static void values_come_back(void **state)
{
    (void)state;
    struct ingle_config *c = config();
    assert_string_equal(ingle_config_text(c, "kv", 0), "f16");
    assert_false(ingle_config_is_set(c, "kv"));
    const char *const set[][2] = {
        {"memory", "1.5G"},     {"kv", "f32"},    {"kv", "q8_0"},
        {"stop", "a"},          {"stop", "b"},    {"temp", "0.25"},
        {"seed", "7"},          {"threads", "3"}, {"logit-bias", "5=-inf"},
        {"logit-bias", "6=1.5"}};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        assert_int_equal(ingle_config_set(c, "run", set[i][0], set[i][1], NULL), INGLE_OK);
    assert_int_equal(ingle_config_set(c, NULL, "no-pin", NULL, NULL), INGLE_OK);
    assert_string_equal(ingle_config_text(c, "stop", 1), "b");
    assert_null(ingle_config_text(c, "stop", 2));
    struct ingle_engine_options e = {0};
    ingle_config_engine(c, &e);
    assert_int_equal(e.memory_bytes, 3ull << 29);
    assert_int_equal(e.threads, 3);
    assert_true(e.no_pin);
    assert_string_equal(e.kv, "q8_0");
    struct ingle_sampling s = {.temperature = 1, .top_k = 64, .typical_p = 0.5f};
    ingle_config_sampling(c, &s);
    assert_true(s.temperature == 0.25f && s.top_k == 64 && s.typical_p == 0.5f && s.seed == 7);
    assert_int_equal(s.n_bias, 2);
    assert_int_equal(s.bias[0].token, 5);
    assert_true(isinf(s.bias[0].bias) && s.bias[1].bias == 1.5f);
    ingle_config_close(c);
}

/* What the table says about itself: defaults lie in their range, names are unique. */
static void the_table_is_sound(void **state)
{
    (void)state;
    size_t n;
    const struct ingle_option *o = ingle_options(&n);
    assert_true(n > 40);
    for (size_t i = 0; i < n; i++) {
        struct ingle_config *c = config();
        struct ingle_error error;
        if (o[i].fallback && ingle_config_set(c, NULL, o[i].name, o[i].fallback, &error))
            fail_msg("%s", error.text);
        ingle_config_close(c);
        assert_true(*o[i].help && *o[i].where && *o[i].group);
        assert_int_equal(o[i].kind == INGLE_OPTION_FLAG, o[i].value == NULL);
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(o[i].name, o[j].name);
            assert_true(!o[i].letter || o[i].letter != o[j].letter ||
                        strcmp(o[i].where, o[j].where) != 0);
        }
    }
}

static void words_that_were_meant(void **state)
{
    (void)state;
    const char *const word[] = {"chat", "run", "tokenize", "inspect"};
    assert_string_equal(near_word(word, 4, "caht"), "chat");
    assert_string_equal(near_word(word, 4, "tok"), "tokenize");
    assert_string_equal(near_word(word, 4, "inspekt"), "inspect");
    assert_null(near_word(word, 4, "quantize-me"));
    assert_null(near_word(word, 0, "run"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_checked),
        cmocka_unit_test(values_come_back),
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(words_that_were_meant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
