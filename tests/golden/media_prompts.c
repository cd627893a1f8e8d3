/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media_prompts - prompts with pictures and sounds, of which the vectors are given: against the
 * reference's logits; and the contract of one_arithmetic over random prompts: media_prompts SEED
 * [N] runs N of them.
 */
#include "golden/media.h"

#include "base/mem.h"
#include "base/num.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REL_RMS 6e-6
#define MAX_ABS 2e-4

static const struct {
    const char *name, *file;
    const char *media[4]; /* of p0 .. p3 */
} sets[] = {
    {"vision_31b", "model-BF16.gguf", {"i0", "i1 i0", NULL, NULL}},
    {"vision_e4b", "model-BF16.gguf", {"i0", "i1 i0", "a0", "i1 a1 a0"}},
    {"vision_12b", "model-BF16.gguf", {"i0", "i1 i0", "a0", "i1 a1"}},
    {"vision_31b", "model.safetensors", {"i0", "i1 i0", NULL, NULL}},
    {"vision_e4b", "model.safetensors", {"i0", "i1 i0", "a0", "i1 a1 a0"}},
    {"vision_12b", "model.safetensors", {"i0", "i1 i0", "a0", "i1 a1"}},
    /* heads of 512; its pictures are those that a test adds */
    {NULL, "tests/data/goldens/gemma4_realhd/model-F32.gguf", {NULL}},
};
enum { REAL_HEADS = sizeof sets / sizeof *sets - 1, N_SETS = REAL_HEADS, N_GGUF = 3 };

struct world {
    struct golden_model g;
    struct media media;
    char golden[128];
    uint32_t sparse; /* of every session; 0: all keys are read */
    bool answers;    /* all rows are computed as those of answers */
    int64_t most;    /* tokens of the first prompt; 0: 500 */
};

static void open_world(struct world *w, size_t set, const struct golden_options *o)
{
    char path[128];
    *w = (struct world){.most = 500};
    const char *name = sets[set].name;
    if (name) {
        snprintf(path, sizeof path, "tests/data/vision/%s/%s", name, sets[set].file);
        snprintf(w->golden, sizeof w->golden, "tests/data/vision/%s/golden.safetensors", name);
    } else {
        snprintf(path, sizeof path, "%s", sets[set].file);
    }
    golden_open(&w->g, path, o);
    media_open(&w->media, sets[set].name ? w->golden : NULL, w->g.info.n_embd);
}

static void close_world(struct world *w)
{
    golden_close(&w->g);
    media_close(&w->media);
}

/* ---- the reference ---- */


/* Logits of every row that has them, at its position: f32 [p->n][n_vocab]; zeros elsewhere.  Steps
 * of up to `chunk` tokens (0: as many as fit), or random ones. */
static void finish_prompt(struct world *w, struct session *s, int64_t chunk, uint32_t *rng,
                          float *out)
{
    struct err e;
    const int64_t v = w->g.info.n_vocab;
    while (session_pending(s)) {
        if (rng)
            *rng = *rng * 1664525u + 1013904223u;
        struct session_work work = {.s = s,
                                    .max_tokens = rng ? 1 + (*rng >> 16) % 90 : chunk,
                                    .want = FAMILY_LOGITS_ALL};
        GOLDEN_OK(session_step(w->g.runner, &work, 1, NULL, &e));
        assert_true(work.n_done > 0 && work.n_logits > 0);
        const int64_t end = session_length(s);
        if (session_outside(s, end) == end) /* else it is the last row of a part of a medium */
            memcpy(out + (end - work.n_logits) * v, work.logits,
                   (size_t)(work.n_logits * v) * sizeof *out);
    }
}

