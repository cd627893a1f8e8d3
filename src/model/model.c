/* SPDX-License-Identifier: Apache-2.0 */
#include "model/load.h"
#include "model/parts.h"

#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/size.h"
#include "base/str.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static int entry_order(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

struct entry *model_entry(const struct model *m, const char *name)
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
                err_set(err, INGLE_FORMAT, "'%s': tensors '%s' and '%s' mean the same",
                        io_path(file), m->entry[i - 1].t->name, m->entry[i].t->name);
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
        mem_free(m->matrix[i].seen);
    }
    for (size_t i = 0; i < m->n_groups; i++)
        mem_free(m->group[i]);
    mem_free(m->group);
    mem_free(m->stamp);
    for (size_t i = 0; i < m->n_vectors; i++)
        device_vector_free(m->vector[i]);
    for (size_t i = 0; i < m->n_tables; i++)
        mem_free(m->table[i]);
    for (size_t i = 0; i < m->n_folded; i++)
        mem_free(m->folded[i]);
    mem_free(m->folded);
    mem_free(m->matrix);
    mem_free(m->vector);
    mem_free(m->vector_layer);
    mem_free(m->table);
    mem_free(m->entry);
    model_scheme_free(m->scheme);
    mem_free(m);
}

ingle_status model_fold(struct model *m, const char *name, struct err *err)
{
    struct entry *e = model_entry(m, name);
    if (!e)
        return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' is missing", io_path(m->file), name);
    struct io_tensor *t = mem_zalloc(sizeof *t);
    if (!t || !mem_grow(&m->folded, &m->cap_folded, m->n_folded + 1, sizeof(void *))) {
        mem_free(t);
        return err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", name);
    }
    m->folded[m->n_folded++] = t;
    *t = *e->t;
    const uint32_t n = t->n_dims;
    for (uint32_t i = 1; i + 1 < n; i++)
        t->ne[0] *= t->ne[i]; /* the reader has checked their product */
    for (uint32_t i = 1; i < IO_MAX_DIMS; i++)
        t->ne[i] = i == 1 && n > 1 ? e->t->ne[n - 1] : 1;
    t->n_dims = n > 1 ? 2 : n;
    e->t = t;
    return INGLE_OK;
}

void model_floats_only(struct model *m)
{
    m->floats_only = true;
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
    const struct entry *e = model_entry(m, name);
    return e ? e->t : NULL;
}

uint64_t model_bytes(const struct model *m)
{
    return m->n_bytes;
}

/* ---- binding ---- */

