/* SPDX-License-Identifier: Apache-2.0
 *
 * One file in pieces.  The state beside it is a line with what the file should be, and a byte a
 * piece: '1' when the piece is written.  What the hub sends is believed for its length only; the
 * hash of the whole decides.
 */
#define _GNU_SOURCE
#include "hub/inner.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MOST_TRIES = 4,
    MOST_BUSY = 5,
    MOST_CONNECTIONS = 16,
    HASH_BYTES = 1 << 20,
    ENOUGH = 1 << 16
};
static const uint64_t PIECE = (uint64_t)32 << 20;

/* A piece that is being fetched. */
struct piece {
    struct fetch *of;
    CURL *easy;
    uint64_t number, from, to; /* [from, to) */
    uint64_t at;               /* written up to here */
    uint64_t mark;             /* ... when the tries were counted anew */
    int n_tries;
    int n_busy;    /* answers that the hub is busy, since bytes came */
    bool waits;    /* is begun again at `wake`, ns */
    uint64_t wake;
    double waited; /* s, of HUB_MOST_WAIT_S */
    struct hub_reply reply;
    char why[160]; /* what was wrong with the answer, or "" */
    bool checked;  /* the answer's head */
};

struct fetch {
    const struct hub_options *o;
    const struct hub_file *file;
    char *path, *part, *state, *url;
    int fd, state_fd;
    size_t n_head;
    char *done; /* [n_pieces] '1' or '0' */
    uint64_t n_pieces, piece_bytes, n_done; /* n_done: bytes written by now */
    uint64_t before, all;                   /* of all files, for the progress */
    CURLM *multi;
    struct piece piece[MOST_CONNECTIONS];
    int disk_error;
};

/* ---- what comes ---- */

/* "bytes 5-9/10": whether it is what was requested. */
static size_t on_header(char *bytes, size_t size, size_t n, void *arg)
{
    static const char name[] = "content-range:";
    struct piece *p = arg;
    char text[128];
    const size_t all = size * n;
    unsigned long long from, last, length;
    hub_reply_header(&p->reply, bytes, all);
    if (all < sizeof name || strncasecmp(bytes, name, sizeof name - 1) != 0)
        return all;
    snprintf(text, sizeof text, "%.*s", (int)(all < 120 ? all : 120), bytes);
    p->checked =
        sscanf(text + sizeof name - 1, " bytes %llu-%llu/%llu", &from, &last, &length) == 3 &&
        from == p->at && last + 1 == p->to && length == p->of->file->n_bytes;
    if (!p->checked)
        snprintf(p->why, sizeof p->why, "the server sends another range than was asked for");
    return all;
}

