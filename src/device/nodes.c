/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes - which memory node has which rows of a matrix, and where they are.
 *
 * Of a large matrix each node has rows.  Of a stack of small ones (experts) it would have whole
 * matrices, and the few that a token chooses would be those of one node.  So the stacks of a layer
 * are divided: a node's memory has its rows of the first expert's matrices, then those of the
 * second, and so on.  Matrices that follow one another (those of attention, of layer after layer)
 * are divided as a run: a node's memory has its rows of the first one, then those of the next, so
 * that borders of pages cost nothing, however small a matrix is.
 */
#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include "device/ops.h"
#include <string.h>

enum {
    HUGE_PAGE = 2 << 20,
    LEAST_SHARE = 2 * HUGE_PAGE, /* below it borders of pages say too much */
    GROUP_BANDS = 256 / (KERN_PANEL * KERN_BAND), /* of a group of 256 hidden values */
    ANYWHERE = 128 << 10, /* bytes of a matrix that need not be on all nodes: it stays in a cache */
};

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

void device_matrix_share(const struct device_matrix *m, int64_t index, int node, int half,
                         int64_t *p0, int64_t *p1)
{
    const struct pool *p = m->d->pool;
    const int64_t n = m->m.n_panels;
    *p0 = 0;
    *p1 = n;
    if (m->piece) {
        const struct device_piece *piece = &m->piece[node * m->n_halves + half];
        *p0 = piece->p0;
        *p1 = piece->p1;
    } else if (pool_nodes(p) > 1 && by_rows(m, pool_nodes(p))) {
        const int64_t bands = num_div_up(n, KERN_BAND);
        *p0 = num_min(n, share_at(p, bands, node) * KERN_BAND);
        *p1 = num_min(n, share_at(p, bands, node + 1) * KERN_BAND);
    } else if (pool_nodes(p) > 1 && (index < share_at(p, m->n_stack, node) ||
                                     index >= share_at(p, m->n_stack, node + 1))) {
        *p1 = 0;
    }
}

int device_matrix_halves(const struct device_matrix *m)
{
    return m->n_halves;
}

/* Where panel 0 of the matrix would be, if those of the piece were a part of it. */
static uint8_t *base_of(const struct device_matrix *m, const struct device_piece *piece,
                        int64_t index)
{
    union {
        uintptr_t number;
        uint8_t *at;
    } base = {.at = piece->at + (size_t)index * piece->step};
    base.number -= (uintptr_t)piece->p0 * m->m.panel_bytes;
    return base.at;
}

uint8_t *device_matrix_panels(const struct device_matrix *m, int64_t index, int64_t p, int64_t *end)
{
    *end = m->m.n_panels;
    if (!m->piece)
        return device_matrix_at(m, index);
    const struct device_piece *piece = m->piece;
    while (p < piece->p0 || p >= piece->p1)
        piece++;
    *end = piece->p1;
    return base_of(m, piece, index);
}

uint8_t *device_matrix_base(const struct device_matrix *m, int64_t index, int node, int half)
{
    return m->piece ? base_of(m, &m->piece[node * m->n_halves + half], index)
                    : device_matrix_at(m, index);
}

/* Bytes [from, to) of `all` from `base` on are to be on a node.  Borders between nodes move to the
 * nearest huge page: one page has one home. */
static void prefer(const struct device_matrix *m, uint8_t *base, size_t all, size_t from, size_t to,
                   int node)
{
    const uintptr_t at = (uintptr_t)base, half = HUGE_PAGE / 2;
    to = to < all ? to : all;
    const uintptr_t a = from ? (at + from + half) / HUGE_PAGE * HUGE_PAGE : at;
    const uintptr_t b = to < all ? (at + to + half) / HUGE_PAGE * HUGE_PAGE : at + to;
    if (a >= at && a < b && b <= at + all)
        (void)numa_prefer(base + (a - at), b - a, pool_node_id(m->d->pool, node));
}

/* ---- divided stacks ---- */

/* Bands that a node's rows of part k are multiples of: those of gate and up are whole groups of
 * hidden values, where down reads groups of 256. */
static int64_t unit_of(struct device_matrix *const *part, int n_parts, int k)
{
    const struct device_matrix *down = part[n_parts - 1];
    return k < n_parts - 1 && down->m.act == KERN_ACT_Q256 ? GROUP_BANDS : 1;
}

/* Whether the rows of these stacks can be divided: every node has some of each that is not tiny.
 * Single matrices read other groups in a prompt with fast numerics. */
