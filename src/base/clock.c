/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t clock_now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

struct timespec clock_at(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
}

uint64_t clock_used(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

int64_t clock_age(int64_t file_time)
{
    const int64_t now = (int64_t)time(NULL), from = file_time > 0 ? file_time : 0;
    return now > from ? now - from : 0;
}
