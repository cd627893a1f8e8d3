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

enum { CHUNK_BYTES = 512 << 10, LARGE = 64 << 20 };

struct load {
    struct model *m;
    uint8_t *buffer; /* [workers][buffer_bytes]: stored rows, work memory, then converted rows */
    size_t buffer_bytes, work_at, row_at;
    bool *rounded;   /* [workers]: a scale of the matrix was */
    const struct bound_matrix *b;
    int64_t rows_per_chunk, chunks; /* chunks of one matrix of the stack */
    uint64_t stored_bytes, row_bytes; /* of one row: in the file, as the device wants it */
    struct err *err; /* [workers] */
    struct seen *seen; /* [chunks of the whole stack] */
    size_t cap_seen;
    bool only_sum;   /* rows are read and hashed, not kept */
};

static void fail_number(struct load *l, const struct io_tensor *t, int64_t row, struct err *err)
{
    err_set(err, INGLE_FORMAT, "'%s': tensor '%s' has a scale or weight that is no number in row %lld",
            io_path(l->m->file), t->name, (long long)row);
}

/* Rows [row0, row0 + n) of matrix `index` of a source: converted rows in the worker's buffer, or NULL. */
static const uint8_t *read_rows(struct load *l, const struct source *p, int64_t index, int64_t row0, int64_t n,
                                int worker, struct seen *seen)
{
    struct err *err = &l->err[worker];
    uint8_t *buffer = l->buffer + (size_t)worker * l->buffer_bytes;
    const int64_t out = device_matrix_out(l->b->m);
    const uint64_t at = (uint64_t)(index * out + row0) * l->stored_bytes;
    if (io_read(l->m->file, p->t, at, buffer, (size_t)n * l->stored_bytes, err))
        return NULL;
    model_see(seen, buffer, n, l->stored_bytes);
    if (l->only_sum)
        return NULL;
    if (l->b->layout.from == AS_STORED)
        return buffer;
    struct convert c = {l->m->file, p, &l->b->layout, out, index, row0, n, l->row_bytes, false};
    if (model_convert(&c, buffer, buffer + l->work_at, buffer + l->row_at, err))
        return NULL;
    l->rounded[worker] = l->rounded[worker] || c.rounded;
    return buffer + l->row_at;
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
    const uint8_t *rows = read_rows(l, p, b->n_parts > 1 ? 0 : index, row0, n, worker, &l->seen[chunk]);
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
    const bool stored = b->layout.from == AS_STORED;
    l->stored_bytes = stored ? l->row_bytes : (uint64_t)b->layout.row_bytes;
    const int64_t fit = (int64_t)(CHUNK_BYTES / l->row_bytes) / KERN_PANEL * KERN_PANEL;
    l->rows_per_chunk = num_max(KERN_PANEL, fit);
    size_t work = 0;
    for (int64_t i = 0; i < b->n_parts; i++)
        work = (size_t)num_max((int64_t)work, (int64_t)model_convert_bytes(&b->part[i], &b->layout, l->rows_per_chunk));
    l->work_at = ((size_t)l->rows_per_chunk * l->stored_bytes + 63) / 64 * 64;
    l->row_at = l->work_at + (work + 63) / 64 * 64;
    const size_t need = l->row_at + (stored ? 0 : ((size_t)l->rows_per_chunk * l->row_bytes + 63) / 64 * 64);
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
    const int64_t n_chunks = l->chunks * device_matrix_stack(b->m);
    if (!mem_grow(&l->seen, &l->cap_seen, (size_t)n_chunks, sizeof *l->seen))
        return err_set(err, INGLE_NOMEM, "no memory for %lld pieces of tensor '%s'", (long long)n_chunks, b->part[0].t->name);
    pool_run(device_pool(l->m->d), n_chunks, load_chunk, l);
    for (int i = 0; i < pool_size(device_pool(l->m->d)); i++)
        if (l->err[i].status) {
            if (err)
                *err = l->err[i];
            return l->err[i].status;
        }
    return model_sum_matrix(l->m, b, l->seen, n_chunks, l->stored_bytes, err);
}

static ingle_status load_all(struct model *m, bool only_sum, struct err *err)
{
    struct load l = {.m = m, .only_sum = only_sum};
    const int n_workers = pool_size(device_pool(m->d));
    l.err = mem_calloc((size_t)n_workers, sizeof *l.err);
    l.rounded = mem_calloc((size_t)n_workers, sizeof *l.rounded);
    ingle_status s = l.err && l.rounded ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory to load");
    uint64_t done = 0;
    size_t n_rounded = 0;
    const char *rounded = NULL;
    for (size_t i = 0; !s && i < m->n_matrices; i++) {
        s = load_matrix(&l, &m->matrix[i], err);
        done += device_matrix_bytes(m->matrix[i].m);
        bool any = false;
        for (int w = 0; w < n_workers; w++)
            any = any || l.rounded[w];
        if (any)
            rounded = n_rounded++ ? rounded : m->matrix[i].part[0].scale->name;
        memset(l.rounded, 0, (size_t)n_workers * sizeof *l.rounded);
        if (!s && report_progress(m->sink, only_sum ? "read" : "load", (double)done, (double)m->n_bytes))
            s = err_set(err, INGLE_CANCEL, "loading '%s' was cancelled", io_path(m->file));
    }
    if (!s && n_rounded)
        report(m->sink, INGLE_REPORT_NOTE, "tensor", rounded,
               "%zu tensors have scales below 2^-27, which are rounded to multiples of 2^-34", n_rounded);
    if (!s)
        s = model_sum_end(m, err);
    mem_free(l.buffer);
    mem_free(l.err);
    mem_free(l.rounded);
    mem_free(l.seen);
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
    m->sum = f->head.model_sum;
    m->summed = true;
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
    if (m->nothing)
        return err_set(err, INGLE_FORMAT, "'%s': tensor '%s' is zero: a part of the download is missing, fetch the file again",
                       io_path(m->file), m->nothing);
    ingle_status s = model_packed_want_init(&w, m, o->identity, err);
    if (s)
        return s;
    if (!o->pack_dir || !w.head.n_sources || !map(m, &w, o->pack_dir)) {
        s = reserve(m, &w, err);
        if (!s)
            s = load_all(m, false, err);
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

ingle_status model_sum(struct model *m, const struct model_load_options *o, uint64_t *out, struct err *err)
{
    struct packed_want w;
    struct packed_file f;
    const void *image;
    ingle_status s = INGLE_OK;
    if (!m->summed) {
        s = model_packed_want_init(&w, m, o->identity, err);
        if (s)
            return s;
        if (o->pack_dir && w.head.n_sources && !model_packed_map(o->pack_dir, &w, m->sink, &f, &image, NULL)) {
            m->sum = f.head.model_sum;
            m->summed = true;
            file_unmap(image, f.head.image_bytes);
            model_packed_close(&f);
        } else {
            s = load_all(m, true, err);
        }
        model_packed_want_release(&w);
    }
    if (!s)
        *out = m->sum;
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
