/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_select - shadow keys into pages, the choice of pages for rows of answers, and attention to
 * what was chosen (kern/select.h).
 *
 * The choice: masses of pages, in tasks of some pages of a row and key/value head; then a task a
 * row and head orders them and sums the rest.  Attention: a task is a split of a row and head, over
 * the chosen pages or, for a row that looks at all of them, over all and then over the chosen ones,
 * which measures what the choice would have missed; a last pass merges.
 */
#include "base/bug.h"
#include "base/num.h"
#include "device/cpu.h"
#include "device/ops.h"
#include <math.h>
#include <string.h>

enum {
    LEAST_PAGES = 16,      /* of a task of masses: less would turn and round queries too often */
    STATE_FLOATS = 1 << 22 /* partial results of some rows, at most, if one row's are no more */
};

const char *device_select_refuses(const struct device *d, const struct device_kv *kv)
{
    if (d->numerics == DEVICE_REFERENCE)
        return "--numerics reference computes with all of them";
    return kern_select_refuses(kv->k_codec, kv->v_codec, kv->k_width, kv->v_width);
}

/* ---- appending ---- */

struct append {
    const struct device *d;
    const struct device_shadow_append_args *a;
};

static void append_chunk(void *arg, int64_t chunk, int worker)
{
    (void)worker;
    const struct device *d = ((const struct append *)arg)->d;
    const struct device_shadow_append_args *a = ((const struct append *)arg)->a;
    const struct device_kv *kv = a->kv;
    const struct device_shadow *sh = a->shadow;
    const int64_t i = chunk / kv->n_heads, h = chunk % kv->n_heads;
    const struct device_span *s = &a->span[i], *own = &a->own[i];
    for (int64_t at = 0, n; at < s->n; at += n) {
        const int64_t pos = s->pos0 + at, slot = pos % KERN_PAGE, page = pos / KERN_PAGE;
        n = num_min(s->n - at, KERN_PAGE - slot);
        BUG_IF(!s->page[page]);
        uint8_t *block = s->page[page] + sh->at + (size_t)h * sh->head_bytes;
        const float *k = a->k.at + (s->row0 + at) * a->k.stride + h * kv->k_width;
        kern_touch_kv_write(KERN_KV_N4R, true, kv->k_width, block, slot, k, n, a->k.stride);
        d->kern.attend.coded.kv_write(KERN_KV_N4R, true, kv->k_width, block, slot, k, n,
                                      a->k.stride);
        if (slot + n < KERN_PAGE)
            continue;
        BUG_IF(!own->page[page]);
        kern_select_mean(kv->v_codec, kv->v_width,
                       own->page[page] + kv->at + (size_t)h * kv->head_bytes + kv->v_at,
                       (float *)(void *)(block + sh->mean_at));
    }
}

void device_cpu_shadow_append(struct device *d, const void *args, void *scratch)
{
    (void)scratch;
    struct append j = {d, args};
    device_cpu_for(d, j.a->n_spans * j.a->kv->n_heads, 16 * j.a->k.n * j.a->k.width, append_chunk,
                   &j);
}

/* ---- the choice ---- */

struct choice {
    const struct device *d;
    const struct device_select_pages_args *a;
    int64_t group, n_pages; /* query heads a key/value head; of the row that sees most */
    int64_t each;           /* pages of a task */
    float *mass;            /* [row][key/value head][group][2 n_pages] */
    uint64_t *key;          /* [row][key/value head][keys] */
    uint8_t *worker;
    size_t worker_bytes;
};

static int64_t pages_of(int64_t pos) { return pos / KERN_PAGE + 1; }

static int64_t last_pos(const struct device_page_select *p)
{
    int64_t last = p->row ? 0 : p->last;
    for (int64_t i = 0; p->row && i < p->n_rows; i++)
        last = num_max(last, p->row[i].pos);
    return last;
}

static struct choice plan(const struct device *d, const struct device_select_pages_args *a)
{
    const struct device_page_select *p = a->select;
    struct choice c = {
        .d = d, .a = a, .group = a->n_q_heads / p->n_heads, .n_pages = pages_of(last_pos(p))};
    const int64_t tasks = num_div_up(4 * pool_size(d->pool), p->n_rows * p->n_heads);
    c.each = num_max(LEAST_PAGES, num_div_up(c.n_pages, tasks));
    c.worker_bytes = (kern_select_scratch(p->k_width, c.group) + 63) & ~(size_t)63;
    return c;
}

