/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nano_v4 - a trained DeepSeek V4 against the reference implementation: each completion
 * token by token, with the best logits of every step.  Equal tokens alone would say little:
 * with a path of the attention left out, logits move by whole units and tokens hardly.
 */
#include "golden/golden.h"

#include "base/json.h"
#include "base/mem.h"
#include "unit/xz.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct bound { double max, rms; };
/* The reference's own float32 noise is 2e-5, and its figures have 4 digits: 5e-5 more. */
static const struct bound tight = {2e-4, 5e-5};
/* Q8_0 rounds the weights ... */
static const struct bound rounded_weights = {1.0, 0.1};
/* ... and activations are rounded to 8 bits beside them. */
static const struct bound rounded = {2.5, 0.2};

enum { MAX_TOKENS = 1024 };

/* The path of a file of the model, "" for the checkpoint itself; false if it is not here. */
static bool find(const char *file, char *path, size_t cap)
{
    static const char *const roots[] = {"tests/data/nano-v4", "../shared/models/nano-v4",
                                        "../../shared/models/nano-v4"};
    struct stat st;
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        snprintf(path, cap, "%s/%s", roots[i], *file ? file : "config.json");
        if (stat(path, &st))
            continue;
        snprintf(path, cap, "%s/%s", roots[i], file);
        return true;
    }
    print_message("not in this clone: nano-v4 %s\n", *file ? file : "checkpoint");
    return false;
}

static struct json_object *member(struct json_object *o, const char *key)
{
    struct json_object *v;
    if (!json_object_object_get_ex(o, key, &v))
        fail_msg("golden.json has no '%s'", key);
    return v;
}

static struct json_object *read_golden(void)
{
    struct err e;
    char path[200];
    size_t n;
    struct json_object *o;
    assert_true(find("golden.json", path, sizeof path));
    char *text = test_slurp(path, &n);
    assert_non_null(text);
    GOLDEN_OK(json_parse(text, n, NULL, &o, &e));
    mem_free(text);
    return o;
}

static int64_t ids(struct json_object *list, int32_t *out)
{
    const size_t n = json_object_array_length(list);
    assert_true(n <= MAX_TOKENS);
    for (size_t i = 0; i < n; i++)
        out[i] = json_object_get_int(json_object_array_get_idx(list, i));
    return (int64_t)n;
}

struct difference { double max, sum; int64_t n; };

/* From a list of [token, logit]. */
static void compare(struct difference *to, const float *logits, struct json_object *best)
{
    for (size_t i = 0; i < json_object_array_length(best); i++) {
        struct json_object *pair = json_object_array_get_idx(best, i);
        const int token = json_object_get_int(json_object_array_get_idx(pair, 0));
        const double d = fabs((double)logits[token] -
                              json_object_get_double(json_object_array_get_idx(pair, 1)));
        if (!(d <= to->max))
            to->max = d;
        to->sum += d * d;
        to->n++;
    }
}

/* One prompt, its completion decoded token by token: every step picks the golden's. */
static void complete(struct golden_model *g, const char *file, struct json_object *prompt,
                     struct difference *to)
{
    struct err e;
    struct session *s;
    int32_t in[MAX_TOKENS], out[MAX_TOKENS];
    const float *logits = NULL;
    const char *name = json_object_get_string(member(prompt, "name"));
    const int64_t n_in = ids(member(prompt, "prompt_ids"), in),
                  n_out = ids(member(prompt, "completion_ids"), out);
    struct json_object *steps = member(prompt, "step_logits_top3");
    assert_int_equal(json_object_array_length(steps), n_out);
    GOLDEN_OK(session_create(&s, g->runner, &e));
    GOLDEN_OK(session_append(s, in, n_in, &e));
    GOLDEN_OK(session_finish(s, &logits, NULL, &e));
    compare(to, logits, member(prompt, "first_logits_top8"));
    for (int64_t i = 0; i < n_out; i++) {
        compare(to, logits, json_object_array_get_idx(steps, (size_t)i));
        const int64_t token = golden_best(logits, g->info.n_vocab);
        if (token != out[i])
            fail_msg("%s, %s: token %lld is %lld, not %d", file, name, (long long)i,
                     (long long)token, out[i]);
        GOLDEN_OK(session_append(s, &out[i], 1, &e));
        GOLDEN_OK(session_finish(s, &logits, NULL, &e));
    }
    session_free(s);
}

