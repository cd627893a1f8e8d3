/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "media/child/child.h"

#include "base/mem.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void crash(void)
{
    volatile uintptr_t nowhere = 8;
    *(volatile int *)nowhere = 1;
}

static void grow(void)
{
    for (;;) {
        void *p = mem_alloc(64 << 20);
        if (!p)
            _exit(1);
        memset(p, 1, 64 << 20);
    }
}

static void work(void)
{
    for (volatile unsigned i = 0;; i++)
        ;
}

void media_child_trial(uint32_t kind)
{
    switch (kind & 0xFFFF) {
    case MEDIA_TRIAL_CRASH:
        crash();
        break;
    case MEDIA_TRIAL_WORK:
        work();
        break;
    case MEDIA_TRIAL_GROW:
        grow();
        break;
    case MEDIA_TRIAL_OPEN:
        (void)!open("/etc/passwd", O_RDONLY | O_CLOEXEC);
        break;
    case MEDIA_TRIAL_CODE:
        (void)!mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        break;
    case MEDIA_TRIAL_WAIT:
        (void)!read(0, &(char){0}, 1);
        break;
    case MEDIA_TRIAL_LIE: {
        const struct media_reply r = {MEDIA_MAGIC, INGLE_OK, 20000, 20000, 12};
        (void)!write(0, &r, sizeof r);
        _exit(0);
    }
    case MEDIA_TRIAL_SAY:
        (void)!write(1, "broken\n", 7);
        (void)!write(2, "broken\n", 7);
        break;
    case MEDIA_TRIAL_CALL:
        (void)syscall((long)(kind >> 16), 0L, 0L, 0L, 0L, 0L, 0L);
        break;
    default:
        break;
    }
}
