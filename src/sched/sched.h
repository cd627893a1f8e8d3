/*
 * sched - who is served next, and how much of a step each one gets.
 *
 * Policy only: no thread, no clock, no session.  The engine's scheduler asks and obeys.
 *
 * queue   requests that wait.  The highest priority goes first; among equals the user who
 *         has been served the fewest tokens, then the one who came first.  When the queue is
 *         full, a user with fewer places takes the youngest of the user with the most.
 * step    the rows of one step: one for every answer that runs, and a share for prompts.
 * cost    what a step takes, from the time that others took.
 * pace    how large the prompts' share may be, and whether they share the answers' steps or
 *         are computed between them.
 * flights whether answers have one step for all, or several under way together.
 * draft   who drafts, by what, and how many tokens.
 */
#ifndef INGLE_SCHED_SCHED_H
#define INGLE_SCHED_SCHED_H

#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

/* ---- the queue ---- */

struct sched_queue;
struct sched_user;

/* A request's place; it is embedded in the request and holds on to its user from
 * sched_queue_put() to sched_queue_leave(). */
struct sched_ticket {
    int64_t n_tokens; /* of the prompt */
    int priority;
    struct sched_user *user;
    struct sched_ticket *next; /* while it waits: who came after it */
    bool waits;
    bool displaced; /* another user has its place; sched_queue_displaced() gives it out */
};

MUST_CHECK ingle_status sched_queue_create(struct sched_queue **out, int64_t max_waiting,
                                           int64_t max_tokens, struct err *err);
/* Nobody holds a user any more. */
void sched_queue_free(struct sched_queue *q);

/* user: NULL is everybody.  INGLE_LIMIT: the queue is full, the text says of what.  Others may have
 * been displaced for t. */
MUST_CHECK ingle_status sched_queue_put(struct sched_queue *q, struct sched_ticket *t,
                                        const char *user, struct err *err);
/* Whose turn it is; NULL: nobody waits. */
struct sched_ticket *sched_queue_head(const struct sched_queue *q);
/* Those who wait, by arrival: the first one, then t->next. */
struct sched_ticket *sched_queue_first(const struct sched_queue *q);
/* One that has lost its place, and is to be ended; NULL: there is none. */
struct sched_ticket *sched_queue_displaced(struct sched_queue *q);
/* t waits no longer. */
void sched_queue_take(struct sched_queue *q, struct sched_ticket *t);
/* t is over: it waits no longer, and its user may be forgotten. */
void sched_queue_leave(struct sched_queue *q, struct sched_ticket *t);
/* n tokens were computed for t. */
void sched_queue_serve(struct sched_ticket *t, int64_t n);
void sched_queue_count(const struct sched_queue *q, int64_t *n_waiting, int64_t *n_tokens);

/* ---- the step ---- */

struct sched_row {
    int64_t pending;    /* tokens that wait */
    int64_t stop;       /* at most so many of them now; 0: no such limit */
    /* a prompt's next tokens that one step computes, if it computes any: a picture; 0: none */
    int64_t whole;
    bool answers;       /* a running answer: its token waits for logits */
    /* of an answer's pending tokens so many are drafted: rows for them where there is room */
    int64_t drafts;
    bool all_logits;    /* each of its rows is a row of logits */
    int priority;
    const void *user;
    int64_t at;         /* positions that are computed */
    int64_t n;          /* result: rows in this step */
    /* of branches of an answer's drafts: rows of their own where there is room; result: those */
    int64_t branch_rows;
};

struct sched_room {
    int64_t rows, logits; /* of a step at most */
    uint64_t turn;        /* grows from step to step */
};

/* Divides the room among row[0, n).  Answers get a row each (when there are more of them than
 * rows of logits: from `turn` on, so that a growing turn serves all), prompts share at most
 * prompt_rows: the higher priority first, among equals evenly by user, then evenly by
 * request. */
void sched_step_plan(struct sched_row *row, int64_t n, const struct sched_room *room,
                     int64_t prompt_rows);

/* ---- what a step takes ---- */

/* A step's rows, the sum over them of the positions that each attends to, and how many rows of
 * prompts have logits of their own, which are reported: the output matrix and a pass over the
 * vocabulary for each. */
struct sched_load {
    int64_t rows, context, logits;
};

enum { SCHED_COST_TERMS = 4 };

/* seconds = a + b * rows + c * context + d * logits, none below 0; zeroed: nothing is known.
 * Window layers are part of b, layers that keep one row of several of c. */
