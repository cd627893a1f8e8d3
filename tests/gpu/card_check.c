/* SPDX-License-Identifier: Apache-2.0 */
/*
 * card_check [--speed | --small] [--hashes] - opens the first card and runs every kernel beside the
 * processor, as the self-test does; then, with --speed, a few times.  --hashes: of what each kernel
 * has left in the test's memory, for other machines.  scripts/gpu_card.py runs it on a machine with
 * a card, a test on the emulated one.
 */
#include "base/clock.h"
#include "device/card.h"
#include "device/gpu/card.h"
#include "device/gpu/memory.h"
#include "device/gpu/kernel.h"
#include "device/gpu/self.h"
#include <stdio.h>
#include <string.h>

static void show(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
{
    (void)arg;
    (void)level;
    printf("%s '%s': %s\n", kind, subject, text);
}

/* The least compute capability of a module's cards. */
static int least_of(const char *module)
{
    static const struct { const char *name; int least; } modules[] = {
#define GPU_MODULE(name, least) {#name, least},
#include "device/gpu/kernels/modules.inc"
#undef GPU_MODULE
    };
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (!strcmp(modules[i].name, module))
            return modules[i].least;
    return 0;
}

/* A NaN is one value, wherever four or two bytes are one. */
static uint32_t one_nan(uint32_t v)
{
    if ((v & 0x7fffffff) > 0x7f800000)
        return 0x7fc00000;
    for (int i = 0; i < 32; i += 16)
        if ((v >> i & 0x7fff) > 0x7c00)
            v = (v & ~(UINT32_C(0xffff) << i)) | UINT32_C(0x7e00) << i;
    return v;
}

/* Of the last test's memory; an address in it is an offset. */
static uint64_t hash_of(const struct device_gpu *g)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; g->self_back && i < g->self_used; i += sizeof(uint64_t)) {
        uint64_t at;
        uint32_t v[2];
        memcpy(&at, g->self_back + i, sizeof at);
        at -= at - (uintptr_t)g->self_card < GPU_SELF_BYTES ? (uintptr_t)g->self_card : 0;
        memcpy(v, &at, sizeof v);
        for (int k = 0; k < 2; k++)
            h = (h ^ one_nan(v[k])) * 0x100000001b3u;
    }
    return h;
}

static void forget(const struct device_gpu *g)
{
    if (g->self_host)
        memset(g->self_host, 0, GPU_SELF_BYTES);
    if (g->self_back)
        memset(g->self_back, 0, GPU_SELF_BYTES);
}

static int check(struct device *d, bool hashes)
{
    static const struct { const char *name, *module; } kernels[] = {
#define GPU_KERNEL(name, args, threads, blocks, shared, registers, module) {#name, #module},
#include "device/gpu/kernels/kernels.inc"
#undef GPU_KERNEL
    };
    const struct device_card_info *card = device_card(d);
    int n_same = 0, n_wrong = 0, n_loaded = 0, n_other = 0;
    for (int k = 0; k < GPU_KERNELS; k++) {
        const bool tested = device_gpu_self_tests(kernels[k].module);
        forget(d->gpu);
        d->gpu->kernel_tried[k] = false; /* the first one was looked at when it was opened */
        if (least_of(kernels[k].module) > 10 * card->major + card->minor) {
            n_other++;
        } else if (!device_gpu_has(d, (enum gpu_kernel)k)) {
            printf("%-24s FAILS\n", kernels[k].name);
            n_wrong++;
        } else if (tested) {
            n_same++;
            if (hashes)
                printf("hash kernel %s %016llx\n", kernels[k].name,
                       (unsigned long long)hash_of(d->gpu));
        } else {
            n_loaded++;
        }
    }
    printf("kernels: %d have the processor's bits, %d are loaded and not compared, %d are of newer "
           "cards, %d fail\n",
           n_same, n_loaded, n_other, n_wrong);
    return n_wrong;
}

static double seconds(struct device *d, enum gpu_kernel k, struct gpu_grid grid, const void *args,
                      size_t n_args, size_t shared, int n)
{
    (void)device_gpu_launch(d, k, grid, args, n_args, shared);
    (void)device_gpu_wait(d);
    const uint64_t begin = clock_now();
    for (int i = 0; i < n; i++)
        (void)device_gpu_launch(d, k, grid, args, n_args, shared);
    (void)device_gpu_wait(d);
    return (double)(clock_now() - begin) * 1e-9 / n;
}

