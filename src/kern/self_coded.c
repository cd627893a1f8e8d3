/* SPDX-License-Identifier: Apache-2.0 */
/* self_coded - the start-up comparison of the chosen kernels of coded attention with plain C. */
#include "base/cpu.h"
#include "base/report.h"
#include "kern/attend_coded.h"
#include "kern/math.h"
#include "kern/self.h"

#define KERN_ATTEND(needs, table)
#define KERN_ATTEND_CODED(needs, table) extern const struct kern_attend_table table;
#include "kern/attend.inc"
#undef KERN_ATTEND_CODED

static const struct set {
    uint32_t needs;
    const char *name;
    const struct kern_attend_table *table;
} sets[] = {
#define KERN_ATTEND_CODED(needs, table) {needs, #table, &table},
#include "kern/attend.inc"
#undef KERN_ATTEND_CODED
#undef KERN_ATTEND
};

enum { WIDTH = 128, ROWS = 2, HEADS = 5, FROM = 90, PAIRS = 16, OUT = ROWS * HEADS * WIDTH };
enum { WINDOW = 40, FIRST = FROM - WINDOW + 1, SEEN = ROWS + WINDOW - 1 }; /* of a page */
enum { STATE = (WIDTH + 2 + 15) / 16 * 16 };

struct data {
    _Alignas(64) uint8_t page[2 * KERN_PAGE * WIDTH * 2];
    _Alignas(64) float scratch[48 * 1024];
    float rows[KERN_PAGE * WIDTH], q[OUT], slot[KERN_PAGE * PAIRS * 2], state[ROWS * HEADS * STATE];
    double inv_freq[PAIRS];
};

/* One page, read by rows, and also in splits: out [2][OUT].  write: the page is not there yet. */
static bool run(const struct kern_attend_table *t, enum kern_kv_codec k, enum kern_kv_codec v,
                struct data *d, float *out, bool write, bool splits)
{
    const uint8_t *page[1] = {d->page};
    const struct kern_from_v from_v = {.weight = d->rows,
                                       .inv_freq = d->inv_freq,
                                       .slot = d->slot,
                                       .n_pairs = PAIRS,
                                       .half = WIDTH / 2};
    struct kern_attend a = {.k_codec = k,
                            .v_codec = v,
                            .k_width = WIDTH,
                            .v_width = WIDTH,
                            .page = page,
                            .v_at = kern_kv_block_bytes(k, true, WIDTH),
                            .q = d->q,
                            .q_stride = HEADS * WIDTH,
                            .out = out,
                            .out_stride = HEADS * WIDTH,
                            .n_rows = ROWS,
                            .n_heads = HEADS,
                            .pos0 = FROM,
                            .window = WINDOW,
                            .scale = 0.1f,
                            .sink = d->q,
                            .from_v = &from_v};
    if (kern_attend_scratch(&a) > sizeof d->scratch ||
        a.v_at + kern_kv_block_bytes(v, false, WIDTH) > sizeof d->page)
        return false;
    memset(d->state, 0, sizeof d->state);
    if (write) {
        const float *rows = d->rows + FIRST * WIDTH;
        memset(d->page, 0, sizeof d->page);
        t->kv_write(k, true, WIDTH, d->page, FIRST, rows, SEEN, WIDTH);
        t->kv_write(v, false, WIDTH, d->page + a.v_at, FIRST, rows, SEEN, WIDTH);
    }
    t->rows(&a, d->scratch);
    if (!splits)
        return true;
    a.out = out + OUT;
    t->split(&a, 0, d->state, d->scratch);
    t->merge(&a, 1, d->state, d->scratch);
    return true;
}

static bool same(const struct kern_attend_table *t)
{
    static const enum kern_kv_codec pair[][2] = {
        {KERN_KV_Q8R, KERN_KV_Q8R},         {KERN_KV_N4R, KERN_KV_N4R},
        {KERN_KV_TQ3_0, KERN_KV_TQ3_0},     {KERN_KV_FROM_V, KERN_KV_F16},
        {KERN_KV_Q8R_ROT, KERN_KV_Q8R_ROT}, {KERN_KV_N4R_ROT, KERN_KV_N4R_ROT}};
    struct data d;
    float want[OUT], got[2 * OUT];
    kern_self_fill(d.rows, KERN_PAGE * WIDTH, 1);
    kern_self_fill(d.q, OUT, 2);
    for (int i = 0; i < PAIRS; i++)
        d.inv_freq[i] = 1.0 / (1 + i);
    for (int64_t j = 0; j < KERN_PAGE; j++)
        kern_rope_angles(d.slot + j * PAIRS * 2, j, d.inv_freq, PAIRS);
    for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
        const enum kern_kv_codec k = pair[i][0], v = pair[i][1];
        /* codes are written by the same function for all; others by one of the table */
        const bool again = !kern_kv_is_coded(k) || !kern_kv_is_coded(v);
        if (!run(sets[0].table, k, v, &d, want, true, false) ||
            !run(t, k, v, &d, got, again, true) || !kern_self_same(want, got, OUT) ||
            !kern_self_same(want, got + OUT, OUT))
            return false;
    }
    return true;
}

int kern_attend_coded_self_test(struct kern_attend_kernels *t, uint32_t cpu,
                                const struct report_sink *sink)
{
    if (same(&t->coded))
        return 0;
    size_t s = sizeof sets / sizeof *sets;
    do
        if ((sets[--s].needs & ~cpu) == 0) {
            t->coded = *sets[s].table;
            t->coded_name = sets[s].name;
        }
    while (s && !same(&t->coded));
    report(sink, INGLE_REPORT_WARN, "kernel", "attend-coded",
           "differs from the plain kernel; '%s' is used instead", cpu_name(sets[s].needs));
    return 1;
}
