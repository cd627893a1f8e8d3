/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"
#include "engine/draft.h"
#include "engine/way.h"
#include "engine/plan.h"
#include "engine/media.h"

#include "base/bug.h"
#include "base/cpu.h"
#include "base/fp.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/size.h"
#include "expert/remote.h"
#include "expert/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { LEAST_CTX = 512, LEAST_CHUNK = 512, SMALL_CHUNK = 64 };

/* ---- what was requested ---- */

static ingle_status read_device_options(const struct ingle_engine *e,
                                        const struct ingle_engine_options *o,
                                        struct device_options *out, struct err *err)
{
    const uint32_t have = cpu_detect();
    uint32_t mask = have;
    if (o->threads < 0 || o->threads > 1024)
        return err_set(err, INGLE_ARG, "%d threads are outside 0 to 1024", o->threads);
    if (o->cpu && !cpu_level(o->cpu, &mask))
        return err_set(err, INGLE_ARG, "there is no instruction set level '%s'", o->cpu);
    if (o->cpu && strcmp(cpu_name(mask), cpu_name(mask & have)) != 0)
        report(&e->sink, INGLE_REPORT_WARN, "kernel", o->cpu,
               "this machine does not have it; '%s' is used", cpu_name(mask & have));
    *out = (struct device_options){
        .n_threads = o->threads, .pin = !o->no_pin, .cpu = mask & have, .sink = &e->sink};
    if (o->numa && strcmp(o->numa, "off") == 0)
        out->numa = DEVICE_NUMA_OFF;
    else if (o->numa && strcmp(o->numa, "interleave") == 0)
        out->numa = DEVICE_NUMA_INTERLEAVE;
    else if (o->numa && strcmp(o->numa, "auto") != 0)
        return err_set(err, INGLE_ARG, "numa '%s' is none of auto, off and interleave", o->numa);
    if (!o->numerics || strcmp(o->numerics, "exact") == 0)
        out->numerics = DEVICE_EXACT;
    else if (strcmp(o->numerics, "reference") == 0)
        out->numerics = DEVICE_REFERENCE;
    else if (strcmp(o->numerics, "fast") == 0)
        out->numerics = DEVICE_FAST;
    else
        return err_set(err, INGLE_ARG, "numerics '%s' are none of exact, fast and reference",
                       o->numerics);
    return INGLE_OK;
}

enum { DRAFT_LOGITS = 32 }; /* rows of logits in a step for drafted tokens */
static const uint64_t DISK_BYTES = (uint64_t)64 << 30; /* of keys and values, if nobody says */
enum { LEAST_RESTORE = 128 }; /* below, prompts would be cut into too small steps */

static ingle_status read_runner_options(const struct ingle_engine *e,
                                        const struct ingle_engine_options *o,
                                        struct runner_options *out, struct err *err)
{
    *out = (struct runner_options){.n_ctx = o->n_ctx,
                                   .max_rows = o->max_rows,
                                   .max_logits = (o->max_logits ? o->max_logits : 16) +
                                                 (e->draft || e->draft_text ? DRAFT_LOGITS : 0),
                                   .tree_budget_bytes = o->cache_bytes,
                                   .store = o->store,
                                   .store_bytes = o->store_bytes,
                                   .store_min_tokens = o->store_tokens,
                                   .restore_every = o->restore_every,
                                   .model = e->model->name[0] ? e->model->name : e->model->path,
                                   .numerics = e->numerics,
                                   .lock = o->lock,
                                   .media = e->media != NULL,
                                   .media_rows = engine_media_rows(e),
                                   .disk = o->kv_disk,
                                   .disk_bytes = o->kv_disk_bytes ? o->kv_disk_bytes : DISK_BYTES,
                                   .disk_tokens = o->kv_pool_tokens,
                                   .sink = &e->sink};
    if (e->draft) {
        out->draft = e->draft->kind;
        out->draft_self = e->draft->self;
        out->draft_info = e->draft->info;
    }
    const ingle_status kv = kv_types_parse(o->kv, o->kv_k, o->kv_v, o->kv_layers, &out->kv, err);
    if (kv)
        return kv;
    out->select = e->way.way.select;
    out->kv.shadow = e->way.way.select.part > 0;
    if (o->restore_every < 0 || (o->restore_every && o->restore_every < LEAST_RESTORE))
        return err_set(err, INGLE_ARG, "%lld tokens between restore points: the least is %d",
                       (long long)o->restore_every, LEAST_RESTORE);
    if (o->kv_pool_tokens < 0)
        return err_set(err, INGLE_ARG,
                       "%lld tokens whose keys and values stay in memory: the number is below 0",
                       (long long)o->kv_pool_tokens);
    if (o->kv_pool_tokens && !o->kv_disk)
        return err_set(err, INGLE_ARG,
                       "keys and values of %lld tokens are to stay in memory (kv-pool), but no "
                       "directory is said for the others (kv-disk)",
                       (long long)o->kv_pool_tokens);
    if (o->n_ctx < 0 || o->store_tokens < 0 || o->max_rows < 0 || o->max_logits < 0 ||
        o->n_sessions < 0)
        return err_set(err, INGLE_ARG,
                       "a context, chunk, number of sessions or tokens of the store is below 0");
    return INGLE_OK;
}

/* ---- the parts ---- */

static ingle_status find_family(struct ingle_engine *e, struct err *err)
{
    const struct ingle_model *m = e->model;
    if (!m->file || !io_n_tensors(m->file))
        return err_set(err, INGLE_UNSUP,
                       "%s: it has only a vocabulary and no weights: give the model's file",
                       m->path);
    const bool gguf = io_kind(m->file) == IO_GGUF;
    e->family = gguf ? family_by_arch(m->arch) : family_by_hf_type(m->arch);
    const ingle_status kind = engine_check_kind(m, e->family != NULL, err);
    if (kind)
        return kind;
    BUG_IF(!e->family); /* what has none is refused above */
    if (gguf)
        return INGLE_OK;
    e->own_meta = io_meta_create();
    if (!e->own_meta || io_meta_set_name(e->own_meta, m->path))
        return err_set(err, INGLE_NOMEM, "%s: no memory for its configuration", m->path);
    const ingle_status st = e->family->config(m->config, e->own_meta, &e->sink, err);
    if (st && st != INGLE_NOMEM)
        err_prefix(err, "%s", m->path);
    return st;
}

