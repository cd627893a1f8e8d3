/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session_draft - a network that drafts on the runner's own pages: greedy answers equal plain ones,
 * and what it drafts behind a prompt is the same however the prompt came there (pieces, rewinds,
 * forks, the prefix tree, other sessions).
 */
#define _GNU_SOURCE
#include "golden/drafter.h"

#include "base/mem.h"
#include "family/draft/drafts.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CTX = 600, ANSWER = GOLDEN_CARD ? 40 : 120, MOST = 32 };

struct bench {
    struct drafter d;     /* target and network; its own runner stays unused */
    struct runner *plain; /* without the network */
    struct runner *r;     /* with it */
    struct kv_gaps *gaps; /* of all sessions, or NULL */
};

static bool bench_open(struct bench *b, const char *target, const char *path)
{
    struct err e;
    struct stat st;
    if (stat(target, &st) || stat(path, &st)) {
        print_message("not in this clone: %s\n", path);
        return false;
    }
    *b = (struct bench){0};
    drafter_open(&b->d, target, path, &(struct drafter_options){.target = {.codec = KERN_KV_F32}});
    struct golden_model *g = &b->d.g;
    struct runner_options o = {.n_ctx = CTX,
                               .max_rows = 128,
                               .max_logits = 64,
                               .kv = kv_types_of(KERN_KV_F16),
                               .kv_budget_bytes = (uint64_t)1 << 30,
                               .tree_budget_bytes = (uint64_t)1 << 28,
                               .own_first = golden_own_first,
                               .own_end = golden_own_end,
                               .draft_own_first = golden_draft_own_first,
                               .draft_own_end = golden_draft_own_end,
                               .sink = &g->sink};
    GOLDEN_OK(session_runner_create(&b->plain, g->family, g->self, &g->info, g->device, &o, &e));
    o.draft = b->d.kind;
    o.draft_self = b->d.self;
    o.draft_info = b->d.info;
    GOLDEN_OK(session_runner_create(&b->r, g->family, g->self, &g->info, g->device, &o, &e));
    return true;
}

static void bench_close(struct bench *b)
{
    struct runner *const all[] = {b->plain, b->r};
    for (int i = 0; i < 2; i++) {
        struct kv_pool_counts counts;
        session_runner_clear_tree(all[i]);
        kv_pool_count(session_runner_pool(all[i]), &counts);
        assert_int_equal(counts.used_bytes, 0);
        session_runner_free(all[i]);
    }
    kv_gaps_unref(b->gaps);
    drafter_close(&b->d);
}

static bool draw_best(void *arg, int64_t i, int64_t j, const float *logits, int32_t *token)
{
    const struct bench *b = arg;
    (void)i;
    (void)j;
    *token = (int32_t)golden_best(logits, b->d.g.info.n_vocab);
    return true;
}

static struct session *open_session(const struct bench *b, struct runner *r, const int32_t *tokens,
                                    int64_t n)
{
    struct err e;
    struct session *s;
    struct session_reuse reuse;
    GOLDEN_OK(session_create(&s, r, &e));
    golden_set_gaps(s, b->gaps);
    if (n)
        GOLDEN_OK(session_sync(s, tokens, n, &reuse, &e));
    return s;
}

/* Computes what waits and appends the best token: the anchor. */
static void finish(struct bench *b, struct session *s)
{
    struct err e;
    const float *logits = NULL;
    GOLDEN_OK(session_finish(s, &logits, NULL, &e));
    const int32_t best = (int32_t)golden_best(logits, b->d.g.info.n_vocab);
    GOLDEN_OK(session_append(s, &best, 1, &e));
}

/* ANSWER tokens behind a prompt, one by one. */
static void plain_answer(struct bench *b, const int32_t *prompt, int64_t n, int32_t *out)
{
    struct session *s = open_session(b, b->plain, prompt, n);
    for (int64_t i = 0; i < ANSWER; i++)
        finish(b, s);
    memcpy(out, session_tokens(s) + n, ANSWER * sizeof *out);
    session_free(s);
}

