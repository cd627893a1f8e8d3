/* bug - our own mistake, as opposed to a user's: says where and stops the process. */
#ifndef INGLE_BASE_BUG_H
#define INGLE_BASE_BUG_H

#include "base/attr.h"

ATTR_NORETURN void bug_stop(const char *file, int line, const char *what);

#define BUG(what) bug_stop(__FILE__, __LINE__, what)
#define BUG_IF(cond)            \
    do {                        \
        if (UNLIKELY(cond))     \
            BUG("bug: " #cond); \
    } while (0)

#endif
