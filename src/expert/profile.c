/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile - which experts are used, from run to run: a file of uses a step.
 *
 * What this run has seen counts half of the file, what earlier ones have seen the other half.  The
 * file has another name until it is whole, and a checksum.
 */
#define _GNU_SOURCE
#include "expert/tiered.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/output.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const char magic[16] = "ingle experts\r\n";
/* As keys, uses of earlier runs count less than those of this one. */
static const double old_share = 0.3, least_steps = 64;

struct profile_header {
    char magic[16];
    uint64_t identity, n_experts;
    uint64_t sum; /* XXH3-64 of f32 [n_experts] uses a step, which follow */
};
static_assert(sizeof(struct profile_header) == 40, "a file format: do not pad");

/* ---- reading ---- */

static ingle_status read_rates(struct expert_store *s, struct err *err)
{
    struct profile_header h;
    char *bytes;
    size_t n;
    const size_t n_rates = (size_t)s->n_experts * sizeof *s->rate;
    const ingle_status st = file_slurp(s->o.profile, sizeof h + n_rates, &bytes, &n, err);
    if (st)
        return st;
    ingle_status bad = INGLE_OK;
    memcpy(&h, bytes, n < sizeof h ? n : sizeof h);
    if (n < sizeof h || memcmp(h.magic, magic, sizeof magic) != 0)
        bad = err_set(err, INGLE_FORMAT, "it is no profile of experts");
    else if (h.identity != s->o.identity || h.n_experts != (uint64_t)s->n_experts ||
             n != sizeof h + n_rates)
        bad = err_set(err, INGLE_FORMAT, "it is of another model");
    else if (XXH3_64bits(bytes + sizeof h, n_rates) != h.sum)
        bad = err_set(err, INGLE_FORMAT, "its checksum is wrong");
    else
        memcpy(s->rate, bytes + sizeof h, n_rates);
    mem_free(bytes);
    return bad;
}

struct ranked { int64_t at; float rate; };

static int by_rate(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->rate > y->rate ? -1 : x->rate < y->rate ? 1 : (x->at > y->at) - (x->at < y->at);
}

static struct store_layer *layer_at(struct expert_store *s, int64_t at)
{
    size_t i = 0;
    while (i + 1 < s->n_layers && s->layer[i + 1].seen_at <= at)
        i++;
    return &s->layer[i];
}

/* The best become residents whose reads begin, best first, after every demand. */
static void fill(struct expert_store *s, const struct ranked *list, int64_t n)
{
    for (int64_t i = 0; i < n && list[i].rate > 0; i++) {
        struct store_layer *l = layer_at(s, list[i].at);
        struct store_class *c = l->class;
        const int64_t e = list[i].at - l->seen_at;
        int64_t victim;
        expert_policy_seed(c->policy, l->first + e,
                           log2(old_share * (double)list[i].rate * POLICY_HALF_LIFE / log(2)));
        if (expert_policy_count(c->policy) >= expert_store_residents(c) ||
            !expert_policy_admit(c->policy, l->first + e, c->pins, &victim))
            continue;
        if (!expert_store_read(s, l, e, false))
            expert_policy_remove(c->policy, l->first + e);
    }
}

void expert_store_place(struct expert_store *s, const struct model_experts *home, int64_t e,
                        double rank)
{
    struct store_layer *l = home->keeper;
    struct store_class *c = l->class;
    const int64_t i = l->first + e;
    const double key = s->t / POLICY_HALF_LIFE - 2 * rank;
    int64_t victim;
    if (expert_policy_is_in(c->policy, i) || expert_own_has(c, i))
        return;
    if (!(expert_policy_key(c->policy, i) >= key))
        expert_policy_seed(c->policy, i, key);
    if (!expert_policy_admit(c->policy, i, c->pins, &victim))
        return;
    if (victim >= 0) {
        s->n.evictions++;
        expert_store_leave(s, c, victim);
    }
    if (c->slot_of[i] >= 0)
        expert_store_stage(c, &s->slot[c->slot_of[i]], false);
    else if (!expert_store_read(s, l, e, false))
        expert_policy_remove(c->policy, i);
}

bool expert_store_has(const struct model_experts *home, int64_t e)
{
    const struct store_layer *l = home->keeper;
    const int t = l->class->slot_of[l->first + e];
    return expert_own_has(l->class, l->first + e) ||
           (t >= 0 && l->store->slot[t].state == SLOT_READY);
}

void expert_profile_load(struct expert_store *s)
{
    struct err err;
    if (!s->o.profile)
        return;
    const ingle_status st = read_rates(s, &err);
    if (st == INGLE_NOTFOUND || output_kind_of(s->o.profile) == OUTPUT_EMPTY)
        return;
    if (st) {
        memset(s->rate, 0, (size_t)s->n_experts * sizeof *s->rate);
        report(s->o.sink, INGLE_REPORT_WARN, "experts", s->o.profile,
               "the profile is not used, and the file stays as it is: %s", err.msg);
        s->o.profile = NULL;
        return;
    }
    struct ranked *list = mem_calloc((size_t)s->n_experts, sizeof *list);
    if (!list)
        return;
    for (int64_t i = 0; i < s->n_experts; i++)
        list[i] = (struct ranked){i, isfinite(s->rate[i]) ? s->rate[i] : 0};
    qsort(list, (size_t)s->n_experts, sizeof *list, by_rate);
    fill(s, list, s->n_experts);
    mem_free(list);
}

/* ---- writing ---- */

/* A run of a few steps says little beside a file. */
static void mix(const struct expert_store *s, float *out)
{
    bool any = false;
    for (int64_t i = 0; i < s->n_experts; i++)
        any = any || s->rate[i] > 0;
    const double share = any ? 0.5 * (s->t < least_steps ? s->t : least_steps) / least_steps : 1;
    for (int64_t i = 0; i < s->n_experts; i++)
        out[i] = (float)((1 - share) * (double)s->rate[i] + share * (double)s->uses[i] / s->t);
}

bool expert_store_save(struct expert_store *s)
{
    struct file_new f;
    struct err err;
    if (!s->o.profile || !s->uses || !(s->t > 0))
        return true;
    const size_t n = (size_t)s->n_experts * sizeof(float);
    float *rate = mem_alloc(n);
    ingle_status st =
        rate ? output_open(&f, &(struct output){.path = s->o.profile, .kind = OUTPUT_PROFILE}, &err)
             : err_set(&err, INGLE_NOMEM, "no memory for it");
    if (!st) {
        mix(s, rate);
        struct profile_header h = {.identity = s->o.identity,
                                   .n_experts = (uint64_t)s->n_experts,
                                   .sum = XXH3_64bits(rate, n)};
        memcpy(h.magic, magic, sizeof magic);
        st = file_new_write(&f, 0, &h, sizeof h, &err);
        if (!st)
            st = file_new_write(&f, sizeof h, rate, n, &err);
        if (!st)
            st = file_new_finish(&f, &err);
        else
            file_new_drop(&f);
    }
    if (st)
        report(s->o.sink, INGLE_REPORT_WARN, "experts", s->o.profile,
               "the profile cannot be written: %s", err.msg);
    mem_free(rate);
    return !st;
}
