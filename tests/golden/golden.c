/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "golden/golden.h"

#include "base/fp.h"
#include "base/mem.h"
#include "stage/stage.h"
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void (*golden_device_made)(struct device *d);
void (*golden_bound)(struct model *m);
int64_t golden_own_first, golden_own_end, golden_draft_own_first, golden_draft_own_end;

/* ---- a folder ---- */

static char folder[40];
static pid_t folder_of;

static int remove_one(const char *path, const struct stat *is, int kind, struct FTW *at)
{
    (void)is;
    (void)kind;
    (void)at;
    (void)remove(path);
    return 0;
}

static void remove_tree(const char *path)
{
    (void)nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void remove_own(void)
{
    if (folder_of == getpid())
        remove_tree(folder);
}

/* Folders of programs that were killed. */
static void remove_left(void)
{
    DIR *d = opendir("/tmp");
    for (const struct dirent *e; d && (e = readdir(d));) {
        char path[40], *end;
        if (strncmp(e->d_name, "golden-", 7) != 0)
            continue;
        const long pid = strtol(e->d_name + 7, &end, 10);
        if (pid < 1 || *end || pid > INT32_MAX || !kill((pid_t)pid, 0) || errno != ESRCH)
            continue;
        snprintf(path, sizeof path, "/tmp/golden-%ld", pid);
        remove_tree(path);
    }
    if (d)
        closedir(d);
}

const char *golden_folder(void)
{
    if (folder_of == getpid())
        return folder;
    remove_left();
    folder_of = getpid();
    snprintf(folder, sizeof folder, "/tmp/golden-%d", (int)folder_of);
    if (mkdir(folder, 0700) && errno != EEXIST)
        fail_msg("%s: %s", folder, strerror(errno));
    atexit(remove_own);
    return folder;
}

static void say(void *arg, ingle_report_level level, const char *kind, const char *subject,
                const char *text)
{
    (void)arg;
    if (level <= INGLE_REPORT_WARN)
        print_message("%s '%s': %s\n", kind, subject, text);
}

/* A checkpoint's config.json in the terms of GGUF. */
static struct json_object *read_json(struct io_file *file)
{
    struct err e;
    char *text;
    size_t n;
    struct json_object *config;
    GOLDEN_OK(io_side_file(file, "config.json", 1 << 20, &text, &n, &e));
    GOLDEN_OK(json_parse(text, n, NULL, &config, &e));
    mem_free(text);
    return config;
}

static const struct io_meta *read_config(struct golden_model *g)
{
    struct err e;
    struct json_object *config = read_json(g->file), *type;
    assert_true(json_object_object_get_ex(config, "model_type", &type));
    g->family = family_by_hf_type(json_object_get_string(type));
    assert_non_null(g->family);
    g->meta = io_meta_create();
    GOLDEN_OK(g->family->config(config, g->meta, NULL, &e));
    g->config = config;
    return g->meta;
}

/* The kind of a file: of a checkpoint by its config.json, or one that has its target's. */
static const struct family_draft *kind_of(const struct golden_model *g, struct model *m,
                                          const struct io_meta *meta, struct json_object *config)
{
    const struct family_draft *k = family_draft_of(g->family, m, meta, config);
    if (config && (!k || !strcmp(k->kind, "model")))
        k = family_draft_of(g->family, m, meta, NULL);
    if (!k)
        fail_msg("%s: no drafter", io_path(model_file(m)));
    return k;
}

static void load(struct model *m)
{
    struct err e;
    if (golden_bound)
        golden_bound(m);
    GOLDEN_OK(model_load(m, &e));
}

static ingle_status bind_draft(struct golden_model *g, const char *path, struct err *err)
{
    struct err e;
    struct model *m = g->model;
    struct json_object *config = NULL;
    const struct family_draft_target t = {g->family, g->self, &g->info};
    if (path)
        GOLDEN_OK(io_open(&g->draft_file, path, &g->sink, &e));
    struct io_file *file = path ? g->draft_file : g->file;
    const struct io_meta *meta = io_metadata(file);
    if (io_kind(file) == IO_SAFETENSORS) {
        meta = g->draft_meta = io_meta_create();
        config = path ? read_json(file) : json_object_get(g->config);
        g->draft_config = config;
    }
    if (path)
        GOLDEN_OK(model_create(&g->draft_model, file, g->device, config ? g->family->rename : NULL,
                               &g->sink, &e));
    const struct family_draft *k = g->draft_kind =
        kind_of(g, path ? g->draft_model : m, meta, config);
    if (path) {
        model_free(g->draft_model);
        GOLDEN_OK(model_create(&g->draft_model, file, g->device, config ? k->rename : k->alias,
                               &g->sink, &e));
        m = g->draft_model;
    }
    if (config && (k->config ? k->config : g->family->config)(config, g->draft_meta, &g->sink, err))
        return err->status;
    if (path && config)
        GOLDEN_OK(model_read_scheme(m, config, &e));
    const ingle_status s = k->bind(&g->draft, &t, m, meta, &g->draft_info, err);
    if (s)
        return s;
    if (path) {
        GOLDEN_OK(model_check_unused(m, &e));
        load(m);
    }
    return s;
}

/* GOLDEN_NODES memory nodes that no machine has, with a thread each at least.  False: the machine's
 * own. */
static bool make_nodes(struct cpu_topology *t, struct cpu_place cpu[GOLDEN_THREADS], int n_threads)
{
    const char *env = getenv("GOLDEN_NODES");
    const int n = env ? atoi(env) : 0, most = n > n_threads ? n : n_threads;
    if (n < 2 || most > GOLDEN_THREADS)
        return false;
    *t = (struct cpu_topology){.cpu = cpu, .n_cpus = most, .n_cores = most, .n_packages = 1,
                               .n_nodes = n};
    for (int i = 0; i < most; i++)
        cpu[i] = (struct cpu_place){4000 + i, 4000 + i, 0, i * n / most, false, -1};
    for (int k = 0; k < n; k++)
        t->node_id[k] = 10 + k;
    return true;
}

static void bind_model(struct golden_model *g, const char *path, const struct golden_options *o)
{
    struct err e;
    *g = (struct golden_model){.sink = {.report = say}};
    struct cpu_place cpu[GOLDEN_THREADS];
    struct cpu_topology nodes;
    const bool made_up = make_nodes(&nodes, cpu, o->n_threads ? o->n_threads : 2);
    const struct device_options d = {.n_threads = made_up        ? nodes.n_cpus
                                                  : o->n_threads ? o->n_threads
                                                                 : 2,
                                     .pin = made_up,
                                     .cpu = o->cpu ? o->cpu : UINT32_MAX,
                                     .numerics = o->numerics,
                                     .topology = made_up ? &nodes : NULL,
                                     .sink = &g->sink};
    GOLDEN_OK(device_create(&g->device, &d, &e));
    if (golden_device_made)
        golden_device_made(g->device);
    GOLDEN_OK(io_open(&g->file, path, &g->sink, &e));
    const bool checkpoint = io_kind(g->file) == IO_SAFETENSORS;
    const struct io_meta *meta = checkpoint ? read_config(g) : io_metadata(g->file);
    if (!checkpoint) {
        const char *arch;
        size_t n;
        GOLDEN_OK(io_get_str(meta, "general.architecture", &arch, &n, &e));
        g->family = family_by_arch(arch);
        assert_non_null(g->family);
    }
    GOLDEN_OK(model_create(&g->model, g->file, g->device,
                           checkpoint ? g->family->rename : g->family->alias, &g->sink, &e));
    if (g->config)
        GOLDEN_OK(model_read_scheme(g->model, g->config, &e));
    GOLDEN_OK(g->family->bind(&g->self, g->model, meta, &g->info, &e));
}

static struct kv_types types_of(const struct golden_options *o)
{
    struct err e;
    struct kv_types types = kv_types_of(o->codec);
    if (o->kv)
        GOLDEN_OK(strchr(o->kv, '=') ? kv_types_parse(NULL, NULL, NULL, o->kv, &types, &e)
                                     : kv_types_parse(o->kv, NULL, NULL, NULL, &types, &e));
    return types;
}

static void close_model(struct golden_model *g)
{
    g->family->free(g->self);
    model_free(g->model);
    io_close(g->file);
    io_meta_free(g->meta);
    json_object_put(g->config);
    device_free(g->device);
}

/* ---- stages ---- */

int golden_n_stages;
uint64_t golden_cuts;
int64_t golden_piece_rows;
const char *golden_stages_store;
int golden_stages_without;
atomic_int golden_stall_ms, golden_stalls;
uint64_t golden_late_ns;

struct golden_stage {
    struct golden_model g;
    struct stage_hello hello;
    struct kv_types kv;
    struct stage_serve *serve;
    pthread_t thread;
    atomic_bool stop;
    char address[128], store[128];
};

static void *serve(void *arg)
{
    struct golden_stage *s = arg;
    fenv_t mode;
    fp_enter(&mode);
    struct stage_asked asked;
    (void)stage_serve_run(s->serve, &asked);
    fp_leave(&mode);
    return NULL;
}

static void stall(void *arg)
{
    (void)arg;
    const int ms = atomic_load(&golden_stall_ms);
    if (!ms)
        return;
    atomic_fetch_add(&golden_stalls, 1);
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void describe(const struct golden_model *g, const struct kv_types *types, int64_t n_ctx,
                     struct stage_hello *out)
{
    *out = (struct stage_hello){.version = STAGE_VERSION,
                                .to = (uint32_t)g->info.n_layers,
                                .n_layers = (uint32_t)g->info.n_layers,
                                .n_embd = (uint32_t)g->info.n_embd,
                                .n_ctx = (uint32_t)n_ctx,
                                .max_rows = 1,
                                .form = model_identity(g->model),
                                .budget_bytes = (uint64_t)1 << 40};
    snprintf(out->kv, sizeof out->kv, "%s", kv_types_name(types).at);
}

static void start(struct golden_stage *s, struct err *e)
{
    const struct stage_serve_options so = {.address = s->address,
                                           .hello = &s->hello,
                                           .family = s->g.family,
                                           .self = s->g.self,
                                           .info = &s->g.info,
                                           .kv = &s->kv,
                                           .share = 1,
                                           .store = *s->store ? s->store : NULL,
                                           .identity = s->hello.form,
                                           .tend = stall,
                                           .sink = &s->g.sink,
                                           .stop = &s->stop};
    atomic_store(&s->stop, false);
    if (stage_serve_open(&s->serve, s->g.device, &so, e))
        fail_msg("%s", e->msg);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void stop(struct golden_stage *s)
{
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
    stage_serve_close(s->serve);
}

static void open_stage(struct golden_stage *s, const char *path, const struct golden_options *o,
                       const struct kv_types *types, int64_t from, int64_t to, int bit)
{
    static int number;
    struct err e;
    snprintf(s->address, sizeof s->address, "unix:%s/%d", golden_folder(), number++);
    atomic_init(&s->stop, false);
    bind_model(&s->g, path, o);
    stage_keep_layers(s->g.family, s->g.self, s->g.model, from, to, s->g.info.n_layers);
    GOLDEN_OK(model_load(s->g.model, &e));
    describe(&s->g, types, o->n_ctx ? o->n_ctx : 512, &s->hello);
    s->hello.from = (uint32_t)from;
    s->hello.to = (uint32_t)to;
    s->kv = *types;
    if (golden_stages_store && !(golden_stages_without & bit))
        snprintf(s->store, sizeof s->store, "%s-%d", golden_stages_store, bit);
    start(s, &e);
}

void golden_lose_stage(struct golden_model *g, int i)
{
    struct err e;
    stop(&g->stage[i]);
    start(&g->stage[i], &e);
}

void golden_same_files(const char *a, const char *b)
{
    FILE *f[2] = {fopen(a, "rb"), fopen(b, "rb")};
    int x, y;
    assert_non_null(f[0]);
    assert_non_null(f[1]);
    do {
        x = getc(f[0]);
        y = getc(f[1]);
        const long at = ftell(f[0]) - 1; /* the time, and the sum of what has it */
        if (x != y && !(at >= 144 && at < 152) && !(at >= 256 && at < 272))
            fail_msg("%s and %s differ at byte %ld", a, b, ftell(f[0]) - 1);
    } while (x != EOF);
    fclose(f[0]);
    fclose(f[1]);
}

static void open_stages(struct golden_model *g, const char *path, const struct golden_options *o,
                        const struct kv_types *types, struct stage_hello *hello)
{
    struct err e;
    const char *address[GOLDEN_STAGES], *env = getenv("GOLDEN_STAGES");
    const int64_t n_layers = g->info.n_layers;
    const int want = golden_n_stages ? golden_n_stages : env ? atoi(env) : 0;
    int64_t cut[GOLDEN_STAGES + 1];
    int n = want < GOLDEN_STAGES ? want : GOLDEN_STAGES;
    n = n < n_layers ? n : (int)n_layers - 1;
    if (n < 1 || o->disk || o->select.part || golden_own_end)
        return;
    /* any ascending ones */
    const char *cuts = getenv("GOLDEN_CUTS"), *rows = getenv("GOLDEN_PIECE");
    uint64_t v = golden_n_stages || !cuts ? golden_cuts : strtoull(cuts, NULL, 10);
    for (int i = 0; i < n; i++) {
        const int64_t least = i ? cut[i - 1] + 1 : 1, most = n_layers - n + i;
        cut[i] = least + (int64_t)(v % (uint64_t)(most - least + 1));
        v /= (uint64_t)(most - least + 1);
    }
    cut[n] = n_layers;
    g->stage = mem_calloc((size_t)n, sizeof *g->stage);
    assert_non_null(g->stage);
    for (g->n_stages = 0; g->n_stages < n; g->n_stages++) {
        struct golden_stage *s = &g->stage[g->n_stages];
        open_stage(s, path, o, types, cut[g->n_stages], cut[g->n_stages + 1],
                   1 << g->n_stages);
        address[g->n_stages] = s->address;
    }
    describe(g, types, o->n_ctx ? o->n_ctx : 512, hello);
    const struct stage_remote_options so = {
        .address = address, .n = n, .hello = hello, .sink = &g->sink, .wait_ns = 60000000000,
        .late_ns = golden_late_ns,
        .piece_rows = golden_piece_rows || !rows ? golden_piece_rows : atoll(rows)};
    GOLDEN_OK(stage_remote_open(&g->stages, &so, &e));
    stage_keep_layers(g->family, g->self, g->model, 0, cut[0], g->info.n_layers);
}

static void close_stages(struct golden_model *g)
{
    stage_remote_close(g->stages);
    for (int i = 0; i < g->n_stages; i++) {
        struct golden_stage *s = &g->stage[i];
        stop(s);
        close_model(&s->g);
    }
    mem_free(g->stage);
}

void golden_open(struct golden_model *g, const char *path, const struct golden_options *o)
{
    struct err e;
    struct stage_hello hello;
    bind_model(g, path, o);
    const struct kv_types kv = types_of(o);
    open_stages(g, path, o, &kv, &hello);
    struct err refused = {0};
    if (o->draft && bind_draft(g, o->draft_file, &refused)) {
        if (!o->draft_refused)
            fail_msg("%s", refused.msg);
        print_message("%s\n", refused.msg);
        if (!strstr(refused.msg, o->draft_refused))
            fail_msg("'%s' is not in: %s", o->draft_refused, refused.msg);
    } else if (o->draft_refused) {
        fail_msg("%s is accepted", o->draft_file);
    }
    if (g->stages && g->draft && g->draft_kind->reads_target)
        skip(); /* it needs keys and values that lie at a stage */
    if (g->draft && g->draft_kind->set)
        GOLDEN_OK(g->draft_kind->set(g->draft, &o->draft_options, &g->draft_info, &e));
    GOLDEN_OK(model_check_unused(g->model, &e));
    load(g->model);
    const int64_t max_rows = o->max_rows ? o->max_rows : 512;
    struct runner_options r = {.n_ctx = o->n_ctx ? o->n_ctx : 512,
                                     .max_rows = max_rows,
                                     .media_rows = o->media_rows < 0   ? 0
                                                   : o->media_rows ? o->media_rows
                                                                   : 512,
                                     .max_logits = max_rows,
                                     .restore_every = o->restore_every,
                                     .own_first = golden_own_first,
                                     .own_end = golden_own_end,
                                     .draft_own_first = golden_draft_own_first,
                                     .draft_own_end = golden_draft_own_end,
                                     .kv = kv,
                                     .stages = g->stages,
                                     .stage_hello = &hello,
                                     .select = o->select,
                                     .kv_budget_bytes = (uint64_t)1 << 30,
                                     .tree_budget_bytes = o->tree_bytes,
                                     .store = o->store,
                                     .store_min_tokens = o->store_min,
                                     .identity = model_identity(g->model),
                                     .numerics = device_numerics_name(g->device),
                                     .draft = g->draft ? g->draft_kind : NULL,
                                     .draft_self = g->draft,
                                     .draft_info = g->draft_info,
                                     .sink = &g->sink};
    if (o->disk) {
        r.disk = o->disk;
        r.disk_bytes = o->disk_bytes ? o->disk_bytes : (uint64_t)1 << 28;
        r.kv_budget_bytes = o->kv_bytes;
    }
    GOLDEN_OK(session_runner_create(&g->runner, g->family, g->self, &g->info, g->device, &r, &e));
}

void golden_close(struct golden_model *g)
{
    session_runner_clear_tree(g->runner);
    if (session_runner_store(g->runner))
        kv_store_flush(session_runner_store(g->runner));
    struct kv_pool_counts counts;
    kv_pool_count(session_runner_pool(g->runner), &counts);
    assert_int_equal(counts.used_bytes, 0);
    session_runner_free(g->runner);
    if (g->draft)
        g->draft_kind->free(g->draft);
    model_free(g->draft_model);
    io_close(g->draft_file);
    io_meta_free(g->draft_meta);
    json_object_put(g->draft_config);
    close_stages(g);
    close_model(g);
}

static void *tensor(const char *path, const char *name, uint32_t type, int64_t *n)
{
    struct err e;
    struct io_file *f;
    GOLDEN_OK(io_open(&f, path, NULL, &e));
    const struct io_tensor *t = io_tensor_find(f, name);
    if (!t)
        fail_msg("%s: no tensor %s", path, name);
    assert_int_equal(t->type, type);
    void *p = mem_alloc(t->n_bytes);
    GOLDEN_OK(io_read(f, t, 0, p, t->n_bytes, &e));
    *n = (int64_t)(t->n_bytes / 4);
    io_close(f);
    return p;
}

float *golden_floats(const char *path, const char *name, int64_t *n)
{
    return tensor(path, name, QUANT_F32, n);
}

int32_t *golden_ints(const char *path, const char *name, int64_t *n)
{
    return tensor(path, name, QUANT_I32, n);
}

struct golden_error golden_compare(const float *got, const float *want, int64_t n)
{
    double max = 0, diff = 0, mass = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)got[i] - (double)want[i];
        if (!(fabs(d) <= max))
            max = fabs(d);
        diff += d * d;
        mass += (double)want[i] * (double)want[i];
    }
    return (struct golden_error){max, sqrt(diff / (mass > 0 ? mass : 1))};
}

int64_t golden_best(const float *x, int64_t n)
{
    int64_t b = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[b])
            b = i;
    return b;
}

