/* SPDX-License-Identifier: Apache-2.0 */
/*
 * models - small models on an emulated card: logits have the processor's bits, whatever runs on
 * which side, whichever call of the driver fails.
 */
#define _DEFAULT_SOURCE
#include "golden/golden.h"
#include "gpu/api_emu.h"

#include "base/mem.h"
#include "device/card.h"
#include "device/gpu/card.h"
#include "device/gpu/kernel.h"
#include <stdio.h>
#include <string.h>

static const struct {
    const char *path, *golden;
} models[] = {
    {"tests/data/goldens/gemma4_dense/model-Q4_0.gguf",
     "tests/data/goldens/gemma4_dense/golden.safetensors"},
    {"tests/data/goldens/gemma4_moe/model-F32.gguf",
     "tests/data/goldens/gemma4_moe/golden.safetensors"},
    {"tests/data/goldens/gemma4_ple_e2b/model-F32.gguf",
     "tests/data/goldens/gemma4_ple_e2b/golden.safetensors"},
    {"tests/data/nano/nano-gemma4-Q4_K_M.gguf",
     "tests/data/goldens/gemma4_dense/golden.safetensors"},
    {"tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf",
     "tests/data/goldens/deepseek_v4_full/golden-MXFP4.safetensors"},
};
enum { MODELS = sizeof models / sizeof *models, MOST = UNIT_ASAN ? 20 : 36,
       CHUNK = UNIT_ASAN ? 11 : 23 };

static struct {
    bool card, choose;
    uint32_t seed;
    uint64_t patience_ns; /* 0: as it is */
    enum device_side side;
    int64_t own; /* layers whose pages lie on the card */
} how;

static uint32_t next(void)
{
    how.seed = how.seed * 1664525u + 1013904223u;
    return how.seed >> 16;
}

static int choose(void *arg, enum device_op op)
{
    (void)arg;
    (void)op;
    return (int)(next() % 3) - 1;
}

static void made(struct device *d)
{
    struct err e;
    if (!how.card)
        return;
    GOLDEN_OK(device_card_open(d, 1, 0, &e));
    if (how.patience_ns && d->gpu)
        d->gpu->patience_ns = how.patience_ns;
    device_set_side(d, how.side);
    if (how.choose)
        device_gpu_set_choice(d, choose, NULL);
}

/* The logits of some tokens, in chunks, then of single ones. */
static float *logits_of(int m, int64_t *n, struct device_gpu *seen)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    const struct golden_options o = {.numerics = DEVICE_EXACT, .codec = KERN_KV_F16};
    int64_t n_ids;
    int32_t *ids = golden_ints(models[m].golden, "input_ids", &n_ids), tokens[MOST];
    for (int64_t i = 0; i < MOST; i++)
        tokens[i] = ids[(i + i / n_ids) % n_ids];
    mem_free(ids);
    golden_own_end = how.card ? how.own : 0;
    golden_open(&g, models[m].path, &o);
    GOLDEN_OK(session_create(&s, g.runner, &e));
    float *a = golden_logits(&g, s, tokens, MOST - 3, CHUNK, NULL);
    float *b = golden_logits(&g, s, tokens + MOST - 3, 3, 1, NULL);
    *n = MOST * g.info.n_vocab;
    float *all = mem_alloc((size_t)*n * sizeof *all);
    memcpy(all, a, (size_t)(MOST - 3) * (size_t)g.info.n_vocab * sizeof *all);
    memcpy(all + (MOST - 3) * g.info.n_vocab, b, 3 * (size_t)g.info.n_vocab * sizeof *all);
    mem_free(a);
    mem_free(b);
    session_free(s);
    if (seen && g.device->gpu)
        *seen = *g.device->gpu;
    golden_close(&g);
    return all;
}

static void same(const char *what, int m, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s of %s: element %lld is %a, not %a", what, models[m].path, (long long)i,
                     (double)a[i], (double)b[i]);
}

static void show(const struct device_gpu *g)
{
    static const char *const name[] = {
#define X(op) #op,
        DEVICE_OP_LIST(X)
#undef X
    };
    char text[2048] = "";
    for (int i = 0; i < DEVICE_OPS; i++)
        if (g->n_card[i] + g->n_host[i])
            snprintf(text + strlen(text), sizeof text - strlen(text), " %s %llu/%llu", name[i],
                     (unsigned long long)g->n_card[i], (unsigned long long)g->n_host[i]);
    print_message("card/host:%s\n", text);
}

