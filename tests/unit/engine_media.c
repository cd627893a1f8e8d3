/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_media - from a picture's file to an answer, through the library: the reference's logits,
 * what is computed once, what a scheduler does meanwhile.
 */
#define _DEFAULT_SOURCE
#include "unit/folder.h"

#include "golden/golden.h"

#include "base/file.h"
#include "base/mem.h"
#include "engine/media.h"
#include "engine/session.h"
#include "ingle/ingle.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REL_RMS 6e-6

static const char data[] = "tests/data/vision/";

#define OK(call)                              \
    do {                                      \
        if (call)                             \
            fail_msg("%s", error.text);       \
    } while (0)

struct world {
    struct ingle_model *m;
    struct ingle_engine *e;
    char dir[64], golden[128];
};

static void open_world(struct world *w, const char *set, const char *file,
                       struct ingle_engine_options o)
{
    struct ingle_error error;
    char path[128];
    snprintf(w->dir, sizeof w->dir, "%s%s", data, set);
    snprintf(path, sizeof path, "%s/%s", w->dir, file);
    snprintf(w->golden, sizeof w->golden, "%s/golden.safetensors", w->dir);
    o.threads = 2;
    o.kv = o.kv ? o.kv : "f32";
    o.image_tokens = 70;
    o.n_ctx = 512;
    OK(ingle_model_open(&w->m, path, NULL, &error));
    OK(ingle_engine_open(&w->e, w->m, &o, &error));
}

static void close_world(struct world *w)
{
    ingle_engine_close(w->e);
    ingle_model_close(w->m);
}

static struct ingle_medium *medium(struct world *w, const char *file)
{
    struct ingle_error error;
    struct err e;
    struct ingle_medium *m;
    char path[160];
    char *bytes;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", w->dir, file);
    GOLDEN_OK(file_slurp(path, 1 << 20, &bytes, &n, &e));
    const struct ingle_media in = {.bytes = bytes, .n_bytes = n, .name = file};
    const ingle_status st = ingle_medium_open(&m, w->e, &in, &error);
    mem_free(bytes);
    if (st == INGLE_UNSUP)
        skip(); /* a build without the library of this format */
    OK(st);
    return m;
}

/* Prompt pN with spans of these files; span [n] gets references. */
static int32_t *prompt(struct world *w, int number, const char *const *files, int n,
                       struct ingle_span *span, int64_t *n_ids)
{
    char name[32];
    int64_t at = 0, n_types;
    snprintf(name, sizeof name, "p%d.input_ids", number);
    int32_t *ids = golden_ints(w->golden, name, n_ids);
    snprintf(name, sizeof name, "p%d.types", number);
    int32_t *types = golden_ints(w->golden, name, &n_types);
    for (int i = 0; i < n; i++) {
        struct ingle_medium_info info;
        while (!types[at])
            at++;
        span[i] = (struct ingle_span){.start = at, .medium = medium(w, files[i])};
        ingle_medium_info(span[i].medium, &info);
        span[i].n = info.n_soft;
        while (at < n_types && types[at])
            at++;
        assert_int_equal(at - span[i].start, span[i].n);
    }
    mem_free(types);
    return ids;
}

