/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler_draft - tokens that are guessed before a step: by a network, in one round for all
 * answers, from the text, or because the answer's grammar leaves no choice.  They stand behind the
 * answer's token, and the step draws at each of them what plain decoding draws.
 */
#include "run/parts.h"
#include "run/scheduler.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Numbers of proposers. */
enum {
    BY_NETWORK = INGLE_DRAFTER_NETWORK,
    BY_TEXT = INGLE_DRAFTER_TEXT,
    BY_GRAMMAR = INGLE_DRAFTER_GRAMMAR,
    PROPOSERS = INGLE_DRAFTERS
};
/* tokens of all texts that are taken up before a step, about half a millisecond */
enum { FOLLOWED = 4096 };
enum { WHYS = SCHED_DRAFT_OTHERS + 1 };

/* Of a slot. */
struct slot_draft {
    struct sched_draft_session sched;
    struct ngram *text;      /* NULL: text does not draft */
    bool begun;              /* this is of the slot's answer, and not of an earlier one */
    int64_t n_steps[WHYS];   /* of the answer, by why they had no drafts */
    int proposer;
    bool sure;               /* confidence[proposer] is known */
    float sharp;             /* what the network's logits are multiplied by in this round */
    bool bad;                /* some of them were no numbers */
    int32_t token[PROPOSERS][SCHED_DRAFT_DEPTH];
    float confidence[PROPOSERS][SCHED_DRAFT_DEPTH];
    /* Where there are trees: what else the network may have meant, and the text. */
    int32_t second[SCHED_DRAFT_DEPTH]; /* -1: nothing */
    struct ngram_other other;
    int64_t n_text;
};

struct engine_drafts {
    struct slot_draft *slot;        /* [max_running], as are these: */
    struct sched_draft_item *item;
    struct engine_answer **who;     /* of an item, */
    const int32_t **chain;          /* of an item: what is drafted */
    struct session_draft *round;
    int64_t *item_of;               /* of a round's session */
    struct ngram_memory *memory;    /* NULL: text does not draft */
    struct text_ids forced;         /* scratch */
    struct sched_draft sched;
    /* tokens of texts that may still be taken up before this step */
    int64_t work;
    int64_t prompt_rows;            /* of the last step */
    uint64_t turn;
    bool reported;                  /* that the network's logits were no numbers */
    double round_seconds;           /* in all */
    double seen;                    /* session_runner_seen_seconds() before this step */
    const struct family_draft_info *network; /* NULL: there is none */
    const struct ingle_scheduler *s;
};

ingle_status engine_drafts_open(struct engine_drafts **out, const struct ingle_scheduler *s,
                                struct err *err)
{
    const size_t n = (size_t)s->o.max_running;
    const struct family_draft_info *network = session_runner_draft(s->e->runner);
    *out = NULL;
    if (!network && !s->e->draft_text)
        return INGLE_OK;
    struct engine_drafts *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_set(err, INGLE_NOMEM, "no memory for drafts");
    d->s = s;
    d->network = network;
    d->sched.network[BY_NETWORK] = true;
    d->slot = mem_calloc(n, sizeof *d->slot);
    d->item = mem_calloc(n, sizeof *d->item);
    d->who = mem_calloc(n, sizeof *d->who);
    d->chain = mem_calloc(n, sizeof *d->chain);
    d->round = mem_calloc(n, sizeof *d->round);
    d->item_of = mem_calloc(n, sizeof *d->item_of);
    ingle_status st = INGLE_OK;
    if (!d->slot || !d->item || !d->who || !d->chain || !d->round || !d->item_of)
        st = err_set(err, INGLE_NOMEM, "no memory for the drafts of %zu answers", n);
    for (size_t i = 0; i < n && !st && s->e->draft_text; i++) {
        st = session_ngram_create(&d->slot[i].text, &(struct ngram_options){0}, err);
        if (!st)
            st = session_ngram_reserve(d->slot[i].text, s->n_ctx + 1, err);
    }
    if (!st && s->e->draft_text)
        st = session_ngram_memory_create(&d->memory, ENGINE_MEMORY_USERS, ENGINE_MEMORY_TOKENS,
                                         err);
    if (st)
        engine_drafts_close(d);
    else
        *out = d;
    return st;
}

