/* lanes_exp - exp and friends on sixteen lanes: the steps of math.c, one for one. */
#ifndef INGLE_KERN_X86_LANES_EXP_H
#define INGLE_KERN_X86_LANES_EXP_H

#include "kern/poly.h"
#include "kern/x86/lanes.h"

LANES_INLINE struct v16 v_reduce(struct v16 x, struct v16 *t, struct v16 *n)
{
    *t = v_fma(x, v_set(POLY_LOG2E), v_set(POLY_ROUND));
    *n = v_sub(*t, v_set(POLY_ROUND));
    return v_fma(*n, v_set(-POLY_LN2_LO), v_fma(*n, v_set(-POLY_LN2_HI), x));
}

LANES_INLINE struct v16 v_exp_tail(struct v16 r)
{
    struct v16 p = v_fma(v_set(POLY_E6), r, v_set(POLY_E5));
    p = v_fma(p, r, v_set(POLY_E4));
    p = v_fma(p, r, v_set(POLY_E3));
    return v_fma(p, r, v_set(POLY_E2));
}

LANES_INLINE struct v16 v_exp(struct v16 x)
{
    const struct m16 none = v_greater(v_set(POLY_EXP_MIN), x);
    x = v_min(v_set(POLY_EXP_MAX), x);
    x = v_max(v_set(POLY_EXP_MIN), x);
    struct v16 t, n, r = v_reduce(x, &t, &n);
    struct v16 p = v_fma(v_fma(v_exp_tail(r), r, v_set(1.0f)), r, v_set(1.0f));
    return v_choose(none, v_zero(), v_scale2(p, n, t));
}

/* v_exp() of n vectors, at most EXP_SOME, of what is at most 0 or NaN (of what is larger, any
 * number), step by step side by side: one alone waits for itself. */
#ifdef __AVX512F__
enum { EXP_SOME = 4 };
#else
enum { EXP_SOME = 1 };
#endif
LANES_INLINE void v_exp_low(struct v16 *x, int n)
{
    struct v16 p[EXP_SOME], r[EXP_SOME], t[EXP_SOME], w[EXP_SOME];
    struct m16 some[EXP_SOME];
    LANES_UNROLL
    for (int i = 0; i < n; i++)
        t[i] = v_fma(x[i], v_set(POLY_LOG2E), v_set(POLY_ROUND));
    LANES_UNROLL
    for (int i = 0; i < n; i++)
        w[i] = v_sub(t[i], v_set(POLY_ROUND));
    LANES_UNROLL
    for (int i = 0; i < n; i++) {
        some[i] = v_not_less(x[i], v_set(POLY_EXP_MIN));
        r[i] = v_fma(w[i], v_set(-POLY_LN2_HI), x[i]);
    }
    LANES_UNROLL
    for (int i = 0; i < n; i++)
        r[i] = v_fma(w[i], v_set(-POLY_LN2_LO), r[i]);
    LANES_UNROLL
    for (int i = 0; i < n; i++)
        p[i] = v_fma(v_set(POLY_E6), r[i], v_set(POLY_E5));
    const float step[] = {POLY_E4, POLY_E3, POLY_E2, 1.0f, 1.0f};
    LANES_UNROLL
    for (int k = 0; k < 5; k++) {
        LANES_UNROLL
        for (int i = 0; i < n; i++)
            p[i] = v_fma(p[i], r[i], v_set(step[k]));
    }
    LANES_UNROLL
    for (int i = 0; i < n; i++)
        x[i] = v_scale2_where(some[i], p[i], w[i], t[i]);
}

LANES_INLINE struct v16 v_tanh(struct v16 x)
{
    struct v16 y = v_mul(v_and(x, v_bits(0x7fffffffu)), v_set(2.0f));
    y = v_min(v_set(POLY_EXPM1_MAX), y);
    struct v16 t, n, r = v_reduce(y, &t, &n);
    struct v16 q = v_fma(v_mul(r, r), v_exp_tail(r), r);
    struct v16 s = v_scale2(v_set(1.0f), n, t);
    struct v16 em = v_fma(q, s, v_sub(s, v_set(1.0f)));
    return v_or(v_div(em, v_add(em, v_set(2.0f))), v_and(x, v_bits(0x80000000u)));
}

LANES_INLINE struct v16 v_sigmoid(struct v16 x)
{
    struct v16 e = v_exp(v_or(x, v_bits(0x80000000u))), one = v_set(1.0f);
    return v_div(v_choose(v_greater(v_zero(), x), e, one), v_add(one, e));
}

LANES_INLINE struct v16 v_log1p_exp(struct v16 x)
{
    const struct v16 one = v_set(1.0f), u = v_exp(v_or(x, v_bits(0x80000000u)));
    const struct m16 big = v_greater(u, v_set(0.41421356f));
    struct v16 f = v_choose(big, v_mul(v_sub(u, one), v_set(0.5f)), u);
    struct v16 s = v_div(f, v_add(v_set(2.0f), f)), z = v_mul(s, s);
    struct v16 p = v_fma(v_fma(v_fma(v_set(POLY_L3), z, v_set(POLY_L2)), z, v_set(POLY_L1)), z,
                         v_set(POLY_L0));
    struct v16 l = v_fma(v_mul(s, z), p, v_mul(v_set(2.0f), s));
    l = v_choose(big, v_add(v_add(l, v_set(POLY_LN2_LO)), v_set(POLY_LN2_HI)), l);
    return v_choose(v_greater(x, v_zero()), v_add(x, l), l);
}

#endif