ingle_status model_want(const struct model *m, const char *name, const uint64_t ne[3],
                        struct entry **out, struct err *err)
{
    struct entry *e = model_entry(m, name);
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
    const struct entry *e = model_entry(m, scale);
    if (!e || e->bound) {
        snprintf(scale, sizeof scale, "%.100s.scale", name);
        e = model_entry(m, scale);
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

/* A matrix that is bound already: a head that is the embedding. */
static const struct device_matrix *bound_before(const struct model *m, const char *name,
                                                int64_t out_rows, int64_t in, int64_t n_stack)
{
    char base[NAME_MAX_BYTES], packed[2 * NAME_MAX_BYTES];
    const struct entry *e = model_entry(m, name);
    if (!e && model_base_name(name, base)) {
        snprintf(packed, sizeof packed, "%s.weight_packed", base);
        e = model_entry(m, packed);
    }
    for (size_t i = 0; e && i < m->n_matrices; i++) {
        const struct device_matrix *w = m->matrix[i].m;
        if (m->matrix[i].part[0].t == e->t && device_matrix_out(w) == out_rows &&
            device_matrix_in(w) == in && device_matrix_stack(w) == n_stack)
            return w;
    }
    return NULL;
}

/* Factors other than 1 become the matrix's. */
static ingle_status set_factors(struct device_matrix *w, const float *factor, int64_t n,
                                struct err *err)
{
    for (int64_t i = 0; i < n; i++)
        if (factor[i] < 1.0f || factor[i] > 1.0f)
            return device_matrix_set_scales(w, factor, err);
    return INGLE_OK;
}

static ingle_status create_matrix(struct model *m, const char *name, const uint64_t ne[3],
                                  float *factor, struct bound_matrix *b, struct err *err)
{
    ingle_status s = model_stored(m, name, ne, &b->part, &b->n_parts, &b->layout, factor, err);
    if (s)
        return s;
    s = (m->floats_only ? device_matrix_create_floats : device_matrix_create)(
        &b->m, m->d, b->layout.type, (int64_t)ne[1], (int64_t)ne[0], (int64_t)ne[2], err);
    if (s) {
        err_prefix(err, "'%s': tensor '%s'", io_path(m->file), b->part[0].t->name);
        mem_free(b->part);
    }
    return s;
}

/* Of "blk.N.", else -1. */
static int64_t layer_of(const char *name)
{
    char *end;
    const long n = strncmp(name, "blk.", 4) == 0 ? strtol(name + 4, &end, 10) : -1;
    return n >= 0 && *end == '.' ? n : -1;
}

ingle_status model_matrix(struct model *m, const char *name, int64_t out_rows, int64_t in,
                          int64_t n_stack, const struct device_matrix **out, struct err *err)
{
    const uint64_t ne[3] = {(uint64_t)in, (uint64_t)out_rows, (uint64_t)n_stack};
    const struct device_matrix *before = bound_before(m, name, out_rows, in, n_stack);
    struct bound_matrix b = {0};
    if (before) {
        *out = before;
        return INGLE_OK;
    }
    float *factor = mem_calloc((size_t)n_stack, sizeof *factor);
    ingle_status s =
        factor && mem_grow(&m->matrix, &m->cap_matrices, m->n_matrices + 1, sizeof *m->matrix)
            ? create_matrix(m, name, ne, factor, &b, err)
            : err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", name);
    if (s) {
        mem_free(factor);
        return s;
    }
    b.layer = layer_of(name);
    m->matrix[m->n_matrices++] = b;
    m->n_bytes += device_matrix_bytes(b.m);
    if (b.layout.from == TO_FLOATS) {
        m->widened = m->n_widened++ ? m->widened : b.part[0].t->name;
        m->wide_bytes += device_matrix_bytes(b.m);
    }
    s = b.layout.from == AS_STORED && b.layout.type == QUANT_NVFP4
            ? second_scale(m, name, b.m, n_stack, err)
            : set_factors(b.m, factor, n_stack, err);
    mem_free(factor);
    if (!s)
        *out = b.m;
    return s;
}

static struct bound_matrix *binding_of(const struct model *m, const struct device_matrix *w)
{
    for (size_t i = m->n_matrices; i-- > 0;)
        if (m->matrix[i].m == w)
            return &m->matrix[i];
    return NULL;
}

ingle_status model_experts(struct model *m, int64_t layer,
                           const struct device_matrix *const part[MODEL_PARTS],
                           struct model_experts **out, struct err *err)
{
    struct model_experts e = {.layer = layer};
    *out = NULL;
    for (int i = 0; i < MODEL_PARTS; i++) {
        const struct bound_matrix *b = part[i] ? binding_of(m, part[i]) : NULL;
        if (!part[i])
            continue;
        BUG_IF(!b);
        if (device_matrix_stack(part[i]) < 2 || b->group) /* one expert is no choice */
            return INGLE_OK;
        e.n = device_matrix_stack(part[i]);
        e.part[e.n_parts] = b->m;
        e.part_at[e.n_parts++] = e.bytes;
        e.bytes += (device_matrix_bytes(part[i]) / (uint64_t)e.n + 63) / 64 * 64;
    }
    e.bytes = (e.bytes + MODEL_EXTENT - 1) / MODEL_EXTENT * MODEL_EXTENT;
    struct model_experts *own = mem_zalloc(sizeof *own);
    if (!own || !mem_grow(&m->group, &m->cap_groups, m->n_groups + 1, sizeof(void *))) {
        mem_free(own);
        return err_set(err, INGLE_NOMEM, "no memory for the experts of layer %lld",
                       (long long)layer);
    }
    *own = e;
    m->group[m->n_groups++] = own;
    for (int i = 0; i < e.n_parts; i++)
        binding_of(m, e.part[i])->group = (int64_t)m->n_groups;
    *out = own;
    return INGLE_OK;
}

void model_keep_layers(struct model *m, int64_t from, int64_t to, bool rest,
                       const struct device_matrix *also)
{
    m->keeps = true;
    for (size_t i = 0; i < m->n_matrices; i++) {
        struct bound_matrix *b = &m->matrix[i];
        if (b->away)
            m->n_bytes += device_matrix_bytes(b->m);
        b->away = b->layer < 0 ? !rest && b->m != also : b->layer < from || b->layer >= to;
        if (b->away)
            m->n_bytes -= device_matrix_bytes(b->m);
    }
}

/* The experts of a layer that is not loaded. */
static bool is_away(const struct model *m, const struct model_experts *e)
{
    for (size_t i = 0; i < m->n_matrices; i++)
        if (m->matrix[i].m == e->part[0])
            return m->matrix[i].away;
    return false;
}

uint64_t model_layer_bytes(const struct model *m, int64_t layer, bool experts)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->n_matrices; i++)
        if (m->matrix[i].layer == layer && experts == (m->matrix[i].group != 0))
            n += device_matrix_bytes(m->matrix[i].m);
    return n;
}

