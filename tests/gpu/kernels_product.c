/* SPDX-License-Identifier: Apache-2.0 */
/* Products and rows of matrices on the emulated card against the plain kernels, bit for bit. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "unit/unit.h"

#include "base/mem.h"
#include "device/gpu/kernels/kernels.h"
#include "gpu/emu.h"
#include "kern/kernels.h"
#include "kerncheck/checks.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* name of the kernels, type, whether activations stay f32. */
static const struct code {
    const char *name;
    uint32_t type;
    bool floats;
} codes[] = {
    {"f32", QUANT_F32, false},        {"f16", QUANT_F16, false},
    {"bf16", QUANT_BF16, false},      {"f8", QUANT_FP8_B32, false},
    {"f8s", QUANT_FP8_S32, false},    {"w8", QUANT_Q8_0, true},
    {"q4_0", QUANT_Q4_0, false},      {"q4_1", QUANT_Q4_1, false},
    {"q5_0", QUANT_Q5_0, false},      {"q5_1", QUANT_Q5_1, false},
    {"q8_0", QUANT_Q8_0, false},      {"iq4_nl", QUANT_IQ4_NL, false},
    {"mxfp4", QUANT_MXFP4, false},    {"nvfp4", QUANT_NVFP4, false},
    {"q1_0", QUANT_Q1_0, false},      {"q2_0", QUANT_Q2_0, false},
    {"q2_k", QUANT_Q2_K, false},      {"q3_k", QUANT_Q3_K, false},
    {"q4_k", QUANT_Q4_K, false},      {"q5_k", QUANT_Q5_K, false},
    {"q6_k", QUANT_Q6_K, false},      {"iq4_xs", QUANT_IQ4_XS, false},
    {"tq2_0", QUANT_TQ2_0, false},    {"iq2_xxs", QUANT_IQ2_XXS, false},
    {"iq2_xs", QUANT_IQ2_XS, false},  {"iq2_s", QUANT_IQ2_S, false},
    {"iq3_xxs", QUANT_IQ3_XXS, false}, {"iq3_s", QUANT_IQ3_S, false},
};
enum { N_CODES = sizeof codes / sizeof *codes, STACK = 3 };

static void *take(size_t n_bytes)
{
    void *p = mem_big_alloc(n_bytes ? n_bytes : 1);
    assert_non_null(p);
    return p;
}

/* A stack of matrices of random bits, mostly finite. */
struct weights {
    struct kern_matrix m;
    uint8_t *all;
    size_t each, n_bytes;
};
static void weights_make(struct weights *w, struct noise *r, const struct code *c, int64_t out,
                         int64_t in)
{
    struct err err = {0};
    const ingle_status s = c->floats
                               ? kern_matrix_init_floats(&w->m, c->type, out, in, &err)
                               : kern_matrix_init(&w->m, c->type, out, in, &err);
    if (s != INGLE_OK)
        fail_msg("%s", err.msg);
    const struct quant_info *info = quant_info(c->type);
    const size_t row = (size_t)(in / info->n) * info->n_bytes, n = row * (size_t)out;
    uint8_t *stored = take(n);
    w->each = kern_matrix_bytes(&w->m);
    w->n_bytes = STACK * w->each;
    w->all = take(w->n_bytes);
    for (int e = 0; e < STACK; e++) {
        const uint8_t mask = noise_below(r, 4) ? 0xBF : 0xFF;
        for (size_t i = 0; i < n; i++)
            stored[i] = (uint8_t)noise_next(r) & mask;
        w->m.at = w->all + (size_t)e * w->each;
        kern_pack(&w->m, 0, w->m.n_panels, stored);
    }
    w->m.at = w->all;
    mem_big_free(stored, n);
}

static float draw(struct noise *r, int64_t kind)
{
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, 3e38f, 1e-28f};
    return kind == 0   ? odd[noise_below(r, 8)]
           : kind == 1 ? noise_unit(r) * 1e-28f
           : kind == 2 ? (noise_below(r, 20) ? 3.0f : -3.0f)
                       : noise_unit(r) * (noise_below(r, 30) ? 1.0f : 30.0f);
}

/* Prepared rows; a whole number of 16 bytes from one to the next. */
struct acts {
    struct kern_act a;
    float *x;
    uint8_t *mem;
    size_t n_x, n_mem;
};
static void acts_make(struct acts *s, struct noise *r, enum kern_act_kind kind, int64_t n,
                      int64_t k)
{
    const int64_t stride = (k + 3) / 4 * 4 + 4 * noise_below(r, 3);
    s->n_x = (size_t)(n * stride) * sizeof *s->x;
    s->x = take(s->n_x);
    for (int64_t i = 0; i < n * stride; i++)
        s->x[i] = draw(r, i % 32 == 0 && noise_below(r, 12) == 0 ? 0 : i / 32 % 7 == 1 ? 1 : 3);
    s->n_mem = kern_act_bytes(kind, n, k);
    s->mem = take(s->n_mem);
    kern_act_init(&s->a, kind, n, k, s->x, stride, s->mem);
    if (kind == KERN_ACT_Q32)
        kern_act_q32_ref(&s->a, 0, n);
    else if (kind == KERN_ACT_Q256)
        kern_act_q256_ref(&s->a, 0, n);
}

