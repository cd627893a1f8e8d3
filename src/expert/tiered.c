/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiered - the tier over a store: what is there is computed while the rest is read.
 *
 * begin() decides who is resident after this step, and starts reads for all who have a slot.
 * end() computes in as many operations as arrivals make; those without a slot get that of another
 * who is done.
 */
#include "expert/tiered.h"

#include "base/clock.h"
#include "base/num.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* of an expert in an evaluation; PENDING: it has no slot yet */
enum state { NONE, PENDING, READING, READY };
enum { MANY_ROWS = 64, MOST_AGE = 8 * POLICY_HALF_LIFE };
static const uint64_t WAIT_NS = 100000000; /* between looks at whether a step is wanted */

static struct store_layer *layer_at(const struct expert_eval *v)
{
    return v->layer->home->keeper;
}

static bool has_rows(const struct expert_eval *v, int64_t e)
{
    return v->choice.first[e + 1] > v->choice.first[e] && !(v->skip && v->skip[e]);
}

/* A step begins where layers do not rise.  A prompt's rows are as many steps. */
static void count_step(struct expert_store *s, const struct store_layer *l,
                       const struct expert_eval *v)
{
    if (l->index <= s->last_layer) {
        s->t += (double)num_max(1, device_step_prompt(v->d));
        if (s->depth == 1)
            expert_own_move(s);
    }
    s->last_layer = l->index;
}

/* Uses by all rows of an expert: a prompt's last row is now, those before it are earlier. */
static void use(struct expert_store *s, const struct store_layer *l, const struct expert_eval *v,
                int64_t e)
{
    const int64_t n_prompt = num_min(v->x.n, device_step_prompt(v->d)), n = v->x.n;
    for (int32_t i = v->choice.first[e]; i < v->choice.first[e + 1]; i++) {
        const int64_t row = v->choice.row[i], age = row < n - n_prompt ? 0 : n - 1 - row;
        if (age >= MOST_AGE)
            continue;
        expert_policy_use(l->class->policy, l->first + e, s->t - (double)age);
        s->uses[l->seen_at + e] += 1;
    }
}

/* ---- slots for this evaluation ---- */

/* Slots for those who are not resident.  A step between the pieces of another one has some left. */
static int stage_limit(const struct store_class *c, int depth)
{
    const int rest = depth > 1 ? 0 : (int)num_max(1, c->n_stage / 4);
    return c->n_stage - rest;
}

/* The evaluation counts on what is in the slot, or will be. */
static void count_on(const struct expert_store *s, struct store_slot *x)
{
    x->depth = x->depth > s->depth ? (uint8_t)s->depth : x->depth;
}

/* Whoever was read early and is not needed now leaves; of those that an evaluation waits for, only
 * what it does not know of yet. */
static bool make_room(struct expert_store *s, struct store_class *c)
{
    for (int t = c->first_slot; t < c->first_slot + c->n_slots; t++) {
        const struct store_slot *x = &s->slot[t];
        if (x->staged && x->expert >= 0 && (!c->pins[x->expert] || x->depth == STORE_NO_OWNER)) {
            expert_store_leave(s, c, x->expert);
            if (c->free >= 0)
                return true;
        }
    }
    return false;
}

static bool start_read(struct expert_store *s, struct store_layer *l, int64_t e)
{
    struct store_class *c = l->class;
    if (c->slot_of[l->first + e] >= 0) { /* for another evaluation */
        expert_store_join(s, c->slot_of[l->first + e]);
        count_on(s, &s->slot[c->slot_of[l->first + e]]);
        return true;
    }
    const bool staged = !expert_policy_is_in(c->policy, l->first + e);
    if ((c->free < 0 || (staged && c->n_staged >= stage_limit(c, s->depth))) && !make_room(s, c))
        return false;
    if (staged && c->n_staged >= stage_limit(c, s->depth))
        return false;
    if (!expert_store_read(s, l, e, true))
        return false;
    expert_store_stage(c, &s->slot[c->slot_of[l->first + e]], staged);
    count_on(s, &s->slot[c->slot_of[l->first + e]]);
    return true;
}

