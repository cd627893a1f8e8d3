/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tool.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/plain.h"
#include "base/write.h"
#include "io/io.h"
#include "quant/quant.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { JSON_LIMIT = 1 << 30 };

/* ---- ids ---- */

static ingle_status ids_from_json(const char *path, const char *text, size_t n_bytes,
                                  int32_t **ids, size_t *n, struct err *err)
{
    struct json_object *o = NULL;
    ingle_status st = json_parse(text, n_bytes, NULL, &o, err);
    if (st) {
        err_prefix(err, "%s", path);
        return st;
    }
    const size_t count = json_object_is_type(o, json_type_array) ? json_object_array_length(o) : 0;
    int32_t *id = mem_calloc(count + 1, sizeof *id);
    if (!count)
        st = err_set(err, INGLE_FORMAT, "%s: it holds no array of token ids", path);
    else if (!id)
        st = err_set(err, INGLE_NOMEM, "%s: no memory for %zu ids", path, count);
    for (size_t i = 0; !st && i < count; i++) {
        struct json_object *v = json_object_array_get_idx(o, i);
        const int64_t x = json_object_get_int64(v);
        if (!json_object_is_type(v, json_type_int) || x < 0 || x > INT32_MAX)
            st = err_set(err, INGLE_FORMAT, "%s: element %zu is no token id", path, i);
        else
            id[i] = (int32_t)x;
    }
    json_object_put(o);
    if (st) {
        mem_free(id);
        return st;
    }
    *ids = id;
    *n = count;
    return INGLE_OK;
}

static ingle_status ids_from_tensor(const char *path, int32_t **ids, size_t *n, struct err *err)
{
    struct io_file *f = NULL;
    ingle_status st = io_open(&f, path, NULL, err);
    if (st)
        return st;
    const struct io_tensor *t = io_tensor_find(f, "input_ids");
    const size_t size = t && t->type == QUANT_I32 ? 4 : t && t->type == QUANT_I64 ? 8 : 0;
    if (!size || t->n_bytes < size) {
        st = err_set(err, INGLE_FORMAT, "%s: there is no tensor 'input_ids' of I32 or I64", path);
        io_close(f);
        return st;
    }
    const size_t count = (size_t)t->n_bytes / size;
    unsigned char *raw = mem_alloc((size_t)t->n_bytes);
    int32_t *id = mem_calloc(count, sizeof *id);
    st = raw && id ? io_read(f, t, 0, raw, (size_t)t->n_bytes, err)
                   : err_set(err, INGLE_NOMEM, "%s: no memory for %zu ids", path, count);
    for (size_t i = 0; !st && i < count; i++) {
        uint64_t x = 0;
        for (size_t b = size; b-- > 0;)
            x = x << 8 | raw[i * size + b];
        if (x > INT32_MAX)
            st = err_set(err, INGLE_FORMAT, "%s: element %zu of 'input_ids' is no token id", path,
                         i);
        id[i] = (int32_t)(x & INT32_MAX);
    }
    mem_free(raw);
    io_close(f);
    if (st) {
        mem_free(id);
        return st;
    }
    *ids = id;
    *n = count;
    return INGLE_OK;
}

static bool ends_with(const char *path, const char *end)
{
    const size_t n = strlen(path), k = strlen(end);
    return n > k && strcmp(path + (n - k), end) == 0;
}

bool tool_ids_binary(const char *path)
{
    return ends_with(path, ".safetensors") || ends_with(path, ".bin");
}

ingle_status tool_ids_read_bin(const char *path, int32_t **ids, size_t *n, struct err *err)
{
    char *bytes;
    size_t n_bytes;
    ingle_status st = file_slurp(path, JSON_LIMIT, &bytes, &n_bytes, err);
    if (st)
        return st;
    const size_t count = n_bytes / 4;
    int32_t *id = NULL;
    if (!count || n_bytes % 4)
        st = err_set(err, INGLE_FORMAT, "%s: its %zu bytes are no list of 32-bit token ids", path,
                     n_bytes);
    else if (!(id = mem_calloc(count, sizeof *id)))
        st = err_set(err, INGLE_NOMEM, "%s: no memory for %zu ids", path, count);
    for (size_t i = 0; !st && i < count; i++) {
        uint32_t x = 0;
        for (size_t b = 4; b-- > 0;)
            x = x << 8 | (unsigned char)bytes[i * 4 + b];
        if (x > INT32_MAX)
            st = err_set(err, INGLE_FORMAT, "%s: element %zu is %d, no token id", path, i, (int)x);
        id[i] = (int32_t)(x & INT32_MAX);
    }
    mem_free(bytes);
    if (st) {
        mem_free(id);
        return st;
    }
    *ids = id;
    *n = count;
    return INGLE_OK;
}

