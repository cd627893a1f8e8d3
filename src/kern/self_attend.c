/* SPDX-License-Identifier: Apache-2.0 */
/* self_attend - the start-up comparison of the chosen attention kernels with plain C. */
#include "base/cpu.h"
#include "base/report.h"
#include "kern/attend.h"
#include "kern/self.h"

#define KERN_ATTEND(needs, table)                   extern const struct kern_attend_table table;
#define KERN_ATTEND_FAST(needs, recipe, law, table)                                                \
    extern const struct kern_attend_table law, table;
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_FAST

static const struct set {
    uint32_t needs;
    const char *name;
    const struct kern_attend_table *table;
} sets[] = {
#define KERN_ATTEND(needs, table) {needs, #table, &table},
#include "kern/attend.inc"
#undef KERN_ATTEND
};
/* Of fast numerics, and one that ends the list. */
static const struct law {
    const char *recipe;
    const struct kern_attend_table *table;
} laws[] = {
#define KERN_ATTEND(needs, table)
#define KERN_ATTEND_FAST(needs, recipe, law, table) {recipe, &law},
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_FAST
    {NULL, NULL},
};

enum { WIDTH = 32, ROWS = 7, HEADS = 2, FROM = 90, OUT = ROWS * HEADS * WIDTH };
enum { STATE = (WIDTH + 2 + 15) / 16 * 16 };

struct data {
    _Alignas(64) uint8_t page[2 * KERN_PAGE * WIDTH * 4];
    _Alignas(64) float scratch[16 * 1024];
    float rows[KERN_PAGE * WIDTH], q[OUT], out[3][OUT], state[ROWS * HEADS * STATE];
};

/* One page, read through every entry of the table. */
static bool run(const struct kern_attend_table *t, enum kern_kv_codec c, struct data *d)
{
    size_t block = kern_kv_block_bytes(c, true, WIDTH);
    const uint8_t *page[1] = {d->page};
    struct kern_attend a = {.k_codec = c,
                            .v_codec = c,
                            .k_width = WIDTH,
                            .v_width = WIDTH,
                            .page = page,
                            .k_at = 0,
                            .v_at = block,
                            .q = d->q,
                            .q_stride = HEADS * WIDTH,
                            .out_stride = HEADS * WIDTH,
                            .n_rows = ROWS,
                            .n_heads = HEADS,
                            .pos0 = FROM,
                            .window = 40,
                            .scale = 0.2f,
                            .sink = d->q};
    if (kern_attend_scratch(&a) > sizeof d->scratch)
        return false;
    memset(d->state, 0, sizeof d->state);
    t->kv_write(c, true, WIDTH, d->page, 0, d->rows, KERN_PAGE, WIDTH);
    t->kv_write(c, false, WIDTH, d->page + block, 0, d->rows, KERN_PAGE, WIDTH);
    a.out = d->out[0];
    t->rows(&a, d->scratch);
    a.out = d->out[1];
    t->split(&a, 0, d->state, d->scratch);
    t->merge(&a, 1, d->state, d->scratch);
    kern_kv_read(c, true, WIDTH, d->page, FROM, d->out[2]);
    kern_kv_read(c, false, WIDTH, d->page + block, FROM, d->out[2] + WIDTH);
    return true;
}

static bool same(const struct kern_attend_table *t, const struct kern_attend_table *plain)
{
    for (int c = 0; c < KERN_KV_BLOCK_CODECS; c++) {
        struct data want = {0}, got = {0};
        kern_self_fill(want.rows, KERN_PAGE * WIDTH, 1);
        kern_self_fill(want.q, OUT, 2);
        memcpy(got.rows, want.rows, sizeof got.rows);
        memcpy(got.q, want.q, sizeof got.q);
        if (!run(plain, (enum kern_kv_codec)c, &want) ||
            !run(t, (enum kern_kv_codec)c, &got) ||
            !kern_self_same(want.out[0], got.out[0], 3 * OUT))
            return false;
    }
    return true;
}

static bool fast_is_right(const struct kern_attend_kernels *t)
{
    for (const struct law *l = laws; l->recipe; l++)
        if (!strcmp(l->recipe, t->recipe))
            return same(&t->fast, l->table);
    return false;
}

/* The operations of a set share their inner loops, so a set is kept or dropped whole. */
int kern_attend_self_test(struct kern_attend_kernels *t, uint32_t cpu,
                          const struct report_sink *sink)
{
    int n_bad = 0;
    if (t->recipe && !fast_is_right(t)) {
        report(sink, INGLE_REPORT_WARN, "kernel", "attend",
               "'%s' differs from the plain kernel; exact is used instead", t->recipe);
        t->recipe = t->fast_name = NULL;
        n_bad++;
    }
    if (same(&t->exact, sets[0].table))
        return n_bad;
    size_t s = sizeof sets / sizeof *sets;
    do
        if ((sets[--s].needs & ~cpu) == 0) {
            t->exact = *sets[s].table;
            t->name = sets[s].name;
        }
    while (s && !same(&t->exact, sets[0].table));
    report(sink, INGLE_REPORT_WARN, "kernel", "attend",
           "differs from the plain kernel; '%s' is used instead", cpu_name(sets[s].needs));
    return n_bad + 1;
}
