/* SPDX-License-Identifier: Apache-2.0 */
#include "expert/expert.h"

#include "base/mem.h"
#include "expert/tiered.h"
#include <string.h>

static struct expert_choice new_choice(struct device *d, int64_t n_rows, int64_t k)
{
    return (struct expert_choice){device_bytes(d, (size_t)(n_rows * k) * sizeof(int32_t)),
                                  device_bytes(d, (size_t)(n_rows * k) * sizeof(float)), k};
}

/* id = the experts of best in ascending order, weight = their scores. */
static void put_sorted(const int32_t *best, const float *score, int64_t k, int32_t *id,
                       float *weight)
{
    for (int64_t i = 0; i < k; i++) { /* insertion: k is small */
        int64_t at = i;
        for (; at > 0 && id[at - 1] > best[i]; at--)
            id[at] = id[at - 1];
        id[at] = best[i];
    }
    for (int64_t i = 0; i < k; i++)
        weight[i] = score[id[i]];
}

struct expert_choice expert_top_k(struct device *d, struct rows scores, const float *bias,
                                  int64_t k)
{
    const struct expert_choice c = new_choice(d, scores.n, k);
    if (!device_runs(d))
        return c;
    for (int64_t r = 0; r < scores.n; r++) {
        const float *s = scores.at + r * scores.stride;
        int32_t best[EXPERT_MAX_USED]; /* descending; ties keep the lower id first */
        float value[EXPERT_MAX_USED];
        int64_t n = 0;
        for (int32_t e = 0; e < (int32_t)scores.width; e++) {
            const float v = bias ? s[e] + bias[e] : s[e];
            if (n == k && !(v > value[k - 1]))
                continue;
            int64_t at = n < k ? n++ : k - 1;
            for (; at > 0 && v > value[at - 1]; at--) {
                best[at] = best[at - 1];
                value[at] = value[at - 1];
            }
            best[at] = e;
            value[at] = v;
        }
        put_sorted(best, s, k, c.id + r * k, c.weight + r * k);
    }
    return c;
}

struct expert_choice expert_by_table(struct device *d, struct rows scores, const int32_t *table,
                                     const int32_t *tokens, int64_t k)
{
    const struct expert_choice c = new_choice(d, scores.n, k);
    if (!device_runs(d))
        return c;
    for (int64_t r = 0; r < scores.n; r++)
        put_sorted(table + tokens[r] * k, scores.at + r * scores.stride, k, c.id + r * k,
                   c.weight + r * k);
    return c;
}

void expert_normalise(struct device *d, struct expert_choice *c, int64_t n_rows)
{
    if (!device_runs(d))
        return;
    for (int64_t r = 0; r < n_rows; r++) {
        float *w = c->weight + r * c->k, sum = 0.0f;
        for (int64_t i = 0; i < c->k; i++)
            sum += w[i];
        for (int64_t i = 0; i < c->k; i++)
            w[i] /= sum;
    }
}

ingle_status expert_layer_init(struct expert_layer *l, struct model *m, int64_t layer,
                               struct err *err)
{
    const struct device_matrix *const part[MODEL_PARTS] = {l->gate_up ? l->gate_up : l->gate, l->up,
                                                           l->down};
    struct model_experts *home;
    const ingle_status s = model_experts(m, layer, part, &home, err);
    if (s)
        return s;
    l->home = home;
    l->hits = mem_calloc((size_t)l->n, sizeof *l->hits);
    return l->hits ? INGLE_OK
                   : err_set(err, INGLE_NOMEM, "no memory to count %lld experts", (long long)l->n);
}

void expert_layer_release(struct expert_layer *l)
{
    mem_free(l->hits);
    l->hits = NULL;
}

static struct expert_pairs make_pairs(const struct expert_eval *v)
{
    struct device *d = v->d;
    const struct expert_choice *c = &v->choice;
    const int64_t n = v->x.n * c->k, n_experts = v->layer->n;
    const struct expert_pairs b = {
        device_bytes(d, (size_t)(n_experts + 2) * sizeof(int32_t)),
        device_bytes(d, (size_t)n * sizeof(int32_t)),
        device_bytes(d, (size_t)n * sizeof(int32_t)),
    };
    if (!device_runs(d))
        return b;
    memset(b.first, 0, (size_t)(n_experts + 2) * sizeof(int32_t));
    for (int64_t i = 0; i < n; i++) {
        b.first[c->id[i] + 2]++;
        v->layer->hits[c->id[i]]++;
    }
    for (int64_t e = 2; e < n_experts + 2; e++)
        b.first[e] += b.first[e - 1];
    for (int64_t i = 0; i < n; i++) { /* first[e + 1] runs from the start of e to its end */
        const int32_t p = b.first[c->id[i] + 1]++;
        b.row[p] = (int32_t)(i / c->k);
        b.slot[i] = p;
    }
    return b;
}

bool expert_wants_guess(const struct expert_layer *next, int64_t n_rows)
{
    const struct store_layer *l = next->home ? next->home->keeper : NULL;
    return l && n_rows <= EXPERT_GUESS_ROWS && expert_store_wants_guess(l->store);
}

void expert_guess(struct device *d, const struct expert_layer *next, const struct expert_choice *c,
                  int64_t n_rows)
{
    int32_t best[EXPERT_GUESS_ROWS * EXPERT_MAX_USED];
    float weight[EXPERT_GUESS_ROWS * EXPERT_MAX_USED];
    int64_t n = 0;
    if (!device_runs(d))
        return;
    for (int64_t i = 0; i < n_rows * c->k; i++) { /* insertion: they are few */
        int64_t at = n++;
        for (; at > 0 && c->weight[i] > weight[at - 1]; at--) {
            best[at] = best[at - 1];
            weight[at] = weight[at - 1];
        }
        best[at] = c->id[i];
        weight[at] = c->weight[i];
    }
    expert_store_early(((struct store_layer *)next->home->keeper)->store, next->home, best, n);
}

const struct expert_tier *expert_tier_here(const struct expert_layer *l)
{
    return l->home && l->home->keeper ? &expert_tiered : &expert_ram;
}

void expert_eval_begin(struct expert_eval *v)
{
    v->pairs = make_pairs(v);
    v->skip = NULL;
    v->away = NULL;
    v->y = (struct rows){0};
    v->summed = false;
    v->tier =
        v->layer->home && v->layer->home->workers ? &expert_remote : expert_tier_here(v->layer);
    if (v->tier->begin)
        v->tier->begin(v);
}

void expert_eval_end(struct expert_eval *v)
{
    const size_t mark = device_mark(v->d);
    const struct rows y = v->y.width ? v->y : device_rows(v->d, v->x.n * v->choice.k, v->out.width);
    v->tier->end(v, y);
    if (v->summed)
        device_copy(v->d, v->out, rows_slice(y, 0, v->out.n));
    else
        device_weighted_sum(v->d, v->out, y, v->pairs.slot, v->choice.weight, v->choice.k);
    device_release(v->d, mark);
}
