/* SPDX-License-Identifier: Apache-2.0 */
#include "sha256.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint32_t ror(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* The first 32 bits of the fraction of the root (degree 2 or 3) of a prime, by bisection
 * on integers: floor(root(p) * 2^32) mod 2^32. */
static uint32_t root_fraction(uint32_t p, int degree)
{
    uint64_t lo = 0, hi = (uint64_t)32 << 32;
    while (hi - lo > 1) {
        const uint64_t mid = lo + (hi - lo) / 2;
        /* mid^degree <= p * 2^(32 degree), in long double: 64 bits of mantissa decide. */
        const long double x = (long double)mid / 4294967296.0L;
        const long double power = degree == 2 ? x * x : x * x * x;
        if (power <= (long double)p)
            lo = mid;
        else
            hi = mid;
    }
    return (uint32_t)lo;
}

static void make_tables(uint32_t k[64], uint32_t h[8])
{
    int n = 0;
    for (uint32_t p = 2; n < 64; p++) {
        uint32_t d = 2;
        while (d * d <= p && p % d)
            d++;
        if (d * d <= p)
            continue;
        if (n < 8)
            h[n] = root_fraction(p, 2);
        k[n++] = root_fraction(p, 3);
    }
}

static void block(uint32_t h[8], const uint32_t k[64], const unsigned char *at)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)at[4 * i] << 24 | (uint32_t)at[4 * i + 1] << 16 |
               (uint32_t)at[4 * i + 2] << 8 | at[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (ror(w[i - 15], 7) ^ ror(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (ror(w[i - 2], 17) ^ ror(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t t =
            v[7] + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        const uint32_t u =
            (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t;
        v[0] = t + u;
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

void sha256_hex(const void *bytes, size_t n, char *hex, size_t n_hex)
{
    uint32_t k[64], h[8];
    make_tables(k, h);
    const unsigned char *at = bytes;
    size_t left = n;
    for (; left >= 64; left -= 64, at += 64)
        block(h, k, at);
    unsigned char tail[128] = {0};
    if (left)
        memcpy(tail, at, left);
    tail[left] = 0x80;
    const size_t end = left < 56 ? 64 : 128;
    for (size_t i = 0; i < 8; i++)
        tail[end - 1 - i] = (unsigned char)((uint64_t)n * 8 >> 8 * i);
    block(h, k, tail);
    if (end == 128)
        block(h, k, tail + 64);
    for (size_t i = 0; i < n_hex / 2; i++)
        snprintf(hex + 2 * i, 3, "%02x", h[i / 4] >> (24 - 8 * (i % 4)) & 255);
}
