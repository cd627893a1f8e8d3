/* SPDX-License-Identifier: Apache-2.0 */
/* The list of files that a hub sends, and the choice among them.  The first line is the code. */
#include "base/bug.h"
#include "hub/hub.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct hub_list l = {0};
    struct err err = {0};
    char code[32] = "";
    const char *first = NULL;
    const uint8_t *end = n ? memchr(data, '\n', n) : NULL;
    const size_t k = end ? (size_t)(end - data) : 0;
    if (!end || k >= sizeof code || memchr(data, 0, k))
        return 0;
    memcpy(code, data, k);
    if (!hub_list_read(&l, (const char *)end + 1, n - k - 1, &err)) {
        for (size_t i = 0; i < l.n; i++) /* nothing leaves the folder */
            BUG_IF(l.at[i].path[0] == '/' || strcmp(l.at[i].path, "..") == 0 ||
                   strncmp(l.at[i].path, "../", 3) == 0 || strstr(l.at[i].path, "/../"));
        if (!hub_choose(&l, code, &first, &err)) {
            size_t n_wanted = 0;
            for (size_t i = 0; i < l.n; i++)
                n_wanted += l.at[i].wanted;
            BUG_IF(!first || !n_wanted);
        }
    }
    BUG_IF(err.status && !err.msg[0]);
    hub_list_release(&l);
    return 0;
}
