/*
 * touch - what a call of a kernel reads and writes, shown to the sanitizer (base/touch.h) before
 * the call: vector kernels are built without one, so that they are compiled once, and kerncheck
 * sees what they do inside of these ranges.  Where a kernel reads only some of a block, this names
 * the block.
 */
#ifndef INGLE_KERN_TOUCH_H
#define INGLE_KERN_TOUCH_H

#include "base/num.h"
#include "base/touch.h"
#include "kern/kern.h"

static inline void kern_touch_in(const float *x, int64_t n)
{
    touch_read(x, (size_t)n * sizeof *x);
}

static inline void kern_touch_out(float *y, int64_t n)
{
    touch_write(y, (size_t)n * sizeof *y);
}

/* y of n floats is computed from x (NULL: from itself). */
static inline void kern_touch(float *y, const float *x, int64_t n)
{
    if (x && x != y)
        kern_touch_in(x, n);
    kern_touch_out(y, n);
}

/* Panels [p0, p1) of a product. */
static inline void kern_touch_matmul(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    const struct kern_matrix *w = m->w;
    const struct kern_act *x = m->x;
    const int64_t c0 = p0 * KERN_PANEL, c1 = num_min(p1 * KERN_PANEL, w->out);
    if (c0 >= c1 || m->n <= 0)
        return;
#ifdef __SANITIZE_ADDRESS__ /* nobody writes weights, and they are many */
    const int64_t b0 = p0 / KERN_BAND * KERN_BAND,
                  b1 = num_min(num_div_up(p1, KERN_BAND) * KERN_BAND, w->n_panels);
    touch_read(w->at + (size_t)b0 * w->panel_bytes, (size_t)(b1 - b0) * w->panel_bytes);
#endif
    for (int64_t i = 0; i < m->n; i++) {
        const int64_t r = m->row ? m->row[i] : i;
        if (x->q)
            touch_read(x->q + (size_t)r * x->row_bytes, x->row_bytes);
        else
            kern_touch_in(x->x + r * x->stride, x->k);
        kern_touch_out(m->y + i * m->y_stride + c0, c1 - c0);
    }
    if (x->tiles)
        touch_read(x->tiles, kern_act_tiles_bytes(x->kind, m->n, x->k));
}

/* Rows [r0, r1) that are quantised, and their tiles. */
static inline void kern_touch_act(const struct kern_act *a, int64_t r0, int64_t r1)
{
    for (int64_t r = r0; r < r1; r++) {
        kern_touch_in(a->x + r * a->stride, a->k);
        touch_write(a->q + (size_t)r * a->row_bytes, kern_act_offset(a->kind, a->k));
    }
}

static inline void kern_touch_tiles(const struct kern_act *a, int64_t r0, int64_t r1)
{
    for (int64_t r = r0; r < r1; r++)
        touch_read(a->q + (size_t)r * a->row_bytes, kern_act_offset(a->kind, a->k));
    const size_t at = r0 ? kern_act_tiles_bytes(a->kind, r0, a->k) : 0;
    touch_write(a->tiles + at, kern_act_tiles_bytes(a->kind, r1, a->k) - at);
}

/* Slots [slot, slot + n) of a block that are written. */
static inline void kern_touch_kv_write(enum kern_kv_codec c, bool key, int64_t width, void *block,
                                       int64_t slot, const float *rows, int64_t n, int64_t stride)
{
    const size_t n_bytes = kern_kv_block_bytes(c, key, width);
    for (int64_t i = 0; i < n; i++)
        kern_touch_in(rows + i * stride, width);
#ifdef __SANITIZE_ADDRESS__
    (void)slot;
    touch_write(block, n_bytes);
#else
/* where a slot stands is the codec's matter: of these bytes one is enough to meet another thread */
    touch_write((uint8_t *)block + n_bytes * (size_t)slot / KERN_PAGE,
                n_bytes * (size_t)n / KERN_PAGE);
#endif
}

