/* SPDX-License-Identifier: Apache-2.0 */
/* stage_step - steps and greetings as bytes: what is written is read; what is damaged is refused,
 * or stays within its bounds.  So do prefixes that a stage keeps for an engine. */
#define _GNU_SOURCE
#include "unit/unit.h"

#include "base/mem.h"
#include "stage/step.h"
#include "stage/store.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 6, CTX = 512, GROUPS = 2, LAYERS = 9 };

static ingle_status read_step(const uint8_t *at, size_t n, int64_t rows, int64_t ctx,
                              uint32_t groups, struct stage_step *out, struct err *err)
{
    const struct stage_step_limits most = {rows, ctx, LAYERS, groups};
    return stage_step_read(at, n, &most, out, err);
}

static void put_line(struct wire *w, int64_t at, int64_t row, int64_t n, bool span)
{
    stage_put_u64(w, (uint64_t)at);
    stage_put_u32(w, (uint64_t)row);
    stage_put_u32(w, (uint64_t)n);
    stage_put_u32(w, span ? FAMILY_LOGITS_LAST : 0);
    stage_put_u32(w, 0);
    stage_put_u32(w, span);
    stage_put_u32(w, 0);
    stage_put_u64(w, 77);
    stage_put_u64(w, 0);
    const int64_t end = (at + n + KV_PAGE - 1) / KV_PAGE;
    for (int g = 0; g < GROUPS; g++) {
        stage_put_u32(w, 0);
        stage_put_u32(w, (uint64_t)end);
        for (int64_t i = 0; i < end; i++)
            stage_put_u64(w, 4096 * (uint64_t)(i + 1));
    }
    for (int64_t i = 0; i < n && span; i++)
        stage_put_u32(w, (uint64_t)(100 + row + i));
    if (!span)
        return;
    stage_put_u32(w, 0); /* a medium of one row */
    stage_put_u32(w, 1);
    stage_put_u32(w, 1);
}

static size_t step(uint8_t *to, size_t cap)
{
    struct wire w = {.at = to, .cap = cap};
    const uint32_t begin[] = {2, 1, GROUPS, 2, 2, 3, LAYERS - 1};
    stage_put(&w, begin, sizeof begin);
    put_line(&w, 120, 0, 2, false);
    put_line(&w, 130, 0, 4, true);
    put_line(&w, 7, 4, 2, true);
    stage_put(&w, (uint8_t[ROWS * 8]){0}, ROWS * 8);
    assert_false(w.bad);
    return w.n;
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    uint8_t bytes[1024];
    struct stage_step s = {0};
    struct err err;
    const size_t n = step(bytes, sizeof bytes);
    assert_int_equal(read_step(bytes, n, ROWS, CTX, GROUPS, &s, &err), INGLE_OK);
    assert_int_equal(s.n_spans, 2);
    assert_int_equal(s.n_mirrors, 1);
    assert_int_equal(s.n_logits, 2);
    assert_int_equal(s.n_taps, 2);
    assert_int_equal(stage_step_tap(&s, 1), LAYERS - 1);
    assert_int_equal(s.n_row_bytes, ROWS * 8);
    assert_int_equal(s.line[0].at, 130);
    assert_int_equal(s.line[1].row, 4);
    assert_int_equal(s.line[2].at, 120);
    assert_ptr_equal(s.line[2].token, s.line[0].token);
    assert_int_equal(s.line[0].before, 77);
    assert_int_equal(stage_table_page(&s.line[0].table[1], 1), 8192);
    assert_int_equal(stage_table_page(&s.line[0].table[1], 2), 0);
    assert_int_equal(s.n_soft, 2);
    for (size_t cut = 0; cut < n - ROWS * 8; cut++)
        assert_int_equal(read_step(bytes, cut, ROWS, CTX, GROUPS, &s, &err), INGLE_FORMAT);
    assert_int_equal(read_step(bytes, n, ROWS + 1, CTX, GROUPS, &s, &err), INGLE_FORMAT);
    assert_int_equal(read_step(bytes, n, ROWS, 131, GROUPS, &s, &err), INGLE_FORMAT);
    assert_int_equal(read_step(bytes, n, ROWS, CTX, GROUPS + 1, &s, &err), INGLE_FORMAT);
    const struct stage_line *line = s.line; /* its memory is used again */
    assert_int_equal(read_step(bytes, n, ROWS, CTX, GROUPS, &s, &err), INGLE_OK);
    assert_ptr_equal(s.line, line);
    stage_step_release(&s);
}

