/* SPDX-License-Identifier: Apache-2.0 */
/* weight - matrices and vectors in the memory of the CPU device. */
#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include "device/ops.h"
#include <string.h>

static ingle_status create(struct device_matrix **out, struct device *d, struct kern_matrix m,
                           int64_t n_stack, struct err *err)
{
    size_t bytes, total;
    if (!num_mul((size_t)m.n_panels, m.panel_bytes, &bytes) ||
        !num_mul(bytes, (size_t)n_stack, &total))
        return err_set(err, INGLE_LIMIT,
                       "a stack of %lld matrices of %lld x %lld does not fit in memory",
                       (long long)n_stack, (long long)m.out, (long long)m.in);
    struct device_matrix *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_set(err, INGLE_NOMEM, "no memory for a matrix");
    w->d = d;
    w->m = m;
    w->n_stack = n_stack;
    w->stack_bytes = w->stack_step = bytes;
    w->n_halves = 1;
    w->wanted = d->side;
    kern_matmul_calibrate_code(&d->kern.matmul, m.code, d->sink);
    if (d->numerics == DEVICE_FAST && kern_matmul_fast(&d->kern.matmul, &m, true))
        device_note_recipe(d, d->kern.matmul.recipe[m.code]);
    *out = w;
    return INGLE_OK;
}

ingle_status device_matrix_create(struct device_matrix **out, struct device *d, uint32_t type,
                                  int64_t out_rows, int64_t in, int64_t n_stack, struct err *err)
{
    struct kern_matrix m = {0};
    const ingle_status s = kern_matrix_init(&m, type, out_rows, in, err);
    return s ? s : create(out, d, m, n_stack, err);
}

ingle_status device_matrix_create_floats(struct device_matrix **out, struct device *d,
                                         uint32_t type, int64_t out_rows, int64_t in,
                                         int64_t n_stack, struct err *err)
{
    struct kern_matrix m = {0};
    const ingle_status s = kern_matrix_init_floats(&m, type, out_rows, in, err);
    return s ? s : create(out, d, m, n_stack, err);
}

void device_matrix_free(struct device_matrix *m)
{
    if (!m)
        return;
    device_gpu_matrix_release(m);
    mem_free(m->each);
    mem_free(m->own);
    mem_free(m->piece);
    mem_free(m->scale);
    mem_free(m);
}

uint64_t device_matrix_bytes(const struct device_matrix *m)
{
    return (uint64_t)m->stack_bytes * (uint64_t)m->n_stack;
}

int64_t device_matrix_out(const struct device_matrix *m)
{
    return m->m.out;
}

int64_t device_matrix_in(const struct device_matrix *m)
{
    return m->m.in;
}

int64_t device_matrix_stack(const struct device_matrix *m)
{
    return m->n_stack;
}

uint32_t device_matrix_type(const struct device_matrix *m)
{
    return m->m.type;
}

void device_matrix_place(struct device_matrix *m, void *at, size_t step)
{
    BUG_IF(step && step < m->stack_bytes);
    m->m.at = at;
    m->stack_step = step ? step : m->stack_bytes;
    mem_free(m->each);
    mem_free(m->own);
    mem_free(m->piece);
    m->each = m->own = NULL;
    m->piece = NULL;
    m->n_halves = 1;
}

ingle_status device_matrix_scatter(struct device_matrix *m, struct err *err)
{
    const bool has_own = device_own_bytes(m->d) > 0;
    uint8_t **each = mem_calloc((size_t)m->n_stack, sizeof *each),
            **own = has_own ? mem_calloc((size_t)m->n_stack, sizeof *own) : NULL;
    if (!each || (has_own && !own)) {
        mem_free(each);
        mem_free(own);
        return err_set(err, INGLE_NOMEM, "no memory for the places of %lld matrices",
                       (long long)m->n_stack);
    }
    mem_free(m->each);
    mem_free(m->own);
    m->each = each;
    m->own = own;
    return INGLE_OK;
}

void device_matrix_place_one(const struct device_matrix *m, int64_t index, void *at)
{
    BUG_IF(!m->each || index < 0 || index >= m->n_stack);
    m->each[index] = at;
    if (m->own)
        m->own[index] = NULL;
}

void device_matrix_load(struct device_matrix *m, int64_t index, int64_t row0, int64_t n,
                        const void *stored)
{
    BUG_IF(index >= m->n_stack);
    if (m->piece)
        device_matrix_load_divided(m, index, row0, n, stored);
    else
        device_matrix_pack(m, m->m.at + (size_t)index * m->stack_step, row0, n, stored);
}

void device_matrix_pack(const struct device_matrix *m, void *to, int64_t row0, int64_t n,
                        const void *stored)
{
    BUG_IF(row0 % KERN_PANEL != 0 || row0 + n > m->m.out);
    BUG_IF(n % KERN_PANEL != 0 && row0 + n != m->m.out);
    struct kern_matrix k = m->m;
    k.at = to;
    kern_pack(&k, row0 / KERN_PANEL, num_div_up(row0 + n, KERN_PANEL), stored);
}

ingle_status device_matrix_set_scales(struct device_matrix *m, const float *scale,
                                      struct err *err)
{
    float *copy = mem_calloc((size_t)m->n_stack, sizeof *copy);
    if (!copy)
        return err_set(err, INGLE_NOMEM, "no memory for %lld scales", (long long)m->n_stack);
    memcpy(copy, scale, (size_t)m->n_stack * sizeof *copy);
    mem_free(m->scale);
    m->scale = copy;
    return INGLE_OK;
}

ingle_status device_vector_create(struct device_vector **out, struct device *d, const float *v,
                                  int64_t n, struct err *err)
{
    struct device_vector *w = mem_zalloc(sizeof *w);
    float *at = mem_calloc((size_t)n, sizeof *at);
    if (!w || !at) {
        mem_free(w);
        mem_free(at);
        return err_set(err, INGLE_NOMEM, "no memory for a vector of %lld", (long long)n);
    }
    memcpy(at, v, (size_t)n * sizeof *at);
    w->d = d;
    w->at = at;
    w->n = n;
    device_gpu_vector_open(w);
    *out = w;
    return INGLE_OK;
}

void device_vector_free(struct device_vector *v)
{
    if (!v)
        return;
    device_gpu_vector_release(v);
    mem_free(v->at);
    mem_free(v);
}
