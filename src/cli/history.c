/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lines that were typed in chats, in a file: one a line, line ends and backslashes in it
 * escaped.  Each is appended under a lock, so that chats side by side lose nothing; a file that has
 * grown long is replaced by its last lines when a chat begins.
 */
#define _DEFAULT_SOURCE
#include "cli/cli.h"
#include "cli/editor.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LINES = 1000,           /* that are kept when it is cut */
    MOST_LINES = 2 * LINES, /* before it is cut */
    MOST_TEXT = 64 << 10,   /* bytes of a line; longer ones (pastes) are not kept */
    MOST_BYTES = 8 << 20    /* of the file, of which the end is read */
};

struct cli_history {
    char path[PATH_MAX];
    struct cli *c;
    char *last; /* text that was added last, or NULL */
    bool off, reported, locked;
};

/* Says once why nothing is kept. */
static void warn(struct cli_history *h, const char *what)
{
    const int why = errno;
    if (!h->reported && h->c->screen.progress) {
        cli_screen_clear(&h->c->screen);
        cli_line("ingle: note: %s: %s: %s; the history ends with this chat", h->path, what,
                 strerror(why));
    }
    h->reported = h->off = true;
}

static bool find_path(char *out, size_t n)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int k = -1;
    if (state && *state == '/')
        k = snprintf(out, n, "%s/ingle/history", state);
    else if (home && *home)
        k = snprintf(out, n, "%s/.local/state/ingle/history", home);
    return k > 0 && (size_t)k < n;
}

/* The folders above a file. */
static bool make_folders(char *path)
{
    bool ok = true;
    for (char *at = strchr(path + 1, '/'); ok && at; at = strchr(at + 1, '/')) {
        *at = 0;
        ok = mkdir(path, 0700) == 0 || errno == EEXIST;
        *at = '/';
    }
    return ok;
}

/* Whether the path leads to another file than the descriptor: one that was put in its place. */
static bool was_replaced(int fd, const char *path)
{
    struct stat mine, there;
    return fstat(fd, &mine) || stat(path, &there) || mine.st_dev != there.st_dev ||
           mine.st_ino != there.st_ino;
}

/* The file, locked: -1 after saying why, or silently where it is no file (a link to /dev/null says
 * that none is wanted). */
static int open_locked(struct cli_history *h)
{
    enum { TRIES = 10, WAITS = 200, WAIT_US = 5000 };
    for (int i = 0; i < TRIES; i++) {
        struct stat st;
        int waits = 0;
        const int fd =
            open(h->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
        if (fd < 0) {
            warn(h, "cannot open");
            return -1;
        }
        if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
            h->off = true;
            close(fd);
            return -1;
        }
        while (!(h->locked = !flock(fd, LOCK_EX | LOCK_NB)) && errno == EWOULDBLOCK &&
               waits++ < WAITS)
            usleep(WAIT_US);
        /* where no lock can be had, O_APPEND still adds whole lines */
        if (!was_replaced(fd, h->path)) {
            if (st.st_mode & 077 && fchmod(fd, 0600))
                warn(h, "cannot make it private");
            return fd;
        }
        close(fd);
    }
    errno = EBUSY;
    warn(h, "cannot lock");
    return -1;
}

/* ---- reading ---- */

/* The end of the file, from a line's beginning on. */
static void read_end(struct cli_history *h, int fd, struct str *out)
{
    char piece[1 << 16];
    struct stat st;
    const bool cut = !fstat(fd, &st) && st.st_size > MOST_BYTES;
    off_t at = cut ? st.st_size - MOST_BYTES : 0;
    ssize_t n;
    while (out->n <= MOST_BYTES && (n = pread(fd, piece, sizeof piece, at)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            warn(h, "cannot read");
            return;
        }
        str_add(out, piece, (size_t)n);
        at += n;
    }
    const char *end = cut && out->n ? memchr(out->at, '\n', out->n) : NULL;
    if (end) {
        out->n -= (size_t)(end + 1 - out->at);
        memmove(out->at, end + 1, out->n + 1);
    }
}

static void unescape(const char *line, size_t n, struct str *out)
{
    str_clear(out);
    for (size_t i = 0; i < n; i++) {
        const bool escaped = line[i] == '\\' && i + 1 < n;
        const char c = line[escaped ? ++i : i];
        str_addc(out, escaped && c == 'n' ? '\n' : c);
    }
}

