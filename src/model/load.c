/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load - stored rows into device matrices, in parallel chunks that a worker's buffer holds,
 * so that no matrix is ever in memory twice.  All matrices are in one piece of memory, the
 * image: new memory, or a file of packed weights.
 */
#define _GNU_SOURCE
#include "base/bug.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/size.h"
#include "device/card.h"
#include "model/load.h"
#include "model/packed.h"
#include "model/packed_write.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { CHUNK_BYTES = 512 << 10, LARGE = 64 << 20 };
/* What the disk reads before it is wanted, in pieces large enough for it. */
enum { AHEAD_BYTES = 64 << 20, AHEAD_PIECE = 4 << 20 };

/* How rows of a matrix go through a buffer: stored rows, work memory, then converted rows. */
struct form {
    int64_t rows_per_chunk, chunks;   /* chunks of one matrix of the stack */
    uint64_t stored_bytes, row_bytes; /* of one row: in the file, as the device wants it */
    size_t work_at, row_at, bytes;    /* in the buffer, and all of it */
};

/* A matrix of a job. */
struct load_part {
    struct bound_matrix *b;
    struct form form;
    uint64_t ahead; /* bytes that the file is requested before they are wanted */
};

/* Matrices that are loaded together: one, or those of a layer's experts, expert by expert, so that
 * memory is written in its order. */
struct load_job {
    struct load_part part[MODEL_PARTS];
    int n_parts;
    int64_t per, n_chunks; /* chunks of one matrix of all stacks, and all */
    uint64_t bytes;        /* packed */
    /* memory that nobody has touched yet; the chunks fill each piece of it in their order */
    struct { uint8_t *at; uint64_t n_bytes; } fresh[CPU_NODES_MAX];
    int n_fresh;
};

struct load {
    struct model *m;
    uint8_t *buffer; /* [workers][buffer_bytes] */
    size_t buffer_bytes;
    bool *rounded;   /* [workers][MODEL_PARTS]: a scale of the matrix was */
    struct load_job job;
    struct err *err; /* [workers] */
    atomic_bool stop; /* a worker has failed, or the job was cancelled */
    bool cancelled;  /* of the calling thread */
    int64_t reported; /* the same: chunks that progress has named */
    bool only_sum;   /* rows are read and hashed, not kept */
    bool quiet;      /* no progress, and nobody cancels it */
    const char *name; /* of what is done, for progress */
    /* bytes of matrices, of jobs before; what is written piece by piece: of pieces before */
    uint64_t done;
    uint64_t all;    /* of as many */
    bool by_pieces;
    size_t n_rounded;
    const char *first_rounded;
};

static void fail_number(const struct model *m, const struct io_tensor *t, int64_t row,
                        struct err *err)
{
    err_set(err, INGLE_FORMAT,
            "'%s': tensor '%s' has a scale or weight that is no number in row %lld",
            io_path(m->file), t->name, (long long)row);
}

static ingle_status form_of(const struct bound_matrix *b, struct form *f, struct err *err)
{
    const uint64_t in = (uint64_t)device_matrix_in(b->m);
    if (!quant_bytes(device_matrix_type(b->m), in, 1, &f->row_bytes))
        return err_set(err, INGLE_FORMAT, "tensor '%s': rows are no whole blocks",
                       b->part[0].t->name);
    const bool stored = b->layout.from == AS_STORED;
    f->stored_bytes = stored ? f->row_bytes : (uint64_t)b->layout.row_bytes;
    const int64_t fit = (int64_t)(CHUNK_BYTES / f->row_bytes) / KERN_PANEL * KERN_PANEL;
    f->rows_per_chunk = num_max(KERN_PANEL, fit);
    f->chunks = num_div_up(device_matrix_out(b->m), f->rows_per_chunk);
    size_t work = 0;
    for (int64_t i = 0; i < b->n_parts; i++)
        work = (size_t)num_max((int64_t)work, (int64_t)model_convert_bytes(&b->part[i], &b->layout,
                                                                           f->rows_per_chunk));
    f->work_at = ((size_t)f->rows_per_chunk * f->stored_bytes + 63) / 64 * 64;
    f->row_at = f->work_at + (work + 63) / 64 * 64;
    f->bytes = f->row_at + (stored ? 0 : ((size_t)f->rows_per_chunk * f->row_bytes + 63) / 64 * 64);
    return INGLE_OK;
}

/* Rows of one matrix of a stack. */
struct range { int64_t index, row0, n; };

/* Rows as the device wants them, in buffer; NULL with an error, and where rows are only seen.  seen
 * may be NULL. */
static const uint8_t *read_rows(const struct model *m, const struct bound_matrix *b,
                                const struct form *f, struct range r, uint8_t *buffer,
                                struct seen *seen, bool only_sum, bool *rounded, struct err *err)
{
    const int64_t out = device_matrix_out(b->m), of_part = b->n_parts > 1 ? 0 : r.index;
    const struct source *p = &b->part[b->n_parts > 1 ? r.index : 0];
    const uint64_t at = (uint64_t)(of_part * out + r.row0) * f->stored_bytes;
    if (io_read(m->file, p->t, at, buffer, (size_t)r.n * f->stored_bytes, err))
        return NULL;
    if (seen)
        model_see(seen, buffer, r.n, f->stored_bytes);
    if (only_sum)
        return NULL;
    const uint8_t *rows = buffer;
    if (b->layout.from != AS_STORED) {
        struct convert c = {m->file, p, &b->layout, out, of_part, r.row0, r.n, f->row_bytes, false};
        if (model_convert(&c, buffer, buffer + f->work_at, buffer + f->row_at, err))
            return NULL;
        *rounded = *rounded || c.rounded;
        rows = buffer + f->row_at;
    }
    const uint32_t type = device_matrix_type(b->m);
    const struct quant_info *q = quant_info(type);
    const int64_t bad = quant_find_bad(type, rows, (size_t)r.n * f->row_bytes / q->n_bytes);
    if (bad < 0)
        return rows;
    fail_number(m, p->t, r.row0 + bad * q->n_bytes / (int64_t)f->row_bytes, err);
    return NULL;
}

