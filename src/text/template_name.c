/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat.h"

#include "base/sha256.h"
#include <string.h>

/* Templates in circulation.  The renderers follow the newest rules of their family, also for
 * a file that holds an older template. */
static const struct known {
    enum text_chat_family family;
    const char *sha256; /* where only the beginning is known, eight digits of it */
    const char *name;
} known[] = {
    {TEXT_CHAT_GEMMA4, "ae53464b", "gemma4 2026-07-09 large"},
    {TEXT_CHAT_GEMMA4, "0a2c8073", "gemma4 2026-07-09 small"},
    {TEXT_CHAT_GEMMA4, "85a08664d16d8f3be4416c92427b3ac10df1024ac566cc0b4bc3bab409393f98",
     "gemma4 older, 16448 bytes"},
    {TEXT_CHAT_GEMMA4, "2dfbfc7d538912f4ea11d29d85b4e25d7bc26386e53f57529f1d707c28b5828c",
     "gemma4 older, 12045 bytes"},
    {TEXT_CHAT_GEMMA4, "65f93a25", "gemma4 interleaved"},
    {TEXT_CHAT_DEEPSEEK_V4, "7bd4fbdf0c06cd7398ddb6913de6e4a5839b9d06569e74e5b2ec246b375ca9c9",
     "deepseek4"},
    {TEXT_CHAT_DEEPSEEK_V4, "aec3d906bce80d43a9e6e89922c04e8e752c05f71f10040ba3f61b746ebacd6d",
     "deepseek4 0731"},
    {TEXT_CHAT_DEEPSEEK_V4, "b2cf3d12e68eb1213d1e1b1f8479992666dd62d3f378db25e7e7e3bef7c551e8",
     "deepseek4 nano"},
};

extern const char text_jinja_gemma4[], text_jinja_gemma4_end[], text_jinja_deepseek4[],
    text_jinja_deepseek4_end[];

/* What a variable of the template is in a file. */
static const char *first_line(enum text_chat_family family, bool variant)
{
    if (family == TEXT_CHAT_GEMMA4)
        return variant ? "{%- set small = true -%}\n" : "{%- set small = false -%}\n";
    return variant ? "{%- set revision_0731 = true -%}\n" : "{%- set revision_0731 = false -%}\n";
}

void text_chat_jinja(enum text_chat_family family, bool variant, struct str *out)
{
    const bool gemma = family == TEXT_CHAT_GEMMA4;
    const char *at = gemma ? text_jinja_gemma4 : text_jinja_deepseek4,
               *end = gemma ? text_jinja_gemma4_end : text_jinja_deepseek4_end;
    str_adds(out, first_line(family, variant));
    str_add(out, at, (size_t)(end - at));
}

/* A template of text_chat_jinja(). */
static const char *own_name(enum text_chat_family family, const char *jinja, size_t n)
{
    static const char *const names[][2] = {{"gemma4 of ingle, large", "gemma4 of ingle, small"},
                                           {"deepseek4 of ingle", "deepseek4 of ingle, 0731"}};
    const char *name = NULL;
    struct str own;
    for (int variant = 0; variant < 2 && !name; variant++) {
        str_init(&own);
        text_chat_jinja(family, variant, &own);
        if (str_ok(&own) && own.n == n && memcmp(own.at, jinja, n) == 0)
            name = names[family == TEXT_CHAT_DEEPSEEK_V4][variant];
        str_release(&own);
    }
    return name;
}

const char *text_chat_template_name(enum text_chat_family family, const char *jinja, size_t n)
{
    char hex[SHA256_HEX + 1];
    sha256_hex(jinja, n, hex, SHA256_HEX);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].family == family &&
            strncmp(hex, known[i].sha256, strlen(known[i].sha256)) == 0)
            return known[i].name;
    return own_name(family, jinja, n);
}
