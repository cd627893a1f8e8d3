/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/sha256.h"
#include "quant/quant.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { N_BLOCKS = 64, N_TEST = 4096 };

static uint32_t draw(uint32_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 17;
    *x ^= *x << 5;
    return *x;
}

static const struct {
    const char *name;
    int n, at[2];
} half_at[] = {
    {"Q1_0", 1, {0}},    {"Q4_0", 1, {0}},    {"Q4_1", 2, {0, 2}},   {"Q5_0", 1, {0}},
    {"Q5_1", 2, {0, 2}}, {"Q8_0", 1, {0}},    {"Q2_K", 2, {80, 82}}, {"Q3_K", 1, {108}},
    {"Q4_K", 2, {0, 2}}, {"Q5_K", 2, {0, 2}}, {"Q6_K", 1, {208}},    {"IQ2_XXS", 1, {0}},
    {"IQ2_XS", 1, {0}},  {"IQ2_S", 1, {0}},   {"IQ3_XXS", 1, {0}},   {"IQ3_S", 1, {0}},
    {"IQ1_S", 1, {0}},   {"IQ4_NL", 1, {0}},  {"IQ4_XS", 1, {0}},    {"TQ1_0", 1, {52}},
    {"TQ2_0", 1, {64}},
};

static uint32_t type_of(const char *name)
{
    for (uint32_t id = 0; id < 256; id++)
        if (quant_info(id) && strcmp(quant_info(id)->name, name) == 0)
            return id;
    fail_msg("no type %s", name);
    return 0;
}

/* The pseudo-random blocks that the vectors were made of. */
static void make_blocks(const char *name, size_t size, uint8_t *out)
{
    uint32_t x = 0x12345678;
    for (int b = 0; b < N_BLOCKS; b++, out += size) {
        for (size_t i = 0; i < size; i++)
            out[i] = (uint8_t)(draw(&x) >> 24);
        for (size_t i = 0; i < sizeof half_at / sizeof *half_at; i++)
            for (int k = 0; strcmp(half_at[i].name, name) == 0 && k < half_at[i].n; k++) {
                const uint32_t v = draw(&x), h = 0x2000 + (v & 0xFFF);
                const uint16_t d = (uint16_t)(h | (v >> 16 & 0x8000));
                memcpy(out + half_at[i].at[k], &d, sizeof d);
            }
        if (strcmp(name, "MXFP4") == 0 && out[0] > 252)
            out[0] = 252;
        if (strcmp(name, "IQ1_M") == 0)
            out[55] = (uint8_t)((out[55] & 15) | (out[55] & 0x80 ? 0xA0 : 0x20));
    }
}

static void make_test_vector(float *out)
{
    uint32_t x = 0x9e3779b9;
    for (int i = 0; i < N_TEST; i++) {
        const int v = (int)(draw(&x) >> 8) - (1 << 23);
        out[i] = ldexpf((float)v, -23 + (i / 32 * 7) % 5 - 4);
    }
}

/* One line of tests/data/formats-vectors.txt as words. */
static bool next_vector(FILE *f, char kind[8], char name[16], char a[80], char b[80])
{
    char line[256];
    while (fgets(line, sizeof line, f))
        if (*line != '#' && sscanf(line, "%7s %15s %79s %79s", kind, name, a, b) == 4)
            return true;
    return false;
}

static void check_decoder(const char *name, const char *in_hash, const char *out_hash)
{
    static uint8_t blocks[N_BLOCKS * 256 + 1];
    static float y[N_BLOCKS * 256];
    const uint32_t type = type_of(name);
    const struct quant_info *q = quant_info(type);
    char hex[65];
    /* One byte off: blocks may lie at any address. */
    make_blocks(name, q->n_bytes, blocks + 1);
    sha256_hex(blocks + 1, (size_t)N_BLOCKS * q->n_bytes, hex, 16);
    assert_string_equal(hex, in_hash);
    const size_t n = (size_t)N_BLOCKS * q->n;
    quant_decode(type, blocks + 1, y, n);
    for (size_t i = 0; i < n; i++)
        y[i] += 0.0f; /* -0 becomes +0 */
    sha256_hex(y, n * sizeof *y, hex, 32);
    if (strcmp(hex, out_hash) != 0)
        fail_msg("%s decodes to %s, not %s", name, hex, out_hash);
    assert_int_equal(quant_find_bad(type, blocks + 1, N_BLOCKS), -1);
}

