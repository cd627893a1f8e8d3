/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_load FILE [--threads=N] [--pack=DIR] [--lock]: how long a start takes, from nothing to the
 * logits of one token, and how long one of 8 more takes.  One JSON line.  --pack: a file of packed
 * weights in DIR is mapped, or written if it is not there.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/num.h"
#include "family/family.h"
#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(ingle_status s, const struct err *e)
{
    if (!s)
        return;
    fprintf(stderr, "bench_load: %s\n", e->msg);
    exit(1);
}

static void say(void *arg, ingle_report_level level, const char *kind, const char *subject,
                const char *text)
{
    (void)arg;
    if (level <= INGLE_REPORT_NOTE)
        fprintf(stderr, "%s '%s': %s\n", kind, subject, text);
}

static double since(uint64_t *start)
{
    const uint64_t now = clock_now();
    const double s = (double)(now - *start) * 1e-9;
    *start = now;
    return s;
}

enum { MORE = 8 };
struct phases { double open, bind, load, token, next; };

static void run(const char *path, int threads, const struct model_load_options *o)
{
    static const struct report_sink sink = {.report = say};
    struct err e;
    struct device *d;
    struct io_file *f;
    struct model *m;
    void *self;
    struct family_info info;
    struct runner *runner;
    struct session *session;
    const char *arch;
    size_t n;
    struct phases t;
    uint64_t start = clock_now();
    must(device_create(&d,
                       &(struct device_options){
                           .n_threads = threads, .pin = true, .cpu = UINT32_MAX, .sink = &sink},
                       &e),
         &e);
    must(io_open(&f, path, &sink, &e), &e);
    must(io_get_str(io_metadata(f), "general.architecture", &arch, &n, &e), &e);
    const struct family *family = family_by_arch(arch);
    if (!family)
        must(INGLE_UNSUP, &(struct err){.msg = "no such family"});
    t.open = since(&start);
    must(model_create(&m, f, d, family->alias, &sink, &e), &e);
    must(family->bind(&self, m, io_metadata(f), &info, &e), &e);
    struct model_load_options options = *o;
    options.identity = model_identity(m);
    t.bind = since(&start);
    must(model_load_with(m, &options, &e), &e);
    t.load = since(&start);
    const struct runner_options r = {.n_ctx = 512,
                                     .max_rows = 64,
                                     .max_logits = 1,
                                     .kv = kv_types_of(KERN_KV_F16),
                                     .sink = &sink};
    struct session_work w = {.want = FAMILY_LOGITS_LAST};
    must(session_runner_create(&runner, family, self, &info, d, &r, &e), &e);
    must(session_create(&session, runner, &e), &e);
    must(session_append(session, (const int32_t[]){5}, 1, &e), &e);
    w.s = session;
    must(session_step(runner, &w, 1, NULL, &e), &e);
    t.token = since(&start);
    for (int i = 0; i < MORE; i++) {
        must(session_append(session, (const int32_t[]){6}, 1, &e), &e);
        must(session_step(runner, &w, 1, NULL, &e), &e);
    }
    t.next = since(&start) / MORE;
    struct model_loaded l;
    model_loaded(m, &l);
    printf(
        "{\"model\":\"%s\",\"threads\":%d,\"gb\":%.3f,\"mapped\":%s,\"huge\":%.3f,\"open\":%.3f,"
        "\"bind\":%.3f,"
        "\"load\":%.3f,\"token\":%.3f,\"together\":%.3f,\"gb_per_s\":%.2f,\"next\":%.4f}\n",
        path, pool_size(device_pool(d)), (double)l.image_bytes * 1e-9, l.mapped ? "true" : "false",
        (double)l.huge_bytes / (double)num_max(1, (int64_t)l.image_bytes), t.open, t.bind, t.load,
        t.token, t.open + t.bind + t.load + t.token, (double)l.image_bytes * 1e-9 / t.load, t.next);
    session_free(session);
    session_runner_free(runner);
    family->free(self);
    model_free(m);
    io_close(f);
    device_free(d);
}

int main(int argc, char **argv)
{
    struct model_load_options o = {0};
    const char *path = NULL;
    int threads = 0;
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--pack=", 7)) {
            o.pack_dir = argv[i] + 7;
            o.pack_write = true;
        } else if (!strcmp(argv[i], "--lock")) {
            o.lock = true;
        } else if (!strncmp(argv[i], "--threads=", 10)) {
            threads = atoi(argv[i] + 10);
        } else if (argv[i][0] != '-' && !path) {
            path = argv[i];
        } else {
            path = NULL;
            break;
        }
    }
    if (!path) {
        fprintf(stderr, "usage: bench_load FILE [--threads=N] [--pack=DIR] [--lock]\n");
        return 2;
    }
    run(path, threads, &o);
    return 0;
}