/* Whether it will be resident is known before it is read: its bytes decide nothing. */
static void admit(struct expert_store *s, struct store_layer *l, int64_t e)
{
    struct store_class *c = l->class;
    const int64_t i = l->first + e;
    int64_t victim;
    if (!expert_policy_admit(c->policy, i, c->pins, &victim))
        return;
    if (victim >= 0) {
        s->n.evictions++;
        expert_store_leave(s, c, victim);
    }
    if (c->slot_of[i] >= 0)
        expert_store_stage(c, &s->slot[c->slot_of[i]], false);
}

static uint64_t shake_next(struct expert_store *s)
{
    s->shake ^= s->shake << 13;
    s->shake ^= s->shake >> 7;
    return s->shake ^= s->shake << 17;
}

/* For tests: residents leave, and useless ones are read. */
static void shake(struct expert_store *s, struct store_layer *l)
{
    struct store_class *c = l->class;
    if (shake_next(s) % 3 == 0) {
        const int64_t evicted = expert_policy_give(c->policy, c->pins);
        if (evicted >= 0)
            expert_store_leave(s, c, evicted);
    }
    struct store_layer *to = &s->layer[shake_next(s) % s->n_layers];
    const int32_t e = (int32_t)(shake_next(s) % (uint64_t)to->home->n);
    expert_store_early(s, to->home, &e, 1);
}

static void start_reads(struct expert_eval *v, struct store_layer *l)
{
    for (int64_t e = 0; e < v->layer->n; e++)
        if (v->state[e] == PENDING && start_read(l->store, l, e))
            v->state[e] = READING;
}

/* How good the last guess for this layer was. */
static void judge(struct expert_store *s, struct store_layer *l, const struct expert_eval *v)
{
    for (int k = 0; k < l->n_guess; k++)
        expert_early_guess(&s->early, has_rows(v, l->guess[k]));
    l->n_guess = 0;
}

/* A step is measured from its first layer to its last one; one that another step interrupts is
 * not. */
static void step_begins(struct expert_store *s, const struct store_layer *l,
                        const struct expert_eval *v)
{
    if (s->depth > 1 || (l->index > 0 && v->x.n != s->step_rows)) {
        s->step_ns = 0;
    } else if (l->index == 0) {
        s->step_ns = device_step_prompt(v->d) > 1 ? 0 : clock_now();
        s->step_rows = v->x.n;
    }
}

static void step_ends(struct expert_store *s, const struct store_layer *l)
{
    const struct expert_early *e = &s->early;
    if (!s->step_ns || l->index + 1 < s->n_layers || s->o.early >= 0)
        return;
    expert_early_step(&s->early, s->step_rows, clock_now() - s->step_ns);
    s->step_ns = 0;
    if (!expert_early_turned(&s->early))
        return;
    char why[160];
    snprintf(why, sizeof why, "%.0f %% of guesses are right", 100 * e->right);
    if (e->n_pairs)
        snprintf(why, sizeof why,
                 "steps with early reads take %.1f %% %s than without (+-%.1f, %lld comparisons; "
                 "%.0f %% of guesses are right)",
                 100 * fabs(e->mean), e->mean < 0 ? "less" : "more", 100 * e->noise,
                 (long long)e->n_pairs, 100 * e->right);
    report(s->o.sink, INGLE_REPORT_NOTE, "experts-early", s->path, "%s: %s",
           e->pays ? "experts are read before they are chosen"
                   : "experts are read when they are chosen, not before",
           why);
}

/* Early reads of this layer that nobody chose make room. */
static void drop_early(struct expert_store *s, const struct store_layer *l)
{
    struct store_class *c = l->class;
    for (int t = c->first_slot; c->n_staged > 0 && t < c->first_slot + c->n_slots; t++) {
        const struct store_slot *x = &s->slot[t];
        if (x->staged && x->expert >= l->first && x->expert < l->first + l->home->n &&
            !c->pins[x->expert])
            expert_store_leave(s, c, x->expert);
    }
}

