/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: one file, or a directory of shards with an index. */
#include "io/inner.h"
#include "io/table.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include <stdlib.h>
#include <string.h>

enum {
    MAX_HEADER = 100000000,
    MAX_TENSORS = 1048576,
    MAX_NAME = 512,
    MAX_DEPTH = 4,
    MAX_META = 65536,
    MAX_INDEX = 64 << 20,
    MAX_SHARDS = 1024
};
static const int64_t MAX_INTEGER = (int64_t)1 << 53;

typedef unsigned long long ull; /* for %llu */

/* The first name of a type is the one that is written. */
static const struct {
    const char *name;
    uint32_t type;
} dtypes[] = {
    {"F32", QUANT_F32}, {"F16", QUANT_F16},          {"BF16", QUANT_BF16},    {"F64", QUANT_F64},
    {"I8", QUANT_I8},   {"I16", QUANT_I16},          {"I32", QUANT_I32},      {"I64", QUANT_I64},
    {"U8", QUANT_U8},   {"BOOL", QUANT_BOOL},        {"U16", QUANT_I16},      {"U32", QUANT_I32},
    {"U64", QUANT_I64}, {"F8_E4M3", QUANT_FP8_E4M3}, {"F8_E8M0", QUANT_E8M0},
};

const char *io_dtype_name(uint32_t type)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].type == type)
            return dtypes[i].name;
    return NULL;
}

/* One file while it is read. */
struct st {
    struct io_file *f;
    uint32_t part;
    const char *path;
    uint64_t data, n_data; /* where the data begins, its bytes */
    size_t first_tensor;
    struct err *err;
};

static ingle_status get_integer(struct st *st, struct json_object *o, const char *name,
                                const char *what, uint64_t *out)
{
    if (!json_object_is_type(o, json_type_int))
        return err_set(st->err, INGLE_FORMAT, "%s: tensor '%s': %s is no plain integer", st->path,
                       name, what);
    const int64_t v = json_object_get_int64(o);
    if (v < 0 || v > MAX_INTEGER)
        return err_set(st->err, INGLE_FORMAT, "%s: tensor '%s': %s is %lld, allowed is 0 to %lld",
                       st->path, name, what, (long long)v, (long long)MAX_INTEGER);
    *out = (uint64_t)v;
    return INGLE_OK;
}

static ingle_status get_dtype(struct st *st, struct json_object *o, struct io_tensor *t)
{
    if (!json_object_is_type(o, json_type_string))
        return err_set(st->err, INGLE_FORMAT, "%s: tensor '%s': dtype is no string", st->path,
                       t->name);
    const char *name = json_object_get_string(o);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            t->type = dtypes[i].type;
            return INGLE_OK;
        }
    return err_set(st->err, INGLE_UNSUP, "%s: tensor '%s': dtype '%s' is not read by this build",
                   st->path, t->name, io_show(name, strlen(name)).text);
}

/* shape: slowest axis first, so ne[] is its reverse. */
static ingle_status get_shape(struct st *st, struct json_object *o, struct io_tensor *t,
                              uint64_t *n_elements)
{
    if (!json_object_is_type(o, json_type_array))
        return err_set(st->err, INGLE_FORMAT, "%s: tensor '%s': shape is no array", st->path,
                       t->name);
    const size_t rank = json_object_array_length(o);
    if (rank > IO_MAX_DIMS)
        return err_set(st->err, INGLE_LIMIT,
                       "%s: tensor '%s': shape has %zu dimensions, the limit is %d", st->path,
                       t->name, rank, IO_MAX_DIMS);
    t->n_dims = (uint32_t)rank;
    *n_elements = 1;
    for (size_t i = 0; i < IO_MAX_DIMS; i++)
        t->ne[i] = 1;
    for (size_t i = 0; i < rank; i++) {
        uint64_t *ne = &t->ne[rank - 1 - i];
        ingle_status s =
            get_integer(st, json_object_array_get_idx(o, i), t->name, "a dimension of shape", ne);
        if (s)
            return s;
        if (!num_mul_u64(*n_elements, *ne, n_elements))
            return err_set(st->err, INGLE_LIMIT,
                           "%s: tensor '%s': shape has more than 2^64 elements", st->path, t->name);
    }
    return INGLE_OK;
}

