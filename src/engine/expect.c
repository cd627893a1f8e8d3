/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expect - tokens a second with experts on disk, before anything is loaded.
 *
 * The rates of random reads of an expert and of memory are measured; how often an expert is in memory comes from a simulation
 * of routing that was fitted to published traces (docs/measured/experts.md).  The range: from misses that are read when they are chosen, with
 * text that changes its topic often, to reads that are all hidden behind computing.
 */
#include "engine/engine.h"

#include "base/clock.h"
#include "base/disk.h"
#include "base/mem.h"
#include "base/pool.h"
#include <stdatomic.h>

enum { SHARES = 12, MEMORY_BYTES = 64 << 20, MEMORY_CHUNK = 1 << 20, ROUNDS = 3, MANY_EXPERTS = 256, AT_ONCE = 4 };
static const uint64_t disk_ns = 150000000;

/* Hits by the share of experts in memory. */
static const double share_of[SHARES] = {0, .05, .10, .15, .20, .30, .40, .50, .60, .70, .80, 1};
static const double many[SHARES] = {0, .44, .609, .71, .778, .866, .913, .945, .967, .98, .987, 1};
static const double many_varied[SHARES] = {0, .355, .513, .617, .693, .798, .863, .909, .944, .968, .98, 1};
static const double few[SHARES] = {0, .33, .507, .628, .715, .832, .9, .943, .967, .984, .994, 1};
static const double few_varied[SHARES] = {0, .27, .447, .568, .655, .772, .84, .883, .91, .94, .97, 1};

static double hits_at(const double table[SHARES], double share)
{
    for (int i = 1; i < SHARES; i++)
        if (share <= share_of[i])
            return table[i - 1] + (table[i] - table[i - 1]) * (share - share_of[i - 1]) / (share_of[i] - share_of[i - 1]);
    return 1;
}

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

/* Bytes a second of all threads together; 0: not known. */
static double memory_rate(struct pool *p)
{
    struct sweep s = {.at = NULL};
    uint8_t *at = mem_big_alloc(MEMORY_BYTES);
    double best = 0;
    if (!at)
        return 0;
    mem_fill(at, MEMORY_BYTES);
    s.at = (const uint64_t *)(const void *)at;
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t start = clock_now();
        pool_run(p, MEMORY_BYTES / MEMORY_CHUNK, read_chunk, &s);
        const double rate = (double)MEMORY_BYTES / ((double)(clock_now() - start + 1) * 1e-9);
        best = rate > best ? rate : best;
    }
    mem_big_free(at, MEMORY_BYTES);
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
        m->rates = (struct engine_rates){one.bytes_per_s, several.bytes_per_s > one.bytes_per_s ? several.bytes_per_s : one.bytes_per_s,
                                         memory_rate(device_pool(e->device))};
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
    const bool is_many = e->info.n_experts >= MANY_EXPERTS;
    const double compute = (double)(engine_dense_bytes(e) + token) / rate.memory;
    const double worst = (1 - hits_at(is_many ? many_varied : few_varied, share)) * (double)token / rate.one;
    const double best = (1 - hits_at(is_many ? many : few, share)) * (double)token / rate.several;
    p->tokens_low = 1 / (compute + worst);
    p->tokens_high = 1 / (best > compute ? best : compute);
}