static const char *what; /* the kernel that runs */

static void compare(const float *got, const float *want, int64_t n, int64_t stride, int64_t out,
                    int64_t in)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t o = 0; o < stride; o++)
            if (!noise_same(got[i * stride + o], want[i * stride + o]))
                fail_msg("%s %lld x %lld: row %lld, output %lld is %a, not %a", what,
                         (long long)out, (long long)in, (long long)i, (long long)o,
                         (double)got[i * stride + o], (double)want[i * stride + o]);
}

static void plain(const struct weights *w, int e, const struct kern_act *a, const int32_t *row,
                  int64_t n, float scale, float *y, int64_t y_stride)
{
    struct kern_matrix m = w->m;
    m.at = w->all + (size_t)e * w->each;
    const struct kern_matmul mm = {&m, a, row, n, y, y_stride};
    if (m.act == KERN_ACT_F32)
        kern_matmul_float_ref(&mm, 0, m.n_panels);
    else
        kern_matmul_quantised_ref(&mm, 0, m.n_panels);
    for (int64_t i = 0; i < n; i++)
        for (int64_t o = 0; o < m.out; o++)
            y[i * y_stride + o] *= scale;
}

static struct product_args args_of(const struct weights *w, const struct acts *x, float *y,
                                   int64_t y_stride, int64_t n, int rows)
{
    return (struct product_args){
        .w = w->all,
        .stack_step = (int64_t)w->each,
        .panel_bytes = (int64_t)w->m.panel_bytes,
        .stretch_bytes = (int64_t)w->m.stretch_bytes,
        .x = w->m.act == KERN_ACT_F32 ? (const uint8_t *)x->x : x->mem,
        .x_row_bytes = w->m.act == KERN_ACT_F32 ? x->a.stride * 4 : (int64_t)x->a.row_bytes,
        .y = y,
        .y_stride = y_stride,
        .out = (int32_t)w->m.out,
        .in = (int32_t)w->m.in,
        .n_panels = (int32_t)w->m.n_panels,
        .n = (int32_t)n,
        .n_stack = STACK,
        .n_bands = (int32_t)gpu_parts(w->m.n_panels, KERN_BAND),
        .parts = product_parts(w->m.in, kern_matrix_slice(&w->m), rows, product_book(w->m.type)),
        .book = product_book(w->m.type)};
}

static void launch(const struct code *c, const struct product_args *a, int rows,
                   enum emu_order order)
{
    char name[64];
    (void)snprintf(name, sizeof name, "product_%s_%d", c->name, rows);
    what = name;
    const struct emu_kernel *k = emu_find(name);
    assert_non_null(k);
    emu_launch_with(k, product_grid(a, rows), k->threads, (size_t)product_shared(a, rows), a,
                    sizeof *a, order);
}

/* By matrix instructions, if there is such a kernel. */
static bool launch_many(const struct code *c, const struct product_args *a, enum emu_order order)
{
    static char name[64];
    (void)snprintf(name, sizeof name, "many_%s", c->name);
    what = name;
    const struct emu_kernel *k = emu_find(name);
    if (k)
        emu_launch(k, many_grid(a), a, sizeof *a, order);
    return k != NULL;
}

/* Two matrices of the stack in one launch: few rows at a time, and many.  want: of the first. */
static void check_pair(const struct code *c, struct noise *r, const struct weights *w,
                       const struct acts *x, const int32_t *list, int index, int64_t n,
                       int64_t stride, const float *want)
{
    const size_t n_y = (size_t)(n * stride) * sizeof(float);
    const int other = (index + 1) % STACK;
    float *both = take(2 * n_y), *got = take(2 * n_y);
    memcpy(both, want, n_y);
    memset(both + n * stride, 1, n_y);
    plain(w, other, &x->a, list, n, 1.0f, both + n * stride, stride);
    for (int many = 0; many < 2; many++) {
        const int rows = 1 + (int)noise_below(r, 3);
        const enum emu_order order = (enum emu_order)noise_below(r, EMU_ORDERS);
        struct product_args a = args_of(w, x, got, stride, n, rows);
        a.row = list;
        a.index = index;
        a.w2 = w->all + ((int64_t)other - index) * (int64_t)w->each;
        a.y2 = n * stride;
        memset(got, 1, 2 * n_y);
        if (!many)
            launch(c, &a, rows, order);
        if (!many || launch_many(c, &a, order))
            compare(got, both, 2 * n, stride, w->m.out, w->m.in);
    }
    mem_big_free(both, 2 * n_y);
    mem_big_free(got, 2 * n_y);
}

