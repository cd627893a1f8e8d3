/* SPDX-License-Identifier: Apache-2.0 */
/* kv_disk - pages on disk: what stays in memory, what comes back, heads that are gathered from
 * disk, reads that fail, and a disk that does not answer.  Linked with --wrap for pread and
 * pwrite. */
#define _DEFAULT_SOURCE
#include "unit/unit.h"

#include "base/mem.h"
#include "kv/disk_impl.h"
#include "kv/kv.h"
#include "kv/page.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Two streams of two and of one head, blocks of 24 and 8 KiB: 56 KiB a page. */
enum { WIDTH = 16, WIDE = 48, PAGES = 40, MEMORY = 14, STEP = 200, KEPT = 8 };

/* A disk that does not answer: reads or writes of files wait until it is let go. */
static pthread_mutex_t hang_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hang_over = PTHREAD_COND_INITIALIZER;
static bool reads_hang, writes_hang;
static int n_hang;

ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __real_pwrite(int fd, const void *from, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t at);

static void wait_here(const bool *hangs)
{
    pthread_mutex_lock(&hang_lock);
    n_hang++;
    while (*hangs)
        pthread_cond_wait(&hang_over, &hang_lock);
    n_hang--;
    pthread_mutex_unlock(&hang_lock);
}

ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at)
{
    wait_here(&reads_hang);
    return __real_pread(fd, to, n, at);
}

ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t at)
{
    wait_here(&writes_hang);
    return __real_pwrite(fd, from, n, at);
}

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
    d->spec.stream[0] = (struct kv_stream){.kind = KV_HEADS,
                                           .layer = 3,
                                           .n_heads = 2,
                                           .k_width = WIDE,
                                           .v_width = WIDE,
                                           .every = 1,
                                           .k_codec = KERN_KV_F16,
                                           .v_codec = KERN_KV_F16};
    d->spec.stream[1] = (struct kv_stream){.kind = KV_HEADS,
                                           .layer = 7,
                                           .n_heads = 1,
                                           .k_width = WIDTH,
                                           .v_width = WIDTH,
                                           .every = 1,
                                           .k_codec = KERN_KV_F16,
                                           .v_codec = KERN_KV_F16};
    assert_int_equal(kv_layout(&d->spec, &e), INGLE_OK);
    d->spec.in_memory = MEMORY;
    d->spec.kept = KEPT;
    assert_int_equal(
        kv_pool_create(&d->pool, &d->spec, MEMORY * d->spec.group[0].page_bytes, NULL, &e),
        INGLE_OK);
    const struct kv_disk_options o = {
        .dir = d->dir, .budget_bytes = disk_bytes, .max_tokens = PAGES * KV_PAGE};
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

/* Only meanwhile the limit is short: a busy disk may take longer. */
static void hang(struct depot *d, bool reads, bool writes)
{
    if (d->pool)
        d->pool->disk->stall_ns = reads || writes ? 150000000u : 30000000000u;
    pthread_mutex_lock(&hang_lock);
    reads_hang = reads;
    writes_hang = writes;
    pthread_cond_broadcast(&hang_over);
    pthread_mutex_unlock(&hang_lock);
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
                at[d->spec.stream[s].at + h * d->spec.stream[s].head_bytes + k] =
                    byte_of(page, s, h, k);
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
                if (kv_heads_take(&heads, s, h, t + i, n - i, &k, NULL, &e))
                    fail_msg("%s", e.msg);
                for (int64_t j = i; j < i + k; j++)
                    check_head(d, t[j], s, h);
                kv_heads_give(heads);
            }
}

/* The first page and the newest ones stay, of the others those of the lowest index; heads have
 * all. */
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

/* Shared pages are read once; a rewind into a page on disk brings a copy of it; what goes gives its
 * place back. */
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
    /* on disk, and somebody else's */
    assert_int_equal(kv_timeline_rewind(fork, 20 * KV_PAGE + 5, &e), INGLE_OK);
    assert_null(kv_timeline_pages(fork, 0)[20]);
    struct kv_timeline *const both[] = {d.t, fork, d.t};
    kv_disk_count(d.pool, &before);
    step(&d, both, 3);
    kv_disk_count(d.pool, &after);
    /* with what was read ahead */
    assert_true(after.read_bytes - before.read_bytes <= 2 * before.bytes);
    assert_int_equal(grow(&d, fork, 22 * KV_PAGE, &e), INGLE_OK);
    step(&d, both, 3);
    /* 15 is still both's */
    assert_int_equal(kv_timeline_rewind(d.t, 15 * KV_PAGE + 3, &e), INGLE_OK);
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

static bool give_one(void *arg)
{
    struct depot *d = arg;
    for (int64_t i = 0; i < MEMORY - 1; i++)
        if (d->t->table[0].page[i]->kept) {
            kv_page_unkeep(d->pool, d->t->table[0].page[i]);
            return true;
        }
    return false;
}

