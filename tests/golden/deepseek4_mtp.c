/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek4_mtp - the draft block of DeepSeek V4 in its three spellings, against the reference: its
 * logits behind every position, however the context came there, and the drafts that follow from its
 * own streams.
 */
#include "golden/round.h"

#include "base/json.h"
#include "base/mem.h"
#include "unit/xz.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define REL_RMS 4e-6
#define MAX_ABS 2e-4

enum { CTX = 1024 };

/* A directory with case `name`: in the clone, or where a full set of goldens lies. */
static bool find(char out[200], const char *kind, const char *name)
{
    static const char *const roots[] = {"tests/data", "../shared", "../../shared"};
    struct stat st;
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        snprintf(out, 200, "%s/%s/%s", roots[i], kind, name);
        if (!stat(out, &st))
            return true;
    }
    print_message("not in this clone: %s\n", name);
    return false;
}

static void hold(const char *what, const float *got, const float *want, int64_t n, double bound)
{
    const struct golden_error e = golden_compare(got, want, n);
    print_message("%-16s rel rms %.2e  max abs %.2e  bound %.0e\n", what, e.rel_rms, e.max_abs,
                  bound);
    assert_true(e.rel_rms <= bound && e.max_abs <= MAX_ABS);
}

/* ---- random weights, every logit ---- */

/* A session for each position: its context in one piece, or one session whose context comes in
 * pieces. */
static void check_logits(struct golden_model *g, const char *ref, const int32_t *ids, uint32_t seed)
{
    struct err e;
    struct session *s;
    int64_t n_pos, k;
    const int64_t v = g->info.n_vocab;
    int32_t *pos = golden_ints(ref, "mtp.positions", &n_pos);
    float *want = golden_floats(ref, "mtp.logits", &k),
          *got = mem_calloc((size_t)(n_pos * v), sizeof *got);
    GOLDEN_OK(session_create(&s, g->runner, &e));
    for (int64_t i = 0; i < n_pos; i++) {
        round_context(g, s, ids, pos[i] + 1, seed);
        round_run(g, s, &(struct round){.n = 1, .logits = got + i * v});
    }
    hold(seed ? "in pieces" : "logits", got, want, n_pos * v, REL_RMS);
    session_free(s);
    mem_free(pos);
    mem_free(want);
    mem_free(got);
}