/* Keys and values of pages [first, end) that the rows of a see. */
static inline void kern_touch_pages(const struct kern_attend *a, int64_t first, int64_t end)
{
    const size_t k = kern_kv_block_bytes(a->k_codec, true, a->k_width),
                 v = kern_kv_block_bytes(a->v_codec, false, a->v_width);
    int64_t lo = a->window ? num_max(0, a->pos0 - a->window + 1) : 0;
    if (a->first)
        lo = num_max(lo, a->first[0]);
    for (int64_t i = num_max(first, lo / KERN_PAGE);
         i < num_min(end, (num_max(a->pos0 + a->n_rows, a->through) - 1) / KERN_PAGE + 1); i++)
        if (a->page[i]) {
            touch_read(a->page[i] + a->k_at, k);
            touch_read(a->page[i] + a->v_at, v);
        }
}

static inline void kern_touch_queries(const struct kern_attend *a)
{
    for (int64_t i = 0; i < a->n_rows; i++)
        kern_touch_in(a->q + i * a->q_stride, a->n_heads * a->k_width);
}

static inline void kern_touch_results(const struct kern_attend *a)
{
    for (int64_t i = 0; i < a->n_rows; i++)
        kern_touch_out(a->out + i * a->out_stride, a->n_heads * a->v_width);
}

static inline void kern_touch_attend(const struct kern_attend *a, void *scratch)
{
    kern_touch_queries(a);
    kern_touch_pages(a, 0, INT64_MAX);
    kern_touch_results(a);
    touch_write(scratch, kern_attend_scratch(a));
}

static inline void kern_touch_split(const struct kern_attend *a, int64_t split, float *state,
                                    void *scratch)
{
    kern_touch_queries(a);
    kern_touch_pages(a, split * (KERN_SPLIT / KERN_PAGE), (split + 1) * (KERN_SPLIT / KERN_PAGE));
    kern_touch_out(state, a->n_rows * a->n_heads * kern_attend_state(a->v_width));
    touch_write(scratch, kern_attend_scratch(a));
}

static inline void kern_touch_merge(const struct kern_attend *a, int64_t n_splits,
                                    const float *state, void *scratch)
{
    kern_touch_in(state, n_splits * a->n_rows * a->n_heads * kern_attend_state(a->v_width));
    kern_touch_results(a);
    touch_write(scratch, kern_attend_scratch(a));
}

/* Which pages kernels of sparse.h read whole. */
static inline void kern_touch_whole(const struct kern_sparse_task *t)
{
    if (t->whole)
        touch_read(t->whole, (size_t)((t->attend.pos0 + t->attend.n_rows - 1) / KERN_PAGE + 1));
}

/* What kernels of sparse.h write beside the rows. */
static inline void kern_touch_sparse_results(const struct kern_sparse_task *t)
{
    for (int64_t i = 0; i < t->attend.n_rows; i++) {
        kern_touch_out(t->missed + i * t->pair_stride, t->attend.n_heads);
        touch_write(t->kept + i * t->pair_stride, (size_t)t->attend.n_heads * sizeof *t->kept);
    }
    kern_touch_results(&t->attend);
}

static inline void kern_touch_sparse(const struct kern_sparse_task *t, void *scratch)
{
    kern_touch_queries(&t->attend);
    kern_touch_pages(&t->attend, 0, INT64_MAX);
    kern_touch_whole(t);
    kern_touch_sparse_results(t);
    touch_write(scratch, kern_sparse_scratch(&t->attend));
}

static inline void kern_touch_sparse_select(const struct kern_sparse_task *t, float *first,
                                            void *scratch)
{
    kern_touch_queries(&t->attend);
    kern_touch_out(first, t->attend.n_rows * t->attend.n_heads * 2);
    touch_write(scratch, kern_sparse_scratch(&t->attend));
}

static inline void kern_touch_sparse_split(const struct kern_sparse_task *t, int64_t split,
                                        const float *first, float *state, void *scratch)
{
    const struct kern_attend *a = &t->attend;
    kern_touch_queries(a);
    kern_touch_pages(a, split * (KERN_SPLIT / KERN_PAGE), (split + 1) * (KERN_SPLIT / KERN_PAGE));
    kern_touch_in(first, a->n_rows * a->n_heads * 2);
    kern_touch_whole(t);
    kern_touch_out(state, a->n_rows * a->n_heads * kern_sparse_state(a->v_width));
    touch_write(scratch, kern_sparse_scratch(a));
}

