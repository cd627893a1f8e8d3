/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/hub.h"

#include "base/cpu.h"
#include "base/disk.h"
#include "base/mem.h"
#include "base/numa.h"
#include "base/spare.h"
#include "base/pool.h"
#include "base/size.h"
#include "base/write.h"
#include "media/media.h"
#include "tool/tool.h"

#include <string.h>

enum { MAX_KERNELS = 64 };

struct findings {
    struct cpu_machine machine;
    uint32_t have, used; /* instruction bundles */
    int threads;
    bool pinned;
    char numa[32]; /* what is done with several nodes */
    struct cpu_topology topology;
    int unbound;   /* threads that the system did not bind */
    double join_us;
    double huge;   /* the share of a trial's memory that came as huge pages */
    char huge_pages[64];
    struct cli_rate read;
    struct tool_kernel kernel[MAX_KERNELS];
    size_t n_kernels;
    int n_failed;
    bool has_card;
    struct tool_card card;
    char no_card[256]; /* why there is none */
    struct err decoder; /* its status: whether pictures and sounds can be decoded */
    int landlock;       /* the kernel's version of it; 0: none */
};

/* The word in brackets of "always [madvise] never". */
static void read_huge_pages(char *out, size_t n)
{
    char line[128] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    snprintf(out, n, "unknown");
    if (!f)
        return;
    if (fgets(line, sizeof line, f)) {
        const char *a = strchr(line, '['), *b = a ? strchr(a, ']') : NULL;
        if (b)
            snprintf(out, n, "%.*s", (int)(b - a - 1), a + 1);
    }
    fclose(f);
}

static void add_bundles(char *out, size_t n, uint32_t have)
{
    static const char *const level[] = {"avx2",       "avxvnni",    "avx512",
                                        "avx512vnni", "avx512vbmi", "amx"};
    static const uint32_t bit[] = {CPU_AVX2,       CPU_AVXVNNI,    CPU_AVX512,
                                   CPU_AVX512VNNI, CPU_AVX512VBMI, CPU_AMX};
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < sizeof bit / sizeof *bit; i++)
        if (have & bit[i] && at < n)
            at += (size_t)snprintf(out + at, n - at, "%s%s", at ? " " : "", level[i]);
}

/* Whether a file can be decoded: in the process that every picture gets. */
static void try_decoder(struct err *err)
{
    struct media_decoder *d = NULL;
    err->status = INGLE_OK;
    ingle_status st = media_decoder_create(&d, err);
    if (!st)
        st = media_decoder_check(d, err);
    err->status = st;
    media_decoder_free(d);
}

/* The share of memory that comes as huge pages, of some that is taken as weights are. */
static double try_huge_pages(struct pool *pool)
{
    enum { BYTES = 64 << 20 };
    uint8_t *at = mem_big_alloc(BYTES);
    if (!at)
        return 0;
    pool_fill(pool, at, BYTES);
    for (size_t i = 0; i < BYTES; i += 4096)
        at[i] = 1;
    const double share = (double)mem_huge_bytes(at, BYTES) / (double)BYTES;
    mem_big_free(at, BYTES);
    return share;
}

