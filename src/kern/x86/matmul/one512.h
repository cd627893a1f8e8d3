/*
 * one512 - one row times a panel, as decoding does it.
 *
 * One row is bounded by memory, and how fast that comes depends on the order of the loads: the
 * processor reads ahead of one stream that ascends, and falls behind one that jumps to the scales
 * behind a chunk and back, or reads lines a second time (Zen 4, two cores: two thirds of what it
 * can read, and four fifths in order; where that is too little, ask_ahead()).  So a chunk is read
 * once, from end to end: dots of all its groups first, then the scales.  High nibbles count as 16
 * times their value until a group is through, which saves a shift a line.
 *
 * A body: vnni512.h includes it behind the loads and look-ups that it uses.
 */
struct one_bytes { uint8_t b[64]; };
/* A line, in its turn: compilers move loads. */
static ATTR_INLINE __m512i one_line(const uint8_t *at)
{
    __m512i v;
#if AHEAD
    ask_ahead(at);
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

/* start + the codes of a group of 32 times q. */
static ATTR_INLINE __m512i one_dot4(const uint8_t *g, const int8_t *q, __m512i start)
{
    __m512i a = start, b = _mm512_setzero_si512();
    const __m512i v0 = one_line(g), v1 = one_line(g + 64), v2 = one_line(g + 128),
                  v3 = one_line(g + 192);
#define BOTH(j, v)                                                    \
    a = one_dp(a, one_low(v), q + 4 * (j));                           \
    b = one_dp(b, _mm512_and_si512(v, quad_bytes(0xF0)), q + 16 + 4 * (j));
    BOTH(0, v0) BOTH(1, v1) BOTH(2, v2) BOTH(3, v3)
#undef BOTH
    return _mm512_add_epi32(a, _mm512_srai_epi32(b, 4));
}
static ATTR_INLINE __m512i one_dot5(const uint8_t *g, const int8_t *q, __m512i start)
{
    __m512i a = start, b = _mm512_setzero_si512();
    const __m512i v0 = one_line(g), v1 = one_line(g + 64), v2 = one_line(g + 128),
                  v3 = one_line(g + 192), h = one_line(g + 256);
#define BOTH(j, v)                                                                         \
    a = one_dp(a, quad_merge(quad_moved(h, j, 4), 16, one_low(v)), q + 4 * (j));           \
    b = one_dp(b, quad_merge(quad_moved(h, 4 + (j), 4), 16, one_high(v)), q + 16 + 4 * (j));
    BOTH(0, v0) BOTH(1, v1) BOTH(2, v2) BOTH(3, v3)
#undef BOTH
    return _mm512_add_epi32(a, b);
}
static ATTR_INLINE __m512i one_dot8(const uint8_t *g, const int8_t *q, __m512i start)
{
    __m512i a = start, b = _mm512_setzero_si512();
    a = one_dp(a, one_line(g), q);
    b = one_dp(b, one_line(g + 64), q + 4);
    a = one_dp(a, one_line(g + 128), q + 8);
    b = one_dp(b, one_line(g + 192), q + 12);
    a = one_dp(a, one_line(g + 256), q + 16);
    b = one_dp(b, one_line(g + 320), q + 20);
    a = one_dp(a, one_line(g + 384), q + 24);
    b = one_dp(b, one_line(g + 448), q + 28);
    return _mm512_add_epi32(a, b);
}

/* The same of table[code]. */
static ATTR_INLINE __m512i one_dot_table(const uint8_t *g, const int8_t *q, __m512i start,
                                         __m512i table)
{
    __m512i a = start, b = _mm512_setzero_si512();
    const __m512i v0 = one_line(g), v1 = one_line(g + 64), v2 = one_line(g + 128),
                  v3 = one_line(g + 192);
#define BOTH(j, v)                                                              \
    a = one_dp(a, _mm512_shuffle_epi8(table, one_low(v)), q + 4 * (j));         \
    b = one_dp(b, _mm512_shuffle_epi8(table, one_high(v)), q + 16 + 4 * (j));
    BOTH(0, v0) BOTH(1, v1) BOTH(2, v2) BOTH(3, v3)
#undef BOTH
    return _mm512_add_epi32(a, b);
}

static ATTR_INLINE __m512 one_add(__m512 y, __m512i dot, __m512 d, float scale)
{
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(d, _mm512_set1_ps(scale)), y);
}

