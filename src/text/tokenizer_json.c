/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer from a Hugging Face tokenizer.json.  The file describes a pipeline; only the
 * two pipelines that the encoders implement are taken, anything else is refused by name. */
#include "text/tokenizer_impl.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include <string.h>

/* The patterns of DeepSeek's three splits, in both spellings of CR and LF that are about. */
#define SPLIT_WORDS(newline)                                                                       \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^" newline                             \
    "\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[" newline "]*|\\s*[" newline            \
    "]+|\\s+(?!\\S)|\\s+"

static const char *const deepseek_split[3][2] = {
    {"\\p{N}{1,3}", "\\p{N}{1,3}"},
    {"[一-龥\xE3\x81\x80-ゟ゠-ヿ]+", "[一-龥\\u3040-\\u309F\\u30A0-\\u30FF]+"},
    {SPLIT_WORDS("\r\n"), SPLIT_WORDS("\\r\\n")},
};

const char *text_deepseek_split(int i) { return deepseek_split[i][1]; }

struct reader {
    const char *source;
    json_object *root, *model;
    struct text_vocab v;
    const char **token, **merge;
    size_t *token_bytes, *merge_bytes, *merge_left_bytes;
    int32_t *token_type;
    struct str joined; /* the merges, after each other */
    struct err *err;
};

static json_object *get(json_object *o, const char *key)
{
    json_object *v = NULL;
    return json_object_is_type(o, json_type_object) && json_object_object_get_ex(o, key, &v) ? v
                                                                                             : NULL;
}

/* A member's text; "null" and "(another type)" for what has none, which no check expects. */
static const char *text(json_object *o, const char *key)
{
    json_object *v = get(o, key);
    if (!v)
        return "null";
    return json_object_is_type(v, json_type_string) ? json_object_get_string(v) : "(another type)";
}

static bool flag(json_object *o, const char *key)
{
    json_object *v = get(o, key);
    return v && (!json_object_is_type(v, json_type_boolean) || json_object_get_boolean(v));
}

static bool is(json_object *o, const char *key, const char *value)
{
    return strcmp(text(o, key), value) == 0;
}

static ingle_status expected(const struct reader *r, const char *field, const char *value,
                             const char *want)
{
    return err_set(r->err, INGLE_UNSUP, "%s: %s is '%.100s', expected %s", r->source, field, value,
                   want);
}

/* Steps of a normalizer or pre_tokenizer section: none, one, or a Sequence's list. */
static size_t n_steps(json_object *section, const char *list)
{
    if (!section)
        return 0;
    if (!is(section, "type", "Sequence"))
        return 1;
    json_object *a = get(section, list);
    return json_object_is_type(a, json_type_array) ? json_object_array_length(a) : 0;
}

static json_object *step(json_object *section, const char *list, size_t i)
{
    return is(section, "type", "Sequence") ? json_object_array_get_idx(get(section, list), i)
                                           : section;
}

static ingle_status check_model(const struct reader *r)
{
    json_object *m = r->model, *dropout = get(m, "dropout");
    if (!is(m, "type", "BPE"))
        return expected(r, "model.type", text(m, "type"), "'BPE'");
    if (dropout && json_object_get_double(dropout) != 0)
        return expected(r, "model.dropout", json_object_get_string(dropout), "null");
    static const char *const affix[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++)
        if (get(m, affix[i]) && !is(m, affix[i], ""))
            return err_set(r->err, INGLE_UNSUP, "%s: model.%s is '%.100s', expected null",
                           r->source, affix[i], text(m, affix[i]));
    if (flag(m, "ignore_merges"))
        return expected(r, "model.ignore_merges", "true", "'false'");
    const bool gemma = r->v.kind == TEXT_GEMMA4;
    if (flag(m, "byte_fallback") != gemma)
        return expected(r, "model.byte_fallback", gemma ? "false" : "true",
                        gemma ? "'true'" : "'false'");
    return INGLE_OK;
}

/* Spaces become U+2581; a split at spaces finds none any more. */
static ingle_status check_gemma(const struct reader *r, json_object *normalizer, json_object *pre)
{
    json_object *replace = step(normalizer, "normalizers", 0);
    if (n_steps(normalizer, "normalizers") != 1 || !is(replace, "content", "▁") ||
        !is(get(replace, "pattern"), "String", " "))
        return expected(r, "normalizer", text(replace, "content"), "one Replace of ' ' by '▁'");
    const size_t n = n_steps(pre, "pretokenizers");
    json_object *split = n ? step(pre, "pretokenizers", 0) : NULL;
    if (n > 1 || (n && (!is(split, "type", "Split") || !is(get(split, "pattern"), "String", " "))))
        return expected(r, "pre_tokenizer", text(split, "type"), "null or one Split at ' '");
    return INGLE_OK;
}

