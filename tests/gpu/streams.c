/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streams - operations whose pages lie in the emulated card's own memory, as steps of chunks:
 * every result and every byte of the pages is the processor's.
 */
#define _DEFAULT_SOURCE
#include "gpu/api_emu.h"
#include "gpu/numbers.h"

#include "device/card.h"
#include "device/gpu/card.h"
#include "device/gpu/kernel.h"
#include "device/gpu/self.h"

enum {
    WIDTH = 64, TAIL = 16, HEADS = 2, WINDOW = 128, TOP = 24, KEY_WIDTH = 32, KEY_HEADS = 3,
    PAIRS = 8, KV_HEADS = 2, GROUP = 3, HEAD = 32, CONTEXT = 300, PAGES = CONTEXT / KERN_PAGE + 1
};

struct world {
    struct device *d;
    bool card;
    enum kern_kv_codec codec;
    struct device_stream near, in, far4, far128, index_in, keys;
    struct device_kv kv;
    size_t page_bytes;
    uint8_t *page[PAGES];
    struct device_vector *norm, *index_norm, *sink;
    double freq[PAIRS];
};

/* What a chunk's operations gave. */
struct result {
    float latent4[CONTEXT * HEADS * WIDTH], latent128[CONTEXT * HEADS * WIDTH];
    float full[CONTEXT * KV_HEADS * GROUP * HEAD], windowed[CONTEXT * KV_HEADS * GROUP * HEAD];
    float back[CONTEXT * WIDTH];
    int32_t sel[CONTEXT * TOP], count[CONTEXT];
};

static float input[CONTEXT * 512]; /* a part of it is what an operation reads */

#define OK(call)                   \
    do {                           \
        if (call)                  \
            fail_msg("%s", e.msg); \
    } while (0)

static struct device_stream stream(struct world *w, enum kern_kv_codec c, int64_t width,
                                   int64_t tail, int64_t every)
{
    const struct device_stream s = {c, width, tail, every, w->page_bytes};
    w->page_bytes += ((size_t)(KERN_PAGE / every) * kern_row_bytes(c, width, tail) + 63) / 64 * 64;
    return s;
}

static int always_card(void *arg, enum device_op op)
{
    (void)arg;
    (void)op;
    return 1;
}

static void open_world(struct world *w, bool card, enum kern_kv_codec c)
{
    struct err e;
    const struct device_options o = {.n_threads = 1, .cpu = UINT32_MAX};
    const enum kern_kv_codec kv = c == KERN_KV_FP8 ? KERN_KV_Q8_0 : c;
    *w = (struct world){.card = card, .codec = c};
    OK(device_create(&w->d, &o, &e));
    if (card) {
        OK(device_card_open(w->d, 1, 0, &e));
        device_gpu_set_choice(w->d, always_card, NULL);
    }
    w->near = stream(w, c, WIDTH, TAIL, 1);
    w->in = stream(w, KERN_KV_F32, 4 * WIDTH, 0, 1);
    w->far4 = stream(w, c, WIDTH, TAIL, 4);
    w->far128 = stream(w, c, WIDTH, TAIL, 128);
    w->index_in = stream(w, KERN_KV_F32, 4 * KEY_WIDTH, 0, 1);
    w->keys = stream(w, c == KERN_KV_FP8 ? KERN_KV_FP4 : c, KEY_WIDTH, 0, 4);
    const size_t kb = kern_kv_block_bytes(kv, true, HEAD);
    const size_t head_bytes = kb + kern_kv_block_bytes(kv, false, HEAD);
    w->kv = (struct device_kv){kv, kv, KV_HEADS, HEAD, HEAD, w->page_bytes, head_bytes, kb, NULL};
    w->page_bytes = (w->page_bytes + KV_HEADS * head_bytes + 63) / 64 * 64;
    uint8_t *zeros = calloc(1, w->page_bytes);
    for (int i = 0; i < PAGES; i++) {
        w->page[i] =
            card ? device_own_take(w->d, w->page_bytes) : aligned_alloc(64, w->page_bytes);
        assert_non_null(w->page[i]);
        if (card)
            device_own_put(w->d, w->page[i], zeros, w->page_bytes);
        else
            memset(w->page[i], 0, w->page_bytes);
    }
    free(zeros);
    OK(device_vector_create(&w->norm, w->d, input + 100, WIDTH, &e));
    OK(device_vector_create(&w->index_norm, w->d, input + 300, KEY_WIDTH, &e));
    OK(device_vector_create(&w->sink, w->d, input + 500, HEADS, &e));
    for (int i = 0; i < PAIRS; i++)
        w->freq[i] = pow(10000.0, -(double)i / PAIRS);
    OK(device_arena_reserve(w->d, 64 << 20, &e));
}

