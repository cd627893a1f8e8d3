/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/unit.h"

#include "session/draw.h"
#include "session/sample.h"

#include <math.h>
#include <string.h>

static struct sample_options options(void)
{
    struct sample_options o;
    session_sample_defaults(&o);
    o.temperature = 1;
    return o;
}

static struct sampler *sampler(const struct sample_options *o, int64_t n_vocab)
{
    struct sampler *s = NULL;
    struct err err = {0};
    if (session_sample_create(&s, o, n_vocab, 64, &err))
        fail_msg("%s", err.msg);
    return s;
}

static int32_t draw(struct sampler *s, const float *l, uint64_t i, const int32_t *h, int64_t n)
{
    struct sample_token t = {-1, 0};
    struct err err = {0};
    if (session_sample_draw(s, l, i, h, n, &t, &err))
        fail_msg("%s", err.msg);
    return t.id;
}

/* The kept ids and probabilities; returns how many. */
static int64_t kept(const struct sample_options *o, const float *l, int64_t n_vocab,
                    const int32_t *h, int64_t n_h, int32_t *id, double *p)
{
    struct sampler *s = sampler(o, n_vocab);
    const struct sample_choice *c;
    int64_t n;
    struct err err = {0};
    if (session_sample_distribution(s, l, 0, h, n_h, &c, &n, &err))
        fail_msg("%s", err.msg);
    for (int64_t j = 0; j < n; j++) {
        id[j] = c[j].id;
        p[j] = c[j].p;
    }
    session_sample_free(s);
    return n;
}

static void near(double a, double b, double tol)
{
    if (!(fabs(a - b) <= tol))
        fail_msg("%.17g is not %.17g within %g", a, b, tol);
}

/* Logits of probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 in mixed order. */
static const double PROB[5] = {0.0625, 0.5, 0.125, 0.0625, 0.25};
static void log_probs(float *l)
{
    for (int t = 0; t < 5; t++)
        l[t] = (float)log(PROB[t]);
}

static void greedy_takes_the_first_of_equals(void **state)
{
    (void)state;
    struct sample_options o;
    session_sample_defaults(&o);
    struct sampler *s = sampler(&o, 5);
    const float l[5] = {-1, 3, 2, 3, -INFINITY}, zero[5] = {-0.0f, 0, -0.0f, 0, 0};
    assert_int_equal(draw(s, l, 0, NULL, 0), 1);
    assert_int_equal(draw(s, zero, 1, NULL, 0), 0);
    session_sample_free(s);
}

static void the_distribution_is_softmax(void **state)
{
    (void)state;
    struct sample_options o = options();
    float l[5];
    int32_t id[5];
    double p[5];
    log_probs(l);
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 5);
    const int32_t order[5] = {1, 4, 2, 0, 3};
    for (int j = 0; j < 5; j++) {
        assert_int_equal(id[j], order[j]);
        near(p[j], PROB[order[j]], 1e-7);
    }
    o.temperature = 2;
    double sum = 0;
    for (int t = 0; t < 5; t++)
        sum += sqrt(PROB[t]);
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 5);
    near(p[0], sqrt(0.5) / sum, 1e-7);
    o.temperature = 1e-6f;
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 5);
    near(p[0], 1, 0);
    near(p[1], 0, 0);
}

static void top_k_top_p_and_min_p_cut_the_tail(void **state)
{
    (void)state;
    float l[5];
    int32_t id[5];
    double p[5];
    log_probs(l);
    struct sample_options o = options();
    o.top_k = 4; /* of the equal last two the lower id stays */
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 4);
    assert_int_equal(id[3], 0);
    near(p[0], 0.5 / 0.9375, 1e-7);
    o.top_k = 99;
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 5);
    o = options();
    o.top_p = 0.7f;
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 2);
    o.top_p = 0.76f;
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 3);
    o.top_p = 0;
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 1);
    o = options();
    o.min_p = 0.2f;
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 3);
    o.min_p = 1;
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 1);
    o = options();
    o.top_k = 3;     /* 0.571, 0.286, 0.143 */
    o.top_p = 0.55f; /* of the renormalised ones */
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 1);
}