static ingle_status ids_from_list(const char *name, const char *text, size_t n_text, int32_t **ids,
                                  size_t *n, struct err *err)
{
    static const char between[] = " \t\r\n,";
    int32_t *id = NULL;
    size_t count = 0, cap = 0, i = 0;
    ingle_status st = INGLE_OK;
    for (;;) {
        while (i < n_text && strchr(between, text[i]))
            i++;
        if (st || i == n_text)
            break;
        const size_t from = i;
        int64_t x = 0;
        while (i < n_text && text[i] >= '0' && text[i] <= '9' && x <= INT32_MAX)
            x = x * 10 + (text[i++] - '0');
        if (i == from || x > INT32_MAX || (i < n_text && !strchr(between, text[i])))
            st = err_set(err, INGLE_FORMAT, "%s: '%.*s' at offset %zu is no token id", name,
                         (int)strcspn(text + from, " \t\r\n,"), text + from, from);
        else if (!mem_grow(&id, &cap, count + 1, sizeof *id))
            st = err_set(err, INGLE_NOMEM, "%s: no memory for %zu ids", name, count);
        else
            id[count++] = (int32_t)x;
    }
    if (!st && !count)
        st = err_set(err, INGLE_FORMAT, "%s: it holds no token ids", name);
    if (st) {
        mem_free(id);
        return st;
    }
    *ids = id;
    *n = count;
    return INGLE_OK;
}

ingle_status tool_ids_parse(const char *name, const char *text, size_t n_text, int32_t **ids,
                            size_t *n, struct err *err)
{
    const size_t blank = strspn(text, " \t\r\n");
    return text[blank] == '[' || text[blank] == '{'
               ? ids_from_json(name, text, n_text, ids, n, err)
               : ids_from_list(name, text, n_text, ids, n, err);
}

ingle_status tool_ids_read(const char *path, int32_t **ids, size_t *n, struct err *err)
{
    if (ends_with(path, ".safetensors"))
        return ids_from_tensor(path, ids, n, err);
    if (ends_with(path, ".bin"))
        return tool_ids_read_bin(path, ids, n, err);
    char *text;
    size_t n_bytes;
    ingle_status st = file_slurp(path, JSON_LIMIT, &text, &n_bytes, err);
    if (st)
        return st;
    st = plain_text(path, &text, &n_bytes, err);
    if (!st)
        st = tool_ids_parse(path, text, n_bytes, ids, n, err);
    mem_free(text);
    return st;
}

/* ---- matrices ---- */

struct tool_matrix {
    struct io_file *file;
    const struct io_tensor *t;
    int64_t n, width;
};

/* A tensor as rows of its last axis. */
static void as_rows(const struct io_tensor *t, int64_t *n, int64_t *width)
{
    *width = (int64_t)t->ne[0];
    *n = *width && t->type == QUANT_F32 ? (int64_t)(t->n_bytes / 4 / t->ne[0]) : 0;
}

ingle_status tool_matrix_open(struct tool_matrix **out, const char *path, const char *name,
                              struct err *err)
{
    struct tool_matrix *m = mem_zalloc(sizeof *m);
    if (!m)
        return err_set(err, INGLE_NOMEM, "%s: no memory", path);
    ingle_status st = io_open(&m->file, path, NULL, err);
    if (!st) {
        m->t = io_tensor_find(m->file, name);
        if (m->t)
            as_rows(m->t, &m->n, &m->width);
        if (!m->n)
            st = err_set(err, INGLE_FORMAT, "%s: there is no F32 tensor '%s'", path, name);
    }
    if (st)
        tool_matrix_close(m);
    else
        *out = m;
    return st;
}

void tool_matrix_close(struct tool_matrix *m)
{
    if (!m)
        return;
    io_close(m->file);
    mem_free(m);
}

int64_t tool_matrix_rows(const struct tool_matrix *m)
{
    return m->n;
}

int64_t tool_matrix_width(const struct tool_matrix *m)
{
    return m->width;
}

ingle_status tool_matrix_row(const struct tool_matrix *m, int64_t i, float *dst, struct err *err)
{
    const size_t n_bytes = (size_t)m->width * sizeof *dst;
    return io_read(m->file, m->t, (uint64_t)i * n_bytes, dst, n_bytes, err);
}

ingle_status tool_matrices_save(const char *path, const struct tool_part *part, size_t n_parts,
                                struct err *err)
{
    struct io_writer *w = NULL;
    ingle_status st = io_writer_create(&w, path, OUTPUT_MATRICES, err);
    if (st)
        return st;
    for (size_t i = 0; !st && i < n_parts; i++) {
        const uint64_t shape[2] = {(uint64_t)part[i].n, (uint64_t)part[i].width};
        const struct tool_part *p = &part[i];
        st = io_writer_add(w, p->name, p->ints ? QUANT_I32 : QUANT_F32, p->width ? 2 : 1, shape,
                           p->ints ? (const void *)p->ints : p->at,
                           shape[0] * (p->width ? shape[1] : 1) * sizeof(float), err);
    }
    struct err closing;
    const ingle_status closed = io_writer_close(w, st ? &closing : err);
    return st ? st : closed;
}