int64_t model_layer_after(const struct model *m, int64_t layer)
{
    int64_t next = -1;
    for (size_t i = 0; i < m->n_matrices; i++)
        if (m->matrix[i].layer > layer && (next < 0 || m->matrix[i].layer < next))
            next = m->matrix[i].layer;
    return next;
}

void model_place(struct model *m, int64_t layer, bool experts, const struct device_matrix *but,
                 enum device_side side)
{
    for (size_t i = 0; i < m->n_matrices; i++)
        if (m->matrix[i].layer == layer && experts == (m->matrix[i].group != 0) &&
            m->matrix[i].m != but)
            device_matrix_want(m->matrix[i].m, side);
    for (size_t i = 0; !experts && i < m->n_vectors; i++)
        if (m->vector_layer[i] == layer)
            device_vector_want(m->vector[i], side);
}

uint64_t model_card_bytes(const struct model *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->n_matrices; i++)
        n += device_matrix_side(m->matrix[i].m) == DEVICE_CARD
                 ? device_matrix_bytes(m->matrix[i].m)
                 : 0;
    return n;
}

size_t model_n_experts(const struct model *m)
{
    return m->n_groups;
}

struct model_experts *model_experts_at(const struct model *m, size_t i)
{
    return m->group[i];
}

uint64_t model_expert_bytes(const struct model *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->n_groups; i++)
        n += is_away(m, m->group[i]) ? 0 : (uint64_t)m->group[i]->n * m->group[i]->bytes;
    return n;
}

/* The bytes of a tensor of this shape; the caller frees them. */
static ingle_status slurp(struct model *m, const char *name, const uint64_t ne[3],
                          struct entry **e, void **out, struct err *err)
{
    ingle_status s = model_want(m, name, ne, e, err);
    if (s)
        return s;
    const struct io_tensor *t = (*e)->t;
    void *stored = mem_alloc(t->n_bytes);
    if (!stored)
        return err_set(err, INGLE_NOMEM, "no %llu bytes for tensor '%s'",
                       (unsigned long long)t->n_bytes, t->name);
    s = io_read(m->file, t, 0, stored, t->n_bytes, err);
    if (s) {
        mem_free(stored);
    } else {
        model_sum_add(m, t, stored, t->n_bytes);
        *out = stored;
    }
    return s;
}

