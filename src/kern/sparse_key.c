/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_key - keys and thresholds, as all kernels of attention to few positions have them. */
#include "kern/sparse.h"

#include "kern/attend_coded.h"
#include "kern/attend_part.h"
#include "kern/math.h"
#include "kern/row.h"
#include <math.h>

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