static ingle_status examine(struct cli *c, struct findings *f, struct err *err)
{
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    const struct report_sink sink = {callbacks.report, callbacks.progress, callbacks.arg};
    const char *level = ingle_config_text(c->config, "cpu", 0);
    struct pool *pool = NULL;
    uint32_t mask = UINT32_MAX;
    cpu_machine_read(&f->machine);
    f->have = cpu_detect();
    if (level && !cpu_level(level, &mask))
        return err_set(err, INGLE_ARG, "there is no instruction set level '%s'", level);
    f->used = f->have & mask;
    f->threads = (int)ingle_config_number(c->config, "threads");
    if (!f->threads)
        f->threads = cpu_default_threads(&f->machine);
    f->pinned = !ingle_config_flag(c->config, "no-pin");
    snprintf(f->numa, sizeof f->numa, ", numa %s", ingle_config_text(c->config, "numa", 0));
    read_huge_pages(f->huge_pages, sizeof f->huge_pages);
    try_decoder(&f->decoder);
    f->landlock = media_landlock();
    f->has_card = tool_card(&f->card, f->no_card, sizeof f->no_card);
    ingle_status st = pool_create(&pool, f->threads, f->pinned, err);
    if (!st) {
        f->unbound = pool_unbound(pool);
        f->join_us = f->threads > 1 ? 1e-3 * (double)pool_join_ns(pool) : 0;
        f->huge = try_huge_pages(pool);
        if (!cpu_topology_read(&f->topology))
            st = err_set(err, INGLE_NOMEM, "no memory for the processors' places");
    }
    if (!st)
        st = cli_memory_rate(pool, f->machine.n_logical, &f->read, err);
    if (!st)
        st = tool_kernels(pool, f->used, &sink, f->kernel, MAX_KERNELS, &f->n_kernels, &f->n_failed,
                          err);
    pool_free(pool);
    return st;
}

static void print_formats(const struct findings *f)
{
    const char *between = "";
    fputs("pictures, sound  ", stdout);
    if (f->decoder.status) {
        printf("none: %s\n", CLI_SHOWN(f->decoder.msg));
        return;
    }
    for (int k = MEDIA_UNKNOWN + 1; k < MEDIA_N_KINDS; k++)
        if (media_can_decode((enum media_kind)k)) {
            printf("%s%s", between, media_kind_name((enum media_kind)k));
            between = ", ";
        }
    for (int k = MEDIA_UNKNOWN + 1; k < MEDIA_N_KINDS; k++)
        if (!media_can_decode((enum media_kind)k))
            printf("; no %s: built without %s", media_kind_name((enum media_kind)k),
                   media_library((enum media_kind)k));
    if (f->landlock)
        printf("\n                 in a process with a filter for system calls and Landlock "
               "(version %d)\n",
               f->landlock);
    else
        puts("\n                 in a process with a filter for system calls; this kernel has no "
             "Landlock");
}

static void print_card(const struct findings *f)
{
    const struct tool_card *k = &f->card;
    if (!f->has_card) {
        printf("graphics card    none: %s\n", CLI_SHOWN(f->no_card));
        return;
    }
    printf("graphics card    %d: %s, compute capability %d.%d, driver for CUDA %d.%d\n", k->number,
           CLI_SHOWN(k->name), k->major, k->minor, k->driver / 1000, k->driver % 1000 / 10);
    printf("                 %.1f GiB, free %.1f GiB%s\n", (double)k->bytes / 1073741824.0,
           (double)k->free_bytes / 1073741824.0,
           k->integrated ? ", of the processor's memory" : "");
}

static void print_kernel(const struct tool_kernel *k)
{
    printf("  %-11s %-36s", k->type, k->name);
    if (k->ops_per_s > 0)
        printf(" %10.1f G operations/s", k->ops_per_s / 1e9);
    if (k->many && k->many_from == INT64_MAX)
        printf("\n  %-11s %-36s for many rows; not faster here", "", k->many);
    else if (k->many)
        printf("\n  %-11s %-36s from %lld rows on", "", k->many, (long long)k->many_from);
    if (k->fast)
        printf("\n  %-11s %-36s with --numerics fast (%s)", "", k->fast, k->recipe);
    putchar('\n');
}