struct taps { struct device *d; float *to; int64_t n, n_embd, n_layers, row; };

static void keep_tap(void *arg, enum family_tap tap, int layer, struct rows x)
{
    struct taps *t = arg;
    device_read_rows(t->d, x);
    const int64_t slot = tap == FAMILY_TAP_EMBED   ? 0
                         : tap == FAMILY_TAP_LAYER ? layer + 1
                                                   : t->n_layers + 1;
    for (int64_t i = 0; i < x.n; i++)
        memcpy(t->to + (slot * t->n + t->row + i) * t->n_embd, x.at + i * x.stride,
               (size_t)t->n_embd * sizeof(float));
}

float *golden_logits(struct golden_model *g, struct session *s, const int32_t *tokens, int64_t n,
                     int64_t chunk, float *hidden)
{
    struct err e;
    const int64_t v = g->info.n_vocab;
    float *out = mem_calloc((size_t)(n * v), sizeof *out);
    struct taps taps = {g->device, hidden, n, g->info.n_embd, g->info.n_layers, 0};
    if (hidden)
        session_runner_set_tap(g->runner, keep_tap, &taps);
    GOLDEN_OK(session_append(s, tokens, n, &e));
    session_prompt(s, session_length(s) + session_pending(s));
    while (taps.row < n) {
        struct session_work w = {.s = s, .max_tokens = chunk, .want = FAMILY_LOGITS_ALL};
        GOLDEN_OK(session_step(g->runner, &w, 1, NULL, &e));
        assert_true(w.n_done > 0);
        memcpy(out + taps.row * v, w.logits, (size_t)(w.n_logits * v) * sizeof *out);
        taps.row += w.n_done;
    }
    session_runner_set_tap(g->runner, NULL, NULL);
    return out;
}