size_t device_cpu_select_pages_scratch(const struct device *d,
                                       const struct device_select_pages_args *a)
{
    const struct choice c = plan(d, a);
    const struct device_page_select *p = a->select;
    const size_t mass = (size_t)(p->n_rows * a->n_q_heads * c.n_pages) * 2 * sizeof(float);
    const size_t key =
        (size_t)(p->n_rows * p->n_heads * kern_select_keys(c.n_pages)) * sizeof(uint64_t);
    return mass + key + 3 * 64 + c.worker_bytes * (size_t)pool_size(d->pool);
}

static struct kern_select_task task_of(const struct choice *c, int64_t row, int64_t h)
{
    const struct device_page_select *p = c->a->select;
    const struct device_select_row *r = &p->row[row];
    return (struct kern_select_task){
        .shadow = (const uint8_t *const *)r->shadow,
        .at = p->shadow.at + (size_t)h * p->shadow.head_bytes,
        .mean_at = p->shadow.at + (size_t)h * p->shadow.head_bytes + p->shadow.mean_at,
        .k_width = p->k_width,
        .v_width = p->v_width,
        .q = c->a->q.at + r->row * c->a->q.stride + h * c->group * p->k_width,
        .n_heads = c->group,
        .pos = r->pos,
        .scale = c->a->scale};
}

static float *mass_of(const struct choice *c, int64_t row, int64_t h)
{
    return c->mass + (row * c->a->select->n_heads + h) * c->group * 2 * c->n_pages;
}

static void mass_chunk(void *arg, int64_t chunk, int worker)
{
    const struct choice *c = arg;
    const int64_t n_chunks = num_div_up(c->n_pages, c->each), pair = chunk / n_chunks,
                  n_heads = c->a->select->n_heads;
    const struct kern_select_task t = task_of(c, pair / n_heads, pair % n_heads);
    const int64_t n = pages_of(t.pos), first = chunk % n_chunks * c->each,
                  end = num_min(n, first + c->each);
    float *mass = mass_of(c, pair / n_heads, pair % n_heads);
    uint8_t *scratch = c->worker + (size_t)worker * c->worker_bytes;
    if (first >= end)
        return;
    kern_touch_mass(&t, first, end, n, mass, scratch);
    c->d->kern.select.table.mass(&t, first, end, n, mass, scratch);
}

static void choose_chunk(void *arg, int64_t pair, int worker)
{
    (void)worker;
    const struct choice *c = arg;
    const struct device_page_select *p = c->a->select;
    const int64_t row = pair / p->n_heads, h = pair % p->n_heads;
    const struct kern_select_task t = task_of(c, row, h);
    const uint8_t *whole = p->row[row].whole;
    const int64_t n_pages = pages_of(t.pos), n = kern_select_count(p->rule, t.pos, whole);
    int32_t *chosen = p->chosen + pair * p->most;
    const float *mass = mass_of(c, row, h);
    kern_select_choose(mass, c->group, n_pages, whole, n, chosen,
                       c->key + pair * kern_select_keys(c->n_pages));
    float *rest = p->rest + pair * c->group * kern_attend_state(p->v_width);
    if (kern_select_checks(t.pos))
        return;
    kern_touch_rest(&t, mass, n_pages, chosen, n, rest);
    c->d->kern.select.table.rest(&t, mass, n_pages, chosen, n, rest);
}

static void *aligned(void *at) { return (void *)(((uintptr_t)at + 63) & ~(uintptr_t)63); }

void device_cpu_select_pages(struct device *d, const void *args, void *scratch)
{
    struct choice c = plan(d, args);
    const struct device_page_select *p = c.a->select;
    const int64_t pairs = p->n_rows * p->n_heads, work = pairs * c.n_pages * KERN_PAGE * p->k_width;
    c.mass = scratch;
    c.key = aligned(c.mass + p->n_rows * c.a->n_q_heads * c.n_pages * 2);
    c.worker = aligned(c.key + pairs * kern_select_keys(c.n_pages));
    device_cpu_for(d, pairs * num_div_up(c.n_pages, c.each), work, mass_chunk, &c);
    device_cpu_for(d, pairs, work, choose_chunk, &c);
}

