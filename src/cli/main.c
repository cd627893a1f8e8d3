/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/hub.h"
#include "cli/opt.h"

#include "base/mem.h"
#include "base/near.h"
#include "base/output.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

extern char **environ;

static int unknown_command(const char *name)
{
    const char *word[CLI_COMMANDS];
    size_t n;
    const struct cli_command *c = cli_commands(&n);
    for (size_t i = 0; i < n; i++)
        word[i] = c[i].name;
    if (name[0] == '-') {
        static const char *const own[] = {"--help", "--version"};
        const char *meant = near_word(own, sizeof own / sizeof *own, name);
        if (meant) {
            cli_line("ingle: error: there is no option '%s'; did you mean '%s'?", name, meant);
            return CLI_USAGE;
        }
        cli_line("ingle: error: a command comes before options such as '%s': ingle chat %s ..., or "
                 "ingle run, ingle serve (see 'ingle --help')",
                 name, name);
        return CLI_USAGE;
    }
    const size_t length = strlen(name);
    if (cli_hub_names(name) || (length > 5 && strcasecmp(name + length - 5, ".gguf") == 0)) {
        cli_line("ingle: error: '%s' is a model, not a command: ingle chat -m %s, or ingle run, "
                 "ingle serve (see 'ingle --help')",
                 name, name);
        return CLI_USAGE;
    }
    const char *meant = near_word(word, n, name);
    cli_line("ingle: error: there is no command '%s'%s%s%s (see 'ingle --help')", name,
             meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
    return CLI_USAGE;
}

/* "ingle help [COMMAND | man | markdown | others | bash | zsh | fish]" */
static int help(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*print)(FILE *to);
    } pages[] = {{"man", cli_help_manual},         {"markdown", cli_help_markdown},
                 {"others", cli_foreign_markdown}, {"bash", cli_completion_bash},
                 {"zsh", cli_completion_zsh},      {"fish", cli_completion_fish}};
    const struct cli_command *command = argc > 2 ? cli_command_find(argv[2]) : NULL;
    for (size_t i = 0; argc > 2 && i < sizeof pages / sizeof *pages; i++)
        if (strcmp(argv[2], pages[i].name) == 0) {
            pages[i].print(stdout);
            return CLI_OK;
        }
    if (argc > 2 && !command)
        return unknown_command(argv[2]);
    else if (command)
        cli_help_command(stdout, command, argc > 3 && strcmp(argv[3], "--help-all") == 0);
    else
        cli_help_all(stdout);
    return CLI_OK;
}

/* What -m may have meant: a model of a hub without "hf:", a name of another program's models. */
static ingle_status check_model(const struct cli *c, struct err *err)
{
    const char *model = ingle_config_text(c->config, "model", 0);
    struct stat about;
    if (model && !cli_hub_names(model) && stat(model, &about) && errno == ENOENT &&
        !strstr(model, ".gguf") && !strstr(model, ".safetensors")) {
        const char *slash = strchr(model, '/');
        if (!slash)
            return err_set(err, INGLE_NOTFOUND,
                           "%s: there is no such file or folder; 'ingle models' shows models and "
                           "the commands that fetch them",
                           model);
        if (slash > model && slash[1] && model[0] != '.' && !strchr(slash + 1, '/'))
            return err_set(err, INGLE_NOTFOUND,
                           "%s: there is no such file or folder; a model of a hub is -m hf:%s",
                           model, model);
    }
    return INGLE_OK;
}

/* The command, or what a launcher has this process be. */
static int run_part(struct cli *c, const struct cli_command *command)
{
    struct err err;
    const char *other;
    if (cli_launch(c, &other, &err))
        return cli_fail_err(c, &err);
    return (other ? cli_command_find(other) : command)->run(c);
}

static int run(struct cli *c, const struct cli_command *command, int argc, char **argv)
{
    bool wants_help;
    int rc = cli_options_read(c, argc, argv, 2, &wants_help);
    if (wants_help && !rc) {
        cli_help_command(stdout, command, c->help_all);
        return cli_flush(c);
    }
    struct err err;
    if (!rc && cli_option_file(c, &err))
        return cli_fail_err(c, &err);
    if (!rc && cli_launch_check(c, &err))
        return cli_usage(c, "%s", err.msg);
    if (rc)
        return rc;
    if (check_model(c, &err))
        return cli_fail_err(c, &err);
    const char *memory = ingle_config_text(c->config, "memory", 0);
    if (memory && !memory[strspn(memory, "0123456789")] && strlen(memory) < 6 &&
        memory[strspn(memory, "0")])
        return cli_usage(c, "option '--memory': %s are bytes; write %sG for GiB", memory, memory);
    cli_screen_init(&c->screen, c->config);
    if (c->screen.level >= INGLE_REPORT_WARN)
        cli_options_idle(c);
    if (c->screen.progress)
        cli_notes_print(&c->notes);
    cli_command_fn *const answers[] = {cli_chat, cli_run, cli_serve, cli_daemon};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (command->run == answers[i])
            cli_foreign_environment(c, environ);
    struct ingle_error error;
    if (cli_pack_default(c, &error))
        return cli_fail(c, &error);
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    const bool later =
        command->run == cli_serve && !ingle_config_is_set(c->config, "models") && !c->launch.stage;
    if (!later && cli_hub_model(c, &callbacks, &err))
        rc = cli_fail_err(c, &err);
    else
        rc = cli_files(c, &err) ? cli_fail_err(c, &err) : run_part(c, command);
    cli_hub_drop(c);
    cli_screen_clear(&c->screen);
    const int flushed = cli_flush(c);
    return rc ? rc : flushed;
}

/* A path that a shell takes as it is; else the name. */
static const char *program_of(const char *path)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789/._+-";
    return *path && *path != '-' && !path[strspn(path, plain)] ? path : "ingle";
}

int main(int argc, char **argv)
{
    mem_keep_little();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file that may not grow (ulimit -f) */
    cli_watch_files();
    if (argc < 2) {
        cli_help_all(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        struct cli none = {0};
        printf("ingle %s\n", ingle_version());
        return cli_flush(&none);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "--help-all") == 0 || strcmp(argv[1], "help") == 0) {
        struct cli none = {0};
        const int rc = help(argc, argv), flushed = cli_flush(&none);
        return rc ? rc : flushed;
    }
    const struct cli_command *command = cli_command_find(argv[1]);
    if (!command)
        return unknown_command(argv[1]);
    struct cli c = {.command = command->name, .program = program_of(argv[0])};
    struct ingle_error error;
    c.arg = mem_calloc((size_t)argc, sizeof *c.arg);
    int rc;
    if (!c.arg || ingle_config_open(&c.config, &error)) {
        fputs("ingle: error: out of memory\n", stderr);
        rc = CLI_FAILURE;
    } else {
        rc = run(&c, command, argc, argv);
    }
    output_guard_free(c.guard);
    ingle_config_close(c.config);
    mem_free(c.arg);
    return rc;
}
