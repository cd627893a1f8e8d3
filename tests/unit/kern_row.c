/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "kern/latent.h"
#include "kerncheck/checks.h"
#include "kv/kv.h"
#include <math.h>

static void sizes(void **state)
{
    (void)state;
    assert_int_equal(kern_row_bytes(KERN_KV_F32, 5, 0), 20);
    assert_int_equal(kern_row_bytes(KERN_KV_F16, 5, 0), 12);
    assert_int_equal(kern_row_bytes(KERN_KV_Q8_0, 64, 0), 0);
    assert_int_equal(kern_row_bytes(KERN_KV_FP8, 512, 64), 584); /* 448 + 128 + 7 */
    assert_int_equal(kern_row_bytes(KERN_KV_FP8, 128, 0), 132);
    assert_int_equal(kern_row_bytes(KERN_KV_FP8, 100, 4), 108);  /* 96 + 8 + 2 */
    assert_int_equal(kern_row_bytes(KERN_KV_FP8, 100, 101), 0);
    assert_int_equal(kern_row_bytes(KERN_KV_FP8, 0, 0), 0);
    assert_int_equal(kern_row_bytes(KERN_KV_FP4, 128, 0), 68);
    assert_int_equal(kern_row_bytes(KERN_KV_FP4, 64, 0), 36);
    assert_int_equal(kern_row_bytes(KERN_KV_FP4, 128, 64), 0);
    assert_int_equal(kern_row_bytes(KERN_KV_FP4, 48, 0), 0);
    enum kern_kv_codec c;
    assert_true(kern_kv_by_name("fp8", &c) && c == KERN_KV_FP8);
    assert_int_equal(kern_kv_block_bytes(c, true, 512), 0);
}

static void published_numbers(void **state)
{
    (void)state;
    float x[70] = {3.3f, -1.7f, 0.01f, 0.333f}, y[70];
    uint8_t row[96];
    x[64] = -1.00390625f; /* bf16: a tie, to even */
    x[65] = INFINITY;
    assert_int_equal(kern_row_bytes(KERN_KV_FP8, 70, 6), 64 + 12 + 1 + 3);
    kern_row_write(KERN_KV_FP8, 70, 6, row, x);
    kern_row_read(KERN_KV_FP8, 70, 6, row, y);
    assert_true(y[0] == 3.25f && y[1] == -1.75f && y[2] == 0.009765625f && y[3] == 0.34375f);
    assert_true(y[4] == 0.0f && y[64] == -1.0f && isinf(y[65]));
    assert_int_equal(row[64 + 12], 127 - 7);
    /* What was stored stays as it is. */
    uint8_t again[96];
    kern_row_write(KERN_KV_FP8, 70, 6, again, y);
    assert_memory_equal(row, again, kern_row_bytes(KERN_KV_FP8, 64 + 6, 6) - 3);
    /* 448 needs no larger scale, the next number does. */
    x[0] = 448.0f;
    kern_row_write(KERN_KV_FP8, 70, 6, row, x);
    assert_int_equal(row[76], 127);
    x[0] = nextafterf(448.0f, 500.0f);
    kern_row_write(KERN_KV_FP8, 70, 6, row, x);
    assert_int_equal(row[76], 128);
    x[9] = NAN;
    kern_row_write(KERN_KV_FP8, 70, 6, row, x);
    kern_row_read(KERN_KV_FP8, 70, 6, row, y);
    assert_true(isnan(y[0]) && isnan(y[63]) && y[64] == -1.0f);
}

/* Entry i, j of the matrix has the sign of the number of bits in i & j. */
static void hadamard(void **state)
{
    (void)state;
    enum { N = 128 };
    float x[N], y[N], again[N];
    for (int i = 0; i < N; i++)
        x[i] = y[i] = (float)((i * 37 + 11) % 64 - 32) / 16;
    kern_row_hadamard(y, N);
    memcpy(again, y, sizeof y);
    kern_row_hadamard(again, N);
    for (int i = 0; i < N; i++) {
        double want = 0;
        for (int j = 0; j < N; j++) {
            int odd = 0;
            for (int bits = i & j; bits; bits &= bits - 1)
                odd ^= 1;
            want += odd ? -(double)x[j] : (double)x[j];
        }
        assert_true(fabs((double)y[i] - want / sqrt(N)) < 1e-5);
        assert_true(fabs((double)(again[i] - x[i])) < 1e-5);
    }
}

/* The published model: 2 layers with a window alone, then 21 with rows every 4 positions and
 * 20 with rows every 128. */
static uint64_t plan_of(enum kern_kv_codec codec, int64_t n_tokens)
{
    struct kv_spec s = {.n_groups = 4,
                        .group = {{.window = 0},
                                  {.window = 128},
                                  {.window = 8, .ends = true},
                                  {.window = 1, .ends = true}}};
    struct err err;
    uint64_t n = 0;
    s.stream = mem_calloc(43 * 5, sizeof *s.stream);
    for (uint32_t il = 0; il < 43; il++) {
        const uint32_t ratio = il < 2 ? 0 : il % 2 ? 128 : 4, in = ratio == 4 ? 2 : 3;
        const struct kv_stream raw = {.kind = KV_ROWS,
                                      .layer = il,
                                      .group = 1,
                                      .k_width = 512,
                                      .v_width = 64,
                                      .k_codec = codec,
                                      .every = 1};
        struct kv_stream far = raw, key = raw, open = raw;
        far.group = key.group = 0;
        far.every = key.every = ratio;
        key.k_width = 128;
        key.k_codec = codec == KERN_KV_FP8 ? KERN_KV_FP4 : codec;
        key.v_width = 0;
        open.k_codec = KERN_KV_F32;
        open.group = in;
        open.k_width = ratio == 4 ? 2048 : 1024;
        s.stream[s.n_streams++] = raw;
        if (ratio) {
            s.stream[s.n_streams++] = open;
            s.stream[s.n_streams++] = far;
        }
        if (ratio == 4) {
            open.k_width = 512;
            s.stream[s.n_streams++] = open;
            s.stream[s.n_streams++] = key;
        }
    }
    assert_int_equal(kv_layout(&s, &err), INGLE_OK);
    assert_true(kv_plan_bytes(&s, n_tokens, 512, &n));
    kv_spec_release(&s);
    return n;
}

static void a_million_tokens(void **state)
{
    (void)state;
    const uint64_t fp8 = plan_of(KERN_KV_FP8, 1 << 20), f16 = plan_of(KERN_KV_F16, 1 << 20);
    print_message("1,048,576 tokens: fp8 %.2f GB, f16 %.2f GB\n", (double)fp8 * 1e-9,
                  (double)f16 * 1e-9);
    /* Growth: 21 x (584 + 68) / 4 + 20 x 584 / 128 bytes a token, and what windows hold. */
    assert_true(fp8 > 3514ull << 20 && fp8 < 3770ull << 20);
    assert_true(f16 > 6880ull << 20);
    assert_true(plan_of(KERN_KV_FP8, 1 << 20) - plan_of(KERN_KV_FP8, 1 << 19) < 3530ull << 19);
}

static void kernels(void **state)
{
    (void)state;
    assert_int_equal(check_latent(4, cpu_detect()), 0);
    struct kern_latent_table t;
    kern_latent_table_init(&t, cpu_detect());
    assert_int_equal(kern_latent_self_test(&t, cpu_detect(), NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes), cmocka_unit_test(published_numbers), cmocka_unit_test(hadamard),
        cmocka_unit_test(a_million_tokens), cmocka_unit_test(kernels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
