/* SPDX-License-Identifier: Apache-2.0 */
#include "family/draft/markov.h"

ingle_status family_markov_bind(struct family_markov *k, struct model *m, int64_t n_vocab,
                                int64_t n_out, struct err *err)
{
    static const char sure[] = "conf_proj.weight", bias[] = "conf_proj.bias";
    const bool has = model_has_matrix(m, sure);
    if (k->rank < 0 || k->rank > FAMILY_MARKOV_RANK)
        return err_set(err, INGLE_FORMAT,
                       "'%s': tensor 'markov_w1.weight' has rank %lld, expected 1 to %d",
                       io_path(model_file(m)), (long long)k->rank, FAMILY_MARKOV_RANK);
    ingle_status s =
        k->rank ? model_matrix(m, "markov_w1.weight", n_vocab, k->rank, 1, &k->w1, err) : INGLE_OK;
    if (!s && k->rank)
        s = model_matrix(m, "markov_w2.weight", n_out, k->rank, 1, &k->w2, err);
    if (!s && has)
        s = model_matrix(m, sure, 1, k->n_embd + (k->follows ? k->rank : 0), 1, &k->sure, err);
    if (!s && has && model_find(m, bias))
        s = model_floats(m, bias, 1, &k->bias, err);
    return s;
}

void family_markov_add(const struct family_markov *k, struct device *d, struct rows u,
                       const int32_t *token, struct rows z)
{
    const size_t mark = device_mark(d);
    /* f32 [n][rank] */
    struct rows e = device_rows(d, z.n, k->rank);
    device_embed(d, e, k->w1, token, 1.0f);
    device_matmul(d, &(struct device_product){k->w2, 0, e, z, NULL}, 1);
    device_add(d, z, u);
    device_release(d, mark);
}

void family_markov_sure(const struct family_markov *k, struct device *d, struct rows h,
                        const int32_t *token, float *out)
{
    const size_t mark = device_mark(d);
    if (!k->sure || (device_runs(d) && !out))
        return;
    /* f32 [n][columns of the matrix]; [n][1]: how sure the drafter is */
    struct rows x = device_rows(d, h.n, device_matrix_in(k->sure)), c = device_rows(d, h.n, 1);
    device_copy(d, rows_columns(x, 0, k->n_embd), h);
    if (k->follows && k->rank)
        device_embed(d, rows_columns(x, k->n_embd, k->rank), k->w1, token, 1.0f);
    device_matmul(d, &(struct device_product){k->sure, 0, x, c, NULL}, 1);
    device_read_rows(d, c);
    for (int64_t i = 0; i < h.n && device_runs(d); i++) {
        const float p = 1.0f / (1.0f + kern_exp(-(c.at[i * c.stride] + k->bias)));
        out[i] = p >= 0 ? p : 0; /* what is no number is no confidence */
    }
    device_release(d, mark);
}
