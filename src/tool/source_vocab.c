/* SPDX-License-Identifier: Apache-2.0 */
/* source_vocab - tokenizer.json, tokenizer_config.json and the template as keys of a GGUF file. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/text.h"
#include "tool/source_impl.h"
#include <stdio.h>
#include <string.h>

enum { TOKENIZER_LIMIT = 256 << 20, SIDE_LIMIT = 16 << 20 };

struct vocab {
    const struct tool_source *s;
    struct io_gguf *w;
    struct json_object *config; /* tokenizer_config.json, or NULL */
    char *side;                 /* chat_template.jinja, or NULL */
    size_t n_side;
    bool with_template;
};

static int32_t find(const struct text_vocab *v, const char *spelling)
{
    const size_t n = strlen(spelling);
    for (size_t i = 0; i < v->n_tokens; i++)
        if (v->token_bytes[i] == n && !memcmp(v->token[i], spelling, n))
            return (int32_t)i;
    return -1;
}

/* The token that tokenizer_config.json names for a role, as a text or as an object with
 * 'content'. */
static int32_t role(const struct vocab *k, const struct text_vocab *v, const char *key,
                    const char *usual)
{
    struct json_object *o = json_member(k->config, key), *content = json_member(o, "content");
    const char *spelling = json_object_is_type(o, json_type_string) ? json_object_get_string(o)
                           : content                               ? json_object_get_string(content)
                                                                   : usual;
    return spelling ? find(v, spelling) : -1;
}

static ingle_status put_ids(const struct vocab *k, const struct text_vocab *v, struct err *err)
{
    const bool gemma = v->kind == TEXT_GEMMA4;
    struct json_object *mask = json_member(k->s->config, "mask_token_id"),
                       *own = json_member(k->s->config, "dflash_config");
    mask = json_member(own, "mask_token_id") ? json_member(own, "mask_token_id") : mask;
    mask = json_member(k->s->config, "dspark_noise_token_id")
               ? json_member(k->s->config, "dspark_noise_token_id")
               : mask;
    const bool drafter = k->s->kind == SOURCE_DFLASH || k->s->kind == SOURCE_DSPARK4;
    const struct { const char *key; int32_t id;
    } ids[] = {{"tokenizer.ggml.bos_token_id",
                role(k, v, "bos_token", gemma ? "<bos>" : "<｜begin▁of▁sentence｜>")},
               {"tokenizer.ggml.eos_token_id",
                role(k, v, "eos_token", gemma ? "<eos>" : "<｜end▁of▁sentence｜>")},
               {"tokenizer.ggml.eot_token_id", gemma ? find(v, "<turn|>") : -1},
               {"tokenizer.ggml.unknown_token_id", gemma ? role(k, v, "unk_token", "<unk>") : -1},
               {"tokenizer.ggml.padding_token_id",
                role(k, v, "pad_token", gemma ? "<pad>" : "<｜end▁of▁sentence｜>")},
               {"tokenizer.ggml.mask_token_id", drafter && mask ? json_object_get_int(mask)
                                                : gemma         ? role(k, v, "mask_token", "<mask>")
                                                                : -1}};
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < sizeof ids / sizeof *ids && !st; i++)
        if (ids[i].id >= 0)
            st = io_gguf_u32(k->w, ids[i].key, (uint32_t)ids[i].id, err);
    if (!st)
        st = io_gguf_bool(k->w, "tokenizer.ggml.add_bos_token", gemma, err);
    if (!st && gemma)
        st = io_gguf_bool(k->w, "tokenizer.ggml.add_space_prefix", false, err);
    if (!st && !gemma)
        st = io_gguf_bool(k->w, "tokenizer.ggml.add_eos_token", false, err);
    return st;
}

/* Tokens of Gemma 4 that an answer shows: parsers of others read them in the text. */
static bool is_shown(const char *s, size_t n)
{
    static const char *const shown[] = {"<|channel>",   "<channel|>",       "<|tool_call>",
                                        "<tool_call|>", "<|tool_response>", "<tool_response|>",
                                        "<|\"|>"};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        if (strlen(shown[i]) == n && !memcmp(shown[i], s, n))
            return true;
    return false;
}

/* "<0x0A>" */
static bool is_byte(const char *s, size_t n)
{
    return n == 6 && !memcmp(s, "<0x", 3) && s[5] == '>' && strspn(s + 3, "0123456789ABCDEF") >= 2;
}

struct lists {
    const char **token;
    size_t *n_bytes;
    int32_t *type;
    float *score;
    char (*pad)[32]; /* spellings of ids that have no token */
    size_t n;
};

static void lists_release(struct lists *l)
{
    mem_free(l->token);
    mem_free(l->n_bytes);
    mem_free(l->type);
    mem_free(l->score);
    mem_free(l->pad);
}

