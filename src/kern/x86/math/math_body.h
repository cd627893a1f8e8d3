/*
 * math_body - the kernels of math.h on sixteen lanes, compiled once for each width of
 * register.  A row's tail is a vector whose missing lanes read as zero.
 */
#include "kern/math.h"
#include "kern/x86/lanes_exp.h"
#include <math.h>

/* i goes over [0, n) in steps of 16; m is how many of them are there. */
#define EACH(i, m, n) for (int64_t i = 0, m; i < (n) && (m = (n)-i < 16 ? (n)-i : 16); i += 16)

enum { PARTIALS = 128, VECTORS = PARTIALS / 16, HALF = VECTORS / 2 };

static float fold_sum(struct v16 s[VECTORS])
{
    for (int half = VECTORS / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            s[j] = v_add(s[j], s[j + half]);
    return v_fold_sum(s[0]);
}

/* Half of the partial sums, those that begin at element `at`: as many as registers of 256 bits
 * hold. */
LANES_INLINE void dot_half(const float *a, const float *b, int64_t at, int64_t n,
                           struct v16 s[HALF])
{
    struct v16 t[HALF] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t i = at;
    for (; i + 16 * HALF <= n; i += PARTIALS) {
        LANES_UNROLL
        for (int j = 0; j < HALF; j++)
            t[j] = v_fma(v_load(a + i + 16 * j), v_load(b + i + 16 * j), t[j]);
    }
    LANES_UNROLL
    for (int j = 0; j < HALF; j++) {
        const int64_t m = n - i - 16 * j;
        s[j] = m > 0 ? v_fma(v_load_n(a + i + 16 * j, m), v_load_n(b + i + 16 * j, m), t[j]) : t[j];
    }
}

static float dot(const float *a, const float *b, int64_t n)
{
    struct v16 s[VECTORS];
    dot_half(a, b, 0, n, s);
    dot_half(a, b, 16 * HALF, n, s + HALF);
    return fold_sum(s);
}

static void norm(float *y, const float *x, const float *w, int64_t n, float eps)
{
    struct v16 f = v_set(1.0f / sqrtf(dot(x, x, n) / (float)n + eps));
    EACH(i, m, n)
    {
        struct v16 v = v_mul(v_load_n(x + i, m), f);
        v_store_n(y + i, w ? v_mul(v, v_load_n(w + i, m)) : v, m);
    }
}

static void add(float *y, const float *x, int64_t n)
{
    EACH(i, m, n)
    v_store_n(y + i, v_add(v_load_n(y + i, m), v_load_n(x + i, m)), m);
}

static void add_scaled(float *y, const float *x, float s, int64_t n)
{
    EACH(i, m, n)
    v_store_n(y + i, v_fma(v_load_n(x + i, m), v_set(s), v_load_n(y + i, m)), m);
}

static void scale(float *y, const float *x, float s, int64_t n)
{
    EACH(i, m, n)
    v_store_n(y + i, v_mul(v_load_n(x + i, m), v_set(s)), m);
}

static void mul(float *y, const float *x, int64_t n)
{
    EACH(i, m, n)
    v_store_n(y + i, v_mul(v_load_n(y + i, m), v_load_n(x + i, m)), m);
}

static void glu_gelu(float *y, const float *gate, const float *up, int64_t n)
{
    EACH(i, m, n)
    {
        struct v16 g = v_load_n(gate + i, m);
        struct v16 z = v_mul(g, v_fma(v_mul(g, g), v_set(POLY_GELU_B), v_set(POLY_GELU_A)));
        v_store_n(y + i, v_mul(v_mul(g, v_sigmoid(z)), v_load_n(up + i, m)), m);
    }
}

static void glu_silu(float *y, const float *gate, const float *up, int64_t n)
{
    EACH(i, m, n)
    {
        struct v16 g = v_load_n(gate + i, m);
        v_store_n(y + i, v_mul(v_mul(g, v_sigmoid(g)), v_load_n(up + i, m)), m);
    }
}

static void softcap(float *y, float cap, int64_t n)
{
    EACH(i, m, n)
    v_store_n(y + i, v_mul(v_set(cap), v_tanh(v_div(v_load_n(y + i, m), v_set(cap)))), m);
}

static void sqrt_softplus(float *y, int64_t n)
{
    EACH(i, m, n)
    v_store_n(y + i, v_sqrt(v_log1p_exp(v_load_n(y + i, m))), m);
}

static void rope(float *x, const float *cs, int64_t n_pairs, int64_t half)
{
    EACH(i, m, n_pairs)
    {
        struct v16 c, s, lo = v_load_n(cs + 2 * i, 2 * m > 16 ? 16 : 2 * m);
        struct v16 hi = v_load_n(cs + 2 * i + 16, m > 8 ? 2 * m - 16 : 0);
        v_deal(lo, hi, &c, &s);
        struct v16 a = v_load_n(x + i, m), b = v_load_n(x + i + half, m);
        v_store_n(x + i, v_fnma(b, s, v_mul(a, c)), m);
        v_store_n(x + i + half, v_fma(a, s, v_mul(b, c)), m);
    }
}

static void rope_pairs(float *x, const float *cs, int64_t n_pairs, bool inverse)
{
    const struct v16 sign = v_set(inverse ? -1.0f : 1.0f);
    EACH(i, m, 2 * n_pairs)
    {
        const struct v16 v = v_load_n(x + i, m), r = v_load_n(cs + i, m);
        const struct v16 across = v_mul(v_swapped(v), v_mul(sign, v_odds(r)));
        v_store_n(x + i, v_sub_add(v_mul(v, v_evens(r)), across), m);
    }
}

static void softmax(float *y, const float *x, int64_t n)
{
    struct v16 low = v_set(-INFINITY), top = low, sum[VECTORS];
    for (int j = 0; j < VECTORS; j++)
        sum[j] = v_zero();
    EACH(i, m, n)
    top = v_max(v_choose(v_first(m), v_load_n(x + i, m), low), top);
    top = v_set(v_fold_max(top));
    EACH(i, m, n)
    {
        struct v16 e = v_sub(v_load_n(x + i, m), top);
        v_exp_low(&e, 1); /* lanes that are missing may be larger */
        v_store_n(y + i, e, m);
        struct v16 *s = &sum[i / 16 % VECTORS];
        *s = v_add(*s, v_choose(v_first(m), e, v_zero()));
    }
    struct v16 all = v_set(fold_sum(sum));
    EACH(i, m, n)
    v_store_n(y + i, v_div(v_load_n(y + i, m), all), m);
}

static int64_t find_bad(const float *x, int64_t n)
{
    const struct v16 abs = v_bits(0x7fffffffu), inf = v_set(INFINITY);
    EACH(i, m, n)
    {
        /* not (inf > |x|) also holds for NaN */
        int good = v_mask(v_greater(inf, v_and(v_load_n(x + i, m), abs)));
        if (UNLIKELY(good != 0xffff))
            return i + __builtin_ctz(~(unsigned)good);
    }
    return -1;
}

static int64_t argmax(const float *x, int64_t n)
{
    /* Lane by lane: the largest value and the first group of 16 that has it. */
    struct v16 low = v_set(-INFINITY), top = low, group = v_zero();
    EACH(i, m, n)
    {
        struct v16 v = v_choose(v_first(m), v_load_n(x + i, m), low);
        struct m16 more = v_greater(v, top);
        top = v_choose(more, v, top);
        group = v_choose(more, v_bits((uint32_t)(i / 16)), group);
    }
    float value[16], best = v_fold_max(top);
    uint32_t at[16];
    int64_t first = -1;
    v_store(value, top);
    v_store((float *)(void *)at, group);
    if (best > -INFINITY)
        for (int j = 0; j < 16; j++)
            if (value[j] == best && (first < 0 || (int64_t)at[j] * 16 + j < first))
                first = (int64_t)at[j] * 16 + j;
    for (int64_t i = 0; first < 0 && i < n; i++) /* nothing above -inf */
        if (x[i] == x[i])
            first = i;
    return first;
}

const struct kern_math_table LANES_SET(kern_math) = {
    .norm = norm,
    .add = add,
    .add_scaled = add_scaled,
    .scale = scale,
    .mul = mul,
    .glu_gelu = glu_gelu,
    .glu_silu = glu_silu,
    .softcap = softcap,
    .sqrt_softplus = sqrt_softplus,
    .rope = rope,
    .rope_pairs = rope_pairs,
    .softmax = softmax,
    .dot = dot,
    .find_bad = find_bad,
    .argmax = argmax,
};
