/* SPDX-License-Identifier: Apache-2.0 */
/* attend - attention over pages and over rows of streams (attend.h). */
#include "device/gpu/kernels/attend.h"
#include "device/gpu/kernels/gpu.h"
#include "device/gpu/kernels/number.h"
#include "device/gpu/kernels/rowcode.h"

/* A key or a value: element i is at step i; of q8_0 and fp8 with the scale of its group. */
struct attend_row {
    const void *at;
    const void *scale;
    int step, scale_step;
    int n_bytes; /* fp8: elements that are codes; after them bf16 */
};

/* What a block works on.  from, to: positions of the part that are seen, counted from base. */
struct attend_part {
    int64_t base;
    int from, to;
    int k_width, v_width, k_codec, v_codec;
    float scale;
};

struct attend_span {
    int64_t first, end;
};

/* The positions that a row sees. */
GPU_DEV struct attend_span attend_seen(const struct gpu_place *p)
{
    const int64_t pos = p->span->pos0 + p->i, window = p->span->window;
    struct attend_span s = {0, pos < p->span->through ? p->span->through : pos + 1};
    if (p->span->first)
        s.first = p->span->first[p->i];
    else if (window && pos >= window)
        s.first = pos - window + 1;
    return s;
}

/* The i-th part that is seen; from >= to: there is none. */
GPU_DEV struct attend_part attend_part_of(struct attend_span s, int i)
{
    struct attend_part w = {0, 0, 0, 0, 0, 0, 0, 0.0f};
    w.base = (s.first / ATTEND_POSITIONS + i) * ATTEND_POSITIONS;
    w.from = s.first > w.base ? (int)(s.first - w.base) : 0;
    w.to = s.end < w.base                      ? 0
           : s.end - w.base < ATTEND_POSITIONS ? (int)(s.end - w.base)
                                               : ATTEND_POSITIONS;
    return w;
}

/* The row at `slot` of a block of 128. */
GPU_DEV struct attend_row attend_block_row(const uint8_t *block, int codec, bool key, int width,
                                           int slot)
{
    const int64_t at = key ? attend_key_at(width, slot, 0) : (int64_t)slot * width;
    const int size = codec == KERN_KV_F32 ? 4 : codec == KERN_KV_Q8_0 ? 1 : 2;
    struct attend_row r = {block + at * size, 0, key ? ATTEND_LANES : 1, key ? ATTEND_LANES : 1, 0};
    if (codec == KERN_KV_Q8_0) {
        const int n = width / ATTEND_QUANT;
        r.scale = block + (int64_t)width * KERN_PAGE +
                  2 * (key ? attend_key_at(n, slot, 0) : (int64_t)slot * n);
    }
    return r;
}

/* A row of a stream. */
GPU_DEV struct attend_row attend_whole_row(const uint8_t *from, int width, int tail)
{
    const int n = width - tail;
    struct attend_row r = {from, from + n + 2 * tail, 1, 1, n};
    return r;
}

GPU_DEV const uint8_t *attend_stream_row(const struct gpu_span *span, int64_t at, int every,
                                         int64_t row_bytes, int64_t i)
{
    const int each = KERN_PAGE / every;
    return span->page[i / each] + at + i % each * row_bytes;
}

GPU_DEV float attend_scaled(const struct attend_row *r, int i)
{
    const int8_t *code = (const int8_t *)r->at;
    const uint16_t *scale = (const uint16_t *)r->scale;
    return (float)code[(int64_t)i * r->step] * gpu_half(scale[i / ATTEND_QUANT * r->scale_step]);
}

GPU_DEV float attend_byte(const struct attend_row *r, int i)
{
    const uint8_t *code = (const uint8_t *)r->at, *scale = (const uint8_t *)r->scale;
    if (i < r->n_bytes)
        return number_e4m3(code[i]) * number_e8m0(scale[i / KERN_ROW_GROUP]);
    i = r->n_bytes + 2 * (i - r->n_bytes);
    return number_bf16((uint16_t)(code[i] | code[i + 1] << 8));
}

