/* SPDX-License-Identifier: Apache-2.0 */
/*
 * divided - lists of products and stacks of experts of which the card has a part: each side
 * computes its own, and every result is the processor's.
 */
#define _DEFAULT_SOURCE
#include "gpu/api_emu.h"
#include "gpu/numbers.h"

#include "base/mem.h"
#include "device/card.h"
#include "device/gpu/card.h"

enum { ROWS = 9, WIDTH = 96, OUT = 70, HIDDEN = 64, EXPERTS = 5, LIST = 4,
       SEEDS = UNIT_ASAN ? 6 : 24 };

#define OK(call)                   \
    do {                           \
        if (call)                  \
            fail_msg("%s", e.msg); \
    } while (0)

struct weights { struct device_matrix *m; uint8_t *at; size_t n_bytes; };

static void make(struct weights *w, struct device *d, uint32_t type, int64_t out, int64_t in,
                 int64_t n_stack)
{
    struct err e;
    uint64_t row;
    float x[WIDTH];
    assert_true(quant_bytes(type, (uint64_t)in, 1, &row));
    OK(device_matrix_create(&w->m, d, type, out, in, n_stack, &e));
    w->n_bytes = (size_t)device_matrix_bytes(w->m);
    w->at = mem_big_alloc(w->n_bytes);
    uint8_t *stored = numbers_room((size_t)(row * (uint64_t)out));
    device_matrix_place(w->m, w->at, 0);
    for (int64_t i = 0; i < n_stack; i++) {
        for (int64_t o = 0; o < out; o++) {
            for (int64_t k = 0; k < in; k++)
                x[k] = numbers_unit();
            assert_true(quant_encode(type, x, stored + (uint64_t)o * row, (size_t)in));
        }
        device_matrix_load(w->m, i, 0, out, stored);
    }
    free(stored);
}

static void drop(struct weights *w)
{
    device_matrix_free(w->m);
    mem_big_free(w->at, w->n_bytes);
}

static struct device *open_device(bool card, int order)
{
    struct err e;
    struct device *d;
    const struct emu_cards c = {
        .n = 1, .bytes = 1u << 28, .capability = 80, .order = (enum emu_order)order};
    OK(device_create(&d, &(struct device_options){.n_threads = 2, .cpu = UINT32_MAX}, &e));
    if (card) {
        emu_cards_set(&c);
        OK(device_card_open(d, 1, 0, &e));
    }
    OK(device_arena_reserve(d, 8 << 20, &e));
    device_begin(d, NULL);
    return d;
}

static struct rows filled(struct device *d, int64_t n, int64_t width)
{
    const struct rows r = device_rows(d, n, width);
    device_read_rows(d, r);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < width; k++)
            r.at[i * r.stride + k] = numbers_unit();
    device_wrote_rows(d, r);
    return r;
}

/* f32 [n][width] of the heap. */
static float *result(struct device *d, struct rows r)
{
    struct err e;
    float *out = numbers_room((size_t)(r.n * r.width) * sizeof *out);
    device_read_rows(d, r);
    OK(device_status(d, &e));
    for (int64_t i = 0; i < r.n; i++)
        memcpy(out + i * r.width, r.at + i * r.stride, (size_t)r.width * sizeof *out);
    return out;
}

/* ---- products ---- */

/* Sides: bit i is matrix i's.  Some of the rows of the second product are listed. */
static float *products(bool card, uint32_t sides, uint32_t seed)
{
    static const uint32_t type[LIST] = {QUANT_Q4_0, QUANT_Q8_0, QUANT_BF16, QUANT_Q4_0};
    static const int32_t listed[ROWS] = {3, 3, 0, 8, 1, 7, 2, 2, 5};
    struct device *d = open_device(card, (int)(seed % EMU_ORDERS));
    struct device_product p[LIST];
    struct weights w[LIST];
    numbers_state = seed + 1;
    const struct rows x = filled(d, ROWS, WIDTH), all = filled(d, ROWS, LIST * OUT);
    for (int i = 0; i < LIST; i++) {
        make(&w[i], d, type[i], OUT, WIDTH, 1);
        device_matrix_want(w[i].m, sides >> i & 1 ? DEVICE_CARD : DEVICE_HOST);
        device_matrix_upload(w[i].m);
        p[i] = (struct device_product){.w = w[i].m,
                                       .x = x,
                                       .y = rows_columns(all, i * OUT, OUT),
                                       .row = i == 1 ? listed : NULL};
    }
    device_matmul(d, p, LIST);
    float *out = result(d, all);
    if (card && sides && sides != (1u << LIST) - 1)
        assert_true(d->gpu->n_card[DEVICE_OP_matmul] && d->gpu->n_host[DEVICE_OP_matmul]);
    for (int i = 0; i < LIST; i++)
        drop(&w[i]);
    device_free(d);
    return out;
}