/* Bytes of the part of a matrix in which row r.row0 of matrix r.index is, from it on. */
static void read_ahead(const struct load *l, const struct load_part *p, struct range r,
                       uint64_t from, uint64_t n)
{
    const struct bound_matrix *b = p->b;
    const int64_t out = device_matrix_out(b->m), of_part = b->n_parts > 1 ? 0 : r.index;
    const uint64_t at = (uint64_t)(of_part * out + r.row0) * p->form.stored_bytes;
    io_will_read(l->m->file, b->part[b->n_parts > 1 ? r.index : 0].t, at + from, n);
}

/* Whoever takes the first chunk of a piece asks for the piece that is p->ahead after it. */
static void keep_ahead(const struct load *l, const struct load_part *p, struct range r)
{
    const struct form *f = &p->form;
    const int64_t rows = num_max(1, (int64_t)(AHEAD_PIECE / f->stored_bytes) / f->rows_per_chunk) *
                         f->rows_per_chunk;
    const int64_t row = (p->b->n_parts > 1 ? 0 : r.index * device_matrix_out(p->b->m)) + r.row0;
    if (row % rows < f->rows_per_chunk)
        read_ahead(l, p, r, p->ahead, (uint64_t)(rows + f->rows_per_chunk) * f->stored_bytes);
}

/* ---- new memory ---- */

/* How far the pages of fresh memory are ahead of the chunks that write to them: more than all
 * workers have under way. */
static uint64_t fill_lead(const struct load *l)
{
    const uint64_t n = (uint64_t)pool_size(device_pool(l->m->d)) * CHUNK_BYTES;
    return (n + MEM_BIG_PAGE - 1) / MEM_BIG_PAGE * MEM_BIG_PAGE + 2 * MEM_BIG_PAGE;
}

/* The first pages of a job's memory, by all workers. */
static void fill_first(const struct load *l)
{
    const struct load_job *j = &l->job;
    const uint64_t n = fill_lead(l) + MEM_BIG_PAGE;
    for (int i = 0; i < j->n_fresh; i++)
        pool_fill(device_pool(l->m->d), j->fresh[i].at,
                  (size_t)(n < j->fresh[i].n_bytes ? n : j->fresh[i].n_bytes));
}

/* Huge pages that begin as far after this chunk's memory as fill_lead() says.  A page is filled
 * shortly before it is written to: the system clears it, and it is still in the cache.  By one
 * worker each: two that meet at a new page would both clear one. */
static void fill_ahead(const struct load *l, uint8_t *fresh, uint64_t n_bytes, int64_t chunk)
{
    const struct load_job *j = &l->job;
    const uint64_t lead = fill_lead(l), each = n_bytes / (uint64_t)j->n_chunks,
                   before = (uintptr_t)fresh % MEM_BIG_PAGE;
    const uint64_t from = before + each * (uint64_t)chunk + lead, all = before + n_bytes;
    const uint64_t to = chunk + 1 < j->n_chunks && from + each < all ? from + each : all;
    for (uint64_t at = (from + MEM_BIG_PAGE - 1) / MEM_BIG_PAGE * MEM_BIG_PAGE; at < to;
         at += MEM_BIG_PAGE)
        mem_fill(fresh + (at - before),
                 (size_t)(all - at < MEM_BIG_PAGE ? all - at : MEM_BIG_PAGE));
}

/* ---- a job ---- */

/* more: bytes of this job.  The thread that loads. */
static void show_progress(struct load *l, double more)
{
    if (l->quiet)
        return;
    if (report_progress(l->m->sink, l->name, (double)l->done + (l->by_pieces ? 0 : more),
                        (double)l->all))
        l->cancelled = true;
    if (l->cancelled)
        atomic_store_explicit(&l->stop, true, memory_order_relaxed);
}

static void report_chunk(struct load *l, int64_t chunk)
{
    enum { EVERY = 32 };
    const struct load_job *j = &l->job;
    if (chunk < l->reported + EVERY)
        return;
    l->reported = chunk;
    show_progress(l, (double)j->bytes * (double)chunk / (double)j->n_chunks);
}

static void load_chunk(void *arg, int64_t chunk, int worker)
{
    struct load *l = arg;
    const struct load_job *j = &l->job;
    if (worker == 0) /* the thread that loads */
        report_chunk(l, chunk);
    if (atomic_load_explicit(&l->stop, memory_order_relaxed))
        return;
    int k = 0;
    int64_t at = chunk % j->per;
    for (; at >= j->part[k].form.chunks; k++)
        at -= j->part[k].form.chunks;
    const struct load_part *p = &j->part[k];
    struct bound_matrix *b = p->b;
    struct range r = {chunk / j->per, at * p->form.rows_per_chunk, 0};
    r.n = num_min(p->form.rows_per_chunk, device_matrix_out(b->m) - r.row0);
    keep_ahead(l, p, r);
    for (int i = 0; i < j->n_fresh; i++)
        fill_ahead(l, j->fresh[i].at, j->fresh[i].n_bytes, chunk);
    const uint8_t *rows =
        read_rows(l->m, b, &p->form, r, l->buffer + (size_t)worker * l->buffer_bytes,
                  &b->seen[r.index * p->form.chunks + at], l->only_sum,
                  &l->rounded[worker * MODEL_PARTS + k], &l->err[worker]);
    if (rows)
        device_matrix_load(b->m, r.index, r.row0, r.n, rows);
    else if (l->err[worker].status)
        atomic_store_explicit(&l->stop, true, memory_order_relaxed);
}

