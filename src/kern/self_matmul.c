/* SPDX-License-Identifier: Apache-2.0 */
/* The start-up comparison of the chosen product kernels with their plain twins. */
#include "kern/kernels.h"

#include "base/cpu.h"
#include "base/report.h"
#include "kern/self.h"
#include <string.h>

static const struct kernel {
    uint32_t needs, code;
    kern_matmul_fn *fn;
    const char *name;
} kernels[] = {
#define KERN_MATMUL(needs, code, fn) {needs, KERN_CODE_##code, fn, #fn},
#include "kern/matmul.inc"
#undef KERN_MATMUL
};

static const struct quantiser {
    uint32_t needs;
    enum kern_act_kind kind;
    kern_act_fn *fn;
} quantisers[] = {
#define KERN_ACT(needs, kind, fn) {needs, KERN_ACT_##kind, fn},
#include "kern/act.inc"
#undef KERN_ACT
};

/* What the recipes of --numerics fast compute. */
static const struct law {
    const char *recipe;
    kern_matmul_fn *fn;
} laws[] = {
#define KERN_FAST_LAW(recipe, fn) {recipe, fn},
#define KERN_FAST(needs, recipe, code, fn)
#include "kern/fast.inc"
#undef KERN_FAST
#undef KERN_FAST_LAW
};

enum { OUT = 20, IN = 256, ROWS = 5, ROW_BYTES = IN * 4 };

struct data {
    ATTR_ALIGNED(64) uint8_t panel[2 * KERN_PANEL * ROW_BYTES];
    ATTR_ALIGNED(64) uint8_t act[ROWS * IN * 3];
    uint8_t stored[OUT * ROW_BYTES];
    float x[ROWS * IN], want[ROWS * OUT], got[ROWS * OUT];
};

/* Any bytes are blocks of any type; NaN scales only hide differences, so the top exponent
 * bit of what may be a half or a float is cleared. */
static void fill_weights(struct data *d, uint32_t seed)
{
    for (size_t i = 0; i < sizeof d->stored; i++) {
        seed = seed * 1664525u + 1013904223u;
        d->stored[i] = (uint8_t)(seed >> 24 & 0xBF);
    }
}

static kern_matmul_fn *twin(uint32_t code)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].code == code)
            return kernels[i].fn;
    return NULL;
}

static kern_act_fn *act_twin(enum kern_act_kind kind)
{
    for (size_t i = 0; i < sizeof quantisers / sizeof *quantisers; i++)
        if (quantisers[i].kind == kind)
            return quantisers[i].fn;
    return NULL;
}

static bool same(struct data *d, const struct kern_matrix *w, enum kern_act_kind kind,
                 kern_matmul_fn *law, kern_matmul_fn *fn)
{
    static const int32_t row[ROWS] = {4, 0, 2, 2, 1};
    struct kern_act a;
    kern_act_init(&a, kind, ROWS, IN, d->x, IN, d->act);
    if (act_twin(kind))
        act_twin(kind)(&a, 0, ROWS);
    for (int64_t n = 1; n <= ROWS; n += ROWS - 1) {
        struct kern_matmul m = {w, &a, row, n, d->want, OUT};
        law(&m, 0, w->n_panels);
        m.y = d->got;
        fn(&m, 0, w->n_panels);
        if (!kern_self_same(d->want, d->got, n * OUT))
            return false;
    }
    return true;
}

static bool act_same(struct data *d, enum kern_act_kind kind, kern_act_fn *fn)
{
    struct kern_act a;
    kern_act_init(&a, kind, ROWS, IN, d->x, IN, d->act);
    act_twin(kind)(&a, 0, ROWS);
    a.q = d->panel;
    fn(&a, 0, ROWS);
    for (int64_t r = 0; r < ROWS; r++)
        if (memcmp(d->act + (size_t)r * a.row_bytes, d->panel + (size_t)r * a.row_bytes,
                   kind == KERN_ACT_Q32    ? IN / 32 * sizeof(struct kern_act32)
                   : kind == KERN_ACT_Q256 ? IN / 256 * sizeof(struct kern_act256)
                                           : IN * sizeof(uint16_t)) != 0)
            return false;
    return true;
}

/* A type that runs as this code. */
static bool matrix_of(uint32_t code, struct kern_matrix *w)
{
    for (uint32_t type = 0; type < 256; type++)
        if (kern_matrix_init(w, type, OUT, IN, NULL) == INGLE_OK && w->code == code)
            return true;
    return kern_matrix_init_floats(w, QUANT_Q8_0, OUT, IN, NULL) == INGLE_OK && w->code == code;
}

static int test_code(struct kern_matmul_table *t, uint32_t cpu, uint32_t code, struct data *d,
                     const struct report_sink *sink)
{
    struct kern_matrix w;
    if (!t->run[code] || t->run[code] == twin(code) || !matrix_of(code, &w))
        return 0;
    w.at = d->panel;
    kern_pack(&w, 0, w.n_panels, d->stored);
    if (same(d, &w, w.act, twin(code), t->run[code]))
        return 0;
    const char *bad = t->name[code];
    for (size_t i = sizeof kernels / sizeof *kernels; i-- > 0;)
        if (kernels[i].code == code && (kernels[i].needs & ~cpu) == 0 &&
            same(d, &w, w.act, twin(code), kernels[i].fn)) {
            t->run[code] = kernels[i].fn;
            t->name[code] = kernels[i].name;
            break;
        }
    report(sink, INGLE_REPORT_WARN, "kernel", bad,
           "differs from the plain kernel; '%s' is used instead", t->name[code]);
    return 1;
}

