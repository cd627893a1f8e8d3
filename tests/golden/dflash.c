/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dflash - DFlash, DFlash2 and DSpark for Gemma 4 against their references: every logit, draft and
 * confidence, from checkpoint and GGUF, at every stored length and block.  Bounds are those of the
 * goldens' own notes: float32 against float64 differs by 5e-7 there, and the smallest mistake that
 * they tried by 1e-5.
 */
#include "golden/drafter.h"

#include "base/mem.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define REL_RMS 4e-6
#define MAX_ABS 2e-4
#define SURE 1e-5

#define TARGET "tests/data/goldens/gemma4_dense/model-F32.gguf"
#define DIR "tests/data/goldens/"

static const char *const files[] = {"model.safetensors", "model-F32.gguf"};

static uint32_t noise(uint32_t *seed)
{
    return *seed = *seed * 1664525u + 1013904223u;
}

/* Positions [0, n) of a timeline in pieces: one, or random ones. */
static void observe(struct drafter *d, int timeline, int64_t n, uint32_t seed)
{
    drafter_rewind(d, timeline, 0);
    for (int64_t at = 0; at < n;) {
        const int64_t most = seed ? 1 + (int64_t)(noise(&seed) >> 8) % 24 : n,
                      piece = most < n - at ? most : n - at;
        drafter_observe(d, timeline, piece);
        at += piece;
    }
}

struct open { struct drafter d; char ref[160], prefix[64]; int64_t n, block; };

static void open_case(struct open *o, const char *dir, const char *file, const char *rule,
                      int64_t n, int64_t block)
{
    char path[160];
    int64_t n_ids;
    struct drafter_options opt = {.target.n_ctx = DRAFTER_CTX,
                                  .draft = {.rule = rule, .block = block}};
    snprintf(o->ref, sizeof o->ref, DIR "%s/golden.safetensors", dir);
    snprintf(path, sizeof path, DIR "%s/%s", dir, file);
    snprintf(o->prefix, sizeof o->prefix, "n%lld.b%lld.", (long long)n, (long long)block);
    o->n = n;
    o->block = block;
    drafter_open(&o->d, TARGET, path, &opt);
    int32_t *ids = golden_ints(o->ref, "input_ids", &n_ids), all[DRAFTER_CTX];
    for (int64_t i = 0; i < n; i++)
        all[i] = ids[i % n_ids];
    drafter_target(&o->d, all, n);
    mem_free(ids);
}

static float *floats(const struct open *o, const char *name, int64_t *n)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", o->prefix, name);
    return golden_floats(o->ref, full, n);
}

static int32_t *ints(const struct open *o, const char *name, int64_t *n)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", o->prefix, name);
    return golden_ints(o->ref, full, n);
}

static void hold(const struct open *o, const char *what, const float *got, const float *want,
                 int64_t n)
{
    const struct golden_error e = golden_compare(got, want, n);
    print_message("%s%-24s rel rms %.2e of %.0e, max abs %.2e of %.0e\n", o->prefix, what,
                  e.rel_rms, REL_RMS, e.max_abs, MAX_ABS);
    assert_true(e.rel_rms <= REL_RMS && e.max_abs <= MAX_ABS);
}

/* ---- DFlash ---- */

static void check_dflash(const char *file, const char *rule, int64_t n, int64_t block)
{
    struct open o;
    char name[64];
    int64_t k;
    open_case(&o, "dflash_gemma4", file, rule, n, block);
    const int64_t v = o.d.g.info.n_vocab, m = o.d.info.most;
    assert_string_equal(o.d.kind->kind, "dflash");
    assert_int_equal(m, block - 1);
    float *got = mem_calloc((size_t)(m * v), sizeof *got);
    int32_t *token = mem_calloc((size_t)m, sizeof *token), *seed = ints(&o, "block", &k);
    snprintf(name, sizeof name, "%s.logits", rule ? rule : "causal");
    float *want = floats(&o, name, &k);
    assert_int_equal(k, block * v);
    snprintf(name, sizeof name, "%s.draft", rule ? rule : "causal");
    int32_t *draft = ints(&o, name, &k);
    for (uint32_t pieces = 0; pieces < 2; pieces++) {
        observe(&o.d, 0, n, pieces * 7);
        drafter_round(&o.d,
                      &(struct drafter_round){
                          .n = 1, .anchor = seed, .n_drafts = m, .token = token, .logits = got});
        hold(&o, rule ? rule : "as the file says", got, want + v, m * v);
        assert_memory_equal(token, draft, (size_t)m * sizeof *token);
    }
    void *const all[] = {got, token, seed, want, draft};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    drafter_close(&o.d);
}

