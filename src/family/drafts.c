/* SPDX-License-Identifier: Apache-2.0 */
/* drafts - the networks that draft, one line each. */
#include "family/family.h"

#include <stddef.h>

const struct family_draft *const family_drafts[] = {
    NULL,
};