static void typical_keeps_what_is_near_the_entropy(void **state)
{
    (void)state;
    float l[5];
    int32_t id[5];
    double p[5];
    log_probs(l);
    /* H = 1.3 nats; -log p = 2.77, 0.69, 2.08, 2.77, 1.39: distances 1.47 .61 .78 1.47 .09 */
    struct sample_options o = options();
    o.typical_p = 0.2f;
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 1);
    assert_int_equal(id[0], 4);
    o.typical_p = 0.3f;
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 2);
    assert_int_equal(id[0], 1);
    assert_int_equal(id[1], 4);
    near(p[0], 2 / 3.0, 1e-7);
}

static void xtc_removes_all_but_the_least_of_the_top(void **state)
{
    (void)state;
    float l[5];
    int32_t id[5];
    double p[5];
    log_probs(l);
    struct sample_options o = options();
    o.xtc_probability = 1;
    o.xtc_threshold = 0.1f;
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 3);
    assert_int_equal(id[0], 2);
    near(p[0], 0.5, 1e-7);
    o.xtc_threshold = 0.3f; /* only one token reaches it */
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 5);
    o.temperature = 0;
    o.xtc_threshold = 0.1f;
    assert_int_equal(kept(&o, l, 5, NULL, 0, id, p), 1);
    assert_int_equal(id[0], 2);

    o = options();
    o.xtc_probability = 0.3f;
    o.xtc_threshold = 0.1f;
    struct sampler *s = sampler(&o, 5);
    int hits = 0;
    for (uint64_t i = 0; i < 10000; i++) {
        const struct sample_choice *c;
        int64_t n;
        assert_int_equal(session_sample_distribution(s, l, i, NULL, 0, &c, &n, NULL), INGLE_OK);
        hits += n == 3;
    }
    near(hits / 10000.0, 0.3, 0.02);
    session_sample_free(s);
}

static void penalties_follow_the_window(void **state)
{
    (void)state;
    struct sample_options o = options();
    const float l[4] = {2, -2, 1, 0};
    const int32_t h[5] = {3, 0, 0, 1, 0};
    const struct sample_choice *c;
    int64_t n;
    float got[4];
    o.repeat_penalty = 2;
    o.frequency_penalty = 0.25f;
    o.presence_penalty = 0.5f;
    o.penalty_window = 4;
    struct sampler *s = sampler(&o, 4);
    for (int round = 0; round < 2; round++) { /* nothing is remembered */
        assert_int_equal(session_sample_distribution(s, l, 0, h, 5, &c, &n, NULL), INGLE_OK);
        for (int j = 0; j < 4; j++)
            got[c[j].id] = c[j].logit;
        near((double)got[0], 2 / 2.0 - 3 * 0.25 - 0.5, 0);
        near((double)got[1], -2 * 2.0 - 0.25 - 0.5, 0);
        near((double)got[2], 1, 0);
        near((double)got[3], 0, 0);
    }
    session_sample_free(s);
}

static void dry_punishes_what_would_go_on(void **state)
{
    (void)state;
    struct sample_options o = options();
    o.dry_multiplier = 0.5f;
    o.dry_base = 2;
    o.dry_allowed_length = 2;
    const float l[8] = {0};
    /* ... 1 2 3 4 ... 1 2 3: 4 would extend a sequence of 3; 6 one of 1 */
    const int32_t h[] = {1, 2, 3, 4, 3, 6, 1, 2, 3};
    const struct sample_choice *c;
    int64_t n;
    struct sampler *s = sampler(&o, 8);
    assert_int_equal(session_sample_distribution(s, l, 0, h, 9, &c, &n, NULL), INGLE_OK);
    assert_int_equal(c[7].id, 4);
    near((double)c[7].logit, -1, 0);
    near((double)c[6].logit, 0, 0);
    session_sample_free(s);

    const int32_t breaker = 1; /* only 2 3 is left: exponent 0 */
    o.dry_breaker = &breaker;
    o.n_dry_breaker = 1;
    s = sampler(&o, 8);
    assert_int_equal(session_sample_distribution(s, l, 0, h, 9, &c, &n, NULL), INGLE_OK);
    near((double)c[7].logit, -0.5, 0);
    session_sample_free(s);

    const int32_t last = 3; /* the sequence has just ended */
    o.dry_breaker = &last;
    s = sampler(&o, 8);
    assert_int_equal(session_sample_distribution(s, l, 0, h, 9, &c, &n, NULL), INGLE_OK);
    near((double)c[7].logit, 0, 0);
    session_sample_free(s);

    o.n_dry_breaker = 0;
    int32_t same[60];
    for (int j = 0; j < 60; j++)
        same[j] = 5;
    s = sampler(&o, 8);
    assert_int_equal(session_sample_distribution(s, l, 0, same, 60, &c, &n, NULL), INGLE_OK);
    assert_int_equal(c[7].id, 5);
    near((double)c[7].logit, -0.5 * pow(2, 57), 1e10);
    session_sample_free(s);
}