static void close_world(struct world *w)
{
    for (int i = 0; i < PAGES; i++) {
        if (w->card)
            device_own_give(w->d, w->page[i], w->page_bytes);
        else
            free(w->page[i]);
    }
    device_vector_free(w->norm);
    device_vector_free(w->index_norm);
    device_vector_free(w->sink);
    device_free(w->d);
}

/* Rows pos.. of the input, from some column on. */
static struct rows given(struct world *w, int64_t pos, int64_t n, int64_t at, int64_t width)
{
    const struct rows r = device_rows(w->d, n, width);
    device_write(w->d, r, input + pos * 512 + at, 512);
    return r;
}

static void taken(struct world *w, struct rows r, float *to)
{
    device_read_rows(w->d, r);
    for (int64_t i = 0; i < r.n; i++)
        memcpy(to + i * r.width, r.at + i * r.stride, (size_t)r.width * 4);
}

static void append(struct world *w, const struct device_span *span, int64_t n_spans, int64_t pos,
                   int64_t n)
{
    const struct rows x = given(w, pos, n, 0, 4 * WIDTH), k = given(w, pos, n, 7, 4 * KEY_WIDTH);
    struct device_compress c = {.in = w->in, .out = w->far4, .ratio = 4, .overlap = true,
                                .norm = w->norm, .eps = 1e-6f, .inv_freq = w->freq,
                                .n_pairs = PAIRS};
    device_rows_append(w->d, &w->near, span, n_spans, rows_columns(x, 3, WIDTH));
    device_rows_append(w->d, &w->in, span, n_spans, x);
    device_compress(w->d, &c, span, span, n_spans);
    c.out = w->far128;
    c.ratio = 128;
    c.overlap = false;
    device_compress(w->d, &c, span, span, n_spans);
    c = (struct device_compress){.in = w->index_in, .out = w->keys, .ratio = 4, .overlap = true,
                                 .norm = w->index_norm, .eps = 1e-6f, .inv_freq = w->freq,
                                 .n_pairs = PAIRS, .hadamard = true, .step = k};
    device_rows_append(w->d, &w->index_in, span, n_spans, k);
    device_compress(w->d, &c, span, span, n_spans);
    device_kv_append(w->d, &w->kv, span, n_spans, given(w, pos, n, 11, KV_HEADS * HEAD),
                     given(w, pos, n, 200, KV_HEADS * HEAD));
}

static void look(struct world *w, const struct device_span *span, int64_t n_spans, int64_t pos,
                 int64_t n, struct result *r)
{
    const struct rows q = given(w, pos, n, 50, HEADS * WIDTH),
                      index_q = given(w, pos, n, 90, KEY_HEADS * KEY_WIDTH),
                      weight = given(w, pos, n, 400, KEY_HEADS),
                      head_q = given(w, pos, n, 130, KV_HEADS * GROUP * HEAD),
                      out = device_rows(w->d, n, HEADS * WIDTH),
                      heads = device_rows(w->d, n, KV_HEADS * GROUP * HEAD),
                      back = device_rows(w->d, n, WIDTH);
    int32_t *sel = device_bytes(w->d, (size_t)(n * TOP) * 4);
    int32_t *count = device_bytes(w->d, (size_t)n * 4);
    const struct device_select s = {w->keys, KEY_HEADS, TOP};
    device_hadamard(w->d, index_q, KEY_HEADS);
    device_select(w->d, &s, span, n_spans, index_q, weight, sel, count);
    struct device_latent a = {w->near, w->far4, WINDOW, w->sink, sel, count, TOP};
    device_attend_latent(w->d, &a, span, span, n_spans, q, HEADS, out, 0.1f);
    taken(w, out, r->latent4 + pos * HEADS * WIDTH);
    a.far = w->far128;
    a.sel = a.count = NULL;
    a.top_k = 0;
    device_attend_latent(w->d, &a, span, span, n_spans, q, HEADS, out, 0.1f);
    taken(w, out, r->latent128 + pos * HEADS * WIDTH);
    device_read(w->d, count, (size_t)n * 4);
    device_read(w->d, sel, (size_t)(n * TOP) * 4);
    for (int64_t i = 0; i < n; i++) {
        r->count[pos + i] = count[i];
        memcpy(r->sel + (pos + i) * TOP, sel + i * TOP, (size_t)count[i] * 4);
    }
    device_attend(w->d, &w->kv, span, n_spans, head_q, KV_HEADS * GROUP, heads, 0, 0.2f);
    taken(w, heads, r->full + pos * KV_HEADS * GROUP * HEAD);
    device_attend(w->d, &w->kv, span, n_spans, head_q, KV_HEADS * GROUP, heads, 100, 0.2f);
    taken(w, heads, r->windowed + pos * KV_HEADS * GROUP * HEAD);
    device_rows_read(w->d, &w->near, span, n_spans, back);
    taken(w, back, r->back + pos * WIDTH);
}

