/* SPDX-License-Identifier: Apache-2.0 */
/* From how many rows on a kernel for many rows is the faster one: measured, because the same
 * instructions run at very different rates from machine to machine and guest to guest. */
#include "kern/kernels.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/report.h"
#include <string.h>

/* Four bands of weights and their activations stay in the second cache. */
enum { OUT = 256, IN = 1024, MAX_ROWS = 64, ROUNDS = 3, WARM_NS = 300000 };
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

static uint64_t time_of(struct calibration *c, kern_matmul_fn *fn)
{
    const uint64_t start = clock_now();
    fn(&c->m, 0, c->w.n_panels);
    return clock_now() - start;
}

/* Tiles that were idle take some tenths of a millisecond to come to speed. */
static void warm_up(struct calibration *c, kern_matmul_fn *many)
{
    const uint64_t start = clock_now();
    c->m.n = n_rows[0];
    do
        many(&c->m, 0, c->w.n_panels);
    while (clock_now() - start < WARM_NS);
}

/* Whether `many` is the faster one with n rows: the best of some runs in turns. */
static bool wins(struct calibration *c, kern_matmul_fn *run, kern_matmul_fn *many, int64_t n)
{
    uint64_t best_run = UINT64_MAX, best_many = UINT64_MAX;
    c->m.n = n;
    for (int i = 0; i < ROUNDS && (i == 0 || best_many / 4 <= best_run); i++) {
        const uint64_t a = time_of(c, run), b = time_of(c, many);
        best_run = a < best_run ? a : best_run;
        best_many = b < best_many ? b : best_many;
    }
    return best_many < best_run;
}

/* The least number of rows from which on `many` wins, found by halving; INT64_MAX: it does not. */
static int64_t crossover(struct calibration *c, kern_matmul_fn *run, kern_matmul_fn *many)
{
    int lo = 0, hi = N_SIZES;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (wins(c, run, many, n_rows[mid]))
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo < N_SIZES ? n_rows[lo] : INT64_MAX;
}

void kern_matmul_calibrate(struct kern_matmul_table *t, const struct report_sink *sink)
{
    bool warm = false;
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
        if (!warm)
            warm_up(&c, t->many[code]);
        warm = true;
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