/* Every slot's best token, and the chain behind the last one. */
static void check_best(struct golden_model *g, const char *ref, const int32_t *ids, int64_t n)
{
    struct err e;
    struct session *s;
    int64_t k;
    const int64_t v = g->info.n_vocab;
    int32_t token, *best = golden_ints(ref, "mtp.argmax", &k);
    GOLDEN_OK(session_create(&s, g->runner, &e));
    for (int64_t i = 0; i < n; i++) {
        round_context(g, s, ids, i + 1, 0);
        round_run(g, s, &(struct round){.n = 1, .token = &token});
        assert_int_equal(token, best[i]);
    }
    int32_t got[2], *draft1 = golden_ints(ref, "mtp.draft1", &k),
                    *draft2 = golden_ints(ref, "mtp.draft2", &k);
    float *step2 = golden_floats(ref, "mtp.logits_step2", &k),
          *logits = mem_calloc((size_t)(2 * v), sizeof *logits);
    round_run(g, s, &(struct round){.n = 2, .token = got, .logits = logits});
    assert_int_equal(got[0], draft1[0]);
    assert_int_equal(got[1], draft2[0]);
    /* One row, whose input has the rounding of the block already: twice through it. */
    hold("second step", logits + v, step2, v, 2 * REL_RMS);
    session_free(s);
    void *const all[] = {best, draft1, draft2, step2, logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

static void checkpoint(void **state)
{
    (void)state;
    char dir[200], file[200], ref[200];
    struct golden_model g;
    int64_t n, n_tokens;
    if (!find(file, "goldens", "deepseek_v4_full/model.safetensors") ||
        !find(ref, "goldens", "deepseek_v4_full/mtp.safetensors"))
        return;
    snprintf(dir, sizeof dir, "%.*s", (int)(strlen(file) - strlen("/model.safetensors")), file);
    golden_open(&g, dir, &(struct golden_options){.n_ctx = CTX, .max_rows = 200, .draft = true});
    assert_string_equal(g.draft_kind->kind, "mtp");
    int32_t *ids = golden_ints(ref, "input_ids", &n),
            *tokens = golden_ints(ref, "mtp.tokens", &n_tokens), all[CTX];
    assert_int_equal(n, n_tokens);
    memcpy(all, ids, (size_t)n * sizeof *all);
    all[n] = tokens[n - 1];
    check_logits(&g, ref, all, 0);
    check_logits(&g, ref, all, 77);
    check_best(&g, ref, all, n);
    mem_free(ids);
    mem_free(tokens);
    golden_close(&g);
}

/* ---- trained weights: drafts and best logits, from all files ---- */

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

struct score { double max; int64_t right, all; };

/* One golden slot: what is drafted behind it. */
static void check_row(struct golden_model *g, struct session *s, const int32_t *tokens,
                      struct json_object *row, struct score *score)
{
    const int64_t v = g->info.n_vocab;
    struct json_object *best = member(row, "first_logits_top4"), *drafts = member(row, "drafts");
    const int64_t slot = json_object_get_int64(member(row, "slot")),
                  n = (int64_t)json_object_array_length(drafts);
    int32_t want[8], got[8];
    float *logits = mem_calloc((size_t)(n * v), sizeof *logits);
    assert_true(ids_of(drafts, want) <= 8);
    round_context(g, s, tokens, slot + 1, 0);
    round_run(g, s, &(struct round){.n = n, .forced = want, .logits = logits});
    for (size_t i = 0; i < json_object_array_length(best); i++) {
        struct json_object *pair = json_object_array_get_idx(best, i);
        const double is = (double)logits[json_object_get_int(json_object_array_get_idx(pair, 0))];
        score->max =
            fmax(score->max, fabs(is - json_object_get_double(json_object_array_get_idx(pair, 1))));
    }
    for (int64_t i = 0; i < n; i++) {
        got[i] = (int32_t)golden_best(logits + i * v, v);
        score->right += got[i] == want[i];
        score->all++;
    }
    mem_free(logits);
}

static void check_nano(const char *target, const char *block, enum device_numerics numerics,
                       double bound, int64_t wrong)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    struct score score = {0};
    char path[200], own[200], ref[200];
    if (!find(path, "models", target) || !find(ref, "models", "nano-v4-mtp/golden.json") ||
        (block && !find(own, "models", block)))
        return;
    golden_open(
        &g, path,
        &(struct golden_options){
            .numerics = numerics, .n_ctx = CTX, .draft = true, .draft_file = block ? own : NULL});
    size_t n;
    struct json_object *golden, *prompts;
    char *text = test_slurp(ref, &n);
    assert_non_null(text);
    GOLDEN_OK(json_parse(text, n, NULL, &golden, &e));
    mem_free(text);
    prompts = member(golden, "prompts");
    for (size_t i = 0; i < json_object_array_length(prompts); i++) {
        struct json_object *p = json_object_array_get_idx(prompts, i), *rows = member(p, "rows");
        int32_t ids[CTX];
        int64_t n_ids = ids_of(member(p, "prompt_ids"), ids);
        n_ids += ids_of(member(p, "completion_ids"), ids + n_ids);
        assert_true(n_ids <= CTX);
        GOLDEN_OK(session_create(&s, g.runner, &e));
        for (size_t k = 0; k < json_object_array_length(rows); k++)
            check_row(&g, s, ids, json_object_array_get_idx(rows, k), &score);
        session_free(s);
    }
    json_object_put(golden);
    golden_close(&g);
    print_message("%-26s %-34s max abs %.2e of %.0e  drafts %lld of %lld\n", target,
                  block ? block : "", score.max, bound, (long long)score.right,
                  (long long)score.all);
    assert_true(score.all == 72 && score.right >= score.all - wrong && score.max <= bound);
}

static void float_files(void **state)
{
    (void)state;
    check_nano("nano-v4", NULL, DEVICE_EXACT, 2e-4, 0);
    check_nano("nano-v4/nano-v4-BF16.gguf", "nano-v4-mtp/nano-v4-mtp-BF16.gguf", DEVICE_EXACT, 2e-4,
               0);
}

static void published_formats(void **state)
{
    (void)state;
    check_nano("nano-v4/quantised", NULL, DEVICE_REFERENCE, 2e-4, 0);
}

static void block_in_its_own_file(void **state)
{
    (void)state;
    check_nano("nano-v4/nano-v4-Q8_0.gguf", "nano-v4-mtp/nano-v4-mtp-Q8_0.gguf", DEVICE_EXACT, 1,
               2);
    check_nano("nano-v4/nano-v4-Q8_0.gguf", "nano-v4-mtp/nano-v4-mtp0-Q8_0.gguf", DEVICE_EXACT, 1,
               2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoint),
        cmocka_unit_test(float_files),
        cmocka_unit_test(published_formats),
        cmocka_unit_test(block_in_its_own_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