static void check_prompt(struct world *w, size_t set, int number)
{
    struct err e;
    struct media_prompt p;
    struct session *s;
    char name[32];
    int64_t n, n_greedy;
    const int64_t v = w->g.info.n_vocab;
    media_prompt(&w->media, w->golden, number, sets[set].media[number], &p);
    GOLDEN_OK(session_create(&s, w->g.runner, &e));
    GOLDEN_OK(session_sync_soft(s, p.token, p.n, p.soft, p.n_soft, NULL, &e));
    float *got = mem_calloc((size_t)(p.n * v), sizeof *got);
    finish_prompt(w, s, 0, NULL, got);
    snprintf(name, sizeof name, "p%d.logits", number);
    float *want = golden_floats(w->golden, name, &n);
    n /= v;
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = p.n - n + i;
        if (session_outside(s, at + 1) != at + 1) /* inside a medium: no logits */
            continue;
        const struct golden_error err = golden_compare(got + at * v, want + i * v, v);
        worst = err.rel_rms > worst ? err.rel_rms : worst;
        assert_true(err.max_abs <= MAX_ABS);
    }
    print_message("%-12s %-18s p%d rel rms %.2e  bound %.2g\n", sets[set].name, sets[set].file,
                  number, worst, REL_RMS);
    assert_true(worst <= REL_RMS);
    snprintf(name, sizeof name, "p%d.greedy", number);
    int32_t *greedy = golden_ints(w->golden, name, &n_greedy);
    const float *last = got + (p.n - 1) * v;
    for (int64_t i = 0; i < n_greedy; i++) {
        const int32_t token = (int32_t)golden_best(last, v);
        assert_int_equal(token, greedy[i]);
        GOLDEN_OK(session_append(s, &token, 1, &e));
        GOLDEN_OK(session_finish(s, &last, NULL, &e));
    }
    mem_free(greedy);
    mem_free(want);
    mem_free(got);
    session_free(s);
}

static void the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct world w;
        open_world(&w, i, &(struct golden_options){.numerics = DEVICE_EXACT});
        for (int p = 0; p < 4; p++)
            if (sets[i].media[p])
                check_prompt(&w, i, p);
        close_world(&w);
    }
}

/* ---- one arithmetic ---- */

static uint32_t draw(uint32_t *rng, uint32_t n)
{
    *rng = *rng * 1664525u + 1013904223u;
    return (*rng >> 10) % n;
}

/* Text, pictures, sounds in any order. */
static void random_prompt(struct media *m, uint32_t *rng, int64_t most, struct media_prompt *p)
{
    *p = (struct media_prompt){.n = 0};
    while (p->n < most / 2) {
        for (int64_t n = 1 + draw(rng, 40); n > 0 && p->n < most; n--)
            p->token[p->n++] = (int32_t)(4 + draw(rng, 500));
        struct media_item *item = &m->item[draw(rng, (uint32_t)m->n)];
        if (item->m.rows && p->n + item->m.n + 8 < most)
            (void)media_put(p, item);
    }
    for (int64_t n = 1 + draw(rng, 5); n > 0; n--)
        p->token[p->n++] = (int32_t)(4 + draw(rng, 500));
}

static void same(const char *what, uint32_t seed, const float *a, const float *b, int64_t n)
{
    if (memcmp(a, b, (size_t)n * sizeof *a))
        fail_msg("seed %u: %s: other bits", seed, what);
}

static void open_session(struct world *w, struct session **s)
{
    struct err e;
    GOLDEN_OK(session_create(s, w->g.runner, &e));
    golden_set_sparse(*s, w->sparse);
}

static float *fresh(struct world *w, const struct media_prompt *p, uint32_t *rng)
{
    struct err e;
    struct session *s;
    float *out = mem_calloc((size_t)(p->n * w->g.info.n_vocab), sizeof *out);
    open_session(w, &s);
    GOLDEN_OK(session_append_soft(s, p->token, p->n, p->soft, p->n_soft, &e));
    session_prompt(s, w->answers ? 0 : p->n);
    finish_prompt(w, s, 0, rng, out);
    session_free(s);
    return out;
}

/* Several prompts at once, each by its own number of tokens a step. */
static void in_a_batch(struct world *w, uint32_t seed, uint32_t *rng, const struct media_prompt *p,
                       float *const *want, int n)
{
    struct err e;
    struct session *s[4];
    const int64_t v = w->g.info.n_vocab;
    for (int i = 0; i < n; i++) {
        open_session(w, &s[i]);
        GOLDEN_OK(session_append_soft(s[i], p[i].token, p[i].n, p[i].soft, p[i].n_soft, &e));
        session_prompt(s[i], w->answers ? 0 : p[i].n);
    }
    for (bool more = true; more;) {
        struct session_work work[4];
        more = false;
        for (int i = 0; i < n; i++)
            work[i] = (struct session_work){
                .s = s[i], .max_tokens = 1 + draw(rng, 60), .want = FAMILY_LOGITS_ALL};
        GOLDEN_OK(session_step(w->g.runner, work, n, NULL, &e));
        for (int i = 0; i < n; i++) {
            const int64_t end = session_length(s[i]), at = end - work[i].n_logits;
            if (work[i].n_done && session_outside(s[i], end) == end)
                same("batch", seed, work[i].logits, want[i] + at * v, work[i].n_logits * v);
            more |= session_pending(s[i]) > 0;
        }
    }
    for (int i = 0; i < n; i++)
        session_free(s[i]);
}