static ingle_status bind_weights(struct ingle_engine *e, const struct ingle_engine_options *o,
                                 struct err *err)
{
    struct device_options d;
    ingle_status st = find_family(e, err);
    if (!st)
        st = read_device_options(e, o, &d, err);
    if (!st)
        st = device_create(&e->device, &d, err);
    if (!st)
        st = engine_gpu_open(e, o, err);
    if (st)
        return st;
    const struct io_meta *meta = e->own_meta ? e->own_meta : io_metadata(e->model->file);
    st = model_create(&e->weights, e->model->file, e->device,
                      e->own_meta ? e->family->rename : e->family->alias, &e->sink, err);
    if (!st && e->model->config)
        st = model_read_scheme(e->weights, e->model->config, err);
    if (!st)
        st = e->family->bind(&e->self, e->weights, meta, &e->info, err);
    if (!st)
        st = model_check_unused(e->weights, err);
    if (!st && e->model->tokenizer && e->info.n_vocab != (int64_t)engine_n_tokens(e->model))
        report(&e->sink, INGLE_REPORT_WARN, "vocabulary", e->model->path,
               "the model has %lld rows of logits, the tokenizer %zu tokens",
               (long long)e->info.n_vocab, engine_n_tokens(e->model));
    e->cpu = cpu_name(device_kernels(e->device)->cpu);
    e->numerics = device_numerics_name(e->device);
    if (!st && device_numerics(e->device) == DEVICE_FAST && strcmp(e->numerics, "exact") == 0)
        report(&e->sink, INGLE_REPORT_WARN, "numerics", "fast",
               "no kernel on this machine is faster than exact for this model; exact used");
    if (!st)
        st = engine_way_open(e, KV_WAY_SELECT, o, NULL, err);
    if (!st) {
        e->weight_bytes = model_bytes(e->weights);
        /* what the model is like: its tensors' names and shapes, and its hyper-parameters,
         * "ARCH.*" */
        e->form = engine_meta_hash(meta, e->family->arch, model_identity(e->weights));
    }
    return st ? st : engine_stages_open(e, o, err);
}

/* ---- the plan ---- */

struct need {
    struct runner_plan part;
    /* Of all sessions: pages, those of windows among them, tokens, samplers. */
    uint64_t sessions, windows, tokens, samplers, texts, total;
    uint64_t branches; /* of drafts: pages */
    uint64_t copy_bytes; /* of a step's rows, where a card shares the memory */
};

/* The prefix cache when nobody said: half a session, and in any case room for the end of a system
 * prompt and for that of a conversation after it. */
static uint64_t usual_cache(const struct runner_plan *p)
{
    const uint64_t half = p->kv_session_bytes / 2,
                   full = (p->kv_session_bytes - p->kv_window_bytes) / 2;
    const uint64_t two = p->point_bytes < UINT64_MAX / 4 ? full + 2 * p->point_bytes : 0;
    return two > half ? two : half;
}

/* The weights of the network that drafts. */
static uint64_t drafter_bytes(const struct ingle_engine *e)
{
    return e->draft ? e->draft->weight_bytes : 0;
}

/* n bytes of weights, without what of them is on a card. */
static uint64_t without(uint64_t n, uint64_t away)
{
    return n - (away < n ? away : n);
}

/* A card without memory of its own: what is on it is in the processor's. */
static bool shares_memory(const struct ingle_engine *e)
{
    const struct device_card_info *card = device_card(e->device);
    return card && card->integrated;
}

/* Of the model's weights: what is not on a card with its own memory. */
static uint64_t host_weights(const struct ingle_engine *e)
{
    return without(e->weight_bytes, shares_memory(e) ? 0 : e->gpu.away);
}

/* The same of the drafter's. */
static uint64_t host_drafter(const struct ingle_engine *e)
{
    return without(drafter_bytes(e), shares_memory(e) ? 0 : e->gpu.draft_away);
}

/* Of bytes of pages: what this process has. */
static uint64_t share_of(const struct runner_plan *p, uint64_t n)
{
    return p->kv_here_bytes == p->kv_session_bytes || !p->kv_session_bytes
               ? n
               : (uint64_t)((double)n * (double)p->kv_here_bytes / (double)p->kv_session_bytes);
}

/* Of those: what memory has of them, beside a card. */
static uint64_t host_pages(const struct ingle_engine *e, const struct runner_plan *p, uint64_t n)
{
    const uint64_t here = share_of(p, n);
    return here - (uint64_t)(e->gpu.kv_away * (double)here);
}

/* What runner options r need for n_sessions. */
static ingle_status compute_need(const struct ingle_engine *e, struct runner_options *r,
                                 int64_t n_sessions, bool own_cache, struct need *out,
                                 struct err *err)
{
    if (!own_cache)
        r->tree_budget_bytes = 0;
    const ingle_status st =
        session_runner_plan(e->family, e->self, &e->info, e->device, r, &out->part, err);
    if (st)
        return st;
    out->copy_bytes = shares_memory(e) ? out->part.arena_bytes + out->part.logits_bytes : 0;
    if (!own_cache)
        r->tree_budget_bytes = out->part.kv_tree_bytes = usual_cache(&out->part);
    uint64_t sum;
    const uint64_t n_branches = (uint64_t)engine_branches_of(e->draft_tree);
    out->texts = 0;
    const bool ok =
        (!e->draft_text || engine_drafts_bytes(n_sessions, r->n_ctx, &out->texts)) &&
        num_mul_u64(out->part.kv_session_bytes, (uint64_t)n_sessions, &out->sessions) &&
        num_mul_u64(out->part.token_bytes, (uint64_t)n_sessions, &out->tokens) &&
        num_mul_u64(out->part.kv_window_bytes, (uint64_t)n_sessions, &out->windows) &&
        num_mul_u64(out->part.sampler_bytes, (uint64_t)n_sessions, &out->samplers) &&
        num_mul_u64(out->part.branch_bytes, n_branches, &out->branches) &&
        num_mul_u64(out->part.token_bytes, n_branches, &sum) &&
        num_add_u64(sum, out->tokens, &out->tokens) &&
        num_add_u64(share_of(&out->part, out->sessions),
                    share_of(&out->part, out->part.kv_tree_bytes), &sum) &&
        num_add_u64(sum, share_of(&out->part, out->branches), &sum) &&
        num_add_u64(sum, out->samplers, &sum) && num_add_u64(sum, out->tokens, &sum) &&
        num_add_u64(sum, out->part.arena_bytes, &sum) &&
        num_add_u64(sum, out->part.disk_memory_bytes, &sum) &&
        num_add_u64(sum, out->part.logits_bytes, &sum) && num_add_u64(sum, host_drafter(e), &sum) &&
        num_add_u64(sum, engine_shortener_bytes(e), &sum) && num_add_u64(sum, out->texts, &sum) &&
        num_add_u64(sum, engine_media_bytes(e), &sum) &&
        num_add_u64(sum, engine_media_cache_bytes(e), &sum) &&
        num_add_u64(sum, out->copy_bytes, &sum) && num_add_u64(sum, host_weights(e), &out->total);
    if (!ok)
        return err_set(err, INGLE_LIMIT, "a context of %lld tokens does not fit in memory",
                       (long long)r->n_ctx);
    r->kv_budget_bytes = out->sessions + out->part.kv_tree_bytes + out->branches;
    return INGLE_OK;
}

