/*
 * spread_vnni256 - the kernels of spread256.h: how each code is spread.  Included for AVX-VNNI (VEX form) and for
 * AVX-512 (EVEX form), as vnni256.h is: NAME(x) is the kernel's name.
 */
#include "kern/x86/spread256.h"

#define SPREAD(name, tile, block, type, n_packed) \
    SPREAD_KERNEL(NAME(name), spread_##name, tile, block, type, n_packed)
#define EACH_QUAD(F, ...)                                                                                 \
    F(0, __VA_ARGS__) F(1, __VA_ARGS__) F(2, __VA_ARGS__) F(3, __VA_ARGS__)                               \
    F(4, __VA_ARGS__) F(5, __VA_ARGS__) F(6, __VA_ARGS__) F(7, __VA_ARGS__)

static ATTR_INLINE void put_line(uint8_t *to, __m256i v) { _mm256_store_si256((__m256i *)(void *)to, v); }
static ATTR_INLINE void put_floats(float *to, __m256 a, __m256 b)
{
    _mm256_store_ps(to, a);
    _mm256_store_ps(to + 8, b);
}

/* ---- groups of 32 ---- */

SPREAD_TILES32(tile0_min, SPREAD_WHOLE, SPREAD_START0, true)
SPREAD_TILES32(tile8, SPREAD_WHOLE, SPREAD_START8, false)
SPREAD_TILES32(tile128, SPREAD_WHOLE, SPREAD_START128, false)
SPREAD_TILES32(tile_halves, SPREAD_HALVES, SPREAD_START_HALF, false)

/* The codes; plus 128 - 16; as they stand; looked up in `table`. */
#define QUAD_5_112(g, j) _mm256_add_epi8(quad_5(g, j), bytes(112))
#define QUAD_STORED(g, j) half_line((g) + 64 * (j))
#define QUAD_LISTED(g, j) _mm256_shuffle_epi8(table, quad_4(g, j))
#define PUT32(j, quad)                           \
    put_line(to->w[j], quad(group, j));          \
    put_line(to->w[j] + 32, quad(group + 32, j));
#define D_HALVES put_floats(to->d, halves(scale), halves(scale + 16));
#define DM_HALVES D_HALVES put_floats(to->m, halves(scale + 32), halves(scale + 48));
#define D_E8M0                      \
    __m256 d0, d1;                  \
    halves_e8m0(scale, &d0, &d1);   \
    put_floats(to->d, d0, d1);
#define D_UE4M3                                                            \
    put_floats(to->d, half_ue4m3(scale), half_ue4m3(scale + 8));           \
    put_floats(to->m, half_ue4m3(scale + 16), half_ue4m3(scale + 24));
#define NL4_SETUP const __m256i table = lut(quant_nl4, 128);
#define E2M1_SETUP const __m256i table = lut(quant_e2m1_doubled, 128);
#define SPREAD32(name, bits, n_group, scales, tile, SETUP, quad, D)                                              \
    static void spread_##name(const uint8_t *chunk, int64_t n, void *all)                                        \
    {                                                                                                            \
        struct spread32 *to = all;                                                                               \
        SETUP                                                                                                    \
        for (int64_t g = 0; g < n; chunk += KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n_group, 0))            \
            for (int i = 0; i < (n_group) && g < n; i++, g++, to++) {                                            \
                const uint8_t *group = chunk + KERN_GROUP_BYTES(bits) * i;                                       \
                const uint8_t *scale = chunk + KERN_SCALES_AT(bits, n_group) + i * KERN_SCALE_BYTES(KERN_SCALES_##scales); \
                EACH_QUAD(PUT32, quad)                                                                           \
                D                                                                                                \
            }                                                                                                    \
    }                                                                                                            \
    SPREAD(name, tile, 32, struct spread32,                                                                      \
           SPREAD_K / 32 / (n_group) * KERN_CHUNK_BYTES(bits, KERN_SCALES_##scales, n_group, 0))
SPREAD32(q4_0, 4, 2, D, tile8, , quad_4, D_HALVES)
SPREAD32(q4_1, 4, 1, DM, tile0_min, , quad_4, DM_HALVES)
SPREAD32(q5_0, 5, 2, D, tile128, , QUAD_5_112, D_HALVES)
SPREAD32(q5_1, 5, 1, DM, tile0_min, , quad_5, DM_HALVES)
SPREAD32(q8_0, 8, 2, D, tile128, , QUAD_STORED, D_HALVES)
SPREAD32(iq4_nl, 4, 2, D, tile128, NL4_SETUP, QUAD_LISTED, D_HALVES)
SPREAD32(mxfp4, 4, 4, E, tile128, E2M1_SETUP, QUAD_LISTED, D_E8M0)
SPREAD32(nvfp4, 4, 2, E2, tile_halves, E2M1_SETUP, QUAD_LISTED, D_UE4M3)
