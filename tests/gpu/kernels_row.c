/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
/* Row kernels of a card, on the emulator, against the plain kernels of kern/: bits. */
#include "gpu/numbers.h"

#include "device/gpu/kernels/row.h"
#include "kern/kern.h"
#include "kern/kernels.h"
#include <sys/mman.h>

extern const struct kern_math_table kern_math_ref;
static const struct kern_math_table *const ref = &kern_math_ref;

/* Widths: one, below and at and above a fold, a block of columns, and several of them. */
static const int32_t widths[] = {1, 7, 31, 128, 129, 300, 1024, 1025, 2816};
enum { WIDTHS = sizeof widths / sizeof *widths, ROWS = 3, GAP = 5 };

/* Rows of `width` floats, GAP more than that apart; what lies between them must stay. */
struct table {
    int32_t width;
    int64_t stride, n;
    float *x;
};

static struct table make(int32_t width, uint32_t every)
{
    struct table t = {width, width + GAP, ROWS * (width + GAP), NULL};
    t.x = numbers_new(t.n, every);
    return t;
}

static void test_norm(void **state)
{
    (void)state;
    for (int i = 0; i < WIDTHS; i++)
        for (int kind = 0; kind < 3; kind++)
            for (int order = 0; order < EMU_ORDERS; order++) {
                /* two heads a row; kind 1: no factor, in place; kind 2: odd numbers */
                const int32_t n = widths[i];
                struct table x = make(2 * n, kind == 2 ? 40 : 0);
                float *w = numbers_new(n, 0), *y = numbers_copy(x.x, (size_t)x.n * 4);
                float *want = numbers_copy(x.x, (size_t)x.n * 4);
                float *to = kind == 1 ? x.x : y;
                for (int r = 0; r < ROWS; r++)
                    for (int h = 0; h < 2; h++)
                        ref->norm(want + r * x.stride + h * n, x.x + r * x.stride + h * n,
                                  kind == 1 ? NULL : w, n, 1e-6f);
                struct row_norm_args a = {x.x,  kind == 1 ? NULL : w, to, x.stride, x.stride,
                                          ROWS, 2,                    n,  1e-6f};
                NUMBERS_LAUNCH("row_norm", row_norm_grid(&a), a, order);
                numbers_same("norm", to, want, x.n);
                free(x.x), free(w), free(y), free(want);
            }
}

static void test_add_norm(void **state)
{
    (void)state;
    for (int i = 0; i < WIDTHS; i++)
        for (int order = 0; order < EMU_ORDERS; order++) {
            const int32_t n = widths[i];
            struct table x = make(n, 60), y = make(n, i % 2 ? 60 : 0);
            float *w = numbers_new(n, 60), *want = numbers_copy(x.x, (size_t)x.n * 4);
            float *normed = numbers_copy(y.x, (size_t)y.n * 4);
            const float scale = i % 3 ? 0.7f : 1.0f;
            for (int r = 0; r < ROWS; r++) {
                ref->norm(normed + r * y.stride, y.x + r * y.stride, w, n, 1e-5f);
                ref->add(want + r * x.stride, normed + r * y.stride, n);
                if (scale < 1.0f)
                    ref->scale(want + r * x.stride, want + r * x.stride, scale, n);
            }
            struct row_add_norm_args a = {x.x, y.x, w, x.stride, y.stride, ROWS, n, 1e-5f, scale};
            NUMBERS_LAUNCH("row_add_norm", row_add_norm_grid(&a), a, order);
            numbers_same("add_norm", x.x, want, x.n);
            free(x.x), free(y.x), free(w), free(want), free(normed);
        }
}

static void test_softmax(void **state)
{
    (void)state;
    for (int i = 0; i < WIDTHS; i++)
        for (int kind = 0; kind < 3; kind++)
            for (int order = 0; order < EMU_ORDERS; order++) {
                struct table y = make(widths[i], kind ? 50 : 0);
                for (int64_t c = 0; kind == 2 && c < y.n; c++)
                    y.x[c] = c < y.stride ? -INFINITY : c % 3 ? -0.0f : 0.0f;
                float *want = numbers_copy(y.x, (size_t)y.n * 4);
                for (int r = 0; r < ROWS; r++)
                    ref->softmax(want + r * y.stride, want + r * y.stride, y.width);
                struct row_softmax_args a = {y.x, y.stride, ROWS, y.width};
                NUMBERS_LAUNCH("row_softmax", row_softmax_grid(&a), a, order);
                numbers_same("softmax", y.x, want, y.n);
                free(y.x), free(want);
            }
}

