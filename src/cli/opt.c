/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/opt.h"

#include "base/ini.h"
#include "base/mem.h"
#include "base/plain.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

/* Whether the value of an option is text, and not the name of a file, which may have any bytes. */
static bool is_text(const struct ingle_option *o)
{
    return o && (o->kind == INGLE_OPTION_TEXT || o->kind == INGLE_OPTION_LIST) &&
           strcmp(o->value, "FILE") != 0 && strcmp(o->value, "DIR") != 0 &&
           strcmp(o->value, "ADDRESS") != 0;
}

/* A word that another engine has for a choice of an option that is called as ours: --numa
 * distribute. */
static const char *our_word(const char *command, const struct ingle_option *o, const char *value,
                            char room[32])
{
    if (!o || o->kind != INGLE_OPTION_CHOICE || !value || cli_has_word(o->choices, value))
        return value;
    const struct cli_foreign *f = cli_foreign_name(command, o->name, strlen(o->name));
    return f && f->kind == CLI_FOREIGN_WORD && strcmp(f->ours, o->name) == 0 &&
                   cli_foreign_word(f, value, room, 32)
               ? room
               : value;
}

/* other: what was typed, if it is another engine's name; or NULL. */
static int set(struct cli *c, const char *name, const char *value, const char *other)
{
    char room[32];
    struct ingle_error error;
    struct err err;
    char what[80];
    snprintf(what, sizeof what, "option '--%s'", name);
    if (value && is_text(cli_by_name(name)) && plain_check(what, value, strlen(value), &err))
        return cli_usage(c, "%s%s%s", other ? other : "", other ? ": " : "", err.msg);
    const bool again = strcmp(name, "model") == 0 && ingle_config_is_set(c->config, name);
    if (again && value && strcmp(value, ingle_config_text(c->config, name, 0)) != 0)
        return cli_usage(c, "a second model '%s': a process has one", value);
    if (value && strchr(value, ',') && strcmp(name, "threads") == 0 &&
        strcmp(c->command, "bench") == 0)
        name = "scaling";
    value = our_word(c->command, cli_by_name(name), value, room);
    if (ingle_config_set(c->config, c->command, name, value, &error) == INGLE_OK)
        return CLI_OK;
    return cli_usage(c, "%s%s%s", other ? other : "", other ? ": " : "", error.text);
}

/* The value of an option: what stands after '=', or the next argument.  False after saying that it
 * is missing. */
static bool take_value(struct cli *c, const struct ingle_option *o, const char *spelt, int argc,
                       char **argv, int *i, const char **value)
{
    if (o->kind == INGLE_OPTION_FLAG && o->choices && !*value && *i + 1 < argc &&
        cli_has_word(o->choices, argv[*i + 1]))
        *value = argv[++*i]; /* --think off */
    if (o->kind == INGLE_OPTION_FLAG || *value)
        return true;
    if (*i + 1 >= argc) {
        cli_usage(c, "option '%s' needs a value", spelt);
        return false;
    }
    *value = argv[++*i];
    return true;
}

/* The value of an option of another engine: after '=', or the next argument.  False after saying
 * that it is missing. */
static bool foreign_value(struct cli *c, const struct cli_foreign *f, const struct ingle_option *o,
                          const char *spelt, int argc, char **argv, int *i, const char **value)
{
    const enum cli_values how = cli_foreign_values(f);
    if (f->kind == CLI_FOREIGN_SAME && o)
        return take_value(c, o, spelt, argc, argv, i, value);
    if (*value || how == CLI_NO_VALUE || f->kind == CLI_FOREIGN_NONE || f->kind == CLI_FOREIGN_HAS)
        return true;
    if (how == CLI_MAY_HAVE_VALUE && (*i + 1 >= argc || !cli_switch(argv[*i + 1])))
        return true;
    if (*i + 1 >= argc) {
        cli_usage(c, "option '%s' needs a value", spelt);
        return false;
    }
    *value = argv[++*i];
    return true;
}

