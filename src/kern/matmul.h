/*
 * matmul - packed weight matrices times rows of activations: y[r][o] = sum_k W[o][k] x[r][k].
 *
 * Weights are packed once, losslessly, into panels of 16 output rows (P16): inside a panel
 * the 16 rows are interleaved four k at a time, so that one 64-byte line is the operand of
 * a 512-bit integer dot product, two of AVX2, or an AMX tile row.  Lanes are output rows:
 * no horizontal sums.  Formats that do not pack well keep their stored rows in a panel.
 * Four panels are a band: stretches of 1,024 k (floats 256) of its panels take turns, so
 * that a product reads a band from end to end while few activations stay in the first cache.
 *
 * The arithmetic, which every kernel follows to the bit.  k is cut into slices of 1,024 (weights
 * that are floats: 256).  A slice has one f32 accumulator per output, from +0, blocks in ascending
 * k;
 * y is the first slice's, and those of the others are added to it in ascending order, so that a
 * graphics
 * processor can do the slices of an output at once.  q, xs: activations and their scale; v: integer
 * weights.
 *   float       acc = fmaf(w, x, acc) for each k; scaled FP8: w = code * scale, rounded once; Q8_0
 *               whose activations stay f32 (kern_matrix_init_floats()): the same, exact.
 *   Q32 codes   groups of 32: dot = sum v q, exact; acc = fmaf((float)dot, d * xs, acc).
 *               Q4_1, Q5_1: then acc = fmaf((float)sum q, m * xs, acc).
 *               NVFP4: two dots of 16 with their own d, one fmaf each.
 *               MXFP4, NVFP4: v is the doubled code, d the halved scale.  Q1_0: v = -1, 1.
 *   Q256 codes  super-blocks of 256: dot = sum over groups of sub-scale * sum v q, exact;
 *               acc = fmaf((float)dot, d * xs, acc).  Q2_K, Q4_K, Q5_K: then, with
 *               min = sum over groups of sub-minimum * sum q,
 *               acc = fmaf((float)min, -(dmin * xs), acc).
 *               IQ2: d is the stored d / 8, sub-scale 2 s + 1; IQ3_XXS: d / 4, the same;
 *               IQ1: d / 8, v = 8 T +- 1; TQ: sub-scale 1.
 * Int to float rounds to nearest even.  The kernels expect the default rounding mode with
 * subnormal numbers on.
 *
 * --numerics fast is another arithmetic, for float weights but F32 ones, and for quantised ones
 * in a prompt.  Floats: weights (as kern_unpack_row() gives them) and activations are rounded to
 * bf16, and then (fast.inc)
 *   fast-pairs  acc = fma(w[k + 1], x[k + 1], acc), acc = fma(w[k], x[k], acc) for k = 0, 2, ...
 *   fast-panels 32 k at a time: e and o, from 0, are such sums of the even and the odd k; then
 *               acc = acc + (e + o)
 * Both count subnormal numbers as zeros of their sign, on the way in and out.  fast-panels has no
 * slices: its sums
 * are those of one kind of processor anyway.
 * Quantised ones:
 *   fast-wide   256 k at a time: weights w = d * sub * q + o of an output row become bytes b with
 *   one
 *               scale s, activations are those of Q256; dot = sum b q, exact;
 *               acc = fmaf((float)dot, s * xs, acc).
 * For that, with lo and hi the least and the largest q of the code, top is the largest of
 * |fmaf(d * sub, lo, o)| and |fmaf(d * sub, hi, o)| of the groups; o = -(dmin * min), m, or 0.
 * s = top * (1 / 127) and f = 127 * 256 / top, then
 *   by = rint((d * f) * sub), more = rint(128 + o * f), b = (q * by + more) >> 8,
 * where o * f is -(dmin * f) * min, fused with the sum.  Codes of 8 bits (Q8_0, IQ4_NL, IQ4_XS: lo
 * = -128)
 * have f = 127 * 32768 / top and b = (q * by + 16384) >> 15.  A top below 2^-90 counts as zero (s
 * 0), one that is no
 * number or infinite gives s = NaN; b is 0 then.  q * by is off by less than |q| / 2 + 1, so b has
 * no more than 127.
 *
 * Activations of a group (32 or 256 along k): scale = max|x| / 127 and q = x * (127 / max)
 * rounded half to even, each operation in f32.  A group below 2^-90 everywhere counts as
 * zero (scale 0); one that holds a NaN or an infinity has scale NaN and q 0, so that it
 * shows in the output.
 */
#ifndef INGLE_KERN_MATMUL_H
#define INGLE_KERN_MATMUL_H

