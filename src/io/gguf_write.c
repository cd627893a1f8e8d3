/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a GGUF file of version 3, or safetensors, in parts that can be continued after an end of
 * the program. */
#define _POSIX_C_SOURCE 200809L
#include "io/inner.h"
#include "io/table.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/output.h"
#include "base/str.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    VERSION = 3,
    ALIGNMENT = 32,
    MAX_NAME = 63,         /* llama.cpp reads no longer ones */
    MAX_NAME_SAFE = 127,   /* of safetensors */
    MAX_DIMS = 4,
    MAX_PARTS = 1024,
    HEAD_SAFE = 8,         /* its head ends at a multiple of this */
    STATE_LIMIT = 64 << 20,
};

#define MAX_BYTES ((uint64_t)1 << 44) /* of a tensor: sums of 2^18 of them are no more than 2^62 */

struct placed {
    const char *name; /* owned by w->names */
    uint64_t ne[MAX_DIMS];
    uint32_t type, n_dims;
    uint32_t part, begun; /* asked: by io_gguf_next_part() */
    uint64_t at, n_bytes; /* at: from the beginning of the part's data */
};

struct part {
    struct file_new file;
    uint64_t data, n_data; /* where the tensors' bytes begin, and how many there are */
    size_t first, n_tensors;
};

struct io_gguf {
    char *path;
    struct part *part; /* [n_parts], from io_gguf_begin() on */
    size_t n_parts;
    struct str values;
    struct io_meta *names; /* of tensors, to refuse one twice */
    struct placed *place;
    size_t n_tensors, cap;
    uint64_t n_values;
    uint64_t most_bytes, most_tensors; /* of a part; 0: any */
    uint32_t begun;                    /* parts that were begun by io_gguf_next_part() */
    bool safe;                         /* safetensors */
    bool keep;                         /* ... and what an earlier call has written */
    uint64_t source;                   /* what the tensors' bytes come from */
    char *state_path;                  /* the list of tensors that are written */
    struct known { uint64_t sum; bool is; } *known; /* [n_tensors] */
    struct output output;              /* without a path */
};

static const char ending[] = ".gguf", ending_safe[] = ".safetensors";

static void end(struct io_gguf *w, bool leave)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_parts; i++)
        (leave && w->part[i].file.again ? file_new_leave : file_new_drop)(&w->part[i].file);
    if (w->state_path && !leave)
        (void)unlink(w->state_path);
    mem_free(w->state_path);
    mem_free(w->known);
    str_release(&w->values);
    io_meta_free(w->names);
    mem_free(w->part);
    mem_free(w->place);
    mem_free(w->path);
    mem_free(w);
}

void io_gguf_drop(struct io_gguf *w) { end(w, false); }

void io_gguf_leave(struct io_gguf *w) { end(w, true); }

ingle_status io_gguf_create(struct io_gguf **out, const char *path, struct err *err)
{
    struct io_gguf *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_set(err, INGLE_NOMEM, "%s: no memory to write it", path);
    str_init(&w->values);
    w->output.kind = OUTPUT_MODEL;
    w->names = io_meta_create();
    w->path = mem_strdup(path);
    if (!w->names || !w->path) {
        io_gguf_drop(w);
        return err_set(err, INGLE_NOMEM, "%s: no memory to write it", path);
    }
    *out = w;
    return INGLE_OK;
}

void io_gguf_safetensors(struct io_gguf *w)
{
    w->safe = true;
    w->output.kind = OUTPUT_WEIGHTS;
}

void io_gguf_output(struct io_gguf *w, enum output_kind kind, const struct output_guard *guard,
                    bool force)
{
    w->output.kind = kind;
    w->output.guard = guard;
    w->output.force = force;
}

void io_gguf_keep(struct io_gguf *w, uint64_t source)
{
    w->keep = w->output.keep = true;
    w->source = source;
}

void io_gguf_split(struct io_gguf *w, uint64_t most_bytes, uint64_t most_tensors)
{
    w->most_bytes = most_bytes;
    w->most_tensors = most_tensors;
}

