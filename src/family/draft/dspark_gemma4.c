/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dspark_gemma4 - DSpark for Gemma 4: a block of the target's kind (or of Qwen 3, as the
 * "speculators" have it), whose logits a Markov chain corrects by the token before, and a head that
 * says how likely the target is to agree.
 */
#include "family/draft/dflash.h"
#include "family/draft/dflash_file.h"

#include "base/mem.h"
#include "family/hf/config.h"
#include "family/draft/drafts.h"
#include "family/draft/markov.h"
#include <string.h>

struct dspark {
    struct dflash g; /* the first member: functions of dflash_net.c take it for that */
    struct family_markov chain;
    float softcap;   /* as the file says */
};

struct round {
    struct dflash_round d;
    struct rows z; /* [n][n_out] of a reduced head */
};

bool family_dspark_is(const struct model *m, const struct io_meta *meta)
{
    return model_find(m, "markov_w1.weight") || model_find(m, "dspark.markov_w1.weight") ||
           family_dflash_has_key(m, meta, "sample_from_anchor|dflash.sample_from_anchor") ||
           (model_find(m, "blk.0.post_attention_norm.weight") &&
            model_find(m, "blk.0.ffn_norm.weight"));
}

static bool dspark_fits(const struct family *target, const struct model *m,
                        const struct io_meta *meta)
{
    (void)target;
    return family_dflash_is_file(meta) &&
           !family_dflash_has_key(m, meta, "hyper_connection.count") && !family_dflash2_is(m) &&
           family_dspark_is(m, meta);
}

static bool dspark_named(struct json_object *config)
{
    struct json_object *type = family_config_get(config, "speculators_model_type"),
                       *model = family_config_get(config, "model_type");
    if (model && !strncmp(json_object_get_string(model), "deepseek", 8))
        return false; /* stages of DeepSeek V4 */
    return family_dflash_is_named(config, "Gemma4DSparkModel") ||
           family_dflash_is_named(config, "DSparkSpeculator") ||
           family_dflash_is_named(config, "DSparkDraftModel") ||
           (type && !strcmp(json_object_get_string(type), "dspark"));
}

static void dspark_free(void *self)
{
    struct dspark *s = self;
    if (s)
        family_dflash_release(&s->g);
    mem_free(s);
}

static void bind_chain(struct dspark *s, struct dflash_keys *k, struct model *m)
{
    static const char sure[] = "conf_proj.weight";
    const bool has = model_has_matrix(m, sure);
    const int64_t is = family_dflash_columns(m, "markov_w1.weight"),
                  in = family_dflash_columns(m, sure);
    const int64_t rank = family_dflash_whole(k, "markov_rank", 0, FAMILY_MARKOV_RANK, 0);
    s->chain.rank = is ? is : model_has_matrix(m, "markov_w1.weight") ? rank : 0;
    s->chain.n_embd = s->g.n_embd;
    s->chain.follows = family_dflash_flag(k, "confidence_head_with_markov",
                                          !in || in == s->g.n_embd + s->chain.rank);
    if (!k->s && rank && rank != s->chain.rank)
        k->s = err_set(k->err, INGLE_FORMAT,
                       "'%s': tensor 'markov_w1.weight' has rank %lld, expected %lld", k->path,
                       (long long)s->chain.rank, (long long)rank);
    if (!k->s && family_dflash_flag(k, "has_confidence_head", has) && !has)
        k->s = err_set(k->err, INGLE_FORMAT,
                       "'%s': 'has_confidence_head' is true, but tensor '%s' is missing", k->path,
                       sure);
    if (!k->s)
        k->s = family_markov_bind(&s->chain, m, s->g.n_vocab, s->g.n_out, k->err);
}

static void say(const struct dspark *s, struct family_draft_info *info)
{
    *info = family_dflash_info(&s->g);
    info->confidence = s->chain.sure != NULL;
}

