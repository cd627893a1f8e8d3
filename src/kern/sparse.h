/*
 * sparse - attention of a prompt that scores every key by whole numbers and reads the values that
 * matter ("attend-few").
 *
 * For a row at position p of one query head: n = p + 1 positions are seen, page i holds [128 i, 128
 * (i + 1)), m = p / 128.
 *
 *   query    q' = H q (kern_row_hadamard()), rounded to bytes as kern_attend_coded_query() does it:
 *   a, x
 *   key      y and b: q8r's codes and scale (kern/kv_code.h) as they are stored; else those of the
 *   key that the codec
 *            stands for: of n4r what its codes stand for is turned already, all others are turned
 *            by H.
 *            FROM_V: weight * value, its pairs turned by the angle of the slot, then by that of the
 *            page's first position
 *   score    s = (float)(sum of x y) * ((a scale) b)
 *   always   pages A = {0} and {i : i > m - 4}
 *   first    over the blocks of 32 of A, ascending: M and S as m and l of attend.h, S the fold of
 *   l; theta = M + log(eps S / n)
 *   kept     a position of A or of a page of `whole` (those with pictures and sounds, of which no
 *            part is replaced by a mean), or s > theta
 *
 * A split is what a part is in attend.h, with these differences: m begins as M (c = 1 where nothing
 * is larger).  A position that is
 * not kept adds its p to l and to g[16] of its page, in the place of a product with its value; g
 * begins a page as 0 and is
 * multiplied by c as l is.  At the page's end lost[i] is the fold of g by sums; those of a split's
 * earlier pages are multiplied
 * by c, too.  At the split's end, for its pages ascending: where lost[i] is not 0, acc =
 * fmaf(lost[i], mean[i], acc) and
 * x += lost[i] (from 0); mean[i] is the sum of the page's 128 values in ascending slot times 1/128.
 * Splits are joined as in
 * attend.h, x as l is; in the end out = acc / l + 0 (no zero is
 * negative) and what was missed is x / l: at most eps.
 * Values are what codes stand for, turned as they are stored; out is turned back once.  So out and
 * what was missed are
 * functions of the row's query and of the keys and values that it sees.  What stands at a position
 * that is not kept has an
 * influence through its score and its page's mean alone.
 */
#ifndef INGLE_KERN_SPARSE_H
#define INGLE_KERN_SPARSE_H

#include "kern/attend.h"

enum {
    KERN_SPARSE_PAGES = 4,    /* pages at the row that are always seen, its own one counted */
    KERN_SPARSE_EPS_MOST = 10 /* of kern_sparse.eps */
};

/* How the rows of one request are attended to. */
struct kern_sparse {
    int eps;      /* eps = 2^-eps, 0 to KERN_SPARSE_EPS_MOST */
    int64_t from; /* rows at positions below it are computed as if there were no rule */
    const uint8_t *whole; /* as in kern_sparse_task */
};

/* What that did, over rows and query heads; sums of several are sums of their members, most the
 * largest. */
struct kern_sparse_seen {
    uint64_t rows;         /* a row counts once a layer */
    uint64_t pairs;        /* of row and query head */
    /* in units of 2^-32: each pair's share, rounded, so that no order shows */
    uint64_t missed;
    uint64_t kept, seen;   /* positions whose values were looked at, and of which there were keys */
    float most;            /* the largest share that a pair missed */
};

/* A task: rows of which each is seen from kern_sparse.from on.  attend: without window and sink. */
struct kern_sparse_task {
    struct kern_attend attend;
    int eps;
    /* [pages]: 1 where all values of a page are read; of pages that are always seen it does not
     * matter.  NULL: there are no such pages */
    const uint8_t *whole;
    float *missed;  /* f32 [n_rows][pair_stride], head h at + h: the share that each pair missed */
    int32_t *kept;  /* [n_rows][pair_stride]: positions that it kept */
    int64_t pair_stride;
};

/* Partial results: f32 [n_rows][n_heads][kern_sparse_state(v_width)]: m, l, x, positions kept, then
 * acc. */
enum { KERN_SPARSE_STATE = 4 };
static inline int64_t kern_sparse_state(int64_t v_width)
{
    return (v_width + KERN_SPARSE_STATE + 15) / 16 * 16;
}

struct kern_sparse_table {
    /* The whole task. */
    void (*rows)(const struct kern_sparse_task *t, void *scratch);
    /* M and theta of each pair: f32 [n_rows][n_heads][2]. */
    void (*select)(const struct kern_sparse_task *t, float *first, void *scratch);
    /* One split into state (rows that see nothing of it: sum 0). */
    void (*split)(const struct kern_sparse_task *t, int64_t split, const float *first, float *state,
                  void *scratch);
    /* Merges states [n_splits][...] in ascending order and writes what rows() writes. */
    void (*merge)(const struct kern_sparse_task *t, int64_t n_splits, const float *state,
                  void *scratch);
};

/* The kernels of a processor. */
struct kern_sparse_kernels {
    struct kern_sparse_table table;
    const char *name; /* NULL: none is faster than attending to all */
};

/* Bytes of scratch (64-byte aligned) that one running task needs; 0: more than memory. */
size_t kern_sparse_scratch(const struct kern_attend *a);

/* Fills t with the fastest kernels for a mask of base/cpu.h. */
void kern_sparse_table_init(struct kern_sparse_kernels *t, uint32_t cpu);
/* Part of kern_self_test(): against the plain version. */
int kern_sparse_self_test(struct kern_sparse_kernels *t, uint32_t cpu,
                          const struct report_sink *sink);

/* Of a pair that sees n positions: what s of a position is more than to be kept. */
float kern_sparse_threshold(int eps, float max, float sum, int64_t n);
/* A key as f32 [k_width], turned and ready to be rounded; not of q8r.  page: the page of the
 * position. */
void kern_sparse_key(const struct kern_attend *a, const uint8_t *page, int64_t pos, float *key);
/* Whether page i is always seen by a row at pos. */
static inline bool kern_sparse_always(int64_t pos, int64_t i)
{
    return i == 0 || i > pos / KERN_PAGE - KERN_SPARSE_PAGES;
}
/* Whether it keeps all positions of page i. */
static inline bool kern_sparse_keeps(const struct kern_sparse_task *t, int64_t pos, int64_t i)
{
    return kern_sparse_always(pos, i) || (t->whole && t->whole[i]);
}

/* NULL: it can be computed for such keys and values; else why not ("heads of width 96"). */
const char *kern_sparse_refuses(enum kern_kv_codec k, enum kern_kv_codec v, int64_t k_width,
                             int64_t v_width);

#endif
