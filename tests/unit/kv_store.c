/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "unit/kv_depot.h"

#include "kv/page.h"
#include "kv/store_file.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

/* ---- a disk that does not answer ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool closed;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};

ingle_status __real_kv_file_read_pages(const struct kv_file *f, const struct kv_spec *s,
                                       uint64_t first, uint64_t n, uint8_t *const *to,
                                       struct err *err);
ingle_status __wrap_kv_file_read_pages(const struct kv_file *f, const struct kv_spec *s,
                                       uint64_t first, uint64_t n, uint8_t *const *to,
                                       struct err *err);
ingle_status __wrap_kv_file_read_pages(const struct kv_file *f, const struct kv_spec *s,
                                       uint64_t first, uint64_t n, uint8_t *const *to,
                                       struct err *err)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.closed)
        pthread_cond_wait(&gate.opened, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
    return __real_kv_file_read_pages(f, s, first, n, to, err);
}

static void set_gate(bool closed)
{
    pthread_mutex_lock(&gate.lock);
    gate.closed = closed;
    pthread_cond_broadcast(&gate.opened);
    pthread_mutex_unlock(&gate.lock);
}

static void nobody_waits_for_a_disk_that_does_not_answer(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    d->o.patience_seconds = 0.3;
    depot_put(d, 0, 0, 300);
    depot_reopen(d);
    while (depot_find(d, 0, d->w.line[1].token, 1000, NULL) != 300) {} /* on a busy machine */
    const int n_warned = d->n_warned;
    set_gate(true);
    assert_int_equal(depot_get(d, 1, 0, 1000), -1); /* it was found, and does not come */
    assert_true(d->n_warned > n_warned);
    assert_non_null(strstr(d->said, "the disk has not answered for 0.3 s"));
    assert_int_equal(depot_get(d, 1, 0, 1000), 0); /* it is not even looked for */
    assert_int_equal(d->n_warned, n_warned + 1);
    set_gate(false);
    while (depot_get(d, 1, 0, 1000) != 300)
        usleep(1000);
    assert_int_equal(depot_counts(d).damaged, 0);
    depot_close(d);
}

static void what_was_put_is_there_after_a_restart(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    depot_put(d, 0, 0, 300);
    depot_put(d, 0, 0, 84); /* on the border of a page */
    depot_put(d, 0, 0, 500);
    depot_reopen(d);
    world_check(&d->w, &d->w.line[0]);
    assert_int_equal(depot_get(d, 1, 0, 1000), 884);
    assert_int_equal(depot_get(d, 2, 0, 883), 384);
    assert_int_equal(depot_get(d, 3, 0, 383), 300);
    assert_int_equal(depot_get(d, 4, 0, 299), 0);
    /* A line goes on from what it has. */
    assert_int_equal(depot_get(d, 3, 0, 2000), 884);
    assert_int_equal(world_step(&d->w, &d->w.line[1], 100, 100), INGLE_OK);
    world_check(&d->w, &d->w.line[1]);
    d->w.line[4].token[350] = -7;
    assert_int_equal(depot_get(d, 4, 0, 1000), 300);
    const struct kv_store_counts n = depot_counts(d);
    assert_int_equal(n.files, 3);
    assert_int_equal(n.restored, 5);
    assert_int_equal(n.damaged + n.evicted + n.skipped, 0);
    assert_int_equal(d->n_warned, 0);
    depot_close(d);
}

/* Other threads wait behind each of their locks: whatever they change between one and the next is
 * seen by who asks meanwhile. */
static atomic_bool others_wait;
static _Thread_local bool asks;

int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
    const int r = __real_pthread_mutex_unlock(m);
    if (atomic_load(&others_wait) && !asks)
        usleep(300);
    return r;
}

/* Whoever counts and polls does so while the disk's thread writes (the thread sanitizer). */
static void counts_are_asked_for_while_files_are_written(void **state)
{
    enum { FILES = 8 };
    (void)state;
    struct depot *d = depot_open(1 << 20);
    asks = true;
    atomic_store(&others_wait, true);
    for (int i = 0; i < FILES; i++)
        depot_put(d, 0, 0, 100);
    while (kv_store_poll(d->store))
        assert_true(depot_counts(d).written <= FILES);
    atomic_store(&others_wait, false);
    assert_int_equal(depot_counts(d).written, FILES);
    depot_close(d);
}

