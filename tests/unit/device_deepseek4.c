/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_deepseek4 - the operations that DeepSeek V4 alone uses, against small vectors computed
 * from their formulas in double precision, and rotations against long double.
 */
#include "unit/unit.h"

#include "base/mem.h"
#include "device/device.h"
#include "kern/kern.h"
#include <math.h>
#include <string.h>

static struct device *device;

static int open_device(void **state)
{
    struct err e;
    (void)state;
    if (device_create(&device, &(struct device_options){.n_threads = 1, .cpu = UINT32_MAX}, &e) ||
        device_arena_reserve(device, 1 << 20, &e))
        return -1;
    device_begin(device, NULL);
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    struct err e;
    const ingle_status s = device_status(device, &e);
    device_free(device);
    return s ? -1 : 0;
}

static void near(double got, double want, double bound)
{
    if (!(fabs(got - want) <= bound))
        fail_msg("%.9g, expected %.9g", got, want);
}

static struct rows rows_of(float *at, int64_t n, int64_t width)
{
    return (struct rows){at, n, width, width};
}

static struct device_vector *vector(const float *v, int64_t n)
{
    struct device_vector *out;
    assert_int_equal(device_vector_create(&out, device, v, n, NULL), INGLE_OK);
    return out;
}

/* ---- hyper-connections ---- */

/* Gates whose products are given: streams of length 1 after their norm, mix = logits. */
static void connect(const float logits[16], int iterations, float m[16])
{
    float x[4] = {1, 1, 1, 1}, mix[24] = {0}, out[1], gates[20];
    static const float ones[3] = {1, 1, 1}, zeros[24] = {0};
    struct device_vector *scale = vector(ones, 3), *base = vector(zeros, 24);
    const struct device_hc hc = {4, scale, base, iterations, 1e-6f, 0};
    memcpy(mix + 8, logits, 16 * sizeof *mix);
    device_hc_pre(device, &hc, rows_of(x, 1, 4), rows_of(mix, 1, 24), rows_of(out, 1, 1),
                  rows_of(gates, 1, 20));
    memcpy(m, gates + 4, 16 * sizeof *m);
    device_vector_free(scale);
    device_vector_free(base);
}

static const float logits[16] = {.5f, -1, 2, 0, 1, 0, 0, -2, -.5f, .25f, .75f, 1.5f, 0, 0, 0, 3};

static void sinkhorn(void **state)
{
    (void)state;
    static const double want[16] = {
        0.2448367, 0.0923464, 0.6138892, 0.0489267, 0.5422794, 0.3372140, 0.1116102, 0.0088955,
        0.1115375, 0.3991299, 0.2178004, 0.2715313, 0.1013454, 0.1713088, 0.0566993, 0.6706455};
    static const double once[8] = {0.1901501, 0.0810962, 0.5874291, 0.0631438,
                                   0.0519860, 0.0993625, 0.0358348, 0.5716624};
    float m[16];
    connect(logits, 20, m);
    for (int i = 0; i < 16; i++)
        near((double)m[i], want[i], 2e-7);
    connect(logits, 1, m);
    for (int i = 0; i < 4; i++) {
        near((double)m[i], once[i], 2e-7);
        near((double)m[12 + i], once[4 + i], 2e-7);
    }
}

/* Two rows that want one column converge slowly: every iteration shows, and so does its order. */
static void sinkhorn_counts(void **state)
{
    (void)state;
    static const float slow[16] = {9, 0, 0, 0, 9, 0, 0, 0, 0, 0, 4, 0, 0, 1, 0, 6};
    float m[16], before[16];
    double want[16], moved = 0;
    for (int j = 0; j < 4; j++) {
        double sum = 0;
        for (int k = 0; k < 4; k++)
            sum += exp((double)slow[4 * j + k]);
        for (int k = 0; k < 4; k++)
            want[4 * j + k] = exp((double)slow[4 * j + k]) / sum + 1e-6;
    }
    for (int i = 0; i < 39; i++) { /* columns, then 19 times rows and columns */
        const int outer = i % 2 ? 4 : 1, inner = i % 2 ? 1 : 4;
        for (int a = 0; a < 4; a++) {
            double sum = 1e-6;
            for (int b = 0; b < 4; b++)
                sum += want[a * outer + b * inner];
            for (int b = 0; b < 4; b++)
                want[a * outer + b * inner] /= sum;
        }
    }
    connect(slow, 20, m);
    connect(slow, 19, before);
    for (int i = 0; i < 16; i++) {
        near((double)m[i], want[i], 1e-6);
        moved = fmax(moved, fabs((double)m[i] - (double)before[i]));
    }
    print_message("the last of 20 iterations moves %.1e\n", moved);
    assert_true(moved > 1e-5);
}

