/*
 * draft_times - what steps of so many rows take, and rounds of drafting, as far as the choice of
 * drafts needs it.
 *
 * Times are in units of a step of one row, by classes of rows and context.  Two steps in a row with
 * different rows show how their times compare, whatever the machine does meanwhile; nothing is
 * learned from steps far apart.
 */
#ifndef INGLE_SCHED_DRAFT_TIMES_H
#define INGLE_SCHED_DRAFT_TIMES_H

#include "sched/sched.h"

/* A step of so many rows took that long: what it would have taken without its branches, but with
 * their rows. */
double sched_draft_but_branches(struct sched_draft *d, int64_t rows, int context, double seconds);

/* How likely token `depth` of proposer k's draft is right if those before it are; before: the same
 * of the one before it. */
double sched_draft_likely(const struct sched_draft *d, const struct sched_draft_item *it, int k,
                          int64_t depth, double before);

/* Drafts that were right gave so many plain steps. */
void sched_draft_credit(struct sched_draft *d, double steps);

enum {
    /* comparisons below which one that a busy machine spoiled may be most of what is known */
    SCHED_TIMES_LITTLE = 2,
    SCHED_TIMES_FAIRLY = 5, /* comparisons that show it fairly well */
};

/* What a row adds to a step of one row, before it is known. */
extern const double sched_times_prior_row;

int sched_times_context(int64_t context); /* a class of positions, an index of sched_draft.times */
int sched_times_class(int64_t rows);      /* a class of rows, an index of log_time, rows and n */
/* A class of context that was not seen yet is like its nearest neighbour, with less certainty. */
struct sched_draft_times *sched_times_at(struct sched_draft *d, int context);
/* The units that a step of so many rows takes: as measured, between two classes along the line
 * through both, beyond them as the prior goes. */
double sched_times_of(const struct sched_draft_times *t, int64_t n_rows);
/* The most that a step of so many rows may take where it was not measured. */
double sched_times_most(const struct sched_draft_times *t, int64_t n_rows);
/* What it takes if all goes well, from a step of `from` rows on: a measure or two count only where
 * they are good news. */
double sched_times_hope(const struct sched_draft_times *t, int64_t from, int64_t n_rows);
/* How far the time of so many rows may be off, as a part. */
double sched_times_doubt(const struct sched_draft_times *t, int64_t n_rows);
/* Units of a round of proposer k for so many answers, so many tokens the widest and all
 * together. */
double sched_times_round(const struct sched_draft *d, int k, int64_t n_answers, int64_t deep,
                         int64_t tokens);
/* A round took that long; returns the units that count. */
double sched_times_note_round(struct sched_draft *d, int k, int64_t n_answers, int64_t deep,
                              int64_t tokens, double seconds);
/* A step took that long, which had drafts or (plain) none; one that was not measured (0, or no
 * number) ends the row of steps that are compared. */
void sched_times_note(struct sched_draft *d, int64_t rows, int context, double seconds, bool plain);

#endif