static bool check_encoder(const char *name, const char *hash)
{
    static float x[N_TEST];
    static uint8_t blocks[N_TEST * 4];
    char hex[65];
    const uint32_t type = type_of(name);
    make_test_vector(x);
    if (!quant_encode(type, x, blocks, N_TEST))
        return false;
    const struct quant_info *q = quant_info(type);
    sha256_hex(blocks, (size_t)N_TEST / q->n * q->n_bytes, hex, 32);
    if (strcmp(hex, hash) != 0)
        fail_msg("%s encodes to %s, not %s", name, hex, hash);
    return true;
}

static void vectors_match(void **state)
{
    (void)state;
    FILE *f = fopen("tests/data/formats-vectors.txt", "r");
    assert_non_null(f);
    char kind[8], name[16], a[80], b[80];
    int n_decoders = 0, n_encoders = 0;
    while (next_vector(f, kind, name, a, b)) {
        if (strcmp(kind, "DQ") == 0) {
            check_decoder(name, a, b);
            n_decoders++;
        }
        if (strcmp(kind, "QZ") == 0 && strcmp(a, "none") == 0 && strncmp(name, "Q8_1", 4) != 0 &&
            strncmp(name, "Q8_K", 4) != 0)
            n_encoders += check_encoder(name, b);
    }
    fclose(f);
    assert_int_equal(n_decoders, 24);
    assert_int_equal(n_encoders, 6);
}

static void check_book(const char *name, const char *hash)
{
    static const struct {
        const char *name;
        const void *at;
        size_t n_bytes;
    } books[] = {
        {"iq2_xxs", quant_book_iq2_xxs, sizeof quant_book_iq2_xxs},
        {"iq2_xs", quant_book_iq2_xs, sizeof quant_book_iq2_xs},
        {"iq2_s", quant_book_iq2_s, sizeof quant_book_iq2_s},
        {"iq3_xxs", quant_book_iq3_xxs, sizeof quant_book_iq3_xxs},
        {"iq3_s", quant_book_iq3_s, sizeof quant_book_iq3_s},
        {"iq1", quant_book_iq1, sizeof quant_book_iq1},
    };
    char hex[65];
    for (size_t i = 0; i < sizeof books / sizeof *books; i++)
        if (strcmp(books[i].name, name) == 0) {
            sha256_hex(books[i].at, books[i].n_bytes, hex, 64);
            assert_string_equal(hex, hash);
            return;
        }
    fail_msg("no book %s", name);
}

static void books_are_the_published_ones(void **state)
{
    (void)state;
    FILE *f = fopen("tests/data/formats-iq-tables.txt", "r");
    assert_non_null(f);
    char line[256], name[16] = "", hash[65];
    int n = 0;
    while (fgets(line, sizeof line, f)) {
        if (*line == '@')
            assert_int_equal(sscanf(line, "@%15s", name), 1);
        if (sscanf(line, "bytes-sha256=%64s", hash) == 1) {
            check_book(name, hash);
            n++;
        }
    }
    fclose(f);
    assert_int_equal(n, 6);
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float f = quant_f16_to_f32((uint16_t)h);
        const uint32_t e = h >> 10 & 31, m = h & 1023;
        if (e == 31 && m) {
            assert_true(isnan(f));
            assert_int_equal(quant_f32_to_f16(f) & 0x7E00, 0x7E00);
            continue;
        }
        const float want = e == 31 ? INFINITY
                           : e     ? ldexpf((float)(1024 + m), (int)e - 25)
                                   : ldexpf((float)m, -24);
        assert_int_equal(bits_of(f), bits_of(h >> 15 ? -want : want));
        assert_int_equal(quant_f32_to_f16(f), h);
        /* Halfway to the next: the even one; a hair beyond: the next. */
        if (e == 31)
            continue;
        const float next =
            e == 30 && m == 1023 ? 65536 : fabsf(quant_f16_to_f32((uint16_t)(h + 1)));
        const float half = (fabsf(f) + next) / 2;
        const uint32_t even = (h & 0x7FFF) + (h & 1);
        assert_int_equal(quant_f32_to_f16(half), even);
        assert_int_equal(quant_f32_to_f16(nextafterf(half, INFINITY)), (h & 0x7FFF) + 1);
        assert_int_equal(quant_f32_to_f16(nextafterf(half, 0)), h & 0x7FFF);
    }
    assert_int_equal(quant_f32_to_f16(1e-30f), 0);
    assert_int_equal(quant_f32_to_f16(-1e30f), 0xFC00);
}