static bool write_all(int fd, const char *bytes, size_t n, uint64_t at)
{
    while (n) {
        const ssize_t k = pwrite(fd, bytes, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        bytes += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
    return true;
}

static size_t on_body(char *bytes, size_t size, size_t n, void *arg)
{
    struct piece *p = arg;
    struct fetch *f = p->of;
    const size_t all = size * n;
    long status = 0;
    (void)curl_easy_getinfo(p->easy, CURLINFO_RESPONSE_CODE, &status);
    const bool whole = status == 200 && p->at == 0 && p->to == f->file->n_bytes;
    if (status >= 400 || (status != 206 && status != 200))
        return hub_reply_text(&p->reply, bytes, all);
    if (status == 200 && !p->checked && hub_is_html(p->reply.type, "", 0)) {
        hub_html(p->why, sizeof p->why, bytes, all);
        return 0;
    }
    if (!whole && !p->checked) {
        if (!p->why[0])
            snprintf(p->why, sizeof p->why, "the server sends no ranges (status %ld)", status);
        return 0;
    }
    if (all > p->to - p->at) {
        snprintf(p->why, sizeof p->why,
                 "the server sends more than the %llu bytes that it announced",
                 (unsigned long long)f->file->n_bytes);
        return 0;
    }
    if (!write_all(f->fd, bytes, all, p->at)) {
        f->disk_error = errno ? errno : EIO;
        return 0;
    }
    p->at += all;
    f->n_done += all;
    if (p->at - p->mark >= ENOUGH) { /* it goes on */
        p->mark = p->at;
        p->n_tries = p->n_busy = 0;
        p->waited = 0;
    }
    return all;
}

/* ---- state ---- */

static uint64_t piece_size(const struct fetch *f, uint64_t i)
{
    const uint64_t from = i * f->piece_bytes, left = f->file->n_bytes - from;
    return left < f->piece_bytes ? left : f->piece_bytes;
}

static ingle_status disk(const struct fetch *f, int e, const char *path, struct err *err)
{
    (void)f;
    return err_set(err, INGLE_IO, "'%s': %s", path, strerror(e));
}

/* What was written before counts if it was of the same file. */
static ingle_status open_state(struct fetch *f, struct err *err)
{
    char head[200], old[200];
    f->n_head = (size_t)snprintf(head, sizeof head, "ingle-pull %llu %s %llu\n",
                                 (unsigned long long)f->file->n_bytes,
                                 f->file->sha256[0] ? f->file->sha256
                                 : f->file->oid[0]  ? f->file->oid
                                                    : "-",
                                 (unsigned long long)f->piece_bytes);
    f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (f->fd < 0)
        return disk(f, errno, f->part, err);
    if (flock(f->fd, LOCK_EX | LOCK_NB))
        return err_set(err, INGLE_IO, "'%s' is being written by another process", f->part);
    f->state_fd = open(f->state, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (f->state_fd < 0)
        return disk(f, errno, f->state, err);
    f->done = mem_alloc(f->n_pieces ? f->n_pieces : 1);
    if (!f->done)
        return err_set(err, INGLE_NOMEM, "no memory for the pieces of '%s'", f->path);
    memset(f->done, '0', f->n_pieces);
    const bool same =
        pread(f->state_fd, old, f->n_head, 0) == (ssize_t)f->n_head &&
        memcmp(old, head, f->n_head) == 0 &&
        pread(f->state_fd, f->done, f->n_pieces, (off_t)f->n_head) == (ssize_t)f->n_pieces;
    if (!same) {
        memset(f->done, '0', f->n_pieces);
        if (ftruncate(f->state_fd, 0) || ftruncate(f->fd, 0) ||
            !write_all(f->state_fd, head, f->n_head, 0) ||
            !write_all(f->state_fd, f->done, f->n_pieces, f->n_head))
            return disk(f, errno, f->state, err);
    }
    for (uint64_t i = 0; i < f->n_pieces; i++)
        f->n_done += f->done[i] == '1' ? piece_size(f, i) : 0;
    return INGLE_OK;
}

static bool take_piece(struct fetch *f, uint64_t number)
{
    f->done[number] = '1';
    if (write_all(f->state_fd, "1", 1, f->n_head + number))
        return true;
    f->disk_error = errno ? errno : EIO;
    return false;
}

/* ---- pieces side by side ---- */

static bool begin(struct fetch *f, struct piece *p)
{
    char range[64];
    p->easy = hub_request(f->o, f->url);
    p->checked = p->waits = false;
    p->why[0] = 0;
    p->reply = (struct hub_reply){.retry_s = -1};
    snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)p->at,
             (unsigned long long)p->to - 1);
    if (p->easy && curl_easy_setopt(p->easy, CURLOPT_RANGE, range) == CURLE_OK &&
        curl_easy_setopt(p->easy, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK &&
        curl_easy_setopt(p->easy, CURLOPT_WRITEDATA, p) == CURLE_OK &&
        curl_easy_setopt(p->easy, CURLOPT_HEADERFUNCTION, on_header) == CURLE_OK &&
        curl_easy_setopt(p->easy, CURLOPT_HEADERDATA, p) == CURLE_OK &&
        curl_easy_setopt(p->easy, CURLOPT_PRIVATE, p) == CURLE_OK &&
        curl_multi_add_handle(f->multi, p->easy) == CURLM_OK)
        return true;
    if (p->easy)
        curl_easy_cleanup(p->easy);
    p->easy = NULL;
    return false;
}

static void end(struct fetch *f, struct piece *p)
{
    if (!p->easy)
        return;
    (void)curl_multi_remove_handle(f->multi, p->easy);
    curl_easy_cleanup(p->easy);
    p->easy = NULL;
}

/* A piece for each connection that has none.  False: out of memory. */
static bool fill(struct fetch *f, uint64_t *next)
{
    const int n = f->o->connections < 1                  ? 1
                  : f->o->connections > MOST_CONNECTIONS ? MOST_CONNECTIONS
                                                         : f->o->connections;
    for (int i = 0; i < n; i++) {
        struct piece *p = &f->piece[i];
        if (p->waits && clock_now() >= p->wake && !begin(f, p))
            return false;
        if (p->easy || p->waits)
            continue;
        while (*next < f->n_pieces && f->done[*next] == '1')
            ++*next;
        if (*next == f->n_pieces)
            return true;
        *p = (struct piece){.of = f, .number = *next};
        p->from = p->at = p->mark = *next * f->piece_bytes;
        p->to = p->from + piece_size(f, *next);
        ++*next;
        if (!begin(f, p))
            return false;
    }
    return true;
}

/* The hub is busy: this piece waits as long as the hub says. */
static ingle_status put_off(struct fetch *f, struct piece *p, long status, struct err *err)
{
    char says[400];
    const double delay = hub_delay(&p->reply, p->n_busy);
    hub_reply_say(&p->reply, status, says, sizeof says);
    if (++p->n_busy >= MOST_BUSY)
        return hub_refuses(f->o, f->file->path, status, says, err);
    if (delay > HUB_MOST_WAIT_S - p->waited)
        return err_set(err, INGLE_IO, "%.150s: the hub answers with %.200s; come again in %.0f s",
                       f->file->path, says, delay);
    if (p->n_busy == 1)
        report(f->o->sink, INGLE_REPORT_NOTE, "hub", f->file->path, "status %ld: again in %.1f s",
               status, delay);
    p->waits = true;
    p->waited += delay;
    p->wake = clock_now() + (uint64_t)(delay * 1e9);
    return INGLE_OK;
}

/* A transfer is over.  INGLE_OK: the piece is there, or is tried again. */
static ingle_status take_end(struct fetch *f, struct piece *p, CURLcode code, struct err *err)
{
    char says[400];
    long status = 0;
    (void)curl_easy_getinfo(p->easy, CURLINFO_RESPONSE_CODE, &status);
    end(f, p);
    if (f->disk_error)
        return disk(f, f->disk_error, f->part, err);
    if (p->at == p->to && code == CURLE_OK)
        return take_piece(f, p->number) ? INGLE_OK : disk(f, f->disk_error, f->state, err);
    if (p->why[0])
        return err_set(err, INGLE_IO, "%.200s: %s", f->file->path, p->why);
    if (hub_is_temporary(status))
        return put_off(f, p, status, err);
    if (status >= 300) {
        hub_reply_say(&p->reply, status, says, sizeof says);
        if (status == 404)
            return err_set(err, INGLE_NOTFOUND, "%.150s: the hub answers with %.300s",
                           f->file->path, says);
        return hub_refuses(f->o, f->file->path, status, says, err);
    }
    if (++p->n_tries < MOST_TRIES)
        return begin(f, p) ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a transfer");
    return err_set(err, INGLE_IO,
                   "%.200s: %s at byte %llu of %llu; the next call goes on from there",
                   f->file->path,
                   code == CURLE_OK || code == CURLE_PARTIAL_FILE ? "the connection ended"
                                                                  : curl_easy_strerror(code),
                   (unsigned long long)p->at, (unsigned long long)f->file->n_bytes);
}

static ingle_status take_ends(struct fetch *f, struct err *err)
{
    int left;
    ingle_status st = INGLE_OK;
    for (CURLMsg *m; !st && (m = curl_multi_info_read(f->multi, &left));) {
        struct piece *p = NULL;
        if (m->msg == CURLMSG_DONE &&
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &p) == CURLE_OK && p)
            st = take_end(f, p, m->data.result, err);
    }
    return st;
}

static bool any_runs(const struct fetch *f)
{
    for (int i = 0; i < MOST_CONNECTIONS; i++)
        if (f->piece[i].easy || f->piece[i].waits)
            return true;
    return false;
}

static ingle_status run(struct fetch *f, struct err *err)
{
    uint64_t next = 0;
    ingle_status st = INGLE_OK;
    while (!st) {
        int running;
        if (!fill(f, &next))
            return err_set(err, INGLE_NOMEM, "no memory for a transfer");
        if (!any_runs(f))
            break;
        if (curl_multi_perform(f->multi, &running) != CURLM_OK ||
            curl_multi_poll(f->multi, NULL, 0, running ? 200 : 50, NULL) != CURLM_OK)
            return err_set(err, INGLE_IO, "%s: libcurl fails", f->file->path);
        if (report_progress(f->o->sink, "pull", (double)(f->before + f->n_done), (double)f->all))
            return err_set(err, INGLE_CANCEL, "interrupted: the next call goes on");
        st = take_ends(f, err);
    }
    return st;
}

/* ---- the whole ---- */

ingle_status hub_hash(const struct hub_options *o, int fd, const char *path, uint64_t n_bytes,
                      char sha256[65], struct err *err)
{
    struct sha256 s;
    uint8_t digest[SHA256_BYTES];
    char *buffer = mem_alloc(HASH_BYTES);
    if (!buffer)
        return err_set(err, INGLE_NOMEM, "no memory to check '%s'", path);
    sha256_init(&s);
    ingle_status st = INGLE_OK;
    for (uint64_t at = 0; at < n_bytes && !st;) {
        const size_t n = n_bytes - at < HASH_BYTES ? (size_t)(n_bytes - at) : HASH_BYTES;
        st = file_read_at(fd, path, at, buffer, n, err);
        if (!st)
            sha256_add(&s, buffer, n);
        at += n;
        if (!st && report_progress(o->sink, "check", (double)at, (double)n_bytes))
            st = err_set(err, INGLE_CANCEL, "interrupted: the next call goes on");
    }
    mem_free(buffer);
    if (st)
        return st;
    sha256_end(&s, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(sha256 + 2 * i, 3, "%02x", digest[i]);
    return INGLE_OK;
}

static ingle_status check_hash(const struct fetch *f, char hex[65], struct err *err)
{
    const ingle_status st = hub_hash(f->o, f->fd, f->part, f->file->n_bytes, hex, err);
    if (st || !f->file->sha256[0] || strcmp(hex, f->file->sha256) == 0)
        return st;
    (void)unlink(f->part);
    (void)unlink(f->state);
    return err_set(
        err, INGLE_FORMAT,
        "%.200s: what came has the SHA-256 %.16s... and the hub promised %.16s...: it was deleted",
        f->file->path, hex, f->file->sha256);
}

static ingle_status finish(struct fetch *f, char sha256[65], struct err *err)
{
    struct stat is;
    const ingle_status st = check_hash(f, sha256, err);
    if (st)
        return st;
    if (fstat(f->fd, &is) || (uint64_t)is.st_size != f->file->n_bytes)
        return err_set(err, INGLE_IO, "'%s' has %lld bytes and should have %llu", f->part,
                       (long long)is.st_size, (unsigned long long)f->file->n_bytes);
    if (fsync(f->fd) || rename(f->part, f->path))
        return disk(f, errno, f->path, err);
    (void)unlink(f->state);
    return INGLE_OK;
}

static bool name_files(struct fetch *f, const char *repository, const char *folder)
{
    struct str path, part, state, url;
    str_init(&path);
    str_init(&part);
    str_init(&state);
    str_init(&url);
    str_addf(&path, "%s/%s", folder, f->file->path);
    str_addf(&part, "%s.part", path.at);
    str_addf(&state, "%s.part.state", path.at);
    str_addf(&url, "%s/%s/resolve/", f->o->address, repository);
    hub_escape(&url, f->o->revision);
    str_addc(&url, '/');
    hub_escape(&url, f->file->path);
    f->path = str_detach(&path);
    f->part = str_detach(&part);
    f->state = str_detach(&state);
    f->url = str_detach(&url);
    return f->path && f->part && f->state && f->url;
}

ingle_status hub_fetch(const struct hub_options *o, const char *repository, const char *folder,
                       const struct hub_file *file, uint64_t done_before, uint64_t all,
                       char sha256[65], struct err *err)
{
    struct fetch f = {
        .o = o, .file = file, .fd = -1, .state_fd = -1, .before = done_before, .all = all};
    f.piece_bytes = o->piece_bytes ? o->piece_bytes : PIECE;
    f.n_pieces = file->n_bytes / f.piece_bytes + (file->n_bytes % f.piece_bytes != 0);
    ingle_status st = name_files(&f, repository, folder)
                          ? INGLE_OK
                          : err_set(err, INGLE_NOMEM, "no memory for '%s'", file->path);
    if (!st)
        st = open_state(&f, err);
    if (!st && !(f.multi = curl_multi_init()))
        st = err_set(err, INGLE_NOMEM, "libcurl cannot be started");
    if (!st)
        st = run(&f, err);
    for (int i = 0; i < MOST_CONNECTIONS; i++)
        end(&f, &f.piece[i]);
    if (!st)
        st = finish(&f, sha256, err);
    if (f.multi)
        (void)curl_multi_cleanup(f.multi);
    if (f.fd >= 0)
        close(f.fd);
    if (f.state_fd >= 0)
        close(f.state_fd);
    mem_free(f.done);
    mem_free(f.path);
    mem_free(f.part);
    mem_free(f.state);
    mem_free(f.url);
    return st;
}
