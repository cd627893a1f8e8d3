/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700
/*
 * engine_drafts - answers with drafts are those of plain decoding: tokens, their probabilities,
 * what else was probable, and the end; whoever drafts, however often that is right, and whatever
 * happens meanwhile.
 */
#include "unit/fake_drafter.h"
#include "unit/folder.h"
#include "unit/scheduler_world.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define INGLE_SANITIZED
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(INGLE_SANITIZED)
enum { SCHEDULES = 1, MORE = 2 };
#else
enum { SCHEDULES = 6, MORE = 60 };
#endif

enum { KINDS = 36, CTX = 768 };

/* A request whose answers are known. */
struct kind {
    int64_t n_prompt, shared, max_tokens;
    int n;
    struct answer want[MAX_ANSWERS];
};

struct bench {
    struct place p;
    struct ingle_grammar *grammar[4];
    struct kind kind[KINDS];
    struct fake fake;
    char dir[64];
    int64_t n_answers;
};

/* ---- the requests ---- */

/* Sequences that answers may not have: words, pairs of bytes. */
static const int32_t BANNED[] = {200, -1, 201, 202, -1,  210, -1,  250,
                                 251, -1, 290, -1,  300, 301, 302, -1};
static const char TOOLS[] =
    "{\"tools\": [{\"function\": {\"name\": \"get_weather\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"city\": {\"type\": "
    "\"string\"}, \"unit\": {\"enum\": [\"celsius\", \"kelvin\"]}}, \"required\": [\"city\", "
    "\"unit\"]}}}], \"choice\": \"required\"}";

static void set_sampling(const struct bench *b, int i, struct ingle_request_options *o)
{
    struct ingle_sampling *s = &o->sampling;
    *s = (struct ingle_sampling){.temperature = i % 3 ? 1 : 0,
                                 .repeat_penalty = 1,
                                 .top_p = 1,
                                 .typical_p = 1,
                                 .seed = (uint64_t)i * 77};
    switch (i % 12) {
    case 1:
        s->top_k = 20, s->top_p = 0.9f, s->temperature = 0.8f;
        break;
    case 2:
        s->repeat_penalty = 1.3f, s->penalty_window = 32;
        break;
    case 3:
        s->presence_penalty = 0.5f, s->frequency_penalty = 0.3f, s->penalty_window = -1;
        break;
    case 4:
        s->dry_multiplier = 0.8f;
        break;
    case 5:
        s->xtc_probability = 0.5f, s->xtc_threshold = 0.1f;
        break;
    case 6:
        s->typical_p = 0.5f, s->min_p = 0.02f;
        break;
    case 7:
        s->logprobs = true, o->n_top = 5;
        break;
    case 8:
        o->drawn_from = true, o->n_top = 3, s->top_k = 40;
        break;
    case 9:
    case 10:
        o->grammar = b->grammar[i % 12 - 9];
        break;
    case 11:
        o->grammar = b->grammar[i < 24 ? 2 : 3];
        break;
    default:
        break;
    }
    if (i % 3 == 1) {
        s->banned = BANNED;
        s->n_banned = sizeof BANNED / sizeof *BANNED;
    }
    s->min_tokens = i % 5 == 1 ? 8 : 0;
    o->ignore_end = i % 4 == 2;
}

static struct asked *make_kind(const struct bench *b, int which)
{
    const struct kind *k = &b->kind[which];
    struct asked *a = make_asked(&b->p, which, k->n_prompt, k->max_tokens);
    share_prompt(&b->p, a, which % 6, k->shared);
    a->o.n = k->n;
    set_sampling(b, which, &a->o);
    return a;
}

/* Cancelled answers are beginnings of the right ones, all others are the right ones. */
static void check_kind(const struct asked *a, const struct kind *k)
{
    for (int j = 0; j < k->n; j++) {
        const struct answer *w = &a->answer[j], *want = &k->want[j];
        if (w->why == INGLE_FINISH_ERROR)
            fail_msg("%s", w->error);
        assert_true(w->n <= want->n);
        assert_memory_equal(w->id, want->id, (size_t)w->n * sizeof *w->id);
        assert_memory_equal(w->logprob, want->logprob, (size_t)w->n * sizeof *w->logprob);
        assert_memory_equal(w->top, want->top, (size_t)w->n * sizeof *w->top);
        if (w->why <= INGLE_FINISH_LENGTH) {
            assert_int_equal(w->n, want->n);
            assert_int_equal(w->why, want->why);
        }
    }
}

