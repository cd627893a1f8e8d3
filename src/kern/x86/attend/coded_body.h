/*
 * coded_body - attention over codes, compiled once for each way to multiply bytes (coded_sums.h).
 *
 * Pairs of row and head go in groups, part by part of 256 positions: the scores of all of them,
 * page by page, then their weights, then values, page by page.  A page of codes of four bits is
 * expanded to bytes once for a group, one that is no integers to f32.  Tiles of up to MAX_R pairs
 * share every load.  All that a tile does is per pair and in the steps of attend_coded.h, so the
 * bits depend neither on groups nor on tiles.
 */
#include "kern/attend_coded.h"
#include "kern/attend_part.h"
#include "kern/math.h"
#include "kern/select.h"
#include "kern/x86/lanes_exp.h"
#include <math.h>
#include <string.h>

#include "kern/x86/attend/coded_sums.h"
#include "kern/x86/attend/coded_read.h"

enum {
    PAGE_BLOCKS = KERN_PAGE / KERN_ATTEND_BLOCK,
    PAGE_SIXTEENS = KERN_PAGE / 16,
    GROUPS_MAX = KERN_KV_WIDE / KERN_KV_GROUP
};

struct view {
    int64_t from, to;
};

/* Pairs [first, first + n) of a task, pair = row * n_heads + head. */
struct group {
    const struct kern_attend *a;
    int64_t first, n, kw, vw; /* widths in whole vectors */
    float *turned, *made;     /* f32 [n][kw]: queries; of keys from values, for a page */
    coded_code *x;            /* [n][kw]: as bytes */
    float *by;                /* f32 [n][GROUPS_MAX]: a scale, of +rot each part's */
    int32_t *start;           /* [n][GROUPS_MAX]: -128 times the sums of x */
    float *acc, *split, *all; /* f32 [n][vw]: of a part, of a split, of all splits */
    float *score;             /* f32 [n][ATTEND_PART], then weights */
    float *max, *sum, *split_max, *split_sum, *all_max, *all_sum;
    float *page;              /* of keys or values, as f32 or bytes */
};

static void query_init(struct group *g, int64_t i)
{
    const struct kern_attend *a = g->a;
    const int64_t pair = g->first + i;
    float *q = g->turned + i * g->kw;
    memset(q, 0, (size_t)g->kw * sizeof *q);
    kern_attend_coded_turn(
        a, a->q + pair / a->n_heads * a->q_stride + pair % a->n_heads * a->k_width, q);
    if (a->k_codec == KERN_KV_FROM_V) {
        const struct kern_from_v *f = a->from_v;
        for (int64_t k = 0; k < a->k_width; k++)
            if (k % f->half >= f->n_pairs || k >= 2 * f->half)
                q[k] *= f->weight[k];
        memcpy(g->made + i * g->kw, q, (size_t)g->kw * sizeof *q);
    }
    if (!kern_kv_is_whole(a->k_codec))
        return;
    int8_t x[KERN_KV_WIDE];
    const int64_t width = kern_kv_group(a->k_codec, a->k_width);
    kern_attend_coded_bytes(a, q, x, g->by + i * GROUPS_MAX);
    for (int64_t k = 0; k < a->k_width; k++)
        g->x[i * g->kw + k] = x[k];
    for (int64_t j = 0; j < a->k_width / width; j++) {
        int32_t sum = 0;
        for (int64_t k = j * width; k < (j + 1) * width; k++)
            sum += x[k];
        g->start[i * GROUPS_MAX + j] = -128 * sum;
    }
}

static void group_init(struct group *g, const struct kern_attend *a, int64_t first, int64_t n,
                       float *at)
{
    *g = (struct group){.a = a,
                        .first = first,
                        .n = n,
                        .kw = attend_whole(a->k_width),
                        .vw = attend_whole(a->v_width)};
    g->page = at;
    g->turned = at += KERN_PAGE * num_max(g->kw, g->vw);
    g->made = at += n * g->kw;
    g->x = (coded_code *)(void *)(at += n * g->kw);
    g->acc = at += n * g->kw;
    g->split = at += n * g->vw;
    g->all = at += n * g->vw;
    g->score = at += n * g->vw;
    g->start = (int32_t *)(void *)(at += n * ATTEND_PART);
    g->by = at += n * GROUPS_MAX;
    g->max = at += n * GROUPS_MAX;
    g->sum = at += n;
    g->split_max = at += n;
    g->split_sum = at += n;
    g->all_max = at += n;
    g->all_sum = at + n;
    for (int64_t i = 0; i < n; i++)
        query_init(g, i);
}

/* What a pair sees of the n positions from base on. */
static struct view view_of(const struct group *g, int64_t i, int64_t base, int64_t n)
{
    const struct kern_attend *a = g->a;
    const int64_t pos = a->pos0 + (g->first + i) / a->n_heads;
    const int64_t from = num_min(num_max(attend_first(a, pos) - base, 0), n);
    return (struct view){from, num_max(num_min(attend_end(a, pos) - base, n), from)};
}

/* ---- pages ---- */

static void key_levels(int8_t level[16])
{
    for (int i = 0; i < 16; i++)
        level[i] = (int8_t)(kern_n4r_level[i] ^ -128);
}

