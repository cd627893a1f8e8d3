/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a GGUF file of version 3. */
#include "io/inner.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include <string.h>

enum { VERSION = 3, ALIGNMENT = 32, MAX_NAME = 63, MAX_DIMS = 4 }; /* llama.cpp reads names of 63 bytes */

struct placed {
    uint64_t at, n_bytes; /* from the beginning of the data, then of the file */
};

struct io_gguf {
    struct file_new file;
    struct str values, tensors;
    struct io_meta *names; /* of tensors, to refuse one twice */
    struct placed *place;
    size_t n_tensors, cap;
    uint64_t n_values, n_data, data; /* bytes of data so far; where they begin */
};

void io_gguf_drop(struct io_gguf *w)
{
    if (!w)
        return;
    file_new_drop(&w->file);
    str_release(&w->values);
    str_release(&w->tensors);
    io_meta_free(w->names);
    mem_free(w->place);
    mem_free(w);
}

ingle_status io_gguf_create(struct io_gguf **out, const char *path, struct err *err)
{
    struct io_gguf *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_set(err, INGLE_NOMEM, "%s: no memory to write it", path);
    w->file.fd = -1;
    str_init(&w->values);
    str_init(&w->tensors);
    w->names = io_meta_create();
    ingle_status s = w->names ? file_new_open(&w->file, path, err)
                              : err_set(err, INGLE_NOMEM, "%s: no memory to write it", path);
    if (s) {
        io_gguf_drop(w);
        return s;
    }
    *out = w;
    return INGLE_OK;
}

static void add_u32(struct str *s, uint32_t v)
{
    str_add(s, (const char *)&v, sizeof v);
}

static void add_u64(struct str *s, uint64_t v)
{
    str_add(s, (const char *)&v, sizeof v);
}

static void add_string(struct str *s, const char *text, size_t n)
{
    add_u64(s, n);
    str_add(s, text, n);
}

static ingle_status value_done(struct io_gguf *w, const char *key, struct err *err)
{
    w->n_values++;
    return str_ok(&w->values) ? INGLE_OK
                              : err_set(err, INGLE_NOMEM, "%s: no memory for key '%s'", w->file.path, key);
}

static void add_scalar(struct str *to, const struct io_value *v)
{
    const size_t size = io_gguf_size(v->gguf_type);
    const float f = (float)(v->kind == IO_F64 ? v->v.f : 0);
    const uint8_t b = v->kind == IO_BOOL && v->v.b;
    if (v->kind == IO_STR)
        add_string(to, v->v.s, v->n);
    else if (v->gguf_type == GGUF_F32)
        str_add(to, (const char *)&f, sizeof f);
    else if (v->kind == IO_BOOL)
        str_add(to, (const char *)&b, 1);
    else
        str_add(to, (const char *)&v->v.u, size); /* a double, or the low bytes of an integer */
}

ingle_status io_gguf_value(struct io_gguf *w, const struct io_value *v, struct err *err)
{
    if (strcmp(v->key, "general.alignment") == 0)
        return INGLE_OK; /* that of the other file: this one has the default */
    add_string(&w->values, v->key, strlen(v->key));
    if (v->kind != IO_ARRAY) {
        add_u32(&w->values, v->gguf_type);
        add_scalar(&w->values, v);
        return value_done(w, v->key, err);
    }
    add_u32(&w->values, GGUF_ARRAY);
    add_u32(&w->values, v->gguf_type);
    add_u64(&w->values, v->n);
    if (v->elem != IO_STR)
        str_add(&w->values, v->v.array, v->n * io_gguf_size(v->gguf_type));
    for (size_t i = 0; i < v->n && v->elem == IO_STR; i++) {
        size_t n;
        const char *s = io_array_str(v, i, &n);
        add_string(&w->values, s, n);
    }
    return value_done(w, v->key, err);
}

ingle_status io_gguf_u32(struct io_gguf *w, const char *key, uint32_t v, struct err *err)
{
    add_string(&w->values, key, strlen(key));
    add_u32(&w->values, GGUF_U32);
    add_u32(&w->values, v);
    return value_done(w, key, err);
}

ingle_status io_gguf_str(struct io_gguf *w, const char *key, const char *s, struct err *err)
{
    add_string(&w->values, key, strlen(key));
    add_u32(&w->values, GGUF_STR);
    add_string(&w->values, s, strlen(s));
    return value_done(w, key, err);
}

