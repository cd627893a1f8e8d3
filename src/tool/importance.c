/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/importance.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_ENTRIES = 65536, MAX_NAME = 1024, DAT_LIMIT = 1 << 30 };

struct tool_importance {
    struct tool_importance_entry *at;
    size_t n, cap;
    char dataset[256];
    uint64_t n_chunks, chunk, model, state;
    bool has_state; /* it was written by ingle */
};

static const char state_key[] = "ingle.imatrix.state", model_key[] = "ingle.imatrix.model";

ingle_status tool_importance_create(struct tool_importance **out, struct err *err)
{
    *out = mem_zalloc(sizeof **out);
    return *out ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for importance");
}

void tool_importance_free(struct tool_importance *t)
{
    for (size_t i = 0; t && i < t->n; i++) {
        mem_free(t->at[i].sum2);
        mem_free(t->at[i].count);
    }
    if (t)
        mem_free(t->at);
    mem_free(t);
}

size_t tool_importance_n(const struct tool_importance *t)
{
    return t->n;
}

const struct tool_importance_entry *tool_importance_at(const struct tool_importance *t, size_t i)
{
    return &t->at[i];
}

void tool_importance_set_merged(struct tool_importance *t)
{
    t->state = 0;
}

uint64_t tool_importance_model(const struct tool_importance *t)
{
    return t->model;
}

const struct tool_importance_entry *tool_importance_find(const struct tool_importance *t,
                                                         const char *name)
{
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->at[i].name, name))
            return &t->at[i];
    return NULL;
}

/* The entry of this name and shape, new or as it is. */
static ingle_status entry(struct tool_importance *t, const char *name, uint64_t width,
                          uint64_t n_matrices, struct tool_importance_entry **out, struct err *err)
{
    uint64_t n;
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->at[i].name, name)) {
            *out = &t->at[i];
            if (t->at[i].width == width && t->at[i].n_matrices == n_matrices)
                return INGLE_OK;
            return err_set(err, INGLE_FORMAT,
                           "importance of tensor '%s' is %llu x %llu here and %llu x %llu there",
                           name, (unsigned long long)width, (unsigned long long)n_matrices,
                           (unsigned long long)t->at[i].width,
                           (unsigned long long)t->at[i].n_matrices);
        }
    if (t->n >= MAX_ENTRIES || strlen(name) >= TOOL_IMPORTANCE_NAME || !width || !n_matrices ||
        !num_mul_u64(width, n_matrices, &n) || n > UINT32_MAX)
        return err_set(err, INGLE_LIMIT,
                       "importance of tensor '%.80s': %llu x %llu, beyond the limits", name,
                       (unsigned long long)width, (unsigned long long)n_matrices);
    struct tool_importance_entry e = {.width = width, .n_matrices = n_matrices};
    snprintf(e.name, sizeof e.name, "%s", name);
    e.sum2 = mem_calloc((size_t)n, sizeof *e.sum2);
    e.count = mem_calloc((size_t)n_matrices, sizeof *e.count);
    if (!e.sum2 || !e.count || !mem_grow(&t->at, &t->cap, t->n + 1, sizeof *t->at)) {
        mem_free(e.sum2);
        mem_free(e.count);
        return err_set(err, INGLE_NOMEM, "no memory for the importance of tensor '%s'", name);
    }
    t->at[t->n] = e;
    *out = &t->at[t->n++];
    return INGLE_OK;
}

ingle_status tool_importance_add(struct tool_importance *t, const char *name, uint64_t width,
                                 uint64_t n_matrices, uint64_t index, const double *square,
                                 uint64_t n)
{
    struct tool_importance_entry *e;
    const ingle_status st = entry(t, name, width, n_matrices, &e, NULL);
    if (st)
        return st;
    float *sum = e->sum2 + index * width;
    for (uint64_t k = 0; k < width; k++)
        sum[k] = (float)((double)sum[k] + square[k]);
    e->count[index] += (float)n;
    return INGLE_OK;
}

