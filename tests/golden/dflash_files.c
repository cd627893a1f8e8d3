/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dflash_files - files of drafters of blocks: the dialects of GGUF and of config.json give the
 * reference's logits, and what does not fit a target is refused by an error with field, value and
 * what would fit.
 */
#define _POSIX_C_SOURCE 200809L
#include "golden/drafter.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "family/draft/dflash.h"
#include "family/draft/dflash_file.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TARGET "tests/data/goldens/gemma4_dense/model-F32.gguf"
#define V4 "tests/data/nano-v4/nano-v4-MXFP4.gguf"
#define DIR "tests/data/goldens/dflash_gemma4/"
#define SPARK "tests/data/goldens/dspark_gemma4/"

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/ingle-dflash-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    static const char *const names[] = {"model.gguf", "config.json", "model.safetensors"};
    char path[128];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        unlink(path);
    }
    return rmdir(root);
}

static const char *in_root(const char *name, char out[128])
{
    snprintf(out, 128, "%s/%s", root, name);
    return out;
}

/* ---- the reference's logits ---- */

/* The first draft rows of dflash_gemma4 with 33 positions and a block of 16; tokens: of these
 * alone, or NULL: all. */
static void hold(const char *path, const char *rule, const int32_t *tokens, int64_t n_tokens,
                 const char *kind)
{
    struct drafter d;
    char name[64];
    int64_t n, k;
    snprintf(name, sizeof name, "n33.b16.%s.logits", rule);
    int32_t *ids = golden_ints(DIR "golden.safetensors", "input_ids", &n),
            *block = golden_ints(DIR "golden.safetensors", "n33.b16.block", &k);
    float *want = golden_floats(DIR "golden.safetensors", name, &k);
    drafter_open(&d, TARGET, path, &(struct drafter_options){0});
    assert_string_equal(d.kind->kind, kind);
    assert_int_equal(d.info.most, 15);
    const int64_t v = d.g.info.n_vocab;
    float *got = mem_calloc((size_t)(15 * v), sizeof *got);
    drafter_target(&d, ids, 33);
    drafter_observe(&d, 0, 20);
    drafter_observe(&d, 0, 13);
    drafter_round(&d,
                  &(struct drafter_round){.n = 1, .anchor = block, .n_drafts = 15, .logits = got});
    for (int64_t j = 0; tokens && j < 15; j++)
        for (int64_t t = 0, at = 0; t < v; t++) {
            const bool listed = at < n_tokens && tokens[at] == t;
            at += listed;
            assert_true(listed || got[j * v + t] < -1e29f);
            if (!listed)
                got[j * v + t] = want[(j + 1) * v + t];
        }
    const struct golden_error e = golden_compare(got, want + v, 15 * v);
    print_message("%-12s rel rms %.2e\n", rule, e.rel_rms);
    assert_true(e.rel_rms <= 4e-6 && e.max_abs <= 2e-4);
    void *const all[] = {ids, block, want, got};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    drafter_close(&d);
}

/* ---- GGUF files ---- */

struct bytes { char at[1 << 14]; size_t n; uint64_t keys; };

static void put(struct bytes *b, const void *p, size_t n)
{
    assert_true(n <= sizeof b->at - b->n);
    memcpy(b->at + b->n, p, n);
    b->n += n;
}

static void put32(struct bytes *b, uint32_t v) { put(b, &v, 4); }
static void put64(struct bytes *b, uint64_t v) { put(b, &v, 8); }

static void put_name(struct bytes *b, const char *s)
{
    put64(b, strlen(s));
    put(b, s, strlen(s));
}

enum { U32 = 4, F32 = 6, BOOL = 7, STR = 8, ARRAY = 9 };

static void key(struct bytes *b, const char *arch, const char *name, uint32_t type)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s%s", arch, *arch ? "." : "", name);
    put_name(b, full);
    put32(b, type);
    b->keys++;
}

static void whole(struct bytes *b, const char *arch, const char *name, uint32_t v)
{
    key(b, arch, name, U32);
    put32(b, v);
}

static void number(struct bytes *b, const char *arch, const char *name, float v)
{
    key(b, arch, name, F32);
    put(b, &v, 4);
}

static void flag(struct bytes *b, const char *arch, const char *name, bool v)
{
    key(b, arch, name, BOOL);
    put(b, &(uint8_t){v}, 1);
}

/* A name of llama.cpp's as a dialect has it. */
typedef const char *dialect_fn(const char *name, char out[96]);

static const char *of_beellama(const char *name, char out[96])
{
    const char *norm = strstr(name, ".ffn_norm.weight");
    snprintf(out, 96, "%s",
             !strcmp(name, "fc.weight")                ? "dflash_fc.weight"
             : !strcmp(name, "enc.output_norm.weight") ? "dflash_hidden_norm.weight"
                                                       : name);
    if (norm)
        snprintf(out, 96, "%.*s.post_attention_norm.weight", (int)(norm - name), name);
    return out;
}

