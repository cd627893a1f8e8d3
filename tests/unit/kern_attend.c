/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"
#include "base/cpu.h"
#include "kern/attend.h"
#include <string.h>

static void names(void **state)
{
    (void)state;
    for (int i = 0; i < KERN_KV_CODECS; i++) {
        enum kern_kv_codec c = KERN_KV_CODECS;
        if (i == KERN_KV_FP4 || i >= KERN_KV_FROM_V)
            continue;
        assert_non_null(strstr(kern_kv_names, kern_kv_name((enum kern_kv_codec)i)));
        assert_true(kern_kv_by_name(kern_kv_name((enum kern_kv_codec)i), &c));
        assert_int_equal(c, i);
    }
    enum kern_kv_codec c;
    assert_false(kern_kv_by_name("q3", &c));
    assert_string_equal(kern_kv_name(KERN_KV_FP4), "fp4");
    assert_false(kern_kv_by_name("fp4", &c));
    assert_false(kern_kv_by_name("v", &c));
    assert_false(kern_kv_by_name("q8r+rot", &c)); /* of keys and values together */
}

static void sizes(void **state)
{
    (void)state;
    assert_int_equal(kern_kv_block_bytes(KERN_KV_F32, true, 20), 128 * 20 * 4);
    assert_int_equal(kern_kv_block_bytes(KERN_KV_BF16, false, 256), 128 * 256 * 2);
    assert_int_equal(kern_kv_block_bytes(KERN_KV_Q8_0, true, 64), 128 * (64 + 4));
    assert_int_equal(kern_kv_block_bytes(KERN_KV_Q8_0, true, 48), 0);
    assert_int_equal(kern_kv_block_bytes(KERN_KV_F32, true, 0), 0);
    assert_int_equal(kern_kv_block_bytes(KERN_KV_Q8R, true, 512), 128 * (512 + 2));
    assert_int_equal(kern_kv_block_bytes(KERN_KV_N4R, false, 512), 128 * (256 + 8));
    assert_int_equal(kern_kv_block_bytes(KERN_KV_TQ3_0, false, 512), 128 * (192 + 8));
    assert_int_equal(kern_kv_block_bytes(KERN_KV_Q8R, true, 96), 0);
    assert_int_equal(kern_kv_block_bytes(KERN_KV_Q8R, true, 1024), 0);
    assert_int_equal(kern_kv_block_bytes(KERN_KV_TQ3_0, true, 64), 0);
    assert_int_equal(kern_kv_block_bytes(KERN_KV_FROM_V, true, 512), 0);
    assert_int_equal(kern_kv_block_bytes(KERN_KV_Q8R_ROT, true, 512), 128 * (128 + 2));
    assert_int_equal(kern_kv_block_bytes(KERN_KV_Q8R_ROT, false, 512), 128 * (512 + 8));
    assert_int_equal(kern_kv_block_bytes(KERN_KV_N4R_ROT, true, 64), 128 * (8 + 2));
    assert_int_equal(kern_kv_block_bytes(KERN_KV_N4R_ROT, false, 512), 128 * (256 + 8));
    assert_int_equal(kern_kv_block_bytes(KERN_KV_N4R_ROT, false, 32), 0);
}

/* One position: its value comes back as it is, whatever the score. */
static void alone(void **state)
{
    (void)state;
    static _Alignas(64) uint8_t page[2 * 128 * 16 * 4];
    static _Alignas(64) float scratch[16384];
    struct kern_attend_kernels t;
    kern_attend_table_init(&t, 0);
    float k[16], v[16], q[16], out[16];
    for (int i = 0; i < 16; i++) {
        k[i] = (float)i;
        v[i] = (float)(i * i) - 3.0f;
        q[i] = 1.0f;
    }
    const uint8_t *pages[] = {page};
    struct kern_attend a = {.k_width = 16, .v_width = 16, .page = pages, .v_at = 128 * 16 * 4,
                            .q = q, .q_stride = 16, .out = out, .out_stride = 16, .n_rows = 1,
                            .n_heads = 1, .pos0 = 0, .scale = 5.0f};
    assert_true(kern_attend_scratch(&a) <= sizeof scratch);
    t.exact.kv_write(KERN_KV_F32, true, 16, page, 0, k, 1, 16);
    t.exact.kv_write(KERN_KV_F32, false, 16, page + a.v_at, 0, v, 1, 16);
    t.exact.rows(&a, scratch);
    assert_memory_equal(out, v, sizeof v);

    /* A sink as heavy as the one score takes half of everything. */
    const float sink = 120.0f * 5.0f;
    a.sink = &sink;
    t.exact.rows(&a, scratch);
    for (int i = 0; i < 16; i++)
        assert_true(out[i] == v[i] * 0.5f);

    kern_attend_table_init(&t, cpu_detect());
    a.n_rows = 0;
    memset(out, 0, sizeof out);
    t.exact.rows(&a, scratch);
    assert_true(out[0] == 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(sizes),
                                       cmocka_unit_test(alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