static ingle_status grow_buffer(struct load *l, const struct load_part *p, struct err *err)
{
    if (p->form.bytes <= l->buffer_bytes)
        return INGLE_OK;
    mem_free(l->buffer);
    l->buffer = mem_calloc((size_t)pool_size(device_pool(l->m->d)), p->form.bytes);
    l->buffer_bytes = l->buffer ? p->form.bytes : 0;
    return l->buffer ? INGLE_OK
                     : err_set(err, INGLE_NOMEM, "no %zu bytes for reading tensor '%s'",
                               p->form.bytes, p->b->part[0].t->name);
}

static void count_rounded(struct load *l)
{
    const int n = pool_size(device_pool(l->m->d));
    for (int k = 0; k < l->job.n_parts; k++) {
        bool any = false;
        for (int w = 0; w < n; w++)
            any = any || l->rounded[w * MODEL_PARTS + k];
        if (any)
            l->first_rounded =
                l->n_rounded++ ? l->first_rounded : l->job.part[k].b->part[0].scale->name;
    }
    memset(l->rounded, 0, (size_t)n * MODEL_PARTS * sizeof *l->rounded);
}

static struct bound_matrix *binding_of(const struct model *m, const struct device_matrix *d)
{
    for (size_t i = 0; i < m->n_matrices; i++)
        if (m->matrix[i].m == d)
            return &m->matrix[i];
    BUG("experts are of bound matrices");
}

/* Matrix i, or all of its experts'. */
static ingle_status job_of(const struct model *m, size_t i, struct load_job *j, struct err *err)
{
    struct bound_matrix *b = &m->matrix[i];
    const struct model_experts *e = b->group ? m->group[b->group - 1] : NULL;
    *j = (struct load_job){.n_parts = e ? e->n_parts : 1};
    for (int k = 0; k < j->n_parts; k++) {
        struct load_part *p = &j->part[k];
        p->b = e ? binding_of(m, e->part[k]) : b;
        p->ahead = AHEAD_BYTES / (uint64_t)j->n_parts;
        const ingle_status s = form_of(p->b, &p->form, err);
        if (s)
            return s;
        j->per += p->form.chunks;
        j->bytes += device_matrix_bytes(p->b->m);
    }
    j->n_chunks = j->per * device_matrix_stack(b->m);
    return INGLE_OK;
}

/* Whether another matrix's job has it. */
static bool is_of_job_before(const struct model *m, size_t i)
{
    for (size_t k = 0; m->matrix[i].group && k < i; k++)
        if (m->matrix[k].group == m->matrix[i].group)
            return true;
    return false;
}

/* l->job, into the places of its matrices. */
static ingle_status run_job(struct load *l, struct err *err)
{
    struct load_job *j = &l->job;
    for (int k = 0; k < j->n_parts; k++) {
        struct bound_matrix *b = j->part[k].b;
        const int64_t n = j->part[k].form.chunks * device_matrix_stack(b->m);
        const ingle_status s = grow_buffer(l, &j->part[k], err);
        if (s)
            return s;
        mem_free(b->seen);
        b->seen = mem_calloc((size_t)n, sizeof *b->seen);
        b->n_seen = n;
        b->seen_row_bytes = j->part[k].form.stored_bytes;
        if (!b->seen)
            return err_set(err, INGLE_NOMEM, "no memory for %lld pieces of tensor '%s'",
                           (long long)n, b->part[0].t->name);
    }
    l->reported = -1;
    fill_first(l);
    pool_run(device_pool(l->m->d), j->n_chunks, load_chunk, l);
    for (int i = 0; i < pool_size(device_pool(l->m->d)); i++)
        if (l->err[i].status) {
            if (err)
                *err = l->err[i];
            return l->err[i].status;
        }
    count_rounded(l);
    show_progress(l, (double)j->bytes);
    l->done += l->by_pieces ? 0 : j->bytes;
    if (l->cancelled)
        return err_set(err, INGLE_CANCEL, "loading '%s' was cancelled", io_path(l->m->file));
    return INGLE_OK;
}

static ingle_status load_open(struct load *l, struct model *m, bool only_sum, struct err *err)
{
    const size_t n_workers = (size_t)pool_size(device_pool(m->d));
    *l = (struct load){.m = m, .only_sum = only_sum, .name = only_sum ? "read" : "load"};
    l->err = mem_calloc(n_workers, sizeof *l->err);
    l->rounded = mem_calloc(n_workers * MODEL_PARTS, sizeof *l->rounded);
    return l->err && l->rounded ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory to load");
}

static void load_release(struct load *l)
{
    mem_free(l->buffer);
    mem_free(l->err);
    mem_free(l->rounded);
}

/* After the last matrix that is loaded; s: what loading came to. */
static ingle_status load_close(struct load *l, ingle_status s, struct err *err)
{
    if (!s && l->n_rounded)
        report(l->m->sink, INGLE_REPORT_NOTE, "tensor", l->first_rounded,
               "%zu tensors have scales below 2^-27, which are rounded to multiples of 2^-34",
               l->n_rounded);
    if (!s)
        s = model_sum_all(l->m, err);
    load_release(l);
    return s;
}

/* The beginning of the matrices after matrix i, while that is loaded. */
static void read_ahead_next(const struct load *l, size_t i, bool dense)
{
    const struct model *m = l->m;
    struct load_job j;
    for (i++; i < m->n_matrices && ((dense && m->matrix[i].group) || is_of_job_before(m, i)); i++)
        ;
    if (i < m->n_matrices && !job_of(m, i, &j, NULL))
        for (int k = 0; k < j.n_parts; k++)
            read_ahead(l, &j.part[k], (struct range){0}, 0, j.part[k].ahead);
}

/* The part of the image that is matrix i's, or its group's; *n 0: none. */
static uint8_t *part_of(const struct model *m, const struct packed_want *w, size_t i, uint64_t *n)
{
    const struct packed_group *g = m->matrix[i].group ? &w->group[m->matrix[i].group - 1] : NULL;
    const uint64_t at = g ? g->at : w->matrix[i].at;
    *n = g ? g->bytes * (uint64_t)g->n : w->matrix[i].bytes;
    if (at >= m->image_bytes)
        *n = 0;
    else if (*n > m->image_bytes - at)
        *n = m->image_bytes - at;
    return *n ? m->image + at : NULL;
}

