/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "server/server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* A signal handler has no other way to reach the main thread. */
static int wake[2] = {-1, -1};
static volatile sig_atomic_t n_signals;

static void on_signal(int number)
{
    const int e = errno;
    (void)number;
    if (++n_signals > 1)
        _exit(CLI_INTERRUPTED);
    if (write(wake[1], "", 1) < 0)
        _exit(CLI_INTERRUPTED);
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
    return true;
}

/* Loading stops at a signal. */
static int on_progress(void *arg, const char *job, double done, double total)
{
    struct cli *c = arg;
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    callbacks.progress(callbacks.arg, job, done, total);
    return n_signals > 0;
}

static void describe(const struct cli *c, const struct server_info *i)
{
    if (!c->screen.progress)
        return;
    printf("model    %s, %lld tokens of context, %d answers at once\n", i->model,
           (long long)i->n_ctx, i->parallel);
    printf("memory   %.1f MiB weights, up to %.1f MiB conversations\n",
           (double)i->weight_bytes / 1048576, (double)i->kv_bytes / 1048576);
    if (i->n_keys)
        printf("keys     %zu\n", i->n_keys);
    else
        printf("keys     none: whoever reaches the address may ask\n");
    if (strncmp(i->url, "unix:", 5) == 0)
        printf("try      curl --unix-socket %s http://localhost/v1/chat/completions", i->url + 5);
    else
        printf("try      curl %s/v1/chat/completions", i->url);
    printf("%s -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n",
           i->n_keys ? " -H 'Authorization: Bearer KEY'" : "");
}

int cli_serve(struct cli *c)
{
    struct server *s;
    struct server_info info;
    struct err err;
    if (c->n_arg)
        return cli_usage(c, "serve takes no argument, not '%s'", c->arg[0]);
    struct server_options o = {.config = c->config, .callbacks = cli_callbacks(c)};
    o.callbacks.progress = on_progress;
    if (!catch_signals())
        return cli_fail_err(c, &(struct err){INGLE_IO, "no pipe for signals"});
    if (server_open(&s, &o, &err))
        return cli_fail_err(c, &err);
    server_describe(s, &info);
    printf("ingle serve listens on %s\n", info.url);
    cli_push(c);
    if (server_load(s, &err)) {
        server_close(s);
        return cli_fail_err(c, &err);
    }
    cli_screen_clear(&c->screen);
    server_describe(s, &info);
    describe(c, &info);
    cli_push(c);
    struct pollfd p = {.fd = wake[0], .events = POLLIN};
    while (!n_signals)
        (void)poll(&p, 1, 1000);
    server_drain(s);
    server_close(s);
    return CLI_OK;
}
