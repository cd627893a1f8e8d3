/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations that begin alike: what a second user, an edit or a branch finds, in memory and on
 * disk, and that its bits are those of a cold run.  Both families; what is computed stops at no
 * border. */
#define _DEFAULT_SOURCE
#include "unit/door.h"
#include "unit/folder.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 12, TEXT = 900, JSON = 40000, NEAR = 8, TOKENS = 8, CTX = 4096 };
static const char v4[] = "tests/data/nano-v4/nano-v4-MXFP4.gguf";
/* ---- conversations ---- */

/* A system text and what user and assistant say in turn. */
struct talk {
    char text[MOST + 1][TEXT];
    int n; /* of text: 1 + messages */
};

static uint64_t state = 1;

static uint64_t pick(uint64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

/* Words, and what a tokenizer or a template might trip over.  JSON needs no escapes. */
static void say(char out[TEXT], int n_words)
{
    static const char *const word[] = {
        "stone", " river", "\\n",   "  ",    " <|turn>", " <｜User｜>", " größer", " 12", "\\n\\n",
        " {x}",  " model", " user", " 日本", " <turn|>", " .",          " tool",   "e",   " the"};
    size_t k = (size_t)snprintf(out, TEXT, "%c", (char)('A' + pick(26)));
    for (int i = 0; i < n_words && k + 40 < TEXT; i++)
        k += (size_t)snprintf(out + k, TEXT - k, "%s", word[pick(sizeof word / sizeof *word)]);
}

static void extend(struct talk *t, int n_words)
{
    assert_true(t->n <= MOST);
    say(t->text[t->n++], n_words);
}

static struct ingle_prompt render(const struct ingle_model *m, const struct talk *t, int n,
                                  bool ask)
{
    static char json[JSON];
    struct ingle_prompt p;
    size_t k =
        (size_t)snprintf(json, JSON, "[{\"role\":\"system\",\"content\":\"%s\"}", t->text[0]);
    for (int i = 1; i < n; i++)
        k += (size_t)snprintf(json + k, JSON - k, ",{\"role\":\"%s\",\"content\":\"%s\"}",
                              i % 2 ? "user" : "assistant", t->text[i]);
    k += (size_t)snprintf(json + k, JSON - k, "]");
    assert_true(k < JSON);
    const struct ingle_chat c = {.messages = json, .n_messages = k, .no_generation_prompt = !ask};
    must(ingle_chat_render(m, &c, &p, &error));
    return p;
}

static int64_t common(const struct ingle_prompt *a, const struct ingle_prompt *b)
{
    int64_t i = 0;
    while (i < (int64_t)a->n_ids && i < (int64_t)b->n_ids && a->ids[i] == b->ids[i])
        i++;
    return i;
}

/* ---- places ---- */

struct place {
    const char *model, *dir;
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_session *s, *cold;
    int64_t n_vocab;
    int n_cold;
};

static void place_open(struct place *p, const char *model, const char *dir, uint64_t cache_bytes,
                       int64_t max_rows)
{
    const struct ingle_engine_options o = {.n_ctx = CTX,
                                           .threads = 2,
                                           .n_sessions = 3,
                                           .cache_bytes = cache_bytes,
                                           .max_rows = max_rows,
                                           .store = dir,
                                           .store_tokens = 32};
    struct ingle_engine_info info;
    *p = (struct place){.model = model, .dir = dir};
    must(ingle_model_open(&p->m, model, NULL, &error));
    must(ingle_engine_open(&p->e, p->m, &o, &error));
    must(ingle_session_open(&p->s, p->e, &error));
    must(ingle_session_open(&p->cold, p->e, &error));
    ingle_engine_info(p->e, &info);
    p->n_vocab = info.n_vocab;
}

static void place_close(struct place *p)
{
    ingle_session_close(p->cold);
    ingle_session_close(p->s);
    ingle_engine_close(p->e);
    ingle_model_close(p->m);
}

/* The prompt on a session of its own, as a request has one: what is kept, and the bits of a cold
 * run. */
static struct ingle_reuse ask(struct place *p, const struct ingle_prompt *q)
{
    struct ingle_reuse r;
    const float *logits;
    const size_t bytes = (size_t)p->n_vocab * sizeof *logits;
    float *copy = malloc(bytes);
    char user[32];
    assert_non_null(copy);
    must(ingle_session_sync(p->s, q->ids, (int64_t)q->n_ids, &r, &error));
    must(ingle_session_finish(p->s, &logits, &error));
    memcpy(copy, logits, bytes);
    must(ingle_session_rewind(p->s, 0, &error));
    snprintf(user, sizeof user, "nobody before %d", p->n_cold++);
    ingle_session_set_user(p->cold, user);
    must(ingle_session_sync(p->cold, q->ids, (int64_t)q->n_ids, NULL, &error));
    must(ingle_session_finish(p->cold, &logits, &error));
    assert_memory_equal(copy, logits, bytes);
    free(copy);
    return r;
}

static void first_and_second(struct place *p, struct talk *t, bool reopen, const char *dir)
{
    struct talk u = *t;
    extend(t, 40);
    extend(&u, 10);
    struct ingle_prompt a = render(p->m, t, t->n, true), b = render(p->m, &u, u.n, true);
    const int64_t same = common(&a, &b);
    assert_true(same > 150 && same < (int64_t)b.n_ids);
    assert_int_equal(ask(p, &a).kept, 0);
    if (reopen) {
        const char *model = p->model;
        place_close(p);
        place_open(p, model, dir, 0, 0);
    }
    const struct ingle_reuse r = ask(p, &b);
    if (r.kept < same - NEAR)
        fail_msg("%lld of %lld tokens: %s", (long long)r.kept, (long long)same, r.why);
    assert_int_equal(r.from_disk, reopen ? r.kept : 0);
    ingle_prompt_release(&a);
    ingle_prompt_release(&b);
}

/* ---- what is promised ---- */

/* What stands before a border has the same tokens whatever follows. */
static void text_is_cut_at_borders(const char *model)
{
    struct ingle_model *m;
    must(ingle_model_open(&m, model, NULL, &error));
    for (int i = 0; i < (UNIT_ASAN ? 10 : unit_some(15, 40)); i++) {
        struct talk t = {.n = 0};
        size_t before = 0;
        while (t.n < 9)
            extend(&t, (int)pick(12) + (t.n ? 1 : 20));
        struct ingle_prompt all = render(m, &t, t.n, true);
        for (int n = 2; n <= t.n; n++) {
            struct ingle_prompt p = render(m, &t, n, n % 2 == 0);
            const size_t stable = ingle_prompt_stable(m, p.ids, p.n_ids);
            assert_true(stable >= before && stable < p.n_ids);
            assert_true((size_t)common(&all, &p) >= stable);
            before = stable;
            ingle_prompt_release(&p);
        }
        ingle_prompt_release(&all);
    }
    ingle_model_close(m);
}

static void a_second_user_finds_the_system_prompt(const char *model)
{
    char dir[64] = "/tmp/ingle-borders-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (int disk = 0; disk < 2; disk++) {
        struct place p;
        struct talk t = {.n = 0};
        place_open(&p, model, disk ? dir : NULL, 0, 0);
        extend(&t, 200);
        first_and_second(&p, &t, disk, dir);
        place_close(&p);
    }
    remove_dir(dir);
}