/* The store still writes all pages of a timeline that needs more: it gives them back. */
static void pages_that_are_saved(void **state)
{
    (void)state;
    struct depot d;
    struct err e;
    begin(&d, 64 << 20);
    assert_int_equal(grow(&d, d.t, (MEMORY - 1) * KV_PAGE, &e), INGLE_OK);
    for (int64_t i = 0; i < MEMORY - 1; i++)
        kv_page_keep(d.pool, d.t->table[0].page[i]);
    assert_int_equal(grow(&d, d.t, (MEMORY + 3) * KV_PAGE, &e), INGLE_LIMIT);
    d.pool->let_go = give_one;
    d.pool->let_go_arg = &d;
    assert_int_equal(grow(&d, d.t, (MEMORY + 3) * KV_PAGE, &e), INGLE_OK);
    while (give_one(&d)) {
    }
    d.pool->let_go = NULL;
    end(&d);
}

static ingle_status first_failure(struct depot *d, uint32_t *stream, struct err *e)
{
    int64_t k;
    struct kv_heads *heads;
    for (*stream = 0; *stream < 2; ++*stream) {
        const ingle_status st = kv_heads_take(&heads, *stream, 0, &d->t, 1, &k, NULL, e);
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
            assert_true(pread(fd, &byte, 1, 30000) == 1 &&
                        (byte ^= 4, pwrite(fd, &byte, 1, 30000) == 1));
        ingle_status st = INGLE_OK;
        for (int k = 0; k < 3 && !st; k++) /* what was read ahead is good */
            st = first_failure(&d, &stream, &e);
        assert_int_equal(st, INGLE_IO);
        assert_non_null(strstr(e.msg, d.path));
        assert_non_null(strstr(e.msg, stream ? "layer 7" : "layer 3"));
        assert_non_null(strstr(e.msg, ", page "));
        assert_non_null(strstr(e.msg, i ? "the file ends" : "checksum"));
    }
    /* the page that it stands in is there */
    assert_int_equal(kv_timeline_extend(d.t, 1, &e), INGLE_IO);
    assert_non_null(strstr(e.msg, "page 20"));
    assert_int_equal(kv_timeline_length(d.t), 20 * KV_PAGE + 7);
    kv_disk_count(d.pool, &n);
    assert_int_equal(n.failed, 3);
    close(fd);
    end(&d);
}

static int64_t n_away(struct depot *d, struct kv_timeline *t)
{
    int64_t n = 0;
    for (int64_t i = 0; i < (kv_timeline_length(t) + KV_PAGE - 1) / KV_PAGE; i++)
        n += !kv_timeline_pages(t, 0)[i];
    (void)d;
    return n;
}

/* Room again: pages come back, those of the lowest index first, an eighth of them a step; what
 * leaves once more is not written once more; one that is written again behind a rewind is. */
static void comes_back(void **state)
{
    (void)state;
    struct depot d;
    struct err e;
    struct kv_timeline *other;
    struct kv_disk_counts n, again;
    struct kv_pool_counts pool;
    begin(&d, 22 * (56 << 10));
    assert_int_equal(kv_timeline_create(&other, d.pool, PAGES * KV_PAGE, &e), INGLE_OK);
    assert_int_equal(grow(&d, d.t, 16 * KV_PAGE, &e), INGLE_OK);
    assert_int_equal(grow(&d, other, 12 * KV_PAGE, &e), INGLE_OK);
    const int64_t away = n_away(&d, d.t) + n_away(&d, other);
    assert_true(away >= 14);
    kv_timeline_recall(d.t); /* there is no room */
    assert_int_equal(n_away(&d, d.t) + n_away(&d, other), away);
    kv_timeline_clear(other);
    int steps = 0;
    for (int64_t left = n_away(&d, d.t), now; left; left = now, steps++) {
        kv_timeline_recall(d.t);
        step(&d, &d.t, 1);
        now = n_away(&d, d.t);
        assert_true(left - now <= (left + 7) / 8);
        bool gone = false;
        for (int64_t i = 0; i < 16; i++) {
            gone |= !kv_timeline_pages(d.t, 0)[i];
            assert_true(i >= 12 || !gone || !kv_timeline_pages(d.t, 0)[i]);
        }
        if (now == left)
            break;
    }
    assert_true(steps > 1 && n_away(&d, d.t) <= 6);
    kv_disk_count(d.pool, &n);
    kv_pool_count(d.pool, &pool);
    assert_true(pool.used_bytes <= pool.budget_bytes &&
                pool.used_bytes <= (MEMORY - 3) * d.spec.group[0].page_bytes);
    assert_int_equal(grow(&d, other, 6 * KV_PAGE, &e), INGLE_OK); /* some leave again */
    assert_true(n_away(&d, d.t) > 0);
    step(&d, &d.t, 1);
    kv_disk_count(d.pool, &again);
    assert_int_equal(again.written_bytes, n.written_bytes);
    /* places of pages in memory are taken for it */
    assert_int_equal(grow(&d, other, 20 * KV_PAGE, &e), INGLE_OK);
    struct kv_timeline *const both[] = {d.t, other};
    step(&d, both, 2);
    kv_timeline_clear(other);
    for (int i = 0; i < 40; i++)
        kv_timeline_recall(d.t);
    assert_int_equal(kv_timeline_rewind(d.t, 7 * KV_PAGE + 40, &e), INGLE_OK);
    assert_int_equal(grow(&d, d.t, 30 * KV_PAGE, &e), INGLE_OK);
    step(&d, &d.t, 1);
    kv_timeline_free(other);
    end(&d);
}