/* Where the last `most` lines begin; *n: how many lines there are. */
static size_t last_lines(const struct str *text, size_t most, size_t *n)
{
    size_t at = text->n, found = 0;
    *n = 0;
    for (size_t i = text->n; i > 0; i--)
        if (i == text->n || text->at[i - 1] == '\n') {
            if (i < text->n && found++ < most)
                at = i;
            *n += i < text->n;
        }
    if (text->n) { /* the first one */
        if (found < most)
            at = 0;
        ++*n;
    }
    return at;
}

/* Puts a new file with the last lines in the place of the locked one. */
static void shorten(const char *path, const char *text, size_t n)
{
    char real[PATH_MAX], fresh[PATH_MAX + 32];
    if (!realpath(path, real))
        return;
    snprintf(fresh, sizeof fresh, "%s.%ld.tmp", real, (long)getpid());
    const int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return;
    const bool whole = write(fd, text, n) == (ssize_t)n && !fsync(fd);
    if (close(fd) || !whole || rename(fresh, real))
        unlink(fresh);
}

static void load(struct cli_history *h, struct cli_editor *e)
{
    const int fd = open_locked(h);
    struct str text, line;
    size_t n_lines;
    if (fd < 0)
        return;
    str_init(&text);
    str_init(&line);
    read_end(h, fd, &text);
    const size_t from = last_lines(&text, LINES, &n_lines);
    for (size_t i = from; str_ok(&text) && i < text.n;) {
        const char *end = memchr(text.at + i, '\n', text.n - i);
        const size_t n = end ? (size_t)(end - text.at) - i : text.n - i;
        unescape(text.at + i, n, &line);
        if (line.n && str_ok(&line))
            cli_editor_remember(e, line.at, line.n);
        i += n + 1;
    }
    struct stat st;
    if (h->locked && !h->off && str_ok(&text) &&
        (n_lines > MOST_LINES || (!fstat(fd, &st) && st.st_size > MOST_BYTES)))
        shorten(h->path, text.at + from, text.n - from);
    str_release(&line);
    str_release(&text);
    close(fd);
}

struct cli_history *cli_history_open(struct cli *c, struct cli_editor *e)
{
    struct cli_history *h = mem_zalloc(sizeof *h);
    if (!h)
        return NULL;
    h->c = c;
    if (!find_path(h->path, sizeof h->path)) {
        h->off = true;
        return h;
    }
    if (make_folders(h->path))
        load(h, e);
    else
        warn(h, "cannot make its folder");
    return h;
}

void cli_history_close(struct cli_history *h)
{
    if (h)
        mem_free(h->last);
    mem_free(h);
}

bool cli_history_switch(struct cli_history *h, bool on)
{
    if (!h || (on && (h->reported || !h->path[0])))
        return false;
    h->off = !on;
    return true;
}

/* ---- writing ---- */

static void append(struct cli_history *h, const struct str *line)
{
    const int fd = open_locked(h);
    char last = '\n';
    if (fd < 0)
        return;
    const off_t end = lseek(fd, 0, SEEK_END);
    if (end > 0 && pread(fd, &last, 1, end - 1) == 1 && last != '\n' && write(fd, "\n", 1) != 1)
        warn(h, "cannot write"); /* a line that was cut stays one of its own */
    else if (write(fd, line->at, line->n) != (ssize_t)line->n) {
        warn(h, "cannot write");
        if (!h->locked || end < 0 || ftruncate(fd, end))
            h->off = true; /* what is left of it is a line of its own later */
    }
    close(fd);
}

void cli_history_add(struct cli_history *h, const char *text, size_t n)
{
    struct str line;
    if (!h || h->off || !n || n > MOST_TEXT || text[0] == ' ' || text[0] == '\t' ||
        (h->last && strcmp(h->last, text) == 0))
        return;
    str_init(&line);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n' || text[i] == '\\')
            str_addc(&line, '\\');
        str_addc(&line, text[i] == '\n' ? 'n' : text[i]);
    }
    str_addc(&line, '\n');
    if (str_ok(&line))
        append(h, &line);
    str_release(&line);
    mem_free(h->last);
    h->last = mem_strdup(text);
}
