/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek4_dspark - DSpark for DeepSeek V4 against its reference: every logit, draft and
 * confidence under both rules, at lengths around the window, blocks as trained and shorter,
 * contexts in pieces; recorded passes; what does not fit.
 */
#include "golden/round.h"

#include "base/mem.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define REL_RMS 4e-6
#define MAX_ABS 2e-4
#define SURE 1e-5

enum { CTX = 640 };

#define GOLDENS "tests/data/goldens/"
#define TARGET GOLDENS "deepseek_v4_full"
#define REF GOLDENS "dspark_v4/golden.safetensors"

static void open_both(struct golden_model *g, const char *target, const char *draft,
                      enum device_numerics numerics, struct family_draft_options o)
{
    golden_open(g, target,
                &(struct golden_options){.numerics = numerics,
                                         .n_ctx = CTX,
                                         .max_rows = 64,
                                         .draft = true,
                                         .draft_file = draft,
                                         .draft_options = o});
    assert_string_equal(g->draft_kind->kind, "dspark");
    assert_true(g->draft_info.confidence);
}

static void *ref_of(int64_t n, int64_t block, const char *name, bool ints)
{
    char full[96];
    int64_t k;
    snprintf(full, sizeof full, "n%lld.b%lld.%s", (long long)n, (long long)block, name);
    return ints ? (void *)golden_ints(REF, full, &k) : (void *)golden_floats(REF, full, &k);
}

static void hold(int64_t n, const char *what, const float *got, const float *want, int64_t count)
{
    const struct golden_error e = golden_compare(got, want, count);
    print_message("n%lld %-16s rel rms %.2e of %.0e, max abs %.2e of %.0e\n", (long long)n, what,
                  e.rel_rms, REL_RMS, e.max_abs, MAX_ABS);
    assert_true(e.rel_rms <= REL_RMS && e.max_abs <= MAX_ABS);
}

static void hold_sure(const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        assert_true(fabs((double)got[i] - (double)want[i]) <= SURE);
}

static void check_forced(struct golden_model *g, struct session *s, int64_t n, int64_t block)
{
    const int64_t v = g->info.n_vocab;
    int32_t *forced = ref_of(n, block, "forced.tokens", true);
    float *logits = ref_of(n, block, "ref.forced.logits", false),
          *sure = ref_of(n, block, "ref.forced.confidence", false);
    float *got = mem_calloc((size_t)(block * v), sizeof *got), confidence[16];
    round_run(
        g, s,
        &(struct round){.n = block, .forced = forced, .logits = got, .confidence = confidence});
    hold(n, "prescribed", got, logits, block * v);
    hold_sure(confidence, sure, block);
    void *const owned[] = {forced, logits, sure, got};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        mem_free(owned[i]);
}

static void check(struct golden_model *g, int64_t n, const char *rule, uint32_t seed)
{
    struct err e;
    struct session *s;
    char name[64];
    int64_t k;
    const int64_t v = g->info.n_vocab, block = g->draft_info.most;
    int32_t *ids = golden_ints(REF, "input_ids", &k), *first = ref_of(n, block, "block", true),
            all[CTX], token[16];
    float *got = mem_calloc((size_t)(block * v), sizeof *got), confidence[16];
    memcpy(all, ids, (size_t)n * sizeof *all);
    all[n] = first[0];
    snprintf(name, sizeof name, "%s.tokens", rule);
    int32_t *want = ref_of(n, block, name, true);
    snprintf(name, sizeof name, "%s.confidence", rule);
    float *sure = ref_of(n, block, name, false), *logits = NULL;
    GOLDEN_OK(session_create(&s, g->runner, &e));
    round_context(g, s, all, n, seed);
    round_run(g, s,
              &(struct round){.n = block, .token = token, .logits = got, .confidence = confidence});
    assert_memory_equal(token, want, (size_t)block * sizeof *token);
    hold_sure(confidence, sure, block);
    if (block == 5) {
        snprintf(name, sizeof name, "%s.logits", rule);
        logits = ref_of(n, block, name, false);
        hold(n, rule, got, logits, block * v);
        if (!strcmp(rule, "ref"))
            check_forced(g, s, n, block);
    }
    session_free(s);
    void *const owned[] = {ids, first, want, sure, logits, got};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        mem_free(owned[i]);
}