static void what_conversations_share_is_stored_once(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    depot_put(d, 0, 0, 1024);
    kv_store_flush(d->store);
    const uint64_t system_prompt = depot_counts(d).bytes;
    for (int i = 1; i < WORLD_LINES; i++) {
        assert_int_equal(depot_get(d, i, 0, 1500), 1024);
        for (int64_t k = 1024; k < WORLD_MAX; k++)
            d->w.line[i].token[k] = i;
        depot_put(d, i, 0, 20);
        /* it is there */
        kv_store_put(d->store, d->w.line[i].t, kv_scope_of(0), d->w.line[i].token, 0,
                     "mark of 1044", 13);
    }
    kv_store_flush(d->store);
    const struct kv_store_counts n = depot_counts(d);
    assert_int_equal(n.files, WORLD_LINES);
    /* Each has one page of the group that keeps everything, and its window. */
    assert_true(n.bytes <=
                system_prompt + (WORLD_LINES - 1) * (UINT64_C(4096) + 1024 + 2 * 3 * 1024));
    depot_reopen(d);
    for (int i = 1; i < WORLD_LINES; i++) {
        kv_timeline_clear(d->w.line[i].t);
        d->w.line[i].length = 0;
        assert_int_equal(depot_get(d, i, 0, 1500), 1044);
    }
    depot_close(d);
}

static void files_add_at_least_so_many_tokens(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    d->o.min_tokens = 100;
    depot_reopen(d);
    depot_put(d, 0, 0, 99);
    depot_put(d, 0, 0, 1);
    depot_put(d, 0, 0, 99);
    depot_put(d, 0, 0, 2);
    kv_store_flush(d->store);
    assert_int_equal(depot_get(d, 1, 0, 1000), 201);
    assert_int_equal(depot_get(d, 2, 0, 200), 100);
    assert_int_equal(depot_counts(d).files, 2);
    depot_close(d);
}

static void salts_models_and_settings_share_nothing(void **state)
{
    (void)state;
    int64_t foreign;
    struct depot *d = depot_open(1 << 20);
    depot_put(d, 0, 5, 300);
    kv_store_flush(d->store);
    assert_int_equal(depot_get(d, 1, 0, 1000), 0);
    assert_int_equal(depot_get(d, 1, 6, 1000), 0);
    assert_int_equal(depot_get(d, 1, 5, 1000), 300);
    d->o.identity = 43;
    depot_reopen(d);
    assert_int_equal(depot_find(d, 5, d->w.line[2].token, 1000, &foreign), 0);
    assert_int_equal(foreign, 300);
    assert_int_equal(depot_find(d, 0, d->w.line[2].token, 1000, &foreign), 0);
    assert_int_equal(foreign, 0); /* another user's is nobody's business */
    d->o.identity = 42;
    d->o.numerics = "reference";
    depot_reopen(d);
    assert_int_equal(depot_find(d, 5, d->w.line[2].token, 1000, &foreign), 0);
    assert_int_equal(foreign, 300);
    depot_close(d);
}

static int64_t find_as(struct depot *d, struct kv_scope way, int64_t *foreign)
{
    assert_true(kv_store_look(d->store, true));
    return kv_store_find(d->store, way, d->w.line[2].token, 1000, foreign);
}

static void put_as(struct depot *d, int line, struct kv_scope way, int64_t n)
{
    struct world_line *l = &d->w.line[line];
    assert_int_equal(world_step(&d->w, l, n, n), INGLE_OK);
    kv_store_put(d->store, l->t, way, l->token, 0, NULL, 0);
}

/* A file of rows that are computed in a way of their own from 300 tokens on continues what is
 * everybody's, and nobody else finds it. other: another way from there on; later: the same from 700
 * on. */
