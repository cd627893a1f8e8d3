/* SPDX-License-Identifier: Apache-2.0 */
#include "expert/expert.h"

#include "base/mem.h"
#include "expert/tiered.h"
#include <string.h>

struct device_routed expert_route(struct device *d, const struct expert_layer *l,
                                  struct device_route rule, struct rows scores)
{
    rule.pairs = true;
    rule.hits = l->hits;
    return device_route(d, &rule, scores);
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

bool expert_wants_guess(const struct expert_layer *next, int64_t n_rows)
{
    const struct store_layer *l = next->home ? next->home->keeper : NULL;
    return l && n_rows <= EXPERT_GUESS_ROWS && expert_store_wants_guess(l->store);
}

void expert_guess(struct device *d, const struct expert_layer *next, const struct device_routed *c,
                  int64_t n_rows)
{
    int32_t best[EXPERT_GUESS_ROWS * EXPERT_MAX_USED];
    float weight[EXPERT_GUESS_ROWS * EXPERT_MAX_USED];
    int64_t n = 0;
    if (!device_runs(d))
        return;
    device_read(d, c->id, (size_t)(n_rows * c->k) * sizeof *c->id);
    device_read(d, c->weight, (size_t)(n_rows * c->k) * sizeof *c->weight);
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
    if (v->mlp && v->tier != &expert_ram) {
        device_mlp(v->d, v->mlp->m, v->mlp->x, v->mlp->y);
        v->mlp = NULL;
    }
    v->tier->end(v, y);
    if (v->summed)
        device_copy(v->d, v->out, rows_slice(y, 0, v->out.n));
    else
        device_weighted_sum(v->d, v->out, y, v->choice.slot, v->choice.weight, v->choice.k);
    device_release(v->d, mark);
}