static void any_sides(void **state)
{
    (void)state;
    enum { SEEDS = 2 }; /* schedules.c has the others */
    for (int m = 0; m < MODELS; m++) {
        int64_t n;
        struct device_gpu seen = {0};
        how.card = false;
        float *want = logits_of(m, &n, NULL);
        how.card = true;
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            const struct emu_cards c = {
                .n = 1, .bytes = 1u << 30, .capability = 80, .order = seed % EMU_ORDERS};
            emu_cards_set(&c);
            how.seed = seed;
            how.choose = seed > 0;
            how.side = DEVICE_CARD;
            how.own = seed == 1 ? 2 : 100;
            float *got = logits_of(m, &n, &seen);
            if (!seed)
                show(&seen);
            same("sides", m, got, want, n);
            mem_free(got);
        }
        mem_free(want);
        assert_int_equal(emu_cards_taken(), 0);
    }
}

/* Calls of the driver that fail, one after another: the bits stay, nothing is kept. */
static void fail_calls(int m, const float *want, const char *what, const struct emu_cards *how_to,
                       uint64_t n_calls, int times)
{
    for (int i = 0; i < times; i++) {
        int64_t n;
        struct emu_cards c = *how_to;
        const uint64_t at = 1 + (uint64_t)i * n_calls / (uint64_t)times + next() % 7;
        if (c.lose_at)
            c.lose_at = at;
        else
            c.fail_at = at;
        emu_cards_set(&c);
        float *got = logits_of(m, &n, NULL);
        same(what, m, got, want, n);
        mem_free(got);
        assert_int_equal(emu_cards_taken(), 0);
    }
}

static void any_call_fails(void **state)
{
    (void)state;
    const int times = UNIT_ASAN ? 1 : unit_some(1, 3);
    const struct emu_cards c = {.n = 1, .bytes = 1u << 30, .capability = 80};
    how.seed = 11;
    how.choose = false;
    how.side = DEVICE_CARD;
    for (int m = 0; m < MODELS; m += MODELS - 1) {
        int64_t n;
        how.card = false;
        float *want = logits_of(m, &n, NULL);
        how.card = true;
        emu_cards_set(&c);
        float *got = logits_of(m, &n, NULL);
        same("the card", m, got, want, n);
        mem_free(got);
        const uint64_t calls = emu_cards_calls();
        struct emu_cards f = c;
        f.lose_at = 1;
        fail_calls(m, want, "a lost card", &f, calls, times);
        f.lose_at = 0;
        fail_calls(m, want, "a failure", &f, calls, times);
        f.memory = true;
        fail_calls(m, want, "too little memory", &f, calls, times);
        mem_free(want);
    }
}

/* Each function at its first, second, third and last call. */
static void each_function_fails(void **state)
{
    (void)state;
    static const char *const functions[] = {
        "count", "about", "open",   "take",       "give",         "host_take",   "free_bytes",
        "put",   "get",   "copy",   "fill",       "module_load",  "function",    "launch",
        "stream_make",    "event_make", "event_record", "event_ready"};
    int64_t n;
    how.seed = 5;
    how.choose = false;
    how.side = DEVICE_CARD;
    how.card = false;
    float *want = logits_of(0, &n, NULL);
    how.card = true;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        struct emu_cards c = {
            .n = 1, .bytes = 1u << 30, .capability = 80, .fail_in = functions[f]};
        static const uint64_t calls[] = {1, 3};
        for (int i = 0; i < (UNIT_ASAN ? 1 : 2); i++) {
            c.fail_at = calls[i];
            emu_cards_set(&c);
            float *got = logits_of(0, &n, NULL);
            same(functions[f], 0, got, want, n);
            mem_free(got);
            assert_int_equal(emu_cards_taken(), 0);
        }
    }
    mem_free(want);
}

/* The first, a middle and a late launch of a kernel does not end: the processor goes on. */
static void a_kernel_that_does_not_end(void **state)
{
    (void)state;
    static const uint64_t launches[] = {1, 120, 900};
    int64_t n;
    if (UNIT_ASAN) /* what such a card may still write to is not given back */
        skip();
    how.choose = false;
    how.side = DEVICE_CARD;
    how.own = 100;
    how.card = false;
    float *want = logits_of(0, &n, NULL);
    how.card = true;
    how.patience_ns = 30000000;
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) {
        struct device_gpu seen = {0};
        emu_cards_set(&(struct emu_cards){
            .n = 1, .bytes = 1u << 30, .capability = 80, .hang_at = launches[i]});
        float *got = logits_of(0, &n, &seen);
        same("a kernel that does not end", 0, got, want, n);
        assert_true(seen.lost && seen.hung);
        mem_free(got);
    }
    how.patience_ns = 0;
    mem_free(want);
}