struct device_cost device_cpu_select_pages_cost(const struct device_select_pages_args *a)
{
    const struct device_page_select *p = a->select;
    double seen = 0;
    for (int64_t i = 0; p->row && i < p->n_rows; i++)
        seen += (double)(p->row[i].pos + 1);
    return (struct device_cost){seen * (double)(p->n_heads * (int64_t)p->shadow.head_bytes) /
                                    KERN_PAGE,
                                2.0 * seen * (double)(a->n_q_heads * p->k_width)};
}

/* ---- attending ---- */

/* Of a row: splits of what gives its output, and of what it is compared with; where their states
 * begin. */
struct part {
    const struct device_select_row *row;
    int64_t index; /* of the row among those that choose */
    int64_t n_chosen, n_out, n_check;
    bool all;      /* it looks at all pages */
    float *state;  /* [key/value head][n_out + 1 + n_check][group][state] */
    const uint8_t **page; /* [key/value head][most] */
};

enum { PARTS = DEVICE_SELECT_ROWS };

struct attend {
    struct device *d;
    const struct device_attend_selected_args *a;
    const struct kern_attend_table *kern;
    int64_t group, floats; /* floats: of a split of a key/value head */
    struct part part[PARTS];
    int64_t n_parts;
    float *share;          /* [part][query head of a]: what was missed */
    uint8_t *worker;
    size_t worker_bytes;
};

static int64_t splits_of(int64_t n_pages) { return num_div_up(n_pages * KERN_PAGE, KERN_SPLIT); }

static struct part part_of(const struct device_page_select *p, int64_t index)
{
    struct part t = {.row = &p->row[index], .index = index};
    const int64_t pos = t.row->pos;
    t.all = kern_select_checks(pos);
    t.n_chosen = kern_select_count(p->rule, pos, t.row->whole);
    t.n_out = splits_of(t.all ? pages_of(pos) : t.n_chosen);
    t.n_check = t.all ? splits_of(t.n_chosen) : 0;
    return t;
}

static int64_t head_states(const struct part *t) { return t->n_out + 1 + t->n_check; }

/* Floats of a row's states, of a row at the end of the context if there is none. */
static int64_t row_floats(const struct device_attend_selected_args *a, int64_t index)
{
    const struct device_page_select *p = a->select;
    const int64_t each = a->n_q_heads * kern_attend_state(a->kv->v_width);
    if (!p->row)
        return (splits_of(pages_of(p->last)) + 1 + splits_of(p->most)) * each;
    const struct part t = part_of(p, index);
    return head_states(&t) * each;
}

/* States of some rows, as many as are computed together. */
static int64_t floats_of(const struct device_attend_selected_args *a)
{
    int64_t most = 0, sum = 0;
    for (int64_t i = 0; i < a->select->n_rows; i++) {
        const int64_t n = row_floats(a, i);
        most = num_max(most, n);
        sum += n;
    }
    return num_max(most, num_min(sum, STATE_FLOATS));
}

static struct kern_attend job(const struct attend *t, const struct part *part, int64_t h, bool all)
{
    const struct device_attend_selected_args *a = t->a;
    const struct device_kv *kv = a->kv;
    const struct device_select_row *r = part->row;
    return (struct kern_attend){
        .k_codec = kv->k_codec,
        .v_codec = kv->v_codec,
        .k_width = kv->k_width,
        .v_width = kv->v_width,
        .page = all ? (const uint8_t *const *)r->page : part->page + h * a->select->most,
        .number = all ? NULL
                      : a->select->chosen +
                            (part->index * a->select->n_heads + a->head + h) * a->select->most,
        .k_at = kv->at + (size_t)h * kv->head_bytes,
        .v_at = kv->at + (size_t)h * kv->head_bytes + kv->v_at,
        .q = a->q.at + r->row * a->q.stride + h * t->group * kv->k_width,
        .q_stride = a->q.stride,
        .out = a->out.at + r->row * a->out.stride + h * t->group * kv->v_width,
        .out_stride = a->out.stride,
        .n_rows = 1,
        .n_heads = t->group,
        .pos0 = all ? r->pos : (part->n_chosen - 1) * KERN_PAGE + r->pos % KERN_PAGE,
        .scale = a->scale,
        .from_v = kv->from_v,
    };
}

static size_t worker_bytes(const struct device_attend_selected_args *a)
{
    const struct kern_attend k = {.k_codec = a->kv->k_codec,
                                  .v_codec = a->kv->v_codec,
                                  .k_width = a->kv->k_width,
                                  .v_width = a->kv->v_width,
                                  .n_rows = 1,
                                  .n_heads = a->n_q_heads / a->kv->n_heads};
    return (kern_attend_scratch(&k) + 63) & ~(size_t)63;
}