/* An option that another engine has, spelt --name or -letters; value: after '=', or NULL. */
static int read_foreign(struct cli *c, const struct cli_foreign *f, const char *spelt,
                        const char *value, int argc, char **argv, int *i)
{
    struct cli_setting s;
    struct err err;
    const bool is_ours = f->ours && f->kind != CLI_FOREIGN_HAS && f->kind != CLI_FOREIGN_LAUNCH;
    const struct ingle_option *o = is_ours ? cli_by_name(f->ours) : NULL;
    const bool may_lack = f->kind == CLI_FOREIGN_SOME || f->kind == CLI_FOREIGN_UNLESS ||
                          f->kind == CLI_FOREIGN_CARD;
    if (o && !cli_option_takes(c->command, o) && !may_lack)
        return cli_usage(c, "'%s' takes no %s: it is --%s here, of %s", c->command, spelt, o->name,
                         o->where);
    if (!foreign_value(c, f, o, spelt, argc, argv, i, &value))
        return CLI_USAGE;
    if (f->kind == CLI_FOREIGN_LAUNCH) {
        const bool two = cli_launch_has_two(f, *i + 1 < argc ? argv[*i + 1] : NULL);
        cli_launch_take(c, f, spelt, value, two ? argv[++*i] : NULL);
        return CLI_OK;
    }
    if (f->kind == CLI_FOREIGN_JSON)
        return cli_foreign_json(f->name, value, c->command, c->config, &c->notes, &err)
                   ? cli_usage(c, "%s: %s", spelt, err.msg)
                   : CLI_OK;
    if (cli_foreign_take(f, spelt, value, &s, &c->notes, &err))
        return cli_usage(c, "%s", err.msg);
    if (s.name && !cli_takes(c->command, s.name)) { /* off already */
        cli_note_add(&c->notes, spelt, value, cli_foreign_why(f));
        return CLI_OK;
    }
    if (s.name && c->n_typed < sizeof c->typed / sizeof *c->typed) {
        c->typed[c->n_typed].ours = cli_by_name(s.name)->name;
        snprintf(c->typed[c->n_typed].spelt, sizeof c->typed->spelt, "%s", spelt);
        c->n_typed++;
    }
    return s.name ? set(c, s.name, s.value, spelt) : CLI_OK;
}

/* argv[*i] begins with "--"; takes its value from after '=' or from the next argument. */
static int read_long(struct cli *c, int argc, char **argv, int *i)
{
    char name[64], spelt[68];
    const char *word = argv[*i] + 2, *equals = strchr(word, '=');
    const size_t n = equals ? (size_t)(equals - word) : strlen(word);
    snprintf(name, sizeof name, "%.*s", (int)(n < 63 ? n : 63), word);
    snprintf(spelt, sizeof spelt, "--%s", name);
    const struct ingle_option *o = cli_by_name(name);
    const struct cli_foreign *f =
        o && cli_option_takes(c->command, o) && !cli_is_limit(o)
            ? NULL
            : cli_foreign_name(c->command, word, n);
    const char *value = equals ? equals + 1 : NULL;
    if (f && !(o && f->ours && strcmp(f->ours, o->name) == 0))
        return read_foreign(c, f, spelt, value, argc, argv, i);
    if (o && !take_value(c, o, spelt, argc, argv, i, &value))
        return CLI_USAGE;
    return set(c, name, value, NULL);
}

/* "-q", "-n5", "-n 5"; and the short forms of others, which have several letters: "-ngl 99" */
static int read_short(struct cli *c, int argc, char **argv, int *i)
{
    const char *word = argv[*i] + 1;
    const size_t n = strcspn(word, "=");
    char spelt[68];
    snprintf(spelt, sizeof spelt, "-%.*s", (int)(n < 60 ? n : 60), word);
    const struct ingle_option *first = cli_by_letter(c->command, *word);
    const struct cli_foreign *f = n > 1 || !first || !cli_option_takes(c->command, first)
                                      ? cli_foreign_letters(c->command, word, n)
                                      : NULL;
    if (f && (n > 1 || !first || !f->ours || strcmp(f->ours, first->name) != 0))
        return read_foreign(c, f, spelt, word[n] ? word + n + 1 : NULL, argc, argv, i);
    for (; *word; word++) {
        const struct ingle_option *o = cli_by_letter(c->command, *word);
        if (!o)
            return cli_usage(c, "there is no option '-%c'", *word);
        if (o->kind == INGLE_OPTION_FLAG) {
            const int rc = set(c, o->name, NULL, NULL);
            if (rc)
                return rc;
            continue;
        }
        const char *value = word[1] ? word + 1 : NULL;
        snprintf(spelt, sizeof spelt, "-%c", *word);
        return take_value(c, o, spelt, argc, argv, i, &value) ? set(c, o->name, value, NULL)
                                                              : CLI_USAGE;
    }
    return CLI_OK;
}