struct sched_cost {
    double at[SCHED_COST_TERMS];    /* a, b, c, d */
    /* Of recent steps: sums of x[i] x[k] and of x[i] y, each step in units of its time. */
    double xx[SCHED_COST_TERMS][SCHED_COST_TERMS], xy[SCHED_COST_TERMS];
    double scale[SCHED_COST_TERMS]; /* the largest recent one of each term */
    double typical;                 /* seconds */
    double error;                   /* the usual one, as a part of a step */
    int n_off;                      /* errors in a row that are too large; below 0: too small */
    int64_t n_seen;
};

double sched_cost_of(const struct sched_cost *c, struct sched_load l);
/* ... with what is not known of it on top. */
double sched_cost_most(const struct sched_cost *c, struct sched_load l);
void sched_cost_note(struct sched_cost *c, struct sched_load l, double seconds);
/* Of row[0, n) as planned: the answers, the prompts, or both. */
struct sched_load sched_load_of(const struct sched_row *row, int64_t n, bool answers,
                                bool prompts);

/* ---- the pace ---- */

/* How prompts are computed while answers run. */
enum sched_way {
    SCHED_TOGETHER, /* some rows in each step of the answers: they share what it reads */
    SCHED_BETWEEN,  /* a large step of their own, which stops for those of the answers */
    SCHED_FLYING,   /* some rows in each step of some of the answers; several are under way */
};

/* How long steps take, and what follows for the next one. */
/* While layers lie at stages and a network drafts: zeros at first. */
struct sched_flights {
    double seconds[2]; /* of an answer in a step: for all [0], under way together [1] */
    int64_t n;         /* steps since the way was changed */
    bool flies;
};
/* Whether the next steps are to be under way together. */
bool sched_flights_plan(struct sched_flights *f);
/* A step of so many answers took that long, with the rounds of their drafts. */
void sched_flights_note(struct sched_flights *f, bool flew, int64_t n_answers, double seconds);

struct sched_pace {
    double target_seconds;    /* of a step while answers run; 0: 1.8 times one of answers alone */
    /* of prompts alone while nothing is known of their steps; 0: as many as fit */
    int64_t first_rows;
    struct sched_cost mixed;  /* steps with answers */
    struct sched_cost apart;  /* steps of prompts only, without what ran between */
    int64_t least_apart, most_apart; /* rows of the smallest and of the largest of these */
    double decode;            /* what the answers of the planned step would take */
    int64_t between_rows;     /* of a large step whose pieces are short enough */
    int64_t since_answers, since_together; /* steps since one of answers alone, ... */
    int64_t since_between;                 /* ... and rows since a large step */
    bool can_stop;            /* steps of prompts can stop for those of answers */
    /* steps of some of the answers that may be under way side by side, at stages; 0: none */
    int64_t flights;
    struct sched_cost flown;  /* what each takes: from the end of the one before it to its own */
    int64_t flown_rows;       /* of prompts in the last one with some */
    int64_t since_flown;      /* steps since one without any */
};

/* Plans row[0, n).  With answers the rows are theirs and so many of prompts that the step is
 * within its time, none when the step is to be a measure; or, SCHED_BETWEEN, only prompts'; or,
 * where there are flights, SCHED_FLYING: they are planned one by one. */
enum sched_way sched_pace_plan(struct sched_pace *p, struct sched_row *row, int64_t n,
                               const struct sched_room *room);
/* The same for a step that runs between, so many seconds after the last one of the answers:
 * rows[0, n) lack the prompts that wait for it.  others: prompts have what is left of the time. */
void sched_pace_plan_between(struct sched_pace *p, struct sched_row *row, int64_t n,
                             const struct sched_room *room, double elapsed, bool others);
/* One of the steps that are under way side by side, in the same way; without an answer it has as
 * many rows of prompts as the last one.  Its time is noted when it has ended. */
void sched_pace_plan_flight(struct sched_pace *p, struct sched_row *row, int64_t n,
                            const struct sched_room *room);
void sched_pace_note_flight(struct sched_pace *p, const struct sched_row *row, int64_t n,
                            double seconds);
/* A step of these answers alone; 0: not known yet. */
double sched_pace_answers(const struct sched_pace *p, struct sched_load answers);
/* What prompts have until the next step of the answers, the last of which took that long. */
double sched_pace_slice(const struct sched_pace *p, struct sched_load answers, double took);
/* A planned step took that long, without what ran between its pieces; longest: what of those pieces
 * several took at least (one alone may be a pause of the machine), 0: it had none. */
