/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"
#include "tool/recipe.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* When a row of a recipe holds: i is the layer (of attn_v: the number among them) of n. */
enum when {
    ALWAYS, MORE_BITS, FIRST_EIGHTH, FIRST_SIXTEENTH, FIRST_TWO, FIRST_FOUR, MANY_HEADS,
    IMPORTANCE_FIRST_EIGHTH, MIDDLE
};

/* In place of a code: such tensors stay as the source has them. */
#define STAYS UINT32_MAX

struct row {
    const char *part; /* of the name */
    uint32_t type;    /* a code, or STAYS */
    enum when when;
};

struct tool_recipe {
    const char *name;
    uint32_t base, file_type;
    struct row row[8]; /* the first that holds; then the base */
};

#define OUT5 {"output.weight", QUANT_Q5_K, ALWAYS}
#define EMBD2 {"token_embd", QUANT_Q2_K, ALWAYS}
#define EMBD3 {"token_embd", QUANT_IQ3_S, ALWAYS}
#define OUT6 {"output.weight", QUANT_Q6_K, ALWAYS}
/* Experts, and what chooses tokens for attention, stay; the embedding is read a row a token. */
#define DENSE                                                                                      \
    OUT6, {"_exps", STAYS, ALWAYS}, {"indexer", STAYS, ALWAYS}, {"compressor", STAYS, ALWAYS},    \
        {"token_embd", STAYS, ALWAYS}

/* The mixes that files with these names have; a plain code is a recipe, too, with Q6_K at the
 * output. */
