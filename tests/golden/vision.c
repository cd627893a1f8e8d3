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
#include <unistd.h>

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
    const ingle_status st = media_decode(d, bytes, n, path, &m, &e);
    media_decoder_free(d);
    mem_free(bytes);
    if (st == INGLE_UNSUP)
        skip(); /* a build without the library of this format */
    GOLDEN_OK(st);
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
CASE(small_quantised, vision_e4b, "vision_e4b_q8/mmproj-Q8_0.gguf",
     "vision_e4b_q8/golden-Q8_0.safetensors")
CASE(plain_gguf, vision_12b, "vision_12b/mmproj-BF16.gguf", "vision_12b/golden.safetensors")
CASE(plain_checkpoint, vision_12b, "vision_12b", "vision_12b/golden.safetensors")

/* A projector file whose BF16 matrices have another type. */
static void retype(const char *from, const char *to, uint32_t type)
{
    struct err e;
    struct io_gguf *w;
    struct io_file *f;
    GOLDEN_OK(io_open(&f, from, NULL, &e));
    GOLDEN_OK(io_gguf_create(&w, to, &e));
    io_gguf_output(w, OUTPUT_MODEL, NULL, true);
    for (size_t i = 0; i < io_meta_count(io_metadata(f)); i++)
        GOLDEN_OK(io_gguf_value(w, io_meta_at(io_metadata(f), i), &e));
    for (size_t i = 0; i < io_n_tensors(f); i++) {
        const struct io_tensor *t = io_tensor_at(f, i);
        GOLDEN_OK(io_gguf_tensor(w, t->name, t->type == QUANT_BF16 ? type : t->type, t->n_dims,
                                 t->ne, &e));
    }
    GOLDEN_OK(io_gguf_begin(w, &e));
    for (size_t i = 0; i < io_n_tensors(f); i++) {
        const struct io_tensor *t = io_tensor_at(f, i);
        const uint32_t to_type = t->type == QUANT_BF16 ? type : t->type;
        uint64_t n = 1, n_bytes = 0;
        for (uint32_t k = 0; k < t->n_dims; k++)
            n *= t->ne[k];
        assert_true(quant_bytes(to_type, n, 1, &n_bytes));
        uint8_t *in = mem_alloc((size_t)t->n_bytes), *out = mem_alloc((size_t)n_bytes);
        float *v = mem_calloc((size_t)n, sizeof *v);
        GOLDEN_OK(io_read(f, t, 0, in, (size_t)t->n_bytes, &e));
        quant_decode(t->type, in, v, (size_t)n);
        assert_true(quant_encode(to_type, v, out, (size_t)n));
        GOLDEN_OK(io_gguf_write(w, i, 0, out, (size_t)n_bytes, &e));
        mem_free(in);
        mem_free(out);
        mem_free(v);
    }
    GOLDEN_OK(io_gguf_finish(w, &e));
    io_close(f);
}

/* F32 and F16 files of the same values against the same numbers. */
static void other_types(void **state)
{
    static const char *const set[] = {"vision_31b", "vision_e4b", "vision_12b"};
    char from[160], to[64], golden[160];
    (void)state;
    snprintf(to, sizeof to, "vision-%ld.gguf", (long)getpid());
    for (int i = 0; i < 6; i++) {
        const char *name = set[i / 2];
        struct opened o;
        snprintf(from, sizeof from, "%s%s/mmproj-BF16.gguf", data, name);
        snprintf(golden, sizeof golden, "%s%s/golden.safetensors", data, name);
        retype(from, to, i % 2 ? QUANT_F16 : QUANT_F32);
        open_tower(&o, to, 2);
        check_picture(&o, name, golden, true, 1);
        if (o.info.sound)
            check_sound(&o, name, golden, 1);
        close_tower(&o);
        (void)remove(to);
    }
}

/* ---- what results do not depend on ---- */

static const char big[] = "tests/data/vision/vision_31b/mmproj-BF16.gguf",
                  small[] = "tests/data/vision/vision_e4b/mmproj-BF16.gguf",
                  plain[] = "tests/data/vision/vision_12b/mmproj-BF16.gguf";

