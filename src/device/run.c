/* SPDX-License-Identifier: Apache-2.0 */
/* run - whether a step goes on: errors, cancels, and the places where another step may come
 * between. */
#include "device/ops.h"

#include "base/clock.h"
#include <stdio.h>
#include <string.h>

void device_note_recipe(struct device *d, const char *recipe)
{
    const size_t n = strlen(d->recipes);
    if (!strstr(d->recipes, recipe))
        snprintf(d->recipes + n, sizeof d->recipes - n, "%s%s", n ? "+" : "", recipe);
}

bool device_runs(struct device *d)
{
    if (d->dry || d->err.status != INGLE_OK)
        return false;
    if (d->cancel && atomic_load_explicit(d->cancel, memory_order_relaxed)) {
        err_set(&d->err, INGLE_CANCEL, "cancelled");
        return false;
    }
    return true;
}

static void note_piece(struct device_between *b, uint64_t ns)
{
    for (int i = 0; i < DEVICE_LONGEST && ns; i++)
        if (ns > b->longest_ns[i]) {
            const uint64_t shorter = b->longest_ns[i];
            b->longest_ns[i] = ns;
            ns = shorter;
        }
}

void device_may_stop(struct device *d, uint64_t next_ns)
{
    struct device_between *b = d->between;
    if (!b || d->dry)
        return;
    if (b->piece_ns)
        note_piece(b, clock_now() - b->last);
    b->next_ns = next_ns;
    b->fn(b->arg);
    if (b->piece_ns)
        b->last = clock_now();
}
