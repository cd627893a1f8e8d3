/*
 * early - inside the room: whether reads ahead pay.
 *
 * Steps without and with early reads take turns in blocks, and what they take is compared: a block
 * of one kind with those of the other before and after it.  Reads ahead are for good where steps
 * are faster by more than chance would have it.  Until then, tries are as rare as it takes to lose
 * at most EARLY_PRICE of the time by them.  Knows nothing of experts, files or clocks; the same
 * numbers always give the same decisions.
 */
#ifndef INGLE_EXPERT_EARLY_H
#define INGLE_EXPERT_EARLY_H

#include <stdbool.h>
#include <stdint.h>

/* rows of a step at most; steps; blocks from one look to the next */
enum { EARLY_ROWS = 8, EARLY_BLOCK = 4, EARLY_EVERY = 8 };
#define EARLY_PRICE 0.01

/* Zero: at the beginning. */
struct expert_early {
    bool reads;             /* the next step reads ahead */
    bool pays;              /* and so do most */
    bool decided, turned;   /* a decision was made; it is news */
    int64_t n_all, n_pairs; /* steps until it was decided; comparisons so far */
    double mean, noise;     /* time with reads ahead, by time without, less 1; its standard error */
    double right;           /* share of guesses that were chosen; 0: not known */
    double unit[EARLY_ROWS + 1]; /* mean time of a step of so many rows */
    int n_steps, since;     /* of this block; blocks since the last look */
    double took, meant;     /* of this block: its time, and the same by means */
    /* how long the usual block before took, and one of the other kind; 0: none */
    double before, tried;
    double credit;          /* steps that tries may cost */
    double weight, sum, squares; /* of comparisons, each worth less with every other */
};

/* A step of n_rows is over; it took ns. */
void expert_early_step(struct expert_early *e, int64_t n_rows, uint64_t ns);
/* A guess of an expert that was not in memory was right, or was not. */
void expert_early_guess(struct expert_early *e, bool right);
/* Whether a decision was made since the last call. */
bool expert_early_turned(struct expert_early *e);

#endif
