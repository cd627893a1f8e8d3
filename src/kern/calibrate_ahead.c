/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a kernel that asks for memory ahead of its use reads faster than one that leaves it to
 * the processor: hints cost a Zen 4 a tenth and more, and gain half on a Sapphire Rapids.  It is the
 * processor's nature, so one code is measured for all: a row times weights that no cache holds. */
#include "kern/kernels.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/report.h"
#include "kern/code.h"
#include <string.h>

#if defined(__x86_64__)

enum { OUT = 1024, IN = 4096, ROUNDS = 5, CLEARLY = 105 };

struct reading {
    struct kern_matmul m;
    struct kern_matrix w;
    struct kern_act act;
    uint8_t *mem;
    size_t n_bytes;
};

static bool prepare(struct reading *r)
{
    if (kern_matrix_init(&r->w, QUANT_Q4_0, OUT, IN, NULL) != INGLE_OK)
        return false;
    const size_t w = kern_matrix_bytes(&r->w), a = kern_act_bytes(r->w.act, 1, IN);
    r->n_bytes = w + a + sizeof(float) * OUT;
    r->mem = mem_big_alloc(r->n_bytes);
    if (!r->mem)
        return false;
    memset(r->mem + w, 0, r->n_bytes - w);
    r->w.at = r->mem;
    kern_act_init(&r->act, r->w.act, 1, IN, NULL, IN, r->mem + w);
    r->m = (struct kern_matmul){&r->w, &r->act, NULL, 1, (float *)(void *)(r->mem + w + a), OUT};
    return true;
}

static uint64_t time_of(struct reading *r, kern_matmul_fn *fn)
{
    kern_cold_zeros_avx2(r->mem, kern_matrix_bytes(&r->w));
    const uint64_t start = clock_now();
    fn(&r->m, 0, r->w.n_panels);
    return clock_now() - start;
}

static uint64_t less(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The best of some runs in turns, as hundredths of the other's speed. */
static int speed_of(struct reading *r, kern_matmul_fn *run, kern_matmul_fn *ahead)
{
    uint64_t a = UINT64_MAX, b = UINT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        a = less(a, time_of(r, run));
        b = less(b, time_of(r, ahead));
    }
    return b ? (int)(100 * a / b) : 0;
}

void kern_matmul_calibrate_ahead(struct kern_matmul_table *t, const struct report_sink *sink)
{
    struct reading r = {.mem = NULL};
    const char *const name = t->ahead_name[KERN_CODE_Q4_0];
    if (!t->ahead[KERN_CODE_Q4_0])
        return;
    if (!prepare(&r)) {
        report(sink, INGLE_REPORT_WARN, "kernel", name, "no memory to measure it; '%s' is used",
               t->name[KERN_CODE_Q4_0]);
        return;
    }
    const int speed = speed_of(&r, t->run[KERN_CODE_Q4_0], t->ahead[KERN_CODE_Q4_0]);
    mem_big_free(r.mem, r.n_bytes);
    report(sink, INGLE_REPORT_NOTE, "kernel", name, "reads %d.%02d times as fast as '%s': %s", speed / 100,
           speed % 100, t->name[KERN_CODE_Q4_0],
           speed >= CLEARLY ? "it and its like are used" : "not used, nor its like");
    for (uint32_t code = 0; speed >= CLEARLY && code < KERN_CODES; code++)
        if (t->ahead[code]) {
            t->run[code] = t->ahead[code];
            t->name[code] = t->ahead_name[code];
        }
}

#else

void kern_matmul_calibrate_ahead(struct kern_matmul_table *t, const struct report_sink *sink)
{
    (void)t;
    (void)sink;
}

#endif
