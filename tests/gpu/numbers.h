/*
 * numbers - what the tests of a card's kernels share: numbers of all kinds, a comparison in bits,
 * and launches.
 *
 * Memory that a kernel gets is taken for it alone, so that the address sanitizer sees what it
 * touches beside it.
 */
#ifndef INGLE_TESTS_GPU_NUMBERS_H
#define INGLE_TESTS_GPU_NUMBERS_H

#include "unit/unit.h"

#include "gpu/emu.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t numbers_state = 7;

static inline uint32_t numbers_draw(void)
{
    numbers_state ^= numbers_state << 13;
    numbers_state ^= numbers_state >> 17;
    return numbers_state ^= numbers_state << 5;
}

/* In (-1, 1). */
static inline float numbers_unit(void)
{
    return (float)(int32_t)numbers_draw() * 0x1p-31f;
}

/* Of all kinds: one in `every` is odd; 0: none. */
static inline float numbers_any(uint32_t every)
{
    static const float odd[] = {0.0f,     -0.0f,    INFINITY, -INFINITY, NAN,     1e-40f, -1e-45f,
                                3.4e38f,  -3.4e38f, 0.5f,     65520.0f,  0x1p-91f, 88.9f, -87.1f,
                                0x1p-90f, 1.0f};
    if (every && numbers_draw() % every == 0)
        return odd[numbers_draw() % (sizeof odd / sizeof *odd)];
    return ldexpf(numbers_unit(), (int)(numbers_draw() % 8) - 4);
}

static inline void *numbers_room(size_t n_bytes)
{
    void *p = malloc(n_bytes ? n_bytes : 1);
    assert_non_null(p);
    return p;
}

static inline float *numbers_new(int64_t n, uint32_t every)
{
    float *x = numbers_room((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = numbers_any(every);
    return x;
}

static inline void *numbers_copy(const void *from, size_t n_bytes)
{
    void *p = numbers_room(n_bytes);
    memcpy(p, from, n_bytes);
    return p;
}

static inline uint32_t numbers_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return f != f ? 0x7fc00000u : u; /* a NaN is one value */
}

/* Fails the test at the first difference of n floats. */
static inline void numbers_same(const char *what, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (numbers_bits(got[i]) != numbers_bits(want[i]))
            fail_msg("%s: element %lld is %08x (%g), %08x (%g) is right", what, (long long)i,
                     numbers_bits(got[i]), (double)got[i], numbers_bits(want[i]),
                     (double)want[i]);
}

static inline void numbers_launch(const char *name, struct gpu_grid grid, const void *args,
                                  size_t n_args, int order)
{
    const struct emu_kernel *k = emu_find(name);
    if (!k)
        fail_msg("no kernel '%s'", name);
    else
        emu_launch(k, grid, args, n_args, (enum emu_order)order);
}
#define NUMBERS_LAUNCH(name, grid, args, order) \
    numbers_launch(name, grid, &(args), sizeof(args), order)

#endif
