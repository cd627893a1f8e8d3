/* SPDX-License-Identifier: Apache-2.0 */
/* self_math - the start-up comparison of the chosen math kernels with their plain versions. */
#include "base/cpu.h"
#include "base/report.h"
#include "kern/math.h"
#include "kern/self.h"

enum { N = 77, PAIRS = 19 };

struct data {
    float x[N], y[N], z[N], out[N];
};

static void run_norm(const struct kern_math_table *t, struct data *d)
{
    t->norm(d->out, d->x, d->y, N, 1e-6f);
}
static void run_add(const struct kern_math_table *t, struct data *d)
{
    t->add(d->out, d->x, N);
}
static void run_add_scaled(const struct kern_math_table *t, struct data *d)
{
    t->add_scaled(d->out, d->x, 0.3f, N);
}
static void run_scale(const struct kern_math_table *t, struct data *d)
{
    t->scale(d->out, d->x, 0.3f, N);
}
static void run_mul(const struct kern_math_table *t, struct data *d)
{
    t->mul(d->out, d->x, N);
}
static void run_glu_gelu(const struct kern_math_table *t, struct data *d)
{
    t->glu_gelu(d->out, d->x, d->y, N);
}
static void run_glu_silu(const struct kern_math_table *t, struct data *d)
{
    t->glu_silu(d->out, d->x, d->y, N);
}
static void run_softcap(const struct kern_math_table *t, struct data *d)
{
    t->softcap(d->out, 3.0f, N);
}
static void run_sqrt_softplus(const struct kern_math_table *t, struct data *d)
{
    t->sqrt_softplus(d->out, N);
}
static void run_rope(const struct kern_math_table *t, struct data *d)
{
    t->rope(d->out, d->x, PAIRS, N / 2);
}
static void run_rope_pairs(const struct kern_math_table *t, struct data *d)
{
    t->rope_pairs(d->out, d->x, PAIRS, false);
    t->rope_pairs(d->out + 2 * PAIRS, d->y, PAIRS, true);
}
static void run_softmax(const struct kern_math_table *t, struct data *d)
{
    t->softmax(d->out, d->x, N);
}
static void run_dot(const struct kern_math_table *t, struct data *d)
{
    d->out[0] = t->dot(d->x, d->y, N);
}
static void run_find_bad(const struct kern_math_table *t, struct data *d)
{
    d->out[0] = (float)t->find_bad(d->x, N);
    d->x[N - 9] = 1.0f / d->z[0];
    d->out[1] = (float)t->find_bad(d->x, N);
}
static void run_argmax(const struct kern_math_table *t, struct data *d)
{
    d->out[0] = (float)t->argmax(d->x, N);
}

static void fill(struct data *d)
{
    kern_self_fill(d->x, N, 1);
    kern_self_fill(d->y, N, 2);
    kern_self_fill(d->out, N, 3);
    memset(d->z, 0, sizeof d->z);
}

#define OPS(X)                                                                                     \
    X(norm)                                                                                        \
    X(add) X(add_scaled) X(scale) X(mul) X(glu_gelu) X(glu_silu) X(softcap) X(sqrt_softplus)       \
        X(rope) X(rope_pairs) X(softmax) X(dot) X(find_bad) X(argmax)

#define X(op)                                                                             \
    static void copy_##op(struct kern_math_table *t, const struct kern_math_table *from) \
    {                                                                                     \
        t->op = from->op;                                                                 \
    }
OPS(X)
#undef X

static const struct op {
    const char *name;
    void (*run)(const struct kern_math_table *t, struct data *d);
    void (*copy)(struct kern_math_table *t, const struct kern_math_table *from);
} ops[] = {
#define X(op) {#op, run_##op, copy_##op},
    OPS(X)
#undef X
};

#define KERN_MATH(needs, table) extern const struct kern_math_table table;
#include "kern/math.inc"
#undef KERN_MATH

static const struct set {
    uint32_t needs;
    const struct kern_math_table *table;
} sets[] = {
#define KERN_MATH(needs, table) {needs, &table},
#include "kern/math.inc"
#undef KERN_MATH
};

static bool same(const struct op *op, const struct kern_math_table *t)
{
    struct data want, got;
    fill(&want);
    fill(&got);
    op->run(sets[0].table, &want);
    op->run(t, &got);
    return kern_self_same(want.out, got.out, N);
}

int kern_math_self_test(struct kern_math_table *t, uint32_t cpu, const struct report_sink *sink)
{
    int n_bad = 0;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (same(&ops[i], t))
            continue;
        n_bad++;
        size_t s = sizeof sets / sizeof *sets;
        do
            if ((sets[--s].needs & ~cpu) == 0)
                ops[i].copy(t, sets[s].table);
        while (s && !same(&ops[i], t));
        report(sink, INGLE_REPORT_WARN, "kernel", ops[i].name,
               "differs from the plain kernel; '%s' is used instead", cpu_name(sets[s].needs));
    }
    return n_bad;
}
