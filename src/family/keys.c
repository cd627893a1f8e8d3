/* SPDX-License-Identifier: Apache-2.0 */
#include "family/rules.h"

#include "base/str.h"
#include "family/hf/config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the tables that families share: what their forward passes do not have ---- */

const struct family_key family_common_keys[] = {
    {"vision.*", FREE},
    {"audio.*", FREE},
    {"mm.*", FREE},
    {"projector.*", FREE},
    {"classifier.*", FREE},
    {"pooling_type", FREE}, /* of embeddings */
    {"tie_word_embeddings", READ},
    {"rope.scaling.finetuned", FREE},
    {"tensor_data_layout", WORD("reference")},
    {"use_parallel_residual", FLAG(0)},
    {"swin_norm", FLAG(0)},
    {"logit_scale", NUMBER(1, 0)},
    {"residual_scale", NUMBER(1, 0)},
    {"embedding_scale", NUMBER(0, 0)},
    {"attn_logit_softcapping", NUMBER(0, 0)},
    {"router_logit_softcapping", NUMBER(0, 0)},
    {"final_logit_softcapping", NUMBER(0, 0)},
    {"leading_dense_block_count", NUMBER(0, 0)},
    {"interleave_moe_layer_step", NUMBER(0, 1)},
    {"moe_every_n_layers", NUMBER(0, 1)},
    {"full_attention_interval", NUMBER(0, 0)},
    {"activation_sparsity_scale", NUMBER(0, 0)},
    {"altup.*", NUMBER(0, 0)},
    {"laurel.*", NUMBER(0, 0)},
    {"ssm.*", NUMBER(0, 0)},
    {"rescale_every_n_layers", NUMBER(0, 0)},
    {"token_shift_count", NUMBER(0, 0)},
    {"decoder_block_count", NUMBER(0, 0)},
    {"num_deepstack_layers", NUMBER(0, 0)},
    {"n_deepstack_layers", NUMBER(0, 0)},
    {"nextn_predict_layers", NUMBER(0, 0)},
    {"embedding_length_per_layer_input", NUMBER(0, 0)},
    {"expert_count", NUMBER(0, 0)},
    {"expert_shared_count", NUMBER(0, 0)},
    {"expert_shared_feed_forward_length", NUMBER(0, 0)},
    {"expert_chunk_feed_forward_length", NUMBER(0, 0)},
    {"expert_group_count", NUMBER(0, 1)},
    {"expert_group_used_count", NUMBER(0, 1)},
    {"expert_group_scale", NUMBER(0, 1)},
    {"experts_per_group", NUMBER(0, 0)},
    {"expert_weights_scale", NUMBER(1, 0)},
    {"expert_weights_norm", FLAG(1)},
    {"attention.causal", FLAG(1)},
    {"attention.max_alibi_bias", NUMBER(0, 0)},
    {"attention.clamp_kqv", NUMBER(0, 0)},
    {"attention.layer_norm_epsilon", NUMBER(0, 0)},
    {"attention.group_norm_epsilon", NUMBER(0, 0)},
    {"attention.group_norm_groups", NUMBER(0, 0)},
    {"attention.q_lora_rank", NUMBER(0, 0)},
    {"attention.kv_lora_rank", NUMBER(0, 0)},
    {"attention.key_length_mla", NUMBER(0, 0)},
    {"attention.value_length_mla", NUMBER(0, 0)},
    {"attention.relative_buckets_count", NUMBER(0, 0)},
    {"attention.output_scale", NUMBER(1, 0)},
    {"attention.value_scale", NUMBER(1, 0)},
    {"attention.temperature_length", NUMBER(0, 0)},
    {"attention.temperature_scale", NUMBER(0, 0)},
    {"attention.shared_kv_layers", NUMBER(0, 0)},
    {"attention.indexer.*", NUMBER(0, 0)},
    {"rope.scale_linear", NUMBER(1, 0)},
    {"rope.scaling.type", WORD("none|default")},
    {"rope.scaling.factor", NUMBER(1, 0)},
    {"rope.scaling.attn_factor", NUMBER(1, 0)},
    {"rope.attn_factor", NUMBER(1, 0)},
    {"rope.scaling.alpha", NUMBER(0, 0)},
    {"rope.scaling.yarn_log_multiplier", NUMBER(0, 0)},
    {"rope.scaling.yarn_ext_factor", NUMBER(-1, 0)},
    {"rope.scaling.yarn_attn_factor", NUMBER(1, 0)},
    {"rope.scaling.original_context_length", FREE}, /* nothing is scaled from it */
    {"rope.scaling.yarn_beta_fast", FREE},
    {"rope.scaling.yarn_beta_slow", FREE},
    {"rope.dimension_sections", NUMBER(0, 0)},
    {NULL, READ},
};

