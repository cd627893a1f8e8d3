/*
 * expert - experts are asked for, not addressed.
 *
 * A family says "layer l needs experts {ids} for these rows"; this room knows where they
 * are.  The first tier keeps all of them in the device's memory.  A row's experts are
 * summed in ascending expert id.
 */
#ifndef INGLE_EXPERT_EXPERT_H
#define INGLE_EXPERT_EXPERT_H

#include "device/device.h"

enum { EXPERT_MAX_USED = 64, EXPERT_MAX = 4096 };

/* One layer's experts: gate and up either in one stack (gate rows first) or in two. */
struct expert_layer {
    const struct device_matrix *gate_up;   /* [n][2 * width][hidden], or NULL */
    const struct device_matrix *gate, *up; /* [n][width][hidden], when gate_up is NULL */
    const struct device_matrix *down;      /* [n][hidden][width] */
    int64_t n, width;
};

/* Which experts each row uses: ids ascending within a row.  Host memory of the arena. */
struct expert_choice {
    int32_t *id;   /* [n_rows][k] */
    float *weight; /* [n_rows][k] */
    int64_t k;
};

/* The k largest of each row of scores + bias (host [n], or NULL; ties: the lower id), ids
 * ascending, weight = the score without the bias.  Waits for scores. */
struct expert_choice expert_top_k(struct device *d, struct rows scores, const float *bias,
                                  int64_t k);

/* The experts that a table [n_vocab][k] names for each row's token; weight = the score. */
struct expert_choice expert_by_table(struct device *d, struct rows scores, const int32_t *table,
                                     const int32_t *tokens, int64_t k);

/* Divides each row's weights by their sum (added in ascending id). */
void expert_normalise(struct device *d, struct expert_choice *c, int64_t n_rows);

/* out[r] = sum_e weight * down_e(act(gate_e x[r]) * up_e x[r]).  hits (may be NULL): a
 * counter per expert, incremented per row. */
void expert_mix(struct device *d, const struct expert_layer *l, struct rows x,
                const struct expert_choice *c, enum device_glu act, float limit, struct rows out,
                uint64_t *hits);

#endif