static void bias_and_suppressed_tokens(void **state)
{
    (void)state;
    struct sample_options o;
    session_sample_defaults(&o);
    const float l[4] = {3, 2, 1, 0};
    const struct sample_bias bias[2] = {{3, 5}, {3, -1}};
    const int32_t suppress[1] = {0};
    o.bias = bias;
    o.n_bias = 2;
    o.suppress = suppress;
    o.n_suppress = 1;
    struct sampler *s = sampler(&o, 4);
    assert_int_equal(draw(s, l, 0, NULL, 0), 3);
    session_sample_free(s);
    const struct sample_bias never[1] = {{1, -INFINITY}};
    o.bias = never;
    o.n_bias = 1;
    s = sampler(&o, 4);
    assert_int_equal(draw(s, l, 0, NULL, 0), 2);
    session_sample_free(s);
}

/* 40,000 draws against the exact distribution: chi-square of 4 degrees of freedom. */
static void draws_follow_the_distribution(void **state)
{
    (void)state;
    float l[5];
    log_probs(l);
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct sample_options o = options();
        o.seed = seed;
        struct sampler *s = sampler(&o, 5);
        int count[5] = {0};
        for (uint64_t i = 0; i < 40000; i++)
            count[draw(s, l, i, NULL, 0)]++;
        double chi = 0;
        for (int t = 0; t < 5; t++) {
            const double want = 40000 * PROB[t];
            chi += (count[t] - want) * (count[t] - want) / want;
        }
        if (chi > 18.5) /* one in a thousand */
            fail_msg("chi-square %g for seed %d", chi, (int)seed);
        session_sample_free(s);
    }
}

static void a_token_is_a_function_of_seed_and_number(void **state)
{
    (void)state;
    float l[64];
    for (int t = 0; t < 64; t++)
        l[t] = 0.1f * (float)(t % 7);
    struct sample_options o = options();
    o.seed = 7;
    struct sampler *a = sampler(&o, 64), *b = sampler(&o, 64);
    o.seed = 8;
    struct sampler *c = sampler(&o, 64);
    int other = 0;
    int32_t first[50];
    for (uint64_t i = 0; i < 50; i++)
        first[i] = draw(a, l, i, NULL, 0);
    for (uint64_t i = 50; i-- > 0;) {
        assert_int_equal(draw(b, l, i, NULL, 0), first[i]);
        other += draw(c, l, i, NULL, 0) != first[i];
    }
    assert_true(other > 30);
    session_sample_free(a);
    session_sample_free(b);
    session_sample_free(c);
}

static void random_numbers_are_philox(void **state)
{
    (void)state;
    /* The numbers of tokens 0 to 3 are the known answer of Philox 4x32-10 for an all-zero counter
     * and key, 6627e8d5 e169c58d bc57ac4c 9b00dbd8, as high words of v: the smaller, the sooner. */
    static const double v[4] = {0x6627e8d5p-32, 0xe169c58dp-32, 0xbc57ac4cp-32, 0x9b00dbd8p-32};
    static const int32_t order[4] = {0, 3, 2, 1};
    struct sample_options o = options();
    float l[4] = {0, 0, 0, 0};
    struct sampler *s = sampler(&o, 4);
    for (int j = 0; j < 4; j++) {
        near(session_draw_number(0, 0, j), -log(-log1p(-v[j])), 1e-8);
        assert_int_equal(draw(s, l, 0, NULL, 0), order[j]);
        l[order[j]] = -INFINITY;
    }
    session_sample_free(s);
    /* the one that comes second is ahead when its logit is larger by what its number lacks */
    o.temperature = 2;
    s = sampler(&o, 4);
    const double lacks = 2 * (session_draw_number(0, 0, 0) - session_draw_number(0, 0, 3));
    for (int t = 0; t < 4; t++)
        l[t] = t % 3 ? -INFINITY : 0;
    l[3] = (float)(lacks - 1e-4);
    assert_int_equal(draw(s, l, 0, NULL, 0), 0);
    l[3] = (float)(lacks + 1e-4);
    assert_int_equal(draw(s, l, 0, NULL, 0), 3);
    session_sample_free(s);
}

