/* SPDX-License-Identifier: Apache-2.0 */
/* packed - the file: what it must say, whether it does. */
#define _GNU_SOURCE
#include "model/packed.h"

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

/* Bytes of the table: matrices, sources, sums of blocks. */
static uint64_t table_size(const struct packed_header *h)
{
    return (uint64_t)h->n_matrices * sizeof(struct packed_matrix) +
           (uint64_t)h->n_sources * sizeof(struct io_stamp) +
           (uint64_t)h->n_blocks * sizeof(struct packed_sum);
}

/* ---- what a model wants ---- */

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
        at = (at + w->matrix[i].bytes + PACKED_ALIGN - 1) & ~(uint64_t)(PACKED_ALIGN - 1);
    }
    w->head.image_bytes = at;
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
    XXH3_128bits_update(&s, w->source, h->n_sources * sizeof *w->source);
    const XXH128_hash_t k = XXH3_128bits_digest(&s);
    w->head.key = (struct packed_sum){k.low64, k.high64};
}

ingle_status model_packed_want_init(struct packed_want *w, const struct model *m, uint64_t identity,
                              struct err *err)
{
    const size_t n_sources = io_n_files(m->file);
    const char *path = io_path(m->file);
    *w = (struct packed_want){.head = {.format = PACKED_FORMAT, .layout = KERN_LAYOUT, .endian = endian}};
    if (m->n_matrices > PACKED_MAX_MATRICES || n_sources > PACKED_MAX_SOURCES)
        return err_set(err, INGLE_UNSUP, "'%s': %zu matrices in %zu files are too many", path,
                       m->n_matrices, n_sources);
    w->matrix = mem_calloc(m->n_matrices, sizeof *w->matrix);
    w->source = mem_calloc(n_sources, sizeof *w->source);
    if (!w->matrix || !w->source) {
        model_packed_want_release(w);
        return err_set(err, INGLE_NOMEM, "no memory for the places of %zu matrices", m->n_matrices);
    }
    struct packed_header *h = &w->head;
    memcpy(h->magic, magic, sizeof magic);
    h->n_matrices = (uint32_t)m->n_matrices;
    h->n_sources = (uint32_t)n_sources;
    set_path(h, path);
    set_places(w, m);
    h->n_blocks = (uint32_t)((h->image_bytes + PACKED_BLOCK - 1) / PACKED_BLOCK);
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
    w->matrix = NULL;
    w->source = NULL;
}

/* ---- reading ---- */

