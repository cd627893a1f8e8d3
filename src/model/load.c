/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load - stored rows into device matrices, in parallel chunks that a worker's buffer holds,
 * so that no matrix is ever in memory twice.  All matrices lie in one piece of memory, the
 * image: new memory, or a file of packed weights.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "model/packed.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { CHUNK_BYTES = 512 << 10, LARGE = 64 << 20, FP8_TILE = 128, GROUP = 32 };

bool model_loads_as(uint32_t stored, bool has_scale, uint32_t *type, enum conversion *from)
{
    *type = stored;
    *from = AS_STORED;
    if (stored == QUANT_I8 && has_scale) {
        *type = QUANT_MXFP4;
        *from = FROM_FP4;
    } else if (stored == QUANT_FP8_E4M3 && has_scale) {
        *type = QUANT_FP8_B32;
        *from = FROM_FP8;
    }
    return stored != QUANT_I8 || has_scale;
}

struct load {
    struct model *m;
    uint8_t *buffer; /* [workers][buffer_bytes]: stored rows, then their scales, then converted */
    size_t buffer_bytes, scale_at, row_at;
    const struct bound_matrix *b;
    int64_t rows_per_chunk, chunks; /* chunks of one matrix of the stack */
    uint64_t stored_bytes, row_bytes; /* of one row: in the file, as the device wants it */
    struct err *err; /* [workers] */
};

/* FP4: low nibble first; a block of MXFP4 pairs element j with j + 16. */
static void convert_fp4(const uint8_t *codes, const uint8_t *scale, uint8_t *out, int64_t in)
{
    for (int64_t g = 0; g < in / GROUP; g++, codes += GROUP / 2, out += 17) {
        out[0] = scale[g];
        for (int j = 0; j < GROUP / 2; j++) {
            const int a = codes[j / 2] >> 4 * (j % 2) & 15, b = codes[8 + j / 2] >> 4 * (j % 2) & 15;
            out[1 + j] = (uint8_t)(a | b << 4);
        }
    }
}

/* FP8: each group of 32 carries its tile's scale in front. */
static void convert_fp8(const uint8_t *codes, const uint8_t *scale, uint8_t *out, int64_t in)
{
    for (int64_t g = 0; g < in / GROUP; g++, codes += GROUP, out += GROUP + 1) {
        out[0] = scale[g * GROUP / FP8_TILE];
        memcpy(out + 1, codes, GROUP);
    }
}

static void fail_number(struct load *l, const struct io_tensor *t, int64_t row, struct err *err)
{
    err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has a scale or weight that is no number in row %lld",
            io_path(l->m->file), t->name, (long long)row);
}

/* Scales written as f32 become exponents, in place: they must be powers of two. */
static bool shrink_scales(struct load *l, const struct io_tensor *t, uint8_t *scale, int64_t n, struct err *err)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, scale + 4 * i, sizeof bits);
        if (bits & 0x807fffff || !(bits >> 23) || bits >> 23 == 255) {
            err_set(err, INGLE_UNSUP, "'%s': tensor '%s' has a scale at %lld that is no power of two from 2^-126 to 2^127",
                    io_path(l->m->file), t->name, (long long)i);
            return false;
        }
        scale[i] = (uint8_t)(bits >> 23);
    }
    return true;
}

