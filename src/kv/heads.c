/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heads - blocks of pages on disk in memory, a head at a time, and the thread that reads them.
 *
 * There are two stages.  A step computes with one; meanwhile the other is filled with what the step
 * before asked for next.  A step between the pieces of another one has the stage that the first
 * does not compute with, and nothing is read ahead for it.
 */
#define _GNU_SOURCE
#include "kv/disk_impl.h"
#include "kv/disk_parts.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "kv/store_file.h"
#include <string.h>

enum { RUN_BYTES = 2 << 20 }; /* read, then compared with its checksums */

/* ---- the thread ---- */

/* How many blocks from i on are one after the other, and are read at once. */
static int32_t run_of(const struct kv_stage *s, const struct kv_unit *u, int32_t i)
{
    const int32_t most = (int32_t)num_max(1, (int64_t)(RUN_BYTES / u->step));
    int32_t n = 1;
    while (n < most && i + n < s->n && s->block[i + n].slot == s->block[i].slot + n)
        n++;
    return n;
}

static void fill(struct kv_disk *d, struct kv_stage *s)
{
    const struct kv_unit *u = &d->unit[s->unit];
    s->failed = -1;
    for (int32_t i = 0, n; i < s->n && s->failed < 0; i += n) {
        uint8_t *to = s->at + (size_t)i * u->step;
        n = run_of(s, u, i);
        s->why = kv_disk_read(d, u, s->block[i].slot, n, to, &d->pulse);
        if (s->why)
            s->failed = i;
        for (int32_t k = 0; k < n && s->failed < 0; k++)
            if (!kv_key_equal(kv_sum(to + (size_t)k * u->step, u->n_bytes),
                              s->block[i + k].sum)) {
                s->failed = i + k;
                s->why = KV_FILE_DAMAGED;
            }
    }
}

static struct kv_stage *waiting(struct kv_disk *d)
{
    for (int i = 0; i < KV_STAGES; i++)
        if (d->stage[i].state == KV_STAGE_WAITS)
            return &d->stage[i];
    return NULL;
}

static void *run(void *arg)
{
    struct kv_disk *d = arg;
    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        struct kv_stage *s = waiting(d);
        if (!s) {
            pthread_cond_wait(&d->work, &d->lock);
            continue;
        }
        s->state = KV_STAGE_READS;
        const uint64_t began = clock_now();
        atomic_store(&d->pulse.since, began);
        pthread_mutex_unlock(&d->lock);
        fill(d, s);
        const uint64_t took = clock_now() - began;
        pthread_mutex_lock(&d->lock);
        d->read_ns += took;
        d->read_bytes += (uint64_t)s->n * d->unit[s->unit].step;
        s->state = KV_STAGE_DONE;
        pthread_cond_broadcast(&d->done);
    }
    pthread_mutex_unlock(&d->lock);
    kv_disk_thread_ends(d, &d->thread);
    return NULL;
}

/* Memory for blocks that rows chose. */
static ingle_status open_kept(struct kv_disk *d, struct err *err)
{
    size_t n = 0, bytes = 0;
    d->n_kept = d->pool->spec->kept;
    for (size_t i = 0; i < d->n_units; i++) {
        size_t each;
        d->unit[i].kept_at = bytes;
        if (!num_mul((size_t)d->n_kept, d->unit[i].step, &each) || !num_add(bytes, each, &bytes))
            return err_set(err, INGLE_LIMIT, "%lld pages to keep in memory are too many",
                           (long long)d->n_kept);
        n += (size_t)d->n_kept;
    }
    if (!n)
        return INGLE_OK;
    d->kept = mem_calloc(n, sizeof *d->kept);
    d->kept_at = mem_big_alloc(bytes);
    d->kept_bytes = bytes;
    if (!d->kept || !d->kept_at)
        return err_set(err, INGLE_NOMEM, "no %zu bytes to keep pages in that rows choose", bytes);
    for (size_t i = 0; i < n; i++)
        d->kept[i].slot = -1;
    return INGLE_OK;
}

