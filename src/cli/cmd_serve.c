/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/hub.h"
#include "cli/opt.h"
#include "router/router.h"
#include "server/server.h"

#include "base/clock.h"
#include "base/size.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;

/* A signal handler has no other way to reach the main thread. */
static int wake[2] = {-1, -1};
static volatile sig_atomic_t n_signals, last_signal, n_turns; /* n_turns: of SIGUSR2 */

static void on_signal(int number)
{
    const int e = errno;
    if (number == SIGHUP && n_signals)
        return; /* a terminal that closes says so more than once */
    last_signal = number;
    if (++n_signals > 1)
        _exit(CLI_INTERRUPTED);
    if (write(wake[1], "", 1) < 0)
        _exit(CLI_INTERRUPTED);
    errno = e;
}

static void on_turn(int number)
{
    const int e = errno;
    (void)number;
    n_turns = !n_turns;
    if (write(wake[1], "", 1) < 0)
        n_turns = !n_turns; /* the pipe is full of signals: this one was not sent */
    errno = e;
}

static bool catch_signals(void)
{
    struct sigaction action;
    if (pipe(wake))
        return false;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction turn = action;
    turn.sa_handler = on_turn;
    sigaction(SIGUSR2, &turn, NULL);
    struct sigaction hangup;
    if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN) /* nohup */
        sigaction(SIGHUP, &action, NULL);
    return true;
}

/* Notifies systemd (Type=notify), if that started us. */
static void notify(const char *text)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof to.sun_path)
        return;
    memcpy(to.sun_path, path, strlen(path));
    if (path[0] == '@')
        to.sun_path[0] = 0; /* a name that is no file */
    const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (fd < 0)
        return;
    const socklen_t n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    (void)sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&to, n);
    close(fd);
}

/* What callbacks of a start look at. */
struct start {
    struct cli *c;
    atomic_int percent; /* of the last notification */
};

static void on_report(void *arg, ingle_report_level level, const char *kind, const char *subject,
                      const char *text)
{
    const struct start *s = arg;
    const struct ingle_callbacks callbacks = cli_callbacks(s->c);
    callbacks.report(callbacks.arg, level, kind, subject, text);
}

/* Loading stops at a signal. */
static int on_progress(void *arg, const char *job, double done, double total)
{
    struct start *s = arg;
    char text[160];
    const struct ingle_callbacks callbacks = cli_callbacks(s->c);
    const double share = total > 0 && done < total ? done / total : 1;
    if (!(total > 0)) /* something waits */
        return n_signals > 0;
    callbacks.progress(callbacks.arg, job, done, total);
    if (atomic_exchange(&s->percent, (int)(share * 100)) != (int)(share * 100)) {
        snprintf(text, sizeof text, "STATUS=%.60s: %.0f %%\nX_INGLE_PROGRESS=%.2f\n", job,
                 share * 100, share);
        notify(text);
    }
    return n_signals > 0;
}

/* The sockets that systemd hands over (ingle.socket), from descriptor 3 on. */
enum { FIRST_HANDED = 3, MOST_HANDED = 9 }; /* one more than can be served: that is an error */

static int inherited_sockets(int fd[MOST_HANDED])
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    if (!pid || !count || strtol(pid, NULL, 10) != (long)getpid())
        return 0;
    const long n = strtol(count, NULL, 10);
    const int most = n < 0 ? 0 : n > MOST_HANDED ? MOST_HANDED : (int)n;
    for (int i = 0; i < most; i++)
        fd[i] = FIRST_HANDED + i;
    return most;
}

/* A step that takes longer hangs, where systemd does not say otherwise. */
static const double HUNG_SECONDS = 120;

/* How often systemd wants to hear that all is well; 0: never. */
static double watchdog_seconds(void)
{
    const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!us || (pid && strtol(pid, NULL, 10) != (long)getpid()))
        return 0;
    return strtod(us, NULL) / 1e6;
}

/* A server, or several models. */
struct served {
    struct cli *c;
    struct server *s;
    struct router *r;
};