static void dflash(void **state)
{
    (void)state;
    static const char *const rules[] = {NULL, "causal", "window", "bidir"};
    static const int64_t lengths[] = {1, 9, 33, 100};
    for (size_t r = 0; r < 4; r++)
        for (size_t i = 0; i < 4; i++)
            check_dflash(files[(r + i) % 2], rules[r], lengths[i], (i + r) % 3 ? 16 : 8);
    check_dflash(files[1], NULL, 100, 16);
    check_dflash(files[0], NULL, 100, 16);
}

/* ---- DFlash2 ---- */

static void check_dflash2(const char *file, const char *rule, int64_t n, int64_t block)
{
    struct open o;
    char name[64];
    int64_t k, n_top;
    open_case(&o, "dflash2_gemma4", file, rule, n, block);
    const int64_t v = o.d.g.info.n_vocab, m = o.d.info.most;
    assert_string_equal(o.d.kind->kind, "dflash2");
    float *got = mem_calloc((size_t)(m * v), sizeof *got);
    int32_t *token = mem_calloc((size_t)m, sizeof *token), *seed = ints(&o, "block", &k);
    snprintf(name, sizeof name, "%s.path", rule ? rule : "block");
    int32_t *path = ints(&o, name, &k);
    assert_int_equal(k, m);
    snprintf(name, sizeof name, "%s.candidates", rule ? rule : "block");
    int32_t *cand = ints(&o, name, &k);
    n_top = k / m;
    observe(&o.d, 0, n, n > 20 ? 5 : 0);
    drafter_round(&o.d, &(struct drafter_round){
                            .n = 1, .anchor = seed, .n_drafts = m, .token = token, .logits = got});
    assert_memory_equal(token, path, (size_t)m * sizeof *token);
    if (block == 8) {
        snprintf(name, sizeof name, "%s.scores", rule ? rule : "block");
        float *scores = floats(&o, name, &k),
              *walked = mem_calloc((size_t)(m * n_top), sizeof *walked);
        float *want = mem_calloc((size_t)(m * n_top), sizeof *want);
        for (int64_t j = 0, before = 0; j < m; j++) {
            for (int64_t c = 0; c < n_top; c++) {
                want[j * n_top + c] = scores[(j * n_top + before) * n_top + c];
                walked[j * n_top + c] = got[j * v + cand[j * n_top + c]];
            }
            int64_t others = 0;
            for (int64_t t = 0; t < v; t++)
                others += got[j * v + t] > -1e29f;
            assert_int_equal(others, n_top); /* nothing else is drawn */
            for (int64_t c = 0; c < n_top; c++)
                before = cand[j * n_top + c] == path[j] ? c : before;
        }
        hold(&o, rule ? rule : "as the file says", walked, want, m * n_top);
        mem_free(scores);
        mem_free(walked);
        mem_free(want);
    }
    void *const all[] = {got, token, seed, path, cand};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    drafter_close(&o.d);
}

static void dflash2(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 9, 60};
    for (size_t i = 0; i < 3; i++)
        for (size_t f = 0; f < 2; f++) {
            check_dflash2(files[f], NULL, lengths[i], 8);
            check_dflash2(files[f], "causal", lengths[i], f ? 5 : 8);
        }
    check_dflash2(files[0], "block", 9, 5);
}

/* ---- DSpark ---- */