/* What transformers writes into any config.json, and its like in other models' files. */
const struct family_key family_common_config_keys[] = {
    {"model_type", READ},
    {"text_config", READ},
    {"tie_word_embeddings", READ},
    {"architectures", READ},
    {"quantization_config*", READ},
    {"quantization*", READ},
    {"compression_config*", READ},
    {"vision_config*", FREE},
    {"audio_config*", FREE},
    {"dtype", FREE},
    {"torch_dtype", FREE},
    {"transformers_version", FREE},
    {"auto_map*", FREE},
    {"_name_or_path", FREE},
    {"name_or_path", FREE},
    {"_commit_hash", FREE},
    {"_attn_implementation*", FREE},
    {"attn_implementation", FREE},
    {"_experts_implementation*", FREE},
    {"initializer_range", FREE},
    {"use_cache", FREE},
    {"cache_implementation", FREE},
    {"attention_dropout", FREE},
    {"hidden_dropout", FREE},
    {"embd_pdrop", FREE},
    {"resid_pdrop", FREE},
    {"classifier_dropout", FREE},
    {"router_aux_loss_coef", FREE},
    {"router_jitter_noise", FREE},
    {"output_router_logits", FREE},
    {"output_attentions", FREE},
    {"output_hidden_states", FREE},
    {"return_dict*", FREE},
    {"aux_loss_alpha", FREE},
    {"seq_aux", FREE},
    {"gradient_checkpointing", FREE},
    {"ep_size", FREE},
    {"pretraining_tp", FREE},
    {"chunk_size_feed_forward", FREE}, /* the same in pieces */
    {"problem_type", FREE},
    {"id2label*", FREE},
    {"label2id*", FREE},
    {"num_labels", FREE},
    {"task_specific_params*", FREE},
    {"bos_token_id", FREE},
    {"eos_token_id", FREE},
    {"pad_token_id", FREE},
    {"sep_token_id", FREE},
    {"decoder_start_token_id", FREE},
    {"forced_bos_token_id", FREE},
    {"forced_eos_token_id", FREE},
    {"suppress_tokens", FREE},
    {"begin_suppress_tokens", FREE},
    {"bad_words_ids", FREE},
    {"prefix", FREE},
    {"tokenizer_class", FREE},
    /* Generation, as configs had it before generation_config.json. */
    {"do_sample", FREE},
    {"temperature", FREE},
    {"top_k", FREE},
    {"top_p", FREE},
    {"typical_p", FREE},
    {"repetition_penalty", FREE},
    {"length_penalty", FREE},
    {"no_repeat_ngram_size", FREE},
    {"encoder_no_repeat_ngram_size", FREE},
    {"diversity_penalty", FREE},
    {"num_beams", FREE},
    {"num_beam_groups", FREE},
    {"num_return_sequences", FREE},
    {"early_stopping", FREE},
    {"max_length", FREE},
    {"min_length", FREE},
    {"output_scores", FREE},
    {"remove_invalid_values", FREE},
    {"exponential_decay_length_penalty", FREE},
    /* Media. */
    {"image_token_id", FREE},
    {"video_token_id", FREE},
    {"audio_token_id", FREE},
    {"image_token_index", FREE},
    {"audio_token_index", FREE},
    {"boi_token_id", FREE},
    {"eoi_token_id", FREE},
    {"boa_token_id", FREE},
    {"eoa_token_id", FREE},
    {"boi_token_index", FREE},
    {"eoi_token_index", FREE},
    {"eoa_token_index", FREE},
    {"vision_soft_tokens_per_image", FREE},
    {"audio_soft_tokens_per_image", FREE},
    {"mm_tokens_per_image", FREE},
    /* What neither family has. */
    {"is_decoder", FREE},
    {"is_encoder_decoder", FLAG(0)},
    {"add_cross_attention", FLAG(0)},
    {"cross_attention_hidden_size", NUMBER(0, 0)},
    {"pruned_heads", NUMBER(0, 0)},
    {"attention_bias", FLAG(0)},
    {"mlp_bias", FLAG(0)},
    {"use_bias", FLAG(0)},
    {"attn_logit_softcapping", NUMBER(0, 0)},
    {"final_logit_softcapping", NUMBER(0, 0)},
    {"router_logit_softcapping", NUMBER(0, 0)},
    {"query_pre_attn_scalar", NUMBER(0, 0)},
    {"attention_multiplier", NUMBER(1, 0)},
    {"residual_multiplier", NUMBER(1, 0)},
    {"embedding_multiplier", NUMBER(1, 0)},
    {"logits_scaling", NUMBER(1, 0)},
    {"logit_scale", NUMBER(1, 0)},
    {"rope_scaling", NUMBER(0, 0)},
    {"num_nextn_predict_layers", FREE}, /* they draft */
    {"n_group", NUMBER(0, 1)},
    {"topk_group", NUMBER(0, 1)},
    {"first_k_dense_replace", NUMBER(0, 0)},
    {"moe_layer_freq", NUMBER(1, 0)},
    {"kv_lora_rank", NUMBER(0, 0)},
    {NULL, READ},
};

