/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mtp_files - drafters that draft token by token, and those of DeepSeek V4: the dialects of GGUF
 * draft in equal bits, and files that match by half are refused.
 */
#define _POSIX_C_SOURCE 200809L
#include "golden/rewrite.h"
#include "golden/round.h"

#include "base/mem.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDENS "tests/data/goldens/"
#define GEMMA GOLDENS "gemma4_dense/model-F32.gguf"
#define DENSE GOLDENS "gemma4_assistant_dense/model-F32.gguf"
#define ORDERED GOLDENS "gemma4_assistant_ordered/model-F32.gguf"
#define V4 GOLDENS "deepseek_v4_full"
#define SPARK GOLDENS "dspark_v4/model-F32.gguf"

enum { CTX = 128, N = 60, DRAFTS = 4 };

static char path[64];

static int make_file(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/ingle-mtp-XXXXXX");
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

/* What a file drafts behind some tokens; freed by mem_free(). */
static float *drafts(const char *target, const char *file, const char *kind)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    int32_t tokens[N + 1];
    golden_open(
        &g, target,
        &(struct golden_options){.n_ctx = CTX, .max_rows = 64, .draft = true, .draft_file = file});
    assert_string_equal(g.draft_kind->kind, kind);
    for (int i = 0; i <= N; i++)
        tokens[i] = (i * 37 + 5) % (int32_t)g.info.n_vocab;
    float *out = mem_calloc((size_t)(DRAFTS * g.info.n_vocab), sizeof *out);
    GOLDEN_OK(session_create(&s, g.runner, &e));
    round_context(&g, s, tokens, N, 3);
    round_run(&g, s, &(struct round){.n = DRAFTS, .logits = out});
    session_free(s);
    golden_close(&g);
    return out;
}

static void same(const char *target, const char *file, const char *kind, const struct rewrite *r,
                 int64_t n_vocab)
{
    float *want = drafts(target, file, kind), *got;
    rewrite_gguf(file, path, r);
    got = drafts(target, path, kind);
    assert_memory_equal(got, want, (size_t)(DRAFTS * n_vocab) * sizeof *got);
    mem_free(want);
    mem_free(got);
}

static void refused(const char *target, const char *file, const struct rewrite *r, const char *part)
{
    struct golden_model g;
    rewrite_gguf(file, path, r);
    golden_open(&g, target,
                &(struct golden_options){.n_ctx = CTX,
                                         .max_rows = 64,
                                         .draft = true,
                                         .draft_file = path,
                                         .draft_refused = part});
    golden_close(&g);
}

static void assistants(void **state)
{
    (void)state;
    static const struct rewrite_name keys[] = {{"embedding_length_out", "n_embd_backbone"},
                                               {NULL, NULL}};
    static const struct rewrite_name names[] = {
        {"nextn.pre_projection.weight", "mtp.pre_projection.weight"},
        {"nextn.post_projection.weight", "mtp.post_projection.weight"},
        {"masked_embd_centroids.weight", "mtp.centroids.weight"},
        {"masked_embd_ordering", "mtp.token_ordering"},
        {NULL, NULL}};
    static const struct rewrite_name bare[] = {
        {"masked_embd_centroids.weight", "mtp.centroids"},
        {"masked_embd_ordering", "masked_embd_ordering.weight"},
        {NULL, NULL}};
    const struct rewrite underscore = {"gemma4_assistant", keys, names, NULL},
                         plain = {"gemma4", NULL, bare, NULL};
    const char *const files[] = {DENSE, ORDERED};
    for (int i = 0; i < 2; i++) {
        same(GEMMA, files[i], "mtp", &underscore, 512);
        same(GEMMA, files[i], "mtp", &plain, 512);
    }
    /* A writer that drops the clusters leaves the exact head. */
    static const struct rewrite_name dropped[] = {
        {"masked_embd_centroids.weight", NULL}, {"masked_embd_ordering", NULL}, {NULL, NULL}};
    rewrite_gguf(ORDERED, path, &(struct rewrite){NULL, NULL, dropped, NULL});
    mem_free(drafts(GEMMA, path, "mtp"));
}