void io_gguf_next_part(struct io_gguf *w)
{
    w->begun += w->begun < MAX_PARTS; /* one more than allowed is an error of io_gguf_begin() */
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
    return str_ok(&w->values)
               ? INGLE_OK
               : err_set(err, INGLE_NOMEM, "%s: no memory for key '%s'", w->path, key);
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

static void begin_value(struct io_gguf *w, const char *key, uint32_t type)
{
    add_string(&w->values, key, strlen(key));
    add_u32(&w->values, type);
}

static void begin_array(struct io_gguf *w, const char *key, uint32_t type, size_t n)
{
    begin_value(w, key, GGUF_ARRAY);
    add_u32(&w->values, type);
    add_u64(&w->values, n);
}

ingle_status io_gguf_u32(struct io_gguf *w, const char *key, uint32_t v, struct err *err)
{
    begin_value(w, key, GGUF_U32);
    add_u32(&w->values, v);
    return value_done(w, key, err);
}

ingle_status io_gguf_f32(struct io_gguf *w, const char *key, float v, struct err *err)
{
    begin_value(w, key, GGUF_F32);
    str_add(&w->values, (const char *)&v, sizeof v);
    return value_done(w, key, err);
}

ingle_status io_gguf_bool(struct io_gguf *w, const char *key, bool v, struct err *err)
{
    begin_value(w, key, GGUF_BOOL);
    str_addc(&w->values, v);
    return value_done(w, key, err);
}

ingle_status io_gguf_str(struct io_gguf *w, const char *key, const char *s, size_t n,
                         struct err *err)
{
    begin_value(w, key, GGUF_STR);
    add_string(&w->values, s, n);
    return value_done(w, key, err);
}

ingle_status io_gguf_i32s(struct io_gguf *w, const char *key, const int32_t *v, size_t n,
                          struct err *err)
{
    begin_array(w, key, GGUF_I32, n);
    str_add(&w->values, (const char *)v, n * sizeof *v);
    return value_done(w, key, err);
}

ingle_status io_gguf_f32s(struct io_gguf *w, const char *key, const float *v, size_t n,
                          struct err *err)
{
    begin_array(w, key, GGUF_F32, n);
    str_add(&w->values, (const char *)v, n * sizeof *v);
    return value_done(w, key, err);
}

ingle_status io_gguf_strs(struct io_gguf *w, const char *key, const char *const *s,
                          const size_t *n_bytes, size_t n, struct err *err)
{
    begin_array(w, key, GGUF_STR, n);
    for (size_t i = 0; i < n; i++)
        add_string(&w->values, s[i], n_bytes[i]);
    return value_done(w, key, err);
}

/* Integers that do not fit stay wide. */
static bool fits(const struct io_value *v)
{
    if (v->kind == IO_U64)
        return v->v.u <= UINT32_MAX;
    bool all = v->elem == IO_U64;
    for (size_t i = 0; i < v->n && all; i++)
        all = io_array_u64(v, i) <= INT32_MAX;
    return all;
}

ingle_status io_gguf_narrow(struct io_gguf *w, const struct io_value *v, struct err *err)
{
    if (v->kind == IO_U64 && fits(v))
        return io_gguf_u32(w, v->key, (uint32_t)v->v.u, err);
    if (v->kind == IO_F64)
        return io_gguf_f32(w, v->key, (float)v->v.f, err);
    if (v->kind != IO_ARRAY || !(v->elem == IO_F64 || fits(v)))
        return io_gguf_value(w, v, err);
    begin_array(w, v->key, v->elem == IO_F64 ? GGUF_F32 : GGUF_I32, v->n);
    for (size_t i = 0; i < v->n; i++) {
        const float f = v->elem == IO_F64 ? (float)io_array_f64(v, i) : 0;
        const int32_t n = v->elem == IO_F64 ? 0 : (int32_t)io_array_u64(v, i);
        str_add(&w->values, v->elem == IO_F64 ? (const char *)&f : (const char *)&n, 4);
    }
    return value_done(w, v->key, err);
}

ingle_status io_gguf_tensor(struct io_gguf *w, const char *name, uint32_t type, uint32_t n_dims,
                            const uint64_t *ne, struct err *err)
{
    const size_t n_name = strlen(name);
    const int most = w->safe ? MAX_NAME_SAFE : MAX_NAME;
    uint64_t rows = 1, n_bytes;
    if (n_name < 1 || n_name > (size_t)most)
        return err_set(err, INGLE_ARG,
                       "%s: tensor name '%s' has %zu bytes, the limits are 1 and %d", w->path,
                       io_show(name, n_name).text, n_name, most);
    if (w->safe && !io_dtype_name(type))
        return err_set(err, INGLE_UNSUP, "%s: tensor '%s': type %s cannot be in safetensors",
                       w->path, name,
                       quant_info(type) ? quant_info(type)->name : "that is unknown");
    if (io_meta_find(w->names, name))
        return err_set(err, INGLE_ARG, "%s: tensor '%s' is there twice", w->path, name);
    if (n_dims < 1 || n_dims > MAX_DIMS)
        return err_set(err, INGLE_ARG, "%s: tensor '%s' has %u dimensions, the limits are 1 and %d",
                       w->path, name, n_dims, MAX_DIMS);
    for (uint32_t i = 1; i < n_dims; i++)
        if (!num_mul_u64(rows, ne[i], &rows))
            return err_set(err, INGLE_ARG, "%s: tensor '%s' has more than 2^64 rows", w->path,
                           name);
    if (!quant_bytes(type, ne[0], rows, &n_bytes) || n_bytes > MAX_BYTES)
        return err_set(err, INGLE_ARG,
                       "%s: tensor '%s': %llu rows of %llu elements are no whole blocks of %s",
                       w->path, name, (unsigned long long)rows, (unsigned long long)ne[0],
                       quant_info(type) ? quant_info(type)->name : "an unknown type");
    if (!mem_grow(&w->place, &w->cap, w->n_tensors + 1, sizeof *w->place) ||
        io_meta_set_bool(w->names, name, true))
        return err_set(err, INGLE_NOMEM, "%s: no memory for tensor '%s'", w->path, name);
    struct placed *p = &w->place[w->n_tensors++];
    *p = (struct placed){.name = io_meta_find(w->names, name)->key,
                         .type = type,
                         .n_dims = n_dims,
                         .begun = w->begun,
                         .n_bytes = n_bytes};
    memcpy(p->ne, ne, n_dims * sizeof *ne);
    return INGLE_OK;
}

/* Safetensors has no room between tensors. */
static uint64_t padded(const struct io_gguf *w, uint64_t n)
{
    return w->safe ? n : (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Gives each tensor its part and its place there; the parts' number. */
static size_t place_tensors(struct io_gguf *w)
{
    size_t part = 0, n = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        struct placed *p = &w->place[i];
        const bool full =
            (w->most_tensors && n >= w->most_tensors) ||
            (w->most_bytes &&
             p->n_bytes > w->most_bytes - (bytes < w->most_bytes ? bytes : w->most_bytes));
        if (w->begun ? part != p->begun : n && full) {
            part = w->begun ? p->begun : part + 1;
            n = 0;
            bytes = 0;
        }
        p->part = (uint32_t)part;
        p->at = bytes;
        bytes += padded(w, p->n_bytes);
        n++;
    }
    return (w->begun ? w->begun : part) + 1;
}

/* "PREFIX-00001-of-00003.gguf" of "PREFIX.gguf", if there are several. */
static void part_path(const struct io_gguf *w, size_t i, size_t n_parts, struct str *path)
{
    const char *last = w->safe ? ending_safe : ending;
    const size_t k = strlen(last);
    size_t n = strlen(w->path);
    if (n_parts == 1) {
        str_adds(path, w->path);
        return;
    }
    if (n > k && strcmp(w->path + n - k, last) == 0)
        n -= k;
    str_add(path, w->path, n);
    str_addf(path, "-%05zu-of-%05zu%s", i + 1, n_parts, last);
}

/* All parts are looked at before the first is opened. */
static ingle_status open_part(struct io_gguf *w, size_t i, bool only_check, struct err *err)
{
    struct str path;
    w->part[i].file.fd = -1;
    str_init(&path);
    part_path(w, i, w->n_parts, &path);
    struct output o = w->output;
    o.path = path.at;
    ingle_status s = !str_ok(&path)
                         ? err_set(err, INGLE_NOMEM, "%s: no memory to write it", w->path)
                     : only_check ? output_check(&o, err)
                                  : output_open(&w->part[i].file, &o, err);
    str_release(&path);
    return s;
}

static void add_u16_value(struct str *s, const char *key, uint16_t v)
{
    add_string(s, key, strlen(key));
    add_u32(s, GGUF_U16);
    str_add(s, (const char *)&v, sizeof v);
}

/* Only the first part has all metadata. */
static void add_values(const struct io_gguf *w, size_t i, struct str *head)
{
    static const char total[] = "split.tensors.count";
    add_u64(head, (i ? 0 : w->n_values) + (w->n_parts > 1 ? 3 : 0));
    if (!i)
        str_add(head, w->values.at, w->values.n);
    if (w->n_parts == 1)
        return;
    add_u16_value(head, "split.no", (uint16_t)i);
    add_u16_value(head, "split.count", (uint16_t)w->n_parts);
    add_string(head, total, sizeof total - 1);
    add_u32(head, GGUF_I32);
    add_u32(head, (uint32_t)w->n_tensors);
}

static void add_head(const struct io_gguf *w, size_t i, struct str *head)
{
    const struct part *part = &w->part[i];
    str_adds(head, "GGUF");
    add_u32(head, VERSION);
    add_u64(head, part->n_tensors);
    add_values(w, i, head);
    for (size_t k = part->first; k < part->first + part->n_tensors; k++) {
        const struct placed *p = &w->place[k];
        add_string(head, p->name, strlen(p->name));
        add_u32(head, p->n_dims);
        for (uint32_t d = 0; d < p->n_dims; d++)
            add_u64(head, p->ne[d]);
        add_u32(head, p->type);
        add_u64(head, p->at);
    }
    while (head->n % ALIGNMENT && str_ok(head))
        str_addc(head, 0);
}

/* The length, and JSON. */
static void add_head_safe(const struct io_gguf *w, size_t i, struct str *head)
{
    const struct part *part = &w->part[i];
    struct str json;
    str_init(&json);
    str_adds(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t k = part->first; k < part->first + part->n_tensors; k++) {
        const struct placed *p = &w->place[k];
        str_addc(&json, ',');
        str_add_json(&json, p->name, strlen(p->name));
        str_addf(&json, ":{\"dtype\":\"%s\",\"shape\":[", io_dtype_name(p->type));
        for (uint32_t d = p->n_dims; d-- > 0;)
            str_addf(&json, "%llu%s", (unsigned long long)p->ne[d], d ? "," : "");
        str_addf(&json, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)p->at,
                 (unsigned long long)p->at + p->n_bytes);
    }
    str_addc(&json, '}');
    while (json.n % HEAD_SAFE && str_ok(&json))
        str_addc(&json, ' ');
    add_u64(head, json.n);
    str_add(head, json.at, json.n);
    head->failed = head->failed || !str_ok(&json);
    str_release(&json);
}

static ingle_status begin_part(struct io_gguf *w, size_t i, XXH3_state_t *identity, struct err *err)
{
    struct part *part = &w->part[i];
    struct str head;
    str_init(&head);
    (w->safe ? add_head_safe : add_head)(w, i, &head);
    for (size_t k = part->first; k < part->first + part->n_tensors; k++)
        part->n_data = w->place[k].at + padded(w, w->place[k].n_bytes);
    part->data = head.n;
    ingle_status s = str_ok(&head)
                         ? INGLE_OK
                         : err_set(err, INGLE_NOMEM, "%s: no memory for the metadata", w->path);
    if (!s && identity)
        (void)XXH3_64bits_update(identity, head.at, head.n);
    else if (!s)
        s = file_new_write(&part->file, 0, head.at, head.n, err);
    str_release(&head);
    return s;
}

/* ---- what an earlier call has written ---- */

/* Removes the parts of a call that made another number of them. */
static void remove_parts(const struct io_gguf *w, size_t n_parts)
{
    for (size_t i = 0; i < n_parts && n_parts <= MAX_PARTS && n_parts != w->n_parts; i++) {
        struct str path;
        str_init(&path);
        part_path(w, i, n_parts, &path);
        str_adds(&path, ".part");
        if (str_ok(&path) &&
            (!w->output.guard || !output_guard_check(w->output.guard, path.at, NULL)))
            (void)unlink(path.at);
        str_release(&path);
    }
}

static const char state_mark[] = "ingle 1 ";

/* "ingle 1 IDENTITY PARTS", then "TENSOR SUM" of each that is whole; a line that was not written to
 * its end ends it. */
static bool read_state(struct io_gguf *w, const char *text, uint64_t identity)
{
    char *at;
    const uint64_t is = strtoull(text + sizeof state_mark - 1, &at, 16),
                   n_parts = strtoull(at, &at, 10);
    if (is != identity || *at != '\n') {
        remove_parts(w, (size_t)n_parts);
        return false;
    }
    while (*at == '\n' && at[1]) {
        char *next;
        const uint64_t i = strtoull(at + 1, &next, 10), sum = strtoull(next, &at, 16);
        if (*at == '\n' && next > text && i < w->n_tensors)
            w->known[i] = (struct known){sum, true};
    }
    return true;
}

static ingle_status append_state(const struct io_gguf *w, const struct str *line, const char *how,
                                 struct err *err)
{
    struct file_limit limit;
    file_limit_hold(&limit);
    FILE *f = str_ok(line) ? fopen(w->state_path, how) : NULL;
    const bool ok = f && fwrite(line->at, 1, line->n, f) == line->n;
    const bool closed = f && fclose(f) == 0;
    file_limit_drop(&limit);
    return ok && closed ? INGLE_OK : err_set(err, INGLE_IO, "%s: cannot write", w->state_path);
}

/* What stands under the names of unfinished parts is only ours if the list says so. */
static ingle_status empty_parts(struct io_gguf *w, bool listed, struct err *err)
{
    ingle_status s = INGLE_OK;
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < w->n_parts && !s && !listed; i++) {
        s = file_new_size(&w->part[i].file, &n_bytes, err);
        if (!s && n_bytes)
            s = err_set(err, INGLE_ARG,
                        "%s: is there, is no unfinished file of ingle, and stays: choose another "
                        "name, or remove it",
                        w->part[i].file.tmp);
    }
    for (size_t i = 0; i < w->n_parts && !s; i++)
        s = file_new_empty(&w->part[i].file, err);
    return s;
}

