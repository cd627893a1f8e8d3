/* SPDX-License-Identifier: Apache-2.0 */
/* cache - the directory of packed weights: one is mapped, one is written, old ones go. */
#define _GNU_SOURCE
#include "model/packed.h"
#include "model/packed_write.h"

#include "base/file.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/size.h"
#include "base/str.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY /* the state of a hash on the stack */
#include <xxhash.h>

enum {
    PIECE = 4 << 20,       /* written at once; a stop is noticed between two */
    FLUSH = 64 << 20,      /* the disk begins to work after so much */
    FREE_SHARE = 10,       /* this part of a file system stays free, ... */
    FREE_FILES = 16,       /* ... or so many times the file: a small one cannot hurt; */
    FREE_BYTES = 1 << 30,  /* or this, where the user has said what the files may take */
};

static const char temporary[] = ".tmp";

static bool is_temporary(const char *name)
{
    char whole[PACKED_NAME_BYTES];
    const size_t n = strlen(name);
    if (n <= 4 || n - 4 >= sizeof whole || strcmp(name + n - 4, temporary) != 0)
        return false;
    memcpy(whole, name, n - 4);
    whole[n - 4] = 0;
    return model_packed_is_name(whole);
}

static ingle_status open_dir(const char *path, int *out, struct err *err)
{
    *out = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*out >= 0)
        return INGLE_OK;
    return err_set(err, errno == ENOENT ? INGLE_NOTFOUND : INGLE_IO,
                   "%s: cannot open the directory: %s", path, strerror(errno));
}

/* Whether a process has it open: it then holds a shared lock, a writer one of its own. */
static bool in_use(int dir, const char *name)
{
    const int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    const bool used = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return used;
}

/* ---- marks of damage ---- */

static const char mark[] = ".bad";

static bool is_mark(const char *name)
{
    char whole[PACKED_NAME_BYTES];
    const size_t n = strlen(name), end = sizeof mark - 1;
    if (n <= end || n - end >= sizeof whole || strcmp(name + n - end, mark) != 0)
        return false;
    memcpy(whole, name, n - end);
    whole[n - end] = 0;
    return model_packed_is_name(whole);
}

bool model_packed_mark(const struct packed_file *f)
{
    char path[PATH_MAX], text[32];
    struct stat st;
    if (!f->path || snprintf(path, sizeof path, "%s%s", f->path, mark) >= (int)sizeof path ||
        fstat(f->fd, &st) != 0)
        return false;
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return false;
    const int n = snprintf(text, sizeof text, "%llu\n", (unsigned long long)st.st_ino);
    const bool ok = write(fd, text, (size_t)n) == n;
    close(fd);
    return ok;
}

static void unmark(int dir, const char *name)
{
    char whole[PACKED_NAME_BYTES + sizeof mark];
    snprintf(whole, sizeof whole, "%.47s%s", name, mark);
    (void)unlinkat(dir, whole, 0);
}