void engine_drafts_close(struct engine_drafts *d)
{
    if (!d)
        return;
    for (int64_t i = 0; d->slot && i < d->s->o.max_running; i++)
        session_ngram_free(d->slot[i].text);
    session_ngram_memory_free(d->memory);
    text_ids_release(&d->forced);
    mem_free(d->slot);
    mem_free(d->item);
    mem_free(d->who);
    mem_free(d->chain);
    mem_free(d->round);
    mem_free(d->item_of);
    mem_free(d);
}

static struct slot_draft *slot_of(const struct ingle_scheduler *s, const struct engine_answer *a)
{
    return &s->drafts->slot[a - s->slot];
}

void engine_drafts_drop(struct engine_answer *a)
{
    if (!a->n_drafts)
        return;
    session_keep(a->session.s,
                 session_length(a->session.s) + session_pending(a->session.s) - a->n_drafts);
    a->n_drafts = 0;
    engine_branches_drop(a);
}

/* ---- what could be drafted ---- */

/* Tokens that an answer may have in a step on top of one. */
static int64_t most_of(const struct ingle_scheduler *s, const struct engine_answer *a)
{
    const int64_t at = session_length(a->session.s) + 1;
    int64_t n = num_min(a->r->max_tokens - a->n_generated - 1, s->n_ctx - at);
    n = num_min(n, SCHED_DRAFT_DEPTH);
    if (a->r->o.draft_max)
        n = num_min(n, num_max(0, a->r->o.draft_max));
    if (engine_tree_nodes(s, a) > 1)
        n = num_min(n, engine_tree_nodes(s, a));
    return s->e->draft_most ? num_min(n, s->e->draft_most) : n;
}

/* What is to be drafted at least, however little it promises. */
static int64_t least_of(const struct ingle_scheduler *s, const struct engine_answer *a)
{
    return a->r->o.draft_min ? a->r->o.draft_min : s->e->draft_least;
}

/* The j-th token of a draft for an answer that is known: right as often as was asked for, each
 * place by itself. */
static void replace(const struct engine_answer *a, int64_t j, int64_t n_vocab, int32_t *token)
{
    const struct ingle_draft_trial *t = a->r->o.draft_trial;
    const int64_t at = a->n_generated + j;
    if (!t)
        return;
    const int32_t known = at < t->n ? t->answer[at] : 0;
    const uint64_t key[] = {t->seed, (uint64_t)at};
    const bool right =
        at < t->n && (double)(XXH3_64bits(key, sizeof key) >> 11) * 0x1p-53 < t->right;
    *token = right ? known : (int32_t)((known + 1) % n_vocab);
}

static void begin(struct slot_draft *t)
{
    if (t->begun)
        return;
    t->begun = true;
    t->sched = (struct sched_draft_session){0};
    memset(t->n_steps, 0, sizeof t->n_steps);
    if (t->text)
        session_ngram_turn(t->text);
}

/* Text that drafts becomes what the answer has, a piece in each step; false: it is not yet. */
static bool know_text(struct engine_drafts *d, struct slot_draft *t, const struct engine_answer *a)
{
    const struct session *s = a->session.s;
    return session_ngram_follow(t->text, session_tokens(s), session_length(s) + session_pending(s),
                                &d->work);
}

/* So that it is known when the answer begins. */
static void know_prompts(struct ingle_scheduler *s)
{
    for (int64_t i = 0; i < s->o.max_running; i++) {
        struct engine_answer *a = &s->slot[i];
        struct slot_draft *t = &s->drafts->slot[i];
        if (a->state != ENGINE_ANSWER_PROMPT || a->step_rows || !t->text || !a->r->by_text)
            continue;
        begin(t);
        know_text(s->drafts, t, a);
    }
}