static void check(const char *set, const char *file, int number, const char *const *files, int n)
{
    struct world w;
    struct ingle_error error;
    struct ingle_session *s;
    struct ingle_span span[4];
    struct ingle_engine_info info;
    char name[32];
    int64_t n_ids, n_want, n_greedy;
    const float *logits;
    open_world(&w, set, file, (struct ingle_engine_options){0});
    ingle_engine_info(w.e, &info);
    assert_true(info.sees);
    int32_t *ids = prompt(&w, number, files, n, span, &n_ids);
    OK(ingle_session_open(&s, w.e, &error));
    OK(ingle_session_sync_media(s, ids, n_ids, span, (size_t)n, NULL, &error));
    OK(ingle_session_finish(s, &logits, &error));
    snprintf(name, sizeof name, "p%d.logits", number);
    float *want = golden_floats(w.golden, name, &n_want);
    const struct golden_error got =
        golden_compare(logits, want + n_want - info.n_vocab, info.n_vocab);
    print_message("%s %s p%d: rel rms %.2e\n", set, file, number, got.rel_rms);
    assert_true(got.rel_rms <= REL_RMS);
    snprintf(name, sizeof name, "p%d.greedy", number);
    int32_t *greedy = golden_ints(w.golden, name, &n_greedy);
    for (int64_t i = 0; i < n_greedy; i++) {
        const int32_t token = (int32_t)golden_best(logits, info.n_vocab);
        assert_int_equal(token, greedy[i]);
        OK(ingle_session_append(s, &token, 1, &error));
        OK(ingle_session_finish(s, &logits, &error));
    }
    ingle_session_close(s);
    for (int i = 0; i < n; i++)
        ingle_medium_close(span[i].medium);
    mem_free(ids);
    mem_free(want);
    mem_free(greedy);
    close_world(&w);
}

static void from_file_to_answer(void **state)
{
    (void)state;
    static const char *const pictures[] = {"b.jpg", "a.png"}, *const mixed[] = {"b.jpg", "s1.wav"};
    check("vision_31b", "model-BF16.gguf", 1, pictures, 2);
    check("vision_12b", "model-BF16.gguf", 1, pictures, 2);
    check("vision_12b", "model-BF16.gguf", 3, mixed, 2);
    check("vision_e4b", "model-BF16.gguf", 1, pictures, 2);
    check("vision_e4b", "model-BF16.gguf", 2, (const char *const[]){"s0.wav"}, 1);
}

/* The same picture is encoded once, as a file and as pixels; and not at all for what is known. */
static void encoded_once(void **state)
{
    (void)state;
    struct world w;
    struct ingle_error error;
    struct ingle_session *s;
    struct ingle_media_counts counts;
    struct ingle_reuse reuse;
    struct ingle_span span[4];
    int64_t n;
    const float *logits;
    open_world(&w, "vision_31b", "model-BF16.gguf", (struct ingle_engine_options){0});
    int32_t *ids = prompt(&w, 0, (const char *const[]){"a.png"}, 1, span, &n);
    for (int i = 0; i < 3; i++) {
        OK(ingle_session_open(&s, w.e, &error));
        OK(ingle_session_sync_media(s, ids, n, span, 1, &reuse, &error));
        assert_int_equal(reuse.kept, i ? n - 1 : 0);
        OK(ingle_session_finish(s, &logits, &error));
        ingle_session_close(s);
        /* another turn: nobody has a reference meanwhile */
        ingle_medium_close(span[0].medium);
        span[0].medium = medium(&w, "a.png");
    }
    ingle_engine_forget(w.e);
    OK(ingle_session_open(&s, w.e, &error));
    OK(ingle_session_sync_media(s, ids, n, span, 1, &reuse, &error));
    OK(ingle_session_finish(s, &logits, &error));
    ingle_session_close(s);
    ingle_engine_media(w.e, &counts);
    assert_int_equal(counts.n_encoded, 1);
    assert_int_equal(counts.n_media, 4);
    assert_int_equal(counts.n_reused, 2);
    assert_int_equal(counts.n_kept, 1);
    assert_true(counts.cache_bytes > 0);
    ingle_medium_close(span[0].medium);
    mem_free(ids);
    close_world(&w);
}

/* One pixel more or less is another picture. */
static void one_pixel(void **state)
{
    (void)state;
    struct world w;
    struct ingle_error error;
    struct ingle_medium *a, *b, *c;
    struct ingle_medium_info x, y, z;
    static uint8_t rgb[48 * 48 * 3];
    open_world(&w, "vision_31b", "model-BF16.gguf", (struct ingle_engine_options){0});
    const struct ingle_media in = {.rgb = rgb, .width = 48, .height = 48};
    OK(ingle_medium_open(&a, w.e, &in, &error));
    OK(ingle_medium_open(&c, w.e, &in, &error));
    rgb[1000] = 1;
    OK(ingle_medium_open(&b, w.e, &in, &error));
    ingle_medium_info(a, &x);
    ingle_medium_info(b, &y);
    ingle_medium_info(c, &z);
    assert_ptr_equal(a, c);
    assert_memory_equal(x.id, z.id, sizeof x.id);
    assert_memory_not_equal(x.id, y.id, sizeof x.id);
    ingle_medium_close(a);
    ingle_medium_close(b);
    ingle_medium_close(c);
    close_world(&w);
}

