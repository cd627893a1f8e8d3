/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/spare.h"
#include "device/ops.h"
#include <stdio.h>
#include <string.h>

enum { ALIGN = 64 };

static bool copy_topology(struct cpu_topology *t, const struct cpu_topology *from)
{
    *t = *from;
    t->cpu = mem_calloc((size_t)from->n_cpus, sizeof *t->cpu);
    if (t->cpu)
        memcpy(t->cpu, from->cpu, (size_t)from->n_cpus * sizeof *t->cpu);
    return t->cpu;
}

/* What of the machine, or of what was asked for, is not used. */
static void report_spare(const struct device *d, const struct device_options *o,
                         const struct cpu_topology *t, int n_threads)
{
    char spare[SPARE_BYTES], subject[32];
    snprintf(subject, sizeof subject, "%d threads", n_threads);
    if (o->numa == DEVICE_NUMA_AUTO && spare_tell(spare, t, ""))
        report(d->sink, INGLE_REPORT_NOTE, "numa", "nodes", "%s", spare);
    if (o->numa == DEVICE_NUMA_INTERLEAVE && t->n_nodes == 1)
        report(d->sink, INGLE_REPORT_NOTE, "numa", "interleave",
               "processors of this process are of one memory node: nothing is interleaved");
    if (o->pin && n_threads > t->n_cpus)
        report(d->sink, INGLE_REPORT_NOTE, "threads", subject,
               "they are more than the processors (%d), so none is bound to one", t->n_cpus);
}

/* The pool knows of nodes only if rows are to be theirs. */
static ingle_status create_pool(struct device *d, const struct device_options *o, struct err *err)
{
    struct cpu_topology t;
    int n_threads = o->n_threads;
    if (n_threads <= 0) {
        struct cpu_machine machine;
        cpu_machine_read(&machine);
        n_threads = cpu_default_threads(&machine);
    }
    if (!(o->topology ? copy_topology(&t, o->topology) : cpu_topology_read(&t)))
        return err_set(err, INGLE_NOMEM, "no memory for %d threads", n_threads);
    if (!o->topology)
        report_spare(d, o, &t, n_threads);
    d->nodes.n = o->numa == DEVICE_NUMA_OFF ? 1 : t.n_nodes;
    memcpy(d->nodes.id, t.node_id, sizeof d->nodes.id);
    if (o->numa != DEVICE_NUMA_AUTO)
        cpu_topology_join(&t);
    const bool bound = o->numa == DEVICE_NUMA_AUTO && o->pin && n_threads <= t.n_cpus;
    d->placed = bound;
    const ingle_status s = o->topology ? pool_create_on(&d->pool, n_threads, o->pin, &t, err)
                                       : pool_create_beside(&d->pool, n_threads, o->pin, &t, err);
    cpu_topology_release(&t);
    if (s || !bound)
        return s;
    d->nodes.n = pool_nodes(d->pool);
    for (int i = 0; i < d->nodes.n; i++)
        d->nodes.id[i] = pool_node_id(d->pool, i);
    return s;
}

static void report_nodes(const struct device *d)
{
    char subject[32];
    if (d->nodes.n < 2)
        return;
    snprintf(subject, sizeof subject, "%d nodes", d->nodes.n);
    report(d->sink, INGLE_REPORT_NOTE, "numa", subject, "%s",
           pool_nodes(d->pool) > 1
               ? "each has the rows of the weights that its threads compute; the rest takes turns"
               : "memory takes turns on them");
}

static void report_threads(const struct device *d)
{
    char subject[32];
    snprintf(subject, sizeof subject, "%d threads", pool_size(d->pool));
    if (pool_unbound(d->pool))
        report(d->sink, INGLE_REPORT_WARN, "threads", subject,
               "%d of them are not bound to a processor: the system refused (processors were taken "
               "away meanwhile); they may run beside others",
               pool_unbound(d->pool));
}

