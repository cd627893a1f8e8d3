/*
 * attend_tile - the two products of attention for TILE_R pairs of row and head at once,
 * with TILE_P vectors of 16 positions (scores) or dimensions (values) each.  Included by
 * attend_body.h once for each shape; the file that includes defines both names.
 */

#define TILE_JOIN2(a, b) a##b
#define TILE_JOIN(a, b)  TILE_JOIN2(a, b)
#define TILE(name)       TILE_JOIN(name, TILE_R)

/* s[r][position] = scale * (q_r . key) for the 16-blocks [b0, b1) of a block of keys, and
 * perhaps for some around them.  q: f32 [width][TILE_R].  Meanwhile what stands at next, of the
 * same size, comes nearer. */
LANES_INLINE void TILE(score_on_)(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                  const float *q, int64_t b0, int64_t b1, float scale, float *s,
                                  const uint8_t *next)
{
    for (int64_t b = b0 / TILE_P * TILE_P; b < b1; b += TILE_P) {
        struct v16 acc[TILE_R][TILE_P], by[TILE_P];
        const float *x = q;
        const uint8_t *ahead = next + b * width * 16 * element_bytes(c);
        LANES_UNROLL
        for (int p = 0; p < TILE_P; p++) {
            by[p] = v_zero();
            LANES_UNROLL
            for (int r = 0; r < TILE_R; r++)
                acc[r][p] = v_zero();
        }
        for (int64_t g = 0; g < width; g += ATTEND_QUANT) {
            int64_t end = g + ATTEND_QUANT < width ? g + ATTEND_QUANT : width;
            if (c == KERN_KV_Q8_0) {
                LANES_UNROLL
                for (int p = 0; p < TILE_P; p++)
                    by[p] = key_scale(block, width, b + p, g);
            }
            for (int64_t k = g; k < end; k++, x += TILE_R) {
                LANES_UNROLL
                for (int p = 0; p < TILE_P; p++) {
                    int64_t i = ((b + p) * width + k) * 16;
                    struct v16 key = element(c, block, i, by[p]);
                    v_prefetch_far(ahead + (p * width + k) * 16 * element_bytes(c));
                    LANES_UNROLL
                    for (int r = 0; r < TILE_R; r++)
                        acc[r][p] = v_fma(v_set(x[r]), key, acc[r][p]);
                }
            }
        }
        LANES_UNROLL
        for (int r = 0; r < TILE_R; r++) {
            LANES_UNROLL
            for (int p = 0; p < TILE_P; p++)
                v_store(s + r * KERN_PAGE + (b + p) * 16, v_mul(v_set(scale), acc[r][p]));
        }
    }
}

static void TILE(score_)(enum kern_kv_codec c, const uint8_t *block, int64_t width, const float *q,
                         int64_t b0, int64_t b1, float scale, float *s, const uint8_t *next)
{
    if (c == KERN_KV_F32)
        TILE(score_on_)(KERN_KV_F32, block, width, q, b0, b1, scale, s, next);
    else if (c == KERN_KV_F16)
        TILE(score_on_)(KERN_KV_F16, block, width, q, b0, b1, scale, s, next);
    else if (c == KERN_KV_BF16)
        TILE(score_on_)(KERN_KV_BF16, block, width, q, b0, b1, scale, s, next);
    else
        TILE(score_on_)(KERN_KV_Q8_0, block, width, q, b0, b1, scale, s, next);
}

/* acc[r] takes in n vectors (at most TILE_D) of the values at slots [j0, j1), each times
 * weight[r][slot]; at the start of each block of 32 acc is rescaled.  Meanwhile this pass's share
 * of what is read next comes nearer. */
LANES_INLINE void TILE(mix_on_)(enum kern_kv_codec c, int n, const struct values *v, int64_t at,
                                int64_t j0, int64_t j1, const float *weight, const float *rescale,
                                float *acc)
{
    struct v16 sum[TILE_R][TILE_D];
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++) {
        LANES_UNROLL
        for (int p = 0; p < n; p++)
            sum[r][p] = v_load(acc + r * v->whole + at + p * 16);
    }
    for (int64_t j = j0; j < j1;) {
        int64_t b = j / KERN_ATTEND_BLOCK, end = (b + 1) * KERN_ATTEND_BLOCK;
        end = end < j1 ? end : j1;
        LANES_UNROLL
        for (int r = 0; r < TILE_R; r++) {
            struct v16 by = v_set(rescale[r * PAGE_BLOCKS + b]);
            LANES_UNROLL
            for (int p = 0; p < n; p++)
                sum[r][p] = v_mul(sum[r][p], by);
        }
        for (; j < end; j++) {
            for (int64_t i = 0; i < n * 16 * element_bytes(c); i += 64)
                v_prefetch_far(v->next + (at * KERN_PAGE + j * n * 16) * element_bytes(c) + i);
            LANES_UNROLL
            for (int p = 0; p < n; p++) {
                int64_t i = at + p * 16;
                struct v16 by = c == KERN_KV_Q8_0
                                    ? v_set(v->scale[j * v->n_groups + i / ATTEND_QUANT])
                                    : v_zero();
                struct v16 value = element(c, v->block, j * v->stride + i, by);
                LANES_UNROLL
                for (int r = 0; r < TILE_R; r++)
                    sum[r][p] = v_fma(v_set(weight[r * KERN_PAGE + j]), value, sum[r][p]);
            }
        }
    }
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++) {
        LANES_UNROLL
        for (int p = 0; p < n; p++)
            v_store(acc + r * v->whole + at + p * 16, sum[r][p]);
    }
}

LANES_INLINE void TILE(mix_all_)(enum kern_kv_codec c, const struct values *v, int64_t j0,
                                 int64_t j1, const float *weight, const float *rescale, float *acc)
{
    int64_t at = 0;
    for (; at + TILE_D * 16 <= v->whole; at += TILE_D * 16)
        TILE(mix_on_)(c, TILE_D, v, at, j0, j1, weight, rescale, acc);
    for (; TILE_D >= 4 && at + TILE_D / 4 * 16 <= v->whole; at += TILE_D / 4 * 16)
        TILE(mix_on_)(c, TILE_D / 4, v, at, j0, j1, weight, rescale, acc);
    for (; at < v->whole; at += 16)
        TILE(mix_on_)(c, 1, v, at, j0, j1, weight, rescale, acc);
}

static void TILE(mix_)(enum kern_kv_codec c, const struct values *v, int64_t j0, int64_t j1,
                       const float *weight, const float *rescale, float *acc)
{
    if (c == KERN_KV_F32)
        TILE(mix_all_)(KERN_KV_F32, v, j0, j1, weight, rescale, acc);
    else if (c == KERN_KV_F16)
        TILE(mix_all_)(KERN_KV_F16, v, j0, j1, weight, rescale, acc);
    else if (c == KERN_KV_BF16)
        TILE(mix_all_)(KERN_KV_BF16, v, j0, j1, weight, rescale, acc);
    else
        TILE(mix_all_)(KERN_KV_Q8_0, v, j0, j1, weight, rescale, acc);
}

#undef TILE
#undef TILE_JOIN
#undef TILE_JOIN2
#undef TILE_R
#undef TILE_P
#undef TILE_D
