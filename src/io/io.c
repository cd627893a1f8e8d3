/* SPDX-License-Identifier: Apache-2.0 */
/* The container: its files, its tensors by name, reading. */
#define _GNU_SOURCE
#include "io/inner.h"
#include "io/table.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <xxhash.h>

static const size_t NAMES_BUDGET = (size_t)1 << 30;

static ingle_status container_create(struct io_file **out, const char *path,
                                     const struct report_sink *sink, struct err *err)
{
    struct io_file *f = mem_zalloc(sizeof *f);
    if (!f)
        return err_set(err, INGLE_NOMEM, "%s: no memory to open it", path);
    f->sink = sink;
    io_arena_init(&f->arena, NAMES_BUDGET);
    /* A key that a file's author cannot know: chosen names must not collide. */
    if (getrandom(&f->seed, sizeof f->seed, GRND_NONBLOCK) != (ssize_t)sizeof f->seed)
        f->seed = clock_now() ^ (uint64_t)(uintptr_t)f;
    f->path = mem_strdup(path);
    f->meta = io_meta_create();
    if (!f->path || !f->meta || io_meta_set_name(f->meta, path)) {
        io_close(f);
        return err_set(err, INGLE_NOMEM, "%s: no memory to open it", path);
    }
    *out = f;
    return INGLE_OK;
}

void io_close(struct io_file *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->n_parts; i++) {
        if (f->part[i].fd >= 0)
            file_unmap(f->part[i].map, f->part[i].n_bytes);
        file_close(f->part[i].fd);
        mem_free(f->part[i].path);
    }
    mem_free(f->part);
    io_meta_free(f->meta);
    io_arena_release(&f->arena);
    mem_free(f->tensor);
    mem_free(f->slot);
    mem_free(f->head);
    mem_free(f->path);
    mem_free(f);
}

static ingle_status open_file(struct io_file *f, struct err *err)
{
    ingle_status s = io_part_add(f, f->path, err);
    if (s)
        return s;
    const struct io_part *p = &f->part[0];
    unsigned char magic[9] = {0};
    if (p->n_bytes < 4)
        return err_set(err, INGLE_FORMAT, "%s: has %llu bytes, no model is that small", f->path,
                       (unsigned long long)p->n_bytes);
    s = file_read_at(p->fd, f->path, 0, magic, p->n_bytes < sizeof magic ? 4 : sizeof magic, err);
    if (s)
        return s;
    if (memcmp(magic, "GGUF", 4) == 0)
        return io_gguf_open(f, err);
    /* Safetensors have no magic: the length of a header, high bytes 0, and the header's '{'. */
    if (str_ends(f->path, ".safetensors") ||
        (magic[8] == '{' && !magic[5] && !magic[6] && !magic[7]))
        return io_safetensors_open(f, err);
    return err_set(err, INGLE_FORMAT,
                   "%s: begins with %02x %02x %02x %02x, which is neither GGUF nor safetensors",
                   f->path, magic[0], magic[1], magic[2], magic[3]);
}

ingle_status io_open(struct io_file **out, const char *path, const struct report_sink *sink,
                     struct err *err)
{
    struct io_file *f;
    struct stat st;
    ingle_status s = container_create(&f, path, sink, err);
    if (s)
        return s;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        s = io_safetensors_open_dir(f, path, err);
    else
        s = open_file(f, err);
    if (s) {
        io_close(f);
        return s;
    }
    *out = f;
    return INGLE_OK;
}

ingle_status io_open_memory(struct io_file **out, const char *name, const void *at, size_t n,
                            const struct report_sink *sink, struct err *err)
{
    struct io_file *f;
    struct io_part *p = NULL;
    ingle_status s = container_create(&f, name, sink, err);
    if (s)
        return s;
    s = io_part_new(f, name, &p, err);
    if (!s) {
        p->map = at;
        p->n_bytes = n;
        s = io_gguf_open(f, err);
    }
    if (s) {
        io_close(f);
        return s;
    }
    *out = f;
    return INGLE_OK;
}

ingle_status io_open_head(struct io_file **out, const char *name, char *head, uint64_t n_bytes,
                          const struct io_planned *planned, const struct report_sink *sink,
                          struct err *err)
{
    struct io_file *f;
    struct io_part *p = NULL;
    ingle_status s = container_create(&f, name, sink, err);
    if (s) {
        mem_free(head);
        return s;
    }
    f->head = head;
    f->planned = *planned;
    s = io_part_new(f, name, &p, err);
    if (!s) {
        p->map = head;
        p->n_bytes = n_bytes;
        s = io_gguf_open(f, err);
    }
    if (s)
        io_close(f);
    else
        *out = f;
    return s;
}

enum io_kind io_kind(const struct io_file *f)
{
    return f->kind;
}

const char *io_path(const struct io_file *f)
{
    return f->path;
}

uint64_t io_size(const struct io_file *f)
{
    uint64_t n = 0;
    for (size_t i = 0; i < f->n_parts; i++)
        n += f->part[i].n_bytes;
    return n;
}