static void mean(double *m, double now)
{
    *m = *m > 0 ? *m + (now - *m) / 50 : now;
}

/* What the disk has time for until the next layer has chosen: after all demands of a layer. */
static void measure(struct expert_store *s, const struct expert_eval *v, int64_t demands)
{
    enum { LONG = 1000000000 }; /* an idle server is no slow layer */
    const uint64_t now = clock_now(), ns = now - s->layer_ns;
    struct fetch_counts f;
    s->layer_ns = now;
    if (v->x.n > EXPERT_GUESS_ROWS || ns > LONG)
        return;
    expert_fetch_count(s->fetch, &f);
    mean(&s->mean_ns, (double)ns);
    mean(&s->mean_demands, (double)demands);
    mean(&s->mean_bytes, (double)(f.bytes - s->counted_bytes));
    mean(&s->mean_busy, (double)(f.busy_ns - s->counted_ns));
    s->counted_bytes = f.bytes;
    s->counted_ns = f.busy_ns;
}

static int64_t room_of(const struct expert_store *s, const struct store_class *c)
{
    /* of sums: a burst does not count as more than it brought */
    const double rate = s->mean_busy > 0 ? s->mean_bytes / s->mean_busy : 0;
    const double room = s->mean_ns * rate / (double)c->bytes - s->mean_demands;
    const int64_t n = room < 0.5 ? 0 : room > EXPERT_MAX ? EXPERT_MAX : (int64_t)(room + 0.5);
    return s->shake ? EXPERT_MAX : s->o.early < 0 ? n : num_min(s->o.early, n);
}

/* A prompt uses most experts of a layer: those of the next are read in the order of the file,
 * before it chooses. */
static void read_ahead(struct expert_store *s, const struct store_layer *l,
                       const struct expert_eval *v, int64_t chosen)
{
    if (v->x.n <= MANY_ROWS || !s->o.early || chosen * 10 < 7 * v->layer->n ||
        l->index + 1 >= s->n_layers)
        return;
    const struct model_experts *next = s->layer[l->index + 1].home;
    for (int32_t e = 0; e < next->n; e++)
        expert_store_read_early(s, next, &e, 1, 1);
}

static void tiered_begin(struct expert_eval *v)
{
    struct store_layer *l = layer_at(v);
    struct expert_store *s = l->store;
    struct store_class *c = l->class;
    const int64_t n = v->layer->n;
    v->state = device_bytes(v->d, 2 * (size_t)n);
    if (!device_runs(v->d)) {
        v->state = NULL;
        return;
    }
    memset(v->state, NONE, (size_t)n);
    expert_eval_read(v);
    s->depth++;
    (void)expert_store_poll(s, 0);
    if (s->shake)
        shake(s, l);
    count_step(s, l, v);
    step_begins(s, l, v);
    for (int64_t e = 0; e < n; e++)
        if (has_rows(v, e)) {
            use(s, l, v, e);
            c->pins[l->first + e]++;
            if (s->trace)
                (void)fprintf(s->trace, "%lld,%lld,%lld\n", (long long)s->t,
                              (long long)l->home->layer, (long long)e);
        }
    judge(s, l, v);
    drop_early(s, l);
    int64_t chosen = 0, demands = 0;
    for (int64_t e = 0; e < n; e++) {
        const int64_t i = l->first + e;
        if (!has_rows(v, e))
            continue;
        const bool near = expert_own_has(c, i), in = near || expert_policy_is_in(c->policy, i),
                   there = c->slot_of[i] >= 0;
        chosen++;
        l->n.choices++;
        demands += !near && !there;
        l->n.hits += in;
        if (!in && there && s->slot[c->slot_of[i]].early) {
            l->n.early_hits++;
            s->n.early_in_time += s->slot[c->slot_of[i]].state == SLOT_READY;
        }
        if (!in)
            admit(s, l, e);
        if (there) {
            expert_store_join(s, c->slot_of[i]);
            count_on(s, &s->slot[c->slot_of[i]]);
        }
        v->state[e] = near                                         ? READY
                      : !there                                     ? PENDING
                      : s->slot[c->slot_of[i]].state == SLOT_READY ? READY
                                                                   : READING;
    }
    start_reads(v, l);
    measure(s, v, demands);
    read_ahead(s, l, v, chosen);
}