static void check_kv(const char *file, enum device_numerics numerics, enum kern_kv_codec codec,
                     struct bound bound)
{
    char path[200];
    struct golden_model g;
    struct difference d = {0};
    if (!find(file, path, sizeof path))
        return;
    golden_open(
        &g, path,
        &(struct golden_options){.numerics = numerics, .codec = codec, .n_ctx = MAX_TOKENS});
    struct json_object *golden = read_golden(), *prompts = member(golden, "prompts");
    const int step = !UNIT_ASAN ? unit_some(2, 1) : numerics == DEVICE_REFERENCE ? 12 : 3;
    for (size_t i = 0; i < json_object_array_length(prompts); i += (size_t)step)
        complete(&g, file, json_object_array_get_idx(prompts, i), &d);
    const double rms = sqrt(d.sum / (double)d.n);
    print_message("%-24s %-10s %-4s max abs %.2e of %.0e  rms %.2e of %.0e\n",
                  *file ? file : "checkpoint", numerics == DEVICE_EXACT ? "exact" : "reference",
                  kern_kv_name(codec), d.max, bound.max, rms, bound.rms);
    assert_true(d.max <= bound.max && rms <= bound.rms);
    json_object_put(golden);
    golden_close(&g);
}

static void check(const char *file, enum device_numerics numerics, struct bound bound)
{
    check_kv(file, numerics, KERN_KV_F32, bound);
}

static void float_files(void **state)
{
    (void)state;
    check("nano-v4-BF16.gguf", DEVICE_EXACT, tight);
    check("nano-v4-F16.gguf", DEVICE_EXACT, tight);
    check("", DEVICE_EXACT, tight);
}

static void published_formats(void **state)
{
    (void)state;
    check("quantised", DEVICE_REFERENCE, tight);
    check("quantised", DEVICE_EXACT, rounded);
}

static void quantised(void **state)
{
    (void)state;
    check("nano-v4-Q8_0.gguf", DEVICE_EXACT, rounded);
    check("nano-v4-MXFP4.gguf", DEVICE_EXACT, rounded);
    check("nano-v4-Q8_0.gguf", DEVICE_REFERENCE, rounded_weights);
    check("nano-v4-MXFP4.gguf", DEVICE_REFERENCE, rounded_weights);
}

/* Rounded caches alone; the model was trained without them. */
static void caches(void **state)
{
    (void)state;
    check_kv("nano-v4-BF16.gguf", DEVICE_EXACT, KERN_KV_F16, (struct bound){0.5, 0.03});
    check_kv("nano-v4-BF16.gguf", DEVICE_EXACT, KERN_KV_BF16, (struct bound){1.5, 0.15});
    check_kv("nano-v4-BF16.gguf", DEVICE_EXACT, KERN_KV_FP8, rounded);
}

/* All rows of logits of the longest prompt, with the reference arithmetic. */
static float *all_logits(const char *path, int64_t *n)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    int32_t in[MAX_TOKENS], longest[MAX_TOKENS];
    int64_t n_in = 0;
    struct json_object *golden = read_golden(), *prompts = member(golden, "prompts");
    for (size_t i = 0; i < json_object_array_length(prompts); i++) {
        const int64_t k = ids(member(json_object_array_get_idx(prompts, i), "prompt_ids"), in);
        if (k > n_in)
            memcpy(longest, in, (size_t)(n_in = k) * sizeof *in);
    }
    json_object_put(golden);
    if (UNIT_ASAN && n_in > 40)
        n_in = 40;
    golden_open(&g, path,
                &(struct golden_options){.numerics = DEVICE_REFERENCE, .n_ctx = MAX_TOKENS});
    GOLDEN_OK(session_create(&s, g.runner, &e));
    float *logits = golden_logits(&g, s, longest, n_in, 0, NULL);
    *n = n_in * g.info.n_vocab;
    session_free(s);
    golden_close(&g);
    return logits;
}

/* FP8 with its tiles, FP4 with its groups and bfloat16 hold the same values: same bits. */
static void formats_hold_equal_values(void **state)
{
    (void)state;
    static const char *const files[] = {"quantised", "", "nano-v4-BF16.gguf"};
    char path[3][200];
    int64_t n[3];
    float *logits[3];
    for (int i = 0; i < 3; i++)
        if (!find(files[i], path[i], sizeof path[i]))
            return;
    for (int i = 0; i < 3; i++)
        logits[i] = all_logits(path[i], &n[i]);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(n[0], n[i]);
        assert_memory_equal(logits[0], logits[i], (size_t)n[0] * sizeof(float));
    }
    for (int i = 0; i < 3; i++)
        mem_free(logits[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_files),
        cmocka_unit_test(published_formats),
        cmocka_unit_test(quantised),
        cmocka_unit_test(caches),
        cmocka_unit_test(formats_hold_equal_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
