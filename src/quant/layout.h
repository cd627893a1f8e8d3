/*
 * layout - the blocks of weights as they stand in files, bit by bit.
 *
 * A block may be at any address (sizes like 34 or 17 do not keep alignment): copy it out
 * or load bytes.  All numbers are little-endian; d, m and dmin are IEEE halves.  Nibble
 * order of the 32-blocks: element j < 16 is the low nibble of byte j, element j + 16 its
 * high nibble.  C11 and C++17.
 */
#ifndef INGLE_QUANT_LAYOUT_H
#define INGLE_QUANT_LAYOUT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "blocks are read in place: a little-endian machine is needed"
#endif

#define QUANT_LAYOUT(name, size)                                                                   \
    static_assert(sizeof(struct name) == (size), #name " is a file format: do not pad")
#define QUANT_FIELD(name, field, at)                                                               \
    static_assert(offsetof(struct name, field) == (at), #name " is a file format: do not reorder")

/* ---- 32 elements ---- */

struct quant_q8_0 { /* d q */
    uint16_t d;
    int8_t q[32];
};
QUANT_LAYOUT(quant_q8_0, 34);
QUANT_FIELD(quant_q8_0, q, 2);

struct quant_q4_0 { /* d (n - 8) */
    uint16_t d;
    uint8_t n[16];
};
QUANT_LAYOUT(quant_q4_0, 18);
QUANT_FIELD(quant_q4_0, n, 2);

struct quant_q4_1 { /* d n + m */
    uint16_t d, m;
    uint8_t n[16];
};
QUANT_LAYOUT(quant_q4_1, 20);
QUANT_FIELD(quant_q4_1, n, 4);

struct quant_q5_0 { /* d (n - 16), n = nibble | bit j of qh << 4 */
    uint16_t d;
    uint8_t qh[4];
    uint8_t n[16];
};
QUANT_LAYOUT(quant_q5_0, 22);
QUANT_FIELD(quant_q5_0, qh, 2);
QUANT_FIELD(quant_q5_0, n, 6);

struct quant_q5_1 { /* d n + m, n as above */
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t n[16];
};
QUANT_LAYOUT(quant_q5_1, 24);
QUANT_FIELD(quant_q5_1, qh, 4);
QUANT_FIELD(quant_q5_1, n, 8);

struct quant_iq4_nl { /* d nl4[n] */
    uint16_t d;
    uint8_t n[16];
};
QUANT_LAYOUT(quant_iq4_nl, 18);
QUANT_FIELD(quant_iq4_nl, n, 2);

struct quant_mxfp4 { /* 2^(e - 128) e2m1_doubled[n] */
    uint8_t e;
    uint8_t n[16];
};
QUANT_LAYOUT(quant_mxfp4, 17);
QUANT_FIELD(quant_mxfp4, n, 1);

/* ---- 64 and 128 elements ---- */

struct quant_nvfp4 { /* 16-group s: ue4m3(sc[s]) / 2 e2m1_doubled[n] */
    uint8_t sc[4];
    uint8_t n[32]; /* group s: bytes 8 s ..; element i: byte i % 8, low for i < 8 */
};
QUANT_LAYOUT(quant_nvfp4, 36);
QUANT_FIELD(quant_nvfp4, n, 4);

struct quant_q2_0 { /* d (c - 1), c: 2 bits, element j at bits 2 (j % 4) of byte j / 4 */
    uint16_t d;
    uint8_t q[16];
};
QUANT_LAYOUT(quant_q2_0, 18);
QUANT_FIELD(quant_q2_0, q, 2);

struct quant_q1_0 { /* bit j ? d : -d, 128 elements */
    uint16_t d;
    uint8_t bits[16];
};
QUANT_LAYOUT(quant_q1_0, 18);
QUANT_FIELD(quant_q1_0, bits, 2);

/* ---- 256 elements: K ----
 * 16-group g = i / 16, 32-group h = i / 32 of element i.  2-bit codes q: byte
 * 32 (i / 128) + i % 32, bits 2 (i % 128 / 32). */

struct quant_q2_k { /* d (sc & 15) q - dmin (sc >> 4) */
    uint8_t sc[16];
    uint8_t q[64];
    uint16_t d, dmin;
};
QUANT_LAYOUT(quant_q2_k, 84);
QUANT_FIELD(quant_q2_k, q, 16);
QUANT_FIELD(quant_q2_k, d, 80);
QUANT_FIELD(quant_q2_k, dmin, 82);

struct quant_q3_k {    /* d (s - 32) (q - (hbit ? 0 : 4)) */
    uint8_t hmask[32]; /* byte i % 32, bit i / 32 */
    uint8_t q[64];
    uint8_t sc[12]; /* sixteen 6-bit s: see quant_q3_k_scales() */
    uint16_t d;
};
QUANT_LAYOUT(quant_q3_k, 110);
QUANT_FIELD(quant_q3_k, q, 32);
QUANT_FIELD(quant_q3_k, sc, 96);
QUANT_FIELD(quant_q3_k, d, 108);

struct quant_q4_k { /* d sc n - dmin m */
    uint16_t d, dmin;
    uint8_t sm[12]; /* eight 6-bit pairs (sc, m): see quant_k_scales() */
    uint8_t n[128]; /* byte 32 (i / 64) + i % 32, low nibble if h is even */
};
QUANT_LAYOUT(quant_q4_k, 144);
QUANT_FIELD(quant_q4_k, sm, 4);
QUANT_FIELD(quant_q4_k, n, 16);

struct quant_q5_k { /* d sc (n | hbit << 4) - dmin m */
    uint16_t d, dmin;
    uint8_t sm[12];
    uint8_t qh[32]; /* byte i % 32, bit i / 32 */
    uint8_t n[128]; /* as q4_k */
};
QUANT_LAYOUT(quant_q5_k, 176);
QUANT_FIELD(quant_q5_k, sm, 4);
QUANT_FIELD(quant_q5_k, qh, 16);
QUANT_FIELD(quant_q5_k, n, 48);

struct quant_q6_k {  /* d sc ((lo | hi << 4) - 32) */
    uint8_t ql[128]; /* r = i % 128: byte 64 (i / 128) + r % 64, low nibble if r < 64 */
    uint8_t qh[64];  /* byte 32 (i / 128) + r % 32, bits 2 (r / 32) */
    int8_t sc[16];
    uint16_t d;
};
QUANT_LAYOUT(quant_q6_k, 210);
QUANT_FIELD(quant_q6_k, qh, 128);
QUANT_FIELD(quant_q6_k, sc, 192);
QUANT_FIELD(quant_q6_k, d, 208);

/* ---- 256 elements: codebooks ----
 * k = i / 8 for books of 8 coordinates, i / 4 for books of 4.  "Signs": 7 bits and their
 * parity as the eighth (quant_sign_byte()). */

struct quant_iq2_xxs { /* d (2 s + 1) / 8 +-book */
    uint16_t d;
    uint16_t q[32]; /* per 32: idx u8[4], then u32: 4 x 7 sign bits, s in the top 4 */
};
QUANT_LAYOUT(quant_iq2_xxs, 66);
QUANT_FIELD(quant_iq2_xxs, q, 2);

struct quant_iq2_xs { /* d (2 s + 1) / 8 +-book */
    uint16_t d;
    uint16_t q[32]; /* 9-bit index, 7 sign bits */
    uint8_t sc[8];  /* s: a nibble per 16 elements */
};
QUANT_LAYOUT(quant_iq2_xs, 74);
QUANT_FIELD(quant_iq2_xs, q, 2);
QUANT_FIELD(quant_iq2_xs, sc, 66);

struct quant_iq2_s { /* d (2 s + 1) / 8 +-book */
    uint16_t d;
    uint8_t idx[32];
    uint8_t sign[32]; /* all 8 signs */
    uint8_t qh[8];    /* index bits 8..9 of k: byte k / 4, bits 2 (k % 4) */
    uint8_t sc[8];    /* s: a nibble per 16 elements */
};
QUANT_LAYOUT(quant_iq2_s, 82);
QUANT_FIELD(quant_iq2_s, sign, 34);
QUANT_FIELD(quant_iq2_s, qh, 66);
QUANT_FIELD(quant_iq2_s, sc, 74);

struct quant_iq3_xxs { /* d (2 s + 1) / 4 +-book */
    uint16_t d;
    uint8_t idx[64];
    uint8_t w[32]; /* per 32: u32 as in iq2_xxs */
};
QUANT_LAYOUT(quant_iq3_xxs, 98);
QUANT_FIELD(quant_iq3_xxs, idx, 2);
QUANT_FIELD(quant_iq3_xxs, w, 66);

struct quant_iq3_s { /* d (2 s + 1) +-book */
    uint16_t d;
    uint8_t idx[64];
    uint8_t qh[8]; /* index bit 8 of k: byte k / 8, bit k % 8 */
    uint8_t sign[32];
    uint8_t sc[4]; /* s: a nibble per 32 elements */
};
QUANT_LAYOUT(quant_iq3_s, 110);
QUANT_FIELD(quant_iq3_s, qh, 66);
QUANT_FIELD(quant_iq3_s, sign, 74);
QUANT_FIELD(quant_iq3_s, sc, 106);

struct quant_iq1_s { /* d (2 s + 1) (book + delta) */
    uint16_t d;
    uint8_t idx[32];
    uint16_t h[8]; /* per 32: 4 x 3 high index bits, s in bits 12..14, bit 15: delta = -1/8 */
};
QUANT_LAYOUT(quant_iq1_s, 50);
QUANT_FIELD(quant_iq1_s, idx, 2);
QUANT_FIELD(quant_iq1_s, h, 34);

struct quant_iq1_m { /* d (2 s + 1) (book + delta) */
    uint8_t idx[32];
    uint8_t qh[16]; /* a nibble per 8: 3 high index bits, bit 3: delta = -1/8 */
    uint16_t sc[4]; /* top nibbles: d, lowest first; below: four 3-bit s of 16 elements */
};
QUANT_LAYOUT(quant_iq1_m, 56);
QUANT_FIELD(quant_iq1_m, qh, 32);
QUANT_FIELD(quant_iq1_m, sc, 48);

struct quant_iq4_xs { /* d (ls - 32) nl4[n] */
    uint16_t d;
    uint16_t sh;    /* ls bits 4..5 of h: bits 2 h */
    uint8_t sl[4];  /* ls bits 0..3: a nibble per 32 */
    uint8_t n[128]; /* 16 bytes per 32, in the nibble order of the 32-blocks */
};
QUANT_LAYOUT(quant_iq4_xs, 136);
QUANT_FIELD(quant_iq4_xs, sh, 2);
QUANT_FIELD(quant_iq4_xs, sl, 4);
QUANT_FIELD(quant_iq4_xs, n, 8);

/* ---- 256 elements: ternary ---- */

struct quant_tq1_0 { /* d (trit - 1), five trits in a byte */
    uint8_t q[48];
    uint8_t qh[4];
    uint16_t d;
};
QUANT_LAYOUT(quant_tq1_0, 54);
QUANT_FIELD(quant_tq1_0, qh, 48);
QUANT_FIELD(quant_tq1_0, d, 52);

struct quant_tq2_0 { /* d (c - 1), c: the 2 bits of q2_k */
    uint8_t q[64];
    uint16_t d;
};
QUANT_LAYOUT(quant_tq2_0, 66);
QUANT_FIELD(quant_tq2_0, d, 64);

/* The eight 6-bit scales and minima of q4_k and q5_k. */
static inline void quant_k_scales(const uint8_t sm[12], uint8_t sc[8], uint8_t m[8])
{
    for (int h = 0; h < 4; h++) {
        sc[h] = sm[h] & 63;
        m[h] = sm[h + 4] & 63;
        sc[h + 4] = (uint8_t)((sm[h + 8] & 15) | (sm[h] >> 6) << 4);
        m[h + 4] = (uint8_t)(sm[h + 8] >> 4 | (sm[h + 4] >> 6) << 4);
    }
}

/* In no file: e4m3 codes that carry the power-of-two scale of their tile, 2^(scale - 127). */
struct quant_fp8_b32 {
    uint8_t scale;
    uint8_t code[32];
};
static_assert(sizeof(struct quant_fp8_b32) == 33, "fp8_b32 has no padding");

/* In no file: e4m3 codes with the scale of their row or block, an f32 of any value. */
struct quant_fp8_s32 {
    uint8_t scale[4];
    uint8_t code[32];
};
static_assert(sizeof(struct quant_fp8_s32) == 36, "fp8_s32 has no padding");

/* The sixteen scales of q3_k, -32..31. */
static inline void quant_q3_k_scales(const uint8_t sc[12], int8_t out[16])
{
    for (int g = 0; g < 16; g++) {
        const int lo = g < 8 ? sc[g] & 15 : sc[g - 8] >> 4;
        const int hi = sc[8 + g % 4] >> 2 * (g / 4) & 3;
        out[g] = (int8_t)((lo | hi << 4) - 32);
    }
}

/* The half that is spread over the top nibbles of iq1_m. */
static inline uint16_t quant_iq1_m_scale(const uint16_t sc[4])
{
    return (uint16_t)(sc[0] >> 12 | (sc[1] >> 12) << 4 | (sc[2] >> 12) << 8 | (sc[3] >> 12) << 12);
}

/* Seven sign bits and the eighth, which makes their number even. */
static inline uint32_t quant_sign_byte(uint32_t seven)
{
    uint32_t p = seven ^ seven >> 4;
    p ^= p >> 2;
    p ^= p >> 1;
    return (seven & 127) | (p & 1) << 7;
}

#endif
