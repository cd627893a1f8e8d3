/* SPDX-License-Identifier: Apache-2.0 */
/* byte_char - the characters by which vocabularies spell bytes (of GPT-2). */
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
