/* SPDX-License-Identifier: Apache-2.0 */
/* The pre-tokenizer of DeepSeek V3 and V4.  Three splits, each within the pieces of the one
 * before: digits by three; runs of CJK and kana; then words, punctuation and white space.
 * The first two cut the text into sections, the third is text_split_next()'s matcher. */
#include "text/tokenizer_impl.h"

#include "base/utf8.h"
#include <utf8proc.h>

enum {
    LETTER = 1,
    MARK = 2,
    NUMBER = 4,
    PUNCT = 8,
    SYMBOL = 16,
    SPACE = 32,
    NEWLINE = 64, /* CR and LF, which are SPACE as well */
    CJK = 128,
};

static unsigned category(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return LETTER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return MARK;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return NUMBER;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return PUNCT;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
        return SYMBOL;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return SPACE;
    default:
        return 0;
    }
}

static unsigned class_of(uint32_t cp)
{
    if (cp == '\r' || cp == '\n')
        return SPACE | NEWLINE;
    if ((cp >= 0x09 && cp <= 0x0C) || cp == 0x85)
        return SPACE;
    if ((cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF))
        return category(cp) | CJK;
    return category(cp);
}

/* The class of the character at i and its length.  Past the end: no class, no length. */
static unsigned class_at(const char *s, size_t i, size_t end, size_t *len)
{
    uint32_t cp;
    *len = 0;
    if (i >= end)
        return 0;
    *len = utf8_decode(s + i, end - i, &cp);
    return class_of(cp);
}

/* The end of the run at i of characters that have one of the classes. */
static size_t run(const char *s, size_t i, size_t end, unsigned classes)
{
    for (size_t len; class_at(s, i, end, &len) & classes;)
        i += len;
    return i;
}

static bool is_ascii_letter(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static bool is_ascii_punct(char c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

/* White space at i: up to its last newline; else all but the last character, which belongs
 * to what follows; else (the end, or a single one) all of it. */
static size_t match_space(const char *s, size_t i, size_t end)
{
    size_t after_newline = i, last = i, at = i, len;
    for (unsigned c; (c = class_at(s, at, end, &len)) & SPACE;) {
        last = at;
        at += len;
        if (c & NEWLINE)
            after_newline = at;
    }
    if (after_newline > i)
        return after_newline;
    return at < end && last > i ? last : at;
}

/* The end of the match of the third split at i, or i: none. */
static size_t match(const char *s, size_t i, size_t end)
{
    size_t len;
    const unsigned c = class_at(s, i, end, &len);
    if (is_ascii_punct(s[i]) && i + 1 < end && is_ascii_letter(s[i + 1])) {
        for (i += 2; i < end && is_ascii_letter(s[i]); i++)
            ;
        return i;
    }
    /* Letters, with one character before them that is no letter, sign or newline. */
    if (!(c & (NEWLINE | LETTER | PUNCT | SYMBOL))) {
        const size_t e = run(s, i + len, end, LETTER | MARK);
        if (e > i + len)
            return e;
    }
    if (c & (LETTER | MARK))
        return run(s, i, end, LETTER | MARK);
    const size_t signs = i + (s[i] == ' '), e = run(s, signs, end, PUNCT | SYMBOL);
    if (e > signs)
        return run(s, e, end, NEWLINE);
    return match_space(s, i, end);
}

/* Sets section_end for the section that begins at s->at.  True: it is one piece. */
static bool section(struct text_split *s)
{
    size_t len;
    const unsigned c = class_at(s->text, s->at, s->n, &len);
    size_t end = s->at + len;
    if (c & NUMBER) {
        for (int digits = 1; digits < 3 && class_at(s->text, end, s->n, &len) & NUMBER; digits++)
            end += len;
    } else if (c & CJK) {
        end = run(s->text, end, s->n, CJK);
    } else {
        while (end < s->n && !(class_at(s->text, end, s->n, &len) & (NUMBER | CJK)))
            end += len;
    }
    s->section_end = end;
    return c & NUMBER;
}

bool text_split_next(struct text_split *s, size_t *begin, size_t *end)
{
    if (s->at >= s->n)
        return false;
    *begin = s->at;
    if (s->at >= s->section_end && section(s)) {
        *end = s->at = s->section_end;
        return true;
    }
    /* Characters at which nothing matches are a piece of their own. */
    while (s->at < s->section_end) {
        const size_t e = match(s->text, s->at, s->section_end);
        if (e > s->at) {
            if (s->at == *begin)
                s->at = e;
            break;
        }
        size_t len;
        class_at(s->text, s->at, s->section_end, &len);
        s->at += len;
    }
    *end = s->at;
    return true;
}
