/* SPDX-License-Identifier: Apache-2.0 */
/* pull - files from a hub, for `ingle pull` and for -m and --draft hf:OWNER/NAME:CODE. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/plain.h"
#include "hub/hub.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TOKEN = 4096 };

struct access {
    struct str directory, address;
    char *token;
    struct report_sink sink;
};

static void release(struct access *a)
{
    str_release(&a->directory);
    str_release(&a->address);
    if (a->token)
        memset(a->token, 0, strlen(a->token));
    mem_free(a->token);
}

/* The first line of the file. */
static ingle_status read_token(struct access *a, const char *path, struct err *err)
{
    size_t n;
    ingle_status st = file_slurp(path, MOST_TOKEN, &a->token, &n, err);
    if (st)
        return st;
    a->token[strcspn(a->token, "\r\n")] = 0;
    for (const char *p = a->token; *p && !st; p++)
        if (*p <= ' ' || *p > '~')
            st = err_set(err, INGLE_FORMAT, "'%s' has a byte that no token has", path);
    return st || *a->token ? st : err_set(err, INGLE_FORMAT, "'%s' has no token in its first line", path);
}

static ingle_status find_directory(const struct cli *c, struct access *a, struct err *err)
{
    const char *asked = ingle_config_text(c->config, "hub-dir", 0), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (asked)
        str_adds(&a->directory, asked);
    else if (cache && *cache == '/')
        str_addf(&a->directory, "%s/ingle/hub", cache);
    else if (home && *home == '/')
        str_addf(&a->directory, "%s/.cache/ingle/hub", home);
    else
        return err_set(err, INGLE_ARG, "there is no home folder: --hub-dir must say where files go");
    return str_ok(&a->directory) ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for the folder of the hub's files");
}

/* What the options say; ended by release() also after a failure. */
static ingle_status read_options(struct cli *c, struct access *a, struct hub_options *o, struct err *err)
{
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    const char *address = ingle_config_text(c->config, "hub", 0), *token = ingle_config_text(c->config, "hub-token-file", 0);
    *a = (struct access){.sink = {callbacks.report, callbacks.progress, callbacks.arg}};
    str_init(&a->directory);
    str_init(&a->address);
    if (strncmp(address, "https://", 8) != 0 && strncmp(address, "http://", 7) != 0)
        return err_set(err, INGLE_ARG, "'--hub %s' is no address: https://HOST", address);
    size_t n = strlen(address);
    while (n && address[n - 1] == '/')
        n--;
    str_add(&a->address, address, n);
    ingle_status st = find_directory(c, a, err);
    if (!st && token)
        st = read_token(a, token, err);
    *o = (struct hub_options){.address = a->address.at,
                              .revision = ingle_config_text(c->config, "hub-revision", 0),
                              .token = a->token,
                              .directory = a->directory.at,
                              .connections = (int)ingle_config_number(c->config, "hub-connections"),
                              .piece_bytes = (uint64_t)ingle_config_number(c->config, "hub-piece"),
                              .offline = ingle_config_flag(c->config, "offline"),
                              .sink = &a->sink};
    return st;
}

static ingle_status pull(struct cli *c, const char *name, char **path, struct err *err)
{
    struct access a;
    struct hub_options o;
    ingle_status st = read_options(c, &a, &o, err);
    if (!st)
        st = hub_pull(name, &o, path, err);
    release(&a);
    cli_screen_clear(&c->screen);
    return st;
}

/* The i-th value of an option, if it is of a hub, becomes a path. */
static ingle_status resolve(struct cli *c, const char *option, size_t i, struct err *err)
{
    struct ingle_error error;
    char *path = NULL;
    const char *value = ingle_config_text(c->config, option, i);
    if (!value || strncmp(value, "hf:", 3) != 0)
        return INGLE_OK;
    ingle_status st = pull(c, value + 3, &path, err);
    if (!st && ingle_config_replace(c->config, option, i, path, &error))
        st = err_set(err, error.status, "%s", error.text);
    mem_free(path);
    return st;
}

ingle_status cli_hub_model(struct cli *c, struct err *err)
{
    ingle_status st = resolve(c, "model", 0, err);
    if (!st)
        st = resolve(c, "prompt-drafter", 0, err);
    for (size_t i = 0; !st && ingle_config_text(c->config, "draft", i); i++)
        st = resolve(c, "draft", i, err);
    return st;
}

static int list(struct cli *c, const char *name)
{
    struct access a;
    struct hub_options o;
    struct hub_list files = {0};
    struct err err;
    ingle_status st = read_options(c, &a, &o, &err);
    if (!st)
        st = hub_list(name, &o, &files, &err);
    for (size_t i = 0; i < files.n && !st; i++)
        printf("%12.2f MB  %s\n", (double)files.at[i].n_bytes / 1e6, CLI_SHOWN(files.at[i].path));
    hub_list_release(&files);
    release(&a);
    return st ? cli_fail_err(c, &err) : CLI_OK;
}

int cli_pull(struct cli *c)
{
    struct err err;
    char *path;
    if (c->n_arg != 1)
        return cli_usage(c, "one name is needed: OWNER/NAME or OWNER/NAME:CODE");
    const char *name = strncmp(c->arg[0], "hf:", 3) == 0 ? c->arg[0] + 3 : c->arg[0];
    if (ingle_config_flag(c->config, "list"))
        return list(c, name);
    if (pull(c, name, &path, &err))
        return cli_fail_err(c, &err);
    printf("%s\n", path);
    mem_free(path);
    return CLI_OK;
}
