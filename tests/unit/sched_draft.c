/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller of drafting on machines whose costs are known, in simulated time: what it loses at
 * most where drafting does not pay, and what it gains where it does, against the best fixed width.
 */
#include "unit/unit.h"

#include "sched/sched.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CLIENTS = 16, TOKENS = 512, MOST_TOKENS = 1024, WINDOW = 256, NETWORK = 0, TEXT = 1 };
/* Bounds hold for every set of random numbers.  Each trip of a test is made with one of SETS, and
 * of those of many clients one of five is; SCHED_DRAFT_SETS=20 makes all of them with as many sets,
 * SCHED_DRAFT_FIRST=1000 from the 1000th on. */
enum { SETS = 3, APART = 1000003, MANY_CLIENTS = 8 };

/* Seconds of a step by rows. */
typedef double curve(int64_t rows);

static double dense(int64_t n) /* bound by reading weights */
{
    return 0.05 * (1 + 0.05 * (double)(n - 1));
}

static double tiles(int64_t n) /* in tiles of four rows, the second row being dear */
{
    return n == 1 ? 0.02 : 0.02 * (1.3 + 0.25 * (double)((n - 1) / 4));
}

static double experts(int64_t n) /* 8 of 128 a row */
{
    return 0.03 * (0.3 + 0.7 * 16 * (1 - pow(1 - 8.0 / 128, (double)n)));
}

static double rows_cost(int64_t n) /* nothing is shared */
{
    return 0.01 * (0.1 + 0.9 * (double)n);
}

struct world {
    curve *cost;
    int n_clients;
    double right[2];     /* drafted tokens that are right, in turn for `turn` tokens each */
    int64_t turn;
    int64_t tokens;      /* of an answer; 0: TOKENS */
    int64_t most;        /* tokens that the network drafts */
    double base, deep;   /* its round, of a step of one row */
    bool text;           /* the drafts are text's: no round, sometimes there */
    int without;         /* so many of the clients have nothing to draft, */
    int bad;             /* and of so many all drafts are wrong; */
    int64_t until;       /* of everybody's those from that token on; 0: none */
    bool head;           /* tells how likely tokens are, one of two being easy */
    int64_t nodes;       /* of trees; 0: chains */
    double second;       /* the second guess is right so often where the first is not */
    double jitter;       /* times are told with this standard deviation, as a part; */
    double pauses;       /* this part of them 2 to 6 times as long */
    double drift;        /* and all of them up to so much longer for a while; */
    double cold;         /* the first one of so many rows up to so much longer */
    bool warm[64];       /* by rows */
    /* so much of a step of one row is what the network reads of each step without drafts */
    double seen;
    uint64_t x;
};

static double dice(struct world *w)
{
    w->x = w->x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(w->x >> 11) * 0x1p-53;
}

static double normal(struct world *w)
{
    return sqrt(-2 * log(1 - dice(w))) * cos(6.283185307179586 * dice(w));
}

static bool by_hand(void)
{
    return getenv("SCHED_DRAFT_SETS");
}

static int n_sets(void)
{
    const char *n = getenv("SCHED_DRAFT_SETS");
    return n ? atoi(n) : SETS;
}

/* The random numbers of a set, of a trip's own. */
static uint64_t numbers(uint64_t x, int set)
{
    const char *first = getenv("SCHED_DRAFT_FIRST");
    return x + (uint64_t)((first ? atoi(first) : 0) + set) * APART;
}

/* Whether the next trip of so many clients is made with that set. */
static bool taken(int n_clients, int set)
{
    static int n_few, n_many;
    static bool take;
    static int of_set;
    if (by_hand())
        return true;
    if (!set) {
        const int every = UNIT_ASAN ? 5 : 1, turn = n_clients < MANY_CLIENTS ? n_few++ : n_many++;
        const int part = n_clients < MANY_CLIENTS ? every : 5 * every;
        take = turn % part == 0;
        of_set = turn / part % SETS;
    }
    return take && set == of_set;
}

/* As it would be measured. */
static double measured(struct world *w, double seconds, double now)
{
    seconds *= fmax(0.3, 1 + w->jitter * normal(w));
    if (dice(w) < w->pauses)
        seconds *= 2 + 4 * dice(w);
    return seconds * (1 + w->drift * (0.5 + 0.5 * sin(now / 3)));
}

struct client {
    struct sched_draft_session s;
    int64_t n; /* tokens */
    double at[MOST_TOKENS + SCHED_DRAFT_DEPTH + 1];
    float confidence[SCHED_DRAFT_DEPTH];
    bool right[SCHED_DRAFT_DEPTH];
};

