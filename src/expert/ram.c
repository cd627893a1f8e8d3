/* SPDX-License-Identifier: Apache-2.0 */
/* ram - the tier whose experts are all in the device's memory: stacks of matrices. */
#include "expert/expert.h"

/* Experts that somebody else computes are left out.  NULL: none is. */
static const uint8_t *others_of(struct expert_eval *v)
{
    uint8_t *only = v->skip ? device_bytes(v->d, (size_t)v->layer->n) : NULL;
    for (int64_t e = 0; only && e < v->layer->n; e++)
        only[e] = !v->skip[e];
    device_wrote(v->d, only, (size_t)v->layer->n);
    return only;
}

static bool is_wanted(const struct expert_eval *v)
{
    expert_eval_read(v);
    for (int64_t e = 0; e < v->layer->n; e++)
        if (!v->skip[e] && v->choice.first[e + 1] > v->choice.first[e])
            return true;
    return false;
}

static void ram_end(struct expert_eval *v, struct rows y)
{
    const struct expert_layer *l = v->layer;
    if (v->skip && device_runs(v->d) && !is_wanted(v))
        return;
    const struct device_mlp m = {.gate = l->gate_up ? l->gate_up : l->gate,
                                 .up = l->gate_up ? NULL : l->up,
                                 .down = l->down,
                                 .act = v->act,
                                 .limit = v->limit,
                                 .first = v->choice.first,
                                 .row = v->choice.row,
                                 .only = others_of(v)};
    if (v->mlp)
        device_mlp_both(v->d, v->mlp, &(struct device_mlp_call){&m, v->x, y});
    else
        device_mlp(v->d, &m, v->x, y);
}

const struct expert_tier expert_ram = {.name = "ram", .end = ram_end};
