/* SPDX-License-Identifier: Apache-2.0 */
/* Making a tokenizer: the checks, the one block of memory, the two hash tables. */
#include "text/tokenizer_impl.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/utf8.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Tokens whose role is known from their spelling.  Some files call them normal, and
 * tokenizer.json knows no difference between control and user-defined. */
static const struct known {
    enum text_tokenizer_kind kind;
    enum text_token_type type;
    bool ends; /* an answer */
    const char *spelling;
} known[] = {
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<pad>"},
    {TEXT_GEMMA4, TEXT_CONTROL, true, "<eos>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<bos>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<unk>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<mask>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<|tool>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<tool|>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<|think|>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<|turn>"},
    {TEXT_GEMMA4, TEXT_CONTROL, true, "<turn|>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<|image>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<|image|>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<image|>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<|audio>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<|audio|>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<audio|>"},
    {TEXT_GEMMA4, TEXT_CONTROL, false, "<|video|>"},
    {TEXT_GEMMA4, TEXT_USER_DEFINED, false, "<|tool_call>"},
    {TEXT_GEMMA4, TEXT_USER_DEFINED, false, "<tool_call|>"},
    {TEXT_GEMMA4, TEXT_USER_DEFINED, true, "<|tool_response>"},
    {TEXT_GEMMA4, TEXT_USER_DEFINED, false, "<tool_response|>"},
    {TEXT_GEMMA4, TEXT_USER_DEFINED, false, "<|\"|>"},
    {TEXT_GEMMA4, TEXT_USER_DEFINED, false, "<|channel>"},
    {TEXT_GEMMA4, TEXT_USER_DEFINED, false, "<channel|>"},
    {TEXT_DEEPSEEK, TEXT_CONTROL, false, "<｜begin▁of▁sentence｜>"},
    {TEXT_DEEPSEEK, TEXT_CONTROL, true, "<｜end▁of▁sentence｜>"},
    {TEXT_DEEPSEEK, TEXT_CONTROL, false, "<｜▁pad▁｜>"},
    {TEXT_DEEPSEEK, TEXT_CONTROL, false, "<｜User｜>"},
    {TEXT_DEEPSEEK, TEXT_CONTROL, false, "<｜Assistant｜>"},
    {TEXT_DEEPSEEK, TEXT_USER_DEFINED, false, "<think>"},
    {TEXT_DEEPSEEK, TEXT_USER_DEFINED, false, "</think>"},
    {TEXT_DEEPSEEK, TEXT_USER_DEFINED, false, "｜DSML｜"},
};

enum { N_KNOWN = sizeof known / sizeof *known };

ingle_status text_vocab_kind(const char *model, const char *pre, enum text_tokenizer_kind *kind,
                             struct err *err)
{
    if (!model)
        return err_set(err, INGLE_UNSUP, "tokenizer.ggml.model is missing");
    /* Ollama writes model 'llama' and says by pre what it is. */
    if (strcmp(model, "gemma4") == 0 ||
        (strcmp(model, "llama") == 0 && pre && strcmp(pre, "gemma4") == 0)) {
        if (pre && strcmp(pre, "gemma4") != 0)
            return err_set(err, INGLE_UNSUP,
                           "tokenizer.ggml.pre is '%.64s', expected 'gemma4' or none", pre);
        *kind = TEXT_GEMMA4;
        return INGLE_OK;
    }
    if (strcmp(model, "gpt2") != 0)
        return err_set(
            err, INGLE_UNSUP,
            "tokenizer.ggml.model is '%.64s' with pre '%.64s', expected 'gemma4', 'llama' with pre "
            "'gemma4', or 'gpt2'",
            model, pre ? pre : "none");
    if (!pre || (strcmp(pre, "deepseek-v3") != 0 && strcmp(pre, "joyai-llm") != 0))
        return err_set(err, INGLE_UNSUP,
                       "tokenizer.ggml.pre is %s%.64s%s, expected 'deepseek-v3' or 'joyai-llm'",
                       pre ? "'" : "", pre ? pre : "missing", pre ? "'" : "");
    *kind = TEXT_DEEPSEEK;
    return INGLE_OK;
}

