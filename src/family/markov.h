/*
 * markov - inside the room: the chain that corrects a block's logits by the token before each, and the head that says how
 * likely the target is to agree (DSpark).
 */
#ifndef INGLE_FAMILY_MARKOV_H
#define INGLE_FAMILY_MARKOV_H

#include "family/family.h"

struct family_markov {
    int64_t rank, n_embd;
    const struct device_matrix *w1, *w2; /* [n_vocab][rank] */
    const struct device_matrix *sure;    /* [1][n_embd + rank]; NULL: no confidence */
    float sure_bias;
};

/* Binds `markov_w1.weight`, `markov_w2.weight`, and `conf_proj.weight` with its bias where they are there. */
MUST_CHECK ingle_status family_markov_bind(struct family_markov *k, struct model *m, int64_t n_vocab, int64_t n_embd, struct err *err);
/* logits [n][n_vocab] = u + what follows token; confidence [n] (or NULL): of hidden rows h [n][n_embd]. */
void family_markov_next(const struct family_markov *k, struct device *d, struct rows u, struct rows h, const int32_t *token,
                        struct rows logits, float *confidence);

#endif
