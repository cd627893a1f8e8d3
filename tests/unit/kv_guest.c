/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700
/*
 * kv_guest - what a guest keeps beside a model: files with and without it serve both, and whatever
 * comes of them, a timeline never says that rows are there which nobody has written.
 */
#include "unit/kv_depot.h"

static const uint64_t POOL_BYTES = 64 << 20;

/* The same directory, for another who computes: the model with that guest (0: alone). */
static void become(struct depot *d, uint64_t guest)
{
    kv_store_close(d->store);
    world_close(&d->w);
    memset(&d->w, 0, sizeof d->w);
    depot_open_pool_with(d, POOL_BYTES, guest);
    depot_open_store(d);
}

static int64_t from_of(const struct depot *d, int line)
{
    return kv_timeline_from(d->w.line[line].t);
}

static void grow(struct depot *d, int line, int64_t n)
{
    assert_int_equal(world_step(&d->w, &d->w.line[line], n, n), INGLE_OK);
    world_check(&d->w, &d->w.line[line]);
}

static void a_guest_begins_behind_what_the_model_saved(void **state)
{
    (void)state;
    struct err err;
    struct depot *d = depot_open(POOL_BYTES);
    depot_put(d, 0, 0, 300);
    depot_put(d, 0, 0, 500);
    become(d, 7);
    assert_int_equal(depot_get(d, 0, 0, 1000), 800);
    assert_int_equal(from_of(d, 0), 800);
    grow(d, 0, 100);
    assert_int_equal(from_of(d, 0), 800);
    assert_int_equal(kv_timeline_fork(d->w.line[1].t, d->w.line[0].t, &err), INGLE_OK);
    assert_int_equal(from_of(d, 1), 800);
    assert_int_equal(kv_timeline_rewind(d->w.line[0].t, 850, &err), INGLE_OK);
    assert_int_equal(from_of(d, 0), 800);
    d->w.line[0].length = 850;
    assert_int_equal(kv_timeline_rewind(d->w.line[0].t, 790, &err), INGLE_OK);
    d->w.line[0].length = 790;
    assert_int_equal(from_of(d, 0), 790); /* nothing is left of the guest's */
    grow(d, 0, 60);
    assert_int_equal(from_of(d, 0), 790);
    depot_put(d, 0, 0, 150); /* in the model's form: rows of the guest are lacking */
    kv_timeline_clear(d->w.line[1].t);
    assert_int_equal(from_of(d, 1), 0);
    become(d, 0);
    assert_int_equal(depot_get(d, 0, 0, 1000), 1000);
    assert_int_equal(from_of(d, 0), 0);
    depot_close(d);
}

static void what_a_guest_saved_is_all_there(void **state)
{
    (void)state;
    struct depot *d = depot_open(POOL_BYTES);
    int64_t foreign;
    become(d, 7);
    depot_put(d, 0, 0, 300);
    depot_put(d, 0, 0, 500);
    depot_reopen(d);
    assert_int_equal(depot_get(d, 1, 0, 1000), 800);
    assert_int_equal(from_of(d, 1), 0);
    grow(d, 1, 200);
    become(d, 0); /* the model alone does not know them, and says so */
    assert_int_equal(depot_find(d, 0, d->w.line[0].token, 1000, &foreign), 0);
    assert_int_equal(foreign, 800);
    depot_put(d, 0, 0, 900);
    become(d, 8); /* nor does another guest, which has those of the model */
    assert_int_equal(depot_get(d, 0, 0, 1000), 900);
    assert_int_equal(from_of(d, 0), 900);
    become(d, 7); /* the longest serves most */
    assert_int_equal(depot_get(d, 0, 0, 1000), 900);
    assert_int_equal(from_of(d, 0), 900);
    assert_int_equal(depot_get(d, 1, 0, 850), 800);
    assert_int_equal(from_of(d, 1), 0);
    depot_close(d);
}

/* [0, 300) is there with the guest's; what is read behind it is of the model's form, or of the
 * guest's. */
static void a_restore_continues_what_is_there(void **state)
{
    (void)state;
    struct err err;
    struct depot *d = depot_open(POOL_BYTES);
    depot_put(d, 0, 0, 700);
    become(d, 7);
    grow(d, 0, 300);
    assert_int_equal(depot_get(d, 0, 0, 1000), 700);
    assert_int_equal(from_of(d, 0), 700);
    assert_int_equal(kv_timeline_rewind(d->w.line[0].t, 0, &err), INGLE_OK);
    d->w.line[0].length = 0;
    grow(d, 0, 900);
    depot_put(d, 0, 0, 100);
    kv_store_flush(d->store);
    assert_int_equal(depot_get(d, 1, 0, 700), 700); /* lacks the guest's */
    assert_int_equal(from_of(d, 1), 700);
    assert_int_equal(depot_get(d, 1, 0, 1000), 1000); /* of which its whole pages stay */
    assert_int_equal(from_of(d, 1), 700 / KV_PAGE * KV_PAGE);
    depot_close(d);
}

