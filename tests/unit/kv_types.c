/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "kv/kv.h"
#include <string.h>

static struct kv_types parsed(const char *both, const char *k, const char *v, const char *layers)
{
    struct kv_types t;
    struct err err;
    if (kv_types_parse(both, k, v, layers, &t, &err))
        fail_msg("%s", err.msg);
    return t;
}

static void is(struct kv_types t, enum kern_kv_codec k, enum kern_kv_codec v, enum kern_kv_codec wk,
               enum kern_kv_codec wv, const char *name)
{
    assert_int_equal(t.k[KV_FULL], k);
    assert_int_equal(t.v[KV_FULL], v);
    assert_int_equal(t.k[KV_SLIDING], wk);
    assert_int_equal(t.v[KV_SLIDING], wv);
    assert_string_equal(kv_types_name(&t).at, name);
}

static void names(void **state)
{
    (void)state;
    is(parsed(NULL, NULL, NULL, NULL), KERN_KV_F16, KERN_KV_F16, KERN_KV_F16, KERN_KV_F16, "f16");
    is(parsed("q8_0", NULL, NULL, NULL), KERN_KV_Q8_0, KERN_KV_Q8_0, KERN_KV_Q8_0, KERN_KV_Q8_0,
       "q8_0");
    is(parsed("q8r", NULL, NULL, NULL), KERN_KV_Q8R, KERN_KV_Q8R, KERN_KV_F16, KERN_KV_F16, "q8r");
    is(parsed("q8r:n4r", NULL, NULL, NULL), KERN_KV_Q8R, KERN_KV_N4R, KERN_KV_F16, KERN_KV_F16,
       "q8r:n4r");
    is(parsed("bf16:tq3_0", NULL, NULL, NULL), KERN_KV_BF16, KERN_KV_TQ3_0, KERN_KV_BF16,
       KERN_KV_F16, "bf16:tq3_0");
    is(parsed(NULL, "q8r", NULL, NULL), KERN_KV_Q8R, KERN_KV_F16, KERN_KV_F16, KERN_KV_F16,
       "q8r:f16");
    is(parsed("f32", NULL, "n4r", NULL), KERN_KV_F32, KERN_KV_N4R, KERN_KV_F32, KERN_KV_F16,
       "f32:n4r");
    is(parsed("f16", "q8r", "q8r", NULL), KERN_KV_Q8R, KERN_KV_Q8R, KERN_KV_F16, KERN_KV_F16,
       "q8r");
    is(parsed(NULL, NULL, NULL, "full=q8r:n4r,sliding=q8_0"), KERN_KV_Q8R, KERN_KV_N4R,
       KERN_KV_Q8_0, KERN_KV_Q8_0, "q8r:n4r,sliding=q8_0");
    is(parsed("bf16", NULL, NULL, "sliding=q8r"), KERN_KV_BF16, KERN_KV_BF16, KERN_KV_Q8R,
       KERN_KV_Q8R, "bf16,sliding=q8r");
    is(parsed("q8r", NULL, NULL, "full=f32v"), KERN_KV_FROM_V, KERN_KV_F32, KERN_KV_F16,
       KERN_KV_F16, "f32v");
    is(parsed("q8r+rot", NULL, NULL, NULL), KERN_KV_Q8R_ROT, KERN_KV_Q8R_ROT, KERN_KV_F16,
       KERN_KV_F16, "q8r+rot");
    is(parsed("q8r:n4r+rot", NULL, NULL, NULL), KERN_KV_Q8R_ROT, KERN_KV_N4R_ROT, KERN_KV_F16,
       KERN_KV_F16, "q8r:n4r+rot");
    is(parsed("q8r+rot", NULL, "n4r", NULL), KERN_KV_Q8R_ROT, KERN_KV_N4R_ROT, KERN_KV_F16,
       KERN_KV_F16, "q8r:n4r+rot");
    is(parsed(NULL, NULL, NULL, "full=n4r+rot,sliding=q8_0"), KERN_KV_N4R_ROT, KERN_KV_N4R_ROT,
       KERN_KV_Q8_0, KERN_KV_Q8_0, "n4r+rot,sliding=q8_0");
    /* the longest name */
    is(parsed(NULL, NULL, NULL, "full=bf16:tq3_0,sliding=tq3_0:bf16"), KERN_KV_BF16, KERN_KV_TQ3_0,
       KERN_KV_TQ3_0, KERN_KV_BF16, "bf16:tq3_0,sliding=tq3_0:bf16");
}

static void layers_by_number(void **state)
{
    (void)state;
    enum kern_kv_codec k, v;
    const struct kv_types t = parsed("q8_0", NULL, NULL, "sliding=f32,3=q8r,5-7=q8r:n4r,7=bf16");
    is(t, KERN_KV_Q8_0, KERN_KV_Q8_0, KERN_KV_F32, KERN_KV_F32,
       "q8_0,sliding=f32,3=q8r,5-7=q8r:n4r,7=bf16");
    static const struct {
        int layer, kind;
        enum kern_kv_codec k, v;
    } want[] = {{0, KV_FULL, KERN_KV_Q8_0, KERN_KV_Q8_0}, {2, KV_SLIDING, KERN_KV_F32, KERN_KV_F32},
                {3, KV_FULL, KERN_KV_Q8R, KERN_KV_Q8R},   {5, KV_SLIDING, KERN_KV_Q8R, KERN_KV_N4R},
                {6, KV_FULL, KERN_KV_Q8R, KERN_KV_N4R},   {7, KV_FULL, KERN_KV_BF16, KERN_KV_BF16},
                {8, KV_SLIDING, KERN_KV_F32, KERN_KV_F32}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        kv_types_of_layer(&t, want[i].layer, want[i].kind, &k, &v);
        assert_int_equal(k, want[i].k);
        assert_int_equal(v, want[i].v);
    }
    struct err err;
    assert_int_equal(kv_types_check_layers(&t, 8, 8, &err), INGLE_OK);
    assert_int_equal(kv_types_check_layers(&t, 7, 8, &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "layer 7, which reads the keys and values of others"));
    assert_int_equal(kv_types_check_layers(&t, 7, 7, &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "layer 7, and the layers are 0 to 6"));
}

