/* SPDX-License-Identifier: Apache-2.0 */
/* sparse - what all kernels of attention to few positions share: scratch, and the choice of
 * kernels. */
#include "kern/sparse.h"

#include "base/cpu.h"
#include "kern/attend_coded.h"
#include "kern/attend_part.h"

static bool is_wide(int64_t width)
{
    return width < ATTEND_LANES || width > KERN_KV_WIDE || (width & (width - 1));
}

const char *kern_sparse_refuses(enum kern_kv_codec k, enum kern_kv_codec v, int64_t k_width,
                             int64_t v_width)
{
    if (is_wide(k_width) || is_wide(v_width))
        return "heads are of a width that is no power of two from 16 to 512";
    if (kern_kv_block_bytes(v, false, v_width) == 0 ||
        (k != KERN_KV_FROM_V && kern_kv_block_bytes(k, true, k_width) == 0))
        return "keys and values are not kept as heads";
    return NULL;
}

/* Of each pair its query as words, sums over all splits and of one, sixteen sums of weights, what
 * pages lost; of a group of pairs sums of values, scores of a page, weights of lists; words of the
 * keys of a split, bytes of a page's; values and means of a split. */
size_t kern_sparse_scratch(const struct kern_attend *a)
{
    size_t pairs, n, group;
    const size_t kw = (size_t)attend_whole(a->k_width), vw = (size_t)attend_panels(a->v_width),
                 pages = KERN_SPLIT / KERN_PAGE;
    if (!num_mul((size_t)a->n_rows, (size_t)a->n_heads, &pairs) ||
        !num_add(pairs, ATTEND_LANES, &pairs) ||
        !num_mul(pairs, kw / 2 + vw + 4 * ATTEND_LANES, &n))
        return 0;
    group = pairs < SPARSE_GROUP ? pairs : SPARSE_GROUP;
    const size_t keys = pages * (2 * kw + 2) * KERN_PAGE / sizeof(float) + kw * KERN_PAGE / 4 +
                        3 * kw * ATTEND_LANES;
    const size_t values = vw * SPARSE_ROWS, more = 4096;
    if (!num_add(n, group * (vw + KERN_PAGE + SPARSE_LIST) + keys + values + more, &n) ||
        !num_mul(n, sizeof(float), &n))
        return 0;
    return n;
}

#define KERN_ATTEND(needs, table)
#define KERN_ATTEND_SPARSE(needs, table) extern const struct kern_sparse_table table;
#include "kern/attend.inc"
#undef KERN_ATTEND_SPARSE

void kern_sparse_table_init(struct kern_sparse_kernels *t, uint32_t cpu)
{
    *t = (struct kern_sparse_kernels){.name = NULL};
#define KERN_ATTEND_SPARSE(needs, kernels)    \
    if (((needs) & ~cpu) == 0) {           \
        t->table = kernels;                \
        t->name = (needs) ? #kernels : NULL; \
    }
#include "kern/attend.inc"
#undef KERN_ATTEND_SPARSE
#undef KERN_ATTEND
}
