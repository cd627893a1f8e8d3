/* SPDX-License-Identifier: Apache-2.0 */
/* select - what all kernels of the choice of pages share: shares, the choice, means, and the choice
 * of kernels. */
#include "kern/select.h"

#include "base/cpu.h"
#include "base/num.h"
#include "kern/attend_coded.h"
#include "kern/attend_part.h"
#include "kern/sparse.h"
#include "kern/math.h"
#include <math.h>
#include <string.h>

const char *kern_select_refuses(enum kern_kv_codec k, enum kern_kv_codec v, int64_t k_width,
                              int64_t v_width)
{
    return kern_sparse_refuses(k, v, k_width, v_width); /* the same widths, and heads alone */
}

void kern_select_join(struct kern_select_seen *sum, const struct kern_select_seen *more)
{
    sum->rows += more->rows;
    sum->pairs += more->pairs;
    sum->missed += more->missed;
    sum->checked += more->checked;
    sum->missed_true += more->missed_true;
    sum->pages_read += more->pages_read;
    sum->pages_seen += more->pages_seen;
    sum->bytes_read += more->bytes_read;
    sum->most = more->most > sum->most ? more->most : sum->most;
    sum->most_true = more->most_true > sum->most_true ? more->most_true : sum->most_true;
}

size_t kern_select_bytes(int64_t k_width, int64_t v_width, size_t *mean_at)
{
    size_t mean, n;
    const size_t keys = kern_kv_block_bytes(KERN_KV_N4R, true, k_width);
    if (!keys || v_width < 1 || !num_mul((size_t)v_width, sizeof(float), &mean) ||
        !num_align(mean, 64, &mean) || !num_add(keys, mean, &n))
        return 0;
    *mean_at = keys;
    return n;
}

void kern_select_mean(enum kern_kv_codec v, int64_t v_width, const void *values, float *mean)
{
    float row[KERN_KV_WIDE];
    memset(mean, 0, (size_t)v_width * sizeof *mean);
    for (int64_t j = 0; j < KERN_PAGE; j++) {
        kern_attend_coded_read(v, false, v_width, values, j, row);
        for (int64_t d = 0; d < v_width; d++)
            mean[d] += row[d];
    }
    for (int64_t d = 0; d < v_width; d++)
        mean[d] *= 1.0f / KERN_PAGE;
}

size_t kern_select_scratch(int64_t k_width, int64_t n_heads)
{
    const struct kern_attend a = {.k_codec = KERN_KV_N4R,
                                  .v_codec = KERN_KV_F32,
                                  .k_width = k_width,
                                  .v_width = ATTEND_LANES,
                                  .n_rows = 1,
                                  .n_heads = n_heads};
    return kern_attend_coded_scratch(&a);
}

/* ---- the choice ---- */

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* The largest share among the heads, as bits that are ordered as it is: shares are not negative. */
static void shares(const float *mass, int64_t n_heads, int64_t n_pages, uint64_t *key)
{
    for (int64_t i = 0; i < n_pages; i++)
        key[i] = 0;
    for (int64_t h = 0; h < n_heads; h++, mass += 2 * n_pages) {
        float top = -INFINITY, all = 0.0f;
        for (int64_t i = 0; i < n_pages; i++)
            top = mass[2 * i] > top ? mass[2 * i] : top;
        for (int64_t i = 0; i < n_pages; i++)
            all += mass[2 * i + 1] * kern_exp(mass[2 * i] - top);
        for (int64_t i = 0; i < n_pages; i++) {
            const float s = mass[2 * i + 1] * kern_exp(mass[2 * i] - top) / all;
            const uint32_t u = s < INFINITY ? bits_of(s) : bits_of(INFINITY);
            key[i] = u > key[i] ? u : key[i];
        }
    }
}

/* The n smallest of key [n_keys], which are all different, come first. */
static void smallest_first(uint64_t *key, int64_t n_keys, int64_t n)
{
    int64_t low = 0, high = n_keys - 1;
    while (low < high) {
        const uint64_t pivot = key[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (key[i] < pivot)
                i++;
            while (key[j] > pivot)
                j--;
            if (i <= j) {
                const uint64_t x = key[i];
                key[i++] = key[j];
                key[j--] = x;
            }
        }
        if (n - 1 <= j)
            high = j;
        else if (n - 1 >= i)
            low = i;
        else
            return;
    }
}

void kern_select_choose(const float *mass, int64_t n_heads, int64_t n_pages, const uint8_t *whole,
                        int64_t n, int32_t *chosen, uint64_t *key)
{
    if (n >= n_pages) {
        for (int64_t i = 0; i < n_pages; i++)
            chosen[i] = (int32_t)i;
        return;
    }
    shares(mass, n_heads, n_pages, key);
    /* the largest share is the smallest key; of equal ones the lower index */
    for (int64_t i = 0; i < n_pages; i++)
        key[i] = kern_select_always(i, n_pages) || (whole && whole[i])
                     ? (uint64_t)i
                     : (uint64_t)(UINT32_MAX - (uint32_t)key[i]) << 32 | (uint64_t)i;
    smallest_first(key, n_pages, n);
    enum { WORD = 64 };
    uint64_t *set = key + n_pages; /* ascending by index: a bit each page, in place of a sort */
    memset(set, 0, (size_t)(n_pages / WORD + 1) * sizeof *set);
    for (int64_t i = 0; i < n; i++)
        set[(uint32_t)key[i] / WORD] |= 1ull << (uint32_t)key[i] % WORD;
    for (int64_t i = 0, to = 0; i < n_pages; i++)
        if (set[i / WORD] >> i % WORD & 1)
            chosen[to++] = (int32_t)i;
}

/* ---- kernels ---- */

#define KERN_ATTEND(needs, table)
#define KERN_SELECT(needs, table) extern const struct kern_select_table table;
#include "kern/attend.inc"
#undef KERN_SELECT

void kern_select_table_init(struct kern_select_kernels *t, uint32_t cpu)
{
#define KERN_SELECT(needs, kernels)     \
    if (((needs) & ~cpu) == 0) {      \
        t->table = kernels;           \
        t->name = #kernels;           \
    }
#include "kern/attend.inc"
#undef KERN_SELECT
#undef KERN_ATTEND
}
