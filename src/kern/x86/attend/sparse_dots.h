/*
 * sparse_dots - whole products of a tile of queries and DOTS keys, for the widths of registers.  A
 * part of sparse_body.h.
 *
 * Codes of a query stand in units: [width/unit][TILE_R][unit].  The barrier after each product
 * keeps gcc from moving the sums of a tile to memory, which halves the speed.  Keys come from a
 * farther cache: what the next steps need is requested.
 */

#if defined(FEW_TILES)

#include "kern/x86/matmul/tile.h"

/* The order of q8r's codes is that of a tile of AMX: [16 dwords of k][16 positions][4]. */
#ifdef TILE_EMULATED
#define SPARSE_SET(name) name##_emulated
#else
#define SPARSE_SET(name) name##_amx
#endif
enum { TILE_R = 12, UNIT = 64, DOTS = 64 };
typedef int8_t sparse_code;

static void dots_begin(struct tiles *t, int64_t width)
{
    struct tile_config c = {0};
    const int bytes = (int)(width < UNIT ? width : UNIT);
    for (int i = 0; i < 4; i++)
        tile_shape(&c, i, TILE_R, 64);
    tile_shape(&c, 4, TILE_R, bytes);
    for (int i = 5; i < 8; i++)
        tile_shape(&c, i, bytes / 4, 64);
    tile_configure(t, &c);
}

static void dots_end(struct tiles *t) { tile_done(t); }

/* s[r][0..DOTS-1] = dot * (by[r] scale); key: DOTS positions of q8r's order, scale: their f16;
 * start: -128 times a query's sum. */
static void dots(struct tiles *t, const sparse_code *x, const uint8_t *key, int64_t width,
                 const uint16_t *scale, const int32_t *start, const float *by, float *s)
{
    (void)t;
    int32_t sum[DOTS / 16][TILE_R][16];
    const int64_t unit = width < UNIT ? width : UNIT, next = width * 16;
    TILE_ZERO(t, 0);
    TILE_ZERO(t, 1);
    TILE_ZERO(t, 2);
    TILE_ZERO(t, 3);
    for (int64_t k = 0; k < width; k += unit, x += TILE_R * unit, key += unit * 16) {
        TILE_LOAD(t, 4, x, unit);
        TILE_LOAD(t, 5, key, 64);
        TILE_DOT_SU8(t, 0, 4, 5);
        TILE_LOAD(t, 6, key + next, 64);
        TILE_DOT_SU8(t, 1, 4, 6);
        TILE_LOAD(t, 7, key + 2 * next, 64);
        TILE_DOT_SU8(t, 2, 4, 7);
        TILE_LOAD(t, 5, key + 3 * next, 64);
        TILE_DOT_SU8(t, 3, 4, 5);
    }
    TILE_STORE(t, 0, sum[0], 64);
    TILE_STORE(t, 1, sum[1], 64);
    TILE_STORE(t, 2, sum[2], 64);
    TILE_STORE(t, 3, sum[3], 64);
    for (int b = 0; b < DOTS / 16; b++) {
        const struct v16 n = v_from_f16(scale + b * 16);
        for (int r = 0; r < TILE_R; r++) {
            const __m512i whole =
                _mm512_add_epi32(_mm512_loadu_si512(sum[b][r]), _mm512_set1_epi32(start[r]));
            v_store(s + r * KERN_PAGE + b * 16,
                    v_mul((struct v16){_mm512_cvtepi32_ps(whole)}, v_mul(v_set(by[r]), n)));
        }
    }
}

#else

struct tiles {
    char none;
};
static void dots_begin(struct tiles *t, int64_t width)
{
    (void)t;
    (void)width;
}
static void dots_end(struct tiles *t) { (void)t; }

#if defined(__AVX512VNNI__)

#define SPARSE_SET(name) name##_avx512vnni
enum { TILE_R = 12, UNIT = 4, DOTS = 32, DOTS_AHEAD = 512 };
typedef int8_t sparse_code;

LANES_INLINE __m512i sparse_dot(__m512i sum, __m512i key, __m512i q)
{
    sum = _mm512_dpbusd_epi32(sum, key, q);
    __asm__("" : "+v"(sum));
    return sum;
}

/* s[r][0..DOTS-1] = dot * (by[r] scale); key: DOTS positions of q8r's order, scale: their f16;
 * start: -128 times a query's sum. */
static void dots(struct tiles *t, const sparse_code *x, const uint8_t *key, int64_t width,
                 const uint16_t *scale, const int32_t *start, const float *by, float *s)
{
    (void)t;
    __m512i sum[TILE_R][2];
    const uint8_t *more = key + width * 16;
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++)
        sum[r][0] = sum[r][1] = _mm512_set1_epi32(start[r]);
    for (int64_t k = 0; k < width; k += UNIT, x += TILE_R * UNIT) {
        const __m512i lo = _mm512_loadu_si512(key + k * 16), hi = _mm512_loadu_si512(more + k * 16);
        v_prefetch(key + k * 16 + DOTS_AHEAD);
        v_prefetch(more + k * 16 + DOTS_AHEAD);
        LANES_UNROLL
        for (int r = 0; r < TILE_R; r++) {
            int32_t four;
            memcpy(&four, x + r * UNIT, sizeof four);
            const __m512i q = _mm512_set1_epi32(four);
            sum[r][0] = sparse_dot(sum[r][0], lo, q);
            sum[r][1] = sparse_dot(sum[r][1], hi, q);
        }
    }
    const struct v16 lo = v_from_f16(scale), hi = v_from_f16(scale + 16);
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++) {
        v_store(s + r * KERN_PAGE,
                v_mul((struct v16){_mm512_cvtepi32_ps(sum[r][0])}, v_mul(v_set(by[r]), lo)));
        v_store(s + r * KERN_PAGE + 16,
                v_mul((struct v16){_mm512_cvtepi32_ps(sum[r][1])}, v_mul(v_set(by[r]), hi)));
    }
}

