/* SPDX-License-Identifier: Apache-2.0 */
/* From a text to ids: specials where they count, everything between them by kind. */
#include "text/tokenizer_impl.h"

#include "base/mem.h"
#include "base/utf8.h"
#include <string.h>

void text_ids_release(struct text_ids *ids)
{
    mem_free(ids->id);
    *ids = (struct text_ids){0};
}

int32_t text_special_at(const struct tokenizer *t, const char *text, size_t n)
{
    if (!n)
        return -1;
    int32_t longest = -1;
    uint32_t lo = t->first_special[(unsigned char)text[0]];
    uint32_t hi = t->first_special[(unsigned char)text[0] + 1];
    /* [lo, hi): the specials that begin with the first depth bytes.  A shorter spelling sorts
     * first, so the one that ends here is at lo. */
    for (size_t depth = 1; lo < hi; depth++) {
        if (text_token_bytes(t, t->special[lo]) == depth)
            longest = t->special[lo++];
        if (depth == n)
            break;
        const unsigned char c = (unsigned char)text[depth];
        uint32_t end = hi;
        for (uint32_t a = lo, b = hi; a < b;) { /* first with a byte >= c */
            const uint32_t mid = a + (b - a) / 2;
            const char *s = t->spelling + t->offset[t->special[mid]];
            if ((unsigned char)s[depth] < c)
                lo = a = mid + 1;
            else
                b = mid;
        }
        for (uint32_t a = lo, b = hi; a < b;) { /* first with a byte > c */
            const uint32_t mid = a + (b - a) / 2;
            const char *s = t->spelling + t->offset[t->special[mid]];
            if ((unsigned char)s[depth] <= c)
                a = mid + 1;
            else
                end = b = mid;
        }
        hi = end;
    }
    return longest;
}

static bool encode_plain(struct text_bpe *b, const char *text, size_t n, struct text_ids *out)
{
    struct str clean;
    bool ok = true;
    str_init(&clean);
    if (!utf8_valid(text, n)) {
        for (size_t i = 0; i < n;) {
            uint32_t cp;
            const size_t len = utf8_decode(text + i, n - i, &cp);
            if (cp == UTF8_BAD)
                str_adds(&clean, "\xEF\xBF\xBD");
            else
                str_add(&clean, text + i, len);
            i += len;
        }
        text = clean.at;
        n = clean.n;
        ok = str_ok(&clean);
    }
    ok = ok &&
         (b->t->kind == TEXT_GEMMA4 ? text_gemma_encode : text_deepseek_encode)(b, text, n, out);
    str_release(&clean);
    return ok;
}

static ingle_status check(size_t n, const struct text_range *specials, size_t n_specials,
                          struct err *err)
{
    if (n > TEXT_MAX_BYTES)
        return err_set(err, INGLE_LIMIT, "text of %zu bytes, at most %d", n, TEXT_MAX_BYTES);
    size_t at = 0;
    for (size_t i = 0; i < n_specials; i++) {
        const struct text_range *r = &specials[i];
        if (r->begin < at || r->end < r->begin || r->end > n)
            return err_set(err, INGLE_ARG,
                           "range %zu of specials is %zu to %zu, expected within %zu to %zu", i,
                           r->begin, r->end, at, n);
        at = r->end;
    }
    return INGLE_OK;
}

size_t text_least_tokens(const struct tokenizer *t, const char *text, size_t n)
{
    uint64_t sum = 0; /* at most 2^30 bytes of 2^20 each */
    for (size_t i = 0; i < n; i++)
        sum += t->share[(unsigned char)text[i]];
    return (size_t)(sum >> TEXT_SHARE_BITS);
}

/* False: the bytes show that there are too many tokens. */
static bool fits(struct text_bpe *b, const char *text, size_t n)
{
    struct text_bounds *l = b->bounds;
    b->why = INGLE_OK;
    if (!l || !l->max_tokens)
        return true;
    l->least = text_least_tokens(b->t, text, n);
    if (l->least > l->max_tokens)
        b->why = INGLE_LIMIT;
    return !b->why;
}

static ingle_status say_failed(const struct text_bpe *b, size_t n, struct err *err)
{
    if (b->why == INGLE_LIMIT)
        return err_set(err, INGLE_LIMIT, "a text of %zu bytes has at least %zu tokens, at most %zu "
                       "fit", n, b->bounds->least, b->bounds->max_tokens);
    if (b->why == INGLE_CANCEL)
        return err_set(err, INGLE_CANCEL, "cancelled while a text of %zu bytes became tokens", n);
    return err_set(err, INGLE_NOMEM, "no memory for the tokens of %zu bytes", n);
}

ingle_status text_encode_with(struct text_bpe *b, const char *text, size_t n, bool add_special,
                              const struct text_range *specials, size_t n_specials,
                              struct text_ids *out, struct err *err)
{
    const struct tokenizer *t = b->t;
    const ingle_status status = check(n, specials, n_specials, err);
    if (status != INGLE_OK)
        return status;
    const size_t n_before = out->n;
    size_t done = 0;
    b->out = out;
    if (!fits(b, text, n))
        goto failed;
    if (add_special && t->add_bos && !text_ids_push(out, t->bos))
        goto failed;
    for (size_t i = 0; i < n_specials; i++) {
        for (size_t at = specials[i].begin; at < specials[i].end;) {
            if (!text_bpe_step(b))
                goto failed;
            const int32_t id = text_special_at(t, text + at, specials[i].end - at);
            if (id < 0) {
                at++;
                continue;
            }
            if (!encode_plain(b, text + done, at - done, out) || !text_ids_push(out, id))
                goto failed;
            at += text_token_bytes(t, id);
            done = at;
        }
    }
    if (!encode_plain(b, text + done, n - done, out))
        goto failed;
    return INGLE_OK;

failed:
    out->n = n_before;
    return say_failed(b, n, err);
}

ingle_status text_encode_within(const struct tokenizer *t, const char *text, size_t n,
                                bool add_special, const struct text_range *specials,
                                size_t n_specials, struct text_bounds *bounds,
                                struct text_ids *out, struct err *err)
{
    struct text_bpe b;
    text_bpe_init(&b, t);
    b.bounds = bounds;
    const ingle_status status =
        text_encode_with(&b, text, n, add_special, specials, n_specials, out, err);
    text_bpe_release(&b);
    return status;
}

ingle_status text_encode(const struct tokenizer *t, const char *text, size_t n, bool add_special,
                         const struct text_range *specials, size_t n_specials, struct text_ids *out,
                         struct err *err)
{
    return text_encode_within(t, text, n, add_special, specials, n_specials, NULL, out, err);
}