/* A thread does about four floats in a nanosecond. */
static void measure_joins(struct device *d)
{
    const uint64_t most = DEVICE_MOST_SMALL_WORK / 4;
    d->join_ns = pool_size(d->pool) > 1 ? pool_join_ns(d->pool) : 0;
    d->small_work =
        num_max(DEVICE_SMALL_WORK, 4 * (int64_t)(d->join_ns < most ? d->join_ns : most));
}

ingle_status device_create(struct device **out, const struct device_options *o, struct err *err)
{
    struct device *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_set(err, INGLE_NOMEM, "no memory for a device");
    d->ops = &device_cpu_ops;
    d->numerics = o->numerics;
    d->sink = o->sink;
    const ingle_status s = create_pool(d, o, err);
    if (s) {
        device_free(d);
        return s;
    }
    report_nodes(d);
    report_threads(d);
    measure_joins(d);
    kern_table_init(&d->kern, o->cpu & cpu_detect());
#if !defined(__SANITIZE_ADDRESS__) &&                                                              \
    !defined(__SANITIZE_THREAD__) /* most of a test's time there: kerncheck and doctor run it */
    kern_self_test(&d->kern, d->sink);
#endif
    if (d->numerics == DEVICE_FAST && d->kern.attend.recipe)
        device_note_recipe(d, d->kern.attend.recipe);
    *out = d;
    return INGLE_OK;
}

void device_free(struct device *d)
{
    if (!d)
        return;
    device_gpu_close(d);
    device_near_release(d);
    pool_free(d->pool);
    mem_big_free(d->arena, d->cap);
    mem_free(d);
}

const struct kern_table *device_kernels(const struct device *d)
{
    return &d->kern;
}

const struct numa_nodes *device_nodes(const struct device *d)
{
    return &d->nodes;
}

uint64_t device_join_ns(const struct device *d)
{
    return d->join_ns;
}

struct pool *device_pool(struct device *d)
{
    return d->pool;
}

enum device_numerics device_numerics(const struct device *d)
{
    return d->numerics;
}

const char *device_numerics_name(const struct device *d)
{
    if (d->numerics == DEVICE_FAST)
        return d->recipes[0] ? d->recipes : "exact";
    return d->numerics == DEVICE_EXACT ? "exact" : "reference";
}

/* ---- scratch ---- */

void *device_bytes(struct device *d, size_t n_bytes)
{
    size_t n;
    if (!num_align(n_bytes, ALIGN, &n) || (!d->dry && n > d->cap - d->used)) {
        struct err e;
        err_set(&e, INGLE_LIMIT, "the step needs %zu bytes of scratch, %zu of %zu are left",
                n_bytes, d->cap - d->used, d->cap);
        device_fail(d, &e);
        return NULL;
    }
    uint8_t *p = d->dry ? NULL : d->arena + d->used;
    if (d->ops->took)
        d->ops->took(d, d->used, n);
    d->used += n;
    if (d->used > d->peak)
        d->peak = d->used;
    return p;
}

/* In a dry run rows get addresses that tell them apart and that nobody follows. */
struct rows device_rows(struct device *d, int64_t n, int64_t width)
{
    const int64_t stride = (width + 15) / 16 * 16;
    const size_t at = d->used;
    size_t count, n_bytes;
    struct rows r = {NULL, n, width, stride};
    if (!num_mul((size_t)n, (size_t)stride, &count) || !num_mul(count, sizeof(float), &n_bytes))
        n_bytes = SIZE_MAX;
    void *p = device_bytes(d, n_bytes);
    r.at = d->dry ? (float *)(uintptr_t)(at + ALIGN) : p;
    return r;
}

void device_read(struct device *d, const void *at, size_t n_bytes)
{
    if (d->ops->read && at && n_bytes && !d->dry)
        d->ops->read(d, at, n_bytes);
}

void device_wrote(struct device *d, const void *at, size_t n_bytes)
{
    if (d->ops->wrote && at && n_bytes && !d->dry)
        d->ops->wrote(d, at, n_bytes);
}

