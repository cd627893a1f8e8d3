/* SPDX-License-Identifier: Apache-2.0 */
/* help - what the program says of its commands and options. */
#include "cli/opt.h"

#include <ctype.h>
#include <string.h>

static bool is_shown(const struct ingle_option *o)
{
    return !cli_is_limit(o) && strcmp(o->group, "experiments") != 0;
}

/* The name of a limit for --limit NAME=VALUE. */
static const char *limit_name(const struct ingle_option *o)
{
    return o->name + (strncmp(o->name, "max-", 4) == 0 ? 4 : 0);
}

/* Words of text from column `indent` on, wrapped at 90; the cursor is at `column`. */
static void wrap(FILE *to, const char *text, int indent, int column)
{
    fprintf(to, "%*s", indent > column ? indent - column : column > 0, "");
    column = indent;
    for (const char *p = text; *p;) {
        const int n = (int)strcspn(p, " ");
        if (column > indent && column + 1 + n > 90) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            putc(' ', to);
            column++;
        }
        fwrite(p, 1, (size_t)n, to);
        column += n;
        p += n;
        p += strspn(p, " ");
    }
    putc('\n', to);
}

/* The text after the help of an option: range, choices, default. */
static void notes(char *out, size_t n, const struct ingle_option *o)
{
    size_t k = 0;
    out[0] = 0;
    if (o->kind == INGLE_OPTION_CHOICE)
        k += (size_t)snprintf(out, n, " [%s]", o->choices);
    else if ((o->kind == INGLE_OPTION_INT || o->kind == INGLE_OPTION_NUMBER) && o->max < 2e9)
        k += (size_t)snprintf(out, n, " [%g to %.10g]", o->min, o->max);
    if (o->fallback && k < n)
        snprintf(out + k, n - k, " (default: %s)", o->fallback);
}

static void print_option(FILE *to, const struct ingle_option *o)
{
    char more[256], text[1024];
    int column;
    if (o->letter)
        column = fprintf(to, "  -%c, --%s", o->letter, o->name);
    else
        column = fprintf(to, "      --%s", o->name);
    if (o->value)
        column += fprintf(to, " %s", o->value);
    notes(more, sizeof more, o);
    snprintf(text, sizeof text, "%s%s", o->help, more);
    if (column > 30) {
        putc('\n', to);
        column = 0;
    }
    wrap(to, text, 32, column);
}

static void print_limits(FILE *to, const struct ingle_option *o, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char more[256], text[1024];
        if (!cli_is_limit(&o[i]))
            continue;
        int column = fprintf(to, "          %s=%s", limit_name(&o[i]),
                             o[i].kind == INGLE_OPTION_FLAG ? "on" : o[i].value);
        notes(more, sizeof more, &o[i]);
        snprintf(text, sizeof text, "%s%s", o[i].help, more);
        if (column > 30) {
            putc('\n', to);
            column = 0;
        }
        wrap(to, text, 32, column);
    }
}

/* The options that --help shows of a command; NULL: all. */
static const char *daily_of(const char *command)
{
    static const struct { const char *command, *names; } daily[] = {
#define DAILY(command, names) {command, names},
#include "cli/daily.inc"
#undef DAILY
    };
    for (size_t i = 0; i < sizeof daily / sizeof *daily; i++)
        if (strcmp(daily[i].command, command) == 0)
            return daily[i].names;
    return NULL;
}

/* Whether an option is one of the command. */
static bool is_of(const struct ingle_option *o, const char *command)
{
    return is_shown(o) && (strcmp(o->where, "*") == 0 || cli_has_word(o->where, command));
}

/* The options of a group stand together, at the place of its first one. */
static void print_group(FILE *to, const struct ingle_option *o, size_t n, size_t first,
                        const char *command, const char *daily)
{
    const char *group = o[first].group;
    for (size_t i = 0; i < first; i++)
        if (strcmp(o[i].group, group) == 0 && is_of(&o[i], command) &&
            (!daily || cli_has_word(daily, o[i].name)))
            return;
    fprintf(to, "\n%c%s:\n", toupper((unsigned char)group[0]), group + 1);
    for (size_t i = first; i < n; i++) {
        if (strcmp(o[i].group, group) != 0 || !is_of(&o[i], command) ||
            (daily && !cli_has_word(daily, o[i].name)))
            continue;
        print_option(to, &o[i]);
        if (strcmp(o[i].name, "limit") == 0)
            print_limits(to, o, n);
    }
}

static void print_options(FILE *to, const char *command, bool whole)
{
    const char *daily = whole ? NULL : daily_of(command);
    size_t n_more = 0;
    size_t n;
    const struct ingle_option *o = ingle_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (!is_of(&o[i], command))
            continue;
        if (daily && !cli_has_word(daily, o[i].name))
            n_more++;
        else
            print_group(to, o, n, i, command, daily);
    }
    fprintf(to, "  -h, --help");
    wrap(to, "this text", 32, 12);
    if (n_more)
        fprintf(to, "\n--help-all shows %zu more options\n", n_more);
}

