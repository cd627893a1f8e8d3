/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expect - tokens a second with experts on disk, before anything is loaded.
 *
 * The rates of random reads of an expert and of memory are measured; how often an expert is in
 * memory comes from expert_hits().  The range: from misses that are read when they are chosen, with
 * text that changes its topic often, to reads that are all hidden by computing.
 */
#include "engine/engine.h"
#include "engine/plan.h"

#include "base/clock.h"
#include "base/disk.h"
#include "base/mem.h"
#include "base/pool.h"
#include "expert/expert.h"
#include <stdatomic.h>

enum { MEMORY_BYTES = 64 << 20, MEMORY_CHUNK = 1 << 20, ROUNDS = 3, AT_ONCE = 4 };
static const uint64_t disk_ns = 150000000;

struct sweep { const uint64_t *at; _Atomic uint64_t sum; }; /* Sync: sum: atomic */

static void read_chunk(void *arg, int64_t chunk, int worker)
{
    struct sweep *s = arg;
    const uint64_t *at = s->at + (size_t)chunk * (MEMORY_CHUNK / sizeof *at);
    uint64_t sum = 0;
    for (size_t i = 0; i < MEMORY_CHUNK / sizeof *at; i++)
        sum += at[i];
    (void)worker;
    atomic_fetch_add(&s->sum, sum);
}

double engine_memory_rate(struct pool *p, size_t n_bytes)
{
    struct sweep s = {.at = NULL};
    const size_t n_chunks = n_bytes / MEMORY_CHUNK;
    uint8_t *at = mem_big_alloc(n_chunks * MEMORY_CHUNK);
    double best = 0;
    if (!at)
        return 0;
    mem_fill(at, n_chunks * MEMORY_CHUNK);
    s.at = (const uint64_t *)(const void *)at;
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t start = clock_now();
        pool_run(p, (int64_t)n_chunks, read_chunk, &s);
        const double rate =
            (double)(n_chunks * MEMORY_CHUNK) / ((double)(clock_now() - start + 1) * 1e-9);
        best = rate > best ? rate : best;
    }
    mem_big_free(at, n_chunks * MEMORY_CHUNK);
    return best;
}

/* False: they are not to be had. */
static bool measure(const struct ingle_engine *e, uint64_t extent, struct engine_rates *out)
{
    struct disk_rate one, several;
    struct ingle_model *m = e->model;
    pthread_mutex_lock(&m->rates_lock);
    if (!(m->rates.memory > 0) && !disk_measure(m->path, extent, 1, disk_ns, &one, NULL) &&
        !disk_measure(m->path, extent, AT_ONCE, disk_ns, &several, NULL))
        m->rates = (struct engine_rates){one.bytes_per_s,
                                         several.bytes_per_s > one.bytes_per_s ? several.bytes_per_s
                                                                               : one.bytes_per_s,
                                         engine_memory_rate(device_pool(e->device), MEMORY_BYTES)};
    *out = m->rates;
    pthread_mutex_unlock(&m->rates_lock);
    return out->memory > 0;
}

void engine_expect(const struct ingle_engine *e, struct ingle_plan *p)
{
    struct engine_rates rate;
    const size_t n_layers = model_n_experts(e->weights);
    uint64_t token = 0, extent = 0;
    for (size_t i = 0; i < n_layers; i++) {
        const uint64_t bytes = model_experts_at(e->weights, i)->bytes;
        token += bytes * (uint64_t)e->info.n_experts_used;
        extent = bytes > extent ? bytes : extent;
    }
    if (!token || p->expert_memory_bytes >= p->expert_bytes || !measure(e, extent, &rate))
        return;
    p->disk_bytes_per_s = rate.several;
    p->read_bytes_per_s = rate.memory;
    const double share = (double)p->expert_memory_bytes / (double)p->expert_bytes;
    const double compute = (double)(engine_dense_bytes(e) + token) / rate.memory;
    const double worst =
        (1 - expert_hits(share, e->info.n_experts, true)) * (double)token / rate.one;
    const double best =
        (1 - expert_hits(share, e->info.n_experts, false)) * (double)token / rate.several;
    p->tokens_low = 1 / (compute + worst);
    p->tokens_high = 1 / (best > compute ? best : compute);
}

uint64_t engine_dense_bytes(const struct ingle_engine *e)
{
    uint64_t n = 0;
    for (size_t i = 0; i < model_n_experts(e->weights); i++) {
        const struct model_experts *x = model_experts_at(e->weights, i);
        for (int k = 0; k < x->n_parts; k++)
            n += device_matrix_bytes(x->part[k]);
    }
    return model_bytes(e->weights) - n;
}