/* After an error: what this call has not written stays. */
static void leave_written(struct io_gguf *w)
{
    uint64_t n_bytes;
    for (size_t i = 0; i < w->n_parts; i++)
        if (file_new_size(&w->part[i].file, &n_bytes, NULL) || n_bytes)
            file_new_leave(&w->part[i].file);
}

static ingle_status take_state(struct io_gguf *w, uint64_t identity, struct err *err)
{
    struct str path, line;
    char *text;
    size_t n;
    str_init(&path);
    str_addf(&path, "%s.part.state", w->path);
    w->known = mem_calloc(w->n_tensors ? w->n_tensors : 1, sizeof *w->known);
    ingle_status s =
        str_ok(&path) && w->known
            ? INGLE_OK
            : err_set(err, INGLE_NOMEM, "%s: no memory for %zu tensors", w->path, w->n_tensors);
    if (!s && w->output.guard)
        s = output_guard_check(w->output.guard, path.at, err);
    const ingle_status there = s ? s : file_slurp(path.at, STATE_LIMIT, &text, &n, NULL);
    const bool listed = !there && !strncmp(text, state_mark, sizeof state_mark - 1);
    if (!s && !listed && there != INGLE_NOTFOUND && (there || n))
        s = err_set(
            err, INGLE_ARG,
            "%s: is there, is no list of ingle, and stays: choose another name, or remove it",
            path.at);
    const bool goes_on = !s && listed && read_state(w, text, identity);
    if (!there)
        mem_free(text);
    if (!s && !goes_on)
        s = empty_parts(w, listed, err);
    if (!s)
        w->state_path = str_detach(&path);
    str_release(&path);
    if (s)
        leave_written(w);
    if (s || goes_on)
        return s;
    str_init(&line);
    str_addf(&line, "%s%016llx %zu\n", state_mark, (unsigned long long)identity, w->n_parts);
    s = append_state(w, &line, "we", err);
    str_release(&line);
    return s;
}