struct search {
    const struct ingle_engine *e;
    struct runner_options r; /* what was requested */
    int64_t n_sessions;
    bool own_cache;
    uint64_t limit;
};

static bool fits(const struct search *s, int64_t n_ctx, const struct kv_types *types)
{
    struct runner_options r = s->r;
    struct need n;
    r.n_ctx = n_ctx;
    r.kv = *types;
    return compute_need(s->e, &r, s->n_sessions, s->own_cache, &n, NULL) == INGLE_OK &&
           n.total <= s->limit;
}

/* The longest context below `most` that fits, in steps of 512; 0: none. */
static int64_t longest(const struct search *s, int64_t most, const struct kv_types *types)
{
    int64_t low = 0, high = (most - 1) / LEAST_CTX;
    while (low < high) {
        const int64_t mid = (low + high + 1) / 2;
        if (fits(s, mid * LEAST_CTX, types))
            low = mid;
        else
            high = mid - 1;
    }
    return low * LEAST_CTX;
}

/* With a disk: the most tokens of a session whose pages fit in memory beside what is planned. */
static int64_t most_in_memory(const struct search *s, const struct runner_options *r)
{
    int64_t low = 0, high = num_div_up(r->n_ctx, KV_PAGE);
    while (low < high) {
        const int64_t mid = (low + high + 1) / 2;
        struct search some = *s;
        some.r = *r;
        some.r.disk_tokens = mid * KV_PAGE;
        if (fits(&some, r->n_ctx, &r->kv))
            low = mid;
        else
            high = mid - 1;
    }
    return low * KV_PAGE;
}

static bool is_half_enough(const struct search *s, int64_t rows)
{
    return s->r.n_ctx <= rows / 2 / s->n_sessions;
}

/* The rows of the largest step when nobody said: fewer than usual, but no fewer than LEAST_CHUNK,
 * if all are never used, or if they cost the wanted context, or more than a sixteenth of one that
 * is cut anyway. */
static int64_t choose_rows(const struct search *s, bool may_cut)
{
    const struct kv_types *types = &s->r.kv;
    struct search some = *s;
    some.r.max_rows = LEAST_CHUNK;
    const int64_t most =
        may_cut && !fits(&some, s->r.n_ctx, types) ? longest(&some, s->r.n_ctx, types) : s->r.n_ctx;
    int64_t rows = session_default_rows(&s->e->info);
    for (; rows > LEAST_CHUNK; rows /= 2) {
        some.r.max_rows = rows;
        if (!is_half_enough(s, rows) &&
            fits(&some, most < s->r.n_ctx ? most - most / 16 : most, types))
            break;
    }
    if (rows < session_default_rows(&s->e->info) && !is_half_enough(s, 2 * rows))
        report(&s->e->sink, INGLE_REPORT_NOTE, "memory", s->e->model->path,
               "steps of %lld tokens, not %lld: the context needs the memory",
               (long long)rows, (long long)session_default_rows(&s->e->info));
    return rows;
}

static bool fits_with_rows(const struct search *s, int64_t rows)
{
    struct search smaller = *s;
    smaller.r.max_rows = rows;
    return fits(&smaller, LEAST_CTX, &s->r.kv);
}

/* Kinds of keys and values, the best first; what the family or its widths cannot have is passed
 * over. */