static float *run_picture(struct tower *t, const struct media_picture *p,
                          const struct tower_run *run, int64_t *n)
{
    struct err e;
    struct tower_info info;
    tower_info(t, &info);
    *n = tower_picture_tokens(t, p->width, p->height) * info.width;
    float *soft = mem_calloc((size_t)*n, sizeof *soft);
    GOLDEN_OK(tower_picture(t, p->rgb, p->width, p->height, soft, run, &e));
    return soft;
}

static void threads_tiles_and_kernels(void **state)
{
    static const struct {
        int threads;
        uint32_t cpu;
        int64_t tile;
    } ways[] = {{1, ~0u, 0}, {3, ~0u, 256}, {2, CPU_AVX2, 1024}, {1, 0, 256}};
    static const char *const files[] = {small, "tests/data/vision/vision_e4b_q8/mmproj-Q8_0.gguf"};
    struct media_data m = decode("vision_e4b", "image0-resized.png"),
                      sound = decode("vision_e4b", "s0.wav");
    (void)state;
    for (int f = 0; f < 2; f++) {
        float *want = NULL, *heard_want = NULL;
        int64_t n = 0;
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            struct err e;
            struct device *d;
            struct tower *t;
            const struct device_options device = {.n_threads = ways[i].threads, .cpu = ways[i].cpu};
            GOLDEN_OK(device_create(&d, &device, &e));
            const struct tower_options o = {.device = d, .tile = ways[i].tile};
            GOLDEN_OK(tower_open(&t, files[f], &o, &e));
            GOLDEN_OK(tower_reserve(t, &e));
            float *soft = run_picture(t, &m.picture, NULL, &n);
            const int64_t n_heard = tower_sound_tokens(t, (int64_t)sound.sound.n) * 48;
            float *heard = mem_calloc((size_t)n_heard, sizeof *heard);
            GOLDEN_OK(tower_sound(t, sound.sound.samples, (int64_t)sound.sound.n, heard, NULL, &e));
            if (want) {
                assert_memory_equal(soft, want, (size_t)n * sizeof *soft);
                assert_memory_equal(heard, heard_want, (size_t)n_heard * sizeof *heard);
            }
            mem_free(want);
            mem_free(heard_want);
            want = soft;
            heard_want = heard;
            tower_close(t);
            device_free(d);
        }
        mem_free(want);
        mem_free(heard_want);
    }
    media_data_release(&m);
    media_data_release(&sound);
}

/* ---- steps between ---- */

struct between {
    struct tower *t;
    const struct media_picture *p;
    int n, stop; /* stop: at that call */
    double done;
    float *inner; /* what another run gave meanwhile */
};

static int step(void *arg, double done)
{
    struct between *b = arg;
    int64_t n;
    assert_true(done > b->done && done <= 1);
    b->done = done;
    if (++b->n == 5 && b->p)
        b->inner = run_picture(b->t, b->p, NULL, &n);
    return b->n == b->stop;
}

static void others_run_between(void **state)
{
    struct opened o;
    struct err e;
    int64_t n;
    (void)state;
    open_tower(&o, big, 2);
    GOLDEN_OK(tower_reserve(o.t, &e)); /* room for two */
    struct media_data m = decode("vision_31b", "image1-resized.png");
    float *want = run_picture(o.t, &m.picture, NULL, &n);
    struct between b = {.t = o.t, .p = &m.picture};
    float *soft = run_picture(o.t, &m.picture, &(struct tower_run){.step = step, .arg = &b}, &n);
    assert_true(b.n >= 18 && b.done >= 1);
    assert_memory_equal(soft, want, (size_t)n * sizeof *soft);
    assert_memory_equal(b.inner, want, (size_t)n * sizeof *soft);
    for (int stop = 1; stop < 18; stop += 5) {
        struct between c = {.stop = stop};
        assert_int_equal(tower_picture(o.t, m.picture.rgb, m.picture.width, m.picture.height, soft,
                                       &(struct tower_run){.step = step, .arg = &c}, &e),
                         INGLE_CANCEL);
        assert_int_equal(c.n, stop);
    }
    atomic_bool cancel;
    atomic_init(&cancel, true);
    assert_int_equal(tower_picture(o.t, m.picture.rgb, m.picture.width, m.picture.height, soft,
                                   &(struct tower_run){.cancel = &cancel}, &e),
                     INGLE_CANCEL);
    mem_free(b.inner);
    mem_free(soft);
    mem_free(want);
    media_data_release(&m);
    close_tower(&o);
}

