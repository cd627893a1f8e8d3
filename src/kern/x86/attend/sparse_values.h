/*
 * sparse_values - values of a page as f32, one position at a time where it is wanted, and their
 * means. A part of sparse_body.h.
 */

/* Signed byte i of each of sixteen fours. */
LANES_INLINE struct v16 byte_of(const uint8_t *four, int64_t i)
{
    const __m128i n = _mm_cvtsi32_si128((int)(24 - 8 * i));
#ifdef __AVX512F__
    return (struct v16){
        _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_sll_epi32(_mm512_loadu_si512(four), n), 24))};
#else
    const __m256i lo = _mm256_loadu_si256((const __m256i *)(const void *)four),
                  hi = _mm256_loadu_si256((const __m256i *)(const void *)(four + 32));
    return (struct v16){_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_sll_epi32(lo, n), 24)),
                        _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_sll_epi32(hi, n), 24))};
#endif
}

/* Sixteen dimensions from d on of the value at slot j, as it is stored. */
LANES_INLINE struct v16 value_at(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                 int64_t j, int64_t d)
{
    const uint16_t *scale = (const uint16_t *)(const void *)tail_bytes(c, block, width);
    if (kern_kv_code(c) == KERN_KV_Q8R)
        return v_mul(v_set(_cvtsh_ss(scale[d / kern_kv_group(c, width) * KERN_PAGE + j])),
                     byte_of(block + (j / 4 * width + d) * 4, j % 4));
    if (kern_kv_code(c) == KERN_KV_N4R) {
        uint8_t half[2][64];
        expand(block + ((j / 32 * 4 + j % 16 / 4) * width + d) * 4, kern_n4r_level, half[0],
               half[1]);
        return v_mul(v_set(_cvtsh_ss(scale[d / kern_kv_group(c, width) * KERN_PAGE + j])),
                     byte_of(half[j % 32 / 16], j % 4));
    }
    return numbers(c, block, width, j * width + d, value_scales(c, block, width, j, d));
}

/* Panels of 32 dimensions: f32 [width/32][slots][32]. */
LANES_INLINE int64_t panel_at(int64_t slots, int64_t j, int64_t d)
{
    return (d / ATTEND_PANEL * slots + j) * ATTEND_PANEL + d % ATTEND_PANEL;
}

/* The value at slot j to a row of panels of SPARSE_ROWS. */
LANES_INLINE void read_value_on(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                int64_t j, float *to)
{
    for (int64_t d = 0; d < width; d += 16)
        v_store(to + panel_at(SPARSE_ROWS, 0, d), value_at(c, block, width, j, d));
}

static void read_value(enum kern_kv_codec c, const uint8_t *block, int64_t width, int64_t j,
                       float *to)
{
    if (c == KERN_KV_F16)
        read_value_on(KERN_KV_F16, block, width, j, to);
    else if (c == KERN_KV_F32)
        read_value_on(KERN_KV_F32, block, width, j, to);
    else if (c == KERN_KV_Q8R)
        read_value_on(KERN_KV_Q8R, block, width, j, to);
    else if (c == KERN_KV_N4R)
        read_value_on(KERN_KV_N4R, block, width, j, to);
    else if (c == KERN_KV_Q8R_ROT)
        read_value_on(KERN_KV_Q8R_ROT, block, width, j, to);
    else if (c == KERN_KV_N4R_ROT)
        read_value_on(KERN_KV_N4R_ROT, block, width, j, to);
    else
        read_value_on(c, block, width, j, to);
}

/* The sum of slots [0, n) times 1/128, as row `at` of panels of SPARSE_ROWS.  True: all of them are
 * finite, and the sum is. */
LANES_INLINE bool mean_on(enum kern_kv_codec c, const uint8_t *block, int64_t width, int64_t n,
                          int64_t at, float *mean)
{
    struct v16 odd = v_zero();
    for (int64_t d = 0; d < width; d += 16)
        v_store(mean + panel_at(SPARSE_ROWS, at, d), v_zero());
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < width; d += 16) {
            float *sum = mean + panel_at(SPARSE_ROWS, at, d);
            v_store(sum, v_add(v_load(sum), value_at(c, block, width, j, d)));
        }
    for (int64_t d = 0; d < width; d += 16) {
        float *sum = mean + panel_at(SPARSE_ROWS, at, d);
        odd = v_fma(v_load(sum), v_zero(), odd);
        v_store(sum, v_mul(v_load(sum), v_set(1.0f / KERN_PAGE)));
    }
    return v_fold_sum(odd) == 0.0f;
}

static bool mean_of(enum kern_kv_codec c, const uint8_t *block, int64_t width, int64_t n,
                    int64_t at, float *mean)
{
    if (c == KERN_KV_F16)
        return mean_on(KERN_KV_F16, block, width, n, at, mean);
    if (c == KERN_KV_F32)
        return mean_on(KERN_KV_F32, block, width, n, at, mean);
    if (c == KERN_KV_Q8R)
        return mean_on(KERN_KV_Q8R, block, width, n, at, mean);
    if (c == KERN_KV_N4R)
        return mean_on(KERN_KV_N4R, block, width, n, at, mean);
    if (c == KERN_KV_Q8R_ROT)
        return mean_on(KERN_KV_Q8R_ROT, block, width, n, at, mean);
    if (c == KERN_KV_N4R_ROT)
        return mean_on(KERN_KV_N4R_ROT, block, width, n, at, mean);
    return mean_on(c, block, width, n, at, mean);
}
