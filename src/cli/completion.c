/* SPDX-License-Identifier: Apache-2.0 */
/* completion - what shells offer after 'ingle', made from the tables of commands and options. */
#include "cli/cli.h"

#include <string.h>

static bool has_word(const char *list, const char *word)
{
    const size_t k = strlen(word);
    for (const char *p = list; *p; p += strcspn(p, " "), p += strspn(p, " "))
        if (strcspn(p, " ") == k && strncmp(p, word, k) == 0)
            return true;
    return false;
}

static bool takes(const char *command, const struct ingle_option *o)
{
    return strcmp(o->group, "experiments") != 0 && strcmp(o->group, "limits") != 0 &&
           (strcmp(o->where, "*") == 0 || has_word(o->where, command));
}

enum value { NO_VALUE, WORDS, FILES, FOLDERS, OTHER };

static enum value value_of(const struct ingle_option *o)
{
    if (o->kind == INGLE_OPTION_FLAG)
        return NO_VALUE;
    if (o->kind == INGLE_OPTION_CHOICE)
        return WORDS;
    if (o->value && strcmp(o->value, "DIR") == 0)
        return FOLDERS;
    return o->value && (strstr(o->value, "FILE") || strcmp(o->value, "WHAT") == 0) ? FILES : OTHER;
}

/* Text between single quotes; `more`: characters that get a backslash as well. */
static void quoted(FILE *to, const char *text, const char *more)
{
    putc('\'', to);
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\'", to);
        else if (strchr(more, *text))
            putc('\\', to);
        putc(*text, to);
    }
    putc('\'', to);
}

/* The arguments of help, which are no commands. */
static const char help_words[] = "man markdown others bash zsh fish";

/* ---- bash ---- */

static void bash_values(FILE *to, const struct ingle_option *o, size_t n, const char *command)
{
    for (size_t i = 0; i < n; i++) {
        const enum value v = value_of(&o[i]);
        if (!takes(command, &o[i]) || v == NO_VALUE)
            continue;
        fprintf(to, "        --%s", o[i].name);
        if (o[i].letter)
            fprintf(to, "|-%c", o[i].letter);
        if (v == WORDS)
            fprintf(to, ") words='%s' ;;\n", o[i].choices);
        else
            fprintf(to, ") kind=%s ;;\n",
                    v == FILES     ? "file"
                    : v == FOLDERS ? "directory"
                                   : "none");
    }
}

void cli_completion_bash(FILE *to)
{
    size_t n_commands, n;
    const struct cli_command *c = cli_commands(&n_commands);
    const struct ingle_option *o = ingle_options(&n);
    fputs("# bash completion of ingle; 'ingle help bash' prints it\n"
          "_ingle()\n{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words= kind= "
          "options=\n"
          "    COMPREPLY=()\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W '",
          to);
    for (size_t i = 0; i < n_commands; i++)
        fprintf(to, "%s ", c[i].name);
    fputs("help --help --version' -- \"$cur\"))\n        return\n    fi\n"
          "    if [ \"$prev\" = = ] && [ \"$COMP_CWORD\" -gt 2 ]; then\n        "
          "prev=${COMP_WORDS[COMP_CWORD - 2]}\n    fi\n"
          "    if [ \"$cur\" = = ]; then\n        cur=\n    fi\n"
          "    case ${COMP_WORDS[1]} in\n",
          to);
    for (size_t i = 0; i < n_commands; i++) {
        fprintf(to, "    %s)\n        options='", c[i].name);
        for (size_t k = 0; k < n; k++)
            if (takes(c[i].name, &o[k]))
                fprintf(to, "--%s ", o[k].name);
        fputs("--help --help-all'\n        case $prev in\n", to);
        bash_values(to, o, n, c[i].name);
        fputs("        esac ;;\n", to);
    }
    fputs("    help)\n        words='", to);
    for (size_t i = 0; i < n_commands; i++)
        fprintf(to, "%s ", c[i].name);
    fprintf(to, "%s' ;;\n", help_words);
    fputs(
        "    esac\n"
        "    if [ -n \"$words\" ]; then\n        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
        "    elif [ \"$kind\" = directory ]; then\n        compopt -o filenames 2>/dev/null\n"
        "        COMPREPLY=($(compgen -d -- \"$cur\"))\n"
        "    elif [ \"$kind\" = none ]; then\n        return\n"
        "    elif [ -z \"$kind\" ] && [ \"${cur:0:1}\" = - ]; then\n        COMPREPLY=($(compgen "
        "-W \"$options\" -- \"$cur\"))\n"
        "    else\n        compopt -o filenames 2>/dev/null\n        COMPREPLY=($(compgen -f -- "
        "\"$cur\"))\n    fi\n"
        "}\ncomplete -F _ingle ingle\n",
        to);
}

