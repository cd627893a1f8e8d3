/* SPDX-License-Identifier: Apache-2.0 */
/* settle - the store gets the prefixes that it had no room for. */
#include "base/mem.h"
#include "session/run.h"

enum { SETTLE = 16, LEAST_ROUNDS = 64 }; /* most of them are there already, and cost a look */

/* Offers the store the next point that it owes; false: there is none, or still no room. */
static bool settle_one(struct runner *r)
{
    struct kv_scope scope;
    int64_t n;
    int32_t *token;
    const struct kv_point *p = kv_tree_owed(r->tree, &scope, &token, &n);
    if (!p)
        return false;
    const bool ok = kv_timeline_attach(r->snapshot, r->tree, p, NULL) == INGLE_OK;
    const bool taken = !ok || kv_store_put(r->store, r->snapshot, scope, token, 0, NULL, 0);
    kv_timeline_clear(r->snapshot);
    if (!taken)
        kv_tree_owe(r->tree, scope, token, n);
    mem_free(token);
    return taken;
}

bool session_runner_settle(struct runner *r)
{
    if (!r->store)
        return false;
    if (kv_store_gave_up(r->store) && r->tree)
        kv_tree_owe_all(r->tree);
    bool more = r->tree != NULL;
    for (int i = 0; i < SETTLE && more; i++)
        more = settle_one(r);
    /* what was offered just now is to be looked after, too */
    return kv_store_poll(r->store) || more;
}

void session_runner_write(struct runner *r)
{
    struct kv_store_counts store;
    struct kv_tree_counts tree = {0};
    if (!r->store)
        return;
    if (r->tree)
        kv_tree_count(r->tree, &tree);
    for (int64_t rounds = LEAST_ROUNDS + tree.points; rounds && session_runner_settle(r); rounds--)
        kv_store_flush(r->store);
    kv_store_count(r->store, &store);
    if (r->tree)
        kv_tree_count(r->tree, &tree);
    if (store.saving && tree.owed + tree.lost) /* else it was said that nothing is saved, and why */
        report(r->sink, INGLE_REPORT_WARN, "store", "prefixes",
               "%lld restore points are not saved: %s", (long long)tree.owed + (long long)tree.lost,
               tree.owed ? "no memory to write them"
                         : "the disk was slower than prompts were computed, and memory for "
                           "prefixes (--cache) was full");
}