/* The rest of a prompt, whatever the session has: same bits. */
static void goes_on(struct world *w, const char *what, uint32_t seed, uint32_t *rng,
                    struct session *s, const struct media_prompt *p, const float *want)
{
    struct err e;
    const int64_t v = w->g.info.n_vocab;
    struct session_reuse reuse;
    GOLDEN_OK(session_sync_soft(s, p->token, p->n, p->soft, p->n_soft, &reuse, &e));
    if (w->answers)
        session_prompt(s, 0);
    assert_int_equal(session_outside(s, reuse.kept), reuse.kept);
    float *got = mem_calloc((size_t)(p->n * v), sizeof *got);
    const int64_t at = session_length(s);
    finish_prompt(w, s, 0, rng, got);
    same(what, seed, got + at * v, want + at * v, (p->n - at) * v);
    mem_free(got);
}

/* Tokens that are guessed and mostly wrong leave no trace. */
static void guess(struct world *w, uint32_t *rng, struct session *s)
{
    struct err e;
    const int64_t n = 1 + draw(rng, 6), length = session_length(s);
    for (int64_t i = 0; i < n; i++) {
        const int32_t token = (int32_t)(4 + draw(rng, 500));
        GOLDEN_OK(session_append(s, &token, 1, &e));
    }
    struct session_work work = {.s = s, .want = FAMILY_LOGITS_ALL, .guessed = true};
    GOLDEN_OK(session_step(w->g.runner, &work, 1, NULL, &e));
    session_keep(s, length);
}

static void one_seed(struct world *w, uint32_t seed)
{
    struct err e;
    enum { N = 3 };
    uint32_t rng = seed * 2654435761u + 12345;
    struct media_prompt p[N];
    float *want[N];
    struct session *a, *b;
    for (int i = 0; i < N; i++) {
        random_prompt(&w->media, &rng, i ? 300 : w->most, &p[i]);
        want[i] = fresh(w, &p[i], NULL);
    }
    for (int k = 0; k < 2; k++) {
        float *cut = fresh(w, &p[0], &rng);
        same("cut", seed, cut, want[0], p[0].n * w->g.info.n_vocab);
        mem_free(cut);
    }
    in_a_batch(w, seed, &rng, p, want, N);
    open_session(w, &a);
    open_session(w, &b);
    goes_on(w, "first", seed, &rng, a, &p[0], want[0]);
    guess(w, &rng, a);
    GOLDEN_OK(session_fork(b, a, &e));
    for (int k = 0; k < 4; k++) {
        const int64_t to = (int64_t)draw(&rng, (uint32_t)p[0].n);
        GOLDEN_OK(session_rewind(a, to, &e));
        assert_true(session_length(a) + session_pending(a) <= to);
        goes_on(w, "rewound", seed, &rng, a, &p[0], want[0]);
        /* another one's beginning, and back: from the tree, or anew */
        goes_on(w, "another", seed, &rng, a, &p[1 + k % 2], want[1 + k % 2]);
        goes_on(w, "forked", seed, &rng, b, &p[0], want[0]);
        GOLDEN_OK(session_fork(b, a, &e));
        goes_on(w, "restored", seed, &rng, a, &p[0], want[0]);
    }
    session_free(a);
    session_free(b);
    for (int i = 0; i < N; i++)
        mem_free(want[i]);
}

static uint32_t first_seed = 1, n_seeds;