static void check_dspark(const char *file, const char *rule, int64_t n, int64_t block)
{
    struct open o;
    char name[64];
    int64_t k;
    open_case(&o, "dspark_gemma4", file, rule, n, block);
    const int64_t v = o.d.g.info.n_vocab, m = o.d.info.most;
    const char *is = rule ? rule : "cap";
    assert_string_equal(o.d.kind->kind, "dspark");
    assert_true(m == block && o.d.info.confidence);
    float *got = mem_calloc((size_t)(m * v), sizeof *got),
          *sure = mem_calloc((size_t)m, sizeof *sure);
    int32_t *token = mem_calloc((size_t)m, sizeof *token), *seed = ints(&o, "block", &k);
    snprintf(name, sizeof name, "%s.tokens", is);
    int32_t *want = ints(&o, name, &k);
    snprintf(name, sizeof name, "%s.confidence", is);
    float *confidence = floats(&o, name, &k);
    observe(&o.d, 0, n, n > 20 ? 3 : 0);
    drafter_round(&o.d, &(struct drafter_round){.n = 1,
                                                .anchor = seed,
                                                .n_drafts = m,
                                                .token = token,
                                                .logits = got,
                                                .confidence = sure});
    assert_memory_equal(token, want, (size_t)m * sizeof *token);
    for (int64_t j = 0; j < m; j++)
        assert_true(fabs((double)sure[j] - (double)confidence[j]) <= SURE);
    if (block == 7) {
        snprintf(name, sizeof name, "%s.logits", is);
        float *logits = floats(&o, name, &k);
        hold(&o, rule ? rule : "as the file says", got, logits, m * v);
        mem_free(logits);
    }
    if (block == 7 && !strcmp(is, "cap")) {
        int32_t *forced = ints(&o, "forced.tokens", &k);
        float *logits = floats(&o, "cap.forced.logits", &k),
              *other = floats(&o, "cap.forced.confidence", &k);
        drafter_round(&o.d, &(struct drafter_round){.n = 1,
                                                    .anchor = seed,
                                                    .forced = forced,
                                                    .n_drafts = m,
                                                    .logits = got,
                                                    .confidence = sure});
        hold(&o, "after prescribed tokens", got, logits, m * v);
        for (int64_t j = 0; j < m; j++)
            assert_true(fabs((double)sure[j] - (double)other[j]) <= SURE);
        mem_free(forced);
        mem_free(logits);
        mem_free(other);
    }
    void *const all[] = {got, sure, token, seed, want, confidence};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    drafter_close(&o.d);
}

static void dspark(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 9, 40};
    for (size_t i = 0; i < 3; i++)
        for (size_t f = 0; f < 2; f++) {
            check_dspark(files[f], NULL, lengths[i], 7);
            check_dspark(files[f], "plain", lengths[i], 7);
            check_dspark(files[f], f ? "plain" : NULL, lengths[i], 4);
        }
}

/* ---- rounds ---- */

/* Several timelines of different lengths in one round, fewer drafts of some rows at once: the same
 * bits.  So are those of a shorter round where the block is run as a whole; else the first masks
 * are run alone, and other logits come out.  Beside a long context, blocks of short ones are
 * attended to in another way than alone. */
static void check_batch(const char *dir, int64_t longest, bool whole)
{
    const int64_t lengths[3] = {longest, 1, 9};
    struct open o;
    open_case(&o, dir, "model-F32.gguf", NULL, longest, 0);
    const int64_t v = o.d.g.info.n_vocab, m = o.d.info.most;
    float *one = mem_calloc((size_t)(3 * m * v), sizeof *one),
          *all = mem_calloc((size_t)(3 * m * v), sizeof *all);
    const int32_t anchor[3] = {17, 300, 45};
    int32_t token[2][3 * DRAFTER_CTX];
    for (int i = 0; i < 3; i++) {
        observe(&o.d, 0, lengths[i], 0);
        drafter_round(&o.d, &(struct drafter_round){.n = 1,
                                                    .anchor = anchor + i,
                                                    .n_drafts = m,
                                                    .token = token[0] + i * m,
                                                    .logits = one + i * m * v});
    }
    for (int i = 0; i < 3; i++)
        observe(&o.d, i, lengths[i], 11);
    drafter_round(&o.d,
                  &(struct drafter_round){
                      .n = 3, .anchor = anchor, .n_drafts = m, .token = token[1], .logits = all});
    assert_memory_equal(token[0], token[1], (size_t)(3 * m) * sizeof **token);
    assert_memory_equal(one, all, (size_t)(3 * m * v) * sizeof *one);
    /* one whose context begins later: others are attended to row by row beside it */
    const int64_t from[3] = {5, 0, 0};
    drafter_round(&o.d, &(struct drafter_round){.n = 3,
                                                .anchor = anchor,
                                                .from = from,
                                                .n_drafts = m,
                                                .token = token[1],
                                                .logits = all});
    assert_memory_equal(one + m * v, all + m * v, (size_t)(2 * m * v) * sizeof *one);
    assert_memory_not_equal(one, all, (size_t)(m * v) * sizeof *one);
    drafter_round(&o.d,
                  &(struct drafter_round){
                      .n = 3, .anchor = anchor, .n_drafts = 2, .token = token[1], .logits = all});
    for (int i = 0; i < 3; i++) {
        const struct golden_error e = golden_compare(all + i * 2 * v, one + i * m * v, 2 * v);
        assert_true(whole ? e.max_abs <= 0 : e.max_abs > 0 && isfinite(e.max_abs));
    }
    mem_free(one);
    mem_free(all);
    drafter_close(&o.d);
}