static ingle_status get_offsets(struct st *st, struct json_object *o, struct io_tensor *t,
                                uint64_t n_elements)
{
    uint64_t end, need;
    if (!json_object_is_type(o, json_type_array) || json_object_array_length(o) != 2)
        return err_set(st->err, INGLE_FORMAT, "%s: tensor '%s': data_offsets is no pair", st->path,
                       t->name);
    ingle_status s =
        get_integer(st, json_object_array_get_idx(o, 0), t->name, "data_offsets[0]", &t->offset);
    if (!s)
        s = get_integer(st, json_object_array_get_idx(o, 1), t->name, "data_offsets[1]", &end);
    if (s)
        return s;
    if (end < t->offset || end > st->n_data)
        return err_set(st->err, INGLE_FORMAT,
                       "%s: tensor '%s': data_offsets is %llu to %llu, the data has %llu bytes%s",
                       st->path, t->name, (ull)t->offset, (ull)end, (ull)st->n_data,
                       end < t->offset ? "" : ": the file is not complete");
    t->n_bytes = end - t->offset;
    if (!num_mul_u64(n_elements, quant_info(t->type)->n_bytes, &need) || need != t->n_bytes)
        return err_set(
            st->err, INGLE_FORMAT,
            "%s: tensor '%s': data_offsets spans %llu bytes, but %llu elements of %s need %llu",
            st->path, t->name, (ull)t->n_bytes, (ull)n_elements, quant_info(t->type)->name,
            (ull)n_elements * quant_info(t->type)->n_bytes);
    return INGLE_OK;
}

static ingle_status st_tensor(struct st *st, const char *name, struct json_object *o)
{
    const size_t n_name = strlen(name);
    struct io_tensor t = {.name = name, .file = st->part};
    struct json_object *dtype = NULL, *shape = NULL, *offsets = NULL;
    if (n_name < 1 || n_name > MAX_NAME)
        return err_set(st->err, INGLE_LIMIT,
                       "%s: tensor name '%s' has %zu bytes, allowed is 1 to %d", st->path,
                       io_show(name, n_name).text, n_name, MAX_NAME);
    if (st->f->n_tensors >= MAX_TENSORS)
        return err_set(st->err, INGLE_LIMIT, "%s: more than %d tensors", st->path, MAX_TENSORS);
    if (!json_object_is_type(o, json_type_object) || json_object_object_length(o) != 3 ||
        !json_object_object_get_ex(o, "dtype", &dtype) ||
        !json_object_object_get_ex(o, "shape", &shape) ||
        !json_object_object_get_ex(o, "data_offsets", &offsets))
        return err_set(st->err, INGLE_FORMAT,
                       "%s: tensor '%s' must have dtype, shape and data_offsets and nothing else",
                       st->path, io_show(name, n_name).text);
    uint64_t n_elements = 0;
    ingle_status s = get_dtype(st, dtype, &t);
    if (!s)
        s = get_shape(st, shape, &t, &n_elements);
    if (!s)
        s = get_offsets(st, offsets, &t, n_elements);
    return s ? s : io_tensor_add(st->f, &t, n_name, st->err);
}

/* Only the first file's __metadata__ is kept; all are checked. */
static ingle_status st_metadata(struct st *st, struct json_object *o)
{
    struct io_meta *m = st->f->meta;
    if (!json_object_is_type(o, json_type_object) || json_object_object_length(o) > MAX_META)
        return err_set(st->err, INGLE_FORMAT, "%s: __metadata__ is no object of at most %d strings",
                       st->path, MAX_META);
    json_object_object_foreach(o, key, val)
    {
        struct io_value v = {.kind = IO_STR, .gguf_type = GGUF_STR};
        if (!json_object_is_type(val, json_type_string))
            return err_set(st->err, INGLE_FORMAT, "%s: __metadata__ '%s' is no string", st->path,
                           io_show(key, strlen(key)).text);
        if (st->part)
            continue;
        v.n = (size_t)json_object_get_string_len(val);
        ingle_status s = io_arena_copy(io_meta_arena(m), key, strlen(key), &v.key, st->err);
        if (!s)
            s = io_arena_copy(io_meta_arena(m), json_object_get_string(val), v.n, &v.v.s, st->err);
        if (!s)
            s = io_meta_append(m, &v, st->err);
        if (s)
            return err_prefix(st->err, "%s: __metadata__", st->path), s;
    }
    return st->part ? INGLE_OK : io_meta_seal(m, st->err);
}

