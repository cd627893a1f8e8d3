/* SPDX-License-Identifier: Apache-2.0 */
/* models - which published model a machine can run, and how fast. */
#include "tool/tool.h"

#include "expert/expert.h"

static const uint64_t MB = 1000000;

static const struct tool_model models[] = {
#define MODEL(name, code, need, token, experts, n_experts, n_used, drafts, hub, drafter) \
    {name, code, hub, drafter, need, token, experts, n_experts, n_used, drafts},
#include "tool/models.inc"
#undef MODEL
};

const struct tool_model *tool_models(size_t *n)
{
    *n = sizeof models / sizeof *models;
    return models;
}

/* What the system and others may need, as an engine that takes all that is free leaves it. */
static uint64_t margin_of(uint64_t memory)
{
    enum { SHARE = 12 }; /* 8 % */
    static const uint64_t least = (uint64_t)2 << 30;
    const uint64_t part = memory / SHARE > least ? memory / SHARE : least;
    return part < memory / 4 ? part : memory / 4;
}

enum tool_fit tool_model_fit(const struct tool_model *m, uint64_t memory, double *share)
{
    const uint64_t need = m->need_mb * MB, experts = m->experts_mb * MB,
                   usable = memory - margin_of(memory);
    *share = 1;
    if (need <= usable)
        return TOOL_FITS;
    if (!experts || need - experts > usable)
        return !experts && need <= memory ? TOOL_TIGHT : TOOL_TOO_LARGE;
    *share = (double)(usable - (need - experts)) / (double)experts;
    /* Fewer than one token uses make every token read nearly all of its own. */
    return *share < (double)m->n_used / (double)m->n_experts ? TOOL_TOO_LARGE : TOOL_FROM_DISK;
}

double tool_model_rate(const struct tool_model *m, double share, double memory_rate,
                       double disk_rate)
{
    const double experts =
        m->n_experts ? (double)(m->experts_mb * MB) * m->n_used / m->n_experts : 0;
    const double memory_s = ((double)(m->token_mb * MB) + experts) / memory_rate;
    if (!(share < 1))
        return 1 / memory_s;
    return 1 / (memory_s + (1 - expert_hits(share, m->n_experts, false)) * experts / disk_rate);
}
