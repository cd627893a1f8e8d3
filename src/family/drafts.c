/* SPDX-License-Identifier: Apache-2.0 */
/* drafts - the networks that draft, one line each. */
#include "family/family.h"

#include <stddef.h>

const struct family_draft *const family_drafts[] = {
    NULL,
};

const struct family_draft *family_draft_of(const struct family *target, const struct model *m, const struct io_meta *meta,
                                           struct json_object *config)
{
    for (const struct family_draft *const *k = family_drafts; *k; k++)
        if (config ? (*k)->named && (*k)->named(config) : (*k)->fits(target, m, meta))
            return *k;
    return NULL;
}
