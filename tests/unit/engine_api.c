/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls on the built-in model. */
#include "unit/door.h"

#include <fenv.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct place {
    struct ingle_model *m;
    struct ingle_engine *e;
};

static void open_place(struct place *p, const struct ingle_engine_options *o)
{
    must(ingle_model_open(&p->m, NULL, NULL, &error));
    must(ingle_engine_open(&p->e, p->m, o, &error));
}

static void close_place(struct place *p)
{
    ingle_engine_close(p->e);
    ingle_model_close(p->m);
}

static void prompt_ids(const struct ingle_model *m, const char *question, int32_t **ids, size_t *n)
{
    char text[256];
    snprintf(text, sizeof text, "[{\"role\": \"user\", \"content\": \"%s\"}]", question);
    const struct ingle_chat chat = {.messages = text, .n_messages = strlen(text)};
    struct ingle_prompt p;
    must(ingle_chat_render(m, &chat, &p, &error));
    *ids = p.ids;
    *n = p.n_ids;
    p.ids = NULL;
    ingle_prompt_release(&p);
}

/* The greedy answer's ids, at most n_max. */
static int64_t answer(struct place *p, struct ingle_session *s, int32_t *out, int64_t n_max)
{
    struct ingle_sampling o;
    struct ingle_sampler *sampler;
    const float *logits;
    ingle_sampling_defaults(p->m, &o);
    o.temperature = 0;
    must(ingle_sampler_open(&sampler, p->e, &o, &error));
    int64_t n = 0;
    while (n < n_max) {
        struct ingle_token t;
        must(ingle_session_finish(s, &logits, &error));
        must(ingle_sample(sampler, logits, s, &t, &error));
        out[n++] = t.id;
        if (ingle_model_is_end(p->m, t.id))
            break;
        must(ingle_session_append(s, &t.id, 1, &error));
    }
    ingle_sampler_close(sampler);
    return n;
}

static void what_a_model_says_of_itself(void **state)
{
    (void)state;
    struct ingle_model *m;
    struct ingle_model_info info;
    struct ingle_sampling s;
    size_t n;
    must(ingle_model_open(&m, NULL, NULL, &error));
    ingle_model_info(m, &info);
    assert_string_equal(info.arch, "gemma4");
    assert_string_equal(info.chat, "gemma4");
    assert_int_equal(info.n_vocab, 2048);
    assert_int_equal(info.n_layers, 6);
    assert_int_equal(info.n_ctx, 4096);
    assert_int_equal(info.bos, 2);
    assert_true(info.add_bos && info.large && info.has_weights);
    const int32_t *end = ingle_model_ends(m, &n);
    assert_int_equal(n, 3);
    assert_true(end[0] == 1 && end[1] == 50 && end[2] == 106);
    ingle_sampling_defaults(m, &s);
    assert_true(s.temperature == 0.5f && s.top_k == 64 && fabsf(s.top_p - 0.95f) < 1e-6f);
    const char *turn = ingle_token(m, 106, &n);
    assert_int_equal(n, 7);
    assert_memory_equal(turn, "<turn|>", 7);
    assert_int_equal(ingle_find_token(m, "<turn|>", 7), 106);
    assert_null(ingle_token(m, 2048, &n));
    ingle_model_close(m);
}

static void a_vocabulary_alone_reads_and_writes(void **state)
{
    (void)state;
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_model_info info;
    int32_t *ids;
    size_t n, k;
    char *text;
    must(ingle_model_open(&m, "tests/data/nano/tokenizer.json", NULL, &error));
    ingle_model_info(m, &info);
    assert_false(info.has_weights);
    must(ingle_tokenize(m, "I am nano", 9, 0, &ids, &n, &error));
    must(ingle_detokenize(m, ids, n, false, &text, &k, &error));
    assert_string_equal(text, "I am nano");
    ingle_free(text);
    ingle_free(ids);
    assert_int_equal(ingle_engine_open(&e, m, NULL, &error), INGLE_UNSUP);
    assert_non_null(strstr(error.text, "only a vocabulary"));
    ingle_model_close(m);
}

