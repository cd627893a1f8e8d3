/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls for what survives a process: the store, saved sessions. */
#define _DEFAULT_SOURCE
#include "unit/door.h"
#include "unit/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 700 };

static int32_t tokens[N];

struct place {
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_session *s;
};

static void place_open(struct place *p, const char *dir, const char *kv)
{
    const struct ingle_engine_options o = {
        .store = dir, .store_tokens = 64, .n_ctx = 2048, .kv = kv, .threads = 2};
    must(ingle_model_open(&p->m, NULL, NULL, &error));
    must(ingle_engine_open(&p->e, p->m, &o, &error));
    must(ingle_session_open(&p->s, p->e, &error));
}

static void place_close(struct place *p)
{
    ingle_session_close(p->s);
    ingle_engine_close(p->e);
    ingle_model_close(p->m);
}

/* The logits behind tokens [0, n), copied. */
static float *logits_of(struct place *p, int64_t n, struct ingle_reuse *reuse)
{
    struct ingle_engine_info info;
    const float *logits;
    ingle_engine_info(p->e, &info);
    must(ingle_session_sync(p->s, tokens, n, reuse, &error));
    must(ingle_session_finish(p->s, &logits, &error));
    const size_t bytes = (size_t)info.n_vocab * sizeof *logits;
    float *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, logits, bytes);
    return copy;
}

static void same(const struct place *p, float *a, float *b)
{
    struct ingle_engine_info info;
    ingle_engine_info(p->e, &info);
    assert_memory_equal(a, b, (size_t)info.n_vocab * sizeof *a);
    free(a);
    free(b);
}

static void make_dir(char dir[64])
{
    strcpy(dir, "/tmp/ingle-store-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < N; i++)
        tokens[i] = 100 + i * 7919 % 900;
}

static void count(void *arg, const struct ingle_store_entry *e)
{
    int *n = arg;
    assert_null(e->damage);
    assert_string_equal(e->settings, "f16 exact");
    *n += 1;
}

static void prefixes_survive_the_engine(void **state)
{
    (void)state;
    char dir[64];
    struct place p;
    struct ingle_reuse r;
    int n_files = 0;
    make_dir(dir);
    place_open(&p, NULL, NULL);
    float *cold = logits_of(&p, N, &r);
    assert_int_equal(r.kept, 0);
    assert_string_equal(r.why, "");
    place_close(&p);

    place_open(&p, dir, NULL);
    free(logits_of(&p, 500, &r));
    place_close(&p);
    must(ingle_store_list(dir, count, &n_files, &error));
    assert_int_equal(n_files, 1);

    place_open(&p, dir, "f32"); /* other settings: not used, and it is said */
    free(logits_of(&p, N, &r));
    assert_int_equal(r.kept, 0);
    assert_string_equal(r.why, "500 tokens are on disk, of another model or other settings");
    place_close(&p);

    place_open(&p, dir, NULL);
    float *warm = logits_of(&p, N, &r);
    assert_int_equal(r.kept, 500);
    assert_int_equal(r.from_disk, 500);
    assert_int_equal(r.from_session + r.from_cache, 0);
    assert_string_equal(r.why, "700 tokens are on disk, of another model or other settings");
    same(&p, cold, warm);
    tokens[650]++;
    free(logits_of(&p, N, &r));
    assert_int_equal(r.kept, 650);
    assert_int_equal(r.from_session, 650);
    assert_string_equal(r.why, "differs at token 650");
    tokens[510]++;
    free(logits_of(&p, N, &r));
    assert_int_equal(r.kept, 500);
    assert_int_equal(r.from_cache, 500); /* by now it is in memory */
    assert_string_equal(r.why, "differs at token 510, no restore point between 500 and it");
    place_close(&p);
    remove_dir(dir);
}

static void sessions_are_saved_and_loaded(void **state)
{
    (void)state;
    char dir[64], path[128];
    struct place p;
    int64_t n;
    const float *logits;
    make_dir(dir);
    snprintf(path, sizeof path, "%s/session", dir);
    place_open(&p, NULL, "q8_0");
    float *cold = logits_of(&p, N, NULL);
    must(ingle_session_rewind(p.s, 0, &error));
    free(logits_of(&p, 600, NULL));
    must(ingle_session_append(p.s, tokens + 600, 50, &error)); /* these wait, and are saved, too */
    must(ingle_session_save(p.s, path, &error));
    place_close(&p);

    place_open(&p, NULL, "q8_0");
    must(ingle_session_load(p.s, path, &error));
    assert_int_equal(ingle_session_length(p.s), 600);
    assert_int_equal(ingle_session_pending(p.s), 50);
    assert_memory_equal(ingle_session_tokens(p.s, &n), tokens, 650 * sizeof *tokens);
    must(ingle_session_append(p.s, tokens + 650, N - 650, &error));
    must(ingle_session_finish(p.s, &logits, &error));
    struct ingle_engine_info info;
    ingle_engine_info(p.e, &info);
    assert_memory_equal(logits, cold, (size_t)info.n_vocab * sizeof *logits);
    free(cold);
    place_close(&p);

    char none[160];
    snprintf(none, sizeof none, "%s/none", dir);
    place_open(&p, NULL, "f16");
    assert_int_equal(ingle_session_load(p.s, path, &error), INGLE_UNSUP);
    assert_int_equal(ingle_session_load(p.s, none, &error), INGLE_NOTFOUND);
    assert_int_equal(ingle_session_length(p.s), 0);
    place_close(&p);
    remove_dir(dir);
}

static void a_store_that_cannot_be_is_an_error(void **state)
{
    (void)state;
    struct ingle_model *m;
    struct ingle_engine *e;
    char dir[64], none[80], store[96];
    make_dir(dir);
    snprintf(none, sizeof none, "%s/none", dir);
    snprintf(store, sizeof store, "%s/store", none);
    const struct ingle_engine_options lost = {.store = store},
                                      below = {.store_tokens = -1};
    must(ingle_model_open(&m, NULL, NULL, &error));
    assert_int_equal(ingle_engine_open(&e, m, &lost, &error), INGLE_IO);
    assert_non_null(strstr(error.text, store));
    assert_int_equal(ingle_engine_open(&e, m, &below, &error), INGLE_ARG);
    assert_int_equal(ingle_store_list(none, count, NULL, &error), INGLE_NOTFOUND);
    ingle_model_close(m);
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_survive_the_engine),
        cmocka_unit_test(sessions_are_saved_and_loaded),
        cmocka_unit_test(a_store_that_cannot_be_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