/* ---- a scheduler ---- */

struct seen {
    atomic_int done;
    int n, encoding;
    struct ingle_scheduler *cancels; /* not NULL: in the middle of the first encoder run */
    struct ingle_request *request;
    atomic_bool submitted;
    double encoded; /* as it was told last */
    int32_t token[64];
    struct ingle_usage usage;
    enum ingle_finish why;
};

static int on_token(void *arg, int index, const struct ingle_drawn *t)
{
    struct seen *s = arg;
    if (index == 0 && s->n < 64)
        s->token[s->n++] = t->id;
    return 0;
}

static void on_encoding(void *arg, int64_t n_done, int64_t n_media, double part)
{
    struct seen *s = arg;
    assert_true(part >= 0 && (double)n_done + part <= (double)n_media);
    assert_true((double)n_done + part >= s->encoded);
    s->encoded = (double)n_done + part;
    s->encoding++;
    while (s->cancels && !atomic_load(&s->submitted))
        usleep(1000);
    if (s->cancels && part > 0)
        ingle_request_cancel(s->cancels, s->request);
}

static void on_end(void *arg, int index, enum ingle_finish why, const struct ingle_error *e)
{
    struct seen *s = arg;
    (void)index;
    if (e)
        print_message("%s\n", e->text);
    s->why = why;
}

static void on_done(void *arg, const struct ingle_usage *usage)
{
    struct seen *s = arg;
    s->usage = *usage;
    atomic_store(&s->done, 1);
}

static void submit(struct ingle_scheduler *q, struct seen *s, const int32_t *ids, int64_t n,
                   const struct ingle_span *span, size_t n_spans, int64_t max)
{
    struct ingle_error error;
    struct ingle_request *r;
    *s = (struct seen){.n = 0};
    const struct ingle_request_options o = {.prompt = ids,
                                            .n_prompt = n,
                                            .max_tokens = max,
                                            .ignore_end = true,
                                            .sampling = {.repeat_penalty = 1,
                                                         .top_p = 1,
                                                         .typical_p = 1},
                                            .span = span,
                                            .n_spans = n_spans,
                                            .token = on_token,
                                            .encoding = on_encoding,
                                            .end = on_end,
                                            .done = on_done,
                                            .arg = s};
    OK(ingle_scheduler_submit(q, &o, &r, NULL, &error));
}

static void wait(struct seen *s)
{
    while (!atomic_load(&s->done))
        usleep(1000);
}

enum { N = 12 };
static const struct ingle_sampling greedy = {.repeat_penalty = 1, .top_p = 1, .typical_p = 1};

/* The most probable tokens behind a prompt. */
static void one_by_one(struct world *w, const int32_t *ids, int64_t n,
                       const struct ingle_span *span, size_t n_spans, int32_t *out, int n_out)
{
    struct ingle_error error;
    struct ingle_session *s;
    struct ingle_sampler *sampler;
    struct ingle_token token;
    const float *logits;
    OK(ingle_sampler_open(&sampler, w->e, &greedy, &error));
    OK(ingle_session_open(&s, w->e, &error));
    OK(ingle_session_sync_media(s, ids, n, span, n_spans, NULL, &error));
    for (int i = 0; i < n_out; i++) {
        OK(ingle_session_finish(s, &logits, &error));
        OK(ingle_sample(sampler, logits, s, &token, &error));
        out[i] = token.id;
        OK(ingle_session_append(s, &out[i], 1, &error));
    }
    ingle_session_close(s);
    ingle_sampler_close(sampler);
    ingle_engine_forget(w->e);
}