/* A long conversation comes at once, and then again with a message changed. */
static void an_edit_finds_what_is_before_it(const char *model)
{
    struct place p;
    struct talk t = {.n = 0};
    place_open(&p, model, NULL, 0, 0);
    while (t.n < 10)
        extend(&t, 60);
    struct ingle_prompt a = render(p.m, &t, t.n, true);
    assert_int_equal(ask(&p, &a).kept, 0);
    assert_true(ask(&p, &a).kept >= (int64_t)a.n_ids - NEAR); /* another answer */
    for (int at = t.n - 1; at >= t.n - 3; at--) {
        struct talk u = t;
        say(u.text[at], 30);
        u.text[at][0] = (char)('A' + (t.text[at][0] - 'A' + 1) % 26);
        u.n = at % 2 ? at + 1 : at + 2;
        struct ingle_prompt b = render(p.m, &u, u.n, true);
        const struct ingle_reuse r = ask(&p, &b);
        if (r.kept < common(&a, &b) - NEAR)
            fail_msg("message %d: %lld of %lld tokens", at, (long long)r.kept,
                     (long long)common(&a, &b));
        ingle_prompt_release(&b);
    }
    ingle_prompt_release(&a);
    place_close(&p);
}

/* Turns, edits, branches, other conversations, in any order, with too small a cache or a store that
 * is opened anew: what is kept or not, the bits are those of a cold run. */
static void any_order_has_the_bits_of_a_cold_run(const char *model)
{
    char dir[64] = "/tmp/ingle-borders-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (int way = 0; way < 3; way++) {
        struct place p;
        struct talk talk[2] = {{.n = 0}, {.n = 0}};
        int64_t kept = 0;
        place_open(&p, model, way == 2 ? dir : NULL,
                   way == 1 ? (uint64_t)(model ? 4000 : 1400) << 10 : 0, way == 1 ? 96 : 0);
        for (int i = 0; i < 2; i++) {
            extend(&talk[i], 30);
            extend(&talk[i], 5);
        }
        for (int i = 0; i < unit_some(8, UNIT_ASAN ? 8 : 14); i++) {
            struct talk *t = &talk[pick(2)];
            const uint64_t op = pick(4);
            if (op < 2 && t->n + 2 <= MOST) {
                extend(t, 10 + (int)pick(60));
                extend(t, 10 + (int)pick(60));
            } else if (op == 2) {
                t->n = 2 + 2 * (int)pick((uint64_t)t->n / 2);
                say(t->text[t->n - 1], 20);
            }
            struct ingle_prompt q = render(p.m, t, t->n, true);
            kept += ask(&p, &q).kept;
            ingle_prompt_release(&q);
            if (way == 2 && i % 4 == 3) {
                place_close(&p);
                place_open(&p, model, dir, 0, 0);
            }
        }
        assert_true(kept > 0);
        place_close(&p);
    }
    remove_dir(dir);
}

