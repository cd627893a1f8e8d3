/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler_tree - branches of what is drafted: they are computed in the step that verifies the
 * chain, and where the drawn token is the first one of a branch, the answer's session becomes that.
 *
 * Their timelines are made when the scheduler opens, and their pages are beside those that requests
 * reserve.
 */
#include "run/parts.h"
#include "run/scheduler.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

enum { OFFERS = SCHED_DRAFT_DEPTH + 2 }; /* of an answer */

struct offer { int32_t token[SCHED_DRAFT_BRANCH]; };

struct engine_trees {
    struct engine_branch own[ENGINE_BRANCHES]; /* [n] */
    int64_t n;
    int64_t nodes;                     /* of a tree at most */
    struct sched_draft_branch *branch; /* [cap]: what is offered for a step, and ... */
    struct offer *offer;               /* ... its tokens */
    int64_t n_offers, cap;
};

uint64_t engine_trees_bytes(const struct ingle_engine *e, uint64_t budget_bytes)
{
    uint64_t each, all;
    const bool known = session_branch_bytes(e->runner, &each) &&
                       num_mul_u64(each, (uint64_t)engine_branches_of(e->draft_tree), &all);
    return known && all < budget_bytes / 2 ? all : 0; /* else there may be none for them */
}

ingle_status engine_trees_open(struct engine_trees **out, const struct ingle_scheduler *s,
                               struct err *err)
{
    *out = NULL;
    if (!s->drafts || s->e->draft_tree < 2)
        return INGLE_OK;
    struct engine_trees *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_set(err, INGLE_NOMEM, "no memory for trees of drafts");
    t->nodes = s->e->draft_tree;
    t->n = engine_branches_of(t->nodes);
    t->cap = s->o.max_running * OFFERS;
    t->branch = mem_calloc((size_t)t->cap, sizeof *t->branch);
    t->offer = mem_calloc((size_t)t->cap, sizeof *t->offer);
    ingle_status st = INGLE_OK;
    if (!t->branch || !t->offer)
        st = err_set(err, INGLE_NOMEM, "no memory for the branches of %lld answers",
                     (long long)s->o.max_running);
    for (int64_t i = 0; i < t->n && !st; i++)
        st = session_branch_create(&t->own[i].b, s->e->runner, err);
    if (st)
        engine_trees_close(t);
    else
        *out = t;
    return st;
}

void engine_trees_close(struct engine_trees *t)
{
    if (!t)
        return;
    for (int64_t i = 0; i < t->n; i++)
        session_branch_free(t->own[i].b);
    mem_free(t->branch);
    mem_free(t->offer);
    mem_free(t);
}

int64_t engine_tree_nodes(const struct ingle_scheduler *s, const struct engine_answer *a)
{
    if (!s->trees || a->r->o.draft_trial)
        return 1;
    return a->r->o.draft_tree ? num_min(a->r->o.draft_tree, s->trees->nodes) : s->trees->nodes;
}

void engine_tree_begin(struct engine_trees *t)
{
    t->n_offers = 0;
}

void engine_tree_offer(struct engine_trees *t, int64_t i, const struct engine_guess *guess)
{
    if (t->n_offers == t->cap || guess->n < 1)
        return;
    struct sched_draft_branch *b = &t->branch[t->n_offers];
    *b = (struct sched_draft_branch){.item = i,
                                     .kind = guess->kind,
                                     .at = guess->at,
                                     .most = num_min(guess->n, SCHED_DRAFT_BRANCH)};
    for (int64_t j = 0; j < b->most; j++)
        b->confidence[j] = guess->confidence ? guess->confidence[j] : -1;
    memcpy(t->offer[t->n_offers++].token, guess->token, (size_t)b->most * sizeof *guess->token);
}

static struct engine_branch *find_free(struct engine_trees *t)
{
    for (int64_t i = 0; i < t->n; i++)
        if (!t->own[i].a)
            return &t->own[i];
    return NULL;
}

/* How many of its tokens the answer's grammar allows there. */
static int64_t fitting(const struct engine_answer *a, const int32_t *chain,
                       const struct sched_draft_branch *b, const int32_t *token)
{
    int32_t path[SCHED_DRAFT_DEPTH + SCHED_DRAFT_BRANCH];
    memcpy(path, chain, (size_t)b->at * sizeof *path);
    memcpy(path + b->at, token, (size_t)b->n * sizeof *path);
    return engine_sampler_fit(a->r->sampler[a->index], path, b->at + b->n) - b->at;
}

static void give(struct engine_trees *t, struct engine_answer *a,
                 const struct sched_draft_branch *b, const int32_t *token, int64_t n)
{
    struct engine_branch *own = find_free(t);
    const int64_t first = session_length(a->session.s) + 1;
    if (!own || n < 1 || a->n_branches == ENGINE_BRANCHES)
        return;
    own->a = a;
    own->kind = b->kind;
    own->at = b->at;
    memcpy(own->confidence, b->confidence, sizeof own->confidence);
    session_branch_set(own->b, first + b->at, token, n);
    a->computed[a->n_branches] = own->b;
    a->branch[a->n_branches++] = own;
    a->n_branch_tokens += n;
}

void engine_tree_grow(struct ingle_scheduler *s, struct sched_draft *sched,
                      struct sched_draft_item *item, int64_t n, const struct sched_draft_room *room,
                      struct engine_answer *const *who, const int32_t *const *chain)
{
    struct engine_trees *t = s->trees;
    int64_t most = 0;
    for (int64_t i = 0; i < t->n; i++)
        most += !t->own[i].a;
    sched_draft_grow(sched, item, n, room, t->branch, t->n_offers, most);
    for (int64_t k = 0; k < t->n_offers; k++) {
        const struct sched_draft_branch *b = &t->branch[k];
        struct engine_answer *a = who[b->item];
        if (b->n && a->r && b->at < item[b->item].width)
            give(t, a, b, t->offer[k].token, fitting(a, chain[b->item], b, t->offer[k].token));
    }
}

static void drop(struct engine_branch *own)
{
    session_branch_clear(own->b);
    own->a = NULL;
}

/* All of an answer's, or all but one. */
static void drop_but(struct engine_answer *a, struct engine_branch *one)
{
    for (int i = 0; i < a->n_branches; i++)
        if (a->branch[i] != one)
            drop(a->branch[i]);
    a->n_branches = 0;
    if (one)
        a->branch[a->n_branches++] = one;
}

bool engine_tree_turn(struct ingle_scheduler *s, struct engine_draw *d)
{
    struct engine_answer *a = d->a;
    const int64_t first =
        session_length(a->session.s) + session_pending(a->session.s) - a->n_drafts;
    if (a->taken || !a->n_drafts || !s->trees)
        return false;
    if (d->n_more)
        engine_drafts_missed(s, a, d->n_history - first, d->token.id);
    for (int i = 0; i < a->n_branches; i++) {
        struct engine_branch *own = a->branch[i];
        int64_t n;
        const int32_t *token = session_branch_tokens(own->b, &n);
        const float *logits = session_branch_logits(own->b);
        if (!logits || session_branch_at(own->b) != d->n_history || token[0] != d->token.id)
            continue;
        session_branch_take(a->session.s, own->b);
        drop_but(a, own);
        a->taken = own;
        a->n_drafts = d->n_history - first + n;
        d->logits = logits - s->n_vocab; /* of the row before its first one's */
        d->n_more = n;
        return true;
    }
    return false;
}

void engine_branches_drop(struct engine_answer *a)
{
    drop_but(a, NULL);
    a->taken = NULL;
    a->n_branch_tokens = 0;
}