/* Rows [row0, row0 + n) of a tensor: converted rows in the worker's buffer, or NULL. */
static const uint8_t *read_rows(struct load *l, const struct source *p, int64_t row0, int64_t n,
                                int worker)
{
    struct err *err = &l->err[worker];
    uint8_t *buffer = l->buffer + (size_t)worker * l->buffer_bytes;
    const uint64_t at = (uint64_t)row0 * l->stored_bytes;
    if (io_read(l->m->file, p->t, at, buffer, (size_t)n * l->stored_bytes, err))
        return NULL;
    if (l->b->from == AS_STORED)
        return buffer;
    uint8_t *scale = buffer + l->scale_at, *out = buffer + l->row_at;
    const int64_t in = device_matrix_in(l->b->m);
    const bool fp8 = l->b->from == FROM_FP8;
    const int64_t width = (int64_t)p->scale->ne[0], s0 = fp8 ? row0 / FP8_TILE : row0;
    const int64_t s1 = fp8 ? num_div_up(row0 + n, FP8_TILE) : row0 + n;
    const size_t one = p->scale->type == QUANT_F32 ? 4 : 1;
    if (io_read(l->m->file, p->scale, (uint64_t)(s0 * width) * one, scale, (size_t)((s1 - s0) * width) * one, err))
        return NULL;
    if (one == 4 && !shrink_scales(l, p->scale, scale, (s1 - s0) * width, err))
        return NULL;
    for (int64_t r = 0; r < n; r++) {
        const uint8_t *s = scale + ((fp8 ? (row0 + r) / FP8_TILE : row0 + r) - s0) * width;
        (fp8 ? convert_fp8 : convert_fp4)(buffer + (uint64_t)r * l->stored_bytes, s,
                                          out + (uint64_t)r * l->row_bytes, in);
    }
    return out;
}

static void load_chunk(void *arg, int64_t chunk, int worker)
{
    struct load *l = arg;
    if (l->err[worker].status)
        return;
    const struct bound_matrix *b = l->b;
    const int64_t out = device_matrix_out(b->m), index = chunk / l->chunks;
    const int64_t row0 = chunk % l->chunks * l->rows_per_chunk;
    const int64_t n = num_min(l->rows_per_chunk, out - row0);
    const struct source *p = &b->part[b->n_parts > 1 ? index : 0];
    const uint8_t *rows = read_rows(l, p, (b->n_parts > 1 ? 0 : index * out) + row0, n, worker);
    if (!rows)
        return;
    const uint32_t type = device_matrix_type(b->m);
    const struct quant_info *q = quant_info(type);
    const int64_t bad = quant_find_bad(type, rows, (size_t)n * l->row_bytes / q->n_bytes);
    if (bad >= 0)
        fail_number(l, p->t, row0 + bad * q->n_bytes / (int64_t)l->row_bytes, &l->err[worker]);
    else
        device_matrix_load(b->m, index, row0, n, rows);
}

/* Sizes of a chunk and of its places in the buffer. */
static ingle_status load_sizes(struct load *l, const struct bound_matrix *b, struct err *err)
{
    const uint64_t in = (uint64_t)device_matrix_in(b->m);
    const struct io_tensor *t = b->part[0].t;
    if (!quant_bytes(device_matrix_type(b->m), in, 1, &l->row_bytes))
        return err_set(err, INGLE_FORMAT, "tensor '%s': rows are no whole blocks", t->name);
    l->b = b;
    l->stored_bytes = b->from == FROM_FP4 ? in / 2 : b->from == FROM_FP8 ? in : l->row_bytes;
    const int64_t fit = (int64_t)(CHUNK_BYTES / l->row_bytes) / KERN_PANEL * KERN_PANEL;
    l->rows_per_chunk = num_max(KERN_PANEL, fit);
    l->scale_at = (size_t)l->rows_per_chunk * l->stored_bytes;
    l->row_at = l->scale_at;
    if (b->from != AS_STORED)
        l->row_at += (size_t)l->rows_per_chunk * (size_t)b->part[0].scale->ne[0] * sizeof(float);
    const size_t need =
        l->row_at + (b->from == AS_STORED ? 0 : (size_t)l->rows_per_chunk * l->row_bytes);
    if (need <= l->buffer_bytes)
        return INGLE_OK;
    mem_free(l->buffer);
    l->buffer = mem_calloc((size_t)pool_size(device_pool(l->m->d)), need);
    l->buffer_bytes = l->buffer ? need : 0;
    return l->buffer ? INGLE_OK
                     : err_set(err, INGLE_NOMEM, "no %zu bytes for reading tensor '%s'", need, t->name);
}

