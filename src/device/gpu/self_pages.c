/* SPDX-License-Identifier: Apache-2.0 */
/* self_pages - kernels of pages.h and attend.h beside the processor's. */
#include "device/gpu/self.h"
#include "kern/kern.h"
#include <string.h>

/* One page of one key/value head; the last position that is there. */
enum { WIDTH = 64, SLOTS = 45, HEADS = 9, STATES = 3, MOST_BLOCK = 2 * WIDTH * KERN_PAGE * 4 };

struct blocks {
    struct gpu_span *span;  /* the card's */
    uint8_t *page;
    uint8_t *host;          /* of page */
    int64_t value_at;
    size_t n_bytes;
};

/* A page of the card in which nothing is, and a span of the positions [0, SLOTS). */
static struct blocks make(struct gpu_self *s, size_t key_bytes, size_t value_bytes)
{
    struct blocks b = {.value_at = (int64_t)key_bytes, .n_bytes = key_bytes + value_bytes};
    b.page = device_gpu_self_in(s, NULL, b.n_bytes);
    b.host = s->host + (b.page - s->card);
    uint8_t **table = device_gpu_self_in(s, &b.page, sizeof b.page);
    const struct gpu_span span = {.page = table, .n = SLOTS, .window = WIDTH};
    b.span = device_gpu_self_in(s, &span, sizeof span);
    return b;
}

static bool one_append(struct gpu_self *s, enum kern_kv_codec c)
{
    s->used = 0;
    const struct blocks b =
        make(s, kern_kv_block_bytes(c, true, WIDTH), kern_kv_block_bytes(c, false, WIDTH));
    float *host_k, *host_v;
    float *k = device_gpu_self_floats(s, SLOTS * WIDTH, true, &host_k);
    float *v = device_gpu_self_floats(s, SLOTS * WIDTH, false, &host_v);
    const struct pages_kv_append_args a = {
        .span = b.span, .k = k, .v = v, .k_stride = WIDTH, .v_stride = WIDTH,
        .v_at = b.value_at, .n_rows = SLOTS, .n_heads = 1, .k_width = WIDTH, .v_width = WIDTH,
        .k_codec = (int32_t)c, .v_codec = (int32_t)c};
    host_k[SLOTS * WIDTH - 1] = host_k[SLOTS * WIDTH - 2] = 1.0f; /* bytes of a NaN may differ */
    if (!device_gpu_self_send(s) ||
        !GPU_LAUNCH(s->d, pages_kv_append, pages_kv_append_grid(&a), &a) ||
        !device_gpu_self_fetch(s))
        return false;
    s->d->kern.attend.exact.kv_write(c, true, WIDTH, b.host, 0, host_k, SLOTS, WIDTH);
    s->d->kern.attend.exact.kv_write(c, false, WIDTH, b.host + b.value_at, 0, host_v, SLOTS, WIDTH);
    return device_gpu_self_same_bytes(s, b.page, b.host, b.n_bytes);
}

static bool one_rows(struct gpu_self *s, enum gpu_kernel k, enum kern_kv_codec c, int64_t tail)
{
    s->used = 0;
    const size_t row_bytes = kern_row_bytes(c, WIDTH, tail);
    const struct blocks b = make(s, row_bytes * KERN_PAGE, 0);
    float *host, *x = device_gpu_self_floats(s, SLOTS * WIDTH, false, &host);
    const struct pages_rows_args a = {.span = b.span, .x = x, .stride = WIDTH,
                                      .row_bytes = (int64_t)row_bytes, .n_rows = SLOTS,
                                      .width = WIDTH, .tail = (int32_t)tail, .every = 1,
                                      .codec = (int32_t)c};
    for (int i = 0; k == GPU_K_pages_rows_read && i < SLOTS; i++)
        kern_row_write(c, WIDTH, tail, b.host + (size_t)i * row_bytes, host + i * WIDTH);
    if (!device_gpu_self_send(s) ||
        !device_gpu_launch(s->d, k, pages_rows_grid(&a), &a, sizeof a, 0) ||
        !device_gpu_self_fetch(s))
        return false;
    for (int i = 0; i < SLOTS; i++) {
        uint8_t *row = b.host + (size_t)i * row_bytes;
        if (k == GPU_K_pages_rows_read)
            kern_row_read(c, WIDTH, tail, row, host + i * WIDTH);
        else
            kern_row_write(c, WIDTH, tail, row, host + i * WIDTH);
    }
    return device_gpu_self_same_bytes(s, b.page, b.host, b.n_bytes) &&
           device_gpu_self_same(s, x, host, SLOTS * WIDTH);
}

