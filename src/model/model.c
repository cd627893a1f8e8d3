/* SPDX-License-Identifier: Apache-2.0 */
#include "model/parts.h"

#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static int entry_order(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static struct entry *find(const struct model *m, const char *name)
{
    size_t lo = 0, hi = m->n_entries;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const int c = strcmp(m->entry[mid].name, name);
        if (!c)
            return &m->entry[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

ingle_status model_create(struct model **out, struct io_file *file, struct device *d,
                          model_rename_fn *rename, const struct report_sink *sink,
                          struct err *err)
{
    const size_t n = io_n_tensors(file);
    struct model *m = mem_zalloc(sizeof *m);
    if (m)
        m->entry = mem_calloc(n, sizeof *m->entry);
    if (!m || !m->entry) {
        mem_free(m);
        return err_set(err, INGLE_NOMEM, "no memory for %zu tensor names", n);
    }
    m->file = file;
    m->d = d;
    m->sink = sink;
    m->n_entries = n;
    for (size_t i = 0; i < n; i++) {
        struct entry *e = &m->entry[i];
        e->t = io_tensor_at(file, i);
        if (!rename || !rename(e->t->name, e->name, sizeof e->name))
            snprintf(e->name, sizeof e->name, "%s", e->t->name);
    }
    qsort(m->entry, n, sizeof *m->entry, entry_order);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(m->entry[i - 1].name, m->entry[i].name)) {
            const ingle_status s =
                err_set(err, INGLE_FORMAT, "'%s': tensors '%s' and '%s' mean the same", io_path(file),
                        m->entry[i - 1].t->name, m->entry[i].t->name);
            model_free(m);
            return s;
        }
    *out = m;
    return INGLE_OK;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    model_unload(m);
    for (size_t i = 0; i < m->n_matrices; i++) {
        device_matrix_free(m->matrix[i].m);
        mem_free(m->matrix[i].part);
    }
    for (size_t i = 0; i < m->n_vectors; i++)
        device_vector_free(m->vector[i]);
    for (size_t i = 0; i < m->n_tables; i++)
        mem_free(m->table[i]);
    mem_free(m->matrix);
    mem_free(m->vector);
    mem_free(m->table);
    mem_free(m->entry);
    mem_free(m);
}

struct device *model_device(const struct model *m)
{
    return m->d;
}

const struct io_file *model_file(const struct model *m)
{
    return m->file;
}

const struct report_sink *model_sink(const struct model *m)
{
    return m->sink;
}

const struct io_tensor *model_find(const struct model *m, const char *name)
{
    const struct entry *e = find(m, name);
    return e ? e->t : NULL;
}

uint64_t model_bytes(const struct model *m)
{
    return m->n_bytes;
}

/* ---- binding ---- */

/* The tensor of this name, with exactly this shape (missing trailing dimensions are 1). */
static ingle_status want(const struct model *m, const char *name, const uint64_t ne[3],
                         struct entry **out, struct err *err)
{
    struct entry *e = find(m, name);
    if (!e)
        return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' is missing", io_path(m->file), name);
    for (int i = 0; i < IO_MAX_DIMS; i++) {
        const uint64_t is = (uint32_t)i < e->t->n_dims ? e->t->ne[i] : 1;
        if (is == (i < 3 ? ne[i] : 1))
            continue;
        char shape[160] = "";
        for (uint32_t k = 0; k < e->t->n_dims; k++) {
            const size_t n = strlen(shape);
            snprintf(shape + n, sizeof shape - n, "%s%llu", k ? " x " : "",
                     (unsigned long long)e->t->ne[k]);
        }
        return err_set(err, INGLE_FORMAT,
                       "'%s': tensor '%s' is %s (contiguous first), expected %llu x %llu x %llu",
                       io_path(m->file), e->t->name, shape, (unsigned long long)ne[0],
                       (unsigned long long)ne[1], (unsigned long long)ne[2]);
    }
    *out = e;
    return INGLE_OK;
}

/* NVFP4 files carry a second scale for each matrix of the stack: "<base>.scale". */
static ingle_status second_scale(struct model *m, const char *name, struct device_matrix *w,
                                 int64_t n_stack, struct err *err)
{
    char scale[NAME_MAX_BYTES];
    snprintf(scale, sizeof scale, "%s", name);
    char *tail = strstr(scale, ".weight");
    if (!tail || strlen(scale) + 1 > sizeof scale - 8)
        return INGLE_OK;
    memcpy(tail, ".scale", 7);
    /* A scale that the family has bound is a parameter of the model with the same name. */
    const struct entry *e = find(m, scale);
    if (!e || e->bound) {
        snprintf(scale, sizeof scale, "%.100s.scale", name);
        e = find(m, scale);
    }
    if (!e || e->bound)
        return INGLE_OK;
    float *v = mem_calloc((size_t)n_stack, sizeof *v);
    if (!v)
        return err_set(err, INGLE_NOMEM, "no memory for %lld scales", (long long)n_stack);
    ingle_status s = model_floats(m, scale, n_stack, v, err);
    if (!s)
        s = device_matrix_set_scales(w, v, err);
    mem_free(v);
    return s;
}

/* Tensor name (with its scale, if it has a companion) as rows [out][in]. */
static ingle_status want_source(struct model *m, const char *name, const uint64_t ne[3],
                                struct source *out, uint32_t *type, enum conversion *from,
                                struct err *err)
{
    char scale[NAME_MAX_BYTES];
    snprintf(scale, sizeof scale, "%.100s", name);
    char *tail = strstr(scale, ".weight");
    if (tail)
        memcpy(tail, ".scale", 7);
    struct entry *e = find(m, name), *s = tail ? find(m, scale) : NULL;
    if (e && e->t->type != QUANT_I8 && e->t->type != QUANT_FP8_E4M3)
        s = NULL;
    if (e && !model_loads_as(e->t->type, s != NULL, type, from))
        return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' of type I8 has no scales '%s'",
                       io_path(m->file), e->t->name, scale);
    const bool grouped = e && e->t->n_dims == 2 && ne[2] > 1; /* a stack written as one matrix */
    const bool fp4 = e && *from == FROM_FP4;
    const uint64_t is[3] = {fp4 ? ne[0] / 2 : ne[0], grouped ? ne[1] * ne[2] : ne[1], grouped ? 1 : ne[2]};
    ingle_status status = want(m, name, is, &e, err);
    if (!status && *from != AS_STORED) {
        const uint64_t sne[3] = {fp4 ? ne[0] / 32 : (ne[0] + 127) / 128, fp4 ? is[1] : (is[1] + 127) / 128, 1};
        status = want(m, scale, sne, &s, err);
        if (!status && s->t->type != QUANT_E8M0 && s->t->type != QUANT_F32)
            status = err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has type %s, expected E8M0 or F32",
                             io_path(m->file), s->t->name, quant_info(s->t->type)->name);
        if (!status && ne[0] % 32)
            status = err_set(err, INGLE_FORMAT, "'%s': rows of tensor '%s' are no multiple of 32",
                             io_path(m->file), e->t->name);
        if (!status)
            s->bound = true;
    }
    if (status)
        return status;
    e->bound = true;
    *out = (struct source){e->t, *from == AS_STORED ? NULL : s->t};
    return INGLE_OK;
}