static void kept_apart(struct kv_scope way, struct kv_scope other, struct kv_scope later)
{
    const struct kv_scope dense = {0};
    int64_t foreign;
    struct err err;
    struct depot *d = depot_open(1 << 20);
    put_as(d, 0, way, 300); /* as everybody's so far */
    put_as(d, 0, way, 300);
    for (int round = 0; round < 2; round++) {
        kv_store_flush(d->store);
        assert_int_equal(find_as(d, way, &foreign), 600);
        assert_int_equal(find_as(d, dense, &foreign), 300);
        assert_int_equal(foreign, 600);
        assert_int_equal(find_as(d, other, &foreign), 300);
        assert_int_equal(find_as(d, later, &foreign), 300);
        void *mark = NULL;
        size_t mark_bytes = 0;
        struct world_line *l = &d->w.line[1];
        kv_timeline_clear(l->t);
        assert_int_equal(
            kv_store_restore(d->store, l->t, way, l->token, 600, &mark, &mark_bytes, &err),
            INGLE_OK);
        l->length = l->rewind_to = 600;
        world_check(&d->w, l);
        mem_free(mark);
        depot_reopen(d);
    }
    put_as(d, 1, dense, 100); /* the same tokens, dense: a file beside the other */
    kv_store_flush(d->store);
    assert_int_equal(find_as(d, dense, &foreign), 700);
    assert_int_equal(find_as(d, later, &foreign), 700);
    assert_int_equal(find_as(d, way, &foreign), 600);
    assert_int_equal(foreign, 700);
    depot_close(d);
}

static void sparse_prompts_are_kept_apart(void **state)
{
    (void)state;
    kept_apart((struct kv_scope){.sparse = kv_sparse_of(3, 300)},
               (struct kv_scope){.sparse = kv_sparse_of(4, 300)},
               (struct kv_scope){.sparse = kv_sparse_of(3, 700)});
}

static void shortened_prompts_are_kept_apart(void **state)
{
    (void)state;
    kept_apart((struct kv_scope){.shorten = {5, 300}}, (struct kv_scope){.shorten = {6, 300}},
               (struct kv_scope){.shorten = {7, 700}});
    kept_apart((struct kv_scope){.shorten = {5, 300}, .sparse = kv_sparse_of(3, 300)},
               (struct kv_scope){.shorten = {5, 300}},
               (struct kv_scope){.shorten = {7, 700}, .sparse = kv_sparse_of(3, 800)});
}

static void a_saved_timeline_says_how_it_is_computed(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    struct kv_save_options o = {
        .identity = 42, .numerics = "exact", .codec = "f16", .sparse = kv_sparse_of(3, 200)};
    struct world_line *l = &d->w.line[0];
    struct kv_load *load;
    struct err err;
    char path[128];
    snprintf(path, sizeof path, "%s/saved", d->dir);
    for (int64_t n = 150; n <= 300; n += 150) {
        assert_int_equal(world_step(&d->w, l, 150, 150), INGLE_OK);
        o.sparse = kv_sparse_of(3, 200);
        assert_int_equal(kv_save(l->t, path, &o, l->token, n, NULL, 0, &err), INGLE_OK);
        o.sparse = 0;
        assert_int_equal(kv_load_begin(&load, &d->w.spec, 1000, path, &o, &err), INGLE_OK);
        assert_int_equal(kv_load_sparse(load), n > 200 ? kv_sparse_of(3, 200) : 0);
        kv_load_end(load, NULL);
    }
    assert_string_equal(kv_sparse_name(kv_sparse_of(3, 4096)).at, "few3-w4-f4096");
    assert_string_equal(kv_sparse_name(kv_sparse_of(0, 0)).at, "few0-w4-f0");
    assert_string_equal(kv_sparse_name(0).at, "");
    depot_close(d);
}

static void the_least_valuable_is_evicted(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    d->o.budget_bytes = 60000;
    depot_reopen(d);
    for (int round = 0; round < 40; round++) {
        struct world_line *l = &d->w.line[round % WORLD_LINES];
        kv_timeline_clear(l->t);
        l->length = 0;
        for (int64_t k = 0; k < WORLD_MAX; k++)
            l->token[k] = (int32_t)(k < 100 ? k : round);
        depot_put(d, round % WORLD_LINES, 0, 100);
        depot_put(d, round % WORLD_LINES, 0, 250);
        kv_store_flush(d->store);
        const struct kv_store_counts n = depot_counts(d);
        assert_true(n.bytes <= n.budget_bytes);
        /* The newest is there, and so is what it continues. */
        struct world_line *other = &d->w.line[(round + 1) % WORLD_LINES];
        kv_timeline_clear(other->t);
        other->length = 0;
        memcpy(other->token, l->token, sizeof l->token);
        assert_int_equal(depot_get(d, (round + 1) % WORLD_LINES, 0, 1000), 350);
    }
    assert_true(depot_counts(d).evicted > 10);
    assert_int_equal(d->n_warned, 0);
    /* Larger than the store: told once. */
    d->o.budget_bytes = 5000;
    depot_reopen(d);
    depot_put(d, 0, 1, 100);
    depot_put(d, 1, 2, 100);
    kv_store_flush(d->store);
    assert_int_equal(depot_get(d, 5, 1, 1000), 0);
    assert_int_equal(d->n_warned, 1);
    depot_close(d);
}

