/*
 * one512 - one row times a panel, as decoding does it.
 *
 * One row is bounded by memory, and how fast that comes depends on the order of the loads: the
 * processor reads ahead of one stream that ascends, and falls behind one that jumps to the scales
 * after a chunk and back, or reads lines a second time (Zen 4, two cores: two thirds of what it
 * can read, and four fifths in order; where that is too little, prefetch_ahead()).  So a chunk is
 * read once, from end to end: dots of all its groups first, then the scales.  High nibbles count as
 * 16 times their value until a group is through, which saves a shift a line.
 *
 * A body: vnni512.h includes it after the loads and look-ups that it uses.
 */
struct one_bytes { uint8_t b[64]; };
/* A line, in its turn: compilers move loads. */
static ATTR_INLINE __m512i one_line(const uint8_t *at)
{
    __m512i v;
#if AHEAD
    prefetch_ahead(at);
#endif
    __asm__ volatile("vmovdqu64 %1, %0"
                     : "=v"(v)
                     : "m"(*(const struct one_bytes *)(const void *)at)
                     : "memory");
    return v;
}
static ATTR_INLINE __m512i one_dp(__m512i a, __m512i w, const int8_t *q)
{
    return _mm512_dpbusd_epi32(a, w, words32(q));
}
static ATTR_INLINE __m512i one_low(__m512i v) { return _mm512_and_si512(v, quad_bytes(15)); }
static ATTR_INLINE __m512i one_high(__m512i v)
{
    return _mm512_and_si512(_mm512_srli_epi16(v, 4), quad_bytes(15));
}
static ATTR_INLINE __m512i one_two(__m512i v, int j)
{
    return _mm512_and_si512(quad_moved(v, 2 * j, 0), quad_bytes(3));
}

/* ---- start + the codes of a group of 32 times q ---- */

/* 4 bits, 5, and table[code]. */
static ATTR_INLINE __m512i one_nibbles(const struct kern_code *code, __m512i table,
                                       const uint8_t *g, const int8_t *q, __m512i start)
{
    __m512i a = start, b = _mm512_setzero_si512();
    const __m512i v[4] = {one_line(g), one_line(g + 64), one_line(g + 128), one_line(g + 192)};
    const __m512i h = code->bits == 5 ? one_line(g + 256) : b;
    const bool is_plain = code->bits == 4 && !code->table;
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i low = one_low(v[j]),
                high = is_plain ? _mm512_and_si512(v[j], quad_bytes(0xF0)) : one_high(v[j]);
        if (code->bits == 5) {
            low = quad_merge(quad_moved(h, j, 4), 16, low);
            high = quad_merge(quad_moved(h, 4 + j, 4), 16, high);
        } else if (code->table) {
            low = _mm512_shuffle_epi8(table, low);
            high = _mm512_shuffle_epi8(table, high);
        }
        a = one_dp(a, low, q + 4 * j);
        b = one_dp(b, high, q + 16 + 4 * j);
    }
    return _mm512_add_epi32(a, is_plain ? _mm512_srai_epi32(b, 4) : b);
}
static ATTR_INLINE __m512i one_bytes(const uint8_t *g, const int8_t *q, __m512i start)
{
    __m512i a = start, b = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int j = 0; j < 8; j += 2) {
        a = one_dp(a, one_line(g + 64 * j), q + 4 * j);
        b = one_dp(b, one_line(g + 64 * j + 64), q + 4 * j + 4);
    }
    return _mm512_add_epi32(a, b);
}
static ATTR_INLINE __m512i one_dot(const struct kern_code *code, __m512i table, const uint8_t *g,
                                   const int8_t *q, __m512i start)
{
    return code->bits == 8 ? one_bytes(g, q, start) : one_nibbles(code, table, g, q, start);
}

/* Halves of a group, added to low and high: 6 bits have them as low and high nibbles, each with
 * a line of its upper bits, 2 and 3 bits as a line each. */
