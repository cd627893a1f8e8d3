/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemma4 - every Gemma golden against the reference implementation's float32 results:
 * logits at all positions, the stream after every layer, the greedy continuation.
 */
#include "golden/golden.h"

#include "base/mem.h"
#include <stdio.h>

#define REL_RMS 8e-6
#define MAX_ABS 2e-4

static const char data[] = "tests/data/goldens/";

static void line(const char *what, const char *part, struct golden_error got, double bound)
{
    print_message("%-34s %-12s rel rms %.2e  max abs %.2e  bound %.2g\n", what, part, got.rel_rms,
                  got.max_abs, bound);
}

/* The greedy continuation, token by token, after the prompt that s has computed. */
static void check_greedy(struct golden_model *g, struct session *s, const char *what,
                         const char *golden, const float *last, bool with_logits)
{
    struct err e;
    int64_t n, n_logits;
    int32_t *greedy = golden_ints(golden, "greedy", &n);
    float *want = with_logits ? golden_floats(golden, "greedy_logits", &n_logits) : NULL;
    const int64_t v = g->info.n_vocab;
    struct golden_error worst = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        const struct golden_error got = want ? golden_compare(last, want + i * v, v) : worst;
        if (!(got.rel_rms <= worst.rel_rms))
            worst = got;
        const int32_t token = (int32_t)golden_best(last, v);
        assert_int_equal(token, greedy[i]);
        GOLDEN_OK(session_append(s, &token, 1, &e));
        GOLDEN_OK(session_finish(s, &last, NULL, &e));
    }
    if (want)
        line(what, "greedy", worst, REL_RMS);
    assert_true(worst.rel_rms <= REL_RMS && worst.max_abs <= MAX_ABS);
    mem_free(greedy);
    mem_free(want);
}

static void check_hidden(const struct golden_model *g, const char *what, const char *golden,
                         const float *hidden, int64_t n)
{
    const int64_t size = n * g->info.n_embd;
    struct golden_error worst = {0, 0};
    for (int64_t i = 0; i < g->info.n_layers + 2; i++) {
        char name[64];
        int64_t got;
        if (i == 0)
            snprintf(name, sizeof name, "hidden.embed");
        else if (i <= g->info.n_layers)
            snprintf(name, sizeof name, "hidden.layer%lld", (long long)i - 1);
        else
            snprintf(name, sizeof name, "final_norm");
        float *want = golden_floats(golden, name, &got);
        assert_int_equal(got, size);
        const struct golden_error error = golden_compare(hidden + i * size, want, size);
        if (!(error.rel_rms <= worst.rel_rms))
            worst = error;
        if (!(error.rel_rms <= REL_RMS))
            line(what, name, error, REL_RMS);
        mem_free(want);
    }
    line(what, "layers", worst, REL_RMS);
    assert_true(worst.rel_rms <= REL_RMS);
}

/* The goldens of quantised files have neither layers nor the logits of the continuation. */
static void check(const char *model, const char *golden, enum device_numerics numerics,
                  bool layers)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    char path[160], ref[160];
    int64_t n, n_logits;
    snprintf(path, sizeof path, "%s%s", data, model);
    snprintf(ref, sizeof ref, "%s%s", data, golden);
    golden_open(&g, path, &(struct golden_options){.numerics = numerics});
    GOLDEN_OK(session_create(&s, g.runner, &e));
    int32_t *tokens = golden_ints(ref, "input_ids", &n);
    float *want = golden_floats(ref, "logits", &n_logits);
    const size_t n_hidden = (size_t)((g.info.n_layers + 2) * n * g.info.n_embd);
    float *hidden = layers ? mem_calloc(n_hidden, sizeof *hidden) : NULL;
    float *logits = golden_logits(&g, s, tokens, n, 0, hidden);
    const struct golden_error got = golden_compare(logits, want, n_logits);
    line(model, "logits", got, REL_RMS);
    if (hidden)
        check_hidden(&g, model, ref, hidden, n);
    assert_true(got.rel_rms <= REL_RMS && got.max_abs <= MAX_ABS);
    check_greedy(&g, s, model, ref, logits + (n - 1) * g.info.n_vocab, layers);
    mem_free(tokens);
    mem_free(want);
    mem_free(hidden);
    mem_free(logits);
    session_free(s);
    golden_close(&g);
}

