/* SPDX-License-Identifier: Apache-2.0 */
/* ram - the tier whose experts are all in the device's memory: stacks of matrices. */
#include "expert/expert.h"

static struct rows ram_end(struct expert_eval *v)
{
    const struct expert_layer *l = v->layer;
    const struct device_mlp m = {.gate = l->gate_up ? l->gate_up : l->gate, .up = l->gate_up ? NULL : l->up, .down = l->down,
                                 .act = v->act, .limit = v->limit, .first = v->pairs.first, .row = v->pairs.row};
    const struct rows y = device_rows(v->d, v->x.n * v->choice.k, v->out.width);
    device_mlp(v->d, &m, v->x, y);
    return y;
}

const struct expert_tier expert_ram = {.name = "ram", .end = ram_end};