ingle_status kv_heads_open(struct kv_disk *d, int64_t max_tokens, struct err *err)
{
    size_t most = 0, bytes;
    d->cap = (int32_t)num_min(num_div_up(max_tokens, KV_PAGE), INT32_MAX / 2);
    for (size_t i = 0; i < d->n_units; i++)
        most = d->unit[i].step > most ? d->unit[i].step : most;
    if (!num_mul((size_t)d->cap, most, &d->stage_bytes) ||
        !num_mul((size_t)d->cap, sizeof *d->want, &bytes))
        return err_set(err, INGLE_LIMIT,
                       "a context of %lld tokens is too large to be read from disk",
                       (long long)max_tokens);
    d->n_order = 4 * d->n_units; /* layers may share what they read */
    bool ok = (d->want = mem_calloc((size_t)d->cap, sizeof *d->want)) != NULL;
    for (int i = 0; i < KV_DISK_KINDS; i++) {
        d->order[i] = mem_calloc(d->n_order, sizeof **d->order);
        ok = ok && d->order[i];
    }
    for (int i = 0; i < KV_STAGES; i++) {
        d->stage[i].block = mem_calloc((size_t)d->cap, sizeof *d->stage[i].block);
        d->stage[i].at = mem_big_alloc(d->stage_bytes);
        ok = ok && d->stage[i].block && d->stage[i].at;
    }
    if (!ok)
        return err_set(err, INGLE_NOMEM, "no %zu bytes to read keys and values into",
                       d->stage_bytes * KV_STAGES);
    const ingle_status st = open_kept(d, err);
    return st ? st : kv_disk_start(d, &d->thread, run, err);
}

void kv_heads_free(struct kv_disk *d)
{
    for (int i = 0; i < KV_STAGES; i++) {
        mem_free(d->stage[i].block);
        mem_big_free(d->stage[i].at, d->stage_bytes);
    }
    for (int i = 0; i < KV_DISK_KINDS; i++)
        mem_free(d->order[i]);
    mem_free(d->want);
    mem_free(d->kept);
    mem_big_free(d->kept_at, d->kept_bytes);
}

/* ---- who asks for them ---- */

void kv_disk_begin(struct kv_pool *p, int kind)
{
    struct kv_disk *d = p->disk;
    if (!d)
        return;
    d->ended[d->kind] = d->place;
    d->kind = kind;
    d->place = 0;
}

static uint32_t unit_of(const struct kv_disk *d, uint32_t stream, uint32_t head)
{
    for (size_t i = 0; i < d->n_units; i++)
        if (d->unit[i].stream == stream && d->unit[i].head == head)
            return (uint32_t)i;
    BUG("no head of keys and values that a disk has");
}

/* Notes that a step takes this unit.  What comes next, as far as the last step of its kind says; a
 * step's end is followed by the beginning of the next one. */
static uint32_t next_of(struct kv_disk *d, uint32_t unit)
{
    const size_t at = d->place < d->n_order ? d->place++ : d->n_order - 1;
    uint32_t *const order = d->order[d->kind];
    const bool as_before = order[at] == unit;
    order[at] = unit;
    if (as_before && at + 1 < d->ended[d->kind])
        return order[at + 1];
    if (as_before && at + 1 == d->ended[d->kind])
        return d->order[KV_DISK_STEP][0];
    return unit + 1 < d->n_units ? unit + 1 : 0;
}

/* Notes the blocks that a timeline needs and that the take does not have yet.  False: there is no
 * room. */
static bool want_all(struct kv_disk *d, const struct kv_timeline *t, int32_t *n)
{
    const struct kv_table *b = &t->table[d->group];
    const int32_t before = *n;
    for (int64_t i = b->first; i < b->end; i++) {
        struct kv_page *pg = b->page[i];
        if (!pg || pg->at || pg->taken == d->takes)
            continue;
        if (*n == d->cap) { /* those of this one are not taken after all */
            while (*n > before)
                d->want[--*n].page->taken = 0;
            return false;
        }
        pg->taken = d->takes;
        pg->block = *n;
        d->want[(*n)++] =
            (struct kv_block){.page = pg, .slot = pg->slot, .turn = d->turn[pg->slot], .index = i};
    }
    return true;
}