/* ---- engines that draft, and one that does not ---- */

static void open_drafting(struct bench *b, const struct runner_options *o,
                          const struct ingle_scheduler_options *so, bool text, int force)
{
    fake_move_in(b->p.e, o);
    b->p.e->draft_text = text;
    b->p.e->draft_force = force;
    b->p.e->draft_force_by = INGLE_DRAFTERS;
    must(ingle_scheduler_open(&b->p.s, b->p.e, so, &error));
}

static void close_drafting(struct bench *b)
{
    ingle_scheduler_close(b->p.s);
    b->p.s = NULL;
    assert_int_equal(b->fake.n_lost, 0);
    assert_int_equal(b->fake.n_wrong_rows, 0);
}

static void learn_kinds(struct bench *b)
{
    uint32_t x = 77;
    struct runner_options o =
        fake_options(b->p.e, &b->fake, &(struct runner_options){.n_ctx = CTX}, 4);
    o.draft = NULL;
    open_drafting(b, &o, NULL, false, 0);
    for (int i = 0; i < KINDS; i++) {
        struct kind *k = &b->kind[i];
        k->n_prompt = 1 + next(&x) % (i % 4 == 0 ? 500 : 60);
        k->shared = i % 3 ? k->n_prompt * 2 / 3 : 0;
        k->max_tokens = 1 + next(&x) % 60;
        k->n = i % 5 == 4 ? 3 : 1;
        struct asked *a = make_kind(b, i);
        submit(&b->p, a);
        wait_done(a);
        for (int j = 0; j < k->n; j++) {
            if (a->answer[j].why == INGLE_FINISH_ERROR)
                fail_msg("%s", a->answer[j].error);
            k->want[j] = a->answer[j];
            fake_learn(&b->fake, a->o.prompt, a->o.n_prompt, k->want[j].id, k->want[j].n);
        }
        assert_int_equal(a->usage.n_drafted, 0);
        free_asked(a);
    }
    assert_int_equal(b->fake.n_rounds, 0);
    ingle_scheduler_close(b->p.s);
}