bool io_gguf_known(const struct io_gguf *w, size_t tensor, uint64_t *sum)
{
    if (!w->known || !w->known[tensor].is)
        return false;
    *sum = w->known[tensor].sum;
    return true;
}

ingle_status io_gguf_note(struct io_gguf *w, size_t tensor, uint64_t sum, struct err *err)
{
    struct str line;
    if (!w->keep)
        return INGLE_OK;
    str_init(&line);
    str_addf(&line, "%zu %016llx\n", tensor, (unsigned long long)sum);
    const ingle_status s = append_state(w, &line, "ae", err);
    str_release(&line);
    return s;
}

/* Everything that decides the bytes of the file. */
static ingle_status identity_of(struct io_gguf *w, uint64_t *out, struct err *err)
{
    XXH3_state_t *h = XXH3_createState();
    ingle_status s =
        h ? INGLE_OK : err_set(err, INGLE_NOMEM, "%s: no memory for the metadata", w->path);
    if (!s)
        (void)XXH3_64bits_reset_withSeed(h, w->source);
    for (size_t i = 0; i < w->n_parts && !s; i++)
        s = begin_part(w, i, h, err);
    if (!s)
        *out = XXH3_64bits_digest(h);
    (void)XXH3_freeState(h);
    return s;
}

ingle_status io_gguf_plan(struct io_gguf *w, const struct io_planned *planned, struct io_file **out,
                          struct err *err)
{
    struct part one = {.n_tensors = w->n_tensors};
    struct io_gguf whole = *w;
    struct str head;
    whole.most_bytes = whole.most_tensors = whole.begun = 0;
    whole.part = &one;
    whole.n_parts = place_tensors(&whole);
    str_init(&head);
    add_head(&whole, 0, &head);
    const struct placed *last = w->n_tensors ? &w->place[w->n_tensors - 1] : NULL;
    const uint64_t n_bytes = head.n + (last ? last->at + padded(w, last->n_bytes) : 0);
    if (!str_ok(&head) || !str_ok(&w->values)) {
        str_release(&head);
        return err_set(err, INGLE_NOMEM, "%s: no memory for the metadata", w->path);
    }
    return io_open_head(out, w->path, str_detach(&head), n_bytes, planned, NULL, err);
}