static void assistants_by_half(void **state)
{
    (void)state;
    static const struct rewrite_name head[] = {{"token_embd.weight", NULL}, {NULL, NULL}},
                                     order[] = {{"masked_embd_ordering", NULL}, {NULL, NULL}};
    static const struct rewrite_name norm[] = {{"blk.2.attn_q_norm.weight", NULL}, {NULL, NULL}},
                                     rope[] = {{"rope_freqs.weight", NULL}, {NULL, NULL}};
    refused(GEMMA, DENSE, &(struct rewrite){NULL, NULL, head, NULL},
            "'token_embd.weight', the assistant's head, is missing");
    refused(GEMMA, ORDERED, &(struct rewrite){NULL, NULL, order, NULL}, "masked_embd_ordering");
    refused(GEMMA, DENSE, &(struct rewrite){NULL, NULL, norm, NULL}, "blk.2.attn_q_norm.weight");
    refused(GEMMA, DENSE, &(struct rewrite){NULL, NULL, rope, NULL}, "rope_freqs.weight");
    refused(GEMMA, DENSE, &(struct rewrite){NULL, NULL, NULL, "attention.sliding_window"},
            "attention.sliding_window' is 23, but the target's window is 24");
    refused(GEMMA, ORDERED, &(struct rewrite){NULL, NULL, NULL, "n_centroids"}, "centroids");
    refused(GEMMA, DENSE, &(struct rewrite){NULL, NULL, NULL, "attention.shared_kv_layers"},
            "'attention.shared_kv_layers' is 3 of 4 layers");
}

static void stages(void **state)
{
    (void)state;
    static const struct rewrite_name keys[] = {{"target_layers", "target_layer_ids"}, {NULL, NULL}};
    static const struct rewrite_name names[] = {
        {"fc.weight", "dflash.fc.weight"},
        {"enc.output_norm.weight", "dflash.hidden_norm.weight"},
        {"markov_w1.weight", "dflash.dspark.markov.w1"},
        {"markov_w2.weight", "dflash.dspark.markov.w2"},
        {"conf_proj.weight", "dflash.dspark.confidence.weight"},
        {NULL, NULL}};
    same(V4, SPARK, "dspark",
         &(struct rewrite){"deepseek4-dflash-draft", keys, names, "target_layer_ids"}, 320);
    same(V4, SPARK, "dspark", &(struct rewrite){NULL, keys, NULL, "target_layer_ids"}, 320);
}

static void stages_by_half(void **state)
{
    (void)state;
    static const struct rewrite_name other[] = {{"markov_w1.weight", "markov_head.embed.weight"},
                                                {NULL, NULL}};
    static const struct rewrite_name no_fc[] = {{"fc.weight", NULL}, {NULL, NULL}},
                                     no_chain[] = {{"markov_w1.weight", NULL}, {NULL, NULL}};
    static const struct rewrite_name block[] = {{"conf_proj.weight", "mtp.0.e_proj.weight"},
                                                {NULL, NULL}};
    refused(V4, SPARK, &(struct rewrite){NULL, NULL, other, NULL}, "V4.1");
    refused(V4, SPARK, &(struct rewrite){NULL, NULL, no_fc, NULL},
            "'fc.weight' (main_proj) is missing");
    refused(V4, SPARK, &(struct rewrite){NULL, NULL, no_chain, NULL},
            "'markov_w1.weight' is missing");
    refused(V4, SPARK, &(struct rewrite){NULL, NULL, block, NULL}, "a draft block of one token");
    refused(V4, SPARK, &(struct rewrite){NULL, NULL, NULL, "attention.head_count_kv"},
            "head_count_kv");
    refused(V4, SPARK, &(struct rewrite){NULL, NULL, NULL, "hyper_connection.count"},
            "'dflash.hyper_connection.count' is 3, but the target's streams are 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(assistants, make_file, remove_file),
        cmocka_unit_test_setup_teardown(assistants_by_half, make_file, remove_file),
        cmocka_unit_test_setup_teardown(stages, make_file, remove_file),
        cmocka_unit_test_setup_teardown(stages_by_half, make_file, remove_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
