/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700
/*
 * engine_drafter - a trained network that drafts for the built-in model: how much of it is right,
 * however the conversation came to where it is.
 */
#include "engine/engine.h"
#include "engine/session.h"
#include "unit/folder.h"
#include "unit/scheduler_world.h"

#include <unistd.h>

#define NANO(kind) "tests/data/nano/nano-gemma4-" kind "-Q8_0.gguf"
#define V4(name) "tests/data/nano-v4/nano-v4-" name ".gguf"

enum { FORCE = 5, ANSWER = 120 };

static const char *const QUESTIONS[] = {
    "Count to 45.",        "What is the capital of Norway?",
    "Tell me a story.",    "Write a C function that adds two numbers.",
    "Who are you?",        "List five animals.",
    "Count from 3 to 30.", "What comes after Tuesday?",
};
enum { N_QUESTIONS = sizeof QUESTIONS / sizeof *QUESTIONS };

struct kind { const char *model, *drafter; }; /* NULL: the built-in one; that of the model's file */

static const struct kind KINDS[] = {
    {NULL, NANO("dflash")},
    {NULL, NANO("dspark")},
    {NULL, NANO("mtp")},
    {V4("MXFP4"), NULL},
    {V4("MXFP4"), V4("dspark-Q8_0")},
};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

static void open_drafter(struct place *p, const struct kind *k,
                         const struct ingle_engine_options *like, int force)
{
    struct ingle_engine_options o = *like;
    o.draft = &k->drafter;
    o.n_draft = k->drafter != NULL;
    o.draft_method = k->drafter ? NULL : "mtp";
    o.n_ctx = o.n_ctx ? o.n_ctx : 1024;
    o.n_sessions = o.n_sessions ? o.n_sessions : 4;
    o.threads = 2;
    must(ingle_model_open(&p->m, k->model, NULL, &error));
    must(ingle_engine_open(&p->e, p->m, &o, &error));
    p->e->draft_force = force;
    p->e->draft_text = false; /* the network alone */
    must(ingle_scheduler_open(&p->s, p->e, NULL, &error));
}

static struct asked *ask_behind(const struct place *p, const char *messages, int64_t seed,
                                float temperature)
{
    const struct ingle_chat chat = {.messages = messages, .n_messages = strlen(messages)};
    struct asked *a = make_asked(p, 0, 1, ANSWER);
    struct ingle_prompt prompt;
    must(ingle_chat_render(p->m, &chat, &prompt, &error));
    free((void *)(uintptr_t)a->o.prompt);
    int32_t *ids = calloc(prompt.n_ids, sizeof *ids);
    assert_non_null(ids);
    memcpy(ids, prompt.ids, prompt.n_ids * sizeof *ids);
    a->o.prompt = ids;
    a->o.n_prompt = (int64_t)prompt.n_ids;
    ingle_prompt_release(&prompt);
    a->o.sampling = (struct ingle_sampling){.temperature = temperature,
                                            .seed = (uint64_t)seed,
                                            .repeat_penalty = 1,
                                            .top_p = 1,
                                            .typical_p = 1};
    return a;
}

static struct asked *ask(const struct place *p, const char *question, int64_t seed,
                         float temperature)
{
    char messages[400];
    snprintf(messages, sizeof messages, "[{\"role\": \"user\", \"content\": \"%s\"}]", question);
    return ask_behind(p, messages, seed, temperature);
}

static void run_asked(struct place *p, struct asked *a, int64_t draft_max)
{
    a->o.draft_max = draft_max;
    submit(p, a);
    wait_done(a);
    if (a->answer[0].why == INGLE_FINISH_ERROR)
        fail_msg("%s", a->answer[0].error);
}

static void same_answer(const struct asked *a, const struct asked *b)
{
    assert_int_equal(a->answer[0].n, b->answer[0].n);
    assert_int_equal(a->answer[0].why, b->answer[0].why);
    assert_memory_equal(a->answer[0].id, b->answer[0].id, (size_t)a->answer[0].n * sizeof(int32_t));
}

