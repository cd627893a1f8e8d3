/* SPDX-License-Identifier: Apache-2.0 */
/* sparse - what all kernels of attention to few positions share: keys, thresholds, scratch, and the
 * choice of kernels. */
#include "kern/sparse.h"

#include "base/cpu.h"
#include "kern/attend_coded.h"
#include "kern/attend_part.h"
#include "kern/math.h"
#include "kern/row.h"
#include <math.h>
#include <string.h>

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

float kern_sparse_threshold(int eps, float max, float sum, int64_t n)
{
    return max + kern_log(ldexpf(sum, -eps) / (float)n);
}

/* The pairs of a key by the angles of its slot, then by those of its page. */
static void turn_made(const struct kern_from_v *f, int64_t pos, float *x)
{
    enum { SOME = 64 };
    float cs[2 * SOME];
    const float *slot = f->slot + pos % KERN_PAGE * f->n_pairs * 2;
    for (int64_t at = 0; at < f->n_pairs; at += SOME) {
        const int64_t n = num_min(SOME, f->n_pairs - at);
        kern_rope_angles(cs, pos / KERN_PAGE * KERN_PAGE, f->inv_freq + at, n);
        for (int64_t i = at; i < at + n; i++) {
            const float *by[2] = {slot + 2 * i, cs + 2 * (i - at)};
            for (int k = 0; k < 2; k++) {
                const float a = x[i], b = x[i + f->half], c = by[k][0], s = by[k][1];
                x[i] = fmaf(-b, s, a * c);
                x[i + f->half] = fmaf(a, s, b * c);
            }
        }
    }
}

void kern_sparse_key(const struct kern_attend *a, const uint8_t *page, int64_t pos, float *key)
{
    const int64_t slot = pos % KERN_PAGE, width = a->k_width;
    if (a->k_codec == KERN_KV_N4R) {
        kern_attend_coded_read(a->k_codec, true, width, page + a->k_at, slot, key);
        return;
    }
    if (kern_kv_is_rot(a->k_codec)) {
        kern_attend_rot_key(a, page, slot, key);
    } else if (a->k_codec == KERN_KV_FROM_V) {
        kern_kv_read(a->v_codec, false, width, page + a->v_at, slot, key);
        for (int64_t i = 0; i < width; i++)
            key[i] *= a->from_v->weight[i];
        turn_made(a->from_v, pos, key);
    } else {
        kern_kv_read(a->k_codec, true, width, page + a->k_at, slot, key);
    }
    kern_row_hadamard(key, width);
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