static void memory_comes_before_what_waits_to_be_written(void **state)
{
    (void)state;
    /* Pages for two long lines; each put keeps those of the line before. */
    struct depot *d = depot_open(100 * 1024);
    for (int round = 0; round < 60; round++) {
        struct world_line *l = &d->w.line[0];
        kv_timeline_clear(l->t);
        l->length = 0;
        for (int64_t k = 0; k < WORLD_MAX; k++)
            l->token[k] = (int32_t)round;
        depot_put(d, 0, 0, 1000); /* must find its pages whatever is being written */
        depot_put(d, 0, 0, 500);
        world_check(&d->w, l);
        (void)world_used(&d->w);
    }
    kv_store_flush(d->store);
    const struct kv_store_counts n = depot_counts(d);
    assert_int_equal(n.files + n.skipped, 120);
    assert_int_equal(d->n_warned, 0);
    depot_close(d);
}

/* Points that come faster than the disk thread writes are owed, and written when it rests. */
static void what_had_to_wait_is_offered_again(void **state)
{
    (void)state;
    enum { N = 24, TOKENS = 400 };
    struct depot *d = depot_open(16 << 20);
    struct world_line *l = &d->w.line[0];
    struct kv_tree *tree;
    struct err err;
    int n_owed = 0;
    struct kv_scope scope = {0};
    int32_t *token;
    int64_t n;
    assert_int_equal(kv_tree_create(&tree, d->w.pool, 12 << 20, &err), INGLE_OK);
    assert_null(kv_tree_owed(tree, &scope, &token, &n));
    for (int32_t i = 0; i < N; i++) {
        kv_timeline_clear(l->t);
        l->length = 0;
        for (int64_t k = 0; k < TOKENS; k++)
            l->token[k] = i;
        assert_int_equal(world_step(&d->w, l, TOKENS, TOKENS), INGLE_OK);
        assert_int_equal(kv_tree_put(tree, kv_scope_of(7), l->t, l->token, TOKENS, NULL, 0, &err),
                         INGLE_OK);
        if (i % 3 == 1) /* as if the queue were full */
            kv_tree_owe(tree, kv_scope_of(7), l->token, TOKENS);
        else
            assert_true(kv_store_put(d->store, l->t, kv_scope_of(7), l->token, 0, NULL, 0));
        kv_tree_owe(tree, kv_scope_of(8), l->token, TOKENS); /* not there: nothing is owed */
    }
    kv_store_flush(d->store);
    for (const struct kv_point *p; (p = kv_tree_owed(tree, &scope, &token, &n)); n_owed++) {
        assert_true(n == TOKENS && scope.salt == 7 && !scope.sparse && token[0] % 3 == 1 &&
                    token[TOKENS - 1] == token[0]);
        assert_int_equal(kv_timeline_attach(l->t, tree, p, &err), INGLE_OK);
        assert_true(kv_store_put(d->store, l->t, scope, token, 0, NULL, 0));
        mem_free(token);
    }
    assert_int_equal(n_owed, N / 3);
    kv_store_flush(d->store);
    (void)kv_store_poll(d->store);
    assert_false(kv_store_poll(d->store));
    assert_int_equal(depot_counts(d).files, N);
    kv_timeline_clear(l->t);
    kv_tree_free(tree);
    depot_close(d);
}

/* Fills the tree with n lines of so many tokens, and offers them to the store. */
static void offer_lines(struct depot *d, struct kv_tree *tree, int32_t n, int64_t n_tokens)
{
    struct world_line *l = &d->w.line[0];
    struct err err;
    for (int32_t i = 0; i < n; i++) {
        kv_timeline_clear(l->t);
        l->length = 0;
        for (int64_t k = 0; k < n_tokens; k++)
            l->token[k] = i;
        assert_int_equal(world_step(&d->w, l, n_tokens, n_tokens), INGLE_OK);
        assert_int_equal(kv_tree_put(tree, kv_scope_of(7), l->t, l->token, n_tokens, NULL, 0, &err),
                         INGLE_OK);
        assert_true(kv_store_put(d->store, l->t, kv_scope_of(7), l->token, 0, NULL, 0));
    }
}

