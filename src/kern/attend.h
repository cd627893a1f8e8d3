/*
 * attend - attention over paged keys and values.
 *
 * A page holds 128 positions.  For one head of one layer it has a block of keys and a
 * block of values, in the order the kernels read:
 *   keys    [128/16][width][16]: sixteen positions side by side, so that scores of sixteen
 *           positions are one vector and need no horizontal sum;
 *   values  [128][width].
 * Q8_0 blocks have their scales after the codes: f16, one per 32 of width and position,
 * keys [128/16][width/32][16], values [128][width/32].  A scale is max/127 rounded to f16,
 * a code x / scale rounded half to even within +-127; a group with a NaN or an infinity
 * becomes NaN, so that it is seen.
 *
 * Scores and values are visited in ascending position, in parts of 256 positions, each with
 * an online softmax that moves in blocks of 32.  Parts are merged in ascending order into
 * splits of 2,048 positions, splits into the row; all are aligned to absolute position.  A
 * score is scale * (q . k), f32 fmaf in ascending dimension, one accumulator.  Positions that
 * a row does not see have no influence, whatever stands there: a row's result depends on its
 * query and on the keys and values that it sees.
 *
 * The steps, which every kernel takes, for a row in one part (max(a, b) is a > b ? a : b,
 * folds are those of math.h):
 *   m = -inf, l[16] = 0, acc[v_width] = 0
 *   for each block of 32 with visible positions:
 *     s[j] = scale * score, -inf where not visible
 *     t[j] = max(s[j + 16], s[j]), j < 16; n = max(fold of t by max(t[j + h], t[j]), m)
 *     c = exp(m - n), l *= c, acc *= c, m = n
 *     p[j] = exp(s[j] - n), 0 where not visible; l[j] += p[j], then l[j] += p[j + 16]
 *     for each visible j: acc = fmaf(p[j], value[j], acc)
 *   the part's state is m, the fold of l by sums, acc
 * over a split's parts, and then over splits, of a sum that is not 0; the first gives M, L, A as it
 * is, then
 *   n = max(m, M), x = exp(M - n), y = exp(m - n), L = fmaf(l, y, L x), A = fmaf(a, y, A x)
 *   with a sink, it joins as one more split whose maximum is the sink, sum 1, values 0
 *   out = A / L
 *
 * The recipe "attend-pairs" of fast numerics differs in its products: queries, keys,
 * weights p (not
 * their sums l) and values are rounded to bf16, and two dimensions of a score, or two positions 2 i
 * and 2 i + 1 of
 * a value, are added at once as VDPBF16PS does it: the odd one first, each with fmaf, what is below
 * normal numbers
 * counts as 0 before and after; a position that is not visible as a product of zeros.
 */
#ifndef INGLE_KERN_ATTEND_H
#define INGLE_KERN_ATTEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct report_sink;
struct kern_from_v;

enum { KERN_PAGE = 128, KERN_SPLIT = 2048, KERN_ATTEND_BLOCK = 32 };

/* FP8 and FP4 are for rows alone (kern/row.h); the ones before them are plain blocks of keys and
 * values, the ones after them are for kern_attend_kernels.coded.  FP4, FROM_V and those after it
 * have no names that stand alone. */
enum kern_kv_codec {
    KERN_KV_F32, KERN_KV_F16, KERN_KV_BF16, KERN_KV_Q8_0, KERN_KV_FP8, KERN_KV_FP4,
    /* kern/kv_code.h; heads of a power of two, at most 512, tq3_0 of at least 128 */
    KERN_KV_Q8R, KERN_KV_N4R, KERN_KV_TQ3_0,
    /* of keys alone: none are stored, kern_attend.from_v says how they are made of values that are
     * plain */
    KERN_KV_FROM_V,
    /* kern/kv_code.h; keys and values both, which may differ: of keys the part that positions turn
     * is stored, the rest is made of the values by kern_attend.from_v; heads of 64 to 512 */
    KERN_KV_Q8R_ROT, KERN_KV_N4R_ROT,
    KERN_KV_CODECS
};
enum { KERN_KV_BLOCK_CODECS = KERN_KV_FP8 };

const char *kern_kv_name(enum kern_kv_codec c);             /* "f16" */
bool kern_kv_by_name(const char *name, enum kern_kv_codec *c);

/* Bytes of one head's block of 128 positions (a multiple of 64); 0 if the codec cannot
 * hold that width (Q8_0: a multiple of 32).  FROM_V: 0, it has no block. */
