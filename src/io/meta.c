/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata: typed values by key, and getters that check type and range. */
#include "io/inner.h"

#include "base/mem.h"
#include "base/num.h"
#include <stdlib.h>
#include <string.h>

static const size_t BUDGET = (size_t)1 << 30;

struct io_meta {
    char *name; /* of the file, for messages; NULL: none */
    struct io_arena arena;
    struct io_value *value;
    size_t n, cap;
    uint32_t *order; /* indices of value[], ascending by key */
    size_t n_order, cap_order;
};

size_t io_gguf_size(uint32_t type)
{
    static const uint8_t size[GGUF_N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
    return type < GGUF_N_TYPES ? size[type] : 0;
}

enum io_value_kind io_gguf_kind(uint32_t type)
{
    switch (type) {
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        return IO_I64;
    case GGUF_F32:
    case GGUF_F64:
        return IO_F64;
    case GGUF_BOOL:
        return IO_BOOL;
    case GGUF_STR:
        return IO_STR;
    case GGUF_ARRAY:
        return IO_ARRAY;
    default:
        return IO_U64;
    }
}

struct io_meta *io_meta_create(void)
{
    struct io_meta *m = mem_zalloc(sizeof *m);
    if (m)
        io_arena_init(&m->arena, BUDGET);
    return m;
}

void io_meta_free(struct io_meta *m)
{
    if (!m)
        return;
    io_arena_release(&m->arena);
    mem_free(m->name);
    mem_free(m->value);
    mem_free(m->order);
    mem_free(m);
}

ingle_status io_meta_set_name(struct io_meta *m, const char *name)
{
    char *copy = mem_strdup(name);
    if (!copy)
        return INGLE_NOMEM;
    mem_free(m->name);
    m->name = copy;
    return INGLE_OK;
}

struct io_arena *io_meta_arena(struct io_meta *m)
{
    return &m->arena;
}

size_t io_meta_count(const struct io_meta *m)
{
    return m->n;
}

const struct io_value *io_meta_at(const struct io_meta *m, size_t i)
{
    return i < m->n ? &m->value[i] : NULL;
}

/* The place of key in order[], or the place where it belongs. */
static size_t meta_place(const struct io_meta *m, const char *key, bool *found)
{
    size_t lo = 0, hi = m->n_order;
    *found = false;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const int c = strcmp(m->value[m->order[mid]].key, key);
        if (c == 0) {
            *found = true;
            return mid;
        }
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const struct io_value *io_meta_find(const struct io_meta *m, const char *key)
{
    bool found;
    const size_t i = meta_place(m, key, &found);
    return found ? &m->value[m->order[i]] : NULL;
}

ingle_status io_meta_append(struct io_meta *m, const struct io_value *v, struct err *err)
{
    if (m->n >= UINT32_MAX || !mem_grow(&m->value, &m->cap, m->n + 1, sizeof *m->value))
        return err_set(err, INGLE_NOMEM, "no memory for %zu metadata values", m->n + 1);
    m->value[m->n++] = *v;
    return INGLE_OK;
}

static int value_order(const void *a, const void *b)
{
    const struct io_value *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

ingle_status io_meta_seal(struct io_meta *m, struct err *err)
{
    if (!m->n)
        return INGLE_OK;
    const struct io_value **by_key = mem_calloc(m->n, sizeof *by_key);
    if (!by_key || !mem_grow(&m->order, &m->cap_order, m->n, sizeof *m->order)) {
        mem_free(by_key);
        return err_set(err, INGLE_NOMEM, "no memory to sort %zu keys", m->n);
    }
    ingle_status s = INGLE_OK;
    for (size_t i = 0; i < m->n; i++)
        by_key[i] = &m->value[i];
    qsort(by_key, m->n, sizeof *by_key, value_order);
    for (size_t i = 0; i < m->n; i++) {
        m->order[i] = (uint32_t)(by_key[i] - m->value);
        if (i && !s && strcmp(by_key[i]->key, by_key[i - 1]->key) == 0)
            s = err_set(err, INGLE_FORMAT, "key '%s' is there twice", by_key[i]->key);
    }
    m->n_order = m->n;
    mem_free(by_key);
    return s;
}

/* Puts v under key, whose parts are in the arena already. */
static ingle_status meta_put(struct io_meta *m, const char *key, struct io_value v)
{
    bool found;
    const size_t at = meta_place(m, key, &found);
    if (found) {
        struct io_value *old = &m->value[m->order[at]];
        v.key = old->key;
        *old = v;
        return INGLE_OK;
    }
    ingle_status s = io_arena_copy(&m->arena, key, strlen(key), &v.key, NULL);
    if (s)
        return s;
    if (!mem_grow(&m->order, &m->cap_order, m->n_order + 1, sizeof *m->order))
        return INGLE_NOMEM;
    s = io_meta_append(m, &v, NULL);
    if (s)
        return s;
    memmove(m->order + at + 1, m->order + at, (m->n_order - at) * sizeof *m->order);
    m->order[at] = (uint32_t)(m->n - 1);
    m->n_order++;
    return INGLE_OK;
}

ingle_status io_meta_set_u64(struct io_meta *m, const char *key, uint64_t v)
{
    return meta_put(m, key,
                    (struct io_value){.kind = IO_U64, .gguf_type = GGUF_U64, .n = 1, .v.u = v});
}

ingle_status io_meta_set_f64(struct io_meta *m, const char *key, double v)
{
    return meta_put(m, key,
                    (struct io_value){.kind = IO_F64, .gguf_type = GGUF_F64, .n = 1, .v.f = v});
}

ingle_status io_meta_set_bool(struct io_meta *m, const char *key, bool v)
{
    return meta_put(m, key,
                    (struct io_value){.kind = IO_BOOL, .gguf_type = GGUF_BOOL, .n = 1, .v.b = v});
}

ingle_status io_meta_set_str(struct io_meta *m, const char *key, const char *s, size_t n)
{
    struct io_value v = {.kind = IO_STR, .gguf_type = GGUF_STR, .n = n};
    ingle_status st = io_arena_copy(&m->arena, s, n, &v.v.s, NULL);
    return st ? st : meta_put(m, key, v);
}

static ingle_status meta_set_array(struct io_meta *m, const char *key, struct io_value v,
                                   const void *from, size_t size)
{
    void *at;
    size_t n_bytes;
    if (!num_mul(v.n, size, &n_bytes))
        return INGLE_LIMIT;
    ingle_status s = io_arena_take(&m->arena, n_bytes, &at, NULL);
    if (s)
        return s;
    if (n_bytes)
        memcpy(at, from, n_bytes);
    v.v.array = at;
    return meta_put(m, key, v);
}

ingle_status io_meta_set_u64s(struct io_meta *m, const char *key, const uint64_t *v, size_t n)
{
    const struct io_value a = {.kind = IO_ARRAY, .elem = IO_U64, .gguf_type = GGUF_U64, .n = n};
    return meta_set_array(m, key, a, v, sizeof *v);
}

ingle_status io_meta_set_f64s(struct io_meta *m, const char *key, const double *v, size_t n)
{
    const struct io_value a = {.kind = IO_ARRAY, .elem = IO_F64, .gguf_type = GGUF_F64, .n = n};
    return meta_set_array(m, key, a, v, sizeof *v);
}

ingle_status io_meta_set_bools(struct io_meta *m, const char *key, const bool *v, size_t n)
{
    const struct io_value a = {.kind = IO_ARRAY, .elem = IO_BOOL, .gguf_type = GGUF_BOOL, .n = n};
    static_assert(sizeof(bool) == 1, "bools are stored as GGUF stores them");
    return meta_set_array(m, key, a, v, sizeof *v);
}

/* Element i of an array as it is stored in a file: the low bytes of *bits. */
static bool array_bits(const struct io_value *a, size_t i, enum io_value_kind elem, uint64_t *bits)
{
    if (!a || a->kind != IO_ARRAY || a->elem != elem || i >= a->n)
        return false;
    const size_t size = io_gguf_size(a->gguf_type);
    *bits = 0;
    memcpy(bits, (const char *)a->v.array + i * size, size);
    return true;
}

uint64_t io_array_u64(const struct io_value *a, size_t i)
{
    uint64_t bits;
    return array_bits(a, i, IO_U64, &bits) ? bits : 0;
}

int64_t io_array_i64(const struct io_value *a, size_t i)
{
    uint64_t bits;
    if (!array_bits(a, i, IO_I64, &bits))
        return 0;
    const size_t n_bits = 8 * io_gguf_size(a->gguf_type);
    if (n_bits < 64 && bits >> (n_bits - 1))
        bits |= ~(uint64_t)0 << n_bits;
    int64_t v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

double io_array_f64(const struct io_value *a, size_t i)
{
    uint64_t bits;
    if (!array_bits(a, i, IO_F64, &bits))
        return 0;
    if (a->gguf_type == GGUF_F32) {
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

bool io_array_bool(const struct io_value *a, size_t i)
{
    uint64_t bits;
    return array_bits(a, i, IO_BOOL, &bits) && bits;
}

const char *io_array_str(const struct io_value *a, size_t i, size_t *n)
{
    if (!a || a->kind != IO_ARRAY || a->elem != IO_STR || i >= a->n) {
        *n = 0;
        return NULL;
    }
    const struct io_string *s = (const struct io_string *)a->v.array + i;
    *n = s->n;
    return s->s;
}

/* ---- getters ---- */

static const char *meta_name(const struct io_meta *m)
{
    return m->name ? m->name : "metadata";
}

static const char *kind_name(const struct io_value *v)
{
    static const char *const scalar[] = {"an unsigned integer", "an integer", "a float", "a bool",
                                         "a string"};
    static const char *const array[] = {"an array of unsigned integers", "an array of integers",
                                        "an array of floats", "an array of bools",
                                        "an array of strings"};
    return v->kind == IO_ARRAY ? array[v->elem] : scalar[v->kind];
}

static ingle_status get_value(const struct io_meta *m, const char *key, const struct io_value **out,
                              struct err *err)
{
    *out = io_meta_find(m, key);
    if (!*out)
        return err_set(err, INGLE_NOTFOUND, "%s: key '%s' is missing", meta_name(m), key);
    return INGLE_OK;
}

static ingle_status wrong_kind(const struct io_meta *m, const struct io_value *v, const char *want,
                               struct err *err)
{
    return err_set(err, INGLE_FORMAT, "%s: key '%s' is %s where %s is needed", meta_name(m), v->key,
                   kind_name(v), want);
}

/* Scalar v, or element i of array v, as an unsigned integer. */
static ingle_status elem_u64(const struct io_meta *m, const struct io_value *v, size_t i,
                             uint64_t min, uint64_t max, uint64_t *out, struct err *err)
{
    const enum io_value_kind kind = v->kind == IO_ARRAY ? v->elem : v->kind;
    uint64_t u;
    if (kind == IO_I64) {
        const int64_t s = v->kind == IO_ARRAY ? io_array_i64(v, i) : v->v.i;
        if (s < 0)
            return err_set(err, INGLE_FORMAT,
                           "%s: key '%s' is %lld at [%zu], allowed is %llu to %llu", meta_name(m),
                           v->key, (long long)s, i, (unsigned long long)min,
                           (unsigned long long)max);
        u = (uint64_t)s;
    } else if (kind == IO_U64) {
        u = v->kind == IO_ARRAY ? io_array_u64(v, i) : v->v.u;
    } else {
        return wrong_kind(m, v, "an integer", err);
    }
    if (u < min || u > max)
        return err_set(err, INGLE_FORMAT, "%s: key '%s' is %llu at [%zu], allowed is %llu to %llu",
                       meta_name(m), v->key, (unsigned long long)u, i, (unsigned long long)min,
                       (unsigned long long)max);
    *out = u;
    return INGLE_OK;
}

static ingle_status elem_f64(const struct io_meta *m, const struct io_value *v, size_t i,
                             double min, double max, double *out, struct err *err)
{
    const bool array = v->kind == IO_ARRAY;
    double f;
    switch (array ? v->elem : v->kind) {
    case IO_F64:
        f = array ? io_array_f64(v, i) : v->v.f;
        break;
    case IO_U64:
        f = (double)(array ? io_array_u64(v, i) : v->v.u);
        break;
    case IO_I64:
        f = (double)(array ? io_array_i64(v, i) : v->v.i);
        break;
    default:
        return wrong_kind(m, v, "a number", err);
    }
    if (!(f >= min && f <= max)) /* a NaN is in no range */
        return err_set(err, INGLE_FORMAT, "%s: key '%s' is %g at [%zu], allowed is %g to %g",
                       meta_name(m), v->key, f, i, min, max);
    *out = f;
    return INGLE_OK;
}

static ingle_status elem_bool(const struct io_meta *m, const struct io_value *v, size_t i,
                              bool *out, struct err *err)
{
    if ((v->kind == IO_ARRAY ? v->elem : v->kind) != IO_BOOL)
        return wrong_kind(m, v, "a bool", err);
    *out = v->kind == IO_ARRAY ? io_array_bool(v, i) : v->v.b;
    return INGLE_OK;
}

ingle_status io_get_u64(const struct io_meta *m, const char *key, uint64_t min, uint64_t max,
                        uint64_t *out, struct err *err)
{
    const struct io_value *v;
    ingle_status s = get_value(m, key, &v, err);
    if (!s && v->kind == IO_ARRAY)
        s = wrong_kind(m, v, "an integer", err);
    return s ? s : elem_u64(m, v, 0, min, max, out, err);
}

ingle_status io_get_f64(const struct io_meta *m, const char *key, double min, double max,
                        double *out, struct err *err)
{
    const struct io_value *v;
    ingle_status s = get_value(m, key, &v, err);
    if (!s && v->kind == IO_ARRAY)
        s = wrong_kind(m, v, "a number", err);
    return s ? s : elem_f64(m, v, 0, min, max, out, err);
}

ingle_status io_get_bool(const struct io_meta *m, const char *key, bool *out, struct err *err)
{
    const struct io_value *v;
    ingle_status s = get_value(m, key, &v, err);
    if (!s && v->kind == IO_ARRAY)
        s = wrong_kind(m, v, "a bool", err);
    return s ? s : elem_bool(m, v, 0, out, err);
}

ingle_status io_get_str(const struct io_meta *m, const char *key, const char **str, size_t *n,
                        struct err *err)
{
    const struct io_value *v;
    ingle_status s = get_value(m, key, &v, err);
    if (s)
        return s;
    if (v->kind != IO_STR)
        return wrong_kind(m, v, "a string", err);
    *str = v->v.s;
    *n = v->n;
    return INGLE_OK;
}

/* Finds key and checks that it can give n_expected elements. */
static ingle_status get_many(const struct io_meta *m, const char *key, size_t n_expected,
                             const struct io_value **out, struct err *err)
{
    ingle_status s = get_value(m, key, out, err);
    if (!s && (*out)->kind == IO_ARRAY && (*out)->n < n_expected)
        s = err_set(err, INGLE_FORMAT, "%s: key '%s' has %zu elements, at least %zu are needed",
                    meta_name(m), key, (*out)->n, n_expected);
    return s;
}

ingle_status io_get_u64s(const struct io_meta *m, const char *key, size_t n_expected, uint64_t min,
                         uint64_t max, uint64_t *out, struct err *err)
{
    const struct io_value *v;
    ingle_status s = get_many(m, key, n_expected, &v, err);
    uint64_t probe;
    for (size_t i = 0; i < n_expected && !s; i++)
        s = elem_u64(m, v, i, min, max, &probe, err);
    for (size_t i = 0; i < n_expected && !s; i++)
        s = elem_u64(m, v, i, min, max, &out[i], err);
    return s;
}

ingle_status io_get_f64s(const struct io_meta *m, const char *key, size_t n_expected, double min,
                         double max, double *out, struct err *err)
{
    const struct io_value *v;
    ingle_status s = get_many(m, key, n_expected, &v, err);
    double probe;
    for (size_t i = 0; i < n_expected && !s; i++)
        s = elem_f64(m, v, i, min, max, &probe, err);
    for (size_t i = 0; i < n_expected && !s; i++)
        s = elem_f64(m, v, i, min, max, &out[i], err);
    return s;
}

ingle_status io_get_bools(const struct io_meta *m, const char *key, size_t n_expected, bool *out,
                          struct err *err)
{
    const struct io_value *v;
    ingle_status s = get_many(m, key, n_expected, &v, err);
    bool probe;
    for (size_t i = 0; i < n_expected && !s; i++)
        s = elem_bool(m, v, i, &probe, err);
    for (size_t i = 0; i < n_expected && !s; i++)
        s = elem_bool(m, v, i, &out[i], err);
    return s;
}