/* A line for each node that has processors of ours, if there are several, and what is not used. */
static void print_nodes(const struct findings *f)
{
    static const double gib = 1024.0 * 1024 * 1024;
    const struct cpu_topology *t = &f->topology;
    for (int k = 0; t->n_nodes > 1 && k < t->n_nodes; k++) {
        uint64_t bytes, free_bytes;
        int n = 0;
        for (int i = 0; i < t->n_cpus; i++)
            n += t->cpu[i].node == k;
        numa_memory(t->node_id[k], &bytes, &free_bytes);
        printf("  node %-10d %d processors, %.1f GiB, free %.1f GiB%s\n", t->node_id[k], n,
               (double)bytes / gib, (double)free_bytes / gib,
               bytes && free_bytes < bytes / 50 ? ": full, weights will lie elsewhere" : "");
    }
    char spare[SPARE_BYTES];
    if (spare_report(spare, t, ""))
        printf("                 %s\n", spare);
}

static void print_threads(const struct findings *f)
{
    const bool many = f->threads > f->topology.n_cpus;
    printf("threads          %d, %s", f->threads,
           f->pinned && !many ? "bound to cores" : "not bound");
    if (f->pinned && many)
        printf(": they are more than the processors (%d)", f->topology.n_cpus);
    if (f->unbound)
        printf("; %d of them the system did not bind", f->unbound);
    if (f->threads > 1)
        printf("; a job that they share costs %.1f us", f->join_us);
    putchar('\n');
}

static void print_text(const struct findings *f, bool verbose)
{
    const double gib = 1024.0 * 1024 * 1024;
    const struct cpu_machine *m = &f->machine;
    char bundles[128];
    add_bundles(bundles, sizeof bundles, f->have);
    printf("processor        %s\n", m->model[0] ? m->model : "unknown");
    printf("cores            %d, ", m->n_physical);
    if (m->n_slow)
        printf("%d of them slow, ", m->n_slow);
    printf("%d processors in %d package%s, quota %.1f\n", m->n_logical, m->n_packages,
           m->n_packages == 1 ? "" : "s", m->quota_cores);
    printf("memory nodes     %d%s\n", m->n_nodes, m->n_nodes > 1 ? f->numa : "");
    print_nodes(f);
    printf("instructions     %s\n", bundles[0] ? bundles : "none that ingle has kernels for");
    printf("caches           L1d %zu KiB, L2 %zu KiB, L3 %zu KiB\n", m->l1d_bytes >> 10,
           m->l2_bytes >> 10, m->l3_bytes >> 10);
    printf("memory           %.1f GiB, limit of the control group %.1f GiB, free %.1f GiB\n",
           (double)m->memory_bytes / gib, (double)m->memory_limit_bytes / gib,
           (double)m->memory_free_bytes / gib);
    if (m->memory_unread)
        puts("                 /proc/meminfo cannot be read: what of it is free is not known");
    printf("huge pages       %s; %.0f %% of 64 MiB that were tried\n", f->huge_pages,
           f->huge * 100);
    print_threads(f);
    cli_memory_rate_print(&f->read);
    printf("kernels          up to %s; %d of them failed their self-test%s\n", cpu_name(f->used),
           f->n_failed, verbose ? "" : " (-v lists them)");
    print_formats(f);
    print_card(f);
    puts("\nWhat that means for published models in the free memory ('ingle models' has all, with "
         "the commands):");
    cli_models_short(m->memory_free_bytes, f->read.bytes_per_s);
    if (verbose)
        puts("\nkernels");
    for (size_t i = 0; verbose && i < f->n_kernels; i++)
        print_kernel(&f->kernel[i]);
}

static void write_formats(struct str *out, const struct findings *f)
{
    write_key(out, "media_formats");
    write_open(out, '[');
    for (int k = MEDIA_UNKNOWN + 1; k < MEDIA_N_KINDS; k++)
        if (media_can_decode((enum media_kind)k) && !f->decoder.status)
            write_text(out, media_kind_name((enum media_kind)k));
    write_close(out, ']');
    write_member_int(out, "landlock", f->landlock);
}

