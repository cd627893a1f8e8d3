/* SPDX-License-Identifier: Apache-2.0 */
/* attend_coded - what all kernels of coded attention share: queries, scratch. */
#include "kern/attend_coded.h"

#include "kern/attend_part.h"
#include "kern/math.h"
#include <math.h>
#include <string.h>

void kern_attend_coded_read(enum kern_kv_codec c, bool key, int64_t width, const void *block,
                            int64_t slot, float *row)
{
    uint16_t norm[KERN_KV_WIDE / KERN_KV_GROUP];
    int8_t code[KERN_KV_WIDE];
    if (!kern_kv_is_coded(c)) {
        kern_kv_read(c, key, width, block, slot, row);
        return;
    }
    kern_kv_codes_read(c, key, width, block, slot, norm, code);
    if (key && kern_kv_is_rot(c))
        kern_kv_decode(kern_kv_code(c), norm, code, width / KERN_KV_PARTS, row);
    else
        kern_kv_decode(c, norm, code, width, row);
}

void kern_attend_rot_key(const struct kern_attend *a, const uint8_t *page, int64_t slot, float *key)
{
    const int64_t width = a->k_width;
    kern_attend_coded_read(a->v_codec, false, width, page + a->v_at, slot, key);
    kern_attend_coded_read(a->k_codec, true, width, page + a->k_at, slot, key);
    kern_kv_turn_back(a->k_codec, key, width);
    for (int64_t i = width / KERN_KV_PARTS; i < width; i++)
        key[kern_kv_rot_dim(width, i)] *= a->from_v->weight[kern_kv_rot_dim(width, i)];
}

void kern_attend_coded_turn(const struct kern_attend *a, const float *q, float *to)
{
    const int64_t width = a->k_width;
    if (to != q)
        memcpy(to, q, (size_t)width * sizeof *to);
    for (int64_t i = width / KERN_KV_PARTS; kern_kv_is_rot(a->k_codec) && i < width; i++)
        to[kern_kv_rot_dim(width, i)] *= a->from_v->weight[kern_kv_rot_dim(width, i)];
    kern_kv_turn(a->k_codec, to, width);
}

void kern_attend_coded_bytes(const struct kern_attend *a, const float *turned, int8_t *x, float *by)
{
    const int64_t part = kern_kv_is_rot(a->k_codec) ? a->k_width / KERN_KV_PARTS : a->k_width;
    for (int64_t at = 0; at < a->k_width; at += part)
        *by++ = kern_attend_coded_query(turned + at, part, x + at) * a->scale;
}

float kern_attend_coded_query(const float *q, int64_t width, int8_t *x)
{
    float top = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < width; i++) {
        const float a = fabsf(q[i]);
        finite &= a < INFINITY;
        top = a > top ? a : top;
    }
    const float a = top / 127.0f;
    for (int64_t i = 0; i < width; i++) {
        const float big = 12582912.0f /* 1.5 * 2^23: half to even */,
                    v = finite && a > 0.0f ? q[i] / a : 0.0f;
        const float r = ((v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v) + big) - big;
        x[i] = (int8_t)(int)r;
    }
    return finite ? a : NAN;
}

void kern_attend_coded_page(const struct kern_from_v *f, int64_t pos, const float *q, int64_t width,
                            float *to)
{
    enum { SOME = 64 };
    float cs[2 * SOME];
    for (int64_t i = 0; i < width; i++) {
        const bool turns = i % f->half < f->n_pairs && i < 2 * f->half;
        to[i] = turns ? q[i] : q[i] * f->weight[i];
    }
    for (int64_t at = 0; at < f->n_pairs; at += SOME) {
        const int64_t n = num_min(SOME, f->n_pairs - at);
        kern_rope_angles(cs, pos, f->inv_freq + at, n);
        for (int64_t i = 0; i < n; i++) {
            const float a = to[at + i], b = to[at + i + f->half], c = cs[2 * i], s = -cs[2 * i + 1];
            to[at + i] = fmaf(-b, s, a * c);
            to[at + i + f->half] = fmaf(a, s, b * c);
        }
    }
}

/* A group of pairs of row and head: of each the query in three forms and three accumulators, scores
 * of a part, codes of a part's weights; then a page of keys or values as f32, or its codes as
 * bytes. */
size_t kern_attend_coded_scratch(const struct kern_attend *a)
{
    size_t pairs, pair, n, page;
    const size_t kw = (size_t)attend_whole(a->k_width), vw = (size_t)attend_whole(a->v_width);
    if (!num_mul((size_t)a->n_rows, (size_t)a->n_heads, &pairs))
        return 0;
    pairs = pairs < ATTEND_GROUP ? (pairs + 7) / 8 * 8 : ATTEND_GROUP;
    if (!num_mul(kw, 3, &pair) || !num_add(pair, 3 * vw, &pair) ||
        !num_add(pair, 2 * ATTEND_PART + 64, &pair) || !num_mul(pair, pairs, &n) ||
        !num_mul((kw > vw ? kw : vw), KERN_PAGE, &page) || !num_add(n, page, &n) ||
        !num_add(n, 4096, &n) || !num_mul(n, sizeof(float), &n))
        return 0;
    return n;
}