static int64_t round_of(struct bench *b, struct session *s, int64_t width, int32_t *token)
{
    struct err e;
    struct session_draft item = {.s = s, .width = width, .token = token};
    GOLDEN_OK(session_draft(b->r, &item, 1, draw_best, b, NULL, &e));
    return item.n;
}

/* Drafts of several sessions, then one step for all of them, then what of it stays. */
static void advance(struct bench *b, struct session **s, int n, int64_t *n_drafted,
                    int64_t *n_right)
{
    struct err e;
    int32_t token[4][MOST];
    struct session_draft item[4];
    struct session_work work[4];
    const int64_t v = b->d.g.info.n_vocab;
    for (int i = 0; i < n; i++)
        item[i] =
            (struct session_draft){.s = s[i],
                                   .width = 1 + (i * 3 + session_length(s[i])) % b->d.info.most,
                                   .token = token[i]};
    GOLDEN_OK(session_draft(b->r, item, n, draw_best, b, NULL, &e));
    for (int i = 0; i < n; i++) {
        assert_int_equal(item[i].n, item[i].width);
        GOLDEN_OK(session_append(s[i], token[i], item[i].n, &e));
        work[i] = (struct session_work){.s = s[i], .want = FAMILY_LOGITS_ALL};
    }
    GOLDEN_OK(session_step(b->r, work, n, NULL, &e));
    for (int i = 0; i < n; i++) {
        const int64_t at = session_length(s[i]) - work[i].n_done;
        int64_t k = 0;
        int32_t best = (int32_t)golden_best(work[i].logits, v);
        while (k + 1 < work[i].n_done && best == session_tokens(s[i])[at + k + 1])
            best = (int32_t)golden_best(work[i].logits + ++k * v, v);
        session_keep(s[i], at + k + 1);
        GOLDEN_OK(session_append(s[i], &best, 1, &e));
        *n_drafted += item[i].n;
        *n_right += k;
    }
}

static void answers(struct bench *b, const int32_t *tokens)
{
    int32_t want[4][ANSWER];
    struct session *s[4];
    int64_t drafted = 0, right = 0;
    for (int i = 0; i < 4; i++) {
        plain_answer(b, tokens, 20 + 40 * i, want[i]);
        s[i] = open_session(b, b->r, tokens, 20 + 40 * i);
        finish(b, s[i]);
    }
    while (session_length(s[0]) < 20 + ANSWER || session_length(s[1]) < 60 + ANSWER ||
           session_length(s[2]) < 100 + ANSWER || session_length(s[3]) < 140 + ANSWER)
        advance(b, s, 4, &drafted, &right);
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(session_tokens(s[i]) + 20 + 40 * i, want[i], sizeof want[i]);
        session_free(s[i]);
    }
    print_message("%-8s %lld of %lld drafted tokens right\n", b->d.kind->kind, (long long)right,
                  (long long)drafted);
    /* Repeated text is what an assistant of Gemma 4 never gets wrong. */
    assert_true(right > 0 && (right < drafted || b->d.kind == &family_gemma4_mtp));
}

static void expect_drafts(struct bench *b, struct session *s, const int32_t *want, int64_t n_want)
{
    int32_t got[MOST];
    assert_int_equal(round_of(b, s, b->d.info.most, got), n_want);
    assert_memory_equal(got, want, (size_t)n_want * sizeof *got);
}

/* As an answer is computed, whose rows the network sees later: when it drafts, and before they are
 * forked, saved or remembered. */
