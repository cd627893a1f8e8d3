/* SPDX-License-Identifier: Apache-2.0 */
/* experts - those that are not all in memory: what was requested, and what became of it. */
#include "engine/engine.h"
#include "engine/plan.h"

#include "base/clock.h"
#include "base/size.h"
#include "expert/store.h"
#include <stdlib.h>
#include <string.h>

/* Experts of so many bytes are worth a measurement at the start. */
enum { EXPECT_LEAST = 256 << 20 };

/* Index of a word in a list, the first if it is NULL; -1: it is none of them. */
static int word_of(const char *word, const char *const list[3])
{
    for (int i = 0; i < 3; i++)
        if (!word || strcmp(word, list[i]) == 0)
            return i;
    return -1;
}

/* "auto", or "direct" or "cached", and "threads" or "uring", with a comma between them. */
static ingle_status read_io(const char *text, struct expert_store_options *out, struct err *err)
{
    static const struct {
        const char *word;
        enum expert_io io;
        enum expert_by by;
    } list[] = {
        {"auto", EXPERT_IO_AUTO, EXPERT_BY_AUTO},
        {"direct", EXPERT_IO_DIRECT, EXPERT_BY_AUTO},
        {"cached", EXPERT_IO_CACHED, EXPERT_BY_AUTO},
        {"threads", EXPERT_IO_AUTO, EXPERT_BY_THREADS},
        {"uring", EXPERT_IO_AUTO, EXPERT_BY_URING},
        {"direct,threads", EXPERT_IO_DIRECT, EXPERT_BY_THREADS},
        {"direct,uring", EXPERT_IO_DIRECT, EXPERT_BY_URING},
        {"cached,threads", EXPERT_IO_CACHED, EXPERT_BY_THREADS},
        {"cached,uring", EXPERT_IO_CACHED, EXPERT_BY_URING},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!text || strcmp(text, list[i].word) == 0) {
            out->io = list[i].io;
            out->by = list[i].by;
            return INGLE_OK;
        }
    return err_set(err, INGLE_ARG,
                   "reading of experts '%s' is neither auto nor one of direct and cached, of "
                   "threads and uring, or both "
                   "with a comma between them",
                   text);
}

static ingle_status read_early(const char *text, int *out, struct err *err)
{
    char *end;
    *out = -1;
    if (!text || strcmp(text, "auto") == 0)
        return INGLE_OK;
    *out = 0;
    if (strcmp(text, "off") == 0)
        return INGLE_OK;
    const long n = strtol(text, &end, 10);
    if (end == text || *end || n < 0 || n > EXPERT_MAX)
        return err_set(err, INGLE_ARG, "early reads '%s' are none of auto, off and 0 to %d", text,
                       EXPERT_MAX);
    *out = (int)n;
    return INGLE_OK;
}

static ingle_status read_options(const struct ingle_engine *e, const struct ingle_engine_options *o,
                                 struct expert_store_options *out, struct err *err)
{
    static const char *const verify[3] = {"first", "always", "off"};
    const int v = word_of(o->experts_verify, verify);
    if (v < 0)
        return err_set(err, INGLE_ARG, "checking of experts '%s' is none of first, always and off",
                       o->experts_verify);
    *out = (struct expert_store_options){.budget_bytes = e->expert_budget,
                                         .n_used = e->info.n_experts_used,
                                         .verify = (enum expert_verify)v,
                                         .lock = o->lock,
                                         .trace = o->experts_trace,
                                         .profile = o->experts_profile,
                                         .identity = e->identity,
                                         .sink = &e->sink};
    const ingle_status st = read_io(o->experts_io, out, err);
    return st ? st : read_early(o->experts_early, &out->early, err);
}

ingle_status engine_experts_check(const struct ingle_engine *e,
                                  const struct ingle_engine_options *o, struct err *err)
{
    struct expert_store_options unused;
    const uint64_t least = expert_store_least(e->weights);
    const ingle_status st = read_options(e, o, &unused, err);
    if (!st && o->expert_bytes && o->expert_bytes < least)
        return err_set(err, INGLE_LIMIT,
                       "%s: %llu bytes for experts are too few: the least is %llu", e->model->path,
                       (unsigned long long)o->expert_bytes, (unsigned long long)least);
    return st;
}