static ingle_status check_deepseek(const struct reader *r, json_object *normalizer,
                                   json_object *pre)
{
    if (n_steps(normalizer, "normalizers"))
        return expected(r, "normalizer", text(step(normalizer, "normalizers", 0), "type"), "null");
    const size_t n = n_steps(pre, "pretokenizers");
    if (n != 4)
        return err_set(r->err, INGLE_UNSUP, "%s: pre_tokenizer has %zu steps, expected 4",
                       r->source, n);
    for (size_t i = 0; i < 3; i++) {
        json_object *split = step(pre, "pretokenizers", i), *pattern = get(split, "pattern");
        if (!is(split, "type", "Split"))
            return expected(r, "pre_tokenizer split", text(split, "type"), "'Split'");
        if (!is(split, "behavior", "Isolated"))
            return expected(r, "pre_tokenizer split", text(split, "behavior"), "'Isolated'");
        if (flag(split, "invert"))
            return expected(r, "pre_tokenizer split invert", "true", "'false'");
        if (!is(pattern, "Regex", deepseek_split[i][0]) &&
            !is(pattern, "Regex", deepseek_split[i][1]))
            return err_set(r->err, INGLE_UNSUP,
                           "%s: pre_tokenizer pattern is '%.100s', expected '%s'", r->source,
                           text(pattern, "Regex"), deepseek_split[i][1]);
    }
    json_object *bytes = step(pre, "pretokenizers", 3);
    if (flag(bytes, "add_prefix_space") || flag(bytes, "use_regex") || !get(bytes, "use_regex"))
        return err_set(
            r->err, INGLE_UNSUP,
            "%s: pre_tokenizer ByteLevel has add_prefix_space or use_regex, expected neither",
            r->source);
    return INGLE_OK;
}

static ingle_status check_pipeline(struct reader *r)
{
    json_object *normalizer = get(r->root, "normalizer"), *pre = get(r->root, "pre_tokenizer");
    const size_t n_norm = n_steps(normalizer, "normalizers"), n_pre = n_steps(pre, "pretokenizers");
    json_object *first = n_norm ? step(normalizer, "normalizers", 0) : NULL;
    json_object *last = n_pre ? step(pre, "pretokenizers", n_pre - 1) : NULL;
    if (is(last, "type", "ByteLevel"))
        r->v.kind = TEXT_DEEPSEEK;
    else if (is(first, "type", "Replace"))
        r->v.kind = TEXT_GEMMA4;
    else
        return err_set(
            r->err, INGLE_UNSUP,
            "%s: normalizer '%.60s' with pre_tokenizer '%.60s', expected those of Gemma 4 "
            "('Replace') or DeepSeek V3 and V4 ('ByteLevel')",
            r->source, text(first, "type"), text(last, "type"));
    const ingle_status status = check_model(r);
    if (status != INGLE_OK)
        return status;
    return (r->v.kind == TEXT_GEMMA4 ? check_gemma : check_deepseek)(r, normalizer, pre);
}

static ingle_status nomem(const struct reader *r)
{
    return err_set(r->err, INGLE_NOMEM, "no memory for the tokenizer of %s", r->source);
}

static ingle_status check_id(const struct reader *r, const char *field, json_object *id)
{
    if (json_object_is_type(id, json_type_int) && json_object_get_int64(id) >= 0 &&
        json_object_get_uint64(id) < r->v.n_tokens)
        return INGLE_OK;
    return err_set(r->err, INGLE_FORMAT, "%s: %s has the id %.40s, expected less than %zu tokens",
                   r->source, field, id ? json_object_get_string(id) : "null", r->v.n_tokens);
}

/* Gives token id its spelling; the same one twice is fine. */
static ingle_status set_token(struct reader *r, size_t id, const char *s, size_t n)
{
    if (r->token[id] && (r->token_bytes[id] != n || memcmp(r->token[id], s, n) != 0))
        return err_set(r->err, INGLE_FORMAT, "%s: two tokens have the id %zu", r->source, id);
    r->token[id] = s;
    r->token_bytes[id] = n;
    return INGLE_OK;
}

/* DeepSeek's file marks few of its control tokens as special.  As in the GGUF files made from
 * it, those in <|bars|> and <｜bars｜> are. */
