/*
 * attend_tile - the two products of attention for TILE_R pairs of row and head at once,
 * with TILE_P vectors of 16 positions (scores) or dimensions (values) each.  Included by
 * attend_body.h once for each shape; the file that includes defines both names.
 */

#define TILE_JOIN2(a, b) a##b
#define TILE_JOIN(a, b)  TILE_JOIN2(a, b)
#define TILE(name)       TILE_JOIN(name, TILE_R)
/* Many rows: their weights would not fit into registers all at once, vectors that they share do. */
#define TILE_HIGH        (TILE_R > TILE_P)

/* s[r][position] = scale * (q_r . key) for the 16-blocks [b0, b1) of a block of keys, and
 * perhaps for some around them.  q: f32 [width][TILE_R].  Meanwhile what is read next comes
 * nearer: of a decoded block a line each step, else as many bytes as are used. */
LANES_INLINE void TILE(score_on_)(enum kern_kv_codec c, bool decoded, const uint8_t *block,
                                  int64_t width, const float *q, int64_t b0, int64_t b1,
                                  float scale, float *s, struct next next)
{
    const int64_t together = c == KERN_KV_Q8_0 ? ATTEND_QUANT : width;
    for (int64_t b = b0 / TILE_P * TILE_P; b < b1; b += TILE_P) {
        struct v16 acc[TILE_R][TILE_P], by[TILE_P];
        const float *x = q;
        const uint8_t *ahead = next.at + b * width * 16 * element_bytes(c);
        int64_t step = 0;
        if (decoded) {
            ahead = next.lines > 0 ? next.at : (const uint8_t *)q; /* in the first cache: no cost */
            step = next.lines > 0 ? 64 : 0;
            next.at += width * 64;
            next.lines -= width;
        }
        LANES_UNROLL
        for (int p = 0; p < TILE_P; p++) {
            by[p] = v_zero();
            LANES_UNROLL
            for (int r = 0; r < TILE_R; r++)
                acc[r][p] = v_zero();
        }
        for (int64_t g = 0; g < width; g += together) {
            int64_t end = g + together < width ? g + together : width;
            if (c == KERN_KV_Q8_0) {
                LANES_UNROLL
                for (int p = 0; p < TILE_P; p++)
                    by[p] = key_scale(block, width, b + p, g);
            }
            for (int64_t k = g; k < end; k++, x += TILE_R) {
                if (decoded) {
                    v_prefetch_far(ahead);
                    ahead += step;
                }
                struct v16 key[TILE_P];
                LANES_UNROLL
                for (int p = 0; p < TILE_P; p++) {
                    key[p] = element(c, block, ((b + p) * width + k) * 16, by[p]);
                    if (!decoded)
                        v_prefetch_far(ahead + (p * width + k) * 16 * element_bytes(c));
                    LANES_UNROLL
                    for (int r = 0; r < TILE_R && !TILE_HIGH; r++)
                        acc[r][p] = v_fma(v_set(x[r]), key[p], acc[r][p]);
                }
                LANES_UNROLL
                for (int r = 0; r < TILE_R && TILE_HIGH; r++) {
                    struct v16 one = v_set(x[r]);
                    LANES_UNROLL
                    for (int p = 0; p < TILE_P; p++)
                        acc[r][p] = v_fma(one, key[p], acc[r][p]);
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

static void TILE(score_)(enum kern_kv_codec c, bool decoded, const uint8_t *block, int64_t width,
                         const float *q, int64_t b0, int64_t b1, float scale, float *s,
                         struct next next)
{
    if (decoded)
        TILE(score_on_)(KERN_KV_F32, true, block, width, q, b0, b1, scale, s, next);
    else
        PLAIN_CODEC(c, TILE(score_on_), false, block, width, q, b0, b1, scale, s, next)
}

/* Vector p after dimension at of the value at slot j. */
LANES_INLINE struct v16 TILE(value_)(enum kern_kv_codec c, bool panels, const struct values *v,
                                     int64_t j, int64_t at, int p)
{
    if (panels)
        return v_load((const float *)(const void *)v->block + panel_at(j, at) +
                      panel_at(0, p * 16));
    struct v16 by = v_zero();
    if (c == KERN_KV_Q8_0)
        by = v_set(v->scale[j * v->n_groups + (at + p * 16) / ATTEND_QUANT]);
    return element(c, v->block, j * v->stride + at + p * 16, by);
}

/* acc[r] takes in n vectors (at most TILE_D) of the values at slots [j0, j1), each times
 * weight[r][slot]; at the start of each block of 32 acc is rescaled.  Meanwhile this pass's share
 * of what is read next comes nearer, except for panels. */
LANES_INLINE void TILE(mix_on_)(enum kern_kv_codec c, bool panels, int n, const struct values *v,
                                int64_t at, int64_t j0, int64_t j1, const float *weight,
                                const float *rescale, float *acc, const struct fold *f)
{
    const bool begins = FUSED && f && f->begins, ends = FUSED && f && f->to;
    struct v16 sum[TILE_R][TILE_D];
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++) {
        LANES_UNROLL
        for (int p = 0; p < n; p++)
            sum[r][p] = begins ? v_zero() : v_load(acc + r * v->whole + at + p * 16);
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
            for (int64_t i = panels ? INT64_MAX : 0; i < n * 16 * element_bytes(c); i += 64)
                v_prefetch_far(v->next + (at * KERN_PAGE + j * n * 16) * element_bytes(c) + i);
            struct v16 value[TILE_D];
            LANES_UNROLL
            for (int p = 0; p < n; p++) {
                value[p] = TILE(value_)(c, panels, v, j, at, p);
                LANES_UNROLL
                for (int r = 0; r < TILE_R && !TILE_HIGH; r++)
                    sum[r][p] = v_fma(v_set(weight[r * KERN_PAGE + j]), value[p], sum[r][p]);
            }
            LANES_UNROLL
            for (int r = 0; r < TILE_R && TILE_HIGH; r++) {
                struct v16 one = v_set(weight[r * KERN_PAGE + j]);
                LANES_UNROLL
                for (int p = 0; p < n; p++)
                    sum[r][p] = v_fma(one, value[p], sum[r][p]);
            }
        }
    }
    if (ends && !f->first) {
        LANES_UNROLL
        for (int r = 0; r < TILE_R; r++) {
            const struct v16 x = v_set(f->x[r]), y = v_set(f->y[r]);
            LANES_UNROLL
            for (int p = 0; p < n; p++) {
                float *to = f->to + r * v->whole + at + p * 16;
                v_store(to, v_fma(sum[r][p], y, v_mul(v_load(to), x)));
            }
        }
        return;
    }
    acc = ends ? f->to : acc;
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++) {
        LANES_UNROLL
        for (int p = 0; p < n; p++)
            v_store(acc + r * v->whole + at + p * 16, sum[r][p]);
    }
}

LANES_INLINE void TILE(mix_all_)(enum kern_kv_codec c, bool panels, const struct values *v,
                                 int64_t j0, int64_t j1, const float *weight, const float *rescale,
                                 float *acc, const struct fold *f)
{
    int64_t at = 0;
    for (; at + TILE_D * 16 <= v->whole; at += TILE_D * 16)
        TILE(mix_on_)(c, panels, TILE_D, v, at, j0, j1, weight, rescale, acc, f);
    for (; TILE_D >= 4 && at + TILE_D / 4 * 16 <= v->whole; at += TILE_D / 4 * 16)
        TILE(mix_on_)(c, panels, TILE_D / 4, v, at, j0, j1, weight, rescale, acc, f);
    for (; at < v->whole; at += 16)
        TILE(mix_on_)(c, panels, 1, v, at, j0, j1, weight, rescale, acc, f);
}

static void TILE(mix_)(enum kern_kv_codec c, const struct values *v, int64_t j0, int64_t j1,
                       const float *weight, const float *rescale, float *acc, const struct fold *f)
{
    if (v->panels)
        TILE(mix_all_)(KERN_KV_F32, true, v, j0, j1, weight, rescale, acc, f);
    else
        PLAIN_CODEC(c, TILE(mix_all_), false, v, j0, j1, weight, rescale, acc, f)
}

#undef TILE
#undef TILE_HIGH
#undef TILE_JOIN
#undef TILE_JOIN2
#undef TILE_R
#undef TILE_P
#undef TILE_D
