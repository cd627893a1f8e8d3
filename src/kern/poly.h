/*
 * poly - the constants of exp, tanh and softplus, shared by scalar and vector code so
 * that both take the same steps.  The operations on them are spelled out once in poly_fn.h;
 * every vector version repeats those, in that order.
 */
#ifndef INGLE_KERN_POLY_H
#define INGLE_KERN_POLY_H

/* x = n ln2 + r, |r| <= ln2/2.  Adding POLY_ROUND rounds to a whole number (half to even)
 * and leaves it in the low bits; LN2_HI has 16 significant bits, so n LN2_HI is exact. */
#define POLY_LOG2E      1.44269504088896341f
#define POLY_ROUND      12582912.0f /* 1.5 * 2^23 */
#define POLY_ROUND_BITS 0x4b400000u
#define POLY_LN2_HI     0.693145751953125f
#define POLY_LN2_LO     1.4286068202862268e-06f

/* e^r = 1 + r + r^2 (E2 + E3 r + E4 r^2 + E5 r^3 + E6 r^4), error below 2e-9. */
#define POLY_E2 0.5f
#define POLY_E3 0.16666576845993977f
#define POLY_E4 0.04166655443768594f
#define POLY_E5 0.008363202971575855f
#define POLY_E6 0.0013926213466332444f

/* Beyond these exp is infinite or zero; tanh of half of the last is 1.  No result is subnormal:
 * a weight of attention that is takes Intel's processors 150 cycles in each product. */
#define POLY_EXP_MAX   89.0f
#define POLY_EXP_MIN   -87.0f
#define POLY_EXPM1_MAX 20.0f

/* ln((1 + s) / (1 - s)) = 2 s + s^3 (L0 + L1 s^2 + L2 s^4 + L3 s^6), s^2 <= 0.0295. */
#define POLY_L0 0.6666666655352537f
#define POLY_L1 0.4000012263369878f
#define POLY_L2 0.2855073084477381f
#define POLY_L3 0.2333291280436864f

/* gelu_tanh(x) = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) = x sigmoid(x (A + B x^2)). */
#define POLY_GELU_A 1.59576912160573071f
#define POLY_GELU_B 0.0713548162726002527f

#endif