/* Adds what a file has for one tensor. */
static ingle_status add_all(struct tool_importance *t, const char *path, const char *name,
                            uint64_t width, uint64_t n_matrices, const float *sum2,
                            const float *count, struct err *err)
{
    struct tool_importance_entry *e;
    const ingle_status st = entry(t, name, width, n_matrices, &e, err);
    if (st)
        return err_prefix(err, "%s", path), st;
    for (uint64_t i = 0; i < width * n_matrices; i++) {
        if (!(sum2[i] >= 0) || isinf(sum2[i]))
            return err_set(err, INGLE_FORMAT, "%s: tensor '%s' has importance %g at %llu", path,
                           name, (double)sum2[i], (unsigned long long)i);
        e->sum2[i] += sum2[i];
    }
    for (uint64_t i = 0; i < n_matrices; i++) {
        if (!(count[i] >= 0) || isinf(count[i]))
            return err_set(err, INGLE_FORMAT, "%s: tensor '%s' has %g rows for matrix %llu", path,
                           name, (double)count[i], (unsigned long long)i);
        e->count[i] += count[i];
    }
    return INGLE_OK;
}

/* Sums of two models together are of none. */
static ingle_status take_model(struct tool_importance *t, const char *path, const struct io_meta *m,
                               struct err *err)
{
    uint64_t model = 0;
    t->has_state = !io_get_u64(m, state_key, 0, UINT64_MAX, &t->state, NULL);
    if (io_get_u64(m, model_key, 1, UINT64_MAX, &model, NULL))
        return INGLE_OK;
    if (t->model && t->model != model)
        return err_set(err, INGLE_ARG,
                       "%s: has the importance of another model than the files before it", path);
    t->model = model;
    return INGLE_OK;
}

static ingle_status read_gguf(struct tool_importance *t, const char *path,
                              const struct report_sink *sink, struct err *err)
{
    static const char end[] = ".in_sum2";
    struct io_file *f;
    uint64_t n = 0;
    const char *type = NULL;
    size_t n_type = 0;
    ingle_status st = io_open(&f, path, sink, err);
    if (st)
        return st;
    if (io_get_str(io_metadata(f), "general.type", &type, &n_type, NULL) || n_type != 7 ||
        memcmp(type, "imatrix", 7) != 0)
        st = err_set(err, INGLE_FORMAT,
                     "%s: is no file of importance (general.type is not 'imatrix')", path);
    for (size_t i = 0; i < io_n_tensors(f) && !st; i++) {
        const struct io_tensor *s = io_tensor_at(f, i);
        const size_t k = strlen(s->name);
        char name[TOOL_IMPORTANCE_NAME], counts[TOOL_IMPORTANCE_NAME + 8];
        if (k <= sizeof end - 1 || strcmp(s->name + k - (sizeof end - 1), end) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(k - (sizeof end - 1)), s->name);
        snprintf(counts, sizeof counts, "%s.counts", name);
        const struct io_tensor *c = io_tensor_find(f, counts);
        const uint64_t m = s->n_dims > 1 ? s->ne[1] : 1;
        if (!c || s->type != QUANT_F32 || c->type != QUANT_F32 || s->n_dims > 2 ||
            c->n_bytes != m * sizeof(float)) {
            st = err_set(err, INGLE_FORMAT, "%s: tensor '%s' has no counts of its matrices", path,
                         s->name);
            break;
        }
        float *sum = mem_alloc((size_t)s->n_bytes), *count = mem_alloc((size_t)c->n_bytes);
        st = sum && count ? io_read(f, s, 0, sum, (size_t)s->n_bytes, err)
                          : err_set(err, INGLE_NOMEM, "%s: no memory for '%s'", path, name);
        if (!st)
            st = io_read(f, c, 0, count, (size_t)c->n_bytes, err);
        if (!st)
            st = add_all(t, path, name, s->ne[0], m, sum, count, err);
        mem_free(sum);
        mem_free(count);
    }
    if (!st && !io_get_u64(io_metadata(f), "imatrix.chunk_count", 0, UINT32_MAX, &n, NULL))
        t->n_chunks += n;
    if (!st && !io_get_u64(io_metadata(f), "imatrix.chunk_size", 0, UINT32_MAX, &n, NULL))
        t->chunk = n;
    if (!st)
        st = take_model(t, path, io_metadata(f), err);
    io_close(f);
    return st;
}

/* A cursor over the older form. */
struct dat {
    const unsigned char *at;
    size_t left;
};

static bool take(struct dat *d, void *to, size_t n)
{
    if (n > d->left)
        return false;
    memcpy(to, d->at, n);
    d->at += n;
    d->left -= n;
    return true;
}