/* Rows of the embedding without a token get unused ones. */
static ingle_status fill_lists(const struct vocab *k, const struct text_vocab *v, struct lists *l,
                               struct err *err)
{
    const size_t most = v->n_tokens * 2 + 65536;
    if (k->s->n_vocab > most)
        return err_set(err, INGLE_LIMIT,
                       "%s: config.json: 'vocab_size' is %llu with %zu tokens, the limit is %zu",
                       k->s->path, (unsigned long long)k->s->n_vocab, v->n_tokens, most);
    if (k->s->n_vocab && k->s->n_vocab < v->n_tokens)
        return err_set(err, INGLE_FORMAT,
                       "%s: tokenizer.json has %zu tokens, 'vocab_size' of config.json is %llu",
                       k->s->path, v->n_tokens, (unsigned long long)k->s->n_vocab);
    l->n = k->s->n_vocab ? (size_t)k->s->n_vocab : v->n_tokens;
    l->token = mem_calloc(l->n + 1, sizeof *l->token);
    l->n_bytes = mem_calloc(l->n + 1, sizeof *l->n_bytes);
    l->type = mem_calloc(l->n + 1, sizeof *l->type);
    l->score = mem_calloc(l->n + 1, sizeof *l->score);
    l->pad = mem_calloc(l->n + 1, sizeof *l->pad);
    if (!l->token || !l->n_bytes || !l->type || !l->score || !l->pad)
        return err_set(err, INGLE_NOMEM, "%s: no memory for %zu tokens", k->s->path, l->n);
    const bool gemma = v->kind == TEXT_GEMMA4;
    for (size_t i = 0; i < l->n; i++) {
        const bool is = i < v->n_tokens && v->token_bytes[i];
        if (!is)
            snprintf(l->pad[i], sizeof l->pad[i], "[PAD%zu]", i);
        l->token[i] = is ? v->token[i] : l->pad[i];
        l->n_bytes[i] = is ? v->token_bytes[i] : strlen(l->pad[i]);
        l->type[i] = is ? v->token_type[i] : TEXT_UNUSED;
        l->score[i] = -1000;
        if (is && gemma && is_shown(v->token[i], v->token_bytes[i]))
            l->type[i] = TEXT_USER_DEFINED;
        else if (is && gemma && l->type[i] == TEXT_NORMAL &&
                 is_byte(v->token[i], v->token_bytes[i]))
            l->type[i] = TEXT_BYTE;
    }
    return INGLE_OK;
}

static ingle_status put_tokens(const struct vocab *k, const struct text_vocab *v, struct err *err)
{
    struct lists l = {0};
    const bool gemma = v->kind == TEXT_GEMMA4;
    ingle_status st =
        io_gguf_str(k->w, "tokenizer.ggml.model", gemma ? "gemma4" : "gpt2", gemma ? 6 : 4, err);
    if (!st && !gemma)
        st = io_gguf_str(k->w, "tokenizer.ggml.pre", "joyai-llm", 9, err);
    if (!st)
        st = fill_lists(k, v, &l, err);
    if (!st)
        st = io_gguf_strs(k->w, "tokenizer.ggml.tokens", l.token, l.n_bytes, l.n, err);
    if (!st && gemma)
        st = io_gguf_f32s(k->w, "tokenizer.ggml.scores", l.score, l.n, err);
    if (!st)
        st = io_gguf_i32s(k->w, "tokenizer.ggml.token_type", l.type, l.n, err);
    if (!st)
        st =
            io_gguf_strs(k->w, "tokenizer.ggml.merges", v->merge, v->merge_bytes, v->n_merges, err);
    lists_release(&l);
    return st;
}

/* ---- template ---- */

/* That of the checkpoint; NULL: it has none. */
static const char *own_template(const struct vocab *k, size_t *n)
{
    struct json_object *o = json_member(k->config, "chat_template");
    if (k->side) {
        *n = k->n_side;
        return k->side;
    }
    for (size_t i = 0; json_object_is_type(o, json_type_array) && i < json_object_array_length(o);
         i++) {
        struct json_object *one = json_object_array_get_idx(o, i), *name = json_member(one, "name");
        if (name && !strcmp(json_object_get_string(name), "default")) {
            o = json_member(one, "template");
            break;
        }
    }
    if (!json_object_is_type(o, json_type_string))
        return NULL;
    *n = (size_t)json_object_get_string_len(o);
    return json_object_get_string(o);
}

static bool is_variant(const struct tool_source *s, bool gemma)
{
    uint64_t n;
    if (gemma)
        return io_get_u64(s->meta, "gemma4.embedding_length_per_layer_input", 1, UINT32_MAX, &n,
                          NULL) == INGLE_OK;
    return json_member(s->config, "dspark_block_size") != NULL;
}

