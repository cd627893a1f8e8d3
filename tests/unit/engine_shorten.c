/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts that a small model shortens, from the door of the library: what is kept is what
 * transformers' attention weights say (tests/data/skip); answers behind them; what is told; what
 * does not work. */
#include "unit/door.h"

#include "golden/golden.h"

#include "base/mem.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char model[] = "tests/data/goldens/gemma4_dense/model-F32.gguf",
                  v4[] = "tests/data/goldens/deepseek_v4_full/model-Q8_0.gguf";
struct place {
    struct ingle_model *m;
    struct ingle_engine *e;
    int n_notes, n_warnings;
    char said[256];
};

static void hear(void *arg, ingle_report_level level, const char *kind, const char *subject,
                 const char *text)
{
    struct place *p = arg;
    if (!strcmp(kind, "cache"))
        fail_msg("%s: %s", subject, text);
    if (strcmp(kind, "prompt-skip") != 0)
        return;
    p->n_notes += level == INGLE_REPORT_NOTE;
    p->n_warnings += level == INGLE_REPORT_WARN;
    snprintf(p->said, sizeof p->said, "%s %s", subject, text);
}

static void open_place(struct place *p, const char *path, struct ingle_engine_options o)
{
    *p = (struct place){0};
    o.n_ctx = o.n_ctx ? o.n_ctx : 2048;
    o.n_sessions = 3;
    o.no_pin = true;
    o.threads = 2;
    o.callbacks = (struct ingle_callbacks){.report = hear, .arg = p};
    must(ingle_model_open(&p->m, path, NULL, &error));
    must(ingle_engine_open(&p->e, p->m, &o, &error));
}

static void close_place(struct place *p)
{
    ingle_engine_close(p->e);
    ingle_model_close(p->m);
}

static struct {
    int32_t *ids, *kept;
    int64_t n, n_kept;
} w;

static int setup(void **state)
{
    (void)state;
    w.ids = golden_ints("tests/data/skip/kept.safetensors", "tokens", &w.n);
    w.kept = golden_ints("tests/data/skip/kept.safetensors", "kept", &w.n_kept);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mem_free(w.ids);
    mem_free(w.kept);
    return 0;
}

static void it_keeps_what_attention_says(void **state)
{
    (void)state;
    struct place p;
    struct ingle_shortened s;
    struct ingle_shortener_info info;
    open_place(&p, model,
               (struct ingle_engine_options){
                   .prompt_drafter = model, .prompt_keep = 0.8, .prompt_keep_from = 200});
    for (int again = 0; again < 3; again++) { /* read anew, read before, for somebody else */
        must(ingle_shorten(p.e, w.ids, w.n,
                           &(struct ingle_shorten_options){.user = again == 2 ? "other" : NULL}, &s,
                           &error));
        assert_int_equal(s.n, w.n_kept);
        assert_memory_equal(s.position, w.kept, (size_t)w.n_kept * sizeof *w.kept);
        for (int64_t i = 0; i < s.n; i++)
            assert_int_equal(s.ids[i], w.ids[w.kept[i]]);
        ingle_shortened_release(&s);
    }
    assert_int_equal(p.n_notes, 3);
    assert_non_null(strstr(p.said, "prompt shortened from 1,500 to 1,"));
    assert_non_null(strstr(p.said, ": what was left out cannot be quoted"));
    must(ingle_shorten(p.e, w.ids, w.n, &(struct ingle_shorten_options){.keep = 1}, &s, &error));
    assert_int_equal(s.n, 0);
    must(ingle_shorten(p.e, w.ids, 199, NULL, &s, &error)); /* too short */
    assert_int_equal(s.n, 0);
    must(ingle_shorten(p.e, w.ids, 700, NULL, &s, &error)); /* all of it is near an end */
    assert_int_equal(s.n, 0);
    assert_true(p.n_notes == 4 && !p.n_warnings &&
                strstr(p.said, "what is always kept are all of its 700 tokens"));
    ingle_shortener(p.e, &info);
    assert_true(info.n_prompts == 3 && info.n_read == 4500 &&
                info.n_kept == 3 * (uint64_t)w.n_kept && info.n_whole == 0 && info.bytes > 0);
    assert_int_equal(
        ingle_shorten(p.e, w.ids, w.n, &(struct ingle_shorten_options){.keep = 1.5}, &s, &error),
        INGLE_ARG);
    close_place(&p);
}

static bool at_the_third(void *arg)
{
    int *n = arg;
    return ++*n >= 3;
}

