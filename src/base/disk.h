/*
 * disk - how fast a file is read at random places.
 */
#ifndef INGLE_BASE_DISK_H
#define INGLE_BASE_DISK_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DISK_MOST = 16 };

struct disk_rate {
    double bytes_per_s, median_s; /* of all together; of one read */
    uint64_t n_reads;
    bool direct;                  /* past the page cache; else what is in memory counts, too */
};

/* Reads of n_bytes at random places, n_at_once (1 to DISK_MOST) at a time, for `ns`, at least one
 * each.  INGLE_IO; INGLE_ARG: the file is shorter than one read. */
MUST_CHECK ingle_status disk_measure(const char *path, uint64_t n_bytes, int n_at_once, uint64_t ns,
                                     struct disk_rate *out, struct err *err);

#endif
