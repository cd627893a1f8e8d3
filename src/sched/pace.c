/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pace - how much of prompts is computed while answers run, and how.
 *
 * Together: rows of prompts in the answers' step.  As long as a step is bound by reading
 * weights they cost little; but few rows cannot share experts, nor keys and values of a long
 * past.  Between: large steps of prompts that stop for the answers' steps.  Whichever computes
 * more rows in a second, by what is known of both; now and then the other one is tried.  Where
 * steps of some of the answers each are under way side by side, together means with these: more
 * processes compute at a time.
 */
#include "sched/sched.h"

#include "base/num.h"

/* Steps between two of answers alone; when the other way is tried: after so many large steps,
 * after the rows of so many; and the rows that a large step begins with. */
enum { MEASURE_EVERY = 64, TRY_TOGETHER = 16, TRY_BETWEEN = 32, FIRST_ROWS = 16,
       MOST_ROWS = 1 << 16 };

/* A stream may wait for its next token three times as long as in a step of answers only.  A step is
 * planned for less: it may take half as long again as is usual, or stop late by a piece. */
static const double TARGET = 1.8;

/* What a step of prompts only should take, and the rows below which it would waste time.  One that
 * takes longer than the last of these is in pieces, if it can be: short prompts that come meanwhile
 * are read between them. */
static const double PROMPT_SECONDS = 0.5, PIECES_SECONDS = 0.2;
enum { PROMPT_ROWS = 128 };

/* ... unless what a step takes however few rows it has, reading weights, would be more than this
 * part of it, as with many experts: then more rows share it. */
static const double IDLE_PART = 0.125;

/* A step of prompts is given up and begun again when one of them is cancelled, and prompts
 * that come meanwhile share answers' steps: it may take longer. */
static const double BETWEEN_SECONDS = 1;

/* A stop is late by a piece: it may be this part of a step of the answers. */
static const double PIECE = 0.5;

static int64_t context_of(const struct sched_row *r)
{
    return r->n * r->at + r->n * (r->n + 1) / 2;
}

struct sched_load sched_load_of(const struct sched_row *row, int64_t n, bool answers,
                                bool prompts)
{
    struct sched_load l = {0};
    for (int64_t i = 0; i < n; i++)
        if (row[i].answers ? answers : prompts) {
            l.rows += row[i].n + row[i].branch_rows;
            l.context += context_of(&row[i]);
            l.logits += row[i].all_logits ? row[i].n : 0;
        }
    return l;
}

double sched_pace_answers(const struct sched_pace *p, struct sched_load answers)
{
    return p->mixed.n_seen ? sched_cost_of(&p->mixed, answers) : 0;
}

static double target(const struct sched_pace *p, double decode)
{
    return p->target_seconds > 0 ? p->target_seconds : TARGET * decode;
}

double sched_pace_slice(const struct sched_pace *p, struct sched_load answers, double took)
{
    const double left = target(p, sched_pace_answers(p, answers)) - took;
    return left > 0 ? left : 0;
}

/* Prompts at a picture, of which rows are planned, get all of it.  True: there are some. */
static bool take_whole(struct sched_row *row, int64_t n)
{
    bool any = false;
    for (int64_t i = 0; i < n; i++)
        if (!row[i].answers && row[i].n && row[i].n < row[i].whole) {
            row[i].n = row[i].whole;
            any = true;
        }
    return any;
}

/* As many rows of prompts as fit into `seconds`; least is what to take if not even one does. */
static void plan_within(const struct sched_cost *cost, struct sched_row *row, int64_t n,
                        const struct sched_room *room, double seconds, int64_t least)
{
    int64_t low = least, high = room->rows;
    while (low < high) {
        const int64_t rows = low + (high - low + 1) / 2;
        sched_step_plan(row, n, room, rows);
        if (sched_cost_most(cost, sched_load_of(row, n, true, true)) <= seconds)
            low = rows;
        else
            high = rows - 1;
    }
    sched_step_plan(row, n, room, low);
}

/* Rows of which a step of prompts is worth what it takes without them; 0: steps of one size do not
 * show it. */
static int64_t rows_worth(const struct sched_pace *p, int64_t at, int64_t max_rows)
{
    if (p->least_apart > p->most_apart / 2)
        return 0;
    const double step = sched_cost_of(&p->apart, (struct sched_load){0});
    const double row =
        sched_cost_of(&p->apart, (struct sched_load){.rows = 1, .context = at}) - step;
    const double rows = step * (1 / IDLE_PART - 1);
    return rows < row * (double)max_rows ? (int64_t)(rows / row) : max_rows;
}

/* Only prompts: large steps compute the most, but whoever comes meanwhile waits for the end
 * of one. */
