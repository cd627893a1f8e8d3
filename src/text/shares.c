/* SPDX-License-Identifier: Apache-2.0 */
/* What the bytes of a text say of its tokens before it is tokenised: where it can be cut,
 * and how many tokens it has at least. */
#include "text/tokenizer_impl.h"

#include "base/utf8.h"
#include <string.h>

static const char SPACE[] = "\xE2\x96\x81"; /* how Gemma spells one */

static bool is_space(const char *s, size_t n)
{
    return n >= 3 && memcmp(s, SPACE, 3) == 0;
}

static void fill_joins(struct tokenizer *t)
{
    for (uint32_t i = 0; i < t->n_merges; i++) {
        const struct text_merge *m = &t->merge[i];
        const size_t n_left = text_token_bytes(t, m->left), n_right = text_token_bytes(t, m->right);
        const char *left_end = t->spelling + t->offset[m->left] + n_left;
        const char *right = t->spelling + t->offset[m->right];
        if (!n_left || !n_right)
            continue;
        const unsigned char last =
            n_left >= 3 && is_space(left_end - 3, 3) ? ' ' : (unsigned char)left_end[-1];
        const unsigned char first = is_space(right, n_right) ? ' ' : (unsigned char)right[0];
        t->joins[last][first >> 3] |= (uint8_t)(1u << (first & 7));
    }
}

/* How many bytes the text of a token has; with longest, each of them learns that it stands in a
 * token of n bytes.  U+2581 counts as three bytes and as a space, for either may be meant. */
static uint32_t visit(const struct tokenizer *t, int32_t id, uint32_t *longest, uint32_t n)
{
    const char *s = t->spelling + t->offset[id];
    const size_t n_spelling = text_token_bytes(t, id);
    const bool alphabet = t->kind == TEXT_DEEPSEEK && text_is_plain(t, id);
    uint32_t n_bytes = 0;
    for (size_t i = 0, len; i < n_spelling; i += len) {
        uint32_t cp;
        len = utf8_decode(s + i, n_spelling - i, &cp);
        const int byte = alphabet && cp != UTF8_BAD ? text_char_byte(cp) : -1;
        n_bytes += byte >= 0 ? 1 : (uint32_t)len;
        if (!longest)
            continue;
        if (is_space(s + i, n_spelling - i) && n > longest[' '])
            longest[' '] = n;
        for (size_t k = 0; k < (byte >= 0 ? 1 : len); k++) {
            uint32_t *l = &longest[byte >= 0 ? byte : (unsigned char)s[i + k]];
            *l = n > *l ? n : *l;
        }
    }
    return n_bytes;
}

void text_fill_shares(struct tokenizer *t)
{
    uint32_t longest[256] = {0}, most = 1;
    if (t->kind == TEXT_GEMMA4)
        fill_joins(t);
    for (uint32_t i = 0; i < t->n_tokens; i++)
        visit(t, (int32_t)i, longest, visit(t, (int32_t)i, NULL, 0));
    /* Ill-formed bytes become U+FFFD, so what is no ASCII may be part of any such token. */
    for (int b = 0x80; b < 256; b++)
        most = longest[b] > most ? longest[b] : most;
    for (int b = 0; b < 256; b++) {
        const uint32_t n = b >= 0x80 ? most : longest[b] ? longest[b] : 1;
        t->share[b] = (1u << TEXT_SHARE_BITS) / n;
    }
}