static inline void kern_touch_sparse_merge(const struct kern_sparse_task *t, int64_t n_splits,
                                        const float *state, void *scratch)
{
    kern_touch_in(state, n_splits * t->attend.n_rows * t->attend.n_heads *
                             kern_sparse_state(t->attend.v_width));
    kern_touch_sparse_results(t);
    touch_write(scratch, kern_sparse_scratch(&t->attend));
}

static inline void kern_touch_mass(const struct kern_select_task *t, int64_t first, int64_t end,
                                   int64_t n_pages, float *mass, void *scratch)
{
    for (int64_t i = first; i < end; i++)
        touch_read(t->shadow[i] + t->at, kern_kv_block_bytes(KERN_KV_N4R, true, t->k_width));
    kern_touch_in(t->q, t->n_heads * t->k_width);
    for (int64_t h = 0; h < t->n_heads; h++)
        kern_touch_out(mass + (h * n_pages + first) * 2, (end - first) * 2);
    touch_write(scratch, kern_select_scratch(t->k_width, t->n_heads));
}

static inline void kern_touch_rest(const struct kern_select_task *t, const float *mass,
                                   int64_t n_pages, const int32_t *chosen, int64_t n, float *state)
{
    for (int64_t i = 0, j = 0; i < n_pages; i++) {
        if (j < n && chosen[j] == i)
            j++;
        else
            touch_read(t->shadow[i] + t->mean_at, (size_t)t->v_width * sizeof(float));
    }
    kern_touch_in(mass, t->n_heads * n_pages * 2);
    kern_touch_out(state, t->n_heads * kern_attend_state(t->v_width));
}

static inline void kern_touch_row_write(const struct kern_row *f, void *dst, const float *src)
{
    kern_touch_in(src, f->width);
    touch_write(dst, kern_row_bytes(f->codec, f->width, f->tail));
}

static inline void kern_touch_gather(const struct kern_row *f, const void *const *row, int64_t n,
                                     int64_t slot, void *keys, void *values)
{
    const enum kern_kv_codec block = kern_row_block(f->codec);
    for (int64_t i = 0; i < n; i++)
        touch_read(row[i], kern_row_bytes(f->codec, f->width, f->tail));
    for (int key = 0; key < 2; key++) {
        const size_t tile = kern_kv_block_bytes(block, key, f->width) * KERN_ROW_TILE / KERN_PAGE;
        touch_write((uint8_t *)(key ? keys : values) + (size_t)(slot / KERN_ROW_TILE) * tile,
                    key ? tile : tile * (size_t)n / KERN_ROW_TILE);
    }
}

static inline void kern_touch_query4(int64_t width, const float *q, int64_t n_heads, void *out)
{
    kern_touch_in(q, n_heads * width);
    touch_write(out, (size_t)n_heads * kern_query4_bytes(width));
}

static inline void kern_touch_scores(const struct kern_scores *s, float *score, float *scratch)
{
    touch_read(s->keys, (size_t)s->n * kern_row_bytes(s->form.codec, s->form.width, s->form.tail));
    touch_read(s->q, (size_t)s->n_heads * (s->form.codec == KERN_KV_FP4
                                               ? kern_query4_bytes(s->form.width)
                                               : (size_t)s->form.width * sizeof(float)));
    kern_touch_in(s->weight, s->n_heads);
    kern_touch_out(score, s->n);
    kern_touch_out(scratch, kern_latent_scratch(s->form.width));
}

static inline void kern_touch_pool(const float *const *value, const float *const *gate, int64_t n,
                                   int64_t width, float *y, float *top, float *sum)
{
    for (int64_t i = 0; i < n; i++) {
        kern_touch_in(value[i], width);
        kern_touch_in(gate[i], width);
    }
    kern_touch_out(y, width);
    kern_touch_out(top, width);
    kern_touch_out(sum, width);
}

#endif