static ATTR_INLINE void one_six(const uint8_t *g, const int8_t *q, __m512i *low, __m512i *high)
{
    const __m512i v[4] = {one_line(g), one_line(g + 64), one_line(g + 128), one_line(g + 192)};
    const __m512i h0 = one_line(g + 256), h1 = one_line(g + 320);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
        *low = one_dp(*low, quad_merge(quad_moved(h0, 2 * j, 4), 48, one_low(v[j])), q + 4 * j);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
        *high = one_dp(*high, quad_merge(quad_moved(h1, 2 * j, 4), 48, one_high(v[j])),
                       q + 16 + 4 * j);
}
static ATTR_INLINE void one_halves(const struct kern_code *code, const uint8_t *g, const int8_t *q,
                                   __m512i *low, __m512i *high)
{
    if (code->bits == 6) {
        one_six(g, q, low, high);
        return;
    }
    const __m512i v0 = one_line(g), v1 = one_line(g + 64);
    const __m512i h = code->bits == 3 ? one_line(g + 128) : v0;
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i first = one_two(v0, j), second = one_two(v1, j);
        if (code->bits == 3) {
            first = quad_merge(quad_moved(h, j, 2), 4, first);
            second = quad_merge(quad_moved(h, 4 + j, 2), 4, second);
        }
        *low = one_dp(*low, first, q + 4 * j);
        *high = one_dp(*high, second, q + 16 + 4 * j);
    }
}

/* ---- groups of 32 ---- */

static ATTR_INLINE __m512 one_add(__m512 y, __m512i dot, __m512 d, float scale)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(d, _mm512_set1_ps(scale)), y);
}
/* Exponents that are not 0, 1 or 255, as hardly ever one is. */
static ATTR_INLINE bool one_is_plain(const uint8_t *line)
{
    const __m512i less = _mm512_sub_epi8(one_line(line), quad_bytes(2));
    return !_mm512_cmpgt_epu8_mask(less, quad_bytes(252));
}
static ATTR_INLINE __m512 one_plain(const uint8_t *at)
{
    const __m512i e = _mm512_cvtepu8_epi32(row16(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23));
}
/* The groups of a chunk, then its scales, each with its d. */
static ATTR_INLINE __m512 one_chunk32(const struct kern_code *code, __m512i table, const uint8_t *w,
                                      const struct kern_act32 *a, __m512 y)
{
    __m512i dot[4];
#pragma GCC unroll 4
    for (int i = 0; i < code->n_group; i++)
        dot[i] = one_dot(code, table, code_group(code, w, i), a[i].q, start32(code, a + i));
    /* A row that need not wait computes for too long at exponents: those of a chunk are a line. */
    const bool is_plain =
        code->scales == KERN_SCALES_E && LIKELY(one_is_plain(code_scale(code, w, 0)));
    if (is_plain) {
#pragma GCC unroll 4
        for (int i = 0; i < code->n_group; i++)
            y = one_add(y, dot[i], one_plain(code_scale(code, w, i)), a[i].scale);
        return y;
    }
#pragma GCC unroll 4
    for (int i = 0; i < code->n_group; i++)
        y = one_add(y, dot[i], d32(code, code_scale(code, w, i)), a[i].scale);
    return y;
}
static ATTR_INLINE void one32(const struct kern_code *code, const uint8_t *w, int64_t n,
                              const uint8_t *const *x, float *y)
{
    const struct kern_act32 *a = act32(x, 0, 0);
    const __m512i table = quad_table(code);
    __m512 sum = _mm512_setzero_ps();
    for (; n >= code->n_group; n -= code->n_group, a += code->n_group, w += code->chunk_bytes)
        sum = one_chunk32(code, table, w, a, sum);
    for (int i = 0; i < n; i++)
        sum = one_add(sum,
                      one_dot(code, table, code_group(code, w, i), a[i].q, start32(code, a + i)),
                      d32(code, code_scale(code, w, i)), a[i].scale);
    _mm512_storeu_ps(y, sum);
}

