/*
 * ternary256 - few rows times the ternary codes (IQ1_S, IQ1_M, TQ1_0) on 256-bit vectors, straight
 * from the rows as
 * they are stored.  A product takes unsigned bytes: T + 1, times the sub-scale.  What that adds,
 * and what shifts the
 * points of IQ1 by 1 or -1, are sub-scales times sums of activations, with which a sum starts:
 *   IQ1    sum of sub (8 T + delta) q = 8 sum of sub (T + 1) q + sum of sub (delta - 8) (q_1 + ...)
 *   TQ1_0  sum of T q = sum of (T + 1) q - sum of q
 * The two rows of weights that are read at a time are summed alone; sums of 16 become lanes when a
 * super-block ends.
 * More rows of activations run from spread blocks (stored.h).
 *
 * Included by a file for each form of dots, which defines KERNEL(x), the kernel's name, SPREAD, the
 * kernel for more rows, and
 *   POINT_TIMES    8 or 1: what sub (T + 1) is multiplied by before it is summed; if 1, `times` is
 *                  what is left;
 *   ternary_add()  adds weights times activations of group h of 32 to a sum a, or to its part.
 */
#include "kern/kernels.h"
#include "kern/x86/matmul/drive.h"
#include "kern/x86/matmul/points_read256.h"

enum { TERNARY_TILE = 4, TERNARY_FEW = 8, BLOCKS = KERN_SLICE / 256 };
#ifdef __AVX512VL__
enum { TERNARY_EVEX = 1 }; /* 32 registers */
#else
enum { TERNARY_EVEX = 0 };
#endif

static ATTR_INLINE __m256i twice128(const void *at)
{
    return _mm256_broadcastsi128_si256(load128(at));
}
static ATTR_INLINE void store256(void *at, __m256i v) { _mm256_store_si256((__m256i *)at, v); }

/* What is read of a super-block of 16 rows of IQ1.  Numbers of points come in the order in which
 * bytes are unpacked: points 0 to 7, 16 to 23, 8 to 15, 24 to 31. */
struct points {
    ATTR_ALIGNED(32) uint16_t number[KERN_PANEL][32];
    ATTR_ALIGNED(32) uint8_t table[KERN_PANEL * 32]; /* of sub-scale g at 2 g: of T = 0, of T = 1 */
    ATTR_ALIGNED(32) int16_t shift[KERN_PANEL * 32]; /* sub (delta - 8), of each point or group */
    uint16_t d[KERN_PANEL];
};

/* Words of sub-scales as bytes of a table, which points are looked up in: it gives 0 for T = -1. */
static ATTR_INLINE __m256i table_of(__m256i sub)
{
    return _mm256_mullo_epi16(sub, _mm256_set1_epi16(0x201 * POINT_TIMES));
}
/* sub (delta - 8); delta is -1 where the top bit is set, else 1. */
static ATTR_INLINE __m256i shift_of(__m256i sub, __m256i top)
{
    const __m256i signed_sub = _mm256_sign_epi16(sub, _mm256_or_si256(top, _mm256_set1_epi16(1)));
    return _mm256_sub_epi16(signed_sub, _mm256_slli_epi16(sub, 3));
}
/* Sub-scales 2 s + 1, s in bits 1 to 3. */
static ATTR_INLINE __m256i subs_of(__m256i v)
{
    return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi16(14)), _mm256_set1_epi16(1));
}
/* high: of each point bits 8 to 10. */
static ATTR_INLINE void put_unpacked(uint16_t *number, __m256i low, __m256i high)
{
    store256(number, _mm256_unpacklo_epi8(low, high));
    store256(number + 16, _mm256_unpackhi_epi8(low, high));
}