static bool holds(const struct kv_disk *d, const struct kv_stage *s, uint32_t unit, int32_t n)
{
    bool same = s->state != KV_STAGE_EMPTY && s->unit == unit && s->n == n;
    for (int32_t i = 0; i < n && same; i++)
        same = s->block[i].slot == d->want[i].slot && s->block[i].turn == d->want[i].turn;
    return same;
}

static bool is_used(const struct kv_disk *d, const struct kv_stage *s)
{
    for (int i = 0; i < KV_STAGES; i++)
        if (d->heads[i].used && d->heads[i].stage == s)
            return true;
    return false;
}

/* With the lock: has the wanted blocks of a unit read into a stage that nobody has. */
static void request(struct kv_disk *d, struct kv_stage *s, uint32_t unit, int32_t n)
{
    s->unit = unit;
    s->n = n;
    s->failed = -1;
    for (int32_t i = 0; i < n; i++) {
        s->block[i] = d->want[i];
        s->block[i].sum = d->sum[(size_t)d->want[i].slot * d->n_units + unit];
    }
    s->state = KV_STAGE_WAITS;
    pthread_cond_signal(&d->work);
}

/* With the lock: until the thread has news.  Not OK: nobody wants the step any more, or the disk
 * does not answer. */
static ingle_status wait_for(struct kv_disk *d, uint64_t *waited, const atomic_bool *cancel,
                             struct err *err)
{
    *waited += kv_disk_wait(&d->done, &d->lock);
    if (cancel && atomic_load(cancel))
        return err_set(err, INGLE_CANCEL, "cancelled");
    bool reads = false;
    for (int i = 0; i < KV_STAGES; i++)
        reads |= d->stage[i].state == KV_STAGE_READS;
    if (!reads || !kv_pulse_timed_out(d, &d->pulse, *waited))
        return INGLE_OK;
    d->failed_reads++;
    return err_set(err, INGLE_IO, "%s: cannot read keys and values: no read has ended for %.3g s",
                   d->path, (double)d->stall_ns * 1e-9);
}

/* With the lock: the stage that has, or will have, what is wanted. */
static ingle_status stage_for(struct kv_disk *d, uint32_t unit, int32_t n, struct kv_stage **out,
                              uint64_t *waited, const atomic_bool *cancel, struct err *err)
{
    struct kv_stage *to = NULL;
    for (int i = 0; i < KV_STAGES; i++) {
        struct kv_stage *s = &d->stage[i];
        if (is_used(d, s))
            continue;
        if (holds(d, s, unit, n)) {
            *out = s;
            return INGLE_OK;
        }
        if (!to || to->state == KV_STAGE_READS || to->state == KV_STAGE_WAITS)
            to = s;
    }
    BUG_IF(!to); /* as many steps as stages */
    ingle_status st = INGLE_OK;
    while (to->state == KV_STAGE_READS && !st)
        st = wait_for(d, waited, cancel, err);
    if (!st) {
        request(d, to, unit, n);
        *out = to;
    }
    return st;
}

/* With the lock: the other stage is filled with what comes next, unless it is in use or has it. */
static void read_ahead(struct kv_disk *d, const struct kv_stage *now, uint32_t unit, int32_t n)
{
    for (int i = 0; i < KV_STAGES; i++) {
        struct kv_stage *s = &d->stage[i];
        if (s == now || is_used(d, s) || s->state == KV_STAGE_READS)
            continue;
        if (!holds(d, s, unit, n) && !holds(d, now, unit, n))
            request(d, s, unit, n);
        return;
    }
}

static ingle_status damaged(struct kv_disk *d, const struct kv_stage *s, struct err *err)
{
    const struct kv_unit *u = &d->unit[s->unit];
    const int64_t index = s->block[s->failed].index;
    char text[64];
    return err_set(
        err, INGLE_IO,
        "%s: cannot read keys and values of layer %u, page %lld (positions from %lld on): %s",
        d->path, d->pool->spec->stream[u->stream].layer, (long long)index,
        (long long)index * KV_PAGE, kv_disk_why(s->why, text, sizeof text));
}

