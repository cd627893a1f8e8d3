/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_pages - operations with pages on the card: keys and values, rows of streams, attention.
 *
 * Attention goes in pieces of rows and heads whose states have room in the scratch.
 */
#include "base/num.h"
#include "device/gpu/memory.h"
#include "device/cpu_rows.h"
#include "device/gpu/run.h"

enum { STATE_FLOATS = 1 << 22, MOST_ROWS = 65535 };

/* ---- spans ---- */

static int64_t n_pages(const struct device_span *s, int64_t every)
{
    const int64_t each = KERN_PAGE / every;
    int64_t last = (s->pos0 + s->n - 1) / every;
    last = num_max(last, every == 1 ? s->through - 1 : last);
    return s->n > 0 && last >= 0 ? last / each + 1 : 0;
}

/* A table of pages, on the card; NULL: it is lost, or the table too long. */
static uint8_t *const *table_of(struct device *d, const struct device_span *s, int64_t every)
{
    return device_gpu_stage(d, s->page, (size_t)n_pages(s, every) * sizeof *s->page);
}

const struct gpu_span *device_gpu_spans(struct device *d, const struct device_span *s, int64_t n,
                                        int64_t every, int64_t window)
{
    enum { AT_ONCE = 32 };
    struct gpu_span some[AT_ONCE], *at = NULL;
    const size_t all = (size_t)n * sizeof *some;
    struct gpu_span *list = n <= AT_ONCE ? some : device_gpu_room(d->gpu, all);
    for (int64_t i = 0; list && i < n; i++) {
        const int32_t *first = NULL;
        list[i] = (struct gpu_span){.row0 = s[i].row0,
                                    .n = s[i].n,
                                    .pos0 = s[i].pos0,
                                    .window = s[i].window ? s[i].window : window,
                                    .through = s[i].through};
        if (!n_pages(&s[i], every))
            continue;
        list[i].page = table_of(d, &s[i], every);
        if (s[i].first)
            first = device_gpu_list(d, s[i].first, (size_t)s[i].n * sizeof *first);
        if (!list[i].page || (s[i].first && !first))
            return NULL;
        list[i].first = first;
    }
    if (list)
        at = device_gpu_stage(d, list, all);
    return at;
}

/* ---- appending and reading ---- */

static bool is_plain(enum kern_kv_codec c)
{
    return c == KERN_KV_F32 || c == KERN_KV_F16 || c == KERN_KV_BF16 || c == KERN_KV_Q8_0;
}

static const char *refuses_kv(struct device *d, const struct device_kv *kv)
{
    if (d->numerics == DEVICE_FAST && d->kern.attend.recipe)
        return "the recipe of --numerics fast is the processor's";
    if (!is_plain(kv->k_codec) || !is_plain(kv->v_codec))
        return "the card has no kernels for such keys and values";
    if (kv->k_width > ATTEND_MOST_WIDTH)
        return "the card's kernels have heads of at most 512";
    if (!device_gpu_has(d, GPU_K_pages_kv_append) || !device_gpu_has(d, GPU_K_attend_merge) ||
        !device_gpu_has(d, GPU_K_attend_part_1) || !device_gpu_has(d, GPU_K_attend_part_2) ||
        !device_gpu_has(d, GPU_K_attend_part_4) || !device_gpu_has(d, GPU_K_attend_part_8))
        return device_gpu_why(d, "the card lacks a kernel of attention");
    return NULL;
}

const char *device_card_refuses_kv(struct device *d, const struct device_kv *kv)
{
    if (!device_card(d))
        return "there is no card";
    d->gpu->is_new = false;
    return refuses_kv(d, kv);
}

/* Rows that are attended to, or queried for: what reads them has limits that others have not. */
const char *device_card_refuses_stream(struct device *d, const struct device_stream *s)
{
    static const enum gpu_kernel all[] = {
        GPU_K_pages_rows_append, GPU_K_pages_rows_read, GPU_K_attend_latent_1,
        GPU_K_attend_latent_2,   GPU_K_attend_latent_4, GPU_K_attend_latent_8,
        GPU_K_attend_merge,      GPU_K_compress,        GPU_K_select_scores,
        GPU_K_select_query,      GPU_K_select_choose};
    if (!device_card(d))
        return "there is no card";
    if (d->numerics == DEVICE_FAST && d->kern.attend.recipe)
        return "the recipe of --numerics fast is the processor's";
    if (s->codec != KERN_KV_F32 && s->width > ATTEND_MOST_WIDTH)
        return "the card's kernels have rows of at most 512";
    d->gpu->is_new = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!device_gpu_has(d, all[i]))
            return device_gpu_why(d, "the card lacks a kernel for such rows");
    return NULL;
}