void *device_host_take(struct device *d, size_t n_bytes)
{
    return d->ops->host_take ? d->ops->host_take(d, n_bytes) : mem_big_alloc(n_bytes);
}

void device_host_give(struct device *d, void *at, size_t n_bytes)
{
    if (!at)
        return;
    if (d->ops->host_give)
        d->ops->host_give(d, at, n_bytes);
    else
        mem_big_free(at, n_bytes);
}

size_t device_mark(const struct device *d)
{
    return d->used;
}

void device_release(struct device *d, size_t mark)
{
    if (d->ops->released)
        d->ops->released(d, mark);
    d->used = mark;
}

void device_dry_begin(struct device *d)
{
    device_begin(d, NULL);
    d->dry = true;
    d->peak = d->held = 0;
}

size_t device_dry_end(struct device *d)
{
    device_release(d, 0);
    d->dry = false;
    return d->peak + device_near_bytes(d);
}

size_t device_dry_held(const struct device *d)
{
    return d->held;
}

ingle_status device_arena_reserve(struct device *d, size_t n_bytes, struct err *err)
{
    const ingle_status s = device_near_reserve(d, err);
    if (s || n_bytes <= d->cap)
        return s;
    if (d->ops->arena) {
        d->filled = 0;
        return d->ops->arena(d, n_bytes, err);
    }
    void *p = mem_big_alloc(n_bytes);
    if (!p)
        return err_set(err, INGLE_NOMEM, "no %zu bytes of scratch for a step", n_bytes);
    numa_interleave(p, n_bytes, &d->nodes);
    mem_big_free(d->arena, d->cap);
    d->arena = p;
    d->cap = n_bytes;
    d->filled = 0;
    return INGLE_OK;
}

size_t device_arena_bytes(const struct device *d)
{
    return d->cap;
}

bool device_arena_fill(struct device *d, size_t n_bytes)
{
    const size_t end = n_bytes < d->cap ? n_bytes : d->cap,
                 most = (size_t)pool_size(d->pool) * MEM_BIG_PAGE;
    const size_t left = end > d->filled ? end - d->filled : 0;
    const size_t n = left < most ? left : most;
    pool_fill(d->pool, d->arena + d->filled, n);
    d->filled += n;
    return n > 0;
}

/* ---- the step ---- */

/* Once for each change. */
static void report_resting(struct device *d)
{
    const int n = pool_resting(d->pool), all = pool_size(d->pool);
    char subject[32];
    if (n == d->n_resting)
        return;
    snprintf(subject, sizeof subject, "%d threads", all);
    if (n)
        report(d->sink, INGLE_REPORT_WARN, "threads", subject,
               "processors were taken from this process: %d of them rest, %d compute", n, all - n);
    else
        report(d->sink, INGLE_REPORT_NOTE, "threads", subject,
               "processors were given back: all of them compute");
    d->n_resting = n;
}

void device_begin(struct device *d, const atomic_bool *cancel)
{
    device_release(d, d->base);
    d->err.status = INGLE_OK;
    d->cancel = cancel;
    device_prompt_rows(d, 0, 0);
    report_resting(d);
}

const atomic_bool *device_cancel(const struct device *d)
{
    return d->cancel;
}

void device_prompt_rows(struct device *d, int64_t n_rows, int64_t n_prompt)
{
    d->step_rows = n_rows;
    d->prompt_rows = n_prompt;
}

int64_t device_step_prompt(const struct device *d)
{
    return d->prompt_rows;
}

void device_fail(struct device *d, const struct err *err)
{
    if (d->err.status == INGLE_OK)
        d->err = *err;
}

ingle_status device_status(const struct device *d, struct err *err)
{
    if (d->err.status != INGLE_OK && err)
        *err = d->err;
    return d->err.status;
}

/* ---- a step between ---- */