/* Codes of four bits to bytes in the order of q8r; next: what is read later comes nearer. */
static void expand_keys(const uint8_t *block, int64_t width, uint8_t *to, const uint8_t *next)
{
    const int64_t group = kern_kv_group(KERN_KV_N4R, width), half = group / 8;
    int8_t level[16];
    key_levels(level);
    for (int64_t b = 0; b < PAGE_SIXTEENS * (width / group); b++)
        for (int64_t i = 0; i < half; i++) {
            v_prefetch_far(next + (b * half + i) * 64);
            expand(block + (b * half + i) * 64, level, to + (b * 2 * half + i) * 64,
                   to + ((b * 2 + 1) * half + i) * 64);
        }
}

/* Keys with +rot of 32 slots from block b of 32 on, as bytes in the order of q8r: the part that is
 * stored, and the others of codes of values. */
static void rot_keys(const struct kern_attend *a, const uint8_t *page, int64_t b, uint8_t *to)
{
    const int64_t width = a->k_width, part = width / KERN_KV_PARTS, each = width * 16;
    const uint8_t *keys = page + a->k_at, *values = page + a->v_at;
    int8_t level[16];
    key_levels(level);
    for (int64_t k = 2 * b; k < 2 * b + 2; k++) {
        if (a->k_codec == KERN_KV_Q8R_ROT)
            memcpy(to + k * each, keys + k * part * 16, (size_t)part * 16);
        for (int64_t i = 0; a->k_codec == KERN_KV_N4R_ROT && i < part / 8; i++)
            expand(keys + (k * part / 8 + i) * 64, level, to + k * each + i * 64,
                   to + k * each + (part / 8 + i) * 64);
        for (int64_t d = part; a->v_codec == KERN_KV_Q8R_ROT && d < width; d += 16)
            turn_around(values + (k * 4 * width + d) * 4, width * 4, to + k * each + d * 16, 0x80);
    }
    for (int64_t d = part; a->v_codec == KERN_KV_N4R_ROT && d < width; d += 16) {
        uint8_t *low = to + 2 * b * each + d * 16, *high = low + each, two[256];
        turn_around(values + (b * 4 * width + d) * 4, width * 4, two, 0);
        for (int i = 0; i < 256; i += 64)
            expand(two + i, level, low + i, high + i);
    }
}

static void expand_values(const uint8_t *block, int64_t width, uint8_t *to, const uint8_t *next)
{
    for (int64_t c = 0; c < PAGE_BLOCKS; c++)
        for (int64_t j = 0; j < 4; j++)
            for (int64_t d = 0; d < width * 4; d += 64) {
                v_prefetch_far(next + (c * 4 + j) * width * 4 + d);
                expand(block + (c * 4 + j) * width * 4 + d, kern_n4r_level,
                       to + (c * 8 + j) * width * 4 + d, to + (c * 8 + 4 + j) * width * 4 + d);
            }
}

/* f32 [128/16][width][16]; 16-blocks [b0, b1). */
LANES_INLINE void decode_keys_on(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                 int64_t b0, int64_t b1, float *to)
{
    for (int64_t b = b0; b < b1; b++) {
        struct v16 by = v_zero();
        for (int64_t k = 0; k < width; k++) {
            if (scale_begins(c, k))
                by = key_scales(c, block, width, b, k);
            v_store(to + (b * width + k) * 16, numbers(c, block, width, (b * width + k) * 16, by));
        }
    }
}

static void decode_keys(enum kern_kv_codec c, const uint8_t *block, int64_t width, int64_t b0,
                        int64_t b1, float *to)
{
    NUMBER_CODEC(c, decode_keys_on, block, width, b0, b1, to)
}

/* f32 [128][whole], zeros after the width; slots [j0, j1). */
LANES_INLINE void decode_rows_on(enum kern_kv_codec c, const uint8_t *block, int64_t width,
                                 int64_t j0, int64_t j1, float *to)
{
    const int64_t whole = attend_whole(width);
    for (int64_t j = j0; j < j1; j++) {
        struct v16 by = v_zero();
        for (int64_t d = 0; d + 16 <= width; d += 16) {
            if (scale_begins(c, d))
                by = value_scales(c, block, width, j, d);
            v_store(to + j * whole + d, numbers(c, block, width, j * width + d, by));
        }
        if (whole != width) /* F32, F16 and BF16 alone */
            v_store(to + j * whole + width / 16 * 16,
                    value_end(c, block, width, j, width / 16 * 16));
    }
}

static void decode_rows(enum kern_kv_codec c, const uint8_t *block, int64_t width, int64_t j0,
                        int64_t j1, float *to)
{
    NUMBER_CODEC(c, decode_rows_on, block, width, j0, j1, to)
}

/* The pairs of a row by cos and sin; minus: by the negative angle; weight: first times it, or
 * NULL. */
