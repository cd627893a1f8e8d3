/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save - what writing and reading a conversation's keys and values does to the answers that run.
 *
 * usage: bench_save [MODEL|-] [TOKENS] [STREAMS] [DIR] [THREADS]
 *
 * Streams run; meanwhile a prefix of TOKENS tokens goes to the store in DIR (the disk thread), and
 * is then saved to a file and loaded from it, each beside the scheduler's thread and on it.  Gaps
 * between two tokens of a stream are told as multiples of the median of the streams alone, right
 * before.
 */
#define _XOPEN_SOURCE 700
#include "ingle/ingle.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STREAMS = 16, MAX_GAPS = 1 << 21, STREAM_TOKENS = 256, TAIL = 300, PATH = 512 };

struct gap {
    double seconds;
    int phase; /* even: alone */
};

static struct bench {
    struct gap *gap; /* [MAX_GAPS], the scheduler's thread's until all is over */
    int64_t n;
    double last[MAX_STREAMS];
    int last_phase[MAX_STREAMS];
    atomic_int phase;
    struct ingle_scheduler *s;
    struct ingle_engine *e;
    struct ingle_request_options o;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over, prompt_over; /* Sync: lock */
    int n_running;          /* Sync: lock */
} b = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct ingle_error error;

static void must(ingle_status st)
{
    if (!st)
        return;
    fprintf(stderr, "%s\n", error.text);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void wait_seconds(double s)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)s, .tv_nsec = (long)((s - floor(s)) * 1e9)},
              NULL);
}

static int stream_token(void *arg, int index, const struct ingle_drawn *d)
{
    const int i = (int)(intptr_t)arg, phase = atomic_load(&b.phase);
    const double at = now();
    (void)index, (void)d;
    if (b.last[i] > 0 && b.n < MAX_GAPS)
        b.gap[b.n++] = (struct gap){at - b.last[i], b.last_phase[i] % 2 ? b.last_phase[i] : phase};
    b.last[i] = at;
    b.last_phase[i] = phase;
    return 0;
}

static void stream_done(void *arg, const struct ingle_usage *usage)
{
    (void)usage;
    b.last[(int)(intptr_t)arg] = 0;
    pthread_mutex_lock(&b.lock);
    b.n_running--;
    pthread_cond_broadcast(&b.changed);
    pthread_mutex_unlock(&b.lock);
}

static void submit(int i)
{
    struct ingle_request *r;
    struct ingle_request_options o = b.o;
    o.n_prompt = 20 + i;
    o.token = stream_token;
    o.done = stream_done;
    o.arg = (void *)(intptr_t)i;
    must(ingle_scheduler_submit(b.s, &o, &r, NULL, &error));
}

/* A thread a stream: it begins anew when it has ended. */
static void *keep_going(void *arg)
{
    struct ingle_slot slot[MAX_STREAMS + 1];
    struct ingle_scheduler_status st;
    const int n = (int)(intptr_t)arg;
    bool over = false;
    while (!over) {
        pthread_mutex_lock(&b.lock);
        over = b.over;
        const int missing = n - b.n_running;
        pthread_mutex_unlock(&b.lock);
        for (int i = 0; i < n && missing && !over; i++)
            if (b.last[i] == 0) {
                b.last[i] = -1;
                pthread_mutex_lock(&b.lock);
                b.n_running++;
                pthread_mutex_unlock(&b.lock);
                submit(i);
            }
        (void)ingle_scheduler_status(b.s, &st, slot, MAX_STREAMS);
        wait_seconds(0.002);
    }
    return NULL;
}

static void prompt_done(void *arg, const struct ingle_usage *usage)
{
    (void)arg, (void)usage;
    pthread_mutex_lock(&b.lock);
    b.prompt_over = true;
    pthread_cond_broadcast(&b.changed);
    pthread_mutex_unlock(&b.lock);
}

static void compute(int64_t n)
{
    struct ingle_request *r;
    struct ingle_request_options o = b.o;
    o.n_prompt = n;
    o.max_tokens = 0;
    o.done = prompt_done;
    must(ingle_scheduler_submit(b.s, &o, &r, NULL, &error));
    pthread_mutex_lock(&b.lock);
    while (!b.prompt_over)
        pthread_cond_wait(&b.changed, &b.lock);
    b.prompt_over = false;
    pthread_mutex_unlock(&b.lock);
}

static void wait_written(int64_t n)
{
    struct ingle_scheduler_status st;
    do {
        wait_seconds(0.001);
        (void)ingle_scheduler_status(b.s, &st, NULL, 0);
    } while (st.store_written + st.store_failed < n);
}

/* Bytes of the files in a directory; remove: it is empty then. */
static double files_of(const char *dir, bool remove)
{
    double bytes = 0;
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        char path[2 * PATH];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (stat(path, &st) || !S_ISREG(st.st_mode))
            continue;
        bytes += (double)st.st_size;
        if (remove)
            (void)unlink(path);
    }
    if (d)
        closedir(d);
    return bytes;
}

static struct ingle_session *session;
static const char *file;
static int64_t n_tokens;

static void open_session(struct ingle_engine *e, void *arg)
{
    (void)arg;
    must(ingle_session_open(&session, e, &error));
    must(ingle_session_sync(session, b.o.prompt, n_tokens, NULL, &error));
}

static void save_here(struct ingle_engine *e, void *arg)
{
    (void)e, (void)arg;
    must(ingle_session_save(session, file, &error));
}