static void test_hadamard(void **state)
{
    (void)state;
    static const int32_t power[] = {1, 2, 16, 128, 256, 1024, ROW_MOST_HEAD};
    for (int i = 0; i < 7; i++)
        for (int order = 0; order < EMU_ORDERS; order++) {
            struct table x = make(2 * power[i], i == 3 ? 100 : 0);
            float *want = numbers_copy(x.x, (size_t)x.n * 4);
            for (int r = 0; r < ROWS; r++)
                for (int h = 0; h < 2; h++)
                    kern_row_hadamard(want + r * x.stride + h * power[i], power[i]);
            struct row_hadamard_args a = {
                x.x, x.stride, ROWS, 2, power[i], (float)(1.0 / sqrt((double)power[i]))};
            NUMBERS_LAUNCH("row_hadamard", row_hadamard_grid(&a), a, order);
            numbers_same("hadamard", x.x, want, x.n);
            free(x.x), free(want);
        }
}

static void plain_pair(int op, float *y, const float *x, int64_t n)
{
    if (op == 0)
        ref->add(y, x, n);
    else if (op == 1)
        ref->mul(y, x, n);
    else if (op == 2)
        ref->scale(y, x, 0.3f, n);
    else
        memcpy(y, x, (size_t)n * sizeof *y);
}

static void test_pairs(void **state)
{
    (void)state;
    static const char *const name[] = {"row_add", "row_mul", "row_scale", "row_copy"};
    for (int op = 0; op < 4; op++)
        for (int i = 0; i < WIDTHS; i++)
            for (int order = 0; order < EMU_ORDERS; order++) {
                struct table x = make(widths[i], 9), y = make(widths[i], 9);
                const int64_t x_stride = i % 2 ? 0 : x.stride;
                float *want = numbers_copy(y.x, (size_t)y.n * 4);
                for (int r = 0; r < ROWS; r++)
                    plain_pair(op, want + r * y.stride, x.x + r * x_stride, y.width);
                struct row_pair_args a = {y.x, x.x, y.stride, x_stride, ROWS, y.width, 0.3f};
                NUMBERS_LAUNCH(name[op], row_pair_grid(&a), a, order);
                numbers_same(name[op], y.x, want, y.n);
                free(x.x), free(y.x), free(want);
            }
}

static void test_glu(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++)
        for (int i = 0; i < WIDTHS; i++)
            for (int order = 0; order < EMU_ORDERS; order++) {
                struct table gate = make(widths[i], 9), up = make(widths[i], 9);
                float *want = numbers_copy(gate.x, (size_t)gate.n * 4);
                float *g = numbers_copy(gate.x, (size_t)gate.n * 4);
                float *u = numbers_copy(up.x, (size_t)up.n * 4);
                const float limit = kind / 2 ? 0.5f : 0.0f;
                for (int r = 0; r < ROWS; r++) {
                    float *rg = g + r * gate.stride, *ru = u + r * up.stride;
                    for (int c = 0; limit > 0 && c < gate.width; c++) {
                        rg[c] = rg[c] > limit ? limit : rg[c];
                        ru[c] = ru[c] > limit ? limit : ru[c] < -limit ? -limit : ru[c];
                    }
                    (kind % 2 ? ref->glu_gelu : ref->glu_silu)(want + r * gate.stride, rg, ru,
                                                               gate.width);
                }
                struct row_glu_args a = {gate.x,    gate.x, up.x,       gate.stride, gate.stride,
                                         up.stride, ROWS,   gate.width, kind % 2,    limit};
                NUMBERS_LAUNCH("row_glu", row_glu_grid(&a), a, order);
                numbers_same("glu", gate.x, want, gate.n);
                numbers_same("up", up.x, u, up.n);
                free(gate.x), free(up.x), free(want), free(g), free(u);
            }
}