static void short_floats_have_their_values(void **state)
{
    (void)state;
    assert_true(quant_bf16_to_f32(0x3FC0) == 1.5f);
    assert_int_equal(quant_f32_to_bf16(1.00390625f), 0x3F80); /* halfway: to even */
    assert_int_equal(quant_f32_to_bf16(1.01171875f), 0x3F82);
    assert_int_equal(quant_f32_to_bf16(1.0040f), 0x3F81);
    assert_int_equal(quant_f32_to_bf16(INFINITY), 0x7F80);
    assert_int_equal(quant_f32_to_bf16(3.4e38f), 0x7F80);
    assert_true(isnan(quant_bf16_to_f32(quant_f32_to_bf16(NAN))));

    assert_int_equal(bits_of(quant_e8m0_to_f32(0)), 0x00400000);
    assert_true(quant_e8m0_to_f32(127) == 1);
    assert_true(quant_e8m0_to_f32(254) == 0x1p127f);
    assert_true(isnan(quant_e8m0_to_f32(255)));

    float y[254], *at = y;
    for (int b = 0; b < 256; b++) {
        const float f = quant_fp8_e4m3_to_f32((uint8_t)b);
        if ((b & 127) == 127)
            assert_true(isnan(f));
        else
            *at++ = f + 0.0f;
    }
    char hex[33];
    sha256_hex(y, sizeof y, hex, 32);
    assert_string_equal(hex, "b99e2f30a96e667492cd52640b74d4d2");
    assert_true(quant_fp8_e4m3_to_f32(0x7E) == 448);
}

static void plain_types_convert_by_value(void **state)
{
    (void)state;
    float y[2];
    const int64_t i64[2] = {-3, 1ll << 40};
    quant_decode(QUANT_I64, i64, y, 2);
    assert_true(y[0] == -3 && y[1] == 0x1p40f);
    const int32_t i32[2] = {-70000, 9};
    quant_decode(QUANT_I32, i32, y, 2);
    assert_true(y[0] == -70000 && y[1] == 9);
    const int16_t i16[2] = {-300, 300};
    quant_decode(QUANT_I16, i16, y, 2);
    assert_true(y[0] == -300 && y[1] == 300);
    const uint8_t u8[2] = {255, 2};
    quant_decode(QUANT_I8, u8, y, 2);
    assert_true(y[0] == -1 && y[1] == 2);
    quant_decode(QUANT_U8, u8, y, 2);
    assert_true(y[0] == 255 && y[1] == 2);
    quant_decode(QUANT_BOOL, u8, y, 2);
    assert_true(y[0] == 1 && y[1] == 1);
    const double f64[2] = {0.1, 1e300};
    quant_decode(QUANT_F64, f64, y, 2);
    assert_true(y[0] == 0.1f && isinf(y[1]));
    const uint8_t e8m0[2] = {127, 128};
    quant_decode(QUANT_E8M0, e8m0, y, 2);
    assert_true(y[0] == 1 && y[1] == 2);
    const float f[2] = {1.5f, -2};
    uint8_t half[4];
    assert_true(quant_encode(QUANT_F16, f, half, 2));
    quant_decode(QUANT_F16, half, y, 2);
    assert_memory_equal(y, f, sizeof f);
    assert_true(quant_encode(QUANT_BF16, f, half, 2));
    quant_decode(QUANT_BF16, half, y, 2);
    assert_memory_equal(y, f, sizeof f);
}