static uint32_t dice(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

static float bell(uint32_t *x)
{
    float sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (float)dice(x) * 0x1p-24f;
    return sum;
}

/* The winner of all tokens is that of a race of everybody with everybody, for steep, flat and equal
 * logits, with tokens that are forbidden, and at any temperature; and that of a race of the sorted
 * ones. */
static void the_draw_is_the_draw_of_all(void **state)
{
    (void)state;
    enum { N = 3001 };
    static float l[N];
    static uint64_t allowed[(N + 63) / 64];
    static const float TEMPERATURE[] = {1, 0.05f, 4, 1e-6f, 1e6f, 0.7f};
    uint32_t x = 5;
    for (int round = 0; round < 60; round++) {
        struct sample_options o = options();
        const int n = round % 3 ? N : 1 + (int)(dice(&x) % N);
        o.temperature = TEMPERATURE[round % 6];
        o.seed = (uint64_t)round << 33 | 7;
        for (int t = 0; t < n; t++)
            l[t] = round % 5 == 0                   ? 1
                   : round % 5 == 1 && dice(&x) % 4 ? -INFINITY
                                                    : bell(&x) * (float)(1 << round % 7);
        l[n - 1] = 1;
        for (int t = 0; t < N; t += 64)
            allowed[t / 64] = round % 4 ? UINT64_MAX : (uint64_t)dice(&x) << 40 | 1;
        struct sampler *s = sampler(&o, n);
        o.top_k = n; /* sorted */
        struct sampler *sorted = sampler(&o, n);
        session_sample_allow(s, allowed);
        session_sample_allow(sorted, allowed);
        for (uint64_t i = 0; i < 12; i++) {
            int32_t best = -1;
            double most = 0;
            const uint64_t number = i << 31;
            for (int t = 0; t < n; t++) {
                if (!(l[t] > -INFINITY) || !(allowed[t / 64] >> t % 64 & 1))
                    continue;
                const double score =
                    (double)l[t] / (double)o.temperature + session_draw_number(o.seed, number, t);
                if (best < 0 || score > most) {
                    best = t;
                    most = score;
                }
            }
            if (best < 0)
                continue;
            struct sample_token a = {-1, 0}, b = {-1, 0};
            assert_int_equal(session_sample_draw(s, l, number, NULL, 0, &a, NULL), INGLE_OK);
            assert_int_equal(session_sample_draw(sorted, l, number, NULL, 0, &b, NULL), INGLE_OK);
            assert_int_equal(a.id, best);
            assert_int_equal(b.id, best);
        }
        session_sample_free(s);
        session_sample_free(sorted);
    }
}

/* 10,000 draws with every filter against the distribution that session_sample_distribution() tells:
 * chi-square, unlikely tokens together. */
static void draws_follow_what_is_kept(void **state)
{
    (void)state;
    enum { N = 300, DRAWS = 10000 };
    static float l[N];
    static int count[N];
    uint32_t x = 11;
    for (int t = 0; t < N; t++)
        l[t] = 2 * bell(&x);
    for (int kind = 0; kind < 8; kind++) {
        struct sample_options o = options();
        o.seed = 100 + (uint64_t)kind;
        o.temperature = kind % 2 ? 0.7f : 1.3f;
        o.top_k = kind == 1 ? 20 : kind == 2 ? 290 : 0;
        o.top_p = kind == 3 || kind == 7 ? 0.8f : 1;
        o.min_p = kind == 4 ? 0.02f : 0;
        o.typical_p = kind == 5 ? 0.6f : 1;
        o.xtc_probability = kind >= 6 ? 1 : 0;
        o.xtc_threshold = 0.01f;
        struct sampler *s = sampler(&o, N);
        const struct sample_choice *c;
        int64_t n;
        memset(count, 0, sizeof count);
        for (uint64_t i = 0; i < DRAWS; i++)
            count[draw(s, l, i, NULL, 0)]++;
        assert_int_equal(session_sample_distribution(s, l, 0, NULL, 0, &c, &n, NULL), INGLE_OK);
        double chi = 0, rest = 0, sum = 0;
        int others = DRAWS, degrees = -1;
        for (int64_t j = 0; j < n; j++) {
            const double want = DRAWS * c[j].p;
            sum += c[j].p;
            if (want < 20) {
                rest += want;
                continue;
            }
            chi += (count[c[j].id] - want) * (count[c[j].id] - want) / want;
            others -= count[c[j].id];
            degrees++;
        }
        near(sum, 1, 1e-9);
        if (rest >= 5) {
            chi += (others - rest) * (others - rest) / rest;
            degrees++;
        } else {
            assert_true(others <= 20);
        }
        if (chi > degrees + 4 * sqrt(2.0 * degrees) + 4)
            fail_msg("kind %d: chi-square %g with %d degrees of freedom", kind, chi, degrees);
        session_sample_free(s);
    }
}

/* Shared numbers: two distributions have the same winner about as often as sum min(p, q) allows. */
static void near_distributions_draw_the_same(void **state)
{
    (void)state;
    enum { N = 500, DRAWS = 3000 };
    static float l[N], m[N];
    struct sample_options o = options();
    uint32_t x = 3;
    for (int t = 0; t < N; t++) {
        l[t] = 2.5f * bell(&x);
        m[t] = l[t] + 0.5f * bell(&x);
    }
    struct sampler *s = sampler(&o, N);
    const struct sample_choice *c;
    static double p[N];
    int64_t n;
    double bound = 0;
    int same = 0;
    assert_int_equal(session_sample_distribution(s, l, 0, NULL, 0, &c, &n, NULL), INGLE_OK);
    for (int64_t j = 0; j < n; j++)
        p[c[j].id] = c[j].p;
    assert_int_equal(session_sample_distribution(s, m, 0, NULL, 0, &c, &n, NULL), INGLE_OK);
    for (int64_t j = 0; j < n; j++)
        bound += fmin(p[c[j].id], c[j].p);
    for (uint64_t i = 0; i < DRAWS; i++)
        same += draw(s, l, i, NULL, 0) == draw(s, m, i, NULL, 0);
    if (same < 0.9 * bound * DRAWS || same > 1.03 * bound * DRAWS)
        fail_msg("%d of %d are the same, of at most %g", same, DRAWS, bound * DRAWS);
    session_sample_free(s);
}

/* Logits that are multiplied are those of a lower temperature; a target's draw is as before
 * afterwards. */
static void sharper_logits(void **state)
{
    (void)state;
    enum { N = 400 };
    static float l[N];
    uint32_t x = 23;
    for (int t = 0; t < N; t++)
        l[t] = 2 * bell(&x);
    for (int kind = 0; kind < 2; kind++) {
        struct sample_options o = options();
        o.top_k = kind ? 30 : 0;
        struct sampler *s = sampler(&o, N);
        o.temperature = 0.5f;
        struct sampler *half = sampler(&o, N);
        int other = 0;
        for (uint64_t i = 0; i < 100; i++) {
            session_sample_sharpen(s, 2);
            const int32_t sharp = draw(s, l, i, NULL, 0);
            assert_int_equal(sharp, draw(half, l, i, NULL, 0));
            session_sample_sharpen(s, 1);
            other += draw(s, l, i, NULL, 0) != sharp;
        }
        assert_true(other > 20);
        session_sample_sharpen(s, NAN);
        const int32_t t = draw(s, l, 5, NULL, 0);
        session_sample_sharpen(s, 1);
        assert_int_equal(t, draw(s, l, 5, NULL, 0));
        session_sample_free(s);
        session_sample_free(half);
    }
}

/* A token that is allowed and wins without the mask wins with it; and what the draw was from is
 * told afterwards. */
static void masks_change_nothing_among_the_others(void **state)
{
    (void)state;
    enum { N = 300 };
    static float l[N];
    static uint64_t allowed[(N + 63) / 64];
    struct sample_options o = options();
    uint32_t x = 17;
    for (int t = 0; t < N; t++)
        l[t] = 2 * bell(&x);
    for (int t = 0; t < N; t++)
        if (dice(&x) % 2)
            allowed[t / 64] |= UINT64_C(1) << t % 64;
    struct sampler *s = sampler(&o, N);
    assert_true(session_sample_is_free(s));
    int kept_ones = 0;
    for (uint64_t i = 0; i < 500; i++) {
        session_sample_allow(s, NULL);
        const int32_t free_one = draw(s, l, i, NULL, 0);
        session_sample_allow(s, allowed);
        const int32_t t = draw(s, l, i, NULL, 0);
        assert_true(allowed[t / 64] >> t % 64 & 1);
        if (allowed[free_one / 64] >> free_one % 64 & 1) {
            assert_int_equal(t, free_one);
            kept_ones++;
        }
        float logprob;
        struct sample_top top[3];
        const struct sample_choice *c;
        int64_t n;
        assert_int_equal(session_sample_last(s, t, &logprob, top, 3), 3);
        assert_int_equal(session_sample_distribution(s, l, i, NULL, 0, &c, &n, NULL), INGLE_OK);
        for (int64_t j = 0; j < n; j++)
            if (c[j].id == t)
                near((double)logprob, log(c[j].p), 1e-6);
        assert_int_equal(top[0].id, c[0].id);
    }
    assert_true(kept_ones > 100);
    session_sample_free(s);
    o.min_p = 0.1f;
    s = sampler(&o, N);
    assert_false(session_sample_is_free(s));
    session_sample_free(s);
}

/* A draw from a part is that with all others forbidden, whatever was drawn before. */
static void a_part_is_a_mask(void **state)
{
    (void)state;
    enum { N = 1000 };
    static const struct device_columns part[] = {{64, 128}, {320, 64}, {832, N - 832}};
    static float l[N];
    static uint64_t allowed[(N + 63) / 64];
    uint32_t x = 23;
    for (int p = 0; p < 3; p++)
        for (int64_t t = part[p].first; t < part[p].first + part[p].n; t++)
            allowed[t / 64] |= UINT64_C(1) << t % 64;
    for (int round = 0; round < 60; round++) {
        struct sample_options o = options();
        o.temperature = round % 6 ? 1 : 0;
        o.top_k = round % 6 == 2 ? 20 : round % 6 == 3 ? N : 0;
        o.top_p = round % 6 == 4 ? 0.8f : 1;
        o.min_p = round % 6 == 5 ? 0.1f : 0;
        o.repeat_penalty = round % 4 ? 1 : 1.3f;
        const int32_t history[] = {(int32_t)(dice(&x) % N), (int32_t)(dice(&x) % N)};
        for (int t = 0; t < N; t++)
            l[t] = 2 * bell(&x);
        struct sampler *masked = sampler(&o, N), *s = sampler(&o, N);
        session_sample_allow(masked, allowed);
        for (uint64_t i = 0; i < 20; i++) {
            session_sample_part(s, NULL, 0);
            (void)draw(s, l, i, history, 2);
            session_sample_part(s, part, 3);
            assert_int_equal(draw(s, l, i, history, 2), draw(masked, l, i, history, 2));
            assert_int_equal(session_sample_second(s), session_sample_second(masked));
        }
        session_sample_free(masked);
        session_sample_free(s);
    }
}

static void large_vocabularies_agree_with_small_paths(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float l[N];
    uint32_t x = 1;
    for (int t = 0; t < N; t++) {
        x = x * 1664525u + 1013904223u;
        l[t] = (float)(x >> 22) / 64.0f; /* many equal ones */
    }
    struct sample_options o = options();
    static int32_t id[N], all[N];
    static double p[N], q[N];
    assert_int_equal(kept(&o, l, N, NULL, 0, all, q), N);
    for (int j = 1; j < N; j++)
        assert_true(l[all[j - 1]] > l[all[j]] ||
                    (l[all[j - 1]] == l[all[j]] && all[j - 1] < all[j]));
    const int32_t ks[] = {1, 2, 3, 64, 1000, 1024, 1025, 4999};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        o.top_k = ks[i];
        assert_int_equal(kept(&o, l, N, NULL, 0, id, p), ks[i]);
        assert_memory_equal(id, all, (size_t)ks[i] * sizeof *id);
    }
}