static void a_client_may_leave(void **state)
{
    (void)state;
    struct place p;
    struct ingle_shortened s;
    int asked = 0;
    open_place(&p, model,
               (struct ingle_engine_options){
                   .prompt_drafter = model, .prompt_keep = 0.8, .prompt_keep_from = 200});
    const struct ingle_shorten_options o = {.stop = at_the_third, .arg = &asked};
    assert_int_equal(ingle_shorten(p.e, w.ids, w.n, &o, &s, &error), INGLE_CANCEL);
    assert_true(s.n == 0 && !s.ids && asked >= 3 && !p.n_notes && !p.n_warnings);
    must(ingle_shorten(p.e, w.ids, w.n, NULL, &s, &error));
    assert_memory_equal(s.position, w.kept, (size_t)w.n_kept * sizeof *w.kept);
    ingle_shortened_release(&s);
    close_place(&p);
}

static void what_does_not_work_is_told(void **state)
{
    (void)state;
    struct place p;
    struct ingle_shortened s;
    struct ingle_shortener_info info;
    open_place(&p, model,
               (struct ingle_engine_options){
                   .prompt_drafter = model, .prompt_keep_from = 100, .prompt_ctx = 1000});
    must(ingle_shorten(p.e, w.ids, w.n, NULL, &s, &error));
    assert_true(s.n == 0 && p.n_warnings == 1 &&
                strstr(s.why, "1500 tokens are more than it can read at a time, 1000"));
    assert_non_null(strstr(p.said, "prompt all of it is read: "));
    close_place(&p);

    open_place(&p, model, (struct ingle_engine_options){0});
    must(ingle_shorten(p.e, w.ids, w.n, NULL, &s, &error)); /* nobody asked */
    assert_true(s.n == 0 && !p.n_warnings);
    must(ingle_shorten(p.e, w.ids, w.n, &(struct ingle_shorten_options){.keep = 0.5}, &s, &error));
    assert_true(s.n == 0 && p.n_warnings == 1 && strstr(p.said, "no prompt drafter"));
    close_place(&p);

    open_place(&p, model,
               (struct ingle_engine_options){.prompt_drafter = model, .prompt_ctx = 5000});
    assert_true(p.n_warnings == 1 &&
                strstr(p.said, "prompts of up to 4096 tokens, not 5000 (prompt-ctx)"));
    close_place(&p);

    open_place(&p, v4, (struct ingle_engine_options){.prompt_drafter = model, .n_ctx = 512});
    assert_true(p.n_warnings == 1 &&
                strstr(p.said, "rows of its cache stand for several tokens next to each other"));
    ingle_shortener(p.e, &info);
    assert_true(!*info.path && *info.why_never);
    const int32_t at[] = {0, 9};
    struct ingle_session *t;
    must(ingle_session_open(&t, p.e, &error));
    assert_int_equal(ingle_session_set_positions(t, at, 2, &error), INGLE_UNSUP);
    ingle_session_close(t);
    close_place(&p);

    struct ingle_engine_options o = {.n_ctx = 512, .no_pin = true, .prompt_drafter = v4};
    must(ingle_model_open(&p.m, model, NULL, &error));
    assert_int_equal(ingle_engine_open(&p.e, p.m, &o, &error), INGLE_UNSUP);
    assert_non_null(strstr(
        error.text,
        "it cannot find what matters in a prompt: no layer of it keeps the keys of all positions"));
    o.prompt_drafter = "tests/data/nowhere.gguf";
    assert_true(ingle_engine_open(&p.e, p.m, &o, &error) != INGLE_OK);
    o.prompt_drafter = model;
    struct ingle_plan with, without;
    must(ingle_engine_plan(p.m, &o, &with, &error));
    o.prompt_drafter = NULL;
    must(ingle_engine_plan(p.m, &o, &without, &error));
    assert_string_equal(with.item[with.n_items - 1].name, "prompt drafter");
    assert_int_equal(with.total_bytes - without.total_bytes, with.item[with.n_items - 1].bytes);
    ingle_model_close(p.m);
}

/* ---- answers ---- */

enum { DRAWN = 12, ANSWERS = 3 };
static const struct ingle_sampling greedy = {.top_p = 1, .typical_p = 1, .repeat_penalty = 1};
struct answer {
    int32_t token[DRAWN];
    int n;
    struct ingle_usage usage;
    atomic_int *left;
};

static int on_token(void *arg, int index, const struct ingle_drawn *t)
{
    struct answer *a = arg;
    (void)index;
    a->token[a->n++] = t->id;
    return 0;
}

static void on_done(void *arg, const struct ingle_usage *usage)
{
    struct answer *a = arg;
    a->usage = *usage;
    atomic_fetch_sub(a->left, 1);
}

static void nothing(struct ingle_engine *e, void *arg)
{
    (void)e;
    (void)arg;
}