static void offer(struct ingle_scheduler *s, struct engine_answer *a, struct sched_draft_item *item)
{
    struct engine_drafts *d = s->drafts;
    struct slot_draft *t = slot_of(s, a);
    int64_t most = most_of(s, a);
    begin(t);
    *item = (struct sched_draft_item){.s = &t->sched,
                                      .nodes = engine_tree_nodes(s, a),
                                      .all_nodes = s->e->draft_force || least_of(s, a)};
    t->n_text = t->other.n = 0;
    if (a->plain)
        most = 0;
    if (most > 0 && a->r->by_text)
        item->offer[BY_GRAMMAR] = (struct sched_draft_offer){
            engine_sampler_forced(a->r->sampler[a->index], most, t->token[BY_GRAMMAR],
                                  t->confidence[BY_GRAMMAR], &d->forced),
            t->confidence[BY_GRAMMAR]};
    if (most > 0 && d->network && a->r->by_network)
        item->offer[BY_NETWORK].most = num_min(most, d->network->most);
    if (most > 0 && a->r->o.draft_trial && a->r->by_text && !item->offer[BY_NETWORK].most) {
        item->offer[BY_TEXT].most = num_min(most, NGRAM_MOST);
        for (int64_t j = 0; j < item->offer[BY_TEXT].most; j++)
            replace(a, j, s->n_vocab, &t->token[BY_TEXT][j]);
        return;
    }
    /* a trial is of the network alone */
    if (most <= 0 || !a->r->by_text || a->r->o.draft_trial || !know_text(d, t, a))
        return;
    item->offer[BY_TEXT] = (struct sched_draft_offer){
        session_ngram_propose(t->text, d->memory, a->r->salt, num_min(most, NGRAM_MOST),
                              t->token[BY_TEXT], t->confidence[BY_TEXT]),
        t->confidence[BY_TEXT]};
    t->n_text = item->offer[BY_TEXT].most;
    t->other = *session_ngram_other(t->text);
}

/* Of whoever was chosen, else of the network. */
static void at_least(struct ingle_scheduler *s, int64_t n, int64_t left)
{
    struct engine_drafts *d = s->drafts;
    for (int64_t i = 0; i < n; i++)
        left -= d->item[i].width;
    for (int64_t i = 0; i < n; i++) {
        struct sched_draft_item *item = &d->item[i];
        const int64_t least = least_of(s, d->who[i]), had = item->width;
        if (!least)
            continue;
        if (!had)
            item->proposer = item->offer[BY_NETWORK].most ? BY_NETWORK
                             : item->offer[BY_TEXT].most  ? BY_TEXT
                                                          : BY_GRAMMAR;
        item->width =
            num_max(had, num_min(num_min(least, item->offer[item->proposer].most), had + left));
        item->trial = item->width > 0; /* nothing of it is cut */
        item->s->why = item->width ? SCHED_DRAFT_ON : item->s->why;
        left -= item->width - had;
    }
}

/* Answers that wait for a step with their one token. */
static int64_t offer_all(struct ingle_scheduler *s, int64_t *context)
{
    struct engine_drafts *d = s->drafts;
    int64_t n = 0, sum = 0;
    for (int64_t i = 0; i < s->o.max_running; i++) {
        struct engine_answer *a = &s->slot[i];
        if (a->state != ENGINE_ANSWER_RUNS || a->step_rows || engine_is_held(a->r) ||
            session_pending(a->session.s) != 1)
            continue;
        d->who[n] = a;
        sum += session_length(a->session.s);
        offer(s, a, &d->item[n++]);
    }
    *context = n ? sum / n : 0;
    return n;
}

/* ---- a round of the network ---- */

/* As the target will draw, with the same random numbers. */
static bool draw(void *arg, int64_t i, int64_t j, const float *logits, int32_t *token)
{
    const struct ingle_scheduler *s = arg;
    const struct engine_drafts *d = s->drafts;
    const struct engine_answer *a = d->who[d->item_of[i]];
    struct slot_draft *t = slot_of(s, a);
    struct err err;
    if (!a->r) /* it has left meanwhile */
        return false;
    const int64_t n = session_length(a->session.s) + 1 + j;
    const ingle_status st =
        engine_sample_draft(a->r->sampler[a->index], logits, session_tokens(a->session.s), n,
                            t->sharp, token, s->trees ? &t->second[j] : NULL, &err);
    t->bad |= st == INGLE_NUMERIC;
    if (!st)
        replace(a, j, s->n_vocab, token);
    return st == INGLE_OK;
}

