/* SPDX-License-Identifier: Apache-2.0 */
/* Experts beyond memory and a step between the pieces of another one: each has slots, whatever the
 * other one waits for. */
#define _DEFAULT_SOURCE
#include "unit/door.h"

#include "engine/engine.h"
#include "expert/store.h"
#include "model/packed.h"
#include "session/session.h"
#include <string.h>

static const char *const models[] = {"tests/data/nano-v4/nano-v4-MXFP4.gguf",
                                     "tests/data/goldens/gemma4_moe/model-F32.gguf"};
enum { PROMPT = 24, INNER = UNIT_ASAN || UNIT_TSAN ? 40 : 150 };

/* The answer that goes on between the pieces of a prompt. */
struct inner {
    struct runner *r;
    struct session *s;
    int64_t width;
    int32_t next;
    int n;
    uint64_t sum;
    bool running;
};

static void one_token(void *arg)
{
    struct inner *in = arg;
    struct err e;
    if (in->running || in->n == INNER)
        return;
    in->running = true;
    struct session_work w = {.s = in->s, .want = FAMILY_LOGITS_LAST};
    if (session_append(in->s, &in->next, 1, &e) || session_step(in->r, &w, 1, NULL, &e))
        fail_msg("%s", e.msg);
    in->sum = in->sum * 31 + model_packed_sum_of(w.logits, (size_t)in->width * sizeof *w.logits).lo;
    in->next = (int32_t)((in->next * 31 + 7) % in->width);
    in->n++;
    in->running = false;
}

/* Sums of the logits of prompts and, between their pieces, of an answer. */
static void compute(const char *path, uint64_t budget, uint64_t sum[2], int *between)
{
    const struct ingle_engine_options o = {
        .n_ctx = 512, .threads = 2, .expert_bytes = budget, .experts_early = "off"};
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_engine_info info;
    struct session *outer;
    struct err err;
    int32_t tokens[PROMPT];
    const float *logits;
    must(ingle_model_open(&m, path, NULL, &error));
    must(ingle_engine_open(&e, m, &o, &error));
    ingle_engine_info(e, &info);
    if (budget) {
        const struct expert_store_options with = {
            .budget_bytes = budget, .stall_ns = UNIT_ASAN || UNIT_TSAN ? 0 : 5000000000};
        expert_store_close(e->experts);
        e->experts = NULL;
        if (expert_store_open(&e->experts, e->weights, &with, &err))
            fail_msg("%s", err.msg);
    }
    struct inner in = {.r = e->runner, .width = info.n_vocab, .next = 3};
    struct device_between b = {.fn = one_token, .arg = &in};
    if (session_create(&outer, e->runner, &err) || session_create(&in.s, e->runner, &err))
        fail_msg("%s", err.msg);
    sum[0] = 0;
    session_runner_set_between(e->runner, &b);
    for (int i = 0; in.n < INNER; i++) {
        for (int k = 0; k < PROMPT; k++)
            tokens[k] = (int32_t)((k * 7919 + i * 104729 + 5) % info.n_vocab);
        if (session_sync(outer, tokens, PROMPT, NULL, &err) ||
            session_finish(outer, &logits, NULL, &err))
            fail_msg("%s", err.msg);
        if (i < 3)
            sum[0] =
                sum[0] * 31 + model_packed_sum_of(logits, (size_t)info.n_vocab * sizeof *logits).lo;
    }
    session_runner_set_between(e->runner, NULL);
    sum[1] = in.sum;
    *between = in.n;
    session_free(in.s);
    session_free(outer);
    ingle_engine_close(e);
    ingle_model_close(m);
}

static void both_go_on(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct ingle_model *m;
        struct ingle_engine *e;
        const struct ingle_engine_options o = {.n_ctx = 512, .threads = 2};
        uint64_t all[2], sparse[2];
        int n[2];
        must(ingle_model_open(&m, models[i], NULL, &error));
        must(ingle_engine_open(&e, m, &o, &error));
        const uint64_t least = expert_store_least(e->weights);
        ingle_engine_close(e);
        ingle_model_close(m);
        compute(models[i], 0, all, &n[0]);
        compute(models[i], least, sparse, &n[1]);
        assert_int_equal(n[0], n[1]);
        assert_true(all[0] == sparse[0] && all[1] == sparse[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_go_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