static int64_t rows_apart(const struct sched_pace *p, int64_t at, int64_t max_rows, double seconds)
{
    if (!p->apart.n_seen)
        return max_rows;
    int64_t low = num_min(num_max(PROMPT_ROWS, rows_worth(p, at, max_rows)), max_rows),
            high = max_rows;
    while (low < high) {
        const int64_t rows = low + (high - low + 1) / 2;
        if (sched_cost_of(&p->apart, (struct sched_load){.rows = rows, .context = rows * at}) <=
            seconds)
            low = rows;
        else
            high = rows - 1;
    }
    return low;
}

/* Where the prompts are, on average. */
static int64_t middle(const struct sched_row *row, int64_t n)
{
    int64_t sum = 0, prompts = 0;
    for (int64_t i = 0; i < n; i++)
        if (!row[i].answers) {
            sum += row[i].at / 16;
            prompts++;
        }
    return prompts ? sum / prompts * 16 : 0;
}

/* Rows of a step that stops for answers: pieces that nothing can come between grow with it. */
static int64_t rows_between(const struct sched_pace *p, const struct sched_row *row, int64_t n,
                            int64_t max_rows)
{
    const int64_t rows = p->apart.n_seen ? rows_apart(p, middle(row, n), max_rows, BETWEEN_SECONDS)
                                   : num_min(FIRST_ROWS, max_rows);
    return num_min(rows, num_max(p->between_rows, FIRST_ROWS));
}

static void answers_wait(struct sched_row *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        row[i].n = row[i].answers ? 0 : row[i].n;
}

/* Rows a second of the planned step; extra: what it takes beyond the answers'. */
static double rate(int64_t rows, double extra)
{
    return rows > 0 ? (double)rows / (extra > 1e-9 ? extra : 1e-9) : 0;
}

/* The same of steps under way side by side, which take what the slowest process takes. */
static double flown_rate(const struct sched_pace *p, struct sched_load answers)
{
    const struct sched_load one = {.rows = num_div_up(answers.rows, p->flights),
                                   .context = answers.context / p->flights};
    struct sched_load all = one;
    if (!p->flown.n_seen || !p->flown_rows)
        return 1e300;
    all.rows += p->flown_rows;
    return rate(p->flown_rows, sched_cost_of(&p->flown, all) - sched_cost_of(&p->flown, one));
}

static enum sched_way plan_both(struct sched_pace *p, struct sched_row *row, int64_t n,
                                const struct sched_room *room, double decode)
{
    int64_t wanted = 0;
    for (int64_t i = 0; i < n; i++)
        wanted += row[i].answers ? 0 : row[i].pending;
    plan_within(&p->mixed, row, n, room, target(p, decode), p->can_stop ? 0 : 1);
    const bool whole = take_whole(row, n), flies = p->flights > 1 && !whole;
    const enum sched_way with = flies ? SCHED_FLYING : SCHED_TOGETHER;
    if (!p->can_stop)
        return with;
    const struct sched_load prompts = sched_load_of(row, n, false, true);
    const double both = sched_cost_of(&p->mixed, sched_load_of(row, n, true, true));
    const bool late = whole && both > target(p, decode);
    if (prompts.rows == wanted && !late)
        return with;
    const struct sched_load answers = sched_load_of(row, n, true, false);
    const double together = flies ? flown_rate(p, answers) : rate(prompts.rows, both - decode);
    const int64_t rows = rows_between(p, row, n, room->rows);
    const struct sched_load large = {.rows = rows, .context = rows * middle(row, n)};
    const double between = p->apart.n_seen ? rate(rows, sched_cost_of(&p->apart, large)) : 1e300;
    bool apart = late || between >= together;
    if (apart && !late && p->since_together >= TRY_TOGETHER) {
        sched_step_plan(row, n, room, num_max(1, prompts.rows));
        (void)take_whole(row, n);
        apart = sched_cost_of(&p->mixed, sched_load_of(row, n, true, true)) > target(p, decode);
        p->since_together = 0;
    } else if (!apart && p->since_between >= TRY_BETWEEN * rows) {
        apart = true;
    }
    if (!apart)
        return with;
    struct sched_room all = *room;
    sched_step_plan(row, n, &all, rows);
    (void)take_whole(row, n);
    answers_wait(row, n);
    return SCHED_BETWEEN;
}

/* No answer waits. */
static enum sched_way plan_prompts(const struct sched_pace *p, struct sched_row *row, int64_t n,
                                   const struct sched_room *room)
{
    const int64_t rows = rows_apart(p, middle(row, n), room->rows, PROMPT_SECONDS);
    const bool first = !p->apart.n_seen && p->first_rows > 0;
    sched_step_plan(row, n, room, first ? num_min(rows, p->first_rows) : rows);
    const bool whole = take_whole(row, n);
    const bool is_long =
        p->apart.n_seen
            ? sched_cost_of(&p->apart, sched_load_of(row, n, false, true)) > PIECES_SECONDS
            : whole;
    return p->can_stop && is_long ? SCHED_BETWEEN : SCHED_TOGETHER;
}