static void bad_input_is_an_error(void **state)
{
    (void)state;
    struct err err;
    struct sample_token t;
    struct sampler *s = NULL;
    struct sample_options o = options();
    s = sampler(&o, 3);
    const float nan[3] = {0, NAN, 0}, inf[3] = {0, 0, INFINITY};
    const float none[3] = {-INFINITY, -INFINITY, -INFINITY};
    assert_int_equal(session_sample_draw(s, nan, 0, NULL, 0, &t, &err), INGLE_NUMERIC);
    assert_string_equal(err.msg, "the logit of token 1 is not a number");
    assert_int_equal(session_sample_draw(s, inf, 0, NULL, 0, &t, &err), INGLE_NUMERIC);
    assert_string_equal(err.msg, "the logit of token 2 is infinite");
    assert_int_equal(session_sample_draw(s, none, 0, NULL, 0, &t, &err), INGLE_NUMERIC);
    const int32_t h[1] = {3};
    const float l[3] = {0, 0, 0};
    assert_int_equal(session_sample_draw(s, l, 0, h, 1, &t, &err), INGLE_ARG);
    session_sample_free(s);
    o.top_p = 1.5f;
    assert_int_equal(session_sample_create(&s, &o, 3, 0, &err), INGLE_ARG);
    assert_string_equal(err.msg, "option 'top-p' is 1.5, outside 0 to 1");
    o = options();
    o.temperature = NAN;
    assert_int_equal(session_sample_create(&s, &o, 3, 0, &err), INGLE_ARG);
    assert_int_equal(session_sample_create(&s, &o, 0, 0, &err), INGLE_ARG);
}