ingle_status model_floats_3d(struct model *m, const char *name, int64_t width, int64_t rows,
                             int64_t n, float *out, struct err *err)
{
    struct entry *e;
    void *stored = NULL;
    const uint64_t ne[3] = {(uint64_t)width, (uint64_t)rows, (uint64_t)n};
    ingle_status s = slurp(m, name, ne, &e, &stored, err);
    if (s)
        return s;
    const struct io_tensor *t = e->t;
    if (t->type == QUANT_F32 || t->type == QUANT_F16 || t->type == QUANT_BF16)
        quant_decode(t->type, stored, out, (size_t)(width * rows * n));
    else
        s = err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has type %s, expected F32, F16 or BF16",
                    io_path(m->file), t->name, quant_info(t->type)->name);
    mem_free(stored);
    for (int64_t i = 0; !s && i < width * rows * n; i++)
        if (!(out[i] - out[i] >= 0.0f)) /* NaN and infinities differ from themselves */
            s = err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has no number at %lld",
                        io_path(m->file), t->name, (long long)i);
    if (!s)
        e->bound = true;
    return s;
}

ingle_status model_floats_2d(struct model *m, const char *name, int64_t width, int64_t rows,
                             float *out, struct err *err)
{
    return model_floats_3d(m, name, width, rows, 1, out, err);
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

/* The weights of a norm that are all zero: nothing would come through it. */
static bool is_nothing(const float *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (v[i] > 0 || v[i] < 0)
            return false;
    return true;
}

ingle_status model_vector(struct model *m, const char *name, int64_t n,
                          const struct device_vector **out, struct err *err)
{
    struct entry *e;
    const uint64_t ne[3] = {(uint64_t)n, 1, 1};
    ingle_status s = model_want(m, name, ne, &e, err); /* before memory is taken for n */
    if (s)
        return s;
    float *v = mem_calloc((size_t)n, sizeof *v);
    if (!v || !mem_grow(&m->vector, &m->cap_vectors, m->n_vectors + 1, sizeof(void *)) ||
        !mem_grow(&m->vector_layer, &m->cap_vector_layers, m->n_vectors + 1,
                  sizeof *m->vector_layer)) {
        mem_free(v);
        return err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", name);
    }
    struct device_vector *w = NULL;
    s = model_floats(m, name, n, v, err);
    if (!s && !m->nothing && strstr(name, "norm") && is_nothing(v, n))
        m->nothing = e->t->name; /* reported when it is loaded: a plan needs only shapes */
    if (!s)
        s = device_vector_create(&w, m->d, v, n, err);
    mem_free(v);
    if (s)
        return s;
    m->vector_layer[m->n_vectors] = layer_of(name);
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
    const ingle_status s = model_want(m, name, ne, &e, err);
    if (s)
        return s;
    const uint32_t type = e->t->type;
    if (type != QUANT_F32 && type != QUANT_F16 && type != QUANT_BF16 &&
        !quant_info(type)->quantised)
        return err_set(
            err, INGLE_UNSUP,
            "'%s': tensor '%s' is a table of type %s, expected F32, F16, BF16 or blocks of a GGUF",
            io_path(m->file), e->t->name, quant_info(type)->name);
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
    /* Read, not mapped: of a file that is cut short, a map ends the process. */
    const ingle_status s =
        io_read(t->model->file, t->t, (uint64_t)i * t->row_bytes, stored, t->row_bytes, err);
    if (!s)
        quant_decode(t->t->type, stored, dst, (size_t)t->width);
    return s;
}

static bool is_single(uint32_t type)
{
    return type == QUANT_F32 || type == QUANT_F16 || type == QUANT_BF16 ||
           (quant_info(type)->quantised && type != QUANT_NVFP4 && type < QUANT_FP8_E4M3);
}

ingle_status model_same(const struct model *m, const char *a, const char *b, bool *out,
                        struct err *err)
{
    enum { PIECE = 256 << 10 };
    const struct io_tensor *x = model_find(m, a), *y = model_find(m, b);
    *out = false;
    if (!x || !y || x->type != y->type || x->n_bytes != y->n_bytes ||
        memcmp(x->ne, y->ne, sizeof x->ne) || !is_single(x->type))
        return INGLE_OK;
    uint8_t *buffer = mem_alloc(2 * PIECE);
    if (!buffer)
        return err_set(err, INGLE_NOMEM, "no memory to compare tensors '%s' and '%s'", x->name,
                       y->name);
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
    static const char *const prefix[] = {"v.",           "a.",
                                         "mm.",          "vision_tower.",
                                         "audio_tower.", "embed_vision.",
                                         "embed_audio.", "vision_embedder.",
                                         "multi_modal_projector."};
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

/* "X" of X.weight and X.weight_packed, as names stand in the file: what is used under it. */
struct stem { const char *name; size_t n; };

static int stem_order(const void *a, const void *b)
{
    const struct stem *x = a, *y = b;
    const int c = memcmp(x->name, y->name, x->n < y->n ? x->n : y->n);
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

/* Length of a name's part before its last dot. */
static size_t stem_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

/* How activations, or keys and values, were rounded where the checkpoint was made to be served.
 * Here neither are rounded so: nothing is to be undone. */
static bool is_step(const struct model *m, const char *last)
{
    static const char *const inputs[] = {"input_scale", "input_global_scale", "input_zero_point"};
    static const char *const cache[] = {"k_scale",      "v_scale",      "q_scale",
                                        "output_scale", "k_zero_point", "v_zero_point"};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (str_ends(last, inputs[i]))
            return true;
    for (size_t i = 0; i < sizeof cache / sizeof *cache; i++)
        if (!strcmp(last, cache[i]))
            return model_scheme_has_cache(m);
    return false;
}

/* Names that are never a model's own parameter: part of a stored matrix. */
static bool is_part_of_matrix(const char *last)
{
    static const char *const names[] = {"qweight", "qzeros", "scales",   "biases",
                                        "g_idx",   "absmax", "quant_map"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(last, names[i]))
            return true;
    return strstr(last, "scale") || !strncmp(last, "weight_", 7);
}

/* A tensor that nobody asked for is an error where it belongs to a matrix that is used. */
static ingle_status check_standalone(const struct model *m, const struct stem *used, size_t n_used,
                                     const struct entry *e, struct err *err)
{
    const char *name = e->t->name;
    const struct stem stem = {name, stem_of(name)};
    const char *last = name + stem.n + (stem.n != 0);
    const bool belongs = stem.n && n_used && bsearch(&stem, used, n_used, sizeof *used, stem_order);
    if (is_step(m, last))
        return INGLE_OK;
    if (belongs)
        return err_set(err, INGLE_UNSUP,
                       "'%s': tensor '%s' belongs to the matrix '%.*s.weight', which is used, but "
                       "is not read itself: products would "
                       "be wrong",
                       io_path(m->file), name, (int)stem.n, name);
    if (!is_part_of_matrix(last))
        return INGLE_OK;
    char weight[600];
    snprintf(weight, sizeof weight, "%.*s.weight", (int)stem.n, name);
    if (io_tensor_find(m->file, weight) && strcmp(weight, name) != 0)
        return INGLE_OK; /* which is left out, too */
    return err_set(err, INGLE_FORMAT,
                   "'%s': '%s' belongs to no matrix that is used: products would be wrong",
                   io_path(m->file), name);
}

/* The stems of all that is used, sorted; the caller frees them. */
static ingle_status used_stems(const struct model *m, struct stem **out, size_t *n, struct err *err)
{
    struct stem *s = mem_calloc(m->n_entries ? m->n_entries : 1, sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for %zu tensor names", m->n_entries);
    *n = 0;
    for (size_t i = 0; i < m->n_entries; i++) {
        const char *name = m->entry[i].t->name;
        if (m->entry[i].bound && (str_ends(name, ".weight") || str_ends(name, ".weight_packed")))
            s[(*n)++] = (struct stem){name, stem_of(name)};
    }
    qsort(s, *n, sizeof *s, stem_order);
    *out = s;
    return INGLE_OK;
}

static void report_widened(const struct model *m)
{
    if (m->n_widened)
        report(m->sink, INGLE_REPORT_WARN, "tensor", m->widened,
               "%zu matrices are loaded as F32, %s: no format in memory holds their scales without "
               "loss",
               m->n_widened, SIZE_OF(m->wide_bytes));
}

ingle_status model_check_unused(struct model *m, struct err *err)
{
    size_t n[MAX_SKIPS + 3] = {0}, n_used = 0;
    const char *first[MAX_SKIPS + 3] = {0};
    const int steps = m->n_skips + 2;
    struct stem *used = NULL;
    ingle_status s = used_stems(m, &used, &n_used, err);
    if (s)
        return s;
    for (size_t i = 0; !s && i < m->n_entries; i++) {
        const struct entry *e = &m->entry[i];
        if (e->bound)
            continue;
        int part = part_of(m, e);
        if (part > m->n_skips) {
            const size_t at = stem_of(e->t->name);
            s = check_standalone(m, used, n_used, e, err);
            part = is_step(m, e->t->name + at + (at != 0)) ? steps : part;
        }
        if (!n[part]++)
            first[part] = e->t->name;
    }
    mem_free(used);
    if (s)
        return s;
    if (n[m->n_skips])
        report(m->sink, INGLE_REPORT_NOTE, "tensor", first[m->n_skips],
               "%zu tensors of encoders of pictures and sound are no part of the language model",
               n[m->n_skips]);
    if (n[m->n_skips + 1])
        report(m->sink, INGLE_REPORT_WARN, "tensor", first[m->n_skips + 1],
               "%zu tensors of this file are not used by its family", n[m->n_skips + 1]);
    if (n[steps])
        report(
            m->sink, INGLE_REPORT_DEBUG, "tensor", first[steps],
            "%zu steps of activations and caches are skipped: neither are rounded with them here",
            n[steps]);
    report_widened(m);
    return INGLE_OK;
}

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t) * (const struct io_tensor *const *)a,
                    y = (uintptr_t) * (const struct io_tensor *const *)b;
    return x < y ? -1 : x > y;
}

ingle_status model_report_skipped(const struct model *m, const struct model *other, struct err *err)
{
    const size_t most = other && other->n_entries ? other->n_entries : 1;
    const struct io_tensor **used = mem_calloc(most, sizeof(*used));
    size_t n_used = 0, n[MAX_SKIPS + 2] = {0};
    const char *first[MAX_SKIPS + 2] = {0};
    if (!used)
        return err_set(err, INGLE_NOMEM, "no memory for %zu tensor names", most);
    for (size_t i = 0; other && i < other->n_entries; i++)
        if (other->entry[i].bound)
            used[n_used++] = other->entry[i].t;
    qsort(used, n_used, sizeof *used, by_address);
    for (size_t i = 0; i < m->n_entries; i++) {
        const struct entry *e = &m->entry[i];
        const int part = part_of(m, e);
        if (e->bound || part >= m->n_skips ||
            (n_used && bsearch(&e->t, used, n_used, sizeof(*used), by_address)))
            continue;
        if (!n[part]++)
            first[part] = e->t->name;
    }
    mem_free(used);
    for (int i = 0; i < m->n_skips; i++)
        if (n[i])
            report(m->sink, INGLE_REPORT_NOTE, "tensor", first[i], "%zu tensors are skipped: %s",
                   n[i], m->skip[i].what);
    return INGLE_OK;
}

uint64_t model_identity(const struct model *m)
{
    XXH64_hash_t h = 0;
    for (size_t i = 0; i < m->n_entries; i++) {
        const struct io_tensor *t = m->entry[i].t;
        h = XXH3_64bits_withSeed(m->entry[i].name, strlen(m->entry[i].name), h);
        h = XXH3_64bits_withSeed(&t->type, sizeof t->type, h);
        h = XXH3_64bits_withSeed(t->ne, sizeof t->ne, h);
    }
    return h;
}