static const char *with_gates(const char *name, char out[96])
{
    snprintf(out, 96, "%s", !strcmp(name, "blk.1.attn_v.weight") ? "blk.1.attn_gate.weight" : name);
    return out;
}

static const char *of_lucebox(const char *name, char out[96])
{
    snprintf(out, 96, "%s",
             !strcmp(name, "fc.weight")                ? "dflash.fc.weight"
             : !strcmp(name, "enc.output_norm.weight") ? "dflash.hidden_norm.weight"
                                                       : name);
    return out;
}

static const char *of_checkpoint(const char *name, char out[96])
{
    if (!family_dflash_rename(name, out, 96))
        snprintf(out, 96, "%s", name);
    const char *norm = strstr(out, ".post_attention_norm.weight");
    if (norm)
        snprintf(out + (norm - out), (size_t)(96 - (norm - out)), ".ffn_norm.weight");
    return out;
}

/* d2t: what that tensor has in place of the file's, or NULL. */
static void write_gguf(const char *path, const struct bytes *keys, const char *from,
                       dialect_fn *dialect, const int64_t *d2t)
{
    struct err e;
    struct io_file *f;
    char name[96];
    static struct bytes head;
    uint64_t at = 0;
    head = (struct bytes){.n = 0};
    GOLDEN_OK(io_open(&f, from, NULL, &e));
    put(&head, "GGUF", 4);
    put32(&head, 3);
    put64(&head, io_n_tensors(f));
    put64(&head, keys->keys);
    put(&head, keys->at, keys->n);
    for (size_t i = 0; i < io_n_tensors(f); i++) {
        const struct io_tensor *t = io_tensor_at(f, i);
        put_name(&head, dialect(t->name, name));
        put32(&head, t->n_dims);
        for (uint32_t k = 0; k < t->n_dims; k++)
            put64(&head, t->ne[k]);
        put32(&head, t->type);
        put64(&head, at);
        at += (t->n_bytes + 31) / 32 * 32;
    }
    while (head.n % 32)
        put(&head, "", 1);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(head.at, 1, head.n, to), head.n);
    for (size_t i = 0; i < io_n_tensors(f); i++) {
        const struct io_tensor *t = io_tensor_at(f, i);
        const size_t n = (t->n_bytes + 31) / 32 * 32;
        char *data = mem_calloc(n, 1);
        GOLDEN_OK(io_read(f, t, 0, data, t->n_bytes, &e));
        if (d2t && !strcmp(t->name, "d2t"))
            memcpy(data, d2t, t->n_bytes);
        assert_int_equal(fwrite(data, 1, n, to), n);
        mem_free(data);
    }
    assert_int_equal(fclose(to), 0);
    io_close(f);
}

static void shape_keys(struct bytes *b, const char *arch)
{
    key(b, "", "general.architecture", STR);
    put_name(b, arch);
    whole(b, arch, "block_count", 5);
    whole(b, arch, "context_length", 4096);
    whole(b, arch, "embedding_length", 64);
    whole(b, arch, "feed_forward_length", 96);
    whole(b, arch, "attention.head_count", 8);
    whole(b, arch, "attention.head_count_kv", 2);
    whole(b, arch, "attention.key_length", 16);
    whole(b, arch, "attention.value_length", 16);
    whole(b, arch, "attention.sliding_window", 32);
    number(b, arch, "attention.layer_norm_rms_epsilon", 1e-6f);
    number(b, arch, "rope.freq_base", 1e6f);
}

static void tap_key(struct bytes *b, const char *arch, const char *name, const uint32_t tap[3])
{
    key(b, arch, name, ARRAY);
    put32(b, U32);
    put64(b, 3);
    for (int i = 0; i < 3; i++)
        put32(b, tap[i]);
}

static const uint32_t after[3] = {1, 5, 9}, before[3] = {2, 6, 10};

static void gguf_of_beellama(void **state)
{
    (void)state;
    char path[128];
    static const char arch[] = "dflash-draft";
    struct bytes b = {.n = 0};
    shape_keys(&b, arch);
    whole(&b, arch, "rope.dimension_count", 16);
    whole(&b, arch, "dflash.block_size", 16);
    whole(&b, arch, "dflash.mask_token_id", 4);
    whole(&b, arch, "dflash.n_target_features", 192);
    tap_key(&b, arch, "dflash.target_layer_ids", after);
    flag(&b, arch, "attention.causal", false);
    key(&b, arch, "attention.sliding_window_pattern", ARRAY);
    put32(&b, BOOL);
    put64(&b, 5);
    put(&b, "\1\1\1\1\0", 5);
    write_gguf(in_root("model.gguf", path), &b, DIR "model-F32.gguf", of_beellama, NULL);
    hold(path, "window", NULL, 0, "dflash"); /* it says that it is not causal */
}

