/*
 * select - which pages a row of an answer reads, chosen by 4-bit copies of its keys ("shadow
 * keys").
 *
 * Beside each position's key stands its shadow: the key as n4r has it (kern/kv_code.h); beside each
 * complete page the mean
 * of its values, f32, of values as they are stored (turned where their codec turns), summed in
 * ascending slot, times 1/128.
 * For a row at position p, page i = positions [128 i, 128 (i + 1)), n = p / 128 + 1 pages are seen.
 *
 *   budget  b = min(n, w + max(least, ceil(n / part))); w: the pages of `whole` (those with
 *           pictures and sounds, which are read whole) that are not chosen anyway; so a function of
 *           p and of where media are before it
 *   score   of each position that is seen, by the row's query as bytes and the shadow key, as
 *   attend_coded.h has it for n4r
 *   mass    of each page and query head: m = maximum of its scores (a > b ? a : b); l the fold of
 *   l[16] by sums, l[j] the
 *           sum of exp(s - m) over the positions j mod 16, ascending
 *   share   M = maximum of m over the pages; w = l exp(m - M); W the sum of w in ascending page;
 *   share = w / W; of a page the
 *           largest among the query heads of a key/value head; NaN counts as infinity
 *   chosen  the first page, the row's own and the three before it; those of `whole`; then those of
 *           the largest share, of equal ones the lower index, until there are b
 *   rest    of the others, for each query head: m = maximum of their m, l = 0, acc = 0; in
 *   ascending page: w = l_i exp(m_i - m),
 *           l += w, acc = fmaf(w, mean_i, acc)
 *   out     attention (attend.h, attend_coded.h) to the chosen pages as if they stood one after
 *   the other in ascending order,
 *           with the rest as one more split, the last
 *
 * If all are chosen the rest is nothing (l = 0), so the bits are those of attention to all.  Rows
 * with p mod 64 = 63 attend to
 * all, whatever is chosen, and what the choice would have missed is measured with them.
 */
#ifndef INGLE_KERN_SELECT_H
#define INGLE_KERN_SELECT_H

#include "kern/attend.h"

enum {
    KERN_SELECT_PAGES = 4,       /* pages at the row that are always chosen, its own one counted */
    KERN_SELECT_ALWAYS = KERN_SELECT_PAGES + 1,
    KERN_SELECT_LEAST = 16,      /* kern_select.least, if nothing is said: a split */
    KERN_SELECT_EVERY = 64,      /* of so many positions the last one attends to all */
    KERN_SELECT_PART_MOST = 256, /* of kern_select.part */
    KERN_SELECT_LEAST_MOST = 65536
};

/* How the rows of answers choose. */
struct kern_select {
    /* 1 .. KERN_SELECT_PART_MOST; KERN_SELECT_ALWAYS .. KERN_SELECT_LEAST_MOST */
    int64_t part, least;
};
/* The budget of a row at pos, without pages of media. */
static inline int64_t kern_select_budget(const struct kern_select *p, int64_t pos)
{
    const int64_t n = pos / KERN_PAGE + 1, share = (n + p->part - 1) / p->part,
                  b = share > p->least ? share : p->least;
    return b < n ? b : n;
}
static inline bool kern_select_always(int64_t i, int64_t n_pages)
{
    return i == 0 || i >= n_pages - KERN_SELECT_PAGES;
}
/* With them.  whole [pages]: 1 where a page is read whole; NULL: there are none. */
static inline int64_t kern_select_count(const struct kern_select *p, int64_t pos,
                                        const uint8_t *whole)
{
    const int64_t n = pos / KERN_PAGE + 1;
    int64_t b = kern_select_budget(p, pos);
    for (int64_t i = 1; whole && i < n - KERN_SELECT_PAGES; i++)
        b += whole[i];
    return b < n ? b : n;
}
static inline bool kern_select_checks(int64_t pos)
{
    return pos % KERN_SELECT_EVERY == KERN_SELECT_EVERY - 1;
}

/* What that did, over rows and query heads of layers; sums of several are sums of their members,
 * most the largest. */
struct kern_select_seen {
    uint64_t rows;                       /* a row counts once a layer */
    /* of row and query head that left pages out; the estimated share of their weights, in units of
     * 2^-32 */
    uint64_t pairs, missed;
    /* of those that were computed with all pages: what the choice would have missed, as it is */
    uint64_t checked, missed_true;
    uint64_t pages_read, pages_seen;     /* of row and key/value head */
    uint64_t bytes_read;                 /* keys and values in those */
    float most, most_true;               /* the largest shares */
};
void kern_select_join(struct kern_select_seen *sum, const struct kern_select_seen *more);

/* One row and key/value head. */
struct kern_select_task {
    const uint8_t *const *shadow; /* pages of shadow keys, [pos / 128 + 1] */
    size_t at, mean_at;           /* in a page: n4r keys [k_width]; f32 [v_width] */
    int64_t k_width, v_width;
    const float *q;               /* f32 [n_heads][k_width] */
    int64_t n_heads, pos;         /* query heads that share the keys */
    float scale;
};

struct kern_select_table {
    /* m and l of pages [first, end): f32 [n_heads][n_pages][2], of which those of other pages stay
     * as they are. */
    void (*mass)(const struct kern_select_task *t, int64_t first, int64_t end, int64_t n_pages,
                 float *mass, void *scratch);
    /* The rest as a split's state: f32 [n_heads][kern_attend_state(v_width)]; chosen: ascending. */
    void (*rest)(const struct kern_select_task *t, const float *mass, int64_t n_pages,
                 const int32_t *chosen, int64_t n, float *state);
};
struct kern_select_kernels {
    struct kern_select_table table;
    const char *name;
};

/* Bytes of scratch (64-byte aligned) of mass(). */
size_t kern_select_scratch(int64_t k_width, int64_t n_heads);
/* chosen [n], ascending, of n_pages pages, those of `whole` (or NULL) among them; key: u64
 * [kern_select_keys(n_pages)], scratch. */
static inline int64_t kern_select_keys(int64_t n_pages) { return n_pages + n_pages / 64 + 1; }
void kern_select_choose(const float *mass, int64_t n_heads, int64_t n_pages, const uint8_t *whole,
                        int64_t n, int32_t *chosen, uint64_t *key);

/* Bytes of a head's shadow in a page, and where the mean is; 0: there is none for such widths. */
size_t kern_select_bytes(int64_t k_width, int64_t v_width, size_t *mean_at);
/* The mean of a page's values: f32 [v_width], of a block of 128 values that are all there. */
void kern_select_mean(enum kern_kv_codec v, int64_t v_width, const void *values, float *mean);

void kern_select_table_init(struct kern_select_kernels *t, uint32_t cpu);
/* Part of kern_self_test(). */
int kern_select_self_test(struct kern_select_kernels *t, uint32_t cpu,
                          const struct report_sink *sink);

/* NULL: pages of such keys and values can be chosen; else why not. */
const char *kern_select_refuses(enum kern_kv_codec k, enum kern_kv_codec v, int64_t k_width,
                              int64_t v_width);

#endif
