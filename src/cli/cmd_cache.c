/* SPDX-License-Identifier: Apache-2.0 */
/* Files of packed weights: where they are, what is there, making and deleting them. */
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/hub.h"

#include "base/size.h"
#include "base/write.h"

#include <stdlib.h>
#include <string.h>

enum { SLOW_S = 3 }; /* a start that takes longer is worth a word */

ingle_status cli_pack_default(struct cli *c, struct ingle_error *error)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct str path;
    if (ingle_config_is_set(c->config, "pack-cache"))
        return INGLE_OK;
    str_init(&path);
    if (cache && *cache == '/')
        str_addf(&path, "%s/ingle/packed", cache);
    else if (home && *home == '/')
        str_addf(&path, "%s/.cache/ingle/packed", home);
    ingle_status st = INGLE_OK;
    if (path.n && str_ok(&path))
        st = ingle_config_set(c->config, NULL, "pack-cache", path.at, error);
    str_release(&path);
    return st;
}

void cli_pack_say(struct cli *c, const struct ingle_engine *e)
{
    struct ingle_engine_info info;
    ingle_engine_info(e, &info);
    const char *dir = ingle_config_text(c->config, "pack-cache", 0);
    if (!c->screen.progress)
        return;
    cli_screen_clear(&c->screen);
    if (info.packed)
        fprintf(stderr,
                "ingle: wrote %s of packed weights to %s: later starts take no time; 'ingle cache' "
                "lists and deletes them\n",
                SIZE_OF(info.matrix_bytes), dir);
    else if (c->screen.terminal && dir && !info.mapped && info.load_seconds > (double)SLOW_S &&
             strcmp(dir, "off") != 0)
        fprintf(
            stderr,
            "ingle: loading took %.1f s; with --pack once (%s on disk) later starts take no time\n",
            info.load_seconds, SIZE_OF(info.matrix_bytes));
}

struct shelf {
    struct str out; /* JSON */
    bool json;
    int64_t n, n_damaged;
    uint64_t bytes;
};

static const char *state_of(const struct ingle_pack_entry *e)
{
    if (e->temporary)
        return e->in_use ? "being written" : "unfinished";
    if (e->foreign)
        return "of another version";
    if (e->damage)
        return "damaged";
    return e->in_use ? "in use" : "ready";
}

static void print_entry(void *arg, const struct ingle_pack_entry *e)
{
    struct shelf *s = arg;
    const bool damaged = e->damage && !e->foreign;
    if (s->json) {
        cli_json_line(&s->out, s->n == 0);
        write_open(&s->out, '{');
        write_member(&s->out, "name", e->name);
        write_member_uint(&s->out, "bytes", e->bytes);
        write_member_int(&s->out, "age_s", e->age_seconds);
        write_member(&s->out, "state", state_of(e));
        write_member(&s->out, "model", e->model);
        if (e->damage)
            write_member(&s->out, "why", e->damage);
        write_close(&s->out, '}');
    } else {
        printf("%-12.12s %12s %8.1f h  %-18s %s\n", CLI_SHOWN(e->name), SIZE_OF(e->bytes),
               (double)e->age_seconds / 3600, state_of(e),
               CLI_SHOWN(e->damage ? e->damage : e->model));
    }
    s->n++;
    s->n_damaged += damaged;
    s->bytes += e->bytes;
}

static int list(struct cli *c, const char *dir)
{
    struct shelf s = {.json = ingle_config_flag(c->config, "json")};
    struct ingle_error error;
    int rc = CLI_OK;
    cli_json(&s.out);
    if (s.json) {
        write_open(&s.out, '{');
        write_key(&s.out, "files");
        write_open(&s.out, '[');
    } else {
        printf("%-12s %12s %10s  %-18s %s\n", "file", "size", "last used", "state", "model");
    }
    const ingle_status st =
        ingle_pack_list(dir, ingle_config_flag(c->config, "verify"), print_entry, &s, &error);
    if (st && st != INGLE_NOTFOUND) /* a directory that is not there is empty */
        rc = cli_fail(c, &error);
    else if (s.json) {
        write_close(&s.out, ']');
        write_member_uint(&s.out, "bytes", s.bytes);
        write_member_int(&s.out, "damaged", s.n_damaged);
        write_close(&s.out, '}');
        cli_json_print(&s.out, "\n");
    } else {
        printf("%lld files, %s in %s\n", (long long)s.n, SIZE_OF(s.bytes), dir);
    }
    str_release(&s.out);
    return rc != CLI_OK ? rc : s.n_damaged ? CLI_FAILURE : CLI_OK;
}

static int clear(struct cli *c, const char *dir)
{
    struct ingle_error error;
    int64_t n = 0;
    uint64_t bytes = 0;
    const ingle_status st = ingle_pack_clear(dir, &n, &bytes, &error);
    if (st && st != INGLE_NOTFOUND)
        return cli_fail(c, &error);
    printf("deleted %lld files, %s, in %s\n", (long long)n, SIZE_OF(bytes), dir);
    return CLI_OK;
}

/* A small context: the weights are what matters. */
static int add(struct cli *c, const char *dir)
{
    struct ingle_model *m = NULL;
    struct ingle_engine *e = NULL;
    struct ingle_error error;
    struct ingle_engine_info info = {0};
    struct ingle_engine_options o = {.callbacks = cli_callbacks(c)};
    ingle_config_engine(c->config, &o);
    o.pack_write = true;
    o.n_ctx = 512;
    int rc = CLI_OK;
    if (cli_open_model(c, &m, &error) || ingle_engine_open(&e, m, &o, &error))
        rc = cli_fail(c, &error);
    else
        ingle_engine_info(e, &info);
    cli_screen_clear(&c->screen);
    if (info.packed)
        printf("wrote %s to %s\n", SIZE_OF(info.matrix_bytes), dir);
    else if (info.mapped)
        printf("%s are there already, in %s\n", SIZE_OF(info.matrix_bytes), dir);
    else if (!rc)
        rc = CLI_FAILURE; /* a warning has said why */
    ingle_engine_close(e);
    ingle_model_close(m);
    return rc;
}

int cli_cache(struct cli *c)
{
    const char *dir = ingle_config_text(c->config, "pack-cache", 0);
    const bool adds = ingle_config_flag(c->config, "add"),
               clears = ingle_config_flag(c->config, "clear"),
               verifies = ingle_config_flag(c->config, "verify");
    if (c->n_arg)
        return cli_usage(c, "'cache' takes no argument such as '%s'", c->arg[0]);
    if (adds + clears + verifies > 1)
        return cli_usage(c, "options '--add', '--verify' and '--clear' exclude each other");
    if (adds != ingle_config_is_set(c->config, "model"))
        return cli_usage(c, adds ? "option '--add' needs a model: -m FILE"
                                 : "a model is only for '--add'");
    if (!dir)
        return cli_usage(c, "neither XDG_CACHE_HOME nor HOME is set: say '--pack-cache DIR'");
    if (strcmp(dir, "off") == 0)
        return cli_usage(c, "'cache' needs a folder: say '--pack-cache DIR', not off");
    return adds ? add(c, dir) : clears ? clear(c, dir) : list(c, dir);
}
