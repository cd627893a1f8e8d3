/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "kv/store_file.h"

#include "base/file.h"
#include "base/bug.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/output.h"
#include "kv/key.h"
#include "kv/media.h"
#include "kv/timeline.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    PIECE_BYTES = 1 << 20,  /* written at once; others may use disk and processor between two */
    SYNC_BYTES = 32 << 20,  /* no sync has to wait for more than this */
    PIECE_PAGES = 64,
    LENGTH_BITS = 40,
    STALE_S = 60, /* a temporary file older than this without a writer is nobody's */
};
static const char magic[8] = {'i', 'n', 'g', 'l', 'e', ' ', 'k', 'v'};

void kv_file_settings(struct kv_file_header *h, const char *settings, bool drafter)
{
    const struct kv_name sparse = kv_sparse_name(h->sparse);
    char text[128];
    snprintf(text, sizeof text, "%s%s%s%s", settings, h->sparse ? "+" : "", sparse.at,
             drafter ? " drafter" : "");
    snprintf(h->settings, sizeof h->settings, "%.*s", (int)sizeof h->settings - 1, text);
    const size_t here = strlen(h->settings), most = sizeof h->model - 2, more = strlen(text) - here;
    const size_t left = more < most ? more : most,
                 name_now = strnlen(h->model, sizeof h->model - 1);
    const size_t name = name_now < most - left ? name_now : most - left;
    if (!left)
        return;
    memset(h->model + name, 0, sizeof h->model - name);
    memcpy(h->model + name + 1, text + here, left);
}

struct kv_file_texts kv_file_texts(const struct kv_file_header *h)
{
    struct kv_file_texts t = {{0}, {0}};
    const size_t name = strnlen(h->model, sizeof h->model - 1),
                 here = strnlen(h->settings, sizeof h->settings - 1);
    memcpy(t.model, h->model, name);
    memcpy(t.settings, h->settings, here);
    if (here == sizeof h->settings - 1 && name < sizeof h->model - 1)
        memcpy(t.settings + here, h->model + name + 1,
               strnlen(h->model + name + 1, sizeof h->model - 1 - name));
    return t;
}

struct kv_key kv_file_header_sum(const struct kv_file_header *h)
{
    struct kv_file_header copy = *h;
    copy.sum = (struct kv_key){0, 0};
    return kv_sum(&copy, sizeof copy);
}

int64_t kv_file_first(const struct kv_spec *s, uint32_t g, int64_t from, int64_t length)
{
    return s->group[g].window ? kv_timeline_first(s, g, length) : from / KV_PAGE;
}

bool kv_file_pages(const struct kv_spec *s, int64_t from, int64_t length, uint64_t *n_pages,
                   uint64_t *n_bytes)
{
    uint64_t pages = 0, bytes = 0, b;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const uint64_t n =
            (uint64_t)(num_div_up(length, KV_PAGE) - kv_file_first(s, g, from, length));
        pages += n;
        if (!num_mul_u64(n, s->group[g].page_bytes, &b) || !num_add_u64(bytes, b, &bytes))
            return false;
    }
    *n_pages = pages;
    *n_bytes = bytes;
    return true;
}

/* Bytes of the meta part; false: no such number. */
static bool meta_bytes(const struct kv_file_header *h, size_t *spans_at, size_t *sums_at,
                       size_t *mark_at, size_t *out)
{
    size_t n, sums, end;
    if (!num_mul((size_t)(h->n_tokens - h->from), sizeof(int32_t), &n) || !num_align(n, 8, &n))
        return false;
    *spans_at = n;
    if (!num_add(n, h->n_spans * sizeof(struct kv_media_span), &n) ||
        !num_mul(h->n_pages, sizeof(struct kv_key), &sums) || !num_add(n, sums, &sums) ||
        !num_add(sums, h->mark_bytes, &end) || !num_add(end, sizeof *h, &end) ||
        !num_align(end, KV_FILE_ALIGN, &end))
        return false;
    *sums_at = n;
    *mark_at = sums;
    *out = end - sizeof *h;
    return true;
}

static ingle_status file_errno(struct err *err, const char *name, const char *what)
{
    const int e = errno;
    ingle_status s = INGLE_IO;
    if (e == ENOENT || e == ESTALE) /* the second one: of another machine's directory */
        s = INGLE_NOTFOUND;
    else if (e == ENOSPC || e == EDQUOT || e == EFBIG)
        s = INGLE_LIMIT;
    else if (e == ENOMEM)
        s = INGLE_NOMEM;
    return err_set(err, s, "%s: %s: %s", name, what, strerror(e));
}