GPU_RUN(kv_append)
{
    const struct device_kv_append_args *a = args;
    const struct device_kv *kv = a->kv;
    (void)scratch;
    if (refuses_kv(d, kv))
        return false;
    const struct gpu_span *span = device_gpu_spans(d, a->span, a->n_spans, 1, 0);
    if (!span)
        return d->gpu->lost;
    const struct pages_kv_append_args k = {
        .span = span, .k = gpu_rows(d, a->k), .v = gpu_rows(d, a->v),
        .k_stride = a->k.stride, .v_stride = a->v.stride,
        .at = (int64_t)kv->at, .head_bytes = (int64_t)kv->head_bytes, .v_at = (int64_t)kv->v_at,
        .n_rows = (int32_t)gpu_span_rows(a->span, a->n_spans), .n_heads = (int32_t)kv->n_heads,
        .k_width = (int32_t)kv->k_width, .v_width = (int32_t)kv->v_width,
        .k_codec = (int32_t)kv->k_codec, .v_codec = (int32_t)kv->v_codec};
    (void)GPU_LAUNCH(d, pages_kv_append, pages_kv_append_grid(&k), &k);
    return true;
}

static struct pages_rows_args rows_args(struct device *d, const struct device_stream *s,
                                        const struct gpu_span *span, struct rows x, int64_t n)
{
    return (struct pages_rows_args){
        .span = span, .x = gpu_rows(d, x), .stride = x.stride, .at = (int64_t)s->at,
        .row_bytes = (int64_t)kern_row_bytes(s->codec, s->width, s->tail),
        .n_rows = (int32_t)n, .width = (int32_t)s->width, .tail = (int32_t)s->tail,
        .every = (int32_t)s->every, .codec = (int32_t)s->codec};
}

GPU_RUN(rows_append)
{
    const struct device_rows_append_args *a = args;
    (void)scratch;
    if (!device_gpu_has(d, GPU_K_pages_rows_append))
        return false;
    const struct gpu_span *span = device_gpu_spans(d, a->span, a->n_spans, a->s->every, 0);
    if (!span)
        return d->gpu->lost;
    const struct pages_rows_args k =
        rows_args(d, a->s, span, a->x, gpu_span_rows(a->span, a->n_spans));
    (void)GPU_LAUNCH(d, pages_rows_append, pages_rows_grid(&k), &k);
    return true;
}

GPU_RUN(rows_read)
{
    const struct device_rows_read_args *a = args;
    (void)scratch;
    if (!device_gpu_has(d, GPU_K_pages_rows_read))
        return false;
    const struct gpu_span *span = device_gpu_spans(d, a->span, a->n_spans, a->s->every, 0);
    if (!span)
        return d->gpu->lost;
    const struct pages_rows_args k =
        rows_args(d, a->s, span, a->y, gpu_span_rows(a->span, a->n_spans));
    (void)GPU_LAUNCH(d, pages_rows_read, pages_rows_grid(&k), &k);
    return true;
}

/* ---- attention ---- */

/* The most parts that a row of the spans sees. */
static int64_t most_parts(const struct device_span *s, int64_t n, int64_t window)
{
    int64_t most = 1;
    for (int64_t i = 0; i < n; i++) {
        const int64_t w = s[i].window ? s[i].window : window,
                      end = num_max(s[i].pos0 + s[i].n, s[i].through);
        if (s[i].n <= 0)
            continue;
        const int64_t first = s[i].first ? s[i].first[0] : w ? num_max(0, s[i].pos0 - w + 1) : 0;
        int64_t parts = attend_parts(first, end);
        if (w && !s[i].first && s[i].through <= s[i].pos0)
            parts = num_min(parts, (w + 2 * ATTEND_POSITIONS - 2) / ATTEND_POSITIONS);
        most = num_max(most, parts);
    }
    return most;
}

