/* SPDX-License-Identifier: Apache-2.0 */
/* Hyper-connections on the emulated card, against the processor's operations. */
#include "gpu/plain_device.h"

#include "device/gpu/kernels/hc.h"

enum { ROWS = 3, GAP = 3 };

static void one_size(int32_t n, int32_t width, int iterations, bool head, uint32_t odd, int order)
{
    const int32_t n_mix = head ? n : 2 * n + n * n, n_gates = n + n * n;
    const int64_t xs = n * width + GAP, ms = n_mix + GAP, os = width + GAP, gs = n_gates + GAP;
    float *x = numbers_new(ROWS * xs, odd), *mix = numbers_new(ROWS * ms, odd);
    float *scale = numbers_new(3, 0), *base = numbers_new(n_mix, 0);
    float *out = numbers_new(ROWS * os, 0), *gates = numbers_new(ROWS * gs, 0);
    float *y = numbers_new(ROWS * xs, 0);
    float *want_out = numbers_copy(out, (size_t)(ROWS * os) * 4);
    float *want_gates = numbers_copy(gates, (size_t)(ROWS * gs) * 4);
    float *want_y = numbers_copy(y, (size_t)(ROWS * xs) * 4);
    struct device_vector *s = plain_vector(scale, head ? 1 : 3), *b = plain_vector(base, n_mix);
    const struct device_hc hc = {.n = n, .scale = s, .base = b, .iterations = iterations,
                                 .eps = 1e-6f, .norm_eps = 1e-5f};
    device_begin(plain_device, NULL);
    const struct rows xr = plain_rows(x, ROWS, n * width, xs);
    const struct rows gr = plain_rows(head ? NULL : want_gates, ROWS, n_gates, gs);
    device_hc_pre(plain_device, &hc, xr, plain_rows(mix, ROWS, n_mix, ms),
                  plain_rows(want_out, ROWS, width, os), gr);
    struct hc_pre_args a = {x, mix, scale, base, out, head ? NULL : gates, xs, ms, os, gs, ROWS, n,
                            width, iterations, 1e-6f, 1e-5f};
    NUMBERS_LAUNCH("hc_pre", hc_pre_grid(&a), a, order);
    numbers_same("hc_pre", out, want_out, ROWS * os);
    numbers_same("gates", gates, want_gates, ROWS * gs);
    if (!head) {
        device_hc_post(plain_device, &hc, xr, plain_rows(out, ROWS, width, os), gr,
                       plain_rows(want_y, ROWS, n * width, xs));
        struct hc_post_args p = {x, out, gates, y, xs, os, gs, xs, ROWS, n, width};
        NUMBERS_LAUNCH("hc_post", hc_post_grid(&p), p, order);
        numbers_same("hc_post", y, want_y, ROWS * xs);
    }
    assert_true(device_runs(plain_device));
    device_vector_free(s), device_vector_free(b);
    free(x), free(mix), free(scale), free(base), free(out), free(gates), free(y);
    free(want_out), free(want_gates), free(want_y);
}

static void test_hc(void **state)
{
    (void)state;
    static const int32_t widths[] = {1, 48, 130, 1100};
    for (int order = 0; order < EMU_ORDERS; order++)
        for (int32_t n = 1; n < 9; n *= 2)
            for (int w = 0; w < 4; w++) {
                one_size(n, widths[w], 20, false, 0, order);
                one_size(n, widths[w], w, false, w == 2 ? 100 : 0, order);
                one_size(n, widths[w], 0, true, w == 1 ? 100 : 0, order);
            }
    one_size(3, 40, 5, false, 0, EMU_MIXED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hc)};
    return cmocka_run_group_tests(tests, plain_device_open, plain_device_close);
}