/* Requests of a scheduler, beside each other; whole: that one's prompt is not shortened. */
static void ask(struct ingle_scheduler *sched, const struct ingle_shortened *s, int whole,
                struct answer out[ANSWERS])
{
    atomic_int left;
    atomic_init(&left, ANSWERS);
    for (int i = 0; i < ANSWERS; i++) {
        struct ingle_request *r;
        out[i] = (struct answer){.left = &left};
        const struct ingle_request_options o = {.prompt = i == whole ? w.ids : s->ids,
                                                .n_prompt = i == whole ? w.n : s->n,
                                                .position = i == whole ? NULL : s->position,
                                                .max_tokens = DRAWN,
                                                .ignore_end = true,
                                                .sampling = greedy,
                                                .token = on_token,
                                                .done = on_done,
                                                .arg = &out[i]};
        must(ingle_scheduler_submit(sched, &o, &r, NULL, &error));
    }
    while (atomic_load(&left))
        ingle_scheduler_call(sched, nothing, NULL);
}

static void answers_are_those_of_a_session(void **state)
{
    (void)state;
    struct place p;
    struct ingle_shortened s;
    struct ingle_scheduler *sched;
    struct ingle_session *t;
    struct answer out[ANSWERS], again[ANSWERS];
    const float *row;
    open_place(&p, model,
               (struct ingle_engine_options){
                   .prompt_drafter = model, .prompt_keep = 0.8, .prompt_keep_from = 200});
    must(ingle_shorten(p.e, w.ids, w.n, NULL, &s, &error));
    must(ingle_session_open(&t, p.e, &error));
    ingle_session_set_user(t, "alone");
    must(ingle_session_set_positions(t, s.position, s.n, &error));
    must(ingle_session_sync(t, s.ids, s.n, NULL, &error));
    assert_int_equal(ingle_session_skipped(t), w.n - s.n);
    int32_t want[DRAWN];
    struct ingle_sampler *sampler;
    must(ingle_sampler_open(&sampler, p.e, &greedy, &error));
    for (int i = 0; i < DRAWN; i++) {
        struct ingle_token drawn;
        must(ingle_session_finish(t, &row, &error));
        must(ingle_sample(sampler, row, t, &drawn, &error));
        want[i] = drawn.id;
        must(ingle_session_append(t, &want[i], 1, &error));
    }
    ingle_sampler_close(sampler);
    ingle_session_close(t);
    must(ingle_scheduler_open(&sched, p.e, &(struct ingle_scheduler_options){.max_running = 2},
                              &error));
    ask(sched, &s, 1, out);
    ask(sched, &s, 2, again); /* with what is remembered */
    for (int i = 0; i < ANSWERS; i++) {
        assert_int_equal(out[i].n, DRAWN);
        assert_int_equal(out[i].usage.n_prompt + out[i].usage.n_skipped, w.n);
        assert_int_equal(out[i].usage.n_skipped > 0, i != 1);
        if (i != 1)
            assert_memory_equal(out[i].token, want, sizeof want);
        if (i != 2)
            assert_memory_equal(again[i].token, want, sizeof want);
        if (i != 2)
            assert_true(again[i].usage.reuse.kept > 500);
    }
    assert_memory_equal(out[1].token, again[2].token, sizeof want);
    ingle_scheduler_close(sched);
    ingle_shortened_release(&s);
    close_place(&p);
}

/* ---- pictures in a prompt ---- */

static const char nano[] = "tests/data/nano/nano-gemma4-Q4_K_M.gguf";
enum { TEXT = 1200, MEDIA = 2 };

static int32_t id_of(const struct place *p, const char *name)
{
    const int32_t id = ingle_find_token(p->m, name, strlen(name));
    assert_true(id > 0);
    return id;
}

/* Text with markers around nothing, and the same with pictures between them. */
static int64_t with_pictures(const struct place *p, int32_t text[TEXT], int32_t *all,
                             struct ingle_span span[MEDIA])
{
    static const int64_t at[MEDIA] = {500, 703};
    static uint8_t rgb[MEDIA][48 * 48 * 3];
    uint32_t x = 9;
    int64_t n = 0;
    for (int64_t i = 0; i < TEXT; i++)
        text[i] = (int32_t)(300 + (x = x * 1664525u + 1013904223u) % 500);
    for (int k = 0; k < MEDIA; k++) {
        struct ingle_medium_info info;
        rgb[k][7] = (uint8_t)(k + 1);
        const struct ingle_media in = {.rgb = rgb[k], .width = 48, .height = 48, .budget = 70};
        must(ingle_medium_open(&span[k].medium, p->e, &in, &error));
        ingle_medium_info(span[k].medium, &info);
        span[k].n = info.n_soft;
        text[at[k] - 1] = id_of(p, "<|image>");
        text[at[k]] = id_of(p, "<image|>");
    }
    for (int64_t i = 0, k = 0; i < TEXT; i++) {
        if (k < MEDIA && i == at[k]) {
            span[k].start = n;
            for (int64_t j = 0; j < span[k].n; j++)
                all[n++] = id_of(p, "<|image|>");
            k++;
        }
        all[n++] = text[i];
    }
    return n;
}