/* ---- looking up ---- */

static bool matches(const char *pattern, const char *name)
{
    const size_t n = strlen(pattern);
    return n && pattern[n - 1] == '*' ? strncmp(pattern, name, n - 1) == 0
                                      : strcmp(pattern, name) == 0;
}

static const struct family_key *look_up(const struct family_key *const table[2], const char *name)
{
    for (int t = 0; t < 2; t++)
        for (const struct family_key *k = table[t]; k->name; k++)
            if (matches(k->name, name))
                return k;
    return NULL;
}

static bool is_word(const char *words, const char *s, size_t n)
{
    while (*words) {
        const size_t k = strcspn(words, "|");
        if (k == n && memcmp(words, s, n) == 0)
            return true;
        words += k + (words[k] == '|');
    }
    return false;
}

/* Of names that are in no table: these parts of a name stand for something that is computed. */
static bool is_structural(const char *name)
{
    static const char *const part[] = {
        "attention",    "attn",
        "rope",         "rotary",
        "expert",       "moe",
        "router",       "gating",
        "scal",         "softcap",
        "norm",         "bias",
        "activa",       "_act",
        "window",       "layer",
        "head",         "logit",
        "rank",         "compress",
        "residual",     "embedding",
        "mlp",          "ffn",
        "feed_forward", "hyper_connection",
        "multiplier",   "altup",
        "hidden_size",  "intermediate",
        "causal",       "block_size",
        "num_blocks",   "recurrent",
        "conv",         "swiglu",
        "clamp",
    };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (strstr(name, part[i]))
            return true;
    return false;
}

/* Names of unknown keys, for one report. */
struct unknown {
    size_t n;
    char names[320];
};

static void unknown_add(struct unknown *u, const char *name)
{
    const size_t at = strlen(u->names);
    if (at + strlen(name) + 8 < sizeof u->names)
        snprintf(u->names + at, sizeof u->names - at, "%s%s", at ? ", " : "", name);
    else if (at && strcmp(u->names + at - 3, "...") != 0)
        snprintf(u->names + at, sizeof u->names - at, ", ...");
    u->n++;
}

static void unknown_report(const struct unknown *u, const struct report_sink *sink,
                           const char *path)
{
    if (u->n)
        report(sink, INGLE_REPORT_WARN, "config", path, "%zu keys are not known and not used: %s",
               u->n, u->names);
}

/* ---- one value, whatever it came from ---- */

struct value {
    enum { NOTHING, A_NUMBER, A_FLAG, A_WORD } kind;
    double number;
    const char *word;
    size_t n_word;
};

static bool is_off(const struct value *v)
{
    return v->kind == NOTHING || (v->kind != A_WORD && !(v->number > 0) && !(v->number < 0)) ||
           (v->kind == A_WORD && (!v->n_word || is_word("none|default|None", v->word, v->n_word)));
}

static bool equals(double x, double y)
{
    return !(x < y) && !(x > y);
}

static bool is_allowed(const struct family_key *k, const struct value *v)
{
    switch (k->rule) {
    case FAMILY_KEY_NUMBER:
        return v->kind != A_WORD && (equals(v->number, k->a) || equals(v->number, k->b));
    case FAMILY_KEY_FLAG:
        return v->kind != A_WORD && equals(v->number, k->a);
    case FAMILY_KEY_WORD:
        return v->kind == A_WORD ? is_word(k->words, v->word, v->n_word) : equals(v->number, 0);
    default:
        return true;
    }
}