static const struct tool_recipe recipes[] = {
    {"F32", QUANT_F32, 0, {{0}}},
    {"F16", QUANT_F16, 1, {{0}}},
    {"BF16", QUANT_BF16, 32, {{0}}},
    {"Q8_0", QUANT_Q8_0, 7, {{0}}},
    {"Q4_0", QUANT_Q4_0, 2, {OUT6, {"ffn_down", QUANT_Q4_1, IMPORTANCE_FIRST_EIGHTH}}},
    {"Q4_1", QUANT_Q4_1, 3, {OUT6}},
    {"Q5_0", QUANT_Q5_0, 8, {OUT6, {"ffn_down", QUANT_Q5_1, IMPORTANCE_FIRST_EIGHTH}}},
    {"Q5_1", QUANT_Q5_1, 9, {OUT6}},
    {"Q2_K", QUANT_Q2_K, 10, {OUT6, {"attn_v.", QUANT_Q4_K, MANY_HEADS},
        {"attn_v.", QUANT_Q3_K, ALWAYS}, {"ffn_down", QUANT_Q3_K, ALWAYS},
        {"attn_output", QUANT_Q3_K, ALWAYS}}},
    {"Q2_K_S", QUANT_Q2_K, 21, {OUT6, {"attn_v.", QUANT_Q4_K, MANY_HEADS},
        {"ffn_down", QUANT_Q4_K, FIRST_EIGHTH}}},
    {"Q3_K_S", QUANT_Q3_K, 11, {OUT6}},
    {"Q3_K_M", QUANT_Q3_K, 12, {OUT6, {"attn_v.", QUANT_Q5_K, FIRST_TWO},
        {"attn_v.", QUANT_Q4_K, ALWAYS}, {"ffn_down", QUANT_Q5_K, FIRST_SIXTEENTH},
        {"ffn_down", QUANT_Q4_K, MORE_BITS}, {"attn_output", QUANT_Q4_K, ALWAYS},
        {"attn_qkv", QUANT_Q4_K, ALWAYS}}},
    {"Q3_K_L", QUANT_Q3_K, 13, {OUT6, {"attn_v.", QUANT_Q5_K, ALWAYS},
        {"ffn_down", QUANT_Q5_K, ALWAYS}, {"attn_output", QUANT_Q5_K, ALWAYS},
        {"attn_qkv", QUANT_Q4_K, ALWAYS}}},
    {"Q4_K_S", QUANT_Q4_K, 14, {OUT6, {"attn_v.", QUANT_Q5_K, FIRST_FOUR},
        {"ffn_down", QUANT_Q5_K, FIRST_EIGHTH}}},
    {"Q4_K_M", QUANT_Q4_K, 15, {OUT6, {"attn_v.", QUANT_Q6_K, MORE_BITS},
        {"ffn_down", QUANT_Q6_K, MORE_BITS}, {"attn_qkv", QUANT_Q5_K, ALWAYS}}},
    {"Q5_K_S", QUANT_Q5_K, 16, {OUT6}},
    {"Q5_K_M", QUANT_Q5_K, 17, {OUT6, {"attn_v.", QUANT_Q6_K, MORE_BITS},
        {"ffn_down", QUANT_Q6_K, MORE_BITS}, {"attn_qkv", QUANT_Q6_K, ALWAYS}}},
    {"Q6_K", QUANT_Q6_K, 18, {{0}}},
    {"IQ4_NL", QUANT_IQ4_NL, 25, {OUT6, {"attn_v.", QUANT_Q5_K, MANY_HEADS},
        {"ffn_down", QUANT_Q5_K, FIRST_EIGHTH}}},
    {"IQ4_XS", QUANT_IQ4_XS, 30, {OUT6, {"attn_v.", QUANT_Q5_K, MANY_HEADS},
        {"ffn_down", QUANT_Q5_K, FIRST_EIGHTH}}},
    {"IQ1_S", QUANT_IQ1_S, 24, {OUT5, EMBD2, {"attn_v.", QUANT_Q4_K, MANY_HEADS},
        {"attn_v.", QUANT_Q2_K, ALWAYS}, {"ffn_down", QUANT_Q2_K, FIRST_EIGHTH},
        {"attn_output", QUANT_IQ2_XXS, ALWAYS}}},
    {"IQ1_M", QUANT_IQ1_M, 31, {OUT5, EMBD2, {"attn_v.", QUANT_Q4_K, MANY_HEADS},
        {"attn_v.", QUANT_Q2_K, ALWAYS}, {"ffn_down", QUANT_Q2_K, FIRST_EIGHTH},
        {"attn_output", QUANT_IQ2_XXS, ALWAYS}}},
    {"IQ2_XXS", QUANT_IQ2_XXS, 19, {OUT5, EMBD2, {"attn_v.", QUANT_Q4_K, MANY_HEADS},
        {"attn_v.", QUANT_Q2_K, ALWAYS}, {"ffn_down", QUANT_Q2_K, FIRST_EIGHTH}}},
    {"IQ2_XS", QUANT_IQ2_XS, 20, {OUT5, EMBD2, {"attn_v.", QUANT_Q4_K, MANY_HEADS},
        {"attn_v.", QUANT_Q2_K, ALWAYS}, {"ffn_down", QUANT_Q2_K, FIRST_EIGHTH}}},
    {"IQ2_S", QUANT_IQ2_XS, 28, {OUT5, EMBD3, {"attn_v.", QUANT_Q4_K, MANY_HEADS},
        {"attn_v.", QUANT_IQ3_S, ALWAYS}, {"ffn_down", QUANT_IQ3_S, FIRST_EIGHTH},
        {"attn_output", QUANT_IQ3_S, ALWAYS}}},
    {"IQ2_M", QUANT_IQ2_S, 29, {OUT5, EMBD3, {"attn_v.", QUANT_Q4_K, MANY_HEADS},
        {"attn_v.", QUANT_IQ3_S, ALWAYS}, {"ffn_down", QUANT_IQ3_S, FIRST_EIGHTH},
        {"attn_output", QUANT_IQ3_S, ALWAYS}}},
    {"IQ3_XXS", QUANT_IQ3_XXS, 23, {OUT5, EMBD3, {"attn_v.", QUANT_Q4_K, MANY_HEADS},
        {"attn_v.", QUANT_IQ3_S, ALWAYS}, {"ffn_down", QUANT_Q4_K, FIRST_EIGHTH},
        {"ffn_down", QUANT_Q3_K, ALWAYS}, {"attn_output", QUANT_IQ3_S, ALWAYS}}},
    {"IQ3_XS", QUANT_IQ3_S, 22, {OUT6, {"attn_v.", QUANT_Q4_K, MANY_HEADS},
        {"attn_k.", QUANT_IQ3_XXS, ALWAYS}, {"attn_q.", QUANT_IQ3_XXS, ALWAYS},
        {"ffn_gate", QUANT_IQ3_XXS, MIDDLE}, {"ffn_up", QUANT_IQ3_XXS, MIDDLE}}},
    {"IQ3_S", QUANT_IQ3_S, 26, {OUT6, {"attn_v.", QUANT_Q4_K, MANY_HEADS}}},
    {"IQ3_M", QUANT_IQ3_S, 27, {OUT6, {"attn_v.", QUANT_Q4_K, ALWAYS},
        {"ffn_down", QUANT_Q4_K, FIRST_EIGHTH}, {"attn_output", QUANT_Q4_K, ALWAYS},
        {"attn_qkv", QUANT_Q4_K, ALWAYS}}},
    {"TQ1_0", QUANT_TQ1_0, 36, {OUT6, {"token_embd", QUANT_Q4_K, ALWAYS}}},
    {"TQ2_0", QUANT_TQ2_0, 37, {OUT6, {"token_embd", QUANT_Q4_K, ALWAYS}}},
    {"MXFP4_MOE", QUANT_Q8_0, 38, {{"_exps", QUANT_MXFP4, ALWAYS}}},
    {"NVFP4", QUANT_NVFP4, 39, {OUT6, {"token_embd", QUANT_Q6_K, ALWAYS}}},
    {"Q1_0", QUANT_Q1_0, 40, {OUT6, {"token_embd", QUANT_Q4_K, ALWAYS}}},
    /* what published DeepSeek V4 files do: everything that every token reads in Q8_0 */
    {"Q4_K_EXPERTS", QUANT_Q8_0, 15, {{"token_embd", QUANT_F16, ALWAYS},
        {"_exps", QUANT_Q4_K, ALWAYS}}},
    {"Q2_K_EXPERTS", QUANT_Q8_0, 10, {{"token_embd", QUANT_F16, ALWAYS},
        {"ffn_down_exps", QUANT_Q3_K, ALWAYS}, {"_exps", QUANT_Q2_K, ALWAYS}}},
    {"IQ1_M_EXPERTS", QUANT_Q8_0, 31, {{"token_embd", QUANT_F16, ALWAYS},
        {"_exps", QUANT_IQ1_M, ALWAYS}}},
    {"IQ2_XXS_EXPERTS", QUANT_Q8_0, 19, {{"token_embd", QUANT_F16, ALWAYS},
        {"ffn_down_exps", QUANT_Q2_K, ALWAYS}, {"_exps", QUANT_IQ2_XXS, ALWAYS}}},
    {"IQ2_XS_EXPERTS", QUANT_Q8_0, 20, {{"token_embd", QUANT_F16, ALWAYS},
        {"_exps", QUANT_IQ2_XS, ALWAYS}}},
    {"IQ3_XXS_EXPERTS", QUANT_Q8_0, 23, {{"token_embd", QUANT_F16, ALWAYS},
        {"_exps", QUANT_IQ3_XXS, ALWAYS}}},
    /* the other way round: experts stay bit by bit, everything that every token reads gets
     * smaller */
    {"Q6_K_DENSE", QUANT_Q6_K, 38, {DENSE}},
    {"Q5_K_DENSE", QUANT_Q5_K, 38, {DENSE, {"attn_kv.", QUANT_Q6_K, ALWAYS}}},
    {"Q4_K_DENSE", QUANT_Q4_K, 38, {DENSE, {"attn_kv.", QUANT_Q6_K, ALWAYS},
        {"ffn_down", QUANT_Q5_K, ALWAYS}, {"attn_output_b", QUANT_Q5_K, ALWAYS}}},
};
/* Names that mean the same, or a code alone. */
static const char *const aliases[][2] = {
    {"Q4_K", "Q4_K_M"}, {"Q5_K", "Q5_K_M"}, {"Q3_K", "Q3_K_M"}, {"MXFP4", "MXFP4_MOE"},
};

