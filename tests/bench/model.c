/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast a model file runs here.  Prints one JSON object a line; nothing is asserted.
 *
 *   bench_model FILE [options] MEASURE...      a lone "-" reads measures from standard input
 *   bench_model                                some of the nano model
 *
 *   read          what the threads read from memory together
 *   peak          multiplications and additions of 256-bit FMA on registers
 *   fill          the pages of a step's activations, which an idle server has and a new process has
 *   not
 *   decode:N@D    N steps of one token behind D tokens; @D may be left out
 *   rows:R@D      a step of R tokens with all their logits, as a verifier takes it; the median of
 *   five, which -p adds up
 *   prefill:N@D   N tokens in the largest steps, the logits of the last one
 *
 * -s: keys and values behind the first 512 tokens are copies of a page of those, so that a long
 * context costs no prompt; times are right, logits are not.
 *
 * Every timed step computes logits.  "seconds" of decode is N times its median step: what others
 * do to the machine comes in pieces.  "share" is stored bytes of the weights that one token
 * touches, over time, over what `read` last measured.
 */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "family/table.h"
#include "session/session.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 512 << 20, READ_ROUNDS = 5, ROW_STEPS = 5 };

struct options {
    const char *path, *cpu;
    int n_threads;
    int64_t n_ctx, chunk;
    bool pin, profile, fast, synthetic;
    struct kv_types types;
};

struct bench {
    struct options o;
    struct device *device;
    struct io_file *file;
    struct model *model;
    const struct family *family;
    void *self;
    struct family_info info;
    struct runner *runner;
    struct session *session;
    int32_t *token;     /* [n_ctx], random but for the first */
    double touched;     /* stored bytes of weights that a token reads */
    double read_rate;   /* bytes a second; 0: not measured */
};

static void must(ingle_status s, const struct err *e)
{
    if (s == INGLE_OK)
        return;
    fprintf(stderr, "bench_model: %s\n", e->msg);
    exit(1);
}

/* -s: the family with a forward() that fills pages instead, while `on`. */
enum { REAL = 512 };
static struct {
    struct family family;
    void (*forward)(const void *self, const struct family_forward *f);
    bool on;
} copies;

static void copy_pages(const void *self, const struct family_forward *f)
{
    if (!copies.on) {
        copies.forward(self, f);
        return;
    }
    const struct family_span *s = f->step->span;
    for (uint32_t g = 0; g < f->kv->n_groups; g++) {
        uint8_t *const *page = kv_timeline_pages(s->timeline, g);
        const int64_t last = s->at / KERN_PAGE;
        /* A group whose steps write their ends alone has pages only there. */
        const int64_t from = page[last - 1] ? last - 1 : last;
        for (int64_t p = last; p * KERN_PAGE < s->at + s->n; p++)
            if (page[p] && p != from)
                memcpy(page[p], page[from], f->kv->group[g].page_bytes);
    }
}

static void say(void *arg, ingle_report_level level, const char *kind, const char *subject,
                const char *text)
{
    (void)arg;
    if (level <= INGLE_REPORT_WARN)
        fprintf(stderr, "%s '%s': %s\n", kind, subject, text);
}

static const struct report_sink sink = {.report = say};

/* Of a stack of experts a token reads those that it was sent to; of tables read by row nothing
 * worth counting; the embedding counts, for it is the head too. */
static double touched_bytes(const struct bench *b)
{
    double n = 0;
    for (size_t i = 0; i < io_n_tensors(b->file); i++) {
        const struct io_tensor *t = io_tensor_at(b->file, i);
        if (t->n_dims < 2 || !strcmp(t->name, "per_layer_token_embd.weight"))
            continue;
        const bool experts = t->n_dims == 3 && b->info.n_experts > 0;
        n += (double)t->n_bytes *
             (experts ? (double)b->info.n_experts_used / (double)b->info.n_experts : 1.0);
    }
    return n;
}

/* The most memory that this process ever held, in bytes. */
static double memory_peak(void)
{
    char line[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "VmHWM:", 6))
            kib = strtod(line + 6, NULL);
    if (f)
        fclose(f);
    return kib * 1024;
}