ingle_status engine_experts_open(struct ingle_engine *e, const struct ingle_engine_options *o,
                                 struct err *err)
{
    struct expert_store_options x;
    struct expert_store_counts n;
    if (!e->expert_budget)
        return INGLE_OK;
    ingle_status st = read_options(e, o, &x, err);
    if (!st)
        st = expert_store_open(&e->experts, e->weights, &x, err);
    if (st)
        return st;
    expert_store_count(e->experts, &n);
    const uint64_t cycle = (uint64_t)model_n_experts(e->weights) * (uint64_t)e->info.n_experts_used;
    report(&e->sink, INGLE_REPORT_NOTE, "experts", e->model->path,
           "%s of %s of experts have a place in memory (%llu of %llu), the others are read when "
           "they are chosen%s",
           SIZE_OF(n.slot_bytes), SIZE_OF(n.expert_bytes), (unsigned long long)n.slots,
           (unsigned long long)n.experts,
           n.by_uring ? n.direct ? ", by direct I/O and io_uring" : ", by io_uring"
           : n.direct ? ", by direct I/O"
                      : "");
    struct ingle_plan plan = {.expert_bytes = n.expert_bytes, .expert_memory_bytes = n.slot_bytes};
    if (n.expert_bytes >= EXPECT_LEAST)
        engine_expect(e, &plan);
    if (plan.tokens_high > 0)
        report(&e->sink, INGLE_REPORT_NOTE, "experts", e->model->path,
               "%.1f to %.1f tokens a second are to be expected in decode (disk %.2f GB/s, memory "
               "%.1f GB/s; 'ingle doctor --disk "
               "FILE' tells more)",
               plan.tokens_low, plan.tokens_high, plan.disk_bytes_per_s * 1e-9,
               plan.read_bytes_per_s * 1e-9);
    if (n.slots < cycle)
        report(&e->sink, INGLE_REPORT_WARN, "experts", e->model->path,
               "one token alone uses %llu experts: with fewer places nearly all are read for every "
               "token",
               (unsigned long long)cycle);
    return INGLE_OK;
}

bool ingle_engine_experts(const struct ingle_engine *e, struct ingle_experts *out)
{
    struct expert_store_counts n;
    if (!e->experts)
        return false;
    expert_store_count(e->experts, &n);
    *out = (struct ingle_experts){n.experts,
                                  n.slots,
                                  n.resident,
                                  n.slot_bytes,
                                  n.expert_bytes,
                                  n.choices,
                                  n.hits,
                                  n.misses,
                                  n.early_hits,
                                  n.early_reads,
                                  n.evictions,
                                  n.failed_reads,
                                  n.reads,
                                  n.read_bytes,
                                  n.busy_ns,
                                  n.stall_ns,
                                  n.bad,
                                  n.stuck,
                                  n.direct,
                                  n.packed,
                                  "",
                                  n.by_uring,
                                  n.reads_early,
                                  n.early_in_time,
                                  (uint64_t)n.early_tries,
                                  n.early_change,
                                  n.early_right};
    memcpy(out->trouble, n.trouble, sizeof out->trouble);
    return true;
}

void engine_experts_tend(struct ingle_engine *e)
{
    if (e->experts)
        expert_store_tend(e->experts, clock_now());
    engine_workers_tend(e);
}

struct ingle_expert_use engine_experts_used(const struct ingle_engine *e)
{
    struct ingle_experts n;
    if (!ingle_engine_experts(e, &n))
        return (struct ingle_expert_use){0};
    return (struct ingle_expert_use){n.hits, n.misses, n.read_bytes, n.stall_ns};
}

void engine_experts_add(struct ingle_expert_use *sum, const struct ingle_expert_use *from,
                        const struct ingle_expert_use *to)
{
    sum->hits += to->hits - from->hits;
    sum->misses += to->misses - from->misses;
    sum->read_bytes += to->read_bytes - from->read_bytes;
    sum->stall_ns += to->stall_ns - from->stall_ns;
}

bool ingle_engine_expert_layer(const struct ingle_engine *e, size_t i,
                               struct ingle_expert_layer *out)
{
    struct expert_layer_counts n;
    if (!e->experts || i >= model_n_experts(e->weights))
        return false;
    expert_store_count_layer(e->experts, i, &n);
    *out = (struct ingle_expert_layer){n.layer,      n.choices,    n.hits,
                                       n.early_hits, n.read_bytes, n.stall_ns};
    return true;
}