static const char *source_of(const struct text_vocab *v)
{
    return v->source ? v->source : "tokenizer";
}

static ingle_status check_ids(const struct text_vocab *v, struct err *err)
{
    const struct {
        const char *name;
        int32_t id;
    } role[] = {
        {"bos", v->bos}, {"eos", v->eos}, {"eot", v->eot}, {"unk", v->unk}, {"pad", v->pad},
    };
    for (size_t i = 0; i < sizeof role / sizeof *role; i++)
        if (role[i].id < -1 || (role[i].id >= 0 && (size_t)role[i].id >= v->n_tokens))
            return err_set(err, INGLE_FORMAT,
                           "%s: %s token id is %d, expected less than %zu tokens", source_of(v),
                           role[i].name, role[i].id, v->n_tokens);
    return INGLE_OK;
}

/* Everything that can be said of the vocabulary before memory is taken.  *n_bytes: of all
 * spellings together; *n_specials: an upper bound. */
static ingle_status check(const struct text_vocab *v, size_t *n_bytes, size_t *n_specials,
                          struct err *err)
{
    const char *source = source_of(v);
    if (!v->n_tokens)
        return err_set(err, INGLE_FORMAT, "%s: the vocabulary has no tokens", source);
    if (v->n_tokens > INT32_MAX || v->n_merges > INT32_MAX)
        return err_set(err, INGLE_LIMIT, "%s: %zu tokens and %zu merges, at most %d of each",
                       source, v->n_tokens, v->n_merges, INT32_MAX);
    size_t sum = 0, specials = N_KNOWN;
    for (size_t i = 0; i < v->n_tokens; i++) {
        const int32_t type = v->token_type ? v->token_type[i] : TEXT_NORMAL;
        if (v->token_bytes[i] > TEXT_TOKEN_MAX_BYTES)
            return err_set(err, INGLE_LIMIT, "%s: token %zu has %zu bytes, at most %d", source, i,
                           v->token_bytes[i], TEXT_TOKEN_MAX_BYTES);
        if (type < TEXT_NORMAL || type > TEXT_BYTE)
            return err_set(err, INGLE_FORMAT, "%s: token %zu has type %d, expected %d to %d",
                           source, i, type, TEXT_NORMAL, TEXT_BYTE);
        if (type == TEXT_BYTE && text_byte_spelling(v->token[i], v->token_bytes[i]) < 0)
            return err_set(err, INGLE_FORMAT,
                           "%s: token %zu is a byte but is not spelt '<0xNN>' (%zu bytes)", source,
                           i, v->token_bytes[i]);
        specials += type == TEXT_CONTROL || type == TEXT_USER_DEFINED || type == TEXT_UNKNOWN;
        sum += v->token_bytes[i]; /* at most 2^31 times 2^16 */
    }
    if (sum > UINT32_MAX)
        return err_set(err, INGLE_LIMIT, "%s: tokens have %zu bytes together, at most %u", source,
                       sum, UINT32_MAX);
    *n_bytes = sum;
    *n_specials = specials;
    return check_ids(v, err);
}

/* Places n elements after what is there; *at becomes their offset. */
static bool place(size_t *total, size_t n, size_t size, size_t *at)
{
    size_t n_bytes;
    return num_align(*total, 16, at) && num_mul(n, size, &n_bytes) && num_add(*at, n_bytes, total);
}

/* A power of two of slots that n entries fill to three quarters at most. */
static size_t n_slots(size_t n)
{
    size_t slots = 4;
    while (slots / 4 * 3 < n)
        slots *= 2;
    return slots;
}

