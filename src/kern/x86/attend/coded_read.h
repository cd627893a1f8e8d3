/* coded_read - sixteen numbers of a block of keys or values of kern/attend.h that is no integers.
 * A part of coded_body.h and of sparse_body.h, after coded_sums.h. */
#include "kern/x86/attend/codec.h"

/* Calls f with the codec as a constant. */
#define NUMBER_CODEC(c, f, ...)                                                                    \
    if ((c) == KERN_KV_TQ3_0) {                                                                    \
        f(KERN_KV_TQ3_0, __VA_ARGS__);                                                             \
    } else {                                                                                       \
        PLAIN_CODEC(c, f, __VA_ARGS__)                                                             \
    }

/* Where scales and norms begin. */
static const uint8_t *tail_bytes(enum kern_kv_codec c, const uint8_t *block, int64_t width)
{
    return block + (c == KERN_KV_Q8_0 ? (size_t)width * KERN_PAGE : kern_kv_code_bytes(c, width));
}

/* Sixteen numbers from element i on (tq3_0: a multiple of 16); scale is for those that have one. */
LANES_INLINE struct v16 numbers(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                int64_t i, struct v16 scale)
{
    if (c != KERN_KV_TQ3_0)
        return element(c, block, i, scale);
    uint32_t two;
    uint16_t one;
    memcpy(&two, block + i / 4, sizeof two);
    memcpy(&one, block + width * KERN_PAGE / 4 + i / 8, sizeof one);
    return v_mul(scale, from_three(two, one, kern_tq3_level));
}

/* Whether numbers from dimension i on have another scale than those before. */
LANES_INLINE bool scale_begins(enum kern_kv_codec c, int64_t i)
{
    return c == KERN_KV_Q8_0 ? i % ATTEND_QUANT == 0 : c == KERN_KV_TQ3_0 && i % KERN_KV_GROUP == 0;
}
/* The scales of dimension k of a 16-block of keys, and of dimension d of the value at slot j. */
LANES_INLINE struct v16 key_scales(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                   int64_t b, int64_t k)
{
    const uint16_t *norm = (const uint16_t *)(const void *)tail_bytes(c, block, width);
    return c == KERN_KV_Q8_0 ? key_scale(block, width, b, k)
                             : v_from_f16(norm + k / KERN_KV_GROUP * KERN_PAGE + b * 16);
}
LANES_INLINE struct v16 value_scales(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                     int64_t j, int64_t d)
{
    const uint16_t *norm = (const uint16_t *)(const void *)tail_bytes(c, block, width);
    return c == KERN_KV_Q8_0   ? value_scale(block, width, j, d)
           : c == KERN_KV_TQ3_0 ? v_set(_cvtsh_ss(norm[d / KERN_KV_GROUP * KERN_PAGE + j]))
                                : v_zero();
}
