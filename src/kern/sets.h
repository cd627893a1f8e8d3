/*
 * sets - the codes that the lists of products (matmul.inc, many.inc, ahead.inc, fast.inc) have rows
 * for: a new code is a word in each set whose kernels have it.  KERN_SET_S(ROW, ...) gives
 * ROW(code, its name in functions, ...) for each.
 */
#ifndef INGLE_KERN_SETS_H
#define INGLE_KERN_SETS_H

#define KERN_SET_HALVES(X, ...)                                                                    \
    X(F16, f16, __VA_ARGS__) X(BF16, bf16, __VA_ARGS__) X(F8, f8, __VA_ARGS__)
#define KERN_SET_FLOATS(X, ...)                                                                    \
    X(F32, f32, __VA_ARGS__) KERN_SET_HALVES(X, __VA_ARGS__) X(F8S, f8s, __VA_ARGS__)              \
        X(W8, w8, __VA_ARGS__)
#define KERN_SET_BIASED(X, ...)                                                                    \
    X(Q4_0, q4_0, __VA_ARGS__)                                                                     \
    X(Q4_1, q4_1, __VA_ARGS__) X(Q5_0, q5_0, __VA_ARGS__) X(MXFP4, mxfp4, __VA_ARGS__)             \
        X(Q4_K, q4_k, __VA_ARGS__) X(Q5_K, q5_k, __VA_ARGS__) X(Q6_K, q6_k, __VA_ARGS__)           \
            X(Q3_K, q3_k, __VA_ARGS__) X(Q2_K, q2_k, __VA_ARGS__)
#define KERN_SET_SIGNED(X, ...)                                                                    \
    X(Q8_0, q8_0, __VA_ARGS__) X(IQ4_NL, iq4_nl, __VA_ARGS__) X(IQ4_XS, iq4_xs, __VA_ARGS__)
#define KERN_SET_PANELS(X, ...)                                                                    \
    KERN_SET_BIASED(X, __VA_ARGS__) KERN_SET_SIGNED(X, __VA_ARGS__) X(Q5_1, q5_1, __VA_ARGS__)
#define KERN_SET_BYTES(X, ...) KERN_SET_BIASED(X, __VA_ARGS__) X(NVFP4, nvfp4, __VA_ARGS__)
#define KERN_SET_TILES(X, ...) KERN_SET_PANELS(X, __VA_ARGS__) X(TQ2_0, tq2_0, __VA_ARGS__)
#define KERN_SET_WIDE(X, ...) KERN_SET_PANELS(X, __VA_ARGS__) X(NVFP4, nvfp4, __VA_ARGS__)
#define KERN_SET_TERNARY(X, ...)                                                                   \
    X(Q1_0, q1_0, __VA_ARGS__) X(Q2_0, q2_0, __VA_ARGS__) X(TQ2_0, tq2_0, __VA_ARGS__)
#define KERN_SET_PACKED(X, ...) /* all that are packed into panels */                              \
    KERN_SET_WIDE(X, __VA_ARGS__) KERN_SET_TERNARY(X, __VA_ARGS__)
#define KERN_SET_POINTS(X, ...) /* codes that are looked up */                                     \
    X(IQ2_XXS, iq2_xxs, __VA_ARGS__)                                                               \
    X(IQ2_XS, iq2_xs, __VA_ARGS__) X(IQ2_S, iq2_s, __VA_ARGS__) X(IQ3_XXS, iq3_xxs, __VA_ARGS__)   \
        X(IQ3_S, iq3_s, __VA_ARGS__)
#define KERN_SET_STORED(X, ...)                                                                    \
    X(IQ1_S, iq1_s, __VA_ARGS__) X(IQ1_M, iq1_m, __VA_ARGS__) X(TQ1_0, tq1_0, __VA_ARGS__)
#define KERN_SET_QUANTISED(X, ...)                                                                 \
    KERN_SET_PACKED(X, __VA_ARGS__) KERN_SET_POINTS(X, __VA_ARGS__) KERN_SET_STORED(X, __VA_ARGS__)

/* Rows: the kernel `before` code `after`, one for each code; or the same function for all. */
#define KERN_MATMUL_ROW(code, name, needs, after)                                                  \
    KERN_MATMUL(needs, code, kern_matmul_##name##_##after)
#define KERN_MATMUL_SAME(code, name, needs, fn) KERN_MATMUL(needs, code, fn)
#define KERN_MANY_ROW(code, name, needs, after) KERN_MANY(needs, code, kern_matmul_##name##_##after)
#define KERN_AHEAD_ROW(code, name, needs, after)                                                   \
    KERN_AHEAD(needs, code, kern_matmul_##name##_ahead_##after)
#define KERN_FAST_ROW(code, name, needs, recipe, before, after)                                    \
    KERN_FAST(needs, recipe, code, before##name##_##after)

#endif
