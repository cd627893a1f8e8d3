/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>

enum { INPUT_LIMIT = 1 << 30, KEPT_LINE = 1 << 20 };

static ingle_status slurp_stream(FILE *f, const char *name, char **out, size_t *n,
                                 struct err *err)
{
    struct str s;
    char buffer[65536];
    size_t k;
    str_init(&s);
    while ((k = fread(buffer, 1, sizeof buffer, f)) > 0 && s.n <= INPUT_LIMIT)
        str_add(&s, buffer, k);
    ingle_status st = INGLE_OK;
    if (ferror(f))
        st = err_set(err, INGLE_IO, "%s: %s", name, strerror(errno));
    else if (s.n > INPUT_LIMIT)
        st = err_set(err, INGLE_LIMIT, "%s: more than %d bytes", name, INPUT_LIMIT);
    else if (!str_ok(&s))
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

ingle_status cli_input(struct cli *c, char **out, size_t *n, struct err *err)
{
    const char *file = ingle_config_text(c->config, "file", 0), *prompt = ingle_config_text(c->config, "prompt", 0);
    if ((file || prompt) && c->n_arg)
        return err_set(err, INGLE_ARG, "both '--%s %s' and '%s' are given as the input", file ? "file" : "prompt",
                       file ? file : prompt, c->arg[0]);
    if (file && prompt)
        return err_set(err, INGLE_ARG, "both '--file %s' and '--prompt %s' are given as the input", file, prompt);
    if (file || (!prompt && !c->n_arg))
        return cli_slurp(file ? file : "-", out, n, err);
    struct str s;
    str_init(&s);
    str_adds(&s, prompt ? prompt : "");
    for (int i = 0; i < c->n_arg; i++) {
        str_adds(&s, i ? " " : "");
        str_adds(&s, c->arg[i]);
    }
    *n = s.n;
    *out = str_detach(&s);
    str_release(&s);
    return *out ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for the input");
}

/* One line into *s, without its end; of a longer one the first most + 1 bytes, and the others are lost.
 * Returns what ended it. */
static int read_line(FILE *f, size_t most, struct str *s)
{
    int ch;
    if (s->cap > KEPT_LINE)
        str_release(s);
    str_clear(s);
    while ((ch = getc_unlocked(f)) != EOF && ch != '\n')
        if (s->n <= most)
            str_addc(s, (char)ch);
    return ch;
}

static int each_line(struct cli *c, FILE *f, const char *name, size_t most, cli_line_fn *fn, void *arg)
{
    struct str line;
    struct err err;
    int rc = CLI_OK, ch;
    str_init(&line);
    do {
        ch = read_line(f, most, &line);
        if (line.n > INPUT_LIMIT || !str_ok(&line)) {
            err_set(&err, INGLE_LIMIT, "%s: a line of more than %d bytes", name, INPUT_LIMIT);
            rc = cli_fail_err(c, &err);
        } else if (line.n || ch != EOF) {
            rc = fn(c, arg, line.at, line.n);
        }
    } while (!rc && ch != EOF && !ferror(stdout));
    if (!rc && ferror(f)) {
        err_set(&err, INGLE_IO, "%s: %s", name, strerror(errno));
        rc = cli_fail_err(c, &err);
    }
    str_release(&line);
    return rc;
}

int cli_lines(struct cli *c, cli_line_fn *fn, void *arg)
{
    return cli_lines_within(c, INPUT_LIMIT, fn, arg);
}

int cli_lines_within(struct cli *c, size_t most, cli_line_fn *fn, void *arg)
{
    const char *name = ingle_config_text(c->config, "file", 0);
    if (!name && c->n_arg)
        name = c->arg[0];
    if (!name || strcmp(name, "-") == 0)
        return each_line(c, stdin, "standard input", most, fn, arg);
    FILE *f = fopen(name, "rb");
    if (!f) {
        struct err err;
        err_set(&err, INGLE_IO, "%s: %s", name, strerror(errno));
        return cli_fail_err(c, &err);
    }
    const int rc = each_line(c, f, name, most, fn, arg);
    fclose(f);
    return rc;
}

ingle_status cli_open_model(struct cli *c, struct ingle_model **out, struct ingle_error *error)
{
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    struct ingle_model *m;
    ingle_status st = ingle_model_open(&m, ingle_config_text(c->config, "model", 0), &callbacks, error);
    if (st)
        return st;
    st = ingle_config_check(c->config, m, error);
    if (st)
        ingle_model_close(m);
    else
        *out = m;
    return st;
}

void cli_print_json(const char *bytes, size_t n)
{
    struct str s;
    str_init(&s);
    str_add_json(&s, bytes, n);
    fwrite(s.at, 1, s.n, stdout);
    str_release(&s);
}
