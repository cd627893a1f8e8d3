/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shorten - tokens with gaps between their positions: against the reference implementation's
 * results (tests/data/skip); what is remembered and saved of them, and what is shared.
 * combinations.c compares the bits of cuts, threads, neighbours, rewinds and forks.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "golden/golden.h"
#include "unit/folder.h"

#include "base/cpu.h"
#include "base/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REL_RMS 8e-6
#define MAX_ABS 2e-4

enum { N = 300, MORE = 40 };
static const char dense[] = "tests/data/goldens/gemma4_dense/model-F32.gguf",
                  v4[] = "tests/data/goldens/deepseek_v4_full/model-Q8_0.gguf";

static void set_positions(struct session *s, const int32_t *position, int64_t n)
{
    struct err e;
    struct kv_gaps *gaps;
    GOLDEN_OK(kv_gaps_create(&gaps, position, n, &e));
    golden_set_gaps(s, gaps);
    kv_gaps_unref(gaps);
}

static void check_reference(const char *name, int64_t chunk, uint32_t cpu)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    char path[160], ref[160];
    int64_t n, n_rows, n_logits;
    snprintf(path, sizeof path, "tests/data/goldens/%s/model-F32.gguf", name);
    snprintf(ref, sizeof ref, "tests/data/skip/%s.safetensors", name);
    golden_open(&g, path, &(struct golden_options){.n_ctx = 512, .cpu = cpu});
    GOLDEN_OK(session_create(&s, g.runner, &e));
    int32_t *token = golden_ints(ref, "tokens", &n), *position = golden_ints(ref, "positions", &n),
            *row = golden_ints(ref, "rows", &n_rows);
    float *want = golden_floats(ref, "logits", &n_logits);
    const int64_t v = g.info.n_vocab;
    set_positions(s, position, n);
    float *got = golden_logits(&g, s, token, n, chunk, NULL);
    for (int64_t i = 0; i < n_rows; i++) {
        const struct golden_error d = golden_compare(got + row[i] * v, want + i * v, v);
        if (d.rel_rms > REL_RMS || d.max_abs > MAX_ABS)
            fail_msg("%s, row %d: rel rms %.2e, max abs %.2e", name, row[i], d.rel_rms, d.max_abs);
    }
    set_positions(s, NULL, 0);
    assert_true(session_length(s) <= position[0] + 1); /* of other positions nothing stays */
    mem_free(token);
    mem_free(position);
    mem_free(row);
    mem_free(want);
    mem_free(got);
    session_free(s);
    golden_close(&g);
}

static void positions_are_the_reference_s(void **state)
{
    (void)state;
    check_reference("gemma4_dense", 0, 0);
    check_reference("gemma4_dense", 1, 0);
    check_reference("gemma4_dense", 0, CPU_AVX2);
    check_reference("gemma4_dense", 9, 1u << 31); /* plain kernels */
    check_reference("gemma4_ple_e2b", 7, 0);
}

/* ---- the same bits ---- */

static struct {
    int32_t token[N + MORE], position[N];
    uint64_t want, plain, more;
} w;

static uint64_t hash_row(uint64_t h, const float *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof bits);
        h = (h ^ bits) * 0x100000001b3u;
    }
    return h;
}

/* The last row of what waits. */
static uint64_t finish(const struct golden_model *g, struct session *s)
{
    struct err e;
    const float *row = NULL;
    GOLDEN_OK(session_finish(s, &row, NULL, &e));
    return hash_row(0xcbf29ce484222325u, row, g->info.n_vocab);
}

static uint64_t run(const struct golden_model *g, struct session *s, int64_t n,
                    struct session_reuse *reuse)
{
    struct err e;
    GOLDEN_OK(session_sync(s, w.token, n, reuse, &e));
    return finish(g, s);
}

static int setup(void **state)
{
    (void)state;
    struct golden_model g;
    struct session *s;
    struct err e;
    for (int i = 0; i < N + MORE; i++)
        w.token[i] = (i * 7919 + i / 50 + 13) % 512;
    for (int i = 0, at = 0; i < N; i++) {
        at += i % 37 == 17 ? 1 + i % 53 : i == 130 ? 40 : 0;
        w.position[i] = i + at;
    }
    golden_open(&g, dense, &(struct golden_options){.n_threads = 1, .n_ctx = 512});
    GOLDEN_OK(session_create(&s, g.runner, &e));
    w.plain = run(&g, s, N, NULL);
    set_positions(s, w.position, N);
    w.want = run(&g, s, N, NULL);
    GOLDEN_OK(session_append(s, w.token + N, MORE, &e));
    w.more = finish(&g, s);
    assert_true(w.want != w.plain);
    session_free(s);
    golden_close(&g);
    return 0;
}