/* Text beside a picture, two of the same picture at once, and the next turn: the texts of each
 * alone. */
static void many_at_once(void **state)
{
    (void)state;
    for (int set = 0; set < 2; set++) {
        struct world w;
        struct ingle_error error;
        struct ingle_scheduler *q;
        struct ingle_span span[4];
        struct seen text, a, b, c;
        int64_t n;
        int32_t want[N];
        open_world(&w, set ? "vision_e4b" : "vision_31b", "model-BF16.gguf",
                   (struct ingle_engine_options){.n_sessions = 4, .media_cache = 1});
        int32_t *ids = prompt(&w, 1, (const char *const[]){"b.jpg", "a.png"}, 2, span, &n);
        one_by_one(&w, ids, n, span, 2, want, N);
        OK(ingle_scheduler_open(&q, w.e, NULL, &error));
        submit(q, &text, ids, 5, NULL, 0, 40);
        submit(q, &a, ids, n, span, 2, N);
        submit(q, &b, ids, n, span, 2, N);
        wait(&text);
        wait(&a);
        wait(&b);
        submit(q, &c, ids, n, span, 2, N);
        wait(&c);
        assert_int_equal(text.why, INGLE_FINISH_LENGTH);
        assert_int_equal(text.n, 40);
        for (const struct seen *s = &a; s; s = s == &a ? &b : s == &b ? &c : NULL) {
            assert_int_equal(s->why, INGLE_FINISH_LENGTH);
            assert_int_equal(s->n, N);
            assert_memory_equal(s->token, want, sizeof want);
            assert_int_equal(s->usage.n_media, 2);
            assert_int_equal(s->usage.image_tokens, span[0].n + span[1].n + 4);
        }
        assert_int_equal(a.usage.n_encoded + b.usage.n_encoded, 2);
        assert_true(a.encoding + b.encoding > 0);
        assert_int_equal(c.usage.n_encoded, 0);
        assert_int_equal(c.usage.reuse.kept, n - 1);
        struct ingle_scheduler_status st;
        (void)ingle_scheduler_status(q, &st, NULL, 0);
        assert_int_equal(st.media.n_encoded, 4);
        assert_int_equal(st.media.n_media, 8);
        ingle_scheduler_close(q);
        for (int i = 0; i < 2; i++)
            ingle_medium_close(span[i].medium);
        mem_free(ids);
        close_world(&w);
    }
}

/* Rows that one step has had stay while another one is stopped, which may be about to read them. */
static void a_step_in_a_step(void **state)
{
    (void)state;
    struct world w;
    struct ingle_error error;
    struct err e;
    struct ingle_session *had, *reads;
    struct ingle_span span[2];
    const float *logits;
    int64_t n;
    open_world(&w, "vision_31b", "model-BF16.gguf",
               (struct ingle_engine_options){.n_sessions = 2, .media_cache = 1});
    int32_t *ids = prompt(&w, 1, (const char *const[]){"b.jpg", "a.png"}, 2, span, &n);
    OK(ingle_session_open(&had, w.e, &error));
    OK(ingle_session_sync_media(had, ids, n, span, 2, NULL, &error));
    OK(ingle_session_finish(had, &logits, &error));
    ingle_engine_forget(w.e);
    OK(ingle_session_open(&reads, w.e, &error));
    OK(ingle_session_sync_media(reads, ids, span[0].start + span[0].n, span, 1, NULL, &error));
    assert_non_null(session_lacks(reads->s, -1));
    GOLDEN_OK(engine_media_ready(w.e, reads->s, -1, &e));
    engine_media_used(w.e, had->s, true);
    assert_null(session_lacks(reads->s, -1));
    engine_media_used(w.e, had->s, false);
    assert_non_null(session_lacks(reads->s, -1)); /* it is encoded again for the next step */
    ingle_session_close(reads);
    ingle_session_close(had);
    for (int i = 0; i < 2; i++)
        ingle_medium_close(span[i].medium);
    mem_free(ids);
    close_world(&w);
}

