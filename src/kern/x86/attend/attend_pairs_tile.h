/*
 * attend_pairs_tile - attend_tile.h's products by VDPBF16PS.  Included by attend_pairs.h once for
 * each shape; the file that includes defines both names.
 */

#define TILE_JOIN2(a, b) a##b
#define TILE_JOIN(a, b)  TILE_JOIN2(a, b)
#define TILE(name)       TILE_JOIN(name, TILE_R)

/* s[r][position] = scale * (q_r . key) for the 16-blocks [b0, b1), and perhaps for some around
 * them. */
static void TILE(score_)(enum kern_kv_codec c, bool decoded, const uint8_t *block, int64_t width,
                         const float *q, int64_t b0, int64_t b1, float scale, float *s,
                         struct next next)
{
    (void)c;
    (void)decoded;
    const int64_t n = num_div_up(width, 2);
    for (int64_t b = b0 / TILE_P * TILE_P; b < b1; b += TILE_P) {
        __m512 acc[TILE_R][TILE_P];
        /* in the first cache: no cost */
        const uint8_t *ahead = next.lines > 0 ? next.at : (const uint8_t *)q;
        const int64_t step = next.lines > 0 ? 64 : 0;
        next.at += n * 64;
        next.lines -= n;
        const int32_t *x = (const int32_t *)(const void *)q;
        LANES_UNROLL
        for (int r = 0; r < TILE_R; r++) {
            LANES_UNROLL
            for (int p = 0; p < TILE_P; p++)
                acc[r][p] = _mm512_setzero_ps();
        }
        for (int64_t k = 0; k < n; k++, x += TILE_R) {
            v_prefetch_far(ahead);
            ahead += step;
            __m512bh key[TILE_P];
            LANES_UNROLL
            for (int p = 0; p < TILE_P; p++)
                key[p] = (__m512bh)_mm512_loadu_si512(block + ((b + p) * n + k) * 64);
            LANES_UNROLL
            for (int r = 0; r < TILE_R; r++) {
                const __m512bh one = (__m512bh)_mm512_set1_epi32(x[r]);
                LANES_UNROLL
                for (int p = 0; p < TILE_P; p++)
                    acc[r][p] = _mm512_dpbf16_ps(acc[r][p], one, key[p]);
            }
        }
        LANES_UNROLL
        for (int r = 0; r < TILE_R; r++) {
            LANES_UNROLL
            for (int p = 0; p < TILE_P; p++)
                _mm512_storeu_ps(s + r * KERN_PAGE + (b + p) * 16,
                                 _mm512_mul_ps(_mm512_set1_ps(scale), acc[r][p]));
        }
    }
}

/* acc[r] takes in n vectors (at most TILE_D) of the values at slots [j0, j1), each times
 * weight[r][slot]; at the start of each block of 32 acc is rescaled.  The other half of a pair that
 * j0 or j1 cuts is not seen. */
LANES_INLINE void TILE(mix_on_)(int n, const struct values *v, int64_t at, int64_t j0, int64_t j1,
                                const float *weight, const float *rescale, float *acc,
                                const struct fold *f)
{
    const bool begins = FUSED && f && f->begins, ends = FUSED && f && f->to;
    const float *value = (const float *)(const void *)v->block + panel_at(0, at);
    __m512 sum[TILE_R][TILE_D];
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++) {
        LANES_UNROLL
        for (int p = 0; p < n; p++)
            sum[r][p] =
                begins ? _mm512_setzero_ps() : _mm512_loadu_ps(acc + r * v->whole + at + p * 16);
    }
    int64_t scaled = -1;
    for (int64_t i = j0 / 2, last = (j1 - 1) / 2; i <= last;) {
        const int64_t b = 2 * i / KERN_ATTEND_BLOCK;
        int64_t end = num_min((b + 1) * KERN_ATTEND_BLOCK / 2, last + 1);
        uint32_t seen = UINT32_MAX;
        if (2 * i < j0) {
            seen &= 0xFFFF0000;
            end = i + 1;
        }
        if (i == last && 2 * i + 1 == j1)
            seen &= 0xFFFF;
        else if (end == last + 1 && 2 * last + 1 == j1)
            end = last;
        if (scaled != b) {
            LANES_UNROLL
            for (int r = 0; r < TILE_R; r++) {
                const __m512 by = _mm512_set1_ps(rescale[r * PAGE_BLOCKS + b]);
                LANES_UNROLL
                for (int p = 0; p < n; p++)
                    sum[r][p] = _mm512_mul_ps(sum[r][p], by);
            }
            scaled = b;
        }
        const __m512i mask = _mm512_set1_epi32((int)seen);
        for (; i < end; i++) {
            __m512bh two[TILE_D];
            LANES_UNROLL
            for (int p = 0; p < n; p++)
                two[p] = (__m512bh)_mm512_and_si512(
                    mask, _mm512_loadu_si512(value + panel_at(i, p * 16)));
            LANES_UNROLL
            for (int r = 0; r < TILE_R; r++) {
                const int32_t *w = (const int32_t *)(const void *)(weight + r * KERN_PAGE);
                const __m512bh one = (__m512bh)_mm512_set1_epi32(w[i]);
                LANES_UNROLL
                for (int p = 0; p < n; p++)
                    sum[r][p] = _mm512_dpbf16_ps(sum[r][p], one, two[p]);
            }
        }
    }
    if (ends && !f->first) {
        LANES_UNROLL
        for (int r = 0; r < TILE_R; r++) {
            const __m512 x = _mm512_set1_ps(f->x[r]), y = _mm512_set1_ps(f->y[r]);
            LANES_UNROLL
            for (int p = 0; p < n; p++) {
                float *to = f->to + r * v->whole + at + p * 16;
                _mm512_storeu_ps(
                    to, _mm512_fmadd_ps(sum[r][p], y, _mm512_mul_ps(_mm512_loadu_ps(to), x)));
            }
        }
        return;
    }
    acc = ends ? f->to : acc;
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++) {
        LANES_UNROLL
        for (int p = 0; p < n; p++)
            _mm512_storeu_ps(acc + r * v->whole + at + p * 16, sum[r][p]);
    }
}

static void TILE(mix_)(enum kern_kv_codec c, const struct values *v, int64_t j0, int64_t j1,
                       const float *weight, const float *rescale, float *acc, const struct fold *f)
{
    (void)c;
    int64_t at = 0;
    for (; at + TILE_D * 16 <= v->whole; at += TILE_D * 16)
        TILE(mix_on_)(TILE_D, v, at, j0, j1, weight, rescale, acc, f);
    for (; TILE_D >= 4 && at + TILE_D / 4 * 16 <= v->whole; at += TILE_D / 4 * 16)
        TILE(mix_on_)(TILE_D / 4, v, at, j0, j1, weight, rescale, acc, f);
    for (; at < v->whole; at += 16)
        TILE(mix_on_)(1, v, at, j0, j1, weight, rescale, acc, f);
}

#undef TILE
#undef TILE_JOIN
#undef TILE_JOIN2
#undef TILE_R
#undef TILE_P
#undef TILE_D
