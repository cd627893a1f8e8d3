/* kv_depot - a world with a store in a directory of its own. */
#ifndef INGLE_TESTS_KV_DEPOT_H
#define INGLE_TESTS_KV_DEPOT_H

#include "unit/kv_world.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct depot {
    struct world w;
    struct kv_store *store;
    struct kv_store_options o;
    struct report_sink sink;
    char dir[64];
    char said[512];
    int n_warned;
};

static inline void depot_hear(void *arg, ingle_report_level level, const char *kind,
                              const char *subject, const char *text)
{
    struct depot *d = arg;
    if (level > INGLE_REPORT_WARN)
        return;
    d->n_warned++;
    snprintf(d->said, sizeof d->said, "%s %s: %s", kind, subject, text);
}

static inline void depot_open_store(struct depot *d)
{
    struct err err;
    if (kv_store_open(&d->store, d->w.pool, &d->o, &err))
        fail_msg("%s", err.msg);
}

static inline void depot_reopen(struct depot *d)
{
    kv_store_close(d->store);
    depot_open_store(d);
}

/* A group that keeps everything and a window of 200 tokens, and the same of a guest (0: there is
 * none). */
static inline void depot_open_pool_with(struct depot *d, uint64_t pool_bytes, uint64_t guest)
{
    struct err err;
    d->sink = (struct report_sink){.report = depot_hear, .arg = d};
    world_group(&d->w, 0, 1);
    world_group(&d->w, 200, 2);
    if (guest) {
        d->w.spec.n_own = d->w.spec.n_groups;
        d->w.spec.guest = guest;
        world_group(&d->w, 0, 2);
        world_group(&d->w, 150, 1);
    }
    assert_int_equal(kv_pool_create(&d->w.pool, &d->w.spec, pool_bytes, &d->sink, &err), INGLE_OK);
    for (int i = 0; i < WORLD_LINES; i++) {
        world_line_open(&d->w, i, WORLD_MAX);
        for (int64_t k = 0; k < WORLD_MAX; k++)
            d->w.line[i].token[k] = (int32_t)k;
    }
}

static inline void depot_open_pool(struct depot *d, uint64_t pool_bytes)
{
    depot_open_pool_with(d, pool_bytes, 0);
}

static inline struct depot *depot_open(uint64_t pool_bytes)
{
    struct depot *d = mem_zalloc(sizeof *d);
    assert_non_null(d);
    strcpy(d->dir, "/tmp/ingle-store-XXXXXX");
    assert_non_null(mkdtemp(d->dir));
    d->o = (struct kv_store_options){
        .dir = d->dir, .min_tokens = 1, .identity = 42, .model = "a world", .codec = "f16"};
    depot_open_pool(d, pool_bytes);
    depot_open_store(d);
    return d;
}

/* Calls fn for every file; returns how many there are. */
static inline int depot_files(const struct depot *d, void (*fn)(void *arg, const char *path),
                              void *arg)
{
    DIR *dir = opendir(d->dir);
    assert_non_null(dir);
    int n = 0;
    for (const struct dirent *e; (e = readdir(dir));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", d->dir, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            n++;
            if (fn)
                fn(arg, path);
        }
    }
    closedir(dir);
    return n;
}

static inline void depot_remove(void *arg, const char *path)
{
    (void)arg;
    assert_int_equal(unlink(path), 0);
}

static inline void depot_close(struct depot *d)
{
    kv_store_close(d->store);
    world_close(&d->w);
    depot_files(d, depot_remove, NULL);
    assert_int_equal(rmdir(d->dir), 0);
    mem_free(d);
}

/* n more tokens, and a restore point. */
static inline void depot_put(struct depot *d, int line, uint64_t salt, int64_t n)
{
    struct world_line *l = &d->w.line[line];
    assert_int_equal(world_step(&d->w, l, n, n), INGLE_OK);
    char mark[32];
    snprintf(mark, sizeof mark, "mark of %lld", (long long)l->length);
    kv_store_put(d->store, l->t, kv_scope_of(salt), l->token, 0, mark, strlen(mark) + 1);
}

static inline int64_t depot_find(struct depot *d, uint64_t salt, const int32_t *tokens,
                                 int64_t limit, int64_t *foreign)
{
    assert_true(kv_store_look(d->store, true));
    return kv_store_find(d->store, kv_scope_of(salt), tokens, limit, foreign);
}

/* The line becomes what the store has of its tokens within limit; its length. */
static inline int64_t depot_get(struct depot *d, int line, uint64_t salt, int64_t limit)
{
    struct err err;
    struct world_line *l = &d->w.line[line];
    const int64_t n = depot_find(d, salt, l->token, limit, NULL);
    if (!n)
        return 0;
    void *mark = NULL;
    size_t mark_bytes = 0;
    const ingle_status st =
        kv_store_restore(d->store, l->t, kv_scope_of(salt), l->token, n, &mark, &mark_bytes, &err);
    if (st) {
        world_check(&d->w, l); /* as before */
        return -1;
    }
    char want[32];
    snprintf(want, sizeof want, "mark of %lld", (long long)n);
    assert_int_equal(mark_bytes, strlen(want) + 1);
    assert_string_equal(mark, want);
    mem_free(mark);
    l->length = n;
    l->rewind_to = n;
    world_check(&d->w, l);
    return n;
}

static inline struct kv_store_counts depot_counts(struct depot *d)
{
    struct kv_store_counts n;
    kv_store_count(d->store, &n);
    return n;
}

#endif