/* One matrix of the stack, rows in their order or listed, some bands only. */
static void check_one(const struct code *c, struct noise *r, const struct weights *w, int64_t n)
{
    const int64_t stride = w->m.out + noise_below(r, 5), n_x = n + 2;
    struct acts x;
    acts_make(&x, r, w->m.act, n_x, w->m.in);
    const size_t n_y = (size_t)(n * stride) * sizeof(float);
    float *want = take(n_y), *got = take(n_y);
    int32_t row[64];
    for (int64_t i = 0; i < n; i++)
        row[i] = (int32_t)noise_below(r, n_x);
    const int32_t *list = noise_below(r, 2) ? row : NULL;
    const int index = (int)noise_below(r, STACK);
    memset(want, 1, n_y);
    plain(w, index, &x.a, list, n, 1.0f, want, stride);
    for (int rows = 1; rows <= 3; rows++) {
        struct product_args a = args_of(w, &x, got, stride, n, rows);
        a.row = list;
        a.index = index;
        memset(got, 1, n_y);
        const int32_t bands = a.n_bands, cut = (int32_t)noise_below(r, bands);
        if (cut) {
            a.n_bands = cut;
            launch(c, &a, rows, (enum emu_order)(rows % EMU_ORDERS));
        }
        a.band0 = cut;
        a.n_bands = bands - cut;
        a.parts = 4; /* several rounds of sums */
        launch(c, &a, rows, (enum emu_order)((rows + 1) % EMU_ORDERS));
        compare(got, want, n, stride, w->m.out, w->m.in);
    }
    if (noise_below(r, 3) == 0)
        check_pair(c, r, w, &x, list, index, n, stride, want);
    mem_big_free(want, n_y);
    mem_big_free(got, n_y);
    mem_big_free(x.x, x.n_x);
    mem_big_free(x.mem, x.n_mem);
}

/* A stack: rows of each matrix, one without, one that is left out or not there, factors. */
static void check_stack(const struct code *c, struct noise *r, const struct weights *w)
{
    enum { N = 7 };
    const int32_t first[STACK + 1] = {0, 5, 5, N}, n = N;
    const int64_t stride = w->m.out, n_x = 4;
    static const float scale[STACK] = {0.7f, 3.0f, -1.25f};
    const uint64_t there[STACK] = {(uintptr_t)w->all, 0, (uintptr_t)(w->all + 2 * w->each)};
    struct acts x;
    acts_make(&x, r, w->m.act, n_x, w->m.in);
    const size_t n_y = (size_t)(n * stride) * sizeof(float);
    float *want = take(n_y), *got = take(n_y);
    int32_t row[N];
    for (int i = 0; i < n; i++)
        row[i] = (int32_t)noise_below(r, n_x);
    for (int left_out = 0; left_out < 2; left_out++)
        for (int rows = 1; rows <= 3; rows++) {
            const uint8_t only[STACK] = {1, 1, left_out ? 0 : 2};
            uint64_t at[STACK];
            memcpy(at, there, sizeof at);
            if (left_out && rows == 2)
                at[0] = 0;
            memset(want, 1, n_y);
            for (int e = 0; e < STACK; e++)
                if (only[e] && at[e])
                    plain(w, e, &x.a, row + first[e], first[e + 1] - first[e], scale[e],
                          want + first[e] * stride, stride);
            memset(got, 1, n_y);
            struct product_args a = args_of(w, &x, got, stride, n, rows);
            a.row = row;
            a.first = first;
            a.only = only;
            a.scale = scale;
            a.each = left_out ? at : NULL;
            launch(c, &a, rows, (enum emu_order)(rows % EMU_ORDERS));
            compare(got, want, n, stride, w->m.out, w->m.in);
            memset(got, 1, n_y);
            if (launch_many(c, &a, (enum emu_order)(rows % EMU_ORDERS)))
                compare(got, want, n, stride, w->m.out, w->m.in);
        }
    mem_big_free(want, n_y);
    mem_big_free(got, n_y);
    mem_big_free(x.x, x.n_x);
    mem_big_free(x.mem, x.n_mem);
}