static const struct kind {
    const char *name;
    bool fine; /* 8 bits or more */
    const char *why;
} kinds[] = {
    {"f16v", true, "keys are made of values, which are kept as they are"},
    {"q8r+rot", true,
     "keys are made of values, except the part that depends on the position; 8 bits, rotated: "
     "about as near as q8_0, and fast at long contexts"},
    {"q8r", true, "8 bits, rotated: about as near as q8_0, and fast at long contexts"},
    {"q8_0", true, "8.5 bits"},
    {"fp8", true, "the form that the model was trained with"},
    {"q8r:n4r+rot", false,
     "keys are made of values (4.1 bits), except the part that depends on the position (8 bits): "
     "answers change"},
    {"n4r+rot", false,
     "keys are made of values except the position's part; 4.1 bits: answers change"},
    {"q8r:n4r", false, "keys in 8 bits and values in 4.1: answers change a little"},
    {"n4r", false, "4.1 bits: answers change"},
    {"n4r:tq3_0", false,
     "keys in 4.1 bits and values in 3.1: answers change, only where nothing else fits"},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* The best kind that the family can have and with which n_ctx tokens fit, except for what was
 * requested.  A drafter's drafts are verified against these keys and values: what rounds them more
 * than its own are rounded makes the two disagree, so with one there are no fewer than 8 bits. */
static const struct kind *best_kind(const struct search *s, int64_t n_ctx, struct kv_types *types)
{
    for (int i = 0; i < N_KINDS; i++) {
        struct kv_spec spec;
        if ((s->e->draft && !kinds[i].fine) ||
            kv_types_parse(kinds[i].name, NULL, NULL, NULL, types, NULL))
            continue;
        types->shadow = s->r.kv.shadow;
        if (s->e->family->kv(s->e->self, types, &spec, NULL))
            continue;
        /* with it no prompt would be shortened */
        const bool useless = s->e->shortener && kv_gaps_refuse(&spec);
        kv_spec_release(&spec);
        if (!useless && fits(s, n_ctx, types) &&
            (memcmp(types->k, s->r.kv.k, sizeof types->k) != 0 ||
             memcmp(types->v, s->r.kv.v, sizeof types->v) != 0))
            return &kinds[i];
    }
    return NULL;
}

/* Without drafts; skip: with them, without the prompt drafter. */
static bool fits_without(const struct search *s, int64_t n_ctx, bool shortener)
{
    struct ingle_engine plain = *s->e;
    struct search without = *s;
    without.e = &plain;
    if (shortener) {
        plain.shortener = NULL;
    } else {
        plain.draft = NULL;
        plain.draft_text = false;
        without.r.draft = NULL;
    }
    return fits(&without, n_ctx, &s->r.kv);
}

static const char *of_drafter(const struct search *s)
{
    return s->e->draft ? "; with a drafter no fewer than 8 bits, or more of its drafts are wrong"
                       : "";
}

/* The context had to be cut: what would hold all of it. */
static void advise_whole(const struct search *s, int64_t n_ctx, char *out, size_t n)
{
    struct kv_types types;
    const struct kind *k = best_kind(s, n_ctx, &types);
    if (k)
        snprintf(out, n, "keys and values as %s (--kv %s) would hold %lld tokens: %s%s", k->name,
                 k->name, (long long)n_ctx, k->why, of_drafter(s));
}

static void advise(const struct search *s, int64_t n_ctx, char *out, size_t n)
{
    struct kv_types types;
    const struct kind *k;
    int64_t shorter;
    out[0] = 0;
    if (host_weights(s->e) > s->limit)
        snprintf(out, n, "the weights alone take %s: use a smaller quantisation",
                 SIZE_OF(host_weights(s->e)));
    else if ((k = best_kind(s, n_ctx, &types)))
        snprintf(out, n, "keys and values as %s (--kv %s) would fit: %s%s", k->name, k->name,
                 k->why, of_drafter(s));
    else if ((s->e->draft || s->e->draft_text) && fits_without(s, n_ctx, false))
        snprintf(out, n, "without %s (--draft off) it would fit",
                 s->e->draft ? "the drafter" : "drafts");
    else if (s->e->shortener && fits_without(s, n_ctx, true))
        snprintf(out, n,
                 "without the prompt drafter, which takes %s (--prompt-drafter), it would fit",
                 SIZE_OF(engine_shortener_bytes(s->e)));
    else if ((shorter = longest(s, n_ctx, &s->r.kv)) > 0)
        snprintf(out, n, "a context of %lld tokens (--ctx %lld) would fit", (long long)shorter,
                 (long long)shorter);
    else if ((k = best_kind(s, LEAST_CTX, &types)) && (shorter = longest(s, n_ctx, &types)) > 0)
        snprintf(out, n, "%s keys and values and a context of %lld tokens (--kv %s --ctx "
                 "%lld) would fit", k->name, (long long)shorter, k->name, (long long)shorter);
    else if (fits_with_rows(s, SMALL_CHUNK))
        snprintf(out, n, "steps of %d tokens (--chunk %d) and a context of %d (--ctx %d) would fit",
                 SMALL_CHUNK, SMALL_CHUNK, LEAST_CTX, LEAST_CTX);
    else
        snprintf(out, n, "no context of %d tokens or more would fit", LEAST_CTX);
}

static void fill_plan(const struct ingle_engine *e, const struct need *need, struct ingle_plan *out)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } item[] = {
        {"weights", host_weights(e) - e->expert_budget},
        {"experts", e->expert_budget},
        {"drafter", host_drafter(e)},
        {"drafts from text", need->texts},
        {"keys and values", host_pages(e, &need->part, need->sessions - need->windows)},
        {"windows", host_pages(e, &need->part, need->windows)},
        {"branches of drafts", host_pages(e, &need->part, need->branches)},
        {"prefix cache", host_pages(e, &need->part, need->part.kv_tree_bytes)},
        {"tokens", need->tokens},
        {"activations", need->part.arena_bytes + need->copy_bytes},
        {"logits", need->part.logits_bytes},
        {"samplers", need->samplers},
        {"reads from disk", need->part.disk_memory_bytes},
        {"prompt drafter", engine_shortener_bytes(e)},
        {"encoders", engine_media_bytes(e)},
        {"encoded media", engine_media_cache_bytes(e)},
    };
    out->n_items = 0;
    for (size_t i = 0; i < sizeof item / sizeof *item; i++) {
        /* Experts that are all in memory are weights like others. */
        if ((i >= 13 && !item[i].bytes) || (i == 12 && !need->part.disk_memory_bytes) ||
            (i == 1 && !e->expert_budget) || (i == 2 && !e->draft) || (i == 3 && !e->draft_text))
            continue;
        out->item[out->n_items].name = item[i].name;
        out->item[out->n_items++].bytes = item[i].bytes;
    }
    out->total_bytes = need->total;
    out->point_bytes = need->part.point_bytes;
}

ingle_status engine_memory_limit(const struct ingle_engine *e, const struct ingle_engine_options *o,
                                 uint64_t *out, struct err *err)
{
    struct cpu_machine machine;
    *out = o->memory_bytes;
    if (o->memory_bytes)
        return INGLE_OK;
    cpu_machine_read(&machine);
    *out = machine.memory_free_bytes;
    if (machine.memory_unread && !*out)
        return err_set(
            err, INGLE_IO,
            "/proc/meminfo cannot be read: how much memory there is must be said (--memory)");
    if (machine.memory_unread)
        report(&e->sink, INGLE_REPORT_WARN, "memory", "/proc/meminfo",
               "it cannot be read: what of the machine's %s is "
               "free, or allowed to this process, is not known and taken for all; --memory says "
               "how much to use",
               SIZE_OF(*out));
    return INGLE_OK;
}

/* How the limit of the memory is meant. */
static const char *limit_word(const struct ingle_engine_options *o)
{
    struct cpu_machine machine;
    if (o->memory_bytes)
        return "were allowed";
    cpu_machine_read(&machine);
    return machine.memory_unread ? "is all that the machine has" : "are free";
}

static struct model_load_options load_options(const struct ingle_engine *e,
                                              const struct ingle_engine_options *o)
{
    return (struct model_load_options){.pack_dir = o->pack_cache,
                                       .pack_write = o->pack_write,
                                       .pack_bytes = o->pack_bytes,
                                       .identity = e->form,
                                       .lock = o->lock,
                                       .no_experts = e->expert_budget != 0};
}

static ingle_status load_draft(struct ingle_engine *e, struct model_load_options load,
                               struct err *err)
{
    struct engine_draft *d = e->draft;
    uint64_t sum;
    load.identity = d->form;
    load.no_experts = false; /* a drafter's are few */
    ingle_status st = model_load_with(d->weights, &load, err);
    if (!st)
        st = model_sum(d->weights, &load, &sum, err);
    if (!st)
        d->identity = XXH3_64bits_withSeed(&sum, sizeof sum, d->form);
    return st;
}