/* ---- files that are refused ---- */

static char *slurp(const char *path, size_t *n)
{
    struct err e;
    char *bytes;
    GOLDEN_OK(file_slurp(path, 1 << 24, &bytes, n, &e));
    return bytes;
}

/* Where `text` stands in the file, which it does. */
static char *find_text(char *bytes, size_t n, const char *text)
{
    const size_t k = strlen(text);
    for (size_t i = 0; i + k <= n; i++)
        if (!memcmp(bytes + i, text, k))
            return bytes + i;
    fail_msg("'%s' is not in the file", text);
    return NULL;
}

/* The file with `from` written over by `to` (of one length; "=": the number of that key becomes
 * 4), and cut; the error has all parts. */
static void refused(const char *path, const char *from, const char *to, size_t cut, int64_t width,
                    const char *const parts[3])
{
    struct err e = {0};
    struct device *d;
    struct io_file *file;
    struct tower *t;
    size_t n;
    char *bytes = slurp(path, &n);
    const uint32_t four = 4;
    if (from && *to == '=')
        memcpy(find_text(bytes, n, from) + strlen(from) + 4, &four, sizeof four);
    else if (from)
        memcpy(find_text(bytes, n, from), to, strlen(to));
    GOLDEN_OK(device_create(&d, &(struct device_options){.n_threads = 1, .cpu = CPU_AVX2}, &e));
    const struct tower_options o = {.device = d, .width = width, .model = "language.gguf"};
    ingle_status s = io_open_memory(&file, "projector.gguf", bytes, n - cut, NULL, &e);
    const bool opened = !s;
    if (!s)
        s = tower_open_file(&t, file, &o, &e);
    assert_int_not_equal(s, INGLE_OK);
    for (int i = 0; i < 3 && parts[i]; i++)
        if (!strstr(e.msg, parts[i]))
            fail_msg("no '%s' in: %s", parts[i], e.msg);
    if (opened)
        io_close(file);
    mem_free(bytes);
    device_free(d);
}

#define PARTS(...)                                                                                 \
    (const char *const[3])                                                                         \
    {                                                                                              \
        "projector.gguf", __VA_ARGS__                                                              \
    }

static void bad_files(void **state)
{
    (void)state;
    refused(big, NULL, NULL, 0, 64, PARTS("clip.vision.projection_dim", "48"));
    refused(plain, NULL, NULL, 0, 640, PARTS("640", "language.gguf"));
    refused(big, "gemma4v", "gemma3v", 0, 48, PARTS("gemma3v", "gemma4uv"));
    refused(small, "gemma4a", "ultravx", 0, 48, PARTS("ultravx", "gemma4ua"));
    refused(big, "v.blk.1.ffn_down", "v.blk.1.ffn_dwon", 0, 48, PARTS("v.blk.1.ffn_down.weight"));
    refused(big, "v.patch_embd", "v.patch_embx", 0, 48, PARTS("v.patch_embd.weight"));
    refused(big, "v.position_e", "v.position_x", 0, 48, PARTS("v.position_embd.weight"));
    refused(big, "v.std_bias", "v.std_bixs", 0, 48, PARTS("v.std_bias"));
    refused(small, "a.blk.0.conv_dw", "a.blk.0.conv_dx", 0, 48, PARTS("a.blk.0.conv_dw.weight"));
    refused(small, "a.conv1d.1.norm", "a.conv1d.2.norm", 0, 48, PARTS("a.conv1d.1.norm.weight"));
    refused(plain, "v.patch_norm.2.bias", "v.patch_norm.2.bixs", 0, 48,
            PARTS("v.patch_norm.2.bias"));
    refused(plain, "mm.a.input", "mm.b.input", 0, 48, PARTS("mm.a.input_projection.weight"));
    refused(big, "clip.has_vision_encoder", "clip.had_vision_encoder", 0, 48,
            PARTS("clip.has_vision_encoder"));
    refused(big, "clip.vision.block_count", "=", 0, 48, PARTS("v.blk.3.", "missing"));
    refused(big, "clip.vision.feed_forward_length", "=", 0, 48,
            PARTS("v.blk.0.ffn_gate.weight", "48 x 68"));
    refused(big, "clip.vision.patch_size", "=", 0, 48, PARTS("v.patch_embd.weight", "48"));
    refused(small, "clip.audio.attention.head_count", "=", 0, 64, PARTS("projection_dim", "64"));
    refused(big, "clip.vision.patch_size", "clip.vision.patch_sixe", 0, 48,
            PARTS("clip.vision.patch_size"));
    refused(small, "v.blk.1.attn_out.output_max", "v.blk.7.attn_out.output_max", 0, 48,
            PARTS("v.blk.7.attn_out.output_max", "'clip.vision.block_count' is 2"));
    refused(small, "a.blk.1.attn_q.input_max", "a.blk.2.attn_q.input_max", 0, 48,
            PARTS("a.blk.2.attn_q.input_max", "'clip.audio.block_count' is 2"));
    refused(big, "v.blk.1.ln2.weight", "v.blk.1.ln1.weight", 0, 48,
            PARTS("v.blk.1.ln1.weight", "twice"));
    refused("tests/data/vision/vision_12b/model-BF16.gguf", NULL, NULL, 0, 48,
            PARTS("general.architecture", "gemma4"));
    refused(big, NULL, NULL, 500, 48, PARTS("bytes"));
    refused(big, NULL, NULL, 300000, 48, PARTS(NULL));
}