static void rotate(const struct kern_from_v *f, const float *cs, bool minus, const float *weight,
                   const float *x, float *y)
{
    int64_t i = 0;
    for (; i + 16 <= f->n_pairs; i += 16) {
        struct v16 c, s, a = v_load(x + i), b = v_load(x + i + f->half);
        v_deal(v_load(cs + 2 * i), v_load(cs + 2 * i + 16), &c, &s);
        if (minus)
            s = v_mul(s, v_set(-1.0f));
        if (weight) {
            a = v_mul(a, v_load(weight + i));
            b = v_mul(b, v_load(weight + i + f->half));
        }
        v_store(y + i, v_fma(v_mul(b, v_set(-1.0f)), s, v_mul(a, c)));
        v_store(y + i + f->half, v_fma(a, s, v_mul(b, c)));
    }
    for (; i < f->n_pairs; i++) {
        const float a = weight ? x[i] * weight[i] : x[i],
                    b = weight ? x[i + f->half] * weight[i + f->half] : x[i + f->half];
        const float c = cs[2 * i], s = minus ? -cs[2 * i + 1] : cs[2 * i + 1];
        y[i] = fmaf(-b, s, a * c);
        y[i + f->half] = fmaf(a, s, b * c);
    }
}

/* Values of slots [j0, j1) to what scores multiply, and queries for the page at base. */
static void make_keys(struct group *g, const uint8_t *block, int64_t base, int64_t j0, int64_t j1)
{
    const struct kern_attend *a = g->a;
    const struct kern_from_v *f = a->from_v;
    float cs[KERN_KV_WIDE];
    decode_rows(a->v_codec, block, a->v_width, j0, j1, g->page);
    for (int64_t j = j0; j < j1; j++)
        rotate(f, f->slot + j * f->n_pairs * 2, false, f->weight, g->page + j * g->vw,
               g->page + j * g->vw);
    kern_rope_angles(cs, base, f->inv_freq, f->n_pairs);
    for (int64_t i = 0; i < g->n; i++)
        rotate(f, cs, true, NULL, g->turned + i * g->kw, g->made + i * g->kw);
}

/* ---- tiles ---- */

LANES_INLINE void score_bytes(const int R, const int P, const struct group *g, int64_t i,
                              const uint8_t *bytes, const uint8_t *norms, const uint8_t *more,
                              struct view v, float *s, const uint8_t *next)
{
    const struct kern_attend *a = g->a;
    const int64_t width = a->k_width, group = kern_kv_group(a->k_codec, width);
    const bool one = a->k_codec == KERN_KV_Q8R, rot = kern_kv_is_rot(a->k_codec);
    for (int64_t b = v.from / 16 / P * P; b * 16 < v.to; b += P)
        for (int64_t at = 0; at < width; at += group) {
            struct sum16 sum[8][4];
            const coded_code *x = g->x + i * g->kw + at;
            LANES_UNROLL
            for (int r = 0; r < R; r++) {
                LANES_UNROLL
                for (int p = 0; p < P; p++)
                    sum[r][p] = sum_start(g->start[(i + r) * GROUPS_MAX + at / group]);
            }
            for (int64_t k = 0; k < group; k += 4) {
                struct unit u[4];
                LANES_UNROLL
                for (int p = 0; p < P; p++) {
                    const int64_t to = ((b + p) * width + at + k) * 16;
                    if (one)
                        v_prefetch_far(next + to);
                    u[p] = unit_keys(bytes + to);
                }
                LANES_UNROLL
                for (int r = 0; r < R; r++) {
                    const quad q = quad_load(x + r * g->kw + k);
                    LANES_UNROLL
                    for (int p = 0; p < P; p++)
                        sum[r][p] = sum_keys(sum[r][p], u[p], q);
                }
            }
            LANES_UNROLL
            for (int r = 0; r < R; r++) {
                const struct v16 by = v_set(g->by[(i + r) * GROUPS_MAX + (rot ? at / group : 0)]);
                const uint16_t *norm =
                    (const uint16_t *)(const void *)(at ? more : norms) + at / group * KERN_PAGE;
                LANES_UNROLL
                for (int p = 0; p < P; p++) {
                    float *to = s + r * ATTEND_PART + (b + p) * 16;
                    const struct v16 n = v_from_f16(norm + (b + p) * 16),
                                     dot = sum_float(sum[r][p]);
                    struct v16 y = v_mul(dot, v_mul(by, n));
                    if (rot) {
                        y = v_fma(v_mul(by, n), dot, at ? v_load(to) : v_zero());
                    } else if (!one) {
                        y = v_fma(n, dot, at ? v_load(to) : v_zero());
                        y = at + group < width ? y : v_mul(by, y);
                    }
                    v_store(to, y);
                }
            }
        }
}

LANES_INLINE void score_keys(const int R, const struct group *g, int64_t i, struct view v, float *s)
{
    const int64_t width = g->a->k_width;
    for (int64_t b = v.from / 16; b * 16 < v.to; b++) {
        struct v16 acc[8];
        const float *key = g->page + b * width * 16, *q = g->turned + i * g->kw;
        LANES_UNROLL
        for (int r = 0; r < R; r++)
            acc[r] = v_zero();
        for (int64_t k = 0; k < width; k++) {
            const struct v16 x = v_load(key + k * 16);
            LANES_UNROLL
            for (int r = 0; r < R; r++)
                acc[r] = v_fma(v_set(q[r * g->kw + k]), x, acc[r]);
        }
        LANES_UNROLL
        for (int r = 0; r < R; r++)
            v_store(s + r * ATTEND_PART + b * 16, v_mul(v_set(g->a->scale), acc[r]));
    }
}