/* A step that hangs ends the good news, and systemd starts us anew. */
static void notify_watchdog(const struct served *v, double limit)
{
    if (limit > 0 && (!v->s || server_alive(v->s)))
        notify("WATCHDOG=1");
}

/* SIGUSR2 takes the server out of service, and the next one back. */
static void set_away(const struct served *v, bool away)
{
    if (v->s)
        server_set_away(v->s, away);
    else
        router_set_away(v->r, away);
    cli_line("ingle: SIGUSR2: %s", away ? "/readyz says no from now on; requests are accepted"
                                        : "/readyz says yes from now on");
}

/* For at most ms, -1: as long as it takes, until a signal comes. */
static void wait_for_signal(int ms)
{
    struct pollfd p = {.fd = wake[0], .events = POLLIN};
    char bytes[64];
    if (poll(&p, 1, ms) > 0)
        (void)!read(wake[0], bytes, sizeof bytes);
}

/* Balancers learn that this server ends, and requests that come meanwhile are answered. */
static void linger(const struct served *v, double limit, int ms)
{
    const double seconds = ingle_config_number(v->c->config, "linger");
    const uint64_t end = clock_now() + (uint64_t)(seconds * 1e9);
    if (seconds <= 0)
        return;
    if (v->s)
        server_set_lingering(v->s);
    else
        router_set_lingering(v->r);
    cli_line("ingle: /readyz says no; requests are accepted for %g s more (--linger)", seconds);
    for (uint64_t now; (now = clock_now()) < end;) {
        const int left = (int)((end - now) / 1000000) + 1;
        wait_for_signal(ms >= 0 && ms < left ? ms : left);
        notify_watchdog(v, limit);
    }
}

/* A file of keys that changes while no request comes. */
enum { KEYS_MS = 1100 };
static bool renew_keys(const struct served *v)
{
    return v->s ? server_renew_keys(v->s) : router_renew_keys(v->r);
}

/* Until a signal that ends us comes, and --linger is over. */
static void serve_until_signal(const struct served *v)
{
    const double limit = watchdog_seconds();
    int ms = limit <= 0 ? -1 : limit < 4 ? (int)(limit * 250) + 1 : 1000;
    sig_atomic_t turned = 0;
    notify("READY=1");
    while (!n_signals) {
        if (renew_keys(v) && ms < 0)
            ms = KEYS_MS;
        if (n_turns != turned)
            set_away(v, (turned = n_turns) != 0);
        wait_for_signal(ms);
        notify_watchdog(v, limit);
    }
    notify("STOPPING=1");
    linger(v, limit, ms);
}

static void say_stop(struct cli *c, const struct server_info *i)
{
    if (!i->n_running || !c->screen.progress)
        return;
    printf("stops    when what runs is answered (%lld requests), in %g s at most; another signal: "
           "at once\n",
           (long long)i->n_running, ingle_config_number(c->config, "drain"));
    cli_push(c);
}

static void describe(const struct cli *c, const struct server_info *i)
{
    if (!c->screen.progress)
        return;
    printf("model    %s, %lld tokens of context, %d answers at once\n", i->model,
           (long long)i->n_ctx, i->parallel);
    for (size_t k = 0; k < i->n_more; k++)
        printf("also     %s, the same port\n", i->more[k]);
    if (i->metrics_port)
        printf("metrics  port %d of --metrics-address\n", i->metrics_port);
    if (i->more_path)
        printf("also     unix:%s\n", i->more_path);
    printf("memory   %s weights, up to %s conversations\n",
           SIZE_OF(i->weight_bytes), SIZE_OF(i->kv_bytes));
    if (i->n_keys)
        printf("keys     %zu\n", i->n_keys);
    else
        printf("keys     none: every client that reaches the address has access\n");
    if (strncmp(i->url, "unix:", 5) == 0)
        printf("try      curl --unix-socket %s http://localhost/v1/chat/completions", i->url + 5);
    else
        printf("try      curl %s/v1/chat/completions", i->url);
    printf("%s -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n",
           i->n_keys ? " -H 'Authorization: Bearer KEY'" : "");
}