static void open_model(struct bench *b)
{
    struct err e;
    const char *arch;
    size_t n;
    const uint64_t start = clock_now();
    uint32_t cpu = UINT32_MAX;
    if (b->o.cpu && !cpu_level(b->o.cpu, &cpu)) {
        fprintf(stderr, "bench_model: no instruction set '%s'\n", b->o.cpu);
        exit(1);
    }
    const struct device_options d = {
        .n_threads = b->o.n_threads, .pin = b->o.pin, .cpu = cpu,
        .numerics = b->o.fast ? DEVICE_FAST : DEVICE_EXACT, .sink = &sink};
    must(device_create(&b->device, &d, &e), &e);
    must(io_open(&b->file, b->o.path, &sink, &e), &e);
    must(io_get_str(io_metadata(b->file), "general.architecture", &arch, &n, &e), &e);
    b->family = family_by_arch(arch);
    if (!b->family) {
        fprintf(stderr, "bench_model: '%s': no family '%s'\n", b->o.path, arch);
        exit(1);
    }
    must(model_create(&b->model, b->file, b->device, NULL, &sink, &e), &e);
    copies.family = *b->family;
    copies.forward = b->family->forward;
    copies.family.forward = copy_pages;
    b->family = &copies.family;
    must(b->family->bind(&b->self, b->model, io_metadata(b->file), &b->info, &e), &e);
    must(model_load(b->model, &e), &e);
    const double load_s = (double)(clock_now() - start) * 1e-9, peak = memory_peak();
    const struct runner_options r = {.n_ctx = b->o.n_ctx,
                                     .max_rows = b->o.chunk,
                                     .max_logits = 16,
                                     .restore_every = (int64_t)1 << 40,
                                     .kv = b->o.types,
                                     .sink = &sink};
    must(session_runner_create(&b->runner, b->family, b->self, &b->info, b->device, &r, &e), &e);
    must(session_create(&b->session, b->runner, &e), &e);
    b->token = mem_calloc((size_t)b->o.n_ctx, sizeof *b->token);
    if (!b->token)
        exit(1);
    uint64_t x = 88172645463325252u;
    for (int64_t i = 0; i < b->o.n_ctx; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        b->token[i] = i ? (int32_t)(x % (uint64_t)b->info.n_vocab) : 2 % (int32_t)b->info.n_vocab;
    }
    b->touched = touched_bytes(b);
    printf("{\"event\":\"load\",\"model\":\"%s\",\"cpu\":\"%s\",\"threads\":%d,\"seconds\":%.3f,"
           "\"packed_bytes\":%.0f,\"peak_bytes\":%.0f,\"token_bytes\":%.0f}\n",
           b->o.path, cpu_name(device_kernels(b->device)->cpu), pool_size(device_pool(b->device)),
           load_s, (double)model_bytes(b->model), peak, b->touched);
    fflush(stdout);
}

/* One step of what is pending, as much as fits; seconds. */
static double step(struct bench *b, enum family_logits want)
{
    struct err e;
    struct session_work w = {.s = b->session, .want = want};
    const uint64_t start = clock_now();
    must(session_step(b->runner, &w, 1, NULL, &e), &e);
    return (double)(clock_now() - start) * 1e-9;
}

