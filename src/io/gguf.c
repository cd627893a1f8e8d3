/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF versions 2 and 3: header, metadata, tensor table, split files. */
#include "io/inner.h"
#include "io/table.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include <stdio.h>
#include <string.h>

enum {
    MAX_KV = 65536,
    MAX_TENSORS = 262144,
    MIN_KV_BYTES = 13,
    MIN_TENSOR_BYTES = 32,
    MAX_KEY = 1024,
    MAX_NAME = 127,
    MAX_DIMS = 4,
    MAX_STRING = 64 << 20,
    MAX_ARRAY = 1 << 26,
    MIN_ALIGNMENT = 8,
    MAX_ALIGNMENT = 1 << 20,
    DEFAULT_ALIGNMENT = 32,
    MAX_SHARDS = 1024
};
static const uint64_t MAX_EXTENT = 1ull << 40, MAX_ELEMENTS = 1ull << 44;

typedef unsigned long long ull; /* for %llu */

/* One file of the container while it is read. */
struct gguf {
    struct io_file *f;
    struct io_meta *meta;
    struct io_reader r;
    uint32_t part;
    size_t first_tensor;                       /* of this part in f->tensor */
    uint64_t n_tensors, n_kv, alignment, data; /* data: where it begins */
    struct err *err;
};

static ingle_status take_u32(struct gguf *g, uint32_t *v, const char *what)
{
    return io_reader_take(&g->r, v, sizeof *v, what, g->err);
}

static ingle_status take_u64(struct gguf *g, uint64_t *v, const char *what)
{
    return io_reader_take(&g->r, v, sizeof *v, what, g->err);
}

static ingle_status gguf_header(struct gguf *g)
{
    char magic[4];
    uint32_t version;
    ingle_status s = io_reader_take(&g->r, magic, sizeof magic, "magic", g->err);
    if (!s && memcmp(magic, "GGUF", 4) != 0)
        s = err_set(g->err, INGLE_FORMAT, "%s: magic is '%s', not 'GGUF'", g->r.name,
                    io_show(magic, 4).text);
    if (!s)
        s = take_u32(g, &version, "version");
    if (s)
        return s;
    if (version && !(version & 0xFFFF))
        return err_set(g->err, INGLE_UNSUP,
                       "%s: version is 0x%08x: the file is in the wrong byte order (big-endian)",
                       g->r.name, version);
    if (version != 2 && version != 3)
        return err_set(g->err, INGLE_UNSUP, "%s: version is %u, this build reads 2 and 3",
                       g->r.name, version);
    s = take_u64(g, &g->n_tensors, "tensor count");
    if (!s)
        s = take_u64(g, &g->n_kv, "metadata count");
    if (s)
        return s;
    const uint64_t left = io_reader_left(&g->r);
    if (g->n_tensors > MAX_TENSORS || g->n_tensors > left / MIN_TENSOR_BYTES)
        return err_set(g->err, INGLE_LIMIT,
                       "%s: tensor count is %llu, the limit is %d and what fits %llu bytes",
                       g->r.name, (ull)g->n_tensors, MAX_TENSORS, (ull)left);
    if (g->n_kv > MAX_KV || g->n_kv > left / MIN_KV_BYTES)
        return err_set(g->err, INGLE_LIMIT,
                       "%s: metadata count is %llu, the limit is %d and what fits %llu bytes",
                       g->r.name, (ull)g->n_kv, MAX_KV, (ull)left);
    return INGLE_OK;
}

