/* SPDX-License-Identifier: Apache-2.0 */
/*
 * family_deepseek4_bad - DeepSeek V4 files with one thing wrong: each is refused with an
 * error that names the file, the key or tensor, the value and what was expected.
 */
#define _POSIX_C_SOURCE 200809L
#include "unit/unit.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "family/family.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char good[] = "tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf";
static const char published[] = "tests/data/goldens/deepseek_v4_published";

struct bytes { char *at; size_t n; };

static struct bytes slurp(const char *path)
{
    struct err e;
    struct bytes b;
    if (file_slurp(path, 64 << 20, &b.at, &b.n, &e))
        fail_msg("%s", e.msg);
    return b;
}

static char *find(const struct bytes *b, const char *what, size_t n)
{
    for (size_t i = 0; i + n <= b->n; i++)
        if (!memcmp(b->at + i, what, n))
            return b->at + i;
    fail_msg("nothing like '%.*s' in the file", (int)n, what);
    return NULL;
}

struct opened {
    struct device *device;
    struct io_file *file;
    struct io_meta *meta;
    struct model *model;
    const struct family *family;
    void *self;
    struct family_info info;
    struct report_sink sink;
    char said[2000]; /* reports, one a line */
};

static void say(void *arg, ingle_report_level level, const char *kind, const char *subject,
                const char *text)
{
    char *to = arg;
    (void)level;
    const size_t n = strlen(to);
    snprintf(to + n, sizeof((struct opened *)0)->said - n, "%s '%s': %s\n", kind, subject, text);
}

static ingle_status read_meta(struct opened *o, const struct io_meta **meta, struct err *e)
{
    char *text;
    size_t n;
    struct json_object *config;
    o->family = family_by_arch("deepseek4");
    *meta = io_metadata(o->file);
    if (io_kind(o->file) == IO_GGUF)
        return INGLE_OK;
    ingle_status s = io_side_file(o->file, "config.json", 1 << 20, &text, &n, e);
    if (s)
        return s;
    s = json_parse(text, n, NULL, &config, e);
    mem_free(text);
    if (s)
        return s;
    *meta = o->meta = io_meta_create();
    s = o->family->config(config, o->meta, &o->sink, e);
    json_object_put(config);
    return s;
}

/* All of the way from bytes (of a GGUF) or a path to loaded weights. */
static ingle_status load(struct opened *o, const struct bytes *b, const char *path, struct err *e)
{
    const struct io_meta *meta;
    *o = (struct opened){0};
    o->sink = (struct report_sink){.report = say, .arg = o->said};
    ingle_status s =
        device_create(&o->device, &(struct device_options){.n_threads = 1, .cpu = UINT32_MAX}, e);
    if (!s)
        s = b ? io_open_memory(&o->file, "v4.gguf", b->at, b->n, &o->sink, e)
              : io_open(&o->file, path, &o->sink, e);
    if (!s)
        s = read_meta(o, &meta, e);
    if (!s)
        s = model_create(&o->model, o->file, o->device,
                         o->meta ? o->family->rename : o->family->alias, &o->sink, e);
    if (!s)
        s = o->family->bind(&o->self, o->model, meta, &o->info, e);
    if (!s)
        s = model_check_unused(o->model, e);
    if (!s)
        s = model_load(o->model, e);
    return s;
}

static void unload(struct opened *o)
{
    if (o->family && o->self)
        o->family->free(o->self);
    model_free(o->model);
    io_meta_free(o->meta);
    io_close(o->file);
    device_free(o->device);
}

/* The error has every word of a list that ends with NULL. */
static void expect(const struct err *e, const char *const *word)
{
    for (; *word; word++)
        if (!strstr(e->msg, *word))
            fail_msg("'%s' is not in: %s", *word, e->msg);
}

/* ---- GGUF keys ---- */

/* The bytes of a key's value (behind its type). */
static char *value(const struct bytes *b, const char *key)
{
    char name[120];
    const uint64_t n = strlen(key) + strlen("deepseek4.");
    memcpy(name, &n, 8);
    snprintf(name + 8, sizeof name - 8, "deepseek4.%s", key);
    return find(b, name, (size_t)n + 8) + n + 12;
}