void device_set_between(struct device *d, struct device_between *between)
{
    d->between = between;
    if (!between)
        return;
    between->next_ns = 0;
    memset(between->longest_ns, 0, sizeof between->longest_ns);
    between->last = clock_now();
}

void device_suspend(struct device *d, struct device_suspended *s)
{
    *s = (struct device_suspended){d->base, d->used,   d->step_rows, d->prompt_rows,
                                   d->err,  d->cancel, d->between,   d->stage};
    d->base = d->used;
    d->stage = DEVICE_STAGE_STEP;
    d->between = NULL;
}

void device_resume(struct device *d, const struct device_suspended *s)
{
    device_release(d, s->used);
    d->base = s->base;
    device_prompt_rows(d, s->step_rows, s->prompt_rows);
    d->err = s->err;
    d->cancel = s->cancel;
    d->between = s->between;
    d->stage = s->stage;
    if (d->between)
        d->between->last = clock_now();
    if (d->ops->resumed)
        d->ops->resumed(d);
}

void device_profile(struct device *d, bool on)
{
    d->profiled = on;
    memset(d->op_ns, 0, sizeof d->op_ns);
    memset(d->op_calls, 0, sizeof d->op_calls);
    memset(d->op_joins, 0, sizeof d->op_joins);
    memset(d->op_launches, 0, sizeof d->op_launches);
    memset(d->op_cost, 0, sizeof d->op_cost);
}

enum device_stage device_set_stage(struct device *d, enum device_stage stage)
{
    const enum device_stage before = d->stage;
    d->stage = stage;
    return before;
}

int device_profile_read(const struct device *d, struct device_profile *out, int n_max)
{
    static const char *const name[][DEVICE_STAGES] = {
#define X(n) {#n, "draft " #n, "observe " #n},
        DEVICE_OP_LIST(X)
#undef X
    };
    int n = 0;
    for (int s = 0; s < DEVICE_STAGES; s++)
        for (int i = 0; i < DEVICE_OPS && n < n_max; i++)
            if (d->op_calls[s][i])
                out[n++] = (struct device_profile){.op = name[i][s],
                                                   .calls = d->op_calls[s][i],
                                                   .ns = d->op_ns[s][i],
                                                   .joins = d->op_joins[s][i],
                                                   .launches = d->op_launches[s][i],
                                                   .bytes = d->op_cost[s][i].bytes,
                                                   .ops = d->op_cost[s][i].ops};
    return n;
}

static uint64_t launches(struct device *d)
{
    return d->profiled && d->ops->launches ? d->ops->launches(d) : 0;
}

static void run(struct device *d, enum device_op op, const void *args)
{
    const size_t mark = d->used;
    const size_t need = d->ops->scratch(d, op, args);
    if (d->dry) {
        d->held = d->used > d->held ? d->used : d->held;
        device_near_want(d, device_cpu_codes(d, op, args));
    }
    void *scratch = need ? device_bytes(d, need) : NULL;
    if (device_runs(d)) {
        const uint64_t n = launches(d), joins = pool_joins(d->pool);
        const uint64_t t0 = d->profiled ? clock_now() : 0;
        d->ops->run[op](d, args, scratch);
        if (d->profiled) {
            d->op_launches[d->stage][op] += launches(d) - n;
            d->op_joins[d->stage][op] += pool_joins(d->pool) - joins;
            d->op_ns[d->stage][op] += clock_now() - t0;
            d->op_calls[d->stage][op]++;
            const struct device_cost c = d->ops->cost(d, op, args);
            d->op_cost[d->stage][op].bytes += c.bytes;
            d->op_cost[d->stage][op].ops += c.ops;
        }
    }
    device_release(d, mark);
    device_may_stop(d, 0);
}

/* ---- operations ---- */

void device_embed(struct device *d, struct rows y, const struct device_matrix *m,
                  const int32_t *tokens, float scale)
{
    run(d, DEVICE_OP_embed, &(struct device_embed_args){y, m, tokens, scale});
}