ingle_status io_gguf_begin(struct io_gguf *w, struct err *err)
{
    const size_t n = place_tensors(w);
    uint64_t identity = 0;
    if (n > MAX_PARTS)
        return err_set(err, INGLE_LIMIT, "%s: it would have %zu parts, the limit is %d", w->path, n,
                       MAX_PARTS);
    w->part = mem_calloc(n, sizeof *w->part);
    if (!w->part || !str_ok(&w->values))
        return err_set(err, INGLE_NOMEM, "%s: no memory for the metadata", w->path);
    for (size_t i = w->n_tensors; i-- > 0;) {
        w->part[w->place[i].part].first = i;
        w->part[w->place[i].part].n_tensors++;
    }
    w->n_parts = n;
    for (size_t i = 0; i < n; i++)
        w->part[i].file.fd = -1;
    ingle_status s = w->keep ? identity_of(w, &identity, err) : INGLE_OK;
    for (size_t i = 0; i < n && !s; i++)
        s = open_part(w, i, true, err);
    for (size_t i = 0; i < n && !s; i++)
        s = open_part(w, i, false, err);
    if (!s && w->keep)
        s = take_state(w, identity, err);
    for (size_t i = 0; i < n && !s; i++) {
        static const char zero[1] = {0};
        const struct part *part = &w->part[i];
        const struct placed *last =
            part->n_tensors ? &w->place[part->first + part->n_tensors - 1] : NULL;
        s = begin_part(w, i, NULL, err);
        /* The whole length is known to be there, with the padding after the last tensor. */
        if (!s && last && last->at + last->n_bytes < part->n_data)
            s = file_new_write(&part->file, part->data + part->n_data - 1, zero, 1, err);
        else if (!s && !w->keep && part->n_data)
            s = file_new_write(&part->file, part->data + part->n_data - 1, zero, 1, err);
    }
    return s;
}

