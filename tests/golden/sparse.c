/* SPDX-License-Identifier: Apache-2.0 */
/* sparse - prompts whose rows attend to few positions: the bits of a row do not depend on how its
 * prompt is cut, on threads, forks and neighbours; rows before the rule's beginning, and answers,
 * are those of a session without it; and how far the logits move. */
#include "golden/golden.h"

#include "base/mem.h"
#include <math.h>
#include <string.h>

static const char path[] = "tests/data/nano/nano-gemma4-Q4_K_M.gguf",
                  golden[] = "tests/data/goldens/gemma4_dense/golden.safetensors";
enum { N = 900, FROM = 128 };

static void prompt(int32_t out[N])
{
    int64_t n;
    int32_t *ids = golden_ints(golden, "input_ids", &n);
    for (int64_t i = 0; i < N; i++)
        out[i] = ids[(i * 7 + i / n) % n];
    mem_free(ids);
}

static void open_nano(struct golden_model *g, int n_threads)
{
    const struct golden_options o = {.codec = KERN_KV_F16, .n_ctx = 1024, .n_threads = n_threads};
    golden_open(g, path, &o);
}

/* Logits of all rows; few NULL: a session without the rule. */
static float *logits_of(struct golden_model *g, const int32_t *tokens, int64_t chunk,
                        const struct kern_sparse *sparse, struct kern_sparse_seen *seen)
{
    struct err e;
    struct session *s;
    GOLDEN_OK(session_create(&s, g->runner, &e));
    golden_set_sparse(s, sparse ? kv_sparse_of(sparse->eps, sparse->from) : 0);
    session_prompt(s, N);
    float *logits = golden_logits(g, s, tokens, N, chunk, NULL);
    if (seen)
        *seen = session_take_seen(s).sparse;
    session_free(s);
    return logits;
}

static void any_cut_and_threads(void **state)
{
    (void)state;
    static const struct {
        int threads;
        int64_t chunk;
    } ways[] = {{2, 0}, {2, 129}, {1, 300}, {5, 64}};
    const struct kern_sparse sparse = {.eps = 3, .from = FROM};
    int32_t tokens[N];
    float *want = NULL;
    struct kern_sparse_seen first = {0};
    prompt(tokens);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct golden_model g;
        struct kern_sparse_seen seen;
        open_nano(&g, ways[i].threads);
        const char *why = session_way_refuses(g.runner, KV_WAY_SPARSE);
        float *got = logits_of(&g, tokens, ways[i].chunk, &sparse, &seen);
        if (!i) {
            float *all = logits_of(&g, tokens, 0, NULL, NULL);
            const int64_t width = g.info.n_vocab;
            assert_memory_equal(all, got, (size_t)(FROM * width) * sizeof *all);
            const struct golden_error off =
                golden_compare(got + 700 * width, all + 700 * width, (N - 700) * width);
            /* bytes in place of queries and keys: about that of a Q8_0 cache */
            assert_true(off.rel_rms < 0.05);
            assert_true(off.rel_rms > 0 || why);
            assert_true(why || (seen.kept < seen.seen && seen.most <= 0.125f &&
                                seen.rows % (N - FROM) == 0));
            mem_free(all);
            want = got;
            first = seen;
        } else {
            assert_memory_equal(got, want, (size_t)(N * g.info.n_vocab) * sizeof *got);
            assert_true(seen.rows == first.rows && seen.pairs == first.pairs &&
                        seen.missed == first.missed && seen.kept == first.kept &&
                        seen.seen == first.seen && seen.most >= first.most &&
                        seen.most <= first.most);
            mem_free(got);
        }
        golden_close(&g);
    }
    mem_free(want);
}

/* Both continue with the same bits, in one step, beside one that has no rule. */
static void forked_beside_others(void **state)
{
    (void)state;
    const struct kern_sparse sparse = {.eps = 3, .from = FROM};
    struct golden_model g;
    struct session *s[3];
    struct err e;
    int32_t tokens[N];
    prompt(tokens);
    open_nano(&g, 2);
    float *want = logits_of(&g, tokens, 0, &sparse, NULL),
          *all = logits_of(&g, tokens, 0, NULL, NULL);
    for (int i = 0; i < 3; i++)
        GOLDEN_OK(session_create(&s[i], g.runner, &e));
    golden_set_sparse(s[0], kv_sparse_of(sparse.eps, sparse.from));
    session_prompt(s[0], N);
    mem_free(golden_logits(&g, s[0], tokens, 800, 0, NULL));
    GOLDEN_OK(session_fork(s[1], s[0], &e));
    mem_free(golden_logits(&g, s[2], tokens, 800, 0, NULL));
    struct session_work work[3];
    for (int i = 0; i < 3; i++) {
        GOLDEN_OK(session_append(s[i], tokens + 800, 60, &e));
        session_prompt(s[i], 860);
        work[i] = (struct session_work){.s = s[i], .want = FAMILY_LOGITS_LAST};
    }
    GOLDEN_OK(session_step(g.runner, work, 3, NULL, &e));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(work[i].n_logits, 1);
        assert_memory_equal(work[i].logits, (i < 2 ? want : all) + 859 * g.info.n_vocab,
                            (size_t)g.info.n_vocab * sizeof(float));
        session_free(s[i]);
    }
    mem_free(want);
    mem_free(all);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_cut_and_threads),
                                       cmocka_unit_test(forked_beside_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
