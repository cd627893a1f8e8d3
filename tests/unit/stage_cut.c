/* SPDX-License-Identifier: Apache-2.0 */
/* stage_cut - which layers each process gets: made-up processes, and all cuts of small models. */
#include "unit/unit.h"

#include "stage/stage.h"
#include <string.h>

enum { MOST = 8 };

static struct stage_layer even[60];

static struct stage_cut cut_of(struct stage_place *place, int n_places, int64_t n_layers)
{
    for (int i = 0; i < 60; i++)
        even[i] = (struct stage_layer){100, 10};
    return (struct stage_cut){even, place, n_layers, n_places};
}

static void even_and_slow(void **state)
{
    (void)state;
    int64_t end[STAGE_MOST + 1];
    struct err err;
    struct stage_place p[7];
    for (int i = 0; i < 7; i++)
        p[i] = (struct stage_place){.memory_bytes = 10000, .rate = 100};
    struct stage_cut c = cut_of(p, 3, 60);
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_OK);
    assert_int_equal(end[0], 20);
    assert_int_equal(end[1], 40);
    assert_int_equal(end[2], 60);
    p[1].rate = 50; /* a slow one: 24, 12, 24 */
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_OK);
    assert_int_equal(end[0], 24);
    assert_int_equal(end[1], 36);
    p[1].rate = 100;
    p[0].read_bytes = 60; /* the head: six layers less */
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_OK);
    assert_int_equal(end[0], 16);
    assert_int_equal(end[1], 38);
    c = cut_of(p, 7, 60);
    p[0].read_bytes = 0;
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_OK);
    for (int i = 0; i < 7; i++) /* none has more than 9 */
        assert_in_range(end[i] - (i ? end[i - 1] : 0), 1, 9);
}

static void memory_bounds(void **state)
{
    (void)state;
    int64_t end[STAGE_MOST + 1];
    struct err err;
    struct stage_place p[3] = {{.memory_bytes = 10000, .rate = 1},
                               {.memory_bytes = 999, .rate = 1000},
                               {.memory_bytes = 10000, .fixed_bytes = 9500, .rate = 1000}};
    struct stage_cut c = cut_of(p, 3, 30);
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_OK);
    assert_int_equal(end[0], 16); /* nine and five are all that the fast ones hold */
    assert_int_equal(end[1], 25);
    p[0].memory_bytes = 1500;
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_LIMIT);
    assert_int_equal(end[2], 30); /* the nearest one */
    p[1].memory_bytes = 0;
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_LIMIT);
    assert_int_equal(end[2], 30);
}

static void fixed_and_refused(void **state)
{
    (void)state;
    int64_t end[STAGE_MOST + 1];
    struct err err;
    struct stage_place p[4];
    for (int i = 0; i < 4; i++)
        p[i] = (struct stage_place){.memory_bytes = 10000, .rate = 1};
    p[2].from = 7;
    p[2].to = 9;
    struct stage_cut c = cut_of(p, 4, 12);
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_OK);
    assert_int_equal(end[1], 7);
    assert_int_equal(end[2], 9);
    p[3].from = 10;
    p[3].to = 12;
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_ARG); /* a gap */
    c = cut_of(p, 4, 3);
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_ARG);
    assert_non_null(strstr(err.msg, "4 processes (the engine and 3 stages) are more than"));
    c.n_layers = STAGE_CUT_LAYERS + 1;
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_LIMIT);
    c.n_places = STAGE_MOST + 2;
    assert_int_equal(stage_cut_find(&c, end, &err), INGLE_ARG);
}

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* The best of all cuts, tried one after the other. */
static double try_all(const struct stage_cut *c, int64_t *end, int k)
{
    double best = -1;
    if (k == c->n_places - 1) {
        end[k] = c->n_layers;
        return stage_cut_seconds(c, end);
    }
    for (int64_t at = (k ? end[k - 1] : 0) + 1; at + c->n_places - 1 - k <= c->n_layers; at++) {
        end[k] = at;
        const double t = try_all(c, end, k + 1);
        best = t >= 0 && (best < 0 || t < best) ? t : best;
    }
    return best;
}

static void as_good_as_any(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 300; round++) {
        struct stage_layer layer[MOST];
        struct stage_place place[4];
        int64_t end[4], other[4];
        const int n_layers = 4 + (int)(draw(&seed) % (MOST - 3)),
                  n_places = 1 + (int)(draw(&seed) % 4);
        for (int i = 0; i < n_layers; i++)
            layer[i] = (struct stage_layer){draw(&seed) % 100, draw(&seed) % 100};
        for (int i = 0; i < n_places; i++)
            place[i] = (struct stage_place){.memory_bytes = 50 + draw(&seed) % 400,
                                            .fixed_bytes = draw(&seed) % 50,
                                            .read_bytes = draw(&seed) % 50,
                                            .rate = 1 + (double)(draw(&seed) % 9)};
        const struct stage_cut c = {layer, place, n_layers, n_places};
        const double best = try_all(&c, other, 0);
        const ingle_status st = stage_cut_find(&c, end, NULL);
        assert_int_equal(st, best < 0 ? INGLE_LIMIT : INGLE_OK);
        if (!st)
            assert_true(stage_cut_seconds(&c, end) <= best * (1 + 1e-9) &&
                        stage_cut_seconds(&c, end) >= 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even_and_slow),
        cmocka_unit_test(memory_bounds),
        cmocka_unit_test(fixed_and_refused),
        cmocka_unit_test(as_good_as_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
