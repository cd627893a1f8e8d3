/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_busy FILE [ROUNDS [TOKENS]]: what share of its speed decoding keeps beside a foreign busy
 * process: bound to the first or the last processor, or free to move.  Each round measures idle,
 * then the three, so that what else the machine does meets all of them.  Prints a line a round,
 * then medians; nothing is asserted.
 */
#define _GNU_SOURCE
#include "family/family.h"
#include "session/session.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MODES = 4, MOST_ROUNDS = 64, WARM = 4 };
static const char *const mode_name[MODES] = {"idle", "first processor", "last processor",
                                             "anywhere"};

static void must(ingle_status s, const struct err *e)
{
    if (s == INGLE_OK)
        return;
    fprintf(stderr, "bench_busy: %s\n", e->msg);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A process that computes until it is killed, and does not outlive this one. */
static pid_t burn(int mode)
{
    cpu_set_t all, one;
    const pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mode < 3 && sched_getaffinity(0, sizeof all, &all) == 0) {
        size_t found = CPU_SETSIZE;
        for (size_t i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &all) && (found == CPU_SETSIZE || mode == 2))
                found = i;
        CPU_ZERO(&one);
        CPU_SET(found, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    for (volatile unsigned n = 0;; n++)
        ;
}

struct world {
    struct device *d;
    struct io_file *f;
    struct model *m;
    const struct family *family;
    void *self;
    struct runner *runner;
    struct session *s;
};

static void open_world(struct world *w, const char *path)
{
    struct err e;
    struct family_info info;
    const char *arch;
    size_t n;
    must(device_create(&w->d, &(struct device_options){.pin = true, .cpu = UINT32_MAX}, &e), &e);
    must(io_open(&w->f, path, NULL, &e), &e);
    must(io_get_str(io_metadata(w->f), "general.architecture", &arch, &n, &e), &e);
    w->family = family_by_arch(arch);
    if (!w->family)
        must(INGLE_UNSUP, &(struct err){.msg = "no such family"});
    must(model_create(&w->m, w->f, w->d, w->family->alias, NULL, &e), &e);
    must(w->family->bind(&w->self, w->m, io_metadata(w->f), &info, &e), &e);
    must(model_load(w->m, &e), &e);
    const struct runner_options r = {
        .n_ctx = 512, .max_rows = 64, .max_logits = 1, .kv = kv_types_of(KERN_KV_F16)};
    must(session_runner_create(&w->runner, w->family, w->self, &info, w->d, &r, &e), &e);
    must(session_create(&w->s, w->runner, &e), &e);
}

static void close_world(struct world *w)
{
    session_free(w->s);
    session_runner_free(w->runner);
    w->family->free(w->self);
    model_free(w->m);
    io_close(w->f);
    device_free(w->d);
}

/* Tokens a second. */
static double decode(const struct world *w, int n)
{
    struct session_work work = {.s = w->s, .want = FAMILY_LOGITS_LAST};
    struct err e;
    double start = 0;
    for (int i = -WARM; i < n; i++) {
        const int32_t token = 5 + (i & 7);
        if (i == 0)
            start = now();
        must(session_append(w->s, &token, 1, &e), &e);
        must(session_step(w->runner, &work, 1, NULL, &e), &e);
    }
    const double took = now() - start;
    must(session_rewind(w->s, 1, &e), &e);
    return n / took;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_busy FILE [ROUNDS [TOKENS]]\n");
        return 2;
    }
    const int rounds = argc > 2 ? atoi(argv[2]) : 3, n = argc > 3 ? atoi(argv[3]) : 20;
    struct world w;
    static double share[MODES][MOST_ROUNDS];
    open_world(&w, argv[1]);
    decode(&w, 8);
    for (int r = 0; r < rounds && r < MOST_ROUNDS; r++) {
        double rate[MODES];
        for (int mode = 0; mode < MODES; mode++) {
            const pid_t pid = mode ? burn(mode) : 0;
            rate[mode] = decode(&w, n);
            if (pid > 0) {
                kill(pid, SIGKILL);
                waitpid(pid, NULL, 0);
            }
            share[mode][r] = rate[mode] / rate[0];
        }
        printf("round %d: %.1f tokens/s idle;", r + 1, rate[0]);
        for (int mode = 1; mode < MODES; mode++)
            printf(" %s %.0f %%%s", mode_name[mode], 100 * share[mode][r],
                   mode + 1 < MODES ? "," : "\n");
        fflush(stdout);
    }
    for (int mode = 1; mode < MODES; mode++) {
        qsort(share[mode], (size_t)rounds, sizeof(double), ascending);
        printf("busy process, %s: %.0f %% kept\n", mode_name[mode], 100 * share[mode][rounds / 2]);
    }
    close_world(&w);
    return 0;
}
