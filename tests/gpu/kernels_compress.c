/* SPDX-License-Identifier: Apache-2.0 */
/* Compressors on the emulated card, against the processor's operation: every byte of the pages. */
#include "gpu/plain_device.h"

#include "device/gpu/kernels/compress.h"
#include "kern/kern.h"

enum { AT = 64, PAGES = 8 };

struct job {
    enum kern_kv_codec codec;
    int32_t ratio, width, tail, n_pairs;
    bool overlap, hadamard, step;
    int64_t pos0, n;
    uint32_t odd;
};

static const struct job jobs[] = {
    {KERN_KV_FP8, 4, 128, 16, 8, true, false, false, 0, 13, 0},
    {KERN_KV_FP8, 128, 64, 8, 4, false, false, false, 100, 200, 0},
    {KERN_KV_FP4, 4, 128, 0, 32, true, true, true, 30, 9, 0},
    {KERN_KV_F32, 4, 84, 8, 4, true, false, true, 3, 1, 0},
    {KERN_KV_BF16, 8, 40, 0, 20, false, false, true, 6, 30, 300},
    {KERN_KV_FP8, 128, 64, 8, 4, true, false, true, 250, 10, 0},
    {KERN_KV_FP4, 4, 32, 0, 0, true, true, false, 0, 8, 200},
    {KERN_KV_FP8, 4, 256, 64, 8, true, true, false, 5, 9, 0},
    {KERN_KV_F16, 1, 512, 64, 32, false, false, false, 126, 4, 0},
};

/* Two timelines of the same job, the second begins one position later. */
static void one_job(const struct job *j, int order)
{
    const int32_t in_width = j->width * (j->overlap ? 4 : 2);
    const size_t in_bytes = (size_t)in_width * 4;
    const size_t out_bytes = kern_row_bytes(j->codec, j->width, j->tail);
    const size_t in_page = AT + in_bytes * KERN_PAGE;
    const size_t out_page = AT + out_bytes * (size_t)(KERN_PAGE / j->ratio);
    const int64_t stride = in_width + 3, n_rows = 2 * j->n + 1;
    uint8_t *in[2][PAGES], *got[2][PAGES], *want[2][PAGES];
    float *step = numbers_new(n_rows * stride, j->odd), *norm = numbers_new(j->width, 0);
    for (int s = 0; s < 2; s++)
        for (int p = 0; p < PAGES; p++) {
            in[s][p] = NULL;
            if (p * KERN_PAGE < j->pos0 + j->n + 1) {
                in[s][p] = numbers_room(in_page);
                for (size_t i = 0; i < in_page / 4; i++)
                    ((float *)(void *)in[s][p])[i] = numbers_any(j->odd);
            }
            got[s][p] = numbers_room(out_page);
            want[s][p] = numbers_room(out_page);
            memset(got[s][p], 0x5a, out_page);
            memset(want[s][p], 0x5a, out_page);
        }
    double *freq = numbers_room((size_t)(j->n_pairs + 1) * sizeof *freq);
    for (int i = 0; i < j->n_pairs; i++)
        freq[i] = pow(10000.0, -(double)i / j->n_pairs);
    struct device_vector *w = plain_vector(norm, j->width);
    struct device_span ins[2] = {0}, outs[2] = {0};
    struct gpu_span *gpu_in = numbers_room(2 * sizeof *gpu_in);
    struct gpu_span *gpu_out = numbers_room(2 * sizeof *gpu_out);
    int64_t blocks = 0;
    float *cs = numbers_room((size_t)(4 * j->n * (2 * j->n_pairs + 1)) * 4), *at = cs;
    for (int s = 0; s < 2; s++) {
        ins[s] = (struct device_span){.row0 = s * (j->n + 1), .n = j->n, .pos0 = j->pos0 + s,
                                      .page = in[s]};
        outs[s] = ins[s];
        outs[s].page = want[s];
        gpu_in[s] = (struct gpu_span){.page = in[s], .row0 = ins[s].row0, .n = j->n,
                                      .pos0 = ins[s].pos0};
        gpu_out[s] = gpu_in[s];
        gpu_out[s].page = got[s];
        const int64_t n = compress_blocks(ins[s].pos0, j->n, j->ratio);
        for (int64_t i = 0; i < n; i++, at += 2 * j->n_pairs)
            kern_rope_angles(at, (ins[s].pos0 / j->ratio + i) * j->ratio, freq, j->n_pairs);
        blocks += n;
    }
    const struct device_compress c = {
        .in = {.codec = KERN_KV_F32, .width = in_width, .every = 1, .at = AT},
        .out = {.codec = j->codec, .width = j->width, .tail = j->tail, .every = j->ratio, .at = AT},
        .ratio = j->ratio, .overlap = j->overlap, .norm = w, .eps = 1e-6f, .inv_freq = freq,
        .n_pairs = j->n_pairs, .hadamard = j->hadamard,
        .step = plain_rows(j->step ? step : NULL, n_rows, in_width, stride)};
    device_begin(plain_device, NULL);
    device_compress(plain_device, &c, ins, outs, 2);
    assert_true(device_runs(plain_device));
    struct compress_args a = {
        .in = gpu_in, .out = gpu_out, .norm = norm, .cs = cs, .step = j->step ? step : NULL,
        .step_stride = stride, .in_at = AT, .out_at = AT, .in_bytes = (int64_t)in_bytes,
        .out_bytes = (int64_t)out_bytes, .n_blocks = (int32_t)blocks, .ratio = j->ratio,
        .overlap = j->overlap, .width = j->width, .n_pairs = j->n_pairs, .in_every = 1,
        .out_every = j->ratio, .out_codec = (int32_t)j->codec, .out_tail = j->tail, .eps = 1e-6f,
        .turn = j->hadamard ? (float)(1.0 / sqrt((double)j->width)) : 0.0f};
    if (blocks)
        NUMBERS_LAUNCH("compress", compress_grid(&a), a, order);
    for (int s = 0; s < 2; s++)
        for (int p = 0; p < PAGES; p++) {
            if (j->codec == KERN_KV_F32)
                numbers_same("compress", (float *)(void *)got[s][p], (float *)(void *)want[s][p],
                             (int64_t)out_page / 4);
            else
                for (size_t b = 0; b < out_page; b++)
                    if (got[s][p][b] != want[s][p][b])
                        fail_msg("%s, ratio %d: page %d, byte %zu is %02x, %02x is right",
                                 kern_kv_name(j->codec), j->ratio, p, b, got[s][p][b],
                                 want[s][p][b]);
            free(in[s][p]), free(got[s][p]), free(want[s][p]);
        }
    device_vector_free(w);
    free(step), free(norm), free(freq), free(gpu_in), free(gpu_out), free(cs);
}

static void test_compress(void **state)
{
    (void)state;
    for (int order = 0; order < EMU_ORDERS; order++)
        for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
            one_job(&jobs[i], order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_compress)};
    return cmocka_run_group_tests(tests, plain_device_open, plain_device_close);
}
