/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flights - whether answers have steps of their own under way together, or one for all.
 *
 * Processes that compute at a time are worth more the less answers share.  With a network that
 * drafts they share its rounds, too: steps for all may be faster.  Each way is measured, and now
 * and then the slower one again.
 */
#include "sched/sched.h"

#include "base/num.h"

/* Steps of a way that is measured, the first of which do not count; and when it is tried again. */
enum { MEASURED = 16, SKIPPED = 4, TRY_AGAIN = 512 };
static const double BETTER = 0.97;

bool sched_flights_plan(struct sched_flights *f)
{
    const int way = f->flies, other = !way;
    if (f->n < MEASURED)
        return f->flies;
    const bool unknown = !(f->seconds[other] > 0), again = f->n >= TRY_AGAIN;
    if (unknown || again || f->seconds[other] < BETTER * f->seconds[way]) {
        f->flies = other == 1;
        f->n = 0;
    }
    return f->flies;
}

void sched_flights_note(struct sched_flights *f, bool flew, int64_t n_answers, double seconds)
{
    if (flew != f->flies || n_answers < 1)
        return;
    const double each = seconds / (double)n_answers, n = (double)(f->n - SKIPPED);
    double *mean = &f->seconds[flew];
    if (f->n == SKIPPED)
        *mean = each;
    else if (f->n > SKIPPED)
        *mean += (each - *mean) / (n < MEASURED ? n + 1 : MEASURED);
    f->n++;
}