/* What gave way to a need for pages is still in memory: it is offered again. */
static void what_was_given_up_is_offered_again(void **state)
{
    (void)state;
    enum { N = 24, TOKENS = 400 };
    struct depot *d = depot_open(16 << 20);
    struct kv_tree *tree;
    struct err err;
    struct kv_scope scope;
    int32_t *token;
    int64_t n, n_owed = 0;
    assert_int_equal(kv_tree_create(&tree, d->w.pool, 12 << 20, &err), INGLE_OK);
    offer_lines(d, tree, N, TOKENS);
    while (d->w.pool->let_go(d->w.pool->let_go_arg)) {
    }
    const struct kv_store_counts before = depot_counts(d);
    assert_int_equal(before.files + before.skipped, N);
    assert_int_equal(kv_store_gave_up(d->store), before.skipped > 0);
    assert_false(kv_store_gave_up(d->store));
    kv_tree_owe_all(tree);
    for (const struct kv_point *p; (p = kv_tree_owed(tree, &scope, &token, &n)); n_owed++) {
        assert_int_equal(kv_timeline_attach(d->w.line[0].t, tree, p, &err), INGLE_OK);
        assert_true(kv_store_put(d->store, d->w.line[0].t, scope, token, 0, NULL, 0));
        mem_free(token);
    }
    assert_int_equal(n_owed, N);
    kv_store_flush(d->store);
    assert_int_equal(depot_counts(d).files, N);
    kv_timeline_clear(d->w.line[0].t);
    kv_tree_free(tree);
    depot_close(d);
}

static void a_file_that_vanishes_is_a_miss(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    depot_put(d, 0, 0, 300);
    depot_put(d, 0, 0, 300);
    kv_store_flush(d->store);
    assert_int_equal(depot_find(d, 0, d->w.line[0].token, 1000, NULL), 600);
    depot_files(d, depot_remove, NULL);
    struct err err;
    void *mark;
    size_t n;
    assert_int_equal(kv_store_restore(d->store, d->w.line[1].t, kv_scope_of(0), d->w.line[1].token,
                                      600, &mark, &n, &err),
                     INGLE_NOTFOUND);
    world_check(&d->w, &d->w.line[1]);
    assert_true(depot_get(d, 1, 0, 1000) <= 0); /* the shorter one is gone, too */
    assert_int_equal(depot_get(d, 1, 0, 1000), 0);
    assert_int_equal(d->n_warned, 0);
    depot_close(d);
}

static void orphans_are_not_used_and_go_first(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    char parent[256];
    depot_put(d, 0, 0, 300);
    kv_store_flush(d->store);
    DIR *dir = opendir(d->dir);
    for (const struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.')
            snprintf(parent, sizeof parent, "%s/%.100s", d->dir, e->d_name);
    closedir(dir);
    depot_put(d, 0, 0, 300);
    kv_store_flush(d->store);
    assert_int_equal(unlink(parent), 0);
    while (depot_counts(d).files > 1)
        assert_int_equal(depot_get(d, 1, 0, 1000) > 0, 0);
    assert_int_equal(depot_get(d, 1, 0, 1000), 0);
    /* Computed again, the parent makes its child useful again. */
    depot_put(d, 2, 0, 300);
    kv_store_flush(d->store);
    kv_timeline_clear(d->w.line[1].t);
    d->w.line[1].length = 0;
    assert_int_equal(depot_get(d, 1, 0, 1000), 600);
    depot_close(d);
}

static void another_process_sees_it_soon(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20), *e = mem_zalloc(sizeof *e);
    memcpy(e->dir, d->dir, sizeof d->dir);
    e->o = d->o;
    depot_open_pool(e, 1 << 20);
    depot_open_store(e);
    for (int i = 1; i < 12; i++) {
        depot_put(d, 0, 0, 100);
        kv_store_flush(d->store);
        while (depot_find(e, 0, e->w.line[1].token, WORLD_MAX, NULL) < 100 * i)
            usleep(100);
        assert_int_equal(depot_get(e, 1, 0, WORLD_MAX), 100 * i);
    }
    kv_store_close(e->store);
    world_close(&e->w);
    mem_free(e);
    depot_close(d);
}