static void one_by_one(struct bench *b, const int32_t *tokens, int64_t n, const int32_t *want,
                       int64_t n_want)
{
    struct err e;
    struct session_reuse reuse;
    for (int way = 0; way < 4; way++) {
        struct session *s = open_session(b, b->r, NULL, 0), *f = open_session(b, b->r, NULL, 0);
        session_runner_clear_tree(b->r);
        GOLDEN_OK(session_append(s, tokens, n + 1, &e));
        while (session_pending(s) > 1) {
            struct session_work w = {.s = s, .max_tokens = 1};
            GOLDEN_OK(session_step(b->r, &w, 1, NULL, &e));
        }
        if (way == 1)
            GOLDEN_OK(session_fork(f, s, &e));
        if (way == 2) {
            GOLDEN_OK(session_remember(s, &e));
            GOLDEN_OK(session_sync(f, tokens, n + 1, &reuse, &e));
            assert_int_equal(reuse.kept, n);
        }
        if (way == 3 && n > 20) { /* back by some of them and on again */
            session_keep(s, n - 15);
            GOLDEN_OK(session_append(s, tokens + n - 15, 16, &e));
            struct session_work w = {.s = s, .max_tokens = 15, .want = FAMILY_LOGITS_ALL};
            GOLDEN_OK(session_step(b->r, &w, 1, NULL, &e));
        }
        expect_drafts(b, way == 1 || way == 2 ? f : s, want, n_want);
        session_free(f);
        session_free(s);
    }
}

/* The tokens [0, n) and the one behind them as the anchor, however they came there. */
static void ways(struct bench *b, const int32_t *tokens, int64_t n)
{
    struct err e;
    int32_t want[MOST];
    const int32_t *anchor = tokens + n, other = tokens[n] == 7 ? 8 : 7;
    struct session *s = open_session(b, b->r, NULL, 0);
    GOLDEN_OK(session_append(s, tokens, n + 1, &e));
    struct session_work all = {.s = s, .max_tokens = n};
    for (; session_pending(s) > 1; all.max_tokens = session_pending(s) - 1)
        GOLDEN_OK(session_step(b->r, &all, 1, NULL, &e));
    const int64_t n_want = round_of(b, s, b->d.info.most, want);
    expect_drafts(b, s, want, n_want); /* a round leaves nothing behind */

    /* Wrong tokens are computed and taken back. */
    for (int64_t wrong = 1; wrong <= 20; wrong += 6) {
        session_keep(s, n);
        for (int64_t i = 0; i < wrong; i++)
            GOLDEN_OK(session_append(s, &other, 1, &e));
        struct session_work w = {.s = s, .want = FAMILY_LOGITS_ALL};
        GOLDEN_OK(session_step(b->r, &w, 1, NULL, &e));
        session_keep(s, n);
        GOLDEN_OK(session_append(s, anchor, 1, &e));
        expect_drafts(b, s, want, n_want);
    }
    /* A fork, which goes its own way first. */
    struct session *f = open_session(b, b->r, NULL, 0);
    GOLDEN_OK(session_fork(f, s, &e));
    struct session_work w = {.s = f, .want = FAMILY_LOGITS_LAST};
    GOLDEN_OK(session_step(b->r, &w, 1, NULL, &e));
    expect_drafts(b, s, want, n_want);
    /* Remembered, parked, and from the tree. */
    session_keep(f, n);
    GOLDEN_OK(session_remember(f, &e));
    session_free(f);
    session_free(s);
    struct session_reuse reuse;
    s = open_session(b, b->r, NULL, 0);
    GOLDEN_OK(session_sync(s, tokens, n + 1, &reuse, &e));
    assert_int_equal(reuse.kept, n);
    expect_drafts(b, s, want, n_want);
    /* In pieces of all sizes. */
    session_runner_clear_tree(b->r);
    session_park(s);
    for (int64_t piece = 1; session_pending(s) > 1; piece = piece * 3 % 41 + 1) {
        struct session_work p = {
            .s = s, .max_tokens = piece < session_pending(s) - 1 ? piece : session_pending(s) - 1};
        GOLDEN_OK(session_step(b->r, &p, 1, NULL, &e));
    }
    expect_drafts(b, s, want, n_want);
    session_free(s);
    one_by_one(b, tokens, n, want, n_want);
}

/* ---- branches ---- */