/* Products of one row by a matrix of zeros, which takes as long as any. */
static void product_speed(struct device *d, enum gpu_kernel k, uint32_t type, const char *name,
                          int64_t out, int64_t in, int n)
{
    struct kern_matrix w;
    if (kern_matrix_init(&w, type, out, in, NULL))
        return;
    const size_t n_bytes = kern_matrix_bytes(&w);
    const size_t n_act = kern_act_bytes(w.act, 1, in) + (size_t)in * sizeof(float);
    uint8_t *at = device_gpu_take(d, n_bytes), *x = device_gpu_take(d, n_act);
    float *y = device_gpu_take(d, (size_t)out * sizeof *y);
    const struct product_args proto = {.w = at, .panel_bytes = (int64_t)w.panel_bytes,
                                       .stretch_bytes = (int64_t)w.stretch_bytes, .x = x,
                                       .x_row_bytes = 0, .y = y, .y_stride = out,
                                       .out = (int32_t)out, .in = (int32_t)in,
                                       .n_panels = (int32_t)w.n_panels, .n = 1, .n_stack = 1,
                                       .n_bands = (int32_t)gpu_parts(out, PRODUCT_BAND)};
    struct product_args a = proto;
    a.book = product_book(type);
    a.parts = product_parts(in, kern_matrix_slice(&w), 1, a.book);
    if (at && x && y && device_gpu_has(d, k)) {
        const double s = seconds(d, k, product_grid(&a, 1), &a, sizeof a,
                                 (size_t)product_shared(&a, 1), n);
        printf("%-24s %lld x %lld: %.1f us, %.0f GB/s\n", name, (long long)out, (long long)in,
               s * 1e6, (double)n_bytes / s * 1e-9);
    }
    device_gpu_give(d, at, n_bytes);
    device_gpu_give(d, x, n_act);
    device_gpu_give(d, y, (size_t)out * sizeof *y);
}

static void speeds(struct device *d, int64_t out, int64_t in, int n)
{
    float *x = device_gpu_take(d, (size_t)in * sizeof *x);
    const struct row_pair_args a = {x, x, in, in, 1, (int32_t)in, 1.0f};
    if (x && device_gpu_has(d, GPU_K_row_scale))
        printf("%-24s %lld: %.2f us\n", "row_scale", (long long)in,
               seconds(d, GPU_K_row_scale, row_pair_grid(&a), &a, sizeof a, 0, 10 * n) * 1e6);
    device_gpu_give(d, x, (size_t)in * sizeof *x);
    product_speed(d, GPU_K_product_q4_0_1, QUANT_Q4_0, "product_q4_0_1", out, in, n);
    product_speed(d, GPU_K_product_q8_0_1, QUANT_Q8_0, "product_q8_0_1", out, in, n);
    product_speed(d, GPU_K_product_q4_k_1, QUANT_Q4_K, "product_q4_k_1", out, in, n);
    product_speed(d, GPU_K_product_bf16_1, QUANT_BF16, "product_bf16_1", out, in, n);
}

static bool has(int argc, char **argv, const char *option)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], option))
            return true;
    return false;
}

int main(int argc, char **argv)
{
    const bool speed = has(argc, argv, "--speed"), small = has(argc, argv, "--small");
    struct report_sink sink = {show, NULL, NULL};
    const struct device_options o = {.n_threads = 1, .cpu = UINT32_MAX, .sink = &sink};
    struct device *d;
    struct err e = {INGLE_OK, ""};
    if (device_create(&d, &o, &e) || device_card_open(d, 1, 0, &e)) {
        printf("card_check: %s\n", e.msg);
        return 2;
    }
    const struct device_card_info *card = device_card(d);
    if (!card) {
        device_free(d);
        return 2;
    }
    printf("card '%s', driver %d, compute capability %d.%d, %.1f GiB\n", card->name, card->driver,
           card->major, card->minor, (double)card->bytes / (1 << 30));
    const int wrong = check(d, has(argc, argv, "--hashes"));
    if (speed)
        speeds(d, 21504, 5376, 50);
    else if (small)
        speeds(d, 64, 256, 1);
    device_free(d);
    return wrong != 0;
}