static void test_ones(void **state)
{
    (void)state;
    for (int op = 0; op < 2; op++)
        for (int i = 0; i < WIDTHS; i++)
            for (int order = 0; order < EMU_ORDERS; order++) {
                struct table y = make(widths[i], 5);
                float *want = numbers_copy(y.x, (size_t)y.n * 4);
                for (int r = 0; r < ROWS; r++) {
                    if (op)
                        ref->sqrt_softplus(want + r * y.stride, y.width);
                    else
                        ref->softcap(want + r * y.stride, 30.0f, y.width);
                }
                struct row_one_args a = {y.x, y.stride, ROWS, y.width, 30.0f};
                NUMBERS_LAUNCH(op ? "row_sqrt_softplus" : "row_softcap", row_one_grid(&a), a,
                               order);
                numbers_same(op ? "sqrt_softplus" : "softcap", y.x, want, y.n);
                free(y.x), free(want);
            }
}

static void test_gather(void **state)
{
    (void)state;
    for (int i = 0; i < WIDTHS; i++)
        for (int order = 0; order < EMU_ORDERS; order++) {
            struct table x = make(widths[i], 9), y = make(widths[i], 9);
            int32_t *row = numbers_room(ROWS * sizeof *row);
            float *want = numbers_copy(y.x, (size_t)y.n * 4);
            for (int r = 0; r < ROWS; r++) {
                row[r] = (2 * r + 1) % ROWS;
                memcpy(want + r * y.stride, x.x + row[r] * x.stride, (size_t)y.width * 4);
            }
            struct row_gather_args a = {y.x, x.x, row, y.stride, x.stride, ROWS, y.width};
            NUMBERS_LAUNCH("row_gather", row_gather_grid(&a), a, order);
            numbers_same("gather", y.x, want, y.n);
            free(x.x), free(y.x), free(row), free(want);
        }
}

static void test_weighted_sum(void **state)
{
    (void)state;
    for (int k = 1; k < 9; k += 3)
        for (int i = 0; i < WIDTHS; i++)
            for (int order = 0; order < EMU_ORDERS; order++) {
                struct table y = make(widths[i], 50), out = make(widths[i], 5);
                float *weight = numbers_new(ROWS * k, 50);
                int32_t *slot = numbers_room((size_t)(ROWS * k) * sizeof *slot);
                float *want = numbers_copy(out.x, (size_t)out.n * 4);
                for (int j = 0; j < ROWS * k; j++)
                    slot[j] = (int32_t)(numbers_draw() % ROWS);
                for (int r = 0; r < ROWS; r++) {
                    memset(want + r * out.stride, 0, (size_t)out.width * 4);
                    for (int j = r * k; j < (r + 1) * k; j++)
                        ref->add_scaled(want + r * out.stride, y.x + slot[j] * y.stride, weight[j],
                                        out.width);
                }
                struct row_weighted_sum_args a = {out.x,      y.x,      weight, slot,
                                                  out.stride, y.stride, ROWS,   out.width,
                                                  k};
                NUMBERS_LAUNCH("row_weighted_sum", row_weighted_sum_grid(&a), a, order);
                numbers_same("weighted_sum", out.x, want, out.n);
                free(y.x), free(out.x), free(weight), free(slot), free(want);
            }
}

static void test_rope(void **state)
{
    (void)state;
    static const int32_t pairs[] = {1, 16, 64, 100, 256};
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < 5; i++)
            for (int order = 0; order < EMU_ORDERS; order++) {
                /* five more elements than pairs have; they stay */
                const int32_t n = pairs[i], width = 2 * n + 5, heads = 3;
                struct table x = make(heads * width, 30), cs = make(2 * n, 30);
                float *want = numbers_copy(x.x, (size_t)x.n * 4);
                for (int r = 0; r < ROWS; r++)
                    for (int h = 0; h < heads; h++) {
                        float *to = want + r * x.stride + h * width;
                        if (kind)
                            ref->rope_pairs(to + 5, cs.x + r * cs.stride, n, kind == 2);
                        else
                            ref->rope(to, cs.x + r * cs.stride, n, n + 3);
                    }
                struct row_rope_args a = {x.x,   cs.x, x.stride, cs.stride, ROWS,     heads,
                                          width, n,    n + 3,    5,         kind == 2};
                NUMBERS_LAUNCH(kind ? "row_rope_pairs" : "row_rope", row_rope_grid(&a), a, order);
                numbers_same(kind ? "rope_pairs" : "rope", x.x, want, x.n);
                free(x.x), free(cs.x), free(want);
            }
}