/* ---- computing ---- */

/* An expert is not needed any more. */
static void unpin(struct expert_store *s, struct store_layer *l, int64_t e)
{
    struct store_class *c = l->class;
    const int64_t i = l->first + e;
    const int t = c->slot_of[i];
    /* the step around this one waits for it, too: it may have more slots now than are its own */
    if (--c->pins[i] > 0) {
        if (t >= 0 && s->slot[t].staged && s->slot[t].depth == s->depth &&
            c->n_staged > stage_limit(c, s->depth - 1))
            expert_store_leave(s, c, i);
        return;
    }
    if (!expert_policy_is_in(c->policy, i))
        expert_store_leave(s, c, i);
    else if (c->slot_of[i] < 0) /* a step that failed before it was read */
        expert_policy_remove(c->policy, i);
}

static void compute(struct expert_eval *v, const uint8_t *only, struct rows y)
{
    const struct expert_layer *l = v->layer;
    const struct device_mlp m = {.gate = l->gate_up ? l->gate_up : l->gate,
                                 .up = l->gate_up ? NULL : l->up,
                                 .down = l->down,
                                 .act = v->act,
                                 .limit = v->limit,
                                 .first = v->choice.first,
                                 .row = v->choice.row,
                                 .only = only};
    device_mlp(v->d, &m, v->x, y);
}

struct tally {
    int64_t ready, reading, pending;
};

/* Sees who has come.  False: one cannot come. */
static bool evaluate(struct expert_eval *v, struct store_layer *l, struct tally *n)
{
    const struct expert_store *s = l->store;
    *n = (struct tally){0};
    for (int64_t e = 0; e < v->layer->n; e++) {
        const int t = l->class->slot_of[l->first + e];
        if (v->state[e] == READING && t < 0)
            return false;
        if (v->state[e] == READING && s->slot[t].state == SLOT_READY)
            v->state[e] = READY;
        n->ready += v->state[e] == READY;
        n->reading += v->state[e] == READING;
        n->pending += v->state[e] == PENDING;
    }
    return true;
}

static void compute_ready(struct expert_eval *v, struct store_layer *l, struct rows y)
{
    const int64_t n = v->layer->n;
    uint8_t *only = v->state + n;
    for (int64_t e = 0; e < n; e++)
        only[e] = v->state[e] == READY;
    device_wrote(v->d, only, (size_t)n);
    compute(v, only, y);
    for (int64_t e = 0; e < n; e++)
        if (only[e]) {
            v->state[e] = NONE;
            unpin(l->store, l, e);
        }
}

static void fail_read(struct expert_eval *v, const struct store_layer *l, const char *why,
                      int64_t e)
{
    struct err err;
    struct expert_store *s = l->store;
    (void)err_set(&err, INGLE_IO, "%s: layer %lld, expert %lld: %s", s->path,
                  (long long)l->home->layer, (long long)e, why);
    pthread_mutex_lock(&s->lock);
    snprintf(s->trouble, sizeof s->trouble, "%.319s", err.msg);
    pthread_mutex_unlock(&s->lock);
    device_fail(v->d, &err);
}