static void refused(const char *both, const char *k, const char *v, const char *layers,
                    const char *says)
{
    struct kv_types t;
    struct err err = {0};
    assert_int_equal(kv_types_parse(both, k, v, layers, &t, &err), INGLE_ARG);
    if (!strstr(err.msg, says))
        fail_msg("'%s' is not in: %s", says, err.msg);
}

static void what_is_not_known_lists_what_is(void **state)
{
    (void)state;
    refused("q4_0", NULL, NULL, NULL,
            "no KV format 'q4_0': there are f32, f16, bf16, q8_0, fp8, q8r, n4r, tq3_0");
    refused("q8r:", NULL, NULL, NULL, "no KV format ''");
    refused(":", NULL, NULL, NULL, "no KV format ''");
    refused("", NULL, NULL, NULL, "no KV format ''");
    refused("q8rv", NULL, NULL, NULL, "no KV format 'q8rv'");
    refused("v", NULL, NULL, NULL, "no KV format 'v'");
    refused("f16v:f16", NULL, NULL, NULL, "no KV format 'f16v'");
    refused("fp4", NULL, NULL, NULL, "no KV format 'fp4'");
    refused("a name that is much longer than any of them can be", NULL, NULL, NULL,
            "no KV format 'a name");
    refused("f16+rot", NULL, NULL, NULL, "no KV format 'f16+rot'");
    refused("q8r:f16+rot", NULL, NULL, NULL, "no KV format 'q8r:f16+rot'");
    refused("q8r+rot:n4r", NULL, NULL, NULL, "no KV format 'q8r+rot'");
    refused("+rot", NULL, NULL, NULL, "no KV format '+rot'");
    refused("q8rv+rot", NULL, NULL, NULL, "no KV format 'q8rv+rot'");
    refused("f16", NULL, "q8r+rot", NULL, "no KV format 'q8r+rot'");
    refused("q8r+rot", "q8r", NULL, NULL, "makes keys of values");
    refused("q8r+rot", NULL, "f16", NULL, "in q8r or n4r, not in 'f16'");
    refused("f16", "q9", NULL, NULL, "no KV format 'q9'");
    refused("f16", NULL, "f16v", NULL, "no KV format 'f16v'");
    refused("f16v", "q8r", NULL, NULL, "makes keys of values");
    refused(NULL, NULL, NULL, "q8r", "full=TYPE");
    refused(NULL, NULL, NULL, "half=q8r", "full=TYPE");
    refused(NULL, NULL, NULL, "full=q8r,sliding", "full=TYPE");
    refused(NULL, NULL, NULL, "full=", "no KV format ''");
    refused(NULL, NULL, NULL, "-1=q8r", "8-11=TYPE");
    refused(NULL, NULL, NULL, "7-=q8r", "8-11=TYPE");
    refused(NULL, NULL, NULL, "9-7=q8r", "8-11=TYPE");
    refused(NULL, NULL, NULL, "99999=q8r", "8-11=TYPE");
    refused(NULL, NULL, NULL, "5 =q8r", "8-11=TYPE");
    refused(NULL, NULL, NULL, "0=q8r,1=q8r,2=q8r,3=q8r,4=q8r,5=q8r,6=q8r,7=q8r,8=q8r",
            "more than 8 layers");
}

static void drafters_and_rows(void **state)
{
    (void)state;
    const struct kv_types a = parsed("q8r:n4r", NULL, NULL, NULL),
                          b = parsed("f16v", NULL, NULL, NULL),
                          c = parsed("bf16", NULL, NULL, NULL),
                          d = parsed("f16:f32", NULL, NULL, NULL),
                          rot = parsed("n4r+rot", NULL, NULL, NULL);
    is(kv_types_of_drafter(&rot), KERN_KV_F16, KERN_KV_F16, KERN_KV_F16, KERN_KV_F16, "f16");
    is(kv_types_of_drafter(&a), KERN_KV_F16, KERN_KV_F16, KERN_KV_F16, KERN_KV_F16, "f16");
    is(kv_types_of_drafter(&b), KERN_KV_F16, KERN_KV_F16, KERN_KV_F16, KERN_KV_F16, "f16");
    is(kv_types_of_drafter(&c), KERN_KV_BF16, KERN_KV_BF16, KERN_KV_BF16, KERN_KV_BF16, "bf16");
    enum kern_kv_codec row = KERN_KV_CODECS;
    struct err err;
    assert_int_equal(kv_types_of_rows(&c, &row, &err), INGLE_OK);
    assert_int_equal(row, KERN_KV_BF16);
    assert_int_equal(kv_types_of_rows(&a, &row, &err), INGLE_UNSUP);
    assert_non_null(strstr(err.msg, "f32, f16, bf16 or fp8, not as 'q8r:n4r'"));
    assert_int_equal(kv_types_of_rows(&b, &row, &err), INGLE_UNSUP);
    assert_int_equal(kv_types_of_rows(&d, &row, &err), INGLE_UNSUP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(layers_by_number),
                                       cmocka_unit_test(what_is_not_known_lists_what_is),
                                       cmocka_unit_test(drafters_and_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
