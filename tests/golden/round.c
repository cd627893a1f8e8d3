/* SPDX-License-Identifier: Apache-2.0 */
#include "golden/round.h"

#include "base/json.h"
#include "base/mem.h"
#include "unit/xz.h"
#include <math.h>
#include <string.h>

enum { CTX = 1024, MOST = 16 };

static uint32_t noise(uint32_t *seed)
{
    return (*seed = *seed * 1664525u + 1013904223u) >> 8;
}

static void compute(struct golden_model *g, struct session *s, const int32_t *tokens, int64_t n)
{
    struct err e;
    GOLDEN_OK(session_append(s, tokens, n, &e));
    while (session_pending(s)) {
        struct session_work w = {.s = s};
        GOLDEN_OK(session_step(g->runner, &w, 1, NULL, &e));
    }
}

void round_context(struct golden_model *g, struct session *s, const int32_t *tokens, int64_t n,
                   uint32_t seed)
{
    struct err e;
    int64_t at = session_length(s);
    session_keep(s, at);
    while (at < n) {
        const int64_t most = seed ? 1 + (int64_t)noise(&seed) % 40 : n,
                      piece = most < n - at ? most : n - at;
        compute(g, s, tokens + at, piece);
        at += piece;
        const int64_t back = seed && noise(&seed) % 4 == 0 ? (int64_t)noise(&seed) % 30 : 0;
        if (back && back < at && at < n) {
            at -= back;
            session_keep(s, at);
        }
    }
    GOLDEN_OK(session_append(s, tokens + n, 1, &e));
}

struct drawing { const struct round *r; int64_t n_vocab; };

static bool draw(void *arg, int64_t i, int64_t j, const float *logits, int32_t *token)
{
    const struct drawing *d = arg;
    (void)i;
    *token = d->r->forced ? d->r->forced[j] : (int32_t)golden_best(logits, d->n_vocab);
    if (d->r->logits)
        memcpy(d->r->logits + j * d->n_vocab, logits, (size_t)d->n_vocab * sizeof *logits);
    return true;
}

void round_run(struct golden_model *g, struct session *s, const struct round *r)
{
    struct err e;
    int32_t token[MOST];
    float sure[MOST] = {0};
    struct drawing d = {r, g->info.n_vocab};
    struct session_draft item = {.s = s, .width = r->n, .token = token, .confidence = sure};
    assert_true(r->n <= MOST);
    GOLDEN_OK(session_draft(g->runner, &item, 1, draw, &d, NULL, &e));
    assert_int_equal(item.n, r->n);
    if (r->token)
        memcpy(r->token, token, (size_t)r->n * sizeof *token);
    if (r->confidence)
        memcpy(r->confidence, sure, (size_t)r->n * sizeof *sure);
}

/* ---- recorded passes ---- */

static struct json_object *member(struct json_object *o, const char *key)
{
    struct json_object *v;
    if (!json_object_object_get_ex(o, key, &v))
        fail_msg("golden.json has no '%s'", key);
    return v;
}

static int64_t ints_of(struct json_object *list, int32_t *out)
{
    const int64_t n = (int64_t)json_object_array_length(list);
    assert_true(n <= CTX);
    for (int64_t i = 0; i < n; i++)
        out[i] = json_object_get_int(json_object_array_get_idx(list, (size_t)i));
    return n;
}

struct score { int64_t passes, wrong, accepted; double sure; };

static void check_pass(struct golden_model *g, struct session *s, const int32_t *ids, int64_t n_ids,
                       struct json_object *pass, struct score *score)
{
    int32_t want[MOST], got[MOST];
    float sure[MOST];
    struct json_object *confidence;
    const int64_t at = json_object_get_int64(member(pass, "position")),
                  n = ints_of(member(pass, "drafts"), want);
    int64_t right = 0;
    round_context(g, s, ids, at, 0);
    round_run(g, s, &(struct round){.n = n, .token = got, .confidence = sure});
    while (right < n && at + 1 + right < n_ids && got[right] == ids[at + 1 + right])
        right++;
    score->passes++;
    score->accepted += right;
    score->wrong += memcmp(want, got, (size_t)n * sizeof *got) != 0;
    if (memcmp(want, got, (size_t)n * sizeof *got) ||
        !json_object_object_get_ex(pass, "confidence", &confidence))
        return;
    for (int64_t i = 0; i < n; i++)
        score->sure =
            fmax(score->sure,
                 fabs((double)sure[i] -
                      json_object_get_double(json_object_array_get_idx(confidence, (size_t)i))));
}

void round_passes(struct golden_model *g, const struct round_passes *p)
{
    struct err e;
    size_t n;
    struct json_object *golden;
    struct score score = {0};
    char *text = test_slurp(p->path, &n);
    assert_non_null(text);
    GOLDEN_OK(json_parse(text, n, NULL, &golden, &e));
    mem_free(text);
    struct json_object *prompts = member(member(golden, "weights"), p->set);
    for (size_t i = 0; i < json_object_array_length(prompts); i += UNIT_ASAN ? 4 : 1) {
        struct json_object *one = json_object_array_get_idx(prompts, i),
                           *passes = member(one, "passes");
        int32_t ids[2 * CTX];
        struct session *s;
        int64_t n_ids = ints_of(member(one, "prompt_ids"), ids);
        n_ids += ints_of(member(one, "completion_ids"), ids + n_ids);
        GOLDEN_OK(session_create(&s, g->runner, &e));
        for (size_t k = 0; k < json_object_array_length(passes); k++)
            check_pass(g, s, ids, n_ids, json_object_array_get_idx(passes, k), &score);
        session_free(s);
    }
    json_object_put(golden);
    print_message("%s %s: %lld of %lld passes differ, %.2f tokens a pass, confidence off by %.1e\n",
                  p->path, p->set, (long long)score.wrong, (long long)score.passes,
                  1 + (double)score.accepted / (double)score.passes, score.sure);
    assert_true(score.passes > 0 && score.wrong <= p->wrong && score.sure <= p->sure);
}