static void any_way_to_compute_it(void **state)
{
    (void)state;
    for (size_t set = 0; set < N_GGUF; set++) {
        struct world w;
        /* a small step, in which pictures do not fit but beside others' rows */
        open_world(&w, set, &(struct golden_options){.numerics = DEVICE_EXACT,
                                                     .codec = KERN_KV_F16,
                                                     .max_rows = 64,
                                                     .media_rows = 150,
                                                     .n_ctx = 640,
                                                     .restore_every = 128,
                                                     .tree_bytes = 8 << 20});
        (void)media_add(&w.media, 150, w.g.info.n_embd, 7, false);
        (void)media_add(&w.media, 1, w.g.info.n_embd, 8, true);
        const uint32_t some = (uint32_t)(GOLDEN_CARD              ? 1
                                         : UNIT_TSAN || UNIT_ASAN ? 2
                                                                  : unit_some(12, 60));
        for (uint32_t i = 0; i < (n_seeds ? n_seeds : some); i++)
            one_seed(&w, first_seed + i);
        close_world(&w);
    }
}

/* Coded keys and values; prompts and answers that read a part, and media whole. */
static void other_ways_to_keep_and_read(void **state)
{
    (void)state;
    static const struct {
        const char *kv;
        size_t set;
        int sparse, part; /* bits of eps; of pages, of answers; 0: all is read */
    } way[] = {{"full=q8_0,sliding=f16", 0, 0, 0},
               {"q8r", 1, 0, 0},
               {"n4r", 2, 0, 0},
               {"q8r:n4r", 0, 0, 0},
               {"f16v", 2, 0, 0},
               {"tq3_0", REAL_HEADS, 0, 0},
               {"q8r:n4r+rot", REAL_HEADS, 0, 0},
               {"f16", 0, 2, 0},
               {"q8r", 2, 1, 0},
               {"f16", 1, 3, 0},
               {"tq3_0", REAL_HEADS, 2, 0},
               {"f16", 2, 0, 8},
               {"q8r", 0, 0, 4},
               {"f16v", 0, 0, 4},
               {"tq3_0", REAL_HEADS, 0, 8}};
    const size_t step = UNIT_TSAN || UNIT_ASAN || GOLDEN_CARD ? 4 : (size_t)unit_some(2, 1);
    for (size_t i = 0; i < sizeof way / sizeof *way; i += step) {
        struct world w;
        const bool part = way[i].sparse || way[i].part;
        struct golden_options o = {.numerics = DEVICE_EXACT,
                                   .kv = way[i].kv,
                                   .max_rows = 64,
                                   .media_rows = 150,
                                   .n_ctx = part ? 1600 : 640,
                                   .restore_every = 128,
                                   .tree_bytes = 8 << 20};
        if (way[i].part)
            o.select = (struct kern_select){way[i].part, KERN_SELECT_ALWAYS};
        open_world(&w, way[i].set, &o);
        w.most = part ? 1500 : 500;
        w.sparse = way[i].sparse ? kv_sparse_of(way[i].sparse, 0) : 0;
        w.answers = way[i].part > 0;
        (void)media_add(&w.media, 150, w.g.info.n_embd, 7, false);
        (void)media_add(&w.media, 20, w.g.info.n_embd, 8, false);
        one_seed(&w, 100 + (uint32_t)i);
        close_world(&w);
    }
}

/* Text and the picture in turns: each page has a part of one, but those from token `from` to
 * `to`. */
static void pages_of_media(struct media_item *item, int64_t from, int64_t to,
                           struct media_prompt *p)
{
    uint32_t rng = 3;
    *p = (struct media_prompt){.n = 0};
    while (p->n < 1000) {
        const int64_t most = p->n + 60 > from && p->n < to ? to - p->n : 60;
        for (int64_t n = most; n > 0; n--)
            p->token[p->n++] = (int32_t)(4 + draw(&rng, 500));
        (void)media_put(p, item);
    }
}

/* What is read of a prompt: all where each page has media, and then answers have the bits of those
 * that read all; the pages without media are not read whole. */