/* ---- weights of a card ---- */

/* Files of models have no checksums: bytes that were written while the model is in use cannot be
 * distinguished from its own.  Links and permissions may change. */
static ingle_status check_stamp(const struct model *m, uint32_t file, struct err *err)
{
    if (!m->stamp || !m->stamp[file].inode || io_is_as(m->file, file, &m->stamp[file]))
        return INGLE_OK;
    return err_set(err, INGLE_IO, "the model's file was changed while in use");
}

/* Whether some are to be there. */
static bool wants_card(const struct model *m)
{
    for (size_t i = 0; i < m->n_matrices; i++)
        if (device_matrix_wanted(m->matrix[i].m) == DEVICE_CARD)
            return true;
    return false;
}

static uint64_t largest_of_card(const struct model *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->n_matrices; i++)
        if (device_matrix_wanted(m->matrix[i].m) == DEVICE_CARD &&
            device_matrix_bytes(m->matrix[i].m) > n)
            n = device_matrix_bytes(m->matrix[i].m);
    return n;
}

/* Room for what the card had: a model that was planned for the memory of both may be too large. */
static ingle_status check_room(const struct model *m, uint64_t n, struct err *err)
{
    struct cpu_machine machine;
    cpu_machine_read(&machine);
    return machine.memory_unread || n <= machine.memory_free_bytes
               ? INGLE_OK
               : err_set(err, INGLE_NOMEM,
                         "'%s': weights of %s were on the card, and only %s of memory are free",
                         io_path(m->file), SIZE_OF(n), SIZE_OF(machine.memory_free_bytes));
}

/* What a lost card had, or the processor needs all the same, comes again from the model's file. */
static ingle_status bring_home(void *arg, const struct device_matrix *d, struct err *err)
{
    struct model *m = arg;
    struct load l;
    const struct bound_matrix *b = binding_of(m, d);
    ingle_status s = INGLE_OK;
    for (int64_t k = 0; !s && k < b->n_parts; k++)
        s = check_stamp(m, b->part[k].t->file, err);
    if (s)
        return s;
    s = load_open(&l, m, false, err);
    l.quiet = true;
    if (!s)
        s = job_of(m, (size_t)(b - m->matrix), &l.job, err);
    if (!s)
        s = check_room(m, l.job.bytes, err);
    if (!s && !m->came_home)
        report(m->sink, INGLE_REPORT_NOTE, "gpu", io_path(m->file),
               "weights that lay on the card are read again for the processor");
    m->came_home = true;
    if (!s)
        s = run_job(&l, err);
    for (int k = 0; k < l.job.n_parts; k++) {
        mem_free(l.job.part[k].b->seen);
        l.job.part[k].b->seen = NULL;
        if (!s)
            device_matrix_back(l.job.part[k].b->m);
    }
    load_release(&l);
    return s;
}

/* Matrix i, or its group, goes to the card if it is to be there: all of a group or none.  The
 * host's pages go back to the system. */
static void send(struct model *m, const struct packed_want *w, size_t i)
{
    const struct bound_matrix *b = &m->matrix[i];
    const struct model_experts *e = b->group ? m->group[b->group - 1] : NULL;
    struct device_matrix *const *part = e ? e->part : &b->m;
    const int n_parts = e ? e->n_parts : 1;
    bool all = true;
    uint64_t n;
    if (device_matrix_wanted(part[0]) != DEVICE_CARD)
        return;
    for (int k = 0; k < n_parts; k++) {
        device_matrix_upload(part[k]);
        all = all && device_matrix_side(part[k]) == DEVICE_CARD;
    }
    for (int k = 0; k < n_parts && !all; k++)
        device_matrix_stay(part[k]);
    uint8_t *at = part_of(m, w, i, &n);
    if (!all || !at)
        return;
    mem_drop(at, (size_t)n);
    m->sent_bytes += n;
    for (int k = 0; k < n_parts && !m->loaded.mapped; k++)
        device_matrix_away(part[k], bring_home, m);
}

/* Of an image that is mapped; what comes next is requested before. */
static ingle_status send_all(struct model *m, const struct packed_want *w, struct err *err)
{
    uint64_t done = 0, n;
    device_upload_begin(m->d, largest_of_card(m));
    for (size_t i = 0; i < m->n_matrices; i++) {
        if (is_of_job_before(m, i))
            continue;
        uint8_t *next = i + 1 < m->n_matrices ? part_of(m, w, i + 1, &n) : NULL;
        if (next && device_matrix_wanted(m->matrix[i + 1].m) == DEVICE_CARD)
            (void)madvise(next, (size_t)n, MADV_WILLNEED);
        send(m, w, i);
        (void)part_of(m, w, i, &n);
        done += n;
        if (report_progress(m->sink, "upload", (double)done, (double)m->image_bytes)) {
            device_upload_end(m->d);
            return err_set(err, INGLE_CANCEL, "loading '%s' was cancelled", io_path(m->file));
        }
    }
    device_upload_end(m->d);
    return INGLE_OK;
}

/* Nobody has touched the memory of matrix i yet, or of its group. */
static void set_fresh(const struct model *m, const struct packed_want *w, size_t i,
                      struct load_job *j)
{
    const struct bound_matrix *b = &m->matrix[i];
    uint64_t n;
    uint8_t *at = part_of(m, w, i, &n);
    if (device_matrix_is_divided(b->m)) {
        const struct device_matrix *first = b->group ? m->group[b->group - 1]->part[0] : b->m;
        for (int node = 0; node < pool_nodes(device_pool(m->d)); node++) {
            size_t n_bytes;
            device_matrix_region(first, node, &j->fresh[j->n_fresh].at, &n_bytes);
            j->fresh[j->n_fresh++].n_bytes = n_bytes;
        }
    } else if (at) {
        j->fresh[0].at = at;
        j->fresh[0].n_bytes = n;
        j->n_fresh = 1;
    }
}