/* A stack whose matrices are tensors of their own: "<base>.<index>.weight". */
static ingle_status want_parts(struct model *m, const char *name, const uint64_t ne[3],
                               struct source *part, uint32_t *type, enum conversion *from,
                               struct err *err)
{
    const char *dot = strrchr(name, '.');
    char one[NAME_MAX_BYTES];
    snprintf(one, sizeof one, "%.*s.0%s", (int)(dot - name), name, dot);
    if (!find(m, one))
        return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' is missing, and so is '%s'", io_path(m->file), name, one);
    for (uint64_t i = 0; i < ne[2]; i++) {
        const uint64_t flat[3] = {ne[0], ne[1], 1};
        uint32_t t;
        enum conversion f;
        snprintf(one, sizeof one, "%.*s.%llu%s", (int)(dot - name), name, (unsigned long long)i, dot);
        const ingle_status s = want_source(m, one, flat, &part[i], &t, &f, err);
        if (s)
            return s;
        if (i && (t != *type || f != *from))
            return err_set(err, INGLE_UNSUP, "'%s': tensor '%s' has type %s, its siblings %s",
                           io_path(m->file), part[i].t->name, quant_info(t)->name,
                           quant_info(*type)->name);
        *type = t;
        *from = f;
    }
    return INGLE_OK;
}