LANES_INLINE void score_made(const int R, const struct group *g, int64_t i, struct view v, float *s)
{
    for (int64_t j = v.from; j < v.to; j++) {
        struct v16 acc[8];
        const float *x = g->page + j * g->vw, *q = g->made + i * g->kw;
        LANES_UNROLL
        for (int r = 0; r < R; r++)
            acc[r] = v_zero();
        for (int64_t k = 0; k < g->kw; k += 16) {
            const struct v16 y = v_load(x + k);
            LANES_UNROLL
            for (int r = 0; r < R; r++)
                acc[r] = v_fma(v_load(q + r * g->kw + k), y, acc[r]);
        }
        LANES_UNROLL
        for (int r = 0; r < R; r++)
            s[r * ATTEND_PART + j] = g->a->scale * v_fold_sum(acc[r]);
    }
}

/* Weights of a page as bytes, for the dimensions of one norm: code [128], t [PAGE_BLOCKS]. */
static void weigh_bytes(const float *p, const uint16_t *norm, struct view v, coded_code *code,
                        float *t)
{
    for (int64_t b = 0; b < PAGE_BLOCKS; b++, code += KERN_ATTEND_BLOCK) {
        const int64_t from = v.from - b * KERN_ATTEND_BLOCK, to = v.to - b * KERN_ATTEND_BLOCK;
        t[b] = 0.0f;
        if (to <= 0 || from >= KERN_ATTEND_BLOCK || from >= to) {
            memset(code, 0, KERN_ATTEND_BLOCK * sizeof *code);
            continue;
        }
        struct v16 lo = v_mul(v_load(p + b * 32), v_from_f16(norm + b * 32)),
                   hi = v_mul(v_load(p + b * 32 + 16), v_from_f16(norm + b * 32 + 16));
        if (from > 0 || to < KERN_ATTEND_BLOCK) {
            lo = v_choose(v_range(from, to), lo, v_zero());
            hi = v_choose(v_range(from - 16, to - 16), hi, v_zero());
        }
        const struct v16 inf = v_set(INFINITY);
        const bool finite = (v_mask(v_greater(inf, lo)) & v_mask(v_greater(inf, hi))) == 0xffff;
        const float top = v_fold_max(v_max(lo, hi));
        if (!finite || top < CODED_LEAST) {
            memset(code, 0, KERN_ATTEND_BLOCK * sizeof *code);
            t[b] = finite ? 0.0f : NAN;
            continue;
        }
        const struct v16 by = v_set(255.0f / top);
        codes_store(code, v_mul(lo, by));
        codes_store(code + 16, v_mul(hi, by));
        t[b] = top / 255.0f;
    }
}

/* P vectors of dimensions from at on take in the blocks [b0, b1) of a page. */
LANES_INLINE void mix_codes(const int R, const int P, const struct group *g, const uint8_t *bytes,
                            int64_t at, int64_t b0, int64_t b1, const coded_code *code,
                            const float *t, float *acc, const uint8_t *next)
{
    const int64_t width = g->a->v_width;
    struct v16 f[8][4];
    LANES_UNROLL
    for (int r = 0; r < R; r++) {
        LANES_UNROLL
        for (int p = 0; p < P; p++)
            f[r][p] = v_load(acc + r * g->vw + at + p * 16);
    }
    for (int64_t b = b0; b < b1; b++) {
        struct sum16 sum[8][4];
        LANES_UNROLL
        for (int r = 0; r < R; r++) {
            LANES_UNROLL
            for (int p = 0; p < P; p++)
                sum[r][p] = sum_start(0);
        }
        for (int64_t j = b * 8; j < b * 8 + 8; j++) {
            struct unit u[4];
            LANES_UNROLL
            for (int p = 0; p < P; p++) {
                const int64_t to = (j * width + at + p * 16) * 4;
                v_prefetch_far(next + to);
                u[p] = unit_values(bytes + to);
            }
            LANES_UNROLL
            for (int r = 0; r < R; r++) {
                const quad q = quad_load(code + r * KERN_PAGE + j * 4);
                LANES_UNROLL
                for (int p = 0; p < P; p++)
                    sum[r][p] = sum_values(sum[r][p], u[p], q);
            }
        }
        LANES_UNROLL
        for (int r = 0; r < R; r++) {
            const struct v16 by = v_set(t[r * PAGE_BLOCKS + b]);
            LANES_UNROLL
            for (int p = 0; p < P; p++)
                f[r][p] = v_fma(sum_float(sum[r][p]), by, f[r][p]);
        }
    }
    LANES_UNROLL
    for (int r = 0; r < R; r++) {
        LANES_UNROLL
        for (int p = 0; p < P; p++)
            v_store(acc + r * g->vw + at + p * 16, f[r][p]);
    }
}

