/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of experts on the emulated card, against the processor's operation. */
#include "gpu/plain_device.h"

#include "device/gpu/kernels/route.h"

struct job {
    int32_t n_rows, n_ids, k;
    bool bias, table, normalise, factor;
    uint32_t odd; /* one score in that many is odd; 0: none; 1: few values, many ties */
};

static const struct job jobs[] = {
    {1, 8, 2, false, false, true, false, 0},     {5, 128, 8, false, false, true, true, 0},
    {3, 256, 6, true, false, true, false, 0},    {4, 33, 33, true, false, false, true, 0},
    {3, 1, 1, false, false, true, false, 0},     {6, 100, 7, true, false, true, false, 1},
    {9, 64, 64, false, false, true, false, 1},   {7, 40, 5, false, false, true, true, 10},
    {6, 256, 8, true, false, false, false, 100}, {9, 256, 6, false, true, true, false, 0},
    {3, 4096, 64, false, false, true, false, 0}, {140, 16, 4, true, false, true, true, 0},
};

static void one_job(const struct job *j, int order)
{
    const int64_t stride = j->n_ids + 3, n = (int64_t)j->n_rows * j->k;
    float *score = numbers_new(j->n_rows * stride, j->odd > 1 ? j->odd : 0);
    float *bias = numbers_new(j->n_ids, 0), *factor = numbers_new(j->n_ids, 0);
    int32_t *table = numbers_room((size_t)(50 * j->k) * 4);
    int32_t *tokens = numbers_room((size_t)j->n_rows * 4);
    for (int64_t i = 0; j->odd == 1 && i < j->n_rows * stride; i++)
        score[i] = numbers_draw() % 3 ? 0.5f : numbers_draw() % 2 ? -0.0f : 0.0f;
    for (int i = 0; i < j->n_ids; i++)
        bias[i] = j->odd == 1 ? 0.0f : bias[i];
    for (int i = 0; i < 50; i++)
        for (int c = 0; c < j->k; c++)
            table[i * j->k + c] = (i * 7 + (j->k - c) * 5) % j->n_ids;
    for (int i = 0; i < j->n_rows; i++)
        tokens[i] = i * 11 % 50;
    struct device_vector *b = plain_vector(bias, j->n_ids), *f = plain_vector(factor, j->n_ids);
    uint64_t *hits = calloc((size_t)j->n_ids, sizeof *hits);
    const struct device_route r = {.bias = j->bias ? b : NULL, .table = j->table ? table : NULL,
                                   .tokens = tokens, .k = j->k, .normalise = j->normalise,
                                   .factor = j->factor ? f : NULL, .scale = 1.7f, .pairs = true,
                                   .hits = hits};
    device_begin(plain_device, NULL);
    const struct device_routed want =
        device_route(plain_device, &r, plain_rows(score, j->n_rows, j->n_ids, stride));
    assert_true(device_runs(plain_device));
    int32_t *id = numbers_room((size_t)n * 4), *row = numbers_room((size_t)n * 4);
    int32_t *slot = numbers_room((size_t)n * 4);
    int32_t *first = numbers_room((size_t)(j->n_ids + 2) * 4);
    float *weight = numbers_room((size_t)n * 4);
    struct route_choose_args a = {score, j->bias ? bias : NULL, j->factor ? factor : NULL,
                                  j->table ? table : NULL, tokens, id, weight, stride, j->n_rows,
                                  j->n_ids, j->k, j->normalise, 1.7f};
    NUMBERS_LAUNCH("route_choose", route_choose_grid(&a), a, order);
    plain_same_ints("id", id, want.id, n);
    numbers_same("weight", weight, want.weight, n);
    struct route_pairs_args p = {id, first, row, slot, j->n_rows, j->n_ids, j->k};
    NUMBERS_LAUNCH("route_pairs", route_pairs_grid(&p), p, order);
    plain_same_ints("first", first, want.first, j->n_ids + 2);
    plain_same_ints("row", row, want.row, n);
    plain_same_ints("slot", slot, want.slot, n);
    for (int e = 0; e < j->n_ids; e++)
        assert_int_equal(hits[e], first[e + 1] - first[e]);
    device_vector_free(b), device_vector_free(f);
    free(score), free(bias), free(factor), free(table), free(tokens), free(hits);
    free(id), free(row), free(slot), free(first), free(weight);
}

static void test_route(void **state)
{
    (void)state;
    for (int order = 0; order < EMU_ORDERS; order++)
        for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
            if (jobs[i].n_ids < 4096 || order == EMU_MIXED)
                one_job(&jobs[i], order);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_route)};
    return cmocka_run_group_tests(tests, plain_device_open, plain_device_close);
}