static ingle_status dspark_bind(void **self, const struct family_draft_target *target,
                                struct model *m, const struct io_meta *meta,
                                struct family_draft_info *info, struct err *err)
{
    struct dspark *s = mem_zalloc(sizeof *s);
    struct dflash_keys k;
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a drafter");
    family_dflash_keys(&k, m, meta, err);
    if (!family_dflash_bind(&s->g, &k, target, m, err))
        k.s = family_dflash_bind_head(&s->g, &k, m, err);
    s->g.softcap = s->softcap = (float)family_dflash_number(
        &k, "final_logit_softcapping|dflash.final_logit_softcapping", 0, 1e6, 0);
    bind_chain(s, &k, m);
    if (family_dflash_detect(&k)) {
        dspark_free(s);
        return k.s;
    }
    say(s, info);
    *self = s;
    return INGLE_OK;
}

static ingle_status dspark_set(void *self, const struct family_draft_options *o,
                               struct family_draft_info *info, struct err *err)
{
    struct dspark *s = self;
    if (o->rule && !strcmp(o->rule, "cap"))
        s->g.softcap = s->softcap > 0 ? s->softcap : s->g.ends.softcap;
    else if (o->rule && !strcmp(o->rule, "plain"))
        s->g.softcap = 0;
    else if (o->rule && !family_dflash_rule(&s->g, o->rule))
        return err_set(
            err, INGLE_ARG,
            "a DSpark drafter has no rule '%.40s': cap, plain, causal, window, bidir, all-causal",
            o->rule);
    const ingle_status st = family_dflash_set(&s->g, o, err);
    if (!st)
        say(s, info);
    return st;
}

/* Rows of a round after the block's. */
static void take(const struct dspark *s, struct device *d, int64_t n, struct round *round)
{
    round->z = s->g.to ? device_rows(d, n, s->g.n_out) : (struct rows){0};
}

static void dspark_begin(const void *self, struct family_round *r)
{
    const struct dspark *s = self;
    struct round *round = device_bytes(r->forward.device, sizeof *round), dry;
    r->state = round;
    round = round ? round : &dry;
    family_dflash_block(&s->g, r, &round->d);
    take(s, r->forward.device, r->forward.step->n_spans, round);
}

static void dspark_next(const void *self, struct family_round *r, int64_t j, const int32_t *token,
                        int64_t n_spans, struct rows logits, float *confidence)
{
    const struct dspark *s = self;
    struct device *d = r->forward.device;
    struct round *round = r->state, dry;
    const size_t mark = device_mark(d);
    if (!round) {
        round = &dry;
        family_dflash_dry(&s->g, r, &dry.d);
        take(s, d, n_spans, &dry);
    }
    const struct rows u = family_dflash_logits(&s->g, r, &round->d, j, n_spans);
    if (s->chain.rank) {
        const struct rows z = s->g.to ? rows_slice(round->z, 0, n_spans) : logits;
        family_markov_add(&s->chain, d, u, token, z);
        if (s->g.to)
            family_dflash_put(&s->g, r, z, logits);
    } else {
        family_dflash_put(&s->g, r, u, logits);
    }
    family_markov_sure(&s->chain, d, family_dflash_hidden(&s->g, &round->d, j, n_spans), token,
                       confidence);
    device_release(d, mark);
}

const struct family_draft family_dspark_gemma4 = {
    .kind = "dspark",
    .named = dspark_named,
    .config = family_dflash_config,
    .rename = family_dflash_rename,
    .alias = family_dflash_alias,
    .hf_name = family_dflash_hf_name,
    .to_config = family_dflash_to_config,
    .fits = dspark_fits,
    .bind = dspark_bind,
    .set = dspark_set,
    .kv = family_dflash_kv,
    .observe_begin = family_dflash_observe_begin,
    .observe_tap = family_dflash_observe_tap,
    .observe_wants = family_dflash_observe_wants,
    .observe_end = family_dflash_observe_end,
    .observed = family_dflash_observed,
    .begin = dspark_begin,
    .next = dspark_next,
    .free = dspark_free,
};
