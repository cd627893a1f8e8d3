/*
 * codes - what a code is, as a constant: a tile is one function for all codes, inlined with a row
 * of this table and a number of rows, so that nothing is left of what it asks.
 */
#ifndef INGLE_KERN_X86_MATMUL_CODES_H
#define INGLE_KERN_X86_MATMUL_CODES_H

#include "kern/x86/matmul/stored.h"
#include "quant/quant.h"

static const struct kern_code tile_codes[KERN_CODE_N] = {KERN_CODE_LIST(KERN_CODE_ROW)};
/* Blocks of the types that run from their stored rows, spread (stored.h): d are floats. */
static const struct kern_code stored_code = {.bits = 8, .bias = STORED_BIAS, .n_group = 8,
                                             .scales = KERN_SCALES_SUB16,
                                             .chunk_bytes = STORED_BYTES};
static_assert(STORED_SUB == KERN_SCALES_AT(8, 8) && STORED_D == STORED_SUB + 256, "as in a chunk");

/* Points: bytes of the lines of a group, and what is after those of all. */
struct code_points {
    uint32_t id;
    int group_bytes, after, chunk_bytes;
    float factor;
};
#define X(id, factor, n_lines, n_after)                                                            \
    static ATTR_UNUSED const struct code_points points_##id = {                                    \
        KERN_CODE_##id, KERN_GROUP_##id, KERN_TAIL_##id, KERN_CHUNK_##id, factor};
KERN_POINT_LIST(X)
#undef X

/* Lines of a chunk, scales and all. */
static ATTR_INLINE int code_lines(const struct kern_code *code)
{
    return (int)(code->chunk_bytes / 64);
}
/* Stored codes are what they stand for plus this; those with a table are looked up, plus
 * `listed`. */
static ATTR_INLINE int code_bias(const struct kern_code *code, int listed)
{
    return code->bits == 1 ? 1 : code->table ? listed : code->bias;
}

/* Where group i of a chunk has its codes, and its scales (Q32). */
static ATTR_INLINE const uint8_t *code_group(const struct kern_code *code, const uint8_t *chunk,
                                             int i)
{
    return chunk + KERN_GROUP_BYTES(code->bits) * i;
}
static ATTR_INLINE const uint8_t *code_scale(const struct kern_code *code, const uint8_t *chunk,
                                             int i)
{
    return chunk + KERN_SCALES_AT(code->bits, code->n_group) +
           (i >> code->scale_shift) * KERN_SCALE_BYTES(code->scales);
}

/* Q256: sub-scales of a group of 32 (0: none), minimums of them (0: none), and bytes of both. */
static ATTR_INLINE int code_subs(const struct kern_code *code)
{
    switch (code->scales) {
    case KERN_SCALES_SUB16: case KERN_SCALES_SUB16_NIB: return 2;
    case KERN_SCALES_NONE: return 0;
    default: return 1;
    }
}
static ATTR_INLINE bool code_has_min(const struct kern_code *code)
{
    return code->scales == KERN_SCALES_DM || code->scales == KERN_SCALES_SUB8_MIN ||
           code->scales == KERN_SCALES_SUB16_NIB;
}
static ATTR_INLINE int code_sub_bytes(const struct kern_code *code)
{
    return code->scales == KERN_SCALES_SUB8_MIN ? 256 : 128 * code_subs(code);
}

#endif
