/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store - slots, who is in them, and what a step has to wait for.
 *
 * A slot is a ticket of fetch.h.  An expert that a step at work needs is pinned: its slot stays
 * what it is.  A slot whose expert was dropped while its read is under way has no expert; it is
 * free when the read ends.
 */
#define _GNU_SOURCE
#include "expert/tiered.h"

#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/output.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { LEAST_SLOTS = 3, LEAST_STAGE = 24 };
static const uint64_t usual_stall_ns = 30000000000;
#define SAVE_NS ((uint64_t)600000000000)

/* What reads may still be writing to when the store is closed. */
struct store_memory { uint8_t *at[STORE_CLASSES]; size_t n[STORE_CLASSES]; };

static void free_memory(void *arg)
{
    struct store_memory *m = arg;
    for (int k = 0; k < STORE_CLASSES; k++)
        if (m->at[k])
            mem_big_free(m->at[k], m->n[k]);
    mem_free(m);
}

/* ---- opening ---- */

static struct store_class *class_of(struct expert_store *s, uint64_t bytes)
{
    for (int i = 0; i < s->n_classes; i++)
        if (s->class[i].bytes == bytes)
            return &s->class[i];
    return NULL;
}

uint64_t expert_store_least(const struct model *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < model_n_experts(m); i++) {
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++)
            seen = model_experts_at(m, j)->bytes == model_experts_at(m, i)->bytes;
        n += seen ? 0 : LEAST_SLOTS * model_experts_at(m, i)->bytes;
    }
    return n;
}

static ingle_status add_layers(struct expert_store *s, struct err *err)
{
    for (size_t i = 0; i < s->n_layers; i++) {
        struct model_experts *home = model_experts_at(s->model, i);
        struct store_layer *l = &s->layer[i];
        struct store_class *c = class_of(s, home->bytes);
        if (!c) {
            if (s->n_classes == STORE_CLASSES)
                return err_set(err, INGLE_UNSUP,
                               "experts of more than %d sizes cannot be kept outside of memory",
                               STORE_CLASSES);
            c = &s->class[s->n_classes++];
            c->bytes = home->bytes;
        }
        *l = (struct store_layer){
            .store = s, .home = home, .class = c, .first = c->n_experts, .index = i};
        c->n_experts += home->n;
        l->seen_at = s->n_experts;
        s->n_experts += home->n;
    }
    return INGLE_OK;
}

int64_t expert_store_residents(const struct store_class *c)
{
    const int64_t n = c->n_slots - c->n_lost - c->n_to_give;
    return n >= c->n_experts ? c->n_experts : num_max(0, n - c->n_stage);
}

static ingle_status open_class(struct expert_store *s, struct store_class *c, uint64_t spare,
                               uint64_t all, struct err *err)
{
    const uint64_t share =
        (uint64_t)((double)spare * ((double)c->bytes * (double)c->n_experts / (double)all));
    c->n_slots = (int)num_min(c->n_experts, LEAST_SLOTS + (int64_t)(share / c->bytes));
    const int64_t stage = num_min(c->n_slots / 2, num_max(4 * s->o.n_used, LEAST_STAGE));
    c->n_stage = (int)num_max(2, stage);
    c->first_slot = s->n_slots;
    s->n_slots += c->n_slots;
    c->memory = mem_big_alloc((size_t)c->n_slots * c->bytes);
    s->memory->at[c - s->class] = c->memory;
    s->memory->n[c - s->class] = (size_t)c->n_slots * c->bytes;
    c->pins = mem_calloc((size_t)c->n_experts, sizeof *c->pins);
    c->slot_of = mem_calloc((size_t)c->n_experts, sizeof *c->slot_of);
    if (!c->memory || !c->pins || !c->slot_of)
        return err_set(err, INGLE_NOMEM, "no memory for %d experts of %llu bytes", c->n_slots,
                       (unsigned long long)c->bytes);
    for (int64_t i = 0; i < c->n_experts; i++)
        c->slot_of[i] = -1;
    return expert_policy_create(&c->policy, c->n_experts, expert_store_residents(c), err);
}