/* Chunks of two groups with their d.  START(act): minus the bias times the sum of q. */
#define ONE32(name, bits, DOT, START)                                                              \
    static void one_##name(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,         \
                           int64_t stride)                                                         \
    {                                                                                              \
        const struct kern_act32 *a = (const struct kern_act32 *)(const void *)x[0];                \
        __m512 y0 = _mm512_setzero_ps();                                                           \
        (void)stride;                                                                              \
        for (; n > 1; n -= 2, a += 2, w += KERN_CHUNK_BYTES(bits, KERN_SCALES_D, 2, 0)) {          \
            const uint8_t *scale = w + KERN_SCALES_AT(bits, 2);                                    \
            const __m512i dot0 = DOT(w, a[0].q, START(a));                                         \
            const __m512i dot1 = DOT(w + KERN_GROUP_BYTES(bits), a[1].q, START(a + 1));            \
            y0 = one_add(y0, dot0, halves(scale), a[0].scale);                                     \
            y0 = one_add(y0, dot1, halves(scale + 32), a[1].scale);                                \
        }                                                                                          \
        if (n)                                                                                     \
            y0 = one_add(y0, DOT(w, a->q, START(a)), halves(w + KERN_SCALES_AT(bits, 2)),          \
                         a->scale);                                                                \
        _mm512_storeu_ps(y, y0);                                                                   \
    }
#define ONE_START8(a)   words32(&(a)->start8)
#define ONE_START16(a)  _mm512_slli_epi32(ONE_START8(a), 1)
#define ONE_START128(a) words32(&(a)->start128)

ONE32(q4_0, 4, one_dot4, ONE_START8)
ONE32(q5_0, 5, one_dot5, ONE_START16)
ONE32(q8_0, 8, one_dot8, ONE_START128)

/* Rows of two groups a and b, paired: (a0, b0, a1, b1, ...) as bytes. */
static inline __m256i paired(__m128i a, __m128i b)
{
    return _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
}
static inline __m128i row16(const uint8_t *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}
static inline __m512i pair_u8(const uint8_t *s, int i)
{
    return _mm512_cvtepu8_epi16(paired(row16(s + 32 * i), row16(s + 32 * i + 16)));
}
static inline __m512i pair_s8(const uint8_t *s, int i)
{
    return _mm512_cvtepi8_epi16(paired(row16(s + 32 * i), row16(s + 32 * i + 16)));
}

/* Super-blocks: n of them, y0 the sums. */
#define ONE256(name, bits, scales, SETUP, BLOCK)                                                \
    static void one_##name(const uint8_t *w, int64_t n, const uint8_t *const *x, float *y,      \
                           int64_t stride)                                                     \
    {                                                                                           \
        const struct kern_act256 *a = (const struct kern_act256 *)(const void *)x[0];           \
        __m512 y0 = _mm512_setzero_ps();                           \
        SETUP                                                                                   \
        (void)stride;                                                                           \
        for (; n > 0; n--, a++, w += KERN_CHUNK_BYTES(bits, scales, 8, 0)) {                    \
            const uint8_t *s = w + KERN_SCALES_AT(bits, 8);                                     \
            __m512i dot = _mm512_setzero_si512();                                               \
            BLOCK(bits)                                                                         \
        }                                                                                       \
        _mm512_storeu_ps(y, y0);                                                                \
    }
#define ONE_EACH(F, ...)                                                            \
    F(0, __VA_ARGS__) F(1, __VA_ARGS__) F(2, __VA_ARGS__) F(3, __VA_ARGS__)         \
    F(4, __VA_ARGS__) F(5, __VA_ARGS__) F(6, __VA_ARGS__) F(7, __VA_ARGS__)
#define ONE_FINISH_MIN(dmin)                                                                    \
    y0 = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min),                                              \
                          _mm512_mul_ps(halves(dmin), _mm512_set1_ps(a->scale)), y0);

#define ONE_GROUP(h, bits)                                                                         \
    const __m512i dot##h =                                                                         \
        one_dot##bits(w + KERN_GROUP_BYTES(bits) * (h), a->q + 32 * (h), _mm512_setzero_si512());
