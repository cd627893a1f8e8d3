/* SPDX-License-Identifier: Apache-2.0 */
#include "base/drafter.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

bool drafter_by_name(const char *path)
{
    static const char *const word[] = {"dflash", "dspark", "mtp", "assistant", "draft"};
    for (; *path; path++)
        for (size_t i = 0; i < sizeof word / sizeof *word; i++)
            if (strncasecmp(path, word[i], strlen(word[i])) == 0)
                return true;
    return false;
}