static bool rows(struct gpu_self *s, enum gpu_kernel k)
{
    return one_rows(s, k, KERN_KV_F32, 0) && one_rows(s, k, KERN_KV_F16, 0) &&
           one_rows(s, k, KERN_KV_BF16, 0) && one_rows(s, k, KERN_KV_FP8, 10) &&
           one_rows(s, k, KERN_KV_FP4, 0);
}

/* The last row sees one part: its state is a split's. */
static bool one_part(struct gpu_self *s, enum gpu_kernel k, int32_t group, enum kern_kv_codec c)
{
    s->used = 0;
    const struct blocks b =
        make(s, kern_kv_block_bytes(c, true, WIDTH), kern_kv_block_bytes(c, false, WIDTH));
    const struct kern_attend_table *t = &s->d->kern.attend.exact;
    const int64_t padded = kern_attend_state(WIDTH), step = attend_state(WIDTH);
    float *host_x, *host_q, want[HEADS * (WIDTH + 16)];
    (void)device_gpu_self_floats(s, SLOTS * WIDTH, false, &host_x);
    float *q = device_gpu_self_floats(s, HEADS * WIDTH, false, &host_q);
    float *state = device_gpu_self_in(s, NULL, (size_t)(group * step) * sizeof *state);
    t->kv_write(c, true, WIDTH, b.host, 0, host_x, SLOTS, WIDTH);
    t->kv_write(c, false, WIDTH, b.host + b.value_at, 0, host_x, SLOTS, WIDTH);
    const uint8_t *page = b.host;
    const struct kern_attend plain = {
        .k_codec = c, .v_codec = c, .k_width = WIDTH, .v_width = WIDTH, .page = &page,
        .v_at = (size_t)b.value_at, .q = host_q, .q_stride = group * WIDTH, .n_rows = 1,
        .n_heads = group, .pos0 = SLOTS - 1, .scale = 0.3f};
    const struct attend_part_args a = {
        .span = b.span, .q = q - (SLOTS - 1) * (int64_t)group * WIDTH, .state = state,
        .row0 = SLOTS - 1, .q_stride = group * WIDTH, .v_at = b.value_at, .n_rows = 1,
        .n_heads = 1, .group = group, .n_parts = 1, .k_width = WIDTH, .v_width = WIDTH,
        .k_codec = (int32_t)c, .v_codec = (int32_t)c, .scale = 0.3f};
    /* scratch of the plain kernel: what is left of s->back */
    if (kern_attend_scratch(&plain) > GPU_SELF_BYTES || !device_gpu_self_send(s))
        return true;
    t->split(&plain, 0, want, s->back);
    if (!device_gpu_launch(s->d, k, attend_part_grid(&a), &a, sizeof a, 0) ||
        !device_gpu_self_fetch(s))
        return false;
    for (int h = 0; h < group; h++)
        if (!device_gpu_self_same(s, state + h * step, want + h * padded, WIDTH + 2))
            return false;
    return true;
}

/* Both rows see all near rows and no far one. */
static bool one_latent(struct gpu_self *s, enum gpu_kernel k, int32_t heads)
{
    s->used = 0;
    const enum kern_kv_codec c = KERN_KV_BF16;
    const size_t row_bytes = kern_row_bytes(c, WIDTH, 0);
    const struct blocks b = make(s, row_bytes * KERN_PAGE, 0);
    const size_t kb = kern_kv_block_bytes(c, true, WIDTH);
    const struct kern_attend_table *t = &s->d->kern.attend.exact;
    const int64_t padded = kern_attend_state(WIDTH), step = attend_state(WIDTH);
    float *host_x, *host_q, want[HEADS * (WIDTH + 16)];
    (void)device_gpu_self_floats(s, SLOTS * WIDTH, false, &host_x);
    float *q = device_gpu_self_floats(s, HEADS * WIDTH, false, &host_q);
    float *state = device_gpu_self_in(s, NULL, (size_t)(heads * step) * sizeof *state);
    uint8_t *blocks = s->host + ((uint8_t *)device_gpu_self_in(s, NULL, 2 * kb) - s->card);
    for (int i = 0; i < SLOTS; i++)
        kern_row_write(c, WIDTH, 0, b.host + (size_t)i * row_bytes, host_x + i * WIDTH);
    t->kv_write(c, true, WIDTH, blocks, 0, host_x, SLOTS, WIDTH);
    t->kv_write(c, false, WIDTH, blocks + kb, 0, host_x, SLOTS, WIDTH);
    const uint8_t *page = blocks;
    const struct kern_attend plain = {
        .k_codec = c, .v_codec = c, .k_width = WIDTH, .v_width = WIDTH, .page = &page,
        .v_at = kb, .q = host_q, .q_stride = heads * WIDTH, .n_rows = 1, .n_heads = heads,
        .pos0 = SLOTS - 1, .scale = 0.3f};
    const struct attend_latent_args a = {
        .near_span = b.span, .q = q - (SLOTS - 1) * (int64_t)heads * WIDTH, .state = state,
        .row0 = SLOTS - 1, .q_stride = heads * WIDTH, .row_bytes = (int64_t)row_bytes,
        .n_rows = 1, .n_heads = heads, .n_parts = 1, .width = WIDTH, .codec = (int32_t)c,
        .near_every = 1, .far_every = 1, .scale = 0.3f};
    if (kern_attend_scratch(&plain) > GPU_SELF_BYTES || !device_gpu_self_send(s))
        return true;
    t->split(&plain, 0, want, s->back);
    if (!device_gpu_launch(s->d, k, attend_latent_grid(&a), &a, sizeof a, 0) ||
        !device_gpu_self_fetch(s))
        return false;
    for (int h = 0; h < heads; h++)
        if (!device_gpu_self_same(s, state + h * step, want + h * padded, WIDTH + 2))
            return false;
    return true;
}

