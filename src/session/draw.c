/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draw - tokens that cannot win are left out by what little is known of their numbers: G is at most
 * (leading zeros of the high word + 1) log 2.  For most blocks of tokens the largest logit and the
 * smallest high word decide that, so that a draw takes the numbers of Philox and little else.
 */
#include "session/draw.h"

#include "base/attr.h"
#include "base/num.h"

#include <stdbool.h>
#include <stdint.h>

enum { STREAM_HIGH, STREAM_LOW, STREAM_COIN, LANES = SESSION_DRAW_BLOCK / 4, SUMS = 8 };

static const double LOG2 = 0.69314718055994531;

/* What n lanes of counters are after ten rounds, word by word. */
struct words {
    uint32_t w[4][LANES];
};

static void rounds(struct words *x, uint64_t seed)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        for (int l = 0; l < LANES; l++) {
            const uint64_t a = (uint64_t)0xD2511F53u * x->w[0][l],
                           b = (uint64_t)0xCD9E8D57u * x->w[2][l];
            const uint32_t x0 = (uint32_t)(b >> 32) ^ x->w[1][l] ^ k0,
                           x2 = (uint32_t)(a >> 32) ^ x->w[3][l] ^ k1;
            x->w[0][l] = x0;
            x->w[1][l] = (uint32_t)b;
            x->w[2][l] = x2;
            x->w[3][l] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* The same for one counter. */
static void philox(uint64_t seed, uint64_t i, uint32_t stream, uint32_t last, uint32_t c[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    c[0] = (uint32_t)i;
    c[1] = (uint32_t)(i >> 32);
    c[2] = stream;
    c[3] = last;
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t x0 = (uint32_t)(b >> 32) ^ c[1] ^ k0, x2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[0] = x0;
        c[1] = (uint32_t)b;
        c[2] = x2;
        c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

double session_draw_coin(uint64_t seed, uint64_t i)
{
    uint32_t c[4];
    philox(seed, i, STREAM_COIN, 0, c);
    return (double)(((uint64_t)c[1] << 32 | c[0]) >> 11) * 0x1p-53;
}

/* -log of -log(1 - v), v = (bits + 1/2) / 2^64, without loss where v is near 0 or 1. */
static double number_of(uint64_t bits)
{
    const double v = ((double)bits + 0.5) * 0x1p-64, rest = ((double)~bits + 0.5) * 0x1p-64;
    if (bits >> 62)
        return -session_log(-session_log(rest));
    const double t = v / (2 - v), t2 = t * t; /* -log(1 - v) = 2 atanh t, t <= 1/7 */
    double sum = 0;
    for (int n = 19; n >= 1; n -= 2)
        sum = sum * t2 + 1.0 / n;
    return -session_log(2 * t * sum);
}

static double number_with(uint64_t seed, uint64_t i, int32_t id, uint32_t high)
{
    uint32_t low[4];
    philox(seed, i, STREAM_LOW, (uint32_t)id / 4, low);
    return number_of((uint64_t)high << 32 | low[id % 4]);
}

double session_draw_number(uint64_t seed, uint64_t i, int32_t id)
{
    uint32_t high[4];
    philox(seed, i, STREAM_HIGH, (uint32_t)id / 4, high);
    return number_with(seed, i, id, high[id % 4]);
}

struct draw {
    double temperature, top;
    uint64_t seed, i;
    double best; /* score of the winner so far */
    int32_t id;  /* -1: none yet */
};

/* Whether a token with this logit and high word may still win. */
static bool may_win(const struct draw *r, float logit, uint32_t high)
{
    const double most = high ? (__builtin_clz(high) + 1) * LOG2 : 65 * LOG2;
    return r->id < 0 || ((double)logit - r->top) / r->temperature + most >= r->best - 1e-6;
}

static void run_block(struct draw *r, const float *logit, int64_t from, int64_t n, float most)
{
    struct words x;
    uint32_t least[LANES];
    if (!(most > -INFINITY) || !may_win(r, most, 0))
        return;
    for (int l = 0; l < LANES; l++) {
        x.w[0][l] = (uint32_t)r->i;
        x.w[1][l] = (uint32_t)(r->i >> 32);
        x.w[2][l] = STREAM_HIGH;
        x.w[3][l] = (uint32_t)(from / 4) + (uint32_t)l;
    }
    rounds(&x, r->seed);
    for (int l = 0; l < LANES; l++) {
        const uint32_t a = x.w[0][l] < x.w[1][l] ? x.w[0][l] : x.w[1][l];
        const uint32_t b = x.w[2][l] < x.w[3][l] ? x.w[2][l] : x.w[3][l];
        least[l] = a < b ? a : b;
    }
    for (int l = 1; l < LANES; l++)
        least[0] = least[l] < least[0] ? least[l] : least[0];
    if (!may_win(r, most, least[0]))
        return;
    for (int64_t k = 0; k < n; k++) {
        const uint32_t high = x.w[k % 4][k / 4];
        const float l = logit[from + k];
        const int32_t id = (int32_t)(from + k);
        if (!(l > -INFINITY) || !may_win(r, l, high))
            continue;
        const double score =
            ((double)l - r->top) / r->temperature + number_with(r->seed, r->i, id, high);
        if (r->id < 0 || score > r->best || (score == r->best && id < r->id)) {
            r->best = score;
            r->id = id;
        }
    }
}

void session_draw_blocks(const float *logit, int64_t n, float *most)
{
    for (int64_t from = 0; from < n; from += SESSION_DRAW_BLOCK) {
        float m[8], best = -INFINITY;
        int64_t k = 0;
        const int64_t count = num_min(SESSION_DRAW_BLOCK, n - from);
        for (int l = 0; l < 8; l++)
            m[l] = -INFINITY;
        for (; k + 8 <= count; k += 8)
            for (int l = 0; l < 8; l++)
                m[l] = logit[from + k + l] > m[l] ? logit[from + k + l] : m[l];
        for (; k < count; k++)
            best = logit[from + k] > best ? logit[from + k] : best;
        for (int l = 0; l < 8; l++)
            best = m[l] > best ? m[l] : best;
        most[from / SESSION_DRAW_BLOCK] = best;
    }
}

int32_t session_draw_all(const float *logit, int64_t n, const float *most, double temperature,
                         uint64_t seed, uint64_t i)
{
    const int64_t n_blocks = num_div_up(n, SESSION_DRAW_BLOCK);
    struct draw r = {.temperature = temperature, .seed = seed, .i = i, .id = -1};
    int64_t first = 0;
    for (int64_t b = 1; b < n_blocks; b++)
        if (most[b] > most[first])
            first = b;
    r.top = (double)most[first];
    for (int64_t b = -1; b < n_blocks; b++) { /* a good score at first */
        const int64_t block = b < 0 ? first : b, from = block * SESSION_DRAW_BLOCK;
        if (b != first)
            run_block(&r, logit, from, num_min(SESSION_DRAW_BLOCK, n - from), most[block]);
    }
    return r.id;
}

typedef double pair ATTR_VECTOR(16);
typedef uint64_t pair_bits ATTR_VECTOR(16);

/* session_exp() of two. */
static pair exps(pair x)
{
    const pair_bits in = (pair_bits)(x > SESSION_EXP_LEAST);
    x = (pair)((pair_bits)x & in); /* 0 instead, whose result is left out */
    const pair whole = x * SESSION_EXP_LOG2E + SESSION_EXP_ROUND, n = whole - SESSION_EXP_ROUND;
    const pair r = (x - n * SESSION_EXP_HIGH) - n * SESSION_EXP_LOW;
    pair y = r * SESSION_EXP_PART[14] + SESSION_EXP_PART[13];
    for (int i = 12; i >= 0; i--)
        y = y * r + SESSION_EXP_PART[i];
    y *= (pair)(((pair_bits)whole + 1023) << 52);
    return (pair)((pair_bits)y & in);
}

double session_exp_sum(const float *logit, int64_t n, double max)
{
    pair sum[SUMS / 2] = {{0}};
    double last[SUMS] = {0}, all = 0;
    int64_t t = 0;
    for (; t + SUMS <= n; t += SUMS)
        for (int k = 0; k < SUMS / 2; k++)
            sum[k] +=
                exps((pair){(double)logit[t + 2 * k] - max, (double)logit[t + 2 * k + 1] - max});
    for (int k = 0; k < SUMS; k++)
        last[k] = sum[k / 2][k % 2];
    for (; t < n; t++)
        last[t % SUMS] += session_exp((double)logit[t] - max);
    for (int k = 0; k < SUMS; k++)
        all += last[k];
    return all;
}