/* ---- at a temperature ---- */

static double accepted_at(struct place *p, float temperature)
{
    int64_t drafted = 0, accepted = 0;
    for (int64_t seed = 0; seed < 3; seed++)
        for (int q = 0; q < N_QUESTIONS; q++) {
            struct asked *plain = ask(p, QUESTIONS[q], seed, temperature),
                         *a = ask(p, QUESTIONS[q], seed, temperature);
            run_asked(p, plain, -1);
            run_asked(p, a, 0);
            same_answer(plain, a);
            assert_int_equal(plain->usage.n_drafted, 0);
            drafted += a->usage.n_drafted;
            accepted += a->usage.n_accepted;
            free_asked(plain);
            free_asked(a);
        }
    print_message("temperature %.1f: %lld of %lld drafted tokens accepted\n", (double)temperature,
                  (long long)accepted, (long long)drafted);
    return (double)accepted / (double)drafted;
}

/* Drafts of a network that is less sure than its model are drawn from sharper logits. */
static void drafts_at_a_temperature_are_sharpened(void **state)
{
    (void)state;
    struct place p;
    open_drafter(&p, &KINDS[0], &(struct ingle_engine_options){0}, FORCE);
    /* 0.49 and 0.43; 0.35 from the logits as they are */
    const double greedy = accepted_at(&p, 0), drawn = accepted_at(&p, 1);
    assert_true(greedy > 0.45 && drawn > 0.39);
    close_place(&p);
}

/* ---- trees ---- */

enum { NODES = 10, ASKED = 4 };

/* Drafted and accepted tokens of some answers, greedy and drawn, which go to a[]. */
static struct ingle_usage run_all(const struct kind *k, int64_t tree, struct asked **a)
{
    struct place p;
    struct ingle_usage sum = {0};
    open_drafter(&p, k, &(struct ingle_engine_options){.draft_tree = tree}, FORCE);
    for (int i = 0; i < 2 * ASKED; i++) {
        a[i] = ask(&p, QUESTIONS[i / 2], i, (float)(i % 2));
        run_asked(&p, a[i], 0);
        sum.n_generated += a[i]->usage.n_generated;
        sum.n_drafted += a[i]->usage.n_drafted;
        sum.n_accepted += a[i]->usage.n_accepted;
        sum.n_drafts += a[i]->usage.n_drafts;
        assert_true(a[i]->usage.n_accepted + a[i]->usage.n_drafts <= a[i]->usage.n_generated);
    }
    const struct ingle_scheduler_status t = status_of(&p);
    assert_true(t.drafted_tokens == sum.n_drafted && t.accepted_tokens == sum.n_accepted);
    close_place(&p);
    return sum;
}

/* Of as many steps more tokens come out, and the same text. */
static void trees_accept_more_than_chains(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        struct asked *chain[2 * ASKED], *tree[2 * ASKED];
        const struct ingle_usage c = run_all(&KINDS[k], 0, chain),
                                 t = run_all(&KINDS[k], NODES, tree);
        for (int i = 0; i < 2 * ASKED; i++) {
            same_answer(chain[i], tree[i]);
            free_asked(chain[i]);
            free_asked(tree[i]);
        }
        print_message(
            "%s: chains %lld of %lld accepted in %lld steps, trees %lld of %lld in %lld\n",
            KINDS[k].drafter ? KINDS[k].drafter : "its own block", (long long)c.n_accepted,
            (long long)c.n_drafted, (long long)c.n_drafts, (long long)t.n_accepted,
            (long long)t.n_drafted, (long long)t.n_drafts);
        assert_true(t.n_accepted >= c.n_accepted && t.n_drafts <= c.n_drafts);
    }
}

/* ---- restored, forked, rewound, parked ---- */

