/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek4_mtp - the draft block of DeepSeek V4 in its three spellings: its logits over all
 * slots, its own streams, and the drafts that follow from them, against the reference.
 */
#include "golden/golden.h"

#include "base/json.h"
#include "base/mem.h"
#include "unit/xz.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define REL_RMS 4e-6
#define MAX_ABS 2e-4

enum { CTX = 1024 };

/* A directory with case `name`: in the clone, or where a full set of goldens lies. */
static bool find(char out[200], const char *kind, const char *name)
{
    static const char *const roots[] = {"tests/data", "../shared", "../../shared"};
    struct stat st;
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        snprintf(out, 200, "%s/%s/%s", roots[i], kind, name);
        if (!stat(out, &st))
            return true;
    }
    print_message("not in this clone: %s\n", name);
    return false;
}

/* ---- a draft block at work ---- */

struct drafting {
    const struct family_mtp *draft;
    void *self;
    struct device *device;
    struct kv_spec spec;
    struct kv_pool *pool;
    int64_t n_vocab, width;
    float *in, *out, *logits; /* [CTX] rows of width, width, n_vocab */
};

static void forward(struct drafting *d, const struct family_step *step, int64_t n)
{
    const struct family_forward f = {.device = d->device, .step = step, .kv = &d->spec, .n_ctx = CTX,
                                     .logits = {d->logits, step->n_logits, d->n_vocab, d->n_vocab}};
    d->draft->forward(d->self, &f, (struct rows){d->in, n, d->width, d->width},
                      (struct rows){d->out, n, d->width, d->width});
}

static void start(struct drafting *d, struct golden_model *g)
{
    struct err e;
    const struct family_mtp *draft = g->family->mtp;
    *d = (struct drafting){.draft = draft, .self = g->draft, .device = g->device, .n_vocab = g->info.n_vocab,
                           .width = draft->width(g->draft)};
    GOLDEN_OK(draft->kv(d->self, KERN_KV_F32, &d->spec, &e));
    GOLDEN_OK(kv_pool_create(&d->pool, &d->spec, (uint64_t)1 << 28, NULL, &e));
    d->in = mem_calloc((size_t)(CTX * d->width), sizeof *d->in);
    d->out = mem_calloc((size_t)(CTX * d->width), sizeof *d->out);
    d->logits = mem_calloc((size_t)(CTX * d->n_vocab), sizeof *d->logits);
    const struct family_span all = {.n = CTX};
    const struct family_step dry = {&all, 1, CTX, CTX};
    device_dry_begin(d->device);
    forward(d, &dry, CTX);
    GOLDEN_OK(device_arena_reserve(d->device, device_dry_end(d->device) + 4096, &e));
}

static void stop(struct drafting *d)
{
    kv_pool_free(d->pool);
    kv_spec_release(&d->spec);
    mem_free(d->in);
    mem_free(d->out);
    mem_free(d->logits);
}

/* n slots behind what the timeline has: d->in and tokens to d->out and d->logits. */
static void slots(struct drafting *d, struct kv_timeline *t, const int32_t *tokens, int64_t n)
{
    struct err e;
    const struct family_span span = {t, tokens, n, kv_timeline_length(t), FAMILY_LOGITS_ALL, false};
    const struct family_step step = {&span, 1, n, n};
    GOLDEN_OK(kv_timeline_extend(t, n, &e));
    device_begin(d->device, NULL);
    forward(d, &step, n);
    GOLDEN_OK(device_status(d->device, &e));
    kv_timeline_commit(t, n);
}

/* ---- the target's streams ---- */

struct streams { float *at; int64_t width, last, row; };

static void keep(void *arg, enum family_tap tap, int layer, struct rows x)
{
    struct streams *s = arg;
    for (int64_t i = 0; tap == FAMILY_TAP_LAYER && layer == s->last && i < x.n; i++)
        memcpy(s->at + (s->row + i) * s->width, x.at + i * x.stride, (size_t)s->width * sizeof *s->at);
}

static void run_target(struct golden_model *g, const int32_t *tokens, int64_t n, float *streams, int64_t width)
{
    struct err e;
    struct session *s;
    struct streams kept = {streams, width, g->info.n_layers - 1, 0};
    GOLDEN_OK(session_create(&s, g->runner, &e));
    GOLDEN_OK(session_append(s, tokens, n, &e));
    session_runner_set_tap(g->runner, keep, &kept);
    while (kept.row < n) {
        struct session_work w = {.s = s};
        GOLDEN_OK(session_step(g->runner, &w, 1, NULL, &e));
        kept.row += w.n_done;
    }
    session_runner_set_tap(g->runner, NULL, NULL);
    session_free(s);
}

