/* SPDX-License-Identifier: Apache-2.0 */
/* events_none - events of a build without libzmq. */
#include "link/events.h"

ingle_status link_events_open(struct link_events **out, const struct link_events_options *o,
                              struct err *err)
{
    (void)out;
    return err_set(err, INGLE_UNSUP, "'--kv-events %s': this build has no libzmq (libzmq3-dev)",
                   o->address);
}

void link_events_close(struct link_events *e) { (void)e; }

uint64_t link_events_put(struct link_events *e, enum link_medium medium, const char *salt,
                         const int32_t *tokens, const uint32_t *media, int64_t n)
{
    (void)e, (void)medium, (void)salt, (void)tokens, (void)media, (void)n;
    return 0;
}

void link_events_drop(struct link_events *e, enum link_medium medium, uint64_t name)
{
    (void)e, (void)medium, (void)name;
}

void link_events_count(struct link_events *e, struct link_events_counts *out)
{
    (void)e;
    *out = (struct link_events_counts){0};
}

const char *link_events_address(const struct link_events *e)
{
    (void)e;
    return "";
}

const char *link_events_topic(const struct link_events *e)
{
    (void)e;
    return "";
}

const char *link_events_replay(const struct link_events *e)
{
    (void)e;
    return NULL;
}
