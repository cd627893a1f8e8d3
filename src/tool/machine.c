/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tool.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include <string.h>

enum {
    PIECE = 4 << 20, /* what a thread claims at once */
    STREAMS = 8,
    RUN = 1024, /* bytes in a row of one stream */
    FILL = 2    /* what the buffer holds: pages of zeros could all be one page */
};

/* memchr() for a byte that is not there reads as fast as the C library knows how. */
static void read_piece(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const char *at = (const char *)arg + chunk * PIECE;
    for (size_t i = 0; i < PIECE / STREAMS; i += RUN)
        for (size_t s = 0; s < STREAMS; s++)
            BUG_IF(memchr(at + s * (PIECE / STREAMS) + i, FILL + 1, RUN));
}

static void fill_piece(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    memset((char *)arg + chunk * PIECE, FILL, PIECE);
}

ingle_status tool_machine_bandwidth(struct pool *p, size_t n_bytes, int n_rounds,
                                    double *bytes_per_s, struct err *err)
{
    const int64_t n_pieces = (int64_t)(n_bytes / PIECE);
    if (n_pieces < 1 || n_rounds < 1)
        return err_set(err, INGLE_ARG, "bandwidth: %zu bytes and %d rounds measure nothing", n_bytes,
                       n_rounds);
    char *buf = mem_big_alloc(n_bytes);
    if (!buf)
        return err_set(err, INGLE_NOMEM, "bandwidth: no buffer of %zu bytes", n_bytes);
    pool_run(p, n_pieces, fill_piece, buf);
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < n_rounds; i++) {
        const uint64_t start = clock_now();
        pool_run(p, n_pieces, read_piece, buf);
        const uint64_t took = clock_now() - start;
        best = took < best ? took : best;
    }
    mem_big_free(buf, n_bytes);
    *bytes_per_s = (double)n_pieces * PIECE * 1e9 / (double)(best ? best : 1);
    return INGLE_OK;
}