/* Logits that are no numbers end a draft; without a token before them it counts as a wrong one. */
static void note_bad(struct ingle_scheduler *s, struct slot_draft *t, int64_t n)
{
    struct engine_drafts *d = s->drafts;
    if (!t->bad)
        return;
    if (!n)
        sched_draft_note(&d->sched, &t->sched, BY_NETWORK, 1, 0, NULL);
    if (!d->reported)
        report(&s->e->sink, INGLE_REPORT_WARN, "draft", s->e->draft ? s->e->draft->path : "network",
               "its logits are no numbers: such drafts are dropped");
    d->reported = true;
}

static void run_round(struct ingle_scheduler *s, int64_t n)
{
    struct engine_drafts *d = s->drafts;
    struct err err;
    int64_t k = 0, deep = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        struct sched_draft_item *item = &d->item[i];
        struct slot_draft *t = slot_of(s, d->who[i]);
        t->sure = item->proposer != BY_NETWORK && !d->who[i]->r->o.draft_trial;
        if (!item->width || item->proposer != BY_NETWORK)
            continue;
        t->sharp = d->who[i]->r->o.sampling.temperature > 0
                       ? sched_draft_sharpness(&d->sched, &t->sched, BY_NETWORK)
                       : 1;
        t->bad = false;
        d->item_of[k] = i;
        d->round[k++] = (struct session_draft){
            .s = d->who[i]->session.s,
            .width = item->width,
            .token = t->token[BY_NETWORK],
            .confidence = d->network->confidence ? t->confidence[BY_NETWORK] : NULL};
        d->who[i]->step_rows = 1; /* it cannot leave in between */
    }
    if (!k)
        return;
    const uint64_t began = clock_now();
    const ingle_status st = session_draft(s->e->runner, d->round, k, draw, s, NULL, &err);
    for (int64_t i = 0; i < k; i++) {
        struct sched_draft_item *item = &d->item[d->item_of[i]];
        struct engine_answer *a = d->who[d->item_of[i]];
        a->step_rows = 0;
        item->width = a->r ? d->round[i].n : 0;
        deep = num_max(deep, d->round[i].n);
        all += d->round[i].n;
        note_bad(s, slot_of(s, a), d->round[i].n);
        slot_of(s, a)->sure = d->network->confidence;
        if (d->network->confidence)
            item->offer[BY_NETWORK].confidence = slot_of(s, a)->confidence[BY_NETWORK];
    }
    const double seconds = (double)(clock_now() - began) * 1e-9;
    d->round_seconds += seconds;
    if (!st)
        sched_draft_note_round(&d->sched, BY_NETWORK, k, num_max(deep, 1), num_max(all, 1),
                               seconds);
    pthread_mutex_lock(&s->lock);
    s->status.generated_seconds += seconds;
    s->status.n_rounds++;
    s->status.round_seconds += seconds;
    pthread_mutex_unlock(&s->lock);
    if (st)
        report(&s->e->sink, INGLE_REPORT_WARN, "draft", "round", "%s", err.msg);
}

/* Drafts end where they would leave the grammar. */
static int64_t fitting(const struct engine_answer *a, const int32_t *token, int64_t n)
{
    return engine_sampler_fit(a->r->sampler[a->index], token, n);
}

static void append(struct ingle_scheduler *s, struct engine_answer *a,
                   const struct sched_draft_item *item)
{
    struct slot_draft *t = slot_of(s, a);
    struct err err;
    if (!a->r || !item->width)
        return;
    t->proposer = item->proposer;
    if (!session_append(a->session.s, t->token[item->proposer], item->width, &err))
        a->n_drafts = a->n_chain = item->width;
    else
        engine_branches_drop(a);
}

/* ---- branches ---- */

/* Kinds of them. */
/* the network's second token; the text's other way; the text's way next to the network's */
enum { SECOND, OTHER, PARALLEL };