static void what_is_damaged_stays_in_bounds(void **state)
{
    (void)state;
    uint64_t seed = 88172645463325252u;
    struct stage_step s = {0};
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[1024];
        struct err err;
        const size_t n = step(bytes, sizeof bytes);
        for (int k = 0; k < 3; k++) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            bytes[seed % n] = (uint8_t)(seed >> 32);
        }
        if (read_step(bytes, n, ROWS, CTX, GROUPS, &s, &err))
            continue;
        for (int64_t k = 0; k < s.n_spans + s.n_mirrors; k++) {
            const struct stage_line *l = &s.line[k];
            assert_true(l->row >= 0 && l->n > 0 && l->row + l->n <= ROWS && l->at + l->n <= CTX);
            for (uint32_t g = 0; g < GROUPS; g++)
                (void)stage_table_page(&l->table[g], l->table[g].end - 1);
        }
    }
    stage_step_release(&s);
}

static void greetings(void **state)
{
    (void)state;
    struct stage_hello a = {.version = STAGE_VERSION,
                            .from = 2,
                            .to = 4,
                            .n_layers = 6,
                            .n_embd = 64,
                            .n_ctx = 512,
                            .max_rows = 64,
                            .form = 1,
                            .numerics = "exact",
                            .family = "gemma4",
                            .kv = "f16"},
                       b;
    uint8_t bytes[LINK_JOIN_BYTES];
    struct err err;
    stage_hello_write(&a, bytes);
    assert_int_equal(stage_hello_read(bytes, sizeof bytes, &b, &err), INGLE_OK);
    assert_int_equal(stage_hello_agree(&a, &b, &err), INGLE_OK);
    assert_int_equal(stage_hello_read(bytes, sizeof bytes - 1, &b, &err), INGLE_FORMAT);
    const struct { void *at; size_t n; const char *what;
    } other[] = {{&b.n_embd, 4, "width"},
                 {&b.n_layers, 4, "layers"},
                 {&b.form, 8, "quantisation"},
                 {&b.arithmetic, 4, "version"},
                 {b.numerics, 1, "numerics"},
                 {b.kv, 1, "keys and values"},
                 {b.family, 1, "family"}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        b = a;
        *(uint8_t *)other[i].at ^= 1;
        assert_int_equal(stage_hello_agree(&a, &b, &err), INGLE_UNSUP);
        assert_non_null(strstr(err.msg, other[i].what));
    }
    b = a;
    b.n_ctx = 511;
    assert_int_equal(stage_hello_agree(&a, &b, &err), INGLE_UNSUP);
    a.to = 2;
    stage_hello_write(&a, bytes);
    assert_int_equal(stage_hello_read(bytes, sizeof bytes, &b, &err), INGLE_FORMAT);
}

static void pages_and_their_tokens(void **state)
{
    (void)state;
    struct stage_pages p = {0};
    struct err err;
    assert_int_equal(stage_pages_take(&p, 8192, 4096, 1024, true, &err), INGLE_OK);
    assert_int_equal(stage_pages_take(&p, 4096, 2048, 1024, true, &err), INGLE_OK);
    assert_int_equal(stage_pages_take(&p, 11264, 2048, 1024, true, &err), INGLE_FORMAT);
    assert_int_equal(stage_pages_take(&p, 1 << 20, 1000, 1024, true, &err), INGLE_FORMAT);
    assert_null(stage_pages_find(&p, 4096, 2049));
    assert_null(stage_pages_find(&p, 7000, 1));
    assert_non_null(stage_pages_find(&p, 12287, 1));
    assert_null(stage_pages_find(&p, 12287, UINT64_MAX));
    assert_false(stage_pages_copy(&p, 8193, 4096));
    const uint64_t page = 8192;
    uint8_t table[8];
    memcpy(table, &page, 8);
    const struct stage_table t = {0, 1, table};
    const uint8_t token[8] = {1, 0, 0, 0, 2, 0, 0, 0};
    stage_pages_wrote(&p, &t, 1, 0, token, 2, 0);
    const uint64_t one = stage_pages_before(&p, &t, 1, 1), two = stage_pages_before(&p, &t, 1, 2);
    assert_true(one && two && one != two);
    assert_int_equal(stage_pages_before(&p, &t, 1, 0), 0);
    assert_true(stage_pages_copy(&p, 4096, 8192));
    assert_int_equal(stage_pages_hashes(&p, 4096)[1], two);
    assert_false(stage_pages_give(&p, 4097));
    assert_true(stage_pages_give(&p, 4096));
    stage_pages_clear(&p);
}

