/* SPDX-License-Identifier: Apache-2.0 */
/* draft_about - what a drafter's file says of the model that it was made for. */
#include "family/draft/drafts.h"

#include "base/num.h"

#include <string.h>

/* Of keys like ARCH.name, whatever ARCH is. */
static const struct io_value *find(const struct io_meta *meta, const char *name)
{
    for (size_t i = 0; i < io_meta_count(meta); i++) {
        const struct io_value *v = io_meta_at(meta, i);
        const char *dot = strchr(v->key, '.');
        if (dot && strcmp(dot + 1, name) == 0)
            return v;
    }
    return NULL;
}

static int64_t number(const struct io_meta *meta, const char *name, int64_t most)
{
    const struct io_value *v = find(meta, name);
    uint64_t n;
    return v && !io_get_u64(meta, v->key, 0, (uint64_t)most, &n, NULL) ? (int64_t)n : 0;
}

/* One name counts layers whose inputs are tapped, which are the ends of those before them. */
static void read_taps(const struct io_meta *meta, struct family_draft_about *out)
{
    static const char *const names[] = {"target_layers", "dflash.target_layers",
                                        "dflash.target_layer_ids", "target_layer_ids"};
    const struct io_value *v = NULL;
    size_t k = 0;
    uint64_t at[FAMILY_ABOUT_TAPS];
    while (k < 4 && !(v = find(meta, names[k])))
        k++;
    if (!v || v->kind != IO_ARRAY || v->n > FAMILY_ABOUT_TAPS ||
        io_get_u64s(meta, v->key, v->n, k < 2, INT32_MAX, at, NULL))
        return;
    for (size_t i = 0; i < v->n; i++) {
        out->tap[i] = (int64_t)at[i] - (k < 2);
        out->n_layers = num_max(out->n_layers, out->tap[i] + 1);
    }
    out->n_taps = (int)v->n;
}

static int64_t rows_of(const struct model *m, const char *name)
{
    const struct io_tensor *t = model_find(m, name);
    return t && t->n_dims > 1 ? (int64_t)num_min((int64_t)t->ne[1], INT32_MAX) : 0;
}

void family_draft_describe(const struct family_draft *k, const struct model *m,
                           const struct io_meta *meta, struct family_draft_about *out)
{
    const bool v4 = k == &family_deepseek4_mtp || k == &family_deepseek4_dspark;
    *out = (struct family_draft_about){.family = v4 ? "DeepSeek V4" : "Gemma 4"};
    out->itself =
        v4 && model_find(m, "token_embd.weight") && model_find(m, "blk.0.attn_norm.weight");
    if (k == &family_gemma4_mtp)
        out->n_embd = num_max(number(meta, "embedding_length_out", INT32_MAX),
                              number(meta, "n_embd_backbone", INT32_MAX));
    else
        out->n_embd = number(meta, "embedding_length", INT32_MAX);
    read_taps(meta, out);
    const struct io_value *tokens = io_meta_find(meta, "tokenizer.ggml.tokens");
    out->n_vocab = tokens && tokens->kind == IO_ARRAY ? (int64_t)tokens->n
                                                      : number(meta, "vocab_size", INT32_MAX);
    if (!out->n_vocab)
        out->n_vocab = rows_of(m, "token_embd.weight");
}
