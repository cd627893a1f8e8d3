/* clock - time in nanoseconds, and the age of files in seconds. */
#ifndef INGLE_BASE_CLOCK_H
#define INGLE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

uint64_t clock_now(void); /* monotonic */
/* A moment of it, for pthread_cond_timedwait() by that clock. */
struct timespec clock_at(uint64_t ns);
/* That the calling thread has had a processor. */
uint64_t clock_used(void);
/* Seconds since a file's time.  0 for one that is still to come: the system dates files by a finer
 * clock than time(), another machine by its own.  Nothing is older than the clock, which began in
 * 1970. */
int64_t clock_age(int64_t file_time);

#endif
