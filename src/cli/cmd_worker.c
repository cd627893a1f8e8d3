/* SPDX-License-Identifier: Apache-2.0 */
/* ingle worker: experts of a model, or some of its layers, for engines in other processes and on
 * other machines (docs/use/workers.md, docs/use/stages.md). */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/input.h"

#include "base/size.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

/* A signal handler has no other way to reach the main thread. */
static struct ingle_worker *volatile running;
static volatile sig_atomic_t n_signals;

static void on_signal(int number)
{
    (void)number;
    struct ingle_worker *w = running;
    if (!w || ++n_signals > 1)
        _exit(CLI_INTERRUPTED);
    ingle_worker_stop(w);
}

/* Whoever reads that it listens may end it. */
static void catch_signals(struct ingle_worker *w)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    running = w;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void print_end(const struct cli *c, const struct ingle_worker *w)
{
    struct ingle_worker_info n;
    ingle_worker_info(w, &n);
    if (ingle_config_text(c->config, "stage", 0)) {
        if (c->screen.progress)
            fprintf(stderr,
                    "ingle: note: %llu steps, %llu rows, %llu failed; %llu peers were refused\n",
                    (unsigned long long)n.evals, (unsigned long long)n.pairs,
                    (unsigned long long)n.failed, (unsigned long long)n.refused);
        return;
    }
    if (c->screen.progress)
        fprintf(stderr,
                "ingle: note: %llu evaluations, %llu rows of experts; %llu of %llu experts were in "
                "memory, %s were read; %llu peers were refused\n",
                (unsigned long long)n.evals, (unsigned long long)n.pairs,
                (unsigned long long)n.hits, (unsigned long long)(n.hits + n.misses),
                SIZE_OF(n.read_bytes), (unsigned long long)n.refused);
}

int cli_worker(struct cli *c)
{
    struct ingle_error error;
    struct ingle_model *m = NULL;
    struct ingle_worker *w = NULL;
    struct ingle_engine_options o = {.callbacks = cli_callbacks(c)};
    /* ds4's --layers is --stage here */
    const char *layers = c->launch.stage ? NULL : ingle_config_text(c->config, "layers", 0);
    const struct ingle_worker_options how = {.listen = ingle_config_text(c->config, "listen", 0),
                                             .layers = layers,
                                             .stage = ingle_config_text(c->config, "stage", 0),
                                             .once = c->launch.once};
    if (c->n_arg)
        return cli_usage(c, "'%s' is no option; a worker takes no arguments", c->arg[0]);
    if (cli_open_model(c, &m, &error))
        return cli_fail(c, &error);
    ingle_config_engine(c->config, &o);
    if (ingle_worker_open(&w, m, &o, &how, &error)) {
        ingle_model_close(m);
        return cli_fail(c, &error);
    }
    catch_signals(w);
    cli_screen_clear(&c->screen);
    printf("listening on %s\n", ingle_worker_address(w));
    cli_push(c);
    ingle_worker_run(w);
    print_end(c, w);
    running = NULL;
    ingle_worker_close(w);
    ingle_model_close(m);
    return CLI_OK;
}