void sched_pace_note(struct sched_pace *p, const struct sched_row *row, int64_t n, double seconds,
                     double longest);

/* ---- drafting ---- */

/*
 * Each step of answers is a choice: how many drafted tokens of which answers are verified in it, so
 * that most tokens come out in a second.  It needs what a step of so many rows takes, what a round
 * of drafting takes, and how likely drafted tokens are right; all three are learned here, from what
 * took place.
 *
 * Times are compared with those of steps that ran just before or after, so that a machine that gets
 * slower or faster changes nothing.  What is lost by steps that turn out slower than plain ones is
 * counted in an account, which is refilled by a small part of every step: when it is empty,
 * drafting waits.  Every answer has one, too: a step whose rows would put an answer further behind
 * than that is not taken, however much others would gain.  So neither all answers together nor any
 * of them is more than 3 % behind plain decoding over 256 tokens, whatever is drafted; where times
 * differ from step to step for other reasons, plain steps are measured more often, and what a step
 * is to gain must exceed what is not known of it.  The last steps with drafts are also compared
 * with the last plain ones as a whole: where they take longer than their times say, drafting must
 * gain that much more, and is charged with it.
 *
 * The order in a step: sched_draft_plan() · rounds of those that draft with a network,
 * sched_draft_note_round() for each · sched_draft_trim() · the step, sched_draft_note_step() ·
 * sched_draft_note() for each that had drafts.
 */
enum {
    SCHED_DRAFT_PROPOSERS = 4, /* their numbers are the caller's: say, 0 a network, 1 text */
    SCHED_DRAFT_DEPTH = 32,    /* drafted tokens of an answer in a step, at most */
    SCHED_DRAFT_ROWS = 56,     /* classes of rows: 1 .. 16 by themselves, then 8 an octave */
    SCHED_DRAFT_CONTEXTS = 6,  /* classes of context: below 2K, 8K, 32K, 128K, 512K, and beyond */
    SCHED_DRAFT_BINS = 10,     /* classes of confidence */
    /* first measures of a number of rows, of which no single one is believed */
    SCHED_DRAFT_FIRST = 3,
    SCHED_DRAFT_CHARGES = 16,  /* steps with drafts whose price is still corrected */
    SCHED_DRAFT_KEPT = 12,     /* steps with and without drafts that are compared as a whole */
    SCHED_DRAFT_LAST = 7,      /* steps that a step is compared with */
    SCHED_DRAFT_SHARP = 4,     /* factors of a drafter's logits that are compared */
    SCHED_DRAFT_KINDS = 4,     /* of branches; their numbers are the caller's */
    SCHED_DRAFT_BRANCH = 8,    /* tokens of a branch, at most */
};

/* Why an answer has no drafts in this step. */
enum sched_draft_why {
    SCHED_DRAFT_ON,      /* it has */
    SCHED_DRAFT_NONE,    /* nobody proposed anything for it */
    SCHED_DRAFT_MEASURE, /* a plain step, to know what it takes */
    SCHED_DRAFT_WRONG,   /* too few drafted tokens were right */
    SCHED_DRAFT_DEAR,    /* with so many rows a step would take too long for what it brings */
    SCHED_DRAFT_LOST,    /* drafting recently cost more than it brought, and waits */
    SCHED_DRAFT_FULL,    /* the step has no room for more rows */
    SCHED_DRAFT_OTHERS,  /* it would hold up answers that do not draft */
};
/* "on", "nothing to draft from", ...: for people. */
const char *sched_draft_why_name(enum sched_draft_why why);

/* How often drafted tokens were right, by depth, given that those before them were: sums that
 * fade. */
struct sched_draft_record {
    float tried[SCHED_DRAFT_DEPTH], right[SCHED_DRAFT_DEPTH];
};

/* Of one answer; zeroed: nothing is known.  Kept from one answer of a session to the next if the
 * caller likes. */
struct sched_draft_session {
    struct sched_draft_record record[SCHED_DRAFT_PROPOSERS];
    /* Of a proposer that promises nothing now: steps until it is tried again, and how long that
     * wait was at its beginning (0: it promises something). */
    int64_t wait[SCHED_DRAFT_PROPOSERS], pause[SCHED_DRAFT_PROPOSERS];
    enum sched_draft_why why;   /* as of the last plan */
    double ahead;               /* of plain decoding, in tokens, up to a bound */
    int64_t n_plan;             /* the last plan that it was in */
    /* the factor of the last round, plus 1; 0: none was asked for */
    int sharp[SCHED_DRAFT_PROPOSERS];
    int64_t n_drafted, n_right; /* in all */
};

