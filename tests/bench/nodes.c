/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes - what the threads of made-up machines read of real layers: a model, nothing is measured.
 * codes, copied: lines of codes a token that cross from node to node, without and with copies.
 * Latent attention: lines a token and layer that cross, of an indexer's keys, of rows of lists and
 * of the pages that lists are laid out in; a node reads a line once a job.
 *
 * One thread plays all.  Jobs of the device are run by their chunks in the order in which threads
 * of their speeds would take them: their own first, then of their group of 16, of their node, of
 * others.  A kernel that notes what it would read stands for all kernels, and what the device asks
 * of the system for pages says where they lie.  Weights are addresses without memory.
 */
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "device/near.h"
#include "device/ops.h"
#include "kv/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 256, RANGES = 1 << 16, GROUP = 16, TOKENS = 40, ARENA = 512 << 20 };

/* ---- where pages lie ---- */

static struct { uintptr_t from, to; int node; } range[RANGES];
static int n_ranges;

bool __wrap_numa_prefer(void *at, size_t n_bytes, int id);
void __wrap_pool_run(struct pool *p, int64_t n_chunks, pool_fn *fn, void *arg);
void __wrap_pool_run_placed(struct pool *p, const int64_t *from, const int64_t *n, pool_fn *fn,
                            void *arg);

bool __wrap_numa_prefer(void *at, size_t n_bytes, int id)
{
    if (n_ranges == RANGES)
        abort();
    range[n_ranges].from = (uintptr_t)at;
    range[n_ranges].to = (uintptr_t)at + n_bytes;
    range[n_ranges++].node = id - 10;
    return true;
}

static int home_of(uintptr_t at)
{
    static int last;
    if (last < n_ranges && at >= range[last].from && at < range[last].to)
        return range[last].node;
    for (int i = n_ranges; i-- > 0;)
        if (at >= range[i].from && at < range[i].to) {
            last = i;
            return range[i].node;
        }
    return -1;
}

/* ---- threads ---- */

static double base_speed[THREADS], speed[THREADS], clock_of[THREADS];
static uint64_t noise = 1;

static uint64_t random_bits(void)
{
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    return noise >> 33;
}
static int now; /* the thread that is played */
static struct {
    double local, remote, placed, stolen, longest, mean;
    long jobs;
} seen;
static bool stealing;
static int owner; /* the node whose chunk it is */

static struct pool *pool;

/* ---- lines of codes ---- */

/* A thread reads them once a job, and its cache has them then; a node copies them once. */
enum { MET = 1 << 14 };
static struct { long job; uintptr_t at; int who; } met[MET];
static double code_lines; /* that came from another node */

static bool is_new(uintptr_t at, int who)
{
    size_t i = (at / 64 * 31 + (uintptr_t)who * 977) % MET;
    while (met[i].job == seen.jobs + 1 && (met[i].at != at || met[i].who != who))
        i = (i + 1) % MET;
    if (met[i].job == seen.jobs + 1)
        return false;
    met[i].job = seen.jobs + 1;
    met[i].at = at;
    met[i].who = who;
    return true;
}

/* Those of one row are the caller's; hidden ones (without floats) come from all nodes. */
static void note_codes(const struct kern_matmul *m)
{
    const struct kern_act *a = m->x;
    const uintptr_t at = (uintptr_t)a->q;
    const int node = pool_node_of(pool, now), home = home_of(at);
    const double lines = (double)m->n * (double)a->row_bytes / 64,
                 others = a->x ? node > 0 : 1 - 1.0 / pool_nodes(pool);
    if (a->q && is_new(at, home < 0 ? now : THREADS + node))
        code_lines += lines * others;
}

/* Instead of a kernel. */
static void note(const struct kern_matmul *m, int64_t p0, int64_t p1)
{
    enum { PIECE = 64 << 10 };
    const uintptr_t at = (uintptr_t)m->w->at + (uintptr_t)p0 * m->w->panel_bytes;
    const size_t n = (size_t)(p1 - p0) * m->w->panel_bytes;
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t part = n - i < PIECE ? n - i : PIECE;
        const int home = home_of(at + i);
        const bool local = pool_nodes(pool) == 1 || home == pool_node_of(pool, now);
        *(local ? &seen.local : &seen.remote) += (double)part;
        seen.placed += pool_nodes(pool) == 1 || home == owner ? (double)part : 0;
    }
    note_codes(m);
    seen.stolen += stealing ? (double)n : 0;
    clock_of[now] += (double)n / speed[now];
    for (int64_t i = 0; i < m->n; i++)
        memset(m->y + i * m->y_stride + p0 * KERN_PANEL, 0,
               (size_t)(num_min(m->w->out, p1 * KERN_PANEL) - p0 * KERN_PANEL) * sizeof(float));
}

