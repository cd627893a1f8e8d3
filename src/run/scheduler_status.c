/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_status - what other threads see of it. */
#include "device/card.h"
#include "run/parts.h"
#include "run/scheduler.h"
#include "engine/plan.h"

#include "base/clock.h"
#include "base/num.h"

#include <string.h>

void engine_take_snapshot(struct ingle_scheduler *s)
{
    struct kv_pool_counts kv;
    struct kv_store_counts disk = {0};
    bool answers = false;
    kv_pool_count(session_runner_pool(s->e->runner), &kv);
    if (session_runner_store(s->e->runner)) {
        kv_store_poll(session_runner_store(s->e->runner));
        kv_store_count(session_runner_store(s->e->runner), &disk);
    }
    pthread_mutex_lock(&s->lock);
    s->status.store_bytes = disk.bytes;
    s->status.store_hits = disk.restored;
    s->status.store_corrupt = disk.damaged;
    s->status.store_written = disk.written;
    s->status.store_skipped = disk.skipped;
    s->status.store_files = disk.files;
    s->status.store_evicted = disk.evicted;
    s->status.store_failed = disk.failed;
    s->status.store_budget_bytes = disk.budget_bytes;
    s->status.store_written_bytes = disk.written_bytes;
    s->status.store_restored_bytes = disk.restored_bytes;
    s->status.store_saving = disk.saving;
    memcpy(s->status.store_error, disk.error, sizeof s->status.store_error);
    s->store_try_at = disk.try_at;
    s->status.n_running = engine_n_running(s);
    s->status.kv_used_bytes = kv.used_bytes;
    s->status.kv_budget_bytes = kv.budget_bytes;
    s->status.cache_bytes = kv.cached_bytes;
    s->status.kv_busy_bytes = kv.used_bytes > kv.cached_bytes ? kv.used_bytes - kv.cached_bytes : 0;
    s->status.grammar_bytes = engine_words_bytes(s->e->model->words);
    engine_paging_count(s->e, &s->status.paging);
    ingle_engine_media(s->e, &s->status.media);
    s->status.gpu_lost = device_card_lost(s->e->device);
    s->status.resting_threads = pool_resting(device_pool(s->e->device));
    for (int64_t i = 0; i < s->o.max_running; i++) {
        const struct engine_answer *a = &s->slot[i];
        s->seen[i] = (struct ingle_slot){0};
        if (!a->r)
            continue;
        const int64_t n = session_length(a->session.s);
        s->seen[i] = (struct ingle_slot){.request = a->r->number,
                                         .n_prompt = a->r->o.n_prompt,
                                         .n_prefilled = num_min(n, a->r->o.n_prompt),
                                         .n_generated = a->n_generated,
                                         .max_tokens = a->r->max_tokens,
                                         .held = engine_is_held(a->r),
                                         .encoding = s->encoded == a->r,
                                         .restoring = a->state == ENGINE_ANSWER_RESTORES};
        answers |= a->state == ENGINE_ANSWER_RUNS && !engine_is_held(a->r);
    }
    pthread_mutex_unlock(&s->lock);
    session_runner_set_gentle(s->e->runner, answers);
}

int64_t ingle_scheduler_status(struct ingle_scheduler *s, struct ingle_scheduler_status *out,
                               struct ingle_slot *slots, int64_t n_slots)
{
    pthread_mutex_lock(&s->lock);
    *out = s->status;
    out->queried_tokens = out->prompt_tokens + out->cached_tokens;
    sched_queue_count(s->queue, &out->n_waiting, &out->n_waiting_tokens);
    out->max_running = s->o.max_running;
    out->max_waiting = s->o.max_waiting;
    const uint64_t now = clock_now();
    out->store_retry_seconds = s->store_try_at > now ? (double)(s->store_try_at - now) * 1e-9 : 0;
    if (s->step_began)
        out->since_step_seconds = (double)(clock_now() - s->step_began) * 1e-9;
    for (int64_t i = 0; i < num_min(n_slots, s->o.max_running); i++)
        slots[i] = s->seen[i];
    pthread_mutex_unlock(&s->lock);
    return s->o.max_running;
}