#else

enum { TILE_R = 6, DOTS = 16, DOTS_AHEAD = 512 };

LANES_INLINE void sparse_scale(__m256i sum[TILE_R][2], const uint16_t *scale, const float *by,
                            float *s)
{
    const struct v16 n = v_from_f16(scale);
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++)
        v_store(s + r * KERN_PAGE,
                v_mul((struct v16){_mm256_cvtepi32_ps(sum[r][0]), _mm256_cvtepi32_ps(sum[r][1])},
                      v_mul(v_set(by[r]), n)));
}

#if defined(__AVXVNNI__)

#define SPARSE_SET(name) name##_avxvnni
enum { UNIT = 4 };
typedef int8_t sparse_code;

LANES_INLINE __m256i sparse_dot(__m256i sum, __m256i key, __m256i q)
{
    sum = _mm256_dpbusd_avx_epi32(sum, key, q);
    __asm__("" : "+x"(sum));
    return sum;
}

static void dots(struct tiles *t, const sparse_code *x, const uint8_t *key, int64_t width,
                 const uint16_t *scale, const int32_t *start, const float *by, float *s)
{
    (void)t;
    __m256i sum[TILE_R][2];
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++)
        sum[r][0] = sum[r][1] = _mm256_set1_epi32(start[r]);
    for (int64_t k = 0; k < width; k += UNIT, x += TILE_R * UNIT) {
        const __m256i *at = (const __m256i *)(const void *)(key + k * 16);
        const __m256i lo = _mm256_loadu_si256(at), hi = _mm256_loadu_si256(at + 1);
        v_prefetch(key + k * 16 + DOTS_AHEAD);
        LANES_UNROLL
        for (int r = 0; r < TILE_R; r++) {
            int32_t four;
            memcpy(&four, x + r * UNIT, sizeof four);
            const __m256i q = _mm256_set1_epi32(four);
            sum[r][0] = sparse_dot(sum[r][0], lo, q);
            sum[r][1] = sparse_dot(sum[r][1], hi, q);
        }
    }
    sparse_scale(sum, scale, by, s);
}

#else
/* AVX2: keys are expanded to words, [128/8][width/2][8][2], of which two products are added at
 * once */

#define SPARSE_SET(name) name##_avx2
#define SPARSE_WORDS
enum { UNIT = 2 };
typedef int16_t sparse_code;

/* One block of instructions: between two gcc moves the sums, of which there are as many as
 * registers allow. */
LANES_INLINE __m256i sparse_dot(__m256i sum, __m256i key, __m256i q)
{
    __m256i two;
    __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(two) : "x"(q), "x"(key));
    return sum;
}

static void dots(struct tiles *t, const sparse_code *x, const uint8_t *key, int64_t width,
                 const uint16_t *scale, const int32_t *start, const float *by, float *s)
{
    (void)t;
    (void)start;
    __m256i sum[TILE_R][2];
    LANES_UNROLL
    for (int r = 0; r < TILE_R; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (int64_t k = 0; k < width; k += 2 * UNIT) {
        v_prefetch(key + k * 16 + DOTS_AHEAD);
        v_prefetch(key + k * 16 + width * 16 + DOTS_AHEAD);
        LANES_UNROLL
        for (int step = 0; step < 2; step++, x += TILE_R * UNIT) {
            const uint8_t *at = key + (k + step * UNIT) * 16;
            const __m256i lo = _mm256_loadu_si256((const __m256i *)(const void *)at);
            const __m256i hi = _mm256_loadu_si256((const __m256i *)(const void *)(at + width * 16));
            LANES_UNROLL
            for (int r = 0; r < TILE_R; r++) {
                int32_t two;
                memcpy(&two, x + r * UNIT, sizeof two);
                const __m256i q = _mm256_set1_epi32(two);
                sum[r][0] = sparse_dot(sum[r][0], lo, q);
                sum[r][1] = sparse_dot(sum[r][1], hi, q);
            }
        }
    }
    sparse_scale(sum, scale, by, s);
}

/* A page of q8r's keys to words. */
static void to_words(const uint8_t *key, int64_t width, int16_t *to)
{
    const __m256i sign = _mm256_set1_epi8(-128);
    for (int64_t b = 0; b < KERN_PAGE / 16; b++)
        for (int64_t k = 0; k < width; k += 4)
            for (int64_t half = 0; half < 2; half++) { /* eight positions, four dimensions each */
                const uint8_t *from = key + (b * width + k) * 16 + half * 32;
                int16_t *at = to + ((b * 2 + half) * width + k) * 8;
                __m256i y =
                    _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(const void *)from), sign);
                /* dimensions 0, 1 of all eight, then 2, 3 */
                y = _mm256_shuffle_epi8(y, _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7,
                                                            10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12,
                                                            13, 2, 3, 6, 7, 10, 11, 14, 15));
                y = _mm256_permutevar8x32_epi32(y, _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7));
                _mm256_storeu_si256((__m256i *)(void *)at,
                                    _mm256_cvtepi8_epi16(_mm256_castsi256_si128(y)));
                _mm256_storeu_si256((__m256i *)(void *)(at + 16),
                                    _mm256_cvtepi8_epi16(_mm256_extracti128_si256(y, 1)));
            }
}

#endif
#endif
#endif