/* A tensor's entry, at its number of dimensions: u32 n, u64 ne[n], u32 type, u64 offset. */
static char *entry(const struct bytes *b, const char *name)
{
    char full[120];
    const uint64_t n = strlen(name);
    memcpy(full, &n, 8);
    snprintf(full + 8, sizeof full - 8, "%s", name);
    return find(b, full, (size_t)n + 8) + n + 8;
}

static void put32(char *at, uint32_t v) { memcpy(at, &v, sizeof v); }
static void put64(char *at, uint64_t v) { memcpy(at, &v, sizeof v); }

/* Of an array: type, count, then the elements. */
static char *element(const struct bytes *b, const char *key, size_t i)
{
    return value(b, key) + 12 + 4 * i;
}

#define WORDS(...) (const char *const[]){__VA_ARGS__, NULL}

static void bad_keys(void **state)
{
    (void)state;
    const struct { const char *key; uint32_t v; const char *words[5]; } number[] = {
        {"expert_used_count", 9, {"v4.gguf", "expert_used_count", "9", "8"}},
        {"expert_used_count", 0, {"v4.gguf", "expert_used_count", "0", "1"}},
        {"expert_used_count", 65, {"v4.gguf", "expert_used_count", "65", "64"}},
        {"expert_count", 0, {"v4.gguf", "expert_count"}},
        {"expert_count", 4097, {"v4.gguf", "expert_count", "4097", "4096"}},
        {"expert_count", 16, {"v4.gguf", "blk.0.ffn_gate_inp.weight", "16"}},
        {"expert_gating_func", 2, {"v4.gguf", "expert_gating_func", "2", "4"}},
        {"expert_shared_count", 2, {"v4.gguf", "expert_shared_count", "2"}},
        {"hash_layer_count", 5, {"v4.gguf", "blk.3.ffn_gate_tid2eid.weight", "missing"}},
        {"hash_layer_count", 2, {"v4.gguf", "blk.2.exp_probs_b.bias", "missing"}},
        {"block_count", 0, {"v4.gguf", "block_count"}},
        {"block_count", 6, {"v4.gguf", "swiglu_clamp_exp", "5", "6"}},
        {"block_count", 1u << 30, {"v4.gguf", "block_count", "1073741824", "1024"}},
        {"embedding_length", 0, {"v4.gguf", "embedding_length"}},
        {"embedding_length", 128, {"v4.gguf", "token_embd.weight", "64", "128"}},
        {"attention.head_count", 3, {"v4.gguf", "output_group_count", "2", "3"}},
        {"attention.key_length", 62, {"v4.gguf", "attention.value_length", "62"}},
        {"attention.sliding_window", 0, {"v4.gguf", "sliding_window"}},
        {"attention.indexer.key_length", 8, {"v4.gguf", "attention.indexer.key_length", "8", "16"}},
        {"attention.indexer.top_k", 0, {"v4.gguf", "top_k", "0"}},
        {"rope.dimension_count", 15, {"v4.gguf", "rope.dimension_count", "15"}},
        {"rope.dimension_count", 128, {"v4.gguf", "rope.dimension_count", "128", "64"}},
        {"hyper_connection.count", 9, {"v4.gguf", "hyper_connection.count", "9", "8"}},
        {"hyper_connection.count", 2, {"v4.gguf", "output_hc_fn.weight"}},
        {"hyper_connection.sinkhorn_iterations", 0, {"v4.gguf", "sinkhorn_iterations", "0"}},
        {"rope.scaling.original_context_length", 0, {"v4.gguf", "original_context_length", "0"}},
    };
    struct bytes b = slurp(good);
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        struct opened o;
        struct err e = {0};
        char *at = value(&b, number[i].key), before[4];
        memcpy(before, at, 4);
        put32(at, number[i].v);
        if (!load(&o, &b, NULL, &e))
            fail_msg("%s = %u was loaded", number[i].key, number[i].v);
        expect(&e, number[i].words);
        unload(&o);
        memcpy(at, before, 4);
    }
    mem_free(b.at);
}

