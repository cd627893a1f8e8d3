/* SPDX-License-Identifier: Apache-2.0 */
/* latent - the choice of kernels, and their comparison with plain C at the start. */
#include "kern/latent.h"

#include "base/cpu.h"
#include "base/report.h"
#include "kern/self.h"

#define KERN_LATENT(needs, table) extern const struct kern_latent_table table;
#include "kern/latent.inc"
#undef KERN_LATENT

static const struct set {
    uint32_t needs;
    const struct kern_latent_table *table;
} sets[] = {
#define KERN_LATENT(needs, table) {needs, &table},
#include "kern/latent.inc"
#undef KERN_LATENT
};

void kern_latent_table_init(struct kern_latent_table *t, uint32_t cpu)
{
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if ((sets[i].needs & ~cpu) == 0)
            *t = *sets[i].table;
}

enum { WIDTH = 84, TAIL = 8, ROWS = 20, HEADS = 9, OUT = 3 * WIDTH * ROWS };

struct data {
    _Alignas(64) uint8_t stored[ROWS * WIDTH * 4];
    _Alignas(64) uint8_t keys[KERN_PAGE * WIDTH * 4], values[KERN_PAGE * WIDTH * 4];
    _Alignas(64) float scratch[3 * KERN_ROW_TILE * WIDTH];
    float x[ROWS * WIDTH], out[OUT];
};

/* Every entry of the table once; what came out is in d->out. */
static void run(const struct kern_latent_table *t, enum kern_kv_codec c, struct data *d)
{
    const struct kern_row form = {c, WIDTH, TAIL};
    const enum kern_kv_codec block = kern_row_block(c);
    const size_t bytes = kern_row_bytes(c, WIDTH, TAIL);
    const float *value[ROWS], *gate[ROWS];
    const void *row[ROWS];
    float *out = d->out;
    for (int i = 0; i < ROWS; i++) {
        row[i] = d->stored + (size_t)i * bytes;
        value[i] = d->x + i * WIDTH;
        gate[i] = d->x + (ROWS - 1 - i) * WIDTH;
        t->write(&form, d->stored + (size_t)i * bytes, value[i]);
        t->read(&form, row[i], out);
        out += WIDTH;
    }
    t->gather(&form, row, KERN_ROW_TILE, 0, d->keys, d->values);
    t->gather(&form, row + KERN_ROW_TILE, ROWS - KERN_ROW_TILE, KERN_ROW_TILE, d->keys, d->values);
    for (int i = 0; i < ROWS; i += 3, out += 2 * WIDTH) {
        kern_kv_read(block, true, WIDTH, d->keys, i, out);
        kern_kv_read(block, false, WIDTH, d->values, i, out + WIDTH);
    }
    const struct kern_scores s = {form, d->stored, ROWS, d->x, d->x, HEADS};
    t->scores(&s, out, d->scratch);
    t->pool(value, gate, ROWS, WIDTH, out + ROWS, d->scratch, d->scratch + WIDTH);
}

static bool same(const struct kern_latent_table *t)
{
    static const enum kern_kv_codec codecs[] = {KERN_KV_F32, KERN_KV_F16, KERN_KV_BF16, KERN_KV_FP8};
    for (int i = 0; i < 4; i++) {
        struct data want = {0}, got = {0};
        kern_self_fill(want.x, ROWS * WIDTH, 5);
        memcpy(got.x, want.x, sizeof got.x);
        run(sets[0].table, codecs[i], &want);
        run(t, codecs[i], &got);
        if (!kern_self_same(want.out, got.out, OUT))
            return false;
    }
    return true;
}

/* The operations of a set share their inner loops, so a set is kept or dropped whole. */
int kern_latent_self_test(struct kern_latent_table *t, uint32_t cpu, const struct report_sink *sink)
{
    if (same(t))
        return 0;
    size_t s = sizeof sets / sizeof *sets;
    do
        if ((sets[--s].needs & ~cpu) == 0)
            *t = *sets[s].table;
    while (s && !same(t));
    report(sink, INGLE_REPORT_WARN, "kernel", "latent",
           "differs from the plain kernel; '%s' is used instead", cpu_name(sets[s].needs));
    return 1;
}