static ingle_status put(struct ingle_config *config, const char *command, const char *name,
                        const char *value, struct err *err)
{
    char room[32];
    struct ingle_error error;
    value = our_word(command, cli_by_name(name), value, room);
    return ingle_config_set(config, command, name, value, &error)
               ? err_set(err, error.status, "%s", error.text)
               : INGLE_OK;
}

ingle_status cli_option_line(const char *command, struct ingle_config *config, const char *key,
                             const char *value, struct cli_notes *notes, struct err *err)
{
    struct cli_setting s;
    const size_t n = strlen(key);
    const struct ingle_option *o = n == 1 ? cli_by_letter(command, *key) : cli_by_name(key);
    const struct cli_foreign *f =
        o && cli_option_takes(command, o) && !cli_is_limit(o) ? NULL
                                                              : cli_foreign_name(command, key, n);
    if (!f && !o)
        f = cli_foreign_letters(command, key, n);
    if (!f)
        return put(config, command, o ? o->name : key, value, err);
    if (f->kind == CLI_FOREIGN_JSON)
        return cli_foreign_json(f->name, value, command, config, notes, err)
                   ? err_prefix(err, "%s", key)
                   : INGLE_OK;
    const ingle_status st = cli_foreign_take(f, key, value, &s, notes, err);
    return st || !s.name ? st : put(config, command, s.name, s.value, err);
}

/* Whether the value of an option is the path of a file or folder. */
static bool is_path(const struct ingle_option *o)
{
    return o->value && (strstr(o->value, "FILE") || strcmp(o->value, "DIR") == 0 ||
                        strcmp(o->name, "draft") == 0);
}

ingle_status cli_option_home(struct ingle_config *config, struct err *err)
{
    size_t n;
    struct ingle_error error;
    const struct ingle_option *o = ingle_options(&n);
    const char *home = getenv("HOME"), *text;
    for (size_t i = 0; i < n && home && *home; i++)
        for (size_t k = 0; is_path(&o[i]) && ingle_config_is_set(config, o[i].name) &&
                           (text = ingle_config_text(config, o[i].name, k));
             k++) {
            if (strncmp(text, "~/", 2) != 0)
                continue;
            struct str path;
            str_init(&path);
            str_addf(&path, "%s%s", home, text + 1);
            const ingle_status st =
                !str_ok(&path) ? INGLE_NOMEM
                               : ingle_config_replace(config, o[i].name, k, path.at, &error);
            str_release(&path);
            if (st)
                return err_set(err, st, "%s: no memory for a path, or '%s' is none", o[i].name,
                               home);
        }
    return INGLE_OK;
}

enum { MOST_WRONG = 50 };

struct lines {
    const char *command;
    struct ingle_config *config;
    struct cli_notes *notes;
    struct str wrong; /* of the file's lines the first MOST_WRONG, one a line */
    size_t n_wrong;
};

static ingle_status take_line(void *arg, int line, const char *section, const char *key,
                              const char *value, struct err *err)
{
    const struct lines *l = arg;
    (void)line;
    if (!key)
        return err_set(err, INGLE_FORMAT,
                       "[%s]: there are no sections here; those of several models are for --models",
                       section);
    if (strcmp(key, "config") == 0)
        return err_set(err, INGLE_FORMAT, "a file names no other file");
    return cli_option_line(l->command, l->config, key, value, l->notes, err);
}

static void take_wrong(void *arg, const char *text)
{
    struct lines *l = arg;
    if (++l->n_wrong > MOST_WRONG)
        return;
    str_adds(&l->wrong, text);
    str_addc(&l->wrong, '\n');
}

/* Of several wrong lines each is shown, and the error counts them. */
static ingle_status show_wrong(const struct lines *l, const char *path, ingle_status st,
                               struct err *err)
{
    struct err first;
    if (l->n_wrong < 2)
        return st;
    err_set(&first, st, "%s", err ? err->msg : "");
    for (const char *at = l->wrong.at, *end; at && (end = strchr(at, '\n')); at = end + 1)
        cli_line("ingle: error: %.*s", (int)(end - at), at);
    return err_set(err, st, "%zu lines of '%.200s' are wrong; the first is %.240s", l->n_wrong,
                   path, first.msg);
}

