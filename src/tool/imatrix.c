/* SPDX-License-Identifier: Apache-2.0 */
/*
 * imatrix - importance of columns: for each matrix of a model the sums of squares of what it is
 * multiplied with, for each expert its own, over tokens of a text.
 */
#include "base/mem.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/str.h"
#include "device/device.h"
#include "family/family.h"
#include "session/session.h"
#include "tool/importance.h"
#include "tool/tool.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

struct job {
    const struct tool_imatrix_options *o;
    const struct report_sink *sink;
    struct io_file *file;
    struct device *device;
    struct model *model;
    const struct family *family;
    void *self;
    struct family_info info;
    struct runner *runner;
    struct session *session;
    struct tool_importance *sums;
    double *square; /* of the rows of one product */
    size_t square_cap;
    bool failed;    /* memory ran out in a watch */
};

/* "blk.3.ffn_up_exps.weight" of a matrix of the model; false: of none that is counted. */
static bool name_of(const struct job *j, const struct device_matrix *w, char *out, size_t n_out)
{
    const char *name = model_matrix_name(j->model, w);
    if (!name || strncmp(name, "blk.", 4) != 0)
        return false;
    const char *member = strstr(name, ".0.weight"); /* a stack of tensors */
    snprintf(out, n_out, "%.*s%s", (int)(member ? (size_t)(member - name) : strlen(name)), name,
             member ? ".weight" : "");
    return true;
}

static void watch(void *arg, const struct device_watched *v)
{
    struct job *j = arg;
    char name[TOOL_IMPORTANCE_NAME];
    if (!name_of(j, v->w, name, sizeof name))
        return;
    const int64_t width = v->x.width, stack = device_matrix_stack(v->w);
    const struct io_tensor *t = model_find(j->model, name);
    const bool flat = t && t->n_dims == 2; /* parts of one matrix of the file */
    if (!mem_grow(&j->square, &j->square_cap, (size_t)width, sizeof *j->square)) {
        j->failed = true;
        return;
    }
    memset(j->square, 0, (size_t)width * sizeof *j->square);
    for (int64_t i = 0; i < v->n; i++) {
        const float *x = v->x.at + (v->row ? v->row[i] : i) * v->x.stride;
        for (int64_t k = 0; k < width; k++)
            j->square[k] += (double)x[k] * (double)x[k];
    }
    if (tool_importance_add(j->sums, name, (uint64_t)width, flat ? 1 : (uint64_t)stack,
                            flat ? 0 : (uint64_t)v->index, j->square, (uint64_t)v->n))
        j->failed = true;
}

static uint64_t width_in_model(void *arg, const char *name)
{
    const struct job *j = arg;
    char member[TOOL_IMPORTANCE_NAME + 16];
    const struct io_tensor *t = model_find(j->model, name);
    const size_t n = strlen(name), k = strlen(".weight");
    if (!t && n > k) { /* a stack of tensors */
        snprintf(member, sizeof member, "%.*s.0.weight", (int)(n - k), name);
        t = model_find(j->model, member);
    }
    return t ? t->ne[0] : 0;
}

static uint64_t width_in_sums(void *arg, const char *name)
{
    const struct tool_importance_entry *e = tool_importance_find(arg, name);
    return e ? e->width : 0;
}

static ingle_status open_model(struct job *j, struct err *err)
{
    const struct device_options d = {
        .n_threads = j->o->n_threads, .cpu = UINT32_MAX, .sink = j->sink};
    const char *arch;
    size_t n;
    ingle_status st = io_open(&j->file, j->o->model, j->sink, err);
    if (!st && io_kind(j->file) != IO_GGUF)
        st = err_set(err, INGLE_UNSUP,
                     "%s: is no GGUF file: 'ingle convert' makes one of a checkpoint", j->o->model);
    if (!st)
        st = io_get_str(io_metadata(j->file), "general.architecture", &arch, &n, err);
    if (!st && !(j->family = family_by_arch(arch)))
        st = err_set(err, INGLE_UNSUP, "%s: 'general.architecture' is '%.40s', supported are %s",
                     j->o->model, arch, family_names());
    if (!st)
        st = device_create(&j->device, &d, err);
    if (st)
        return st;
    device_set_watch(j->device, watch, j);
    st = model_create(&j->model, j->file, j->device, j->family->alias, j->sink, err);
    if (!st)
        st = j->family->bind(&j->self, j->model, io_metadata(j->file), &j->info, err);
    if (!st)
        st = model_check_unused(j->model, err);
    if (!st)
        st = model_load(j->model, err);
    const struct runner_options r = {.n_ctx = j->o->n_ctx,
                                     .max_rows = j->o->n_ctx,
                                     .max_logits = 1,
                                     .kv = kv_types_of(KERN_KV_F16),
                                     .numerics = device_numerics_name(j->device),
                                     .model = j->o->model,
                                     .sink = j->sink};
    if (!st)
        st = session_runner_create(&j->runner, j->family, j->self, &j->info, j->device, &r, err);
    return st ? st : session_create(&j->session, j->runner, err);
}

static void close_all(struct job *j)
{
    session_free(j->session);
    session_runner_free(j->runner);
    if (j->family)
        j->family->free(j->self);
    model_free(j->model);
    device_free(j->device);
    io_close(j->file);
    mem_free(j->square);
}