/* Whether there is a mark of this very file, and not of one that had its name. */
static bool is_marked(int dir, const char *name, int file)
{
    char whole[PACKED_NAME_BYTES + sizeof mark], text[32] = "";
    struct stat st;
    snprintf(whole, sizeof whole, "%.47s%s", name, mark);
    const int fd = openat(dir, whole, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    const bool read_it = read(fd, text, sizeof text - 1) > 0;
    close(fd);
    return read_it && fstat(file, &st) == 0 &&
           strtoull(text, NULL, 10) == (unsigned long long)st.st_ino;
}

/* ---- finding ---- */

static bool fits(const struct packed_file *f, const struct packed_want *w)
{
    const struct packed_header *a = &f->head, *b = &w->head;
    return a->n_matrices == b->n_matrices && a->n_sources == b->n_sources &&
           a->image_at == b->image_at && a->image_bytes == b->image_bytes &&
           a->dense_bytes == b->dense_bytes && a->n_groups == b->n_groups &&
           a->n_extents == b->n_extents && a->key.lo == b->key.lo && a->key.hi == b->key.hi &&
           memcmp(f->matrix, w->matrix, a->n_matrices * sizeof *w->matrix) == 0 &&
           memcmp(f->group, w->group, a->n_groups * sizeof *w->group) == 0 &&
           memcmp(f->source, w->source, a->n_sources * sizeof *w->source) == 0;
}

static ingle_status map_image(struct packed_file *f, const char *name, size_t n, const void **image,
                              struct err *err)
{
    const size_t align = (size_t)model_packed_align(f->head.image_bytes);
    uint8_t *space =
        mmap(NULL, n + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return err_set(err, INGLE_IO, "%s: no addresses for %zu bytes: %s", name, n,
                       strerror(errno));
    const size_t before = (align - (uintptr_t)space % align) % align;
    const size_t end = (before + n + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
    uint8_t *at =
        mmap(space + before, n, PROT_READ, MAP_SHARED | MAP_FIXED, f->fd, (off_t)f->head.image_at);
    if (at == MAP_FAILED) {
        const int why = errno;
        munmap(space, n + align);
        return err_set(err, INGLE_IO, "%s: cannot map %zu bytes: %s", name, n, strerror(why));
    }
    if (before)
        munmap(space, before);
    if (end < n + align)
        munmap(space + end, n + align - end);
    /* What is not in the cache yet comes in huge pages where the file system can. */
    (void)madvise(at, n, MADV_HUGEPAGE);
    *image = at;
    return INGLE_OK;
}

ingle_status model_packed_map(const char *path, const struct packed_want *w,
                              const struct report_sink *sink, uint64_t n, struct packed_file *file,
                              const void **image, struct err *err)
{
    char name[PACKED_NAME_BYTES];
    int dir;
    struct err why;
    model_packed_name(name, w->head.key);
    ingle_status s = open_dir(path, &dir, err);
    if (s)
        return INGLE_NOTFOUND;
    s = model_packed_open(file, dir, name, &why);
    if (!s && !fits(file, w)) {
        s = err_set(&why, INGLE_FORMAT, "%s: damaged: its weights do not belong to its name", name);
        model_packed_close(file);
    }
    if (!s && is_marked(dir, name, file->fd)) {
        s = err_set(&why, INGLE_FORMAT,
                    "%s: damaged: a process that used it read an expert whose checksum was wrong",
                    name);
        model_packed_close(file);
    }
    if (!s) {
        struct str whole;
        str_init(&whole);
        str_addf(&whole, "%s/%s", path, name);
        file->path = str_ok(&whole) ? str_detach(&whole) : NULL;
        str_release(&whole);
        if (!file->path)
            s = err_set(&why, INGLE_NOMEM, "%s: no memory for its path", name);
    }
    if (!s) {
        s = map_image(file, name, (size_t)n, image, &why);
        if (s)
            model_packed_close(file);
        else
            (void)!futimens(file->fd, NULL); /* the time of its last use; not if it is another's */
    }
    if (s && s != INGLE_NOTFOUND) {
        const bool deleted = s == INGLE_FORMAT && unlinkat(dir, name, 0) == 0;
        if (deleted)
            unmark(dir, name);
        report(sink, INGLE_REPORT_WARN, "packed weights", path,
               "%s; %s the weights are packed again", why.msg,
               deleted ? "it is deleted," : "it is not used,");
        s = err_set(err, INGLE_NOTFOUND, "%s", why.msg);
    } else if (s) {
        s = err_set(err, s, "%s", why.msg);
    }
    close(dir);
    return s;
}

/* ---- room ---- */

/* age: in seconds; what a clock that was ahead has dated is as old as it is in the future. */
struct old { char name[PACKED_NAME_BYTES + 4]; uint64_t bytes; double age; };

static int by_use(const void *a, const void *b)
{
    const struct old *x = a, *y = b;
    return (x->age < y->age) - (x->age > y->age); /* the oldest first */
}

/* Files that may go for this one: the user's own, and nobody uses them.  *kept_bytes: what the
 * others take. */
static struct old *old_files(int dir, const char *own, size_t *n, uint64_t *kept_bytes)
{
    struct old *list = NULL;
    size_t cap = 0;
    const time_t now = time(NULL);
    DIR *d = file_list(dir);
    *n = 0;
    *kept_bytes = 0;
    for (const struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if ((!model_packed_is_name(e->d_name) && !is_temporary(e->d_name)) ||
            strcmp(e->d_name, own) == 0 || fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (st.st_uid != geteuid() || in_use(dir, e->d_name) ||
            !mem_grow(&list, &cap, *n + 1, sizeof *list)) {
            *kept_bytes += (uint64_t)st.st_size;
            continue;
        }
        struct old *o = &list[(*n)++];
        snprintf(o->name, sizeof o->name, "%.51s", e->d_name); /* it is of this length */
        o->bytes = (uint64_t)st.st_blocks * 512;
        o->age = is_temporary(e->d_name) ? DBL_MAX : fabs(difftime(now, st.st_mtime));
    }
    if (d)
        closedir(d);
    if (list)
        qsort(list, *n, sizeof *list, by_use);
    return list;
}

/* Of the same path, but not of the file that is there now, or of another version of ingle. */
static bool outdated(int dir, const char *name, const struct packed_want *w)
{
    struct packed_file f;
    const ingle_status s = model_packed_open(&f, dir, name, NULL);
    if (s)
        return s == INGLE_UNSUP || s == INGLE_FORMAT;
    const bool same = strcmp(f.head.model, w->head.model) == 0;
    model_packed_close(&f);
    return same;
}

static uint64_t free_bytes(int dir, uint64_t *all)
{
    struct statvfs v;
    if (fstatvfs(dir, &v) != 0)
        return *all = UINT64_MAX; /* the write will report it */
    *all = (uint64_t)v.f_blocks * v.f_frsize;
    return (uint64_t)v.f_bavail * v.f_frsize;
}

/* Deletes what has to go for n bytes; INGLE_LIMIT: even that would not be enough. */
static ingle_status make_room(int dir, const char *path, const struct packed_write *w,
                              const char *own, uint64_t n, struct err *err)
{
    size_t n_old;
    uint64_t kept, old_bytes = 0, all;
    struct old *list = old_files(dir, own, &n_old, &kept);
    for (size_t i = 0; i < n_old; i++)
        old_bytes += list[i].bytes;
    const uint64_t left = free_bytes(dir, &all);
    const uint64_t many = n > UINT64_MAX / FREE_FILES ? UINT64_MAX : n * FREE_FILES;
    uint64_t spare = all == UINT64_MAX ? 0 : all / FREE_SHARE < many ? all / FREE_SHARE : many;
    spare = w->o->pack_bytes && spare > FREE_BYTES ? FREE_BYTES : spare;
    const uint64_t budget = w->o->pack_bytes ? w->o->pack_bytes : UINT64_MAX;
    ingle_status s = INGLE_OK;
    char text[4][SIZE_TEXT];
    if (n > budget || kept > budget - n)
        s = err_set(err, INGLE_LIMIT,
                    "%s: %s of packed weights do not fit in the %s that it may take", path,
                    size_text(n, text[0]), size_text(budget, text[1]));
    else if (left != UINT64_MAX && (n > left + old_bytes || left + old_bytes - n < spare))
        s = err_set(err, INGLE_LIMIT,
                    "%s: %s of packed weights would leave less than %s of the file system free "
                    "(%s of %s are)%s",
                    path, size_text(n, text[0]), size_text(spare, text[1]),
                    size_text(left, text[2]), size_text(all, text[3]),
                    w->o->pack_bytes
                        ? ""
                        : "; --pack-cache-size says what they may take, and 1 GiB is left then");
    for (size_t i = 0; !s && i < n_old; i++) {
        const uint64_t now = free_bytes(dir, &all);
        const bool room =
            (now == UINT64_MAX || (now >= n && now - n >= spare)) && kept + old_bytes <= budget - n;
        if (room && !outdated(dir, list[i].name, w->want))
            continue;
        if (unlinkat(dir, list[i].name, 0) != 0)
            continue;
        unmark(dir, list[i].name);
        old_bytes -= list[i].bytes;
        report(w->sink, INGLE_REPORT_NOTE, "packed weights", path, "%s (%s) was deleted: %s",
               list[i].name, SIZE_OF(list[i].bytes),
               room ? "it is outdated" : "it was the least recently used one");
    }
    mem_free(list);
    return s;
}

/* ---- writing ---- */

static ingle_status fail(struct err *err, const char *path, const char *what)
{
    const int e = errno;
    return err_set(err, e == ENOSPC || e == EDQUOT || e == EFBIG ? INGLE_LIMIT : INGLE_IO,
                   "%s: packed weights: %s: %s", path, what, strerror(e));
}

static ingle_status write_at(int fd, const char *path, const void *bytes, size_t n, uint64_t at,
                             struct err *err)
{
    const char *from = bytes;
    while (n) {
        const ssize_t put = pwrite(fd, from, n, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return fail(err, path, "cannot write");
        from += put;
        at += (uint64_t)put;
        n -= (size_t)put;
    }
    return INGLE_OK;
}

/* Past the page cache, or through it.  False: the file system cannot. */
static bool set_direct(int fd, bool on)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* One piece, past the page cache where that goes: what is written is in memory already, or is not
 * wanted there; and the system writes back small pieces, which virtual disks take slowly. */
static ingle_status write_piece(int fd, const char *path, const uint8_t *bytes, size_t n,
                                uint64_t at, bool *direct, struct err *err)
{
    const bool whole = (uintptr_t)bytes % PACKED_ALIGN == 0 && at % PACKED_ALIGN == 0;
    const size_t most = whole ? n / PACKED_ALIGN * PACKED_ALIGN : 0;
    size_t done = 0;
    *direct = *direct && (!most || set_direct(fd, true));
    while (*direct && done < most) {
        const ssize_t put = pwrite(fd, bytes + done, most - done, (off_t)(at + done));
        if (put < 0 && errno == EINTR)
            continue;
        *direct = put > 0 && (size_t)put % PACKED_ALIGN == 0;
        done += put > 0 ? (size_t)put : 0;
    }
    (void)set_direct(fd, false);
    /* and says why nothing more can be written */
    return write_at(fd, path, bytes + done, n - done, at + done, err);
}

/* Writes bytes of the image in pieces; the disk begins to work early. */
static ingle_status write_bytes(int fd, const struct packed_write *w, const uint8_t *bytes,
                                uint64_t n, uint64_t at, bool *direct, struct err *err)
{
    const struct packed_header *h = &w->want->head;
    for (uint64_t k = 0; k < n; k += PIECE) {
        const size_t part = n - k < PIECE ? (size_t)(n - k) : PIECE;
        const ingle_status s =
            write_piece(fd, w->o->pack_dir, bytes + k, part, h->image_at + at + k, direct, err);
        if (s)
            return s;
        if (report_progress(w->sink, "write", (double)(at + k + part), (double)h->image_bytes))
            return err_set(err, INGLE_CANCEL, "writing packed weights was cancelled");
        const uint64_t end = at + k + part;
        if (!*direct && end / FLUSH != (at + k) / FLUSH)
            (void)sync_file_range(fd, (off_t)(h->image_at + (end / FLUSH - 1) * FLUSH), FLUSH,
                                  SYNC_FILE_RANGE_WRITE);
    }
    return INGLE_OK;
}

/* The sums of what is written: of blocks before the experts, of extents. */
struct sums {
    const struct packed_want *w;
    struct packed_sum *block;
    uint64_t *extent;
    XXH3_state_t *state; /* of the block that is not whole yet */
};

static void sum_dense(struct sums *s, const uint8_t *bytes, uint64_t n, uint64_t at)
{
    while (n) {
        const uint64_t room = PACKED_BLOCK - at % PACKED_BLOCK;
        const size_t part = (size_t)(n < room ? n : room);
        if (at % PACKED_BLOCK == 0)
            XXH3_128bits_reset(s->state);
        XXH3_128bits_update(s->state, bytes, part);
        bytes += part;
        n -= part;
        at += part;
        if (at % PACKED_BLOCK == 0 || at == s->w->head.dense_bytes) {
            const XXH128_hash_t sum = XXH3_128bits_digest(s->state);
            s->block[(at - 1) / PACKED_BLOCK] = (struct packed_sum){sum.low64, sum.high64};
        }
    }
}

/* The extents of which the byte `at` of the image is one, or NULL. */
static const struct packed_group *group_of(const struct packed_want *w, uint64_t at)
{
    for (uint32_t i = 0; i < w->head.n_groups; i++) {
        const struct packed_group *g = &w->group[i];
        if (at >= g->at && at - g->at < (uint64_t)g->n * g->bytes)
            return g;
    }
    return NULL;
}

static void sum_extents(struct sums *s, const uint8_t *bytes, uint64_t n, uint64_t at)
{
    const struct packed_group *g = group_of(s->w, at);
    const uint64_t e = g ? (at - g->at) / g->bytes : 0, left = g ? (uint64_t)g->n - e : 0;
    for (uint64_t i = 0; i < left && (i + 1) * g->bytes <= n; i++)
        s->extent[g->first + e + i] = XXH3_64bits(bytes + i * g->bytes, (size_t)g->bytes);
}

/* What is written next, from `at` on. */
static uint64_t next_piece(const struct packed_write *w, uint64_t at)
{
    enum { SOME = 64 << 20 };
    const uint64_t n = model_packed_piece(w->want, at);
    const struct packed_group *g = w->few_extents ? group_of(w->want, at) : NULL;
    if (!g)
        return n;
    const uint64_t end = g->at + (uint64_t)g->n * g->bytes, left = end - at,
                   some = g->bytes < SOME ? SOME / g->bytes * g->bytes : g->bytes;
    return some < left ? some : n;
}

static ingle_status write_image(int fd, const struct packed_write *w, struct sums *sums,
                                struct err *err)
{
    const struct packed_header *h = &w->want->head;
    bool direct = true; /* until it does not go */
    for (uint64_t at = 0, n; at < h->image_bytes; at += n) {
        const void *bytes = NULL;
        n = next_piece(w, at);
        ingle_status s = w->next(w->arg, at, n, &bytes, err);
        if (s)
            return s;
        if (at < h->dense_bytes)
            sum_dense(sums, bytes, n, at);
        else
            sum_extents(sums, bytes, n, at);
        s = write_bytes(fd, w, bytes, n, at, &direct, err);
        if (s)
            return s;
    }
    return INGLE_OK;
}

static ingle_status write_all(int fd, const struct packed_write *w, struct err *err)
{
    const char *path = w->o->pack_dir;
    struct packed_header h = w->want->head;
    const size_t n_m = h.n_matrices * sizeof(struct packed_matrix),
                 n_g = h.n_groups * sizeof(struct packed_group);
    const size_t n_s = h.n_sources * sizeof(struct io_stamp),
                 n_b = h.n_blocks * sizeof(struct packed_sum);
    const size_t n = n_m + n_g + n_s + n_b + h.n_extents * sizeof(uint64_t);
    if (fallocate(fd, 0, 0, (off_t)h.file_bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS &&
        errno != EINVAL)
        return fail(err, path, "cannot reserve space");
    uint8_t *table = mem_zalloc(n);
    if (!table)
        return err_set(err, INGLE_NOMEM, "%s: no memory for the table of packed weights", path);
    memcpy(table, w->want->matrix, n_m);
    memcpy(table + n_m, w->want->group, n_g);
    memcpy(table + n_m + n_g, w->want->source, n_s);
    XXH3_state_t state;
    struct sums sums = {w->want, (struct packed_sum *)(void *)(table + n_m + n_g + n_s),
                        (uint64_t *)(void *)(table + n_m + n_g + n_s + n_b), &state};
    ingle_status s = write_image(fd, w, &sums, err);
    h.model_sum = w->model->sum; /* known when all was read */
    h.table_sum = model_packed_sum_of(table, n);
    h.sum = model_packed_head_sum(&h);
    if (!s)
        s = write_at(fd, path, table, n, sizeof h, err);
    if (!s && ftruncate(fd, (off_t)h.file_bytes) != 0)
        s = fail(err, path, "cannot set the size");
    /* The header comes last: whatever is there before is no file of packed weights. */
    if (!s && fdatasync(fd) != 0)
        s = fail(err, path, "cannot sync");
    if (!s)
        s = write_at(fd, path, &h, sizeof h, 0, err);
    if (!s && fsync(fd) != 0)
        s = fail(err, path, "cannot sync");
    mem_free(table);
    return s;
}

static ingle_status make_dirs(const char *path, struct err *err)
{
    char *p = mem_strdup(path);
    if (!p)
        return err_set(err, INGLE_NOMEM, "%s: no memory", path);
    bool ok = true;
    for (char *at = strchr(p + 1, '/'); ok && at; at = strchr(at + 1, '/')) {
        *at = 0;
        ok = mkdir(p, 0700) == 0 || errno == EEXIST;
        *at = '/';
    }
    ok = ok && (mkdir(p, 0700) == 0 || errno == EEXIST);
    mem_free(p);
    return ok ? INGLE_OK : fail(err, path, "cannot make the directory");
}

/* The temporary file, locked and empty; INGLE_UNSUP: another process is writing it. */
static ingle_status open_temporary(int dir, const char *path, const char *name, int *out,
                                   struct err *err)
{
    struct stat mine, there;
    const int fd = openat(dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fail(err, path, "cannot create a file");
    /* It must still be the one of this name: a writer that was faster has renamed it. */
    ingle_status s = INGLE_OK;
    if (fstat(fd, &mine) != 0)
        s = fail(err, path, "cannot stat a file");
    else if (mine.st_uid != geteuid() || mine.st_nlink > 1 || !S_ISREG(mine.st_mode))
        s = err_set(err, INGLE_UNSUP, "%s: %s is in the way: %s", path, name,
                    mine.st_uid != geteuid() ? "it belongs to another user"
                                             : "it is no file with one name");
    else if (!model_packed_lock(fd, LOCK_EX) ||
             fstatat(dir, name, &there, AT_SYMLINK_NOFOLLOW) != 0 || mine.st_ino != there.st_ino ||
             mine.st_dev != there.st_dev)
        s = err_set(err, INGLE_UNSUP, "%s: another process is writing these packed weights", path);
    if (s) {
        close(fd);
        return s;
    }
    if (ftruncate(fd, 0) != 0) {
        s = fail(err, path, "cannot empty a file");
        close(fd);
        return s;
    }
    *out = fd;
    return INGLE_OK;
}

/* Others who may write there could put names in the way. */
static ingle_status check_dir(int dir, const char *path, struct err *err)
{
    struct stat st;
    if (fstat(dir, &st) != 0)
        return fail(err, path, "cannot stat the directory");
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return err_set(err, INGLE_ARG, "%s: belongs to user %u", path, (unsigned)st.st_uid);
    if (st.st_mode & 022)
        return err_set(err, INGLE_ARG,
                       "%s: others may write to the directory (mode %o); chmod 700 it", path,
                       (unsigned)st.st_mode & 0777);
    return INGLE_OK;
}

static bool unchanged(const struct packed_want *w, const struct model *m)
{
    struct io_stamp now;
    for (uint32_t i = 0; i < w->head.n_sources; i++)
        if (!io_stamp(m->file, i, &now) || memcmp(&now, &w->source[i], sizeof now) != 0)
            return false;
    return true;
}

ingle_status model_packed_write(const struct packed_write *w, struct err *err)
{
    char name[PACKED_NAME_BYTES], tmp[PACKED_NAME_BYTES + 4];
    const char *path = w->o->pack_dir;
    struct stat st;
    int dir, fd = -1;
    model_packed_name(name, w->want->head.key);
    snprintf(tmp, sizeof tmp, "%s%s", name, temporary);
    ingle_status s = make_dirs(path, err);
    if (!s)
        s = open_dir(path, &dir, err);
    if (s)
        return s;
    s = check_dir(dir, path, err);
    if (!s && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        s = err_set(err, INGLE_UNSUP, "%s: %s is there", path, name);
    if (!s)
        s = open_temporary(dir, path, tmp, &fd, err);
    if (s) {
        close(dir);
        return s;
    }
    s = make_room(dir, path, w, tmp, w->want->head.file_bytes, err);
    struct file_limit limit;
    file_limit_hold(&limit);
    if (!s)
        s = write_all(fd, w, err);
    file_limit_drop(&limit);
    if (!s && !unchanged(w->want, w->model))
        s = err_set(err, INGLE_UNSUP, "%s: the model's files changed while they were read", path);
    if (!s && renameat(dir, tmp, dir, name) != 0)
        s = fail(err, path, "cannot rename");
    if (s)
        (void)unlinkat(dir, tmp, 0);
    else
        unmark(dir, name); /* of a file that had this name */
    if (!s)
        (void)!fsync(dir);
    close(fd);
    close(dir);
    return s;
}

/* ---- for people ---- */

static void list_one(int dir, const char *name, bool verify, model_pack_fn *fn, void *arg)
{
    struct stat st;
    struct err why = {0};
    struct packed_file f;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    struct model_pack_entry e = {.name = name,
                                 .model = "",
                                 .bytes = (uint64_t)st.st_size,
                                 .age_s = clock_age((int64_t)st.st_mtime),
                                 .in_use = in_use(dir, name),
                                 .temporary = is_temporary(name)};
    ingle_status s = e.temporary ? INGLE_NOTFOUND : model_packed_open(&f, dir, name, &why);
    if (!s) {
        e.model = f.head.model;
        ingle_status bad = verify ? model_packed_verify(&f, name, &why) : INGLE_OK;
        if (!bad && is_marked(dir, name, f.fd))
            bad = err_set(
                &why, INGLE_FORMAT,
                "%s: damaged: a process that used it read an expert whose checksum was wrong",
                name);
        e.damage = bad ? why.msg : NULL;
    } else if (s != INGLE_NOTFOUND) {
        e.foreign = s == INGLE_UNSUP || s == INGLE_ARG;
        e.damage = why.msg;
    }
    fn(arg, &e);
    if (!s)
        model_packed_close(&f);
}

ingle_status model_pack_list(const char *path, bool verify, model_pack_fn *fn, void *arg,
                             struct err *err)
{
    int dir;
    const ingle_status s = open_dir(path, &dir, err);
    if (s)
        return s;
    DIR *d = file_list(dir);
    for (const struct dirent *e; d && (e = readdir(d));)
        if (model_packed_is_name(e->d_name) || is_temporary(e->d_name))
            list_one(dir, e->d_name, verify, fn, arg);
    if (d)
        closedir(d);
    close(dir);
    return INGLE_OK;
}

ingle_status model_pack_clear(const char *path, int64_t *n_files, uint64_t *n_bytes,
                              struct err *err)
{
    int dir;
    size_t n_foreign = 0;
    *n_files = 0;
    *n_bytes = 0;
    ingle_status s = open_dir(path, &dir, err);
    if (s)
        return s;
    DIR *d = file_list(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (is_mark(e->d_name)) {
            (void)unlinkat(dir, e->d_name, 0);
            continue;
        }
        const bool partial = is_temporary(e->d_name);
        if ((!model_packed_is_name(e->d_name) && !partial) || (partial && in_use(dir, e->d_name)) ||
            fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (st.st_uid != geteuid()) {
            n_foreign++;
        } else if (unlinkat(dir, e->d_name, 0) == 0) {
            *n_files += 1;
            *n_bytes += (uint64_t)st.st_size;
        } else if (!s) {
            s = err_set(err, INGLE_IO, "%s: cannot delete %s: %s", path, e->d_name,
                        strerror(errno));
        }
    }
    if (!s && n_foreign)
        s = err_set(err, INGLE_UNSUP,
                    "%s: %zu files of other users are left (%lld own files were deleted)", path,
                    n_foreign, (long long)*n_files);
    if (d)
        closedir(d);
    close(dir);
    return s;
}
