/* SPDX-License-Identifier: Apache-2.0 */
/* disk - threads that read at random places, each with a buffer of its own. */
#define _GNU_SOURCE
#include "base/disk.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALIGN = 4096, PIECE = 1 << 20, MOST_TIMES = 4096 };

struct reader {
    int fd;
    uint64_t file_bytes, n_bytes, until, random;
    uint8_t *buffer;
    double *seconds; /* [MOST_TIMES] */
    uint64_t n;
    int failed; /* errno */
};

static uint64_t place(struct reader *r)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return r->random % ((r->file_bytes - r->n_bytes) / ALIGN + 1) * ALIGN;
}

static bool read_one(struct reader *r)
{
    const uint64_t at = place(r);
    for (uint64_t done = 0; done < r->n_bytes;) {
        const uint64_t left = r->n_bytes - done;
        const ssize_t got =
            pread(r->fd, r->buffer + done, left < PIECE ? (size_t)left : PIECE, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            r->failed = got ? errno : ENODATA;
            return false;
        }
        done += (uint64_t)got;
    }
    return true;
}

static void *run(void *arg)
{
    struct reader *r = arg;
    do {
        const uint64_t start = clock_now();
        if (!read_one(r))
            break;
        r->seconds[r->n++] = (double)(clock_now() - start) * 1e-9;
    } while (r->n < MOST_TIMES && clock_now() < r->until);
    return NULL;
}

/* One in flight after the other thread: what all have read. */
static ingle_status run_all(struct reader *r, int n, const char *path, uint64_t ns,
                            struct disk_rate *out, struct err *err)
{
    pthread_t thread[DISK_MOST];
    int n_started = 0, failed = 0;
    const uint64_t start = clock_now();
    for (int i = 0; i < n; i++) {
        r[i].until = start + ns;
        if (pthread_create(&thread[i], NULL, run, &r[i]) != 0)
            break;
        n_started++;
    }
    for (int i = 0; i < n_started; i++) {
        pthread_join(thread[i], NULL);
        failed = failed ? failed : r[i].failed;
        out->n_reads += r[i].n;
    }
    if (failed)
        return err_set(err, INGLE_IO, "%s: cannot read: %s", path, strerror(failed));
    if (!out->n_reads)
        return err_set(err, INGLE_NOMEM, "%s: no thread to read it", path);
    const double seconds = (double)(clock_now() - start) * 1e-9;
    out->bytes_per_s = (double)(out->n_reads * r[0].n_bytes) / seconds;
    double *all = mem_calloc((size_t)out->n_reads, sizeof *all);
    if (!all)
        return err_set(err, INGLE_NOMEM, "%s: no memory for %llu times", path,
                       (unsigned long long)out->n_reads);
    size_t at = 0;
    for (int i = 0; i < n_started; i++) {
        memcpy(all + at, r[i].seconds, (size_t)r[i].n * sizeof *all);
        at += (size_t)r[i].n;
    }
    qsort(all, at, sizeof *all, num_order_f64);
    out->median_s = all[at / 2];
    mem_free(all);
    return INGLE_OK;
}

/* Direct, if a read comes back that way. */
static bool set_direct(int fd, uint8_t *buffer)
{
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0)
        return false;
    if (pread(fd, buffer, ALIGN, 0) == ALIGN)
        return true;
    (void)fcntl(fd, F_SETFL, flags);
    return false;
}

ingle_status disk_measure(const char *path, uint64_t n_bytes, int n_at_once, uint64_t ns,
                          struct disk_rate *out, struct err *err)
{
    struct reader r[DISK_MOST] = {{0}};
    struct stat st;
    ingle_status s = INGLE_OK;
    struct disk_rate rate = {0};
    n_bytes = (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (n_at_once < 1 || n_at_once > DISK_MOST)
        return err_set(err, INGLE_ARG, "%d reads at a time are outside 1 to %d", n_at_once,
                       DISK_MOST);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        s = err_set(err, errno == ENOENT ? INGLE_NOTFOUND : INGLE_IO, "%s: cannot open: %s", path,
                    strerror(errno));
        if (fd >= 0)
            close(fd);
        return s;
    }
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < n_bytes)
        s = err_set(err, INGLE_ARG, "%s: no file of at least %llu bytes", path,
                    (unsigned long long)n_bytes);
    for (int i = 0; !s && i < n_at_once; i++) {
        r[i] = (struct reader){.fd = fd, .file_bytes = (uint64_t)st.st_size, .n_bytes = n_bytes,
                               .random = (clock_now() | 1) * (uint64_t)(2 * i + 3)};
        r[i].buffer = mem_big_alloc((size_t)(n_bytes > MEM_BIG_PAGE ? n_bytes : MEM_BIG_PAGE));
        if (r[i].buffer)
            mem_fill(r[i].buffer, (size_t)n_bytes);
        r[i].seconds = mem_calloc(MOST_TIMES, sizeof *r[i].seconds);
        if (!r[i].buffer || !r[i].seconds)
            s = err_set(err, INGLE_NOMEM, "no memory for %d reads of %llu bytes", n_at_once,
                        (unsigned long long)n_bytes);
    }
    if (!s) {
        rate.direct = set_direct(fd, r[0].buffer);
        s = run_all(r, n_at_once, path, ns, &rate, err);
    }
    for (int i = 0; i < n_at_once; i++) {
        mem_big_free(r[i].buffer, (size_t)(n_bytes > MEM_BIG_PAGE ? n_bytes : MEM_BIG_PAGE));
        mem_free(r[i].seconds);
    }
    close(fd);
    if (!s)
        *out = rate;
    return s;
}