/* What would be drafted next, and what of it is right. */
static void imagine(struct world *w, struct client *c, int i)
{
    const bool wrong = i < w->bad || (w->until && c->n >= w->until);
    const double p = wrong ? 0 : w->right[w->turn ? c->n / w->turn % 2 : 0];
    for (int j = 0; j < SCHED_DRAFT_DEPTH; j++) {
        double q = p;
        if (w->head) /* as right as p on the whole */
            q = dice(w) < 0.5 ? p + (1 - p) * 0.8 : p - (1 - p) * 0.8 > 0 ? p - (1 - p) * 0.8 : 0;
        c->confidence[j] = (float)(0.3 + 0.7 * q); /* a head that promises too much */
        c->right[j] = dice(w) < q;
    }
}

struct result {
    double speed;   /* tokens a second of all, a plain engine being 1 */
    double slowest; /* the longest time for 256 tokens of each answer, of a plain engine's; */
    double one;     /* the same of a single answer */
};

static double round_seconds(const struct world *w, int64_t deep)
{
    return deep ? w->cost(1) * (w->base + w->deep * (double)deep) : 0;
}

/* A branch of one token for each of the chains' tokens; rows of those that pay. */
static int64_t grow(struct world *w, struct sched_draft *d, struct sched_draft_item *item,
                    const struct sched_draft_room *room,
                    int64_t beside[MAX_CLIENTS][SCHED_DRAFT_DEPTH])
{
    static struct sched_draft_branch branch[MAX_CLIENTS * SCHED_DRAFT_DEPTH];
    int64_t n = 0, rows = 0, nodes[MAX_CLIENTS] = {0};
    for (int i = 0; i < w->n_clients && w->nodes; i++) {
        item[i].nodes = w->nodes;
        for (int64_t j = 0; j < item[i].width; j++)
            branch[n++] =
                (struct sched_draft_branch){.item = i, .at = j, .most = 1, .confidence = {-1}};
    }
    if (n)
        sched_draft_grow(d, item, w->n_clients, room, branch, n, 8);
    for (int64_t k = 0; k < n; k++) {
        assert_true(!branch[k].n || branch[k].at < item[branch[k].item].width);
        beside[branch[k].item][branch[k].at] = branch[k].n;
        nodes[branch[k].item] += branch[k].n;
        rows += branch[k].n;
    }
    for (int i = 0; i < w->n_clients && w->nodes; i++)
        assert_true(!nodes[i] || nodes[i] + item[i].width <= w->nodes);
    assert_true(rows <= 8);
    return rows;
}

/* The chain is wrong behind n tokens: whether a branch is right. */
static bool turns(struct world *w, struct sched_draft *d, struct client *c, int64_t beside)
{
    const bool right = dice(w) < w->second;
    sched_draft_note_second(d, 0, -1, right);
    if (right && beside)
        sched_draft_note_branch(d, &c->s, 0, (const float[]){-1}, 1, 1);
    return right && beside;
}