static struct bench *open_bench_with(const char *path, const char *kv)
{
    static const char gbnf[] = "root ::= (\"one\" | \"two \" [a-f]{1,9} | \"{\" [0-9]+ \"}\" | "
                               "\"the same words again; \")+";
    static const char regex[] = "[a-z ]{4,30}(yes|no|perhaps)";
    struct bench *b = mem_zalloc(sizeof *b);
    assert_non_null(b);
    strcpy(b->dir, "/tmp/ingle-drafts-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    b->fake.most = FAKE_MOST;
    struct err err;
    if (kv_types_parse(kv, NULL, NULL, NULL, &b->fake.types, &err))
        fail_msg("%s", err.msg);
    must(ingle_model_open(&b->p.m, path, NULL, &error));
    must(ingle_engine_open(
        &b->p.e, b->p.m,
        &(struct ingle_engine_options){.n_ctx = 512, .n_sessions = 1, .threads = 2}, &error));
    must(ingle_grammar_open(&b->grammar[0], b->p.m, INGLE_GRAMMAR_REGEX, regex, sizeof regex - 1,
                            &error));
    must(ingle_grammar_open(&b->grammar[1], b->p.m, INGLE_GRAMMAR_JSON, NULL, 0, &error));
    must(ingle_grammar_open(&b->grammar[2], b->p.m, INGLE_GRAMMAR_GBNF, gbnf, sizeof gbnf - 1,
                            &error));
    must(ingle_grammar_open(&b->grammar[3], b->p.m, INGLE_GRAMMAR_TOOLS, TOOLS, sizeof TOOLS - 1,
                            &error));
    learn_kinds(b);
    return b;
}

static struct bench *open_bench(const char *path)
{
    return open_bench_with(path, "f16");
}

static void close_bench(struct bench *b)
{
    for (int i = 0; i < 4; i++)
        ingle_grammar_close(b->grammar[i]);
    ingle_engine_close(b->p.e);
    ingle_model_close(b->p.m);
    fake_forget(&b->fake);
    remove_dir(b->dir);
    mem_free(b);
}

/* ---- any requests in any order ---- */

/* What may draft for a request; one that is not at hand is refused. */
static const char *some_method(const struct bench *b, uint32_t *x, bool network, bool text)
{
    static const char *const methods[] = {NULL, "auto", "none", "ngram", "mtp", "dflash"};
    const uint32_t i = next(x) % 6;
    struct asked *a = make_kind(b, 0);
    a->o.draft_method = methods[i];
    const bool fits = i < 3 || (i == 3 && text) || (i == 4 && network);
    struct ingle_request *r;
    if (!fits) {
        assert_int_equal(ingle_scheduler_submit(b->p.s, &a->o, &r, NULL, &error), INGLE_ARG);
        assert_non_null(strstr(error.text, "draft_method: no drafter of the method"));
    }
    free_asked(a);
    return fits ? methods[i] : NULL;
}

static void play(struct bench *b, uint32_t x)
{
    enum { MOST = 14 };
    static const char *const users[] = {NULL, "ann", "bob"};
    static const double right[] = {0, 0.5, 0.9, 1};
    struct asked *a[MOST];
    int which[MOST];
    bool any_held = false;
    const int n = 2 + (int)(next(&x) % (MOST - 1));
    b->fake.right = right[next(&x) % 4];
    b->fake.second = right[next(&x) % 4];
    b->p.e->draft_tree = next(&x) % 3 ? 2 + (int64_t)(next(&x) % 20) : 0;
    b->fake.confidence = next(&x) % 2;
    struct runner_options o = {.n_ctx = CTX,
                               .max_rows = 8 << next(&x) % 6,
                               .max_logits = 1 + next(&x) % 40,
                               .restore_every = 128,
                               .store = next(&x) % 3 ? NULL : b->dir,
                               .store_min_tokens = 32,
                               .identity = 5,
                               .draft_identity = 6};
    o = fake_options(b->p.e, &b->fake, &o, 2 + next(&x) % 3);
    if (next(&x) % 8 == 0)
        o.draft = NULL;
    const int force = next(&x) % 5 ? 1 + (int)(next(&x) % FAKE_MOST) : 0;
    const struct ingle_scheduler_options so = {.max_running = 1 + next(&x) % 8,
                                               .step_seconds = next(&x) % 2 ? 0.5 : 0};
    const bool text = next(&x) % 2;
    open_drafting(b, &o, &so, text, force);
    const struct family_draft kind = {.kind = "mtp"};
    struct engine_draft network = {.kind = &kind};
    b->p.e->draft = o.draft ? &network : NULL; /* for its name */
    for (int i = 0; i < n; i++) {
        do
            which[i] = (int)(next(&x) % KINDS);
        while (b->kind[which[i]].n > so.max_running);
        a[i] = make_kind(b, which[i]);
        a[i]->o.user = users[next(&x) % 3];
        a[i]->o.priority = (int)(next(&x) % 3) - 1;
        a[i]->o.draft_max = next(&x) % 4 ? 0 : (int)(next(&x) % 5) - 1;
        a[i]->o.draft_method = next(&x) % 2 ? some_method(b, &x, o.draft, text) : NULL;
        a[i]->o.draft_tree = next(&x) % 4 ? 0 : 1 + (int64_t)(next(&x) % 8);
        if (next(&x) % 5 == 0)
            a[i]->cancel_after = 1 + next(&x) % 20;
        if (next(&x) % 6 == 0)
            a[i]->stop_after = 1 + next(&x) % 20;
        submit(&b->p, a[i]);
        if (next(&x) % 2 && !any_held) /* there might be no step */
            wait_steps(&b->p, next(&x) % 12);
        const bool held = next(&x) % 3;
        if (next(&x) % 3 == 0)
            hold_unless_done(&b->p, a[next(&x) % (uint32_t)(i + 1)], held);
        any_held |= held;
        const int other = (int)(next(&x) % (uint32_t)(i + 1));
        if (next(&x) % 8 == 0)
            cancel_unless_done(&b->p, a[other]);
    }
    for (int i = 0; i < n; i++)
        hold_unless_done(&b->p, a[i], false);
    for (int i = 0; i < n; i++) {
        wait_done(a[i]);
        check_kind(a[i], &b->kind[which[i]]);
        b->n_answers += b->kind[which[i]].n;
        assert_true(a[i]->usage.n_accepted <= a[i]->usage.n_drafted &&
                    a[i]->usage.n_accepted <= a[i]->usage.n_generated);
        if (a[i]->o.draft_max < 0 ||
            (a[i]->o.draft_method && strcmp(a[i]->o.draft_method, "none") == 0))
            assert_int_equal(a[i]->usage.n_drafted, 0);
        free_asked(a[i]);
    }
    close_drafting(b);
    b->p.e->draft = NULL;
    b->p.e->draft_tree = 0;
}

/* More of them than the test has: INGLE_SCHEDULES. */
static uint32_t n_schedules(uint32_t usual)
{
    const char *n = getenv("INGLE_SCHEDULES");
    return n ? (uint32_t)atoi(n) : usual;
}

static void play_all(const char *path, const char *kv, uint32_t n, uint32_t seed)
{
    struct bench *b = open_bench_with(path, kv);
    for (uint32_t i = 0; i < n; i++)
        play(b, i * 7919 + seed);
    print_message("%lld answers, %lld rounds, %lld tokens drafted\n", (long long)b->n_answers,
                  (long long)b->fake.n_rounds, (long long)b->fake.n_drafted);
    assert_true(n < 16 || (b->fake.n_rounds > 10 && b->fake.n_taps > 0)); /* some draft nothing */
    close_bench(b);
}

static void random_schedules_change_no_token(void **state)
{
    (void)state;
    play_all(NULL, "f16", n_schedules((uint32_t)unit_some(SCHEDULES, MORE)), 1);
}

static void neither_with_compressed_rows(void **state)
{
    (void)state;
    play_all("tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf", "f16",
             n_schedules((uint32_t)(unit_some(SCHEDULES, MORE) + 5) / 6), 5);
}

/* ---- what is drafted and counted ---- */

static struct ingle_usage usage_of(struct bench *b, int which)
{
    struct asked *a = make_kind(b, which);
    submit(&b->p, a);
    wait_done(a);
    check_kind(a, &b->kind[which]);
    const struct ingle_usage u = a->usage;
    free_asked(a);
    return u;
}

/* One that is always right brings `force` tokens more a step, one that is always wrong none. */
static void drafts_are_counted(void **state)
{
    (void)state;
    enum { FORCE = 4 };
    struct bench *b = open_bench(NULL);
    struct runner_options o =
        fake_options(b->p.e, &b->fake, &(struct runner_options){.n_ctx = CTX, .max_logits = 32}, 4);
    int longest = 0;
    for (int i = 0; i < KINDS; i++)
        if (b->kind[i].n == 1 && b->kind[i].want[0].n > b->kind[longest].want[0].n && i % 12 < 9 &&
            i % 12 != 5)
            longest = i;
    const int64_t n = b->kind[longest].want[0].n;
    assert_true(n > 20);
    for (int right = 0; right < 2; right++) {
        b->fake.right = right;
        open_drafting(b, &o, NULL, false, FORCE);
        const int64_t before = status_of(&b->p).n_steps;
        const struct ingle_usage u = usage_of(b, longest);
        const int64_t steps = status_of(&b->p).n_steps - before;
        assert_int_equal(u.n_generated, n);
        assert_true(u.n_drafted >= n / 2);
        if (right) {
            assert_int_equal(u.n_accepted, u.n_drafted);
            assert_true(steps <= 3 + n / (1 + FORCE) + 8);
        } else {
            assert_true(u.n_accepted <= 2); /* a wrong one may be the text's by chance */
        }
        assert_int_equal(status_of(&b->p).drafted_tokens, u.n_drafted);
        assert_int_equal(status_of(&b->p).accepted_tokens, u.n_accepted);
        close_drafting(b);
    }
    close_bench(b);
}

/* A drafter whose second token is right where its first is not: steps go on along branches. */
static void branches_are_taken(void **state)
{
    (void)state;
    enum { FORCE = 4 };
    struct bench *b = open_bench(NULL);
    struct ingle_usage u[2];
    int64_t steps[2];
    int longest = 0;
    for (int i = 0; i < KINDS; i++)
        if (b->kind[i].n == 1 && b->kind[i].want[0].n > b->kind[longest].want[0].n && i % 12 < 9 &&
            i % 12 != 5)
            longest = i;
    for (int tree = 0; tree < 2; tree++) {
        b->fake.right = 0.4;
        b->fake.second = 1;
        b->p.e->draft_tree = tree ? 2 * FORCE : 0;
        const struct runner_options o = fake_options(
            b->p.e, &b->fake, &(struct runner_options){.n_ctx = CTX, .max_logits = 32}, 4);
        open_drafting(b, &o, NULL, false, FORCE);
        const int64_t before = status_of(&b->p).n_steps;
        u[tree] = usage_of(b, longest);
        steps[tree] = status_of(&b->p).n_steps - before;
        assert_true(u[tree].n_accepted <= u[tree].n_drafted &&
                    u[tree].n_accepted < u[tree].n_generated);
        assert_int_equal(status_of(&b->p).drafted_tokens, u[tree].n_drafted);
        assert_int_equal(status_of(&b->p).accepted_tokens, u[tree].n_accepted);
        close_drafting(b);
    }
    print_message("%lld of %lld accepted in %lld steps, with trees %lld of %lld in %lld\n",
                  (long long)u[0].n_accepted, (long long)u[0].n_drafted, (long long)steps[0],
                  (long long)u[1].n_accepted, (long long)u[1].n_drafted, (long long)steps[1]);
    assert_true(steps[1] < steps[0] && u[1].n_accepted > u[0].n_accepted);
    b->p.e->draft_tree = 0;
    close_bench(b);
}

static void hear(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
{
    (void)subject;
    *(int64_t *)arg +=
        level <= INGLE_REPORT_WARN && strcmp(kind, "draft") == 0 && strstr(text, "no numbers");
}

/* Rounds whose logits are no numbers draft nothing, which is said once. */
static void drafts_that_are_no_numbers_are_dropped(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY};
    struct bench *b = open_bench(NULL);
    struct runner_options o =
        fake_options(b->p.e, &b->fake, &(struct runner_options){.n_ctx = CTX, .max_logits = 32}, 4);
    const struct report_sink before = b->p.e->sink;
    for (int i = 0; i < 4; i++) {
        int64_t n_heard = 0;
        b->p.e->sink = (struct report_sink){.report = hear, .arg = &n_heard};
        b->fake.bad = bad[i % 2];
        open_drafting(b, &o, NULL, false, i / 2 ? 4 : 0);
        const int64_t rounds = b->fake.n_rounds;
        for (int k = 0; k < (UNIT_TSAN ? 3 : 12); k++) {
            const struct ingle_usage u = usage_of(b, k);
            assert_int_equal(u.n_drafted, 0);
        }
        assert_true(b->fake.n_rounds > rounds);
        assert_int_equal(n_heard, 1);
        close_drafting(b);
    }
    b->p.e->sink = before;
    b->fake.bad = 0;
    close_bench(b);
}

/* ---- memory ---- */

/* Tokens until the pages are spent, and how it ends. */
static int64_t spend_pages(struct bench *b, const struct runner_options *o, uint64_t leave,
                           int force, enum ingle_finish *why, struct answer *out)
{
    struct hog hog = {.p = &b->p, .leave = leave};
    b->p.e->draft_tree = force ? 2 * force : 0;
    open_drafting(b, o, NULL, false, force);
    ingle_scheduler_call(b->p.s, take_memory, &hog);
    struct asked *a = make_asked(&b->p, 3, 40, -1);
    a->o.ignore_end = true;
    a->o.sampling.temperature = 0;
    a->o.draft_max = force ? 0 : -1;
    submit(&b->p, a);
    wait_done(a);
    *out = a->answer[0];
    *why = a->answer[0].why;
    const int64_t n = a->answer[0].n;
    ingle_scheduler_call(b->p.s, give_memory, &hog);
    if (!force)
        fake_learn(&b->fake, a->o.prompt, a->o.n_prompt, out->id, n);
    free_asked(a);
    close_drafting(b);
    return n;
}

/* Drafts that there are no pages for end nobody. */
static void an_answer_gets_as_far_as_without(void **state)
{
    (void)state;
    static struct answer plain, drafted;
    struct bench *b = open_bench(NULL);
    enum ingle_finish plain_why, why;
    struct runner_options o =
        fake_options(b->p.e, &b->fake,
                     &(struct runner_options){.n_ctx = CTX, .max_rows = 64, .max_logits = 32}, 1);
    o.tree_budget_bytes = 0;
    int64_t before = 0;
    for (uint64_t leave = 500000; leave <= 800000;
         leave += UNIT_TSAN || UNIT_ASAN ? 300000 : 100000) {
        b->fake.right = b->fake.second = 0.8;
        const int64_t n = spend_pages(b, &o, leave, 0, &plain_why, &plain);
        assert_true(n >= before && plain_why == INGLE_FINISH_ERROR);
        before = n;
        assert_int_equal(spend_pages(b, &o, leave, FAKE_MOST, &why, &drafted), n);
        assert_int_equal(why, plain_why);
        assert_memory_equal(plain.id, drafted.id, (size_t)n * sizeof *plain.id);
    }
    assert_true(before > 200);
    close_bench(b);
}

/* Some give way for a while, whatever they had drafted. */
static void parked_answers_go_on(void **state)
{
    (void)state;
    enum { N = 4, CONTEXT = 1200, SOME = 300 };
    if (UNIT_TSAN) /* unit_engine_scheduler has answers that give way */
        return;
    static struct answer want[N];
    struct bench *b = open_bench(NULL);
    struct runner_options o = {.n_ctx = CONTEXT, .max_rows = 64, .max_logits = 48};
    o = fake_options(b->p.e, &b->fake, &o, 2);
    for (int drafts = 0; drafts < 2; drafts++) {
        struct asked *a[N];
        struct hog hog = {.p = &b->p, .leave = 1500000};
        struct runner_options r = o;
        b->fake.right = b->fake.second = 0.7;
        r.draft = drafts ? r.draft : NULL;
        r.tree_budget_bytes = 1 << 20;
        r.kv_budget_bytes = 2 * (r.kv_budget_bytes / 3) + r.tree_budget_bytes;
        b->p.e->draft_tree = drafts ? 12 : 0;
        open_drafting(b, &r, NULL, drafts, drafts ? 5 : 0);
        if (drafts)
            ingle_scheduler_call(b->p.s, take_memory, &hog);
        for (int i = 0; i < N; i++) {
            a[i] = make_asked(&b->p, i, 20 + i, i ? SOME : -1);
            a[i]->o.ignore_end = true;
            a[i]->o.priority = i == 2;
        }
        submit_together(&b->p, a, N);
        for (int i = 0; i < N; i++)
            wait_done(a[i]);
        if (drafts)
            ingle_scheduler_call(b->p.s, give_memory, &hog);
        assert_true(!drafts || status_of(&b->p).n_parked > 0);
        for (int i = 0; i < N; i++) {
            const struct answer *w = &a[i]->answer[0];
            if (w->why == INGLE_FINISH_ERROR)
                fail_msg("%s", w->error);
            if (!drafts) {
                want[i] = *w;
                fake_learn(&b->fake, a[i]->o.prompt, a[i]->o.n_prompt, w->id, w->n);
            }
            assert_int_equal(w->n, want[i].n);
            assert_memory_equal(w->id, want[i].id, (size_t)w->n * sizeof *w->id);
            free_asked(a[i]);
        }
        close_drafting(b);
    }
    close_bench(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_counted),
        cmocka_unit_test(branches_are_taken),
        cmocka_unit_test(random_schedules_change_no_token),
        cmocka_unit_test(neither_with_compressed_rows),
        cmocka_unit_test(drafts_that_are_no_numbers_are_dropped),
        cmocka_unit_test(an_answer_gets_as_far_as_without),
        cmocka_unit_test(parked_answers_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
