/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/mem.h"
#include "kv/kv.h"
#include <string.h>

static struct kv_spec spec_of(const struct kv_stream *stream, uint32_t n)
{
    struct kv_spec s = {.n_groups = 2, .group = {{.window = 0}, {.window = 512}}, .n_streams = n};
    s.stream = mem_calloc(n, sizeof *stream);
    memcpy(s.stream, stream, n * sizeof *stream);
    return s;
}

static struct kv_stream heads(uint32_t layer, uint32_t group, uint32_t n_heads, int64_t width,
                              enum kern_kv_codec codec)
{
    return (struct kv_stream){.kind = KV_HEADS,
                              .layer = layer,
                              .group = group,
                              .n_heads = n_heads,
                              .k_width = width,
                              .v_width = width,
                              .k_codec = codec,
                              .v_codec = codec,
                              .every = 1};
}

static struct kv_stream rows(uint32_t layer, uint32_t group, int64_t width, uint32_t every)
{
    return (struct kv_stream){
        .kind = KV_ROWS, .layer = layer, .group = group, .k_width = width, .every = every};
}

static void streams_stand_one_behind_the_other(void **state)
{
    (void)state;
    const struct kv_stream stream[] = {
        heads(0, 1, 8, 256, KERN_KV_F16),
        heads(1, 0, 4, 512, KERN_KV_Q8_0),
        rows(1, 0, 96, 4),
        rows(1, 0, 5, 128),
        heads(2, 1, 8, 256, KERN_KV_F32),
        rows(2, 1, 3, 1),
    };
    struct kv_spec s = spec_of(stream, 6);
    struct err err;
    assert_int_equal(kv_layout(&s, &err), INGLE_OK);
    assert_int_equal(s.stream[0].at, 0);
    assert_int_equal(s.stream[0].v_at, 128 * 256 * 2);
    assert_int_equal(s.stream[0].head_bytes, 2 * 128 * 256 * 2);
    assert_int_equal(s.stream[4].at, 8 * 2 * 128 * 256 * 2);
    assert_int_equal(s.stream[5].at, s.stream[4].at + 8 * 2 * 128 * 256 * 4);
    assert_int_equal(s.group[1].page_bytes, s.stream[5].at + 128 * 3 * 4);

    const size_t q8 = kern_kv_block_bytes(KERN_KV_Q8_0, true, 512) +
                      kern_kv_block_bytes(KERN_KV_Q8_0, false, 512);
    assert_int_equal(s.stream[1].head_bytes, q8);
    assert_int_equal(s.stream[2].at, 4 * q8);
    assert_int_equal(s.stream[3].at, 4 * q8 + 32 * 96 * 4);
    assert_int_equal(s.group[0].page_bytes, s.stream[3].at + 64); /* one row of 20 bytes */
    kv_spec_release(&s);
    assert_null(s.stream);
}

static void keys_may_have_no_values(void **state)
{
    (void)state;
    struct kv_stream stream[] = {heads(0, 0, 1, 128, KERN_KV_BF16), rows(0, 1, 4, 1)};
    stream[0].v_width = 0;
    struct kv_spec s = spec_of(stream, 2);
    struct err err;
    assert_int_equal(kv_layout(&s, &err), INGLE_OK);
    assert_int_equal(s.stream[0].head_bytes, 128 * 128 * 2);
    assert_int_equal(s.group[0].page_bytes, 128 * 128 * 2);
    kv_spec_release(&s);
}

static void refused(struct kv_stream bad, ingle_status status, const char *text)
{
    const struct kv_stream stream[] = {rows(0, 0, 4, 1), rows(0, 1, 4, 1), bad};
    struct kv_spec s = spec_of(stream, 3);
    struct err err = {0};
    assert_int_equal(kv_layout(&s, &err), status);
    assert_string_equal(err.msg, text);
    kv_spec_release(&s);
}