/* Values are means times calls; the matrices of experts stand after each other, without their
 * number: the entry has one matrix of all their columns, which readers by shape divide. */
static ingle_status read_dat(struct tool_importance *t, const char *path, const char *bytes,
                             size_t n, struct err *err)
{
    struct dat d = {(const unsigned char *)bytes, n};
    int32_t entries, len, calls, values;
    if (!take(&d, &entries, 4) || entries < 1 || entries > MAX_ENTRIES)
        return err_set(err, INGLE_FORMAT, "%s: is no file of importance", path);
    for (int32_t i = 0; i < entries; i++) {
        char name[MAX_NAME + 1];
        if (!take(&d, &len, 4) || len < 1 || len > MAX_NAME || !take(&d, name, (size_t)len) ||
            !take(&d, &calls, 4) || !take(&d, &values, 4) || values < 1 || calls < 0 ||
            (size_t)values > d.left / sizeof(float))
            return err_set(err, INGLE_FORMAT,
                           "%s: entry %d of %d is cut off or has a length beyond the limits", path,
                           i, entries);
        name[len] = 0;
        float *v = mem_calloc((size_t)values, sizeof *v);
        const float count = calls ? (float)calls : 1;
        ingle_status st =
            v && take(&d, v, (size_t)values * sizeof *v)
                ? add_all(t, path, name, (uint64_t)values, 1, v, &count, err)
                : err_set(err, INGLE_NOMEM, "%s: no memory for %d values", path, values);
        mem_free(v);
        if (st)
            return st;
    }
    int32_t chunks;
    if (take(&d, &chunks, 4) && chunks > 0)
        t->n_chunks += (uint64_t)chunks;
    return INGLE_OK;
}

ingle_status tool_importance_read(struct tool_importance *t, const char *path,
                                  const struct report_sink *sink, struct err *err)
{
    char *bytes;
    size_t n;
    char magic[4] = {0};
    int fd;
    uint64_t n_bytes;
    ingle_status st = file_open(path, &fd, &n_bytes, err);
    if (st)
        return st;
    if (n_bytes >= sizeof magic)
        st = file_read_at(fd, path, 0, magic, sizeof magic, err);
    file_close(fd);
    if (st)
        return st;
    if (!memcmp(magic, "GGUF", 4))
        return read_gguf(t, path, sink, err);
    st = file_slurp(path, DAT_LIMIT, &bytes, &n, err);
    if (st)
        return st;
    st = read_dat(t, path, bytes, n, err);
    mem_free(bytes);
    return st;
}

void tool_importance_set(struct tool_importance *t, const char *dataset, uint64_t n_chunks,
                         uint64_t chunk, uint64_t model, uint64_t state)
{
    snprintf(t->dataset, sizeof t->dataset, "%s", dataset);
    t->n_chunks = n_chunks;
    t->chunk = chunk;
    t->model = model;
    t->state = state;
}

/* Whether matrices have the model's names and widths, as far as it has them.  Of the older form all
 * experts stand after each other. */
static bool fits(const struct tool_importance *t, tool_importance_width_fn *width_of, void *arg)
{
    size_t n_known = 0;
    for (size_t i = 0; i < t->n; i++) {
        const uint64_t is = t->at[i].width, width = width_of(arg, t->at[i].name);
        if (width && is % width && width % is)
            return false;
        n_known += width != 0;
    }
    return n_known > 0;
}

static bool is_of(const struct tool_importance *t, uint64_t model,
                  tool_importance_width_fn *width_of, void *arg)
{
    return t->model && model ? t->model == model : fits(t, width_of, arg);
}

ingle_status tool_importance_check_in(const struct tool_importance *t, const char *path,
                                      uint64_t model, tool_importance_width_fn *width_of, void *arg,
                                      struct err *err)
{
    return is_of(t, model, width_of, arg)
               ? INGLE_OK
               : err_set(err, INGLE_ARG, "%s: has the importance of another model", path);
}