static ingle_status open_slots(struct expert_store *s, struct err *err)
{
    s->slot = mem_calloc((size_t)s->n_slots, sizeof *s->slot);
    s->seen = mem_calloc((size_t)s->n_experts, sizeof *s->seen);
    s->bad = mem_calloc((size_t)s->n_experts, sizeof *s->bad);
    s->uses = mem_calloc((size_t)s->n_experts, sizeof *s->uses);
    s->rate = mem_calloc((size_t)s->n_experts, sizeof *s->rate);
    if (!s->slot || !s->seen || !s->bad || !s->uses || !s->rate)
        return err_set(err, INGLE_NOMEM, "no memory for %d slots of experts", s->n_slots);
    for (int k = 0; k < s->n_classes; k++) {
        struct store_class *c = &s->class[k];
        c->free = -1;
        for (int i = c->n_slots; i-- > 0;) {
            const int t = c->first_slot + i;
            s->slot[t] = (struct store_slot){
                .at = c->memory + (size_t)i * c->bytes, .class = c, .expert = -1, .next = c->free};
            c->free = t;
        }
        if (s->o.lock && mlock(c->memory, (size_t)c->n_slots * c->bytes) != 0)
            report(s->o.sink, INGLE_REPORT_WARN, "lock", "experts",
                   "their slots are not locked: %s", strerror(errno));
    }
    return INGLE_OK;
}

static ingle_status make_expert(void *arg, uint64_t what, void *to, void *work, struct err *err)
{
    const struct expert_store *s = arg;
    return model_expert_read(s->model, (size_t)(what >> 32), (int64_t)(what & UINT32_MAX), to, work,
                             err);
}

static ingle_status open_fetch(struct expert_store *s, struct err *err)
{
    static const enum fetch_io io[] = {[EXPERT_IO_AUTO] = FETCH_AUTO,
                                       [EXPERT_IO_DIRECT] = FETCH_DIRECT,
                                       [EXPERT_IO_CACHED] = FETCH_CACHED};
    static const enum fetch_by by[] = {[EXPERT_BY_AUTO] = FETCH_BY_AUTO,
                                       [EXPERT_BY_THREADS] = FETCH_BY_THREADS,
                                       [EXPERT_BY_URING] = FETCH_BY_URING};
    struct model_extents x;
    struct fetch_options o = {.fd = -1,
                              .io = io[s->o.io],
                              .by = by[s->o.by],
                              .n_tickets = s->n_slots,
                              .hook = s->o.hook,
                              .path = io_path(model_file(s->model))};
    s->path = o.path;
    s->packed = model_extents(s->model, 0, &x, NULL) == INGLE_OK;
    if (s->packed) {
        o.fd = x.fd;
        o.path = s->path = x.path;
        o.test_at = x.at;
    } else {
        if (o.io == FETCH_DIRECT)
            return err_set(err, INGLE_UNSUP,
                           "%s: --experts-io direct: reads past the page cache want a file of "
                           "packed weights, and there is none: "
                           "--pack once writes one",
                           o.path);
        o.make = make_expert;
        o.make_arg = s;
        o.make_work = model_expert_work(s->model);
    }
    const ingle_status st = expert_fetch_open(&s->fetch, &o, err);
    if (st)
        return st;
    if (!s->packed)
        report(s->o.sink, INGLE_REPORT_NOTE, "experts-unpacked", o.path,
               "there is no file of packed weights: each expert is read from the model's file and "
               "packed, which takes more time and "
               "processor; --pack once writes one");
    else if (!expert_fetch_is_direct(s->fetch) && s->o.io == EXPERT_IO_AUTO)
        report(s->o.sink, INGLE_REPORT_NOTE, "experts-io", o.path,
               "the file system has no direct I/O: reads go through the page cache");
    const char *why = expert_fetch_no_ring(s->fetch);
    if (why && *why && (s->packed || s->o.by == EXPERT_BY_URING))
        report(s->o.sink, s->o.by == EXPERT_BY_URING ? INGLE_REPORT_WARN : INGLE_REPORT_NOTE,
               "experts-io", o.path, "threads read, and not io_uring: %s", why);
    return INGLE_OK;
}

static ingle_status scatter(struct expert_store *s, struct err *err)
{
    ingle_status st = INGLE_OK;
    for (size_t i = 0; !st && i < s->n_layers; i++) {
        struct model_experts *home = s->layer[i].home;
        for (int k = 0; !st && k < home->n_parts; k++)
            st = device_matrix_scatter(home->part[k], err);
        home->keeper = &s->layer[i];
    }
    return st;
}