enum sched_way sched_pace_plan(struct sched_pace *p, struct sched_row *row, int64_t n,
                               const struct sched_room *room)
{
    sched_step_plan(row, n, room, 0);
    const struct sched_load answers = sched_load_of(row, n, true, false);
    const double decode = p->decode = sched_pace_answers(p, answers);
    if (!answers.rows)
        return plan_prompts(p, row, n, room);
    if (decode > 0 && p->since_answers < MEASURE_EVERY)
        return plan_both(p, row, n, room, decode);
    (void)take_whole(row, n);
    return SCHED_TOGETHER;
}

/* Prompts that one step reads to their end; others would take more steps than they wait for. */
static void plan_short(struct sched_row *row, int64_t n, const struct sched_room *room)
{
    for (int64_t i = 0; i < n; i++)
        if (row[i].pending > room->rows)
            row[i].pending = 0;
    sched_step_plan(row, n, room, room->rows);
}

void sched_pace_plan_between(struct sched_pace *p, struct sched_row *row, int64_t n,
                             const struct sched_room *room, double elapsed, bool others)
{
    /* what has no room there waits for a large step */
    for (int64_t i = 0; i < n; i++)
        row[i].pending = !row[i].answers && row[i].whole > room->rows ? 0 : row[i].pending;
    sched_step_plan(row, n, room, 0);
    const struct sched_load answers = sched_load_of(row, n, true, false);
    const double decode = sched_pace_answers(p, answers);
    if (others && !answers.rows)
        plan_short(row, n, room);
    else if (others && decode > 0)
        plan_within(&p->mixed, row, n, room, target(p, decode) - elapsed, 0);
    if (!take_whole(row, n))
        return;
    const struct sched_load all = sched_load_of(row, n, true, true);
    if (all.rows > room->rows ||
        (answers.rows && sched_cost_of(&p->mixed, all) > target(p, decode) - elapsed))
        sched_step_plan(row, n, room, 0);
}

/* All of them together are the wait of an answer. */
void sched_pace_plan_flight(struct sched_pace *p, struct sched_row *row, int64_t n,
                            const struct sched_room *room)
{
    sched_step_plan(row, n, room, 0);
    const struct sched_load answers = sched_load_of(row, n, true, false);
    const double decode = p->flown.n_seen ? sched_cost_of(&p->flown, answers) : 0;
    const double seconds = p->target_seconds > 0 && p->flights
                               ? p->target_seconds / (double)p->flights
                               : TARGET * decode;
    if (!answers.rows)
        sched_step_plan(row, n, room, p->flown_rows);
    else if (decode > 0 && p->since_flown < MEASURE_EVERY)
        plan_within(&p->flown, row, n, room, seconds, 1);
    const int64_t rows = sched_load_of(row, n, false, true).rows;
    if (answers.rows && rows)
        p->flown_rows = rows;
}

void sched_pace_note_flight(struct sched_pace *p, const struct sched_row *row, int64_t n,
                            double seconds)
{
    const struct sched_load prompts = sched_load_of(row, n, false, true);
    if (!sched_load_of(row, n, true, false).rows)
        return;
    sched_cost_note(&p->flown, sched_load_of(row, n, true, true), seconds);
    p->since_flown = prompts.rows ? p->since_flown + 1 : 0;
    p->since_between += prompts.rows;
}

void sched_pace_note(struct sched_pace *p, const struct sched_row *row, int64_t n, double seconds,
                     double longest)
{
    const struct sched_load answers = sched_load_of(row, n, true, false);
    const struct sched_load prompts = sched_load_of(row, n, false, true);
    const struct sched_load both = {answers.rows + prompts.rows, answers.context + prompts.context,
                                    prompts.logits};
    if (answers.rows) {
        sched_cost_note(&p->mixed, both, seconds);
        p->since_answers = prompts.rows ? p->since_answers + 1 : 0;
        p->since_between += prompts.rows;
        return;
    }
    sched_cost_note(&p->apart, prompts, seconds);
    p->most_apart = num_max(p->most_apart, prompts.rows);
    p->least_apart = p->least_apart ? num_min(p->least_apart, prompts.rows) : prompts.rows;
    p->since_between = 0;
    p->since_together++;
    if (p->decode <= 0)
        return; /* pieces are of another length */
    if (longest > PIECE * p->decode)
        p->between_rows = num_max(FIRST_ROWS, num_min(p->between_rows, prompts.rows) / 2);
    else if (longest > 0 && longest < PIECE / 2 * p->decode && prompts.rows >= p->between_rows)
        p->between_rows = num_max(FIRST_ROWS, num_min(2 * prompts.rows, MOST_ROWS));
}