static void write_card(struct str *out, const struct findings *f)
{
    const struct tool_card *k = &f->card;
    if (!f->has_card) {
        write_member_null(out, "gpu");
        write_member(out, "gpu_why", f->no_card);
        return;
    }
    char version[32];
    snprintf(version, sizeof version, "%d.%d", k->major, k->minor);
    write_key(out, "gpu");
    write_open(out, '{');
    write_member(out, "name", k->name);
    write_member_int(out, "number", k->number);
    write_member(out, "compute_capability", version);
    snprintf(version, sizeof version, "%d.%d", k->driver / 1000, k->driver % 1000 / 10);
    write_member(out, "driver", version);
    write_member_uint(out, "memory_bytes", k->bytes);
    write_member_uint(out, "free_bytes", k->free_bytes);
    write_member_bool(out, "integrated", k->integrated);
    write_close(out, '}');
}

static void write_nodes(struct str *out, const struct findings *f)
{
    const struct cpu_topology *t = &f->topology;
    write_key(out, "memory_nodes");
    write_open(out, '[');
    for (int k = 0; k < t->n_nodes; k++) {
        uint64_t bytes, free_bytes;
        int n = 0;
        for (int i = 0; i < t->n_cpus; i++)
            n += t->cpu[i].node == k;
        numa_memory(t->node_id[k], &bytes, &free_bytes);
        write_open(out, '{');
        write_member_int(out, "node", t->node_id[k]);
        write_member_int(out, "processors", n);
        write_member_uint(out, "bytes", bytes);
        write_member_uint(out, "free_bytes", free_bytes);
        write_close(out, '}');
    }
    write_close(out, ']');
    char spare[SPARE_BYTES];
    if (spare_report(spare, t, ""))
        write_member(out, "nodes_not_used", spare);
    write_member_fixed(out, "huge_share", 3, f->huge);
    write_member_int(out, "unbound_threads", f->unbound);
    write_member_fixed(out, "join_us", 3, f->join_us);
}

static void print_json(const struct findings *f)
{
    const struct cpu_machine *m = &f->machine;
    char bundles[128];
    add_bundles(bundles, sizeof bundles, f->have);
    struct str out;
    cli_json(&out);
    write_open(&out, '{');
    write_member(&out, "processor", m->model);
    write_member_int(&out, "cores", m->n_physical);
    write_member_int(&out, "processors", m->n_logical);
    write_member_int(&out, "slow_cores", m->n_slow);
    write_member_int(&out, "packages", m->n_packages);
    write_member_int(&out, "nodes", m->n_nodes);
    write_member_fixed(&out, "quota_cores", 2, m->quota_cores);
    write_member(&out, "instructions", bundles);
    write_member(&out, "used", cpu_name(f->used));
    write_member_uint(&out, "l1d_bytes", m->l1d_bytes);
    write_member_uint(&out, "l2_bytes", m->l2_bytes);
    write_member_uint(&out, "l3_bytes", m->l3_bytes);
    write_member_uint(&out, "memory_bytes", m->memory_bytes);
    write_member_uint(&out, "memory_limit_bytes", m->memory_limit_bytes);
    write_member_uint(&out, "memory_free_bytes", m->memory_free_bytes);
    write_member(&out, "huge_pages", f->huge_pages);
    write_member_int(&out, "threads", f->threads);
    write_member_bool(&out, "pinned", f->pinned && f->threads <= m->n_logical);
    write_member_significant(&out, "read_bytes_per_s", 6, f->read.bytes_per_s);
    write_member_int(&out, "busy_rounds", f->read.n_busy);
    write_member_int(&out, "failed_kernels", f->n_failed);
    write_nodes(&out, f);
    write_formats(&out, f);
    write_card(&out, f);
    write_key(&out, "kernels");
    write_open(&out, '[');
    for (size_t i = 0; i < f->n_kernels; i++) {
        const struct tool_kernel *k = &f->kernel[i];
        write_open(&out, '{');
        write_member(&out, "type", k->type);
        write_member(&out, "kernel", k->name);
        write_member_significant(&out, "ops_per_s", 6, k->ops_per_s);
        if (k->many)
            write_member(&out, "many", k->many);
        if (k->many && k->many_from != INT64_MAX)
            write_member_int(&out, "many_from", k->many_from);
        if (k->fast) {
            write_member(&out, "fast", k->fast);
            write_member(&out, "recipe", k->recipe);
        }
        write_close(&out, '}');
    }
    write_close(&out, ']');
    write_close(&out, '}');
    cli_json_end(&out, "\n");
}