static void step(struct world *w, struct sched_draft *d, struct client *c,
                 struct sched_draft_item *item, double *now)
{
    int64_t beside[MAX_CLIENTS][SCHED_DRAFT_DEPTH] = {{0}};
    const struct sched_draft_room room = {.context = 500, .most_rows = 256};
    const int kind = w->text ? TEXT : NETWORK;
    int64_t rows = w->n_clients, deep = 0, drafted = 0, n_drafting = 0;
    for (int i = 0; i < w->n_clients; i++) {
        imagine(w, &c[i], i);
        item[i] = (struct sched_draft_item){.s = &c[i].s};
        if (i >= w->without && (!w->text || dice(w) < 0.5))
            item[i].offer[kind].most = w->most;
        if (w->text)
            item[i].offer[kind].confidence = c[i].confidence;
    }
    sched_draft_plan(d, item, w->n_clients, &room);
    for (int i = 0; i < w->n_clients; i++) {
        assert_true(item[i].width >= 0 && item[i].width <= item[i].offer[kind].most);
        assert_int_equal(item[i].width > 0, c[i].s.why == SCHED_DRAFT_ON);
        if (item[i].width) {
            assert_int_equal(item[i].proposer, kind);
            deep = item[i].width > deep ? item[i].width : deep;
            drafted += item[i].width;
            n_drafting++;
        }
    }
    if (deep && !w->text) {
        const double seconds = round_seconds(w, deep);
        sched_draft_note_round(d, kind, n_drafting, deep, drafted, measured(w, seconds, *now));
        *now += seconds;
        for (int i = 0; i < w->n_clients && w->head; i++)
            item[i].offer[kind].confidence = c[i].confidence;
        sched_draft_trim(d, item, w->n_clients, &room);
    }
    rows += grow(w, d, item, &room, beside);
    for (int i = 0; i < w->n_clients; i++)
        rows += item[i].width;
    const double seconds = w->cost(rows);
    *now += seconds;
    double told = measured(w, seconds, *now);
    if (w->cold > 0 && rows < 64 && !w->warm[rows]) {
        w->warm[rows] = true;
        told *= 1 + w->cold * dice(w);
    }
    sched_draft_note_step(d, rows, 500, told);
    if (w->seen > 0 && rows == w->n_clients) {
        *now += w->seen * w->cost(1);
        sched_draft_note_seen(d, w->seen * w->cost(1));
    }
    for (int i = 0; i < w->n_clients; i++) {
        int64_t n = 0;
        while (n < item[i].width && c[i].right[n])
            n++;
        if (item[i].width)
            sched_draft_note(d, &c[i].s, kind, item[i].width, n,
                             w->text || w->head ? c[i].confidence : NULL);
        if (w->nodes && n < item[i].width)
            n += turns(w, d, &c[i], beside[i][n]);
        for (int64_t j = 0; j <= n && c[i].n < MOST_TOKENS; j++)
            c[i].at[++c[i].n] = *now;
    }
}

/* All clients write so many tokens; it ends when the first has them. */
static struct result run(struct world *w)
{
    struct sched_draft d = {.network[NETWORK] = true};
    struct client *c = calloc((size_t)w->n_clients, sizeof *c);
    struct sched_draft_item item[MAX_CLIENTS];
    struct result r = {0, 0, 0};
    static double at[MOST_TOKENS * MAX_CLIENTS * 2]; /* when the n-th token of all came */
    int64_t n_all = 0;
    double now = 0, n_tokens = 0;
    bool over = false;
    const double plain = w->cost(w->n_clients);
    while (!over) {
        step(w, &d, c, item, &now);
        int64_t sum = 0;
        for (int i = 0; i < w->n_clients; i++) {
            over |= c[i].n >= (w->tokens ? w->tokens : TOKENS);
            sum += c[i].n;
        }
        while (n_all < sum)
            at[++n_all] = now;
    }
    for (int i = 0; i < w->n_clients; i++) {
        n_tokens += (double)c[i].n;
        for (int64_t k = 0; k + WINDOW <= c[i].n; k++)
            r.one = fmax(r.one, (c[i].at[k + WINDOW] - c[i].at[k]) / (WINDOW * plain));
    }
    const int64_t window = WINDOW * w->n_clients;
    for (int64_t k = 0; k + window <= n_all; k++)
        r.slowest = fmax(r.slowest, (at[k + window] - at[k]) / (WINDOW * plain));
    r.speed = n_tokens / now * plain / w->n_clients;
    free(c);
    return r;
}

/* The same with a fixed width, all answers drafting; without a head. */
static double best_fixed(const struct world *w, double p)
{
    double best = 1;
    for (int64_t n = 1; n <= w->most; n++) {
        double tokens = 1;
        for (int64_t j = 1; j <= n; j++)
            tokens += pow(p, (double)j);
        double time = w->cost(w->n_clients * (n + 1)) + round_seconds(w, n);
        if (w->text) { /* half of the time there is nothing to draft */
            tokens = (1 + tokens) / 2;
            time = w->n_clients == 1 ? (time - round_seconds(w, n) + w->cost(1)) / 2
                                     : w->cost(w->n_clients + w->n_clients * n / 2);
        }
        best = fmax(best, tokens * w->cost(w->n_clients) / time);
    }
    return best;
}

static curve *const CURVES[] = {dense, tiles, experts, rows_cost};
static const char *const CURVE_NAMES[] = {"dense", "tiles", "experts", "rows"};
static const double RIGHT[] = {0, 0.25, 0.5, 0.75, 0.9};
static const int CLIENTS[] = {1, 2, 8, 16};

/* What a set of trips came to. */
struct score {
    double worst, one; /* the longest time for 256 tokens: of all answers, of one */
    double mean, least; /* speed, the best fixed width being 1, where that gains anything */
    int n;
};

