/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs of keys and values against vectors of another program, bit by bit, and in blocks. */
#include "unit/unit.h"

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "kern/attend_coded.h"
#include "kern/row.h"
#include "quant/quant.h"
#include "unit/xz.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct json_object *vectors;

static int open_vectors(void **state)
{
    size_t n;
    struct err err;
    char *text = test_slurp("tests/data/kv-codecs.json", &n);
    (void)state;
    const int bad = !text || json_parse(text, n, NULL, &vectors, &err) != INGLE_OK;
    mem_free(text);
    return bad;
}

static int close_vectors(void **state)
{
    (void)state;
    json_object_put(vectors);
    return 0;
}

static struct json_object *member(struct json_object *o, const char *name)
{
    struct json_object *m = NULL;
    assert_true(json_object_object_get_ex(o, name, &m));
    return m;
}

static uint32_t hex(const char *s, int n)
{
    char text[9] = {0};
    memcpy(text, s, (size_t)n);
    return (uint32_t)strtoul(text, NULL, 16);
}

/* Floats of a member; 0: it is null. */
static int64_t floats(struct json_object *o, const char *name, float *to)
{
    struct json_object *m = member(o, name);
    const char *s = m ? json_object_get_string(m) : "";
    const int64_t n = (int64_t)strlen(s) / 8;
    assert_true(n <= KERN_KV_WIDE);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = hex(s + 8 * i, 8);
        memcpy(to + i, &u, sizeof u);
    }
    return n;
}

static const char *name_of(struct json_object *o)
{
    return json_object_get_string(member(o, "name"));
}

static void q8r(void **state)
{
    (void)state;
    struct json_object *all = member(vectors, "q8r");
    for (size_t i = 0; i < json_object_array_length(all); i++) {
        struct json_object *o = json_object_array_get_idx(all, i);
        const char *codes = json_object_get_string(member(o, "codes"));
        float x[KERN_KV_WIDE];
        uint16_t scale;
        int8_t code[KERN_KV_WIDE];
        const int64_t n = floats(o, "x", x);
        kern_kv_encode(KERN_KV_Q8R, x, n, &scale, code);
        if (scale != json_object_get_int(member(o, "scale")))
            fail_msg("q8r, %s: scale %04x", name_of(o), scale);
        for (int64_t k = 0; k < n; k++)
            if ((uint8_t)code[k] != hex(codes + 2 * k, 2))
                fail_msg("q8r, %s: code %d is %d", name_of(o), (int)k, code[k]);
    }
}

static void n4r(void **state)
{
    (void)state;
    struct json_object *all = member(vectors, "n4r");
    for (size_t i = 0; i < json_object_array_length(all); i++) {
        struct json_object *o = json_object_array_get_idx(all, i), *norms = member(o, "norms");
        const char *codes = json_object_get_string(member(o, "codes"));
        float x[KERN_KV_WIDE];
        uint16_t norm[KERN_KV_WIDE / KERN_KV_GROUP];
        int8_t code[KERN_KV_WIDE];
        const int64_t n = floats(o, "x", x);
        kern_kv_encode(KERN_KV_N4R, x, n, norm, code);
        for (size_t g = 0; g < json_object_array_length(norms); g++)
            if (norm[g] != json_object_get_int(json_object_array_get_idx(norms, g)))
                fail_msg("n4r, %s: norm %d is %04x", name_of(o), (int)g, norm[g]);
        for (int64_t k = 0; k < n; k++)
            if ((uint8_t)code[k] != hex(codes + k, 1))
                fail_msg("n4r, %s: code %d is %d", name_of(o), (int)k, code[k]);
    }
}

static void near_to(const char *name, const char *what, const float *want, const float *got,
                    int64_t n)
{
    float most = 0.0f; /* of a row that is turned back each number has the errors of all */
    for (int64_t k = 0; k < n; k++)
        most = fmaxf(most, fabsf(want[k]));
    for (int64_t k = 0; k < n; k++)
        if (!(fabsf(want[k] - got[k]) <= 1e-6f * most))
            fail_msg("tq3_0, %s: %s [%d] is %.9g, not %.9g", name, what, (int)k, (double)got[k],
                     (double)want[k]);
}