static ingle_status run_chunk(struct job *j, const int32_t *ids, int64_t n, struct err *err)
{
    struct session_work work = {.s = j->session, .want = FAMILY_LOGITS_NONE};
    session_runner_clear_tree(j->runner);
    ingle_status st = session_rewind(j->session, 0, err);
    if (!st)
        st = session_sync(j->session, ids, n, NULL, err);
    while (!st && session_pending(j->session))
        st = session_step(j->runner, &work, 1, NULL, err);
    if (!st && j->failed)
        st = err_set(err, INGLE_NOMEM, "%s: no memory for sums", j->o->model);
    return st;
}

/* What the sums are of: another text, model or size of chunks is another one. */
static uint64_t state_of(const struct job *j, const int32_t *ids, size_t n)
{
    const uint64_t seed = model_identity(j->model) ^ (uint64_t)j->o->n_ctx;
    return XXH3_64bits_withSeed(ids, n * sizeof *ids, seed);
}

/* Experts of which a matrix saw no row. */
static void say_unseen(const struct job *j, struct str *text)
{
    for (size_t i = 0; i < tool_importance_n(j->sums); i++) {
        const struct tool_importance_entry *e = tool_importance_at(j->sums, i);
        uint64_t n = 0;
        if (e->n_matrices < 2 || !strstr(e->name, "ffn_down_exps"))
            continue;
        for (uint64_t k = 0; k < e->n_matrices; k++)
            n += !(e->count[k] > 0);
        if (!n)
            continue;
        str_add_shown(text, e->name, strlen(e->name));
        str_addf(text, ": %llu of %llu experts were never chosen:", (unsigned long long)n,
                 (unsigned long long)e->n_matrices);
        for (uint64_t k = 0, shown = 0; k < e->n_matrices && shown < 32; k++)
            if (!(e->count[k] > 0)) {
                str_addf(text, " %llu", (unsigned long long)k);
                shown++;
            }
        str_adds(text, n > 32 ? " ...\n" : "\n");
    }
}

static ingle_status run_all(struct job *j, const int32_t *ids, size_t n, struct str *text,
                            struct err *err)
{
    const struct tool_imatrix_options *o = j->o;
    int32_t chunk[TOOL_IMATRIX_CTX];
    const uint64_t size = (uint64_t)o->n_ctx, all = n / size,
                   most = o->n_chunks && o->n_chunks < all ? o->n_chunks : all;
    if (!all)
        return err_set(err, INGLE_ARG, "%s: has %zu tokens, fewer than the %llu of a chunk",
                       o->dataset, n, (unsigned long long)size);
    const uint64_t state = state_of(j, ids, n), model = model_identity(j->model);
    ingle_status st = o->force
                          ? INGLE_OK
                          : tool_importance_check_out(o->out, model, state, width_in_model, j, err);
    if (st)
        return st;
    uint64_t at = tool_importance_resume(j->sums, o->out, state, j->sink);
    const uint64_t first = at;
    for (size_t i = 0; i < o->n_in && !st && !first; i++) {
        st = tool_importance_read(j->sums, o->in[i], j->sink, err);
        if (!st && !o->force)
            st = tool_importance_check_in(j->sums, o->in[i], model, width_in_model, j, err);
    }
    for (; at < most && !st; at++) {
        memcpy(chunk, ids + at * size, (size_t)size * sizeof *chunk);
        if (o->bos >= 0)
            chunk[0] = o->bos;
        st = run_chunk(j, chunk, (int64_t)size, err);
        tool_importance_set(j->sums, o->dataset, at + 1, size, model, state);
        if (!st && (at + 1 == most || (at + 1 - first) % o->save_every == 0))
            st = tool_importance_write(j->sums, o->out, o->guard, o->force, err);
        if (!st && report_progress(j->sink, "imatrix", (double)(at + 1), (double)most))
            st = err_set(err, INGLE_CANCEL, "%s: stopped; the same command goes on", o->model);
    }
    if (st)
        return st;
    str_addf(text, "%s: %llu chunks of %llu tokens, %zu matrices\n", o->out,
             (unsigned long long)most, (unsigned long long)size, tool_importance_n(j->sums));
    say_unseen(j, text);
    return INGLE_OK;
}

ingle_status tool_imatrix(const int32_t *ids, size_t n, const struct tool_imatrix_options *o,
                          const struct report_sink *sink, struct str *text, struct err *err)
{
    struct job j = {.o = o, .sink = sink};
    if (o->n_ctx < 16 || o->n_ctx > TOOL_IMATRIX_CTX || !o->save_every)
        return err_set(err, INGLE_ARG, "chunks of %lld tokens, allowed are 16 to %d",
                       (long long)o->n_ctx, TOOL_IMATRIX_CTX);
    ingle_status st = tool_importance_create(&j.sums, err);
    if (!st)
        st = open_model(&j, err);
    if (!st)
        st = run_all(&j, ids, n, text, err);
    close_all(&j);
    tool_importance_free(j.sums);
    return st;
}

ingle_status tool_imatrix_merge(const struct tool_imatrix_options *o,
                                const struct report_sink *sink, struct str *text, struct err *err)
{
    struct tool_importance *sums;
    ingle_status st = tool_importance_create(&sums, err);
    for (size_t i = 0; i < o->n_in && !st; i++)
        st = tool_importance_read(sums, o->in[i], sink, err);
    const uint64_t model = st ? 0 : tool_importance_model(sums);
    if (!st && !o->force)
        st = tool_importance_check_out(o->out, model, 0, width_in_sums, sums, err);
    if (!st)
        tool_importance_set_merged(sums);
    if (!st)
        st = tool_importance_write(sums, o->out, o->guard, o->force, err);
    if (!st)
        str_addf(text, "%s: %zu matrices of %zu files\n", o->out, tool_importance_n(sums), o->n_in);
    tool_importance_free(sums);
    return st;
}