/* Reads that do not end: the step fails with the file's name, or when nobody wants it; when they
 * end, all goes on. */
static void reads_stall(void **state)
{
    (void)state;
    struct depot d;
    struct err e;
    struct kv_heads *heads;
    struct kv_disk_counts n;
    atomic_bool cancel = true;
    int64_t k;
    begin(&d, 64 << 20);
    assert_int_equal(grow(&d, d.t, 30 * KV_PAGE + 3, &e), INGLE_OK);
    hang(&d, true, false);
    assert_int_equal(kv_heads_take(&heads, 0, 0, &d.t, 1, &k, &cancel, &e), INGLE_CANCEL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kv_heads_take(&heads, (uint32_t)i, 0, &d.t, 1, &k, NULL, &e), INGLE_IO);
        assert_non_null(strstr(e.msg, d.path));
        assert_non_null(strstr(e.msg, "no read has ended for 0.15 s"));
    }
    assert_int_equal(kv_timeline_rewind(d.t, 20 * KV_PAGE + 7, &e), INGLE_OK);
    assert_int_equal(kv_timeline_extend(d.t, 1, &e), INGLE_IO); /* the page that it stands in */
    assert_non_null(strstr(e.msg, "does not answer"));
    kv_disk_count(d.pool, &n);
    assert_int_equal(n.failed, 3);
    hang(&d, false, false);
    ingle_status st = INGLE_IO;
    for (int i = 0; i < 60000 && st; i++) { /* until the threads know */
        st = kv_timeline_extend(d.t, 1, &e);
        usleep(1000);
    }
    assert_int_equal(st, INGLE_OK);
    kv_timeline_clear(d.t);
    assert_int_equal(grow(&d, d.t, 30 * KV_PAGE + 3, &e), INGLE_OK);
    step(&d, &d.t, 1);
    end(&d);
}

