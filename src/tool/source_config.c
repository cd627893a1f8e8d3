/* SPDX-License-Identifier: Apache-2.0 */
/* source_config - config.json, tokenizer.json and tokenizer_config.json of a GGUF file. */
#include "base/mem.h"
#include "text/text.h"
#include "tool/source_impl.h"
#include <string.h>

/* As published: what says that experts have 4 bits. */
static ingle_status put_fp4(struct json_object *o, struct err *err)
{
    static const char text[] = "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"scale_fmt\":\"ue8m0\","
                               "\"activation_scheme\":\"dynamic\","
                               "\"weight_block_size\":[128,128]}";
    struct json_object *q = NULL, *word = json_object_new_string("fp4");
    const ingle_status st = json_parse(text, sizeof text - 1, NULL, &q, err);
    if (!st && word && !json_object_object_add(o, "expert_dtype", word) &&
        !json_object_object_add(o, "quantization_config", q))
        return INGLE_OK;
    return st ? st : err_set(err, INGLE_NOMEM, "no memory for config.json");
}

/* The form of ModelOpt: a factor of each matrix, "X.weight_scale_2". */
static ingle_status put_nvfp4(struct json_object *o, struct err *err)
{
    static const char text[] = "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}";
    struct json_object *q = NULL;
    const ingle_status st = json_parse(text, sizeof text - 1, NULL, &q, err);
    if (st || !json_object_object_add(o, "quantization_config", q))
        return st;
    json_object_put(q);
    return err_set(err, INGLE_NOMEM, "no memory for config.json");
}

ingle_status tool_source_config(const struct tool_source *s, struct str *out, struct err *err)
{
    struct json_object *o = json_object_new_object();
    bool fp4 = false, nvfp4 = false;
    ingle_status st = o ? (s->draft ? s->draft->to_config : s->family->to_config)(s->file, o, err)
                        : err_set(err, INGLE_NOMEM, "no memory for config.json");
    for (size_t i = 0; i < s->n; i++)
        *(s->item[i].from.type == QUANT_NVFP4 ? &nvfp4 : &fp4) |=
            s->item[i].how == SOURCE_FP4_CODES;
    if (!st && fp4)
        st = put_fp4(o, err);
    if (!st && nvfp4)
        st = put_nvfp4(o, err);
    const char *text = st ? NULL
                          : json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY |
                                                                  JSON_C_TO_STRING_NOSLASHESCAPE);
    if (text) {
        str_adds(out, text);
        str_addc(out, '\n');
    } else if (!st) {
        st = err_set(err, INGLE_NOMEM, "no memory for config.json");
    }
    json_object_put(o);
    return st;
}

/* ---- tokenizer.json ---- */

static const char gemma_head[] =
    "  \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": "
    "\"▁\"},\n"
    "  \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \" \"}, \"behavior\": "
    "\"MergedWithPrevious\", \"invert\": false},\n"
    "  \"post_processor\": null,\n"
    "  \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": "
    "{\"String\": \"▁\"}, \"content\": \" \"}, "
    "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]},\n"
    "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": \"<unk>\", "
    "\"continuing_subword_prefix\": null, "
    "\"end_of_word_suffix\": null, \"fuse_unk\": true, \"byte_fallback\": true, \"ignore_merges\": "
    "false,\n";

static const char deepseek_tail[] =
    "  \"post_processor\": null,\n"
    "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
    "\"use_regex\": true},\n"
    "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
    "\"continuing_subword_prefix\": null, "
    "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, "
    "\"ignore_merges\": false,\n";

/* The token lists of the file. */
struct words {
    const struct io_value *token, *type, *merge;
    bool gemma;
};

static int64_t type_of(const struct words *w, size_t i)
{
    if (!w->type || i >= w->type->n)
        return TEXT_NORMAL;
    return w->type->elem == IO_I64 ? io_array_i64(w->type, i) : (int64_t)io_array_u64(w->type, i);
}

static bool is_added(const struct words *w, size_t i)
{
    const int64_t type = type_of(w, i);
    return type == TEXT_CONTROL || type == TEXT_USER_DEFINED;
}

static bool is_padding(const struct words *w, size_t i)
{
    size_t n;
    const char *s = io_array_str(w->token, i, &n);
    return type_of(w, i) == TEXT_UNUSED && n > 4 && !memcmp(s, "[PAD", 4);
}