static void one_token_is_a_vocabulary(void **state)
{
    (void)state;
    struct sample_options o = options();
    o.top_k = 40;
    o.top_p = 0.9f;
    o.min_p = 0.1f;
    o.typical_p = 0.5f;
    o.xtc_probability = 1;
    o.dry_multiplier = 1;
    o.logprobs = true;
    struct sampler *s = sampler(&o, 1);
    const float l[1] = {-7};
    struct sample_token t = {-1, 9};
    assert_int_equal(session_sample_draw(s, l, 0, NULL, 0, &t, NULL), INGLE_OK);
    assert_int_equal(t.id, 0);
    near((double)t.logprob, 0, 0);
    session_sample_free(s);
}

static void logprobs_are_of_the_given_logits(void **state)
{
    (void)state;
    struct sample_options o = options();
    o.temperature = 0;
    o.logprobs = true;
    float l[5];
    log_probs(l);
    const int32_t suppress[1] = {1};
    o.suppress = suppress;
    o.n_suppress = 1;
    struct sampler *s = sampler(&o, 5);
    struct sample_token t;
    assert_int_equal(session_sample_draw(s, l, 0, NULL, 0, &t, NULL), INGLE_OK);
    assert_int_equal(t.id, 4);
    near((double)t.logprob, log(0.25), 1e-6);
    session_sample_free(s);
}