/* Writes that do not end: pages stay in memory, and nobody waits for them twice. */
static void writes_stall(void **state)
{
    (void)state;
    struct depot d;
    struct err e;
    struct kv_disk_counts n;
    begin(&d, 64 << 20);
    hang(&d, false, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(grow(&d, d.t, 30 * KV_PAGE, &e), INGLE_LIMIT);
    assert_non_null(strstr(e.msg, "the disk does not answer"));
    step(&d, &d.t, 1); /* all of them are in memory */
    kv_disk_count(d.pool, &n);
    assert_true(n.failed == 1 && n.pages == 0 && strstr(n.error, d.path));
    hang(&d, false, false);
    end(&d);
}

/* The end of a process whose disk does not answer: not later than the threads are waited for; the
 * thread that waits for the disk frees what it has and removes the file, when it answers. */
static void end_stalls(void **state)
{
    (void)state;
    struct depot d;
    struct err e;
    begin(&d, 64 << 20);
    hang(&d, false, true);
    assert_int_equal(grow(&d, d.t, 30 * KV_PAGE, &e), INGLE_LIMIT);
    kv_timeline_free(d.t);
    kv_pool_free(d.pool);
    d.pool = NULL;
    assert_int_equal(access(d.path, F_OK), 0);
    hang(&d, false, false);
    for (int i = 0; i < 60000 && access(d.path, F_OK) == 0; i++)
        usleep(1000);
    kv_spec_release(&d.spec);
    assert_int_equal(rmdir(d.dir), 0);
    usleep(20000); /* it frees its memory */
}

/* Takes pages of a head and looks at their bytes; whoever has them gives them. */
static struct kv_heads *take_some(const struct depot *d, uint32_t head, const int32_t *page,
                                  int64_t n, int64_t *n_taken)
{
    struct err e;
    struct kv_heads *heads;
    const struct kv_wanted w[2] = {{d->t, page, n}, {d->t, page + n, n}};
    if (kv_heads_take_some(&heads, 0, head, w, n_taken ? 2 : 1, n_taken ? n_taken : &(int64_t){0},
                           NULL, &e))
        fail_msg("%s", e.msg);
    for (int64_t i = 0; i < n; i++)
        for (size_t k = 0; k < d->spec.stream[0].head_bytes; k += 97)
            assert_int_equal(kv_timeline_head(d->t, 0)[page[i]][k], byte_of(page[i], 0, head, k));
    return heads;
}

static uint64_t read_so_far(const struct depot *d)
{
    struct kv_disk_counts n;
    kv_disk_count(d->pool, &n);
    return n.read_bytes / (24 << 10);
}

/* Rows that choose pages: those alone are read, and stay while they are wanted more often than
 * others. */
static void some_pages(void **state)
{
    (void)state;
    struct depot d;
    struct err e;
    int32_t away[PAGES + 4];
    int64_t n_away = 0, taken = 0;
    begin(&d, 64 << 20);
    assert_int_equal(grow(&d, d.t, 32 * KV_PAGE + 3, &e), INGLE_OK);
    for (int32_t i = 0; i < 32; i++)
        if (!kv_timeline_pages(d.t, 0)[i])
            away[n_away++] = i;
    assert_true(n_away >= 16);
    const int32_t mixed[] = {0, away[2], away[3], away[9], 32};
    uint64_t was = read_so_far(&d);
    kv_heads_give(take_some(&d, 1, mixed, 5, NULL));
    assert_int_equal(read_so_far(&d), was + 3);
    kv_heads_give(take_some(&d, 1, mixed, 5, NULL)); /* they are there */
    assert_int_equal(read_so_far(&d), was + 3);
    kv_heads_give(take_some(&d, 0, mixed, 5, NULL)); /* another head has its own */
    assert_int_equal(read_so_far(&d), was + 6);
    /* a step between the pieces of another one */
    struct kv_heads *first = take_some(&d, 1, mixed, 5, NULL),
                    *second = take_some(&d, 1, away + 10, 4, NULL);
    kv_heads_give(second);
    /* in their place, not in that of the first */
    kv_heads_give(take_some(&d, 1, away + 4, 4, NULL));
    for (size_t k = 0; k < d.spec.stream[0].head_bytes; k += 89)
        assert_int_equal(kv_timeline_head(d.t, 0)[away[9]][k], byte_of(away[9], 0, 1, k));
    kv_heads_give(first);
    was = read_so_far(&d);
    kv_heads_give(take_some(&d, 1, away + 4, 4, NULL));
    kv_heads_give(take_some(&d, 1, mixed, 5, NULL));
    assert_int_equal(read_so_far(&d), was);
    kv_heads_give(take_some(&d, 1, away + 10, 4, NULL)); /* in place of the oldest */
    kv_heads_give(take_some(&d, 1, mixed, 5, NULL));
    assert_int_equal(read_so_far(&d), was + 4);
    /* half of the places are one take's: the second row waits */
    kv_heads_give(take_some(&d, 1, away, 4, &taken));
    assert_int_equal(taken, 1);
    const int32_t twice[] = {away[0], away[1], away[0], away[1]};
    kv_heads_give(take_some(&d, 1, twice, 2, &taken));
    assert_int_equal(taken, 2);

    atomic_bool cancel = true;
    struct kv_heads *none;
    const struct kv_wanted w = {d.t, away + 12, 3};
    hang(&d, true, false);
    assert_int_equal(kv_heads_take_some(&none, 0, 1, &w, 1, &taken, &cancel, &e), INGLE_CANCEL);
    hang(&d, false, false);
    kv_heads_give(take_some(&d, 1, away + 12, 3, NULL));
    const int fd = open(d.path, O_RDWR);
    static const char zeros[1 << 16] = {0};
    for (off_t at = 0; at < 4 << 20; at += (off_t)sizeof zeros)
        assert_int_equal(pwrite(fd, zeros, sizeof zeros, at), sizeof zeros);
    close(fd);
    for (int i = 0; i < 2; i++) { /* what was not read is not there the second time, either */
        const struct kv_wanted bad = {d.t, away + 5, 1};
        assert_int_equal(kv_heads_take_some(&none, 0, 0, &bad, 1, &taken, NULL, &e), INGLE_IO);
        assert_non_null(strstr(e.msg, "checksum"));
    }
    end(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows),       cmocka_unit_test(some_pages),
        cmocka_unit_test(shared),      cmocka_unit_test(no_room),
        cmocka_unit_test(pages_that_are_saved),
        cmocka_unit_test(bad_reads),   cmocka_unit_test(comes_back),
        cmocka_unit_test(reads_stall), cmocka_unit_test(writes_stall),
        cmocka_unit_test(end_stalls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