/* Cards that cannot be used, and memory of any size. */
static void odd_cards(void **state)
{
    (void)state;
    int64_t n;
    static const struct emu_cards odd[] = {
        {.n = 0, .bytes = 1u << 30, .capability = 80},
        {.n = 1, .bytes = 1u << 30, .capability = 70},
        {.n = 1, .bytes = 1u << 30, .capability = 75},
        {.n = 1, .bytes = 1u << 30, .capability = 90},
        {.n = 1, .bytes = 1024, .capability = 80},
        {.n = 1, .bytes = 9u << 20, .capability = 80},
        {.n = 1, .bytes = 12u << 20, .capability = 80},
        {.n = 1, .bytes = 1u << 30, .capability = 80, .absent = true},
        {.n = 1, .bytes = 1u << 30, .capability = 80, .refuse = true}};
    how.choose = false;
    how.side = DEVICE_CARD;
    /* pages that have no room fail a step, as in the host's memory */
    how.own = 0;
    how.card = false;
    float *want = logits_of(0, &n, NULL);
    how.card = true;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        emu_cards_set(&odd[i]);
        float *got = logits_of(0, &n, NULL);
        same("an odd card", 0, got, want, n);
        mem_free(got);
        assert_int_equal(emu_cards_taken(), 0);
    }
    mem_free(want);
}

/* Two engines on one card: the second one gets what memory the first has left, if any. */
static void two_engines(void **state)
{
    (void)state;
    static const size_t mib[] = {1024, 24, 18};
    struct golden_model g[2];
    struct session *s[2];
    int32_t tokens[MOST];
    int64_t n, n_ids;
    struct err e;
    const struct golden_options o = {.numerics = DEVICE_EXACT, .codec = KERN_KV_F16};
    how.choose = false;
    how.side = DEVICE_CARD;
    how.own = 100;
    how.card = false;
    float *want = logits_of(0, &n, NULL);
    int32_t *ids = golden_ints(models[0].golden, "input_ids", &n_ids);
    for (int64_t i = 0; i < MOST; i++)
        tokens[i] = ids[(i + i / n_ids) % n_ids];
    mem_free(ids);
    how.card = true;
    for (size_t i = 0; i < sizeof mib / sizeof *mib; i++) {
        emu_cards_set(&(struct emu_cards){.n = 1, .bytes = mib[i] << 20, .capability = 80});
        golden_own_end = how.own;
        for (int k = 0; k < 2; k++) {
            golden_open(&g[k], models[0].path, &o);
            GOLDEN_OK(session_create(&s[k], g[k].runner, &e));
        }
        for (int64_t at = 0, now; at < MOST; at += now) {
            now = at ? MOST - at : CHUNK;
            for (int k = 0; k < 2; k++) {
                float *got = golden_logits(&g[k], s[k], tokens + at, now, 0, NULL);
                same("two engines", 0, got, want + at * n / MOST, now * n / MOST);
                mem_free(got);
            }
        }
        for (int k = 0; k < 2; k++) {
            session_free(s[k]);
            golden_close(&g[k]);
        }
        assert_int_equal(emu_cards_taken(), 0);
    }
    mem_free(want);
}

/* A step that loses the card ends with its own status. */
static void status_of_a_loss(void **state)
{
    (void)state;
    struct err e;
    struct device *d;
    struct emu_cards c = {.n = 1, .bytes = 1u << 30, .capability = 80};
    emu_cards_set(&c);
    GOLDEN_OK(device_create(&d, &(struct device_options){.n_threads = 1}, &e));
    GOLDEN_OK(device_card_open(d, 1, 0, &e));
    GOLDEN_OK(device_arena_reserve(d, 1 << 20, &e));
    void *page = device_own_take(d, 4096);
    char zeros[4096] = {0};
    assert_non_null(page);
    device_begin(d, NULL);
    c.lose_at = 1;
    emu_cards_set(&c);
    device_own_get(d, zeros, page, sizeof zeros);
    assert_int_equal(device_status(d, &e), INGLE_LOST);
    assert_true(device_card_lost(d) && strstr(e.msg, "emulated card 0"));
    device_begin(d, NULL);
    GOLDEN_OK(device_status(d, &e));
    device_own_give(d, page, 4096);
    device_free(d);
}

static void a_number_that_is_not_there(void **state)
{
    (void)state;
    struct err e;
    struct device *d;
    const struct emu_cards c = {.n = 2, .bytes = 1u << 30, .capability = 80};
    emu_cards_set(&c);
    GOLDEN_OK(device_create(&d, &(struct device_options){.n_threads = 1}, &e));
    assert_int_equal(device_card_open(d, 8, 0, &e), INGLE_ARG);
    assert_non_null(strstr(e.msg, "there is no card 7"));
    assert_null(device_card(d));
    GOLDEN_OK(device_card_open(d, 2, 0, &e));
    assert_int_equal(device_card(d)->number, 1);
    device_free(d);
}

int main(void)
{
    golden_device_made = made;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_sides),
        cmocka_unit_test(any_call_fails),
        cmocka_unit_test(each_function_fails),
        cmocka_unit_test(odd_cards),
        cmocka_unit_test(two_engines),
        cmocka_unit_test(status_of_a_loss),
        cmocka_unit_test(a_number_that_is_not_there),
        cmocka_unit_test(a_kernel_that_does_not_end), /* it keeps memory: the last one */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