static void media_are_read_whole(void **state)
{
    (void)state;
    struct world w;
    struct media_prompt p;
    const struct kern_select part = {.part = 16, .least = KERN_SELECT_ALWAYS};
    const struct golden_options o = {.numerics = DEVICE_EXACT, .n_ctx = 1600, .select = part};
    open_world(&w, 0, &o);
    if (session_way_refuses(w.g.runner, KV_WAY_SPARSE))
        skip(); /* this processor reads all */
    const struct media_item *item = media_add(&w.media, 40, w.g.info.n_embd, 7, false);
    float *all[2] = {NULL};
    for (int text = 0; text < 2; text++)
        for (int answers = 0; answers < 3; answers++) { /* 2: that read all */
            struct session *s;
            struct err e;
            pages_of_media((struct media_item *)(uintptr_t)item, text ? 300 : INT64_MAX,
                           text ? 700 : 0, &p);
            GOLDEN_OK(session_create(&s, w.g.runner, &e));
            golden_set_sparse(s, answers ? 0 : kv_sparse_of(1, 0));
            golden_set_select(s, answers == 2 ? &(struct kern_select){.part = 1, .least = 16}
                                              : &part);
            GOLDEN_OK(session_append_soft(s, p.token, p.n, p.soft, p.n_soft, &e));
            session_prompt(s, answers ? 0 : p.n);
            float *out = mem_calloc((size_t)(p.n * w.g.info.n_vocab), sizeof *out);
            finish_prompt(&w, s, 0, NULL, out);
            const struct session_seen seen = session_take_seen(s);
            if (!answers) {
                assert_true(seen.sparse.rows > 0);
                assert_true(text ? seen.sparse.kept < seen.sparse.seen
                                 : seen.sparse.kept == seen.sparse.seen);
            } else if (answers == 1) {
                assert_true(text ? seen.select.pages_read < seen.select.pages_seen
                                 : seen.select.pages_read == seen.select.pages_seen);
            }
            if (answers) {
                all[answers - 1] = out;
            } else {
                mem_free(out);
            }
            if (answers == 2) {
                const size_t bytes = (size_t)(p.n * w.g.info.n_vocab) * sizeof *out;
                assert_true((memcmp(all[0], all[1], bytes) != 0) == (text != 0));
                mem_free(all[0]);
                mem_free(all[1]);
            }
            session_free(s);
        }
    close_world(&w);
}

/* Other threads, kernels and kinds of keys and values: the same within each kind. */
static void any_threads_and_kernels(void **state)
{
    (void)state;
    static const char *const kinds[] = {"f16", "f32", "bf16"};
    static const struct { const char *level; int threads; } ways[] = {
        {"ref", 2}, {"avx2", 1}, {"avx512", 3}, {NULL, 5}};
    for (size_t set = 0; set < N_GGUF; set += 2)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            float *want = NULL;
            for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
                struct world w;
                uint32_t mask = UINT32_MAX, rng = 5;
                struct media_prompt p;
                if (ways[i].level)
                    assert_true(cpu_level(ways[i].level, &mask));
                open_world(&w, set, &(struct golden_options){.numerics = DEVICE_EXACT,
                                                             .kv = kinds[k],
                                                             .n_threads = ways[i].threads,
                                                             .cpu = mask | UINT32_C(1) << 31});
                random_prompt(&w.media, &rng, 260, &p);
                float *got = fresh(&w, &p, i ? &rng : NULL);
                if (want)
                    same(kinds[k], (uint32_t)i, got, want, p.n * w.g.info.n_vocab);
                else
                    want = got;
                if (want != got)
                    mem_free(got);
                close_world(&w);
            }
            mem_free(want);
        }
}

/* ---- names ---- */

/* What routers are told: tokens of the vocabulary, and hashes of what stands there. */
struct watched { int64_t n; uint32_t hash[3]; int n_hashes; };

static uint64_t see_put(void *arg, bool disk, struct kv_scope scope, const int32_t *tokens,
                        const uint32_t *media, int64_t n)
{
    struct watched *w = arg;
    (void)disk;
    (void)scope;
    for (int64_t i = 0; i < n; i++)
        assert_true(tokens[i] >= 0 && (!media || (media[i] != 0) == (i >= 21 && i < 51)));
    if (media && w->n_hashes < 3)
        w->hash[w->n_hashes++] = media[30];
    return (uint64_t)++w->n;
}

static void see_drop(void *arg, bool disk, uint64_t name)
{
    (void)arg;
    (void)disk;
    (void)name;
}