const struct tool_recipe *tool_recipe_find(const char *name)
{
    /* llama-quantize's numbers are those of general.file_type */
    if (*name && strspn(name, "0123456789") == strlen(name)) {
        for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
            if (strlen(name) < 4 && recipes[i].file_type == strtoul(name, NULL, 10))
                return &recipes[i];
        return NULL;
    }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcasecmp(aliases[i][0], name) == 0)
            name = aliases[i][1];
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (strcasecmp(recipes[i].name, name) == 0)
            return &recipes[i];
    return NULL;
}

void tool_recipe_names(struct str *out)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        str_addf(out, "%s%s", i ? " " : "", recipes[i].name);
}

const char *tool_recipe_name(const struct tool_recipe *r)
{
    return r->name;
}

uint32_t tool_recipe_file_type(const struct tool_recipe *r)
{
    return r->file_type;
}

uint32_t tool_recipe_base(const struct tool_recipe *r)
{
    return r->base;
}

bool tool_recipe_code(const char *name, uint32_t *type)
{
    for (uint32_t id = 0; id < 64; id++) {
        const struct quant_info *info = quant_info(id);
        if (info && strcasecmp(info->name, name) == 0 && quant_can_fit(id)) {
            *type = id;
            return true;
        }
    }
    return false;
}