static void lists_of_products(void **state)
{
    (void)state;
    for (uint32_t sides = 0; sides < 1u << LIST; sides++) {
        float *want = products(false, 0, sides), *got = products(true, sides, sides);
        numbers_same("products", got, want, ROWS * LIST * OUT);
        free(want);
        free(got);
    }
    assert_int_equal(emu_cards_taken(), 0);
}

/* ---- experts ---- */

struct slot { uint8_t *own; size_t n_bytes; };

/* Expert i has all of its matrices on the card, in slots of their own, or all with the host. */
static void scatter(struct device *d, struct weights *w, uint32_t sides, struct slot slot[EXPERTS])
{
    struct err e;
    const size_t n = w->n_bytes / EXPERTS;
    OK(device_matrix_scatter(w->m, &e));
    for (int i = 0; i < EXPERTS; i++) {
        slot[i] = (struct slot){NULL, n};
        device_matrix_place_one(w->m, i, w->at + (size_t)i * n);
        if (!(sides >> i & 1))
            continue;
        slot[i].own = device_own_take(d, n);
        assert_non_null(slot[i].own);
        device_own_put(d, slot[i].own, w->at + (size_t)i * n, n);
        memset(w->at + (size_t)i * n, 0xff, n);
        device_matrix_place_own(w->m, i, slot[i].own);
    }
}

/* Pairs of rows and experts; some experts have none, some are not wanted (only). */
static float *experts(bool card, uint32_t sides, uint32_t seed, bool some)
{
    static const int32_t first[EXPERTS + 1] = {0, 4, 4, 11, 12, 14},
                         row[14] = {0, 3, 5, 8, 1, 2, 3, 4, 5, 6, 7, 0, 8, 2};
    static const uint8_t wanted[EXPERTS] = {1, 1, 0, 1, 1};
    struct device *d = open_device(card, (int)(seed % EMU_ORDERS));
    struct weights w[3];
    struct slot slot[3][EXPERTS];
    if (card)
        d->gpu->has_experts = true;
    numbers_state = seed + 1;
    make(&w[0], d, QUANT_Q4_0, HIDDEN, WIDTH, EXPERTS);
    make(&w[1], d, QUANT_Q8_0, HIDDEN, WIDTH, EXPERTS);
    make(&w[2], d, QUANT_Q8_0, OUT, HIDDEN, EXPERTS);
    const struct rows x = filled(d, ROWS, WIDTH), y = filled(d, 14, OUT);
    for (int i = 0; card && i < 3; i++)
        scatter(d, &w[i], sides, slot[i]);
    struct device_mlp m = {.gate = w[0].m, .up = w[1].m, .down = w[2].m, .act = DEVICE_SILU};
    m.first = first;
    m.row = row;
    m.only = some ? wanted : NULL;
    device_mlp(d, &m, x, y);
    float *out = result(d, y);
    if (card && (sides & 1) != (sides >> 4 & 1)) /* the first and the last are always wanted */
        assert_true(d->gpu->n_card[DEVICE_OP_mlp] && d->gpu->n_host[DEVICE_OP_mlp]);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; card && k < EXPERTS; k++)
            device_own_give(d, slot[i][k].own, slot[i][k].n_bytes);
        drop(&w[i]);
    }
    device_free(d);
    return out;
}

static void stacks_of_experts(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        const uint32_t sides = seed == 0 ? 0 : seed == 1 ? 31 : (seed * 7 + 3) & 31;
        float *want = experts(false, 0, seed, seed & 1),
              *got = experts(true, sides, seed, seed & 1);
        numbers_same("experts", got, want, 14 * OUT);
        free(want);
        free(got);
    }
    assert_int_equal(emu_cards_taken(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_products),
        cmocka_unit_test(stacks_of_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
