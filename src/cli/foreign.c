/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/opt.h"

#include <string.h>

static const struct cli_foreign table[] = {
#define FOREIGN(of, name, letters, kind, ours, note)                                               \
    {of, name, letters, CLI_FOREIGN_##kind, ours, note},
#include "cli/foreign.inc"
#undef FOREIGN
};
enum { N_TABLE = sizeof table / sizeof *table };

static const struct {
    /* note: our option, or why there is none; NULL: 'ingle help others' has them */
    const char *begin, *of, *note;
} environment[] = {
#define FOREIGN(of, name, letters, kind, ours, note)
#define FOREIGN_ENVIRONMENT(begin, of, note) {begin, of, note},
#include "cli/foreign.inc"
#undef FOREIGN
#undef FOREIGN_ENVIRONMENT
};
enum { N_ENVIRONMENT = sizeof environment / sizeof *environment };

/* A name that ends in '*' stands for all that begin so. */
static bool is_name(const char *pattern, const char *name, size_t n)
{
    const size_t k = strlen(pattern);
    if (k && pattern[k - 1] == '*')
        return n >= k - 1 && strncmp(pattern, name, k - 1) == 0;
    return n == k && strncmp(pattern, name, n) == 0;
}

/* Underscores count as hyphens. */
static const struct cli_foreign *better(const char *command, const struct cli_foreign *a,
                                        const struct cli_foreign *b)
{
    return !a || (a->ours && b->ours && !cli_takes(command, a->ours) && cli_takes(command, b->ours))
               ? b
               : a;
}

static bool is_flag(const struct cli_foreign *f)
{
    return f->kind == CLI_FOREIGN_DONE || f->kind == CLI_FOREIGN_MAYBE;
}

const struct cli_foreign *cli_foreign_name(const char *command, const char *name, size_t n)
{
    const struct cli_foreign *found = NULL;
    char plain[64];
    if (n >= sizeof plain)
        return NULL;
    for (size_t i = 0; i < n; i++)
        plain[i] = name[i] == '_' ? '-' : name[i];
    for (size_t i = 0; i < N_TABLE; i++)
        if (is_name(table[i].name, plain, n))
            found = better(command, found, &table[i]);
    if (!found && n > 3 && strncmp(plain, "no-", 3) == 0) {
        const struct cli_foreign *f = cli_foreign_name(command, name + 3, n - 3);
        return f && is_flag(f) ? f : NULL;
    }
    return found;
}

const struct cli_foreign *cli_foreign_letters(const char *command, const char *letters, size_t n)
{
    const struct cli_foreign *found = NULL;
    for (size_t i = 0; i < N_TABLE; i++)
        if (table[i].letters && strlen(table[i].letters) == n &&
            strncmp(table[i].letters, letters, n) == 0)
            found = better(command, found, &table[i]);
    return found;
}

/* map: "theirs=ours theirs=ours", up to a '|'. */
static const char *word_for(const char *map, const char *value, size_t n, size_t *n_ours)
{
    const char *const names_end = map + strcspn(map, "|");
    for (const char *p = map; p < names_end; p += strcspn(p, " |"), p += *p == ' ') {
        const size_t k = strcspn(p, "="), end = strcspn(p, " |");
        if (k == n && strncmp(p, value, n) == 0) {
            *n_ours = end - k - 1;
            return p + k + 1;
        }
    }
    return NULL;
}

bool cli_foreign_word(const struct cli_foreign *f, const char *value, char *out, size_t n)
{
    out[0] = 0;
    for (const char *p = value;; p++) {
        const size_t k = strcspn(p, ",");
        size_t n_word;
        const char *word = word_for(f->note, p, k, &n_word);
        if (!word || n_word >= n)
            return false;
        if (out[0] && (strlen(out) != n_word || strncmp(out, word, n_word) != 0))
            snprintf(out, n, "auto");
        else
            snprintf(out, n, "%.*s", (int)n_word, word);
        p += k;
        if (!*p)
            return true;
    }
}

void cli_foreign_say(const struct cli_foreign *f, char *out, size_t n)
{
    switch (f->kind) {
    case CLI_FOREIGN_SAME:
        snprintf(out, n, "it is --%s here", f->ours);
        break;
    case CLI_FOREIGN_HAS:
    case CLI_FOREIGN_JSON:
        snprintf(out, n, "%s%s--%s%s", f->note ? f->note : "it is ", f->note ? " " : "", f->ours,
                 f->note ? "" : " here");
        break;
    case CLI_FOREIGN_WORD:
        snprintf(out, n, "it is --%s here: %s", f->ours, f->note);
        break;
    case CLI_FOREIGN_MOST:
        snprintf(out, n, "it is --%s here, %s", f->ours, f->note);
        break;
    case CLI_FOREIGN_HUB:
        snprintf(out, n, "it is --%s hf:... here", f->ours);
        break;
    default:
        snprintf(out, n, "%s", cli_foreign_why(f));
    }
}

/* The first line of the list whose beginning the name has; -1: none. */
static int variable_of(const char *name)
{
    for (int i = 0; i < N_ENVIRONMENT; i++)
        if (strncmp(name, environment[i].begin, strlen(environment[i].begin)) == 0)
            return i;
    return -1;
}

void cli_foreign_environment(struct cli *c, char *const *names)
{
    enum { SHOWN = 3 };
    struct str s;
    size_t n = 0;
    str_init(&s);
    for (; names && *names; names++) {
        const int k = (int)strcspn(*names, "="), at = variable_of(*names);
        if (at < 0 || n++ >= SHOWN)
            continue;
        str_addf(&s, "%s%.*s", n > 1 ? ", " : "", k, *names);
        if (environment[at].note)
            str_addf(&s, " (%s)", environment[at].note);
    }
    if (n > SHOWN)
        str_addf(&s, " and %zu more", n - SHOWN);
    if (n && str_ok(&s) && c->screen.progress)
        fprintf(stderr,
                "ingle: note: variables of other engines are not read: %s; 'ingle help others' has "
                "the options here\n",
                s.at);
    str_release(&s);
}

void cli_foreign_markdown(FILE *to)
{
    char what[360];
    fputs("# Options of other engines\n\n"
          "What llama.cpp (`llama-server`, `llama-cli`), its forks, ds4, lucebox, vLLM, SGLang and "
          "Ollama call an option, and what\n"
          "ingle has for it. An option with the same meaning is accepted. An option that changes "
          "no answer here is accepted with\n"
          "a note, which has its value and says why it is not needed; so is `--no-NAME` of such a "
          "flag. An option that would\n"
          "change answers is an error with the text of this table. Lines of presets "
          "(docs/use/router.md) and of `--config` are\n"
          "read by the same table. Programs of other engines: docs/use/from-others.md.\n"
          "`ingle help others` prints this page.\n\n"
          "| option | of | accepted | here |\n|---|---|---|---|\n",
          to);
    for (size_t i = 0; i < N_TABLE; i++) {
        const struct cli_foreign *f = &table[i];
        static const char *const taken[] = {[CLI_FOREIGN_SAME] = "yes",
                                            [CLI_FOREIGN_WORD] = "yes",
                                            [CLI_FOREIGN_HUB] = "yes",
                                            [CLI_FOREIGN_JSON] = "yes",
                                            [CLI_FOREIGN_SETS] = "yes",
                                            [CLI_FOREIGN_UNLESS] = "yes",
                                            [CLI_FOREIGN_SOME] = "yes",
                                            [CLI_FOREIGN_MIB] = "yes",
                                            [CLI_FOREIGN_MOST] = "yes",
                                            [CLI_FOREIGN_CARD] = "yes",
                                            [CLI_FOREIGN_PART] = "with a note",
                                            [CLI_FOREIGN_DONE] = "with a note",
                                            [CLI_FOREIGN_MAYBE] = "with a note",
                                            [CLI_FOREIGN_TAKEN] = "with a note and its value",
                                            [CLI_FOREIGN_ONLY] = "some values",
                                            [CLI_FOREIGN_ORDER] = "some values",
                                            [CLI_FOREIGN_LAUNCH] = "for several processes",
                                            [CLI_FOREIGN_HAS] = "no",
                                            [CLI_FOREIGN_NONE] = "no"};
        cli_foreign_say(f, what, sizeof what);
        fprintf(to, "| `--%s`", f->name);
        if (f->letters)
            fprintf(to, ", `-%s`", f->letters);
        fprintf(to, " | %s | %s | ", f->of, taken[f->kind]);
        if (f->kind == CLI_FOREIGN_SAME)
            fprintf(to, "`--%s` |\n", f->ours);
        else if (f->kind == CLI_FOREIGN_SETS && !strchr(f->note, '|'))
            fprintf(to, "`--%s %s` |\n", f->ours, f->note);
        else if (f->kind == CLI_FOREIGN_MIB && !f->note)
            fprintf(to, "`--%s`, in MiB |\n", f->ours);
        else
            fprintf(to, "%s |\n", what);
    }
    cli_foreign_json_markdown(to);
    fputs("\nEnvironment variables are not read. Where some of another engine are set, a line says "
          "so:",
          to);
    for (size_t i = 0; i < N_ENVIRONMENT; i++) {
        const char *begin = environment[i].begin, *note = environment[i].note;
        fprintf(to, "%s `%s%s`", i ? "," : "", begin, begin[strlen(begin) - 1] == '_' ? "*" : "");
        if (note)
            fprintf(to, " (%s)", note);
    }
    fputs(". Those of Hugging Face's tools (`HF_TOKEN`, `HF_ENDPOINT` ...) are read\nwhere models "
          "come from a hub: [pull.md](pull.md).\n",
          to);
}