/* What a row of attend_latent sees: near rows from first on, then far ones. */
struct attend_list {
    int64_t first, n_near, n;
};

GPU_DEV struct attend_list attend_list_of(const struct gpu_place *p, bool far, int far_every,
                                          const int32_t *count)
{
    const int64_t seen = p->span->pos0 + p->i + 1;
    struct attend_list l;
    l.n_near = seen < p->span->window ? seen : p->span->window;
    l.first = seen - l.n_near;
    l.n = l.n_near + (!far ? 0 : count ? *count : seen / far_every);
    return l;
}

#define ATTEND_NAME_(x, n) x##_##n
#define ATTEND_NAME_OF(x, n) ATTEND_NAME_(x, n)
#define ATTEND_NAME(x) ATTEND_NAME_OF(x, ATTEND_HEADS)
#define ATTEND_ENTRY(name, T) GPU_ENTRY(name, T)
#define ATTEND_HEADS 1
#include "device/gpu/kernels/attend_heads.inc"
#undef ATTEND_HEADS
#define ATTEND_HEADS 2
#include "device/gpu/kernels/attend_heads.inc"
#undef ATTEND_HEADS
#define ATTEND_HEADS 4
#include "device/gpu/kernels/attend_heads.inc"
#undef ATTEND_HEADS
#define ATTEND_HEADS 8
#include "device/gpu/kernels/attend_heads.inc"
#undef ATTEND_HEADS

/* ---- the join ---- */

/* Of one dimension. */
struct attend_joined {
    float m, l, v;
};

/* A sum of zero means that nothing was seen. */
GPU_DEV struct attend_joined attend_join(struct attend_joined all, float m, float l, float v)
{
    struct attend_joined r = {m, l, v};
    if (l == 0.0f)
        return all;
    if (all.l == 0.0f)
        return r;
    r.m = m > all.m ? m : all.m;
    const float x = poly_exp(all.m - r.m), y = poly_exp(m - r.m);
    r.l = gpu_fma(l, y, all.l * x);
    r.v = gpu_fma(v, y, all.v * x);
    return r;
}

GPU_ENTRY(attend_merge, struct attend_merge_args)
{
    const int h = gpu_block(0) % a.n_heads, row = gpu_block(0) / a.n_heads;
    const struct gpu_place p = gpu_place_of(a.span, a.row0 + row);
    const int64_t batch_row = p.span->row0 + p.i;
    struct attend_span s;
    if (a.latent) {
        s.first = 0;
        s.end = attend_list_of(&p, a.far_span != 0, a.far_every,
                               a.count ? a.count + batch_row : 0)
                    .n;
    } else {
        s = attend_seen(&p);
    }
    const int64_t first = s.first / ATTEND_POSITIONS;
    const int64_t n = (s.end - 1) / ATTEND_POSITIONS - first + 1;
    const int64_t step = a.v_width + 2, per_split = KERN_SPLIT / ATTEND_POSITIONS;
    const float *state = a.state + ((int64_t)row * a.n_heads + h) * a.n_parts * step;
    float *out = a.out + batch_row * a.out_stride + (int64_t)h * a.v_width;
    const struct attend_joined none = {-NUMBER_INFINITY, 0.0f, 0.0f};
    for (int d = gpu_tid(); d < a.v_width; d += ATTEND_MERGE_THREADS) {
        struct attend_joined all = none, one = none;
        for (int64_t i = 0; i < n; i++) {
            const float *at = state + i * step;
            one = attend_join(one, at[0], at[1], at[2 + d]);
            if ((first + i + 1) % per_split == 0 || i + 1 == n) {
                all = attend_join(all, one.m, one.l, one.v);
                one = none;
            }
        }
        if (a.sink)
            all = attend_join(all, a.sink[h], 1.0f, 0.0f);
        out[d] = all.v / all.l;
    }
}