static void two_engines_answer_alike(void **state)
{
    (void)state;
    struct place a, b;
    const struct ingle_engine_options one = {.threads = 1, .cpu = "ref", .max_rows = 5};
    open_place(&a, NULL);
    open_place(&b, &one);
    struct ingle_session *s, *t;
    int32_t *ids, x[200], y[200];
    size_t n;
    prompt_ids(a.m, "Capital of Japan?", &ids, &n);
    must(ingle_session_open(&s, a.e, &error));
    must(ingle_session_open(&t, b.e, &error));
    must(ingle_session_sync(s, ids, (int64_t)n, NULL, &error));
    must(ingle_session_sync(t, ids, (int64_t)n, NULL, &error));
    const int64_t k = answer(&a, s, x, 200);
    assert_int_equal(answer(&b, t, y, 200), k);
    assert_memory_equal(x, y, (size_t)k * sizeof *x);
    ingle_free(ids);
    ingle_session_close(s);
    ingle_session_close(t);
    close_place(&b);
    close_place(&a);
}

static void sessions_fork_rewind_and_share_a_step(void **state)
{
    (void)state;
    struct place p;
    const struct ingle_engine_options o = {.n_sessions = 3};
    open_place(&p, &o);
    struct ingle_session *s, *t;
    int32_t *ids, x[100], y[100];
    size_t n;
    int64_t length;
    struct ingle_reuse reuse;
    prompt_ids(p.m, "Who are you?", &ids, &n);
    must(ingle_session_open(&s, p.e, &error));
    must(ingle_session_open(&t, p.e, &error));
    must(ingle_session_sync(s, ids, (int64_t)n, NULL, &error));
    const int64_t k = answer(&p, s, x, 100);

    must(ingle_session_rewind(s, (int64_t)n, &error));
    must(ingle_session_fork(t, s, &error));
    ingle_session_tokens(t, &length);
    assert_int_equal(length, n);
    must(ingle_session_sync(t, ids, (int64_t)n, &reuse, &error));
    assert_true(reuse.kept > 0);
    assert_int_equal(answer(&p, t, y, 100), k);
    assert_memory_equal(x, y, (size_t)k * sizeof *x);

    must(ingle_session_rewind(s, 0, &error));
    must(ingle_session_rewind(t, 0, &error));
    must(ingle_session_append(s, ids, (int64_t)n, &error));
    must(ingle_session_append(t, ids, (int64_t)n, &error));
    struct ingle_work w[2] = {{.session = s, .want = INGLE_WANT_LAST},
                              {.session = t, .want = INGLE_WANT_ALL}};
    must(ingle_step(p.e, w, 2, &error));
    assert_int_equal(w[0].n_done, n);
    assert_int_equal(w[0].n_logits, 1);
    if (w[1].n_logits)
        assert_int_equal(w[1].n_logits, w[1].n_done);
    assert_int_equal(ingle_session_pending(s), 0);

    const int32_t bad = 5000;
    assert_int_equal(ingle_session_append(s, &bad, 1, &error), INGLE_ARG);
    assert_string_equal(error.text, "token 0 is 5000, outside the vocabulary of 2048");
    ingle_free(ids);
    ingle_session_close(s);
    ingle_session_close(t);
    close_place(&p);
}

static void a_cancelled_step_can_be_taken_again(void **state)
{
    (void)state;
    struct place p;
    struct ingle_session *s;
    int32_t *ids;
    size_t n;
    const float *logits;
    open_place(&p, NULL);
    prompt_ids(p.m, "Who are you?", &ids, &n);
    must(ingle_session_open(&s, p.e, &error));
    must(ingle_session_sync(s, ids, (int64_t)n, NULL, &error));
    ingle_engine_cancel(p.e);
    assert_int_equal(ingle_session_finish(s, &logits, &error), INGLE_CANCEL);
    ingle_engine_resume(p.e);
    must(ingle_session_finish(s, &logits, &error));
    assert_int_equal(ingle_session_length(s), n);
    ingle_free(ids);
    ingle_session_close(s);
    close_place(&p);
}

