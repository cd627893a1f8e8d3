/* SPDX-License-Identifier: Apache-2.0 */
/* The cache of experts does what tests/data/experts/policy_vectors.txt says: hits, who is kept, who
 * leaves, keys. */
#include "unit/unit.h"

#include "base/mem.h"
#include "expert/policy.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, EXPERTS = 16, N = LAYERS * EXPERTS };

static uint16_t pins[N];

/* The numbers, or layer:expert pairs, of a field. */
static int numbers(const char *text, int out[8])
{
    int n = 0;
    for (char *end; n < 8; text = end) {
        long v = strtol(text, &end, 10);
        if (end == text)
            break;
        if (*end == ':')
            v = v * EXPERTS + strtol(end + 1, &end, 10);
        out[n++] = (int)v;
    }
    return n;
}

/* layer < 0: without it. */
static void join(char *to, int layer, int expert)
{
    char one[32] = "";
    if (layer >= 0)
        snprintf(one, sizeof one, "%d:", layer);
    snprintf(one + strlen(one), 16, "%d", expert);
    if (*to)
        strcat(to, " ");
    strcat(to, one);
}

static void check_line(struct expert_policy *p, char *line)
{
    char *field[4], hits[64] = "", kept[64] = "", evicted[64] = "";
    int chosen[8];
    for (int i = 0; i < 4; i++) {
        field[i] = line;
        line = strchr(line, '|');
        if (line)
            *line++ = 0;
    }
    const int n = numbers(field[0], chosen), layer = chosen[1];
    const double t = chosen[0];
    memset(pins, 0, sizeof pins);
    for (int i = 2; i < n; i++) {
        const int id = layer * EXPERTS + chosen[i];
        pins[id] = 1;
        if (expert_policy_is_in(p, id))
            join(hits, -1, chosen[i]);
        expert_policy_use(p, id, t);
    }
    for (int i = 2; i < n; i++) {
        const int id = layer * EXPERTS + chosen[i];
        int64_t victim;
        if (expert_policy_is_in(p, id) || !expert_policy_admit(p, id, pins, &victim))
            continue;
        join(kept, -1, chosen[i]);
        if (victim >= 0)
            join(evicted, (int)victim / EXPERTS, (int)victim % EXPERTS);
    }
    const char *want[] = {hits, kept, evicted};
    for (int i = 0; i < 3; i++) {
        char *w = field[i + 1];
        w += strspn(w, " ");
        for (size_t k = strlen(w); k && (w[k - 1] == ' ' || w[k - 1] == '\n');)
            w[--k] = 0;
        assert_string_equal(want[i], w);
    }
}

static void the_cache_is_that_of_the_vectors(void **state)
{
    (void)state;
    struct expert_policy *p = NULL;
    char line[256], in[8];
    int capacity, layer, expert, lines = 0, keys = 0;
    double key;
    FILE *f = fopen("tests/data/experts/policy_vectors.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "capacity ");
        if (line[0] == '#' && at && sscanf(at, "capacity %d", &capacity) == 1) {
            expert_policy_free(p);
            assert_int_equal(expert_policy_create(&p, N, capacity, NULL), INGLE_OK);
        } else if (sscanf(line, "key %d %d %lf %7s", &layer, &expert, &key, in) == 4) {
            const int id = layer * EXPERTS + expert;
            assert_true(fabs(expert_policy_key(p, id) - key) < 1e-9);
            assert_int_equal(expert_policy_is_in(p, id), strcmp(in, "in") == 0);
            keys++;
        } else if (line[0] != '#') {
            check_line(p, line);
            lines++;
        }
    }
    fclose(f);
    expert_policy_free(p);
    assert_int_equal(lines, 3 * (40 + 30 + 20));
    assert_true(keys > 50);
}

/* A pinned resident stays, whatever its key; without anybody else nobody is admitted. */
static void pinned_ones_stay(void **state)
{
    (void)state;
    struct expert_policy *p;
    uint16_t pin[8] = {0};
    int64_t victim;
    assert_int_equal(expert_policy_create(&p, 8, 3, NULL), INGLE_OK);
    for (int i = 0; i < 4; i++)
        expert_policy_use(p, i, i);
    for (int i = 0; i < 3; i++)
        assert_true(expert_policy_admit(p, i, pin, &victim) && victim < 0);
    pin[0] = pin[1] = pin[2] = 1;
    assert_false(expert_policy_admit(p, 3, pin, &victim));
    pin[1] = 0;
    assert_true(expert_policy_admit(p, 3, pin, &victim));
    assert_int_equal(victim, 1);
    assert_int_equal(expert_policy_give(p, pin), 3);
    expert_policy_remove(p, 0);
    expert_policy_remove(p, 0);
    assert_int_equal(expert_policy_count(p), 1);
    expert_policy_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cache_is_that_of_the_vectors),
        cmocka_unit_test(pinned_ones_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