/* ---- writing ---- */

bool kv_file_is_temporary(const char *name)
{
    const size_t n = strlen(name);
    return strncmp(name, ".ingle-", 7) == 0 && n > 4 && strcmp(name + n - 4, ".tmp") == 0;
}

/* The writer holds a lock as long as it lives, from the moment after it made the file. */
void kv_file_remove_stale(int dir, const char *name, int64_t now)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || now - (int64_t)st.st_mtime < STALE_S)
        return;
    /* NFS locks only what is open for writing */
    const int fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        (void)unlinkat(dir, name, 0);
    close(fd);
}

static int temporary_open(int dir, char *name, size_t n_name)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    int fd = -1;
    for (unsigned i = 0; i < 64 && fd < 0; i++) {
        snprintf(name, n_name, ".ingle-%ld-%llx.tmp", (long)getpid(),
                 (unsigned long long)t.tv_nsec + i);
        fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    return fd;
}

/* The first of the n pieces that are still to be moved, after `moved` bytes of them. */
static void pass(struct iovec **v, int *n, size_t moved)
{
    while (*n && moved >= (*v)->iov_len) {
        moved -= (*v)->iov_len;
        ++*v;
        --*n;
    }
    if (*n) {
        (*v)->iov_base = (char *)(*v)->iov_base + moved;
        (*v)->iov_len -= moved;
    }
}