static struct tokenizer *allocate(const struct text_vocab *v, size_t n_bytes, size_t n_specials)
{
    const size_t token_slots = n_slots(v->n_tokens), merge_slots = n_slots(v->n_merges);
    size_t total = sizeof(struct tokenizer);
    size_t offset, token_slot, merge, merge_slot, special, type, spelling;
    if (!place(&total, v->n_tokens + 1, sizeof(uint32_t), &offset) ||
        !place(&total, token_slots, sizeof(uint64_t), &token_slot) ||
        !place(&total, v->n_merges, sizeof(struct text_merge), &merge) ||
        !place(&total, merge_slots, sizeof(uint32_t), &merge_slot) ||
        !place(&total, n_specials, sizeof(int32_t), &special) ||
        !place(&total, v->n_tokens, 1, &type) || !place(&total, n_bytes, 1, &spelling))
        return NULL;
    char *at = mem_zalloc(total);
    if (!at)
        return NULL;
    struct tokenizer *t = (void *)at;
    t->offset = (void *)(at + offset);
    t->token_slot = (void *)(at + token_slot);
    t->token_mask = token_slots - 1;
    t->merge = (void *)(at + merge);
    t->merge_slot = (void *)(at + merge_slot);
    t->merge_mask = merge_slots - 1;
    t->special = (void *)(at + special);
    t->type = (void *)(at + type);
    t->spelling = at + spelling;
    return t;
}

static uint64_t token_hash(const struct tokenizer *t, const char *s, size_t n)
{
    return XXH3_64bits_withSeed(s, n, t->seed);
}

/* The slot of a spelling, or the empty one where it would be. */
static uint64_t *token_slot(const struct tokenizer *t, uint64_t hash, const char *s, size_t n)
{
    for (size_t i = hash & t->token_mask;; i = (i + 1) & t->token_mask) {
        uint64_t *slot = &t->token_slot[i];
        if (!*slot)
            return slot;
        const int32_t id = (int32_t)((uint32_t)*slot - 1);
        if (*slot >> 32 == hash >> 32 && text_token_bytes(t, id) == n &&
            memcmp(t->spelling + t->offset[id], s, n) == 0)
            return slot;
    }
}

int32_t text_find(const struct tokenizer *t, const char *bytes, size_t n)
{
    return (int32_t)((uint32_t)*token_slot(t, token_hash(t, bytes, n), bytes, n) - 1);
}

static size_t pair_home(const struct tokenizer *t, int32_t left, int32_t right)
{
    uint64_t x = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) ^ t->seed;
    x *= 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    return (x ^ x >> 32) & t->merge_mask;
}

static uint32_t *merge_slot(const struct tokenizer *t, int32_t left, int32_t right)
{
    for (size_t i = pair_home(t, left, right);; i = (i + 1) & t->merge_mask) {
        uint32_t *slot = &t->merge_slot[i];
        if (!*slot || (t->merge[*slot - 1].left == left && t->merge[*slot - 1].right == right))
            return slot;
    }
}

int64_t text_merge_rank(const struct tokenizer *t, int32_t left, int32_t right)
{
    if (left < 0 || right < 0)
        return -1;
    return (int64_t)*merge_slot(t, left, right) - 1;
}

static enum text_token_type type_of(const struct text_vocab *v, size_t i)
{
    const enum text_token_type type =
        v->token_type ? (enum text_token_type)v->token_type[i] : TEXT_NORMAL;
    if (type == TEXT_NORMAL && v->kind == TEXT_GEMMA4 &&
        text_byte_spelling(v->token[i], v->token_bytes[i]) >= 0)
        return TEXT_BYTE;
    return type;
}

static void fill_tokens(struct tokenizer *t, const struct text_vocab *v)
{
    for (size_t i = 0; i < v->n_tokens; i++) {
        const size_t n = v->token_bytes[i];
        if (n)
            memcpy(t->spelling + t->offset[i], v->token[i], n);
        t->offset[i + 1] = t->offset[i] + (uint32_t)n;
        t->type[i] = (uint8_t)type_of(v, i);
        const char *s = t->spelling + t->offset[i];
        const uint64_t hash = token_hash(t, s, n);
        uint64_t *slot = token_slot(t, hash, s, n);
        if (!*slot) /* of equal spellings the first id is the one that is found */
            *slot = (hash >> 32) << 32 | (uint64_t)(i + 1);
    }
}

static void add_end(struct tokenizer *t, int32_t id)
{
    int i = 0;
    while (i < TEXT_N_ENDS && t->end[i] >= 0 && t->end[i] != id)
        i++;
    if (id >= 0 && i < TEXT_N_ENDS)
        t->end[i] = id;
}