/* ---- side by side ---- */

struct asked {
    int32_t id[TOKENS];
    int64_t n, kept;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool runs, done; /* Sync: lock */
};

static void on_begin(void *arg, const struct ingle_reuse *reuse)
{
    ((struct asked *)arg)->kept = reuse->kept;
}

static void tell(struct asked *a, bool *what)
{
    pthread_mutex_lock(&a->lock);
    *what = true;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void wait_for(struct asked *a, const bool *what)
{
    pthread_mutex_lock(&a->lock);
    while (!*what)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

static int on_token(void *arg, int index, const struct ingle_drawn *t)
{
    struct asked *a = arg;
    (void)index;
    if (a->n < TOKENS)
        a->id[a->n++] = t->id;
    if (a->n == 2)
        tell(a, &a->runs);
    return 0;
}

static void on_done(void *arg, const struct ingle_usage *usage)
{
    struct asked *a = arg;
    (void)usage;
    tell(a, &a->done);
}

static struct ingle_request *submit(struct ingle_scheduler *s, const struct ingle_model *m,
                                    struct asked *a, const struct ingle_prompt *q, const char *user,
                                    int64_t max_tokens)
{
    struct ingle_request *r;
    struct ingle_request_options o = {.prompt = q->ids,
                                      .n_prompt = (int64_t)q->n_ids,
                                      .max_tokens = max_tokens,
                                      .ignore_end = true,
                                      .user = user,
                                      .begin = on_begin,
                                      .token = on_token,
                                      .done = on_done,
                                      .arg = a};
    *a = (struct asked){.n = 0};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    ingle_sampling_defaults(m, &o.sampling);
    o.sampling.temperature = 0;
    must(ingle_scheduler_submit(s, &o, &r, NULL, &error));
    return r;
}

static void one_that_runs_shares_what_it_has(const char *model)
{
    struct place p;
    struct ingle_scheduler *s;
    struct talk t = {.n = 0}, u, v;
    const struct ingle_scheduler_options so = {.max_running = 4};
    static struct asked a, b, c, alone;
    place_open(&p, model, NULL, 0, 0);
    ingle_session_close(p.cold);
    ingle_session_close(p.s);
    must(ingle_scheduler_open(&s, p.e, &so, &error));
    extend(&t, 200);
    u = v = t;
    extend(&t, 60);
    extend(&u, 20);
    extend(&v, 30);
    struct ingle_prompt x = render(p.m, &t, t.n, true), y = render(p.m, &u, u.n, true),
                        z = render(p.m, &v, v.n, true);
    struct ingle_request *r = submit(s, p.m, &a, &x, NULL, 2000);
    submit(s, p.m, &b, &y, NULL, TOKENS); /* while it reads its prompt, or is about to */
    wait_for(&b, &b.done);
    wait_for(&a, &a.runs);
    submit(s, p.m, &c, &z, NULL, TOKENS); /* while it answers */
    wait_for(&c, &c.done);
    ingle_request_cancel(s, r);
    wait_for(&a, &a.done);
    assert_true(b.kept >= common(&x, &y) - NEAR && c.kept >= common(&x, &z) - NEAR);
    submit(s, p.m, &alone, &y, "y alone", TOKENS);
    wait_for(&alone, &alone.done);
    assert_int_equal(alone.kept, 0);
    assert_memory_equal(alone.id, b.id, sizeof b.id);
    submit(s, p.m, &alone, &z, "z alone", TOKENS);
    wait_for(&alone, &alone.done);
    assert_memory_equal(alone.id, c.id, sizeof c.id);
    ingle_prompt_release(&x);
    ingle_prompt_release(&y);
    ingle_prompt_release(&z);
    ingle_scheduler_close(s);
    ingle_engine_close(p.e);
    ingle_model_close(p.m);
}

#define FAMILIES(fn)                                                                               \
    static void fn##_gemma4(void **unused)                                                         \
    {                                                                                              \
        (void)unused;                                                                              \
        fn(NULL);                                                                                  \
    }                                                                                              \
    static void fn##_v4(void **unused)                                                             \
    {                                                                                              \
        (void)unused;                                                                              \
        fn(v4);                                                                                    \
    }
FAMILIES(text_is_cut_at_borders)
FAMILIES(a_second_user_finds_the_system_prompt)
FAMILIES(an_edit_finds_what_is_before_it)
FAMILIES(any_order_has_the_bits_of_a_cold_run)
FAMILIES(one_that_runs_shares_what_it_has)

#define BOTH(fn) cmocka_unit_test(fn##_gemma4), cmocka_unit_test(fn##_v4)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(text_is_cut_at_borders),
        BOTH(a_second_user_finds_the_system_prompt),
        BOTH(an_edit_finds_what_is_before_it),
        BOTH(any_order_has_the_bits_of_a_cold_run),
        BOTH(one_that_runs_shares_what_it_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
