/* machine_tree - /proc and /sys of a made-up machine, in a directory. */
#ifndef INGLE_TEST_MACHINE_TREE_H
#define INGLE_TEST_MACHINE_TREE_H

#include "unit/unit.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[] = "/tmp/ingle-cpu-XXXXXX";

static inline void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        mkdir(full, 0700);
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static inline int drop_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

/* meminfo is always there. */
static inline int make_root(void **state)
{
    (void)state;
    strcpy(root + strlen(root) - 6, "XXXXXX");
    if (!mkdtemp(root))
        return -1;
    put("/proc/meminfo",
        "MemTotal:       8388608 kB\nMemFree: 100 kB\nMemAvailable:    4194304 kB\n");
    return 0;
}

static inline int drop_root(void **state)
{
    (void)state;
    return nftw(root, drop_one, 8, FTW_DEPTH | FTW_PHYS);
}

#endif
