/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/sched.h"

#include "base/num.h"

struct left {
    int64_t rows, logits;
};

/* Answers, and as one of them the prompts together, take rows of logits in turn.  What is
 * left of logits afterwards is the prompts', with the one that fell to them. */
static void plan_answers(struct sched_row *row, int64_t n, uint64_t turn, struct left *left)
{
    int64_t n_answers = 0, for_prompts = 0;
    bool prompts = false;
    for (int64_t i = 0; i < n; i++) {
        n_answers += row[i].answers;
        prompts |= !row[i].answers;
    }
    const uint64_t n_turns = (uint64_t)(n_answers + prompts);
    if (!n_turns)
        return;
    const int64_t from = (int64_t)(turn % n_turns);
    for (int pass = 0; pass < 2; pass++) { /* those from `from` on, then those before it */
        int64_t k = 0;
        for (int64_t i = 0; i < n; i++) {
            if (!row[i].answers || (k++ < from) != (pass == 1))
                continue;
            if (left->rows > 0 && left->logits > 0) {
                row[i].n = 1;
                left->rows--;
                left->logits--;
            }
        }
        if (pass == 0 && prompts && left->logits > 0 && left->rows > 0) {
            for_prompts = 1;
            left->logits--;
        }
    }
    for (int64_t i = 0; i < n; i++) { /* prompts keep the row of logits that fell to them */
        const int64_t more = row[i].answers && row[i].n
                                 ? num_min(row[i].drafts, num_min(left->rows, left->logits))
                                 : 0;
        row[i].n += more;
        row[i].branch_rows = row[i].n > 1 ? num_min(row[i].branch_rows,
                                                    num_min(left->rows - more, left->logits - more))
                                          : 0;
        left->rows -= more + row[i].branch_rows;
        left->logits -= more + row[i].branch_rows;
    }
    left->logits += for_prompts;
}

/* Rows that row i could still take. */
static int64_t wants(const struct sched_row *r, int64_t logits)
{
    int64_t n = r->pending;
    if (r->stop > 0)
        n = num_min(n, r->stop);
    if (r->all_logits)
        n = num_min(n, r->n + logits);
    else if (n == r->pending && logits < 1 && r->n < n)
        n--; /* its last row needs logits */
    return n - r->n;
}

/* Gives row i up to n more rows; returns how many. */
static int64_t give(struct sched_row *r, int64_t n, struct left *left)
{
    n = num_min(n, wants(r, left->logits));
    r->n += n;
    left->rows -= n;
    if (r->all_logits)
        left->logits -= n;
    else if (n > 0 && r->n == r->pending)
        left->logits--;
    return n;
}

static bool is_open(const struct sched_row *r, int priority, const struct left *left)
{
    return !r->answers && r->priority == priority && wants(r, left->logits) > 0;
}

/* Whether row i is the first open one of its user. */
static bool leads(const struct sched_row *row, int64_t i, int priority, const struct left *left)
{
    if (!is_open(&row[i], priority, left))
        return false;
    for (int64_t k = 0; k < i; k++)
        if (row[k].user == row[i].user && is_open(&row[k], priority, left))
            return false;
    return true;
}

/* Up to n rows for the requests of one user, evenly. */
static int64_t plan_user(struct sched_row *row, int64_t n_row, const void *user, int priority,
                         int64_t n, struct left *left)
{
    const int64_t asked = n;
    for (int64_t given = 1; n > 0 && given > 0;) {
        int64_t open = 0;
        for (int64_t i = 0; i < n_row; i++)
            open += row[i].user == user && is_open(&row[i], priority, left);
        const int64_t each = open ? num_max(1, n / open) : 0;
        given = 0;
        for (int64_t i = 0; i < n_row && n > 0; i++)
            if (row[i].user == user && is_open(&row[i], priority, left)) {
                const int64_t k = give(&row[i], num_min(each, n), left);
                given += k;
                n -= k;
            }
    }
    return asked - n;
}

/* Rows for the prompts of one priority. */
static int64_t plan_class(struct sched_row *row, int64_t n_row, int priority, int64_t n,
                          uint64_t turn, struct left *left)
{
    for (int64_t given = 1; n > 0 && given > 0;) {
        int64_t users = 0;
        for (int64_t i = 0; i < n_row; i++)
            users += leads(row, i, priority, left);
        const int64_t each = users ? num_max(1, n / users) : 0;
        given = 0;
        for (int64_t k = 0; k < n_row && n > 0; k++) {
            const int64_t i = (k + (int64_t)(turn % (uint64_t)n_row)) % n_row;
            if (!leads(row, i, priority, left))
                continue;
            const int64_t got =
                plan_user(row, n_row, row[i].user, priority, num_min(each, n), left);
            given += got;
            n -= got;
        }
    }
    return n;
}

void sched_step_plan(struct sched_row *row, int64_t n, const struct sched_room *room,
                     int64_t prompt_rows)
{
    struct left left = {room->rows, room->logits};
    const uint64_t turn = room->turn;
    int highest = INT32_MIN;
    for (int64_t i = 0; i < n; i++) {
        row[i].n = 0;
        if (!row[i].answers && row[i].priority > highest)
            highest = row[i].priority;
    }
    plan_answers(row, n, turn, &left);
    prompt_rows = num_min(prompt_rows, left.rows);
    while (prompt_rows > 0 && highest > INT32_MIN) {
        prompt_rows = plan_class(row, n, highest, prompt_rows, turn, &left);
        int next = INT32_MIN;
        for (int64_t i = 0; i < n; i++)
            if (!row[i].answers && row[i].priority < highest && row[i].priority > next)
                next = row[i].priority;
        highest = next;
    }
}