static bool is_control(json_object *added, const char *s, size_t n)
{
    static const char *const open[] = {"<|", "<｜"}, *const close[] = {"|>", "｜>"};
    if (flag(added, "special"))
        return true;
    for (int i = 0; i < 2; i++) {
        const size_t k = strlen(open[i]);
        if (n >= 2 * k && memcmp(s, open[i], k) == 0 && memcmp(s + n - k, close[i], k) == 0)
            return true;
    }
    return false;
}

static ingle_status read_added(struct reader *r, json_object *added, size_t i)
{
    static const char *const strange[] = {"single_word", "lstrip", "rstrip"};
    json_object *o = json_object_array_get_idx(added, i), *content = get(o, "content");
    ingle_status status = check_id(r, "an added token", get(o, "id"));
    if (status != INGLE_OK)
        return status;
    const size_t id = json_object_get_uint64(get(o, "id"));
    if (!json_object_is_type(content, json_type_string))
        return err_set(r->err, INGLE_FORMAT, "%s: added token %zu has no content", r->source, id);
    for (size_t k = 0; k < sizeof strange / sizeof *strange; k++)
        if (flag(o, strange[k]))
            return err_set(r->err, INGLE_UNSUP,
                           "%s: added token %zu has %s, which is not supported", r->source, id,
                           strange[k]);
    const char *s = json_object_get_string(content);
    const size_t n = (size_t)json_object_get_string_len(content);
    r->token_type[id] = is_control(o, s, n) ? TEXT_CONTROL : TEXT_USER_DEFINED;
    return set_token(r, id, s, n);
}

static ingle_status read_vocab(struct reader *r)
{
    json_object *vocab = get(r->model, "vocab"), *added = get(r->root, "added_tokens");
    if (!json_object_is_type(vocab, json_type_object))
        return expected(r, "model.vocab", vocab ? "no object" : "null", "an object");
    const size_t n_added =
        json_object_is_type(added, json_type_array) ? json_object_array_length(added) : 0;
    /* Ids may have holes, but no more of them than there are tokens. */
    const size_t cap = 2 * ((size_t)json_object_object_length(vocab) + n_added);
    r->v.n_tokens = cap;
    r->token = mem_calloc(cap, sizeof *r->token);
    r->token_bytes = mem_calloc(cap, sizeof *r->token_bytes);
    r->token_type = mem_calloc(cap, sizeof *r->token_type);
    if (!r->token || !r->token_bytes || !r->token_type)
        return nomem(r);
    ingle_status status = INGLE_OK;
    json_object_object_foreach(vocab, spelling, id)
    {
        if ((status = check_id(r, "model.vocab", id)) != INGLE_OK)
            return status;
        const size_t i = json_object_get_uint64(id);
        r->token_type[i] = TEXT_NORMAL;
        if ((status = set_token(r, i, spelling, strlen(spelling))) != INGLE_OK)
            return status;
    }
    for (size_t i = 0; i < n_added && status == INGLE_OK; i++)
        status = read_added(r, added, i);
    while (r->v.n_tokens && !r->token[r->v.n_tokens - 1])
        r->v.n_tokens--;
    for (size_t i = 0; i < r->v.n_tokens; i++) {
        if (!r->token[i]) {
            r->token[i] = "";
            r->token_type[i] = TEXT_UNUSED;
        }
    }
    return status;
}

/* "left right" or ["left", "right"]. */
static ingle_status read_merge(struct reader *r, json_object *o, size_t i)
{
    const size_t start = r->joined.n;
    r->merge_left_bytes[i] = 0;
    if (json_object_is_type(o, json_type_string)) {
        const char *s = json_object_get_string(o), *space = s[0] ? strchr(s + 1, ' ') : NULL;
        str_add(&r->joined, s, (size_t)json_object_get_string_len(o));
        r->merge_left_bytes[i] = space ? (size_t)(space - s) : 0;
    } else if (json_object_is_type(o, json_type_array) && json_object_array_length(o) == 2) {
        for (size_t k = 0; k < 2; k++) {
            json_object *part = json_object_array_get_idx(o, k);
            if (!json_object_is_type(part, json_type_string))
                return err_set(r->err, INGLE_FORMAT, "%s: merge %zu is no pair of strings",
                               r->source, i);
            str_add(&r->joined, json_object_get_string(part),
                    (size_t)json_object_get_string_len(part));
            if (k == 0) {
                r->merge_left_bytes[i] = r->joined.n - start;
                str_addc(&r->joined, ' ');
            }
        }
    } else {
        return err_set(r->err, INGLE_FORMAT, "%s: merge %zu is no pair of strings", r->source, i);
    }
    r->merge_bytes[i] = r->joined.n - start;
    return INGLE_OK;
}