/* ---- --disk ---- */

enum { USUAL_READ = 4 << 20, N_DEPTHS = 4, N_SHARES = 4 };

/* Bytes of one expert of a model's file, or of a usual read; *m: the model, or NULL where the file
 * is none with experts. */
static uint64_t read_size(struct cli *c, const char *path, struct ingle_model **m,
                          struct ingle_plan *all)
{
    struct ingle_error error;
    const struct ingle_callbacks quiet = {.report = NULL};
    struct ingle_engine_options o = {.callbacks = quiet};
    ingle_config_engine(c->config, &o);
    *m = NULL;
    if (ingle_model_open(m, path, &quiet, &error))
        return USUAL_READ;
    if (!ingle_engine_plan(*m, &o, all, &error) && all->expert_bytes && all->n_experts)
        return all->expert_bytes / all->n_experts;
    ingle_model_close(*m);
    *m = NULL;
    return USUAL_READ;
}

static void print_shares(struct cli *c, struct ingle_model *m, const struct ingle_plan *all,
                         struct str *out)
{
    static const int share[N_SHARES] = {10, 30, 50, 70};
    struct ingle_error error;
    struct ingle_plan p;
    for (int i = 0; i < N_SHARES; i++) {
        struct ingle_engine_options o = {.callbacks = {.report = NULL}};
        ingle_config_engine(c->config, &o);
        o.force = true; /* what a machine with so much memory would do */
        o.expert_bytes = all->expert_bytes / 100 * (uint64_t)share[i];
        if (ingle_engine_plan(m, &o, &p, &error) || !(p.tokens_high > 0))
            continue;
        if (out) {
            write_open(out, '{');
            write_member_fixed(out, "share", 2, share[i] * 0.01);
            write_member_uint(out, "expert_memory_bytes", p.expert_memory_bytes);
            write_key(out, "tokens_per_s");
            write_open(out, '[');
            write_fixed(out, 3, p.tokens_low);
            write_fixed(out, 3, p.tokens_high);
            write_close(out, ']');
            write_close(out, '}');
        } else
            printf("%3d %% of experts in memory (%s)   %.1f to %.1f tokens a second in decode\n",
                   share[i], SIZE_OF(p.expert_memory_bytes), p.tokens_low, p.tokens_high);
    }
}

static int measure_disk(struct cli *c, const char *path)
{
    static const int depth[N_DEPTHS] = {1, 2, 4, 8};
    static const uint64_t ns = 250000000;
    const bool json = ingle_config_flag(c->config, "json");
    struct ingle_model *m;
    struct ingle_plan all;
    struct disk_rate rate[N_DEPTHS];
    struct err err;
    const uint64_t n_bytes = read_size(c, path, &m, &all);
    ingle_status st = INGLE_OK;
    for (int i = 0; !st && i < N_DEPTHS; i++)
        st = disk_measure(path, n_bytes, depth[i], ns, &rate[i], &err);
    if (st) {
        ingle_model_close(m);
        return cli_fail_err(c, &err);
    }
    struct str out;
    cli_json(&out);
    if (json) {
        write_open(&out, '{');
        write_member_uint(&out, "read_bytes", n_bytes);
        write_member_bool(&out, "experts", m != NULL);
        write_member_bool(&out, "direct", rate[0].direct);
        write_key(&out, "rates");
        write_open(&out, '[');
    } else
        printf("reads of %.2f MB at random places (%s), %s\n", (double)n_bytes * 1e-6,
               m ? "one expert" : "no model with experts",
               rate[0].direct ? "direct" : "through the page cache: what is in memory counts, too");
    for (int i = 0; i < N_DEPTHS; i++)
        if (json) {
            write_open(&out, '{');
            write_member_int(&out, "at_once", depth[i]);
            write_member_significant(&out, "bytes_per_s", 6, rate[i].bytes_per_s);
            write_member_fixed(&out, "median_ms", 3, rate[i].median_s * 1e3);
            write_close(&out, '}');
        } else
            printf("%2d at a time   %6.2f GB/s   %8.2f ms each (median)\n", depth[i],
                   rate[i].bytes_per_s * 1e-9, rate[i].median_s * 1e3);
    if (json) {
        write_close(&out, ']');
        write_key(&out, "shares");
        write_open(&out, '[');
    }
    if (m)
        print_shares(c, m, &all, json ? &out : NULL);
    if (json) {
        write_close(&out, ']');
        write_close(&out, '}');
        cli_json_end(&out, "\n");
    }
    ingle_model_close(m);
    return CLI_OK;
}