/* The drafter reads the text; pictures and their markers stay, where they stood. */
static void pictures_stay_whole(void **state)
{
    (void)state;
    struct place p;
    struct ingle_shortened some, with;
    struct ingle_span span[MEDIA];
    int32_t text[TEXT], all[TEXT + MEDIA * 70], want[DRAWN];
    struct ingle_session *t;
    struct answer out[2];
    const float *row;
    open_place(&p, NULL,
               (struct ingle_engine_options){
                   .prompt_drafter = nano, .prompt_keep = 0.7, .prompt_keep_from = 200});
    const int64_t n = with_pictures(&p, text, all, span);
    must(ingle_shorten(p.e, text, TEXT, NULL, &some, &error));
    must(ingle_shorten(p.e, all, n,
                       &(struct ingle_shorten_options){.span = span, .n_spans = MEDIA}, &with,
                       &error));
    const int64_t n_soft = span[0].n + span[1].n;
    assert_true(some.n > 0 && some.n < TEXT);
    assert_int_equal(with.n, some.n + n_soft);
    assert_int_equal(with.n_spans, MEDIA);
    for (int64_t i = 0, j = 0, k = 0; i < with.n; i++) {
        assert_int_equal(with.ids[i], all[with.position[i]]);
        if (k < MEDIA && i == with.span[k].start) {
            assert_ptr_equal(with.span[k].medium, span[k].medium);
            assert_int_equal(with.position[i], span[k].start);
            assert_int_equal(with.position[i - 1], span[k].start - 1);
            assert_int_equal(with.position[i + span[k].n], span[k].start + span[k].n);
            i += span[k++].n - 1;
            continue;
        }
        const int64_t before = (k > 0 ? span[0].n : 0) + (k > 1 ? span[1].n : 0);
        assert_int_equal(with.position[i], some.position[j++] + before);
    }
    /* answers: of a session, and of two requests at once */
    struct ingle_sampler *sampler;
    must(ingle_session_open(&t, p.e, &error));
    must(ingle_session_set_positions(t, with.position, with.n, &error));
    must(ingle_session_sync_media(t, with.ids, with.n, with.span, MEDIA, NULL, &error));
    must(ingle_sampler_open(&sampler, p.e, &greedy, &error));
    for (int i = 0; i < DRAWN; i++) {
        struct ingle_token drawn;
        must(ingle_session_finish(t, &row, &error));
        must(ingle_sample(sampler, row, t, &drawn, &error));
        want[i] = drawn.id;
        must(ingle_session_append(t, &want[i], 1, &error));
    }
    ingle_sampler_close(sampler);
    ingle_session_close(t);
    ingle_engine_forget(p.e);
    struct ingle_scheduler *sched;
    atomic_int left;
    atomic_init(&left, 2);
    must(ingle_scheduler_open(&sched, p.e, NULL, &error));
    for (int i = 0; i < 2; i++) {
        struct ingle_request *r;
        out[i] = (struct answer){.left = &left};
        const struct ingle_request_options o = {.prompt = with.ids,
                                                .n_prompt = with.n,
                                                .position = with.position,
                                                .span = with.span,
                                                .n_spans = MEDIA,
                                                .max_tokens = DRAWN,
                                                .ignore_end = true,
                                                .sampling = greedy,
                                                .token = on_token,
                                                .done = on_done,
                                                .arg = &out[i]};
        must(ingle_scheduler_submit(sched, &o, &r, NULL, &error));
    }
    while (atomic_load(&left))
        ingle_scheduler_call(sched, nothing, NULL);
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(out[i].token, want, sizeof want);
        assert_int_equal(out[i].usage.n_skipped, n - with.n);
    }
    ingle_scheduler_close(sched);
    ingle_shortened_release(&some);
    ingle_shortened_release(&with);
    for (int k = 0; k < MEDIA; k++)
        ingle_medium_close(span[k].medium);
    close_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_keeps_what_attention_says),
        cmocka_unit_test(a_client_may_leave),
        cmocka_unit_test(what_does_not_work_is_told),
        cmocka_unit_test(answers_are_those_of_a_session),
        cmocka_unit_test(pictures_stay_whole),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
