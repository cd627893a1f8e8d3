/* SPDX-License-Identifier: Apache-2.0 */
/* state - what a session is now: its length, its way. */
#include "session/run.h"

int64_t session_length(const struct session *s)
{
    return kv_timeline_length(s->timeline);
}

int64_t session_pending(const struct session *s)
{
    return (int64_t)s->n_tokens - session_length(s);
}

void session_use_way(struct session *s, const struct kv_way *w)
{
    s->way = *w;
    s->scope = kv_way_scope(w, s->salt);
    s->sparse = (struct kern_sparse){.eps = w->sparse ? kv_sparse_bits(w->sparse) : 0,
                                     .from = kv_sparse_from(w->sparse)};
    if (s->timeline)
        kv_timeline_set_gaps(s->timeline, w->gaps);
}

struct kv_way session_way(const struct session *s)
{
    struct kv_way w = s->way;
    w.gaps = kv_timeline_gaps(s->timeline);
    return w;
}

const char *session_way_refuses(const struct runner *r, enum kv_way_kind kind)
{
    return r->stages ? "some of the layers lie at stages (--stages)"
                     : family_way_refuses(kind, r->device, &r->spec);
}