static bool divides(struct device_matrix *const *part, int n_parts)
{
    const struct pool *p = part[0]->d->pool;
    const bool merged = n_parts == 2;
    for (int k = 0; k < n_parts; k++) {
        const struct device_matrix *m = part[k];
        const int64_t halves = merged && k == 0 ? 2 : 1,
                      bands = num_div_up(m->m.n_panels, KERN_BAND) / halves;
        if (m->each || m->wanted == DEVICE_CARD || m->n_stack != part[0]->n_stack ||
            (bands / unit_of(part, n_parts, k) < pool_nodes(p) && m->stack_bytes > ANYWHERE) ||
            (halves == 2 && m->m.out % (2 * KERN_BAND * KERN_PANEL)))
            return false;
    }
    return pool_nodes(p) > 1 && n_parts >= 2 && part[0]->n_stack > 1;
}

/* Panels of a node's piece; their place is not known yet. */
static struct device_piece piece_of(const struct device_matrix *m, int64_t unit, int node, int half)
{
    const struct pool *p = m->d->pool;
    const int64_t n = m->m.n_panels / m->n_halves, first = half * n, step = unit * KERN_BAND,
                  units = num_div_up(n, step);
    return (struct device_piece){first + num_min(n, share_at(p, units, node) * step),
                                 first + num_min(n, share_at(p, units, node + 1) * step), NULL, 0};
}

static size_t piece_bytes(const struct device_matrix *m, const struct device_piece *piece)
{
    return (size_t)(piece->p1 - piece->p0) * m->m.panel_bytes;
}

bool device_matrix_divide(struct device_matrix *const *part, int n_parts, void *at, size_t n_bytes)
{
    if (!divides(part, n_parts))
        return false;
    const int n_nodes = pool_nodes(part[0]->d->pool);
    struct device_piece *piece[DEVICE_DIVIDED] = {0};
    bool there = true;
    BUG_IF(n_parts > DEVICE_DIVIDED);
    for (int k = 0; k < n_parts; k++)
        there = (piece[k] = mem_calloc((size_t)n_nodes * 2, sizeof *piece[k])) && there;
    for (int k = 0; k < n_parts && !there; k++)
        mem_free(piece[k]);
    if (!there)
        return false;
    size_t used = 0;
    part[0]->n_halves = n_parts == 2 ? 2 : 1;
    for (int node = 0; node < n_nodes; node++) {
        size_t one = 0; /* of an expert */
        for (int k = 0; k < n_parts; k++)
            for (int half = 0; half < part[k]->n_halves; half++) {
                struct device_piece *to = &piece[k][node * part[k]->n_halves + half];
                *to = piece_of(part[k], unit_of(part, n_parts, k), node, half);
                to->at = (uint8_t *)at + used + one;
                one += piece_bytes(part[k], to);
            }
        for (int k = 0; k < n_parts; k++)
            for (int half = 0; half < part[k]->n_halves; half++)
                piece[k][node * part[k]->n_halves + half].step = one;
        used += one * (size_t)part[0]->n_stack;
    }
    BUG_IF(used > n_bytes);
    for (int k = 0; k < n_parts; k++) {
        mem_free(part[k]->piece);
        part[k]->piece = piece[k];
    }
    return true;
}

/* Pieces of the matrices of a run: all of node 0, then all of node 1. Returns their bytes. */
static size_t lay_run(struct device_matrix *const *m, size_t n, uint8_t *at)
{
    size_t used = 0;
    for (int node = 0; node < pool_nodes(m[0]->d->pool); node++)
        for (size_t i = 0; i < n; i++) {
            struct device_piece *to = &m[i]->piece[node];
            *to = piece_of(m[i], 1, node, 0);
            to->step = piece_bytes(m[i], to);
            to->at = at + used;
            used += to->step * (size_t)m[i]->n_stack;
        }
    return used;
}

bool device_matrix_divide_run(struct device_matrix *const *m, size_t n, void *at, size_t n_bytes)
{
    const int n_nodes = n ? pool_nodes(m[0]->d->pool) : 1;
    bool there = true;
    if (n_nodes == 1)
        return false;
    for (size_t i = 0; i < n; i++) {
        BUG_IF(m[i]->each || m[i]->wanted == DEVICE_CARD);
        mem_free(m[i]->piece);
        m[i]->n_halves = 1;
        m[i]->piece = mem_calloc((size_t)n_nodes, sizeof *m[i]->piece);
        there = there && m[i]->piece;
    }
    for (size_t i = 0; i < n && !there; i++) {
        mem_free(m[i]->piece);
        m[i]->piece = NULL;
    }
    if (!there)
        return false;
    const size_t all = lay_run(m, n, at);
    BUG_IF(all > n_bytes);
    for (int node = 0; node < n_nodes; node++) {
        const size_t from = (size_t)(m[0]->piece[node].at - (uint8_t *)at),
                     to = node + 1 < n_nodes ? (size_t)(m[0]->piece[node + 1].at - (uint8_t *)at)
                                             : all;
        prefer(m[0], at, all, from, to, node);
    }
    return true;
}

bool device_matrix_is_divided(const struct device_matrix *m)
{
    return m->piece;
}