/* However many are asked for: descending, of equal ones the first. */
static void the_most_probable_are_in_order(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float l[N];
    static struct sample_top all[N], top[N];
    uint32_t x = 5;
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < N; i++)
            l[i] = kind == 0   ? (float)i
                   : kind == 1 ? (float)-i
                               : (float)((x = x * 1664525u + 1013904223u) >> 24);
        float logprob = 0;
        session_sample_logprobs(l, N, 7, &logprob, all, N);
        for (int i = 1; i < N; i++)
            assert_true(l[all[i - 1].id] > l[all[i].id] ||
                        (l[all[i - 1].id] == l[all[i].id] && all[i - 1].id < all[i].id));
        static const int wish[] = {1, 2, 63, 64, 65, 66, 100, 1000, 4096, 4999};
        for (size_t k = 0; k < sizeof wish / sizeof *wish; k++) {
            session_sample_logprobs(l, N, 7, &logprob, top, wish[k]);
            assert_memory_equal(top, all, (size_t)wish[k] * sizeof *top);
        }
    }
}

static void ends_bans_and_the_only_tokens(void **state)
{
    (void)state;
    static const float l[5] = {0, 4, 3, 2, 1};
    static const int32_t end[] = {1}, banned[] = {2, -1, 3, 3, -1}, only[] = {0, 4};
    static const int32_t history[] = {3, 3, 3};
    struct sample_options o;
    session_sample_defaults(&o);
    o.end = end;
    o.n_end = 1;
    o.n_prompt = 1;
    o.min_tokens = 2;
    struct sampler *s = sampler(&o, 5);
    assert_int_equal(draw(s, l, 0, history, 1), 2); /* the first two of the answer are no end */
    assert_int_equal(draw(s, l, 0, history, 2), 2);
    assert_int_equal(draw(s, l, 0, history, 3), 1);
    session_sample_free(s);
    o.banned = banned;
    o.n_banned = 5;
    s = sampler(&o, 5);
    /* what stands in the prompt begins no sequence */
    assert_int_equal(draw(s, l, 0, history, 1), 3);
    assert_int_equal(draw(s, l, 0, history, 2), 4);
    session_sample_free(s);
    o.only = only;
    o.n_only = 2;
    s = sampler(&o, 5);
    assert_int_equal(draw(s, l, 0, history, 3), 4);
    session_sample_free(s);
    struct err err;
    o.n_banned = 4;
    assert_int_equal(session_sample_create(&s, &o, 5, 64, &err), INGLE_ARG);
    o.n_banned = 0;
    o.only = &(const int32_t){5};
    o.n_only = 1;
    assert_int_equal(session_sample_create(&s, &o, 5, 64, &err), INGLE_ARG);
}

