/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler_encode - pictures and sounds of requests, as a job that yields: the encoders run on the
 * scheduler's thread and stop between pieces, where there are ordinary steps of all who do not need
 * what is being encoded.
 */
#include "run/parts.h"
#include "run/scheduler.h"
#include "engine/media.h"

#include "base/clock.h"

#include <string.h>

static const uint64_t LOOK_NS = 2000000;   /* how often it is asked who else is there */
/* of the encoder's operations; beside answers a part of what their step took, between these */
static const uint64_t PIECE_NS = 4000000, LEAST_NS = 500000;
static const double SHARE = 0.6, PIECE = 0.2; /* of the encoder, by what a step took */
static const double REPORT_STEP = 0.02;    /* between two reports of progress */

bool engine_lacks_media(const struct ingle_scheduler *s, const struct engine_answer *a)
{
    return session_n_media(a->session.s) && session_lacks(a->session.s, s->max_rows) != NULL;
}

/* Whose medium is next: the most urgent one's, of equal ones the first to come. */
static struct engine_answer *next_one(struct ingle_scheduler *s)
{
    struct engine_answer *next = NULL;
    for (int64_t i = 0; i < s->o.max_running; i++) {
        struct engine_answer *a = &s->slot[i];
        if ((a->state != ENGINE_ANSWER_PROMPT && a->state != ENGINE_ANSWER_RUNS) || a->step_rows ||
            engine_is_held(a->r) || !engine_lacks_media(s, a))
            continue;
        if (!next || a->r->o.priority > next->r->o.priority ||
            (a->r->o.priority == next->r->o.priority && a->r->number < next->r->number))
            next = a;
    }
    return next;
}

bool engine_media_waits(struct ingle_scheduler *s)
{
    return !s->is_encoding && next_one(s);
}

/* Media that the request needs encoded, at most. */
static int64_t n_needed(const struct ingle_request *r)
{
    int64_t n = r->usage.n_encoded;
    for (size_t i = 0; i < r->n_soft; i++)
        n += !r->soft[i].medium->rows && r->soft[i].start + r->soft[i].medium->n >
                                             r->usage.reuse.kept;
    return n;
}

/* done: of the one that is encoded; 0: none is begun, it is reported in any case. */
static void report_encoding(struct ingle_scheduler *s, double done)
{
    struct ingle_request *r = s->encoded;
    if (!r || !r->o.encoding || (done > 0 && done < s->encode_reported + REPORT_STEP))
        return;
    s->encode_reported = done;
    const int64_t n = n_needed(r);
    r->o.encoding(r->o.arg, r->usage.n_encoded, n > r->usage.n_encoded ? n : r->usage.n_encoded,
                  done);
}

static uint64_t part_of(uint64_t took, double part)
{
    const uint64_t ns = (uint64_t)((double)took * part);
    return ns > LEAST_NS ? ns : LEAST_NS;
}

/* Others have a step, if it is their turn.  The device is suspended. */
static void others(struct ingle_scheduler *s)
{
    const uint64_t began = clock_now();
    engine_end_those_over(s);
    if (began < s->encode_due)
        return;
    pthread_mutex_lock(&s->lock);
    const bool closing = s->closing;
    pthread_mutex_unlock(&s->lock);
    if (closing || !s->encoded)
        return;
    engine_admit(s);
    engine_start_shares(s);
    const bool busy = engine_step(s);
    engine_take_snapshot(s);
    const uint64_t now = clock_now(), took = now - began, piece = part_of(took, PIECE);
    s->yielded_ns += took;
    s->encode_due = now + (busy ? part_of(took, SHARE) : LOOK_NS);
    s->encodes.piece_ns = busy && piece < PIECE_NS ? piece : PIECE_NS;
}

static bool goes_on(struct ingle_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    const bool on = !s->closing && s->encoded;
    pthread_mutex_unlock(&s->lock);
    return on;
}

/* Between tiles: suspended by the tower. */
static int step_of_tower(void *arg, double done)
{
    struct ingle_scheduler *s = arg;
    report_encoding(s, done);
    others(s);
    return !goes_on(s);
}

/* Within an operation: suspended here. */
static void piece_of_tower(void *arg)
{
    struct ingle_scheduler *s = arg;
    struct device_suspended first;
    if (clock_now() < s->encode_due && !atomic_load(&s->cancels))
        return;
    pool_leave(device_pool(s->e->device));
    device_suspend(s->e->device, &first);
    others(s);
    device_resume(s->e->device, &first);
    pool_enter(device_pool(s->e->device));
    if (!s->encoded)
        atomic_store(&s->encode_stop, true);
}

bool engine_encode_next(struct ingle_scheduler *s)
{
    if (s->is_encoding)
        return false;
    if (s->has_encoded) {
        s->has_encoded = false;
        return false;
    }
    struct engine_answer *a = next_one(s);
    if (!a)
        return false;
    struct err err = {INGLE_OK, ""};
    struct ingle_request *r = a->r;
    double seconds;
    s->is_encoding = true;
    s->encoded = r;
    s->encode_reported = -1;
    s->yielded_ns = 0;
    s->encode_due = clock_now();
    atomic_store(&s->encode_stop, false);
    s->encodes = (struct device_between){.fn = piece_of_tower, .arg = s, .piece_ns = PIECE_NS};
    const struct tower_run run = {
        .step = step_of_tower, .arg = s, .cancel = &s->encode_stop, .between = &s->encodes};
    report_encoding(s, 0);
    const ingle_status st = engine_media_encode(
        s->e, session_lacks(a->session.s, s->max_rows), &run, &seconds, &err);
    s->is_encoding = false;
    s->has_encoded = true;
    if (!st)
        engine_media_yielded(s->e, (double)s->yielded_ns * 1e-9);
    if (s->encoded != r)
        return true; /* it has ended meanwhile */
    s->encoded = NULL;
    r->usage.encode_seconds += seconds - (double)s->yielded_ns * 1e-9;
    if (!st) {
        r->usage.n_encoded++;
        s->encoded = r;
        report_encoding(s, 0); /* it is among those that are done */
        s->encoded = NULL;
    } else if (st != INGLE_CANCEL) {
        engine_request_end(s, r, INGLE_FINISH_ERROR, &err);
    }
    return true;
}