ingle_status model_matrix(struct model *m, const char *name, int64_t out_rows, int64_t in,
                          int64_t n_stack, const struct device_matrix **out, struct err *err)
{
    const uint64_t ne[3] = {(uint64_t)in, (uint64_t)out_rows, (uint64_t)n_stack};
    const bool parts = n_stack > 1 && !find(m, name);
    struct bound_matrix b = {.n_parts = parts ? n_stack : 1};
    uint32_t type = 0;
    b.part = mem_calloc((size_t)b.n_parts, sizeof *b.part);
    if (!b.part || !mem_grow(&m->matrix, &m->cap_matrices, m->n_matrices + 1, sizeof *m->matrix)) {
        mem_free(b.part);
        return err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", name);
    }
    ingle_status s = parts ? want_parts(m, name, ne, b.part, &type, &b.from, err)
                           : want_source(m, name, ne, b.part, &type, &b.from, err);
    for (size_t i = 0; !s && i < m->n_matrices; i++)
        if (m->matrix[i].part[0].t == b.part[0].t) { /* a head that is the embedding */
            *out = m->matrix[i].m;
            mem_free(b.part);
            return INGLE_OK;
        }
    if (!s) {
        s = device_matrix_create(&b.m, m->d, type, out_rows, in, n_stack, err);
        if (s)
            err_prefix(err, "'%s': tensor '%s'", io_path(m->file), b.part[0].t->name);
    }
    if (s) {
        mem_free(b.part);
        return s;
    }
    m->matrix[m->n_matrices++] = b;
    m->n_bytes += device_matrix_bytes(b.m);
    if (type == QUANT_NVFP4) {
        s = second_scale(m, name, b.m, n_stack, err);
        if (s)
            return s;
    }
    *out = b.m;
    return INGLE_OK;
}

/* The bytes of a tensor of this shape; the caller frees them. */
static ingle_status slurp(struct model *m, const char *name, const uint64_t ne[3],
                          struct entry **e, void **out, struct err *err)
{
    ingle_status s = want(m, name, ne, e, err);
    if (s)
        return s;
    const struct io_tensor *t = (*e)->t;
    void *stored = mem_alloc(t->n_bytes);
    if (!stored)
        return err_set(err, INGLE_NOMEM, "no %llu bytes for tensor '%s'",
                       (unsigned long long)t->n_bytes, t->name);
    s = io_read(m->file, t, 0, stored, t->n_bytes, err);
    if (s)
        mem_free(stored);
    else
        *out = stored;
    return s;
}

ingle_status model_floats_2d(struct model *m, const char *name, int64_t width, int64_t rows,
                             float *out, struct err *err)
{
    struct entry *e;
    void *stored = NULL;
    const uint64_t ne[3] = {(uint64_t)width, (uint64_t)rows, 1};
    ingle_status s = slurp(m, name, ne, &e, &stored, err);
    if (s)
        return s;
    const struct io_tensor *t = e->t;
    if (t->type == QUANT_F32 || t->type == QUANT_F16 || t->type == QUANT_BF16)
        quant_decode(t->type, stored, out, (size_t)(width * rows));
    else
        s = err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has type %s, expected F32, F16 or BF16",
                    io_path(m->file), t->name, quant_info(t->type)->name);
    mem_free(stored);
    for (int64_t i = 0; !s && i < width * rows; i++)
        if (!(out[i] - out[i] >= 0.0f)) /* NaN and infinities differ from themselves */
            s = err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has no number at %lld",
                        io_path(m->file), t->name, (long long)i);
    if (!s)
        e->bound = true;
    return s;
}

ingle_status model_floats(struct model *m, const char *name, int64_t n, float *out,
                          struct err *err)
{
    return model_floats_2d(m, name, n, 1, out, err);
}

ingle_status model_ints(struct model *m, const char *name, int64_t width, int64_t rows,
                        int32_t min, int32_t max, int32_t *out, struct err *err)
{
    struct entry *e;
    void *stored = NULL;
    const uint64_t ne[3] = {(uint64_t)width, (uint64_t)rows, 1};
    ingle_status s = slurp(m, name, ne, &e, &stored, err);
    if (s)
        return s;
    const uint32_t type = e->t->type;
    if (type != QUANT_I32 && type != QUANT_I64)
        s = err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has type %s, expected I32 or I64",
                    io_path(m->file), e->t->name, quant_info(type)->name);
    for (int64_t i = 0; !s && i < width * rows; i++) {
        int64_t v64 = 0;
        int32_t v32 = 0;
        if (type == QUANT_I64)
            memcpy(&v64, (const char *)stored + i * 8, sizeof v64);
        else
            memcpy(&v32, (const char *)stored + i * 4, sizeof v32);
        const int64_t v = type == QUANT_I64 ? v64 : v32;
        if (v < min || v > max)
            s = err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has %lld at %lld, expected %d to %d",
                        io_path(m->file), e->t->name, (long long)v, (long long)i, min, max);
        else
            out[i] = (int32_t)v;
    }
    mem_free(stored);
    if (!s)
        e->bound = true;
    return s;
}

