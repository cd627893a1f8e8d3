/* SPDX-License-Identifier: Apache-2.0 */
/* files - how far the tensors of two model files are apart, whatever they stand in. */
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/write.h"
#include "tool/source.h"
#include <math.h>
#include <string.h>

enum { CHUNK = 1 << 17 };

struct part {
    double difference, reference, max_abs;
    uint64_t n_bad;
    ingle_status status;
    struct err err;
};

struct pair {
    struct tool_source *s[2];
    size_t i[2];
    uint64_t n_rows, matrix_rows, rows_per_chunk;
    struct part *part;
};

static ingle_status read_floats(struct pair *p, int k, uint64_t row, uint64_t n, float *x,
                                struct err *err)
{
    const struct io_tensor *t = tool_source_at(p->s[k], p->i[k]);
    void *work = mem_alloc(tool_source_work(p->s[k], p->i[k], n) + 1),
         *raw = mem_alloc((size_t)(t->n_bytes / p->n_rows * n) + 1);
    ingle_status st = work && raw
                          ? tool_source_rows(p->s[k], p->i[k], row, n, work, raw, err)
                          : err_set(err, INGLE_NOMEM, "no memory for rows of tensor '%s'", t->name);
    if (!st)
        quant_decode(t->type, raw, x, (size_t)(n * t->ne[0]));
    mem_free(work);
    mem_free(raw);
    return st;
}

static void compare_chunk(void *arg, int64_t chunk, int worker)
{
    struct pair *p = arg;
    struct part *r = &p->part[chunk];
    const uint64_t width = tool_source_at(p->s[0], p->i[0])->ne[0];
    uint64_t row = (uint64_t)chunk * p->rows_per_chunk;
    const uint64_t end = row + p->rows_per_chunk < p->n_rows ? row + p->rows_per_chunk : p->n_rows;
    float *x = mem_calloc((size_t)((end - row) * width) * 2, sizeof *x),
          *y = x ? x + (end - row) * width : NULL;
    (void)worker;
    if (!x)
        r->status = err_set(&r->err, INGLE_NOMEM, "no memory to compare tensors");
    while (row < end && !r->status) {
        const uint64_t left = p->matrix_rows - row % p->matrix_rows,
                       n = left < end - row ? left : end - row;
        r->status = read_floats(p, 0, row, n, x, &r->err);
        if (!r->status)
            r->status = read_floats(p, 1, row, n, y, &r->err);
        for (uint64_t i = 0; i < n * width && !r->status; i++) {
            const double d = (double)x[i] - (double)y[i];
            if (!isfinite(d)) {
                r->n_bad++;
                continue;
            }
            r->difference += d * d;
            r->reference += (double)y[i] * (double)y[i];
            r->max_abs = fabs(d) > r->max_abs ? fabs(d) : r->max_abs;
        }
        row += n;
    }
    mem_free(x);
}

static ingle_status compare_tensors(struct pool *pool, struct pair *p, struct part *sum,
                                    struct err *err)
{
    const struct io_tensor *t = tool_source_at(p->s[0], p->i[0]);
    p->n_rows = p->matrix_rows = t->n_dims > 1 ? t->ne[1] : 1;
    for (uint32_t k = 2; k < t->n_dims; k++)
        p->n_rows *= t->ne[k];
    p->rows_per_chunk = t->ne[0] >= CHUNK ? 1 : CHUNK / t->ne[0];
    const int64_t n = num_div_up((int64_t)p->n_rows, (int64_t)p->rows_per_chunk);
    p->part = mem_calloc((size_t)n, sizeof *p->part);
    if (!p->part)
        return err_set(err, INGLE_NOMEM, "no memory to compare tensor '%s'", t->name);
    pool_run(pool, n, compare_chunk, p);
    *sum = (struct part){0};
    ingle_status st = INGLE_OK;
    for (int64_t i = 0; i < n && !st; i++) {
        const struct part *r = &p->part[i];
        st = r->status;
        if (st && err)
            *err = r->err;
        sum->difference += r->difference;
        sum->reference += r->reference;
        sum->n_bad += r->n_bad;
        sum->max_abs = r->max_abs > sum->max_abs ? r->max_abs : sum->max_abs;
    }
    mem_free(p->part);
    return st;
}