/* The tensors must tile the data without gap or overlap, to the last byte. */
static ingle_status st_tile(struct st *st)
{
    const size_t n = st->f->n_tensors - st->first_tensor;
    struct io_span *at = mem_calloc(n ? n : 1, sizeof *at);
    if (!at)
        return err_set(st->err, INGLE_NOMEM, "%s: no memory to sort %zu tensors", st->path, n);
    for (size_t i = 0; i < n; i++) {
        const struct io_tensor *t = &st->f->tensor[st->first_tensor + i];
        at[i] = (struct io_span){t->offset, t->n_bytes, st->first_tensor + i};
    }
    io_spans_sort(at, n);
    uint64_t end = 0;
    ingle_status s = INGLE_OK;
    for (size_t i = 0; i < n && !s; i++) {
        struct io_tensor *t = &st->f->tensor[at[i].tensor];
        if (t->offset != end)
            s = err_set(st->err, INGLE_FORMAT,
                        "%s: tensor '%s' begins at %llu, but the one before it "
                        "ends at %llu",
                        st->path, t->name, (ull)t->offset, (ull)end);
        end = t->offset + t->n_bytes; /* at most n_data */
        t->offset += st->data;
    }
    if (!s && end != st->n_data)
        s = err_set(st->err, INGLE_FORMAT,
                    "%s: the last tensor ends at %llu, but the data has %llu bytes", st->path,
                    (ull)end, (ull)st->n_data);
    mem_free(at);
    return s;
}

static ingle_status st_header(struct st *st, const char *text, size_t n)
{
    static const struct json_limits limits = {.depth = MAX_DEPTH,
                                              .n_objects = MAX_TENSORS + 2};
    struct json_object *root;
    while (n && text[n - 1] == ' ')
        n--;
    if (!n || text[0] != '{' || text[n - 1] != '}')
        return err_set(st->err, INGLE_FORMAT,
                       "%s: the header is no JSON object with spaces after it", st->path);
    ingle_status s = json_parse(text, n, &limits, &root, st->err);
    if (s)
        return err_prefix(st->err, "%s: header", st->path), s;
    json_object_object_foreach(root, key, val)
    {
        s = strcmp(key, "__metadata__") == 0 ? st_metadata(st, val) : st_tensor(st, key, val);
        if (s)
            break;
    }
    json_object_put(root);
    return s ? s : st_tile(st);
}

static ingle_status st_read_part(struct io_file *f, uint32_t part, struct err *err)
{
    const struct io_part *p = &f->part[part];
    struct st st = {
        .f = f, .part = part, .path = p->path, .first_tensor = f->n_tensors, .err = err};
    uint64_t n;
    if (p->n_bytes < sizeof n)
        return err_set(err, INGLE_FORMAT, "%s: has %llu bytes, a header length needs 8", p->path,
                       (ull)p->n_bytes);
    ingle_status s = file_read_at(p->fd, p->path, 0, &n, sizeof n, err);
    if (s)
        return s;
    if (n > MAX_HEADER || n > p->n_bytes - sizeof n)
        return err_set(err, INGLE_FORMAT,
                       "%s: header length is %llu, the limit is %d and the file's %llu bytes",
                       p->path, (ull)n, MAX_HEADER, (ull)p->n_bytes);
    st.data = sizeof n + n;
    st.n_data = p->n_bytes - st.data;
    char *text = mem_alloc((size_t)n);
    if (!text)
        return err_set(err, INGLE_NOMEM, "%s: no %llu bytes for its header", p->path, (ull)n);
    s = file_read_at(p->fd, p->path, sizeof n, text, (size_t)n, err);
    if (!s)
        s = st_header(&st, text, (size_t)n);
    mem_free(text);
    return s;
}