#include "base/err.h"
#include "quant/quant.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KERN_PANEL = 16, KERN_BAND = 4 }; /* output rows in a panel, panels in a band */
enum { KERN_SLICE = 1024, KERN_SLICE_FLOATS = 256 }; /* k of a slice */

/* How activations are prepared for a matrix. */
/* BF16 is for --numerics fast alone. */
enum kern_act_kind { KERN_ACT_F32, KERN_ACT_Q32, KERN_ACT_Q256, KERN_ACT_BF16, KERN_ACT_KINDS };

/* A weight matrix in memory.  Plain data; the bytes belong to whoever allocated them. */
struct kern_matrix {
    uint32_t type;       /* enum quant_type of the file */
    uint32_t code;       /* how the kernels read it, of matmul.c's list */
    enum kern_act_kind act;
    int64_t out, in;     /* y[out] = W[out][in] x[in] */
    int64_t n_panels;    /* ceil(out / 16); rows past out read as zero */
    size_t panel_bytes;  /* a multiple of 64 */
    int64_t stretch;     /* k of a stretch; the last of a panel may be shorter */
    size_t stretch_bytes;
    uint8_t *at;         /* [bands][stretches][panels of the band][bytes of the stretch], */
                         /* n_panels * panel_bytes in all, 64-byte aligned */
};

/* Fills everything but at.  INGLE_UNSUP: no kernel for this type (the text names it);
 * INGLE_FORMAT: in is no whole number of blocks; INGLE_LIMIT: sizes overflow. */
MUST_CHECK ingle_status kern_matrix_init(struct kern_matrix *m, uint32_t type, int64_t out,
                                         int64_t in, struct err *err);
/* The same for activations that stay f32: of weights that are floats, and of Q8_0. */
MUST_CHECK ingle_status kern_matrix_init_floats(struct kern_matrix *m, uint32_t type, int64_t out,
                                                int64_t in, struct err *err);
/* k of a slice of m; stretches are whole slices. */
static inline int64_t kern_matrix_slice(const struct kern_matrix *m)
{
    return m->act == KERN_ACT_F32 ? KERN_SLICE_FLOATS : KERN_SLICE;
}
static inline size_t kern_matrix_bytes(const struct kern_matrix *m)
{
    return (size_t)m->n_panels * m->panel_bytes;
}

/* The layout of packed weights, of every code together: bump it with any change of what kern_pack()
 * writes.  Files of packed weights carry it (tests/unit/kern_layout.c notices a forgotten bump). */
enum { KERN_LAYOUT = 2 };

/* Packs panels [p0, p1) from stored rows 16*p0 .. (rows: the stored bytes of row 16*p0 and
 * on, rows of quant_bytes(type, in, 1) bytes without padding).  Any thread, disjoint panels. */
void kern_pack(const struct kern_matrix *m, int64_t p0, int64_t p1, const void *rows);

/* Row o decoded to f32 [in]; equals quant_decode of the stored row. */
void kern_unpack_row(const struct kern_matrix *m, int64_t o, float *dst);

/* Activations of n rows of k, prepared for one kind.  Memory is the caller's. */
struct kern_act {
    enum kern_act_kind kind;
    int64_t n, k;
    const float *x;   /* f32 [n][stride]; what KERN_ACT_F32 kernels read */
    int64_t stride;
    /* Q32, Q256: [n][row_bytes], blocks of kern/code.h; BF16: [n][k], then zeros */
    uint8_t *q;
    size_t row_bytes;
    /* Q32, Q256: the same once more as kernels for many rows read it (kern_matmul_tiles()), or
     * NULL */
    uint8_t *tiles;
};

/* Bytes of the memory after q (a multiple of 64); 0 for F32. */
size_t kern_act_bytes(enum kern_act_kind kind, int64_t n, int64_t k);
/* Where k begins in a prepared row: a multiple of the group; not of F32. */
size_t kern_act_offset(enum kern_act_kind kind, int64_t k);
/* Points a's members into mem (64-byte aligned). */
void kern_act_init(struct kern_act *a, enum kern_act_kind kind, int64_t n, int64_t k,
                   const float *x, int64_t stride, void *mem);
/* Bytes of the memory after tiles (64-byte aligned). */
size_t kern_act_tiles_bytes(enum kern_act_kind kind, int64_t n, int64_t k);
/* Where rows begin there from a multiple of KERN_TILES_ROWS on. */
size_t kern_act_tiles_at(enum kern_act_kind kind, int64_t row);
enum { KERN_TILES_ROWS = 32 }; /* of activations that are written together */

/* One product.  row[i] (NULL: i) is the activation row that gives output row i. */
struct kern_matmul {
    const struct kern_matrix *w;
    const struct kern_act *x;
    const int32_t *row;
    int64_t n;         /* output rows */
    float *y;          /* f32 [n][y_stride]; columns [0, w->out) are written, nothing else */
    int64_t y_stride;
};