static void apply_known(struct tokenizer *t, const struct text_vocab *v)
{
    memset(t->end, -1, sizeof t->end);
    add_end(t, v->eos);
    add_end(t, v->eot);
    for (size_t i = 0; i < N_KNOWN; i++) {
        if (known[i].kind != t->kind)
            continue;
        const int32_t id = text_find(t, known[i].spelling, strlen(known[i].spelling));
        if (id >= 0)
            t->type[id] = (uint8_t)known[i].type;
        if (known[i].ends)
            add_end(t, id);
    }
}

/* Where a merge's left part ends; false: it has no two parts. */
static bool split_merge(const struct text_vocab *v, size_t i, size_t *left)
{
    const char *s = v->merge[i];
    const size_t n = v->merge_bytes[i];
    if (n < 3)
        return false;
    if (v->merge_left_bytes) {
        *left = v->merge_left_bytes[i];
    } else {
        const char *space = memchr(s + 1, ' ', n - 1);
        *left = space ? (size_t)(space - s) : 0;
    }
    return *left && *left < n - 1;
}

static ingle_status fill_merges(struct tokenizer *t, const struct text_vocab *v, struct err *err)
{
    char *joined = mem_alloc(TEXT_TOKEN_MAX_BYTES);
    if (!joined)
        return err_set(err, INGLE_NOMEM, "no memory for the merges of %s", source_of(v));
    ingle_status status = INGLE_OK;
    for (size_t i = 0; i < v->n_merges; i++) {
        const char *s = v->merge[i];
        size_t n_left;
        if (!split_merge(v, i, &n_left)) {
            status = err_set(err, INGLE_FORMAT,
                             "%s: merge %zu of %zu bytes is not two tokens with a space between",
                             source_of(v), i, v->merge_bytes[i]);
            break;
        }
        const size_t n_right = v->merge_bytes[i] - n_left - 1;
        if (n_left > TEXT_TOKEN_MAX_BYTES || n_right > TEXT_TOKEN_MAX_BYTES - n_left)
            continue;
        memcpy(joined, s, n_left);
        memcpy(joined + n_left, s + n_left + 1, n_right);
        const int32_t left = text_find(t, joined, n_left);
        const int32_t right = text_find(t, joined + n_left, n_right);
        const int32_t result = text_find(t, joined, n_left + n_right);
        /* A merge of unknown tokens never applies, and one that made a special token out of
         * ordinary text must not. */
        if (left < 0 || right < 0 || !text_is_plain(t, result))
            continue;
        uint32_t *slot = merge_slot(t, left, right);
        if (*slot)
            continue;
        t->merge[t->n_merges] = (struct text_merge){left, right, result};
        *slot = ++t->n_merges;
    }
    mem_free(joined);
    return status;
}

static int32_t find_plain(const struct tokenizer *t, const char *s, size_t n)
{
    const int32_t id = text_find(t, s, n);
    return text_is_plain(t, id) ? id : -1;
}

/* Without a token for every byte that UTF-8 uses some text could not be written. */
static ingle_status fill_bytes(struct tokenizer *t, const struct text_vocab *v, struct err *err)
{
    memset(t->byte_id, -1, sizeof t->byte_id);
    for (uint32_t i = t->n_tokens; i-- > 0 && t->kind == TEXT_GEMMA4;)
        if (t->type[i] == TEXT_BYTE)
            t->byte_id[text_byte_spelling(t->spelling + t->offset[i], 6)] = (int32_t)i;
    for (unsigned b = 0; b < 256; b++) {
        char s[4];
        if (t->kind == TEXT_DEEPSEEK)
            t->byte_id[b] = find_plain(t, s, utf8_encode(text_byte_char((unsigned char)b), s));
        if (t->byte_id[b] < 0 && b != 0xC0 && b != 0xC1 && b < 0xF5)
            return err_set(err, INGLE_FORMAT, "%s: the vocabulary has no token for byte 0x%02X",
                           source_of(v), b);
    }
    for (unsigned c = 0; c < 128; c++) {
        const char ascii = (char)c;
        t->ascii_id[c] = c == ' ' ? find_plain(t, "\xE2\x96\x81", 3) : find_plain(t, &ascii, 1);
    }
    return INGLE_OK;
}

struct special {
    const char *s;
    size_t n;
    int32_t id;
};

