/* drafts - inside the room: the networks that draft, one line each, and how their files are
 * recognised apart. */
#ifndef INGLE_FAMILY_DRAFTS_H
#define INGLE_FAMILY_DRAFTS_H

#include "family/family.h"

extern const struct family_draft family_dflash, family_dflash2, family_dspark_gemma4, family_eagle3,
    family_draft_model;
extern const struct family_draft family_deepseek4_mtp, family_deepseek4_dspark, family_gemma4_mtp;

/* Of files of architecture "dflash" and its like. */
bool family_dflash2_is(const struct model *m);
bool family_dspark_is(const struct model *m, const struct io_meta *meta);

#endif
