/* table - the families of this build, one line each. */
#ifndef INGLE_FAMILY_TABLE_H
#define INGLE_FAMILY_TABLE_H

#include "family/family.h"

extern const struct family family_gemma4;
extern const struct family family_deepseek4;

#endif