static void blocks_of_the_tree_may_lack_it(void **state)
{
    (void)state;
    struct err err;
    struct kv_tree *tree;
    struct kv_match match;
    struct depot *d = depot_open(POOL_BYTES);
    depot_put(d, 0, 0, 300);
    become(d, 7);
    assert_int_equal(kv_tree_create(&tree, d->w.pool, POOL_BYTES, &err), INGLE_OK);
    struct world_line *lacks = &d->w.line[0], *has = &d->w.line[1], *to = &d->w.line[2];
    assert_int_equal(depot_get(d, 0, 0, 300), 300);
    assert_int_equal(kv_tree_put(tree, kv_scope_of(0), lacks->t, lacks->token, 300, NULL, 0, &err),
                     INGLE_OK);
    grow(d, 1, 500); /* its first two blocks are those of the other one */
    assert_int_equal(kv_tree_put(tree, kv_scope_of(0), has->t, has->token, 500, NULL, 0, &err),
                     INGLE_OK);
    for (int64_t length = 300; length <= 500; length += 200) {
        kv_tree_find(tree, kv_scope_of(0), to->token, length, length, &match);
        assert_int_equal(match.length, length);
        assert_int_equal(kv_timeline_attach(to->t, tree, match.point, &err), INGLE_OK);
        assert_int_equal(kv_timeline_from(to->t), length == 300 ? 300 : 2 * KV_PAGE);
        to->length = to->rewind_to = length;
        world_check(&d->w, to);
    }
    kv_tree_free(tree);
    depot_close(d);
}

static void saved_sessions_go_both_ways(void **state)
{
    (void)state;
    struct err err;
    struct depot *d = depot_open(POOL_BYTES);
    const struct kv_save_options o = {.identity = 42, .model = "a world", .codec = "f16"};
    char alone[96], with[96];
    int32_t *tokens;
    int64_t n;
    void *mark;
    size_t mark_bytes;
    snprintf(alone, sizeof alone, "%s/alone", d->dir);
    snprintf(with, sizeof with, "%s/with", d->dir);
    grow(d, 0, 400);
    assert_int_equal(kv_save(d->w.line[0].t, alone, &o, d->w.line[0].token, 400, NULL, 0, &err),
                     INGLE_OK);
    become(d, 7);
    grow(d, 0, 410);
    assert_int_equal(kv_save(d->w.line[0].t, with, &o, d->w.line[0].token, 410, NULL, 0, &err),
                     INGLE_OK);
    for (int i = 0; i < 2; i++) {
        struct world_line *l = &d->w.line[1 + i];
        assert_int_equal(kv_load(l->t, i ? with : alone, &o, &tokens, &n, &mark, &mark_bytes, &err),
                         INGLE_OK);
        assert_int_equal(n, i ? 410 : 400);
        assert_int_equal(kv_timeline_from(l->t), i ? 0 : 400);
        l->length = l->rewind_to = n;
        world_check(&d->w, l);
        mem_free(tokens);
        mem_free(mark);
    }
    /* What lacks the guest's rows is saved without them. */
    assert_int_equal(kv_save(d->w.line[1].t, alone, &o, d->w.line[1].token, 400, NULL, 0, &err),
                     INGLE_OK);
    become(d, 0);
    assert_int_equal(kv_load(d->w.line[0].t, with, &o, &tokens, &n, &mark, &mark_bytes, &err),
                     INGLE_UNSUP);
    assert_string_equal(err.msg, "with: of other settings: 'f16 exact drafter', not 'f16 exact'");
    assert_int_equal(kv_load(d->w.line[0].t, alone, &o, &tokens, &n, &mark, &mark_bytes, &err),
                     INGLE_OK);
    d->w.line[0].length = d->w.line[0].rewind_to = n;
    world_check(&d->w, &d->w.line[0]);
    mem_free(tokens);
    mem_free(mark);
    depot_close(d);
}

static void random_walks_claim_nothing_that_is_not_there(void **state)
{
    (void)state;
    struct err err;
    struct kv_tree *tree;
    struct kv_match match;
    struct depot *d = depot_open(POOL_BYTES);
    d->w.seed = 11;
    int64_t n_lacking = 0;
    for (int life = 0; life < 12; life++) {
        const uint64_t seed = d->w.seed;
        become(d, (uint64_t)(life % 3)); /* 0: alone */
        d->w.seed = seed + 1;
        assert_int_equal(kv_tree_create(&tree, d->w.pool, POOL_BYTES / 4, &err), INGLE_OK);
        for (int i = 0; i < 400; i++) {
            struct world_line *l = &d->w.line[world_pick(&d->w, 0, WORLD_LINES - 1)];
            const int64_t op = world_pick(&d->w, 0, 99);
            if (op < 60) {
                world_operate(&d->w, l);
            } else if (op < 75) {
                (void)kv_store_put(d->store, l->t, kv_scope_of(0), l->token, 0, NULL, 0);
                assert_int_equal(
                    kv_tree_put(tree, kv_scope_of(0), l->t, l->token, l->length, NULL, 0, &err),
                    INGLE_OK);
            } else if (op < 90) {
                void *mark = NULL;
                size_t mark_bytes;
                const int64_t n = depot_find(d, 0, l->token, l->max, NULL);
                if (n && !kv_store_restore(d->store, l->t, kv_scope_of(0), l->token, n, &mark,
                                           &mark_bytes, &err))
                    l->length = l->rewind_to = n;
                mem_free(mark);
            } else {
                kv_tree_find(tree, kv_scope_of(0), l->token, l->max, l->max, &match);
                if (match.point && !kv_timeline_attach(l->t, tree, match.point, &err))
                    l->length = l->rewind_to = match.length;
            }
            assert_true(kv_timeline_from(l->t) <= l->length &&
                        (d->w.spec.n_own || !kv_timeline_from(l->t)));
            n_lacking += kv_timeline_from(l->t) > 0;
            if (i % 4 == 0)
                world_check(&d->w, l);
        }
        kv_tree_free(tree);
    }
    assert_true(n_lacking > 50);
    depot_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_guest_begins_behind_what_the_model_saved),
        cmocka_unit_test(what_a_guest_saved_is_all_there),
        cmocka_unit_test(a_restore_continues_what_is_there),
        cmocka_unit_test(blocks_of_the_tree_may_lack_it),
        cmocka_unit_test(saved_sessions_go_both_ways),
        cmocka_unit_test(random_walks_claim_nothing_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
