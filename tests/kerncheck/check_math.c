/* SPDX-License-Identifier: Apache-2.0 */
/* check_math - errors of the scalar functions, and every math kernel against plain C. */
#include "kerncheck/checks.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "kern/math.h"
#include <math.h>
#include <stdlib.h>

#define KERN_MATH(needs, table) extern const struct kern_math_table table;
#include "kern/math.inc"
#undef KERN_MATH

static const struct set {
    const char *name;
    uint32_t needs;
    const struct kern_math_table *t;
} sets[] = {
#define KERN_MATH(needs, table) {#table, needs, &table},
#include "kern/math.inc"
#undef KERN_MATH
};

static double true_sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double true_log1p_exp(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }

static const struct scalar {
    const char *name;
    float (*got)(float);
    double (*want)(double);
    double ulps; /* the bound that math.h states */
} scalars[] = {{"exp", kern_exp, exp, 1},
               {"tanh", kern_tanh, tanh, 3},
               {"sigmoid", kern_sigmoid, true_sigmoid, 3},
               {"log1p_exp", kern_log1p_exp, true_log1p_exp, 4}};

/* Distance in units of the last place of want as a float. */
static double ulps(float got, double want)
{
    if (isnan(want))
        return isnan(got) ? 0 : HUGE_VAL;
    if ((double)got == want || (float)want == got)
        return 0;
    if (want > 0 && want < exp(-87) && got == 0) /* exp and what is made of it */
        return 0;
    if (isinf((float)want) || isinf(got))
        return HUGE_VAL;
    int e;
    (void)frexp(want, &e);
    return fabs((double)got - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

static int check_scalar(const struct scalar *s, struct noise *r)
{
    double worst = 0;
    float at = 0;
    for (int64_t i = 0; i < 1500000; i += fence_sparse_trials() ? 50 : 1) {
        float x;
        if (i < 700000) /* dense over all bit patterns */
            x = noise_bits((uint32_t)i * 6131u);
        else if (i < 1100000)
            x = 110.0f * noise_unit(r);
        else
            x = noise_unit(r) * noise_unit(r) * 4.0f;
        double e = ulps(s->got(x), s->want((double)x));
        if (!(e <= worst)) {
            worst = e;
            at = x;
        }
    }
    printf("%-10s at most %.3f ulp, at %.9g\n", s->name, worst, (double)at);
    return !(worst <= s->ulps);
}

enum { N = 700 };

struct data {
    float x[N], y[N], w[N];
};

static float draw(struct noise *r, int kind)
{
    static const float odd[] = {0.0f, -0.0f, 1.0f, -1.0f, 88.7228f, -103.9f, 1e-40f, -1e-40f,
                                3e38f, -3e38f, 1e-20f, 20.0f, INFINITY, -INFINITY, NAN, 0.5f};
    float u = noise_unit(r);
    switch (kind) {
    case 0:
        return u;
    case 1:
        return u * 100.0f;
    case 2:
        return noise_bits((uint32_t)noise_next(r)); /* every float, NaN included */
    default:
        return noise_below(r, 4) ? u * 10.0f : odd[noise_below(r, 16)];
    }
}

/* x, y, w of n floats each, beside a fence. */
static struct data_at {
    float *x, *y, *w;
} place(int which, int64_t n)
{
    static float *mem[2][3];
    static enum fence_side side;
    if (!mem[0][0] || side != fence_now())
        for (int i = 0; i < 6; i++)
            if (!(mem[i / 3][i % 3] = mem_calloc(N, sizeof(float))))
                abort();
    side = fence_now();
    const int64_t at = side == FENCE_BEGIN ? 0 : N - n;
    return (struct data_at){mem[which][0] + at, mem[which][1] + at, mem[which][2] + at};
}

static struct data_at place_copy(int which, int64_t n, const struct data *from)
{
    const struct data_at to = place(which, n);
    memcpy(to.x, from->x, (size_t)n * sizeof(float));
    memcpy(to.y, from->y, (size_t)n * sizeof(float));
    memcpy(to.w, from->w, (size_t)n * sizeof(float));
    return to;
}

/* Runs op on a copy of the data; out gets everything that it wrote. */
static void run(const struct kern_math_table *t, int op, const struct data *from, int64_t n,
                float s, struct data *out)
{
    const struct data_at d = place_copy(0, n, from), o = place_copy(1, n, from);
    float one = from->y[0];
    bool is_one = false;
    switch (op) {
    case 0: t->norm(o.y, d.x, d.w, n, 1e-6f); break;
    case 1: t->norm(o.x, o.x, NULL, n, 1e-6f); break;
    case 2: t->add(o.y, d.x, n); break;
    case 3: t->add_scaled(o.y, d.x, s, n); break;
    case 4: t->scale(o.y, d.x, s, n); break;
    case 5: t->mul(o.y, d.x, n); break;
    case 6: t->glu_gelu(o.y, d.x, d.w, n); break;
    case 7: t->glu_silu(o.y, d.x, d.w, n); break;
    case 8: t->softcap(o.y, s, n); break;
    case 9: t->rope(o.y, d.x, n / 3, n / 2); break;
    case 10: t->softmax(o.y, d.x, n); break;
    case 11: t->softmax(o.x, o.x, n); break;
    case 12: one = t->dot(d.x, d.w, n), is_one = true; break;
    case 13: one = (float)t->find_bad(d.x, n), is_one = true; break;
    case 14: one = (float)t->argmax(d.x, n), is_one = true; break;
    case 15: t->glu_silu(o.x, o.x, d.w, n); break;
    case 16: t->scale(o.y, o.y, s, n); break;
    case 17: t->rope_pairs(o.y, d.x, n / 2, false); break;
    case 18: t->rope_pairs(o.y, d.x, n / 2, true); break;
    case 19: t->sqrt_softplus(o.y, n); break;
    }
    *out = *from;
    memcpy(out->x, o.x, (size_t)n * sizeof(float));
    memcpy(out->y, o.y, (size_t)n * sizeof(float));
    memcpy(out->w, o.w, (size_t)n * sizeof(float));
    if (is_one)
        out->y[0] = one;
}

static const char *const op_name[] = {"norm",
                                      "norm in place",
                                      "add",
                                      "add_scaled",
                                      "scale",
                                      "mul",
                                      "glu_gelu",
                                      "glu_silu",
                                      "softcap",
                                      "rope",
                                      "softmax",
                                      "softmax in place",
                                      "dot",
                                      "find_bad",
                                      "argmax",
                                      "glu_silu in place",
                                      "scale in place",
                                      "rope_pairs",
                                      "rope_pairs inverse",
                                      "sqrt_softplus"};
enum { N_OPS = sizeof op_name / sizeof *op_name };

static int check_set(const struct set *s, struct noise *r)
{
    static struct data d, want, got;
    int n_bad = 0;
    for (int round = 0; round < (fence_sparse_trials() ? 200 : 400); round++) {
        int kind = round & 3;
        int64_t n = round < 160 ? round / 2 : noise_below(r, N + 1);
        float factor = kind == 2 ? draw(r, 3) : noise_unit(r) * 30.0f;
        for (int i = 0; i < N; i++) {
            d.x[i] = draw(r, kind);
            d.y[i] = draw(r, kind);
            d.w[i] = draw(r, kind);
        }
        if (round % 5 == 0 && n) /* ties */
            d.x[noise_below(r, n)] = d.x[noise_below(r, n)];
        for (int op = 0; op < N_OPS; op++) {
            run(sets[0].t, op, &d, n, factor, &want);
            run(s->t, op, &d, n, factor, &got);
            const float *a = (const float *)&want, *b = (const float *)&got;
            for (int i = 0; i < 3 * N; i++)
                if (!noise_same(a[i], b[i])) {
                    printf("%s: %s of %d values: [%d] is %.9g, plain C has %.9g\n", s->name,
                           op_name[op], (int)n, i, (double)b[i], (double)a[i]);
                    n_bad++;
                    break;
                }
        }
    }
    return n_bad;
}

/* The plain kernels against double precision, on tame data. */
static int check_plain(struct noise *r)
{
    static struct data d, out;
    const struct kern_math_table *t = sets[0].t;
    int n_bad = 0;
    for (int i = 0; i < N; i++) {
        d.x[i] = 6.0f * noise_unit(r);
        d.w[i] = noise_unit(r);
        d.y[i] = noise_unit(r);
    }
    double sq = 0, top = -1e9, sum = 0, dot = 0, mass = 0;
    for (int i = 0; i < N; i++) {
        double x = (double)d.x[i], w = (double)d.w[i];
        sq += x * x;
        top = fmax(top, x);
        dot += x * w;
        mass += fabs(x * w);
    }
    for (int i = 0; i < N; i++)
        sum += exp((double)d.x[i] - top);
    double f = 1 / sqrt(sq / N + 1e-6);
    for (int op = 0; op < 12; op++) {
        run(t, op, &d, N, 1.7f, &out);
        for (int i = 0; i < N; i++) {
            double x = (double)d.x[i], y = (double)d.y[i], w = (double)d.w[i], want, tol = 1e-6;
            switch (op) {
            case 0: want = x * f * w; break;
            case 2: want = y + x; break;
            case 3: want = y + (double)1.7f * x; break;
            case 4: want = (double)1.7f * x; break;
            case 5: want = x * y; break;
            case 6:
                want = 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))) * w;
                tol = 2e-6;
                break;
            case 7: want = x / (1 + exp(-x)) * w; break;
            case 8: want = (double)1.7f * tanh(y / (double)1.7f); break;
            case 10: want = exp(x - top) / sum; break;
            default: continue;
            }
            double bound = tol * fabs(want) + (op < 6 ? 2e-7 : 1e-12);
            if (!(fabs((double)out.y[i] - want) <= bound)) {
                printf("%s: [%d] is %.9g, not %.9g\n", op_name[op], i, (double)out.y[i], want);
                n_bad++;
                break;
            }
        }
    }
    if (!(fabs((double)t->dot(d.x, d.w, N) - dot) <= 1e-6 * mass)) {
        printf("dot is off\n");
        n_bad++;
    }
    return n_bad;
}