static ingle_status load_matrix(struct load *l, const struct bound_matrix *b, struct err *err)
{
    const ingle_status s = load_sizes(l, b, err);
    if (s)
        return s;
    l->chunks = num_div_up(device_matrix_out(b->m), l->rows_per_chunk);
    pool_run(device_pool(l->m->d), l->chunks * device_matrix_stack(b->m), load_chunk, l);
    for (int i = 0; i < pool_size(device_pool(l->m->d)); i++)
        if (l->err[i].status) {
            if (err)
                *err = l->err[i];
            return l->err[i].status;
        }
    return INGLE_OK;
}

static ingle_status load_all(struct model *m, struct err *err)
{
    struct load l = {.m = m};
    l.err = mem_calloc((size_t)pool_size(device_pool(m->d)), sizeof *l.err);
    if (!l.err)
        return err_set(err, INGLE_NOMEM, "no memory to load");
    ingle_status s = INGLE_OK;
    uint64_t done = 0;
    for (size_t i = 0; !s && i < m->n_matrices; i++) {
        s = load_matrix(&l, &m->matrix[i], err);
        done += device_matrix_bytes(m->matrix[i].m);
        if (!s && report_progress(m->sink, "load", (double)done, (double)m->n_bytes))
            s = err_set(err, INGLE_CANCEL, "loading '%s' was cancelled", io_path(m->file));
    }
    mem_free(l.buffer);
    mem_free(l.err);
    return s;
}

/* ---- the image ---- */

static void place(struct model *m, const struct packed_want *w, const void *image)
{
    union {
        const void *in;
        void *out;
    } p = {.in = image}; /* a mapped one is only read */
    m->image = p.out;
    m->loaded.image_bytes = w->head.image_bytes;
    for (size_t i = 0; i < m->n_matrices; i++)
        device_matrix_place(m->matrix[i].m, m->image + w->matrix[i].at);
}

/* True: the weights lie in a file and are there. */
static bool map(struct model *m, const struct packed_want *w, const char *dir)
{
    struct packed_file *f = mem_zalloc(sizeof *f);
    const void *image;
    if (!f || model_packed_map(dir, w, m->sink, f, &image, NULL)) {
        mem_free(f);
        return false;
    }
    m->file_of_image = f;
    m->loaded.mapped = true;
    place(m, w, image);
    if (device_nodes(m->d)->n > 1)
        report(m->sink, INGLE_REPORT_NOTE, "numa", dir,
               "mapped weights lie on the nodes where they were first read, by any process; --no-pack-cache puts them "
               "where they are used");
    report(m->sink, INGLE_REPORT_DEBUG, "packed weights", dir, "%.2f GB are mapped", (double)w->head.image_bytes * 1e-9);
    return true;
}

static ingle_status reserve(struct model *m, const struct packed_want *w, struct err *err)
{
    void *at = mem_big_alloc((size_t)w->head.image_bytes);
    if (!at)
        return err_set(err, INGLE_NOMEM, "no %llu bytes for the weights of '%s'",
                       (unsigned long long)w->head.image_bytes, io_path(m->file));
    place(m, w, at);
    for (size_t i = 0; i < m->n_matrices; i++)
        device_matrix_settle(m->matrix[i].m);
    return INGLE_OK;
}

/* A file that cannot be written is no failure. */
static void write_file(struct model *m, const struct packed_want *w, const struct model_load_options *o)
{
    const struct packed_write how = {.o = o, .want = w, .model = m, .image = m->image, .sink = m->sink};
    const uint64_t start = clock_now();
    struct err err;
    char name[PACKED_NAME_BYTES];
    model_packed_name(name, w->head.key);
    if (!w->head.n_sources) {
        report(m->sink, INGLE_REPORT_WARN, "packed weights", o->pack_dir,
               "are not written: the bytes of '%s' lie in no file, or have changed", io_path(m->file));
    } else if (model_packed_write(&how, &err)) {
        report(m->sink, INGLE_REPORT_WARN, "packed weights", o->pack_dir, "are not written: %s", err.msg);
    } else {
        m->loaded.wrote = true;
        report(m->sink, INGLE_REPORT_NOTE, "packed weights", o->pack_dir,
               "%s: wrote %.2f GB in %.1f s; later starts map it; 'ingle cache' lists such files and deletes them",
               name, (double)w->head.file_bytes * 1e-9, (double)(clock_now() - start) * 1e-9);
    }
}