/* ---- --experts-worker ---- */

static void print_worker(const char *address, const struct ingle_worker_seen *w)
{
    printf("worker           %s: ingle %s, %s, %u threads\n", CLI_SHOWN(address),
           CLI_SHOWN(w->engine), CLI_SHOWN(w->cpu), w->threads);
    printf("model            %s: %u layers with %u experts, %u for a row; rows of %u, experts of "
           "%u; compared by %s\n",
           CLI_SHOWN(w->family), w->n_layers, w->n_experts, w->n_used, w->hidden, w->width,
           w->all_bytes ? "all bytes" : "samples");
    printf("its share        layers %s: %llu of their %llu experts have a place (%.0f %%), %.2f "
           "GB; %llu stay there now\n",
           CLI_SHOWN(w->layers),
           (unsigned long long)(w->slots < w->experts ? w->slots : w->experts),
           (unsigned long long)w->experts,
           w->slots < w->experts ? 100.0 * (double)w->slots / (double)w->experts : 100.0,
           (double)w->budget_bytes * 1e-9, (unsigned long long)w->resident);
    printf("arithmetic       %s, version %u, layout %u, protocol %d to %d; at most %u rows and %u "
           "pairs at a time\n",
           CLI_SHOWN(w->numerics), w->arithmetic, w->layout, w->version_min, w->version_max,
           w->most_rows, w->most_pairs);
    printf("connection       after %.1f ms, round trip %.0f us (median)\n", w->connect_ms,
           w->trip_us);
    printf("encryption       %s%s%s\n", w->cipher[0] ? w->cipher : "none",
           w->slow[0] ? ", not AES-256-GCM: " : "", w->slow);
    if (w->no_rates[0])
        printf("rows             not measured: %s\n", CLI_SHOWN(w->no_rates));
    else
        printf("rows             %.2f GB/s through the socket, ", w->socket_bytes_per_s * 1e-9);
    if (!w->no_rates[0] && w->shared_bytes_per_s > 0)
        printf("%.2f GB/s through shared memory\n", w->shared_bytes_per_s * 1e-9);
    else if (!w->no_rates[0])
        printf("none through shared memory (%s)\n", CLI_SHOWN(w->no_share));
    if (w->expert_us > 0)
        printf("computing        %.0f us for an expert with one row\n", w->expert_us);
    if (w->compared)
        printf("this model       %s%s\n",
               w->refused[0] ? "would be refused: " : "can be computed there",
               CLI_SHOWN(w->refused));
}