enum { BEHIND = 12 };

/* All of tokens [0, n) but the last are computed. */
static struct session *open_at(struct bench *b, struct runner *r, const int32_t *tokens, int64_t n)
{
    struct err e;
    struct session *s = open_session(b, r, NULL, 0);
    GOLDEN_OK(session_append(s, tokens, n, &e));
    struct session_work all = {.s = s, .max_tokens = n - 1};
    for (; session_pending(s) > 1; all.max_tokens = session_pending(s) - 1)
        GOLDEN_OK(session_step(r, &all, 1, NULL, &e));
    return s;
}

/* Drafts part from the text behind `part` right ones, where a branch goes on with `m` tokens of it:
 * rows of logits are those of plain decoding, and what is drafted behind the branch is what is
 * drafted behind the text. */
static void branch_at(struct bench *b, const int32_t *tokens, int64_t n, int64_t part, int64_t m,
                      const float *want)
{
    struct err e;
    struct session_branch *branch[3];
    const int64_t v = b->d.g.info.n_vocab, at = n + 1 + part, end = at + m;
    const int32_t wrong[] = {(tokens[at] + 1) % (int32_t)v, 7, 9},
                  other[] = {(tokens[n + 1] + 2) % (int32_t)v, 11};
    struct session *s = open_at(b, b->r, tokens, n + 1);
    for (int i = 0; i < 3; i++)
        GOLDEN_OK(session_branch_create(&branch[i], b->r, &e));
    GOLDEN_OK(session_append(s, tokens + n + 1, part, &e));
    GOLDEN_OK(session_append(s, wrong, 3, &e));
    session_branch_set(branch[0], n + 1, other, 2);
    session_branch_set(branch[1], at, tokens + at, m);
    session_branch_set(branch[2], at + 5, other, 1); /* behind all that is pending: not computed */
    struct session_work w = {
        .s = s, .want = FAMILY_LOGITS_ALL, .guessed = true, .branch = branch, .n_branches = 3};
    GOLDEN_OK(session_step(b->r, &w, 1, NULL, &e));
    assert_int_equal(w.n_done, part + 4);
    assert_int_equal(w.n_branch_rows, 2 + m);
    assert_true(session_branch_logits(branch[0]) && !session_branch_logits(branch[2]));
    assert_memory_equal(w.logits, want, (size_t)((part + 1) * v) * sizeof *want);
    assert_memory_equal(session_branch_logits(branch[1]), want + (part + 1) * v,
                        (size_t)(m * v) * sizeof *want);
    session_branch_take(s, branch[1]);
    for (int i = 0; i < 3; i++)
        session_branch_free(branch[i]);
    assert_int_equal(session_length(s), end);
    assert_memory_equal(session_tokens(s), tokens, (size_t)end * sizeof *tokens);
    GOLDEN_OK(session_append(s, tokens + end, 1, &e));
    int32_t drafts[MOST];
    struct session *f = open_at(b, b->r, tokens, end + 1);
    const int64_t n_drafts = round_of(b, f, b->d.info.most, drafts);
    expect_drafts(b, s, drafts, n_drafts);
    session_free(f);
    session_free(s);
}

static void branches(struct bench *b, const int32_t *tokens, int64_t n)
{
    struct err e;
    const int64_t v = b->d.g.info.n_vocab;
    struct session *s = open_at(b, b->plain, tokens, n + 1);
    GOLDEN_OK(session_append(s, tokens + n + 1, BEHIND, &e));
    struct session_work w = {.s = s, .want = FAMILY_LOGITS_ALL};
    GOLDEN_OK(session_step(b->plain, &w, 1, NULL, &e));
    float *want = mem_calloc((size_t)((1 + BEHIND) * v), sizeof *want);
    assert_non_null(want);
    memcpy(want, w.logits, (size_t)((1 + BEHIND) * v) * sizeof *want);
    session_free(s);
    for (int64_t part = 0; part < 4; part++)
        branch_at(b, tokens, n, part, 1 + 3 * (part % 2), want);
    mem_free(want);
}

