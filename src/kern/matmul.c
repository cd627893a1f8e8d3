/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel runs a product: the lists, the self-test, and the reference product. */
#include "kern/kern.h"
#include "kern/kernels.h"

#include <string.h>

void kern_matmul_table_init(struct kern_matmul_table *t, uint32_t cpu)
{
    memset(t, 0, sizeof *t);
#define KERN_MATMUL(needs, code, fn)            \
    if (((needs) & ~cpu) == 0) {                \
        t->run[KERN_CODE_##code] = fn;          \
        t->name[KERN_CODE_##code] = #fn;        \
    }
#include "kern/matmul.inc"
#undef KERN_MATMUL
#define KERN_ACT(needs, kind, fn)   \
    if (((needs) & ~cpu) == 0)      \
        t->act[KERN_ACT_##kind] = fn;
#include "kern/act.inc"
#undef KERN_ACT
}

void kern_matmul_reference(const struct kern_matmul *m, int64_t p0, int64_t p1, float *scratch)
{
    for (int64_t p = p0; p < p1; p++) {
        const int width = kern_matmul_width(m, p);
        for (int r = 0; r < width; r++) {
            const int64_t o = p * KERN_PANEL + r;
            kern_unpack_row(m->w, o, scratch);
            for (int64_t i = 0; i < m->n; i++) {
                const float *x = m->x->x + kern_matmul_row(m, i) * m->x->stride;
                double sum = 0;
                for (int64_t k = 0; k < m->w->in; k++)
                    sum += (double)scratch[k] * (double)x[k];
                m->y[i * m->y_stride + o] = (float)sum;
            }
        }
    }
}