void device_write(struct device *d, struct rows y, const float *src, int64_t src_stride)
{
    run(d, DEVICE_OP_write, &(struct device_write_args){y, src, src_stride});
}

void device_copy(struct device *d, struct rows y, struct rows x)
{
    run(d, DEVICE_OP_copy, &(struct device_copy_args){y, x});
}

void device_gather(struct device *d, struct rows y, struct rows x, const int32_t *row)
{
    run(d, DEVICE_OP_gather, &(struct device_gather_args){y, x, row});
}

struct device_routed device_route(struct device *d, const struct device_route *r,
                                  struct rows scores)
{
    const size_t n = (size_t)(scores.n * r->k);
    struct device_routed out = {.k = r->k,
                                .id = device_bytes(d, n * sizeof *out.id),
                                .weight = device_bytes(d, n * sizeof *out.weight)};
    if (r->pairs) {
        out.first = device_bytes(d, (size_t)(scores.width + 2) * sizeof *out.first);
        out.row = device_bytes(d, n * sizeof *out.row);
        out.slot = device_bytes(d, n * sizeof *out.slot);
    }
    run(d, DEVICE_OP_route, &(struct device_route_args){r, scores, out});
    return out;
}

void device_norm(struct device *d, struct rows y, struct rows x, const struct device_vector *w,
                 int64_t n_heads, float eps)
{
    run(d, DEVICE_OP_norm, &(struct device_norm_args){y, x, w, n_heads, eps});
}

void device_add_norm(struct device *d, struct rows x, struct rows y,
                     const struct device_vector *w, float eps, float scale)
{
    run(d, DEVICE_OP_add_norm, &(struct device_add_norm_args){x, y, w, eps, scale});
}

void device_add(struct device *d, struct rows x, struct rows y)
{
    run(d, DEVICE_OP_add, &(struct device_add_args){x, y});
}

void device_scale(struct device *d, struct rows y, struct rows x, float s)
{
    run(d, DEVICE_OP_scale, &(struct device_scale_args){y, x, s});
}

void device_mul(struct device *d, struct rows y, struct rows x)
{
    run(d, DEVICE_OP_mul, &(struct device_mul_args){y, x});
}

void device_mul_vector(struct device *d, struct rows y, const struct device_vector *w)
{
    run(d, DEVICE_OP_mul_vector, &(struct device_mul_vector_args){y, w});
}

void device_glu(struct device *d, enum device_glu act, float limit, struct rows y,
                struct rows gate, struct rows up)
{
    run(d, DEVICE_OP_glu, &(struct device_glu_args){act, limit, y, gate, up});
}

void device_softcap(struct device *d, struct rows y, float cap)
{
    run(d, DEVICE_OP_softcap, &(struct device_softcap_args){y, cap});
}

void device_softmax(struct device *d, struct rows y)
{
    run(d, DEVICE_OP_softmax, &(struct device_softmax_args){y});
}

struct device_rope device_rope_table(struct device *d, const int64_t *pos, int64_t n,
                                     const double *inv_freq, int64_t n_pairs)
{
    const struct device_rope r = {device_rows(d, n, 2 * n_pairs), n_pairs};
    run(d, DEVICE_OP_rope_table, &(struct device_rope_table_args){r.cs, pos, inv_freq, n_pairs});
    return r;
}

void device_rope(struct device *d, struct rows x, const struct device_rope *r, int64_t n_heads,
                 int64_t half)
{
    run(d, DEVICE_OP_rope, &(struct device_rope_args){x, r, n_heads, half});
}

void device_matmul(struct device *d, const struct device_product *p, int64_t n)
{
    if (d->watch)
        device_watch_products(d, p, n);
    run(d, DEVICE_OP_matmul, &(struct device_matmul_args){p, n, NULL, 0});
}

void device_matmul_columns(struct device *d, const struct device_product *p,
                           const struct device_columns *only, int64_t n_only)
{
    if (n_only)
        run(d, DEVICE_OP_matmul, &(struct device_matmul_args){p, 1, only, n_only});
    else
        device_matmul(d, p, 1);
}

