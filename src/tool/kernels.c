/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tool.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "kern/kern.h"
#include "quant/quant.h"

#include <string.h>

/* A matrix of 512 x 1024 and 64 rows of activations stay in a core's caches. */
enum { OUT = 512, IN = 1024, ROWS = 64, ROUNDS = 5 };

struct measure {
    const struct kern_table *table;
    struct kern_matrix w;
    struct kern_act act;
    float *y; /* f32 [threads][ROWS][OUT] */
};

/* Every thread multiplies the same matrix into rows of its own. */
static void multiply(void *arg, int64_t chunk, int worker)
{
    const struct measure *m = arg;
    (void)chunk;
    const struct kern_matmul p = {.w = &m->w,
                                  .x = &m->act,
                                  .n = ROWS,
                                  .y = m->y + (int64_t)worker * ROWS * OUT,
                                  .y_stride = OUT};
    m->table->matmul.run[m->w.code](&p, 0, m->w.n_panels);
}

static double time_product(struct pool *p, struct measure *m)
{
    const int64_t chunks = 8 * pool_size(p);
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t start = clock_now();
        pool_run(p, chunks, multiply, m);
        const uint64_t took = clock_now() - start;
        best = took < best ? took : best;
    }
    return 2.0 * (double)OUT * (double)IN * (double)ROWS * (double)chunks * 1e9 /
           (double)(best ? best : 1);
}

static ingle_status measure(struct pool *p, const struct kern_table *t, uint32_t type,
                            double *ops_per_s, struct err *err)
{
    struct measure m = {.table = t};
    uint64_t n_bytes;
    ingle_status st = kern_matrix_init(&m.w, type, OUT, IN, err);
    if (st)
        return st;
    if (!quant_bytes(type, IN, OUT, &n_bytes))
        return err_set(err, INGLE_UNSUP, "type %u has no rows of %d", type, IN);
    const size_t y_bytes = (size_t)pool_size(p) * ROWS * OUT * sizeof(float);
    const size_t w_bytes = kern_matrix_bytes(&m.w);
    const size_t act_bytes = kern_act_bytes(m.w.act, ROWS, IN) + 64;
    void *stored = mem_zalloc((size_t)n_bytes), *act = mem_big_alloc(act_bytes);
    float *x = mem_calloc(ROWS * IN, sizeof *x);
    m.w.at = mem_big_alloc(w_bytes);
    m.y = mem_big_alloc(y_bytes);
    if (stored && act && x && m.w.at && m.y) {
        for (int i = 0; i < ROWS * IN; i++)
            x[i] = (float)(i % 17) - 8;
        /* a scale of 0 is 2^-127: sums would be denormal, which takes fifty times as long */
        if (type == QUANT_MXFP4)
            memset(stored, 0x7b, (size_t)n_bytes);
        kern_pack(&m.w, 0, m.w.n_panels, stored);
        kern_act_init(&m.act, m.w.act, ROWS, IN, x, IN, act);
        if (t->matmul.act[m.w.act])
            t->matmul.act[m.w.act](&m.act, 0, ROWS);
        *ops_per_s = time_product(p, &m);
    } else {
        st = err_set(err, INGLE_NOMEM, "no memory to measure products");
    }
    mem_free(stored);
    mem_free(x);
    mem_big_free(act, act_bytes);
    mem_big_free(m.w.at, w_bytes);
    mem_big_free(m.y, y_bytes);
    return st;
}

static bool is_measured(uint32_t type)
{
    return type == QUANT_F32 || type == QUANT_F16 || type == QUANT_Q8_0 || type == QUANT_Q4_0 ||
           type == QUANT_Q4_K || type == QUANT_Q6_K || type == QUANT_MXFP4;
}

ingle_status tool_kernels(struct pool *p, uint32_t cpu, const struct report_sink *sink,
                          struct tool_kernel *out, size_t n_max, size_t *n, int *n_failed,
                          struct err *err)
{
    struct kern_table t;
    kern_table_init(&t, cpu);
    *n_failed = kern_self_test(&t, sink);
    kern_matmul_calibrate(&t.matmul, NULL);
    *n = 0;
    if (*n < n_max)
        out[(*n)++] = (struct tool_kernel){.type = "attention",
                                           .name = t.attend.name,
                                           .fast = t.attend.fast_name,
                                           .recipe = t.attend.recipe};
    for (uint32_t type = 0; type < 256 && *n < n_max; type++) {
        struct kern_matrix w;
        const struct quant_info *info = quant_info(type);
        if (!info || kern_matrix_init(&w, type, OUT, IN, NULL) || !t.matmul.run[w.code])
            continue;
        struct tool_kernel k = {.type = info->name,
                                .name = t.matmul.name[w.code],
                                .many = t.matmul.many_name[w.code],
                                .many_from = t.matmul.many_from[w.code],
                                .fast = t.matmul.fast_name[w.code],
                                .recipe = t.matmul.recipe[w.code]};
        if (is_measured(type)) {
            const ingle_status st = measure(p, &t, type, &k.ops_per_s, err);
            if (st)
                return st;
        }
        out[(*n)++] = k;
    }
    return INGLE_OK;
}