/* Q2_0 has no vector: the four codes are -1, 0, 1, 2 times d, lowest bits first. */
static void q2_0_has_its_values(void **state)
{
    (void)state;
    struct quant_q2_0 b = {.d = 0x3800}; /* 0.5 */
    memset(b.q, 0xE4, sizeof b.q);
    float y[64];
    quant_decode(QUANT_Q2_0, &b, y, 64);
    for (int i = 0; i < 64; i++)
        assert_true(y[i] == 0.5f * (float)(i % 4 - 1));
}

static void sizes_are_checked(void **state)
{
    (void)state;
    uint64_t n = 7;
    assert_true(quant_bytes(QUANT_Q4_K, 512, 3, &n));
    assert_int_equal(n, 2 * 144 * 3);
    assert_true(quant_bytes(QUANT_F32, 0, 3, &n));
    assert_int_equal(n, 0);
    n = 7;
    assert_false(quant_bytes(QUANT_Q4_K, 500, 3, &n));
    assert_false(quant_bytes(QUANT_F64, UINT64_MAX, 1, &n));
    assert_false(quant_bytes(QUANT_F32, 1ull << 40, 1ull << 40, &n));
    assert_false(quant_bytes(9, 32, 1, &n));
    assert_int_equal(n, 7);
    static const uint32_t none[] = {4, 5, 9, 15, 31, 32, 33, 36, 37, 38, 43, 199, 206, UINT32_MAX};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_null(quant_info(none[i]));
    assert_false(quant_encode(QUANT_Q4_K, NULL, NULL, 256));
}

static void plain_numbers_that_are_none_are_found(void **state)
{
    enum { MANY = 200 };
    static const struct { uint32_t type, bits[2];
    } kinds[] = {{QUANT_F32, {0x7F800000, 0xFFC00001}},
                 {QUANT_F16, {0x7C00, 0xFE01}},
                 {QUANT_BF16, {0xFF80, 0x7FC1}}};
    (void)state;
    for (size_t t = 0; t < sizeof kinds / sizeof *kinds; t++)
        for (size_t at = 0; at < MANY; at++) {
            unsigned char x[MANY * 4];
            const size_t size = quant_info(kinds[t].type)->n_bytes;
            memset(x, 0x11, sizeof x);
            assert_int_equal(quant_find_bad(kinds[t].type, x, MANY), -1);
            for (size_t k = at; k < MANY; k += 50) /* little endian: the low bytes */
                memcpy(x + k * size, &kinds[t].bits[k % 2], size);
            assert_int_equal(quant_find_bad(kinds[t].type, x, MANY), at);
            assert_int_equal(quant_find_bad(kinds[t].type, x, at), -1);
        }
}

/* Wherever a scale that is none stands in many blocks; all other bytes may be anything. */
static void bad_scales_of_many_blocks_are_found(void **state)
{
    enum { MANY = 200 };
    static const struct { uint32_t type; size_t at; unsigned char good, bad;
    } kinds[] = {{QUANT_Q4_0, 1, 0x7B, 0x7C},   {QUANT_Q8_0, 1, 0xFB, 0xFC},
                 {QUANT_Q4_K, 1, 0x7B, 0x7C},   {QUANT_Q4_K, 3, 0xFB, 0xFD},
                 {QUANT_Q2_K, 81, 0x78, 0x7E},  {QUANT_Q2_K, 83, 0, 0xFF},
                 {QUANT_Q6_K, 209, 0x7B, 0x7C}, {QUANT_MXFP4, 0, 252, 253}};
    static unsigned char x[MANY * 210];
    (void)state;
    for (size_t t = 0; t < sizeof kinds / sizeof *kinds; t++) {
        const size_t size = quant_info(kinds[t].type)->n_bytes;
        memset(x, 0xFF, sizeof x);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            for (size_t k = 0; k < MANY && kinds[i].type == kinds[t].type; k++)
                x[k * size + kinds[i].at] = kinds[i].good;
        assert_int_equal(quant_find_bad(kinds[t].type, x, MANY), -1);
        for (size_t at = 0; at < MANY; at++) {
            x[at * size + kinds[t].at] = kinds[t].bad;
            assert_int_equal(quant_find_bad(kinds[t].type, x, MANY), at);
            assert_int_equal(quant_find_bad(kinds[t].type, x, at), -1);
            x[at * size + kinds[t].at] = kinds[t].good;
        }
    }
}