/* Where each page's block is. */
static void point(struct kv_disk *d, const struct kv_stage *s, const struct kv_unit *u,
                  struct kv_timeline *t)
{
    const struct kv_table *b = &t->table[d->group];
    for (int64_t i = b->first; i < b->end; i++) {
        const struct kv_page *pg = b->page[i];
        b->head[i] = !pg ? NULL : pg->at ? pg->at + u->at : s->at + (size_t)pg->block * u->step;
    }
}

/* With the lock: the stage that has what is wanted, read and whole. */
static ingle_status stage_done(struct kv_disk *d, uint32_t unit, int32_t n, struct kv_stage **out,
                               const atomic_bool *cancel, struct err *err)
{
    uint64_t waited = 0;
    ingle_status st = stage_for(d, unit, n, out, &waited, cancel, err);
    while (!st && (*out)->state != KV_STAGE_DONE)
        st = wait_for(d, &waited, cancel, err);
    if (st || (*out)->failed < 0)
        return st;
    (*out)->state = KV_STAGE_EMPTY; /* it is read again when it is wanted again */
    d->failed_reads++;
    return damaged(d, *out, err);
}

ingle_status kv_heads_take(struct kv_heads **out, uint32_t stream, uint32_t head,
                           struct kv_timeline *const *t, int64_t n, int64_t *n_taken,
                           const atomic_bool *cancel, struct err *err)
{
    struct kv_disk *d = t[0]->pool->disk;
    struct kv_heads *h = !d->heads[0].used ? &d->heads[0] : &d->heads[1];
    const bool first = h == &d->heads[0];
    const uint32_t unit = unit_of(d, stream, head);
    int32_t n_blocks = 0;
    int64_t k = 0;
    BUG_IF(h->used);
    d->takes++;
    while (k < n && want_all(d, t[k], &n_blocks))
        k++;
    BUG_IF(!k);
    const uint64_t began = clock_now();
    pthread_mutex_lock(&d->lock);
    struct kv_stage *s = NULL;
    const ingle_status st = stage_done(d, unit, n_blocks, &s, cancel, err);
    if (!st)
        *h = (struct kv_heads){.disk = d, .stage = s, .used = true};
    if (!st && first)
        read_ahead(d, s, next_of(d, unit), n_blocks);
    pthread_mutex_unlock(&d->lock);
    d->counts.waited_seconds += (double)(clock_now() - began) * 1e-9;
    if (st)
        return st;
    for (int64_t i = 0; i < k; i++)
        point(d, s, &d->unit[unit], t[i]);
    *n_taken = k;
    *out = h;
    return INGLE_OK;
}

/* ---- blocks that rows chose ---- */

static struct kv_kept *kept_of(const struct kv_disk *d, uint32_t unit)
{
    return d->kept + (int64_t)unit * d->n_kept;
}

static uint8_t *kept_memory(const struct kv_disk *d, uint32_t unit, int64_t i)
{
    return d->kept_at + d->unit[unit].kept_at + (size_t)i * d->unit[unit].step;
}

/* Which of a unit's kept blocks a page has; -1: none. */
static int64_t find_kept(const struct kv_disk *d, uint32_t unit, const struct kv_page *pg)
{
    const struct kv_kept *k = kept_of(d, unit);
    for (int64_t i = 0; i < d->n_kept; i++)
        if (k[i].slot == pg->slot && k[i].turn == d->turn[pg->slot])
            return i;
    return -1;
}

/* The place of what was not wanted for the longest time; -1: this take wants all, or others use
 * them. */
static int64_t oldest_kept(const struct kv_disk *d, uint32_t unit)
{
    const struct kv_kept *k = kept_of(d, unit);
    int64_t at = -1;
    for (int64_t i = 0; i < d->n_kept; i++)
        if (!k[i].used && k[i].wanted != d->takes && (at < 0 || k[i].wanted < k[at].wanted))
            at = i;
    return at;
}

/* Notes what a row wants that is not there; places: how many this take wants, at most half of all,
 * so that a step between the pieces of another one has the others.  False: there is no place for
 * all of it. */
