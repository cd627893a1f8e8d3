/* SPDX-License-Identifier: Apache-2.0 */
/* packed - the file: what it must say, whether it does. */
#define _GNU_SOURCE
#include "model/packed.h"
#include "model/packed_write.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY /* the state of a hash on the stack */
#include <xxhash.h>

static const char magic[16] = "ingle packed\r\n\x1a";
static const uint32_t endian = 0x01020304;
static const char suffix[] = ".packed";

struct packed_sum model_packed_sum_of(const void *at, size_t n)
{
    const XXH128_hash_t h = XXH3_128bits(at, n);
    return (struct packed_sum){h.low64, h.high64};
}

struct packed_sum model_packed_head_sum(const struct packed_header *h)
{
    struct packed_header copy = *h;
    copy.sum = (struct packed_sum){0, 0};
    return model_packed_sum_of(&copy, sizeof copy);
}

static bool same_sum(struct packed_sum a, struct packed_sum b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

void model_packed_name(char out[PACKED_NAME_BYTES], struct packed_sum key)
{
    snprintf(out, PACKED_NAME_BYTES, "%016llx%016llx%s", (unsigned long long)key.hi,
             (unsigned long long)key.lo, suffix);
}

bool model_packed_is_name(const char *name)
{
    return strspn(name, "0123456789abcdef") == 32 && strcmp(name + 32, suffix) == 0;
}

/* Bytes of the table: matrices, groups, sources, sums of blocks, sums of extents. */
static uint64_t table_size(const struct packed_header *h)
{
    return (uint64_t)h->n_matrices * sizeof(struct packed_matrix) +
           (uint64_t)h->n_groups * sizeof(struct packed_group) +
           (uint64_t)h->n_sources * sizeof(struct io_stamp) +
           (uint64_t)h->n_blocks * sizeof(struct packed_sum) +
           (uint64_t)h->n_extents * sizeof(uint64_t);
}

/* ---- what a model wants ---- */

static uint64_t align_up(uint64_t at)
{
    return (at + PACKED_ALIGN - 1) & ~(uint64_t)(PACKED_ALIGN - 1);
}

static_assert(PACKED_ALIGN % MODEL_EXTENT == 0, "extents lie on borders of a file");

/* Extents follow each other after the other matrices. */
static void set_extents(struct packed_want *w, const struct model *m)
{
    uint64_t at = w->head.dense_bytes, first = 0;
    for (size_t g = 0; g < m->n_groups; g++) {
        const struct model_experts *e = m->group[g];
        w->group[g] = (struct packed_group){at, e->bytes, e->n, first};
        for (size_t i = 0; i < m->n_matrices; i++)
            for (int k = 0; k < e->n_parts; k++)
                if (m->matrix[i].m == e->part[k]) {
                    w->matrix[i].at = at + e->part_at[k];
                    w->matrix[i].step = e->bytes;
                }
        at = align_up(at + (uint64_t)e->n * e->bytes);
        first += (uint64_t)e->n;
    }
    w->head.image_bytes = at;
    w->head.n_extents = (uint32_t)first;
}

static void set_places(struct packed_want *w, const struct model *m)
{
    uint64_t at = 0;
    for (size_t i = 0; i < m->n_matrices; i++) {
        const struct bound_matrix *b = &m->matrix[i];
        const char *name = b->part[0].t->name;
        w->matrix[i] = (struct packed_matrix){
            .at = at,
            .bytes = device_matrix_bytes(b->m),
            .out = device_matrix_out(b->m),
            .in = device_matrix_in(b->m),
            .n_stack = device_matrix_stack(b->m),
            .type = device_matrix_type(b->m),
            .from = (uint32_t)b->layout.from,
            .name = XXH3_64bits(name, strlen(name)),
        };
        if (!b->group)
            at = align_up(at + w->matrix[i].bytes);
    }
    w->head.dense_bytes = at;
    set_extents(w, m);
}

uint64_t model_packed_piece(const struct packed_want *w, uint64_t at)
{
    uint64_t next = w->head.image_bytes;
    for (uint32_t i = 0; at < w->head.dense_bytes && i < w->head.n_matrices; i++)
        if (!w->matrix[i].step && w->matrix[i].at > at && w->matrix[i].at < next)
            next = w->matrix[i].at;
    for (uint32_t i = 0; i < w->head.n_groups; i++)
        if (w->group[i].at > at && w->group[i].at < next)
            next = w->group[i].at;
    return next - at;
}

/* Whole, where the file can be found, and its end, where it is long. */
static void set_path(struct packed_header *h, const char *path)
{
    char whole[PATH_MAX];
    if (realpath(path, whole))
        path = whole;
    const size_t n = strlen(path), cut = n < sizeof h->model ? 0 : n - sizeof h->model + 1;
    memcpy(h->model, path + cut, n - cut);
}

static void set_key(struct packed_want *w, uint64_t identity)
{
    const struct packed_header *h = &w->head;
    XXH3_state_t s;
    XXH3_128bits_reset(&s);
    XXH3_128bits_update(&s, h, offsetof(struct packed_header, key));
    XXH3_128bits_update(&s, &identity, sizeof identity);
    XXH3_128bits_update(&s, w->matrix, h->n_matrices * sizeof *w->matrix);
    XXH3_128bits_update(&s, w->group, h->n_groups * sizeof *w->group);
    XXH3_128bits_update(&s, w->source, h->n_sources * sizeof *w->source);
    const XXH128_hash_t k = XXH3_128bits_digest(&s);
    w->head.key = (struct packed_sum){k.low64, k.high64};
}

ingle_status model_packed_want_init(struct packed_want *w, const struct model *m, uint64_t identity,
                              struct err *err)
{
    const size_t n_sources = io_n_files(m->file);
    const char *path = io_path(m->file);
    *w = (struct packed_want){
        .head = {.format = PACKED_FORMAT, .layout = KERN_LAYOUT, .endian = endian}};
    if (m->n_matrices > PACKED_MAX_MATRICES || n_sources > PACKED_MAX_SOURCES)
        return err_set(err, INGLE_UNSUP, "'%s': %zu matrices in %zu files are too many", path,
                       m->n_matrices, n_sources);
    w->matrix = mem_calloc(m->n_matrices, sizeof *w->matrix);
    w->group = mem_calloc(m->n_groups, sizeof *w->group);
    w->source = mem_calloc(n_sources, sizeof *w->source);
    if (!w->matrix || !w->group || !w->source) {
        model_packed_want_release(w);
        return err_set(err, INGLE_NOMEM, "no memory for the places of %zu matrices", m->n_matrices);
    }
    struct packed_header *h = &w->head;
    memcpy(h->magic, magic, sizeof magic);
    h->n_matrices = (uint32_t)m->n_matrices;
    h->n_groups = (uint32_t)m->n_groups;
    h->n_sources = (uint32_t)n_sources;
    set_path(h, path);
    set_places(w, m);
    h->n_blocks = (uint32_t)((h->dense_bytes + PACKED_BLOCK - 1) / PACKED_BLOCK);
    const uint64_t align = model_packed_align(h->image_bytes);
    h->image_at = (sizeof *h + table_size(h) + align - 1) & ~(align - 1);
    h->file_bytes = h->image_at + h->image_bytes;
    for (size_t i = 0; i < n_sources; i++)
        if (!io_stamp(m->file, i, &w->source[i])) {
            h->n_sources = 0;
            break;
        }
    set_key(w, identity);
    return INGLE_OK;
}

void model_packed_want_release(struct packed_want *w)
{
    mem_free(w->matrix);
    mem_free(w->source);
    mem_free(w->group);
    w->group = NULL;
    w->matrix = NULL;
    w->source = NULL;
}

/* ---- reading ---- */

ingle_status model_packed_check_head(const struct packed_header *h, uint64_t file_bytes,
                                     const char *name, uint64_t *table_bytes, struct err *err)
{
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return err_set(err, INGLE_FORMAT,
                       "%s: damaged: it does not begin as a file of packed weights", name);
    if (h->format != PACKED_FORMAT || h->endian != endian)
        return err_set(err, INGLE_UNSUP, "%s: is of format %u, not %d", name, h->format,
                       PACKED_FORMAT);
    if (!same_sum(h->sum, model_packed_head_sum(h)))
        return err_set(err, INGLE_FORMAT, "%s: damaged: the checksum of its header is wrong", name);
    if (h->layout != KERN_LAYOUT)
        return err_set(err, INGLE_UNSUP, "%s: has weights of layout %u, not %d", name, h->layout,
                       KERN_LAYOUT);
    if (h->n_matrices > PACKED_MAX_MATRICES || h->n_sources > PACKED_MAX_SOURCES ||
        h->n_groups > PACKED_MAX_MATRICES || h->n_extents > PACKED_MAX_EXTENTS ||
        h->image_bytes > INT64_MAX / 2 || h->dense_bytes > h->image_bytes ||
        h->dense_bytes % PACKED_ALIGN ||
        h->n_blocks != (h->dense_bytes + PACKED_BLOCK - 1) / PACKED_BLOCK)
        return err_set(
            err, INGLE_FORMAT, "%s: damaged: %u matrices, %u files, %u blocks of %llu bytes", name,
            h->n_matrices, h->n_sources, h->n_blocks, (unsigned long long)h->image_bytes);
    const uint64_t table = table_size(h), least = sizeof *h + table,
                   align = model_packed_align(h->image_bytes);
    if (h->image_at < least || h->image_at - least >= align || h->image_at % align ||
        h->file_bytes != h->image_at + h->image_bytes)
        return err_set(err, INGLE_FORMAT, "%s: damaged: %llu bytes at %llu in a file of %llu", name,
                       (unsigned long long)h->image_bytes, (unsigned long long)h->image_at,
                       (unsigned long long)h->file_bytes);
    if (h->file_bytes != file_bytes)
        return err_set(err, INGLE_FORMAT, "%s: damaged: it has %llu bytes, should have %llu", name,
                       (unsigned long long)file_bytes, (unsigned long long)h->file_bytes);
    if (!memchr(h->model, 0, sizeof h->model))
        return err_set(err, INGLE_FORMAT, "%s: damaged: the name of its model does not end", name);
    *table_bytes = table;
    return INGLE_OK;
}

ingle_status model_packed_check_table(const struct packed_header *h, const void *table,
                                      const char *name, struct err *err)
{
    const struct packed_matrix *m = table;
    if (!same_sum(h->table_sum, model_packed_sum_of(table, (size_t)table_size(h))))
        return err_set(err, INGLE_FORMAT, "%s: damaged: the checksum of its table is wrong", name);
    uint64_t at = 0, first = 0;
    for (uint32_t i = 0; i < h->n_matrices; i++) {
        if (m[i].step) /* of an extent; what a model wants is compared as a whole */
            continue;
        if (m[i].at < at || m[i].at > h->dense_bytes || m[i].bytes > h->dense_bytes - m[i].at)
            return err_set(err, INGLE_FORMAT,
                           "%s: damaged: matrix %u has %llu bytes at %llu of %llu", name, i,
                           (unsigned long long)m[i].bytes, (unsigned long long)m[i].at,
                           (unsigned long long)h->dense_bytes);
        at = m[i].at + m[i].bytes;
    }
    const struct packed_group *g = (const struct packed_group *)(const void *)(m + h->n_matrices);
    at = h->dense_bytes;
    for (uint32_t i = 0; i < h->n_groups; i++) {
        if (g[i].at < at || g[i].at > h->image_bytes || g[i].at % PACKED_ALIGN || g[i].n < 1 ||
            !g[i].bytes || g[i].bytes % MODEL_EXTENT ||
            (uint64_t)g[i].n > (h->image_bytes - g[i].at) / g[i].bytes || g[i].first != first ||
            (uint64_t)g[i].n > h->n_extents - first)
            return err_set(err, INGLE_FORMAT,
                           "%s: damaged: experts %u are %lld of %llu bytes at %llu of %llu", name,
                           i, (long long)g[i].n, (unsigned long long)g[i].bytes,
                           (unsigned long long)g[i].at, (unsigned long long)h->image_bytes);
        at = g[i].at + (uint64_t)g[i].n * g[i].bytes;
        first += (uint64_t)g[i].n;
    }
    if (first != h->n_extents)
        return err_set(err, INGLE_FORMAT,
                       "%s: damaged: it has sums of %u experts, and %llu experts", name,
                       h->n_extents, (unsigned long long)first);
    return INGLE_OK;
}

static ingle_status read_parts(struct packed_file *f, const char *name, uint64_t n_bytes,
                               struct err *err)
{
    struct packed_header *h = &f->head;
    uint64_t table_bytes;
    ingle_status s = INGLE_OK;
    if (n_bytes < sizeof *h)
        return err_set(err, INGLE_FORMAT, "%s: damaged: it has %llu bytes, less than a header",
                       name, (unsigned long long)n_bytes);
    s = file_read_at(f->fd, name, 0, h, sizeof *h, err);
    if (!s)
        s = model_packed_check_head(h, n_bytes, name, &table_bytes, err);
    if (s)
        return s;
    f->table = mem_alloc((size_t)table_bytes);
    if (!f->table)
        return err_set(err, INGLE_NOMEM, "%s: no %llu bytes for its table", name,
                       (unsigned long long)table_bytes);
    s = file_read_at(f->fd, name, sizeof *h, f->table, (size_t)table_bytes, err);
    if (!s)
        s = model_packed_check_table(h, f->table, name, err);
    if (s)
        return s;
    f->matrix = f->table;
    f->group = (const struct packed_group *)(const void *)(f->matrix + h->n_matrices);
    f->source = (const struct io_stamp *)(const void *)(f->group + h->n_groups);
    f->block = (const struct packed_sum *)(const void *)(f->source + h->n_sources);
    f->extent = (const uint64_t *)(const void *)(f->block + h->n_blocks);
    return INGLE_OK;
}

/* Others could otherwise choose what this process computes. */
static bool trusted(const struct stat *st)
{
    return (st->st_uid == geteuid() || st->st_uid == 0) && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

bool model_packed_lock(int fd, int how)
{
    enum { TIMES = 20, PAUSE_NS = 2000000 };
    for (int i = 0;; i++) {
        if (flock(fd, how | LOCK_NB) == 0)
            return true;
        if ((errno != EWOULDBLOCK && errno != EINTR) || i == TIMES)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

ingle_status model_packed_open(struct packed_file *f, int dir, const char *name, struct err *err)
{
    struct stat st;
    *f = (struct packed_file){
        .fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
    if (f->fd < 0)
        return err_set(err, errno == ENOENT ? INGLE_NOTFOUND : INGLE_IO, "%s: cannot open: %s",
                       name, strerror(errno));
    ingle_status s = INGLE_OK;
    /* File systems without locks: nobody can see that the file is in use, which costs its name at
     * worst. */
    if (!model_packed_lock(f->fd, LOCK_SH) && errno == EWOULDBLOCK)
        s = err_set(err, INGLE_IO, "%s: another process has locked it", name);
    else if (fstat(f->fd, &st) != 0)
        s = err_set(err, INGLE_IO, "%s: cannot stat: %s", name, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        s = err_set(err, INGLE_FORMAT, "%s: not a regular file", name);
    else if (!trusted(&st))
        s = err_set(err, INGLE_ARG, "%s: belongs to another user or can be written by others",
                    name);
    else
        s = read_parts(f, name, (uint64_t)st.st_size, err);
    if (s)
        model_packed_close(f);
    return s;
}

void model_packed_close(struct packed_file *f)
{
    mem_free(f->table);
    mem_free(f->path);
    f->table = NULL;
    f->path = NULL;
    file_close(f->fd);
    f->fd = -1;
}

static ingle_status verify_group(const struct packed_file *f, const struct packed_group *g,
                                 uint32_t index, const char *name, struct err *err)
{
    uint8_t *buffer = mem_alloc((size_t)g->bytes);
    ingle_status s = buffer ? INGLE_OK
                            : err_set(err, INGLE_NOMEM, "%s: no %llu bytes to read an expert", name,
                                      (unsigned long long)g->bytes);
    for (int64_t e = 0; !s && e < g->n; e++) {
        const uint64_t at = f->head.image_at + g->at + (uint64_t)e * g->bytes;
        s = file_read_at(f->fd, name, at, buffer, (size_t)g->bytes, err);
        if (!s && XXH3_64bits(buffer, (size_t)g->bytes) != f->extent[g->first + (uint64_t)e])
            s = err_set(err, INGLE_FORMAT,
                        "%s: damaged: the checksum of expert %lld of the layer with experts number "
                        "%u, at %llu, "
                        "is wrong",
                        name, (long long)e, index, (unsigned long long)at);
    }
    mem_free(buffer);
    return s;
}

ingle_status model_packed_verify(const struct packed_file *f, const char *name, struct err *err)
{
    uint8_t *buffer = mem_alloc(PACKED_BLOCK);
    ingle_status s =
        buffer ? INGLE_OK : err_set(err, INGLE_NOMEM, "%s: no memory to read it", name);
    for (uint32_t i = 0; !s && i < f->head.n_blocks; i++) {
        const uint64_t at = (uint64_t)i * PACKED_BLOCK, left = f->head.dense_bytes - at;
        const size_t n = left < PACKED_BLOCK ? (size_t)left : PACKED_BLOCK;
        s = file_read_at(f->fd, name, f->head.image_at + at, buffer, n, err);
        if (!s && !same_sum(model_packed_sum_of(buffer, n), f->block[i]))
            s = err_set(err, INGLE_FORMAT,
                        "%s: damaged: the checksum of the weights at %llu is wrong", name,
                        (unsigned long long)(f->head.image_at + at));
    }
    mem_free(buffer);
    for (uint32_t i = 0; !s && i < f->head.n_groups; i++)
        s = verify_group(f, &f->group[i], i, name, err);
    return s;
}
