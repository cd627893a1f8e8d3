/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on the emulated card, from the processor's own pages, against the plain kernels. */
#include "gpu/numbers.h"

#include "device/gpu/kernels/attend.h"
#include "kern/kern.h"
#include "kern/kernels.h"
#include <stdio.h>

extern const struct kern_attend_table kern_attend_ref;
extern const struct kern_latent_table kern_latent_ref;

struct job {
    enum kern_kv_codec k, v;
    int32_t k_width, v_width, heads, group;
    int64_t pos0, n, window, through;
    bool first, odd;
};

static const struct job jobs[] = {
    {KERN_KV_F16, KERN_KV_F16, 64, 64, 2, 2, 0, 3, 0, 0, false, false},
    {KERN_KV_F16, KERN_KV_F16, 512, 512, 1, 8, 299, 1, 0, 0, false, false},
    {KERN_KV_BF16, KERN_KV_BF16, 16, 48, 1, 3, 2046, 4, 0, 0, false, false},
    {KERN_KV_F32, KERN_KV_F32, 96, 33, 2, 1, 255, 2, 0, 0, false, false},
    {KERN_KV_Q8_0, KERN_KV_Q8_0, 256, 256, 1, 4, 600, 2, 512, 0, false, false},
    {KERN_KV_Q8_0, KERN_KV_F16, 32, 64, 2, 9, 130, 2, 0, 0, false, false},
    {KERN_KV_F16, KERN_KV_Q8_0, 64, 32, 1, 5, 5000, 3, 1024, 0, false, false},
    {KERN_KV_F16, KERN_KV_BF16, 64, 64, 1, 2, 1000, 5, 300, 0, true, false},
    {KERN_KV_F16, KERN_KV_F16, 64, 64, 2, 2, 250, 9, 100, 257, false, false},
    {KERN_KV_F32, KERN_KV_F16, 24, 16, 1, 6, 4094, 4, 0, 4097, false, false},
    {KERN_KV_F16, KERN_KV_F16, 64, 64, 1, 4, 400, 2, 0, 0, false, true},
    {KERN_KV_BF16, KERN_KV_Q8_0, 128, 32, 1, 16, 31, 3, 0, 0, false, true},
    /* heads of published models: two of 256, sixteen of 512 to a key */
    {KERN_KV_BF16, KERN_KV_BF16, 256, 256, 2, 2, 40, 2, 32, 0, false, false},
    {KERN_KV_F32, KERN_KV_F32, 512, 512, 1, 16, 30, 1, 0, 0, false, true},
};
enum { JOBS = sizeof jobs / sizeof *jobs, AT = 128 };

/* One timeline's pages: what nobody sees is NaN, pages that nobody sees are not there. */
struct pages {
    uint8_t **page;
    int64_t n;
    size_t kb, vb;
};

static struct pages make_pages(const struct job *j, int64_t low, int64_t high)
{
    struct pages p = {.n = (high - 1) / KERN_PAGE + 1,
                      .kb = kern_kv_block_bytes(j->k, true, j->k_width),
                      .vb = kern_kv_block_bytes(j->v, false, j->v_width)};
    const size_t n_bytes = AT + (size_t)j->heads * (p.kb + p.vb);
    float *row = numbers_room((size_t)(j->k_width + j->v_width) * 4);
    p.page = numbers_room((size_t)p.n * sizeof *p.page);
    for (int64_t i = 0; i < p.n; i++)
        p.page[i] = NULL;
    for (int64_t pos = low; pos < high; pos++) {
        uint8_t **at = &p.page[pos / KERN_PAGE];
        if (!*at) {
            *at = numbers_room(n_bytes);
            memset(*at, 0xff, n_bytes);
        }
        for (int h = 0; h < j->heads; h++)
            for (int v = 0; v < 2; v++) {
                const int32_t width = v ? j->v_width : j->k_width;
                for (int i = 0; i < width; i++)
                    row[i] = numbers_unit();
                if (j->odd && pos % 90 == 17)
                    row[pos % width] = pos % 2 ? INFINITY : 1e30f;
                for (int i = 0; j->odd && v && i < width; i += 7)
                    row[i] = numbers_any(40);
                kern_attend_ref.kv_write(v ? j->v : j->k, !v, width,
                                         *at + AT + (size_t)h * (p.kb + p.vb) + (v ? p.kb : 0),
                                         pos % KERN_PAGE, row, 1, width);
            }
    }
    free(row);
    return p;
}