/* ---- other processes, other limits ---- */

/* Runs fn in a process of its own; what it asserts counts. */
static void in_a_child(int (*fn)(const struct depot *), const struct depot *d)
{
    int status;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        _exit(fn(d));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Puts, gets and throws away in a directory that others use, too. */
static int busy(const struct depot *parent)
{
    struct depot *d = mem_zalloc(sizeof *d);
    memcpy(d->dir, parent->dir, sizeof d->dir);
    d->o = parent->o;
    d->o.budget_bytes = 80000;
    d->w.seed = (uint64_t)getpid();
    depot_open_pool(d, 1 << 20);
    depot_open_store(d);
    for (int round = 0; round < 150; round++) {
        const int line = (int)world_pick(&d->w, 0, WORLD_LINES - 1);
        struct world_line *l = &d->w.line[line];
        kv_timeline_clear(l->t);
        l->length = 0;
        const int64_t script = world_pick(&d->w, 0, 3);
        for (int64_t k = 0; k < WORLD_MAX; k++)
            l->token[k] = (int32_t)(k < 256 ? 1 : k < 512 ? script : script * 7 + k % 3);
        (void)depot_get(d, line, 0, world_pick(&d->w, 1, 800)); /* checks what it gets */
        depot_put(d, line, 0, world_pick(&d->w, 1, 300));
        if (!world_pick(&d->w, 0, 20))
            depot_reopen(d);
    }
    kv_store_flush(d->store);
    const int bad = d->n_warned + (int)depot_counts(d).damaged;
    if (bad)
        print_message("%s\n", d->said);
    kv_store_close(d->store);
    world_close(&d->w);
    mem_free(d);
    return bad;
}

static void processes_share_a_directory(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    kv_store_close(d->store); /* no thread may be there at a fork */
    d->store = NULL;
    pid_t pid[3];
    for (int i = 0; i < 3; i++)
        if (!(pid[i] = fork()))
            _exit(busy(d));
    for (int i = 0; i < 3; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    depot_open_store(d);
    const int64_t seen = depot_counts(d).files;
    assert_true(seen >= 0);
    depot_close(d);
}

static void count_temporary(void *arg, const char *path)
{
    int *n = arg;
    *n += strstr(path, ".tmp") != NULL;
}

/* Files may have 6,000 bytes: everything is larger. */
static int with_a_full_disk(const struct depot *parent)
{
    struct depot *d = mem_zalloc(sizeof *d);
    const struct rlimit limit = {6000, 6000};
    int n_tmp = 0;
    memcpy(d->dir, parent->dir, sizeof d->dir);
    d->o = parent->o;
    depot_open_pool(d, 1 << 20);
    depot_open_store(d);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    depot_put(d, 0, 0, 300);
    depot_put(d, 0, 0, 300);
    kv_store_flush(d->store);
    depot_put(d, 0, 0, 300);
    kv_store_flush(d->store);
    const bool once = d->n_warned == 1 && strstr(d->said, "nothing is saved for the time being");
    const bool none = depot_get(d, 1, 0, 1000) == 0 && depot_counts(d).files == 0;
    depot_files(d, count_temporary, &n_tmp);
    char path[128];
    struct err err;
    const struct kv_save_options o = {.identity = 1};
    snprintf(path, sizeof path, "%s/session", d->dir);
    const bool full = kv_save(d->w.line[0].t, path, &o, d->w.line[0].token, 900, NULL, 0, &err) ==
                      INGLE_LIMIT;
    depot_files(d, count_temporary, &n_tmp);
    kv_store_close(d->store);
    world_close(&d->w);
    mem_free(d);
    return once && none && full && !n_tmp ? 0 : 1;
}

static void a_full_disk_is_reported_once(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    kv_store_close(d->store);
    d->store = NULL;
    in_a_child(with_a_full_disk, d);
    depot_open_store(d);
    depot_close(d);
}

/* The disk was full for a while. */
static int with_a_disk_that_was_full(const struct depot *parent)
{
    struct depot *d = mem_zalloc(sizeof *d);
    struct rlimit limit = {6000, RLIM_INFINITY};
    memcpy(d->dir, parent->dir, sizeof d->dir);
    d->o = parent->o;
    d->o.retry_seconds = 1e-9;
    depot_open_pool(d, 1 << 20);
    depot_open_store(d);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 3; i++) {
        depot_put(d, i, 0, 300);
        kv_store_flush(d->store);
    }
    struct kv_store_counts n = depot_counts(d);
    const bool fails = n.failed == 3 && n.skipped == 3 && n.files == 0 && !n.saving && n.try_at &&
                       strstr(n.error, "too large") && d->n_warned == 1 &&
                       !kv_store_gave_up(d->store);
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &limit);
    depot_put(d, 0, 0, 300);
    kv_store_flush(d->store);
    n = depot_counts(d);
    const bool again = n.failed == 3 && n.files == 1 && n.saving && !n.try_at && !n.error[0] &&
                       d->n_warned == 1 && kv_store_gave_up(d->store);
    if (!fails || !again)
        print_message("%d %d: %lld failed, %lld files, '%s'\n", fails, again, (long long)n.failed,
                      (long long)n.files, n.error);
    kv_store_close(d->store);
    world_close(&d->w);
    mem_free(d);
    return fails && again ? 0 : 1;
}