static ingle_status read_merges(struct reader *r)
{
    json_object *merges = get(r->model, "merges");
    if (!json_object_is_type(merges, json_type_array))
        return expected(r, "model.merges", merges ? "no array" : "null", "an array");
    const size_t n = json_object_array_length(merges);
    r->v.n_merges = n;
    r->merge = mem_calloc(n, sizeof *r->merge);
    r->merge_bytes = mem_calloc(n, sizeof *r->merge_bytes);
    r->merge_left_bytes = mem_calloc(n, sizeof *r->merge_left_bytes);
    if (n && (!r->merge || !r->merge_bytes || !r->merge_left_bytes))
        return nomem(r);
    for (size_t i = 0; i < n; i++) {
        const ingle_status status = read_merge(r, json_object_array_get_idx(merges, i), i);
        if (status != INGLE_OK)
            return status;
    }
    if (!str_ok(&r->joined))
        return nomem(r);
    const char *at = r->joined.at;
    for (size_t i = 0; i < n; at += r->merge_bytes[i++])
        r->merge[i] = at;
    return INGLE_OK;
}

/* The file does not say which tokens begin and end a text: their spelling does. */
static void find_roles(struct reader *r)
{
    const bool gemma = r->v.kind == TEXT_GEMMA4;
    const char *bos = gemma ? "<bos>" : "<｜begin▁of▁sentence｜>";
    const char *eos = gemma ? "<eos>" : "<｜end▁of▁sentence｜>";
    const char *unk = text(r->model, "unk_token");
    for (size_t i = r->v.n_tokens; i-- > 0;) {
        if (r->token_bytes[i] == strlen(bos) && memcmp(r->token[i], bos, strlen(bos)) == 0)
            r->v.bos = (int32_t)i;
        if (r->token_bytes[i] == strlen(eos) && memcmp(r->token[i], eos, strlen(eos)) == 0)
            r->v.eos = (int32_t)i;
        if (r->token_bytes[i] == strlen(unk) && memcmp(r->token[i], unk, strlen(unk)) == 0)
            r->v.unk = (int32_t)i;
    }
}

static ingle_status read_all(struct reader *r)
{
    r->model = get(r->root, "model");
    ingle_status status = check_pipeline(r);
    if (status == INGLE_OK)
        status = read_vocab(r);
    if (status == INGLE_OK)
        status = read_merges(r);
    if (status != INGLE_OK)
        return status;
    if (r->v.n_tokens > INT32_MAX)
        return err_set(r->err, INGLE_LIMIT, "%s: %zu tokens, at most %d", r->source, r->v.n_tokens,
                       INT32_MAX);
    find_roles(r);
    r->v.token = r->token;
    r->v.token_bytes = r->token_bytes;
    r->v.token_type = r->token_type;
    r->v.merge = r->merge;
    r->v.merge_bytes = r->merge_bytes;
    r->v.merge_left_bytes = r->merge_left_bytes;
    return INGLE_OK;
}

static ingle_status create(void *arg, const struct text_vocab *v, struct err *err)
{
    return text_tokenizer_create(arg, v, err);
}

ingle_status text_tokenizer_from_json(struct tokenizer **out, const char *source, const char *text,
                                      size_t n, struct err *err)
{
    return text_vocab_from_json(source, text, n, create, out, err);
}

ingle_status text_vocab_from_json(const char *source, const char *text, size_t n, text_vocab_fn *fn,
                                  void *arg, struct err *err)
{
    struct reader r = {
        .source = source ? source : "tokenizer.json",
        .v = {.bos = -1, .eos = -1, .eot = -1, .unk = -1, .pad = -1},
        .err = err,
    };
    r.v.source = r.source;
    ingle_status status = json_parse(text, n, NULL, &r.root, err);
    if (status != INGLE_OK) {
        (void)err_prefix(err, "%s", r.source);
        return status;
    }
    str_init(&r.joined);
    status = read_all(&r);
    if (status == INGLE_OK)
        status = fn(arg, &r.v, err);
    str_release(&r.joined);
    mem_free(r.token);
    mem_free(r.token_bytes);
    mem_free(r.token_type);
    mem_free(r.merge);
    mem_free(r.merge_bytes);
    mem_free(r.merge_left_bytes);
    json_object_put(r.root);
    return status;
}
