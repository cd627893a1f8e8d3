/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel runs a product: the lists, the self-test, and the reference product. */
#include "kern/kern.h"
#include "kern/kernels.h"

#include "base/num.h"
#include <string.h>

/* chosen: what each code's kernel needs.  Those that compete with it need no less: one for AVX2
 * does not stand in for one for AVX-VNNI. */
static void list_run(struct kern_matmul_table *t, uint32_t cpu, uint32_t *chosen)
{
#define KERN_MATMUL(needs, code, fn)            \
    if (((needs) & ~cpu) == 0) {                \
        t->run[KERN_CODE_##code] = fn;          \
        t->name[KERN_CODE_##code] = #fn;        \
        chosen[KERN_CODE_##code] = (needs);     \
    }
#include "kern/matmul.inc"
#undef KERN_MATMUL
}

static void list_many(struct kern_matmul_table *t, uint32_t cpu, const uint32_t *chosen)
{
    (void)t, (void)cpu, (void)chosen; /* where the list is empty */
#define KERN_MANY(needs, code, fn)                                                  \
    if (((needs) & ~cpu) == 0 && (chosen[KERN_CODE_##code] & ~(uint32_t)(needs)) == 0) {    \
        t->many[KERN_CODE_##code] = fn;                                             \
        t->many_name[KERN_CODE_##code] = #fn;                                       \
        t->many_from[KERN_CODE_##code] = INT64_MAX;                                 \
    }
#include "kern/many.inc"
#undef KERN_MANY
}

static void list_ahead(struct kern_matmul_table *t, uint32_t cpu, const uint32_t *chosen)
{
    (void)t, (void)cpu, (void)chosen;
#define KERN_AHEAD(needs, code, fn)                                                 \
    if (((needs) & ~cpu) == 0 && (chosen[KERN_CODE_##code] & ~(uint32_t)(needs)) == 0) {    \
        t->ahead[KERN_CODE_##code] = fn;                                            \
        t->ahead_name[KERN_CODE_##code] = #fn;                                      \
    }
#include "kern/ahead.inc"
#undef KERN_AHEAD
}

static void list_fast(struct kern_matmul_table *t, uint32_t cpu)
{
    (void)t, (void)cpu;
#define KERN_FAST_REF(recipe, fn)
#define KERN_FAST(needs, recipe_, code, fn)    \
    if (((needs) & ~cpu) == 0) {               \
        t->fast[KERN_CODE_##code] = fn;        \
        t->fast_name[KERN_CODE_##code] = #fn;  \
        t->recipe[KERN_CODE_##code] = recipe_; \
    }
#include "kern/fast.inc"
#undef KERN_FAST
#undef KERN_FAST_REF
}

void kern_matmul_table_init(struct kern_matmul_table *t, uint32_t cpu)
{
    uint32_t chosen[KERN_CODES] = {0};
    memset(t, 0, sizeof *t);
#define KERN_ACT(needs, kind, fn)   \
    if (((needs) & ~cpu) == 0)      \
        t->act[KERN_ACT_##kind] = fn;
#include "kern/act.inc"
#undef KERN_ACT
#define KERN_TILES(needs, kind, fn) \
    if (((needs) & ~cpu) == 0)      \
        t->tiles[KERN_ACT_##kind] = fn;
#include "kern/tiles.inc"
#undef KERN_TILES
    list_run(t, cpu, chosen);
    list_many(t, cpu, chosen);
    list_ahead(t, cpu, chosen);
    list_fast(t, cpu);
}

/* Whole groups: of 32 k, of quantised weights 256. */
kern_matmul_fn *kern_matmul_fast(const struct kern_matmul_table *t, const struct kern_matrix *w,
                                 bool prompt)
{
    const bool is_float = w->act == KERN_ACT_F32;
    return w->in % (is_float ? 32 : 256) || (!is_float && !prompt) ? NULL : t->fast[w->code];
}

enum kern_act_kind kern_matmul_fast_act(const struct kern_matrix *w)
{
    return w->act == KERN_ACT_F32 ? KERN_ACT_BF16 : KERN_ACT_Q256;
}

/* A weight row times activation rows i .. i + n, of up to four: a sum waits for itself only. */
static void reference_rows(const struct kern_matmul *m, const float *w, int64_t i, int64_t n,
                           int64_t o)
{
    const float *x[4];
    double a = 0, b = 0, c = 0, d = 0;
    for (int64_t j = 0; j < 4; j++)
        x[j] = m->x->x + kern_matmul_row(m, i + num_min(j, n - 1)) * m->x->stride;
    for (int64_t k = 0; n > 1 && k < m->w->in; k++) {
        const double v = (double)w[k];
        a += v * (double)x[0][k];
        b += v * (double)x[1][k];
        c += v * (double)x[2][k];
        d += v * (double)x[3][k];
    }
    for (int64_t k = 0; n == 1 && k < m->w->in; k++)
        a += (double)w[k] * (double)x[0][k];
    const double sum[] = {a, b, c, d};
    for (int64_t j = 0; j < n; j++)
        m->y[(i + j) * m->y_stride + o] = (float)sum[j];
}

void kern_matmul_reference(const struct kern_matmul *m, int64_t p0, int64_t p1, float *scratch)
{
    for (int64_t p = p0; p < p1; p++) {
        const int width = kern_matmul_width(m, p);
        for (int r = 0; r < width; r++) {
            const int64_t o = p * KERN_PANEL + r;
            kern_unpack_row(m->w, o, scratch);
            for (int64_t i = 0; i < m->n; i += 4)
                reference_rows(m, scratch, i, num_min(4, m->n - i), o);
        }
    }
}