/* Groups: of all kinds, zeros, below and at the law's zero, with a NaN, with an infinity. */
static void fill_groups(float *x, int64_t n, int64_t group)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t g = i / group % 7;
        x[i] = numbers_any(0);
        if (g == 1)
            x[i] = i % 2 ? 0.0f : -0.0f;
        if (g == 2)
            x[i] = numbers_unit() * 0x1p-91f;
        if (g == 3)
            x[i] = i % group ? numbers_unit() * 0x1p-90f : 0x1p-90f;
        if (i % group == 11 && (g == 4 || g == 5))
            x[i] = g == 4 ? NAN : -INFINITY;
        if (g == 6)
            x[i] = i % 5 ? 1e-42f : numbers_unit() * 3e38f;
    }
}

/* h = act(x) * up within a limit, rows as in x. */
static void gate(float *h, const struct table *x, const struct table *up, float limit, bool gelu)
{
    float *g = numbers_copy(x->x, (size_t)x->n * 4), *u = numbers_copy(up->x, (size_t)up->n * 4);
    for (int r = 0; r < ROWS; r++) {
        float *rg = g + r * x->stride, *ru = u + r * up->stride;
        for (int c = 0; limit > 0 && c < x->width; c++) {
            rg[c] = rg[c] > limit ? limit : rg[c];
            ru[c] = ru[c] > limit ? limit : ru[c] < -limit ? -limit : ru[c];
        }
        (gelu ? ref->glu_gelu : ref->glu_silu)(h + r * x->stride, rg, ru, x->width);
    }
    free(g), free(u);
}

/* kind: of codes; then whether x is gated, and how. */
static void act_is_right(int kind, int32_t n, int how, int order)
{
    const int32_t group = kind ? 256 : 32, k = n * group;
    struct table x = make(k, 0), up = make(k, 0);
    fill_groups(x.x, x.n, group);
    float *h = numbers_copy(x.x, (size_t)x.n * 4);
    struct kern_act act;
    const enum kern_act_kind q = kind ? KERN_ACT_Q256 : KERN_ACT_Q32;
    const size_t n_bytes = kern_act_bytes(q, ROWS, k);
    void *want = aligned_alloc(64, n_bytes), *got = aligned_alloc(64, n_bytes);
    memset(want, 3, n_bytes);
    memset(got, 3, n_bytes);
    struct row_act_args a = {.x = x.x, .q = got, .x_stride = x.stride, .n_rows = ROWS, .k = k};
    if (how) {
        a.up = up.x;
        a.up_stride = up.stride;
        a.gelu = how % 2;
        a.limit = how == 2 ? 0.5f : 0.0f;
        gate(h, &x, &up, a.limit, a.gelu);
    }
    kern_act_init(&act, q, ROWS, k, h, x.stride, want);
    (kind ? kern_act_q256_ref : kern_act_q32_ref)(&act, 0, ROWS);
    a.q_bytes = (int64_t)act.row_bytes;
    NUMBERS_LAUNCH(kind ? "row_act256" : "row_act32",
                   kind ? row_act256_grid(&a) : row_act32_grid(&a), a, order);
    for (size_t i = 0; i < n_bytes; i += 4) {
        uint32_t u, v;
        memcpy(&u, (char *)want + i, 4);
        memcpy(&v, (char *)got + i, 4);
        const bool nan = (u & 0x7fffffff) > 0x7f800000 && (v & 0x7fffffff) > 0x7f800000;
        if (u != v && !nan)
            fail_msg("activations %d of %d, gated %d: byte %zu: %08x, %08x is right", kind, k, how,
                     i, v, u);
    }
    free(x.x), free(up.x), free(h), free(want), free(got);
}