/* What `from` has and c's options have not. */
static ingle_status add_options(struct cli *c, const struct ingle_config *from, struct err *err)
{
    size_t n;
    const char *text;
    struct ingle_error error;
    const struct ingle_option *o = ingle_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (!ingle_config_is_set(from, o[i].name) || ingle_config_is_set(c->config, o[i].name))
            continue;
        for (size_t k = 0; (text = ingle_config_text(from, o[i].name, k)); k++)
            if (ingle_config_set(c->config, c->command, o[i].name, text, &error))
                return err_set(err, error.status, "%s", error.text);
    }
    return INGLE_OK;
}

ingle_status cli_option_file(struct cli *c, struct err *err)
{
    struct ingle_error error;
    struct lines l = {.command = c->command, .notes = &c->notes};
    const char *path = ingle_config_text(c->config, "config", 0);
    if (!path)
        return INGLE_OK;
    if (ingle_config_open(&l.config, &error))
        return err_set(err, error.status, "%s", error.text);
    char *text = NULL;
    size_t n;
    str_init(&l.wrong);
    ingle_status st = ini_slurp(path, &text, &n, err);
    if (!st) {
        st = ini_read_on(path, text, n, take_line, take_wrong, &l, err);
        st = show_wrong(&l, path, st, err);
    }
    mem_free(text);
    str_release(&l.wrong);
    if (!st)
        st = cli_option_home(l.config, err);
    if (!st)
        st = add_options(c, l.config, err);
    ingle_config_close(l.config);
    return st;
}

int cli_options_read(struct cli *c, int argc, char **argv, int first, bool *help)
{
    bool only_arguments = false;
    *help = false;
    for (int i = first; i < argc; i++) {
        int rc = CLI_OK;
        const char *a = argv[i];
        if (only_arguments || a[0] != '-' || !a[1])
            c->arg[c->n_arg++] = argv[i];
        else if (strcmp(a, "--") == 0)
            only_arguments = true;
        else if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0)
            *help = true;
        else if (strcmp(a, "--help-all") == 0)
            *help = c->help_all = true;
        else if (a[1] == '-')
            rc = read_long(c, argc, argv, &i);
        else
            rc = read_short(c, argc, argv, &i);
        if (rc)
            return rc;
    }
    return CLI_OK;
}

/* "--ttl", or what was typed instead and ours: "--sleep-idle-seconds (--ttl here)". */
static const char *as_typed(const struct cli *c, const char *name, char *out, size_t n)
{
    snprintf(out, n, "'--%s'", name);
    for (size_t i = 0; i < c->n_typed; i++)
        if (strcmp(c->typed[i].ours, name) == 0)
            snprintf(out, n, "'%s' (--%s here)", c->typed[i].spelt, name);
    return out;
}

/* Whether the command takes one of these options; whether one of them was given; and the list for a
 * message: "experts-worker or --stages". */
static bool has_needed(const struct cli *c, const char *needs, bool *given, char *list, size_t n)
{
    bool takes = false;
    char name[64];
    size_t used = 0;
    list[0] = '\0';
    for (const char *at = needs; *at;) {
        const size_t length = strcspn(at, " ");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        at += length + (at[length] == ' ');
        /* a launcher says the stages later, or makes this process one; a worker is one */
        *given = *given || ingle_config_is_set(c->config, name) ||
                 (strcmp(name, "stages") == 0 &&
                  (c->launch.stage || cli_takes(c->command, "stage")));
        takes = takes || cli_takes(c->command, name);
        const int w = snprintf(list + used, n - used, "%s%s", used ? " or --" : "", name);
        used += w > 0 && (size_t)w < n - used ? (size_t)w : 0;
    }
    return takes;
}

void cli_options_idle(const struct cli *c)
{
    /* whose own options are read later */
    const bool several = ingle_config_is_set(c->config, "models");
    size_t n;
    const struct ingle_option *o = ingle_options(&n);
    for (size_t i = 0; i < n; i++) {
        char of[120];
        bool given = several;
        if (o[i].needs && ingle_config_is_set(c->config, o[i].name) &&
            has_needed(c, o[i].needs, &given, of, sizeof of) && !given)
            fprintf(stderr, "ingle: warning: option %s does nothing without --%s\n",
                    as_typed(c, o[i].name, (char[120]){0}, 120), of);
    }
}
