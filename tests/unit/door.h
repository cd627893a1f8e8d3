/* door - what tests of the library's interface have in common. */
#ifndef INGLE_TESTS_DOOR_H
#define INGLE_TESTS_DOOR_H

#include "unit/unit.h"

#include "ingle/ingle.h"

static struct ingle_error error;

static inline void must(ingle_status st)
{
    if (st)
        fail_msg("%s", error.text);
}

#endif
