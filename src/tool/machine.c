/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tool/tool.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PIECE = 4 << 20, /* what a thread claims at once */
    STREAMS = 8,
    RUN = 1024, /* bytes in a row of one stream */
    FILL = 2    /* what the buffer holds: pages of zeros could all be one page */
};

struct reading {
    const char *at;
    size_t n_streams;
};

/* memchr() for a byte that is not there reads as fast as the C library knows how. */
static void read_piece(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct reading *r = arg;
    const char *at = r->at + chunk * PIECE;
    const size_t each = PIECE / r->n_streams;
    for (size_t i = 0; i < each; i += RUN)
        for (size_t s = 0; s < r->n_streams; s++)
            BUG_IF(memchr(at + s * each + i, FILL + 1, RUN));
}

static void fill_piece(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    memset((char *)arg + chunk * PIECE, FILL, PIECE);
}

ingle_status tool_memory_create(struct tool_memory *m, struct pool *p, size_t n_bytes,
                                struct err *err)
{
    if (n_bytes < PIECE)
        return err_set(err, INGLE_ARG, "bandwidth: %zu bytes measure nothing", n_bytes);
    *m = (struct tool_memory){mem_big_alloc(n_bytes), n_bytes};
    if (!m->at)
        return err_set(err, INGLE_NOMEM, "bandwidth: no buffer of %zu bytes", n_bytes);
    pool_run(p, (int64_t)(n_bytes / PIECE), fill_piece, m->at);
    return INGLE_OK;
}

void tool_memory_release(struct tool_memory *m)
{
    mem_big_free(m->at, m->n_bytes);
    m->at = NULL;
}

double tool_memory_read(const struct tool_memory *m, struct pool *p, int n_streams)
{
    const int64_t n = (int64_t)(m->n_bytes / PIECE);
    struct reading r = {m->at, (size_t)n_streams};
    const uint64_t start = clock_now();
    pool_run(p, n, read_piece, &r);
    return (double)n * (double)PIECE * 1e9 / (double)num_max(1, (int64_t)(clock_now() - start));
}

ingle_status tool_machine_bandwidth(struct pool *p, size_t n_bytes, int n_rounds,
                                    double *bytes_per_s, struct err *err)
{
    struct tool_memory m = {0};
    if (n_rounds < 1)
        return err_set(err, INGLE_ARG, "bandwidth: %d rounds measure nothing", n_rounds);
    const ingle_status st = tool_memory_create(&m, p, n_bytes, err);
    if (st)
        return st;
    double best = 0;
    for (int i = 0; i < n_rounds; i++) {
        const double rate = tool_memory_read(&m, p, STREAMS);
        best = rate > best ? rate : best;
    }
    tool_memory_release(&m);
    *bytes_per_s = best;
    return INGLE_OK;
}

/* ---- who else works ---- */

void tool_busy_read(struct tool_busy *b)
{
    unsigned long long v[8] = {0};
    struct timespec own = {0};
    FILE *f = fopen("/proc/stat", "re");
    *b = (struct tool_busy){0};
    if (f && fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3],
                    &v[4], &v[5], &v[6], &v[7]) == 8)
        b->all = (double)(v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) / (double)sysconf(_SC_CLK_TCK);
    if (f)
        fclose(f);
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) == 0)
        b->own = (double)own.tv_sec + 1e-9 * (double)own.tv_nsec;
}

double tool_busy_foreign(const struct tool_busy *from, const struct tool_busy *to, double seconds,
                         int n_processors)
{
    const double others = to->all - from->all - (to->own - from->own);
    return seconds > 0 && others > 0 ? others / (seconds * n_processors) : 0;
}

ingle_status tool_memory_rounds(struct pool *p, size_t n_bytes, int n_processors,
                                struct tool_round *out, int n_rounds, struct err *err)
{
    /* clocks of processor time count hundredths of a second */
    static const uint64_t least_ns = 200000000;
    struct tool_memory m = {0};
    const ingle_status st = tool_memory_create(&m, p, n_bytes, err);
    for (int i = 0; !st && i < n_rounds; i++) {
        struct tool_busy from, to;
        double best = 0;
        const uint64_t start = clock_now();
        tool_busy_read(&from);
        do {
            const double rate = tool_memory_read(&m, p, STREAMS);
            best = rate > best ? rate : best;
        } while (clock_now() - start < least_ns);
        tool_busy_read(&to);
        out[i] = (struct tool_round){
            best,
            tool_busy_foreign(&from, &to, (double)(clock_now() - start) * 1e-9, n_processors)};
    }
    tool_memory_release(&m);
    return st;
}

/* The number of kilobytes after "key" in a file of "key: n kB" lines; 0: none. */
static double kilobytes(const char *path, const char *key)
{
    char line[256];
    double kib = 0;
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0)
            (void)sscanf(line + strlen(key), " %lf", &kib);
    if (f)
        fclose(f);
    return kib;
}

double tool_huge_share(void)
{
    static const char path[] = "/proc/self/smaps_rollup";
    const double all = kilobytes(path, "Anonymous:");
    return all > 0 ? kilobytes(path, "AnonHugePages:") / all : 0;
}