/* A client that leaves while its picture is encoded: the run ends, and nothing is kept of it. */
static void cancelled(void **state)
{
    (void)state;
    struct world w;
    struct ingle_error error;
    struct ingle_scheduler *q;
    struct ingle_span span[4];
    struct seen text, gone, again;
    struct ingle_scheduler_status st;
    int64_t n;
    open_world(&w, "vision_31b", "model-BF16.gguf",
               (struct ingle_engine_options){.n_sessions = 3});
    int32_t *ids = prompt(&w, 1, (const char *const[]){"b.jpg", "a.png"}, 2, span, &n);
    OK(ingle_scheduler_open(&q, w.e, NULL, &error));
    submit(q, &text, ids, 5, NULL, 0, 30);
    const struct ingle_request_options o = {.prompt = ids,
                                            .n_prompt = n,
                                            .max_tokens = N,
                                            .sampling = greedy,
                                            .span = span,
                                            .n_spans = 2,
                                            .token = on_token,
                                            .encoding = on_encoding,
                                            .end = on_end,
                                            .done = on_done,
                                            .arg = &gone};
    gone = (struct seen){.cancels = q};
    OK(ingle_scheduler_submit(q, &o, &gone.request, NULL, &error));
    atomic_store(&gone.submitted, true);
    wait(&gone);
    wait(&text);
    assert_int_equal(gone.why, INGLE_FINISH_CANCEL);
    assert_int_equal(gone.n, 0);
    assert_int_equal(gone.usage.n_encoded, 0);
    assert_int_equal(text.n, 30);
    (void)ingle_scheduler_status(q, &st, NULL, 0);
    assert_int_equal(st.media.n_encoded, 0);
    submit(q, &again, ids, n, span, 2, N);
    wait(&again);
    assert_int_equal(again.why, INGLE_FINISH_LENGTH);
    assert_int_equal(again.usage.n_encoded, 2);
    ingle_scheduler_close(q);
    for (int i = 0; i < 2; i++)
        ingle_medium_close(span[i].medium);
    mem_free(ids);
    close_world(&w);
}

/* Restored from the store by another process's engine: neither encoder nor prefix. */
static void after_a_restart(void **state)
{
    (void)state;
    char dir[] = "/tmp/ingle-media-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        struct world w;
        struct ingle_error error;
        struct ingle_session *s;
        struct ingle_span span[4];
        struct ingle_reuse reuse;
        struct ingle_media_counts counts;
        int64_t n;
        const float *logits;
        open_world(&w, "vision_31b", "model-BF16.gguf",
                   (struct ingle_engine_options){.store = dir, .store_tokens = 16});
        int32_t *ids = prompt(&w, 0, (const char *const[]){"a.png"}, 1, span, &n);
        OK(ingle_session_open(&s, w.e, &error));
        OK(ingle_session_sync_media(s, ids, n, span, 1, &reuse, &error));
        assert_int_equal(reuse.from_disk, i ? n - 1 : 0);
        OK(ingle_session_finish(s, &logits, &error));
        ingle_engine_media(w.e, &counts);
        assert_int_equal(counts.n_encoded, i ? 0 : 1);
        /* a saved session has the names of its media */
        char path[80];
        snprintf(path, sizeof path, "%s/session", dir);
        OK(ingle_session_save(s, path, &error));
        OK(ingle_session_load(s, path, &error));
        OK(ingle_session_sync_media(s, ids, n, span, 1, &reuse, &error));
        assert_int_equal(reuse.kept, n - 1);
        assert_int_equal(reuse.from_session, n - 1);
        OK(ingle_session_finish(s, &logits, &error));
        ingle_session_close(s);
        ingle_medium_close(span[0].medium);
        mem_free(ids);
        close_world(&w);
    }
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_file_to_answer), cmocka_unit_test(encoded_once),
        cmocka_unit_test(one_pixel),           cmocka_unit_test(many_at_once),
        cmocka_unit_test(a_step_in_a_step),    cmocka_unit_test(cancelled),
        cmocka_unit_test(after_a_restart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