static ingle_status put_template(const struct vocab *k, const struct text_vocab *v, struct err *err)
{
    static const char key[] = "tokenizer.chat_template";
    const bool gemma = v->kind == TEXT_GEMMA4;
    size_t n = 0;
    const char *own = own_template(k, &n);
    if (own)
        return io_gguf_str(k->w, key, own, n, err);
    struct str text;
    str_init(&text);
    text_chat_jinja(gemma ? TEXT_CHAT_GEMMA4 : TEXT_CHAT_DEEPSEEK_V4, is_variant(k->s, gemma),
                    &text);
    const ingle_status st =
        str_ok(&text) ? io_gguf_str(k->w, key, text.at, text.n, err)
                      : err_set(err, INGLE_NOMEM, "%s: no memory for the template", k->s->path);
    str_release(&text);
    return st;
}

static ingle_status put_vocab(void *arg, const struct text_vocab *v, struct err *err)
{
    const struct vocab *k = arg;
    ingle_status st = put_tokens(k, v, err);
    if (!st)
        st = put_ids(k, v, err);
    return st || !k->with_template ? st : put_template(k, v, err);
}

/* ---- a drafter's target that is a GGUF file ---- */

static ingle_status copy_vocab(const struct tool_source *s, const struct io_file *f,
                               struct io_gguf *w, struct err *err)
{
    const struct io_meta *meta = io_metadata(f);
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < io_meta_count(meta) && !st; i++) {
        const struct io_value *v = io_meta_at(meta, i);
        const bool mask = !strcmp(v->key, "tokenizer.ggml.mask_token_id");
        if (!strncmp(v->key, "tokenizer.ggml.", 15) && !mask && !io_meta_find(s->meta, v->key))
            st = io_gguf_value(w, v, err);
        else if (mask && !json_member(s->config, "mask_token_id") &&
                 !json_member(s->config, "dflash_config") &&
                 !json_member(s->config, "dspark_noise_token_id"))
            st = io_gguf_value(w, v, err);
    }
    struct json_object *mask =
        json_member(json_member(s->config, "dflash_config"), "mask_token_id");
    mask = mask                                 ? mask
           : json_member(s->config, "mask_token_id") ? json_member(s->config, "mask_token_id")
                                                : json_member(s->config, "dspark_noise_token_id");
    if (!st && mask && json_object_get_int64(mask) >= 0)
        st = io_gguf_u32(w, "tokenizer.ggml.mask_token_id", (uint32_t)json_object_get_int64(mask),
                         err);
    return st;
}

static ingle_status side_json(const struct io_file *f, const char *name, struct json_object **out,
                              struct err *err)
{
    char *text;
    size_t n;
    ingle_status st = io_side_file(f, name, SIDE_LIMIT, &text, &n, err);
    if (st)
        return st == INGLE_NOTFOUND ? INGLE_OK : st;
    st = json_parse(text, n, NULL, out, err);
    mem_free(text);
    return st ? err_prefix(err, "%s: %s", io_path(f), name) : INGLE_OK;
}

static ingle_status write_vocab(struct vocab *k, const struct io_file *f, struct err *err)
{
    char *text = NULL;
    size_t n = 0;
    ingle_status st = io_side_file(f, "tokenizer.json", TOKENIZER_LIMIT, &text, &n, err);
    if (st == INGLE_NOTFOUND) {
        report(k->s->sink, INGLE_REPORT_WARN, "convert", k->s->path,
               "there is no tokenizer.json: the file has no vocabulary, and llama.cpp does not "
               "load it%s",
               k->s->draft ? " (--target-model-dir names the checkpoint that has it)" : "");
        return INGLE_OK;
    }
    if (!st)
        st = side_json(f, "tokenizer_config.json", &k->config, err);
    if (!st && k->with_template) {
        const ingle_status side =
            io_side_file(f, "chat_template.jinja", SIDE_LIMIT, &k->side, &k->n_side, err);
        st = side == INGLE_NOTFOUND ? INGLE_OK : side;
    }
    if (!st)
        st = text_vocab_from_json("tokenizer.json", text, n, put_vocab, k, err);
    if (st && st != INGLE_NOTFOUND)
        err_prefix(err, "%s", io_path(f));
    mem_free(text);
    mem_free(k->side);
    json_object_put(k->config);
    return st;
}

ingle_status tool_source_vocab(const struct tool_source *s, struct io_gguf *w, struct err *err)
{
    struct vocab k = {.s = s,
                      .w = w,
                      .with_template = s->kind == SOURCE_GEMMA4 || s->kind == SOURCE_DEEPSEEK4 ||
                                       s->kind == SOURCE_MTP || s->kind == SOURCE_MTP_ONLY};
    struct io_file *target;
    if (!s->o.target)
        return write_vocab(&k, s->file, err);
    ingle_status st = io_open(&target, s->o.target, s->sink, err);
    if (st)
        return st;
    st = io_kind(target) == IO_GGUF ? copy_vocab(s, target, w, err) : write_vocab(&k, target, err);
    io_close(target);
    return st;
}
