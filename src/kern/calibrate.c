/* SPDX-License-Identifier: Apache-2.0 */
/* From how many rows on a kernel for many rows is the faster one: measured, because the same
 * instructions run at very different rates from machine to machine and guest to guest. */
#include "kern/calibrate.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include <string.h>

/* Four bands of weights.  Few rows read them from memory, which is where those of large matrices
 * are, because kernels differ in how they wait for it. */
enum {
    OUT = 256,
    IN = 1024,
    FEW_ROWS = 16,
    MAX_ROWS = 64,
    FEW_ROUNDS = 3,
    ROUNDS = 6,
    CLEARLY = 110,
    DRAW = 90,
    WARM_NS = 300000
};
static const int64_t n_rows[] = {4, 8, 12, 16, 24, 32, 64};
enum { N_SIZES = sizeof n_rows / sizeof *n_rows };

struct calibration {
    struct kern_matmul m;
    struct kern_matrix w;
    struct kern_act act;
    uint8_t *mem;
};

bool kern_matrix_of_code(struct kern_matrix *w, uint32_t code, int64_t out, int64_t in)
{
    for (uint32_t type = 0; type < 256; type++)
        if ((kern_matrix_init(w, type, out, in, NULL) == INGLE_OK && w->code == code) ||
            (kern_matrix_init_floats(w, type, out, in, NULL) == INGLE_OK && w->code == code))
            return true;
    return false;
}

static size_t bytes_of(const struct kern_matrix *w)
{
    return kern_matrix_bytes(w) + kern_act_bytes(w->act, MAX_ROWS, IN) +
           sizeof(float) * MAX_ROWS * OUT;
}

/* All weights and activations are zeros: the kernels' time does not depend on them. */
static void prepare(struct calibration *c)
{
    const size_t w = kern_matrix_bytes(&c->w), a = kern_act_bytes(c->w.act, MAX_ROWS, IN);
    memset(c->mem, 0, bytes_of(&c->w));
    c->w.at = c->mem;
    kern_act_init(&c->act, c->w.act, MAX_ROWS, IN, NULL, IN, c->mem + w);
    c->m = (struct kern_matmul){&c->w, &c->act, NULL, 0, (float *)(void *)(c->mem + w + a), OUT};
}

static void make_cold(struct calibration *c)
{
#if defined(__x86_64__) && !defined(INGLE_PLAIN)
    kern_cold_zeros_avx2(c->mem, kern_matrix_bytes(&c->w));
#else
    (void)c;
#endif
}

/* Processor time: what others take of the machine is not counted. */
static int64_t time_of(struct calibration *c, kern_matmul_fn *fn)
{
    if (c->m.n <= FEW_ROWS)
        make_cold(c);
    const uint64_t start = clock_used();
    fn(&c->m, 0, c->w.n_panels);
    return (int64_t)(clock_used() - start);
}

/* The speed of b in hundredths of a's, each at its best: others only make times longer.  Fewer runs
 * separate what differs clearly. */
static int compare(struct calibration *c, kern_matmul_fn *a, kern_matmul_fn *b)
{
    int64_t ta = INT64_MAX / 128, tb = ta;
    int speed = 100;
    for (int n = 0;
         n < ROUNDS && (n < FEW_ROUNDS || (speed < CLEARLY && speed * CLEARLY > 100 * 100)); n++) {
        ta = num_min(ta, time_of(c, a) + 1);
        tb = num_min(tb, time_of(c, b) + 1);
        speed = (int)(100 * ta / tb);
    }
    return speed;
}

/* Tiles that were idle take some tenths of a millisecond to come to speed, and the stack's pages
 * are new. */
static void warm_up(struct calibration *c, kern_matmul_fn *many)
{
    const uint64_t start = clock_used();
    c->m.n = MAX_ROWS;
    do
        many(&c->m, 0, c->w.n_panels);
    while (clock_used() - start < WARM_NS);
}

/* More rows than are measured favour `many`, which reads their activations less often: there a draw
 * is enough. */
static bool wins(struct calibration *c, kern_matmul_fn *run, kern_matmul_fn *many, int size)
{
    c->m.n = n_rows[size];
    return compare(c, run, many) > (size == N_SIZES - 1 ? DRAW : 100);
}

/* The least size from which on `many` wins, sought from a size on; N_SIZES: it does not. */
static int crossover(struct calibration *c, kern_matmul_fn *run, kern_matmul_fn *many, int size)
{
    if (wins(c, run, many, size)) {
        while (size > 0 && wins(c, run, many, size - 1))
            size--;
        return size;
    }
    do
        size++;
    while (size < N_SIZES && !wins(c, run, many, size));
    return size;
}

static void settle(struct kern_matmul_table *t, uint32_t code, int size,
                   const struct report_sink *sink)
{
    t->many_from[code] = size < N_SIZES ? n_rows[size] : INT64_MAX;
    if (size == N_SIZES)
        report(sink, INGLE_REPORT_NOTE, "kernel", t->many_name[code], "'%s' is faster here",
               t->name[code]);
    else
        report(sink, INGLE_REPORT_NOTE, "kernel", t->many_name[code],
               "from %lld rows on; below, '%s' is faster", (long long)t->many_from[code],
               t->name[code]);
}

void kern_matmul_calibrate_code(struct kern_matmul_table *t, uint32_t code,
                                const struct report_sink *sink)
{
    struct calibration c;
    if (t->many_measured[code])
        return;
    t->many_measured[code] = true;
    kern_matmul_calibrate_reading(t, code, sink);
    if (!t->many[code])
        return;
    c.mem = kern_matrix_of_code(&c.w, code, OUT, IN) ? mem_big_alloc(bytes_of(&c.w)) : NULL;
    if (!c.mem) {
        report(sink, INGLE_REPORT_WARN, "kernel", t->many_name[code],
               "no memory to measure it; '%s' is used", t->name[code]);
        return;
    }
    prepare(&c);
    warm_up(&c, t->many[code]);
    settle(t, code, crossover(&c, t->run[code], t->many[code], N_SIZES / 2), sink);
    mem_big_free(c.mem, bytes_of(&c.w));
}

void kern_matmul_calibrate(struct kern_matmul_table *t, const struct report_sink *sink)
{
    kern_matmul_calibrate_ahead(t, sink);
    for (uint32_t code = 0; code < KERN_CODES; code++)
        kern_matmul_calibrate_code(t, code, sink);
}