ingle_status tool_importance_check_out(const char *path, uint64_t model, uint64_t state,
                                       tool_importance_width_fn *width_of, void *arg,
                                       struct err *err)
{
    struct tool_importance *there;
    struct err why;
    struct stat is_there;
    if (stat(path, &is_there) || !S_ISREG(is_there.st_mode) || !is_there.st_size)
        return INGLE_OK; /* the writer says what is wrong with other kinds */
    ingle_status st = tool_importance_create(&there, err);
    if (st)
        return st;
    if (tool_importance_read(there, path, NULL, &why))
        st = err_set(
            err, INGLE_ARG,
            "%s: is there and no file of importance, and stays: choose another name, or remove it",
            path);
    else if (!is_of(there, model, width_of, arg))
        st = err_set(
            err, INGLE_ARG,
            "%s: has the importance of another model, and stays: choose another name, or remove it",
            path);
    else if (!there->has_state || there->state != state)
        st = err_set(err, INGLE_ARG,
                     "%s: has importance of another text, size of chunks or program, and stays: "
                     "choose another name, or "
                     "--force to replace it",
                     path);
    tool_importance_free(there);
    return st;
}

uint64_t tool_importance_resume(struct tool_importance *t, const char *path, uint64_t state,
                                const struct report_sink *sink)
{
    struct io_file *f;
    uint64_t is = 0, n = 0;
    struct err err;
    if (io_open(&f, path, NULL, NULL))
        return 0;
    const bool same = !io_get_u64(io_metadata(f), state_key, 0, UINT64_MAX, &is, NULL) &&
                      is == state &&
                      !io_get_u64(io_metadata(f), "imatrix.chunk_count", 1, UINT32_MAX, &n, NULL);
    io_close(f);
    if (!same || tool_importance_read(t, path, sink, &err))
        return 0;
    report(sink, INGLE_REPORT_WARN, "imatrix", path, "goes on after its %llu chunks",
           (unsigned long long)n);
    return n;
}

ingle_status tool_importance_write(const struct tool_importance *t, const char *path,
                                   const struct output_guard *guard, bool force, struct err *err)
{
    struct io_gguf *w;
    const char *dataset = t->dataset;
    const size_t n_dataset = strlen(dataset);
    struct io_meta *own = io_meta_create();
    ingle_status st = own && !io_meta_set_u64(own, state_key, t->state) &&
                              !io_meta_set_u64(own, model_key, t->model)
                          ? io_gguf_create(&w, path, err)
                          : err_set(err, INGLE_NOMEM, "%s: no memory to write it", path);
    if (st) {
        io_meta_free(own);
        return st;
    }
    io_gguf_output(w, OUTPUT_IMPORTANCE, guard, force);
    st = io_gguf_str(w, "general.type", "imatrix", 7, err);
    if (!st)
        st = io_gguf_strs(w, "imatrix.datasets", &dataset, &n_dataset, n_dataset ? 1 : 0, err);
    if (!st)
        st = io_gguf_u32(w, "imatrix.chunk_count", (uint32_t)t->n_chunks, err);
    if (!st)
        st = io_gguf_u32(w, "imatrix.chunk_size", (uint32_t)t->chunk, err);
    if (!st)
        st = io_gguf_value(w, io_meta_find(own, state_key), err);
    if (!st && t->model)
        st = io_gguf_value(w, io_meta_find(own, model_key), err);
    for (size_t i = 0; i < t->n && !st; i++) {
        const struct tool_importance_entry *e = &t->at[i];
        char name[TOOL_IMPORTANCE_NAME + 16];
        snprintf(name, sizeof name, "%s.in_sum2", e->name);
        st =
            io_gguf_tensor(w, name, QUANT_F32, 2, (const uint64_t[]){e->width, e->n_matrices}, err);
        snprintf(name, sizeof name, "%s.counts", e->name);
        if (!st)
            st = io_gguf_tensor(w, name, QUANT_F32, 2, (const uint64_t[]){1, e->n_matrices}, err);
    }
    if (!st)
        st = io_gguf_begin(w, err);
    for (size_t i = 0; i < t->n && !st; i++) {
        const struct tool_importance_entry *e = &t->at[i];
        st = io_gguf_write(w, 2 * i, 0, e->sum2, (size_t)(e->width * e->n_matrices) * sizeof(float),
                           err);
        if (!st)
            st = io_gguf_write(w, 2 * i + 1, 0, e->count, (size_t)e->n_matrices * sizeof(float),
                               err);
    }
    io_meta_free(own);
    if (!st)
        return io_gguf_finish(w, err);
    io_gguf_drop(w);
    return st;
}
