/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shorten_ways - tokens with gaps between their positions, with coded keys and values, sparse
 * prompts, and answers that choose pages: how far from the reference's results, and from plain
 * attention.  combinations.c compares the bits of cuts, threads, neighbours, rewinds, forks,
 * caches, drafts, and pages on disk.
 */
#include "golden/golden.h"

#include "base/mem.h"
#include <stdio.h>
#include <string.h>

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
    enum { SHORT = 900, N_CTX = 2560, FROM = 256 };
    static const char model[] = "gemma4_ple_e2b"; /* shared keys */
    int64_t n;
    int32_t *ids = golden_ints("tests/data/goldens/gemma4_ple_e2b/golden.safetensors", "input_ids",
                               &n),
            token[SHORT], position[SHORT];
    for (int i = 0, at = 0; i < SHORT; i++) { /* gaps within a window (24), and across pages */
        token[i] = ids[(i * 7 + i / n) % n];
        at += i % 37 == 17 ? 1 + i % 53 : i == 130 ? 150 : 0;
        position[i] = i + at;
    }
    mem_free(ids);
    const int64_t v = 512;
    const struct golden_options plain = {.kv = "f16", .n_ctx = N_CTX},
                                select = {
                                    .kv = "f16", .n_ctx = N_CTX, .select = {1, KERN_SELECT_ALWAYS}};
    float *want = rows_of(model, &plain, 0, 0, token, position, SHORT);
    float *all = rows_of(model, &select, 0, 0, token, position, SHORT);
    float *sparse =
        rows_of(model, &plain, kv_sparse_of(3, FROM), SHORT, token, position, SHORT);
    assert_memory_equal(all, want, (size_t)(SHORT * v) * sizeof *want);
    assert_memory_equal(sparse, want, (size_t)(FROM * v) * sizeof *want);
    const double off =
        golden_compare(sparse + FROM * v, want + FROM * v, (SHORT - FROM) * v).rel_rms;
    if (off <= 0 || off > 0.05) /* bytes in place of queries and keys: about that of a Q8_0 cache */
        fail_msg("sparse rows are off by %.2e", off);
    mem_free(want);
    mem_free(all);
    mem_free(sparse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(near_the_reference_s),
                                       cmocka_unit_test(beside_plain_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
