/* SPDX-License-Identifier: Apache-2.0 */
/* attend_sum - what the plain kernels of attention collect: parts are joined into splits, splits
 * into a row. */
#ifndef INGLE_KERN_REF_ATTEND_SUM_H
#define INGLE_KERN_REF_ATTEND_SUM_H

#include "kern/math.h"
#include <math.h>
#include <stdint.h>

/* What a row has collected of a part, of a split or of several. */
struct part {
    float max, sum;
    float *acc; /* f32 [v_width] */
};

static inline float max_of(float a, float b)
{
    return a > b ? a : b;
}

static inline void clear(struct part *all, int64_t width)
{
    all->max = -INFINITY;
    all->sum = 0.0f;
    for (int64_t d = 0; d < width; d++)
        all->acc[d] = 0.0f;
}

/* all takes in the next part or split; acc NULL: zeros.  A sum of zero means that nothing of it was
 * seen: a visible maximum adds 1, or NaN. */
static inline void join(struct part *all, float max, float sum, const float *acc, int64_t width)
{
    if (sum == 0.0f)
        return;
    if (all->sum == 0.0f) {
        all->max = max;
        all->sum = sum;
        for (int64_t d = 0; d < width; d++)
            all->acc[d] = acc ? acc[d] : 0.0f;
        return;
    }
    float top = max_of(max, all->max), x = kern_exp(all->max - top), y = kern_exp(max - top);
    all->max = top;
    all->sum = fmaf(sum, y, all->sum * x);
    for (int64_t d = 0; d < width; d++)
        all->acc[d] = fmaf(acc ? acc[d] : 0.0f, y, all->acc[d] * x);
}

#endif