static ingle_status write_pieces(int fd, const char *name, struct iovec *v, int n, uint64_t at,
                                 struct err *err)
{
    while (n) {
        const ssize_t put = pwritev(fd, v, n, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return file_errno(err, name, "cannot write");
        at += (uint64_t)put;
        pass(&v, &n, (size_t)put);
    }
    return INGLE_OK;
}

static struct iovec piece(const void *at, size_t n)
{
    union {
        const void *in;
        void *out;
    } p = {.in = at}; /* pwritev() only reads */
    return (struct iovec){p.out, n};
}

/* Pages that are not in memory come one at a time. */
struct fetched {
    uint8_t *at;
    size_t cap;
};

static ingle_status fetch(const struct kv_file_out *o, uint64_t i, struct fetched *f,
                          struct err *err)
{
    if (f->cap < o->page_bytes[i]) {
        mem_big_free(f->at, f->cap);
        f->cap = 0;
        if (!(f->at = mem_big_alloc(o->page_bytes[i])))
            return err_set(err, INGLE_NOMEM, "no %zu bytes for a page", o->page_bytes[i]);
        f->cap = o->page_bytes[i];
    }
    return o->fetch(o->fetch_arg, i, f->at, err);
}

static ingle_status write_pages(int fd, const char *name, const struct kv_file_out *o,
                                struct kv_key *sum, struct fetched *f, struct err *err)
{
    uint64_t at = sizeof o->head + o->head.meta_bytes, unsynced = 0;
    for (uint64_t i = 0; i < o->head.n_pages;) {
        struct iovec v[PIECE_PAGES];
        int n = 0;
        uint64_t bytes = 0;
        ingle_status s = INGLE_OK;
        for (bool one_page = false;
             i < o->head.n_pages && n < PIECE_PAGES && bytes < PIECE_BYTES && !one_page; i++, n++) {
            one_page = !o->page[i];
            if (one_page && n)
                break;
            if (one_page && (s = fetch(o, i, f, err)))
                return s;
            const uint8_t *page = one_page ? f->at : o->page[i];
            v[n] = piece(page, o->page_bytes[i]);
            sum[i] = kv_sum(page, o->page_bytes[i]);
            bytes += o->page_bytes[i];
        }
        if (o->stop && o->stop(o->arg))
            return err_set(err, INGLE_CANCEL, "%s: cancelled", name);
        s = write_pieces(fd, name, v, n, at, err);
        if (s)
            return s;
        at += bytes;
        unsynced += bytes;
        if (unsynced < SYNC_BYTES)
            continue;
        unsynced = 0;
        if (fdatasync(fd) != 0)
            return file_errno(err, name, "cannot sync");
    }
    return INGLE_OK;
}

/* Whether token i begins a medium: the next one's index is not 0. */
static bool begins_span(const struct kv_file_out *o, int64_t i)
{
    return o->media && o->token[i] < 0 &&
           (i == 0 || o->token[i - 1] != (int64_t)o->token[i] - 1 ||
            !kv_media_index(o->token[i]));
}

/* False: more than a file can have. */
static bool count_spans(struct kv_file_out *o)
{
    int64_t n = 0;
    for (int64_t i = 0; o->media && i < o->head.n_tokens - o->head.from; i++)
        n += begins_span(o, i);
    o->head.n_spans = (uint16_t)n;
    return n <= UINT16_MAX;
}

static void put_spans(const struct kv_file_out *o, int32_t *token, struct kv_media_span *span)
{
    struct kv_media_span *s = span - 1;
    for (int64_t i = 0; i < o->head.n_tokens - o->head.from; i++) {
        if (begins_span(o, i)) {
            struct kv_medium of = {{0}, 0, 0};
            (void)kv_media_of(o->media, kv_media_number(o->token[i]), &of);
            *++s = (struct kv_media_span){
                .start = o->head.from + i, .kind = of.kind, .token = of.token};
            memcpy(s->id, of.id, sizeof s->id);
        }
        if (o->token[i] >= 0)
            continue;
        s->n++;
        token[i] = -1;
    }
}

static ingle_status write_all(int fd, const char *name, struct kv_file_out *o, struct err *err)
{
    struct kv_file_header *h = &o->head;
    size_t spans_at, sums_at, mark_at, n_meta;
    if (!count_spans(o) || !meta_bytes(h, &spans_at, &sums_at, &mark_at, &n_meta))
        return err_set(err, INGLE_LIMIT, "%s: %lld tokens are too many for a file", name,
                       (long long)h->n_tokens);
    uint8_t *meta = mem_calloc(n_meta, 1);
    if (!meta)
        return err_set(err, INGLE_NOMEM, "%s: no %zu bytes to write it", name, n_meta);
    memcpy(h->magic, magic, sizeof magic);
    h->version = h->n_spans ? KV_FILE_VERSION : KV_FILE_PLAIN;
    h->endian = KV_FILE_ENDIAN;
    h->created = (int64_t)time(NULL);
    h->meta_bytes = n_meta;
    h->file_bytes = sizeof *h + n_meta;
    for (uint64_t i = 0; i < h->n_pages; i++)
        h->file_bytes += o->page_bytes[i];
    struct fetched f = {NULL, 0};
    const ingle_status pages =
        write_pages(fd, name, o, (struct kv_key *)(void *)(meta + sums_at), &f, err);
    mem_big_free(f.at, f.cap);
    ingle_status s = pages;
    if (!s) {
        if (h->n_tokens > h->from)
            memcpy(meta, o->token, (size_t)(h->n_tokens - h->from) * sizeof *o->token);
        if (h->n_spans)
            put_spans(o, (int32_t *)(void *)meta,
                      (struct kv_media_span *)(void *)(meta + spans_at));
        if (h->mark_bytes)
            memcpy(meta + mark_at, o->mark, h->mark_bytes);
        h->meta_sum = kv_sum(meta, n_meta);
        h->sum = kv_file_header_sum(h);
        struct iovec v[2] = {{h, sizeof *h}, {meta, n_meta}};
        s = write_pieces(fd, name, v, 2, 0, err);
    }
    if (!s && fdatasync(fd) != 0)
        s = file_errno(err, name, "cannot sync");
    mem_free(meta);
    return s;
}

ingle_status kv_file_write(int dir, const char *name, struct kv_file_out *o, struct err *err)
{
    char tmp[64];
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode) &&
        !S_ISLNK(st.st_mode))
        return err_set(err, INGLE_ARG, "%s: no regular file, it is not replaced", name);
    const enum output_kind is = output_kind_at(dir, name);
    if (is != OUTPUT_EMPTY && is != OUTPUT_SESSION)
        return err_set(
            err, INGLE_ARG,
            "%s: is there, is %s and not %s, and stays: choose another name, or remove it", name,
            output_kind_name(is), output_kind_name(OUTPUT_SESSION));
    const int fd = temporary_open(dir, tmp, sizeof tmp);
    if (fd < 0)
        return file_errno(err, name, "cannot create a file beside it");
    (void)flock(fd, LOCK_EX | LOCK_NB);
    struct file_limit limit;
    file_limit_hold(&limit);
    ingle_status s = write_all(fd, name, o, err);
    file_limit_drop(&limit);
    if (!s && renameat(dir, tmp, dir, name) != 0)
        s = file_errno(err, name, "cannot rename into place");
    if (s)
        (void)unlinkat(dir, tmp, 0);
    if (close(fd) != 0 && !s)
        s = file_errno(err, name, "cannot close");
    if (!s)
        (void)fsync(dir); /* some file systems cannot: the file itself is on disk */
    return s;
}