#define ONE_SUB(h, widen) \
    dot = _mm512_add_epi32(dot, _mm512_mullo_epi32(dot##h, widen(row16(s + 16 * (h)))));
#define ONE_MIN(i) min = _mm512_dpwssd_epi32(min, pair_u8(s + 128, i), words32(a->sum32 + 2 * (i)));
#define ONE_SUB_MIN(bits)                                                                       \
    __m512i min = dot;                                                                          \
    ONE_EACH(ONE_GROUP, bits)                                                                   \
    ONE_EACH(ONE_SUB, _mm512_cvtepu8_epi32)                                                     \
    ONE_MIN(0) ONE_MIN(1) ONE_MIN(2) ONE_MIN(3)                                                 \
    y0 = one_add(y0, dot, halves(s + 256), a->scale);                                           \
    ONE_FINISH_MIN(s + 288)
ONE256(q4_k, 4, KERN_SCALES_SUB8_MIN, NO_SETUP, ONE_SUB_MIN)
ONE256(q5_k, 5, KERN_SCALES_SUB8_MIN, NO_SETUP, ONE_SUB_MIN)

#define ONE_GROUP_TABLE(h, bits)                                                                \
    const __m512i dot##h = one_dot_table(w + KERN_GROUP_BYTES(bits) * (h), a->q + 32 * (h),     \
                                         _mm512_set1_epi32(-128 * a->sum32[h]), table);
#define ONE_SUB_TABLE(bits)                                                                     \
    ONE_EACH(ONE_GROUP_TABLE, bits)                                                             \
    ONE_EACH(ONE_SUB, _mm512_cvtepi8_epi32)                                                     \
    y0 = one_add(y0, dot, halves(s + 128), a->scale);
ONE256(iq4_xs, 4, KERN_SCALES_SUB8, NL4_SETUP, ONE_SUB_TABLE)

/* Halves of a group, added to low and high: 6 bits have them as low and high nibbles, each with
 * a line of its upper bits, 2 and 3 bits as a line each. */
#define ONE_HALF(to, v, bits_line, part)                                                        \
    to = one_dp(to, quad_merge(quad_moved(bits_line, 0, 4), 48, part(v##0)), q);                \
    to = one_dp(to, quad_merge(quad_moved(bits_line, 2, 4), 48, part(v##1)), q + 4);            \
    to = one_dp(to, quad_merge(quad_moved(bits_line, 4, 4), 48, part(v##2)), q + 8);            \
    to = one_dp(to, quad_merge(quad_moved(bits_line, 6, 4), 48, part(v##3)), q + 12);
static ATTR_INLINE void one_dot6(const uint8_t *g, const int8_t *q, __m512i *low, __m512i *high)
{
    const __m512i v0 = one_line(g), v1 = one_line(g + 64), v2 = one_line(g + 128),
                  v3 = one_line(g + 192);
    const __m512i h0 = one_line(g + 256), h1 = one_line(g + 320);
    __m512i a = *low, b = *high;
    ONE_HALF(a, v, h0, one_low)
    q += 16;
    ONE_HALF(b, v, h1, one_high)
    *low = a;
    *high = b;
}
static ATTR_INLINE __m512i one_two(__m512i v, int j)
{
    return _mm512_and_si512(quad_moved(v, 2 * j, 0), quad_bytes(3));
}
static ATTR_INLINE void one_dot2(const uint8_t *g, const int8_t *q, __m512i *low, __m512i *high)
{
    const __m512i v0 = one_line(g), v1 = one_line(g + 64);
    __m512i a = *low, b = *high;
#define BOTH(j)                                       \
    a = one_dp(a, one_two(v0, j), q + 4 * (j));       \
    b = one_dp(b, one_two(v1, j), q + 16 + 4 * (j));
    BOTH(0) BOTH(1) BOTH(2) BOTH(3)
#undef BOTH
    *low = a;
    *high = b;
}
static ATTR_INLINE void one_dot3(const uint8_t *g, const int8_t *q, __m512i *low, __m512i *high)
{
    const __m512i v0 = one_line(g), v1 = one_line(g + 64), h = one_line(g + 128);
    __m512i a = *low, b = *high;
#define BOTH(j)                                                                                \
    a = one_dp(a, quad_merge(quad_moved(h, j, 2), 4, one_two(v0, j)), q + 4 * (j));            \
    b = one_dp(b, quad_merge(quad_moved(h, 4 + (j), 2), 4, one_two(v1, j)), q + 16 + 4 * (j));
    BOTH(0) BOTH(1) BOTH(2) BOTH(3)
#undef BOTH
    *low = a;
    *high = b;
}

/* -32 and -4 times the sum of q of a half. */
static ATTR_INLINE __m512i one_start32(const int16_t *pairs)
{
    return _mm512_madd_epi16(words32(pairs), _mm512_set1_epi16(1));
}
static ATTR_INLINE __m512i one_start4(const int16_t *pairs)
{
    return _mm512_srai_epi32(one_start32(pairs), 3);
}
static ATTR_INLINE __m512i one_start0(const int16_t *pairs)
{
    (void)pairs;
    return _mm512_setzero_si512();
}
#define ONE_HALVES(h, bits, start)                                                              \
    __m512i low##h = start(a->pairs32[2 * (h)]), high##h = start(a->pairs32[2 * (h) + 1]);      \
    one_dot##bits(w + KERN_GROUP_BYTES(bits) * (h), a->q + 32 * (h), &low##h, &high##h);
#define ONE_SUB16(h, widen)                                                                     \
    dot = _mm512_add_epi32(dot, _mm512_mullo_epi32(low##h, widen(row16(s + 32 * (h)))));        \
    dot = _mm512_add_epi32(dot, _mm512_mullo_epi32(high##h, widen(row16(s + 32 * (h) + 16))));
#define ONE_SUBS(bits, start)                                                                   \
    ONE_EACH(ONE_HALVES, bits, start)                                                           \
    ONE_EACH(ONE_SUB16, _mm512_cvtepi8_epi32)                                                   \
    y0 = one_add(y0, dot, halves(s + 256), a->scale);
#define ONE_Q6_K(bits) ONE_SUBS(bits, one_start32)
#if AHEAD
/* Dots of 16 with 2 or 3 bits are words: both halves of a group times their scales at once. */
#define ONE_WORDS(h, by)                                                                           \
    dot = _mm512_dpwssd_epi32(                                                                     \
        dot, _mm512_mask_blend_epi16(0xAAAAAAAAu, low##h, _mm512_slli_epi32(high##h, 16)), by);
#define ONE_PAIRS(h, _) ONE_WORDS(h, pair_s8(s, h))
#define ONE_Q3_K(bits)                                                                          \
    ONE_EACH(ONE_HALVES, bits, one_start4)                                                      \
    ONE_EACH(ONE_PAIRS, _)                                                                      \
    y0 = one_add(y0, dot, halves(s + 256), a->scale);
#else
#define ONE_Q3_K(bits) ONE_SUBS(bits, one_start4)
#endif
ONE256(q6_k, 6, KERN_SCALES_SUB16, NO_SETUP, ONE_Q6_K)
ONE256(q3_k, 3, KERN_SCALES_SUB16, NO_SETUP, ONE_Q3_K)

#define ONE_MIN16(i, sums) \
    min = _mm512_dpwssd_epi32(min, _mm512_srli_epi16(pair_u8(s, i), 4), words32(a->sums + 2 * (i)));
#if AHEAD
#define ONE_BOTH16(h, _)                                                                        \
    const __m512i pair##h = pair_u8(s, h);                                                      \
    ONE_WORDS(h, _mm512_and_si512(pair##h, _mm512_set1_epi16(15)))                              \
    min = _mm512_dpwssd_epi32(min, _mm512_srli_epi16(pair##h, 4), words32(a->sum16 + 2 * (h)));
#define ONE_Q2_K_MIN
#else
#define ONE_BOTH16(h, _) ONE_SUB16(h, LOW_NIBBLE)
#define ONE_Q2_K_MIN ONE_EACH(ONE_MIN16, sum16)
#endif
#define ONE_Q2_K(bits)                                                                          \
    __m512i min = dot;                                                                          \
    ONE_EACH(ONE_HALVES, bits, one_start0)                                                      \
    ONE_EACH(ONE_BOTH16, _)                                                                     \
    ONE_Q2_K_MIN                                                                                \
    y0 = one_add(y0, dot, halves(s + 256), a->scale);                                           \
    ONE_FINISH_MIN(s + 288)
ONE256(q2_k, 2, KERN_SCALES_SUB16_NIB, NO_SETUP, ONE_Q2_K)