#define FLOAT_CASE(id, model)                                                              \
    static void id(void **state)                                                           \
    {                                                                                      \
        (void)state;                                                                       \
        check(#model "/model-F32.gguf", #model "/golden.safetensors", DEVICE_EXACT, true); \
    }

FLOAT_CASE(dense_gguf, gemma4_dense)
FLOAT_CASE(moe_gguf, gemma4_moe)
FLOAT_CASE(e2b_gguf, gemma4_ple_e2b)
FLOAT_CASE(e4b_gguf, gemma4_ple_e4b)
FLOAT_CASE(realhd_gguf, gemma4_realhd)

static void dense_checkpoint(void **state)
{
    (void)state;
    check("gemma4_dense", "gemma4_dense/golden.safetensors", DEVICE_EXACT, true);
}

static void moe_checkpoint(void **state)
{
    (void)state;
    check("gemma4_moe", "gemma4_moe/golden.safetensors", DEVICE_EXACT, true);
}

static void q8_0_reference(void **state)
{
    (void)state;
    check("gemma4_dense/model-Q8_0.gguf", "gemma4_dense/golden-Q8_0.safetensors",
          DEVICE_REFERENCE, false);
}

static void q4_0_reference(void **state)
{
    (void)state;
    check("gemma4_dense/model-Q4_0.gguf", "gemma4_dense/golden-Q4_0.safetensors",
          DEVICE_REFERENCE, false);
}

/* Another numerics or codec than the golden's: bounds on error and on equal best tokens. */
static void check_loose(const char *model, const char *golden, const char *kv,
                        double bound, double agree)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    char path[160], ref[160], what[80];
    int64_t n, n_logits, equal = 0;
    snprintf(path, sizeof path, "%s%s", data, model);
    snprintf(ref, sizeof ref, "%s%s", data, golden);
    snprintf(what, sizeof what, "%s kv %s", model, kv);
    golden_open(&g, path, &(struct golden_options){.kv = kv});
    GOLDEN_OK(session_create(&s, g.runner, &e));
    int32_t *tokens = golden_ints(ref, "input_ids", &n);
    float *want = golden_floats(ref, "logits", &n_logits);
    float *logits = golden_logits(&g, s, tokens, n, 0, NULL);
    const int64_t v = g.info.n_vocab;
    for (int64_t i = 0; i < n; i++)
        equal += golden_best(logits + i * v, v) == golden_best(want + i * v, v);
    const struct golden_error got = golden_compare(logits, want, n_logits);
    line(what, "logits", got, bound);
    print_message("%-34s %lld of %lld best tokens equal\n", what, (long long)equal, (long long)n);
    assert_true(got.rel_rms <= bound);
    assert_true((double)equal >= agree * (double)n);
    mem_free(tokens);
    mem_free(want);
    mem_free(logits);
    session_free(s);
    golden_close(&g);
}

static void int8_activations_stay_close(void **state)
{
    (void)state;
    check_loose("gemma4_dense/model-Q8_0.gguf", "gemma4_dense/golden-Q8_0.safetensors",
                "f32", 0.15, 0.85);
    check_loose("gemma4_dense/model-Q4_0.gguf", "gemma4_dense/golden-Q4_0.safetensors",
                "f32", 0.15, 0.85);
}

/* Random weights with an attention scale of 1 make these nets far more sensitive to the
 * rounding of keys than a trained one. */
static void narrower_kv_stays_close(void **state)
{
    (void)state;
    check_loose("gemma4_dense/model-F32.gguf", "gemma4_dense/golden.safetensors", "f16",
                0.01, 0.97);
    check_loose("gemma4_moe/model-F32.gguf", "gemma4_moe/golden.safetensors", "f16", 0.01,
                0.97);
    check_loose("gemma4_dense/model-F32.gguf", "gemma4_dense/golden.safetensors", "bf16",
                0.08, 0.9);
}

/* Keys that are made of values are those that would be kept, but for the last bits. */
static void keys_of_values_are_the_keys(void **state)
{
    (void)state;
    check_loose("gemma4_dense/model-F32.gguf", "gemma4_dense/golden.safetensors",
                "full=f32v,sliding=f32", 8e-6, 1);
    check_loose("gemma4_moe/model-F32.gguf", "gemma4_moe/golden.safetensors",
                "full=f32v,sliding=f32", 8e-6, 1);
    check_loose("gemma4_realhd/model-F32.gguf", "gemma4_realhd/golden.safetensors",
                "full=f32v,sliding=f32", 8e-6, 1);
    check_loose("gemma4_moe/model-F32.gguf", "gemma4_moe/golden.safetensors", "f16v", 0.01, 0.97);
}

/* Layers that are named by number: all of them in F32, whatever their kind has. */
static void layers_by_number(void **state)
{
    (void)state;
    check_loose("gemma4_realhd/model-F32.gguf", "gemma4_realhd/golden.safetensors",
                "full=q8_0,sliding=q8r,0=f32,1-2=q8r,1-2=f32", 8e-6, 1);
}

/* Codes of the real head widths; sliding layers are F16. */
static void coded_kv_stays_close(void **state)
{
    (void)state;
    static const char model[] = "gemma4_realhd/model-F32.gguf",
                      golden[] = "gemma4_realhd/golden.safetensors";
    check_loose(model, golden, "q8_0", 0.02, 0.95);
    check_loose(model, golden, "q8r", 0.02, 0.95);
    check_loose(model, golden, "q8r:n4r", 0.1, 0.9);
    check_loose(model, golden, "n4r", 0.12, 0.88);
    check_loose(model, golden, "f16:tq3_0", 0.15, 0.85);
    check_loose(model, golden, "q8r+rot", 0.02, 0.95);
    check_loose(model, golden, "q8r:n4r+rot", 0.1, 0.9);
    check_loose(model, golden, "n4r+rot", 0.12, 0.88);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_gguf),
        cmocka_unit_test(moe_gguf),
        cmocka_unit_test(e2b_gguf),
        cmocka_unit_test(e4b_gguf),
        cmocka_unit_test(realhd_gguf),
        cmocka_unit_test(dense_checkpoint),
        cmocka_unit_test(moe_checkpoint),
        cmocka_unit_test(q8_0_reference),
        cmocka_unit_test(q4_0_reference),
        cmocka_unit_test(int8_activations_stay_close),
        cmocka_unit_test(narrower_kv_stays_close),
        cmocka_unit_test(keys_of_values_are_the_keys),
        cmocka_unit_test(layers_by_number),
        cmocka_unit_test(coded_kv_stays_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