/* A conversation of some turns, so long that the store keeps it. */
static const char TALK[] = "[{\"role\": \"user\", \"content\": \"Count to 60.\"}, {\"role\": "
                           "\"assistant\", \"content\": \"%s\"},"
                           " {\"role\": \"user\", \"content\": \"Tell me a story.\"}, {\"role\": "
                           "\"assistant\", \"content\": \"%s\"},"
                           " {\"role\": \"user\", \"content\": \"%s\"}]";

static const char *talk(const char *last)
{
    static char messages[4000];
    char count[1000] = "1", story[1000] = "";
    for (int i = 2; i <= 60; i++)
        snprintf(count + strlen(count), sizeof count - strlen(count), ", %d", i);
    for (int i = 0; i < 8; i++)
        strcat(story, "A fox went to the river. ");
    snprintf(messages, sizeof messages, TALK, count, story, last);
    return messages;
}

/* What came of `n` answers to a conversation that ends so, which have to be those of `want`. */
static struct ingle_usage run_talk(struct place *p, const char *last, int n, struct answer *want,
                                   const char *how)
{
    struct asked *a = ask_behind(p, talk(last), 1, 0);
    a->o.n = n;
    run_asked(p, a, 0);
    const struct ingle_usage u = a->usage;
    for (int i = 0; i < n; i++) {
        if (!want->n)
            *want = a->answer[i];
        assert_int_equal(a->answer[i].n, want->n);
        assert_memory_equal(a->answer[i].id, want->id, (size_t)want->n * sizeof *want->id);
    }
    print_message("%-10s %4lld of %4lld tokens kept (cache %4lld, disk %4lld), %3lld of %3lld "
                  "drafts accepted\n",
                  how, (long long)u.reuse.kept, (long long)u.n_prompt,
                  (long long)u.reuse.from_cache, (long long)u.reuse.from_disk,
                  (long long)u.n_accepted, (long long)u.n_drafted);
    free_asked(a);
    return u;
}

static void same_drafts(const struct ingle_usage *u, const struct ingle_usage *cold, int n)
{
    assert_int_equal(u->n_drafted, n * cold->n_drafted);
    assert_int_equal(u->n_accepted, n * cold->n_accepted);
}

struct saving { struct place *p; const int32_t *tokens; int64_t n; const char *path; bool load; };

static void save_or_load(struct ingle_engine *e, void *arg)
{
    const struct saving *v = arg;
    struct ingle_session *s;
    struct ingle_reuse reuse;
    must(ingle_session_open(&s, e, &error));
    if (v->load) {
        must(ingle_session_load(s, v->path, &error));
        must(ingle_session_remember(s, &error));
    } else {
        must(ingle_session_sync(s, v->tokens, v->n, &reuse, &error));
        assert_true(reuse.kept > v->n / 2);
        must(ingle_session_save(s, v->path, &error));
    }
    ingle_session_close(s);
}

/* The prompt's slot, saved or loaded. */
static void slot(struct place *p, const char *last, const char *path, bool load)
{
    struct asked *a = ask_behind(p, talk(last), 1, 0);
    struct saving v = {p, a->o.prompt, a->o.n_prompt, path, load};
    ingle_scheduler_call(p->s, save_or_load, &v);
    free_asked(a);
}