static void print_worker_json(const char *address, const struct ingle_worker_seen *w)
{
    const struct {
        const char *name, *text;
    } texts[] = {{"address", address},      {"engine", w->engine},     {"cpu", w->cpu},
                 {"family", w->family},     {"numerics", w->numerics}, {"layers", w->layers},
                 {"no_rates", w->no_rates}, {"no_share", w->no_share},
                 {"cipher", w->cipher},     {"slow", w->slow}};
    struct str out;
    cli_json(&out);
    write_open(&out, '{');
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        write_member(&out, texts[i].name, texts[i].text);
    if (w->compared)
        write_member(&out, "refused", w->refused);
    write_member_int(&out, "version_min", w->version_min);
    write_member_int(&out, "version_max", w->version_max);
    write_member_uint(&out, "arithmetic", w->arithmetic);
    write_member_uint(&out, "layout", w->layout);
    write_member_uint(&out, "threads", w->threads);
    write_member_uint(&out, "n_layers", w->n_layers);
    write_member_uint(&out, "n_experts", w->n_experts);
    write_member_uint(&out, "n_used", w->n_used);
    write_member_uint(&out, "hidden", w->hidden);
    write_member_uint(&out, "width", w->width);
    write_member_uint(&out, "most_rows", w->most_rows);
    write_member_uint(&out, "most_pairs", w->most_pairs);
    write_member_bool(&out, "all_bytes", w->all_bytes);
    write_member_uint(&out, "experts", w->experts);
    write_member_uint(&out, "slots", w->slots);
    write_member_uint(&out, "budget_bytes", w->budget_bytes);
    write_member_uint(&out, "resident", w->resident);
    write_member_fixed(&out, "connect_ms", 3, w->connect_ms);
    write_member_fixed(&out, "trip_us", 1, w->trip_us);
    write_member_fixed(&out, "expert_us", 1, w->expert_us);
    write_member_significant(&out, "socket_bytes_per_s", 6, w->socket_bytes_per_s);
    write_member_significant(&out, "shared_bytes_per_s", 6, w->shared_bytes_per_s);
    write_close(&out, '}');
    cli_json_end(&out, "\n");
}

/* Each of "A,B"; a model that is named is compared with theirs. */
static int check_workers(struct cli *c, const char *list)
{
    if (*list == ',' || list[strlen(list) - 1] == ',' || strstr(list, ",,"))
        return cli_usage(c, "--experts-worker '%.200s' has an empty address", list);
    struct ingle_error error;
    struct ingle_model *m = NULL;
    struct ingle_engine_options o = {.callbacks = {.report = NULL}};
    int result = CLI_OK;
    ingle_config_engine(c->config, &o);
    if (ingle_config_is_set(c->config, "model") && cli_open_model(c, &m, &error))
        return cli_fail(c, &error);
    while (*list) {
        char address[256];
        struct ingle_worker_seen w;
        const size_t n = strcspn(list, ",");
        if (n >= sizeof address) {
            ingle_model_close(m);
            return cli_usage(c, "the address of a worker has %zu bytes, the limit is %zu", n,
                             sizeof address - 1);
        }
        snprintf(address, sizeof address, "%.*s", (int)n, list);
        list += n + (list[n] == ',');
        if (ingle_worker_look(address, m, &o, &w, &error)) {
            result = cli_fail(c, &error);
            continue;
        }
        if (ingle_config_flag(c->config, "json"))
            print_worker_json(address, &w);
        else
            print_worker(address, &w);
        if (w.refused[0] || w.no_rates[0])
            result = CLI_FAILURE;
    }
    ingle_model_close(m);
    return result;
}

/* ---- --stages ---- */

static void print_stage(const struct ingle_stage_part *p)
{
    printf("stage            %s: ingle %s, %s, layers %lld:%lld%s\n", CLI_SHOWN(p->address),
           CLI_SHOWN(p->engine), CLI_SHOWN(p->cpu), (long long)p->from, (long long)p->to,
           p->open ? " (it takes those that it is given)" : "");
    printf("  connection     round trip %.0f us; rows %.2f GB/s there, %.2f GB/s back; key %s%s\n",
           p->trip_us, p->out_bytes_per_s * 1e-9, p->in_bytes_per_s * 1e-9,
           *p->cipher ? "yes, " : "no", p->cipher);
    printf("  memory         %s of %s%s; reads %.2f GB/s\n", SIZE_OF(p->total_bytes),
           SIZE_OF(p->limit_bytes), p->fits ? "" : ": does not fit", p->read_bytes_per_s * 1e-9);
}