/* Waits for at least one read, or until nobody wants the step.  False: the step has failed. */
static bool wait_for(struct expert_eval *v, struct store_layer *l)
{
    struct expert_store *s = l->store;
    const uint64_t start = clock_now();
    uint64_t waited = 0; /* by pieces: while the process is stopped, no read can end */
    int n = 0;
    while (!n && waited < s->o.stall_ns && device_runs(v->d)) {
        const uint64_t piece = s->o.stall_ns - waited < WAIT_NS ? s->o.stall_ns - waited : WAIT_NS;
        n = expert_store_poll(s, clock_now() + piece);
        waited += piece;
    }
    l->n.stall_ns += clock_now() - start;
    if (n > 0 || !device_runs(v->d))
        return true;
    int64_t e = 0;
    while (v->state[e] != READING && v->state[e] != PENDING)
        e++;
    char why[96];
    snprintf(why, sizeof why, "no read has ended for %.1f s", (double)waited * 1e-9);
    const int evicted = expert_fetch_reset(s->fetch, s->o.stall_ns / 2);
    report(s->o.sink, INGLE_REPORT_WARN, "experts", s->path,
           "%s; %d reads do not come back, others take their place", why, evicted);
    s->stalled = true;
    fail_read(v, l, why, e);
    return false;
}

/* Until all are computed, or the step has failed. */
static void compute_all(struct expert_eval *v, struct store_layer *l, struct rows y)
{
    /* arrivals that are waited for together: many small operations cost more than they hide */
    int64_t at_once = 0;
    for (struct tally n;;) {
        start_reads(v, l);
        if (!evaluate(v, l, &n)) {
            fail_read(v, l, l->why, l->bad_expert);
            return;
        }
        if (!n.ready && !n.reading && !n.pending)
            return;
        if (!at_once && !n.ready)
            at_once = v->x.n > MANY_ROWS ? num_div_up(n.reading, 3) : 1;
        if (n.ready && (!at_once || n.ready >= num_min(at_once, n.ready + n.reading)))
            compute_ready(v, l, y);
        else if (!wait_for(v, l))
            return;
        if (!device_runs(v->d))
            return;
    }
}

static void tiered_end(struct expert_eval *v, struct rows y)
{
    struct store_layer *l = layer_at(v);
    struct expert_store *s = l->store;
    if (!v->state) { /* a dry run, or a step that ended before */
        compute(v, NULL, y);
        return;
    }
    if (device_runs(v->d))
        compute_all(v, l, y);
    for (int64_t e = 0; e < v->layer->n; e++)
        if (v->state[e] != NONE)
            unpin(s, l, e);
    step_ends(s, l);
    s->depth--;
    if (s->stalled)
        expert_store_lose(s);
    expert_store_show(s, l);
}

const struct expert_tier expert_tiered = {
    .name = "tiered", .begin = tiered_begin, .end = tiered_end};

/* ---- early reads ---- */

void expert_store_read_early(struct expert_store *s, const struct model_experts *home,
                             const int32_t *ids, int64_t n, int64_t most)
{
    struct store_layer *l = home->keeper;
    struct store_class *c = l->class;
    for (int64_t k = 0; k < n && most > 0; k++) {
        const int64_t i = l->first + ids[k];
        if (c->slot_of[i] >= 0 || expert_own_has(c, i))
            continue;
        if (c->n_staged >= c->n_stage / 2 || expert_store_residents(c) == c->n_experts ||
            !expert_store_read(s, l, ids[k], false))
            return;
        expert_store_stage(c, &s->slot[c->slot_of[i]], true);
        s->n.early_reads++;
        most--;
    }
}

void expert_store_early(struct expert_store *s, const struct model_experts *home,
                        const int32_t *ids, int64_t n)
{
    struct store_layer *l = home->keeper;
    struct store_class *c = l->class;
    l->n_guess = 0;
    for (int64_t k = 0; k < n && l->n_guess < STORE_GUESSES; k++)
        if (c->slot_of[l->first + ids[k]] < 0 && !expert_own_has(c, l->first + ids[k]))
            l->guess[l->n_guess++] = ids[k];
    if (s->o.early > 0 || s->early.reads || s->shake)
        expert_store_read_early(s, home, ids, n, room_of(s, c));
}

bool expert_store_wants_guess(const struct expert_store *s)
{
    enum { SAMPLE = 16 }; /* steps: what guesses are worth is looked at before anything is read */
    if (s->o.early >= 0 || s->shake)
        return s->o.early != 0;
    return s->early.reads || (int64_t)s->t % SAMPLE == 0;
}