static void check_kind(const struct kind *k)
{
    static const char last[] = "Count to 45.";
    static struct answer want, other;
    char dir[] = "/tmp/ingle-drafter-XXXXXX", file[64];
    struct place p;
    want.n = other.n = 0;
    assert_non_null(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/slot.kv", dir);
    const struct ingle_engine_options stored = {.store = dir, .store_tokens = 32}, none = {0};
    print_message("%s with %s\n", k->model ? k->model : "nano",
                  k->drafter ? k->drafter : "its own block");
    open_drafter(&p, k, &stored, FORCE);
    const struct ingle_usage cold = run_talk(&p, last, 1, &want, "cold");
    assert_true(cold.reuse.kept == 0 && cold.n_accepted > 0);
    struct ingle_usage u = run_talk(&p, last, 1, &want, "cached");
    assert_true(u.reuse.from_cache > 100);
    same_drafts(&u, &cold, 1);
    u = run_talk(&p, last, 3, &want, "forked");
    same_drafts(&u, &cold, 3);
    const struct ingle_usage behind = run_talk(&p, "Who are you?", 1, &other, "parted");
    assert_true(behind.reuse.from_cache > 100);
    slot(&p, last, file, false);
    close_place(&p);
    open_drafter(&p, k, &stored, FORCE);
    u = run_talk(&p, last, 1, &want, "disk");
    assert_true(u.reuse.from_disk > 100);
    same_drafts(&u, &cold, 1);
    close_place(&p);
    open_drafter(&p, k, &none, FORCE);
    slot(&p, last, file, true);
    u = run_talk(&p, last, 1, &want, "slot");
    assert_true(u.reuse.from_cache > 100);
    same_drafts(&u, &cold, 1);
    close_place(&p);
    open_drafter(&p, k, &none, FORCE);
    u = run_talk(&p, "Who are you?", 1, &other, "cold");
    same_drafts(&behind, &u, 1);
    close_place(&p);
    remove_dir(dir);
}

static void known_conversations_draft_as_cold_ones(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS; i++)
        check_kind(&KINDS[i]);
}

static void leave_little(struct ingle_engine *e, void *hog)
{
    ingle_engine_forget(e);
    take_memory(e, hog);
}

/* Answers that give their pages away for a while draft as before when they go on. */
static void parked_answers_draft_again(void **state)
{
    (void)state;
    enum { N = 3 };
    struct place p;
    struct asked *alone[N], *a[N];
    struct hog hog = {.p = &p, .leave = 3000000};
    if (UNIT_ASAN) /* unit_engine_drafts has drafts that give way */
        return;
    struct ingle_usage sum = {0}, all = {0};
    open_drafter(&p, &KINDS[0], &(struct ingle_engine_options){.n_ctx = 1400, .n_sessions = 3},
                 FORCE);
    for (int i = 0; i < N; i++) {
        alone[i] = ask(&p, QUESTIONS[i], i, 0);
        a[i] = ask(&p, QUESTIONS[i], i, 0);
        alone[i]->o.ignore_end = a[i]->o.ignore_end = true;
        alone[i]->o.max_tokens = a[i]->o.max_tokens = -1;
        run_asked(&p, alone[i], 0);
        sum.n_drafted += alone[i]->usage.n_drafted;
        sum.n_accepted += alone[i]->usage.n_accepted;
    }
    ingle_scheduler_call(p.s, leave_little, &hog);
    submit_together(&p, a, N);
    for (int i = 0; i < N; i++) {
        wait_done(a[i]);
        same_answer(a[i], alone[i]);
        all.n_drafted += a[i]->usage.n_drafted;
        all.n_accepted += a[i]->usage.n_accepted;
        free_asked(a[i]);
        free_asked(alone[i]);
    }
    ingle_scheduler_call(p.s, give_memory, &hog);
    print_message("parked %lld times: %lld of %lld drafts accepted, %lld of %lld alone\n",
                  (long long)status_of(&p).n_parked, (long long)all.n_accepted,
                  (long long)all.n_drafted, (long long)sum.n_accepted, (long long)sum.n_drafted);
    assert_true(status_of(&p).n_parked > 0);
    assert_true(all.n_accepted > sum.n_accepted - sum.n_accepted / 10 &&
                all.n_drafted < sum.n_drafted + sum.n_drafted / 10);
    close_place(&p);
}

/* ---- what a grammar forces ---- */

static const struct {
    const char *name;
    int age;
} PEOPLE[] = {{"Leo", 42}, {"Mia", 64}, {"Ben", 25}, {"Eva", 50}};
enum { N_PEOPLE = sizeof PEOPLE / sizeof *PEOPLE };

