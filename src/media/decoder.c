/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process for each file.
 *
 * The program is in the library's data.  It is written once to a file in memory (memfd), sealed,
 * and run from there by posix_spawn(), which is safe in a process with threads and costs the same
 * however large the host is: nothing of the host's memory is in the child.  A file of its own
 * beside the library would have to be found, and a fork would copy keys and page tables.
 *
 * The child's standard input is one end of a pair of sockets: unlike a pipe, a socket whose other
 * end has died does not raise a signal in the host.  The child ends after its reply: what one file
 * has done to it cannot reach the next.
 */
#define _GNU_SOURCE
#include "media/inner.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MFD_EXEC
#define MFD_EXEC 0x10U
#endif

extern const char media_child[], media_child_end[];

enum { MOST_AT_ONCE = 2 };

struct media_decoder {
    pthread_mutex_t lock;
    pthread_cond_t is_free;
    int n_running; /* lock */
    int program;   /* lock; the file in memory, or -1 */
    uint32_t trial, n_seconds, n_wait;
};

ingle_status media_decoder_create(struct media_decoder **out, struct err *err)
{
    struct media_decoder *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_set(err, INGLE_NOMEM, "no memory for a decoder");
    d->program = -1;
    d->n_seconds = MEDIA_CHILD_SECONDS;
    d->n_wait = MEDIA_CHILD_WAIT;
    if (pthread_mutex_init(&d->lock, NULL) != 0) {
        mem_free(d);
        return err_set(err, INGLE_NOMEM, "no memory for a decoder's lock");
    }
    if (pthread_cond_init(&d->is_free, NULL) != 0) {
        pthread_mutex_destroy(&d->lock);
        mem_free(d);
        return err_set(err, INGLE_NOMEM, "no memory for a decoder's lock");
    }
    *out = d;
    return INGLE_OK;
}

void media_decoder_free(struct media_decoder *d)
{
    if (!d)
        return;
    if (d->program >= 0)
        close(d->program);
    pthread_cond_destroy(&d->is_free);
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}

void media_decoder_try(struct media_decoder *d, uint32_t trial, uint32_t n_seconds, uint32_t n_wait)
{
    d->trial = trial;
    d->n_seconds = n_seconds;
    d->n_wait = n_wait;
}

/* ---- the program ---- */

static int new_file(void)
{
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create("ingle-decode", flags | MFD_EXEC);
    if (fd < 0 && errno == EINVAL) /* an older kernel: all such files may be run */
        fd = memfd_create("ingle-decode", flags);
    if (fd < 0 || fd > 2)
        return fd;
    const int above = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* 0 becomes the child's socket */
    close(fd);
    return above;
}

static bool fill(int fd)
{
    const char *at = media_child;
    while (at < media_child_end) {
        const ssize_t n = write(fd, at, (size_t)(media_child_end - at));
        if (n < 0 && errno != EINTR)
            return false;
        at += n > 0 ? n : 0;
    }
    return fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0;
}

/* A turn: a place among those that run, and the program. */
static ingle_status take_turn(struct media_decoder *d, struct err *err)
{
    ingle_status s = INGLE_OK;
    pthread_mutex_lock(&d->lock);
    while (d->n_running >= MOST_AT_ONCE)
        pthread_cond_wait(&d->is_free, &d->lock);
    if (d->program < 0) {
        const int fd = new_file();
        if (fd < 0 || !fill(fd)) {
            s = err_set(err, INGLE_IO, "the decoder's program cannot be put into memory: %s",
                        strerror(errno));
            if (fd >= 0)
                close(fd);
        } else
            d->program = fd;
    }
    d->n_running += s == INGLE_OK;
    pthread_mutex_unlock(&d->lock);
    return s;
}

static void end_turn(struct media_decoder *d)
{
    pthread_mutex_lock(&d->lock);
    d->n_running--;
    pthread_cond_signal(&d->is_free);
    pthread_mutex_unlock(&d->lock);
}

/* ---- a child ---- */

struct child {
    pid_t pid;
    int fd;
    uint64_t deadline; /* of clock_now() */
};

/* In the child the socket is 0; what else a host has left open the child closes first.  Signals are
 * as at the start of a program. */