static void a_disk_that_was_full_is_tried_again(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    kv_store_close(d->store);
    d->store = NULL;
    in_a_child(with_a_disk_that_was_full, d);
    depot_open_store(d);
    depot_close(d);
}

/* Root may write anywhere: be somebody else. */
static int read_only(const struct depot *parent)
{
    struct depot *d = mem_zalloc(sizeof *d);
    memcpy(d->dir, parent->dir, sizeof d->dir);
    d->o = parent->o;
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)
        return 0;
    depot_open_pool(d, 1 << 20);
    depot_open_store(d);
    const bool told = d->n_warned == 1 && strstr(d->said, "read-only");
    const bool there = depot_get(d, 0, 0, 1000) == 300;
    depot_put(d, 0, 0, 300);
    kv_store_flush(d->store);
    const bool same = depot_counts(d).files == 1 && d->n_warned == 1;
    kv_store_close(d->store);
    world_close(&d->w);
    mem_free(d);
    return told && there && same ? 0 : 1;
}

static void own(void *arg, const char *path)
{
    const uid_t *who = arg;
    assert_int_equal(chown(path, *who, (gid_t)-1), 0);
}

static void a_read_only_directory_is_read(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    uid_t nobody = 65534, me = geteuid();
    depot_put(d, 0, 0, 300);
    kv_store_close(d->store);
    d->store = NULL;
    if (!me) {
        depot_files(d, own, &nobody);
        own(&nobody, d->dir);
    }
    assert_int_equal(chmod(d->dir, 0500), 0);
    in_a_child(read_only, d);
    assert_int_equal(chmod(d->dir, 0700), 0);
    if (!me) {
        depot_files(d, own, &me);
        own(&me, d->dir);
    }
    depot_open_store(d);
    depot_close(d);
}

static void directories_of_others_are_refused(void **state)
{
    (void)state;
    struct err err;
    struct depot *d = depot_open(1 << 20);
    kv_store_close(d->store);
    d->store = NULL;
    assert_int_equal(chmod(d->dir, 0770), 0);
    assert_int_equal(kv_store_open(&d->store, d->w.pool, &d->o, &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "others may write"));
    assert_int_equal(chmod(d->dir, 0700), 0);
    uid_t nobody = 65534, me = geteuid();
    if (!me) {
        own(&nobody, d->dir);
        assert_int_equal(kv_store_open(&d->store, d->w.pool, &d->o, &err), INGLE_ARG);
        assert_non_null(strstr(err.msg, "user 65534"));
        own(&me, d->dir);
    }
    char none[96];
    snprintf(none, sizeof none, "%s/none/dir", d->dir);
    d->o.dir = none;
    assert_int_equal(kv_store_open(&d->store, d->w.pool, &d->o, &err), INGLE_IO);
    d->o.dir = "/dev/null";
    assert_int_equal(kv_store_open(&d->store, d->w.pool, &d->o, &err), INGLE_IO);
    d->o.dir = d->dir;
    depot_open_store(d);
    depot_close(d);
}