void device_matrix_region(const struct device_matrix *gate, int node, uint8_t **at, size_t *n_bytes)
{
    BUG_IF(!gate->piece);
    const struct device_piece *piece = &gate->piece[node * gate->n_halves];
    *at = piece->at;
    *n_bytes = piece->step * (size_t)gate->n_stack;
}

void device_matrix_load_divided(const struct device_matrix *m, int64_t index, int64_t row0,
                                int64_t n, const void *stored)
{
    const int64_t from = row0 / KERN_PANEL, to = num_div_up(row0 + n, KERN_PANEL);
    uint64_t row_bytes;
    BUG_IF(row0 % KERN_PANEL != 0 || row0 + n > m->m.out);
    BUG_IF(n % KERN_PANEL != 0 && row0 + n != m->m.out);
    BUG_IF(!quant_bytes(m->m.type, (uint64_t)m->m.in, 1, &row_bytes));
    for (int i = 0; i < pool_nodes(m->d->pool) * m->n_halves; i++) {
        const struct device_piece *piece = &m->piece[i];
        const int64_t p0 = num_max(from, piece->p0), p1 = num_min(to, piece->p1);
        struct kern_matrix k = m->m;
        k.at = base_of(m, piece, index);
        if (p0 < p1)
            kern_pack(&k, p0, p1,
                      (const uint8_t *)stored + (size_t)((p0 - from) * KERN_PANEL) * row_bytes);
    }
}

void device_matrix_gather(const struct device_matrix *m, int64_t index, void *to)
{
    BUG_IF(!m->piece || index < 0 || index >= m->n_stack);
    for (int i = 0; i < pool_nodes(m->d->pool) * m->n_halves; i++) {
        const struct device_piece *piece = &m->piece[i];
        memcpy((uint8_t *)to + (size_t)piece->p0 * m->m.panel_bytes,
               piece->at + (size_t)index * piece->step, piece_bytes(m, piece));
    }
}

/* ---- the system's pages ---- */

/* From the beginning of the first matrix of the stack to the end of the last. */
static size_t span_bytes(const struct device_matrix *m)
{
    return (size_t)(m->n_stack - 1) * m->stack_step + m->stack_bytes;
}

/* All stacks that are divided with m. */
static void place_divided(const struct device_matrix *m)
{
    const int n_nodes = pool_nodes(m->d->pool);
    uint8_t *base, *at;
    size_t all = 0, n, from = 0;
    device_matrix_region(m, 0, &base, &n);
    for (int node = 0; node < n_nodes; node++) {
        device_matrix_region(m, node, &at, &n);
        all += n;
    }
    for (int node = 0; node < n_nodes; node++) {
        device_matrix_region(m, node, &at, &n);
        prefer(m, base, all, from, from + n, node);
        from += n;
    }
}

void device_matrix_spread(const struct device_matrix *m)
{
    const struct pool *p = m->d->pool;
    const int n_nodes = pool_nodes(p);
    if (n_nodes == 1) {
        (void)numa_interleave(m->m.at, span_bytes(m), &m->d->nodes);
        return;
    }
    if (m->piece) {
        place_divided(m);
        return;
    }
    const bool rows = by_rows(m, n_nodes);
    for (int64_t i = 0; i < (rows ? m->n_stack : 1); i++)
        for (int node = 0; node < n_nodes; node++) {
            int64_t p0 = share_at(p, m->n_stack, node), p1 = share_at(p, m->n_stack, node + 1);
            if (rows)
                device_matrix_share(m, i, node, 0, &p0, &p1);
            const size_t unit = rows ? m->m.panel_bytes : m->stack_step,
                         first = (size_t)i * m->stack_step;
            prefer(m, m->m.at, span_bytes(m), first + (size_t)p0 * unit, first + (size_t)p1 * unit,
                   node);
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

void device_matrix_placement(const struct device_matrix *m, struct device_placement *p)
{
    enum { MATRICES = 16 };
    const struct device *d = m->d;
    const int64_t step = num_max(1, m->n_stack / MATRICES);
    uint64_t right = 0, known = 0;
    if (!d->placed || !m->m.at || m->each || m->card)
        return;
    for (int64_t i = 0; i < m->n_stack; i += step)
        for (int k = 0; k < pool_nodes(d->pool) * m->n_halves; k++) {
            const int node = k / m->n_halves, half = k % m->n_halves;
            int64_t p0, p1;
            device_matrix_share(m, i, node, half, &p0, &p1);
            if (p0 < p1)
                look_at(device_matrix_base(m, i, node, half) + (size_t)p0 * m->m.panel_bytes,
                        (size_t)(p1 - p0) * m->m.panel_bytes, pool_node_id(d->pool, node), p,
                        &right, &known);
        }
    if (!known)
        return;
    const double bytes = (double)m->stack_bytes * (double)m->n_stack;
    p->bytes += bytes;
    p->local_bytes += bytes * (double)right / (double)known;
}