ingle_status model_vector(struct model *m, const char *name, int64_t n,
                          const struct device_vector **out, struct err *err)
{
    struct entry *e;
    const uint64_t ne[3] = {(uint64_t)n, 1, 1};
    ingle_status s = want(m, name, ne, &e, err); /* before memory is taken for n */
    if (s)
        return s;
    float *v = mem_calloc((size_t)n, sizeof *v);
    if (!v || !mem_grow(&m->vector, &m->cap_vectors, m->n_vectors + 1, sizeof(void *))) {
        mem_free(v);
        return err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", name);
    }
    struct device_vector *w = NULL;
    s = model_floats(m, name, n, v, err);
    if (!s)
        s = device_vector_create(&w, m->d, v, n, err);
    mem_free(v);
    if (s)
        return s;
    m->vector[m->n_vectors++] = w;
    m->n_bytes += (uint64_t)n * sizeof(float);
    *out = w;
    return INGLE_OK;
}

ingle_status model_table(struct model *m, const char *name, int64_t n_rows, int64_t width,
                         const struct model_table **out, struct err *err)
{
    struct entry *e;
    uint64_t row_bytes;
    const uint64_t ne[3] = {(uint64_t)width, (uint64_t)n_rows, 1};
    const ingle_status s = want(m, name, ne, &e, err);
    if (s)
        return s;
    if (!quant_bytes(e->t->type, (uint64_t)width, 1, &row_bytes))
        return err_set(err, INGLE_FORMAT, "'%s': rows of tensor '%s' are no whole blocks of %s",
                       io_path(m->file), e->t->name, quant_info(e->t->type)->name);
    struct model_table *t = mem_zalloc(sizeof *t);
    if (!t || !mem_grow(&m->table, &m->cap_tables, m->n_tables + 1, sizeof(void *))) {
        mem_free(t);
        return err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", name);
    }
    *t = (struct model_table){m, e->t, n_rows, width, row_bytes};
    m->table[m->n_tables++] = t;
    e->bound = true;
    *out = t;
    return INGLE_OK;
}

size_t model_table_row_bytes(const struct model_table *t)
{
    return t->row_bytes;
}

ingle_status model_table_row(const struct model_table *t, int64_t i, void *stored, float *dst,
                             struct err *err)
{
    if (i < 0 || i >= t->n_rows)
        return err_set(err, INGLE_ARG, "row %lld of tensor '%s': it has %lld", (long long)i,
                       t->t->name, (long long)t->n_rows);
    const uint8_t *mapped = io_mapped(t->model->file, t->t);
    if (!mapped) {
        const ingle_status s =
            io_read(t->model->file, t->t, (uint64_t)i * t->row_bytes, stored, t->row_bytes, err);
        if (s)
            return s;
    }
    quant_decode(t->t->type, mapped ? mapped + (size_t)i * t->row_bytes : stored, dst,
                 (size_t)t->width);
    return INGLE_OK;
}

static bool stands_alone(uint32_t type)
{
    return type == QUANT_F32 || type == QUANT_F16 || type == QUANT_BF16 ||
           (quant_info(type)->quantised && type != QUANT_NVFP4 && type < QUANT_FP8_E4M3);
}