ingle_status io_gguf_write(struct io_gguf *w, size_t tensor, uint64_t offset, const void *bytes,
                           size_t n, struct err *err)
{
    const struct placed *p = &w->place[tensor];
    const struct part *part = &w->part[p->part];
    if (offset > p->n_bytes || n > p->n_bytes - offset)
        return err_set(err, INGLE_ARG, "%s: tensor %zu has %llu bytes, not %zu more after %llu",
                       w->path, tensor, (unsigned long long)p->n_bytes, n,
                       (unsigned long long)offset);
    return file_new_write(&part->file, part->data + p->at + offset, bytes, n, err);
}

ingle_status io_gguf_read(const struct io_gguf *w, size_t tensor, uint64_t offset, void *bytes,
                          size_t n, struct err *err)
{
    const struct placed *p = &w->place[tensor];
    const struct part *part = &w->part[p->part];
    return file_read_at(part->file.fd, part->file.tmp, part->data + p->at + offset, bytes, n, err);
}

/* "PREFIX.safetensors.index.json": which part has a tensor. */
static ingle_status write_index(const struct io_gguf *w, struct err *err)
{
    struct str json, path, part;
    uint64_t n_bytes = 0;
    str_init(&json);
    str_init(&path);
    str_addf(&path, "%s.index.json", w->path);
    for (size_t i = 0; i < w->n_tensors; i++)
        n_bytes += w->place[i].n_bytes;
    str_addf(&json, "{\n  \"metadata\": {\"total_size\": %llu},\n  \"weight_map\": {",
             (unsigned long long)n_bytes);
    for (size_t i = 0; i < w->n_tensors; i++) {
        str_init(&part);
        part_path(w, w->place[i].part, w->n_parts, &part);
        str_adds(&json, i ? ",\n    " : "\n    ");
        str_add_json(&json, w->place[i].name, strlen(w->place[i].name));
        str_adds(&json, ": ");
        if (str_ok(&part))
            str_add_json(&json, str_last_name(part.at), strlen(str_last_name(part.at)));
        else
            json.failed = true;
        str_release(&part);
    }
    str_adds(&json, "\n  }\n}\n");
    const struct output o = {path.at, OUTPUT_SIDE, w->output.guard, w->output.force, false};
    const ingle_status s = str_ok(&json) && str_ok(&path)
                               ? output_save(&o, json.at, json.n, err)
                               : err_set(err, INGLE_NOMEM, "%s: no memory for the index", w->path);
    str_release(&json);
    str_release(&path);
    return s;
}

/* The first part is the last to appear: a reader begins with it. */
ingle_status io_gguf_finish(struct io_gguf *w, struct err *err)
{
    ingle_status s = INGLE_OK;
    for (size_t i = w->n_parts; i-- > 0 && !s;)
        s = file_new_finish(&w->part[i].file, err);
    if (!s && w->safe && w->n_parts > 1)
        s = write_index(w, err);
    io_gguf_drop(w);
    return s;
}