/* The trace has its name when it is whole.  A device or a pipe is written as it is. */
static ingle_status open_trace(struct expert_store *s, const char *path, struct err *err)
{
    struct stat is;
    if (stat(path, &is) == 0 && !S_ISREG(is.st_mode)) {
        s->trace = fopen(path, "we");
        return s->trace ? INGLE_OK
                        : err_set(err, INGLE_IO, "%s: cannot write it: %s", path, strerror(errno));
    }
    ingle_status st =
        output_open(&s->traced, &(struct output){.path = path, .kind = OUTPUT_TRACE}, err);
    const int fd = st ? -1 : fcntl(s->traced.fd, F_DUPFD_CLOEXEC, 0);
    if (!st && !(s->trace = fd >= 0 ? fdopen(fd, "w") : NULL)) {
        st = err_set(err, INGLE_IO, "%s: cannot write it: %s", path, strerror(errno));
        file_close(fd);
        file_new_drop(&s->traced);
    }
    return st;
}

static void close_trace(struct expert_store *s)
{
    struct err err;
    if (!s->trace)
        return;
    const bool full = fflush(s->trace) != 0 || ferror(s->trace);
    (void)fclose(s->trace);
    s->trace = NULL;
    if (full)
        report(s->o.sink, INGLE_REPORT_WARN, "experts", s->o.trace, "the trace is not whole: %s",
               strerror(errno));
    if (s->traced.tmp && file_new_finish(&s->traced, &err))
        report(s->o.sink, INGLE_REPORT_WARN, "experts", s->o.trace,
               "the trace cannot be written: %s", err.msg);
}

ingle_status expert_store_open(struct expert_store **out, struct model *m,
                               const struct expert_store_options *o, struct err *err)
{
    const uint64_t least = expert_store_least(m), all = model_expert_bytes(m);
    if (o->budget_bytes < least)
        return err_set(err, INGLE_LIMIT,
                       "a budget of %llu bytes for experts is below the least, %llu bytes",
                       (unsigned long long)o->budget_bytes, (unsigned long long)least);
    struct expert_store *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for experts");
    pthread_mutex_init(&s->lock, NULL);
    s->o = *o;
    s->o.stall_ns = o->stall_ns ? o->stall_ns : usual_stall_ns;
    s->model = m;
    s->n_layers = model_n_experts(m);
    s->last_layer = s->n_layers;
    s->shake = o->shake;
    s->layer = mem_calloc(s->n_layers, sizeof *s->layer);
    s->memory = mem_zalloc(sizeof *s->memory);
    ingle_status st =
        s->layer && s->memory
            ? add_layers(s, err)
            : err_set(err, INGLE_NOMEM, "no memory for the experts of %zu layers", s->n_layers);
    for (int k = 0; !st && k < s->n_classes; k++)
        st = open_class(s, &s->class[k], o->budget_bytes - least, all, err);
    if (!st)
        st = open_slots(s, err);
    if (!st)
        st = open_fetch(s, err);
    if (!st)
        st = scatter(s, err);
    if (!st)
        st = expert_own_open(s, err);
    if (!st && o->trace)
        st = open_trace(s, o->trace, err);
    if (st) {
        s->o.profile = NULL;
        expert_store_close(s);
        return st;
    }
    expert_profile_load(s);
    *out = s;
    return INGLE_OK;
}

void expert_store_close(struct expert_store *s)
{
    if (!s)
        return;
    (void)expert_store_save(s);
    expert_fetch_close(s->fetch, s->memory ? free_memory : NULL, s->memory);
    for (size_t i = 0; s->layer && i < s->n_layers; i++)
        if (s->layer[i].home)
            s->layer[i].home->keeper = NULL;
    expert_own_close(s);
    for (int k = 0; k < s->n_classes; k++) {
        struct store_class *c = &s->class[k];
        expert_policy_free(c->policy);
        mem_free(c->pins);
        mem_free(c->slot_of);
    }
    close_trace(s);
    pthread_mutex_destroy(&s->lock);
    mem_free(s->bad);
    mem_free(s->uses);
    mem_free(s->rate);
    mem_free(s->seen);
    mem_free(s->slot);
    mem_free(s->layer);
    mem_free(s);
}

/* ---- slots ---- */

static void place(const struct store_layer *l, int64_t e, uint8_t *at)
{
    const struct model_experts *h = l->home;
    for (int k = 0; k < h->n_parts; k++)
        device_matrix_place_one(h->part[k], e, at ? at + h->part_at[k] : NULL);
}

/* Whose expert it is: class indices of layers rise with the layers. */
struct store_layer *expert_store_layer_of(struct expert_store *s, const struct store_class *c,
                                          int64_t i)
{
    struct store_layer *found = NULL;
    for (size_t k = 0; k < s->n_layers; k++)
        if (s->layer[k].class == c && s->layer[k].first <= i)
            found = &s->layer[k];
    return found;
}