static void a_plan_says_what_would_fit(void **state)
{
    (void)state;
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_plan p;
    must(ingle_model_open(&m, NULL, NULL, &error));
    struct ingle_engine_options o = {.n_ctx = 4096};
    must(ingle_engine_plan(m, &o, &p, &error));
    uint64_t sum = 0;
    for (int i = 0; i < p.n_items; i++)
        sum += p.item[i].bytes;
    assert_int_equal(sum, p.total_bytes);
    assert_true(p.fits);
    o.memory_bytes = p.total_bytes - 1;
    must(ingle_engine_plan(m, &o, &p, &error));
    assert_false(p.fits);
    assert_non_null(strstr(p.advice, "would fit"));
    assert_int_equal(ingle_engine_open(&e, m, &o, &error), INGLE_LIMIT);
    assert_non_null(strstr(error.text, p.advice));
    o.n_ctx = 0; /* nobody asked for a context: it becomes shorter */
    must(ingle_engine_open(&e, m, &o, &error));
    struct ingle_engine_info info;
    ingle_engine_info(e, &info);
    assert_true(info.n_ctx < 4096 && info.n_ctx >= 512);
    ingle_engine_close(e);
    o = (struct ingle_engine_options){.kv = "f8"};
    assert_int_equal(ingle_engine_open(&e, m, &o, &error), INGLE_ARG);
    o = (struct ingle_engine_options){.cpu = "z80"};
    assert_int_equal(ingle_engine_open(&e, m, &o, &error), INGLE_ARG);
    ingle_model_close(m);
}

static uint64_t need_of(struct ingle_model *m, const struct ingle_engine_options *like,
                        const char *kv)
{
    struct ingle_engine_options o = *like;
    struct ingle_plan p;
    o.kv = kv;
    o.memory_bytes = 0;
    must(ingle_engine_plan(m, &o, &p, &error));
    return p.total_bytes;
}

static void advises(struct ingle_model *m, struct ingle_engine_options *o, uint64_t memory,
                    const char *says, const char *says_not)
{
    struct ingle_plan p;
    o->memory_bytes = memory;
    must(ingle_engine_plan(m, o, &p, &error));
    if (!strstr(p.advice, says) || (says_not && strstr(p.advice, says_not)))
        fail_msg("with %llu bytes: '%s'", (unsigned long long)memory, p.advice);
}

/* The best format of keys and values that fits in what is left, and why; with a drafter none below
 * 8 bits. */