const struct io_meta *io_metadata(const struct io_file *f)
{
    return f->meta;
}

size_t io_n_tensors(const struct io_file *f)
{
    return f->n_tensors;
}

const struct io_tensor *io_tensor_at(const struct io_file *f, size_t i)
{
    return i < f->n_tensors ? &f->tensor[i] : NULL;
}

size_t io_n_files(const struct io_file *f)
{
    return f->n_parts && f->part[0].fd < 0 ? 0 : f->n_parts;
}

bool io_stamp(const struct io_file *f, size_t i, struct io_stamp *out)
{
    struct stat st;
    if (i >= io_n_files(f) || fstat(f->part[i].fd, &st) != 0 ||
        (uint64_t)st.st_size != f->part[i].n_bytes)
        return false;
    *out = (struct io_stamp){f->part[i].n_bytes,         (uint64_t)st.st_ino,
                             (int64_t)st.st_mtim.tv_sec, (int64_t)st.st_mtim.tv_nsec,
                             (int64_t)st.st_ctim.tv_sec, (int64_t)st.st_ctim.tv_nsec};
    return true;
}

static uint64_t owner_of(const struct stat *st)
{
    return (uint64_t)st->st_uid << 32 | (uint64_t)st->st_gid;
}

void io_part_stat(struct io_part *p)
{
    struct stat st;
    if (fstat(p->fd, &st) != 0)
        return;
    p->links = (uint64_t)st.st_nlink;
    p->owner = owner_of(&st);
    p->mode = (uint32_t)st.st_mode;
}

bool io_is_as(const struct io_file *f, size_t i, const struct io_stamp *was)
{
    struct io_stamp now;
    struct stat st, named;
    if (!io_stamp(f, i, &now) || now.inode != was->inode || now.n_bytes != was->n_bytes ||
        now.mtime_s != was->mtime_s || now.mtime_ns != was->mtime_ns)
        return false;
    if (now.ctime_s == was->ctime_s && now.ctime_ns == was->ctime_ns)
        return true;
    const struct io_part *p = &f->part[i];
    if (fstat(p->fd, &st) != 0)
        return false;
    const bool moved =
        stat(p->path, &named) != 0 || named.st_ino != st.st_ino || named.st_dev != st.st_dev;
    return moved || p->links != (uint64_t)st.st_nlink || p->owner != owner_of(&st) ||
           p->mode != (uint32_t)st.st_mode;
}

ingle_status io_read(const struct io_file *f, const struct io_tensor *t, uint64_t offset, void *dst,
                     size_t n, struct err *err)
{
    const struct io_part *p = &f->part[t->file];
    if (f->planned.read)
        return f->planned.read(f->planned.arg, t, offset, dst, n, err);
    if (offset > t->n_bytes || n > t->n_bytes - offset)
        return err_set(err, INGLE_ARG, "%s: tensor '%s': %zu bytes at %llu of %llu", p->path,
                       t->name, n, (unsigned long long)offset, (unsigned long long)t->n_bytes);
    if (p->fd >= 0)
        return file_read_at(p->fd, p->path, t->offset + offset, dst, n, err);
    if (n)
        memcpy(dst, (const char *)p->map + t->offset + offset, n);
    return INGLE_OK;
}

void io_will_read(const struct io_file *f, const struct io_tensor *t, uint64_t offset, uint64_t n)
{
    const struct io_part *p = &f->part[t->file];
    if (p->fd < 0 || offset >= t->n_bytes)
        return;
    n = n < t->n_bytes - offset ? n : t->n_bytes - offset;
    (void)posix_fadvise(p->fd, (off_t)(t->offset + offset), (off_t)n, POSIX_FADV_WILLNEED);
}

const void *io_mapped(const struct io_file *f, const struct io_tensor *t)
{
    const struct io_part *p = &f->part[t->file];
    return p->map && !f->planned.read ? (const char *)p->map + t->offset : NULL;
}

ingle_status io_side_file(const struct io_file *f, const char *name, size_t limit, char **out,
                          size_t *n, struct err *err)
{
    struct stat st;
    struct str path;
    if (f->n_parts && f->part[0].fd < 0)
        return err_set(err, INGLE_NOTFOUND, "%s: is in memory and has no '%s' beside it", f->path,
                       name);
    str_init(&path);
    str_adds(&path, f->path);
    if (stat(f->path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        const char *slash = strrchr(f->path, '/');
        str_clear(&path);
        str_add(&path, f->path, slash ? (size_t)(slash - f->path) : 0);
        if (!slash)
            str_addc(&path, '.');
    }
    str_addf(&path, "/%s", name);
    ingle_status s = str_ok(&path) ? file_slurp(path.at, limit, out, n, err)
                                   : err_set(err, INGLE_NOMEM, "%s: no memory for a path", f->path);
    str_release(&path);
    if (!s && io_is_lfs_pointer(*out, *n)) {
        s = err_set(err, INGLE_FORMAT,
                    "%s: '%s' is a pointer of git-LFS, not the file: run 'git lfs pull'", f->path,
                    name);
        mem_free(*out);
    }
    return s;
}
