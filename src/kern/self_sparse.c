/* SPDX-License-Identifier: Apache-2.0 */
/* self_sparse - the start-up comparison of the chosen kernels of attention to few positions with
 * plain C. */
#include "base/cpu.h"
#include "base/report.h"
#include "kern/attend.h"
#include "kern/sparse.h"
#include "kern/kv_code.h"
#include "kern/self.h"

#define KERN_ATTEND(needs, table)
#define KERN_ATTEND_SPARSE(needs, table) extern const struct kern_sparse_table table;
#include "kern/attend.inc"
#undef KERN_ATTEND_SPARSE

static const struct set {
    uint32_t needs;
    const char *name;
    const struct kern_sparse_table *table;
} sets[] = {
#define KERN_ATTEND_SPARSE(needs, table) {needs, #table, &table},
#include "kern/attend.inc"
#undef KERN_ATTEND_SPARSE
#undef KERN_ATTEND
};

extern const struct kern_attend_table kern_attend_coded_ref;

enum {
    WIDTH = 32,
    ROWS = 3,
    HEADS = 2,
    FROM = 900,
    PAGES = 8,
    PAIRS = ROWS * HEADS,
    OUT = PAIRS * WIDTH
};

struct data {
    _Alignas(64) uint8_t page[PAGES][2 * KERN_PAGE * WIDTH * 2];
    _Alignas(64) float scratch[96 * 1024];
    float rows[KERN_PAGE * WIDTH], q[OUT];
};

static void write_pages(enum kern_kv_codec c, struct data *d)
{
    const size_t k_bytes = kern_kv_block_bytes(c, true, WIDTH);
    kern_self_fill(d->rows, KERN_PAGE * WIDTH, 1);
    kern_self_fill(d->q, OUT, 2);
    for (int64_t i = 0; i < PAGES; i++) {
        for (int64_t j = 0; j < KERN_PAGE * WIDTH; j++)
            d->rows[j] = d->rows[j] * 0.9f + (float)(i - 3) * 0.01f;
        kern_attend_coded_ref.kv_write(c, true, WIDTH, d->page[i], 0, d->rows, KERN_PAGE, WIDTH);
        kern_attend_coded_ref.kv_write(c, false, WIDTH, d->page[i] + k_bytes, 0, d->rows, KERN_PAGE,
                                       WIDTH);
    }
}

static bool run(const struct kern_sparse_table *t, enum kern_kv_codec c, struct data *d, float *out)
{
    const uint8_t *page[PAGES];
    int32_t kept[PAIRS];
    const size_t k_bytes = kern_kv_block_bytes(c, true, WIDTH);
    const struct kern_sparse_task task = {.attend = {.k_codec = c,
                                                  .v_codec = c,
                                                  .k_width = WIDTH,
                                                  .v_width = WIDTH,
                                                  .page = page,
                                                  .v_at = k_bytes,
                                                  .q = d->q,
                                                  .q_stride = HEADS * WIDTH,
                                                  .out = out,
                                                  .out_stride = HEADS * WIDTH,
                                                  .n_rows = ROWS,
                                                  .n_heads = HEADS,
                                                  .pos0 = FROM,
                                                  .scale = 1.0f},
                                       .eps = 3,
                                       .missed = out + OUT,
                                       .kept = kept,
                                       .pair_stride = HEADS};
    if (kern_sparse_scratch(&task.attend) > sizeof d->scratch)
        return false;
    for (int64_t i = 0; i < PAGES; i++)
        page[i] = d->page[i];
    t->rows(&task, d->scratch);
    for (int64_t i = 0; i < PAIRS; i++)
        out[OUT + PAIRS + i] = (float)kept[i];
    return true;
}

static bool same(const struct kern_sparse_table *t)
{
    static const enum kern_kv_codec codecs[] = {KERN_KV_F16, KERN_KV_Q8R};
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        struct data d;
        float out[2][OUT + 2 * PAIRS];
        write_pages(codecs[i], &d);
        if (!run(sets[0].table, codecs[i], &d, out[0]) || !run(t, codecs[i], &d, out[1]) ||
            !kern_self_same(out[0], out[1], OUT + 2 * PAIRS))
            return false;
    }
    return true;
}

int kern_sparse_self_test(struct kern_sparse_kernels *t, uint32_t cpu,
                          const struct report_sink *sink)
{
    if (!t->name || same(&t->table))
        return 0;
    size_t s = sizeof sets / sizeof *sets;
    do
        if ((sets[--s].needs & ~cpu) == 0) {
            t->table = *sets[s].table;
            t->name = sets[s].needs ? sets[s].name : NULL;
        }
    while (s && !same(&t->table));
    report(sink, INGLE_REPORT_WARN, "kernel", "attend-few",
           "differs from the plain kernel; '%s' is used instead", cpu_name(sets[s].needs));
    return 1;
}
