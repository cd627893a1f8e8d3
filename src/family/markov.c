/* SPDX-License-Identifier: Apache-2.0 */
#include "family/markov.h"

#include <math.h>

enum { MAX_RANK = 4096 };

ingle_status family_markov_bind(struct family_markov *k, struct model *m, int64_t n_vocab, int64_t n_embd, struct err *err)
{
    static const char w1[] = "markov_w1.weight", w2[] = "markov_w2.weight", sure[] = "conf_proj.weight", bias[] = "conf_proj.bias";
    const struct io_tensor *t = model_find(m, w1);
    *k = (struct family_markov){.rank = t && t->n_dims == 2 ? (int64_t)t->ne[0] : 0, .n_embd = n_embd};
    if (k->rank < 1 || k->rank > MAX_RANK)
        return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' is missing or has a rank of %lld, expected 1 to %d", io_path(model_file(m)),
                       w1, (long long)k->rank, MAX_RANK);
    ingle_status s = model_matrix(m, w1, n_vocab, k->rank, 1, &k->w1, err);
    if (!s)
        s = model_matrix(m, w2, n_vocab, k->rank, 1, &k->w2, err);
    if (!s && model_has_matrix(m, sure))
        s = model_matrix(m, sure, 1, n_embd + k->rank, 1, &k->sure, err);
    if (!s && k->sure && model_find(m, bias))
        s = model_floats(m, bias, 1, &k->sure_bias, err);
    return s;
}

void family_markov_next(const struct family_markov *k, struct device *d, struct rows u, struct rows h, const int32_t *token,
                        struct rows logits, float *confidence)
{
    const size_t mark = device_mark(d);
    struct rows x = device_rows(d, h.n, k->n_embd + k->rank), e = rows_columns(x, k->n_embd, k->rank), c = device_rows(d, h.n, 1);
    device_embed(d, e, k->w1, token, 1.0f);
    device_matmul(d, &(struct device_product){k->w2, 0, e, logits, NULL}, 1);
    device_add(d, logits, u);
    if (k->sure) {
        device_copy(d, rows_columns(x, 0, k->n_embd), h);
        device_matmul(d, &(struct device_product){k->sure, 0, x, c, NULL}, 1);
    }
    for (int64_t i = 0; k->sure && confidence && i < h.n && device_runs(d); i++) {
        const float p = 1.0f / (1.0f + expf(-(c.at[i * c.stride] + k->sure_bias)));
        confidence[i] = p >= 0 ? p : 0; /* what is no number is no confidence */
    }
    device_release(d, mark);
}