static void a_plan_names_the_best_format(void **state)
{
    (void)state;
    static const char *const draft[] = {"tests/data/nano/nano-gemma4-dflash-Q8_0.gguf"},
                             *const off[] = {"off"};
    struct ingle_model *m;
    must(ingle_model_open(&m, NULL, NULL, &error));
    /* so many tokens that windows, which q8_0 has in 8 bits, too, are small */
    struct ingle_engine_options o = {
        .n_ctx = 65536, .max_rows = 64, .draft = off, .n_draft = 1, .cache_bytes = 1 << 20};
    const uint64_t made = need_of(m, &o, "f16v"), made8 = need_of(m, &o, "q8r+rot");
    assert_true(made8 < made && made < need_of(m, &o, "f16"));
    advises(m, &o, made, "(--kv f16v) would fit: keys are made of values", NULL);
    advises(
        m, &o, made - 1,
        "(--kv q8r+rot) would fit: keys are made of values, except the part that depends on the "
        "position; 8 bits",
        NULL);
    advises(m, &o, made8 - 1, "(--kv q8r:n4r+rot) would fit", "drafter");
    advises(m, &o, need_of(m, &o, "n4r+rot"),
            "(--kv n4r+rot) would fit: keys are made of values except the position's part; 4.1 "
            "bits: answers change",
            NULL);
    advises(m, &o, need_of(m, &o, "n4r+rot") - 1, "--ctx ", "--kv");
    o.draft = draft;
    advises(m, &o, need_of(m, &o, "q8r+rot"), "; with a drafter no fewer than 8 bits", NULL);
    advises(m, &o, need_of(m, &o, "q8r+rot") - 1, "", "n4r");
    o.draft = off;
    /* keys made of values have no gaps; what a prompt drafter takes is more than all of them */
    const uint64_t alone = need_of(m, &o, "f16");
    o.prompt_drafter = "assets/nano-gemma4-Q8_0.gguf";
    advises(m, &o, need_of(m, &o, "f16") - 1, "(--kv q8r+rot) would fit", "f16v");
    advises(m, &o, alone, "without the prompt drafter, which takes ", "--ctx");
    o.prompt_drafter = NULL;
    ingle_model_close(m);
    /* values of its own: keys are not made of them */
    must(ingle_model_open(&m, "tests/data/goldens/gemma4_ple_e2b/model-F32.gguf", NULL, &error));
    o.draft = off;
    advises(m, &o, need_of(m, &o, "q8r"), "(--kv q8r) would fit", NULL);
    advises(m, &o, need_of(m, &o, "n4r"), "(--kv n4r) would fit: 4.1 bits: answers change",
            "drafter");
    ingle_model_close(m);
    /* heads of the real widths */
    must(ingle_model_open(&m, "tests/data/goldens/gemma4_realhd/model-F32.gguf", NULL, &error));
    advises(m, &o, need_of(m, &o, "n4r"), "(--kv q8r:n4r+rot) would fit", "drafter");
    o.n_ctx = 0; /* nobody said: 4,096 are cut, and what would hold them all is named */
    advises(m, &o, need_of(m, &o, "f16v"), "(--kv f16v) would hold 4096 tokens", NULL);
    ingle_model_close(m);
}

struct said {
    char text[200];
};

static void note_kv(void *arg, enum ingle_report_level level, const char *kind, const char *subject,
                    const char *reason)
{
    struct said *s = arg;
    (void)level;
    if (strcmp(kind, "kv") == 0)
        snprintf(s->text, sizeof s->text, "%s: %s", subject, reason);
}