/* Vectors of two pictures may be equal as far as anybody looks: names decide. */
static void names_decide(void **state)
{
    (void)state;
    struct err e;
    struct world w;
    struct media_prompt p;
    struct session *s;
    struct session_reuse reuse;
    open_world(&w, 0, &(struct golden_options){.tree_bytes = 8 << 20});
    struct watched seen = {0};
    const struct kv_watch watch = {.put = see_put, .drop = see_drop, .arg = &seen};
    session_runner_watch(w.g.runner, &watch);
    struct media_item *x = media_add(&w.media, 30, w.g.info.n_embd, 7, false),
                      *y = media_add(&w.media, 30, w.g.info.n_embd, 7, false),
                      *z = media_add(&w.media, 30, w.g.info.n_embd, 7, false);
    y->m.id[KV_MEDIUM_ID - 1] ^= 1; /* one bit of 256 */
    memcpy(z->m.id, x->m.id, sizeof z->m.id);
    p = (struct media_prompt){.n = 0};
    for (int i = 0; i < 20; i++)
        p.token[p.n++] = 10 + i;
    (void)media_put(&p, x);
    for (int i = 0; i < 20; i++)
        p.token[p.n++] = 40 + i;
    for (int way = 0; way < 2; way++) { /* of the session itself; of the tree */
        GOLDEN_OK(session_create(&s, w.g.runner, &e));
        for (int k = 0; k < 4; k++) {
            const float *last;
            struct media_prompt q = p;
            q.soft[0].medium = k == 1 ? &y->m : k == 3 ? &z->m : &x->m;
            if (way) {
                session_free(s);
                GOLDEN_OK(session_create(&s, w.g.runner, &e));
            }
            GOLDEN_OK(session_sync_soft(s, q.token, q.n, q.soft, 1, &reuse, &e));
            const bool known = way || k > 1;
            assert_int_equal(reuse.matched, known ? p.n : k ? 21 : 0);
            if (way)
                assert_int_equal(reuse.kept, p.n - 1);
            /* as text alone, placeholders are tokens like others */
            GOLDEN_OK(session_finish(s, &last, NULL, &e));
        }
        if (!way) {
            GOLDEN_OK(session_sync(s, p.token, p.n, &reuse, &e));
            assert_int_equal(reuse.matched, 21);
        }
        session_free(s);
    }
    assert_true(seen.n > 0 && seen.n_hashes >= 2 && seen.hash[0] != seen.hash[1]);
    close_world(&w);
}

/* A medium of which only the name is known cannot be computed again; what was computed stays. */
static void without_vectors(void **state)
{
    (void)state;
    struct err e;
    struct world w;
    struct media_prompt p;
    struct session *s;
    const float *last, *rows;
    open_world(&w, 1, &(struct golden_options){.tree_bytes = 8 << 20});
    media_prompt(&w.media, w.golden, 0, "i0", &p);
    GOLDEN_OK(session_create(&s, w.g.runner, &e));
    GOLDEN_OK(session_sync_soft(s, p.token, p.n, p.soft, p.n_soft, NULL, &e));
    rows = p.soft[0].medium->rows;
    p.soft[0].medium->rows = NULL;
    assert_ptr_equal(session_lacks(s, -1), p.soft[0].medium);
    assert_int_equal(session_finish(s, &last, NULL, &e), INGLE_NOTFOUND);
    print_message("%s\n", e.msg);
    assert_non_null(strstr(e.msg, "picture at tokens "));
    p.soft[0].medium->rows = rows;
    GOLDEN_OK(session_finish(s, &last, NULL, &e));
    p.soft[0].medium->rows = NULL;
    const int32_t more = 77;
    GOLDEN_OK(session_append(s, &more, 1, &e));
    GOLDEN_OK(session_finish(s, &last, NULL, &e));
    p.soft[0].medium->rows = rows;
    session_free(s);
    close_world(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference),           cmocka_unit_test(any_way_to_compute_it),
        cmocka_unit_test(any_threads_and_kernels), cmocka_unit_test(names_decide),
        cmocka_unit_test(without_vectors),         cmocka_unit_test(other_ways_to_keep_and_read),
        cmocka_unit_test(media_are_read_whole),
    };
    if (argc > 1)
        first_seed = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        n_seeds = (uint32_t)strtoul(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