static void print_best(const struct ingle_stage_part *part, int n, const int64_t *best)
{
    bool same = true;
    printf("\nby memory and speed  --layer-ends ");
    for (int i = 0; i < n; i++) {
        printf("%s%lld", i ? "," : "", (long long)best[i]);
        same = same && best[i] == part[i].to;
    }
    puts(same ? ": as it is" : ": what would be chosen if each could take any layers (ingle worker "
                               "--stage auto)");
}

static void print_stages_json(const struct ingle_stage_part *part, int n, const int64_t *best)
{
    struct str out;
    cli_json(&out);
    write_open(&out, '{');
    write_key(&out, "processes");
    write_open(&out, '[');
    for (int i = 0; i < n; i++) {
        const struct ingle_stage_part *p = &part[i];
        cli_write_part(&out, p);
        if (i) {
            write_member(&out, "engine", p->engine);
            write_member(&out, "cpu", p->cpu);
            write_member(&out, "cipher", p->cipher);
            write_member_fixed(&out, "trip_us", 1, p->trip_us);
            write_member_significant(&out, "out_bytes_per_s", 6, p->out_bytes_per_s);
            write_member_significant(&out, "in_bytes_per_s", 6, p->in_bytes_per_s);
        }
        write_close(&out, '}');
    }
    write_close(&out, ']');
    write_key(&out, "layer_ends");
    write_open(&out, '[');
    for (int i = 0; i < n; i++)
        write_int(&out, best[i]);
    write_close(&out, ']');
    write_close(&out, '}');
    cli_json_end(&out, "\n");
}

static int check_stages(struct cli *c)
{
    struct ingle_error error;
    struct ingle_model *m;
    struct ingle_stage_part part[INGLE_STAGE_PARTS];
    int64_t best[INGLE_STAGE_PARTS];
    struct ingle_plan plan;
    int n = 0;
    struct ingle_engine_options o = {.callbacks = cli_callbacks(c)};
    ingle_config_engine(c->config, &o);
    if (cli_open_model(c, &m, &error))
        return cli_fail(c, &error);
    const ingle_status st = ingle_engine_plan_stages(m, &o, true, &plan, part, &n, best, &error);
    ingle_model_close(m);
    if (st)
        return cli_fail(c, &error);
    bool fits = true;
    for (int i = 0; i < n; i++)
        fits = fits && part[i].fits;
    if (ingle_config_flag(c->config, "json")) {
        print_stages_json(part, n, best);
    } else {
        for (int i = 1; i < n; i++)
            print_stage(&part[i]);
        cli_print_parts(part, n);
        print_best(part, n, best);
    }
    return fits ? CLI_OK : CLI_FAILURE;
}

int cli_doctor(struct cli *c)
{
    struct findings f = {.threads = 0};
    struct err err;
    if (c->n_arg)
        return cli_usage(c, "'doctor' takes no argument such as '%s'", c->arg[0]);
    const char *disk = ingle_config_text(c->config, "disk", 0);
    const char *workers = ingle_config_text(c->config, "experts-worker", 0);
    if (disk)
        return measure_disk(c, disk);
    if (workers)
        return check_workers(c, workers);
    if (ingle_config_text(c->config, "stages", 0))
        return check_stages(c);
    if (examine(c, &f, &err)) {
        cpu_topology_release(&f.topology);
        return cli_fail_err(c, &err);
    }
    if (ingle_config_flag(c->config, "json"))
        print_json(&f);
    else
        print_text(&f, ingle_config_flag(c->config, "verbose"));
    cpu_topology_release(&f.topology);
    return f.n_failed ? CLI_FAILURE : CLI_OK;
}