/* Who this model is: its form and all bytes of its weights. */
static ingle_status find_identity(struct ingle_engine *e, const struct model_load_options *load,
                                  struct err *err)
{
    uint64_t sum;
    const ingle_status st = model_sum(e->weights, load, &sum, err);
    if (!st)
        e->identity = XXH3_64bits_withSeed(&sum, sizeof sum, e->form);
    return st;
}

/* What the system and others may need beside a plan that takes all that is free. */
uint64_t engine_margin_of(const struct ingle_engine_options *o, uint64_t limit)
{
    enum { SHARE = 12 }; /* 8 % */
    static const uint64_t least = (uint64_t)2 << 30;
    if (o->memory_bytes)
        return 0;
    const uint64_t part = limit / SHARE > least ? limit / SHARE : least;
    return part < limit / 4 ? part : limit / 4;
}

/* Experts get the memory that the rest leaves; a context that nobody asked for takes at most an
 * eighth of it. */
static ingle_status leave_experts(struct ingle_engine *e, const struct ingle_engine_options *o,
                                  struct search *s, struct runner_options *r, struct need *need,
                                  struct err *err)
{
    const uint64_t dense = engine_dense_bytes(e), least = expert_store_least(e->weights),
                   all = model_expert_bytes(e->weights);
    const uint64_t limit = s->limit, usable = limit - engine_margin_of(o, limit),
                   before = e->weight_bytes;
    ingle_status st = INGLE_OK;
    if (!all || usable < dense + least)
        return INGLE_OK;
    e->weight_bytes = dense + least;
    s->r.n_ctx = r->n_ctx = o->n_ctx ? o->n_ctx : e->info.n_ctx;
    if (!o->max_rows)
        s->r.max_rows = r->max_rows = LEAST_CHUNK;
    if (!o->n_ctx) {
        s->limit = dense + least + (usable - dense - least) / 8;
        const int64_t most = fits(s, r->n_ctx, &r->kv) ? r->n_ctx : longest(s, r->n_ctx, &r->kv);
        s->limit = limit;
        r->n_ctx = most > LEAST_CTX ? most : r->n_ctx < LEAST_CTX ? r->n_ctx : LEAST_CTX;
    }
    st = compute_need(e, r, s->n_sessions, s->own_cache, need, err);
    if (st || need->total > usable) {
        e->weight_bytes = before;
        return st ? st : compute_need(e, r, s->n_sessions, s->own_cache, need, err);
    }
    e->expert_budget = least + (usable - need->total);
    e->expert_budget = e->expert_budget < all ? e->expert_budget : all;
    e->weight_bytes = dense + e->expert_budget;
    report(&e->sink, INGLE_REPORT_NOTE, "experts", e->model->path,
           "they do not all fit in memory: %s of %s do, the others stay in a file; context %lld "
           "tokens",
           SIZE_OF(e->expert_budget), SIZE_OF(all), (long long)r->n_ctx);
    return compute_need(e, r, s->n_sessions, s->own_cache, need, err);
}

/* A budget for experts that was said. */
static ingle_status take_budget(struct ingle_engine *e, const struct ingle_engine_options *o,
                                struct err *err)
{
    const uint64_t all = model_expert_bytes(e->weights);
    const ingle_status st = engine_experts_check(e, o, err);
    if (st || !o->expert_bytes)
        return st;
    if (o->expert_bytes >= all)
        return INGLE_OK;
    e->expert_budget = o->expert_bytes;
    e->weight_bytes = engine_dense_bytes(e) + e->expert_budget;
    return INGLE_OK;
}

/* What the card has instead of what was thought; pages were thought to be in memory. */
static void move_to_card(struct ingle_engine *e, struct need *need)
{
    const uint64_t page[] = {need->sessions, need->part.kv_tree_bytes, need->branches};
    need->total -= host_weights(e) + host_drafter(e);
    e->gpu.away = e->gpu.weights;
    e->gpu.draft_away = e->gpu.draft_weights;
    need->total += host_weights(e) + host_drafter(e);
    for (size_t i = 0; i < sizeof page / sizeof *page; i++)
        need->total -= share_of(&need->part, page[i]) - host_pages(e, &need->part, page[i]);
}