static void make(struct score *score, const char *what, struct world w)
{
    const struct result r = run(&w);
    const double best = w.turn || w.bad || w.until || w.without ? 1 : best_fixed(&w, w.right[0]);
    if (getenv("SCHED_DRAFT_SHOW"))
        printf("%s: %d clients, %.2f/%.2f right: speed %.3f (best width %.3f), slowest %.4f, one "
               "%.3f\n",
               what, w.n_clients, w.right[0], w.right[1], r.speed, best, r.slowest, r.one);
    score->worst = fmax(score->worst, r.slowest);
    score->one = fmax(score->one, r.one);
    if (best < 1.1)
        return;
    score->mean = (score->mean * score->n + r.speed / best) / (score->n + 1);
    score->least = score->n++ ? fmin(score->least, r.speed / best) : r.speed / best;
}

static void trip(struct score *score, const char *what, struct world w)
{
    const uint64_t x = w.x;
    for (int set = 0; set < n_sets(); set++) {
        w.x = numbers(x, set);
        if (taken(w.n_clients, set))
            make(score, what, w);
    }
}

static void near(struct score s, double worst, double one, double mean, double least)
{
    /* of all trips */
    if (s.worst > worst || s.one > one || (!UNIT_ASAN && s.n && (s.mean < mean || s.least < least)))
        fail_msg("256 tokens took %.4f of a plain engine's time (at most %.3f), of one answer %.4f "
                 "(%.3f); speed of the best fixed "
                 "width's: %.3f in the mean (at least %.2f), %.3f at least (%.2f)",
                 s.worst, worst, s.one, one, s.mean, mean, s.least, least);
}

static struct score grid(struct world w)
{
    struct score s = {0, 0, 0, 0, 0};
    for (size_t k = 0; k < 4; k++)
        for (size_t i = 0; i < 5; i++)
            for (size_t j = 0; j < 4; j++) {
                w.cost = CURVES[k];
                w.n_clients = CLIENTS[j];
                w.right[0] = w.right[1] = RIGHT[i];
                w.x = 1 + k * 100 + i * 10 + j;
                trip(&s, CURVE_NAMES[k], w);
            }
    return s;
}

static void test_never_far_behind_and_near_the_best_width(void **state)
{
    (void)state;
    near(grid((struct world){.most = 15, .base = 0.08, .deep = 0.01}), 1.03, 1.03, 0.88, 0.5);
}

static void test_on_a_busy_machine(void **state)
{
    (void)state;
    near(grid((struct world){
             .most = 15, .base = 0.08, .deep = 0.01, .jitter = 0.15, .pauses = 0.05, .drift = 1}),
         1.03, 1.045, 0.78, 0.3);
}

static void test_a_dear_drafter(void **state)
{
    (void)state;
    near(grid((struct world){.most = 7, .base = 0.4, .deep = 0.1}), 1.03, 1.03, 0.83, 0.5);
}

/* Steps of 1 to 8 rows as measured on two cores with AVX-512: of Gemma 31B, and of 26B-A4B, whose
 * rows have experts of their own; and rounds of their DFlash drafters. */
static double gemma_31b(int64_t n)
{
    static const double at[] = {1, 1.02, 1.04, 1.06, 1.13, 1.2, 1.3, 1.4};
    return 0.38 * (n <= 8 ? at[n - 1] : 1.4 + 0.13 * (double)(n - 8));
}

static double gemma_a4b(int64_t n)
{
    static const double at[] = {1, 1.11, 1.3, 1.5, 1.75, 2, 2.24, 2.47};
    return 0.04 * (n <= 8 ? at[n - 1] : 2.47 + 0.27 * (double)(n - 8));
}

static void test_measured_shapes(void **state)
{
    (void)state;
    static const struct {
        curve *cost;
        double base;
    } shape[] = {{gemma_31b, 0.15}, {gemma_a4b, 0.4}};
    struct score s = {0, 0, 0, 0, 0};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < 5; i++)
            for (size_t j = 0; j < 4; j++) {
                const struct world w = {.cost = shape[k].cost,
                                        .n_clients = CLIENTS[j],
                                        .right = {RIGHT[i], RIGHT[i]},
                                        .most = 15,
                                        .base = shape[k].base,
                                        .deep = 0.004,
                                        .x = 1 + k * 100 + i * 10 + j};
                trip(&s, k ? "26B-A4B" : "31B", w);
            }
    near(s, 1.03, 1.03, 0.88, 0.7);
}

