/* SPDX-License-Identifier: Apache-2.0 */
/* eval - what all tiers of experts do with an evaluation. */
#include "expert/expert.h"

void expert_eval_read(const struct expert_eval *v)
{
    const struct device_routed *c = &v->choice;
    const size_t n = (size_t)(v->x.n * c->k);
    device_read(v->d, c->id, n * sizeof *c->id);
    device_read(v->d, c->weight, n * sizeof *c->weight);
    device_read(v->d, c->first, (size_t)(v->layer->n + 2) * sizeof *c->first);
    device_read(v->d, c->row, n * sizeof *c->row);
    device_read(v->d, c->slot, n * sizeof *c->slot);
}