/* Rows, key/value heads and query heads of each that go together. */
struct piece { int64_t rows, heads, group; };

static struct piece piece_of(int64_t rows, int64_t heads, int64_t group, int64_t floats)
{
    struct piece p = {1, 1, 1};
    const int64_t most = num_max(1, STATE_FLOATS / num_max(1, floats)); /* query heads of rows */
    if (most < group) {
        p.group = most;
        return p;
    }
    p.group = group;
    p.heads = num_min(heads, most / group);
    if (p.heads == heads)
        p.rows = num_min(num_min(rows, MOST_ROWS), most / (group * heads));
    return p;
}

static size_t state_bytes(struct piece p, int64_t floats)
{
    return (size_t)(p.rows * p.heads * p.group * floats) * sizeof(float);
}

size_t device_gpu_attend_scratch(const struct device_attend_args *a)
{
    const int64_t group = a->n_q_heads / a->kv->n_heads,
                  floats = most_parts(a->span, a->n_spans, a->window) *
                           attend_state(a->kv->v_width);
    return state_bytes(piece_of(a->q.n, a->kv->n_heads, group, floats), floats);
}

static void merge(struct device *d, struct attend_merge_args *m)
{
    (void)GPU_LAUNCH(d, attend_merge, attend_merge_grid(m), m);
}

static void attend_piece(struct device *d, const struct attend_part_args *k,
                         struct attend_merge_args *m)
{
    static const enum gpu_kernel by_heads[] = {0, GPU_K_attend_part_1, GPU_K_attend_part_2, 0,
                                               GPU_K_attend_part_4, 0, 0, 0, GPU_K_attend_part_8};
    (void)device_gpu_launch(d, by_heads[attend_heads(k->group)], attend_part_grid(k), k, sizeof *k,
                            0);
    merge(d, m);
}

GPU_RUN(attend)
{
    const struct device_attend_args *a = args;
    const struct device_kv *kv = a->kv;
    const int64_t group = a->n_q_heads / kv->n_heads, rows = gpu_span_rows(a->span, a->n_spans),
                  parts = most_parts(a->span, a->n_spans, a->window),
                  floats = parts * attend_state(kv->v_width);
    const struct piece p = piece_of(a->q.n, kv->n_heads, group, floats);
    if (refuses_kv(d, kv))
        return false;
    for (int64_t i = 0; i < a->n_spans; i++)
        if (a->span[i].sparse)
            return false;
    const struct gpu_span *span = device_gpu_spans(d, a->span, a->n_spans, 1, a->window);
    float *state = device_gpu_address(d->gpu, scratch);
    if (!span || !state)
        return d->gpu->lost;
    for (int64_t row = 0; row < rows; row += p.rows)
        for (int64_t h = 0; h < kv->n_heads; h += p.heads)
            for (int64_t g = 0; g < group; g += p.group) {
                const int64_t n = num_min(p.rows, rows - row),
                              heads = num_min(p.heads, kv->n_heads - h),
                              each = num_min(p.group, group - g), q = h * group + g;
                const struct attend_part_args k = {
                    .span = span, .q = gpu_rows(d, a->q) + q * kv->k_width, .state = state,
                    .row0 = row, .q_stride = a->q.stride,
                    .at = (int64_t)kv->at + h * (int64_t)kv->head_bytes,
                    .head_bytes = (int64_t)kv->head_bytes, .v_at = (int64_t)kv->v_at,
                    .n_rows = (int32_t)n, .n_heads = (int32_t)heads, .group = (int32_t)each,
                    .n_parts = (int32_t)parts, .k_width = (int32_t)kv->k_width,
                    .v_width = (int32_t)kv->v_width, .k_codec = (int32_t)kv->k_codec,
                    .v_codec = (int32_t)kv->v_codec, .scale = a->scale};
                struct attend_merge_args m = {
                    .span = span, .state = state, .out = gpu_rows(d, a->out) + q * kv->v_width,
                    .row0 = row, .out_stride = a->out.stride, .n_rows = (int32_t)n,
                    .n_heads = (int32_t)(heads * each), .n_parts = (int32_t)parts,
                    .v_width = (int32_t)kv->v_width};
                attend_piece(d, &k, &m);
            }
    return true;
}