/* The same world with chains and with trees: never far behind plain decoding, and as a whole no
 * slower than chains. */
static void test_trees(void **state)
{
    (void)state;
    static curve *const cost[] = {dense, gemma_31b, gemma_a4b};
    static const double second[] = {0, 0.3, 0.6};
    double log_sum[3] = {0}, worst = 0, n[3] = {0};
    for (size_t at = 0; at < 3 * 5 * 3 * 3; at++) {
        const size_t k = at / 45, i = at / 9 % 5, j = at / 3 % 3, h = at % 3;
        for (int set = 0; set < n_sets(); set++) {
            struct world w = {.cost = cost[k],
                              .n_clients = CLIENTS[j],
                              .right = {RIGHT[i], RIGHT[i]},
                              .most = 15,
                              .base = 0.15,
                              .deep = 0.004,
                              .head = true,
                              .second = second[h],
                              .x = numbers((uint64_t)(1 + k * 100 + i * 10 + j), set)};
            const uint64_t x = w.x;
            if (!taken(w.n_clients, set))
                continue;
            const struct result chain = run(&w);
            w.x = x;
            w.nodes = 16;
            const struct result tree = run(&w);
            worst = fmax(worst, tree.slowest);
            log_sum[h] += log(tree.speed / chain.speed);
            n[h]++;
            if (getenv("SCHED_DRAFT_SHOW"))
                printf("tree %zu: %d clients, %.2f right, second %.1f: speed %.3f, chain %.3f, "
                       "slowest %.4f\n",
                       k, w.n_clients, w.right[0], w.second, tree.speed, chain.speed, tree.slowest);
        }
    }
    if (getenv("SCHED_DRAFT_SHOW"))
        printf("trees over chains: %.3f %.3f %.3f, slowest %.4f\n", exp(log_sum[0] / n[0]),
               exp(log_sum[1] / n[1]), exp(log_sum[2] / n[2]), worst);
    assert_true(worst < 1.035);
    assert_true(UNIT_ASAN ||
                (log_sum[0] > -0.02 * n[0] && log_sum[1] > -0.01 * n[1] && log_sum[2] > 0));
}

/* Where a chain is least sure a branch parts from it; one that has no nodes left gives up its
 * end. */
static void test_where_branches_part(void **state)
{
    (void)state;
    static const float sure[] = {0.95f, 0.3f, 0.95f, 0.9f, 0.5f};
    struct sched_draft d = {.network[NETWORK] = true};
    struct sched_draft_session s = {.why = SCHED_DRAFT_ON};
    const struct sched_draft_room room = {.context = 500, .most_rows = 7};
    for (int64_t nodes = 1; nodes <= 9; nodes++) {
        struct sched_draft_item item = {.s = &s,
                                        .offer[NETWORK] = {5, sure},
                                        .proposer = NETWORK,
                                        .width = 5,
                                        .nodes = nodes,
                                        .all_nodes = true};
        struct sched_draft_branch branch[5];
        int64_t n = 0;
        for (int64_t j = 0; j < 5; j++)
            branch[j] = (struct sched_draft_branch){
                .item = 0, .kind = 1, .at = j, .most = 2, .confidence = {0.6f, 0.5f}};
        sched_draft_grow(&d, &item, 1, &room, branch, 5, nodes < 8 ? 8 : 1);
        for (int64_t j = 0; j < 5; j++) {
            assert_true(!branch[j].n || j < item.width);
            n += branch[j].n;
        }
        assert_true(n + item.width <= (nodes > 5 ? nodes : 5) && n + item.width <= room.most_rows);
        assert_int_equal(branch[1].n > 0, nodes > 1);
        if (nodes > 2 && nodes <= 5)
            assert_int_equal(n + item.width, 5); /* the chain's end went for what is likelier */
        if (nodes == 9)
            assert_int_equal(n, branch[1].n); /* one branch alone */
    }
}

static void test_text_that_changes(void **state)
{
    (void)state;
    struct score s = {0, 0, 0, 0, 0};
    for (size_t k = 0; k < 4; k++)
        for (size_t j = 0; j < 4; j++)
            for (int64_t turn = 64; turn <= 1024; turn *= 4) {
                struct world w = {.cost = CURVES[k],
                                  .n_clients = CLIENTS[j],
                                  .right = {0.9, 0},
                                  .turn = turn,
                                  .most = 15,
                                  .base = 0.08,
                                  .deep = 0.01,
                                  .x = k * 7 + j};
                trip(&s, CURVE_NAMES[k], w);
            }
    near(s, 1.03, 1.035, 0, 0);
}