/* A name of min..max printable bytes into buf [max + 1]. */
static ingle_status take_name(struct gguf *g, const char *what, unsigned char lowest, size_t max,
                              char *buf, size_t *n)
{
    uint64_t len;
    const uint64_t at = g->r.pos;
    ingle_status s = take_u64(g, &len, what);
    if (s)
        return s;
    if (len < 1 || len > max)
        return err_set(g->err, INGLE_LIMIT,
                       "%s: %s at byte %llu has %llu bytes, allowed is 1 to %zu", g->r.name, what,
                       (ull)at, (ull)len, max);
    s = io_reader_take(&g->r, buf, (size_t)len, what, g->err);
    if (s)
        return s;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)buf[i] < lowest || (unsigned char)buf[i] > 0x7E)
            return err_set(g->err, INGLE_FORMAT, "%s: %s '%s' has byte 0x%02x at [%zu]", g->r.name,
                           what, io_show(buf, (size_t)len).text, (unsigned)(unsigned char)buf[i],
                           i);
    buf[len] = 0;
    *n = (size_t)len;
    return INGLE_OK;
}

static ingle_status take_string(struct gguf *g, const char *key, struct io_string *out)
{
    uint64_t len;
    ingle_status s = take_u64(g, &len, key);
    if (s)
        return s;
    if (len > MAX_STRING || len > io_reader_left(&g->r))
        return err_set(
            g->err, INGLE_LIMIT,
            "%s: key '%s': string of %llu bytes, the limit is %d and the %llu bytes left",
            g->r.name, key, (ull)len, MAX_STRING, (ull)io_reader_left(&g->r));
    void *at;
    s = io_arena_take(io_meta_arena(g->meta), (size_t)len + 1, &at, g->err);
    if (s)
        return err_prefix(g->err, "%s: key '%s'", g->r.name, key), s;
    s = io_reader_take(&g->r, at, (size_t)len, key, g->err);
    if (s)
        return s;
    ((char *)at)[len] = 0;
    out->s = at;
    out->n = (size_t)len;
    return INGLE_OK;
}

static ingle_status check_bool(struct gguf *g, const char *key, size_t i, unsigned char b)
{
    if (b > 1)
        return err_set(g->err, INGLE_FORMAT,
                       "%s: key '%s' is a bool of %u at [%zu], allowed is 0 or 1", g->r.name, key,
                       b, i);
    return INGLE_OK;
}

static ingle_status take_elements(struct gguf *g, struct io_value *v)
{
    struct io_arena *arena = io_meta_arena(g->meta);
    const bool strings = v->elem == IO_STR;
    const size_t size = strings ? sizeof(struct io_string) : io_gguf_size(v->gguf_type);
    void *at;
    ingle_status s = io_arena_take(arena, v->n * size, &at, g->err);
    if (s)
        return err_prefix(g->err, "%s: key '%s'", g->r.name, v->key), s;
    v->v.array = at;
    if (strings) {
        for (size_t i = 0; i < v->n && !s; i++)
            s = take_string(g, v->key, (struct io_string *)at + i);
        return s;
    }
    s = io_reader_take(&g->r, at, v->n * size, v->key, g->err);
    if (v->elem == IO_BOOL)
        for (size_t i = 0; i < v->n && !s; i++)
            s = check_bool(g, v->key, i, ((unsigned char *)at)[i]);
    return s;
}

static ingle_status take_array(struct gguf *g, struct io_value *v)
{
    uint64_t n;
    ingle_status s = take_u32(g, &v->gguf_type, v->key);
    if (s)
        return s;
    const size_t size = io_gguf_size(v->gguf_type);
    if (!size)
        return err_set(g->err, INGLE_FORMAT, "%s: key '%s' is an array of type %u, %s", g->r.name,
                       v->key, v->gguf_type,
                       v->gguf_type == GGUF_ARRAY ? "nested arrays are not read"
                                                  : "which is unknown");
    s = take_u64(g, &n, v->key);
    if (s)
        return s;
    if (n > MAX_ARRAY || n > io_reader_left(&g->r) / size)
        return err_set(
            g->err, INGLE_LIMIT,
            "%s: key '%s': array of %llu elements, the limit is %d and what fits %llu bytes",
            g->r.name, v->key, (ull)n, MAX_ARRAY, (ull)io_reader_left(&g->r));
    v->kind = IO_ARRAY;
    v->elem = io_gguf_kind(v->gguf_type);
    v->n = (size_t)n;
    return take_elements(g, v);
}

