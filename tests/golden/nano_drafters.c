/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nano_drafters - trained drafters of blocks beside the nano model: the recorded passes of greedy
 * speculation, and how many tokens a pass gives.  Files that the clone lacks are tried where a full
 * set lies.
 */
#include "golden/drafter.h"

#include "base/json.h"
#include "base/mem.h"
#include "unit/xz.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool find(char out[200], const char *name)
{
    static const char *const roots[] = {"tests/data/nano", "assets", "../shared/models",
                                        "../../shared/models"};
    struct stat st;
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        const char *slash = strrchr(name, '/');
        snprintf(out, 200, "%s/%s", roots[i], i < 2 && slash ? slash + 1 : name);
        if (!stat(out, &st))
            return true;
    }
    print_message("not in this clone: %s\n", name);
    return false;
}

static struct json_object *member(struct json_object *o, const char *key)
{
    struct json_object *v;
    if (!json_object_object_get_ex(o, key, &v))
        fail_msg("golden.json has no '%s'", key);
    return v;
}

static int64_t ids_of(struct json_object *list, int32_t *out)
{
    const int64_t n = (int64_t)json_object_array_length(list);
    for (int64_t i = 0; i < n; i++)
        out[i] = json_object_get_int(json_object_array_get_idx(list, (size_t)i));
    return n;
}

struct score { int64_t passes, equal, tokens, want_tokens; double sure; };

/* One recorded pass, behind `at` observed positions.  ids: prompt and answer. */
static void check_pass(struct drafter *d, struct json_object *pass, const int32_t *ids,
                       int64_t n_ids, struct score *s)
{
    int32_t want[64], got[64];
    float sure[64];
    struct json_object *confidence;
    const int64_t at = json_object_get_int64(member(pass, "position")),
                  m = ids_of(member(pass, "drafts"), want);
    drafter_observe(d, 0, at - kv_timeline_length(d->timeline[0]));
    drafter_round(d,
                  &(struct drafter_round){
                      .n = 1, .anchor = &ids[at], .n_drafts = m, .token = got, .confidence = sure});
    int64_t right = 0;
    while (right < m && at + 1 + right < n_ids && got[right] == ids[at + 1 + right])
        right++;
    s->passes++;
    s->equal += !memcmp(got, want, (size_t)m * sizeof *got);
    s->tokens += right + 1;
    s->want_tokens += json_object_get_int64(member(pass, "accepted")) + 1;
    for (int64_t j = 0; json_object_object_get_ex(pass, "confidence", &confidence) && j < m &&
                        !memcmp(got, want, (size_t)j * sizeof *got);
         j++)
        s->sure =
            fmax(s->sure, fabs((double)sure[j] - json_object_get_double(json_object_array_get_idx(
                                                     confidence, (size_t)j))));
}

struct setting { enum device_numerics numerics; enum kern_kv_codec codec; };

static void check_with(const char *target, const char *path, const char *golden,
                       const char *weights, struct setting with, int64_t wrong, double bound)
{
    struct err e;
    struct drafter d;
    struct score s = {0};
    struct json_object *all, *prompts;
    char is_target[200], is_path[200], ref[200];
    size_t n;
    if (!find(is_target, target) || !find(is_path, path) || !find(ref, golden))
        return;
    drafter_open(
        &d, is_target, is_path,
        &(struct drafter_options){.target = {.numerics = with.numerics, .codec = with.codec}});
    char *text = test_slurp(ref, &n);
    assert_non_null(text);
    GOLDEN_OK(json_parse(text, n, NULL, &all, &e));
    mem_free(text);
    prompts = member(member(all, "weights"), weights);
    for (size_t i = 0; i < json_object_array_length(prompts); i += UNIT_ASAN ? 3 : 1) {
        struct json_object *p = json_object_array_get_idx(prompts, i),
                           *passes = member(p, "passes");
        int32_t ids[DRAFTER_CTX];
        int64_t n_ids = ids_of(member(p, "prompt_ids"), ids);
        n_ids += ids_of(member(p, "completion_ids"), ids + n_ids);
        drafter_target(&d, ids, n_ids);
        drafter_rewind(&d, 0, 0);
        for (size_t k = 0; k < json_object_array_length(passes); k++)
            check_pass(&d, json_object_array_get_idx(passes, k), ids, n_ids, &s);
    }
    json_object_put(all);
    drafter_close(&d);
    print_message("%-44s %-9s %-4s passes equal %lld of %lld, tokens a pass %.3f of %.3f, "
                  "confidence within %.1e\n",
                  path,
                  with.numerics == DEVICE_REFERENCE ? "reference"
                  : with.numerics == DEVICE_EXACT   ? "exact"
                                                    : "fast",
                  kern_kv_name(with.codec), (long long)s.equal, (long long)s.passes,
                  (double)s.tokens / (double)s.passes, (double)s.want_tokens / (double)s.passes,
                  s.sure);
    assert_true(s.passes > 0 && s.passes - s.equal <= wrong && s.sure <= bound);
    assert_true(fabs((double)(s.tokens - s.want_tokens)) <= 0.06 * (double)s.want_tokens);
}

