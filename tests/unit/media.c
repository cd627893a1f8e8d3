/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "media/media.h"
#include <math.h>
#include <string.h>

static struct json_object *sizes;

static int load(void **state)
{
    (void)state;
    char *text;
    size_t n;
    struct err err;
    if (file_slurp("tests/data/vision/sizes.json", 1 << 20, &text, &n, &err) != INGLE_OK)
        return 1;
    const ingle_status s = json_parse(text, n, NULL, &sizes, &err);
    mem_free(text);
    return s != INGLE_OK;
}

static int unload(void **state)
{
    (void)state;
    json_object_put(sizes);
    return 0;
}

static struct json_object *get(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    assert_true(json_object_object_get_ex(o, key, &v));
    return v;
}

static int number(struct json_object *o, const char *key)
{
    return json_object_get_int(get(o, key));
}

static int item(struct json_object *list, size_t i)
{
    return json_object_get_int(json_object_array_get_idx(list, i));
}

/* 760 sizes and counts of the reference. */
static void targets_are_those_of_the_reference(void **state)
{
    (void)state;
    struct json_object *cases = get(sizes, "cases");
    assert_int_equal(json_object_array_length(cases), 760);
    for (size_t i = 0; i < json_object_array_length(cases); i++) {
        struct json_object *c = json_object_array_get_idx(cases, i);
        int tw, th;
        const int n = media_fit(item(c, 1), item(c, 0), item(c, 2), MEDIA_BLOCK, &tw, &th);
        assert_int_equal(th, item(c, 3));
        assert_int_equal(tw, item(c, 4));
        assert_int_equal(n, item(c, 5));
    }
}

/* The extremes of shape, at every budget and with the blocks of the toys: never zero, never more
 * than the budget. */
static void no_shape_breaks_the_budget(void **state)
{
    (void)state;
    static const int side[] = {1, 2, 47, 48, 49, 1000, 4096, 19999, 20000};
    static const int budget[] = {70, 140, 280, 560, 1120}, block[] = {24, 48};
    for (size_t i = 0; i < 9 * 9 * 5 * 2; i++) {
        int tw = 0, th = 0;
        const int b = budget[i % 5], s = block[i / 5 % 2];
        const int n = media_fit(side[i / 10 % 9], side[i / 90], b, s, &tw, &th);
        assert_in_range(n, 1, b);
        assert_true(tw > 0 && th > 0 && tw % s == 0 && th % s == 0 && tw / s * (th / s) == n);
    }
}

static void the_automatic_budget_keeps_all_pixels(void **state)
{
    (void)state;
    assert_int_equal(media_auto_budget(1, 1, 48), 70);
    assert_int_equal(media_auto_budget(420, 384, 48), 70); /* 70 * 2304 = 161280 pixels */
    assert_int_equal(media_auto_budget(420, 385, 48), 140);
    assert_int_equal(media_auto_budget(1920, 1080, 48), 1120);
    assert_int_equal(media_auto_budget(20000, 3200, 48), 1120);
    assert_true(media_is_budget(70) && media_is_budget(1120) && !media_is_budget(71));
    assert_false(media_is_budget(0) || media_is_budget(-1));
}

/* pixel (x, y, c) = (7x + 13y + 50c + (xy >> 4)) & 255 */
static void paint(struct media_picture *p, int w, int h)
{
    *p = (struct media_picture){w, h, mem_alloc((size_t)w * (size_t)h * 3)};
    assert_non_null(p->rgb);
    for (int y = 0, i = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int c = 0; c < 3; c++, i++)
                p->rgb[i] = (uint8_t)(7 * x + 13 * y + 50 * c + ((x * y) >> 4));
}

static void assert_hash(const struct media_picture *p, const char *want)
{
    char hex[SHA256_HEX + 1];
    sha256_hex(p->rgb, (size_t)p->width * (size_t)p->height * 3, hex, SHA256_HEX);
    assert_string_equal(hex, want);
}