static ingle_status take_scalar(struct gguf *g, struct io_value *v)
{
    uint64_t bits = 0;
    ingle_status s = io_reader_take(&g->r, &bits, io_gguf_size(v->gguf_type), v->key, g->err);
    if (s)
        return s;
    /* An array of one element knows how to widen it. */
    const struct io_value one = {.key = v->key,
                                 .kind = IO_ARRAY,
                                 .elem = io_gguf_kind(v->gguf_type),
                                 .gguf_type = v->gguf_type,
                                 .n = 1,
                                 .v.array = &bits};
    v->kind = one.elem;
    v->n = 1;
    if (v->kind == IO_U64)
        v->v.u = io_array_u64(&one, 0);
    else if (v->kind == IO_I64)
        v->v.i = io_array_i64(&one, 0);
    else if (v->kind == IO_F64)
        v->v.f = io_array_f64(&one, 0);
    else {
        s = check_bool(g, v->key, 0, (unsigned char)bits);
        v->v.b = bits != 0;
    }
    return s;
}

static ingle_status gguf_kv(struct gguf *g)
{
    char key[MAX_KEY + 1];
    size_t n_key;
    struct io_value v = {0};
    ingle_status s = take_name(g, "key", 0x21, MAX_KEY, key, &n_key);
    if (!s)
        s = io_arena_copy(io_meta_arena(g->meta), key, n_key, &v.key, g->err);
    if (!s)
        s = take_u32(g, &v.gguf_type, v.key);
    if (s)
        return s;
    if (v.gguf_type >= GGUF_N_TYPES)
        return err_set(g->err, INGLE_FORMAT, "%s: key '%s' has value type %u, the highest is %d",
                       g->r.name, v.key, v.gguf_type, GGUF_N_TYPES - 1);
    if (v.gguf_type == GGUF_ARRAY) {
        s = take_array(g, &v);
    } else if (v.gguf_type == GGUF_STR) {
        struct io_string str = {0};
        s = take_string(g, v.key, &str);
        v.kind = IO_STR;
        v.v.s = str.s;
        v.n = str.n;
    } else {
        s = take_scalar(g, &v);
    }
    return s ? s : io_meta_append(g->meta, &v, g->err);
}

static ingle_status gguf_metadata(struct gguf *g)
{
    ingle_status s = INGLE_OK;
    for (uint64_t i = 0; i < g->n_kv && !s; i++)
        s = gguf_kv(g);
    if (s)
        return s;
    s = io_meta_seal(g->meta, g->err);
    if (s)
        return err_prefix(g->err, "%s", g->r.name), s;
    g->alignment = DEFAULT_ALIGNMENT;
    s = io_get_u64(g->meta, "general.alignment", MIN_ALIGNMENT, MAX_ALIGNMENT, &g->alignment,
                   g->err);
    if (s == INGLE_NOTFOUND)
        return INGLE_OK;
    if (!s && g->alignment & (g->alignment - 1))
        s = err_set(g->err, INGLE_FORMAT, "%s: key 'general.alignment' is %llu, no power of two",
                    g->r.name, (ull)g->alignment);
    return s;
}