ingle_status io_gguf_tensor(struct io_gguf *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne,
                            struct err *err)
{
    const size_t n_name = strlen(name);
    uint64_t rows = 1, n_bytes, end;
    if (n_name < 1 || n_name > MAX_NAME)
        return err_set(err, INGLE_ARG, "%s: tensor name '%s' has %zu bytes, the limits are 1 and %d", w->file.path,
                       io_show(name, n_name).text, n_name, MAX_NAME);
    if (io_meta_find(w->names, name))
        return err_set(err, INGLE_ARG, "%s: tensor '%s' is there twice", w->file.path, name);
    if (n_dims < 1 || n_dims > MAX_DIMS)
        return err_set(err, INGLE_ARG, "%s: tensor '%s' has %u dimensions, the limits are 1 and %d", w->file.path, name,
                       n_dims, MAX_DIMS);
    for (uint32_t i = 1; i < n_dims; i++)
        if (!num_mul_u64(rows, ne[i], &rows))
            return err_set(err, INGLE_ARG, "%s: tensor '%s' has more than 2^64 rows", w->file.path, name);
    if (!quant_bytes(type, ne[0], rows, &n_bytes) || n_bytes > UINT64_MAX - ALIGNMENT ||
        !num_add_u64(w->n_data, (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, &end))
        return err_set(err, INGLE_ARG, "%s: tensor '%s': %llu rows of %llu elements are no whole blocks of %s",
                       w->file.path, name, (unsigned long long)rows, (unsigned long long)ne[0],
                       quant_info(type) ? quant_info(type)->name : "an unknown type");
    if (!mem_grow(&w->place, &w->cap, w->n_tensors + 1, sizeof *w->place) || io_meta_set_bool(w->names, name, true))
        return err_set(err, INGLE_NOMEM, "%s: no memory for tensor '%s'", w->file.path, name);
    w->place[w->n_tensors++] = (struct placed){w->n_data, n_bytes};
    add_string(&w->tensors, name, n_name);
    add_u32(&w->tensors, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        add_u64(&w->tensors, ne[i]);
    add_u32(&w->tensors, type);
    add_u64(&w->tensors, w->n_data);
    w->n_data = end;
    return INGLE_OK;
}

ingle_status io_gguf_begin(struct io_gguf *w, struct err *err)
{
    struct str head;
    str_init(&head);
    str_adds(&head, "GGUF");
    add_u32(&head, VERSION);
    add_u64(&head, w->n_tensors);
    add_u64(&head, w->n_values);
    str_add(&head, w->values.at, w->values.n);
    str_add(&head, w->tensors.at, w->tensors.n);
    while (head.n % ALIGNMENT && str_ok(&head))
        str_addc(&head, 0);
    ingle_status s = str_ok(&head) && str_ok(&w->tensors)
                         ? file_new_write(&w->file, 0, head.at, head.n, err)
                         : err_set(err, INGLE_NOMEM, "%s: no memory for the metadata", w->file.path);
    w->data = head.n;
    str_release(&head);
    static const char zero[1] = {0};
    if (!s && w->n_data) /* the last tensor is padded, and the whole length is known to be there */
        s = file_new_write(&w->file, w->data + w->n_data - 1, zero, 1, err);
    return s;
}

uint64_t io_gguf_size_of(const struct io_gguf *w)
{
    return w->data + w->n_data;
}

ingle_status io_gguf_write(struct io_gguf *w, size_t tensor, uint64_t offset, const void *bytes, size_t n,
                           struct err *err)
{
    const struct placed *p = &w->place[tensor];
    if (offset > p->n_bytes || n > p->n_bytes - offset)
        return err_set(err, INGLE_ARG, "%s: tensor %zu has %llu bytes, not %zu more behind %llu", w->file.path, tensor,
                       (unsigned long long)p->n_bytes, n, (unsigned long long)offset);
    return file_new_write(&w->file, w->data + p->at + offset, bytes, n, err);
}

ingle_status io_gguf_finish(struct io_gguf *w, struct err *err)
{
    const ingle_status s = file_new_finish(&w->file, err);
    io_gguf_drop(w);
    return s;
}