/* ---- reading ---- */

static ingle_status damaged(const struct kv_file *f, struct err *err, const char *what)
{
    return err_set(err, INGLE_FORMAT, "%s: damaged: %s", f->name, what);
}

static ingle_status read_at(const struct kv_file *f, void *to, size_t n, uint64_t at,
                            struct err *err)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = pread(f->fd, (char *)to + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return file_errno(err, f->name, "cannot read");
        if (!got)
            return damaged(f, err, "it ends too early");
        done += (size_t)got;
    }
    return INGLE_OK;
}

static ingle_status check_header(const struct kv_file *f, uint64_t n_bytes, struct err *err)
{
    const struct kv_file_header *h = &f->head;
    const int64_t most = INT64_C(1) << LENGTH_BITS;
    size_t spans_at, sums_at, mark_at, n_meta;
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return damaged(f, err, "it does not begin as a file of keys and values");
    if (h->endian != KV_FILE_ENDIAN)
        return err_set(err, INGLE_UNSUP, "%s: written with another byte order", f->name);
    if (h->version != KV_FILE_VERSION && h->version != KV_FILE_PLAIN)
        return err_set(err, INGLE_UNSUP, "%s: version %u, this program knows %d", f->name,
                       h->version, KV_FILE_VERSION);
    if (!kv_key_equal(h->sum, kv_file_header_sum(h)))
        return damaged(f, err, "the checksum of its header does not fit");
    if (h->from < 0 || h->from > h->length || h->length > h->n_tokens || h->n_tokens > most ||
        h->n_groups < 1 || h->n_groups > KV_MAX_GROUPS ||
        !h->n_spans != (h->version == KV_FILE_PLAIN) || h->model[sizeof h->model - 1] ||
        h->settings[sizeof h->settings - 1])
        return damaged(f, err, "its header has impossible values");
    if (h->file_bytes != n_bytes)
        return err_set(err, INGLE_FORMAT, "%s: damaged: has %llu bytes, should have %llu", f->name,
                       (unsigned long long)n_bytes, (unsigned long long)h->file_bytes);
    if (!meta_bytes(h, &spans_at, &sums_at, &mark_at, &n_meta) || n_meta != h->meta_bytes ||
        n_meta > n_bytes - sizeof *h)
        return damaged(f, err, "the sizes in its header contradict each other");
    return INGLE_OK;
}

ingle_status kv_file_open(struct kv_file *f, int dir, const char *name, struct err *err)
{
    struct stat st;
    *f = (struct kv_file){.name = name};
    f->fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (f->fd < 0) {
        if (errno == ELOOP)
            return err_set(err, INGLE_FORMAT, "%s: a symbolic link", name);
        return file_errno(err, name, "cannot open");
    }
    ingle_status s = INGLE_OK;
    if (fstat(f->fd, &st) != 0)
        s = file_errno(err, name, "cannot stat");
    else if (!S_ISREG(st.st_mode))
        s = err_set(err, INGLE_FORMAT, "%s: no regular file", name);
    else
        s = read_at(f, &f->head, sizeof f->head, 0, err);
    if (!s)
        s = check_header(f, (uint64_t)st.st_size, err);
    if (s)
        kv_file_close(f);
    return s;
}

