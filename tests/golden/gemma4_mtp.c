/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemma4_mtp - the assistant of Gemma 4 against its reference (rules `rec` and `hf`): every logit
 * of chains of four, dense and ordered heads, from checkpoint and GGUF, contexts in pieces;
 * recorded passes of a trained one; what does not fit.
 */
#include "golden/round.h"

#include "base/mem.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define REL_RMS 8e-6
#define MAX_ABS 2e-4

enum { CTX = 512, STEPS = 4 };

#define GOLDENS "tests/data/goldens/"
#define TARGET GOLDENS "gemma4_dense/model-F32.gguf"

static void open_by(struct golden_model *g, const char *target, const char *draft,
                    enum device_numerics numerics, const char *rule)
{
    golden_open(g, target,
                &(struct golden_options){.numerics = numerics,
                                         .n_ctx = CTX,
                                         .max_rows = 64,
                                         .draft = true,
                                         .draft_file = draft,
                                         .draft_options = {.rule = rule}});
    assert_string_equal(g->draft_kind->kind, "mtp");
}

static void open_both(struct golden_model *g, const char *target, const char *draft,
                      enum device_numerics numerics)
{
    open_by(g, target, draft, numerics, NULL);
}

static void check_length(struct golden_model *g, const char *ref, const char *rule, int n,
                         uint32_t seed)
{
    struct err e;
    struct session *s;
    char name[4][64];
    int32_t all[CTX], token[STEPS];
    int64_t k;
    const int64_t v = g->info.n_vocab;
    snprintf(name[0], 64, "n%d.input_ids", n);
    snprintf(name[1], 64, "n%d.token", n);
    snprintf(name[2], 64, "n%d.%s.tokens", n, rule);
    snprintf(name[3], 64, "n%d.%s.logits", n, rule);
    int32_t *ids = golden_ints(ref, name[0], &k), *anchor = golden_ints(ref, name[1], &k),
            *want = golden_ints(ref, name[2], &k);
    float *logits = golden_floats(ref, name[3], &k),
          *got = mem_calloc((size_t)(STEPS * v), sizeof *got);
    assert_int_equal(k, STEPS * v);
    memcpy(all, ids, (size_t)n * sizeof *all);
    all[n] = anchor[0];
    GOLDEN_OK(session_create(&s, g->runner, &e));
    round_context(g, s, all, n, seed);
    round_run(g, s, &(struct round){.n = STEPS, .token = token, .logits = got});
    const struct golden_error is = golden_compare(got, logits, STEPS * v);
    print_message("%s n%d %s%s: rel rms %.2e of %.0e, max abs %.2e\n", ref, n, rule,
                  seed ? " in pieces" : "", is.rel_rms, REL_RMS, is.max_abs);
    assert_memory_equal(token, want, sizeof token);
    assert_true(is.rel_rms <= REL_RMS && is.max_abs <= MAX_ABS);
    session_free(s);
    void *const owned[] = {ids, anchor, want, logits, got};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        mem_free(owned[i]);
}

static void check_head(const char *dir)
{
    static const char *const files[] = {"", "/model-F32.gguf", ""}, *const rules[] = {NULL, "rec",
                                                                                      "hf"};
    for (size_t f = 0; f < 3; f++) {
        struct golden_model g;
        char path[160], ref[160];
        snprintf(path, sizeof path, GOLDENS "%s%s", dir, files[f]);
        snprintf(ref, sizeof ref, GOLDENS "%s/golden.safetensors", dir);
        const char *rule = rules[f] ? rules[f] : "rec";
        open_by(&g, TARGET, path, DEVICE_EXACT, rules[f]);
        for (int seed = 0; seed < (UNIT_ASAN || f == 2 ? 1 : 3); seed++) {
            check_length(&g, ref, rule, 10, (uint32_t)seed);
            check_length(&g, ref, rule, 40, (uint32_t)seed);
            check_length(&g, ref, rule, 100, (uint32_t)seed);
        }
        golden_close(&g);
    }
}

static void dense_head(void **state)
{
    (void)state;
    check_head("gemma4_assistant_dense");
}

static void ordered_head(void **state)
{
    (void)state;
    check_head("gemma4_assistant_ordered");
}

/* Nothing before the anchor: numbers, and the same ones each time. */
static void empty_context(void **state)
{
    (void)state;
    struct err e;
    struct golden_model g;
    const int32_t anchor = 2;
    open_both(&g, TARGET, GOLDENS "gemma4_assistant_dense/model-F32.gguf", DEVICE_EXACT);
    const int64_t v = g.info.n_vocab;
    float *a = mem_calloc((size_t)(2 * STEPS * v), sizeof *a);
    for (int k = 0; k < 2; k++) {
        struct session *s;
        GOLDEN_OK(session_create(&s, g.runner, &e));
        round_context(&g, s, &anchor, 0, 0);
        round_run(&g, s, &(struct round){.n = STEPS, .logits = a + k * STEPS * v});
        session_free(s);
    }
    for (int64_t i = 0; i < STEPS * v; i++)
        assert_true(isfinite(a[i]));
    assert_memory_equal(a, a + STEPS * v, (size_t)(STEPS * v) * sizeof *a);
    mem_free(a);
    golden_close(&g);
}

static void recorded_passes(void **state)
{
    (void)state;
    static const char *const roots[] = {"../shared/models/", "../../shared/models/"};
    struct golden_model g;
    struct stat st;
    char target[160], draft[160];
    for (size_t i = 0; i < 2; i++) {
        snprintf(target, sizeof target, "%snano-gemma4/nano-gemma4-Q8_0.gguf", roots[i]);
        if (stat(target, &st))
            continue;
        open_both(&g, target, "tests/data/nano/nano-gemma4-mtp-Q8_0.gguf", DEVICE_REFERENCE);
        round_passes(&g, &(struct round_passes){"tests/data/nano/nano-gemma4-mtp-golden.json.xz",
                                                "q8_0", 0, 0});
        golden_close(&g);
        snprintf(target, sizeof target, "%snano-gemma4", roots[i]);
        snprintf(draft, sizeof draft, "%snano-gemma4-mtp", roots[i]);
        open_both(&g, target, draft, DEVICE_REFERENCE);
        round_passes(&g, &(struct round_passes){"tests/data/nano/nano-gemma4-mtp-golden.json.xz",
                                                "bf16", 0, 0});
        golden_close(&g);
        break;
    }
    /* The target's own Q4_K_M tells another story in places. */
    open_both(&g, "tests/data/nano/nano-gemma4-Q4_K_M.gguf",
              "tests/data/nano/nano-gemma4-mtp-Q8_0.gguf", DEVICE_EXACT);
    round_passes(&g, &(struct round_passes){"tests/data/nano/nano-gemma4-mtp-golden.json.xz",
                                            "q8_0", 20, 0});
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
    refused("tests/data/nano/nano-gemma4-Q4_K_M.gguf",
            GOLDENS "gemma4_assistant_dense/model-F32.gguf",
            "'gemma4-assistant.embedding_length_out' is 64, but the target's width is 256");
    refused("tests/data/nano/nano-gemma4-Q4_K_M.gguf", GOLDENS "gemma4_assistant_dense",
            "'backbone_hidden_size' is 64");
    refused("tests/data/nano-v4/nano-v4-MXFP4.gguf", "tests/data/nano/nano-gemma4-mtp-Q8_0.gguf",
            "but the target is deepseek4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_head),        cmocka_unit_test(ordered_head),
        cmocka_unit_test(empty_context),     cmocka_unit_test(recorded_passes),
        cmocka_unit_test(what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