static void gates_and_mixture(void **state)
{
    (void)state;
    static const double mixed[4] = {2.069390, 2.649399, 1.717308, 3.563894};
    float gates[20] = {0}, x[4] = {1, 2, 3, 4}, out[1] = {0}, y[4];
    const struct device_hc post = {.n = 4};
    connect(logits, 20, gates + 4);
    device_hc_post(device, &post, rows_of(x, 1, 4), rows_of(out, 1, 1), rows_of(gates, 1, 20),
                   rows_of(y, 1, 4));
    for (int k = 0; k < 4; k++)
        near((double)y[k], mixed[k], 2e-6);
    /* pre and post of m = .3, s = 1.5, b = -.2 and of m = -2, s = .5, b = .1; one stream of length
     * 1 */
    static const double want[2][2] = {{.56217750, 1.12435300}, {.28905150, .57810099}};
    static const float scales[2][3] = {{1.5f, 1.5f, 1}, {.5f, .5f, 1}},
                       bases[2][3] = {{-.2f, -.2f, 0}, {.1f, .1f, 0}};
    for (int i = 0; i < 2; i++) {
        float one[1] = {1}, mix[3], in[1], gate[2];
        const float m = i ? -2.0f : .3f;
        struct device_vector *scale = vector(scales[i], 3), *base = vector(bases[i], 3);
        const struct device_hc hc = {1, scale, base, 1, 1e-6f, 0};
        mix[0] = mix[1] = m;
        mix[2] = 0;
        device_hc_pre(device, &hc, rows_of(one, 1, 1), rows_of(mix, 1, 3), rows_of(in, 1, 1),
                      rows_of(gate, 1, 2));
        near((double)in[0], want[i][0], 2e-7); /* with the epsilon; post has none */
        near((double)gate[0], want[i][1], 2e-7);
        device_vector_free(scale);
        device_vector_free(base);
    }
}

/* ---- rotations ---- */

static void rotate(double inv_freq, int64_t pos, double want0, double want1, double bound)
{
    float x[2] = {1, .5f}, back[2];
    const struct device_rope r = device_rope_table(device, &pos, 1, &inv_freq, 1);
    device_rope_pairs(device, rows_of(x, 1, 2), &r, 1, 0, false);
    near((double)x[0], want0, bound);
    near((double)x[1], want1, bound);
    memcpy(back, x, sizeof back);
    device_rope_pairs(device, rows_of(back, 1, 2), &r, 1, 0, true);
    near((double)back[0], 1, 3e-7);
    near((double)back[1], .5, 3e-7);
}

static void rotations(void **state)
{
    (void)state;
    rotate(1, 5, 0.7631243, -0.8170932, 3e-7);
    rotate(pow(1e4, -2.0 / 64), 1000, -0.9902476, 0.5190469, 3e-6);
    /* the vector's angle has 9 digits */
    rotate(pow(160000, -2.0 / 64), 1000, -1.1111685, -0.1237120, 3e-5);
    rotate(2.265625e-3, 1000, -1.0243355, 0.4480365, 3e-7);
    rotate(5.680529037e-7, 1000, 0.9997158, 0.5005680, 3e-7);
}

/* Angles are products in double precision: right to the last bits of a float at any position.
 * A float32 product would be off by 0.03 at position 1M. */
static void angles_at_a_million(void **state)
{
    (void)state;
    static const int64_t positions[] = {0,     1,      127,    128,    4095,
                                        65535, 262143, 524287, 999999, 1048575};
    double inv_freq[32];
    for (int i = 0; i < 32; i++)
        inv_freq[i] = pow(160000, -2.0 * i / 64);
    double worst = 0, in_float = 0;
    for (size_t k = 0; k < sizeof positions / sizeof *positions; k++) {
        const struct device_rope r = device_rope_table(device, &positions[k], 1, inv_freq, 32);
        for (int i = 0; i < 32; i++) {
            const long double f = powl(160000.0L, -2.0L * i / 64),
                              angle = (long double)positions[k] * f;
            const double c = (double)cosl(angle), s = (double)sinl(angle);
            worst = fmax(worst, fabs((double)r.cs.at[2 * i] - c));
            worst = fmax(worst, fabs((double)r.cs.at[2 * i + 1] - s));
            in_float = fmax(in_float, fabs(cos((double)((float)positions[k] * (float)f)) - c));
        }
    }
    print_message("cos and sin up to 1M: off by %.1e at most (with float32 angles %.1e)\n", worst,
                  in_float);
    assert_true(worst <= 1e-7);
}

/* ---- experts ---- */

static void scores_and_weights(void **state)
{
    (void)state;
    float x[5] = {1, -2, .5f, 3, 25};
    static const double want[5] = {1.1459763, 0.3562696, 0.9869534, 1.7460204, 5};
    device_sqrt_softplus(device, rows_of(x, 1, 5));
    for (int i = 0; i < 5; i++)
        near((double)x[i], want[i], 3e-7);
    const double sum = (double)x[3] + (double)x[0] + (double)x[2];
    near(1.5 * (double)x[3] / sum, 0.6751906, 3e-7);
    near(1.5 * (double)x[0] / sum, 0.4431520, 3e-7);
    near(1.5 * (double)x[2] / sum, 0.3816574, 3e-7);
}

