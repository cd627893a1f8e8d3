/* SPDX-License-Identifier: Apache-2.0 */
/* random_card - see random_card.h. */
#include "gpu/random_card.h"

#include "device/card.h"
#include "device/gpu/card.h"
#include "device/gpu/kernel.h"
#include "golden/golden.h"
#include "gpu/api_emu.h"
#include "model/parts.h"
#include <stdio.h>
#include <stdlib.h>

static struct {
    uint32_t seed;
    bool card, sides; /* of the device that was made last; operations have random sides */
    enum random_card_kind kind;
} of = {.seed = 1};

static uint32_t draw(uint32_t n)
{
    of.seed = of.seed * 1664525u + 1013904223u;
    return (of.seed >> 10) % n;
}

static int choose(void *arg, enum device_op op)
{
    (void)arg;
    (void)op;
    return (int)draw(4) - 2 > 0 ? 1 : (int)draw(3) - 1;
}

static void made(struct device *d)
{
    static const int capability[] = {80, 80, 75, 90};
    struct err e;
    const enum random_card_kind kind = of.kind;
    of.kind = RANDOM_CARD_ANY;
    of.card = kind == RANDOM_CARD_YES || (kind == RANDOM_CARD_ANY && draw(4));
    golden_own_first = golden_own_end = golden_draft_own_first = golden_draft_own_end = 0;
    if (!of.card)
        return;
    struct emu_cards c = {.n = 1,
                                .bytes = (size_t)1 << 30,
                                .capability = capability[draw(4)],
                                .order = (enum emu_order)draw(EMU_ORDERS)};
    if (draw(4) == 0) { /* once there is no room for something: pages, scratch, a matrix */
        c.fail_in = "take";
        c.memory = true;
        c.fail_at = 3 + draw(120);
    }
    if (getenv("INGLE_TEST_CAPABILITY"))
        c.capability = atoi(getenv("INGLE_TEST_CAPABILITY"));
    emu_cards_set(&c);
    GOLDEN_OK(device_card_open(d, 1, 0, &e));
    of.sides = draw(2);
    if (of.sides)
        device_gpu_set_choice(d, choose, NULL);
}

/* [*first, *end) of [0, n): often all, else any part. */
static void range(int64_t n, int64_t *first, int64_t *end)
{
    *first = 0;
    *end = n;
    if (draw(3) == 0)
        return;
    *first = draw((uint32_t)n);
    *end = *first + draw((uint32_t)(n - *first) + 1);
}

/* A layer's matrices, and those of experts, are on one side; or each is anywhere. */
static void bound(struct model *m)
{
    int64_t n = 0, first, end;
    if (!of.card)
        return;
    for (size_t i = 0; i < m->n_matrices; i++)
        n = m->matrix[i].layer >= n ? m->matrix[i].layer + 1 : n;
    n = n ? n : 1;
    range(n, &first, &end);
    const bool any = draw(4) == 0, experts = draw(3) > 0, rest = draw(2);
    for (size_t i = 0; i < m->n_matrices; i++) {
        const struct bound_matrix *b = &m->matrix[i];
        const bool there = any             ? draw(2)
                           : b->layer < 0  ? rest
                                           : b->layer >= first && b->layer < end &&
                                                (!b->group || experts);
        device_matrix_want(b->m, there ? DEVICE_CARD : DEVICE_HOST);
    }
    if (draw(4) == 0)
        range(n, &first, &end);
    golden_own_first = first;
    golden_own_end = end;
    range(draw(2) ? n : 3, &golden_draft_own_first, &golden_draft_own_end);
    golden_draft_own_end = draw(3) ? INT64_MAX : golden_draft_own_end;
}

void random_card_set(uint32_t seed, enum random_card_kind next)
{
    of.seed = seed * 2654435761u + 1;
    of.kind = next;
}

/* Before main(): programs of tests/golden know nothing of cards. */
__attribute__((constructor)) static void begin(void)
{
    const char *seed = getenv("INGLE_TEST_SEED"), *only = getenv("INGLE_TEST_ONLY");
    if (only)
        cmocka_set_test_filter(only);
    golden_device_made = made;
    golden_bound = bound;
    random_card_set(seed ? (uint32_t)strtoul(seed, NULL, 10) : 1, RANDOM_CARD_ANY);
}
