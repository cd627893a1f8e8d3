/* SPDX-License-Identifier: Apache-2.0 */
/* relatives - files that are no model of a family here: named for what they are. */
#include "api/api.h"

#include "family/family.h"

#include <stdio.h>
#include <string.h>

/* ---- GGUF files that are no model ---- */

static bool is_word(const struct io_meta *m, const char *key, const char *word)
{
    const char *s;
    size_t n;
    return !io_get_str(m, key, &s, &n, NULL) && n == strlen(word) && memcmp(s, word, n) == 0;
}

static bool has_part(const char *s, const char *const *part)
{
    for (; *part; part++)
        if (strstr(s, *part))
            return true;
    return false;
}

static const char *const drafters[] = {"dflash", "dspark", "eagle", "assistant",
                                       "draft",  "medusa", NULL};

#define DRAFTER                                                                                    \
    "a drafter, which guesses tokens for another model: give that model, and this file with "      \
    "--draft"
#define PROJECTOR                                                                                  \
    "a projector of images or sound (mmproj): give the model; the projector beside it is found, "  \
    "or named with --mmproj"
#define ADAPTER "a LoRA adapter: merge it into its base model and give that"
#define IMATRIX "an importance matrix, which tells a quantiser what matters: give the model"

const char *engine_other_kind(const struct io_file *f)
{
    const struct io_meta *m = io_metadata(f);
    char arch[64] = "";
    const char *s;
    size_t n;
    if (!io_get_str(m, "general.architecture", &s, &n, NULL))
        snprintf(arch, sizeof arch, "%.*s", (int)(n < 60 ? n : 60), s);
    if (is_word(m, "general.type", "imatrix") || !strcmp(arch, "imatrix"))
        return IMATRIX;
    if (is_word(m, "general.type", "adapter") || io_meta_find(m, "adapter.type"))
        return ADAPTER;
    if (is_word(m, "general.type", "mmproj") || !strcmp(arch, "clip") || !strcmp(arch, "mmproj"))
        return PROJECTOR;
    if (has_part(arch, drafters))
        return DRAFTER;
    for (size_t i = 0; i < io_n_tensors(f); i++) {
        const char *name = io_tensor_at(f, i)->name;
        if (strstr(name, ".lora_a") || strstr(name, ".lora_A"))
            return ADAPTER;
        if (strstr(name, ".in_sum2"))
            return IMATRIX;
    }
    if (!io_n_tensors(f) && io_meta_find(m, "tokenizer.ggml.tokens"))
        return "a vocabulary without weights: give the model";
    return NULL;
}

/* ---- architectures ---- */

static const struct {
    const char *name, *is;
} relatives[] = {
    {"deepseek41", "DeepSeek V4.1, which is another network than V4"},
    {"deepseek_v41", "DeepSeek V4.1, which is another network than V4"},
    {"deepseek_v41_text", "DeepSeek V4.1, which is another network than V4"},
    {"deepseek", "the first DeepSeek"},
    {"deepseek2", "DeepSeek V2, V3 or R1"},
    {"deepseek_v2", "DeepSeek V2"},
    {"deepseek3", "DeepSeek V3 or R1"},
    {"deepseek_v3", "DeepSeek V3 or R1"},
    {"deepseek32", "DeepSeek V3.2"},
    {"deepseek_v32", "DeepSeek V3.2"},
    {"kimi_k2", "Kimi K2, a relative of DeepSeek V3"},
    {"gemma", "Gemma 1"},
    {"gemma2", "Gemma 2"},
    {"gemma3", "Gemma 3"},
    {"gemma3_text", "Gemma 3"},
    {"gemma3n", "Gemma 3n"},
    {"gemma3n_text", "Gemma 3n"},
    {"gemma-embedding", "EmbeddingGemma"},
    {"diffusion-gemma", "a Gemma that writes by diffusion"},
    {"t5gemma", "T5Gemma"},
    {"paligemma", "PaliGemma"},
    {"recurrent_gemma", "RecurrentGemma"},
    {"shieldgemma2", "ShieldGemma 2"},
    {"gemma4_vision", "only the vision tower of Gemma 4"},
    {"gemma4_audio", "only the audio tower of Gemma 4"},
};

static const char *relative(const char *arch)
{
    for (size_t i = 0; i < sizeof relatives / sizeof *relatives; i++)
        if (!strcmp(relatives[i].name, arch))
            return relatives[i].is;
    return NULL;
}

/* Of a checkpoint: what its config.json says besides the type, or NULL. */
static const char *checkpoint_kind(const struct ingle_model *m)
{
    struct json_object *list = NULL, *v = NULL;
    char low[120];
    if (json_object_object_get_ex(m->config, "speculators_model_type", &v))
        return DRAFTER;
    if (!json_object_object_get_ex(m->config, "architectures", &list) ||
        !json_object_is_type(list, json_type_array))
        return has_part(m->arch, drafters) ? DRAFTER : NULL;
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        const char *s = json_object_get_string(json_object_array_get_idx(list, i));
        size_t n = 0;
        for (; s && s[n] && n + 1 < sizeof low; n++)
            low[n] = s[n] >= 'A' && s[n] <= 'Z' ? (char)(s[n] + 32) : s[n];
        low[n] = 0;
        if (has_part(low, drafters))
            return DRAFTER;
        if (strstr(low, "sequenceclassification") || strstr(low, "rewardmodel") ||
            strstr(low, "tokenclassification"))
            return "a classifier, which has no head that writes text";
    }
    return has_part(m->arch, drafters) ? DRAFTER : NULL;
}

ingle_status engine_check_kind(const struct ingle_model *m, bool known, struct err *err)
{
    const bool gguf = io_kind(m->file) == IO_GGUF;
    const char *what = gguf ? engine_other_kind(m->file) : checkpoint_kind(m);
    if (what)
        return err_set(err, INGLE_UNSUP, "%s: is not a model by itself (%s '%s') but %s", m->path,
                       gguf ? "architecture" : "model_type", m->arch, what);
    if (known)
        return INGLE_OK;
    const char *name = relative(m->arch);
    return err_set(err, INGLE_UNSUP,
                   "%s: the architecture '%s'%s%s%s is none of the known ones: %s", m->path,
                   m->arch, name ? " (" : "", name ? name : "", name ? ")" : "", family_names());
}