static void resized_pictures_have_pillows_bytes(void **state)
{
    (void)state;
    struct json_object *list = get(sizes, "resize");
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *c = json_object_array_get_idx(list, i);
        struct media_picture in, out;
        struct err err;
        int n;
        paint(&in, number(c, "width"), number(c, "height"));
        assert_hash(&in, json_object_get_string(get(c, "source_sha256")));
        assert_int_equal(media_prepare(&in, number(c, "budget"), MEDIA_BLOCK, &out, &n, &err), 0);
        assert_int_equal(out.width, item(get(c, "target"), 0));
        assert_int_equal(out.height, item(get(c, "target"), 1));
        assert_int_equal(n, out.width / 48 * (out.height / 48));
        assert_hash(&out, json_object_get_string(get(c, "resized_sha256")));
        media_picture_release(&in);
        media_picture_release(&out);
    }
}

/* Tall pictures, which Pillow 13 makes shorter first; the last one is just not tall enough. */
static void tall_pictures_have_pillows_bytes(void **state)
{
    (void)state;
    static const struct {
        int w, h, budget;
        const char *hash;
    } tall[] = {
        {540, 1200, 70, "8305f1a176eb831b134453b2d962039c0e5b221db27e4e91b5a792dfd4ec8a79"},
        {1080, 2400, 280, "fa18417aeb8dbb7bf20bb578e8ae1431b0e536a45f2c1501a1e008b9c4fe8968"},
        {300, 2000, 70, "d65d1594dc713ff8c1bc985a28380c58c5888ac2b5e6a1a28023c8130d6f7f29"},
        {700, 1500, 140, "ca9c37a8485e82556241f5fc17be1492042f7177969500f236572d0bd249e601"},
        {640, 1281, 70, "ae8bf6691c3b07ea657af79d4ea3384522ec7ef0dcf8c7f974c1023f21bde964"},
    };
    for (size_t i = 0; i < sizeof tall / sizeof *tall; i++) {
        struct media_picture in, out;
        struct err err;
        paint(&in, tall[i].w, tall[i].h);
        assert_int_equal(media_prepare(&in, tall[i].budget, MEDIA_BLOCK, &out, NULL, &err),
                         INGLE_OK);
        assert_hash(&out, tall[i].hash);
        media_picture_release(&in);
        media_picture_release(&out);
    }
}

static void sounds_have_the_references_tokens(void **state)
{
    (void)state;
    struct json_object *list = get(sizes, "audio");
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *c = json_object_array_get_idx(list, i);
        const size_t n = (size_t)number(c, "samples");
        assert_int_equal(media_mel_frames(n), number(c, "frames"));
        assert_int_equal(media_sound_tokens(n, true), number(c, "encoder_tokens"));
        assert_int_equal(media_sound_tokens(n, false), number(c, "unified_tokens"));
    }
}

/* The window and the bank by their definitions, without a fast transform.  Both are computed in
 * doubles, so they differ by the rounding of the result. */
static void a_spectrogram_is_that_of_its_definition(void **state)
{
    (void)state;
    enum { N = 481, FRAMES = 3 };
    static float x[N], mel[FRAMES][MEDIA_MEL];
    const double pi = acos(-1.0);
    for (int i = 0; i < N; i++)
        x[i] = (float)(0.3 * sin(0.05 * i * i / 10) + 0.1 * sin(i * 1.7));
    assert_int_equal(media_mel_frames(N), FRAMES);
    assert_int_equal(media_mel(x, N, mel[0], NULL), INGLE_OK);
    for (int f = 0; f < FRAMES; f++)
        for (int m = 0; m < MEDIA_MEL; m += 9) {
            double edge[3], sum = 0;
            for (int e = 0; e < 3; e++)
                edge[e] =
                    700 * (pow(10, (m + e) * 2595 * log10(1 + 8000.0 / 700) / 129 / 2595) - 1);
            for (int k = 0; k < 257; k++) {
                double re = 0, im = 0, hz = k * 31.25;
                for (int i = 0; i < 320; i++) {
                    const int at = f * 160 + i - 160;
                    const double w = (double)(float)(0.5 - 0.5 * cos(2 * pi * i / 320));
                    const double v = at < 0 || at >= N ? 0 : (double)x[at] * w;
                    re += v * cos(2 * pi * k * i / 512);
                    im -= v * sin(2 * pi * k * i / 512);
                }
                const double up = (hz - edge[0]) / (edge[1] - edge[0]);
                const double fall = (edge[2] - hz) / (edge[2] - edge[1]);
                sum += hypot(re, im) * fmax(0, fmin(up, fall));
            }
            assert_true(fabs((double)mel[f][m] - log(sum + 0.001)) < 1e-6);
        }
}