/* Every projector beside every size: NULL, or what the error says of it. */
static void hosts(void **state)
{
    static const char bounds[] = "v.blk.0.", std[] = "v.std_scale", type[] = "gemma4uv",
                      hears[] = "clip.has_audio_encoder", nano[] = "assets/mmproj-nano-gemma4.gguf";
    static const char *const file[] = {small, plain, big, nano};
    static const struct {
        struct tower_host host;
        const char *said[4];
    } all[] = {
        {{"E2B", true, false}, {NULL, type, std, NULL}},
        {{"E4B", true, false}, {NULL, type, std, NULL}},
        {{"12B", false, false}, {type, NULL, type, type}},
        {{"26B-A4B", false, true}, {hears, type, NULL, hears}},
        {{"31B", false, false}, {hears, type, NULL, hears}},
        {{"", true, false}, {NULL, type, std, NULL}},
        {{"", false, true}, {hears, type, NULL, hears}},
        {{"", false, false}, {bounds, NULL, NULL, NULL}},
        {{"another", false, false}, {bounds, NULL, NULL, NULL}},
    };
    struct device *d;
    struct err e;
    (void)state;
    GOLDEN_OK(device_create(&d, &(struct device_options){.n_threads = 1, .cpu = CPU_AVX2}, &e));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int k = 0; k < 4; k++) {
            struct tower *t = NULL;
            const struct tower_options o = {
                .device = d, .host = &all[i].host, .model = "language.gguf", .check = true};
            const ingle_status s = tower_open(&t, file[k], &o, &e);
            tower_close(t);
            if (s ? !all[i].said[k] || !strstr(e.msg, all[i].said[k]) ||
                        !strstr(e.msg, "language.gguf") || !strstr(e.msg, file[k])
                  : all[i].said[k] != NULL)
                fail_msg("%s for '%s': %s", file[k], all[i].host.size, s ? e.msg : "accepted");
        }
    device_free(d);
}

static void bad_pictures(void **state)
{
    struct opened o;
    struct err e = {0};
    float soft[48];
    unsigned char rgb[48 * 48 * 3] = {0};
    (void)state;
    open_tower(&o, big, 1);
    assert_int_equal(o.info.side, 48);
    assert_int_equal(tower_picture(o.t, rgb, 47, 48, soft, NULL, &e), INGLE_ARG);
    assert_non_null(strstr(e.msg, "47 x 48"));
    assert_int_equal(tower_picture(o.t, rgb, 48, 0, soft, NULL, &e), INGLE_ARG);
    assert_int_equal(tower_picture(o.t, rgb, 48 * 25, 48, soft, NULL, &e), INGLE_LIMIT);
    assert_non_null(strstr(e.msg, "1152")); /* 72 places */
    assert_int_equal(tower_sound(o.t, soft, 48, soft, NULL, &e), INGLE_UNSUP);
    assert_non_null(strstr(e.msg, "sound"));
    assert_int_equal(tower_sound_tokens(o.t, 16000), 0);
    GOLDEN_OK(tower_picture(o.t, rgb, 48, 48, soft, NULL, &e));
    close_tower(&o);
    open_tower(&o, small, 1);
    assert_int_equal(tower_sound(o.t, soft, 160, soft, NULL, &e), INGLE_ARG);
    assert_int_equal(tower_sound(o.t, soft, 480001, soft, NULL, &e), INGLE_LIMIT);
    close_tower(&o);
}

