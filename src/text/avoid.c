/* SPDX-License-Identifier: Apache-2.0 */
#include "text/avoid.h"

#include "base/mem.h"
#include <string.h>

enum { MOST = 16 }; /* bytes of a phrase */

/* A token that holds a part of the phrase in such a way that it may count: the others leave nothing
 * of it after them. */
struct part {
    int32_t id;
    bool only;    /* never drawn, wherever it stands */
    size_t at, n; /* its bytes, in text */
};

struct text_avoid {
    const char *phrase;
    size_t n_phrase;
    size_t back[MOST + 1]; /* longest end of the first k bytes that also begins the phrase */
    struct part *part;     /* by id */
    size_t n_parts, cap_parts;
    struct str text;
    struct text_ids list;  /* for each state those that complete the phrase */
    size_t from[MOST + 1]; /* of list: state k has [from[k], from[k + 1]) */
};

static void fill_back(struct text_avoid *a)
{
    for (size_t i = 1, k = 0; i < a->n_phrase; i++) {
        while (k && a->phrase[i] != a->phrase[k])
            k = a->back[k];
        k += a->phrase[i] == a->phrase[k];
        a->back[i + 1] = k;
    }
}

/* How much of the phrase stands at the end of the bytes after its first k.  n_phrase: all of it
 * stood there. */
static size_t follow(const struct text_avoid *a, size_t k, const char *s, size_t n)
{
    for (size_t i = 0; i < n && k < a->n_phrase; i++) {
        while (k && s[i] != a->phrase[k])
            k = a->back[k];
        k += s[i] == a->phrase[k];
    }
    return k;
}

/* Whether the bytes go on with the phrase after its beginning, or leave one. */
static bool counts(const struct text_avoid *a, const char *s, size_t n)
{
    if (!n)
        return false;
    for (size_t k = 1; k < a->n_phrase; k++) {
        const size_t left = a->n_phrase - k, m = n < left ? n : left;
        if (s[0] == a->phrase[k] && memcmp(s, a->phrase + k, m) == 0)
            return true;
    }
    return follow(a, 0, s, n) > 0;
}

static bool add_part(struct text_avoid *a, int32_t id, const struct str *bytes, bool only)
{
    if (!mem_grow(&a->part, &a->cap_parts, a->n_parts + 1, sizeof *a->part))
        return false;
    a->part[a->n_parts++] = (struct part){id, only, a->text.n, bytes->n};
    str_add(&a->text, bytes->at, bytes->n);
    return str_ok(&a->text);
}

static bool fill_lists(struct text_avoid *a)
{
    for (size_t k = 0; k < a->n_phrase; k++) {
        a->from[k] = a->list.n;
        for (size_t i = 0; i < a->n_parts; i++) {
            const struct part *p = &a->part[i];
            if (!p->only && follow(a, k, a->text.at + p->at, p->n) < a->n_phrase)
                continue;
            if (!mem_grow(&a->list.id, &a->list.cap, a->list.n + 1, sizeof *a->list.id))
                return false;
            a->list.id[a->list.n++] = p->id;
        }
    }
    a->from[a->n_phrase] = a->list.n;
    return true;
}

static ingle_status fill(struct text_avoid *a, const struct tokenizer *t, size_t n_tokens,
                         const char *const *only, size_t n_only, struct err *err)
{
    struct str bytes;
    ingle_status st = INGLE_OK;
    bool ok = true;
    str_init(&bytes);
    fill_back(a);
    const size_t n = n_tokens < text_n_tokens(t) ? n_tokens : text_n_tokens(t);
    for (size_t id = 0; id < n && !st && ok; id++) {
        bool forbidden = false;
        str_clear(&bytes);
        st = text_decode(t, (int32_t)id, true, &bytes, err);
        for (size_t i = 0; i < n_only; i++)
            forbidden = forbidden || strcmp(bytes.at, only[i]) == 0;
        if (!st && (forbidden || counts(a, bytes.at, bytes.n)))
            ok = add_part(a, (int32_t)id, &bytes, forbidden);
    }
    str_release(&bytes);
    if (!st && !(ok && fill_lists(a)))
        st = err_set(err, INGLE_NOMEM, "no memory for a list of tokens");
    return st;
}

ingle_status text_avoid_calls(struct text_avoid **out, enum text_chat_family family,
                              const struct tokenizer *t, size_t n_tokens, struct err *err)
{
    static const char *const only[] = {"<tool_call|>", "<|\"|>"};
    const bool gemma = family == TEXT_CHAT_GEMMA4;
    struct text_avoid *a = mem_zalloc(sizeof *a);
    if (!a)
        return err_set(err, INGLE_NOMEM, "no memory for a list of tokens");
    a->phrase = gemma ? "<|tool_call>" : "｜DSML｜";
    a->n_phrase = strlen(a->phrase);
    str_init(&a->text);
    const ingle_status st = fill(a, t, n_tokens, only, gemma ? sizeof only / sizeof *only : 0, err);
    if (st)
        text_avoid_free(a);
    else
        *out = a;
    return st;
}

void text_avoid_free(struct text_avoid *a)
{
    if (!a)
        return;
    mem_free(a->part);
    str_release(&a->text);
    text_ids_release(&a->list);
    mem_free(a);
}

static const struct part *find(const struct text_avoid *a, int32_t id)
{
    size_t low = 0, high = a->n_parts;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (a->part[mid].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < a->n_parts && a->part[low].id == id ? &a->part[low] : NULL;
}

size_t text_avoid_next(const struct text_avoid *a, const int32_t *history, int64_t n,
                       const int32_t **id)
{
    const struct part *last[MOST];
    size_t n_last = 0, k = 0;
    while (n_last < a->n_phrase && (int64_t)n_last < n) {
        const struct part *p = find(a, history[n - 1 - (int64_t)n_last]);
        if (!p)
            break;
        last[n_last++] = p;
    }
    while (n_last-- > 0)
        k = follow(a, k < a->n_phrase ? k : 0, a->text.at + last[n_last]->at, last[n_last]->n);
    k = k < a->n_phrase ? k : 0; /* it stands in the prompt */
    *id = a->list.id ? a->list.id + a->from[k] : NULL;
    return a->from[k + 1] - a->from[k];
}