/* dense: without experts.  w: of new memory; or NULL. */
static ingle_status load_all(struct model *m, const struct packed_want *w, bool only_sum,
                             bool dense, struct err *err)
{
    struct load l;
    ingle_status s = load_open(&l, m, only_sum, err);
    for (size_t i = 0; i < m->n_matrices; i++)
        l.all += dense && m->matrix[i].group ? 0 : device_matrix_bytes(m->matrix[i].m);
    show_progress(&l, 0); /* rates count from here */
    if (w)
        device_upload_begin(m->d, largest_of_card(m));
    for (size_t i = 0; !s && i < m->n_matrices; i++) {
        if ((dense && m->matrix[i].group) || is_of_job_before(m, i))
            continue;
        read_ahead_next(&l, i, dense);
        s = job_of(m, i, &l.job, err);
        l.only_sum = only_sum || m->matrix[i].away;
        if (!s && w && !l.only_sum)
            set_fresh(m, w, i, &l.job);
        if (!s)
            s = run_job(&l, err);
        if (!s && w && !l.only_sum)
            send(m, w, i);
    }
    device_upload_end(m->d);
    return load_close(&l, s, err);
}

/* ---- the image ---- */

/* Matrices at their places of an image of which the first n bytes are there. */
static void place(struct model *m, const struct packed_want *w, const void *image, uint64_t n)
{
    union {
        const void *in;
        void *out;
    } p = {.in = image}; /* a mapped one is only read */
    m->image = p.out;
    m->image_bytes = n;
    m->loaded.image_bytes = n;
    for (size_t i = 0; i < m->n_matrices; i++)
        if (w->matrix[i].at < n)
            device_matrix_place(m->matrix[i].m, m->image + w->matrix[i].at,
                                (size_t)w->matrix[i].step);
}

/* Bytes of the image that are to be in memory. */
static uint64_t wanted_bytes(const struct packed_want *w, const struct model_load_options *o)
{
    return o->no_experts ? w->head.dense_bytes : w->head.image_bytes;
}

/* True: the weights are in a file and are there. */
static bool map(struct model *m, const struct packed_want *w, const struct model_load_options *o)
{
    const uint64_t n = wanted_bytes(w, o);
    struct packed_file *f = mem_zalloc(sizeof *f);
    const void *image;
    if (!f || model_packed_map(o->pack_dir, w, m->sink, n, f, &image, NULL)) {
        mem_free(f);
        return false;
    }
    m->file_of_image = f;
    m->loaded.mapped = true;
    m->sum = f->head.model_sum;
    m->summed = true;
    place(m, w, image, n);
    if (device_nodes(m->d)->n > 1)
        report(m->sink, INGLE_REPORT_NOTE, "numa", o->pack_dir,
               "mapped weights lie on the nodes where they were first read, by any process; "
               "--pack-cache off puts them "
               "where they are used");
    report(m->sink, INGLE_REPORT_DEBUG, "packed weights", o->pack_dir, "%s are mapped", SIZE_OF(n));
    return true;
}

/* Each node gets its rows of all experts of a layer that are in the image. */
static void divide_experts(struct model *m, const struct packed_want *w)
{
    size_t n_whole = 0;
    for (size_t i = 0; i < m->n_groups; i++) {
        struct model_experts *e = m->group[i];
        const struct packed_group *g = &w->group[i];
        const uint64_t n = (uint64_t)g->n * g->bytes;
        if (g->at >= m->image_bytes || n > m->image_bytes - g->at)
            continue;
        e->divided =
            device_matrix_divide(e->part, e->n_parts, m->image + g->at, (size_t)n);
        n_whole += !e->divided;
    }
    if (n_whole && pool_nodes(device_pool(m->d)) > 1)
        report(m->sink, INGLE_REPORT_NOTE, "numa", io_path(m->file),
               "experts of %zu layers lie on one node each: they have too few rows for all nodes, "
               "or are a card's",
               n_whole);
}

/* Whether matrix i may be of a run.  Larger ones lose little at borders of pages, and in a run they
 * would be in memory twice while a file is written. */
static bool may_run(const struct model *m, const struct packed_want *w, size_t i)
{
    enum { LARGEST = 128 << 20 };
    const struct bound_matrix *b = &m->matrix[i];
    return !b->group && !b->away && device_matrix_wanted(b->m) != DEVICE_CARD &&
           w->matrix[i].at < m->image_bytes && w->matrix[i].bytes <= LARGEST;
}

/* Each node gets its rows of the other matrices, so far as they follow one another. */
static ingle_status divide_runs(struct model *m, const struct packed_want *w, struct err *err)
{
    struct device_matrix **run = NULL;
    if (pool_nodes(device_pool(m->d)) == 1 || !m->n_matrices)
        return INGLE_OK;
    if (!(run = mem_calloc(m->n_matrices, sizeof *run)))
        return err_set(err, INGLE_NOMEM, "no memory for a list of %zu matrices", m->n_matrices);
    uint64_t at = 0, end = 0;
    size_t n = 0;
    for (size_t i = 0; i <= m->n_matrices; i++) {
        if (i < m->n_matrices && m->matrix[i].group)
            continue;
        if (i < m->n_matrices && may_run(m, w, i)) {
            at = n ? at : w->matrix[i].at;
            end = w->matrix[i].at + w->matrix[i].bytes;
            run[n++] = m->matrix[i].m;
        } else {
            (void)device_matrix_divide_run(run, n, m->image + at, (size_t)(end - at));
            n = 0;
        }
    }
    mem_free(run);
    return INGLE_OK;
}