/* Makes the session `depth` tokens long and all of them computed. */
static void go_to(struct bench *b, int64_t depth)
{
    struct err e;
    if (session_length(b->session) > depth || session_pending(b->session))
        must(session_rewind(b->session, num_min(depth, session_length(b->session)), &e), &e);
    const int64_t at = session_length(b->session) + session_pending(b->session);
    must(session_append(b->session, b->token + at, depth - at, &e), &e);
    while (session_pending(b->session)) {
        copies.on = b->o.synthetic && session_length(b->session) >= REAL;
        step(b, FAMILY_LOGITS_NONE);
    }
    copies.on = false;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* n steps of one token: n times the median. */
static double timed_steps(struct bench *b, int64_t n)
{
    struct err e;
    double *s = mem_calloc((size_t)n, sizeof *s);
    if (!s)
        exit(1);
    for (int64_t i = 0; i < n; i++) {
        must(session_append(b->session, b->token + session_length(b->session), 1, &e), &e);
        s[i] = step(b, FAMILY_LOGITS_LAST);
    }
    qsort(s, (size_t)n, sizeof *s, ascending);
    const double all = (double)n * s[n / 2];
    mem_free(s);
    return all;
}

/* n tokens, as many as a step takes; the last row of each step has logits. */
static double timed(struct bench *b, int64_t n, enum family_logits want)
{
    struct err e;
    double s = 0;
    must(session_append(b->session, b->token + session_length(b->session), n, &e), &e);
    if (want == FAMILY_LOGITS_LAST)
        session_prompt(b->session, session_length(b->session) + n);
    while (session_pending(b->session))
        s += step(b, want);
    return s;
}

/* The median of steps of n tokens behind the same ones. */
static double timed_rows(struct bench *b, int64_t n, int64_t depth)
{
    double s[ROW_STEPS];
    for (int i = 0; i < ROW_STEPS; i++) {
        go_to(b, depth);
        s[i] = timed(b, n, FAMILY_LOGITS_ALL);
    }
    qsort(s, ROW_STEPS, sizeof *s, ascending);
    return s[ROW_STEPS / 2];
}

static void print_profile(const struct bench *b)
{
    struct device_profile p[64];
    const int n = device_profile_read(b->device, p, 64);
    printf(",\"profile\":{");
    for (int i = 0; i < n; i++)
        printf("%s\"%s\":[%llu,%.1f]", i ? "," : "", p[i].op, (unsigned long long)p[i].calls,
               (double)p[i].ns * 1e-3);
    printf("}");
}

static void measure_read(struct bench *b)
{
    struct err e;
    must(tool_machine_bandwidth(device_pool(b->device), READ_BYTES, READ_ROUNDS, &b->read_rate, &e),
         &e);
    printf("{\"event\":\"read\",\"GBps\":%.2f}\n", b->read_rate * 1e-9);
}

/* The machine's own limit of products: 256-bit FMA on registers, all threads together. */
static void measure_peak(struct bench *b)
{
    struct tool_peak p[TOOL_PEAKS];
    const size_t n = tool_peaks(device_pool(b->device), cpu_detect(), p, TOOL_PEAKS);
    double fma = 0;
    for (size_t i = 0; i < n; i++)
        fma = strcmp(p[i].name, "fma") == 0 ? p[i].ops_per_s : fma;
    printf("{\"event\":\"peak\",\"GFLOPs\":%.2f}\n", fma * 1e-9);
}

static void measure_fill(struct bench *b)
{
    const uint64_t start = clock_now();
    while (session_runner_fill(b->runner))
        ;
    printf("{\"event\":\"fill\",\"seconds\":%.6f}\n", (double)(clock_now() - start) * 1e-9);
}

static bool measure(struct bench *b, const char *text)
{
    char kind[16];
    long long n = 0, depth = 0;
    if (!strcmp(text, "read")) {
        measure_read(b);
        return true;
    }
    if (!strcmp(text, "peak")) {
        measure_peak(b);
        return true;
    }
    if (!strcmp(text, "fill")) {
        measure_fill(b);
        return true;
    }
    if (sscanf(text, "%15[a-z]:%lld@%lld", kind, &n, &depth) < 2)
        return false;
    const bool decode = !strcmp(kind, "decode"), rows = !strcmp(kind, "rows");
    if ((!decode && !rows && strcmp(kind, "prefill")) || n < 1 || depth < 0 ||
        n > b->o.n_ctx - depth || (rows && n > 16))
        return false;
    go_to(b, depth);
    device_profile(b->device, b->o.profile);
    const double s = decode ? timed_steps(b, n)
                     : rows ? timed_rows(b, n, depth)
                            : timed(b, n, FAMILY_LOGITS_LAST);
    const double rate = (double)n / s;
    printf("{\"event\":\"%s\",\"n\":%lld,\"depth\":%lld,\"seconds\":%.6f,\"tps\":%.3f", kind, n,
           depth, s, rate);
    if (decode && b->read_rate > 0)
        printf(",\"GBps\":%.2f,\"share\":%.3f", rate * b->touched * 1e-9,
               rate * b->touched / b->read_rate);
    if (b->o.profile)
        print_profile(b);
    printf("}\n");
    return true;
}

static void answer(struct bench *b, const char *text)
{
    if (!measure(b, text)) {
        fprintf(stderr, "bench_model: '%s' is no measure\n", text);
        exit(1);
    }
    fflush(stdout);
}

static void measure_all(struct bench *b, int n, char **text)
{
    char line[64];
    for (int i = 0; i < n; i++) {
        if (strcmp(text[i], "-")) {
            answer(b, text[i]);
            continue;
        }
        while (fgets(line, sizeof line, stdin)) {
            line[strcspn(line, "\n")] = 0;
            answer(b, line);
        }
    }
}

static const char usage[] =
    "usage: bench_model FILE [-t threads] [-l cpu level] [-c context] [-k chunk] [-u unpinned]\n"
    "                   [-p profile] [-f fast numerics] [-v codec of keys and values] [-s copied] "
    "read | peak | fill | decode:N@D | rows:R@D | prefill:N@D | - ...\n";

int main(int argc, char **argv)
{
    struct bench b = {.o = {.n_ctx = 4096, .pin = true, .types = kv_types_of(KERN_KV_F16)}};
    static const char *const nano[] = {"tests/data/nano/nano-gemma4-Q4_K_M.gguf", "read",
                                       "decode:256@64", "rows:4@64", "prefill:512"};
    int i = 2;
    if (argc == 2 && argv[1][0] == '-') {
        fputs(usage, stdout);
        return 0;
    }
    b.o.path = argc > 1 ? argv[1] : nano[0];
    for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
        const char c = argv[i][1];
        if (c == 'p')
            b.o.profile = true;
        else if (c == 'f')
            b.o.fast = true;
        else if (c == 's')
            b.o.synthetic = true;
        else if (c == 'u')
            b.o.pin = false;
        else if (i + 1 == argc)
            break;
        else if (c == 'l')
            b.o.cpu = argv[++i];
        else if (c == 't')
            b.o.n_threads = atoi(argv[++i]);
        else if (c == 'c')
            b.o.n_ctx = atoll(argv[++i]);
        else if (c == 'k')
            b.o.chunk = atoll(argv[++i]);
        else if (c == 'v' && kv_types_parse(argv[++i], NULL, NULL, NULL, &b.o.types, NULL))
            break;
    }
    open_model(&b);
    measure_all(&b, argc - i, argv + i);
    for (size_t k = 1; argc == 1 && k < sizeof nano / sizeof *nano; k++)
        answer(&b, nano[k]);
    session_free(b.session);
    session_runner_free(b.runner);
    b.family->free(b.self);
    model_free(b.model);
    io_close(b.file);
    device_free(b.device);
    mem_free(b.token);
    return 0;
}
