/*
 * attend_part - what the attention kernels of all instruction sets share: where a block
 * keeps what, which positions a row sees, and how scratch is laid out.
 */
#ifndef INGLE_KERN_ATTEND_PART_H
#define INGLE_KERN_ATTEND_PART_H

#include "base/num.h"
#include "kern/attend.h"

enum {
    ATTEND_LANES = 16,
    ATTEND_PART = 256,  /* positions of a part of a split */
    ATTEND_QUANT = 32,  /* width that shares a Q8_0 scale */
    ATTEND_PANEL = 32,  /* dimensions that a kernel may keep together in decoded values */
    ATTEND_GROUP = 192, /* pairs of row and head that share one pass over keys and values */
    /* Of attention to few positions: */
    SPARSE_GROUP = 192, /* pairs that share one pass over keys */
    SPARSE_LIST = 400,  /* positions that a tile of pairs collects, of which a page may bring 128 */
    /* values that are kept as f32; odd, so that panels do not be in the same lines of a cache */
    SPARSE_ROWS = 417,
};

/* Element k of a key at slot: its index among the block's elements. */
static inline int64_t attend_key_at(int64_t width, int64_t slot, int64_t k)
{
    return (slot / ATTEND_LANES * width + k) * ATTEND_LANES + slot % ATTEND_LANES;
}

/* The first position that a row at pos sees. */
static inline int64_t attend_first(const struct kern_attend *a, int64_t pos)
{
    if (a->first)
        return a->first[pos - a->pos0];
    return a->window && pos >= a->window ? pos - a->window + 1 : 0;
}

/* After the last one that it sees. */
static inline int64_t attend_end(const struct kern_attend *a, int64_t pos)
{
    return pos < a->through ? a->through : pos + 1;
}

static inline int64_t attend_whole(int64_t width)
{
    return (width + ATTEND_LANES - 1) / ATTEND_LANES * ATTEND_LANES;
}

static inline int64_t attend_panels(int64_t width)
{
    return (width + ATTEND_PANEL - 1) / ATTEND_PANEL * ATTEND_PANEL;
}

#if defined(__x86_64__) && !defined(INGLE_PLAIN)
/* kern_attend_table.kv_write; of no use to wider registers. */
void kern_kv_write_avx2(enum kern_kv_codec c, bool key, int64_t width, void *block, int64_t slot,
                        const float *rows, int64_t n, int64_t stride);
#endif

#endif