void device_mlp(struct device *d, const struct device_mlp *m, struct rows x, struct rows y)
{
    if (d->watch)
        device_watch_mlp(d, m, x, y);
    else
        run(d, DEVICE_OP_mlp, &(struct device_mlp_args){m, x, y, NULL});
}

void device_mlp_both(struct device *d, const struct device_mlp_call *a,
                     const struct device_mlp_call *b)
{
    if (d->ops == &device_cpu_ops && !d->watch) {
        run(d, DEVICE_OP_mlp, &(struct device_mlp_args){a->m, a->x, a->y, b});
        return;
    }
    device_mlp(d, a->m, a->x, a->y);
    device_mlp(d, b->m, b->x, b->y);
}

void device_kv_append(struct device *d, const struct device_kv *kv,
                      const struct device_span *span, int64_t n_spans, struct rows k,
                      struct rows v)
{
    run(d, DEVICE_OP_kv_append, &(struct device_kv_append_args){kv, span, n_spans, k, v});
}

void device_attend(struct device *d, const struct device_kv *kv, const struct device_span *span,
                   int64_t n_spans, struct rows q, int64_t n_q_heads, struct rows out,
                   int64_t window, float scale)
{
    run(d, DEVICE_OP_attend,
        &(struct device_attend_args){kv, span, n_spans, q, n_q_heads, out, window, scale});
}

void device_probe(struct device *d, const struct device_kv *kv, const struct device_span *span,
                  struct rows q, int64_t n_q_heads, float scale, float *best, float *room,
                  int64_t stride)
{
    run(d, DEVICE_OP_probe,
        &(struct device_probe_args){kv, span, q, n_q_heads, scale, best, room, stride});
}

void device_shadow_append(struct device *d, const struct device_shadow *shadow,
                          const struct device_kv *kv, const struct device_span *span,
                          const struct device_span *own, int64_t n_spans, struct rows k)
{
    run(d, DEVICE_OP_shadow_append,
        &(struct device_shadow_append_args){shadow, kv, span, own, n_spans, k});
}

void device_select_pages(struct device *d, const struct device_page_select *p, struct rows q,
                         int64_t n_q_heads, float scale)
{
    run(d, DEVICE_OP_select_pages, &(struct device_select_pages_args){p, q, n_q_heads, scale});
}

void device_attend_selected(struct device *d, const struct device_kv *kv,
                          const struct device_page_select *p, int64_t head, struct rows q,
                          int64_t n_q_heads, struct rows out, float scale)
{
    run(d, DEVICE_OP_attend_selected,
        &(struct device_attend_selected_args){kv, p, head, q, n_q_heads, out, scale});
}

void device_weighted_sum(struct device *d, struct rows out, struct rows y, const int32_t *slot,
                         const float *weight, int64_t k)
{
    run(d, DEVICE_OP_weighted_sum, &(struct device_weighted_sum_args){out, y, slot, weight, k});
}

void device_sqrt_softplus(struct device *d, struct rows y)
{
    run(d, DEVICE_OP_sqrt_softplus, &(struct device_sqrt_softplus_args){y});
}

void device_rope_pairs(struct device *d, struct rows x, const struct device_rope *r,
                       int64_t n_heads, int64_t first, bool inverse)
{
    run(d, DEVICE_OP_rope_pairs, &(struct device_rope_pairs_args){x, r, n_heads, first, inverse});
}

void device_hc_pre(struct device *d, const struct device_hc *hc, struct rows x, struct rows mix,
                   struct rows out, struct rows gates)
{
    run(d, DEVICE_OP_hc_pre, &(struct device_hc_pre_args){hc, x, mix, out, gates});
}

void device_hc_post(struct device *d, const struct device_hc *hc, struct rows x, struct rows out,
                    struct rows gates, struct rows y)
{
    run(d, DEVICE_OP_hc_post, &(struct device_hc_post_args){hc, x, out, gates, y});
}