LANES_INLINE void mix_bytes(const int R, const int P, const struct group *g, int64_t i,
                            const uint8_t *bytes, const uint8_t *norms, int64_t base,
                            const float *s, const uint8_t *next)
{
    const struct kern_attend *a = g->a;
    const int64_t width = a->v_width, group = kern_kv_group(a->v_codec, width);
    const uint16_t *norm = (const uint16_t *)(const void *)norms;
    coded_code code[8 * KERN_PAGE];
    float t[8 * PAGE_BLOCKS];
    const struct view first = view_of(g, i, base, KERN_PAGE),
                      last = view_of(g, i + R - 1, base, KERN_PAGE);
    const int64_t b0 = first.from / KERN_ATTEND_BLOCK, b1 = num_div_up(last.to, KERN_ATTEND_BLOCK);
    for (int64_t at = 0; at < width; at += group) {
        for (int r = 0; r < R; r++)
            weigh_bytes(s + r * ATTEND_PART, norm + at / group * KERN_PAGE,
                        view_of(g, i + r, base, KERN_PAGE), code + r * KERN_PAGE,
                        t + r * PAGE_BLOCKS);
        int64_t d = at;
        for (; d + 16 * P <= at + group; d += 16 * P)
            mix_codes(R, P, g, bytes, d, b0, b1, code, t, g->acc + i * g->vw, next);
        for (; d < at + group; d += 16)
            mix_codes(R, 1, g, bytes, d, b0, b1, code, t, g->acc + i * g->vw, next);
    }
}

/* Slots [v.from, v.to), which all pairs see. */
LANES_INLINE void mix_values(const int R, const struct group *g, int64_t i, struct view v,
                             const float *s)
{
    float *acc = g->acc + i * g->vw;
    for (int64_t at = 0; at < g->vw; at += 16) {
        struct v16 f[8];
        LANES_UNROLL
        for (int r = 0; r < R; r++)
            f[r] = v_load(acc + r * g->vw + at);
        for (int64_t j = v.from; j < v.to; j++) {
            const struct v16 x = v_load(g->page + j * g->vw + at);
            LANES_UNROLL
            for (int r = 0; r < R; r++)
                f[r] = v_fma(v_set(s[r * ATTEND_PART + j]), x, f[r]);
        }
        LANES_UNROLL
        for (int r = 0; r < R; r++)
            v_store(acc + r * g->vw + at, f[r]);
    }
}

/* What a tile of R pairs does with a page of which g->page, or bytes, has what it needs. */
struct work {
    const uint8_t *bytes, *norms, *next;
    const uint8_t *more; /* norms of a key's groups but the first: of +rot those of values */
    int64_t base, from, to; /* scores: of slots [from, to) */
};

LANES_INLINE void score_tile(const int R, const int P, const struct group *g, int64_t i,
                             const struct work *w, float *s)
{
    const struct view first = view_of(g, i, w->base, KERN_PAGE),
                      last = view_of(g, i + R - 1, w->base, KERN_PAGE);
    const struct view v = {num_max(first.from, w->from), num_min(last.to, w->to)};
    if (v.from >= v.to)
        return;
    if (g->a->k_codec == KERN_KV_FROM_V)
        score_made(R, g, i, v, s);
    else if (kern_kv_is_whole(g->a->k_codec))
        score_bytes(R, P, g, i, w->bytes, w->norms, w->more, v, s, w->next);
    else
        score_keys(R, g, i, v, s);
}

LANES_INLINE void mix_tile(const int R, const int P, const struct group *g, int64_t i,
                           const struct work *w, const float *s)
{
    const struct view first = view_of(g, i, w->base, KERN_PAGE),
                      last = view_of(g, i + R - 1, w->base, KERN_PAGE);
    if (first.from >= last.to)
        return;
    if (kern_kv_is_whole(g->a->v_codec))
        mix_bytes(R, P, g, i, w->bytes, w->norms, w->base, s, w->next);
    else if (first.from == last.from && first.to == last.to)
        mix_values(R, g, i, first, s);
    else
        for (int r = 0; r < R; r++)
            mix_values(1, g, i + r, view_of(g, i + r, w->base, KERN_PAGE), s + r * ATTEND_PART);
}

/* Tiles of R pairs and S vectors of scores, P of values. */
#define TILE(R, S, P)                                                                              \
    static void score_##R(const struct group *g, int64_t i, const struct work *w, float *s)        \
    {                                                                                              \
        score_tile(R, S, g, i, w, s);                                                              \
    }                                                                                              \
    static void mix_##R(const struct group *g, int64_t i, const struct work *w, float *s)          \
    {                                                                                              \
        mix_tile(R, P, g, i, w, s);                                                                \
    }
#if defined(__AVX512VNNI__)
enum { MAX_R = 8 };
TILE(8, 2, 1)
TILE(4, 2, 2)
TILE(2, 4, 4)
TILE(1, 4, 4)
#elif defined(__AVXVNNI__)
enum { MAX_R = 4 };
TILE(4, 1, 1)
TILE(2, 2, 2)
TILE(1, 2, 2)
#else
enum { MAX_R = 2 };
TILE(2, 1, 1)
TILE(1, 1, 1)
#endif

static const struct tile {
    int64_t n;
    void (*score)(const struct group *g, int64_t i, const struct work *w, float *s);
    void (*mix)(const struct group *g, int64_t i, const struct work *w, float *s);
} tiles[] = {
#if defined(__AVX512VNNI__)
    {8, score_8, mix_8},
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    {4, score_4, mix_4},
#endif
    {2, score_2, mix_2},
    {1, score_1, mix_1},
};

static const struct tile *tile_for(int64_t n)
{
    const struct tile *t = tiles;
    while (t->n > n)
        t++;
    return t;
}

