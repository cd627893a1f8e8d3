/*
 * quant - the block formats of weights, as they stand in files.
 *
 * One file per format family: layout, size asserts, plain decode and encode.  Decoding to
 * f32 is bit-exact for every type (each product fits 24 bits; types with an offset round
 * once), so all decoders of the project agree.  Types carry their GGUF ids; types that only
 * safetensors has are numbered from QUANT_FP8_E4M3.
 */
#ifndef INGLE_QUANT_QUANT_H
#define INGLE_QUANT_QUANT_H

#include "base/err.h"
#include "quant/layout.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum quant_type {
    QUANT_F32 = 0, QUANT_F16 = 1, QUANT_Q4_0 = 2, QUANT_Q4_1 = 3, QUANT_Q5_0 = 6,
    QUANT_Q5_1 = 7, QUANT_Q8_0 = 8, QUANT_Q2_K = 10, QUANT_Q3_K = 11, QUANT_Q4_K = 12,
    QUANT_Q5_K = 13, QUANT_Q6_K = 14, QUANT_IQ2_XXS = 16, QUANT_IQ2_XS = 17,
    QUANT_IQ3_XXS = 18, QUANT_IQ1_S = 19, QUANT_IQ4_NL = 20, QUANT_IQ3_S = 21,
    QUANT_IQ2_S = 22, QUANT_IQ4_XS = 23, QUANT_I8 = 24, QUANT_I16 = 25, QUANT_I32 = 26,
    QUANT_I64 = 27, QUANT_F64 = 28, QUANT_IQ1_M = 29, QUANT_BF16 = 30, QUANT_TQ1_0 = 34,
    QUANT_TQ2_0 = 35, QUANT_MXFP4 = 39, QUANT_NVFP4 = 40, QUANT_Q1_0 = 41, QUANT_Q2_0 = 42,
    QUANT_FP8_E4M3 = 200, /* safetensors only; a companion tensor holds the scales */
    QUANT_E8M0 = 201,
    QUANT_U8 = 202,
    QUANT_BOOL = 203,
    QUANT_FP8_B32 = 204, /* in memory only: FP8 with its scale, struct quant_fp8_b32 */
    QUANT_FP8_S32 = 205, /* the same with a scale that is no power of two, struct quant_fp8_s32 */
};

struct quant_info {
    const char *name;     /* "Q4_K" */
    uint32_t n;           /* elements in a block */
    uint32_t n_bytes;     /* bytes of a block */
    bool quantised;       /* has block scales */
};

/* NULL for an id that is unknown or retired. */
const struct quant_info *quant_info(uint32_t type);

/* Bytes of n_rows rows of n elements.  False when n is no whole number of blocks or the
 * product overflows. */
MUST_CHECK bool quant_bytes(uint32_t type, uint64_t n, uint64_t n_rows, uint64_t *out);

/* src: whole blocks, any alignment; dst: f32 [n].  n is a multiple of the block.  Integer
 * types convert by value. */
void quant_decode(uint32_t type, const void *src, float *dst, size_t n);

/* Round-to-nearest encoders without importance weights (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1,
 * F16, BF16, F32, MXFP4).  False: no encoder for this type. */
MUST_CHECK bool quant_encode(uint32_t type, const float *src, void *dst, size_t n);

/* Encoders that search for the scales of least error; quantised types come in better than from
 * quant_encode().  importance: f32 [n], of each column of the rows, finite and >= 0, or NULL: all
 * the same. src: f32 [n_rows][n], finite; n is a multiple of the block.  cpu: CPU_ bits that may be
 * used (base/cpu.h); every machine writes the same bytes. */
bool quant_can_fit(uint32_t type);
void quant_fit(uint32_t cpu, uint32_t type, const float *src, const float *importance, void *dst,
               size_t n, size_t n_rows);

/* Looks through n_blocks blocks for scales (for plain floats: elements) that are NaN or
 * infinite, or so large that a value could be.  Returns the first bad block, or -1. */
int64_t quant_find_bad(uint32_t type, const void *src, size_t n_blocks);

float quant_f16_to_f32(uint16_t h);
uint16_t quant_f32_to_f16(float f); /* round to nearest even, subnormals, infinities */
float quant_bf16_to_f32(uint16_t b);
uint16_t quant_f32_to_bf16(float f);
float quant_e8m0_to_f32(uint8_t e); /* 2^(e-127), subnormal for 0; 255 is NaN */
float quant_fp8_e4m3_to_f32(uint8_t b);

/* Codebooks, for kernels that run from the stored form. */
extern const int8_t quant_nl4[16];          /* IQ4_NL, IQ4_XS */
extern const int8_t quant_e2m1_doubled[16]; /* MXFP4, NVFP4 */
/* Points of the IQ types: byte j from the lowest is coordinate j (signed for iq1). */
extern const uint64_t quant_book_iq2_xxs[256];
/* The same points as bytes.  Codes: numbers of the levels of the first and of the last half of
 * the coordinates, four of 2 bits each (levels 8, 25, 43) or two of 3 (4, 12 .. 52, 62 for
 * IQ3_XXS, 1, 3 .. 15 for IQ3_S).  Halves, of IQ2_XXS: coordinates {0, 4, 5, 6} take 64 different
 * values together, {1, 2, 3, 7} 63; a point's two numbers among them, and what they stand for. */
extern const uint8_t quant_codes_iq2_xxs[2][256];
extern const uint8_t quant_halves_iq2_xxs[2][256];
extern const uint8_t quant_values_iq2_xxs[8][64]; /* of coordinate i, by the number of its half */
extern const uint64_t quant_book_iq2_xs[512];
extern const uint8_t quant_codes_iq2_xs[2][512];
extern const uint64_t quant_book_iq2_s[1024];
extern const uint8_t quant_codes_iq2_s[2][1024];
extern const uint32_t quant_book_iq3_xxs[256];
extern const uint8_t quant_codes_iq3_xxs[2][256];
extern const uint32_t quant_book_iq3_s[512];
extern const uint8_t quant_codes_iq3_s[2][512];
extern const uint64_t quant_book_iq1[2048]; /* IQ1_S, IQ1_M */

#endif
