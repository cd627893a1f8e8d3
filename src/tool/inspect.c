/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tool.h"

#include "base/size.h"
#include "base/write.h"

#include "io/io.h"
#include "quant/quant.h"
#include "tower/tower.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { SHOWN = 6, SHOWN_BYTES = 72 }; /* of an array, of a string */

struct sum {
    uint64_t n_tensors, n_elements, n_bytes;
};

static const char *type_name(uint32_t type)
{
    const struct quant_info *i = quant_info(type);
    return i ? i->name : "unknown";
}

static uint64_t elements(const struct io_tensor *t)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < t->n_dims; d++)
        n *= t->ne[d];
    return n;
}

/* ---- values ---- */

static void add_string(struct str *out, const char *s, size_t n, bool whole)
{
    if (whole) {
        str_add_json(out, s, n);
        return;
    }
    const size_t k = n <= SHOWN_BYTES ? n : SHOWN_BYTES - 8;
    struct str text; /* as a terminal can show it */
    str_init(&text);
    str_add_json(&text, s, k);
    str_add_shown(out, text.at, text.n);
    out->failed |= text.failed;
    str_release(&text);
    if (k < n)
        str_addf(out, " ... (%zu bytes)", n);
}

static void add_number(struct str *out, double v, bool json)
{
    if (json && !isfinite(v))
        str_adds(out, "null");
    else
        str_addf(out, "%.9g", v);
}

static void add_element(struct str *out, const struct io_value *v, size_t i, bool json)
{
    size_t n;
    const char *s;
    switch (v->elem) {
    case IO_U64:
        str_addf(out, "%" PRIu64, io_array_u64(v, i));
        break;
    case IO_I64:
        str_addf(out, "%" PRId64, io_array_i64(v, i));
        break;
    case IO_F64:
        add_number(out, io_array_f64(v, i), json);
        break;
    case IO_BOOL:
        str_adds(out, io_array_bool(v, i) ? "true" : "false");
        break;
    case IO_STR:
        s = io_array_str(v, i, &n);
        add_string(out, s, n, false);
        break;
    case IO_ARRAY:
        break;
    }
}

static void write_first(struct str *out, size_t n)
{
    write_open(out, '{');
    write_member_uint(out, "n", n);
    write_key(out, "first");
}

/* Long arrays (vocabularies) are cut: JSON says so with a member "n". */
static void add_array(struct str *out, const struct io_value *v, bool json)
{
    const bool cut = v->n > (json ? 1024 : SHOWN * 12) || (v->elem == IO_STR && v->n > SHOWN);
    const size_t shown = cut ? SHOWN : v->n;
    if (json && cut)
        write_first(out, v->n);
    str_adds(out, "[");
    for (size_t i = 0; i < shown; i++) {
        str_adds(out, i ? ", " : "");
        add_element(out, v, i, json);
    }
    str_adds(out, cut && !json ? ", ...]" : "]");
    if (cut && !json)
        str_addf(out, " (%zu)", v->n);
    if (json && cut)
        str_adds(out, "}");
}

static void add_value(struct str *out, const struct io_value *v, bool json)
{
    switch (v->kind) {
    case IO_U64:
        str_addf(out, "%" PRIu64, v->v.u);
        break;
    case IO_I64:
        str_addf(out, "%" PRId64, v->v.i);
        break;
    case IO_F64:
        add_number(out, v->v.f, json);
        break;
    case IO_BOOL:
        str_adds(out, v->v.b ? "true" : "false");
        break;
    case IO_STR:
        add_string(out, v->v.s, v->n, json);
        break;
    case IO_ARRAY:
        add_array(out, v, json);
        break;
    }
}

/* ---- sums by type ---- */

enum { N_TYPES = 256 };

static struct sum sum_types(const struct io_file *f, struct sum by_type[N_TYPES])
{
    struct sum all = {0};
    for (size_t i = 0; i < io_n_tensors(f); i++) {
        const struct io_tensor *t = io_tensor_at(f, i);
        struct sum *s = &by_type[t->type < N_TYPES ? t->type : N_TYPES - 1];
        const uint64_t n = elements(t);
        s->n_tensors++;
        s->n_elements += n;
        s->n_bytes += t->n_bytes;
        all.n_tensors++;
        all.n_elements += n;
        all.n_bytes += t->n_bytes;
    }
    return all;
}

/* ---- text ---- */

static void add_shape(struct str *out, const struct io_tensor *t, const char *between)
{
    for (uint32_t d = t->n_dims; d-- > 0;)
        str_addf(out, "%" PRIu64 "%s", t->ne[d], d ? between : "");
}

/* What encoders it has, if any: the same line in text and in JSON. */
static void describe_tower(struct io_file *f, struct str *line)
{
    struct device *d = NULL;
    struct tower *t = NULL;
    struct err err = {0};
    if (!tower_is_in(f))
        return;
    ingle_status s =
        device_create(&d, &(struct device_options){.n_threads = 1, .cpu = UINT32_MAX}, &err);
    if (!s)
        s = tower_open_file(&t, f, &(struct tower_options){.device = d, .check = true}, &err);
    if (s)
        str_addf(line, "not usable: %s", err.msg);
    else
        tower_describe(t, line);
    tower_close(t);
    device_free(d);
}

