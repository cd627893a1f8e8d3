/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of experts beyond memory: given back and taken again, on a device that has its own;
 * and what a profile of an earlier run brings. */
#define _GNU_SOURCE
#include "unit/expert_world.h"

#include "base/clock.h"
#include "device/cpu.h"

#include <sys/mman.h>

/* ---- memory ---- */

/* Bytes of all slots that are in memory, as the system tells. */
static uint64_t resident_bytes(const struct expert_store *s)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t n = 0;
    for (int k = 0; k < s->n_classes; k++) {
        const struct store_class *c = &s->class[k];
        const size_t n_pages = ((size_t)c->n_slots * c->bytes + page - 1) / page;
        unsigned char *in = mem_alloc(n_pages);
        assert_int_equal(mincore(c->memory, n_pages * page, in), 0);
        for (size_t i = 0; i < n_pages; i++)
            n += in[i] & 1 ? page : 0;
        mem_free(in);
    }
    return n;
}

static bool is_short(void *arg, char *why, size_t n)
{
    snprintf(why, n, "a test");
    return *(bool *)arg;
}

static void memory_is_given_back_and_taken_again(void **state)
{
    (void)state;
    uint64_t all, now = clock_now() + EXPERT_QUIET_NS;
    const char *model = models[3];
    (void)least_of(model, &all);
    const uint64_t plain = in_memory(model);
    struct world w;
    struct ingle_experts full, x;
    bool pressed = false;
    open_world(&w, model, all - 1, true);
    reopen(&w, &(struct expert_store_options){.budget_bytes = all - 1,
                                              .n_used = 2,
                                              .is_short = is_short,
                                              .short_arg = &pressed,
                                              .sink = &w.e->sink});
    assert_true(compute(&w) == plain);
    expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
    assert_true(ingle_engine_experts(w.e, &full) && full.memory_bytes < all);
    assert_true(resident_bytes(w.e->experts) <= full.memory_bytes);
    pressed = true;
    uint64_t last = full.memory_bytes;
    for (int i = 0; i < 8; i++) {
        expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
        assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes <= last &&
                    (i > 3 || x.memory_bytes < last));
        assert_true(resident_bytes(w.e->experts) <= x.memory_bytes && x.resident <= x.slots);
        last = x.memory_bytes;
        assert_true(compute(&w) == plain);
        assert_true(resident_bytes(w.e->experts) <= x.memory_bytes);
    }
    assert_true(2 * x.slots >= full.slots); /* at most half */
    assert_non_null(strstr(said, "given back"));
    pressed = false;
    expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
    /* not before it is quiet */
    assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes == last);
    now += EXPERT_QUIET_NS;
    for (int i = 0; i < 8; i++)
        expert_store_tend(w.e->experts, now += EXPERT_LOOK_NS);
    assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes == full.memory_bytes &&
                x.slots == full.slots);
    assert_non_null(strstr(said, "taken again"));
    assert_true(compute(&w) == plain && compute(&w) == plain);
    assert_true(resident_bytes(w.e->experts) <= x.memory_bytes);
    close_world(&w);
}

/* ---- a device with memory of its own ---- */

enum { AREAS = 16 };
/* It computes as the processor does, and its memory can be touched within its own functions
 * only. */
struct pretend {
    struct device_ops ops; /* first: a device has its address */
    struct device_own_ops own;
    uint64_t bytes;
    struct { uint8_t *at; size_t n; } area[AREAS];
    uint64_t computed, puts, gets; /* of matrices there: products; moves */
};

static struct pretend *pretend_of(const struct device *d)
{
    return (struct pretend *)(uintptr_t)d->ops;
}

static void protect(const struct pretend *p, int how)
{
    for (int i = 0; i < AREAS; i++)
        if (p->area[i].at)
            assert_int_equal(mprotect(p->area[i].at, p->area[i].n, how), 0);
}

static uint64_t pretend_bytes(const struct device *d)
{
    return pretend_of(d)->bytes;
}

static void *pretend_take(struct device *d, size_t n)
{
    struct pretend *p = pretend_of(d);
    int i = 0;
    while (p->area[i].at)
        i++;
    p->area[i].n = n;
    p->area[i].at = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p->area[i].at != MAP_FAILED);
    return p->area[i].at;
}

static void pretend_give(struct device *d, void *own, size_t n)
{
    struct pretend *p = pretend_of(d);
    int i = 0;
    while (p->area[i].at != own)
        i++;
    assert_int_equal(p->area[i].n, n);
    assert_int_equal(munmap(own, n), 0);
    p->area[i].at = NULL;
}

static void pretend_put(struct device *d, void *own, const void *host, size_t n)
{
    struct pretend *p = pretend_of(d);
    protect(p, PROT_READ | PROT_WRITE);
    memcpy(own, host, n);
    protect(p, PROT_NONE);
    p->puts++;
}

static void pretend_get(struct device *d, void *host, const void *own, size_t n)
{
    struct pretend *p = pretend_of(d);
    protect(p, PROT_READ);
    memcpy(host, own, n);
    protect(p, PROT_NONE);
    p->gets++;
}

/* Places of what lies in the device's memory are shown to the kernels, or hidden. */
static uint64_t show_own(const struct device_matrix *m, const struct device_mlp *a, bool show)
{
    uint64_t n = 0;
    for (int64_t i = 0; m && m->own && i < m->n_stack; i++)
        if (m->own[i]) {
            m->each[i] = show ? m->own[i] : NULL;
            n += (!a->only || a->only[i]) && a->first[i + 1] > a->first[i];
        }
    return n;
}

