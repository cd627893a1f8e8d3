/* SPDX-License-Identifier: Apache-2.0 */
/* device - made and freed: threads, nodes, kernels. */
#include "device/device.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/spare.h"
#include "device/near.h"
#include "device/ops.h"
#include <stdio.h>
#include <string.h>

static bool copy_topology(struct cpu_topology *t, const struct cpu_topology *from)
{
    *t = *from;
    t->cpu = mem_calloc((size_t)from->n_cpus, sizeof *t->cpu);
    if (t->cpu)
        memcpy(t->cpu, from->cpu, (size_t)from->n_cpus * sizeof *t->cpu);
    return t->cpu;
}

/* What of the machine, or of what was requested, is not used. */
static void report_spare(const struct device *d, const struct device_options *o,
                         const struct cpu_topology *t, int n_threads)
{
    char spare[SPARE_BYTES], subject[32];
    snprintf(subject, sizeof subject, "%d threads", n_threads);
    if (o->numa == DEVICE_NUMA_AUTO && spare_report(spare, t, ""))
        report(d->sink, INGLE_REPORT_NOTE, "numa", "nodes", "%s", spare);
    if (o->numa == DEVICE_NUMA_INTERLEAVE && t->n_nodes == 1)
        report(d->sink, INGLE_REPORT_WARN, "numa", "interleave",
               "processors of this process are of one memory node: nothing is interleaved");
    if (o->pin && n_threads > t->n_cpus)
        report(d->sink, INGLE_REPORT_WARN, "threads", subject,
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
                                       : pool_create_with(&d->pool, n_threads, o->pin, &t, err);
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
    d->small_work = d->quiet_small_work =
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
