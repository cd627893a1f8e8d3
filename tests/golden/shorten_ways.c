/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shorten_ways - tokens with gaps between their positions, together with everything else that
 * changes how attention is computed: coded keys and values, pages on disk, sparse prompts, answers
 * that choose pages, drafts that are verified.  The same bits by any cut of the prompt, threads,
 * neighbours, rewinds, forks, caches, and with pages on disk; and how far from plain arithmetic on
 * F32.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "golden/golden.h"

#include "base/cpu.h"
#include "base/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOW = UNIT_ASAN || UNIT_TSAN, N = 1300, N_CTX = 2560, ANSWER = 6, DRAFT = 5, FROM = 256 };
static const struct kern_select quarter = {.part = 4, .least = KERN_SELECT_ALWAYS};

/* Which of ways[] are played; memory is less than a session's pages, with some more for a
 * neighbour. */
static const struct {
    const char *model, *kv;
    bool sparse, select;
    int64_t n;
    uint64_t memory;
    unsigned ways, slow; /* sets; slow: with sanitizers */
} world[] = {
    {"gemma4_ple_e2b", "f16", true, true, N, 220 << 10, 15, 5}, /* shared keys */
    {"gemma4_ple_e2b", "q8r:n4r", true, true, N, 124 << 10, 17, 17},
    {"gemma4_ple_e2b", "full=q8_0,sliding=f16", false, true, N, 0, 9, 9},
    {"gemma4_ple_e2b", "n4r", true, false, N, 0, 3, 0},
    {"gemma4_realhd", "q8r+rot", true, true, N, 2000 << 10, 5, 0},
};
enum { WORLDS = sizeof world / sizeof *world };

static struct {
    int32_t token[N_CTX], position[N];
    int64_t n;
} w;

/* Rows of logits, in the order of play(). */
enum { ROWS = 1 + ANSWER + DRAFT + 1 + ANSWER };
struct record {
    float *row; /* [ROWS][width] */
    int64_t n, width;
};

static void note(struct record *r, const float *logits, int64_t n)
{
    assert_true(logits && r->n + n <= ROWS);
    memcpy(r->row + r->n * r->width, logits, (size_t)(n * r->width) * sizeof *logits);
    r->n += n;
}

static void finish(struct session *s, struct record *r)
{
    struct err e;
    const float *logits;
    GOLDEN_OK(session_finish(s, &logits, NULL, &e));
    note(r, logits, 1);
}

static void set_positions(struct session *s, bool gaps)
{
    struct err e;
    struct kv_gaps *g = NULL;
    if (gaps)
        GOLDEN_OK(kv_gaps_create(&g, w.position, w.n, &e));
    golden_set_gaps(s, g);
    kv_gaps_unref(g);
}

struct way {
    int threads;
    int64_t chunk;         /* of the prompt; 0: as many as fit */
    uint32_t cpu;
    bool disk, neighbour, tree;
};

static struct session *open_session(struct golden_model *g, int k, bool gaps)
{
    struct err e;
    struct session *s;
    GOLDEN_OK(session_create(&s, g->runner, &e));
    set_positions(s, gaps);
    if (world[k].sparse)
        golden_set_sparse(s, kv_sparse_of(3, FROM));
    return s;
}

/* A prompt in pieces, beside another one without gaps. */
static void read_prompt(struct golden_model *g, struct session *s, struct session *other,
                        int64_t chunk)
{
    struct err e;
    while (session_pending(s) > 1) {
        struct session_work work[] = {{.s = s,
                                       .max_tokens = chunk ? chunk : session_pending(s) - 1,
                                       .want = FAMILY_LOGITS_LAST},
                                      {.s = other, .max_tokens = 17, .want = FAMILY_LOGITS_LAST}};
        if (work[0].max_tokens >= session_pending(s))
            work[0].max_tokens = session_pending(s) - 1;
        GOLDEN_OK(
            session_step(g->runner, work, other && session_pending(other) > 1 ? 2 : 1, NULL, &e));
        assert_true(work[0].n_done > 0);
    }
}

/* One by one, behind what was drafted wrongly; the neighbour goes on beside it. */
static void answer(struct golden_model *g, struct session *s, struct session *other,
                   struct record *r)
{
    struct err e;
    for (int i = 0; i < ANSWER; i++) {
        GOLDEN_OK(session_append(s, w.token + w.n + i, 1, &e));
        struct session_work work[] = {{.s = other, .max_tokens = 9},
                                      {.s = s, .want = FAMILY_LOGITS_LAST}};
        const int from = other && session_pending(other) > 9 ? 0 : 1;
        GOLDEN_OK(session_step(g->runner, work + from, 2 - from, NULL, &e));
        note(r, work[1].logits, 1);
    }
}

static void draft(struct golden_model *g, struct session *s, const int32_t *tokens,
                  struct record *r)
{
    struct err e;
    GOLDEN_OK(session_append(s, tokens, DRAFT, &e));
    struct session_work work = {.s = s, .want = FAMILY_LOGITS_ALL, .guessed = true};
    GOLDEN_OK(session_step(g->runner, &work, 1, NULL, &e));
    assert_int_equal(work.n_logits, DRAFT);
    if (r)
        note(r, work.logits, DRAFT);
}