static void pretend_mlp(struct device *d, const void *args, void *scratch)
{
    struct pretend *p = pretend_of(d);
    const struct device_mlp *a = ((const struct device_mlp_args *)args)->m;
    protect(p, PROT_READ);
    p->computed += show_own(a->down, a, true);
    (void)show_own(a->gate, a, true);
    (void)show_own(a->up, a, true);
    device_cpu_mlp(d, args, scratch);
    (void)show_own(a->down, a, false);
    (void)show_own(a->gate, a, false);
    (void)show_own(a->up, a, false);
    protect(p, PROT_NONE);
}

static void pretend(struct world *w, struct pretend *p, uint64_t bytes)
{
    *p = (struct pretend){
        .ops = *w->e->device->ops,
        .bytes = bytes,
        .own = {pretend_bytes, pretend_take, pretend_give, pretend_put, pretend_get, NULL}};
    p->ops.own = &p->own;
    p->ops.run[DEVICE_OP_mlp] = pretend_mlp;
    w->e->device->ops = &p->ops;
}

/* Each expert is in one place, and the second set of slots holds the most used ones. */
static void check_own(struct expert_store *s)
{
    for (int k = 0; k < s->n_classes; k++) {
        const struct store_class *c = &s->class[k];
        int n = 0;
        for (int64_t i = 0; i < c->n_experts; i++) {
            assert_true(!expert_own_has(c, i) ||
                        (c->slot_of[i] < 0 && !expert_policy_is_in(c->policy, i)));
            n += expert_own_has(c, i);
        }
        assert_true(n == c->n_own_in && (!c->n_own || n < c->n_own));
    }
}

static void a_device_with_memory_of_its_own_has_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i += 3) { /* one of each family */
        uint64_t all;
        const uint64_t least = least_of(models[i], &all), plain = in_memory(models[i]),
                       budget = least + (all - least) / 4;
        uint64_t misses[2];
        for (int k = 0; k < 4; k++) {
            struct world w;
            struct pretend p;
            struct hook h;
            struct ingle_experts x;
            open_world(&w, models[i], budget, true);
            const struct device_ops *const cpu = w.e->device->ops;
            open_hook(&h, k > 1 ? LATE : FAIR);
            pretend(&w, &p, k ? all / 3 : 0);
            reopen(&w, &(struct expert_store_options){.budget_bytes = budget,
                                                      .n_used = 2,
                                                      .hook = &h.f,
                                                      .early = k > 1 ? -1 : 0,
                                                      .shake = k == 3 ? 99 : 0});
            for (int n = 0; n < 7; n++) {
                assert_true(compute(&w) == plain);
                check_own(w.e->experts);
            }
            assert_true(ingle_engine_experts(w.e, &x) && x.memory_bytes <= budget &&
                        x.hits + x.misses == x.choices);
            if (k < 2)
                misses[k] = x.misses;
            assert_true((p.computed > 0) == (k > 0) && (p.puts > 0) == (k > 0) &&
                        p.puts == w.e->experts->own_moves);
            assert_true(k < 3 || p.gets > 0);
            expert_store_close(w.e->experts);
            w.e->experts = NULL;
            for (int n = 0; n < AREAS; n++)
                assert_null(p.area[n].at);
            w.e->device->ops = cpu;
            close_world(&w);
            close(h.gate);
        }
        assert_true(misses[1] < misses[0]);
    }
}

/* ---- profiles ---- */

static uint64_t misses_of_first_prompt(struct world *w, const struct expert_store_options *o,
                                       uint64_t plain)
{
    struct ingle_experts x;
    reopen(w, o);
    assert_true(compute(w) == plain);
    assert_true(ingle_engine_experts(w->e, &x));
    return x.misses;
}

static void a_profile_lives_from_run_to_run(void **state)
{
    (void)state;
    char profile[96];
    uint64_t all;
    const char *model = models[3];
    const uint64_t least = least_of(model, &all), plain = in_memory(model);
    struct world w;
    struct stat st;
    snprintf(profile, sizeof profile, "%s.profile", dir);
    open_world(&w, model, least + (all - least) / 2, true);
    struct expert_store_options o = {.budget_bytes = least + (all - least) / 2,
                                     .n_used = 2,
                                     .profile = profile,
                                     .identity = 7,
                                     .sink = &w.e->sink};
    const uint64_t first = misses_of_first_prompt(&w, &o, plain),
                   again = misses_of_first_prompt(&w, &o, plain);
    assert_true(again < first);
    assert_null(strstr(said, "profile"));
    assert_int_equal(stat(profile, &st), 0);
    o.identity = 8;
    assert_true(misses_of_first_prompt(&w, &o, plain) == first);
    assert_non_null(strstr(said, "it is of another model"));
    expert_store_close(w.e->experts); /* which leaves that of 7 */
    w.e->experts = NULL;
    o.identity = 7;
    flip(profile, st.st_size - 2);
    said[0] = 0;
    assert_true(misses_of_first_prompt(&w, &o, plain) == first);
    assert_non_null(strstr(said, "its checksum is wrong"));
    o.profile = NULL;
    reopen(&w, &o);
    assert_int_equal(truncate(profile, 30), 0);
    o.profile = profile, said[0] = 0;
    assert_true(misses_of_first_prompt(&w, &o, plain) == first);
    assert_non_null(strstr(said, "it is no profile"));
    close_world(&w);
    assert_int_equal(unlink(profile), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(memory_is_given_back_and_taken_again),
        cmocka_unit_test_setup_teardown(a_device_with_memory_of_its_own_has_the_same_bits, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_profile_lives_from_run_to_run, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