/* ---- parts, splits, rows ---- */

static void score_tiles(const struct group *g, const struct work *w)
{
    for (int64_t i = 0; i < g->n;) {
        const struct tile *t = tile_for(g->n - i);
        t->score(g, i, w, g->score + i * ATTEND_PART + w->base % ATTEND_PART);
        i += t->n;
    }
}

static void score_page(struct group *g, int64_t page, int64_t from, int64_t to)
{
    const struct kern_attend *a = g->a;
    const uint8_t *block = a->page[page] + a->k_at;
    struct work w = {
        .bytes = block, .base = page * KERN_PAGE, .to = KERN_PAGE, .next = a->page[page] + a->v_at};
    const int64_t j0 = from - w.base, j1 = to - w.base;
    if (a->k_codec == KERN_KV_FROM_V)
        make_keys(g, a->page[page] + a->v_at, kern_attend_base(a, page), j0, j1);
    else if (!kern_kv_is_whole(a->k_codec))
        decode_keys(a->k_codec, block, a->k_width, j0 / 16, num_div_up(j1, 16), g->page);
    else
        w.norms = w.more = tail_bytes(a->k_codec, block, a->k_width);
    if (a->k_codec == KERN_KV_N4R)
        expand_keys(block, a->k_width, (uint8_t *)g->page, w.next);
    if (kern_kv_is_rot(a->k_codec)) {
        w.norms = tail_bytes(a->k_codec, block, a->k_width / KERN_KV_PARTS);
        w.more = tail_bytes(a->v_codec, a->page[page] + a->v_at, a->v_width);
    }
    if (a->k_codec != KERN_KV_Q8R)
        w.bytes = (const uint8_t *)g->page;
    if (!kern_kv_is_rot(a->k_codec)) {
        score_tiles(g, &w);
        return;
    }
    /* Few pairs: what is made is multiplied while it is near.  A tile's step is at most 64
     * slots. */
    const int64_t step = g->n > 2 * MAX_R ? KERN_PAGE : 64;
    for (w.from = 0; w.from < j1; w.from += step) {
        w.to = w.from + step;
        for (int64_t b = w.from / 32; b < num_div_up(num_min(w.to, j1), 32); b++)
            rot_keys(a, a->page[page], b, (uint8_t *)g->page);
        score_tiles(g, &w);
    }
}

static void mix_page(struct group *g, int64_t page, int64_t from, int64_t to)
{
    const struct kern_attend *a = g->a;
    const uint8_t *block = a->page[page] + a->v_at;
    /* certainly, it is looked at */
    const bool more = (page + 2) * KERN_PAGE <= a->pos0 + (g->first + g->n - 1) / a->n_heads;
    struct work w = {.bytes = block,
                     .base = page * KERN_PAGE,
                     .next = more ? a->page[page + 2] + a->k_at : block};
    if (kern_kv_is_whole(a->v_codec))
        w.norms = tail_bytes(a->v_codec, block, a->v_width);
    else
        decode_rows(a->v_codec, block, a->v_width, from - w.base, to - w.base, g->page);
    if (kern_kv_code(a->v_codec) == KERN_KV_N4R) {
        expand_values(block, a->v_width, (uint8_t *)g->page, w.next);
        w.bytes = (const uint8_t *)g->page;
    }
    for (int64_t i = 0; i < g->n;) {
        const struct tile *t = tile_for(g->n - i);
        t->mix(g, i, &w, g->score + i * ATTEND_PART + w.base % ATTEND_PART);
        i += t->n;
    }
}

/* The scores of a pair in a part become weights. */
static void weigh(struct group *g, int64_t i, struct view v)
{
    float *s = g->score + i * ATTEND_PART;
    struct v16 top = v_set(-INFINITY), lane = v_zero();
    g->max[i] = -INFINITY;
    g->sum[i] = 0.0f;
    if (v.from >= v.to)
        return;
    for (int64_t j = v.from / 16 * 16; j < v.to; j += 16) {
        if (j < v.from || j + 16 > v.to)
            v_store(s + j,
                    v_choose(v_range(v.from - j, v.to - j), v_load(s + j), v_set(-INFINITY)));
        top = v_max(v_load(s + j), top);
    }
    g->max[i] = v_fold_max(top);
    for (int64_t j = v.from / 16 * 16; j < v.to; j += 16) {
        struct v16 p = v_sub(v_load(s + j), v_set(g->max[i]));
        v_exp_low(&p, 1); /* beside a NaN a score may be larger: the row is NaN then */
        v_store(s + j, p);
        lane = v_add(lane, p);
    }
    g->sum[i] = v_fold_sum(lane);
}

/* all, with its maximum and sum, takes in what was seen of a part or split; acc NULL: zeros. */
static void join(float *all_max, float *all_sum, float *all, float max, float sum, const float *acc,
                 int64_t n)
{
    if (sum == 0.0f)
        return;
    const bool first = *all_sum == 0.0f;
    float top = first || max > *all_max ? max : *all_max;
    float x = kern_exp(*all_max - top), y = kern_exp(max - top);
    *all_max = top;
    *all_sum = first ? sum : fmaf(sum, y, *all_sum * x);
    for (int64_t d = 0; d < n; d += 16) {
        const struct v16 one = acc ? v_load(acc + d) : v_zero();
        v_store(all + d, first ? one : v_fma(one, v_set(y), v_mul(v_load(all + d), v_set(x))));
    }
}