static void every_logit(void **state)
{
    (void)state;
    static const char *const files[] = {GOLDENS "dspark_v4", GOLDENS "dspark_v4/model-F32.gguf"};
    static const struct {
        const char *rule;
        int64_t block;
    } ways[] = {{NULL, 0}, {"ref", 5}, {"window", 0}, {"ref", 3}, {"window", 3}};
    static const int64_t lengths[] = {1, 9, 32, 33, 90};
    for (size_t f = 0; f < 2; f++)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            struct golden_model g;
            open_both(&g, TARGET, files[f], DEVICE_EXACT,
                      (struct family_draft_options){.rule = ways[w].rule, .block = ways[w].block});
            assert_int_equal(g.draft_info.most, ways[w].block ? ways[w].block : 5);
            for (size_t i = 0; i < 5; i++)
                for (uint32_t seed = 0; seed < (UNIT_ASAN ? 1 : 3); seed++)
                    check(&g, lengths[i], ways[w].rule ? ways[w].rule : "ref", seed);
            golden_close(&g);
        }
}

/* Nothing before the anchor, and a context that a round does not see: numbers. */
static void empty_context(void **state)
{
    (void)state;
    struct err e;
    struct golden_model g;
    struct session *s;
    const int32_t tokens[] = {0, 17, 5};
    for (int64_t n = 0; n < 3; n += 2) {
        open_both(&g, TARGET, GOLDENS "dspark_v4/model-F32.gguf", DEVICE_EXACT,
                  (struct family_draft_options){.context = n});
        float *a = mem_calloc((size_t)(5 * g.info.n_vocab), sizeof *a);
        GOLDEN_OK(session_create(&s, g.runner, &e));
        round_context(&g, s, tokens, n, 0);
        round_run(&g, s, &(struct round){.n = 5, .logits = a});
        for (int64_t i = 0; i < 5 * g.info.n_vocab; i++)
            assert_true(isfinite(a[i]));
        session_free(s);
        mem_free(a);
        golden_close(&g);
    }
}

static void recorded_passes(void **state)
{
    (void)state;
    static const char *const roots[] = {"../shared/models/", "../../shared/models/"};
    static const char golden[] = "tests/data/nano-v4/nano-v4-dspark-golden.json.xz",
                      q8[] = "tests/data/nano-v4/nano-v4-dspark-Q8_0.gguf";
    struct golden_model g;
    struct stat st;
    char target[160], draft[160];
    const struct family_draft_options none = {0};
    for (size_t i = 0; i < 2; i++) {
        snprintf(target, sizeof target, "%snano-v4/nano-v4-Q8_0.gguf", roots[i]);
        if (stat(target, &st))
            continue;
        open_both(&g, target, q8, DEVICE_REFERENCE, none);
        round_passes(&g, &(struct round_passes){golden, "q8_0", 0, 2e-5});
        golden_close(&g);
        snprintf(target, sizeof target, "%snano-v4", roots[i]);
        snprintf(draft, sizeof draft, "%snano-v4-dspark", roots[i]);
        open_both(&g, target, draft, DEVICE_EXACT, none);
        round_passes(&g, &(struct round_passes){golden, "bf16", 0, 2e-5});
        golden_close(&g);
        break;
    }
    open_both(&g, "tests/data/nano-v4/nano-v4-MXFP4.gguf", q8, DEVICE_REFERENCE, none);
    round_passes(&g, &(struct round_passes){golden, "q8_0", 2, 0.1});
    golden_close(&g);
}

static void refused(const char *target, const char *draft, const char *part)
{
    struct golden_model g;
    golden_open(&g, target,
                &(struct golden_options){.n_ctx = CTX,
                                         .max_rows = 64,
                                         .draft = true,
                                         .draft_file = draft,
                                         .draft_refused = part});
    golden_close(&g);
}

/* Errors name the field as the file has it, and what would fit. */
static void what_does_not_fit(void **state)
{
    (void)state;
    refused("tests/data/nano-v4/nano-v4-MXFP4.gguf", GOLDENS "dspark_v4/model-F32.gguf",
            "'dflash.embedding_length' is 64, but the target's width is 128");
    refused("tests/data/nano-v4/nano-v4-MXFP4.gguf", GOLDENS "dspark_v4",
            "'hidden_size' is 64, but the target's width is 128");
    refused(GOLDENS "gemma4_dense/model-F32.gguf", GOLDENS "dspark_v4/model-F32.gguf",
            "but the target is gemma4");
    refused(TARGET, "tests/data/nano-v4/nano-v4-mtp0-Q8_0.gguf",
            "'deepseek4.embedding_length' is 128, but the target has 64");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_logit),
        cmocka_unit_test(empty_context),
        cmocka_unit_test(recorded_passes),
        cmocka_unit_test(what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