static void hold(const char *what, const float *got, const float *want, int64_t n, double bound)
{
    const struct golden_error e = golden_compare(got, want, n);
    print_message("%-16s rel rms %.2e  max abs %.2e  bound %.0e\n", what, e.rel_rms, e.max_abs, bound);
    assert_true(e.rel_rms <= bound && e.max_abs <= MAX_ABS);
}

/* ---- random weights, every logit ---- */

static void check_full(struct drafting *d, struct golden_model *g, const char *ref)
{
    struct err e;
    struct kv_timeline *t;
    int64_t n, n_tokens, n_pos, k;
    int32_t *ids = golden_ints(ref, "input_ids", &n), *tokens = golden_ints(ref, "mtp.tokens", &n_tokens);
    int32_t *pos = golden_ints(ref, "mtp.positions", &n_pos), *best = golden_ints(ref, "mtp.argmax", &k);
    float *want = golden_floats(ref, "mtp.logits", &k), *last = golden_floats(ref, "mtp.streams_last", &k);
    assert_int_equal(n, n_tokens);
    run_target(g, ids, n, d->in, d->width);
    GOLDEN_OK(kv_timeline_create(&t, d->pool, CTX, &e));
    slots(d, t, tokens, n);
    float *got = mem_calloc((size_t)(n_pos * d->n_vocab), sizeof *got);
    for (int64_t i = 0; i < n_pos; i++)
        memcpy(got + i * d->n_vocab, d->logits + pos[i] * d->n_vocab, (size_t)d->n_vocab * sizeof *got);
    hold("logits", got, want, n_pos * d->n_vocab, REL_RMS);
    hold("own streams", d->out + (n * d->width - k), last, k, REL_RMS);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(golden_best(d->logits + i * d->n_vocab, d->n_vocab), best[i]);
    /* The second draft: the block's own streams, with its first draft. */
    int32_t *draft1 = golden_ints(ref, "mtp.draft1", &k), *draft2 = golden_ints(ref, "mtp.draft2", &k);
    float *step2 = golden_floats(ref, "mtp.logits_step2", &k);
    assert_int_equal(best[n - 1], draft1[0]);
    memcpy(d->in, d->out + (n - 1) * d->width, (size_t)d->width * sizeof *d->in);
    slots(d, t, draft1, 1);
    /* One row, whose input has the rounding of the block already: twice through it. */
    hold("second step", d->logits, step2, d->n_vocab, 2 * REL_RMS);
    assert_int_equal(golden_best(d->logits, d->n_vocab), draft2[0]);
    kv_timeline_free(t);
    void *const all[] = {ids, tokens, pos, best, want, last, got, draft1, draft2, step2};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

static void checkpoint(void **state)
{
    (void)state;
    char dir[200], file[200], ref[200];
    struct golden_model g;
    struct drafting d;
    if (!find(file, "goldens", "deepseek_v4_full/model.safetensors") ||
        !find(ref, "goldens", "deepseek_v4_full/golden.safetensors"))
        return;
    snprintf(dir, sizeof dir, "%.*s", (int)(strlen(file) - strlen("/model.safetensors")), file);
    golden_open(&g, dir, &(struct golden_options){.n_ctx = CTX, .max_rows = CTX, .draft = true});
    start(&d, &g);
    check_full(&d, &g, ref);
    stop(&d);
    golden_close(&g);
}

/* ---- trained weights: drafts and best logits, from all files ---- */

static struct json_object *member(struct json_object *o, const char *key)
{
    struct json_object *v;
    if (!json_object_object_get_ex(o, key, &v))
        fail_msg("golden.json has no '%s'", key);
    return v;
}

static int64_t ids_of(struct json_object *list, int32_t *out)
{
    const int64_t n = (int64_t)json_object_array_length(list);
    for (int64_t i = 0; i < n; i++)
        out[i] = json_object_get_int(json_object_array_get_idx(list, (size_t)i));
    return n;
}

struct score { double max; int64_t right, all; };

/* One golden slot: all slots up to it on a fresh timeline, then the block on its own streams. */
static void check_row(struct drafting *d, const float *streams, const int32_t *tokens, struct json_object *row,
                      struct score *score)
{
    struct err e;
    struct kv_timeline *t;
    struct json_object *best = member(row, "first_logits_top4"), *drafts = member(row, "drafts");
    const int64_t slot = json_object_get_int64(member(row, "slot"));
    GOLDEN_OK(kv_timeline_create(&t, d->pool, CTX, &e));
    memcpy(d->in, streams, (size_t)((slot + 1) * d->width) * sizeof *d->in);
    slots(d, t, tokens + 1, slot + 1);
    const float *logits = d->logits + slot * d->n_vocab, *out = d->out + slot * d->width;
    for (size_t i = 0; i < json_object_array_length(best); i++) {
        struct json_object *pair = json_object_array_get_idx(best, i);
        const double want = json_object_get_double(json_object_array_get_idx(pair, 1));
        const double is = (double)logits[json_object_get_int(json_object_array_get_idx(pair, 0))];
        score->max = fmax(score->max, fabs(is - want));
    }
    for (size_t i = 0; i < json_object_array_length(drafts); i++) {
        const int32_t want = json_object_get_int(json_object_array_get_idx(drafts, i));
        score->right += golden_best(logits, d->n_vocab) == want;
        score->all++;
        memmove(d->in, out, (size_t)d->width * sizeof *d->in);
        slots(d, t, &want, 1);
        logits = d->logits;
        out = d->out;
    }
    kv_timeline_free(t);
}

static void check_nano(const char *target, const char *block, enum device_numerics numerics, double bound,
                       int64_t wrong)
{
    struct err e;
    struct golden_model g;
    struct drafting d;
    struct score score = {0};
    char path[200], own[200], ref[200];
    if (!find(path, "models", target) || !find(ref, "models", "nano-v4-mtp/golden.json") ||
        (block && !find(own, "models", block)))
        return;
    golden_open(&g, path, &(struct golden_options){.numerics = numerics, .n_ctx = CTX, .draft = true,
                                                   .draft_file = block ? own : NULL});
    start(&d, &g);
    float *streams = mem_calloc((size_t)(CTX * d.width), sizeof *streams);
    size_t n;
    struct json_object *golden, *prompts;
    char *text = test_slurp(ref, &n);
    assert_non_null(text);
    GOLDEN_OK(json_parse(text, n, NULL, &golden, &e));
    mem_free(text);
    prompts = member(golden, "prompts");
    for (size_t i = 0; i < json_object_array_length(prompts); i++) {
        struct json_object *p = json_object_array_get_idx(prompts, i), *rows = member(p, "rows");
        int32_t ids[CTX];
        int64_t n_ids = ids_of(member(p, "prompt_ids"), ids);
        n_ids += ids_of(member(p, "completion_ids"), ids + n_ids);
        run_target(&g, ids, n_ids - 1, streams, d.width);
        for (size_t k = 0; k < json_object_array_length(rows); k++)
            check_row(&d, streams, ids, json_object_array_get_idx(rows, k), &score);
    }
    json_object_put(golden);
    mem_free(streams);
    stop(&d);
    golden_close(&g);
    print_message("%-26s %-34s max abs %.2e of %.0e  drafts %lld of %lld\n", target, block ? block : "", score.max, bound,
                  (long long)score.right, (long long)score.all);
    assert_true(score.all == 72 && score.right >= score.all - wrong && score.max <= bound);
}

static void float_files(void **state)
{
    (void)state;
    check_nano("nano-v4", NULL, DEVICE_EXACT, 2e-4, 0);
    check_nano("nano-v4/nano-v4-BF16.gguf", "nano-v4-mtp/nano-v4-mtp-BF16.gguf", DEVICE_EXACT, 2e-4, 0);
}

static void published_formats(void **state)
{
    (void)state;
    check_nano("nano-v4/quantised", NULL, DEVICE_REFERENCE, 2e-4, 0);
}

static void block_in_its_own_file(void **state)
{
    (void)state;
    check_nano("nano-v4/nano-v4-Q8_0.gguf", "nano-v4-mtp/nano-v4-mtp-Q8_0.gguf", DEVICE_EXACT, 1, 2);
    check_nano("nano-v4/nano-v4-Q8_0.gguf", "nano-v4-mtp/nano-v4-mtp0-Q8_0.gguf", DEVICE_EXACT, 1, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoint),
        cmocka_unit_test(float_files),
        cmocka_unit_test(published_formats),
        cmocka_unit_test(block_in_its_own_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
