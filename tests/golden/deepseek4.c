/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek4 - the DeepSeek V4 goldens against the reference implementation's float32
 * results: logits at all positions, the four streams after every layer, the greedy
 * continuation; from GGUF, from the published names and from the published number formats.
 */
#include "golden/golden.h"

#include "base/mem.h"
#include "session/run.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define REL_RMS 4e-6
#define MAX_ABS 2e-4

/* The clone has the smaller cases; the larger ones run where a full set of goldens lies. */
static bool find(char model[200], char golden[200], const char *model_name, const char *golden_name)
{
    static const char *const roots[] = {"tests/data/goldens", "../shared/goldens",
                                        "../../shared/goldens"};
    struct stat st;
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        snprintf(model, 200, "%s/%s", roots[i], model_name);
        snprintf(golden, 200, "%s/%s", roots[i], golden_name);
        /* A checkpoint is a directory: its tensors must be there, too. */
        char tensors[260];
        snprintf(tensors, sizeof tensors, "%s/model.safetensors", model);
        if (!stat(golden, &st) && !stat(model, &st) &&
            (!S_ISDIR(st.st_mode) || !stat(tensors, &st)))
            return true;
    }
    print_message("not in this clone: %s\n", model_name);
    return false;
}

static void line(const char *what, const char *part, struct golden_error got, double bound)
{
    print_message("%-42s %-12s rel rms %.2e  max abs %.2e  bound %.2g\n", what, part, got.rel_rms,
                  got.max_abs, bound);
}

struct streams { struct device *d; float *at; int64_t n, width, n_layers, row; };

static void keep(void *arg, enum family_tap tap, int layer, struct rows x)
{
    struct streams *s = arg;
    if (tap != FAMILY_TAP_LAYER)
        return;
    device_read_rows(s->d, x);
    for (int64_t i = 0; i < x.n; i++)
        memcpy(s->at + (layer * s->n + s->row + i) * s->width, x.at + i * x.stride,
               (size_t)s->width * sizeof(float));
}

static void check_streams(const char *what, const char *golden, const struct streams *s)
{
    int64_t n_pos, n;
    int32_t *positions = golden_ints(golden, "positions", &n_pos);
    struct golden_error worst = {0, 0};
    for (int64_t il = 0; il < s->n_layers; il++) {
        char name[64];
        snprintf(name, sizeof name, "layer%lld.streams", (long long)il);
        float *want = golden_floats(golden, name, &n);
        float *got = mem_calloc((size_t)n, sizeof *got);
        assert_int_equal(n, n_pos * s->width);
        for (int64_t i = 0; i < n_pos; i++)
            memcpy(got + i * s->width, s->at + (il * s->n + positions[i]) * s->width,
                   (size_t)s->width * sizeof *got);
        const struct golden_error e = golden_compare(got, want, n);
        if (!(e.rel_rms <= worst.rel_rms))
            worst = e;
        if (!(e.rel_rms <= REL_RMS))
            line(what, name, e, REL_RMS);
        mem_free(want);
        mem_free(got);
    }
    mem_free(positions);
    line(what, "streams", worst, REL_RMS);
    assert_true(worst.rel_rms <= REL_RMS);
}

static void check_greedy(struct golden_model *g, struct session *s, const char *what,
                         const char *golden, const float *last)
{
    struct err e;
    int64_t n;
    int32_t *greedy = golden_ints(golden, "greedy", &n);
    for (int64_t i = 0; i < n; i++) {
        const int32_t token = (int32_t)golden_best(last, g->info.n_vocab);
        if (token != greedy[i])
            fail_msg("%s: greedy token %lld is %d, not %d", what, (long long)i, token, greedy[i]);
        GOLDEN_OK(session_append(s, &token, 1, &e));
        GOLDEN_OK(session_finish(s, &last, NULL, &e));
    }
    mem_free(greedy);
}

static void check(const char *model, const char *golden, enum device_numerics numerics,
                  double bound, bool streams)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    char path[200], ref[200];
    int64_t n, n_logits;
    if (!find(path, ref, model, golden))
        return;
    golden_open(&g, path,
                &(struct golden_options){.numerics = numerics, .n_ctx = 1024, .max_rows = 1024});
    GOLDEN_OK(session_create(&s, g.runner, &e));
    int32_t *tokens = golden_ints(ref, "input_ids", &n);
    float *want = golden_floats(ref, "logits", &n_logits);
    struct streams kept = {
        .d = g.device, .n = n, .width = 4 * g.info.n_embd, .n_layers = g.info.n_layers};
    kept.at = mem_calloc((size_t)(kept.n_layers * n * kept.width), sizeof(float));
    float *logits = mem_calloc((size_t)n_logits, sizeof *logits);
    session_runner_set_tap(g.runner, streams ? keep : NULL, &kept);
    GOLDEN_OK(session_append(s, tokens, n, &e));
    while (kept.row < n) {
        struct session_work w = {.s = s, .want = FAMILY_LOGITS_ALL};
        GOLDEN_OK(session_step(g.runner, &w, 1, NULL, &e));
        memcpy(logits + kept.row * g.info.n_vocab, w.logits,
               (size_t)(w.n_logits * g.info.n_vocab) * sizeof *logits);
        kept.row += w.n_done;
    }
    session_runner_set_tap(g.runner, NULL, NULL);
    const struct golden_error got = golden_compare(logits, want, n_logits);
    line(model, "logits", got, bound);
    if (streams)
        check_streams(model, ref, &kept);
    assert_true(got.rel_rms <= bound);
    if (bound <= REL_RMS) {
        assert_true(got.max_abs <= MAX_ABS);
        check_greedy(&g, s, model, ref, logits + (n - 1) * g.info.n_vocab);
    }
    mem_free(tokens);
    mem_free(want);
    mem_free(logits);
    mem_free(kept.at);
    session_free(s);
    golden_close(&g);
}

