/* SPDX-License-Identifier: Apache-2.0 */
/* An indexer's choice on the emulated card, against the processor's operation. */
#include "gpu/plain_device.h"

#include "device/gpu/kernels/select.h"
#include "kern/kern.h"

extern const struct kern_latent_table kern_latent_ref;

enum { AT = 64, ROWS = 7 };

struct job {
    enum kern_kv_codec codec;
    int32_t width, tail, heads, every, top_k;
    int64_t pos0;
    uint32_t odd;
    bool flat; /* keys of few values: many ties */
};

static const struct job jobs[] = {
    {KERN_KV_FP4, 128, 0, 8, 4, 40, 1500, 0, false},
    {KERN_KV_FP4, 32, 0, 3, 4, 17, 400, 0, true},
    {KERN_KV_FP4, 64, 0, 64, 1, 64, 300, 400, false},
    {KERN_KV_FP8, 75, 10, 2, 4, 16, 900, 300, false},
    {KERN_KV_F32, 48, 8, 3, 2, 5, 8, 0, false},
    {KERN_KV_F16, 33, 0, 1, 128, 1, 600, 0, true},
    {KERN_KV_BF16, 64, 8, 5, 4, 100, 395, 50, false},
};

static void one_job(const struct job *j, int order)
{
    const int64_t each = KERN_PAGE / j->every, end = j->pos0 + ROWS, keys = end / j->every;
    const int64_t n_pages = keys / each + 1, qs = j->heads * j->width + 3, ws = j->heads + 2;
    const size_t row_bytes = kern_row_bytes(j->codec, j->width, j->tail);
    uint8_t **page = numbers_room((size_t)n_pages * sizeof *page);
    float *row = numbers_room((size_t)j->width * 4);
    for (int64_t p = 0; p < n_pages; p++)
        page[p] = numbers_room(AT + (size_t)each * row_bytes);
    for (int64_t i = 0; i < keys; i++) {
        for (int d = 0; d < j->width; d++)
            row[d] = j->flat ? (float)(i % 3) : numbers_unit();
        if (j->odd && numbers_draw() % j->odd == 0)
            row[0] = NAN;
        if (j->odd && numbers_draw() % j->odd == 1)
            row[i % j->width] = numbers_any(1);
        kern_row_write(j->codec, j->width, j->tail,
                       page[i / each] + AT + (size_t)(i % each) * row_bytes, row);
    }
    float *q = numbers_new(ROWS * qs, j->odd), *weight = numbers_new(ROWS * ws, j->odd / 4);
    for (int64_t i = 0; j->flat && i < ROWS * qs; i++)
        q[i] = 1.0f;
    q[qs + 1] = j->odd ? NAN : q[qs + 1];
    const size_t n_sel = (size_t)(ROWS * j->top_k) * 4;
    int32_t *sel = numbers_room(n_sel), *count = numbers_room(ROWS * 4);
    memset(sel, 0x77, n_sel);
    int32_t *want = numbers_copy(sel, n_sel), *want_count = numbers_room(ROWS * 4);
    const struct device_select s = {
        .keys = {.codec = j->codec, .width = j->width, .tail = j->tail, .every = j->every,
                 .at = AT},
        .n_heads = j->heads, .top_k = j->top_k};
    /* The last rows are another span of the same timeline. */
    const struct device_span plain[2] = {{.n = 5, .pos0 = j->pos0, .page = page},
                                         {.row0 = 5, .n = 2, .pos0 = j->pos0 + 5, .page = page}};
    struct gpu_span *span = numbers_room(2 * sizeof *span);
    for (int i = 0; i < 2; i++)
        span[i] = (struct gpu_span){.page = page, .row0 = plain[i].row0, .n = plain[i].n,
                                    .pos0 = plain[i].pos0};
    device_begin(plain_device, NULL);
    device_select(plain_device, &s, plain, 2, plain_rows(q, ROWS, j->heads * j->width, qs),
                  plain_rows(weight, ROWS, j->heads, ws), want, want_count);
    assert_true(device_runs(plain_device));
    uint8_t *query = NULL;
    if (j->codec == KERN_KV_FP4) {
        const size_t head = (size_t)j->heads * kern_query4_bytes(j->width);
        query = numbers_room(ROWS * head);
        uint8_t *plain_query = numbers_room(head);
        struct select_query_args a = {q, query, qs, ROWS, j->heads, j->width};
        NUMBERS_LAUNCH("select_query", select_query_grid(&a), a, order);
        for (int r = 0; r < ROWS; r++) {
            kern_query4(&kern_latent_ref, j->width, q + r * qs, j->heads, plain_query);
            assert_memory_equal(query + (size_t)r * head, plain_query, head);
        }
        free(plain_query);
    }
    /* Row 0 by a launch of its own. */
    for (int64_t row0 = 0; row0 < 2; row0++) {
        const int32_t n = row0 ? ROWS - 1 : 1;
        float *score = numbers_new(n * keys, 0);
        struct select_scores_args a = {
            .span = span, .q = q, .query = query, .weight = weight, .score = score, .row0 = row0,
            .q_stride = qs, .weight_stride = ws, .at = AT, .row_bytes = (int64_t)row_bytes,
            .n_rows = n, .n_keys = (int32_t)keys, .n_heads = j->heads, .width = j->width,
            .tail = j->tail, .every = j->every, .codec = (int32_t)j->codec, .top_k = j->top_k};
        NUMBERS_LAUNCH("select_scores", select_scores_grid(&a), a, order);
        struct select_choose_args c = {.span = span, .score = score, .sel = sel, .count = count,
                                       .row0 = row0, .n_rows = n, .n_keys = (int32_t)keys,
                                       .every = j->every, .top_k = j->top_k};
        NUMBERS_LAUNCH("select_choose", select_choose_grid(&c), c, order);
        free(score);
    }
    plain_same_ints("count", count, want_count, ROWS);
    plain_same_ints("sel", sel, want, ROWS * j->top_k);
    for (int64_t p = 0; p < n_pages; p++)
        free(page[p]);
    free(page), free(row), free(q), free(weight), free(sel), free(count), free(want);
    free(want_count), free(span), free(query);
}

static void test_select(void **state)
{
    (void)state;
    for (int order = 0; order < EMU_ORDERS; order++)
        for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
            one_job(&jobs[i], order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_select)};
    return cmocka_run_group_tests(tests, plain_device_open, plain_device_close);
}