static void show(const struct value *v, char out[80])
{
    if (v->kind == A_WORD)
        snprintf(out, 80, "'%.*s'", (int)(v->n_word < 60 ? v->n_word : 60), v->word);
    else if (v->kind == A_FLAG)
        snprintf(out, 80, "%s", equals(v->number, 0) ? "false" : "true");
    else
        snprintf(out, 80, "%.10g", v->number);
}

static ingle_status refuse(const char *path, const char *key, const struct family_key *k,
                           const struct value *v, struct err *err)
{
    char is[80], want[120];
    show(v, is);
    if (k->rule == FAMILY_KEY_WORD)
        snprintf(want, sizeof want, "'%.100s'", k->words);
    else if (k->rule == FAMILY_KEY_FLAG)
        snprintf(want, sizeof want, "%s", equals(k->a, 0) ? "false" : "true");
    else if (equals(k->a, k->b))
        snprintf(want, sizeof want, "%g", k->a);
    else
        snprintf(want, sizeof want, "%g or %g", k->a, k->b);
    return err_set(err, INGLE_UNSUP, "%s: '%s' is %s, supported is %s", path, key, is, want);
}

static ingle_status refuse_unknown(const char *path, const char *key, const struct value *v,
                                   struct err *err)
{
    char is[80];
    show(v, is);
    return err_set(
        err, INGLE_UNSUP,
        "%s: '%s' is %s: this version does not know the key, and by its name it changes the model",
        path, key, is);
}

/* What to do about one value; k may be NULL. */
static ingle_status judge(const char *path, const char *key, const char *name,
                          const struct family_key *k, const struct value *v, struct unknown *u,
                          struct err *err)
{
    if (k)
        return is_allowed(k, v) ? INGLE_OK : refuse(path, key, k, v, err);
    if (is_off(v))
        return INGLE_OK;
    if (is_structural(name))
        return refuse_unknown(path, key, v, err);
    unknown_add(u, name);
    return INGLE_OK;
}

/* ---- GGUF ---- */

static struct value meta_value(const struct io_value *m, size_t i)
{
    const bool array = m->kind == IO_ARRAY;
    const enum io_value_kind kind = array ? m->elem : m->kind;
    struct value v = {.kind = A_NUMBER};
    if (kind == IO_STR) {
        v.kind = A_WORD;
        v.n_word = m->n;
        v.word = array ? io_array_str(m, i, &v.n_word) : m->v.s;
    } else if (kind == IO_BOOL) {
        v.kind = A_FLAG;
        v.number = array ? io_array_bool(m, i) : m->v.b;
    } else if (kind == IO_F64) {
        v.number = array ? io_array_f64(m, i) : m->v.f;
    } else if (kind == IO_I64) {
        v.number = (double)(array ? io_array_i64(m, i) : m->v.i);
    } else {
        v.number = (double)(array ? io_array_u64(m, i) : m->v.u);
    }
    return v;
}

static ingle_status same_meta(const struct io_meta *m, const char *path, const char *arch,
                              const struct io_value *x, const struct family_key *k, struct err *err)
{
    char other[160];
    snprintf(other, sizeof other, "%s.%s", arch, k->words);
    const struct io_value *y = io_meta_find(m, other);
    const struct value a = meta_value(x, 0), b = y ? meta_value(y, 0) : a;
    if (!y || x->kind == IO_ARRAY || equals(a.number, k->a) || equals(a.number, b.number))
        return INGLE_OK;
    return err_set(err, INGLE_UNSUP, "%s: '%s' is %.10g, supported is %.10g as '%s'", path, x->key,
                   a.number, b.number, other);
}

ingle_status family_keys_check(const struct io_meta *m, const char *path, const char *arch,
                               const struct family_key *own, const struct report_sink *sink,
                               struct err *err)
{
    const struct family_key *const table[2] = {own, family_common_keys};
    const size_t n_arch = strlen(arch);
    struct unknown u = {0};
    ingle_status s = INGLE_OK;
    for (size_t i = 0; !s && i < io_meta_count(m); i++) {
        const struct io_value *x = io_meta_at(m, i);
        if (strncmp(x->key, arch, n_arch) != 0 || x->key[n_arch] != '.')
            continue;
        const char *name = x->key + n_arch + 1;
        const struct family_key *k = look_up(table, name);
        if (k && (k->rule == FAMILY_KEY_READ || k->rule == FAMILY_KEY_FREE))
            continue;
        if (k && k->rule == FAMILY_KEY_SAME) {
            s = same_meta(m, path, arch, x, k, err);
            continue;
        }
        const size_t before = u.n;
        for (size_t e = 0; !s && u.n == before && e < (x->kind == IO_ARRAY ? x->n : 1); e++) {
            const struct value v = meta_value(x, e);
            s = judge(path, x->key, name, k, &v, &u, err);
        }
    }
    if (!s)
        unknown_report(&u, sink, path);
    return s;
}

