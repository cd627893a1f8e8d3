/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast encoders of pictures and sound run here, beside the kernel for many rows of the same
 * type.  Weights are random, shapes are those of published models, with fewer layers.  Prints one
 * JSON object a line; nothing is asserted.  Rates are of processor time, so that others on the
 * machine cost little; "seconds" is time.
 *
 *   bench_tower DIRECTORY [KIND [TYPE [THREADS [TOKENS [LAYERS [LEVEL [fast]]]]]]]
 *
 *   DIRECTORY   for a file of some 100 MB, which is deleted again
 *   KIND        e4b, 31b, 12b, sound;  TYPE: F32, F16, BF16, Q8_0;  TOKENS: soft tokens
 *   LEVEL       of instructions, "avx2"; "": all that there are
 */
#define _POSIX_C_SOURCE 200809L
#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "tower/tower.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 2, H = 2560, PLACES = 1200, PIECE = 1 << 16 };

static void must(ingle_status s, const struct err *e)
{
    if (s == INGLE_OK)
        return;
    fprintf(stderr, "bench_tower: %s\n", e->msg);
    exit(1);
}

/* ---- a file ---- */

struct tensor {
    char name[64];
    uint32_t type;
    uint64_t ne[4];
    uint32_t n_dims;
};
struct list {
    struct tensor t[2048];
    size_t n;
    uint32_t type;
};

static void add(struct list *l, const char *name, uint32_t type, uint64_t in, uint64_t out)
{
    struct tensor *t = &l->t[l->n++];
    uint64_t bytes;
    if (!quant_bytes(type, in, 1, &bytes)) /* rows of 4304 are no blocks */
        type = QUANT_F16;
    *t = (struct tensor){.type = type, .ne = {in, out ? out : 1, 1, 1}, .n_dims = out ? 2 : 1};
    snprintf(t->name, sizeof t->name, "%s", name);
}

static void layer(struct list *l, char letter, int i, const char *name, uint64_t in, uint64_t out)
{
    char full[64];
    snprintf(full, sizeof full, "%c.blk.%d.%s.weight", letter, i, name);
    add(l, full, out ? l->type : QUANT_F32, in, out);
}

static void vision(struct list *l, int layers, uint64_t d, uint64_t ff, uint64_t heads)
{
    static const char *const square[] = {"attn_q", "attn_k", "attn_v", "attn_out"},
                             *const norm[] = {"ln1", "ln2", "attn_post_norm", "ffn_post_norm"};
    add(l, "v.patch_embd.weight", QUANT_F32, 768, d);
    add(l, "v.position_embd.weight", QUANT_F32, d, PLACES);
    l->t[l->n - 1].ne[2] = 2;
    l->t[l->n - 1].n_dims = 3;
    for (int i = 0; i < layers; i++) {
        for (int k = 0; k < 4; k++)
            layer(l, 'v', i, square[k], d, d);
        for (int k = 0; k < 4; k++)
            layer(l, 'v', i, norm[k], d, 0);
        layer(l, 'v', i, "attn_q_norm", d / heads, 0);
        layer(l, 'v', i, "attn_k_norm", d / heads, 0);
        layer(l, 'v', i, "ffn_gate", d, ff);
        layer(l, 'v', i, "ffn_up", d, ff);
        layer(l, 'v', i, "ffn_down", ff, d);
    }
    add(l, "mm.input_projection.weight", l->type, d, H);
}

static void plain(struct list *l, uint64_t d)
{
    static const struct {
        const char *name;
        bool wide;
    } norm[] = {{"1.weight", true}, {"1.bias", true},    {"2.weight", false},
                {"2.bias", false},  {"3.weight", false}, {"3.bias", false}};
    char name[64];
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "v.patch_norm.%s", norm[i].name);
        add(l, name, QUANT_F32, norm[i].wide ? 6912 : d, 0);
    }
    add(l, "v.patch_embd.weight", QUANT_F32, 6912, d);
    add(l, "v.patch_embd.bias", QUANT_F32, d, 0);
    add(l, "v.position_embd.weight", QUANT_F32, d, PLACES);
    l->t[l->n - 1].ne[2] = 2;
    l->t[l->n - 1].n_dims = 3;
    add(l, "mm.input_projection.weight", l->type, d, H);
}

