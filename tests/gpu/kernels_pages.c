/* SPDX-License-Identifier: Apache-2.0 */
/* Rows into pages and back on the emulated card, against kern/: every byte of the pages. */
#include "gpu/numbers.h"

#include "device/gpu/kernels/pages.h"
#include "kern/kern.h"
#include "kern/kernels.h"

extern const struct kern_attend_table kern_attend_ref;

enum { PAGES = 4, ROWS = 12, AT = 64 };

/* Two timelines; rows 5 and 6 belong to none, and the page of positions 256 to 383 of the second is
 * not there. */
static void make_spans(struct gpu_span *span, uint8_t **page, uint8_t **other)
{
    memset(span, 0, 2 * sizeof *span);
    span[0] = (struct gpu_span){.page = page, .row0 = 0, .n = 5, .pos0 = 126};
    span[1] = (struct gpu_span){.page = other, .row0 = 7, .n = 5, .pos0 = 253};
}

static void fill_pages(uint8_t **page, size_t n_bytes)
{
    for (int i = 0; i < PAGES; i++) {
        page[i] = NULL;
        if (i != 2) {
            page[i] = numbers_room(n_bytes);
            memset(page[i], 0x5a, n_bytes);
        }
    }
}

static void free_pages(uint8_t **page)
{
    for (int i = 0; i < PAGES; i++)
        free(page[i]);
}

static void same_pages(const char *what, uint8_t **got, uint8_t **want, size_t n_bytes)
{
    for (int i = 0; i < PAGES; i++)
        for (size_t b = 0; got[i] && b < n_bytes; b++)
            if (got[i][b] != want[i][b])
                fail_msg("%s: page %d, byte %zu is %02x, %02x is right", what, i, b, got[i][b],
                         want[i][b]);
}

static void one_append(enum kern_kv_codec kc, enum kern_kv_codec vc, int32_t kw, int32_t vw,
                       int order)
{
    const int32_t heads = 3;
    const size_t kb = kern_kv_block_bytes(kc, true, kw), vb = kern_kv_block_bytes(vc, false, vw);
    const size_t n_bytes = AT + (size_t)heads * (kb + vb);
    uint8_t *got[2][PAGES], *want[2][PAGES];
    for (int i = 0; i < 2; i++) {
        fill_pages(got[i], n_bytes);
        fill_pages(want[i], n_bytes);
    }
    struct gpu_span *span = numbers_room(2 * sizeof *span);
    make_spans(span, got[0], got[1]);
    const int64_t ks = heads * kw + 3, vs = heads * vw + 2;
    float *k = numbers_new(ROWS * ks, 200), *v = numbers_new(ROWS * vs, 200);
    for (int i = 0; i < 32 && i < kw; i++)
        k[i] = i % 2 ? 1e-42f : -0.0f; /* a scale that f16 has as zero */
    for (int s = 0; s < 2; s++)
        for (int64_t i = 0; i < span[s].n; i++)
            for (int h = 0; h < heads; h++) {
                const int64_t pos = span[s].pos0 + i, row = span[s].row0 + i;
                if (pos / KERN_PAGE == 2)
                    continue;
                uint8_t *block = want[s][pos / KERN_PAGE] + AT + (size_t)h * (kb + vb);
                kern_attend_ref.kv_write(kc, true, kw, block, pos % KERN_PAGE,
                                         k + row * ks + h * kw, 1, ks);
                kern_attend_ref.kv_write(vc, false, vw, block + kb, pos % KERN_PAGE,
                                         v + row * vs + h * vw, 1, vs);
            }
    struct pages_kv_append_args a = {
        .span = span, .k = k, .v = v, .k_stride = ks, .v_stride = vs, .at = AT,
        .head_bytes = (int64_t)(kb + vb), .v_at = (int64_t)kb, .n_rows = 10, .n_heads = heads,
        .k_width = kw, .v_width = vw, .k_codec = (int32_t)kc, .v_codec = (int32_t)vc};
    NUMBERS_LAUNCH("pages_kv_append", pages_kv_append_grid(&a), a, order);
    for (int i = 0; i < 2; i++) {
        same_pages(kern_kv_name(kc), got[i], want[i], n_bytes);
        free_pages(got[i]);
        free_pages(want[i]);
    }
    free(k), free(v), free(span);
}

