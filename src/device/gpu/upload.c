/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upload - weights on their way to the card.
 *
 * Two pinned buffers in turns: while the card takes one, the other one is filled or the next matrix
 * is read.  Who waits for a buffer waits for its own copy only.  Without buffers (no pinned memory,
 * or nobody has begun) weights go through the buffer of memory.c.
 */
#include "base/num.h"
#include "device/gpu/card.h"
#include "device/gpu/memory.h"
#include "device/gpu/kernel.h"
#include <string.h>

enum { BUFFER_BYTES = 64 << 20, PIECE = 512 << 10 };

static bool made(struct device_gpu *g, int i, size_t n_bytes)
{
    void *host = NULL;
    if (g->api.host_take(g->api.self, &host, n_bytes) || !host)
        return false;
    g->up.at[i] = host;
    return !g->api.event_make(g->api.self, &g->up.event[i]) && g->up.event[i];
}

static void close_buffers(struct device_gpu *g)
{
    for (int i = 0; i < GPU_BUFFERS; i++) {
        if (g->up.event[i])
            (void)g->api.event_free(g->api.self, g->up.event[i]);
        if (g->up.at[i])
            (void)g->api.host_give(g->api.self, g->up.at[i], g->up.n_bytes);
    }
    g->up = (struct gpu_upload){0};
}

void device_upload_begin(struct device *d, uint64_t largest)
{
    struct device_gpu *g = d->gpu;
    if (!device_card(d) || g->up.at[0] || !largest)
        return;
    g->up.n_bytes = largest < BUFFER_BYTES ? (size_t)(largest + PIECE - 1) / PIECE * PIECE
                                           : BUFFER_BYTES;
    for (int i = 0; i < GPU_BUFFERS; i++)
        if (!made(g, i, g->up.n_bytes)) {
            close_buffers(g);
            return;
        }
}

void device_upload_end(struct device *d)
{
    struct device_gpu *g = d->gpu;
    if (!g || !g->up.at[0])
        return;
    if (!g->lost)
        (void)device_gpu_wait(d);
    close_buffers(g);
}

/* Bytes [at, at + n) of a stack, as if its matrices followed each other. */
struct fill {
    const struct device_matrix *m;
    uint8_t *to;
    size_t at, n;
};

static void fill_piece(void *arg, int64_t chunk, int worker)
{
    const struct fill *f = arg;
    const size_t each = f->m->stack_bytes, first = (size_t)chunk * PIECE,
                 end = first + PIECE < f->n ? first + PIECE : f->n;
    (void)worker;
    for (size_t i = first, n; i < end; i += n) {
        const size_t index = (f->at + i) / each, in = (f->at + i) % each;
        n = each - in < end - i ? each - in : end - i;
        memcpy(f->to + i, device_matrix_at(f->m, (int64_t)index) + in, n);
    }
}

static bool put_buffer(struct device *d, const struct device_matrix *m, size_t at, size_t n)
{
    struct device_gpu *g = d->gpu;
    struct gpu_upload *u = &g->up;
    const int i = u->turn;
    struct fill f = {m, u->at[i], at, n};
    if (u->under_way[i] &&
        !device_gpu_event_wait(d, u->event[i]))
        return false;
    pool_run(d->pool, num_div_up((int64_t)n, PIECE), fill_piece, &f);
    if (!device_gpu_ok(d, g->api.put(g->api.self, g->stream, m->card + at, u->at[i], n), "put") ||
        !device_gpu_ok(d, g->api.event_record(g->api.self, u->event[i], g->stream),
                       "event_record"))
        return false;
    u->under_way[i] = true;
    u->turn = (i + 1) % GPU_BUFFERS;
    return true;
}

bool device_gpu_put_stack(struct device_matrix *m)
{
    struct device *d = m->d;
    const size_t all = m->stack_bytes * (size_t)m->n_stack, most = d->gpu->up.n_bytes;
    if (d->gpu->lost)
        return device_gpu_ok(d, 0, "");
    for (size_t at = 0, n; most && at < all; at += n) {
        n = all - at < most ? all - at : most;
        if (!put_buffer(d, m, at, n))
            return false;
    }
    for (int64_t i = 0; !most && i < m->n_stack; i++)
        if (!device_gpu_put(d, m->card + (size_t)i * m->stack_bytes, device_matrix_at(m, i),
                            m->stack_bytes))
            return false;
    return (!m->scale || device_gpu_put(d, m->card_scale, m->scale,
                                        (size_t)m->n_stack * sizeof *m->scale)) &&
           (most || device_gpu_wait(d));
}