/* Drafts that were right are wrong from one token on. */
static void test_text_that_goes_wrong(void **state)
{
    (void)state;
    struct score s = {0, 0, 0, 0, 0};
    for (size_t k = 0; k < 4; k++)
        for (size_t j = 0; j < 4; j++) {
            struct world w = {.cost = CURVES[k],
                              .n_clients = CLIENTS[j],
                              .right = {0.9, 0.9},
                              .until = 100 + 200 * (int64_t)((k + j) % 3),
                              .most = 15,
                              .base = 0.4,
                              .deep = 0.004,
                              .x = k * 7 + j};
            trip(&s, CURVE_NAMES[k], w);
        }
    near(s, 1.03, 1.035, 0, 0);
}

/* What the network reads meanwhile does not keep it from being tried again. */
static void test_a_network_that_reads_much(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct world w = {.cost = CURVES[k],
                          .n_clients = 1,
                          .right = {0, 0.9},
                          .turn = 512,
                          .tokens = MOST_TOKENS,
                          .most = 7,
                          .base = 0.1,
                          .deep = 0.02,
                          .seen = 0.02,
                          .x = k};
        const struct result r = run(&w);
        if (r.speed < 1.2 || r.slowest > 1.05)
            fail_msg("%s: speed %g, 256 tokens took %g of a plain engine's time", CURVE_NAMES[k],
                     r.speed, r.slowest);
    }
}

/* One answer has no drafts, or none that is right: the others do not make it wait. */
static void test_one_among_others(void **state)
{
    (void)state;
    static const double right[] = {0.5, 0.9};
    struct score s = {0, 0, 0, 0, 0};
    for (size_t k = 0; k < 4; k++)
        for (int n = 2; n <= 16; n *= 2)
            for (int what = n == 4 ? 4 : 0; what < 4; what++) {
                struct world w = {.cost = CURVES[k],
                                  .n_clients = n,
                                  .right = {right[what / 2], 0},
                                  .most = 7,
                                  .base = 0.08,
                                  .deep = 0.01,
                                  .without = what % 2,
                                  .bad = !(what % 2),
                                  .x = k};
                trip(&s, CURVE_NAMES[k], w);
            }
    near(s, 1.03, 1.03, 0, 0);
}

/* An answer of a new engine, of 64 tokens: what it gains of what the best width would, on machines
 * whose steps differ as much, and whose first step of each number of rows may be several times as
 * long. */
static void test_short_answers(void **state)
{
    (void)state;
    static const struct { double jitter, pauses, cold, least;
    } machine[] = {{0.02, 0, 0, 0.84}, {0.1, 0.02, 0, 0.79}, {0.3, 0.05, 0, 0.72},
                   {0.02, 0, 6, 0.75}, {0.1, 0.02, 6, 0.72}, {0.3, 0.05, 6, 0.7}};
    enum { SHORT = 64, SEEDS = UNIT_ASAN ? 3 : 20 };
    static curve *const cost[] = {dense, gemma_31b, gemma_a4b};
    for (size_t m = 0; m < 6; m++) {
        double sum = 0;
        for (size_t k = 0; k < 3; k++)
            for (uint64_t i = 0; i < SEEDS; i++) {
                struct world w = {.cost = cost[k],
                                  .n_clients = 1,
                                  .right = {0.75, 0.75},
                                  .most = 15,
                                  .base = k == 2 ? 0.4 : 0.15,
                                  .deep = 0.004,
                                  .jitter = machine[m].jitter,
                                  .pauses = machine[m].pauses,
                                  .cold = machine[m].cold,
                                  .x = 1 + i * 1001};
                struct sched_draft d = {.network[NETWORK] = true};
                struct client *c = calloc(1, sizeof *c);
                struct sched_draft_item item[MAX_CLIENTS];
                double now = 0;
                while (c->n < SHORT)
                    step(&w, &d, c, item, &now);
                sum += (double)c->n * w.cost(1) / now / best_fixed(&w, 0.75);
                free(c);
            }
        const double part = sum / (3 * SEEDS);
        if (getenv("SCHED_DRAFT_SHOW"))
            printf("answers of 64 tokens, times that differ by %.2f, cold %.0f: %.3f of the best "
                   "width\n",
                   machine[m].jitter, machine[m].cold, part);
        if (!UNIT_ASAN && part < machine[m].least)
            fail_msg("times that differ by %.2f, cold %.0f: %.3f of the best width, at least %.2f",
                     machine[m].jitter, machine[m].cold, part, machine[m].least);
    }
}