/* What a card will have is not known before the plan: e->gpu.away is what it is thought to be. */
static ingle_status plan_once(struct ingle_engine *e, const struct ingle_engine_options *o,
                              struct runner_options *r, struct ingle_plan *out, struct err *err)
{
    struct need need = {0};
    ingle_status st = read_runner_options(e, o, r, err);
    if (!st)
        st = engine_stages_limit(e, o, r, err);
    if (!st)
        st = engine_way_open(e, KV_WAY_SPARSE, o, &r->kv, err);
    if (!st)
        st = engine_paging_open(e, r, err);
    if (!st)
        st = take_budget(e, o, err);
    if (st)
        return st;
    if (r->n_ctx > e->info.n_ctx)
        report(&e->sink, INGLE_REPORT_WARN, "context", e->model->path,
               "%lld tokens are more than the %lld that the model was trained for",
               (long long)r->n_ctx, (long long)e->info.n_ctx);
    if (!r->n_ctx)
        r->n_ctx = e->info.n_ctx;
    const int64_t n_sessions = o->n_sessions ? o->n_sessions : 1;
    struct search search = {e, *r, n_sessions, o->cache_bytes > 0, 0};
    st = engine_memory_limit(e, o, &search.limit, err);
    if (st)
        return st;
    if (!r->max_rows)
        r->max_rows = search.r.max_rows =
            num_min(choose_rows(&search, !o->n_ctx), engine_stages_rows(e));
    st = compute_need(e, r, n_sessions, search.own_cache, &need, err);
    if (st)
        return st;
    *out = (struct ingle_plan){.limit_bytes = search.limit, .n_nodes = device_nodes(e->device)->n};
    snprintf(out->numerics, sizeof out->numerics, "%s", e->named);
    if (need.total > search.limit && !o->n_ctx) {
        const int64_t shorter = longest(&search, r->n_ctx, &r->kv);
        if (shorter > 0) {
            advise_whole(&search, r->n_ctx, out->advice, sizeof out->advice);
            report(&e->sink, INGLE_REPORT_WARN, "context", e->model->path,
                   "%lld of the model's %lld tokens fit in %s", (long long)shorter,
                   (long long)r->n_ctx, SIZE_OF(search.limit));
            r->n_ctx = shorter;
            st = compute_need(e, r, n_sessions, search.own_cache, &need, err);
            if (st)
                return st;
        }
    }
    if (need.total > search.limit && !o->expert_bytes && !o->force) {
        st = leave_experts(e, o, &search, r, &need, err);
        if (st)
            return st;
    }
    if (r->disk && !o->kv_pool_tokens && need.total <= search.limit) {
        const uint64_t limit = search.limit, margin = engine_margin_of(o, limit);
        search.limit -= e->expert_budget || need.total > limit - margin ? 0 : margin;
        r->disk_tokens = most_in_memory(&search, r);
        search.limit = limit;
        st = compute_need(e, r, n_sessions, search.own_cache, &need, err);
        if (st)
            return st;
    }
    engine_paging_plan(e, r, &need.part, n_sessions, out);
    snprintf(out->kv, sizeof out->kv, "%s", kv_types_name(&r->kv).at);
    e->session_bytes = need.part.kv_session_bytes;
    e->stage_share = (double)need.part.kv_here_bytes / (double)need.part.kv_session_bytes;
    st = engine_gpu_plan(e, o, r, r->kv_budget_bytes,
                         need.part.arena_bytes + need.part.logits_bytes, err);
    if (st)
        return st;
    move_to_card(e, &need);
    fill_plan(e, &need, out);
    engine_gpu_fill(e, out);
    out->expert_bytes = model_expert_bytes(e->weights);
    for (size_t i = 0; i < model_n_experts(e->weights); i++)
        out->n_experts += (uint64_t)model_experts_at(e->weights, i)->n;
    out->expert_memory_bytes = e->expert_budget ? e->expert_budget : out->expert_bytes;
    const struct model_load_options load = load_options(e, o);
    out->mapped = model_maps(e->weights, &load);
    out->n_ctx = r->n_ctx;
    out->max_rows = r->max_rows;
    out->fits = need.total <= search.limit;
    if (!out->fits)
        advise(&search, r->n_ctx, out->advice, sizeof out->advice);
    return INGLE_OK;
}

/* Decides *r (context, budgets) and what it takes.  With a card the plan is made without a word
 * until what it has and what memory has agree: first as if all weights lay there. */
static ingle_status make_plan(struct ingle_engine *e, const struct ingle_engine_options *o,
                              struct runner_options *r, struct ingle_plan *out, struct err *err)
{
    enum { TIMES = 4 };
    uint64_t away =
                 device_card(e->device) && !shares_memory(e) ? device_card_left(e->device) : 0,
             draft = 0;
    for (int i = 0; i < TIMES && away; i++) {
        struct ingle_engine silent = *e;
        silent.sink = (struct report_sink){0};
        silent.gpu.away = away;
        silent.gpu.draft_away = draft;
        if (plan_once(&silent, o, r, out, NULL))
            break;
        draft = silent.gpu.draft_weights;
        if (silent.gpu.weights >= away)
            break;
        away = silent.gpu.weights;
    }
    e->gpu.away = away;
    e->gpu.draft_away = draft;
    return plan_once(e, o, r, out, err);
}

ingle_status engine_plan_silently(struct ingle_engine *e, const struct ingle_engine_options *o,
                                  struct runner_options *r, struct ingle_plan *out,
                                  struct err *err)
{
    struct ingle_engine silent = *e;
    silent.sink = (struct report_sink){0};
    return make_plan(&silent, o, r, out, err);
}

/* With the drafter the plan fits, and the context is not much shorter than without. */
static bool suits(const struct ingle_engine *e, const struct ingle_engine_options *o)
{
    struct ingle_engine silent = *e;
    struct runner_options r;
    struct ingle_plan with, plain;
    struct ingle_engine_options own = *o;
    own.draft_gpu_layers = NULL; /* which number is too large depends on the drafter */
    silent.sink = (struct report_sink){0};
    if (make_plan(&silent, &own, &r, &with, NULL))
        return false;
    silent.draft = NULL;
    if (make_plan(&silent, &own, &r, &plain, NULL))
        return false;
    return with.fits && with.n_ctx >= plain.n_ctx - plain.n_ctx / 8;
}

/* ---- life ---- */

static const struct ingle_engine_options no_options = {0};

ingle_status engine_prepare(struct ingle_engine **out, struct ingle_model *m,
                            const struct ingle_engine_options *o, struct err *err)
{
    struct ingle_engine *e = mem_zalloc(sizeof *e);
    if (!e)
        return err_set(err, INGLE_NOMEM, "no memory for an engine");
    *out = e;
    e->model = m;
    const struct ingle_callbacks *c = &o->callbacks;
    e->sink = c->report || c->progress ? (struct report_sink){c->report, c->progress, c->arg}
                                       : m->sink;
    atomic_init(&e->cancel, false);
    ingle_status st = bind_weights(e, o, err);
    if (!st)
        st = engine_shortener_prepare(e, o, err);
    if (!st)
        st = engine_media_prepare(e, o, err);
    if (!st)
        st = engine_draft_choose(e, o, suits, err);
    /* in the model's own file */
    const struct model *own = e->draft && !e->draft->file ? e->draft->weights : NULL;
    if (!st)
        st = model_report_skipped(e->weights, own, err);
    if (!st && e->draft && !own)
        st = model_report_skipped(e->draft->weights, NULL, err);
    return st;
}

ingle_status ingle_engine_plan(struct ingle_model *m, const struct ingle_engine_options *o,
                               struct ingle_plan *out, struct ingle_error *error)
{
    struct err err;
    struct ingle_engine *e = NULL;
    struct runner_options r;
    o = o ? o : &no_options;
    ingle_status st = engine_prepare(&e, m, o, &err);
    if (!st)
        st = make_plan(e, o, &r, out, &err);
    if (!st)
        engine_expect(e, out);
    ingle_engine_close(e);
    return engine_say(error, st, &err);
}

ingle_status ingle_engine_identity(struct ingle_model *m, const struct ingle_engine_options *o,
                                   uint64_t *out, struct ingle_error *error)
{
    struct err err;
    struct ingle_engine *e = NULL;
    struct ingle_engine_options own = o ? *o : no_options;
    own.mmproj = "off";
    o = &own;
    ingle_status st = engine_prepare(&e, m, o, &err);
    if (!st) {
        const struct model_load_options load = load_options(e, o);
        st = find_identity(e, &load, &err);
    }
    if (!st)
        *out = e->identity;
    ingle_engine_close(e);
    return engine_say(error, st, &err);
}