/* What a proposer can do for an answer in this step. */
struct sched_draft_offer {
    int64_t most;            /* tokens at most; 0: nothing */
    const float *confidence; /* [most], or NULL: not known (yet).  Not a number counts as 0 */
};

/* An answer of the step.  Borrowed pointers. */
struct sched_draft_item {
    struct sched_draft_session *s;
    struct sched_draft_offer offer[SCHED_DRAFT_PROPOSERS];
    /* results */
    int proposer;  /* undefined when width is 0 */
    int64_t width; /* drafted tokens, on top of its one row */
    bool trial;    /* to learn whether it pays again */
    /* of the plan */
    int choice;    /* whose tokens it may take; -1: nobody's */
    int64_t taken;
    /* of the next token: how likely it is right after the ones before, and with all of them */
    double last, reach;
    double tokens;      /* that come out of the step, likely */
    /* given, for sched_draft_grow(): tokens of its chain and branches at most; whether they pay or
     * not */
    int64_t nodes;
    bool all_nodes;
};

/* What the step has beside the drafts. */
struct sched_draft_room {
    int64_t n_plain;    /* answers that are not among the items */
    int64_t other_rows; /* of prompts */
    int64_t context;    /* the mean position of the answers */
    int64_t most_rows;  /* drafted tokens in all, at most */
};

/* Of an engine.  Zeroed, then which proposers run a round of a network. */
struct sched_draft {
    bool network[SCHED_DRAFT_PROPOSERS];
    /* The time of steps, by class of context and rows: natural logarithms, relative to those of the
     * same context. rows: the mean of what was seen of a class.  n: how often each was compared
     * with others. */
    struct sched_draft_times {
        float log_time[SCHED_DRAFT_ROWS], rows[SCHED_DRAFT_ROWS];
        float n[SCHED_DRAFT_ROWS];
        float first[SCHED_DRAFT_ROWS][SCHED_DRAFT_FIRST]; /* as measured; moved as log_time is */
        int8_t n_first[SCHED_DRAFT_ROWS];
        int plain; /* the class of the last step without drafts */
        double log_unit; /* of the seconds that a time of 1 takes now */
        double noise, n_noise; /* of a step, as a part; comparisons that show it */
        double at_none, of_row; /* the line through all that was seen: units of no row, of each */
        /* steps without drafts behind one with them: how well both kinds are known against each
         * other */
        double turns;
        bool known;
    } times[SCHED_DRAFT_CONTEXTS];
    struct { /* the last steps, of one class of context */
        int context, n, rows[SCHED_DRAFT_LAST]; /* classes of rows */
        bool first[SCHED_DRAFT_LAST]; /* of its class: may be long for that */
        double log_seconds[SCHED_DRAFT_LAST];
        int64_t i;
    } last;
    /* in units, by tokens of the widest and of all */
    struct sched_cost round[SCHED_DRAFT_PROPOSERS];
    struct { /* the last steps without drafts [0] and with them [1], of one class of context */
        int rows[SCHED_DRAFT_KEPT]; /* classes of rows */
        double log_seconds[SCHED_DRAFT_KEPT];
        int64_t step[SCHED_DRAFT_KEPT], n;
    } kept[2];
    /* logarithm: steps with drafts take so much longer than their times say, against those
     * without */
    double lag;
    struct sched_draft_record record[SCHED_DRAFT_PROPOSERS]; /* of all answers */
    float bin_tried[SCHED_DRAFT_PROPOSERS][SCHED_DRAFT_BINS]; /* by confidence */
    float bin_right[SCHED_DRAFT_PROPOSERS][SCHED_DRAFT_BINS];
    float sharp_tried[SCHED_DRAFT_PROPOSERS][SCHED_DRAFT_SHARP]; /* by factor of the logits */
    float sharp_right[SCHED_DRAFT_PROPOSERS][SCHED_DRAFT_SHARP];
    double account; /* plain steps that may still be lost; a result */
    /* The last steps with drafts, of whose price more is known later: the account is what it would
     * be if that had been known then. */
    struct sched_draft_charge {
        int context;
        int64_t rows, plain_rows;
        double rounds; /* units */
        double right, later; /* plain steps that came in with it, and until the next one */
    } charge[SCHED_DRAFT_CHARGES];
    int64_t n_charges;
    double settled; /* the account before these */
    bool opened;
    /* as it was planned; where others are planned before it is over, who plans keeps it */
    struct sched_draft_step {
        int context;
        int64_t n_answers, n_drafts, other_rows;
        double plain, rounds; /* in units */
        double gain;          /* expected, over a plain step */
        double took;          /* plain steps */
    } step;
    /* n_seen: n_steps when the network was last said to have read */
    int64_t since_plain, n_steps, n_plans, n_seen;
    double saved_seconds; /* in all: what plain decoding would have taken longer */
    /* that a branch takes beside its rows: a copied page, and a context of its own to read */
    double branch_units[SCHED_DRAFT_CONTEXTS];
    int64_t branch_steps[SCHED_DRAFT_CONTEXTS]; /* that it is known from */
    int64_t n_branches; /* of the step */
    /* first tokens of branches, and those behind them: as said, and in truth */
    struct { float said, right; } branch[SCHED_DRAFT_KINDS][2];
};

