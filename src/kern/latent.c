/* SPDX-License-Identifier: Apache-2.0 */
/* latent - the choice of kernels, and their comparison with plain C at the start. */
#include "kern/latent.h"

#include "base/cpu.h"
#include "base/report.h"
#include "kern/self.h"
#include "quant/quant.h"
#include <string.h>

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

void kern_query4(const struct kern_latent_table *t, int64_t width, const float *q, int64_t n_heads,
                 void *out)
{
    const struct kern_row group = {KERN_KV_FP4, KERN_ROW_GROUP4, 0};
    const int64_t groups = width / KERN_ROW_GROUP4;
    uint8_t row[KERN_ROW_GROUP4 / 2 + 4];
    uint8_t *head = out;
    for (int64_t h = 0; h < n_heads; h++, head += kern_query4_bytes(width))
        for (int64_t g = 0; g < groups; g++) {
            int8_t *code = (int8_t *)head + g * KERN_ROW_GROUP4;
            int32_t begin = 0;
            t->write(&group, row, q + h * width + g * KERN_ROW_GROUP4);
            for (int i = 0; i < KERN_ROW_GROUP4 / 2; i++) {
                code[i] = quant_e2m1_doubled[row[i] & 15];
                code[i + 16] = quant_e2m1_doubled[row[i] >> 4];
                begin -= 12 * (code[i] + code[i + 16]);
            }
            const float quarter = 0.25f * quant_e8m0_to_f32(row[KERN_ROW_GROUP4 / 2]);
            memcpy(head + width + 4 * g, &quarter, sizeof quarter);
            memcpy(head + width + 4 * (groups + g), &begin, sizeof begin);
        }
}

enum { MOST_WIDTH = 96, ROWS = 20, HEADS = 13, OUT = 3 * MOST_WIDTH * ROWS };

struct data {
    _Alignas(64) uint8_t stored[ROWS * MOST_WIDTH * 4];
    _Alignas(64) uint8_t keys[KERN_PAGE * MOST_WIDTH * 4], values[KERN_PAGE * MOST_WIDTH * 4];
    _Alignas(64) float scratch[3 * KERN_ROW_TILE * MOST_WIDTH];
    float x[ROWS * MOST_WIDTH], query[HEADS * MOST_WIDTH], out[OUT];
};

/* Every entry of the table once; what came out is in d->out. */
static void run(const struct kern_latent_table *t, const struct kern_row *form, struct data *d)
{
    const int64_t width = form->width;
    const enum kern_kv_codec block = kern_row_block(form->codec);
    const size_t bytes = kern_row_bytes(form->codec, width, form->tail);
    const float *value[ROWS], *gate[ROWS];
    const void *row[ROWS];
    float *out = d->out;
    for (int i = 0; i < ROWS; i++) {
        row[i] = d->stored + (size_t)i * bytes;
        value[i] = d->x + i * width;
        gate[i] = d->x + (ROWS - 1 - i) * width;
        t->write(form, d->stored + (size_t)i * bytes, value[i]);
        t->read(form, row[i], out);
        out += width;
    }
    if (form->codec != KERN_KV_FP4) {
        t->gather(form, row, KERN_ROW_TILE, 0, d->keys, d->values);
        t->gather(form, row + KERN_ROW_TILE, ROWS - KERN_ROW_TILE, KERN_ROW_TILE, d->keys,
                  d->values);
        for (int i = 0; i < ROWS; i += 3, out += 2 * width) {
            kern_kv_read(block, true, width, d->keys, i, out);
            kern_kv_read(block, false, width, d->values, i, out + width);
        }
    }
    if (form->codec == KERN_KV_FP4)
        kern_query4(t, width, d->x, HEADS, d->query);
    const void *q = form->codec == KERN_KV_FP4 ? d->query : (const void *)d->x;
    const struct kern_scores s = {*form, d->stored, ROWS, q, d->x, HEADS, NULL, 0};
    t->scores(&s, out, d->scratch);
    t->pool(value, gate, ROWS, width, out + ROWS, d->scratch, d->scratch + width);
}

static bool same(const struct kern_latent_table *t)
{
    static const struct kern_row form[] = {{KERN_KV_F32, 84, 8},
                                           {KERN_KV_F16, 84, 8},
                                           {KERN_KV_BF16, 84, 8},
                                           {KERN_KV_FP8, 84, 8},
                                           {KERN_KV_FP4, 96, 0}};
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        struct data want = {0}, got = {0};
        kern_self_fill(want.x, ROWS * MOST_WIDTH, 5);
        memcpy(got.x, want.x, sizeof got.x);
        run(sets[0].table, &form[i], &want);
        run(t, &form[i], &got);
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