/* One entry of the tensor table.  Offset is still relative, n_bytes unknown. */
static ingle_status gguf_tensor(struct gguf *g)
{
    char name[MAX_NAME + 1];
    size_t n_name;
    struct io_tensor t = {.name = name, .file = g->part};
    ingle_status s = take_name(g, "tensor name", 0x20, MAX_NAME, name, &n_name);
    if (!s)
        s = take_u32(g, &t.n_dims, name);
    if (s)
        return s;
    if (t.n_dims < 1 || t.n_dims > MAX_DIMS)
        return err_set(g->err, INGLE_FORMAT,
                       "%s: tensor '%s' has %u dimensions, allowed is 1 to %d", g->r.name, name,
                       t.n_dims, MAX_DIMS);
    uint64_t n = 1;
    for (uint32_t i = 0; i < IO_MAX_DIMS; i++)
        t.ne[i] = 1;
    for (uint32_t i = 0; i < t.n_dims; i++) {
        s = take_u64(g, &t.ne[i], name);
        if (s)
            return s;
        if (t.ne[i] < 1 || t.ne[i] > MAX_EXTENT)
            return err_set(g->err, INGLE_FORMAT,
                           "%s: tensor '%s': ne[%u] is %llu, allowed is 1 to %llu", g->r.name, name,
                           i, (ull)t.ne[i], (ull)MAX_EXTENT);
        if (!num_mul_u64(n, t.ne[i], &n) || n > MAX_ELEMENTS)
            return err_set(g->err, INGLE_LIMIT, "%s: tensor '%s' has more than %llu elements",
                           g->r.name, name, (ull)MAX_ELEMENTS);
    }
    s = take_u32(g, &t.type, name);
    if (!s)
        s = take_u64(g, &t.offset, name);
    if (s)
        return s;
    if (t.offset % g->alignment)
        return err_set(g->err, INGLE_FORMAT, "%s: tensor '%s': offset %llu is no multiple of %llu",
                       g->r.name, name, (ull)t.offset, (ull)g->alignment);
    return io_tensor_add(g->f, &t, n_name, g->err);
}

static uint64_t elements(const struct io_tensor *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        n *= t->ne[i]; /* at most MAX_ELEMENTS, checked when it was read */
    return n;
}

/* Type and size of a tensor; span: bytes from it to the next one or the end. */
static ingle_status gguf_size(struct gguf *g, struct io_tensor *t, uint64_t span)
{
    const struct quant_info *q = t->type < QUANT_FP8_E4M3 ? quant_info(t->type) : NULL;
    const uint64_t n = elements(t);
    if (!q)
        return err_set(
            g->err, INGLE_UNSUP,
            "%s: tensor '%s' has type id %u, which is unknown or retired (%llu elements in %llu "
            "bytes: %.4f bytes each)",
            g->r.name, t->name, t->type, (ull)n, (ull)span, (double)span / (double)n);
    if (t->ne[0] % q->n)
        return err_set(g->err, INGLE_FORMAT,
                       "%s: tensor '%s': ne[0] is %llu, no multiple of the %u of %s", g->r.name,
                       t->name, (ull)t->ne[0], q->n, q->name);
    if (!quant_bytes(t->type, t->ne[0], n / t->ne[0], &t->n_bytes))
        return err_set(g->err, INGLE_LIMIT, "%s: tensor '%s': %llu elements of %s have no size",
                       g->r.name, t->name, (ull)n, q->name);
    /* Id 42 means different things in different forks: the space it takes must agree. */
    if (t->type == QUANT_Q2_0 && span != t->n_bytes &&
        (t->n_bytes > span || span - t->n_bytes >= g->alignment))
        return err_set(
            g->err, INGLE_UNSUP,
            "%s: tensor '%s' has type id 42, but %llu bytes where Q2_0 needs %llu: another "
            "format under the same number (%.4f bytes an element)",
            g->r.name, t->name, (ull)span, (ull)t->n_bytes, (double)span / (double)n);
    return INGLE_OK;
}

/* Up to the alignment is padding.  More is a download that was resumed wrongly, or something else
 * after the model. */
static ingle_status gguf_surplus(const struct gguf *g, uint64_t n)
{
    return err_set(g->err, INGLE_FORMAT,
                   "%s: %llu bytes after the last tensor belong to nothing: the file is damaged "
                   "or is followed by another file",
                   g->r.name, (ull)n);
}

