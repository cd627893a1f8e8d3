/* SPDX-License-Identifier: Apache-2.0 */
/* workers - an engine's experts in other processes: which ones, and who it is for them. */
#define _POSIX_C_SOURCE 200809L
#include "engine/engine.h"
#include "engine/plan.h"

#include "expert/remote.h"
#include "kv/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ADDRESSES = 2048 };

const struct expert_layer *engine_experts_at(const struct ingle_engine *e, int64_t i)
{
    return e->family->experts ? e->family->experts(e->self, i) : NULL;
}

/* Layers may differ in their experts' widths and numbers: the hash of all shapes is compared,
 * too. */
ingle_status engine_worker_describe(const struct ingle_engine *e, struct link_hello *out,
                                    struct err *err)
{
    const struct expert_layer *first = NULL;
    struct link_hello h = {.version_min = LINK_VERSION,
                           .version_max = LINK_VERSION,
                           .arithmetic = KV_ARITHMETIC,
                           .layout = KERN_LAYOUT,
                           .range = {true, 0, 0},
                           .form = e->form,
                           .sum = model_exact_sum(e->weights),
                           .n_layers = (uint32_t)e->info.n_layers,
                           .n_used = (uint32_t)e->info.n_experts_used,
                           .most_rows = 1,
                           .most_pairs = 1,
                           .threads = (uint32_t)pool_size(device_pool(e->device))};
    for (int64_t i = 0; !first && i < e->info.n_layers; i++)
        first = engine_experts_at(e, i) && engine_experts_at(e, i)->home ? engine_experts_at(e, i)
                                                                         : NULL;
    if (!first)
        return err_set(err, INGLE_UNSUP,
                       "%s: this model has no experts: a worker needs a mixture of experts",
                       e->model->path);
    if (e->info.n_layers > LINK_MAX_LAYERS || first->n > LINK_MAX_EXPERTS ||
        h.n_used > LINK_MAX_USED || first->width > LINK_MAX_WIDTH ||
        device_matrix_out(first->down) > LINK_MAX_WIDTH)
        return err_set(err, INGLE_UNSUP, "%s: it is too large for workers", e->model->path);
    h.n_experts = (uint32_t)first->n;
    h.width = (uint32_t)first->width;
    h.hidden = (uint32_t)device_matrix_out(first->down);
    snprintf(h.numerics, sizeof h.numerics, "%.47s", device_numerics_name(e->device));
    snprintf(h.family, sizeof h.family, "%.31s", e->family->arch);
    snprintf(h.cpu, sizeof h.cpu, "%.31s", e->cpu);
    snprintf(h.engine, sizeof h.engine, "%.31s", ingle_version());
    const ingle_status st = model_experts_mark(e->weights, &h.mark, err);
    if (!st)
        *out = h;
    return st;
}

static ingle_status read_share(const char *text, int *out, struct err *err)
{
    char *end;
    *out = -1;
    if (!text || strcmp(text, "auto") == 0)
        return INGLE_OK;
    const long n = strtol(text, &end, 10);
    if (end == text || *end || n < 0 || n > 100)
        return err_set(err, INGLE_ARG,
                       "the share of workers '%s' is neither auto nor 0 to 100 per cent", text);
    *out = (int)n;
    return INGLE_OK;
}

ingle_status engine_workers_open(struct ingle_engine *e, const struct ingle_engine_options *o,
                                 struct err *err)
{
    const char *address[EXPERT_WORKERS + 1];
    char text[MOST_ADDRESSES];
    struct link_hello hello;
    int share;
    if (!o->experts_worker)
        return INGLE_OK;
    if (read_share(o->experts_share, &share, err))
        return INGLE_ARG;
    if (strlen(o->experts_worker) >= sizeof text)
        return err_set(err, INGLE_ARG, "addresses of workers have %zu bytes, the limit is %zu",
                       strlen(o->experts_worker), sizeof text - 1);
    memcpy(text, o->experts_worker, strlen(o->experts_worker) + 1);
    struct expert_remote_options r = {.address = address,
                                      .key_file = o->worker_key,
                                      .plain = o->worker_plain,
                                      .hello = &hello,
                                      .sink = &e->sink,
                                      .share = share};
    ingle_status st =
        link_addresses_cut(text, "--experts-worker", address, EXPERT_WORKERS, &r.n, err);
    if (st)
        return st;
    if (r.n > EXPERT_WORKERS)
        return err_set(err, INGLE_ARG,
                       "--experts-worker '%s' has too many addresses, the limit is %d",
                       o->experts_worker, EXPERT_WORKERS);
    st = engine_worker_describe(e, &hello, err);
    return st ? st : expert_remote_open(&e->workers, e->weights, &r, err);
}

void engine_workers_tend(struct ingle_engine *e)
{
    if (e->workers)
        expert_remote_tend(e->workers);
}

bool ingle_engine_worker(const struct ingle_engine *e, int i, struct ingle_engine_worker *out)
{
    static const char *const states[] = {[EXPERT_WORKER_AWAY] = "away",
                                         [EXPERT_WORKER_READY] = "ready",
                                         [EXPERT_WORKER_REFUSED] = "refused"};
    struct expert_worker_counts n;
    if (i < 0 || i >= expert_remote_n(e->workers))
        return false;
    expert_remote_count(e->workers, i, &n);
    *out = (struct ingle_engine_worker){.address = n.address,
                                        .state = states[n.state],
                                        .slots = n.slots,
                                        .budget_bytes = n.budget_bytes,
                                        .evals = n.evals,
                                        .pairs = n.pairs,
                                        .experts = n.experts,
                                        .sent_bytes = n.sent_bytes,
                                        .received_bytes = n.received_bytes,
                                        .losses = n.losses,
                                        .redone = n.redone,
                                        .hits = n.hits,
                                        .misses = n.misses,
                                        .compute_ns = n.compute_ns,
                                        .wait_ns = n.wait_ns,
                                        .unit_us = n.unit_us,
                                        .here_us = n.here_us,
                                        .trip_us = n.trip_us,
                                        .experts_here = expert_remote_here(e->workers)};
    link_range_text(&n.range, out->layers, sizeof out->layers);
    memcpy(out->trouble, n.trouble, sizeof out->trouble);
    out->shares = n.shares;
    out->shared = n.shared;
    out->cancels = n.cancels;
    out->have = n.n_have;
    out->there_evals = n.there.evals;
    out->there_pairs = n.there.pairs;
    out->there_failed = n.there.failed;
    out->there_cancelled = n.there.cancelled;
    out->there_engines = n.there.peers;
    out->there_resident = n.there.resident;
    out->there_bad = n.there.bad;
    out->there_read_bytes = n.there.read_bytes;
    out->there_stall_ns = n.there.stall_ns;
    out->there_up_ns = n.there.up_ns;
    return true;
}