/* Panels [p0, p1) of a product.  Rows of a batch are computed independently. */
typedef void kern_matmul_fn(const struct kern_matmul *m, int64_t p0, int64_t p1);

/* Quantises activation rows [r0, r1); or writes the tiles of quantised ones, r0 a multiple of
 * KERN_TILES_ROWS and r1, too, or the end. */
typedef void kern_act_fn(const struct kern_act *a, int64_t r0, int64_t r1);

enum { KERN_CODES = 32 };
struct kern_matmul_table {
    kern_matmul_fn *run[KERN_CODES]; /* by kern_matrix.code */
    kern_act_fn *act[KERN_ACT_KINDS]; /* NULL for F32 */
    kern_act_fn *tiles[KERN_ACT_KINDS]; /* NULL: no kernel reads them */
    const char *name[KERN_CODES];    /* of the chosen kernel, for reports */
    /* Kernels that may read memory faster; run's bits.  NULL: none. */
    kern_matmul_fn *ahead[KERN_CODES];
    const char *ahead_name[KERN_CODES];
    /* Kernels that may be faster from some rows on; run's bits.  NULL: none. */
    kern_matmul_fn *many[KERN_CODES];
    const char *many_name[KERN_CODES];
    int64_t many_from[KERN_CODES];   /* INT64_MAX: never; as long as nobody has measured */
    bool many_measured[KERN_CODES];
    /* --numerics fast: */
    kern_matmul_fn *fast[KERN_CODES]; /* NULL: exact is as fast */
    const char *fast_name[KERN_CODES];
    const char *recipe[KERN_CODES];  /* which arithmetic they have: "fast-pairs" */
};

/* Measures of each code whether t->ahead reads memory faster than t->run, which it replaces then (1
 * to 2 ms; once: it is NULL then): a choice of speed, not of bits.  Reports what it finds. */
struct report_sink;
void kern_matmul_calibrate_ahead(struct kern_matmul_table *t, const struct report_sink *sink);
/* That, and from how many rows on t->many is faster, once for a code (1 to 3 ms): the same. */
void kern_matmul_calibrate_code(struct kern_matmul_table *t, uint32_t code,
                                const struct report_sink *sink);
/* All of it. */
void kern_matmul_calibrate(struct kern_matmul_table *t, const struct report_sink *sink);
/* The kernel for a product of w with n rows. */
static inline kern_matmul_fn *kern_matmul_choose(const struct kern_matmul_table *t,
                                               const struct kern_matrix *w, int64_t n)
{
    return t->many[w->code] && n >= t->many_from[w->code] ? t->many[w->code] : t->run[w->code];
}

/* The kernel of --numerics fast for w, whose activations are of kind kern_matmul_fast_act(); NULL:
 * w runs as in exact.  Of quantised weights only for rows of a prompt, because a row that comes
 * alone would wait for the expansion.  A choice by code, width and that alone, so that results do
 * not depend on a batch. */
kern_matmul_fn *kern_matmul_fast(const struct kern_matmul_table *t, const struct kern_matrix *w,
                                 bool prompt);
enum kern_act_kind kern_matmul_fast_act(const struct kern_matrix *w);

/* Whether a product is faster with kern_act.tiles, for rows that are not listed.  They are whole
 * strips of 16 or 32, which fewer rows would fill too badly.  fast: of kern_matmul_fast(), or
 * NULL. */
static inline bool kern_matmul_tiles(const struct kern_matmul_table *t, const struct kern_matrix *w,
                                     kern_matmul_fn *fast, int64_t n)
{
    return t->tiles[fast ? kern_matmul_fast_act(w) : w->act] && n >= 4 * KERN_TILES_ROWS &&
           (fast || kern_matmul_choose(t, w, n) == t->many[w->code]);
}

/* The fastest kernels that cpu allows. */
void kern_matmul_table_init(struct kern_matmul_table *t, uint32_t cpu);
/* Part of kern_self_test(): each product and quantiser of t against its plain version. */
struct report_sink;
int kern_matmul_self_test(struct kern_matmul_table *t, uint32_t cpu,
                          const struct report_sink *sink);

/* --numerics reference: float activations against plainly decoded weights, f64 sums, one
 * simple kernel.  scratch: f32 [w->in].  x->kind is KERN_ACT_F32. */
void kern_matmul_reference(const struct kern_matmul *m, int64_t p0, int64_t p1, float *scratch);

/* Panels per chunk of work that suit n rows (for the caller's task list). */
int64_t kern_matmul_grain(const struct kern_matrix *w, int64_t n);

#endif