/* Where the text would go another way than the network's chain; -1: nowhere within both. */
static int64_t parts_at(const struct slot_draft *t, int64_t width)
{
    int64_t j = 0;
    while (j < num_min(width, t->n_text) && t->token[BY_TEXT][j] == t->token[BY_NETWORK][j])
        j++;
    return j < num_min(width, t->n_text) ? j : -1;
}

static void offer_branches(const struct ingle_scheduler *s, int64_t i,
                           const struct sched_draft_item *item)
{
    const struct slot_draft *t = slot_of(s, s->drafts->who[i]);
    const int64_t parts = item->proposer == BY_NETWORK ? parts_at(t, item->width) : -1;
    if (parts >= 0)
        engine_tree_offer(s->trees, i,
                          &(struct engine_guess){PARALLEL, parts, t->n_text - parts,
                                                 t->token[BY_TEXT] + parts,
                                                 t->confidence[BY_TEXT] + parts});
    for (int64_t j = 0; j < item->width && item->proposer == BY_NETWORK; j++)
        if (t->second[j] >= 0 && (j != parts || t->second[j] != t->token[BY_TEXT][j]))
            engine_tree_offer(s->trees, i,
                              &(struct engine_guess){SECOND, j, 1, &t->second[j], NULL});
    if (item->proposer == BY_TEXT && t->other.at < item->width)
        engine_tree_offer(s->trees, i,
                          &(struct engine_guess){OTHER, t->other.at, t->other.n, t->other.token,
                                                 t->other.confidence});
}

static void grow_trees(struct ingle_scheduler *s, int64_t n, const struct sched_draft_room *room)
{
    struct engine_drafts *d = s->drafts;
    if (!s->trees)
        return;
    engine_tree_begin(s->trees);
    for (int64_t i = 0; i < n; i++) {
        if (!d->item[i].width || d->item[i].nodes < 2 || !d->who[i]->r)
            continue;
        d->chain[i] = slot_of(s, d->who[i])->token[d->item[i].proposer];
        offer_branches(s, i, &d->item[i]);
    }
    engine_tree_grow(s, &d->sched, d->item, n, room, d->who, d->chain);
}

void engine_drafts_missed(struct ingle_scheduler *s, const struct engine_answer *a, int64_t place,
                          int32_t drawn)
{
    struct sched_draft *d = &s->drafts->sched;
    const struct slot_draft *t = slot_of(s, a);
    const bool network = t->proposer == BY_NETWORK;
    if (network && t->second[place] >= 0)
        sched_draft_note_second(d, SECOND, -1, t->second[place] == drawn);
    if (network && parts_at(t, a->n_chain) == place)
        sched_draft_note_second(d, PARALLEL, t->confidence[BY_TEXT][place],
                                t->token[BY_TEXT][place] == drawn);
    if (t->proposer == BY_TEXT && t->other.n && t->other.at == place)
        sched_draft_note_second(d, OTHER, t->other.confidence[0], t->other.token[0] == drawn);
}

static void count_why(struct slot_draft *t, bool drafts)
{
    t->n_steps[drafts                           ? SCHED_DRAFT_ON
               : t->sched.why == SCHED_DRAFT_ON ? SCHED_DRAFT_NONE
                                                : t->sched.why]++;
}

/* Why none of the answers of the step has drafts. */
static void say_why(struct ingle_scheduler *s, int64_t n)
{
    const struct engine_drafts *d = s->drafts;
    int64_t i = 0;
    while (i < n && !d->item[i].width)
        i++;
    pthread_mutex_lock(&s->lock);
    snprintf(s->status.draft_why, sizeof s->status.draft_why, "%s",
             i < n ? "" : sched_draft_why_name(d->item[0].s->why));
    pthread_mutex_unlock(&s->lock);
}

/* For tests: so many tokens each, of the first proposer from `by` on that offers any, whatever they
 * bring. */
