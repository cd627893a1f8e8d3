/* folder - removes a directory of a test, whatever is in it. */
#ifndef INGLE_TESTS_FOLDER_H
#define INGLE_TESTS_FOLDER_H

#include "unit/unit.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static inline void remove_dir(const char *dir)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        char path[1024];
        snprintf(path, sizeof path, "%.700s/%.300s", dir, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && unlink(path))
            remove_dir(path);
    }
    closedir(d);
    assert_int_equal(rmdir(dir), 0);
}

#endif