static bool want_some(struct kv_disk *d, uint32_t unit, const struct kv_wanted *w, int32_t *n,
                      int64_t *places)
{
    const struct kv_table *b = &w->timeline->table[d->group];
    const int32_t before = *n;
    for (int64_t i = 0; i < w->n; i++) {
        struct kv_page *pg = b->page[w->page[i]];
        if (pg->at)
            continue;
        int64_t at = find_kept(d, unit, pg);
        const bool there = at >= 0;
        if (!there)
            at = *n < d->cap ? oldest_kept(d, unit) : -1;
        const bool more = at >= 0 && (!there || kept_of(d, unit)[at].wanted != d->takes);
        /* what was noted for this one is not read */
        if (at < 0 || (more && *places >= d->n_kept / 2)) {
            while (*n > before)
                kept_of(d, unit)[d->want[--*n].page->block].slot = -1;
            return false;
        }
        struct kv_kept *k = &kept_of(d, unit)[at];
        k->wanted = d->takes;
        *places += more;
        if (there)
            continue;
        k->slot = pg->slot;
        k->turn = d->turn[pg->slot];
        pg->block = (int32_t)at;
        d->want[(*n)++] =
            (struct kv_block){.page = pg, .slot = pg->slot, .turn = k->turn, .index = w->page[i]};
    }
    return true;
}

/* Has the wanted blocks read, and puts them into their places. */
static ingle_status read_some(struct kv_disk *d, uint32_t unit, int32_t n,
                              const atomic_bool *cancel, struct err *err)
{
    const uint64_t began = clock_now();
    struct kv_stage *s = NULL;
    pthread_mutex_lock(&d->lock);
    const ingle_status st = stage_done(d, unit, n, &s, cancel, err);
    pthread_mutex_unlock(&d->lock);
    d->counts.waited_seconds += (double)(clock_now() - began) * 1e-9;
    /* nobody asks for the stage meanwhile: steps are one thread's */
    for (int32_t i = 0; i < n; i++) {
        const int32_t at = d->want[i].page->block;
        if (st)
            kept_of(d, unit)[at].slot = -1;
        else
            memcpy(kept_memory(d, unit, at), s->at + (size_t)i * d->unit[unit].step,
                   d->unit[unit].n_bytes);
    }
    return st;
}

ingle_status kv_heads_take_some(struct kv_heads **out, uint32_t stream, uint32_t head,
                                const struct kv_wanted *w, int64_t n, int64_t *n_taken,
                                const atomic_bool *cancel, struct err *err)
{
    struct kv_disk *d = w[0].timeline->pool->disk;
    struct kv_heads *h = !d->heads[0].used ? &d->heads[0] : &d->heads[1];
    const uint32_t unit = unit_of(d, stream, head);
    const uint8_t mine = (uint8_t)(1 << (h - d->heads));
    int32_t n_blocks = 0;
    int64_t k = 0, places = 0;
    BUG_IF(h->used);
    d->takes++;
    while (k < n && want_some(d, unit, &w[k], &n_blocks, &places))
        k++;
    BUG_IF(!k);
    const ingle_status st = n_blocks ? read_some(d, unit, n_blocks, cancel, err) : INGLE_OK;
    if (st)
        return st;
    for (int64_t r = 0; r < k; r++) {
        const struct kv_table *b = &w[r].timeline->table[d->group];
        for (int64_t i = 0; i < w[r].n; i++) {
            const struct kv_page *pg = b->page[w[r].page[i]];
            const int64_t at = pg->at ? -1 : find_kept(d, unit, pg);
            b->head[w[r].page[i]] = pg->at ? pg->at + d->unit[unit].at : kept_memory(d, unit, at);
            if (at >= 0)
                kept_of(d, unit)[at].used |= mine;
        }
    }
    *h = (struct kv_heads){.disk = d, .used = true, .some = true, .unit = unit};
    *n_taken = k;
    *out = h;
    return INGLE_OK;
}

void kv_heads_give(struct kv_heads *h)
{
    struct kv_disk *d = h->disk;
    const uint8_t mine = (uint8_t)(1 << (h - d->heads));
    for (int64_t i = 0; h->some && i < d->n_kept; i++)
        kept_of(d, h->unit)[i].used &= (uint8_t)~mine;
    h->used = false;
}
