/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vision - the encoders of pictures and sound against the reference's float32 results, stage by
 * stage, from files of each kind.  Bounds: 10 times what float32 differs from float64 there.
 */
#include "golden/golden.h"

#include "base/file.h"
#include "base/mem.h"
#include "media/media.h"
#include "tower/tower.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define PICTURE 3e-6
#define SOUND   6e-6

static const char data[] = "tests/data/vision/";

static void say(void *arg, ingle_report_level level, const char *kind, const char *subject,
                const char *text)
{
    (void)arg;
    if (level <= INGLE_REPORT_WARN)
        print_message("%s '%s': %s\n", kind, subject, text);
}

/* ---- stages ---- */

/* What a run is held against: tensors "PREFIX.NAME" of a file. */
struct stages {
    struct io_file *file;
    const char *prefix;
    double bound, worst;
    int n;
    int32_t *rows; /* [n_rows]: of those that a tower's stages are stored for; NULL: all */
    int64_t n_rows;
    bool permuted; /* columns of patches stand in another order than the golden's */
};

static float *stored(const struct stages *s, const char *name, int64_t *n, int64_t *width)
{
    char full[128];
    struct err e;
    snprintf(full, sizeof full, "%s.%s", s->prefix, name);
    const struct io_tensor *t = io_tensor_find(s->file, full);
    if (!t)
        return NULL;
    *n = (int64_t)(t->n_bytes / 4);
    *width = (int64_t)t->ne[0];
    float *v = mem_calloc((size_t)*n, sizeof *v);
    GOLDEN_OK(io_read(s->file, t, 0, v, t->n_bytes, &e));
    return v;
}

/* The golden row of a row of the stage; -1: it is not stored. */
static int64_t place_of(const struct stages *s, int64_t row, int64_t n_stored)
{
    for (int64_t i = 0; i < s->n_rows && n_stored == s->n_rows; i++)
        if (s->rows[i] == row)
            return i;
    return n_stored == s->n_rows || row >= n_stored ? -1 : row;
}

/* A stage of a tile of rows; of the first convolution there is one channel of rows and bands. */
static void see(void *arg, const char *name, int64_t row, struct rows x)
{
    struct stages *s = arg;
    int64_t n, width;
    float *want = s->permuted && !strcmp(name, "ln1") ? NULL : stored(s, name, &n, &width);
    if (!want)
        return;
    if (!strcmp(name, "conv0"))
        width = 1;
    else
        assert_int_equal(width, x.width);
    double error = 0, size = 0;
    for (int64_t i = 0; i < x.n; i++) {
        const int64_t at = place_of(s, row + i, n / width);
        for (int64_t c = 0; at >= 0 && c < width; c++) {
            const double w = (double)want[at * width + c], d = (double)x.at[i * x.stride + c] - w;
            error += d * d;
            size += w * w;
        }
    }
    const double rel = size > 0 ? sqrt(error / size) : 0;
    if (!(rel <= s->worst))
        s->worst = rel;
    if (!(rel <= s->bound))
        print_message("  %s.%s from row %lld: %.2e\n", s->prefix, name, (long long)row, rel);
    s->n++;
    mem_free(want);
}

static double soft_error(const struct stages *s, const float *soft, int64_t n)
{
    int64_t all, width;
    float *want = stored(s, "soft", &all, &width);
    assert_non_null(want);
    assert_int_equal(all, n);
    const double rel = golden_compare(soft, want, n).rel_rms;
    mem_free(want);
    return rel;
}

/* ---- inputs ---- */

static struct media_data decode(const char *set, const char *file)
{
    char path[160];
    struct err e;
    char *bytes;
    size_t n;
    struct media_data m;
    struct media_decoder *d;
    snprintf(path, sizeof path, "%s%s/%s", data, set, file);
    GOLDEN_OK(file_slurp(path, 1 << 26, &bytes, &n, &e));
    GOLDEN_OK(media_decoder_create(&d, &e));
    GOLDEN_OK(media_decode(d, bytes, n, path, &m, &e));
    media_decoder_free(d);
    mem_free(bytes);
    return m;
}

/* ---- a set ---- */

struct opened {
    struct device *d;
    struct tower *t;
    struct tower_info info;
    struct report_sink sink;
};

static void open_tower(struct opened *o, const char *path, int n_threads)
{
    struct err e;
    o->sink = (struct report_sink){.report = say};
    const struct device_options device = {.n_threads = n_threads, .cpu = ~0u, .sink = &o->sink};
    GOLDEN_OK(device_create(&o->d, &device, &e));
    const struct tower_options options = {.device = o->d, .width = 48, .sink = &o->sink};
    GOLDEN_OK(tower_open(&o->t, path, &options, &e));
    GOLDEN_OK(tower_reserve(o->t, &e));
    tower_info(o->t, &o->info);
}

