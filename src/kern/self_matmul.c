/* SPDX-License-Identifier: Apache-2.0 */
/* The start-up comparison of the chosen product kernels with their plain versions. */
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
#define KERN_FAST_REF(recipe, fn) {recipe, fn},
#define KERN_FAST(needs, recipe, code, fn)
#include "kern/fast.inc"
#undef KERN_FAST
#undef KERN_FAST_REF
};

/* Rows that fill a tile, and some more. */
enum { OUT = 20, IN = 256, ROWS = 19, FEW = 5, ROW_BYTES = IN * 4 };

struct data {
    ATTR_ALIGNED(64) uint8_t panel[2 * KERN_PANEL * ROW_BYTES];
    ATTR_ALIGNED(64) uint8_t act[ROWS * IN * 3], other_act[ROWS * IN * 3];
    ATTR_ALIGNED(64) uint8_t tiles[2 * IN / 32 / KERN_TILES_GROUPS * KERN_TILES_BYTES];
    uint8_t stored[OUT * ROW_BYTES];
    float x[ROWS * IN], got[ROWS * OUT];
    float want[ROWS * OUT]; /* of the plain kernel: each row's results, whatever stands beside it */
};
static_assert(2 * IN / 32 / KERN_TILES_GROUPS * KERN_TILES_BYTES >=
                  IN / 256 * sizeof(struct kern_tiles256),
              "tiles of either kind");

/* Any bytes are blocks of any type; NaN scales only hide differences, so the top exponent
 * bit of what may be a half or a float is cleared. */
static void fill_weights(struct data *d, uint32_t seed)
{
    for (size_t i = 0; i < sizeof d->stored; i++) {
        seed = seed * 1664525u + 1013904223u;
        d->stored[i] = (uint8_t)(seed >> 24 & 0xBF);
    }
}

static kern_matmul_fn *plain(uint32_t code)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].code == code)
            return kernels[i].fn;
    return NULL;
}

static kern_act_fn *plain_act(enum kern_act_kind kind)
{
    for (size_t i = 0; i < sizeof quantisers / sizeof *quantisers; i++)
        if (quantisers[i].kind == kind)
            return quantisers[i].fn;
    return NULL;
}

/* The activations, and what the plain kernel makes of them. */
static void compute(struct data *d, const struct kern_matrix *w, enum kern_act_kind kind,
                    kern_matmul_fn *law, struct kern_act *a)
{
    kern_act_init(a, kind, ROWS, IN, d->x, IN, d->act);
    if (plain_act(kind))
        plain_act(kind)(a, 0, ROWS);
    const struct kern_matmul m = {w, a, NULL, ROWS, d->want, OUT};
    law(&m, 0, w->n_panels);
}

/* row: NULL: as they are */
static bool rows_same(struct data *d, const struct kern_matrix *w, const struct kern_act *a,
                      const int32_t *row, int64_t n, kern_matmul_fn *fn)
{
    const struct kern_matmul m = {w, a, row, n, d->got, OUT};
    fn(&m, 0, w->n_panels);
    for (int64_t i = 0; i < n; i++)
        if (!kern_self_same(d->want + (row ? row[i] : i) * OUT, d->got + i * OUT, OUT))
            return false;
    return true;
}

/* One row, and a few, one of them twice. */
static bool few_same(struct data *d, const struct kern_matrix *w, const struct kern_act *a,
                     kern_matmul_fn *fn)
{
    static const int32_t row[FEW] = {4, 0, 2, 2, 1};
    return rows_same(d, w, a, row, 1, fn) && rows_same(d, w, a, row, FEW, fn);
}

/* All rows, in another order, and as tiles. */
static bool many_same(struct data *d, const struct kern_matrix *w, struct kern_act *a,
                      kern_matmul_fn *fn, kern_act_fn *const *tiles)
{
    int32_t row[ROWS];
    for (int i = 0; i < ROWS; i++)
        row[i] = (i * 7 + 3) % ROWS;
    if (!rows_same(d, w, a, NULL, ROWS, fn) || !rows_same(d, w, a, row, ROWS, fn))
        return false;
    if (!tiles[a->kind])
        return true;
    a->tiles = d->tiles;
    tiles[a->kind](a, 0, ROWS);
    const bool same = rows_same(d, w, a, NULL, ROWS, fn);
    a->tiles = NULL;
    return same;
}