size_t device_cpu_attend_selected_scratch(const struct device *d,
                                        const struct device_attend_selected_args *a)
{
    const struct device_page_select *p = a->select;
    return (size_t)floats_of(a) * sizeof(float) +
           (size_t)(p->n_rows * a->n_q_heads) * sizeof(float) +
           (size_t)(p->n_rows * a->kv->n_heads * p->most) * sizeof(uint8_t *) +
           worker_bytes(a) * (size_t)pool_size(d->pool) + 4 * 64;
}

static int64_t part_tasks(const struct attend *t, const struct part *p)
{
    return (p->n_out + p->n_check) * t->a->kv->n_heads;
}

static float *state_of(const struct attend *t, const struct part *p, int64_t h, int64_t split)
{
    return p->state + (h * head_states(p) + split) * t->floats;
}

static void split_chunk(void *arg, int64_t chunk, int worker)
{
    const struct attend *t = arg;
    const struct part *p = t->part;
    for (int64_t n; chunk >= (n = part_tasks(t, p)); p++)
        chunk -= n;
    const int64_t n = p->n_out + p->n_check, h = chunk / n, i = chunk % n;
    const bool out = i < p->n_out;
    const struct kern_attend k = job(t, p, h, out && p->all);
    const int64_t split = out ? i : i - p->n_out;
    float *state = state_of(t, p, h, out ? i : i + 1);
    uint8_t *scratch = t->worker + (size_t)worker * t->worker_bytes;
    kern_touch_split(&k, split, state, scratch);
    t->kern->split(&k, split, state, scratch);
}

/* Sums of weights of splits [first, first + n) of query head g, in units of exp(top). */
static double weights(const struct attend *t, const struct part *p, int64_t h, int64_t g,
                      int64_t first, int64_t n, double top)
{
    double sum = 0;
    for (int64_t i = first; i < first + n; i++) {
        const float *s = state_of(t, p, h, i) + g * kern_attend_state(t->a->kv->v_width);
        if (s[1] > 0.0f)
            sum += (double)s[1] * exp((double)s[0] - top);
    }
    return sum;
}

/* What a query head missed, or would have. */
static float missed(const struct attend *t, const struct part *p, int64_t h, int64_t g)
{
    double top = -HUGE_VAL;
    for (int64_t i = 0; i < head_states(p); i++) {
        const float *s = state_of(t, p, h, i) + g * kern_attend_state(t->a->kv->v_width);
        if (s[1] > 0.0f)
            top = fmax(top, (double)s[0]);
    }
    if (p->all)
        return (float)fmax(0, 1 - weights(t, p, h, g, p->n_out + 1, p->n_check, top) /
                                      weights(t, p, h, g, 0, p->n_out, top));
    return (float)(weights(t, p, h, g, p->n_out, 1, top) /
                   weights(t, p, h, g, 0, p->n_out + 1, top));
}

static void merge_chunk(void *arg, int64_t chunk, int worker)
{
    const struct attend *t = arg;
    const int64_t n_heads = t->a->kv->n_heads, h = chunk % n_heads;
    const struct part *p = &t->part[chunk / n_heads];
    const struct device_page_select *select = t->a->select;
    float *rest = state_of(t, p, h, p->n_out);
    if (p->all)
        memset(rest, 0, (size_t)t->floats * sizeof *rest);
    else
        memcpy(rest, select->rest + (p->index * select->n_heads + t->a->head + h) * t->floats,
               (size_t)t->floats * sizeof *rest);
    for (int64_t g = 0; g < t->group; g++)
        t->share[(p - t->part) * t->a->n_q_heads + h * t->group + g] = missed(t, p, h, g);
    const struct kern_attend k = job(t, p, h, p->all);
    uint8_t *scratch = t->worker + (size_t)worker * t->worker_bytes;
    kern_touch_merge(&k, p->n_out + !p->all, state_of(t, p, h, 0), scratch);
    t->kern->merge(&k, p->n_out + !p->all, state_of(t, p, h, 0), scratch);
}