static void load_here(struct ingle_engine *e, void *arg)
{
    (void)e, (void)arg;
    must(ingle_session_load(session, file, &error));
}

static void close_session(struct ingle_engine *e, void *arg)
{
    (void)e, (void)arg;
    ingle_session_close(session);
}

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, c = *(const double *)y;
    return (a > c) - (a < c);
}

static int64_t collect(int phase, double *out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < b.n; i++)
        if (b.gap[i].phase == phase)
            out[n++] = b.gap[i].seconds;
    qsort(out, (size_t)n, sizeof *out, by_value);
    return n;
}

static void tell(const char *what, int phase, double took, double bytes)
{
    double *g = calloc(MAX_GAPS, sizeof *g);
    int64_t n = collect(phase - 1, g);
    const double unit = n ? g[n / 2] : 1, alone99 = n ? g[(n - 1) * 99 / 100] : 0;
    n = collect(phase, g);
    printf("%-28s %7.3f s %7.0f MB/s | alone %6.2f ms, p99 %.2fx | gaps %5lld median %.2fx p99 "
           "%.2fx max %.2fx\n",
           what, took, bytes / took * 1e-6, unit * 1e3, alone99 / unit, (long long)n,
           n ? g[n / 2] / unit : 0, n ? g[(n - 1) * 99 / 100] / unit : 0, n ? g[n - 1] / unit : 0);
    free(g);
}

static double in_phase(void (*fn)(struct ingle_engine *e, void *arg), bool beside)
{
    wait_seconds(3);
    const double start = now();
    atomic_fetch_add(&b.phase, 1);
    if (!beside)
        ingle_scheduler_call(b.s, fn, NULL);
    else if (fn == save_here)
        must(ingle_session_save(session, file, &error));
    else
        must(ingle_scheduler_load(b.s, session, file, &error));
    const double took = now() - start;
    atomic_fetch_add(&b.phase, 1);
    return took;
}

static void open_all(int argc, char **argv, const char *dir, struct ingle_model **m)
{
    struct ingle_model_info info;
    const char *path = argc > 1 && strcmp(argv[1], "-") != 0 ? argv[1] : NULL;
    const struct ingle_engine_options eo = {.threads = argc > 5 ? atoi(argv[5]) : 0,
                                            .n_ctx = n_tokens + 4096,
                                            .n_sessions = 3,
                                            .store = dir,
                                            .restore_every = 1 << 20};
    must(ingle_model_open(m, path, NULL, &error));
    must(ingle_engine_open(&b.e, *m, &eo, &error));
    must(ingle_scheduler_open(&b.s, b.e, NULL, &error));
    ingle_model_info(*m, &info);
    int32_t *ids = calloc((size_t)n_tokens + TAIL, sizeof *ids);
    b.gap = calloc(MAX_GAPS, sizeof *b.gap);
    if (!ids || !b.gap)
        exit(1);
    for (int64_t i = 0; i < n_tokens + TAIL; i++)
        ids[i] = (int32_t)(200 + (i * 7919 + i / 13) % (info.n_vocab - 300));
    b.o = (struct ingle_request_options){
        .prompt = ids, .max_tokens = STREAM_TOKENS, .ignore_end = true};
    ingle_sampling_defaults(*m, &b.o.sampling);
}

int main(int argc, char **argv)
{
    static const char *const name[] = {"save, beside", "load, beside", "save, on its thread",
                                       "load, on its thread"};
    const int n_streams = argc > 3 ? atoi(argv[3]) : 4;
    char store[PATH], saved[PATH + 8];
    struct ingle_model *m;
    pthread_t thread;
    snprintf(store, sizeof store, "%s/bench-save-XXXXXX", argc > 4 ? argv[4] : "/tmp");
    n_tokens = argc > 2 ? atoll(argv[2]) : 20000;
    if (n_streams < 1 || n_streams > MAX_STREAMS || n_tokens < 300 || !mkdtemp(store))
        return 1;
    snprintf(saved, sizeof saved, "%s/saved", store);
    file = saved;
    open_all(argc, argv, store, &m);
    compute(n_tokens);
    wait_written(1);
    (void)files_of(store, true);
    if (pthread_create(&thread, NULL, keep_going, (void *)(intptr_t)n_streams))
        return 1;
    wait_seconds(3);
    compute(n_tokens + TAIL); /* whose parent is gone: all of it is written */
    double took = now();
    atomic_fetch_add(&b.phase, 1);
    wait_written(2);
    took = now() - took;
    atomic_fetch_add(&b.phase, 1);
    tell("store", 1, took, files_of(store, false));
    ingle_scheduler_call(b.s, open_session, NULL);
    for (int i = 0; i < 4; i++) {
        struct stat st;
        took = in_phase(i % 2 ? load_here : save_here, i < 2);
        if (stat(saved, &st))
            return 1;
        wait_seconds(0.2);
        tell(name[i], 2 * i + 3, took, (double)st.st_size);
    }
    ingle_scheduler_call(b.s, close_session, NULL);
    pthread_mutex_lock(&b.lock);
    b.over = true;
    pthread_mutex_unlock(&b.lock);
    pthread_join(thread, NULL);
    ingle_scheduler_close(b.s);
    ingle_engine_close(b.e);
    ingle_model_close(m);
    (void)files_of(store, true);
    (void)rmdir(store);
    return 0;
}
