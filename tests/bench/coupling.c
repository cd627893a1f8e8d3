/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often a drafter draws what its target draws: bench_coupling [VOCABULARY [PAIRS]].  For pairs
 * of distributions that differ by noise in the logits: the bound sum min(p, q) of rejection
 * sampling; the race (session_sample_draw()); the inverse of the cumulative sum in order of
 * probability with a shared number; and a drafter that takes the most probable token.
 */
#include "base/mem.h"
#include "session/draw.h"
#include "session/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS = 32 };

static uint64_t state = 1;

static double dice(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)((state >> 11) + 1) * 0x1p-53;
}

static double bell(void)
{
    return sqrt(-2 * log(dice())) * cos(6.283185307179586 * dice());
}

struct side {
    struct sampler *s;
    float *logits;
    double *p;              /* by token */
    struct sample_choice *c;
    int64_t n;
    int32_t drawn[DRAWS], by_sum[DRAWS];
};

static void die(void)
{
    fputs("bench_coupling: no memory, or a draw failed\n", stderr);
    exit(1);
}

static void open_side(struct side *a, const struct sample_options *o, int64_t n)
{
    a->logits = mem_calloc((size_t)n, sizeof *a->logits);
    a->p = mem_calloc((size_t)n, sizeof *a->p);
    a->c = mem_calloc((size_t)n, sizeof *a->c);
    if (!a->logits || !a->p || !a->c || session_sample_create(&a->s, o, n, 1, NULL))
        die();
}

static void close_side(struct side *a)
{
    session_sample_free(a->s);
    mem_free(a->logits);
    mem_free(a->p);
    mem_free(a->c);
}

static void look(struct side *a, int64_t n_vocab, uint64_t pair)
{
    const struct sample_choice *c;
    struct sample_token t;
    for (int d = 0; d < DRAWS; d++) {
        if (session_sample_draw(a->s, a->logits, pair * DRAWS + (uint64_t)d, NULL, 0, &t, NULL))
            die();
        a->drawn[d] = t.id;
    }
    if (session_sample_distribution(a->s, a->logits, pair * DRAWS, NULL, 0, &c, &a->n, NULL))
        die();
    memcpy(a->c, c, (size_t)a->n * sizeof *c);
    memset(a->p, 0, (size_t)n_vocab * sizeof *a->p);
    for (int64_t j = 0; j < a->n; j++)
        a->p[c[j].id] = c[j].p;
    for (int d = 0; d < DRAWS; d++) {
        const double u = session_draw_coin(99, pair * DRAWS + (uint64_t)d);
        double reached = 0;
        int64_t j = 0;
        while (j + 1 < a->n && (reached += c[j].p) <= u)
            j++;
        a->by_sum[d] = c[j].id;
    }
}

static void compare(const char *name, struct sample_options o, double noise, int64_t n_vocab,
                    int64_t pairs)
{
    struct side p, q;
    double bound = 0, draw = 0, sum = 0, best = 0;
    state = 1;
    open_side(&p, &o, n_vocab);
    open_side(&q, &o, n_vocab);
    for (int64_t k = 0; k < pairs; k++) {
        for (int64_t t = 0; t < n_vocab; t++)
            p.logits[t] = (float)(2.2 * bell());
        for (int i = 0; i < 8; i++)
            p.logits[(int64_t)(dice() * (double)n_vocab) % n_vocab] += (float)(3 - 4 * log(dice()));
        for (int64_t t = 0; t < n_vocab; t++)
            q.logits[t] = p.logits[t] + (float)(noise * bell());
        look(&p, n_vocab, (uint64_t)k);
        look(&q, n_vocab, (uint64_t)k);
        for (int64_t t = 0; t < n_vocab; t++)
            bound += fmin(p.p[t], q.p[t]);
        best += p.p[q.c[0].id];
        for (int d = 0; d < DRAWS; d++) {
            draw += (double)(p.drawn[d] == q.drawn[d]) / DRAWS;
            sum += (double)(p.by_sum[d] == q.by_sum[d]) / DRAWS;
        }
    }
    const double n = (double)pairs;
    printf("| %-28s | %.1f | %.3f | %.3f | %.3f | %.3f |\n", name, noise, bound / n, draw / n,
           sum / n, best / n);
    close_side(&p);
    close_side(&q);
}

int main(int argc, char **argv)
{
    const int64_t n = argc > 1 ? atoll(argv[1]) : 2000, pairs = argc > 2 ? atoll(argv[2]) : 400;
    static const double NOISE[] = {0.3, 0.7, 1.2, 2.0};
    if (n < 8 || pairs < 1)
        return 1;
    puts("| options | noise | bound | race | shared sum | argmax draft "
         "|\n|---|---|---|---|---|---|");
    for (size_t k = 0; k < 4; k++) {
        struct sample_options o;
        session_sample_defaults(&o);
        o.seed = 7;
        o.temperature = 1;
        compare("temperature 1", o, NOISE[k], n, pairs);
        o.temperature = 0.6f;
        compare("temperature 0.6", o, NOISE[k], n, pairs);
        o.temperature = 1;
        o.top_k = 64;
        o.top_p = 0.95f;
        compare("top-k 64, top-p 0.95", o, NOISE[k], n, pairs);
        o.top_k = 0;
        o.top_p = 1;
        o.min_p = 0.05f;
        compare("min-p 0.05", o, NOISE[k], n, pairs);
        o.xtc_probability = 0.5f;
        o.xtc_threshold = 0.1f;
        compare("min-p 0.05, XTC 0.5 0.1", o, NOISE[k], n, pairs);
        o.xtc_probability = 0;
        o.min_p = 0;
        o.typical_p = 0.9f;
        compare("typical 0.9", o, NOISE[k], n, pairs);
    }
    return 0;
}