struct listing {
    ingle_store_fn *fn;
    void *arg;
};

static void pass_entry(void *arg, const struct kv_store_entry *e)
{
    const struct listing *l = arg;
    const struct ingle_store_entry out = {.name = e->name,
                                          .model = e->model,
                                          .settings = e->settings,
                                          .identity = e->identity,
                                          .bytes = e->bytes,
                                          .from = e->from,
                                          .length = e->length,
                                          .age_seconds = e->age_s,
                                          .damage = e->damage};
    l->fn(l->arg, &out);
}

ingle_status ingle_store_list(const char *dir, ingle_store_fn *fn, void *arg,
                              struct ingle_error *error)
{
    struct err err;
    struct listing l = {fn, arg};
    return engine_say(error, kv_store_list(dir, pass_entry, &l, &err), &err);
}

ingle_status ingle_store_check(const char *dir, struct ingle_error *error)
{
    struct err err;
    return engine_say(error, kv_store_check(dir, &err), &err);
}

/* Says what the plan takes, the limit, and what would fit; with force it is only a warning. */
static ingle_status refuse(const struct ingle_engine *e, const struct ingle_plan *p,
                           const struct ingle_engine_options *o, struct err *err)
{
    char list[256];
    size_t at = 0;
    list[0] = 0;
    for (int i = 0; i < p->n_items && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s %s", i ? ", " : "",
                               p->item[i].name, SIZE_OF(p->item[i].bytes));
    struct err why;
    const ingle_status st =
        err_set(&why, INGLE_LIMIT, "%s needs %s (%s) with a context of %lld tokens, %s %s; %s",
                   e->model->path, SIZE_OF(p->total_bytes), list, (long long)p->n_ctx,
                   SIZE_OF(p->limit_bytes), limit_word(o), p->advice);
    if (!o->force)
        return err_set(err, st, "%s", why.msg);
    report(&e->sink, INGLE_REPORT_WARN, "memory", e->model->path, "tried by force: %s", why.msg);
    return INGLE_OK;
}

/* Of what a head keeps of its keys or its values; 32 where it keeps nothing. */
static double kv_bits(const struct kv_stream *s, bool key)
{
    const enum kern_kv_codec c = key ? s->k_codec : s->v_codec;
    const int64_t width = key ? s->k_width : s->v_width,
                  n = key && kern_kv_is_rot(c) ? width / KERN_KV_PARTS : width;
    const size_t n_bytes = kern_kv_block_bytes(c, key, width);
    return n_bytes ? 8.0 * (double)n_bytes / (double)(KERN_PAGE * n) : 32;
}

/* Fewer than 8 bits change answers, which nobody should have to find out: the fewest of keys and
 * values, whatever the others have. */
static void report_rounding(const struct ingle_engine *e, const struct kv_types *types)
{
    struct kv_spec spec;
    double least = 8;
    const char *of = NULL, *where = NULL;
    if (e->family->kv(e->self, types, &spec, NULL))
        return;
    for (uint32_t i = 0; i < spec.n_streams; i++) {
        const struct kv_stream *s = &spec.stream[i];
        for (int key = 0; key < 2 && s->kind == KV_HEADS; key++) {
            const double bits = kv_bits(s, key);
            if (bits >= least)
                continue;
            least = bits;
            of = kv_bits(s, !key) < 8 ? "keys and values" : key ? "keys" : "values";
            where = spec.group[s->group].window ? "layers with windows" : "full layers";
        }
    }
    if (of) {
        char subject[64];
        snprintf(subject, sizeof subject, "%s of %s", of, where);
        report(&e->sink, INGLE_REPORT_WARN, "kv", subject,
               "%.1f bits: answers change (KL about %s in attention)", least,
               least < 4 ? "5e-2" : "1e-2");
    }
    kv_spec_release(&spec);
}

ingle_status engine_load(struct ingle_engine *e, const struct ingle_engine_options *o,
                         struct runner_options *r, struct ingle_plan *out, struct err *err)
{
    ingle_status st = make_plan(e, o, r, out, err);
    if (st)
        return st;
    if (!out->fits)
        st = refuse(e, out, o, err);
    if (!st && o->store)
        st = kv_store_check(o->store, err); /* before what takes long */
    if (!st && r->disk)
        st = kv_disk_check(r->disk, err);
    if (st)
        return st;
    engine_paging_report(e, r, out);
    report(&e->sink, INGLE_REPORT_NOTE, "memory", e->model->path,
           "%s of %s, context %lld tokens, keys and values %s", SIZE_OF(out->total_bytes),
           SIZE_OF(out->limit_bytes), (long long)out->n_ctx, out->kv);
    snprintf(e->kv, sizeof e->kv, "%s", out->kv);
    report_rounding(e, &r->kv);
    r->disk_spares = r->tree_budget_bytes;
    if (!o->cache_bytes) /* prefixes stay in all the memory that sessions leave */
        r->tree_budget_bytes = r->kv_budget_bytes;
    const struct model_load_options load = load_options(e, o);
    engine_gpu_place(e);
    st = model_load_with(e->weights, &load, err);
    if (!st)
        st = find_identity(e, &load, err);
    return st ? st : engine_experts_open(e, o, err);
}

static ingle_status open_engine(struct ingle_engine *e, const struct ingle_engine_options *o,
                                struct err *err)
{
    struct runner_options r;
    struct ingle_plan plan;
    ingle_status st = engine_stages_assign(e, o, err);
    if (!st)
        st = engine_load(e, o, &r, &plan, err);
    const struct model_load_options load = load_options(e, o);
    if (!st)
        st = engine_workers_open(e, o, err);
    if (st)
        return st;
    if (e->draft)
        st = load_draft(e, load, err);
    if (st)
        return st;
    e->stage_hello.sum = e->identity;
    const uint64_t pages = e->stages ? engine_stages_budget(e) : UINT64_MAX;
    if (pages < e->session_bytes)
        return engine_stages_refuse(e, plan.n_ctx, err);
    if (r.kv_budget_bytes > pages) {
        report(&e->sink, INGLE_REPORT_NOTE, "stage", "keys and values",
               "%s of pages (all layers together), not %s: a stage has no room for more",
               SIZE_OF(pages), SIZE_OF(r.kv_budget_bytes));
        r.kv_budget_bytes = pages;
        r.tree_budget_bytes = r.tree_budget_bytes < pages ? r.tree_budget_bytes : pages;
    }
    r.own_first = e->gpu.first;
    r.own_end = e->gpu.end;
    engine_gpu_draft(e, &r.draft_own_first, &r.draft_own_end);
    r.identity = e->identity;
    r.draft_identity = e->draft ? e->draft->identity : 0;
    st = session_runner_create(&e->runner, e->family, e->self, &e->info, e->device, &r, err);
    if (!st)
        st = engine_media_open(e, err);
    if (!st)
        st = engine_events_open(e, o, err);
    return st ? st : engine_shortener_open(e, err);
}

