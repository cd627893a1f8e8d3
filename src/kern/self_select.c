/* SPDX-License-Identifier: Apache-2.0 */
/* self_select - the start-up comparison of the chosen kernels of the choice of pages with plain
 * C. */
#include "base/cpu.h"
#include "base/report.h"
#include "kern/kv_code.h"
#include "kern/select.h"
#include "kern/self.h"

#define KERN_ATTEND(needs, table)
#define KERN_SELECT(needs, table) extern const struct kern_select_table table;
#include "kern/attend.inc"
#undef KERN_SELECT

static const struct set {
    uint32_t needs;
    const char *name;
    const struct kern_select_table *table;
} sets[] = {
#define KERN_SELECT(needs, table) {needs, #table, &table},
#include "kern/attend.inc"
#undef KERN_SELECT
#undef KERN_ATTEND
};

enum {
    WIDTH = 32,
    HEADS = 3,
    PAGES = 3,
    POS = 300,
    MASS = HEADS * PAGES * 2,
    OUT = MASS + HEADS * 48
};

struct data {
    _Alignas(64) uint8_t page[PAGES][KERN_PAGE * WIDTH];
    _Alignas(64) float scratch[32 * 1024];
    float rows[KERN_PAGE * WIDTH], q[HEADS * WIDTH];
};

/* All have the same codes and other means. */
static void write_pages(struct data *d, size_t mean_at)
{
    kern_kv_codes_write(KERN_KV_N4R, true, WIDTH, d->page[0], 0, d->rows, KERN_PAGE, WIDTH);
    for (int64_t i = 0; i < PAGES; i++) {
        if (i)
            memcpy(d->page[i], d->page[0], sizeof d->page[0]);
        memcpy(d->page[i] + mean_at, d->rows + i * WIDTH, WIDTH * sizeof *d->rows);
    }
}

static bool run(const struct kern_select_table *t, struct data *d, float *out)
{
    static const int32_t chosen[1] = {1};
    const uint8_t *page[PAGES];
    struct kern_select_task task = {.shadow = page,
                                  .k_width = WIDTH,
                                  .v_width = WIDTH,
                                  .q = d->q,
                                  .n_heads = HEADS,
                                  .pos = POS,
                                  .scale = 0.3f};
    const size_t n_bytes = kern_select_bytes(WIDTH, WIDTH, &task.mean_at);
    if (!n_bytes || n_bytes > sizeof d->page[0] ||
        kern_select_scratch(WIDTH, HEADS) > sizeof d->scratch || kern_attend_state(WIDTH) > 48)
        return false;
    for (int64_t i = 0; i < PAGES; i++)
        page[i] = d->page[i];
    memset(out, 0, OUT * sizeof *out);
    t->mass(&task, 0, PAGES, PAGES, out, d->scratch);
    t->rest(&task, out, PAGES, chosen, 1, out + MASS);
    for (int64_t h = 0; h < HEADS; h++) /* what pads a state is nobody's */
        for (int64_t i = WIDTH + 2; i < kern_attend_state(WIDTH); i++)
            out[MASS + h * kern_attend_state(WIDTH) + i] = 0.0f;
    return true;
}

static bool same(const struct kern_select_table *t)
{
    struct data d;
    float out[2][OUT];
    kern_self_fill(d.rows, KERN_PAGE * WIDTH, 1);
    kern_self_fill(d.q, HEADS * WIDTH, 2);
    size_t mean_at;
    if (!kern_select_bytes(WIDTH, WIDTH, &mean_at))
        return false;
    write_pages(&d, mean_at);
    return run(sets[0].table, &d, out[0]) && run(t, &d, out[1]) &&
           kern_self_same(out[0], out[1], OUT);
}

int kern_select_self_test(struct kern_select_kernels *t, uint32_t cpu,
                          const struct report_sink *sink)
{
    if (same(&t->table))
        return 0;
    size_t s = sizeof sets / sizeof *sets;
    do
        if ((sets[--s].needs & ~cpu) == 0) {
            t->table = *sets[s].table;
            t->name = sets[s].name;
        }
    while (s && !same(&t->table));
    report(sink, INGLE_REPORT_WARN, "kernel", "choice of pages",
           "differs from the plain kernel; '%s' is used instead", cpu_name(sets[s].needs));
    return 1;
}
