/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/input.h"

#include "base/mem.h"
#include "tool/tool.h"

enum { MAX_FILES = 64 };

static int run(struct cli *c, const struct tool_imatrix_options *given, const char *text_file)
{
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    const struct report_sink sink = {callbacks.report, callbacks.progress, callbacks.arg};
    struct tool_imatrix_options o = *given;
    struct ingle_model *m = NULL;
    struct ingle_error error;
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n_bytes, n = 0;
    struct err err;
    struct str out;
    if (cli_slurp(text_file, &text, &n_bytes, &err))
        return cli_fail_err(c, &err);
    str_init(&out);
    int rc = CLI_OK;
    const int how = INGLE_ADD_SPECIAL |
                    (ingle_config_flag(c->config, "parse-special") ? INGLE_PARSE_SPECIAL : 0);
    if (cli_open_model(c, &m, &error) || ingle_tokenize(m, text, n_bytes, how, &ids, &n, &error)) {
        rc = cli_fail(c, &error);
    } else {
        int32_t *bare = NULL;
        size_t n_bare = 0;
        if (!ingle_tokenize(m, "a", 1, INGLE_ADD_SPECIAL, &bare, &n_bare, &error))
            o.bos = n_bare > 1 ? bare[0] : -1;
        ingle_free(bare);
        ingle_model_close(m);
        m = NULL;
        const ingle_status s = tool_imatrix(ids, n, &o, &sink, &out, &err);
        cli_screen_clear(&c->screen);
        if (s)
            rc = cli_fail_err(c, &err);
        else
            cli_put_text(stdout, out.at, out.n);
    }
    ingle_model_close(m);
    ingle_free(ids);
    mem_free(text);
    str_release(&out);
    return rc;
}

static int merge(struct cli *c, const struct tool_imatrix_options *o)
{
    const struct ingle_callbacks callbacks = cli_callbacks(c);
    const struct report_sink sink = {callbacks.report, callbacks.progress, callbacks.arg};
    struct err err;
    struct str out;
    str_init(&out);
    const ingle_status s = tool_imatrix_merge(o, &sink, &out, &err);
    if (!s)
        cli_put_text(stdout, out.at, out.n);
    str_release(&out);
    return s ? cli_fail_err(c, &err) : CLI_OK;
}

int cli_imatrix(struct cli *c)
{
    const char *in[MAX_FILES], *text = ingle_config_text(c->config, "file", 0),
                               *out = ingle_config_text(c->config, "outfile", 0);
    size_t n = 0;
    for (const char *one; (one = ingle_config_text(c->config, "in-file", n)) != NULL; n++) {
        if (n == MAX_FILES)
            return cli_usage(c, "--in-file is there more than %d times", MAX_FILES);
        in[n] = one;
    }
    const char *model = ingle_config_text(c->config, "model", 0);
    if (c->n_arg || !out || (!text && !n) || (text && !model))
        return cli_usage(c, "imatrix needs -m FILE, -f TEXT and -o OUT, or files to merge: "
                            "--in-file FILE ... -o OUT");
    const struct tool_imatrix_options o = {
        .model = model,
        .dataset = text,
        .out = out,
        .n_ctx = (int64_t)ingle_config_number(c->config, "chunk-size"),
        .n_chunks = (uint64_t)ingle_config_number(c->config, "chunks"),
        .save_every = (uint64_t)ingle_config_number(c->config, "save-every"),
        .n_threads = (int)ingle_config_number(c->config, "threads"),
        .in = in,
        .n_in = n,
        .guard = c->guard,
        .force = ingle_config_flag(c->config, "force"),
        .bos = -1,
    };
    return text ? run(c, &o, text) : merge(c, &o);
}
