/* near - the word that was probably meant. */
#ifndef INGLE_BASE_NEAR_H
#define INGLE_BASE_NEAR_H

#include <stddef.h>

/* Of n words the one most like `word` (letters inserted, left out, replaced or swapped, or
 * its end left out), or NULL when none is near.  Bytes beyond the 40th do not count. */
const char *near_word(const char *const *words, size_t n, const char *word);

#endif