/* The worst of a busy machine: drafts that are never right, and those that change. */
static void test_wrong_on_a_busy_machine(void **state)
{
    (void)state;
    struct score s = {0, 0, 0, 0, 0};
    for (size_t k = 0; k < 4; k++)
        for (size_t j = 0; j < 4; j++)
            for (int what = j % 2 ? 2 : 0; what < (j % 2 ? 3 : 2); what++) {
                struct world w = {.cost = CURVES[k],
                                  .n_clients = CLIENTS[j],
                                  .right = {what ? 0.9 : 0, what ? 0.9 : 0},
                                  .until = 200 * what,
                                  .most = 15,
                                  .base = 0.08,
                                  .deep = 0.01,
                                  .jitter = 0.15,
                                  .pauses = 0.05,
                                  .drift = 1,
                                  .x = k * 7 + j};
                trip(&s, CURVE_NAMES[k], w);
            }
    near(s, 1.03, 1.045, 0, 0);
}

static enum sched_draft_why why(struct sched_draft *d, struct sched_draft_session *s, int64_t most,
                                int64_t room)
{
    struct sched_draft_item item = {.s = s, .offer[NETWORK].most = most};
    sched_draft_plan(d, &item, 1, &(struct sched_draft_room){.most_rows = room});
    return s->why;
}

static void test_reasons(void **state)
{
    (void)state;
    struct sched_draft d = {.network[NETWORK] = true};
    struct sched_draft_session s = {0};
    assert_int_equal(why(&d, &s, 0, 8), SCHED_DRAFT_NONE);
    assert_int_equal(why(&d, &s, 7, 8), SCHED_DRAFT_MEASURE);
    sched_draft_note_step(&d, 1, 0, dense(1));
    assert_int_equal(why(&d, &s, 7, 8), SCHED_DRAFT_ON);
    assert_int_equal(why(&d, &s, 7, 0), SCHED_DRAFT_FULL);
    bool seen[SCHED_DRAFT_OTHERS + 1] = {0};
    for (int i = 0; i < 400; i++) { /* never right */
        struct sched_draft_item item = {.s = &s, .offer[NETWORK].most = 7};
        sched_draft_plan(&d, &item, 1, &(struct sched_draft_room){.most_rows = 8});
        seen[s.why] = true;
        if (item.width)
            sched_draft_note_round(&d, NETWORK, 1, item.width, item.width, 0.01);
        sched_draft_note_step(&d, 1 + item.width, 0, dense(1 + item.width));
        sched_draft_note(&d, &s, NETWORK, item.width, 0, NULL);
    }
    assert_true(seen[SCHED_DRAFT_ON] && seen[SCHED_DRAFT_WRONG]);
    assert_true(s.n_drafted > 0 && s.n_drafted < 40 && s.n_right == 0);
    assert_true(d.saved_seconds < 0 && d.saved_seconds > -8 * dense(1));
    d = (struct sched_draft){.network[NETWORK] = true};
    s = (struct sched_draft_session){0};
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 400; i++) { /* always right, for nothing */
        struct sched_draft_item item = {.s = &s, .offer[NETWORK].most = 7};
        sched_draft_plan(&d, &item, 1, &(struct sched_draft_room){.most_rows = 8});
        seen[s.why] = true;
        if (item.width)
            sched_draft_note_round(&d, NETWORK, 1, item.width, item.width, 0.01);
        sched_draft_note_step(&d, 1 + item.width, 0, rows_cost(1 + item.width));
        sched_draft_note(&d, &s, NETWORK, item.width, item.width, NULL);
    }
    assert_true(seen[SCHED_DRAFT_DEAR]);
    for (int k = 0; k <= SCHED_DRAFT_OTHERS; k++)
        assert_true(strlen(sched_draft_why_name((enum sched_draft_why)k)) > 1);
}

/* What a grammar forces costs no round and is right: all of it is verified. */
static void test_what_is_certain(void **state)
{
    (void)state;
    enum { FORCED = 2, N = 12 };
    struct sched_draft d = {.network[NETWORK] = true};
    struct sched_draft_session s = {0};
    float sure[N];
    int64_t last = 0;
    for (int i = 0; i < N; i++)
        sure[i] = 1;
    for (int i = 0; i < 60; i++) {
        struct sched_draft_item item = {
            .s = &s, .offer[NETWORK].most = 7, .offer[FORCED] = {N, sure}};
        sched_draft_plan(&d, &item, 1, &(struct sched_draft_room){.most_rows = 31});
        assert_true(!item.width || item.proposer == FORCED);
        sched_draft_note_step(&d, 1 + item.width, 0, dense(1 + item.width));
        sched_draft_note(&d, &s, FORCED, item.width, item.width, sure);
        last = item.width ? item.width : last;
    }
    assert_int_equal(last, N);
}