static void what_cannot_be_is_refused_by_layer(void **state)
{
    (void)state;
    refused(heads(7, 0, 4, 40, KERN_KV_Q8_0), INGLE_UNSUP,
            "layer 7: KV format 'q8_0' cannot hold keys of width 40: it holds multiples of 32");
    refused(heads(7, 2, 4, 64, KERN_KV_F16), INGLE_ARG, "layer 7: group 2 of 2");
    refused(heads(7, 0, 4, 64, (enum kern_kv_codec)KERN_KV_CODECS), INGLE_ARG,
            "layer 7: there is no KV format 12");
    refused(heads(7, 0, 4, 64, KERN_KV_Q8R_ROT), INGLE_UNSUP,
            "layer 7 has values of its own: its keys are not made of them ('q8r+rot')");
    struct kern_from_v from_v = {.n_pairs = 8, .half = 32};
    struct kv_stream rot = heads(7, 0, 4, 64, KERN_KV_N4R_ROT);
    rot.from_v = &from_v;
    rot.v_codec = KERN_KV_F16;
    refused(rot, INGLE_UNSUP,
            "layer 7: keys of width 64 cannot be made of values of width 64 as 'f16'");
    rot.v_codec = KERN_KV_N4R_ROT;
    rot.v_width = 128;
    refused(rot, INGLE_UNSUP,
            "layer 7: keys of width 64 cannot be made of values of width 128 as 'n4r+rot'");
    rot.v_width = 64;
    from_v.n_pairs = 32;
    refused(
        rot, INGLE_UNSUP,
        "layer 7: positions turn 64 of 64 numbers of a key: KV format 'n4r+rot' is for a quarter");
    refused(heads(7, 0, 4, 0, KERN_KV_F16), INGLE_ARG,
            "layer 7: key width 0 is not in 1..2147483647");
    refused(heads(7, 0, 0, 64, KERN_KV_F16), INGLE_ARG,
            "layer 7: 0 heads, one row every 1 positions: need 1..65536 heads and every = 1");
    refused(rows(7, 0, 64, 3), INGLE_ARG,
            "layer 7: rows of width 64 every 3 positions: 3 must divide 128");
    refused(rows(7, 0, 64, 0), INGLE_ARG,
            "layer 7: rows of width 64 every 0 positions: 0 must divide 128");

    struct err err;
    struct kv_stream one = rows(0, 0, 4, 1);
    struct kv_spec s = spec_of(&one, 1);
    assert_int_equal(kv_layout(&s, &err), INGLE_ARG);
    assert_string_equal(err.msg, "group 1 has no streams");
    s.n_groups = KV_MAX_GROUPS + 1;
    assert_int_equal(kv_layout(&s, &err), INGLE_ARG);
    s.n_groups = 2;
    s.group[1].window = -1;
    assert_int_equal(kv_layout(&s, &err), INGLE_ARG);
    kv_spec_release(&s);
}

static void a_plan_counts_windows_once(void **state)
{
    (void)state;
    struct kv_spec s = {.n_groups = 2};
    s.group[0].page_bytes = 1000;
    s.group[1].page_bytes = 10;
    s.group[1].window = 1024;
    uint64_t a, b;
    assert_true(kv_plan_bytes(&s, 0, 512, &a));
    assert_true(a == 0);
    assert_true(kv_plan_bytes(&s, 128 * 1000, 512, &a));
    /* live: 1024 + 64 + 512 positions from anywhere; the point: 1024 */
    assert_true(a == 1001 * 1000 + (14 + 9) * 10);
    assert_true(kv_plan_bytes(&s, 128 * 2000, 512, &b));
    assert_true(b - a == 1000 * 1000);
    assert_true(kv_plan_bytes(&s, 100, 512, &a));
    assert_true(a == 2 * 1000 + 2 * 10);
    s.group[0].page_bytes = SIZE_MAX / 2;
    assert_false(kv_plan_bytes(&s, 1000, 512, &a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_stand_one_behind_the_other),
        cmocka_unit_test(keys_may_have_no_values),
        cmocka_unit_test(what_cannot_be_is_refused_by_layer),
        cmocka_unit_test(a_plan_counts_windows_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
