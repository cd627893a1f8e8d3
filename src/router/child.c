/* SPDX-License-Identifier: Apache-2.0
 *
 * A process of a model: started, listened to, ended.  It dies with the thread that started it
 * (PR_SET_PDEATHSIG), so none is left when the router is killed.  It reports by systemd's protocol
 * (NOTIFY_SOCKET) how far loading is and that it is ready; what it writes to standard error goes to
 * the router's log, and its last error is the reason of a failed start.
 */
#define _GNU_SOURCE
#include "router/inner.h"
#include "router/parts.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_PLAN = 1 << 16, MOST_LINE = 4096 };

/* ---- the start ---- */

struct start {
    const char *program;
    char **arg, **environment;
    int errors, output; /* of the child */
    pid_t parent;
};

/* Between fork and exec: only calls that are safe there. */
static _Noreturn void become(const struct start *s)
{
    static const char failed[] = "ingle: error: the program cannot be executed again\n";
    sigset_t none;
    sigemptyset(&none);
    const int null = open("/dev/null", O_RDWR);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != s->parent) /* it has died before */
        _exit(1);
    (void)setpgid(0, 0); /* Ctrl-C at the terminal is for the router alone */
    if (null >= 0)
        (void)dup2(null, 0);
    (void)dup2(s->output >= 0 ? s->output : null, 1);
    (void)dup2(s->errors, 2);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    execve(s->program, s->arg, s->environment);
    (void)!write(2, failed, sizeof failed - 1);
    _exit(127);
}

/* The environment without what is meant for the router, and with the socket for notices.  Ended by
 * mem_free() of the array and of its first entry. */
static char **environment_of(const struct router *r, const struct router_child *c)
{
    static const char *const drop[] = {"NOTIFY_SOCKET=", "LISTEN_", "WATCHDOG_", "MALLOC_ARENA_"};
    size_t n = 0, k = 0;
    for (char *const *e = r->o.environment; e && *e; e++)
        n++;
    char **out = mem_calloc(n + 2, sizeof *out);
    char *first = mem_alloc(sizeof "NOTIFY_SOCKET=" + sizeof c->notice);
    if (!out || !first) {
        mem_free(out);
        mem_free(first);
        return NULL;
    }
    snprintf(first, sizeof "NOTIFY_SOCKET=" + sizeof c->notice, "NOTIFY_SOCKET=%s", c->notice);
    out[k++] = first;
    for (size_t i = 0; i < n; i++) {
        bool keep = true;
        for (size_t d = 0; d < sizeof drop / sizeof *drop; d++)
            keep &= strncmp(r->o.environment[i], drop[d], strlen(drop[d])) != 0;
        if (keep)
            out[k++] = r->o.environment[i];
    }
    return out;
}