static void no_gaps_are_plain(void **state)
{
    (void)state;
    struct golden_model g;
    struct session *s;
    struct err e;
    struct kv_gaps *none;
    int32_t at[N];
    for (int i = 0; i < N; i++)
        at[i] = i;
    GOLDEN_OK(kv_gaps_create(&none, at, N, &e));
    assert_null(none);
    golden_open(&g, dense, &(struct golden_options){.n_ctx = 512});
    GOLDEN_OK(session_create(&s, g.runner, &e));
    set_positions(s, at, N);
    assert_int_equal(run(&g, s, N, NULL), w.plain);
    session_free(s);
    golden_close(&g);
}

static void memory_and_disk_keep_them_apart(void **state)
{
    (void)state;
    char dir[] = "/tmp/ingle-skip-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (int again = 0; again < 2; again++) {
        struct golden_model g;
        struct session *s;
        struct session_reuse r;
        struct err e;
        golden_open(&g, dense,
                    &(struct golden_options){.n_ctx = 512,
                                             .restore_every = 128,
                                             .tree_bytes = 8 << 20,
                                             .store = dir,
                                             .store_min = 64});
        GOLDEN_OK(session_create(&s, g.runner, &e));
        set_positions(s, w.position, N);
        assert_int_equal(run(&g, s, N, &r), w.want);
        assert_int_equal(r.from_disk >= 128, again);
        session_set_salt(s, 7); /* of nobody else */
        session_set_salt(s, 0);
        assert_int_equal(run(&g, s, N, &r), w.want);
        assert_true(r.from_tree >= 256);
        set_positions(s, NULL, 0);
        session_park(s);
        assert_int_equal(run(&g, s, N, &r), w.plain);
        assert_int_equal(r.kept > 0, again); /* of its own */
        int32_t moved[N];
        memcpy(moved, w.position, sizeof moved);
        moved[N - 1]++;
        set_positions(s, moved, N);
        session_park(s);
        assert_true(run(&g, s, N, &r) != w.want);
        assert_int_equal(r.kept > 0, again);
        session_free(s);
        golden_close(&g);
    }
    remove_dir(dir);
}

/* A file has the positions, and a session that is read from it goes on with them: its own, and for
 * who else asks for the same. */
static void files_have_positions(void **state)
{
    (void)state;
    char path[] = "/tmp/ingle-skip-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    for (int k = 0; k < 4; k++) {
        struct golden_model g;
        struct session *s;
        struct session_reuse r;
        struct err e;
        golden_open(&g, k == 2 ? "tests/data/goldens/gemma4_ple_e2b/model-F32.gguf" : dense,
                    &(struct golden_options){.n_ctx = 512,
                                             .kv = k == 3 ? "full=f32v,sliding=f32" : NULL,
                                             .tree_bytes = 8 << 20});
        GOLDEN_OK(session_create(&s, g.runner, &e));
        if (!k) {
            set_positions(s, w.position, N);
            assert_int_equal(run(&g, s, N, NULL), w.want);
            GOLDEN_OK(session_save(s, path, &e));
        } else if (k > 1) {
            assert_int_equal(session_load(s, path, &e), INGLE_UNSUP);
        } else {
            const int32_t more[3] = {5, 6, 7};
            GOLDEN_OK(session_sync(s, more, 3, NULL, &e)); /* whatever it was before */
            GOLDEN_OK(session_load(s, path, &e));
            assert_int_equal(session_length(s), N);
            for (int i = 0; i < N; i++)
                assert_int_equal(kv_gaps_position(session_way(s).gaps, i), w.position[i]);
            GOLDEN_OK(session_remember(s, &e));
            GOLDEN_OK(session_save(s, path, &e)); /* as it was */
            GOLDEN_OK(session_append(s, w.token + N, MORE, &e));
            assert_int_equal(finish(&g, s), w.more);
            session_free(s);
            GOLDEN_OK(session_create(&s, g.runner, &e));
            GOLDEN_OK(session_sync(s, w.token, N, &r, &e));
            assert_true(r.kept <= w.position[0] + 17); /* nothing behind the first gap */
            set_positions(s, w.position, N);
            assert_int_equal(run(&g, s, N + MORE, &r), w.more);
            assert_true(r.kept >= N);
            GOLDEN_OK(session_load(s, path, &e));
            GOLDEN_OK(session_append(s, w.token + N, MORE, &e));
            assert_int_equal(finish(&g, s), w.more);
        }
        session_free(s);
        golden_close(&g);
    }
    assert_int_equal(unlink(path), 0);
}

