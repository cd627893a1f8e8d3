/* SPDX-License-Identifier: Apache-2.0 */
/* Files of presets: the reader of lines, the sections, and the check of options. */
#include "base/bug.h"
#include "router/router.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static ingle_status set(void *arg, struct ingle_config *config, const char *key, const char *value,
                        struct err *err)
{
    struct ingle_error error;
    (void)arg;
    if (ingle_config_set(config, "serve", key, strcmp(value, "true") == 0 ? NULL : value, &error))
        return err_set(err, error.status, "%s", error.text);
    return INGLE_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct router_presets p = {0};
    struct err err = {0};
    const ingle_status st =
        router_presets_text(&p, "presets", (const char *)data, n, set, NULL, &err);
    BUG_IF(st && !err.msg[0]);
    for (size_t i = 0; i < p.n && !st; i++)
        BUG_IF(!*p.at[i].id || !ingle_config_is_set(p.at[i].config, "model"));
    router_presets_release(&p);
    return 0;
}
