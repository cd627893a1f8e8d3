/* SPDX-License-Identifier: Apache-2.0 */
/* drafts - the networks that draft, one line each. */
#include "family/draft/drafts.h"

#include <stddef.h>

const struct family_draft *const family_drafts[] = {
    &family_deepseek4_dspark, /* before other networks of the same architecture, "dflash" */
    &family_dflash,
    &family_dflash2,
    &family_dspark_gemma4,
    &family_eagle3,
    &family_deepseek4_mtp,
    &family_gemma4_mtp,
    &family_draft_model, /* last: whatever else a file is, it is that first */
    NULL,
};

const struct family_draft *family_draft_of(const struct family *target, const struct model *m,
                                           const struct io_meta *meta, struct json_object *config)
{
    for (const struct family_draft *const *k = family_drafts; *k; k++)
        if (config ? (*k)->named && (*k)->named(config) : (*k)->fits(target, m, meta))
            return *k;
    return NULL;
}