/* Blocks as files have them, byte by byte, there and back. */
/* TQ3_0 as files have it: width / 32 blocks, of which four have the same norm. */
enum {
    TQ3_BLOCK = 32,
    TQ3_BLOCK_BYTES = 14 /* its norm, f16; two bits of each index; one bit of each */
};

static void tq3_to_blocks(const uint16_t *norm, const int8_t *code, int64_t width, uint8_t *blocks)
{
    for (int64_t i = 0; i < width / TQ3_BLOCK * TQ3_BLOCK_BYTES; i++)
        blocks[i] = 0;
    for (int64_t i = 0; i < width; i++) {
        uint8_t *b = blocks + i / TQ3_BLOCK * TQ3_BLOCK_BYTES;
        const int64_t j = i % TQ3_BLOCK;
        b[0] = (uint8_t)norm[i / KERN_KV_GROUP];
        b[1] = (uint8_t)(norm[i / KERN_KV_GROUP] >> 8);
        b[2 + j / 4] |= (uint8_t)((code[i] & 3) << j % 4 * 2);
        b[10 + j / 8] |= (uint8_t)(code[i] >> 2 << j % 8);
    }
}

/* False: they do not. */
static bool tq3_from_blocks(const uint8_t *blocks, int64_t width, uint16_t *norm, int8_t *code)
{
    for (int64_t i = 0; i < width; i++) {
        const uint8_t *b = blocks + i / TQ3_BLOCK * TQ3_BLOCK_BYTES;
        const int64_t j = i % TQ3_BLOCK;
        const uint16_t own = (uint16_t)(b[0] | b[1] << 8);
        if (i % KERN_KV_GROUP == 0)
            norm[i / KERN_KV_GROUP] = own;
        else if (norm[i / KERN_KV_GROUP] != own)
            return false;
        code[i] = (int8_t)((b[2 + j / 4] >> j % 4 * 2 & 3) | (b[10 + j / 8] >> j % 8 & 1) << 2);
    }
    return true;
}

static void tq3_0(void **state)
{
    (void)state;
    enum { N = KERN_KV_GROUP, BYTES = 4 * TQ3_BLOCK_BYTES };
    struct json_object *all = member(vectors, "tq3_0");
    for (size_t i = 0; i < json_object_array_length(all); i++) {
        struct json_object *o = json_object_array_get_idx(all, i);
        const char *bytes = json_object_get_string(member(o, "blocks"));
        float x[N], y[N], want[KERN_KV_WIDE];
        uint16_t norm, again;
        int8_t code[N], read[N];
        uint8_t blocks[BYTES];
        assert_int_equal(floats(o, "x", x), N);
        kern_kv_encode(KERN_KV_TQ3_0, x, N, &norm, code);
        if (norm != json_object_get_int(member(o, "norm")))
            fail_msg("tq3_0, %s: norm %04x", name_of(o), norm);
        tq3_to_blocks(&norm, code, N, blocks);
        for (int k = 0; k < BYTES; k++)
            if (blocks[k] != hex(bytes + 2 * k, 2))
                fail_msg("tq3_0, %s: byte %d is %02x", name_of(o), k, blocks[k]);
        assert_true(tq3_from_blocks(blocks, N, &again, read));
        assert_int_equal(again, norm);
        assert_memory_equal(read, code, N);
        kern_kv_decode(KERN_KV_TQ3_0, &norm, code, N, y);
        if (floats(o, "rotated", want))
            near_to(name_of(o), "turned", want, y, N);
        else
            assert_true(isnan(y[0]));
        kern_kv_turn_back(KERN_KV_TQ3_0, y, N);
        if (floats(o, "decoded", want))
            near_to(name_of(o), "decoded", want, y, N);
        blocks[TQ3_BLOCK_BYTES] ^= 1;
        assert_false(tq3_from_blocks(blocks, N, &again, read));
    }
}

static const enum kern_kv_codec coded[] = {KERN_KV_Q8R, KERN_KV_N4R, KERN_KV_TQ3_0, KERN_KV_Q8R_ROT,
                                           KERN_KV_N4R_ROT};