static ingle_status gguf_place(struct gguf *g, struct io_span *at, size_t n, uint64_t data_size)
{
    uint64_t end = 0, gap = 0;
    io_spans_sort(at, n);
    for (size_t i = 0; i < n; i++) {
        struct io_tensor *t = &g->f->tensor[at[i].tensor];
        if (t->offset > data_size)
            return err_set(g->err, INGLE_FORMAT,
                           "%s: tensor '%s' is at offset %llu but the data has %llu bytes: the "
                           "file is not complete",
                           g->r.name, t->name, (ull)t->offset, (ull)data_size);
        const uint64_t next = i + 1 < n ? at[i + 1].offset : data_size;
        ingle_status s = gguf_size(g, t, (next < data_size ? next : data_size) - t->offset);
        if (s)
            return s;
        if (t->n_bytes > data_size - t->offset)
            return err_set(g->err, INGLE_FORMAT,
                           "%s: tensor '%s' at offset %llu has %llu bytes but the data has %llu: "
                           "the file is not complete",
                           g->r.name, t->name, (ull)t->offset, (ull)t->n_bytes, (ull)data_size);
        if (i && t->offset < end)
            return err_set(g->err, INGLE_FORMAT,
                           "%s: tensor '%s' at offset %llu overlaps '%s', which ends at "
                           "%llu",
                           g->r.name, t->name, (ull)t->offset, g->f->tensor[at[i - 1].tensor].name,
                           (ull)end);
        if (t->offset - end >= g->alignment)
            gap += t->offset - end;
        end = t->offset + t->n_bytes;
    }
    if (data_size - end >= g->alignment)
        return gguf_surplus(g, data_size - end);
    for (size_t i = 0; i < n; i++)
        g->f->tensor[at[i].tensor].offset += g->data;
    if (gap)
        report(g->f->sink, INGLE_REPORT_NOTE, "file", g->r.name,
               "%llu bytes between tensors belong to none", (ull)gap);
    return INGLE_OK;
}

static ingle_status gguf_tensors(struct gguf *g)
{
    ingle_status s = INGLE_OK;
    g->first_tensor = g->f->n_tensors;
    for (uint64_t i = 0; i < g->n_tensors && !s; i++)
        s = gguf_tensor(g);
    if (!s && !g->n_tensors && g->r.n_bytes - g->r.pos >= 2 * g->alignment)
        return gguf_surplus(g, g->r.n_bytes - g->r.pos);
    if (s || !g->n_tensors)
        return s;
    /* Below 2^64: the position is a file's, the alignment at most MAX_ALIGNMENT. */
    g->data = (g->r.pos + g->alignment - 1) & ~(g->alignment - 1);
    const uint64_t data_size = g->data < g->r.n_bytes ? g->r.n_bytes - g->data : 0;
    const size_t n = (size_t)g->n_tensors;
    struct io_span *at = mem_calloc(n, sizeof *at);
    if (!at)
        return err_set(g->err, INGLE_NOMEM, "%s: no memory to sort %zu tensors", g->r.name, n);
    for (size_t i = 0; i < n; i++) {
        const struct io_tensor *t = &g->f->tensor[g->first_tensor + i];
        at[i] = (struct io_span){t->offset, 0, g->first_tensor + i};
    }
    s = gguf_place(g, at, n, data_size);
    mem_free(at);
    return s;
}

/* Version 2 is the only layout of quantised blocks that is still written. */
static ingle_status gguf_block_version(struct gguf *g)
{
    uint64_t version;
    ingle_status s =
        io_get_u64(g->meta, "general.quantization_version", 0, UINT32_MAX, &version, g->err);
    if (s == INGLE_NOTFOUND)
        return INGLE_OK;
    if (s || version == 2)
        return s;
    for (size_t i = g->first_tensor; i < g->f->n_tensors; i++)
        if (quant_info(g->f->tensor[i].type)->quantised)
            return err_set(g->err, INGLE_UNSUP,
                           "%s: key 'general.quantization_version' is %llu, this build reads 2",
                           g->r.name, (ull)version);
    return INGLE_OK;
}