static int plan(struct cli *c)
{
    struct ingle_plan p;
    struct err err;
    struct start start = {.c = c, .percent = -1};
    if (cli_hub_model(c, &(struct ingle_callbacks){on_report, on_progress, &start}, &err) ||
        server_plan(c->config, cli_callbacks(c), &p, &err))
        return cli_fail_err(c, &err);
    cli_hub_plan(c, &p);
    cli_print_plan(&p, true);
    return CLI_OK;
}

/* Models of a hub, while /health says that the server is loading. */
static ingle_status fetch(void *arg, struct err *err)
{
    struct start *s = arg;
    return cli_hub_model(s->c, &(struct ingle_callbacks){on_report, on_progress, s}, err);
}

static int serve_model(struct cli *c, const int *handed, int n_handed)
{
    struct server *s;
    struct server_info info;
    struct err err;
    struct start start = {.c = c, .percent = -1};
    const double limit = watchdog_seconds();
    const struct server_options o = {.listener = handed,
                                     .n_listeners = n_handed,
                                     .config = c->config,
                                     .callbacks = {on_report, on_progress, &start},
                                     .fetch = cli_hub_any(c) ? fetch : NULL,
                                     .fetch_arg = &start,
                                     .watchdog_seconds = limit > 0 ? limit : HUNG_SECONDS};
    if (server_open(&s, &o, &err))
        return cli_fail_err(c, &err);
    server_describe(s, &info);
    printf("ingle serve is loading the model; /health says so at %s\n", info.url);
    cli_push(c);
    if (server_load(s, &err)) {
        server_close(s);
        if (err.status == INGLE_CANCEL && last_signal != SIGINT)
            return CLI_OK; /* an order to stop, as later: no failure */
        return cli_fail_err(c, &err);
    }
    cli_screen_clear(&c->screen);
    server_describe(s, &info);
    printf("ingle serve listens on %s\n", info.url);
    describe(c, &info);
    cli_push(c);
    serve_until_signal(&(struct served){.c = c, .s = s});
    server_describe(s, &info);
    say_stop(c, &info);
    server_drain(s);
    server_close(s);
    return CLI_OK;
}

/* ---- several models ---- */

/* Names that LLAMA_ARG_... has and options have not. */
static const char *const environment_names[][2] = {{"batch", "batch-size"},
                                                   {"ubatch", "ubatch-size"},
                                                   {"n-parallel", "parallel"},
                                                   {"think", "reasoning-format"},
                                                   {"think-budget", "reasoning-budget"},
                                                   {"endpoint-metrics", "metrics"},
                                                   {"endpoint-slots", "slots"}};

/* A key of a preset as an option is called: "--ctx-size" and "LLAMA_ARG_CTX_SIZE" are ctx-size, as
 * for llama-server. */
static const char *plain_key(const char *key, char *out, size_t n)
{
    static const char begin[] = "LLAMA_ARG_";
    if (strncmp(key, begin, sizeof begin - 1) != 0)
        return key + (strncmp(key, "--", 2) == 0 ? 2 : key[0] == '-' && key[1]);
    key += sizeof begin - 1;
    size_t k = 0;
    for (; key[k] && k < n - 1; k++)
        out[k] = (char)(key[k] == '_' ? '-' : tolower((unsigned char)key[k]));
    out[k] = 0;
    for (size_t i = 0; i < sizeof environment_names / sizeof *environment_names; i++)
        if (strcmp(out, environment_names[i][0]) == 0)
            return environment_names[i][1];
    return out;
}

/* The options of presets.  They are read again while the server runs, then without notes. */
struct lines {
    struct cli *c;
    pthread_mutex_t lock;
    bool reported;
};

