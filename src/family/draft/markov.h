/*
 * markov - inside the room: the chain that corrects a block's logits by the token before each, and
 * the head that says how likely the target is to agree (DSpark).
 */
#ifndef INGLE_FAMILY_MARKOV_H
#define INGLE_FAMILY_MARKOV_H

#include "family/family.h"

struct family_markov {
    int64_t rank, n_embd;                /* of the file; rank 0: no chain */
    const struct device_matrix *w1, *w2; /* [n_vocab][rank], [n_out][rank] */
    const struct device_matrix *sure;    /* [1][n_embd + rank, or n_embd]; NULL: no confidence */
    bool follows;                        /* the confidence reads the token before, too */
    float bias;                          /* of the confidence */
};

enum { FAMILY_MARKOV_RANK = 4096 }; /* at most */
/* Binds `markov_w1.weight` and `markov_w2.weight` of k->rank, and `conf_proj.weight` with its bias
 * where the file has it, for k->n_embd and k->follows. */
MUST_CHECK ingle_status family_markov_bind(struct family_markov *k, struct model *m,
                                           int64_t n_vocab, int64_t n_out, struct err *err);
/* z [n][n_out] = u + what follows each token. */
void family_markov_add(const struct family_markov *k, struct device *d, struct rows u,
                       const int32_t *token, struct rows z);
/* How likely the target is to agree, [n], for hidden rows h [n][n_embd] after those tokens; where
 * there is a head. */
void family_markov_sure(const struct family_markov *k, struct device *d, struct rows h,
                        const int32_t *token, float *out);

#endif
