/* SPDX-License-Identifier: Apache-2.0 */
/* skip - prompts of which parts are left out: where the other tokens stand. */
#include "engine/engine.h"

#include "base/num.h"

ingle_status engine_gaps(const struct ingle_engine *e, const int32_t *position, int64_t n, struct kv_gaps **out, struct err *err)
{
    *out = NULL;
    ingle_status st = position ? kv_gaps_create(out, position, n, err) : INGLE_OK;
    const char *why = *out ? session_gaps_refuses(e->runner) : NULL;
    if (why)
        st = err_set(err, INGLE_UNSUP, "no part of a prompt can be left out: %s", why);
    const int64_t most = num_max(e->info.n_ctx, session_runner_n_ctx(e->runner));
    if (!st && *out && position[n - 1] >= most)
        st = err_set(err, INGLE_LIMIT, "position %lld is %d, the model has %lld", (long long)(n - 1), position[n - 1], (long long)most);
    if (st) {
        kv_gaps_unref(*out);
        *out = NULL;
    }
    return st;
}

ingle_status ingle_session_set_positions(struct ingle_session *s, const int32_t *position, int64_t n, struct ingle_error *error)
{
    struct err err;
    struct kv_gaps *gaps;
    engine_drawing_turn(s);
    const ingle_status st = engine_gaps(s->e, position, n, &gaps, &err);
    if (!st)
        session_set_gaps(s->s, gaps);
    kv_gaps_unref(gaps);
    return engine_say(error, st, &err);
}

int64_t ingle_session_skipped(const struct ingle_session *s)
{
    return kv_gaps_skipped(session_gaps(s->s));
}
