/* rules - inside the room: the words of tables of keys (family/keys.h). */
#ifndef INGLE_FAMILY_RULES_H
#define INGLE_FAMILY_RULES_H

#include "family/keys.h"

#define READ FAMILY_KEY_READ, 0, 0, NULL
#define FREE FAMILY_KEY_FREE, 0, 0, NULL
#define NUMBER(a, b) FAMILY_KEY_NUMBER, a, b, NULL
#define FLAG(a) FAMILY_KEY_FLAG, a, 0, NULL
#define WORD(words) FAMILY_KEY_WORD, 0, 0, words
#define SAME(other) FAMILY_KEY_SAME, 0, 0, other

#endif