static void gguf_of_lucebox(void **state)
{
    (void)state;
    char path[128];
    for (int i = 0; i < 4; i++) {
        const char *arch = i % 2 ? "gemma4-dflash-draft" : "qwen35-dflash-draft";
        struct bytes b = {.n = 0};
        shape_keys(&b, arch);
        whole(&b, arch, "vocab_size", 512);
        flag(&b, arch, "tie_word_embeddings", true);
        /* one script writes the number of taps there */
        whole(&b, arch, "dflash.n_target_layers", i % 2 ? 12 : 3);
        whole(&b, arch, "dflash.block_size", 16);
        whole(&b, arch, "dflash.mask_token_id", 4);
        if (i < 2)
            tap_key(&b, arch, "dflash.target_layer_ids",
                    after); /* else: those that the network's makers use */
        write_gguf(in_root("model.gguf", path), &b, DIR "model-F32.gguf", of_lucebox, NULL);
        hold(path, "causal", NULL, 0, "dflash");
    }
}

/* The factor of embeddings: absent, 1 (a copy of the config's), 0 and the target's own mean the
 * same. */
static void factor_of_embeddings(void **state)
{
    (void)state;
    static const float said[] = {-1, 0, 1, 8, 8.03f};
    char path[128];
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        struct bytes b = {.n = 0};
        shape_keys(&b, "dflash");
        whole(&b, "dflash", "block_size", 16);
        whole(&b, "", "tokenizer.ggml.mask_token_id", 4);
        tap_key(&b, "dflash", "target_layers", before);
        if (said[i] >= 0)
            number(&b, "dflash", "embedding_scale", said[i]);
        write_gguf(in_root("model.gguf", path), &b, DIR "model-F32.gguf", of_lucebox, NULL);
        if (said[i] <= 8)
            hold(path, "causal", NULL, 0, "dflash");
    }
}

/* ---- checkpoints ---- */

static void replace(char *text, size_t n_text, const char *from, const char *to)
{
    char *at = strstr(text, from);
    if (!at)
        fail_msg("config.json has no %s", from);
    assert_true(strlen(text) + strlen(to) < n_text);
    memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
    memcpy(at, to, strlen(to));
}

/* A checkpoint in the root: the config of `dir` with changes, and its tensors or (weights)
 * others. */
