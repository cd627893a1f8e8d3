/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same as bench_coupling for a network that drafts: bench_coupling_pair TARGET DRAFTER PROMPTS
 * [TEMPERATURE [SEEDS]]. PROMPTS has the ids of a prompt a line.  Answers are drawn by the target;
 * at each place the network drafts with the answer's own tokens before, so that every row is one
 * that a draft would reach.  One line for each depth.
 */
#include "golden/drafter.h"

#include "base/mem.h"
#include "session/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CTX = 640, ANSWER = 120, DEPTH = 8, SHARP = 5 };

static const float BY[SHARP] = {1.25f, 1.5f, 2, 3, 4};

struct tally {
    double bound, draw, sum, best, sharp[SHARP];
    int64_t n;
};

struct pair {
    struct drafter d;
    struct runner *r;
    struct sampler *s;
    int64_t n_vocab, n_prompt, n_answer;
    int32_t token[CTX];  /* prompt and answer */
    float *logits;       /* [ANSWER][n_vocab]: of the target, for answer token k */
    double *p, *q;       /* [n_vocab] */
    int64_t at;          /* the first drafted token's place in the answer */
    struct tally tally[DEPTH];
};

/* Probabilities to p; returns the draw, the token at the shared number of the sum, and the best
 * one. */
static void look(struct pair *x, const float *logits, uint64_t i, double *p, int32_t out[3])
{
    struct err e;
    struct sample_token t;
    const struct sample_choice *c;
    int64_t n, j = 0;
    GOLDEN_OK(session_sample_draw(x->s, logits, i, NULL, 0, &t, &e));
    GOLDEN_OK(session_sample_distribution(x->s, logits, i, NULL, 0, &c, &n, &e));
    memset(p, 0, (size_t)x->n_vocab * sizeof *p);
    for (int64_t k = 0; k < n; k++)
        p[c[k].id] = c[k].p;
    const double u = session_draw_coin(99, i);
    double reached = 0;
    while (j + 1 < n && (reached += c[j].p) <= u)
        j++;
    out[0] = t.id;
    out[1] = c[j].id;
    out[2] = c[0].id;
}

static bool row(void *arg, int64_t item, int64_t j, const float *logits, int32_t *token)
{
    struct pair *x = arg;
    const int64_t k = x->at + j;
    (void)item;
    if (k >= x->n_answer || j >= DEPTH)
        return false;
    int32_t a[3], b[3];
    const uint64_t i = (uint64_t)(x->n_prompt + k);
    struct tally *t = &x->tally[j];
    look(x, x->logits + k * x->n_vocab, i, x->p, a);
    look(x, logits, i, x->q, b);
    for (int64_t v = 0; v < x->n_vocab; v++)
        t->bound += fmin(x->p[v], x->q[v]);
    t->draw += a[0] == b[0];
    t->sum += a[1] == b[1];
    t->best += x->p[b[2]];
    t->n++;
    for (int m = 0; m < SHARP; m++) {
        struct sample_token drawn;
        struct err e;
        session_sample_sharpen(x->s, BY[m]);
        GOLDEN_OK(session_sample_draw(x->s, logits, i, NULL, 0, &drawn, &e));
        t->sharp[m] += drawn.id == a[0];
    }
    session_sample_sharpen(x->s, 1);
    *token = x->token[x->n_prompt + k];
    return true;
}

static void answer(struct pair *x)
{
    struct err e;
    struct session *s;
    struct session_reuse reuse;
    GOLDEN_OK(session_create(&s, x->r, &e));
    GOLDEN_OK(session_sync(s, x->token, x->n_prompt, &reuse, &e));
    for (x->n_answer = 0; x->n_answer < ANSWER; x->n_answer++) {
        const float *logits = NULL;
        struct sample_token t;
        GOLDEN_OK(session_finish(s, &logits, NULL, &e));
        memcpy(x->logits + x->n_answer * x->n_vocab, logits, (size_t)x->n_vocab * sizeof *logits);
        GOLDEN_OK(session_sample_draw(x->s, logits, (uint64_t)(x->n_prompt + x->n_answer), NULL, 0,
                                      &t, &e));
        x->token[x->n_prompt + x->n_answer] = t.id;
        GOLDEN_OK(session_append(s, &t.id, 1, &e));
        if (t.id == 1 || t.id == 106 || t.id == 50) {
            x->n_answer++;
            break;
        }
    }
    session_free(s);
}

