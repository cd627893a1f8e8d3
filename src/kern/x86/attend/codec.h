/*
 * codec - sixteen numbers of a plain block of keys or values of kern/attend.h: F32, F16, BF16 or
 * Q8_0.  A part of attend_body.h and of coded_read.h, behind lanes.
 */

/* Calls f with the codec as a constant. */
#define PLAIN_CODEC(c, f, ...)                                                                     \
    switch (c) {                                                                                   \
    case KERN_KV_F32: f(KERN_KV_F32, __VA_ARGS__); break;                                          \
    case KERN_KV_F16: f(KERN_KV_F16, __VA_ARGS__); break;                                          \
    case KERN_KV_BF16: f(KERN_KV_BF16, __VA_ARGS__); break;                                        \
    default: f(KERN_KV_Q8_0, __VA_ARGS__);                                                         \
    }

/* Sixteen elements from i on; scale is for Q8_0. */
LANES_INLINE struct v16 element(enum kern_kv_codec c, const uint8_t *block, int64_t i,
                                struct v16 scale)
{
    const void *p = block;
    if (c == KERN_KV_F32)
        return v_load((const float *)p + i);
    if (c == KERN_KV_F16)
        return v_from_f16((const uint16_t *)p + i);
    if (c == KERN_KV_BF16)
        return v_from_bf16((const uint16_t *)p + i);
    return v_mul(v_from_i8((const int8_t *)p + i), scale);
}

LANES_INLINE int64_t element_bytes(enum kern_kv_codec c)
{
    return c == KERN_KV_F32 ? 4 : c == KERN_KV_Q8_0 ? 1 : 2;
}

/* The elements [from, width) of slot j's value, fewer than sixteen, and zeros; never of Q8_0. */
LANES_INLINE struct v16 value_end(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                  int64_t j, int64_t from)
{
    const size_t size = c == KERN_KV_F32 ? 4 : 2;
    uint8_t tail[16 * sizeof(float)] = {0};
    memcpy(tail, block + (size_t)(j * width + from) * size, (size_t)(width - from) * size);
    return element(c, tail, 0, v_zero());
}

/* Of Q8_0: the scales of dimensions k.. k + 31 of a 16-block of keys, and of a value. */
LANES_INLINE struct v16 key_scale(const uint8_t *block, int64_t width, int64_t b, int64_t k)
{
    const void *p = block + width * KERN_PAGE;
    return v_from_f16((const uint16_t *)p + (b * (width / ATTEND_QUANT) + k / ATTEND_QUANT) * 16);
}
LANES_INLINE struct v16 value_scale(const uint8_t *block, int64_t width, int64_t j, int64_t d)
{
    const void *p = block + width * KERN_PAGE;
    return v_set(_cvtsh_ss(((const uint16_t *)p)[j * (width / ATTEND_QUANT) + d / ATTEND_QUANT]));
}