/* A KEEP of n tokens without pages. */
static ingle_status keep(struct stage_store *s, uint64_t tag, uint32_t flags, uint64_t n,
                         size_t more, struct err *err)
{
    const size_t size = STAGE_KEEP_HEAD + 8 * GROUPS + 4 * (size_t)n + more;
    uint8_t *at = mem_zalloc(size);
    struct wire w = {.at = at, .cap = size};
    stage_put_u64(&w, 0);
    stage_put_u64(&w, 5);
    stage_put_u64(&w, n);
    stage_put_u64(&w, 0);
    stage_put_u32(&w, GROUPS);
    const struct link_in in = {.payload = at, .n_payload = size};
    const struct link_head h = {.kind = LINK_KEEP, .tag = tag, .flags = flags};
    const ingle_status st = stage_store_receive(s, &in, &h, err);
    mem_free(at);
    return st;
}

static void count_done(void *arg, const struct link_head *h, struct link_out *m)
{
    *(int *)arg += h->flags == STAGE_KEEP_DONE && !h->n_rows;
    link_out_release(m);
}

/* However many an engine asks for: there are STAGE_KEEPS at a time, of a context's length. */
static void prefixes_that_are_kept(void **state)
{
    (void)state;
    char dir[] = "/tmp/stage-keep-XXXXXX";
    struct stage_hello hello = {
        .n_ctx = CTX, .from = 1, .to = 2, .n_layers = LAYERS, .numerics = "exact", .kv = "f16"};
    struct family_info info = {.n_vocab = 9};
    struct kv_spec spec = {.n_groups = GROUPS};
    struct stage_pages pages = {0};
    struct stage_store *s;
    struct err err;
    int done = 0;
    for (int g = 0; g < GROUPS; g++)
        spec.group[g].page_bytes = 4096;
    assert_non_null(mkdtemp(dir));
    const struct stage_serve_options o = {
        .hello = &hello, .info = &info, .store = dir, .identity = 1, .model = "nano"};
    assert_int_equal(stage_store_open(&s, &o, &spec, &pages, &err), INGLE_OK);
    for (uint64_t i = 1; i <= STAGE_KEEPS; i++)
        assert_int_equal(
            keep(s, i, i % 2 ? STAGE_KEEP_SAVE : STAGE_KEEP_READ, CTX - i, 0, &err), INGLE_OK);
    assert_int_equal(keep(s, 99, STAGE_KEEP_READ, 9, 0, &err), INGLE_LIMIT);
    assert_string_equal(err.msg, "8 prefixes are saved and read here, the limit is 8");
    assert_int_equal(keep(s, 3, STAGE_KEEP_READ, 9, 0, &err), INGLE_FORMAT);
    assert_int_equal(keep(s, 3, STAGE_KEEP_DROP, 0, 0, &err), INGLE_OK);
    assert_int_equal(keep(s, 4, STAGE_KEEP_READ, 9, 0, &err), INGLE_FORMAT);
    assert_non_null(strstr(err.msg, "the number 4 of another one"));
    assert_int_equal(keep(s, 99, STAGE_KEEP_READ, CTX, 1 << 20, &err), INGLE_LIMIT);
    assert_non_null(strstr(err.msg, "the limit for a context of 512 tokens is"));
    assert_int_equal(keep(s, 99, STAGE_KEEP_READ, CTX + 1, 0, &err), INGLE_FORMAT);
    assert_int_equal(keep(s, 99, STAGE_KEEP_READ, CTX, 0, &err), INGLE_OK);
    for (uint64_t i = 0; i < 100 && done < STAGE_KEEPS; i++)
        (void)stage_store_tend(s, 1, count_done, &done);
    assert_int_equal(done, STAGE_KEEPS); /* each is answered: there is no such prefix */
    assert_int_equal(keep(s, 100, STAGE_KEEP_READ, 9, 0, &err), INGLE_OK);
    stage_store_close(s);
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));)
        (void)!unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(what_is_damaged_stays_in_bounds),
        cmocka_unit_test(greetings),
        cmocka_unit_test(pages_and_their_tokens),
        cmocka_unit_test(prefixes_that_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