/* ---- differences ---- */

/* log of the sum of exp(x). */
static double log_sum(const float *x, int64_t n)
{
    const double max = (double)x[tool_top_of(x, n)];
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

double tool_surprise(const float *row, int64_t width, int32_t token)
{
    return log_sum(row, width) - (double)row[token];
}

void tool_difference_add(struct tool_difference *d, const float *row, const float *reference,
                         int64_t width)
{
    const double z = log_sum(row, width), zr = log_sum(reference, width);
    double kl = 0;
    for (int64_t i = 0; i < width; i++) {
        const double a = (double)row[i], b = (double)reference[i];
        const double p = exp(b - zr), diff = fabs(a - b);
        if (p > 0)
            kl += p * ((b - zr) - (a - z));
        d->square_sum += diff * diff;
        d->reference_sum += b * b;
        /* A NaN must show. */
        if (!(diff <= d->max_abs))
            d->max_abs = diff;
    }
    d->n_rows++;
    d->n_same_top += tool_top_of(row, width) == tool_top_of(reference, width);
    d->kl_sum += kl;
    if (!(kl <= d->kl_max))
        d->kl_max = kl;
}

double tool_difference_rms(const struct tool_difference *d)
{
    return d->reference_sum > 0 ? sqrt(d->square_sum / d->reference_sum) : sqrt(d->square_sum);
}

static ingle_status compare_pair(const char *a, const char *b, const char *name,
                                 struct tool_difference *d, struct err *err)
{
    struct tool_matrix *ma = NULL, *mb = NULL;
    float *row = NULL;
    ingle_status st = tool_matrix_open(&ma, a, name, err);
    if (!st)
        st = tool_matrix_open(&mb, b, name, err);
    if (!st && !(row = mem_calloc((size_t)ma->width * 2, sizeof *row)))
        st = err_set(err, INGLE_NOMEM, "no memory for rows of '%s'", name);
    for (int64_t i = 0; !st && i < ma->n; i++) {
        st = tool_matrix_row(ma, i, row, err);
        if (!st)
            st = tool_matrix_row(mb, i, row + ma->width, err);
        if (!st)
            tool_difference_add(d, row, row + ma->width, ma->width);
    }
    mem_free(row);
    tool_matrix_close(ma);
    tool_matrix_close(mb);
    return st;
}

static void add_line(struct str *out, const char *name, const struct tool_difference *d, bool json)
{
    const double rms = tool_difference_rms(d), same = (double)d->n_same_top / (double)d->n_rows;
    const double kl = d->kl_sum / (double)d->n_rows;
    if (!json) {
        str_add_column(out, name, 31);
        str_addf(out, "max abs %-10.3g relative RMS %-10.3g", d->max_abs, rms);
        if (strcmp(name, "logits") == 0)
            str_addf(out, " same top %.2f %% KL %.3g", same * 100, kl);
        str_addc(out, '\n');
        return;
    }
    write_key(out, name);
    write_open(out, '{');
    write_member_significant(out, "max_abs", 9, d->max_abs);
    write_member_significant(out, "relative_rms", 9, rms);
    write_member_significant(out, "same_top", 9, same);
    write_member_significant(out, "kl", 9, kl);
    write_close(out, '}');
}

static bool same_shape(const struct io_tensor *a, const struct io_tensor *b)
{
    if (!b || a->type != b->type || a->n_bytes != b->n_bytes)
        return false;
    for (int i = 0; i < IO_MAX_DIMS; i++)
        if (a->ne[i] != b->ne[i])
            return false;
    return true;
}

ingle_status tool_compare(const char *a, const char *b, bool json, struct str *out,
                          int64_t *n_other, struct err *err)
{
    struct io_file *fa = NULL, *fb = NULL;
    ingle_status st = io_open(&fa, a, NULL, err);
    if (!st)
        st = io_open(&fb, b, NULL, err);
    int64_t n_same = 0, n_all = st ? 0 : (int64_t)(io_n_tensors(fa) + io_n_tensors(fb));
    out->spaced = true;
    if (json)
        write_open(out, '{');
    for (size_t i = 0; !st && i < io_n_tensors(fa); i++) {
        const struct io_tensor *t = io_tensor_at(fa, i);
        struct tool_difference d = {0};
        if (t->type != QUANT_F32 || !t->n_bytes || !same_shape(t, io_tensor_find(fb, t->name)))
            continue;
        st = compare_pair(a, b, t->name, &d, err);
        if (!st)
            add_line(out, t->name, &d, json);
        n_same++;
    }
    str_adds(out, json ? "}\n" : "");
    *n_other = n_all - 2 * n_same;
    io_close(fa);
    io_close(fb);
    if (!st && !str_ok(out))
        st = err_set(err, INGLE_NOMEM, "no memory for the comparison");
    return st;
}