static void play(struct golden_model *g, int k, const struct way *way, struct record *r)
{
    struct err e;
    struct session *s = open_session(g, k, true), *fork = open_session(g, k, false),
                   *other = way->neighbour ? open_session(g, k, false) : NULL;
    struct session_reuse reuse;
    if (other)
        GOLDEN_OK(session_sync(other, w.token, w.n, NULL, &e));
    GOLDEN_OK(session_sync(s, w.token, w.n, NULL, &e));
    read_prompt(g, s, other, way->chunk);
    finish(s, r);
    answer(g, s, other, r);
    draft(g, s, w.token + 40, NULL); /* all of it is wrong */
    session_keep(s, w.n + ANSWER);
    draft(g, s, w.token + w.n + ANSWER, r);
    session_keep(s, w.n + ANSWER + DRAFT);
    /* Back into the prompt, and on. */
    GOLDEN_OK(session_rewind(s, w.n - 45, &e));
    GOLDEN_OK(session_sync(s, w.token, w.n, &reuse, &e));
    assert_true(way->tree || reuse.kept > 0);
    finish(s, r);
    GOLDEN_OK(session_fork(fork, s, &e));
    set_positions(s, false);
    if (way->tree) { /* what is remembered has the same gaps */
        GOLDEN_OK(session_remember(fork, &e));
        session_park(fork);
        GOLDEN_OK(session_sync(fork, w.token, w.n, &reuse, &e));
        assert_true(reuse.from_tree > w.n / 2);
        read_prompt(g, fork, NULL, 0);
        struct session_work work = {.s = fork};
        GOLDEN_OK(session_step(g->runner, &work, 1, NULL, &e));
    }
    answer(g, fork, other, r);
    assert_int_equal(r->n, ROWS);
    session_free(s);
    session_free(fork);
    session_free(other);
}

static void open_model(struct golden_model *g, int k, const struct way *way, const char *dir)
{
    char path[160];
    snprintf(path, sizeof path, "tests/data/goldens/%s/model-F32.gguf", world[k].model);
    struct golden_options o = {.kv = world[k].kv,
                               .n_ctx = N_CTX,
                               .n_threads = way->threads,
                               .cpu = way->cpu,
                               .max_rows = way->disk ? 64 : 512};
    if (world[k].select)
        o.select = quarter;
    if (way->disk) {
        o.disk = dir;
        o.kv_bytes = world[k].memory * (way->neighbour ? 6 : 4) / 4;
    }
    if (way->tree)
        o.tree_bytes = 8 << 20;
    golden_open(g, path, &o);
}

static void prepare(int k)
{
    char path[160];
    int64_t n;
    snprintf(path, sizeof path, "tests/data/goldens/%s/golden.safetensors", world[k].model);
    int32_t *ids = golden_ints(path, "input_ids", &n);
    for (int64_t i = 0; i < N_CTX; i++)
        w.token[i] = ids[(i * 7 + i / n) % n];
    mem_free(ids);
    w.n = world[k].n;
    /* gaps within a window (24), across pages, and none near the end */
    for (int i = 0, at = 0; i < w.n; i++) {
        at += i % 37 == 17 && i < w.n - 60 ? 1 + i % 53 : i == 130 ? 150 : 0;
        w.position[i] = i + at;
    }
}

static void begin_record(struct record *r, const struct golden_model *g)
{
    *r = (struct record){.width = g->info.n_vocab};
    r->row = mem_calloc((size_t)(ROWS * r->width), sizeof *r->row);
    assert_non_null(r->row);
}

static void same(int k)
{
    static const struct way ways[] = {
        {.threads = 2},
        {.threads = 1, .chunk = 131, .neighbour = true},
        {.threads = 2, .disk = true},
        {.threads = 3, .cpu = CPU_AVX2, .tree = true},
        {.threads = 2, .chunk = 50, .disk = true, .neighbour = true},
    };
    char dir[] = "/tmp/ingle-ways-XXXXXX";
    struct record want = {0};
    assert_non_null(mkdtemp(dir));
    prepare(k);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct golden_model g;
        struct record r;
        if (!((SLOW ? world[k].slow : world[k].ways) >> i & 1))
            continue;
        open_model(&g, k, &ways[i], dir);
        begin_record(&r, &g);
        play(&g, k, &ways[i], &r);
        if (ways[i].disk) {
            struct kv_disk_counts disk;
            session_runner_disk_count(g.runner, &disk);
            if (!disk.read_bytes)
                fail_msg("%s, %s, way %zu: no page was on disk", world[k].model, world[k].kv, i);
        }
        for (int64_t row = 0; i && row < ROWS; row++)
            if (memcmp(r.row + row * r.width, want.row + row * r.width,
                       (size_t)r.width * sizeof(float)) != 0)
                fail_msg("%s, %s, way %zu: row %lld differs", world[k].model, world[k].kv, i,
                         (long long)row);
        golden_close(&g);
        if (i)
            mem_free(r.row);
        else
            want = r;
    }
    mem_free(want.row);
    assert_int_equal(rmdir(dir), 0);
}