static void temporary_files_of_the_dead_are_removed(void **state)
{
    (void)state;
    struct depot *d = depot_open(1 << 20);
    char path[128];
    int n = 0;
    snprintf(path, sizeof path, "%s/.ingle-1-abc.tmp", d->dir);
    FILE *f = fopen(path, "w");
    fputs("half a file", f);
    fclose(f);
    depot_reopen(d);
    assert_int_equal(depot_get(d, 0, 0, 1000), 0);
    assert_int_equal(access(path, F_OK), 0); /* its writer may be about to lock it */
    const struct timespec old[2] = {{1, 0}, {1, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    snprintf(path, sizeof path, "%s/notes.txt", d->dir);
    fclose(fopen(path, "w")); /* not ours: left alone */
    depot_reopen(d);
    assert_int_equal(depot_get(d, 0, 0, 1000), 0);
    depot_files(d, count_temporary, &n);
    assert_int_equal(n, 0);
    assert_int_equal(depot_files(d, NULL, NULL), 1);
    depot_close(d);
}

struct listed { int n; int64_t tokens, oldest; bool damaged; };

static void list(void *arg, const struct kv_store_entry *e)
{
    struct listed *l = arg;
    l->n++;
    l->tokens += e->length - e->from;
    l->oldest = num_max(l->oldest, e->age_s);
    l->damaged |= e->damage != NULL;
    assert_string_equal(e->model, "a world");
    assert_string_equal(e->settings, "f16 exact");
    assert_true(e->identity == 42 && e->bytes > 4096 && e->age_s >= 0 && e->age_s < 3600);
}

static void dated(void *arg, const char *path)
{
    const time_t *when = arg;
    const struct timespec t[2] = {{.tv_sec = *when}, {.tv_sec = *when}};
    assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

static void the_directory_can_be_listed(void **state)
{
    (void)state;
    struct err err;
    struct listed l = {0};
    struct depot *d = depot_open(1 << 20);
    depot_put(d, 0, 0, 300);
    depot_put(d, 0, 0, 400);
    kv_store_flush(d->store);
    assert_int_equal(kv_store_list(d->dir, list, &l, &err), INGLE_OK);
    assert_true(l.n == 2 && l.tokens == 700 && !l.damaged);
    time_t past = time(NULL) - 1000, future = time(NULL) + 1000;
    depot_files(d, dated, &past);
    assert_int_equal(kv_store_list(d->dir, list, &l, &err), INGLE_OK);
    assert_in_range(l.oldest, 1000, 1100);
    depot_files(d, dated, &future); /* by another machine's clock: not older than new */
    assert_int_equal(kv_store_list(d->dir, list, &l, &err), INGLE_OK);
    char none[80];
    snprintf(none, sizeof none, "%s/none", d->dir);
    assert_int_equal(kv_store_list(none, list, &l, &err), INGLE_NOTFOUND);
    depot_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_is_there_after_a_restart),
        cmocka_unit_test(counts_are_asked_for_while_files_are_written),
        cmocka_unit_test(what_conversations_share_is_stored_once),
        cmocka_unit_test(files_add_at_least_so_many_tokens),
        cmocka_unit_test(salts_models_and_settings_share_nothing),
        cmocka_unit_test(sparse_prompts_are_kept_apart),
        cmocka_unit_test(shortened_prompts_are_kept_apart),
        cmocka_unit_test(a_saved_timeline_says_how_it_is_computed),
        cmocka_unit_test(the_least_valuable_is_evicted),
        cmocka_unit_test(memory_comes_before_what_waits_to_be_written),
        cmocka_unit_test(what_had_to_wait_is_offered_again),
        cmocka_unit_test(what_was_given_up_is_offered_again),
        cmocka_unit_test(a_file_that_vanishes_is_a_miss),
        cmocka_unit_test(orphans_are_not_used_and_go_first),
        cmocka_unit_test(another_process_sees_it_soon),
        cmocka_unit_test(processes_share_a_directory),
        cmocka_unit_test(a_full_disk_is_reported_once),
        cmocka_unit_test(a_disk_that_was_full_is_tried_again),
        cmocka_unit_test(a_read_only_directory_is_read),
        cmocka_unit_test(directories_of_others_are_refused),
        cmocka_unit_test(temporary_files_of_the_dead_are_removed),
        cmocka_unit_test(the_directory_can_be_listed),
        cmocka_unit_test(nobody_waits_for_a_disk_that_does_not_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
