/* SPDX-License-Identifier: Apache-2.0 */
/* Codes for a size: errors of samples are measured, then the smallest codes are raised where a byte
 * gains most. */
#include "tool/budget.h"

#include "base/mem.h"
#include "base/pool.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 1 << 15, CODES = 12 }; /* elements that are measured of a tensor */

static const uint32_t codes[CODES] = { /* smallest first */
    QUANT_IQ2_XXS, QUANT_IQ2_XS, QUANT_IQ2_S, QUANT_IQ3_XXS, QUANT_IQ3_S, QUANT_IQ4_XS,
    QUANT_IQ4_NL,  QUANT_Q4_K,   QUANT_Q5_0,  QUANT_Q5_K,    QUANT_Q6_K,  QUANT_Q8_0,
};

struct step { /* one code of a tensor */
    uint32_t type;
    uint64_t n_bytes;
    double cost; /* error, weighed by how much the tensor computes */
};

struct ladder {
    struct step step[CODES];
    int n, at;
    ingle_status status;
    struct err err;
};

struct measure {
    uint32_t cpu;
    struct tool_source *in;
    const struct tool_budget_item *item;
    struct ladder *ladder;
    const struct report_sink *sink;
};

/* Some rows, spread over the tensor. */
static ingle_status read_sample(const struct measure *m, const struct tool_budget_item *it,
                                size_t rows, float *x, unsigned char *raw, unsigned char *work,
                                struct err *err)
{
    const struct io_tensor *t = it->t;
    const size_t n = (size_t)t->ne[0];
    for (size_t r = 0; r < rows; r++) {
        const uint64_t row = it->n_rows / rows * r;
        const ingle_status s = tool_source_rows(m->in, it->i, row, 1, work, raw, err);
        if (s)
            return s;
        if (quant_find_bad(t->type, raw, n / quant_info(t->type)->n) >= 0)
            return err_set(err, INGLE_FORMAT,
                           "%s: tensor '%s': row %llu has an element that is no finite number",
                           tool_source_path(m->in), t->name, (unsigned long long)row);
        quant_decode(t->type, raw, x + r * n, n);
    }
    return INGLE_OK;
}

static double relative_error(const float *x, const float *y, size_t n)
{
    double e = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)y[i];
        e += d * d;
        all += (double)x[i] * (double)x[i];
    }
    return all > 0 ? e / all : 0;
}

static void measure_tensor(void *arg, int64_t chunk, int worker)
{
    const struct measure *m = arg;
    const struct tool_budget_item *it = &m->item[chunk];
    struct ladder *l = &m->ladder[chunk];
    (void)worker;
    if (!it->choose)
        return;
    const size_t n = (size_t)it->t->ne[0];
    size_t rows = n < SAMPLE ? SAMPLE / n : 1;
    rows = rows < it->n_rows ? rows : (size_t)it->n_rows;
    float *x = mem_calloc(rows * n, sizeof *x), *y = mem_calloc(rows * n, sizeof *y);
    unsigned char *raw = mem_alloc((size_t)(it->t->n_bytes / it->n_rows)),
                  *out = mem_calloc(rows * n, 2);
    unsigned char *work = mem_alloc(tool_source_work(m->in, it->i, 1) + 1);
    if (!x || !y || !raw || !out || !work)
        l->status = err_set(&l->err, INGLE_NOMEM, "no memory to measure tensor '%s'", it->t->name);
    else
        l->status = read_sample(m, it, rows, x, raw, work, &l->err);
    int first = 0;
    while (it->least != QUANT_F32 && first < CODES - 1 && codes[first] != it->least)
        first++;
    for (int k = first; k < CODES && !l->status; k++) {
        struct step s = {.type = codes[k]};
        if (n % quant_info(codes[k])->n || !quant_bytes(codes[k], n, it->n_rows, &s.n_bytes))
            continue;
        quant_fit(m->cpu, codes[k], x, NULL, out, n, rows);
        quant_decode(codes[k], out, y, rows * n);
        s.cost = relative_error(x, y, rows * n) * it->weight * (double)it->n_rows * (double)n;
        /* only codes that are better than every smaller one, and gain as much a byte as those
         * before */
        while (l->n && l->step[l->n - 1].n_bytes >= s.n_bytes && l->step[l->n - 1].cost >= s.cost)
            l->n--;
        if (!l->n || s.cost < l->step[l->n - 1].cost)
            l->step[l->n++] = s;
    }
    mem_free(x);
    mem_free(y);
    mem_free(raw);
    mem_free(work);
    mem_free(out);
}

