/* clock - time in nanoseconds. */
#ifndef INGLE_BASE_CLOCK_H
#define INGLE_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_now(void); /* monotonic */
/* That the calling thread has had a processor. */
uint64_t clock_used(void);

#endif