static void open_grammar(const struct place *p, struct ingle_grammar **g,
                         enum ingle_grammar_kind kind, int person)
{
    /* each has one token */
    char text[400] = "root ::= <[48]> <[49]> <[48]> <[49]> <[48]> <[49]> <[48]> [a-z]";
    if (kind == INGLE_GRAMMAR_JSON_SCHEMA)
        snprintf(text, sizeof text,
                 "{\"type\": \"object\", \"properties\": {\"name\": {\"const\": \"%s\"}, \"age\": "
                 "{\"const\": %d}}, "
                 "\"required\": [\"name\", \"age\"], \"additionalProperties\": false}",
                 PEOPLE[person].name, PEOPLE[person].age);
    must(ingle_grammar_open(g, p->m, kind, text, strlen(text), &error));
}

/* Tokens that the answers get by each drafter; they are those of plain decoding. */
static struct ingle_scheduler_status run_constrained(struct place *p, enum ingle_grammar_kind kind,
                                                     int force)
{
    ingle_scheduler_close(p->s);
    p->e->draft_text = true;
    p->e->draft_force = force;
    p->e->draft_force_by = INGLE_DRAFTER_GRAMMAR;
    must(ingle_scheduler_open(&p->s, p->e, NULL, &error));
    for (int i = 0; i < N_PEOPLE; i++) {
        const float temperature = i % 2 ? 0.7f : 0;
        struct ingle_grammar *g;
        char question[80];
        open_grammar(p, &g, kind, i);
        snprintf(question, sizeof question, "Give me a JSON object with name %s and age %d.",
                 PEOPLE[i].name, PEOPLE[i].age);
        struct asked *plain = ask(p, question, i, temperature),
                     *a = ask(p, question, i, temperature);
        plain->o.grammar = a->o.grammar = g;
        run_asked(p, plain, -1);
        run_asked(p, a, 0);
        same_answer(plain, a);
        free_asked(plain);
        free_asked(a);
        ingle_grammar_close(g);
    }
    const struct ingle_scheduler_status t = status_of(p);
    for (int k = 0; k < INGLE_DRAFTERS; k++)
        print_message("%s: %lld of %lld drafts accepted\n",
                      k == INGLE_DRAFTER_NETWORK ? "network"
                      : k == INGLE_DRAFTER_TEXT  ? "text"
                                                 : "grammar",
                      (long long)t.accepted_by[k], (long long)t.drafted_by[k]);
    return t;
}

static void what_a_grammar_forces_is_drafted(void **state)
{
    (void)state;
    struct place p;
    open_drafter(&p, &KINDS[0], &(struct ingle_engine_options){0}, 0);
    struct ingle_scheduler_status t = run_constrained(&p, INGLE_GRAMMAR_GBNF, FORCE);
    /* the first is drawn; a draft of 5, and one behind it */
    assert_int_equal(t.drafted_by[INGLE_DRAFTER_GRAMMAR], N_PEOPLE * (7 - 1 - 1));
    assert_int_equal(t.accepted_by[INGLE_DRAFTER_GRAMMAR], t.drafted_by[INGLE_DRAFTER_GRAMMAR]);
    t = run_constrained(&p, INGLE_GRAMMAR_JSON_SCHEMA, FORCE);
    assert_true(t.drafted_by[INGLE_DRAFTER_GRAMMAR] >= 5 * N_PEOPLE);
    assert_true(t.accepted_by[INGLE_DRAFTER_GRAMMAR] >=
                t.drafted_by[INGLE_DRAFTER_GRAMMAR] * 9 / 10);
    close_place(&p);
}

/* ---- one session ---- */