void kv_file_close(struct kv_file *f)
{
    mem_free(f->meta);
    f->meta = NULL;
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

/* Each is whole, ascending, and where tokens are -1, and there alone. */
static bool spans_fit(const struct kv_file_header *h, const int32_t *token,
                      const struct kv_media_span *s)
{
    int64_t at = h->from, n = 0;
    for (int64_t i = 0; i < h->n_tokens - h->from; i++)
        n += token[i] < 0;
    for (uint16_t i = 0; i < h->n_spans; i++, s++) {
        if (s->start < at || s->n < 1 || s->n > KV_MEDIUM_MOST || s->token < 0 ||
            s->start > h->n_tokens - s->n)
            return false;
        at = s->start + s->n;
        n -= s->n;
        for (int64_t k = s->start; k < at; k++)
            if (token[k - h->from] != -1)
                return false;
    }
    return n == 0;
}

void kv_file_find_keys(const struct kv_file *f, struct kv_media *m)
{
    for (uint16_t i = 0; i < f->head.n_spans; i++) {
        const struct kv_media_span *s = &f->span[i];
        const int32_t number = kv_media_find(m, s->id);
        for (int64_t k = 0; k < s->n; k++)
            f->token[s->start - f->head.from + k] =
                number < 0 ? kv_media_unknown(k) : kv_media_key(number, k);
    }
}

ingle_status kv_file_read_meta(struct kv_file *f, const struct kv_spec *s, struct err *err)
{
    const struct kv_file_header *h = &f->head;
    uint64_t n_pages, n_bytes;
    size_t spans_at, sums_at, mark_at, n_meta;
    if (h->n_groups != s->n_groups || !kv_file_pages(s, h->from, h->length, &n_pages, &n_bytes) ||
        n_pages != h->n_pages || h->file_bytes - sizeof *h - h->meta_bytes != n_bytes)
        return damaged(f, err, "its pages are not those of its tokens");
    BUG_IF(!meta_bytes(h, &spans_at, &sums_at, &mark_at, &n_meta)); /* kv_file_open() */
    uint8_t *meta = mem_alloc(n_meta);
    if (!meta)
        return err_set(err, INGLE_NOMEM, "%s: no %zu bytes to read it", f->name, n_meta);
    ingle_status st = read_at(f, meta, n_meta, sizeof *h, err);
    if (!st && !kv_key_equal(h->meta_sum, kv_sum(meta, n_meta)))
        st = damaged(f, err, "the checksum of its tokens does not fit");
    if (!st && !spans_fit(h, (const int32_t *)(const void *)meta,
                          (const struct kv_media_span *)(const void *)(meta + spans_at)))
        st = damaged(f, err, "its pictures and sounds are not where its tokens are");
    if (st) {
        mem_free(meta);
        return st;
    }
    f->meta = meta;
    f->token = (int32_t *)(void *)meta;
    f->span = (const struct kv_media_span *)(const void *)(meta + spans_at);
    f->page_sum = (const struct kv_key *)(const void *)(meta + sums_at);
    f->mark = meta + mark_at;
    return INGLE_OK;
}

static ingle_status read_pieces(const struct kv_file *f, struct iovec *v, int n, uint64_t at,
                                struct err *err)
{
    while (n) {
        const ssize_t got = preadv(f->fd, v, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return file_errno(err, f->name, "cannot read");
        if (!got)
            return damaged(f, err, "it ends too early");
        at += (uint64_t)got;
        pass(&v, &n, (size_t)got);
    }
    return INGLE_OK;
}

ingle_status kv_file_read_pages(const struct kv_file *f, const struct kv_spec *s, uint64_t first,
                                uint64_t n, uint8_t *const *to, struct err *err)
{
    const struct kv_file_header *h = &f->head;
    uint64_t at = sizeof *h + h->meta_bytes, i = 0;
    struct iovec v[PIECE_PAGES];
    int n_v = 0;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const size_t page_bytes = s->group[g].page_bytes;
        const int64_t begin = kv_file_first(s, g, h->from, h->length);
        for (int64_t k = begin; k < num_div_up(h->length, KV_PAGE); k++, i++) {
            const bool wanted = i >= first && i < first + n && to[i - first];
            if ((!wanted || n_v == PIECE_PAGES) && n_v) {
                uint64_t bytes = 0;
                for (int j = 0; j < n_v; j++)
                    bytes += v[j].iov_len;
                const ingle_status st = read_pieces(f, v, n_v, at - bytes, err);
                if (st)
                    return st;
                n_v = 0;
            }
            if (wanted)
                v[n_v++] = (struct iovec){to[i - first], page_bytes};
            at += page_bytes;
        }
    }
    uint64_t bytes = 0;
    for (int j = 0; j < n_v; j++)
        bytes += v[j].iov_len;
    return n_v ? read_pieces(f, v, n_v, at - bytes, err) : INGLE_OK;
}

bool kv_file_page_good(const struct kv_file *f, uint64_t i, const void *at, size_t n)
{
    return kv_key_equal(f->page_sum[i], kv_sum(at, n));
}