static void test_act(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (int32_t n = 1; n < 18; n += 8)
            for (int how = 0; how < 3; how++)
                for (int order = 0; order < EMU_ORDERS; order++)
                    act_is_right(kind, n, how, order);
}

static void test_find_bad(void **state)
{
    (void)state;
    for (int i = 0; i < WIDTHS; i++)
        for (int order = 0; order < EMU_ORDERS; order++) {
            struct table x = make(widths[i], 900);
            int32_t *column = numbers_room(ROWS * sizeof *column);
            struct row_find_bad_args a = {x.x, column, x.stride, ROWS, x.width};
            NUMBERS_LAUNCH("row_find_bad", row_find_bad_grid(&a), a, order);
            for (int r = 0; r < ROWS; r++)
                assert_int_equal(column[r], ref->find_bad(x.x + r * x.stride, x.width));
            free(x.x), free(column);
        }
}

/* Rows that are more than 2^32 bytes apart, in memory of which only they exist. */
static void test_far(void **state)
{
    (void)state;
    const int64_t stride = (1LL << 30) + 1024;
    const int32_t n = 64, row[ROWS] = {2, 0, 1}, slot[ROWS] = {2, 1, 2};
    const size_t n_bytes = (size_t)(ROWS * stride) * 4;
    float *x = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    float *y = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    float near[ROWS][64], want[ROWS][64], weight[ROWS] = {1.0f, 2.0f, 4.0f}, cs[ROWS][64];
    if (x == MAP_FAILED || y == MAP_FAILED)
        skip();
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < n; i++) {
            near[r][i] = x[r * stride + i] = numbers_unit();
            cs[r][i] = numbers_unit();
        }
    struct row_pair_args copy = {y, x, stride, stride, ROWS, n, 1.0f};
    struct row_norm_args norm = {x, NULL, y, stride, stride, ROWS, 1, n, 1e-6f};
    struct row_gather_args gather = {y, x, row, stride, stride, ROWS, n};
    struct row_weighted_sum_args sum = {y, x, weight, slot, stride, stride, ROWS, n, 1};
    struct row_rope_args rope = {y, cs[0], stride, 64, ROWS, 1, n, 32, 32, 0, 0};
    for (int kind = 0; kind < 4; kind++) {
        if (kind == 0)
            NUMBERS_LAUNCH("row_copy", row_pair_grid(&copy), copy, EMU_UP);
        if (kind == 1)
            NUMBERS_LAUNCH("row_norm", row_norm_grid(&norm), norm, EMU_UP);
        if (kind == 2)
            NUMBERS_LAUNCH("row_gather", row_gather_grid(&gather), gather, EMU_UP);
        if (kind == 3) {
            NUMBERS_LAUNCH("row_weighted_sum", row_weighted_sum_grid(&sum), sum, EMU_UP);
            NUMBERS_LAUNCH("row_rope", row_rope_grid(&rope), rope, EMU_UP);
        }
        for (int r = 0; r < ROWS; r++) {
            const float *from = near[kind == 2 ? row[r] : kind == 3 ? slot[r] : r];
            memcpy(want[r], from, sizeof want[r]);
            if (kind == 1)
                ref->norm(want[r], from, NULL, n, 1e-6f);
            if (kind == 3) {
                ref->scale(want[r], from, weight[r], n);
                ref->rope(want[r], cs[r], 32, 32);
            }
            numbers_same("far rows", y + r * stride, want[r], n);
        }
    }
    munmap(x, n_bytes);
    munmap(y, n_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),     cmocka_unit_test(test_add_norm),
        cmocka_unit_test(test_softmax),  cmocka_unit_test(test_hadamard),
        cmocka_unit_test(test_pairs),    cmocka_unit_test(test_glu),
        cmocka_unit_test(test_ones),     cmocka_unit_test(test_gather),
        cmocka_unit_test(test_rope),     cmocka_unit_test(test_weighted_sum),
        cmocka_unit_test(test_act),      cmocka_unit_test(test_find_bad),
        cmocka_unit_test(test_far),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
