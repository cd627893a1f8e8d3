/*
 * latent - rows of paged streams in bulk: written, read, laid out for attention, scored as
 * keys of an indexer, pooled.
 *
 * Everything is defined per row or per dimension, with one accumulator and in ascending
 * order, so that lanes are rows or dimensions and no instruction set needs another order.
 */
#ifndef INGLE_KERN_LATENT_H
#define INGLE_KERN_LATENT_H

#include "kern/row.h"

/* How the rows of a stream are stored. */
struct kern_row {
    enum kern_kv_codec codec;
    int64_t width, tail;
};

/* One query against n keys that are side by side, kern_row_bytes() each. */
struct kern_scores {
    struct kern_row form;
    const void *keys;
    int64_t n;
    const void *q;       /* f32 [n_heads][width]; for FP4 keys what kern_query4() makes of that */
    const float *weight; /* f32 [n_heads] */
    int64_t n_heads;
    const void *next; /* keys that will be requested next and may be fetched, or NULL */
    int64_t n_next;
};

/* A head's query for keys in FP4 is FP4, too, as in training: dots of groups are integers.  It
 * is kern_query4_bytes(width) long: doubled codes int8 [width], a quarter of the scales f32
 * [groups], and int32 [groups] of -12 times the sum of a group's codes, where kernels begin
 * that have keys as unsigned bytes, 12 too large. */
static inline size_t kern_query4_bytes(int64_t width)
{
    return (size_t)width + (size_t)(width / KERN_ROW_GROUP4) * (sizeof(float) + sizeof(int32_t));
}
struct kern_latent_table;
/* q: f32 [n_heads][width], of whole groups. */
void kern_query4(const struct kern_latent_table *t, int64_t width, const float *q, int64_t n_heads,
                 void *out);

/* Floats of scratch for kern_latent_table.scores. */
static inline int64_t kern_latent_scratch(int64_t width) { return 3 * KERN_ROW_TILE * width; }

struct kern_latent_table {
    /* As kern_row_write() and kern_row_read(). */
    void (*write)(const struct kern_row *f, void *dst, const float *src);
    void (*read)(const struct kern_row *f, const void *src, float *dst);
    /* Rows row[0, n), n <= 16, into slots slot.. (a multiple of 16) of a block of keys and
     * of a block of values, both of kern_row_block(codec).  What the other slots of the
     * sixteen hold is not defined then. */
    void (*gather)(const struct kern_row *f, const void *const *row, int64_t n, int64_t slot,
                   void *keys, void *values);
    /* score[j] = sum over heads, ascending, of fmaf(weight[h], max(dot, 0), sum) from zero
     * (max: x > 0 ? x : 0); dot = q[h] . key[j], fmaf in ascending dimension from zero.  FP4:
     * dot = sum over groups, ascending, of fmaf(d * scale of the key's group, a quarter of the
     * query's, sum) from zero, d the group's dot of doubled codes. */
    void (*scores)(const struct kern_scores *s, float *score, float *scratch);
    /* Softmax over n members and their weighted sum, dimension by dimension: m = the largest
     * gate (g > m ? g : m, from -inf); for each member e = exp(g - m), sum = sum + e, y =
     * fmaf(e, value, y), both from zero; then y / sum.  gate and value: n pointers to f32
     * [width]; top and sum: f32 [width] of scratch. */
    void (*pool)(const float *const *value, const float *const *gate, int64_t n, int64_t width,
                 float *y, float *top, float *sum);
};

/* Fills t with the fastest kernels for a mask of base/cpu.h. */
void kern_latent_table_init(struct kern_latent_table *t, uint32_t cpu);

struct report_sink;
/* Part of kern_self_test(): each operation of t against its plain version. */
int kern_latent_self_test(struct kern_latent_table *t, uint32_t cpu,
                          const struct report_sink *sink);

#endif