/* ---- super-blocks of 256 ---- */

static ATTR_INLINE __m512i one_times_sub(const struct kern_code *code, __m512i dot, __m512i sum,
                                         const uint8_t *at)
{
    return _mm512_add_epi32(sum, _mm512_mullo_epi32(dot, sub_scales(code, at)));
}
/* One sub-scale for a group. */
static ATTR_INLINE __m512i one_block32(const struct kern_code *code, __m512i table,
                                       const uint8_t *w, const uint8_t *s,
                                       const struct kern_act256 *a)
{
    __m512i dot[8], sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int h = 0; h < 8; h++)
        dot[h] = one_dot(code, table, code_group(code, w, h), a->q + 32 * h,
                         code->table ? _mm512_set1_epi32(-128 * a->sum32[h])
                                     : _mm512_setzero_si512());
#pragma GCC unroll 8
    for (int h = 0; h < 8; h++)
        sum = one_times_sub(code, dot[h], sum, s + 16 * h);
    return sum;
}
/* -bias times the sum of q of a half, of which pairs has -32 times two parts. */
static ATTR_INLINE __m512i one_start16(const struct kern_code *code, const int16_t *pairs)
{
    if (!code->bias)
        return _mm512_setzero_si512();
    const __m512i by32 = _mm512_madd_epi16(words32(pairs), _mm512_set1_epi16(1));
    return code->bias == 32 ? by32 : _mm512_srai_epi32(by32, 3);
}
/* Sub-scales for both halves.  With AHEAD, dots of 16 with 2 or 3 bits are words: both halves of a
 * group times their scales at once. */
static ATTR_INLINE __m512i one_block16(const struct kern_code *code, const uint8_t *w,
                                       const uint8_t *s, const struct kern_act256 *a)
{
    __m512i low[8], high[8], sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int h = 0; h < 8; h++) {
        low[h] = one_start16(code, a->pairs32[2 * h]);
        high[h] = one_start16(code, a->pairs32[2 * h + 1]);
        one_halves(code, code_group(code, w, h), a->q + 32 * h, &low[h], &high[h]);
    }
#pragma GCC unroll 8
    for (int h = 0; h < 8; h++)
        if (AHEAD && code->bits < 4) {
            const __m512i both = _mm512_mask_blend_epi16(0xAAAAAAAAu, low[h],
                                                         _mm512_slli_epi32(high[h], 16));
            sum = _mm512_dpwssd_epi32(sum, both, sub_pairs(code, s, h));
        } else {
            sum = one_times_sub(code, low[h], sum, s + 32 * h);
            sum = one_times_sub(code, high[h], sum, s + 32 * h + 16);
        }
    return sum;
}
static ATTR_INLINE void one256(const struct kern_code *code, const uint8_t *w, int64_t n,
                               const uint8_t *const *x, float *y)
{
    const struct kern_act256 *a = act256(x, 0, 0);
    const __m512i table = quad_table(code);
    const int n_min = code_has_min(code) ? 4 * code_subs(code) : 0;
    __m512 sum = _mm512_setzero_ps();
    for (; n > 0; n--, a++, w += code->chunk_bytes) {
        const uint8_t *s = w + KERN_SCALES_AT(code->bits, 8), *d = s + code_sub_bytes(code);
        const __m512i dot = code_subs(code) == 2 ? one_block16(code, w, s, a)
                                                 : one_block32(code, table, w, s, a);
        __m512i min = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int i = 0; i < n_min; i++)
            min = _mm512_dpwssd_epi32(min, min_pairs(code, s, i), words32(sums256(code, a, i)));
        sum = one_add(sum, dot, halves(d), a->scale);
        if (n_min)
            sum = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min),
                                   _mm512_mul_ps(halves(d + 32), _mm512_set1_ps(a->scale)), sum);
    }
    _mm512_storeu_ps(y, sum);
}
