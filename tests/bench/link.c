/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_link [KEY_FILE [MiB [MESSAGE_KiB [ADDRESS]]]] - how fast messages go from one process to
 * another.  It prints the rate by the clock, and what one processor would carry at each end (bytes
 * by the processor time of the process, without that of writing the messages).  Without KEY_FILE
 * ("-") they are not encrypted.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "link/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(ingle_status st, const struct err *err)
{
    if (!st)
        return;
    fprintf(stderr, "bench_link: %s\n", err->msg);
    exit(1);
}

static double processor_s(void)
{
    struct rusage u;
    (void)getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void answer(struct link *l, const struct link_peer *to)
{
    struct link_out m;
    if (!link_out_init(&m, 0) || !link_send(l, to, &(struct link_head){.kind = LINK_BYE}, &m))
        exit(1);
}

/* Takes n messages; the last one is answered. */
static void receive(const struct link_options *o, int n, double bytes)
{
    struct link *l;
    struct err err;
    struct link_in in;
    char why[200];
    double began = 0;
    must(link_listen(&l, o, &err), &err);
    for (int i = 0; i < n;) {
        if (link_wait(l, 1000, &in, why, sizeof why) != LINK_MESSAGE)
            continue;
        link_admit(l, &in.from, LINK_MAX_BYTES);
        began = i++ ? began : processor_s();
        if (i == n)
            answer(l, &in.from);
        link_in_release(&in);
    }
    printf("receiver: %.2f GB/s a core\n", bytes / (processor_s() - began) * 1e-9);
    link_close(l);
}

static void transmit(const struct link_options *o, int n, size_t n_bytes)
{
    struct link *l;
    struct err err;
    struct link_in in;
    struct link_out m;
    char why[200];
    must(link_dial(&l, o, &err), &err);
    while (link_wait(l, 1000, &in, why, sizeof why) != LINK_UP)
        ;
    link_admit(l, NULL, LINK_MAX_BYTES); /* else its last word is dropped with the connection */
    const uint64_t start = clock_now();
    const double began = processor_s();
    double filled = 0;
    for (int i = 0; i < n;) {
        if (!link_out_init(&m, n_bytes))
            exit(1);
        const double fills = processor_s();
        memset(m.payload, i, n_bytes);
        filled += processor_s() - fills;
        if (link_send(l, NULL, &(struct link_head){.kind = LINK_FAIL}, &m))
            i++;
        else
            (void)usleep(100);
    }
    while (link_wait(l, 1000, &in, why, sizeof why) != LINK_MESSAGE)
        ;
    link_in_release(&in);
    const double bytes = (double)n * (double)n_bytes;
    printf("sender:   %.2f GB/s a core\n", bytes / (processor_s() - began - filled) * 1e-9);
    printf("both:     %.2f GB/s by the clock\n", bytes / (double)(clock_now() - start));
    link_close(l);
}

int main(int argc, char **argv)
{
    char address[80];
    const char *key = argc > 1 && strcmp(argv[1], "-") != 0 ? argv[1] : NULL;
    const long mib = argc > 2 ? strtol(argv[2], NULL, 10) : 1024;
    const long kib = argc > 3 ? strtol(argv[3], NULL, 10) : 4096;
    snprintf(address, sizeof address, "127.0.0.1:%d", 20000 + (int)getpid() % 20000);
    const struct link_options o = {.address = argc > 4 ? argv[4] : address,
                                   .key_file = key,
                                   .most_bytes = LINK_MAX_BYTES,
                                   .heartbeat_ms = 5000,
                                   .dead_ms = 60000};
    const int n = kib > 0 && mib > 0 && kib <= LINK_MAX_BYTES >> 10 ? (int)(mib * 1024 / kib) : 0;
    if (n < 1) {
        fprintf(stderr, "usage: bench_link [KEY_FILE|- [MiB [MESSAGE_KiB [ADDRESS]]]]\n");
        return 1;
    }
    const pid_t child = fork();
    if (child < 0)
        return 1;
    if (!child) {
        receive(&o, n, (double)n * (double)kib * 1024);
        exit(0);
    }
    transmit(&o, n, (size_t)kib * 1024);
    int status = 0;
    return waitpid(child, &status, 0) == child && !status ? 0 : 1;
}
