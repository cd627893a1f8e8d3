/* SPDX-License-Identifier: Apache-2.0 */
/* Files of keys and values: whatever the bytes are, a load ends with an error and the timeline
 * as it was, or with as many tokens as it says.  The first byte says which checksums are set
 * right before, so that the checks behind them are reached. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "kv/kv.h"
#include "kv/key.h"
#include "kv/store_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { SEAL_CONTEXT = 1, SEAL_META = 2, SEAL_HEADER = 4, SEAL_PAGES = 8 };

static const struct kv_save_options whose = {.identity = 1, .model = "fuzz", .codec = "f16"};

/* The context that a file of this program has: taken from one. */
static void context_of(struct kv_timeline *t, const char *path, struct kv_file_header *out)
{
    struct kv_file f;
    const int dir = open("/tmp", O_RDONLY | O_DIRECTORY);
    if (kv_save(t, path, &whose, NULL, 0, NULL, 0, NULL) ||
        kv_file_open(&f, dir, strrchr(path, '/') + 1, NULL))
        abort();
    *out = f.head;
    kv_file_close(&f);
    close(dir);
}

static void seal(uint8_t *at, size_t n, int how, const struct kv_file_header *like)
{
    struct kv_file_header h;
    if (n < sizeof h)
        return;
    memcpy(&h, at, sizeof h);
    if (how & SEAL_CONTEXT) {
        memcpy(h.magic, like->magic, sizeof h.magic);
        h.version = like->version;
        h.endian = like->endian;
        h.context = like->context;
        h.identity = like->identity;
        h.n_groups = like->n_groups;
        h.file_bytes = n;
    }
    /* One page of each group. */
    const bool short_one = h.n_tokens > 0 && h.n_tokens < 500;
    const size_t sums = sizeof h + (short_one ? (size_t)((h.n_tokens * 4 + 7) & ~7) : 0);
    if ((how & SEAL_PAGES) && short_one && h.meta_bytes < n &&
        sums + 2 * sizeof(struct kv_key) <= n && sizeof h + h.meta_bytes + 192 <= n) {
        const struct kv_key sum[2] = {kv_sum(at + sizeof h + h.meta_bytes, 64),
                                      kv_sum(at + sizeof h + h.meta_bytes + 64, 128)};
        memcpy(at + sums, sum, sizeof sum);
    }
    if ((how & SEAL_META) && h.meta_bytes <= n - sizeof h) {
        h.meta_sum = kv_sum(at + sizeof h, (size_t)h.meta_bytes);
        if (h.length >= 0 && (size_t)h.length <= h.meta_bytes / sizeof(int32_t)) {
            int32_t *token = mem_alloc((size_t)h.meta_bytes + 4);
            memcpy(token, at + sizeof h, (size_t)h.meta_bytes);
            h.key =
                kv_key_of(h.context, (struct kv_scope){.sparse = h.sparse}, NULL, token, h.length);
            mem_free(token);
        }
    }
    if (how & SEAL_HEADER)
        h.sum = kv_file_header_sum(&h);
    memcpy(at, &h, sizeof h);
}

static void load(const uint8_t *data, size_t n, int how)
{
    static char path[64];
    struct kv_spec spec = {.n_groups = 2,
                           .group = {{.page_bytes = 64}, {.window = 200, .page_bytes = 128}}};
    struct kv_pool *pool;
    struct kv_timeline *t;
    struct kv_file_header like;
    struct err err = {0};
    uint8_t *copy = mem_alloc(n + 1);
    snprintf(path, sizeof path, "/tmp/ingle-fuzz-%ld", (long)getpid());
    if (!copy || kv_pool_create(&pool, &spec, 1 << 16, NULL, NULL) ||
        kv_timeline_create(&t, pool, 1000, NULL))
        abort();
    context_of(t, path, &like);
    memcpy(copy, data, n);
    seal(copy, n, how, &like);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(copy, 1, n, f) != n || fclose(f))
        abort();
    int32_t *tokens = NULL;
    int64_t n_tokens = -1;
    void *mark = NULL;
    size_t mark_bytes = 0;
    if (kv_load(t, path, &whose, &tokens, &n_tokens, &mark, &mark_bytes, &err)) {
        if (!err.status || !err.msg[0] || tokens || mark || kv_timeline_length(t))
            abort();
    } else if (kv_timeline_length(t) > n_tokens || n_tokens > 1000) {
        abort();
    }
    mem_free(tokens);
    mem_free(mark);
    kv_timeline_free(t);
    kv_pool_free(pool);
    mem_free(copy);
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n)
        load(data + 1, n - 1, data[0]);
    return 0;
}