/* So many residents as there are slots for them; those with the least keys leave. */
static void set_most(struct expert_store *s, struct store_class *c)
{
    const int64_t most = expert_store_residents(c);
    expert_policy_limit(c->policy, most);
    while (expert_policy_count(c->policy) > most) {
        const int64_t i = expert_policy_give(c->policy, c->pins);
        if (i < 0)
            break;
        expert_store_leave(s, c, i);
    }
}

void expert_store_lose(struct expert_store *s)
{
    for (int t = 0; t < s->n_slots; t++) {
        struct store_slot *x = &s->slot[t];
        /* whoever wants it reads it anew */
        if (x->state == SLOT_READING && x->expert >= 0 && !x->class->pins[x->expert]) {
            expert_policy_remove(x->class->policy, x->expert);
            expert_store_leave(s, x->class, x->expert);
        }
        if (x->state != SLOT_READING || x->expert >= 0 || x->lost)
            continue;
        x->lost = true;
        x->class->n_lost++;
    }
    for (int k = 0; k < s->n_classes; k++)
        set_most(s, &s->class[k]);
    s->stalled = false;
}

static void free_slot(struct expert_store *s, int t)
{
    struct store_slot *x = &s->slot[t];
    if (x->lost) { /* it has ended after all */
        x->lost = false;
        x->class->n_lost--;
        set_most(s, x->class);
    }
    x->state = SLOT_FREE;
    x->expert = -1;
    x->next = x->class->free;
    x->class->free = t;
}

/* An expert leaves its slot, if it has one.  A read that is under way keeps the slot until it
 * ends. */
void expert_store_leave(struct expert_store *s, struct store_class *c, int64_t i)
{
    const int t = c->slot_of[i];
    if (t < 0)
        return;
    struct store_slot *x = &s->slot[t];
    const struct store_layer *l = expert_store_layer_of(s, c, i);
    c->slot_of[i] = -1;
    c->n_staged -= x->staged;
    x->staged = false;
    place(l, i - l->first, NULL);
    x->expert = -1;
    if (x->state != SLOT_READING || expert_fetch_drop(s->fetch, t))
        free_slot(s, t);
}

void expert_store_stage(struct store_class *c, struct store_slot *x, bool staged)
{
    c->n_staged += staged - x->staged;
    x->staged = staged;
}

void *expert_store_hold(struct expert_store *s, struct store_class *c, int64_t i)
{
    struct store_slot *x = &s->slot[c->free];
    c->slot_of[i] = c->free;
    c->free = x->next;
    *x = (struct store_slot){.at = x->at,
                             .class = c,
                             .expert = i,
                             .state = SLOT_READING,
                             .next = -1,
                             .depth = STORE_NO_OWNER};
    return x->at;
}

void expert_store_arrive(struct expert_store *s, const struct store_class *c, int64_t i)
{
    const struct store_layer *l = expert_store_layer_of(s, c, i);
    struct store_slot *x = &s->slot[c->slot_of[i]];
    x->state = SLOT_READY;
    place(l, i - l->first, x->at);
}

static void submit(struct expert_store *s, struct store_layer *l, int64_t e, int t, bool urgent)
{
    const struct store_class *c = l->class;
    struct fetch_request r = {.ticket = t, .bytes = c->bytes, .to = s->slot[t].at, .urgent = urgent,
                              .what = (uint64_t)l->index << 32 | (uint64_t)e};
    struct model_extents f;
    if (s->packed && model_extents(s->model, l->index, &f, NULL) == INGLE_OK) {
        const uint32_t seen = s->seen[l->seen_at + e];
        r.at = f.at + (uint64_t)e * c->bytes;
        r.check = true;
        r.seen = s->o.verify == EXPERT_VERIFY_ALWAYS         ? 0
                 : s->o.verify == EXPERT_VERIFY_OFF && !seen ? FETCH_OPENED
                                                             : seen;
        r.sum = f.sum[e];
    }
    l->n.read_bytes += c->bytes;
    expert_fetch_submit(s->fetch, &r);
}

/* A read for expert e of a layer begins in a free slot; false: there is none. */
bool expert_store_read(struct expert_store *s, struct store_layer *l, int64_t e, bool urgent)
{
    struct store_class *c = l->class;
    const int t = c->free;
    if (t < 0)
        return false;
    (void)expert_store_hold(s, c, l->first + e);
    s->slot[t].early = !urgent;
    submit(s, l, e, t, urgent);
    return true;
}