/* Another weight is another identity, also of a bound and of a table; the same file is the same. */
static void digests(void **state)
{
    static const char *const where[] = {NULL, NULL, "attn_q", "table", "bound"};
    uint8_t digest[5][TOWER_DIGEST];
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct err e;
        struct device *d;
        struct io_file *file;
        struct tower *t;
        size_t n;
        char *bytes = slurp(small, &n);
        GOLDEN_OK(device_create(&d, &(struct device_options){.n_threads = 1, .cpu = CPU_AVX2}, &e));
        GOLDEN_OK(io_open_memory(&file, "x", bytes, n, NULL, &e));
        const char *const name = i == 2   ? "v.blk.1.attn_q.weight"
                                 : i == 3 ? "v.position_embd.weight"
                                 : i == 4 ? "a.blk.1.attn_q.output_max"
                                          : NULL;
        if (name)
            bytes[io_tensor_find(file, name)->offset] ^= 1;
        GOLDEN_OK(tower_open_file(&t, file, &(struct tower_options){.device = d}, &e));
        memcpy(digest[i], tower_digest(t), TOWER_DIGEST);
        tower_close(t);
        io_close(file);
        mem_free(bytes);
        device_free(d);
        for (int k = 0; k < i; k++)
            if ((memcmp(digest[i], digest[k], TOWER_DIGEST) == 0) != (!where[i] && !where[k]))
                fail_msg("digests %d and %d", i, k);
    }
}

/* ---- encoders in a model's own file ---- */

/* All of one file and then all of another, as one GGUF; keys of the second but general.*: with
 * `own` its block counts and so on stand under "gemma4.", and no other. */
static void join_files(const char *to, const char *const from[2], bool own)
{
    struct err e;
    struct io_gguf *w;
    struct io_file *f[2];
    size_t n = 0;
    GOLDEN_OK(io_gguf_create(&w, to, &e));
    io_gguf_output(w, OUTPUT_MODEL, NULL, true);
    for (int k = 0; k < 2; k++) {
        GOLDEN_OK(io_open(&f[k], from[k], NULL, &e));
        const struct io_meta *m = io_metadata(f[k]);
        for (size_t i = 0; i < io_meta_count(m); i++) {
            struct io_value v = *io_meta_at(m, i);
            char key[96];
            if (k && (!strncmp(v.key, "general.", 8) || (own && v.kind != IO_U64)))
                continue;
            snprintf(key, sizeof key, "%s%s", k && own ? "gemma4" : "", v.key + (k && own ? 4 : 0));
            v.key = key;
            GOLDEN_OK(io_gguf_value(w, &v, &e));
        }
        for (size_t i = 0; i < io_n_tensors(f[k]); i++) {
            const struct io_tensor *t = io_tensor_at(f[k], i);
            GOLDEN_OK(io_gguf_tensor(w, t->name, t->type, t->n_dims, t->ne, &e));
        }
    }
    GOLDEN_OK(io_gguf_begin(w, &e));
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < io_n_tensors(f[k]); i++) {
            const struct io_tensor *t = io_tensor_at(f[k], i);
            void *bytes = mem_alloc((size_t)t->n_bytes);
            GOLDEN_OK(io_read(f[k], t, 0, bytes, (size_t)t->n_bytes, &e));
            GOLDEN_OK(io_gguf_write(w, n++, 0, bytes, (size_t)t->n_bytes, &e));
            mem_free(bytes);
        }
        io_close(f[k]);
    }
    GOLDEN_OK(io_gguf_finish(w, &e));
}

/* Who reads the experts of a model, here or elsewhere, and who plans its memory, sees what it saw
 * without encoders. */