static double relative(double difference, double reference)
{
    return reference > 0 ? sqrt(difference / reference) : difference > 0 ? (double)INFINITY : 0;
}

static bool same_shape(const struct io_tensor *a, const struct io_tensor *b)
{
    for (int i = 0; i < IO_MAX_DIMS; i++)
        if (((uint32_t)i < a->n_dims ? a->ne[i] : 1) != ((uint32_t)i < b->n_dims ? b->ne[i] : 1))
            return false;
    return true;
}

static void add_line(struct str *out, const struct io_tensor *a, const struct io_tensor *b,
                     const struct part *r, bool json)
{
    const double rms = relative(r->difference, r->reference);
    if (!json) {
        str_addf(out, "%-44s %-7s %-7s relative RMS %-10.3g max abs %-10.3g%s\n", a->name,
                 quant_info(a->type)->name, quant_info(b->type)->name, rms, r->max_abs,
                 r->n_bad ? " not finite" : "");
        return;
    }
    write_key(out, a->name);
    write_open(out, '{');
    write_key(out, "types");
    write_open(out, '[');
    write_text(out, quant_info(a->type)->name);
    write_text(out, quant_info(b->type)->name);
    write_close(out, ']');
    write_member_significant(out, "relative_rms", 9, isfinite(rms) ? rms : 1e300);
    write_member_significant(out, "max_abs", 9, r->max_abs);
    write_member_uint(out, "not_finite", r->n_bad);
    write_close(out, '}');
}

ingle_status tool_compare_files(struct pool *pool, const char *a, const char *b, bool json,
                                const struct report_sink *sink, struct str *out, int64_t *n_other,
                                struct err *err)
{
    struct pair p = {{NULL, NULL}, {0, 0}, 0, 0, 0, NULL};
    double difference = 0, reference = 0;
    size_t n_same = 0;
    ingle_status st = tool_source_open(&p.s[0], a, NULL, sink, err);
    if (!st)
        st = tool_source_open(&p.s[1], b, NULL, sink, err);
    const size_t n = st ? 0 : tool_source_n(p.s[0]);
    out->spaced = true;
    if (json)
        write_open(out, '{');
    for (size_t i = 0; i < n && !st; i++) {
        const struct io_tensor *ta = tool_source_at(p.s[0], i),
                               *tb = tool_source_find(p.s[1], ta->name);
        struct part r = {0};
        if (report_progress(sink, "compare", (double)i, (double)n))
            st = err_set(err, INGLE_CANCEL, "%s: stopped", a);
        if (st || !tb || !same_shape(ta, tb))
            continue;
        p.i[0] = i;
        for (p.i[1] = 0; tool_source_at(p.s[1], p.i[1]) != tb;)
            p.i[1]++;
        st = compare_tensors(pool, &p, &r, err);
        if (!st)
            add_line(out, ta, tb, &r, json);
        n_same++;
        if (ta->n_dims > 1) { /* vectors differ by much or not at all */
            difference += r.difference;
            reference += r.reference;
        }
    }
    *n_other = st ? 0 : (int64_t)(n + tool_source_n(p.s[1])) - 2 * (int64_t)n_same;
    if (json)
        str_adds(out, "}\n");
    else if (!st)
        str_addf(out, "all matrices: relative RMS %.3g\n", relative(difference, reference));
    tool_source_close(p.s[0]);
    tool_source_close(p.s[1]);
    if (!st && !str_ok(out))
        st = err_set(err, INGLE_NOMEM, "no memory for the comparison");
    return st;
}