void cli_help_command(FILE *to, const struct cli_command *command, bool whole)
{
    fprintf(to, "usage: ingle %s [options]%s%s\n\n", command->name, *command->arguments ? " " : "",
            command->arguments);
    wrap(to, command->help, 0, 0);
    if (command->more) {
        putc('\n', to);
        fputs(command->more, to);
    }
    print_options(to, command->name, whole);
}

void cli_help_all(FILE *to)
{
    size_t n;
    const struct cli_command *c = cli_commands(&n);
    fprintf(to, "usage: ingle COMMAND [options] [arguments]\n\n"
                "ingle runs large language models on this machine.  Without -m it runs a tiny "
                "built-in one.\n\nCommands:\n");
    for (size_t i = 0; i < n; i++)
        wrap(to, c[i].help, 16, fprintf(to, "  %s", c[i].name));
    fputs(
        "\n'ingle COMMAND --help' lists the usual options of a command, '--help-all' all of them;\n"
        "'ingle models' shows which models this machine can run; 'ingle --version' the version;\n"
        "'ingle help others' what options of llama.cpp, vLLM and others are called here.\n"
        "Exit codes: 0 done, 1 failure, 2 wrong usage, 130 interrupted.\n",
        to);
}

/* Backslashes and hyphens of a manual page. */
static void roff(FILE *to, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '-')
            putc('\\', to);
        putc(*text, to);
    }
}

void cli_help_manual(FILE *to)
{
    size_t n_commands, n;
    const struct cli_command *c = cli_commands(&n_commands);
    const struct ingle_option *o = ingle_options(&n);
    char more[256];
    fprintf(to, ".TH INGLE 1 \"\" \"ingle %s\" \"User Commands\"\n.SH NAME\n"
                "ingle \\- run large language models on this machine\n.SH SYNOPSIS\n"
                ".B ingle\n.I command\n[options] [arguments]\n.SH COMMANDS\n",
            ingle_version());
    for (size_t i = 0; i < n_commands; i++) {
        fprintf(to, ".TP\n.B %s\n", c[i].name);
        roff(to, c[i].help);
        putc('\n', to);
    }
    fputs(".SH OPTIONS\n.B ingle\n.I command\n\\-\\-help lists the usual options of a command, "
          "\\-\\-help\\-all all of them.\n",
          to);
    for (size_t i = 0; i < n; i++) {
        if (!is_shown(&o[i]) && !cli_is_limit(&o[i]))
            continue;
        notes(more, sizeof more, &o[i]);
        fputs(".TP\n.B ", to);
        if (o[i].letter)
            fprintf(to, "\\-%c, ", o[i].letter);
        fputs(cli_is_limit(&o[i]) ? "\\-\\-limit " : "\\-\\-", to);
        roff(to, cli_is_limit(&o[i]) ? limit_name(&o[i]) : o[i].name);
        fprintf(to, "%s%s\n", !o[i].value ? "" : cli_is_limit(&o[i]) ? "=" : " ",
                o[i].value ? o[i].value : "");
        roff(to, o[i].help);
        roff(to, more);
        if (strcmp(o[i].where, "*") != 0)
            fprintf(to, ".\n(%s)", o[i].where);
        putc('\n', to);
    }
    fputs(".SH EXIT STATUS\n0 done, 1 failure, 2 wrong usage, 130 interrupted.\n", to);
}

void cli_help_markdown(FILE *to)
{
    size_t n_commands, n;
    const struct cli_command *c = cli_commands(&n_commands);
    const struct ingle_option *o = ingle_options(&n);
    char more[256];
    fputs("| command | what it does |\n|---|---|\n", to);
    for (size_t i = 0; i < n_commands; i++)
        fprintf(to, "| `ingle %s %s` | %s |\n", c[i].name, c[i].arguments, c[i].help);
    fputs("\n| option | commands | what it does |\n|---|---|---|\n", to);
    for (size_t i = 0; i < n; i++) {
        if (!is_shown(&o[i]) && !cli_is_limit(&o[i]))
            continue;
        notes(more, sizeof more, &o[i]);
        fprintf(to, "| `--%s%s%s%s`", cli_is_limit(&o[i]) ? "limit " : "",
                cli_is_limit(&o[i]) ? limit_name(&o[i]) : o[i].name,
                !o[i].value           ? ""
                : cli_is_limit(&o[i])     ? "="
                                      : " ",
                o[i].value ? o[i].value : "");
        if (o[i].letter)
            fprintf(to, ", `-%c`", o[i].letter);
        fprintf(to, " | %s | %s%s |\n", strcmp(o[i].where, "*") == 0 ? "all" : o[i].where,
                o[i].help, more);
    }
}
