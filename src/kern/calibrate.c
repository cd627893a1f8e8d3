/* SPDX-License-Identifier: Apache-2.0 */
/* From how many rows on a kernel for many rows is the faster one: measured, because the same
 * instructions run at very different rates from machine to machine and guest to guest. */
#include "kern/kernels.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/report.h"
#include <string.h>

/* Four bands of weights and their activations stay in the second cache. */
enum { OUT = 256, IN = 1024, MAX_ROWS = 64, ROUNDS = 3 };
static const int64_t n_rows[] = {4, 8, 12, 16, 24, 32, 64};
enum { N_SIZES = sizeof n_rows / sizeof *n_rows };

struct calibration {
    struct kern_matmul m;
    struct kern_matrix w;
    struct kern_act act;
    uint8_t *mem;
    size_t n_bytes;
};

static bool matrix_of(uint32_t code, struct kern_matrix *w)
{
    for (uint32_t type = 0; type < 256; type++)
        if (kern_matrix_init(w, type, OUT, IN, NULL) == INGLE_OK && w->code == code)
            return true;
    return false;
}

/* All weights and activations are zeros: the kernels' time does not depend on them. */
static bool prepare(struct calibration *c, uint32_t code)
{
    if (!matrix_of(code, &c->w))
        return false;
    const size_t w = kern_matrix_bytes(&c->w), a = kern_act_bytes(c->w.act, MAX_ROWS, IN);
    c->n_bytes = w + a + sizeof(float) * MAX_ROWS * OUT;
    c->mem = mem_big_alloc(c->n_bytes);
    if (!c->mem)
        return false;
    memset(c->mem, 0, c->n_bytes);
    c->w.at = c->mem;
    kern_act_init(&c->act, c->w.act, MAX_ROWS, IN, NULL, IN, c->mem + w);
    c->m = (struct kern_matmul){&c->w, &c->act, NULL, 0, (float *)(void *)(c->mem + w + a), OUT};
    return true;
}

/* The best of some runs, ns. */
static uint64_t time_of(struct calibration *c, kern_matmul_fn *fn, int64_t n)
{
    uint64_t best = UINT64_MAX;
    c->m.n = n;
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t start = clock_now();
        fn(&c->m, 0, c->w.n_panels);
        const uint64_t took = clock_now() - start;
        best = took < best ? took : best;
    }
    return best;
}

/* The least number of rows from which on `many` wins; INT64_MAX: it does not. */
static int64_t crossover(struct calibration *c, kern_matmul_fn *run, kern_matmul_fn *many)
{
    int64_t from = INT64_MAX;
    for (int i = N_SIZES; i-- > 0;) {
        if (time_of(c, many, n_rows[i]) >= time_of(c, run, n_rows[i]))
            break;
        from = n_rows[i];
    }
    return from;
}

void kern_matmul_calibrate(struct kern_matmul_table *t, const struct report_sink *sink)
{
    kern_matmul_calibrate_ahead(t, sink);
    for (uint32_t code = 0; code < KERN_CODES; code++) {
        struct calibration c = {0};
        if (!t->many[code])
            continue;
        if (!prepare(&c, code)) {
            report(sink, INGLE_REPORT_WARN, "kernel", t->many_name[code],
                   "no memory to measure it; '%s' is used", t->name[code]);
            continue;
        }
        t->many_from[code] = crossover(&c, t->run[code], t->many[code]);
        mem_big_free(c.mem, c.n_bytes);
        if (t->many_from[code] == INT64_MAX)
            report(sink, INGLE_REPORT_NOTE, "kernel", t->many_name[code], "'%s' is faster here",
                   t->name[code]);
        else
            report(sink, INGLE_REPORT_NOTE, "kernel", t->many_name[code],
                   "from %lld rows on; below, '%s' is faster", (long long)t->many_from[code],
                   t->name[code]);
    }
}