static void free_pages(struct pages *p)
{
    for (int64_t i = 0; i < p->n; i++)
        free(p->page[i]);
    free(p->page);
}

static void merge(const struct attend_merge_args *m, int order)
{
    NUMBERS_LAUNCH("attend_merge", attend_merge_grid(m), *m, order);
}

static void one_job(const struct job *j, int order)
{
    /* Another span of two rows at position 40 comes before it, in pages of its own. */
    const int64_t q_stride = j->heads * j->group * j->k_width + 7, n_rows = j->n + 2;
    const int64_t out_stride = j->heads * j->group * j->v_width + 5, row0 = 1;
    int32_t *first = numbers_room((size_t)j->n * sizeof *first);
    int64_t low = j->window ? j->pos0 - j->window + 1 : 0, high = j->pos0 + j->n;
    high = high > j->through ? high : j->through;
    low = low > 0 ? low : 0;
    for (int64_t i = 0; i < j->n; i++)
        first[i] = (int32_t)(j->pos0 - j->window + 1 + i + (i * 37) % 150);
    struct pages p = make_pages(j, low, high), other = make_pages(j, 0, 42);
    struct gpu_span *span = numbers_room(2 * sizeof *span);
    span[0] = (struct gpu_span){.page = other.page, .row0 = 0, .n = 2, .pos0 = 40};
    span[1] = (struct gpu_span){.page = p.page, .first = j->first ? first : NULL, .row0 = 2,
                                .n = j->n, .pos0 = j->pos0, .window = j->window,
                                .through = j->through};
    float *q = numbers_new(n_rows * q_stride, 0), *out = numbers_new(n_rows * out_stride, 0);
    float *want = numbers_copy(out, (size_t)(n_rows * out_stride) * 4);
    for (int64_t i = 0; i < n_rows * q_stride; i++)
        q[i] = j->odd && i % 301 == 3   ? INFINITY
               : j->odd && i % 211 == 5 ? numbers_any(1)
                                        : 0.2f * numbers_unit();
    for (int s = 0; s < 2; s++)
        for (int h = 0; h < j->heads; h++) {
            const struct pages *from = s ? &p : &other;
            struct kern_attend k = {
                .k_codec = j->k, .v_codec = j->v, .k_width = j->k_width, .v_width = j->v_width,
                .page = (const uint8_t *const *)from->page,
                .k_at = AT + (size_t)h * (p.kb + p.vb),
                .v_at = AT + (size_t)h * (p.kb + p.vb) + p.kb,
                .q = q + span[s].row0 * q_stride + h * j->group * j->k_width,
                .q_stride = q_stride,
                .out = want + span[s].row0 * out_stride + h * j->group * j->v_width,
                .out_stride = out_stride, .n_rows = span[s].n, .n_heads = j->group,
                .pos0 = span[s].pos0, .through = span[s].through, .window = span[s].window,
                .first = span[s].first, .scale = 0.37f};
            void *scratch = aligned_alloc(64, (kern_attend_scratch(&k) + 63) / 64 * 64);
            kern_attend_ref.rows(&k, scratch);
            free(scratch);
        }
    /* Row 0 is left out: out keeps what it has there. */
    memcpy(want, out, (size_t)out_stride * 4);
    int64_t parts = attend_parts(low, high);
    const int64_t rows = n_rows - row0, n_q = j->heads * j->group;
    float *part = numbers_room((size_t)(rows * n_q * parts * attend_state(j->v_width)) * 4);
    struct attend_part_args a = {
        .span = span, .q = q, .state = part, .row0 = row0, .q_stride = q_stride, .at = AT,
        .head_bytes = (int64_t)(p.kb + p.vb), .v_at = (int64_t)p.kb, .n_rows = (int32_t)rows,
        .n_heads = j->heads, .group = j->group, .n_parts = (int32_t)parts, .k_width = j->k_width,
        .v_width = j->v_width, .k_codec = (int32_t)j->k, .v_codec = (int32_t)j->v,
        .scale = 0.37f};
    char name[32];
    snprintf(name, sizeof name, "attend_part_%d", attend_heads(j->group));
    NUMBERS_LAUNCH(name, attend_part_grid(&a), a, order);
    struct attend_merge_args m = {.span = span, .state = part, .out = out, .row0 = row0,
                                  .out_stride = out_stride, .n_rows = (int32_t)rows,
                                  .n_heads = (int32_t)n_q, .n_parts = (int32_t)parts,
                                  .v_width = j->v_width};
    merge(&m, order);
    numbers_same(name, out, want, n_rows * out_stride);
    free_pages(&p), free_pages(&other);
    free(first), free(span), free(q), free(out), free(want), free(part);
}