static void put_added(const struct words *w, struct str *out)
{
    bool any = false;
    str_adds(out, "  \"added_tokens\": [");
    for (size_t i = 0; i < w->token->n; i++) {
        size_t n;
        const char *s = io_array_str(w->token, i, &n);
        if (!is_added(w, i))
            continue;
        str_addf(out, "%s\n    {\"id\": %zu, \"content\": ", any ? "," : "", i);
        str_add_json(out, s, n);
        /* Gemma's markers of an answer are control tokens in a checkpoint, and shown in a GGUF
         * file. */
        str_addf(out,
                 ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": "
                 "false, \"special\": %s}",
                 w->gemma || type_of(w, i) == TEXT_CONTROL ? "true" : "false");
        any = true;
    }
    str_adds(out, "\n  ],\n");
}

static void put_vocab(const struct words *w, struct str *out)
{
    bool any = false;
    str_adds(out, "    \"vocab\": {");
    for (size_t i = 0; i < w->token->n; i++) {
        size_t n;
        const char *s = io_array_str(w->token, i, &n);
        if (is_padding(w, i))
            continue; /* a row of the embedding without a token */
        str_adds(out, any ? ",\n      " : "\n      ");
        str_add_json(out, s, n);
        str_addf(out, ": %zu", i);
        any = true;
    }
    str_adds(out, "\n    },\n    \"merges\": [");
    for (size_t i = 0; w->merge && i < w->merge->n; i++) {
        size_t n;
        const char *s = io_array_str(w->merge, i, &n),
                   *space = n > 1 ? memchr(s + 1, ' ', n - 1) : NULL;
        if (!space)
            continue;
        str_adds(out, i ? ",\n      [" : "\n      [");
        str_add_json(out, s, (size_t)(space - s));
        str_adds(out, ", ");
        str_add_json(out, space + 1, n - (size_t)(space - s) - 1);
        str_addc(out, ']');
    }
    str_adds(out, "\n    ]\n  }\n}\n");
}

static void put_splits(struct str *out)
{
    str_adds(out, "  \"normalizer\": null,\n  \"pre_tokenizer\": {\"type\": \"Sequence\", "
                  "\"pretokenizers\": [");
    for (int i = 0; i < 3; i++) {
        const char *pattern = text_deepseek_split(i);
        str_adds(out, "\n    {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        str_add_json(out, pattern, strlen(pattern));
        str_adds(out, "}, \"behavior\": \"Isolated\", \"invert\": false},");
    }
    str_adds(out, "\n    {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": "
                  "true, \"use_regex\": false}]},\n");
    str_adds(out, deepseek_tail);
}

/* The token of a role, as tokenizer_config.json has it. */
static void put_role(const struct io_meta *meta, const struct words *w, const char *key,
                     const char *gguf, bool *any, struct str *out)
{
    uint64_t id;
    size_t n;
    if (io_get_u64(meta, gguf, 0, w->token->n ? w->token->n - 1 : 0, &id, NULL) || !w->token->n)
        return;
    const char *s = io_array_str(w->token, (size_t)id, &n);
    str_addf(out, "%s\n  \"%s\": ", *any ? "," : "", key);
    str_add_json(out, s, n);
    *any = true;
}

ingle_status tool_source_tokenizer(const struct tool_source *s, struct str *tokenizer,
                                   struct str *config, struct err *err)
{
    const struct io_meta *meta = io_metadata(s->file);
    struct words w = {io_meta_find(meta, "tokenizer.ggml.tokens"),
                      io_meta_find(meta, "tokenizer.ggml.token_type"),
                      io_meta_find(meta, "tokenizer.ggml.merges"),
                      !strcmp(s->family->arch, "gemma4")};
    static const char *const roles[][2] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token", "tokenizer.ggml.eos_token_id"},
                                           {"pad_token", "tokenizer.ggml.padding_token_id"},
                                           {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                           {"mask_token", "tokenizer.ggml.mask_token_id"}};
    bool any = false;
    if (!w.token || w.token->kind != IO_ARRAY || w.token->elem != IO_STR)
        return INGLE_OK;
    if ((w.type && w.type->kind != IO_ARRAY) ||
        (w.merge && (w.merge->kind != IO_ARRAY || w.merge->elem != IO_STR)))
        return err_set(err, INGLE_FORMAT, "%s: 'tokenizer.ggml.token_type' or '.merges' is no list",
                       s->path);
    str_adds(tokenizer,
             "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    put_added(&w, tokenizer);
    if (w.gemma)
        str_adds(tokenizer, gemma_head);
    else
        put_splits(tokenizer);
    put_vocab(&w, tokenizer);
    str_adds(config, "{");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        put_role(meta, &w, roles[i][0], roles[i][1], &any, config);
    str_addf(config, "%s\n  \"add_bos_token\": false,\n  \"clean_up_tokenization_spaces\": false,\n"
                     "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n", any ? "," : "");
    return INGLE_OK;
}