static void bad_ratios(void **state)
{
    (void)state;
    const struct { size_t i; uint32_t v; const char *words[6]; } one[] = {
        {2, 8, {"v4.gguf", "compress_ratios", "layer 2", "8", "0, 4 or 128"}},
        {3, 1, {"v4.gguf", "compress_ratios", "layer 3", "1", "0, 4 or 128"}},
        {0, UINT32_MAX, {"v4.gguf", "compress_ratios", "-1"}},
        {5, 4, {"v4.gguf", "compress_ratios", "6 entries for 5 layers", "4", "expected 0"}},
        {1, 4, {"v4.gguf", "blk.1.attn_compressor_kv.weight", "missing"}},
    };
    struct bytes b = slurp(good);
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        struct opened o;
        struct err e = {0};
        char *at = element(&b, "attention.compress_ratios", one[i].i), before[4];
        memcpy(before, at, 4);
        put32(at, one[i].v);
        assert_int_not_equal(load(&o, &b, NULL, &e), INGLE_OK);
        expect(&e, one[i].words);
        unload(&o);
        memcpy(at, before, 4);
    }
    mem_free(b.at);
}

/* ---- GGUF tensors ---- */

static char *data_of(const struct bytes *b, const char *tensor)
{
    struct io_file *f;
    struct err e;
    if (io_open_memory(&f, "v4.gguf", b->at, b->n, NULL, &e))
        fail_msg("%s", e.msg);
    const uint64_t at = io_tensor_find(f, tensor)->offset;
    io_close(f);
    return b->at + at;
}

static void refused(const struct bytes *b, const char *const *words)
{
    struct opened o;
    struct err e = {0};
    if (!load(&o, b, NULL, &e))
        fail_msg("a file without '%s' in its error was loaded", words[1]);
    expect(&e, words);
    unload(&o);
}

static void bad_tensors(void **state)
{
    (void)state;
    struct bytes b = slurp(good), whole = slurp(good);
    static const char table[] = "blk.0.ffn_gate_tid2eid.weight";
    char *at = data_of(&b, table);
    put32(at + 3 * 4 * 7, 8);
    refused(&b, WORDS("v4.gguf", table, "8 at 21", "0 to 7"));
    put32(at + 3 * 4 * 7, UINT32_MAX);
    refused(&b, WORDS("v4.gguf", table, "-1 at 21", "0 to 7"));
    memcpy(at + 3 * 4 * 7, at + 3 * 4 * 7 + 4, 4);
    refused(&b, WORDS("v4.gguf", table, "twice", "token 7"));
    memcpy(b.at, whole.at, b.n);

    data_of(&b, "blk.3.ffn_up_exps.weight")[17 * 5] = (char)0xff; /* a scale that is no number */
    refused(&b, WORDS("v4.gguf", "blk.3.ffn_up_exps.weight", "no number"));
    memcpy(b.at, whole.at, b.n);
    put32(data_of(&b, "blk.1.attn_sinks.weight") + 4, 0x7fc00000);
    refused(&b, WORDS("v4.gguf", "blk.1.attn_sinks.weight", "no number at 1"));
    memcpy(b.at, whole.at, b.n);
    memset(data_of(&b, "blk.0.attn_q_a.weight"), 0xff, 2);
    refused(&b, WORDS("v4.gguf", "blk.0.attn_q_a.weight", "no number"));
    memcpy(b.at, whole.at, b.n);

    put64(entry(&b, "token_embd.weight") + 12, 0); /* no vocabulary */
    refused(&b, WORDS("v4.gguf", "token_embd.weight"));
    memcpy(b.at, whole.at, b.n);
    put64(entry(&b, "blk.2.attn_output_b.weight") + 4, 32);
    refused(&b, WORDS("v4.gguf", "blk.2.attn_output_b.weight", "32", "64"));
    memcpy(b.at, whole.at, b.n);
    put32(entry(&b, "blk.0.ffn_gate_tid2eid.weight") + 20, 0); /* floats for ids */
    refused(&b, WORDS("v4.gguf", "blk.0.ffn_gate_tid2eid.weight", "F32", "I32"));
    memcpy(b.at, whole.at, b.n);
    static const char *const missing[] = {"token_embd.weight",          "output_norm.weight",
                                          "blk.4.indexer.proj.weight",  "blk.2.hc_ffn_base.weight",
                                          "blk.3.ffn_down_exps.weight", "blk.0.attn_norm.weight"};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        entry(&b, missing[i])[-1] = '#';
        refused(&b, WORDS("v4.gguf", missing[i], "missing"));
        memcpy(b.at, whole.at, b.n);
    }
    mem_free(b.at);
    mem_free(whole.at);
}

