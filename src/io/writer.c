/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a safetensors file. */
#include "io/inner.h"
#include "io/table.h"

#include "base/output.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include "base/utf8.h"
#include <string.h>

enum { MAX_NAME = 512, DATA_ALIGNMENT = 8 };

struct io_writer {
    char *path;
    struct str header; /* without its closing brace */
    struct str data;
    enum output_kind kind;
    struct io_meta *names; /* what was added, to refuse a name twice */
};

static void writer_free(struct io_writer *w)
{
    if (!w)
        return;
    str_release(&w->header);
    str_release(&w->data);
    io_meta_free(w->names);
    mem_free(w->path);
    mem_free(w);
}

ingle_status io_writer_create(struct io_writer **out, const char *path, enum output_kind kind,
                              struct err *err)
{
    struct io_writer *w = mem_zalloc(sizeof *w);
    if (w) {
        str_init(&w->header);
        str_init(&w->data);
        w->kind = kind;
        w->path = mem_strdup(path);
        w->names = io_meta_create();
    }
    if (!w || !w->path || !w->names) {
        writer_free(w);
        return err_set(err, INGLE_NOMEM, "%s: no memory to write it", path);
    }
    *out = w;
    return INGLE_OK;
}

ingle_status io_writer_add(struct io_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                           const uint64_t *shape, const void *data, uint64_t n_bytes,
                           struct err *err)
{
    const char *dtype = io_dtype_name(type);
    const size_t n_name = strlen(name);
    uint64_t need = 1;
    if (n_name < 1 || n_name > MAX_NAME || !utf8_valid(name, n_name))
        return err_set(err, INGLE_ARG, "%s: tensor name '%s' is not 1 to %d bytes of UTF-8",
                       w->path, io_show(name, n_name).text, MAX_NAME);
    if (io_meta_find(w->names, name))
        return err_set(err, INGLE_ARG, "%s: tensor '%s' is there twice", w->path, name);
    if (!dtype)
        return err_set(err, INGLE_UNSUP, "%s: tensor '%s': type %s cannot be in safetensors",
                       w->path, name,
                       quant_info(type) ? quant_info(type)->name : "that is unknown");
    if (n_dims > IO_MAX_DIMS)
        return err_set(err, INGLE_ARG, "%s: tensor '%s' has %u dimensions, the limit is %d",
                       w->path, name, n_dims, IO_MAX_DIMS);
    for (uint32_t i = 0; i < n_dims; i++)
        if (!num_mul_u64(need, shape[i], &need))
            return err_set(err, INGLE_ARG, "%s: tensor '%s' has more than 2^64 elements", w->path,
                           name);
    if (!num_mul_u64(need, quant_info(type)->n_bytes, &need) || need != n_bytes)
        return err_set(err, INGLE_ARG, "%s: tensor '%s' needs %llu bytes and got %llu", w->path,
                       name, (unsigned long long)need, (unsigned long long)n_bytes);
    if (io_meta_set_bool(w->names, name, true))
        return err_set(err, INGLE_NOMEM, "%s: no memory for '%s'", w->path, name);
    str_adds(&w->header, w->header.n ? "," : "{");
    str_add_json(&w->header, name, n_name);
    str_addf(&w->header, ":{\"dtype\":\"%s\",\"shape\":[", dtype);
    for (uint32_t i = 0; i < n_dims; i++)
        str_addf(&w->header, "%s%llu", i ? "," : "", (unsigned long long)shape[i]);
    str_addf(&w->header, "],\"data_offsets\":[%zu,%zu]}", w->data.n, w->data.n + (size_t)n_bytes);
    str_add(&w->data, data, (size_t)n_bytes);
    if (!str_ok(&w->header) || !str_ok(&w->data))
        return err_set(err, INGLE_NOMEM, "%s: no memory for the %llu bytes of '%s'", w->path,
                       (unsigned long long)n_bytes, name);
    return INGLE_OK;
}

ingle_status io_writer_close(struct io_writer *w, struct err *err)
{
    struct str all;
    str_init(&all);
    str_adds(&w->header, w->header.n ? "}" : "{}");
    while (w->header.n % DATA_ALIGNMENT && str_ok(&w->header))
        str_addc(&w->header, ' ');
    const uint64_t n = w->header.n;
    str_add(&all, (const char *)&n, sizeof n);
    str_add(&all, w->header.at, w->header.n);
    str_add(&all, w->data.at, w->data.n);
    ingle_status s;
    if (!str_ok(&w->header) || !str_ok(&w->data) || !str_ok(&all))
        s = err_set(err, INGLE_NOMEM, "%s: no memory to write %zu bytes", w->path, w->data.n);
    else
        s = output_save(&(struct output){.path = w->path, .kind = w->kind}, all.at, all.n, err);
    str_release(&all);
    writer_free(w);
    return s;
}
