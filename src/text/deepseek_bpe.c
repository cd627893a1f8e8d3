/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek V3 and V4: bytes are the symbols, merged inside the pieces of the pre-tokenizer.
 * The vocabulary spells bytes with GPT-2's alphabet. */
#include "text/tokenizer_impl.h"

uint32_t text_byte_char(unsigned char byte)
{
    if (byte < 33)
        return 256u + byte;
    if (byte >= 127 && byte <= 160)
        return 289u + (byte - 127u);
    return byte == 173 ? 323 : byte;
}

int text_char_byte(uint32_t cp)
{
    if (cp >= 256 && cp < 289)
        return (int)(cp - 256);
    if (cp >= 289 && cp < 323)
        return (int)(cp - 289 + 127);
    if (cp == 323)
        return 173;
    return cp < 256 && text_byte_char((unsigned char)cp) == cp ? (int)cp : -1;
}

bool text_deepseek_encode(struct text_bpe *b, const char *text, size_t n, struct text_ids *out)
{
    struct text_split split = {.text = text, .n = n};
    for (size_t begin, end; text_split_next(&split, &begin, &end);) {
        for (size_t i = begin; i < end; i++)
            if (!text_bpe_add(b, b->t->byte_id[(unsigned char)text[i]]))
                return false;
        if (!text_bpe_finish(b, out))
            return false;
    }
    return true;
}
