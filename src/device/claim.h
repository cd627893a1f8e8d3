/*
 * claim - inside the room: which worker takes which chunk of a job whose chunks have places.
 *
 * The chunks of a memory node are numbered one after the other and cut into a region for each of
 * its workers: neighbours in memory, so that one chunk's reading runs on into the next.  Who has
 * none left helps the next worker of the node, and other nodes when there is none.
 */
#ifndef INGLE_DEVICE_CLAIM_H
#define INGLE_DEVICE_CLAIM_H

#include "base/pool.h"
#include <stdatomic.h>

struct claim_region {
    _Atomic int64_t next; /* Sync: claimed by adding one */
    int64_t end;
    char pad[64 - 2 * sizeof(int64_t)];
};

/* region: [pool_size(p)].  The chunks [first, end) are those of a node. */
void device_claim_share(struct claim_region *region, const struct pool *p, int node, int64_t first,
                        int64_t end);
/* To be called once for each chunk, by any workers: each call finds one. */
int64_t device_claim(struct claim_region *region, const struct pool *p, int worker);
/* Which of n tasks has a chunk: the last one whose first chunk does not come after it.  first: that
 * of task 0; those of the others follow `step` bytes apart. */
int64_t device_claim_task(const int64_t *first, size_t step, int64_t n, int64_t chunk);

#endif
