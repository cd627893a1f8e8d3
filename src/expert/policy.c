/* SPDX-License-Identifier: Apache-2.0 */
/* policy - keys, and a heap of the residents with the least key on top. */
#include "expert/policy.h"

#include "base/bug.h"
#include "base/mem.h"
#include <math.h>

struct expert_policy {
    int64_t n, capacity, most, count;
    double *key;   /* [n] */
    int64_t *heap; /* [capacity]: experts */
    int64_t *at;   /* [n]: in the heap; -1: not resident */
};

ingle_status expert_policy_create(struct expert_policy **out, int64_t n, int64_t capacity,
                                  struct err *err)
{
    struct expert_policy *p = mem_zalloc(sizeof *p);
    if (p) {
        *p = (struct expert_policy){.n = n, .capacity = capacity, .most = capacity};
        p->key = mem_calloc((size_t)n, sizeof *p->key);
        p->at = mem_calloc((size_t)n, sizeof *p->at);
        p->heap = mem_calloc((size_t)capacity + 1, sizeof *p->heap);
    }
    if (!p || !p->key || !p->at || !p->heap) {
        expert_policy_free(p);
        return err_set(err, INGLE_NOMEM, "no memory for the keys of %lld experts", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        p->key[i] = (double)-INFINITY;
        p->at[i] = -1;
    }
    *out = p;
    return INGLE_OK;
}

void expert_policy_free(struct expert_policy *p)
{
    if (!p)
        return;
    mem_free(p->key);
    mem_free(p->at);
    mem_free(p->heap);
    mem_free(p);
}

/* Ties: the lower expert goes first. */
static bool is_less(const struct expert_policy *p, int64_t a, int64_t b)
{
    return p->key[a] < p->key[b] || (!(p->key[b] < p->key[a]) && a < b);
}

static void put(struct expert_policy *p, int64_t place, int64_t i)
{
    p->heap[place] = i;
    p->at[i] = place;
}

static void sift_up(struct expert_policy *p, int64_t place)
{
    const int64_t i = p->heap[place];
    for (; place > 0 && is_less(p, i, p->heap[(place - 1) / 2]); place = (place - 1) / 2)
        put(p, place, p->heap[(place - 1) / 2]);
    put(p, place, i);
}

static void sift_down(struct expert_policy *p, int64_t place)
{
    const int64_t i = p->heap[place];
    for (int64_t child; (child = 2 * place + 1) < p->count; place = child) {
        child += child + 1 < p->count && is_less(p, p->heap[child + 1], p->heap[child]);
        if (!is_less(p, p->heap[child], i))
            break;
        put(p, place, p->heap[child]);
    }
    put(p, place, i);
}

void expert_policy_use(struct expert_policy *p, int64_t i, double t)
{
    enum { NOTHING = 60 }; /* in log2: less than a double's last bit */
    const double now = t / POLICY_HALF_LIFE, x = p->key[i];
    const double a = x > now ? x : now, b = x > now ? now : x;
    p->key[i] = a - b > NOTHING ? a : a + log2(1 + exp2(b - a));
    if (p->at[i] >= 0)
        sift_down(p, p->at[i]);
}

double expert_policy_key(const struct expert_policy *p, int64_t i)
{
    return p->key[i];
}

void expert_policy_seed(struct expert_policy *p, int64_t i, double key)
{
    if (p->at[i] < 0)
        p->key[i] = key;
}

bool expert_policy_is_in(const struct expert_policy *p, int64_t i)
{
    return p->at[i] >= 0;
}

int64_t expert_policy_count(const struct expert_policy *p)
{
    return p->count;
}

/* The least one without a pin at or below a place, if it is less than best.  Below one without a
 * pin none is less. */
static int64_t least(const struct expert_policy *p, const uint16_t *pins, int64_t place,
                     int64_t best)
{
    if (place >= p->count || (best >= 0 && is_less(p, best, p->heap[place])))
        return best;
    if (!pins[p->heap[place]])
        return p->heap[place];
    best = least(p, pins, 2 * place + 1, best);
    return least(p, pins, 2 * place + 2, best);
}

bool expert_policy_admit(struct expert_policy *p, int64_t i, const uint16_t *pins, int64_t *victim)
{
    BUG_IF(p->at[i] >= 0);
    *victim = -1;
    if (p->count >= p->most) {
        const int64_t worst = least(p, pins, 0, -1);
        if (worst < 0 || p->key[i] < p->key[worst])
            return false;
        expert_policy_remove(p, worst);
        *victim = worst;
    }
    p->heap[p->count] = i;
    sift_up(p, p->count++);
    return true;
}

void expert_policy_limit(struct expert_policy *p, int64_t most)
{
    p->most = most < 0 ? 0 : most > p->capacity ? p->capacity : most;
}

int64_t expert_policy_give(struct expert_policy *p, const uint16_t *pins)
{
    const int64_t worst = least(p, pins, 0, -1);
    if (worst >= 0)
        expert_policy_remove(p, worst);
    return worst;
}

void expert_policy_remove(struct expert_policy *p, int64_t i)
{
    const int64_t place = p->at[i];
    if (place < 0)
        return;
    p->at[i] = -1;
    const int64_t last = p->heap[--p->count];
    if (place == p->count)
        return;
    put(p, place, last);
    sift_up(p, place);
    sift_down(p, p->at[last]);
}