static ingle_status reserve(struct model *m, const struct packed_want *w, uint64_t n,
                            struct err *err)
{
    void *at = wants_card(m) ? mem_big_reserve((size_t)n) : mem_big_alloc((size_t)n);
    if (!at)
        return err_set(err, INGLE_NOMEM, "no %llu bytes for the weights of '%s'",
                       (unsigned long long)n, io_path(m->file));
    place(m, w, at, n);
    divide_experts(m, w);
    const ingle_status s = divide_runs(m, w, err);
    for (size_t i = 0; i < m->n_matrices; i++) {
        const struct bound_matrix *b = &m->matrix[i];
        const bool first = b->group && m->group[b->group - 1]->part[0] == b->m;
        if (w->matrix[i].at < n && (first || !device_matrix_is_divided(b->m)))
            device_matrix_spread(b->m);
    }
    return s;
}

/* ---- a file of what is in memory ---- */

struct image {
    const struct model *m;
    const struct packed_want *want;
    uint8_t *buffer; /* of extents that are put together */
    size_t buffer_bytes;
};

/* A buffer of n zeros. */
static ingle_status grow_image(struct image *s, uint64_t n, struct err *err)
{
    if (s->buffer_bytes < n) {
        mem_big_free(s->buffer, s->buffer_bytes);
        s->buffer_bytes = (size_t)n;
        s->buffer = mem_big_alloc((size_t)n);
    }
    if (!s->buffer) {
        s->buffer_bytes = 0;
        return err_set(err, INGLE_NOMEM, "no %llu bytes for weights that lie on several nodes",
                       (unsigned long long)n);
    }
    memset(s->buffer, 0, (size_t)n);
    return INGLE_OK;
}

/* A matrix whose rows are on several nodes, as one. */
static ingle_status next_of_run(struct image *s, const struct device_matrix *m, uint64_t n,
                                const void **out, struct err *err)
{
    const int64_t n_stack = device_matrix_stack(m);
    const uint64_t one = device_matrix_bytes(m) / (uint64_t)n_stack;
    const ingle_status st = grow_image(s, n, err);
    for (int64_t i = 0; !st && i < n_stack; i++)
        device_matrix_gather(m, i, s->buffer + (uint64_t)i * one);
    *out = s->buffer;
    return st;
}

/* Experts whose rows are on several nodes, as extents. */
static ingle_status next_divided(struct image *s, const struct packed_group *g,
                                 const struct model_experts *e, uint64_t at, uint64_t n,
                                 const void **out, struct err *err)
{
    const ingle_status st = grow_image(s, n, err);
    if (st)
        return st;
    for (uint64_t i = 0; i < n / g->bytes; i++)
        for (int k = 0; k < e->n_parts; k++)
            device_matrix_gather(e->part[k], (int64_t)((at - g->at) / g->bytes + i),
                                 s->buffer + i * g->bytes + e->part_at[k]);
    *out = s->buffer;
    return INGLE_OK;
}

static ingle_status next_of_image(void *arg, uint64_t at, uint64_t n, const void **out,
                                  struct err *err)
{
    struct image *s = arg;
    for (size_t i = 0; i < s->m->n_groups; i++) {
        const struct packed_group *g = &s->want->group[i];
        if (s->m->group[i]->divided && at >= g->at && at - g->at < (uint64_t)g->n * g->bytes)
            return next_divided(s, g, s->m->group[i], at, n, out, err);
    }
    for (size_t i = 0; i < s->m->n_matrices; i++) {
        const struct bound_matrix *b = &s->m->matrix[i];
        if (!b->group && s->want->matrix[i].at == at && device_matrix_is_divided(b->m))
            return next_of_run(s, b->m, n, out, err);
    }
    *out = s->m->image + at;
    return INGLE_OK;
}

/* A file that cannot be written is no failure; false with the reason, which is reported. */
static bool write_file(struct model *m, const struct packed_write *how)
{
    const struct packed_want *w = how->want;
    const char *dir = how->o->pack_dir;
    const uint64_t start = clock_now();
    struct err err;
    char name[PACKED_NAME_BYTES];
    model_packed_name(name, w->head.key);
    if (!w->head.n_sources) {
        report(m->sink, INGLE_REPORT_WARN, "packed weights", dir,
               "are not written: the bytes of '%s' lie in no file, or have changed",
               io_path(m->file));
        return false;
    }
    if (model_packed_write(how, &err)) {
        report(m->sink, INGLE_REPORT_WARN, "packed weights", dir, "are not written: %s", err.msg);
        return false;
    }
    m->loaded.wrote = true;
    report(m->sink, INGLE_REPORT_NOTE, "packed weights", dir,
           "%s: wrote %s in %.1f s; later starts map it; 'ingle cache' lists such files and "
           "deletes them",
           name, SIZE_OF(w->head.file_bytes), (double)(clock_now() - start) * 1e-9);
    return true;
}

/* ---- writing what does not fit in memory: one piece after another ---- */

struct stream {
    struct load load;
    const struct packed_want *want;
    uint8_t *buffer;
    uint64_t bytes;
};

static ingle_status next_of_stream(void *arg, uint64_t at, uint64_t n, const void **out,
                                   struct err *err)
{
    struct stream *s = arg;
    struct model *m = s->load.m;
    ingle_status st = INGLE_OK;
    memset(s->buffer, 0, (size_t)n);
    s->load.done = at;
    for (size_t i = 0; i < m->n_matrices; i++) {
        const struct packed_matrix *p = &s->want->matrix[i];
        if (p->at >= at && p->at < at + n)
            device_matrix_place(m->matrix[i].m, s->buffer + (p->at - at), (size_t)p->step);
    }
    for (size_t i = 0; !st && i < m->n_matrices; i++) {
        const struct packed_matrix *p = &s->want->matrix[i];
        if (p->at < at || p->at >= at + n || is_of_job_before(m, i))
            continue;
        st = job_of(m, i, &s->load.job, err);
        if (!st)
            st = run_job(&s->load, err);
    }
    *out = s->buffer;
    /* The sum of all belongs into the file. */
    return !st && at + n == s->want->head.image_bytes ? model_sum_all(m, err) : st;
}

