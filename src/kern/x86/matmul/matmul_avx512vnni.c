/* SPDX-License-Identifier: Apache-2.0 */
/* Products on AVX-512 with VNNI. */
#define NAME(name) kern_matmul_##name##_avx512vnni
#define AHEAD 0
#include "kern/x86/matmul/vnni512.h"

static TILE(stored_1, 1, 256, &stored_code, 0)
static TILE(stored_2, 2, 256, &stored_code, 0)
static TILE(stored_3, 3, 256, &stored_code, 0)
static TILE(stored_4, 4, 256, &stored_code, 0)
static TILE(stored_6, 6, 256, &stored_code, 0)
static TILE(stored_8, 8, 256, &stored_code, 0)

void kern_matmul_stored_avx512vnni(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    static const struct drive d = {
        {{stored_8, 8}, {stored_6, 6}, {stored_4, 4}, {stored_3, 3}, {stored_2, 2}, {stored_1, 1}},
        256,
        4,
        STORED_BYTES};
    drive_run_spread(m, &d, kern_stored_expand_avx2, p0, p1);
}
