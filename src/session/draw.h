/*
 * draw - the draw of a token by an exponential race, and the numbers that it takes.
 *
 * Every token has a number of its own for each draw, E(seed, i, id), distributed like the time
 * until an event of rate 1; the one with the least E / p wins, which happens with probability p.
 * Two distributions that differ little mostly have the same winner, as the numbers do not depend on
 * them: a drafter draws what its target will draw.  A token that is forbidden changes nothing among
 * the others.
 *
 * Computed as the largest logit / temperature + G with G = -log E, of 64 bits.  Philox 4x32-10
 * keyed by the seed gives the high words of four tokens with the counter (i, 0, id / 4), the low
 * ones with (i, 1, id / 4), i being 64 bits.  Plain double arithmetic: the bits do not depend on
 * the instruction set.
 */
#ifndef INGLE_SESSION_DRAW_H
#define INGLE_SESSION_DRAW_H

#include <math.h>
#include <stdint.h>

/* exp(x) = 2^n exp(r), n the whole number nearest to x / log 2, r = x - n log 2 with log 2 in two
 * parts; the sum with ROUND has n in its last bits. */
static const double SESSION_EXP_LEAST = -708.0, SESSION_EXP_LOG2E = 1.4426950408889634,
                    SESSION_EXP_ROUND = 0x1.8p52;
static const double SESSION_EXP_HIGH = 0x1.62e42fee00000p-1,
                    SESSION_EXP_LOW = 0x1.a39ef35793c76p-33;
static const double SESSION_EXP_PART[15] = {/* 1 / n! */
                                            1.0,
                                            1.0,
                                            1.0 / 2,
                                            1.0 / 6,
                                            1.0 / 24,
                                            1.0 / 120,
                                            1.0 / 720,
                                            1.0 / 5040,
                                            1.0 / 40320,
                                            1.0 / 362880,
                                            1.0 / 3628800,
                                            1.0 / 39916800,
                                            1.0 / 479001600,
                                            1.0 / 6227020800,
                                            1.0 / 87178291200};

/* exp for x <= 0; error below 2 ulp, 0 where the result would be subnormal, and for no number. */
static inline double session_exp(double x)
{
    union {
        double d;
        uint64_t u;
    } whole;
    if (!(x > SESSION_EXP_LEAST))
        return 0.0;
    whole.d = x * SESSION_EXP_LOG2E + SESSION_EXP_ROUND;
    const double n = whole.d - SESSION_EXP_ROUND;
    const double r = (x - n * SESSION_EXP_HIGH) - n * SESSION_EXP_LOW;
    double y = SESSION_EXP_PART[14];
    for (int i = 13; i >= 0; i--)
        y = y * r + SESSION_EXP_PART[i];
    whole.u = (whole.u + 1023) << 52;
    return y * whole.d;
}

/* log for x > 0 (normal): x = m 2^e, log m = 2 atanh((m - 1) / (m + 1)). */
static inline double session_log(double x)
{
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    const double t = (m - 1) / (m + 1), t2 = t * t;
    double sum = 0;
    for (int n = 23; n >= 1; n -= 2)
        sum = sum * t2 + 1.0 / n;
    return e * 0.69314718055994531 + 2 * t * sum;
}

/* Uniform in [0, 1), a multiple of 2^-53: of the i-th draw, for other random decisions. */
double session_draw_coin(uint64_t seed, uint64_t i);

/* G of a token: above -4, and never above this. */
static const double SESSION_DRAW_MOST = 45.06;
double session_draw_number(uint64_t seed, uint64_t i, int32_t id);

enum { SESSION_DRAW_BLOCK = 64 }; /* tokens */

/* The winner among tokens 0 .. n-1 with these logits (-inf: does not take part), at a temperature
 * above 0; of equals the lower id; -1: nobody takes part.  most [(n + 63) / 64]: the largest logit
 * of each block of tokens. */
int32_t session_draw_all(const float *logit, int64_t n, const float *most, double temperature,
                         uint64_t seed, uint64_t i);

/* The sum of exp(logit - max), which is the largest of them: eight sums, token t in the one of t %
 * 8, then these from the first one on. */
double session_exp_sum(const float *logit, int64_t n, double max);

/* The largest logit of each block to most [(n + 63) / 64]. */
void session_draw_blocks(const float *logit, int64_t n, float *most);

#endif
