/* clock - monotonic time in nanoseconds. */
#ifndef INGLE_BASE_CLOCK_H
#define INGLE_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_now(void);

#endif