/* The factor whose drafts are right most often is taken most of the time, whichever it is. */
static void test_the_best_sharpness(void **state)
{
    (void)state;
    static const float BEST[] = {1, 1.5f, 2.5f, 4};
    for (int k = 0; k < 4; k++) {
        struct sched_draft d = {.network[NETWORK] = true};
        struct sched_draft_session s = {0};
        struct world w = {.x = (uint64_t)k};
        int taken = 0;
        for (int i = 0; i < 3000; i++) {
            const float by = sched_draft_sharpness(&d, &s, NETWORK);
            int64_t right = 0;
            while (right < 7 && dice(&w) < (by == BEST[k] ? 0.85 : 0.77))
                right++;
            taken += i >= 1000 && by == BEST[k];
            sched_draft_note(&d, &s, NETWORK, 7, right, NULL);
        }
        if (taken < 1600)
            fail_msg("factor %g: taken %d times of 2000", (double)BEST[k], taken);
    }
}

static void test_odd_input(void **state)
{
    (void)state;
    static const float nan_first[] = {NAN, 2, -1, INFINITY};
    struct sched_draft d = {.network[NETWORK] = true};
    struct sched_draft_session s[3] = {{.n_drafted = 0}};
    for (int i = 0; i < 300; i++) {
        struct sched_draft_item item[3] = {{.s = &s[0], .offer[NETWORK].most = 1000},
                                           {.s = &s[1], .offer[TEXT] = {4, nan_first}},
                                           {.s = &s[2], .offer[NETWORK].most = -5}};
        const struct sched_draft_room room = {.n_plain = i % 3,
                                              .other_rows = i % 2 ? 500 : 0,
                                              .context = (int64_t)i << i % 40,
                                              .most_rows = i % 50 - 5};
        sched_draft_plan(&d, item, i % 4, &room);
        int64_t all = 0;
        for (int k = 0; k < i % 4; k++) {
            assert_true(item[k].width >= 0 && item[k].width <= SCHED_DRAFT_DEPTH);
            all += item[k].width;
        }
        assert_true(all <= (room.most_rows > 0 ? room.most_rows : 0));
        sched_draft_trim(&d, item, i % 4, &room);
        sched_draft_note_round(&d, NETWORK, 1, all, all, i % 5 ? 0.01 : (double)NAN);
        sched_draft_note_step(&d, i % 7 ? i % 4 + room.n_plain + room.other_rows + all : 0,
                              room.context,
                              i % 11  ? dense(4)
                              : i % 2 ? -1
                                      : (double)INFINITY);
        for (int k = 0; k < i % 4; k++)
            sched_draft_note(&d, &s[k], k == 1 ? TEXT : NETWORK, item[k].width, item[k].width,
                             k == 1 ? nan_first : NULL);
        assert_true(d.account < 100 && d.account > -100);
    }
}

static void test_with_confidence(void **state)
{
    (void)state;
    near(grid((struct world){.most = 7, .base = 0.08, .deep = 0.01, .head = true}), 1.03, 1.03,
         0.93, 0.6);
    near(grid((struct world){.most = 15, .text = true, .head = true}), 1.03, 1.03, 0.9, 0.6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_far_behind_and_near_the_best_width),
        cmocka_unit_test(test_on_a_busy_machine),
        cmocka_unit_test(test_a_dear_drafter),
        cmocka_unit_test(test_trees),
        cmocka_unit_test(test_where_branches_part),
        cmocka_unit_test(test_measured_shapes),
        cmocka_unit_test(test_text_that_changes),
        cmocka_unit_test(test_with_confidence),
        cmocka_unit_test(test_text_that_goes_wrong),
        cmocka_unit_test(test_one_among_others),
        cmocka_unit_test(test_a_network_that_reads_much),
        cmocka_unit_test(test_wrong_on_a_busy_machine),
        cmocka_unit_test(test_short_answers),
        cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_what_is_certain),
        cmocka_unit_test(test_the_best_sharpness),
        cmocka_unit_test(test_odd_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