static void conformer(struct list *l, int layers)
{
    static const struct {
        const char *name;
        uint64_t in, out;
    } part[] = {
        {"ffn_up", 1024, 4096},     {"ffn_down", 4096, 1024},     {"ffn_norm", 1024, 0},
        {"ffn_post_norm", 1024, 0}, {"ffn_up_1", 1024, 4096},     {"ffn_down_1", 4096, 1024},
        {"ffn_norm_1", 1024, 0},    {"ffn_post_norm_1", 1024, 0}, {"attn_pre_norm", 1024, 0},
        {"attn_q", 1024, 1024},     {"attn_k", 1024, 1024},       {"attn_v", 1024, 1024},
        {"attn_out", 1024, 1024},   {"attn_k_rel", 1024, 1024},   {"attn_post_norm", 1024, 0},
        {"per_dim_scale", 128, 0},  {"conv_norm", 1024, 0},       {"norm_conv", 1024, 0},
        {"conv_pw1", 1024, 2048},   {"conv_pw2", 1024, 1024},     {"ln2", 1024, 0}};
    add(l, "a.conv1d.0.weight", QUANT_F32, 9, 128);
    add(l, "a.conv1d.0.norm.weight", QUANT_F32, 128, 0);
    add(l, "a.conv1d.1.weight", QUANT_F32, 1152, 32);
    add(l, "a.conv1d.1.norm.weight", QUANT_F32, 32, 0);
    add(l, "a.input_projection.weight", QUANT_F32, 1024, 1024);
    for (int i = 0; i < layers; i++) {
        char name[64];
        for (size_t k = 0; k < sizeof part / sizeof *part; k++)
            layer(l, 'a', i, part[k].name, part[k].in, part[k].out);
        snprintf(name, sizeof name, "a.blk.%d.conv_dw.weight", i);
        add(l, name, QUANT_F32, 5, 1024);
    }
    add(l, "a.pre_encode.out.weight", l->type, 1024, 1536);
    add(l, "a.pre_encode.out.bias", QUANT_F32, 1536, 0);
    add(l, "mm.a.input_projection.weight", l->type, 1536, H);
}

static void keys(struct io_gguf *w, const char *kind, int layers, uint32_t d, uint32_t ff,
                 uint32_t heads)
{
    struct err e;
    char key[64];
    const bool sound = !strcmp(kind, "sound");
    const char *part = sound ? "audio" : "vision", *type = sound                  ? "gemma4a"
                                                           : !strcmp(kind, "12b") ? "gemma4uv"
                                                                                  : "gemma4v";
    must(io_gguf_str(w, "general.architecture", "clip", 4, &e), &e);
    snprintf(key, sizeof key, "clip.has_%s_encoder", part);
    must(io_gguf_bool(w, key, true, &e), &e);
    snprintf(key, sizeof key, "clip.%s.projector_type", part);
    must(io_gguf_str(w, key, type, strlen(type), &e), &e);
    const struct {
        const char *name;
        uint32_t v;
    } number[] = {{"projection_dim", H},           {"embedding_length", d},
                  {"feed_forward_length", ff},     {"block_count", (uint32_t)layers},
                  {"attention.head_count", heads}, {"patch_size", 16}};
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        snprintf(key, sizeof key, "clip.%s.%s", part, number[i].name);
        must(io_gguf_u32(w, key, number[i].v, &e), &e);
    }
}

/* Weights of about 1 / root of the row, and of norms about 1. */
static void fill(struct io_gguf *w, size_t i, const struct tensor *t)
{
    struct err e;
    uint64_t row_bytes;
    const uint64_t n = t->ne[0], rows = t->ne[1] * t->ne[2];
    if (!quant_bytes(t->type, n, 1, &row_bytes))
        exit(1);
    float *x = mem_calloc((size_t)n, sizeof *x);
    uint8_t *to = mem_alloc((size_t)row_bytes);
    uint64_t seed = i * 977 + 1;
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t k = 0; k < n; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const float u = (float)(int32_t)(seed >> 32) * 0x1p-31f;
            x[k] = t->n_dims == 1 ? 1 + 0.1f * u : u * 1.7f / sqrtf((float)n);
        }
        if (!quant_encode(t->type, x, to, (size_t)n))
            exit(1);
        must(io_gguf_write(w, i, r * row_bytes, to, (size_t)row_bytes, &e), &e);
    }
    mem_free(x);
    mem_free(to);
}

static void write_file(const char *path, const char *kind, uint32_t type, int layers)
{
    struct err e;
    struct io_gguf *w;
    struct list *l = mem_zalloc(sizeof *l);
    l->type = type;
    must(io_gguf_create(&w, path, &e), &e);
    if (!strcmp(kind, "e4b")) {
        keys(w, kind, layers, 768, 3072, 12);
        vision(l, layers, 768, 3072, 12);
    } else if (!strcmp(kind, "31b")) {
        keys(w, kind, layers, 1152, 4304, 16);
        vision(l, layers, 1152, 4304, 16);
    } else if (!strcmp(kind, "12b")) {
        keys(w, kind, 0, 3840, 0, 0);
        plain(l, 3840);
    } else {
        keys(w, kind, layers, 1024, 4096, 8);
        conformer(l, layers);
    }
    for (size_t i = 0; i < l->n; i++)
        must(io_gguf_tensor(w, l->t[i].name, l->t[i].type, l->t[i].n_dims, l->t[i].ne, &e), &e);
    must(io_gguf_begin(w, &e), &e);
    for (size_t i = 0; i < l->n; i++)
        fill(w, i, &l->t[i]);
    must(io_gguf_finish(w, &e), &e);
    mem_free(l);
}

