/* SPDX-License-Identifier: Apache-2.0 */
/* bench_store DIR [MiB] - how fast a prefix goes to disk and comes back. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/mem.h"
#include "kv/kv.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE_MIB = 2 };

static void must(ingle_status st, const struct err *err)
{
    if (!st)
        return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static void drop_from_memory(const char *dir)
{
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        const int fd = openat(dirfd(d), e->d_name, O_RDONLY);
        if (fd >= 0) {
            (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
            close(fd);
        }
    }
    if (d)
        closedir(d);
}

static void say(const char *what, double bytes, uint64_t since)
{
    const double s = (double)(clock_now() - since) * 1e-9;
    printf("%-28s %7.3f s  %6.2f GB/s\n", what, s, bytes / s * 1e-9);
}

static void restore(struct kv_store *s, struct kv_timeline *t, const int32_t *tokens, int64_t n,
                    const char *what, double bytes)
{
    struct err err;
    void *mark;
    size_t mark_bytes;
    kv_timeline_clear(t);
    if (kv_store_find(s, kv_scope_of(0), tokens, n, NULL) != n)
        must(INGLE_NOTFOUND, &(struct err){.msg = "the store does not have it"});
    const uint64_t start = clock_now();
    must(kv_store_restore(s, t, kv_scope_of(0), tokens, n, &mark, &mark_bytes, &err), &err);
    say(what, bytes, start);
    mem_free(mark);
}

int main(int argc, char **argv)
{
    const int64_t mib = argc > 2 ? atoll(argv[2]) : 1024, n_pages = mib / PAGE_MIB;
    const int64_t n = n_pages * KV_PAGE;
    struct kv_spec spec = {.n_groups = 1, .group = {{.page_bytes = (size_t)PAGE_MIB << 20}}};
    struct err err;
    struct kv_pool *pool;
    struct kv_timeline *t;
    struct kv_store *s;
    if (argc < 2 || n_pages < 1) {
        fprintf(stderr, "usage: bench_store DIR [MiB]\n");
        return 2;
    }
    const struct kv_store_options o = {.dir = argv[1], .budget_bytes = UINT64_C(1) << 40};
    must(kv_pool_create(&pool, &spec, (uint64_t)(n_pages + 4) * PAGE_MIB << 20, NULL, &err), &err);
    must(kv_timeline_create(&t, pool, n, &err), &err);
    must(kv_timeline_extend(t, n, &err), &err);
    int32_t *tokens = mem_calloc((size_t)n, sizeof *tokens);
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)i;
    for (int64_t i = 0; i < n_pages; i++)
        memset(kv_timeline_pages(t, 0)[i], (int)i, (size_t)PAGE_MIB << 20);
    kv_timeline_commit(t, n);
    const double bytes = (double)n_pages * PAGE_MIB * 1048576;
    must(kv_store_open(&s, pool, &o, &err), &err);
    uint64_t start = clock_now();
    kv_store_put(s, t, kv_scope_of(0), tokens, 0, NULL, 0);
    say("put (what the engine waits)", bytes, start);
    kv_store_flush(s);
    say("written and synced", bytes, start);
    restore(s, t, tokens, n, "restored, files in memory", bytes);
    restore(s, t, tokens, n, "again", bytes);
    drop_from_memory(argv[1]);
    restore(s, t, tokens, n, "restored from the disk", bytes);
    kv_store_close(s);
    kv_timeline_free(t);
    kv_pool_free(pool);
    mem_free(tokens);
    return 0;
}