static ingle_status gguf_read_part(struct io_file *f, uint32_t part, struct io_meta *meta,
                                   struct err *err)
{
    const struct io_part *p = &f->part[part];
    struct gguf g = {.f = f, .meta = meta, .part = part, .err = err};
    ingle_status s = io_reader_init(&g.r, p->path, p->fd, p->map, p->n_bytes, err);
    if (!s)
        s = gguf_header(&g);
    if (!s)
        s = gguf_metadata(&g);
    if (!s)
        s = gguf_tensors(&g);
    if (!s)
        s = gguf_block_version(&g);
    io_reader_release(&g.r);
    return s;
}

/* ---- split files: PREFIX-00001-of-00003.gguf, numbered from 1; split.no from 0 ---- */

/* The length of PREFIX and the numbers, or false. */
static bool split_name(const char *path, size_t *n_prefix, unsigned *no, unsigned *count)
{
    enum { TAIL = sizeof "-00001-of-00003.gguf" - 1 };
    const size_t n = strlen(path);
    if (n < TAIL)
        return false;
    const char *tail = path + n - TAIL;
    for (int i = 0; i < TAIL; i++) {
        const char want = "-#####-of-#####.gguf"[i];
        if (want == '#' ? tail[i] < '0' || tail[i] > '9' : tail[i] != want)
            return false;
    }
    *n_prefix = n - TAIL;
    *no = *count = 0;
    for (int i = 0; i < 5; i++) {
        *no = *no * 10 + (unsigned)(tail[1 + i] - '0');
        *count = *count * 10 + (unsigned)(tail[10 + i] - '0');
    }
    return true;
}

static ingle_status split_key(const struct io_meta *m, const char *key, uint64_t max, uint64_t *out,
                              struct err *err)
{
    ingle_status s = io_get_u64(m, key, 0, max, out, err);
    return s == INGLE_NOTFOUND ? INGLE_OK : s;
}

/* What later parts repeat of the first one must be the same: else they are parts of other files. */
static ingle_status split_same(const struct io_meta *first, const struct io_meta *part,
                               const char *path, struct err *err)
{
    static const char *const words[] = {"general.architecture", "general.name", "general.version",
                                        "general.finetune"};
    static const char *const numbers[] = {"split.tensors.count", "general.file_type",
                                          "general.quantization_version"};
    const char *a, *b;
    size_t n_a, n_b;
    uint64_t x, y;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!io_get_str(first, words[i], &a, &n_a, NULL) &&
            !io_get_str(part, words[i], &b, &n_b, NULL) && (n_a != n_b || memcmp(a, b, n_a) != 0))
            return err_set(
                err, INGLE_FORMAT,
                "%s: is a part of another file: key '%s' is '%s', in the first part '%s'", path,
                words[i], io_show(b, n_b).text, io_show(a, n_a).text);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!io_get_u64(first, numbers[i], 0, UINT64_MAX, &x, NULL) &&
            !io_get_u64(part, numbers[i], 0, UINT64_MAX, &y, NULL) && x != y)
            return err_set(
                err, INGLE_FORMAT,
                "%s: is a part of another file: key '%s' is %llu, in the first part %llu", path,
                numbers[i], (ull)y, (ull)x);
    return INGLE_OK;
}

