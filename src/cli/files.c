/* SPDX-License-Identifier: Apache-2.0 */
/* Which files a call reads and writes, by its options and arguments: an output that is an input is
 * an error before all else. */
#include "cli/cli.h"

#include "base/output.h"
#include <string.h>

enum use { USE_READ, USE_WRITE, USE_OWN };

#define READ(name) {name, USE_READ, OUTPUT_EMPTY},
#define WRITE(name, kind) {name, USE_WRITE, kind},
#define OWN(name) {name, USE_OWN, OUTPUT_EMPTY},
static const struct {
    const char *name;
    enum use use;
    enum output_kind kind;
} files[] = {
#include "cli/files.inc"
};
enum { N_FILES = sizeof files / sizeof *files };

static bool is(const struct cli *c, const char *command)
{
    return strcmp(c->command, command) == 0;
}

static ingle_status reads(struct cli *c, size_t i, struct err *err)
{
    char by[64];
    const char *path;
    ingle_status st = INGLE_OK;
    snprintf(by, sizeof by, "--%s", files[i].name);
    static const char *const models[] = {"model", "draft", "prompt-drafter", "target-model-dir"};
    bool model = false;
    for (size_t k = 0; k < sizeof models / sizeof *models; k++)
        model = model || strcmp(files[i].name, models[k]) == 0;
    for (size_t k = 0; !st && (path = ingle_config_text(c->config, files[i].name, k)) != NULL; k++)
        st = strcmp(path, "-") == 0 ? INGLE_OK : output_guard_reads(c->guard, by, path, model, err);
    return st;
}

static ingle_status writes(struct cli *c, size_t i, struct err *err)
{
    char by[64];
    const char *path = ingle_config_text(c->config, files[i].name, 0);
    const bool folder = is(c, "convert"), importance = is(c, "imatrix"); /* --outfile */
    struct output o = {.path = path, .kind = importance ? OUTPUT_IMPORTANCE : files[i].kind,
                       .force = importance && ingle_config_flag(c->config, "force")};
    snprintf(by, sizeof by, "--%s", files[i].name);
    if (!path || strcmp(path, "-") == 0)
        return INGLE_OK;
    const ingle_status st = output_guard_writes(c->guard, by, path, err);
    return st || folder ? st : output_check(&o, err);
}

/* Arguments that are files, of commands that write some. */
static ingle_status arguments(struct cli *c, struct err *err)
{
    ingle_status st = INGLE_OK;
    if ((is(c, "quantize") || is(c, "convert")) && c->n_arg > 0)
        st = output_guard_reads(c->guard, "IN", c->arg[0], true, err);
    return st;
}

ingle_status cli_files(struct cli *c, struct err *err)
{
    const bool inspects = is(c, "inspect");
    ingle_status st = output_guard_create(&c->guard, err);
    for (size_t i = 0; i < N_FILES && !st; i++)
        if (files[i].use == USE_READ || (inspects && !strcmp(files[i].name, "experts")))
            st = reads(c, i, err);
    if (!st)
        st = arguments(c, err);
    for (size_t i = 0; i < N_FILES && !st && !inspects; i++)
        if (files[i].use == USE_WRITE)
            st = writes(c, i, err);
    if (!st && is(c, "quantize") && c->n_arg > 1)
        st = output_guard_writes(c->guard, "OUT", c->arg[1], err);
    return st;
}