static int compare_special(const void *a, const void *b)
{
    const struct special *x = a, *y = b;
    const int order = memcmp(x->s, y->s, x->n < y->n ? x->n : y->n);
    if (order)
        return order;
    return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : (x->id > y->id) - (x->id < y->id);
}

/* Texts are UTF-8, so a spelling that is none can never stand in one. */
static bool can_match(const struct tokenizer *t, uint32_t i)
{
    const size_t n = text_token_bytes(t, (int32_t)i);
    const char *s = t->spelling + t->offset[i];
    const uint8_t type = t->type[i];
    return (type == TEXT_CONTROL || type == TEXT_USER_DEFINED || type == TEXT_UNKNOWN) && n &&
           utf8_valid(s, n) && text_find(t, s, n) == (int32_t)i;
}

static ingle_status fill_specials(struct tokenizer *t, const struct text_vocab *v, size_t cap,
                                  struct err *err)
{
    struct special *list = mem_calloc(cap, sizeof *list);
    if (!list)
        return err_set(err, INGLE_NOMEM, "no memory for the specials of %s", source_of(v));
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        if (!can_match(t, i))
            continue;
        const size_t n = text_token_bytes(t, (int32_t)i);
        if (n > TEXT_SPECIAL_MAX_BYTES) {
            mem_free(list);
            return err_set(err, INGLE_LIMIT, "%s: special token %u has %zu bytes, at most %d",
                           source_of(v), i, n, TEXT_SPECIAL_MAX_BYTES);
        }
        list[t->n_specials++] = (struct special){t->spelling + t->offset[i], n, (int32_t)i};
    }
    qsort(list, t->n_specials, sizeof *list, compare_special);
    for (uint32_t i = 0, b = 0; b < 257; b++) {
        while (i < t->n_specials && (unsigned char)list[i].s[0] < b)
            i++;
        t->first_special[b] = i;
    }
    for (uint32_t i = 0; i < t->n_specials; i++)
        t->special[i] = list[i].id;
    mem_free(list);
    return INGLE_OK;
}

ingle_status text_tokenizer_create(struct tokenizer **out, const struct text_vocab *v,
                                   struct err *err)
{
    size_t n_bytes = 0, n_specials = 0;
    ingle_status status = check(v, &n_bytes, &n_specials, err);
    if (status != INGLE_OK)
        return status;
    struct tokenizer *t = allocate(v, n_bytes, n_specials);
    if (!t)
        return err_set(err, INGLE_NOMEM, "no memory for the %zu tokens of %s", v->n_tokens,
                       source_of(v));
    const struct {
        uint64_t time;
        const void *at;
    } entropy = {clock_now(), t};
    t->seed = XXH3_64bits(&entropy, sizeof entropy);
    t->kind = v->kind;
    t->n_tokens = (uint32_t)v->n_tokens;
    t->bos = v->bos;
    /* Gemma is lost without its BOS, whatever the file says. */
    t->add_bos = v->bos >= 0 && (v->add_bos || v->kind == TEXT_GEMMA4);
    fill_tokens(t, v);
    apply_known(t, v);
    if ((status = fill_merges(t, v, err)) != INGLE_OK ||
        (status = fill_bytes(t, v, err)) != INGLE_OK ||
        (status = fill_specials(t, v, n_specials, err)) != INGLE_OK) {
        text_tokenizer_free(t);
        return status;
    }
    text_fill_shares(t);
    *out = t;
    return INGLE_OK;
}

void text_tokenizer_free(struct tokenizer *t)
{
    mem_free(t);
}

enum text_tokenizer_kind text_tokenizer_kind(const struct tokenizer *t)
{
    return t->kind;
}
size_t text_n_tokens(const struct tokenizer *t)
{
    return t->n_tokens;
}
int32_t text_bos(const struct tokenizer *t)
{
    return t->bos;
}
bool text_add_bos(const struct tokenizer *t)
{
    return t->add_bos;
}

const char *text_token(const struct tokenizer *t, int32_t id, size_t *n)
{
    if (id < 0 || (uint32_t)id >= t->n_tokens)
        return NULL;
    *n = text_token_bytes(t, id);
    return t->spelling + t->offset[id];
}

