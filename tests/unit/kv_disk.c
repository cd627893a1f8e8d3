/* SPDX-License-Identifier: Apache-2.0 */
/* kv_disk - pages on disk: what stays in memory, heads that are gathered from disk, and reads that fail. */
#define _DEFAULT_SOURCE
#include "unit/unit.h"

#include "base/mem.h"
#include "kv/kv.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Two streams of two and of one head, blocks of 24 and 8 KiB: 56 KiB a page. */
enum { WIDTH = 16, WIDE = 48, PAGES = 40, MEMORY = 14, STEP = 200 };

struct depot {
    char dir[32], path[300];
    struct kv_spec spec;
    struct kv_pool *pool;
    struct kv_timeline *t;
};

static void begin(struct depot *d, uint64_t disk_bytes)
{
    struct err e;
    memset(d, 0, sizeof *d);
    snprintf(d->dir, sizeof d->dir, "/tmp/ingle-disk-XXXXXX");
    assert_non_null(mkdtemp(d->dir));
    d->spec.n_groups = 1;
    d->spec.n_streams = 2;
    d->spec.stream = mem_calloc(2, sizeof *d->spec.stream);
    d->spec.stream[0] = (struct kv_stream){.kind = KV_HEADS, .layer = 3, .n_heads = 2, .k_width = WIDE, .v_width = WIDE, .every = 1, .k_codec = KERN_KV_F16, .v_codec = KERN_KV_F16};
    d->spec.stream[1] = (struct kv_stream){.kind = KV_HEADS, .layer = 7, .n_heads = 1, .k_width = WIDTH, .v_width = WIDTH, .every = 1, .k_codec = KERN_KV_F16, .v_codec = KERN_KV_F16};
    assert_int_equal(kv_layout(&d->spec, &e), INGLE_OK);
    d->spec.in_memory = MEMORY;
    assert_int_equal(kv_pool_create(&d->pool, &d->spec, MEMORY * d->spec.group[0].page_bytes, NULL, &e), INGLE_OK);
    const struct kv_disk_options o = {.dir = d->dir, .budget_bytes = disk_bytes, .max_tokens = PAGES * KV_PAGE};
    if (kv_disk_open(d->pool, &o, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(kv_timeline_create(&d->t, d->pool, PAGES * KV_PAGE, &e), INGLE_OK);
    DIR *dir = opendir(d->dir);
    for (const struct dirent *n; (n = readdir(dir));)
        if (strstr(n->d_name, ".pages"))
            snprintf(d->path, sizeof d->path, "%s/%.200s", d->dir, n->d_name);
    closedir(dir);
    assert_true(d->path[0]);
}

static void end(struct depot *d)
{
    kv_timeline_free(d->t);
    kv_pool_free(d->pool);
    kv_spec_release(&d->spec);
    assert_int_equal(rmdir(d->dir), 0);
}

/* What byte k of a page's block of a head is. */
static uint8_t byte_of(int64_t page, uint32_t stream, uint32_t head, size_t k)
{
    return (uint8_t)(page * 7 + (int64_t)stream * 31 + (int64_t)head * 57 + (int64_t)(k * 13 >> 4));
}

static void fill(struct depot *d, struct kv_timeline *t, int64_t page)
{
    uint8_t *at = kv_timeline_pages(t, 0)[page];
    assert_non_null(at);
    for (uint32_t s = 0; s < d->spec.n_streams; s++)
        for (uint32_t h = 0; h < d->spec.stream[s].n_heads; h++)
            for (size_t k = 0; k < d->spec.stream[s].head_bytes; k++)
                at[d->spec.stream[s].at + h * d->spec.stream[s].head_bytes + k] = byte_of(page, s, h, k);
}

/* The timeline grows to `to` positions. */
static ingle_status grow(struct depot *d, struct kv_timeline *t, int64_t to, struct err *e)
{
    for (int64_t at = kv_timeline_length(t); at < to; at = kv_timeline_length(t)) {
        const int64_t n = to - at < STEP ? to - at : STEP;
        const ingle_status st = kv_timeline_extend(t, n, e);
        if (st)
            return st;
        for (int64_t i = at / KV_PAGE; i <= (at + n - 1) / KV_PAGE; i++)
            fill(d, t, i);
        kv_timeline_commit(t, n);
    }
    return INGLE_OK;
}

static void check_head(struct depot *d, struct kv_timeline *t, uint32_t s, uint32_t h)
{
    const int64_t n = (kv_timeline_length(t) + KV_PAGE - 1) / KV_PAGE;
    uint8_t *const *head = kv_timeline_head(t, 0);
    for (int64_t i = 0; i < n; i++)
        for (size_t k = 0; k < d->spec.stream[s].head_bytes; k++)
            if (head[i][k] != byte_of(i, s, h, k))
                fail_msg("stream %u, head %u, page %lld, byte %zu", s, h, (long long)i, k);
}

static void step(struct depot *d, struct kv_timeline *const *t, int64_t n)
{
    struct err e;
    kv_disk_begin(d->pool, KV_DISK_STEP);
    for (uint32_t s = 0; s < d->spec.n_streams; s++)
        for (uint32_t h = 0; h < d->spec.stream[s].n_heads; h++)
            for (int64_t i = 0, k; i < n; i += k) {
                struct kv_heads *heads;
                if (kv_heads_take(&heads, s, h, t + i, n - i, &k, &e))
                    fail_msg("%s", e.msg);
                for (int64_t j = i; j < i + k; j++)
                    check_head(d, t[j], s, h);
                kv_heads_give(heads);
            }
}

/* The first page and the newest ones stay, of the others those of the lowest index; heads have all. */
static void grows(void **state)
{
    (void)state;
    struct depot d;
    struct err e;
    struct kv_disk_counts n;
    struct kv_pool_counts pool;
    begin(&d, 64 << 20);
    for (int64_t to = 900; to <= 4900; to += 1000) {
        assert_int_equal(grow(&d, d.t, to, &e), INGLE_OK);
        for (int i = 0; i < 3; i++)
            step(&d, &d.t, 1);
    }
    uint8_t *const *page = kv_timeline_pages(d.t, 0);
    const int64_t last = 4900 / KV_PAGE;
    bool left = false;
    for (int64_t i = 0; i <= last; i++) {
        assert_true(page[i] || (i > 0 && i < last - 3));
        assert_true(!left || !page[i] || i > last - 8); /* room that a step gave back */
        left |= !page[i];
    }
    assert_true(left && kv_timeline_is_away(d.t, 0));
    kv_disk_count(d.pool, &n);
    kv_pool_count(d.pool, &pool);
    assert_true(pool.used_bytes <= MEMORY * d.spec.group[0].page_bytes);
    assert_int_equal(n.pages + pool.pages_used[0], last + 1);
    assert_true(n.read_bytes > n.bytes && n.failed == 0);
    end(&d);
}

/* Shared pages are read once; a rewind into a page on disk brings a copy of it; what goes gives its place back. */
static void shared(void **state)
{
    (void)state;
    struct depot d;
    struct err e;
    struct kv_timeline *fork;
    struct kv_disk_counts before, after;
    begin(&d, 64 << 20);
    assert_int_equal(kv_timeline_create(&fork, d.pool, PAGES * KV_PAGE, &e), INGLE_OK);
    assert_int_equal(grow(&d, d.t, 30 * KV_PAGE + 50, &e), INGLE_OK);
    assert_int_equal(kv_timeline_fork(fork, d.t, &e), INGLE_OK);
    assert_int_equal(kv_timeline_rewind(fork, 20 * KV_PAGE + 5, &e), INGLE_OK); /* on disk, and somebody else's */
    assert_null(kv_timeline_pages(fork, 0)[20]);
    struct kv_timeline *const both[] = {d.t, fork, d.t};
    kv_disk_count(d.pool, &before);
    step(&d, both, 3);
    kv_disk_count(d.pool, &after);
    assert_true(after.read_bytes - before.read_bytes <= 2 * before.bytes); /* with what was read ahead */
    assert_int_equal(grow(&d, fork, 22 * KV_PAGE, &e), INGLE_OK);
    step(&d, both, 3);
    assert_int_equal(kv_timeline_rewind(d.t, 15 * KV_PAGE + 3, &e), INGLE_OK); /* 15 is still both's */
    assert_int_equal(grow(&d, d.t, 25 * KV_PAGE, &e), INGLE_OK);
    step(&d, both, 3);
    kv_timeline_clear(fork);
    assert_int_equal(kv_timeline_rewind(d.t, 18 * KV_PAGE + 1, &e), INGLE_OK); /* nobody else's */
    assert_int_equal(grow(&d, d.t, 20 * KV_PAGE, &e), INGLE_OK);
    step(&d, &d.t, 1);
    kv_timeline_clear(d.t);
    kv_disk_count(d.pool, &after);
    assert_int_equal(after.pages, 0);
    kv_timeline_free(fork);
    end(&d);
}

/* A file of its largest size; pins. */
static void no_room(void **state)
{
    (void)state;
    struct depot d;
    struct err e;
    begin(&d, 10 * (56 << 10));
    assert_int_equal(grow(&d, d.t, PAGES * KV_PAGE, &e), INGLE_LIMIT);
    assert_non_null(strstr(e.msg, "largest size"));
    step(&d, &d.t, 1);
    kv_timeline_clear(d.t);
    assert_int_equal(grow(&d, d.t, (MEMORY - 1) * KV_PAGE, &e), INGLE_OK);
    kv_timeline_pin(d.t, true);
    assert_int_equal(grow(&d, d.t, (MEMORY + 3) * KV_PAGE, &e), INGLE_LIMIT);
    kv_timeline_pin(d.t, false);
    end(&d);
}

static ingle_status first_failure(struct depot *d, uint32_t *stream, struct err *e)
{
    int64_t k;
    struct kv_heads *heads;
    for (*stream = 0; *stream < 2; ++*stream) {
        const ingle_status st = kv_heads_take(&heads, *stream, 0, &d->t, 1, &k, e);
        if (st)
            return st;
        kv_heads_give(heads);
    }
    return INGLE_OK;
}

/* Bytes that differ, and a file that ends. */
static void bad_reads(void **state)
{
    (void)state;
    struct depot d;
    struct err e;
    struct kv_disk_counts n;
    uint32_t stream;
    begin(&d, 64 << 20);
    assert_int_equal(grow(&d, d.t, 30 * KV_PAGE + 3, &e), INGLE_OK);
    assert_int_equal(kv_timeline_rewind(d.t, 20 * KV_PAGE + 7, &e), INGLE_OK);
    const int fd = open(d.path, O_RDWR);
    assert_true(fd >= 0);
    for (int i = 0; i < 2; i++) {
        char byte;
        if (i)
            assert_int_equal(ftruncate(fd, 0), 0);
        else
            assert_true(pread(fd, &byte, 1, 30000) == 1 && (byte ^= 4, pwrite(fd, &byte, 1, 30000) == 1));
        ingle_status st = INGLE_OK;
        for (int k = 0; k < 3 && !st; k++) /* what was read ahead is good */
            st = first_failure(&d, &stream, &e);
        assert_int_equal(st, INGLE_IO);
        assert_non_null(strstr(e.msg, d.path));
        assert_non_null(strstr(e.msg, stream ? "layer 7" : "layer 3"));
        assert_non_null(strstr(e.msg, ", page "));
        assert_non_null(strstr(e.msg, i ? "the file ends" : "checksum"));
    }
    assert_int_equal(kv_timeline_extend(d.t, 1, &e), INGLE_IO); /* the page that it stands in is there */
    assert_non_null(strstr(e.msg, "page 20"));
    assert_int_equal(kv_timeline_length(d.t), 20 * KV_PAGE + 7);
    kv_disk_count(d.pool, &n);
    assert_int_equal(n.failed, 3);
    close(fd);
    end(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(grows), cmocka_unit_test(shared), cmocka_unit_test(no_room), cmocka_unit_test(bad_reads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