size_t kern_kv_block_bytes(enum kern_kv_codec c, bool key, int64_t width);
/* those that it can hold, for messages: "multiples of 32" */
const char *kern_kv_widths(enum kern_kv_codec c);
/* The names that can be requested, for messages: "f32, f16, ...". */
extern const char kern_kv_names[];

/* One attention task: n_rows consecutive positions pos0.. of one sequence, the n_heads
 * query heads that share one key/value head. */
struct kern_attend {
    enum kern_kv_codec k_codec, v_codec;
    int64_t k_width, v_width;
    const uint8_t *const *page; /* page[i]: positions [128 i, 128 (i+1)); NULL where nobody looks */
    size_t k_at, v_at;          /* where in a page this head's key and value blocks stand */
    const float *q;             /* f32 [n_rows][q_stride], head h at + h * k_width */
    int64_t q_stride;
    float *out;                 /* f32 [n_rows][out_stride], head h at + h * v_width */
    int64_t out_stride;
    int64_t n_rows, n_heads, pos0;
    /* rows before it see all positions below it, too, whatever the window says: the end of a
     * picture that they belong to; 0: none do */
    int64_t through;
    int64_t window;             /* row at p sees (p - window, p]; 0: all of [0, p] */
    /* [n_rows], ascending: of a window, each row sees [first, p], which is no more than it says;
     * NULL: as it says */
    const int32_t *first;
    float scale;
    const float *sink;          /* f32 [n_heads]: a logit with no value; NULL: none */
    const struct kern_from_v *from_v; /* k_codec FROM_V, Q8R_ROT or N4R_ROT */
    /* page[i] is page number[i] of the positions that keys are made for; NULL: i */
    const int32_t *number;
};
/* The first position of page i. */
static inline int64_t kern_attend_base(const struct kern_attend *a, int64_t i)
{
    return (a->number ? a->number[i] : i) * KERN_PAGE;
}

/* Partial results: f32 [n_rows][n_heads][kern_attend_state(v_width)] (maximum, sum, then
 * the weighted values; padded to whole vectors). */
static inline int64_t kern_attend_state(int64_t v_width) { return (v_width + 2 + 15) / 16 * 16; }

/* Bytes of scratch (64-byte aligned) that one running task needs; 0: more than memory. */
size_t kern_attend_scratch(const struct kern_attend *a);

/* Writes n rows f32 [n][stride] at slots slot.. (slot + n <= 128) of a block. */
typedef void kern_kv_write_fn(enum kern_kv_codec c, bool key, int64_t width, void *block,
                              int64_t slot, const float *rows, int64_t n, int64_t stride);

struct kern_attend_table {
    kern_kv_write_fn *kv_write;
    /* The whole task: every split, merged, finished into a->out. */
    void (*rows)(const struct kern_attend *a, void *scratch);
    /* One split into state (rows that see nothing of it: maximum -inf, sum 0). */
    void (*split)(const struct kern_attend *a, int64_t split, float *state, void *scratch);
    /* Merges states [n_splits][...] in ascending order and writes a->out. */
    void (*merge)(const struct kern_attend *a, int64_t n_splits, const float *state, void *scratch);
};

/* The kernels of a table: for every row, and with fast numerics for those of a prompt. */
struct kern_attend_kernels {
    struct kern_attend_table exact, fast;
    const char *name, *fast_name;
    const char *recipe; /* of fast; NULL: there is none */
    /* Every row of a task of which keys or values are after the blocks in the list of codecs
     * (attend_coded.h): kern_kv_needs_coded(). */
    struct kern_attend_table coded;
    const char *coded_name;
    /* Reference numerics, of the same keys and values: f32 products of what the codes stand for, by
     * the plain kernels. */
    struct kern_attend_table decoded;
};
bool kern_kv_needs_coded(enum kern_kv_codec k, enum kern_kv_codec v);

/* Fills t with the fastest kernels for a mask of base/cpu.h. */
void kern_attend_table_init(struct kern_attend_kernels *t, uint32_t cpu);

/* Part of kern_self_test(): each operation of t against its plain version. */
int kern_attend_self_test(struct kern_attend_kernels *t, uint32_t cpu,
                          const struct report_sink *sink);

/* The row at slot, decoded and turned back: f32 [width].  For tests, reference numerics and
 * restores. */
void kern_kv_read(enum kern_kv_codec c, bool key, int64_t width, const void *block, int64_t slot,
                  float *row);

#endif