static void bytes_of_gaps_are_checked(void **state)
{
    (void)state;
    struct err e;
    struct kv_gaps *g, *same;
    int64_t at[8];
    GOLDEN_OK(kv_gaps_create(&g, w.position, N, &e));
    const size_t n = kv_gaps_bytes(g);
    int64_t *bytes = mem_alloc(n);
    assert_non_null(bytes);
    kv_gaps_write(g, bytes);
    GOLDEN_OK(kv_gaps_read(&same, bytes, n, &e));
    assert_int_equal(kv_gaps_same(g, same), INT64_MAX);
    assert_int_equal(kv_gaps_shorten(g).name, kv_gaps_shorten(same).name);
    kv_gaps_unref(same);
    kv_gaps_unref(g);
    GOLDEN_OK(kv_gaps_read(&g, bytes, 0, &e));
    assert_null(g);
    assert_int_equal(kv_gaps_bytes(NULL), 0);
    assert_int_equal(kv_gaps_read(&g, bytes, n - 8, &e), INGLE_FORMAT);
    static const int64_t bad[][4] = {{5, 0, 9, 1},         {5, 3, 5, 4},
                                     {5, 3, 4, 4},         {5, 3, 9, 3},
                                     {5, 3, 9, 2},         {-1, 3, 9, 4},
                                     {5, -1, 9, 4},        {5, 3, INT64_MAX, 4},
                                     {5, 3, 9, INT64_MAX}, {5, 3, 1 << 30, 1 << 30}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(at, bad[i], sizeof bad[i]);
        assert_int_equal(kv_gaps_read(&g, at, sizeof bad[i], &e), INGLE_FORMAT);
        assert_null(g);
    }
    mem_free(bytes);
}

/* Up to its first gap a text is as everybody's, whoever comes first, in memory and on disk; behind
 * it, its own. */
static void what_stands_before_the_first_gap_is_shared(void **state)
{
    (void)state;
    enum { WAYS = 3, FIRST = 200 }; /* without gaps; with one; with that and another one */
    int32_t position[WAYS][N];
    uint64_t want[WAYS];
    struct golden_model g;
    struct session *s;
    struct session_reuse r;
    struct err e;
    for (int i = 0; i < N; i++) {
        position[0][i] = i;
        position[1][i] = i + (i >= FIRST ? 30 : 0);
        position[2][i] = position[1][i] + (i >= 260 ? 5 : 0);
    }
    golden_open(&g, dense, &(struct golden_options){.n_ctx = 512});
    for (int k = 0; k < WAYS; k++) {
        GOLDEN_OK(session_create(&s, g.runner, &e));
        set_positions(s, position[k], N);
        want[k] = run(&g, s, N, NULL);
        session_free(s);
    }
    golden_close(&g);
    for (int first = 0; first < WAYS; first++) {
        char dir[] = "/tmp/ingle-skip-XXXXXX";
        assert_non_null(mkdtemp(dir));
        for (int again = 0; again < 2; again++) {
            golden_open(&g, dense,
                        &(struct golden_options){.n_ctx = 512,
                                                 .restore_every = 64,
                                                 .tree_bytes = 8 << 20,
                                                 .store = dir,
                                                 .store_min = 64});
            for (int i = 0; i < WAYS; i++) {
                const int k = (first + i) % WAYS;
                GOLDEN_OK(session_create(&s, g.runner, &e));
                set_positions(s, position[k], N);
                assert_int_equal(run(&g, s, N, &r), want[k]);
                if (!again && i) {
                    assert_true(r.kept >= 128 && r.kept <= FIRST);
                    assert_int_equal(r.from_tree, r.kept);
                }
                if (again)
                    assert_true(r.kept >= 128 && (i || r.from_disk == r.kept));
                GOLDEN_OK(session_remember(s, &e));
                session_free(s);
            }
            golden_close(&g);
        }
        remove_dir(dir);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    struct golden_model g;
    struct kv_gaps *gaps;
    struct session *s;
    struct err e;
    const int32_t twice[] = {0, 4, 4}, far[] = {0, 9000};
    assert_int_equal(kv_gaps_create(&gaps, twice, 3, &e), INGLE_ARG);
    assert_string_equal(e.msg, "position 2 is 4, expected 5 or more");
    golden_open(&g, dense, &(struct golden_options){.kv = "full=f32v,sliding=f32", .n_ctx = 512});
    assert_string_equal(session_way_refuses(g.runner, KV_WAY_GAPS),
                        "its keys are made of values by their place in a page");
    golden_close(&g);
    golden_open(&g, v4, &(struct golden_options){.n_ctx = 512});
    assert_string_equal(session_way_refuses(g.runner, KV_WAY_GAPS),
                        "rows of its cache stand for several tokens next to each other");
    golden_close(&g);
    golden_open(&g, dense, &(struct golden_options){.n_ctx = 512});
    assert_null(session_way_refuses(g.runner, KV_WAY_GAPS));
    GOLDEN_OK(session_create(&s, g.runner, &e));
    set_positions(s, far, 2);
    assert_int_equal(session_sync(s, w.token, 2, NULL, &e), INGLE_LIMIT);
    assert_non_null(strstr(e.msg, "exceed the 4096 positions of the model"));
    session_free(s);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions_are_the_reference_s),
        cmocka_unit_test(no_gaps_are_plain),
        cmocka_unit_test(memory_and_disk_keep_them_apart),
        cmocka_unit_test(files_have_positions),
        cmocka_unit_test(bytes_of_gaps_are_checked),
        cmocka_unit_test(what_stands_before_the_first_gap_is_shared),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