static void fewer_than_8_bits_are_reported(void **state)
{
    (void)state;
    static const struct {
        const char *kv, *layers, *says;
    } all[] = {{"f16", NULL, ""},
               {"q8r", NULL, ""},
               {"q8r+rot", NULL, ""},
               {"n4r", NULL, "keys and values of full layers: 4.2 bits: answers change"},
               {"q8r:n4r", NULL, "values of full layers: 4.2 bits"},
               {"q8r:n4r+rot", NULL, "values of full layers: 5.0 bits"},
               {"n4r:f32", NULL, "keys of full layers: 4.2 bits"},
               {"f16", "sliding=q8r:n4r", "values of layers with windows: 4.5 bits"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct said s = {""};
        struct ingle_model *m;
        struct ingle_engine *e;
        must(ingle_model_open(&m, NULL, NULL, &error));
        must(ingle_engine_open(
            &e, m,
            &(struct ingle_engine_options){.n_ctx = 512,
                                           .kv = all[i].kv,
                                           .kv_layers = all[i].layers,
                                           .callbacks = {.report = note_kv, .arg = &s}},
            &error));
        if (*all[i].says ? !strstr(s.text, all[i].says) : *s.text != 0)
            fail_msg("%s: '%s'", all[i].kv, s.text);
        ingle_engine_close(e);
        ingle_model_close(m);
    }
}

/* ---- readers ---- */

struct heard {
    char content[512], reasoning[512];
};

static void hear(void *arg, enum ingle_event_kind kind, int call, const char *text, size_t n)
{
    struct heard *h = arg;
    (void)call;
    char *to = kind == INGLE_EVENT_CONTENT ? h->content : h->reasoning;
    if (kind == INGLE_EVENT_CONTENT || kind == INGLE_EVENT_REASONING)
        strncat(to, text, n);
}

/* Feeds the tokens of a text and compares what comes out. */
static enum ingle_end listen(const struct ingle_model *m, const char *text,
                             const struct ingle_reader_options *o, struct heard *h)
{
    struct ingle_reader *r;
    enum ingle_end end = INGLE_END_NONE;
    int32_t *ids;
    size_t n;
    *h = (struct heard){.content = ""};
    must(ingle_tokenize(m, text, strlen(text), INGLE_PARSE_SPECIAL, &ids, &n, &error));
    must(ingle_reader_open(&r, m, o, hear, h, &error));
    for (size_t i = 0; i < n; i++)
        must(ingle_reader_token(r, ids[i], &end, &error));
    must(ingle_reader_finish(r, &error));
    char *json;
    size_t n_json;
    must(ingle_reader_message(r, &json, &n_json, &error));
    char want[600];
    snprintf(want, sizeof want, "\"content\":\"%s\"", h->content);
    if (!strchr(h->content, '\n') && !strstr(json, want))
        fail_msg("%s is not in %s", want, json);
    ingle_free(json);
    ingle_free(ids);
    ingle_reader_close(r);
    return end;
}

static void stop_strings_cross_tokens(void **state)
{
    (void)state;
    struct ingle_model *m;
    struct heard h;
    must(ingle_model_open(&m, NULL, NULL, &error));
    const char *const stop[] = {"two three", "zzz", "ee fo"};
    const struct ingle_reader_options o = {.stop = stop, .n_stop = 3};
    assert_int_equal(listen(m, "one two three four", &o, &h), INGLE_END_STOP);
    assert_string_equal(h.content, "one ");
    assert_int_equal(listen(m, "one two thr", &o, &h), INGLE_END_NONE);
    assert_string_equal(h.content, "one two thr"); /* what was held back comes at the end */
    assert_int_equal(listen(m, "one three four", &o, &h), INGLE_END_STOP);
    assert_string_equal(h.content, "one thr");
    assert_int_equal(listen(m, "caf\xC3\xA9 zzz", &o, &h), INGLE_END_STOP);
    assert_string_equal(h.content, "caf\xC3\xA9 ");
    const char *const empty[] = {""};
    const struct ingle_reader_options bad = {.stop = empty, .n_stop = 1};
    struct ingle_reader *r;
    assert_int_equal(ingle_reader_open(&r, m, &bad, NULL, NULL, &error), INGLE_LIMIT);
    ingle_model_close(m);
}

/* The kinds of events in their order, and the content of each. */
static void note_order(void *arg, enum ingle_event_kind kind, int call, const char *text, size_t n)
{
    char *order = arg;
    const size_t at = strlen(order);
    (void)call;
    snprintf(order + at, 200 - at, "%c%.*s ", "crbae"[kind],
             kind == INGLE_EVENT_CONTENT ? (int)n : 0, text ? text : "");
}

/* What could have become a stop string goes out before the call behind it, not after. */
static void stop_strings_end_at_calls(void **state)
{
    (void)state;
    struct ingle_model *m;
    struct ingle_reader *r;
    char order[200] = "";
    static const char text[] = "one t<|tool_call>call:f{}<tool_call|>two";
    const char *const stop[] = {"two"};
    const struct ingle_reader_options o = {.stop = stop, .n_stop = 1, .tools = true};
    enum ingle_end end = INGLE_END_NONE;
    int32_t *ids;
    size_t n;
    must(ingle_model_open(&m, NULL, NULL, &error));
    must(ingle_reader_open(&r, m, &o, note_order, order, &error));
    must(ingle_tokenize(m, text, sizeof text - 1, INGLE_PARSE_SPECIAL, &ids, &n, &error));
    for (size_t i = 0; i < n && !end; i++)
        must(ingle_reader_token(r, ids[i], &end, &error));
    const char *call = strstr(order, "t b ");
    assert_non_null(call);
    assert_null(strstr(call + 2, "t "));
    ingle_free(ids);
    ingle_reader_close(r);
    ingle_model_close(m);
}

static void thoughts_and_ends(void **state)
{
    (void)state;
    struct ingle_model *m;
    struct heard h;
    must(ingle_model_open(&m, NULL, NULL, &error));
    const struct ingle_reader_options plain = {0}, raw = {.raw = true},
                                      open = {.open_thought = true};
    assert_int_equal(listen(m, "<|channel>thought\nhm<channel|>yes<turn|>no", &plain, &h),
                     INGLE_END_TURN);
    assert_string_equal(h.reasoning, "hm");
    assert_string_equal(h.content, "yes");
    listen(m, "hm<channel|>yes", &open, &h);
    assert_string_equal(h.reasoning, "hm");
    listen(m, "<|channel>x", &raw, &h);
    assert_string_equal(h.content, "<|channel>x");
    ingle_model_close(m);
}

/* The logits behind a prompt under a rounding mode of the host's. */
static float *logits_under(int opened, int computed, int n_threads)
{
    struct place p;
    struct ingle_session *s;
    struct ingle_engine_options o = {.threads = n_threads};
    struct ingle_engine_info info;
    const float *logits;
    int32_t *ids;
    size_t n;
    fesetround(opened);
    open_place(&p, &o);
    prompt_ids(p.m, "What is the capital of France?", &ids, &n);
    must(ingle_session_open(&s, p.e, &error));
    fesetround(computed);
    must(ingle_session_sync(s, ids, (int64_t)n, NULL, &error));
    must(ingle_session_finish(s, &logits, &error));
    assert_int_equal(fegetround(), computed); /* the host has it back */
    fesetround(FE_TONEAREST);
    ingle_engine_info(p.e, &info);
    float *copy = malloc((size_t)info.n_vocab * sizeof *copy);
    memcpy(copy, logits, (size_t)info.n_vocab * sizeof *copy);
    ingle_session_close(s);
    ingle_free(ids);
    close_place(&p);
    return copy;
}

static void the_rounding_of_the_host_stays_outside(void **state)
{
    (void)state;
    static const int mode[][2] = {
        {FE_TONEAREST, FE_UPWARD}, {FE_DOWNWARD, FE_TONEAREST}, {FE_UPWARD, FE_TOWARDZERO}};
    float *want = logits_under(FE_TONEAREST, FE_TONEAREST, 1);
    for (int i = 0; i < 6; i++) {
        float *got = logits_under(mode[i % 3][0], mode[i % 3][1], 1 + i / 3);
        assert_memory_equal(got, want, 2048 * sizeof *got);
        free(got);
    }
    free(want);
}

static void numbers_have_a_point(void **state)
{
    (void)state;
    struct ingle_config *c;
    must(ingle_config_open(&c, &error));
    if (!setlocale(LC_ALL, "de_DE.UTF-8") && !setlocale(LC_ALL, "de_DE.utf8"))
        print_message("there is no locale with a decimal comma here\n");
    const ingle_status st = ingle_config_set(c, NULL, "temp", "0.95", &error);
    setlocale(LC_ALL, "C");
    must(st);
    assert_true(ingle_config_number(c, "temp") == 0.95);
    ingle_config_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_model_says_of_itself),
        cmocka_unit_test(a_vocabulary_alone_reads_and_writes),
        cmocka_unit_test(two_engines_answer_alike),
        cmocka_unit_test(sessions_fork_rewind_and_share_a_step),
        cmocka_unit_test(a_cancelled_step_can_be_taken_again),
        cmocka_unit_test(a_plan_says_what_would_fit),
        cmocka_unit_test(a_plan_names_the_best_format),
        cmocka_unit_test(fewer_than_8_bits_are_reported),
        cmocka_unit_test(stop_strings_cross_tokens),
        cmocka_unit_test(stop_strings_end_at_calls),
        cmocka_unit_test(thoughts_and_ends),
        cmocka_unit_test(the_rounding_of_the_host_stays_outside),
        cmocka_unit_test(numbers_have_a_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
