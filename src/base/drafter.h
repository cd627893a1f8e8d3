/* drafter - files of networks that draft for a model, by the names which publishers give them. */
#ifndef INGLE_BASE_DRAFTER_H
#define INGLE_BASE_DRAFTER_H

#include <stdbool.h>

/* Whether a name, or a name of a path's folders, has one of the words: dflash, dspark, mtp,
 * assistant, draft; in either case. */
bool drafter_by_name(const char *path);

#endif
