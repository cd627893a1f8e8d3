/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/sched.h"

#include "base/num.h"

enum { FIRST_ROWS = 16, PROBE_EVERY = 64 };

/* Follows a measured value: down at once half of the way, up by a quarter. */
static void follow(double *at, double seen)
{
    if (*at <= 0)
        *at = seen;
    else
        *at += (seen - *at) * (seen < *at ? 0.5 : 0.25);
}

int64_t sched_pace_rows(const struct sched_pace *p, int64_t n_answers, int64_t max_rows)
{
    if (!n_answers)
        return max_rows;
    if (p->answer_seconds <= 0 || p->mixed_steps >= PROBE_EVERY)
        return 0;
    if (p->row_seconds <= 0)
        return num_min(FIRST_ROWS, max_rows);
    const double target = p->target_seconds > 0 ? p->target_seconds : 2 * p->answer_seconds;
    const double rows = (target - p->answer_seconds) / p->row_seconds;
    if (rows >= (double)max_rows)
        return max_rows;
    return num_max(1, (int64_t)rows);
}

void sched_pace_note(struct sched_pace *p, int64_t n_answers, int64_t prompt_rows, double seconds)
{
    if (n_answers && !prompt_rows) {
        follow(&p->answer_seconds, seconds);
        p->mixed_steps = 0;
        return;
    }
    if (!prompt_rows)
        return;
    const double base = n_answers ? p->answer_seconds : 0;
    const double rest = seconds - base > seconds / 8 ? seconds - base : seconds / 8;
    follow(&p->row_seconds, rest / (double)prompt_rows);
    p->mixed_steps += n_answers > 0;
}