enum { N_CODED = sizeof coded / sizeof *coded };
static const int64_t widths[] = {16, 32, 64, 128, 256, 512};

static void noise(float *x, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t z = (seed + (uint64_t)i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        x[i] = (float)(int32_t)(z >> 40) * (1.0f / 8388608.0f) - 1.0f;
    }
}

/* A slot has what was written last, whatever was there and whatever its neighbours get. */
static void slots_of_a_block(void **state)
{
    (void)state;
    for (size_t c = 0; c < N_CODED; c++)
        for (size_t w = 0; w < 6; w++)
            for (int key = 0; key < 2; key++) {
                const int64_t n = widths[w];
                const size_t bytes = kern_kv_block_bytes(coded[c], key, n);
                /* of which a part is stored: parts_of_keys() */
                if (!bytes || (key && kern_kv_is_rot(coded[c])))
                    continue;
                uint8_t *block = mem_big_alloc(bytes);
                float *x = mem_calloc((size_t)(KERN_PAGE * n), sizeof *x), y[KERN_KV_WIDE],
                      z[KERN_KV_WIDE];
                assert_non_null(block);
                assert_non_null(x);
                memset(block, 0xa5, bytes);
                noise(x, KERN_PAGE * n, (uint32_t)(c + w));
                kern_kv_codes_write(coded[c], key, n, block, 0, x + 5 * n, KERN_PAGE - 5, n);
                for (int64_t slot = KERN_PAGE; slot-- > 0;)
                    kern_kv_codes_write(coded[c], key, n, block, slot, x + slot * n, 1, 0);
                for (int64_t slot = 0; slot < KERN_PAGE; slot++) {
                    uint16_t norm[KERN_KV_WIDE / KERN_KV_GROUP];
                    int8_t code[KERN_KV_WIDE];
                    kern_kv_encode(coded[c], x + slot * n, n, norm, code);
                    kern_kv_decode(coded[c], norm, code, n, z);
                    kern_attend_coded_read(coded[c], key, n, block, slot, y);
                    assert_memory_equal(y, z, (size_t)n * sizeof *y);
                    kern_kv_read(coded[c], key, n, block, slot, y);
                    double off = 0, all = 0;
                    for (int64_t k = 0; k < n; k++) {
                        const double d = (double)y[k] - (double)x[slot * n + k];
                        off += d * d;
                        all += (double)x[slot * n + k] * (double)x[slot * n + k];
                    }
                    if (!(sqrt(off / all) < (kern_kv_code(coded[c]) == KERN_KV_Q8R ? 0.012
                                             : coded[c] != KERN_KV_TQ3_0           ? 0.25
                                                                                   : 0.3)))
                        fail_msg("%s of width %d is off by %.3g", kern_kv_name(coded[c]), (int)n,
                                 sqrt(off / all));
                }
                mem_big_free(block, bytes);
                mem_free(x);
            }
}

/* With +rot a page has of a key the quarter that positions turn, in the form of a narrower head;
 * the rest of it is weight * value. */
