/* self - small helpers of the start-up self-tests: data and comparison. */
#ifndef INGLE_KERN_SELF_H
#define INGLE_KERN_SELF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Fills x with values of mixed size and sign, the same at every start. */
static inline void kern_self_fill(float *x, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        float u = (float)(int32_t)(seed >> 8) * (1.0f / 8388608.0f) - 1.0f;
        x[i] = i % 7 == 3 ? 20.0f * u : i % 7 == 5 ? 0.01f * u : u;
    }
}

/* Bit for bit, but any NaN equals any other. */
static inline bool kern_self_same(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && (a[i] == a[i] || b[i] == b[i]))
            return false;
    return true;
}

#endif