/* Seconds of all processors that this process used. */
static double used(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the kernel for many rows ---- */

static double kernel_rate(struct device *d, uint32_t type, int64_t out, int64_t in)
{
    struct err e;
    struct device_matrix *m;
    enum { ROWS = 512 };
    double best = 0;
    must(device_matrix_create_floats(&m, d, type, out, in, 1, &e), &e);
    void *at = mem_big_alloc((size_t)device_matrix_bytes(m));
    memset(at, 0, (size_t)device_matrix_bytes(m));
    device_matrix_place(m, at, 0);
    for (int i = 0; i < 2 * ROUNDS; i++) {
        device_begin(d, NULL);
        struct rows x = device_rows(d, ROWS, in), y = device_rows(d, ROWS, out);
        memset(x.at, 0, (size_t)(x.n * x.stride) * sizeof(float));
        const double start = used();
        for (int k = 0; k < 4; k++)
            device_matmul(d, &(struct device_product){m, 0, x, y, NULL}, 1);
        must(device_status(d, &e), &e);
        const double s = used() - start;
        best = fmax(best, 4.0 * (double)ROWS * (double)in * (double)out / s);
    }
    mem_big_free(at, (size_t)device_matrix_bytes(m));
    device_matrix_free(m);
    return best;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "", *kind = argc > 2 ? argv[2] : "e4b",
               *type_name = argc > 3 ? argv[3] : "BF16";
    const int threads = argc > 4 ? atoi(argv[4]) : 1;
    const int64_t tokens = argc > 5 ? atoi(argv[5]) : 280;
    const int layers = argc > 6 ? atoi(argv[6]) : 2;
    uint32_t type = 0, cpu = UINT32_MAX;
    const bool fast = argc > 8 && !strcmp(argv[8], "fast");
    char path[512];
    struct err e;
    struct device *d;
    struct tower *t;
    struct tower_info info;
    if (!*dir) {
        fprintf(stderr, "usage: bench_tower DIRECTORY [KIND [TYPE [THREADS [TOKENS [LAYERS [LEVEL "
                        "[fast]]]]]]]\n");
        return 2;
    }
    if (argc > 7 && *argv[7] && !cpu_level(argv[7], &cpu)) {
        fprintf(stderr, "there is no level '%s'\n", argv[7]);
        return 2;
    }
    while (type < 256 && (!quant_info(type) || strcmp(quant_info(type)->name, type_name) != 0))
        type++;
    snprintf(path, sizeof path, "%s/bench_tower.%ld.gguf", dir, (long)getpid());
    write_file(path, kind, type, layers);
    const struct device_options o = {
        .n_threads = threads, .cpu = cpu, .numerics = fast ? DEVICE_FAST : DEVICE_EXACT};
    must(device_create(&d, &o, &e), &e);
    const ingle_status s = tower_open(&t, path, &(struct tower_options){.device = d}, &e);
    (void)unlink(path);
    must(s, &e);
    must(tower_reserve(t, &e), &e);
    tower_info(t, &info);
    const bool sound = info.sound;
    const int width = (int)num_min(tokens, 20) * info.side,
              height = (int)(tokens / num_min(tokens, 20)) * info.side;
    const int64_t n = sound ? tokens : tower_picture_tokens(t, width, height),
                  samples = sound ? n * 640 : 0;
    unsigned char *rgb = mem_zalloc((size_t)width * (size_t)height * 3 + 1);
    float *soft = mem_calloc((size_t)(n + 1) * H, sizeof *soft),
          *wave = mem_calloc((size_t)samples + 1, sizeof *wave);
    double best = 1e9, least = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t start = clock_now();
        const double before = used();
        must(sound ? tower_sound(t, wave, samples, soft, NULL, &e)
                   : tower_picture(t, rgb, width, height, soft, NULL, &e),
             &e);
        best = fmin(best, (double)(clock_now() - start) * 1e-9);
        least = fmin(least, used() - before);
    }
    const double work = sound ? tower_sound_work(t, n) : tower_picture_work(t, n),
                 kernel = kernel_rate(d, type, 3072, sound ? 1024 : 768);
    printf("{\"kind\": \"%s\", \"type\": \"%s\", \"threads\": %d, \"tokens\": %lld, "
           "\"layers\": %d, \"seconds\": %.3f, \"cpu_seconds\": %.3f, "
           "\"G_per_s\": %.1f, \"kernel_G_per_s\": %.1f, \"share\": %.2f, "
           "\"weights_MB\": %.1f, \"scratch_MB\": %.1f}\n",
           kind, type_name, threads, (long long)n, layers, best, least, work / least * 1e-9,
           kernel * 1e-9, work / least / kernel, (double)info.weight_bytes * 1e-6,
           (double)info.scratch_bytes * 1e-6);
    tower_close(t);
    device_free(d);
    mem_free(rgb);
    mem_free(soft);
    mem_free(wave);
    return 0;
}