/* ---- the parts of the layers ---- */

struct parts {
    const char *golden;
    struct io_file *file;
    int64_t row, n_pos, compared;
    int32_t *positions;
    double worst;
    char worst_name[64];
};

/* One chunk of one part against the golden's rows: at all positions, or at those stored. */
static void check_part(void *arg, const char *name, int layer, struct rows x)
{
    struct parts *p = arg;
    char full[64];
    snprintf(full, sizeof full, "layer%d.%s", layer, name);
    const struct io_tensor *t = io_tensor_find(p->file, full);
    if (!t)
        return;
    struct err e;
    void *want = mem_alloc(t->n_bytes);
    GOLDEN_OK(io_read(p->file, t, 0, want, t->n_bytes, &e));
    const bool ints = t->type == QUANT_I32;
    const int64_t n = (int64_t)t->n_bytes / 4 / x.width;
    double diff = 0, mass = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = (n == p->n_pos ? p->positions[i] : i) - p->row;
        if (at < 0 || at >= x.n)
            continue;
        p->compared++;
        const float *got = x.at + at * x.stride;
        int64_t n_pad = 0; /* the golden pads in front, we behind */
        while (ints && n_pad < x.width && ((const int32_t *)want)[i * x.width + n_pad] < 0)
            n_pad++;
        for (int64_t c = 0; c < x.width; c++) {
            if (ints) {
                const int32_t w = ((const int32_t *)want)[i * x.width + (c + n_pad) % x.width];
                if ((int32_t)got[c] != w)
                    fail_msg("%s: %d at position %lld, not %d", full, (int32_t)got[c],
                             (long long)(at + p->row), w);
                continue;
            }
            const double w = (double)((const float *)want)[i * x.width + c], d = (double)got[c] - w;
            diff += d * d;
            mass += w * w;
        }
    }
    const double rel = mass > 0 ? sqrt(diff / mass) : 0;
    if (!(rel <= p->worst)) {
        p->worst = rel;
        snprintf(p->worst_name, sizeof p->worst_name, "%s", full);
    }
    mem_free(want);
}

/* A stream of compressed rows, as it stands in the pages, against a tensor of the golden. */
static bool check_stream(const struct session *s, const struct kv_stream *st, const char *golden,
                         const char *name, double bound)
{
    const int64_t per_page = KV_PAGE / st->every;
    const size_t bytes = kern_row_bytes(st->k_codec, st->k_width, st->v_width);
    uint8_t *const *page = kv_timeline_stream(s->timeline, st);
    const size_t at = kv_stream_at(&s->r->spec, st);
    uint8_t *row = mem_alloc(bytes);
    int64_t n;
    float *want = golden_floats(golden, name, &n), *got = mem_calloc((size_t)n, sizeof *got);
    assert_int_equal(n, kv_timeline_length(s->timeline) / st->every * st->k_width);
    for (int64_t i = 0; i < n / st->k_width; i++) {
        const uint8_t *from = page[i / per_page] + at + (size_t)(i % per_page) * bytes;
        if (st->own)
            device_own_get(s->r->device, row, from, bytes);
        else
            memcpy(row, from, bytes);
        kern_row_read(st->k_codec, st->k_width, st->v_width, row, got + i * st->k_width);
    }
    mem_free(row);
    const struct golden_error e = golden_compare(got, want, n);
    line(golden, name, e, bound);
    mem_free(want);
    mem_free(got);
    return e.rel_rms <= bound && e.max_abs <= MAX_ABS;
}

/* What every compressor of every layer left behind: rows for attention, then, where there is
 * an indexer, its keys.  Gives how many streams there were. */