/* ---- config.json ---- */

struct walk {
    const struct family_key *const *table;
    struct json_object *root; /* of SAME */
    struct unknown u;
    struct err *err;
};

static struct value json_value(struct json_object *o)
{
    struct value v = {.kind = A_NUMBER};
    if (!o || json_object_is_type(o, json_type_null)) {
        v.kind = NOTHING;
    } else if (json_object_is_type(o, json_type_string)) {
        v.kind = A_WORD;
        v.word = json_object_get_string(o);
        v.n_word = (size_t)json_object_get_string_len(o);
    } else if (json_object_is_type(o, json_type_boolean)) {
        v.kind = A_FLAG;
        v.number = json_object_get_boolean(o);
    } else {
        v.number = json_object_get_double(o);
    }
    return v;
}

/* The table has members of an object of this name. */
static bool has_members(const struct walk *w, const char *name)
{
    const size_t n = strlen(name);
    for (int t = 0; t < 2; t++)
        for (const struct family_key *k = w->table[t]; k->name; k++)
            if (strncmp(k->name, name, n) == 0 && k->name[n] == '.')
                return true;
    return false;
}

static ingle_status judge_json(struct walk *w, const char *name, struct json_object *o)
{
    static const char file[] = "config.json";
    const struct family_key *k = look_up(w->table, name);
    if (!o || json_object_is_type(o, json_type_null) ||
        (k && (k->rule == FAMILY_KEY_READ || k->rule == FAMILY_KEY_FREE)))
        return INGLE_OK;
    if (k && k->rule == FAMILY_KEY_SAME) {
        const struct value a = json_value(o), b = json_value(family_config_get(w->root, k->words));
        if (b.kind == NOTHING || equals(a.number, k->a) || equals(a.number, b.number))
            return INGLE_OK;
        return err_set(w->err, INGLE_UNSUP, "%s: '%s' is %.10g, supported is %.10g as '%s'", file,
                       name, a.number, b.number, k->words);
    }
    if (json_object_is_type(o, json_type_array)) {
        const size_t before = w->u.n;
        for (size_t i = 0; w->u.n == before && i < json_object_array_length(o); i++) {
            const struct value v = json_value(json_object_array_get_idx(o, i));
            const ingle_status s =
                v.kind == NOTHING ? INGLE_OK : judge(file, name, name, k, &v, &w->u, w->err);
            if (s)
                return s;
        }
        return INGLE_OK;
    }
    struct value v = json_value(o);
    if (json_object_is_type(o, json_type_object)) { /* of unknown members */
        if (!json_object_object_length(o))
            return INGLE_OK;
        v = (struct value){.kind = A_WORD, .word = "an object", .n_word = 9};
    }
    return judge(file, name, name, k, &v, &w->u, w->err);
}

static ingle_status walk_object(struct walk *w, const char *prefix, struct json_object *o,
                                int depth)
{
    char name[160];
    json_object_object_foreach(o, key, val)
    {
        snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "." : "", key);
        const ingle_status s =
            json_object_is_type(val, json_type_object) && depth < 4 && has_members(w, name)
                ? walk_object(w, name, val, depth + 1)
                : judge_json(w, name, val);
        if (s)
            return s;
    }
    return INGLE_OK;
}

ingle_status family_keys_check_config(struct json_object *config, const struct family_key *own,
                                      const struct report_sink *sink, struct err *err)
{
    const struct family_key *const table[2] = {own, family_common_config_keys};
    struct json_object *text = family_config_get(config, "text_config");
    struct walk w = {.table = table, .root = text ? text : config, .err = err};
    ingle_status s =
        json_object_is_type(config, json_type_object) ? walk_object(&w, "", config, 0) : INGLE_OK;
    if (!s && json_object_is_type(text, json_type_object))
        s = walk_object(&w, "", text, 0);
    if (!s)
        unknown_report(&w.u, sink, "config.json");
    return s;
}

/* ---- shapes and the keys that they follow from ---- */