static void read_iq1_s(const uint8_t *row, size_t step, struct points *p)
{
    const __m256i twice = _mm256_setr_epi8(0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9, 8,
                                           9, 10, 11, 10, 11, 12, 13, 12, 13, 14, 15, 14, 15);
    /* 10 and 4 bits */
    const __m256i up = _mm256_set1_epi32(1 << 10 | 1 << 20), seven = _mm256_set1_epi8(7);
    for (int r = 0; r < KERN_PANEL; r++, row += step) {
        const uint8_t *const h = row + offsetof(struct quant_iq1_s, h);
        const __m256i two =
            _mm256_srli_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(twice128(h), twice), up), 10);
        put_unpacked(p->number[r], load256(row + offsetof(struct quant_iq1_s, idx)),
                     _mm256_and_si256(_mm256_or_si256(two, _mm256_slli_epi16(two, 5)), seven));
        memcpy(&p->d[r], row, sizeof p->d[r]);
        if (r % 2 == 0) {
            const __m256i both = _mm256_set_m128i(load128(h + step), load128(h)),
                          sub = subs_of(_mm256_srli_epi16(both, 11));
            store256(p->table + 16 * r, table_of(sub));
            store256(p->shift + 8 * r, shift_of(sub, both));
        }
    }
}

static void read_iq1_m(const uint8_t *row, size_t step, struct points *p)
{
    const __m256i four = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3,
                                          4, 5, 4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7);
    const __m256i up = _mm256_set1_epi64x(1 << 9 | 1 << 22 | 1LL << 35 | 1LL << 48),
                  seven = _mm256_set1_epi8(7);
    for (int r = 0; r < KERN_PANEL; r++, row += step) {
        uint16_t sc[4];
        memcpy(sc, row + offsetof(struct quant_iq1_m, sc), sizeof sc);
        p->d[r] = quant_iq1_m_scale(sc);
        const __m256i idx = load256(row + offsetof(struct quant_iq1_m, idx));
        const __m256i pairs = _mm256_cvtepu8_epi16(load128(row + offsetof(struct quant_iq1_m, qh)));
        const __m256i nibbles = _mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)),
                      top = _mm256_slli_epi16(nibbles, 4);
        const __m256i words = _mm256_broadcastq_epi64(_mm_loadl_epi64(
            (const __m128i *)(const void *)(row + offsetof(struct quant_iq1_m, sc))));
        const __m256i sub =
            subs_of(_mm256_srli_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(words, four), up), 8));
        put_unpacked(p->number[r], idx, _mm256_and_si256(nibbles, seven));
        store256(p->table + 32 * r, table_of(sub));
        store256(p->shift + 32 * r,
                 shift_of(_mm256_unpacklo_epi16(sub, sub), _mm256_unpacklo_epi8(idx, top)));
        store256(p->shift + 32 * r + 16,
                 shift_of(_mm256_unpackhi_epi16(sub, sub), _mm256_unpackhi_epi8(idx, top)));
    }
}

