/* SPDX-License-Identifier: Apache-2.0 */
#include "server/thought.h"

#include "base/sha256.h"

#include <string.h>

/* A seal is PREFIX, the HMAC-SHA-256 of the text in hex, and for one that carries "." and the
 * text in base64 without padding. */
#define PREFIX "ingle1."
static const char key[] = "a thought of ingle";

static void hmac(struct view text, char hex[SHA256_HEX + 1])
{
    uint8_t pad[64], inner[SHA256_BYTES], outer[SHA256_BYTES];
    struct sha256 s;
    memset(pad, 0x36, sizeof pad);
    for (size_t i = 0; i < sizeof key - 1; i++)
        pad[i] ^= (uint8_t)key[i];
    sha256_init(&s);
    sha256_add(&s, pad, sizeof pad);
    if (text.n)
        sha256_add(&s, text.at, text.n);
    sha256_end(&s, inner);
    for (size_t i = 0; i < sizeof pad; i++)
        pad[i] ^= 0x36 ^ 0x5c;
    sha256_init(&s);
    sha256_add(&s, pad, sizeof pad);
    sha256_add(&s, inner, sizeof inner);
    sha256_end(&s, outer);
    for (size_t i = 0; i < sizeof outer; i++) {
        hex[2 * i] = "0123456789abcdef"[outer[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[outer[i] & 15];
    }
    hex[SHA256_HEX] = 0;
}

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static void put_base64(struct str *out, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = 0;
        char part[4];
        const size_t k = n - i < 3 ? n - i : 3;
        for (size_t j = 0; j < 3; j++)
            v = v << 8 | (j < k ? (uint8_t)bytes[i + j] : 0u);
        for (size_t j = 0; j < 4; j++)
            part[j] = digits[v >> (18 - 6 * j) & 63];
        str_add(out, part, k + 1);
    }
}

static bool add_base64(struct str *out, const char *text, size_t n)
{
    if (n % 4 == 1)
        return false;
    for (size_t i = 0; i < n; i += 4) {
        const size_t k = n - i < 4 ? n - i : 4;
        uint32_t v = 0;
        char part[3];
        for (size_t j = 0; j < 4; j++) {
            const char *d = j < k && text[i + j] ? strchr(digits, text[i + j]) : digits;
            if (!d || (j < k && !text[i + j]))
                return false;
            v = v << 6 | (uint32_t)(d - digits);
        }
        for (size_t j = 0; j < 3; j++)
            part[j] = (char)(uint8_t)(v >> (16 - 8 * j));
        str_add(out, part, k - 1);
    }
    return true;
}

void thought_seal(struct str *out, struct view text, bool carry)
{
    char hex[SHA256_HEX + 1];
    hmac(text, hex);
    str_adds(out, PREFIX);
    str_adds(out, hex);
    if (!carry)
        return;
    str_addc(out, '.');
    put_base64(out, text.at, text.n);
}

enum thought thought_check(struct view seal, struct view text)
{
    const size_t head = sizeof PREFIX - 1;
    char hex[SHA256_HEX + 1];
    if (!view_starts(seal, PREFIX) || seal.n < head + SHA256_HEX)
        return THOUGHT_FOREIGN;
    hmac(text, hex);
    return memcmp(seal.at + head, hex, SHA256_HEX) == 0 ? THOUGHT_OURS
                                                        : THOUGHT_ALTERED;
}

bool thought_open(struct view seal, struct str *out)
{
    const size_t head = sizeof PREFIX - 1 + SHA256_HEX;
    if (!view_starts(seal, PREFIX) || seal.n <= head || seal.at[head] != '.')
        return false;
    struct str text;
    str_init(&text);
    bool ok = add_base64(&text, seal.at + head + 1, seal.n - head - 1) && str_ok(&text);
    ok = ok && thought_check(seal, view_str(&text)) ==
                   THOUGHT_OURS;
    if (ok)
        str_add(out, text.at, text.n);
    str_release(&text);
    return ok;
}