static void force(struct engine_drafts *d, int64_t n, int64_t most, int by, int64_t left)
{
    for (int64_t i = 0; i < n; i++) {
        struct sched_draft_item *item = &d->item[i];
        item->width = 0;
        for (int k = 0; k < PROPOSERS && !item->width; k++) {
            item->proposer =
                (int)((by < PROPOSERS ? (uint64_t)by : d->turn) + (uint64_t)k) % PROPOSERS;
            item->width = num_min(num_min(item->offer[item->proposer].most, most), left);
        }
        d->turn++;
        left -= item->width;
    }
}

/* What it took the network since then to see rows outside of its rounds; returns the seconds. */
static double note_seen(struct ingle_scheduler *s)
{
    struct engine_drafts *d = s->drafts;
    const double now = session_runner_seen_seconds(s->e->runner), seconds = now - d->seen;
    d->seen = now;
    if (seconds > 0)
        sched_draft_note_seen(&d->sched, seconds);
    return seconds;
}

void engine_draft(struct ingle_scheduler *s, int64_t max_rows)
{
    struct engine_drafts *d = s->drafts;
    struct sched_draft_room room = {0};
    if (!d)
        return;
    d->work = FOLLOWED;
    note_seen(s);
    know_prompts(s);
    const int64_t n = offer_all(s, &room.context);
    room.other_rows = d->prompt_rows;
    room.most_rows = num_max(0, num_min(num_min(max_rows, s->max_rows), s->max_logits) - n - 1);
    if (!n)
        return;
    sched_draft_plan(&d->sched, d->item, n, &room);
    if (s->e->draft_force)
        force(d, n, s->e->draft_force, s->e->draft_force_by, room.most_rows);
    else
        at_least(s, n, room.most_rows);
    run_round(s, n);
    for (int64_t i = 0; i < n; i++)
        if (d->item[i].width && d->who[i]->r)
            d->item[i].width = fitting(d->who[i], slot_of(s, d->who[i])->token[d->item[i].proposer],
                                       d->item[i].width);
    if (!s->e->draft_force)
        sched_draft_trim(&d->sched, d->item, n, &room);
    grow_trees(s, n, &room);
    for (int64_t i = 0; i < n; i++) {
        append(s, d->who[i], &d->item[i]);
        count_why(slot_of(s, d->who[i]), d->who[i]->n_drafts > 0);
    }
    say_why(s, n);
    d->seen = session_runner_seen_seconds(s->e->runner);
}

double engine_drafts_rounds(const struct ingle_scheduler *s)
{
    return s->drafts ? s->drafts->round_seconds : 0;
}

void engine_drafts_away(const struct ingle_scheduler *s, struct sched_draft_step *plan)
{
    if (s->drafts)
        *plan = s->drafts->sched.step;
}

void engine_drafts_back(struct ingle_scheduler *s, const struct sched_draft_step *plan)
{
    if (s->drafts)
        s->drafts->sched.step = *plan;
}

/* ---- what became of it ---- */

/* What the step took longer than a plain one, or less, is divided among those that drafted. */
static void share_time(const struct engine_lane *l, double seconds)
{
    int64_t all = 0;
    for (int64_t i = 0; i < l->n; i++)
        all += l->item[i]->n_drafts;
    for (int64_t i = 0; i < l->n; i++)
        if (all && l->item[i]->r)
            l->item[i]->r->usage.draft_saved_seconds +=
                seconds * (double)l->item[i]->n_drafts / (double)all;
}

void engine_drafts_step(struct ingle_scheduler *s, const struct engine_lane *l, double seconds)
{
    struct engine_drafts *d = s->drafts;
    int64_t rows = 0, answers = 0, context = 0, prompts = 0;
    if (!d)
        return;
    const double saved = d->sched.saved_seconds;
    for (int64_t i = 0; i < l->n; i++) {
        rows += l->work[i].n_done + l->work[i].n_branch_rows;
        if (l->item[i]->state == ENGINE_ANSWER_RUNS) {
            answers++;
            context += session_length(l->item[i]->session.s);
        } else {
            prompts += l->work[i].n_done;
        }
    }
    d->prompt_rows = prompts;
    const double seen = note_seen(s);
    seconds = seconds > seen ? seconds - seen : 0;
    if (!answers)
        return;
    sched_draft_note_step(&d->sched, rows, context / answers, seconds);
    share_time(l, d->sched.saved_seconds - saved);
    if (prompts)
        return;
    const bool plain = rows == answers;
    pthread_mutex_lock(&s->lock);
    *(plain ? &s->status.n_plain : &s->status.n_verified) += 1;
    *(plain ? &s->status.plain_seconds : &s->status.verified_seconds) += seconds;
    pthread_mutex_unlock(&s->lock);
}

