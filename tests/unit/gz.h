/* gz - whole gzipped test files. */
#ifndef INGLE_TESTS_GZ_H
#define INGLE_TESTS_GZ_H

#include <stddef.h>
#include <stdlib.h>
#include <zlib.h>

/* The uncompressed bytes of path with a 0 behind them; NULL if it cannot be read.  The
 * caller ends them with free(). */
static inline char *test_slurp_gz(const char *path, size_t *n)
{
    gzFile f = gzopen(path, "rb");
    size_t cap = 1 << 16;
    char *at = malloc(cap);
    *n = 0;
    while (f && at) {
        const int got = gzread(f, at + *n, (unsigned)(cap - *n - 1));
        if (got <= 0) {
            at[*n] = 0;
            if (gzclose(f) == Z_OK && got == 0)
                return at;
            f = NULL;
            break;
        }
        *n += (size_t)got;
        if (cap - *n < 2) {
            char *more = realloc(at, cap *= 2);
            if (!more)
                free(at);
            at = more;
        }
    }
    if (f)
        gzclose(f);
    free(at);
    return NULL;
}

#endif
