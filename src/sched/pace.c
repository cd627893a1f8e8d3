/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/sched.h"

#include "base/num.h"

/* Steps between two of answers alone; and when there are more or fewer answers than then. */
enum { MEASURE_EVERY = 64, MEASURE_CHANGED = 8 };

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

int64_t sched_pace_rows(const struct sched_pace *p, const struct sched_row *row, int64_t n,
                        int64_t max_rows)
{
    const int64_t n_answers = count_answers(row, n);
    if (!n_answers)
        return max_rows;
    const double alone = sched_pace_answers(p, n_answers);
    if (alone <= 0 || must_measure(p, n_answers))
        return 0;
    /* A row that nobody knows is as dear as an answer. */
    const double dear = alone / (double)n_answers;
    double cost = 0;
    int64_t n_prompts = 0;
    for (int64_t i = 0; i < n; i++) {
        if (row[i].answers)
            continue;
        n_prompts++;
        cost += row[i].row_seconds > 0 ? row[i].row_seconds : dear;
    }
    if (!n_prompts)
        return 0;
    const double target = p->target_seconds > 0 ? p->target_seconds : 2 * alone;
    const double rows = (target - alone) / (cost / (double)n_prompts);
    return rows >= (double)max_rows ? max_rows : num_max(1, (int64_t)rows);
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

void sched_pace_note(struct sched_pace *p, struct sched_row *row, int64_t n, double seconds)
{
    const int64_t n_answers = count_answers(row, n);
    int64_t n_rows = 0;
    double expected = 0;
    bool known = true;
    for (int64_t i = 0; i < n; i++) {
        if (row[i].answers)
            continue;
        n_rows += row[i].n;
        expected += (double)row[i].n * row[i].row_seconds;
        known &= !row[i].n || row[i].row_seconds > 0;
    }
    if (!n_rows) {
        if (!n_answers || seconds <= 0)
            return;
        p->seen[p->next].seconds = seconds;
        p->seen[p->next].n_answers = n_answers;
        p->next = (p->next + 1) % SCHED_PACE_SEEN;
        p->mixed_steps = 0;
        return;
    }
    p->mixed_steps += n_answers > 0;
    const double alone = n_answers ? sched_pace_answers(p, n_answers) : 0;
    const double rest = seconds - alone > seconds / 8 ? seconds - alone : seconds / 8;
    for (int64_t i = 0; i < n; i++) {
        if (row[i].answers || !row[i].n)
            continue;
        const double seen = known ? row[i].row_seconds * (rest / expected) : rest / (double)n_rows;
        row[i].row_seconds = follow(row[i].row_seconds, seen);
    }
}