static void the_same_bits(void **state)
{
    (void)state;
    for (int k = 0; k < WORLDS; k++)
        same(k);
}

/* ---- beside the reference implementation's results, and plain attention ---- */

/* Logits of n tokens, of which the first n_prompt are a prompt's. */
static float *rows_of(const char *model, const struct golden_options *o, uint32_t sparse,
                      int64_t n_prompt, const int32_t *token, const int32_t *position, int64_t n)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    struct kv_gaps *gaps;
    char path[160];
    snprintf(path, sizeof path, "tests/data/goldens/%s/model-F32.gguf", model);
    golden_open(&g, path, o);
    GOLDEN_OK(session_create(&s, g.runner, &e));
    GOLDEN_OK(kv_gaps_create(&gaps, position, n, &e));
    golden_set_gaps(s, gaps);
    kv_gaps_unref(gaps);
    golden_set_sparse(s, sparse);
    session_prompt(s, n_prompt);
    float *got = golden_logits(&g, s, token, n, 0, NULL);
    session_free(s);
    golden_close(&g);
    return got;
}

/* Of heads of 16 and 32 random numbers 8 bits cost 1e-2, 4 bits 2e-1. */
static void near_the_reference_s(void **state)
{
    (void)state;
    static const struct {
        const char *kv;
        enum device_numerics numerics;
        struct kern_select select;
        bool sparse;
        double most;
    } kind[] = {
        {"f32", DEVICE_EXACT, {1, KERN_SELECT_ALWAYS}, false, 8e-6},
        {"f32", DEVICE_EXACT, {0}, true, 3e-2},
        {"q8r", DEVICE_EXACT, {0}, true, 3e-2},
        {"q8r", DEVICE_REFERENCE, {0}, false, 3e-2},
        {"full=q8_0,sliding=f32", DEVICE_EXACT, {0}, false, 3e-2},
        {"q8r:n4r", DEVICE_EXACT, {0}, false, 0.4},
        {"n4r", DEVICE_EXACT, {0}, true, 0.4},
    };
    static const char ref[] = "tests/data/skip/gemma4_dense.safetensors";
    int64_t n, n_rows, n_logits;
    int32_t *token = golden_ints(ref, "tokens", &n), *position = golden_ints(ref, "positions", &n),
            *row = golden_ints(ref, "rows", &n_rows);
    float *want = golden_floats(ref, "logits", &n_logits);
    const int64_t v = n_logits / n_rows;
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++) {
        const struct golden_options o = {
            .kv = kind[k].kv, .numerics = kind[k].numerics, .select = kind[k].select};
        float *got = rows_of("gemma4_dense", &o, kind[k].sparse ? kv_sparse_of(3, 1) : 0,
                             kind[k].select.part ? 0 : n, token, position, n);
        for (int64_t i = 0; i < n_rows; i++) {
            const struct golden_error d = golden_compare(got + row[i] * v, want + i * v, v);
            if (d.rel_rms > kind[k].most)
                fail_msg("kind %zu, row %d: rel rms %.2e", k, row[i], d.rel_rms);
        }
        mem_free(got);
    }
    mem_free(token);
    mem_free(position);
    mem_free(row);
    mem_free(want);
}

/* Sparse rows begin where they should and are near the others'; answers that choose all pages are
 * what attention to all is. */
static void beside_plain_attention(void **state)
{
    (void)state;
    enum { SHORT = 900 };
    prepare(0);
    const int64_t v = 512;
    const struct golden_options plain = {.kv = "f16", .n_ctx = N_CTX},
                                select = {
                                    .kv = "f16", .n_ctx = N_CTX, .select = {1, KERN_SELECT_ALWAYS}};
    float *want = rows_of(world[0].model, &plain, 0, 0, w.token, w.position, SHORT);
    float *all = rows_of(world[0].model, &select, 0, 0, w.token, w.position, SHORT);
    float *sparse =
        rows_of(world[0].model, &plain, kv_sparse_of(3, FROM), SHORT, w.token, w.position, SHORT);
    assert_memory_equal(all, want, (size_t)(SHORT * v) * sizeof *want);
    assert_memory_equal(sparse, want, (size_t)(FROM * v) * sizeof *want);
    const double off =
        golden_compare(sparse + FROM * v, want + FROM * v, (SHORT - FROM) * v).rel_rms;
    if (off <= 0 || off > 0.05) /* as tests/golden/sparse.c */
        fail_msg("sparse rows are off by %.2e", off);
    mem_free(want);
    mem_free(all);
    mem_free(sparse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bits),
                                       cmocka_unit_test(near_the_reference_s),
                                       cmocka_unit_test(beside_plain_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
