/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/input.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/plain.h"
#include "tool/tool.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { INPUT_LIMIT = 1 << 30, KEPT_LINE = 1 << 20 };

static ingle_status slurp_stream(FILE *f, const char *name, char **out, size_t *n,
                                 struct err *err)
{
    struct str s;
    struct plain plain;
    char buffer[65536];
    size_t k;
    ingle_status st = INGLE_OK;
    str_init(&s);
    plain_init(&plain, name, false);
    while (!st && s.n <= INPUT_LIMIT && (k = fread(buffer, 1, sizeof buffer, f)) > 0)
        st = plain_add(&plain, &s, buffer, k, err);
    if (!st && ferror(f))
        st = err_set(err, INGLE_IO, "%s: %s", name, strerror(errno));
    else if (!st && s.n > INPUT_LIMIT)
        st = err_set(err, INGLE_LIMIT, "%s: more than %d bytes", name, INPUT_LIMIT);
    else if (!st)
        st = plain_end(&plain, &s, err);
    if (!st && !str_ok(&s))
        st = err_set(err, INGLE_NOMEM, "%s: no memory for the input", name);
    if (!st) {
        *n = s.n;
        *out = s.n ? str_detach(&s) : mem_strdup("");
        if (!*out)
            st = err_set(err, INGLE_NOMEM, "%s: no memory for the input", name);
    }
    str_release(&s);
    return st;
}

ingle_status cli_slurp(const char *path, char **out, size_t *n, struct err *err)
{
    if (strcmp(path, "-") == 0)
        return slurp_stream(stdin, "standard input", out, n, err);
    FILE *f = fopen(path, "rb"); /* what is no regular file, such as a pipe, is fine */
    if (!f)
        return err_set(err, INGLE_IO, "%s: cannot open: %s", path, strerror(errno));
    const ingle_status st = slurp_stream(f, path, out, n, err);
    fclose(f);
    return st;
}

ingle_status cli_slurp_or_text(const char *value, const char *mark, char **out, size_t *n,
                               struct err *err)
{
    const char *first = value + strspn(value, " \t\r\n");
    const bool text = mark[1] ? strstr(value, mark) != NULL : *first == *mark;
    if (!text || access(value, F_OK) == 0)
        return cli_slurp(value, out, n, err);
    *n = strlen(value);
    *out = mem_strdup(value);
    return *out ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for %zu bytes", *n);
}

ingle_status cli_slurp_json(const char *path, char **out, size_t *n, struct err *err)
{
    char *text;
    ingle_status st = cli_slurp_or_text(path, "[", &text, n, err);
    if (st)
        return st;
    if (json_gate(text, *n, NULL, err)) {
        mem_free(text);
        return err_prefix(err, "%s", strcmp(path, "-") == 0 ? "standard input" : path);
    }
    *out = text;
    return INGLE_OK;
}

void cli_name_files(struct ingle_error *error, const char *messages, const char *tools)
{
    struct err err;
    const char *path = strncmp(error->text, "tool", 4) == 0      ? tools
                       : strncmp(error->text, "message", 7) == 0 ? messages
                                                                 : NULL;
    if (!path)
        return;
    (void)err_set(&err, error->status, "%s: %s", path, error->text);
    snprintf(error->text, sizeof error->text, "%s", err.msg);
}

ingle_status cli_ids(const struct ingle_model *m, const char *path, int32_t **ids, size_t *n,
                     struct err *err)
{
    struct ingle_model_info info;
    char *text = NULL;
    int32_t *id = NULL;
    size_t n_text, count = 0;
    ingle_model_info(m, &info);
    ingle_status st = tool_ids_binary(path) ? tool_ids_read(path, &id, &count, err)
                                            : cli_slurp(path, &text, &n_text, err);
    if (!st && text)
        st = tool_ids_parse(strcmp(path, "-") == 0 ? "standard input" : path, text, n_text, &id,
                            &count, err);
    mem_free(text);
    for (size_t i = 0; !st && i < count; i++)
        if (info.n_vocab && id[i] >= info.n_vocab)
            st = err_set(err, INGLE_ARG,
                         "%s: element %zu is token %d, outside the vocabulary of %lld", path, i,
                         id[i], (long long)info.n_vocab);
    if (st) {
        mem_free(id);
        return st;
    }
    *ids = id;
    *n = count;
    return INGLE_OK;
}

size_t cli_without_end(const char *text, size_t n)
{
    if (!n || text[n - 1] != '\n')
        return n;
    return n > 1 && text[n - 2] == '\r' ? n - 2 : n - 1;
}

ingle_status cli_input(struct cli *c, char **out, size_t *n, struct err *err)
{
    const char *file = ingle_config_text(c->config, "file", 0),
               *prompt = ingle_config_text(c->config, "prompt", 0);
    if ((file || prompt) && c->n_arg)
        return err_set(err, INGLE_ARG, "both '--%s %s' and '%s' are given as the input",
                       file ? "file" : "prompt", file ? file : prompt, c->arg[0]);
    if (file && prompt)
        return err_set(err, INGLE_ARG, "both '--file %s' and '--prompt %s' are given as the input",
                       file, prompt);
    if (file || (!prompt && !c->n_arg))
        return cli_slurp(file ? file : "-", out, n, err);
    struct str s;
    str_init(&s);
    str_adds(&s, prompt ? prompt : "");
    for (int i = 0; i < c->n_arg; i++) {
        char name[32];
        snprintf(name, sizeof name, "argument %d", i + 1);
        if (plain_check(name, c->arg[i], strlen(c->arg[i]), err)) {
            str_release(&s);
            return err->status;
        }
        str_adds(&s, i ? " " : "");
        str_adds(&s, c->arg[i]);
    }
    *n = s.n;
    *out = str_detach(&s);
    str_release(&s);
    if (!*out && !*n) /* the argument is empty */
        *out = mem_strdup("");
    return *out ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for the input");
}