static bool act_same(struct data *d, enum kern_act_kind kind, kern_act_fn *fn)
{
    struct kern_act a;
    kern_act_init(&a, kind, FEW, IN, d->x, IN, d->act);
    plain_act(kind)(&a, 0, FEW);
    a.q = d->other_act;
    fn(&a, 0, FEW);
    for (int64_t r = 0; r < FEW; r++)
        if (memcmp(d->act + (size_t)r * a.row_bytes, d->other_act + (size_t)r * a.row_bytes,
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

static void use_slower(struct kern_matmul_table *t, uint32_t cpu, const struct kern_matrix *w,
                       struct kern_act *a, struct data *d, const struct report_sink *sink)
{
    const char *bad = t->name[w->code];
    for (size_t i = sizeof kernels / sizeof *kernels; i-- > 0;)
        if (kernels[i].code == w->code && (kernels[i].needs & ~cpu) == 0 &&
            few_same(d, w, a, kernels[i].fn)) {
            t->run[w->code] = kernels[i].fn;
            t->name[w->code] = kernels[i].name;
            break;
        }
    report(sink, INGLE_REPORT_WARN, "kernel", bad,
           "differs from the plain kernel; '%s' is used instead", t->name[w->code]);
}

static void refuse(const char *bad, const char *instead, const struct report_sink *sink)
{
    report(sink, INGLE_REPORT_WARN, "kernel", bad,
           "differs from the plain kernel; '%s' is used instead", instead);
}

/* The kernels of a code: the chosen one, and those that compete with it. */
static int test_code(struct kern_matmul_table *t, uint32_t cpu, uint32_t code, struct data *d,
                     const struct report_sink *sink)
{
    struct kern_matrix w;
    struct kern_act a;
    int n_bad = 0;
    const bool vectors = t->run[code] && t->run[code] != plain(code);
    if ((!vectors && !t->ahead[code] && !t->many[code]) || !matrix_of(code, &w))
        return 0;
    w.at = d->panel;
    kern_pack(&w, 0, w.n_panels, d->stored);
    compute(d, &w, w.act, plain(code), &a);
    if (vectors && !few_same(d, &w, &a, t->run[code])) {
        use_slower(t, cpu, &w, &a, d, sink);
        n_bad++;
    }
    if (t->ahead[code] && !few_same(d, &w, &a, t->ahead[code])) {
        refuse(t->ahead_name[code], t->name[code], sink);
        t->ahead[code] = NULL;
        n_bad++;
    }
    if (t->many[code] && !(few_same(d, &w, &a, t->many[code]) &&
                           many_same(d, &w, &a, t->many[code], t->tiles))) {
        refuse(t->many_name[code], t->name[code], sink);
        t->many[code] = NULL;
        n_bad++;
    }
    return n_bad;
}

/* One that differs takes the others of its recipe with it: that is what all do. */
static int test_recipe(struct kern_matmul_table *t, const struct law *law, struct data *d,
                       const struct report_sink *sink)
{
    for (uint32_t code = 0; code < KERN_CODE_N; code++) {
        struct kern_matrix w;
        struct kern_act a;
        if (!t->fast[code] || strcmp(t->recipe[code], law->recipe) != 0 || !matrix_of(code, &w))
            continue;
        w.at = d->panel;
        kern_pack(&w, 0, w.n_panels, d->stored);
        compute(d, &w, kern_matmul_fast_act(&w), law->fn, &a);
        if (few_same(d, &w, &a, t->fast[code]) && many_same(d, &w, &a, t->fast[code], t->tiles))
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
        n_bad += test_code(t, cpu, code, &d, sink);
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++)
        n_bad += test_recipe(t, &laws[i], &d, sink);
    return n_bad;
}