/* Writes a file without the whole image in memory.  False: there is none. */
static bool stream_file(struct model *m, const struct packed_want *w,
                        const struct model_load_options *o)
{
    struct stream s = {.want = w};
    for (uint64_t at = 0, n; at < w->head.image_bytes; at += n) {
        n = model_packed_piece(w, at);
        s.bytes = n > s.bytes ? n : s.bytes;
    }
    s.buffer = mem_big_alloc((size_t)s.bytes);
    const ingle_status st = load_open(&s.load, m, false, NULL);
    s.load.name = "write"; /* of which packing is a part */
    s.load.by_pieces = true;
    s.load.all = w->head.image_bytes;
    bool done = false;
    if (s.buffer && !st) {
        const struct packed_write how = {
            .o = o, .want = w, .model = m, .next = next_of_stream, .arg = &s, .sink = m->sink};
        done = write_file(m, &how);
    } else {
        report(m->sink, INGLE_REPORT_WARN, "packed weights", o->pack_dir,
               "are not written: no %llu bytes for a piece of them", (unsigned long long)s.bytes);
    }
    m->summed = m->summed && done;
    (void)load_close(&s.load, INGLE_CANCEL, NULL); /* it is summed already, or never will be */
    mem_big_free(s.buffer, (size_t)s.bytes);
    return done;
}

/* All of it but what is on a card, whose pages would come back. */
static bool lock_image(const struct model *m, const struct packed_want *w)
{
    if (!m->sent_bytes)
        return mlock(m->image, (size_t)m->image_bytes) == 0;
    for (size_t i = 0; i < m->n_matrices; i++) {
        uint64_t n;
        const uint8_t *at = part_of(m, w, i, &n);
        if (at && device_matrix_side(m->matrix[i].m) == DEVICE_HOST && mlock(at, (size_t)n) != 0)
            return false;
    }
    return true;
}

/* What is not locked is reported, with what would help. */
static void lock(struct model *m, const struct packed_want *w)
{
    const uint64_t n = m->image_bytes - m->sent_bytes;
    struct rlimit limit;
    if (lock_image(m, w)) {
        m->loaded.locked = true;
        report(m->sink, INGLE_REPORT_DEBUG, "lock", io_path(m->file),
               "%s of weights stay in memory", SIZE_OF(n));
        return;
    }
    const int why = errno;
    (void)munlock(m->image, (size_t)m->image_bytes); /* what was locked before it failed */
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < n)
        report(m->sink, INGLE_REPORT_WARN, "lock", io_path(m->file),
               "weights of %llu KiB are not locked: the limit of locked memory (RLIMIT_MEMLOCK) is "
               "%llu KiB; raise it "
               "with 'ulimit -l unlimited', LimitMEMLOCK=infinity (systemd) or --ulimit memlock=-1 "
               "(docker)",
               (unsigned long long)(n / 1024), (unsigned long long)(limit.rlim_cur / 1024));
    else
        report(m->sink, INGLE_REPORT_WARN, "lock", io_path(m->file),
               "weights of %llu KiB are not locked: %s", (unsigned long long)(n / 1024),
               strerror(why));
}

static void count_huge(struct model *m)
{
    const uint64_t n = m->image_bytes - m->sent_bytes,
                   huge = mem_huge_bytes(m->image, (size_t)m->image_bytes);
    m->loaded.huge_bytes = huge;
    if (n >= LARGE && huge < n / 2)
        report(m->sink, INGLE_REPORT_NOTE, "huge pages", io_path(m->file),
               "%llu of %llu MiB of weights are on them; the others cost speed "
               "(/sys/kernel/mm/transparent_hugepage/enabled should say madvise or always)",
               (unsigned long long)(huge >> 20), (unsigned long long)(n >> 20));
}

/* What a node has that should have more: " (node 1 has 0.1 of 64.0 GiB free)". */
static void full_nodes(const struct model *m, char *out, size_t n)
{
    static const double gib = 1 << 30;
    const struct numa_nodes *nodes = device_nodes(m->d);
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < nodes->n && at < n; i++) {
        uint64_t all, free_bytes;
        numa_memory(nodes->id[i], &all, &free_bytes);
        if (all && free_bytes < all / 50)
            at += (size_t)snprintf(out + at, n - at, "; node %d is full: %.1f of %.1f GiB are free",
                                   nodes->id[i], (double)free_bytes / gib, (double)all / gib);
    }
}

/* Whether weights are where threads read them. */
static void count_local(struct model *m)
{
    struct device_placement p = {0};
    char full[256];
    m->loaded.local_share = -1;
    for (size_t i = 0; i < m->n_matrices; i++)
        device_matrix_placement(m->matrix[i].m, &p);
    if (!(p.bytes > 0))
        return;
    m->loaded.local_share = p.local_bytes / p.bytes;
    full_nodes(m, full, sizeof full);
    if (device_nodes(m->d)->n > 1)
        report(m->sink, INGLE_REPORT_NOTE, "numa", io_path(m->file),
               "%.1f %% of weights lie on the node whose threads read them (%llu pages were asked "
               "about)%s",
               100 * m->loaded.local_share, (unsigned long long)(p.pages - p.unknown), full);
}

/* Before the first weight is read. */
static ingle_status take_stamps(struct model *m, struct err *err)
{
    const size_t n = io_n_files(m->file);
    if (!m->stamp && n && !(m->stamp = mem_calloc(n, sizeof *m->stamp)))
        return err_set(err, INGLE_NOMEM, "no memory for the state of %zu files", n);
    for (size_t i = 0; i < n; i++)
        if (!io_stamp(m->file, i, &m->stamp[i]))
            m->stamp[i] = (struct io_stamp){0};
    return INGLE_OK;
}

