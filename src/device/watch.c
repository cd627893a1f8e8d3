/* SPDX-License-Identifier: Apache-2.0 */
/* watch - shows what matrices are multiplied with: products one after the other, with what is
 * between them in memory. */
#include "device/ops.h"
#include <stddef.h>

void device_set_watch(struct device *d, device_watch_fn *fn, void *arg)
{
    d->watch = fn;
    d->watch_arg = arg;
}

void device_watch_products(struct device *d, const struct device_product *p, int64_t n)
{
    if (d->dry || d->err.status)
        return;
    for (int64_t i = 0; i < n; i++)
        if (p[i].x.at && p[i].y.n) {
            device_read_rows(d, p[i].x);
            device_read(d, p[i].row, (size_t)p[i].y.n * sizeof *p[i].row);
            d->watch(d->watch_arg,
                     &(struct device_watched){p[i].w, p[i].index, p[i].x, p[i].row, p[i].y.n});
        }
}

/* Rows [at, at + n) of y by matrix `index`, of x's rows by number. */
static void watch_one(struct device *d, const struct device_mlp *m, int64_t index, struct rows x,
                      const int32_t *row, struct rows gate, struct rows up, struct rows y)
{
    const struct device_product in[2] = {{m->gate, index, x, gate, row},
                                         {m->up, index, x, up, row}};
    device_matmul(d, in, m->up ? 2 : 1);
    const int64_t width = device_matrix_in(m->down);
    const struct rows g = m->up ? gate : rows_columns(gate, 0, width),
                      u = m->up ? up : rows_columns(gate, width, width);
    device_glu(d, m->act, m->limit, g, g, u);
    device_matmul(d, &(struct device_product){m->down, index, g, y, NULL}, 1);
}

void device_watch_mlp(struct device *d, const struct device_mlp *m, struct rows x, struct rows y)
{
    const size_t mark = device_mark(d);
    const struct rows gate = device_rows(d, y.n, device_matrix_out(m->gate));
    const struct rows up = m->up ? device_rows(d, y.n, device_matrix_out(m->up)) : gate;
    if (!m->first || d->dry) {
        watch_one(d, m, 0, (struct rows){x.at, y.n, x.width, x.stride}, NULL, gate, up, y);
        device_release(d, mark);
        return;
    }
    device_read(d, m->first, (size_t)(device_matrix_stack(m->gate) + 1) * sizeof *m->first);
    for (int64_t e = 0; e < device_matrix_stack(m->gate); e++) {
        const int64_t at = m->first[e], n = m->first[e + 1] - at;
        if (n && (!m->only || m->only[e]))
            watch_one(d, m, e, x, m->row + at, rows_slice(gate, at, n), rows_slice(up, at, n),
                      rows_slice(y, at, n));
    }
    device_release(d, mark);
}
