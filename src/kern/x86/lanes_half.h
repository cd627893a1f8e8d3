/* lanes_half - f32 to the 16-bit floats, eight at a time, as quant/ rounds them. */
#ifndef INGLE_KERN_X86_LANES_HALF_H
#define INGLE_KERN_X86_LANES_HALF_H

#include "kern/x86/lanes.h"

LANES_INLINE __m128i lanes_to_f16(__m256 x)
{
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Round half to even on the bits; NaN keeps its upper half and becomes quiet. */
LANES_INLINE __m128i lanes_to_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(_mm256_srli_epi32(r, 16),
                           _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

#endif