/* ---- zsh ---- */

static void zsh_option(FILE *to, const struct ingle_option *o)
{
    const enum value v = value_of(o);
    char spec[2048];
    size_t k = 0;
    /* Brackets and colons have a meaning in the specification. */
    k += (size_t)snprintf(spec, sizeof spec, "--%s%s[", o->name, v == NO_VALUE ? "" : "=");
    for (const char *p = o->help; *p && k < sizeof spec - 512; p++) {
        if (strchr("[]:\\", *p))
            spec[k++] = '\\';
        spec[k++] = *p;
    }
    k += (size_t)snprintf(spec + k, sizeof spec - k, "]");
    if (v != NO_VALUE)
        k += (size_t)snprintf(spec + k, sizeof spec - k, ":%s:", o->value ? o->value : "value");
    if (v == WORDS)
        (void)snprintf(spec + k, sizeof spec - k, "(%s)", o->choices);
    else if (v == FILES || v == FOLDERS)
        (void)snprintf(spec + k, sizeof spec - k, "_files%s", v == FOLDERS ? " -/" : "");
    fputs("            ", to);
    if (o->kind == INGLE_OPTION_LIST)
        putc('*', to);
    quoted(to, spec, "");
    fputs(" \\\n", to);
}

void cli_completion_zsh(FILE *to)
{
    size_t n_commands, n;
    const struct cli_command *c = cli_commands(&n_commands);
    const struct ingle_option *o = ingle_options(&n);
    fputs("#compdef ingle\n# zsh completion of ingle; 'ingle help zsh' prints it\n_ingle()\n{\n    "
          "local -a commands\n    commands=(\n",
          to);
    for (size_t i = 0; i < n_commands; i++) {
        fprintf(to, "        %s:", c[i].name);
        quoted(to, c[i].help, ":");
        putc('\n', to);
    }
    fputs(
        "        help:'options and commands'\n    )\n"
        "    if (( CURRENT == 2 )); then\n        _describe command commands\n        return\n    "
        "fi\n"
        "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $command in\n",
        to);
    for (size_t i = 0; i < n_commands; i++) {
        fprintf(to, "    %s)\n        _arguments \\\n", c[i].name);
        for (size_t k = 0; k < n; k++)
            if (takes(c[i].name, &o[k]))
                zsh_option(to, &o[k]);
        fputs("            '--help[the usual options]' '--help-all[all options]' '*:file:_files' "
              ";;\n",
              to);
    }
    fputs("    help) _values command ", to);
    for (size_t i = 0; i < n_commands; i++)
        fprintf(to, "%s ", c[i].name);
    fprintf(to, "%s ;;\n    esac\n}\n_ingle \"$@\"\n", help_words);
}

/* ---- fish ---- */

void cli_completion_fish(FILE *to)
{
    size_t n_commands, n;
    const struct cli_command *c = cli_commands(&n_commands);
    const struct ingle_option *o = ingle_options(&n);
    fputs("# fish completion of ingle; 'ingle help fish' prints it\n"
          "complete -c ingle -n __fish_use_subcommand -f\n", to);
    for (size_t i = 0; i < n_commands; i++) {
        fprintf(to, "complete -c ingle -n __fish_use_subcommand -a %s -d ", c[i].name);
        quoted(to, c[i].help, "\\");
        putc('\n', to);
    }
    fputs("complete -c ingle -n __fish_use_subcommand -a help -d 'options and commands'\n"
          "complete -c ingle -n '__fish_seen_subcommand_from help' -f -a '", to);
    for (size_t i = 0; i < n_commands; i++)
        fprintf(to, "%s ", c[i].name);
    fprintf(to, "%s'\n", help_words);
    for (size_t k = 0; k < n; k++) {
        const enum value v = value_of(&o[k]);
        fputs("complete -c ingle -n '__fish_seen_subcommand_from", to);
        for (size_t i = 0; i < n_commands; i++)
            if (takes(c[i].name, &o[k]))
                fprintf(to, " %s", c[i].name);
        fprintf(to, "' -l %s", o[k].name);
        if (o[k].letter)
            fprintf(to, " -s %c", o[k].letter);
        if (v == WORDS)
            fprintf(to, " -x -a '%s'", o[k].choices);
        else if (v == FOLDERS)
            fputs(" -x -a '(__fish_complete_directories)'", to);
        else if (v == FILES)
            fputs(" -r -F", to);
        else if (v == OTHER)
            fputs(" -x", to);
        fputs(" -d ", to);
        quoted(to, o[k].help, "\\");
        putc('\n', to);
    }
}