/* Bytes that a thread reads while it waits before it begins the lane of another node (pool_run.c):
 * 1.5 us at 3 GB/s. */
static const double patience = 4500;

/* The lane whose chunk thread w takes next, or -1. */
static int victim(const struct pool *p, int w, const int64_t *left, const bool *begun)
{
    const int node = pool_node_of(p, w), first = pool_node_first(p, node),
              end = pool_node_first(p, node + 1), group = first + (w - first) / GROUP * GROUP;
    const int from[] = {w, group, first, 0};
    const int to[] = {w + 1, (int)num_min(end, group + GROUP), end, pool_size(p)};
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < to[k] - from[k]; i++) {
            const int lane = from[k] + (w - from[k] + i) % (to[k] - from[k]);
            if (left[lane] && (k < 3 || begun[lane] || clock_of[w] >= patience))
                return lane;
        }
    return -1;
}

void __wrap_pool_run_placed(struct pool *p, const int64_t *from, const int64_t *n, pool_fn *fn,
                            void *arg)
{
    int64_t next[THREADS], left[THREADS], all = 0;
    bool begun[THREADS] = {false};
    double total = 0, most = 0;
    for (int w = 0; w < pool_size(p); w++) /* no two threads are equal */
        speed[w] = base_speed[w] * (1 + (double)(random_bits() % 1000) / 30000);
    for (int k = 0; k < pool_nodes(p); k++) {
        const int first = pool_node_first(p, k), end = pool_node_first(p, k + 1);
        double sum = 0, before = 0;
        for (int w = first; w < end; w++)
            sum += base_speed[w];
        for (int w = first; w < end; w++) { /* parts by speed */
            next[w] = from[k] + (int64_t)((double)n[k] * before / sum + 0.5);
            before += base_speed[w];
            left[w] = from[k] + (int64_t)((double)n[k] * before / sum + 0.5) - next[w];
            clock_of[w] = 0;
        }
        all += n[k];
    }
    pool = p;
    for (int64_t done = 0; done < all;) {
        now = 0;
        for (int w = 1; w < pool_size(p); w++)
            now = clock_of[w] < clock_of[now] ? w : now;
        const int lane = victim(p, now, left, begun);
        const double before = clock_of[now];
        if (lane < 0) {
            clock_of[now] = patience;
            continue;
        }
        stealing = lane != now;
        owner = pool_node_of(p, lane);
        left[lane]--;
        begun[lane] = true;
        /* a thief takes from the end */
        fn(arg, stealing ? next[lane] + left[lane] : next[lane]++, now);
        clock_of[now] += clock_of[now] <= before ? 1 : 0;
        total += (clock_of[now] - before) * speed[now];
        most = clock_of[now] > most ? clock_of[now] : most;
        done++;
    }
    double all_speed = 0;
    for (int w = 0; w < pool_size(p); w++)
        all_speed += speed[w];
    seen.longest += most;
    seen.mean += total / all_speed;
    seen.jobs++;
}

void __wrap_pool_run(struct pool *p, int64_t n_chunks, pool_fn *fn, void *arg)
{
    int64_t from[CPU_NODES_MAX], n[CPU_NODES_MAX];
    for (int k = 0; k < pool_nodes(p); k++) {
        from[k] = n_chunks * pool_node_first(p, k) / pool_size(p);
        n[k] = n_chunks * pool_node_first(p, k + 1) / pool_size(p) - from[k];
    }
    __wrap_pool_run_placed(p, from, n, fn, arg);
}

/* ---- machines ---- */

struct machine { const char *name; int n_nodes, threads, slow; };