/* One pixel, one sample, the budget or the weights: each makes another identity. */
static void identities_tell_everything_apart(void **state)
{
    (void)state;
    uint8_t tower[2][MEDIA_ID_BYTES] = {{1}, {2}}, id[6][MEDIA_ID_BYTES];
    uint8_t rgb[24] = {0};
    float x[4] = {0};
    const struct media_picture p = {4, 2, rgb}, turned = {2, 4, rgb};
    const struct media_sound s = {4, x};
    media_picture_identity(&p, 70, tower[0], id[0]);
    media_picture_identity(&p, 70, tower[0], id[1]);
    assert_memory_equal(id[0], id[1], MEDIA_ID_BYTES);
    media_picture_identity(&p, 140, tower[0], id[1]);
    media_picture_identity(&p, 70, tower[1], id[2]);
    media_picture_identity(&turned, 70, tower[0], id[3]);
    media_sound_identity(&s, tower[0], id[4]);
    rgb[23] = 1;
    media_picture_identity(&p, 70, tower[0], id[5]);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(id[i], id[j], MEDIA_ID_BYTES);
    x[3] = 1e-9f;
    media_sound_identity(&s, tower[0], id[5]);
    assert_memory_not_equal(id[4], id[5], MEDIA_ID_BYTES);
}

static void pixels_and_samples_of_a_host_are_checked(void **state)
{
    (void)state;
    struct err err;
    static float x[MEDIA_MAX_SAMPLES + 1];
    assert_int_equal(media_check_pixels(20000, 3200, "p", &err), INGLE_OK);
    assert_int_equal(media_check_pixels(20001, 1, "p", &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "p: a picture of 20001 x 1 pixels; a side has at most 20000"));
    assert_int_equal(media_check_pixels(20000, 3201, "p", &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "64 megapixels"));
    assert_int_equal(media_check_pixels(0, 1, "p", &err), INGLE_ARG);
    assert_int_equal(media_check_pixels(INT64_MAX, INT64_MAX, "p", &err), INGLE_ARG);
    assert_int_equal(media_check_samples(x, 0, "s", &err), INGLE_ARG);
    assert_int_equal(media_check_samples(x, MEDIA_MAX_SAMPLES, "s", &err), INGLE_OK);
    assert_int_equal(media_check_samples(x, MEDIA_MAX_SAMPLES + 1, "s", &err), INGLE_ARG);
    assert_int_equal(media_check_samples(x, 160, "s", &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "160 samples (16 kHz); the least is 161"));
    x[7] = NAN;
    assert_int_equal(media_check_samples(x, 161, "s", &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "sample 7"));
    x[7] = -40000;
    assert_int_equal(media_check_samples(x, 161, "s", &err), INGLE_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(targets_are_those_of_the_reference),
        cmocka_unit_test(no_shape_breaks_the_budget),
        cmocka_unit_test(the_automatic_budget_keeps_all_pixels),
        cmocka_unit_test(resized_pictures_have_pillows_bytes),
        cmocka_unit_test(tall_pictures_have_pillows_bytes),
        cmocka_unit_test(sounds_have_the_references_tokens),
        cmocka_unit_test(a_spectrogram_is_that_of_its_definition),
        cmocka_unit_test(identities_tell_everything_apart),
        cmocka_unit_test(pixels_and_samples_of_a_host_are_checked),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
