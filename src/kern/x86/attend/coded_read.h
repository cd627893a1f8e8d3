/* coded_read - sixteen numbers of a block of keys or values of kern/attend.h that is no integers.
 * A part of coded_body.h and of sparse_body.h, behind coded_sums.h. */

/* Where scales and norms begin. */
static const uint8_t *behind(enum kern_kv_codec c, const uint8_t *block, int64_t width)
{
    return block + (c == KERN_KV_Q8_0 ? (size_t)width * KERN_PAGE : kern_kv_code_bytes(c, width));
}

/* Sixteen numbers from element i on (tq3_0: a multiple of 16) of a block that is no integers; scale
 * is for those that have one. */
LANES_INLINE struct v16 element(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                int64_t i, struct v16 scale)
{
    if (c == KERN_KV_F32)
        return v_load((const float *)(const void *)block + i);
    if (c == KERN_KV_F16)
        return v_from_f16((const uint16_t *)(const void *)block + i);
    if (c == KERN_KV_BF16)
        return v_from_bf16((const uint16_t *)(const void *)block + i);
    if (c == KERN_KV_Q8_0)
        return v_mul(v_from_i8((const int8_t *)block + i), scale);
    uint32_t two;
    uint16_t one;
    memcpy(&two, block + i / 4, sizeof two);
    memcpy(&one, block + width * KERN_PAGE / 4 + i / 8, sizeof one);
    return v_mul(scale, from_three(two, one, kern_tq3_level));
}