ingle_status io_safetensors_open(struct io_file *f, struct err *err)
{
    f->kind = IO_SAFETENSORS;
    ingle_status s = st_read_part(f, 0, err);
    return s ? s : io_tensors_index(f, err);
}

/* ---- directories ---- */

static bool plain_name(const char *s)
{
    static const char end[] = ".safetensors";
    const size_t n = strlen(s), k = sizeof end - 1;
    return n > k && s[0] != '.' && !strpbrk(s, "/\\") && strcmp(s + n - k, end) == 0;
}

static int name_order(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* The file names of weight_map, each once, sorted; they point into map. */
static ingle_status shard_names(const char *path, struct json_object *map, const char ***out,
                                size_t *n_out, struct err *err)
{
    const size_t n = (size_t)json_object_object_length(map);
    const char **name = mem_calloc(n ? n : 1, sizeof *name);
    size_t k = 0;
    if (!name)
        return err_set(err, INGLE_NOMEM, "%s: no memory for %zu names", path, n);
    json_object_object_foreach(map, key, val)
    {
        const char *s =
            json_object_is_type(val, json_type_string) ? json_object_get_string(val) : "";
        if (!plain_name(s) || strlen(s) != (size_t)json_object_get_string_len(val)) {
            mem_free(name);
            return err_set(
                err, INGLE_FORMAT,
                "%s: tensor '%s' is mapped to '%s', which is no plain '.safetensors' file name",
                path, io_show(key, strlen(key)).text, io_show(s, strlen(s)).text);
        }
        name[k++] = s;
    }
    qsort(name, k, sizeof *name, name_order);
    size_t distinct = 0;
    for (size_t i = 0; i < k; i++)
        if (!i || strcmp(name[i], name[i - 1]) != 0)
            name[distinct++] = name[i];
    if (!distinct || distinct > MAX_SHARDS) {
        mem_free(name);
        return err_set(err, INGLE_LIMIT, "%s: weight_map names %zu files, allowed is 1 to %d", path,
                       distinct, MAX_SHARDS);
    }
    *out = name;
    *n_out = distinct;
    return INGLE_OK;
}

/* What the index promises must be in the file that it names. */
static ingle_status check_map(struct io_file *f, const char *path, struct json_object *map,
                              struct err *err)
{
    size_t n_mapped = 0;
    json_object_object_foreach(map, key, val)
    {
        const struct io_tensor *t = io_tensor_find(f, key);
        const char *base = t ? strrchr(f->part[t->file].path, '/') + 1 : "";
        if (!t || strcmp(base, json_object_get_string(val)) != 0)
            return err_set(err, INGLE_FORMAT, "%s: tensor '%s' is mapped to '%s' but is not in it",
                           path, io_show(key, strlen(key)).text, json_object_get_string(val));
        n_mapped++;
    }
    if (n_mapped < f->n_tensors)
        report(f->sink, INGLE_REPORT_WARN, "file", path, "%zu of %zu tensors are not in weight_map",
               f->n_tensors - n_mapped, f->n_tensors);
    return INGLE_OK;
}

/* Shards of another revision are seldom of the same sizes.  Not an error: some writers count
 * otherwise. */
static void check_total(const struct io_file *f, const char *path, struct json_object *root)
{
    struct json_object *meta = NULL, *total = NULL;
    uint64_t n = 0;
    if (!json_object_object_get_ex(root, "metadata", &meta) ||
        !json_object_is_type(meta, json_type_object) ||
        !json_object_object_get_ex(meta, "total_size", &total) ||
        !json_object_is_type(total, json_type_int))
        return;
    for (size_t i = 0; i < f->n_tensors; i++)
        n += f->tensor[i].n_bytes; /* bytes of files that are there */
    if (json_object_get_int64(total) != (int64_t)n)
        report(
            f->sink, INGLE_REPORT_WARN, "file", path,
            "says %lld bytes of tensors, the files have %llu: they may be of different revisions",
            (long long)json_object_get_int64(total), (ull)n);
}

static ingle_status open_shards(struct io_file *f, const char *dir, const char *path,
                                struct json_object *map, struct err *err)
{
    const char **name = NULL;
    size_t n = 0;
    struct str shard;
    ingle_status s = shard_names(path, map, &name, &n, err);
    if (s)
        return s;
    str_init(&shard);
    for (size_t i = 0; i < n && !s; i++) {
        str_clear(&shard);
        str_addf(&shard, "%s/%s", dir, name[i]);
        s = str_ok(&shard) ? io_part_add(f, shard.at, err)
                           : err_set(err, INGLE_NOMEM, "%s: no memory for a path", path);
        if (!s)
            s = st_read_part(f, (uint32_t)i, err);
    }
    str_release(&shard);
    mem_free(name);
    if (!s)
        s = io_tensors_index(f, err);
    return s ? s : check_map(f, path, map, err);
}

static ingle_status open_index(struct io_file *f, const char *dir, const char *path,
                               struct err *err)
{
    static const struct json_limits limits = {.depth = MAX_DEPTH};
    char *text;
    size_t n;
    struct json_object *root, *map = NULL;
    ingle_status s = file_slurp(path, MAX_INDEX, &text, &n, err);
    if (s)
        return s;
    s = json_parse(text, n, &limits, &root, err);
    mem_free(text);
    if (s)
        return err_prefix(err, "%s", path), s;
    if (!json_object_is_type(root, json_type_object) ||
        !json_object_object_get_ex(root, "weight_map", &map) ||
        !json_object_is_type(map, json_type_object) || json_object_object_length(map) > MAX_TENSORS)
        s = err_set(err, INGLE_FORMAT, "%s: 'weight_map' is no object of at most %d names", path,
                    MAX_TENSORS);
    else
        s = open_shards(f, dir, path, map, err);
    if (!s)
        check_total(f, path, root);
    json_object_put(root);
    return s;
}

/* All shards of the only set in a directory without an index. */
static ingle_status open_set(struct io_file *f, const char *dir, struct err *err)
{
    struct io_shards set;
    struct str path;
    ingle_status s = io_shards_find(dir, &set, err);
    if (s)
        return s;
    str_init(&path);
    for (unsigned i = 1; i <= set.count && !s; i++) {
        str_clear(&path);
        str_addf(&path, "%s/%s-%05u-of-%05u.safetensors", dir, set.prefix, i, set.count);
        s = str_ok(&path) ? io_part_add(f, path.at, err)
                          : err_set(err, INGLE_NOMEM, "%s: no memory for a path", dir);
        if (!s)
            s = st_read_part(f, i - 1, err);
    }
    str_release(&path);
    if (!s)
        s = io_tensors_index(f, err);
    if (!s)
        report(f->sink, INGLE_REPORT_NOTE, "file", dir,
               "there is no model.safetensors.index.json: all %u shards are read", set.count);
    return s;
}

ingle_status io_safetensors_open_dir(struct io_file *f, const char *dir, struct err *err)
{
    struct str path;
    ingle_status s = err_set(err, INGLE_NOMEM, "%s: no memory for a path", dir);
    f->kind = IO_SAFETENSORS;
    str_init(&path);
    str_addf(&path, "%s/model.safetensors", dir);
    if (str_ok(&path))
        s = io_part_add(f, path.at, err);
    if (!s) {
        s = io_safetensors_open(f, err);
    } else if (s == INGLE_NOTFOUND) {
        f->n_parts--; /* it has a path only */
        mem_free(f->part[f->n_parts].path);
        str_adds(&path, ".index.json");
        s = str_ok(&path) ? open_index(f, dir, path.at, err) : INGLE_NOMEM;
        if (s == INGLE_NOTFOUND && !f->n_parts)
            s = open_set(f, dir, err);
    }
    str_release(&path);
    return s;
}