/* A prompt of the built-in tokenizer's ids that repeats itself somewhat. */
static void fill(int32_t *tokens, int64_t n, int64_t n_vocab)
{
    uint32_t x = 12345;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = i ? (int32_t)(400 + (x >> 8) % (uint32_t)(n_vocab - 400) / 8) : 2;
    }
}

static void check(const char *target, const char *path)
{
    struct bench b;
    int32_t tokens[CTX];
    if (!bench_open(&b, target, path))
        return;
    fill(tokens, CTX, b.d.g.info.n_vocab);
    answers(&b, tokens);
    ways(&b, tokens, 1);
    if (!UNIT_ASAN)
        ways(&b, tokens, 129);
    ways(&b, tokens, 300);
    /* over the ends of pages and of compressed rows */
    for (int64_t n = UNIT_ASAN ? 127 : 1; n < 300; n = n < 120 ? 121 : n < 130 ? n + 3 : n + 83)
        branches(&b, tokens, n);
    bench_close(&b);
}

/* Gaps of less and of more than the window of 128, the last ones within the newest one. */
static void check_gaps(const char *target, const char *path)
{
    struct bench b;
    struct err e;
    int32_t tokens[CTX], position[300];
    if (!bench_open(&b, target, path))
        return;
    for (int i = 0, at = 0; i < 300; i++) {
        at += i == 30 ? 200 : i == 150 ? 90 : i % 40 == 17 ? 1 + i % 23 : 0;
        position[i] = i + at;
    }
    GOLDEN_OK(kv_gaps_create(&b.gaps, position, 300, &e));
    fill(tokens, CTX, b.d.g.info.n_vocab);
    ways(&b, tokens, 300);
    if (!UNIT_ASAN && b.d.kind == &family_gemma4_mtp) { /* which reads the target's windows */
        answers(&b, tokens);
        branches(&b, tokens, 293);
    }
    bench_close(&b);
}

static void dflash(void **state)
{
    (void)state;
    check("tests/data/nano/nano-gemma4-Q4_K_M.gguf",
          "tests/data/nano/nano-gemma4-dflash-Q8_0.gguf");
}

static void dspark(void **state)
{
    (void)state;
    check("tests/data/nano/nano-gemma4-Q4_K_M.gguf",
          "tests/data/nano/nano-gemma4-dspark-Q8_0.gguf");
}

static void mtp_of_deepseek4(void **state)
{
    (void)state;
    check("tests/data/nano-v4/nano-v4-MXFP4.gguf", "tests/data/nano-v4/nano-v4-mtp0-Q8_0.gguf");
}

static void dspark_of_deepseek4(void **state)
{
    (void)state;
    check("tests/data/nano-v4/nano-v4-MXFP4.gguf", "tests/data/nano-v4/nano-v4-dspark-Q8_0.gguf");
}

static void mtp_of_gemma4(void **state)
{
    (void)state;
    check("tests/data/nano/nano-gemma4-Q4_K_M.gguf", "tests/data/nano/nano-gemma4-mtp-Q8_0.gguf");
}

static void drafts_behind_gaps(void **state)
{
    (void)state;
    check_gaps("tests/data/nano/nano-gemma4-Q4_K_M.gguf",
               "tests/data/nano/nano-gemma4-dflash-Q8_0.gguf");
    check_gaps("tests/data/nano/nano-gemma4-Q4_K_M.gguf",
               "tests/data/nano/nano-gemma4-mtp-Q8_0.gguf");
}

int main(void)
{
    unsetenv("GOLDEN_STAGES"); /* its runners are its own */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dflash),           cmocka_unit_test(dspark),
        cmocka_unit_test(mtp_of_deepseek4), cmocka_unit_test(dspark_of_deepseek4),
        cmocka_unit_test(mtp_of_gemma4),    cmocka_unit_test(drafts_behind_gaps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