static int spawn(struct child *c, int program, int socket)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    char name[] = "ingle-decode";
    char *const argv[] = {name, NULL}, *const env[] = {NULL};
    int e = posix_spawn_file_actions_init(&actions);
    if (e)
        return e;
    if ((e = posix_spawnattr_init(&attr)) != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return e;
    }
    sigemptyset(&none);
    sigfillset(&all);
    sigdelset(&all, SIGKILL);
    sigdelset(&all, SIGSTOP);
    char path[32];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", program);
    e = posix_spawnattr_setsigmask(&attr, &none);
    e = e ? e : posix_spawnattr_setsigdefault(&attr, &all);
    e = e ? e : posix_spawnattr_setpgroup(&attr, 0); /* Ctrl-C is for the host */
    e = e ? e
          : posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                POSIX_SPAWN_SETPGROUP);
    e = e ? e : posix_spawn_file_actions_adddup2(&actions, socket, 0);
    e = e ? e : posix_spawn(&c->pid, path, &actions, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return e;
}

static ingle_status start(struct media_decoder *d, struct child *c, struct err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return err_set(err, INGLE_IO, "no sockets for the decoder: %s", strerror(errno));
    const int e = spawn(c, d->program, pair[1]);
    close(pair[1]);
    if (e) {
        close(pair[0]);
        return err_set(err, INGLE_IO, "the decoder cannot be started from memory: %s", strerror(e));
    }
    c->fd = pair[0];
    c->deadline = clock_now() + (uint64_t)d->n_wait * 1000000000;
    return INGLE_OK;
}

