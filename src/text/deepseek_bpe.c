/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek V3 and V4: bytes are the symbols, merged inside the pieces of the pre-tokenizer.
 * The vocabulary spells bytes with GPT-2's alphabet. */
#include "text/tokenizer_impl.h"

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