static void count(const struct attend *t)
{
    const struct device_attend_selected_args *a = t->a;
    const int64_t n_heads = a->kv->n_heads;
    const size_t block = kern_kv_block_bytes(a->kv->k_codec, true, a->kv->k_width) +
                         kern_kv_block_bytes(a->kv->v_codec, false, a->kv->v_width);
    for (int64_t i = 0; i < t->n_parts; i++) {
        const struct part *p = &t->part[i];
        struct kern_select_seen n = {.rows = !a->head,
                                   .pages_seen = (uint64_t)(n_heads * pages_of(p->row->pos))};
        n.pages_read = p->all ? n.pages_seen : (uint64_t)(n_heads * p->n_chosen);
        n.bytes_read = n.pages_read * block;
        for (int64_t g = 0; g < a->n_q_heads; g++) {
            const float x = t->share[i * a->n_q_heads + g];
            const uint64_t units = x > 0.0f && x <= 1.0f ? (uint64_t)((double)x * 0x1p32 + 0.5) : 0;
            n.pairs += !p->all;
            n.checked += p->all;
            n.missed += p->all ? 0 : units;
            n.missed_true += p->all ? units : 0;
            if (p->all)
                n.most_true = x > n.most_true ? x : n.most_true;
            else
                n.most = x > n.most ? x : n.most;
        }
        if (p->row->seen)
            kern_select_join(p->row->seen, &n);
    }
}

/* Where the chosen pages of the parts are. */
static void point(const struct attend *t)
{
    const struct device_page_select *select = t->a->select;
    for (int64_t i = 0; i < t->n_parts; i++)
        for (int64_t h = 0; h < t->a->kv->n_heads; h++) {
            const struct part *p = &t->part[i];
            const int32_t *chosen =
                select->chosen + (p->index * select->n_heads + t->a->head + h) * select->most;
            for (int64_t k = 0; k < p->n_chosen; k++)
                p->page[h * select->most + k] = p->row->page[chosen[k]];
        }
}

void device_cpu_attend_selected(struct device *d, const void *args, void *scratch)
{
    const struct device_attend_selected_args *a = args;
    const struct device_page_select *p = a->select;
    const int64_t most = floats_of(a), n_heads = a->kv->n_heads;
    struct attend t = {.d = d,
                       .a = a,
                       .kern = device_cpu_kernels_of(d, a->kv, false),
                       .group = a->n_q_heads / n_heads};
    t.floats = t.group * kern_attend_state(a->kv->v_width);
    t.worker_bytes = worker_bytes(a);
    t.share = aligned((float *)scratch + most);
    const uint8_t **page = aligned(t.share + p->n_rows * a->n_q_heads);
    t.worker = aligned(page + p->n_rows * n_heads * p->most);
    for (int64_t row = 0; row < p->n_rows && device_runs(d); row += t.n_parts) {
        int64_t used = 0, tasks = 0, work = 0;
        for (t.n_parts = 0; row + t.n_parts < p->n_rows &&
                            (!t.n_parts || used + row_floats(a, row + t.n_parts) <= most);
             t.n_parts++) {
            struct part *one = &t.part[t.n_parts];
            *one = part_of(p, row + t.n_parts);
            one->state = (float *)scratch + used;
            one->page = page + (row + t.n_parts) * n_heads * p->most;
            used += row_floats(a, row + t.n_parts);
            tasks += part_tasks(&t, one);
            work += (one->n_out + one->n_check) * KERN_SPLIT * a->q.width;
        }
        point(&t);
        device_cpu_for(d, tasks, work, split_chunk, &t);
        device_cpu_for(d, t.n_parts * n_heads, work, merge_chunk, &t);
        if (device_runs(d))
            count(&t);
    }
}

struct device_cost device_cpu_attend_selected_cost(const struct device_attend_selected_args *a)
{
    const double bytes = (double)(kern_kv_block_bytes(a->kv->k_codec, true, a->kv->k_width) +
                                  kern_kv_block_bytes(a->kv->v_codec, false, a->kv->v_width));
    struct device_cost c = {0, 0};
    for (int64_t i = 0; a->select->row && i < a->select->n_rows; i++) {
        const struct part t = part_of(a->select, i);
        const double pages = (double)(t.all ? pages_of(t.row->pos) : t.n_chosen);
        c.bytes += pages * (double)a->kv->n_heads * bytes;
        c.ops +=
            2.0 * pages * KERN_PAGE * (double)(a->n_q_heads * (a->kv->k_width + a->kv->v_width));
    }
    return c;
}