/* " 'ARCH.KEY' is 4", of an array the layer's element. */
static void add_key(struct str *to, const struct io_meta *meta, const char *arch, const char *key,
                    size_t n_key, int64_t il)
{
    char name[160], is[80];
    snprintf(name, sizeof name, "%s.%.*s", arch, (int)n_key, key);
    const struct io_value *v = io_meta_find(meta, name);
    str_addf(to, "%s '%s' ", to->n ? "," : "", name);
    if (!v) {
        str_adds(to, "is missing");
    } else if (v->kind == IO_ARRAY && (il < 0 || (uint64_t)il >= v->n)) {
        str_addf(to, "has %zu elements", v->n);
    } else {
        const struct value one = meta_value(v, il < 0 ? 0 : (size_t)il);
        show(&one, is);
        str_addf(to, "is %s", is);
        if (v->kind == IO_ARRAY)
            str_addf(to, " for layer %lld", (long long)il);
    }
}

void family_shape_explain(const struct model *m, const struct io_meta *meta, const char *arch,
                          const struct family_shape *table, const char *name, int64_t il,
                          struct err *err)
{
    struct str text;
    char first[64];
    const bool there = model_find(m, name) != NULL;
    if (!err || err->status != INGLE_FORMAT || io_kind(model_file(m)) != IO_GGUF ||
        (there && !strstr(err->msg, "(contiguous first)")))
        return;
    while (table->suffix && !str_ends(name, table->suffix))
        table++;
    snprintf(first, sizeof first, "blk.%lld.attn_norm.weight", (long long)il);
    const char *keys = there                              ? table->shape
                       : il >= 0 && !model_find(m, first) ? "block_count"
                                                          : table->there;
    str_init(&text);
    while (keys && *keys) {
        const size_t n = strcspn(keys, "|");
        add_key(&text, meta, arch, keys, n, il);
        keys += n + (keys[n] == '|');
    }
    const size_t at = strlen(err->msg);
    if (text.n && str_ok(&text))
        snprintf(err->msg + at, sizeof err->msg - at, "; %s:%s",
                 there ? "its shape follows from" : "it belongs here because of", text.at);
    str_release(&text);
}

/* "blk.12.": 12; -1: it is no tensor of a block. */
static int64_t block_of(const char *name)
{
    enum { DIGITS = 9 };
    const size_t n = strncmp(name, "blk.", 4) == 0 ? strspn(name + 4, "0123456789") : 0;
    return n && n <= DIGITS && name[4 + n] == '.' ? strtoll(name + 4, NULL, 10) : -1;
}

/* Whether `name`, which is there, belongs to a block that drafts, or to none from n_layers on. */
static bool block_is_right(const struct model *m, const char *name, int64_t n_layers,
                           const char *draft)
{
    char mark[96];
    const int64_t block = block_of(name);
    snprintf(mark, sizeof mark, "blk.%lld.%.60s", (long long)block, draft ? draft : "");
    return block < n_layers || (draft && model_find(m, mark));
}

ingle_status family_check_layers(const struct model *m, const char *arch, int64_t n_layers,
                                 const char *draft, struct err *err)
{
    const struct io_file *f = model_file(m);
    char next[64];
    snprintf(next, sizeof next, "blk.%lld.attn_norm.weight", (long long)n_layers);
    const struct io_tensor *t = io_kind(f) == IO_GGUF ? NULL : model_find(m, next);
    if (t && !block_is_right(m, next, n_layers, draft)) /* a checkpoint has other names */
        return err_set(err, INGLE_FORMAT, "'num_hidden_layers' is %lld, but tensor '%s' is there",
                       (long long)n_layers, t->name);
    for (size_t i = 0; io_kind(f) == IO_GGUF && i < io_n_tensors(f); i++) {
        const char *name = io_tensor_at(f, i)->name;
        if (!block_is_right(m, name, n_layers, draft))
            return err_set(err, INGLE_FORMAT, "'%s.block_count' is %lld, but tensor '%s' is there",
                           arch, (long long)n_layers, name);
    }
    return INGLE_OK;
}

ingle_status family_check_there(const struct model *m, const struct io_meta *meta, const char *arch,
                                const char *key, const char *name, struct err *err)
{
    char full[160];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    if (io_kind(model_file(m)) != IO_GGUF || !model_find(m, name))
        return INGLE_OK;
    return err_set(err, INGLE_FORMAT, "'%s' is %s, but tensor '%s' is there", full,
                   io_meta_find(meta, full) ? "0" : "missing", name);
}
