/* SPDX-License-Identifier: Apache-2.0 */
/* opt_names - options by their names and letters, and who takes them. */
#include "cli/opt.h"

#include <string.h>

bool cli_has_word(const char *list, const char *word)
{
    const size_t k = strlen(word);
    for (const char *p = list; *p;) {
        const size_t n = strcspn(p, " ");
        if (n == k && memcmp(p, word, n) == 0)
            return true;
        p += n;
        p += strspn(p, " ");
    }
    return false;
}

bool cli_is_limit(const struct ingle_option *o)
{
    return strcmp(o->group, "limits") == 0;
}

bool cli_option_takes(const char *command, const struct ingle_option *o)
{
    return strcmp(o->where, "*") == 0 || cli_has_word(o->where, command);
}

const struct ingle_option *cli_by_letter(const char *command, char letter)
{
    size_t n;
    const struct ingle_option *o = ingle_options(&n), *found = NULL;
    for (size_t i = 0; i < n; i++)
        if (o[i].letter == letter && (!found || cli_option_takes(command, &o[i])))
            found = &o[i];
    return found;
}

const struct ingle_option *cli_by_name(const char *name)
{
    size_t n;
    const struct ingle_option *o = ingle_options(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(o[i].name, name) == 0)
            return &o[i];
    return NULL;
}

bool cli_takes(const char *command, const char *name)
{
    const struct ingle_option *o = cli_by_name(name);
    return o && cli_option_takes(command, o);
}
