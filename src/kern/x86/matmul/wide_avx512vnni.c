/* SPDX-License-Identifier: Apache-2.0 */
/* Products of quantised weights with --numerics fast, without tiles: their bytes are spread as
 * those of other codes are. */
#include "kern/kernels.h"
#include "kern/x86/matmul/spread512.h"

SPREAD_TILES(tile, tile256, ((struct spread_block){GROUP_SCALED, 128, 0}))

#define WIDE_BIAS 128
#define WIDE(name, bytes)                                                                          \
    static void spread_##name(const uint8_t *packed, int64_t n, void *all)                         \
    {                                                                                              \
        for (struct spread256 *to = all; n-- > 0; to++, packed += (bytes))                         \
            expand_##name(packed, NULL, to->w[0], to->d);                                          \
    }                                                                                              \
    SPREAD_KERNEL(kern_wide_##name##_avx512vnni, spread_##name, tile, 256, struct spread256,       \
                  SPREAD_K / 256 * (bytes))
#include "kern/x86/matmul/wide512.h"