/* A read that is under way, and perhaps has failed already, is now a demand. */
void expert_store_join(struct expert_store *s, int t)
{
    struct store_slot *x = &s->slot[t];
    if (x->state != SLOT_READING)
        return;
    x->joined = true;
    expert_fetch_hurry(s->fetch, t);
}

/* Whether the last read of an expert failed.  A packed file with a wrong checksum is not used by
 * the next start. */
static void mark(struct expert_store *s, const struct store_layer *l, int64_t e,
                 const struct fetch_done *d)
{
    uint8_t *bad = &s->bad[l->seen_at + e];
    if (*bad == (d->status != INGLE_OK))
        return;
    *bad = d->status != INGLE_OK;
    s->n_bad += *bad ? 1 : (uint64_t)-1;
    if (!*bad)
        return;
    report(s->o.sink, INGLE_REPORT_WARN, "experts", s->path,
           "layer %lld, expert %lld cannot be read: %s", (long long)l->home->layer, (long long)e,
           d->why);
    if (d->wrong)
        model_extents_spoil(s->model);
}

static void read_ended(struct expert_store *s, const struct fetch_done *d)
{
    struct store_slot *x = &s->slot[d->ticket];
    struct store_class *c = x->class;
    if (x->expert < 0) { /* it left meanwhile */
        free_slot(s, d->ticket);
        return;
    }
    struct store_layer *l = expert_store_layer_of(s, c, x->expert);
    const int64_t e = x->expert - l->first;
    s->n.failed_reads += d->status != INGLE_OK;
    if (d->status && x->joined) { /* its tries may all be older than the demand */
        x->joined = false;
        submit(s, l, e, d->ticket, true);
        return;
    }
    if (d->status) {
        x->state = SLOT_READY;
        l->bad_expert = e;
        snprintf(l->why, sizeof l->why, "%.159s", d->why);
        mark(s, l, e, d);
        expert_policy_remove(c->policy, x->expert);
        expert_store_leave(s, c, x->expert);
        return;
    }
    mark(s, l, e, d);
    s->seen[l->seen_at + e] = d->seen;
    expert_store_arrive(s, c, x->expert);
    if (x->staged && !c->pins[x->expert] && !x->early)
        expert_store_leave(s, c, x->expert); /* its owner has been dropped */
}

int expert_store_poll(struct expert_store *s, uint64_t until_ns)
{
    struct fetch_done done[16];
    const int n = expert_fetch_poll(s->fetch, done, 16, until_ns);
    for (int i = 0; i < n; i++)
        read_ended(s, &done[i]);
    return n;
}

/* ---- memory that others need ---- */

/* Free slots lose their memory, or get it back, until there are as many as there should be.  Those
 * that are in use now follow later. */
static void settle(struct expert_store *s, struct store_class *c)
{
    while (c->n_given < c->n_to_give && c->free >= 0) {
        struct store_slot *x = &s->slot[c->free];
        c->free = x->next;
        x->state = SLOT_GIVEN;
        x->next = -1;
        (void)madvise(x->at, (size_t)c->bytes, MADV_DONTNEED);
        c->n_given++;
    }
    for (int t = c->first_slot; c->n_given > c->n_to_give && t < c->first_slot + c->n_slots; t++) {
        if (s->slot[t].state != SLOT_GIVEN)
            continue;
        c->n_given--;
        free_slot(s, t);
    }
}

/* Some more slots are given, or fewer (by < 0), of each class.  Returns the bytes by which memory
 * changes. */
static uint64_t give_more(struct expert_store *s, int by)
{
    uint64_t bytes = 0;
    for (int k = 0; k < s->n_classes; k++) {
        struct store_class *c = &s->class[k];
        const int64_t tenth = num_max(1, c->n_slots / 10),
                      most = num_min(c->n_slots / 2, c->n_slots - c->n_stage);
        const int to_give = (int)num_max(0, num_min(most, c->n_to_give + by * tenth));
        bytes +=
            (uint64_t)(to_give > c->n_to_give ? to_give - c->n_to_give : c->n_to_give - to_give) *
            c->bytes;
        c->n_to_give = to_give;
        set_most(s, c);
        settle(s, c);
    }
    return bytes;
}

