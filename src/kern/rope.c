/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rope - the angles of rotary positions.  Positions reach a million, where a f32 product
 * would be wrong in the first digit; in double the angle is good to 1e-10.
 */
#include "kern/math.h"
#include <math.h>

void kern_rope_angles(float *cs, int64_t pos, const double *inv_freq, int64_t n_pairs)
{
    for (int64_t i = 0; i < n_pairs; i++) {
        double angle = (double)pos * inv_freq[i];
        cs[2 * i] = (float)cos(angle);
        cs[2 * i + 1] = (float)sin(angle);
    }
}