static void check(const char *target, const char *path, const char *golden, const char *weights,
                  enum device_numerics numerics, int64_t wrong, double bound)
{
    check_with(target, path, golden, weights, (struct setting){numerics, KERN_KV_F32}, wrong,
               bound);
}

#define NANO(n) "nano-gemma4/nano-gemma4-" n ".gguf"
#define DFLASH(n) "nano-gemma4-dflash/nano-gemma4-dflash-" n ".gguf"
#define DSPARK(n) "nano-gemma4-dspark/nano-gemma4-dspark-" n ".gguf"

static void dflash(void **state)
{
    (void)state;
    static const char golden[] = "nano-gemma4-dflash-golden.json.xz";
    check(NANO("Q8_0"), DFLASH("Q8_0"), golden, "q8_0", DEVICE_REFERENCE, 0, 0);
    check(NANO("Q8_0"), DFLASH("Q8_0"), golden, "q8_0", DEVICE_EXACT, 8, 0);
    for (enum kern_kv_codec c = KERN_KV_F16; c <= KERN_KV_Q8_0; c++)
        check_with(NANO("Q8_0"), DFLASH("Q8_0"), golden, "q8_0", (struct setting){DEVICE_EXACT, c},
                   16, 0);
    check("nano-gemma4", "nano-gemma4-dflash", golden, "bf16", DEVICE_EXACT, 0, 0);
    check(NANO("BF16"), DFLASH("BF16"), golden, "bf16", DEVICE_EXACT, 0, 0);
    check(NANO("BF16"), DFLASH("F16"), golden, "bf16", DEVICE_EXACT, 0, 0);
    check(NANO("Q4_0"), DFLASH("Q4_0"), golden, "bf16", DEVICE_EXACT, 99, 0);
    check(NANO("Q8_0"), DFLASH("Q8_0"), golden, "q8_0", DEVICE_FAST, 8, 0);
}

static void dspark(void **state)
{
    (void)state;
    static const char golden[] = "nano-gemma4-dspark-golden.json.xz";
    check(NANO("Q8_0"), DSPARK("Q8_0"), golden, "q8_0", DEVICE_REFERENCE, 0, 2e-5);
    check(NANO("Q8_0"), DSPARK("Q8_0"), golden, "q8_0", DEVICE_EXACT, 8, 0.1);
    for (enum kern_kv_codec c = KERN_KV_F16; c <= KERN_KV_Q8_0; c++)
        check_with(NANO("Q8_0"), DSPARK("Q8_0"), golden, "q8_0", (struct setting){DEVICE_EXACT, c},
                   12, 0.1);
    check("nano-gemma4", "nano-gemma4-dspark", golden, "bf16", DEVICE_EXACT, 0, 2e-5);
    check(NANO("BF16"), DSPARK("BF16"), golden, "bf16", DEVICE_EXACT, 0, 2e-5);
    check(NANO("BF16"), DSPARK("F16"), golden, "bf16", DEVICE_EXACT, 0, 2e-5);
    check(NANO("Q4_0"), DSPARK("Q8_0"), golden, "bf16", DEVICE_EXACT, 99, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(dflash), cmocka_unit_test(dspark)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