static void describe(const struct io_file *f, const struct tool_inspect_options *o,
                       const char *encoders, struct str *out)
{
    struct sum by_type[N_TYPES] = {{0}};
    const struct sum all = sum_types(f, by_type);
    str_add_shown(out, io_path(f), strlen(io_path(f)));
    str_addf(out, ": %s, ", io_kind(f) == IO_GGUF ? "GGUF" : "safetensors");
    str_adds(out, SIZE_OF(io_size(f)));
    str_addf(out, ", %" PRIu64 " tensors, %.3f million elements\n", all.n_tensors,
             (double)all.n_elements / 1e6);
    if (o->drafts)
        str_addf(out, "drafts: %s\n", o->drafts);
    if (*encoders) {
        str_adds(out, "encoders: ");
        str_add_shown(out, encoders, strlen(encoders));
        str_addc(out, '\n');
    }
    str_addc(out, '\n');
    const struct io_meta *meta = io_metadata(f);
    for (size_t i = 0; i < io_meta_count(meta); i++) {
        const struct io_value *v = io_meta_at(meta, i);
        str_add_column(out, v->key, 46);
        add_value(out, v, false);
        str_addc(out, '\n');
    }
    str_addf(out, "\n%-10s %8s %16s %14s %10s\n", "type", "tensors", "elements", "bytes",
             "bits each");
    for (uint32_t t = 0; t < N_TYPES; t++)
        if (by_type[t].n_tensors)
            str_addf(out, "%-10s %8" PRIu64 " %16" PRIu64 " %14" PRIu64 " %10.2f\n", type_name(t),
                     by_type[t].n_tensors, by_type[t].n_elements, by_type[t].n_bytes,
                     (double)by_type[t].n_bytes * 8 /
                         (double)(by_type[t].n_elements ? by_type[t].n_elements : 1));
    if (!o->tensors)
        return;
    str_addc(out, '\n');
    for (size_t i = 0; i < io_n_tensors(f); i++) {
        const struct io_tensor *t = io_tensor_at(f, i);
        str_add_column(out, t->name, 48);
        str_addf(out, "%-8s %12" PRIu64 "  ", type_name(t->type), t->n_bytes);
        add_shape(out, t, " x ");
        str_addc(out, '\n');
    }
}

/* ---- JSON ---- */

static void write_tensors(const struct io_file *f, struct str *out)
{
    write_key(out, "list");
    write_open(out, '[');
    for (size_t i = 0; i < io_n_tensors(f); i++) {
        const struct io_tensor *t = io_tensor_at(f, i);
        write_open(out, '{');
        write_member(out, "name", t->name);
        write_member(out, "type", type_name(t->type));
        write_member_uint(out, "bytes", t->n_bytes);
        write_key(out, "shape");
        write_open(out, '[');
        add_shape(out, t, ", ");
        write_close(out, ']');
        write_close(out, '}');
    }
    write_close(out, ']');
}

static void describe_json(const struct io_file *f, const struct tool_inspect_options *o,
                       const char *encoders, struct str *out)
{
    struct sum by_type[N_TYPES] = {{0}};
    const struct sum all = sum_types(f, by_type);
    const struct io_meta *meta = io_metadata(f);
    out->spaced = true;
    write_open(out, '{');
    write_member(out, "path", io_path(f));
    write_member(out, "format", io_kind(f) == IO_GGUF ? "gguf" : "safetensors");
    write_member_uint(out, "bytes", io_size(f));
    write_member_uint(out, "tensors", all.n_tensors);
    write_member_uint(out, "elements", all.n_elements);
    write_key(out, "metadata");
    write_open(out, '{');
    for (size_t i = 0; i < io_meta_count(meta); i++) {
        const struct io_value *v = io_meta_at(meta, i);
        write_key(out, v->key);
        add_value(out, v, true);
    }
    write_close(out, '}');
    write_key(out, "types");
    write_open(out, '{');
    for (uint32_t t = 0; t < N_TYPES; t++) {
        if (!by_type[t].n_tensors)
            continue;
        write_key(out, type_name(t));
        write_open(out, '{');
        write_member_uint(out, "tensors", by_type[t].n_tensors);
        write_member_uint(out, "elements", by_type[t].n_elements);
        write_member_uint(out, "bytes", by_type[t].n_bytes);
        write_close(out, '}');
    }
    write_close(out, '}');
    if (o->drafts)
        write_member(out, "drafts", o->drafts);
    if (*encoders)
        write_member(out, "encoders", encoders);
    if (o->tensors && io_n_tensors(f))
        write_tensors(f, out);
    write_close(out, '}');
    str_addc(out, '\n');
}

ingle_status tool_inspect(const char *path, const void *at, size_t n_bytes,
                          const struct tool_inspect_options *o, const struct report_sink *sink,
                          struct str *out, struct err *err)
{
    struct io_file *f = NULL;
    const ingle_status st = at ? io_open_memory(&f, path, at, n_bytes, sink, err)
                               : io_open(&f, path, sink, err);
    if (st)
        return st;
    struct str encoders;
    str_init(&encoders);
    describe_tower(f, &encoders);
    if (o->json)
        describe_json(f, o, encoders.at, out);
    else
        describe(f, o, encoders.at, out);
    str_release(&encoders);
    io_close(f);
    return str_ok(out) ? INGLE_OK : err_set(err, INGLE_NOMEM, "%s: no memory for the list", path);
}