static void rounds_share_a_step(void **state)
{
    (void)state;
    static const char *const dirs[] = {"dflash_gemma4", "dflash2_gemma4", "dspark_gemma4"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        check_batch(dirs[i], 33, i > 0);
        check_batch(dirs[i], 600, i > 0);
    }
}

/* What lies before `from` has no influence, an empty context is one, and a limit on the context is
 * such a `from`. */
static void check_interval(const char *dir)
{
    struct open o;
    struct err e;
    int64_t n_ids;
    open_case(&o, dir, "model-F32.gguf", NULL, 60, 0);
    const int64_t v = o.d.g.info.n_vocab, m = o.d.info.most;
    int32_t *ids = golden_ints(o.ref, "input_ids", &n_ids);
    float *a = mem_calloc((size_t)(m * v), sizeof *a), *b = mem_calloc((size_t)(m * v), sizeof *b);
    for (int64_t from = 40; from <= 60; from += 10) {
        for (int which = 0; which < 2; which++) {
            const int64_t width = o.d.g.info.n_embd;
            drafter_rewind(&o.d, 0, 0);
            for (int64_t layer = 0; layer <= o.d.g.info.n_layers; layer++)
                for (int64_t i = 0; i < from * width; i++) /* what another text left behind */
                    o.d.taps[layer * DRAFTER_CTX * width + i] =
                        which ? 0.25f * (float)(i % 11) : 1.0f;
            drafter_observe(&o.d, 0, 60);
            drafter_round(&o.d, &(struct drafter_round){.n = 1,
                                                        .anchor = &ids[59],
                                                        .from = &from,
                                                        .n_drafts = m,
                                                        .logits = which ? b : a});
        }
        assert_memory_equal(a, b, (size_t)(m * v) * sizeof *a);
        for (int64_t i = 0; i < m * v; i++)
            assert_true(isfinite(a[i]));
    }
    drafter_close(&o.d);
    open_case(&o, dir, "model-F32.gguf", NULL, 60, 0);
    const int64_t from = 40;
    drafter_observe(&o.d, 0, 60);
    drafter_round(&o.d, &(struct drafter_round){
                            .n = 1, .anchor = &ids[59], .from = &from, .n_drafts = m, .logits = a});
    GOLDEN_OK(
        o.d.kind->set(o.d.self, &(struct family_draft_options){.context = 20}, &o.d.info, &e));
    drafter_round(&o.d,
                  &(struct drafter_round){.n = 1, .anchor = &ids[59], .n_drafts = m, .logits = b});
    assert_memory_equal(a, b, (size_t)(m * v) * sizeof *a);
    mem_free(ids);
    mem_free(a);
    mem_free(b);
    drafter_close(&o.d);
}

static void context_has_a_beginning(void **state)
{
    (void)state;
    check_interval("dflash_gemma4");
    check_interval("dflash2_gemma4");
    check_interval("dspark_gemma4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dflash),
        cmocka_unit_test(dflash2),
        cmocka_unit_test(dspark),
        cmocka_unit_test(rounds_share_a_step),
        cmocka_unit_test(context_has_a_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