static void report_given(struct expert_store *s, const char *what, uint64_t bytes, const char *why)
{
    uint64_t given = 0;
    for (int k = 0; k < s->n_classes; k++)
        given += (uint64_t)s->class[k].n_to_give;
    report(s->o.sink, INGLE_REPORT_WARN, "experts", s->path,
           "%s: %.2f GB of places for experts are %s; %llu of %d are without memory", why,
           (double)bytes * 1e-9, what, (unsigned long long)given, s->n_slots);
}

void expert_store_tend(struct expert_store *s, uint64_t now)
{
    char why[96] = "";
    if (now - s->checked_ns < EXPERT_LOOK_NS)
        return;
    s->checked_ns = now;
    (void)expert_store_poll(s, 0);
    if (s->o.lock) {
        s->short_ns = 0;
    } else if (s->o.is_short ? s->o.is_short(s->o.short_arg, why, sizeof why)
                             : expert_memory_is_short(why, sizeof why)) {
        s->short_ns = now;
        const uint64_t bytes = give_more(s, 1);
        if (bytes)
            report_given(s, "given back", bytes, why);
    } else if (s->short_ns && now - s->short_ns >= EXPERT_QUIET_NS) {
        const uint64_t bytes = give_more(s, -1);
        if (bytes)
            report_given(s, "taken again", bytes, "memory was not short for a while");
        s->short_ns = bytes ? s->short_ns : 0;
    }
    uint64_t slots = 0, given = 0;
    if (now - s->saved_ns >= SAVE_NS) {
        s->saved_ns = now;
        (void)expert_store_save(s);
    }
    for (int k = 0; k < s->n_classes; k++) {
        struct store_class *c = &s->class[k];
        settle(s, c);
        slots += (uint64_t)c->n_given;
        given += (uint64_t)c->n_given * c->bytes;
    }
    pthread_mutex_lock(&s->lock);
    s->given_slots = slots;
    s->given_bytes = given;
    pthread_mutex_unlock(&s->lock);
}

/* ---- counts ---- */

void expert_store_show(struct expert_store *s, struct store_layer *l)
{
    uint64_t resident = 0;
    for (int k = 0; k < s->n_classes; k++)
        resident += (uint64_t)expert_policy_count(s->class[k].policy);
    pthread_mutex_lock(&s->lock);
    const struct expert_layer_counts *n = &l->n;
    struct expert_store_counts *all = &s->shown;
    all->resident = resident;
    all->choices += n->choices - l->shown.choices;
    all->hits += n->hits - l->shown.hits;
    all->early_hits += n->early_hits - l->shown.early_hits;
    all->stall_ns += n->stall_ns - l->shown.stall_ns;
    all->bad = s->n_bad;
    all->early_reads = s->n.early_reads;
    all->early_in_time = s->n.early_in_time;
    all->reads_early = s->o.early < 0 ? s->early.pays : s->o.early > 0;
    all->early_tries = s->early.n_pairs;
    all->early_change = s->early.mean;
    all->early_right = s->early.right;
    all->failed_reads = s->n.failed_reads;
    all->evictions = s->n.evictions;
    l->shown = *n;
    pthread_mutex_unlock(&s->lock);
}

void expert_store_count(struct expert_store *s, struct expert_store_counts *out)
{
    struct fetch_counts f;
    expert_fetch_count(s->fetch, &f);
    pthread_mutex_lock(&s->lock);
    *out = s->shown;
    memcpy(out->trouble, s->trouble, sizeof out->trouble);
    out->slots = (uint64_t)s->n_slots - s->given_slots;
    out->slot_bytes = 0 - s->given_bytes;
    pthread_mutex_unlock(&s->lock);
    for (int k = 0; k < s->n_classes; k++) {
        const struct store_class *c = &s->class[k];
        out->slot_bytes += (uint64_t)c->n_slots * c->bytes;
        out->expert_bytes += (uint64_t)c->n_experts * c->bytes;
    }
    out->experts = (uint64_t)s->n_experts;
    out->misses = out->choices - out->hits;
    out->reads = f.reads;
    out->read_bytes = f.bytes;
    out->busy_ns = f.busy_ns;
    out->stuck = f.stuck;
    out->direct = expert_fetch_is_direct(s->fetch);
    out->packed = s->packed;
    out->by_uring = !expert_fetch_no_ring(s->fetch);
}

void expert_store_count_layer(struct expert_store *s, size_t i, struct expert_layer_counts *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->layer[i].shown;
    pthread_mutex_unlock(&s->lock);
    out->layer = s->layer[i].home->layer;
}