static ingle_status set_option(void *arg, struct ingle_config *config, const char *key,
                               const char *value, struct err *err)
{
    struct lines *l = arg;
    char name[64];
    pthread_mutex_lock(&l->lock);
    const ingle_status st = cli_option_line("serve", config, plain_key(key, name, sizeof name),
                                            value, l->reported ? NULL : &l->c->notes, err);
    pthread_mutex_unlock(&l->lock);
    return st ? st : cli_option_home(config, err);
}

static void print_notes(struct lines *l)
{
    pthread_mutex_lock(&l->lock);
    if (l->c->screen.progress)
        cli_notes_print(&l->c->notes);
    l->reported = true;
    pthread_mutex_unlock(&l->lock);
}

/* Lines of the models' processes, and what happens to them. */
static void on_model(void *arg, ingle_report_level level, const char *kind, const char *subject,
                     const char *text)
{
    struct cli *c = arg;
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    if (strcmp(kind, "presets") == 0) {
        if (level == INGLE_REPORT_ERROR || c->screen.level >= level)
            cli_line("ingle: %s: %s", level == INGLE_REPORT_ERROR ? "error" : "warning", text);
    } else if (level != INGLE_REPORT_NOTE || strcmp(kind, "model") != 0)
        callbacks.report(callbacks.arg, level, kind, subject, text);
    else if (c->screen.progress || strncmp(text, "ingle: error", 12) == 0 ||
             strncmp(text, "failed: ", 8) == 0)
        cli_line("[%s] %s", subject, text);
}

/* Where sockets belong: what systemd or the session has for this, else /tmp. */
static const char *socket_directory(void)
{
    static const char *const name[] = {"RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR", "TMPDIR"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        const char *path = getenv(name[i]);
        if (path && path[0] == '/' && strlen(path) < 60 && access(path, W_OK) == 0)
            return path;
    }
    return "/tmp";
}

static int serve_models(struct cli *c, const int *handed, int n_handed)
{
    struct router *r;
    struct server_info info;
    struct err err;
    struct lines lines = {.c = c, .lock = PTHREAD_MUTEX_INITIALIZER};
    const struct router_options o = {.listener = handed,
                                     .n_listeners = n_handed,
                                     .config = c->config,
                                     .callbacks = {.report = on_model, .arg = c},
                                     .environment = environ,
                                     .program = "/proc/self/exe",
                                     .directory = socket_directory(),
                                     .set = set_option,
                                     .arg = &lines};
    if (ingle_config_is_set(c->config, "model"))
        return cli_usage(c, "--models has all models: -m is for a server with one");
    c->notes.n = c->notes.n_more = 0; /* those of the command line have been printed */
    if (router_open(&r, &o, &err))
        return cli_fail_err(c, &err);
    print_notes(&lines);
    router_describe(r, &info);
    printf("ingle serve listens on %s\n", info.url);
    if (c->screen.progress)
        printf("models   are loaded when they are asked for: GET /v1/models lists them\n%s",
               info.n_keys ? ""
                           : "keys     none: every client that reaches the address has access\n");
    cli_push(c);
    serve_until_signal(&(struct served){.c = c, .r = r});
    router_describe(r, &info);
    say_stop(c, &info);
    router_drain(r);
    router_close(r);
    return CLI_OK;
}

int cli_serve(struct cli *c)
{
    int handed[MOST_HANDED] = {0};
    if (c->n_arg)
        return cli_usage(c, "serve takes no argument, not '%s'%s%s", c->arg[0],
                         cli_names_model(c, c->arg[0]) ? "; a model is -m " : "",
                         cli_names_model(c, c->arg[0]) ? c->arg[0] : "");
    if (ingle_config_flag(c->config, "page-pull") && !ingle_config_is_set(c->config, "models"))
        return cli_usage(c, "--page-pull is for --models: a server with one model has no list");
    if (ingle_config_flag(c->config, "plan"))
        return plan(c);
    const int n = inherited_sockets(handed);
    if (!catch_signals())
        return cli_fail_err(c, &(struct err){INGLE_IO, "no pipe for signals"});
    return ingle_config_is_set(c->config, "models") ? serve_models(c, handed, n)
                                                    : serve_model(c, handed, n);
}