ingle_status model_packed_check_head(const struct packed_header *h, uint64_t file_bytes, const char *name,
                               uint64_t *table_bytes, struct err *err)
{
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return err_set(err, INGLE_FORMAT, "%s: damaged: it does not begin as a file of packed weights", name);
    if (h->format != PACKED_FORMAT || h->endian != endian)
        return err_set(err, INGLE_UNSUP, "%s: is of format %u, not %d", name, h->format, PACKED_FORMAT);
    if (!same_sum(h->sum, model_packed_head_sum(h)))
        return err_set(err, INGLE_FORMAT, "%s: damaged: the checksum of its header is wrong", name);
    if (h->layout != KERN_LAYOUT)
        return err_set(err, INGLE_UNSUP, "%s: has weights of layout %u, not %d", name, h->layout, KERN_LAYOUT);
    if (h->n_matrices > PACKED_MAX_MATRICES || h->n_sources > PACKED_MAX_SOURCES ||
        h->image_bytes > INT64_MAX / 2 ||
        h->n_blocks != (h->image_bytes + PACKED_BLOCK - 1) / PACKED_BLOCK)
        return err_set(err, INGLE_FORMAT, "%s: damaged: %u matrices, %u files, %u blocks of %llu bytes", name,
                       h->n_matrices, h->n_sources, h->n_blocks, (unsigned long long)h->image_bytes);
    const uint64_t table = table_size(h), least = sizeof *h + table, align = model_packed_align(h->image_bytes);
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

ingle_status model_packed_check_table(const struct packed_header *h, const void *table, const char *name,
                                struct err *err)
{
    const struct packed_matrix *m = table;
    if (!same_sum(h->table_sum, model_packed_sum_of(table, (size_t)table_size(h))))
        return err_set(err, INGLE_FORMAT, "%s: damaged: the checksum of its table is wrong", name);
    uint64_t at = 0;
    for (uint32_t i = 0; i < h->n_matrices; i++) {
        if (m[i].at < at || m[i].at > h->image_bytes || m[i].bytes > h->image_bytes - m[i].at)
            return err_set(err, INGLE_FORMAT, "%s: damaged: matrix %u has %llu bytes at %llu of %llu", name, i,
                           (unsigned long long)m[i].bytes, (unsigned long long)m[i].at,
                           (unsigned long long)h->image_bytes);
        at = m[i].at + m[i].bytes;
    }
    return INGLE_OK;
}

static ingle_status read_parts(struct packed_file *f, const char *name, uint64_t n_bytes,
                               struct err *err)
{
    struct packed_header *h = &f->head;
    uint64_t table_bytes;
    ingle_status s = INGLE_OK;
    if (n_bytes < sizeof *h)
        return err_set(err, INGLE_FORMAT, "%s: damaged: it has %llu bytes, less than a header", name,
                       (unsigned long long)n_bytes);
    s = file_read_at(f->fd, name, 0, h, sizeof *h, err);
    if (!s)
        s = model_packed_check_head(h, n_bytes, name, &table_bytes, err);
    if (s)
        return s;
    f->table = mem_alloc((size_t)table_bytes);
    if (!f->table)
        return err_set(err, INGLE_NOMEM, "%s: no %llu bytes for its table", name, (unsigned long long)table_bytes);
    s = file_read_at(f->fd, name, sizeof *h, f->table, (size_t)table_bytes, err);
    if (!s)
        s = model_packed_check_table(h, f->table, name, err);
    if (s)
        return s;
    f->matrix = f->table;
    f->source = (const struct io_stamp *)(const void *)(f->matrix + h->n_matrices);
    f->block = (const struct packed_sum *)(const void *)(f->source + h->n_sources);
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
    *f = (struct packed_file){.fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
    if (f->fd < 0)
        return err_set(err, errno == ENOENT ? INGLE_NOTFOUND : INGLE_IO, "%s: cannot open: %s", name,
                       strerror(errno));
    ingle_status s = INGLE_OK;
    /* File systems without locks: nobody can tell that the file is in use, which costs its name at worst. */
    if (!model_packed_lock(f->fd, LOCK_SH) && errno == EWOULDBLOCK)
        s = err_set(err, INGLE_IO, "%s: another process has locked it", name);
    else if (fstat(f->fd, &st) != 0)
        s = err_set(err, INGLE_IO, "%s: cannot stat: %s", name, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        s = err_set(err, INGLE_FORMAT, "%s: not a regular file", name);
    else if (!trusted(&st))
        s = err_set(err, INGLE_ARG, "%s: belongs to another user or can be written by others", name);
    else
        s = read_parts(f, name, (uint64_t)st.st_size, err);
    if (s)
        model_packed_close(f);
    return s;
}

void model_packed_close(struct packed_file *f)
{
    mem_free(f->table);
    f->table = NULL;
    file_close(f->fd);
    f->fd = -1;
}

ingle_status model_packed_verify(const struct packed_file *f, const char *name, struct err *err)
{
    uint8_t *buffer = mem_alloc(PACKED_BLOCK);
    ingle_status s = buffer ? INGLE_OK : err_set(err, INGLE_NOMEM, "%s: no memory to read it", name);
    for (uint32_t i = 0; !s && i < f->head.n_blocks; i++) {
        const uint64_t at = (uint64_t)i * PACKED_BLOCK, left = f->head.image_bytes - at;
        const size_t n = left < PACKED_BLOCK ? (size_t)left : PACKED_BLOCK;
        s = file_read_at(f->fd, name, f->head.image_at + at, buffer, n, err);
        if (!s && !same_sum(model_packed_sum_of(buffer, n), f->block[i]))
            s = err_set(err, INGLE_FORMAT, "%s: damaged: the checksum of the weights at %llu is wrong", name,
                        (unsigned long long)(f->head.image_at + at));
    }
    mem_free(buffer);
    return s;
}