/* ---- checkpoints ---- */

static char dir[] = "/tmp/ingle-v4-XXXXXX";

static void put(const char *name, const char *bytes, size_t n)
{
    char path[100];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void drop(const char *name)
{
    char path[100];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

/* The published case with one byte of a tensor set. */
static void bad_byte(const char *tensor, size_t at, uint8_t v, const char *const *words)
{
    char path[100];
    struct opened o;
    struct err e = {0};
    struct io_file *f;
    snprintf(path, sizeof path, "%s/model.safetensors", published);
    struct bytes b = slurp(path);
    if (io_open(&f, path, NULL, &e))
        fail_msg("%s", e.msg);
    b.at[io_tensor_find(f, tensor)->offset + at] = (char)v;
    io_close(f);
    put("model.safetensors", b.at, b.n);
    mem_free(b.at);
    if (!load(&o, NULL, dir, &e))
        fail_msg("%s with %d at %zu was loaded", tensor, v, at);
    expect(&e, words);
    unload(&o);
}

static void bad_checkpoint(void **state)
{
    (void)state;
    char path[100];
    struct opened o;
    struct err e = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", published);
    struct bytes config = slurp(path);
    put("config.json", config.at, config.n);
    bad_byte("layers.1.attn.wq_a.scale", 0, 0xff,
             WORDS(dir, "layers.1.attn.wq_a.weight", "no number"));
    bad_byte("layers.1.attn.wq_b.weight", 77, 0x7f,
             WORDS(dir, "layers.1.attn.wq_b.weight", "no number"));
    bad_byte("layers.2.ffn.experts.3.w1.scale", 1, 0xff,
             WORDS(dir, "layers.2.ffn.experts.3.w1.weight", "no number"));
    bad_byte("layers.0.ffn.gate.tid2eid", 1, 0x10,
             WORDS(dir, "layers.0.ffn.gate.tid2eid", "0 to 7"));
    drop("model.safetensors");
    static const char index[] = "{\"metadata\":{\"total_size\":1},\"weight_map\":"
                                "{\"embed.weight\":\"model-00001-of-00002.safetensors\"}}";
    put("model.safetensors.index.json", index, sizeof index - 1);
    assert_int_not_equal(load(&o, NULL, dir, &e), INGLE_OK);
    expect(&e, WORDS("model-00001-of-00002.safetensors"));
    unload(&o);
    drop("model.safetensors.index.json");
    drop("config.json");
    mem_free(config.at);
    rmdir(dir);
}

/* ---- any damage to the head of a file ends in an error or in a model ---- */

static void random_damage(void **state)
{
    (void)state;
    const int rounds = UNIT_ASAN ? 50 : unit_some(50, 150);
    struct bytes b = slurp(good), whole = slurp(good);
    const size_t head = (size_t)(data_of(&whole, "token_embd.weight") - whole.at);
    uint64_t x = 1;
    int n_loaded = 0;
    for (int i = 0; i < rounds; i++) {
        struct opened o;
        struct err e = {0};
        for (int k = 0; k <= i % 3; k++) {
            x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            b.at[(x >> 33) % head] = (char)(x >> 20);
        }
        if (load(&o, &b, NULL, &e))
            assert_true(e.msg[0]);
        else
            n_loaded++;
        unload(&o);
        memcpy(b.at, whole.at, head);
    }
    print_message("%d of %d damaged files were loaded\n", n_loaded, rounds);
    mem_free(b.at);
    mem_free(whole.at);
}

/* ---- other dialects and relatives ---- */

static void old_names(void **state)
{
    (void)state;
    struct opened o;
    struct err e = {0};
    struct bytes b = slurp(good);
    /* An alias of the same length, so that the file stays whole. */
    static const char name[] = "blk.2.indexer_compressor_norm.weight",
                      alias_of_it[] = "blk.2.indexer.compressor_norm.weight";
    memcpy(entry(&b, name) - strlen(name), alias_of_it, strlen(name));
    if (load(&o, &b, NULL, &e))
        fail_msg("%s", e.msg);
    unload(&o);
    mem_free(b.at);
    char out[128];
    const struct family *f = family_by_arch("deepseek4");
    const struct { const char *from, *to; } alias[] = {
        {"blk.7.hc_attn_fn", "blk.7.hc_attn_fn.weight"},
        {"blk.7.hc_ffn_base", "blk.7.hc_ffn_base.weight"},
        {"output_hc_scale", "output_hc_scale.weight"},
        {"blk.0.ffn_gate_tid2eid", "blk.0.ffn_gate_tid2eid.weight"},
        {"blk.7.attn_sinks", "blk.7.attn_sinks.weight"},
        {"blk.7.exp_probs_b", "blk.7.exp_probs_b.bias"},
        {"blk.7.exp_probs_b.weight", "blk.7.exp_probs_b.bias"},
        {"blk.2.indexer.compress_norm", "blk.2.indexer_compressor_norm.weight"},
        {"blk.2.indexer.compress_norm.weight", "blk.2.indexer_compressor_norm.weight"},
        {"blk.2.indexer.compressor_ape.weight", "blk.2.indexer_compressor_ape.weight"},
    };
    for (size_t i = 0; i < sizeof alias / sizeof *alias; i++) {
        assert_true(f->alias(alias[i].from, out, sizeof out));
        assert_string_equal(out, alias[i].to);
    }
    assert_false(f->alias("blk.7.attn_q_a.weight", out, sizeof out));
}

/* Every place of a text in the file becomes another one of the same length. */
static void replace(const struct bytes *b, const char *from, const char *to)
{
    const size_t n = strlen(from);
    assert_int_equal(strlen(to), n);
    for (size_t i = 0; i + n <= b->n; i++)
        if (!memcmp(b->at + i, from, n))
            memcpy(b->at + i, to, n);
}

/* How positions are scaled is said, and whole. */
static void scaling(void **state)
{
    (void)state;
    struct opened o;
    struct err e = {0};
    struct bytes b = slurp(good);
    replace(&b, "deepseek4.rope.scaling.type", "deepseek4.a.name.of.ours.it");
    refused(&b, WORDS("v4.gguf", "rope.scaling.type' is missing", "rope.scaling."));
    replace(&b, "deepseek4.rope.scaling.", "deepseek4.a.name.of.it.");
    if (load(&o, &b, NULL, &e))
        fail_msg("%s", e.msg);
    if (!strstr(o.said, "positions are not scaled"))
        fail_msg("nothing about positions in: %s", o.said);
    unload(&o);
    mem_free(b.at);
}

/* Three draft stages behind the layers (44 entries became 46): the main network is the same. */
static void draft_stages(void **state)
{
    (void)state;
    struct opened o;
    struct err e = {0};
    struct bytes b = slurp(good);
    put32(value(&b, "block_count"), 3);      /* 6 entries for 3 layers, two of them not 0 */
    refused(&b, WORDS("v4.gguf", "6 entries for 3 layers", "128"));
    put32(element(&b, "attention.compress_ratios", 3), 0);
    put32(element(&b, "attention.compress_ratios", 4), 0);
    refused(&b, WORDS("v4.gguf", "block_count' is 3", "blk.3."));
    replace(&b, "blk.3.", "mtp.0.");
    replace(&b, "blk.5.", "mtp.1.");
    refused(&b, WORDS("v4.gguf", "block_count' is 3", "blk.4."));
    replace(&b, "blk.4.", "mtp.2.");
    if (load(&o, &b, NULL, &e))
        fail_msg("%s", e.msg);
    if (!strstr(o.said, "3 draft stages"))
        fail_msg("nothing about draft stages in: %s", o.said);
    assert_int_equal(o.info.n_layers, 3);
    unload(&o);
    mem_free(b.at);
}

static void relatives(void **state)
{
    (void)state;
    assert_null(family_by_arch("deepseek2"));
    assert_null(family_by_arch("deepseek-v4"));
    assert_null(family_by_hf_type("deepseek_v3"));
    assert_null(family_by_hf_type("deepseek_v32"));
    assert_non_null(family_by_hf_type("deepseek_v4"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_keys),      cmocka_unit_test(bad_ratios),
        cmocka_unit_test(bad_tensors),   cmocka_unit_test(bad_checkpoint),
        cmocka_unit_test(random_damage), cmocka_unit_test(old_names),
        cmocka_unit_test(scaling),
        cmocka_unit_test(draft_stages),  cmocka_unit_test(relatives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