/* False: it has died, or the time is over. */
static bool wait_for(const struct child *c, short events)
{
    for (;;) {
        const uint64_t now = clock_now();
        struct pollfd p = {.fd = c->fd, .events = events};
        if (now >= c->deadline)
            return false;
        const int n =
            poll(&p, 1, (int)num_min((int64_t)((c->deadline - now) / 1000000 + 1), 60000));
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
}

static bool put(const struct child *c, const void *from, size_t n)
{
    const uint8_t *p = from;
    while (n) {
        if (!wait_for(c, POLLOUT))
            return false;
        const ssize_t done = send(c->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        p += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

static bool get(const struct child *c, void *to, size_t n)
{
    uint8_t *p = to;
    while (n) {
        if (!wait_for(c, POLLIN))
            return false;
        const ssize_t got = recv(c->fd, p, n, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        p += got > 0 ? got : 0;
        n -= got > 0 ? (size_t)got : 0;
    }
    return true;
}

/* Ends the child; the status of waitpid(), or -1 when another part of the host has asked for it. */
static int end(const struct child *c, bool is_late)
{
    int status = 0;
    close(c->fd);
    if (is_late)
        kill(c->pid, SIGKILL);
    while (waitpid(c->pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return status;
}

/* Why there was no reply. */
static ingle_status died(const struct media_decoder *d, int status, bool is_late, struct err *err)
{
    const int sig = status >= 0 && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (is_late)
        return err_set(err, INGLE_ARG, "the decoder was ended after %u seconds without a result",
                       d->n_wait);
    if (sig == SIGXCPU || sig == SIGKILL)
        return err_set(err, INGLE_ARG, "the decoder was ended after %u seconds of processor time",
                       d->n_seconds);
    if (sig == SIGSYS)
        return err_set(err, INGLE_ARG, "the decoder was ended: it made a forbidden system call");
    if (sig)
        return err_set(err, INGLE_ARG, "the decoder crashed (signal %d): the file is broken", sig);
    if (status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return err_set(err, INGLE_IO, "the decoder's program cannot be run: is a library missing?");
    return err_set(err, INGLE_ARG,
                   "the decoder ended without a result: the limit of memory is %d MiB",
                   MEDIA_CHILD_BYTES >> 20);
}

/* The child may be in a stranger's hands: its text is cut, and made harmless. */
static ingle_status refused(const struct child *c, const struct media_reply *r, struct err *err)
{
    char text[MEDIA_MAX_TEXT + 1];
    const size_t n = r->n_bytes < MEDIA_MAX_TEXT ? (size_t)r->n_bytes : MEDIA_MAX_TEXT;
    if (!get(c, text, n))
        return INGLE_CANCEL;
    for (size_t i = 0; i < n; i++)
        if (text[i] < ' ' || text[i] > '~')
            text[i] = '?';
    text[n] = 0;
    return err_set(err,
                   r->status == INGLE_IO || r->status == INGLE_UNSUP || r->status == INGLE_NOMEM
                       ? (ingle_status)r->status
                       : INGLE_ARG,
                   "%s", text);
}

static ingle_status take_picture(const struct child *c, const struct media_reply *r,
                                 struct media_picture *p, struct err *err)
{
    const ingle_status s = media_check_pixels(r->width, r->height, "the decoder's result", err);
    if (s != INGLE_OK)
        return s;
    if (r->n_bytes != (uint64_t)r->width * r->height * 3)
        return err_set(err, INGLE_ARG, "the decoder's result has a wrong size: the file is broken");
    *p = (struct media_picture){(int)r->width, (int)r->height, mem_alloc((size_t)r->n_bytes)};
    if (!p->rgb)
        return err_set(err, INGLE_NOMEM, "no memory for %d x %d pixels", p->width, p->height);
    return get(c, p->rgb, (size_t)r->n_bytes) ? INGLE_OK : INGLE_CANCEL;
}

static ingle_status take_sound(const struct child *c, const struct media_reply *r,
                               struct media_sound *s, struct err *err)
{
    if (r->n_bytes % sizeof(float) || r->n_bytes / sizeof(float) > MEDIA_MAX_SAMPLES)
        return err_set(err, INGLE_ARG, "the decoder's result has a wrong size: the file is broken");
    s->n = (size_t)r->n_bytes / sizeof(float);
    s->samples = mem_alloc((size_t)r->n_bytes);
    if (!s->samples)
        return err_set(err, INGLE_NOMEM, "no memory for %zu samples", s->n);
    if (!get(c, s->samples, (size_t)r->n_bytes))
        return INGLE_CANCEL;
    return media_check_samples(s->samples, s->n, "the decoder's result", err);
}

/* INGLE_CANCEL: the child has not replied. */
static ingle_status talk(const struct media_decoder *d, const struct child *c, const void *bytes,
                         size_t n, struct media_data *out, struct err *err)
{
    const struct media_request q = {MEDIA_MAGIC, d->n_seconds, d->trial, 0, n};
    struct media_reply r;
    /* what cannot be written is not lost: the child may have said why before it died */
    if (put(c, &q, sizeof q))
        (void)put(c, bytes, n);
    if (!get(c, &r, sizeof r))
        return INGLE_CANCEL;
    if (r.magic != MEDIA_MAGIC)
        return err_set(err, INGLE_ARG, "the decoder's result has a wrong form: the file is broken");
    if (r.status != INGLE_OK)
        return refused(c, &r, err);
    out->kind = media_sniff(bytes, n);
    return media_is_picture(out->kind) ? take_picture(c, &r, &out->picture, err)
                                       : take_sound(c, &r, &out->sound, err);
}

ingle_status media_decode(struct media_decoder *d, const void *bytes, size_t n, const char *name,
                          struct media_data *out, struct err *err)
{
    struct media_data got = {0};
    struct child c;
    if (!n)
        return err_set(err, INGLE_ARG, "%s: the file is empty", name);
    if (n > MEDIA_MAX_SOUND_BYTES)
        return err_set(err, INGLE_ARG, "%s: the file has %zu bytes; the limit is %d", name, n,
                       MEDIA_MAX_SOUND_BYTES);
    ingle_status s = take_turn(d, err);
    if (s == INGLE_OK) {
        s = start(d, &c, err);
        if (s == INGLE_OK) {
            s = talk(d, &c, bytes, n, &got, err);
            const bool is_late = clock_now() >= c.deadline;
            const int status = end(&c, is_late || s != INGLE_CANCEL);
            if (s == INGLE_CANCEL)
                s = died(d, status, is_late, err);
        }
        end_turn(d);
    }
    if (s == INGLE_OK)
        *out = got;
    else {
        media_data_release(&got);
        (void)err_prefix(err, "%s", name);
    }
    return s;
}

ingle_status media_decoder_check(struct media_decoder *d, struct err *err)
{
    static const uint8_t gif[] = "GIF89a\1\0\1\0\x80\0\0\1\2\3\4\5\6,\0\0\0\0\1\0\1\0\0\2\2L\1\0;";
    struct media_data one;
    const ingle_status s =
        media_decode(d, gif, sizeof gif - 1, "a picture of one pixel", &one, err);
    if (s == INGLE_OK)
        media_data_release(&one);
    return s;
}