static void clear(float *max, float *sum, float *acc, int64_t n_pairs, int64_t width)
{
    for (int64_t i = 0; i < n_pairs; i++) {
        max[i] = -INFINITY;
        sum[i] = 0.0f;
    }
    for (int64_t i = 0; i < n_pairs * width; i += 16)
        v_store(acc + i, v_zero());
}

static void do_part(struct group *g, int64_t base, int64_t from, int64_t to)
{
    clear(g->max, g->sum, g->acc, g->n, g->vw);
    for (int64_t page = from / KERN_PAGE; page * KERN_PAGE < to; page++)
        score_page(g, page, num_max(from, page * KERN_PAGE), num_min(to, (page + 1) * KERN_PAGE));
    for (int64_t i = 0; i < g->n; i++)
        weigh(g, i, view_of(g, i, base, ATTEND_PART));
    for (int64_t page = from / KERN_PAGE; page * KERN_PAGE < to; page++)
        mix_page(g, page, num_max(from, page * KERN_PAGE), num_min(to, (page + 1) * KERN_PAGE));
    for (int64_t i = 0; i < g->n; i++)
        join(&g->split_max[i], &g->split_sum[i], g->split + i * g->vw, g->max[i], g->sum[i],
             g->acc + i * g->vw, g->vw);
}

/* One split of every pair in the group, from nothing. */
static void do_split(struct group *g, int64_t split)
{
    const struct kern_attend *a = g->a;
    const int64_t row0 = g->first / a->n_heads, row1 = (g->first + g->n - 1) / a->n_heads;
    int64_t from = num_max(attend_first(a, a->pos0 + row0), split * KERN_SPLIT);
    const int64_t end = num_min(attend_end(a, a->pos0 + row1), (split + 1) * KERN_SPLIT);
    clear(g->split_max, g->split_sum, g->split, g->n, g->vw);
    for (int64_t to; from < end; from = to) {
        const int64_t base = from / ATTEND_PART * ATTEND_PART;
        to = num_min(end, base + ATTEND_PART);
        do_part(g, base, from, to);
    }
}

static void finish(const struct kern_attend *a, int64_t pair, float max, float sum, float *all)
{
    float *out = a->out + pair / a->n_heads * a->out_stride + pair % a->n_heads * a->v_width;
    if (a->sink)
        join(&max, &sum, all, a->sink[pair % a->n_heads], 1.0f, NULL, attend_whole(a->v_width));
    for (int64_t d = 0; d < a->v_width; d += 16)
        v_store_n(out + d, v_div(v_load(all + d), v_set(sum)), a->v_width - d);
    kern_kv_turn_back(a->v_codec, out, a->v_width);
}

/* Pairs for the group at first: as even as whole tiles allow. */
static int64_t group_size(int64_t n_pairs)
{
    const int64_t n = num_max(1, num_div_up(n_pairs, ATTEND_GROUP));
    return num_div_up(num_div_up(n_pairs, n), 8) * 8;
}

static void rows(const struct kern_attend *a, void *scratch)
{
    const int64_t n_pairs = a->n_rows * a->n_heads, size = group_size(n_pairs);
    for (int64_t first = 0; first < n_pairs; first += size) {
        struct group g;
        group_init(&g, a, first, num_min(size, n_pairs - first), scratch);
        clear(g.all_max, g.all_sum, g.all, g.n, g.vw);
        const int64_t row0 = first / a->n_heads, row1 = (first + g.n - 1) / a->n_heads;
        for (int64_t s = attend_first(a, a->pos0 + row0) / KERN_SPLIT;
             s <= (attend_end(a, a->pos0 + row1) - 1) / KERN_SPLIT; s++) {
            do_split(&g, s);
            for (int64_t i = 0; i < g.n; i++)
                join(&g.all_max[i], &g.all_sum[i], g.all + i * g.vw, g.split_max[i], g.split_sum[i],
                     g.split + i * g.vw, g.vw);
        }
        for (int64_t i = 0; i < g.n; i++)
            finish(a, first + i, g.all_max[i], g.all_sum[i], g.all + i * g.vw);
    }
}

static void split(const struct kern_attend *a, int64_t index, float *state, void *scratch)
{
    const int64_t n_pairs = a->n_rows * a->n_heads, size = group_size(n_pairs);
    for (int64_t first = 0; first < n_pairs; first += size) {
        struct group g;
        group_init(&g, a, first, num_min(size, n_pairs - first), scratch);
        do_split(&g, index);
        for (int64_t i = 0; i < g.n; i++, state += kern_attend_state(a->v_width)) {
            state[0] = g.split_max[i];
            state[1] = g.split_sum[i];
            memcpy(state + 2, g.split + i * g.vw, (size_t)a->v_width * sizeof *state);
        }
    }
}