void device_rows_append(struct device *d, const struct device_stream *s,
                        const struct device_span *span, int64_t n_spans, struct rows x)
{
    run(d, DEVICE_OP_rows_append, &(struct device_rows_append_args){s, span, n_spans, x});
}

void device_rows_read(struct device *d, const struct device_stream *s,
                      const struct device_span *span, int64_t n_spans, struct rows y)
{
    run(d, DEVICE_OP_rows_read, &(struct device_rows_read_args){s, span, n_spans, y});
}

void device_compress(struct device *d, const struct device_compress *c,
                     const struct device_span *in, const struct device_span *out,
                     int64_t n_spans)
{
    run(d, DEVICE_OP_compress, &(struct device_compress_args){c, in, out, n_spans});
}

void device_hadamard(struct device *d, struct rows x, int64_t n_heads)
{
    run(d, DEVICE_OP_hadamard, &(struct device_hadamard_args){x, n_heads});
}

void device_select(struct device *d, const struct device_select *s,
                   const struct device_span *span, int64_t n_spans, struct rows q,
                   struct rows weight, int32_t *sel, int32_t *count)
{
    run(d, DEVICE_OP_select,
        &(struct device_select_args){s, span, n_spans, q, weight, sel, count});
}

void device_attend_latent(struct device *d, const struct device_latent *a,
                          const struct device_span *near, const struct device_span *far,
                          int64_t n_spans, struct rows q, int64_t n_heads, struct rows out,
                          float scale)
{
    run(d, DEVICE_OP_attend_latent,
        &(struct device_attend_latent_args){a, near, far, n_spans, q, n_heads, out, scale});
}

void device_clamp(struct device *d, struct rows y, struct rows x, float least, float most)
{
    run(d, DEVICE_OP_clamp, &(struct device_clamp_args){y, x, least, most});
}

void device_layer_norm(struct device *d, struct rows y, struct rows x,
                       const struct device_vector *w, const struct device_vector *b, float eps)
{
    run(d, DEVICE_OP_layer_norm, &(struct device_layer_norm_args){y, x, w, b, eps});
}

struct device_dense device_dense_make(struct device *d, int64_t n, int64_t n_heads, int64_t width)
{
    struct device_dense kv = {.n = n, .n_heads = n_heads, .width = width};
    size_t bytes = SIZE_MAX;
    device_cpu_dense_bytes(width, &kv.k_bytes, &kv.v_bytes);
    const size_t tiles = (size_t)num_div_up(n, DEVICE_DENSE_TILE) * (size_t)n_heads;
    if (!num_mul(tiles, kv.k_bytes + kv.v_bytes, &bytes))
        bytes = SIZE_MAX;
    kv.at = device_bytes(d, bytes);
    return kv;
}

void device_dense_put(struct device *d, const struct device_dense *to, int64_t row0, struct rows k,
                      struct rows v)
{
    run(d, DEVICE_OP_dense_put, &(struct device_dense_put_args){to, row0, k, v});
}

void device_dense_attend(struct device *d, const struct device_dense *kv, struct rows q,
                         struct rows out)
{
    run(d, DEVICE_OP_dense_attend, &(struct device_dense_attend_args){kv, q, out});
}

void device_each(struct device *d, int64_t n, int64_t work, device_each_fn *fn, void *arg)
{
    run(d, DEVICE_OP_each, &(struct device_each_args){n, work, fn, arg});
}

bool device_find_bad(struct device *d, struct rows x, int64_t *row, int64_t *column)
{
    if (!device_runs(d))
        return false;
    device_read_rows(d, x);
    for (int64_t i = 0; i < x.n; i++) {
        const int64_t j = d->kern.math.find_bad(x.at + i * x.stride, x.width);
        if (j >= 0) {
            *row = i;
            *column = j;
            return true;
        }
    }
    return false;
}