/* Rows that fill a tile, and some more, by their order, in another one, and as tiles. */
static bool many_same(const struct kern_matrix *w, enum kern_act_kind kind, kern_matmul_fn *law,
                      kern_matmul_fn *fn, kern_act_fn *const *tiles)
{
    enum { N = 19 };
    ATTR_ALIGNED(64)
    uint8_t mem[N * IN * 3], more[2 * IN / 32 / KERN_TILES_GROUPS * KERN_TILES_BYTES];
    static_assert(sizeof more >= IN / 256 * sizeof(struct kern_tiles256), "tiles of either kind");
    float x[N * IN], want[N * OUT], got[N * OUT];
    int32_t row[N];
    struct kern_act a;
    kern_self_fill(x, N * IN, 17);
    kern_act_init(&a, kind, N, IN, x, IN, mem);
    act_twin(kind)(&a, 0, N);
    for (int i = 0; i < N; i++)
        row[i] = (i * 7 + 3) % N;
    for (int turn = 0; turn < (tiles[kind] ? 3 : 2); turn++) {
        struct kern_matmul m = {w, &a, turn == 1 ? row : NULL, N, want, OUT};
        if (turn == 2) {
            a.tiles = more;
            tiles[kind](&a, 0, N);
        }
        law(&m, 0, w->n_panels);
        m.y = got;
        fn(&m, 0, w->n_panels);
        if (!kern_self_same(want, got, N * OUT))
            return false;
    }
    return true;
}

static int test_ahead(struct kern_matmul_table *t, uint32_t code, struct data *d,
                      const struct report_sink *sink)
{
    struct kern_matrix w;
    if (!t->ahead[code] || !matrix_of(code, &w))
        return 0;
    w.at = d->panel;
    kern_pack(&w, 0, w.n_panels, d->stored);
    if (same(d, &w, w.act, twin(code), t->ahead[code]))
        return 0;
    report(sink, INGLE_REPORT_WARN, "kernel", t->ahead_name[code],
           "differs from the plain kernel; '%s' is used instead", t->name[code]);
    t->ahead[code] = NULL;
    return 1;
}

static int test_many(struct kern_matmul_table *t, uint32_t code, struct data *d,
                     const struct report_sink *sink)
{
    struct kern_matrix w;
    if (!t->many[code] || !matrix_of(code, &w))
        return 0;
    w.at = d->panel;
    kern_pack(&w, 0, w.n_panels, d->stored);
    if (same(d, &w, w.act, twin(code), t->many[code]) &&
        many_same(&w, w.act, twin(code), t->many[code], t->tiles))
        return 0;
    report(sink, INGLE_REPORT_WARN, "kernel", t->many_name[code],
           "differs from the plain kernel; '%s' is used instead", t->name[code]);
    t->many[code] = NULL;
    return 1;
}

/* One that differs takes the others of its recipe with it: that is what all do. */
static int test_recipe(struct kern_matmul_table *t, const struct law *law, struct data *d,
                       const struct report_sink *sink)
{
    for (uint32_t code = 0; code < KERN_CODE_N; code++) {
        struct kern_matrix w;
        if (!t->fast[code] || strcmp(t->recipe[code], law->recipe) != 0 || !matrix_of(code, &w))
            continue;
        w.at = d->panel;
        kern_pack(&w, 0, w.n_panels, d->stored);
        if (same(d, &w, kern_matmul_fast_act(&w), law->fn, t->fast[code]) &&
            many_same(&w, kern_matmul_fast_act(&w), law->fn, t->fast[code], t->tiles))
            continue;
        report(sink, INGLE_REPORT_WARN, "kernel", t->fast_name[code],
               "differs from the plain kernel; '%s' is not used", law->recipe);
        for (code = 0; code < KERN_CODE_N; code++)
            if (t->recipe[code] && strcmp(t->recipe[code], law->recipe) == 0) {
                t->fast[code] = NULL;
                t->fast_name[code] = t->recipe[code] = NULL;
            }
        return 1;
    }
    return 0;
}

static int test_act(struct kern_matmul_table *t, uint32_t cpu, enum kern_act_kind kind,
                    struct data *d, const struct report_sink *sink)
{
    if (!t->act[kind] || act_same(d, kind, t->act[kind]))
        return 0;
    for (size_t i = sizeof quantisers / sizeof *quantisers; i-- > 0;)
        if (quantisers[i].kind == kind && (quantisers[i].needs & ~cpu) == 0 &&
            act_same(d, kind, quantisers[i].fn)) {
            t->act[kind] = quantisers[i].fn;
            break;
        }
    static const char *const name[KERN_ACT_KINDS] = {"", "act q32", "act q256", "act bf16"};
    report(sink, INGLE_REPORT_WARN, "kernel", name[kind],
           "differs from the plain kernel; a slower one is used instead");
    return 1;
}

int kern_matmul_self_test(struct kern_matmul_table *t, uint32_t cpu, const struct report_sink *sink)
{
    struct data d;
    int n_bad = 0;
    fill_weights(&d, 7);
    kern_self_fill(d.x, ROWS * IN, 11);
    for (int kind = KERN_ACT_Q32; kind < KERN_ACT_KINDS; kind++)
        n_bad += test_act(t, cpu, (enum kern_act_kind)kind, &d, sink);
    for (uint32_t code = 0; code < KERN_CODE_N; code++)
        n_bad += test_code(t, cpu, code, &d, sink) + test_ahead(t, code, &d, sink) +
                 test_many(t, code, &d, sink);
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++)
        n_bad += test_recipe(t, &laws[i], &d, sink);
    return n_bad;
}