static void merge(const struct kern_attend *a, int64_t n_splits, const float *state, void *scratch)
{
    const int64_t step = kern_attend_state(a->v_width), n_pairs = a->n_rows * a->n_heads,
                  whole = attend_whole(a->v_width);
    float *all = scratch, *acc = all + whole;
    memset(acc, 0, (size_t)whole * sizeof *acc);
    for (int64_t pair = 0; pair < n_pairs; pair++) {
        float max = -INFINITY, sum = 0.0f;
        memset(all, 0, (size_t)whole * sizeof *all);
        for (int64_t s = 0; s < n_splits; s++) {
            const float *one = state + (s * n_pairs + pair) * step;
            memcpy(acc, one + 2, (size_t)a->v_width * sizeof *acc);
            join(&max, &sum, all, one[0], one[1], acc, whole);
        }
        finish(a, pair, max, sum, all);
    }
}

static void kv_write(enum kern_kv_codec c, bool key, int64_t width, void *block, int64_t slot,
                     const float *rows, int64_t n, int64_t stride)
{
    if (kern_kv_is_coded(c))
        kern_kv_codes_write(c, key, width, block, slot, rows, n, stride);
    else if (c != KERN_KV_FROM_V)
        kern_kv_write_avx2(c, key, width, block, slot, rows, n, stride);
}

const struct kern_attend_table CODED_SET(kern_attend_coded) = {
    .kv_write = kv_write, .rows = rows, .split = split, .merge = merge};

/* ---- the choice of pages (kern/select.h) ---- */

#if defined(__AVX512VNNI__)
/* Two vectors of positions share what is read of a query: registers have room where nothing but
 * scores is computed. */
static void shadow_8(const struct group *g, int64_t i, const struct work *w, float *s)
{
    score_tile(8, 2, g, i, w, s);
}
#endif

/* Scores of a page by its shadow keys; next: the keys that are read then. */
static void score_shadow(struct group *g, const uint8_t *block, int64_t page, const uint8_t *next)
{
    const struct kern_attend *a = g->a;
    const uint8_t *norms = tail_bytes(KERN_KV_N4R, block, a->k_width);
    const struct work w = {.bytes = (const uint8_t *)g->page,
                           .norms = norms,
                           .more = norms,
                           .next = next,
                           .base = page * KERN_PAGE,
                           .to = KERN_PAGE};
    expand_keys(block, a->k_width, (uint8_t *)g->page, next);
    for (int64_t i = 0; i < g->n;) {
        const struct tile *t = tile_for(g->n - i);
        float *to = g->score + i * ATTEND_PART;
#if defined(__AVX512VNNI__)
        if (t->n == 8)
            shadow_8(g, i, &w, to);
        else
#endif
            t->score(g, i, &w, to);
        i += t->n;
    }
}

static void select_mass(const struct kern_select_task *t, int64_t first, int64_t end,
                        int64_t n_pages, float *mass, void *scratch)
{
    const struct kern_attend a = {.k_codec = KERN_KV_N4R,
                                  .v_codec = KERN_KV_F32,
                                  .k_width = t->k_width,
                                  .v_width = ATTEND_LANES,
                                  .page = t->shadow,
                                  .k_at = t->at,
                                  .q = t->q,
                                  .n_rows = 1,
                                  .n_heads = t->n_heads,
                                  .pos0 = t->pos,
                                  .scale = t->scale};
    const int64_t size = group_size(t->n_heads);
    for (int64_t h = 0; h < t->n_heads; h += size) {
        struct group g;
        group_init(&g, &a, h, num_min(size, t->n_heads - h), scratch);
        for (int64_t page = first; page < end; page++) {
            const struct view v = {0, num_min(KERN_PAGE, t->pos + 1 - page * KERN_PAGE)};
            score_shadow(&g, t->shadow[page] + t->at, page,
                         t->shadow[num_min(page + 1, end - 1)] + t->at);
            for (int64_t i = 0; i < g.n; i++) {
                float *to = mass + ((h + i) * n_pages + page) * 2;
                weigh(&g, i, v);
                to[0] = g.max[i];
                to[1] = g.sum[i];
            }
        }
    }
}

static void select_rest(const struct kern_select_task *t, const float *mass, int64_t n_pages,
                      const int32_t *chosen, int64_t n, float *state)
{
    const int64_t step = kern_attend_state(t->v_width);
    for (int64_t h = 0; h < t->n_heads; h++) {
        const float *m = mass + h * 2 * n_pages;
        float *s = state + h * step;
        memset(s, 0, (size_t)step * sizeof *s);
        s[0] = -INFINITY;
        for (int64_t i = 0, k = 0; i < n_pages; i++)
            if (k < n && chosen[k] == i)
                k++;
            else
                s[0] = m[2 * i] > s[0] ? m[2 * i] : s[0];
    }
    for (int64_t i = 0, k = 0; i < n_pages; i++) {
        if (k < n && chosen[k] == i) {
            k++;
            continue;
        }
        const float *mean = (const float *)(const void *)(t->shadow[i] + t->mean_at);
        for (int64_t h = 0; h < t->n_heads; h++) {
            const float *m = mass + (h * n_pages + i) * 2;
            float *s = state + h * step, w = m[1] * kern_exp(m[0] - s[0]);
            s[1] += w;
            for (int64_t d = 0; d < t->v_width; d += 16)
                v_store(s + 2 + d, v_fma(v_set(w), v_load(mean + d), v_load(s + 2 + d)));
        }
    }
}

const struct kern_select_table CODED_SET(kern_select) = {.mass = select_mass, .rest = select_rest};
