/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/sched.h"

#include "base/num.h"

/* Steps between two of answers alone; and when there are more or fewer answers than then. */
enum { MEASURE_EVERY = 64, MEASURE_CHANGED = 8 };

/* A prompt that has come so many rows further is another one. */
enum { STALE_ROWS = 16 };

enum { MOST_TRIES = 6 };

/* What a step of prompts alone should take, and the rows below which it would waste time. */
static const double ALONE_SECONDS = 0.5;
enum { ALONE_ROWS = 128 };

static int64_t count_answers(const struct sched_row *row, int64_t n)
{
    int64_t n_answers = 0;
    for (int64_t i = 0; i < n; i++)
        n_answers += row[i].answers;
    return n_answers;
}

/* The median of what was seen: one step that another process held up does not count.  What
 * more answers took is scaled down, what fewer took is a safe guess. */
double sched_pace_answers(const struct sched_pace *p, int64_t n_answers)
{
    double at[SCHED_PACE_SEEN];
    int k = 0;
    for (int i = 0; i < SCHED_PACE_SEEN; i++) {
        if (p->seen[i].seconds <= 0)
            continue;
        double x = p->seen[i].seconds;
        if (n_answers < p->seen[i].n_answers)
            x *= (double)n_answers / (double)p->seen[i].n_answers;
        int j = k++;
        for (; j > 0 && at[j - 1] > x; j--)
            at[j] = at[j - 1];
        at[j] = x;
    }
    return k ? at[(k - 1) / 2] : 0;
}

static bool must_measure(const struct sched_pace *p, int64_t n_answers)
{
    const int64_t last = (p->next + SCHED_PACE_SEEN - 1) % SCHED_PACE_SEEN;
    if (p->mixed_steps >= MEASURE_EVERY)
        return true;
    return p->mixed_steps >= MEASURE_CHANGED && p->seen[last].n_answers != n_answers;
}

/* What the planned rows of prompts will take.  A row that nobody knows may be as dear as all
 * there is. */
static double expected(const struct sched_row *row, int64_t n, double budget, int64_t *n_rows)
{
    double seconds = 0;
    *n_rows = 0;
    for (int64_t i = 0; i < n; i++) {
        if (row[i].answers)
            continue;
        *n_rows += row[i].n;
        seconds += (double)row[i].n * (row[i].row_seconds > 0 ? row[i].row_seconds : budget);
    }
    return seconds;
}

/* Prompts have unequal rows and shares: as many rows as their own costs allow, at least one. */
static void plan_within(struct sched_row *row, int64_t n, const struct sched_room *room,
                        double budget)
{
    int64_t rows = room->rows;
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        int64_t planned;
        sched_step_plan(row, n, room, rows);
        const double seconds = expected(row, n, budget, &planned);
        if (seconds <= budget || planned <= 1)
            return;
        const double fit = budget > 0 ? (double)planned * (budget / seconds) : 1;
        rows = num_max(1, num_min(planned - 1, (int64_t)fit));
    }
    sched_step_plan(row, n, room, 1);
}

/* Prompts alone: large steps compute the most, but whoever comes meanwhile waits for the end
 * of one. */
static int64_t rows_alone(const struct sched_pace *p, int64_t max_rows)
{
    if (p->row_seconds <= 0)
        return max_rows;
    const double fit = ALONE_SECONDS / p->row_seconds;
    return fit >= (double)max_rows ? max_rows : num_min(max_rows, num_max(ALONE_ROWS, (int64_t)fit));
}

void sched_pace_plan(const struct sched_pace *p, struct sched_row *row, int64_t n,
                     const struct sched_room *room)
{
    const int64_t n_answers = count_answers(row, n);
    if (!n_answers) {
        sched_step_plan(row, n, room, rows_alone(p, room->rows));
        return;
    }
    const double alone = sched_pace_answers(p, n_answers);
    if (alone <= 0 || must_measure(p, n_answers))
        sched_step_plan(row, n, room, 0);
    else
        plan_within(row, n, room, (p->target_seconds > 0 ? p->target_seconds : 2 * alone) - alone);
}

/* Up at once (within reason), down slowly: a step that is too long is felt. */
static double follow(double at, double seen)
{
    if (at <= 0)
        return seen;
    if (seen > at)
        return seen < 4 * at ? seen : 4 * at;
    return at + (seen - at) * 0.25;
}

/* Steps of prompts alone are larger than those beside answers, and a row of them is cheaper:
 * what was known of rows beside answers is of an earlier place in the prompt. */
static void note_alone(struct sched_pace *p, struct sched_row *row, int64_t n, int64_t n_rows,
                       double seconds)
{
    if (seconds > 0)
        p->row_seconds = follow(p->row_seconds, seconds / (double)n_rows);
    for (int64_t i = 0; i < n; i++)
        if (row[i].n > STALE_ROWS)
            row[i].row_seconds = 0;
}

static void note_answers(struct sched_pace *p, int64_t n_answers, double seconds)
{
    if (!n_answers || seconds <= 0)
        return;
    p->seen[p->next].seconds = seconds;
    p->seen[p->next].n_answers = n_answers;
    p->next = (p->next + 1) % SCHED_PACE_SEEN;
    p->mixed_steps = 0;
}

void sched_pace_note(struct sched_pace *p, struct sched_row *row, int64_t n, double seconds)
{
    const int64_t n_answers = count_answers(row, n);
    int64_t n_rows;
    bool known = true;
    const double forecast = expected(row, n, 0, &n_rows);
    for (int64_t i = 0; i < n; i++)
        known &= row[i].answers || !row[i].n || row[i].row_seconds > 0;
    if (!n_rows) {
        note_answers(p, n_answers, seconds);
        return;
    }
    if (!n_answers) {
        note_alone(p, row, n, n_rows, seconds);
        return;
    }
    p->mixed_steps++;
    const double alone = sched_pace_answers(p, n_answers);
    const double rest = seconds - alone > seconds / 8 ? seconds - alone : seconds / 8;
    for (int64_t i = 0; i < n; i++) {
        if (row[i].answers || !row[i].n)
            continue;
        const double seen = known ? row[i].row_seconds * (rest / forecast) : rest / (double)n_rows;
        row[i].row_seconds = follow(row[i].row_seconds, seen);
    }
}