static struct device *open_device(const struct machine *m)
{
    static struct cpu_place cpu[THREADS];
    struct cpu_topology t = {.cpu = cpu, .n_packages = 1, .n_nodes = m->n_nodes};
    t.n_cpus = t.n_cores = m->n_nodes * m->threads;
    for (int i = 0; i < t.n_cpus; i++) {
        const int node = i / m->threads;
        cpu[i] = (struct cpu_place){4000 + i, 4000 + i, 0, node, i >= t.n_cpus - m->slow, -1};
        t.node_id[node] = 10 + node;
        base_speed[i] = cpu[i].slow ? 0.5 : 1;
    }
    const struct device_options o = {
        .n_threads = t.n_cpus, .pin = true, .cpu = UINT32_MAX, .topology = &t};
    struct device *d;
    struct err e;
    if (device_create(&d, &o, &e) || device_arena_reserve(d, ARENA, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    for (int i = 0; i < KERN_CODES; i++) {
        d->kern.matmul.run[i] = note;
        d->kern.matmul.many[i] = d->kern.matmul.ahead[i] = NULL;
        d->kern.matmul.many_from[i] = INT64_MAX;
    }
    d->quiet_small_work = DEVICE_SMALL_WORK;
    return d;
}

/* ---- layers ---- */

struct shape { int64_t out, in; uint32_t type; };
struct layer {
    const char *name;
    struct shape dense[12];
    int64_t n_experts, used, width, hidden, shared;
    bool merged;
    uint32_t type, shared_type;
};

static const struct layer layers[] = {
    {"V4 Flash MXFP4",
     {{1024, 4096, QUANT_Q8_0},
      {512, 4096, QUANT_Q8_0},
      {32768, 1024, QUANT_Q8_0},
      {8192, 4096, QUANT_Q8_0},
      {4096, 8192, QUANT_Q8_0},
      {1024, 4096, QUANT_Q8_0},
      {1024, 4096, QUANT_Q8_0},
      {8192, 1024, QUANT_Q8_0}},
     256, 6, 4096, 2048, 2048, false, QUANT_MXFP4, QUANT_Q8_0},
    {"26B-A4B Q4_0",
     {{4096, 2816, QUANT_Q4_0},
      {2048, 2816, QUANT_Q4_0},
      {2048, 2816, QUANT_Q4_0},
      {2816, 4096, QUANT_Q4_0}},
     128, 8, 2816, 704, 2112, true, QUANT_Q4_0, QUANT_Q4_0},
    {"31B Q4_0",
     {{8192, 5376, QUANT_Q4_0},
      {4096, 5376, QUANT_Q4_0},
      {4096, 5376, QUANT_Q4_0},
      {5376, 8192, QUANT_Q4_0}},
     0, 0, 5376, 0, 21504, false, 0, QUANT_Q4_0},
};

static struct device_matrix *matrix(struct device *d, uint32_t type, int64_t out, int64_t in,
                                    int64_t n)
{
    struct device_matrix *m;
    struct err e;
    if (device_matrix_create(&m, d, type, out, in, n, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    return m;
}

/* Addresses, by the size of huge pages. */
static uint8_t *addresses(size_t n_bytes)
{
    uint8_t *at = mem_big_reserve(n_bytes);
    if (!at)
        exit(1);
    return at;
}

enum { LAYERS = 8, DENSE = 12, OTHERS = DENSE + 3 };

struct net {
    struct device_matrix *dense[DENSE], *part[3], *shared[3];
    int n_dense, n_parts;
};

/* The matrices of all layers that are no experts, as a model has them in memory. */
static void place(struct device_matrix *const *m, size_t n, bool divided)
{
    size_t all = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        all += (size_t)device_matrix_bytes(m[i]);
    uint8_t *base = addresses(all);
    for (size_t i = 0; i < n; i++) {
        device_matrix_place(m[i], base + at, 0);
        at += (size_t)device_matrix_bytes(m[i]);
    }
    if (!divided || !device_matrix_divide_run(m, n, base, all))
        for (size_t i = 0; i < n; i++)
            device_matrix_spread(m[i]);
}

static void open_experts(struct net *t, struct device *d, const struct layer *l, bool divided)
{
    size_t one = 0, at[3];
    t->n_parts = l->merged ? 2 : 3;
    if (!l->n_experts)
        return;
    for (int k = 0; k < t->n_parts; k++) {
        const bool last = k == t->n_parts - 1;
        t->part[k] = matrix(d, l->type, last ? l->width : (l->merged ? 2 : 1) * l->hidden,
                            last ? l->hidden : l->width, l->n_experts);
        at[k] = one;
        one += (size_t)device_matrix_bytes(t->part[k]) / (size_t)l->n_experts;
    }
    uint8_t *base = addresses(one * (size_t)l->n_experts);
    for (int k = 0; k < t->n_parts; k++)
        device_matrix_place(t->part[k], base + at[k], one);
    if (divided && device_matrix_divide(t->part, t->n_parts, base, one * (size_t)l->n_experts))
        device_matrix_spread(t->part[0]);
    else
        for (int k = 0; k < t->n_parts; k++)
            device_matrix_spread(t->part[k]);
}

static void open_net(struct net t[LAYERS], struct device *d, const struct layer *l, bool divided)
{
    static struct device_matrix *all[LAYERS * OTHERS];
    size_t n = 0;
    memset(t, 0, LAYERS * sizeof *t);
    for (int i = 0; i < LAYERS; i++) {
        for (const struct shape *s = l->dense; s->out; s++)
            all[n++] = t[i].dense[t[i].n_dense++] = matrix(d, s->type, s->out, s->in, 1);
        for (int k = 0; k < 3; k++)
            all[n++] = t[i].shared[k] = matrix(d, l->shared_type, k < 2 ? l->shared : l->width,
                                               k < 2 ? l->width : l->shared, 1);
        open_experts(&t[i], d, l, divided);
    }
    place(all, n, divided);
}

static void close_net(struct net t[LAYERS])
{
    for (int i = 0; i < LAYERS; i++) {
        for (int k = 0; k < t[i].n_dense; k++)
            device_matrix_free(t[i].dense[k]);
        for (int k = 0; k < 3; k++) {
            device_matrix_free(t[i].part[k]);
            device_matrix_free(t[i].shared[k]);
        }
    }
}

static float x[1 << 16], y[1 << 20];

/* A token's layer; mixture: of it nothing else. */
static void run_layer(struct device *d, const struct net *t, const struct layer *l, bool mixture)
{
    static int32_t first[257], row[16];
    uint8_t chosen[256] = {0};
    device_begin(d, NULL);
    for (int i = 0; i < t->n_dense && !mixture; i++) {
        const struct device_product p = {
            t->dense[i], 0, {x, 1, l->dense[i].in, l->dense[i].in},
            {y, 1, l->dense[i].out, l->dense[i].out}, NULL};
        device_matmul(d, &p, 1);
    }
    const struct rows in = {x, 1, l->width, l->width}, out = {y, 1, l->width, l->width};
    const struct device_mlp shared = {
        .gate = t->shared[0], .up = t->shared[1], .down = t->shared[2], .act = DEVICE_SILU};
    const struct device_mlp_call beside = {&shared, in, out};
    if (!l->n_experts) {
        device_mlp(d, &shared, in, out);
        return;
    }
    for (int64_t i = 0; i < l->used;) {
        const uint64_t e = random_bits() % (uint64_t)l->n_experts;
        i += !chosen[e];
        chosen[e] = 1;
    }
    for (int64_t e = 0; e < l->n_experts; e++)
        first[e + 1] = first[e] + chosen[e];
    const struct device_mlp m = {.gate = t->part[0],
                                 .up = l->merged ? NULL : t->part[1],
                                 .down = t->part[t->n_parts - 1],
                                 .act = DEVICE_SILU,
                                 .first = first,
                                 .row = row};
    const struct device_mlp_call experts = {
        &m, in, {y + l->width, l->used, l->width, l->width}};
    if (mixture)
        device_mlp(d, &m, in, experts.y);
    else
        device_mlp_both(d, &experts, &beside);
}

static void play(const struct machine *m, const struct layer *l, bool divided, bool mixture,
                 bool copies)
{
    struct device *d = open_device(m);
    static struct net t[LAYERS];
    struct err e;
    n_ranges = 0;
    pool = device_pool(d);
    open_net(t, d, l, divided);
    if (copies)
        device_near_want(d, 1 << 20);
    if (device_near_reserve(d, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    memset(&seen, 0, sizeof seen);
    memset(met, 0, sizeof met);
    code_lines = 0;
    noise = 1;
    for (int i = 0; i < TOKENS; i++)
        run_layer(d, &t[i % LAYERS], l, mixture);
    if (device_status(d, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    close_net(t);
    device_free(d);
}

static void show(const struct machine *m, const struct layer *l, bool divided, bool mixture)
{
    play(m, l, divided, mixture, false);
    const double without = code_lines / TOKENS;
    play(m, l, divided, mixture, true);
    const double bytes = seen.local + seen.remote;
    printf("%-15s %-15s %-8s %-7s %8.1f %7.1f %8.1f %9.2f %8.1f %8.1f %8.0f %8.0f\n", m->name,
           l->name, mixture ? "mixture" : "layer", divided ? "rows" : "whole",
           100 * seen.placed / bytes, 100 * seen.local / bytes, 100 * seen.stolen / bytes,
           seen.longest / seen.mean, (double)seen.jobs / TOKENS, bytes / TOKENS / (1 << 20),
           without, code_lines / TOKENS);
}

/* ---- attention ---- */

enum { KV_HEADS_OF = 4, Q_HEADS = 32, HEAD_WIDTH = 512, MOST_PAGES = 1024 };

/* Keys and values that a split would read; pages of all nodes in turn are local by their number. */
static void note_split(const struct kern_attend *a, int64_t split, float *state, void *scratch)
{
    enum { EACH = KERN_SPLIT / KERN_PAGE };
    const size_t n_bytes = 2 * kern_kv_block_bytes(a->k_codec, true, a->k_width);
    const int64_t all = (a->pos0 + a->n_rows - 1) / KERN_PAGE + 1;
    (void)state, (void)scratch;
    for (int64_t p = split * EACH; p < num_min(all, (split + 1) * EACH); p++) {
        const int home = home_of((uintptr_t)a->page[p] + a->k_at);
        const double n = pool_nodes(pool),
                     local = home < 0 ? 1 / n : home == pool_node_of(pool, now);
        seen.local += local * (double)n_bytes;
        seen.remote += (1 - local) * (double)n_bytes;
        seen.placed += (home < 0 ? 1 / n : home == owner) * (double)n_bytes;
        seen.stolen += stealing ? (double)n_bytes : 0;
        clock_of[now] += (double)n_bytes / speed[now];
    }
}

static void note_merge(const struct kern_attend *a, int64_t n_splits, const float *state,
                       void *scratch)
{
    (void)a, (void)n_splits, (void)state, (void)scratch;
}

/* A row's attention in a layer of 31B's that sees everything, with pages that a pool gives. */
static void show_attention(const struct machine *m, int64_t context, bool by_split)
{
    static uint8_t *page[MOST_PAGES];
    static struct kv_page *taken[MOST_PAGES];
    struct kv_stream heads = {.kind = KV_HEADS, .n_heads = KV_HEADS_OF, .k_width = HEAD_WIDTH,
                              .v_width = HEAD_WIDTH, .k_codec = KERN_KV_F16,
                              .v_codec = KERN_KV_F16, .every = 1};
    struct kv_spec spec = {.n_groups = 1, .n_streams = 1, .stream = &heads};
    struct kv_pool *pages;
    struct device *d = open_device(m);
    struct err e;
    const size_t block = kern_kv_block_bytes(KERN_KV_F16, true, HEAD_WIDTH);
    const int64_t n = num_div_up(context, KERN_PAGE);
    d->kern.attend.exact.split = note_split;
    d->kern.attend.exact.merge = note_merge;
    pool = device_pool(d);
    n_ranges = 0;
    spec.group[0].page_bytes = KV_HEADS_OF * 2 * block;
    if (n > MOST_PAGES ||
        kv_pool_create(&pages, &spec, (uint64_t)MOST_PAGES * spec.group[0].page_bytes, NULL, &e))
        exit(1);
    kv_pool_memory(pages, device_nodes(d), by_split, false);
    for (int64_t i = 0; i < n; i++) {
        taken[i] = kv_page_take_at(pages, 0, i);
        page[i] = taken[i]->at;
    }
    const struct device_kv kv = {.k_codec = KERN_KV_F16, .v_codec = KERN_KV_F16,
                                 .n_heads = KV_HEADS_OF, .k_width = HEAD_WIDTH,
                                 .v_width = HEAD_WIDTH, .head_bytes = 2 * block, .v_at = block};
    const struct device_span span = {.n = 1, .pos0 = context - 1, .page = page};
    memset(&seen, 0, sizeof seen);
    for (int i = 0; i < TOKENS; i++) {
        const int64_t width = Q_HEADS * HEAD_WIDTH;
        device_begin(d, NULL);
        device_attend(d, &kv, &span, 1, (struct rows){x, 1, width, width}, Q_HEADS,
                      (struct rows){y, 1, width, width}, 0, 1);
    }
    if (device_status(d, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    const double bytes = seen.local + seen.remote;
    printf("%-15s %-15s %-8lld %-7s %8.1f %7.1f %8.1f %9.2f %8.1f %8.1f\n", m->name,
           "31B attention", (long long)context, by_split ? "splits" : "turns",
           100 * seen.placed / bytes, 100 * seen.local / bytes, 100 * seen.stolen / bytes,
           seen.longest / seen.mean, (double)seen.jobs / TOKENS, bytes / TOKENS / (1 << 20));
    for (int64_t i = 0; i < n; i++)
        kv_page_unref(pages, taken[i]);
    kv_pool_free(pages);
    device_free(d);
}

/* ---- latent attention ---- */

enum { LATENT_WIDTH = 512, LATENT_TAIL = 64, LATENT_HEADS = 64, KEY_WIDTH = 128, TOP_K = 512,
       CSA_LAYERS = 21, HCA_LAYERS = 20, WINDOW = 128 };
static struct { double keys, lists; } crossed;

/* Lines of n_bytes that come from, or go to, another node. */
static double lines_across(uintptr_t at, size_t n_bytes)
{
    const double lines = (double)n_bytes / 64;
    const int home = home_of(at);
    return home < 0 ? lines * (1 - 1.0 / pool_nodes(pool))
                    : home == pool_node_of(pool, now) ? 0 : lines;
}

static void note_gather(const struct kern_row *f, const void *const *row, int64_t n, int64_t slot,
                        void *keys, void *values)
{
    const size_t block = kern_kv_block_bytes(KERN_KV_BF16, true, LATENT_WIDTH) / KERN_PAGE;
    for (int64_t i = 0; i < n; i++)
        crossed.lists +=
            lines_across((uintptr_t)row[i], kern_row_bytes(f->codec, f->width, f->tail));
    crossed.lists += lines_across((uintptr_t)keys + (size_t)slot * block, (size_t)n * block) +
                     lines_across((uintptr_t)values + (size_t)slot * block, (size_t)n * block);
    clock_of[now] += (double)n * 2 * (double)block / speed[now];
}

static void note_rows(const struct kern_attend *a, void *scratch)
{
    const size_t page = 2 * kern_kv_block_bytes(KERN_KV_BF16, true, LATENT_WIDTH);
    (void)scratch;
    for (int64_t p = 0; p <= a->pos0 / KERN_PAGE; p++) {
        const int64_t n = num_min(KERN_PAGE, a->pos0 + 1 - p * KERN_PAGE);
        const uintptr_t at = (uintptr_t)a->page[p];
        if (is_new(at, THREADS + pool_node_of(pool, now)))
            crossed.lists += lines_across(at, page / KERN_PAGE * (size_t)n);
        clock_of[now] += (double)(n * a->n_heads) * LATENT_WIDTH / speed[now];
    }
}

static void note_scores(const struct kern_scores *s, float *score, float *scratch)
{
    const size_t n_bytes = (size_t)s->n * kern_row_bytes(s->form.codec, s->form.width, 0);
    (void)scratch;
    crossed.keys += lines_across((uintptr_t)s->keys, n_bytes);
    clock_of[now] += (double)n_bytes / speed[now];
    for (int64_t i = 0; i < s->n; i++)
        score[i] = (float)random_bits();
}

/* A row's attention in a layer of V4, whose pages have the rows of all layers; placed: by node. */
static void show_latent(const struct machine *m, int64_t context, bool placed)
{
    static uint8_t *page[MOST_PAGES], *window[MOST_PAGES], rows[KERN_PAGE * 1024];
    static struct kv_page *taken[MOST_PAGES];
    static int32_t sel[TOP_K], count[1];
    const size_t row = kern_row_bytes(KERN_KV_FP8, LATENT_WIDTH, LATENT_TAIL),
                 key = kern_row_bytes(KERN_KV_FP4, KEY_WIDTH, 0), each = 32 * (row + key);
    struct kv_spec spec = {.n_groups = 1};
    struct kv_pool *pages;
    struct device *d = open_device(m);
    struct err e;
    const int64_t n = num_div_up(context, KERN_PAGE), width = LATENT_HEADS * LATENT_WIDTH;
    d->kern.attend.exact.rows = note_rows;
    d->kern.latent.gather = note_gather;
    d->kern.latent.scores = note_scores;
    pool = device_pool(d);
    n_ranges = 0;
    if (placed)
        device_near_want(d, 4 << 20);
    spec.group[0].page_bytes = CSA_LAYERS * each + HCA_LAYERS * row;
    if (n > MOST_PAGES || device_near_reserve(d, &e) ||
        kv_pool_create(&pages, &spec, 2 * MOST_PAGES * spec.group[0].page_bytes, NULL, &e))
        exit(1);
    kv_pool_memory(pages, device_nodes(d), placed, false);
    for (int64_t i = 0; i < n; i++) {
        taken[i] = kv_page_take_at(pages, 0, i);
        page[i] = taken[i]->at;
        window[i] = rows; /* somewhere */
    }
    const size_t at = CSA_LAYERS / 2 * each;
    const struct device_select s = {
        {KERN_KV_FP4, KEY_WIDTH, 0, 4, at + 32 * row}, LATENT_HEADS, TOP_K};
    const struct device_latent a = {.near = {KERN_KV_FP8, LATENT_WIDTH, LATENT_TAIL, 1, 0},
                                    .far = {KERN_KV_FP8, LATENT_WIDTH, LATENT_TAIL, 4, at},
                                    .window = WINDOW, .sel = sel, .count = count, .top_k = TOP_K};
    const struct device_span far = {.n = 1, .pos0 = context - 1, .page = page},
                             near = {.n = 1, .pos0 = context - 1, .page = window};
    crossed.keys = crossed.lists = 0;
    seen.jobs = 0;
    memset(met, 0, sizeof met);
    for (int i = 0; i < TOKENS; i++) {
        device_begin(d, NULL);
        device_select(d, &s, &far, 1, (struct rows){x, 1, LATENT_HEADS * KEY_WIDTH, 1 << 13},
                      (struct rows){x, 1, LATENT_HEADS, 64}, sel, count);
        device_attend_latent(d, &a, &near, &far, 1, (struct rows){x, 1, width, width}, LATENT_HEADS,
                             (struct rows){y, 1, width, width}, 1);
    }
    if (device_status(d, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    printf("%-15s %-15s %-8lld %-7s %8.0f %8.0f %8.1f\n", m->name, "V4 latent", (long long)context,
           placed ? "nodes" : "turns", crossed.keys / TOKENS, crossed.lists / TOKENS,
           (double)seen.jobs / TOKENS);
    for (int64_t i = 0; i < n; i++)
        kv_page_unref(pages, taken[i]);
    kv_pool_free(pages);
    device_free(d);
}

int main(void)
{
    static const struct machine machines[] = {
        {"2 nodes x 8", 2, 8, 0},  {"2 nodes x 64", 2, 64, 0}, {"4 nodes x 8", 4, 8, 0},
        {"4 nodes x 32", 4, 32, 0}, {"8 fast 16 slow", 1, 24, 16},
    };
    puts("machine         layer           of it    "
         "experts placed % local % stolen % imbalance     jobs      MiB    codes   copied");
    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++)
        for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
            for (int k = 0; k < 4; k++) {
                const bool divided = k & 1, mixture = k < 2;
                if ((machines[i].n_nodes == 1 && divided) || (mixture && !layers[l].n_experts))
                    continue;
                show(&machines[i], &layers[l], divided, mixture);
            }
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        for (int64_t context = 8192; machines[i].n_nodes > 1 && context <= 131072; context *= 4)
            for (int by_split = 0; by_split < 2; by_split++)
                show_attention(&machines[i], context, by_split);
    puts("machine         layer           context  pages       keys    lists     jobs");
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        for (int64_t context = 8192; machines[i].n_nodes > 1 && context <= 131072; context *= 4)
            for (int placed = 0; placed < 2; placed++)
                show_latent(&machines[i], context, placed);
    return 0;
}