static int open_notices(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    (void)unlink(path);
    if (fd >= 0 && bind(fd, (const struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void router_child_clear(struct router *r, struct router_model *m)
{
    struct router_child *c = &m->child;
    (void)r;
    if (c->notices >= 0)
        (void)unlink(c->notice);
    if (c->socket[0])
        (void)unlink(c->socket);
    close_fd(&c->end);
    close_fd(&c->errors);
    close_fd(&c->output);
    close_fd(&c->notices);
    c->pid = 0;
    c->kill_at = c->doubt_until = 0;
    c->stderr_closed = c->ended = false;
}

static bool open_pipes(struct router *r, struct router_model *m, int theirs[2])
{
    struct router_child *c = &m->child;
    int errors[2] = {-1, -1}, output[2] = {-1, -1};
    const bool ok = pipe2(errors, O_CLOEXEC | O_NONBLOCK) == 0 &&
                    (!c->plan || pipe2(output, O_CLOEXEC | O_NONBLOCK) == 0);
    c->errors = errors[0];
    c->output = output[0];
    theirs[0] = errors[1];
    theirs[1] = output[1];
    if (!ok || (c->notices = open_notices(c->notice)) < 0)
        return false;
    for (int i = 0; i < 2; i++) /* the child's ends are written as files are */
        if (theirs[i] >= 0)
            (void)fcntl(theirs[i], F_SETFL, 0);
    return router_watch(r, c->errors, ROUTER_ON_ERRORS, m->number) &&
           (!c->plan || router_watch(r, c->output, ROUTER_ON_OUTPUT, m->number)) &&
           router_watch(r, c->notices, ROUTER_ON_NOTICES, m->number);
}

ingle_status router_child_start(struct router *r, struct router_model *m, bool plan,
                                struct err *err)
{
    struct router_child *c = &m->child;
    int theirs[2] = {-1, -1};
    c->plan = plan;
    c->end = c->errors = c->output = c->notices = -1;
    c->words[0] = 0;
    c->kill_at = c->doubt_until = 0;
    c->stderr_closed = c->ended = false;
    str_clear(&c->line);
    str_clear(&c->text);
    snprintf(c->notice, sizeof c->notice, "%s/%u.notice", r->directory, m->number);
    char **environment = environment_of(r, c);
    if (environment && open_pipes(r, m, theirs)) {
        const struct start s = {r->o.program, m->arg, environment, theirs[0], theirs[1], getpid()};
        c->pid = fork();
        if (c->pid == 0)
            become(&s);
    }
    const int e = errno;
    close_fd(&theirs[0]);
    close_fd(&theirs[1]);
    if (environment)
        mem_free(environment[0]);
    mem_free(environment);
    if (c->pid > 0) {
        /* without one, the end of standard error shows it */
        c->end = (int)syscall(SYS_pidfd_open, c->pid, 0);
        if (c->end >= 0)
            (void)router_watch(r, c->end, ROUTER_ON_END, m->number);
        return INGLE_OK;
    }
    router_child_clear(r, m);
    return err_set(err, INGLE_IO, "no process for the model '%s': %s", m->id, strerror(e));
}

/* ---- what it says ---- */

/* "JOB: 40 %, ...", as a fetch reports its progress. */
static void take_percent(struct router *r, struct router_model *m, const char *line)
{
    const char *sign = strstr(line, " %"), *from = sign;
    while (from && from > line && from[-1] >= '0' && from[-1] <= '9')
        from--;
    if (!sign || from == sign || from < line + 2 || from[-1] != ' ' || from[-2] != ':')
        return;
    const double share = strtod(from, NULL) / 100;
    m->progress = share < 1 ? share : 1;
    router_notify(r, m->id, "model_status", m);
}

static void take_line(struct router *r, struct router_model *m, char *line)
{
    static const char error[] = "ingle: error: ";
    struct router_child *c = &m->child;
    if (!*line)
        return;
    const bool is_error = strncmp(line, error, sizeof error - 1) == 0;
    const bool starts = m->state != ROUTER_LOADED && m->state != ROUTER_STOPPING;
    if (is_error && starts && c->words[0]) /* the last one is why it fails, and is reported then */
        router_say(r, m, "%s%s", error, c->words);
    if (is_error)
        snprintf(c->words, sizeof c->words, "%.*s", (int)sizeof c->words - 1,
                 line + sizeof error - 1);
    if (!is_error || !starts)
        router_say(r, m, "%s", line);
    if (m->state == ROUTER_FETCHING)
        take_percent(r, m, line);
}

static void take_errors(struct router *r, struct router_model *m, const char *bytes, size_t n)
{
    struct str *line = &m->child.line;
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\n') {
            take_line(r, m, line->at);
            str_clear(line);
        } else if (bytes[i] != '\r' && bytes[i] && line->n < MOST_LINE) {
            str_addc(line, bytes[i]);
        }
    }
}

/* "KEY=VALUE" lines of sd_notify(3). */
static void take_notice(struct router *r, struct router_model *m, const char *text)
{
    static const char progress[] = "X_INGLE_PROGRESS=";
    for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        if (strncmp(p, progress, sizeof progress - 1) == 0) {
            m->progress = strtod(p + sizeof progress - 1, NULL);
            if (m->state == ROUTER_LOADING || m->state == ROUTER_FETCHING)
                router_notify(r, m->id, "model_status", m);
        }
        if (strncmp(p, "READY=1", 7) == 0 && m->state == ROUTER_LOADING) {
            m->progress = 1;
            router_say(r, m, "ready in %.1f s", (double)(clock_now() - m->started_at) * 1e-9);
            router_set_state(r, m, ROUTER_LOADED);
        }
    }
}

static void read_notices(struct router *r, struct router_model *m)
{
    char text[1024];
    for (ssize_t n; (n = recv(m->child.notices, text, sizeof text - 1, MSG_DONTWAIT)) >= 0;) {
        text[n] = 0;
        take_notice(r, m, text);
    }
}

void router_child_read(struct router *r, struct router_model *m, int what)
{
    struct router_child *c = &m->child;
    char bytes[4096];
    int *fd = what == ROUTER_ON_OUTPUT ? &c->output : &c->errors;
    if (what == ROUTER_ON_END) {
        c->ended = c->pid != 0;
        return;
    }
    if (what == ROUTER_ON_NOTICES) {
        if (c->notices >= 0)
            read_notices(r, m);
        return;
    }
    for (int i = 0; i < 16 && *fd >= 0; i++) {
        const ssize_t n = read(*fd, bytes, sizeof bytes);
        if (n > 0 && what == ROUTER_ON_ERRORS)
            take_errors(r, m, bytes, (size_t)n);
        else if (n > 0 && c->text.n < MOST_PLAN)
            str_add(&c->text, bytes, (size_t)n);
        else if (n == 0) {
            close_fd(fd);
            if (what == ROUTER_ON_ERRORS) {
                take_errors(r, m, "\n", 1);
                c->stderr_closed = true;
            }
        } else if (n < 0) {
            return;
        }
    }
}

static bool slurp(pid_t pid, const char *name, char *out, size_t n)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/%s", (long)pid, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? read(fd, out, n - 1) : -1;
    if (fd >= 0)
        close(fd);
    out[got > 0 ? got : 0] = 0;
    return got > 0;
}

