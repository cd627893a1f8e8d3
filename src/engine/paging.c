/* SPDX-License-Identifier: Apache-2.0 */
/* paging - keys and values beyond memory: what an engine says of them. */
#include "engine/engine.h"
#include "engine/plan.h"

#include "base/num.h"
#include "session/session.h"
#include <stdio.h>

static const char kind[] = "kv-paging";

ingle_status engine_paging_open(struct ingle_engine *e, struct runner_options *r, struct err *err)
{
    struct kv_spec kv = {0};
    if (!r->disk)
        return INGLE_OK;
    const ingle_status st = e->family->kv(e->self, &r->kv, &kv, err);
    if (st)
        return st;
    const char *why = session_disk_refuses(&kv);
    kv_spec_release(&kv);
    if (!why)
        return INGLE_OK;
    if (!e->paging_reported)
        report(&e->sink, INGLE_REPORT_WARN, kind, r->disk,
               "not used, all keys and values are in memory: %s", why);
    e->paging_reported = true;
    r->disk = NULL;
    r->disk_tokens = 0;
    return INGLE_OK;
}

void engine_paging_plan(const struct ingle_engine *e, const struct runner_options *r,
                        const struct runner_plan *p, int64_t n_sessions, struct ingle_plan *out)
{
    (void)e;
    if (!r->disk)
        return;
    out->kv_disk_session_bytes = p->disk_session_bytes;
    out->kv_disk_limit_bytes = r->disk_bytes;
    out->kv_pool_tokens = num_min(num_max(r->disk_tokens, p->disk_least_tokens), r->n_ctx);
    if (!num_mul_u64(p->disk_session_bytes, (uint64_t)n_sessions, &out->kv_disk_bytes))
        out->kv_disk_bytes = UINT64_MAX;
}

void engine_paging_report(const struct ingle_engine *e, const struct runner_options *r,
                          const struct ingle_plan *p)
{
    if (!r->disk)
        return;
    const double mib = 1024.0 * 1024;
    report(&e->sink, INGLE_REPORT_NOTE, kind, r->disk,
           "keys and values of %lld tokens of a session stay in memory; of %lld tokens %.1f MiB "
           "are on disk, and each step reads them",
           (long long)p->kv_pool_tokens, (long long)p->n_ctx,
           (double)p->kv_disk_session_bytes / mib);
    if (p->kv_disk_bytes > p->kv_disk_limit_bytes)
        report(&e->sink, INGLE_REPORT_WARN, kind, r->disk,
               "all contexts together may need %.1f MiB there, the file may have %.1f MiB "
               "(--kv-disk-size): an answer ends when it is full",
               (double)p->kv_disk_bytes / mib, (double)p->kv_disk_limit_bytes / mib);
}

void engine_paging_count(const struct ingle_engine *e, struct ingle_paging *out)
{
    struct kv_disk_counts n;
    session_runner_disk_count(e->runner, &n);
    *out = (struct ingle_paging){.bytes = n.bytes,
                                 .budget_bytes = n.budget_bytes,
                                 .written_bytes = n.written_bytes,
                                 .read_bytes = n.read_bytes,
                                 .read_seconds = n.read_seconds,
                                 .waited_seconds = n.waited_seconds,
                                 .bytes_per_s = n.rate,
                                 .failed = n.failed};
    snprintf(out->error, sizeof out->error, "%s", n.error);
}