static void clamped_glu(void **state)
{
    (void)state;
    float g[3] = {12, -15, 2}, u[3] = {3, -20, 11}, y[3];
    device_glu(device, DEVICE_SILU, 10, rows_of(y, 1, 3), rows_of(g, 1, 3), rows_of(u, 1, 3));
    near((double)y[0], 29.9986381, 4e-6);
    near((double)y[1], 0.0000459, 1e-7);
    near((double)y[2], 17.6159416, 4e-6);
}

/* ---- compressed rows and attention ---- */

static float page[3 * 128 * 64];

/* Two blocks of 4, one dimension that counts (of four that are alike: a row's width). */
static void overlap_pooling(void **state)
{
    (void)state;
    enum { WIDTH = 4, IN = 4 * WIDTH };
    static const float first_ape[4] = {0, .1f, .2f, .3f}, second_ape[4] = {-.1f, 0, .1f, .2f};
    float rows[8][IN], ones[WIDTH] = {1, 1, 1, 1};
    for (int p = 0; p < 8; p++)
        for (int e = 0; e < WIDTH; e++) {
            rows[p][e] = (float)(p + 1);
            rows[p][WIDTH + e] = 10.0f * (float)(p + 1);
            rows[p][2 * WIDTH + e] = .1f * (float)p + first_ape[p % 4];
            rows[p][3 * WIDTH + e] = .2f * (float)p - .3f + second_ape[p % 4];
        }
    struct err e;
    struct device_vector *norm;
    assert_int_equal(device_vector_create(&norm, device, ones, WIDTH, &e), INGLE_OK);
    memset(page, 0, sizeof page);
    uint8_t *at[1] = {(uint8_t *)page};
    const size_t in_bytes = 128 * kern_row_bytes(KERN_KV_F32, IN, 0);
    const struct device_stream in = {KERN_KV_F32, IN, 0, 1, 0},
                               out = {KERN_KV_F32, WIDTH, 0, 4, in_bytes};
    const struct device_span span = {0, 8, 0, at, false, 0, NULL, NULL, NULL, 0};
    device_rows_append(device, &in, &span, 1, rows_of(rows[0], 8, IN));
    /* An epsilon that dwarfs the row: the norm divides by a known number. */
    const float eps = 1e12f;
    const struct device_compress c = {in, out, 4, true, norm, eps, NULL, 0, false, {0}};
    device_compress(device, &c, &span, &span, 1);
    static const double want[2] = {28.6575513, 45.0106307};
    for (int w = 0; w < 2; w++) {
        float got[WIDTH];
        memcpy(got, (uint8_t *)page + in_bytes + (size_t)w * kern_row_bytes(KERN_KV_F32, WIDTH, 0),
               sizeof got);
        near((double)got[0] * 1e6, want[w], 2e-5);
    }
    device_vector_free(norm);
}

/* Scores 1, .5, -.3 with values 1, 2, 3 and a sink of .8: keys are values, so the scores come
 * from a dimension of their own. */
static void sink(void **state)
{
    (void)state;
    enum { WIDTH = 16 };
    float rows[3][WIDTH] = {{0}}, q[WIDTH] = {1}, out[WIDTH];
    static const float scores[3] = {1, .5f, -.3f}, sinks[1] = {.8f};
    for (int i = 0; i < 3; i++) {
        rows[i][0] = scores[i];
        rows[i][1] = (float)(i + 1);
    }
    memset(page, 0, sizeof page);
    uint8_t *at[1] = {(uint8_t *)page};
    const struct device_stream near_rows = {KERN_KV_F32, WIDTH, 0, 1, 0};
    const struct device_span all = {0, 3, 0, at, false, 0, NULL, NULL, NULL, 0},
                             last = {0, 1, 2, at, false, 0, NULL, NULL, NULL, 0};
    device_rows_append(device, &near_rows, &all, 1, rows_of(rows[0], 3, WIDTH));
    struct device_vector *sink_of = vector(sinks, 1);
    const struct device_latent l = {.near = near_rows, .window = 8, .sink = sink_of};
    device_attend_latent(device, &l, &last, NULL, 1, rows_of(q, 1, WIDTH), 1,
                         rows_of(out, 1, WIDTH), 1);
    near((double)out[1], 1.1233836, 5e-7);
    device_vector_free(sink_of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sinkhorn),           cmocka_unit_test(sinkhorn_counts),
        cmocka_unit_test(gates_and_mixture),
        cmocka_unit_test(rotations),          cmocka_unit_test(angles_at_a_million),
        cmocka_unit_test(scores_and_weights), cmocka_unit_test(clamped_glu),
        cmocka_unit_test(overlap_pooling),    cmocka_unit_test(sink),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