/* Files of one vocabulary call the same token unused, user-defined or normal; what counts is
 * whether it is text, a byte or a sign. */
static int type_class(const struct tokenizer *t, uint32_t id)
{
    switch ((enum text_token_type)t->type[id]) {
    case TEXT_BYTE:
        return 1;
    case TEXT_CONTROL:
    case TEXT_UNKNOWN:
        return 2;
    default:
        return 0;
    }
}

static bool same_tokens(const struct tokenizer *a, const struct tokenizer *b, char *why, size_t n)
{
    for (uint32_t id = 0; id < a->n_tokens; id++) {
        const size_t x = a->offset[id + 1] - a->offset[id], y = b->offset[id + 1] - b->offset[id];
        if (x != y || memcmp(a->spelling + a->offset[id], b->spelling + b->offset[id], x) != 0) {
            snprintf(why, n, "token %u is '%.*s', not '%.*s'", id, (int)(y < 40 ? y : 40),
                     b->spelling + b->offset[id], (int)(x < 40 ? x : 40),
                     a->spelling + a->offset[id]);
            return false;
        }
        if (type_class(a, id) != type_class(b, id)) {
            snprintf(why, n, "token %u ('%.*s') is of type %d, not %d", id, (int)(x < 40 ? x : 40),
                     a->spelling + a->offset[id], b->type[id], a->type[id]);
            return false;
        }
    }
    return true;
}

bool text_tokenizer_same(const struct tokenizer *a, const struct tokenizer *b, char *why, size_t n)
{
    if (a->kind != b->kind) {
        snprintf(why, n, "it is of another kind");
        return false;
    }
    if (a->n_tokens != b->n_tokens) {
        snprintf(why, n, "it has %u tokens, not %u", b->n_tokens, a->n_tokens);
        return false;
    }
    if (!same_tokens(a, b, why, n))
        return false;
    if (a->n_merges != b->n_merges) {
        snprintf(why, n, "it has %u merges, not %u", b->n_merges, a->n_merges);
        return false;
    }
    for (uint32_t i = 0; i < a->n_merges; i++)
        if (a->merge[i].left != b->merge[i].left || a->merge[i].right != b->merge[i].right) {
            snprintf(why, n, "merge %u is another one", i);
            return false;
        }
    return true;
}

enum text_token_type text_token_type(const struct tokenizer *t, int32_t id)
{
    return id < 0 || (uint32_t)id >= t->n_tokens ? TEXT_UNUSED : (enum text_token_type)t->type[id];
}

bool text_is_end(const struct tokenizer *t, int32_t id)
{
    for (int i = 0; id >= 0 && i < TEXT_N_ENDS; i++)
        if (t->end[i] == id)
            return true;
    return false;
}

/* <unused12>, <｜place▁holder▁no▁3｜>, <|place_holder_mm_span_0004|>: ordinary tokens in some
 * files. */
static bool is_reserved(const char *s, size_t n)
{
    static const char *const form[][2] = {
        {"<unused", ">"}, {"<｜place▁holder▁no▁", "｜>"}, {"<|place_holder_mm_span_", "|>"}};
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        const size_t front = strlen(form[i][0]), back = strlen(form[i][1]);
        size_t at = front;
        if (n <= front + back || memcmp(s, form[i][0], front) != 0)
            continue;
        while (at < n && s[at] >= '0' && s[at] <= '9')
            at++;
        if (at > front && n - at == back && memcmp(s + at, form[i][1], back) == 0)
            return true;
    }
    return false;
}

bool text_is_written(const struct tokenizer *t, int32_t id)
{
    if (id < 0 || (uint32_t)id >= t->n_tokens)
        return false;
    if (text_is_end(t, id))
        return true;
    const enum text_token_type type = (enum text_token_type)t->type[id];
    static const char host[] = "<tool_response|>"; /* ends a result, which the model never writes */
    const char *s = t->spelling + t->offset[id];
    const size_t n = text_token_bytes(t, id);
    if (type == TEXT_CONTROL || type == TEXT_UNKNOWN ||
        (n == sizeof host - 1 && memcmp(s, host, n) == 0))
        return false;
    return !is_reserved(s, n);
}