static void parts_of_keys(void **state)
{
    (void)state;
    for (int64_t n = 64; n <= KERN_KV_WIDE; n *= 2)
        for (size_t c = 3; c < N_CODED; c++) {
            const int64_t part = n / KERN_KV_PARTS, slot = 77;
            const size_t v_at = kern_kv_block_bytes(coded[c], true, n),
                         bytes = v_at + kern_kv_block_bytes(coded[c], false, n);
            float k[KERN_KV_WIDE], v[KERN_KV_WIDE], weight[KERN_KV_WIDE], want[KERN_KV_WIDE],
                key[KERN_KV_WIDE];
            uint16_t norm[KERN_KV_PARTS];
            int8_t code[KERN_KV_WIDE];
            bool seen[KERN_KV_WIDE] = {false};
            uint8_t *page = mem_big_alloc(bytes);
            assert_non_null(page);
            noise(v, n, 3);
            noise(weight, n, 4);
            noise(k, n, 5);
            for (int64_t i = 0; i < n; i++) {
                const int64_t d = kern_kv_rot_dim(n, i);
                assert_true(d >= 0 && d < n && !seen[d] && (d % (n / 2) < n / 8) == (i < part));
                seen[d] = true;
                weight[d] += 2.0f;
                if (i < part)
                    want[i] = k[d];
                else
                    k[d] = weight[d] * v[d];
            }
            const struct kern_from_v from_v = {.weight = weight, .n_pairs = n / 8, .half = n / 2};
            const struct kern_attend a = {.k_codec = coded[c],
                                          .v_codec = coded[c],
                                          .k_width = n,
                                          .v_width = n,
                                          .v_at = v_at,
                                          .from_v = &from_v};
            kern_kv_codes_write(coded[c], true, n, page, slot, k, 1, 0);
            kern_kv_codes_write(coded[c], false, n, page + v_at, slot, v, 1, 0);
            kern_kv_encode(kern_kv_code(coded[c]), want, part, norm, code);
            kern_kv_decode(kern_kv_code(coded[c]), norm, code, part, want);
            kern_attend_coded_read(coded[c], true, n, page, slot, key);
            assert_memory_equal(key, want, (size_t)part * sizeof *key);
            kern_attend_rot_key(&a, page, slot, key);
            double off = 0, all = 0;
            for (int64_t i = 0; i < n; i++) {
                off += ((double)key[i] - (double)k[i]) * ((double)key[i] - (double)k[i]);
                all += (double)k[i] * (double)k[i];
            }
            assert_true(sqrt(off / all) < (coded[c] == KERN_KV_Q8R_ROT ? 0.012 : 0.25));
            mem_big_free(page, bytes);
        }
}

/* NaN and what is too large are seen, zero stays zero, and neither touches another slot. */
static void odd_values(void **state)
{
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, 0.0f, -0.0f, 1e-41f, 1e6f, 1e30f};
    for (size_t c = 0; c < N_CODED; c++)
        for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
            enum { N = 256 };
            static _Alignas(64) uint8_t block[(N + 2 * KERN_KV_PARTS) * KERN_PAGE];
            float x[N], y[N];
            const bool lost =
                !(fabsf(odd[i]) <
                  (coded[c] == KERN_KV_N4R || coded[c] == KERN_KV_TQ3_0 ? 1e6f : 1e7f));
            for (int k = 0; k < N; k++)
                x[k] = odd[i];
            kern_kv_codes_write(coded[c], i % 2, N, block, 77, x, 1, 0);
            kern_kv_read(coded[c], i % 2, N, block, 77, y);
            bool nan = false, zero = true;
            for (int k = 0; k < N; k++) {
                nan |= isnan(y[k]);
                zero &= y[k] == 0.0f;
            }
            if (fabsf(odd[i]) < 1e-9f)
                assert_true(zero);
            else if (lost)
                assert_true(nan);
        }
}

/* Turning is orthogonal, and back is back. */
static void turns(void **state)
{
    (void)state;
    for (size_t c = 0; c < N_CODED; c++)
        for (size_t w = 3; w < 6; w++) {
            float a[KERN_KV_WIDE], b[KERN_KV_WIDE], c0[KERN_KV_WIDE];
            double before = 0, after = 0;
            noise(a, widths[w], 3);
            noise(b, widths[w], 4);
            memcpy(c0, a, sizeof c0);
            for (int64_t i = 0; i < widths[w]; i++)
                before += (double)a[i] * (double)b[i];
            kern_kv_turn(coded[c], a, widths[w]);
            kern_kv_turn(coded[c], b, widths[w]);
            for (int64_t i = 0; i < widths[w]; i++)
                after += (double)a[i] * (double)b[i];
            assert_true(fabs(before - after) < 1e-4);
            kern_kv_turn_back(coded[c], a, widths[w]);
            for (int64_t i = 0; i < widths[w]; i++)
                assert_true(fabsf(a[i] - c0[i]) < 1e-5f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q8r),           cmocka_unit_test(n4r),
        cmocka_unit_test(tq3_0),         cmocka_unit_test(slots_of_a_block),
        cmocka_unit_test(parts_of_keys), cmocka_unit_test(turns),
        cmocka_unit_test(odd_values)};
    return cmocka_run_group_tests(tests, open_vectors, close_vectors);
}