/* An answer by ingle_session_draw(); returns how many tokens. */
static int64_t draw_alone(const struct place *p, struct ingle_session *session,
                          const struct asked *a, int64_t most, int32_t *out)
{
    struct ingle_sampler *sampler;
    struct ingle_token token[24];
    int64_t n = 0, k = 0;
    must(ingle_sampler_open(&sampler, p->e, &a->o.sampling, &error));
    must(ingle_sampler_constrain(sampler, a->o.grammar, &error));
    must(ingle_session_sync(session, a->o.prompt, a->o.n_prompt, NULL, &error));
    for (bool ends = false; n < ANSWER && !ends; n += k) {
        must(ingle_session_draw(session, sampler, token, most < ANSWER - n ? most : ANSWER - n, &k,
                                &error));
        assert_true(k >= 1 && k <= most);
        for (int64_t i = 0; i < k; i++) {
            assert_false(ends);
            out[n + i] = token[i].id;
            ends = ingle_model_is_end(p->m, token[i].id);
        }
        int64_t n_all;
        assert_int_equal(ingle_session_tokens(session, &n_all)[a->o.n_prompt + n + k - 1],
                         token[k - 1].id);
        assert_int_equal(n_all, a->o.n_prompt + n + k);
        assert_int_equal(ingle_session_pending(session), 1);
    }
    ingle_sampler_close(sampler);
    return n;
}

static void check_draws(struct place *p, struct ingle_session *session,
                        const struct ingle_grammar *g, int64_t most)
{
    for (int q = 0; q < N_QUESTIONS; q++) {
        int32_t want[MAX_TOKENS], got[MAX_TOKENS];
        struct asked *a = ask(p, QUESTIONS[q], q, q % 2 ? 0.8f : 0);
        a->o.sampling.repeat_penalty = q % 3 ? 1 : 1.2f;
        a->o.sampling.penalty_window = 64;
        a->o.grammar = g;
        p->e->draft_force = 0;
        const int64_t n = draw_alone(p, session, a, 1, want);
        p->e->draft_force = FORCE;
        assert_int_equal(draw_alone(p, session, a, most, got), n);
        assert_memory_equal(got, want, (size_t)n * sizeof *want);
        free_asked(a);
    }
}

static void one_session_draws_several_tokens(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k += 3) {
        struct place p;
        struct ingle_session *session;
        struct ingle_sampler *sampler;
        struct ingle_grammar *g;
        struct ingle_token token[4];
        int64_t n = 0, drafted, accepted;
        open_drafter(&p, &KINDS[k], &(struct ingle_engine_options){0}, FORCE);
        ingle_scheduler_close(p.s);
        p.s = NULL;
        p.e->draft_text = true;
        p.e->draft_force_by = INGLE_DRAFTERS;
        open_grammar(&p, &g, INGLE_GRAMMAR_JSON_SCHEMA, 0);
        must(ingle_session_open(&session, p.e, &error));
        check_draws(&p, session, NULL, 24);
        check_draws(&p, session, g, 3);
        ingle_session_drafted(session, &drafted, &accepted);
        print_message("one session: %lld of %lld drafts accepted\n", (long long)accepted,
                      (long long)drafted);
        assert_true(drafted > 120 && accepted > drafted / 4);
        must(ingle_sampler_open(
            &sampler, p.e,
            &(struct ingle_sampling){.repeat_penalty = 1, .top_p = 1, .typical_p = 1}, &error));
        assert_int_equal(ingle_session_draw(session, sampler, token, 0, &n, &error), INGLE_ARG);
        must(ingle_session_rewind(session, 3, &error));
        must(ingle_session_append(session, &token[0].id, 0, &error));
        if (!ingle_session_pending(session))
            assert_int_equal(ingle_session_draw(session, sampler, token, 4, &n, &error), INGLE_ARG);
        ingle_sampler_close(sampler);
        ingle_session_close(session);
        ingle_grammar_close(g);
        ingle_engine_close(p.e);
        ingle_model_close(p.m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_accept_more_than_chains),
        cmocka_unit_test(drafts_at_a_temperature_are_sharpened),
        cmocka_unit_test(parked_answers_draft_again),
        cmocka_unit_test(what_a_grammar_forces_is_drafted),
        cmocka_unit_test(one_session_draws_several_tokens),
        cmocka_unit_test(known_conversations_draft_as_cold_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