/* ---- lines ---- */

void cli_reader_init(struct cli_reader *r, FILE *f, const char *name, bool lax)
{
    *r = (struct cli_reader){.f = f};
    plain_init(&r->plain, name, lax);
}

int cli_reader_line(struct cli_reader *r, size_t most, struct str *out, struct err *err)
{
    ingle_status st = INGLE_OK;
    int ch = 0;
    bool cut = false, whole = false;
    if (out->cap > KEPT_LINE)
        str_release(out);
    str_clear(out);
    if (r->ended)
        return 0;
    while (!st && !whole && (ch = getc_unlocked(r->f)) != EOF) {
        const char byte = (char)ch;
        const size_t before = out->n;
        st = plain_add(&r->plain, out, &byte, 1, err);
        whole = out->n > before && out->at[out->n - 1] == '\n';
        if (out->n > most && !whole) { /* the others are lost */
            out->at[out->n = most] = 0;
            cut = true;
        }
    }
    if (!st && ferror(r->f))
        st = err_set(err, INGLE_IO, "%s: %s", r->plain.name, strerror(errno));
    else if (!st && ch == EOF)
        st = plain_end(&r->plain, out, err);
    r->ended = st || ch == EOF;
    if (!st && !str_ok(out))
        st = err_set(err, INGLE_NOMEM, "%s: no memory for a line", r->plain.name);
    if (st)
        return -1;
    r->line++;
    if (whole)
        out->at[--out->n] = 0;
    if (cut) {
        str_addc(out, ' ');
        return 1;
    }
    if (!r->plain.lax && whole && out->n && out->at[out->n - 1] == '\r')
        out->at[--out->n] = 0;
    return whole || out->n;
}

static int each_line(struct cli *c, FILE *f, const char *name, enum cli_lines_kind kind,
                     size_t most, cli_line_fn *fn, void *arg)
{
    struct str line;
    struct err err;
    struct cli_reader reader;
    int rc = CLI_OK, got = 1;
    str_init(&line);
    cli_reader_init(&reader, f, name, kind == CLI_JSON);
    while (!rc && !ferror(stdout) && (got = cli_reader_line(&reader, most, &line, &err)) > 0) {
        if (line.n > INPUT_LIMIT) {
            err_set(&err, INGLE_LIMIT, "%s: line %llu has more than %d bytes", name,
                    (unsigned long long)reader.line, INPUT_LIMIT);
            rc = cli_fail_err(c, &err);
        } else {
            rc = fn(c, arg, line.at, line.n);
        }
    }
    if (got < 0)
        rc = cli_fail_err(c, &err);
    str_release(&line);
    return rc;
}

int cli_lines(struct cli *c, enum cli_lines_kind kind, size_t most, cli_line_fn *fn, void *arg)
{
    const char *name = ingle_config_text(c->config, "file", 0);
    most = most ? most : INPUT_LIMIT;
    if (!name && c->n_arg)
        name = c->arg[0];
    if (!name || strcmp(name, "-") == 0)
        return each_line(c, stdin, "standard input", kind, most, fn, arg);
    FILE *f = fopen(name, "rb");
    if (!f) {
        struct err err;
        err_set(&err, INGLE_IO, "%s: cannot open: %s", name, strerror(errno));
        return cli_fail_err(c, &err);
    }
    const int rc = each_line(c, f, name, kind, most, fn, arg);
    fclose(f);
    return rc;
}

ingle_status cli_open_model(struct cli *c, struct ingle_model **out, struct ingle_error *error)
{
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    struct ingle_model *m;
    ingle_status st =
        ingle_model_open(&m, ingle_config_text(c->config, "model", 0), &callbacks, error);
    if (st)
        return st;
    st = ingle_config_check(c->config, m, error);
    if (st)
        ingle_model_close(m);
    else
        *out = m;
    return st;
}

bool cli_developer_own(const struct cli *c)
{
    return strcmp(ingle_config_text(c->config, "developer-role", 0), "own") == 0;
}

void cli_json(struct str *s)
{
    str_init(s);
    s->spaced = true;
}

void cli_json_line(struct str *s, bool first)
{
    str_adds(s, first ? "\n " : ",\n ");
}

void cli_json_print(struct str *s, const char *end)
{
    if (str_ok(s))
        cli_put_text(stdout, s->at, s->n);
    else
        fputs("ingle: no memory for what was to be printed\n", stderr);
    fputs(end, stdout);
    str_clear(s);
}

void cli_json_end(struct str *s, const char *end)
{
    cli_json_print(s, end);
    str_release(s);
}

void cli_print_json(const char *bytes, size_t n)
{
    struct str s;
    str_init(&s);
    str_add_json(&s, bytes, n);
    cli_put_text(stdout, s.at, s.n);
    str_release(&s);
}