static void bad_scales_are_found(void **state)
{
    (void)state;
    struct quant_q4_k k[3] = {{.d = 0x3C00}, {.d = 0x3C00}, {.d = 0x3C00, .dmin = 0x7C00}};
    assert_int_equal(quant_find_bad(QUANT_Q4_K, k, 3), 2);
    k[1].d = 0xFE01;
    assert_int_equal(quant_find_bad(QUANT_Q4_K, k, 3), 1);
    struct quant_mxfp4 m[2] = {{.e = 252}, {.e = 253}};
    assert_int_equal(quant_find_bad(QUANT_MXFP4, m, 1), -1);
    assert_int_equal(quant_find_bad(QUANT_MXFP4, m, 2), 1);
    struct quant_iq1_m i = {.sc = {0x0FFF, 0x0FFF, 0xCFFF, 0x7FFF}};
    assert_int_equal(quant_find_bad(QUANT_IQ1_M, &i, 1), 0);
    i.sc[2] = 0xBFFF;
    assert_int_equal(quant_find_bad(QUANT_IQ1_M, &i, 1), -1);
    const float f[3] = {3.4e38f, -INFINITY, NAN};
    assert_int_equal(quant_find_bad(QUANT_F32, f, 3), 1);
    assert_int_equal(quant_find_bad(QUANT_F32, f + 2, 1), 0);
    const double d[2] = {1e308, (double)NAN};
    assert_int_equal(quant_find_bad(QUANT_F64, d, 2), 1);
    const uint16_t b[2] = {0x7F7F, 0x7F80};
    assert_int_equal(quant_find_bad(QUANT_BF16, b, 2), 1);
    const uint8_t fp8[3] = {0x7E, 0xFE, 0xFF};
    assert_int_equal(quant_find_bad(QUANT_FP8_E4M3, fp8, 3), 2);
    assert_int_equal(quant_find_bad(QUANT_E8M0, fp8, 3), 2);
    assert_int_equal(quant_find_bad(QUANT_I8, fp8, 3), -1);
    const float scale[5] = {-0.37f, 6.6e35f, 7.0e35f, INFINITY, NAN};
    for (int j = 0; j < 5; j++) {
        struct quant_fp8_s32 one = {.code = {[31] = 0xFE}};
        float v[32];
        memcpy(one.scale, &scale[j], sizeof scale[j]);
        assert_int_equal(quant_find_bad(QUANT_FP8_S32, &one, 1), j < 2 ? -1 : 0);
        quant_decode(QUANT_FP8_S32, &one, v, 32);
        assert_true(j > 1 || (v[31] <= -448 * scale[j] && v[31] >= -448 * scale[j]));
        one.code[30] = 0x7F;
        assert_int_equal(quant_find_bad(QUANT_FP8_S32, &one, 1), 0);
    }
}

/* Values that are no numbers must give some code, not undefined behaviour. */
static void encoders_survive_anything(void **state)
{
    (void)state;
    static const uint32_t types[] = {QUANT_Q8_0, QUANT_Q4_0, QUANT_Q4_1,
                                     QUANT_Q5_0, QUANT_Q5_1, QUANT_MXFP4};
    float x[32] = {0}, y[32];
    uint8_t b[64];
    for (size_t t = 0; t < 6; t++) {
        memset(x, 0, sizeof x);
        assert_true(quant_encode(types[t], x, b, 32));
        quant_decode(types[t], b, y, 32);
        for (int i = 0; i < 32; i++)
            assert_true(y[i] == 0);
        x[3] = NAN;
        x[5] = INFINITY;
        x[6] = -3e38f;
        x[7] = 1e-44f;
        assert_true(quant_encode(types[t], x, b, 32));
        x[5] = x[3] = 0;
        assert_true(quant_encode(types[t], x, b, 32));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_match),
        cmocka_unit_test(books_are_the_published_ones),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(short_floats_have_their_values),
        cmocka_unit_test(plain_types_convert_by_value),
        cmocka_unit_test(q2_0_has_its_values),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(bad_scales_are_found),
        cmocka_unit_test(bad_scales_of_many_blocks_are_found),
        cmocka_unit_test(plain_numbers_that_are_none_are_found),
        cmocka_unit_test(encoders_survive_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