/* What is not locked is reported, with what would help. */
static void lock(struct model *m)
{
    const uint64_t n = m->loaded.image_bytes;
    struct rlimit limit;
    if (mlock(m->image, (size_t)n) == 0) {
        m->loaded.locked = true;
        report(m->sink, INGLE_REPORT_DEBUG, "lock", io_path(m->file), "%.2f GB of weights stay in memory",
               (double)n * 1e-9);
        return;
    }
    const int why = errno;
    (void)munlock(m->image, (size_t)n); /* what was locked before it failed */
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < n)
        report(m->sink, INGLE_REPORT_WARN, "lock", io_path(m->file),
               "weights of %llu KiB are not locked: the limit of locked memory (RLIMIT_MEMLOCK) is %llu KiB; raise it "
               "with 'ulimit -l unlimited', LimitMEMLOCK=infinity (systemd) or --ulimit memlock=-1 (docker)",
               (unsigned long long)(n / 1024), (unsigned long long)(limit.rlim_cur / 1024));
    else
        report(m->sink, INGLE_REPORT_WARN, "lock", io_path(m->file), "weights of %llu KiB are not locked: %s",
               (unsigned long long)(n / 1024), strerror(why));
}

static void count_huge(struct model *m)
{
    const uint64_t n = m->loaded.image_bytes, huge = mem_huge_bytes(m->image, (size_t)n);
    m->loaded.huge_bytes = huge;
    if (n >= LARGE && huge < n / 2)
        report(m->sink, INGLE_REPORT_NOTE, "huge pages", io_path(m->file),
               "%llu of %llu MiB of weights are on them; the others cost speed "
               "(/sys/kernel/mm/transparent_hugepage/enabled should say madvise or always)",
               (unsigned long long)(huge >> 20), (unsigned long long)(n >> 20));
}

ingle_status model_load_with(struct model *m, const struct model_load_options *o, struct err *err)
{
    static const struct model_load_options none = {0};
    const uint64_t start = clock_now();
    struct packed_want w;
    o = o ? o : &none;
    ingle_status s = model_packed_want_init(&w, m, o->identity, err);
    if (s)
        return s;
    if (!o->pack_dir || !w.head.n_sources || !map(m, &w, o->pack_dir)) {
        s = reserve(m, &w, err);
        if (!s)
            s = load_all(m, err);
        if (!s && o->pack_dir && o->pack_write)
            write_file(m, &w, o);
    }
    if (!s && o->lock)
        lock(m);
    if (!s && !m->loaded.mapped)
        count_huge(m);
    m->loaded.seconds = (double)(clock_now() - start) * 1e-9;
    model_packed_want_release(&w);
    return s;
}

bool model_maps(const struct model *m, const struct model_load_options *o)
{
    struct packed_want w;
    struct packed_file f;
    const void *image;
    if (!o->pack_dir || model_packed_want_init(&w, m, o->identity, NULL))
        return false;
    const bool there = w.head.n_sources && !model_packed_map(o->pack_dir, &w, m->sink, &f, &image, NULL);
    if (there) {
        file_unmap(image, f.head.image_bytes);
        model_packed_close(&f);
    }
    model_packed_want_release(&w);
    return there;
}

ingle_status model_load(struct model *m, struct err *err)
{
    return model_load_with(m, NULL, err);
}

void model_loaded(const struct model *m, struct model_loaded *out)
{
    *out = m->loaded;
    if (m->loaded.mapped) /* pages are mapped when they are read */
        out->huge_bytes = mem_huge_bytes(m->image, (size_t)m->loaded.image_bytes);
}

void model_unload(struct model *m)
{
    if (m->loaded.mapped)
        munmap(m->image, (size_t)m->loaded.image_bytes);
    else
        mem_big_free(m->image, (size_t)m->loaded.image_bytes);
    m->image = NULL;
    if (m->file_of_image)
        model_packed_close(m->file_of_image);
    mem_free(m->file_of_image);
    m->file_of_image = NULL;
}