static void test_kv_append(void **state)
{
    (void)state;
    static const int32_t width[] = {32, 64, 96, 512};
    for (int order = 0; order < EMU_ORDERS; order++)
        for (int w = 0; w < 4; w++)
            for (int c = 0; c < KERN_KV_BLOCK_CODECS; c++)
                one_append((enum kern_kv_codec)c, (enum kern_kv_codec)((c + w) % 4), width[w],
                           width[(w + 1) % 4], order);
    one_append(KERN_KV_F16, KERN_KV_F32, 17, 5, EMU_MIXED);
}

static void one_rows(enum kern_kv_codec codec, int32_t width, int32_t tail, int32_t every,
                     int order)
{
    const size_t row_bytes = kern_row_bytes(codec, width, tail);
    const int64_t each = KERN_PAGE / every, stride = width + 3;
    const size_t n_bytes = AT + (size_t)each * row_bytes;
    uint8_t *got[2][PAGES], *want[2][PAGES];
    for (int s = 0; s < 2; s++) {
        fill_pages(got[s], n_bytes);
        fill_pages(want[s], n_bytes);
    }
    struct gpu_span *span = numbers_room(2 * sizeof *span);
    make_spans(span, got[0], got[1]);
    span[0].pos0 = each - 2;
    span[1].pos0 = 2 * each - 2;
    float *x = numbers_new(ROWS * stride, 100), *y = numbers_new(ROWS * stride, 0);
    for (int i = 0; i < width; i++) {
        x[i] = i % 3 ? 0.0f : -0.0f;
        x[stride + i] = i % 64 ? numbers_unit() * 0x1p-140f : 448.0f;
        x[2 * stride + i] = i % 32 ? numbers_unit() * 6.0f : 6.0f; /* between all codes */
    }
    for (int s = 0; s < 2; s++)
        for (int64_t i = 0; i < span[s].n; i++) {
            const int64_t pos = span[s].pos0 + i;
            if (pos / each != 2)
                kern_row_write(codec, width, tail,
                               want[s][pos / each] + AT + (size_t)(pos % each) * row_bytes,
                               x + (span[s].row0 + i) * stride);
        }
    /* Bytes that pad a row are nobody's. */
    struct pages_rows_args a = {.span = span, .x = x, .stride = stride, .at = AT,
                                .row_bytes = (int64_t)row_bytes, .n_rows = 10, .width = width,
                                .tail = tail, .every = every, .codec = (int32_t)codec};
    NUMBERS_LAUNCH("pages_rows_append", pages_rows_grid(&a), a, order);
    for (int s = 0; s < 2; s++)
        same_pages(kern_kv_name(codec), got[s], want[s], n_bytes);
    float *back = numbers_copy(y, (size_t)(ROWS * stride) * 4);
    span[0].pos0 = -2; /* before the beginning */
    for (int s = 0; s < 2; s++)
        for (int64_t i = 0; i < span[s].n; i++) {
            const int64_t pos = span[s].pos0 + i;
            float *to = back + (span[s].row0 + i) * stride;
            memset(to, 0, (size_t)width * 4);
            if (pos >= 0 && pos / each != 2)
                kern_row_read(codec, width, tail,
                              got[s][pos / each] + AT + (size_t)(pos % each) * row_bytes, to);
        }
    a.x = y;
    NUMBERS_LAUNCH("pages_rows_read", pages_rows_grid(&a), a, order);
    numbers_same("rows", y, back, ROWS * stride);
    for (int s = 0; s < 2; s++) {
        free_pages(got[s]);
        free_pages(want[s]);
    }
    free(x), free(y), free(back), free(span);
}

static void test_rows(void **state)
{
    (void)state;
    for (int order = 0; order < EMU_ORDERS; order++)
        for (int32_t every = 1; every < 129; every *= 4) {
            one_rows(KERN_KV_F32, 84, 8, every, order);
            one_rows(KERN_KV_F16, 83, 0, every, order);
            one_rows(KERN_KV_BF16, 512, 64, every, order);
            one_rows(KERN_KV_FP8, 84, 8, every, order);
            one_rows(KERN_KV_FP8, 75, 10, every, order);
            one_rows(KERN_KV_FP8, 576, 64, every, order);
            one_rows(KERN_KV_FP4, 128, 0, every, order);
            one_rows(KERN_KV_FP4, 32, 0, every, order);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_append),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