static bool part(struct gpu_self *s, enum gpu_kernel k, int32_t group)
{
    for (int c = 0; c < KERN_KV_BLOCK_CODECS; c++)
        if (!one_part(s, k, group, (enum kern_kv_codec)c))
            return false;
    return true;
}

/* Parts of a row join as splits do. */
static bool merges(struct gpu_self *s)
{
    const int64_t padded = kern_attend_state(WIDTH), step = attend_state(WIDTH);
    enum { PADDED = WIDTH + 16 };
    float *host, out[2 * WIDTH], sink[2] = {0.5f, -3.0f}, plain_state[STATES * 2 * PADDED];
    float *state = device_gpu_self_floats(s, 2 * STATES * step, false, &host);
    float *to = device_gpu_self_in(s, NULL, sizeof out), *at = device_gpu_self_in(s, sink, 8);
    const struct gpu_span one = {.n = 1, .pos0 = STATES * ATTEND_POSITIONS - 1};
    const struct gpu_span *span = device_gpu_self_in(s, &one, sizeof one);
    for (int h = 0; h < 2; h++)
        for (int p = 0; p < STATES; p++) {
            float *from = host + (h * STATES + p) * step;
            from[1] = h && p == 1 ? 0.0f : from[1] * from[1] + 0.1f; /* one has seen nothing */
            memcpy(plain_state + (p * 2 + h) * padded, from, (size_t)step * sizeof *from);
        }
    const struct kern_attend k = {.v_width = WIDTH, .k_width = WIDTH, .out = out,
                                  .out_stride = 2 * WIDTH, .n_rows = 1, .n_heads = 2,
                                  .sink = sink};
    const struct attend_merge_args a = {.span = span, .state = state, .sink = at, .out = to,
                                        .out_stride = 2 * WIDTH, .n_rows = 1, .n_heads = 2,
                                        .n_parts = STATES, .v_width = WIDTH, .far_every = 1};
    if (!device_gpu_self_send(s))
        return false;
    s->d->kern.attend.exact.merge(&k, STATES, plain_state, s->back);
    return GPU_LAUNCH(s->d, attend_merge, attend_merge_grid(&a), &a) && device_gpu_self_fetch(s) &&
           device_gpu_self_same(s, to, out, 2 * WIDTH);
}

bool device_gpu_self_pages(struct gpu_self *s, enum gpu_kernel k)
{
    switch (k) {
    case GPU_K_pages_kv_append:
        for (int c = 0; c < KERN_KV_BLOCK_CODECS; c++)
            if (!one_append(s, (enum kern_kv_codec)c))
                return false;
        return true;
    case GPU_K_pages_rows_append:
    case GPU_K_pages_rows_read:
        return rows(s, k);
    case GPU_K_attend_part_1:
        return part(s, k, 1);
    case GPU_K_attend_part_2:
        return part(s, k, 2);
    case GPU_K_attend_part_4:
        return part(s, k, 3);
    case GPU_K_attend_part_8:
        return part(s, k, HEADS);
    case GPU_K_attend_latent_1:
        return one_latent(s, k, 1);
    case GPU_K_attend_latent_2:
        return one_latent(s, k, 2);
    case GPU_K_attend_latent_4:
        return one_latent(s, k, 4);
    case GPU_K_attend_latent_8:
        return one_latent(s, k, HEADS);
    case GPU_K_attend_merge:
        return merges(s);
    default:
        return true;
    }
}
