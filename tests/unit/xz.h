/* xz - whole test files, of which some are compressed. */
#ifndef INGLE_TESTS_XZ_H
#define INGLE_TESTS_XZ_H

#include "base/file.h"
#include "base/mem.h"
#include <lzma.h>
#include <string.h>

/* What the n bytes of an .xz file at `in` hold, with a 0 behind it; NULL if they are none. */
static inline char *test_unpack_xz(const char *in, size_t n_in, size_t *n)
{
    size_t cap = 4 * n_in;
    for (char *out = NULL; (out = mem_alloc(cap + 1)) != NULL; cap *= 2) {
        uint64_t memory = UINT64_MAX;
        size_t from = 0;
        *n = 0;
        const lzma_ret r = lzma_stream_buffer_decode(&memory, 0, NULL, (const uint8_t *)in, &from,
                                                     n_in, (uint8_t *)out, n, cap);
        out[*n] = 0;
        if (r == LZMA_OK)
            return out;
        mem_free(out);
        if (r != LZMA_BUF_ERROR)
            break;
    }
    return NULL;
}

/* The bytes of path, unpacked if it is an .xz file, with a 0 behind them; NULL if it cannot be
 * read.  The caller ends them with mem_free(). */
static inline char *test_slurp(const char *path, size_t *n)
{
    char *bytes, *plain;
    size_t n_bytes;
    if (file_slurp(path, 64 << 20, &bytes, &n_bytes, NULL))
        return NULL;
    if (n_bytes < 6 || memcmp(bytes, "\xFD" "7zXZ", 6) != 0) {
        *n = n_bytes;
        return bytes;
    }
    plain = test_unpack_xz(bytes, n_bytes, n);
    mem_free(bytes);
    return plain;
}

#endif
