/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* Table 3-7 of the Unicode standard: how many bytes follow a lead byte, and the range
 * that the second byte must be in. */
static int utf8_lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c >= 0xC2 && c <= 0xDF)
        return 1;
    if (c >= 0xE0 && c <= 0xEF) {
        if (c == 0xE0)
            *lo = 0xA0;
        if (c == 0xED)
            *hi = 0x9F;
        return 2;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        if (c == 0xF0)
            *lo = 0x90;
        if (c == 0xF4)
            *hi = 0x8F;
        return 3;
    }
    return 0;
}

size_t utf8_step(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char c = (unsigned char)s[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    unsigned char lo, hi;
    const int more = utf8_lead(c, &lo, &hi);
    uint32_t v = more == 1 ? c & 0x1Fu : more == 2 ? c & 0x0Fu : c & 0x07u;
    *cp = UTF8_BAD;
    if (!more)
        return 1;
    for (size_t i = 1; i <= (size_t)more; i++) {
        if (i == n) {
            *cp = UTF8_PART;
            return i;
        }
        const unsigned char d = (unsigned char)s[i];
        if (d < lo || d > hi)
            return i;
        lo = 0x80;
        hi = 0xBF;
        v = v << 6 | (d & 0x3Fu);
    }
    *cp = v;
    return (size_t)more + 1;
}

size_t utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const size_t len = utf8_step(s, n, cp);
    if (*cp == UTF8_PART)
        *cp = UTF8_BAD;
    return len;
}

size_t utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += utf8_decode(s + i, n - i, &cp);
        if (cp == UTF8_BAD)
            return false;
    }
    return true;
}

/* Characters that change what a reader sees of others. */
static bool utf8_is_control(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7F && cp < 0xA0) || (cp >= 0x202A && cp <= 0x202E) ||
           (cp >= 0x2066 && cp <= 0x2069) || cp == 0x2028 || cp == 0x2029 || cp == 0xFEFF ||
           (cp >= 0xE0000 && cp <= 0xE007F);
}

/* Marks that a text from right to left may need. */
static bool utf8_is_mark(uint32_t cp)
{
    return cp == 0x200E || cp == 0x200F || cp == 0x061C;
}

size_t utf8_show_one(const char *s, size_t n, enum utf8_shown how, char out[UTF8_SHOWN])
{
    uint32_t cp;
    const size_t len = utf8_decode(s, n, &cp);
    if (cp == UTF8_BAD) {
        snprintf(out, UTF8_SHOWN, "\\x%02x", (unsigned char)s[0]);
        return 1;
    }
    const bool stays = how == UTF8_TEXT ? cp == '\n' || cp == '\t' || !utf8_is_control(cp)
                                        : !utf8_is_control(cp) && !utf8_is_mark(cp);
    if (stays) {
        memcpy(out, s, len);
        out[len] = 0;
    } else if (cp == '\t' || cp == '\n' || cp == '\r') {
        snprintf(out, UTF8_SHOWN, "\\%c", cp == '\t' ? 't' : cp == '\n' ? 'n' : 'r');
    } else {
        snprintf(out, UTF8_SHOWN,
                 cp < 0x80      ? "\\x%02x"
                 : cp < 0x10000 ? "\\u%04x"
                                : "\\U%06x",
                 (unsigned)cp);
    }
    return len;
}

size_t utf8_show(const char *s, size_t n, enum utf8_shown how, char *out, size_t cap)
{
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        char one[UTF8_SHOWN];
        i += utf8_show_one(s + i, n - i, how, one);
        const size_t len = strlen(one);
        if (len > cap - 1 - used)
            break;
        memcpy(out + used, one, len);
        used += len;
    }
    out[used] = 0;
    return used;
}
