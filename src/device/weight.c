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
    m->each = m->own = NULL;
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

/* below it borders of pages say too much */
enum { HUGE_PAGE = 2 << 20, LEAST_SHARE = 2 * HUGE_PAGE };

/* Whether each node has rows of every matrix; else it has whole ones of the stack. */
static bool by_rows(const struct device_matrix *m, int n_nodes)
{
    return m->n_stack < n_nodes || m->stack_bytes / (size_t)n_nodes >= LEAST_SHARE;
}

/* Where the share of a node begins among n: nodes have as much as they have threads. */
static int64_t share_at(const struct pool *p, int64_t n, int node)
{
    return n * pool_node_first(p, node) / pool_size(p);
}

void device_matrix_share(const struct device_matrix *m, int64_t index, int node, int64_t *p0,
                         int64_t *p1)
{
    const struct pool *p = m->d->pool;
    const int64_t n = m->m.n_panels;
    *p0 = 0;
    *p1 = n;
    if (pool_nodes(p) == 1)
        return;
    if (by_rows(m, pool_nodes(p))) {
        const int64_t bands = num_div_up(n, KERN_BAND);
        *p0 = num_min(n, share_at(p, bands, node) * KERN_BAND);
        *p1 = num_min(n, share_at(p, bands, node + 1) * KERN_BAND);
    } else if (index < share_at(p, m->n_stack, node) ||
               index >= share_at(p, m->n_stack, node + 1)) {
        *p1 = 0;
    }
}

/* From the beginning of the first matrix of the stack to the end of the last. */
static size_t span_bytes(const struct device_matrix *m)
{
    return (size_t)(m->n_stack - 1) * m->stack_step + m->stack_bytes;
}

/* Borders between nodes move to the nearest huge page: one page has one home. */
static void prefer(const struct device_matrix *m, size_t from, size_t to, int node)
{
    const size_t all = span_bytes(m);
    const uintptr_t at = (uintptr_t)m->m.at, half = HUGE_PAGE / 2;
    to = to < all ? to : all;
    const uintptr_t a = from ? (at + from + half) / HUGE_PAGE * HUGE_PAGE : at;
    const uintptr_t b = to < all ? (at + to + half) / HUGE_PAGE * HUGE_PAGE : at + to;
    if (a >= at && a < b && b <= at + all)
        (void)numa_prefer(m->m.at + (a - at), b - a, pool_node_id(m->d->pool, node));
}

void device_matrix_settle(const struct device_matrix *m)
{
    const struct pool *p = m->d->pool;
    const int n_nodes = pool_nodes(p);
    if (n_nodes == 1) {
        (void)numa_interleave(m->m.at, span_bytes(m), &m->d->nodes);
        return;
    }
    const bool rows = by_rows(m, n_nodes);
    for (int64_t i = 0; i < (rows ? m->n_stack : 1); i++)
        for (int node = 0; node < n_nodes; node++) {
            int64_t p0 = share_at(p, m->n_stack, node), p1 = share_at(p, m->n_stack, node + 1);
            if (rows)
                device_matrix_share(m, i, node, &p0, &p1);
            const size_t unit = rows ? m->m.panel_bytes : m->stack_step,
                         first = (size_t)i * m->stack_step;
            prefer(m, first + (size_t)p0 * unit, first + (size_t)p1 * unit, node);
        }
}

/* Pages of [from, to) of a share whose home is `node`. */
static void look_at(const uint8_t *from, size_t n_bytes, int node, struct device_placement *p,
                    uint64_t *right, uint64_t *known)
{
    enum { MOST = 16 };
    const void *at[MOST];
    int where[MOST];
    const size_t n = n_bytes / MOST >= HUGE_PAGE ? MOST : n_bytes / HUGE_PAGE + 1;
    for (size_t i = 0; i < n; i++)
        at[i] = from + n_bytes / n * i + n_bytes / n / 2;
    const bool said = numa_nodes_of(at, n, where);
    for (size_t i = 0; i < n; i++) {
        const bool unknown = !said || where[i] < 0;
        p->pages++;
        p->unknown += unknown;
        *known += !unknown;
        *right += !unknown && where[i] == node;
    }
}

void device_matrix_look(const struct device_matrix *m, struct device_placement *p)
{
    enum { MATRICES = 16 };
    const struct device *d = m->d;
    const int64_t step = num_max(1, m->n_stack / MATRICES);
    uint64_t right = 0, known = 0;
    if (!d->placed || !m->m.at || m->each || m->card)
        return;
    for (int64_t i = 0; i < m->n_stack; i += step)
        for (int node = 0; node < pool_nodes(d->pool); node++) {
            int64_t p0, p1;
            device_matrix_share(m, i, node, &p0, &p1);
            if (p0 < p1)
                look_at(device_matrix_at(m, i) + (size_t)p0 * m->m.panel_bytes,
                        (size_t)(p1 - p0) * m->m.panel_bytes, pool_node_id(d->pool, node), p,
                        &right, &known);
        }
    if (!known)
        return;
    p->bytes += (double)device_matrix_bytes(m);
    p->local_bytes += (double)device_matrix_bytes(m) * (double)right / (double)known;
}

void device_matrix_load(struct device_matrix *m, int64_t index, int64_t row0, int64_t n,
                        const void *stored)
{
    BUG_IF(index >= m->n_stack);
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