static int check_compressed(const struct session *s, const struct parts *p, double bound)
{
    const struct kv_spec *spec = &s->r->spec;
    int n = 0;
    for (uint32_t i = 0; i < spec->n_streams; i++) {
        const struct kv_stream *st = &spec->stream[i];
        char name[64];
        const bool second =
            i >= 2 && spec->stream[i - 2].layer == st->layer && spec->stream[i - 2].every > 1;
        if (st->every == 1)
            continue;
        snprintf(name, sizeof name, "layer%u.%s", st->layer,
                 second ? "indexer_keys" : "compressed_kv");
        if (second && !io_tensor_find(p->file, name)) /* not every golden stores them */
            continue;
        assert_true(check_stream(s, st, p->golden, name, bound));
        n++;
    }
    return n;
}

/* bound: of the worst part of a chunk. */
static void check_parts(const char *model, const char *golden, enum device_numerics numerics,
                        double bound)
{
    struct err e;
    struct golden_model g;
    struct session *s;
    char path[200], ref[200];
    struct parts p = {0};
    if (!find(path, ref, model, golden))
        return;
    p.golden = ref;
    GOLDEN_OK(io_open(&p.file, ref, NULL, &e));
    golden_open(&g, path,
                &(struct golden_options){.numerics = numerics, .n_ctx = 1024, .max_rows = 400});
    if (g.stages)
        skip(); /* it looks into pages that lie at stages */
    GOLDEN_OK(session_create(&s, g.runner, &e));
    int64_t n;
    int32_t *tokens = golden_ints(ref, "input_ids", &n);
    p.positions =
        io_tensor_find(p.file, "positions") ? golden_ints(ref, "positions", &p.n_pos) : NULL;
    session_runner_set_part(g.runner, check_part, &p);
    GOLDEN_OK(session_append(s, tokens, n, &e));
    while (p.row < n) {
        struct session_work w = {.s = s};
        GOLDEN_OK(session_step(g.runner, &w, 1, NULL, &e));
        p.row += w.n_done;
    }
    session_runner_set_part(g.runner, NULL, NULL);
    print_message("%-42s %lld rows of parts; worst: %s, rel rms %.2e of %.0e\n", model,
                  (long long)p.compared, p.worst_name, p.worst, bound);
    assert_true(p.compared > n && p.worst <= bound);
    assert_true(check_compressed(s, &p, bound) >= 2);
    /* Every row of every layer has been counted with its experts. */
    for (int64_t il = 0; il < g.info.n_layers; il++) {
        const struct expert_layer *l = g.family->experts(g.self, il);
        uint64_t hits = 0;
        for (int64_t k = 0; k < l->n; k++)
            hits += l->hits[k];
        assert_int_equal(hits, n * g.info.n_experts_used);
    }
    mem_free(tokens);
    mem_free(p.positions);
    io_close(p.file);
    session_free(s);
    golden_close(&g);
}

static void parts_of_layers(void **state)
{
    (void)state;
    check_parts("deepseek_v4_full/model-F32.gguf", "deepseek_v4_full/golden.safetensors",
                DEVICE_EXACT, 4e-6);
    check_parts("deepseek_v4_realhd/model-F32.gguf", "deepseek_v4_realhd/golden.safetensors",
                DEVICE_EXACT, 4e-6);
    check_parts("deepseek_v4_published", "deepseek_v4_published/golden.safetensors",
                DEVICE_REFERENCE, 4e-6);
}

static void full_gguf(void **state)
{
    (void)state;
    check("deepseek_v4_full/model-F32.gguf", "deepseek_v4_full/golden.safetensors", DEVICE_EXACT,
          REL_RMS, true);
}

static void full_checkpoint(void **state)
{
    (void)state;
    check("deepseek_v4_full", "deepseek_v4_full/golden.safetensors", DEVICE_EXACT, REL_RMS, true);
}

static void real_head_widths(void **state)
{
    (void)state;
    check("deepseek_v4_realhd/model-F32.gguf", "deepseek_v4_realhd/golden.safetensors",
          DEVICE_EXACT, REL_RMS, true);
}

static void published_formats(void **state)
{
    (void)state;
    check("deepseek_v4_published", "deepseek_v4_published/golden.safetensors", DEVICE_REFERENCE,
          REL_RMS, false);
    check("deepseek_v4_published/model-CONVERTED.gguf",
          "deepseek_v4_published/golden-CONVERTED.safetensors", DEVICE_REFERENCE, REL_RMS, false);
}

static void quantised(void **state)
{
    (void)state;
    static const char *const types[] = {"Q8_0", "Q4_0", "MXFP4"};
    for (int i = 0; i < 3; i++) {
        char model[80], golden[80];
        snprintf(model, sizeof model, "deepseek_v4_full/model-%s.gguf", types[i]);
        snprintf(golden, sizeof golden, "deepseek_v4_full/golden-%s.safetensors", types[i]);
        check(model, golden, DEVICE_REFERENCE, REL_RMS, false);
        check(model, golden, DEVICE_EXACT, 0.15, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_gguf),         cmocka_unit_test(full_checkpoint),
        cmocka_unit_test(real_head_widths),  cmocka_unit_test(published_formats),
        cmocka_unit_test(quantised),         cmocka_unit_test(parts_of_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