ingle_status model_load_with(struct model *m, const struct model_load_options *o, struct err *err)
{
    static const struct model_load_options none = {0};
    const uint64_t start = clock_now();
    struct packed_want w;
    o = o ? o : &none;
    if (m->nothing)
        return err_set(
            err, INGLE_FORMAT,
            "'%s': tensor '%s' is zero: a part of the download is missing, fetch the file again",
            io_path(m->file), m->nothing);
    const bool card = wants_card(m), in_pieces = o->no_experts || card;
    ingle_status s = in_pieces ? take_stamps(m, err) : INGLE_OK;
    if (!s)
        s = model_packed_want_init(&w, m, o->identity, err);
    if (s)
        return s;
    bool there = o->pack_dir && w.head.n_sources && map(m, &w, o);
    if (!there && in_pieces && o->pack_dir && o->pack_write)
        there = stream_file(m, &w, o) && map(m, &w, o);
    if (there && card && !o->only_experts)
        s = send_all(m, &w, err);
    if (!there && !o->only_experts) {
        s = reserve(m, &w, wanted_bytes(&w, o), err);
        if (!s)
            s = load_all(m, &w, false, o->no_experts, err);
        struct image image = {.m = m, .want = &w};
        const struct packed_write how = {.o = o,
                                         .want = &w,
                                         .model = m,
                                         .next = next_of_image,
                                         .arg = &image,
                                         .few_extents = true,
                                         .sink = m->sink};
        if (!s && o->pack_dir && o->pack_write && !in_pieces && !m->keeps)
            (void)write_file(m, &how);
        mem_big_free(image.buffer, image.buffer_bytes);
    }
    if (!s && o->lock && !o->only_experts)
        lock(m, &w);
    if (!s && m->image && !m->loaded.mapped && !m->keeps)
        count_huge(m);
    if (!s && m->image)
        count_local(m);
    m->loaded.seconds = (double)(clock_now() - start) * 1e-9;
    if (!s && m->image && !m->loaded.mapped)
        report(m->sink, INGLE_REPORT_DEBUG, "load", io_path(m->file), "%s of weights in %.2f s",
               SIZE_OF(m->image_bytes), m->loaded.seconds);
    model_packed_want_release(&w);
    return s;
}

ingle_status model_sum(struct model *m, const struct model_load_options *o, uint64_t *out,
                       struct err *err)
{
    struct packed_want w;
    struct packed_file f;
    const void *image;
    ingle_status s = INGLE_OK;
    if (!m->summed) {
        s = model_packed_want_init(&w, m, o->identity, err);
        if (s)
            return s;
        if (o->pack_dir && w.head.n_sources &&
            !model_packed_map(o->pack_dir, &w, m->sink, wanted_bytes(&w, o), &f, &image, NULL)) {
            m->sum = f.head.model_sum;
            m->summed = true;
            file_unmap(image, wanted_bytes(&w, o));
            model_packed_close(&f);
        } else {
            s = load_all(m, NULL, true, o->no_experts, err);
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
    const bool there = w.head.n_sources && !model_packed_map(o->pack_dir, &w, m->sink,
                                                             wanted_bytes(&w, o), &f, &image, NULL);
    if (there) {
        file_unmap(image, wanted_bytes(&w, o));
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
    out->image_bytes -= m->sent_bytes;
    if (m->loaded.mapped) /* pages are mapped when they are read */
        out->huge_bytes = mem_huge_bytes(m->image, (size_t)m->image_bytes);
}

void model_unload(struct model *m)
{
    if (m->loaded.mapped)
        munmap(m->image, (size_t)m->image_bytes);
    else
        mem_big_free(m->image, (size_t)m->image_bytes);
    m->image = NULL;
    if (m->file_of_image)
        model_packed_close(m->file_of_image);
    mem_free(m->file_of_image);
    m->file_of_image = NULL;
}

/* ---- experts that are not in memory ---- */

ingle_status model_extents(const struct model *m, size_t i, struct model_extents *out,
                           struct err *err)
{
    const struct packed_file *f = m->file_of_image;
    if (!f)
        return err_set(err, INGLE_NOTFOUND, "'%s': there is no file of packed weights",
                       io_path(m->file));
    *out = (struct model_extents){f->fd, f->path, f->head.image_at + f->group[i].at,
                                  f->extent + f->group[i].first};
    return INGLE_OK;
}

void model_extents_spoil(const struct model *m)
{
    const struct packed_file *f = m->file_of_image;
    if (f && model_packed_mark(f))
        report(m->sink, INGLE_REPORT_WARN, "packed weights", f->path,
               "is damaged: the next start does not use it, 'ingle cache "
               "--verify' tells more");
}

size_t model_expert_work(const struct model *m)
{
    struct form f;
    size_t n = 0;
    for (size_t i = 0; i < m->n_matrices; i++)
        if (m->matrix[i].group && !form_of(&m->matrix[i], &f, NULL))
            n = f.bytes > n ? f.bytes : n;
    return n;
}

ingle_status model_expert_read(const struct model *m, size_t i, int64_t index, void *to, void *work,
                               struct err *err)
{
    const struct model_experts *e = m->group[i];
    uint8_t *at = to;
    for (int k = 0; k < e->n_parts; k++) {
        const struct bound_matrix *b = binding_of(m, e->part[k]);
        struct form f;
        bool rounded = false;
        ingle_status s = form_of(b, &f, err);
        for (int64_t row = 0; !s && row < device_matrix_out(b->m); row += f.rows_per_chunk) {
            const struct range r = {index, row,
                                    num_min(f.rows_per_chunk, device_matrix_out(b->m) - row)};
            struct err why = {0};
            const uint8_t *rows = read_rows(m, b, &f, r, work, NULL, false, &rounded, &why);
            if (!rows) {
                s = why.status;
                if (err)
                    *err = why;
                break;
            }
            device_matrix_pack(b->m, at + e->part_at[k], r.row0, r.n, rows);
        }
        if (!s)
            s = check_stamp(m, b->part[b->n_parts > 1 ? index : 0].t->file, err);
        if (s)
            return s;
    }
    return INGLE_OK;
}