static void test_attend(void **state)
{
    (void)state;
    for (int order = 0; order < EMU_ORDERS; order++)
        for (int i = 0; i < JOBS; i++)
            one_job(&jobs[i], order);
}

/* Rows of a stream, row_bytes each, n of them, one for every `every` positions. */
static struct pages make_rows(enum kern_kv_codec codec, int32_t width, int32_t tail, int32_t every,
                              int64_t n)
{
    const int64_t each = KERN_PAGE / every;
    const size_t row_bytes = kern_row_bytes(codec, width, tail);
    struct pages p = {.n = (n - 1) / each + 1};
    float *row = numbers_room((size_t)width * 4);
    p.page = numbers_room((size_t)p.n * sizeof *p.page);
    for (int64_t i = 0; i < n; i++) {
        if (i % each == 0)
            p.page[i / each] = numbers_room(AT + (size_t)each * row_bytes);
        for (int d = 0; d < width; d++)
            row[d] = numbers_unit();
        if (i % 150 == 149)
            row[i % width] = NAN;
        if (i % 90 == 33)
            row[(i + 1) % width] = numbers_any(1);
        kern_row_write(codec, width, tail,
                       p.page[i / each] + AT + (size_t)(i % each) * row_bytes, row);
    }
    free(row);
    return p;
}

struct latent {
    enum kern_kv_codec codec;
    int32_t width, tail, heads, every, top_k;
    int64_t pos0, n, window;
    bool sink;
};

/* The plain way: a row's list as blocks, then attention to all of it. */
static void plain_latent(const struct latent *j, const uint8_t *const *row, int64_t n_list,
                         const float *q, const float *sink, float *out)
{
    const enum kern_kv_codec block = kern_row_block(j->codec);
    const struct kern_row form = {j->codec, j->width, j->tail};
    const size_t kb = kern_kv_block_bytes(block, true, j->width);
    const size_t n_bytes = kb + kern_kv_block_bytes(block, false, j->width);
    const int64_t n_pages = (n_list - 1) / KERN_PAGE + 1;
    const uint8_t **table = numbers_room((size_t)n_pages * sizeof *table);
    for (int64_t p = 0; p < n_pages; p++) {
        uint8_t *page = aligned_alloc(64, n_bytes);
        table[p] = page;
        for (int64_t r = p * KERN_PAGE; r < n_list && r < (p + 1) * KERN_PAGE;
             r += KERN_ROW_TILE) {
            const int64_t n = n_list - r < KERN_ROW_TILE ? n_list - r : KERN_ROW_TILE;
            kern_latent_ref.gather(&form, (const void *const *)(row + r), n, r % KERN_PAGE, page,
                                   page + kb);
        }
    }
    const struct kern_attend k = {
        .k_codec = block, .v_codec = block, .k_width = j->width, .v_width = j->width,
        .page = table, .v_at = kb, .q = q, .q_stride = j->heads * j->width, .out = out,
        .out_stride = j->heads * j->width, .n_rows = 1, .n_heads = j->heads, .pos0 = n_list - 1,
        .scale = 0.11f, .sink = sink};
    void *scratch = aligned_alloc(64, (kern_attend_scratch(&k) + 63) / 64 * 64);
    kern_attend_ref.rows(&k, scratch);
    free(scratch);
    for (int64_t p = 0; p < n_pages; p++)
        free((void *)(uintptr_t)table[p]);
    free(table);
}