/* n in the chain, `branched` in its branches. */
static void count(struct ingle_scheduler_status *c, int by, int64_t n, int64_t branched,
                  int64_t n_right)
{
    c->drafted_by[by] += n + branched;
    c->accepted_by[by] += n_right;
    c->n_drafts++;
    c->drafted_tokens += n + branched;
    c->accepted_tokens += n_right;
    for (int64_t i = 0; i < num_max(n, n_right); i++) {
        const int64_t at = num_min(i, INGLE_DRAFT_PLACES - 1);
        c->drafted_at[at]++;
        c->accepted_at[at] += i < n_right;
    }
}

void engine_drafts_told(struct ingle_scheduler *s, const struct engine_answer *a, int64_t n_tried,
                        int64_t n_right)
{
    struct engine_drafts *d = s->drafts;
    struct slot_draft *t = slot_of(s, a);
    struct ingle_usage *u = &a->r->usage;
    const double saved = d->sched.saved_seconds;
    const struct engine_branch *b = a->taken;
    const int64_t tried = b ? b->at + 1 : n_tried, right = b ? b->at : n_right; /* of the chain */
    sched_draft_note(&d->sched, &t->sched, t->proposer, tried, right,
                     t->sure ? t->confidence[t->proposer] : NULL);
    if (b)
        sched_draft_note_branch(&d->sched, &t->sched, b->kind, b->confidence, n_tried - right,
                                n_right - right);
    if (t->proposer == BY_TEXT)
        session_ngram_learn(t->text, tried, right);
    u->n_drafts++;
    u->n_drafted += a->n_chain + a->n_branch_tokens;
    u->n_accepted += n_right;
    u->draft_saved_seconds += d->sched.saved_seconds - saved;
    pthread_mutex_lock(&s->lock);
    count(&s->status, t->proposer, a->n_chain, a->n_branch_tokens, n_right);
    s->status.draft_saved_seconds = d->sched.saved_seconds;
    pthread_mutex_unlock(&s->lock);
}

/* Why most of its steps had no drafts. */
static void report_why(const struct ingle_scheduler *s, const struct engine_answer *a)
{
    struct ingle_usage *u = &a->r->usage;
    const char *why = "";
    if (u->draft_why[0] || !a->n_generated)
        return;
    if (!s->drafts) {
        why = s->e->draft_why;
    } else if (!a->r->by_network && !a->r->by_text) {
        why = "the request wants no drafts";
    } else {
        const struct slot_draft *t = slot_of(s, a);
        int64_t all = 0;
        int most = SCHED_DRAFT_NONE;
        for (int i = 0; t->begun && i < WHYS; i++) {
            all += t->n_steps[i];
            if (i != SCHED_DRAFT_ON && t->n_steps[i] > t->n_steps[most])
                most = i;
        }
        if (all && all > 2 * t->n_steps[SCHED_DRAFT_ON])
            why = sched_draft_why_name((enum sched_draft_why)most);
    }
    snprintf(u->draft_why, sizeof u->draft_why, "%.95s", why);
}

void engine_drafts_end(struct ingle_scheduler *s, const struct engine_answer *a)
{
    struct engine_drafts *d = s->drafts;
    struct err err;
    const struct session *t = a->session.s;
    const int64_t from = a->r->o.n_prompt, n = session_length(t) + session_pending(t) - a->n_drafts;
    report_why(s, a);
    if (!d)
        return;
    if (d->memory && a->n_generated && n > from)
        (void)!session_ngram_remember(d->memory, a->r->salt, session_tokens(t) + from, n - from,
                                      &err);
    slot_of(s, a)->begun = false;
}