/* Reads shard no (from 0) and checks that it says so itself. */
static ingle_status split_read(struct io_file *f, const char *path, uint64_t no, uint64_t count,
                               struct err *err)
{
    uint64_t says_no = UINT64_MAX, says_count = 0;
    struct io_meta *meta = io_meta_create();
    if (!meta || io_meta_set_name(meta, path)) {
        io_meta_free(meta);
        return err_set(err, INGLE_NOMEM, "%s: no memory to open it", path);
    }
    ingle_status s = io_part_add(f, path, err);
    if (!s)
        s = gguf_read_part(f, (uint32_t)no, meta, err);
    if (!s)
        s = split_key(meta, "split.no", UINT16_MAX, &says_no, err);
    if (!s)
        s = split_key(meta, "split.count", UINT16_MAX, &says_count, err);
    if (!s)
        s = split_same(f->meta, meta, path, err);
    if (!s && (says_no != no || says_count != count))
        s = err_set(err, INGLE_FORMAT,
                    "%s: says split.no %lld of split.count %llu where %llu of %llu is needed", path,
                    (long long)says_no, (ull)says_count, (ull)no, (ull)count);
    io_meta_free(meta);
    return s;
}

static ingle_status split_read_rest(struct io_file *f, size_t n_prefix, uint64_t count,
                                    struct err *err)
{
    struct str path;
    ingle_status s = INGLE_OK;
    str_init(&path);
    for (uint64_t i = 1; i < count && !s; i++) {
        str_clear(&path);
        str_add(&path, f->path, n_prefix);
        str_addf(&path, "-%05u-of-%05u.gguf", (unsigned)i + 1, (unsigned)count);
        s = str_ok(&path) ? split_read(f, path.at, i, count, err)
                          : err_set(err, INGLE_NOMEM, "%s: no memory for a path", f->path);
    }
    str_release(&path);
    return s;
}

static ingle_status gguf_split(struct io_file *f, struct err *err)
{
    uint64_t no = 0, count = 0, n_tensors = UINT64_MAX;
    size_t n_prefix = 0;
    unsigned name_no, name_count;
    ingle_status s = split_key(f->meta, "split.count", UINT16_MAX, &count, err);
    if (s || count <= 1)
        return s;
    if (count > MAX_SHARDS)
        return err_set(err, INGLE_LIMIT, "%s: key 'split.count' is %llu, the limit is %d", f->path,
                       (ull)count, MAX_SHARDS);
    s = split_key(f->meta, "split.no", UINT16_MAX, &no, err);
    if (!s)
        s = split_key(f->meta, "split.tensors.count", MAX_TENSORS, &n_tensors, err);
    if (s)
        return s;
    if (f->part[0].fd < 0)
        return err_set(err, INGLE_UNSUP,
                       "%s: key 'split.count' is %llu, but a split model cannot be read "
                       "from memory",
                       f->path, (ull)count);
    const bool named = split_name(f->path, &n_prefix, &name_no, &name_count);
    if (no != 0 && named)
        return err_set(err, INGLE_ARG,
                       "%s: is part %llu of a split model: open '%.*s-%05u-of-%05u.gguf'", f->path,
                       (ull)no + 1, (int)(n_prefix < 200 ? n_prefix : 200), f->path, 1u,
                       (unsigned)count);
    if (no != 0 || !named || name_no != 1 || name_count != count)
        return err_set(err, INGLE_FORMAT,
                       "%s: is part %llu of %llu, so its name must end in '-%05u-of-%05u.gguf'",
                       f->path, (ull)no + 1, (ull)count, (unsigned)no + 1, (unsigned)count);
    s = split_read_rest(f, n_prefix, count, err);
    if (!s && n_tensors != UINT64_MAX && f->n_tensors != n_tensors)
        s = err_set(err, INGLE_FORMAT,
                    "%s: key 'split.tensors.count' is %llu, but the %llu files have %zu", f->path,
                    (ull)n_tensors, (ull)count, f->n_tensors);
    return s;
}

ingle_status io_gguf_open(struct io_file *f, struct err *err)
{
    f->kind = IO_GGUF;
    ingle_status s = gguf_read_part(f, 0, f->meta, err);
    if (!s)
        s = gguf_split(f, err);
    return s ? s : io_tensors_index(f, err);
}