/* Whether a child that was not waited for is on its way out: a large one takes a while to give its
 * memory back.  SIGKILL waits for it, its first thread is leaving, or is a zombie already. */
static bool is_dying(pid_t pid)
{
    enum { EXITING = 4 }; /* PF_EXITING of Linux */
    char text[4096];
    char state;
    unsigned flags;
    if (!slurp(pid, "stat", text, sizeof text))
        return false;
    const char *after = strrchr(text, ')');
    if (after && sscanf(after + 1, " %c %*d %*d %*d %*d %*d %u", &state, &flags) == 2 &&
        (strchr("ZX", state) || (flags & EXITING)))
        return true;
    if (!slurp(pid, "status", text, sizeof text))
        return false;
    const char *pending = strstr(text, "\nSigPnd:");
    return pending && (strtoull(pending + 8, NULL, 16) & (1ull << (SIGKILL - 1)));
}

bool router_child_ended(struct router *r, struct router_model *m, int *code)
{
    int status;
    const pid_t pid = waitpid(m->child.pid, &status, WNOHANG);
    if (pid == 0 || (pid < 0 && errno == EINTR)) {
        /* otherwise it was another one */
        m->child.ended = m->child.ended && is_dying(m->child.pid);
        return false;
    }
    *code = pid < 0 ? 1 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    /* What it has said before is here by now. */
    if (m->child.notices >= 0)
        read_notices(r, m);
    router_child_read(r, m, ROUTER_ON_ERRORS);
    if (m->child.plan)
        router_child_read(r, m, ROUTER_ON_OUTPUT);
    return true;
}

void router_children_check(const struct router *r)
{
    for (struct router_model *m = r->models; m; m = m->next)
        if (m->state == ROUTER_LOADED && m->child.pid && !m->child.ended)
            m->child.ended = is_dying(m->child.pid);
}

void router_child_stop(struct router *r, struct router_model *m, double seconds)
{
    (void)r;
    if (!m->child.pid)
        return;
    const uint64_t at = clock_now() + (uint64_t)(seconds * 1e9);
    if (!m->child.kill_at)
        (void)kill(m->child.pid, SIGTERM);
    if (!m->child.kill_at || at < m->child.kill_at)
        m->child.kill_at = at;
}