bool tool_recipe_keeps(const struct io_tensor *t)
{
    static const char *const parts[] = {
        "_norm",     "ffn_gate_inp", "tid2eid",    "hc_",    "sinks",
        "_ape",      "exp_probs_b",  "rope_freqs", "altup",  "per_layer_model_proj",
        "centroid",  "ordering",     "markov",     "_scale", "confidence",
        "conf_proj",
    };
    /* of the encoders of pictures and sound */
    static const char *const towers[] = {"v.patch_embd.", "v.position_embd.", "a.conv1d.",
                                         "a.input_projection."};
    const size_t n = strlen(t->name);
    if (t->n_dims < 2 || n < 7 || strcmp(t->name + n - 7, ".weight") != 0)
        return true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(t->name, parts[i]))
            return true;
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        if (!strncmp(t->name, towers[i], strlen(towers[i])))
            return true;
    if (!strncmp(t->name, "a.blk.", 6) && strstr(t->name, ".conv_dw."))
        return true;
    return !quant_info(t->type)->quantised && t->type != QUANT_F32 && t->type != QUANT_F16 &&
           t->type != QUANT_BF16;
}

static bool more_bits(uint64_t i, uint64_t n)
{
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

static bool holds(const struct row *r, const struct tool_recipe_model *m, uint64_t i, uint64_t n)
{
    switch (r->when) {
    case ALWAYS:
        return true;
    case MORE_BITS:
        return more_bits(i, n);
    case FIRST_EIGHTH:
        return i < n / 8;
    case IMPORTANCE_FIRST_EIGHTH:
        return m->has_importance && i < n / 8;
    case MIDDLE:
        return i >= n / 8 && i < 7 * n / 8;
    case FIRST_SIXTEENTH:
        return i < n / 16;
    case FIRST_TWO:
        return i < 2;
    case FIRST_FOUR:
        return i < 4;
    case MANY_HEADS:
        return m->heads_per_kv >= 4;
    }
    return false;
}

uint32_t tool_recipe_choose(const struct tool_recipe *r, struct tool_recipe_model *m,
                            const struct io_tensor *t)
{
    const bool v = strstr(t->name, "attn_v.") != NULL;
    const uint64_t i = v                                    ? m->i_v++
                       : strncmp(t->name, "blk.", 4) == 0 ? strtoull(t->name + 4, NULL, 10)
                                                          : 0;
    const uint64_t n = v ? m->n_v : m->n_layers;
    const bool is_output = strcmp(t->name, "output.weight") == 0 ||
                           (!m->has_output && strcmp(t->name, "token_embd.weight") == 0);
    for (const struct row *row = r->row; row < r->row + 8 && row->part; row++) {
        const bool output_row = strcmp(row->part, "output.weight") == 0;
        if ((output_row ? is_output : strstr(t->name, row->part) != NULL) && holds(row, m, i, n))
            return row->type == STAYS ? t->type : row->type;
    }
    return r->base;
}

bool tool_recipe_stays(const struct tool_recipe *r, const struct io_tensor *t)
{
    for (const struct row *row = r->row; row < r->row + 8 && row->part; row++)
        if (row->type == STAYS && strstr(t->name, row->part))
            return true;
    return false;
}

bool tool_recipe_is_partial(const struct tool_recipe *r)
{
    for (const struct row *row = r->row; row < r->row + 8 && row->part; row++)
        if (row->type == STAYS)
            return true;
    return false;
}

uint32_t tool_recipe_fallback(uint32_t type, uint64_t n)
{
    if (n % quant_info(type)->n == 0)
        return type;
    switch (type) {
    case QUANT_Q4_K:
        type = QUANT_Q5_0;
        break;
    case QUANT_Q5_K:
        type = QUANT_Q5_1;
        break;
    case QUANT_Q6_K:
        type = QUANT_Q8_0;
        break;
    case QUANT_Q2_K:
    case QUANT_Q3_K:
    case QUANT_TQ1_0:
    case QUANT_TQ2_0:
    case QUANT_Q1_0:
        type = QUANT_Q4_0;
        break;
    default:
        type = QUANT_IQ4_NL;
    }
    return n % quant_info(type)->n == 0 ? type : QUANT_F16;
}
