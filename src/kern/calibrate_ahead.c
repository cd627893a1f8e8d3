/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a kernel that asks for memory ahead of its use reads faster than one that leaves it to
 * the processor: a row times weights that no cache holds.  Hints cost a Zen 4 a tenth and more, and
 * gain half on a Sapphire Rapids.  A Zen 5 reads Q4_0 as fast without, but Q4_K and Q6_K at half of
 * the rate, so each code is measured. */
#include "kern/calibrate.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "kern/code.h"
#include <string.h>

#if defined(__x86_64__) && !defined(INGLE_PLAIN)

enum { BYTES = 1152 << 10, IN = 4096, CLEARLY = 105, ROUNDS = 8 };

struct reading {
    struct kern_matmul m;
    struct kern_matrix w;
    struct kern_act act;
    uint8_t *mem;
    size_t n_bytes;
};

static bool prepare(struct reading *r, uint32_t code)
{
    if (!kern_matrix_of_code(&r->w, code, KERN_PANEL, IN))
        return false;
    const int64_t out = BYTES / (int64_t)r->w.panel_bytes * KERN_PANEL;
    if (!kern_matrix_of_code(&r->w, code, out, IN))
        return false;
    const size_t w = kern_matrix_bytes(&r->w), a = kern_act_bytes(r->w.act, 1, IN);
    r->n_bytes = w + a + sizeof(float) * (size_t)(IN + out);
    r->mem = mem_big_alloc(r->n_bytes);
    if (!r->mem)
        return false;
    float *x = (float *)(void *)(r->mem + w + a);
    memset(r->mem + w, 0, r->n_bytes - w);
    r->w.at = r->mem;
    kern_act_init(&r->act, r->w.act, 1, IN, x, IN, r->mem + w);
    r->m = (struct kern_matmul){&r->w, &r->act, NULL, 1, x + IN, out};
    return true;
}

static int64_t time_of(const struct reading *r, kern_matmul_fn *fn)
{
    kern_cold_zeros_avx2(r->mem, kern_matrix_bytes(&r->w));
    const uint64_t start = clock_used();
    fn(&r->m, 0, r->w.n_panels);
    return (int64_t)(clock_used() - start);
}

/* The speed of b in hundredths of a's, each at its best: whoever else reads memory meanwhile makes
 * single times of a Zen 4 scatter by a factor of two. */
static int compare(const struct reading *r, kern_matmul_fn *a, kern_matmul_fn *b)
{
    int64_t least[2] = {INT64_MAX / 128, INT64_MAX / 128};
    for (int i = 0; i < ROUNDS; i++) {
        least[0] = num_min(least[0], time_of(r, a));
        least[1] = num_min(least[1], time_of(r, b));
    }
    return (int)(100 * (least[0] + 1) / (least[1] + 1));
}

void kern_matmul_calibrate_reading(struct kern_matmul_table *t, uint32_t code,
                                   const struct report_sink *sink)
{
    struct reading r = {.mem = NULL};
    kern_matmul_fn *const ahead = t->ahead[code];
    const char *const name = t->ahead_name[code];
    if (!ahead)
        return;
    t->ahead[code] = NULL;
    if (!prepare(&r, code)) {
        report(sink, INGLE_REPORT_WARN, "kernel", name, "no memory to measure it; '%s' is used",
               t->name[code]);
        return;
    }
    const int speed = compare(&r, t->run[code], ahead);
    mem_big_free(r.mem, r.n_bytes);
    report(sink, INGLE_REPORT_NOTE, "kernel", name, "reads %d.%02d times as fast as '%s': %s",
           speed / 100, speed % 100, t->name[code], speed >= CLEARLY ? "it is used" : "not used");
    if (speed >= CLEARLY) {
        t->run[code] = ahead;
        t->name[code] = name;
    }
}

#else

void kern_matmul_calibrate_reading(struct kern_matmul_table *t, uint32_t code,
                                   const struct report_sink *sink)
{
    (void)t, (void)code, (void)sink;
}

#endif

void kern_matmul_calibrate_ahead(struct kern_matmul_table *t, const struct report_sink *sink)
{
    for (uint32_t code = 0; code < KERN_CODES; code++)
        kern_matmul_calibrate_reading(t, code, sink);
}