ingle_status model_same(const struct model *m, const char *a, const char *b, bool *out, struct err *err)
{
    enum { PIECE = 256 << 10 };
    const struct io_tensor *x = model_find(m, a), *y = model_find(m, b);
    *out = false;
    if (!x || !y || x->type != y->type || x->n_bytes != y->n_bytes || memcmp(x->ne, y->ne, sizeof x->ne) ||
        !stands_alone(x->type))
        return INGLE_OK;
    uint8_t *buffer = mem_alloc(2 * PIECE);
    if (!buffer)
        return err_set(err, INGLE_NOMEM, "no memory to compare tensors '%s' and '%s'", x->name, y->name);
    ingle_status s = INGLE_OK;
    bool same = true;
    for (uint64_t at = 0; !s && same && at < x->n_bytes; at += PIECE) {
        const size_t n = x->n_bytes - at < PIECE ? (size_t)(x->n_bytes - at) : PIECE;
        s = io_read(m->file, x, at, buffer, n, err);
        if (!s)
            s = io_read(m->file, y, at, buffer + PIECE, n, err);
        same = !s && memcmp(buffer, buffer + PIECE, n) == 0;
    }
    mem_free(buffer);
    *out = same;
    return s;
}

/* ---- what nobody asked for ---- */

static bool is_tower(const char *name)
{
    static const char *const prefix[] = {"v.",        "a.",     "mm.",          "vision_tower.", "audio_tower.",
                                         "embed_vision.", "embed_audio.", "multi_modal_projector."};
    for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++) {
        const size_t n = strlen(prefix[i]);
        if (!strncmp(name, prefix[i], n) ||
            (!strncmp(name, "model.", 6) && !strncmp(name + 6, prefix[i], n)))
            return true;
    }
    return false;
}

void model_skip(struct model *m, const char *prefix, const char *what)
{
    BUG_IF(m->n_skips == MAX_SKIPS);
    snprintf(m->skip[m->n_skips].prefix, sizeof m->skip->prefix, "%s", prefix);
    m->skip[m->n_skips++].what = what;
}

/* Index of the part that a tensor was skipped with; n_skips: towers; n_skips + 1: none. */
static int part_of(const struct model *m, const struct entry *e)
{
    int i = 0;
    while (i < m->n_skips && strncmp(e->name, m->skip[i].prefix, strlen(m->skip[i].prefix)))
        i++;
    return i < m->n_skips || is_tower(e->t->name) ? i : m->n_skips + 1;
}

ingle_status model_check_unused(struct model *m, struct err *err)
{
    size_t n[MAX_SKIPS + 2] = {0};
    const char *first[MAX_SKIPS + 2] = {0};
    for (size_t i = 0; i < m->n_entries; i++) {
        const struct entry *e = &m->entry[i];
        if (e->bound)
            continue;
        const int part = part_of(m, e);
        const size_t len = strlen(e->name);
        if (part > m->n_skips && len > 6 && !strcmp(e->name + len - 6, ".scale"))
            return err_set(err, INGLE_FORMAT,
                           "'%s': the scale '%s' belongs to no matrix that is used: products would be wrong",
                           io_path(m->file), e->t->name);
        if (!n[part]++)
            first[part] = e->t->name;
    }
    for (int i = 0; i < m->n_skips; i++)
        if (n[i])
            report(m->sink, INGLE_REPORT_NOTE, "tensor", first[i], "%zu tensors are skipped: %s", n[i],
                   m->skip[i].what);
    if (n[m->n_skips])
        report(m->sink, INGLE_REPORT_NOTE, "tensor", first[m->n_skips],
               "%zu tensors of vision and audio towers are skipped: ingle reads text only", n[m->n_skips]);
    if (n[m->n_skips + 1])
        report(m->sink, INGLE_REPORT_WARN, "tensor", first[m->n_skips + 1],
               "%zu tensors of this file are not used by its family", n[m->n_skips + 1]);
    return INGLE_OK;
}

uint64_t model_identity(const struct model *m)
{
    enum { SAMPLE = 4096 };
    uint8_t bytes[SAMPLE];
    XXH64_hash_t h = 0;
    for (size_t i = 0; i < m->n_entries; i++) {
        const struct io_tensor *t = m->entry[i].t;
        h = XXH3_64bits_withSeed(m->entry[i].name, strlen(m->entry[i].name), h);
        h = XXH3_64bits_withSeed(&t->type, sizeof t->type, h);
        h = XXH3_64bits_withSeed(t->ne, sizeof t->ne, h);
        const uint64_t n = t->n_bytes < SAMPLE ? t->n_bytes : SAMPLE;
        /* The head and the middle; a read error changes nothing but who this seems to be. */
        for (uint64_t at = 0, k = 0; n && k < 2; k++, at = (t->n_bytes - n) / 2)
            if (!io_read(m->file, t, at, bytes, n, NULL))
                h = XXH3_64bits_withSeed(bytes, n, h);
    }
    return h;
}