static void drafts(struct pair *x)
{
    struct err e;
    struct session *s;
    struct session_reuse reuse;
    GOLDEN_OK(session_create(&s, x->r, &e));
    GOLDEN_OK(session_sync(s, x->token, x->n_prompt, &reuse, &e));
    for (int64_t k = 0; k + 1 < x->n_answer; k++) {
        const float *logits = NULL;
        int32_t out[64];
        GOLDEN_OK(session_finish(s, &logits, NULL, &e));
        GOLDEN_OK(session_append(s, &x->token[x->n_prompt + k], 1, &e));
        struct session_draft item = {
            .s = s, .width = x->d.info.most < DEPTH ? x->d.info.most : DEPTH, .token = out};
        x->at = k + 1;
        GOLDEN_OK(session_draft(x->r, &item, 1, row, x, NULL, &e));
    }
    session_free(s);
}

int main(int argc, char **argv)
{
    static struct pair x;
    static char line[1 << 16];
    struct err e;
    if (argc < 4) {
        fputs("bench_coupling_pair TARGET DRAFTER PROMPTS [TEMPERATURE [SEEDS]]\n", stderr);
        return 2;
    }
    drafter_open(&x.d, argv[1], argv[2],
                 &(struct drafter_options){.target = {.codec = KERN_KV_F32}});
    struct golden_model *g = &x.d.g;
    const struct runner_options o = {.n_ctx = CTX,
                                     .max_rows = 128,
                                     .kv = kv_types_of(KERN_KV_F16),
                                     .kv_budget_bytes = (uint64_t)1 << 29,
                                     .tree_budget_bytes = (uint64_t)1 << 27,
                                     .sink = &g->sink,
                                     .draft = x.d.kind,
                                     .draft_self = x.d.self,
                                     .draft_info = x.d.info};
    GOLDEN_OK(session_runner_create(&x.r, g->family, g->self, &g->info, g->device, &o, &e));
    x.n_vocab = g->info.n_vocab;
    x.logits = mem_calloc((size_t)(ANSWER * x.n_vocab), sizeof *x.logits);
    x.p = mem_calloc((size_t)x.n_vocab, sizeof *x.p);
    x.q = mem_calloc((size_t)x.n_vocab, sizeof *x.q);
    for (int seed = 1; seed <= (argc > 5 ? atoi(argv[5]) : 3); seed++) {
        FILE *f = fopen(argv[3], "r");
        struct sample_options so;
        session_sample_defaults(&so);
        so.temperature = argc > 4 ? (float)atof(argv[4]) : 1;
        so.seed = (uint64_t)seed;
        GOLDEN_OK(session_sample_create(&x.s, &so, x.n_vocab, 1, &e));
        while (f && fgets(line, sizeof line, f)) {
            char *at = line, *end;
            for (x.n_prompt = 0; x.n_prompt < CTX - ANSWER - 32; at = end) {
                const long id = strtol(at, &end, 10);
                if (end == at)
                    break;
                x.token[x.n_prompt++] = (int32_t)id;
            }
            if (x.n_prompt) {
                answer(&x);
                drafts(&x);
            }
        }
        if (f)
            fclose(f);
        session_sample_free(x.s);
    }
    puts("| depth | rows | bound | race | shared sum | most probable | race, logits times 1.25 | "
         "1.5 | 2 | 3 | 4 |\n"
         "|---|---|---|---|---|---|---|---|---|---|---|");
    for (int j = 0; j < DEPTH && x.tally[j].n; j++) {
        const struct tally *t = &x.tally[j];
        const double n = (double)t->n;
        printf("| %d | %lld | %.3f | %.3f | %.3f | %.3f |", j + 1, (long long)t->n, t->bound / n,
               t->draw / n, t->sum / n, t->best / n);
        for (int m = 0; m < SHARP; m++)
            printf(" %.3f |", t->sharp[m] / n);
        puts("");
    }
    mem_free(x.logits);
    mem_free(x.p);
    mem_free(x.q);
    session_runner_clear_tree(x.r);
    session_runner_free(x.r);
    drafter_close(&x.d);
    return 0;
}