static void check_embed(const struct code *c, struct noise *r, const struct weights *w)
{
    enum { N = 4 };
    char name[64];
    (void)snprintf(name, sizeof name, "embed_%s", c->name);
    what = name;
    const struct emu_kernel *k = emu_find(name);
    assert_non_null(k);
    const int64_t stride = w->m.in + 3;
    int32_t tokens[N];
    const size_t n_y = (size_t)(N * stride) * sizeof(float);
    float *want = take(n_y), *got = take(n_y);
    memset(want, 1, n_y);
    memset(got, 1, n_y);
    for (int i = 0; i < N; i++) {
        tokens[i] = (int32_t)(i ? noise_below(r, w->m.out) : w->m.out - 1);
        kern_unpack_row(&w->m, tokens[i], want + i * stride);
        for (int64_t j = 0; j < w->m.in; j++)
            want[i * stride + j] *= 1.7f;
    }
    const struct embed_args a = {w->all, (int64_t)w->m.panel_bytes, (int64_t)w->m.stretch_bytes,
                                 tokens, got, stride, 1.7f, (int32_t)w->m.in,
                                 (int32_t)w->m.n_panels, N};
    emu_launch(k, embed_grid(&a), &a, sizeof a, (enum emu_order)noise_below(r, EMU_ORDERS));
    compare(got, want, N, stride, w->m.out, w->m.in);
    mem_big_free(want, n_y);
    mem_big_free(got, n_y);
}

static void check_code(const struct code *c, uint64_t seed)
{
    static const struct { int out, in; } shapes[] = {{16, 256}, {70, 1280}, {1, 512}, {129, 5376},
                                                     {40, 2816}};
    struct noise r = {seed};
    const int64_t block = quant_info(c->type)->n;
    for (int i = 0; i < (UNIT_ASAN ? 2 : 5); i++) {
        /* The last slice, chunk and group are short where the blocks allow. */
        const int64_t in = shapes[i].in + (block < 256 ? 32 * (i % 3) / block * block : 0) +
                           (block == 1 ? i % 5 : 0);
        struct weights w;
        weights_make(&w, &r, c, shapes[i].out, in);
        check_one(c, &r, &w, i == 0 ? (UNIT_ASAN ? 19 : 41) : i == 1 ? 7 : 1 + noise_below(&r, 4));
        if (i < 2)
            check_stack(c, &r, &w);
        check_embed(c, &r, &w);
        mem_big_free(w.all, w.n_bytes);
    }
}

static void test_codes(void **state)
{
    (void)state;
    for (int i = 0; i < N_CODES; i++)
        check_code(&codes[i], (uint64_t)i + 1);
}

static void *hole(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* The last band of a matrix of more than 4 GiB, whose other bytes are a hole. */
static void test_large(void **state)
{
    (void)state;
    enum { IN = 1024, N = 5 };
    struct noise r = {9};
    struct weights w;
    const int64_t out = ((int64_t)1 << 32) / 9216 * 16 + 16 * 200 + 7;
    assert_int_equal(kern_matrix_init(&w.m, QUANT_Q4_0, out, IN, NULL), INGLE_OK);
    w.each = kern_matrix_bytes(&w.m);
    assert_true(w.each > (size_t)1 << 32);
    const size_t n_y = (size_t)(N * out) * sizeof(float);
    float *want = hole(n_y), *got = hole(n_y);
    w.m.at = w.all = hole(w.each);
    if (!w.all || !want || !got)
        skip(); /* address space is limited */
    const int64_t bands = gpu_parts(w.m.n_panels, KERN_BAND), p0 = (bands - 1) * KERN_BAND;
    for (size_t i = (size_t)p0 * w.m.panel_bytes; i < w.each; i++)
        w.all[i] = (uint8_t)noise_next(&r) & 0xBF;
    struct acts x;
    acts_make(&x, &r, w.m.act, N, IN);
    const struct kern_matmul mm = {&w.m, &x.a, NULL, N, want, out};
    kern_matmul_quantised_ref(&mm, p0, w.m.n_panels);
    for (int many = 0; many < 2; many++) {
        const struct code *c = &codes[6];
        struct product_args a = args_of(&w, &x, got, out, N, 3);
        a.band0 = (int32_t)bands - 1;
        a.n_bands = 1;
        if (many)
            assert_true(launch_many(c, &a, EMU_UP));
        else
            launch(c, &a, 3, EMU_DOWN);
        for (int64_t i = 0; i < N; i++)
            for (int64_t o = p0 * KERN_PANEL; o < out; o++) {
                assert_true(noise_same(got[i * out + o], want[i * out + o]));
                got[i * out + o] = 0;
            }
    }
    munmap(w.all, w.each);
    munmap(want, n_y);
    munmap(got, n_y);
    mem_big_free(x.x, x.n_x);
    mem_big_free(x.mem, x.n_mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