/* Chooses proposer and width for item[0, n), and says why in each session.  An answer without
 * offers is an item, too, or counts in n_plain. */
void sched_draft_plan(struct sched_draft *d, struct sched_draft_item *item, int64_t n,
                      const struct sched_draft_room *room);
/* For an answer at a temperature above 0 that drafts with a network now: what the network's logits
 * are multiplied by before the draft is drawn (session_sample_sharpen()).  The factor whose drafts
 * are right most often, and now and then another one. */
float sched_draft_sharpness(struct sched_draft *d, struct sched_draft_session *s, int proposer);
/* After the rounds: item.width is what was drafted (at most what was planned; 0: nothing), and the
 * offer of item.proposer has the confidence, if the network gives it.  Cuts the widths to what is
 * worth verifying. */
void sched_draft_trim(struct sched_draft *d, struct sched_draft_item *item, int64_t n,
                      const struct sched_draft_room *room);
/* A round took that long: n_answers drafted, n_tokens in all, the widest of them n_deep. */
void sched_draft_note_round(struct sched_draft *d, int proposer, int64_t n_answers, int64_t n_deep,
                            int64_t n_tokens, double seconds);
/* The step took that long, with so many rows in all (answers, drafts, prompts).  Also for steps
 * without drafts: what plain ones take is known from them.  seconds 0: not measured (something else
 * ran between). */
void sched_draft_note_step(struct sched_draft *d, int64_t rows, int64_t context, double seconds);
/* The network has read what answers had computed before, outside of its rounds and on top of what
 * was noted of steps. */
void sched_draft_note_seen(struct sched_draft *d, double seconds);
/* Of the drafts of an answer in that step so many were verified and so many were right.  confidence
 * [n_tried], or NULL. */
void sched_draft_note(struct sched_draft *d, struct sched_draft_session *s, int proposer,
                      int64_t n_tried, int64_t n_right, const float *confidence);

/*
 * Trees: an answer's drafted tokens are a chain, and branches part from it, which are verified in
 * the same step.  Where the token that is drawn is not the chain's but the first one of a branch,
 * drawing goes on along that.  A branch is worth what it is likely to bring: that the chain is
 * right up to there and wrong then, and the branch right.
 */
struct sched_draft_branch {
    int64_t item;             /* whose */
    int kind;
    int64_t at;               /* tokens of the chain before it, fewer than the chain has */
    int64_t most;             /* its tokens */
    /* [most]: of the first one, if the chain's is wrong; of the next ones, if those before them are
     * right; below 0: not known */
    float confidence[SCHED_DRAFT_BRANCH];
    int64_t n;                /* result: so many are worth verifying; 0: none */
    double reach;             /* of the plan: how likely its next token is reached and right */
};
/* Behind sched_draft_trim(): the best tokens of all branches, best first, while they pay.  Where an
 * answer has no nodes left, the end of its chain gives way to what is likelier: item.width falls.
 * most: of branches, of all answers. */
void sched_draft_grow(struct sched_draft *d, struct sched_draft_item *item, int64_t n,
                      const struct sched_draft_room *room, struct sched_draft_branch *branch,
                      int64_t n_branches, int64_t most);
/* The chain was wrong where a branch of that kind might part from it, verified or not: whether its
 * first token was drawn. */
void sched_draft_note_second(struct sched_draft *d, int kind, float confidence, bool right);
/* Behind sched_draft_note() for the chain: of the branch that was taken so many tokens were tried,
 * and right (1 at least). */
void sched_draft_note_branch(struct sched_draft *d, struct sched_draft_session *s, int kind,
                             const float *confidence, int64_t n_tried, int64_t n_right);

#endif