/* What would be drawn if the first did not take part. */
static void the_second_is_the_draw_without_the_first(void **state)
{
    (void)state;
    enum { N = 700 };
    static float l[N];
    uint32_t x = 5;
    for (int round = 0; round < 40; round++) {
        struct sample_options o = options();
        o.seed = (uint64_t)round;
        o.temperature = round % 4 ? 0.5f + 0.2f * (float)(round % 5) : 0;
        o.top_k = round % 3 == 1 ? 5 : 0;
        o.min_p = round % 3 == 2 ? 0.1f : 0;
        for (int t = 0; t < N; t++)
            l[t] = (float)(dice(&x) % 1000) * 0.01f - (t % 7 ? 4 : 0);
        struct sampler *s = sampler(&o, N), *all = sampler(&o, N);
        for (uint64_t i = 0; i < 10; i++) {
            const int32_t first = draw(s, l, i, NULL, 0), second = session_sample_second(s);
            assert_true(second != first && (second >= 0 || o.min_p > 0));
            assert_int_equal(session_sample_second(s), second);
            /* nothing is changed by the question */
            assert_int_equal(draw(s, l, i, NULL, 0), first);
            if (o.top_k || o.min_p > 0)
                continue; /* another one would have been kept instead */
            session_sample_forbid(all, &first, 1);
            assert_int_equal(draw(all, l, i, NULL, 0), second);
        }
        session_sample_free(s);
        session_sample_free(all);
    }
    struct sample_options o = options();
    o.top_k = 1;
    struct sampler *s = sampler(&o, N);
    assert_int_equal(session_sample_second(s), -1); /* nothing was drawn */
    (void)draw(s, l, 1, NULL, 0);
    assert_int_equal(session_sample_second(s), -1);
    session_sample_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_equals),
        cmocka_unit_test(the_distribution_is_softmax),
        cmocka_unit_test(top_k_top_p_and_min_p_cut_the_tail),
        cmocka_unit_test(typical_keeps_what_is_near_the_entropy),
        cmocka_unit_test(xtc_removes_all_but_the_least_of_the_top),
        cmocka_unit_test(penalties_follow_the_window),
        cmocka_unit_test(dry_punishes_what_would_go_on),
        cmocka_unit_test(bias_and_suppressed_tokens),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(a_token_is_a_function_of_seed_and_number),
        cmocka_unit_test(random_numbers_are_philox),
        cmocka_unit_test(the_draw_is_the_draw_of_all),
        cmocka_unit_test(draws_follow_what_is_kept),
        cmocka_unit_test(near_distributions_draw_the_same),
        cmocka_unit_test(masks_change_nothing_among_the_others),
        cmocka_unit_test(sharper_logits),
        cmocka_unit_test(a_part_is_a_mask),
        cmocka_unit_test(large_vocabularies_agree_with_small_paths),
        cmocka_unit_test(bad_input_is_an_error),
        cmocka_unit_test(one_token_is_a_vocabulary),
        cmocka_unit_test(logprobs_are_of_the_given_logits),
        cmocka_unit_test(the_most_probable_are_in_order),
        cmocka_unit_test(ends_bans_and_the_only_tokens),
        cmocka_unit_test(the_second_is_the_draw_without_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
