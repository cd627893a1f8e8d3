/* SPDX-License-Identifier: Apache-2.0 */
/* The golden models: every container opens, and the two formats of a model agree. */
#include "unit/unit.h"

#include "io/io.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDENS "tests/data/goldens/"

static struct io_file *open_or_fail(const char *path)
{
    struct io_file *f;
    struct err err;
    if (io_open(&f, path, NULL, &err))
        fail_msg("%s", err.msg);
    return f;
}

static void every_model_opens_and_reads(void **state)
{
    (void)state;
    static const char *const paths[] = {
        GOLDENS "gemma4_dense",
        GOLDENS "gemma4_dense/golden.safetensors",
        GOLDENS "gemma4_dense/model-F32.gguf",
        GOLDENS "gemma4_dense/model-Q4_0.gguf",
        GOLDENS "gemma4_dense/model-Q8_0.gguf",
        GOLDENS "gemma4_moe",
        GOLDENS "gemma4_moe/model-F32.gguf",
        GOLDENS "gemma4_realhd/model-F32.gguf",
        GOLDENS "gemma4_ple_e2b/model-F32.gguf",
        GOLDENS "gemma4_ple_e4b/model-F32.gguf",
        "tests/data/nano/nano-gemma4-Q4_K_M.gguf",
    };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct io_file *f = open_or_fail(paths[i]);
        assert_true(io_n_tensors(f) > 0);
        for (size_t k = 0; k < io_n_tensors(f); k++) {
            const struct io_tensor *t = io_tensor_at(f, k);
            const struct quant_info *q = quant_info(t->type);
            assert_ptr_equal(io_tensor_find(f, t->name), t);
            assert_int_equal(quant_find_bad(t->type, io_mapped(f, t), t->n_bytes / q->n_bytes), -1);
            void *copy = malloc(t->n_bytes);
            assert_non_null(copy);
            assert_int_equal(io_read(f, t, 0, copy, t->n_bytes, NULL), INGLE_OK);
            assert_memory_equal(copy, io_mapped(f, t), t->n_bytes);
            free(copy);
        }
        io_close(f);
    }
}

/* GGUF names and what stands for them in the checkpoint, behind a layer's prefix. */
static const char *const layer_names[][2] = {
    {"layer_output_scale", "layer_scalar"},
    {"attn_q", "self_attn.q_proj.weight"},
    {"attn_q_norm", "self_attn.q_norm.weight"},
    {"attn_k", "self_attn.k_proj.weight"},
    {"attn_k_norm", "self_attn.k_norm.weight"},
    {"attn_v", "self_attn.v_proj.weight"},
    {"attn_output", "self_attn.o_proj.weight"},
    {"ffn_gate", "mlp.gate_proj.weight"},
    {"ffn_up", "mlp.up_proj.weight"},
    {"ffn_down", "mlp.down_proj.weight"},
    {"attn_norm", "input_layernorm.weight"},
    {"post_attention_norm", "post_attention_layernorm.weight"},
    {"ffn_norm", "pre_feedforward_layernorm.weight"},
    {"post_ffw_norm", "post_feedforward_layernorm.weight"},
};

static bool same_tensor(const struct io_file *gguf, const char *name, const struct io_file *st,
                        const char *st_name)
{
    const struct io_tensor *a = io_tensor_find(gguf, name), *b = io_tensor_find(st, st_name);
    if (!a || !b)
        return false;
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->n_bytes, b->n_bytes);
    assert_memory_equal(a->ne, b->ne, sizeof a->ne);
    assert_memory_equal(io_mapped(gguf, a), io_mapped(st, b), a->n_bytes);
    return true;
}

static void both_formats_hold_the_same_bytes(void **state)
{
    (void)state;
    struct io_file *gguf = open_or_fail(GOLDENS "gemma4_dense/model-F32.gguf");
    struct io_file *st = open_or_fail(GOLDENS "gemma4_dense");
    size_t n = 0;
    n += same_tensor(gguf, "token_embd.weight", st, "model.language_model.embed_tokens.weight");
    n += same_tensor(gguf, "output_norm.weight", st, "model.language_model.norm.weight");
    for (int il = 0; il < 12; il++)
        for (size_t i = 0; i < sizeof layer_names / sizeof *layer_names; i++) {
            char a[96], b[96];
            snprintf(a, sizeof a, "blk.%d.%s.weight", il, layer_names[i][0]);
            snprintf(b, sizeof b, "model.language_model.layers.%d.%s", il, layer_names[i][1]);
            n += same_tensor(gguf, a, st, b);
        }
    /* The checkpoint has nothing else; the GGUF adds the frequencies of its rotary part. */
    assert_int_equal(n, io_n_tensors(st));
    assert_int_equal(n + 1, io_n_tensors(gguf));
    io_close(gguf);
    io_close(st);
}

static void encoders_make_the_published_blocks(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        uint32_t type;
    } quantised[] = {{GOLDENS "gemma4_dense/model-Q8_0.gguf", QUANT_Q8_0},
                     {GOLDENS "gemma4_dense/model-Q4_0.gguf", QUANT_Q4_0}};
    struct io_file *plain = open_or_fail(GOLDENS "gemma4_dense/model-F32.gguf");
    for (size_t i = 0; i < 2; i++) {
        struct io_file *f = open_or_fail(quantised[i].path);
        size_t n_same = 0;
        for (size_t k = 0; k < io_n_tensors(f); k++) {
            const struct io_tensor *t = io_tensor_at(f, k), *p = io_tensor_find(plain, t->name);
            if (t->type != quantised[i].type)
                continue;
            assert_non_null(p);
            unsigned char *blocks = malloc(t->n_bytes);
            assert_non_null(blocks);
            assert_true(quant_encode(t->type, io_mapped(plain, p), blocks, p->n_bytes / 4));
            assert_memory_equal(blocks, io_mapped(f, t), t->n_bytes);
            free(blocks);
            n_same++;
        }
        assert_true(n_same > 50);
        io_close(f);
    }
    io_close(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_opens_and_reads),
        cmocka_unit_test(both_formats_hold_the_same_bytes),
        cmocka_unit_test(encoders_make_the_published_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