static void close_tower(struct opened *o)
{
    tower_close(o->t);
    device_free(o->d);
}

static void check_picture(struct opened *o, const char *set, const char *golden, bool gguf, int k)
{
    char prefix[32];
    struct err e;
    struct stages s = {.prefix = prefix, .bound = PICTURE, .permuted = gguf};
    int64_t n_rows, width;
    snprintf(prefix, sizeof prefix, "image%d-resized.png", k);
    struct media_data m = decode(set, prefix);
    const struct media_picture p = m.picture;
    snprintf(prefix, sizeof prefix, "image%d", k);
    GOLDEN_OK(io_open(&s.file, golden, &o->sink, &e));
    s.rows = (int32_t *)(void *)stored(&s, "rows", &n_rows, &width);
    s.n_rows = n_rows;
    const int64_t n = tower_picture_tokens(o->t, p.width, p.height);
    float *soft = mem_calloc((size_t)(n * o->info.width), sizeof *soft);
    tower_tap(o->t, see, &s);
    GOLDEN_OK(tower_picture(o->t, p.rgb, p.width, p.height, soft, NULL, &e));
    tower_tap(o->t, NULL, NULL);
    const double error = soft_error(&s, soft, n * o->info.width);
    print_message("%-14s image%d: soft tokens %.2e, worst of %d stages %.2e\n", set, k, error, s.n,
                  s.worst);
    assert_true(error <= PICTURE && s.worst <= PICTURE);
    media_data_release(&m);
    mem_free(s.rows);
    mem_free(soft);
    io_close(s.file);
}

static void check_sound(struct opened *o, const char *set, const char *golden, int k)
{
    char prefix[32];
    struct err e;
    struct stages s = {.prefix = prefix, .bound = SOUND};
    snprintf(prefix, sizeof prefix, "s%d.wav", k);
    struct media_data m = decode(set, prefix);
    const int64_t n_samples = (int64_t)m.sound.n;
    snprintf(prefix, sizeof prefix, "audio%d", k);
    GOLDEN_OK(io_open(&s.file, golden, &o->sink, &e));
    const int64_t n = tower_sound_tokens(o->t, n_samples);
    float *soft = mem_calloc((size_t)(n * o->info.width), sizeof *soft);
    tower_tap(o->t, see, &s);
    GOLDEN_OK(tower_sound(o->t, m.sound.samples, n_samples, soft, NULL, &e));
    tower_tap(o->t, NULL, NULL);
    const double error = soft_error(&s, soft, n * o->info.width);
    print_message("%-14s audio%d: soft tokens %.2e, worst of %d stages %.2e\n", set, k, error, s.n,
                  s.worst);
    assert_true(error <= SOUND && s.worst <= SOUND);
    media_data_release(&m);
    mem_free(soft);
    io_close(s.file);
}

/* file: of the folder, or of that of the quantised one; golden: the same. */
static void check(const char *set, const char *file, const char *golden)
{
    char path[160], ref[160];
    struct opened o;
    snprintf(path, sizeof path, "%s%s", data, file);
    snprintf(ref, sizeof ref, "%s%s", data, golden);
    open_tower(&o, path, 2);
    for (int k = 0; k < 2 && o.info.pictures; k++)
        check_picture(&o, set, ref, strstr(file, ".gguf") != NULL, k);
    for (int k = 0; k < 2 && o.info.sound; k++)
        check_sound(&o, set, ref, k);
    close_tower(&o);
}

#define CASE(id, set, file, golden)                                                                \
    static void id(void **state)                                                                   \
    {                                                                                              \
        (void)state;                                                                               \
        check(#set, file, golden);                                                                 \
    }

CASE(big_gguf, vision_31b, "vision_31b/mmproj-BF16.gguf", "vision_31b/golden.safetensors")
CASE(big_checkpoint, vision_31b, "vision_31b", "vision_31b/golden.safetensors")
CASE(big_quantised, vision_31b, "vision_31b_q8/mmproj-Q8_0.gguf",
     "vision_31b_q8/golden-Q8_0.safetensors")
CASE(small_gguf, vision_e4b, "vision_e4b/mmproj-BF16.gguf", "vision_e4b/golden.safetensors")
CASE(small_checkpoint, vision_e4b, "vision_e4b", "vision_e4b/golden.safetensors")
CASE(plain_gguf, vision_12b, "vision_12b/mmproj-BF16.gguf", "vision_12b/golden.safetensors")
CASE(plain_checkpoint, vision_12b, "vision_12b", "vision_12b/golden.safetensors")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(big_gguf),         cmocka_unit_test(big_checkpoint),
        cmocka_unit_test(big_quantised),    cmocka_unit_test(small_gguf),
        cmocka_unit_test(small_checkpoint), cmocka_unit_test(plain_gguf),
        cmocka_unit_test(plain_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