static void beside_a_model(void **state)
{
    static const char model[] = "tests/data/goldens/gemma4_moe/model-F32.gguf";
    struct media_data m = decode("vision_e4b", "image1-resized.png");
    struct golden_model without;
    struct opened alone;
    char path[64];
    int64_t n, n_same;
    struct err e;
    uint64_t mark[2];
    (void)state;
    golden_open(&without, model, &(struct golden_options){.n_threads = 1});
    GOLDEN_OK(model_experts_mark(without.model, &mark[0], &e));
    open_tower(&alone, small, 1);
    float *want = run_picture(alone.t, &m.picture, NULL, &n);
    snprintf(path, sizeof path, "vision-joined-%ld.gguf", (long)getpid());
    for (int own = 0; own < 2; own++) {
        struct golden_model with;
        struct tower *t;
        join_files(path, (const char *const[2]){model, small}, own);
        golden_open(&with, path, &(struct golden_options){.n_threads = 1});
        assert_int_equal(model_bytes(with.model), model_bytes(without.model));
        assert_int_equal(model_n_experts(with.model), model_n_experts(without.model));
        assert_int_equal(model_expert_bytes(with.model), model_expert_bytes(without.model));
        GOLDEN_OK(model_experts_mark(with.model, &mark[1], &e));
        assert_true(mark[0] == mark[1]);
        for (size_t i = 0; i < model_n_names(with.model); i++) {
            const struct io_tensor *tensor;
            bool bound;
            const char *name = model_name_at(with.model, i, &tensor, &bound);
            assert_true(bound != (!strncmp(name, "v.", 2) || !strncmp(name, "a.", 2) ||
                                  !strncmp(name, "mm.", 3)));
        }
        const struct tower_options o = {.device = alone.d};
        GOLDEN_OK(tower_open(&t, path, &o, &e));
        float *soft = run_picture(t, &m.picture, NULL, &n_same);
        assert_int_equal(n, n_same);
        assert_memory_equal(soft, want, (size_t)n * sizeof *soft);
        mem_free(soft);
        tower_close(t);
        golden_close(&with);
        (void)remove(path);
    }
    mem_free(want);
    close_tower(&alone);
    golden_close(&without);
    media_data_release(&m);
}

/* The encoders of the built-in model: another picture, other soft tokens, by a good part. */
static void built_in(void **state)
{
    struct device *d;
    struct tower *t;
    struct tower_info info;
    struct err e;
    (void)state;
    GOLDEN_OK(device_create(&d, &(struct device_options){.n_threads = 2, .cpu = ~0u}, &e));
    GOLDEN_OK(tower_open(&t, "assets/mmproj-nano-gemma4.gguf",
                         &(struct tower_options){.device = d, .width = 256}, &e));
    GOLDEN_OK(tower_reserve(t, &e));
    tower_info(t, &info);
    assert_true(info.side == 48 && info.pictures && info.sound && info.most_blocks == 1120);
    unsigned char *rgb = mem_zalloc(96 * 96 * 3);
    float *soft[3];
    int64_t n = 0;
    for (int i = 0; i < 3; i++) {
        const struct media_picture p = {96, 96, rgb};
        for (int k = 0; k < 96 * 96; k++)
            rgb[3 * k + i] = (unsigned char)(i == 2 && k % 96 > 40 ? 0 : 255);
        soft[i] = run_picture(t, &p, NULL, &n);
        for (int k = 0; k < i; k++)
            assert_true(golden_compare(soft[i], soft[k], n).rel_rms > 0.2);
    }
    for (int i = 0; i < 3; i++)
        mem_free(soft[i]);
    mem_free(rgb);
    tower_close(t);
    device_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(big_gguf),
        cmocka_unit_test(big_checkpoint),
        cmocka_unit_test(big_quantised),
        cmocka_unit_test(small_gguf),
        cmocka_unit_test(other_types),
        cmocka_unit_test(small_checkpoint),
        cmocka_unit_test(small_quantised),
        cmocka_unit_test(plain_gguf),
        cmocka_unit_test(plain_checkpoint),
        cmocka_unit_test(threads_tiles_and_kernels),
        cmocka_unit_test(others_run_between),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(hosts),
        cmocka_unit_test(bad_pictures),
        cmocka_unit_test(digests),
        cmocka_unit_test(beside_a_model),
        cmocka_unit_test(built_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
