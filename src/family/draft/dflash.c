/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dflash - the block drafter: rows after the anchor's, each the logits of the token at its own
 * position, all at once. Embedding and head are the target's.
 */
#include "family/draft/dflash.h"
#include "family/draft/dflash_file.h"

#include "base/mem.h"
#include "family/draft/drafts.h"

#include <string.h>

static bool dflash_fits(const struct family *target, const struct model *m,
                        const struct io_meta *meta)
{
    (void)target;
    return family_dflash_is_file(meta) && !family_dflash2_is(m) && !family_dspark_is(m, meta);
}

static bool dflash_named(struct json_object *config)
{
    return family_dflash_is_named(config, "DFlashDraftModel");
}

static void dflash_free(void *self)
{
    if (self)
        family_dflash_release(self);
    mem_free(self);
}

static ingle_status dflash_bind(void **self, const struct family_draft_target *target,
                                struct model *m, const struct io_meta *meta,
                                struct family_draft_info *info, struct err *err)
{
    struct dflash *g = mem_zalloc(sizeof *g);
    struct dflash_keys k;
    if (!g)
        return err_set(err, INGLE_NOMEM, "no memory for a drafter");
    family_dflash_keys(&k, m, meta, err);
    if (!family_dflash_bind(g, &k, target, m, err))
        k.s = family_dflash_bind_head(g, &k, m, err);
    /* Absent, it is the target's: what is drafted should be as sharp as what the target says. */
    g->softcap =
        (float)family_dflash_number(&k, "final_logit_softcapping|dflash.final_logit_softcapping", 0,
                                    1e6, (double)g->ends.softcap);
    if (family_dflash_detect(&k)) {
        dflash_free(g);
        return k.s;
    }
    *info = family_dflash_info(g);
    *self = g;
    return INGLE_OK;
}

static ingle_status dflash_set(void *self, const struct family_draft_options *o,
                               struct family_draft_info *info, struct err *err)
{
    struct dflash *g = self;
    if (o->rule && !family_dflash_rule(g, o->rule))
        return err_set(err, INGLE_ARG,
                       "a DFlash drafter has no rule '%.40s': causal, window, bidir, all-causal",
                       o->rule);
    const ingle_status s = family_dflash_set(g, o, err);
    if (!s)
        *info = family_dflash_info(g);
    return s;
}

static void dflash_begin(const void *self, struct family_round *r)
{
    struct dflash_round *d = device_bytes(r->forward.device, sizeof *d), dry;
    family_dflash_block(self, r, d ? d : &dry);
    r->state = d;
}

static void dflash_next(const void *self, struct family_round *r, int64_t j, const int32_t *token,
                        int64_t n_spans, struct rows logits, float *confidence)
{
    const struct dflash *g = self;
    struct dflash_round *d = r->state, dry;
    (void)token;
    (void)confidence;
    if (!d)
        family_dflash_dry(g, r, d = &dry);
    family_dflash_put(g, r, family_dflash_logits(g, r, d, j, n_spans), logits);
}

const struct family_draft family_dflash = {
    .kind = "dflash",
    .named = dflash_named,
    .config = family_dflash_config,
    .rename = family_dflash_rename,
    .alias = family_dflash_alias,
    .hf_name = family_dflash_hf_name,
    .to_config = family_dflash_to_config,
    .fits = dflash_fits,
    .bind = dflash_bind,
    .set = dflash_set,
    .kv = family_dflash_kv,
    .observe_begin = family_dflash_observe_begin,
    .observe_tap = family_dflash_observe_tap,
    .observe_wants = family_dflash_observe_wants,
    .observe_end = family_dflash_observe_end,
    .observed = family_dflash_observed,
    .begin = dflash_begin,
    .next = dflash_next,
    .free = dflash_free,
};
