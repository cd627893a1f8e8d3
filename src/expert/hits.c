/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hits - how often an expert is in memory, by the share of experts that are: a simulation of
 * routing that was fitted to published traces (docs/measured/experts.md).
 */
#include "expert/expert.h"

enum { SHARES = 12, MANY_EXPERTS = 256 };

static const double share_of[SHARES] = {0, .05, .10, .15, .20, .30, .40, .50, .60, .70, .80, 1};
static const double many[SHARES] = {0, .44, .609, .71, .778, .866, .913, .945, .967, .98, .987, 1};
static const double many_varied[SHARES] = {0,    .355, .513, .617, .693, .798,
                                           .863, .909, .944, .968, .98,  1};
static const double few[SHARES] = {0, .33, .507, .628, .715, .832, .9, .943, .967, .984, .994, 1};
static const double few_varied[SHARES] = {0,   .27,  .447, .568, .655, .772,
                                          .84, .883, .91,  .94,  .97,  1};

double expert_hits(double share, int64_t n_experts, bool varied)
{
    const double *table =
        n_experts >= MANY_EXPERTS ? (varied ? many_varied : many) : (varied ? few_varied : few);
    for (int i = 1; i < SHARES; i++)
        if (share <= share_of[i])
            return table[i - 1] + (table[i] - table[i - 1]) * (share - share_of[i - 1]) /
                                      (share_of[i] - share_of[i - 1]);
    return 1;
}
