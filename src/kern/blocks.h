/*
 * blocks - the lists of codes, the sizes of their chunks (code.h), and prepared activations: what
 * processors and cards share.  C11 that is C++, too.
 */
#ifndef INGLE_KERN_BLOCKS_H
#define INGLE_KERN_BLOCKS_H

#include <assert.h>
#include <stdint.h>

/* name, activations, bits, bias, table, groups in a chunk, scales, one row of them for
 * 2^shift groups. */
#define KERN_CODE_LIST(X)                              \
    X(Q4_0, Q32, 4, 8, NULL, 2, D, 0)                  \
    X(Q4_1, Q32, 4, 0, NULL, 1, DM, 0)                 \
    X(Q5_0, Q32, 5, 16, NULL, 2, D, 0)                 \
    X(Q5_1, Q32, 5, 0, NULL, 1, DM, 0)                 \
    X(Q8_0, Q32, 8, 128, NULL, 2, D, 0)                \
    X(IQ4_NL, Q32, 4, 0, quant_nl4, 2, D, 0)           \
    X(MXFP4, Q32, 4, 0, quant_e2m1_doubled, 4, E, 0)   \
    X(NVFP4, Q32, 4, 0, quant_e2m1_doubled, 2, E2, 0)  \
    X(Q1_0, Q32, 1, 0, kern_code_pm1, 8, D, 2)         \
    X(Q2_0, Q32, 2, 1, NULL, 4, D, 1)                  \
    X(Q2_K, Q256, 2, 0, NULL, 8, SUB16_NIB, 0)         \
    X(Q3_K, Q256, 3, 4, NULL, 8, SUB16, 0)             \
    X(Q4_K, Q256, 4, 0, NULL, 8, SUB8_MIN, 0)          \
    X(Q5_K, Q256, 5, 0, NULL, 8, SUB8_MIN, 0)          \
    X(Q6_K, Q256, 6, 32, NULL, 8, SUB16, 0)            \
    X(IQ4_XS, Q256, 4, 0, quant_nl4, 8, SUB8, 0)       \
    X(TQ2_0, Q256, 2, 1, NULL, 8, NONE, 0)

/* Points: name, factor on the stored d, lines of a group, bytes after them in a chunk. */
#define KERN_POINT_LIST(X)     \
    X(IQ2_XXS, 0.125f, 2, 64)  \
    X(IQ2_XS, 0.125f, 2, 320)  \
    X(IQ2_S, 0.125f, 2, 576)   \
    X(IQ3_XXS, 0.25f, 3, 64)   \
    X(IQ3_S, 1.0f, 3, 448)

/* Stored codes: the same. */
#define KERN_STORED_LIST(X) \
    X(IQ1_S, 0.125f)        \
    X(IQ1_M, 0.125f)        \
    X(TQ1_0, 1.0f)

/* What stands after the codes of a chunk.
 * Q32:  D halves d; DM halves d, m; E bytes (E8M0); E2 bytes (UE4M3) of both halves.
 * Q256: then halves d (and dmin if there are minimums); before them
 *       SUB8, SUB16: signed bytes for groups of 32 or 16; SUB8_MIN: bytes, then minimums;
 *       SUB16_NIB: bytes of sub-scale (low nibble) and minimum; NONE: sub-scale 1. */
enum kern_scales {
    KERN_SCALES_D, KERN_SCALES_DM, KERN_SCALES_E, KERN_SCALES_E2,
    KERN_SCALES_SUB8, KERN_SCALES_SUB16, KERN_SCALES_SUB8_MIN, KERN_SCALES_SUB16_NIB,
    KERN_SCALES_NONE
};

enum {
    KERN_F8_CHUNK = 2112,
    KERN_F8S_CHUNK = 2304,
    KERN_W8_CHUNK = 2176,
    KERN_F8_SCALES = 2048
};
/* Points: bytes of the lines of a group and of a chunk; what is after the lines. */
enum {
#define X(id, factor, n_lines, n_after)                                                            \
    KERN_GROUP_##id = 64 * (n_lines), KERN_TAIL_##id = 16 * KERN_GROUP_##id,                       \
    KERN_CHUNK_##id = KERN_TAIL_##id + (n_after),
    KERN_POINT_LIST(X)
#undef X
};

/* Bytes of the codes of a group; where the scales of a chunk begin. */
#define KERN_GROUP_BYTES(bits) (64 * (bits))
#define KERN_SCALES_AT(bits, n_group) (KERN_GROUP_BYTES(bits) * (n_group))
/* Bytes of one scale row of 16. */
#define KERN_SCALE_BYTES(scales)                                                     \
    ((scales) == KERN_SCALES_D ? 32 : (scales) == KERN_SCALES_DM ? 64                \
     : (scales) == KERN_SCALES_E ? 16 : (scales) == KERN_SCALES_E2 ? 32 : 0)
/* All scales of a chunk. */
#define KERN_SCALES_BYTES(scales, n_group, shift)                                    \
    ((scales) == KERN_SCALES_SUB8 ? 160 : (scales) == KERN_SCALES_SUB16 ? 288        \
     : (scales) == KERN_SCALES_SUB8_MIN ? 320 : (scales) == KERN_SCALES_SUB16_NIB ? 320 \
     : (scales) == KERN_SCALES_NONE ? 32                                             \
     : KERN_SCALE_BYTES(scales) * (((n_group) + (1 << (shift)) - 1) >> (shift)))
#define KERN_CHUNK_BYTES(bits, scales, n_group, shift)                               \
    ((KERN_SCALES_AT(bits, n_group) + KERN_SCALES_BYTES(scales, n_group, shift) + 63) / 64 * 64)

/* The activations of a group, as kernels read them. */
struct kern_act32 {
    int8_t q[32];
    float scale;
    float sum;           /* of q */
    int32_t start8, start128;        /* -8 and -128 times the sum */
    int16_t pairs8[2], pairs16[2];   /* -8 and -16 times the sums of q where k % 4 is in */
                                     /* {0, 1} and in {2, 3} */
    int16_t pairs[2][2]; /* these sums of each half */
};
static_assert(sizeof(struct kern_act32) == 64, "a cache line");

struct kern_act256 {
    int8_t q[256];
    int16_t pairs32[16][2]; /* -32 times the sums of q per 16, k % 4 in {0, 1} and {2, 3} */
    int16_t sum16[16];      /* of q per 16 */
    int16_t sum32[8];
    float scale;
    int32_t start128;       /* -128 times the sum of q */
    uint8_t pad[8];
};
static_assert(sizeof(struct kern_act256) == 384, "whole cache lines");

#endif