ingle_status ingle_engine_open(struct ingle_engine **out, struct ingle_model *m,
                               const struct ingle_engine_options *o, struct ingle_error *error)
{
    struct err err;
    struct ingle_engine *e = NULL;
    fenv_t mode;
    fp_enter(&mode);
    o = o ? o : &no_options;
    ingle_status st = engine_prepare(&e, m, o, &err);
    if (!st)
        st = open_engine(e, o, &err);
    if (!st && m->tokenizer)
        st = text_avoid_calls(&e->no_calls, m->chat, m->tokenizer, (size_t)e->info.n_vocab, &err);
    fp_leave(&mode);
    if (st)
        ingle_engine_close(e);
    else
        *out = e;
    return engine_say(error, st, &err);
}

void ingle_engine_close(struct ingle_engine *e)
{
    if (!e)
        return;
    engine_shortener_close(e);
    engine_events_close(e);
    session_runner_free(e->runner);
    engine_media_free(e->media);
    engine_draft_free(e->draft);
    if (e->self)
        e->family->free(e->self);
    stage_remote_close(e->stages);
    expert_remote_close(e->workers);
    expert_store_close(e->experts);
    model_free(e->weights);
    device_free(e->device);
    io_meta_free(e->own_meta);
    text_avoid_free(e->no_calls);
    mem_free(e->drawn);
    mem_free(e);
}

void ingle_engine_info(const struct ingle_engine *e, struct ingle_engine_info *out)
{
    struct kv_pool_counts kv;
    struct model_loaded loaded;
    kv_pool_count(session_runner_pool(e->runner), &kv);
    model_loaded(e->weights, &loaded);
    *out = (struct ingle_engine_info){
        .threads = pool_size(device_pool(e->device)),
        .cpu = e->cpu,
        .numerics = e->named,
        .sparse_layers = e->way.n_layers,
        .kv = e->kv,
        .n_ctx = session_runner_n_ctx(e->runner),
        .max_rows = session_runner_max_rows(e->runner),
        .n_vocab = e->info.n_vocab,
        .n_layers = e->info.n_layers,
        .n_embd = e->info.n_embd,
        .n_experts = e->info.n_experts,
        .n_experts_used = e->info.n_experts_used,
        .weight_bytes = e->weight_bytes,
        .kv_used_bytes = kv.used_bytes,
        .kv_peak_bytes = kv.peak_bytes,
        .kv_budget_bytes = kv.budget_bytes,
        .kv_token_bytes = kv.token_bytes,
        .identity = e->identity,
        .mapped = loaded.mapped,
        .locked = loaded.locked,
        .packed = loaded.wrote,
        .matrix_bytes = loaded.image_bytes,
        .huge_bytes = loaded.huge_bytes,
        .local_share = loaded.image_bytes ? loaded.local_share : -1,
        .unbound_threads = pool_unbound(device_pool(e->device)),
        .join_us = 1e-3 * (double)device_join_ns(e->device),
        .load_seconds = loaded.seconds,
        .draft = e->draft ? e->draft->kind->kind : "",
        .draft_path = e->draft ? e->draft->path : "",
        .draft_why = e->draft_why,
        .draft_text = e->draft_text,
        .draft_confidence = e->draft && e->draft->info.confidence,
        .draft_most = e->draft && (!e->draft_most || e->draft_most > e->draft->info.most)
                          ? e->draft->info.most
                          : e->draft_most,
        .draft_bytes = drafter_bytes(e),
        .draft_tree = e->draft_tree,
    };
    const char *const *why = e->way.why;
    kv_way_text(KV_WAY_SPARSE, &e->way.way, out->sparse, sizeof out->sparse);
    kv_way_text(KV_WAY_SELECT, &e->way.way, out->kv_select, sizeof out->kv_select);
    snprintf(out->sparse_why, sizeof out->sparse_why, "%s",
             why[KV_WAY_SPARSE] ? why[KV_WAY_SPARSE] : "");
    snprintf(out->kv_select_why, sizeof out->kv_select_why, "%s",
             why[KV_WAY_SELECT] ? why[KV_WAY_SELECT] : "");
    engine_paging_count(e, &out->paging);
    engine_media_info(e, out);
    engine_gpu_info(e, out);
}

const uint64_t *ingle_engine_expert_hits(const struct ingle_engine *e, int64_t layer)
{
    if (!e->family->experts || layer < 0 || layer >= e->info.n_layers)
        return NULL;
    const struct expert_layer *l = e->family->experts(e->self, layer);
    return l ? l->hits : NULL;
}

void ingle_engine_cancel(struct ingle_engine *e)
{
    atomic_store(&e->cancel, true);
}

void ingle_engine_resume(struct ingle_engine *e)
{
    atomic_store(&e->cancel, false);
}

void ingle_engine_forget(struct ingle_engine *e)
{
    session_runner_clear_tree(e->runner);
}

static void pass_tap(void *arg, enum family_tap tap, int layer, struct rows x)
{
    static const enum ingle_tap same[] = {[FAMILY_TAP_EMBED] = INGLE_TAP_EMBED,
                                          [FAMILY_TAP_LAYER] = INGLE_TAP_LAYER,
                                          [FAMILY_TAP_NORM] = INGLE_TAP_NORM};
    const struct ingle_engine *e = arg;
    device_read_rows(e->device, x);
    if (x.at)
        e->tap(e->tap_arg, same[tap], layer, x.at, x.n, x.width, x.stride);
}

void ingle_engine_set_tap(struct ingle_engine *e, ingle_tap_fn *fn, void *arg)
{
    e->tap = fn;
    e->tap_arg = arg;
    session_runner_set_tap(e->runner, fn ? pass_tap : NULL, e);
}