static int check_angles(struct noise *r)
{
    double inv[64];
    float cs[128];
    int n_bad = 0;
    for (int i = 0; i < 64; i++)
        inv[i] = pow(10000.0 + 990000.0 * fabs((double)noise_unit(r)), -i / 64.0);
    for (int round = 0; round < (fence_sparse_trials() ? 50 : 2000); round++) {
        int64_t pos = round < 4 ? round : noise_below(r, 1 << 20);
        kern_rope_angles(cs, pos, inv, 64);
        for (int i = 0; i < 64; i++) {
            long double angle = (long double)pos * (long double)inv[i];
            long double c = fabsl((long double)cs[2 * i] - cosl(angle));
            long double s = fabsl((long double)cs[2 * i + 1] - sinl(angle));
            n_bad += !(c <= 3.1e-8L && s <= 3.1e-8L); /* half a place below 1, and 1e-9 */
        }
    }
    if (n_bad)
        printf("rope angles: %d are off\n", n_bad);
    return n_bad;
}

int check_math(uint64_t seed, uint32_t cpu)
{
    struct noise r = {seed};
    int n_bad = 0;
    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++)
        n_bad += check_scalar(&scalars[i], &r);
    n_bad += check_plain(&r);
    n_bad += check_angles(&r);
    for (size_t i = 1; i < sizeof sets / sizeof *sets; i++)
        if ((sets[i].needs & ~cpu) == 0)
            n_bad += check_set(&sets[i], &r);
    return n_bad;
}