/* The best later step of a ladder by gain a byte among those that cost at most `left` more bytes;
 * 0: none. */
static int next_step(const struct ladder *l, uint64_t left, double *gain)
{
    const struct step *now = &l->step[l->at];
    int best = 0;
    for (int k = l->at + 1; k < l->n; k++) {
        const uint64_t more = l->step[k].n_bytes - now->n_bytes;
        const double g = (now->cost - l->step[k].cost) / (double)(more ? more : 1);
        if (l->step[k].n_bytes > now->n_bytes && more <= left && (!best || g > *gain)) {
            best = k;
            *gain = g;
        }
    }
    return best;
}

static void raise_steps(struct ladder *l, size_t n, uint64_t left)
{
    for (;;) {
        size_t which = n;
        int to = 0;
        double best = 0;
        for (size_t i = 0; i < n; i++) {
            double gain = 0;
            const int k = l[i].n ? next_step(&l[i], left, &gain) : 0;
            if (k && (which == n || gain > best)) {
                which = i;
                to = k;
                best = gain;
            }
        }
        if (which == n)
            return;
        left -= l[which].step[to].n_bytes - l[which].step[l[which].at].n_bytes;
        l[which].at = to;
    }
}

ingle_status tool_budget(struct pool *p, uint32_t cpu, struct tool_source *in,
                         struct tool_budget_item *item, size_t n, uint64_t n_bytes,
                         const struct report_sink *sink, struct err *err)
{
    struct ladder *ladder = mem_calloc(n ? n : 1, sizeof *ladder);
    struct measure m = {cpu, in, item, ladder, sink};
    uint64_t least = 0;
    ingle_status s = ladder
                         ? INGLE_OK
                         : err_set(err, INGLE_NOMEM, "no memory to choose codes of %zu tensors", n);
    enum { AT_ONCE = 16 };
    for (size_t i = 0; i < n && !s; i += AT_ONCE) {
        m.item = item + i;
        m.ladder = ladder + i;
        pool_run(p, (int64_t)(n - i < AT_ONCE ? n - i : AT_ONCE), measure_tensor, &m);
        if (report_progress(sink, "measure", (double)(i + AT_ONCE < n ? i + AT_ONCE : n),
                            (double)n))
            s = err_set(err, INGLE_CANCEL, "%s: stopped", tool_source_path(in));
    }
    for (size_t i = 0; i < n && !s; i++) {
        if (ladder[i].status) {
            s = ladder[i].status;
            if (err)
                *err = ladder[i].err;
        }
        least += ladder[i].n ? ladder[i].step[0].n_bytes : item[i].n_bytes;
    }
    if (!s && least > n_bytes)
        s = err_set(err, INGLE_LIMIT,
                    "%s: tensors have at least %llu bytes, more than the %llu of --fit",
                    tool_source_path(in), (unsigned long long)least, (unsigned long long)n_bytes);
    if (!s)
        raise_steps(ladder, n, n_bytes - least);
    for (size_t i = 0; i < n && !s; i++)
        if (ladder[i].n) {
            const struct step *at = &ladder[i].step[ladder[i].at];
            item[i].type = at->type;
            item[i].error =
                at->cost / (item[i].weight * (double)item[i].n_rows * (double)item[i].t->ne[0]);
        }
    mem_free(ladder);
    return s;
}