static void one_latent(const struct latent *j, int order)
{
    const int64_t stride = j->heads * j->width, end = j->pos0 + j->n;
    const size_t row_bytes = kern_row_bytes(j->codec, j->width, j->tail);
    struct pages near = make_rows(j->codec, j->width, j->tail, 1, end);
    struct pages far = {0};
    if (j->every)
        far = make_rows(j->codec, j->width, j->tail, j->every, end / j->every + 1);
    struct gpu_span *span = numbers_room(2 * sizeof *span);
    span[0] = (struct gpu_span){.page = near.page, .n = j->n, .pos0 = j->pos0,
                                .window = j->window};
    span[1] = span[0];
    span[1].page = far.page;
    float *q = numbers_new(j->n * stride, 0), *sink = numbers_new(j->heads, 0);
    float *out = numbers_new(j->n * stride, 0), *want = numbers_new(j->n * stride, 0);
    if (j->sink && j->heads > 2) {
        q[1] = -0.0f;
        q[j->width + 3] = numbers_any(1);
        sink[1] = numbers_any(1);
    }
    const int32_t top_k = j->top_k ? j->top_k : 1;
    int32_t *sel = numbers_room((size_t)(j->n * top_k) * 4);
    int32_t *count = numbers_room((size_t)j->n * 4);
    const uint8_t **row = numbers_room((size_t)(j->window + end + 1) * sizeof *row);
    int64_t longest = 1;
    for (int64_t i = 0; i < j->n; i++) {
        const int64_t pos = j->pos0 + i, all = j->every ? (pos + 1) / j->every : 0;
        int64_t n = 0;
        for (int64_t p = pos + 1 > j->window ? pos + 1 - j->window : 0; p <= pos; p++)
            row[n++] = near.page[p / KERN_PAGE] + AT + (size_t)(p % KERN_PAGE) * row_bytes;
        count[i] = (int32_t)(all < top_k ? all : top_k);
        for (int32_t w = 0; w < count[i]; w++)
            sel[i * top_k + w] = (int32_t)(w * all / count[i]);
        for (int64_t w = 0; w < (j->top_k ? count[i] : all); w++) {
            const int64_t r = j->top_k ? sel[i * top_k + w] : w, each = KERN_PAGE / j->every;
            row[n++] = far.page[r / each] + AT + (size_t)(r % each) * row_bytes;
        }
        longest = n > longest ? n : longest;
        plain_latent(j, row, n, q + i * stride, j->sink ? sink : NULL, want + i * stride);
    }
    const int64_t parts = attend_parts(0, longest);
    float *part = numbers_room((size_t)(j->n * j->heads * parts * attend_state(j->width)) * 4);
    struct attend_latent_args a = {
        .near_span = span, .far_span = j->every ? span + 1 : NULL, .q = q, .state = part,
        .sel = sel, .count = j->top_k ? count : NULL, .q_stride = stride, .near_at = AT,
        .far_at = AT, .row_bytes = (int64_t)row_bytes, .n_rows = (int32_t)j->n,
        .n_heads = j->heads, .n_parts = (int32_t)parts, .width = j->width, .tail = j->tail,
        .codec = (int32_t)j->codec, .near_every = 1, .far_every = j->every, .top_k = j->top_k,
        .scale = 0.11f};
    char name[32];
    snprintf(name, sizeof name, "attend_latent_%d", attend_heads(j->heads));
    NUMBERS_LAUNCH(name, attend_latent_grid(&a), a, order);
    struct attend_merge_args m = {.span = span, .far_span = a.far_span, .count = a.count,
                                  .state = part, .sink = j->sink ? sink : NULL, .out = out,
                                  .out_stride = stride, .n_rows = a.n_rows, .n_heads = j->heads,
                                  .n_parts = a.n_parts, .v_width = j->width, .latent = 1,
                                  .far_every = j->every};
    merge(&m, order);
    numbers_same(name, out, want, j->n * stride);
    free_pages(&near);
    if (j->every)
        free_pages(&far);
    free(span), free(q), free(sink), free(out), free(want), free(sel), free(count), free(row);
    free(part);
}

static void test_latent(void **state)
{
    (void)state;
    static const struct latent all[] = {
        {KERN_KV_FP8, 128, 16, 4, 4, 20, 0, 5, 128, true},
        {KERN_KV_FP8, 512, 64, 9, 4, 0, 700, 1, 128, true},
        {KERN_KV_BF16, 64, 0, 2, 128, 0, 400, 3, 128, false},
        {KERN_KV_F32, 48, 8, 3, 4, 16, 300, 3, 100, true},
        {KERN_KV_F16, 64, 8, 1, 0, 0, 200, 3, 128, true},
        {KERN_KV_FP8, 75, 10, 2, 1, 0, 2500, 1, 128, true},
        {KERN_KV_FP8, 512, 64, 64, 4, 8, 40, 1, 128, true}, /* a published model's heads */
    };
    for (int order = 0; order < EMU_ORDERS; order++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            one_latent(&all[i], order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend),
        cmocka_unit_test(test_latent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
