/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 4: characters are the symbols, a space is U+2581, and no merge crosses the border
 * between newlines and anything else.  Nor does one cross other borders, by what the merges
 * of the vocabulary are: that makes words of lines, which are merged faster and need less
 * memory, and changes no token. */
#include "text/tokenizer_impl.h"

#include "base/utf8.h"
#include <string.h>

static bool encode_run(struct text_bpe *b, const char *s, size_t n, struct text_ids *out)
{
    unsigned char last = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t len = utf8_decode(s + i, n - i, &cp);
        const bool space = cp == 0x2581;
        int32_t id = cp < 0x80 ? b->t->ascii_id[cp] : text_find(b->t, s + i, len);
        if (!text_is_plain(b->t, id))
            id = (int32_t)~cp;
        if (i && !text_joins(b->t, last, space ? ' ' : (unsigned char)s[i]) &&
            !text_bpe_finish(b, out))
            return false;
        if (!text_bpe_add(b, id))
            return false;
        i += len;
        last = space ? ' ' : (unsigned char)s[i - 1];
    }
    return text_bpe_finish(b, out);
}

static bool encode_newlines(struct text_bpe *b, const char *s, size_t n, struct text_ids *out)
{
    const int32_t id = n <= TEXT_TOKEN_MAX_BYTES ? text_find(b->t, s, n) : -1;
    if (text_is_plain(b->t, id))
        return text_ids_push(out, id);
    return encode_run(b, s, n, out);
}

bool text_gemma_encode(struct text_bpe *b, const char *text, size_t n, struct text_ids *out)
{
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && text[end] == '\n'; end++)
            ;
        if (end > i) {
            if (!encode_newlines(b, text + i, end - i, out))
                return false;
            continue;
        }
        const char *newline = memchr(text + i, '\n', n - i);
        end = newline ? (size_t)(newline - text) : n;
        if (!encode_run(b, text + i, end - i, out))
            return false;
    }
    return true;
}
