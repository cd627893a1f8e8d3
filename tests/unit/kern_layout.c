/* SPDX-License-Identifier: Apache-2.0 */
/* The packed form of fixed blocks of every type.  Files of packed weights outlive the program
 * that wrote them: when this fails, bump KERN_LAYOUT (src/kern/matmul.h) and write the printed
 * numbers here. */
#include "unit/unit.h"

#include "base/mem.h"
#include "kern/kern.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* five whole panels and a part, a stretch and a part */
enum { ROWS = 83, IN = 1280, KNOWN_LAYOUT = 2 };

static const struct { const char *type; uint64_t hash; } known[] = {
    {"F32", 0x00fcdde7607cc754},
    {"F16", 0xde27ef9af8175ac9},
    {"Q4_0", 0x299ba9c9a07d346d},
    {"Q4_1", 0x1fd6a40aabcdd9b0},
    {"Q5_0", 0x7872e3a5b1c18aba},
    {"Q5_1", 0x742bba946209a9b9},
    {"Q8_0", 0x4b26cbe2474fb593},
    {"Q2_K", 0xcce1ce09dfa5b189},
    {"Q3_K", 0x3928e4932cd7d3d6},
    {"Q4_K", 0xcb53b73e79632c7c},
    {"Q5_K", 0xba827e3b8a45d781},
    {"Q6_K", 0x982dc836914b4fba},
    {"IQ2_XXS", 0x3ca2d8398ffe8f01},
    {"IQ2_XS", 0x6d40b242955777e4},
    {"IQ3_XXS", 0x1914fda9cdac481e},
    {"IQ1_S", 0xabda27343763407d},
    {"IQ4_NL", 0xddf32b92537f4184},
    {"IQ3_S", 0x2e4206325c3f653a},
    {"IQ2_S", 0x91f2119799658431},
    {"IQ4_XS", 0x94e3f261caba5349},
    {"IQ1_M", 0xc40ff745dd0abbbc},
    {"BF16", 0x6fe8bf31c8ee3ef4},
    {"TQ1_0", 0x427a5b6a637f35e3},
    {"TQ2_0", 0x488a07ca29a6c01d},
    {"MXFP4", 0x052670275f26419d},
    {"NVFP4", 0xf7397d84e307a96e},
    {"Q1_0", 0xbb9b9a3a98bad1c7},
    {"Q2_0", 0xf4fbc55cba375ee8},
    {"F8_E4M3", 0x36a471e203011b19},
    {"F8_E4M3_B32", 0x869c6817645cb507},
    {"F8_E4M3_S32", 0xbeb7b60f4b9efb70},
};

static uint64_t packed_hash(uint32_t type)
{
    struct kern_matrix m;
    struct err err;
    uint64_t n, state = type + 1;
    if (kern_matrix_init(&m, type, ROWS, IN, &err) || !quant_bytes(type, IN, ROWS, &n))
        return 0;
    uint8_t *stored = mem_alloc((size_t)n);
    for (uint64_t i = 0; i < n; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        stored[i] = (uint8_t)(state >> 56);
    }
    m.at = mem_big_alloc(kern_matrix_bytes(&m));
    memset(m.at, 0xA5, kern_matrix_bytes(&m)); /* every byte is written */
    kern_pack(&m, 0, m.n_panels, stored);
    const uint64_t h = XXH3_64bits(m.at, kern_matrix_bytes(&m));
    mem_big_free(m.at, kern_matrix_bytes(&m));
    mem_free(stored);
    return h;
}

static void layout_has_not_changed(void **state)
{
    (void)state;
    int n_changed = 0;
    size_t n_known = 0;
    assert_int_equal(KERN_LAYOUT, KNOWN_LAYOUT);
    for (uint32_t type = 0; type < 256; type++) {
        const struct quant_info *q = quant_info(type);
        const uint64_t hash = q && IN % q->n == 0 ? packed_hash(type) : 0;
        if (!hash)
            continue;
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i].type, q->name) != 0)
            i++;
        n_known++;
        if (i < sizeof known / sizeof *known && known[i].hash == hash)
            continue;
        n_changed++;
        printf("    {\"%s\", 0x%016llx},\n", q->name, (unsigned long long)hash);
    }
    assert_int_equal(n_changed, 0);
    assert_int_equal(n_known, sizeof known / sizeof *known);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layout_has_not_changed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