static const char *checkpoint(const char *dir, const char *const change[][2], size_t n,
                              bool weights)
{
    struct err e;
    char path[128], from[256], cwd[128], text[8192], *bytes;
    size_t n_bytes;
    snprintf(from, sizeof from, "%sconfig.json", dir);
    GOLDEN_OK(file_slurp(from, 1 << 16, &bytes, &n_bytes, &e));
    assert_true(n_bytes < sizeof text);
    memcpy(text, bytes, n_bytes);
    text[n_bytes] = 0;
    mem_free(bytes);
    for (size_t i = 0; i < n; i++)
        replace(text, sizeof text, change[i][0], change[i][1]);
    FILE *f = fopen(in_root("config.json", path), "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && !fclose(f));
    if (!weights) {
        assert_non_null(getcwd(cwd, sizeof cwd));
        snprintf(from, sizeof from, "%s/%smodel.safetensors", cwd, dir);
        unlink(in_root("model.safetensors", path));
        assert_int_equal(symlink(from, path), 0);
    }
    return root;
}

#define CHECKPOINT(dir, ...)                                                                       \
    checkpoint(dir, (const char *const[][2]){__VA_ARGS__},                                         \
               sizeof((const char *const[][2]){__VA_ARGS__}) / sizeof(const char *[2]), false)

static void configs(void **state)
{
    (void)state;
    hold(CHECKPOINT(DIR,
                    {"\"target_layer_ids\": [\n   1,\n   5,\n   9\n  ]", "\"is_causal\": null"}),
         "causal", NULL, 0, "dflash");
    hold(CHECKPOINT(DIR, {"\"mask_token_id\": 4", "\"mask_token_id\": 4, \"is_causal\": false"}),
         "window", NULL, 0, "dflash");
    hold(CHECKPOINT(DIR, {"\"use_sliding_window\": true", "\"use_sliding_window\": false"}),
         "bidir", NULL, 0, "dflash");
    hold(
        CHECKPOINT(DIR, {"\"rope_theta\": 1000000.0",
                         "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e6}"}),
        "causal", NULL, 0, "dflash");
    hold(CHECKPOINT(DIR,
                    {"\"mask_token_id\": 4",
                     "\"mask_token_id\": 4, \"block_size\": 16, \"input_embedding_scale\": 1.0"},
                    {"\"block_size\": 16,", ""}),
         "causal", NULL, 0, "dflash");
}

/*
 * The "speculators" layout of DSpark: a nested config of a layer, taps by their inputs, a head of
 * fewer tokens (here every third) with distances instead of tokens, the first row unused.  With a
 * chain of zeros the logits are DFlash's.
 */
static void speculators(void **state)
{
    (void)state;
    enum { EVERY = 3, OUT = 512 / EVERY, RANK = 4 };
    struct err e;
    struct io_file *own, *target;
    struct io_writer *w;
    char path[128];
    int32_t tokens[OUT];
    int64_t d2t[OUT];
    float zero[512 * RANK] = {0}, head[OUT * 64];
    unlink(in_root("model.safetensors", path));
    GOLDEN_OK(io_open(&own, DIR, NULL, &e));
    GOLDEN_OK(io_open(&target, TARGET, NULL, &e));
    GOLDEN_OK(io_writer_create(&w, path, OUTPUT_ANY, &e));
    for (size_t i = 0; i < io_n_tensors(own); i++) {
        const struct io_tensor *t = io_tensor_at(own, i);
        void *data = mem_alloc(t->n_bytes);
        const uint64_t shape[2] = {t->n_dims > 1 ? t->ne[1] : t->ne[0], t->ne[0]};
        GOLDEN_OK(io_read(own, t, 0, data, t->n_bytes, &e));
        GOLDEN_OK(io_writer_add(w, t->name, QUANT_F32, t->n_dims, shape, data, t->n_bytes, &e));
        mem_free(data);
    }
    const struct io_tensor *embed = io_tensor_find(target, "token_embd.weight");
    for (int i = 0; i < OUT; i++) {
        tokens[i] = 2 + EVERY * i;
        d2t[i] = tokens[i] - i;
        GOLDEN_OK(io_read(target, embed, (uint64_t)tokens[i] * 256, head + i * 64, 256, &e));
    }
    GOLDEN_OK(io_writer_add(w, "lm_head.weight", QUANT_F32, 2, (const uint64_t[]){OUT, 64}, head,
                            sizeof head, &e));
    GOLDEN_OK(io_writer_add(w, "d2t", QUANT_I64, 1, (const uint64_t[]){OUT}, d2t, sizeof d2t, &e));
    GOLDEN_OK(io_writer_add(w, "markov_head.markov_w1.weight", QUANT_F32, 2,
                            (const uint64_t[]){512, RANK}, zero, sizeof zero, &e));
    GOLDEN_OK(io_writer_add(w, "markov_head.markov_w2.weight", QUANT_F32, 2,
                            (const uint64_t[]){OUT, RANK}, zero, OUT * RANK * sizeof *zero, &e));
    GOLDEN_OK(io_writer_close(w, &e));
    io_close(own);
    io_close(target);
    static const char *const change[][2] = {
        {"\"DFlashDraftModel\"\n ],",
         "\"DSparkSpeculator\"\n ],\n \"speculators_model_type\": \"dspark\", "
         "\"sample_from_anchor\": false, "
         "\"draft_vocab_size\": 170, \"markov_rank\": 4, \"block_size\": 16, \"mask_token_id\": 4, "
         "\"aux_hidden_state_layer_ids\": [2, 6, 10], \"transformer_layer_config\": {"},
        {"\"block_size\": 16,\n", ""},
        {"\"dflash_config\": {\n  \"mask_token_id\": 4,\n  \"target_layer_ids\": [\n   1,\n   5,\n "
         "  9\n  ]\n },",
         ""},
        {"\"vocab_size\": 512\n", "\"vocab_size\": 512}"},
    };
    hold(checkpoint(DIR, change, 4, true), "causal", tokens, OUT, "dspark");
    /* The same as a GGUF: tokens instead of distances. */
    char gguf[128];
    struct bytes b = {.n = 0};
    shape_keys(&b, "dflash");
    whole(&b, "dflash", "block_size", 16);
    flag(&b, "dflash", "sample_from_anchor", false);
    number(&b, "dflash", "final_logit_softcapping", 30);
    whole(&b, "", "tokenizer.ggml.mask_token_id", 4);
    tap_key(&b, "dflash", "target_layers", before);
    for (int i = 0; i < OUT; i++)
        d2t[i] = tokens[i];
    write_gguf(in_root("model.gguf", gguf), &b, root, of_checkpoint, d2t);
    hold(gguf, "causal", tokens, OUT, "dspark");
    unlink(path);
}

/* A shifted block without chain and confidence, as one published drafter for 12B is: its logits are
 * those before the chain's. */
static void without_chain(void **state)
{
    (void)state;
    struct err e;
    struct io_file *own;
    struct io_writer *w;
    struct drafter d;
    char path[128];
    int64_t n, k;
    unlink(in_root("model.safetensors", path));
    GOLDEN_OK(io_open(&own, SPARK, NULL, &e));
    GOLDEN_OK(io_writer_create(&w, path, OUTPUT_ANY, &e));
    for (size_t i = 0; i < io_n_tensors(own); i++) {
        const struct io_tensor *t = io_tensor_at(own, i);
        const uint64_t shape[2] = {t->n_dims > 1 ? t->ne[1] : t->ne[0], t->ne[0]};
        void *data = mem_alloc(t->n_bytes);
        GOLDEN_OK(io_read(own, t, 0, data, t->n_bytes, &e));
        if (strncmp(t->name, "markov", 6) != 0 && strncmp(t->name, "confidence", 10) != 0)
            GOLDEN_OK(io_writer_add(w, t->name, t->type, t->n_dims, shape, data, t->n_bytes, &e));
        mem_free(data);
    }
    io_close(own);
    GOLDEN_OK(io_writer_close(w, &e));
    static const char *const change[][2] = {
        {"\"enable_confidence_head\": true", "\"enable_confidence_head\": false"},
        {"\"markov_rank\": 16", "\"markov_rank\": 0"}};
    drafter_open(&d, TARGET, checkpoint(SPARK, change, 2, true), &(struct drafter_options){0});
    assert_string_equal(d.kind->kind, "dspark");
    assert_true(d.info.most == 7 && !d.info.confidence);
    int32_t *ids = golden_ints(SPARK "golden.safetensors", "input_ids", &n),
            *block = golden_ints(SPARK "golden.safetensors", "n40.b7.block", &k);
    float *want = golden_floats(SPARK "golden.safetensors", "n40.b7.cap.base", &k),
          *got = mem_calloc((size_t)k, sizeof *got);
    drafter_target(&d, ids, 40);
    drafter_observe(&d, 0, 40);
    drafter_round(&d,
                  &(struct drafter_round){.n = 1, .anchor = block, .n_drafts = 7, .logits = got});
    const struct golden_error r = golden_compare(got, want, k);
    print_message("without a chain: rel rms %.2e\n", r.rel_rms);
    assert_true(r.rel_rms <= 4e-6 && r.max_abs <= 2e-4);
    void *const all[] = {ids, block, want, got};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
    drafter_close(&d);
    unlink(path);
}

/* Codes of four bits in words, groups of 32 with a scale each, beside a checkpoint of the floats
 * that they stand for. */
static void put_codes(struct io_writer *coded, struct io_writer *plain, const struct io_tensor *t,
                      const float *w)
{
    struct err e;
    const uint64_t in = t->ne[0], out = t->ne[1], n = in * out;
    uint32_t *word = mem_calloc(n / 8, sizeof *word);
    float *scale = mem_calloc(n / 32, sizeof *scale), *decoded = mem_calloc(n, sizeof *decoded);
    char name[128];
    for (uint64_t g = 0; g < n / 32; g++) {
        float max = 1e-6f;
        for (int i = 0; i < 32; i++)
            max = fmaxf(max, fabsf(w[g * 32 + (uint64_t)i]));
        scale[g] = max / 7;
        for (uint64_t i = g * 32; i < g * 32 + 32; i++) {
            const int q = (int)rintf(w[i] / scale[g]);
            word[i / 8] |= (uint32_t)(q + 8) << i % 8 * 4;
            decoded[i] = (float)q * scale[g];
        }
    }
    const int base = (int)(strlen(t->name) - strlen(".weight"));
    snprintf(name, sizeof name, "%.*s.weight_packed", base, t->name);
    GOLDEN_OK(
        io_writer_add(coded, name, QUANT_I32, 2, (const uint64_t[]){out, in / 8}, word, n / 2, &e));
    snprintf(name, sizeof name, "%.*s.weight_scale", base, t->name);
    GOLDEN_OK(io_writer_add(coded, name, QUANT_F32, 2, (const uint64_t[]){out, in / 32}, scale,
                            n / 8, &e));
    snprintf(name, sizeof name, "%.*s.weight_shape", base, t->name);
    GOLDEN_OK(io_writer_add(coded, name, QUANT_I64, 1, (const uint64_t[]){2},
                            (const int64_t[]){(int64_t)out, (int64_t)in}, 16, &e));
    GOLDEN_OK(io_writer_add(plain, t->name, QUANT_F32, 2, (const uint64_t[]){out, in}, decoded,
                            n * 4, &e));
    mem_free(word);
    mem_free(scale);
    mem_free(decoded);
}

static void logits_of(const char *path, const struct family_draft_options *o, float *out)
{
    struct drafter d;
    int64_t n, k;
    int32_t *ids = golden_ints(DIR "golden.safetensors", "input_ids", &n),
            *block = golden_ints(DIR "golden.safetensors", "n33.b16.block", &k);
    drafter_open(&d, TARGET, path,
                 &(struct drafter_options){.target.numerics = DEVICE_REFERENCE, .draft = *o});
    drafter_target(&d, ids, 33);
    drafter_observe(&d, 0, 33);
    drafter_round(&d,
                  &(struct drafter_round){.n = 1, .anchor = block, .n_drafts = 15, .logits = out});
    drafter_close(&d);
    mem_free(ids);
    mem_free(block);
}

static void packed_codes(void **state)
{
    (void)state;
    struct err e;
    struct io_file *own;
    struct io_writer *coded, *plain;
    char path[128], other[128];
    snprintf(other, sizeof other, "%s/plain", root);
    assert_int_equal(mkdir(other, 0700), 0);
    unlink(in_root("model.safetensors", path));
    GOLDEN_OK(io_open(&own, DIR, NULL, &e));
    GOLDEN_OK(io_writer_create(&coded, path, OUTPUT_ANY, &e));
    snprintf(other, sizeof other, "%s/plain/model.safetensors", root);
    GOLDEN_OK(io_writer_create(&plain, other, OUTPUT_ANY, &e));
    for (size_t i = 0; i < io_n_tensors(own); i++) {
        const struct io_tensor *t = io_tensor_at(own, i);
        float *data = mem_alloc(t->n_bytes);
        GOLDEN_OK(io_read(own, t, 0, data, t->n_bytes, &e));
        if (t->n_dims == 2) {
            put_codes(coded, plain, t, data);
        } else {
            GOLDEN_OK(io_writer_add(coded, t->name, QUANT_F32, 1, t->ne, data, t->n_bytes, &e));
            GOLDEN_OK(io_writer_add(plain, t->name, QUANT_F32, 1, t->ne, data, t->n_bytes, &e));
        }
        mem_free(data);
    }
    io_close(own);
    GOLDEN_OK(io_writer_close(coded, &e));
    GOLDEN_OK(io_writer_close(plain, &e));
    static const char *const change[][2] = {
        {"\"dtype\"", "\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
                      "\"format\": \"pack-quantized\", \"config_groups\": "
                      "{\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", "
                      "\"strategy\": \"group\", \"group_size\": 32, \"symmetric\": true}, "
                      "\"targets\": [\"Linear\"]}}}, \"dtype\""},
    };
    static float got[15 * 512], want[15 * 512];
    const struct family_draft_options usual = {0};
    logits_of(checkpoint(DIR, change, 1, true), &usual, got);
    char keep[128];
    snprintf(keep, sizeof keep, "%s/plain/config.json", root);
    snprintf(other, sizeof other, "%s/plain", root);
    checkpoint(DIR, NULL, 0, true);
    assert_int_equal(rename(in_root("config.json", path), keep), 0);
    logits_of(other, &usual, want);
    const struct golden_error r = golden_compare(got, want, 15 * 512);
    print_message("packed codes beside their floats: rel rms %.2e\n", r.rel_rms);
    assert_true(r.rel_rms <= 2e-3); /* scales become halves */
    unlink(keep);
    snprintf(keep, sizeof keep, "%s/plain/model.safetensors", root);
    unlink(keep);
    assert_int_equal(rmdir(other), 0);
    unlink(in_root("model.safetensors", path));
}

/* ---- settings for experiments ---- */

static void refuse_setting(struct drafter *d, const struct family_draft_options *o,
                           const char *says)
{
    struct err e = {0};
    assert_int_equal(d->kind->set(d->self, o, &d->info, &e), INGLE_ARG);
    if (!strstr(e.msg, says))
        fail_msg("'%s' is not in: %s", says, e.msg);
}

static void settings(void **state)
{
    (void)state;
    static float late[15 * 512], upstream[15 * 512], early[15 * 512], same[15 * 512];
    logits_of(DIR, &(struct family_draft_options){.tap = FAMILY_DRAFT_TAP_AFTER}, late);
    logits_of(DIR, &(struct family_draft_options){.tap = FAMILY_DRAFT_TAP_UPSTREAM}, upstream);
    logits_of(DIR, &(struct family_draft_options){.tap = FAMILY_DRAFT_TAP_EARLY}, early);
    logits_of(CHECKPOINT(DIR, {"   1,\n   5,\n   9\n", "0, 4, 8"}),
              &(struct family_draft_options){.rule = "causal"}, same);
    assert_memory_equal(upstream, same, sizeof same);
    assert_true(golden_compare(early, late, 15 * 512).rel_rms > 0.01 &&
                golden_compare(upstream, late, 15 * 512).rel_rms > 0.01);
    logits_of(DIR, &(struct family_draft_options){.context = 33}, same);
    assert_memory_equal(late, same, sizeof same);
    logits_of(DIR, &(struct family_draft_options){.context = 5}, same);
    assert_true(golden_compare(same, late, 15 * 512).rel_rms > 0.01);
    struct drafter d;
    drafter_open(&d, TARGET, DIR, &(struct drafter_options){0});
    refuse_setting(&d, &(struct family_draft_options){.rule = "diagonal"},
                   "'diagonal': causal, window, bidir");
    refuse_setting(&d, &(struct family_draft_options){.block = 1},
                   "a block of 1 rows: expected 2 to 64");
    refuse_setting(&d, &(struct family_draft_options){.block = 65}, "a block of 65 rows");
    drafter_close(&d);
}

/* ---- what does not fit ---- */

static void unfit(void **state)
{
    (void)state;
    static const struct { const char *dir, *from, *to, *says;
    } all[] = {
        {DIR, "\"hidden_size\": 64", "\"hidden_size\": 128",
         "'hidden_size' is 128, but the target's width is 64"},
        {DIR, "\"vocab_size\": 512", "\"vocab_size\": 1000",
         "'vocab_size' is 1000, but the target's tokens are 512"},
        {DIR, "\"num_target_layers\": 12", "\"num_target_layers\": 60",
         "'num_target_layers' is 60, but the target's layers are 12"},
        {DIR, "   9\n", "   12\n", "'target_layer_ids' is 12, but the target's last layer is 11"},
        {DIR, "   5,\n", "", "has 2 layers, but tensor 'fc.weight' takes 3"},
        {DIR, "   9\n", "   -2\n", "'target_layer_ids' has -2"},
        {DIR, "\"mask_token_id\": 4", "\"mask_token_id\": 512", "'mask_token_id' is 512"},
        {DIR, "\"block_size\": 16", "\"block_size\": 1", "'block_size' is 1"},
        {DIR, "\"block_size\": 16", "\"block_size\": 100000", "block_size"},
        {DIR, "\"num_hidden_layers\": 5", "\"num_hidden_layers\": 100000",
         "'num_hidden_layers' is 100000"},
        {DIR, "\"num_attention_heads\": 8", "\"num_attention_heads\": 6",
         "q_proj.weight' is 64 x 128"},
        {DIR, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3",
         "8 query heads and 3 key heads"},
        {DIR, "\"hidden_act\": \"silu\"", "\"hidden_act\": \"relu\"", "supported are 'silu'"},
        {DIR, "\"rope_scaling\": null",
         "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}", "'rope_type' is 'yarn'"},
        {DIR, "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias"},
        {SPARK, "\"target_model_type\": \"gemma4\"", "\"target_model_type\": \"qwen3\"",
         "'target_model_type' is 'qwen3', but the target is gemma4"},
        {SPARK, "\"vanilla\"", "\"gated\"", "'markov_head_type' is 'gated'"},
        {SPARK, "\"markov_rank\": 16", "\"markov_rank\": 32",
         "'markov_w1.weight' has rank 16, expected 32"},
        {SPARK, "\"enable_moe_block\": false", "\"enable_moe_block\": true",
         "'enable_moe_block' is true"},
        {DIR, "DFlashDraftModel", "LlamaForCausalLMEagle3",
         "an EAGLE-3 drafter, which this version does not have: what fits"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        drafter_refused(TARGET, CHECKPOINT(all[i].dir, {all[i].from, all[i].to}), all[i].says);
    drafter_refused(V4, DIR, "the target is deepseek4");
    struct bytes b = {.n = 0};
    char path[128];
    shape_keys(&b, "dflash");
    whole(&b, "dflash", "block_size", 16);
    write_gguf(in_root("model.gguf", path), &b, DIR "model-F32.gguf", with_gates, NULL);
    drafter_refused(
        TARGET, path,
        "tensor 'blk.1.attn_gate.weight' is of a variant that this version does not have");
    drafter_refused("tests/data/goldens/gemma4_moe/model-F32.gguf", DIR,
                    "what fits this target is a drafter for gemma4");
    drafter_refused(TARGET, "tests/data/nano/nano-gemma4-dflash-Q8_0.gguf",
                    "'dflash.embedding_length' is 256, but the target's width is 64");
}

/* Every key of a file, absent and with values that nobody wrote: an error, or another network, and
 * never a crash. */
static void damaged_keys(void **state)
{
    (void)state;
    static const char *const files[] = {DIR "model-F32.gguf",
                                        "tests/data/goldens/dflash2_gemma4/model-F32.gguf",
                                        SPARK "model-F32.gguf"};
    static const uint32_t values[] = {0, 1, 3, 5, 0x7fffffff, 0x80000000, 0xffffffff};
    char path[128];
    int64_t refused = 0, bound = 0;
    struct golden_model target;
    golden_open(&target, TARGET, &(struct golden_options){0});
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        struct err e;
        char *bytes;
        size_t n;
        GOLDEN_OK(file_slurp(files[f], 1 << 24, &bytes, &n, &e));
        struct io_file *file;
        GOLDEN_OK(io_open(&file, files[f], NULL, &e));
        for (size_t i = 0; i < io_meta_count(io_metadata(file)); i++) {
            const struct io_value *v = io_meta_at(io_metadata(file), i);
            if (strncmp(v->key, "dflash.", 7) != 0 &&
                strcmp(v->key, "tokenizer.ggml.mask_token_id") != 0)
                continue;
            char *at = bytes;
            while (memcmp(at, v->key, strlen(v->key)) != 0 ||
                   memcmp(at - 8, &(uint64_t){strlen(v->key)}, 8) != 0)
                at++;
            char *number = at + strlen(v->key) + 4 + (v->kind == IO_ARRAY ? 12 : 0),
                 *place[2] = {at, number};
            for (size_t w = 0; w < 1 + sizeof values / sizeof *values; w++) {
                char old[4];
                memcpy(old, place[w > 0], 4);
                if (w > 0 && (v->kind == IO_STR || v->kind == IO_BOOL || v->elem == IO_BOOL))
                    continue;
                memcpy(place[w > 0], w ? (const char *)&values[w - 1] : "zzzz", 4);
                FILE *to = fopen(in_root("model.gguf", path), "wb");
                assert_true(to && fwrite(bytes, 1, n, to) == n && !fclose(to));
                struct err bad = {0};
                const bool ok = drafter_binds(&target, path, &bad);
                if (!ok && !strstr(bad.msg, "model.gguf"))
                    fail_msg("no file in: %s", bad.msg);
                bound += ok;
                refused += !ok;
                memcpy(place[w > 0], old, 4);
            }
        }
        io_close(file);
        mem_free(bytes);
    }
    golden_close(&target);
    print_message("%lld files refused, %lld are other networks\n", (long long)refused,
                  (long long)bound);
    assert_true(refused > 100);
}

/* One member of a config after the other with values of other kinds; nested members, too. */
struct damage {
    struct json_object *root, *o;
    const struct golden_model *target;
    int64_t refused, bound;
};

static void damage_member(struct damage *d, const char *key)
{
    static const char *const values[] = {
        "null",  "true", "-1",     "0",    "3",  "1e300",  "99999999999999999999",
        "\"x\"", "[]",   "[null]", "[{}]", "{}", "[1,2,3]"};
    char path[128];
    struct json_object *old = json_object_get(json_object_object_get(d->o, key));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct err e = {0};
        json_object_object_add(d->o, key, json_tokener_parse(values[i]));
        FILE *f = fopen(in_root("config.json", path), "w");
        assert_true(f && fputs(json_object_to_json_string(d->root), f) >= 0 && !fclose(f));
        const bool ok = drafter_binds(d->target, root, &e);
        if (!ok && !strstr(e.msg, "config.json") && !strstr(e.msg, root))
            fail_msg("'%s' is %s, no file in: %s", key, values[i], e.msg);
        d->bound += ok;
        d->refused += !ok;
    }
    json_object_object_add(d->o, key, old);
}

static void damage_object(struct damage *d, struct json_object *o)
{
    const char *keys[64];
    size_t n = 0;
    json_object_object_foreach(o, key, value)
    {
        (void)value;
        assert_true(n < 64);
        keys[n++] = key;
    }
    for (size_t i = 0; i < n; i++) {
        struct json_object *inner = json_object_object_get(o, keys[i]);
        char name[64];
        snprintf(name, sizeof name, "%s", keys[i]); /* the key's memory goes with its value */
        if (json_object_is_type(inner, json_type_object))
            damage_object(d, inner);
        d->o = o;
        if (strcmp(name, "architectures") != 0)
            damage_member(d, name);
    }
}

static void damaged_configs(void **state)
{
    (void)state;
    static const char *const dirs[] = {DIR, "tests/data/goldens/dflash2_gemma4/", SPARK};
    struct golden_model target;
    struct damage d = {.target = &target};
    char path[128];
    golden_open(&target, TARGET, &(struct golden_options){0});
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        checkpoint(dirs[i], NULL, 0, false);
        d.root = json_object_from_file(in_root("config.json", path));
        assert_non_null(d.root);
        damage_object(&d, d.root);
        json_object_put(d.root);
    }
    golden_close(&target);
    print_message("%lld configs refused, %lld are other networks\n", (long long)d.refused,
                  (long long)d.bound);
    assert_true(d.refused > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_of_beellama),
        cmocka_unit_test(gguf_of_lucebox),
        cmocka_unit_test(factor_of_embeddings),
        cmocka_unit_test(configs),
        cmocka_unit_test(speculators),
        cmocka_unit_test(without_chain),
        cmocka_unit_test(packed_codes),
        cmocka_unit_test(settings),
        cmocka_unit_test(unfit),
        cmocka_unit_test(damaged_keys),
        cmocka_unit_test(damaged_configs),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