/* Sums of 8 activations in the order of IQ1_M's numbers. */
struct sums { __m256i of[2]; };
static ATTR_INLINE __m256i sums8(const int8_t *q, int h)
{
    return _mm256_sad_epu8(_mm256_xor_si256(load256(q + 32 * h), _mm256_set1_epi8(-128)),
                           _mm256_setzero_si256());
}
static struct sums sums_of(const int8_t *q)
{
    struct sums s;
    for (int i = 0; i < 2; i++) {
        const __m256i low = _mm256_packus_epi32(sums8(q, 2 * i), sums8(q, 2 * i + 1));
        const __m256i high = _mm256_packus_epi32(sums8(q, 2 * i + 4), sums8(q, 2 * i + 5));
        const __m256i pairs = _mm256_permutevar8x32_epi32(
            _mm256_packus_epi32(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        s.of[i] = _mm256_sub_epi16(pairs, _mm256_set1_epi16(8 * 128));
    }
    return s;
}

/* Sums of the eight numbers of each of eight rows. */
static ATTR_INLINE __m256i totals(const __m256i *row)
{
    const __m256i a =
        _mm256_hadd_epi32(_mm256_hadd_epi32(row[0], row[1]), _mm256_hadd_epi32(row[2], row[3]));
    const __m256i b =
        _mm256_hadd_epi32(_mm256_hadd_epi32(row[4], row[5]), _mm256_hadd_epi32(row[6], row[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                            _mm256_permute2x128_si256(a, b, 0x31));
}
/* A super-block of 16 rows is added to their sums. */
static void finish(const __m256i *row, const uint16_t *d, float factor, float scale, float *y,
                   bool first)
{
    for (int i = 0; i < 2; i++, row += 8, d += 8, y += 8) {
        const __m256 d_ = _mm256_mul_ps(_mm256_cvtph_ps(load128(d)), _mm256_set1_ps(factor));
        const __m256 v = first ? _mm256_setzero_ps() : _mm256_loadu_ps(y);
        _mm256_storeu_ps(y, _mm256_fmadd_ps(_mm256_cvtepi32_ps(totals(row)),
                                            _mm256_mul_ps(d_, _mm256_set1_ps(scale)), v));
    }
}

/* The points of four numbers.  Two are loaded at once, or loads would be what takes longest. */
static ATTR_INLINE __m256i points_of(const uint16_t *number)
{
    uint32_t n[2];
    memcpy(n, number, sizeof n);
    return four_points(quant_book_iq1, n[0] & 0xFFFF, n[0] >> 16, n[1] & 0xFFFF, n[1] >> 16);
}
/* Where the numbers of group h are. */
static ATTR_INLINE int four_at(int h) { return 4 * (h & 1) + 16 * (h >> 1 & 1) + 8 * (h >> 2); }

/* ---- two rows of weights times some rows of activations ---- */

/* What is read of a super-block: points, and what sums begin with. */
struct ternary {
    struct points p;
    struct sums sums[TERNARY_TILE];
    __m256i start[TERNARY_TILE];
};
/* By n bytes: a literal, which is what compilers take. */
static ATTR_INLINE __m256i shifted(__m256i table, int n)
{
    switch (n) {
    case 2: return _mm256_bsrli_epi128(table, 2);
    case 4: return _mm256_bsrli_epi128(table, 4);
    case 6: return _mm256_bsrli_epi128(table, 6);
    case 8: return _mm256_bsrli_epi128(table, 8);
    case 10: return _mm256_bsrli_epi128(table, 10);
    case 12: return _mm256_bsrli_epi128(table, 12);
    case 14: return _mm256_bsrli_epi128(table, 14);
    default: return table;
    }
}
/* Of half the sub-scales: the second half of a group has the next. */
static ATTR_INLINE __m256i table_of_two(const uint8_t *at)
{
    const __m256i table = twice128(at);
    return _mm256_blend_epi32(table, _mm256_bsrli_epi128(table, 2), 0xF0);
}
/* A trit is the carry of its byte times 3: how often it passes 255.  Bytes less 128, which compare
 * as signed ones and still are themselves less 128 when they are multiplied by 3. */
static ATTR_INLINE __m256i times3(__m256i y) { return _mm256_add_epi8(_mm256_add_epi8(y, y), y); }
static ATTR_INLINE __m256i trits(__m256i y)
{
    const __m256i one = _mm256_cmpgt_epi8(y, _mm256_set1_epi8(85 - 128)),
                  two = _mm256_cmpgt_epi8(y, _mm256_set1_epi8(170 - 128));
    return _mm256_sub_epi8(_mm256_sub_epi8(_mm256_setzero_si256(), one), two);
}
/* The vectors of 32 bytes whose trits a super-block has, in the order of k. */
struct trits { __m256i y[8]; };
static ATTR_INLINE struct trits trits_of(const uint8_t *row)
{
    const __m256i flip = _mm256_set1_epi8(-128);
    struct trits t;
    t.y[0] = _mm256_xor_si256(load256(row), flip);
    for (int i = 1; i < 5; i++)
        t.y[i] = times3(t.y[i - 1]);
    const __m256i q = _mm256_xor_si256(twice128(row + 32), flip);
    t.y[5] = _mm256_blend_epi32(q, times3(q), 0xF0);
    t.y[6] = times3(times3(t.y[5]));
    uint32_t last;
    memcpy(&last, row + offsetof(struct quant_tq1_0, qh), sizeof last);
    const __m256i h = _mm256_xor_si256(_mm256_set1_epi32((int)last), flip);
    const __m256i rest = _mm256_blend_epi32(t.y[6], _mm256_blend_epi32(h, times3(h), 0xA0), 0xF0);
    t.y[7] = _mm256_blend_epi32(times3(times3(rest)), rest, 0x30);
    return t;
}

/* Sums of row r of the panel and row c of activations begin. */
static ATTR_INLINE __m256i start_of(uint32_t id, const struct ternary *k, int r, int c,
                                    const struct kern_act256 *x)
{
    switch (id) {
    case KERN_CODE_IQ1_S:
        return _mm256_zextsi128_si256(
            _mm_madd_epi16(load128(k->p.shift + 8 * r), load128(x->sum32)));
    case KERN_CODE_IQ1_M:
        return _mm256_add_epi32(
            _mm256_madd_epi16(load256(k->p.shift + 32 * r), k->sums[c].of[0]),
            _mm256_madd_epi16(load256(k->p.shift + 32 * r + 16), k->sums[c].of[1]));
    default: return k->start[c];
    }
}
/* Table of row r, for the first or second half of a super-block. */
static ATTR_INLINE __m256i table_at(uint32_t id, const struct ternary *k, int r, int half)
{
    return id == KERN_CODE_IQ1_S ? twice128(k->p.table + 16 * r)
                                 : table_of_two(k->p.table + 32 * r + 16 * half);
}
/* Weights of group h of row r, the table of which has the group's first sub-scale at byte n. */
static ATTR_INLINE __m256i weights_of(const struct ternary *k, int r, int h, __m256i table, int n)
{
    return _mm256_shuffle_epi8(shifted(table, n), points_of(k->p.number[r] + four_at(h)));
}
/* Rows r and r + 1 of a block whose rows are `step` bytes apart. */
static ATTR_INLINE void two_rows(const int rows, uint32_t id, const struct ternary *k,
                                 const uint8_t *block, size_t step, int r,
                                 const struct kern_act256 *const *x, __m256i times,
                                 __m256i (*sum)[KERN_PANEL])
{
    const bool is_trits = id == KERN_CODE_TQ1_0;
    struct trits t0, t1;
    __m256i part[TERNARY_TILE][2], a[TERNARY_TILE][2], table0 = times, table1 = times;
    const struct kern_act256 *act[TERNARY_TILE];
    if (is_trits) {
        t0 = trits_of(block + (size_t)r * step);
        t1 = trits_of(block + (size_t)(r + 1) * step);
    }
#pragma GCC unroll 4
    for (int c = 0; c < rows; c++) {
        act[c] = x[c];
        /* gcc would load activations before the walk over rows, and keep them on the stack: 16
         * registers do not hold them, and 32 not those of IQ1_M's three rows. */
        if (!TERNARY_EVEX || (id == KERN_CODE_IQ1_M && rows > 2))
            __asm__ volatile("" : "+r"(act[c]));
        a[c][0] = part[c][0] = start_of(id, k, r, c, act[c]);
        a[c][1] = part[c][1] = start_of(id, k, r + 1, c, act[c]);
    }
#pragma GCC unroll 8
    for (int h = 0; h < 8; h++) {
        const int n = id == KERN_CODE_IQ1_S ? 2 * h : 4 * (h % 4);
        if (!is_trits && n == 0) {
            table0 = table_at(id, k, r, h / 4);
            table1 = table_at(id, k, r + 1, h / 4);
        }
        const __m256i u0 = is_trits ? trits(t0.y[h]) : weights_of(k, r, h, table0, n),
                      u1 = is_trits ? trits(t1.y[h]) : weights_of(k, r + 1, h, table1, n);
#pragma GCC unroll 4
        for (int c = 0; c < rows; c++) {
            const __m256i q = load256(act[c]->q + 32 * h);
            ternary_add(h, u0, q, times, &part[c][0], &a[c][0]);
            ternary_add(h, u1, q, times, &part[c][1], &a[c][1]);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < rows; c++) {
        sum[c][r] = a[c][0];
        sum[c][r + 1] = a[c][1];
    }
}
/* A super-block of 16 rows. */
static ATTR_INLINE void sixteen_rows(const int rows, uint32_t id, const uint8_t *block, size_t step,
                                     const struct kern_act256 *const *x, __m256i times,
                                     struct ternary *k, __m256i (*sum)[KERN_PANEL])
{
    if (id == KERN_CODE_IQ1_S)
        read_iq1_s(block, step, &k->p);
    if (id == KERN_CODE_IQ1_M)
        read_iq1_m(block, step, &k->p);
#pragma GCC unroll 4
    for (int c = 0; c < rows; c++) {
        if (id == KERN_CODE_IQ1_M)
            k->sums[c] = sums_of(x[c]->q);
        if (id == KERN_CODE_TQ1_0)
            k->start[c] =
                _mm256_zextsi128_si256(_mm_cvtsi32_si128(x[c]->start128 / 128));
    }
    for (int r = 0; r < KERN_PANEL && id == KERN_CODE_TQ1_0; r++)
        memcpy(&k->p.d[r], block + (size_t)r * step + offsetof(struct quant_tq1_0, d),
               sizeof k->p.d[r]);
    for (int r = 0; r < KERN_PANEL; r += 2)
        two_rows(rows, id, k, block, step, r, x, times, sum);
}
/* times: what is left of POINT_TIMES. */
static ATTR_INLINE void tile(const int rows, uint32_t id, size_t size, int times,
                             const uint8_t *at, int64_t n, const uint8_t *const *x, float *y,
                             int64_t stride)
{
    const size_t step = (size_t)n * size;
    const float factor = kern_code_find(id)->factor;
    __m256i sum[TERNARY_TILE][KERN_PANEL];
    ATTR_ALIGNED(32) float slice[TERNARY_TILE][KERN_PANEL];
    for (int64_t b = 0; b < n; b++) {
        const uint8_t *const block = at + (size_t)b * size;
        const struct kern_act256 *act[TERNARY_TILE];
        struct ternary k;
#pragma GCC unroll 4
        for (int c = 0; c < rows; c++)
            act[c] = (const struct kern_act256 *)(const void *)x[c] + b;
        /* the part of the next panel that will be wanted when this panel is done */
        for (size_t i = 0; i < KERN_PANEL * size; i += 64)
            _mm_prefetch((const char *)at + KERN_PANEL * (step + (size_t)b * size) + i,
                         _MM_HINT_T1);
        sixteen_rows(rows, id, block, step, act, _mm256_set1_epi16((short)times), &k, sum);
#pragma GCC unroll 4
        for (int c = 0; c < rows; c++)
            finish(sum[c], k.p.d, factor, act[c]->scale, slice[c], b % BLOCKS == 0);
        for (int c = 0; c < rows && (b % BLOCKS == BLOCKS - 1 || b == n - 1); c++)
            drive_add(y + c * stride, slice[c], KERN_PANEL, b < BLOCKS);
    }
}
#define TILE(name, id, rows, times)                                                                \
    static void name##_##rows(const uint8_t *at, int64_t n, const uint8_t *const *x, float *y,     \
                              int64_t stride)                                                      \
    {                                                                                              \
        tile(rows, KERN_CODE_##id, sizeof(struct quant_##name), times, at, n, x, y, stride);       \
    }
#define TERNARY(name, id, times)                                                                   \
    TILE(name, id, 1, times)                                                                       \
    TILE(name, id, 2, times)                                                                       \
    TILE(name, id, 3, times)                                                                       \
    TILE(name, id, 4, times)                                                                       \
    void KERNEL(name)(const struct kern_matmul *m, int64_t p0, int64_t p1)                         \
    {                                                                                              \
        static const struct drive few = {                                                          \
            {{name##_4, 4}, {name##_3, 3}, {name##_2, 2}, {name##_1, 1}}, 256, 0, 0};              \
        if (m->n > TERNARY_FEW)                                                                    \
            SPREAD(m, p0, p1);                                                                     \
        for (int64_t p = p0; p < p1 && m->n <= TERNARY_FEW; p++)                                   \
            drive_slice(m, &few, kern_code_stretch(m->w, p, 0), p, 0, m->w->in / 256, 0, m->n);    \
    }
TERNARY(iq1_s, IQ1_S, 8)
TERNARY(iq1_m, IQ1_M, 8)
TERNARY(tq1_0, TQ1_0, 1)