/* The timeline in chunks of different lengths, some of which are two spans. */
static struct result *all_of(struct world *w)
{
    static const int64_t chunks[] = {3, 130, 1, 101, 64, 1};
    struct result *r = calloc(1, sizeof *r);
    struct err e;
    int64_t pos = 0;
    assert_non_null(r);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; pos += chunks[i++]) {
        const int64_t n = chunks[i], n1 = i % 2 && n > 2 ? n / 3 : n;
        const struct device_span span[2] = {
            {.n = n1, .pos0 = pos, .page = w->page},
            {.row0 = n1, .n = n - n1, .pos0 = pos + n1, .page = w->page}};
        device_begin(w->d, NULL);
        append(w, span, n1 < n ? 2 : 1, pos, n);
        look(w, span, n1 < n ? 2 : 1, pos, n, r);
        OK(device_status(w->d, &e));
    }
    assert_int_equal(pos, CONTEXT);
    return r;
}

static void one_codec(enum kern_kv_codec c, int order)
{
    struct world plain, card;
    const struct emu_cards cards = {
        .n = 1, .bytes = 1u << 30, .capability = 80, .order = (enum emu_order)order};
    emu_cards_set(&cards);
    open_world(&plain, false, c);
    struct result *want = all_of(&plain);
    open_world(&card, true, c);
    struct result *got = all_of(&card);
    numbers_same("latent4", got->latent4, want->latent4, CONTEXT * HEADS * WIDTH);
    numbers_same("latent128", got->latent128, want->latent128, CONTEXT * HEADS * WIDTH);
    numbers_same("full", got->full, want->full, CONTEXT * KV_HEADS * GROUP * HEAD);
    numbers_same("windowed", got->windowed, want->windowed, CONTEXT * KV_HEADS * GROUP * HEAD);
    numbers_same("back", got->back, want->back, CONTEXT * WIDTH);
    assert_memory_equal(got->count, want->count, sizeof want->count);
    assert_memory_equal(got->sel, want->sel, sizeof want->sel);
    uint8_t *page = malloc(card.page_bytes);
    for (int i = 0; i < PAGES; i++) {
        device_own_get(card.d, page, card.page[i], card.page_bytes);
        assert_memory_equal(page, plain.page[i], card.page_bytes);
    }
    static const enum device_op op[] = {
        DEVICE_OP_rows_append, DEVICE_OP_rows_read, DEVICE_OP_kv_append,     DEVICE_OP_attend,
        DEVICE_OP_compress,    DEVICE_OP_select,    DEVICE_OP_attend_latent, DEVICE_OP_hadamard};
    for (size_t i = 0; i < sizeof op / sizeof *op; i++) {
        assert_true(card.d->gpu->n_card[op[i]] > 0);
        assert_int_equal(card.d->gpu->n_host[op[i]], 0);
    }
    free(page), free(want), free(got);
    close_world(&plain);
    close_world(&card);
    assert_int_equal(emu_cards_taken(), 0);
}

static void test_streams(void **state)
{
    (void)state;
    for (int64_t i = 0; i < CONTEXT * 512; i++)
        input[i] = numbers_unit();
    one_codec(KERN_KV_FP8, EMU_UP);
    one_codec(KERN_KV_BF16, EMU_DOWN);
    one_codec(KERN_KV_F32, EMU_MIXED);
}

/* A kernel that does nothing is found before it is used, and who asks for it hears why. */
static void test_self(void **state)
{
    (void)state;
    static const struct { const char *name, *module; } kernels[] = {
#define GPU_KERNEL(name, args, threads, blocks, shared, registers, module) {#name, #module},
#include "device/gpu/kernels/kernels.inc"
#undef GPU_KERNEL
    };
    struct emu_cards cards = {.n = 1, .bytes = 1u << 30, .capability = 80};
    struct device_options o = {.n_threads = 1, .cpu = UINT32_MAX};
    struct device *d;
    struct err e;
    int n_tested = 0;
    OK(device_create(&d, &o, &e));
    OK(device_card_open(d, 1, 0, &e));
    for (int k = 0; k < GPU_KERNELS; k++) {
        const bool tested = device_gpu_self_tests(kernels[k].module);
        cards.skip = kernels[k].name;
        emu_cards_set(&cards);
        d->gpu->kernel_tried[k] = d->gpu->is_new = false;
        if (device_gpu_has(d, (enum gpu_kernel)k) == tested)
            fail_msg("'%s' does nothing, and is used", kernels[k].name);
        assert_int_equal(device_gpu_why(d, NULL) != NULL, tested);
        cards.skip = NULL;
        emu_cards_set(&cards);
        d->gpu->kernel_tried[k] = false;
        if (!device_gpu_has(d, (enum gpu_kernel)k))
            fail_msg("'%s' is not used", kernels[k].name);
        n_tested += tested;
    }
    assert_true(n_tested > 25);
    device_free(d);
    assert_int_equal(emu_cards_taken(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_streams),
                                       cmocka_unit_test(test_self)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
